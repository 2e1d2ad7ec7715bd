//! Breaking things on purpose, to see that the oracle finds it. Each kind is a mistake that a NIC could
//! make; none is ever made unless asked for.

use crate::sim::Sim;
use adverb_wire::star::{Cqe, Grant, Merged, Place, Stamp, StarEth, Switch, SwitchStep, Ticket};
use adverb_wire::{Operation, Packet, Psn, QpNumber, Service};
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
    /// StaR's stateless side does not know by its number whether it has taken a completion that comes with
    /// its data.
    StarMerge,
    /// StaR's stateless side takes packets of an earlier life of its connection.
    StarLife,
    /// Who coordinates a change of stack takes the refusal of its commit for consent.
    StarRefusal,
    /// Who takes part in changes of stack does not tell one attempt from another.
    StarAttempts,
    /// What comes for a queue pair of a program that was killed is written to where its receives were.
    StarDead,
    /// StaR's registry keeps rules that were taken back.
    StarRuleKept,
    /// StaR's registry looks at names only, and neither at bounds nor at rights.
    StarRuleWide,
    /// StaR's registry does not have every rule that it has taken.
    StarRuleLost,
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
    pub const STAR: [(&'static str, Sabotage); 12] = [
        ("star-late", Sabotage::StarLate),
        ("star-copies", Sabotage::StarCopies),
        ("star-order", Sabotage::StarOrder),
        ("star-place", Sabotage::StarPlace),
        ("star-merge", Sabotage::StarMerge),
        ("star-life", Sabotage::StarLife),
        ("star-refusal", Sabotage::StarRefusal),
        ("star-attempts", Sabotage::StarAttempts),
        ("star-dead", Sabotage::StarDead),
        ("star-rule-kept", Sabotage::StarRuleKept),
        ("star-rule-wide", Sabotage::StarRuleWide),
        ("star-rule-lost", Sabotage::StarRuleLost),
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

/// The newest message that came with its completion, by host and queue pair: its receive and its number.
/// What [`Sabotage::StarMerge`] goes by.
pub(crate) type NewestMerged = BTreeMap<(u32, QpNumber), (u32, Psn)>;

/// The newest ticket and attempt that have reached a queue pair, by host and number: what
/// [`Sabotage::StarLife`] and [`Sabotage::StarAttempts`] go by.
#[derive(Default)]
pub(crate) struct Lives {
    /// With the life that it is for.
    tickets: BTreeMap<(u32, QpNumber), Ticket>,
    attempts: BTreeMap<(u32, QpNumber), u32>,
}

/// Receives of the oracle's sides that take turns: a place is used again by the receive that is so much
/// newer.
const TURN: u32 = crate::watch::oracle::RECV_SLOTS;
/// A deadline that is moved stays far closer than the stateless side believes.
const NUDGES: u32 = 8;
/// A life that lies so far behind is one to come.
const BEHIND_MAX: u8 = 128;

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

/// Mistakes of StaR: each is made by changing what a packet says to the rule that is to be broken; those of
/// its registry, by what the table is told (`oracle/rules.rs`).
impl Sim {
    /// A packet that reaches a NIC which is broken on purpose.
    #[cold]
    pub(crate) fn spoil(&mut self, h: u32, id: u32, packet: &mut Packet) {
        if !packet.bth.opcode.is_of(Service::Star) {
            return;
        }
        if let (Some(Sabotage::StarDead), Some(oracle)) = (self.watch.sabotage, &self.watch.oracle) {
            return oracle.damage_dead(h, packet.bth.dest_qp);
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
            (Some(Sabotage::StarMerge), Operation::RemoteData) => self.take_again(h, packet, clock),
            (Some(Sabotage::StarLife), Operation::RemoteData | Operation::GetData) => {
                self.renew(h, packet, clock);
            }
            (Some(kind @ (Sabotage::StarRefusal | Sabotage::StarAttempts)), Operation::Hello)
                if StarEth::from(packet.irn).has(StarEth::MIGRATION) =>
            {
                self.mishear(kind, (h, packet.bth.dest_qp), id);
            }
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

    /// A copy of a message that came with its completion becomes the next message.
    fn take_again(&mut self, h: u32, packet: &mut Packet, clock: u32) {
        let Some(merged) = Merged::of(packet) else { return };
        let own = (merged.index, merged.number);
        let newest = self.watch.merged.entry((h, packet.bth.dest_qp)).or_insert(own);
        if newest.1.is_before(merged.number) {
            *newest = own;
            return;
        }
        if merged.flags & Cqe::RECV_QUEUE != 0 && (*newest == own || merged.number.is_before(newest.1)) {
            self.watch.spoilt = self.watch.spoilt.wrapping_add(1);
            packet.reth.va = Merged::va(newest.0.wrapping_add(1), newest.1.next());
            packet.reth.len = clock.wrapping_add(1 + self.watch.spoilt % NUDGES);
        }
    }

    /// A packet of an earlier life gets the ticket of the newest, and another deadline.
    fn renew(&mut self, h: u32, packet: &mut Packet, clock: u32) {
        let newest = self.watch.lives.tickets.entry((h, packet.bth.dest_qp)).or_insert(packet.ticket);
        let lives = [*newest, packet.ticket].map(|ticket| Grant::of_word(ticket.word).incarnation);
        // Lives count on and turn.
        let behind = lives[0].wrapping_sub(lives[1]);
        if behind == 0 {
            return;
        }
        if behind < BEHIND_MAX {
            packet.ticket = *newest;
            packet.reth.len = clock.wrapping_add(1);
        } else {
            *newest = packet.ticket;
        }
    }

    /// What a change of stack says is taken for something else.
    fn mishear(&mut self, kind: Sabotage, at: (u32, QpNumber), id: u32) {
        let bytes = self.fabric.packets.payload_mut(id);
        let Some(mut said) = Switch::read(bytes) else { return };
        let newest = self.watch.lives.attempts.entry(at).or_insert(said.epoch);
        match (kind, said.step) {
            (Sabotage::StarRefusal, SwitchStep::Refused) => said.step = SwitchStep::Done,
            (Sabotage::StarAttempts, SwitchStep::Quiesce | SwitchStep::Quiesced) => {
                *newest = said.epoch.max(*newest);
            }
            (Sabotage::StarAttempts, SwitchStep::Done | SwitchStep::Commit | SwitchStep::Resume) => {
                said.epoch = *newest;
            }
            _ => return,
        }
        bytes.copy_from_slice(&said.bytes());
    }
}
