//! StaR in scenarios, and the workload that its paper measures with: connections that last.

use super::build::{bytes, need, time};
use super::format::{Scenario, WorkloadTable};
use super::traffic::until;
use crate::error::Error;
use crate::host::Device;
use crate::sim::Config;
use crate::workload::persistent::{Asked, Groups, Pattern, Persistent, REQUESTS_MAX};
use adverb_nic::StarConfig;
use adverb_wire::Duration;
use adverb_wire::star::Wish;
use serde::{Deserialize, Serialize};

/// Connections at most: what one NIC has numbers for.
const CONNECTIONS_MAX: u32 = 60_000;

/// `[transport.star]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StarTable {
    /// Hosts that keep no connection state; the others keep both sides'.
    pub stateless: Vec<u32>,
    /// For how long a packet may be on its way; 20 ms if absent.
    pub lifetime: Option<String>,
    /// Time after which a hello that was not answered is sent again; 10 ms if absent.
    pub hello_interval: Option<String>,
    /// Completions of messages of one packet come with their data; `false` if absent.
    #[serde(default)]
    pub merge: bool,
    /// One packet asks for the data of up to 16; `false` if absent.
    #[serde(default)]
    pub burst: bool,
}

/// `group` of `[workload]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTable {
    /// Connections of a group.
    pub size: u32,
    /// For how long a group begins calls.
    pub slot: String,
    /// Time between the calls of two groups; none if absent.
    pub switch: Option<String>,
}

impl Scenario {
    /// What each host offers; nothing where StaR is not asked for.
    pub(super) fn star(&self, hosts: u32) -> Result<Vec<Option<StarConfig>>, Error> {
        let t = &self.transport;
        let table = match (t.kind.as_deref(), &t.star) {
            (Some("star"), Some(table)) => table,
            (Some("star"), None) => {
                let why = "is missing; give the hosts that keep no state, such as [0]";
                return Err(Error::new("transport.star.stateless", why));
            }
            (_, Some(_)) => {
                return Err(Error::new(
                    "transport.star",
                    "goes with kind = \"star\"; add that, or remove it",
                ));
            }
            (_, None) => return Ok(Vec::new()),
        };
        if self.programs.is_some() {
            return Err(Error::new("programs", "with transport.kind = \"star\" are not built; remove them"));
        }
        if self.workloads.iter().any(|table| table.kind != "connections") {
            let why = "with transport.kind = \"star\" only \"connections\" are built; give that";
            return Err(Error::new("workload.kind", why));
        }
        if let Some(host) = table.stateless.iter().find(|host| **host >= hosts) {
            let why = format!("host {host} does not exist; there are {hosts}, from 0");
            return Err(Error::new("transport.star.stateless", why));
        }
        let default = StarConfig::default();
        let span = |key: &str, text: &Option<String>, default: Duration| {
            let given = time(&format!("transport.star.{key}"), text.as_deref())?;
            Ok::<_, Error>(given.map_or(default, Duration::from_ps))
        };
        let common = StarConfig {
            lifetime: span("lifetime", &table.lifetime, default.lifetime)?,
            hello_interval: span("hello-interval", &table.hello_interval, default.hello_interval)?,
            merge: table.merge,
            burst: table.burst,
            ..default
        };
        if !(Duration::from_us(10)..=Duration::from_ms(10_000)).contains(&common.lifetime) {
            return Err(Error::new("transport.star.lifetime", "is not from 10us to 10s"));
        }
        if common.hello_interval == Duration::ZERO {
            return Err(Error::new("transport.star.hello-interval", "is zero; give such as \"10ms\""));
        }
        let wish = |host| if table.stateless.contains(&host) { Wish::Server } else { Wish::Client };
        Ok((0..hosts).map(|host| Some(StarConfig { wish: wish(host), ..common })).collect())
    }
}

/// `kind = "connections"`.
pub(super) fn connections(
    table: &WorkloadTable,
    config: &Config,
    rng: &mut fastrand::Rng,
) -> Result<Persistent, Error> {
    if Device::of(config) != Device::Queues || config.transport.share_qp {
        let why = "connections need queue pairs of their own: transport.kind = \"rc\" or \"star\"";
        return Err(Error::new("workload.kind", why));
    }
    let hosts = config.topology.hosts;
    let server = need("workload.server", table.server)?;
    let clients = table.clients.clone().unwrap_or_default();
    if clients.is_empty() || clients.contains(&server) {
        let why = "needs a list of hosts without the server, such as [1, 2]";
        return Err(Error::new("workload.clients", why));
    }
    if let Some(host) = clients.iter().chain([&server]).find(|host| **host >= hosts) {
        let why = format!("host {host} does not exist; there are {hosts}, from 0");
        return Err(Error::new("workload.clients", why));
    }
    let within = |key: &str, value: u32, most: u32| match value {
        0 => Err(Error::new(key, "is zero; give at least 1")),
        n if n > most => Err(Error::new(key, format!("{n} is above {most}"))),
        n => Ok(n),
    };
    let size =
        |key: &str, text: &Option<String>| within(key, need(key, bytes(key, text.as_deref())?)?, 1 << 20);
    let pattern = match table.pattern.as_deref().unwrap_or("rpc") {
        "rpc" => Pattern::Rpc,
        "barrier" => Pattern::Barrier,
        "read" => Pattern::Read,
        "write" => Pattern::Write,
        other => {
            let why = format!("`{other}` is not one of rpc, barrier, read, write");
            return Err(Error::new("workload.pattern", why));
        }
    };
    let two_sided = matches!(pattern, Pattern::Rpc | Pattern::Barrier);
    let by_server = match table.by.as_deref() {
        None | Some("client") => false,
        Some("server") if !two_sided => true,
        Some("server") => return Err(Error::new("workload.by", "goes with read and write; remove it")),
        Some(other) => {
            return Err(Error::new("workload.by", format!("`{other}` is not one of client, server")));
        }
    };
    let asked = Asked {
        server,
        clients,
        connections: within(
            "workload.connections",
            need("workload.connections", table.connections)?,
            CONNECTIONS_MAX,
        )?,
        pattern,
        by_server,
        requests: within("workload.requests", table.requests.unwrap_or(1), REQUESTS_MAX)?,
        bytes: size("workload.bytes", &table.bytes)?,
        response: if two_sided { size("workload.response", &table.response)? } else { 0 },
        groups: table.group.as_ref().map(groups).transpose()?,
        until_ps: until(table)?,
        spread_ps: time("workload.start", table.start.as_deref())?.unwrap_or(0),
    };
    Ok(Persistent::new(asked, rng))
}

fn groups(table: &GroupTable) -> Result<Groups, Error> {
    let slot = time("workload.group.slot", Some(&table.slot))?.unwrap_or(0);
    if table.size == 0 || slot == 0 {
        return Err(Error::new("workload.group", "a size or a slot of zero; give such as 240 and \"20us\""));
    }
    let switch_ps = time("workload.group.switch", table.switch.as_deref())?.unwrap_or(0);
    Ok(Groups { size: table.size, slot_ps: slot, switch_ps })
}
