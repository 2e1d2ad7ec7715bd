//! The stateless side's host: what its NIC does not keep. It hands what is posted to the peer as WQEPs, repeats
//! what nobody has acknowledged, and takes completions out of CQEPs, each once (StaR, III-B and III-C2).
//!
//! ```text
//!   posted -> told -> acknowledged (EA) -> done (CQE)
//! ```
//!
//! Numbers of entries count work requests of a queue, from the first PSN of this side on, so that who forges a
//! packet has to guess as much as of a PSN. A send request goes by the first block of its WQE beside that, a
//! receive by its place in its queue: by these the NIC finds it again.

use super::{DOUBLINGS_MAX, Ends, Hosted, Phase, StarNic};
use crate::endpoint::{Endpoint, Place};
use crate::event::{Event, StarOutcome};
use crate::explain::{Cause, TimerCause, received};
use crate::frame::TxFrame;
use crate::ids::QpId;
use crate::limits::MAX_MTU;
use crate::memory::{Payload, QueueMemory};
use crate::nic::Nic;
use crate::qp::ack_timeout;
use crate::queue::cq::Release;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::report::{completion, explain};
use crate::transport::star::posted::{HostQueues, outstanding};
use crate::work::{Completion, CompletionOp, Status};
use adverb_wire::star::{self, Cqe, Op, StarEth};
use adverb_wire::{Bth, Duration, Instant, Key, Opcode, Operation, Packet, Psn, QpNumber, Service};

/// Inline bytes up to these travel with their request.
const CARRIED_INLINE: u32 = 256;
/// Queues: which of two numbers is whose.
const SENDS: usize = 0;
const RECEIVES: usize = 1;

/// What the host knows of the work that the peer has from it.
#[derive(Debug)]
pub(super) struct Library {
    /// Entries of each queue that were told, and that were acknowledged.
    told: [u32; 2],
    acknowledged: [u32; 2],
    /// Sends that are done, and the most that were ever told: what this side does by itself it does once.
    done: u32,
    executed: u32,
    /// Blocks of the send queue that belong to those counts.
    told_block: u32,
    acknowledged_block: u32,
    /// Completions taken.
    completions: u32,
    /// The peer is to be asked for a sign of life.
    asks: bool,
    /// Times that the oldest was repeated.
    repeats: u8,
    /// When the peer was heard last, or something was posted to which it owes an answer.
    heard: Instant,
    /// A WQE that fails by itself once its turn has come.
    failed: Option<Box<(u32, Cause)>>,
}

