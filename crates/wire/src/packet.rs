//! A RoCEv2 packet as the NIC sees it: a small parsed descriptor, with the payload beside it.
//!
//! Frames are parsed where they enter (the port) and emitted where they leave; between, only this
//! descriptor travels. The extension headers that are present follow from the opcode
//! ([`Opcode::headers`]); fields of absent headers are meaningless and left at their defaults.

use crate::bth::Bth;
use crate::ext::{Aeth, AtomicEth, Deth, Reth};
use crate::units::Gid;

/// Addresses and network-layer marks of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// UDP source port; carries entropy for ECMP (IBTA A17.9.1). The destination port is always 4791.
    pub src_port: u16,
    /// IPv4 TOS or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
}

/// A parsed packet without its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Packet {
    /// Addresses.
    pub flow: Flow,
    /// Base transport header.
    pub bth: Bth,
    /// Datagram header (UD).
    pub deth: Deth,
    /// Target shared receive queue (XRC), 24 bits.
    pub xrc_srq: u32,
    /// RDMA address header (WRITE first/only, READ request).
    pub reth: Reth,
    /// Atomic request header.
    pub atomic: AtomicEth,
    /// Acknowledge header (ACK, READ response first/last/only, atomic ACK).
    pub aeth: Aeth,
    /// Original value of an atomic's target, in host order (atomic ACK).
    pub atomic_original: u64,
    /// Immediate data, in host order of its big-endian wire form.
    pub immediate: u32,
    /// Key to invalidate (SEND with invalidate).
    pub invalidate: u32,
    /// Payload bytes, pad excluded.
    pub payload_len: u32,
}
