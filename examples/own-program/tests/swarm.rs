//! A thousand networks, with loss, reordering, crashes and kills, each from its seed; and one of them step by
//! step:
//!
//!     SEED=17 cargo test replay -- --nocapture
//!
//! With `BUG=careless` the replay is of the broken program.

use adverb_rdma::Rdma;
use adverb_sim::linear::WORK_MAX;
use adverb_sim::linear::model::{Word, WordCall};
use adverb_sim::program::history::{Told, history};
use adverb_sim::program::{Mortal, Start};
use adverb_sim::swarm::programs::{Made, Run, System};
use own_program::{How, serve, take};

const NUMBERS: System = System {
    name: "numbers",
    about: "numbers that are handed out once, by a word of remote memory",
    bugs: &[("careless", "a number is taken with a READ and a WRITE instead of an atomic")],
    one_rma: false,
    make,
    switch: None,
    tune: |_, _| {},
};

/// The programs of a seed: a home, and some clients on other hosts, which may be killed and come back.
fn make(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let how = if bug == Some("careless") { How::Carelessly } else { How::Atomically };
    let home = rng.u32(0..hosts);
    let home_of = |rdma: Rdma| serve(rdma, "numbers");
    let mut programs = vec![Start::new("home", home, home_of).serving().mortal(Mortal::Never)];
    for n in 0..rng.u32(1..=4) {
        let (count, host) = (rng.u32(1..20), (home + rng.u32(1..hosts)) % hosts);
        let client =
            move |rdma: Rdma| async move { take(rdma, "numbers", count, how).await.map(drop) };
        programs.push(Start::new(format!("client {n}"), host, client));
    }
    Made { programs, judge: Box::new(judge), settled: |_| true }
}

/// Taking a number is adding one to a word: is there an order of all takings that explains what each got?
fn judge(run: &Run<'_>) -> Vec<String> {
    let read = |told: &Told<'_>| match (told.name, told.results) {
        ("take", None) => Ok(Some((WordCall::Add(1), None))),
        ("take", Some([number])) => Ok(Some((WordCall::Add(1), Some(*number)))),
        other => Err(format!("a note that nobody writes: {other:?}")),
    };
    match history::<Word>(run.notes, read) {
        Ok(history) => history.check(&Word::default(), WORK_MAX).failure().into_iter().collect(),
        Err(why) => vec![why],
    }
}

/// How to see a seed step by step.
fn replay_line(seed: u64, bug: Option<&str>) -> String {
    let bug = bug.map_or(String::new(), |bug| format!("BUG={bug} "));
    format!("{bug}SEED={seed} cargo test replay -- --nocapture")
}

#[test]
fn a_thousand_seeds_pass() {
    let (mut killed, mut faults) = (0, 0);
    for seed in 0..1_000 {
        let outcome = NUMBERS.run_seed(seed, None);
        let failures = outcome.failures.join("\n");
        assert!(failures.is_empty(), "seed {seed}: {failures}\nreplay: {}", replay_line(seed, None));
        killed += outcome.dead;
        faults += outcome.faults;
    }
    assert!(killed > 100 && faults > 1_000, "{killed} programs killed, {faults} packets lost or damaged");
    println!("1000 seeds pass; {killed} programs killed, {faults} packets lost, damaged, doubled or dropped");
    println!("replay: {}", replay_line(0, None));
}

#[test]
fn the_careless_client_is_found() {
    let broken = |seed| NUMBERS.run_seed(seed, Some("careless"));
    let found = (0..1_000).map(broken).find(|outcome| !outcome.failures.is_empty());
    let found = found.expect("two clients that take the same number");
    println!("seed {}: {}", found.seed, found.failures.join("\n"));
    println!("replay: {}", replay_line(found.seed, Some("careless")));
}

#[test]
fn replay() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let bug = std::env::var("BUG").ok();
    let seed = seed.parse().expect("SEED is a number");
    let outcome = NUMBERS.replay(seed, bug.as_deref(), &mut |line| println!("{line}"));
    let failures = outcome.failures.join("\n");
    println!("seed {seed}: {}", if failures.is_empty() { "nothing wrong" } else { &failures });
}
