//! Packets on their way: what every hop reads in half a cache line, and what only the ends read in a whole
//! one beside it.

use crate::host::{address, host_of};
use adverb_nic::memory::prefetch;
use adverb_nic::telemetry::{Hop, Telemetry};
use adverb_wire::irn::{IrnEth, SackEth};
use adverb_wire::opcode::Headers;
use adverb_wire::packet::WireExtra;
use adverb_wire::star::Ticket;
use adverb_wire::{Aeth, AtomicEth, Bth, Deth, Flow, Packet, QpNumber, Reth};

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

/// Has headers that few packets have.
pub const FLAG_RARE: u8 = 32;
/// Its bytes are a message of 1RMA; the descriptor says no more than its ends.
pub const FLAG_MESSAGE: u8 = 64;
/// Its ICRC is wrong, because a switch's program left it so or did not look: the host that it reaches drops
/// it.
pub const FLAG_UNSOUND: u8 = 128;

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
    /// The packet behind it in its queue, or in the row of places that are free.
    pub next: u32,
    /// Destination host.
    pub dst: u32,
    /// Hash of its flow, for the choice among equal paths.
    pub hash: u32,
    /// While it is on a link: the link on which a shortest path goes on from the switch there, [`NONE`] if
    /// there is a host. While it waits in a switch: the port at which it came in.
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

/// Read at the ends only: the descriptor that the NIC wrote, without what few packets have, and without the
/// destination, which is a host's number in the hot part.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Cold {
    bth: Bth,
    reth: Reth,
    aeth: Aeth,
    irn: IrnEth,
    sack: SackEth,
    payload_len: u32,
    src: u32,
    src_port: u16,
    traffic_class: u8,
    hop_limit: u8,
}

const _: () = assert!(core::mem::size_of::<Cold>() == 64);

/// Headers of datagrams, XRC, atomics, immediate data and invalidations; tickets.
#[derive(Clone, Copy, Default)]
struct Rare {
    deth: Deth,
    atomic: AtomicEth,
    atomic_original: u64,
    xrc_srq: u32,
    immediate: u32,
    invalidate: u32,
    ticket: Ticket,
}

/// What switches say of the links that a packet takes; of an acknowledgement, what it brings back.
#[derive(Clone, Copy, Default)]
struct Stamps {
    telemetry: Telemetry,
    /// Switches add to it.
    open: bool,
}

/// Headers that are [`Cold`]'s.
const COMMON: Headers = Headers::RETH.union(Headers::AETH).union(Headers::IRN_ETH).union(Headers::SACK_ETH);

/// All packets under way, by index. Freed ones are reused last in, first out: they are in cache.
#[derive(Default)]
pub struct Packets {
    /// Hot parts.
    pub hot: Vec<Hot>,
    cold: Vec<Cold>,
    /// By index too, as far as there were any.
    rare: Vec<Rare>,
    /// Payload bytes, where they are carried; empty otherwise.
    payload: Vec<Vec<u8>>,
    /// By index too, where switches stamp packets; empty otherwise.
    stamps: Vec<Stamps>,
    /// The first free place, of a row; counted from 1, 0 for none.
    free: u32,
    live: u32,
    peak: u32,
}

impl Cold {
    #[inline]
    fn of(packet: &Packet) -> Cold {
        let Packet { bth, reth, aeth, irn, sack, payload_len, .. } = *packet;
        let Flow { src_port, traffic_class, hop_limit, .. } = packet.flow;
        let src = host_of(&packet.flow.src);
        Cold { bth, reth, aeth, irn, sack, payload_len, src, src_port, traffic_class, hop_limit }
    }

    #[inline(always)]
    fn descriptor(&self, dst: u32) -> Packet {
        let Cold { bth, reth, aeth, irn, sack, payload_len, src, src_port, traffic_class, hop_limit } = *self;
        let flow = Flow { src: address(src), dst: address(dst), src_port, traffic_class, hop_limit };
        Packet { flow, bth, reth, aeth, irn, sack, payload_len, ..Packet::default() }
    }
}

