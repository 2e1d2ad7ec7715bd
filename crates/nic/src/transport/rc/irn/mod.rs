//! IRN: selective loss recovery and BDP flow control for reliable connections (Mittal et al., SIGCOMM 2018).
//!
//! Two NICs that both offer it find out by hellos ([`hello`]), and then speak IRN's packets
//! ([`adverb_wire::irn`]) instead of RC's; with any other peer a queue pair stays plain RC. Its four modules
//! are plain functions over plain state, used twice: for requests, and for READ responses and atomic answers,
//! which are a sequence of their own.
//!
//! | module | state | requests | responses |
//! |---|---|---|---|
//! | [`receive_data()`] | [`Receiver`] | at the responder | at the requester |
//! | [`tx_free()`] | [`Sender`] | at the requester | at the responder |
//! | [`receive_ack()`] | [`Sender`] | at the requester | at the responder |
//! | [`timeout()`] | [`Sender`] | at the requester | at the responder |
//!
//! [`requester`] and [`responder`] join them to the queues. What comes early lands in the application's
//! memory at once; everything else waits for its turn and then goes through the code that plain RC uses, so
//! errors and completions are RC's.
//!
//! ```text
//!   plain RC --- hello received ---> agreed --- nothing in flight ---> requests are IRN
//! ```
//!
//! Of the order that RC gives (IBTA 9.5), early placement keeps what can be told afterwards:
//! - Overlapping WRITEs leave the bytes of the last one: an older packet does not overwrite what a newer one
//!   has written.
//! - READs, atomics and invalidations are executed in their turn, and nothing behind them lands before that.
//! - Completions come in order.
//!
//! It gives up what the paper gives up: a program that polls on memory, not on a completion, may see a later
//! WRITE before an earlier one; so may a SEND's receive and a WRITE that share memory.
//!
//! State per queue pair: see [`state_bits`].

mod again;
mod answers;
mod bitmap;
pub(crate) mod config;
mod held;
mod hello;
mod patience;
mod receive_ack;
mod receive_data;
mod requester;
mod responder;
mod round_trip;
mod sender;
mod timeout;
mod tx_free;

#[cfg(test)]
mod tests;

pub use bitmap::Bitmap;
pub use config::{IrnConfig, LossRecovery, Scheme, Timers};
pub use receive_ack::{Acked, receive_ack};
pub use receive_data::{Arrival, Owed, Receiver, receive_data};
pub use sender::Sender;
pub use timeout::{Expiry, timeout};
pub use tx_free::{Free, tx_free};

use crate::attr::QpState;
use crate::congestion;
use crate::engine::execute::execute;
use crate::engine::fetch::fetch;
use crate::engine::step::{Next, SendStep};
use crate::frame::TxFrame;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::silence::Silence;
use crate::state::NicState;
use crate::transport::rc::dialect::Dialect;
use crate::transport::rc::{go_back_n, responder as rc};
use crate::transport::requester as common;
use adverb_wire::{Aeth, Bth, Instant, NakCode, Opcode, Operation, Packet, Psn, Service, Syndrome};
use hello::Hello;
use requester::Requests;
use responder::Responses;

/// Packets that a bitmap spans: the most that may be in flight in one direction of a queue pair.
pub const WINDOW: u32 = 512;

/// And in simulations that ask for more ([`IrnConfig::wide`]).
pub const WIDE: u32 = 1 << 15;

/// IRN's state of one queue pair; only those of a NIC that offers IRN have one.
#[derive(Debug)]
pub(crate) struct Irn {
    /// The peer's requests are IRN's.
    pub receiving: bool,
    /// Plain RC's packets of the peer have moved the connection on.
    plain_heard: bool,
    /// Something has happened since there was last nothing to send.
    stirred: bool,
    /// Answers wait for the queue pair's rate; a timer lets them go on.
    held_back: bool,
    /// The earliest timer other than the queue pair's own.
    pub at: Instant,
    hello: Hello,
    requests: Requests,
    responses: Responses,
}

