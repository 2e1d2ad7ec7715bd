//! The requester: sends the packets of WQEs that the engine has fetched and executed, and completes them
//! (IBTA 9.7.2, 9.8).
//!
//! Every service shares it. A WQE that has been executed stands in the in-flight ring until its work
//! is done: for an unreliable queue when its last packet has left, for a reliable one when it is
//! acknowledged or answered ([`super::rc`]). The cursor is where the next packet comes
//! from; going back N packets is moving the cursor.
//!
//! ```text
//!   send queue:   released .... fetched ........ posted
//!   in flight:        head ... cursor ... tail
//!                       una             sent    next_psn
//! ```

use crate::attr::QpState;
use crate::congestion;
use crate::engine::step::{Next, SendStep};
use crate::event::Event;
use crate::explain::Cause;
use crate::frame::TxFrame;
use crate::memory::AccessFault;
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::wqe::{GatherCursor, Wqe};
use crate::state::NicState;
use crate::tally;
use crate::transport::failure::fail_oldest;
use crate::transport::inflight::Inflight;
use crate::transport::report::completion;
use crate::transport::segmentation;
use crate::work::Status;
use adverb_wire::{Instant, Packet, Psn};

/// A packet that was put into a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    /// Its place in its message.
    pub k: u32,
    /// One past the last place that it stands for: a READ's request stands for all its answers.
    pub end: u32,
    /// It was never sent before.
    pub new: bool,
    /// It is the last one of its WQE.
    pub last: bool,
}

/// What the sending half does next: fetch, execute, or one [`packet`].
#[inline(always)]
pub(crate) fn next(qp: &mut Qp) -> Next {
    if qp.requester.rnr_wait || !(qp.sends() || qp.state == QpState::Sqd) {
        return Next::Idle;
    }
    while qp.requester.cursor != qp.requester.tail {
        let last_failed = qp.requester.has_failed && qp.requester.cursor.wrapping_add(1) == qp.requester.tail;
        if last_failed {
            return Next::Idle;
        }
        if qp.requester.entry(qp.requester.cursor).packets > 0 {
            return Next::Packet;
        }
        qp.requester.cursor = qp.requester.cursor.wrapping_add(1);
    }
    if qp.draining || !qp.sends() || qp.requester.has_failed {
        return Next::Idle;
    }
    if qp.requester.is_loaded { Next::Execute } else { Next::Fetch }
}

/// PSNs that a WQE takes.
#[inline]
pub(crate) fn packets_of(qp: &Qp, wqe: &Wqe) -> u32 {
    if wqe.op.awaits_response() && qp.dialect.numbers_answers_apart() {
        1
    } else {
        wqe.len.div_ceil(qp.mtu()).max(1)
    }
}

/// Puts the next packet of the WQE at the cursor into `out`, if it may be sent: with `limit` packets
/// unacknowledged at most. The caller may still add to it; then it [leaves](leave).
#[inline(always)]
pub(crate) fn packet(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
    limit: u32,
) -> Option<Made> {
    let entry = *qp.requester.entry(qp.requester.cursor);
    let k = qp.requester.cursor_packet;
    let psn = entry.psn.add(k);
    if qp.is_reliable() && psn.since(qp.requester.una) >= limit as i32 {
        return None;
    }
    if !congestion::may_send(qp, now) {
        return None;
    }
    if !qp.requester.is_loaded && !load_again(qp, nic, now, &entry) {
        return None;
    }
    let wqe = *qp.requester.loaded();
    let end = match build(qp, nic, &wqe, &entry, k, out) {
        Ok(end) => end,
        Err(fault) => {
            abandon(qp, nic, now, Cause::local(Status::LocalProtection, fault.rule()));
            return None;
        }
    };
    if wqe.op.is_atomic() {
        let wqe = *qp.requester.loaded();
        segmentation::operands(qp, &wqe, qp.requester.operands(), out);
    }
    let after = entry.psn.add(end);
    let new = !psn.is_before(qp.requester.sent);
    if !new {
        nic.counters.retransmitted_packets += 1;
    }
    if qp.requester.sent.is_before(after) {
        qp.requester.sent = after;
    }
    Some(Made { k, end, new, last: end == entry.packets })
}

/// The packet is complete and leaves.
#[inline(always)]
pub(crate) fn leave(qp: &mut Qp, nic: &mut NicState, now: Instant, out: &mut TxFrame, made: Made) {
    let sent = if made.new { congestion::Sent::New } else { congestion::Sent::Again };
    congestion::on_sent(qp, nic, &mut out.packet, sent, now);
    advance(qp, made);
    if qp.is_reliable() {
        if qp.deadline == Instant::NEVER && qp.has_timeout() {
            qp.deadline = now + qp.rto(nic);
        }
    } else if made.last {
        // Nobody acknowledges: the message is done when its last packet has left (IBTA 9.8.3.2).
        qp.requester.una = qp.requester.sent;
        settle_unreliable(qp, nic, now);
    }
}

/// Puts packet `index` of a WQE into `out`, without an atomic's operands; the one after it.
#[inline(always)]
pub(crate) fn build(
    qp: &mut Qp,
    nic: &NicState,
    wqe: &Wqe,
    entry: &Inflight,
    index: u32,
    out: &mut TxFrame,
) -> Result<u32, AccessFault> {
    out.payload.clear();
    out.packet = Packet { flow: qp.flow(nic), ..Packet::default() };
    out.path = qp.path;
    let end = match wqe.op {
        op if op.awaits_response() => {
            // A copy: see `execute_wqe`.
            let wqe = *wqe;
            segmentation::request(qp, &wqe, index, &mut out.packet);
            entry.packets
        }
        _ => {
            segmentation::message(qp, nic, wqe, index, out)?;
            index + 1
        }
    };
    out.packet.bth.psn = entry.psn.add(index);
    if !qp.is_datagram() {
        out.packet.bth.dest_qp = qp.peer;
    }
    Ok(end)
}

