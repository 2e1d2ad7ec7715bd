//! ARP (RFC 826) for IPv4 over Ethernet: who on a link has an address, and where.

use crate::eth::Mac;
use crate::units::Gid;
use std::net::Ipv4Addr;

/// Bytes of a message.
pub const ARP_LEN: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const START: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpKind {
    /// Who has the target's address?
    Request,
    /// The sender has its address.
    Reply,
}

/// A message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// What it is for.
    pub kind: ArpKind,
    /// Who says it.
    pub sender: (Mac, Ipv4Addr),
    /// To or about whom.
    pub target: (Mac, Ipv4Addr),
}

impl Arp {
    /// Reads what follows the Ethernet header. `None` for other protocols, kinds and ends.
    pub fn parse(bytes: &[u8]) -> Option<Arp> {
        let rest = bytes.get(..ARP_LEN)?.strip_prefix(&START)?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (sender_mac, rest) = rest.split_first_chunk::<6>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (target_mac, rest) = rest.split_first_chunk::<6>()?;
        let kind = match kind {
            [0, 1] => ArpKind::Request,
            [0, 2] => ArpKind::Reply,
            _ => return None,
        };
        let target = Ipv4Addr::from(*rest.first_chunk::<4>()?);
        Some(Arp {
            kind,
            sender: (Mac(*sender_mac), Ipv4Addr::from(*sender)),
            target: (Mac(*target_mac), target),
        })
    }

    /// The message's bytes.
    pub fn emit(&self) -> [u8; ARP_LEN] {
        let mut out = [0; ARP_LEN];
        out[..6].copy_from_slice(&START);
        out[7] = match self.kind {
            ArpKind::Request => 1,
            ArpKind::Reply => 2,
        };
        for (at, (mac, address)) in [(8, self.sender), (18, self.target)] {
            out[at..at + 6].copy_from_slice(&mac.0);
            out[at + 6..at + 10].copy_from_slice(&address.octets());
        }
        out
    }

    /// The sender as other packets name it.
    pub fn sender_gid(&self) -> Gid {
        self.sender.1.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_and_written() {
        // 10.77.0.11 at 52:54:00:00:77:11 asks for 10.77.0.1.
        let bytes = [
            0x00, 0x01, 0x08, 0x00, 0x06, 0x04, 0x00, 0x01, 0x52, 0x54, 0x00, 0x00, 0x77, 0x11, 0x0a, 0x4d,
            0x00, 0x0b, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x4d, 0x00, 0x01,
        ];
        let mac = Mac([0x52, 0x54, 0, 0, 0x77, 0x11]);
        let expected = Arp {
            kind: ArpKind::Request,
            sender: (mac, Ipv4Addr::new(10, 77, 0, 11)),
            target: (Mac::default(), Ipv4Addr::new(10, 77, 0, 1)),
        };
        assert_eq!(Arp::parse(&bytes), Some(expected));
        assert_eq!(expected.emit(), bytes);
        for wrong in [0, 3, 5, 7] {
            let mut bad = bytes;
            bad[wrong] ^= 4;
            assert_eq!(Arp::parse(&bad), None, "byte {wrong}");
        }
        assert_eq!(Arp::parse(&bytes[..27]), None);
    }
}
