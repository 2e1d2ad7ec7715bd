//! The NIC: its whole face on one page.
//!
//! A driver owns time, randomness and frames; it calls in and the NIC answers. Nothing here blocks,
//! reads a clock or touches a socket. A burst of work looks like this, in a simulator as on a host:
//!
//! ```text
//! on_frame(now, packet, payload)   for each frame that arrived
//! on_timer(now)                    when next_deadline() has passed
//! post_send(now, qp, wr) ..        what the application asks for
//! while next_frame(now, &mut out)  emit each before the next call
//! next_event(), poll_cq(cq)        what the application is told
//! ```

use crate::attr::{QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, SrqAttr, SrqInit};
use crate::counters::Counters;
use crate::engine::{Paths, Ready, Timers};
use crate::error::Error;
use crate::event::Event;
use crate::explain::Explanation;
use crate::ids::{CqId, PathId, PdId, QpId, SrqId, XrcdId};
use crate::limits;
use crate::memory::{Gather, Memory, Payload, QueueMemory};
use crate::multicast::Groups;
use crate::qp::Qp;
use crate::queue::cq::Cq;
use crate::queue::recv::{RecvQueue, Srq};
use crate::shared::Shared;
use crate::slab::Slab;
use crate::transport::requester::SendStep;
use crate::transport::{self, requester};
use crate::work::{Completion, RecvWr, SendWr};
use adverb_wire::{Gid, Instant, Packet, QpNumber};

/// What a NIC is made with.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Source addresses, by GID index.
    pub gids: Vec<Gid>,
    /// Upper bits of every queue pair number; the index fills the low 16.
    pub qpn_base: u32,
    /// Packets that a reliable queue pair may have unacknowledged.
    pub max_unacked_packets: u32,
    /// Completions are written by [`Nic::step`] only, so that the driver can put time before them.
    pub stepped: bool,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig { gids: Vec::new(), qpn_base: 0, max_unacked_packets: 256, stepped: false }
    }
}

/// A frame that leaves the NIC: headers as a descriptor, payload as pieces of registered memory.
/// It must be emitted (its payload copied out) before the next call into the NIC.
#[derive(Default)]
pub struct TxFrame {
    /// Headers.
    pub packet: Packet,
    /// Payload.
    pub payload: Gather,
    /// Route.
    pub path: PathId,
}

/// What one step did; see [`Nic::step`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing to do.
    Idle,
    /// A WQE was read from memory.
    Fetched(QpId),
    /// A WQE was executed.
    Executed(QpId),
    /// A frame is in the buffer; its payload has not been read yet.
    Frame(QpId),
    /// A completion was written.
    Completed(CqId),
}

/// The NIC.
pub struct Nic {
    config: NicConfig,
    qps: Slab<QpId, Qp>,
    shared: Shared,
    ready: Ready,
    timers: Timers,
    paths: Paths,
    groups: Groups,
    gsi: Option<QpId>,
}

/// Life and data path.
impl Nic {
    /// A NIC without objects. `seed` makes its keys.
    pub fn new(config: NicConfig, seed: u64) -> Nic {
        let shared = Shared::new(seed, config.stepped);
        Nic {
            config,
            qps: Slab::new(limits::MAX_QP),
            shared,
            ready: Ready::default(),
            timers: Timers::default(),
            paths: Paths::default(),
            groups: Groups::default(),
            gsi: None,
        }
    }

    /// Protection domains, regions and windows.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.shared.memory
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Takes in a frame.
    #[inline]
    pub fn on_frame(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        self.shared.counters.rx_packets += 1;
        self.shared.counters.rx_bytes += payload.len() as u64;
        match self.demux(packet) {
            Ok(id) => self.deliver(id, now, packet, payload),
            Err(Stray::Multicast) => self.on_multicast(now, packet, payload),
            Err(Stray::UnknownQp) => self.shared.counters.drop_unknown_qp += 1,
        }
    }