impl Rare {
    fn of(packet: &Packet) -> Rare {
        let Packet { deth, atomic, atomic_original, xrc_srq, immediate, invalidate, ticket, .. } = *packet;
        Rare { deth, atomic, atomic_original, xrc_srq, immediate, invalidate, ticket }
    }

    #[cold]
    fn add_to(self, packet: &mut Packet) {
        let Rare { deth, atomic, atomic_original, xrc_srq, immediate, invalidate, ticket } = self;
        *packet = Packet { deth, atomic, atomic_original, xrc_srq, immediate, invalidate, ticket, ..*packet };
    }
}

impl Packets {
    /// A place for a packet. Its fields are those of its last use.
    #[inline]
    pub fn take(&mut self) -> u32 {
        self.live += 1;
        match self.free.checked_sub(1) {
            Some(id) => {
                self.free = self.hot[id as usize].next;
                id
            }
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.peak += 1;
        self.hot.push(BLANK);
        self.cold.push(Cold::of(&Packet::default()));
        self.hot.len() as u32 - 1
    }

    /// Gives a place back.
    #[inline]
    pub fn give(&mut self, id: u32) {
        self.live -= 1;
        self.hot[id as usize].next = self.free;
        self.free = id + 1;
    }

    /// A copy of a packet, payload included.
    pub fn copy(&mut self, id: u32) -> u32 {
        let new = self.take();
        self.hot[new as usize] = self.hot[id as usize];
        self.cold[new as usize] = self.cold[id as usize];
        if self.hot[id as usize].flags & FLAG_RARE != 0 {
            *self.rare_mut(new) = self.rare[id as usize];
        }
        if let Some(stamps) = self.stamps.get(id as usize).copied() {
            *self.stamps_mut(new) = stamps;
        }
        if self.hot[id as usize].flags & FLAG_PAYLOAD != 0 {
            let bytes = self.payload[id as usize].clone();
            let room = self.payload_mut(new);
            room.clear();
            room.extend_from_slice(&bytes);
        }
        new
    }

    /// Keeps a descriptor, whose destination and flags are in the hot part already.
    #[inline]
    pub(crate) fn keep(&mut self, id: u32, packet: &Packet) {
        self.cold[id as usize] = Cold::of(packet);
        if !COMMON.contains(packet.bth.opcode.headers()) {
            self.hot[id as usize].flags |= FLAG_RARE;
            *self.rare_mut(id) = Rare::of(packet);
        }
        debug_assert_eq!(self.descriptor(id), *packet, "what is kept of a packet is all of it");
    }

    #[cold]
    fn stamps_mut(&mut self, id: u32) -> &mut Stamps {
        if self.stamps.len() <= id as usize {
            self.stamps.resize(self.hot.len(), Stamps::default());
        }
        &mut self.stamps[id as usize]
    }

    /// A packet begins: with what it brings back, or for switches to stamp.
    pub(crate) fn begin_stamps(&mut self, id: u32, brings: Option<Telemetry>) {
        *self.stamps_mut(id) = Stamps { telemetry: brings.unwrap_or_default(), open: brings.is_none() };
    }

    /// A switch stamps a packet, unless it brings something back.
    pub(crate) fn stamp(&mut self, id: u32, hop: Hop) {
        let stamps = self.stamps_mut(id);
        if stamps.open {
            let room = stamps.telemetry.push(hop);
            assert!(room, "a fabric with longer paths is refused");
        }
    }

    /// What a packet brings, where switches stamp packets.
    pub(crate) fn telemetry(&self, id: u32) -> Option<&Telemetry> {
        self.stamps.get(id as usize).map(|stamps| &stamps.telemetry)
    }

    #[cold]
    fn rare_mut(&mut self, id: u32) -> &mut Rare {
        if self.rare.len() <= id as usize {
            self.rare.resize(self.hot.len(), Rare::default());
        }
        &mut self.rare[id as usize]
    }

    /// A packet's descriptor as the NIC wrote it.
    #[inline(always)]
    pub fn descriptor(&self, id: u32) -> Packet {
        let hot = &self.hot[id as usize];
        let mut packet = self.cold[id as usize].descriptor(hot.dst);
        if hot.flags & FLAG_RARE != 0 {
            self.rare[id as usize].add_to(&mut packet);
        }
        packet
    }

    /// A packet's base transport header.
    #[inline]
    pub(crate) fn bth(&self, id: u32) -> &Bth {
        &self.cold[id as usize].bth
    }

    /// A packet's RDMA header, as its opcode has one.
    #[inline]
    pub(crate) fn reth(&self, id: u32) -> &Reth {
        &self.cold[id as usize].reth
    }

    /// A packet's header of IRN's or StaR's, as its opcode has one.
    #[inline]
    pub(crate) fn irn(&self, id: u32) -> IrnEth {
        self.cold[id as usize].irn
    }

    /// Bytes of a packet's payload, carried or not.
    #[inline]
    pub(crate) fn payload_len(&self, id: u32) -> u32 {
        self.cold[id as usize].payload_len
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
        let packet = self.descriptor(id);
        let payload = self.payload(id).unwrap_or_default();
        let mut bytes = vec![0; packet.frame_len()];
        let len = packet.emit_frame(&WireExtra::default(), payload, &mut bytes);
        let parsed = Packet::parse_ip(&bytes[..len]);
        assert!(
            parsed.as_ref().is_ok_and(|p| p.packet == packet && bytes[p.payload.clone()] == *payload),
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
            prefetch(packet);
        }
    }

    /// The host that a packet comes from, and its destination queue pair.
    #[inline]
    pub(crate) fn names(&self, id: u32) -> Option<(u32, QpNumber)> {
        self.cold.get(id as usize).map(|packet| (packet.src, packet.bth.dest_qp))
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

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::{Key, Opcode, Operation, Psn, QpNumber, Service};

    fn packet(operation: Operation) -> Packet {
        let flow = Flow {
            src: address(7),
            dst: address(1_000_000),
            src_port: 4791,
            traffic_class: 0x6a,
            hop_limit: 64,
        };
        let opcode = Opcode::new(Service::Rc, operation);
        let bth = Bth { opcode, psn: Psn::new(9), dest_qp: QpNumber::new(0x1_0011), ..Bth::default() };
        Packet { flow, bth, payload_len: 17, ..Packet::default() }
    }

    #[test]
    fn descriptors_come_back_whole_whatever_was_in_their_place_before() {
        let write = Packet {
            reth: Reth { va: 0x1234_5678_9abc, rkey: Key(0x77), len: 1 << 30 },
            ..packet(Operation::WriteOnly)
        };
        let add = Packet {
            atomic: AtomicEth { va: 8, rkey: Key(3), swap_add: 4, compare: 5 },
            ..packet(Operation::FetchAdd)
        };
        let immediate = Packet { immediate: 0xdead_beef, ..packet(Operation::SendOnlyImm) };
        let mut sealed = Packet { ticket: Ticket { word: 0x0123_4567, seal: 89 }, ..write };
        sealed.bth.opcode = Opcode::new(Service::Star, Operation::RemoteData);
        let mut packets = Packets::default();
        for packet in [write, add, write, immediate, sealed, add] {
            let id = packets.take();
            packets.hot[id as usize].dst = host_of(&packet.flow.dst);
            packets.hot[id as usize].flags = 0;
            packets.keep(id, &packet);
            let copy = packets.copy(id);
            assert_eq!((packets.descriptor(id), packets.descriptor(copy)), (packet, packet));
            assert_eq!(packets.names(id), Some((7, packet.bth.dest_qp)));
            packets.give(copy);
            packets.give(id);
        }
        assert_eq!(packets.peak(), 2);
    }
}
