//! The table of values that a worker writes and chains read: two regions of words that another process reads
//! at any moment.
//!
//! The index is the truth. What the worker keeps for itself (whose place in the log is whose) is found again
//! by [`Table::open`], so that a worker may be killed after any single store: whatever was committed stays
//! readable, and the next worker mends the rest.
//!
//! ```text
//! set      record at the log's head ─► [buckets moved on, to make room] ─► B ─► A      new key
//!                                   ─► B                                               known key
//! delete   A = 0
//! move     B, A of the other bucket ─► A = 0 of this one; in between the key is in both
//! ```
//! Nothing is freed at once. A record that was replaced, deleted or moved keeps its bytes until the log's
//! head has come round, at least [a sixteenth](super::log) of the log later. A reader that is slower still
//! gets a torn record, which version and checksum show.
//!
//! A key has two buckets of one entry each, so the index holds about half as many keys as it has buckets;
//! with more, the older one of those in a new key's two buckets is given up. Gets are not seen here: what
//! has to go for others is what was written longest ago.

use super::layout::{self, Extent, Layout, Sought, VALUE_MAX};
use super::log::{LOG_MIN, Log, Place};
use adverb_rdma::record::{KEY_MAX, Record, record_len};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets that are moved on at most to make room for one key.
const PATH_MAX: usize = 500;
/// Word of a record that holds its key's hash.
const HASH_WORD: usize = 3;

/// Bytes of values at least.
pub const MEMORY_MIN: u64 = LOG_MIN;

/// Why a table or a value is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A layout that no table has.
    Layout,
    /// The regions are shorter than the layout says, or too short for any table.
    Memory(u64),
    /// A key of so many bytes.
    Key(usize),
    /// A value of so many bytes.
    Value(usize),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Layout => f.write_str("a layout that no table has"),
            Refused::Memory(len) => write!(f, "{len} bytes of values: give {MEMORY_MIN} at least"),
            Refused::Key(len) => write!(f, "a key of {len} bytes: give 1 to {KEY_MAX}"),
            Refused::Value(len) => write!(f, "a value of {len} bytes: give {VALUE_MAX} at most"),
        }
    }
}

impl std::error::Error for Refused {}

/// What has happened to a table since this worker opened it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableCounters {
    /// Values written.
    pub sets: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Keys given up because the memory was full.
    pub evicted_by_memory: u64,
    /// Keys given up because no bucket could be made free.
    pub evicted_by_index: u64,
    /// Buckets moved on.
    pub buckets_moved: u64,
    /// Records moved from the log's tail to its head.
    pub records_moved: u64,
}

/// What opening found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Keys.
    pub keys: u64,
    /// Keys that stood in both of their buckets: moves that had not ended.
    pub in_two_buckets: u64,
    /// Buckets that named no record of their key.
    pub without_record: u64,
}

/// A table, open for its one writer.
pub struct Table<'m> {
    layout: Layout,
    index: &'m [AtomicU64],
    values: &'m [AtomicU64],
    log: Log,
    keys: u64,
    /// Bytes of records that the index names.
    live: u64,
    version: u64,
    counters: TableCounters,
    /// Told after each store, by tests that end the worker there.
    after_store: Option<Box<dyn FnMut(Stored) + Send + 'm>>,
}

/// Where a word was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In the index.
    Index,
    /// Among the values.
    Values,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// Another one each time that the key is set.
    pub version: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Opening.
impl<'m> Table<'m> {
    /// Opens a table as it is: words of zeros are an empty one. Buckets that a worker left in the middle of
    /// its work are mended. Versions begin here, unless there are higher ones.
    pub fn open(
        layout: Layout,
        index: &'m [AtomicU64],
        values: &'m [AtomicU64],
        first_version: u64,
    ) -> Result<(Table<'m>, Found), Refused> {
        if !layout.is_sound() || layout.index_len() > index.len() as u64 * 8 {
            return Err(Refused::Layout);
        }
        if layout.values_len < MEMORY_MIN || layout.values_len > values.len() as u64 * 8 {
            return Err(Refused::Memory(layout.values_len));
        }
        let log = Log::new(layout.values_len, Vec::new());
        let (version, counters) = (first_version.max(1), TableCounters::default());
        let mut table =
            Table { layout, index, values, log, keys: 0, live: 0, version, counters, after_store: None };
        let found = table.mend();
        Ok((table, found))
    }

    /// Clears what names no record of its key, and one of two buckets that name the same.
    fn mend(&mut self) -> Found {
        let mut found = Found::default();
        let mut places: Vec<Place> = Vec::new();
        for bucket in 0..self.layout.buckets {
            if self.tag(bucket) == 0 {
                continue;
            }
            let Some((hash, version, extent)) = self.sound(bucket) else {
                found.without_record += 1;
                self.clear(bucket);
                continue;
            };
            let other = self.other(hash, bucket);
            if self.tag(other) == self.tag(bucket) && self.holds(other, extent) && other < bucket {
                found.in_two_buckets += 1;
                self.clear(bucket);
                continue;
            }
            self.version = self.version.max(version + 1);
            places.push(Place { extent, hash });
        }
        places.sort_unstable_by_key(|place| place.extent.at);
        found.keys = places.len() as u64;
        self.keys = found.keys;
        self.live = places.iter().map(|place| u64::from(place.extent.len)).sum();
        self.log = Log::new(self.layout.values_len, places);
        found
    }

