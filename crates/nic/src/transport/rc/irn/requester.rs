//! IRN at the requester: what its requests say, which of them are sent again, and what acknowledgements and
//! answers mean for the WQEs in flight.
//!
//! A request is acknowledged when the cumulative acknowledgement has passed it; a READ or atomic is done when
//! all its answers have come as well. The oldest WQE completes first, whatever came early.

use super::config::Scheme;
use super::sender::Probe;
use super::timeout::length;
use super::tx_free::{Free, next_lost, tx_free};
use super::{Acked, Arrival, Irn, Receiver, Sender, WINDOW, ack_interval, receive_ack, receive_data};
use crate::attr::QpState;
use crate::congestion;
use crate::engine::step::SendStep;
use crate::explain::Cause;
use crate::frame::TxFrame;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::silence::Excused;
use crate::state::NicState;
use crate::transport::failure::fail_oldest;
use crate::transport::rc::dialect::Dialect;
use crate::transport::rc::{read_answer, retry};
use crate::transport::requester::{self, complete_oldest};
use crate::transport::segmentation;
use crate::work::Status;
use adverb_wire::{
    Bth, Instant, IrnEth, NakCode, Opcode, Operation, Packet, Psn, Reth, Service, Syndrome, WriteLength,
};
use std::collections::VecDeque;

/// A READ or atomic that has been executed and has not completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// Its place in the in-flight ring.
    index: u32,
    /// PSN of the request.
    request: Psn,
    /// First PSN of its answers, and their number.
    first: Psn,
    packets: u32,
    /// Bytes asked for.
    len: u32,
    /// All answers have come.
    done: bool,
}

/// The requester's half of IRN's state.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Requests.
    pub tx: Sender,
    /// Answers to READs and atomics.
    pub rx: Receiver,
    /// Sequence number of each WQE in flight: of the receive that it takes, or of the READ or atomic.
    sns: Box<[u32]>,
    next_recv_sn: u32,
    next_read_sn: u32,
    /// New packets since one asked for an acknowledgement.
    unasked: u16,
    /// First PSN of the next READ's answers.
    next_answer: Psn,
    /// At most the READ depth.
    pub(super) reads: VecDeque<Outstanding>,
    /// Answers to the oldest of them that have come in order.
    answered: u32,
    /// The newest request that has to be executed before what follows may land.
    last_ordered: Option<Psn>,
    /// The last time that something moved on, and that the answers were asked for again.
    pub(super) moved: Instant,
    pub(super) probed: Instant,
    pub(super) probes: u8,
    /// An error NAK, until everything before the request it refuses is done.
    refused: Option<Box<(Psn, Cause)>>,
    /// The READ or atomic that answers are coming for.
    answering: Option<(u32, Wqe)>,
}

impl Requests {
    pub fn new(blocks: u32) -> Self {
        Requests {
            tx: Sender::new(Psn::new(0)),
            rx: Receiver::new(Psn::new(0)),
            sns: vec![0; blocks as usize].into_boxed_slice(),
            next_recv_sn: 0,
            next_read_sn: 0,
            unasked: 0,
            next_answer: Psn::new(0),
            reads: VecDeque::new(),
            answered: 0,
            last_ordered: None,
            moved: Instant::ZERO,
            probed: Instant::ZERO,
            probes: 0,
            refused: None,
            answering: None,
        }
    }

    /// Requests are IRN's from this PSN on; answers are numbered from it too.
    fn begin(&mut self, psn: Psn, window: u32) {
        self.tx = Sender::spanning(psn, window);
        self.rx = Receiver::spanning(psn, window);
        self.next_answer = psn;
    }

    fn sn(&self, index: u32) -> u32 {
        self.sns[index as usize & (self.sns.len() - 1)]
    }
}

/// Packets that may be in flight.
#[inline]
pub(crate) fn limit(qp: &Qp, irn: &Irn, nic: &NicState) -> u32 {
    let limit = irn.requests.tx.reach(nic.irn.limit(irn.hello.peer_window()));
    if congestion::is_governed(qp) { limit.min(qp.requester.window.packets()) } else { limit }
}

