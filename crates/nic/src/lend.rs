//! What the NIC does with endpoints ([`crate::endpoint`]): creates them, lends their queues to a queue pair
//! and takes them back, and does for a name that is an endpoint's what the same calls do for a queue pair.

use crate::attr::{QpAttr, QpAttrMask, QpInit, QpState, QpType};
use crate::congestion;
use crate::endpoint::{Endpoint, Endpoints, Object, Place};
use crate::engine::wake::wake;
use crate::error::Error;
use crate::ids::QpId;
use crate::nic::Nic;
use crate::objects::transition;
use crate::qp::Qp;
use crate::queue_pair::QueuePair;
use crate::slab::{existing, nobody};
use crate::state::NicState;
use crate::transport::failure::flush_sends;
use crate::transport::rc::star::Star;
use crate::transport::{rc, receive};
use crate::work::{RecvWr, SendWr};
use adverb_wire::Instant;

/// Endpoints.
impl Nic {
    /// Creates an endpoint in RESET: a queue pair's number, queues and attributes, without a transport. Every
    /// call that takes a queue pair's name takes its. What is posted waits until [`Nic::lend`]; frames for
    /// its number are dropped meanwhile, as those for a queue pair in RESET are. Only RC has endpoints, and
    /// only with receives of their own.
    pub fn create_endpoint(&mut self, init: &QpInit) -> Result<QpId, Error> {
        if init.qp_type != QpType::Rc {
            return Err(Error::Unsupported("an endpoint that is not RC"));
        }
        if init.srq.is_some() || init.xrcd.is_some() {
            return Err(Error::Unsupported("an endpoint with a shared receive queue"));
        }
        let (pd, cqs, srq_sge) = self.check_init(init)?;
        let endpoint = Box::new(Endpoint::of(Qp::new(init, pd, cqs, srq_sge)?));
        let name = self.holding_pd(init.pd, |nic| nic.insert_endpoint(endpoint))?;
        self.hold_cq(init.send_cq);
        self.hold_cq(init.recv_cq);
        Ok(name)
    }

