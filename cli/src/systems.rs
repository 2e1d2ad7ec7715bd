//! The programs of `apps` as systems for the simulator's swarms: which of them run where, and what must be
//! true of what they note.

use crate::switch_swarm::{SERVER, beside, steering};
use adverb_apps::{catalog, chain, lock, locks, queue};
use adverb_rdma::seam::Note;
use adverb_rdma::{Connect, Duration, Rdma};
use adverb_sim::linear::model::{
    Lock, LockAnswer, LockCall, OrderedCall, OrderedWords, Queue, QueueAnswer, QueueCall, Tagged,
    TaggedAnswer, TaggedCall, Word, WordCall,
};
use adverb_sim::linear::{Model, WORK_MAX};
use adverb_sim::program::history::{Told, history};
use adverb_sim::program::{Doing, Start};
use adverb_sim::swarm::programs::{Made, Run, System};
use adverb_switch::SteerMistake;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// All systems.
pub const ALL: [System; 6] = [
    System {
        name: "lock",
        about: "a lock with leases and fencing tokens, and the record that it guards",
        bugs: &[("early-release", "the lock is released before the record's change is acknowledged")],
        one_rma: false,
        make: make_lock,
        switch: None,
        tune: |_, _| {},
    },
    System {
        name: "locks",
        about: "a table of locks, released by WRITEs, beside a switch that decides their atomics or none",
        bugs: &[
            ("early-release", "a lock is released before the record is written"),
            ("no-fence", "a lock is taken over while its holder's queue pair lives"),
            ("no-recovery", "locks of dead holders are not taken over"),
        ],
        one_rma: false,
        make: make_locks,
        switch: Some(beside),
        tune: crate::switch_swarm::plain,
    },
    System {
        name: "queue",
        about: "a bounded queue that several producers write one-sidedly",
        bugs: &[("torn-header", "an element's header is written before its payload, and believed")],
        one_rma: false,
        make: make_queue,
        switch: None,
        tune: |_, _| {},
    },
    System {
        name: "catalog",
        about: "a record that queue pairs update and 1RMA looks up",
        bugs: &[("early-head", "the head is changed before its record is written, and believed")],
        one_rma: true,
        make: make_catalog,
        switch: None,
        tune: |_, _| {},
    },
    System {
        name: "chain",
        about: "a store of chains of entries that only grow, beside a switch that steers requests or none",
        bugs: &[
            ("unlinked-ack", "a put is over before its compare and swap is answered"),
            ("torn-entry", "an entry is linked before it is written"),
            ("stale-tail", "what was the last entry is taken for it still"),
            (SteerMistake::ALL[0].1, SteerMistake::ALL[0].2),
            (SteerMistake::ALL[1].1, SteerMistake::ALL[1].2),
            (SteerMistake::ALL[2].1, SteerMistake::ALL[2].2),
        ],
        one_rma: false,
        make: make_chain,
        switch: Some(steering),
        tune: crate::switch_swarm::plain,
    },
    crate::tree_swarm::TREE,
];

/// The system with a name.
pub fn by_name(name: &str) -> Result<System, String> {
    ALL.into_iter().find(|system| system.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|system| system.name).collect();
        format!("not one of {}", names.join(", "))
    })
}

/// Connections that give up after 7 ms, or after half a second.
fn connect(rng: &mut fastrand::Rng) -> Connect {
    Connect { timeout: if rng.bool() { 8 } else { 14 }, ..Connect::default() }
}

/// Connections that give up after 8 times 4.096 us * 2^`timeout`.
pub fn connect_within(rng: &mut fastrand::Rng, timeout: RangeInclusive<u8>) -> Connect {
    Connect { timeout: rng.u8(timeout), ..Connect::default() }
}

fn duration(rng: &mut fastrand::Rng, of_us: &[u64]) -> Duration {
    Duration::from_us(of_us[rng.usize(0..of_us.len())])
}

fn make_lock(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = if bug == Some("early-release") { lock::Bug::EarlyRelease } else { lock::Bug::None };
    let connect = connect(rng);
    let config = lock::HomeConfig { lease: duration(rng, &[200, 1_000, 5_000, 50_000]), connect };
    let home = rng.u32(0..hosts);
    let serve = move |rdma: Rdma| async move { lock::serve(&rdma, "lock", &config).await };
    let mut programs = vec![Start::new("home", home, serve).serving()];
    for n in 0..rng.u32(2..=4) {
        let work = lock::Work { rounds: rng.u32(1..=6), values: rng.u64(1..=4), connect, bug };
        let run = move |rdma: Rdma| async move { lock::work(&rdma, "lock", &work).await };
        programs.push(Start::new(format!("client {n}"), rng.u32(0..hosts), run));
    }
    Made { programs, judge: Box::new(judge_lock), settled: |_| true }
}