impl Library {
    /// Of a connection that begins; sends were posted from `block` on.
    pub fn new(block: u32) -> Library {
        Library {
            told: [0; 2],
            acknowledged: [0; 2],
            done: 0,
            executed: 0,
            told_block: block,
            acknowledged_block: block,
            completions: 0,
            asks: false,
            repeats: 0,
            heard: Instant::ZERO,
            failed: None,
        }
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
    fn acknowledge(&mut self, queue: usize, count: u32, endpoint: &Endpoint) {
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

    /// The peer was heard.
    pub fn heard_at(&mut self, now: Instant) {
        (self.heard, self.repeats) = (now, 0);
    }

    /// Whether all that was told is acknowledged.
    fn is_heard(&self) -> bool {
        self.told == self.acknowledged
    }

    /// What was not acknowledged is told again, or nothing but a question.
    fn repeat(&mut self) {
        self.asks = self.is_heard();
        self.told = self.acknowledged;
        self.told_block = self.acknowledged_block;
        self.repeats = self.repeats.saturating_add(1);
    }
}

impl Endpoint {
    /// The queues, for the stateless NIC to read.
    pub fn host_queues(&self) -> HostQueues<'_> {
        HostQueues {
            sends: &self.sq,
            starts: self.starts(),
            receives: self.receiver.as_deref().map(|receiver| &receiver.queue),
            pd: self.pd,
        }
    }

    fn receives_posted(&self) -> u32 {
        self.receiver.as_deref().map_or(0, |receiver| receiver.queue.waiting().1)
    }

    /// Whether something was posted that the peer was not told.
    pub(super) fn has_untold(&self) -> bool {
        self.star.as_deref().is_some_and(|hosted| {
            let library = &hosted.library;
            library.told_block != self.sq.posted || library.told[RECEIVES] != self.receives_posted()
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

    fn completion(&self, now: Instant, wr_id: u64, op: CompletionOp) -> Completion {
        Completion {
            wr_id,
            qp: self.num,
            src_qp: QpNumber::new(0),
            byte_len: 0,
            immediate: 0,
            status: Status::Success,
            op,
            has_immediate: false,
            has_invalidate: false,
            has_grh: false,
            solicited: false,
            sl: 0,
            vendor: 0,
            timestamp_ns: now.as_ps() / 1000,
        }
    }
}

/// Why a completion was not taken: the queue pair goes to ERR.
enum Broken {
    /// The request that it is for fails of this.
    Fails(Queue, Cause),
    /// It is for nothing that is outstanding.
    Unknown,
}

/// A queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    Sends,
    Receives,
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

    /// An endpoint whose peer has the state has waited for it: repeats, or gives up.
    pub(super) fn library_timer(&mut self, now: Instant, id: QpId) {
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(id) else { return };
        let patience = endpoint.patience(&self.state);
        let waits = endpoint.star.as_deref().is_some_and(|hosted| endpoint.awaits_peer(&hosted.library));
        let Some(hosted) = endpoint.star.as_deref_mut() else { return };
        if !waits {
            return;
        }
        let silent = now.since(hosted.library.heard);
        if let Some(length) = patience
            && silent >= length
            && endpoint.sq.has_unfetched()
        {
            self.state.counters.timeouts += 1;
            let expiries = hosted.library.repeats;
            let timer = TimerCause { name: "patience with the stateful side", length, expiries };
            let cause = Cause::local(Status::TransportRetryExceeded, SILENT);
            return self.fail_hosted(now, id, Some((Queue::Sends, Cause { timer: Some(timer), ..cause })));
        }
        hosted.library.repeat();
        self.state.counters.star_repeats += 1;
        self.star_due(id);
    }
}

/// Rule of a peer that has gone.
const SILENT: &str =
    "the stateful side did not answer within the timeout, retry count times over (StaR; IBTA 9.7.6.1.3)";
/// Rule of what it says went wrong.
const TOLD: &str = "the stateful side completed the request with this status (StaR CQEP)";
const UNKNOWN: &str = "the stateful side completed what is not outstanding (StaR CQEP)";
const TOO_LONG: &str =
    "the stateful side completed a receive with more bytes than it has room for (StaR CQEP)";

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
        let base = hosted.base;
        let library = &mut hosted.library;
        let room = usize::from(endpoint.mtu).min(MAX_MTU);
        let receives = endpoint.receives_posted();
        let first;
        let (queue, count, len) = if library.told[RECEIVES] != receives {
            first = library.told[RECEIVES];
            let (count, len) = put_receives(endpoint, library, memory, room);
            (RECEIVES, count, len)
        } else if library.told_block != endpoint.sq.posted {
            first = library.told[SENDS];
            let (count, len) = put_sends(endpoint, library, nic, memory, room);
            (SENDS, count, len)
        } else if core::mem::take(&mut library.asks) {
            first = library.told[SENDS];
            (SENDS, 0, 0)
        } else {
            endpoint.star = Some(hosted);
            return false;
        };
        library.asks = false;
        let (op, flags) = if queue == RECEIVES { (Op::Recv, StarEth::RECV_QUEUE) } else { (Op::Send, 0) };
        let pace = self.config.hello_interval.times(1 << library.repeats.min(DOUBLINGS_MAX));
        let quarter = |patience: Duration| Duration::from_ps(patience.as_ps() / 4);
        hosted.at = now + patience.map_or(pace, |patience| pace.min(quarter(patience)));
        endpoint.star = Some(hosted);
        let bth = Bth {
            opcode: Opcode::new(Service::Star, Operation::WqePacket),
            psn: base.add(first & Psn::MASK),
            dest_qp: ends.peer,
            ack_req: true,
            ..Bth::default()
        };
        out.payload.clear();
        if len > 0 {
            out.payload.push(memory.span(0, len));
        }
        let irn = StarEth::new(op, flags, count, 0).into();
        out.packet = Packet { flow: ends.flow, bth, irn, payload_len: len as u32, ..Packet::default() };
        out.path = ends.path;
        nic.counters.star_work_sent += 1;
        true
    }
}

/// Entries of receives: how many, and their bytes.
fn put_receives(
    endpoint: &Endpoint,
    library: &mut Library,
    memory: &QueueMemory,
    room: usize,
) -> (u16, usize) {
    let Some(receiver) = endpoint.receiver.as_deref() else { return (0, 0) };
    let (mut count, mut len) = (0, 0);
    while library.told[RECEIVES] != receiver.queue.waiting().1 && len + star::Wqe::LEN <= room {
        let index = library.told[RECEIVES];
        let entry = star::Wqe {
            op: Op::Recv,
            flags: 0,
            index,
            len: receiver.queue.capacity_of(index) as u32,
            va: 0,
            rkey: 0,
            immediate: 0,
        };
        memory.write(len, &entry.bytes());
        len += star::Wqe::LEN;
        count += 1;
        library.told[RECEIVES] = index.wrapping_add(1);
    }
    (count, len)
}

/// Entries of send requests: how many, and their bytes.
fn put_sends(
    endpoint: &mut Endpoint,
    library: &mut Library,
    nic: &mut NicState,
    memory: &QueueMemory,
    room: usize,
) -> (u16, usize) {
    let (mut count, mut len) = (0, 0);
    while library.told_block != endpoint.sq.posted {
        let block = library.told_block;
        let available = endpoint.sq.posted.wrapping_sub(block);
        let decoded = endpoint.sq.ring.decode(block, available, endpoint.sq.layout());
        let blocks = endpoint.starts().blocks_from(block).unwrap_or(1);
        // What cannot be read has its turn all the same, and fails then.
        let wqe = decoded.unwrap_or(Wqe { block, segments: 4 * blocks as u8, ..Wqe::NOP });
        if let Err(fault) = decoded {
            let cause = Cause::local(fault.status(), fault.rule());
            library.failed.get_or_insert_with(|| Box::new((block, cause)));
        }
        let mut entry = entry_of(&wqe);
        let once = library.told[SENDS] == library.executed;
        if once {
            library.executed = library.executed.wrapping_add(1);
            if let Err(cause) = check(endpoint, nic, &wqe) {
                library.failed.get_or_insert_with(|| Box::new((block, cause)));
            }
        }
        let fails = library.failed.as_deref().is_some_and(|(at, _)| *at == block);
        if fails || wqe.op.is_local() {
            // The peer only gives it its turn.
            entry = star::Wqe { op: Op::Write, flags: entry.flags & star::Wqe::FENCE, len: 0, ..entry };
        }
        let follows = carried(&entry, &wqe);
        let size = star::Wqe::LEN + follows.next_multiple_of(4);
        if len + size > room {
            break;
        }
        memory.write(len, &entry.bytes());
        let mut data = [0; CARRIED_INLINE as usize];
        match entry.op {
            Op::CompareSwap | Op::FetchAdd => {
                let operands = endpoint.sq.ring.operands(&wqe);
                data[..8].copy_from_slice(&operands.swap_add.to_be_bytes());
                data[8..16].copy_from_slice(&operands.compare.to_be_bytes());
            }
            _ if follows > 0 => {
                let mut gather = crate::memory::Gather::new();
                endpoint.sq.ring.gather_inline(&wqe, 0, wqe.len, &mut gather);
                gather.read(&mut data[..wqe.len as usize]);
            }
            _ => {}
        }
        memory.write(len + star::Wqe::LEN, &data[..follows.next_multiple_of(4)]);
        len += size;
        count += 1;
        library.told[SENDS] = library.told[SENDS].wrapping_add(1);
        library.told_block = block.wrapping_add(blocks);
    }
    (count, len)
}

/// Bytes that follow an entry.
fn carried(entry: &star::Wqe, wqe: &Wqe) -> usize {
    match entry.op {
        Op::CompareSwap | Op::FetchAdd => 16,
        _ if entry.flags & star::Wqe::INLINE != 0 => wqe.len as usize,
        _ => 0,
    }
}

/// A send request as it travels.
fn entry_of(wqe: &Wqe) -> star::Wqe {
    use star::Wqe as W;
    let (op, mut flags) = match wqe.op {
        WqeOp::Send => (Op::Send, 0),
        WqeOp::SendImm => (Op::Send, W::IMMEDIATE),
        WqeOp::SendInv => (Op::Send, W::INVALIDATE),
        WqeOp::WriteImm => (Op::Write, W::IMMEDIATE),
        WqeOp::Read => (Op::Read, 0),
        WqeOp::CompareSwap => (Op::CompareSwap, W::INLINE),
        WqeOp::FetchAdd => (Op::FetchAdd, W::INLINE),
        _ => (Op::Write, 0),
    };
    flags |= if wqe.solicited { W::SOLICITED } else { 0 };
    flags |= if wqe.fence { W::FENCE } else { 0 };
    if wqe.inline && wqe.op.is_message() && (1..=CARRIED_INLINE).contains(&wqe.len) {
        flags |= W::INLINE;
    }
    W { op, flags, index: wqe.block, len: wqe.len, va: wqe.raddr, rkey: wqe.rkey.0, immediate: wqe.imm }
}

/// Rules that a request must meet before it is told; what needs no packet is carried out.
fn check(endpoint: &Endpoint, nic: &mut NicState, wqe: &Wqe) -> Result<(), Cause> {
    let operation = |rule| Err(Cause::local(Status::LocalQpOperation, rule));
    if wqe.op.awaits_response() && endpoint.query().max_rd_atomic == 0 {
        return operation("READs and atomics need an initiator depth above 0 (IBTA 11.2.4.2)");
    }
    if wqe.op.is_atomic() && wqe.len != 8 {
        let rule = "an atomic's answer takes exactly 8 bytes (IBTA 9.4.5)";
        return Err(Cause::local(Status::LocalLength, rule));
    }
    match wqe.op {
        WqeOp::BindMw => {
            let bind = endpoint.sq.ring.bind(wqe);
            let bound = nic.memory.bind_mw(endpoint.pd, endpoint.num, &bind);
            bound.map_err(|f| Cause::local(Status::MemoryWindowBind, f.rule()))?;
        }
        WqeOp::LocalInv => {
            let done = nic.memory.invalidate_local(endpoint.pd, endpoint.num, Key(wqe.imm));
            done.map_err(|f| Cause::local(Status::LocalProtection, f.rule()))?;
        }
        op if op.acts_on_queues() => return operation("WAIT and ENABLE need a cross-channel queue pair"),
        op if op.is_masked() => return operation("StaR carries no masked atomics"),
        _ if wqe.calc => return operation("a calculation needs a cross-channel queue pair"),
        _ if wqe.inline && wqe.op.awaits_response() => return operation("an answer cannot go inline"),
        _ => {}
    }
    Ok(())
}

/// Acknowledgements and completions in.
impl Nic {
    /// The peer acknowledges what it was told, or that it has the state.
    pub(super) fn on_work_acknowledged(&mut self, now: Instant, packet: &Packet) {
        let Some(star) = &self.star else { return };
        if star.stateless.admit(packet, &mut self.state.counters).is_none() {
            return;
        }
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let Some(mut hosted) = endpoint.star.take() else { return };
        let base = hosted.base;
        let eth = StarEth::from(packet.irn);
        if hosted.phase == Phase::Handing {
            self.state.counters.star_agreed += 1;
            self.state.event(Event::Star(name, StarOutcome::Stateless));
            hosted.become_stateless(now);
        } else if hosted.phase == Phase::Stateless && !eth.has(StarEth::MIGRATION) {
            let queue = usize::from(eth.has(StarEth::RECV_QUEUE));
            let library = &mut hosted.library;
            let known = library.acknowledged[queue];
            let more = packet.bth.psn.since(base.add(known & Psn::MASK));
            if (0..=library.told[queue].wrapping_sub(known) as i32).contains(&more) {
                let count = known.wrapping_add(more as u32);
                library.acknowledge(queue, count, endpoint);
                library.heard_at(now);
            }
        }
        endpoint.star = Some(hosted);
        self.star_due(name);
    }

