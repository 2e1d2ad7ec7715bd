//! RDs and GDs of the stateful half: how they are made, sent again and answered.

use super::burst::{packets_of_read, widen};
use super::peer::{self, Readiness};
use super::{Names, Sent, Star, WINDOW, egress};
use crate::congestion;
use crate::engine::step::SendStep;
use crate::explain::{Cause, received};
use crate::frame::TxFrame;
use crate::limits::MAX_STAR_ATOMICS;
use crate::memory::{AccessFault, Payload};
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::silence::{Excused, Silence};
use crate::state::NicState;
use crate::transport::failure::fail_oldest;
use crate::transport::inflight::Inflight;
use crate::transport::rc::irn::{Acked, Expiry, Free, receive_ack, timeout, tx_free};
use crate::transport::rc::{read_answer, retry};
use crate::transport::requester::{self, complete_oldest};
use crate::transport::segmentation;
use crate::transport::star::registry;
use crate::work::Status;
use adverb_wire::star::{Answer, Op, Place, Stamp, StarEth, Verdict};
use adverb_wire::{Bth, Duration, Instant, Opcode, Operation, Packet, Psn, Reth, SackEth, Service};

/// Rule of requests that the protocol does not carry.
const NOT_CARRIED: &str = "StaR carries no masked atomics";
/// Rules of refusals.
const ACCESS: &str = "the stateless side refused the access: key, bounds or rights (StaR NAK access)";
const OWN_BUFFERS: &str =
    "the stateless side's own receive is at fault: key, bounds or rights (StaR NAK access, posted)";
const INVALID: &str = "the stateless side found the request invalid (StaR NAK invalid)";
const TOO_LONG: &str = "the receive of the stateless side is smaller than the message (IBTA 9.7.4.1.6)";
const MISFIT: &str = "an answer has another length than was asked for (StaR GDA)";
const CHANGED: &str = "the WQE was changed in memory before its answer came";

/// A WQE was taken into flight.
pub(super) fn on_executed(qp: &mut Qp, star: &mut Star, op: WqeOp, now: Instant) {
    if star.tx.in_flight() == 0 {
        star.moved = now;
    }
    if op.awaits_response() && !qp.requester.has_failed && !qp.requester.is_empty() {
        let (index, _) = qp.requester.newest();
        let len = qp.requester.loaded().len;
        star.reads.push_back((index, len));
    }
}

/// The next new packet of the WQE at the cursor.
pub(super) fn next_packet(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> SendStep {
    let entry = *qp.requester.entry(qp.requester.cursor);
    let k = qp.requester.cursor_packet;
    let psn = entry.psn.add(k);
    if entry.op.is_masked() {
        let cause = Cause::local(Status::LocalQpOperation, NOT_CARRIED);
        requester::abandon_at(qp, nic, now, qp.requester.cursor, cause);
        return SendStep::Idle;
    }
    let limit = star.tx_limit(qp);
    if psn.since(qp.requester.una) >= limit as i32 || !congestion::may_send(qp, now) {
        return SendStep::Idle;
    }
    // An atomic is executed once, so it can be in no other place: it waits for all before it, and all after
    // it wait for it. The numbers of atomics keep them in order among themselves.
    let is_atomic = entry.op.is_atomic();
    let in_flight = star.tx.in_flight();
    let joins = is_atomic && star.awaits_atomic && (in_flight as usize) < MAX_STAR_ATOMICS;
    if in_flight > 0 && !joins && (is_atomic || star.awaits_atomic) {
        return SendStep::Idle;
    }
    if !qp.requester.is_loaded && !requester::load_again(qp, nic, now, &entry) {
        return SendStep::Idle;
    }
    let wqe = *qp.requester.loaded();
    if k == 0 && peer::takes_receive(wqe.op) && !is_received(qp, star, nic, now, &wqe) {
        return SendStep::Idle;
    }
    if !prepare(qp, star, nic, &wqe, psn, k) {
        requester::abandon_at(qp, nic, now, qp.requester.cursor, registry::REFUSED);
        return SendStep::Idle;
    }
    star.merge(psn, qp.requester.cursor, &wqe, entry.packets);
    if let Err(fault) = build(qp, star, nic, now, &wqe, &entry, k, out) {
        let cause = Cause::local(Status::LocalProtection, fault.rule());
        requester::abandon_at(qp, nic, now, qp.requester.cursor, cause);
        return SendStep::Idle;
    }
    let room = limit - psn.since(qp.requester.una) as u32;
    let packets = packets_of_read(qp, star, wqe.op, entry.packets - k, room);
    widen(star, psn, &wqe, k, packets, qp.mtu(), out);
    nic.counters.star_bursts += u64::from(packets > 1);
    let rto = qp.rto(nic);
    if star.tx.in_flight() == 0 {
        star.moved = now;
    }
    for _ in 0..packets {
        star.tx.on_sent(&star.recovery, true, rto, now);
    }
    qp.requester.sent = psn.add(packets);
    qp.deadline = star.tx.deadline();
    congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::New, now);
    if k + packets == entry.packets {
        qp.requester.cursor = qp.requester.cursor.wrapping_add(1);
        qp.requester.cursor_packet = 0;
        qp.requester.is_loaded = false;
    } else {
        qp.requester.cursor_packet = k + packets;
    }
    SendStep::Packet
}

