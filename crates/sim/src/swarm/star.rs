//! A swarm of StaR: random fabrics and faults as ever, and on them NICs that offer StaR in random roles, with
//! random lifetimes, thresholds and hellos, beside NICs that know nothing of it. The oracle is that of plain
//! queue pairs: a program must not see the difference. Sides are told to change their stack or role at any
//! time, and programs are killed. Some NICs have the registry of what may leave: sides grant memory and take
//! it back, and agents are started anew. What a run must show beside the oracle: the memory of the stateless
//! half is as it was at the start, nothing lands in the memory of a program that is gone, and in the end
//! every connection rests.

use super::{
    FAULTY_PS, Made, Outcome, is_ring, pick, random_faults, random_switch, random_topology, random_transport,
    random_work, run_made, show_step,
};
use crate::fabric::faults::FaultPlan;
use crate::sim::{Config, Sim};
use crate::watch::oracle::Work;
use crate::watch::oracle::changes::{Change, What};
use crate::watch::sabotage::Sabotage;
use crate::watch::trace::seed_of;
use adverb_nic::{Mtu, StarConfig, StarSide};
use adverb_wire::Duration;
use adverb_wire::star::Wish;
use std::collections::BTreeMap;

/// The fabric, faults and work of a seed.
pub fn scenario(seed: u64) -> (Config, FaultPlan, Work) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star swarm", 0));
    let topology = random_topology(&mut rng);
    let mtu = *pick(&mut rng, &[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    let switch = random_switch(&mut rng, mtu, is_ring(&topology));
    let mut transport = random_transport(&mut rng, mtu, switch.classes, true);
    // Who gets plain RC may agree on IRN. A peer that is no StaR's must not be taken to have agreed before.
    transport.irn =
        transport.irn.filter(|_| rng.u32(0..4) == 0).map(|irn| adverb_nic::IrnConfig { agreed: None, ..irn });
    let mut faults = random_faults(&mut rng, &topology, seed);
    // Copies come later than some lifetimes last.
    let later = rng.u64(1..40);
    faults.links.iter_mut().for_each(|link| link.chances.reorder_ps *= later);
    let work = random_work(&mut rng);
    let mut star_of = random_roles(&mut rng, topology.hosts);
    let mut own = fastrand::Rng::with_seed(seed_of(seed, "star changes", 1));
    let patience = random_patience(&mut own);
    star_of.iter_mut().flatten().for_each(|star| *star = patience(*star));
    random_extensions(seed, &mut star_of);
    random_registries(seed, &mut star_of);
    random_trust(seed, &mut star_of);
    let config = Config {
        switch,
        transport,
        star_of,
        payload: true,
        through_bytes: true,
        flow_bytes_max: 8,
        seed,
        ..Config::new(topology)
    };
    (config, faults, work)
}

/// What each host offers: mostly roles that fit, now and then none that do, or none at all.
fn random_roles(rng: &mut fastrand::Rng, hosts: u32) -> Vec<Option<StarConfig>> {
    let common = StarConfig {
        lifetime: Duration::from_us(*pick(rng, &[30, 320, 1_000, 20_000])),
        hello_interval: Duration::from_us(*pick(rng, &[20, 100, 1_000])),
        hello_tries: rng.u8(2..6),
        ..StarConfig::default()
    };
    let kind = rng.u32(0..5);
    (0..hosts)
        .map(|h| {
            let wish = match kind {
                // Every second one is a server: neighbours fit.
                0 | 1 if h % 2 == 0 => Wish::Server,
                0 | 1 => Wish::Client,
                2 => Wish::Auto,
                _ => *pick(rng, &[Wish::Server, Wish::Client, Wish::Auto]),
            };
            let knows = kind < 4 || rng.bool();
            knows.then(|| StarConfig { wish, threshold: rng.u32(0..3), ..common })
        })
        .collect()
}

/// Who wants completions that come with their data, and GDs for several packets: nobody, all, or some.
fn random_extensions(seed: u64, star_of: &mut [Option<StarConfig>]) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star extensions", 0));
    let all = [*pick(&mut rng, &[0, 2, 3]), *pick(&mut rng, &[0, 2, 3])];
    for star in star_of.iter_mut().flatten() {
        let [merge, burst] = all.map(|of_three| rng.u32(0..3) < of_three);
        *star = StarConfig { merge, burst, ..*star };
    }
}

/// Who wants addresses of what is posted to travel: in one seed of nine all or some, else nobody.
fn random_trust(seed: u64, star_of: &mut [Option<StarConfig>]) {
    if !seed.is_multiple_of(3) {
        return;
    }
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star trust", 0));
    let of_three = *pick(&mut rng, &[0, 0, 0, 0, 2, 3]);
    star_of.iter_mut().flatten().for_each(|star| star.carried = rng.u32(0..3) < of_three);
}

/// Who lets only that leave which a rule allows: nobody in most seeds, else most; some with hardly any room.
fn random_registries(seed: u64, star_of: &mut [Option<StarConfig>]) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star registries", 0));
    if rng.u32(0..5) > 1 {
        return;
    }
    for star in star_of.iter_mut().flatten() {
        let room = *pick(&mut rng, &[1, 3, 64, 64, 65_536]);
        star.registry = (rng.u32(0..6) > 0).then_some(room);
    }
}

