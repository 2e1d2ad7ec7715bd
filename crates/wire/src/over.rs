//! Packets over other ones: what becomes of a packet in its place, when a switch's program has changed it.

use crate::bth::BTH_LEN;
use crate::ext::{Reth, u24_after};
use crate::icrc::{ICRC_LEN, Icrc, ones, seal};
use crate::ip::{IPV4_LEN, checksum_changed, checksum_with};
use crate::opcode::Headers;
use crate::packet::{Packet, WireExtra};
use crate::udp::UDP_LEN;
use crate::units::pair;

/// Bytes of payload of a packet that [is written over](Packet::emit_over) another one, at most.
pub const OVER_PAYLOAD_MAX: usize = 16;

/// The longest packet that is written by words: a WRITE of one word over IPv4. Its ICRC comes behind them.
const WORDS: usize = (IPV4_LEN + UDP_LEN + BTH_LEN + Reth::LEN + 8) / 8;
const BY_WORDS_LEN: usize = WORDS * 8 + ICRC_LEN;

/// What the ICRC does not cover of it.
const ONES: [u64; WORDS] = {
    let bytes = ones::<{ WORDS * 8 }>(IPV4_LEN);
    let (words, _) = bytes.as_chunks::<8>();
    let (mut ones, mut at) = ([0; WORDS], 0);
    while at < WORDS {
        ones[at] = u64::from_le_bytes(words[at]);
        at += 1;
    }
    ones
};

/// Words side by side, of which two are written at once. The ICRC reads sixteen bytes at once, and what was
/// written in smaller pieces would have to leave the store buffer first.
#[inline(always)]
fn side_by_side(words: [u64; WORDS]) -> [[u8; 16]; WORDS / 2] {
    let [a, b, c, d, e, f, g, h] = words;
    [pair(a, b), pair(c, d), pair(e, f), pair(g, h)]
}

#[inline(always)]
fn word(place: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*place)
}

/// A number as it travels, read as one whose lowest byte comes first.
#[inline(always)]
fn half(value: u32) -> u64 {
    value.swap_bytes().into()
}

#[inline(always)]
fn quarter(value: u16) -> u64 {
    value.swap_bytes().into()
}

impl Packet {
    /// Writes the packet over another one of the same flow, with an IP header of the same length and without
    /// options: like [`emit_frame`](Self::emit_frame), but of the IP and UDP headers only what depends on the
    /// length, which becomes that of `out`. `payload` is the payload, then zeros.
    #[inline]
    pub fn emit_over(
        &self,
        extra: &WireExtra,
        payload: &[u8; OVER_PAYLOAD_MAX],
        ip_header_len: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let [first, _] = payload.as_chunks::<8>().0 else { return 0 };
        let behind = match (self.bth.opcode.headers(), self.payload_len) {
            (Headers::RETH, 0..=8) => {
                let Reth { va, rkey, len } = self.reth;
                [va.swap_bytes(), half(rkey.0) | half(len) << 32, word(first)]
            }
            (Headers::ATOMIC_ANSWER, 0) => {
                let aeth = u32::from_le_bytes(u24_after(self.aeth.syndrome.wire(), self.aeth.msn));
                let original = self.atomic_original.swap_bytes();
                [u64::from(aeth) | original << 32, original >> 32, 0]
            }
            _ => return self.emit_over_any(extra, payload, ip_header_len, out),
        };
        match ip_header_len {
            IPV4_LEN => self.emit_over_by_words(extra, behind, out),
            _ => self.emit_over_any(extra, payload, ip_header_len, out),
        }
    }

    /// The same over IPv4, with these words behind the BTH.
    #[inline(always)]
    fn emit_over_by_words(&self, extra: &WireExtra, behind: [u64; 3], out: &mut Vec<u8>) -> usize {
        let udp_len = UDP_LEN + self.wire_len();
        let len = IPV4_LEN + udp_len;
        // A copy of a known length is no call.
        if out.len() < BY_WORDS_LEN {
            out.extend_from_slice(&[0; BY_WORDS_LEN - (IPV4_LEN + UDP_LEN + BTH_LEN + ICRC_LEN)]);
        }
        let Some(ip) = out.first_chunk::<IPV4_LEN>() else { return 0 };
        let ip_sum = checksum_with(ip, 2, len as u16);
        let Some((places, _)) = out.split_first_chunk_mut::<{ WORDS * 8 }>() else { return 0 };
        let (places, _) = places.as_chunks_mut::<8>();
        let [ip0, ip1, ip2, ..] = places else { return 0 };
        let (ip0, ip1, ip2) = (word(ip0), word(ip1), word(ip2));
        let [bth0, bth1, bth2] = self.bth.words(self.pad() as u8, extra.bth_reserved);
        let [word5, word6, word7] = behind;
        let words = [
            ip0 & !(0xffff << 16) | quarter(len as u16) << 16,
            ip1 & !(0xffff << 16) | quarter(ip_sum) << 16,
            ip2,
            // A new sum of UDP, if there is to be one, is the caller's.
            quarter(udp_len as u16) | half(bth0) << 32,
            half(bth1) | half(bth2) << 32,
            word5,
            word6,
            word7,
        ];
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let covered = side_by_side(core::array::from_fn(|at| words[at] | ONES[at]));
        let Some(covered) = covered.as_flattened().get(..len - ICRC_LEN) else { return 0 };
        let icrc = Icrc::over(covered, &[]).finish();
        out.truncate(len);
        if let Some(place) = out.last_chunk_mut::<ICRC_LEN>() {
            *place = icrc.to_le_bytes();
        }
        len
    }

    /// The same of any packet.
    fn emit_over_any(
        &self,
        extra: &WireExtra,
        payload: &[u8; OVER_PAYLOAD_MAX],
        ip_header_len: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let body_at = ip_header_len + UDP_LEN + self.header_len();
        let len = body_at + self.payload_len as usize + self.pad() + ICRC_LEN;
        let Ok(udp_len) = u16::try_from(len - ip_header_len) else { return 0 };
        if self.payload_len as usize > payload.len() {
            return 0;
        }
        // All of it, whose zeros are the pad: a copy of a known length is no call. Nor is it what makes room
        // for it, if an acknowledgement becomes an atomic's.
        let room = body_at + OVER_PAYLOAD_MAX + ICRC_LEN;
        if out.len() < room {
            out.extend_from_slice(&[0; 24]);
        }
        out.resize(room, 0);
        let Some(body) = out.get_mut(body_at..).and_then(|body| body.first_chunk_mut()) else { return 0 };
        *body = *payload;
        out.truncate(len);
        let Some((ip, inner)) = out.split_at_mut_checked(ip_header_len) else { return 0 };
        let Some((udp, inner)) = inner.split_first_chunk_mut::<UDP_LEN>() else { return 0 };
        if let Ok(ip) = <&mut [u8; IPV4_LEN]>::try_from(&mut *ip) {
            let Some(ip_len) = udp_len.checked_add(IPV4_LEN as u16) else { return 0 };
            checksum_changed(ip, 2, ip_len);
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        // A new sum, if there is to be one, is the caller's.
        let [len0, len1] = udp_len.to_be_bytes();
        [udp[4], udp[5], udp[6], udp[7]] = [len0, len1, 0, 0];
        if self.write_transport(extra, inner).is_none() {
            return 0;
        }
        seal(out, ip_header_len);
        len
    }
}