    /// The peer completes requests of this side. Each completion is taken once, in order.
    pub(super) fn on_completions(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let Some(star) = &mut self.star else {
            self.state.counters.drop_wrong_service += 1;
            return;
        };
        let counters = &mut self.state.counters;
        let Some(grant) = star.stateless.admit(packet, counters) else { return };
        if !star.stateless.has_room() {
            counters.star_answers_full += 1;
            return;
        }
        let eth = StarEth::from(packet.irn);
        let count = payload.len() / Cqe::LEN;
        if payload.is_elided() && count > 0 || payload.len() != usize::from(eth.count) * Cqe::LEN {
            counters.star_cqe_unknown += 1;
            return;
        }
        let Some(name) = self.endpoints.name_at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return };
        let Some(mut hosted) = endpoint.star.take() else { return };
        let base = hosted.base;
        if hosted.phase == Phase::Handing {
            counters.star_agreed += 1;
            self.state.event(Event::Star(name, StarOutcome::Stateless));
            hosted.become_stateless(now);
        }
        let mut broken = None;
        for at in 0..count {
            let expected = base.add(hosted.library.completions & Psn::MASK);
            let number = packet.bth.psn.add(at as u32);
            if number.is_before(expected) {
                self.state.counters.star_cqe_duplicate += 1;
                continue;
            }
            if number != expected {
                self.state.counters.star_cqe_unknown += 1;
                break;
            }
            let mut bytes = [0; Cqe::LEN];
            payload.read(at * Cqe::LEN, &mut bytes);
            let taken = match Cqe::read(&bytes) {
                Some(cqe) => take(endpoint, &mut hosted, &mut self.state, now, packet, &cqe),
                None => Err(Broken::Unknown),
            };
            hosted.library.completions = hosted.library.completions.wrapping_add(1);
            if let Err(why) = taken {
                broken = Some(why);
                break;
            }
        }
        hosted.library.heard_at(now);
        let expected = base.add(hosted.library.completions & Psn::MASK);
        let receives = endpoint.receives_posted();
        let closes = eth.value != 0 && packet.bth.psn.add(count as u32) == expected && broken.is_none();
        endpoint.star = Some(hosted);
        star.stateless.acknowledge_event(packet, grant, expected, receives);
        self.state.has_effects = true;
        match broken {
            None if closes => {
                // As a responder that has refused a request does (IBTA 9.7.5.2.4).
                self.state.event(match Status::of_wire(eth.value as u8) {
                    Status::RemoteAccess => Event::QpAccessError(name),
                    _ => Event::QpRequestError(name),
                });
                self.fail_hosted(now, name, None);
            }
            None => {}
            Some(Broken::Fails(queue, cause)) => {
                if queue == Queue::Receives {
                    self.state.event(Event::QpRequestError(name));
                }
                self.fail_hosted(now, name, Some((queue, cause)));
            }
            Some(Broken::Unknown) => {
                self.state.counters.star_cqe_unknown += 1;
                self.state.event(Event::QpFatal(name));
                let cause =
                    Cause { packet: Some(received(packet)), ..Cause::local(Status::BadResponse, UNKNOWN) };
                self.fail_hosted(now, name, Some((Queue::Sends, cause)));
            }
        }
    }

