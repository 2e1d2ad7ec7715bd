//! Requests that wait for a word: when it is free they go on, in the order in which they came; when their
//! time is over, the server decides, or they are dropped and their client sends them again.

use super::CasToWrite;
use super::connection::Connection;
use super::requests::Way;
use crate::counters::Drop;
use crate::program::Context;
use adverb_wire::Instant;

impl CasToWrite {
    /// Lets those go on who waited for words that have become free.
    pub(super) fn release(&mut self, ctx: &mut Context<'_>) {
        while let Some(va) = self.freed.pop_front() {
            let who: Vec<u32> =
                self.waiting.iter().copied().filter(|at| self.connections.get(*at).waits.0 == va).collect();
            for at in who {
                self.drain(ctx, at, Way::Usual);
            }
        }
    }

    /// Tries what waits on a connection, from the front on, until something must wait again.
    fn drain(&mut self, ctx: &mut Context<'_>, at: u32, mut way: Way) {
        while let Some(waiting) = self.connections.get_mut(at).held.pop_front() {
            (ctx.from, ctx.to) = waiting.ports;
            ctx.again();
            self.held -= 1;
            match self.attempt(ctx, at, waiting.frame, way) {
                Ok(()) => way = Way::Usual,
                Err(blocked) => {
                    let (va, frame) = blocked;
                    let ports = waiting.ports;
                    let connection = self.connections.get_mut(at);
                    // Its time goes on, unless another has had the word meanwhile or it waits for another
                    // word.
                    if connection.waits.0 != va || way == Way::Usual {
                        connection.waits = (va, ctx.now);
                    }
                    connection.held.push_front(super::connection::Waiting { frame, ports });
                    self.held += 1;
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
        let va = self.connections.get(waits).waits.0;
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
        let held = std::mem::take(&mut self.connections.get_mut(at).held);
        self.held -= held.len();
        self.waiting.retain(|other| *other != at);
        for waiting in held {
            (ctx.from, ctx.to) = waiting.ports;
            ctx.drop(&waiting.frame.packet, Drop::HoldTime);
        }
    }

    /// When the next wait ends.
    pub(super) fn next_wait_end(&self) -> Option<Instant> {
        self.waiting.iter().map(|at| self.wait_ends(*at)).min()
    }
}
