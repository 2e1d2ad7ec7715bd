//! Neighbour solicitations and advertisements (RFC 4861, 4.3 and 4.4): what ARP is for IPv6.

use crate::eth::Mac;
use crate::ip::{IPV6_LEN, Ipv6, checksum_ipv6};
use crate::units::Gid;

/// Protocol number of ICMPv6.
const NEXT_ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Type, code, checksum, flags, target.
const FIXED_LEN: usize = 24;
/// The option with a hardware address, 8 bytes, and its two types.
const OPTION_LEN: usize = 8;
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// Of an advertisement: solicited, and overrides what was known.
const SOLICITED_OVERRIDE: u8 = 0x60;
/// Nothing that a router has let pass is believed (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
/// Bytes of a message that [`Neighbour::emit`] makes, IPv6 header included.
pub const NEIGHBOUR_LEN: usize = IPV6_LEN + FIXED_LEN + OPTION_LEN;

/// All nodes of the link (RFC 4291, 2.7.1).
pub const ALL_NODES: Gid = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The group in which who has an address hears solicitations for it (RFC 4291, 2.7.1).
pub fn solicited_node(address: Gid) -> Gid {
    let [.., b, c, d] = address.0;
    Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, b, c, d])
}

/// The address on the link that goes with a hardware address (RFC 4291, appendix A).
pub fn link_local(Mac([a, b, c, d, e, f]): Mac) -> Gid {
    Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeighbourKind {
    /// Who has the target's address? With the hardware address of who asks.
    Solicitation,
    /// Who says it has the target's address. With the target's hardware address.
    Advertisement,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// What it is for.
    pub kind: NeighbourKind,
    /// Who sends it; nobody, while it finds out whether its address is free.
    pub src: Gid,
    /// To whom.
    pub dst: Gid,
    /// Whom it is about.
    pub target: Gid,
    /// The hardware address that it tells.
    pub mac: Option<Mac>,
}

impl Neighbour {
    /// Whether an IPv6 packet is such a message, right or wrong.
    pub fn is_one(packet: &[u8]) -> bool {
        packet.get(6) == Some(&NEXT_ICMPV6)
            && matches!(packet.get(IPV6_LEN), Some(&(SOLICITATION | ADVERTISEMENT)))
    }

    /// Reads an IPv6 packet. `None` for all others, and those that must not be believed.
    pub fn parse(packet: &[u8]) -> Option<Neighbour> {
        let ip = Ipv6::parse(packet, packet.len()).ok()?;
        let body = packet.get(IPV6_LEN..IPV6_LEN + usize::from(ip.payload_len))?;
        let (fixed, mut options) = body.split_first_chunk::<FIXED_LEN>()?;
        let is_right = checksum_ipv6(&ip.src, &ip.dst, NEXT_ICMPV6, body) == 0;
        if ip.next_header != NEXT_ICMPV6 || ip.hop_limit != HOP_LIMIT || fixed[1] != 0 || !is_right {
            return None;
        }
        let (kind, wanted) = match fixed[0] {
            SOLICITATION => (NeighbourKind::Solicitation, OPTION_SOURCE),
            ADVERTISEMENT => (NeighbourKind::Advertisement, OPTION_TARGET),
            _ => return None,
        };
        let mut mac = None;
        while let [option, eights, ..] = *options {
            let (whole, rest) = options.split_at_checked(usize::from(eights) * OPTION_LEN)?;
            if option == wanted {
                mac = mac.or(Some(Mac(*whole.get(2..)?.first_chunk::<6>()?)));
            }
            // One without a length would never end.
            options = if eights == 0 { return None } else { rest };
        }
        let (_, target) = fixed.split_last_chunk::<16>()?;
        Some(Neighbour { kind, src: Gid(ip.src), dst: Gid(ip.dst), target: Gid(*target), mac })
    }

    /// The packet's bytes, from the IPv6 header on. A message without a hardware address tells a zero.
    pub fn emit(&self) -> [u8; NEIGHBOUR_LEN] {
        let mut out = [0; NEIGHBOUR_LEN];
        let (kind, flags, option) = match self.kind {
            NeighbourKind::Solicitation => (SOLICITATION, 0, OPTION_SOURCE),
            NeighbourKind::Advertisement => (ADVERTISEMENT, SOLICITED_OVERRIDE, OPTION_TARGET),
        };
        let (head, body) = out.split_at_mut(IPV6_LEN);
        (body[0], body[4]) = (kind, flags);
        body[8..FIXED_LEN].copy_from_slice(&self.target.0);
        (body[FIXED_LEN], body[FIXED_LEN + 1]) = (option, 1);
        body[FIXED_LEN + 2..].copy_from_slice(&self.mac.unwrap_or_default().0);
        let sum = checksum_ipv6(&self.src.0, &self.dst.0, NEXT_ICMPV6, body);
        body[2..4].copy_from_slice(&sum.to_be_bytes());
        let ip = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            payload_len: (FIXED_LEN + OPTION_LEN) as u16,
            next_header: NEXT_ICMPV6,
            hop_limit: HOP_LIMIT,
            src: self.src.0,
            dst: self.dst.0,
        };
        if let Some(head) = head.first_chunk_mut() {
            ip.emit(head);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn gid(text: &str) -> Gid {
        text.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let mac = Mac([0x52, 0x54, 0, 0, 0x77, 0x11]);
        let src = link_local(mac);
        assert_eq!(src, gid("fe80::5054:ff:fe00:7711"));
        let target = gid("fd77::1:2");
        for (kind, dst) in [
            (NeighbourKind::Solicitation, solicited_node(target)),
            (NeighbourKind::Advertisement, gid("fd77::3")),
        ] {
            let message = Neighbour { kind, src, dst, target, mac: Some(mac) };
            let bytes = message.emit();
            assert!(Neighbour::is_one(&bytes));
            assert_eq!(Neighbour::parse(&bytes), Some(message));
            // Padding of short Ethernet frames.
            assert_eq!(Neighbour::parse(&[&bytes[..], &[0; 9]].concat()), Some(message));
            for at in [4, 6, 7, IPV6_LEN, IPV6_LEN + 1, IPV6_LEN + 9, NEIGHBOUR_LEN - 1] {
                let mut bad = bytes;
                bad[at] ^= 1;
                assert_eq!(Neighbour::parse(&bad), None, "byte {at}");
            }
            assert_eq!(Neighbour::parse(&bytes[..NEIGHBOUR_LEN - 1]), None);
        }
        assert_eq!(solicited_node(target), gid("ff02::1:ff01:2"));
    }

    #[test]
    fn who_has_no_address_yet_asks_without_an_option() {
        // What :: says, which finds out whether fe80::5054:ff:fe00:7711 is free: there is no option.
        let mut bytes = [0; IPV6_LEN + FIXED_LEN];
        let target = gid("fe80::5054:ff:fe00:7711");
        let dst = solicited_node(target);
        let ip = Ipv6 {
            traffic_class: 0,
            flow_label: 0,
            payload_len: FIXED_LEN as u16,
            next_header: NEXT_ICMPV6,
            hop_limit: HOP_LIMIT,
            src: [0; 16],
            dst: dst.0,
        };
        ip.emit(bytes.first_chunk_mut().unwrap());
        bytes[IPV6_LEN] = SOLICITATION;
        bytes[IPV6_LEN + 8..].copy_from_slice(&target.0);
        let sum = checksum_ipv6(&ip.src, &ip.dst, NEXT_ICMPV6, &bytes[IPV6_LEN..]);
        bytes[IPV6_LEN + 2..IPV6_LEN + 4].copy_from_slice(&sum.to_be_bytes());
        let kind = NeighbourKind::Solicitation;
        let expected = Neighbour { kind, src: Gid::default(), dst, target, mac: None };
        assert_eq!(Neighbour::parse(&bytes), Some(expected));
    }

    #[test]
    fn options_that_never_end_are_refused() {
        let mac = Some(Mac([2; 6]));
        let kind = NeighbourKind::Solicitation;
        let message =
            Neighbour { kind, src: gid("fe80::1"), dst: gid("fe80::2"), target: gid("fe80::2"), mac };
        for eights in [0, 2] {
            let mut bytes = message.emit();
            bytes[IPV6_LEN + FIXED_LEN + 1] = eights;
            bytes[IPV6_LEN + 2..IPV6_LEN + 4].fill(0);
            let sum = checksum_ipv6(&message.src.0, &message.dst.0, NEXT_ICMPV6, &bytes[IPV6_LEN..]);
            bytes[IPV6_LEN + 2..IPV6_LEN + 4].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(Neighbour::parse(&bytes), None);
        }
    }
}
