//! From tables to a fabric and its faults, with every value checked.

use super::format::{LinkFaultEntry, PfcTable, Scenario, TopologyTable, TransportTable};
use crate::error::Error;
use crate::fabric::faults::{Chances, FaultPlan, LinkFaults, Outage, Rule};
use crate::fabric::switch::ecn::Red;
use crate::fabric::switch::pfc::Pfc;
use crate::fabric::switch::{Balance, Discipline, SwitchConfig};
use crate::fabric::topology::{Cable, CableKind, Node, Topology};
use crate::host::TransportConfig;
use crate::sim::Config;
use crate::units::{parse_bytes, parse_rate, parse_time};
use crate::watch::trace::seed_of;
use adverb_nic::irn::{IrnConfig, Scheme, Timers, WIDE as IRN_WIDE, WINDOW as IRN_WINDOW};
use adverb_nic::{Mtu, WaitOnError};
use adverb_wire::Duration;

/// A time in ps, if it is given.
pub(super) fn time(key: &str, text: Option<&str>) -> Result<Option<u64>, Error> {
    text.map(|t| parse_time(t).map(Duration::as_ps).map_err(|why| Error::new(key, why))).transpose()
}

/// Bytes within `u32`, if they are given.
pub(super) fn bytes(key: &str, text: Option<&str>) -> Result<Option<u32>, Error> {
    let fits = |n: u64| u32::try_from(n).map_err(|_| Error::new(key, format!("{n} bytes is above 4 GB")));
    text.map(|t| parse_bytes(t).map_err(|why| Error::new(key, why)).and_then(fits)).transpose()
}

pub(super) fn need<T: Copy>(key: &str, value: Option<T>) -> Result<T, Error> {
    value.ok_or_else(|| Error::new(key, "is missing; give a value"))
}

impl TopologyTable {
    fn kind_of_cable(&self, trunk: bool) -> Result<CableKind, Error> {
        let own =
            |a: &Option<String>, b: &Option<String>| if trunk && a.is_some() { a.clone() } else { b.clone() };
        let (rate, delay) = (own(&self.trunk_rate, &self.rate), own(&self.trunk_delay, &self.delay));
        let name = if trunk && self.trunk_rate.is_some() { "topology.trunk-rate" } else { "topology.rate" };
        cable_kind(name, "topology.delay", rate.as_deref(), delay.as_deref())
    }

    fn build(&self) -> Result<Topology, Error> {
        let (edge, trunk) = (self.kind_of_cable(false)?, self.kind_of_cable(true)?);
        let count = |key: &str, value: Option<u32>| match need(key, value)? {
            0 => Err(Error::new(key, "is zero; give at least 1")),
            n if n > 65_536 => Err(Error::new(key, format!("{n} is above 65,536"))),
            n => Ok(n),
        };
        let t = match self.kind.as_str() {
            "two-hosts" => Topology::two_hosts(edge),
            "star" => Topology::star(count("topology.hosts", self.hosts)?, edge),
            "dumbbell" => Topology::dumbbell(
                count("topology.left", self.left)?,
                count("topology.right", self.right)?,
                edge,
                trunk,
            ),
            "leaf-spine" => Topology::leaf_spine(
                count("topology.leaves", self.leaves)?,
                count("topology.spines", self.spines)?,
                count("topology.hosts", self.hosts)?,
                edge,
                trunk,
            ),
            "fat-tree" => {
                let k = need("topology.k", self.k)?;
                let mut t = Topology::fat_tree(k, edge).map_err(|e| Error::new("topology.k", e.why))?;
                let between = |c: &&mut Cable| c.ends.iter().all(|end| matches!(end, Node::Switch(_)));
                for cable in t.cables.iter_mut().filter(between) {
                    (cable.rate, cable.delay) = (trunk.rate, trunk.delay);
                }
                t
            }
            "cables" => self.listed_cables()?,
            other => {
                let why = format!(
                    "`{other}` is not one of two-hosts, star, dumbbell, leaf-spine, fat-tree, cables"
                );
                return Err(Error::new("topology.kind", why));
            }
        };
        if t.hosts < 2 {
            return Err(Error::new("topology.hosts", "one host has nobody to talk to; give at least 2"));
        }
        Ok(t)
    }