pub fn judge_lock(run: &Run<'_>) -> Vec<String> {
    judge::<Lock>(run, &Lock, |told| {
        let call = match (told.name, told.arguments) {
            ("acquire", []) => LockCall::Acquire,
            ("take-over", [token]) => LockCall::TakeOver(*token),
            ("release", [token]) => LockCall::Release(*token),
            ("store", [token, value]) => LockCall::Store { token: *token, value: *value },
            ("load", [token]) => LockCall::Load(*token),
            _ => return None,
        };
        let answer = match told.results {
            None => None,
            Some([]) => Some(LockAnswer::Refused),
            Some([value]) if told.name == "load" => Some(LockAnswer::Value(*value)),
            Some([token]) => Some(LockAnswer::Done(*token)),
            Some(_) => return None,
        };
        Some((call, answer))
    })
}

fn make_locks(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = match bug {
        Some("early-release") => locks::Bug::EarlyRelease,
        Some("no-fence") => locks::Bug::NoFence,
        Some("no-recovery") => locks::Bug::NoRecovery,
        _ => locks::Bug::None,
    };
    // What a switch's program relies on.
    let connect = connect_within(rng, 5..=6);
    let config = locks::HomeConfig {
        locks: rng.u32(1..=4),
        value_max: [8, 100, 1_000, 4_000][rng.usize(0..4)],
        lease: duration(rng, &[100, 500, 5_000]),
        connect,
    };
    let serve = move |rdma: Rdma| async move { locks::serve(&rdma, "locks", &config).await };
    let mut programs = vec![Start::new("home", SERVER, serve).serving()];
    for n in 0..rng.u32(2..=5) {
        let work = locks::Work {
            rounds: rng.u32(2..=10),
            locks: config.locks,
            values: rng.u64(1..=4),
            len: rng.u32(8..=config.value_max),
            settle: duration(rng, &[0, 11_000]),
            release: if rng.bool() { locks::Release::Write } else { locks::Release::CompareSwap },
            connect,
            bug,
        };
        let run = move |rdma: Rdma| async move { locks::work(&rdma, "locks", &work).await };
        // What a program does to words of its own host no switch sees.
        programs.push(Start::new(format!("client {n}"), rng.u32(1..hosts), run));
    }
    Made { programs, judge: Box::new(judge_locks), settled: |_| true }
}

pub fn judge_locks(run: &Run<'_>) -> Vec<String> {
    let mut lost = run.notes.iter().filter_map(|noted| match &noted.note {
        Note::Begin { name: "lost", arguments, .. } => {
            Some(format!("lock {arguments:?} is lost: nobody gives it back, nor is it taken over"))
        }
        _ => None,
    });
    if let Some(lost) = lost.next() {
        return vec![lost];
    }
    judge::<Tagged>(run, &Tagged, |told| {
        let call = match (told.name, told.arguments) {
            ("try", [expected, tag]) => TaggedCall::Try { expected: *expected, tag: *tag },
            ("store", [tag, value]) => TaggedCall::Store { tag: *tag, value: *value },
            ("load", [tag]) => TaggedCall::Load(*tag),
            ("look", []) => TaggedCall::Look,
            ("release", [tag]) => TaggedCall::Release { tag: *tag, value: None },
            ("release", [tag, value]) => TaggedCall::Release { tag: *tag, value: Some(*value) },
            _ => return None,
        };
        let answer = match (told.results, told.name) {
            (None, _) => None,
            (Some([]), "store" | "release") => Some(TaggedAnswer::Done),
            (Some([was]), "try" | "release") => Some(TaggedAnswer::Was(*was)),
            (Some([value]), "load" | "look") => Some(TaggedAnswer::Value(*value)),
            (Some(_), _) => return None,
        };
        Some((call, answer))
    })
}

