//! Ethernet II framing, with 802.1Q tags tolerated on receipt (IBTA A16; RoCEv2 itself starts at IP).

use crate::units::Gid;
use core::fmt;

/// Bytes of an untagged header.
pub const ETH_LEN: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherTypes of customer and service VLAN tags.
const ETHERTYPE_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Tags that are looked through; deeper stacks are not IP to us.
const VLAN_DEPTH_MAX: usize = 2;

/// A link-layer address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All hosts of the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Where packets to a group of hosts go (RFC 1112, 6.4; RFC 2464, 7). `None` for one host's address.
    pub fn of_group(address: Gid) -> Option<Mac> {
        let [.., a, b, c, d] = address.0;
        match (address.is_multicast(), address.is_ipv4()) {
            (false, _) => None,
            (true, true) => Some(Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])),
            (true, false) => Some(Mac([0x33, 0x33, a, b, c, d])),
        }
    }

    /// Whether this is a group's address, or that of all.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An untagged Ethernet II header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Eth {
    /// Destination address.
    pub dst: Mac,
    /// Source address.
    pub src: Mac,
    /// Protocol of the payload, tags skipped.
    pub ethertype: u16,
}

impl Eth {
    /// Reads the header and says where the payload starts. `None` when the bytes end too early.
    pub fn parse(frame: &[u8]) -> Option<(Eth, usize)> {
        let (dst, rest) = frame.split_first_chunk::<6>()?;
        let (src, rest) = rest.split_first_chunk::<6>()?;
        let (mut ethertype, mut rest) = take_u16(rest)?;
        for _ in 0..VLAN_DEPTH_MAX {
            if ETHERTYPE_VLAN.contains(&ethertype) {
                let (_tag, after) = take_u16(rest)?;
                (ethertype, rest) = take_u16(after)?;
            }
        }
        Some((Eth { dst: Mac(*dst), src: Mac(*src), ethertype }, frame.len() - rest.len()))
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; ETH_LEN] {
        let mut out = [0; ETH_LEN];
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        out[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        out
    }
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (value, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*value), rest))
}

/// The IP packet inside an Ethernet frame, trailing padding included; `None` for other protocols.
pub fn ip_packet(frame: &[u8]) -> Option<&[u8]> {
    let (eth, offset) = Eth::parse(frame)?;
    if matches!(eth.ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) { frame.get(offset..) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_addresses_of_the_link() {
        let of = |text: &str| Mac::of_group(text.parse::<std::net::IpAddr>().unwrap().into());
        assert_eq!(of("239.129.2.3"), Some(Mac([1, 0, 0x5e, 1, 2, 3])));
        assert_eq!(of("ff02::1:ff01:203"), Some(Mac([0x33, 0x33, 0xff, 1, 2, 3])));
        assert_eq!((of("10.1.2.3"), of("fe80::1")), (None, None));
    }

    #[test]
    fn round_trip_and_tags() {
        let eth = Eth { dst: Mac([1; 6]), src: Mac([2; 6]), ethertype: ETHERTYPE_IPV4 };
        let bytes = eth.emit();
        assert_eq!(Eth::parse(&bytes), Some((eth, ETH_LEN)));
        assert_eq!(Eth::parse(&bytes[..13]), None);

        let mut tagged = bytes[..12].to_vec();
        tagged.extend([0x81, 0x00, 0x60, 0x01, 0x08, 0x00, 0x45]);
        assert_eq!(Eth::parse(&tagged), Some((eth, 18)));
        assert_eq!(ip_packet(&tagged), Some(&[0x45][..]));
        assert_eq!(Eth::parse(&tagged[..17]), None);
        assert_eq!(ip_packet(&Eth { ethertype: 0x0806, ..eth }.emit()), None);
    }
}