/// Packet `k` of the WQE at the cursor is to leave. False if no rule allows it: of a message that is not
/// allowed as a whole, no packet leaves.
fn prepare(qp: &Qp, star: &mut Star, nic: &mut NicState, wqe: &Wqe, psn: Psn, k: u32) -> bool {
    *star.packet_mut(psn) = first_copy(wqe, k, qp.mtu());
    star.place(psn, qp.requester.cursor, wqe, k * qp.mtu());
    let len = if k == 0 { u64::from(wqe.len) } else { star.packet(psn).len.into() };
    if !egress::may_leave(qp, nic, star.packet(psn), wqe.op, len) {
        return false;
    }
    star.awaits_atomic = wqe.op.is_atomic();
    if star.awaits_atomic {
        star.number_atomic(psn);
    }
    true
}

/// Whether a request has a receive of the other side. One that is too long fails.
fn is_received(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, wqe: &Wqe) -> bool {
    let readiness = peer::take_receive(qp, star, nic, now, wqe);
    if readiness == Readiness::TooLong {
        let cause = Cause::local(Status::RemoteInvalidRequest, TOO_LONG);
        requester::abandon_at(qp, nic, now, qp.requester.cursor, cause);
    }
    readiness == Readiness::Ready
}

/// Packet `k` of a WQE as it is remembered; its deadline is given when it leaves.
pub(super) fn first_copy(wqe: &Wqe, k: u32, mtu: u32) -> Sent {
    let offset = k * mtu;
    Sent {
        va: wqe.raddr.wrapping_add(offset.into()),
        key: wqe.rkey,
        deadline: 0,
        order: 0,
        len: (wqe.len - offset).min(mtu) as u16,
        copy: u8::MAX,
        is_read: wqe.op.awaits_response(),
        names: Names::Region,
        is_merged: false,
        is_done: false,
        is_renewed: true,
    }
}

impl Star {
    /// Packets that may be in flight.
    fn tx_limit(&self, qp: &Qp) -> u32 {
        if congestion::is_governed(qp) { WINDOW.min(qp.requester.window.packets()) } else { WINDOW }
    }
}

/// Puts packet `k` of a WQE into `out`, with a new deadline if it is to have one.
#[allow(clippy::too_many_arguments, reason = "what a packet is made of")]
fn build(
    qp: &mut Qp,
    star: &mut Star,
    nic: &NicState,
    now: Instant,
    wqe: &Wqe,
    entry: &Inflight,
    k: u32,
    out: &mut TxFrame,
) -> Result<(), AccessFault> {
    let psn = entry.psn.add(k);
    out.payload.clear();
    out.packet = Packet { flow: qp.flow(nic), ..Packet::default() };
    out.path = qp.path;
    if wqe.op.is_message() {
        segmentation::message(qp, nic, wqe, k, out)?;
        (out.packet.immediate, out.packet.invalidate) = (0, 0);
    }
    let (remote, clock, number) = (star.remote, star.clock(now), star.number_of(psn));
    let packet = star.packet_mut(psn);
    packet.renew(clock, remote.lifetime);
    let Sent { va, key, deadline, len, copy, is_read, names, is_merged, .. } = *packet;
    let (operation, op, count) = match is_read {
        true if wqe.op == WqeOp::CompareSwap => (Operation::GetData, Op::CompareSwap, len),
        true if wqe.op == WqeOp::FetchAdd => (Operation::GetData, Op::FetchAdd, len),
        true => (Operation::GetData, Op::Read, len),
        false if names == Names::Region => (Operation::RemoteData, Op::Write, 0),
        false => (Operation::RemoteData, Op::Send, 0),
    };
    let mut flags = match names {
        Names::Region => 0,
        Names::Place => StarEth::POSTED | StarEth::RECV_QUEUE,
        Names::Address => StarEth::RECV_QUEUE,
    };
    let mut following = wqe.len - k * qp.mtu() - u32::from(len);
    if wqe.op.is_atomic() {
        // What it computes with stands before its data, and is the same on the wire.
        qp.sq.ring.gather_masks(wqe, &mut out.payload);
        out.packet.payload_len = out.payload.len() as u32;
        following = number;
    }
    if is_merged {
        flags |= StarEth::MERGED;
        following = peer::cqe_of(wqe, 0).flags.into();
    }
    let opcode = Opcode::new(Service::Star, operation);
    out.packet.bth = Bth { opcode, psn, dest_qp: qp.peer, ack_req: true, ..Bth::default() };
    out.packet.reth = Reth { va, rkey: key, len: deadline };
    out.packet.irn = StarEth { copy, ..StarEth::new(op, flags, count, following) }.into();
    out.packet.ticket = remote.ticket;
    Ok(())
}

