//! Placing the messages of RC, UC and XRC: packets of one SEND or WRITE, taken in PSN order, land in
//! a posted receive or in a region, and the last one completes (IBTA 9.7.4, 9.8.3).

use crate::attr::QpType;
use crate::ids::{CqId, PdId, SrqId};
use crate::limits;
use crate::memory::{Access, AccessFault, Payload, RemoteRight, dma};
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::recv::{Receives, ScatterList};
use crate::slab::Held;
use crate::state::NicState;
use crate::transport::incoming::Message;
use crate::transport::report::completion;
use crate::work::{CompletionOp, Status};
use adverb_wire::{Instant, Key, Operation, Packet, Reth};

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// Broken framing, wrong length, unsupported operation.
    Invalid(&'static str),
    /// The receive is too small for the message.
    TooLong,
    /// The peer may not do this.
    Access(AccessFault),
    /// The queue pair itself does not grant the right.
    Rights,
    /// The key that a SEND asks to invalidate is not one that the peer may.
    Invalidate(AccessFault),
    /// The receive's own scatter list is at fault.
    Local(AccessFault),
    /// No rule of this NIC's registry lets it ask for the message, or send what it reads (StaR, III-D).
    Unruled,
}

/// Takes the next packet of a SEND or WRITE. `Ok(true)` when it ended a message.
///
/// On a refusal the message in progress is left as it was, except that bytes of it may have landed.
#[inline]
pub(crate) fn accept(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<bool, Refusal> {
    let operation = packet.bth.opcode.operation();
    check_framing(qp, packet, payload)?;
    if operation.is_send() {
        send(qp, nic, packet, payload)?;
    } else {
        write(qp, nic, packet, payload)?;
    }
    if !operation.ends_message() {
        return Ok(false);
    }
    finish(qp, nic, now, packet)?;
    Ok(true)
}

/// Opcode sequence and payload length (IBTA 9.7.4.1.2, 9.7.4.1.6).
#[inline]
fn check_framing(qp: &Qp, packet: &Packet, payload: &Payload<'_>) -> Result<(), Refusal> {
    let operation = packet.bth.opcode.operation();
    let in_order = match qp.responder.message() {
        Message::None => operation.starts_message(),
        Message::Send { .. } => operation.is_send() && !operation.starts_message(),
        Message::Write { .. } => operation.is_write() && !operation.starts_message(),
    };
    if !in_order {
        return Err(Refusal::Invalid(
            "the opcode does not follow the one before it in its message (IBTA 9.7.4.1.2)",
        ));
    }
    let len = payload.len() as u32;
    let fits = if operation.ends_message() {
        len <= qp.mtu() && (operation.starts_message() || len > 0)
    } else {
        len == qp.mtu()
    };
    if fits { Ok(()) } else { Err(Refusal::Invalid("payload length against the path MTU (IBTA 9.7.4.1.6)")) }
}

fn send(qp: &mut Qp, nic: &mut NicState, packet: &Packet, payload: &Payload<'_>) -> Result<(), Refusal> {
    let offset = match qp.responder.message() {
        Message::Send { offset } => offset,
        _ => {
            take_receive(qp, nic, packet)?;
            0
        }
    };
    if offset + payload.len() as u64 > qp.scatter().capacity {
        return Err(Refusal::TooLong);
    }
    let pd = receive_pd(qp, nic);
    nic.scatter(pd, qp.scatter().sges(), offset, payload).map_err(Refusal::Local)?;
    qp.responder.set_message(Message::Send { offset: offset + payload.len() as u64 });
    Ok(())
}

fn write(qp: &mut Qp, nic: &mut NicState, packet: &Packet, payload: &Payload<'_>) -> Result<(), Refusal> {
    let operation = packet.bth.opcode.operation();
    let (va, rkey, len, offset) = match qp.responder.message() {
        Message::Write { va, rkey, len, offset } => (va, rkey, len, offset),
        _ => {
            if u64::from(packet.reth.len) > limits::MAX_MESSAGE {
                return Err(Refusal::Invalid("a WRITE is no longer than 2^31 bytes (IBTA 9.7.7)"));
            }
            (packet.reth.va, packet.reth.rkey, packet.reth.len, 0)
        }
    };
    // The receive first: one that is refused for its key fails the receive too (IBTA 11.6.2, local access
    // error), and one without a receive draws an RNR NAK whatever its key.
    if operation.has_immediate() {
        take_receive(qp, nic, packet)?;
    }
    if !qp.access.contains(Access::REMOTE_WRITE) {
        return write_for_atomic(qp, nic, packet, payload, Refusal::Rights);
    }
    let left = len - offset;
    let part = payload.len() as u32;
    if part > left
        || (operation.ends_message() && part != left)
        || (!operation.ends_message() && part == left)
    {
        return Err(Refusal::Invalid("RETH length against the payload (IBTA 9.7.4.1.6)"));
    }
    // The first packet answers for the whole message; each packet for the bytes it still has to
    // write, because the region may have gone in between.
    if left > 0 {
        let at = va.wrapping_add(offset as u64);
        let pd = remote_pd(qp, nic, packet)?;
        let checked = nic.memory.check_remote(pd, qp.num, rkey, at, left, RemoteRight::Write);
        let span = match checked {
            Ok(span) => span,
            Err(fault) => return write_for_atomic(qp, nic, packet, payload, Refusal::Access(fault)),
        };
        if !payload.is_elided() {
            dma::write(span.slice(0, part as usize), payload, 0, part as usize);
        }
    }
    qp.responder.set_message(Message::Write { va, rkey, len, offset: offset + part });
    Ok(())
}

/// What may not be written, unless a switch has made it of an atomic: a WRITE of one word, or of nothing,
/// which the right to atomics lets in.
#[cold]
fn write_for_atomic(
    qp: &mut Qp,
    nic: &mut NicState,
    packet: &Packet,
    payload: &Payload<'_>,
    refusal: Refusal,
) -> Result<(), Refusal> {
    const WORD_LEN: u32 = 8;
    let lacks_right = matches!(refusal, Refusal::Rights | Refusal::Access(AccessFault::MissingRight));
    let Reth { va, rkey, len } = packet.reth;
    let is_whole = packet.bth.opcode.operation() == Operation::WriteOnly && payload.len() == len as usize;
    if !nic.words_by_write || !lacks_right || !qp.access.contains(Access::REMOTE_ATOMIC) || !is_whole {
        return Err(refusal);
    }
    match len {
        0 => {}
        WORD_LEN => {
            let pd = remote_pd(qp, nic, packet)?;
            let found = nic.memory.check_remote(pd, qp.num, rkey, va, WORD_LEN, RemoteRight::Atomic);
            let span = found.map_err(Refusal::Access)?;
            if !payload.is_elided() {
                dma::write(span, payload, 0, len as usize);
            }
        }
        _ => return Err(refusal),
    }
    nic.counters.writes_for_atomics += 1;
    qp.responder.set_message(Message::Write { va, rkey, len, offset: len });
    Ok(())
}

/// Takes a posted receive for the message that begins (or, WRITE with immediate, ends) here.
#[inline]
fn take_receive(qp: &mut Qp, nic: &mut NicState, packet: &Packet) -> Result<(), Refusal> {
    if qp.responder.receive_taken {
        return Ok(());
    }
    let taken = if qp.qp_type == QpType::XrcRecv {
        let srq = xrc_srq(qp, nic, packet.xrc_srq)?;
        qp.receiver.as_deref_mut().is_some_and(|receiver| {
            receiver.of_xrc = Some(srq);
            take_shared(nic, srq, &mut receiver.list)
        })
    } else if qp.receiver.as_deref_mut().is_some_and(Receives::take_early) {
        true
    } else if let Some(srq) = qp.srq() {
        qp.receiver.as_deref_mut().is_some_and(|receiver| take_shared(nic, srq, &mut receiver.list))
    } else {
        qp.take_receive()
    };
    if !taken {
        return Err(Refusal::NotReady);
    }
    qp.responder.receive_taken = true;
    if let Some(receiver) = qp.receiver.as_deref_mut() {
        receiver.taken = receiver.taken.wrapping_add(1);
    }
    Ok(())
}

/// Takes the next receive of a shared queue.
pub(crate) fn take_shared(nic: &mut NicState, srq: SrqId, into: &mut ScatterList) -> bool {
    let Some(queue) = nic.srqs.get_mut(srq) else { return false };
    let taken = queue.queue.take(into);
    if taken {
        nic.check_srq_limit(srq);
    }
    taken
}

/// The shared receive queue that an XRC packet names; it must be of the target's domain.
fn xrc_srq(qp: &Qp, nic: &NicState, number: u32) -> Result<SrqId, Refusal> {
    let found = nic.srqs.id_at(number).and_then(|id| nic.srqs.get(id).map(|srq| (id, srq)));
    match found {
        Some((id, srq)) if srq.xrc.is_some_and(|(domain, _)| Some(domain) == qp.xrcd()) => Ok(id),
        _ => Err(Refusal::Invalid("the XRC shared receive queue does not exist in this domain (IBTA A14)")),
    }
}

/// Protection domain that a remote access is checked against: the queue pair's, or for an XRC target,
/// which has none, that of the shared receive queue that the packet names (IBTA A14).
#[inline]
pub(crate) fn remote_pd(qp: &Qp, nic: &NicState, packet: &Packet) -> Result<PdId, Refusal> {
    if qp.qp_type != QpType::XrcRecv {
        return Ok(qp.pd);
    }
    let srq = xrc_srq(qp, nic, packet.xrc_srq)?;
    Ok(nic.srqs.get(srq).map_or(qp.pd, |srq| srq.pd))
}

/// What polling a receive's completion frees: a place in the queue pair's own queue, or in the shared one
/// that the receive came from.
#[inline]
pub(crate) fn release(qp: &Qp) -> Release {
    match qp.srq_of_receive().or(qp.srq()) {
        Some(srq) => Release::Shared(srq),
        None => Release::Receive(qp.id),
    }
}

/// Protection domain that receives are checked against.
pub(crate) fn receive_pd(qp: &Qp, nic: &NicState) -> PdId {
    qp.srq_of_receive().or(qp.srq()).and_then(|id| nic.srqs.get(id)).map_or(qp.pd, |srq| srq.pd)
}

/// Completion queue that receives go to: an XRC shared receive queue has its own.
fn receive_cq(qp: &Qp, nic: &NicState) -> Held<CqId> {
    qp.srq_of_receive()
        .and_then(|id| nic.srqs.get(id))
        .and_then(|srq| srq.xrc)
        .map_or(qp.recv_cq, |(_, cq)| Held::new(cq))
}

/// The message is whole: completion for a SEND, or a WRITE with immediate.
#[inline]
fn finish(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet) -> Result<(), Refusal> {
    let operation = packet.bth.opcode.operation();
    let invalidates = matches!(operation, Operation::SendLastInv | Operation::SendOnlyInv);
    if invalidates {
        nic.memory.invalidate_remote(qp.pd, qp.num, Key(packet.invalidate)).map_err(Refusal::Invalidate)?;
    }
    let message = qp.responder.message();
    qp.responder.set_message(Message::None);
    let (op, byte_len) = match message {
        Message::Send { offset } => (CompletionOp::Recv, offset as u32),
        Message::Write { len, .. } if operation.has_immediate() => (CompletionOp::RecvWriteImm, len),
        _ => return Ok(()),
    };
    let mut done = completion(qp, now, qp.scatter().wr_id, op, Status::Success);
    done.byte_len = byte_len;
    done.solicited = packet.bth.solicited;
    done.has_immediate = operation.has_immediate();
    done.has_invalidate = invalidates;
    done.immediate = if invalidates { packet.invalidate } else { packet.immediate };
    done.src_qp = qp.peer;
    let cq = receive_cq(qp, nic);
    qp.responder.receive_taken = false;
    nic.complete(cq, done, Some(release(qp)));
    Ok(())
}

/// The receive that a failing message holds completes with an error.
pub(crate) fn fail_receive(qp: &mut Qp, nic: &mut NicState, now: Instant, status: Status) {
    if !core::mem::take(&mut qp.responder.receive_taken) {
        return;
    }
    qp.responder.set_message(Message::None);
    let done = completion(qp, now, qp.scatter().wr_id, CompletionOp::Recv, status);
    let cq = receive_cq(qp, nic);
    nic.complete(cq, done, Some(release(qp)));
}

/// Flushes the receive in progress and the queue pair's own receive queue (IBTA 10.3.1.5).
pub(crate) fn flush(qp: &mut Qp, nic: &mut NicState, now: Instant) {
    fail_receive(qp, nic, now, Status::WorkRequestFlushed);
    if let Some(receiver) = qp.receiver.as_deref_mut() {
        receiver.queue.enable_all();
    }
    while qp.take_receive() {
        let done = completion(qp, now, qp.scatter().wr_id, CompletionOp::Recv, Status::WorkRequestFlushed);
        nic.complete(qp.recv_cq, done, Some(release(qp)));
    }
}
