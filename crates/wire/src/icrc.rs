//! Invariant CRC of RoCEv2 (IBTA A17.3.2, 9.9): CRC-32 over eight bytes of ones in place of a local
//! route header, then IP, UDP, BTH, extension headers, payload and pad, with the fields that a
//! router may change read as ones. It travels little-endian after the pad.
//!
//! Read as ones: IPv4 TOS, TTL and header checksum; IPv6 traffic class, flow label and hop limit;
//! the UDP checksum; BTH byte 4 (FECN, BECN, reserved). The IPv4 identification is covered,
//! although a plain UDP socket does not see it on receipt: [`infer_ipv4_id`] recovers it.

use crc32fast::Hasher;
use std::sync::LazyLock;

use crate::ROCE_UDP_PORT;
use crate::bth::BTH_LEN;
use crate::ip::{IPV4_DF, IPV4_LEN, IPV4_LEN_MAX, IPV6_LEN, PROTOCOL_UDP};
use crate::packet::Flow;
use crate::udp::UDP_LEN;

/// Bytes on the wire.
pub const ICRC_LEN: usize = 4;

/// CRC-32 of the eight bytes of ones that stand for the local route header.
const ROUTE_HEADER_CRC: u32 = 0x2144_df1c;

/// A sum that begins behind it. Which instructions there are to compute it with is found out once.
static BEGUN: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_with_initial(ROUTE_HEADER_CRC));

/// Offset in the BTH of the byte that is read as ones.
const BTH_MASKED: usize = 4;

/// Bytes of a packet that are copied, to be masked. They reach over every masked byte, and over a short
/// packet as a whole: each piece that is summed apart costs a reduction of its own.
const COPIED_LEN_MAX: usize = 128;
const _: () = assert!(COPIED_LEN_MAX > IPV4_LEN_MAX + UDP_LEN + BTH_MASKED);
const _: () = assert!(COPIED_LEN_MAX > IPV6_LEN + UDP_LEN + BTH_MASKED);

/// An ICRC in progress: start over the headers, [`update`](Self::update) with the payload and the pad
/// in any number of pieces, [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
}

impl Icrc {
    /// Starts over `headers`, which run from the IP header through the extension headers (payload
    /// may follow), with an IP header of `ip_header_len` bytes. Bytes that are no such headers
    /// give a sum that matches nothing, and no panic.
    #[inline]
    pub fn over_headers(headers: &[u8], ip_header_len: usize) -> Icrc {
        let (prefix, rest) = headers.split_at(headers.len().min(COPIED_LEN_MAX));
        let mut buffer = [0; COPIED_LEN_MAX];
        let masked = &mut buffer[..prefix.len()];
        masked.copy_from_slice(prefix);
        mask(masked, ip_header_len);
        Self::over(masked, rest)
    }

    /// Starts over the headers of a packet that a plain UDP socket sends or has received. The IP and
    /// UDP headers are rebuilt from `flow`, with DF set and the identification `ipv4_id` (unused
    /// over IPv6). `udp_payload_len` is the number of bytes from the BTH through the ICRC, and
    /// `headers` run from the BTH (payload may follow).
    #[inline]
    pub fn over_flow(flow: &Flow, ipv4_id: u16, udp_payload_len: usize, headers: &[u8]) -> Icrc {
        // Longer packets than IP can carry have no ICRC; the truncated lengths match nothing.
        let udp_len = udp_payload_len.wrapping_add(UDP_LEN) as u16;
        let mut buffer = [0xff; COPIED_LEN_MAX];
        let ip_header_len = match flow.ipv4_octets() {
            Some((src, dst)) => {
                let [len0, len1] = udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes();
                let [id0, id1] = ipv4_id.to_be_bytes();
                buffer[..12].copy_from_slice(&[
                    0x45,
                    0xff,
                    len0,
                    len1,
                    id0,
                    id1,
                    IPV4_DF << 5,
                    0,
                    0xff,
                    PROTOCOL_UDP,
                    0xff,
                    0xff,
                ]);
                buffer[12..16].copy_from_slice(&src);
                buffer[16..20].copy_from_slice(&dst);
                IPV4_LEN
            }
            None => {
                let [len0, len1] = udp_len.to_be_bytes();
                buffer[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, len0, len1, PROTOCOL_UDP, 0xff]);
                buffer[8..24].copy_from_slice(&flow.src.0);
                buffer[24..40].copy_from_slice(&flow.dst.0);
                IPV6_LEN
            }
        };
        buffer[ip_header_len..ip_header_len + 2].copy_from_slice(&flow.src_port.to_be_bytes());
        buffer[ip_header_len + 2..ip_header_len + 4].copy_from_slice(&ROCE_UDP_PORT.to_be_bytes());
        buffer[ip_header_len + 4..ip_header_len + 6].copy_from_slice(&udp_len.to_be_bytes());
        let bth_at = ip_header_len + UDP_LEN;
        let (prefix, rest) = headers.split_at(headers.len().min(COPIED_LEN_MAX - bth_at));
        buffer[bth_at..bth_at + prefix.len()].copy_from_slice(prefix);
        buffer[bth_at + BTH_MASKED] = 0xff;
        Self::over(&buffer[..bth_at + prefix.len()], rest)
    }

    /// Starts over a masked prefix of a packet and what follows it.
    #[inline(always)]
    pub(crate) fn over(prefix: &[u8], rest: &[u8]) -> Icrc {
        let mut icrc = Icrc { hasher: BEGUN.clone() };
        icrc.update(prefix);
        if !rest.is_empty() {
            icrc.update(rest);
        }
        icrc
    }

    /// Adds payload or pad.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// The sum, whose little-endian bytes travel.
    #[inline]
    pub fn finish(self) -> u32 {
        self.hasher.finalize()
    }
}

