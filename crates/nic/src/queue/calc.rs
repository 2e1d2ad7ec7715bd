//! What a SEND or WRITE may compute of its data before it is sent: vector calculations of mlx5, as far as
//! this NIC has them (MAX and MIN of 64-bit integers).
//!
//! Layout and numbers of the two segments are public; what the operands look like is not, so that the format
//! is our own. The data is a row of vectors of one length, each a row of entries of 16 bytes: a value, then a
//! location that goes with it. The result is one vector: of each place the entry with the greatest, or least,
//! value among the vectors, of equal ones the first.

use super::wqe::{OPMOD_CALC, SEGMENT, WqeFault};
use crate::limits;

/// Segments that it takes.
const SEGMENTS: u8 = 2;
/// Bytes of an entry: value and location.
pub const ENTRY: usize = 16;
/// Flag of the options: values are little-endian.
const LITTLE_ENDIAN: u32 = 1 << 22;
/// Codes of the types.
const INT64: u32 = 4;
const UINT64: u32 = 5;

/// Which entry is the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CalcOp {
    /// The greatest.
    Max = 2,
    /// The least.
    Min = 6,
}

/// A calculation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calc {
    /// What is computed.
    pub op: CalcOp,
    /// Values may be negative.
    pub signed: bool,
    /// Values are big-endian, as addresses in WQEs are; little-endian otherwise.
    pub big_endian: bool,
    /// Vectors that the data consists of.
    pub vectors: u16,
}

/// Why a calculation cannot be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CalcFault {
    /// More data than this NIC takes.
    TooLong,
    /// The data is not so many vectors of whole entries.
    Shape,
}

impl CalcFault {
    pub const fn rule(self) -> &'static str {
        match self {
            CalcFault::TooLong => "a calculation takes at most 8192 bytes of data",
            CalcFault::Shape => "a calculation's data is a row of vectors of 16-byte entries",
        }
    }
}

impl Calc {
    /// Segments that the operation modifier of a message asks for.
    #[cold]
    pub(super) fn segments(modifier: u8) -> Result<u8, WqeFault> {
        if modifier == OPMOD_CALC { Ok(SEGMENTS) } else { Err(WqeFault::UnknownModifier) }
    }

    /// Reads its segments. `None` for what this NIC does not compute.
    pub fn read(first: &[u8; SEGMENT], _second: &[u8; SEGMENT]) -> Option<Calc> {
        let word = |at: usize| u32::from_be_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
        let options = word(12);
        let op = match word(0) >> 24 {
            2 => CalcOp::Max,
            6 => CalcOp::Min,
            _ => return None,
        };
        let signed = match options >> 24 {
            INT64 => true,
            UINT64 => false,
            _ => return None,
        };
        let vectors = options as u16;
        (vectors > 0).then_some(Calc { op, signed, big_endian: options & LITTLE_ENDIAN == 0, vectors })
    }

    /// Writes its segments, word by word.
    pub fn write(self, mut segment: impl FnMut([u32; 4])) {
        let Calc { op, signed, big_endian, vectors } = self;
        let order = if big_endian { 0 } else { LITTLE_ENDIAN };
        let options = (if signed { INT64 } else { UINT64 }) << 24 | order | u32::from(vectors);
        segment([(op as u32) << 24, 0, 0, options]);
        segment([0; 4]);
    }

    /// The bytes of the result of `len` bytes of data.
    pub(crate) fn result_len(&self, len: u32) -> Result<usize, CalcFault> {
        let len = len as usize;
        if len > limits::MAX_CALC {
            return Err(CalcFault::TooLong);
        }
        let vectors = usize::from(self.vectors);
        if len == 0 || !len.is_multiple_of(vectors * ENTRY) {
            return Err(CalcFault::Shape);
        }
        Ok(len / vectors)
    }