    /// The queue pair of an endpoint goes to ERR: its oldest request of a queue with its cause, the others
    /// flushed. No packet reaches it from then on, and its answers go.
    fn fail_hosted(&mut self, now: Instant, id: QpId, cause: Option<(Queue, Cause)>) {
        // Its answers have to leave all the same: the peer is to know that the completion has come.
        let acted = self.as_qp(id, |qp, nic| {
            match cause {
                Some((Queue::Sends, cause)) if qp.sq.has_unfetched() => {
                    let block = qp.sq.fetched;
                    let available = qp.sq.posted.wrapping_sub(block);
                    let (op, blocks) = match qp.sq.ring.decode(block, available, qp.sq.layout()) {
                        Ok(wqe) => (wqe.op, wqe.blocks()),
                        Err(_) => (WqeOp::Nop, 1),
                    };
                    let wr_id = qp.requester.wr_id(block);
                    explain(qp, nic, now, wr_id, &cause);
                    qp.sq.fetched = block.wrapping_add(blocks);
                    let done = completion(qp, now, wr_id, op.completion(), cause.status);
                    let end = qp.sq.fetched;
                    nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end }));
                }
                Some((Queue::Receives, cause)) if qp.take_receive() => {
                    let wr_id = qp.scatter().wr_id;
                    explain(qp, nic, now, wr_id, &cause);
                    let done = completion(qp, now, wr_id, CompletionOp::Recv, cause.status);
                    nic.complete(qp.recv_cq, done, Some(Release::Receive(qp.id)));
                }
                _ => {}
            }
            enter_error(qp, nic, now);
        });
        if acted.is_ok() {
            self.close_star(id);
        }
    }
}