    fn listed_cables(&self) -> Result<Topology, Error> {
        let entries = self.cables.as_deref().unwrap_or_default();
        let mut t = Topology {
            hosts: need("topology.hosts", self.hosts)?,
            switches: self.switches.unwrap_or(0),
            cables: Vec::new(),
        };
        for (n, entry) in entries.iter().enumerate() {
            let key = |part: &str| format!("topology.cables[{n}].{part}");
            let rate = entry.rate.as_deref().or(self.rate.as_deref());
            let delay = entry.delay.as_deref().or(self.delay.as_deref());
            let kind = cable_kind(&key("rate"), &key("delay"), rate, delay)?;
            let ends = [node(&key("from"), &entry.from)?, node(&key("to"), &entry.to)?];
            t.cables.push(Cable { ends, rate: kind.rate, delay: kind.delay });
        }
        Ok(t)
    }
}

fn cable_kind(
    rate_key: &str,
    delay_key: &str,
    rate: Option<&str>,
    delay: Option<&str>,
) -> Result<CableKind, Error> {
    let rate = parse_rate(need(rate_key, rate)?).map_err(|why| Error::new(rate_key, why))?;
    if rate < 1_000_000 {
        let why =
            format!("{rate} bits per second is too slow to be meant; give at least 1M, such as \"100G\"");
        return Err(Error::new(rate_key, why));
    }
    let delay = parse_time(delay.unwrap_or("1us")).map_err(|why| Error::new(delay_key, why))?;
    Ok(CableKind { rate, delay })
}

fn node(key: &str, text: &str) -> Result<Node, Error> {
    let mut words = text.split_whitespace();
    match (words.next(), words.next().and_then(|n| n.parse().ok()), words.next()) {
        (Some("host"), Some(n), None) => Ok(Node::Host(n)),
        (Some("switch"), Some(n), None) => Ok(Node::Switch(n)),
        _ => Err(Error::new(key, format!("`{text}` is not like \"host 3\" or \"switch 0\""))),
    }
}

impl Scenario {
    pub(super) fn config(&self) -> Result<Config, Error> {
        let topology = self.topology.build()?;
        let transport = self.transport()?;
        let switch = self.switch_config(&topology, transport.mtu)?;
        if transport.class >= switch.classes {
            let why = format!("{} does not exist; there are {} classes", transport.class, switch.classes);
            return Err(Error::new("transport.class", why));
        }
        let (hardware, hardware_of) = self.hardware_profiles(topology.hosts)?;
        let one_rma = self.one_rma(&topology)?;
        let seed = self.seed.unwrap_or(1);
        let star_of = self.star(topology.hosts)?;
        let plain_hosts = self.plain_hosts(topology.hosts)?;
        // What StaR's own packets say stands in their payload.
        let payload = self.payload || !star_of.is_empty();
        Ok(Config {
            star_of,
            plain_hosts,
            switch,
            transport,
            hardware,
            hardware_of,
            one_rma,
            payload,
            seed,
            ..Config::new(topology)
        })
    }

    fn transport(&self) -> Result<TransportConfig, Error> {
        let t = &self.transport;
        let mut out =
            TransportConfig { ecn: t.ecn, class: t.class.unwrap_or(0), ..TransportConfig::default() };
        if let Some(mtu) = t.mtu {
            let code = (1..=5).find_map(|c| Mtu::from_code(c).filter(|m| m.bytes() == mtu));
            let why =
                || Error::new("transport.mtu", format!("{mtu} is not one of 256, 512, 1024, 2048, 4096"));
            out.mtu = code.ok_or_else(why)?;
        }
        if let Some(window) = t.window {
            if window == 0 {
                return Err(Error::new("transport.window", "is zero; give packets, or leave it out"));
            }
            out.window = window;
        }
        out.ack_every = t.ack_every.unwrap_or(out.ack_every);
        out.timeout = t.timeout.unwrap_or(out.timeout);
        out.retries = t.retries.unwrap_or(out.retries);
        out.retry_forever = t.retry_forever;
        out.quantum = t.quantum.unwrap_or(out.quantum);
        t.chains(&mut out)?;
        if out.timeout > 31 {
            return Err(Error::new("transport.timeout", "is above 31; the time is 4.096 us * 2^timeout"));
        }
        out.rto = time("transport.rto", t.rto.as_deref())?.map(Duration::from_ps);
        if out.rto == Some(Duration::ZERO) || (out.rto.is_some() && out.timeout == 0) {
            return Err(Error::new(
                "transport.rto",
                "is no timeout; for none, leave it out and give timeout = 0",
            ));
        }
        if out.retries > 7 {
            return Err(Error::new("transport.retries", "is above 7"));
        }
        out.share_qp = t.share_qp;
        out.congestion = t.congestion()?;
        self.check_congestion(out.congestion)?;
        out.irn = if self.speaks_irn()? { Some(self.irn()?) } else { None };
        out.free_irn_headers = match t.irn.as_ref().and_then(|t| t.headers.as_deref()).unwrap_or("wire") {
            "free" => true,
            "wire" => false,
            other => {
                return Err(Error::new(
                    "transport.irn.headers",
                    format!("`{other}` is not one of wire, free"),
                ));
            }
        };
        Ok(out)
    }

