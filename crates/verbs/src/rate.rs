//! The rate of a queue pair's requests: `ibv_modify_qp_rate_limit(3)`.

use crate::abi::*;
use crate::handle::code;
use crate::host;
use crate::qp::Qp;
use adverb_nic::RateLimit;
use core::ffi::c_int;

/// Every rate is kept, the least one kilobit per second; and of every queue pair that sends.
pub(crate) const CAPS: ibv_packet_pacing_caps = ibv_packet_pacing_caps {
    qp_rate_limit_min: 1,
    qp_rate_limit_max: u32::MAX,
    supported_qpts: 1 << IBV_QPT_RC | 1 << IBV_QPT_UC | 1 << IBV_QPT_UD | 1 << IBV_QPT_XRC_SEND,
};

/// `ibv_modify_qp_rate_limit(3)`. A rate of 0 takes the limit off; a burst or a typical packet of 0 is the
/// NIC's choice.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: the caller passes a live queue pair and valid attributes.
    let (queue, attr) = unsafe { (Qp::of(qp), &*attr) };
    if attr.comp_mask != 0 {
        return code(Err(libc::EINVAL));
    }
    let limit =
        RateLimit { kbps: attr.rate_limit, burst: attr.max_burst_sz, typical_packet: attr.typical_pkt_sz };
    code(host::control(|nic| nic.set_rate_limit(queue.id, limit)))
}
