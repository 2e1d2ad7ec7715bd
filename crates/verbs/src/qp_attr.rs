//! Queue pair attributes, from C to the NIC's types and back (IBTA 11.2.5).

use crate::abi::*;
use adverb_nic::{Access, AddressVector, Error, Mtu, PathId, QpAttr, QpAttrMask, QpCaps, QpState, QpType};
use adverb_wire::{Gid, Psn, QpNumber};

/// `enum ibv_qp_type` as the NIC's.
pub(crate) fn qp_type(number: u32) -> Option<QpType> {
    Some(match number {
        IBV_QPT_RC => QpType::Rc,
        IBV_QPT_UC => QpType::Uc,
        IBV_QPT_UD => QpType::Ud,
        IBV_QPT_XRC_SEND => QpType::XrcSend,
        IBV_QPT_XRC_RECV => QpType::XrcRecv,
        _ => return None,
    })
}

/// `enum ibv_qp_state` as the NIC's.
fn state(number: u32) -> Option<QpState> {
    Some(match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        _ => return None,
    })
}

pub(crate) fn caps_from_c(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

/// Send work requests that a queue holds at least, whatever less was asked for. Programs that wait for the
/// peer's answer before they post again (perftest's latency tests ask for one) would find the queue full
/// where an acknowledgement was lost and the answer was not.
const MIN_SEND_WR: u32 = 4;

/// What a queue pair is made with when a program asks for `caps`.
pub(crate) fn with_room(caps: QpCaps) -> QpCaps {
    QpCaps { max_send_wr: caps.max_send_wr.max(MIN_SEND_WR), ..caps }
}

pub(crate) fn caps_to_c(caps: &QpCaps) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

/// The attributes that a mask names; the others get harmless values. The path is not resolved yet.
pub(crate) fn attr_from_c(attr: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr, Error> {
    let has = |bit: QpAttrMask| mask.contains(bit);
    let named_state = |bit: QpAttrMask, number: u32| {
        if has(bit) { state(number).ok_or(Error::Invalid("queue pair state")) } else { Ok(QpState::Reset) }
    };
    let grh = &attr.ah_attr.grh;
    Ok(QpAttr {
        state: named_state(QpAttrMask::STATE, attr.qp_state)?,
        cur_state: named_state(QpAttrMask::CUR_STATE, attr.cur_qp_state)?,
        access: if has(QpAttrMask::ACCESS_FLAGS) {
            Access::from_verbs(attr.qp_access_flags)?
        } else {
            Access::empty()
        },
        pkey_index: attr.pkey_index,
        port: attr.port_num,
        qkey: attr.qkey,
        av: AddressVector {
            dgid: Gid(grh.dgid.0),
            sgid_index: grh.sgid_index,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            sl: attr.ah_attr.sl,
            flow_label: grh.flow_label,
        },
        path: PathId::DEFAULT,
        path_mtu: if has(QpAttrMask::PATH_MTU) {
            Mtu::from_code(attr.path_mtu).ok_or(Error::Invalid("path MTU"))?
        } else {
            Mtu::default()
        },
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        dest_qpn: QpNumber::new(attr.dest_qp_num),
        sqd_notify: attr.en_sqd_async_notify != 0,
        sq_draining: false,
        caps: caps_from_c(&attr.cap),
    })
}

/// All attributes, for a query.
pub(crate) fn attr_to_c(attr: &QpAttr) -> ibv_qp_attr {
    // SAFETY: integers and arrays of integers.
    let mut out: ibv_qp_attr = unsafe { core::mem::zeroed() };
    out.qp_state = attr.state as u32;
    out.cur_qp_state = attr.state as u32;
    out.path_mtu = attr.path_mtu as u32;
    out.path_mig_state = IBV_MIG_MIGRATED;
    out.qkey = attr.qkey;
    out.rq_psn = attr.rq_psn.get();
    out.sq_psn = attr.sq_psn.get();
    out.dest_qp_num = attr.dest_qpn.get();
    out.qp_access_flags = attr.access.bits();
    out.cap = caps_to_c(&attr.caps);
    out.ah_attr.grh = ibv_global_route {
        dgid: ibv_gid(attr.av.dgid.0),
        flow_label: attr.av.flow_label,
        sgid_index: attr.av.sgid_index,
        hop_limit: attr.av.hop_limit,
        traffic_class: attr.av.traffic_class,
    };
    out.ah_attr.sl = attr.av.sl;
    out.ah_attr.is_global = 1;
    out.ah_attr.port_num = attr.port;
    out.pkey_index = attr.pkey_index;
    out.en_sqd_async_notify = attr.sqd_notify.into();
    out.sq_draining = attr.sq_draining.into();
    out.max_rd_atomic = attr.max_rd_atomic;
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    out.min_rnr_timer = attr.min_rnr_timer;
    out.port_num = attr.port;
    out.timeout = attr.timeout;
    out.retry_cnt = attr.retry_cnt;
    out.rnr_retry = attr.rnr_retry;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_the_way_there_and_back() {
        // SAFETY: integers and arrays of integers.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.qp_state = 2;
        attr.cur_qp_state = 2;
        attr.path_mtu = 4;
        attr.rq_psn = 0xab_cdef;
        attr.dest_qp_num = 17;
        attr.qp_access_flags = 0xf;
        attr.ah_attr.grh.dgid = ibv_gid([7; 16]);
        attr.ah_attr.grh.hop_limit = 3;
        attr.ah_attr.is_global = 1;
        attr.port_num = 1;
        attr.ah_attr.port_num = 1;
        attr.timeout = 14;
        attr.min_rnr_timer = 12;
        let mask = QpAttrMask::all();
        let back = attr_to_c(&attr_from_c(&attr, mask).expect("valid"));
        let bytes = |a: &ibv_qp_attr| {
            (a.qp_state, a.path_mtu, a.rq_psn, a.dest_qp_num, a.qp_access_flags, a.timeout, a.min_rnr_timer)
        };
        assert_eq!(bytes(&attr), bytes(&back));
        assert_eq!(attr.ah_attr.grh.dgid.0, back.ah_attr.grh.dgid.0);
    }

    #[test]
    fn only_named_values_are_checked() {
        // SAFETY: integers and arrays of integers.
        let mut attr: ibv_qp_attr = unsafe { core::mem::zeroed() };
        attr.qp_state = 9;
        attr.path_mtu = 77;
        assert!(attr_from_c(&attr, QpAttrMask::QKEY).is_ok());
        assert!(attr_from_c(&attr, QpAttrMask::STATE).is_err());
        attr.qp_state = 1;
        assert!(attr_from_c(&attr, QpAttrMask::STATE | QpAttrMask::PATH_MTU).is_err());
    }
}
