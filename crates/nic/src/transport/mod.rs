//! Transports: how work requests become packets and packets become completions.
//!
//! [`requester`] runs the WQEs of every service (`inflight` is its state) and `segmentation` cuts their messages into packets; [`receive`] places the messages of RC, UC
//! and XRC; [`rc`] adds reliability on both sides; [`uc`] and [`ud`] are what is left without it.

mod inflight;
pub(crate) mod rc;
pub(crate) mod receive;
pub(crate) mod requester;
mod segmentation;
pub(crate) mod uc;
pub(crate) mod ud;

use crate::attr::{QpState, QpType};
use crate::event::Event;
use crate::explain::{Explanation, PacketCause, TimerCause};
use crate::qp::Qp;
use crate::shared::Shared;
use crate::work::{Completion, CompletionOp, Status};
use adverb_wire::{Instant, Operation, Packet, QpNumber};

/// A completion with everything but its outcome blank.
#[inline]
pub(crate) fn completion(qp: &Qp, now: Instant, wr_id: u64, op: CompletionOp, status: Status) -> Completion {
    Completion {
        wr_id,
        qp: qp.num,
        src_qp: QpNumber::new(0),
        byte_len: 0,
        immediate: 0,
        status,
        op,
        has_immediate: false,
        has_invalidate: false,
        has_grh: false,
        solicited: false,
        sl: 0,
        vendor: 0,
        timestamp_ns: now.as_ps() / 1000,
    }
}

/// Why a work request failed, for its explanation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub status: Status,
    pub rule: &'static str,
    pub packet: Option<PacketCause>,
    pub timer: Option<TimerCause>,
}

impl Cause {
    pub const fn local(status: Status, rule: &'static str) -> Self {
        Cause { status, rule, packet: None, timer: None }
    }
}

/// Records the cause of an error completion.
pub(crate) fn explain(qp: &Qp, sh: &mut Shared, now: Instant, wr_id: u64, cause: &Cause) {
    sh.explain(Explanation {
        at: now,
        id: qp.id,
        qp: qp.num,
        peer: qp.peer,
        wr_id,
        status: cause.status,
        packet: cause.packet,
        timer: cause.timer,
        rule: cause.rule,
    });
}

/// Takes a queue pair to ERR and flushes both queues (IBTA 10.3.1.5). What the responder still owes
/// (a NAK, READ responses before it) is sent all the same.
pub(crate) fn enter_error(qp: &mut Qp, sh: &mut Shared, now: Instant) {
    if qp.state == QpState::Err {
        return;
    }
    qp.state = QpState::Err;
    qp.draining = false;
    qp.deadline = Instant::NEVER;
    requester::flush(qp, sh, now);
    receive::flush(qp, sh, now);
    if qp.srq().is_some() && qp.qp_type != QpType::XrcRecv {
        sh.event(Event::LastWqeReached(qp.id));
    }
}

/// A received packet as the cause of an error.
pub(crate) fn received(packet: &Packet) -> PacketCause {
    let acknowledges = packet.bth.opcode.operation() == Operation::Acknowledge;
    PacketCause {
        received: true,
        opcode: Some(packet.bth.opcode),
        psn: packet.bth.psn,
        syndrome: acknowledges.then(|| packet.aeth.syndrome.wire()),
    }
}
