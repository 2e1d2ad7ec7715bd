//! StaR's stateful half: keeps both ends' state, numbers every packet, orders them and sends again what was
//! lost; the other NIC only executes (StaR, III-B and III-C).
//!
//! A WRITE is an RD for each packet, a READ a GD. Each is answered by itself, so lost packets are known one
//! by one, and IRN's sender ([`super::irn`]) recovers them. What the answers say beyond that:
//!
//! - **Deadline.** All copies of a packet carry the same deadline, and the stateless side executes it at most
//!   once before it. Only when that side's own clock has passed it, or the packet is known to be executed and
//!   is to be executed again, does it get a new one, and a new copy number with it; answers to earlier copies
//!   do not count from then on. So when a WRITE completes, no copy of it can land any more.
//! - **Order.** The stateless side stamps what it executes. A READ that was executed before an earlier WRITE
//!   is asked again, and so is a WRITE that an earlier one has overwritten because that had to be sent again.
//!
//! A SEND is RDs as well, into a receive that the other side has handed over by WQEP; a CQEP tells it that
//! its receive is done ([`peer`]). What the other side sends, writes and reads is executed here ([`pulls`]).
//!
//! Atomics wait for all before them, and all after them wait for them: only other atomics go beside them.
//! Each has a number, by which the other side knows copies and the order: it is executed once, in its turn.
//!
//! Given up, as with IRN: a program that polls on memory may see later bytes before earlier ones while a loss
//! is repaired.

mod burst;
mod egress;
mod peer;
mod places;
mod pull;
mod pulls;
mod requests;

use super::irn::{IrnConfig, Sender, Timers};
use crate::attr::QpState;
use crate::congestion;
use crate::engine::execute::execute;
use crate::engine::fetch::fetch;
use crate::engine::step::{Next, SendStep};
use crate::explain::Cause;
use crate::frame::TxFrame;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::silence::Silence;
use crate::state::NicState;
use crate::transport::requester as common;
use adverb_wire::star::{Answer, Op, Record, Stamp, StarEth, Ticket, features};
use adverb_wire::{Bth, Duration, Instant, Key, Opcode, Operation, Packet, Psn, Service};
use peer::Peer;
use std::collections::VecDeque;

/// Packets that may be in flight.
pub(crate) const WINDOW: u32 = 128;
/// Packets that are remembered: those in flight, and as many before them, since those may have landed after
/// later ones.
const REMEMBERED: usize = 2 * WINDOW as usize;

/// What a packet's address is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Names {
    /// A region's, with its remote key.
    Region,
    /// A place in what the other side has posted.
    Place,
    /// That of what it has posted, with its local key.
    Address,
}

/// A packet that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    va: u64,
    key: Key,
    /// In microseconds of the stateless side's clock.
    deadline: u32,
    /// When it was executed, among all that was, if it was.
    order: u32,
    len: u16,
    /// Deadlines that it had before this one.
    copy: u8,
    is_read: bool,
    names: Names,
    /// What it is for is complete with it: its address has the completion's number, its key immediate data.
    is_merged: bool,
    is_done: bool,
    /// Its deadline has passed, or it is to be executed again: the next copy gets a new one.
    is_renewed: bool,
}

const NEVER_SENT: Sent = Sent {
    va: 0,
    key: Key(0),
    deadline: 0,
    order: 0,
    len: 0,
    copy: 0,
    is_read: true,
    names: Names::Region,
    is_merged: false,
    is_done: false,
    is_renewed: false,
};

const _: () = assert!(core::mem::size_of::<Sent>() == 32 && REMEMBERED.is_power_of_two());

impl Sent {
    /// Gives it a new deadline, if it is to have one.
    fn renew(&mut self, clock: u32, lifetime: u32) {
        if core::mem::take(&mut self.is_renewed) {
            let next = clock.wrapping_add(lifetime);
            // Another deadline than before, whatever the clock says: that makes it another packet.
            self.deadline = if next == self.deadline { next.wrapping_add(1) } else { next };
            self.copy = self.copy.wrapping_add(1);
        }
    }
}

/// What the stateless side has handed over.
#[derive(Clone, Copy, Debug)]
struct Remote {
    ticket: Ticket,
    lifetime: u32,
}