/// Before the requester looks for something new: goes over to IRN when both sides know it and nothing is in
/// flight (new WQEs wait for that), and sends again what was lost.
pub(super) fn before(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> Option<SendStep> {
    if qp.dialect == Dialect::Irn {
        if !congestion::may_send(qp, now) {
            return Some(SendStep::Idle);
        }
        if irn.requests.tx.probe == Probe::Due
            && let Some(psn) = tail_probe(qp, irn, nic, now)
        {
            return resend(qp, irn, nic, now, out, psn);
        }
        let limit = nic.irn.limit(irn.hello.peer_window());
        return match tx_free(&mut irn.requests.tx, &nic.irn, limit, true, now) {
            Free::Resend(psn) => resend(qp, irn, nic, now, out, psn),
            _ => {
                irn.stir();
                None
            }
        };
    }
    if qp.requester.is_empty() {
        irn.requests.begin(qp.requester.next_psn(), nic.irn.window());
        qp.dialect = Dialect::Irn;
        return None;
    }
    qp.requester.is_all_sent().then_some(SendStep::Idle)
}

/// The tail probe that is due, if nothing new goes anyway.
#[cold]
fn tail_probe(qp: &Qp, irn: &mut Irn, nic: &mut NicState, now: Instant) -> Option<Psn> {
    let limit = limit(qp, irn, nic);
    let r = &mut irn.requests;
    let fresh = !qp.requester.is_all_sent() && r.tx.in_flight() < limit;
    probe(&mut r.tx, &mut r.unasked, fresh, nic, now)
}

/// A tail probe leaves. None when something that goes anyway, fresh or lost, asks in its place.
pub(super) fn probe(
    tx: &mut Sender,
    unasked: &mut u16,
    fresh: bool,
    nic: &mut NicState,
    now: Instant,
) -> Option<Psn> {
    let lost = tx.recovering && next_lost(tx).is_some();
    let Some(psn) = tx.take_probe(fresh || lost) else {
        *unasked = WINDOW as u16;
        return None;
    };
    nic.counters.irn_tail_probes += 1;
    if tx.recovering && nic.irn.redetects() {
        tx.again.on_resent(psn, tx.next);
    }
    tx.on_resent(psn, now);
    Some(psn)
}

/// Sends one lost packet again. None when it belongs to a WQE that cannot be sent any more.
fn resend(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
    psn: Psn,
) -> Option<SendStep> {
    let built = requester::build_again(qp, nic, now, psn, |qp, nic, wqe, entry, k| {
        requester::build(qp, nic, wqe, entry, k, out)
    });
    let (wqe, index, k) = match built {
        Ok(built) => built,
        Err(step) => return step,
    };
    if wqe.op.is_atomic() {
        segmentation::operands(qp, &wqe, qp.sq.ring.operands(&wqe), out);
    }
    dress(qp, irn, &wqe, index, k, &mut out.packet);
    // What came of it must be known soon, whatever its place in the message.
    out.packet.bth.ack_req = true;
    nic.counters.retransmitted_packets += 1;
    congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Again, now);
    Some(SendStep::Packet)
}

/// A WQE of `len` bytes was taken into flight.
#[inline(never)]
pub(crate) fn on_executed(qp: &mut Qp, irn: &mut Irn, op: WqeOp, len: u32) {
    let (index, entry) = qp.requester.newest();
    let packets = len.div_ceil(qp.mtu()).max(1);
    let r = &mut irn.requests;
    let ordered = match op {
        WqeOp::Send | WqeOp::SendImm | WqeOp::WriteImm | WqeOp::SendInv => {
            let slot = index as usize & (r.sns.len() - 1);
            r.sns[slot] = r.next_recv_sn;
            r.next_recv_sn = r.next_recv_sn.wrapping_add(1);
            op == WqeOp::SendInv
        }
        _ if op.awaits_response() => {
            let slot = index as usize & (r.sns.len() - 1);
            r.sns[slot] = r.next_read_sn;
            r.next_read_sn = r.next_read_sn.wrapping_add(1);
            let read =
                Outstanding { index, request: entry.psn, first: r.next_answer, packets, len, done: false };
            r.next_answer = r.next_answer.add(packets);
            r.reads.push_back(read);
            true
        }
        _ => false,
    };
    if ordered {
        r.last_ordered = Some(entry.psn.add(entry.packets - 1));
    }
}

