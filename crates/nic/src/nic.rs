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

use crate::attr::{QpState, QpType};
use crate::config::NicConfig;
use crate::congestion;
use crate::congestion::telemetry::Telemetry;
use crate::counters::Counters;
use crate::endpoint::{Endpoints, Object, Place};
use crate::engine::step::{Intent, Step};
use crate::engine::wake::{doorbell, wake};
use crate::engine::{Paths, Ready, Timers, Turns};
use crate::error::Error;
use crate::event::Event;
use crate::explain::Explanation;
use crate::frame::TxFrame;
use crate::ids::{CqId, PathId, QpId};
use crate::limits;
use crate::manager::Manager;
use crate::memory::{Memory, Payload, QueueMemory};
use crate::multicast::Groups;
use crate::numbers::Numbers;
use crate::queue::cq::Release;
use crate::queue_pair::QueuePair;
use crate::random::Seed;
use crate::silence::{Overdue, Silence};
use crate::slab::Slab;
use crate::star::StarNic;
use crate::star::service::Native;
use crate::state::NicState;
use crate::transport::rc::irn::config::LossRecovery;
use crate::transport::receive;
use crate::work::{Completion, Posted, RecvWr, SendWr};
use adverb_wire::{Instant, Packet, QpNumber};

/// The NIC. What every call reads stands at the beginning, and at that of [`NicState`]: seven cache
/// lines ([`Nic::prefetch`]).
#[repr(C, align(64))]
pub struct Nic {
    pub(crate) timers: Timers,
    /// Queue pairs that have more to send once something is acknowledged.
    pub(crate) stalled: u32,
    /// As in [`NicConfig`], but here where they are near.
    pub(crate) quantum: u32,
    pub(crate) answers_first: bool,
    /// Some path is blocked.
    pub(crate) some_blocked: bool,
    pub(crate) ready: Ready,
    pub(crate) qps: Slab<QpId, QueuePair>,
    pub(crate) gsi: Option<QpId>,
    pub(crate) numbers: Numbers,
    /// Of posts, and of frames that arrive.
    pub(crate) post_turns: Turns,
    pub(crate) frame_turns: Turns,
    pub(crate) state: NicState,
    pub(crate) paths: Paths,
    pub(crate) groups: Groups,
    /// Where the payload of a frame to an own queue pair stands meanwhile; from the first such frame on.
    pub(crate) bounce: Option<Box<[u8; limits::MAX_MTU]>>,
    /// Queues without a queue pair, and those that were lent to one.
    pub(crate) endpoints: Endpoints,
    /// StaR's, where it is offered.
    pub(crate) star: Option<Box<StarNic>>,
    /// Native services, and clients of such.
    pub(crate) native: Option<Box<Native>>,
    /// The connection manager, where there is one.
    pub(crate) manager: Option<Box<Manager>>,
    pub(crate) config: NicConfig,
}

// Where queue pairs are found ends the second line; whose a number is begins one, ending with the guesses.
const _: () = assert!(core::mem::offset_of!(Nic, qps) == 104 && core::mem::offset_of!(Nic, numbers) == 192);
const _: () = assert!(core::mem::offset_of!(Nic, state) == 256);

/// Life and data path.
impl Nic {
    /// A NIC without objects. Its keys and queue pair numbers are drawn from `seed`, which outsiders must not
    /// know.
    pub fn new(config: NicConfig, seed: impl Into<Seed>) -> Nic {
        let seed = seed.into();
        let state = NicState::new(seed, &config);
        Nic {
            qps: Slab::new(limits::MAX_QP),
            state,
            ready: Ready::default(),
            timers: Timers::default(),
            some_blocked: false,
            paths: Paths::default(),
            groups: Groups::default(),
            gsi: None,
            stalled: 0,
            post_turns: Turns::default(),
            frame_turns: Turns::default(),
            numbers: Numbers::new(config.qpn_base, (!config.qpns_in_order).then_some(seed)),
            quantum: config.quantum,
            answers_first: config.ack_every > 0,
            bounce: None,
            endpoints: Endpoints::new(),
            star: config.star.map(|star| Box::new(StarNic::new(star, seed))),
            native: None,
            manager: config.cm.clone().map(|cm| Box::new(Manager::new(cm, config.gids.clone(), seed))),
            config,
        }
    }

