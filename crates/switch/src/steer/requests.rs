//! Requests on their way to the server: which are of entries, and where each goes.

use super::chains::{Chain, Closing, Pending, Seen};
use super::connection::{Connection, Decided, Decision, Link, Look};
use super::{IDLE, LinksWait, Steer, SteerConfig, SteerMistake};
use crate::cas_to_write::word::Owner;
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Duration, Operation, Packet};

/// What a request is to this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// A fresh entry at an address, of a key.
    Entry { place: u64, key: u64 },
    /// An entry is to be put behind the one at an address.
    Link { behind: u64, place: u64 },
    /// An entry is read.
    Look { place: u64 },
    /// Anything else.
    Other,
}

/// A request that must wait, and for which chain.
pub(super) type Blocked = (u32, Box<Frame>);

/// How a request may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Behind what is pending.
    Usual,
    /// Its time to wait is over.
    Overdue,
}

impl Steer {
    /// A request has come.
    pub(super) fn on_request(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let Some(at) = self.connection_of(ctx, &frame.packet) else {
            ctx.count(Counter::ConnectionsFull);
            return ctx.pass_on(frame);
        };
        let Some(connection) = self.connections.get_mut(at) else { return ctx.pass_on(frame) };
        connection.seen = ctx.now;
        if !connection.held.is_empty() {
            return self.hold(ctx, at, frame);
        }
        if let Err((chain, frame)) = self.attempt(ctx, at, frame, Way::Usual) {
            if is_read(&frame) {
                ctx.count(Counter::HeldReads);
            }
            if let Some(connection) = self.connections.get_mut(at) {
                connection.waits = (chain, ctx.now);
            }
            self.hold(ctx, at, frame);
        }
    }

    /// The request's connection; a new one if it is the first, or if the queue pair begins another life.
    fn connection_of(&mut self, ctx: &mut Context<'_>, packet: &Packet) -> Option<u32> {
        let (client, qpn, psn) = (packet.flow.src, packet.bth.dest_qp, packet.bth.psn);
        if let Some(at) = self.connections.of_request(client, qpn) {
            if !self.connections.get(at)?.begins_again(psn) {
                return Some(at);
            }
            self.forget_connection(ctx, at);
        }
        if !self.connections.has_room() {
            let silent = |connection: &Connection| {
                connection.held.is_empty() && ctx.now.since(connection.seen) >= IDLE
            };
            let (idle, _) = self.connections.all().find(|(_, connection)| silent(connection))?;
            self.forget_connection(ctx, idle);
        }
        Some(self.connections.add(Connection::new(client, qpn, psn, ctx.now)))
    }

    /// Lets a request go on, or returns it with the chain that it must wait for.
    pub(super) fn attempt(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        way: Way,
    ) -> Result<(), Blocked> {
        let packet = frame.packet;
        let Some(connection) = self.connections.get_mut(at) else {
            ctx.pass_on(frame);
            return Ok(());
        };
        connection.sent_again(packet.bth.psn);
        if let Some(decision) = connection.decided(&packet, self.config.entry).copied() {
            self.repeat(ctx, frame, decision);
            return Ok(());
        }
        if packet.bth.psn.is_before(connection.expected) {
            // Of what was passed on as it was nothing is kept: so it is again.
            ctx.pass_on(frame);
            return Ok(());
        }
        let rkey = match packet.bth.opcode.operation().is_atomic() {
            true => packet.atomic.rkey,
            false => packet.reth.rkey,
        };
        let owner = connection.owner(rkey);
        let done = match classify(&self.config, &frame) {
            _ if !self.may_hold(rkey) => Err(frame),
            Class::Entry { place, key } => {
                self.note_entry(ctx, Seen { place, owner, key, linked: None });
                Err(frame)
            }
            Class::Link { behind, place } => self.link(ctx, at, frame, (behind, place, owner), way)?,
            Class::Look { place } => self.look(ctx, at, frame, (place, owner), way)?,
            Class::Other => Err(frame),
        };
        if let Err(frame) = done {
            ctx.pass_on(frame);
        }
        if let Some(connection) = self.connections.get_mut(at) {
            connection.expected = packet.bth.psn.next();
        }
        Ok(())
    }

    /// A request that was seen before becomes what it was then.
    fn repeat(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>, decision: Decision) {
        let mut to = decision.to;
        if self.config.mistake == Some(SteerMistake::Anew)
            && let Decided::Link(link) = decision.kind
            && let Some(pending) = self.chains.get(link.chain).and_then(|chain| chain.pending)
        {
            to = pending.place + u64::from(self.config.next_at);
        }
        ctx.count(Counter::Repeated);
        ctx.note(&frame.packet, Note::Repeated);
        readdress(ctx, frame, to.wrapping_sub(decision.from));
    }

