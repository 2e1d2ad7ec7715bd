//! A RoCEv2 packet as the NIC sees it: a small parsed descriptor, with the payload beside it.
//!
//! Frames are parsed where they enter (the port) and emitted where they leave; between, only this
//! descriptor travels. The extension headers that are present follow from the opcode
//! ([`Opcode::headers`]); fields of absent headers are meaningless and left at their defaults.

use core::net::Ipv4Addr;
use core::ops::Range;

use crate::ROCE_UDP_PORT;
use crate::bth::{BTH_LEN, Bth, BthReserved};
use crate::error::ParseError;
use crate::ext::{Aeth, AtomicEth, Deth, Reth};
use crate::icrc::ICRC_LEN;
use crate::ip::{IPV4_DF, IPV4_LEN, IPV4_LEN_MAX, IPV6_LEN, Ipv4, Ipv6, PROTOCOL_UDP};
use crate::irn::{IrnEth, SackEth};
use crate::opcode::{Headers, MAX_EXT_LEN};
use crate::star::Ticket;
use crate::udp::{UDP_LEN, Udp};
use crate::units::Gid;

/// Longest headers inside a UDP payload: BTH and extension headers.
pub const MAX_BTH_HEADER_LEN: usize = BTH_LEN + MAX_EXT_LEN;

/// Longest headers that [`Packet::emit_ip`] writes: IPv6, UDP, BTH and extension headers.
pub const MAX_IP_HEADER_LEN: usize = IPV6_LEN + UDP_LEN + MAX_BTH_HEADER_LEN;

/// Prefix of a frame that always holds every header, even with IPv4 options.
pub const MAX_IP_PREFIX_LEN: usize = IPV4_LEN_MAX + UDP_LEN + MAX_BTH_HEADER_LEN;

/// The payload of a congestion notification packet: reserved (IBTA A17.9.3).
pub const CNP_PAYLOAD: [u8; 16] = [0; 16];

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
    /// Sequence number and offset (IRN SEND, WRITE with immediate, READ, atomic, hello). In a packet of
    /// StaR's its own header ([`StarEth`](crate::star::StarEth)).
    pub irn: IrnEth,
    /// Selective acknowledgement (IRN acknowledge, READ acknowledge).
    pub sack: SackEth,
    /// What lets a packet of StaR's in at the stateless side.
    pub ticket: Ticket,
    /// Payload bytes, pad excluded.
    pub payload_len: u32,
}

// Every frame of a simulation is one of these: three cache lines.
const _: () = assert!(core::mem::size_of::<Packet>() <= 184);

/// What a frame says beyond its [`Packet`]: fields that the NIC has no use for, but that are covered
/// by the ICRC or are needed to emit a captured frame again as it was. The default is what
/// [`Packet::emit_ip`] sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireExtra {
    /// IPv4 identification; the ICRC covers it.
    pub ipv4_id: u16,
    /// IPv4 flags, three bits: reserved, DF, MF.
    pub ipv4_flags: u8,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// UDP checksum as received, not verified; zero for "none".
    pub udp_checksum: u16,
    /// Reserved bits of the BTH.
    pub bth_reserved: BthReserved,
    /// Reserved byte of a DETH.
    pub deth_reserved: u8,
    /// Reserved byte of an XRCETH.
    pub xrceth_reserved: u8,
}

impl Default for WireExtra {
    fn default() -> Self {
        WireExtra {
            ipv4_id: 0,
            ipv4_flags: IPV4_DF,
            flow_label: 0,
            udp_checksum: 0,
            bth_reserved: BthReserved { byte4: 0, byte8: 0 },
            deth_reserved: 0,
            xrceth_reserved: 0,
        }
    }
}

impl WireExtra {
    /// The default with an IPv4 identification, such as the kernel's for segment `k` of one UDP GSO send.
    pub fn with_ipv4_id(ipv4_id: u16) -> Self {
        WireExtra { ipv4_id, ..Self::default() }
    }
}

/// A whole packet that was parsed. All offsets count from the first byte given to the parser.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// The descriptor.
    pub packet: Packet,
    /// Where the payload lies, pad excluded.
    pub payload: Range<usize>,
    /// The ICRC as received, not yet verified.
    pub icrc: u32,
    /// Bytes of the packet from its first header through its ICRC; Ethernet padding excluded.
    pub frame_len: usize,
    /// Bytes of the IP header, zero when the bytes started at the BTH.
    pub ip_header_len: usize,
    /// The rest of what the headers said.
    pub extra: WireExtra,
}

