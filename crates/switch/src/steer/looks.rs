//! READs that were sent to a chain's last entry. Where links overtake them, the next link waits until they
//! are answered, and those that come later wait for that link: so each READ finds the end where it was sent.
//!
//! A NIC reads memory when it makes a READ's answer, and executes a compare and swap as it comes. Where
//! answers wait for the port, a link that comes later is first, and a READ of a key that is always put finds
//! a follower again and again. What that costs fills the port, so that answers wait.

use super::Steer;
use super::chains::{Chain, Closing};
use super::connection::Look;
use super::requests::Way;
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Duration, Operation, Packet, Syndrome};

/// The smallest path MTU: so many bytes of an entry are in a READ's first answer.
const SMALLEST_MTU: u32 = 256;

/// How long READs take from the switch to the server and back, as senders estimate it (RFC 6298).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Patience {
    usual: u64,
    varies: u64,
    /// At best.
    least: u64,
}

impl Patience {
    /// A READ has taken so long.
    fn learn(&mut self, took: Duration) {
        let took = took.as_ps();
        if self.usual == 0 {
            (self.usual, self.varies, self.least) = (took, took / 2, took);
            return;
        }
        self.least = self.least.min(took);
        self.varies = (3 * self.varies + took.abs_diff(self.usual)) / 4;
        self.usual = (7 * self.usual + took) / 8;
    }

    /// Whether READs wait at the server, most likely for its port.
    fn is_long(self) -> bool {
        self.usual > 2 * self.least
    }

    /// What takes longer is lost, most likely; nothing, if none was seen.
    fn end(self) -> Option<Duration> {
        (self.usual > 0).then(|| Duration::from_ps(self.usual + 4 * self.varies))
    }
}

impl Steer {
    /// How long a link waits for READs.
    pub(super) fn link_waits(&self) -> Duration {
        let most = self.config.link_hold.min(self.config.hold);
        self.patience.end().map_or(most, |end| end.min(most))
    }

    /// An answer has come: to which READs, too, and what it says of the last one.
    pub(super) fn on_looked(&mut self, ctx: &mut Context<'_>, frame: &Frame) {
        let packet = &frame.packet;
        let operation = packet.bth.opcode.operation();
        let is_plain = operation == Operation::Acknowledge;
        if is_plain && !matches!(packet.aeth.syndrome, Syndrome::Ack { .. }) {
            return;
        }
        let Some(at) = self.who_looked(packet) else { return };
        let begins = matches!(operation, Operation::ReadResponseFirst | Operation::ReadResponseOnly);
        while let Some(connection) = self.connections.get_mut(at)
            && let Some(look) = connection.looks.front().copied()
        {
            let off = packet.bth.psn.since(look.psn);
            let in_first = self.config.next_at < SMALLEST_MTU;
            if off < 0 || off == 0 && operation == Operation::ReadResponseFirst && !in_first {
                return;
            }
            connection.looks.pop_front();
            if off == 0 && begins {
                self.look_tells(ctx, frame, look);
            }
            self.look_ends(ctx, look);
        }
    }

    /// The connection whose READ an answer is to. If the client's queue pair is not known, the number must
    /// fit exactly one.
    fn who_looked(&mut self, packet: &Packet) -> Option<u32> {
        let (client, qpn, psn) = (packet.flow.dst, packet.bth.dest_qp, packet.bth.psn);
        let known = self.connections.of_answer(client, qpn);
        if known.is_some() {
            return known;
        }
        let is_read = |at: &u32| {
            let unpaired = self.connections.get(*at).filter(|it| it.client_qpn.is_none());
            unpaired.is_some_and(|it| it.looks.iter().any(|look| look.psn == psn))
        };
        let mut fitting = self.connections.of_client(client).filter(is_read);
        let (first, more) = (fitting.next()?, fitting.next().is_some());
        drop(fitting);
        if more {
            return None;
        }
        self.connections.pair(first, qpn);
        Some(first)
    }

    /// What a READ's answer says: how long it took, and whether a link was executed before it.
    fn look_tells(&mut self, ctx: &mut Context<'_>, frame: &Frame, look: Look) {
        if let Some(since) = look.since {
            self.patience.learn(ctx.now.since(since));
        }
        let next =
            frame.payload().get(self.config.next_at as usize..).and_then(|rest| rest.first_chunk::<8>());
        let Some(next) = next else { return };
        let is_overtaken = *next != [0; 8];
        if is_overtaken {
            ctx.count(Counter::OvertakenReads);
        }
        let it_matters = is_overtaken && self.patience.is_long();
        if let Some(there) = self.chain_of_look(ctx, look) {
            there.overtaking.answered(it_matters);
        }
    }

    /// The chain to whose last entry a READ was sent, if it is still there. That is a way through the
    /// pipeline of its own, and what comes behind it takes the next one.
    fn chain_of_look(&mut self, ctx: &mut Context<'_>, look: Look) -> Option<&mut Chain> {
        let pass = ctx.again();
        ctx.again();
        let there = self.chains.access(pass, look.chain);
        there.filter(|it| (it.key, it.owner) == (look.key, look.owner))
    }

    /// A READ is answered, or not waited for any more.
    pub(super) fn look_ends(&mut self, ctx: &mut Context<'_>, look: Look) {
        let there = self.chain_of_look(ctx, look);
        let Some(there) = there.filter(|it| it.tail == Some(look.to) && it.looks > 0) else { return };
        there.looks -= 1;
        if there.looks == 0 && there.closing.is_some() {
            self.freed.push_back(look.chain);
        }
    }

    /// A chain's last entry is another one: nobody waits for READs of the one before.
    pub(super) fn tail_moved(&mut self, chain: u32) {
        if self.is_closing(chain) {
            self.freed.push_back(chain);
        }
    }

    /// Whether a link waits for READs of a chain's last entry.
    pub(super) fn is_closing(&self, chain: u32) -> bool {
        self.chains.get(chain).is_some_and(|it| it.closing.is_some())
    }

    /// The wait for READs of a link that is the first to wait on a connection.
    pub(super) fn closed_by(&self, at: u32) -> Option<Closing> {
        let chain = self.connections.get(at)?.waits.0;
        self.chains.get(chain)?.closing.filter(|closing| closing.connection == at)
    }

    /// Lets the link go on that waited for READs; whether others may follow.
    pub(super) fn close(&mut self, ctx: &mut Context<'_>, chain: u32) -> bool {
        let Some(there) = self.chains.get(chain) else { return true };
        let Some(closing) = there.closing else { return true };
        if there.pending.is_some() || there.looks > 0 {
            return false;
        }
        self.drain(ctx, closing.connection, Way::Usual);
        self.chains.get(chain).is_none_or(|it| it.pending.is_none() && it.closing.is_none())
    }

    /// A link that waited for READs has gone on, or is gone.
    pub(super) fn open(&mut self, chain: u32, at: u32) {
        if let Some(there) = self.chains.get_mut(chain)
            && there.closing.is_some_and(|closing| closing.connection == at)
        {
            there.closing = None;
            self.freed.push_back(chain);
        }
    }
}