    /// An entry is written: its key is followed from now on, if there is a place for it.
    fn note_entry(&mut self, ctx: &mut Context<'_>, seen: Seen) {
        let now = ctx.now;
        if let Some(ended) = self.chains.ending_with(seen.owner, seen.place) {
            // An address is used again: whatever chain it was the end of, it is not.
            self.forget_tail(ctx, ended);
        }
        let count = self.sketch.as_mut().map(|sketch| sketch.add(ctx.pass, now, seen.key));
        let chain = match self.chains.find(seen.owner, seen.key) {
            Some(chain) => chain,
            None => {
                let is_cold = |count: u32| self.config.hot.is_some_and(|hot| count < hot.above);
                if count.is_some_and(is_cold) {
                    return;
                }
                let sketch = &self.sketch;
                let may_go = |chain: &Chain| {
                    let colder = sketch.as_ref().zip(count);
                    now.since(chain.used) >= IDLE
                        || colder.is_some_and(|(sketch, count)| sketch.estimate(chain.key) < count / 2)
                };
                match self.chains.follow(seen.owner, seen.key, now, may_go) {
                    Some(chain) => chain,
                    None => return ctx.count(Counter::KeysFull),
                }
            }
        };
        if let Some(chain) = self.chains.get_mut(chain) {
            chain.used = now;
        }
        self.entries.put(ctx.pass, seen);
    }

    /// A compare and swap that links an entry goes to the last one, when nothing is pending there.
    fn link(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        (behind, place, owner): (u64, u64, Owner),
        way: Way,
    ) -> Result<Result<(), Box<Frame>>, Blocked> {
        let seen = self.entries.find(ctx.pass, place, owner).filter(|seen| seen.linked.is_none());
        let found = seen.and_then(|seen| Some((seen.key, self.chains.find(owner, seen.key)?)));
        let Some((key, chain)) = found else {
            ctx.count(Counter::ChainsPassed);
            return Ok(Err(frame));
        };
        let packet = frame.packet;
        let Some(connection) = self.connections.get_mut(at) else { return Ok(Err(frame)) };
        let (now, hold) = (ctx.now, self.config.hold);
        let Some(there) = self.chains.access(ctx.pass, chain) else { return Ok(Err(frame)) };
        there.used = now;
        let mut waits = there.pending.is_some_and(|link| now.since(link.since) < hold);
        let mut tail = there.tail.filter(|_| connection.accepts(owner.rkey));
        if self.config.mistake == Some(SteerMistake::PendingLinks)
            && let (Some(_), Some(pending)) = (tail, there.pending)
        {
            (tail, waits) = (Some(pending.place), false);
        }
        let led = tail.is_some();
        if led && waits && way == Way::Usual {
            return Err((chain, frame));
        }
        // READs that were sent to the entry before are to see it as the last one.
        let links_wait = self.config.links_wait == LinksWait::Always || there.overtaking.waits();
        let links_wait = links_wait && self.config.link_hold > Duration::ZERO;
        if led && there.looks > 0 && way == Way::Usual && links_wait {
            if there.closing.is_none() {
                ctx.count(Counter::HeldLinks);
                there.closing = Some(Closing { connection: at, since: now });
            }
            return Err((chain, frame));
        }
        if led {
            there.closing = there.closing.filter(|closing| closing.connection != at);
            there.looks = 0;
            there.overtaking.linked();
            there.pending = Some(Pending { connection: at, psn: packet.bth.psn, place, since: now });
        }
        let (from, next_at) = (packet.atomic.va, u64::from(self.config.next_at));
        let to = tail.map_or(from, |tail| tail + next_at);
        let link = Link { chain, key, owner, place, led, answered: false };
        connection.decide(Decision { psn: packet.bth.psn, from, to, kind: Decided::Link(link) });
        ctx.count(match tail {
            None => Counter::ChainsPassed,
            Some(tail) if tail == behind => Counter::CurrentCas,
            Some(_) => Counter::SteeredCas,
        });
        if to != from {
            ctx.note(&packet, Note::Steered(to));
        }
        readdress(ctx, frame, to.wrapping_sub(from));
        Ok(Ok(()))
    }