    fn irn(&self) -> Result<IrnConfig, Error> {
        // The ends of a simulated connection know each other, as if a connection manager had told them (IRN
        // 5).
        let mut out = IrnConfig::paper();
        out.agree_on(IRN_WINDOW);
        let Some(t) = &self.transport.irn else { return Ok(out) };
        let span = |part: &str, text: &Option<String>, default: Duration| {
            let given = time(&format!("transport.irn.{part}"), text.as_deref())?;
            Ok(given.map_or(default, Duration::from_ps))
        };
        out.scheme = match t.scheme.as_deref().unwrap_or("selective") {
            "selective" => Scheme::Selective,
            "no-sack" => Scheme::NoSack,
            "go-back-n" => Scheme::GoBackN,
            other => {
                let why = format!("`{other}` is not one of selective, no-sack, go-back-n");
                return Err(Error::new("transport.irn.scheme", why));
            }
        };
        out.bdp_packets = match t.bdp_packets {
            None => out.bdp_packets,
            Some(0) => None,
            Some(n) if n <= IRN_WIDE => Some(n),
            Some(n) => {
                let why = format!("{n} is above the bitmaps' {IRN_WIDE}; lower it, or give 0 for no limit");
                return Err(Error::new("transport.irn.bdp-packets", why));
            }
        };
        out.agree_on(out.bdp_packets.unwrap_or(IRN_WIDE));
        out.rto_low = span("rto-low", &t.rto_low, out.rto_low)?;
        out.rto_high = span("rto-high", &t.rto_high, out.rto_high)?;
        if out.rto_low == Duration::ZERO || out.rto_low > out.rto_high {
            return Err(Error::new("transport.irn.rto-low", "must be above 0 and at most rto-high"));
        }
        out.timers = match (t.timers.as_deref().unwrap_or("paper"), t.tail_probes) {
            ("paper", None) => Timers::Paper,
            ("paper", _) => {
                let why = "goes with `timers = \"measured\"`; remove it";
                return Err(Error::new("transport.irn.tail-probes", why));
            }
            ("measured", probes) => {
                Timers::Measured { probe: probes.unwrap_or(true).then_some(Duration::ZERO) }
            }
            (other, _) => {
                let why = format!("`{other}` is not one of paper, measured");
                return Err(Error::new("transport.irn.timers", why));
            }
        };
        out.redetect = t.redetect.unwrap_or(out.redetect);
        out.runs = t.runs.unwrap_or(out.runs);
        out.backoff = t.backoff.unwrap_or(out.backoff);
        out.few_packets = t.few_packets.unwrap_or(out.few_packets);
        out.nack_threshold = t.nack_threshold.unwrap_or(out.nack_threshold).max(1);
        out.retransmit_delay = span("retransmit-delay", &t.retransmit_delay, out.retransmit_delay)?;
        Ok(out)
    }

