//! The stateless side's host: what its NIC does not keep. It hands what is posted to the peer as WQEPs, and
//! repeats what nobody has acknowledged; [`super::completions`] takes CQEPs (StaR, III-B and III-C2).
//!
//! ```text
//!   posted -> told -> acknowledged (EA) -> done (CQE)
//! ```
//!
//! Numbers of entries count work requests of a queue, from the first PSN of this side on, so that who forges
//! a packet has to guess as much as of a PSN. A send request goes by the first block of its WQE beside that,
//! a receive by its place in its queue: by these the NIC finds it again.

use super::completions::Queue;
use super::entries::{put_receives, put_sends};
use super::frames::Ends;
use super::promised::{self, Promised, rule_of_silence};
use super::{DOUBLINGS_MAX, Hosted, Phase, StarNic};
use crate::endpoint::{Endpoint, Place};
use crate::explain::{Cause, TimerCause};
use crate::frame::TxFrame;
use crate::ids::QpId;
use crate::limits::MAX_MTU;
use crate::memory::QueueMemory;
use crate::nic::Nic;
use crate::qp::ack_timeout;
use crate::silence::{Borne, Overdue, Silence};
use crate::state::NicState;
use crate::transport::rc::star::share;
use crate::transport::star::posted::{HostQueues, outstanding};
use crate::work::Status;
use adverb_wire::star::{self, Op, StarEth};
use adverb_wire::{Bth, Duration, Instant, Opcode, Operation, Packet, Psn, QpNumber, Service};

/// Queues: which of two numbers is whose.
pub(super) const SENDS: usize = 0;
pub(super) const RECEIVES: usize = 1;

/// What the host knows of the work that the peer has from it.
#[derive(Debug)]
pub(super) struct Library {
    /// Entries of each queue that were told, and that were acknowledged.
    pub(super) told: [u32; 2],
    pub(super) acknowledged: [u32; 2],
    /// Receives that the connection had before: those are counted on, and numbered from the base.
    before: u32,
    /// Sends that are done, and the most that were ever told: what this side does by itself it does once.
    pub(super) done: u32,
    pub(super) executed: u32,
    /// Blocks of the send queue that belong to those counts.
    pub(super) told_block: u32,
    pub(super) acknowledged_block: u32,
    /// Completions taken.
    pub(super) completions: u32,
    /// The peer is to be asked for a sign of life.
    pub(super) asks: bool,
    /// Times that the oldest was repeated.
    pub(super) repeats: u8,
    /// Since when the oldest that was told waits for its acknowledgement; what a measurement ends with, and
    /// how long acknowledgements take.
    pub(super) since: Instant,
    /// When anything was last told: what the driver knows of the time before says nothing of its answer.
    sent: Instant,
    timed: Option<(usize, u32, Instant)>,
    round_trip: Option<Duration>,
    /// When the peer was heard last, or something was posted to which it owes an answer.
    pub(super) heard: Instant,
    /// Of the silence since, what was excused.
    borne: Borne,
    /// Completions that the peer has told of and that have not come.
    pub(super) promised: Promised,
    /// A WQE that fails by itself once its turn has come.
    pub(super) failed: Option<Box<(u32, Cause)>>,
}

impl Library {
    /// Of a connection that begins; sends were posted from `block` on.
    pub fn new(block: u32) -> Library {
        Library {
            told: [0; 2],
            acknowledged: [0; 2],
            before: 0,
            done: 0,
            executed: 0,
            told_block: block,
            acknowledged_block: block,
            completions: 0,
            asks: false,
            repeats: 0,
            since: Instant::ZERO,
            sent: Instant::ZERO,
            timed: None,
            round_trip: None,
            heard: Instant::ZERO,
            borne: Borne::default(),
            promised: Promised::default(),
            failed: None,
        }
    }

    /// Completions were taken, or are known not to come.
    pub(super) fn take_completions(&mut self, count: u32) {
        self.completions = self.completions.wrapping_add(count);
        self.promised.keep();
    }

    /// Its receives begin with this one.
    pub(super) fn begin_receives(&mut self, first: u32) {
        (self.told[RECEIVES], self.acknowledged[RECEIVES], self.before) = (first, first, first);
    }

    /// Receives that the connection had before.
    pub(super) fn receives_before(&self) -> u32 {
        self.before
    }

