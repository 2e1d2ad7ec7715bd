//! Requests that wait for the link under way, and all that comes behind them on their connection: when it is
//! acknowledged they go on, READs first and else in the order in which they came, or when their time is over.

use super::connection::Waiting;
use super::requests::{Way, is_read};
use super::{HELD_MAX, HELD_OF_CLIENT, HELD_OF_CONNECTION, Steer};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::Instant;

impl Steer {
    /// A request waits, if there is room for it.
    pub(super) fn hold(&mut self, ctx: &mut Context<'_>, at: u32, frame: Box<Frame>) {
        let Some(connection) = self.connections.get(at) else { return ctx.pass_on(frame) };
        let (client, psn) = (connection.client, frame.packet.bth.psn);
        if connection.held.iter().any(|waiting| waiting.frame.packet.bth.psn == psn) {
            // Its client is impatient. It waits already.
            return ctx.drop(&frame.packet, Drop::UnderWay);
        }
        let of_client = |at| self.connections.get(at).map_or(0, |connection| connection.held.len());
        let all: usize = self.connections.of_client(client).map(of_client).sum();
        if connection.held.len() >= HELD_OF_CONNECTION || all >= HELD_OF_CLIENT || self.held >= HELD_MAX {
            return ctx.drop(&frame.packet, Drop::HoldRoom);
        }
        ctx.count(Counter::Held);
        ctx.note(&frame.packet, Note::Waits);
        let ports = (ctx.from, ctx.to);
        if let Some(connection) = self.connections.get_mut(at) {
            connection.held.push_back(Waiting { frame, ports });
            self.held += 1;
            if !self.waiting.contains(&at) {
                self.waiting.push(at);
            }
        }
    }

    /// Lets those go on who waited for chains that have become free. READs go first: they see the entry that
    /// was just linked as the last one, and nobody waits behind them. So each waits for one link only.
    pub(super) fn release(&mut self, ctx: &mut Context<'_>) {
        while let Some(chain) = self.freed.pop_front() {
            if self.is_closing(chain) && !self.close(ctx, chain) {
                continue;
            }
            let who = self.waiting.iter().copied();
            let who = who.filter(|at| self.connections.get(*at).is_some_and(|it| it.waits.0 == chain));
            let (reads, links): (Vec<u32>, Vec<u32>) = who.partition(|at| self.reads_next(*at));
            for at in reads.into_iter().chain(links) {
                self.drain(ctx, at, Way::Usual);
            }
        }
    }

    /// Whether what waits first on a connection is a READ.
    fn reads_next(&self, at: u32) -> bool {
        let first = self.connections.get(at).and_then(|connection| connection.held.front());
        first.is_some_and(|waiting| is_read(&waiting.frame))
    }

    /// Tries what waits on a connection, from the front on, until something must wait again.
    pub(super) fn drain(&mut self, ctx: &mut Context<'_>, at: u32, mut way: Way) {
        while let Some(waiting) = self.connections.get_mut(at).and_then(|it| it.held.pop_front()) {
            self.held -= 1;
            (ctx.from, ctx.to) = waiting.ports;
            ctx.again();
            let closed =
                self.connections.get(at).map(|it| it.waits.0).filter(|_| self.closed_by(at).is_some());
            match self.attempt(ctx, at, waiting.frame, way) {
                Ok(()) => {
                    way = Way::Usual;
                    closed.into_iter().for_each(|chain| self.open(chain, at));
                }
                Err((chain, frame)) => {
                    let Some(connection) = self.connections.get_mut(at) else { return };
                    // The first one's time goes on; another's begins.
                    if connection.waits.0 != chain || way == Way::Overdue {
                        connection.waits = (chain, ctx.now);
                    }
                    connection.held.push_front(Waiting { frame, ports: waiting.ports });
                    self.held += 1;
                    return;
                }
            }
            if let Some(connection) = self.connections.get_mut(at) {
                connection.waits.1 = ctx.now;
            }
        }
        self.waiting.retain(|other| *other != at);
    }

    /// Ends the waits that have lasted long enough: their links go to the entry that was linked last. Where
    /// the one that they waited for was linked after all, they find that.
    pub(super) fn end_waits(&mut self, ctx: &mut Context<'_>) {
        let due: Vec<u32> =
            self.waiting.iter().copied().filter(|at| self.wait_ends(*at) <= ctx.now).collect();
        for at in due {
            if self.waiting.contains(&at) && self.wait_ends(at) <= ctx.now {
                ctx.count(match self.closed_by(at) {
                    _ if self.reads_next(at) => Counter::OverdueReads,
                    Some(_) => Counter::OverdueLinks,
                    None => Counter::Overdue,
                });
                self.drain(ctx, at, Way::Overdue);
            }
            self.release(ctx);
        }
    }

    /// When a connection's wait ends.
    pub(super) fn wait_ends(&self, at: u32) -> Instant {
        let time = if self.reads_next(at) { self.config.read_hold } else { self.config.hold };
        let Some(since) = self.connections.get(at).map(|it| it.waits.1) else { return Instant::ZERO };
        let usual = since + time.min(self.config.hold);
        let for_reads = self.closed_by(at).map(|closing| closing.since + self.link_waits());
        for_reads.map_or(usual, |end| end.min(usual))
    }
}
