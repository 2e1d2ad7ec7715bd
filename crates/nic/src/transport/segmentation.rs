//! Cutting a message into packets (IBTA 9.7.2, 9.8.3): opcode by place in the message, headers, and
//! the pieces of memory that are the payload.

use crate::frame::TxFrame;
use crate::memory::AccessFault;
use crate::qp::Qp;
use crate::queue::wqe::{GatherCursor, Operands, Wqe, WqeOp};
use crate::state::NicState;
use adverb_wire::ext::MASKS_LEN;
use adverb_wire::{AtomicEth, Bth, Opcode, Operation, Packet, Reth};

/// READ and atomic requests: one packet, whatever the length of the answer. An atomic still lacks its
/// [`operands`].
pub(crate) fn request(qp: &Qp, wqe: &Wqe, index: u32, packet: &mut Packet) {
    let operation = match wqe.op {
        WqeOp::Read => Operation::ReadRequest,
        WqeOp::CompareSwap => Operation::CompareSwap,
        WqeOp::MaskedCompareSwap => Operation::MaskedCompareSwap,
        WqeOp::MaskedFetchAdd => Operation::MaskedFetchAdd,
        _ => Operation::FetchAdd,
    };
    packet.bth = Bth { opcode: Opcode::new(qp.service(), operation), ack_req: true, ..Bth::default() };
    packet.xrc_srq = wqe.xrc_srqn;
    if wqe.op == WqeOp::Read {
        // After a lost response the rest is asked for: advanced address, remaining length.
        let offset = index * qp.mtu();
        packet.reth =
            Reth { va: wqe.raddr.wrapping_add(offset as u64), rkey: wqe.rkey, len: wqe.len - offset };
    } else {
        packet.atomic = AtomicEth { va: wqe.raddr, rkey: wqe.rkey, ..AtomicEth::default() };
    }
}

/// What the atomic of a request computes with. Masks of a swap are its payload.
#[cold]
pub(crate) fn operands(qp: &Qp, wqe: &Wqe, of: Operands, out: &mut TxFrame) {
    (out.packet.atomic.swap_add, out.packet.atomic.compare) = (of.swap_add, of.compare);
    if wqe.op == WqeOp::MaskedCompareSwap {
        qp.sq.ring.gather_masks(wqe, &mut out.payload);
        out.packet.payload_len = MASKS_LEN as u32;
    }
}

/// A SEND or WRITE packet with its payload.
#[inline]
pub(crate) fn message(
    qp: &mut Qp,
    nic: &NicState,
    wqe: &Wqe,
    index: u32,
    out: &mut TxFrame,
) -> Result<(), AccessFault> {
    let offset = index * qp.mtu();
    let len = (wqe.len - offset).min(qp.mtu());
    let first = index == 0;
    let last = offset + len == wqe.len;
    let packet = &mut out.packet;
    packet.payload_len = len;
    packet.xrc_srq = wqe.xrc_srqn;
    packet.bth = Bth {
        opcode: Opcode::new(qp.service(), operation(wqe.op, first, last)),
        solicited: last && wqe.solicited,
        ack_req: qp.is_reliable()
            && (last || (index + 1).is_multiple_of(nic.congestion.ack_interval(qp.requester.window))),
        ..Bth::default()
    };
    match wqe.op {
        WqeOp::SendImm | WqeOp::WriteImm if last => packet.immediate = wqe.imm,
        WqeOp::SendInv if last => packet.invalidate = wqe.imm,
        _ => {}
    }
    if first && matches!(wqe.op, WqeOp::Write | WqeOp::WriteImm) {
        packet.reth = Reth { va: wqe.raddr, rkey: wqe.rkey, len: wqe.len };
    }
    // Copies: see `execute_wqe`.
    if qp.is_datagram() {
        let wqe = *wqe;
        super::ud::address(qp, nic, &wqe, out);
    }
    if wqe.inline {
        let wqe = *wqe;
        qp.sq.ring.gather_inline(&wqe, offset, len, &mut out.payload);
        return Ok(());
    }
    gather(qp, nic, wqe, offset, len, out)
}

/// Operation of a packet by its place in the message.
const fn operation(op: WqeOp, first: bool, last: bool) -> Operation {
    use Operation::*;
    match (op, first, last) {
        (WqeOp::Write | WqeOp::WriteImm, true, false) => WriteFirst,
        (WqeOp::Write | WqeOp::WriteImm, false, false) => WriteMiddle,
        (WqeOp::Write, false, true) => WriteLast,
        (WqeOp::Write, true, true) => WriteOnly,
        (WqeOp::WriteImm, false, true) => WriteLastImm,
        (WqeOp::WriteImm, true, true) => WriteOnlyImm,
        (_, true, false) => SendFirst,
        (_, false, false) => SendMiddle,
        (WqeOp::SendImm, false, true) => SendLastImm,
        (WqeOp::SendImm, true, true) => SendOnlyImm,
        (WqeOp::SendInv, false, true) => SendLastInv,
        (WqeOp::SendInv, true, true) => SendOnlyInv,
        (_, false, true) => SendLast,
        (_, true, true) => SendOnly,
    }
}

/// Collects `len` bytes from `offset` of the message, walking the list on from where it stands.
#[inline]
fn gather(
    qp: &mut Qp,
    nic: &NicState,
    wqe: &Wqe,
    offset: u32,
    len: u32,
    out: &mut TxFrame,
) -> Result<(), AccessFault> {
    let mut at = qp.requester.gather();
    if at.message_offset > offset || at.segment < wqe.data_segment {
        at = GatherCursor { segment: wqe.data_segment, ..Default::default() };
    }
    let mut skip = offset - at.message_offset;
    let mut left = len;
    while (skip > 0 || left > 0) && at.segment < wqe.segments {
        let sge = qp.sq.ring.sge(wqe, at.segment);
        let room = sge.len.saturating_sub(at.offset);
        if room == 0 {
            at.segment += 1;
            at.offset = 0;
            continue;
        }
        if skip > 0 {
            let step = skip.min(room);
            skip -= step;
            at.offset += step;
            at.message_offset += step;
            continue;
        }
        let step = left.min(room);
        let addr = sge.addr.wrapping_add(at.offset as u64);
        let span = nic.memory.check_local(qp.pd, sge.lkey, addr, step, false)?;
        out.payload.push(span);
        left -= step;
        at.offset += step;
        at.message_offset += step;
    }
    qp.requester.set_gather(at);
    if left == 0 { Ok(()) } else { Err(AccessFault::OutOfBounds) }
}
