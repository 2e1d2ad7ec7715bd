//! rdma_cm's header, the first 36 bytes of the private data of a REQ and of a SIDR_REQ: the IP addresses and
//! the source port that programs name each other by (IBTA A11.4).

use super::bytes::{Reader, Writer};
use crate::units::Gid;

/// Bytes of the header.
pub const IP_HEADER_LEN: usize = 36;

/// The header. Its version is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IpHeader {
    /// IPv4, or IPv6.
    pub ipv4: bool,
    /// The requester's port.
    pub src_port: u16,
    /// The requester's address.
    pub src: Gid,
    /// The address that it asked for.
    pub dst: Gid,
}

/// An address as it stands in the header: of IPv4, the last four bytes of sixteen, zeros before them.
fn written(gid: Gid, ipv4: bool) -> [u8; 16] {
    let mut bytes = gid.0;
    if ipv4 {
        bytes[..12].fill(0);
    }
    bytes
}

fn read(bytes: [u8; 16], ipv4: bool) -> Gid {
    let mut bytes = bytes;
    if ipv4 {
        bytes[..10].fill(0);
        bytes[10..12].fill(0xff);
    }
    Gid(bytes)
}

impl IpHeader {
    /// Reads it. `None` for another version, or for neither kind of address.
    pub fn parse(private: &[u8]) -> Option<IpHeader> {
        let header = Reader(private.get(..IP_HEADER_LEN)?);
        let ipv4 = match (header.u8(0), header.u8(1) >> 4) {
            (0, 4) => true,
            (0, 6) => false,
            _ => return None,
        };
        Some(IpHeader {
            ipv4,
            src_port: header.u16(2),
            src: read(header.bytes(4), ipv4),
            dst: read(header.bytes(20), ipv4),
        })
    }

    /// As it is sent.
    pub fn emit(&self) -> [u8; IP_HEADER_LEN] {
        let mut bytes = [0; IP_HEADER_LEN];
        let mut header = Writer(&mut bytes);
        header.u8(1, if self.ipv4 { 0x40 } else { 0x60 });
        header.u16(2, self.src_port);
        header.bytes(4, &written(self.src, self.ipv4));
        header.bytes(20, &written(self.dst, self.ipv4));
        bytes
    }
}
