//! Packet formats and units of a RoCEv2 fabric.
//!
//! [`units`] are the numbers everyone shares; [`packet`] is the parsed descriptor that travels
//! inside the NIC; the other modules say how each header lies on the wire.
#![forbid(unsafe_code)]

pub mod bth;
pub mod ext;
pub mod opcode;
pub mod packet;
pub mod units;

pub use bth::Bth;
pub use ext::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use opcode::{Opcode, Operation, Service};
pub use packet::{Flow, Packet};
pub use units::{Duration, Gid, Instant, Key, Psn, QpNumber};

/// UDP destination port of RoCEv2 (IANA).
pub const ROCE_UDP_PORT: u16 = 4791;
