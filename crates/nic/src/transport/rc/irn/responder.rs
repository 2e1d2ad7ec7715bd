//! IRN at the responder: requests are taken in any order and executed in theirs, and answers are sent until
//! they are acknowledged.
//!
//! A packet in order goes through the code that plain RC uses. An early one lands at once, if that can do no
//! harm, and then waits in [`HeldPackets`]; in its turn it goes the same way as any other, without its bytes.
//! What cannot be kept (no receive, no right, a request before it that has to be executed first) is dropped
//! with a NACK that says so; the errors come in order, when it is sent again.

use super::config::Scheme;
use super::held::HeldPackets;
use super::sender::Probe;
use super::timeout::timeout;
use super::tx_free::has_lost;
use super::{Acked, Arrival, Irn, Receiver, Sender, hello, receive_ack, receive_data};
use crate::memory::{Access, Payload, RemoteRight, Span};
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::incoming::{Asked, Message};
use crate::transport::rc::responder as rc;
use crate::transport::receive::{self, Refusal};
use adverb_wire::{Duration, Instant, Operation, Packet, Psn, Reth, Syndrome, WriteLength};
use std::collections::VecDeque;

/// Low 24 bits: the width of a sequence number.
const SN_MASK: u32 = 0xff_ffff;

/// Timeouts without progress after which answers are no longer sent on the responder's own account. The
/// requester asks for them as long as it has patience.
const ANSWER_EXPIRIES: u8 = 10;

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Read(Asked),
    Atomic(u64),
}

/// A READ or atomic that has been executed and whose answers are not all acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// PSN of the request.
    pub request: Psn,
    /// First PSN of the answers, and their number.
    pub first: Psn,
    pub packets: u32,
    pub what: What,
    pub msn: u32,
}

/// The responder's half of IRN's state.
#[derive(Debug)]
pub(crate) struct Responses {
    /// Requests.
    pub rx: Receiver,
    /// Answers.
    pub tx: Sender,
    /// At most the depth agreed at connection.
    pub(super) answers: VecDeque<Answer>,
    /// Place among `answers` of the one that the next new packet belongs to.
    pub(super) sending: u8,
    /// New packets since one asked for an acknowledgement.
    pub(super) unasked: u16,
    /// Answers of the oldest that are acknowledged.
    pub(super) acked: u32,
    /// Answers that have never been sent.
    pub(super) unsent: u64,
    /// First PSN of the next answers.
    next_answer: Psn,
    next_read_sn: u32,
    /// Receives that messages had taken when the peer's requests became IRN's.
    receives_before: u32,
    held: HeldPackets,
    /// An RNR or error NAK to send.
    pub(super) nak: Option<(Psn, Syndrome)>,
    /// Answers that may be in flight.
    pub(super) limit: u32,
    /// The queue pair is in error: what is owed is sent once.
    pub(super) last_words: bool,
}

impl Default for Responses {
    fn default() -> Self {
        Responses {
            rx: Receiver::new(Psn::new(0)),
            tx: Sender::new(Psn::new(0)),
            answers: VecDeque::new(),
            sending: 0,
            unasked: 0,
            acked: 0,
            unsent: 0,
            next_answer: Psn::new(0),
            next_read_sn: 0,
            receives_before: 0,
            held: HeldPackets::default(),
            nak: None,
            limit: 1,
            last_words: false,
        }
    }
}

impl Responses {
    /// Requests are IRN's from this PSN on; answers are numbered from it too.
    fn begin(&mut self, psn: Psn, (limit, window): (u32, u32), receives: u32) {
        self.receives_before = receives;
        self.rx = Receiver::spanning(psn, window);
        self.tx = Sender::spanning(psn, window);
        self.next_answer = psn;
        self.limit = limit;
    }

    /// Sequence number of the next receive that a message takes in order. Those taken early follow from it
    /// on.
    fn recv_sn(&self, qp: &Qp) -> u32 {
        qp.receives_taken().wrapping_sub(self.receives_before) & SN_MASK
    }

