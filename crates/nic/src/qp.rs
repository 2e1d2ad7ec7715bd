//! A queue pair: its identity, its attributes, its state machine (IBTA 10.3.1), and the two halves of
//! its transport. What to do with packets is in [`crate::transport`].

use crate::attr::{AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpInit, QpState, QpType};
use crate::congestion::Control;
use crate::error::Error;
use crate::ids::{CqId, PathId, PdId, QpId, SrqId, XrcdId};
use crate::limits;
use crate::memory::Access;
use crate::queue::recv::{RecvQueue, ScatterList};
use crate::queue::send::SendQueue;
use crate::queue::wqe::Layout;
use crate::transport::rc::irn::Irn;
use crate::transport::rc::responder::Responder;
use crate::transport::requester::Requester;
use adverb_wire::{Flow, Instant, Psn, QpNumber, Service};

/// A queue pair.
pub(crate) struct Qp {
    pub id: QpId,
    pub num: QpNumber,
    pub state: QpState,
    pub qp_type: QpType,
    /// Queued for transmission.
    pub ready: bool,
    /// Waiting for its path.
    pub parked: bool,
    /// Has more to send, once something is acknowledged.
    pub stalled: bool,
    /// The send queue is draining towards SQD.
    pub draining: bool,
    /// The NIC offers IRN, and the queue pair has come to RTR: [`Qp::irn`] is there.
    pub has_irn: bool,
    /// Its requests are IRN's.
    pub irn_active: bool,
    /// The communication-established event was raised.
    pub heard: bool,
    pub pd: PdId,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub srq: Option<SrqId>,
    pub xrcd: Option<XrcdId>,
    pub path: PathId,
    pub peer: QpNumber,
    /// Addresses of outgoing packets, and of the only peer that incoming ones may have.
    pub flow: Flow,
    pub mtu: u32,
    pub access: Access,
    pub qkey: u32,
    /// Local ACK timeout as a time; zero for none.
    pub rto: adverb_wire::Duration,
    /// When the timer runs out; `NEVER` when it is stopped.
    pub deadline: Instant,
    /// Earliest entry of the timer heap that stands for this queue pair.
    pub heap_at: Instant,
    pub sq: SendQueue,
    pub rq: RecvQueue,
    pub requester: Requester,
    pub responder: Responder,
    /// IRN's state, from RTR on, when the NIC offers it.
    pub irn: Option<Box<Irn>>,
    /// Congestion control's state, from RTR on, when the NIC's scheme needs more than a window.
    pub control: Option<Box<Control>>,
    /// The message that is being received.
    pub scatter: ScatterList,
    pub attr: Box<QpAttr>,
}

