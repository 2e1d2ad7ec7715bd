//! WRITEs of one word: what they tell, and which of them are waited for.
//!
//! Nobody has to be asked what a word is behind a WRITE of all of it: where nothing else is on its way, the
//! acknowledgement makes the word known. So a lock that is never at rest becomes the switch's with one of its
//! releases. Where something is, the WRITE goes on as it is, and counts among what is on its way until it is
//! acknowledged: the word is not learned beside it.

use super::connection::{Entry, Kind};
use super::requests::{Blocked, Way};
use super::word::{State, Word};
use super::{CasToWrite, Mistake, make_unsure};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Instant, Operation};

/// What a WRITE may be to its word.
enum May {
    /// A change of a word that holds this.
    Change(u64),
    /// The first to tell what the word is.
    Tell,
    /// The server's.
    Pass,
    /// It has to wait until what is on its way has arrived.
    Wait,
}

fn may(word: &Word, now: Instant, (convertible, owned): (bool, bool), way: Way) -> May {
    match word.state {
        _ if word.is_busy() => May::Wait,
        State::Known(original) if convertible && owned => May::Change(original),
        State::Unsure { until } if now >= until => match word.natives {
            0 if convertible && (owned || word.owner.is_none()) => May::Tell,
            0 => May::Pass,
            _ if way == Way::Usual => May::Wait,
            _ => May::Pass,
        },
        _ => May::Pass,
    }
}

impl CasToWrite {
    /// A WRITE of one followed word in its turn.
    pub(super) fn store(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        value: u64,
        way: Way,
    ) -> Result<(), Blocked> {
        let packet = &frame.packet;
        let (va, rkey) = (packet.reth.va, packet.reth.rkey);
        let Some(word_at) = self.words.find(va) else { unreachable!("it was classified as a word's") };
        if !self.make_result_room(ctx, at) {
            ctx.drop(packet, Drop::Depth);
            return Ok(());
        }
        self.expire(ctx, word_at);
        let convertible = self.converts(at, rkey);
        let connection = self.connections.get_mut(at);
        let owner = connection.owner(rkey);
        let (psn, since) = (packet.bth.psn, ctx.now);
        let word = self.words.access(ctx.pass, word_at);
        let owned = word.owner == Some(owner);
        let (original, kind) = match may(word, since, (convertible, owned), way) {
            May::Wait => return Err((va, frame)),
            May::Change(original) => (original, Kind::Store(value)),
            // A WRITE's acknowledgement does not say what was there before it.
            May::Tell => (0, Kind::Store(value)),
            May::Pass => (0, Kind::Written),
        };
        let was_known = matches!(word.state, State::Known(_));
        let in_vain = kind == Kind::Written && word.is_shared(since);
        match kind {
            Kind::Written if was_known => ctx.count(Counter::WordsUnsure),
            Kind::Store(_) if !was_known => ctx.count(Counter::LearnedByStore),
            _ => {}
        }
        // Of a queue pair that is not matched, an acknowledgement would not be told from another one's.
        let unseen = connection.client_qpn.is_none();
        match kind {
            Kind::Written if unseen || self.config.mistake == Some(Mistake::Unwatched) => {
                make_unsure(word, if unseen { since + self.config.life } else { since });
                connection.account(packet);
                self.pass_own(ctx, at, frame, true);
                return Ok(());
            }
            Kind::Written => {
                make_unsure(word, since);
                word.natives += 1;
            }
            _ => word.state = State::Pending { value, connection: at, psn, since },
        }
        let (word, operation, operands) = (word_at, Operation::WriteOnly, (value, 0));
        let message = connection.messages.wrapping_add(1);
        let entry =
            Entry { psn, message, word, operation, va, rkey, operands, original, kind, ..Entry::OPEN };
        connection.account(packet);
        connection.entries.push_back(entry);
        if in_vain {
            self.rest(ctx, word_at);
        }
        self.send_as(ctx, (at, None), frame, &entry, true);
        Ok(())
    }
}