    pub fn deadline(&self) -> Instant {
        let fetch = if self.tx.fetching { self.tx.fetched_at } else { Instant::NEVER };
        self.tx.deadline.min(fetch)
    }

    #[inline]
    pub fn has_output(&mut self, held_back: bool) -> bool {
        self.rx.owes() || (!held_back && (self.nak.is_some() || self.has_answer()))
    }

    /// Whether an answer can be sent now.
    pub(super) fn has_answer(&mut self) -> bool {
        if self.last_words {
            return self.unsent > 0;
        }
        (self.unsent > 0 && self.tx.has_room(self.limit))
            || self.tx.probe == Probe::Due
            || has_lost(&mut self.tx)
    }

    pub fn on_timer(&mut self, nic: &mut NicState, ceiling: Duration, now: Instant) {
        if now >= self.tx.fetched_at {
            self.tx.fetching = false;
        }
        if self.tx.deadline > now {
            return;
        }
        if self.tx.expiries >= ANSWER_EXPIRIES {
            self.tx.deadline = Instant::NEVER;
            return;
        }
        if timeout(&mut self.tx, &nic.irn, ceiling, now) == super::Expiry::Expired {
            nic.counters.timeouts += 1;
        }
    }

    /// Drops answers that are acknowledged.
    fn release(&mut self, advanced: u32) {
        self.acked += advanced;
        while let Some(oldest) = self.answers.front()
            && self.acked >= oldest.packets
        {
            self.acked -= oldest.packets;
            self.answers.pop_front();
            // Acknowledged means sent, so the one being sent is a later one.
            self.sending = self.sending.saturating_sub(1);
        }
    }

    pub fn check_invariants(&self) {
        self.rx.check_invariants();
        self.tx.check_invariants();
        let packets: u64 = self.answers.iter().map(|a| a.packets as u64).sum();
        let out = self.tx.in_flight() as u64 + self.acked as u64;
        assert!(
            self.last_words || packets == out + self.unsent,
            "answers: {packets}, {out}, {}",
            self.unsent
        );
        let from_here: u64 = self.answers.iter().skip(self.sending as usize).map(|a| a.packets as u64).sum();
        let sending = self.answers.get(self.sending as usize).map_or(0, |a| a.packets as u64);
        let fits = from_here >= self.unsent && from_here - self.unsent <= sending.saturating_sub(1);
        assert!(fits, "unsent answers begin elsewhere: {from_here}, {}", self.unsent);
    }
}

/// Takes in a request.
pub(super) fn on_request(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let expected = qp.responder.expected();
    if !irn.receiving {
        // The first comes when all of plain RC's requests are done; one from elsewhere is not the peer's.
        let window = nic.irn.window();
        if !(0..window as i32).contains(&packet.bth.psn.since(expected)) {
            nic.counters.drop_out_of_order += 1;
            return;
        }
        hello::implied(qp, irn, nic);
        irn.receiving = true;
        let limit = nic.irn.limit(irn.hello.peer_window());
        irn.responses.begin(expected, (limit, window), qp.receives_taken());
    }
    let psn = packet.bth.psn;
    match receive_data(&irn.responses.rx, psn) {
        Arrival::InOrder => in_order(qp, irn, nic, now, packet, payload),
        Arrival::Early => {
            let landed = early(qp, irn, nic, packet, payload);
            let r = &mut irn.responses;
            match landed {
                Some(span) => {
                    nic.counters.early_packets += 1;
                    r.held.put(packet, span, r.rx.arrived.bits());
                    r.rx.keep(psn);
                }
                None => {
                    nic.counters.early_refused += 1;
                    r.rx.refuse(psn);
                }
            }
        }
        Arrival::Duplicate => {
            nic.counters.duplicate_requests += 1;
            irn.responses.rx.repeat(psn);
        }
        Arrival::Beyond => nic.counters.drop_out_of_order += 1,
    }
}

