//! The requester's answers to acknowledgements, READ responses and timers: go-back-N (IBTA 9.7.5, 9.7.6).
//!
//! `una` only moves forward over what is certain: an ACK covers everything up to its PSN except a
//! READ or atomic that has no answer yet. An acknowledgement that runs past such a request says that
//! the answer was lost; the request is sent again, a READ from its first missing byte. Answers are
//! taken in order only, so `una` inside a READ is the next response expected.

use crate::congestion;
use crate::explain::{PacketCause, TimerCause};
use crate::memory::{AccessFault, Payload, dma};
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::shared::Shared;
use crate::transport::rc::{irn, rnr_time};
use crate::transport::requester::{self, Inflight, complete_oldest, fail_oldest};
use crate::transport::{Cause, received};
use crate::work::Status;
use adverb_wire::{Instant, NakCode, Operation, Packet, Psn, Syndrome};

/// RNR retry count that stands for "without limit" (IBTA 9.7.5.2.8).
const RNR_UNLIMITED: u8 = 7;

/// Takes in an ACK, a NAK, a READ response or an atomic's answer.
#[inline]
pub(crate) fn on_response(
    qp: &mut Qp,
    sh: &mut Shared,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let psn = packet.bth.psn;
    if !psn.is_before(qp.requester.sent) {
        sh.counters.drop_ghost_ack += 1;
        return;
    }
    if psn.is_before(qp.requester.una) {
        sh.counters.drop_duplicate += 1;
        return;
    }
    match packet.bth.opcode.operation() {
        Operation::Acknowledge => on_acknowledge(qp, sh, now, packet),
        Operation::AtomicAcknowledge => on_atomic_answer(qp, sh, now, packet),
        _ => on_read_response(qp, sh, now, packet, payload),
    }
}

fn on_acknowledge(qp: &mut Qp, sh: &mut Shared, now: Instant, packet: &Packet) {
    let psn = packet.bth.psn;
    match packet.aeth.syndrome {
        Syndrome::Ack { .. } => {
            sh.counters.acks_received += 1;
            acknowledge_before(qp, sh, now, psn.next());
        }
        Syndrome::RnrNak { timer } => {
            sh.counters.rnr_naks_received += 1;
            if acknowledge_before(qp, sh, now, psn) {
                on_rnr_nak(qp, sh, now, packet, timer);
            }
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            sh.counters.sequence_naks_received += 1;
            // While the receiver is being waited for, its NAK of what was sent behind the refused message says
            // nothing new, and must neither end the wait nor cost a retry: Linux's rxe sends one (9.7.5.2.8).
            if acknowledge_before(qp, sh, now, psn) && !qp.requester.rnr_wait {
                let rule = "the responder saw a gap in the PSNs more often than the retry count allows (IBTA 9.7.5.2.2)";
                retry(qp, sh, now, Some(received(packet)), None, rule);
            }
        }
        Syndrome::Nak(code) => {
            sh.counters.error_naks_received += 1;
            if acknowledge_before(qp, sh, now, psn) {
                fail_oldest(qp, sh, now, &nak_cause(code, packet));
            }
        }
        Syndrome::Reserved(_) => sh.counters.drop_syndrome += 1,
    }
}

pub(super) fn nak_cause(code: NakCode, packet: &Packet) -> Cause {
    let (status, rule) = match code {
        NakCode::RemoteAccessError => (
            Status::RemoteAccess,
            "the responder refused the access: key, bounds or rights (NAK remote access error, IBTA 9.7.5.2.4)",
        ),
        NakCode::RemoteOperationalError => (
            Status::RemoteOperation,
            "the responder failed for reasons of its own (NAK remote operational error, IBTA 9.7.5.2.5)",
        ),
        _ => (
            Status::RemoteInvalidRequest,
            "the responder found the request invalid: operation, length, or a receive too small (NAK invalid request, IBTA 9.7.5.2.3)",
        ),
    };
    Cause { status, rule, packet: Some(received(packet)), timer: None }
}

/// Marks all before `end` as acknowledged. False when it could not get there: a READ or atomic on the
/// way has no answer, which makes `end` an implied NAK (IBTA 9.7.5.1.4, C9-139).
fn acknowledge_before(qp: &mut Qp, sh: &mut Shared, now: Instant, end: Psn) -> bool {
    let before = qp.requester.una;
    let mut finished = 0;
    let mut reached = true;
    while let Some(entry) = qp.requester.oldest() {
        if entry.packets == 0 {
            if qp.requester.head_failed() {
                break;
            }
            complete_oldest(qp, sh, now, &entry, 0);
            continue;
        }
        if !entry.psn.is_before(end) {
            break;
        }
        if entry.op.awaits_response() {
            // Inside a READ, everything before the next response expected is certain.
            reached = qp.requester.una == end;
            break;
        }
        let after = entry.psn.add(entry.packets);
        if end.is_before(after) {
            qp.requester.una = end;
            break;
        }
        qp.requester.una = after;
        complete_oldest(qp, sh, now, &entry, 0);
        finished += 1;
    }
    if finished > 1 {
        sh.counters.acks_coalesced += 1;
    }
    progressed(qp, sh, now, before);
    if !reached {
        lost_answer(qp, sh);
    }
    reached
}

