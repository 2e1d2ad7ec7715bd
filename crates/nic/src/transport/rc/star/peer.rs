//! What the stateful half keeps for the other side: its receives, the completions that it is to have, and,
//! in [`super::pulls`], its send requests. WQEPs come in and are acknowledged; CQEPs go out, one at a time,
//! until they are.

mod unheard;

pub(super) use unheard::{first_wait, give_up};

use super::pull::Pull;
use super::pulls::Pulls;
use super::{Remote, Star};
use crate::explain::Cause;
use crate::frame::TxFrame;
use crate::memory::{Payload, QueueMemory};
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::state::NicState;
use crate::transport::failure::fail_oldest;
use crate::transport::rc::retry;
use crate::work::Status;
use adverb_wire::star::{self, Cqe, Op, Record, Sge, StarEth};
use adverb_wire::{Bth, Duration, Instant, Opcode, Operation, Packet, Psn, Service};
use std::collections::VecDeque;
use unheard::Wait;

/// Completions of a CQEP at most.
const CQES: usize = 64;
/// Longest inline data of an entry.
const INLINE_MAX: u32 = 256;
/// How long an acknowledgement takes before one was measured.
const FIRST_WAIT: Duration = Duration::from_ms(10);
/// Of the waits, the longest has so many doublings.
const DOUBLINGS_MAX: u8 = 6;
/// Queues: which of two numbers is whose.
const SENDS: usize = 0;
const RECEIVES: usize = 1;

/// A receive of the stateless side that no message has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub index: u32,
    pub len: u32,
    /// Where it lies, if that was told.
    pub at: Option<Sge>,
}

/// One that a request of this side has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The request's place in flight.
    pub request: u32,
    /// What the other side is to be told when that is done.
    pub cqe: Cqe,
    pub at: Option<Sge>,
    /// It comes with the request's data.
    pub merged: bool,
}

/// Whether the other side has a receive that this one has not heard of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    No,
    Asking,
    /// It has posted so many in all.
    Told(u32),
}

/// The other side's part of the connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its first PSN: numbers of its entries, of completions and of its requests' packets begin there.
    base: Psn,
    /// Receives that the connection had before: those are counted on, and numbered from the base.
    before: u32,
    /// Sizes of its queues.
    sizes: (u16, u16),
    /// Of its attributes: after how long a sender asks again that finds no receive, and the RNR retries of
    /// its own requests, as the newest of them says.
    pub rnr_timer: u8,
    pub rnr_retries: u8,
    /// Entries that have come, by queue; and whether that is to be acknowledged.
    heard: [u32; 2],
    acknowledges: [bool; 2],
    /// What acknowledges its send requests may be the first packet for the last of them.
    may_cover: bool,
    pub receives: VecDeque<Receive>,
    pub taken: VecDeque<Taken>,
    pub ask: Ask,
    /// Since when it has told of receives that do not come.
    promised: Instant,
    pub pulls: Pulls,
    /// Completions that are not acknowledged, but for those that go with their data.
    cqes: VecDeque<Cqe>,
    /// The number of the next one that is sent, either way.
    next: u32,
    /// The number of the first and how many are in the CQEP that is under way, if one is.
    under_way: Option<(u32, u16)>,
    /// Completions may go with their data; work requests come with their addresses.
    pub merges: bool,
    carries: bool,
    /// One of those will not come, so what comes after it need not wait.
    is_final: bool,
    /// The CQEP was sent again because something waits for it.
    was_urged: bool,
    /// Which CQEP it is.
    token: u8,
    is_due: bool,
    has_ended: bool,
    /// Why this side has failed, for the other one to hear.
    closing: Option<Status>,
    /// When the CQEP is sent again; and the silence that it meets.
    at: Instant,
    wait: Wait,
    body: Option<QueueMemory>,
}

impl Peer {
    pub fn new(base: Psn, record: &Record) -> Peer {
        Peer {
            base,
            before: record.receives,
            sizes: record.queues,
            rnr_timer: record.rnr_timer,
            rnr_retries: record.rnr_retries,
            heard: [0, record.receives],
            acknowledges: [false; 2],
            may_cover: false,
            receives: VecDeque::new(),
            taken: VecDeque::new(),
            ask: Ask::No,
            promised: Instant::NEVER,
            pulls: Pulls::new(base),
            cqes: VecDeque::new(),
            next: 0,
            under_way: None,
            merges: record.features & star::features::MERGE != 0,
            carries: record.features & star::features::CARRIED != 0,
            is_final: false,
            was_urged: false,
            token: 0,
            is_due: false,
            has_ended: false,
            closing: None,
            at: Instant::NEVER,
            wait: Wait::default(),
            body: None,
        }
    }

