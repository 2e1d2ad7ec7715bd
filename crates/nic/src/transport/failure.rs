//! How work requests fail: the oldest with its cause, the others flushed behind it (IBTA 10.3.1.5, 10.3.1.6).

use crate::attr::{QpState, QpType};
use crate::event::Event;
use crate::explain::Cause;
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::wqe::WqeOp;
use crate::state::NicState;
use crate::transport::receive;
use crate::transport::report::{completion, explain};
use crate::work::Status;
use adverb_wire::Instant;

/// The oldest WQE fails: error completion, then everything behind it is flushed.
pub(crate) fn fail_oldest(qp: &mut Qp, nic: &mut NicState, now: Instant, cause: &Cause) {
    if let Some(entry) = qp.requester.oldest() {
        let wr_id = qp.requester.wr_id(entry.block);
        explain(qp, nic, now, wr_id, cause);
        qp.requester.head = qp.requester.head.wrapping_add(1);
        let mut done = completion(qp, now, wr_id, entry.op.completion(), cause.status);
        done.vendor = cause.packet.and_then(|p| p.syndrome).unwrap_or(0) as u32;
        nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: entry.end_block() }));
    }
    if qp.is_datagram() || qp.qp_type == QpType::Uc {
        // Unreliable services stop sending only (IBTA 10.3.1.6).
        flush_sends(qp, nic, now);
        qp.state = QpState::Sqe;
        nic.note_state(qp.num, qp.state);
        return;
    }
    enter_error(qp, nic, now);
}

/// Flushes every posted send (IBTA 10.3.1.5): in flight first, then what was never fetched.
pub(crate) fn flush_sends(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    while let Some(entry) = qp.requester.oldest() {
        qp.requester.head = qp.requester.head.wrapping_add(1);
        flush_one(qp, nic, now, entry.block, entry.end_block(), entry.op);
    }
    if qp.sq.is_cross() {
        flush_cross(qp, nic, now);
    }
    while qp.sq.has_unfetched() {
        let block = qp.sq.fetched;
        let available = qp.sq.posted.wrapping_sub(block);
        let (op, blocks) = match qp.sq.ring.decode(block, available, qp.sq.layout()) {
            Ok(wqe) => (wqe.op, wqe.blocks()),
            Err(_) => (WqeOp::Nop, 1),
        };
        qp.sq.fetched = block.wrapping_add(blocks);
        flush_one(qp, nic, now, block, qp.sq.fetched, op);
    }
    qp.requester.forget();
}

/// What a cross-channel queue has not fetched: no further than was posted, however far it was enabled.
#[cold]
fn flush_cross(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    nic.stop_waiting(qp.index());
    let Some(cross) = nic.cross.get_mut(qp.index()) else { return };
    let end = cross.posted;
    let left = end.wrapping_sub(qp.sq.fetched) as i32;
    let mut block = if left > 0 { qp.sq.fetched } else { end };
    let mut flushed = Vec::new();
    while block != end {
        let available = end.wrapping_sub(block);
        let (op, blocks) = match cross.host.decode(block, available, qp.sq.layout()) {
            Ok(wqe) => (wqe.op, wqe.blocks()),
            Err(_) => (WqeOp::Nop, 1),
        };
        flushed.push((block, block.wrapping_add(blocks), op));
        block = block.wrapping_add(blocks);
    }
    // Nothing is left to fetch; what is posted from now on is flushed as well.
    cross.cached = end;
    (qp.sq.fetched, qp.sq.posted) = (end, end);
    for (block, end_block, op) in flushed {
        flush_one(qp, nic, now, block, end_block, op);
    }
}

fn flush_one(qp: &mut Qp, nic: &mut NicState, now: Instant, block: u32, end_block: u32, op: WqeOp) {
    let done = completion(qp, now, qp.requester.wr_id(block), op.completion(), Status::WorkRequestFlushed);
    nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: end_block }));
}

/// Takes a queue pair to ERR and flushes both queues (IBTA 10.3.1.5). What the responder still owes
/// (a NAK, READ responses before it) is sent all the same.
pub(crate) fn enter_error(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    if qp.state == QpState::Err {
        return;
    }
    qp.state = QpState::Err;
    nic.note_state(qp.num, qp.state);
    qp.draining = false;
    qp.deadline = Instant::NEVER;
    flush_sends(qp, nic, now);
    receive::flush(qp, nic, now);
    if qp.srq().is_some() && qp.qp_type != QpType::XrcRecv {
        nic.event(Event::LastWqeReached(qp.id));
    }
}