/// Makes a packet of RC's into one of IRN's.
#[inline(never)]
pub(crate) fn dress(qp: &Qp, irn: &Irn, wqe: &Wqe, index: u32, k: u32, packet: &mut Packet) {
    let r = &irn.requests;
    let operation = packet.bth.opcode.operation();
    packet.bth.opcode = Opcode::new(Service::Irn, operation);
    let ordered = r.last_ordered.is_some_and(|psn| !psn.is_before(r.tx.una));
    if wqe.op.awaits_response() {
        packet.irn = IrnEth::new(0, r.sn(index), r.rx.expected.get());
        return;
    }
    let offset = k * qp.mtu();
    if operation.is_write() {
        let following = wqe.len - offset - packet.payload_len;
        packet.reth = Reth {
            va: wqe.raddr.wrapping_add(offset as u64),
            rkey: wqe.rkey,
            len: WriteLength { following, ordered }.wire(),
        };
    }
    if operation.is_send() || operation.has_immediate() {
        packet.irn = IrnEth::new(if ordered { IrnEth::ORDERED } else { 0 }, r.sn(index), offset);
    }
}

/// A new packet leaves, perhaps the last of its message. It asks for an acknowledgement if none has been
/// asked for in a while.
#[inline]
pub(crate) fn on_sent(qp: &mut Qp, irn: &mut Irn, nic: &NicState, now: Instant, bth: &mut Bth, last: bool) {
    let rto = qp.rto(nic);
    let interval = ack_interval(nic.congestion.ack_every, nic.irn.limit(irn.hello.peer_window()));
    let r = &mut irn.requests;
    if r.tx.una == r.tx.next {
        r.moved = now;
    }
    r.unasked += 1;
    bth.ack_req = last || r.unasked as u32 >= interval;
    if bth.ack_req {
        r.unasked = 0;
    }
    r.tx.on_sent(&nic.irn, bth.ack_req, rto, now);
    qp.deadline = r.tx.deadline;
}

/// Takes in an acknowledgement, a READ response, or an atomic's answer.
pub(super) fn on_response(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    if qp.dialect != Dialect::Irn {
        nic.counters.drop_ghost_ack += 1;
        return;
    }
    match packet.bth.opcode.operation() {
        Operation::Acknowledge => on_acknowledge(qp, irn, nic, now, packet),
        _ => on_answer(qp, irn, nic, now, packet, payload),
    }
}

fn on_acknowledge(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, packet: &Packet) {
    let rto = qp.rto(nic);
    let r = &mut irn.requests;
    let (psn, syndrome) = (packet.bth.psn, packet.aeth.syndrome);
    let counter = match syndrome {
        Syndrome::Ack { .. } => &mut nic.counters.acks_received,
        Syndrome::RnrNak { .. } => &mut nic.counters.rnr_naks_received,
        Syndrome::Nak(NakCode::PsnSequenceError) => &mut nic.counters.sequence_naks_received,
        Syndrome::Nak(_) => &mut nic.counters.error_naks_received,
        Syndrome::Reserved(_) => {
            nic.counters.drop_syndrome += 1;
            return;
        }
    };
    *counter += 1;
    if packet.bth.becn {
        congestion::on_echo(qp);
    }
    let knew = r.tx.is_recovering();
    if receive_ack(&mut r.tx, &nic.irn, psn, super::nack(packet), rto, now) == Acked::Ghost {
        nic.counters.drop_ghost_ack += 1;
        return;
    }
    match syndrome {
        Syndrome::Nak(code) if code != NakCode::PsnSequenceError && r.refused.is_none() => {
            r.refused = Some(Box::new((psn, retry::nak_cause(code, packet))));
        }
        _ => {}
    }
    let lost = !knew && r.tx.is_recovering();
    acknowledged(qp, irn, nic, now);
    if lost && qp.control.is_some() {
        congestion::on_loss(qp, nic, false, now);
    }
    if let Syndrome::RnrNak { timer } = syndrome
        && qp.state != QpState::Err
    {
        on_rnr_nak(qp, irn, nic, now, packet, timer);
    }
}

