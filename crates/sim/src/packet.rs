//! Packets on their way: what every hop reads in half a cache line, what only the ends read beside it.

use crate::prefetch::prefetch;
use adverb_wire::Packet;
use adverb_wire::packet::WireExtra;

/// No packet.
pub const NONE: u32 = u32::MAX;

/// The descriptor carries payload bytes.
pub const FLAG_PAYLOAD: u8 = 1;
/// Congestion experienced: marked by a switch.
pub const FLAG_CE: u8 = 2;
/// May be marked.
pub const FLAG_ECT: u8 = 4;
/// Will be lost at the end of the link that it is on.
pub const FLAG_LOST: u8 = 8;
/// Will fail its check at the end of the link that it is on.
pub const FLAG_CORRUPT: u8 = 16;

/// What travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A RoCE packet; its descriptor is in the cold part.
    Data,
    /// A pause frame of one class, which stops (or restarts) the class named by `class`.
    Pause,
    /// The end of a pause.
    Resume,
}

/// Read at every hop; two share a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub struct Hot {
    /// Number in order of injection, PSN and opcode, for the trace.
    pub digest: u64,
    /// The packet behind it in its queue.
    pub next: u32,
    /// Destination host.
    pub dst: u32,
    /// Hash of its flow, for the choice among equal paths.
    pub hash: u32,
    /// While it is on a link: the link that it takes from there, [`NONE`] at its end. While it waits in a
    /// switch: the link on which it came.
    pub via: u32,
    /// Bytes that it takes on a link, framing included.
    pub size: u16,
    /// How often the link that it is on had failed when it was sent.
    pub epoch: u16,
    /// Traffic class.
    pub class: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// What it is.
    pub kind: Kind,
    /// Which lane of a link's events it takes: 0 for full packets, 1 for acknowledgements, 2 for none.
    pub lane: u8,
}

const _: () = assert!(core::mem::size_of::<Hot>() == 32);

const BLANK: Hot = Hot {
    digest: 0,
    next: NONE,
    dst: 0,
    hash: 0,
    via: NONE,
    size: 0,
    epoch: 0,
    class: 0,
    flags: 0,
    kind: Kind::Data,
    lane: 2,
};

/// All packets under way, by index. Freed ones are reused last in, first out: they are in cache.
#[derive(Default)]
pub struct Packets {
    /// Hot parts.
    pub hot: Vec<Hot>,
    /// Descriptors as the NIC wrote them.
    pub cold: Vec<Packet>,
    /// Payload bytes, where they are carried; empty otherwise.
    payload: Vec<Vec<u8>>,
    free: Vec<u32>,
    live: u32,
    peak: u32,
}

impl Packets {
    /// A place for a packet. Its fields are those of its last use.
    #[inline]
    pub fn take(&mut self) -> u32 {
        self.live += 1;
        match self.free.pop() {
            Some(id) => id,
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.peak += 1;
        self.hot.push(BLANK);
        self.cold.push(Packet::default());
        self.hot.len() as u32 - 1
    }

    /// Gives a place back.
    #[inline]
    pub fn give(&mut self, id: u32) {
        self.live -= 1;
        self.free.push(id);
    }

    /// A copy of a packet, payload included.
    pub fn copy(&mut self, id: u32) -> u32 {
        let new = self.take();
        self.hot[new as usize] = self.hot[id as usize];
        self.cold[new as usize] = self.cold[id as usize];
        if self.hot[id as usize].flags & FLAG_PAYLOAD != 0 {
            let bytes = self.payload[id as usize].clone();
            let room = self.payload_mut(new);
            room.clear();
            room.extend_from_slice(&bytes);
        }
        new
    }

    /// Room for a packet's payload bytes; the allocation is kept from use to use.
    pub fn payload_mut(&mut self, id: u32) -> &mut Vec<u8> {
        if self.payload.len() <= id as usize {
            self.payload.resize_with(self.hot.len(), Vec::new);
        }
        &mut self.payload[id as usize]
    }

    /// Emits a packet to bytes and parses them.
    ///
    /// # Panics
    /// If anything comes out other than it went in: `wire` and the NIC would not mean the same.
    #[cold]
    pub(crate) fn through_bytes(&self, id: u32) {
        let packet = &self.cold[id as usize];
        let payload = self.payload(id).unwrap_or_default();
        let mut bytes = vec![0; packet.frame_len()];
        let len = packet.emit_frame(&WireExtra::default(), payload, &mut bytes);
        let parsed = Packet::parse_ip(&bytes[..len]);
        assert!(
            parsed.as_ref().is_ok_and(|p| p.packet == *packet && bytes[p.payload.clone()] == *payload),
            "{packet:?} became {parsed:?}"
        );
        assert!(adverb_wire::icrc::verify_ip(&bytes[..len], packet.flow.ip_header_len()), "its ICRC holds");
    }

    /// A packet's payload bytes, if it carries them.
    pub fn payload(&self, id: u32) -> Option<&[u8]> {
        let carried = self.hot[id as usize].flags & FLAG_PAYLOAD != 0;
        carried.then(|| self.payload[id as usize].as_slice())
    }

    /// Asks for a packet's cold part.
    #[inline]
    pub(crate) fn prefetch(&self, id: u32) {
        if let Some(packet) = self.cold.get(id as usize) {
            prefetch(&packet.flow);
            prefetch(&packet.bth);
            prefetch(&packet.payload_len);
        }
    }

    /// Packets that exist now.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The most that ever existed at once.
    pub fn peak(&self) -> u32 {
        self.peak
    }
}