    fn switch_config(&self, t: &Topology, mtu: Mtu) -> Result<SwitchConfig, Error> {
        let table = &self.switch;
        let buffer = bytes("switch.buffer", table.buffer.as_deref())?.unwrap_or(16 << 20);
        let discipline = match table.discipline.as_deref().unwrap_or("shared-buffer") {
            "shared-buffer" => {
                Discipline::SharedBuffer { buffer, alpha: table.alpha.unwrap_or(f64::INFINITY) }
            }
            "input-queued" if table.alpha.is_some() => {
                return Err(Error::new("switch.alpha", "goes with a shared buffer; remove it"));
            }
            "input-queued" => Discipline::InputQueued { buffer },
            other => {
                let why = format!("`{other}` is not one of shared-buffer, input-queued");
                return Err(Error::new("switch.discipline", why));
            }
        };
        let balance = match table.balance.as_deref().unwrap_or("ecmp") {
            "ecmp" => Balance::Ecmp,
            "spray" => Balance::Spray,
            other => {
                return Err(Error::new("switch.balance", format!("`{other}` is not one of ecmp, spray")));
            }
        };
        let mut out = SwitchConfig {
            discipline,
            classes: table.classes.unwrap_or(1),
            balance,
            latency_ps: time("switch.latency", table.latency.as_deref())?.unwrap_or(0),
            ..SwitchConfig::default()
        };
        if let Some(pfc) = &table.pfc {
            let made = pfc_thresholds(pfc, t, mtu, discipline)?;
            for class in 0..out.classes.min(8) {
                if pfc.classes.as_ref().is_none_or(|list| list.contains(&class)) {
                    out.pfc[usize::from(class)] = Some(made);
                }
            }
        }
        if let Some(ecn) = &table.ecn {
            let kmin = need("switch.ecn.kmin", bytes("switch.ecn.kmin", Some(&ecn.kmin))?)?;
            let kmax = need("switch.ecn.kmax", bytes("switch.ecn.kmax", Some(&ecn.kmax))?)?;
            out.ecn = Some(Red { kmin, kmax, pmax: ecn.pmax });
        }
        out.check()?;
        Ok(out)
    }

    pub(super) fn faults(&self, t: &Topology) -> Result<FaultPlan, Error> {
        let seed = self.seed.unwrap_or(1);
        let mut faults = FaultPlan::default();
        if !self.faults.link.is_empty() {
            let own = |l| fastrand::Rng::with_seed(seed_of(seed, "link", l));
            faults.links =
                (0..t.links() as u64).map(|l| LinkFaults::new(Chances::default(), own(l))).collect();
        }
        for (n, entry) in self.faults.link.iter().enumerate() {
            let chances = link_chances(n, entry)?;
            let all: Vec<u32> = (0..t.links() as u32).collect();
            for &l in entry.links.as_ref().unwrap_or(&all) {
                let why = || Error::new(format!("faults.link[{n}].links"), no_such("link", l, t.links()));
                faults.links.get_mut(l as usize).ok_or_else(why)?.chances = chances;
            }
        }
        for line in self.faults.script.lines().map(str::trim) {
            if !line.is_empty() && !line.starts_with('#') {
                faults.script.push(Rule::parse(line)?);
            }
        }
        for (n, outage) in self.faults.outage.iter().enumerate() {
            let key = |part: &str| format!("faults.outage[{n}].{part}");
            if outage.cable as usize >= t.cables.len() {
                return Err(Error::new(key("cable"), no_such("cable", outage.cable, t.cables.len())));
            }
            let at = need(&key("at"), time(&key("at"), Some(&outage.at))?)?;
            faults.outages.push(Outage { at, cable: outage.cable, repair: false });
            if let Some(length) = time(&key("for"), outage.length.as_deref())? {
                faults.outages.push(Outage { at: at + length, cable: outage.cable, repair: true });
            }
        }
        faults.outages.sort_by_key(|o| (o.at, o.cable, o.repair));
        Ok(faults)
    }
}

fn no_such(what: &str, number: u32, count: usize) -> String {
    format!("{what} {number} does not exist; there are {count}, from 0")
}

