//! A queue pair: its identity, its attributes, its state machine (IBTA 10.3.1), and the two halves of
//! its transport. What to do with packets is in [`crate::transport`].

use crate::attr::{AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use crate::attributes::{Attributes, Live};
use crate::congestion::control::Control;
use crate::error::Error;
use crate::ids::{CqId, PathId, PdId, QpId, SrqId, XrcdId};
use crate::limits;
use crate::memory::Access;
use crate::queue::recv::{Receives, RecvQueue, ScatterList};
use crate::queue::send::SendQueue;
use crate::queue::wqe::Layout;
use crate::slab::{self, Held};
use crate::state::NicState;
use crate::transport::incoming::Responder;
use crate::transport::inflight::Requester;
use crate::transport::rc::dialect::Dialect;
use adverb_wire::{Duration, Flow, Gid, Instant, QpNumber, Service};

/// A queue pair.
pub(crate) struct Qp {
    /// The name that the program and the driver know it by.
    pub id: QpId,
    /// See [`Qp::index`].
    pub slot: u16,
    pub num: QpNumber,
    pub state: QpState,
    pub qp_type: QpType,
    /// Queued for transmission, or taken out of the row by the driver, who then names it in each step.
    pub ready: bool,
    pub taken: bool,
    /// Waiting for its path.
    pub parked: bool,
    /// Has more to send, once something is acknowledged.
    pub stalled: bool,
    /// The send queue is draining towards SQD.
    pub draining: bool,
    /// It begins no new requests because its connection changes its stack; it counts as draining meanwhile.
    pub held: bool,
    /// What its requests are on the wire.
    pub dialect: Dialect,
    /// The peer has said that it executes masked atomics.
    pub masked_peer: bool,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub src_port: u16,
    /// In bytes; see [`Qp::mtu`].
    pub mtu: u16,
    pub path: PathId,
    pub peer: QpNumber,
    /// Where packets go, and the only source that incoming ones may have.
    pub dst: Gid,
    pub pd: PdId,
    pub send_cq: Held<CqId>,
    pub recv_cq: Held<CqId>,
    pub access: Access,
    /// When the timer runs out; `NEVER` when it is stopped.
    pub deadline: Instant,
    /// Earliest entry of the timer heap that stands for this queue pair.
    pub heap_at: Instant,
    pub sq: SendQueue,
    pub requester: Requester,
    pub responder: Responder,
    /// Congestion control's state, from RTR on, when the NIC's scheme needs more than a window.
    pub control: Option<Box<Control>>,
    /// Unless it can take no receives, its own or shared ones.
    pub receiver: Option<Box<Receives>>,
    pub attr: Attributes,
}

const _: () = assert!(limits::MAX_MTU <= u16::MAX as usize && limits::MAX_QP <= 1 << 16);

impl Qp {
    /// A queue pair in RESET. The caller has checked that the objects in `init` exist.
    pub fn new(init: &QpInit, pd: PdId, cqs: (CqId, CqId), srq_sge: u32) -> Result<Self, Error> {
        check_sizes(&init.caps)?;
        let layout = match init.qp_type {
            QpType::Ud | QpType::Gsi => Layout::Datagram,
            QpType::XrcSend => Layout::Xrc,
            QpType::Rc | QpType::Uc | QpType::XrcRecv => Layout::Connected,
        };
        let given = given(init);
        let sq =
            SendQueue::new(given.max_send_wr, given.max_send_sge, given.max_inline, layout, init.sq_sig_all);
        let receiver = receives(init, &given, srq_sge)?;
        Ok(Qp {
            id: slab::Id::new(0, 0),
            slot: 0,
            num: QpNumber::new(0),
            state: QpState::Reset,
            qp_type: init.qp_type,
            ready: false,
            taken: false,
            parked: false,
            stalled: false,
            draining: false,
            held: false,
            dialect: Dialect::default(),
            masked_peer: false,
            hop_limit: 0,
            traffic_class: 0,
            src_port: 0,
            mtu: Mtu::default().bytes() as u16,
            path: PathId::DEFAULT,
            peer: QpNumber::new(0),
            dst: Gid::default(),
            pd,
            send_cq: Held::new(cqs.0),
            recv_cq: Held::new(cqs.1),
            access: Access::empty(),
            deadline: Instant::NEVER,
            heap_at: Instant::NEVER,
            sq,
            requester: Requester::new(),
            responder: Responder::default(),
            control: None,
            receiver,
            attr: Attributes::new(given.max_send_wr as u16),
        })
    }

    /// Where it stands in the NIC's table, and in those beside it. An endpoint's name says something else.
    #[inline]
    pub fn index(&self) -> u32 {
        self.slot.into()
    }

    /// Largest payload of a packet, in bytes.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.mtu.into()
    }

    /// Addresses of outgoing packets.
    #[inline]
    pub fn flow(&self, nic: &NicState) -> Flow {
        let Qp { dst, src_port, traffic_class, hop_limit, .. } = *self;
        let mut flow = Flow { src: nic.gid, dst, src_port, traffic_class, hop_limit };
        if self.attr.sgid_index != 0 {
            flow.src = self.other_source(nic);
        }
        flow
    }

    #[cold]
    fn other_source(&self, nic: &NicState) -> Gid {
        nic.gids.get(usize::from(self.attr.sgid_index)).copied().unwrap_or_default()
    }

    /// Has a local ACK timeout.
    #[inline]
    pub fn has_timeout(&self) -> bool {
        self.attr.timeout > 0
    }

    /// The shortest time after which an unanswered packet is sent again; zero for never.
    #[inline]
    pub fn shortest_timeout(&self, nic: &NicState) -> Duration {
        if self.dialect.has_own_timeouts() { nic.irn.rto_low } else { self.rto(nic) }
    }

    /// Local ACK timeout as a time; zero for none. Plain RC's may be the NIC's own.
    #[inline]
    pub fn rto(&self, nic: &NicState) -> Duration {
        match nic.rto {
            Some(rto) if self.has_timeout() && !self.dialect.has_own_timeouts() => rto,
            _ if self.has_timeout() => ack_timeout(self.attr.timeout).max(nic.rto_min),
            _ => Duration::ZERO,
        }
    }

    /// Service that packets of this queue pair carry.
    #[inline]
    pub fn service(&self) -> Service {
        match self.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud | QpType::Gsi => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }

    /// Reliable: acknowledged and retransmitted.
    #[inline]
    pub fn is_reliable(&self) -> bool {
        matches!(self.qp_type, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }

    /// One message is one packet, to any destination.
    #[inline]
    pub fn is_datagram(&self) -> bool {
        matches!(self.qp_type, QpType::Ud | QpType::Gsi)
    }

    /// Its shared receive queue.
    #[inline]
    pub fn srq(&self) -> Option<SrqId> {
        self.receiver.as_deref()?.shared
    }

    /// Its XRC domain.
    #[inline]
    pub fn xrcd(&self) -> Option<XrcdId> {
        self.receiver.as_deref()?.xrcd
    }

    /// XRC: the shared receive queue that the receive in progress, or the last one, came from.
    #[inline]
    pub fn srq_of_receive(&self) -> Option<SrqId> {
        self.receiver.as_deref()?.of_xrc
    }

    /// May take in packets (IBTA 10.3.1).
    #[inline]
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// The receive that the message in progress lands in, or the last one did.
    #[inline]
    pub fn scatter(&self) -> &ScatterList {
        self.receiver.as_deref().map_or(ScatterList::none(), |receiver| &receiver.list)
    }

    /// Takes the next receive of its own queue. False when there is none.
    #[inline]
    pub fn take_receive(&mut self) -> bool {
        self.receiver.as_deref_mut().is_some_and(Receives::take)
    }

    /// Receives that messages have taken in order, on a circle of 2^32.
    #[inline]
    pub fn receives_taken(&self) -> u32 {
        self.receiver.as_deref().map_or(0, |receiver| receiver.taken)
    }

    /// May start new send work.
    #[inline]
    pub fn sends(&self) -> bool {
        self.state == QpState::Rts
    }

    /// Back to RESET: everything posted is forgotten, the attributes are blank.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.draining = false;
        self.held = false;
        self.deadline = Instant::NEVER;
        self.sq.reset();
        if let Some(receiver) = &mut self.receiver {
            receiver.reset();
        }
        self.requester.reset();
        self.responder = Responder::default();
        self.control = None;
        self.dialect = Dialect::default();
        self.masked_peer = false;
        self.attr = Attributes::new(self.attr.max_send_wr);
        self.mtu = Mtu::default().bytes() as u16;
        self.access = Access::empty();
        self.peer = QpNumber::new(0);
        self.dst = Gid::default();
        (self.src_port, self.traffic_class, self.hop_limit) = (0, 0, 0);
    }

    /// Checks a transition and its attributes against IBTA table 91 and takes the attributes over.
    /// The state itself is changed by the caller, who knows what else has to happen.
    pub fn apply(&mut self, attr: &QpAttr, mask: QpAttrMask, gids: &[Gid]) -> Result<QpState, Error> {
        let current = self.state;
        if mask.contains(QpAttrMask::CUR_STATE) && attr.cur_state != current {
            return Err(Error::WrongState);
        }
        let next = if mask.contains(QpAttrMask::STATE) { attr.state } else { current };
        let Some((required, optional)) = rules(self.qp_type, current, next) else {
            return Err(Error::WrongState);
        };
        let free = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
        if !mask.contains(required) {
            return Err(Error::Invalid("attribute mask: a required attribute is missing"));
        }
        if !(required | optional | free).contains(mask) {
            return Err(Error::Invalid("attribute mask: an attribute is not allowed in this transition"));
        }
        check_ranges(attr, mask, gids)?;
        self.take(attr, mask);
        Ok(next)
    }

    fn take(&mut self, attr: &QpAttr, mask: QpAttrMask) {
        let kept = &mut self.attr;
        let has = |bit| mask.contains(bit);
        if has(QpAttrMask::ACCESS_FLAGS) {
            self.access = attr.access;
        }
        if has(QpAttrMask::PORT) {
            kept.port = attr.port;
        }
        if has(QpAttrMask::QKEY) {
            kept.qkey = attr.qkey;
        }
        if has(QpAttrMask::PATH_MTU) {
            self.mtu = attr.path_mtu.bytes() as u16;
        }
        if has(QpAttrMask::DEST_QPN) {
            self.peer = attr.dest_qpn;
        }
        if has(QpAttrMask::AV) {
            let AddressVector { dgid: _, sgid_index, traffic_class, hop_limit, sl, flow_label } = attr.av;
            (kept.sgid_index, kept.traffic_class, kept.hop_limit) = (sgid_index, traffic_class, hop_limit);
            (kept.sl, kept.flow_label) = (sl, flow_label);
            self.path = attr.path;
            self.dst = attr.av.dgid;
            self.traffic_class = traffic_class;
            self.hop_limit = if hop_limit == 0 { 64 } else { hop_limit };
        }
        if has(QpAttrMask::RQ_PSN) {
            self.responder.set_expected(attr.rq_psn);
        }
        if has(QpAttrMask::SQ_PSN) {
            self.requester.set_first_psn(attr.sq_psn);
        }
        if has(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            self.responder.set_depth(attr.max_dest_rd_atomic);
        }
        if has(QpAttrMask::MAX_QP_RD_ATOMIC) {
            self.requester.max_rd_atomic = attr.max_rd_atomic;
        }
        if has(QpAttrMask::MIN_RNR_TIMER) {
            kept.min_rnr_timer = attr.min_rnr_timer;
        }
        if has(QpAttrMask::TIMEOUT) {
            kept.timeout = attr.timeout;
        }
        if has(QpAttrMask::RETRY_CNT) {
            kept.retry_cnt = attr.retry_cnt;
            self.requester.retries = attr.retry_cnt;
        }
        if has(QpAttrMask::RNR_RETRY) {
            kept.rnr_retry = attr.rnr_retry;
            self.requester.rnr_retries = attr.rnr_retry;
        }
        if has(QpAttrMask::EN_SQD_ASYNC_NOTIFY) {
            kept.sqd_notify = attr.sqd_notify;
        }
        // Both directions of a connection take one route, as Linux has it (entropy by flow: IBTA A17.9.1).
        self.src_port = source_port(self.num, self.peer);
    }

    /// The sizes that it was given.
    pub fn caps(&self) -> QpCaps {
        caps(&self.attr, &self.sq, self.receiver.as_deref())
    }

    /// What it was created with, its sizes as they were given.
    pub fn created(&self, nic: &NicState) -> QpInit {
        QpInit {
            qp_type: self.qp_type,
            pd: slab::existing(self.pd),
            send_cq: nic.cqs.id_at(self.send_cq.index()),
            recv_cq: nic.cqs.id_at(self.recv_cq.index()),
            srq: self.srq(),
            xrcd: self.xrcd(),
            sq_sig_all: self.sq.signals_all(),
            caps: self.caps(),
        }
    }

    /// Attributes as they are now.
    pub fn query(&self) -> QpAttr {
        self.attr.query(Live {
            state: self.state,
            access: self.access,
            dst: self.dst,
            path: self.path,
            // Datagram queue pairs were set none.
            path_mtu: if self.is_datagram() { Mtu::default() } else { Mtu::of_bytes(self.mtu()) },
            rq_psn: self.responder.expected(),
            sq_psn: self.requester.next_psn(),
            max_rd_atomic: self.requester.max_rd_atomic,
            max_dest_rd_atomic: self.responder.depth(),
            dest_qpn: self.peer,
            sq_draining: self.draining && self.state == QpState::Sqd,
            caps: self.caps(),
        })
    }
}