    /// Hash, version and place of a bucket's record, if it is one of a key that may be there.
    fn sound(&self, bucket: u64) -> Option<(u64, u64, Extent)> {
        let extent = self.layout.extent(self.word(bucket))?;
        let bytes = self.bytes(extent);
        let record = Record::parse(&bytes)?;
        let hash = self.layout.hash(record.key);
        let sought = self.layout.sought(hash);
        let sound = sought.buckets.contains(&bucket) && layout::tag(sought.fingerprint) == self.tag(bucket);
        sound.then_some((hash, record.version, extent))
    }

    /// Calls this after each store.
    pub fn after_store(&mut self, call: impl FnMut(Stored) + Send + 'm) {
        self.after_store = Some(Box::new(call));
    }
}

/// What it is asked.
impl Table<'_> {
    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Value> {
        let sought = self.layout.sought(self.layout.hash(key));
        let (_, extent) = self.find(&sought, key)?;
        let bytes = self.bytes(extent);
        let record = Record::parse(&bytes)?;
        Some(Value { version: record.version, bytes: record.value.to_vec() })
    }

    /// The whole record of a key, as a reader of the table gets it.
    pub fn record(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (_, extent) = self.find(&self.layout.sought(self.layout.hash(key)), key)?;
        Some(self.bytes(extent))
    }

    /// Sets the value of a key; its version. Others are given up if there is no room.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<u64, Refused> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(Refused::Key(key.len()));
        }
        if value.len() > VALUE_MAX {
            return Err(Refused::Value(value.len()));
        }
        let hash = self.layout.hash(key);
        let sought = self.layout.sought(hash);
        let len = record_len(key.len(), value.len()) as u32;
        let extent = self.make_room(len, hash);
        let version = self.version;
        self.version += 1;
        let mut bytes = vec![0; len as usize];
        Record { version, hash, key, value }.emit(&mut bytes);
        self.write(extent, &bytes);
        match self.find(&sought, key) {
            Some((bucket, old)) => {
                self.live -= u64::from(old.len);
                self.store(bucket, 1, self.layout.word(extent));
            }
            None => {
                let bucket = self.free_bucket(&sought);
                self.fill(bucket, layout::tag(sought.fingerprint), self.layout.word(extent));
                self.keys += 1;
            }
        }
        self.live += u64::from(len);
        self.counters.sets += 1;
        Ok(version)
    }

    /// Deletes a key. False if it was not there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let sought = self.layout.sought(self.layout.hash(key));
        let Some((bucket, extent)) = self.find(&sought, key) else { return false };
        self.give_up(bucket, extent);
        self.counters.deletes += 1;
        true
    }

    /// Deletes all keys.
    pub fn clear_all(&mut self) {
        for bucket in 0..self.layout.buckets {
            if self.tag(bucket) != 0 {
                self.clear(bucket);
                self.counters.deletes += 1;
            }
        }
        (self.keys, self.live) = (0, 0);
    }

    /// Keys that are there.
    pub fn len(&self) -> u64 {
        self.keys
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Bytes of records, and how many they may have.
    pub fn memory(&self) -> (u64, u64) {
        (self.live, self.log.limit())
    }

    /// Where it is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What has happened.
    pub fn counters(&self) -> TableCounters {
        self.counters
    }
}

/// Room in the log.
impl Table<'_> {
    fn make_room(&mut self, len: u32, hash: u64) -> Extent {
        // Versions that are not known any more take no memory once the log's tail has passed them.
        while self.live + u64::from(len) > self.log.limit() {
            let tail = self.log.tail().expect("what is live has a place");
            if let Some(bucket) = self.bucket_of(&tail) {
                self.give_up(bucket, tail.extent);
                self.counters.evicted_by_memory += 1;
            }
            self.log.take_back();
        }
        loop {
            if let Some(extent) = self.log.take(len, hash) {
                return extent;
            }
            self.pass_tail();
        }
    }

    /// Takes the oldest place back. A record that is still needed is moved to the head.
    fn pass_tail(&mut self) {
        let tail = self.log.tail().expect("a log without records has room for any");
        if let Some(bucket) = self.bucket_of(&tail) {
            match self.log.take_for_move(tail.extent.len, tail.hash) {
                Some(extent) => {
                    let bytes = self.bytes(tail.extent);
                    self.write(extent, &bytes);
                    self.store(bucket, 1, self.layout.word(extent));
                    self.counters.records_moved += 1;
                }
                None => {
                    self.give_up(bucket, tail.extent);
                    self.counters.evicted_by_memory += 1;
                }
            }
        }
        self.log.take_back();
    }

    /// The bucket that names a place, if one does.
    fn bucket_of(&self, place: &Place) -> Option<u64> {
        let sought = self.layout.sought(place.hash);
        let tag = layout::tag(sought.fingerprint);
        let names = |bucket: &u64| self.tag(*bucket) == tag && self.holds(*bucket, place.extent);
        sought.buckets.into_iter().find(names)
    }
}

