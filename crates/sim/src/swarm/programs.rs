//! Swarms of programs: a system of programs on random fabrics, with random faults of the network, of programs
//! and of hosts, all from one seed. First with faults: whatever the programs noted must be explained by the
//! system's own judge. Then without: all must come to an end.

use super::{
    Outcome, pick, random_faults, random_hardware, random_switch, random_topology, random_transport,
    show_step,
};
use crate::fabric::faults::FaultPlan;
use crate::fabric::programmed::{Restart, SwitchPrograms};
use crate::fabric::switch::{Balance, Discipline, SwitchConfig};
use crate::fabric::topology::Topology;
use crate::host::hardware::Profile;
use crate::host::one_rma::RmaConfig;
use crate::program::{Cut, Doing, Fault, Mortal, Noted, Setup, Stalls, Start, What};
use crate::sim::{Config, Sim};
use crate::watch::trace::seed_of;
use adverb_nic::Mtu;
use adverb_rdma::seam::Note;
use adverb_switch::{MarkConfig, ProgramConfig};
use adverb_wire::Duration;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Programs that belong together, how they can be broken, and who judges them.
#[derive(Clone, Copy)]
pub struct System {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Ways to break it on purpose, each with its name and what it is.
    pub bugs: &'static [(&'static str, &'static str)],
    /// Its hosts have 1RMA NICs beside their queue pairs.
    pub one_rma: bool,
    /// Its programs for a fabric of so many hosts, broken in this way.
    pub make: fn(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made,
    /// The programs of the switch that host 0 is at, broken in this way; of a seed that gets none, no switch
    /// runs any. Where some run, the switch is started anew at times. There are at least three hosts.
    pub switch: Option<SwitchOf>,
    /// What else is random of the fabric and its NICs; it may do nothing.
    pub tune: fn(rng: &mut fastrand::Rng, config: &mut Config),
}

impl core::fmt::Debug for System {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "System({})", self.name)
    }
}

/// Makes the programs of a switch.
pub type SwitchOf = fn(rng: &mut fastrand::Rng, bug: Option<&str>) -> Vec<ProgramConfig>;

/// The programs of a seed.
pub struct Made {
    /// The programs.
    pub programs: Vec<Start>,
    /// Finds what is wrong with a run.
    pub judge: Judge,
    /// Whether what must come of the run has come, once all programs that do not serve have ended. The run
    /// goes on without faults until it has, for as long as programs may take to end.
    pub settled: Settled,
}