// In as few bytes as their limits need.
const _: () = assert!(limits::MAX_QP_WR <= u16::MAX as u32);
const _: () = assert!(limits::MAX_INLINE <= u16::MAX as u32 && limits::MAX_SGE <= u8::MAX as u32);

/// The sizes that a queue pair with these queues was given.
pub(crate) fn caps(attr: &Attributes, sq: &SendQueue, receiver: Option<&Receives>) -> QpCaps {
    let (max_inline, max_send_sge) = sq.request_sizes();
    QpCaps {
        max_send_wr: attr.max_send_wr.into(),
        max_recv_wr: receiver.map_or(0, |receiver| receiver.queue.max_wr()),
        max_send_sge: max_send_sge.into(),
        max_recv_sge: receiver.map_or(0, |receiver| receiver.queue.max_sge()),
        max_inline: max_inline.into(),
    }
}

/// Sizes asked for, against the NIC's bounds.
fn check_sizes(caps: &QpCaps) -> Result<(), Error> {
    if caps.max_send_wr > limits::MAX_QP_WR || caps.max_recv_wr > limits::MAX_QP_WR {
        return Err(Error::Invalid("number of work requests"));
    }
    if caps.max_send_sge > limits::MAX_SGE || caps.max_recv_sge > limits::MAX_SGE {
        return Err(Error::Invalid("number of scatter/gather entries"));
    }
    if caps.max_inline > limits::MAX_INLINE {
        return Err(Error::Invalid("inline length"));
    }
    Ok(())
}