/// Room in the index.
impl Table<'_> {
    /// The bucket and the record of a key.
    fn find(&self, sought: &Sought, key: &[u8]) -> Option<(u64, Extent)> {
        let tag = layout::tag(sought.fingerprint);
        sought.buckets.into_iter().find_map(|bucket| {
            let extent = self.layout.extent(self.word(bucket)).filter(|_| self.tag(bucket) == tag)?;
            let bytes = self.bytes(extent);
            Record::parse(&bytes).filter(|record| record.key == key).map(|_| (bucket, extent))
        })
    }

    /// One of a key's two buckets, free: others were moved on, or one was given up.
    fn free_bucket(&mut self, sought: &Sought) -> u64 {
        let [first, second] = sought.buckets;
        let (one, two) = (self.path(first), self.path(second));
        let shorter = match (&one, &two) {
            (Some(one), Some(two)) if two.len() < one.len() => Some(two),
            (Some(one), _) => Some(one),
            (None, two) => two.as_ref(),
        };
        let Some(path) = shorter else { return self.give_up_older(sought) };
        for pair in path.windows(2).rev() {
            let (from, to) = (pair[0], pair[1]);
            self.fill(to, self.tag(from), self.word(from));
            self.clear(from);
            self.counters.buckets_moved += 1;
        }
        path[0]
    }

    /// From a bucket, each next one is where the key of the one before may be too, and the last one is free.
    fn path(&self, first: u64) -> Option<Vec<u64>> {
        let mut path = vec![first];
        loop {
            let last = *path.last().unwrap_or(&first);
            if self.tag(last) == 0 {
                return Some(path);
            }
            let next = self.other(self.hash_in(last)?, last);
            if path.len() > PATH_MAX || path.contains(&next) {
                return None;
            }
            path.push(next);
        }
    }

    /// Gives up the key in one of two full buckets that was written first.
    fn give_up_older(&mut self, sought: &Sought) -> u64 {
        let age = |bucket: &u64| self.sound(*bucket).map(|(_, version, _)| version);
        let [first, second] = sought.buckets;
        let bucket = if age(&first) <= age(&second) { first } else { second };
        match self.layout.extent(self.word(bucket)) {
            Some(extent) => self.give_up(bucket, extent),
            None => self.clear(bucket),
        }
        self.counters.evicted_by_index += 1;
        bucket
    }

    fn give_up(&mut self, bucket: u64, extent: Extent) {
        self.clear(bucket);
        self.live -= u64::from(extent.len);
        self.keys -= 1;
    }

    /// The hash of the key in a bucket.
    fn hash_in(&self, bucket: u64) -> Option<u64> {
        let extent = self.layout.extent(self.word(bucket))?;
        let word = self.values[extent.at as usize / 8 + HASH_WORD].load(Ordering::Relaxed);
        Some(u64::from_le_bytes(word.to_ne_bytes()))
    }

    /// The other bucket of a key.
    fn other(&self, hash: u64, bucket: u64) -> u64 {
        let [first, second] = self.layout.sought(hash).buckets;
        if bucket == first { second } else { first }
    }
}

/// Words.
impl Table<'_> {
    fn tag(&self, bucket: u64) -> u64 {
        self.index[bucket as usize * 2].load(Ordering::Acquire)
    }

    fn word(&self, bucket: u64) -> u64 {
        self.index[bucket as usize * 2 + 1].load(Ordering::Acquire)
    }

    fn holds(&self, bucket: u64, extent: Extent) -> bool {
        self.layout.extent(self.word(bucket)) == Some(extent)
    }

    /// Word B, then A: with the second the key is there.
    fn fill(&mut self, bucket: u64, tag: u64, word: u64) {
        self.store(bucket, 1, word);
        self.store(bucket, 0, tag);
    }

    fn clear(&mut self, bucket: u64) {
        self.store(bucket, 0, 0);
    }

    fn store(&mut self, bucket: u64, word: usize, value: u64) {
        // What a reader of the new word finds behind it was written before.
        self.index[bucket as usize * 2 + word].store(value, Ordering::Release);
        self.stored(Stored::Index);
    }

    fn stored(&mut self, what: Stored) {
        if let Some(call) = &mut self.after_store {
            call(what);
        }
    }

    fn write(&mut self, extent: Extent, bytes: &[u8]) {
        let values = self.values;
        let words = values[extent.at as usize / 8..].iter();
        for (word, bytes) in words.zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            self.stored(Stored::Values);
        }
    }

    fn bytes(&self, extent: Extent) -> Vec<u8> {
        let words = &self.values[extent.at as usize / 8..][..extent.len as usize / 8];
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }
}

#[cfg(test)]
mod tests;
