//! Packets onto the wire: their headers, and whole frames.

use crate::bth::BTH_LEN;
use crate::ext::u24_after;
use crate::icrc::{ICRC_LEN, seal};
use crate::ip::{IPV4_LEN, Ipv4, Ipv6, PROTOCOL_UDP};
use crate::opcode::{Headers, Opcode};
use crate::packet::{CNP_PAYLOAD, Flow, Packet, WireExtra};
use crate::udp::{UDP_LEN, Udp};
use crate::units::QpNumber;
use crate::{Bth, ROCE_UDP_PORT};

/// Takes the next `N` bytes off the front of `rest`, for writing.
#[inline]
fn take_mut<'a, const N: usize>(rest: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (head, tail) = core::mem::take(rest).split_first_chunk_mut::<N>()?;
    *rest = tail;
    Some(head)
}

/// Writing. Nothing is written, and zero is returned, when `out` is too short for the headers or the
/// packet too long for IP; a caller that sizes `out` by the constants and keeps to a path MTU
/// never sees that.
impl Packet {
    /// Writes BTH and the extension headers that the opcode calls for. `None` when there is no room.
    #[inline]
    pub(crate) fn write_transport(&self, extra: &WireExtra, out: &mut [u8]) -> Option<()> {
        let mut rest = out;
        self.bth.write(self.pad() as u8, extra.bth_reserved, take_mut(&mut rest)?);
        let headers = self.bth.opcode.headers();
        // The usual ones need not look for the others.
        match headers {
            Headers::NONE => {}
            Headers::RETH => self.reth.write(take_mut(&mut rest)?),
            Headers::AETH => self.aeth.write(take_mut(&mut rest)?),
            Headers::ATOMIC_ETH => self.atomic.write(take_mut(&mut rest)?),
            Headers::ATOMIC_ANSWER => {
                self.aeth.write(take_mut(&mut rest)?);
                *take_mut(&mut rest)? = self.atomic_original.to_be_bytes();
            }
            _ => return self.write_all_ext(headers, extra, rest),
        }
        Some(())
    }

    /// Writes these extension headers one after another.
    fn write_all_ext(&self, headers: Headers, extra: &WireExtra, out: &mut [u8]) -> Option<()> {
        let mut rest = out;
        if headers.contains(Headers::DETH) {
            self.deth.write(extra.deth_reserved, take_mut(&mut rest)?);
        }
        if headers.contains(Headers::XRCETH) {
            *take_mut(&mut rest)? = u24_after(extra.xrceth_reserved, self.xrc_srq);
        }
        if headers.contains(Headers::RETH) {
            self.reth.write(take_mut(&mut rest)?);
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            self.atomic.write(take_mut(&mut rest)?);
        }
        if headers.contains(Headers::AETH) {
            self.aeth.write(take_mut(&mut rest)?);
        }
        if headers.contains(Headers::ATOMIC_ACK_ETH) {
            *take_mut(&mut rest)? = self.atomic_original.to_be_bytes();
        }
        if headers.contains(Headers::IMM_DT) {
            *take_mut(&mut rest)? = self.immediate.to_be_bytes();
        }
        if headers.contains(Headers::IETH) {
            *take_mut(&mut rest)? = self.invalidate.to_be_bytes();
        }
        if headers.contains(Headers::IRN_ETH) {
            self.irn.write(take_mut(&mut rest)?);
            if headers.contains(Headers::TICKET) {
                self.ticket.write(take_mut(&mut rest)?);
            }
        }
        if headers.contains(Headers::SACK_ETH) {
            self.sack.write(take_mut(&mut rest)?);
        }
        Some(())
    }

    /// A congestion notification to a peer's queue pair (IBTA A17.9.3). Its payload is [`CNP_PAYLOAD`].
    pub fn cnp(flow: Flow, dest_qp: QpNumber) -> Packet {
        let bth = Bth { opcode: Opcode::CNP, becn: true, dest_qp, ..Bth::default() };
        Packet { flow, bth, payload_len: CNP_PAYLOAD.len() as u32, ..Packet::default() }
    }

    /// Zero bytes between the payload and the ICRC, 0..=3.
    #[inline]
    pub fn pad(&self) -> usize {
        self.payload_len.wrapping_neg() as usize & 3
    }

