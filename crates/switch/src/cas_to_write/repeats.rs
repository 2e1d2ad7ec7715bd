//! Requests that come again: they become what they were before.

use super::connection::{Entry, Kind};
use super::requests::{AtomicOperands, Blocked, Class, operands_of, outcome};
use super::word::State;
use super::{CasToWrite, Mistake};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Instant, Operation, Packet};

impl CasToWrite {
    /// A request that was seen before, or before the first one that was.
    pub(super) fn repeat(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        class: Class,
    ) -> Result<(), Blocked> {
        let packet = &frame.packet;
        let (operation, AtomicOperands { rkey, operands }) =
            (packet.bth.opcode.operation(), operands_of(packet));
        // Whether or not its word is followed still.
        let bytes = <[u8; 8]>::try_from(frame.payload()).ok().filter(|_| operation == Operation::WriteOnly);
        let (va, rkey, operands) = match bytes {
            Some(bytes) => (packet.reth.va, packet.reth.rkey, (self.config.value(bytes), 0)),
            None => (packet.atomic.va, rkey, operands),
        };
        let Some(entry) = self.connections.get_mut(at).entry(packet.bth.psn) else {
            // The server alone may still know what became of it.
            return self.uncounted(ctx, at, frame, class);
        };
        if (entry.operation, entry.va, entry.rkey, entry.operands) != (operation, va, rkey, operands) {
            ctx.drop(packet, Drop::Replay);
            return Ok(());
        }
        if entry.dead {
            ctx.drop(packet, Drop::Late);
            return Ok(());
        }
        if self.config.carry.is_some() {
            let entry = *entry;
            return self.repeat_shared(ctx, at, frame, &entry);
        }
        let mut entry = *entry;
        if entry.is_converted() {
            entry.answered = false;
            self.connections.get_mut(at).asks_again(entry.psn);
        }
        if self.config.mistake == Some(Mistake::Twice) && entry.is_converted() {
            self.decide_again(at, &mut entry, &frame.packet, ctx.now);
        }
        ctx.count(Counter::Repeated);
        ctx.note(&frame.packet, Note::Repeated);
        self.send_as(ctx, (at, None), frame, &entry, false);
        Ok(())
    }

    /// A tracked request that was seen before, where requests travel on carriers.
    fn repeat_shared(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        entry: &Entry,
    ) -> Result<(), Blocked> {
        if entry.is_converted() {
            self.repeat_carried(ctx, at, &frame, entry);
        } else if !self.acknowledge_again(ctx, at, &frame) {
            ctx.count(Counter::Repeated);
            self.send_as(ctx, (at, None), frame, entry, false);
        }
        Ok(())
    }

    /// What [`Mistake::Twice`] does.
    #[cold]
    fn decide_again(&mut self, at: u32, entry: &mut Entry, packet: &Packet, since: Instant) {
        let word = self.words.get_mut(entry.word);
        let State::Known(value) = word.state else { return };
        (entry.original, entry.kind) = (value, outcome(packet, value));
        if let Kind::Change(value) = entry.kind {
            word.state = State::Pending { value, connection: at, psn: entry.psn, since };
        }
        if let Some(before) = self.connections.get_mut(at).entry(entry.psn) {
            *before = *entry;
        }
    }
}