    /// Produces the next frame. False when there is none.
    #[inline]
    pub fn next_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        loop {
            match self.step(now, out) {
                Step::Frame(_) => return true,
                Step::Idle => return false,
                _ => {}
            }
        }
    }

    /// Does one piece of work: fetches a WQE, executes one, produces one frame, or writes one
    /// completion. A driver that models time charges each its cost; one that does not calls
    /// [`Nic::next_frame`].
    #[inline]
    pub fn step(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        if let Some((cq, entry)) = self.shared.pending.pop_front() {
            self.shared.write_completion(cq, entry);
            return Step::Completed(cq);
        }
        while let Some(index) = self.ready.front() {
            let Some((id, qp)) = self.qps.at(index) else {
                self.ready.pop();
                continue;
            };
            if !qp.is_datagram() && self.paths.is_blocked(qp.path) {
                self.ready.pop();
                qp.ready = false;
                if !qp.parked {
                    qp.parked = true;
                    self.paths.park(qp.path, index);
                }
                start_blocked_timer(qp, now);
                self.timers.track(qp);
                continue;
            }
            if transport::rc::responder::next_packet(qp, &mut self.shared, now, out) {
                return self.frame(id, index, out);
            }
            let step = requester::step(qp, &mut self.shared, now, out);
            self.timers.track(qp);
            match step {
                SendStep::Packet if qp.is_datagram() && self.paths.is_blocked(out.path) => {
                    self.shared.counters.drop_tx_blocked += 1;
                }
                SendStep::Packet => return self.frame(id, index, out),
                SendStep::Fetched => return Step::Fetched(id),
                SendStep::Executed => return Step::Executed(id),
                SendStep::Idle if qp.responder.has_output() => {}
                SendStep::Idle => {
                    qp.ready = false;
                    self.ready.pop();
                }
            }
        }
        Step::Idle
    }

    #[inline]
    fn frame(&mut self, id: QpId, index: u32, out: &TxFrame) -> Step {
        self.shared.counters.tx_packets += 1;
        self.shared.counters.tx_bytes += out.packet.payload_len as u64;
        self.ready.served(index);
        Step::Frame(id)
    }

    /// Lets timers run out whose time has come.
    pub fn on_timer(&mut self, now: Instant) {
        while let Some((index, at)) = self.timers.expired(now) {
            let Some((_, qp)) = self.qps.at(index) else { continue };
            if qp.heap_at != at {
                continue;
            }
            qp.heap_at = Instant::NEVER;
            if qp.deadline <= now {
                transport::rc::recovery::on_timeout(qp, &mut self.shared, now);
                wake(qp, &mut self.ready);
            }
            self.timers.track(qp);
        }
    }

    /// When [`Nic::on_timer`] should be called next; it may find nothing to do then.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether [`Nic::next_frame`] could produce something.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.ready.front().is_some() || !self.shared.pending.is_empty()
    }

    /// Produces no more frames for this path until it is unblocked. Timers go on; datagrams for it are
    /// dropped and counted.
    pub fn block_path(&mut self, path: PathId) {
        self.paths.block(path);
    }

    /// Lets the queue pairs that waited for the path go on.
    pub fn unblock_path(&mut self, path: PathId) {
        for index in self.paths.unblock(path) {
            if let Some((_, qp)) = self.qps.at(index) {
                qp.parked = false;
                wake(qp, &mut self.ready);
            }
        }
    }

    /// The oldest event that has not been taken.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// The oldest explanation of an error completion that has not been taken.
    pub fn next_explanation(&mut self) -> Option<Explanation> {
        self.shared.explanations.pop_front()
    }

    /// Posts a send work request and rings its doorbell. In ERR it is flushed at once; before RTR it is
    /// refused (IBTA 10.3.1).
    #[inline]
    pub fn post_send(&mut self, now: Instant, qp: QpId, wr: &SendWr<'_>) -> Result<(), Error> {
        let qp = self.qps.get_mut(qp).ok_or(Error::NoSuchObject)?;
        match qp.state {
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(Error::WrongState),
            _ if qp.qp_type == QpType::XrcRecv => return Err(Error::Invalid("send on an XRC target")),
            _ => {}
        }
        qp.sq.post(qp.num, wr)?;
        doorbell(qp, &mut self.shared, &mut self.ready, now);
        Ok(())
    }

    /// Rings the doorbell of a send queue whose WQEs were written through memory: `posted` is the
    /// free-running count of blocks posted so far.
    pub fn on_doorbell(&mut self, now: Instant, qp: QpId, posted: u32) -> Result<(), Error> {
        let qp = self.qps.get_mut(qp).ok_or(Error::NoSuchObject)?;
        if posted.wrapping_sub(qp.sq.released) > qp.sq.ring.blocks()
            || posted.wrapping_sub(qp.sq.fetched) > qp.sq.ring.blocks()
        {
            return Err(Error::QueueFull);
        }
        qp.sq.posted = posted;
        doorbell(qp, &mut self.shared, &mut self.ready, now);
        Ok(())
    }

    /// The memory of a send queue: 64-byte blocks, see [`crate::queue::wqe`].
    pub fn send_queue_memory(&self, qp: QpId) -> Result<&QueueMemory, Error> {
        Ok(self.qps.get(qp).ok_or(Error::NoSuchObject)?.sq.ring.memory())
    }

    /// Posts a receive. Refused in RESET, flushed in ERR.
    #[inline]
    pub fn post_recv(&mut self, now: Instant, qp: QpId, wr: &RecvWr<'_>) -> Result<(), Error> {
        let qp = self.qps.get_mut(qp).ok_or(Error::NoSuchObject)?;
        if qp.srq.is_some() || matches!(qp.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::Invalid("receive: the queue pair has no receive queue of its own"));
        }
        if qp.state == QpState::Reset {
            return Err(Error::WrongState);
        }
        qp.rq.post(wr)?;
        if qp.state == QpState::Err {
            transport::receive::flush(qp, &mut self.shared, now);
        }
        Ok(())
    }

    /// Takes the oldest completion, if there is one. Does no other work.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId) -> Result<Option<Completion>, Error> {
        let queue = self.shared.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?;
        let Some(entry) = queue.pop() else { return Ok(None) };
        if let Some(end) = entry.release_to
            && let Some((_, qp)) = self.qps.at(entry.completion.qp.get() & 0xffff)
        {
            qp.sq.release_to(end);
        }
        Ok(Some(entry.completion))
    }

    /// Checks every invariant; for tests and simulations.
    pub fn check_invariants(&self) {
        for (_, qp) in self.qps.iter() {
            qp.sq.check_invariants();
            qp.requester.check_invariants();
            qp.responder.check_invariants();
        }
    }
}

