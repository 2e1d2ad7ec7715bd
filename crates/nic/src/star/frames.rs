//! Frames that leave for StaR in the name of no queue pair's turn: hellos and records of endpoints, work that
//! they tell their peers, and what the stateless half answers.

use super::{PSN_BACK, Phase, StarNic, library};
use crate::endpoint::{Endpoint, Place};
use crate::frame::TxFrame;
use crate::ids::{PathId, QpId};
use crate::limits;
use crate::memory::QueueMemory;
use crate::nic::Nic;
use crate::transport::star::clock;
use adverb_wire::star::{Hello, Op, Record, Refusal, StarEth, Ticket};
use adverb_wire::{Bth, Flow, Instant, Opcode, Operation, Packet, Psn, QpNumber, Service};

/// Ends of a connection, as a packet of StaR's control needs them.
pub(super) struct Ends {
    pub flow: Flow,
    pub peer: QpNumber,
    pub path: PathId,
    /// Next PSN expected of the peer.
    pub expected: Psn,
}

impl StarNic {
    /// Puts a packet of StaR's control into `out`, with a body. False when the host has no memory for it.
    pub(super) fn put(
        &mut self,
        ends: &Ends,
        bth: Bth,
        eth: StarEth,
        body: &[u8],
        out: &mut TxFrame,
    ) -> bool {
        if self.body.is_none() {
            self.body = QueueMemory::new(limits::MAX_MTU).ok();
        }
        let Some(memory) = &self.body else { return false };
        memory.write(0, body);
        out.payload.clear();
        out.payload.push(memory.span(0, body.len()));
        let bth = Bth { dest_qp: ends.peer, ..bth };
        let payload_len = body.len() as u32;
        out.packet = Packet { flow: ends.flow, bth, irn: eth.into(), payload_len, ..Packet::default() };
        out.path = ends.path;
        true
    }

    fn put_hello(&mut self, ends: &Ends, hello: &Hello, asks: bool, out: &mut TxFrame) -> bool {
        let opcode = Opcode::new(Service::Star, Operation::Hello);
        let psn = ends.expected.add(Psn::MASK + 1 - PSN_BACK);
        let bth = Bth { opcode, psn, ack_req: asks, ..Bth::default() };
        self.put(ends, bth, StarEth::new(Op::Control, 0, 0, 0), &hello.bytes(), out)
    }

    fn put_record(&mut self, ends: &Ends, first: Psn, record: &Record, out: &mut TxFrame) -> bool {
        let opcode = Opcode::new(Service::Star, Operation::WqePacket);
        let bth = Bth { opcode, psn: first, ack_req: true, ..Bth::default() };
        let eth = StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0);
        self.put(ends, bth, eth, &record.bytes(), out)
    }
}

/// The way out.
impl Nic {
    /// The next frame that no queue pair's turn brings: of an endpoint, or of the stateless half.
    #[cold]
    pub(crate) fn next_star_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        let put = self.star.is_some() && self.put_star_frame(now, out) || self.put_native_frame(now, out);
        if !put {
            return false;
        }
        self.state.counters.tx_packets += 1;
        self.state.counters.tx_bytes += u64::from(out.packet.payload_len);
        true
    }

    fn put_star_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        if self.put_switch(now, out) {
            return true;
        }
        while let Some(index) = self.star.as_mut().and_then(|star| star.due.pop_front()) {
            if self.put_of_endpoint(now, index, out) {
                return true;
            }
        }
        let Some(star) = &mut self.star else { return false };
        let state = &mut self.state;
        let host = |number| library::queues_of(&self.endpoints, &self.numbers, number);
        if self.paths.is_blocked(PathId::DEFAULT)
            || !star.stateless.next_answer(now, &state.memory, host, &mut state.counters, out)
        {
            return false;
        }
        out.path = state.path_to(out.packet.flow.dst, out.packet.bth.dest_qp, PathId::DEFAULT);
        true
    }

    /// Puts an EA into `out` that refuses a record, for who has plain RC.
    pub(super) fn put_refusal(&mut self, name: QpId, ticket: Ticket, out: &mut TxFrame) -> bool {
        let Some(ends) = self.ends_of(name) else { return false };
        let opcode = Opcode::new(Service::Star, Operation::WqeEventAcknowledge);
        let bth = Bth { opcode, psn: ends.expected, dest_qp: ends.peer, ..Bth::default() };
        let irn = StarEth::new(Op::Control, StarEth::MIGRATION, 0, Refusal::TooLarge as u32).into();
        out.payload.clear();
        out.packet = Packet { flow: ends.flow, bth, irn, ticket, ..Packet::default() };
        out.path = ends.path;
        true
    }

    fn put_of_endpoint(&mut self, now: Instant, index: u32, out: &mut TxFrame) -> bool {
        let Some(name) = self.endpoints.name_at(index) else { return false };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return false };
        let Some(star) = &mut self.star else { return false };
        let ends = Ends {
            flow: endpoint.flow(&self.state.gids),
            peer: endpoint.peer,
            path: endpoint.path,
            expected: endpoint.expected(),
        };
        let record = record_of(endpoint, star, now);
        let Some(hosted) = endpoint.star.as_deref_mut() else { return false };
        hosted.is_due = false;
        let sent = if hosted.ask || hosted.answer {
            let asks = core::mem::take(&mut hosted.ask);
            hosted.answer = false;
            if asks {
                // All asks but the last one's silence count the same.
                hosted.sent += 1;
                hosted.at = now + star.config.hello_interval;
                hosted.library.since = now;
            }
            self.state.counters.star_hellos_sent += 1;
            star.put_hello(&ends, &hosted.told, asks, out)
        } else if core::mem::take(&mut hosted.hand_over) {
            let least = self.state.irn.rto_low;
            hosted.at = now + hosted.library.wait(star.config.hello_interval, least, hosted.sent);
            hosted.library.since = now;
            hosted.sent = hosted.sent.saturating_add(1);
            star.put_record(&ends, hosted.base, &record, out)
        } else if hosted.phase == Phase::Stateless {
            star.put_work(now, endpoint, &mut self.state, &ends, out)
        } else {
            false
        };
        let Some(hosted) = endpoint.star.as_deref() else { return sent };
        let more = hosted.hand_over || sent && hosted.phase == Phase::Stateless && endpoint.has_untold();
        let phase = hosted.phase;
        self.arm(name);
        if more {
            self.star_due(name);
        }
        if let Phase::Leaving(outcome) = phase {
            self.leave_for(name, outcome);
        }
        sent
    }
}

/// What the stateful side is to know of an endpoint.
fn record_of(endpoint: &Endpoint, star: &StarNic, now: Instant) -> Record {
    let attr = endpoint.query();
    Record {
        timeout: attr.timeout,
        retries: attr.retry_cnt,
        // Of those that are posted later: these say it again, since before RTS it is not known.
        rnr_retries: attr.rnr_retry,
        rnr_timer: attr.min_rnr_timer,
        depths: (attr.max_rd_atomic, attr.max_dest_rd_atomic),
        features: endpoint.star.as_deref().map_or(0, |hosted| hosted.features),
        psn: attr.rq_psn.get(),
        queues: (attr.caps.max_send_wr as u16, attr.caps.max_recv_wr as u16),
        clock: clock(now),
        lifetime: star.config.lifetime_us(),
        receives: endpoint.star.as_deref().map_or(0, |hosted| hosted.library.receives_before()),
        ticket: endpoint.star.as_deref().map_or(Ticket::default(), |hosted| hosted.ticket),
    }
}
