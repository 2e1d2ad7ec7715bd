//! A view of a whole packet that rewrites header fields in place, for a switch on the path. Lengths
//! and the set of headers stay as they are; a program that changes those parses and emits instead.

use crate::bth::BTH_LEN;
use crate::error::ParseError;
use crate::ext::{Aeth, AtomicEth, Deth, Reth};
use crate::icrc::Icrc;
use crate::ip::{IPV4_LEN, checksum};
use crate::opcode::{Headers, Opcode};
use crate::packet::{Flow, Packet, Parsed};
use crate::udp::UDP_LEN;
use crate::units::{Key, Psn, QpNumber};

/// A setter named a header that the packet does not have, or a change of its layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutMismatch;

impl core::fmt::Display for LayoutMismatch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the packet's headers do not allow this rewrite")
    }
}

impl core::error::Error for LayoutMismatch {}

/// A packet in a buffer, starting at its IP header, that passed the parser once. Setters change the
/// bytes and the descriptor together, and nothing they do makes the packet unparsable. After the
/// last of them, [`refresh_icrc`](Self::refresh_icrc) makes the packet valid again.
#[derive(Debug)]
pub struct FrameMut<'a> {
    /// From the IP header through the ICRC.
    bytes: &'a mut [u8],
    parsed: Parsed,
}

impl<'a> FrameMut<'a> {
    /// Parses the packet at the start of `bytes`. The ICRC is not verified.
    pub fn new(bytes: &'a mut [u8]) -> Result<FrameMut<'a>, ParseError> {
        let parsed = Packet::parse_ip(bytes)?;
        let bytes = bytes.get_mut(..parsed.frame_len).ok_or(ParseError::Truncated)?;
        Ok(FrameMut { bytes, parsed })
    }

    /// The descriptor, as the bytes now are.
    pub fn packet(&self) -> &Packet {
        &self.parsed.packet
    }

    /// The payload, pad excluded.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.parsed.payload.clone()]
    }

