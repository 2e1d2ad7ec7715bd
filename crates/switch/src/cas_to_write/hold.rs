//! Requests that wait for a word: when it is free their connections have it in turns; when their time is
//! over, the server decides, or they are dropped and their client sends them again.

use super::connection::{Connection, HELD, Kind, Wait, Waiting};
use super::requests::Way;
use super::word::{State, WORD_LEN};
use super::{CasToWrite, HELD_MAX, HELD_OF_CLIENT};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Duration, Gid, Instant};

/// Who has sent a request so often again gives up soon: it does not wait longer than it must.
const AGAIN: u8 = 3;

impl CasToWrite {
    /// A connection's first request waits for a word from now on: to be alone with it, as long as that may
    /// take; for its last change, `hold`.
    pub(super) fn begin_wait(&mut self, now: Instant, at: u32, va: u64) {
        let word = self.words.find(va).map(|word| self.words.get(word));
        let time = match word {
            Some(word) if matches!(word.state, State::Unsure { .. } | State::Learning { .. }) => {
                self.patience(word.vain)
            }
            _ => self.config.hold,
        };
        if va.is_multiple_of(WORD_LEN) {
            // Not for a turn.
            self.asks_for(at, None);
        }
        self.connections.get_mut(at).waits = Wait { va, since: now, ends: now + time };
    }

    /// How long a request waits to be alone with a word, after so many such waits in vain. Nobody knows the
    /// senders' timeouts: so each is twice as long, up to what their patience bears.
    fn patience(&self, vain: u8) -> Duration {
        let (hold, life) = (self.config.hold.as_ps(), self.config.life.as_ps());
        let doubled = hold.saturating_mul(1 << u32::from(vain).min(32));
        Duration::from_ps(doubled.min(hold.max(life / 4)))
    }

    /// Somebody has waited in vain to be alone with a word: for as long all go on as they come.
    pub(super) fn rest(&mut self, ctx: &mut Context<'_>, word: u32) {
        let patience = self.patience(self.words.get(word).vain);
        let word = self.words.get_mut(word);
        word.rest(ctx.now, patience);
        ctx.count(Counter::WaitsInVain);
        self.freed.push_back(word.va);
    }

    /// What [`Mistake::Hasty`](super::Mistake::Hasty) does: nobody waits for the answers of a word's atomics.
    #[cold]
    pub(super) fn forget_shared(&mut self, now: Instant, word_at: u32) {
        if !self.words.get(word_at).is_shared(now) {
            return;
        }
        let all: Vec<u32> = self.connections.all().map(|(at, _)| at).collect();
        for at in all {
            for entry in &mut self.connections.get_mut(at).entries {
                if entry.word == word_at && entry.kind == Kind::Native && entry.is_native() {
                    entry.executed = true;
                    self.words.get_mut(word_at).natives -= 1;
                }
            }
        }
    }

    /// Lets a frame wait behind those of its connection.
    pub(super) fn hold(&mut self, ctx: &mut Context<'_>, at: u32, frame: Box<Frame>) {
        let hold = self.config.hold;
        let connection = self.connections.get_mut(at);
        let psn = frame.packet.bth.psn;
        let same = connection.held.iter().position(|waiting| waiting.frame.packet.bth.psn == psn);
        if let Some(same) = same {
            let waiting = &mut connection.held[same];
            waiting.again = waiting.again.saturating_add(1);
            if same == 0 && waiting.again >= AGAIN {
                let waits = &mut connection.waits;
                waits.ends = waits.ends.min(ctx.now.max(waits.since + hold));
            }
            return ctx.drop(&frame.packet, Drop::UnderWay);
        }
        let (client, room) = (connection.client, connection.held.len() < HELD);
        if !room || self.held == HELD_MAX || self.held_of(client) >= HELD_OF_CLIENT {
            return ctx.drop(&frame.packet, Drop::HoldRoom);
        }
        ctx.count(Counter::Held);
        ctx.note(&frame.packet, Note::Held);
        let connection = self.connections.get_mut(at);
        if connection.held.is_empty() {
            self.waiting.push(at);
        }
        connection.held.push_back(Waiting { frame, ports: (ctx.from, ctx.to), again: 0 });
        self.held += 1;
    }

    /// Frames that wait on a client's connections.
    fn held_of(&self, client: Gid) -> usize {
        let waiting = self.waiting.iter().map(|at| self.connections.get(*at));
        waiting.filter(|connection| connection.client == client).map(|connection| connection.held.len()).sum()
    }