/// Sizes that it gets: none for what its type does not have.
fn given(init: &QpInit) -> QpCaps {
    let caps = init.caps;
    let has_sq = init.qp_type != QpType::XrcRecv;
    let has_rq = init.srq.is_none() && !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv);
    QpCaps {
        max_send_wr: if has_sq { caps.max_send_wr } else { 0 },
        max_send_sge: if has_sq { caps.max_send_sge.max(1) } else { 0 },
        max_recv_wr: if has_rq { caps.max_recv_wr } else { 0 },
        max_recv_sge: if has_rq { caps.max_recv_sge } else { 0 },
        max_inline: if has_sq { caps.max_inline } else { 0 },
    }
}

/// What it needs for taking receives, unless it can take none.
fn receives(init: &QpInit, given: &QpCaps, srq_sge: u32) -> Result<Option<Box<Receives>>, Error> {
    let scatter_room = if init.qp_type == QpType::XrcRecv {
        limits::MAX_SRQ_SGE
    } else if init.srq.is_some() {
        srq_sge
    } else {
        given.max_recv_sge
    };
    if given.max_recv_wr == 0 && scatter_room == 0 && init.srq.is_none() && init.xrcd.is_none() {
        return Ok(None);
    }
    let queue = RecvQueue::new(given.max_recv_wr, given.max_recv_sge)?;
    let list = ScatterList::with_room(scatter_room);
    Ok(Some(Box::new(Receives::new(queue, list, init.srq, init.xrcd))))
}

