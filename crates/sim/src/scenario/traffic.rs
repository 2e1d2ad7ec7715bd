//! From workload tables to flows.

use super::build::{bytes, need, time};
use super::format::{Scenario, WorkloadTable};
use super::star::connections;
use crate::error::Error;
use crate::fabric::link::FRAMING;
use crate::fabric::topology::Topology;
use crate::host::Device;
use crate::sim::Config;
use crate::watch::trace::seed_of;
use crate::workload::flows::{FlowSpec, Verb, Via};
use crate::workload::lookups::Lookups;
use crate::workload::sizes::{HADOOP, Sizes, WEB_SEARCH};
use crate::workload::{Closed, Repeat, Workload, arrivals, pattern};

/// Bytes that one flow may have: one message, well within the PSN space.
const FLOW_MAX: u32 = 1 << 30;

/// Letters that a workload's name may have.
const NAME_MAX: usize = 64;

type Read<'a> = &'a mut dyn FnMut(&str) -> Result<String, Error>;

impl Scenario {
    pub(super) fn traffic(
        &self,
        config: &Config,
        read: Read<'_>,
    ) -> Result<(Vec<FlowSpec>, Workload), Error> {
        let tables = &self.workloads;
        if tables.is_empty() && self.programs.is_some() {
            return Ok((Vec::new(), Workload::Open));
        }
        if tables.is_empty() {
            return Err(Error::new(
                "workload",
                "is missing: nobody would send anything; add a [workload], or [programs]",
            ));
        }
        let (mut flows, mut workload) = (Vec::new(), Workload::Open);
        for (n, table) in tables.iter().enumerate() {
            let mut rng = fastrand::Rng::with_seed(seed_of(config.seed, "workload", n as u64));
            let op = operation(table).map_err(|e| of_many(e, n, tables.len()))?;
            let via = via(table, config).map_err(|e| of_many(e, n, tables.len()))?;
            let by_one_rma = via == Via::OneRma || Device::of(config) == Device::OneRma;
            if op == Verb::Send && (by_one_rma || config.transport.share_qp) {
                let why = "neither 1RMA nor share-qp has sends; give \"read\" or \"write\"";
                return Err(of_many(Error::new("workload.op", why), n, tables.len()));
            }
            if let Some(alone) = alone(table, config, &mut rng)? {
                if tables.len() > 1 {
                    let why = format!("{} go alone; remove the other tables", table.kind);
                    return Err(Error::new(format!("workload[{n}]"), why));
                }
                workload = alone;
                continue;
            }
            if table.kind == "repeat" {
                let until = until(table).map_err(|e| of_many(e, n, tables.len()))?;
                match &mut workload {
                    Workload::Repeat(repeat) => repeat.until_ps.push((n as u32, until)),
                    Workload::Open => {
                        workload = Workload::Repeat(Repeat { until_ps: vec![(n as u32, until)] });
                    }
                    _ => {
                        let why = "repeat goes neither with a closed loop nor with lookups";
                        return Err(Error::new(format!("workload[{n}]"), why));
                    }
                }
            }
            if table.kind == "closed-loop" {
                if !matches!(workload, Workload::Open) {
                    let why = "a second closed loop; put all pairs into one";
                    return Err(Error::new(format!("workload[{n}]"), why));
                }
                let closed = closed(table, &config.topology);
                let mut closed = closed.map_err(|e| of_many(e, n, tables.len()))?;
                (closed.op, closed.via) = (op, via);
                closed.stands_among(n, tables.len());
                workload = Workload::Closed(closed);
                continue;
            }
            let from = flows.len();
            let opened = open(table, &config.topology, config.transport.mtu.bytes(), &mut rng, read);
            flows.extend(opened.map_err(|e| of_many(e, n, tables.len()))?);
            flows[from..].iter_mut().for_each(|f: &mut FlowSpec| (f.tag, f.op, f.via) = (n as u32, op, via));
        }
        if let Some(long) = flows.iter().find(|f| f.bytes > FLOW_MAX) {
            let why = format!("a flow of {} bytes is above 1 GiB; send several", long.bytes);
            return Err(Error::new("workload.bytes", why));
        }
        Ok((flows, workload))
    }
}

