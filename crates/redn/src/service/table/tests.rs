//! A table beside a plain map, and workers that end after each single store.

use super::*;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicBool;

/// The regions, as they outlive a worker.
struct Regions {
    layout: Layout,
    index: Vec<AtomicU64>,
    values: Vec<AtomicU64>,
}

fn words(count: u64) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Regions {
    fn new(buckets: u64, values_len: u64) -> Regions {
        let layout = Layout { buckets, seed: 11, index: 0x1000, values: 0x7f00_0000_0000, values_len };
        Regions { layout, index: words(buckets * 2), values: words(values_len / 8) }
    }

    fn open(&self) -> Table<'_> {
        Table::open(self.layout, &self.index, &self.values, 1).unwrap().0
    }

    fn copy(&self) -> Regions {
        let copied = |words: &[AtomicU64]| {
            words.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))).collect()
        };
        Regions { layout: self.layout, index: copied(&self.index), values: copied(&self.values) }
    }

    /// As a chain and its client read: one bucket's words, then the record, in this order of buckets.
    fn look(&self, key: &[u8], reversed: bool) -> Option<Vec<u8>> {
        let mut sought = self.layout.sought(self.layout.hash(key));
        if reversed {
            sought.buckets.reverse();
        }
        sought.buckets.iter().find_map(|bucket| {
            let at = *bucket as usize * 2;
            let tag = self.index[at].load(Ordering::Acquire);
            let word = self.index[at + 1].load(Ordering::Acquire);
            let extent = self.layout.extent(word).filter(|_| tag == layout::tag(sought.fingerprint))?;
            let words = &self.values[extent.at as usize / 8..][..extent.len as usize / 8];
            let bytes: Vec<u8> =
                words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            Record::parse(&bytes).filter(|record| record.key == key).map(|record| record.value.to_vec())
        })
    }

    fn find(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.look(key, false)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

impl Step {
    fn key(&self) -> &[u8] {
        match self {
            Step::Set(key, _) | Step::Delete(key) => key,
        }
    }

    fn take(&self, table: &mut Table<'_>) {
        match self {
            Step::Set(key, value) => drop(table.set(key, value).unwrap()),
            Step::Delete(key) => drop(table.delete(key)),
        }
    }

    fn note(&self, model: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        match self {
            Step::Set(key, value) => drop(model.insert(key.clone(), value.clone())),
            Step::Delete(key) => drop(model.remove(key)),
        }
    }
}

fn random_step(random: &mut fastrand::Rng, keys: u32, len: usize, deletes: u8) -> Step {
    let key = format!("key {}", random.u32(..keys)).into_bytes();
    match random.u8(..8) {
        n if n < deletes => Step::Delete(key),
        _ => Step::Set(key, vec![random.u8(..); random.usize(..=len)]),
    }
}

#[test]
fn a_table_is_a_map() {
    let regions = Regions::new(256, LOG_MIN);
    let mut random = fastrand::Rng::with_seed(1);
    let mut model = BTreeMap::new();
    let mut table = regions.open();
    for round in 0..6000 {
        let step = random_step(&mut random, 90, 5000, 1);
        step.take(&mut table);
        step.note(&mut model);
        assert_eq!(table.len(), model.len() as u64);
        let key = step.key();
        assert_eq!(regions.find(key), model.get(key).cloned());
        assert_eq!(table.get(key).map(|value| value.bytes), model.get(key).cloned());
        if round % 100 == 0 {
            let (live, limit) = table.memory();
            assert!(live <= limit);
            for (key, value) in &model {
                assert_eq!(regions.find(key).as_ref(), Some(value));
            }
            drop(table);
            let (again, found) = Table::open(regions.layout, &regions.index, &regions.values, 1).unwrap();
            let whole = Found { keys: model.len() as u64, ..Found::default() };
            assert_eq!((found, again.memory()), (whole, (live, limit)));
            table = again;
        }
    }
    table.clear_all();
    assert!(table.is_empty() && model.keys().all(|key| regions.find(key).is_none()));
    assert_eq!(table.set(b"", b""), Err(Refused::Key(0)));
    assert_eq!(table.set(&[1; KEY_MAX + 1], b""), Err(Refused::Key(KEY_MAX + 1)));
    assert_eq!(table.set(b"key", &vec![0; VALUE_MAX + 1]), Err(Refused::Value(VALUE_MAX + 1)));
    table.set(&[1; KEY_MAX], &vec![7; VALUE_MAX]).unwrap();
    assert_eq!(regions.find(&[1; KEY_MAX]), Some(vec![7; VALUE_MAX]));
}

/// Ends the worker in this step after each of its stores to the index, and after some to the values, and
/// looks at what it leaves. How many ends that were.
fn end_everywhere(before: &Regions, model: &BTreeMap<Vec<u8>, Vec<u8>>, step: &Step) -> usize {
    let mut stores = Vec::new();
    let trial = before.copy();
    {
        let mut table = trial.open();
        table.after_store(|what| stores.push(what));
        step.take(&mut table);
        assert_eq!(table.counters().evicted_by_memory + table.counters().evicted_by_index, 0, "no keys go");
    }
    let is_near_index = |n: usize| {
        (n.saturating_sub(1)..=n + 1).any(|n| stores.get(n).is_some_and(|what| *what == Stored::Index))
    };
    let ends: Vec<usize> = (0..stores.len()).filter(|n| is_near_index(*n) || n % 501 == 0).collect();
    let mut after = model.clone();
    step.note(&mut after);
    for end in &ends {
        let regions = before.copy();
        let mut left = *end;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut table = regions.open();
            table.after_store(move |_| match left {
                0 => resume_unwind(Box::new(())),
                _ => left -= 1,
            });
            step.take(&mut table);
        }));
        assert!(ended.is_err(), "the worker did not end");
        let check = |when: &str| {
            for (key, value) in model.iter().filter(|(key, _)| *key != step.key()) {
                assert_eq!(regions.find(key).as_ref(), Some(value), "{step:?}, end {end} {when}");
            }
            let (found, key) = (regions.find(step.key()), step.key());
            let either = found == model.get(key).cloned() || found == after.get(key).cloned();
            assert!(either, "{step:?}, end {end} {when}: {found:?}");
        };
        check("before it is mended");
        let mut table = regions.open();
        check("after it is mended");
        // The next worker goes on where this one ended.
        let committed = regions.find(step.key());
        assert_eq!(
            table.len(),
            model.len() as u64 - u64::from(model.contains_key(step.key())) + u64::from(committed.is_some())
        );
        step.take(&mut table);
        assert_eq!(regions.find(step.key()), after.get(step.key()).cloned());
        let (_, found) = Table::open(regions.layout, &regions.index, &regions.values, 1).unwrap();
        assert_eq!(found, Found { keys: after.len() as u64, ..Found::default() });
    }
    ends.len()
}

