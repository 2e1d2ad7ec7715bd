//! StaR in scenarios, and the workload that its paper measures with: connections that last.

use super::build::{bytes, need, time};
use super::format::{Scenario, WorkloadTable};
use super::traffic::until;
use crate::error::Error;
use crate::host::Device;
use crate::sim::Config;
use crate::workload::comings::{Others, Step};
use crate::workload::drawn::{OUTSTANDING_MAX, fits};
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
    #[serde(default)]
    pub stateless: Vec<u32>,
    /// Instead: all hosts leave it to the numbers of connections.
    #[serde(default)]
    pub auto: bool,
    /// `auto`: a host with more connections would rather keep none; 128 if absent.
    pub threshold: Option<u32>,
    /// `auto`: how often the numbers are compared while connections last, which must say the same ten times;
    /// never if absent.
    pub compare: Option<String>,
    /// `auto`: for how long a connection stays what it has become, at least; 5 s if absent.
    pub hold: Option<String>,
    /// Changes that a host begins in a second, at most; 100 if absent.
    pub changes: Option<u32>,
    /// NICs let only that leave for a stateless side which a rule allows, and have room for so many rules; no
    /// such check if absent.
    pub registry: Option<u32>,
    /// How long both sides may take to finish what is in flight before a change; 100 ms if absent.
    pub drain: Option<String>,
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
    /// Addresses of what is posted travel, as in the paper; `false` if absent.
    #[serde(default)]
    pub carried: bool,
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

/// `others` of `[workload]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OthersTable {
    /// The one end of all; it may be one of the first server's clients.
    pub server: u32,
    /// The other ends, in turns.
    pub clients: Vec<u32>,
    /// How many there are at the beginning; none if absent.
    #[serde(default)]
    pub connections: u32,
}

/// An entry of `steps` of `[workload]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepTable {
    /// From when on.
    pub at: String,
    /// They come, or leave, at random within this time; at once if absent.
    pub over: Option<String>,
    /// So many connections of the server; as many as before if absent.
    pub connections: Option<u32>,
    /// And of the other one.
    pub others: Option<u32>,
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
        check_roles(table)?;
        if table.compare.is_some() && self.end.is_none() {
            let why = "is missing, and hosts compare their numbers for ever; give a time after `until`";
            return Err(Error::new("end", why));
        }
        let common = StarConfig {
            threshold: table.threshold.unwrap_or(default.threshold),
            compare: span("compare", &table.compare, default.compare)?,
            hold: span("hold", &table.hold, default.hold)?,
            registry: table.registry,
            changes: table.changes.unwrap_or(default.changes),
            drain: span("drain", &table.drain, default.drain)?,
            lifetime: span("lifetime", &table.lifetime, default.lifetime)?,
            hello_interval: span("hello-interval", &table.hello_interval, default.hello_interval)?,
            merge: table.merge,
            burst: table.burst,
            carried: table.carried,
            ..default
        };
        if !(Duration::from_us(10)..=Duration::from_ms(10_000)).contains(&common.lifetime) {
            return Err(Error::new("transport.star.lifetime", "is not from 10us to 10s"));
        }
        if common.hello_interval == Duration::ZERO {
            return Err(Error::new("transport.star.hello-interval", "is zero; give such as \"10ms\""));
        }
        let wish = |host| match table.stateless.contains(&host) {
            _ if table.auto => Wish::Auto,
            true => Wish::Server,
            false => Wish::Client,
        };
        Ok((0..hosts).map(|host| Some(StarConfig { wish: wish(host), ..common })).collect())
    }
}

/// Roles are given by hosts, or left to the NICs.
fn check_roles(table: &StarTable) -> Result<(), Error> {
    if table.auto && !table.stateless.is_empty() {
        let why = "goes without `auto`, which leaves the roles to the NICs; remove one of them";
        return Err(Error::new("transport.star.stateless", why));
    }
    let given = [
        ("threshold", table.threshold.is_some()),
        ("compare", table.compare.is_some()),
        ("hold", table.hold.is_some()),
        ("changes", table.changes.is_some()),
        ("drain", table.drain.is_some()),
    ];
    if let Some((key, _)) = given.iter().find(|(_, given)| *given && !table.auto) {
        return Err(Error::new(
            format!("transport.star.{key}"),
            "goes with `auto = true`; add that, or remove it",
        ));
    }
    Ok(())
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
    check_ends("workload.clients", server, &clients, hosts)?;
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
        outstanding: table
            .outstanding
            .map(|calls| within("workload.outstanding", calls, OUTSTANDING_MAX))
            .transpose()?,
        until_ps: until(table)?,
        spread_ps: time("workload.start", table.start.as_deref())?.unwrap_or(0),
        others: table.others.as_ref().map(|others| self::others(others, hosts)).transpose()?,
        steps: steps(table)?,
        registry: config.star_of.iter().flatten().any(|star| star.registry.is_some()),
        by_address: config.star_of.iter().flatten().all(|star| star.carried),
        measured_ps: time("workload.measured", table.measured.as_deref())?,
    };
    check_comings(&asked)?;
    check_drawn(&asked)?;
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