enum Stray {
    UnknownQp,
    Multicast,
}

/// The way of a frame in.
impl Nic {
    #[inline]
    fn demux(&self, packet: &Packet) -> Result<QpId, Stray> {
        let number = packet.bth.dest_qp;
        if number == QpNumber::MULTICAST {
            return Err(Stray::Multicast);
        }
        if number == QpNumber::GSI {
            return self.gsi.ok_or(Stray::UnknownQp);
        }
        if number.get() & !0xffff != self.config.qpn_base {
            return Err(Stray::UnknownQp);
        }
        self.qps.id_at(number.get() & 0xffff).ok_or(Stray::UnknownQp)
    }

    #[inline]
    fn deliver(&mut self, id: QpId, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let sh = &mut self.shared;
        if !crate::demux::admit(qp, &mut sh.counters, packet, payload) {
            return;
        }
        if qp.state == QpState::Rtr && !qp.heard {
            qp.heard = true;
            sh.event(Event::CommunicationEstablished(id));
        }
        match qp.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                if packet.bth.opcode.operation().is_response() {
                    transport::rc::recovery::on_response(qp, sh, now, packet, payload);
                } else {
                    transport::rc::responder::on_request(qp, sh, now, packet, payload);
                }
                self.timers.track(qp);
                wake(qp, &mut self.ready);
            }
            QpType::Uc => transport::uc::on_request(qp, sh, now, packet, payload),
            QpType::Ud | QpType::Gsi => transport::ud::on_datagram(qp, sh, now, packet, payload),
        }
    }

    fn on_multicast(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let members = self.groups.members(packet.flow.dst);
        if members.is_empty() {
            self.shared.counters.drop_no_member += 1;
            return;
        }
        for id in members.to_vec() {
            self.deliver(id, now, packet, payload);
        }
    }
}

