//! The simulation: state, sources of events, and the loop.
//!
//! A run is a function of its configuration and seed. Events are ordered by (time, source), the seed is
//! split by component, and nothing depends on addresses, hashing order or the wall clock.

use crate::events::Events;
use crate::fabric::Fabric;
use crate::fabric::ahead::FAR;
use crate::fabric::faults::FaultPlan;
use crate::fabric::link::Link;
use crate::fabric::programmed::SwitchPrograms;
use crate::fabric::switch::SwitchConfig;
use crate::fabric::topology::{Routes, Topology};
use crate::host::hardware::Profile;
use crate::host::memory::Buffer;
use crate::host::one_rma::RmaConfig;
use crate::host::{Host, Hosts, TransportConfig};
use crate::program::ProgramSide;
use crate::source::{Source, Sources};
use crate::watch::Watch;
use crate::watch::record::Stats;
use crate::workload::flows::Flows;
use adverb_nic::{ChainEvent, StarConfig};
use adverb_wire::Instant;

/// Everything that a simulation is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// Hosts, switches, cables.
    pub topology: Topology,
    /// What switches do.
    pub switch: SwitchConfig,
    /// Switches that run programs. On a path to a server one at most may decide for it.
    pub programs: Vec<SwitchPrograms>,
    /// How queue pairs are set up.
    pub transport: TransportConfig,
    /// Hosts that do not offer IRN, if `transport` does.
    pub plain_hosts: Vec<u32>,
    /// By host: the StaR that it offers, or none; hosts beyond offer the transport's.
    pub star_of: Vec<Option<StarConfig>>,
    /// What NICs of queue pairs cost.
    pub hardware: Profile,
    /// Hosts whose NICs cost something else.
    pub hardware_of: Vec<(u32, Profile)>,
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
    /// What the NIC of a host costs.
    pub fn hardware_of(&self, host: u32) -> Profile {
        let own = self.hardware_of.iter().rev().find(|(other, _)| *other == host);
        own.map_or(self.hardware, |(_, profile)| *profile)
    }

    /// Some host may offer StaR.
    #[inline]
    pub(crate) fn offers_star(&self) -> bool {
        self.transport.star.is_some() || !self.star_of.is_empty()
    }

    /// A fabric with defaults for everything but its topology.
    pub fn new(topology: Topology) -> Config {
        Config {
            topology,
            switch: SwitchConfig::default(),
            programs: Vec::new(),
            transport: TransportConfig::default(),
            plain_hosts: Vec::new(),
            star_of: Vec::new(),
            hardware: Profile::NEUTRAL,
            hardware_of: Vec::new(),
            payload: false,
            through_bytes: false,
            one_rma: None,
            flow_bytes_max: 1 << 30,
            seed: 1,
        }
    }
}

/// Hosts on a fabric, in virtual time.
pub struct Sim {
    pub(crate) now: u64,
    pub(crate) events: Events,
    pub(crate) sources: Sources,
    pub(crate) fabric: Fabric,
    pub(crate) hosts: Hosts,
    pub(crate) flows: Flows,
    /// After the hosts, whose NICs name their memory.
    pub(crate) programs: ProgramSide,
    pub(crate) watch: Watch,
    pub(crate) config: Config,
    /// Events' memory is asked for far ahead.
    pub(crate) far: bool,
    /// Of [`Sim::run`]: until when, and how many events more.
    end: u64,
    budget: u64,
}

impl Sim {
    /// Builds the fabric. Refuses an impossible one.
    pub fn new(config: Config) -> Result<Sim, crate::Error> {
        let fabric = Fabric::new(&config)?;
        let hosts = Hosts::new(&config, &fabric.routes)?;
        let sources = Sources::new(fabric.links.len() as u32, config.topology.hosts);
        let mut sim = Sim {
            now: 0,
            events: Events::new(fabric.lanes, sources.first_timer(), sources.timers()),
            sources,
            far: hosts.list.len() >= FAR,
            fabric,
            hosts,
            flows: Flows::default(),
            programs: ProgramSide::default(),
            watch: Watch::default(),
            config,
            end: 0,
            budget: 0,
        };
        sim.on_region_event();
        sim.begin_switch_programs();
        Ok(sim)
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        Instant::from_ps(self.now)
    }

    /// Hash of all that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.watch.trace.hash()
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        let switches = &self.fabric.switches;
        Stats {
            events: self.events.popped(),
            drops: switches.iter().map(|switch| switch.drops).sum(),
            marked: switches.iter().map(|switch| switch.marked).sum(),
            pauses: switches.iter().map(|switch| switch.pauses).sum(),
            packets_peak: self.fabric.packets.peak(),
            now_ps: self.now,
            ..self.watch.stats
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts.list
    }

