//! What the application is told: completions, and why one says that something went wrong.

use crate::explain::{Cause, Explanation};
use crate::qp::Qp;
use crate::state::NicState;
use crate::work::{Completion, CompletionOp, Status};
use adverb_wire::{Instant, QpNumber};

/// A completion with everything but its outcome blank.
#[inline]
pub(crate) fn completion(qp: &Qp, now: Instant, wr_id: u64, op: CompletionOp, status: Status) -> Completion {
    completion_of(qp.num, now, wr_id, op, status)
}

/// The same, of a queue pair by its number.
#[inline]
pub(crate) fn completion_of(
    qp: QpNumber,
    now: Instant,
    wr_id: u64,
    op: CompletionOp,
    status: Status,
) -> Completion {
    Completion {
        wr_id,
        qp,
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

/// Records the cause of an error completion.
pub(crate) fn explain(qp: &Qp, nic: &mut NicState, now: Instant, wr_id: u64, cause: &Cause) {
    nic.explain(Explanation {
        at: now,
        id: qp.id,
        qp: qp.num,
        peer: qp.peer,
        wr_id,
        status: cause.status,
        packet: cause.packet,
        timer: cause.timer,
        rule: cause.rule,
        after: cause.after,
    });
}