/// The receiver is not ready. What else it does not have is sent again after the wait.
fn on_rnr_nak(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, packet: &Packet, timer: u8) {
    let psn = packet.bth.psn;
    if irn.requests.tx.una != psn || irn.requests.tx.in_flight() == 0 {
        return;
    }
    let refused = qp.requester.oldest().is_some_and(|e| (0..e.packets as i32).contains(&psn.since(e.psn)));
    // Else a READ before it still waits for its answer, and no retry is spent.
    if refused && !retry::spend_rnr_retry(qp, nic, now, Some(packet), timer) {
        return;
    }
    irn.requests.tx.resend_all();
    retry::wait_for_receiver(qp, now, timer);
}

/// The cumulative acknowledgement or the answers may have moved: completes what is done, and sets the timer.
fn acknowledged(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant) {
    let una = irn.requests.tx.una;
    if una != qp.requester.una {
        let before = core::mem::replace(&mut qp.requester.una, una);
        if irn.requests.last_ordered.is_some_and(|psn| psn.is_before(una)) {
            irn.requests.last_ordered = None;
        }
        if qp.control.is_some() {
            congestion::on_ack(qp, nic, before, now);
        }
        progressed(qp, irn, now);
    }
    let mut finished = 0;
    while let Some(entry) = qp.requester.oldest() {
        if entry.packets == 0 {
            if qp.requester.head_failed() {
                break;
            }
            complete_oldest(qp, nic, now, &entry, 0);
            continue;
        }
        if una.is_before(entry.psn.add(entry.packets)) {
            break;
        }
        let mut byte_len = 0;
        if entry.op.awaits_response() {
            match irn.requests.reads.front() {
                Some(read) if read.index == qp.requester.head && read.done => byte_len = read.len,
                _ => break,
            }
            irn.requests.reads.pop_front();
        }
        complete_oldest(qp, nic, now, &entry, byte_len);
        finished += 1;
    }
    if finished > 1 {
        nic.counters.acks_coalesced += 1;
    }
    fail_refused(qp, irn, nic, now);
    requester::settle(qp, nic, now);
    arm(qp, irn, nic);
}

fn progressed(qp: &mut Qp, irn: &mut Irn, now: Instant) {
    let r = &mut qp.requester;
    r.retries = qp.attr.retry_cnt;
    r.rnr_retries = qp.attr.rnr_retry;
    r.expiries = 0;
    r.excused = Excused::default();
    r.rnr_wait = false;
    irn.requests.moved = now;
    irn.requests.probes = 0;
}

/// An error NAK takes effect when its request is the oldest.
fn fail_refused(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant) {
    let Some((psn, cause)) = irn.requests.refused.as_deref().copied() else { return };
    let Some(entry) = qp.requester.oldest() else { return };
    if (0..entry.packets as i32).contains(&psn.since(entry.psn)) {
        irn.requests.refused = None;
        fail_oldest(qp, nic, now, &cause);
    }
}

/// Sets the queue pair's timer: for requests in flight, or else for answers that are awaited.
pub(super) fn arm(qp: &mut Qp, irn: &Irn, nic: &NicState) {
    if qp.requester.rnr_wait || qp.state == QpState::Err {
        return;
    }
    let r = &irn.requests;
    qp.deadline = if r.tx.in_flight() > 0 {
        r.tx.deadline
    } else if !r.reads.is_empty() {
        r.asked() + length(&nic.irn, &r.tx.round_trip, WINDOW, r.probes, qp.rto(nic))
    } else {
        Instant::NEVER
    };
}