/// Headers that were parsed from a prefix of a packet. All offsets count from the prefix's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParsedHeaders {
    /// The descriptor.
    pub packet: Packet,
    /// Where the payload starts; it has `packet.payload_len` bytes.
    pub payload_offset: usize,
    /// Bytes of the packet from its first header through its ICRC; Ethernet padding excluded.
    pub frame_len: usize,
    /// Bytes of the IP header, zero when the bytes started at the BTH.
    pub ip_header_len: usize,
    /// The rest of what the headers said.
    pub extra: WireExtra,
}

/// Where the parts of a packet lie. All offsets count from the first byte given to the parser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where the payload starts.
    pub payload_offset: usize,
    /// Bytes of the packet from its first header through its ICRC; Ethernet padding excluded.
    pub frame_len: usize,
    /// Bytes of the IP header.
    pub ip_header_len: usize,
}

impl ParsedHeaders {
    /// Where the four bytes of the ICRC start, after the pad.
    #[inline]
    pub fn icrc_offset(&self) -> usize {
        self.frame_len - ICRC_LEN
    }

    /// Where the payload lies, pad excluded.
    #[inline]
    pub fn payload(&self) -> Range<usize> {
        self.payload_offset..self.payload_offset + self.packet.payload_len as usize
    }

    /// Adds the ICRC, for a packet whose bytes are all at hand.
    #[inline(always)]
    fn complete(self, bytes: &[u8]) -> Result<Parsed, ParseError> {
        let tail = bytes.get(self.icrc_offset()..).and_then(|tail| tail.first_chunk::<ICRC_LEN>());
        Ok(Parsed {
            packet: self.packet,
            payload: self.payload(),
            icrc: u32::from_le_bytes(*tail.ok_or(ParseError::Truncated)?),
            frame_len: self.frame_len,
            ip_header_len: self.ip_header_len,
            extra: self.extra,
        })
    }
}

impl Flow {
    /// Whether the flow's packets are IPv4: both addresses are.
    #[inline]
    pub fn is_ipv4(&self) -> bool {
        self.src.is_ipv4() && self.dst.is_ipv4()
    }

    /// Source and destination as IPv4 addresses, when the flow is IPv4.
    #[inline]
    pub(crate) fn ipv4_octets(&self) -> Option<([u8; 4], [u8; 4])> {
        if !self.is_ipv4() {
            return None;
        }
        let last = |gid: &Gid| [gid.0[12], gid.0[13], gid.0[14], gid.0[15]];
        Some((last(&self.src), last(&self.dst)))
    }

    /// Bytes of the IP header that [`Packet::emit_ip`] writes.
    #[inline]
    pub fn ip_header_len(&self) -> usize {
        if self.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
    }
}

/// Reading: allocation-free, linear in the headers, for bytes that a peer controls.
///
/// Transport headers are read into the descriptor where it stands ([`Packet::read_transport`]); what is
/// handed up by value is inlined always, because a copy of it costs as much as the parse.
impl Packet {
    /// Parses a packet that starts at its IP header, version 4 or 6. Bytes after the IP packet
    /// (Ethernet padding) are ignored. The ICRC is returned, not verified.
    #[inline]
    pub fn parse_ip(bytes: &[u8]) -> Result<Parsed, ParseError> {
        Self::parse_ip_headers(bytes, bytes.len())?.complete(bytes)
    }

    /// Parses a UDP payload, as a plain socket on port 4791 receives it; the IP and UDP headers'
    /// content arrives as `flow`.
    #[inline]
    pub fn parse_bth(flow: Flow, udp_payload: &[u8]) -> Result<Parsed, ParseError> {
        let mut parsed = Parsed::default();
        Self::parse_bth_into(&mut parsed, flow, udp_payload)?;
        Ok(parsed)
    }

    /// The same into a place that is used again and again. After an error it holds what does not matter.
    #[inline(always)]
    pub fn parse_bth_into(into: &mut Parsed, flow: Flow, udp_payload: &[u8]) -> Result<(), ParseError> {
        into.packet = Packet { flow, ..Packet::default() };
        into.extra = WireExtra::default();
        into.frame_len = udp_payload.len();
        into.ip_header_len = 0;
        let offset = into.packet.read_transport(&mut into.extra, udp_payload, udp_payload.len())?;
        let icrc = udp_payload.last_chunk::<ICRC_LEN>().ok_or(ParseError::Truncated)?;
        into.payload = offset..offset + into.packet.payload_len as usize;
        into.icrc = u32::from_le_bytes(*icrc);
        Ok(())
    }