fn check_ends(key: &str, server: u32, clients: &[u32], hosts: u32) -> Result<(), Error> {
    if clients.is_empty() || clients.contains(&server) {
        return Err(Error::new(key, "needs a list of hosts without the server, such as [1, 2]"));
    }
    if let Some(host) = clients.iter().chain([&server]).find(|host| **host >= hosts) {
        let why = format!("host {host} does not exist; there are {hosts}, from 0");
        return Err(Error::new(key, why));
    }
    Ok(())
}

fn others(table: &OthersTable, hosts: u32) -> Result<Others, Error> {
    check_ends("workload.others", table.server, &table.clients, hosts)?;
    Ok(Others { server: table.server, clients: table.clients.clone(), connections: table.connections })
}

fn steps(table: &WorkloadTable) -> Result<Vec<Step>, Error> {
    let step = |(n, step): (usize, &StepTable)| {
        let key = |name: &str| format!("workload.steps[{n}].{name}");
        Ok(Step {
            at_ps: need(&key("at"), time(&key("at"), Some(&step.at))?)?,
            over_ps: time(&key("over"), step.over.as_deref())?.unwrap_or(0),
            connections: step.connections,
            others: step.others,
        })
    };
    table.steps.iter().flatten().enumerate().map(step).collect()
}

/// What comes and goes does so in its order, while calls begin, and where a call is one connection's own.
fn check_comings(asked: &Asked) -> Result<(), Error> {
    let ends = |step: &Step| step.at_ps + step.over_ps;
    for (n, step) in asked.steps.iter().enumerate() {
        let key = |name: &str| format!("workload.steps[{n}].{name}");
        if n > 0 && step.at_ps < ends(&asked.steps[n - 1]) {
            return Err(Error::new(key("at"), "is before the end of the step before; give a later time"));
        }
        if ends(step) >= asked.until_ps {
            return Err(Error::new(key("at"), "ends after `until`; give an earlier time"));
        }
        if step.others.is_some() && asked.others.is_none() {
            return Err(Error::new(key("others"), "needs workload.others; give its server and clients"));
        }
        if step.connections.is_none() && step.others.is_none() {
            return Err(Error::new(key("connections"), "is missing; give it, or others"));
        }
    }
    let comes = !asked.steps.is_empty() || asked.others.is_some();
    if comes && (asked.pattern == Pattern::Barrier || asked.groups.is_some()) {
        let why = "goes neither with a barrier nor with groups, which all connections are part of";
        return Err(Error::new("workload.steps", why));
    }
    if asked.made_in_all().iter().sum::<u32>() > CONNECTIONS_MAX {
        return Err(Error::new("workload.steps", format!("make more than {CONNECTIONS_MAX} connections")));
    }
    if asked.measured_ps.is_some_and(|from| from >= asked.until_ps) {
        return Err(Error::new("workload.measured", "is not before `until`"));
    }
    Ok(())
}

/// Calls that are drawn are one request each, of connections that stay; more may come.
fn check_drawn(asked: &Asked) -> Result<(), Error> {
    let Some(outstanding) = asked.outstanding else { return Ok(()) };
    let numbers = asked.steps.iter().filter_map(|step| step.connections);
    let grow = numbers.clone().zip(core::iter::once(asked.connections).chain(numbers)).all(|(n, m)| n >= m);
    let alone = asked.others.is_none() && asked.groups.is_none();
    if !grow || !alone || !matches!(asked.pattern, Pattern::Read | Pattern::Write) {
        let why = "goes with pattern = \"read\" or \"write\", without group and others, and with steps by \
                   which connections come and none leaves; remove it";
        return Err(Error::new("workload.outstanding", why));
    }
    if !fits(outstanding, asked.connections, asked.made_in_all()[0]) {
        let why = "are too few at the beginning for all calls that are under way; give as many as those";
        return Err(Error::new("workload.connections", why));
    }
    Ok(())
}