    /// Bytes of BTH and extension headers.
    #[inline]
    pub fn header_len(&self) -> usize {
        BTH_LEN + self.bth.opcode.ext_len()
    }

    /// Bytes of all headers from IP on.
    #[inline]
    pub fn frame_header_len(&self) -> usize {
        self.flow.ip_header_len() + UDP_LEN + self.header_len()
    }

    /// Bytes of the UDP payload: headers from BTH on, payload, pad and ICRC.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header_len() + self.payload_len as usize + self.pad() + ICRC_LEN
    }

    /// Bytes of the packet from the IP header on, ICRC included.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.flow.ip_header_len() + UDP_LEN + self.wire_len()
    }

    /// Writes BTH and extension headers; returns their length.
    #[inline]
    pub fn emit_bth(&self, out: &mut [u8]) -> usize {
        self.emit_bth_with(&WireExtra::default(), out)
    }

    /// Like [`emit_bth`](Self::emit_bth), with the reserved bits of a captured packet.
    #[inline]
    pub fn emit_bth_with(&self, extra: &WireExtra, out: &mut [u8]) -> usize {
        let len = self.header_len();
        match out.get_mut(..len).and_then(|out| self.write_transport(extra, out)) {
            Some(()) => len,
            None => 0,
        }
    }

    /// Writes IP, UDP, BTH and extension headers for a packet of `payload_len` bytes; returns their
    /// length. IPv4 has DF set, identification 0 and its checksum; the UDP checksum is 0.
    #[inline]
    pub fn emit_ip(&self, out: &mut [u8]) -> usize {
        self.emit_ip_with(&WireExtra::default(), out)
    }

    /// Like [`emit_ip`](Self::emit_ip), with the identification, flow label, UDP checksum and reserved
    /// bits that `extra` names.
    #[inline]
    pub fn emit_ip_with(&self, extra: &WireExtra, out: &mut [u8]) -> usize {
        let len = self.frame_header_len();
        match out.get_mut(..len).and_then(|out| self.write_headers(extra, out)) {
            Some(()) => len,
            None => 0,
        }
    }

    /// Writes the whole packet: headers, payload, pad and ICRC; returns its length. `payload` must have
    /// `payload_len` bytes, or nothing is written.
    pub fn emit_frame(&self, extra: &WireExtra, payload: &[u8], out: &mut [u8]) -> usize {
        let len = self.frame_len();
        let Some(out) = out.get_mut(..len) else { return 0 };
        if payload.len() != self.payload_len as usize {
            return 0;
        }
        let header_len = self.emit_ip_with(extra, out);
        if header_len == 0 {
            return 0;
        }
        let (data, tail) = out[header_len..].split_at_mut(payload.len());
        data.copy_from_slice(payload);
        tail.fill(0);
        seal(out, self.flow.ip_header_len());
        len
    }

    #[inline]
    fn write_headers(&self, extra: &WireExtra, out: &mut [u8]) -> Option<()> {
        let udp_len = u16::try_from(UDP_LEN + self.wire_len()).ok()?;
        let udp = Udp {
            src_port: self.flow.src_port,
            dst_port: ROCE_UDP_PORT,
            len: udp_len,
            checksum: extra.udp_checksum,
        };
        let mut rest = out;
        if let Some((src, dst)) = self.flow.ipv4_octets() {
            let ip = Ipv4 {
                header_len: IPV4_LEN as u8,
                tos: self.flow.traffic_class,
                total_len: udp_len.checked_add(IPV4_LEN as u16)?,
                id: extra.ipv4_id,
                flags: extra.ipv4_flags,
                ttl: self.flow.hop_limit,
                protocol: PROTOCOL_UDP,
                src,
                dst,
            };
            ip.emit(take_mut(&mut rest)?);
        } else {
            let ip = Ipv6 {
                traffic_class: self.flow.traffic_class,
                flow_label: extra.flow_label,
                payload_len: udp_len,
                next_header: PROTOCOL_UDP,
                hop_limit: self.flow.hop_limit,
                src: self.flow.src.0,
                dst: self.flow.dst.0,
            };
            ip.emit(take_mut(&mut rest)?);
        }
        udp.write(take_mut(&mut rest)?);
        self.write_transport(extra, rest)
    }
}