/// Bytes of a packet without IP options that reach over every masked byte; no packet is shorter.
const IPV4_FRONT: usize = IPV4_LEN + UDP_LEN + BTH_LEN;
const IPV6_FRONT: usize = IPV6_LEN + UDP_LEN + BTH_LEN;

/// The same up to a multiple of what the sum reads at once. A processor that reads what it has just written
/// in two pieces waits until both have left its store buffer.
const IPV4_BLOCKS: usize = IPV4_FRONT.next_multiple_of(BLOCK);
const IPV6_BLOCKS: usize = IPV6_FRONT.next_multiple_of(BLOCK);
const BLOCK: usize = 16;

/// What is masked of them.
const IPV4_ONES: [u8; IPV4_BLOCKS] = ones(IPV4_LEN);
const IPV6_ONES: [u8; IPV6_BLOCKS] = {
    let mut ones = [0; IPV6_BLOCKS];
    ones[0] = 0x60;
    mask(&mut ones, IPV6_LEN);
    ones
};

/// What is masked of the first bytes of an IPv4 packet.
pub(crate) const fn ones<const N: usize>(ip_header_len: usize) -> [u8; N] {
    let mut ones = [0; N];
    mask(&mut ones, ip_header_len);
    ones
}

/// The sum over a packet before its ICRC, which is masked where it stands while that is computed: what is
/// not copied is summed in one piece.
#[inline(always)]
fn sum_in_place(covered: &mut [u8], ip_header_len: usize) -> u32 {
    let is_ipv6 = covered.first().is_some_and(|byte| byte >> 4 == 6);
    let sum = match (is_ipv6, ip_header_len, covered.len()) {
        (false, IPV4_LEN, IPV4_BLOCKS..) => sum_masked::<IPV4_BLOCKS>(covered, &IPV4_ONES),
        (false, IPV4_LEN, _) => sum_masked::<IPV4_FRONT>(covered, &IPV4_ONES),
        (true, IPV6_LEN, IPV6_BLOCKS..) => sum_masked::<IPV6_BLOCKS>(covered, &IPV6_ONES),
        (true, IPV6_LEN, _) => sum_masked::<IPV6_FRONT>(covered, &IPV6_ONES),
        _ => None,
    };
    sum.unwrap_or_else(|| Icrc::over_headers(covered, ip_header_len).finish())
}

#[inline(always)]
fn sum_masked<const N: usize>(covered: &mut [u8], ones: &[u8]) -> Option<u32> {
    let front = covered.first_chunk_mut::<N>()?;
    let kept = *front;
    front.iter_mut().zip(ones).for_each(|(byte, ones)| *byte |= ones);
    let sum = Icrc::over(covered, &[]).finish();
    *covered.first_chunk_mut::<N>()? = kept;
    Some(sum)
}

