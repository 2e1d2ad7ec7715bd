//! Swarms: random fabrics, random faults, random work, all from one seed, under the oracle. First with
//! faults: nothing wrong may happen. Then without: everything must end.

pub mod one_rma;
pub(crate) mod one_rma_oracle;
pub mod programs;
pub mod star;

use crate::fabric::faults::{Chances, FaultPlan, LinkFaults, Outage};
use crate::fabric::programmed::Restarts;
use crate::fabric::switch::ecn::Red;
use crate::fabric::switch::pfc::Pfc;
use crate::fabric::switch::{Balance, Discipline, SwitchConfig};
use crate::fabric::topology::{Cable, CableKind, Node, Topology};
use crate::host::TransportConfig;
use crate::host::hardware::Profile;
use crate::sim::{Config, Sim};
use crate::watch::oracle::Work;
use crate::watch::oracle::changes::Change;
use crate::watch::sabotage::Sabotage;
use crate::watch::trace::seed_of;
use adverb_nic::{CongestionControl, DcqcnConfig, IrnConfig, Mtu, Scheme, TcpConfig, TimelyConfig, Timers};
use adverb_switch::Counters;
use adverb_wire::Duration;
use std::collections::BTreeMap;

/// How one seed went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was found wrong; empty if nothing.
    pub failures: Vec<String>,
    /// Hash of all that happened.
    pub trace: u64,
    /// Requests that completed.
    pub completed: u64,
    /// Connections that gave up while there were faults.
    pub dead: u32,
    /// Packets lost, damaged, dropped or doubled.
    pub faults: u64,
    /// What a switch with programs counted.
    pub switch: Counters,
    /// How often that was started anew.
    pub restarts: Restarts,
    /// What another switch counted that others' frames pass, and how often it was started anew.
    pub second: (Counters, Restarts),
    /// Sides of StaR that were changed to another stack, and attempts at it that came to nothing.
    pub changed: [u64; 2],
    /// Operations that programs noted the end of, by name; only where there may have been faults. Of StaR,
    /// what befell its registries.
    pub noted: BTreeMap<&'static str, u64>,
}

impl Outcome {
    /// Of a seed that has not run yet.
    pub(crate) fn new(seed: u64) -> Outcome {
        let (failures, switch) = (Vec::new(), Counters::default());
        let restarts = Restarts::default();
        let (changed, noted) = ([0; 2], BTreeMap::new());
        Outcome {
            seed,
            failures,
            trace: 0,
            completed: 0,
            dead: 0,
            faults: 0,
            switch,
            restarts,
            second: Default::default(),
            changed,
            noted,
        }
    }
}

/// Virtual time with faults, and the longest that recovery may take without, in ps.
const FAULTY_PS: u64 = 3_000_000_000;
const LIVE_PS: u64 = 4_000_000_000_000;
/// And the longest until connections have come to rest once their work is done, in ps.
const SETTLE_PS: u64 = 2_000_000_000_000;

/// How senders of IRN wait: as the paper's, by the round trip, and with probes that leave early and late.
const TIMERS: [Timers; 4] = [
    Timers::Paper,
    Timers::Measured { probe: None },
    Timers::Measured { probe: Some(Duration::from_us(2)) },
    Timers::Measured { probe: Some(Duration::from_us(200)) },
];

