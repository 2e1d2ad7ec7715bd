//! The NIC's objects: completion queues, shared receive queues, XRC domains, queue pairs. They are
//! created, changed and destroyed here, with the errors of IBTA chapter 11; an object that others use
//! is `Busy`. Protection domains, regions and windows are in [`crate::memory`].

use crate::attr::{QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType, SrqAttr, SrqInit};
use crate::congestion;
use crate::endpoint::Object;
use crate::engine::wake::wake;
use crate::error::Error;
use crate::event::Event;
use crate::ids::{CqId, PdId, QpId, SrqId, XrcdId};
use crate::limits;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue::cq::{Cq, Release};
use crate::queue::recv::{RecvQueue, Srq};
use crate::queue_pair::QueuePair;
use crate::slab::{Held, existing, nobody};
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::rc::dialect::Dialect;
use crate::transport::{rc, receive, requester};
use crate::work::RecvWr;
use adverb_wire::{Gid, Instant, Psn, QpNumber};

/// Completion queues.
impl Nic {
    /// A completion queue of at least `entries` entries. `Invalid` for 0 or above
    /// [`limits::MAX_CQE`].
    pub fn create_cq(&mut self, entries: u32) -> Result<CqId, Error> {
        if entries == 0 || entries > limits::MAX_CQE {
            return Err(Error::Invalid("number of completion queue entries"));
        }
        self.state.cqs.insert(Cq::new(entries))
    }

    /// Changes a completion queue's size; the new size is returned.
    pub fn resize_cq(&mut self, cq: CqId, entries: u32) -> Result<u32, Error> {
        if entries == 0 || entries > limits::MAX_CQE {
            return Err(Error::Invalid("number of completion queue entries"));
        }
        let queue = self.state.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?;
        queue.resize(entries)?;
        Ok(queue.capacity())
    }

    /// Entries that a completion queue holds.
    pub fn cq_capacity(&self, cq: CqId) -> Result<u32, Error> {
        Ok(self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?.capacity())
    }

    /// Whether a completion can be taken from this queue.
    pub fn holds_completion(&self, cq: CqId) -> Result<bool, Error> {
        Ok(!self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?.is_empty())
    }

    /// Whether completions of this queue have been lost (IBTA 11.6.3.1).
    pub fn cq_overrun(&self, cq: CqId) -> Result<bool, Error> {
        Ok(self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?.is_overrun())
    }