/// Executes the request expected, and those behind it that are there already.
#[inline]
fn in_order(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    if let Err(refusal) = execute(qp, irn, nic, now, packet, payload) {
        return refuse(qp, irn, nic, now, packet, refusal);
    }
    let ack_req = packet.bth.ack_req && !answers_soon(irn, packet);
    if take(qp, irn, ack_req) {
        catch_up(qp, irn, nic, now, packet);
    }
}

/// Whether the request just executed is a READ or atomic whose answer follows within a few windows: it
/// acknowledges its request, and one that is lost is missed by the requester's timer, which asks again.
#[inline]
fn answers_soon(irn: &Irn, packet: &Packet) -> bool {
    let operation = packet.bth.opcode.operation();
    let asks = operation == Operation::ReadRequest || operation.is_atomic();
    asks && irn.responses.unsent <= 4 * irn.responses.limit as u64
}

/// Executes those that came early and whose turn it is now.
#[inline(never)]
fn catch_up(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, packet: &Packet) {
    let mut more = true;
    while more {
        let next = Packet { flow: packet.flow, ..irn.responses.held.packet(irn.responses.rx.expected) };
        if let Err(refusal) = execute(qp, irn, nic, now, &next, &Payload::elided(next.payload_len as usize)) {
            return refuse(qp, irn, nic, now, &next, refusal);
        }
        more = take(qp, irn, false);
    }
}

#[inline]
fn take(qp: &mut Qp, irn: &mut Irn, ack_req: bool) -> bool {
    let more = irn.responses.rx.take(ack_req);
    qp.responder.set_expected(irn.responses.rx.expected);
    more
}

