//! Records: keys and values in memory that peers read while it is written, so that a reader knows a whole
//! one from a torn one.
//!
//! A record stands at a multiple of 64 bytes and takes a multiple of 64. It is a header, key, value, zeros,
//! and its version again in its last 8 bytes, all little-endian:
//!
//! ```text
//! 0        8       12      14      16        20       24      32
//! version  CRC-32  key     0       value     0        hash    key, value ...
//!          of all  length          length             of key
//! ```
//!
//! The CRC covers the record with its own field as zeros.

/// Bytes of a key at most.
pub const KEY_MAX: usize = 256;
/// Bytes of a value at most.
pub const VALUE_MAX: usize = 1 << 20;
/// A record takes a multiple of these.
pub const UNIT: usize = 64;
const HEADER_LEN: usize = 32;
const TAIL_LEN: usize = 8;

/// Spreads keys over buckets: FNV-1a, and the finalizer of MurmurHash3 so that all bits depend on all.
pub fn hash(seed: u64, key: &[u8]) -> u64 {
    let fnv = key.iter().fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mixed = (fnv ^ (fnv >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

/// Bytes of a record.
pub const fn record_len(key: usize, value: usize) -> usize {
    (HEADER_LEN + key + value + TAIL_LEN).next_multiple_of(UNIT)
}

/// A record that was read whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Not 0, and another one each time that these bytes are written.
    pub version: u64,
    /// The key's, seeded.
    pub hash: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Record<'a> {
    /// Writes it where it fits exactly.
    pub fn emit(&self, out: &mut [u8]) {
        let (key, value) = (self.key, self.value);
        assert_eq!(out.len(), record_len(key.len(), value.len()), "room for a record");
        out.fill(0);
        out[..8].copy_from_slice(&self.version.to_le_bytes());
        out[12..14].copy_from_slice(&(key.len() as u16).to_le_bytes());
        out[16..20].copy_from_slice(&(value.len() as u32).to_le_bytes());
        out[24..32].copy_from_slice(&self.hash.to_le_bytes());
        out[HEADER_LEN..][..key.len()].copy_from_slice(key);
        out[HEADER_LEN + key.len()..][..value.len()].copy_from_slice(value);
        let tail = out.len() - TAIL_LEN;
        out[tail..].copy_from_slice(&self.version.to_le_bytes());
        let crc = checksum(out);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// What stands in these bytes, unless they are torn: of several records, or of one that was being
    /// written.
    pub fn parse(bytes: &'a [u8]) -> Option<Record<'a>> {
        let word =
            |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        let tail = bytes.len().checked_sub(TAIL_LEN)?;
        let version = word(0)?;
        let (key_len, value_len) = ((word(8)? >> 32) as u16 as usize, word(16)? as u32 as usize);
        let sound = version != 0
            && word(tail)? == version
            && key_len <= KEY_MAX
            && value_len <= VALUE_MAX
            && bytes.len() == record_len(key_len, value_len)
            && word(8)? as u32 == checksum(bytes);
        let (key, rest) = bytes.get(HEADER_LEN..)?.split_at_checked(key_len)?;
        sound.then_some(Record { version, hash: word(24)?, key, value: rest.get(..value_len)? })
    }
}

fn checksum(record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&record[..8]);
    crc.update(&[0; 4]);
    crc.update(&record[12..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn emitted(version: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xee; record_len(key.len(), value.len())];
        Record { version, hash: hash(7, key), key, value }.emit(&mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_record_reads_as_it_was_written(
            version in 1u64.., key in prop::collection::vec(any::<u8>(), 1..=KEY_MAX),
            value in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let bytes = emitted(version, &key, &value);
            let record = Record::parse(&bytes).unwrap();
            prop_assert_eq!((record.version, record.key, record.value), (version, &key[..], &value[..]));
            prop_assert_eq!(record.hash, hash(7, &key));
        }

        /// The log goes over an old record while it is read: the reader gets any mix of the bytes that stood
        /// there before and after.
        #[test]
        fn a_torn_record_is_never_taken_for_a_whole_one(
            lens in (1usize..80, 0usize..400, 0usize..400), shift in 0usize..4,
            same_version in any::<bool>(), cuts in prop::collection::vec((0usize..700, any::<bool>()), 1..12),
            fill in any::<[u8; 3]>(),
        ) {
            let (key, old_len, new_len) = lens;
            let old = emitted(5, &vec![fill[0]; key], &vec![fill[1]; old_len]);
            let version = if same_version { 5 } else { 6 };
            let new = emitted(version, &vec![fill[0]; key], &vec![fill[2]; new_len]);
            // The new record begins there or a little before, as the head of the log comes along.
            let mut after = vec![0x77; shift * UNIT];
            after.extend_from_slice(&new);
            let byte = |i: usize| *after.get(i + shift * UNIT).unwrap_or(&old[i]);
            let after: Vec<u8> = (0..old.len()).map(byte).collect();
            let mut seen = old.clone();
            let mut from_new = false;
            let mut cuts = cuts;
            cuts.sort_unstable();
            let mut at = 0;
            for (to, next) in cuts.into_iter().chain([(old.len(), false)]) {
                let to = to.min(old.len());
                if from_new && at < to {
                    seen[at..to].copy_from_slice(&after[at..to]);
                }
                (at, from_new) = (to.max(at), next);
            }
            match Record::parse(&seen) {
                // Whole, old or new: which is all that may be seen.
                Some(_) => prop_assert!(seen == old || seen == new[..new.len().min(seen.len())]),
                None => prop_assert!(seen != old),
            }
        }

        #[test]
        fn any_bytes_are_a_record_or_torn(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            prop_assert!(Record::parse(&bytes).is_none(), "a CRC by chance");
        }

        #[test]
        fn any_flipped_bit_is_noticed(
            at in any::<prop::sample::Index>(),
            value in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut bytes = emitted(9, b"key", &value);
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Record::parse(&bytes).is_none(), "bit {}", bit);
        }
    }
}