/// Sends a lost packet again, if there is one. None when there is none to be sent now.
pub(super) fn repair(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> Option<SendStep> {
    if !congestion::may_send(qp, now) {
        return Some(SendStep::Idle);
    }
    let limit = star.tx_limit(qp);
    let Free::Resend(psn) = tx_free(&mut star.tx, &star.recovery, limit, false, now) else { return None };
    let mut allowed = true;
    let built = requester::build_again(qp, nic, now, psn, |qp, nic, wqe, entry, k| {
        let sent = star.packet(psn);
        allowed = egress::may_leave(qp, nic, sent, wqe.op, sent.len.into());
        if allowed { build(qp, star, nic, now, wqe, entry, k, out) } else { Ok(()) }
    });
    if !allowed {
        // Taken back since it was sent: it fails when all before it are done.
        star.refuse(psn, registry::REFUSED);
        acknowledged(qp, star, nic, now);
        return Some(SendStep::Idle);
    }
    if let Err(step) = built {
        return step;
    }
    if psn == star.tx.una {
        star.resent = now;
    }
    nic.counters.retransmitted_packets += 1;
    congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Again, now);
    Some(SendStep::Packet)
}

/// Takes in an RDA or GDA.
pub(super) fn on_answer(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
    answer: Answer,
) {
    let is_data = packet.bth.opcode.operation() == Operation::GetDataAnswer;
    let stamp = Stamp::from(packet.irn);
    let knew = star.tx.is_recovering();
    let mut news = false;
    for step in 0..u32::from(answer.run) {
        let psn = packet.bth.psn.add(step);
        if psn.is_before(star.tx.una) || !psn.is_before(star.tx.next) {
            nic.counters.drop_ghost_ack += 1;
            continue;
        }
        let sent = star.packet(psn);
        // A GD is refused by an RDA, which brings nothing.
        let misfit = if is_data { !sent.is_read } else { sent.is_read && answer.verdict == Verdict::Done };
        if sent.is_done || sent.is_renewed || sent.copy != answer.copy || misfit {
            nic.counters.drop_duplicate += 1;
            continue;
        }
        news |=
            take(qp, star, nic, now, psn, answer.verdict, stamp.order.wrapping_add(step), packet, payload);
    }
    if !news {
        return;
    }
    nic.counters.acks_received += 1;
    advance(qp, star, nic, now);
    if !knew && star.tx.is_recovering() && qp.control.is_some() {
        congestion::on_loss(qp, nic, false, now);
    }
    acknowledged(qp, star, nic, now);
}

/// What an answer says of one packet that waits for it. True if something may move on.
#[allow(clippy::too_many_arguments, reason = "what an answer says")]
fn take(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    psn: Psn,
    verdict: Verdict,
    order: u32,
    packet: &Packet,
    payload: &Payload<'_>,
) -> bool {
    match verdict {
        Verdict::Done => {
            if star.packet(psn).is_read
                && let Err(cause) = place(qp, star, nic, psn, packet, payload)
            {
                star.refuse(psn, cause);
                return true;
            }
            let sent = star.packet_mut(psn);
            (sent.is_done, sent.order) = (true, order);
            if psn != star.tx.una {
                let una = star.tx.una;
                let rto = qp.rto(nic);
                receive_ack(&mut star.tx, &star.recovery, una, Some(SackEth::new(0, psn)), rto, now);
            }
            true
        }
        Verdict::Expired => {
            nic.counters.star_deferred += 1;
            // A way that takes longer than the lifetime is as good as none.
            if psn == star.tx.una && !super::bears_late(qp, star, nic, now) {
                let cause = Cause::local(Status::TransportRetryExceeded, super::TOO_LATE);
                star.refuse(psn, Cause { packet: Some(received(packet)), ..cause });
                return true;
            }
            // One that is too far ahead may still be executed: it waits until the clock has come closer.
            let passed = star.has_passed(star.packet(psn).deadline);
            if passed {
                star.packet_mut(psn).is_renewed = true;
                star.lost(qp, nic, psn, now);
            }
            passed
        }
        Verdict::Busy => {
            nic.counters.star_deferred += 1;
            // An atomic before it has not come: that one is sent again, and those that were put off, in their
            // order. The timer sends again what there was no room for.
            let is_merged = star.packet(psn).is_merged;
            let is_early = (star.awaits_atomic || is_merged) && psn != star.tx.una;
            if is_early || is_merged && star.peer.urge() {
                star.lost(qp, nic, psn, now);
            }
            is_early
        }
        Verdict::Access | Verdict::Invalid | Verdict::NotPosted => {
            nic.counters.error_naks_received += 1;
            let (status, rule) = match verdict {
                Verdict::Access if star.packet(psn).names != Names::Region => {
                    (Status::RemoteOperation, OWN_BUFFERS)
                }
                Verdict::Access => (Status::RemoteAccess, ACCESS),
                _ => (Status::RemoteInvalidRequest, INVALID),
            };
            star.refuse(psn, Cause { packet: Some(received(packet)), ..Cause::local(status, rule) });
            true
        }
    }
}

