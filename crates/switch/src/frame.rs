//! A packet inside the switch: the parsed descriptor, and beside it the bytes as they came. What no program
//! has changed leaves as it came, bit for bit; what one has changed is emitted anew.

use adverb_wire::icrc::{seal, verify_in_place};
use adverb_wire::ip::checksum_ipv6;
use adverb_wire::{Flow, FrameMut, ICRC_LEN, OVER_PAYLOAD_MAX, Packet, ParseError, WireExtra};

/// Where an IPv6 header says that UDP follows, and where UDP has its checksum.
const NEXT_HEADER_AT: usize = 6;
const UDP_CHECKSUM_AT: usize = 6;

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
    /// The IP header has options.
    options: bool,
    /// The bytes begin with the IP and UDP headers of the packet's flow, without options.
    keeps_flow: bool,
    body: Body,
}

/// What of a frame the received bytes still say.
#[derive(Clone, Copy, Default, Debug)]
enum Body {
    /// All: they leave as they are.
    #[default]
    AsReceived,
    /// Nothing: the descriptor and this payload, with zeros behind it, are emitted.
    Own([u8; OVER_PAYLOAD_MAX]),
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
    #[inline(always)]
    pub fn refill(&mut self, mut bytes: Vec<u8>) -> Result<(), ParseError> {
        let place = self.packet.parse_ip_into(&mut self.extra, &bytes, bytes.len())?;
        bytes.truncate(place.frame_len);
        self.options = !matches!(bytes.first(), Some(0x45 | 0x60..));
        self.bytes = bytes;
        self.payload_at = place.payload_offset;
        self.ip_header_len = place.ip_header_len;
        self.keeps_flow = !self.options;
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
            options: self.options,
            keeps_flow: false,
            body: Body::AsReceived,
        };
        frame.change(packet, payload);
        Box::new(frame)
    }

    /// Gives the frame other headers, of the same IP version, and a payload of at most 16 bytes.
    pub fn change(&mut self, packet: Packet, payload: &[u8]) {
        assert!(payload.len() <= OVER_PAYLOAD_MAX && payload.len() == packet.payload_len as usize);
        let mut own = [0; OVER_PAYLOAD_MAX];
        own[..payload.len()].copy_from_slice(payload);
        self.keeps_flow &= packet.flow == self.packet.flow;
        (self.packet, self.body) = (packet, Body::Own(own));
    }

    /// Changes the frame's headers where they stand, but not its flow, and gives it this payload.
    #[inline]
    pub fn change_with<const LEN: usize>(&mut self, payload: [u8; LEN], change: impl FnOnce(&mut Packet)) {
        const { assert!(LEN <= OVER_PAYLOAD_MAX) };
        let flow = self.packet.flow;
        change(&mut self.packet);
        debug_assert_eq!(flow, self.packet.flow, "another flow is another frame");
        assert_eq!(self.packet.payload_len as usize, LEN);
        let mut own = [0; OVER_PAYLOAD_MAX];
        own[..LEN].copy_from_slice(&payload);
        self.body = Body::Own(own);
    }

    /// Gives the frame other headers, and leaves it its payload.
    pub fn readdress(&mut self, packet: Packet) {
        assert_eq!(packet.payload_len, self.packet.payload_len, "the payload stays");
        if !self.is_changed() {
            self.body = Body::Payload;
        }
        self.keeps_flow &= packet.flow == self.packet.flow;
        self.packet = packet;
    }

    /// Whether the ICRC of the received bytes is right.
    #[inline]
    pub fn is_sound(&mut self) -> bool {
        match self.body {
            Body::AsReceived => verify_in_place(&mut self.bytes, self.ip_header_len),
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
        self.options
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
        } else {
            self.keeps_flow = false;
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
    #[inline]
    pub fn take_bytes(&mut self) -> Vec<u8> {
        if self.is_changed() {
            self.emit();
        }
        std::mem::take(&mut self.bytes)
    }

    /// Emits what programs have changed, in the place of what was received.
    fn emit(&mut self) {
        // A checksum of zero says that there is none. IPv6 allows that for tunnels only, and plain sockets
        // drop it (RFC 6935), so it is computed where the sender had one.
        let had_checksum = std::mem::take(&mut self.extra.udp_checksum) != 0;
        let Frame { packet, extra, bytes, .. } = self;
        match &self.body {
            Body::AsReceived => return,
            Body::Own(own) if self.keeps_flow => {
                let len = packet.emit_over(extra, own, self.ip_header_len, bytes);
                assert!(len != 0 && len == bytes.len(), "a packet that programs made is emitted");
            }
            Body::Own(own) => {
                bytes.resize(packet.frame_len(), 0);
                let len = packet.emit_frame(extra, &own[..packet.payload_len as usize], bytes);
                assert_eq!(len, bytes.len(), "a packet that programs made is emitted");
            }
            Body::Payload => {
                let (payload_at, header_len) = (self.payload_at, packet.frame_header_len());
                // Where the headers take another room than before, IP options included.
                if payload_at != header_len {
                    bytes.splice(..payload_at, std::iter::repeat_n(0, header_len));
                }
                let len = packet.emit_ip_with(extra, bytes);
                assert!((len, bytes.len()) == (header_len, packet.frame_len()), "it is emitted");
                let pad_at = header_len + packet.payload_len as usize;
                bytes[pad_at..].fill(0);
                seal(bytes, packet.flow.ip_header_len());
            }
        }
        if had_checksum && !self.packet.flow.is_ipv4() {
            self.sum_udp();
        }
    }

    /// Computes the checksum of UDP over IPv6.
    #[cold]
    fn sum_udp(&mut self) {
        let (ip, udp) = self.bytes.split_at_mut(self.ip_header_len);
        let Flow { src, dst, .. } = self.packet.flow;
        let sum = match checksum_ipv6(&src.0, &dst.0, ip[NEXT_HEADER_AT], udp) {
            0 => u16::MAX,
            sum => sum,
        };
        udp[UDP_CHECKSUM_AT..][..2].copy_from_slice(&sum.to_be_bytes());
    }
}