/// The fabric, faults and work of a seed.
pub fn scenario(seed: u64) -> (Config, FaultPlan, Work) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "swarm", 0));
    let topology = random_topology(&mut rng);
    let mtu = *pick(&mut rng, &[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    let switch = random_switch(&mut rng, mtu, is_ring(&topology));
    let plain_hosts: Vec<u32> = match rng.u32(0..4) {
        0 => (0..topology.hosts).filter(|_| rng.bool()).collect(),
        _ => Vec::new(),
    };
    let transport = random_transport(&mut rng, mtu, switch.classes, plain_hosts.is_empty());
    let faults = random_faults(&mut rng, &topology, seed);
    let work = random_work(&mut rng);
    let hardware = if rng.u32(0..6) == 0 { random_hardware(&mut rng) } else { Profile::default() };
    let config = Config {
        switch,
        transport,
        plain_hosts,
        hardware,
        payload: true,
        through_bytes: true,
        flow_bytes_max: 8,
        seed,
        ..Config::new(topology)
    };
    (config, faults, work)
}

/// What connections have to do.
fn random_work(rng: &mut fastrand::Rng) -> Work {
    Work {
        connections: rng.u32(1..=3),
        requests: rng.u32(5..40),
        gap_ps: *pick(rng, &[1_000, 1_000_000, 50_000_000]),
        repost_ps: *pick(rng, &[0, 0, 1_000_000, 30_000_000]),
    }
}

pub(crate) fn random_topology(rng: &mut fastrand::Rng) -> Topology {
    let rate = *pick(rng, &[10_000_000_000, 40_000_000_000, 100_000_000_000]);
    let cable = CableKind { rate, delay: Duration::from_ns(rng.u64(100..3000)) };
    let slow = CableKind { rate: rate / 2, ..cable };
    match rng.u32(0..6) {
        0 => Topology::two_hosts(cable),
        1 => Topology::star(rng.u32(2..6), cable),
        2 => Topology::dumbbell(rng.u32(1..4), rng.u32(1..4), cable, slow),
        3 => Topology::leaf_spine(rng.u32(2..4), rng.u32(1..4), rng.u32(1..3), cable, cable),
        4 => ring(rng.u32(3..6), cable, slow),
        _ => Topology::fat_tree(4, cable).unwrap_or_else(|_| Topology::two_hosts(cable)),
    }
}

/// Switches in a ring with a host each: ways of different lengths, and PFC would deadlock.
fn ring(count: u32, cable: CableKind, trunk: CableKind) -> Topology {
    let mut t = Topology { hosts: count, switches: count, cables: Vec::new() };
    for n in 0..count {
        let mut join = |a, b, kind: CableKind| {
            t.cables.push(Cable { ends: [a, b], rate: kind.rate, delay: kind.delay });
        };
        join(Node::Host(n), Node::Switch(n), cable);
        join(Node::Switch(n), Node::Switch((n + 1) % count), trunk);
    }
    t
}

/// Only a ring has as many switches as hosts, at least three, and twice as many cables.
pub(crate) fn is_ring(t: &Topology) -> bool {
    t.switches == t.hosts && t.cables.len() as u32 == 2 * t.hosts
}

pub(crate) fn random_switch(rng: &mut fastrand::Rng, mtu: Mtu, ring: bool) -> SwitchConfig {
    let packet = mtu.bytes() + 100;
    let buffer = packet * rng.u32(8..64);
    let input_queued = rng.bool();
    let alpha = *pick(rng, &[0.5, 1.0, f64::INFINITY]);
    let mut switch = SwitchConfig {
        discipline: match input_queued {
            true => Discipline::InputQueued { buffer },
            false => Discipline::SharedBuffer { buffer: buffer * 4, alpha },
        },
        classes: if rng.u32(0..3) == 0 { rng.u8(2..=8) } else { 1 },
        balance: if rng.u32(0..4) == 0 { Balance::Spray } else { Balance::Ecmp },
        latency_ps: *pick(rng, &[0, 0, 300_000]),
        ..SwitchConfig::default()
    };
    if rng.bool() && !ring {
        switch.pfc = [Some(Pfc { xoff: buffer / 2, xon: buffer / 4, headroom: buffer }); 8];
        if input_queued {
            switch.discipline = Discipline::InputQueued { buffer: buffer * 2 };
        }
    }
    if rng.bool() {
        let kmin = packet * rng.u32(1..6);
        switch.ecn = Some(Red { kmin, kmax: kmin + packet * rng.u32(1..20), pmax: rng.f64() });
    }
    switch
}

/// `alike`: all hosts offer IRN, if any does.
pub(crate) fn random_transport(
    rng: &mut fastrand::Rng,
    mtu: Mtu,
    classes: u8,
    alike: bool,
) -> TransportConfig {
    let receive_packets = *pick(rng, &[4, 30, 128]);
    let irn = rng.bool().then(|| IrnConfig {
        scheme: *pick(rng, &[Scheme::Selective, Scheme::Selective, Scheme::NoSack, Scheme::GoBackN]),
        bdp_packets: if rng.bool() { Some(rng.u32(2..64)) } else { None },
        receive_packets,
        agreed: (alike && rng.bool()).then_some(receive_packets),
        hello_interval: *pick(rng, &[Duration::from_us(50), Duration::from_ms(10)]),
        nack_threshold: rng.u32(1..4),
        runs: rng.bool(),
        retransmit_delay: Duration::from_ns(*pick(rng, &[0, 0, 2000])),
        timers: *pick(rng, &TIMERS),
        ..IrnConfig::default()
    });
    let congestion = match rng.u32(0..6) {
        0 => CongestionControl::Halving,
        1 => CongestionControl::Dcqcn(DcqcnConfig::default()),
        2 => CongestionControl::Timely(TimelyConfig::default()),
        3 => CongestionControl::Tcp(TcpConfig::default()),
        _ => CongestionControl::Fixed,
    };
    TransportConfig {
        mtu,
        congestion,
        timeout: rng.u8(4..8),
        window: rng.u32(8..512),
        rto: if rng.u32(0..4) == 0 { Some(Duration::from_us(rng.u64(60..600))) } else { None },
        ack_every: rng.u32(0..4),
        ecn: rng.bool(),
        class: rng.u8(0..classes),
        irn,
        ..TransportConfig::default()
    }
}

pub(crate) fn random_faults(rng: &mut fastrand::Rng, topology: &Topology, seed: u64) -> FaultPlan {
    let mut faults = FaultPlan::default();
    for link in 0..topology.links() as u64 {
        let chances = if rng.bool() { random_chances(rng) } else { Chances::default() };
        let own = fastrand::Rng::with_seed(seed_of(seed, "link", link));
        faults.links.push(LinkFaults::new(chances, own));
    }
    if rng.u32(0..3) == 0 {
        let cable = rng.u32(0..topology.cables.len() as u32);
        let at = rng.u64(0..FAULTY_PS / 2);
        faults.outages.push(Outage { at, cable, repair: false });
        faults.outages.push(Outage { at: at + rng.u64(1..500_000_000), cable, repair: true });
    }
    faults
}

pub(crate) fn random_hardware(rng: &mut fastrand::Rng) -> Profile {
    let mut cost = |most: u64| if rng.bool() { rng.u64(0..most) } else { 0 };
    Profile {
        doorbell: cost(300_000),
        fetch: cost(600_000),
        fetch_first: 1 + cost(4),
        fetch_batch: 1 + cost(16),
        units: cost(4),
        execute: cost(100_000),
        pcie_rate: cost(1_000) * 1_000_000_000,
        pcie_read: cost(500_000),
        pcie_reads: cost(20),
        cache_entries: cost(3),
        cache_replacement: cost(2),
        cache_fetches: cost(3),
        cache_bytes: cost(256),
        miss: cost(1_000_000),
        pipelines: cost(3),
        packet: cost(200_000),
        receive: cost(200_000),
        port: cost(100_000),
        late_chance: cost(100_000),
        late_by: cost(5_000_000),
        responder: cost(100_000),
        read_turn: cost(300_000),
        atomic_slots: cost(4),
        atomic: cost(500_000),
        atomic_turn: cost(300_000),
        atomic_buckets: 3 + cost(8),
        atomic_excludes: cost(2),
        word_read: cost(50_000),
        word_write: cost(50_000),
        completion: cost(500_000),
        ..Profile::NEUTRAL
    }
}

fn random_chances(rng: &mut fastrand::Rng) -> Chances {
    let mut some = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    let (loss, bit_error, duplicate, reorder) = (some(0.05), some(1e-6), some(0.05), some(0.1));
    let reorder_ps = rng.u64(0..30_000_000);
    Chances { loss, bit_error, duplicate, reorder, reorder_ps, ..Chances::default() }
}

pub(crate) fn pick<'a, T>(rng: &mut fastrand::Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(0..of.len())]
}