    /// The other side's attributes as they are now. Not its RNR retries: a copy of the record may be older
    /// than the send requests, and each of these says itself how many it has.
    pub fn hear(&mut self, record: &Record) {
        self.rnr_timer = record.rnr_timer;
    }

    /// The number that the next entry of a queue has.
    fn next_number(&self, queue: usize) -> Psn {
        let before = if queue == RECEIVES { self.before } else { 0 };
        self.base.add(self.heard[queue].wrapping_sub(before) & Psn::MASK)
    }

    /// One past every number used, if all `told` send requests are done and the other side knows it.
    pub fn past(&self, told: u32) -> Option<Psn> {
        let is_done = self.heard[SENDS] == told && self.pulls.len() == 0 && self.taken.is_empty();
        let is_known = self.cqes.is_empty() && self.under_way.is_none() && self.closing.is_none();
        // Of receives more may have been told than have come: as many as its queue holds.
        let receives = self.heard[RECEIVES].wrapping_sub(self.before) + u32::from(self.sizes.1);
        let used = [told, receives, self.next, self.pulls.used(self.base)].into_iter().max();
        (is_done && is_known).then(|| self.base.add((used.unwrap_or(0) & Psn::MASK) + 1))
    }

    /// Whether something is to be sent.
    pub fn has_output(&self) -> bool {
        self.acknowledges != [false; 2] || self.is_due || self.pulls.is_due()
    }

    /// The earliest of its timers.
    pub fn deadline(&self) -> Instant {
        self.at.min(self.pulls.deadline())
    }

    /// Receives of which this side was told, in all.
    pub fn receives_told(&self) -> u32 {
        self.heard[RECEIVES]
    }

    /// The other side is to be told of this completion.
    pub fn complete(&mut self, cqe: Cqe) {
        self.cqes.push_back(cqe);
        self.is_due |= self.under_way.is_none() || self.wait.rests();
    }

    /// A completion that was to go with its data does not: the other side is told otherwise.
    pub fn complete_instead(&mut self, cqe: Cqe) {
        self.is_final = true;
        self.complete(cqe);
    }

    /// Whether the next completion may go with its data: all before it have been sent.
    pub fn may_merge(&self) -> bool {
        let under_way = self.under_way.map_or(0, |(_, count)| usize::from(count));
        self.merges && self.cqes.len() == under_way && !self.is_final && self.closing.is_none()
    }

    /// The number of a completion that goes with its data.
    pub fn number_merged(&mut self) -> Psn {
        let number = self.base.add(self.next & Psn::MASK);
        self.next = self.next.wrapping_add(1);
        number
    }

    /// The other side has put off a completion that came with its data: what comes before it may be lost.
    /// True if that goes out again.
    pub fn urge(&mut self) -> bool {
        let urges = self.under_way.is_some() && !core::mem::replace(&mut self.was_urged, true);
        self.is_due |= urges;
        urges
    }

    /// The other side is asked how many receives it has posted.
    pub fn ask_for_receives(&mut self) {
        self.ask = Ask::Asking;
        self.is_due |= self.under_way.is_none() || self.wait.rests();
    }

    /// This side has failed because the other one refused something.
    pub fn close(&mut self, status: Status) {
        if self.closing.is_none() {
            self.closing = Some(status);
            self.is_due |= self.under_way.is_none() || self.wait.rests();
        }
    }

    /// The queue pair is in ERR: nothing more is done for the other side, but what it is to know.
    pub fn end(&mut self) {
        if let Some(taken) = self.taken.front()
            && taken.cqe.status != 0
        {
            self.complete(taken.cqe);
        }
        self.is_final = self.merges;
        self.taken.clear();
        self.receives.clear();
        self.pulls.end();
        self.ask = Ask::No;
        if !core::mem::replace(&mut self.has_ended, true) && self.has_news() {
            // No acknowledgement comes in any more: all goes into one, whatever is under way.
            if let Some((first, count)) = self.under_way.take() {
                if self.next == first.wrapping_add(count.into()) {
                    self.next = first;
                } else {
                    // Others have gone with their data since: those in one row have come, or do not.
                    self.cqes.drain(..usize::from(count));
                }
            }
            self.is_due = true;
        }
    }