/// Takes one completion.
fn take(
    endpoint: &mut Endpoint,
    hosted: &mut Hosted,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    cqe: &Cqe,
) -> Result<(), Broken> {
    let has = |flag: u8| cqe.flags & flag != 0;
    let told = |status| Cause { packet: Some(received(packet)), ..Cause::local(status, TOLD) };
    let status = Status::of_wire(cqe.status);
    if !has(Cqe::RECV_QUEUE) {
        return take_send(endpoint, hosted, nic, now, cqe, told(status));
    }
    let name = endpoint.id;
    let Some(receiver) = endpoint.receiver.as_deref_mut() else { return Err(Broken::Unknown) };
    let (oldest, _) = receiver.queue.waiting();
    if outstanding(cqe.index, receiver.queue.waiting()) != Some(oldest) {
        return Err(Broken::Unknown);
    }
    if status != Status::Success {
        return Err(Broken::Fails(Queue::Receives, told(status)));
    }
    let op = if cqe.op == Op::Write { CompletionOp::RecvWriteImm } else { CompletionOp::Recv };
    if op == CompletionOp::Recv && u64::from(cqe.len) > receiver.queue.capacity_of(oldest) {
        nic.counters.star_cqe_length += 1;
        return Err(Broken::Fails(Queue::Receives, Cause::local(Status::LocalLength, TOO_LONG)));
    }
    if has(Cqe::INVALIDATED) {
        let done = nic.memory.invalidate_remote(endpoint.pd, endpoint.num, Key(cqe.immediate));
        done.map_err(|f| Broken::Fails(Queue::Receives, Cause::local(Status::LocalAccess, f.rule())))?;
    }
    let wr_id = receiver.queue.pass();
    let count = oldest.wrapping_add(1);
    if (hosted.library.acknowledged[RECEIVES].wrapping_sub(count) as i32) < 0 {
        hosted.library.acknowledge(RECEIVES, count, endpoint);
    }
    let mut done = endpoint.completion(now, wr_id, op);
    (done.byte_len, done.immediate, done.src_qp) = (cqe.len, cqe.immediate, endpoint.peer);
    done.solicited = has(Cqe::SOLICITED);
    (done.has_immediate, done.has_invalidate) = (has(Cqe::IMMEDIATE), has(Cqe::INVALIDATED));
    nic.complete(endpoint.cqs.1, done, Some(Release::Receive(name)));
    Ok(())
}

