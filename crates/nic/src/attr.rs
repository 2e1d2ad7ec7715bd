//! Attributes of queue pairs and shared receive queues, and the masks that say which are set.

use crate::ids::{CqId, PathId, PdId, SrqId, XrcdId};
use adverb_wire::{Gid, Psn, QpNumber};
use bitflags::bitflags;

/// Transport type of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// General services queue pair (QP1), a datagram queue with the well-known Q_Key.
    Gsi,
    /// XRC initiator: sends only.
    XrcSend,
    /// XRC target: receives into the shared receive queues of its domain.
    XrcRecv,
}

/// States of a queue pair (IBTA 10.3.1). Numbers are those of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's own")]
pub enum QpState {
    #[default]
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl QpState {
    /// Whether a connection in it may be spoken of with its peer: it is connected, and nothing has failed.
    pub(crate) const fn is_up(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }
}

/// Path MTU; the number is the `enum ibv_mtu` code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are their values")]
pub enum Mtu {
    M256 = 1,
    M512 = 2,
    #[default]
    M1024 = 3,
    M2048 = 4,
    M4096 = 5,
}

impl Mtu {
    /// Payload bytes of a full packet.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// From the `enum ibv_mtu` code.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Mtu::M256,
            2 => Mtu::M512,
            3 => Mtu::M1024,
            4 => Mtu::M2048,
            5 => Mtu::M4096,
            _ => return None,
        })
    }

    /// From the payload bytes of a full packet.
    pub(crate) const fn of_bytes(bytes: u32) -> Self {
        match Mtu::from_code(bytes.ilog2() - 7) {
            Some(mtu) => mtu,
            None => panic!("no path MTU has as many bytes"),
        }
    }

    /// The largest path MTU whose packets fit a link of `link_mtu` bytes with all headers
    /// (IPv6 40, UDP 8, BTH 12, largest extension headers and ICRC).
    pub const fn fitting(link_mtu: u32) -> Self {
        const HEADROOM: u32 = 80;
        let room = link_mtu.saturating_sub(HEADROOM);
        match room {
            4096.. => Mtu::M4096,
            2048.. => Mtu::M2048,
            1024.. => Mtu::M1024,
            512.. => Mtu::M512,
            _ => Mtu::M256,
        }
    }
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCaps {
    /// Send work requests.
    pub max_send_wr: u32,
    /// Receive work requests.
    pub max_recv_wr: u32,
    /// Entries of a send scatter/gather list.
    pub max_send_sge: u32,
    /// Entries of a receive scatter/gather list.
    pub max_recv_sge: u32,
    /// Inline bytes.
    pub max_inline: u32,
}

/// What a queue pair is created with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain (not used by an XRC target).
    pub pd: Option<PdId>,
    /// Completions of sends.
    pub send_cq: Option<CqId>,
    /// Completions of receives.
    pub recv_cq: Option<CqId>,
    /// Shared receive queue, in place of an own one.
    pub srq: Option<SrqId>,
    /// XRC domain (XRC target only).
    pub xrcd: Option<XrcdId>,
    /// Every send work request is signalled.
    pub sq_sig_all: bool,
    /// Sizes asked for; the NIC rounds up and reports what it gives.
    pub caps: QpCaps,
}

impl QpInit {
    /// A plain RC queue pair with one completion queue for both ways and receives of its own.
    pub const fn rc(pd: PdId, cq: CqId, caps: QpCaps) -> QpInit {
        QpInit {
            qp_type: QpType::Rc,
            pd: Some(pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            xrcd: None,
            sq_sig_all: false,
            caps,
        }
    }
}

bitflags! {
    /// What a queue pair is created with beyond a plain one. Bits are those of the vendor's
    /// `ibv_exp_qp_create_flags`, of which the kernel has the first three.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct QpFlags: u32 {
        /// The send queue may hold WAITs, ENABLEs and calculations. Its WQEs are fetched ahead, and are
        /// executed as they were when they were fetched.
        const CROSS_CHANNEL = 1 << 2;
        /// The send queue, a cross-channel one, is fetched only as far as ENABLEs say.
        const MANAGED_SEND = 1 << 3;
        /// Messages take receives only as far as RECV_ENABLEs say.
        const MANAGED_RECV = 1 << 4;
        /// A full cross-channel send queue can be posted to: the oldest WQEs are replaced.
        const IGNORE_SQ_OVERFLOW = 1 << 6;
        /// A full receive queue can be posted to.
        const IGNORE_RQ_OVERFLOW = 1 << 7;
    }
}

