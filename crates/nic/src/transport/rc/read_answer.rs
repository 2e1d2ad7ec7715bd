//! Answers to READs and atomics, at both ends and for every mode: cutting what is read into packets at the
//! responder, and placing it at the requester (IBTA 9.7.5.1.6).

use crate::explain::{Cause, received};
use crate::frame::TxFrame;
use crate::memory::{AccessFault, Payload, RemoteRight, dma};
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::state::NicState;
use crate::transport::incoming::Asked;
use crate::work::Status;
use adverb_wire::{Operation, Packet};

/// Operation of response `k` of so many.
#[inline]
pub(super) fn operation(k: u32, packets: u32) -> Operation {
    match (k == 0, k + 1 == packets) {
        (true, true) => Operation::ReadResponseOnly,
        (true, false) => Operation::ReadResponseFirst,
        (false, false) => Operation::ReadResponseMiddle,
        (false, true) => Operation::ReadResponseLast,
    }
}

/// Puts the bytes of response `k` into `out`. The memory is checked again: the region may have gone.
#[inline]
pub(super) fn read_out(
    qp: &Qp,
    nic: &NicState,
    asked: &Asked,
    k: u32,
    out: &mut TxFrame,
) -> Result<(), AccessFault> {
    let offset = k * qp.mtu();
    let part = (asked.len - offset).min(qp.mtu());
    if part > 0 {
        let from = asked.va.wrapping_add(offset as u64);
        out.payload.push(nic.memory.check_remote(
            asked.pd,
            qp.num,
            asked.rkey,
            from,
            part,
            RemoteRight::Read,
        )?);
    }
    out.packet.payload_len = part;
    Ok(())
}

/// Places answer `k` of so many where the request wants it, if it has the length and the place that were
/// asked for.
#[inline]
pub(super) fn place(
    qp: &Qp,
    nic: &NicState,
    wqe: &Wqe,
    k: u32,
    packets: u32,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Cause> {
    let operation = packet.bth.opcode.operation();
    let landed = if operation == Operation::AtomicAcknowledge {
        if wqe.op == WqeOp::Read {
            return Err(misfit(packet));
        }
        let original = packet.atomic_original.to_ne_bytes();
        scatter(qp, nic, wqe, 0, &Payload::from_slice(&original))
    } else {
        let offset = k * qp.mtu();
        let due = (wqe.len - offset.min(wqe.len)).min(qp.mtu());
        let says_last = matches!(operation, Operation::ReadResponseLast | Operation::ReadResponseOnly);
        if wqe.op != WqeOp::Read || payload.len() != due as usize || says_last != (k + 1 == packets) {
            return Err(misfit(packet));
        }
        scatter(qp, nic, wqe, offset, payload)
    };
    landed.map_err(|fault| Cause::local(Status::LocalProtection, fault.rule()))
}

#[cold]
fn misfit(packet: &Packet) -> Cause {
    let rule = "a READ response has another length or place than the request asked for (IBTA 9.7.5.1.6)";
    Cause { packet: Some(received(packet)), ..Cause::local(Status::BadResponse, rule) }
}

/// Places response bytes at `offset` of the request's scatter list.
pub(super) fn scatter(
    qp: &Qp,
    nic: &NicState,
    wqe: &Wqe,
    offset: u32,
    payload: &Payload<'_>,
) -> Result<(), AccessFault> {
    let mut skip = offset;
    let mut done = 0;
    let mut segment = wqe.data_segment;
    while done < payload.len() && segment < wqe.segments {
        let sge = qp.sq.ring.sge(wqe, segment);
        segment += 1;
        if skip >= sge.len {
            skip -= sge.len;
            continue;
        }
        let len = ((sge.len - skip) as usize).min(payload.len() - done);
        let addr = sge.addr.wrapping_add(skip as u64);
        let span = nic.memory.check_local(qp.pd, sge.lkey, addr, len as u32, true)?;
        if !payload.is_elided() {
            dma::write(span, payload, done, len);
        }
        done += len;
        skip = 0;
    }
    if done == payload.len() { Ok(()) } else { Err(AccessFault::OutOfBounds) }
}