impl Scenario {
    /// What workloads are called: as they say, or by their kinds.
    pub(super) fn workload_names(&self) -> Result<Vec<String>, Error> {
        let count = self.workloads.len();
        let name = |(n, table): (usize, &WorkloadTable)| {
            let name = table.name.as_ref().unwrap_or(&table.kind);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
            match name.chars().all(plain) && (1..=NAME_MAX).contains(&name.len()) {
                true => Ok(name.clone()),
                false => {
                    let why = format!("`{name}`: letters, digits, -, _, dots and spaces, {NAME_MAX} at most");
                    Err(of_many(Error::new("workload.name", why), n, count))
                }
            }
        };
        self.workloads.iter().enumerate().map(name).collect()
    }
}

/// A workload that no other one goes beside, if it is one.
fn alone(table: &WorkloadTable, config: &Config, rng: &mut fastrand::Rng) -> Result<Option<Workload>, Error> {
    Ok(match table.kind.as_str() {
        "lookups" => Some(Workload::Lookups(lookups(table, config, rng)?)),
        "connections" => Some(Workload::Persistent(Box::new(connections(table, config, rng)?))),
        _ => None,
    })
}

fn operation(table: &WorkloadTable) -> Result<Verb, Error> {
    match table.op.as_deref().unwrap_or("write") {
        "write" => Ok(Verb::Write),
        "send" => Ok(Verb::Send),
        "read" => Ok(Verb::Read),
        other => Err(Error::new("workload.op", format!("`{other}` is not one of write, send, read"))),
    }
}

fn via(table: &WorkloadTable, config: &Config) -> Result<Via, Error> {
    match (table.via.as_deref(), Device::of(config)) {
        (None, _) => Ok(Via::Any),
        (Some(_), Device::Queues | Device::OneRma) => {
            Err(Error::new("workload.via", "goes with transport.kind = \"both\"; add that, or remove it"))
        }
        (Some("rc"), Device::Both) => Ok(Via::Any),
        (Some("1rma"), Device::Both) => Ok(Via::OneRma),
        (Some(other), Device::Both) => {
            Err(Error::new("workload.via", format!("`{other}` is not one of rc, 1rma")))
        }
    }
}

/// Names the table at fault, where there are several.
pub(super) fn of_many(error: Error, n: usize, count: usize) -> Error {
    match error.key.strip_prefix("workload.") {
        Some(rest) if count > 1 => Error { key: format!("workload[{n}].{rest}"), ..error },
        _ => error,
    }
}

fn open(
    table: &WorkloadTable,
    t: &Topology,
    mtu: u32,
    rng: &mut fastrand::Rng,
    read: Read<'_>,
) -> Result<Vec<FlowSpec>, Error> {
    if table.victim.is_some() && table.kind != "incast" {
        return Err(Error::new("workload.victim", "goes with kind = \"incast\"; remove it"));
    }
    let start = time("workload.start", table.start.as_deref())?.unwrap_or(0);
    let size = || need("workload.bytes", bytes("workload.bytes", table.bytes.as_deref())?);
    let mut flows = match table.kind.as_str() {
        "permutation" => pattern::permutation(t.hosts, size()?, start, rng),
        "all-to-all" => pattern::all_to_all(t.hosts, size()?, start),
        "incast" => {
            let senders = need("workload.senders", table.senders)?;
            if senders == 0 || senders >= t.hosts {
                let why = format!("{senders} senders of {} hosts; give 1 to {}", t.hosts, t.hosts - 1);
                return Err(Error::new("workload.senders", why));
            }
            if let Some(victim) = table.victim.filter(|victim| *victim >= t.hosts) {
                let why = format!("host {victim} does not exist; there are {}, from 0", t.hosts);
                return Err(Error::new("workload.victim", why));
            }
            pattern::incast(t.hosts, (senders, table.victim), u64::from(size()?), start, rng)
        }
        "poisson" => poisson(table, t, mtu, start, rng, read)?,
        "steady" => between(table, t, true, rng, read)?,
        "repeat" => {
            let flow =
                |(src, dst)| FlowSpec { start, src, dst, bytes: 0, tag: 0, op: Verb::Write, via: Via::Any };
            let bytes = size()?;
            let at_once = table.outstanding.unwrap_or(1) as usize;
            let flows = pairs(table, t)?.into_iter().map(flow);
            flows.flat_map(|flow| vec![FlowSpec { bytes, ..flow }; at_once]).collect()
        }
        "list" => list(table, t)?,
        other => {
            let why = format!(
                "`{other}` is not one of poisson, permutation, incast, all-to-all, closed-loop, list, \
                 steady, repeat, lookups, connections"
            );
            return Err(Error::new("workload.kind", why));
        }
    };
    if let Some(empty) = flows.iter_mut().find(|f| f.bytes == 0) {
        let why = format!("a flow from host {} of no bytes; give at least 1", empty.src);
        return Err(Error::new("workload.bytes", why));
    }
    Ok(flows)
}