fn on_answer(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let psn = packet.bth.psn;
    let rto = qp.rto(nic);
    let r = &mut irn.requests;
    let arrival = receive_data(&r.rx, psn);
    if arrival == Arrival::Duplicate {
        nic.counters.drop_duplicate += 1;
        r.rx.repeat(psn);
        return;
    }
    let before = qp.requester.una;
    let of = |read: &&Outstanding| !read.done && (0..read.packets as i32).contains(&psn.since(read.first));
    let read = r.reads.iter().find(of).filter(|read| read.request.is_before(r.tx.next)).copied();
    let Some(read) = read.filter(|_| arrival != Arrival::Beyond) else {
        nic.counters.drop_stray_response += 1;
        return;
    };
    if arrival == Arrival::Early && nic.irn.scheme == Scheme::GoBackN {
        r.rx.refuse(psn);
        return;
    }
    // What has been executed has arrived, and all before it.
    if r.tx.una.is_before(read.request.next()) {
        receive_ack(&mut r.tx, &nic.irn, read.request.next(), None, rto, now);
    }
    let placed = place(qp, irn, nic, &read, psn, packet, payload);
    let r = &mut irn.requests;
    match (arrival, placed) {
        (Arrival::InOrder, Ok(())) => {
            let done = take_answers(r, packet.bth.ack_req);
            let nothing_more = done == 0 && r.tx.una == before && r.refused.is_none();
            qp.requester.outstanding_reads -= done;
            progressed(qp, irn, now);
            if nothing_more {
                return arm(qp, irn, nic);
            }
        }
        (_, Ok(())) => {
            nic.counters.early_packets += 1;
            r.rx.keep(psn);
        }
        (Arrival::InOrder, Err(cause)) => {
            acknowledged(qp, irn, nic, now);
            if qp.requester.head == read.index {
                fail_oldest(qp, nic, now, &cause);
            }
            return;
        }
        (_, Err(_)) => {
            nic.counters.early_refused += 1;
            r.rx.refuse(psn);
        }
    }
    acknowledged(qp, irn, nic, now);
}

/// The answer expected has come, and perhaps others after it before. How many READs and atomics that makes
/// done.
#[inline]
fn take_answers(r: &mut Requests, ack_req: bool) -> u8 {
    let mut more = r.rx.take(ack_req);
    r.answered += 1;
    while more {
        more = r.rx.take(false);
        r.answered += 1;
    }
    if r.reads.front().is_some_and(|read| !read.done && r.answered < read.packets) {
        return 0;
    }
    let mut done = 0;
    for read in r.reads.iter_mut().filter(|read| !read.done) {
        if r.answered < read.packets {
            break;
        }
        r.answered -= read.packets;
        read.done = true;
        done += 1;
    }
    done
}

/// Places an answer where its request wants it.
fn place(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &NicState,
    read: &Outstanding,
    psn: Psn,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Cause> {
    let wqe = answering(qp, irn, read)?;
    read_answer::place(qp, nic, &wqe, psn.since(read.first) as u32, read.packets, packet, payload)
}

/// The request of an answer, decoded once for a run of answers.
fn answering(qp: &mut Qp, irn: &mut Irn, read: &Outstanding) -> Result<Wqe, Cause> {
    if let Some((index, wqe)) = irn.requests.answering
        && index == read.index
    {
        return Ok(wqe);
    }
    let entry = *qp.requester.entry(read.index);
    match qp.sq.ring.decode(entry.block, entry.blocks.into(), qp.sq.layout()) {
        Ok(wqe) if wqe.op == entry.op => {
            irn.requests.answering = Some((read.index, wqe));
            Ok(wqe)
        }
        _ => Err(changed()),
    }
}

fn changed() -> Cause {
    Cause::local(Status::LocalQpOperation, "the WQE was changed in memory before its answer came")
}

/// Everything in flight was flushed.
pub(crate) fn forget(qp: &mut Qp, irn: &mut Irn) {
    let next = qp.requester.next_psn();
    let r = &mut irn.requests;
    r.tx = Sender::spanning(next, r.tx.sacked.bits());
    r.reads.clear();
    r.answered = 0;
    r.refused = None;
    r.answering = None;
}
