//! Unreliable datagrams (IBTA 9.8.2), QP1's among them: one packet, one message, any destination.

use crate::attr::QpType;
use crate::explain::{Cause, received};
use crate::frame::TxFrame;
use crate::ids::PathId;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::queue::wqe::Wqe;
use crate::state::NicState;
use crate::transport::receive;
use crate::transport::report::{completion, explain};
use crate::work::{CompletionOp, Status};
use adverb_wire::{Deth, Instant, Packet, QpNumber};

/// Bytes before the payload of a received datagram: a global route header, or, over IPv4, 20 unused
/// bytes and the IPv4 header (IBTA A17.4.5.2).
pub(crate) const GRH_LEN: usize = 40;

/// Q_Key of QP1 (IBTA 3.5.3).
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;

/// The queue pair's own: what was set, or the one that all GSIs have.
#[inline]
fn qkey(qp: &Qp) -> u32 {
    if qp.qp_type == QpType::Gsi { GSI_QKEY } else { qp.attr.qkey }
}

/// Network type of the GRH area in a completion's service level, as rxe and mlx5 report it: IPv4.
const SL_IPV4: u8 = 2;

/// The path that a WQE's datagram takes.
pub(crate) fn path(qp: &Qp, nic: &NicState, wqe: &Wqe) -> PathId {
    let to = qp.sq.ring.datagram(wqe);
    nic.path_to(to.dgid, to.qpn, to.path)
}

/// Addresses an outgoing datagram from its WQE.
pub(crate) fn address(qp: &Qp, nic: &NicState, wqe: &Wqe, out: &mut TxFrame) {
    let to = qp.sq.ring.datagram(wqe);
    // A Q_Key with the top bit set stands for the queue pair's own (IBTA 10.2.5.3).
    let qkey = if to.qkey & 1 << 31 != 0 { qkey(qp) } else { to.qkey };
    let packet = &mut out.packet;
    packet.flow.dst = to.dgid;
    packet.flow.traffic_class = to.traffic_class;
    packet.flow.hop_limit = if to.hop_limit == 0 { 64 } else { to.hop_limit };
    packet.deth = Deth { qkey, src_qp: qp.num };
    packet.bth.dest_qp = if to.dgid.is_multicast() { QpNumber::MULTICAST } else { to.qpn };
    out.path = nic.path_to(to.dgid, to.qpn, to.path);
}

/// Takes in a datagram.
pub(crate) fn on_datagram(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    if packet.deth.qkey != qkey(qp) {
        nic.counters.drop_qkey += 1;
        return;
    }
    if payload.len() > crate::limits::MAX_MTU {
        nic.counters.drop_length += 1;
        return;
    }
    let (taken, pd) = match (qp.srq(), &mut qp.receiver) {
        (Some(id), Some(receiver)) => match nic.srqs.get_mut(id) {
            Some(srq) => (srq.queue.take(&mut receiver.list), srq.pd),
            None => (false, qp.pd),
        },
        _ => (qp.take_receive(), qp.pd),
    };
    if !taken {
        nic.counters.drop_no_receive += 1;
        return;
    }
    let total = GRH_LEN + payload.len();
    if total as u64 > qp.scatter().capacity {
        // The receive stays for a datagram that fits: whoever knows the Q_Key could use all of them up.
        // Class D (IBTA 9.9.3), as Linux's rxe has it.
        nic.counters.drop_receive_error += 1;
        put_back(qp, nic);
        return;
    }
    if let Some(id) = qp.srq() {
        nic.check_srq_limit(id);
    }
    let status = place(qp, nic, pd, packet, payload);
    let mut done = completion(qp, now, qp.scatter().wr_id, CompletionOp::Recv, status);
    if status != Status::Success {
        nic.counters.drop_receive_error += 1;
        let rule = "a scatter entry of the receive fails its access check (IBTA 10.6.3)";
        let cause = Cause { packet: Some(received(packet)), ..Cause::local(status, rule) };
        explain(qp, nic, now, qp.scatter().wr_id, &cause);
    }
    done.byte_len = total as u32;
    done.src_qp = packet.deth.src_qp;
    done.has_grh = true;
    done.solicited = packet.bth.solicited;
    done.has_immediate = packet.bth.opcode.operation().has_immediate();
    done.immediate = packet.immediate;
    done.sl = if packet.flow.dst.is_ipv4() { SL_IPV4 } else { 1 };
    nic.complete(qp.recv_cq, done, Some(receive::release(qp)));
}

/// The receive just taken goes back to where it was.
#[cold]
fn put_back(qp: &mut Qp, nic: &mut NicState) {
    match (qp.srq(), &mut qp.receiver) {
        (Some(id), _) => {
            if let Some(srq) = nic.srqs.get_mut(id) {
                srq.queue.put_back();
            }
        }
        (None, Some(receiver)) => receiver.queue.put_back(),
        (None, None) => {}
    }
}

fn place(qp: &Qp, nic: &NicState, pd: crate::ids::PdId, packet: &Packet, payload: &Payload<'_>) -> Status {
    let header = network_header(packet);
    let placed = nic
        .scatter(pd, qp.scatter().sges(), 0, &Payload::from_slice(&header))
        .and_then(|()| nic.scatter(pd, qp.scatter().sges(), GRH_LEN as u64, payload));
    match placed {
        Ok(()) => Status::Success,
        Err(_) => Status::LocalProtection,
    }
}

/// The 40 bytes in front of the payload.
fn network_header(packet: &Packet) -> [u8; GRH_LEN] {
    let mut area = [0u8; GRH_LEN];
    let flow = &packet.flow;
    let udp_len = (packet.wire_len() + 8) as u16;
    if flow.dst.is_ipv4() {
        let h = &mut area[20..];
        h[0] = 0x45;
        h[1] = flow.traffic_class;
        h[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
        h[6] = 0x40;
        h[8] = flow.hop_limit;
        h[9] = 17;
        h[12..16].copy_from_slice(&flow.src.0[12..]);
        h[16..20].copy_from_slice(&flow.dst.0[12..]);
        let sum = h.chunks_exact(2).map(|w| u16::from_be_bytes([w[0], w[1]]) as u32).sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        h[10..12].copy_from_slice(&checksum.to_be_bytes());
    } else {
        let word = 6u32 << 28 | (flow.traffic_class as u32) << 20;
        area[..4].copy_from_slice(&word.to_be_bytes());
        area[4..6].copy_from_slice(&udp_len.to_be_bytes());
        area[6] = 0x1b;
        area[7] = flow.hop_limit;
        area[8..24].copy_from_slice(&flow.src.0);
        area[24..].copy_from_slice(&flow.dst.0);
    }
    area
}