/// Queues a queue pair for transmission.
#[inline]
fn wake(qp: &mut Qp, ready: &mut Ready) {
    if qp.ready || qp.parked {
        return;
    }
    let sends = qp.sends() || qp.state == QpState::Sqd;
    if qp.responder.has_output() || (sends && !(qp.requester.is_empty() && !qp.sq.has_unfetched())) {
        qp.ready = true;
        ready.push(qp.id.index);
    }
}

#[inline]
fn doorbell(qp: &mut Qp, sh: &mut Shared, ready: &mut Ready, now: Instant) {
    match qp.state {
        QpState::Err | QpState::Sqe => requester::flush(qp, sh, now),
        _ => wake(qp, ready),
    }
}

/// A queue pair whose path is blocked must still notice that its peer is gone.
fn start_blocked_timer(qp: &mut Qp, now: Instant) {
    let owed = qp.is_reliable() && qp.requester.awaits_acknowledgement();
    if owed && qp.deadline == Instant::NEVER && qp.rto > adverb_wire::Duration::ZERO {
        qp.deadline = now + qp.rto;
    }
}

/// Completion queues.
impl Nic {
    /// A completion queue of at least `entries` entries. `Invalid` for 0 or above
    /// [`limits::MAX_CQE`].
    pub fn create_cq(&mut self, entries: u32) -> Result<CqId, Error> {
        if entries == 0 || entries > limits::MAX_CQE {
            return Err(Error::Invalid("number of completion queue entries"));
        }
        self.shared.cqs.insert(Cq::new(entries))
    }

    /// Changes a completion queue's size; the new size is returned.
    pub fn resize_cq(&mut self, cq: CqId, entries: u32) -> Result<u32, Error> {
        if entries == 0 || entries > limits::MAX_CQE {
            return Err(Error::Invalid("number of completion queue entries"));
        }
        let queue = self.shared.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?;
        queue.resize(entries)?;
        Ok(queue.capacity())
    }

    /// Entries that a completion queue holds.
    pub fn cq_capacity(&self, cq: CqId) -> Result<u32, Error> {
        Ok(self.shared.cqs.get(cq).ok_or(Error::NoSuchObject)?.capacity())
    }

    /// Whether completions of this queue have been lost (IBTA 11.6.3.1).
    pub fn cq_overrun(&self, cq: CqId) -> Result<bool, Error> {
        Ok(self.shared.cqs.get(cq).ok_or(Error::NoSuchObject)?.is_overrun())
    }

    /// Asks for an event at the next completion, or the next solicited one (IBTA 11.4.2.2).
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Error> {
        self.shared.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?.arm(solicited_only);
        Ok(())
    }

    /// `Busy` while a queue pair completes there.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        let queue = self.shared.cqs.get(cq).ok_or(Error::NoSuchObject)?;
        if queue.users > 0 {
            return Err(Error::Busy);
        }
        self.shared.cqs.remove(cq);
        self.shared.pending.retain(|(id, _)| *id != cq);
        Ok(())
    }

    fn hold_cq(&mut self, cq: Option<CqId>) {
        if let Some(queue) = cq.and_then(|id| self.shared.cqs.get_mut(id)) {
            queue.users += 1;
        }
    }

    fn release_cq(&mut self, cq: Option<CqId>) {
        if let Some(queue) = cq.and_then(|id| self.shared.cqs.get_mut(id)) {
            queue.users -= 1;
        }
    }
}