/// StaR's state of one queue pair.
#[derive(Debug)]
pub(crate) struct Star {
    tx: Sender,
    remote: Remote,
    /// The record is to be acknowledged.
    owes_event: bool,
    /// One GD may ask for the data of several packets.
    bursts: bool,
    /// What is in flight are atomics; so many were sent in all, the last one with this PSN.
    awaits_atomic: bool,
    /// All that is in flight brings its completion along.
    awaits_merged: bool,
    atomics: u32,
    atomic_psn: Psn,
    /// First PSN of the peer, by which its record is known.
    peer_psn: Psn,
    /// The stateless side's clock as last told, and when.
    told: (u32, Instant),
    sent: Box<[Sent; REMEMBERED]>,
    /// The latest of the WRITEs that are acknowledged, in the order in which they were executed.
    last_write: Option<u32>,
    /// READs in flight, oldest first: place in flight, bytes. At most the READ depth.
    reads: VecDeque<(u32, u32)>,
    /// A refusal, until everything before the packet is done.
    refused: Option<Box<(Psn, Cause)>>,
    /// The last time that something moved on; and that the oldest packet was sent again.
    moved: Instant,
    resent: Instant,
    /// IRN's parameters, as they are for packets that are each acknowledged.
    recovery: IrnConfig,
    peer: Box<Peer>,
}

const _: () = assert!(core::mem::size_of::<Star>() <= 640);

impl Star {
    /// For a queue pair whose peer has handed its state over, and which begins at this PSN; `peer_psn` is the
    /// peer's.
    pub fn new(first: Psn, peer_psn: Psn, record: &Record, nic: &NicState, now: Instant) -> Star {
        let sent = vec![NEVER_SENT; REMEMBERED].into_boxed_slice();
        let timers = Timers::Measured { probe: None };
        Star {
            tx: Sender::new(first),
            remote: Remote { ticket: record.ticket, lifetime: record.lifetime.min(i32::MAX as u32) },
            owes_event: true,
            bursts: record.features & features::BURST != 0,
            awaits_atomic: false,
            awaits_merged: false,
            atomics: 0,
            atomic_psn: Psn::new(0),
            peer_psn,
            told: (record.clock, now),
            sent: sent.try_into().unwrap_or_else(|_| unreachable!("a slice of {REMEMBERED}")),
            last_write: None,
            reads: VecDeque::new(),
            refused: None,
            moved: now,
            resent: now,
            recovery: IrnConfig { timers, retransmit_delay: Duration::ZERO, ..nic.irn },
            peer: Box::new(Peer::new(peer_psn, record)),
        }
    }

    /// The PSNs from which this side and the peer go on in another stack, past all that this one has used;
    /// `None` while something is in flight either way, of the peer's `told` send requests too.
    pub fn next_psns(&self, qp: &Qp, told: u32) -> Option<(Psn, Psn)> {
        let peer = self.peer.past(told)?;
        (self.tx.in_flight() == 0).then(|| (qp.requester.next_psn().next(), peer))
    }

    /// Whether something is owed that no request asked for.
    pub fn has_output(&self) -> bool {
        self.owes_event || self.peer.has_output()
    }

    /// The earliest of the timers that are not the queue pair's.
    pub fn deadline(&self) -> Instant {
        self.peer.deadline()
    }

    /// What is unanswered whose time is up, and is not a request of this side: since when, and when it was.
    pub fn overdue(&self, now: Instant) -> Option<(Instant, Instant)> {
        self.peer.overdue(now).or_else(|| self.peer.pulls.overdue(now))
    }

    /// Since when an answer to a packet of this side has been awaited, if one is.
    pub fn awaits_since(&self) -> Option<Instant> {
        (self.tx.in_flight() > 0).then(|| self.tx.armed().max(self.resent))
    }

    /// The queue pair's rate lets data go on.
    pub fn end_wait(&mut self) {
        self.peer.pulls.wake();
    }

    fn packet(&self, psn: Psn) -> &Sent {
        &self.sent[psn.get() as usize & (REMEMBERED - 1)]
    }

    fn packet_mut(&mut self, psn: Psn) -> &mut Sent {
        &mut self.sent[psn.get() as usize & (REMEMBERED - 1)]
    }

    /// An atomic is sent for the first time.
    fn number_atomic(&mut self, psn: Psn) {
        (self.atomics, self.atomic_psn) = (self.atomics.wrapping_add(1), psn);
    }

    /// The number of an atomic in flight, of which each is one packet.
    fn number_of(&self, psn: Psn) -> u32 {
        self.atomics.wrapping_sub(self.atomic_psn.since(psn) as u32)
    }