fn link_chances(n: usize, entry: &LinkFaultEntry) -> Result<Chances, Error> {
    let chance = |part: &str, value: f64| {
        if (0.0..=1.0).contains(&value) {
            return Ok(value);
        }
        Err(Error::new(format!("faults.link[{n}].{part}"), format!("{value} is not a chance from 0 to 1")))
    };
    let late = |part: &str, text: &Option<String>| {
        time(&format!("faults.link[{n}].{part}"), text.as_deref()).map(|t| t.unwrap_or(0))
    };
    let reorder_ps = late("reorder-by", &entry.reorder_by)?;
    if entry.reorder > 0.0 && reorder_ps == 0 {
        let key = format!("faults.link[{n}].reorder-by");
        return Err(Error::new(key, "is missing; give the time by which packets may be late"));
    }
    let burst = entry.burst.unwrap_or(1.0);
    if !(1.0..=1e6).contains(&burst) {
        let key = format!("faults.link[{n}].burst");
        return Err(Error::new(key, format!("{burst} is not a mean length of rows, from 1 to 1000000")));
    }
    if burst > 1.0 && entry.loss > burst / (burst + 1.0) {
        let key = format!("faults.link[{n}].loss");
        let why = format!("rows of {burst} cannot lose more than {}", burst / (burst + 1.0));
        return Err(Error::new(key, why));
    }
    Ok(Chances {
        loss: chance("loss", entry.loss)?,
        burst,
        bit_error: chance("bit-error", entry.bit_error)?,
        duplicate: chance("duplicate", entry.duplicate)?,
        reorder: chance("reorder", entry.reorder)?,
        reorder_ps,
        jitter_ps: late("jitter", &entry.jitter)?,
    })
}

fn pfc_thresholds(table: &PfcTable, t: &Topology, mtu: Mtu, discipline: Discipline) -> Result<Pfc, Error> {
    let packet = mtu.bytes() + 20 + 8 + 12 + 4 + crate::fabric::link::FRAMING;
    let size = |key: &str, text: &str| match text.trim().strip_suffix("packets") {
        Some(n) => {
            let why = || Error::new(key, format!("`{text}` is not a number of packets"));
            n.trim().parse::<u32>().ok().and_then(|n| n.checked_mul(packet)).ok_or_else(why)
        }
        None => need(key, bytes(key, Some(text))?),
    };
    let headroom = match &table.headroom {
        Some(text) => size("switch.pfc.headroom", text)?,
        // What arrives until the pause takes effect: a round trip of the longest cable at the highest rate,
        // a packet that is being sent at each end, and one to round up.
        None => {
            let rate = t.cables.iter().map(|c| c.rate).max().unwrap_or(0);
            let bits = u128::from(rate) * u128::from(t.delay_max().as_ps()) * 2 / 1_000_000_000_000;
            (bits / 8) as u32 + 3 * packet
        }
    };
    let xoff = match (&table.xoff, discipline) {
        (Some(text), _) => size("switch.pfc.xoff", text)?,
        // The threshold leaves the headroom of an input port's buffer (IRN 4.1).
        (None, Discipline::InputQueued { buffer }) => match buffer.checked_sub(headroom) {
            Some(xoff) if xoff > 0 => xoff,
            _ => {
                let why = format!(
                    "leaves nothing of the buffer of {buffer} bytes: it is {headroom}; lower it, or \
                                   give a larger switch.buffer"
                );
                return Err(Error::new("switch.pfc.headroom", why));
            }
        },
        (None, Discipline::SharedBuffer { .. }) => {
            let why = "is missing; give what one link's packets may take of the shared buffer";
            return Err(Error::new("switch.pfc.xoff", why));
        }
    };
    let xon = match &table.xon {
        Some(text) => size("switch.pfc.xon", text)?,
        None => xoff.saturating_sub(2 * packet),
    };
    Ok(Pfc { xoff, xon, headroom })
}

impl TransportTable {
    /// What chains of WQEs notice of the NIC.
    fn chains(&self, out: &mut TransportConfig) -> Result<(), Error> {
        if self.prefetch.is_some_and(|wqes| !(1..=64).contains(&wqes)) {
            return Err(Error::new("transport.prefetch", "is not a number of WQEs from 1 to 64"));
        }
        out.prefetch = self.prefetch;
        out.wqe_checks = self.wqe_checks;
        out.wait_on_error = match self.wait_on_error.as_deref() {
            None | Some("fail") => WaitOnError::Fail,
            Some("release") => WaitOnError::Release,
            Some(_) => return Err(Error::new("transport.wait-on-error", "is neither fail nor release")),
        };
        Ok(())
    }
}