/// Executes a request whose turn it is.
#[inline]
fn execute(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Refusal> {
    match packet.bth.opcode.operation() {
        Operation::ReadRequest => read(qp, irn, nic, now, packet),
        op if op.is_atomic() => atomic(qp, irn, nic, now, packet, payload),
        _ => message(qp, irn, nic, now, packet, payload),
    }
}

/// A packet of a SEND or WRITE: what each packet says of its place must be what follows from those before it.
#[inline]
fn message(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Refusal> {
    let operation = packet.bth.opcode.operation();
    // In RC the first packet says how long the message is.
    let mut first = None;
    let mut placed = None;
    let offset = match qp.responder.message() {
        Message::None => 0,
        Message::Send { offset } => offset,
        Message::Write { offset, .. } => offset as u64,
    };
    if operation.is_write() {
        let len = WriteLength::from_wire(packet.reth.len).following as u64 + payload.len() as u64;
        match qp.responder.message() {
            Message::Write { va, rkey, len: total, offset } => {
                let at = va.wrapping_add(offset as u64);
                if (packet.reth.va, packet.reth.rkey, len) != (at, rkey, (total - offset) as u64) {
                    return Err(Refusal::Invalid("RETH against the packets before it (IRN 5.2)"));
                }
            }
            _ if len > crate::limits::MAX_MESSAGE => {
                return Err(Refusal::Invalid("WRITE longer than 2^31 bytes (IBTA 9.7.7)"));
            }
            _ => first = Some(Packet { reth: Reth { len: len as u32, ..packet.reth }, ..*packet }),
        }
        placed = place_under_newer(qp, irn, nic, packet, payload);
    }
    if operation.is_send() || operation.has_immediate() {
        let taken = qp.responder.receive_taken as u32;
        let sn = irn.responses.recv_sn(qp).wrapping_sub(taken) & SN_MASK;
        if packet.irn.sn() != sn || packet.irn.offset as u64 != offset {
            return Err(Refusal::Invalid(
                "sequence number or offset against the packets before it (IRN 5.3)",
            ));
        }
    }
    if receive::accept(qp, nic, now, first.as_ref().unwrap_or(packet), placed.as_ref().unwrap_or(payload))? {
        qp.responder.end_message();
    }
    Ok(())
}

/// A WRITE packet that comes late, when newer ones have landed: writes its bytes where they have not. What is
/// left of the payload is its length.
fn place_under_newer(
    qp: &Qp,
    irn: &Irn,
    nic: &NicState,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Option<Payload<'static>> {
    let responses = &irn.responses;
    if responses.rx.early == 0 || payload.is_elided() || payload.is_empty() {
        return None;
    }
    let span = writable(qp, nic, packet, payload)?;
    responses.held.write_under(newer(&responses.rx, packet.bth.psn), span, payload);
    Some(Payload::elided(payload.len()))
}

/// The early packets after `psn`.
fn newer(rx: &Receiver, psn: Psn) -> impl Iterator<Item = Psn> + Clone + '_ {
    let end = rx.expected.add(rx.arrived.bits());
    let next = move |from: Psn| {
        let left = end.since(from).max(0) as u32;
        let skip = rx.arrived.first_one(from, left);
        (skip < left).then(|| from.add(skip))
    };
    core::iter::successors(next(psn.next()), move |at| next(at.next()))
}

/// The memory that a WRITE packet names, if it may write there.
fn writable(qp: &Qp, nic: &NicState, packet: &Packet, payload: &Payload<'_>) -> Option<Span> {
    let (va, rkey) = (packet.reth.va, packet.reth.rkey);
    if !qp.access.contains(Access::REMOTE_WRITE) || payload.len() > qp.mtu() as usize {
        return None;
    }
    nic.memory.check_remote(qp.pd, qp.num, rkey, va, payload.len() as u32, RemoteRight::Write).ok()
}

/// Lets an early packet land, if it may. What it wrote as a WRITE is returned.
fn early(qp: &mut Qp, irn: &Irn, nic: &mut NicState, packet: &Packet, payload: &Payload<'_>) -> Option<Span> {
    let operation = packet.bth.opcode.operation();
    if nic.irn.scheme == Scheme::GoBackN || payload.len() > qp.mtu() as usize {
        return None;
    }
    if operation.is_write() {
        if WriteLength::from_wire(packet.reth.len).ordered {
            return None;
        }
        let span = writable(qp, nic, packet, payload)?;
        if operation.has_immediate() {
            receive_for(qp, irn, nic, packet.irn.sn())?;
        }
        let responses = &irn.responses;
        if !payload.is_elided() {
            responses.held.write_under(newer(&responses.rx, packet.bth.psn), span, payload);
        }
        return Some(span);
    }
    if operation.is_send() {
        if packet.irn.is_ordered() {
            return None;
        }
        let at = receive_for(qp, irn, nic, packet.irn.sn())?;
        let list = match at {
            Some(index) => qp.receiver.as_deref()?.early(index)?,
            None => qp.scatter(),
        };
        let offset = packet.irn.offset as u64;
        if offset + payload.len() as u64 > list.capacity {
            return None;
        }
        let pd = receive::receive_pd(qp, nic);
        nic.scatter(pd, list.sges(), offset, payload).ok()?;
    }
    // READs and atomics wait for their turn, for which no payload is kept.
    if operation == Operation::MaskedCompareSwap {
        return None;
    }
    Some(Span::EMPTY)
}

/// The receive with sequence number `sn`: the one in use (`Some(None)`), or one of those taken early, which
/// are taken now if need be. None when there is none.
fn receive_for(qp: &mut Qp, irn: &Irn, nic: &mut NicState, sn: u32) -> Option<Option<usize>> {
    let room = qp.scatter().room();
    let shared = qp.srq();
    let ahead = Psn::new(sn).since(Psn::new(irn.responses.recv_sn(qp)));
    if ahead == -1 && qp.responder.receive_taken {
        return Some(None);
    }
    let window = irn.responses.rx.arrived.bits() as usize;
    let ahead = usize::try_from(ahead).ok().filter(|ahead| *ahead < window)?;
    let receiver = qp.receiver.as_deref_mut()?;
    while receiver.early_count() <= ahead {
        let mut list = receiver.spare_list(room);
        let taken = match shared {
            Some(srq) => receive::take_shared(nic, srq, &mut list),
            None => receiver.queue.take(&mut list),
        };
        if !taken {
            receiver.keep_spare(list);
            return None;
        }
        receiver.keep_early(list);
    }
    Some(Some(ahead))
}

fn read(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
) -> Result<(), Refusal> {
    let pd = rc::check_read(qp, nic, packet)?;
    room(qp, irn, nic, now, packet)?;
    let packets = packet.reth.len.div_ceil(qp.mtu()).max(1);
    let asked = Asked { pd, va: packet.reth.va, rkey: packet.reth.rkey, len: packet.reth.len };
    answer(qp, irn, packet.bth.psn, packets, What::Read(asked));
    Ok(())
}

fn atomic(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Refusal> {
    let span = rc::atomic_target(qp, nic, packet)?;
    let masks = rc::masks(packet, payload)?;
    room(qp, irn, nic, now, packet)?;
    let original = rc::perform(packet, masks, span);
    answer(qp, irn, packet.bth.psn, 1, What::Atomic(original));
    Ok(())
}

/// The request says which answers the requester has; then there must be room for its own.
fn room(qp: &mut Qp, irn: &mut Irn, nic: &NicState, now: Instant, packet: &Packet) -> Result<(), Refusal> {
    let depth = qp.responder.depth() as usize;
    let rto = qp.rto(nic);
    let r = &mut irn.responses;
    if packet.irn.sn() != r.next_read_sn & SN_MASK {
        return Err(Refusal::Invalid("sequence number of a READ or atomic (IRN 5.3)"));
    }
    let awaited = Psn::new(packet.irn.offset);
    if let Acked::Advanced(n) = receive_ack(&mut r.tx, &nic.irn, awaited, None, rto, now) {
        r.release(n);
    }
    if r.answers.len() < depth {
        return Ok(());
    }
    Err(Refusal::Invalid("more READs and atomics outstanding than responder resources (IBTA 9.7.4.1.8)"))
}

fn answer(qp: &mut Qp, irn: &mut Irn, request: Psn, packets: u32, what: What) {
    qp.responder.end_message();
    let msn = qp.responder.msn();
    let r = &mut irn.responses;
    r.answers.push_back(Answer { request, first: r.next_answer, packets, what, msn });
    r.next_answer = r.next_answer.add(packets);
    r.next_read_sn = r.next_read_sn.wrapping_add(1);
    r.unsent += packets as u64;
}

/// A request whose turn it was cannot be carried out: as in plain RC.
fn refuse(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, packet: &Packet, refusal: Refusal) {
    rc::refuse(qp, nic, now, packet, refusal);
    let nak = qp.responder.take_acknowledge();
    irn.responses.nak = nak;
    irn.responses.rx.unkeep();
}

/// Takes in the acknowledgement of answers.
pub(super) fn on_read_acknowledge(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
) {
    let rto = qp.rto(nic);
    let r = &mut irn.responses;
    if !irn.receiving {
        nic.counters.drop_ghost_ack += 1;
        return;
    }
    let nack = super::nack(packet);
    match nack {
        Some(_) => nic.counters.sequence_naks_received += 1,
        None => nic.counters.acks_received += 1,
    }
    match receive_ack(&mut r.tx, &nic.irn, packet.bth.psn, nack, rto, now) {
        Acked::Ghost => nic.counters.drop_ghost_ack += 1,
        Acked::Advanced(n) => r.release(n),
    }
}

/// The queue pair is in error: nothing more will be heard, and what is owed is sent once.
pub(super) fn on_error(irn: &mut Irn) {
    irn.responses.last_words = true;
    irn.responses.tx.deadline = Instant::NEVER;
    irn.responses.tx.fetching = false;
    irn.stir();
}
