//! A packet inside the switch: the parsed descriptor, and beside it the bytes as they came. What no program
//! has changed leaves as it came, bit for bit; what one has changed is emitted anew.

use adverb_wire::ip::checksum_ipv6;
use adverb_wire::{Flow, FrameMut, ICRC_LEN, Packet, ParseError, WireExtra, verify_ip};

/// Where an IPv6 header says that UDP follows, and where UDP has its checksum.
const NEXT_HEADER_AT: usize = 6;
const UDP_CHECKSUM_AT: usize = 6;
/// The payload that a program may give a packet.
const OWN_PAYLOAD_MAX: usize = 16;

/// A packet in the switch.
#[derive(Clone, Default, Debug)]
pub struct Frame {
    /// Its headers.
    pub packet: Packet,
    /// What the headers say beyond the descriptor.
    pub extra: WireExtra,
    /// From the IP header through the ICRC, as received.
    bytes: Vec<u8>,
    payload_at: usize,
    ip_header_len: usize,
    body: Body,
}

/// What of a frame the received bytes still say.
#[derive(Clone, Copy, Default, Debug)]
enum Body {
    /// All: they leave as they are.
    #[default]
    AsReceived,
    /// Nothing: the descriptor and this payload are emitted.
    Own([u8; OWN_PAYLOAD_MAX]),
    /// The payload: other headers, of the same layout, are emitted before it.
    Payload,
}

impl Frame {
    /// Parses a packet that starts at its IP header. Bytes behind its ICRC are cut off.
    pub fn parse(bytes: Vec<u8>) -> Result<Frame, ParseError> {
        let mut frame = Frame::default();
        frame.refill(bytes)?;
        Ok(frame)
    }

    /// Becomes the frame of other bytes, in the same place.
    pub fn refill(&mut self, mut bytes: Vec<u8>) -> Result<(), ParseError> {
        let parsed = Packet::parse_ip(&bytes)?;
        bytes.truncate(parsed.frame_len);
        self.packet = parsed.packet;
        self.extra = parsed.extra;
        self.bytes = bytes;
        self.payload_at = parsed.payload.start;
        self.ip_header_len = parsed.ip_header_len;
        self.body = Body::AsReceived;
        Ok(())
    }

    /// A frame like this one, with other headers and a payload of at most 16 bytes: one that the switch
    /// generates.
    pub fn made_like(&self, packet: Packet, payload: &[u8]) -> Box<Frame> {
        let mut frame = Frame {
            packet: self.packet,
            extra: self.extra,
            bytes: Vec::new(),
            payload_at: 0,
            ip_header_len: self.ip_header_len,
            body: Body::AsReceived,
        };
        frame.change(packet, payload);
        Box::new(frame)
    }

    /// Gives the frame other headers, of the same IP version, and a payload of at most 16 bytes.
    pub fn change(&mut self, packet: Packet, payload: &[u8]) {
        assert!(payload.len() <= OWN_PAYLOAD_MAX && payload.len() == packet.payload_len as usize);
        let mut own = [0; OWN_PAYLOAD_MAX];
        own[..payload.len()].copy_from_slice(payload);
        self.packet = packet;
        self.body = Body::Own(own);
    }

    /// Gives the frame other headers, and leaves it its payload.
    pub fn readdress(&mut self, packet: Packet) {
        assert_eq!(packet.payload_len, self.packet.payload_len, "the payload stays");
        if !self.is_changed() {
            self.body = Body::Payload;
        }
        self.packet = packet;
    }

    /// Whether the ICRC of the received bytes is right.
    pub fn is_sound(&self) -> bool {
        match self.body {
            Body::AsReceived => verify_ip(&self.bytes, self.ip_header_len),
            Body::Own(_) | Body::Payload => true,
        }
    }

    /// Whether a program has changed it, so that it is emitted anew.
    pub fn is_changed(&self) -> bool {
        !matches!(self.body, Body::AsReceived)
    }

    /// Whether the IP header carries options: a program leaves such a packet alone, because emitting it anew
    /// would lose them.
    pub fn has_options(&self) -> bool {
        self.ip_header_len != self.packet.flow.ip_header_len()
    }

    /// The payload, pad excluded.
    pub fn payload(&self) -> &[u8] {
        let len = self.packet.payload_len as usize;
        match &self.body {
            Body::AsReceived | Body::Payload => &self.bytes[self.payload_at..self.payload_at + len],
            Body::Own(own) => &own[..len],
        }
    }

    /// Marks an ECN-capable packet as having met congestion (RFC 3168); whether it is capable. The ICRC does
    /// not cover the mark, so a damaged packet stays damaged.
    pub fn mark_congestion(&mut self) -> bool {
        if self.packet.flow.traffic_class & 3 == 0 {
            return false;
        }
        let flow = Flow { traffic_class: self.packet.flow.traffic_class | 3, ..self.packet.flow };
        if matches!(self.body, Body::AsReceived) {
            let set = FrameMut::new(&mut self.bytes).map(|mut view| view.set_flow(flow));
            assert!(matches!(set, Ok(Ok(()))), "a frame that was parsed parses again");
        }
        self.packet.flow = flow;
        true
    }

    /// Cuts the payload off and leaves an ICRC that is wrong, so that the receiver learns of the packet and
    /// does not take it. False, and nothing done, if there is no payload to cut or the packet has IP options.
    pub fn trim(&mut self) -> bool {
        if self.packet.payload_len == 0 || self.has_options() || self.is_changed() {
            return false;
        }
        let packet = Packet { payload_len: 0, ..self.packet };
        let extra = WireExtra { udp_checksum: 0, ..self.extra };
        let mut bytes = vec![0; packet.frame_len()];
        let len = packet.emit_frame(&extra, &[], &mut bytes);
        assert_eq!(len, bytes.len(), "headers that were parsed are emitted");
        for byte in &mut bytes[len - ICRC_LEN..] {
            *byte = !*byte;
        }
        self.packet = packet;
        self.extra = extra;
        self.payload_at = len - ICRC_LEN;
        self.bytes = bytes;
        true
    }

    /// The bytes as they leave: as they came, or emitted anew with a new ICRC.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let (mut bytes, own);
        let payload = match self.body {
            Body::AsReceived => return std::mem::take(&mut self.bytes),
            Body::Own(small) => {
                (bytes, own) = (std::mem::take(&mut self.bytes), small);
                &own[..self.packet.payload_len as usize]
            }
            Body::Payload => {
                bytes = Vec::new();
                self.payload()
            }
        };
        bytes.resize(self.packet.frame_len(), 0);
        // A checksum of zero says that there is none. IPv6 allows that for tunnels only, and plain sockets
        // drop it (RFC 6935), so it is computed where the sender had one.
        let had_checksum = self.extra.udp_checksum != 0 && !self.packet.flow.is_ipv4();
        let extra = WireExtra { udp_checksum: 0, ..self.extra };
        let len = self.packet.emit_frame(&extra, payload, &mut bytes);
        assert_eq!(len, bytes.len(), "a packet that programs made is emitted");
        if had_checksum {
            let (ip, udp) = bytes.split_at_mut(self.ip_header_len);
            let Flow { src, dst, .. } = self.packet.flow;
            let sum = match checksum_ipv6(&src.0, &dst.0, ip[NEXT_HEADER_AT], udp) {
                0 => u16::MAX,
                sum => sum,
            };
            udp[UDP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }
}
