//! Whole IP packets around what a UDP socket or a ring shows: their headers, their ICRC, and back.

use crate::ring::Frame;
use adverb_wire::ip::PROTOCOL_UDP;
use adverb_wire::{
    Flow, Gid, ICRC_LEN, Opcode, Packet, ParseError, QpNumber, ROCE_UDP_PORT, WireExtra, seal,
};

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

/// A frame that arrived, as a socket shows it.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Addresses, class, and source port.
    pub flow: Flow,
    /// From the BTH through the ICRC.
    pub bytes: &'a [u8],
    /// The IPv4 identification that it probably had, which a socket does not show: its number in a message
    /// that the sender's kernel cut apart.
    pub likely_id: u16,
    /// What came behind it in the same message: frames that are as long as it, but for the last.
    pub behind: &'a [u8],
}

impl Datagram<'_> {
    /// What the frame is that comes so many behind this one in the message, and whom it is for, by what it
    /// says.
    #[inline]
    pub fn coming(&self, places: usize) -> Option<(Opcode, QpNumber)> {
        let at = (places - 1) * self.bytes.len();
        let &[opcode, _, _, _, _, a, b, c] = self.behind.get(at..)?.first_chunk()?;
        Some((Opcode::from_wire(opcode)?, QpNumber::new(u32::from_be_bytes([0, a, b, c]))))
    }
}

/// Copies a frame out of a ring as it would be on the wire: with the headers that a compact entry leaves out,
/// and the ICRC that its sender did not compute, if what it sent is a packet.
pub fn whole_frame(
    own: Gid,
    frame: &Frame<'_>,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), ParseError> {
    if !frame.is_compact() {
        frame.copy_to(out);
        if frame.elides_icrc()
            && let Ok(headers) = Packet::parse_ip_headers(out, out.len())
            && let Some(frame) = out.get_mut(..headers.frame_len)
        {
            seal(frame, headers.ip_header_len);
        }
        return Ok(());
    }
    let flow = frame.flow(own);
    frame.copy_to(scratch);
    scratch.extend_from_slice(&[0; ICRC_LEN]);
    let packet = Packet::parse_headers(flow, scratch, scratch.len())?.packet;
    rebuild(&packet, 0, &Datagram { flow, bytes: scratch, likely_id: 0, behind: &[] }, out);
    seal(out, flow.ip_header_len());
    Ok(())
}

/// Puts IP and UDP headers, which a socket does not show, before a received datagram.
pub fn rebuild(packet: &Packet, ipv4_id: u16, datagram: &Datagram<'_>, out: &mut Vec<u8>) {
    let outer_len = packet.flow.ip_header_len() + UDP_LEN;
    out.clear();
    out.resize(packet.frame_header_len(), 0);
    packet.emit_ip_with(&WireExtra::with_ipv4_id(ipv4_id), out);
    out.truncate(outer_len);
    out.extend_from_slice(datagram.bytes);
}

/// Where the BTH of a frame starts.
pub fn bth_offset(bytes: &[u8]) -> usize {
    match bytes.first().map_or(0, |b| b >> 4) {
        4 => usize::from(bytes[0] & 0x0f) * 4 + UDP_LEN,
        _ => 40 + UDP_LEN,
    }
}

/// Whether an IP packet is RoCEv2's, by its protocol and port.
pub fn is_roce(packet: &[u8]) -> bool {
    let protocol = match packet.first().map(|first| first >> 4) {
        Some(4) => packet.get(9),
        Some(6) => packet.get(6),
        _ => return false,
    };
    // The destination's port is the second word of the UDP header, which ends where the BTH starts.
    let port = packet.get(bth_offset(packet) - UDP_LEN + 2..).and_then(<[u8]>::first_chunk);
    protocol == Some(&PROTOCOL_UDP) && port == Some(&ROCE_UDP_PORT.to_be_bytes())
}

