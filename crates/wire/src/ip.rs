//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, as far as RoCEv2 uses them (IBTA A17.4.5).
//!
//! IPv4 options are skipped on receipt and never sent. IPv6 extension headers are not looked
//! through: a packet that has them is not UDP to us.

use crate::error::ParseError;

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;
/// Bytes of the longest IPv4 header.
pub const IPV4_LEN_MAX: usize = 60;
/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IPv6 next header of a fragment.
const NEXT_HEADER_FRAGMENT: u8 = 44;
/// "Don't fragment", in the three flag bits of an IPv4 header.
pub const IPV4_DF: u8 = 0b010;
/// "More fragments" and the offset, in IPv4 bytes 6 and 7.
const IPV4_FRAGMENT_MASK: u16 = 0x3fff;

/// An IPv4 header without its options and checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4 {
    /// Header length in bytes, options included: 20..=60. Always 20 on emission.
    pub header_len: u8,
    /// DSCP and ECN.
    pub tos: u8,
    /// Header and payload in bytes.
    pub total_len: u16,
    /// Identification; covered by the ICRC although it means nothing when fragmentation is off.
    pub id: u16,
    /// Reserved, DF and MF.
    pub flags: u8,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl Ipv4 {
    /// Reads and checks the header. `frame_len` is the number of bytes that follow in all, of which
    /// `bytes` are the first.
    #[inline]
    pub fn parse(bytes: &[u8], frame_len: usize) -> Result<Ipv4, ParseError> {
        let first = bytes.first().map_or(0, |first| *first);
        Self::parse_as(first, bytes, frame_len)
    }

    /// The same for who knows the first byte, and so, where it is the usual one, the header's length.
    #[inline(always)]
    pub(crate) fn parse_as(first: u8, bytes: &[u8], frame_len: usize) -> Result<Ipv4, ParseError> {
        let b = bytes.first_chunk::<IPV4_LEN>().ok_or(ParseError::Truncated)?;
        if first >> 4 != 4 {
            return Err(ParseError::IpVersion);
        }
        let header_len = (first & 0x0f) * 4;
        let header = bytes.get(..header_len as usize).ok_or(ParseError::IpHeaderLength)?;
        if (header_len as usize) < IPV4_LEN {
            return Err(ParseError::IpHeaderLength);
        }
        let total_len = u16::from_be_bytes([b[2], b[3]]);
        if (total_len as usize) < header_len as usize || total_len as usize > frame_len {
            return Err(ParseError::IpTotalLength);
        }
        let options = header.get(IPV4_LEN..).unwrap_or_default();
        if checksum(b, options) != 0 {
            return Err(ParseError::IpChecksum);
        }
        if u16::from_be_bytes([b[6], b[7]]) & IPV4_FRAGMENT_MASK != 0 {
            return Err(ParseError::Fragment);
        }
        Ok(Ipv4 {
            header_len,
            tos: b[1],
            total_len,
            id: u16::from_be_bytes([b[4], b[5]]),
            flags: b[6] >> 5,
            ttl: b[8],
            protocol: b[9],
            src: [b[12], b[13], b[14], b[15]],
            dst: [b[16], b[17], b[18], b[19]],
        })
    }

    /// Writes the header without options, checksum computed.
    #[inline]
    pub fn emit(&self, out: &mut [u8; IPV4_LEN]) {
        let [len0, len1] = self.total_len.to_be_bytes();
        let [id0, id1] = self.id.to_be_bytes();
        let [s0, s1, s2, s3] = self.src;
        let [d0, d1, d2, d3] = self.dst;
        let flags = self.flags << 5;
        *out = [
            0x45,
            self.tos,
            len0,
            len1,
            id0,
            id1,
            flags,
            0,
            self.ttl,
            self.protocol,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ];
        let sum = checksum(out, &[]);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The Internet checksum of a header and its options: zero when the header holds the right one.
#[inline]
pub fn checksum(header: &[u8; IPV4_LEN], options: &[u8]) -> u16 {
    // Two words at a time, in the processor's byte order, which the sum does not depend on (RFC 1071, 2).
    let words = |bytes: &[u8]| -> u64 {
        bytes.as_chunks::<4>().0.iter().map(|&two| u64::from(u32::from_ne_bytes(two))).sum()
    };
    // At most 30 words: the first fold leaves 33 bits, the others 18, 17 and 16.
    let sum = words(header) + words(options);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::from_be(!((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Writes another value into the 16 bits at `at` of a header, and changes its checksum by the difference.
#[inline]
pub(crate) fn checksum_changed(header: &mut [u8; IPV4_LEN], at: usize, value: u16) {
    let sum = checksum_with(header, at, value);
    header[at..at + 2].copy_from_slice(&value.to_be_bytes());
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The checksum of a header with another value in the 16 bits at `at` (RFC 1624, equation 3).
#[inline]
pub(crate) fn checksum_with(header: &[u8; IPV4_LEN], at: usize, value: u16) -> u16 {
    let field = |at: usize| u32::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let sum = (!field(10) & 0xffff) + (!field(at) & 0xffff) + u32::from(value);
    // Three words, so two folds suffice.
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of what an IPv6 header is followed by, with the pseudo header (RFC 8200, 8.1): zero when
/// `body` holds the right one. UDP sends a zero as all ones.
pub fn checksum_ipv6(src: &[u8; 16], dst: &[u8; 16], next_header: u8, body: &[u8]) -> u16 {
    checksum_folded(words(src) + words(dst) + body.len() as u64 + u64::from(next_header) + words(body))
}

/// The Internet checksum of bytes (RFC 1071), an odd last one filled up with a zero.
pub fn checksum_bytes(bytes: &[u8]) -> u16 {
    checksum_folded(words(bytes))
}

fn words(bytes: &[u8]) -> u64 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum::<u64>()
        + odd.first().map_or(0, |last| u64::from(*last) << 8)
}

fn checksum_folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An IPv6 header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv6 {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after the header.
    pub payload_len: u16,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6 {
    /// Reads and checks the header. `frame_len` is the number of bytes that follow in all, of which
    /// `bytes` are the first.
    #[inline]
    pub fn parse(bytes: &[u8], frame_len: usize) -> Result<Ipv6, ParseError> {
        let (b, _) = bytes.split_first_chunk::<IPV6_LEN>().ok_or(ParseError::Truncated)?;
        let first = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if first >> 28 != 6 {
            return Err(ParseError::IpVersion);
        }
        let payload_len = u16::from_be_bytes([b[4], b[5]]);
        if IPV6_LEN + payload_len as usize > frame_len {
            return Err(ParseError::IpTotalLength);
        }
        if b[6] == NEXT_HEADER_FRAGMENT {
            return Err(ParseError::Fragment);
        }
        let mut header = Ipv6 {
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len,
            next_header: b[6],
            hop_limit: b[7],
            src: [0; 16],
            dst: [0; 16],
        };
        header.src.copy_from_slice(&b[8..24]);
        header.dst.copy_from_slice(&b[24..]);
        Ok(header)
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; IPV6_LEN]) {
        let first = 6 << 28 | (self.traffic_class as u32) << 20 | self.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src);
        out[24..].copy_from_slice(&self.dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Ipv4 = Ipv4 {
        header_len: 20,
        tos: 2,
        total_len: 60,
        id: 0x1234,
        flags: IPV4_DF,
        ttl: 64,
        protocol: PROTOCOL_UDP,
        src: [10, 0, 0, 1],
        dst: [10, 0, 0, 2],
    };

    #[test]
    fn ipv4_round_trip_and_checks() {
        let mut out = [0; IPV4_LEN];
        HEADER.emit(&mut out);
        assert_eq!(Ipv4::parse(&out, 60), Ok(HEADER));
        assert_eq!(Ipv4::parse(&out, 59), Err(ParseError::IpTotalLength));
        assert_eq!(Ipv4::parse(&out[..19], 60), Err(ParseError::Truncated));
        let with = |at: usize, value: u8| {
            let mut bad = out;
            bad[at] = value;
            Ipv4::parse(&bad, 60)
        };
        assert_eq!(with(0, 0x44), Err(ParseError::IpHeaderLength));
        assert_eq!(with(0, 0x46), Err(ParseError::IpHeaderLength));
        assert_eq!(with(0, 0x65), Err(ParseError::IpVersion));
        assert_eq!(with(8, 63), Err(ParseError::IpChecksum));
    }

    #[test]
    fn fragments_are_refused() {
        for (flags, offset) in [(0b001, 0), (0b010, 1)] {
            let mut out = [0; IPV4_LEN];
            Ipv4 { flags, ..HEADER }.emit(&mut out);
            out[7] = offset;
            out[10..12].fill(0);
            let sum = checksum(&out, &[]);
            out[10..12].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(Ipv4::parse(&out, 60), Err(ParseError::Fragment));
        }
    }

    #[test]
    fn ipv6_round_trip() {
        let header = Ipv6 {
            traffic_class: 0xb9,
            flow_label: 0xabcde,
            payload_len: 24,
            next_header: PROTOCOL_UDP,
            hop_limit: 7,
            src: [1; 16],
            dst: [2; 16],
        };
        let mut out = [0; IPV6_LEN];
        header.emit(&mut out);
        assert_eq!(Ipv6::parse(&out, 64), Ok(header));
        assert_eq!(Ipv6::parse(&out, 63), Err(ParseError::IpTotalLength));
        out[6] = NEXT_HEADER_FRAGMENT;
        assert_eq!(Ipv6::parse(&out, 64), Err(ParseError::Fragment));
    }
}