/// Runs a seed.
pub fn run_seed(seed: u64) -> Outcome {
    run(seed, None, &mut |_| {})
}

/// Runs a seed on a NIC that is broken on purpose, if `sabotage` says so, to see that it is found.
pub fn run_broken(seed: u64, sabotage: Option<Sabotage>) -> Outcome {
    run(seed, sabotage, &mut |_| {})
}

/// Runs a seed again and shows all that happens, a line each: time, host or link, packet or piece of work,
/// what became of it. The simulation is what it was at the end; with `traced` it can write a trace for
/// Perfetto's viewer.
pub fn replay(
    seed: u64,
    sabotage: Option<Sabotage>,
    traced: bool,
    show: &mut dyn FnMut(&str),
) -> (Outcome, Option<Sim>) {
    run_made(seed, scenario(seed).into(), sabotage, &mut |sim| show_step(sim, traced, show))
}

/// Shows what has happened since the last step, and notes it where a trace is made of it.
fn show_step(sim: &mut Sim, traced: bool, show: &mut dyn FnMut(&str)) {
    if !sim.watch.journal.is_on() {
        sim.watch();
        if traced {
            sim.follow_perfetto();
        }
    }
    if traced {
        sim.follow();
    }
    sim.take_log().iter().for_each(|line| show(line));
}

