//! One GD that asks for the data of several packets: each of these has its own number and is answered by
//! itself, so that one that is lost is asked for alone. All have the deadline of the one that asked.

use super::requests::first_copy;
use super::{Sent, Star};
use crate::congestion;
use crate::frame::TxFrame;
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use adverb_wire::Psn;
use adverb_wire::star::{StarEth, features};

/// For how many of `left` packets one GD may ask. Under congestion control each GD has its own turn, as the
/// data that it brings would.
pub(super) fn packets_of(qp: &Qp, star: &Star, left: u32) -> u32 {
    if star.bursts && !congestion::is_governed(qp) { left.clamp(1, features::BURST_MAX) } else { 1 }
}

/// The same, for a READ of this side whose packet `k` leaves; `room` is what the window leaves.
pub(super) fn packets_of_read(qp: &Qp, star: &Star, op: WqeOp, left: u32, room: u32) -> u32 {
    if op == WqeOp::Read { packets_of(qp, star, left.min(room)) } else { 1 }
}

/// Has a GD for packet `k` of a READ, which was built, ask for `packets`.
pub(super) fn widen(star: &mut Star, psn: Psn, wqe: &Wqe, k: u32, packets: u32, mtu: u32, out: &mut TxFrame) {
    let first = *star.packet(psn);
    let mut more = 0;
    for at in 1..packets {
        let next = first_copy(wqe, k + at, mtu);
        more += u32::from(next.len);
        let Sent { deadline, copy, .. } = first;
        *star.packet_mut(psn.add(at)) = Sent { deadline, copy, is_renewed: false, ..next };
    }
    if packets > 1 {
        let eth = StarEth::from(out.packet.irn);
        let count = (u32::from(first.len) + more - 1) as u16;
        let op_flags = eth.op_flags | StarEth::BURST;
        out.packet.irn = StarEth { op_flags, count, value: eth.value - more, ..eth }.into();
    }
}