/// What befalls the rules of a seed: regions taken back, and agents that end and are started anew.
fn rule_changes(seed: u64, work: &Work) -> Vec<Change> {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star rules", 0));
    let sides = 2 * work.connections;
    let longest = *pick(&mut rng, &[FAULTY_PS / 100, FAULTY_PS / 20, FAULTY_PS / 3]);
    let mut list = Vec::new();
    for _ in 0..*pick(&mut rng, &[0, 0, 1, 2]) {
        list.push(Change { at: rng.u64(0..longest), side: rng.u32(0..sides), what: What::Withdraws });
    }
    for _ in 0..*pick(&mut rng, &[0, 0, 1, 3]) {
        let (at, side) = (rng.u64(0..longest), rng.u32(0..sides));
        let gone = *pick(&mut rng, &[1_000, 2_000_000, 50_000_000]);
        list.push(Change { at, side, what: What::AgentEnds });
        list.push(Change { at: at + rng.u64(1..=gone), side, what: What::AgentBegins });
    }
    list
}

/// How long the sides of a seed wait for one another before a change, and how eager their policies are.
fn random_patience(rng: &mut fastrand::Rng) -> impl Fn(StarConfig) -> StarConfig + use<> {
    let drain = Duration::from_us(*pick(rng, &[20, 200, 1_000, 10_000]));
    let compare = Duration::from_us(*pick(rng, &[0, 0, 2, 20, 100]));
    let hold = Duration::from_us(*pick(rng, &[10, 200, 2_000]));
    move |star| StarConfig { drain, compare, hold, ..star }
}

/// What befalls the sides of a seed: commands, now and then both sides' at once, and a program's death.
pub fn changes(seed: u64, work: &Work) -> Vec<Change> {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "star changes", 0));
    let sides = 2 * work.connections;
    let longest = *pick(&mut rng, &[FAULTY_PS / 20, FAULTY_PS / 3, 2 * FAULTY_PS]);
    let mut list = Vec::new();
    for _ in 0..*pick(&mut rng, &[0, 1, 3, 10, 30]) {
        let (at, side) = (rng.u64(0..longest), rng.u32(0..sides));
        let mut role = || *pick(&mut rng, &[StarSide::Stateless, StarSide::Stateful, StarSide::Plain]);
        let (one, other) = (role(), role());
        list.push(Change { at, side, what: What::Becomes(one) });
        if rng.u32(0..4) == 0 {
            list.push(Change { at, side: side ^ 1, what: What::Becomes(other) });
        }
    }
    if rng.u32(0..5) == 0 {
        list.push(Change { at: rng.u64(0..longest), side: rng.u32(0..sides), what: What::Killed });
    }
    list
}

/// What befell registries, by name: in some hundred seeds all of it.
pub const OF_REGISTRIES: [&str; 8] = [
    "packets that rules allowed",
    "packets that no rule allowed",
    "regions taken back",
    "agents started anew",
    "connections that found a table full",
    "requests that failed for want of a rule",
    "windows bound",
    "windows ended",
];

/// What befell a run's registries.
pub(super) fn told_of_registries(sim: &Sim) -> BTreeMap<&'static str, u64> {
    let counters = || sim.hosts().iter().map(|host| host.nic.counters());
    let [taken_back, restarts, kept, refused, bound, ended] =
        sim.oracle().map_or([0; 6], |oracle| oracle.rule_counts());
    let counts = [
        counters().map(|nic| nic.star_egress_allowed).sum(),
        counters().map(|nic| nic.star_egress_refused).sum(),
        taken_back,
        restarts,
        kept,
        refused,
        bound,
        ended,
    ];
    OF_REGISTRIES.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

fn made(seed: u64) -> Made {
    let made: Made = scenario(seed).into();
    let mut changes = changes(seed, &made.work);
    if made.config.star_of.iter().flatten().any(|star| star.registry.is_some()) {
        changes.extend(rule_changes(seed, &made.work));
    }
    Made { changes, ..made }
}

/// Runs a seed.
pub fn run_seed(seed: u64) -> Outcome {
    run_broken(seed, None)
}

/// Runs a seed on NICs that are broken on purpose, if `sabotage` says so.
pub fn run_broken(seed: u64, sabotage: Option<Sabotage>) -> Outcome {
    run_made(seed, made(seed), sabotage, &mut |_| {}).0
}

/// Runs a seed; `look` sees the simulation before its first event and after every one.
pub fn run_seen(seed: u64, look: &mut dyn FnMut(&Sim)) -> Outcome {
    run_made(seed, made(seed), None, &mut |sim| look(sim)).0
}

/// Runs a seed again and shows all that happens, a line each; see [`super::replay`].
pub fn replay(
    seed: u64,
    sabotage: Option<Sabotage>,
    traced: bool,
    show: &mut dyn FnMut(&str),
) -> (Outcome, Option<Sim>) {
    run_made(seed, made(seed), sabotage, &mut |sim| show_step(sim, traced, show))
}
