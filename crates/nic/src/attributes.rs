//! A queue pair's attributes as they are kept, and as a query tells them, of an endpoint too.

use crate::attr::{AddressVector, Mtu, QpAttr, QpCaps, QpState};
use crate::ids::PathId;
use crate::memory::Access;
use adverb_wire::{Gid, Psn, QpNumber};

/// What a query tells beside [`Attributes`]: what stands where it is used.
pub(crate) struct Live {
    pub state: QpState,
    pub access: Access,
    pub dst: Gid,
    pub path: PathId,
    pub path_mtu: Mtu,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub dest_qpn: QpNumber,
    pub sq_draining: bool,
    pub caps: QpCaps,
}

/// Attributes as they were set, but those that the queue pair keeps where it uses them: access, peer,
/// destination and path, and how many READs and atomics may be unanswered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub sqd_notify: bool,
    pub port: u8,
    pub sgid_index: u8,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub sl: u8,
    pub max_send_wr: u16,
    pub flow_label: u32,
    pub qkey: u32,
}

impl Attributes {
    /// Where packets go, as it was set.
    pub fn address(&self, dgid: Gid) -> AddressVector {
        let Attributes { sgid_index, traffic_class, hop_limit, sl, flow_label, .. } = *self;
        AddressVector { dgid, sgid_index, traffic_class, hop_limit, sl, flow_label }
    }

    /// What a query answers, of a queue pair or of an endpoint.
    pub fn query(&self, live: Live) -> QpAttr {
        QpAttr {
            state: live.state,
            cur_state: live.state,
            access: live.access,
            pkey_index: 0,
            port: self.port,
            qkey: self.qkey,
            av: self.address(live.dst),
            path: if live.dst.is_zero() { PathId::DEFAULT } else { live.path },
            path_mtu: live.path_mtu,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            rq_psn: live.rq_psn,
            sq_psn: live.sq_psn,
            max_rd_atomic: live.max_rd_atomic,
            max_dest_rd_atomic: live.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            dest_qpn: live.dest_qpn,
            sqd_notify: self.sqd_notify,
            sq_draining: live.sq_draining,
            caps: live.caps,
        }
    }

    /// Those of a queue pair in RESET.
    pub fn new(max_send_wr: u16) -> Attributes {
        Attributes {
            retry_cnt: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            timeout: 0,
            sqd_notify: false,
            port: 0,
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 0,
            sl: 0,
            max_send_wr,
            flow_label: 0,
            qkey: 0,
        }
    }
}