/// Takes the completion of a send request.
fn take_send(
    endpoint: &mut Endpoint,
    hosted: &mut Hosted,
    nic: &mut NicState,
    now: Instant,
    cqe: &Cqe,
    told: Cause,
) -> Result<(), Broken> {
    let (block, posted) = (endpoint.sq.fetched, endpoint.sq.posted);
    if outstanding(cqe.index, (block, posted)) != Some(block) {
        return Err(Broken::Unknown);
    }
    if let Some((_, cause)) = hosted.library.failed.take_if(|failed| failed.0 == block).as_deref() {
        return Err(Broken::Fails(Queue::Sends, *cause));
    }
    if told.status != Status::Success {
        return Err(Broken::Fails(Queue::Sends, told));
    }
    let Ok(wqe) = endpoint.sq.ring.decode(block, posted.wrapping_sub(block), endpoint.sq.layout()) else {
        return Err(Broken::Unknown);
    };
    let library = &mut hosted.library;
    let count = library.done.wrapping_add(1);
    if (library.acknowledged[SENDS].wrapping_sub(count) as i32) < 0 {
        library.acknowledge(SENDS, count, endpoint);
    }
    library.done = count;
    let end = block.wrapping_add(wqe.blocks());
    endpoint.sq.fetched = end;
    if wqe.signaled {
        let wr_id = endpoint.starts().wr_id(block);
        let mut done = endpoint.completion(now, wr_id, wqe.op.completion());
        done.byte_len = if wqe.op.awaits_response() { wqe.len } else { 0 };
        nic.complete(endpoint.cqs.0, done, Some(Release::Send { qp: endpoint.id, end }));
    }
    Ok(())
}