/// Finds what is wrong with a run; nothing, if all is well.
pub type Judge = Box<dyn Fn(&Run<'_>) -> Vec<String>>;

/// Whether a run that is nearly over has settled.
pub type Settled = fn(&Run<'_>) -> bool;

/// A run that is over.
pub struct Run<'a> {
    /// What programs noted, in order.
    pub notes: &'a [Noted],
    /// Each program, as it is in the end, and the number of its last life.
    pub programs: Vec<(&'a Doing, u32)>,
    /// Nothing was broken, dropped, held up or killed: no program may have failed.
    pub quiet: bool,
}

/// Virtual time with faults, and the longest that programs may take to end without, in ps.
const FAULTY_PS: u64 = 2_000_000_000_000;
const LIVE_PS: u64 = 600_000_000_000_000;
/// Within this time a switch with programs is started anew, in ps: most of what clients do lies there.
const SWITCHED_PS: u64 = 40_000_000_000;
/// Events of a run at most: NICs that go on for ever may do so without any time passing.
const EVENTS_MAX: u64 = 50_000_000;

/// A system's run of one seed, before it begins.
struct Plan {
    config: Config,
    faults: FaultPlan,
    setup: Setup,
    judge: Judge,
    settled: Settled,
    quiet: bool,
}

fn plan(system: &System, seed: u64, bug: Option<&str>) -> Plan {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, system.name, 0));
    let topology = match system.switch {
        Some(_) => random_rack(&mut rng),
        None => random_topology(&mut rng),
    };
    let mtu = *pick(&mut rng, &[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    let switch = random_switch(&mut rng, mtu, super::is_ring(&topology));
    let transport = random_transport(&mut rng, mtu, switch.classes, true);
    let quiet = rng.u32(0..8) == 0;
    let mut faults = if quiet { FaultPlan::default() } else { random_faults(&mut rng, &topology, seed) };
    if system.switch.is_some() {
        // The programs of a switch see damage, which they find by the ICRC; elsewhere it is as good as loss.
        // What they sent before they were started anew is late enough to meet what they send then.
        let late = if rng.bool() { 0.3 } else { 0.0 };
        for link in &mut faults.links {
            link.chances.bit_error *= 30.0;
            link.chances.reorder = link.chances.reorder.max(late);
            link.chances.reorder_ps = link.chances.reorder_ps.max(1) * 6;
        }
    }
    let hardware = if rng.u32(0..6) == 0 { random_hardware(&mut rng) } else { Profile::default() };
    let made = (system.make)(&mut rng, topology.hosts, bug);
    let hardware = random_cpu(&mut rng, hardware);
    let mut setup = Setup {
        stalls: (rng.u32(0..3) == 0).then(|| Stalls {
            chance: rng.f64() * 0.05,
            most_ps: *pick(&mut rng, &[1_000_000, 100_000_000, 5_000_000_000]),
        }),
        exchange_ps: *pick(&mut rng, &[1_000_000, 30_000_000, 500_000_000]),
        seed,
        programs: made.programs,
        ..Setup::default()
    };
    if quiet {
        setup.stalls = None;
    } else {
        befall(&mut rng, &mut setup, topology.hosts);
    }
    let (switch, hardware) = if quiet { roomy(switch) } else { (switch, hardware) };
    // Late packets are repaired soon, as programs' own timeouts are made for real hosts.
    let rto = Some(Duration::from_us(rng.u64(60..600)));
    let span = if quiet { 0 } else { SWITCHED_PS };
    let programs = system.switch.map(|make| SwitchPrograms {
        at: topology.switch_of(0).unwrap_or(0),
        programs: make(&mut rng, bug),
        restarts: random_restarts(&mut rng, span),
        cuts: if quiet { Vec::new() } else { random_cuts(&mut rng) },
        core: 0,
    });
    let programs = programs.filter(|switch| !switch.programs.is_empty());
    let second = programs.as_ref().and_then(|first| random_second(first, &topology, span, seed));
    let mut config = Config {
        switch,
        programs: programs.into_iter().chain(second).collect(),
        transport: crate::host::TransportConfig { rto, ..transport },
        hardware,
        payload: true,
        one_rma: system.one_rma.then(|| RmaConfig { beside_queues: true, ..RmaConfig::default() }),
        through_bytes: rng.u32(0..4) == 0,
        flow_bytes_max: 8,
        seed,
        ..Config::new(topology)
    };
    (system.tune)(&mut rng, &mut config);
    Plan { config, faults, setup, judge: made.judge, settled: made.settled, quiet }
}

/// A fabric with a switch and at least three hosts.
fn random_rack(rng: &mut fastrand::Rng) -> Topology {
    loop {
        let topology = random_topology(rng);
        if topology.hosts >= 3 && topology.switch_of(0).is_some() {
            return topology;
        }
    }
}

/// In half of the seeds, where the fabric has several switches, another one runs programs, too, that decide
/// nothing: it forwards, or marks. Its draws are its own.
fn random_second(
    first: &SwitchPrograms,
    topology: &Topology,
    span: u64,
    seed: u64,
) -> Option<SwitchPrograms> {
    let rng = &mut fastrand::Rng::with_seed(seed_of(seed, "second", 0));
    let others: Vec<u32> = (0..topology.switches).filter(|at| *at != first.at).collect();
    if others.is_empty() || rng.bool() {
        return None;
    }
    let mark = MarkConfig { every: NonZeroU32::new(rng.u32(1..20)), above: None };
    let programs = if rng.bool() { vec![ProgramConfig::Ecn(mark)] } else { Vec::new() };
    let restarts = random_restarts(rng, span);
    Some(SwitchPrograms { at: *pick(rng, &others), programs, restarts, cuts: Vec::new(), core: 0 })
}

/// When a switch is started anew, within so many ps.
fn random_restarts(rng: &mut fastrand::Rng, span: u64) -> Vec<Restart> {
    let count = if span > 0 && rng.bool() { rng.u32(1..=3) } else { 0 };
    let one = |rng: &mut fastrand::Rng| {
        let length = 10f64.powf(5.0 + 5.0 * rng.f64()) as u64;
        Restart { at: rng.u64(span / 2..span), length }
    };
    let mut restarts: Vec<Restart> = (0..count).map(|_| one(rng)).collect();
    restarts.sort_by_key(|restart| restart.at);
    restarts
}

/// Behind which frames a switch is started anew, of those behind which it awaits an answer.
fn random_cuts(rng: &mut fastrand::Rng) -> Vec<(u64, u64)> {
    let one = |rng: &mut fastrand::Rng| {
        let frame = 10f64.powf(2.5 * rng.f64()) as u64;
        (frame, 10f64.powf(5.0 + 3.0 * rng.f64()) as u64)
    };
    let mut cuts: Vec<(u64, u64)> = (0..rng.u32(0..=2)).map(|_| one(rng)).collect();
    cuts.sort_unstable();
    cuts
}

/// Switches that drop nothing and keep packets of a flow in order, and NICs that cost nothing. (A request
/// that others overtake waits for a timeout in some modes, which programs may find too long.)
fn roomy(switch: SwitchConfig) -> (SwitchConfig, Profile) {
    let discipline = Discipline::SharedBuffer { buffer: 64 << 20, alpha: f64::INFINITY };
    (SwitchConfig { discipline, pfc: [None; 8], balance: Balance::Ecmp, ..switch }, Profile::default())
}

/// The same hardware with random processors.
fn random_cpu(rng: &mut fastrand::Rng, hardware: Profile) -> Profile {
    if rng.u32(0..4) == 0 {
        return hardware;
    }
    let mut cost = |most: u64| if rng.bool() { rng.u64(0..most) } else { 0 };
    Profile {
        cpu_switch: cost(2_000_000),
        cpu_wake: cost(10_000_000),
        cpu_post: cost(500_000),
        cpu_poll: cost(3_000_000),
        cpu_spin: cost(2_000_000),
        cpu_copy: 8_000_000_000_000u64.checked_div(cost(20_000)).unwrap_or(0),
        cpu_cores: if cost(4) > 0 { cost(3) + 1 } else { 0 },
        cpu_slice: Some(cost(3_000_000_000)).filter(|slice| *slice > 1_000_000).unwrap_or(0),
        ..hardware
    }
}

/// Kills, stops and crashes.
fn befall(rng: &mut fastrand::Rng, setup: &mut Setup, hosts: u32) {
    // Most of what programs do, they do early; some of it takes long.
    let span = 10f64.powf(7.0 + 4.0 * rng.f64()) as u64;
    let steps = 10f64.powf(1.0 + 2.5 * rng.f64()) as u64;
    for (n, program) in setup.programs.iter().enumerate() {
        let n = n as u32;
        if rng.u32(0..4) == 0 {
            let at = rng.u64(0..span);
            let until = at + rng.u64(0..=span);
            setup.faults.push(Fault { at, what: What::Stop(n) });
            setup.faults.push(Fault { at: until, what: What::Continue(n) });
        }
        if program.mortal == Mortal::Never || rng.bool() {
            continue;
        }
        for _ in 0..rng.u32(1..=3) {
            let again = (program.mortal == Mortal::Again).then(|| rng.u64(0..=span));
            if rng.u32(0..3) == 0 {
                setup.faults.push(Fault { at: rng.u64(0..span), what: What::Kill(n, again) });
            } else {
                setup.cuts.push(Cut { program: n, step: rng.u64(0..steps), again });
            }
        }
    }
    let crashes = |host: &u32| {
        setup.programs.iter().all(|p| p.host != *host || p.mortal == Mortal::Again)
            && setup.programs.iter().any(|p| p.host == *host)
    };
    let mortal: Vec<u32> = (0..hosts).filter(crashes).collect();
    if !mortal.is_empty() && rng.u32(0..3) == 0 {
        let what = What::Crash(*pick(rng, &mortal), rng.u64(0..=span));
        setup.faults.push(Fault { at: rng.u64(0..span), what });
    }
}

impl System {
    /// Whether it can be broken in this way.
    pub fn has_bug(&self, name: &str) -> bool {
        self.bugs.iter().any(|(bug, _)| *bug == name)
    }

    /// Runs a seed.
    pub fn run_seed(&self, seed: u64, bug: Option<&str>) -> Outcome {
        self.run(seed, bug, &mut |_| {}).0
    }

    /// Runs a seed again and shows all that happens, a line each; see [`super::replay`].
    pub fn replay(&self, seed: u64, bug: Option<&str>, show: &mut dyn FnMut(&str)) -> Outcome {
        self.replay_traced(seed, bug, false, show).0
    }

    /// The same, and the simulation as it ended; `traced` has it keep what a trace is made of.
    pub fn replay_traced(
        &self,
        seed: u64,
        bug: Option<&str>,
        traced: bool,
        show: &mut dyn FnMut(&str),
    ) -> (Outcome, Option<Sim>) {
        self.run(seed, bug, &mut |sim| show_step(sim, traced, show))
    }

    /// Runs a seed; `step` sees the simulation before its first event and after every one.
    fn run(&self, seed: u64, bug: Option<&str>, step: &mut dyn FnMut(&mut Sim)) -> (Outcome, Option<Sim>) {
        let Plan { config, faults, setup, judge, settled, quiet } = plan(self, seed, bug);
        let mut outcome = Outcome::new(seed);
        let mut sim = match Sim::new(config) {
            Ok(sim) => sim,
            Err(why) => {
                outcome.failures.push(why.to_string());
                return (outcome, None);
            }
        };
        sim.set_programs(setup);
        sim.set_faults(faults);
        step(&mut sim);
        let over = |sim: &Sim| sim.programs_ended() || !sim.program_failures().is_empty();
        let mut events = 0;
        let mut go_on = |sim: &mut Sim, end| {
            events += 1;
            events <= EVENTS_MAX && !over(sim) && sim.run(end, 1)
        };
        while go_on(&mut sim, FAULTY_PS) {
            step(&mut sim);
        }
        sim.repair();
        while go_on(&mut sim, FAULTY_PS + LIVE_PS) {
            step(&mut sim);
        }
        if events > EVENTS_MAX {
            outcome.failures.push(format!("after {EVENTS_MAX} events the run has not ended"));
        }
        step(&mut sim);
        let settled = sim.programs_ended() && settle(&mut sim, settled, step);
        sim.check_invariants();
        outcome.failures.extend_from_slice(sim.program_failures());
        outcome.failures.append(&mut judge(&run_of(&sim, quiet)));
        if !quiet {
            outcome.noted = ended(sim.notes());
        }
        if sim.programs_ended() && !settled && outcome.failures.is_empty() {
            outcome.failures.push("all programs have ended, but not all that must come of them comes".into());
        }
        for (name, doing, ..) in sim.programs() {
            match doing {
                Doing::Ended(Err(why)) if quiet => {
                    outcome.failures.push(format!("{name} failed, though nothing was wrong: {why}"));
                }
                _ => {}
            }
        }
        if outcome.failures.is_empty() && !sim.programs_ended() {
            let still = |(name, doing, lives, _): (&str, &Doing, u32, u64)| {
                matches!(doing, Doing::Runs | Doing::Waits).then(|| format!("{name} (life {lives})"))
            };
            let still: Vec<String> = sim.programs().filter_map(still).collect();
            outcome.failures.push(format!("without faults, these do not end: {}", still.join(", ")));
        }
        outcome.completed = sim.program_calls();
        outcome.dead = sim.programs().map(|(_, doing, lives, _)| killed(doing, lives)).sum();
        let s = sim.stats();
        outcome.faults = s.lost + s.corrupted + s.duplicated + s.drops;
        outcome.trace = sim.trace_hash();
        let mut switches = sim.all_switch_counters();
        (outcome.switch, outcome.restarts) = switches.next().unwrap_or_default();
        outcome.second = switches.next().unwrap_or_default();
        drop(switches);
        (outcome, Some(sim))
    }
}

fn run_of(sim: &Sim, quiet: bool) -> Run<'_> {
    let programs = sim.programs().map(|(_, doing, lives, _)| (doing, lives)).collect();
    Run { notes: sim.notes(), programs, quiet }
}

/// How many operations have ended, by name.
fn ended(notes: &[Noted]) -> BTreeMap<&'static str, u64> {
    let (mut open, mut counts) = (BTreeMap::new(), BTreeMap::new());
    for noted in notes {
        let key = |operation: u64| (noted.program, noted.life, operation);
        match &noted.note {
            Note::Begin { operation, name, .. } => drop(open.insert(key(*operation), *name)),
            Note::End { operation, .. } => {
                let name = open.remove(&key(*operation));
                name.into_iter().for_each(|name| *counts.entry(name).or_default() += 1);
            }
            Note::Void { .. } | Note::Say(_) => {}
        }
    }
    counts
}

/// Goes on until the run has settled; false if it does not.
fn settle(sim: &mut Sim, settled: Settled, step: &mut dyn FnMut(&mut Sim)) -> bool {
    // Looked at rarely: it goes through all notes.
    let mut wait = 1_000_000_000;
    let end = sim.now().as_ps() + LIVE_PS;
    while !settled(&run_of(sim, false)) {
        let until = sim.now().as_ps() + wait;
        if until > end || !sim.program_failures().is_empty() {
            return false;
        }
        while sim.run(until, 1) {
            step(sim);
        }
        wait += wait / 2;
    }
    true
}

/// Lives of a program that ended by being killed.
fn killed(doing: &Doing, lives: u32) -> u32 {
    if matches!(doing, Doing::Ended(_)) { lives - 1 } else { lives }
}