/// Computes the ICRC of a packet that starts at its IP header into its last four bytes.
#[inline]
pub fn seal(packet: &mut [u8], ip_header_len: usize) {
    if let Some((covered, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        *icrc = sum_in_place(covered, ip_header_len).to_le_bytes();
    }
}

/// Like [`verify_ip`] for bytes that may be changed meanwhile, which is faster.
#[inline]
pub fn verify_in_place(packet: &mut [u8], ip_header_len: usize) -> bool {
    let Some((covered, received)) = packet.split_last_chunk_mut::<ICRC_LEN>() else { return false };
    sum_in_place(covered, ip_header_len) == u32::from_le_bytes(*received)
}

/// Sets the fields that a router may change to ones, in a prefix of a packet.
#[inline]
const fn mask(prefix: &mut [u8], ip_header_len: usize) {
    let ip_header_len = if ip_header_len < IPV4_LEN_MAX { ip_header_len } else { IPV4_LEN_MAX };
    let is_ipv6 = !prefix.is_empty() && prefix[0] >> 4 == 6;
    let (ip, first): (&[usize], _) = if is_ipv6 { (&[1, 2, 3, 7], 0x0f) } else { (&[1, 8, 10, 11], 0) };
    set(prefix, 0, first);
    let mut i = 0;
    while i < ip.len() {
        set(prefix, ip[i], 0xff);
        i += 1;
    }
    set(prefix, ip_header_len + 6, 0xff);
    set(prefix, ip_header_len + 7, 0xff);
    set(prefix, ip_header_len + UDP_LEN + BTH_MASKED, 0xff);
}

const fn set(prefix: &mut [u8], at: usize, bits: u8) {
    if at < prefix.len() {
        prefix[at] |= bits;
    }
}

/// Whether the ICRC of a packet that starts at its IP header is right. `packet` must end with the
/// ICRC (`&bytes[..parsed.frame_len]`), and `ip_header_len` is the parser's.
#[inline]
pub fn verify_ip(packet: &[u8], ip_header_len: usize) -> bool {
    let Some((covered, received)) = packet.split_last_chunk::<ICRC_LEN>() else { return false };
    Icrc::over_headers(covered, ip_header_len).finish() == u32::from_le_bytes(*received)
}

/// Verifies the ICRC of a UDP payload for which the IP header was not seen, assuming DF and no
/// options. Returns the IPv4 identification that explains it (0 over IPv6), or `None` when the
/// packet is corrupt. See [`infer_ipv4_id`] for the odds over IPv4.
pub fn verify_udp(flow: &Flow, udp_payload: &[u8]) -> Option<u16> {
    verify_udp_as(flow, 0, udp_payload)
}

/// The same for who knows what the identification probably is: to find another one takes longer than the
/// whole sum of a short packet.
#[inline]
pub fn verify_udp_as(flow: &Flow, likely_id: u16, udp_payload: &[u8]) -> Option<u16> {
    let (covered, received) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
    let computed = Icrc::over_flow(flow, likely_id, udp_payload.len(), covered).finish();
    let received = u32::from_le_bytes(*received);
    if received == computed {
        return Some(if flow.is_ipv4() { likely_id } else { 0 });
    }
    // What is found is the difference to the identification that was summed.
    let difference = flow.is_ipv4().then(|| infer_ipv4_id(received, computed, udp_payload.len()))??;
    Some(likely_id ^ difference)
}

/// Finds the IPv4 identification that turns the sum `computed` with identification 0 into the one
/// `received`, for a packet of `udp_payload_len` bytes from BTH through ICRC without IP options.
///
/// CRC is linear, so the difference of two sums depends only on the identification and on the number
/// of bytes that follow it; undoing those bytes leaves the identification alone in the register. At
/// most one identification fits. A corrupt packet fits one by chance with probability 2^-16, instead
/// of the 2^-32 of a sum over a known header, since 16 of the 32 check bits pay for the unknown.
#[inline]
pub fn infer_ipv4_id(received: u32, computed: u32, udp_payload_len: usize) -> Option<u16> {
    let difference = received ^ computed;
    if difference == 0 {
        return Some(0);
    }
    // The rest of the IP header, UDP, and the payload without its ICRC follow the identification;
    // four more bytes, since a CRC is the remainder of its message times x^32.
    let after = (IPV4_LEN - IPV4_ID_END + UDP_LEN + 4).checked_add(udp_payload_len)?.checked_sub(ICRC_LEN)?;
    let high = *UNDO_PAGES.get(after / 256)?;
    let undo = multiply(high, UNDO_BYTES[after % 256]);
    let register = multiply(difference, undo);
    if register & 0xffff != 0 {
        return None;
    }
    // Reflected order: the last byte of the message is in the upper bits.
    Some(((register >> 16) as u16).swap_bytes())
}

/// End of the identification field in an IPv4 header.
const IPV4_ID_END: usize = 6;

/// The CRC-32 polynomial in reflected bit order; the coefficient of x^0 is bit 31.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// Product of two polynomials modulo the CRC's, without branches.
#[inline]
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut b, mut product, mut bit) = (b, 0, 32);
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// `x^-8` times a polynomial: takes back one zero byte.
const fn undo_byte(mut a: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        // Dividing by x: the polynomial has both its ends set, so the coefficient of x^0 tells
        // whether the multiplication by x wrapped.
        a = if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 };
        bit += 1;
    }
    a
}

