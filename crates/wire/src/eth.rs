//! Ethernet II framing, with 802.1Q tags tolerated on receipt (IBTA A16; RoCEv2 itself starts at IP).

use core::fmt;

/// Bytes of an untagged header.
pub const ETH_LEN: usize = 14;
/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherTypes of customer and service VLAN tags.
const ETHERTYPE_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Tags that are looked through; deeper stacks are not IP to us.
const VLAN_DEPTH_MAX: usize = 2;

/// A link-layer address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

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