#[test]
fn a_worker_that_ends_after_any_store_leaves_every_committed_key_readable() {
    // Nearly as full as two buckets a key allow, so that buckets are moved on.
    let regions = Regions::new(128, LOG_MIN);
    let mut random = fastrand::Rng::with_seed(2);
    let mut model = BTreeMap::new();
    let (mut ends, mut moved, mut passed) = (0, 0, 0);
    for _ in 0..1200 {
        let step = random_step(&mut random, 96, 300, 4);
        let before = regions.copy();
        let mut table = regions.open();
        step.take(&mut table);
        let counters = table.counters();
        if counters.evicted_by_index > 0 {
            // These keys do not go together: another step.
            drop(table);
            let back = before.copy();
            regions.index.iter().zip(&back.index).for_each(|(to, from)| {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            continue;
        }
        moved += counters.buckets_moved;
        ends += end_everywhere(&before, &model, &step);
        step.note(&mut model);
        passed += 1;
    }
    assert!(passed > 500 && moved > 20, "{passed} steps, {moved} buckets moved");
    assert!(ends > 2000, "{ends} ends");
}

#[test]
fn a_worker_that_ends_while_the_log_is_cleaned_leaves_every_committed_key_readable() {
    let regions = Regions::new(64, LOG_MIN);
    let mut random = fastrand::Rng::with_seed(3);
    let mut model = BTreeMap::new();
    let (mut ends, mut moved) = (0, 0);
    // Keys that stay, and some that are set anew until the log has gone round.
    let mut table = regions.open();
    for key in 0..10u8 {
        let step = Step::Set(vec![key], vec![key; 20_000]);
        step.take(&mut table);
        step.note(&mut model);
    }
    drop(table);
    for round in 0..150 {
        let key = vec![random.u8(5..10)];
        let step = Step::Set(key, vec![round; random.usize(..30_000)]);
        let before = regions.copy();
        let mut table = regions.open();
        step.take(&mut table);
        let cleaned = table.counters().records_moved;
        if cleaned > 0 && moved < 12 {
            ends += end_everywhere(&before, &model, &step);
        }
        moved += cleaned;
        step.note(&mut model);
    }
    assert!(moved >= 10 && ends > 100, "{moved} records moved, {ends} ends");
    assert!(model.iter().all(|(key, value)| regions.find(key).as_ref() == Some(value)));
}

#[test]
fn it_fills_to_about_half_its_buckets_before_a_key_has_to_go() {
    let buckets = 1 << 13;
    let regions = Regions::new(buckets, 4 << 20);
    let mut table = regions.open();
    let mut keys = 0u64;
    while table.counters().evicted_by_index == 0 {
        table.set(&keys.to_le_bytes(), b"value").unwrap();
        keys += 1;
    }
    assert!(keys * 100 >= buckets * 45, "a key had to go at {keys} of {buckets}");
    assert_eq!(table.len(), keys - 1);
    let missing = (0..keys).filter(|key| regions.find(&key.to_le_bytes()).is_none()).count();
    assert_eq!(missing, 1, "the one that had to go");
}

#[test]
fn when_the_memory_is_full_what_was_written_first_goes_first() {
    let regions = Regions::new(1 << 10, LOG_MIN);
    let mut table = regions.open();
    for key in 0..2000u32 {
        table.set(&key.to_le_bytes(), &vec![key as u8; 4000]).unwrap();
        let (live, limit) = table.memory();
        assert!(live <= limit);
    }
    let found: Vec<u32> = (0..2000u32).filter(|key| regions.find(&key.to_le_bytes()).is_some()).collect();
    let (live, limit) = table.memory();
    assert!(live + 8192 > limit, "it is used: {live} of {limit}");
    assert_eq!(found.len() as u64, table.len());
    assert_eq!(found, (2000 - found.len() as u32..2000).collect::<Vec<_>>());
    assert_eq!(table.counters().evicted_by_memory + table.len(), 2000);
}

/// While a worker sets, moves and cleans, a reader that asks again in the other order misses no key, and gets
/// no other value than one that was set.
#[test]
fn a_reader_beside_the_writer_misses_no_key() {
    let regions = Regions::new(64, LOG_MIN);
    let mut table = regions.open();
    let keys: Vec<Vec<u8>> = (0..24u8).map(|key| vec![key; 5]).collect();
    for key in &keys {
        table.set(key, &[0; 200]).unwrap();
    }
    assert_eq!(table.counters().evicted_by_index, 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut reads, mut again, mut last) = (0u64, 0u64, vec![0u64; keys.len()]);
            while !done.load(Ordering::Relaxed) {
                for (key, last) in keys.iter().zip(&mut last) {
                    let mut tries = 0;
                    let value = loop {
                        match regions.look(key, tries % 2 == 1) {
                            Some(value) => break value,
                            None => tries += 1,
                        }
                        assert!(tries < 1000, "key {key:?} is not found");
                    };
                    again += tries;
                    let word = |at: usize| value[at..at + 8].try_into().map(u64::from_le_bytes);
                    let round = word(0).unwrap();
                    assert!((0..value.len() / 8).all(|at| word(at * 8).unwrap() == round), "torn: {value:?}");
                    assert!(round >= *last, "older than before");
                    *last = round;
                    reads += 1;
                }
            }
            (reads, again)
        });
        let mut random = fastrand::Rng::with_seed(4);
        for round in 1..60_000u64 {
            let key = &keys[random.usize(..keys.len())];
            table.set(key, &round.to_le_bytes().repeat(random.usize(1..120))).unwrap();
        }
        // Others come and go, so that buckets are moved.
        for round in 0..20_000u32 {
            let key = (1000 + round % 5).to_le_bytes();
            table.set(&key, b"guest").unwrap();
            table.delete(&key);
        }
        done.store(true, Ordering::Relaxed);
        let (reads, _) = reader.join().unwrap();
        assert!(reads > 0);
    });
    assert_eq!(table.counters().evicted_by_index, 0);
}