fn make_queue(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = if bug == Some("torn-header") { queue::Bug::TornHeader } else { queue::Bug::None };
    let connect = connect(rng);
    let item_max = [64, 1_000, 5_000][rng.usize(0..3)];
    let slots = rng.u32(1..=8);
    let patience = duration(rng, &[500, 5_000, 100_000]);
    let config = queue::QueueConfig { slots, item_max, patience, connect, bug };
    let home = rng.u32(0..hosts);
    let consume =
        move |rdma: Rdma| async move { queue::consume(&rdma, "queue", config, None).await.map(drop) };
    let mut programs = vec![Start::new("consumer", home, consume).serving()];
    for n in 0..rng.u32(1..=4) {
        let (items, values, len_max) = (rng.u32(1..=12), rng.u64(1..=4), item_max);
        let work = queue::Work { items, values, len_max, connect, bug };
        let run = move |rdma: Rdma| async move { queue::produce(&rdma, "queue", &work).await };
        programs.push(Start::new(format!("producer {n}"), rng.u32(0..hosts), run));
    }
    let judge = move |run: &Run<'_>| judge_queue(run, slots as usize);
    Made { programs, judge: Box::new(judge), settled: all_taken }
}

pub fn judge_queue(run: &Run<'_>, capacity: usize) -> Vec<String> {
    judge::<Queue>(run, &Queue { capacity }, |told| {
        let call = match (told.name, told.arguments) {
            ("enqueue", [value]) => QueueCall::Enqueue(*value),
            ("dequeue", []) => QueueCall::Dequeue,
            _ => return None,
        };
        let answer = match (told.results, told.name) {
            (None, _) => None,
            (Some([_ticket]), "enqueue") => Some(QueueAnswer::Enqueued),
            (Some([value]), _) => Some(QueueAnswer::Dequeued(*value)),
            (Some(_), _) => return None,
        };
        Some((call, answer))
    })
}

fn make_catalog(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = if bug == Some("early-head") { catalog::Bug::EarlyHead } else { catalog::Bug::None };
    let connect = connect(rng);
    let home = rng.u32(0..hosts);
    let serve =
        move |rdma: Rdma| async move { catalog::serve(&rdma, "catalog", &connect, None).await.map(drop) };
    let mut programs = vec![Start::new("home", home, serve).serving()];
    for n in 0..rng.u32(2..=4) {
        let work = catalog::Work { rounds: rng.u32(2..=12), values: rng.u64(2..=100), connect, bug };
        let run = move |rdma: Rdma| async move { catalog::work(&rdma, "catalog", &work).await };
        programs.push(Start::new(format!("client {n}"), rng.u32(0..hosts), run));
    }
    Made { programs, judge: Box::new(judge_catalog), settled: |_| true }
}

pub fn judge_catalog(run: &Run<'_>) -> Vec<String> {
    judge::<Word>(run, &Word { start: 0 }, |told| match (told.name, told.arguments, told.results) {
        ("update", [value], None) => Some((WordCall::Write(*value), None)),
        ("update", [value], Some([])) => Some((WordCall::Write(*value), Some(0))),
        ("look-up", [], None) => Some((WordCall::Read, None)),
        ("look-up", [], Some([value])) => Some((WordCall::Read, Some(*value))),
        _ => None,
    })
}

/// Bytes of a chain's values at most: entries of one packet or of several. The switch has to know.
pub const CHAIN_VALUE_MAX: u32 = 1_000;

fn make_chain(rng: &mut fastrand::Rng, hosts: u32, bug: Option<&str>) -> Made {
    let bug = match bug {
        Some("unlinked-ack") => chain::Bug::UnlinkedAck,
        Some("torn-entry") => chain::Bug::TornEntry,
        Some("stale-tail") => chain::Bug::StaleTail,
        _ => chain::Bug::None,
    };
    let connect = connect_within(rng, 5..=6);
    let config = chain::HomeConfig {
        keys: [1, 1, 2, 3][rng.usize(0..4)],
        // Now and then fewer than are put.
        entries: if rng.u32(0..6) == 0 { rng.u32(0..20) } else { 400 },
        share: rng.u32(1..=8),
        value_max: CHAIN_VALUE_MAX,
        connect,
    };
    let serve = move |rdma: Rdma| async move { chain::serve(&rdma, "chain", &config).await };
    let mut programs = vec![Start::new("home", SERVER, serve).serving()];
    for n in 0..rng.u32(2..=5) {
        let work = chain::Work {
            rounds: rng.u32(4..=32),
            keys: config.keys,
            values: rng.u64(1..=4),
            len: [8, 80, CHAIN_VALUE_MAX][rng.usize(0..3)],
            pause: duration(rng, &[0, 0, 10, 100]),
            connect,
            bug,
        };
        let run = move |rdma: Rdma| async move { chain::work(&rdma, "chain", &work).await };
        programs.push(Start::new(format!("client {n}"), rng.u32(1..hosts), run));
    }
    Made { programs, judge: Box::new(judge_chain), settled: |_| true }
}

