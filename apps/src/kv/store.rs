//! A replica's memory: the log, and the index into it. One thread at a time writes; peers read at any moment.

use super::layout::{BUCKET_LEN, KEY_MAX, Layout, Place, Record, UNIT, VALUE_MAX, WAYS, hash, record_len};
use adverb_rma::{Error as RmaError, Memory, Rma};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{Ordering, fence};

/// Sizes of a replica.
#[derive(Clone, Copy, Debug)]
pub struct StoreConfig {
    /// Bytes of the log.
    pub memory: usize,
    /// Keys that the index has room for, about; a power of two of buckets is made for them.
    pub keys: usize,
    /// Bytes of a value at most.
    pub value_max: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig { memory: 64 << 20, keys: 1 << 16, value_max: 64 << 10 }
    }
}

impl StoreConfig {
    /// Whether they go together; the text says what to give instead.
    pub fn check(&self) -> Result<(), String> {
        let StoreConfig { memory, keys, value_max } = *self;
        if value_max == 0 || value_max > VALUE_MAX {
            return Err(format!("a value of at most {value_max} bytes: give 1 to {VALUE_MAX}"));
        }
        let least = 2 * record_len(KEY_MAX, value_max);
        if memory < least || memory as u64 > (UNIT as u64) << 32 {
            return Err(format!(
                "{memory} bytes of memory: with values of {value_max} bytes give at least {least}, at most \
                 256 GiB"
            ));
        }
        if keys == 0 || keys > 1 << 30 {
            return Err(format!("an index for {keys} keys: give 1 to {}", 1 << 30));
        }
        Ok(())
    }

    fn layout(&self, seed: u64) -> Layout {
        // Half full on average, so that few buckets overflow.
        let buckets = (2 * self.keys).div_ceil(WAYS).next_power_of_two() as u64;
        let log_len = (self.memory / UNIT * UNIT) as u64;
        Layout { buckets, log_len, value_max: self.value_max as u32, seed }
    }
}

/// What has happened to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounters {
    /// Values set.
    pub stored: u64,
    /// Values not set because there was a higher version.
    pub superseded: u64,
    /// Records overwritten by the log although they could still be found.
    pub evicted_by_log: u64,
    /// Records given up because their bucket was full.
    pub evicted_by_bucket: u64,
}

/// Why a value was not set.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Refused {
    Key(usize),
    Value(usize, usize),
    /// A version that no server assigns.
    Version,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Key(len) => write!(f, "a key of {len} bytes: give 1 to {KEY_MAX}"),
            Refused::Value(len, max) => {
                write!(f, "a value of {len} bytes: this cache takes at most {max}")
            }
            Refused::Version => f.write_str("version 0: give a higher one, or none"),
        }
    }
}

/// A replica's memory: the log, and the index into it.
pub(super) struct Store {
    layout: Layout,
    index: Memory,
    log: Memory,
    /// Where the next record goes.
    head: u64,
    /// Offset and bucket of all records in the log, the oldest first.
    records: VecDeque<(u64, u64)>,
    /// Where records are put together.
    scratch: Vec<u8>,
    last_version: u64,
    counters: StoreCounters,
}

