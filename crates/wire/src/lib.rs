//! Packet formats and units of a RoCEv2 fabric.
//!
//! [`units`] are the numbers everyone shares; [`packet`] is the parsed descriptor that travels
//! inside the NIC; the other modules say how each header lies on the wire.
#![forbid(unsafe_code)]

pub mod arp;
pub mod bth;
pub mod cm;
mod emit;
pub mod error;
pub mod eth;
pub mod ext;
pub mod icrc;
pub mod ip;
pub mod irn;
pub mod neighbour;
pub mod one_rma;
pub mod opcode;
mod over;
pub mod packet;
pub mod pcap;
pub mod rewrite;
pub mod star;
pub mod udp;
pub mod units;

pub use bth::Bth;
pub use error::ParseError;
pub use ext::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use icrc::{ICRC_LEN, Icrc, infer_ipv4_id, seal, verify_ip, verify_udp, verify_udp_as};
pub use irn::{IrnEth, SackEth, WriteLength};
pub use opcode::{Headers, Opcode, Operation, Service};
pub use over::OVER_PAYLOAD_MAX;
pub use packet::{
    CNP_PAYLOAD, Flow, MAX_BTH_HEADER_LEN, MAX_IP_HEADER_LEN, MAX_IP_PREFIX_LEN, Packet, Parsed,
    ParsedHeaders, WireExtra,
};
pub use rewrite::FrameMut;
pub use units::{Duration, Gid, Instant, Key, Psn, QpNumber};

/// UDP destination port of RoCEv2 (IANA).
pub const ROCE_UDP_PORT: u16 = 4791;
