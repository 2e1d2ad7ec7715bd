//! Bringing a queue pair into the row of those that are ready.

use super::ready::Ready;
use crate::attr::QpState;
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::transport::failure::flush_sends;
use adverb_wire::Instant;

/// Queues a queue pair for transmission.
#[inline]
pub(crate) fn wake(pair: &mut QueuePair, ready: &mut Ready) {
    let QueuePair { qp, mode } = pair;
    if qp.ready || qp.parked {
        return;
    }
    let sends = qp.sends() || qp.state == QpState::Sqd;
    let unsent = !qp.requester.is_empty() || qp.sq.has_unfetched();
    if (sends && unsent) || mode.owes(qp) {
        qp.ready = true;
        ready.push(qp.index());
    }
}

#[inline]
pub(crate) fn doorbell(pair: &mut QueuePair, nic: &mut NicState, ready: &mut Ready, now: Instant) {
    match pair.qp.state {
        QpState::Err | QpState::Sqe => flush_sends(&mut pair.qp, nic, now),
        _ => wake(pair, ready),
    }
}