    /// Asks for an event at the next completion, or the next solicited one (IBTA 11.4.2.2); at once if one
    /// lies there that came after the last event.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Error> {
        let queue = self.state.cqs.get_mut(cq).ok_or(Error::NoSuchObject)?;
        self.state.armed_cqs -= queue.is_armed() as u32;
        let due = queue.arm(solicited_only);
        self.state.armed_cqs += queue.is_armed() as u32;
        if due {
            self.state.event(Event::Completion(cq));
        }
        Ok(())
    }

    /// `Busy` while a queue pair completes there, or waits for it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        let queue = self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?;
        if queue.users > 0 || queue.has_waiters() {
            return Err(Error::Busy);
        }
        self.state.armed_cqs -= queue.is_armed() as u32;
        self.state.cqs.remove(cq);
        self.state.pending.retain(|(id, _)| *id != cq);
        Ok(())
    }

    pub(crate) fn hold_cq(&mut self, cq: Option<CqId>) {
        if let Some(queue) = cq.and_then(|id| self.state.cqs.get_mut(id)) {
            queue.users += 1;
        }
    }

    fn release_cq(&mut self, cq: Held<CqId>) {
        if let Some(queue) = self.state.cqs.at(cq.index()) {
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
            self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?;
            *self.state.xrcds.get_mut(domain).ok_or(Error::NoSuchObject)? += 1;
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
        self.state.memory.hold_pd(init.pd)?;
        let srq = Srq { queue, pd: init.pd, xrc: init.xrc, limit: 0, users: 0 };
        self.state.srqs.insert(srq).inspect_err(|_| self.state.memory.release_pd(init.pd))
    }

    fn release_xrc(&mut self, (domain, cq): (XrcdId, CqId)) {
        if let Some(users) = self.state.xrcds.get_mut(domain) {
            *users -= 1;
        }
        self.release_cq(Held::new(cq));
    }

    /// Sets the limit, or the size, which may not fall below the limit or what is posted and not polled.
    pub fn modify_srq(&mut self, srq: SrqId, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Error> {
        let srq = self.state.srqs.get_mut(srq).ok_or(Error::NoSuchObject)?;
        let size = max_wr.unwrap_or(srq.queue.max_wr());
        if size == 0 || size > limits::MAX_SRQ_WR {
            return Err(Error::Invalid("number of work requests"));
        }
        if limit.unwrap_or(srq.limit) > size {
            return Err(Error::Invalid("shared receive queue limit"));
        }
        if size != srq.queue.max_wr() {
            srq.queue.resize(size)?;
        }
        if let Some(limit) = limit {
            srq.limit = limit;
        }
        Ok(())
    }

    /// Sizes and limit.
    pub fn query_srq(&self, srq: SrqId) -> Result<SrqAttr, Error> {
        let srq = self.state.srqs.get(srq).ok_or(Error::NoSuchObject)?;
        Ok(SrqAttr { max_wr: srq.queue.max_wr(), max_sge: srq.queue.max_sge(), limit: srq.limit })
    }

    /// The number by which XRC peers name the queue.
    pub fn srq_number(&self, srq: SrqId) -> Result<u32, Error> {
        self.state.srqs.get(srq).ok_or(Error::NoSuchObject)?;
        Ok(srq.index)
    }

    /// Posts a receive.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.state.srqs.get_mut(srq).ok_or(Error::NoSuchObject)?.queue.post(wr)
    }

    /// `Busy` while a queue pair uses it.
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), Error> {
        let srq = self.state.srqs.get(id).ok_or(Error::NoSuchObject)?;
        if srq.users > 0 {
            return Err(Error::Busy);
        }
        let (pd, xrc) = (srq.pd, srq.xrc);
        self.state.srqs.remove(id);
        self.state.memory.release_pd(pd);
        if let Some(xrc) = xrc {
            self.release_xrc(xrc);
        }
        Ok(())
    }

    /// An XRC domain.
    pub fn alloc_xrcd(&mut self) -> Result<XrcdId, Error> {
        self.state.xrcds.insert(0)
    }

    /// `Busy` while shared receive queues or targets belong to it.
    pub fn dealloc_xrcd(&mut self, xrcd: XrcdId) -> Result<(), Error> {
        match self.state.xrcds.get(xrcd) {
            None => Err(Error::NoSuchObject),
            Some(0) => {
                self.state.xrcds.remove(xrcd);
                Ok(())
            }
            Some(_) => Err(Error::Busy),
        }
    }
}