/// `x^-8i`.
static UNDO_BYTES: [u32; 256] = {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = undo_byte(table[i - 1]);
        i += 1;
    }
    table
};

/// `x^-(8 * 256 i)`; 256 pages cover every length of an IPv4 packet.
static UNDO_PAGES: [u32; 256] = {
    let mut page = ONE;
    let mut i = 0;
    while i < 256 {
        page = undo_byte(page);
        i += 1;
    }
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = multiply(table[i - 1], page);
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Gid;
    use core::net::Ipv4Addr;

    #[test]
    fn route_header_constant() {
        assert_eq!(crc32fast::hash(&[0xff; 8]), ROUTE_HEADER_CRC);
    }

    #[test]
    fn division_undoes_multiplication() {
        let x8 = ONE >> 8;
        assert_eq!(multiply(UNDO_BYTES[1], x8), ONE);
        assert_eq!(multiply(UNDO_PAGES[1], UNDO_BYTES[0]), multiply(UNDO_BYTES[255], UNDO_BYTES[1]));
        assert_eq!(multiply(0xdead_beef, ONE), 0xdead_beef);
    }

    fn flow() -> Flow {
        Flow {
            src: Gid::from(Ipv4Addr::new(10, 1, 2, 3)),
            dst: Gid::from(Ipv4Addr::new(10, 3, 2, 1)),
            src_port: 0xc123,
            traffic_class: 0,
            hop_limit: 64,
        }
    }

    #[test]
    fn every_identification_is_found() {
        for (len, stride) in [(16usize, 1), (20, 1), (300, 1), (4116, 31), (65_504, 499)] {
            let payload: Vec<u8> = (0..len - ICRC_LEN).map(|i| (i * 7) as u8).collect();
            let zero = Icrc::over_flow(&flow(), 0, len, &payload).finish();
            for id in (0..=u16::MAX).step_by(stride) {
                let received = Icrc::over_flow(&flow(), id, len, &payload).finish();
                assert_eq!(infer_ipv4_id(received, zero, len), Some(id), "len {len}");
            }
        }
    }

    #[test]
    fn every_identification_is_found_whichever_was_likely() {
        for (sent, likely) in [(0, 0), (0, 3), (3, 0), (5, 5), (63, 64), (u16::MAX, 1), (0x1234, 0x4321)] {
            let mut bytes = vec![7; 48];
            let sum = Icrc::over_flow(&flow(), sent, 48 + ICRC_LEN, &bytes).finish();
            bytes.extend_from_slice(&sum.to_le_bytes());
            assert_eq!(verify_udp_as(&flow(), likely, &bytes), Some(sent));
            bytes[20] ^= 1;
            assert_eq!(verify_udp_as(&flow(), likely, &bytes), None, "sent {sent}, likely {likely}");
        }
        let flow = Flow { src: Gid([0xfd; 16]), dst: Gid([0xfe; 16]), ..flow() };
        let mut bytes = vec![7; 48];
        bytes.extend_from_slice(&Icrc::over_flow(&flow, 0, 52, &bytes).finish().to_le_bytes());
        assert_eq!(verify_udp_as(&flow, 9, &bytes), Some(0), "IPv6 has none");
    }

    #[test]
    fn corruption_is_seldom_explained() {
        let len = 1040;
        let mut payload = vec![0x5a; len - ICRC_LEN];
        let received = Icrc::over_flow(&flow(), 77, len, &payload).finish();
        let mut explained = 0;
        for bit in 0..payload.len() * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            let computed = Icrc::over_flow(&flow(), 0, len, &payload).finish();
            explained += infer_ipv4_id(received, computed, len).is_some() as u32;
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        // BTH byte 4 is not covered, so its eight flips leave the packet right; of the 8280 others
        // 2^-16 may pass.
        assert!((8..=9).contains(&explained), "{explained}");
    }

    #[test]
    fn nonsense_lengths_do_not_panic() {
        for len in [0, 1, 3, 65_507, 65_536, 1 << 20, usize::MAX] {
            let _ = infer_ipv4_id(1, 2, len);
        }
        let _ = Icrc::over_flow(&flow(), 0, 3, &[1, 2, 3]).finish();
        let _ = Icrc::over_headers(&[0x60; 7], 40).finish();
        let _ = Icrc::over_headers(&[0x45; 200], usize::MAX).finish();
        assert!(!verify_ip(&[1, 2, 3], 20));
    }
}