    /// Gives an endpoint its place and its number.
    fn insert_endpoint(&mut self, endpoint: Box<Endpoint>) -> Result<QpId, Error> {
        let name = self.endpoints.insert(endpoint)?;
        let number = self.numbers.allocate(name.index).inspect_err(|_| {
            self.endpoints.remove(name);
        })?;
        if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) {
            endpoint.num = number;
        }
        Ok(name)
    }

    /// Lends an endpoint's queues to a queue pair, which begins in the endpoint's state, at the PSNs that its
    /// attributes say, with whatever has been posted. Congestion control begins anew. `Busy` if they are
    /// lent, `Invalid` for a queue pair that is no endpoint's.
    pub fn lend(&mut self, id: QpId) -> Result<(), Error> {
        self.lend_in(id, None)
    }

    /// The same; with `star`, to a queue pair that is StaR's stateful half.
    pub(crate) fn lend_in(&mut self, id: QpId, star: Option<Star>) -> Result<(), Error> {
        match self.endpoint_mut(id)? {
            Place::On(_) => return Err(Error::Busy),
            Place::Off(endpoint) if endpoint.is_handed_over() => return Err(Error::Busy),
            Place::Off(_) => {}
        }
        if !self.qps.has_room() {
            return Err(Error::TableFull);
        }
        let Some(Place::Off(endpoint)) = self.endpoints.replace(id, Place::On(nobody())) else {
            return Err(Error::NoSuchObject);
        };
        let inner = self.qps.insert(QueuePair::new(endpoint.into_qp(0)))?;
        self.endpoints.replace(id, Place::On(inner));
        let pair = self.qps.get_mut(inner).ok_or(Error::NoSuchObject)?;
        pair.qp.slot = inner.index as u16;
        self.numbers.follow(pair.qp.num, inner.index);
        let QueuePair { qp, mode } = pair;
        if matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) {
            congestion::begin(qp, &mut self.state);
        }
        match star {
            Some(star) => *mode = rc::Mode::of_star(star),
            None => rc::on_lent(qp, mode, &mut self.state, self.config.irn.is_some()),
        }
        wake(pair, &mut self.ready);
        self.timers.track(pair);
        Ok(())
    }

    /// Takes an endpoint's queues back from the queue pair that has them, which goes. What is posted and was
    /// not executed stays posted; completions that were not polled stay owed. `Busy` while requests are in
    /// flight, a message is coming in, or the peer is owed something; `WrongState` if they are not lent;
    /// `Unsupported` while the two NICs recover from loss by IRN or are about to agree on it.
    pub fn take_back(&mut self, id: QpId) -> Result<(), Error> {
        let Place::On(inner) = *self.endpoint_mut(id)? else { return Err(Error::WrongState) };
        let pair = self.qps.get_mut(inner).ok_or(Error::NoSuchObject)?;
        if pair.mode.keeps_state() && pair.qp.state != QpState::Err {
            return Err(Error::Unsupported("taking the queues of a queue pair back that may speak IRN"));
        }
        if !Endpoint::can_be_of(&pair.qp) || pair.owes() {
            return Err(Error::Busy);
        }
        self.leave_turns(inner);
        let Some(QueuePair { qp, .. }) = self.qps.remove(inner) else { return Err(Error::NoSuchObject) };
        self.numbers.follow(qp.num, id.index);
        self.endpoints.replace(id, Place::Off(Box::new(Endpoint::of(qp))));
        Ok(())
    }

    /// The same, where both sides know that nothing is in flight or needed: what the peer was owed once more
    /// is forgotten. False if it is not so.
    pub(crate) fn take_back_quiet(&mut self, id: QpId) -> bool {
        let Some(Place::On(inner)) = self.endpoints.get(id) else { return false };
        let inner = *inner;
        let Some(pair) = self.qps.get_mut(inner) else { return false };
        pair.qp.responder.forget_output();
        if !Endpoint::can_be_of(&pair.qp) {
            return false;
        }
        self.leave_turns(inner);
        let Some(QueuePair { qp, .. }) = self.qps.remove(inner) else { return false };
        self.numbers.follow(qp.num, id.index);
        self.endpoints.replace(id, Place::Off(Box::new(Endpoint::of(qp))));
        true
    }

    /// Whether an endpoint's queues are lent.
    pub fn is_lent(&self, id: QpId) -> Result<bool, Error> {
        match self.endpoints.get(id) {
            Some(place) => Ok(matches!(place, Place::On(_))),
            None => Err(self.no_endpoint(id)),
        }
    }

    fn endpoint_mut(&mut self, id: QpId) -> Result<&mut Place, Error> {
        let none = self.no_endpoint(id);
        self.endpoints.get_mut(id).ok_or(none)
    }

    /// Why a name is not an endpoint's.
    fn no_endpoint(&self, id: QpId) -> Error {
        match self.qps.get(id) {
            Some(_) => Error::Invalid("object: the queue pair is no endpoint"),
            None => Error::NoSuchObject,
        }
    }
}

/// What a queue pair's name stands for.
impl Nic {
    #[inline]
    pub(crate) fn object(&self, id: QpId) -> Result<Object<&QueuePair, &Endpoint>, Error> {
        match self.qps.get(id) {
            Some(pair) => Ok(Object::On(pair)),
            None => self.object_elsewhere(id),
        }
    }

    #[cold]
    fn object_elsewhere(&self, id: QpId) -> Result<Object<&QueuePair, &Endpoint>, Error> {
        match self.endpoints.get(id).ok_or(Error::NoSuchObject)? {
            Place::Off(endpoint) => Ok(Object::Off(endpoint)),
            Place::On(inner) => self.qps.get(*inner).map(Object::On).ok_or(Error::NoSuchObject),
        }
    }

