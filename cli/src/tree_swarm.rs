//! `adverb swarm --app tree`: clients of a tree in remote memory, with every fault, beside a switch that
//! decides the atomics of its locks or none. Each key is a register, scans read each key of their range, and
//! no lock has two holders.

use crate::switch_swarm::{SERVER, beside, plain};
use crate::systems::connect_within;
use adverb_apps::{locks, tree};
use adverb_rdma::seam::Note;
use adverb_rdma::{Duration, Rdma};
use adverb_sim::linear::model::{Tagged, TaggedAnswer, TaggedCall, Word, WordCall};
use adverb_sim::linear::{Model, WORK_MAX};
use adverb_sim::program::Start;
use adverb_sim::program::history::{Told, history};
use adverb_sim::swarm::programs::{Made, Run, System};

/// The tree.
pub const TREE: System = System {
    name: "tree",
    about: "a B+tree in remote memory, beside a switch that decides the atomics of its locks or none",
    bugs: &[
        ("early-release", "a lock is released before the page is written"),
        ("no-fence", "a lock is taken over while its holder's queue pair lives"),
        ("no-sibling", "the left half of a split leads past its sibling"),
        ("torn-entry", "entries are believed without their versions and CRC"),
    ],
    one_rma: false,
    make,
    switch: Some(beside),
    tune: plain,
};

/// What must have happened where there were faults.
pub const NOTED: [&str; 11] =
    ["put", "get", "remove", "seen", "scan", "split", "raise", "heal", "move-right", "torn", "take-over"];

fn make(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = match bug {
        Some("early-release") => tree::Bug::EarlyRelease,
        Some("no-fence") => tree::Bug::NoFence,
        Some("no-sibling") => tree::Bug::NoSibling,
        Some("torn-entry") => tree::Bug::TornEntry,
        _ => tree::Bug::None,
    };
    // What a switch's program relies on.
    let connect = connect_within(rng, 5..=6);
    let fanout = [4, 5, 13, 54][rng.usize(0..4)];
    let (count, step) = (rng.u64(0..=u64::from(fanout) * 3 / 2), rng.u64(1..=3));
    let config = tree::HomeConfig {
        locks: [1, 3, 64][rng.usize(0..3)],
        pages: [16, 256, 1024][rng.usize(0..3)],
        fanout,
        keys: (count, step),
        lease: Duration::from_us([100, 500, 5_000][rng.usize(0..3)]),
        connect,
    };
    let serve = move |rdma: Rdma| async move { tree::serve(&rdma, "tree", &config).await };
    let mut programs = vec![Start::new("home", SERVER, serve).serving()];
    let keys = (count * step).max(8) + rng.u64(0..24);
    // Entries that lie across the packets of a READ, where the path MTU is small.
    let across = |place: u64| if count > place { place * step } else { place % keys };
    let hot = [across(11), across(25), rng.u64(0..keys)];
    let heat = [0, 30, 70][rng.usize(0..3)];
    for n in 0..rng.u32(2..=5) {
        let work = tree::Work {
            rounds: rng.u32(5..=40),
            keys,
            hot,
            heat,
            values: rng.u64(2..=5),
            settle: Duration::from_us([0, 11_000][rng.usize(0..2)]),
            short_reads: rng.u32(0..4) > 0,
            release: if rng.bool() { locks::Release::Write } else { locks::Release::CompareSwap },
            connect,
            bug,
        };
        let run = move |rdma: Rdma| async move { tree::work(&rdma, "tree", &work).await };
        // What a program does to words of its own host no switch sees.
        programs.push(Start::new(format!("client {n}"), rng.u32(1..hosts), run));
    }
    Made { programs, judge: Box::new(judge), settled: |_| true }
}

/// What is wrong with what clients of a tree did.
pub fn judge(run: &Run<'_>) -> Vec<String> {
    let mut wrong = run.notes.iter().filter_map(|noted| match &noted.note {
        Note::Begin { name: "lost", arguments, .. } => {
            Some(format!("lock {arguments:?} is lost: nobody gives it back, nor is it taken over"))
        }
        Note::Begin { name: "phantom", arguments, .. } => {
            Some(format!("a scan of {arguments:?} has found keys out of order, or beyond"))
        }
        _ => None,
    });
    if let Some(wrong) = wrong.next() {
        return vec![wrong];
    }
    let keys =
        check::<Word>(run, &Word { start: 0 }, |told| match (told.name, told.arguments, told.results) {
            ("put", [value], None) => Some((WordCall::Write(*value), None)),
            ("put", [value], Some([])) => Some((WordCall::Write(*value), Some(0))),
            ("remove", [], None) => Some((WordCall::Write(0), None)),
            ("remove", [], Some([])) => Some((WordCall::Write(0), Some(0))),
            ("get" | "seen", [], None) => Some((WordCall::Read, None)),
            ("get" | "seen", [], Some([value])) => Some((WordCall::Read, Some(*value))),
            _ => None,
        });
    let locks = check::<Tagged>(run, &Tagged, |told| {
        let call = match (told.name, told.arguments) {
            ("try", [expected, tag]) => TaggedCall::Try { expected: *expected, tag: *tag },
            ("release", [tag]) => TaggedCall::Release { tag: *tag, value: None },
            _ => return None,
        };
        let answer = match told.results {
            None => None,
            Some([]) => Some(TaggedAnswer::Done),
            Some([was]) => Some(TaggedAnswer::Was(*was)),
            Some(_) => return None,
        };
        Some((call, answer))
    });
    keys.into_iter().chain(locks).collect()
}

/// Whether those notes of a run are linearizable that `read` knows.
fn check<M: Model>(
    run: &Run<'_>,
    model: &M,
    read: impl Fn(&Told<'_>) -> Option<(M::Call, Option<M::Answer>)>,
) -> Option<String> {
    match history::<M>(run.notes, |told| Ok(read(told))) {
        Ok(history) => history.check(model, WORK_MAX).failure(),
        Err(why) => Some(why),
    }
}
