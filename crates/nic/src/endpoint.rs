//! Endpoints: the host's half of a queue pair. Its queues with what is posted to them, its number, its
//! attributes and its completion queues exist without a transport. They are lent to a queue pair while a
//! connection needs one, and taken back when nothing is in flight (StaR: the side whose NIC keeps no
//! connection state, and which becomes plain RC for a peer that knows nothing else).
//!
//! ```text
//!                     lend
//!    off  ------------------------->  on: a queue pair in the NIC's table has the queues
//!         <-------------------------
//!          take back, if it is at rest
//! ```
//!
//! Endpoints stand in a table of their own, beside that of the queue pairs, and are named by indices beyond
//! it. So a connection without a transport takes no place among queue pairs, and who looks up a queue pair
//! pays nothing for endpoints: a name that is not found there is looked for here. The name and the number
//! stay when the queues move; what completions owe to the queues names the endpoint, and finds them wherever
//! they are.
//!
//! The queues move by value. What of a transport outlives it is little: the next PSN of either direction, and
//! the answers to READs and atomics that a peer may ask for once more (IBTA 9.7.5.1.1).

use crate::attr::{Mtu, QpAttr, QpInit, QpState, QpType};
use crate::attributes::{Attributes, Live};
use crate::error::Error;
use crate::ids::{CqId, PathId, PdId, QpId};
use crate::limits;
use crate::memory::Access;
use crate::qp::{Qp, caps};
use crate::queue::recv::Receives;
use crate::queue::send::SendQueue;
use crate::queue_pair::QueuePair;
use crate::slab::{self, Held, Slab};
use crate::star::Hosted;
use crate::state::NicState;
use crate::transport::incoming::{self, Message};
use crate::transport::inflight;
use crate::work::{RecvWr, SendWr};
use adverb_wire::{Flow, Gid, Instant, Psn, QpNumber};

/// The host's half of a queue pair, while its queues are not lent.
pub(crate) struct Endpoint {
    pub id: QpId,
    pub num: QpNumber,
    pub sq: SendQueue,
    pub receiver: Option<Box<Receives>>,
    pub pd: PdId,
    pub cqs: (Held<CqId>, Held<CqId>),
    pub state: QpState,
    pub attr: Attributes,
    access: Access,
    pub dst: Gid,
    pub peer: QpNumber,
    pub path: PathId,
    pub mtu: u16,
    src_port: u16,
    hop_limit: u8,
    traffic_class: u8,
    requests: inflight::Resume,
    answers: incoming::Resume,
    /// What it knows of StaR, from RTS on, where the NIC offers that.
    pub star: Option<Box<Hosted>>,
}

const _: () = assert!(core::mem::size_of::<Endpoint>() <= 320);

impl Endpoint {
    /// Whether nothing is in flight or owed in either direction, so that the queues can be taken off. In ERR
    /// a message that was broken off does not go on.
    pub fn can_be_of(qp: &Qp) -> bool {
        let early = qp.receiver.as_deref().map_or(0, Receives::early_count);
        let between = qp.responder.message() == Message::None || !qp.receives();
        let owes = qp.responder.has_output() || qp.responder.receive_taken || early > 0;
        qp.requester.is_empty() && between && !owes
    }

    /// What a queue pair leaves behind that has nothing in flight, without its transport.
    pub fn of(qp: Qp) -> Endpoint {
        let Qp { id, num, state, qp_type, access, hop_limit, traffic_class, src_port, mtu, .. } = qp;
        let Qp { path, peer, dst, pd, send_cq, recv_cq, sq, requester, responder, receiver, attr, .. } = qp;
        assert!(qp_type == QpType::Rc, "an endpoint is RC's");
        Endpoint {
            id,
            num,
            sq,
            receiver,
            pd,
            cqs: (send_cq, recv_cq),
            state,
            attr,
            access,
            dst,
            peer,
            path,
            mtu,
            src_port,
            hop_limit,
            traffic_class,
            requests: requester.into_resume(),
            answers: responder.into_resume(),
            star: None,
        }
    }