    /// Every invariant of its state.
    pub fn check_invariants(&self) {
        self.tx.check_invariants();
        assert!(self.tx.in_flight() <= WINDOW, "more in flight than the window");
    }

    /// The stateless side's clock, as far as it is sure to have come: its pace is taken for a thousandth too
    /// slow, so that deadlines are not told too far ahead.
    fn clock(&self, now: Instant) -> u32 {
        let (told, at) = self.told;
        let since = now.since(at).as_ps() / 1_000_000;
        told.wrapping_add((since - since / 1024) as u32)
    }

    /// Whether the stateless side has told that this time has passed at its clock.
    fn has_passed(&self, deadline: u32) -> bool {
        self.told.0.wrapping_sub(deadline) as i32 > 0
    }

    /// The clock is told again; packets may overtake each other.
    fn hear_clock(&mut self, told: u32, now: Instant) {
        if told.wrapping_sub(self.told.0) as i32 >= 0 {
            self.told = (told, now);
        }
    }
}

/// The queue pair has gone to ERR, if it has: what was in flight is flushed.
fn heed_error(qp: &mut Qp, star: &mut Star) {
    if qp.state == QpState::Err {
        qp.deadline = Instant::NEVER;
        star.tx = Sender::new(qp.requester.next_psn());
        star.reads.clear();
        star.refused = None;
        star.peer.end();
    }
}

/// Rule of packets that always come too late.
const TOO_LATE: &str = "the stateless side found every copy past its deadline, for the timeout, retry count \
                        times over: the way there takes longer than the lifetime (StaR; IBTA 9.7.6.1.3)";

/// Whether it is borne once more that a copy came too late. Who says so lives, and one of the two may have
/// had no processor: that is borne as such silence is.
fn bears_late(qp: &mut Qp, star: &Star, nic: &NicState, now: Instant) -> bool {
    let silent = now.since(star.moved).minus(qp.requester.excused.time());
    qp.requester.excused.add(silent, nic.tolerance.excused_max) || is_patient(qp, nic, silent)
}

/// The timeout, retry count times over; `None` for ever.
fn patience(qp: &Qp, nic: &NicState) -> Option<Duration> {
    let (rto, retries) = (qp.rto(nic), qp.attr.retry_cnt);
    (rto > Duration::ZERO).then(|| rto.max(nic.tolerance.share(retries)).times(u64::from(retries) + 1))
}

/// Whether a silence is shorter than that.
fn is_patient(qp: &Qp, nic: &NicState, silent: Duration) -> bool {
    patience(qp, nic).is_none_or(|patience| silent < patience)
}

/// A wait, and no longer than a share of the patience: each retry goes out in time, as with RC, and what is
/// lost once or twice goes out again though there be few.
fn share_of_patience(qp: &Qp, nic: &NicState, wait: Duration) -> Duration {
    patience(qp, nic).map_or(wait, |patience| wait.min(share(patience, qp.attr.retry_cnt)))
}

/// The longest of the waits that make up a patience.
pub(crate) fn share(patience: Duration, retries: u8) -> Duration {
    Duration::from_ps(patience.as_ps() / (u64::from(retries) + 1).max(4))
}

/// The queue pair has changed its state by its owner's hand.
pub(super) fn on_transition(qp: &mut Qp, star: &mut Star, was: QpState) {
    if (was, qp.state) == (QpState::Rtr, QpState::Rts) {
        // Only now it is known where this side begins.
        star.tx = Sender::new(qp.requester.next_psn());
    }
    heed_error(qp, star);
}