fn poisson(
    table: &WorkloadTable,
    t: &Topology,
    mtu: u32,
    start: u64,
    rng: &mut fastrand::Rng,
    read: Read<'_>,
) -> Result<Vec<FlowSpec>, Error> {
    let load = need("workload.load", table.load)?;
    if !(load > 0.0 && load <= 1.0) {
        return Err(Error::new("workload.load", format!("{load} is not within 0 to 1, 0 excluded")));
    }
    if table.pairs.is_some() {
        let mut flows = between(table, t, false, rng, read)?;
        flows.iter_mut().for_each(|f| f.start += start);
        return Ok(flows);
    }
    let count = need("workload.flows", table.flows)?;
    let sizes = sizes(table.sizes.as_deref().unwrap_or("heavy-tailed"), read)?;
    let rate = host_rate(t);
    let load = match table.load_of.as_deref().unwrap_or("payload") {
        "payload" => load,
        "link" => load * f64::from(mtu) / f64::from(mtu + 20 + 8 + 12 + 4 + FRAMING),
        other => {
            return Err(Error::new("workload.load-of", format!("`{other}` is not one of payload, link")));
        }
    };
    let mut flows = arrivals::poisson(t.hosts, &sizes, load, rate, count, rng);
    flows.iter_mut().for_each(|f| f.start += start);
    Ok(flows)
}

/// The rate that loads of hosts are shares of: that of the slowest host's cable.
fn host_rate(t: &Topology) -> u64 {
    let hosts = t
        .cables
        .iter()
        .filter(|c| c.ends.iter().any(|e| matches!(e, crate::fabric::topology::Node::Host(_))));
    hosts.map(|c| c.rate).min().unwrap_or(0)
}

pub(super) fn until(table: &WorkloadTable) -> Result<u64, Error> {
    need("workload.until", time("workload.until", table.until.as_deref())?)
}

fn pairs(table: &WorkloadTable, t: &Topology) -> Result<Vec<(u32, u32)>, Error> {
    let pairs = table.pairs.clone().unwrap_or_default();
    if pairs.is_empty() {
        let why = "is missing; give pairs of source and destination, such as [[0, 1]]";
        return Err(Error::new("workload.pairs", why));
    }
    pairs.iter().try_for_each(|ends| pair("workload.pairs", *ends, t))?;
    Ok(pairs)
}

/// Flows between given pairs. A load may be above 1: who asks for more than there is is what some experiments
/// are about.
fn between(
    table: &WorkloadTable,
    t: &Topology,
    even: bool,
    rng: &mut fastrand::Rng,
    read: Read<'_>,
) -> Result<Vec<FlowSpec>, Error> {
    let load = need("workload.load", table.load)?;
    if !(load > 0.0 && load <= 100.0) {
        return Err(Error::new("workload.load", format!("{load} is not within 0 to 100, 0 excluded")));
    }
    let sizes = match &table.sizes {
        Some(text) => sizes(text, read)?,
        None => Sizes::Fixed(need("workload.bytes", bytes("workload.bytes", table.bytes.as_deref())?)?),
    };
    if sizes.mean() == 0.0 {
        return Err(Error::new("workload.bytes", "is zero; give at least 1 byte"));
    }
    Ok(arrivals::between(&pairs(table, t)?, &sizes, (load, host_rate(t)), until(table)?, even, rng))
}

