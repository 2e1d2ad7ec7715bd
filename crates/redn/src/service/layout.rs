//! What stands in a table's two regions, as chains and clients read it.
//!
//! Index: buckets of 16 bytes, a power of two of them. A key is in one of two buckets. All numbers are
//! big-endian, as WQEs have them, so that a READ takes them from here to where they belong:
//!
//! ```text
//!          0            6        8          11              16
//! bucket   fingerprint  0        length     address
//!          of the key            of record  of record, its lower 40 bits
//!          word A                word B
//! ```
//! Each word is stored whole. An empty bucket's word A is 0. To insert is to store B, then A; to replace a
//! value is one store of B, and to delete one of A. So whoever writes may end after any of these, and each
//! key is there whole, or not at all.
//!
//! Values: [records](adverb_rdma::record) at multiples of 64 bytes. They are written out of place and
//! published afterwards, so a reader's record is torn only if its place was written anew meanwhile.
//!
//! A reader sees the two words of a bucket at two moments, and two buckets at two moments. So what it got is
//! judged by the record's own key; and what it did not find in one order of the two buckets may have been
//! moved from the one to the other, which the opposite order finds.

use adverb_rdma::record;

/// Bytes of a bucket.
pub const BUCKET_LEN: u64 = 16;
/// Bits of an address that a bucket has.
pub const ADDRESS_BITS: u32 = 40;
/// Bytes of a record at most: what a client's buffer has to hold.
pub const RECORD_MAX: usize = record::record_len(record::KEY_MAX, VALUE_MAX);
/// Bytes of a value at most.
pub const VALUE_MAX: usize = 64 << 10;
/// Bits of a fingerprint.
const FINGERPRINT_BITS: u32 = 48;

/// Where a table is, and how keys are spread over it: what a client is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// A power of two, at least 2.
    pub buckets: u64,
    /// Of the keys' hashes, drawn when the table is made, so that nobody knows in advance which keys meet.
    pub seed: u64,
    /// Address of the first bucket, as READs name it.
    pub index: u64,
    /// Address of the first record, as replies and READs name it.
    pub values: u64,
    /// Bytes of the records.
    pub values_len: u64,
}

/// Where a key may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sought {
    /// Its 48 bits, never 0.
    pub fingerprint: u64,
    /// Its two buckets, which are never the same.
    pub buckets: [u64; 2],
}

impl Layout {
    /// Whether tables can be like this. Values do not cross a multiple of 2^40: the upper bits of their
    /// addresses are the same, and stand in the reply since it was loaded.
    pub fn is_sound(&self) -> bool {
        let Layout { buckets, index, values, values_len, .. } = *self;
        let window = |address: u64| address >> ADDRESS_BITS;
        buckets.is_power_of_two()
            && (2..=1 << 32).contains(&buckets)
            && index.is_multiple_of(BUCKET_LEN)
            && index.checked_add(self.index_len()).is_some()
            && values.is_multiple_of(record::UNIT as u64)
            && values_len > 0
            && values.checked_add(values_len - 1).is_some_and(|last| window(values) == window(last))
    }

    /// Bytes of the index.
    pub fn index_len(&self) -> u64 {
        self.buckets * BUCKET_LEN
    }

    /// A key's hash, as its record has it.
    pub fn hash(&self, key: &[u8]) -> u64 {
        record::hash(self.seed, key)
    }

    /// Where a key with this hash may be.
    pub fn sought(&self, hash: u64) -> Sought {
        let first = hash & (self.buckets - 1);
        // Another bucket than the first: so far from it, round the table.
        let step = 1 + mixed(hash) % (self.buckets - 1);
        let second = (first + step) & (self.buckets - 1);
        let fingerprint = mixed(hash ^ 0x9e37_79b9_7f4a_7c15) >> (u64::BITS - FINGERPRINT_BITS);
        Sought { fingerprint: fingerprint.max(1), buckets: [first, second] }
    }

    /// Offset of a bucket in the index.
    pub fn bucket_at(bucket: u64) -> u64 {
        bucket * BUCKET_LEN
    }

    /// Address of a bucket.
    pub fn bucket(&self, bucket: u64) -> u64 {
        self.index + Layout::bucket_at(bucket)
    }

    /// Word B for a record, to be stored as it is.
    pub fn word(&self, extent: Extent) -> u64 {
        let Extent { at, len } = extent;
        debug_assert!(len as usize <= RECORD_MAX && at + u64::from(len) <= self.values_len, "{extent:?}");
        let address = (self.values + at) & ((1 << ADDRESS_BITS) - 1);
        u64::from_ne_bytes((u64::from(len) << ADDRESS_BITS | address).to_be_bytes())
    }

    /// The record that a word B names; `None` for what names none among the values.
    pub fn extent(&self, word: u64) -> Option<Extent> {
        let number = u64::from_be_bytes(word.to_ne_bytes());
        let len = (number >> ADDRESS_BITS) as u32;
        let address = number & ((1 << ADDRESS_BITS) - 1);
        let at = address.checked_sub(self.values & ((1 << ADDRESS_BITS) - 1))?;
        let sound = len > 0
            && len as usize <= RECORD_MAX
            && (len as usize).is_multiple_of(record::UNIT)
            && at.is_multiple_of(record::UNIT as u64)
            && at.checked_add(len.into())? <= self.values_len;
        sound.then_some(Extent { at, len })
    }
}