/// Shared receive queues and XRC domains.
impl Nic {
    /// Creates a shared receive queue, basic or XRC.
    pub fn create_srq(&mut self, init: &SrqInit) -> Result<SrqId, Error> {
        if init.max_wr == 0 || init.max_wr > limits::MAX_SRQ_WR {
            return Err(Error::Invalid("number of work requests"));
        }
        if init.max_sge > limits::MAX_SRQ_SGE {
            return Err(Error::Invalid("number of scatter/gather entries"));
        }
        if let Some((domain, cq)) = init.xrc {
            self.shared.cqs.get(cq).ok_or(Error::NoSuchObject)?;
            *self.shared.xrcds.get_mut(domain).ok_or(Error::NoSuchObject)? += 1;
            self.hold_cq(Some(cq));
        }
        let made = self.insert_srq(init);
        if made.is_err()
            && let Some(xrc) = init.xrc
        {
            self.release_xrc(xrc);
        }
        made
    }

    fn insert_srq(&mut self, init: &SrqInit) -> Result<SrqId, Error> {
        let queue = RecvQueue::new(init.max_wr, init.max_sge.max(1))?;
        self.shared.memory.hold_pd(init.pd)?;
        let srq = Srq { queue, pd: init.pd, xrc: init.xrc, limit: 0, users: 0 };
        self.shared.srqs.insert(srq).inspect_err(|_| self.shared.memory.release_pd(init.pd))
    }

    fn release_xrc(&mut self, (domain, cq): (XrcdId, CqId)) {
        if let Some(users) = self.shared.xrcds.get_mut(domain) {
            *users -= 1;
        }
        self.release_cq(Some(cq));
    }

    /// Sets the limit, or the size (which may not fall below what is posted).
    pub fn modify_srq(&mut self, srq: SrqId, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let srq = self.shared.srqs.get_mut(srq).ok_or(Error::NoSuchObject)?;
        if max_wr.is_some() {
            return Err(Error::Unsupported("resizing a shared receive queue"));
        }
        if let Some(limit) = limit {
            if limit > srq.queue.max_wr() {
                return Err(Error::Invalid("shared receive queue limit"));
            }
            srq.limit = limit;
        }
        Ok(())
    }

    /// Sizes and limit.
    pub fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        let srq = self.shared.srqs.get(srq).ok_or(Error::NoSuchObject)?;
        Ok(SrqAttr { max_wr: srq.queue.max_wr(), max_sge: srq.queue.max_sge(), limit: srq.limit })
    }

    /// The number by which XRC peers name the queue.
    pub fn srq_number(&self, srq: SrqId) -> Result<u32, Error> {
        self.shared.srqs.get(srq).ok_or(Error::NoSuchObject)?;
        Ok(srq.index)
    }

    /// Posts a receive.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.shared.srqs.get_mut(srq).ok_or(Error::NoSuchObject)?.queue.post(wr)
    }

    /// `Busy` while a queue pair uses it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), Error> {
        let srq = self.shared.srqs.get(id).ok_or(Error::NoSuchObject)?;
        if srq.users > 0 {
            return Err(Error::Busy);
        }
        let (pd, xrc) = (srq.pd, srq.xrc);
        self.shared.srqs.remove(id);
        self.shared.memory.release_pd(pd);
        if let Some(xrc) = xrc {
            self.release_xrc(xrc);
        }
        Ok(())
    }

    /// An XRC domain.
    pub fn alloc_xrcd(&mut self) -> Result<XrcdId, Error> {
        self.shared.xrcds.insert(0)
    }

    /// `Busy` while shared receive queues or targets belong to it.
    pub fn dealloc_xrcd(&mut self, xrcd: XrcdId) -> Result<(), Error> {
        match self.shared.xrcds.get(xrcd) {
            None => Err(Error::NoSuchObject),
            Some(0) => {
                self.shared.xrcds.remove(xrcd);
                Ok(())
            }
            Some(_) => Err(Error::Busy),
        }
    }
}

