//! What goes before a datagram's bytes, as in rdma-core's. In a packet to a queue pair it is the address that
//! sent it. In one by the kernel's UDP, by which sockets find each other, it is the sender's queue pair.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of a source with an IPv4 address, and with one of IPv6.
const SOURCE_V4: usize = 8;
const SOURCE_V6: usize = 24;
/// The same for a notice.
const NOTICE_V4: usize = 16;
const NOTICE_V6: usize = 28;
/// What a notice begins with.
const TAG: [u8; 4] = [0x55; 4];
const OP_DATA: u8 = 0;
const OP_CONTROL: u8 = 7;
/// The longest of them.
pub(super) const HEAD_MAX: usize = NOTICE_V6;

/// The bytes of a source or of a notice.
pub(super) struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The source of a datagram in a packet to a queue pair: version, length, port, address.
    pub(super) fn source(from: SocketAddr) -> Head {
        let mut bytes = [0; HEAD_MAX];
        bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
        // Before an address of IPv6 stands its flow information, of which nobody here makes use.
        let at = if from.is_ipv4() { 4 } else { 8 };
        let len = put(&mut bytes, at, from.ip());
        bytes[..2].copy_from_slice(&[version(from.ip()), len as u8]);
        Head { bytes, len }
    }

    /// A notice of who is at an address. It comes with a datagram, or answers one.
    pub(super) fn notice(notice: Notice, own: IpAddr) -> Head {
        let mut bytes = [0; HEAD_MAX];
        bytes[..4].copy_from_slice(&TAG);
        bytes[8..12].copy_from_slice(&notice.qpn.to_be_bytes());
        let len = put(&mut bytes, 12, own);
        let op = if notice.with_data { OP_DATA } else { OP_CONTROL };
        bytes[4..7].copy_from_slice(&[version(own), op, len as u8]);
        Head { bytes, len }
    }
}

/// Writes an address from this byte on; where it ends.
fn put(bytes: &mut [u8; HEAD_MAX], at: usize, ip: IpAddr) -> usize {
    let octets = match ip {
        IpAddr::V4(v4) => &v4.octets()[..],
        IpAddr::V6(v6) => &v6.octets()[..],
    };
    let end = at + octets.len();
    bytes[at..end].copy_from_slice(octets);
    end
}

fn version(of: IpAddr) -> u8 {
    if of.is_ipv4() { 4 } else { 6 }
}

/// Who sent a datagram that came to the queue pair, and the length of what says so.
pub(super) fn parse_source(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let [version, len, port_high, port_low, rest @ ..] = bytes else { return None };
    let ip: IpAddr = match (version, usize::from(*len)) {
        (4, SOURCE_V4) => rest.first_chunk::<4>().map(|octets| (*octets).into())?,
        (6, SOURCE_V6) => Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    let port = u16::from_be_bytes([*port_high, *port_low]);
    Some((SocketAddr::new(ip.to_canonical(), port), (*len).into()))
}

/// What a packet by UDP says. Its sender's address is the packet's, and not what it says of it, so that
/// nobody is sent datagrams that others ask for in its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    /// It has a datagram behind it, and is to be answered.
    pub(super) with_data: bool,
    /// The sender's queue pair.
    pub(super) qpn: u32,
}

impl Notice {
    /// A notice and its length.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Notice, usize)> {
        let len = usize::from(*bytes.get(6)?);
        let known = matches!((bytes[4], len), (4, NOTICE_V4) | (6, NOTICE_V6));
        if !known || bytes[..4] != TAG || bytes.len() < len {
            return None;
        }
        let with_data = match bytes[5] {
            OP_DATA => true,
            OP_CONTROL => false,
            _ => return None,
        };
        let qpn = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]);
        Some((Notice { with_data, qpn }, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_laid_out_as_rdma_cores() {
        let v4: SocketAddr = "10.1.2.3:7174".parse().unwrap();
        assert_eq!(Head::source(v4).bytes(), [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        let v6: SocketAddr = "[fe80::1]:2".parse().unwrap();
        let bytes = [6, 24, 0, 2, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(Head::source(v6).bytes(), bytes);
        for address in [v4, v6] {
            let head = Head::source(address);
            assert_eq!(parse_source(head.bytes()), Some((address, head.bytes().len())));
            assert_eq!(parse_source(&head.bytes()[..head.bytes().len() - 1]), None);
        }
        let notice = Notice { with_data: true, qpn: 0xabcdef };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0xab, 0xcd, 0xef, 10, 1, 2, 3];
        assert_eq!(Head::notice(notice, v4.ip()).bytes(), bytes);
    }

    #[test]
    fn notices_are_read_back_and_others_refused() {
        for with_data in [true, false] {
            for own in ["10.1.2.3", "fe80::1"] {
                let notice = Notice { with_data, qpn: 77 };
                let head = Head::notice(notice, own.parse().unwrap());
                let bytes = head.bytes();
                assert_eq!(Notice::parse(bytes), Some((notice, bytes.len())));
                (0..bytes.len()).for_each(|len| assert_eq!(Notice::parse(&bytes[..len]), None));
                for at in [0, 3, 4, 5, 6] {
                    let mut other = bytes.to_vec();
                    other[at] ^= 0x20;
                    assert_eq!(Notice::parse(&other), None, "byte {at}");
                }
            }
        }
    }

    #[test]
    fn an_address_of_ipv4_is_the_same_in_ipv6s_form() {
        let mapped = SocketAddr::new("::ffff:10.1.2.3".parse().unwrap(), 5);
        let (address, len) = parse_source(Head::source(mapped).bytes()).unwrap();
        assert_eq!((address, len), ("10.1.2.3:5".parse().unwrap(), SOURCE_V6));
    }
}