    /// Whether anything is to be told.
    fn has_news(&self) -> bool {
        !self.cqes.is_empty() || self.ask == Ask::Asking || self.closing.is_some()
    }

    /// The next acknowledgement of entries, or a CQEP.
    pub fn next_packet(
        &mut self,
        qp: &Qp,
        nic: &NicState,
        remote: Remote,
        now: Instant,
        out: &mut TxFrame,
    ) -> bool {
        if core::mem::take(&mut self.acknowledges[RECEIVES]) {
            self.put_acknowledgement(qp, nic, remote, RECEIVES, out);
            return true;
        }
        // A completion may be the first packet for its request.
        if self.may_cover && self.put_completions(qp, nic, remote, now, out) {
            return true;
        }
        if core::mem::take(&mut self.acknowledges[SENDS]) {
            let is_covered = core::mem::take(&mut self.may_cover) && self.pulls.covers(self.heard[SENDS]);
            if !is_covered {
                self.put_acknowledgement(qp, nic, remote, SENDS, out);
                return true;
            }
        }
        self.put_completions(qp, nic, remote, now, out)
    }

    fn put_acknowledgement(&self, qp: &Qp, nic: &NicState, remote: Remote, queue: usize, out: &mut TxFrame) {
        out.payload.clear();
        let opcode = Opcode::new(Service::Star, Operation::WqeEventAcknowledge);
        let psn = self.next_number(queue);
        let bth = Bth { opcode, psn, dest_qp: qp.peer, ..Bth::default() };
        let flags = if queue == RECEIVES { StarEth::RECV_QUEUE } else { 0 };
        let irn = StarEth::new(Op::Control, flags, 0, self.completions()).into();
        out.packet = Packet { flow: qp.flow(nic), bth, irn, ticket: remote.ticket, ..Packet::default() };
        out.path = qp.path;
    }

    /// The CQEP that is due, if one is.
    fn put_completions(
        &mut self,
        qp: &Qp,
        nic: &NicState,
        remote: Remote,
        now: Instant,
        out: &mut TxFrame,
    ) -> bool {
        if !core::mem::take(&mut self.is_due) {
            return false;
        }
        if self.body.is_none() {
            self.body = QueueMemory::new(CQES * Cqe::LEN).ok();
        }
        let Some(body) = &self.body else { return false };
        let room = CQES.min(qp.mtu() as usize / Cqe::LEN);
        let (first, count) = match self.under_way {
            Some(under_way) => {
                self.wait.go_on(now);
                under_way
            }
            None => {
                let new = (self.next, self.cqes.len().min(room) as u16);
                self.next = self.next.wrapping_add(new.1.into());
                self.under_way = Some(new);
                self.token = self.token.wrapping_add(1);
                self.was_urged = false;
                self.wait.begin(now);
                new
            }
        };
        let count = usize::from(count);
        let is_all = count == self.cqes.len();
        if is_all {
            self.pulls.cover_done();
        }
        for (at, cqe) in self.cqes.iter().take(count).enumerate() {
            body.write(at * Cqe::LEN, &cqe.bytes());
        }
        out.payload.clear();
        let len = count * Cqe::LEN;
        if len > 0 {
            out.payload.push(body.span(0, len));
        }
        let closes = self.closing.filter(|_| is_all).map_or(0, |status| status as u32);
        let flags = if self.is_final && is_all { StarEth::FINAL } else { 0 };
        let opcode = Opcode::new(Service::Star, Operation::CqePacket);
        let psn = self.base.add(first & Psn::MASK);
        let bth = Bth { opcode, psn, dest_qp: qp.peer, ack_req: true, ..Bth::default() };
        let eth = StarEth { copy: self.token, ..StarEth::new(Op::Control, flags, count as u16, closes) };
        let (flow, ticket) = (qp.flow(nic), remote.ticket);
        out.packet =
            Packet { flow, bth, irn: eth.into(), ticket, payload_len: len as u32, ..Packet::default() };
        out.path = qp.path;
        self.at = now + self.wait(qp, nic);
        true
    }