/// Each key is a register, and no chain is broken.
pub fn judge_chain(run: &Run<'_>) -> Vec<String> {
    let mut broken = run.notes.iter().filter_map(|noted| match &noted.note {
        Note::Begin { name: "broken", arguments, object, .. } => {
            let what = ["an entry that is none of it", "where no entry stands", "itself"];
            let named = arguments.first().and_then(|n| what.get((*n as usize).wrapping_sub(1)));
            let what = named.unwrap_or(&"nowhere");
            Some(format!("object {object:#x}: its chain leads to {what}"))
        }
        _ => None,
    });
    if let Some(broken) = broken.next() {
        return vec![broken];
    }
    judge::<Word>(run, &Word { start: 0 }, |told| match (told.name, told.arguments, told.results) {
        ("put", [value], None) => Some((WordCall::Write(*value), None)),
        ("put", [value], Some([])) => Some((WordCall::Write(*value), Some(0))),
        ("get", [], None) => Some((WordCall::Read, None)),
        ("get", [], Some([value])) => Some((WordCall::Read, Some(*value))),
        _ => None,
    })
}

pub fn judge_words(run: &Run<'_>) -> Vec<String> {
    judge::<Word>(run, &Word { start: 0 }, |told| read_word(told.name, told.arguments, told.results))
}

/// What an operation on a word was, and its answer.
fn read_word(name: &str, arguments: &[u64], results: Option<&[u64]>) -> Option<(WordCall, Option<u64>)> {
    let call = match (name, arguments) {
        ("cas", [compare, swap]) => WordCall::CompareSwap { compare: *compare, swap: *swap },
        ("add", [more]) => WordCall::Add(*more),
        ("read", []) => WordCall::Read,
        ("write", [value]) => WordCall::Write(*value),
        ("write-low", [value]) => WordCall::WriteLow(*value as u32),
        _ => return None,
    };
    let answer = match (results, name) {
        (None, _) => None,
        (Some([]), "write" | "write-low") => Some(0),
        (Some([was]), "cas" | "add" | "read") => Some(*was),
        (Some(_), _) => return None,
    };
    Some((call, answer))
}

/// Clients that follow steps: their words are linearizable, in the order of each queue pair, and nobody has
/// failed but those who `may`.
pub fn judge_steps(run: &Run<'_>, may: &[bool]) -> Vec<String> {
    let mut wrong = judge::<OrderedWords>(run, &OrderedWords, |told| {
        let [client, place, word, arguments @ ..] = told.arguments else { return None };
        let (call, answer) = read_word(told.name, arguments, told.results)?;
        Some((OrderedCall { client: *client, place: *place, word: *word, call }, answer))
    });
    for (at, (doing, _)) in run.programs.iter().enumerate() {
        if let (Doing::Ended(Err(why)), Some(false)) = (doing, may.get(at)) {
            wrong.push(format!("client {} failed, which nothing gave cause for: {why}", at - 1));
        }
    }
    wrong
}

/// The consumer has taken as many elements as were queued, of the queue that it has: one that is gone took
/// its elements with it.
pub fn all_taken(run: &Run<'_>) -> bool {
    let (consumer, life) = run.programs[0];
    let mut objects = BTreeMap::new();
    let (mut queued, mut taken, mut current) = (BTreeMap::new(), BTreeMap::new(), None);
    for noted in run.notes {
        let key = |operation: &u64| (noted.program, noted.life, *operation);
        match &noted.note {
            Note::Begin { operation, object, .. } => {
                objects.insert(key(operation), *object);
                if (noted.program, noted.life) == (0, life) {
                    current = Some(*object);
                }
            }
            Note::End { operation, .. } => {
                let counts = if noted.program == 0 { &mut taken } else { &mut queued };
                *counts.entry(objects.get(&key(operation)).copied()).or_insert(0u32) += 1;
            }
            Note::Void { .. } | Note::Say(_) => {}
        }
    }
    let count = |of: &BTreeMap<Option<u64>, u32>| of.get(&current).copied().unwrap_or(0);
    *consumer != Doing::Runs || count(&taken) >= count(&queued)
}

/// Whether the notes of a run are linearizable. What `read` does not know is wrong.
fn judge<M: Model>(
    run: &Run<'_>,
    model: &M,
    read: impl Fn(&Told<'_>) -> Option<(M::Call, Option<M::Answer>)>,
) -> Vec<String> {
    let known =
        |told: &Told<'_>| read(told).map(Some).ok_or_else(|| format!("a note that no model knows: {told:?}"));
    match history::<M>(run.notes, known) {
        Ok(history) => history.check(model, WORK_MAX).failure().into_iter().collect(),
        Err(why) => vec![why],
    }
}
