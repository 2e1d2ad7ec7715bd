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