/// What was made of a seed: fabric, faults, work, and what befalls it.
struct Made {
    config: Config,
    faults: FaultPlan,
    work: Work,
    changes: Vec<Change>,
}

impl From<(Config, FaultPlan, Work)> for Made {
    fn from((config, faults, work): (Config, FaultPlan, Work)) -> Made {
        Made { config, faults, work, changes: Vec::new() }
    }
}

/// Runs a seed; `step` sees the simulation before its first event and after every one.
fn run(seed: u64, sabotage: Option<Sabotage>, step: &mut dyn FnMut(&mut Sim)) -> Outcome {
    run_made(seed, scenario(seed).into(), sabotage, step).0
}

/// Runs what was made of a seed; the simulation is what it was at the end.
fn run_made(
    seed: u64,
    made: Made,
    sabotage: Option<Sabotage>,
    step: &mut dyn FnMut(&mut Sim),
) -> (Outcome, Option<Sim>) {
    let mut outcome = Outcome::new(seed);
    let mut sim = match build(seed, made, sabotage) {
        Ok(sim) => sim,
        Err(why) => {
            outcome.failures.push(why);
            return (outcome, None);
        }
    };
    let stateless: Vec<usize> = sim.hosts().iter().map(|host| host.nic.stateless_bytes()).collect();
    let failed = |sim: &Sim| sim.oracle().is_some_and(|o| !o.failures().is_empty());
    step(&mut sim);
    while sim.run(FAULTY_PS, 1) && !failed(&sim) {
        sim.check_invariants();
        step(&mut sim);
    }
    sim.repair();
    while !failed(&sim) && sim.run(FAULTY_PS + LIVE_PS, 1) {
        sim.check_invariants();
        step(&mut sim);
        if sim.oracle().is_some_and(|o| o.is_done()) {
            break;
        }
    }
    let is_star = sim.config().offers_star();
    let settled = !is_star || failed(&sim) || come_to_rest(&mut sim, step);
    step(&mut sim);
    // What was found wrong has ended the run.
    let was_cut = failed(&sim);
    outcome.failures = sim.oracle_verdict();
    if !settled && !was_cut {
        outcome.failures.extend(sim.unsettled());
    }
    for (h, before) in stateless.into_iter().enumerate() {
        let after = sim.hosts()[h].nic.stateless_bytes();
        if after != before {
            outcome.failures.push(format!(
                "host {h}: StaR's stateless half has {after} bytes of memory, not {before} as at the start"
            ));
        }
    }
    if let Some(oracle) = sim.oracle() {
        if !oracle.is_done() && !was_cut {
            outcome.failures.push("without faults, requests are still outstanding".into());
            if let Some(cycle) = sim.deadlock() {
                let names: Vec<String> = cycle.iter().map(|l| sim.link_name(*l)).collect();
                outcome.failures.push(format!("PFC deadlock: {}", names.join(", ")));
            }
        }
        outcome.completed = oracle.completed();
        outcome.dead = oracle.dead();
    }
    for nic in sim.hosts().iter().map(|host| host.nic.counters()) {
        outcome.changed[0] += nic.star_to_rc + nic.star_to_stateless;
        outcome.changed[1] += nic.star_switch_refused + nic.star_switch_aborted + nic.star_switch_given_up;
    }
    if is_star {
        outcome.noted = star::told_of_registries(&sim);
    }
    let s = sim.stats();
    outcome.faults = s.lost + s.corrupted + s.duplicated + s.drops;
    outcome.trace = sim.trace_hash();
    (outcome, Some(sim))
}

/// A simulation of what was made of a seed.
fn build(
    seed: u64,
    Made { config, faults, work, changes }: Made,
    sabotage: Option<Sabotage>,
) -> Result<Sim, String> {
    let mut sim = Sim::new(config).map_err(|e| e.to_string())?;
    if let Some(kind) = sabotage {
        sim.sabotage(kind);
    }
    sim.set_oracle(&work, seed_of(seed, "oracle", 0)).map_err(|e| format!("{e:?}"))?;
    sim.set_faults(faults);
    if !changes.is_empty() {
        sim.set_changes(changes);
    }
    Ok(sim)
}

/// Runs on until nothing changes any more; false if that takes too long.
fn come_to_rest(sim: &mut Sim, step: &mut dyn FnMut(&mut Sim)) -> bool {
    let end = sim.now().as_ps() + SETTLE_PS;
    while sim.has_changes() || sim.unsettled().is_some() {
        if !sim.run(end, 1) {
            return !sim.has_changes() && sim.unsettled().is_none();
        }
        sim.check_invariants();
        step(sim);
    }
    true
}