    /// The oldest step of a host's chains of WQEs that has not been taken, if they are watched.
    pub fn next_chain_event(&mut self, host: u32) -> Option<ChainEvent> {
        self.hosts.list.get_mut(host as usize)?.nic.next_chain_event()
    }

    /// The links: state and counters of the wire.
    pub fn links(&self) -> &[Link] {
        &self.fabric.links
    }

    /// Counters of a host's NIC.
    pub fn nic_counters(&self, host: u32) -> &adverb_nic::Counters {
        self.hosts.list[host as usize].nic.counters()
    }

    /// Counters of ports, by link.
    pub fn ports(&self) -> &[crate::fabric::switch::PortCounters] {
        &self.fabric.counters
    }

    /// The routes.
    pub fn routes(&self) -> &Routes {
        &self.fabric.routes
    }

    /// Sets the faults. Links that have none are not slowed down by others'.
    pub fn set_faults(&mut self, faults: FaultPlan) {
        let first = faults.outages.first().map(|outage| outage.at);
        self.fabric.set_faults(faults);
        self.events.cancel_timer(self.sources.pack(Source::Faults));
        if let Some(at) = first {
            self.set_timer(Source::Faults, at.max(self.now));
        }
    }

    /// Sets the timer of a source, or moves it.
    #[inline]
    pub(crate) fn set_timer(&mut self, source: Source, at: u64) {
        self.events.set_timer(self.sources.pack(source), at);
    }

    /// Sets the timer of a source, unless it is set to an earlier time.
    #[inline]
    pub(crate) fn wake_by(&mut self, source: Source, at: u64) {
        let number = self.sources.pack(source);
        if at < self.events.timer(number) {
            self.events.set_timer(number, at);
        }
    }

    /// Runs until nothing is left to happen by `end` ps, or for `events` events. False when nothing is
    /// left to happen by `end`.
    pub fn run(&mut self, end: u64, events: u64) -> bool {
        (self.end, self.budget) = (end, events);
        while self.budget > 0 {
            self.budget -= 1;
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

    /// Goes on to a time without an event, if an event of this source would be the next then. It counts as
    /// one.
    pub(crate) fn goes_on(&mut self, source: Source, at: u64) -> bool {
        let next =
            self.budget > 0 && at <= self.end && self.events.would_be_first(at, self.sources.pack(source));
        if next {
            self.budget -= 1;
            self.events.passed_by();
            self.now = at;
        }
        next
    }

    #[inline(always)]
    fn handle(&mut self, number: u32, word: u32) {
        match self.sources.unpack(number) {
            Source::Arrival(link) => self.on_arrival(link, word),
            Source::PortFree(link) => self.on_port_free(link),
            other => self.handle_other(other),
        }
    }

    fn handle_other(&mut self, source: Source) {
        match source {
            Source::Arrival(_) | Source::PortFree(_) => unreachable!("links' events are handled before"),
            Source::Deadline(h) => self.on_deadline(h),
            Source::Sent(h) => self.rma_send(h),
            Source::Received(h) => self.on_message_written(h),
            Source::Hardware(h) => self.on_hardware(h),
            Source::Flows => self.start_due_flows(),
            Source::Faults => self.on_outage(),
            Source::Sample => self.on_sample(),
            Source::Oracle => self.on_oracle(),
            Source::Regions => self.on_region_event(),
            Source::Programs => self.on_programs(),
            Source::SwitchPrograms => self.on_switch_programs(),
        }
    }

    /// Checks every invariant of switches and NICs; for tests and swarms.
    pub fn check_invariants(&self) {
        self.fabric.check();
        for host in &self.hosts.list {
            host.nic.check_invariants();
        }
        self.check_rma();
    }

    /// A cycle of ports that PFC keeps from sending for ever, as link numbers.
    pub fn deadlock(&self) -> Option<Vec<u32>> {
        self.fabric.deadlock()
    }

    /// The node that a link ends at, for people.
    pub fn link_name(&self, link: u32) -> String {
        let (from, to) = self.config.topology.link_ends(link);
        format!("{from} -> {to}")
    }

    pub(crate) fn region_addr(&self) -> u64 {
        self.hosts.region.addr()
    }

    /// The buffer behind every host's flow region.
    pub fn region(&self) -> &Buffer {
        &self.hosts.region
    }
}
