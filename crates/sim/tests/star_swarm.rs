//! StaR on random fabrics, in random roles: the oracle finds nothing, and finds what is put there.
#![allow(clippy::print_stdout, reason = "a test")]

use adverb_nic::{Counters, StarConfig};
use adverb_sim::oracle::Work;
use adverb_sim::oracle::changes::{Change, What};
use adverb_sim::sabotage::Sabotage;
use adverb_sim::swarm::star::{OF_REGISTRIES, changes, replay, run_broken, run_seed, run_seen, scenario};
use adverb_sim::{CableKind, Config, Sim, Topology};
use adverb_wire::Duration;
use adverb_wire::star::Wish;
use std::collections::BTreeMap;

/// One of the NIC's counters.
type Count = fn(&Counters) -> u64;

/// Sums of the hosts' counters at the end of a seed.
fn counted(seed: u64, of: &[Count]) -> (Vec<String>, u64, Vec<u64>) {
    let mut sums = vec![0; of.len()];
    let outcome = run_seen(seed, &mut |sim| {
        for (sum, count) in sums.iter_mut().zip(of) {
            *sum = (0..sim.hosts().len() as u32).map(|h| count(sim.nic_counters(h))).sum();
        }
    });
    (outcome.failures, outcome.completed, sums)
}

