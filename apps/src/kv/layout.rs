//! What stands in a replica's two regions, as clients read it.
//!
//! Index: buckets of eight little-endian words. A word is 0, or says where a record is:
//!
//! ```text
//! 63      48 47            32 31                        0
//!    tag       length / 64           offset / 64
//! ```
//!
//! Log: [records](adverb_rdma::record) at multiples of 64 bytes.

pub use adverb_rdma::record::{KEY_MAX, VALUE_MAX};
pub(super) use adverb_rdma::record::{Record, UNIT, hash, record_len};
use serde::{Deserialize, Serialize};

/// Words of a bucket.
pub(super) const WAYS: usize = 8;
/// Bytes of a bucket.
pub(super) const BUCKET_LEN: usize = WAYS * 8;

/// What a client has to know of a replica.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// A power of two.
    pub buckets: u64,
    /// Bytes of the log.
    pub log_len: u64,
    /// Bytes of a value at most.
    pub value_max: u32,
    /// Of the keys' hashes, drawn by each server, so that nobody knows in advance which keys meet.
    pub seed: u64,
}

impl Layout {
    /// Whether a client can work with it.
    pub fn is_sound(&self) -> bool {
        let Layout { buckets, log_len, value_max, .. } = *self;
        buckets.is_power_of_two()
            && buckets <= 1 << 32
            && value_max as usize <= VALUE_MAX
            && log_len >= record_len(KEY_MAX, value_max as usize) as u64
            && log_len.is_multiple_of(UNIT as u64)
            && log_len <= (UNIT as u64) << 32
    }

    /// Where a key's bucket begins.
    pub fn bucket_at(&self, hash: u64) -> u64 {
        (hash & (self.buckets - 1)) * BUCKET_LEN as u64
    }

    /// Bytes of the longest record.
    pub fn record_max(&self) -> usize {
        record_len(KEY_MAX, self.value_max as usize)
    }
}

/// A word of the index: where a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub tag: u16,
    pub offset: u64,
    pub len: usize,
}

impl Place {
    /// The tag is of bits that do not choose the bucket, unless there are very many.
    pub fn tag_of(hash: u64) -> u16 {
        (hash >> 48) as u16
    }

    pub fn word(self) -> u64 {
        let units = |bytes: u64| bytes / UNIT as u64;
        u64::from(self.tag) << 48 | units(self.len as u64) << 32 | units(self.offset)
    }

    /// `None` when there is no record.
    pub fn from_word(word: u64) -> Option<Place> {
        let len = ((word >> 32) as u16) as usize * UNIT;
        let offset = u64::from(word as u32) * UNIT as u64;
        (len > 0).then_some(Place { tag: (word >> 48) as u16, offset, len })
    }
}

/// Records whose tag is this hash's, in a bucket that was read.
pub(super) fn candidates(bucket: &[u8], hash: u64) -> impl Iterator<Item = Place> {
    let words = bucket.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words.filter_map(Place::from_word).filter(move |place| place.tag == Place::tag_of(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_layouts() {
        let place = Place { tag: 0xbeef, offset: 64 * 0xffff_ffff, len: 64 * 0xffff };
        assert_eq!(Place::from_word(place.word()), Some(place));
        assert_eq!(Place::from_word(0), None);
        assert!(record_len(KEY_MAX, VALUE_MAX) / UNIT <= u16::MAX as usize, "the longest record has a word");
        let sound = Layout { buckets: 64, log_len: 4096, value_max: 1024, seed: 0 };
        assert!(sound.is_sound());
        assert!(!Layout { buckets: 0, ..sound }.is_sound());
        assert!(!Layout { buckets: 63, ..sound }.is_sound());
        assert!(!Layout { log_len: 1024, ..sound }.is_sound());
        assert!(!Layout { log_len: 4095, ..sound }.is_sound());
        assert!(!Layout { value_max: u32::MAX, ..sound }.is_sound());
        let spread: std::collections::BTreeSet<u64> =
            (0..64u32).map(|key| sound.bucket_at(hash(1, &key.to_le_bytes()))).collect();
        assert!(spread.len() > 30, "{} buckets for 64 keys", spread.len());
    }
}