    /// A READ of a linked entry goes to the last one. While a link is under way it waits: the server may have
    /// executed that, and who reads what was the last entry then has to read once more, and under load finds
    /// the same again and again.
    fn look(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        (place, owner): (u64, Owner),
        way: Way,
    ) -> Result<Result<(), Box<Frame>>, Blocked> {
        let packet = frame.packet;
        let Some(seen) = self.entries.find(ctx.pass, place, owner) else { return Ok(Err(frame)) };
        let Some(chain) = self.chains.find(owner, seen.key) else { return Ok(Err(frame)) };
        let read_hold = self.config.read_hold.min(self.config.hold);
        let (now, link_waits) = (ctx.now, self.link_waits());
        let there = self.chains.access(ctx.pass, chain);
        let (Some(there), Some(connection)) = (there, self.connections.get_mut(at)) else {
            return Ok(Err(frame));
        };
        // A queue pair's own link is done before its READ, and if it was lost, it is sent again before it.
        let link = there.pending.filter(|link| link.connection != at);
        let waits = link.is_some_and(|link| now.since(link.since) < read_hold);
        let closing = there.closing.filter(|closing| closing.connection != at);
        let end = link_waits.min(read_hold);
        let waits = waits || closing.is_some_and(|closing| now.since(closing.since) < end);
        let Some(position) = seen.linked else {
            // Its link is under way, and was executed if somebody knows of it.
            let of_it = link.is_some_and(|link| link.place == place);
            let waits = waits && of_it && way == Way::Usual;
            return if waits { Err((chain, frame)) } else { Ok(Err(frame)) };
        };
        there.used = now;
        // Only to what is behind it: who goes along the chain must not come back.
        let mut tail = there.tail.filter(|_| position.is_before(there.position));
        if self.config.mistake == Some(SteerMistake::PendingReads) {
            tail = there.pending.map(|pending| pending.place).or(tail);
        } else if waits && way == Way::Usual && (tail.is_some() || there.tail == Some(place)) {
            return Err((chain, frame));
        }
        if packet.bth.psn == connection.first && tail.is_some() {
            // Should it be a repetition, the server takes it for the address that it had only (IBTA
            // 9.7.5.1.1).
            return Ok(Err(frame));
        }
        let to = tail.unwrap_or(place);
        let to_end = there.tail == Some(to);
        if to_end && self.config.link_hold > Duration::ZERO {
            there.looks += 1;
            let Chain { key, owner, .. } = *there;
            let look = Look { psn: packet.bth.psn, chain, key, owner, to, since: Some(now) };
            if let Some(left) = connection.look(look) {
                self.look_ends(ctx, left);
            }
        }
        if tail.is_none() {
            if to_end {
                ctx.count(Counter::CurrentReads);
            }
            return Ok(Err(frame));
        }
        let Some(connection) = self.connections.get_mut(at) else { return Ok(Err(frame)) };
        connection.decide(Decision { psn: packet.bth.psn, from: place, to, kind: Decided::Read });
        ctx.count(Counter::SteeredReads);
        ctx.note(&packet, Note::Steered(to));
        readdress(ctx, frame, to.wrapping_sub(place));
        Ok(Ok(()))
    }
}

/// What a request is, by what the program was told of entries.
pub(super) fn classify(config: &SteerConfig, frame: &Frame) -> Class {
    let packet = &frame.packet;
    match packet.bth.opcode.operation() {
        Operation::WriteOnly | Operation::WriteFirst if packet.reth.len == config.entry => {
            let at = config.key_at as usize;
            let key = frame.payload().get(at..).and_then(|rest| rest.first_chunk::<8>());
            let whole = packet.reth.va.is_multiple_of(8) && packet.reth.va != 0;
            key.filter(|_| whole).map_or(Class::Other, |key| Class::Entry {
                place: packet.reth.va,
                key: u64::from_le_bytes(*key),
            })
        }
        Operation::CompareSwap if packet.atomic.compare == 0 && packet.atomic.swap_add != 0 => {
            let behind = packet.atomic.va.checked_sub(config.next_at.into());
            behind.map_or(Class::Other, |behind| Class::Link { behind, place: packet.atomic.swap_add })
        }
        Operation::ReadRequest if config.reads && packet.reth.len == config.entry => {
            Class::Look { place: packet.reth.va }
        }
        _ => Class::Other,
    }
}

/// Whether a request only reads.
pub(super) fn is_read(frame: &Frame) -> bool {
    frame.packet.bth.opcode.operation() == Operation::ReadRequest
}

/// Sends a request on, so many bytes further than it says.
pub(super) fn readdress(ctx: &mut Context<'_>, mut frame: Box<Frame>, by: u64) {
    if by != 0 {
        let mut packet = frame.packet;
        match packet.bth.opcode.operation().is_atomic() {
            true => packet.atomic.va = packet.atomic.va.wrapping_add(by),
            false => packet.reth.va = packet.reth.va.wrapping_add(by),
        }
        frame.readdress(packet);
    }
    ctx.pass_on(frame);
}