/// Where a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset among the values.
    pub at: u64,
    /// Bytes of the whole record.
    pub len: u32,
}

/// Word A for a fingerprint, to be stored as it is. 0 says that a bucket is empty.
pub fn tag(fingerprint: u64) -> u64 {
    u64::from_ne_bytes((fingerprint << (u64::BITS - FINGERPRINT_BITS)).to_be_bytes())
}

/// The fingerprint of a word A; 0 if there is none.
pub fn fingerprint(tag: u64) -> u64 {
    u64::from_be_bytes(tag.to_ne_bytes()) >> (u64::BITS - FINGERPRINT_BITS)
}

/// Another number, of which all bits depend on all (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LAYOUT: Layout = Layout {
        buckets: 1 << 10,
        seed: 7,
        index: 0x7f12_3456_0000,
        values: 0x7fff_ff00_0000,
        values_len: 0x100_0000,
    };

    #[test]
    fn a_layout_is_sound_or_not() {
        assert!(LAYOUT.is_sound());
        assert!(Layout { buckets: 2, ..LAYOUT }.is_sound());
        for buckets in [0, 1, 3, 1 << 33] {
            assert!(!Layout { buckets, ..LAYOUT }.is_sound(), "{buckets}");
        }
        assert!(!Layout { index: LAYOUT.index + 8, ..LAYOUT }.is_sound());
        assert!(!Layout { index: u64::MAX - 15, ..LAYOUT }.is_sound());
        assert!(!Layout { values: LAYOUT.values + 32, ..LAYOUT }.is_sound());
        assert!(!Layout { values_len: 0, ..LAYOUT }.is_sound());
        // One byte more lies in the next 2^40.
        assert!(!Layout { values_len: LAYOUT.values_len + 1, ..LAYOUT }.is_sound());
    }

    /// A word is the bytes that the index has: the fingerprint's highest first, then length and address.
    #[test]
    fn words_are_the_bytes_of_a_bucket() {
        assert_eq!(tag(0x0102_0304_0506).to_ne_bytes(), [1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(fingerprint(tag(0x0102_0304_0506)), 0x0102_0304_0506);
        assert_eq!((tag(0), fingerprint(0)), (0, 0));
        let extent = Extent { at: 0x40, len: 0x01_0140 };
        let word = LAYOUT.word(extent);
        assert_eq!(word.to_ne_bytes(), [1, 1, 0x40, 0xff, 0xff, 0, 0, 0x40]);
        assert_eq!(LAYOUT.extent(word), Some(extent));
    }

    #[test]
    fn every_record_has_a_word_and_every_word_a_record_or_none() {
        let last = LAYOUT.values_len - RECORD_MAX as u64;
        for extent in [Extent { at: 0, len: 64 }, Extent { at: last, len: RECORD_MAX as u32 }] {
            assert_eq!(LAYOUT.extent(LAYOUT.word(extent)), Some(extent));
        }
        let named = |len: u64, address: u64| {
            LAYOUT.extent(u64::from_ne_bytes((len << ADDRESS_BITS | address).to_be_bytes()))
        };
        let first = LAYOUT.values & ((1 << ADDRESS_BITS) - 1);
        assert!(named(64, first).is_some());
        assert_eq!(named(0, first), None);
        assert_eq!(named(65, first), None);
        assert_eq!(named(64, first + 8), None);
        assert_eq!(named(64, first - 64), None, "before the first record");
        assert_eq!(named(128, first + LAYOUT.values_len - 64), None, "past the last record");
        assert_eq!(named(RECORD_MAX as u64 + 64, first), None);
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let word = random.u64(..);
            if let Some(extent) = LAYOUT.extent(word) {
                assert_eq!(LAYOUT.word(extent), word);
            }
        }
    }

    #[test]
    fn keys_have_two_buckets_and_a_fingerprint() {
        for buckets in [2, 4, 1 << 10, 1 << 32] {
            let layout = Layout { buckets, ..LAYOUT };
            for key in 0..1000u32 {
                let sought = layout.sought(layout.hash(&key.to_le_bytes()));
                assert!(sought.fingerprint > 0 && sought.fingerprint < 1 << 48);
                assert!(sought.buckets.iter().all(|bucket| *bucket < buckets));
                assert_ne!(sought.buckets[0], sought.buckets[1]);
            }
        }
        let soughts: Vec<Sought> =
            (0..4096u32).map(|key| LAYOUT.sought(LAYOUT.hash(&key.to_le_bytes()))).collect();
        let distinct = |of: &dyn Fn(&Sought) -> u64| soughts.iter().map(of).collect::<BTreeSet<u64>>().len();
        assert_eq!(distinct(&|sought| sought.fingerprint), 4096);
        assert!(distinct(&|sought| sought.buckets[0]) > 900);
        assert!(distinct(&|sought| sought.buckets[1]) > 900);
        // Keys that share their first bucket spread over the second ones.
        let shared: Vec<u64> =
            soughts.iter().filter(|sought| sought.buckets[0] < 64).map(|sought| sought.buckets[1]).collect();
        assert!(shared.iter().collect::<BTreeSet<_>>().len() * 10 > shared.len() * 7, "{}", shared.len());
    }
}