#[inline]
fn advance(qp: &mut Qp, made: Made) {
    if made.last {
        qp.requester.cursor = qp.requester.cursor.wrapping_add(1);
        qp.requester.cursor_packet = 0;
        qp.requester.is_loaded = false;
    } else {
        qp.requester.cursor_packet = made.end;
    }
}

/// Keeps a WQE that was just read.
#[inline]
pub(crate) fn load(qp: &mut Qp, wqe: &Wqe) {
    qp.requester.load(wqe);
    if wqe.op.is_atomic() {
        let wqe = *wqe;
        qp.requester.keep_operands(qp.sq.ring.operands(&wqe));
    }
}

/// Reads the WQE at the cursor again, after going back. False when it cannot be sent any more.
pub(crate) fn load_again(qp: &mut Qp, nic: &mut NicState, now: Instant, entry: &Inflight) -> bool {
    match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
        Ok(wqe) if packets_of(qp, &wqe) == entry.packets && wqe.op == entry.op => {
            load(qp, &wqe);
            true
        }
        _ => {
            abandon(qp, nic, now, Cause::local(Status::LocalQpOperation, CHANGED));
            false
        }
    }
}

/// Builds a packet that the cursor has passed once more: `build` is given the WQE as memory has it, its place
/// in flight, and which of its packets it is. The WQE, its index in flight and the packet's; or the step to
/// return: none if it is no more in flight, an idle one if its WQE cannot be sent again, which fails it.
pub(crate) fn build_again<T>(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    psn: Psn,
    build: impl FnOnce(&mut Qp, &mut NicState, &Wqe, &Inflight, u32) -> Result<T, AccessFault>,
) -> Result<(Wqe, u32, u32), Option<SendStep>> {
    let index = qp.requester.find(psn).ok_or(None)?;
    let entry = *qp.requester.entry(index);
    let wqe = match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
        Ok(wqe) if packets_of(qp, &wqe) == entry.packets && wqe.op == entry.op => wqe,
        _ => {
            abandon_at(qp, nic, now, index, Cause::local(Status::LocalQpOperation, CHANGED));
            return Err(Some(SendStep::Idle));
        }
    };
    let at = qp.requester.gather();
    qp.requester.set_gather(GatherCursor { segment: wqe.data_segment, ..Default::default() });
    let k = psn.since(entry.psn) as u32;
    let built = build(qp, nic, &wqe, &entry, k);
    qp.requester.set_gather(at);
    if let Err(fault) = built {
        abandon_at(qp, nic, now, index, Cause::local(Status::LocalProtection, fault.rule()));
        return Err(Some(SendStep::Idle));
    }
    Ok((wqe, index, k))
}

/// Rule of a WQE that cannot be sent again.
pub(crate) const CHANGED: &str = "the WQE was changed in memory after it was sent, and has to be sent again";

/// As [`abandon`], for a WQE that the cursor has passed.
pub(crate) fn abandon_at(qp: &mut Qp, nic: &mut NicState, now: Instant, index: u32, cause: Cause) {
    qp.requester.cursor = index;
    qp.requester.cursor_packet = 0;
    qp.requester.is_loaded = false;
    abandon(qp, nic, now, cause);
}

/// The WQE at the cursor cannot be sent any further: it fails once all before it are done. What was
/// executed after it has not been sent (the cursor never passes a failing WQE) and is flushed.
fn abandon(qp: &mut Qp, nic: &mut NicState, now: Instant, cause: Cause) {
    if qp.requester.cursor == qp.requester.head {
        fail_oldest(qp, nic, now, &cause);
        return;
    }
    // Give up the WQEs behind it: they go back to the send queue to be flushed with the rest.
    let keep = qp.requester.cursor.wrapping_add(1);
    if keep != qp.requester.tail {
        qp.sq.fetched = qp.requester.entry(keep).block;
        qp.requester.tail = keep;
    }
    qp.requester.fail(cause);
}

/// Completes everything at the head that is done: local operations, and a failure whose turn came.
pub(crate) fn settle(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    while let Some(entry) = qp.requester.oldest() {
        if qp.requester.head_failed() {
            if let Some(cause) = qp.requester.take_failure() {
                fail_oldest(qp, nic, now, &cause);
            }
            return;
        }
        if entry.packets > 0 {
            break;
        }
        complete_oldest(qp, nic, now, &entry, 0);
        // Who went back may stand at it.
        qp.requester.pass_done();
    }
    if qp.requester.is_empty() && qp.draining && !qp.held {
        qp.draining = false;
        if qp.attr.sqd_notify {
            nic.event(Event::SqDrained(qp.id));
        }
    }
}

fn settle_unreliable(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    while let Some(entry) = qp.requester.oldest() {
        if qp.requester.head == qp.requester.cursor || qp.requester.head_failed() {
            break;
        }
        if nic.tallies {
            tally::sent(qp, nic, &entry);
        }
        complete_oldest(qp, nic, now, &entry, 0);
    }
    settle(qp, nic, now);
}

/// The oldest WQE is done: completion if it asked for one.
#[inline]
pub(crate) fn complete_oldest(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    entry: &Inflight,
    byte_len: u32,
) {
    qp.requester.head = qp.requester.head.wrapping_add(1);
    qp.requester.is_answering = false;
    if entry.signaled {
        let wr_id = qp.requester.wr_id(entry.block);
        let mut done = completion(qp, now, wr_id, entry.op.completion(), Status::Success);
        done.byte_len = byte_len;
        nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: entry.end_block() }));
    }
}