bitflags! {
    /// Which fields of a [`QpAttr`] are set. Bits are those of `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct QpAttrMask: u32 {
        #[allow(missing_docs)] const STATE = 1 << 0;
        #[allow(missing_docs)] const CUR_STATE = 1 << 1;
        #[allow(missing_docs)] const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        #[allow(missing_docs)] const ACCESS_FLAGS = 1 << 3;
        #[allow(missing_docs)] const PKEY_INDEX = 1 << 4;
        #[allow(missing_docs)] const PORT = 1 << 5;
        #[allow(missing_docs)] const QKEY = 1 << 6;
        #[allow(missing_docs)] const AV = 1 << 7;
        #[allow(missing_docs)] const PATH_MTU = 1 << 8;
        #[allow(missing_docs)] const TIMEOUT = 1 << 9;
        #[allow(missing_docs)] const RETRY_CNT = 1 << 10;
        #[allow(missing_docs)] const RNR_RETRY = 1 << 11;
        #[allow(missing_docs)] const RQ_PSN = 1 << 12;
        #[allow(missing_docs)] const MAX_QP_RD_ATOMIC = 1 << 13;
        #[allow(missing_docs)] const ALT_PATH = 1 << 14;
        #[allow(missing_docs)] const MIN_RNR_TIMER = 1 << 15;
        #[allow(missing_docs)] const SQ_PSN = 1 << 16;
        #[allow(missing_docs)] const MAX_DEST_RD_ATOMIC = 1 << 17;
        #[allow(missing_docs)] const PATH_MIG_STATE = 1 << 18;
        #[allow(missing_docs)] const CAP = 1 << 19;
        #[allow(missing_docs)] const DEST_QPN = 1 << 20;
        #[allow(missing_docs)] const RATE_LIMIT = 1 << 25;
    }
}

/// Address vector of a connected queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// Destination.
    pub dgid: Gid,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, kept and returned.
    pub sl: u8,
    /// Flow label, kept and returned.
    pub flow_label: u32,
}

/// Attributes of a queue pair. [`crate::Nic::modify_qp`] reads those that its mask names,
/// [`crate::Nic::query_qp`] fills all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpAttr {
    /// State to go to, or current.
    pub state: QpState,
    /// State that the caller believes to be current.
    pub cur_state: QpState,
    /// Remote rights of the queue pair: bits of [`crate::memory::Access`].
    pub access: crate::memory::Access,
    /// Partition key index; only 0 exists.
    pub pkey_index: u16,
    /// Physical port; only 1 exists.
    pub port: u8,
    /// Queue key.
    pub qkey: u32,
    /// Destination.
    pub av: AddressVector,
    /// Route to the destination, as the driver resolved it; read together with `av`.
    pub path: PathId,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Local ACK timeout: 4.096 us * 2^n, 0 for none; 5 bits.
    pub timeout: u8,
    /// Transport retries, 0..=7.
    pub retry_cnt: u8,
    /// RNR retries, 0..=7; 7 is without limit.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Encoded wait sent in RNR NAKs, 5 bits.
    pub min_rnr_timer: u8,
    /// Destination queue pair.
    pub dest_qpn: QpNumber,
    /// Raise an event when the send queue has drained (transition to SQD).
    pub sqd_notify: bool,
    /// The send queue is draining (query only).
    pub sq_draining: bool,
    /// Sizes (query only; resizing is not supported).
    pub caps: QpCaps,
}

/// What a shared receive queue is created with.
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// Work requests it holds.
    pub max_wr: u32,
    /// Entries of a scatter/gather list.
    pub max_sge: u32,
    /// For XRC: the domain, and the queue its completions go to.
    pub xrc: Option<(XrcdId, CqId)>,
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Work requests it holds.
    pub max_wr: u32,
    /// Entries of a scatter/gather list.
    pub max_sge: u32,
    /// Raise the limit event when fewer than this many are left; 0 disarms.
    pub limit: u32,
}
