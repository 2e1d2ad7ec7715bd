//! Requests of the stateless side, executed by the stateful one: it asks for their data, or sends what they
//! want to read (StaR, III-B).
//!
//! ```text
//!   SEND, WRITE: GD, GDA for each packet, into an own receive or region
//!   READ:        RD, RDA for each packet, from an own region
//!   atomic:      executed here once, its result sent by RD
//! ```
//!
//! Their packets have a sequence of numbers of their own, from the other side's first PSN on, and are taken
//! strictly in order: what comes before its turn is asked for again. Asking twice harms nobody, since the
//! other side only gives what is posted and not yet completed; a READ's data carry deadlines and order stamps
//! as all RDs do. What an answer brings goes the way of a packet of plain RC.

mod answers;

pub(super) use answers::on_answer;

use super::burst::packets_of;
use super::places::of_posted;
use super::pull::{Pull, check, head, read_out};
use super::{NEVER_SENT, Sent, Star, egress, peer, share_of_patience};
use crate::congestion;
use crate::engine::step::SendStep;
use crate::frame::TxFrame;
use crate::memory::{Payload, QueueMemory};
use crate::qp::Qp;
use crate::silence::{Borne, Silence};
use crate::state::NicState;
use crate::transport::rc::{responder, retry};
use crate::transport::receive::{self, Refusal};
use crate::work::Status;
use adverb_wire::star::{self, Cqe, Merged, Op};
use adverb_wire::{Duration, Instant, Packet, Psn, Syndrome};
use std::collections::VecDeque;

/// Packets that may be under way.
const WINDOW: u32 = 64;
const DOUBLINGS_MAX: u8 = 6;
/// Waits in which the other side has asked, before what it asks for is given up.
const ASKED_MIN: u8 = 2;
const _: () = assert!(WINDOW.is_power_of_two());

/// The other side's send requests.
#[derive(Debug)]
pub(super) struct Pulls {
    /// In order; so many of them are begun.
    queue: VecDeque<Pull>,
    begun: usize,
    /// One has failed: what the other side told before it heard so is not executed.
    has_ended: bool,
    /// Requests that are done; and up to which one a packet has gone to the other side.
    done: u32,
    covered: u32,
    /// Numbers: the oldest not answered, the next to be sent, one past the highest ever sent, one past those
    /// that are given.
    una: Psn,
    cursor: Psn,
    high: Psn,
    end: Psn,
    /// Packets under way, by the low bits of their number. Empty until the first one.
    sent: Vec<Sent>,
    /// When the last RD that counts was executed, among all that was.
    last_order: Option<u32>,
    is_due: bool,
    /// Something that came too early has made us go back to `una`; not twice without progress.
    went_back: bool,
    /// When to go back without that, and when the oldest was last sent or came to be the oldest: what the
    /// driver knows of the time before says nothing of its answer. When to look for a receive again.
    at: Instant,
    armed: Instant,
    rnr_at: Instant,
    rnr_spent: u8,
    /// Since when nothing has moved, what was excused of that, and how often it was sent again.
    moved: Instant,
    borne: Borne,
    repeats: u8,
    /// The other side has asked in this wait, and in how many before; it has not, and nothing is sent again.
    is_asked: bool,
    asked: u8,
    rests: bool,
    /// A packet whose answer is timed, and how long answers take.
    timed: Option<(Psn, Instant)>,
    round_trip: Option<Duration>,
    /// Result of the atomic that is being sent.
    result: Option<QueueMemory>,
}

