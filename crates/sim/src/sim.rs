//! The simulation: state, sources of events, and the loop.
//!
//! A run is a function of its configuration and seed. Events are ordered by (time, source), the seed is
//! split by component, and nothing depends on addresses, hashing order or the wall clock.

use crate::ahead::FAR;
use crate::capture::Captures;
use crate::events::{Events, LANES, NO_LANE};
use crate::faults::Faults;
use crate::flows::Flows;
use crate::hardware::{Profile, Unit};
use crate::host::{Host, Transport};
use crate::journal::Journal;
use crate::link::{FRAMING, LINK_FAULTS, Link};
use crate::memory::Buffer;
use crate::oracle::Oracle;
use crate::packet::Packets;
use crate::record::{Samples, Stats};
use crate::rma::{Rma, RmaConfig};
use crate::sabotage::Sabotage;
use crate::shared::Shared;
use crate::switch::{SwitchConfig, Switches};
use crate::topology::{Routes, Topology};
use crate::trace::{Trace, seed_of};
use adverb_nic::TxFrame;
use adverb_wire::{Duration, Instant, Opcode, Operation, Service};

/// Everything that a fabric is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hosts, switches, cables.
    pub topology: Topology,
    /// What switches do.
    pub switch: SwitchConfig,
    /// How queue pairs are set up.
    pub transport: Transport,
    /// Hosts that do not offer IRN, if `transport` does.
    pub plain_hosts: Vec<u32>,
    /// What NICs cost.
    pub hardware: Profile,
    /// Packets carry their payload's bytes.
    pub payload: bool,
    /// Every packet is emitted to bytes and parsed again, and must come out as it went in: the proof that
    /// descriptors stand for frames. Needs `payload`.
    pub through_bytes: bool,
    /// 1RMA instead of queue pairs.
    pub one_rma: Option<RmaConfig>,
    /// Longest flow, which is the size of the region that hosts register.
    pub flow_bytes_max: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Config {
    /// A fabric with defaults for everything but its topology.
    pub fn new(topology: Topology) -> Config {
        Config {
            topology,
            switch: SwitchConfig::default(),
            transport: Transport::default(),
            plain_hosts: Vec::new(),
            hardware: Profile::default(),
            payload: false,
            through_bytes: false,
            one_rma: None,
            flow_bytes_max: 1 << 30,
            seed: 1,
        }
    }
}

/// What comes after the sources of links and hosts.
pub(crate) const SOURCE_FLOWS: u32 = 0;
pub(crate) const SOURCE_FAULTS: u32 = 1;
pub(crate) const SOURCE_SAMPLE: u32 = 2;
pub(crate) const SOURCE_ORACLE: u32 = 3;
pub(crate) const SOURCE_REGIONS: u32 = 4;
const SOURCES_OTHER: u32 = 5;

/// A fabric of hosts in virtual time.
pub struct Sim {
    pub(crate) now: u64,
    pub(crate) events: Events,
    pub(crate) links: Vec<Link>,
    pub(crate) packets: Packets,
    pub(crate) routes: Routes,
    pub(crate) switches: Switches,
    pub(crate) hosts: Vec<Host>,
    pub(crate) flows: Flows,
    pub(crate) faults: Faults,
    pub(crate) captures: Captures,
    pub(crate) journal: Journal,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) oracle: Option<Box<Oracle>>,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    pub(crate) samples: Samples,
    pub(crate) out: TxFrame,
    pub(crate) rma: Option<Box<Rma>>,
    pub(crate) shared: Shared,
    pub(crate) config: Config,
    /// First source of: ports that become free, timers, sending hardware, receiving hardware, others.
    pub(crate) base_free: u32,
    pub(crate) base_timer: u32,
    pub(crate) base_tx: u32,
    pub(crate) base_rx: u32,
    pub(crate) base_other: u32,
    pub(crate) hash_seed: u32,
    /// Bytes on a link of a full packet in the middle of a message.
    pub(crate) size_full: u32,
    pub(crate) spray: bool,
    /// Events' memory is asked for far ahead.
    pub(crate) far: bool,
    /// Dropped after the hosts, whose NICs name its address.
    region: Buffer,
}

impl Sim {
    /// Builds the fabric. Refuses an impossible one.
    pub fn new(config: Config) -> Result<Sim, crate::Error> {
        let t = &config.topology;
        let routes = Routes::build(t)?;
        config.switch.check()?;
        let mut links: Vec<Link> = (0..t.links() as u32)
            .map(|l| Link::new(t, l, Duration::from_ps(config.switch.latency_ps)))
            .collect();
        let lanes = assign_lanes(&mut links);
        let region = Buffer::new(config.flow_bytes_max.max(8) as usize);
        let stepped = !config.hardware.is_neutral();
        let mut hosts = Vec::with_capacity(t.hosts as usize);
        for h in 0..t.hosts {
            let up = routes.up[h as usize];
            let seed = seed_of(config.seed, "host", u64::from(h));
            let refuse = |e: adverb_nic::Error| crate::Error::new("hosts", format!("host {h}: {e:?}"));
            let plain = Transport { irn: None, ..config.transport };
            let transport = if config.plain_hosts.contains(&h) { &plain } else { &config.transport };
            let mut host = Host::new(h, (up, t.cables[up as usize / 2].rate), transport, stepped, seed)
                .map_err(refuse)?;
            host.register(&region).map_err(refuse)?;
            let unit = stepped || config.one_rma.is_some();
            host.unit = unit.then(|| Box::new(Unit::new(config.hardware)));
            hosts.push(host);
        }
        let rates: Vec<u64> = routes.up.iter().map(|up| t.cables[*up as usize / 2].rate).collect();
        let rma = config.one_rma.as_ref().map(|rma| Rma::new(&config, rma, &rates, &region));
        let rma = rma.transpose()?.map(Box::new);
        let (n, h) = (links.len() as u32, t.hosts);
        let mut sim = Sim {
            now: 0,
            events: Events::new(lanes, 2 * n, 3 * h + SOURCES_OTHER),
            switches: Switches::new(t, &config.switch, seed_of(config.seed, "switches", 0)),
            links,
            packets: Packets::default(),
            routes,
            hosts,
            flows: Flows::default(),
            faults: Faults::default(),
            captures: Captures::default(),
            journal: Journal::default(),
            sabotage: None,
            oracle: None,
            trace: Trace::default(),
            stats: Stats::default(),
            samples: Samples::default(),
            out: TxFrame::default(),
            base_free: n,
            base_timer: 2 * n,
            base_tx: 2 * n + h,
            base_rx: 2 * n + 2 * h,
            base_other: 2 * n + 3 * h,
            size_full: full_size(&config.transport),
            hash_seed: seed_of(config.seed, "paths", 0) as u32,
            far: h >= FAR,
            spray: config.switch.balance == crate::switch::Balance::Spray,
            rma,
            shared: Shared::default(),
            region,
            config,
        };
        sim.on_region_event();
        Ok(sim)
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        Instant::from_ps(self.now)
    }