/// Bookkeeping after `una` may have moved.
#[inline]
fn progressed(qp: &mut Qp, sh: &mut Shared, now: Instant, before: Psn) {
    if qp.requester.una != before {
        congestion::on_ack(qp, sh, before, now);
        let r = &mut qp.requester;
        r.retries = qp.attr.retry_cnt;
        r.rnr_retries = qp.attr.rnr_retry;
        r.expiries = 0;
        r.implied_nak = false;
        r.rnr_wait = false;
        r.catch_up();
        restart_timer(qp, sh, now);
    }
    requester::settle(qp, sh, now);
}

/// The timer runs while something is out (IBTA 9.7.6.1.3).
#[inline]
fn restart_timer(qp: &mut Qp, sh: &Shared, now: Instant) {
    qp.deadline = if qp.requester.awaits_acknowledgement() && qp.has_timeout() {
        now + qp.rto(sh)
    } else {
        Instant::NEVER
    };
}

/// An answer is missing: ask again, once for each place; the timer takes care of the rest.
fn lost_answer(qp: &mut Qp, sh: &mut Shared) {
    if qp.requester.implied_nak {
        return;
    }
    sh.counters.implied_naks += 1;
    qp.requester.implied_nak = true;
    congestion::on_loss(qp, sh, false);
    qp.requester.go_back();
}

/// Goes back to the oldest unacknowledged PSN, or gives up when no retry is left.
fn retry(
    qp: &mut Qp,
    sh: &mut Shared,
    now: Instant,
    packet: Option<PacketCause>,
    timer: Option<TimerCause>,
    rule: &'static str,
) {
    if qp.requester.retries == 0 {
        let cause = Cause { status: Status::TransportRetryExceeded, rule, packet, timer };
        fail_oldest(qp, sh, now, &cause);
        return;
    }
    if !sh.retry_forever {
        qp.requester.retries -= 1;
    }
    qp.requester.rnr_wait = false;
    congestion::on_loss(qp, sh, timer.is_some());
    qp.requester.go_back();
    restart_timer(qp, sh, now);
}

pub(super) fn on_rnr_nak(qp: &mut Qp, sh: &mut Shared, now: Instant, packet: &Packet, code: u8) {
    if qp.requester.rnr_retries == 0 {
        let timer = TimerCause { name: "RNR timer", length: rnr_time(code), expiries: qp.attr.rnr_retry };
        let cause = Cause {
            status: Status::RnrRetryExceeded,
            rule: "the responder had no receive posted more often than the RNR retry count allows (IBTA 9.7.5.2.8)",
            packet: Some(received(packet)),
            timer: Some(timer),
        };
        fail_oldest(qp, sh, now, &cause);
        return;
    }
    if qp.requester.rnr_retries < RNR_UNLIMITED {
        qp.requester.rnr_retries -= 1;
    }
    wait_for_receiver(qp, now, code);
}

/// Sends nothing until the RNR timer is over, and then from the refused request on.
pub(super) fn wait_for_receiver(qp: &mut Qp, now: Instant, code: u8) {
    // It answers, so it is there: only silence and gaps use up the transport's retries.
    qp.requester.retries = qp.attr.retry_cnt;
    qp.requester.expiries = 0;
    if qp.speaks_irn() {
        irn::requester::resend_all(qp);
    } else {
        qp.requester.go_back();
    }
    qp.requester.rnr_wait = true;
    qp.deadline = now + rnr_time(code);
}

/// The queue pair's timer ran out: the RNR wait is over, or an acknowledgement is overdue.
pub(crate) fn on_timeout(qp: &mut Qp, sh: &mut Shared, now: Instant) {
    if qp.speaks_irn() {
        return irn::requester::on_timeout(qp, sh, now);
    }
    qp.deadline = Instant::NEVER;
    if qp.requester.rnr_wait {
        qp.requester.rnr_wait = false;
        restart_timer(qp, sh, now);
        return;
    }
    if !qp.requester.awaits_acknowledgement() {
        return;
    }
    sh.counters.timeouts += 1;
    qp.requester.expiries = qp.requester.expiries.saturating_add(1);
    qp.requester.implied_nak = false;
    let timer = TimerCause { name: "local ACK timeout", length: qp.rto(sh), expiries: qp.requester.expiries };
    let unanswered = PacketCause { received: false, opcode: None, psn: qp.requester.una, syndrome: None };
    let rule = "the peer did not acknowledge within the timeout, retry count times over (IBTA 9.7.6.1.3)";
    retry(qp, sh, now, Some(unanswered), Some(timer), rule);
}