/// The addresses, class and hop limit of an IP packet, whatever it carries.
pub fn outer_flow(bytes: &[u8]) -> Option<Flow> {
    let gid = |at: usize, len: usize| -> Option<Gid> {
        let part = bytes.get(at..at + len)?;
        match <[u8; 4]>::try_from(part) {
            Ok(v4) => Some(Gid::from(std::net::Ipv4Addr::from(v4))),
            Err(_) => Some(Gid(part.try_into().ok()?)),
        }
    };
    let [b0, b1] = *bytes.first_chunk::<2>()?;
    let (src, dst, traffic_class, hop_limit) = match b0 >> 4 {
        4 => (gid(12, 4)?, gid(16, 4)?, b1, *bytes.get(8)?),
        6 => (gid(8, 16)?, gid(24, 16)?, b0 << 4 | b1 >> 4, *bytes.get(7)?),
        _ => return None,
    };
    Some(Flow { src, dst, src_port: ROCE_UDP_PORT, traffic_class, hop_limit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::{Bth, Operation, Service, verify_ip};
    use std::net::IpAddr;

    fn packet(src: &str, dst: &str) -> Packet {
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
        let (src, dst) = (gid(src), gid(dst));
        let flow = Flow { src, dst, src_port: ROCE_UDP_PORT, traffic_class: 0xb9, hop_limit: 9 };
        let opcode = Opcode::new(Service::Rc, Operation::SendOnly);
        Packet { flow, bth: Bth { opcode, ..Bth::default() }, payload_len: 5, ..Packet::default() }
    }

    #[test]
    fn headers_come_back_around_what_a_socket_shows() {
        for (src, dst) in [("10.1.2.3", "10.1.2.4"), ("fd00::1", "fd00::2")] {
            let packet = packet(src, dst);
            let mut whole = vec![0; packet.frame_len()];
            let header_len = packet.emit_ip(&mut whole);
            whole[header_len..header_len + 5].copy_from_slice(b"hello");
            seal(&mut whole, packet.flow.ip_header_len());
            assert!(verify_ip(&whole, packet.flow.ip_header_len()));
            let bth_at = bth_offset(&whole);
            assert_eq!(bth_at, packet.flow.ip_header_len() + UDP_LEN);
            assert_eq!(outer_flow(&whole), Some(packet.flow));
            let mut again = Vec::new();
            rebuild(
                &packet,
                0,
                &Datagram { flow: packet.flow, bytes: &whole[bth_at..], likely_id: 0, behind: &[] },
                &mut again,
            );
            assert_eq!(again, whole);
        }
    }

    #[test]
    fn whom_coming_frames_are_for_is_read_from_what_lies_behind() {
        let packet = packet("10.1.2.3", "10.1.2.4");
        let numbers = [0x10_0203, 0x20_0405, 0x30_0607];
        let len = packet.wire_len();
        let mut message = vec![0; 3 * len];
        for (frame, number) in message.chunks_mut(len).zip(numbers) {
            let dest_qp = QpNumber::new(number);
            Packet { bth: Bth { dest_qp, ..packet.bth }, ..packet }.emit_bth(frame);
        }
        let (bytes, behind) = message.split_at(len);
        let datagram = |behind| Datagram { flow: packet.flow, bytes, likely_id: 0, behind };
        let coming = |behind, places| {
            let (opcode, number) = datagram(behind).coming(places)?;
            assert_eq!(opcode, packet.bth.opcode);
            Some(number.get())
        };
        assert_eq!(coming(behind, 1), Some(numbers[1]));
        assert_eq!(coming(behind, 2), Some(numbers[2]));
        assert_eq!(coming(behind, 3), None);
        // The last frame may be shorter than the others, and than a BTH.
        assert_eq!(coming(&behind[..len + 8], 2), Some(numbers[2]));
        assert_eq!(coming(&behind[..len + 7], 2), None);
        assert_eq!(coming(&[], 1), None);
    }

    #[test]
    fn what_is_no_packet_has_no_flow() {
        for bytes in [&[][..], &[0x45], &[0x45; 19], &[0x60; 39], &[0; 60]] {
            assert_eq!(outer_flow(bytes), None);
            bth_offset(bytes);
        }
    }
}
