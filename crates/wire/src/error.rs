//! Why bytes are not a RoCEv2 packet. Every check has its own reason, so that drops can be counted
//! by name.

use core::fmt;

/// A check that the bytes failed. The order is that of the checks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ParseError {
    /// The bytes end inside the IP header.
    Truncated,
    /// Neither IPv4 nor IPv6.
    IpVersion,
    /// IPv4 header length below 20 bytes, or beyond the bytes at hand.
    IpHeaderLength,
    /// The IP length is below the headers' own or above the bytes at hand.
    IpTotalLength,
    /// The IPv4 header checksum is wrong.
    IpChecksum,
    /// A fragment; RoCEv2 packets are never fragmented (IBTA A17.4.5).
    Fragment,
    /// The IP payload is not UDP.
    Protocol,
    /// An IPv4-mapped address in an IPv6 header, which would pass for an IPv4 packet's.
    MappedAddress,
    /// The UDP destination port is not 4791.
    DstPort,
    /// The UDP length disagrees with the IP length.
    UdpLength,
    /// The UDP payload is not a multiple of four bytes (IBTA A17.4.2).
    Alignment,
    /// No room for the BTH, the opcode's extension headers and the ICRC.
    HeaderSpace,
    /// Transport header version other than zero (IBTA 9.6.1).
    TransportVersion,
    /// Reserved or unsupported opcode, or a manufacturer's that is not IRN's.
    Opcode,
    /// The pad count exceeds the payload.
    PadCount,
}

impl ParseError {
    /// Number of reasons; `self as usize` is below it.
    pub const COUNT: usize = Self::ALL.len();

    /// Every reason, in order.
    pub const ALL: [ParseError; 15] = [
        Self::Truncated,
        Self::IpVersion,
        Self::IpHeaderLength,
        Self::IpTotalLength,
        Self::IpChecksum,
        Self::Fragment,
        Self::Protocol,
        Self::MappedAddress,
        Self::DstPort,
        Self::UdpLength,
        Self::Alignment,
        Self::HeaderSpace,
        Self::TransportVersion,
        Self::Opcode,
        Self::PadCount,
    ];

    /// The counter's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "parse_truncated",
            Self::IpVersion => "parse_ip_version",
            Self::IpHeaderLength => "parse_ip_header_length",
            Self::IpTotalLength => "parse_ip_total_length",
            Self::IpChecksum => "parse_ip_checksum",
            Self::Fragment => "parse_ip_fragment",
            Self::Protocol => "parse_ip_protocol",
            Self::MappedAddress => "parse_ip_mapped_address",
            Self::DstPort => "parse_udp_dst_port",
            Self::UdpLength => "parse_udp_length",
            Self::Alignment => "parse_udp_alignment",
            Self::HeaderSpace => "parse_header_space",
            Self::TransportVersion => "parse_bth_version",
            Self::Opcode => "parse_bth_opcode",
            Self::PadCount => "parse_bth_pad",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for ParseError {}

const _: () = {
    let mut i = 0;
    while i < ParseError::COUNT {
        assert!(ParseError::ALL[i] as usize == i);
        i += 1;
    }
};