impl Qp {
    /// A queue pair in RESET. The caller has checked that the objects in `init` exist.
    pub fn new(init: &QpInit, pd: PdId, cqs: (CqId, CqId), srq_sge: u32) -> Result<Self, Error> {
        let caps = init.caps;
        if caps.max_send_wr > limits::MAX_QP_WR || caps.max_recv_wr > limits::MAX_QP_WR {
            return Err(Error::Invalid("number of work requests"));
        }
        if caps.max_send_sge > limits::MAX_SGE || caps.max_recv_sge > limits::MAX_SGE {
            return Err(Error::Invalid("number of scatter/gather entries"));
        }
        if caps.max_inline > limits::MAX_INLINE {
            return Err(Error::Invalid("inline length"));
        }
        let layout = match init.qp_type {
            QpType::Ud | QpType::Gsi => Layout::Datagram,
            QpType::XrcSend => Layout::Xrc,
            QpType::Rc | QpType::Uc | QpType::XrcRecv => Layout::Connected,
        };
        let has_sq = init.qp_type != QpType::XrcRecv;
        let has_rq = init.srq.is_none() && !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv);
        let given = QpCaps {
            max_send_wr: if has_sq { caps.max_send_wr.max(limits::MIN_SEND_WR) } else { 0 },
            max_send_sge: if has_sq { caps.max_send_sge.max(1) } else { 0 },
            max_recv_wr: if has_rq { caps.max_recv_wr } else { 0 },
            max_recv_sge: if has_rq { caps.max_recv_sge } else { 0 },
            max_inline: if has_sq { caps.max_inline } else { 0 },
        };
        let sq =
            SendQueue::new(given.max_send_wr, given.max_send_sge, given.max_inline, layout, init.sq_sig_all)?;
        let scatter_room = if init.qp_type == QpType::XrcRecv {
            limits::MAX_SRQ_SGE
        } else if init.srq.is_some() {
            srq_sge
        } else {
            given.max_recv_sge
        };
        let requester = Requester::new(if has_sq { sq.ring.blocks() } else { 1 });
        Ok(Qp {
            id: crate::slab::Id::new(0, 0),
            num: QpNumber::new(0),
            state: QpState::Reset,
            qp_type: init.qp_type,
            ready: false,
            parked: false,
            stalled: false,
            draining: false,
            has_irn: false,
            irn_active: false,
            heard: false,
            pd,
            send_cq: cqs.0,
            recv_cq: cqs.1,
            srq: init.srq,
            xrcd: init.xrcd,
            path: PathId::DEFAULT,
            peer: QpNumber::new(0),
            flow: Flow::default(),
            mtu: Mtu::default().bytes(),
            access: Access::empty(),
            qkey: 0,
            rto: adverb_wire::Duration::ZERO,
            deadline: Instant::NEVER,
            heap_at: Instant::NEVER,
            sq,
            rq: RecvQueue::new(given.max_recv_wr, given.max_recv_sge)?,
            requester,
            responder: Responder::default(),
            irn: None,
            control: None,
            scatter: ScatterList::with_room(scatter_room),
            attr: Box::new(QpAttr { caps: given, ..blank_attr() }),
        })
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

    /// Its requests are IRN's.
    #[inline]
    pub fn speaks_irn(&self) -> bool {
        self.irn_active
    }

    /// Its responder, or IRN, has something to send.
    #[inline]
    pub fn owes(&mut self) -> bool {
        self.responder.has_output()
            || (self.has_irn && self.irn.as_deref_mut().is_some_and(|irn| irn.has_output()))
    }

    /// May take in packets (IBTA 10.3.1).
    #[inline]
    pub fn receives(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
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
        self.heard = false;
        self.deadline = Instant::NEVER;
        self.sq.reset();
        self.rq.reset();
        self.requester.reset();
        self.responder = Responder::default();
        self.irn = None;
        self.control = None;
        self.has_irn = false;
        self.irn_active = false;
        *self.attr = QpAttr { caps: self.attr.caps, ..blank_attr() };
    }

    /// Checks a transition and its attributes against IBTA table 91 and takes the attributes over.
    /// The state itself is changed by the caller, who knows what else has to happen.
    pub fn apply(
        &mut self,
        attr: &QpAttr,
        mask: QpAttrMask,
        gids: &[adverb_wire::Gid],
    ) -> Result<QpState, Error> {
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
        self.take(attr, mask, gids);
        Ok(next)
    }