impl Irn {
    /// For a queue pair that enters RTR, with a send queue of `blocks` blocks.
    pub fn new(blocks: u32) -> Self {
        Irn {
            receiving: false,
            plain_heard: false,
            stirred: false,
            held_back: false,
            at: Instant::NEVER,
            hello: Hello::default(),
            requests: Requests::new(blocks),
            responses: Responses::default(),
        }
    }

    /// What the two NICs have agreed on.
    pub fn recovery(&self) -> LossRecovery {
        self.hello.recovery()
    }

    /// Something has happened: there may be something to send, and timers may have changed.
    #[inline]
    fn stir(&mut self) {
        self.stirred = true;
        let fetch = if self.requests.tx.fetching { self.requests.tx.fetched_at } else { Instant::NEVER };
        self.at = self.hello.at.min(self.responses.deadline()).min(fetch);
    }

    /// Whether something is owed.
    #[inline]
    pub fn has_output(&mut self) -> bool {
        self.stirred && self.owes()
    }

    #[inline(never)]
    fn owes(&mut self) -> bool {
        self.stirred =
            self.responses.has_output(self.held_back) || self.requests.rx.owes() || self.hello.is_due();
        self.stirred
    }

    /// Whether [`requester::before`] has something to do; `active` when requests are IRN's already.
    #[inline]
    fn comes_before(&self, active: bool) -> bool {
        if active { self.requests.tx.has_repairs() } else { self.hello.is_agreed() }
    }

    /// Every invariant of every part.
    pub fn check_invariants(&self) {
        self.requests.tx.check_invariants();
        self.requests.rx.check_invariants();
        self.responses.check_invariants();
    }
}

/// State that IRN needs for a queue pair, in bits: the two halves' numbers and flags, their bitmaps, and what
/// is allocated with them beside the send queue (a word for each block). The paper has 52 bits on each side
/// for the PSNs, 160 in all, and five bitmaps of 128 bits (640), with 3 bytes for each WQE.
///
/// Ours are bigger for three reasons: the bitmaps hold 512 packets, and say where wide ones are; deadlines
/// and PSNs take whole words; and each of the two receivers has a second bitmap, for NACKs that are owed. The
/// packets that came early are kept apart (allocated when the first one comes), as are the early receives; in
/// the paper's NIC they are state in the host's memory too.
pub const fn state_bits() -> usize {
    8 * core::mem::size_of::<Irn>()
}

/// Bits of the parts of [`state_bits`]: of the bitmaps, and of everything else.
pub const fn state_bits_by_kind() -> (usize, usize) {
    // Two senders with one bitmap each, two receivers with two. Where wide ones are is no bitmap.
    let bitmaps = 6 * WINDOW as usize;
    (bitmaps, state_bits() - bitmaps)
}

/// The queue pair has changed its state: from RTR on it takes IRN's packets, and asks whether the peer does.
pub(super) fn on_transition(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, was: QpState) {
    match (was, qp.state) {
        (QpState::Init, QpState::Rtr) => {
            if let Some(window) = nic.irn.agreed {
                hello::agree_all(qp, irn, nic, window.clamp(1, nic.irn.window()));
            }
        }
        (QpState::Rtr, QpState::Rts) => hello::prove(qp, irn, nic),
        (_, QpState::Err) => return heed_error(qp, irn),
        _ => return,
    }
    hello::begin(irn);
    irn.stir();
}

/// The queue pair has gone to ERR, if it has: its requests are flushed, and what it owes is sent once.
#[inline]
fn heed_error(qp: &mut Qp, irn: &mut Irn) {
    if qp.state == QpState::Err && !irn.responses.last_words {
        enter_error(qp, irn);
    }
}

#[cold]
fn enter_error(qp: &mut Qp, irn: &mut Irn) {
    qp.deadline = Instant::NEVER;
    if qp.dialect == Dialect::Irn {
        requester::forget(qp, irn);
    }
    responder::on_error(irn);
}

