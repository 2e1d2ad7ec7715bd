//! Go-back-N, the recovery that IBTA has (9.7.5, 9.7.6): what acknowledgements, READ responses and timers do
//! to the requester.
//!
//! `una` only moves forward over what is certain: an ACK covers everything up to its PSN except a
//! READ or atomic that has no answer yet. An acknowledgement that runs past such a request says that
//! the answer was lost; the request is sent again, a READ from its first missing byte. Answers are
//! taken in order only, so `una` inside a READ is the next response expected.

use crate::congestion;
use crate::engine::execute::execute;
use crate::engine::fetch::fetch_or_chain;
use crate::engine::step::{Next, SendStep};
use crate::explain::{Cause, received};
use crate::frame::TxFrame;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::silence::{Excused, Silence};
use crate::state::NicState;
use crate::transport::failure::fail_oldest;
use crate::transport::inflight::Inflight;
use crate::transport::rc::{read_answer, responder, retry};
use crate::transport::requester::{self, complete_oldest};
use crate::work::Status;
use adverb_wire::{Instant, NakCode, Operation, Packet, Psn, Syndrome};

/// Takes in a request, or an answer to one.
#[inline]
pub(super) fn on_packet(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    if packet.bth.opcode.operation().is_response() {
        on_response(qp, nic, now, packet, payload);
    } else {
        responder::on_request(qp, nic, now, packet, payload);
    }
}