/// The READ or atomic whose answer this PSN is, with everything before it acknowledged.
fn answered(qp: &mut Qp, sh: &mut Shared, now: Instant, psn: Psn, read: bool) -> Option<(Inflight, Wqe)> {
    if !acknowledge_before(qp, sh, now, psn) {
        return None;
    }
    let entry = qp.requester.oldest()?;
    let matches = entry.op.awaits_response() && (entry.op == WqeOp::Read) == read;
    if !matches || qp.requester.una != psn || !psn.is_before(entry.psn.add(entry.packets)) {
        sh.counters.drop_stray_response += 1;
        return None;
    }
    if qp.requester.is_answering {
        return Some((entry, *qp.requester.answering()));
    }
    match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
        Ok(wqe) if wqe.op == entry.op => {
            qp.requester.begin_answer(&wqe);
            Some((entry, wqe))
        }
        _ => {
            let rule = "the WQE was changed in memory before its answer came";
            fail_oldest(qp, sh, now, &Cause::local(Status::LocalQpOperation, rule));
            None
        }
    }
}

fn on_read_response(qp: &mut Qp, sh: &mut Shared, now: Instant, packet: &Packet, payload: &Payload<'_>) {
    let psn = packet.bth.psn;
    let Some((entry, wqe)) = answered(qp, sh, now, psn, true) else { return };
    let offset = psn.since(entry.psn) as u32 * qp.mtu();
    let due = (wqe.len - offset.min(wqe.len)).min(qp.mtu());
    let last = psn.next() == entry.psn.add(entry.packets);
    let operation = packet.bth.opcode.operation();
    let says_last = matches!(operation, Operation::ReadResponseLast | Operation::ReadResponseOnly);
    if payload.len() != due as usize || says_last != last {
        let rule = "a READ response has another length or place than the request asked for (IBTA 9.7.5.1.6)";
        let cause = Cause { status: Status::BadResponse, rule, packet: Some(received(packet)), timer: None };
        fail_oldest(qp, sh, now, &cause);
        return;
    }
    if let Err(fault) = scatter(qp, sh, &wqe, offset, payload) {
        fail_oldest(qp, sh, now, &Cause::local(Status::LocalProtection, fault.rule()));
        return;
    }
    qp.requester.una = psn.next();
    if last {
        qp.requester.outstanding_reads -= 1;
        complete_oldest(qp, sh, now, &entry, wqe.len);
    }
    progressed(qp, sh, now, psn);
}

/// Places response bytes at `offset` of the request's scatter list.
pub(super) fn scatter(
    qp: &Qp,
    sh: &Shared,
    wqe: &Wqe,
    offset: u32,
    payload: &Payload<'_>,
) -> Result<(), AccessFault> {
    let mut skip = offset;
    let mut done = 0;
    let mut segment = wqe.data_segment;
    while done < payload.len() && segment < wqe.segments {
        let sge = qp.sq.ring.sge(wqe, segment);
        segment += 1;
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let len = ((sge.len - skip) as usize).min(payload.len() - done);
        let addr = sge.addr.wrapping_add(skip as u64);
        let span = sh.memory.check_local(qp.pd, sge.lkey, addr, len as u32, true)?;
        if !payload.is_elided() {
            dma::write(span, payload, done, len);
        }
        done += len;
        skip = 0;
    }
    if done == payload.len() { Ok(()) } else { Err(AccessFault::OutOfBounds) }
}

fn on_atomic_answer(qp: &mut Qp, sh: &mut Shared, now: Instant, packet: &Packet) {
    let psn = packet.bth.psn;
    let Some((entry, wqe)) = answered(qp, sh, now, psn, false) else { return };
    let original = packet.atomic_original.to_ne_bytes();
    if let Err(fault) = scatter(qp, sh, &wqe, 0, &Payload::from_slice(&original)) {
        fail_oldest(qp, sh, now, &Cause::local(Status::LocalProtection, fault.rule()));
        return;
    }
    qp.requester.una = psn.next();
    qp.requester.outstanding_reads -= 1;
    complete_oldest(qp, sh, now, &entry, 8);
    progressed(qp, sh, now, psn);
}