    /// Like [`parse_ip`](Self::parse_ip) when only a prefix of the packet is contiguous: `prefix` holds
    /// at least the headers ([`MAX_IP_PREFIX_LEN`] bytes suffice), `total_len` is the number of bytes
    /// in all.
    #[inline]
    pub fn parse_ip_headers(prefix: &[u8], total_len: usize) -> Result<ParsedHeaders, ParseError> {
        let (mut packet, mut extra) = (Packet::default(), WireExtra::default());
        let place = packet.parse_ip_into(&mut extra, prefix, total_len)?;
        let Place { payload_offset, frame_len, ip_header_len } = place;
        Ok(ParsedHeaders { packet, payload_offset, frame_len, ip_header_len, extra })
    }

    /// The same into places that are used again and again. After an error they hold what does not matter.
    #[inline]
    pub fn parse_ip_into(
        &mut self,
        extra: &mut WireExtra,
        prefix: &[u8],
        total_len: usize,
    ) -> Result<Place, ParseError> {
        // The usual header, whose length is then known.
        match prefix.first() {
            Some(0x45) => self.parse_behind(extra, prefix, parse_ipv4(0x45, prefix, total_len)?),
            _ => self.parse_behind(extra, prefix, parse_network(prefix, total_len)?),
        }
    }

    /// Parses what is behind an IP header.
    #[inline(always)]
    fn parse_behind(
        &mut self,
        extra: &mut WireExtra,
        prefix: &[u8],
        (flow, outer, ip_header_len, ip_payload_len, protocol): Network,
    ) -> Result<Place, ParseError> {
        if protocol != PROTOCOL_UDP {
            return Err(ParseError::Protocol);
        }
        let after_ip = prefix.get(ip_header_len..).unwrap_or_default();
        let Some((udp, udp_payload)) = after_ip.split_first_chunk::<UDP_LEN>() else {
            return Err(if ip_payload_len < UDP_LEN { ParseError::UdpLength } else { ParseError::Truncated });
        };
        let udp = Udp::read(udp);
        if udp.dst_port != ROCE_UDP_PORT {
            return Err(ParseError::DstPort);
        }
        if udp.len as usize != ip_payload_len || ip_payload_len < UDP_LEN {
            return Err(ParseError::UdpLength);
        }
        let outer_len = ip_header_len + UDP_LEN;
        let len = ip_payload_len - UDP_LEN;
        *extra = WireExtra { udp_checksum: udp.checksum, ..outer };
        *self = Packet { flow: Flow { src_port: udp.src_port, ..flow }, ..Packet::default() };
        let payload_offset = outer_len + self.read_transport(extra, udp_payload, len)?;
        Ok(Place { payload_offset, frame_len: outer_len + len, ip_header_len })
    }

    /// Like [`parse_bth`](Self::parse_bth) when only a prefix of the UDP payload is contiguous: `prefix`
    /// holds at least the headers ([`MAX_BTH_HEADER_LEN`] bytes suffice), `udp_payload_len` is the
    /// number of bytes in all. So a receiver copies the headers out of a shared ring, and later
    /// the payload straight to where it belongs.
    #[inline]
    pub fn parse_headers(
        flow: Flow,
        prefix: &[u8],
        udp_payload_len: usize,
    ) -> Result<ParsedHeaders, ParseError> {
        let (mut packet, mut extra) = (Packet { flow, ..Packet::default() }, WireExtra::default());
        let payload_offset = packet.read_transport(&mut extra, prefix, udp_payload_len)?;
        Ok(ParsedHeaders { packet, payload_offset, frame_len: udp_payload_len, ip_header_len: 0, extra })
    }
}

/// What an IP header says: the flow without its port, the extra fields, the header's length, the
/// payload's length, and the payload's protocol.
type Network = (Flow, WireExtra, usize, usize, u8);

/// Reads an IPv4 header that begins with this byte.
#[inline(always)]
fn parse_ipv4(first: u8, prefix: &[u8], total_len: usize) -> Result<Network, ParseError> {
    let ip = Ipv4::parse_as(first, prefix, total_len)?;
    let extra = WireExtra { ipv4_id: ip.id, ipv4_flags: ip.flags, ..WireExtra::default() };
    let flow = Flow {
        src: Ipv4Addr::from(ip.src).into(),
        dst: Ipv4Addr::from(ip.dst).into(),
        src_port: 0,
        traffic_class: ip.tos,
        hop_limit: ip.ttl,
    };
    let header_len = ip.header_len as usize;
    Ok((flow, extra, header_len, ip.total_len as usize - header_len, ip.protocol))
}

