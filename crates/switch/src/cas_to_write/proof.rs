//! Whose queue pair the server still has. A carrier's rights are its own client's: what it carries would be
//! executed for a client whose own queue pair the server has destroyed, or taken to ERR, to keep it out. So a
//! client's requests are carried for a while after the server has answered its own queue pair, by whatever
//! answer. Then the server is asked first: by a WRITE of no bytes on that queue pair, which needs no right
//! and changes nothing. It has a number there as what a carrier carries has, and is sent again as that is.
//! Where no answer comes the client's request waits, and its client runs out of retries, as it should.

use super::CasToWrite;
use super::carry::Carried;
use super::requests::become_write;
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Instant, NakCode, Packet, Syndrome};

impl CasToWrite {
    /// The server has answered a queue pair. A refusal says that it takes nothing more.
    pub(super) fn proves(&mut self, now: Instant, at: u32, answer: &Packet) {
        let has_failed = answer.bth.opcode.operation().is_response()
            && matches!(answer.aeth.syndrome, Syndrome::Nak(code) if code != NakCode::PsnSequenceError);
        self.connections.get_mut(at).lane.proved = (!has_failed).then_some(now);
    }

    /// Whether a queue pair was answered lately.
    pub(super) fn is_proved(&self, now: Instant, at: u32) -> bool {
        let Some(config) = self.config.carry else { return true };
        let lane = &self.connections.get(at).lane;
        lane.proved.is_some_and(|at| now.since(at) <= config.proof)
    }

    /// Asks the server for an answer to a queue pair, whose client's own requests are all acknowledged, for
    /// the sake of this request for a word.
    pub(super) fn ask_for_proof(&mut self, ctx: &mut Context<'_>, at: u32, word: u32, request: &Frame) {
        let Some(config) = self.config.carry else { return };
        if !self.connections.get(at).lane.ring.is_empty() {
            // It is under way; or was, when its client was heard last.
            if self.connections.get(at).lane.tries >= config.tries {
                self.connections.get_mut(at).lane.tries = 0;
                self.send_again(ctx, at);
            }
            return;
        }
        self.shift(ctx, at);
        let connection = self.connections.get_mut(at);
        let out = connection.lane.take_carried();
        (connection.lane.sent, connection.lane.tries) = (ctx.now, 0);
        let mut packet = request.packet;
        become_write(&mut packet, 0);
        (packet.bth.dest_qp, packet.bth.psn) = (connection.server_qpn, out);
        let frame = request.made_like(packet, &[]);
        let (va, psn) = (request.packet.atomic.va, request.packet.bth.psn);
        let kept = frame.clone();
        let proof = Carried { is_proof: true, of: None, psn, out, word, va, value: None, frame: kept };
        connection.lane.ring.push_back(proof);
        self.provers.push(at);
        ctx.count(Counter::Proofs);
        ctx.count(Counter::Generated);
        ctx.again();
        ctx.pass_on(frame);
    }

    /// Connections that have something under way that the switch sees to.
    pub(super) fn tended(&self) -> impl Iterator<Item = u32> {
        let provers = self.provers.iter().filter(|at| !self.carriers.contains(at));
        self.carriers.iter().chain(provers).copied()
    }

    /// Whether a connection is one of those.
    pub(super) fn is_tended(&self, at: u32) -> bool {
        self.carriers.contains(&at) || self.provers.contains(&at)
    }
}
