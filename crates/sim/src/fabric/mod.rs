//! What lies between hosts: cables, switches, routes and faults, and a packet's way through them.

pub(crate) mod ahead;
pub mod faults;
pub mod link;
mod network;
pub mod packet;
pub mod programmed;
pub mod switch;
pub mod topology;

use crate::events::{LANES, NO_LANE};
use crate::sim::Config;
use crate::watch::trace::seed_of;
use adverb_nic::telemetry::HOPS_MAX;
use adverb_wire::Duration;
use faults::FaultPlan;
use link::{HOST, LINK_FAULTS, LINK_STAMPS, Link};
use packet::Packets;
use programmed::Programmed;
use switch::{Balance, PortCounters, Switch};
use topology::Routes;

/// The network between the hosts: its state, and what is on its way.
pub(crate) struct Fabric {
    pub links: Vec<Link>,
    pub packets: Packets,
    pub routes: Routes,
    pub switches: Vec<Switch>,
    /// Traffic classes.
    pub classes: usize,
    /// By link: what its ports have counted.
    pub counters: Vec<PortCounters>,
    /// By link and class: when its port was paused, in ps.
    pub paused_since: Vec<u64>,
    /// Of marks and of spraying.
    pub rng: fastrand::Rng,
    pub faults: FaultPlan,
    /// The switches that run programs.
    pub programmed: Vec<Programmed>,
    /// Of the choice among equal paths.
    pub hash_seed: u32,
    pub spray: bool,
    /// Lanes of events that its links use.
    pub lanes: usize,
}

impl Fabric {
    pub fn new(config: &Config) -> Result<Fabric, crate::Error> {
        let t = &config.topology;
        let routes = Routes::build(t)?;
        config.switch.check()?;
        let classes = usize::from(config.switch.classes.max(1));
        let latency = Duration::from_ps(config.switch.latency_ps);
        let mut links: Vec<Link> = (0..t.links() as u32).map(|l| Link::new(t, l, latency)).collect();
        for link in &mut links {
            link.delay += [link.from, link.to].into_iter().map(|end| port_latency(config, end)).sum::<u64>();
        }
        let programmed = Programmed::all(config, &mut links)?;
        if config.transport.congestion.needs_telemetry() {
            check_stamps(config, &routes)?;
            links.iter_mut().filter(|link| link.from & HOST == 0).for_each(|link| link.flags |= LINK_STAMPS);
        }
        Ok(Fabric {
            programmed,
            lanes: assign_lanes(&mut links),
            packets: Packets::default(),
            routes,
            switches: switch::build(t, &config.switch, &mut links),
            classes,
            counters: vec![PortCounters::default(); links.len()],
            paused_since: vec![0; links.len() * classes],
            rng: fastrand::Rng::with_seed(seed_of(config.seed, "switches", 0)),
            faults: FaultPlan::default(),
            links,
            hash_seed: seed_of(config.seed, "paths", 0) as u32,
            spray: config.switch.balance == Balance::Spray,
        })
    }

    /// Every account of every switch agrees with what is queued.
    pub fn check(&self) {
        self.switches.iter().for_each(|switch| switch.check(&self.packets, &self.links));
        self.programmed.iter().for_each(Programmed::check);
    }

    /// Sets the faults. Links that have none are not slowed down by others'.
    pub fn set_faults(&mut self, faults: FaultPlan) {
        for (l, link) in self.links.iter_mut().enumerate() {
            let chances = faults.links.get(l).is_some_and(|link| !link.chances.is_none());
            let script = faults.script.iter().any(|r| r.link.is_none_or(|x| x == l as u32));
            link.flags &= !LINK_FAULTS;
            if chances || script {
                link.flags |= LINK_FAULTS;
            }
        }
        self.faults = faults;
    }
}

/// Switches stamp every link of a path, and there is room for all of them.
fn check_stamps(config: &Config, routes: &Routes) -> Result<(), crate::Error> {
    let key = "transport.congestion";
    if !config.programs.is_empty() {
        let why =
            "\"hpcc\" needs switches that stamp packets, and those that run programs do not; remove one";
        return Err(crate::Error::new(key, why));
    }
    let stamped = routes.longest() - 1;
    if stamped as usize > HOPS_MAX {
        let why = format!("\"hpcc\" has room for {HOPS_MAX} switches on a path, and here are {stamped}");
        return Err(crate::Error::new(key, why));
    }
    Ok(())
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

/// What a port adds to the delay of its link, at a host with hardware.
fn port_latency(config: &Config, end: u32) -> u64 {
    if end & link::HOST == 0 { 0 } else { config.hardware_of(end & !link::HOST).port }
}