impl Pulls {
    pub fn new(first: Psn) -> Pulls {
        Pulls {
            queue: VecDeque::new(),
            begun: 0,
            has_ended: false,
            done: 0,
            covered: 0,
            una: first,
            cursor: first,
            high: first,
            end: first,
            sent: Vec::new(),
            last_order: None,
            is_due: false,
            went_back: false,
            at: Instant::NEVER,
            armed: Instant::ZERO,
            rnr_at: Instant::NEVER,
            rnr_spent: 0,
            moved: Instant::ZERO,
            borne: Borne::default(),
            repeats: 0,
            is_asked: false,
            asked: 0,
            rests: false,
            timed: None,
            round_trip: None,
            result: None,
        }
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Numbers of packets that were used from `base` on.
    pub fn used(&self, base: Psn) -> u32 {
        self.high.since(base).max(self.end.since(base)).max(0) as u32
    }

    /// Of packets that are asked for by one, the others have its deadline and are answered one by one.
    fn remember_burst(&mut self, psn: Psn, packets: u32, bytes: u32, mtu: u32) {
        let first = *self.sent_of(psn);
        for k in 1..packets {
            let slot = self.slot(psn.add(k));
            let len = (bytes - k * mtu).min(mtu) as u16;
            self.sent[slot] = Sent { va: first.va + u64::from(k * mtu), len, ..first };
        }
    }

    /// Whether a packet has gone for all of so many requests.
    pub fn covers(&self, heard: u32) -> bool {
        self.covered == heard
    }

    /// The first copy of a packet goes to the other side, which learns by it that its request has come.
    fn cover(&mut self, psn: Psn, merged: bool) {
        let is_of = |pull: &Pull| (0..pull.packets as i32).contains(&psn.since(pull.first));
        let Some(place) = self.queue.iter().position(is_of) else { return };
        self.queue[place].merged = merged;
        let count = self.done.wrapping_add(place as u32 + 1);
        if (self.covered.wrapping_sub(count) as i32) < 0 {
            self.covered = count;
        }
    }

    /// All that are done are told to be.
    pub fn cover_done(&mut self) {
        if (self.covered.wrapping_sub(self.done) as i32) < 0 {
            self.covered = self.done;
        }
    }

    /// Whether the completion of what a packet is for may go with it: it is the only one of the oldest
    /// request but for others whose completions do.
    fn may_merge(&self, psn: Psn) -> bool {
        let is_of = |pull: &Pull| (0..pull.packets as i32).contains(&psn.since(pull.first));
        let before = self.queue.iter().take_while(|pull| !is_of(pull)).all(|pull| pull.merged);
        before && self.of(psn).is_some_and(|pull| pull.is_read() && pull.packets == 1)
    }

    pub fn push(&mut self, pull: Pull) {
        if self.has_ended {
            return;
        }
        self.queue.push_back(pull);
        self.is_due = true;
    }

    pub fn is_due(&self) -> bool {
        self.is_due
    }

    pub fn deadline(&self) -> Instant {
        self.at.min(self.rnr_at)
    }

    /// Something may go on.
    pub fn wake(&mut self) {
        self.is_due |= !self.queue.is_empty();
    }

    /// The other side asks, maybe after this one had given it up: its time begins anew then.
    pub fn resume(&mut self, now: Instant) {
        if core::mem::take(&mut self.rests) {
            self.move_on(now);
        }
        self.is_asked = true;
        if self.una != self.high && self.at == Instant::NEVER {
            self.go_back();
        }
    }

    /// Something has moved, or begins.
    fn move_on(&mut self, now: Instant) {
        (self.moved, self.repeats, self.is_asked, self.asked) = (now, 0, false, 0);
        self.borne.end();
    }

    /// Nothing more is executed.
    pub fn end(&mut self) {
        self.has_ended = true;
        self.queue.clear();
        self.begun = 0;
        self.is_due = false;
        (self.at, self.rnr_at) = (Instant::NEVER, Instant::NEVER);
        (self.cursor, self.high, self.end) = (self.una, self.una, self.una);
    }

    /// An answer took so long.
    pub fn measured(&mut self, time: Duration) {
        let smooth = |old: Duration| Duration::from_ps((old.as_ps() * 7 + time.as_ps()) / 8);
        self.round_trip = Some(self.round_trip.map_or(time, smooth));
    }

    /// How long an answer is waited for.
    pub fn round_trip_wait(&self, qp: &Qp, nic: &NicState) -> Duration {
        let measured = self.round_trip.map(|time| time.times(4).max(nic.irn.rto_low));
        let wait = measured.unwrap_or(peer::first_wait());
        let rto = qp.rto(nic);
        if rto > Duration::ZERO { wait.min(rto) } else { wait }
    }

    fn slot(&self, psn: Psn) -> usize {
        (psn.get() & (WINDOW - 1)) as usize
    }

    fn sent_of(&self, psn: Psn) -> &Sent {
        &self.sent[self.slot(psn)]
    }

    fn go_back(&mut self) {
        self.cursor = self.una;
        self.timed = None;
        self.is_due = true;
    }

    /// The request that a packet belongs to.
    fn of(&self, psn: Psn) -> Option<&Pull> {
        let is_of = |pull: &&Pull| (0..pull.packets as i32).contains(&psn.since(pull.first));
        self.queue.iter().take(self.begun).find(is_of)
    }

    /// The same, and where an atomic's result stands.
    pub fn of_mut(&mut self, psn: Psn) -> Option<(&mut Pull, &mut Option<QueueMemory>)> {
        let is_of = |pull: &&mut Pull| (0..pull.packets as i32).contains(&psn.since(pull.first));
        let pull = self.queue.iter_mut().take(self.begun).find(is_of)?;
        Some((pull, &mut self.result))
    }

    /// Since when an answer has been waited for whose time is up, and when it was: the driver may know why.
    pub fn overdue(&self, now: Instant) -> Option<(Instant, Instant)> {
        (self.at <= now && self.una != self.high).then_some((self.armed, self.at))
    }

    /// Whether it is borne once more that the oldest packet came too late. Who says so lives, and one of the
    /// two may have had no processor: that is borne as such silence is.
    fn bears_late(&mut self, qp: &Qp, nic: &NicState, now: Instant) -> bool {
        let excused = self.borne.look(self.moved, now, now, Silence::Late, nic.tolerance.excused_max);
        excused || super::is_patient(qp, nic, self.borne.counts(self.moved, now))
    }

    /// A timer may have run out. True if the oldest request fails: the other side has asked for it up to now,
    /// and what it takes does not get through. Who has not asked is silent as a whole, and not waited for.
    pub fn on_timer(&mut self, qp: &Qp, nic: &mut NicState, now: Instant, silence: Silence) -> bool {
        if self.rnr_at <= now {
            self.rnr_at = Instant::NEVER;
            self.is_due = true;
        }
        if self.at > now {
            return false;
        }
        let due = core::mem::replace(&mut self.at, Instant::NEVER);
        let is_asked = core::mem::take(&mut self.is_asked);
        self.asked = self.asked.saturating_add(is_asked.into());
        let excused = self.borne.look(self.moved, due, now, silence, nic.tolerance.excused_max);
        nic.counters.timeouts_excused += u64::from(excused);
        if super::is_patient(qp, nic, self.borne.counts(self.moved, now)) {
            self.repeats = self.repeats.saturating_add(1);
            self.went_back = false;
            self.go_back();
            return false;
        }
        let fails = is_asked && self.asked >= ASKED_MIN;
        self.rests = !fails;
        fails
    }

    /// Packets of a request are done with; it completes.
    fn is_front_answered(&self) -> bool {
        let Some(front) = self.queue.front() else { return false };
        self.begun > 0 && !self.una.is_before(front.first.add(front.packets))
    }

    /// Whether the next request may begin, as far as those before it go.
    fn may_begin(&self, pull: &Pull) -> bool {
        let before = || self.queue.iter().take(self.begun);
        let in_window = self.cursor == self.end && self.cursor.since(self.una) < WINDOW as i32;
        // Behind one that is refused nothing is done any more.
        let is_behind_refused = before().any(|earlier| earlier.refusal.is_some());
        // What is read is read after all that was written before.
        let waits_for_writes = pull.is_read() && before().any(|earlier| !earlier.is_read());
        let waits_for_reads = pull.has(star::Wqe::FENCE) && before().any(Pull::is_read);
        in_window && !is_behind_refused && !waits_for_writes && !waits_for_reads
    }
}

/// One step for the other side's requests: something is completed, begun or sent. `None` when there is
/// nothing.
pub(super) fn step(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> Option<SendStep> {
    while star.peer.pulls.is_due {
        if !qp.receives() {
            star.peer.pulls.is_due = false;
            break;
        }
        if star.peer.pulls.is_front_answered() {
            finish(qp, star, nic, now);
            continue;
        }
        if begin(qp, star, nic, now) {
            continue;
        }
        let pulls = &star.peer.pulls;
        let in_window = pulls.cursor.since(pulls.una) < WINDOW as i32;
        if pulls.cursor.is_before(pulls.end) && in_window && send(qp, star, nic, now, out) {
            return Some(SendStep::Answer);
        }
        star.peer.pulls.is_due = false;
    }
    None
}

/// Begins the next request, if it may.
fn begin(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) -> bool {
    let pulls = &mut star.peer.pulls;
    let Some(pull) = pulls.queue.get(pulls.begun) else { return false };
    if !pulls.may_begin(pull) || pulls.rnr_at != Instant::NEVER {
        return false;
    }
    if pull.takes_receive() {
        let pending = pulls.queue.iter().take(pulls.begun).filter(|pull| pull.takes_receive()).count();
        // One that is being received into is the first of those that are begun.
        let held = usize::from(qp.responder.receive_taken);
        let posted = qp.receiver.as_deref().map_or(0, |receiver| receiver.queue.len() as usize);
        if posted + held <= pending {
            return pulls.begun == 0 && not_ready(qp, star, nic, now);
        }
    }
    pulls.rnr_spent = 0;
    let (len, mtu) = (pull.len(), qp.mtu());
    let refusal = if pull.is_read() { check(qp, nic, pull).err() } else { None };
    let packets = if refusal.is_some() { 0 } else { len.div_ceil(mtu) };
    if pulls.una == pulls.end {
        pulls.move_on(now);
    }
    let end = pulls.end;
    if let Some(pull) = pulls.queue.get_mut(pulls.begun) {
        (pull.first, pull.packets, pull.refusal) = (end, packets, refusal);
    }
    pulls.begun += 1;
    pulls.end = end.add(packets);
    true
}

/// This side has no receive for the oldest request, a SEND: as RC, it is tried again after this side's RNR
/// timer, as often as the other side's RNR retry count allows. True if it has failed.
fn not_ready(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) -> bool {
    let allowed = star.peer.rnr_retries;
    let pulls = &mut star.peer.pulls;
    if allowed == retry::RNR_UNLIMITED || pulls.rnr_spent < allowed {
        pulls.rnr_spent = pulls.rnr_spent.saturating_add(1);
        pulls.rnr_at = now + retry::rnr_time(qp.attr.min_rnr_timer);
        nic.counters.rnr_naks_sent += 1;
        return false;
    }
    drop_front(star, Status::RnrRetryExceeded);
    true
}

/// The oldest request ends with this status, and the other side does not go on after an error.
fn drop_front(star: &mut Star, status: Status) {
    let pulls = &mut star.peer.pulls;
    let Some(pull) = pulls.queue.pop_front() else { return };
    pulls.begun = pulls.begun.saturating_sub(1);
    pulls.done = pulls.done.wrapping_add(1);
    let Pull { wqe, merged, .. } = pull;
    let cqe = Cqe { flags: 0, status: status as u8, op: wqe.op, index: wqe.index, len: 0, immediate: 0 };
    match (merged, status) {
        (true, Status::Success) => {}
        (true, _) => star.peer.complete_instead(cqe),
        (false, _) => star.peer.complete(cqe),
    }
    if status != Status::Success {
        star.peer.pulls.end();
    }
}

/// The oldest request fails: nothing of it got through for the timeout, retry count times over.
pub(super) fn give_up(star: &mut Star) {
    drop_front(star, Status::TransportRetryExceeded);
}

/// All packets of the oldest request are answered.
fn finish(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) {
    let Some(pull) = star.peer.pulls.queue.front() else { return };
    if let Some(refusal) = pull.refusal {
        let packet = pull.packet(0, true);
        return refuse(qp, star, nic, now, &packet, refusal);
    }
    // What brings its data along, or has none, lands now. A WRITE of nothing needs no right.
    let lands = !pull.is_read()
        && pull.packets == 0
        && (pull.wqe.op == Op::Send || pull.takes_receive() || pull.wqe.len > 0);
    if lands {
        let mtu = qp.mtu();
        let count = (pull.data.len() as u32).div_ceil(mtu).max(1);
        for k in 0..count {
            let Some(pull) = star.peer.pulls.queue.front() else { return };
            let from = (k * mtu) as usize;
            let bytes = &pull.data[from..pull.data.len().min(from + mtu as usize)];
            let packet = pull.packet(k, k + 1 == count);
            let accepted = receive::accept(qp, nic, now, &packet, &Payload::from_slice(bytes));
            if let Err(refusal) = accepted {
                return refuse(qp, star, nic, now, &packet, refusal);
            }
        }
    }
    drop_front(star, Status::Success);
}

/// Completes all that is answered: what lands by itself lands before what comes after it.
fn finish_all(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant) {
    while star.peer.pulls.is_front_answered() {
        finish(qp, star, nic, now);
    }
}

/// The oldest request is refused: as a responder of RC does, this side goes to ERR.
fn refuse(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, packet: &Packet, refusal: Refusal) {
    responder::refuse(qp, nic, now, packet, refusal);
    let status = match qp.responder.take_acknowledge() {
        Some((_, Syndrome::Nak(code))) => retry::nak_cause(code, packet).status,
        _ => Status::Success,
    };
    drop_front(star, status);
    star.peer.pulls.end();
}

/// A packet may not leave, or its data cannot be read: nothing is sent from it on. Its request fails when its
/// turn comes: all before it are answered first.
fn stop_at(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, psn: Psn, refusal: Refusal) {
    let pulls = &mut star.peer.pulls;
    let is_of = |pull: &Pull| (0..pull.packets as i32).contains(&psn.since(pull.first));
    let Some(place) = pulls.queue.iter().take(pulls.begun).position(is_of) else { return };
    let pull = &mut pulls.queue[place];
    (pull.packets, pull.refusal) = (psn.since(pull.first) as u32, Some(refusal));
    pulls.begun = place + 1;
    pulls.end = psn;
    if psn.is_before(pulls.high) {
        pulls.high = psn;
    }
    finish_all(qp, star, nic, now);
}

/// Sends the packet at the cursor. False if it cannot be sent now.
fn send(qp: &mut Qp, star: &mut Star, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> bool {
    let (remote, clock) = (star.remote, star.clock(now));
    let psn = star.peer.pulls.cursor;
    let Some(pull) = star.peer.pulls.of(psn) else { return false };
    let (mtu, wqe, at, reads) = (qp.mtu(), pull.wqe, pull.at, pull.is_read());
    let k = psn.since(pull.first) as u32;
    let offset = k * mtu;
    let len = (wqe.len - offset).min(mtu);
    let left = pull.packets - k;
    out.payload.clear();
    if reads && !congestion::may_send(qp, now) {
        qp.responder.held_back = true;
        return false;
    }
    let target = of_posted(wqe.index, at, offset);
    if !egress::posted_may_leave(qp, nic, target, wqe.len - offset) {
        stop_at(qp, star, nic, now, psn, Refusal::Unruled);
        return false;
    }
    if reads && let Err(refusal) = read_out(qp, star, nic, psn, (offset, len), out) {
        stop_at(qp, star, nic, now, psn, refusal);
        return false;
    }
    let is_new = psn == star.peer.pulls.high;
    let room = WINDOW - psn.since(star.peer.pulls.una) as u32;
    let packets = if is_new && !reads { packets_of(qp, star, left.min(room)) } else { 1 };
    let bytes = (wqe.len - offset).min(packets * mtu);
    let merges = is_new && star.peer.may_merge() && star.peer.pulls.may_merge(psn);
    let number = merges.then(|| star.peer.number_merged());
    // Its copies, of which the other side executes none any more: its clock has passed their deadline.
    let is_too_late = !is_new && star.has_passed(star.peer.pulls.sent_of(psn).deadline);
    let pulls = &mut star.peer.pulls;
    if pulls.sent.is_empty() {
        pulls.sent = vec![NEVER_SENT; WINDOW as usize];
    }
    let slot = pulls.slot(psn);
    if is_new {
        pulls.cover(psn, merges);
        let (posted, key, names) = target;
        let va = number.map_or(posted, |number| Merged::va(wqe.index, number));
        let new = Sent { va, key, names, len: len as u16, is_read: !reads, is_merged: merges, ..NEVER_SENT };
        pulls.sent[slot] = Sent { is_renewed: true, copy: u8::MAX, ..new };
        pulls.high = psn.add(packets);
        pulls.timed.get_or_insert((psn, now));
    } else {
        pulls.sent[slot].is_renewed |= is_too_late;
        nic.counters.retransmitted_packets += 1;
    }
    head(&mut pulls.sent[slot], remote, clock, &wqe, psn, (offset, bytes), out);
    pulls.remember_burst(psn, packets, bytes, mtu);
    nic.counters.star_bursts += u64::from(packets > 1);
    out.packet.flow = qp.flow(nic);
    out.packet.bth.dest_qp = qp.peer;
    out.path = qp.path;
    pulls.cursor = psn.add(packets);
    if pulls.at == Instant::NEVER || psn == pulls.una {
        let wait = pulls.round_trip_wait(qp, nic).times(1 << pulls.repeats.min(DOUBLINGS_MAX));
        (pulls.at, pulls.armed) = (now + share_of_patience(qp, nic, wait), now);
    }
    if reads {
        congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Answer, now);
    }
    true
}