/// Reads the IP header.
#[inline(always)]
fn parse_network(prefix: &[u8], total_len: usize) -> Result<Network, ParseError> {
    let mut extra = WireExtra::default();
    let first = *prefix.first().ok_or(ParseError::Truncated)?;
    match first >> 4 {
        4 => parse_ipv4(first, prefix, total_len),
        6 => {
            let ip = Ipv6::parse(prefix, total_len)?;
            extra.flow_label = ip.flow_label;
            let flow = Flow {
                src: Gid(ip.src),
                dst: Gid(ip.dst),
                src_port: 0,
                traffic_class: ip.traffic_class,
                hop_limit: ip.hop_limit,
            };
            if flow.src.is_ipv4() || flow.dst.is_ipv4() {
                return Err(ParseError::MappedAddress);
            }
            Ok((flow, extra, IPV6_LEN, ip.payload_len as usize, ip.next_header))
        }
        _ => Err(ParseError::IpVersion),
    }
}

/// Takes the next `N` bytes off the front of `rest`.
#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

impl Packet {
    /// Reads BTH and extension headers from a prefix of a UDP payload of `len` bytes; where in it the
    /// packet's payload starts. Into their places: a descriptor that is handed up is copied on its way.
    fn read_transport(
        &mut self,
        extra: &mut WireExtra,
        prefix: &[u8],
        len: usize,
    ) -> Result<usize, ParseError> {
        if !len.is_multiple_of(4) {
            return Err(ParseError::Alignment);
        }
        let (bth, rest) = prefix.split_first_chunk::<BTH_LEN>().ok_or(ParseError::HeaderSpace)?;
        let (bth, pad, reserved) = Bth::read(bth)?;
        let payload_offset = BTH_LEN + bth.opcode.ext_len();
        let body_len = len.checked_sub(payload_offset + ICRC_LEN).ok_or(ParseError::HeaderSpace)?;
        let payload_len = body_len.checked_sub(pad as usize).ok_or(ParseError::PadCount)?;
        self.payload_len = u32::try_from(payload_len).map_err(|_| ParseError::UdpLength)?;
        self.bth = bth;
        extra.bth_reserved = reserved;
        self.read_ext(extra, rest).ok_or(ParseError::HeaderSpace)?;
        Ok(payload_offset)
    }

    /// Reads the extension headers that the opcode calls for. `None` when the bytes end too early.
    #[inline(always)]
    fn read_ext(&mut self, extra: &mut WireExtra, bytes: &[u8]) -> Option<()> {
        let headers = self.bth.opcode.headers();
        // The usual ones need not look for the others.
        match headers {
            Headers::NONE => {}
            Headers::RETH => self.reth = Reth::read(bytes.first_chunk()?),
            Headers::AETH => self.aeth = Aeth::read(bytes.first_chunk()?),
            Headers::ATOMIC_ETH => self.atomic = AtomicEth::read(bytes.first_chunk()?),
            _ => return self.read_all_ext(headers, extra, bytes),
        }
        Some(())
    }

    /// Reads these extension headers one after another.
    fn read_all_ext(&mut self, headers: Headers, extra: &mut WireExtra, bytes: &[u8]) -> Option<()> {
        let mut rest = bytes;
        if headers.contains(Headers::DETH) {
            (self.deth, extra.deth_reserved) = Deth::read(take(&mut rest)?);
        }
        if headers.contains(Headers::XRCETH) {
            let word = u32::from_be_bytes(*take(&mut rest)?);
            self.xrc_srq = word & 0xff_ffff;
            extra.xrceth_reserved = (word >> 24) as u8;
        }
        if headers.contains(Headers::RETH) {
            self.reth = Reth::read(take(&mut rest)?);
        }
        if headers.contains(Headers::ATOMIC_ETH) {
            self.atomic = AtomicEth::read(take(&mut rest)?);
        }
        if headers.contains(Headers::AETH) {
            self.aeth = Aeth::read(take(&mut rest)?);
        }
        if headers.contains(Headers::ATOMIC_ACK_ETH) {
            self.atomic_original = u64::from_be_bytes(*take(&mut rest)?);
        }
        if headers.contains(Headers::IMM_DT) {
            self.immediate = u32::from_be_bytes(*take(&mut rest)?);
        }
        if headers.contains(Headers::IETH) {
            self.invalidate = u32::from_be_bytes(*take(&mut rest)?);
        }
        if headers.contains(Headers::IRN_ETH) {
            self.irn = IrnEth::read(take(&mut rest)?);
            if headers.contains(Headers::TICKET) {
                self.ticket = Ticket::read(take(&mut rest)?);
            }
        }
        if headers.contains(Headers::SACK_ETH) {
            self.sack = SackEth::read(take(&mut rest)?);
        }
        Some(())
    }
}