#[test]
fn seeds_pass_and_come_to_everything() {
    let of: [(&str, Count); 20] = [
        ("agreed", |c| c.star_agreed),
        ("fell back", |c| c.star_fell_back),
        ("conflicts", |c| c.star_role_conflicts),
        ("executed", |c| c.star_executed),
        ("duplicates", |c| c.star_duplicate),
        ("expired", |c| c.star_drop_expired),
        ("not posted", |c| c.star_nak_not_posted),
        ("out of order", |c| c.star_out_of_order),
        ("completions twice", |c| c.star_cqe_duplicate),
        ("requests twice", |c| c.star_wqe_duplicate),
        ("to StaR", |c| c.star_to_stateless),
        ("to plain RC", |c| c.star_to_rc),
        ("refused", |c| c.star_switch_refused),
        ("aborted", |c| c.star_switch_aborted),
        ("with their data", |c| c.star_merged),
        ("before their turn", |c| c.star_merge_early),
        ("acknowledged by data", |c| c.star_heard_by_data),
        ("asked for several", |c| c.star_bursts),
        ("by address", |c| c.star_carried),
        ("of an earlier stack", |c| c.star_drop_earlier + c.star_drop_not_live),
    ];
    let (mut completed, mut sums, mut wrong) = (0, [0; 20], Vec::new());
    // In two of the others a refused request is the last thing to happen; in the third a side fails while it
    // brings the connection to rest, and its peer wants another change.
    for seed in (0..150).chain([5700, 11479, 19009]) {
        let (failures, done, counts) = counted(seed, &of.map(|(_, count)| count));
        wrong.extend(failures.first().map(|failure| format!("seed {seed}: {failure}")));
        completed += done;
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(completed > 4_000, "{completed} requests");
    for ((name, _), sum) in of.iter().zip(sums) {
        assert!(sum > 5, "{name}: {sum} in 150 seeds");
    }
}

/// In a share of the seeds NICs have the registry: rules come, are taken back, find no room and come again,
/// under loss; what they allow leaves, and what none allows does not.
#[test]
fn registries_are_asked_and_refuse() {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 150..300 {
        let outcome = run_seed(seed);
        assert_eq!(outcome.failures, Vec::<String>::new(), "seed {seed}");
        outcome.noted.into_iter().for_each(|(name, count)| *sums.entry(name).or_default() += count);
    }
    println!("{sums:?}");
    for name in OF_REGISTRIES {
        assert!(sums.get(name).is_some_and(|count| *count > 5), "{name}: {sums:?}");
    }
}

/// Found when the swarm began to draw windows. In 1172 and 3308 a server's request was refused for want of a
/// rule, and those that it had told behind it were executed all the same. In 3744 plain RC went back to a
/// bind, which was done, and would have gone on from there.
#[test]
fn seeds_that_windows_failed_pass() {
    for seed in [1172, 3308, 3744] {
        assert_eq!(run_seed(seed).failures, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_seed_replays() {
    for seed in 0..10 {
        assert_eq!(run_seed(seed), run_seed(seed));
    }
    let mut lines = Vec::new();
    let (shown, _) = replay(3, None, false, &mut |line| lines.push(line.to_owned()));
    assert_eq!(shown, run_seed(3), "watching changes nothing");
    assert!(lines.len() as u64 > shown.completed);
}

#[test]
fn what_can_be_offered_is_offered_now_one_way_now_another() {
    let offers: Vec<_> = (0..100).flat_map(|seed| scenario(seed).0.star_of).collect();
    for wish in [Wish::Server, Wish::Client, Wish::Auto] {
        assert!(offers.iter().flatten().filter(|offer| offer.wish == wish).count() > 20, "{wish:?}");
    }
    assert!(offers.iter().filter(|offer| offer.is_none()).count() > 10);
}

#[test]
fn sides_change_and_programs_are_killed() {
    let drawn: Vec<_> = (0..200).map(|seed| changes(seed, &scenario(seed).2)).collect();
    let has_killed = |list: &&Vec<Change>| list.iter().any(|change| change.what == What::Killed);
    assert!(drawn.iter().filter(has_killed).count() > 20);
    assert!(drawn.iter().filter(|list| list.len() > 10).count() > 20);
    assert!(drawn.iter().any(|list| list.is_empty()), "and now and then nothing happens");
}

/// A way that takes longer than the lifetime: every copy comes too late, and whoever goes on asking would ask
/// for ever. Seed 21 of this swarm found it when it drew lifetimes of 10 us.
#[test]
fn requests_that_always_come_too_late_fail() {
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_us(30) };
    let offer = |wish| Some(StarConfig { wish, lifetime: Duration::from_us(10), ..StarConfig::default() });
    let config = Config {
        payload: true,
        flow_bytes_max: 8,
        star_of: vec![offer(Wish::Server), offer(Wish::Client)],
        ..Config::new(Topology::two_hosts(cable))
    };
    let mut sim = Sim::new(config).unwrap();
    sim.set_oracle(&Work { connections: 1, requests: 20, gap_ps: 1_000_000, repost_ps: 0 }, 5).unwrap();
    sim.run(1_000_000_000_000, u64::MAX);
    let oracle = sim.oracle().unwrap();
    assert!(oracle.is_done() && oracle.dead() == 2, "{} sides gave up", oracle.dead());
    assert_eq!(sim.oracle_verdict(), Vec::<String>::new());
}

/// Each mistake that StaR's NICs could make is found, and none where none is made.
#[test]
fn a_broken_nic_is_found() {
    // StaR's first.
    for (name, kind) in Sabotage::STAR.into_iter().chain(Sabotage::ALL) {
        // Where those are found that few seeds show: the rest is time.
        let first = match kind {
            Sabotage::StarLate => 50,
            Sabotage::StarPlace => 1250,
            Sabotage::StarAttempts => 150,
            Sabotage::StarDead => 440,
            Sabotage::StarRefusal => 2300,
            Sabotage::StarMerge => 700,
            Sabotage::StarLife => 3050,
            _ => 0,
        };
        let found =
            (first..first + 1000).map(|seed| run_broken(seed, Some(kind))).find(|o| !o.failures.is_empty());
        let found = found.unwrap_or_else(|| panic!("{name} is not found"));
        println!("{name}: seed {}, {}", found.seed, found.failures[0]);
        assert_eq!(run_seed(found.seed).failures, Vec::<String>::new(), "{name}");
    }
}