/// One step of a queue pair of a NIC that offers IRN: what IRN's side owes (hellos, acknowledgements of
/// either kind, answers to READs and atomics), what plain RC's responder owes, lost requests, and then the
/// requester's own step.
#[inline(never)]
pub(super) fn step(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> SendStep {
    if irn.has_output() {
        let sent = put_packet(qp, irn, nic, now, out);
        irn.stir();
        heed_error(qp, irn);
        if sent {
            return SendStep::Answer;
        }
    }
    let step =
        if rc::next_packet(qp, nic, now, out) { SendStep::Answer } else { request(qp, irn, nic, now, out) };
    heed_error(qp, irn);
    step
}

/// The requester's part of a step.
#[inline]
fn request(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> SendStep {
    let requests = !qp.requester.rnr_wait && (qp.sends() || qp.state == QpState::Sqd);
    if requests
        && irn.comes_before(qp.dialect == Dialect::Irn)
        && let Some(step) = requester::before(qp, irn, nic, now, out)
    {
        return step;
    }
    let active = qp.dialect == Dialect::Irn;
    let next = common::next(qp);
    match next {
        Next::Idle => SendStep::Idle,
        Next::Fetch | Next::Execute => {
            qp.masked_peer = irn.hello.has_masked_atomics();
            let step = if matches!(next, Next::Fetch) { fetch(qp, nic, now) } else { execute(qp, nic, now) };
            // What failed has no packets, and what is done by the NIC itself has none.
            if active
                && let SendStep::Executed(op) = step
                && !op.is_local()
                && !qp.requester.has_failed
                && qp.state != QpState::Err
            {
                let len = qp.requester.loaded().len;
                requester::on_executed(qp, irn, op, len);
            }
            step
        }
        Next::Packet => {
            let limit = if active { requester::limit(qp, irn, nic) } else { qp.requester.window.packets() };
            let Some(made) = common::packet(qp, nic, now, out, limit) else { return SendStep::Idle };
            if active {
                requester::dress(
                    qp,
                    irn,
                    qp.requester.loaded(),
                    qp.requester.cursor(),
                    made.k,
                    &mut out.packet,
                );
                requester::on_sent(qp, irn, nic, now, &mut out.packet.bth, made.last);
            }
            common::leave(qp, nic, now, out, made);
            SendStep::Packet
        }
    }
}

fn put_packet(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> bool {
    out.payload.clear();
    out.packet = Packet { flow: qp.flow(nic), ..Packet::default() };
    out.path = qp.path;
    if irn.hello.is_due() {
        hello::send(qp, irn, nic, now, &mut out.packet);
        return true;
    }
    let msn = qp.responder.msn();
    let runs = irn.hello.has_runs();
    if let Some(owed) = irn.responses.rx.next_owed(runs) {
        acknowledgement(qp, nic, Operation::Acknowledge, owed, msn, &mut out.packet);
        congestion::echo(qp, nic, out);
        return true;
    }
    if let Some(owed) = irn.requests.rx.next_owed(runs) {
        acknowledgement(qp, nic, Operation::ReadAcknowledge, owed, 0, &mut out.packet);
        return true;
    }
    answers::next_answer(qp, irn, nic, now, out)
}

fn acknowledgement(
    qp: &Qp,
    nic: &mut NicState,
    operation: Operation,
    owed: Owed,
    msn: u32,
    packet: &mut Packet,
) {
    let syndrome = match owed.nack {
        Some(_) => Syndrome::Nak(NakCode::PsnSequenceError),
        None => Syndrome::default(),
    };
    match owed.nack {
        Some(_) => nic.counters.sequence_naks_sent += 1,
        None => nic.counters.acks_sent += 1,
    }
    packet.bth = bth(qp, operation, owed.psn);
    packet.aeth = Aeth { syndrome, msn };
    packet.sack = owed.nack.unwrap_or(adverb_wire::SackEth::new(0, owed.psn));
}

fn bth(qp: &Qp, operation: Operation, psn: Psn) -> Bth {
    Bth { opcode: Opcode::new(Service::Irn, operation), psn, dest_qp: qp.peer, ..Bth::default() }
}

/// Since when an acknowledgement or an answer of the peer has been awaited, if one is.
pub(super) fn awaits_since(irn: &Irn) -> Option<Instant> {
    irn.requests.awaits_since()
}

/// Timers: hellos, the responses' timeout, and the queue pair's own.
pub(super) fn on_timer(qp: &mut Qp, irn: &mut Irn, nic: &mut NicState, now: Instant, silence: Silence) {
    let rto = qp.rto(nic);
    irn.hello.on_timer(qp.id, nic, now);
    if now >= irn.requests.tx.fetched_at {
        irn.requests.tx.fetching = false;
    }
    if qp.state == QpState::Err {
        irn.responses.tx.deadline = Instant::NEVER;
    } else {
        irn.responses.on_timer(nic, rto, now);
    }
    irn.stir();
    if qp.deadline <= now {
        match qp.dialect {
            Dialect::Irn => patience::on_timeout(qp, irn, nic, now, silence),
            Dialect::Plain | Dialect::PlainOnly => go_back_n::on_timeout(qp, nic, now, silence),
        }
        heed_error(qp, irn);
    }
}

/// The rate lets answers go on.
pub(super) fn end_wait(irn: &mut Irn) {
    irn.held_back = false;
    irn.stir();
}

/// Takes in a packet: one of IRN's service, or one of RC's from before the change.
#[inline(never)]
pub(super) fn on_packet(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    if packet.bth.opcode.is_of(Service::Irn) {
        on_own_packet(qp, irn, nic, now, packet, payload);
    } else if is_stale(qp, irn, packet) {
        nic.counters.drop_wrong_service += 1;
    } else {
        let before = (qp.responder.expected(), qp.requester.una);
        go_back_n::on_packet(qp, nic, now, packet, payload);
        irn.plain_heard |= before != (qp.responder.expected(), qp.requester.una);
    }
    heed_error(qp, irn);
}

/// Whether a packet of RC's comes too late.
fn is_stale(qp: &Qp, irn: &Irn, packet: &Packet) -> bool {
    if packet.bth.opcode.operation().is_response() {
        return qp.dialect == Dialect::Irn;
    }
    // Repetitions of plain RC's requests are answered as ever; new ones cannot be.
    irn.receiving && !packet.bth.psn.is_before(irn.responses.rx.expected)
}

#[inline]
fn on_own_packet(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let operation = packet.bth.opcode.operation();
    match operation {
        Operation::Hello => hello::receive(qp, irn, nic, packet),
        Operation::ReadAcknowledge => responder::on_read_acknowledge(qp, irn, nic, now, packet),
        _ if operation.is_response() => requester::on_response(qp, irn, nic, now, packet, payload),
        _ => {
            responder::on_request(qp, irn, nic, now, packet, payload);
            if operation.is_send() || operation.is_write() {
                // No timer of the responses moves.
                irn.stirred |= irn.responses.rx.owes() || irn.responses.nak.is_some();
                return;
            }
        }
    }
    irn.stir();
}

/// An acknowledgement in a sequence error NAK.
fn nack(packet: &Packet) -> Option<adverb_wire::SackEth> {
    (packet.aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError)).then_some(packet.sack)
}

/// Packets between those that ask for an acknowledgement.
#[inline]
fn ack_interval(ack_every: u32, limit: u32) -> u32 {
    let interval = if ack_every > 0 { ack_every.min(limit) } else { limit / 4 };
    interval.clamp(1, WINDOW)
}

const _: () = assert!(core::mem::size_of::<Irn>() <= 1024);
