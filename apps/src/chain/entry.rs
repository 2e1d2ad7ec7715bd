//! An entry: where it stands, whose it is, what follows it, and a value. All but `next` is written once,
//! before anybody is told of the entry.

/// Bytes before the value.
pub const HEAD: usize = 40;
/// Bytes behind the value that are never used: a READ that leaves them out is not of an entry's length, and
/// no switch steers it.
pub const PAD: u64 = 8;

/// Bytes of an entry for values of up to so many: whole cache lines.
pub fn entry_len(value_max: u32) -> u64 {
    (HEAD as u64 + u64::from(value_max) + PAD).next_multiple_of(64)
}

/// An entry that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Address of the one behind it; 0 if it is the last.
    pub next: u64,
    /// Whose chain it is in.
    pub key: u64,
    /// Who wrote it, and the how manieth that is: client:32 count:32. No two entries have the same.
    pub version: u64,
    /// Its own address: a switch may have given another one than the one that was asked for.
    pub place: u64,
    /// The value.
    pub value: Vec<u8>,
}

impl Entry {
    /// Its bytes, with the value's as the last ones.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.value.len());
        for word in [self.next, self.key, self.version, self.place] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(self.value.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.checksum().to_le_bytes());
        out.extend_from_slice(&self.value);
        out
    }

    /// An entry, if these bytes are a whole one.
    pub fn parse(bytes: &[u8]) -> Option<Entry> {
        let (next, rest) = word(bytes)?;
        let (key, rest) = word(rest)?;
        let (version, rest) = word(rest)?;
        let (place, rest) = word(rest)?;
        let (lens, rest) = word(rest)?;
        let value = rest.get(..lens as u32 as usize)?.to_vec();
        let entry = Entry { next, key, version, place, value };
        (entry.checksum() == (lens >> 32) as u32).then_some(entry)
    }

    /// Of all but `next`, which changes once.
    fn checksum(&self) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        for word in [self.key, self.version, self.place] {
            crc.update(&word.to_le_bytes());
        }
        crc.update(&(self.value.len() as u32).to_le_bytes());
        crc.update(&self.value);
        crc.finalize()
    }
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry { next: 0, key: 7, version: 3 << 32 | 1, place: 0x1000, value: b"value".to_vec() }
    }

    #[test]
    fn an_entry_reads_as_it_was_written_and_its_next_may_change() {
        let mut bytes = entry().emit();
        bytes.resize(entry_len(100) as usize - PAD as usize, 0);
        assert_eq!(Entry::parse(&bytes), Some(entry()));
        bytes[..8].copy_from_slice(&0x2000u64.to_le_bytes());
        assert_eq!(Entry::parse(&bytes), Some(Entry { next: 0x2000, ..entry() }));
        // The key lies where a switch looks for it.
        assert_eq!(bytes[8..16], 7u64.to_le_bytes());
    }

    #[test]
    fn any_other_bit_that_differs_is_noticed() {
        let bytes = entry().emit();
        for bit in 64..bytes.len() * 8 {
            let mut torn = bytes.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Entry::parse(&torn), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Entry::parse(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(Entry::parse(&[0; 256]), None, "a place that was never written");
    }

    #[test]
    fn an_entry_has_room_for_its_value_and_the_pad() {
        for (value, len) in [(1, 64), (16, 64), (17, 128), (80, 128), (4048, 4096)] {
            assert_eq!(entry_len(value), len, "{value}");
        }
    }
}