/// Local ACK timeout of `4.096 us * 2^code`; 0 means none (IBTA 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> Duration {
    match code {
        0 => Duration::ZERO,
        code => Duration::from_ns(4096).times(1 << (code as u64 & 31)),
    }
}

/// UDP source port for a pair of queue pairs, as Linux computes it: a hash folded into the dynamic range.
pub(crate) fn source_port(local: QpNumber, peer: QpNumber) -> u16 {
    let mut v = local.get() as u64 * peer.get() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let label = (v & 0xf_ffff) as u32;
    0xc000 | (((label & 0x3fff) ^ (label >> 14)) as u16)
}

fn check_ranges(attr: &QpAttr, mask: QpAttrMask, gids: &[Gid]) -> Result<(), Error> {
    let has = |bit| mask.contains(bit);
    let check = |bad: bool, what| if bad { Err(Error::Invalid(what)) } else { Ok(()) };
    check(has(QpAttrMask::PORT) && attr.port != 1, "port number")?;
    check(has(QpAttrMask::PKEY_INDEX) && attr.pkey_index != 0, "partition key index")?;
    check(has(QpAttrMask::TIMEOUT) && attr.timeout > 31, "timeout")?;
    check(has(QpAttrMask::RETRY_CNT) && attr.retry_cnt > 7, "retry count")?;
    check(has(QpAttrMask::RNR_RETRY) && attr.rnr_retry > 7, "RNR retry count")?;
    check(has(QpAttrMask::MIN_RNR_TIMER) && attr.min_rnr_timer > 31, "RNR timer")?;
    let too_many = attr.max_rd_atomic > limits::MAX_INIT_RD_ATOMIC;
    check(has(QpAttrMask::MAX_QP_RD_ATOMIC) && too_many, "READ/atomic depth as requester")?;
    let too_many = attr.max_dest_rd_atomic > limits::MAX_RD_ATOMIC;
    check(has(QpAttrMask::MAX_DEST_RD_ATOMIC) && too_many, "READ/atomic depth as responder")?;
    if has(QpAttrMask::AV) {
        let source = gids.get(attr.av.sgid_index as usize);
        check(source.is_none(), "source GID index")?;
        check(attr.av.dgid.is_zero(), "destination GID")?;
        let family = source.is_some_and(|s| s.is_ipv4() != attr.av.dgid.is_ipv4());
        check(family, "destination GID: its IP version is not the source GID's")?;
    }
    if has(QpAttrMask::PATH_MIG_STATE) || has(QpAttrMask::ALT_PATH) {
        return Err(Error::Unsupported("path migration"));
    }
    Ok(())
}