impl Star {
    fn refuse(&mut self, psn: Psn, cause: Cause) {
        if self.refused.as_deref().is_none_or(|(first, _)| psn.is_before(*first)) {
            self.refused = Some(Box::new((psn, cause)));
        }
    }

    /// A packet is to be sent again now.
    fn lost(&mut self, qp: &Qp, nic: &NicState, psn: Psn, now: Instant) {
        let una = self.tx.una;
        let rto = qp.rto(nic);
        let sack = SackEth::new(SackEth::NOT_KEPT, psn);
        receive_ack(&mut self.tx, &self.recovery, una, Some(sack), rto, now);
    }

    /// Whether a packet that was executed must be executed again, for the sake of the order: a READ that an
    /// earlier WRITE came after, a WRITE that an earlier one came after whose bytes it shares.
    fn is_out_of_order(&self, psn: Psn) -> bool {
        let packet = self.packet(psn);
        if packet.is_merged {
            // All before it was done when it left, or is in order by its number.
            return false;
        }
        let is_before = |order: u32| (packet.order.wrapping_sub(order) as i32) < 0;
        if !self.last_write.is_some_and(is_before) {
            return false;
        }
        if packet.is_read {
            return true;
        }
        // Earlier ones than a window ago were acknowledged before this one was first sent.
        (1..=WINDOW).any(|back| {
            let earlier = self.packet(psn.add(Psn::MASK + 1 - back));
            !earlier.is_read && earlier.is_done && is_before(earlier.order) && overlap(earlier, packet)
        })
    }
}

/// Whether two WRITEs may share bytes. Different keys may name the same memory.
fn overlap(one: &Sent, other: &Sent) -> bool {
    if one.len == 0 || other.len == 0 {
        return false;
    }
    let places = [one, other].map(|sent| sent.names == Names::Place);
    if places != [false; 2] {
        // Of a place only the other side knows where it lies. Packets of one message share nothing.
        let index = |sent: &Sent| Place::of_va(sent.va).index;
        return !(places == [true; 2] && index(one) == index(other));
    }
    let offset = other.va.wrapping_sub(one.va);
    one.key != other.key || offset < u64::from(one.len) || offset.wrapping_neg() < u64::from(other.len)
}

/// Moves the cumulative acknowledgement over what is done, and stops at what is to be executed again.
fn advance(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) {
    let mut una = star.tx.una;
    let mut again = None;
    while una.is_before(star.tx.next) && star.packet(una).is_done {
        if star.is_out_of_order(una) {
            nic.counters.star_out_of_order += 1;
            let packet = star.packet_mut(una);
            (packet.is_done, packet.is_renewed) = (false, true);
            again = Some(SackEth::new(SackEth::NOT_KEPT, una));
            break;
        }
        let packet = *star.packet(una);
        let is_later = |last: u32| (packet.order.wrapping_sub(last) as i32) > 0;
        if !packet.is_read && star.last_write.is_none_or(is_later) {
            star.last_write = Some(packet.order);
        }
        una = una.next();
    }
    let rto = qp.rto(nic);
    let acked = receive_ack(&mut star.tx, &star.recovery, una, again, rto, now);
    debug_assert!(acked != Acked::Ghost, "passed what was never sent");
}