/// One step: what the peer is owed, or else the requester's next piece of work.
#[inline(always)]
pub(super) fn step(qp: &mut Qp, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> SendStep {
    if responder::next_packet(qp, nic, now, out) {
        return SendStep::Answer;
    }
    match requester::next(qp) {
        Next::Idle => SendStep::Idle,
        Next::Fetch => fetch_or_chain(qp, nic, now),
        Next::Execute => execute(qp, nic, now),
        Next::Packet => {
            let window = qp.requester.window.packets();
            let Some(made) = requester::packet(qp, nic, now, out, window) else {
                return SendStep::Idle;
            };
            if made.new && made.last && goes_on(qp, nic) {
                out.packet.bth.ack_req = false;
            }
            requester::leave(qp, nic, now, out, made);
            SendStep::Packet
        }
    }
}

/// Whether an acknowledgement of the packet at hand, the last of its message, need not be asked for: nobody
/// waits for its completion, and another message follows at once, with which one is asked for (IBTA 9.7.5.1.2
/// leaves it to the requester). Not so in the last quarter of the window, which must move, nor where packets
/// are sent at a rate: what follows does not follow at once.
#[inline]
fn goes_on(qp: &Qp, nic: &NicState) -> bool {
    let paced = qp.control.is_some() || nic.congestion.ack_every > 0;
    if !qp.sq.has_unfetched() || qp.sq.is_written_by_program() || paced {
        return false;
    }
    let wqe = qp.requester.loaded();
    let entry = qp.requester.entry(qp.requester.cursor);
    if wqe.signaled || !matches!(wqe.op, WqeOp::Write | WqeOp::Send) || entry.packets > 1 {
        return false;
    }
    let next = WqeOp::from_byte(qp.sq.ring.peek(qp.sq.fetched).0);
    let (window, sent) = (qp.requester.window.packets() as i32, entry.psn.since(qp.requester.una));
    matches!(next, Some(WqeOp::Write | WqeOp::Send)) && sent < window - window / 4
}

/// Takes in an ACK, a NAK, a READ response or an atomic's answer.
#[inline]
fn on_response(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet, payload: &Payload<'_>) {
    let psn = packet.bth.psn;
    if !psn.is_before(qp.requester.sent) {
        nic.counters.drop_ghost_ack += 1;
        return;
    }
    if psn.is_before(qp.requester.una) {
        nic.counters.drop_duplicate += 1;
        return;
    }
    match packet.bth.opcode.operation() {
        Operation::Acknowledge => on_acknowledge(qp, nic, now, packet),
        Operation::AtomicAcknowledge => on_atomic_answer(qp, nic, now, packet),
        _ => on_read_response(qp, nic, now, packet, payload),
    }
}

fn on_acknowledge(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet) {
    let psn = packet.bth.psn;
    if packet.bth.becn {
        congestion::on_echo(qp);
    }
    match packet.aeth.syndrome {
        Syndrome::Ack { .. } => {
            nic.counters.acks_received += 1;
            acknowledge_before(qp, nic, now, psn.next());
        }
        Syndrome::RnrNak { timer } => {
            nic.counters.rnr_naks_received += 1;
            if acknowledge_before(qp, nic, now, psn) {
                on_rnr_nak(qp, nic, now, packet, timer);
            }
        }
        Syndrome::Nak(NakCode::PsnSequenceError) => {
            nic.counters.sequence_naks_received += 1;
            // While the receiver is being waited for, its NAK of what was sent behind the refused message
            // says nothing new, and must neither end the wait nor cost a retry: Linux's rxe sends one
            // (9.7.5.2.8).
            if acknowledge_before(qp, nic, now, psn) && !qp.requester.rnr_wait {
                let rule = "the responder saw a gap in the PSNs more often than the retry count allows (IBTA \
                    9.7.5.2.2)";
                let status = Status::TransportRetryExceeded;
                let cause = Cause { packet: Some(received(packet)), ..Cause::local(status, rule) };
                if retry::spend_retry(qp, nic, now, &cause) {
                    congestion::on_loss(qp, nic, false, now);
                    send_again(qp, nic, now);
                }
            }
        }
        Syndrome::Nak(code) => {
            nic.counters.error_naks_received += 1;
            if acknowledge_before(qp, nic, now, psn) {
                fail_oldest(qp, nic, now, &retry::nak_cause(code, packet));
            }
        }
        Syndrome::Reserved(_) => nic.counters.drop_syndrome += 1,
    }
}

/// Marks all before `end` as acknowledged. False when it could not get there: a READ or atomic on the
/// way has no answer, which makes `end` an implied NAK (IBTA 9.7.5.1.4, C9-139).
fn acknowledge_before(qp: &mut Qp, nic: &mut NicState, now: Instant, end: Psn) -> bool {
    let before = qp.requester.una;
    let mut finished = 0;
    let mut reached = true;
    while let Some(entry) = qp.requester.oldest() {
        if entry.packets == 0 {
            if qp.requester.head_failed() {
                break;
            }
            complete_oldest(qp, nic, now, &entry, 0);
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
        complete_oldest(qp, nic, now, &entry, 0);
        finished += 1;
    }
    if finished > 1 {
        nic.counters.acks_coalesced += 1;
    }
    progressed(qp, nic, now, before);
    if !reached {
        lost_answer(qp, nic, now);
    }
    reached
}

/// Bookkeeping after `una` may have moved.
#[inline]
fn progressed(qp: &mut Qp, nic: &mut NicState, now: Instant, before: Psn) {
    if qp.requester.una != before {
        congestion::on_ack(qp, nic, before, now);
        let r = &mut qp.requester;
        r.retries = qp.attr.retry_cnt;
        r.rnr_retries = qp.attr.rnr_retry;
        r.expiries = 0;
        r.excused = Excused::default();
        r.implied_nak = false;
        r.rnr_wait = false;
        r.catch_up();
        restart_timer(qp, nic, now);
    }
    requester::settle(qp, nic, now);
}

/// The timer runs while something is out (IBTA 9.7.6.1.3).
#[inline]
fn restart_timer(qp: &mut Qp, nic: &NicState, now: Instant) {
    qp.deadline = if qp.requester.awaits_acknowledgement() && qp.has_timeout() {
        now + qp.rto(nic)
    } else {
        Instant::NEVER
    };
}

/// An answer is missing: ask again, once for each place; the timer takes care of the rest.
fn lost_answer(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    if qp.requester.implied_nak {
        return;
    }
    nic.counters.implied_naks += 1;
    qp.requester.implied_nak = true;
    congestion::on_loss(qp, nic, false, now);
    qp.requester.go_back();
}

/// The receiver is not ready: nothing is sent for as long as it says, and then everything from the refused
/// request on.
fn on_rnr_nak(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet, code: u8) {
    if retry::spend_rnr_retry(qp, nic, now, Some(packet), code) {
        qp.requester.go_back();
        retry::wait_for_receiver(qp, now, code);
    }
}

/// Goes back to the oldest unacknowledged PSN.
fn send_again(qp: &mut Qp, nic: &NicState, now: Instant) {
    qp.requester.rnr_wait = false;
    qp.requester.go_back();
    restart_timer(qp, nic, now);
}

/// The queue pair's timer ran out: the RNR wait is over, or an acknowledgement is overdue. `silence` is what
/// the driver knows of that.
pub(super) fn on_timeout(qp: &mut Qp, nic: &mut NicState, now: Instant, silence: Silence) {
    let waited = qp.rto(nic) + now.since(qp.deadline);
    qp.deadline = Instant::NEVER;
    if qp.requester.rnr_wait {
        qp.requester.rnr_wait = false;
        restart_timer(qp, nic, now);
        return;
    }
    if !qp.requester.awaits_acknowledgement() {
        return;
    }
    let excused = retry::is_excused(qp, nic, silence, waited);
    if excused && silence == Silence::Unread {
        restart_timer(qp, nic, now);
        return;
    }
    qp.requester.implied_nak = false;
    if excused {
        send_again(qp, nic, now);
        return;
    }
    nic.counters.timeouts += 1;
    qp.requester.expiries = qp.requester.expiries.saturating_add(1);
    if retry::costs_retry(qp, nic) {
        let cause = retry::unanswered(qp, nic, qp.requester.una, silence);
        if !retry::spend_retry(qp, nic, now, &cause) {
            return;
        }
    }
    congestion::on_loss(qp, nic, true, now);
    send_again(qp, nic, now);
}

/// The READ or atomic whose answer this PSN is, with everything before it acknowledged.
fn answered(qp: &mut Qp, nic: &mut NicState, now: Instant, psn: Psn, read: bool) -> Option<(Inflight, Wqe)> {
    if !acknowledge_before(qp, nic, now, psn) {
        return None;
    }
    let entry = qp.requester.oldest()?;
    let matches = entry.op.awaits_response() && (entry.op == WqeOp::Read) == read;
    if !matches || qp.requester.una != psn || !psn.is_before(entry.psn.add(entry.packets)) {
        nic.counters.drop_stray_response += 1;
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
            fail_oldest(qp, nic, now, &Cause::local(Status::LocalQpOperation, rule));
            None
        }
    }
}

fn on_read_response(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet, payload: &Payload<'_>) {
    let psn = packet.bth.psn;
    let Some((entry, wqe)) = answered(qp, nic, now, psn, true) else { return };
    let k = psn.since(entry.psn) as u32;
    if let Err(cause) = read_answer::place(qp, nic, &wqe, k, entry.packets, packet, payload) {
        fail_oldest(qp, nic, now, &cause);
        return;
    }
    qp.requester.una = psn.next();
    if k + 1 == entry.packets {
        qp.requester.outstanding_reads -= 1;
        complete_oldest(qp, nic, now, &entry, wqe.len);
    }
    progressed(qp, nic, now, psn);
}

fn on_atomic_answer(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet) {
    let psn = packet.bth.psn;
    let Some((entry, wqe)) = answered(qp, nic, now, psn, false) else { return };
    if let Err(cause) = read_answer::place(qp, nic, &wqe, 0, 1, packet, &Payload::elided(0)) {
        fail_oldest(qp, nic, now, &cause);
        return;
    }
    qp.requester.una = psn.next();
    qp.requester.outstanding_reads -= 1;
    complete_oldest(qp, nic, now, &entry, 8);
    progressed(qp, nic, now, psn);
}