/// Queue pairs.
impl Nic {
    /// Creates a queue pair in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, Error> {
        let (pd, cqs, srq_sge) = self.check_init(init)?;
        if init.qp_type == QpType::Gsi && self.gsi.is_some() {
            return Err(Error::Busy);
        }
        let mut qp = Qp::new(init, pd, cqs, srq_sge)?;
        qp.requester.window = crate::congestion::Window::new(self.config.max_unacked_packets);
        let id = self.qps.insert(qp)?;
        let number = match init.qp_type {
            QpType::Gsi => QpNumber::GSI,
            _ => QpNumber::new(self.config.qpn_base | id.index),
        };
        if let Some(qp) = self.qps.get_mut(id) {
            qp.id = id;
            qp.num = number;
        }
        if init.qp_type == QpType::Gsi {
            self.gsi = Some(id);
        }
        if let Some(pd) = init.pd {
            self.shared.memory.hold_pd(pd)?;
        }
        self.hold_cq(init.send_cq);
        self.hold_cq(init.recv_cq);
        if let Some(srq) = init.srq.and_then(|id| self.shared.srqs.get_mut(id)) {
            srq.users += 1;
        }
        if let Some(users) = init.xrcd.and_then(|id| self.shared.xrcds.get_mut(id)) {
            *users += 1;
        }
        Ok(id)
    }

    /// Everything a queue pair refers to must exist. A role that a type does not have (the receive
    /// queue of an XRC initiator) gets a name that no object has.
    fn check_init(&mut self, init: &QpInit) -> Result<(PdId, (CqId, CqId), u32), Error> {
        let nobody_pd: PdId = crate::slab::Id::new(u32::MAX, 0);
        let nobody_cq: CqId = crate::slab::Id::new(u32::MAX, 0);
        let target = init.qp_type == QpType::XrcRecv;
        if target && init.xrcd.is_none() {
            return Err(Error::Invalid("XRC target without a domain"));
        }
        if let Some(xrcd) = init.xrcd {
            self.shared.xrcds.get(xrcd).ok_or(Error::NoSuchObject)?;
        }
        let need = |missing: bool, what| if missing { Err(Error::Invalid(what)) } else { Ok(()) };
        need(!target && init.pd.is_none(), "protection domain")?;
        need(!target && init.send_cq.is_none(), "send completion queue")?;
        let receives = !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv);
        need(receives && init.recv_cq.is_none(), "receive completion queue")?;
        if let Some(pd) = init.pd {
            self.shared.memory.hold_pd(pd)?;
            self.shared.memory.release_pd(pd);
        }
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.shared.cqs.get(cq).ok_or(Error::NoSuchObject)?;
        }
        let srq_sge = match init.srq {
            Some(id) => {
                let srq = self.shared.srqs.get(id).ok_or(Error::NoSuchObject)?;
                need(
                    srq.xrc.is_some(),
                    "an XRC shared receive queue belongs to its domain, not to a queue pair",
                )?;
                srq.queue.max_sge()
            }
            None => 0,
        };
        let cqs = (init.send_cq.unwrap_or(nobody_cq), init.recv_cq.unwrap_or(nobody_cq));
        Ok((init.pd.unwrap_or(nobody_pd), cqs, srq_sge))
    }

    /// The queue pair's number.
    pub fn qp_number(&self, qp: QpId) -> Result<QpNumber, Error> {
        Ok(self.qps.get(qp).ok_or(Error::NoSuchObject)?.num)
    }

    /// The sizes that it was given.
    pub fn qp_caps(&self, qp: QpId) -> Result<QpCaps, Error> {
        Ok(self.qps.get(qp).ok_or(Error::NoSuchObject)?.attr.caps)
    }

    /// Current attributes, and what it was created with.
    pub fn query_qp(&self, qp: QpId) -> Result<(QpAttr, QpInit), Error> {
        let qp = self.qps.get(qp).ok_or(Error::NoSuchObject)?;
        Ok((qp.query(), *qp.init))
    }

    /// Changes attributes and state (IBTA 11.2.5.2, table 91).
    pub fn modify_qp(
        &mut self,
        now: Instant,
        id: QpId,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(Error::NoSuchObject)?;
        let next = qp.apply(attr, mask, &self.config.gids)?;
        match (qp.state, next) {
            (_, QpState::Reset) => {
                qp.reset();
                let (num, send_cq, recv_cq) = (qp.num, qp.send_cq, qp.recv_cq);
                self.forget_completions(num, send_cq, recv_cq);
                return Ok(());
            }
            (_, QpState::Err) => transport::enter_error(qp, &mut self.shared, now),
            (QpState::Rts, QpState::Sqd) => {
                qp.state = QpState::Sqd;
                qp.draining = true;
                requester::settle(qp, &mut self.shared, now);
            }
            (_, next) => {
                if next == QpState::Rtr && qp.is_datagram() {
                    qp.flow.src = self.config.gids.first().copied().unwrap_or_default();
                    qp.flow.src_port = 0xc000;
                    qp.mtu = limits::MAX_MTU as u32;
                    if qp.qp_type == QpType::Gsi {
                        qp.qkey = transport::ud::GSI_QKEY;
                    }
                }
                if next == QpState::Rts && qp.state == QpState::Sqe {
                    qp.requester.go_back();
                }
                qp.draining = false;
                qp.state = next;
            }
        }
        wake(qp, &mut self.ready);
        self.timers.track(qp);
        Ok(())
    }

    fn forget_completions(&mut self, num: QpNumber, send_cq: CqId, recv_cq: CqId) {
        for cq in [send_cq, recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq) {
                queue.forget(num);
            }
        }
        self.shared.pending.retain(|(_, entry)| entry.completion.qp != num);
    }

    /// Destroys a queue pair; its completions that have not been polled are dropped. `Busy` while it is
    /// attached to a multicast group.
    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), Error> {
        let qp = self.qps.get(id).ok_or(Error::NoSuchObject)?;
        if self.groups.has(id) {
            return Err(Error::Busy);
        }
        let (num, cqs, init, path, parked) = (qp.num, (qp.send_cq, qp.recv_cq), *qp.init, qp.path, qp.parked);
        if parked {
            self.paths.unpark(path, id.index);
        }
        self.ready.remove(id.index);
        self.forget_completions(num, cqs.0, cqs.1);
        self.shared.memory.release_qp(num);
        self.qps.remove(id);
        if let Some(pd) = init.pd {
            self.shared.memory.release_pd(pd);
        }
        self.release_cq(init.send_cq);
        self.release_cq(init.recv_cq);
        if let Some(srq) = init.srq.and_then(|id| self.shared.srqs.get_mut(id)) {
            srq.users -= 1;
        }
        if let Some(users) = init.xrcd.and_then(|id| self.shared.xrcds.get_mut(id)) {
            *users -= 1;
        }
        if self.gsi == Some(id) {
            self.gsi = None;
        }
        Ok(())
    }

    /// Lets a datagram queue pair receive what is sent to a multicast group (IBTA 10.5).
    pub fn attach_multicast(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        let pair = self.qps.get(qp).ok_or(Error::NoSuchObject)?;
        if !pair.is_datagram() {
            return Err(Error::Invalid("multicast needs a datagram queue pair"));
        }
        self.groups.attach(qp, group)
    }

    /// Ends it.
    pub fn detach_multicast(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        self.qps.get(qp).ok_or(Error::NoSuchObject)?;
        self.groups.detach(qp, group)
    }
}