/// One step: the acknowledgement of the record, lost packets, then the requester's own step.
#[inline(never)]
pub(super) fn step(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> SendStep {
    if core::mem::take(&mut star.owes_event) {
        acknowledge_record(qp, star.remote, nic, out);
        return SendStep::Answer;
    }
    // The first packet for a request may acknowledge it: those go before acknowledgements, or behind.
    let merges = star.peer.merges;
    if !merges && star.peer.next_packet(qp, nic, star.remote, now, out) {
        return SendStep::Answer;
    }
    if let Some(step) = pulls::step(qp, star, nic, now, out) {
        heed_error(qp, star);
        return step;
    }
    if merges && star.peer.next_packet(qp, nic, star.remote, now, out) {
        heed_error(qp, star);
        return SendStep::Answer;
    }
    let step = if qp.requester.rnr_wait || !(qp.sends() || qp.state == QpState::Sqd) {
        SendStep::Idle
    } else {
        request(qp, star, nic, now, out)
    };
    heed_error(qp, star);
    step
}

fn request(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> SendStep {
    if star.tx.is_recovering()
        && let Some(step) = requests::repair(qp, star, nic, now, out)
    {
        return step;
    }
    let next = common::next(qp);
    match next {
        Next::Idle => SendStep::Idle,
        Next::Fetch | Next::Execute => {
            let step = if matches!(next, Next::Fetch) { fetch(qp, nic, now) } else { execute(qp, nic, now) };
            if let SendStep::Executed(op) = step {
                requests::on_executed(qp, star, op, now);
            }
            step
        }
        Next::Packet => requests::next_packet(qp, star, nic, now, out),
    }
}

/// Acknowledges the record, with the ticket that came in it.
fn acknowledge_record(qp: &Qp, remote: Remote, nic: &NicState, out: &mut TxFrame) {
    out.payload.clear();
    let opcode = Opcode::new(Service::Star, Operation::WqeEventAcknowledge);
    let bth = Bth { opcode, psn: qp.requester.next_psn(), dest_qp: qp.peer, ..Bth::default() };
    let irn = StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0).into();
    out.packet = Packet { flow: qp.flow(nic), bth, irn, ticket: remote.ticket, ..Packet::default() };
    out.path = qp.path;
}

/// The queue pair's timer ran out.
pub(super) fn on_timer(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, silence: Silence) {
    if star.peer.pulls.on_timer(qp, nic, now, silence) {
        pulls::give_up(star);
    }
    if let Some(what) = star.peer.on_timer(qp, nic, now, silence) {
        peer::give_up(qp, star, nic, now, what, silence);
    }
    if qp.deadline <= now {
        if core::mem::take(&mut qp.requester.rnr_wait) {
            qp.deadline = star.tx.deadline();
        } else {
            requests::on_timeout(qp, star, nic, now, silence);
        }
    }
    heed_error(qp, star);
}

/// Takes in a packet.
#[inline(never)]
pub(super) fn on_packet(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    match packet.bth.opcode.operation() {
        // Of plain RC, which the connection may have been before.
        _ if packet.bth.opcode.is_of(Service::Rc) => nic.counters.star_drop_earlier += 1,
        _ if !packet.bth.opcode.is_of(Service::Star) => nic.counters.drop_wrong_service += 1,
        Operation::RemoteDataAnswer | Operation::GetDataAnswer => {
            // What it echoes of the request, or an answer with data met itself.
            let is_data = packet.bth.opcode.operation() == Operation::GetDataAnswer;
            let Some(answer) = Answer::of_aeth(packet.aeth).filter(|answer| !is_data || answer.run == 1)
            else {
                nic.counters.drop_syndrome += 1;
                return;
            };
            star.hear_clock(Stamp::from(packet.irn).clock, now);
            if answer.congested || is_data && packet.flow.traffic_class & 3 == 3 {
                congestion::on_cnp(qp, nic, now);
            }
            if answer.of_sends {
                pulls::on_answer(qp, star, nic, now, packet, payload, answer);
            } else {
                requests::on_answer(qp, star, nic, now, packet, payload, answer);
            }
        }
        Operation::CqeEventAcknowledge => star.peer.on_event_acknowledged(packet, now),
        // The peer hands its state over once more: it has not heard that it came, or knows more of it.
        Operation::WqePacket if StarEth::from(packet.irn).has(StarEth::MIGRATION) => {
            match record(packet, payload, star.peer_psn) {
                Some(record) => {
                    star.peer.hear(&record);
                    star.owes_event = true;
                }
                None => nic.counters.drop_hello += 1,
            }
        }
        Operation::WqePacket => {
            if star.peer.on_work(nic, now, packet, payload) && core::mem::take(&mut qp.requester.rnr_wait) {
                qp.deadline = star.tx.deadline();
            }
        }
        _ => nic.counters.drop_wrong_service += 1,
    }
    heed_error(qp, star);
}

/// What the peer hands over, if the packet is of the connection: its number is the peer's first.
pub(crate) fn record(packet: &Packet, payload: &Payload<'_>, peer_psn: Psn) -> Option<Record> {
    let mut bytes = [0; Record::LEN];
    if payload.len() != Record::LEN || payload.is_elided() || packet.bth.psn != peer_psn {
        return None;
    }
    payload.read(0, &mut bytes);
    Record::read(&bytes).filter(|_| StarEth::from(packet.irn).has(StarEth::MIGRATION))
}