    pub(crate) fn object_mut(&mut self, id: QpId) -> Result<Object<&mut QueuePair, &mut Endpoint>, Error> {
        let id = self.inner_name(id);
        match self.endpoints.get_mut(id) {
            Some(Place::Off(endpoint)) => Ok(Object::Off(endpoint)),
            _ => self.qps.get_mut(id).map(Object::On).ok_or(Error::NoSuchObject),
        }
    }

    /// The name in the NIC's table of queue pairs, for that of an endpoint whose queues are lent; any other
    /// as it is.
    pub(crate) fn inner_name(&self, id: QpId) -> QpId {
        match self.endpoints.get(id) {
            Some(Place::On(inner)) => *inner,
            _ => id,
        }
    }

    /// The queue pair that an endpoint's queues are lent to, if they are.
    fn lent_to(&self, id: QpId) -> Result<Option<QpId>, Error> {
        match self.endpoints.get(id).ok_or(Error::NoSuchObject)? {
            Place::Off(_) => Ok(None),
            Place::On(inner) => Ok(Some(*inner)),
        }
    }

    /// Lets something that is written for queue pairs be done to an endpoint whose queues are not lent. It
    /// must leave nothing in flight, and nothing that needs a place in the NIC's table.
    pub(crate) fn as_qp<T>(
        &mut self,
        id: QpId,
        act: impl FnOnce(&mut Qp, &mut NicState) -> T,
    ) -> Result<T, Error> {
        let Some(Place::Off(mut endpoint)) = self.endpoints.replace(id, Place::On(nobody())) else {
            return Err(Error::NoSuchObject);
        };
        let star = endpoint.star.take();
        let mut qp = endpoint.into_qp(u16::MAX);
        let done = act(&mut qp, &mut self.state);
        let mut endpoint = Endpoint::of(qp);
        endpoint.star = star;
        self.endpoints.replace(id, Place::Off(Box::new(endpoint)));
        Ok(done)
    }
}

/// Calls with a queue pair's name that is not in the NIC's table of queue pairs.
impl Nic {
    #[cold]
    pub(crate) fn post_send_elsewhere(
        &mut self,
        now: Instant,
        id: QpId,
        wr: &SendWr<'_>,
    ) -> Result<(), Error> {
        match self.lent_to(id)? {
            Some(inner) => self.post_send(now, inner, wr),
            None => {
                if let Object::Off(endpoint) = self.object_mut(id)? {
                    endpoint.post_send(wr)?;
                }
                self.after_post(now, id);
                self.flush_posted(now, id)
            }
        }
    }

    #[cold]
    pub(crate) fn post_built_elsewhere(
        &mut self,
        now: Instant,
        id: QpId,
        wqe: &[u8],
        wr_id: u64,
    ) -> Result<u32, Error> {
        if let Some(inner) = self.lent_to(id)? {
            return self.post_built(now, inner, wqe, wr_id);
        }
        let Object::Off(endpoint) = self.object_mut(id)? else { return Err(Error::NoSuchObject) };
        let block = endpoint.post_built(wqe, wr_id)?;
        self.after_post(now, id);
        self.flush_posted(now, id)?;
        Ok(block)
    }

    #[cold]
    pub(crate) fn ring_elsewhere(&mut self, now: Instant, id: QpId, posted: u32) -> Result<(), Error> {
        match self.lent_to(id)? {
            Some(inner) => self.on_doorbell(now, inner, posted),
            None => {
                if let Object::Off(endpoint) = self.object_mut(id)? {
                    endpoint.ring(posted)?;
                }
                self.after_post(now, id);
                self.flush_posted(now, id)
            }
        }
    }

    #[cold]
    pub(crate) fn post_recv_elsewhere(
        &mut self,
        now: Instant,
        id: QpId,
        wr: &RecvWr<'_>,
    ) -> Result<(), Error> {
        match self.lent_to(id)? {
            Some(inner) => self.post_recv(now, inner, wr),
            None => {
                if let Object::Off(endpoint) = self.object_mut(id)? {
                    endpoint.post_recv(wr)?;
                }
                self.after_post(now, id);
                self.flush_posted(now, id)
            }
        }
    }