    /// The other side has the completions before `psn`.
    pub fn on_event_acknowledged(&mut self, packet: &Packet, now: Instant) {
        let eth = StarEth::from(packet.irn);
        let Some((first, count)) = self.under_way.filter(|_| eth.copy == self.token) else { return };
        // Others may have come with their data since.
        let sent = self.next.wrapping_sub(first) as i32;
        let taken = packet.bth.psn.since(self.base.add(first & Psn::MASK));
        if !(i32::from(count)..=sent).contains(&taken) {
            return;
        }
        if self.wait.repeats == 0 {
            self.pulls.measured(now.since(self.wait.since));
        }
        self.cqes.drain(..usize::from(count));
        self.under_way = None;
        self.at = Instant::NEVER;
        if self.ask == Ask::Asking {
            self.ask = Ask::Told(eth.value);
        }
        if self.cqes.is_empty() {
            self.closing = None;
        }
        self.is_due = self.has_news();
    }

    /// Takes in entries of the other side's queues. True if there are new receives.
    pub fn on_work(
        &mut self,
        nic: &mut NicState,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
    ) -> bool {
        let eth = StarEth::from(packet.irn);
        let queue = usize::from(eth.has(StarEth::RECV_QUEUE));
        let mut bytes = [0; crate::limits::MAX_MTU];
        let Some(bytes) = bytes.get_mut(..payload.len()) else { return false };
        if payload.is_elided() && !payload.is_empty() {
            return false;
        }
        payload.read(0, bytes);
        let mut rest = &*bytes;
        let before = self.heard;
        let owed = self.acknowledges[SENDS] && !self.may_cover;
        for at in 0..u32::from(eth.count) {
            let Some((entry, at_home, data)) = next_entry(&mut rest, self.carries) else {
                nic.counters.star_wqe_gap += 1;
                break;
            };
            let expected = self.next_number(queue);
            match packet.bth.psn.add(at).since(expected) {
                0 if self.take(queue, entry, at_home, data) => {
                    self.heard[queue] = self.heard[queue].wrapping_add(1);
                    if queue == SENDS {
                        self.rnr_retries = (eth.value & 7) as u8;
                    }
                }
                behind if behind < 0 => nic.counters.star_wqe_duplicate += 1,
                _ => {
                    nic.counters.star_wqe_gap += 1;
                    break;
                }
            }
        }
        self.acknowledges[queue] = true;
        // Who repeats, or asks, is to have an acknowledgement of its own.
        let all_new = self.heard[SENDS].wrapping_sub(before[SENDS]) == u32::from(eth.count) && eth.count > 0;
        if queue == SENDS {
            self.may_cover = self.merges && all_new && !owed;
        }
        // Who asks lives, and waits: what was given up is taken up again.
        self.pulls.resume(now);
        if self.under_way.is_some() && self.at == Instant::NEVER {
            self.is_due = true;
        }
        self.heard[RECEIVES] != before[RECEIVES]
    }

    fn take(&mut self, queue: usize, entry: star::Wqe, at: Option<Sge>, data: &[u8]) -> bool {
        if queue == RECEIVES {
            let room =
                self.receives.len() + self.taken.len() + self.cqes.len() < 2 * usize::from(self.sizes.1) + 1;
            let fits = entry.op == Op::Recv && room && self.receives.len() < usize::from(self.sizes.1);
            if fits {
                self.receives.push_back(Receive { index: entry.index, len: entry.len, at });
            }
            return fits;
        }
        let fits = entry.op != Op::Recv && self.pulls.len() < usize::from(self.sizes.0);
        if fits {
            self.pulls.push(Pull::new(entry, at, data));
        }
        fits
    }
}