/// Queue pairs.
impl Nic {
    /// Creates a queue pair in RESET. Where the NIC offers StaR, RC ones without shared queues are
    /// [endpoints](Nic::create_endpoint) until it is known who keeps their state.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, Error> {
        let offers_star = self.star.is_some();
        let made = if offers_star && init.qp_type == QpType::Rc && init.srq.is_none() && init.xrcd.is_none() {
            self.create_endpoint(init)
        } else {
            self.create_without_endpoint(init)
        };
        self.state.counters.qps_created += u64::from(made.is_ok());
        made
    }

    /// The same, whatever the NIC offers.
    pub(crate) fn create_without_endpoint(&mut self, init: &QpInit) -> Result<QpId, Error> {
        let (pd, cqs, srq_sge) = self.check_init(init)?;
        if init.qp_type == QpType::Gsi && self.gsi.is_some() {
            return Err(Error::Busy);
        }
        let qp = Qp::new(init, pd, cqs, srq_sge)?;
        let id = self.holding_pd(init.pd, |nic| nic.insert_qp(qp))?;
        if init.qp_type == QpType::Gsi {
            self.gsi = Some(id);
        }
        self.hold_cq(init.send_cq);
        self.hold_cq(init.recv_cq);
        if let Some(srq) = init.srq.and_then(|id| self.state.srqs.get_mut(id)) {
            srq.users += 1;
        }
        if let Some(users) = init.xrcd.and_then(|id| self.state.xrcds.get_mut(id)) {
            *users += 1;
        }
        self.tell_excluded(id);
        Ok(id)
    }

    /// Holds a protection domain for what `make` makes of it, unless that fails.
    pub(crate) fn holding_pd<T>(
        &mut self,
        pd: Option<PdId>,
        make: impl FnOnce(&mut Nic) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(pd) = pd {
            self.state.memory.hold_pd(pd)?;
        }
        let made = make(self);
        if made.is_err()
            && let Some(pd) = pd
        {
            self.state.memory.release_pd(pd);
        }
        made
    }

    /// Gives a queue pair its place and its number.
    fn insert_qp(&mut self, qp: Qp) -> Result<QpId, Error> {
        let qp_type = qp.qp_type;
        let id = self.qps.insert(QueuePair::new(qp))?;
        let number = match qp_type {
            QpType::Gsi => Ok(QpNumber::GSI),
            _ => self.numbers.allocate(id.index),
        };
        let number = number.inspect_err(|_| {
            self.qps.remove(id);
        })?;
        if let Some(QueuePair { qp, .. }) = self.qps.get_mut(id) {
            qp.id = id;
            qp.slot = id.index as u16;
            qp.num = number;
        }
        Ok(id)
    }

    /// Everything a queue pair refers to must exist. A role that a type does not have (the receive
    /// queue of an XRC initiator) gets a name that no object has.
    pub(crate) fn check_init(&mut self, init: &QpInit) -> Result<(PdId, (CqId, CqId), u32), Error> {
        let target = init.qp_type == QpType::XrcRecv;
        if target && init.xrcd.is_none() {
            return Err(Error::Invalid("XRC target without a domain"));
        }
        if let Some(xrcd) = init.xrcd {
            self.state.xrcds.get(xrcd).ok_or(Error::NoSuchObject)?;
        }
        let need = |missing: bool, what| if missing { Err(Error::Invalid(what)) } else { Ok(()) };
        need(!target && init.pd.is_none(), "protection domain")?;
        need(!target && init.send_cq.is_none(), "send completion queue")?;
        let receives = !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv);
        need(receives && init.recv_cq.is_none(), "receive completion queue")?;
        if let Some(pd) = init.pd {
            self.state.memory.hold_pd(pd)?;
            self.state.memory.release_pd(pd);
        }
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.state.cqs.get(cq).ok_or(Error::NoSuchObject)?;
        }
        let srq_sge = match init.srq {
            Some(id) => {
                let srq = self.state.srqs.get(id).ok_or(Error::NoSuchObject)?;
                need(
                    srq.xrc.is_some(),
                    "an XRC shared receive queue belongs to its domain, not to a queue pair",
                )?;
                srq.queue.max_sge()
            }
            None => 0,
        };
        let cqs = (init.send_cq.unwrap_or_else(nobody), init.recv_cq.unwrap_or_else(nobody));
        Ok((init.pd.unwrap_or_else(nobody), cqs, srq_sge))
    }

    /// The queue pair with this number. QP1 has none of the table's.
    pub fn find_qp(&self, number: QpNumber) -> Option<QpId> {
        self.name_at(self.numbers.owner(number))
    }

    /// The queue pair at an index ([`QpId::index`]).
    pub fn qp_at(&self, index: u16) -> Option<QpId> {
        self.name_at(index.into())
    }

    /// The name of the queue pair, or of the endpoint, that stands at an index.
    pub(crate) fn name_at(&self, index: u32) -> Option<QpId> {
        match self.qps.peek(index) {
            Some(pair) => Some(pair.qp.id),
            None => self.endpoints.name_at(index),
        }
    }

    /// A queue pair goes away: nobody's turn comes to it any more.
    pub(crate) fn leave_turns(&mut self, id: QpId) {
        let Some(QueuePair { qp, .. }) = self.qps.get(id) else { return };
        if qp.parked {
            self.paths.unpark(id.index);
        }
        self.stalled -= qp.stalled as u32;
        self.ready.remove(id.index);
        self.state.notifier.forget(id.index);
    }

    /// The queue pair's number.
    pub fn qp_number(&self, qp: QpId) -> Result<QpNumber, Error> {
        Ok(self.object(qp)?.number())
    }

    /// The sizes that it was given.
    pub fn qp_caps(&self, qp: QpId) -> Result<QpCaps, Error> {
        Ok(self.object(qp)?.query(&self.state).0.caps)
    }

    /// How far its send queue has been posted to, for [`Nic::has_sent`].
    pub fn sends_posted(&self, qp: QpId) -> Result<u32, Error> {
        Ok(self.object(qp)?.send_queue().posted)
    }

    /// Whether everything that was posted to its send queue before a mark has been polled as complete: then
    /// no memory that it named is accessed for it any more.
    pub fn has_sent(&self, qp: QpId, posted: u32) -> Result<bool, Error> {
        Ok(self.object(qp)?.send_queue().released.wrapping_sub(posted) as i32 >= 0)
    }

    /// Current attributes, and what it was created with; the sizes are those given.
    pub fn query_qp(&self, qp: QpId) -> Result<(QpAttr, QpInit), Error> {
        Ok(self.object(qp)?.query(&self.state))
    }

    /// The PSN that the responder expects next: what came before it is done.
    pub fn expected_psn(&self, qp: QpId) -> Result<Psn, Error> {
        Ok(self.object(qp)?.expected())
    }

    /// Changes attributes and state (IBTA 11.2.5.2, table 91).
    pub fn modify_qp(
        &mut self,
        now: Instant,
        id: QpId,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), Error> {
        let changed = self.change_qp(now, id, attr, mask);
        if changed.is_ok() && mask.contains(QpAttrMask::STATE) && attr.state == QpState::Rtr {
            self.note_connected(id);
        }
        changed
    }

    /// Whether a queue pair offers IRN to its peer, where the NIC does; it does from RESET on. A driver whose
    /// connection set-up has heard that the peer does not, or whose program wants plain RC, says so before
    /// RTR. `Invalid` later, when the peers have found out.
    pub fn offer_irn(&mut self, id: QpId, offers: bool) -> Result<(), Error> {
        let qp = &mut self.qps.get_mut(id).ok_or(Error::NoSuchObject)?.qp;
        if !matches!(qp.state, QpState::Reset | QpState::Init) {
            return Err(Error::Invalid("state, in which the peers have begun to agree"));
        }
        qp.dialect = if offers { Dialect::Plain } else { Dialect::PlainOnly };
        Ok(())
    }

    fn change_qp(&mut self, now: Instant, id: QpId, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let Some(pair) = self.qps.get_mut(id) else { return self.modify_elsewhere(now, id, attr, mask) };
        let QueuePair { qp, mode } = pair;
        let was = qp.state;
        let next = transition(qp, &mut self.state, now, attr, mask)?;
        if next == QpState::Reset {
            let (name, num, send_cq, recv_cq) = (qp.id, qp.num, qp.send_cq, qp.recv_cq);
            self.release_shared(id);
            if let Some(pair) = self.qps.get_mut(id) {
                pair.reset();
            }
            self.state.stop_waiting(id.index);
            if let Some(cross) = self.state.cross.get_mut(id.index) {
                cross.reset();
            }
            self.state.note_state(num, QpState::Reset);
            self.forget_completions(name, num, send_cq, recv_cq);
            return Ok(());
        }
        if next == QpState::Rtr {
            congestion::begin(qp, &mut self.state);
        }
        let offers_irn = self.config.irn.is_some();
        rc::on_transition(qp, mode, &mut self.state, was, offers_irn);
        wake(pair, &mut self.ready);
        self.timers.track(pair);
        Ok(())
    }

    /// Drops the completions of a queue pair that nobody has polled, with what they would have freed of it.
    pub(crate) fn forget_completions(
        &mut self,
        id: QpId,
        num: QpNumber,
        send_cq: Held<CqId>,
        recv_cq: Held<CqId>,
    ) {
        let mut freed = Vec::new();
        self.state.effects.retain(|effect| !effect.frees(id));
        for cq in [send_cq, recv_cq] {
            if let Some(queue) = self.state.cqs.at(cq.index()) {
                queue.forget(num, &mut freed);
            }
        }
        self.state.pending.retain(|(_, entry)| {
            let stays = entry.completion.qp != num;
            freed.extend(entry.release.filter(|release| !stays && release.is_shared()));
            stays
        });
        for release in freed {
            self.release(release);
        }
    }

    /// Receives of a shared queue that a queue pair holds for messages in progress go back as places, before
    /// it is reset or destroyed. The requests themselves are lost to it (IBTA 10.2.9.3).
    fn release_shared(&mut self, id: QpId) {
        let Some(QueuePair { qp, .. }) = self.qps.get(id) else { return };
        let early = qp.receiver.as_deref().map_or(0, |receiver| receiver.early_count());
        let held = early as u32 + u32::from(qp.responder.receive_taken);
        if let Release::Shared(srq) = receive::release(qp)
            && let Some(srq) = self.state.srqs.get_mut(srq)
        {
            srq.queue.release(held);
        }
    }

    /// Destroys a queue pair; its completions that have not been polled are dropped. `Busy` while it is
    /// attached to a multicast group.
    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), Error> {
        let Some(QueuePair { qp, .. }) = self.qps.get(id) else { return self.destroy_elsewhere(id) };
        if self.groups.has(id) {
            return Err(Error::Busy);
        }
        let (name, num, cqs) = (qp.id, qp.num, (qp.send_cq, qp.recv_cq));
        let (pd, srq, xrcd) = (existing(qp.pd), qp.srq(), qp.xrcd());
        self.leave_turns(id);
        self.release_shared(id);
        self.state.stop_waiting(id.index);
        self.state.cross.remove(id.index);
        self.state.managed.remove(&num);
        self.qps.remove(id);
        self.let_go(name, num, pd, cqs);
        if let Some(srq) = srq.and_then(|id| self.state.srqs.get_mut(id)) {
            srq.users -= 1;
        }
        if let Some(users) = xrcd.and_then(|id| self.state.xrcds.get_mut(id)) {
            *users -= 1;
        }
        if self.gsi == Some(id) {
            self.gsi = None;
        }
        Ok(())
    }

    /// Gives back what every queue pair holds, whoever has its queues.
    pub(crate) fn let_go(
        &mut self,
        name: QpId,
        num: QpNumber,
        pd: Option<PdId>,
        cqs: (Held<CqId>, Held<CqId>),
    ) {
        self.state.counters.qps_destroyed += 1;
        self.forget_completions(name, num, cqs.0, cqs.1);
        self.state.memory.release_qp(num);
        self.numbers.release(num);
        if let Some(pd) = pd {
            self.state.memory.release_pd(pd);
        }
        self.release_cq(cqs.0);
        self.release_cq(cqs.1);
    }

    /// Lets a datagram queue pair receive what is sent to a multicast group (IBTA 10.5).
    pub fn attach_multicast(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        let object = self.object(qp)?;
        if !matches!(object, Object::On(pair) if pair.qp.is_datagram()) {
            return Err(Error::Invalid("multicast needs a datagram queue pair"));
        }
        self.groups.attach(qp, group)
    }

    /// Takes a queue pair out of a multicast group.
    pub fn detach_multicast(&mut self, qp: QpId, group: Gid) -> Result<(), Error> {
        self.object(qp)?;
        self.groups.detach(qp, group)
    }
}

/// Takes attributes over and changes the state, with what that does to the queues. What else is to be done,
/// in particular on the way to RESET, the caller knows.
pub(crate) fn transition(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<QpState, Error> {
    let next = qp.apply(attr, mask, &nic.gids)?;
    if mask.contains(QpAttrMask::AV) {
        qp.path = nic.path_to(qp.dst, qp.peer, qp.path);
    }
    match (qp.state, next) {
        (_, QpState::Reset) => {}
        (_, QpState::Err) => enter_error(qp, nic, now),
        (QpState::Rts, QpState::Sqd) => {
            qp.state = QpState::Sqd;
            qp.draining = true;
            requester::settle(qp, nic, now);
        }
        (was, next) => {
            if next == QpState::Rtr && qp.is_datagram() {
                qp.src_port = 0xc000;
                qp.mtu = limits::MAX_MTU as u16;
            }
            if next == QpState::Rts && was == QpState::Sqe {
                qp.requester.go_back();
            }
            qp.draining = qp.held;
            qp.state = next;
        }
    }
    nic.note_state(qp.num, qp.state);
    Ok(next)
}