impl Store {
    pub fn new(rma: &Rma, config: &StoreConfig, seed: u64) -> Result<Store, RmaError> {
        let layout = config.layout(seed);
        Ok(Store {
            layout,
            index: rma.allocate(layout.buckets as usize * BUCKET_LEN)?,
            log: rma.allocate(layout.log_len as usize)?,
            head: 0,
            records: VecDeque::new(),
            scratch: Vec::with_capacity(layout.record_max()),
            last_version: 0,
            counters: StoreCounters::default(),
        })
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub fn counters(&self) -> StoreCounters {
        self.counters
    }

    /// Index and log.
    pub fn memories(&self) -> (&Memory, &Memory) {
        (&self.index, &self.log)
    }

    /// Sets a value under this version, or one above all that were and not below `clock`. `Err` within is the
    /// higher version that is there.
    pub fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        version: Option<u64>,
        clock: u64,
    ) -> Result<Result<u64, u64>, Refused> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Refused::Key(key.len()));
        }
        if value.len() > self.layout.value_max as usize {
            return Err(Refused::Value(value.len(), self.layout.value_max as usize));
        }
        if version == Some(0) {
            return Err(Refused::Version);
        }
        let version = version.unwrap_or_else(|| clock.max(self.last_version.saturating_add(1)));
        let hash = hash(self.layout.seed, key);
        let bucket = self.layout.bucket_at(hash);
        if let Some(found) =
            self.find(bucket, hash, key).map(|(_, found)| found).filter(|found| *found > version)
        {
            self.counters.superseded += 1;
            return Ok(Err(found));
        }
        self.last_version = self.last_version.max(version);
        let len = record_len(key.len(), value.len());
        let offset = self.make_room(len as u64);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        Record { version, hash, key, value }.emit(&mut scratch);
        self.log.write(offset as usize, &scratch);
        self.scratch = scratch;
        self.records.push_back((offset, bucket));
        // Who sees the word sees the record.
        fence(Ordering::SeqCst);
        let way = self.way(bucket, hash, key);
        let place = Place { tag: Place::tag_of(hash), offset, len };
        self.put(bucket, way, place.word());
        self.counters.stored += 1;
        Ok(Ok(version))
    }

    /// Takes `len` bytes of the log, and what lay there out of the index.
    fn make_room(&mut self, len: u64) -> u64 {
        if self.head + len > self.layout.log_len {
            while self.records.front().is_some_and(|(offset, _)| *offset >= self.head) {
                self.evict_oldest();
            }
            self.head = 0;
        }
        let start = self.head;
        while self.records.front().is_some_and(|(offset, _)| (start..start + len).contains(offset)) {
            self.evict_oldest();
        }
        self.head += len;
        start
    }

    fn evict_oldest(&mut self) {
        let Some((offset, bucket)) = self.records.pop_front() else { return };
        for way in 0..WAYS {
            if Place::from_word(self.word(bucket, way)).is_some_and(|place| place.offset == offset) {
                self.put(bucket, way, 0);
                self.counters.evicted_by_log += 1;
            }
        }
        // Before its bytes change.
        fence(Ordering::SeqCst);
    }

    /// Where the index points to a key: the way, and the version there.
    fn find(&self, bucket: u64, hash: u64, key: &[u8]) -> Option<(usize, u64)> {
        (0..WAYS).find_map(|way| {
            let place = Place::from_word(self.word(bucket, way))?;
            if place.tag != Place::tag_of(hash) {
                return None;
            }
            let bytes = self.log.to_vec(place.offset as usize..place.offset as usize + place.len);
            let record = Record::parse(&bytes)?;
            (record.key == key).then_some((way, record.version))
        })
    }

    /// The way for a key's new record: its old one's, an empty one, or the one whose record is the oldest.
    fn way(&mut self, bucket: u64, hash: u64, key: &[u8]) -> usize {
        if let Some((way, _)) = self.find(bucket, hash, key) {
            return way;
        }
        // How long ago a record was written: the further behind the head, the longer.
        let log_len = self.layout.log_len;
        let age = |place: Place| (self.head + log_len - place.offset) % log_len;
        let ages = (0..WAYS).map(|way| Place::from_word(self.word(bucket, way)).map_or(u64::MAX, age));
        let oldest = ages.enumerate().max_by_key(|(way, age)| (*age, WAYS - way)).map_or(0, |(way, _)| way);
        if self.word(bucket, oldest) != 0 {
            self.counters.evicted_by_bucket += 1;
        }
        oldest
    }

    fn word(&self, bucket: u64, way: usize) -> u64 {
        u64::from_le(self.index.word(bucket as usize + way * 8).load(Ordering::Relaxed))
    }

    fn put(&self, bucket: u64, way: usize, word: u64) {
        self.index.word(bucket as usize + way * 8).store(word.to_le(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_rma::Settings;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    fn store(host: u8, config: StoreConfig) -> (Rma, Store) {
        let folder = std::env::temp_dir().join(format!("adverb-store-{}-{host}", std::process::id()));
        let address = IpAddr::from([127, 63, 0, host]);
        let rma = Rma::open(Settings { state: Some(folder.clone()), ..Settings::new(address) }).unwrap();
        // It holds its file open; these NICs send nothing.
        std::fs::remove_dir_all(folder).unwrap();
        let store = Store::new(&rma, &config, 3).unwrap();
        (rma, store)
    }

    /// As a client reads it.
    fn get(store: &Store, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let hash = hash(store.layout.seed, key);
        let at = store.layout.bucket_at(hash) as usize;
        let bucket = store.index.to_vec(at..at + BUCKET_LEN);
        super::super::layout::candidates(&bucket, hash).find_map(|place| {
            let bytes = store.log.to_vec(place.offset as usize..place.offset as usize + place.len);
            let record = Record::parse(&bytes).expect("nobody writes");
            (record.key == key).then(|| (record.version, record.value.to_vec()))
        })
    }

    #[test]
    fn versions_decide_and_limits_hold() {
        let (_rma, mut store) = store(1, StoreConfig { memory: 1 << 16, keys: 64, value_max: 100 });
        assert_eq!(store.set(b"a", b"one", None, 1000), Ok(Ok(1000)));
        assert_eq!(store.set(b"a", b"two", None, 1000), Ok(Ok(1001)));
        assert_eq!(store.set(b"a", b"old", Some(900), 0), Ok(Err(1001)));
        assert_eq!(get(&store, b"a"), Some((1001, b"two".to_vec())));
        // The same call twice changes nothing.
        assert_eq!(store.set(b"a", b"two", Some(1001), 0), Ok(Ok(1001)));
        assert_eq!(store.set(b"a", b"new", Some(5000), 0), Ok(Ok(5000)));
        assert_eq!(store.set(b"b", b"", None, 0), Ok(Ok(5001)));
        assert_eq!(get(&store, b"b"), Some((5001, Vec::new())));
        assert_eq!(store.set(b"", b"x", None, 0), Err(Refused::Key(0)));
        assert_eq!(store.set(&[1; 257], b"x", None, 0), Err(Refused::Key(257)));
        assert_eq!(store.set(b"a", &[1; 101], None, 0), Err(Refused::Value(101, 100)));
        assert_eq!(store.set(b"a", b"x", Some(0), 0), Err(Refused::Version));
        assert_eq!((store.counters.stored, store.counters.superseded), (5, 1));
    }

    #[test]
    fn sizes_that_do_not_go_together_are_refused() {
        let sound = StoreConfig::default();
        assert_eq!(sound.check(), Ok(()));
        let refused = |config: StoreConfig| config.check().unwrap_err();
        assert!(refused(StoreConfig { value_max: 0, ..sound }).contains("give 1 to 1048576"));
        assert!(refused(StoreConfig { memory: 100, ..sound }).contains("give at least"));
        assert!(refused(StoreConfig { keys: 0, ..sound }).contains("give 1 to"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Against a map: what is found is what was set last; what is missed was evicted, and as many are
        /// missed as were evicted.
        #[test]
        fn what_is_found_is_what_was_set_last(
            sets in prop::collection::vec((0u16..60, 0usize..900), 1..300), small in any::<bool>(),
        ) {
            let keys = if small { 2 } else { 256 };
            let (_rma, mut store) = store(2, StoreConfig { memory: 12_800, keys, value_max: 900 });
            let mut model = BTreeMap::new();
            for (turn, (key, len)) in sets.iter().enumerate() {
                let (key, value) = (key.to_le_bytes(), vec![turn as u8; *len]);
                let version = store.set(&key, &value, None, 0).unwrap().unwrap();
                model.insert(key, (version, value.clone()));
                prop_assert_eq!(get(&store, &key), Some((version, value)), "just set");
            }
            let found = model.iter().filter_map(|(key, set)| Some((get(&store, key)?, set)));
            let mut count = 0;
            for (found, set) in found {
                prop_assert_eq!(&found, set);
                count += 1;
            }
            // A key that was evicted and set again is in the map once.
            let evicted = store.counters.evicted_by_log + store.counters.evicted_by_bucket;
            prop_assert!(count + evicted >= model.len() as u64);
            prop_assert!(evicted > 0 || count == model.len() as u64);
            prop_assert!(store.records.len() <= 12_800 / UNIT);
        }
    }
}