/// The next entry of a WQEP, where its data lie if that was told, and the data that follow it.
fn next_entry<'a>(rest: &mut &'a [u8], carries: bool) -> Option<(star::Wqe, Option<Sge>, &'a [u8])> {
    let (head, mut after) = rest.split_first_chunk::<{ star::Wqe::LEN }>()?;
    let entry = star::Wqe::read(head)?;
    let mut at = None;
    if entry.flags & star::Wqe::CARRIED != 0 {
        let (sge, behind) = after.split_first_chunk::<{ Sge::LEN }>()?;
        at = Some(Sge::read(sge).filter(|sge| carries && sge.len == entry.len)?);
        after = behind;
    }
    let len = match entry.op {
        Op::CompareSwap | Op::FetchAdd => 16,
        _ if entry.flags & star::Wqe::INLINE == 0 => 0,
        Op::Send | Op::Write if (1..=INLINE_MAX).contains(&entry.len) && at.is_none() => entry.len as usize,
        _ => return None,
    };
    let (data, after) = after.split_at_checked(len.next_multiple_of(4))?;
    *rest = after;
    Some((entry, at, &data[..len]))
}

/// What a request of this side needs of the other one before its first packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    Ready,
    /// Not now.
    Waits,
    /// The request is longer than the receive that it gets.
    TooLong,
}

/// Whether a request takes a receive of the other side.
pub(super) fn takes_receive(op: WqeOp) -> bool {
    matches!(op, WqeOp::Send | WqeOp::SendImm | WqeOp::SendInv | WqeOp::WriteImm)
}

/// Takes a receive of the other side for the request at the cursor. Without one, the other side is asked
/// whether there is one that has not been told yet; if not, it is "receiver not ready" (IBTA 9.7.5.2.8).
pub(super) fn take_receive(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    wqe: &Wqe,
) -> Readiness {
    let cursor = qp.requester.cursor;
    let peer = &mut *star.peer;
    if peer.taken.iter().any(|taken| taken.request == cursor) {
        return Readiness::Ready;
    }
    if let Some(receive) = peer.receives.pop_front() {
        (peer.ask, peer.promised) = (Ask::No, Instant::NEVER);
        qp.requester.rnr_retries = qp.attr.rnr_retry;
        let too_long = wqe.op != WqeOp::WriteImm && wqe.len > receive.len;
        let cqe = if too_long {
            let status = Status::LocalLength as u8;
            Cqe { flags: Cqe::RECV_QUEUE, status, op: Op::Recv, index: receive.index, len: 0, immediate: 0 }
        } else {
            cqe_of(wqe, receive.index)
        };
        peer.taken.push_back(Taken { request: cursor, cqe, at: receive.at, merged: false });
        return if too_long { Readiness::TooLong } else { Readiness::Ready };
    }
    // What was posted before comes first.
    if cursor != qp.requester.head {
        return Readiness::Waits;
    }
    match peer.ask {
        Ask::No => peer.ask_for_receives(),
        Ask::Asking => {}
        // They are on their way, but not for ever.
        Ask::Told(count) if count != peer.receives_told() => {
            (peer.ask, peer.promised) = (Ask::No, peer.promised.min(now));
            if super::is_patient(qp, nic, now.since(peer.promised)) {
                retry::wait_for_receiver(qp, now, peer.rnr_timer);
            } else {
                let cause = Cause::local(Status::TransportRetryExceeded, PROMISED);
                fail_oldest(qp, nic, now, &cause);
            }
        }
        Ask::Told(_) => {
            let code = peer.rnr_timer;
            (peer.ask, peer.promised) = (Ask::No, Instant::NEVER);
            nic.counters.rnr_naks_received += 1;
            if retry::spend_rnr_retry(qp, nic, now, None, code) {
                retry::wait_for_receiver(qp, now, code);
            }
        }
    }
    Readiness::Waits
}

/// What the other side is told when a request is done that has taken a receive.
pub(super) fn cqe_of(wqe: &Wqe, index: u32) -> Cqe {
    let mut flags = Cqe::RECV_QUEUE;
    flags |= if wqe.solicited { Cqe::SOLICITED } else { 0 };
    flags |= match wqe.op {
        WqeOp::SendImm | WqeOp::WriteImm => Cqe::IMMEDIATE,
        WqeOp::SendInv => Cqe::INVALIDATED,
        _ => 0,
    };
    let op = if wqe.op == WqeOp::WriteImm { Op::Write } else { Op::Recv };
    Cqe { flags, status: 0, op, index, len: wqe.len, immediate: wqe.imm }
}

/// Rule of receives that the other side has told of and that do not come.
const PROMISED: &str = "the stateless side said that it has a receive, and did not tell which within the \
                        timeout, retry count times over (StaR; IBTA 9.7.6.1.3)";
