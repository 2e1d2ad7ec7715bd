//! A client of a tree that is killed at each of its steps: what it was told to be done is there, what it had
//! locked passes on, and others go on with the tree, splits and all.

use adverb_apps::tree::{Client, HomeConfig, serve};
use adverb_rdma::{Connect, Duration, Rdma};
use adverb_sim::program::{Cut, Doing, Mortal, Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Keys that the client puts, of which some are there; pages are full with four.
const KEYS: u64 = 14;
/// By then the client has ended, or is dead.
const LATER_PS: u64 = 20_000_000_000;

/// What a run has shown.
#[derive(Default)]
struct Seen {
    /// Keys whose put had ended.
    put: BTreeSet<u64>,
    taken_over: u64,
    healed: u64,
    splits: u64,
}

fn home() -> Start {
    let config = HomeConfig {
        locks: 64,
        pages: 64,
        fanout: 4,
        keys: (3, 4),
        lease: Duration::from_ms(1),
        ..HomeConfig::default()
    };
    let run = move |rdma: Rdma| async move { serve(&rdma, "tree", &config).await };
    Start::new("home", 0, run).serving().mortal(Mortal::Never)
}

/// Puts keys, each of which is 1000 greater in value.
fn writer(seen: Rc<RefCell<Seen>>) -> Start {
    let run = move |rdma: Rdma| {
        let seen = seen.clone();
        async move {
            let client =
                Client::open(&rdma, "tree", &Connect::default(), None).await.map_err(|e| e.to_string())?;
            for key in 0..KEYS {
                client.put(key, key + 1000).await.map_err(|e| e.to_string())?;
                seen.borrow_mut().put.insert(key);
            }
            Ok::<(), String>(())
        }
    };
    Start::new("writer", 1, run).mortal(Mortal::Once)
}

/// Finds what the writer has left, and changes all of it.
fn heir(seen: Rc<RefCell<Seen>>) -> Start {
    let run = move |rdma: Rdma| {
        let seen = seen.clone();
        async move {
            let client =
                Client::open(&rdma, "tree", &Connect::default(), None).await.map_err(|e| e.to_string())?;
            let failed = |error: adverb_apps::tree::TreeError| error.to_string();
            let found = client.scan(0, 100, 100).await.map_err(failed)?;
            assert!(found.iter().all(|(key, _)| *key < KEYS), "{found:?}");
            let put = seen.borrow().put.clone();
            for key in 0..2 * KEYS {
                let value = found.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
                let old = (key % 4 == 0 && key < 12).then_some(key + 1);
                // The put after the last one that ended may have had its effect.
                let may = key < KEYS && put.len() as u64 == key && value == Some(key + 1000);
                let right = if put.contains(&key) { Some(key + 1000) } else { old };
                assert!(value == right || may, "key {key} is {value:?}, not {right:?}");
                assert_eq!(client.get(key).await.map_err(failed)?, value);
            }
            for key in 0..2 * KEYS {
                client.put(key, key + 2000).await.map_err(failed)?;
            }
            let all: Vec<(u64, u64)> = (0..2 * KEYS).map(|key| (key, key + 2000)).collect();
            assert_eq!(client.scan(0, 100, 100).await.map_err(failed)?, all);
            let mut seen = seen.borrow_mut();
            (seen.taken_over, seen.healed) = (client.counted().taken_over, client.did().healed);
            seen.splits = client.did().splits;
            Ok::<(), String>(())
        }
    };
    Start { at: LATER_PS, ..Start::new("heir", 1, run).mortal(Mortal::Never) }
}

/// Runs it; the writer is killed before the step with this number. How many it took.
fn run(step: Option<u64>) -> (Seen, u64) {
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };
    let config = Config { payload: true, flow_bytes_max: 8, ..Config::new(Topology::two_hosts(cable)) };
    let seen = Rc::new(RefCell::new(Seen::default()));
    let programs = vec![home(), writer(seen.clone()), heir(seen.clone())];
    let cuts = step.into_iter().map(|step| Cut { program: 1, step, again: None }).collect();
    let mut sim = Sim::new(config).unwrap();
    sim.set_programs(Setup { programs, cuts, ..Setup::default() });
    while !sim.programs_ended() && sim.run(u64::MAX, 100_000) {}
    let ends: Vec<&Doing> = sim.programs().map(|(_, doing, ..)| doing).collect();
    assert_eq!(ends[2], &Doing::Ended(Ok(())), "killed before step {step:?}");
    assert_eq!(ends[1] == &Doing::Killed, step.is_some(), "{:?}", ends[1]);
    let steps = sim.programs().nth(1).map_or(0, |(.., steps)| steps);
    assert!(sim.program_failures().is_empty());
    drop(sim);
    (Rc::into_inner(seen).unwrap().into_inner(), steps)
}

#[test]
fn a_client_may_die_at_any_step() {
    let (whole, steps) = run(None);
    assert_eq!((whole.put.len() as u64, whole.taken_over, whole.healed), (KEYS, 0, 0));
    let (mut taken_over, mut healed, mut puts) = (0, 0, BTreeSet::new());
    for step in 0..steps {
        let (seen, _) = run(Some(step));
        taken_over += seen.taken_over;
        healed += seen.healed;
        puts.insert(seen.put.len());
    }
    // It has died between any two puts, with locks in its hands, and between a split and what makes it known.
    assert!((0..KEYS as usize).all(|ended| puts.contains(&ended)), "{puts:?}");
    assert!(
        taken_over > steps / 20 && healed > 10,
        "{steps} steps: {taken_over} taken over, {healed} healed"
    );
}
