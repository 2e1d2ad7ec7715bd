//! Breaking things on purpose, to see that the oracle finds it. Each kind is a mistake that a NIC could
//! make; none is ever made unless asked for.

use crate::sim::Sim;
use adverb_wire::star::{Place, Stamp, StarEth};
use adverb_wire::{Operation, Packet, QpNumber, Service};
use std::collections::BTreeMap;

/// A mistake, made over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A damaged packet passes its check, with a wrong byte.
    CorruptPasses,
    /// Every tenth completion comes twice.
    CompletionTwice,
    /// Every tenth completion never comes.
    CompletionLost,
    /// Every tenth completion comes after the one behind it.
    CompletionsSwapped,
    /// Every tenth completed fetch-and-add was executed twice.
    AtomicTwice,
    /// After every tenth completion a byte of some other memory of the host changes.
    WriteOutside,
    /// StaR's stateless side takes packets whose deadline has passed.
    StarLate,
    /// StaR's stateless side does not know copies of what it has executed.
    StarCopies,
    /// StaR's stateful side does not see in which order its packets were executed.
    StarOrder,
    /// StaR's stateless side takes data for a receive that is done, and puts them where that was.
    StarPlace,
}

impl Sabotage {
    /// All kinds and their names.
    pub const ALL: [(&'static str, Sabotage); 6] = [
        ("corrupt-passes", Sabotage::CorruptPasses),
        ("completion-twice", Sabotage::CompletionTwice),
        ("completion-lost", Sabotage::CompletionLost),
        ("completions-swapped", Sabotage::CompletionsSwapped),
        ("atomic-twice", Sabotage::AtomicTwice),
        ("write-outside", Sabotage::WriteOutside),
    ];

    /// Mistakes that only a NIC with StaR can make.
    pub const STAR: [(&'static str, Sabotage); 4] = [
        ("star-late", Sabotage::StarLate),
        ("star-copies", Sabotage::StarCopies),
        ("star-order", Sabotage::StarOrder),
        ("star-place", Sabotage::StarPlace),
    ];

    /// All kinds, StaR's behind the others.
    pub fn every() -> impl Iterator<Item = (&'static str, Sabotage)> {
        Sabotage::ALL.into_iter().chain(Sabotage::STAR)
    }

    /// The kind with a name.
    pub fn by_name(name: &str) -> Option<Sabotage> {
        Sabotage::every().find(|(n, _)| *n == name).map(|(_, kind)| kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Sabotage::every().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Only a NIC with StaR can make it.
    pub fn is_of_star(self) -> bool {
        Sabotage::STAR.iter().any(|(_, kind)| *kind == self)
    }
}

/// The newest receives into which data were sent, by host and queue pair: what [`Sabotage::StarPlace`] goes
/// by.
pub(crate) type Newest = BTreeMap<(u32, QpNumber), u32>;

/// Receives of the oracle's sides that take turns: a place is used again by the receive that is so much
/// newer.
const TURN: u32 = crate::watch::oracle::RECV_SLOTS;
/// A deadline that is moved stays far closer than the stateless side believes.
const NUDGES: u32 = 8;

impl Sim {
    /// Breaks this simulation from now on.
    pub fn sabotage(&mut self, kind: Sabotage) {
        self.watch.sabotage = Some(kind);
    }

    /// Lets a damaged packet pass with a wrong byte; whether it does.
    pub(crate) fn damage_passes(&mut self, id: u32) -> bool {
        if self.fabric.packets.hot[id as usize].flags & crate::fabric::packet::FLAG_MESSAGE != 0 {
            self.damage_message(id);
            self.fabric.packets.hot[id as usize].flags &= !crate::fabric::packet::FLAG_CORRUPT;
            return true;
        }
        let broken = self.watch.sabotage == Some(Sabotage::CorruptPasses);
        if broken && self.fabric.packets.payload(id).is_some_and(|bytes| !bytes.is_empty()) {
            let bytes = self.fabric.packets.payload_mut(id);
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
            self.fabric.packets.hot[id as usize].flags &= !crate::fabric::packet::FLAG_CORRUPT;
            return true;
        }
        false
    }
}

/// Mistakes of StaR: each is made by changing what a packet says to the rule that is to be broken.
impl Sim {
    /// A packet that reaches a NIC which is broken on purpose.
    #[cold]
    pub(crate) fn spoil(&mut self, h: u32, packet: &mut Packet) {
        if !packet.bth.opcode.is_of(Service::Star) {
            return;
        }
        let clock = (self.now / 1_000_000) as u32;
        let operation = packet.bth.opcode.operation();
        let is_late = (packet.reth.len.wrapping_sub(clock) as i32) < 0;
        match (self.watch.sabotage, operation) {
            (Some(Sabotage::StarLate), Operation::RemoteData) if is_late => {
                packet.reth.len = clock.wrapping_add(1);
            }
            (Some(Sabotage::StarCopies), Operation::RemoteData) if !is_late => {
                self.watch.spoilt = self.watch.spoilt.wrapping_add(1);
                packet.reth.len = packet.reth.len.wrapping_add(1 + self.watch.spoilt % NUDGES);
            }
            (Some(Sabotage::StarOrder), Operation::RemoteDataAnswer | Operation::GetDataAnswer) => {
                let stamp = Stamp::from(packet.irn);
                packet.irn = Stamp { order: packet.bth.psn.get(), ..stamp }.into();
            }
            (Some(Sabotage::StarPlace), Operation::RemoteData) => self.misplace(h, packet, clock),
            _ => {}
        }
    }

    /// Data for a receive that is done go to the one that uses its place now.
    fn misplace(&mut self, h: u32, packet: &mut Packet, clock: u32) {
        let eth = StarEth::from(packet.irn);
        if !eth.has(StarEth::POSTED) || !eth.has(StarEth::RECV_QUEUE) {
            return;
        }
        let place = Place::of_va(packet.reth.va);
        let newest = self.watch.newest.entry((h, packet.bth.dest_qp)).or_insert(place.index);
        *newest = place.index.max(*newest);
        let behind = (*newest - place.index) / TURN;
        if behind > 0 {
            packet.reth.va = Place { index: place.index + behind * TURN, ..place }.va();
            packet.reth.len = clock.wrapping_add(1);
        }
    }
}
