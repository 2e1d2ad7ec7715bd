//! UDP header (RFC 768) around RoCEv2 (IBTA A17.4.5). The checksum is sent as zero, over IPv6 too
//! (RFC 6935 allows it for tunnels, and rxe does the same), and is not verified: the ICRC is stronger.

/// Bytes on the wire.
pub const UDP_LEN: usize = 8;

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Udp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Header and payload in bytes.
    pub len: u16,
    /// Checksum, zero for "none".
    pub checksum: u16,
}

impl Udp {
    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; UDP_LEN]) -> Udp {
        let word = |i: usize| u16::from_be_bytes([b[i], b[i + 1]]);
        Udp { src_port: word(0), dst_port: word(2), len: word(4), checksum: word(6) }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; UDP_LEN]) {
        out[..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..6].copy_from_slice(&self.len.to_be_bytes());
        out[6..].copy_from_slice(&self.checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let udp = Udp { src_port: 0xc001, dst_port: 4791, len: 24, checksum: 0xbeef };
        let mut out = [0; UDP_LEN];
        udp.write(&mut out);
        assert_eq!(out, [0xc0, 0x01, 0x12, 0xb7, 0, 24, 0xbe, 0xef]);
        assert_eq!(Udp::read(&out), udp);
    }
}