    /// The payload for rewriting, pad excluded.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.parsed.payload.clone()]
    }

    /// Redirects the packet to another queue pair.
    pub fn set_dest_qp(&mut self, qp: QpNumber) {
        self.parsed.packet.bth.dest_qp = qp;
        self.write_bth();
    }

    /// Renumbers the packet.
    pub fn set_psn(&mut self, psn: Psn) {
        self.parsed.packet.bth.psn = psn;
        self.write_bth();
    }

    /// Asks for an acknowledgement, or no longer.
    pub fn set_ack_req(&mut self, ack_req: bool) {
        self.parsed.packet.bth.ack_req = ack_req;
        self.write_bth();
    }

    /// Marks congestion in the BTH. The ICRC does not cover these bits.
    pub fn set_congestion(&mut self, fecn: bool, becn: bool) {
        self.parsed.packet.bth.fecn = fecn;
        self.parsed.packet.bth.becn = becn;
        self.write_bth();
    }

    /// Changes the opcode to one with the same extension headers.
    pub fn set_opcode(&mut self, opcode: Opcode) -> Result<(), LayoutMismatch> {
        let bth = &mut self.parsed.packet.bth;
        if opcode.headers() != bth.opcode.headers() {
            return Err(LayoutMismatch);
        }
        bth.opcode = opcode;
        self.write_bth();
        Ok(())
    }

    /// Replaces the network part: addresses (of the same IP version), source port, DSCP and ECN, hop
    /// limit. The IPv4 header checksum follows.
    pub fn set_flow(&mut self, flow: Flow) -> Result<(), LayoutMismatch> {
        let ip_header_len = self.parsed.ip_header_len;
        match (self.parsed.packet.flow.is_ipv4(), flow.ipv4_octets()) {
            (true, Some((src, dst))) => {
                self.bytes[1] = flow.traffic_class;
                self.bytes[8] = flow.hop_limit;
                self.bytes[12..16].copy_from_slice(&src);
                self.bytes[16..20].copy_from_slice(&dst);
                self.refresh_ipv4_checksum();
            }
            // A mapped address in an IPv6 header would not parse again.
            (false, None) if !flow.src.is_ipv4() && !flow.dst.is_ipv4() => {
                self.bytes[0] = 0x60 | flow.traffic_class >> 4;
                self.bytes[1] = flow.traffic_class << 4 | self.bytes[1] & 0x0f;
                self.bytes[7] = flow.hop_limit;
                self.bytes[8..24].copy_from_slice(&flow.src.0);
                self.bytes[24..40].copy_from_slice(&flow.dst.0);
            }
            _ => return Err(LayoutMismatch),
        }
        self.bytes[ip_header_len..ip_header_len + 2].copy_from_slice(&flow.src_port.to_be_bytes());
        self.parsed.packet.flow = flow;
        Ok(())
    }

    /// Replaces the virtual address and key of a WRITE or READ.
    pub fn set_reth_target(&mut self, va: u64, rkey: Key) -> Result<(), LayoutMismatch> {
        let reth = Reth { va, rkey, ..self.parsed.packet.reth };
        reth.write(self.header::<{ Reth::LEN }>(Headers::RETH)?);
        self.parsed.packet.reth = reth;
        Ok(())
    }

    /// Replaces the atomic request header.
    pub fn set_atomic(&mut self, atomic: AtomicEth) -> Result<(), LayoutMismatch> {
        atomic.write(self.header::<{ AtomicEth::LEN }>(Headers::ATOMIC_ETH)?);
        self.parsed.packet.atomic = atomic;
        Ok(())
    }

    /// Replaces the acknowledge header.
    pub fn set_aeth(&mut self, aeth: Aeth) -> Result<(), LayoutMismatch> {
        aeth.write(self.header::<{ Aeth::LEN }>(Headers::AETH)?);
        self.parsed.packet.aeth = Aeth { msn: aeth.msn & 0xff_ffff, ..aeth };
        Ok(())
    }

    /// Replaces the original value in an atomic acknowledgement.
    pub fn set_atomic_original(&mut self, value: u64) -> Result<(), LayoutMismatch> {
        *self.header(Headers::ATOMIC_ACK_ETH)? = value.to_be_bytes();
        self.parsed.packet.atomic_original = value;
        Ok(())
    }

    /// Replaces the immediate data.
    pub fn set_immediate(&mut self, value: u32) -> Result<(), LayoutMismatch> {
        *self.header(Headers::IMM_DT)? = value.to_be_bytes();
        self.parsed.packet.immediate = value;
        Ok(())
    }

    /// Replaces the datagram header.
    pub fn set_deth(&mut self, deth: Deth) -> Result<(), LayoutMismatch> {
        let reserved = self.parsed.extra.deth_reserved;
        deth.write(reserved, self.header::<{ Deth::LEN }>(Headers::DETH)?);
        self.parsed.packet.deth = deth;
        Ok(())
    }

    /// Computes the ICRC anew, and clears the UDP checksum, which the rewriting made stale.
    pub fn refresh_icrc(&mut self) {
        let at = self.parsed.ip_header_len;
        self.bytes[at + 6..at + UDP_LEN].fill(0);
        self.parsed.extra.udp_checksum = 0;
        let (covered, icrc) = self.bytes.split_at_mut(self.parsed.frame_len - crate::ICRC_LEN);
        self.parsed.icrc = Icrc::over_headers(covered, at).finish();
        icrc.copy_from_slice(&self.parsed.icrc.to_le_bytes());
    }

    /// The bytes of a header that the opcode has; headers lie in the order of the set's bits.
    fn header<const N: usize>(&mut self, header: Headers) -> Result<&mut [u8; N], LayoutMismatch> {
        let at = self.parsed.packet.bth.opcode.headers().offset_of(header).ok_or(LayoutMismatch)?;
        let bytes = self.bytes.get_mut(self.parsed.ip_header_len + UDP_LEN + BTH_LEN + at..);
        bytes.and_then(|bytes| bytes.first_chunk_mut::<N>()).ok_or(LayoutMismatch)
    }

    fn write_bth(&mut self) {
        let at = self.parsed.ip_header_len + UDP_LEN;
        let packet = &self.parsed.packet;
        if let Some(out) = self.bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut::<BTH_LEN>()) {
            packet.bth.write(packet.pad() as u8, self.parsed.extra.bth_reserved, out);
        }
    }

    fn refresh_ipv4_checksum(&mut self) {
        let (header, _) = self.bytes.split_at_mut(self.parsed.ip_header_len);
        if let Some((fixed, options)) = header.split_first_chunk_mut::<IPV4_LEN>() {
            fixed[10..12].fill(0);
            let sum = checksum(fixed, options);
            fixed[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }
}