    /// A queue pair over these queues, to stand at `slot`. It is in the endpoint's state, with nothing in
    /// flight.
    pub fn into_qp(self, slot: u16) -> Qp {
        let requester = inflight::Requester::resume(self.requests, self.attr.retry_cnt, self.attr.rnr_retry);
        Qp {
            id: self.id,
            slot,
            num: self.num,
            state: self.state,
            qp_type: QpType::Rc,
            ready: false,
            taken: false,
            parked: false,
            stalled: false,
            draining: false,
            held: false,
            dialect: Default::default(),
            masked_peer: false,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            src_port: self.src_port,
            mtu: self.mtu,
            path: self.path,
            peer: self.peer,
            dst: self.dst,
            pd: self.pd,
            send_cq: self.cqs.0,
            recv_cq: self.cqs.1,
            access: self.access,
            deadline: Instant::NEVER,
            heap_at: Instant::NEVER,
            sq: self.sq,
            requester,
            responder: incoming::Responder::resume(self.answers),
            control: None,
            receiver: self.receiver,
            attr: self.attr,
        }
    }

    /// Attributes as they are now.
    pub fn query(&self) -> QpAttr {
        self.attr.query(Live {
            state: self.state,
            access: self.access,
            dst: self.dst,
            path: self.path,
            path_mtu: Mtu::of_bytes(self.mtu.into()),
            rq_psn: self.answers.expected(),
            sq_psn: self.requests.next_psn,
            max_rd_atomic: self.requests.max_rd_atomic,
            max_dest_rd_atomic: self.answers.depth(),
            dest_qpn: self.peer,
            sq_draining: false,
            caps: caps(&self.attr, &self.sq, self.receiver.as_deref()),
        })
    }

    /// What it was created with, its sizes as they were given.
    pub fn created(&self, nic: &NicState) -> QpInit {
        QpInit {
            qp_type: QpType::Rc,
            pd: slab::existing(self.pd),
            send_cq: nic.cqs.id_at(self.cqs.0.index()),
            recv_cq: nic.cqs.id_at(self.cqs.1.index()),
            srq: None,
            xrcd: None,
            sq_sig_all: self.sq.signals_all(),
            caps: caps(&self.attr, &self.sq, self.receiver.as_deref()),
        }
    }

    /// The PSN that the responder expects next.
    pub fn expected(&self) -> Psn {
        self.answers.expected()
    }

    /// Both directions go on at other PSNs: this side's next request, and the peer's.
    pub fn go_on_at(&mut self, (next, expected): (Psn, Psn)) {
        self.requests.next_psn = next;
        self.answers.go_on_at(expected);
    }

    /// Callers' words for its sends, and where each begins.
    pub fn starts(&self) -> &inflight::Slots {
        &self.requests.slots
    }

    /// The PSN of its first request.
    pub fn next_psn(&self) -> Psn {
        self.requests.next_psn
    }

    /// Addresses of outgoing packets. `gids` are the NIC's.
    pub fn flow(&self, gids: &[Gid]) -> Flow {
        let Endpoint { dst, src_port, traffic_class, hop_limit, .. } = *self;
        let src = gids.get(usize::from(self.attr.sgid_index)).copied().unwrap_or_default();
        Flow { src, dst, src_port, traffic_class, hop_limit }
    }

    /// Posts a send work request, for the queue pair to execute that gets the queues.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), Error> {
        self.check_sends()?;
        let end = self.sq.posted;
        let block = self.sq.post(self.num, wr, self.attr.max_send_wr.into())?;
        self.keep_posted(end, block, wr.wr_id);
        Ok(())
    }

    /// Posts a WQE that a program has built; the block that it starts at.
    pub fn post_built(&mut self, wqe: &[u8], wr_id: u64) -> Result<u32, Error> {
        self.check_sends()?;
        let end = self.sq.posted;
        let block = self.sq.post_built(None, wqe, self.attr.max_send_wr.into())?;
        self.keep_posted(end, block, wr_id);
        Ok(block)
    }

    fn check_sends(&self) -> Result<(), Error> {
        match self.state {
            QpState::Reset | QpState::Init | QpState::Rtr => Err(Error::WrongState),
            _ => Ok(()),
        }
    }

    /// A request was posted at `block`, behind `end`.
    fn keep_posted(&mut self, end: u32, block: u32, wr_id: u64) {
        let slots = &mut self.requests.slots;
        slots.keep_wr_id(block, wr_id, self.sq.ring.blocks());
        slots.keep_start(block, self.sq.posted.wrapping_sub(block));
        self.follow_post(end, block);
    }

    /// Notes where the requests begin that are posted and were not executed: a queue pair that has had the
    /// queues has no use for that, and has used the place for what was in flight.
    pub fn keep_starts(&mut self) {
        let mut block = self.sq.fetched;
        while block != self.sq.posted {
            let left = self.sq.posted.wrapping_sub(block);
            let blocks = self.sq.ring.peek(block).1.clamp(1, left);
            self.requests.slots.keep_start(block, blocks);
            block = block.wrapping_add(blocks);
        }
    }

    /// Rings the doorbell of a send queue whose WQEs were written through memory.
    pub fn ring(&mut self, posted: u32) -> Result<(), Error> {
        self.check_written()?;
        self.sq.ring(posted)?;
        self.requests.slots.allocate(self.sq.ring.blocks());
        Ok(())
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if self.state == QpState::Reset {
            return Err(Error::WrongState);
        }
        self.receiver.as_deref_mut().ok_or(Error::QueueFull)?.queue.post(wr)
    }
}