    /// Hash of all that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        Stats {
            events: self.events.popped(),
            drops: self.switches.drops,
            marked: self.switches.marked,
            pauses: self.switches.pauses,
            packets_peak: self.packets.peak(),
            now_ps: self.now,
            ..self.stats
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The links: state and counters of the wire.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Counters of ports, by link.
    pub fn ports(&self) -> &[crate::switch::PortCounters] {
        &self.switches.counters
    }

    /// The routes.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Sets the faults. Links that have none are not slowed down by others'.
    pub fn set_faults(&mut self, faults: Faults) {
        for (l, link) in self.links.iter_mut().enumerate() {
            let chances = faults.chances.get(l).is_some_and(|(c, _)| !c.is_none());
            let script = faults.script.iter().any(|r| r.link.is_none_or(|x| x == l as u32));
            link.flags &= !LINK_FAULTS;
            if chances || script {
                link.flags |= LINK_FAULTS;
            }
        }
        let source = self.base_other + SOURCE_FAULTS;
        self.events.cancel_timer(source);
        if let Some(first) = faults.outages.first() {
            self.events.set_timer(source, first.at.max(self.now));
        }
        self.faults = faults;
    }

    /// Runs until nothing is left to happen by `end` ps, or for `events` events. False when nothing is
    /// left to happen by `end`.
    pub fn run(&mut self, end: u64, events: u64) -> bool {
        for _ in 0..events {
            let Some(event) = self.events.pop(end) else {
                if end != u64::MAX {
                    self.now = end;
                }
                return false;
            };
            self.now = event.at;
            self.look_ahead();
            self.handle(event.source, event.word);
        }
        true
    }

    #[inline(always)]
    fn handle(&mut self, source: u32, word: u32) {
        if source < self.base_free {
            self.on_arrival(source, word);
        } else if source < self.base_timer {
            self.on_port_free(source - self.base_free);
        } else {
            self.handle_other(source);
        }
    }

    fn handle_other(&mut self, source: u32) {
        if source < self.base_tx {
            self.on_nic_timer(source - self.base_timer);
        } else if source < self.base_rx {
            self.on_hardware_sent(source - self.base_tx);
        } else if source < self.base_other {
            self.on_hardware_received(source - self.base_rx);
        } else {
            match source - self.base_other {
                SOURCE_FLOWS => self.start_due_flows(),
                SOURCE_FAULTS => self.on_outage(),
                SOURCE_SAMPLE => self.on_sample(),
                SOURCE_REGIONS => self.on_region_event(),
                _ => self.on_oracle(),
            }
        }
    }

    /// Checks every invariant of switches and NICs; for tests and swarms.
    pub fn check_invariants(&self) {
        self.switches.check(&self.packets, &self.links);
        for host in &self.hosts {
            host.nic.check_invariants();
        }
        self.check_rma();
    }

    /// A cycle of ports that PFC keeps from sending for ever, as link numbers.
    pub fn deadlock(&self) -> Option<Vec<u32>> {
        self.switches.deadlock(&self.packets, &self.links)
    }

    /// The node that a link ends at, for people.
    pub fn link_name(&self, link: u32) -> String {
        let (from, to) = self.config.topology.link_ends(link);
        format!("{from} -> {to}")
    }

    pub(crate) fn region_addr(&self) -> u64 {
        self.region.addr()
    }

    /// The buffer behind every host's flow region.
    pub fn region(&self) -> &Buffer {
        &self.region
    }
}

/// Gives links of one rate and delay four lanes; how many lanes there are. Links of kinds beyond the
/// bound have none.
fn assign_lanes(links: &mut [Link]) -> usize {
    let mut kinds: Vec<(u64, u64)> = Vec::new();
    for link in links {
        let kind = (link.delay, link.serialization(1 << 20));
        let at = kinds.iter().position(|k| *k == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        link.lanes = if at < LANES / 4 { at as u8 * 4 } else { NO_LANE };
    }
    (kinds.len() * 4).min(LANES)
}

/// Bytes on a link of a packet in the middle of a long WRITE.
fn full_size(t: &Transport) -> u32 {
    let service = if t.irn.is_some() { Service::Irn } else { Service::Rc };
    let opcode = Opcode::new(service, Operation::WriteMiddle);
    let free = if t.free_irn_headers { opcode.irn_overhead() } else { 0 };
    t.mtu.bytes() + 20 + 8 + 12 + 4 + (opcode.ext_len() - free) as u32 + FRAMING
}
