//! `[hardware]`: a profile by name, and keys that override it; for some hosts, `[[hardware.of]]`.

use super::format::{HardwareTable, Scenario};
use crate::error::Error;
use crate::host::hardware::Profile;
use crate::host::hardware::profile::{KEYS, Key, Kind, RANDOM};
use crate::host::hardware::profiles::{PROFILES, by_name};
use crate::host::one_rma::Pcie;
use crate::units::{parse_rate, parse_time};
use std::collections::BTreeMap;
use toml::Value;

/// Keys of which the 1RMA NIC has a use.
const ONE_RMA_KEYS: [&str; 3] = ["pcie-rate", "pcie-read", "pcie-write"];
/// Why a key cannot be given, where what it is about is not built.
const LATER: [(&str, &str); 1] =
    [("rx-buffer", "is not built: packets that wait to be taken in are not bounded; remove it")];

/// A table with a profile and keys that override it, over what would hold without it.
fn resolve(
    at: &str,
    name: Option<&str>,
    keys: &BTreeMap<String, Value>,
    base: Profile,
) -> Result<Profile, Error> {
    let mut profile = match name {
        None => base,
        Some(name) => by_name(name).ok_or_else(|| {
            let known: Vec<&str> = PROFILES.iter().map(|(known, _)| *known).collect();
            Error::new(format!("{at}.profile"), format!("`{name}` is not one of {}", known.join(", ")))
        })?,
    };
    for (name, value) in keys {
        let place = format!("{at}.{name}");
        if let Some((_, why)) = LATER.iter().find(|(later, _)| later == name) {
            return Err(Error::new(place, *why));
        }
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err(Error::new(place, "is not a key of [hardware]; docs/scenarios.md lists them"));
        };
        *(key.field)(&mut profile) = read(key, value).map_err(|why| Error::new(place, why))?;
    }
    for (key, rate) in [("pcie-rate", profile.pcie_rate), ("cpu-copy", profile.cpu_copy)] {
        if rate > 0 && rate < 1_000_000 {
            return Err(Error::new(format!("{at}.{key}"), "is below 1M; give such as \"126G\""));
        }
    }
    if profile.atomic_buckets > 0 && !(3..64).contains(&profile.atomic_buckets) {
        return Err(Error::new(format!("{at}.atomic-buckets"), "is not from 3, a word's own bits, to 63"));
    }
    let most = profile.units.max(profile.cache_fetches).max(profile.cpu_cores);
    if most > 4096 || profile.cache_entries > 1 << 24 {
        return Err(Error::new(
            at,
            "more than 4,096 units, cache-fetches or cpu-cores, or 16M cache-entries; give fewer",
        ));
    }
    Ok(profile)
}

fn read(key: &Key, value: &Value) -> Result<u64, String> {
    let text = |such: &str| value.as_str().ok_or_else(|| format!("is not text such as {such}"));
    match key.kind {
        Kind::Time => Ok(parse_time(text("\"350ns\"")?)?.as_ps()),
        Kind::Rate => parse_rate(text("\"100G\"")?),
        Kind::Count => match value.as_integer() {
            Some(count) if count >= 0 => Ok(count as u64),
            _ => Err("is not a number from 0".to_owned()),
        },
        Kind::Flag => value.as_bool().map(u64::from).ok_or_else(|| "is not true or false".to_owned()),
        Kind::Chance => match value.as_float().or(value.as_integer().map(|n| n as f64)) {
            Some(chance) if (0.0..=1.0).contains(&chance) => Ok((chance * 1e6).round() as u64),
            _ => Err("is not a chance from 0 to 1".to_owned()),
        },
        Kind::Replacement => match text("\"lru\"")? {
            "lru" => Ok(0),
            "random" => Ok(RANDOM),
            other => Err(format!("`{other}` is not one of lru, random")),
        },
    }
}

impl HardwareTable {
    fn profile(&self) -> Result<Profile, Error> {
        resolve("hardware", self.profile.as_deref(), &self.keys, Profile::NEUTRAL)
    }
}

impl Scenario {
    /// What all hosts cost, and those that cost something else.
    pub(super) fn hardware_profiles(&self, hosts: u32) -> Result<(Profile, Vec<(u32, Profile)>), Error> {
        let all = self.hardware.profile()?;
        let mut of = Vec::new();
        for (n, table) in self.hardware.of.iter().enumerate() {
            let at = format!("hardware.of[{n}]");
            let own = resolve(&at, table.profile.as_deref(), &table.keys, all)?;
            for &host in &table.hosts {
                if host >= hosts {
                    let why = format!("host {host} does not exist; there are {hosts}, from 0");
                    return Err(Error::new(format!("{at}.hosts"), why));
                }
                of.push((host, own));
            }
        }
        let delays = self.transport.irn.as_ref().and_then(|irn| irn.retransmit_delay.as_deref());
        let costly = !all.is_neutral() || of.iter().any(|(_, own)| !own.is_neutral());
        if costly && delays.is_some_and(|text| parse_time(text).is_ok_and(|time| time.as_ps() > 0)) {
            let why = "is charged by [hardware] already; remove it, or give \"0ns\"";
            return Err(Error::new("transport.irn.retransmit-delay", why));
        }
        Ok((all, of))
    }

    /// What PCIe costs 1RMA's NICs.
    pub(super) fn pcie(&self) -> Result<Pcie, Error> {
        Ok(Pcie::of(&self.hardware.profile()?))
    }

    /// The first key of [hardware] that would change nothing where hosts have 1RMA alone.
    pub(super) fn hardware_for_queue_pairs(&self) -> Option<String> {
        let h = &self.hardware;
        let key = h.keys.keys().find(|key| !ONE_RMA_KEYS.contains(&key.as_str()));
        let profile = h.profile.as_deref().is_some_and(|name| name != "onerma");
        match key {
            Some(key) => Some(format!("hardware.{key}")),
            None if profile => Some("hardware.profile".to_owned()),
            None => (!h.of.is_empty()).then(|| "hardware.of".to_owned()),
        }
    }
}