    /// Gives objects names that no other NIC has given which began elsewhere, before there are any. `line` is
    /// which process of a line of forks this NIC is in: a child may still hold names of its parent's objects.
    pub fn begin_names_at(&mut self, line: u32) {
        // So many objects may have had a place, one after the other.
        let generation = line << 24;
        self.qps.begin_at(generation);
        self.endpoints.begin_names_at(generation);
        self.state.cqs.begin_at(generation);
        self.state.srqs.begin_at(generation);
        self.state.xrcds.begin_at(generation);
        self.state.memory.begin_names_at(generation);
    }

    /// Protection domains, regions and windows.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.state.memory
    }

    /// A switch before this NIC decides atomics, and sends them on as WRITEs of their word or, where nothing
    /// changes, of no bytes. From now on such WRITEs pass where atomics may: who may do atomics can give a
    /// word any value anyway.
    pub fn set_words_by_write(&mut self, pass: bool) {
        self.state.words_by_write = pass;
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.state.counters
    }

    /// Takes in a frame.
    #[inline]
    pub fn on_frame(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        self.state.counters.rx_packets += 1;
        self.state.counters.rx_bytes += payload.len() as u64;
        if self.state.attended {
            return self.take_in_attended(now, packet, payload);
        }
        self.demux(now, packet, payload);
    }

    /// Before a frame is taken in: what switches have stamped on it. It goes to the queue pair that the frame
    /// is for, if that goes by it.
    pub fn on_telemetry(&mut self, packet: &Packet, telemetry: &Telemetry) {
        let Some(pair) = self.qps.at(self.numbers.owner(packet.bth.dest_qp)) else { return };
        if pair.qp.receives() && pair.qp.dst == packet.flow.src {
            congestion::on_telemetry(&mut pair.qp, packet, telemetry);
        }
    }

    /// What congestion control allows the sender of a queue pair: packets that may be unacknowledged, and a
    /// rate in bits/s.
    pub fn allowed(&mut self, qp: QpId) -> Option<(u32, u64)> {
        let pair = self.qps.at(qp.index).filter(|pair| pair.qp.id == qp)?;
        Some(congestion::allowed(&pair.qp, &self.state))
    }

    /// Produces the next frame. What goes to an own queue pair is taken in at once. False when there is no
    /// other, or when work without a frame has gone on for [`limits::STEPS_WITHOUT_FRAME`] steps: then
    /// [`Nic::has_work`] says so, and the driver comes back after its other duties.
    #[inline]
    pub fn next_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        // Every burst ends with a call that finds nothing.
        (self.ready.front().is_some() || self.state.is_outside_due()) && self.find_frame(now, out)
    }

    /// Does one piece of work: fetches a WQE, executes one, produces one frame, or writes one
    /// completion. A driver that models time charges each its cost; one that does not calls
    /// [`Nic::next_frame`].
    pub fn step(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        self.next_step(now, out)
    }

    /// Does one piece of work of a queue pair, whoever's turn it is: for a driver that models several
    /// processing units. [`Step::Idle`] when it has none. What belongs to no queue pair's turn comes from
    /// [`Nic::step_common`].
    pub fn step_qp(&mut self, now: Instant, qp: QpId, out: &mut TxFrame) -> Step {
        self.step_named(now, qp, out)
    }

    /// [`Nic::step_qp`], if that sends a frame; `None`, and nothing is done, if it would do something else.
    pub fn send_of_qp(&mut self, now: Instant, qp: QpId, out: &mut TxFrame) -> Option<Step> {
        self.send_named(now, qp, out)
    }

    /// What [`Nic::step_qp`] would do for a queue pair, for a driver that has to find the time before the
    /// work is done.
    pub fn intent(&mut self, qp: QpId) -> Intent {
        self.intent_of(qp)
    }

    /// Whether the payload of the frame that a queue pair has given last stands in its WQE, so that a driver
    /// that models time knows what it reads. It tells by where the payload is.
    pub fn is_inline(&self, qp: QpId, frame: &TxFrame) -> bool {
        let Ok(object) = self.object(qp) else { return false };
        let queue = object.send_queue().ring.memory();
        let inside = |addr: u64| addr.wrapping_sub(queue.addr()) < queue.len() as u64;
        let spans = frame.payload.spans();
        !spans.is_empty() && spans.iter().all(|span| inside(span.addr()))
    }

    /// Entries of a queue pair's own next receive that a message of so many bytes comes to, so that a driver
    /// that models time knows where it is scattered.
    pub fn receive_entries(&self, qp: QpId, bytes: u32) -> u32 {
        let Ok(object) = self.object(qp) else { return 0 };
        let receiver = match object {
            Object::On(pair) => pair.qp.receiver.as_deref(),
            Object::Off(endpoint) => endpoint.receiver.as_deref(),
        };
        receiver.map_or(0, |receiver| receiver.queue.entries(bytes.into()))
    }

    /// Blocks of a send queue that were posted and whose WQEs have not been executed.
    pub fn unfetched(&self, qp: QpId) -> u32 {
        self.object(qp).map_or(0, |object| {
            let sq = object.send_queue();
            sq.posted.wrapping_sub(sq.fetched)
        })
    }

    /// Does one piece of work that no queue pair has to take a turn for: writes a completion, or sends a
    /// notification of congestion.
    pub fn step_common(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        self.step_outside(now, out)
    }

    /// Whether [`Nic::step_common`] could do something.
    #[inline]
    pub fn has_common_work(&self) -> bool {
        !self.state.pending.is_empty() || self.state.has_effects || self.state.notifier.is_due()
    }

    /// The queue pairs that could do something, in the order of their turns, but those that were
    /// [taken](Nic::take_ready).
    pub fn ready(&self) -> impl Iterator<Item = QpId> + '_ {
        self.ready.iter().filter_map(|index| self.name_at(index))
    }

    /// Takes the first of them out of the row. It belongs to the driver until [`Nic::step_qp`] finds that it
    /// has nothing to do; when it has something again, it comes back into the row.
    pub fn take_ready(&mut self) -> Option<QpId> {
        self.take_turn()
    }

    /// Lets timers run out whose time has come.
    pub fn on_timer(&mut self, now: Instant) {
        self.run_timers(now, |_| Silence::Unknown);
    }

    /// The same, for a driver that may know why a peer is silent: it is asked for each acknowledgement that
    /// is overdue. It has taken in all frames that have arrived.
    pub fn on_timer_asking(&mut self, now: Instant, ask: impl FnMut(&Overdue) -> Silence) {
        self.run_timers(now, ask);
    }

    /// Whether an acknowledgement may be overdue, so that the driver takes in what has arrived before it lets
    /// timers run out.
    #[inline]
    pub fn has_expired(&self, now: Instant) -> bool {
        self.timers.next_timeout().is_some_and(|at| at <= now)
    }

    /// When [`Nic::on_timer`] should be called next; it may find nothing to do then.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether an acknowledgement would let something go on at once: a queue pair that has more to send, or
    /// an application that waits for an event. Otherwise it can wait until somebody polls.
    #[inline]
    pub fn awaits_acknowledgement(&self) -> bool {
        self.stalled > 0 || self.state.armed_cqs > 0
    }

    /// Whether the queue pair of that number has requests out that have not been acknowledged.
    #[inline]
    pub fn has_requests_out(&mut self, number: QpNumber) -> bool {
        let pair = self.qps.at(self.numbers.owner(number));
        pair.is_some_and(|pair| pair.qp.requester.awaits_acknowledgement())
    }

    /// Whether [`Nic::next_frame`] could produce something.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.ready.front().is_some() || self.has_common_work()
    }

    /// Produces no more frames for this path until it is unblocked. Timers go on; datagram queue pairs wait
    /// with the first one for it, until the driver [gives up](Self::give_up_path) on it.
    pub fn block_path(&mut self, path: PathId) {
        self.paths.block(path);
        self.some_blocked = true;
    }

    /// Datagrams for a blocked path are dropped and counted from now on, until it is unblocked: who waits
    /// for one peer sends nothing to others either, and nothing else ends the wait for one that does nothing.
    pub fn give_up_path(&mut self, path: PathId) {
        let qps = &mut self.qps;
        let of_datagrams = |index| qps.at(index).is_some_and(|pair| pair.qp.is_datagram());
        let parked = self.paths.give_up(path, of_datagrams);
        self.unpark(parked);
    }

    fn unpark(&mut self, parked: Vec<u32>) {
        for index in parked {
            if let Some(pair) = self.qps.at(index) {
                pair.qp.parked = false;
                wake(pair, &mut self.ready);
            }
        }
    }

    /// Lets the queue pairs that waited for the path go on.
    pub fn unblock_path(&mut self, path: PathId) {
        let parked = self.paths.unblock(path);
        self.unpark(parked);
        self.some_blocked = self.paths.are_some_blocked();
        // StaR's answers may have waited, or the connection manager's messages.
        self.state.has_effects |= self.star.is_some() || self.native.is_some() || self.has_mads();
    }

    /// The oldest event that has not been taken.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        self.state.events.pop_front()
    }

    /// The oldest explanation of an error completion that has not been taken.
    pub fn next_explanation(&mut self) -> Option<Explanation> {
        self.state.explanations.pop_front()
    }

    /// Posts a send work request and rings its doorbell. In ERR it is flushed at once; before RTR it is
    /// refused (IBTA 10.3.1).
    #[inline]
    pub fn post_send(&mut self, now: Instant, qp: QpId, wr: &SendWr<'_>) -> Result<(), Error> {
        self.prefetch_next_post(qp.index);
        let Some(pair) = self.qps.get_mut(qp) else { return self.post_send_elsewhere(now, qp, wr) };
        let qp = &mut pair.qp;
        match qp.state {
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(Error::WrongState),
            _ if qp.qp_type == QpType::XrcRecv => return Err(Error::Invalid("send on an XRC target")),
            _ => {}
        }
        let block = if qp.sq.is_cross() {
            let cross = self.state.cross.get_mut(qp.index()).ok_or(Error::NoSuchObject)?;
            qp.sq.post_cross(cross, qp.num, wr)?
        } else {
            qp.sq.post(qp.num, wr, qp.attr.max_send_wr.into())?
        };
        qp.requester.keep_wr_id(block, wr.wr_id, qp.sq.ring.blocks());
        self.state.posted.note(wr, qp.sq.signals_all());
        doorbell(pair, &mut self.state, &mut self.ready, now);
        Ok(())
    }

    /// What was posted since this was last asked, as requests to queue pairs.
    #[inline]
    pub fn take_posted(&mut self) -> Posted {
        core::mem::take(&mut self.state.posted)
    }

    /// Whether all that there is to send are requests of one connected queue pair, whose path is this one.
    #[inline]
    pub fn only_sends_on(&mut self, path: PathId) -> bool {
        let Some(index) = self.ready.front() else { return false };
        if self.ready.has_others() || self.some_blocked || self.has_common_work() {
            return false;
        }
        self.qps.at(index).is_some_and(|pair| {
            let qp = &pair.qp;
            qp.path == path && qp.is_reliable() && qp.state == QpState::Rts && !pair.owes()
        })
    }

    /// Posts a WQE that a program has built, in the layout of [`crate::queue::wqe`] and as long as its
    /// control segment says, and rings its doorbell; its index is filled in. The block that it starts at.
    pub fn post_built(&mut self, now: Instant, qp: QpId, wqe: &[u8], wr_id: u64) -> Result<u32, Error> {
        let Some(pair) = self.qps.get_mut(qp) else { return self.post_built_elsewhere(now, qp, wqe, wr_id) };
        let qp = &mut pair.qp;
        match qp.state {
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(Error::WrongState),
            _ if qp.qp_type == QpType::XrcRecv => return Err(Error::Invalid("send on an XRC target")),
            _ => {}
        }
        let cross = self.state.cross.get_mut(qp.index());
        let block = qp.sq.post_built(cross, wqe, qp.attr.max_send_wr.into())?;
        qp.requester.keep_wr_id(block, wr_id, qp.sq.ring.blocks());
        doorbell(pair, &mut self.state, &mut self.ready, now);
        Ok(block)
    }

    /// Free-running index of the block at which the next WQE goes into a send queue whose memory was asked
    /// for.
    pub fn next_block(&self, qp: QpId) -> Result<u32, Error> {
        match self.state.cross.get(qp.index) {
            Some(cross) if self.qps.get(qp).is_some() => Ok(cross.posted),
            _ => self.sends_posted(qp),
        }
    }

    /// Whether the send queue has room for all of these at once, for a caller that posts all or none.
    pub fn has_send_room<'a>(&self, qp: QpId, wrs: impl Iterator<Item = SendWr<'a>>) -> Result<bool, Error> {
        self.has_room_among(qp, wrs, core::iter::empty())
    }

    /// As [`Nic::has_send_room`], with WQEs that a program has built among them.
    pub fn has_room_among<'a>(
        &self,
        qp: QpId,
        wrs: impl Iterator<Item = SendWr<'a>>,
        built: impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, Error> {
        let object = self.object(qp)?;
        let sq = object.send_queue();
        let (mut requests, mut blocks) = (0, 0);
        for wr in wrs {
            requests += 1;
            blocks += crate::queue::wqe::segments_needed(&wr, sq.layout()).div_ceil(4);
        }
        for wqe in built {
            requests += 1;
            blocks += wqe.len().div_ceil(crate::queue::wqe::BLOCK);
        }
        Ok(sq.has_room(requests, blocks, object.attributes().max_send_wr.into()))
    }

    /// Rings the doorbell of a send queue whose WQEs were written through memory: `posted` is the
    /// free-running count of blocks posted so far.
    pub fn on_doorbell(&mut self, now: Instant, qp: QpId, posted: u32) -> Result<(), Error> {
        let Some(pair) = self.qps.get_mut(qp) else { return self.ring_elsewhere(now, qp, posted) };
        let qp = &mut pair.qp;
        if let Some(cross) = self.state.cross.get_mut(qp.index()) {
            qp.sq.ring_cross(cross, posted)?;
        } else {
            qp.sq.ring(posted)?;
            qp.requester.allocate(qp.sq.ring.blocks());
        }
        doorbell(pair, &mut self.state, &mut self.ready, now);
        Ok(())
    }

    /// The memory of a send queue: 64-byte blocks, see [`crate::queue::wqe`]. From then on, blocks are used
    /// in their order, round and round; who counts them asks before the first post.
    pub fn send_queue_memory(&mut self, qp: QpId) -> Result<&QueueMemory, Error> {
        let qp = self.inner_name(qp);
        if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(qp) {
            endpoint.check_written()?;
            return endpoint.sq.memory();
        }
        let pair = self.qps.get_mut(qp).ok_or(Error::NoSuchObject)?;
        match self.state.cross.get(qp.index) {
            Some(cross) => Ok(cross.host.memory()),
            None => pair.qp.sq.memory(),
        }
    }

    /// Posts a receive. Refused in RESET, flushed in ERR.
    #[inline]
    pub fn post_recv(&mut self, now: Instant, qp: QpId, wr: &RecvWr<'_>) -> Result<(), Error> {
        let Some(pair) = self.qps.get_mut(qp) else { return self.post_recv_elsewhere(now, qp, wr) };
        let qp = &mut pair.qp;
        if qp.srq().is_some() || matches!(qp.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::Invalid("receive: the queue pair has no receive queue of its own"));
        }
        if qp.state == QpState::Reset {
            return Err(Error::WrongState);
        }
        qp.receiver.as_deref_mut().ok_or(Error::QueueFull)?.queue.post(wr)?;
        if qp.state == QpState::Err {
            receive::flush(qp, &mut self.state, now);
        }
        Ok(())
    }

    /// Takes the oldest completion, if there is one. Does no other work.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId) -> Result<Option<Completion>, Error> {
        let queue = self.state.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?;
        let Some(entry) = queue.pop() else { return Ok(None) };
        if let Some(release) = entry.release {
            self.release(release);
        }
        Ok(Some(entry.completion))
    }

    /// Makes room where a completion's request was, now that the program has polled it.
    #[inline]
    pub(crate) fn release(&mut self, release: Release) {
        match release {
            Release::Send { qp, end } => {
                let Some(pair) = self.qps.get_mut(qp) else { return self.release_send_elsewhere(qp, end) };
                pair.qp.sq.release_to(end);
            }
            Release::Receive(qp) => {
                let Some(pair) = self.qps.get_mut(qp) else { return self.release_receive_elsewhere(qp) };
                if let Some(receiver) = pair.qp.receiver.as_deref_mut() {
                    receiver.queue.release(1);
                }
            }
            Release::Shared(srq) => {
                if let Some(srq) = self.state.srqs.get_mut(srq) {
                    srq.queue.release(1);
                }
            }
        }
    }

    /// How a queue pair recovers from loss, as far as the two NICs have agreed.
    pub fn recovery_of(&self, qp: QpId) -> Result<LossRecovery, Error> {
        Ok(match self.object(qp)? {
            Object::On(pair) => pair.mode.recovery(),
            Object::Off(_) => LossRecovery::GoBackN,
        })
    }

    /// Checks every invariant; for tests and simulations.
    pub fn check_invariants(&self) {
        self.check_endpoints();
        for (_, QueuePair { qp, mode }) in self.qps.iter() {
            qp.requester.check_invariants();
            qp.responder.check_invariants();
            match self.state.cross.get(qp.index()) {
                None => qp.sq.check_invariants(),
                Some(cross) => cross.check_invariants(qp.sq.fetched),
            }
            mode.check_invariants();
        }
    }
}