    /// Computes: the result comes to stand at the beginning of the data.
    pub(crate) fn compute(&self, data: &mut [u8], width: usize) {
        let (result, others) = data.split_at_mut(width);
        for vector in others.chunks_exact(width) {
            for (best, entry) in result.chunks_exact_mut(ENTRY).zip(vector.chunks_exact(ENTRY)) {
                let (new, old) = (self.value(entry), self.value(best));
                let better = match self.op {
                    CalcOp::Max => new > old,
                    CalcOp::Min => new < old,
                };
                if better {
                    best.copy_from_slice(entry);
                }
            }
        }
    }

    /// The value of an entry, on a scale that holds both kinds.
    fn value(&self, entry: &[u8]) -> i128 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&entry[..8]);
        let value = if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
        if self.signed { i128::from(value as i64) } else { i128::from(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: u64, location: u64) -> Vec<u8> {
        [value.to_le_bytes(), location.to_le_bytes()].concat()
    }

    #[test]
    fn the_greatest_and_the_least_come_with_their_location() {
        let vectors = [[(3, 0), (9, 1)], [(u64::MAX, 2), (1, 3)], [(3, 4), (9, 5)]];
        let data: Vec<u8> = vectors.iter().flatten().flat_map(|(v, at)| entry(*v, *at)).collect();
        let calc = Calc { op: CalcOp::Max, signed: false, big_endian: false, vectors: 3 };
        let width = calc.result_len(data.len() as u32).unwrap();
        assert_eq!(width, 32);
        let result = |calc: Calc| {
            let mut data = data.clone();
            calc.compute(&mut data, width);
            data[..width].to_vec()
        };
        assert_eq!(result(calc), [entry(u64::MAX, 2), entry(9, 1)].concat(), "of equal ones the first");
        let min = Calc { op: CalcOp::Min, ..calc };
        assert_eq!(result(min), [entry(3, 0), entry(1, 3)].concat());
        // The same bits as -1.
        let signed = Calc { signed: true, ..calc };
        assert_eq!(result(signed), [entry(3, 0), entry(9, 1)].concat());
        assert_eq!(result(Calc { op: CalcOp::Min, ..signed }), [entry(u64::MAX, 2), entry(1, 3)].concat());
        // 256 is more than 255, but its bytes in the other order are less.
        let both = [entry(256, 0), entry(255, 1)].concat();
        for (big_endian, greatest) in [(false, entry(256, 0)), (true, entry(255, 1))] {
            let mut data = both.clone();
            Calc { big_endian, vectors: 2, ..calc }.compute(&mut data, 16);
            assert_eq!(data[..16], greatest);
        }
    }

    #[test]
    fn data_that_is_no_row_of_vectors_is_refused() {
        let calc = Calc { op: CalcOp::Max, signed: false, big_endian: false, vectors: 2 };
        assert_eq!(calc.result_len(32), Ok(16));
        for len in [0, 16, 31, 33, 40, 48] {
            assert_eq!(calc.result_len(len), Err(CalcFault::Shape), "{len}");
        }
        assert_eq!(calc.result_len(limits::MAX_CALC as u32), Ok(limits::MAX_CALC / 2));
        assert_eq!(calc.result_len(limits::MAX_CALC as u32 + 32), Err(CalcFault::TooLong));
    }

    #[test]
    fn segments_are_read_as_they_were_written() {
        for op in [CalcOp::Max, CalcOp::Min] {
            for bits in 0..4 {
                let calc = Calc { op, signed: bits & 1 != 0, big_endian: bits & 2 != 0, vectors: 7 };
                let mut segments = Vec::new();
                calc.write(|words| {
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
                    segments.push(<[u8; SEGMENT]>::try_from(bytes).unwrap());
                });
                assert_eq!(Calc::read(&segments[0], &segments[1]), Some(calc));
                segments[0][0] = 1;
                assert_eq!(Calc::read(&segments[0], &segments[1]), None, "ADD is not computed");
            }
        }
    }
}
