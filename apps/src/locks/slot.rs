//! A record: two slots that are written in turns, so that one of them is whole whenever its writer dies.

/// Sequence number, length and checksum.
pub const HEAD: usize = 16;

/// Bytes of a slot for values of up to so many, whole cache lines.
pub fn slot_len(value_max: u32) -> u64 {
    (HEAD as u64 + u64::from(value_max)).next_multiple_of(64)
}

/// Bytes of a record.
pub fn record_len(value_max: u32) -> u64 {
    2 * slot_len(value_max)
}

/// Which slot of its record a sequence number's value lies in.
pub fn place(seq: u64) -> u64 {
    seq % 2
}

/// A slot's bytes.
pub fn emit(lock: u32, seq: u64, value: &[u8]) -> Vec<u8> {
    let mut out = seq.to_le_bytes().to_vec();
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(&checksum(lock, seq, value).to_le_bytes());
    out.extend_from_slice(value);
    out
}

/// What a lock's record holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Current {
    /// How often it was written.
    pub seq: u64,
    /// The value; empty at first.
    pub value: Vec<u8>,
}

/// The current value of a record; `None` if neither slot is whole. A slot of zeros is one that was never
/// written.
pub fn current(lock: u32, record: &[u8]) -> Option<Current> {
    let (first, second) = record.split_at(record.len() / 2);
    let blank = |slot: &[u8]| slot.iter().all(|byte| *byte == 0);
    let found = [first, second].into_iter().zip(0..).filter_map(|(slot, at)| parse(lock, at, slot));
    match found.max_by_key(|current| current.seq) {
        Some(current) => Some(current),
        // The first value goes to the second slot, and may be under way.
        None if blank(first) => Some(Current { seq: 0, value: Vec::new() }),
        None => None,
    }
}

/// Whether no slot of a record is torn: each is whole, or was never written.
pub fn is_whole(lock: u32, record: &[u8]) -> bool {
    let (first, second) = record.split_at(record.len() / 2);
    let good =
        |(slot, at): (&[u8], u64)| slot.iter().all(|byte| *byte == 0) || parse(lock, at, slot).is_some();
    [(first, 0), (second, 1)].into_iter().all(good)
}

fn parse(lock: u32, at: u64, slot: &[u8]) -> Option<Current> {
    let (seq, rest) = slot.split_first_chunk::<8>()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let (seq, len) = (u64::from_le_bytes(*seq), u32::from_le_bytes(*len));
    let value = rest.get(..usize::try_from(len).ok()?)?;
    let sound = seq != 0 && place(seq) == at && u32::from_le_bytes(*crc) == checksum(lock, seq, value);
    sound.then(|| Current { seq, value: value.to_vec() })
}

fn checksum(lock: u32, seq: u64, value: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&lock.to_le_bytes());
    crc.update(&seq.to_le_bytes());
    crc.update(&(value.len() as u32).to_le_bytes());
    crc.update(value);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(slots: [&[u8]; 2]) -> Vec<u8> {
        let mut out = vec![0; record_len(100) as usize];
        out[..slots[0].len()].copy_from_slice(slots[0]);
        let half = out.len() / 2;
        out[half..half + slots[1].len()].copy_from_slice(slots[1]);
        out
    }

    fn value(record: &[u8]) -> Option<(u64, Vec<u8>)> {
        current(3, record).map(|current| (current.seq, current.value))
    }

    #[test]
    fn the_newer_whole_slot_is_the_value() {
        let (old, new) = (emit(3, 4, b"old"), emit(3, 5, b"newer"));
        assert_eq!(value(&record([&old, &new])), Some((5, b"newer".to_vec())));
        assert_eq!(value(&record([&emit(3, 6, b"newest"), &new])), Some((6, b"newest".to_vec())));
        for whole in [record([&old, &new]), record([&[], &new]), record([&[], &[]])] {
            assert!(is_whole(3, &whole));
        }
        assert_eq!(value(&record([&[], &[]])), Some((0, Vec::new())), "nothing was stored yet");
        assert_eq!(value(&record([&[], &emit(3, 1, b"first")])), Some((1, b"first".to_vec())));
    }

    #[test]
    fn a_torn_slot_leaves_the_older_one() {
        let (old, new) = (emit(3, 4, b"old"), emit(3, 5, b"newer"));
        for bit in 0..new.len() * 8 {
            let mut torn = new.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(value(&record([&old, &torn])), Some((4, b"old".to_vec())), "bit {bit}");
            assert!(!is_whole(3, &record([&old, &torn])), "bit {bit}");
        }
        // The first value, of which a part has come.
        let first = emit(3, 1, b"first");
        for len in 1..first.len() {
            assert_eq!(value(&record([&[], &first[..len]])), Some((0, Vec::new())), "{len} bytes");
        }
        assert_eq!(value(&record([&old[..9], &new[..9]])), None, "neither is whole");
    }

    #[test]
    fn another_lock_s_slot_or_a_misplaced_one_is_no_value() {
        let old = emit(3, 4, b"old");
        assert_eq!(value(&record([&old, &emit(2, 5, b"other")])), Some((4, b"old".to_vec())));
        assert_eq!(value(&record([&old, &emit(3, 6, b"misplaced")])), Some((4, b"old".to_vec())));
        let mut long = emit(3, 5, b"longer than the slot");
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(value(&record([&old, &long])), Some((4, b"old".to_vec())));
    }
}