    /// Send requests that were told.
    pub(super) fn sends_told(&self) -> u32 {
        self.told[SENDS]
    }

    /// The number of an entry of a queue, on from `base`.
    pub(super) fn number(&self, base: Psn, queue: usize, count: u32) -> Psn {
        let before = if queue == RECEIVES { self.before } else { 0 };
        base.add(count.wrapping_sub(before) & Psn::MASK)
    }

    /// A send request was posted at `block`, behind `end`: an empty queue begins at another block.
    pub fn follow(&mut self, end: u32, block: u32) {
        if self.told_block == end {
            self.told_block = block;
        }
        if self.acknowledged_block == end {
            self.acknowledged_block = block;
        }
    }

    /// The peer has all entries of a queue before this one.
    pub(super) fn acknowledge(&mut self, queue: usize, count: u32, endpoint: &Endpoint) {
        if queue == SENDS {
            while self.acknowledged[SENDS] != count {
                let blocks = endpoint.starts().blocks_from(self.acknowledged_block).unwrap_or(1);
                self.acknowledged_block = self.acknowledged_block.wrapping_add(blocks);
                self.acknowledged[SENDS] = self.acknowledged[SENDS].wrapping_add(1);
            }
            if (self.told[SENDS].wrapping_sub(count) as i32) < 0 {
                (self.told[SENDS], self.told_block) = (count, self.acknowledged_block);
            }
        } else {
            self.acknowledged[RECEIVES] = count;
            if (self.told[RECEIVES].wrapping_sub(count) as i32) < 0 {
                self.told[RECEIVES] = count;
            }
        }
    }

    /// The peer works on the request at the block with this index, and so has all up to it: how many of them
    /// were not acknowledged before.
    pub(super) fn hear_request(&mut self, index: u32, endpoint: &Endpoint) -> u32 {
        let known = self.acknowledged[SENDS];
        let Some(block) = outstanding(index, (self.acknowledged_block, endpoint.sq.posted)) else { return 0 };
        while block.wrapping_sub(self.acknowledged_block) as i32 >= 0 {
            self.acknowledge(SENDS, self.acknowledged[SENDS].wrapping_add(1), endpoint);
        }
        self.acknowledged[SENDS].wrapping_sub(known)
    }

    /// The peer was heard.
    pub fn heard_at(&mut self, now: Instant) {
        (self.heard, self.repeats) = (now, 0);
        self.borne.end();
    }

    /// How long the peer has been silent, of which `silence` may excuse what was added since the last look:
    /// up to `most` in all, as with RC. True if it did.
    fn bears(&mut self, due: Instant, now: Instant, silence: Silence, most: Duration) -> (Duration, bool) {
        let excused = self.borne.look(self.heard, due, now, silence, most);
        (self.borne.counts(self.heard, now), excused)
    }

    /// Whether all that was told is acknowledged.
    fn is_heard(&self) -> bool {
        self.told == self.acknowledged
    }

    /// An acknowledgement took so long.
    pub(super) fn measured(&mut self, time: Duration) {
        let smooth = |old: Duration| Duration::from_ps((old.as_ps() * 7 + time.as_ps()) / 8);
        self.round_trip = Some(self.round_trip.map_or(time, smooth));
    }

    /// How long an acknowledgement is waited for, so often in vain already: by what was measured, as at the
    /// stateful side, and never for longer than a hello is.
    pub(super) fn wait(&self, hello_interval: Duration, least: Duration, repeats: u8) -> Duration {
        let measured = self.round_trip.map_or(hello_interval, |time| time.times(4).max(least));
        measured.min(hello_interval).times(1 << repeats.min(DOUBLINGS_MAX))
    }

    /// Something of a queue was told; `was_heard` says that nothing waited before it.
    fn on_told(&mut self, queue: usize, was_heard: bool, now: Instant) {
        if was_heard {
            self.since = now;
        }
        if self.repeats == 0 && self.timed.is_none() {
            self.timed = Some((queue, self.told[queue], now));
        }
    }

    /// Entries were acknowledged: the round trip of one that was told once, and the next one waits from now.
    pub(super) fn on_acknowledged(&mut self, now: Instant) {
        if let Some((queue, count, at)) = self.timed
            && self.acknowledged[queue].wrapping_sub(count) as i32 >= 0
        {
            self.timed = None;
            self.measured(now.since(at));
        }
        self.since = now;
    }