/// Attributes that a transition must and may set, by transport type (IBTA table 91).
/// `None`: there is no such transition.
fn rules(qp_type: QpType, from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    use QpAttrMask as M;
    use QpState::*;
    let none = M::empty();
    let connected = !matches!(qp_type, QpType::Ud | QpType::Gsi);
    // XRC: the initiator has no responder side, the target no requester side.
    let requests = matches!(qp_type, QpType::Rc | QpType::XrcSend);
    let responds = matches!(qp_type, QpType::Rc | QpType::XrcRecv);
    let pick = |yes: bool, mask: M| if yes { mask } else { none };
    // Programs set both sides' attributes on either half of an XRC pair (perftest does); what a half lacks
    // has no effect there.
    let xrc = matches!(qp_type, QpType::XrcSend | QpType::XrcRecv);
    let requester = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let responder = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;

    let identity = M::PKEY_INDEX | M::PORT | if connected { M::ACCESS_FLAGS } else { M::QKEY };
    let rts_optional = pick(connected, M::ACCESS_FLAGS | M::ALT_PATH | M::PATH_MIG_STATE)
        | pick(!connected, M::QKEY)
        | pick(responds, M::MIN_RNR_TIMER)
        | M::RATE_LIMIT;
    Some(match (from, to) {
        (_, Reset) | (_, Err) => (none, none),
        (Reset, Init) => (identity, none),
        (Init, Init) => (none, identity),
        (Init, Rtr) if connected => {
            let core = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            let optional = M::ALT_PATH | M::ACCESS_FLAGS | M::PKEY_INDEX | pick(xrc, responder);
            (core | pick(responds, responder), optional)
        }
        (Init, Rtr) => (none, M::PKEY_INDEX | M::QKEY),
        (Rtr, Rts) if connected => {
            let target = pick(qp_type == QpType::XrcRecv, M::TIMEOUT);
            (M::SQ_PSN | pick(requests, requester) | target, rts_optional | pick(xrc, requester))
        }
        (Rtr, Rts) => (M::SQ_PSN, rts_optional),
        (Rts, Rts) | (Sqe, Rts) | (Sqd, Rts) => (none, rts_optional),
        (Rts, Sqd) => (none, M::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => {
            let path = pick(connected, M::AV | M::ACCESS_FLAGS | M::ALT_PATH | M::PATH_MIG_STATE);
            let sides = pick(requests, requester) | pick(responds, responder);
            (none, path | sides | M::PKEY_INDEX | M::PORT | pick(!connected, M::QKEY))
        }
        (Sqe, Sqe) => (none, none),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_port_matches_linux() {
        // From a capture of rxe: local QP 0x11 and peer 0x11 (product 0x121).
        assert_eq!(source_port(QpNumber::new(0x11), QpNumber::new(0x11)), 0xc121);
    }

    #[test]
    fn transitions() {
        use QpState::*;
        let all = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv] {
            for from in all {
                assert!(rules(qp_type, from, Reset).is_some());
                assert!(rules(qp_type, from, Err).is_some());
            }
            assert!(rules(qp_type, Reset, Rtr).is_none());
            assert!(rules(qp_type, Init, Rts).is_none());
            assert!(rules(qp_type, Err, Init).is_none());
            assert!(rules(qp_type, Rts, Init).is_none());
        }
        let (must, _) = rules(QpType::Rc, Init, Rtr).unwrap();
        assert!(must.contains(QpAttrMask::MIN_RNR_TIMER | QpAttrMask::RQ_PSN));
        let (must, _) = rules(QpType::Uc, Init, Rtr).unwrap();
        assert!(!must.contains(QpAttrMask::MIN_RNR_TIMER));
        let (must, may) = rules(QpType::XrcSend, Init, Rtr).unwrap();
        assert!(!must.contains(QpAttrMask::MIN_RNR_TIMER) && may.contains(QpAttrMask::MIN_RNR_TIMER));
        let (must, may) = rules(QpType::XrcRecv, Rtr, Rts).unwrap();
        assert!(!must.contains(QpAttrMask::RETRY_CNT) && may.contains(QpAttrMask::RETRY_CNT));
    }
}