    #[cold]
    pub(crate) fn release_send_elsewhere(&mut self, id: QpId, end: u32) {
        match self.object_mut(id) {
            Ok(Object::On(pair)) => pair.qp.sq.release_to(end),
            Ok(Object::Off(endpoint)) => endpoint.sq.release_to(end),
            Err(_) => {}
        }
    }

    #[cold]
    pub(crate) fn release_receive_elsewhere(&mut self, id: QpId) {
        let receiver = match self.object_mut(id) {
            Ok(Object::On(pair)) => &mut pair.qp.receiver,
            Ok(Object::Off(endpoint)) => &mut endpoint.receiver,
            Err(_) => return,
        };
        if let Some(receiver) = receiver {
            receiver.queue.release(1);
        }
    }

    #[cold]
    pub(crate) fn modify_elsewhere(
        &mut self,
        now: Instant,
        id: QpId,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<(), Error> {
        if let Some(inner) = self.lent_to(id)? {
            self.modify_qp(now, inner, attr, mask)?;
            self.follow_modified(id, attr, mask);
            // Its next connection may be StaR's, whatever this one was.
            let is_reset = self.qps.get(inner).is_some_and(|pair| pair.qp.state == QpState::Reset);
            return if is_reset && self.star.is_some() { self.take_back(id) } else { Ok(()) };
        }
        let (next, num, cqs) = self.as_qp(id, |qp, nic| {
            let next = transition(qp, nic, now, attr, mask);
            if next == Ok(QpState::Reset) {
                qp.reset();
            }
            (next, qp.num, (qp.send_cq, qp.recv_cq))
        })?;
        match next? {
            QpState::Reset => {
                self.end_star(id);
                self.end_era(id);
                self.forget_completions(id, num, cqs.0, cqs.1);
            }
            QpState::Err => self.end_star(id),
            QpState::Rtr | QpState::Rts => {
                self.begin_star(id);
                self.begin_to_compare(now);
            }
            _ => {}
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn destroy_elsewhere(&mut self, id: QpId) -> Result<(), Error> {
        if let Some(inner) = self.lent_to(id)? {
            self.destroy_qp(inner)?;
            self.endpoints.remove(id);
            self.end_era(id);
            return Ok(());
        }
        self.end_star(id);
        self.end_era(id);
        if let Some(Place::Off(endpoint)) = self.endpoints.remove(id) {
            self.let_go(id, endpoint.num, existing(endpoint.pd), endpoint.cqs);
        }
        Ok(())
    }

    /// In ERR everything that is posted is flushed at once (IBTA 10.3.1.5).
    fn flush_posted(&mut self, now: Instant, id: QpId) -> Result<(), Error> {
        match self.object(id)? {
            Object::Off(endpoint) if endpoint.state == QpState::Err => self.as_qp(id, |qp, nic| {
                flush_sends(qp, nic, now);
                receive::flush(qp, nic, now);
            }),
            _ => Ok(()),
        }
    }

    /// Every invariant of the endpoints.
    pub(crate) fn check_endpoints(&self) {
        for (name, place) in self.endpoints.iter() {
            let (id, num, index) = match place {
                Place::Off(endpoint) => {
                    endpoint.sq.check_invariants();
                    (endpoint.id, endpoint.num, name.index)
                }
                Place::On(inner) => {
                    let Some(QueuePair { qp, .. }) = self.qps.get(*inner) else {
                        panic!("an endpoint's queues are gone");
                    };
                    (qp.id, qp.num, inner.index)
                }
            };
            assert!(id == name, "an endpoint's queues have another name");
            assert!(self.numbers.owner(num) == index, "a number did not follow its endpoint");
            assert!(
                Endpoints::has_index(name.index) && self.find_qp(num) == Some(name),
                "who has the number"
            );
        }
    }
}