    /// What was not acknowledged is told again, or nothing but a question.
    fn repeat(&mut self) {
        self.asks = self.is_heard();
        self.promised.ask();
        self.told = self.acknowledged;
        self.told_block = self.acknowledged_block;
        self.timed = None;
        self.repeats = self.repeats.saturating_add(1);
    }
}

impl Hosted {
    /// The number of the next completion.
    pub(super) fn next_completion(&self) -> Psn {
        self.base.add(self.library.completions & Psn::MASK)
    }

    /// The same, if it may come with its data.
    fn next_merged(&self) -> Option<Psn> {
        let may = self.phase == Phase::Stateless && self.features & star::features::MERGE != 0;
        may.then(|| self.next_completion())
    }
}

impl Endpoint {
    /// The queues, for the stateless NIC to read.
    pub fn host_queues(&self) -> HostQueues<'_> {
        let receives = self.receiver.as_deref().map(|receiver| &receiver.queue);
        let completion = self.star.as_deref().and_then(Hosted::next_merged);
        HostQueues::new(&self.sq, self.starts(), receives, self.pd, completion)
    }

    pub(super) fn receives_posted(&self) -> u32 {
        self.receiver.as_deref().map_or(0, |receiver| receiver.queue.waiting().1)
    }

    /// Whether something was posted that the peer was not told.
    pub(super) fn has_untold(&self) -> bool {
        self.star.as_deref().is_some_and(|hosted| {
            let library = &hosted.library;
            (library.told_block != self.sq.posted && !hosted.held)
                || library.told[RECEIVES] != self.receives_posted()
        })
    }

    /// Whether the peer owes something for what is posted: receives wait for as long as it takes.
    fn awaits_peer(&self, library: &Library) -> bool {
        self.sq.has_unfetched() || library.acknowledged[RECEIVES] != self.receives_posted()
    }

    /// Time of silence after which it gives up; `None` for never.
    fn patience(&self, nic: &NicState) -> Option<Duration> {
        let (timeout, retries) = (self.attr.timeout, self.attr.retry_cnt);
        let rto = nic.rto.unwrap_or(ack_timeout(timeout).max(nic.rto_min));
        (timeout > 0).then(|| rto.max(nic.tolerance.share(retries)).times(u64::from(retries) + 1))
    }
}

/// Work requests out.
impl Nic {
    /// Something was posted to an endpoint whose peer has the state.
    pub(super) fn tell_posted(&mut self, now: Instant, id: QpId) {
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let Some(hosted) = endpoint.star.as_deref_mut() else { return };
        if hosted.at == Instant::NEVER {
            hosted.library.heard_at(now);
            hosted.hand_over = hosted.phase == Phase::Handing;
        }
        self.star_due(id);
    }

    /// An endpoint whose peer has the state has waited for it: repeats, or gives up. The driver is asked what
    /// it knows of the peer's silence.
    pub(super) fn library_timer(&mut self, now: Instant, id: QpId, ask: &mut dyn FnMut(&Overdue) -> Silence) {
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let patience = endpoint.patience(&self.state);
        let waits = endpoint.star.as_deref().is_some_and(|hosted| endpoint.awaits_peer(&hosted.library));
        let Some(hosted) = endpoint.star.as_deref_mut() else { return };
        if !waits {
            return;
        }
        let library = &mut hosted.library;
        let least = self.state.irn.rto_low;
        let pace = self.star.as_ref().map_or(Duration::ZERO, |star| star.config.hello_interval);
        let (since, wait) = match library.is_heard() {
            // What is under way at the peer is asked for at leisure.
            true => (library.heard, pace.times(1 << library.repeats.min(DOUBLINGS_MAX))),
            false => (library.since, library.wait(pace, least, library.repeats)),
        };
        let retries = endpoint.attr.retry_cnt;
        let wait = patience.map_or(wait, |patience| wait.min(share(patience, retries)));
        let due = since + wait;
        if due > now {
            hosted.at = due;
            return self.arm(id);
        }
        let (path, dst, peer) = (endpoint.path, endpoint.dst, endpoint.peer);
        // What was told last is what it has not answered.
        let (since, due) = (since.max(library.sent), due.max(library.sent + wait));
        let silence = ask(&Overdue { path, dst, peer, since, due });
        let most = self.state.tolerance.excused_max;
        let (silent, excused) = library.bears(due, now, silence, most);
        self.state.counters.timeouts_excused += u64::from(excused);
        let is_silent = patience.is_some_and(|length| silent >= length);
        let is_broken =
            patience.is_some_and(|length| library.promised.is_broken(due, now, silence, most, length));
        if let Some(length) = patience.filter(|_| is_silent || is_broken)
            && endpoint.sq.has_unfetched()
        {
            self.state.counters.timeouts += 1;
            let expiries = library.repeats;
            let timer = TimerCause { name: "patience with the stateful side", length, expiries };
            let rule = if is_silent { rule_of_silence(silence) } else { promised::RULE };
            let cause = Cause::local(Status::TransportRetryExceeded, rule);
            return self.fail_hosted(now, id, Some((Queue::Sends, Cause { timer: Some(timer), ..cause })));
        }
        library.repeat();
        self.state.counters.star_repeats += 1;
        self.star_due(id);
    }
}

