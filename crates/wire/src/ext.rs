//! Extended transport headers (IBTA 9.3-9.8): RETH, AtomicETH, AETH, AtomicAckETH, ImmDt, IETH, DETH, XRCETH.

use crate::units::{Key, QpNumber};

/// RDMA extended transport header, 16 bytes (IBTA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reth {
    /// Virtual address in the target's region.
    pub va: u64,
    /// Target's key.
    pub rkey: Key,
    /// Length of the whole message in bytes, at most 2^31.
    pub len: u32,
}

/// Atomic extended transport header, 28 bytes (IBTA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtomicEth {
    /// Virtual address, 8-byte aligned.
    pub va: u64,
    /// Target's key.
    pub rkey: Key,
    /// Value to store (CAS) or to add (FETCH-ADD), host order.
    pub swap_add: u64,
    /// Value to compare with (CAS), host order.
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes (IBTA 9.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source queue pair.
    pub src_qp: QpNumber,
}

/// ACK extended transport header, 4 bytes (IBTA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aeth {
    /// What is acknowledged and how.
    pub syndrome: Syndrome,
    /// Message sequence number of the responder, 24 bits: messages completed so far.
    pub msn: u32,
}

/// AETH syndrome byte (IBTA 9.7.5.1.2, table 47).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement with an encoded credit count, 0..=31; 31 means credits are not used.
    Ack {
        /// Encoded end-to-end credits.
        credits: u8,
    },
    /// Receiver not ready; wait for the encoded time, 0..=31 (IBTA table 49).
    RnrNak {
        /// Encoded wait.
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Reserved encodings; ignored and counted.
    Reserved(u8),
}

/// NAK codes (IBTA 9.7.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A gap in the PSNs: go back to the PSN in this packet.
    PsnSequenceError = 0,
    /// Malformed or unsupported request, or one that breaks the rules of message framing.
    InvalidRequest = 1,
    /// Key, bounds or rights check failed.
    RemoteAccessError = 2,
    /// The responder failed for reasons of its own, such as a bad receive WQE.
    RemoteOperationalError = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl Default for Syndrome {
    fn default() -> Self {
        Syndrome::Ack { credits: Self::NO_CREDITS }
    }
}

impl Syndrome {
    /// Credit code for "end-to-end flow control is not used" (IBTA table 48).
    pub const NO_CREDITS: u8 = 31;

    /// Reads the byte.
    pub const fn from_wire(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: value },
            1 => Syndrome::RnrNak { timer: value },
            3 => match value {
                0 => Syndrome::Nak(NakCode::PsnSequenceError),
                1 => Syndrome::Nak(NakCode::InvalidRequest),
                2 => Syndrome::Nak(NakCode::RemoteAccessError),
                3 => Syndrome::Nak(NakCode::RemoteOperationalError),
                4 => Syndrome::Nak(NakCode::InvalidRdRequest),
                _ => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte on the wire.
    pub const fn wire(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | (timer & 0x1f),
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// The `N` bytes at `at` of a larger header; lengths are known at compile time.
#[inline]
fn at<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Reth {
            va: u64::from_be_bytes(at(b, 0)),
            rkey: Key(u32::from_be_bytes(at(b, 8))),
            len: u32::from_be_bytes(at(b, 12)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..].copy_from_slice(&self.len.to_be_bytes());
    }
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        AtomicEth {
            va: u64::from_be_bytes(at(b, 0)),
            rkey: Key(u32::from_be_bytes(at(b, 8))),
            swap_add: u64::from_be_bytes(at(b, 12)),
            compare: u64::from_be_bytes(at(b, 20)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.va.to_be_bytes());
        out[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        out[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// Bytes of the masks of a masked compare and swap.
pub const MASKS_LEN: usize = 16;

/// The masks of a masked compare and swap, from its payload: of what is swapped, and of what is compared.
/// They stand as in mlx5's WQE.
pub fn masks(payload: &[u8; MASKS_LEN]) -> (u64, u64) {
    (u64::from_be_bytes(at(payload, 0)), u64::from_be_bytes(at(payload, 8)))
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header and its reserved byte.
    #[inline]
    pub(crate) fn read(b: &[u8; Self::LEN]) -> (Self, u8) {
        let src_qp = QpNumber::new(u32::from_be_bytes(at(b, 4)));
        (Deth { qkey: u32::from_be_bytes(at(b, 0)), src_qp }, b[4])
    }

    /// Writes the header.
    #[inline]
    pub(crate) fn write(&self, reserved: u8, out: &mut [u8; Self::LEN]) {
        out[..4].copy_from_slice(&self.qkey.to_be_bytes());
        out[4..].copy_from_slice(&u24_after(reserved, self.src_qp.get()));
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Aeth { syndrome: Syndrome::from_wire(b[0]), msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Writes the header; the low 24 bits of the MSN travel.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        *out = u24_after(self.syndrome.wire(), self.msn);
    }
}

/// A byte followed by the low 24 bits of `value`, a shape that AETH, DETH and XRCETH share.
#[inline]
pub(crate) fn u24_after(byte: u8, value: u32) -> [u8; 4] {
    let [_, a, b, c] = value.to_be_bytes();
    [byte, a, b, c]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_survive() {
        for byte in 0..=255u8 {
            assert_eq!(Syndrome::from_wire(byte).wire(), byte);
        }
        assert_eq!(Syndrome::from_wire(0x1f), Syndrome::default());
        assert_eq!(Syndrome::from_wire(0x60), Syndrome::Nak(NakCode::PsnSequenceError));
    }

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut out = [0; 28];
        let atomic = AtomicEth { va: 0x0102_0304_0506_0708, rkey: Key(9), swap_add: 10, compare: 11 };
        atomic.write(&mut out);
        assert_eq!(out[..12], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9]);
        assert_eq!((out[19], out[27]), (10, 11));
        assert_eq!(AtomicEth::read(&out), atomic);

        let mut out = [0; 8];
        Deth { qkey: 0x8001_0000, src_qp: QpNumber::new(0x11) }.write(0xa5, &mut out);
        assert_eq!(out, [0x80, 1, 0, 0, 0xa5, 0, 0, 0x11]);
        assert_eq!(Deth::read(&out).1, 0xa5);
    }
}