/// The cumulative acknowledgement may have moved: completes what is done, and sets the timer.
fn acknowledged(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) {
    let una = star.tx.una;
    if una != qp.requester.una {
        let before = core::mem::replace(&mut qp.requester.una, una);
        if qp.control.is_some() {
            congestion::on_ack(qp, nic, before, now);
        }
        let r = &mut qp.requester;
        (r.retries, r.rnr_retries, r.expiries) = (qp.attr.retry_cnt, qp.attr.rnr_retry, 0);
        r.excused = Excused::default();
        star.moved = now;
    }
    let mut finished = 0;
    while let Some(entry) = qp.requester.oldest() {
        if qp.requester.head_failed() {
            break;
        }
        if entry.packets > 0 && una.is_before(entry.psn.add(entry.packets)) {
            break;
        }
        let mut byte_len = 0;
        if let Some((index, len)) = star.reads.front().copied()
            && index == qp.requester.head
        {
            star.reads.pop_front();
            qp.requester.outstanding_reads -= 1;
            byte_len = len;
        }
        if let Some(taken) = star.peer.taken.front()
            && taken.request == qp.requester.head
        {
            let (cqe, merged) = (taken.cqe, taken.merged);
            star.peer.taken.pop_front();
            if !merged {
                star.peer.complete(cqe);
            }
        }
        complete_oldest(qp, nic, now, &entry, byte_len);
        finished += 1;
    }
    if finished > 1 {
        nic.counters.acks_coalesced += 1;
    }
    if let Some((psn, cause)) = star.refused.as_deref().copied()
        && let Some(entry) = qp.requester.oldest()
        && (0..entry.packets as i32).contains(&psn.since(entry.psn))
    {
        star.refused = None;
        match cause.status {
            Status::RemoteAccess | Status::RemoteInvalidRequest => star.peer.close(cause.status),
            // As a responder's own does, the receive that the message has taken fails.
            Status::RemoteOperation => {
                if let Some(taken) = star.peer.taken.front_mut() {
                    taken.cqe.status = Status::LocalProtection as u8;
                }
            }
            _ => {}
        }
        fail_oldest(qp, nic, now, &cause);
    }
    requester::settle(qp, nic, now);
    if qp.state != crate::attr::QpState::Err {
        qp.deadline = star.tx.deadline();
    }
}

/// Places the bytes of a GDA where their READ wants them.
fn place(
    qp: &mut Qp,
    star: &Star,
    nic: &NicState,
    psn: Psn,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Cause> {
    let misfit = |rule| Cause { packet: Some(received(packet)), ..Cause::local(Status::BadResponse, rule) };
    if payload.len() != usize::from(star.packet(psn).len) {
        return Err(misfit(MISFIT));
    }
    let Some(index) = qp.requester.find(psn) else { return Err(misfit(MISFIT)) };
    let entry = *qp.requester.entry(index);
    let wqe = match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
        Ok(wqe) if wqe.op == entry.op && wqe.op.awaits_response() => wqe,
        _ => return Err(Cause::local(Status::LocalQpOperation, CHANGED)),
    };
    let offset = psn.since(entry.psn) as u32 * qp.mtu();
    read_answer::scatter(qp, nic, &wqe, offset, payload)
        .map_err(|fault| Cause::local(Status::LocalProtection, fault.rule()))
}

/// The queue pair's timer ran out: a retry is spent for each local ACK timeout of silence.
pub(super) fn on_timeout(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, silence: Silence) {
    let due = core::mem::replace(&mut qp.deadline, Instant::NEVER);
    let rto = qp.rto(nic);
    let Some(since) = star.awaits_since() else { return };
    if timeout(&mut star.tx, &star.recovery, rto, now) != Expiry::Expired {
        qp.deadline = star.tx.deadline();
        return;
    }
    qp.deadline = star.tx.deadline();
    if !retry::is_excused(qp, nic, silence, now.since(since)) {
        // How much later this is than it was due is this side's lateness, whatever the peer has done.
        qp.requester.excused.add(now.since(due), nic.tolerance.excused_max);
    } else if silence == Silence::Unread {
        return;
    }
    nic.counters.timeouts += 1;
    if qp.control.is_some() {
        congestion::on_loss(qp, nic, true, now);
    }
    let silent = now.since(star.moved).minus(qp.requester.excused.time());
    let patience =
        rto.max(nic.tolerance.share(qp.attr.retry_cnt)).times(u64::from(qp.requester.expiries) + 1);
    if rto > Duration::ZERO && silent >= patience {
        qp.requester.expiries = qp.requester.expiries.saturating_add(1);
        let cause = retry::unanswered(qp, nic, star.tx.una, silence);
        retry::spend_retry(qp, nic, now, &cause);
    }
}
