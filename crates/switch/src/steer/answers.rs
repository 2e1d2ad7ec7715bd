//! Answers on their way to the client: what each says of a chain's end. They all pass as they are.

use super::Steer;
use super::chains::{Position, Seen};
use super::connection::Link;
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{NakCode, Operation, Packet, Syndrome};

impl Steer {
    /// An answer has come.
    pub(super) fn on_answer(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = frame.packet;
        let operation = packet.bth.opcode.operation();
        if operation == Operation::AtomicAcknowledge {
            if let Some(at) = self.connection_asked(ctx, &packet) {
                self.on_outcome(ctx, at, &packet);
            }
        } else if operation == Operation::Acknowledge
            && let Syndrome::Nak(code) = packet.aeth.syndrome
            && code != NakCode::PsnSequenceError
        {
            self.on_refusal(ctx, &packet);
        }
        self.on_looked(ctx, &frame);
        ctx.pass_on(frame);
    }

    /// The connection whose open link an answer is to. If the client's queue pair is not known, or has got
    /// another connection since, the number must fit exactly one.
    fn connection_asked(&mut self, ctx: &mut Context<'_>, packet: &Packet) -> Option<u32> {
        let (client, qpn, psn) = (packet.flow.dst, packet.bth.dest_qp, packet.bth.psn);
        let Steer { connections, .. } = self;
        if let Some(at) = connections.of_answer(client, qpn)
            && connections.get_mut(at).is_some_and(|connection| connection.open_link(psn).is_some())
        {
            return Some(at);
        }
        let all: Vec<u32> = connections.of_client(client).collect();
        let mut fitting = all.into_iter().filter(|at| {
            connections.get_mut(*at).is_some_and(|connection| connection.open_link(psn).is_some())
        });
        let (first, more) = (fitting.next()?, fitting.next().is_some());
        drop(fitting);
        if more {
            ctx.count(Counter::Ambiguous);
            return None;
        }
        connections.pair(first, qpn);
        ctx.count(Counter::Paired);
        Some(first)
    }

    /// The server has executed a link, or found that there is something already.
    fn on_outcome(&mut self, ctx: &mut Context<'_>, at: u32, packet: &Packet) {
        let psn = packet.bth.psn;
        let Some(connection) = self.connections.get_mut(at) else { return };
        let Some((to, link)) = connection.open_link(psn) else { return };
        link.answered = true;
        let link = *link;
        connection.accept(link.owner.rkey);
        // The compare and swap was of the address of `next`.
        let behind = to.wrapping_sub(self.config.next_at.into());
        let linked = packet.atomic_original == 0;
        if linked && !self.is_of_another(ctx, behind, &link) {
            self.learn(ctx, packet, behind, &link);
        }
        let Some(chain) = self.chain_of(&link) else { return };
        let Some(there) = self.chains.get_mut(chain) else { return };
        let pending = there.pending.filter(|pending| (pending.connection, pending.psn) == (at, psn));
        // Where another has moved the end since, this says nothing of it.
        if !linked && there.tail == Some(behind) {
            ctx.note(packet, Note::TailForgotten);
            self.forget_tail(ctx, chain);
        }
        if pending.is_some() {
            self.free(chain);
        }
    }

    /// Where a link's chain stands, if it is there still.
    fn chain_of(&self, link: &Link) -> Option<u32> {
        let there = self.chains.get(link.chain)?;
        (there.key == link.key && there.owner == link.owner).then_some(link.chain)
    }

    /// Whether the entry that another one was put behind says to be of another key.
    fn is_of_another(&mut self, ctx: &mut Context<'_>, behind: u64, link: &Link) -> bool {
        let pass = ctx.again();
        self.entries.find(pass, behind, link.owner).is_some_and(|seen| seen.key != link.key)
    }

    /// An entry is linked, and so is the one before it.
    fn learn(&mut self, ctx: &mut Context<'_>, packet: &Packet, behind: u64, link: &Link) {
        let position = match self.position_of(ctx, behind, link) {
            Some(position) => position,
            None => {
                self.segments += 1;
                let position = Position { segment: self.segments, at: 0 };
                self.is_linked(ctx, behind, link, position);
                position
            }
        };
        if self.position_of(ctx, link.place, link).is_some() {
            // It has a follower already: the answer to that one's link was faster.
            return;
        }
        let position = position.next();
        self.is_linked(ctx, link.place, link, position);
        let Some(chain) = self.chain_of(link) else { return };
        self.chains.set_tail(chain, Some((link.place, position)));
        self.tail_moved(chain);
        if self.chains.get(chain).and_then(|it| it.pending).is_some_and(|it| it.place == link.place) {
            self.free(chain);
        }
        ctx.count(Counter::TailsLearned);
        ctx.note(packet, Note::Tail(link.place));
    }

    /// Where an entry of a link's chain stands, if it is known to be linked. Of the last one the chain itself
    /// says it: the table of entries may have forgotten it for another, and then each entry before it would
    /// be of a part that nobody is led out of.
    fn position_of(&mut self, ctx: &mut Context<'_>, place: u64, link: &Link) -> Option<Position> {
        let chain = self.chain_of(link).and_then(|chain| self.chains.get(chain));
        if let Some(chain) = chain.filter(|chain| chain.tail == Some(place)) {
            return Some(chain.position);
        }
        let pass = ctx.again();
        self.entries.find(pass, place, link.owner).filter(|seen| seen.key == link.key)?.linked
    }

    fn is_linked(&mut self, ctx: &mut Context<'_>, place: u64, link: &Link, position: Position) {
        let pass = ctx.again();
        let seen = Seen { place, owner: link.owner, key: link.key, linked: Some(position) };
        self.entries.put(pass, seen);
    }

    /// The server has refused a link that others waited for: its key does not reach the chain's end, or not
    /// any more.
    fn on_refusal(&mut self, ctx: &mut Context<'_>, packet: &Packet) {
        let (client, qpn, psn) = (packet.flow.dst, packet.bth.dest_qp, packet.bth.psn);
        let Some(at) = self.connections.of_answer(client, qpn) else { return };
        let Some((to, link)) = self.connections.get_mut(at).and_then(|it| it.open_link(psn)) else { return };
        link.answered = true;
        let link = *link;
        let Some(chain) = self.chain_of(&link).filter(|_| link.led) else { return };
        let behind = to.wrapping_sub(self.config.next_at.into());
        let Some(there) = self.chains.get(chain) else { return };
        let pending = there.pending.is_some_and(|pending| (pending.connection, pending.psn) == (at, psn));
        if there.tail == Some(behind) {
            ctx.note(packet, Note::TailForgotten);
            self.forget_tail(ctx, chain);
        }
        if pending {
            self.free(chain);
        }
    }
}
