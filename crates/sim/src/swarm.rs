//! Swarms: random fabrics, random faults, random work, all from one seed, under the oracle. First with
//! faults: nothing wrong may happen. Then without: everything must end.

use crate::faults::{Chances, Faults, Outage};
use crate::host::Transport;
use crate::oracle::Work;
use crate::sim::{Config, Sim};
use crate::switch::pfc::Pfc;
use crate::switch::{Balance, Discipline, SwitchConfig};
use crate::topology::{CableKind, Topology};
use crate::trace::seed_of;
use adverb_nic::Mtu;
use adverb_wire::Duration;

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
}

/// Virtual time with faults, and the longest that recovery may take without, in ps.
const FAULTY_PS: u64 = 3_000_000_000;
const LIVE_PS: u64 = 4_000_000_000_000;

/// The fabric, faults and work of a seed.
pub fn scenario(seed: u64) -> (Config, Faults, Work) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "swarm", 0));
    let rate = *pick(&mut rng, &[10_000_000_000, 40_000_000_000, 100_000_000_000]);
    let cable = CableKind { rate, delay: Duration::from_ns(rng.u64(100..3000)) };
    let topology = match rng.u32(0..5) {
        0 => Topology::two_hosts(cable),
        1 => Topology::star(rng.u32(2..6), cable),
        2 => Topology::dumbbell(2, 2, cable, CableKind { rate: rate / 2, ..cable }),
        3 => Topology::leaf_spine(2, 2, 2, cable, cable),
        _ => Topology::fat_tree(4, cable).unwrap_or_else(|_| Topology::two_hosts(cable)),
    };
    let mtu = *pick(&mut rng, &[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    let packet = mtu.bytes() + 100;
    let buffer = packet * rng.u32(8..64);
    let mut switch = SwitchConfig {
        discipline: if rng.bool() {
            Discipline::InputQueued { buffer }
        } else {
            Discipline::SharedBuffer {
                buffer: buffer * 4,
                alpha: *pick(&mut rng, &[0.5, 1.0, f64::INFINITY]),
            }
        },
        balance: if rng.u32(0..4) == 0 { Balance::Spray } else { Balance::Ecmp },
        ..SwitchConfig::default()
    };
    if rng.bool() {
        switch.pfc[0] = Some(Pfc { xoff: buffer / 2, xon: buffer / 4, headroom: buffer });
    }
    let transport = Transport {
        mtu,
        timeout: rng.u8(4..8),
        window: rng.u32(8..512),
        ack_every: rng.u32(0..4),
        ..Transport::default()
    };
    let mut faults = Faults::default();
    for link in 0..topology.links() as u64 {
        let chances = if rng.bool() { random_chances(&mut rng) } else { Chances::default() };
        faults.chances.push((chances, fastrand::Rng::with_seed(seed_of(seed, "link", link))));
    }
    if rng.u32(0..3) == 0 {
        let cable = rng.u32(0..topology.cables.len() as u32);
        let at = rng.u64(0..FAULTY_PS / 2);
        faults.outages.push(Outage { at, cable, repair: false });
        faults.outages.push(Outage { at: at + rng.u64(1..500_000_000), cable, repair: true });
    }
    let work = Work {
        connections: rng.u32(1..=3),
        requests: rng.u32(5..40),
        gap_ps: *pick(&mut rng, &[1_000, 1_000_000, 50_000_000]),
    };
    let config = Config {
        switch,
        transport,
        payload: true,
        through_bytes: true,
        flow_bytes_max: 8,
        seed,
        ..Config::new(topology)
    };
    (config, faults, work)
}

fn random_chances(rng: &mut fastrand::Rng) -> Chances {
    let mut some = |most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    let (loss, bit_error, duplicate, reorder) = (some(0.05), some(1e-6), some(0.05), some(0.1));
    Chances { loss, bit_error, duplicate, reorder, reorder_ps: rng.u64(0..30_000_000), jitter_ps: 0 }
}

fn pick<'a, T>(rng: &mut fastrand::Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(0..of.len())]
}

/// Runs a seed.
pub fn run_seed(seed: u64) -> Outcome {
    run_seed_with(seed, None)
}

/// Runs a seed again and shows every arrival of a packet: time, link, packet, fate.
pub fn replay(seed: u64, show: &mut dyn FnMut(&str)) -> Outcome {
    run_seed_with(seed, Some(show))
}

fn run_seed_with(seed: u64, mut show: Option<&mut dyn FnMut(&str)>) -> Outcome {
    let (config, faults, work) = scenario(seed);
    let mut outcome = Outcome { seed, failures: Vec::new(), trace: 0, completed: 0, dead: 0, faults: 0 };
    let made = Sim::new(config).map_err(|e| e.to_string()).and_then(|mut sim| {
        sim.set_oracle(&work, seed_of(seed, "oracle", 0)).map_err(|e| format!("{e:?}"))?;
        Ok(sim)
    });
    let mut sim = match made {
        Ok(sim) => sim,
        Err(why) => {
            outcome.failures.push(why);
            return outcome;
        }
    };
    sim.set_faults(faults);
    if show.is_some() {
        sim.watch();
    }
    let mut step = |sim: &mut Sim| {
        sim.check_invariants();
        if let Some(show) = &mut show {
            sim.take_log().iter().for_each(|line| show(line));
        }
    };
    let failed = |sim: &Sim| sim.oracle().is_some_and(|o| !o.failures().is_empty());
    while sim.run(FAULTY_PS, 1) && !failed(&sim) {
        step(&mut sim);
    }
    sim.repair();
    while sim.run(FAULTY_PS + LIVE_PS, 1) && !failed(&sim) {
        step(&mut sim);
        if sim.oracle().is_some_and(|o| o.is_done()) {
            break;
        }
    }
    outcome.failures = sim.oracle_verdict();
    if let Some(oracle) = sim.oracle() {
        if !oracle.is_done() && outcome.failures.is_empty() {
            outcome.failures.push("without faults, requests are still outstanding".into());
            if let Some(cycle) = sim.deadlock() {
                outcome.failures.push(format!("PFC deadlock: links {cycle:?}"));
            }
        }
        outcome.completed = oracle.completed();
        outcome.dead = oracle.dead();
    }
    let s = sim.stats();
    outcome.faults = s.lost + s.corrupted + s.duplicated + s.drops;
    outcome.trace = sim.trace_hash();
    outcome
}