    /// Lets those go on who waited for words that have become free.
    pub(super) fn release(&mut self, ctx: &mut Context<'_>) {
        if self.waiting.is_empty() {
            return self.freed.clear();
        }
        while let Some(va) = self.freed.pop_front() {
            let who: Vec<u32> =
                self.waiting.iter().copied().filter(|at| self.connections.get(*at).waits.va == va).collect();
            for at in who {
                self.drain(ctx, at, Way::Usual);
            }
        }
    }

    /// Tries what waits on a connection, from the front on, until something must wait again. Who has had a
    /// turn stands behind all others then: one that has ever more to ask for would keep a word to itself.
    fn drain(&mut self, ctx: &mut Context<'_>, at: u32, mut way: Way) {
        let mut has_gone_on = false;
        while let Some(waiting) = self.connections.get_mut(at).held.pop_front() {
            let (ports, again) = (waiting.ports, waiting.again);
            (ctx.from, ctx.to) = ports;
            ctx.again();
            self.held -= 1;
            match self.attempt(ctx, at, waiting.frame, way) {
                Ok(()) => {
                    // It has left the switch now.
                    self.connections.get_mut(at).seen = ctx.now;
                    (way, has_gone_on) = (Way::Usual, true);
                }
                Err(blocked) => {
                    let (va, frame) = blocked;
                    // Its time goes on, unless another has had the word meanwhile or it waits for another
                    // word.
                    if self.connections.get(at).waits.va != va || way == Way::Usual {
                        self.begin_wait(ctx.now, at, va);
                    }
                    let connection = self.connections.get_mut(at);
                    connection.held.push_front(Waiting { frame, ports, again });
                    self.held += 1;
                    if has_gone_on {
                        self.waiting.retain(|other| *other != at);
                        self.waiting.push(at);
                    }
                    return;
                }
            }
        }
        self.waiting.retain(|other| *other != at);
    }

    /// Ends the waits that have lasted long enough.
    pub(super) fn end_waits(&mut self, ctx: &mut Context<'_>) {
        let due: Vec<u32> =
            self.waiting.iter().copied().filter(|at| self.wait_ends(*at) <= ctx.now).collect();
        for at in due {
            if !self.waiting.contains(&at) || self.wait_ends(at) > ctx.now {
                continue;
            }
            self.forget_silent(ctx, at);
            self.drain(ctx, at, Way::Overdue);
            if self.waiting.contains(&at) && self.wait_ends(at) <= ctx.now {
                self.give_up(ctx, at);
            }
            self.release(ctx);
        }
    }

    /// Forgets others that owe an answer to the word that this connection waits for, and have been silent
    /// for a packet's life: their queue pairs have failed, or a switch before this one knew what became of
    /// their atomics. Otherwise nobody would be alone with the word again, and it would stay the server's.
    fn forget_silent(&mut self, ctx: &mut Context<'_>, waits: u32) {
        let va = self.connections.get(waits).waits.va;
        let Some(word) = self.words.find(va).filter(|word| self.words.get(*word).natives > 0) else { return };
        let owes = |connection: &Connection| {
            let mut entries = connection.entries.iter();
            entries.any(|entry| entry.word == word && entry.va == va && entry.is_native())
        };
        let silent = self.connections.all().filter(|(at, connection)| {
            *at != waits && connection.seen + self.config.life < ctx.now && owes(connection)
        });
        let silent: Vec<u32> = silent.map(|(at, _)| at).collect();
        silent.into_iter().for_each(|at| self.forget_connection(ctx, at));
    }

    /// Drops what waits on a connection. Its next request in order is the first of these still, so that the
    /// client's repetition is decided anew.
    fn give_up(&mut self, ctx: &mut Context<'_>, at: u32) {
        self.asks_for(at, None);
        let held = std::mem::take(&mut self.connections.get_mut(at).held);
        self.held -= held.len();
        self.waiting.retain(|other| *other != at);
        for waiting in held {
            (ctx.from, ctx.to) = waiting.ports;
            ctx.drop(&waiting.frame.packet, Drop::HoldTime);
        }
    }

    /// When a request has waited for long enough.
    fn wait_ends(&self, at: u32) -> Instant {
        self.connections.get(at).waits.ends
    }

    /// When the next wait ends.
    pub(super) fn next_wait_end(&self) -> Option<Instant> {
        self.waiting.iter().map(|at| self.wait_ends(*at)).min()
    }
}