    fn take(&mut self, attr: &QpAttr, mask: QpAttrMask, gids: &[adverb_wire::Gid]) {
        let kept = &mut *self.attr;
        let has = |bit| mask.contains(bit);
        if has(QpAttrMask::ACCESS_FLAGS) {
            kept.access = attr.access;
            self.access = attr.access;
        }
        if has(QpAttrMask::PORT) {
            kept.port = attr.port;
        }
        if has(QpAttrMask::PKEY_INDEX) {
            kept.pkey_index = attr.pkey_index;
        }
        if has(QpAttrMask::QKEY) {
            kept.qkey = attr.qkey;
            self.qkey = attr.qkey;
        }
        if has(QpAttrMask::PATH_MTU) {
            kept.path_mtu = attr.path_mtu;
            self.mtu = attr.path_mtu.bytes();
        }
        if has(QpAttrMask::DEST_QPN) {
            kept.dest_qpn = attr.dest_qpn;
            self.peer = attr.dest_qpn;
        }
        if has(QpAttrMask::AV) {
            kept.av = attr.av;
            kept.path = attr.path;
            self.path = attr.path;
            self.flow = flow(&attr.av, gids);
        }
        if has(QpAttrMask::RQ_PSN) {
            kept.rq_psn = attr.rq_psn;
            self.responder.set_expected(attr.rq_psn);
        }
        if has(QpAttrMask::SQ_PSN) {
            kept.sq_psn = attr.sq_psn;
            self.requester.set_first_psn(attr.sq_psn);
        }
        if has(QpAttrMask::MAX_DEST_RD_ATOMIC) {
            kept.max_dest_rd_atomic = attr.max_dest_rd_atomic;
            self.responder.set_depth(attr.max_dest_rd_atomic);
        }
        if has(QpAttrMask::MAX_QP_RD_ATOMIC) {
            kept.max_rd_atomic = attr.max_rd_atomic;
            self.requester.max_rd_atomic = attr.max_rd_atomic;
        }
        if has(QpAttrMask::MIN_RNR_TIMER) {
            kept.min_rnr_timer = attr.min_rnr_timer;
        }
        if has(QpAttrMask::TIMEOUT) {
            kept.timeout = attr.timeout;
            self.rto = ack_timeout(attr.timeout);
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
        // UDP source port: entropy from the two queue pair numbers, as Linux computes it, so that
        // both directions of a connection take one route (see the wire facts in ARCHITECTURE.md).
        self.flow.src_port = source_port(self.num, self.peer);
    }

    /// What it was created with, its sizes as they were given.
    pub fn created(&self) -> QpInit {
        QpInit {
            qp_type: self.qp_type,
            pd: crate::slab::existing(self.pd),
            send_cq: crate::slab::existing(self.send_cq),
            recv_cq: crate::slab::existing(self.recv_cq),
            srq: self.srq,
            xrcd: self.xrcd,
            sq_sig_all: self.sq.signals_all(),
            caps: self.attr.caps,
        }
    }

    /// Attributes as they are now.
    pub fn query(&self) -> QpAttr {
        QpAttr {
            state: self.state,
            cur_state: self.state,
            sq_psn: if self.state as u8 >= QpState::Rts as u8 {
                self.requester.next_psn()
            } else {
                self.attr.sq_psn
            },
            rq_psn: if self.receives() { self.responder.expected() } else { self.attr.rq_psn },
            sq_draining: self.draining,
            ..*self.attr
        }
    }
}

/// Local ACK timeout of `4.096 us * 2^code`; 0 means none (IBTA 9.7.6.1.3).
pub(crate) fn ack_timeout(code: u8) -> adverb_wire::Duration {
    match code {
        0 => adverb_wire::Duration::ZERO,
        code => adverb_wire::Duration::from_ns(4096).times(1 << (code as u64 & 31)),
    }
}

/// UDP source port for a pair of queue pairs: a hash folded into the dynamic range.
fn source_port(local: QpNumber, peer: QpNumber) -> u16 {
    let mut v = local.get() as u64 * peer.get() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    let label = (v & 0xf_ffff) as u32;
    0xc000 | (((label & 0x3fff) ^ (label >> 14)) as u16)
}

fn flow(av: &AddressVector, gids: &[adverb_wire::Gid]) -> Flow {
    Flow {
        src: gids.get(av.sgid_index as usize).copied().unwrap_or_default(),
        dst: av.dgid,
        src_port: 0,
        traffic_class: av.traffic_class,
        hop_limit: if av.hop_limit == 0 { 64 } else { av.hop_limit },
    }
}

fn check_ranges(attr: &QpAttr, mask: QpAttrMask, gids: &[adverb_wire::Gid]) -> Result<(), Error> {
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

fn blank_attr() -> QpAttr {
    QpAttr {
        state: QpState::Reset,
        cur_state: QpState::Reset,
        access: Access::empty(),
        pkey_index: 0,
        port: 0,
        qkey: 0,
        av: AddressVector::default(),
        path: PathId::DEFAULT,
        path_mtu: Mtu::default(),
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
        dest_qpn: QpNumber::new(0),
        sqd_notify: false,
        sq_draining: false,
        caps: QpCaps::default(),
    }
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