fn lookups(table: &WorkloadTable, config: &Config, rng: &mut fastrand::Rng) -> Result<Lookups, Error> {
    if config.one_rma.is_none() {
        return Err(Error::new("workload.kind", "lookups are one-sided reads of transport.kind = \"1rma\""));
    }
    let t = &config.topology;
    let hosts = |key: &str, list: &Option<Vec<u32>>| {
        let list = list.clone().unwrap_or_default();
        match list.iter().find(|h| **h >= t.hosts) {
            _ if list.is_empty() => Err(Error::new(key, "is missing; give a list of hosts, such as [0, 1]")),
            Some(h) => {
                Err(Error::new(key, format!("host {h} does not exist; there are {}, from 0", t.hosts)))
            }
            None => Ok(list),
        }
    };
    let clients = hosts("workload.clients", &table.clients)?;
    let servers = hosts("workload.servers", &table.servers)?;
    if let Some(both) = clients.iter().find(|h| servers.contains(h)) {
        let why = format!("host {both} would ask itself; let servers and clients be different hosts");
        return Err(Error::new("workload.clients", why));
    }
    let size = |key: &str, text: &Option<String>| match need(key, bytes(key, text.as_deref())?)? {
        0 => Err(Error::new(key, "is zero; give at least 1 byte")),
        n => Ok(n),
    };
    let sizes = (size("workload.index", &table.index)?, size("workload.bytes", &table.bytes)?);
    let load = need("workload.load", table.load)?;
    if !(load > 0.0 && load <= 1.0) {
        return Err(Error::new("workload.load", format!("{load} is not within 0 to 1, 0 excluded")));
    }
    // The servers' rates, and what a lookup takes of them.
    let bits = f64::from(sizes.0 + sizes.1) * 8.0;
    let per_second = load * host_rate(t) as f64 * servers.len() as f64 / bits;
    Ok(Lookups::poisson(&clients, servers, sizes, per_second, until(table)?, rng))
}

fn sizes(text: &str, read: Read<'_>) -> Result<Sizes, Error> {
    let key = "workload.sizes";
    let words: Vec<&str> = text.split_whitespace().collect();
    let size = |word: &str| need(key, bytes(key, Some(word))?);
    Ok(match words.as_slice() {
        ["heavy-tailed"] => Sizes::heavy_tailed(),
        ["websearch"] => Sizes::Steps(WEB_SEARCH.to_vec()),
        ["hadoop"] => Sizes::Steps(HADOOP.to_vec()),
        ["fixed", n] => Sizes::Fixed(size(n)?),
        ["uniform", low, high] => {
            let (low, high) = (size(low)?, size(high)?);
            if low > high {
                return Err(Error::new(key, format!("`{text}`: the first is above the second")));
            }
            Sizes::Uniform(low, high)
        }
        ["file", name] => {
            Sizes::parse_cdf(&read(name)?).map_err(|e| Error { file: Some((*name).into()), ..e })?
        }
        _ => {
            let why = format!(
                "`{text}` is not `heavy-tailed`, `websearch`, `hadoop`, `fixed BYTES`, `uniform LOW HIGH` \
                     or `file NAME`"
            );
            return Err(Error::new(key, why));
        }
    })
}

fn list(table: &WorkloadTable, t: &Topology) -> Result<Vec<FlowSpec>, Error> {
    let entries = table.list.as_deref().unwrap_or_default();
    let mut flows = Vec::new();
    for (n, entry) in entries.iter().enumerate() {
        let key = |part: &str| format!("workload.list[{n}].{part}");
        pair(&key("dst"), (entry.src, entry.dst), t)?;
        flows.push(FlowSpec {
            start: time(&key("start"), entry.start.as_deref())?.unwrap_or(0),
            src: entry.src,
            dst: entry.dst,
            bytes: need(&key("bytes"), bytes(&key("bytes"), Some(&entry.bytes))?)?,
            tag: 0,
            op: Verb::Write,
            via: Via::Any,
        });
    }
    Ok(flows)
}

fn closed(table: &WorkloadTable, t: &Topology) -> Result<Closed, Error> {
    let pairs = table.pairs.clone().unwrap_or_default();
    if pairs.is_empty() {
        return Err(Error::new(
            "workload.pairs",
            "is missing; give pairs of client and server, such as [[0, 1]]",
        ));
    }
    for ends in &pairs {
        pair("workload.pairs", *ends, t)?;
    }
    let size = |key: &str, text: &Option<String>| match need(key, bytes(key, text.as_deref())?)? {
        0 => Err(Error::new(key, "is zero; give at least 1 byte")),
        n if n > FLOW_MAX => Err(Error::new(key, "is above 1 GiB")),
        n => Ok(n),
    };
    let (request, response) =
        (size("workload.bytes", &table.bytes)?, size("workload.response", &table.response)?);
    let think = time("workload.think", table.think.as_deref())?.unwrap_or(0);
    Ok(Closed::new(pairs, request, response, think, need("workload.rounds", table.rounds)?))
}

fn pair(key: &str, (src, dst): (u32, u32), t: &Topology) -> Result<(), Error> {
    for h in [src, dst] {
        if h >= t.hosts {
            let why = format!("host {h} does not exist; there are {}, from 0", t.hosts);
            return Err(Error::new(key, why));
        }
    }
    if src == dst {
        return Err(Error::new(key, format!("host {src} would send to itself; name two hosts")));
    }
    Ok(())
}