/// The queues of a number whose connection this NIC keeps nothing of.
pub(super) fn queues_of<'a>(
    endpoints: &'a crate::endpoint::Endpoints,
    numbers: &crate::numbers::Numbers,
    number: QpNumber,
) -> Option<HostQueues<'a>> {
    match endpoints.get(endpoints.name_at(numbers.owner(number))?)? {
        Place::Off(endpoint) if endpoint.is_handed_over() => Some(endpoint.host_queues()),
        _ => None,
    }
}

impl StarNic {
    /// Puts a WQEP into `out`, if there is something to tell: receives first.
    pub(super) fn put_work(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        nic: &mut NicState,
        ends: &Ends,
        out: &mut TxFrame,
    ) -> bool {
        if self.body.is_none() {
            self.body = QueueMemory::new(MAX_MTU).ok();
        }
        let Some(memory) = &self.body else { return false };
        let patience = endpoint.patience(nic);
        let Some(mut hosted) = endpoint.star.take() else { return false };
        let (base, carries) = (hosted.base, hosted.features & star::features::CARRIED != 0);
        let library = &mut hosted.library;
        let room = usize::from(endpoint.mtu).min(MAX_MTU);
        let receives = endpoint.receives_posted();
        let was_heard = library.is_heard();
        let first;
        let (queue, count, len) = if library.told[RECEIVES] != receives {
            first = library.told[RECEIVES];
            let (count, len) = put_receives(endpoint, library, memory, room, carries);
            (RECEIVES, count, len)
        } else if library.told_block != endpoint.sq.posted && !hosted.held {
            first = library.told[SENDS];
            let (count, len) = put_sends(endpoint, library, nic, memory, room, carries);
            (SENDS, count, len)
        } else if core::mem::take(&mut library.asks) {
            first = library.told[SENDS];
            (SENDS, 0, 0)
        } else {
            endpoint.star = Some(hosted);
            return false;
        };
        library.asks = false;
        library.sent = now;
        if count > 0 {
            library.on_told(queue, was_heard, now);
        }
        let (op, flags) = if queue == RECEIVES { (Op::Recv, StarEth::RECV_QUEUE) } else { (Op::Send, 0) };
        let (pace, repeats) = (self.config.hello_interval, library.repeats);
        let wait = match library.is_heard() {
            true => pace.times(1 << repeats.min(DOUBLINGS_MAX)),
            false => library.wait(pace, nic.irn.rto_low, repeats),
        };
        let retries = endpoint.attr.retry_cnt;
        let at = now + patience.map_or(wait, |patience| wait.min(share(patience, retries)));
        hosted.at = hosted.at.min(at);
        let psn = hosted.library.number(base, queue, first);
        endpoint.star = Some(hosted);
        let bth = Bth {
            opcode: Opcode::new(Service::Star, Operation::WqePacket),
            psn,
            dest_qp: ends.peer,
            ack_req: true,
            ..Bth::default()
        };
        out.payload.clear();
        if len > 0 {
            out.payload.push(memory.span(0, len));
        }
        // Known from RTS on only, and so told with the requests, not with the connection.
        let rnr_retries = if queue == SENDS { u32::from(endpoint.attr.rnr_retry) } else { 0 };
        let irn = StarEth::new(op, flags, count, rnr_retries).into();
        out.packet = Packet { flow: ends.flow, bth, irn, payload_len: len as u32, ..Packet::default() };
        out.path = ends.path;
        nic.counters.star_work_sent += 1;
        true
    }
}