/// Where an endpoint's queues are.
pub(crate) enum Place {
    Off(Box<Endpoint>),
    /// Lent to the queue pair that has this name in the NIC's table.
    On(QpId),
}

/// Index of the first endpoint's name: no queue pair has one as high.
const FIRST: u32 = limits::MAX_QP;

/// The endpoints of a NIC. One that has none takes no memory for them.
pub(crate) struct Endpoints {
    places: Slab<QpId, Place>,
}

impl Endpoints {
    pub fn new() -> Endpoints {
        Endpoints { places: Slab::new(limits::MAX_QP) }
    }

    pub fn begin_names_at(&mut self, generation: u32) {
        self.places.begin_at(generation);
    }

    /// Whether an index, or an owner of a number, is an endpoint's.
    pub fn has_index(index: u32) -> bool {
        index >= FIRST && index - FIRST < limits::MAX_QP
    }

    /// The name in this table.
    fn inner(name: QpId) -> Option<QpId> {
        let index = name.index.checked_sub(FIRST)?;
        Some(QpId { index, ..name })
    }

    pub fn insert(&mut self, endpoint: Box<Endpoint>) -> Result<QpId, Error> {
        let id = self.places.insert(Place::Off(endpoint))?;
        let name = QpId { index: id.index + FIRST, ..id };
        if let Some(Place::Off(endpoint)) = self.places.get_mut(id) {
            endpoint.id = name;
        }
        Ok(name)
    }

    pub fn get(&self, name: QpId) -> Option<&Place> {
        self.places.get(Endpoints::inner(name)?)
    }

    pub fn get_mut(&mut self, name: QpId) -> Option<&mut Place> {
        self.places.get_mut(Endpoints::inner(name)?)
    }

    /// Puts the queues elsewhere; where they were.
    pub fn replace(&mut self, name: QpId, place: Place) -> Option<Place> {
        self.get_mut(name).map(|at| core::mem::replace(at, place))
    }

    pub fn remove(&mut self, name: QpId) -> Option<Place> {
        self.places.remove(Endpoints::inner(name)?)
    }

    /// The name of the endpoint at an index.
    pub fn name_at(&self, index: u32) -> Option<QpId> {
        let id = self.places.id_at(index.checked_sub(FIRST)?)?;
        Some(QpId { index, ..id })
    }

    pub fn iter(&self) -> impl Iterator<Item = (QpId, &Place)> {
        self.places.iter().map(|(id, place)| (QpId { index: id.index + FIRST, ..id }, place))
    }
}

/// What a queue pair's name stands for: a queue pair, or an endpoint's queues without one.
pub(crate) enum Object<P, E> {
    On(P),
    Off(E),
}

impl Object<&QueuePair, &Endpoint> {
    pub fn number(&self) -> QpNumber {
        match self {
            Object::On(pair) => pair.qp.num,
            Object::Off(endpoint) => endpoint.num,
        }
    }

    pub fn state(&self) -> QpState {
        match self {
            Object::On(pair) => pair.qp.state,
            Object::Off(endpoint) => endpoint.state,
        }
    }

    pub fn send_queue(&self) -> &SendQueue {
        match self {
            Object::On(pair) => &pair.qp.sq,
            Object::Off(endpoint) => &endpoint.sq,
        }
    }

    pub fn attributes(&self) -> &Attributes {
        match self {
            Object::On(pair) => &pair.qp.attr,
            Object::Off(endpoint) => &endpoint.attr,
        }
    }

    pub fn query(&self, nic: &NicState) -> (QpAttr, QpInit) {
        match self {
            Object::On(QueuePair { qp, .. }) => (qp.query(), qp.created(nic)),
            Object::Off(endpoint) => (endpoint.query(), endpoint.created(nic)),
        }
    }

    /// The PSN that the responder expects next.
    pub fn expected(&self) -> Psn {
        match self {
            Object::On(pair) => pair.qp.responder.expected(),
            Object::Off(endpoint) => endpoint.expected(),
        }
    }
}
