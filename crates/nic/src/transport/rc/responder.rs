//! The responder of RC and XRC (IBTA 9.7.4, 9.7.5): takes requests in PSN order, acknowledges, NAKs the
//! first gap, answers READs and atomics, and answers duplicates again.
//!
//! What it owes the peer is of two kinds: a row of answers (READ responses, atomics), and the latest
//! acknowledgement, which stands for all before it; after losses the one before it as well. They leave in
//! PSN order.

use crate::congestion;
use crate::event::Event;
use crate::explain::{Cause, received};
use crate::frame::TxFrame;
use crate::ids::PdId;
use crate::memory::{Access, AccessFault, Payload, RemoteRight, Span, dma};
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::incoming::{Answer, Asked, Message, Resource};
use crate::transport::rc::read_answer;
use crate::transport::receive::{self, Refusal};
use crate::transport::report::explain;
use crate::transport::star::registry;
use crate::work::Status;
use adverb_wire::ext::MASKS_LEN;
use adverb_wire::{Aeth, AtomicEth, Bth, Instant, NakCode, Opcode, Operation, Packet, Psn, Syndrome};

/// Takes in a request.
#[inline]
pub(crate) fn on_request(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) {
    let ahead = packet.bth.psn.since(qp.responder.expected);
    if ahead > 0 {
        return gap(qp, nic);
    }
    if ahead < 0 {
        return duplicate(qp, nic, packet);
    }
    let operation = packet.bth.opcode.operation();
    let taken = match operation {
        Operation::ReadRequest => read(qp, nic, packet),
        op if op.is_atomic() => atomic(qp, nic, packet, payload),
        _ => message(qp, nic, now, packet, payload),
    };
    match taken {
        Ok(()) => qp.responder.gap.close(),
        Err(refusal) => refuse(qp, nic, now, packet, refusal),
    }
}

#[inline]
fn message(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
) -> Result<(), Refusal> {
    let ended = receive::accept(qp, nic, now, packet, payload)?;
    let r = &mut qp.responder;
    r.expected = packet.bth.psn.next();
    if ended {
        r.end_message();
    }
    if packet.bth.ack_req {
        r.owe(packet.bth.psn, Syndrome::default());
    }
    Ok(())
}

/// A gap: one NAK for it, silence until it is filled (IBTA 9.7.5.2.2).
fn gap(qp: &mut Qp, nic: &mut NicState) {
    if qp.responder.gap.is_open() {
        nic.counters.drop_out_of_order += 1;
        return;
    }
    qp.responder.gap.open();
    let code = Syndrome::Nak(NakCode::PsnSequenceError);
    qp.responder.owe(qp.responder.expected, code);
}

/// Whether a READ may be carried out; the domain that its memory belongs to.
pub(super) fn check_read(qp: &Qp, nic: &NicState, packet: &Packet) -> Result<PdId, Refusal> {
    let reth = packet.reth;
    between_messages(qp)?;
    if !qp.access.contains(Access::REMOTE_READ) {
        return Err(Refusal::Rights);
    }
    if reth.len as u64 > crate::limits::MAX_MESSAGE {
        return Err(Refusal::Invalid("READ longer than 2^31 bytes (IBTA 9.7.7)"));
    }
    let pd = receive::remote_pd(qp, nic, packet)?;
    if reth.len > 0 {
        nic.memory
            .check_remote(pd, qp.num, reth.rkey, reth.va, reth.len, RemoteRight::Read)
            .map_err(Refusal::Access)?;
    }
    Ok(pd)
}

fn read(qp: &mut Qp, nic: &mut NicState, packet: &Packet) -> Result<(), Refusal> {
    let reth = packet.reth;
    let pd = check_read(qp, nic, packet)?;
    room_for_answer(qp)?;
    let packets = reth.len.div_ceil(qp.mtu()).max(1);
    let psn = packet.bth.psn;
    qp.responder.end_message();
    let msn = qp.responder.msn;
    let asked = Asked { pd, va: reth.va, rkey: reth.rkey, len: reth.len };
    qp.responder.keep(Resource::Read { psn, asked });
    qp.responder.answers().push_back(Answer::Read { psn, asked, packets, next: 0, msn, replay: false });
    qp.responder.expected = psn.add(packets);
    Ok(())
}

/// The word of an atomic, if it may be carried out.
pub(super) fn atomic_target(qp: &Qp, nic: &NicState, packet: &Packet) -> Result<Span, Refusal> {
    let eth = packet.atomic;
    between_messages(qp)?;
    if !qp.access.contains(Access::REMOTE_ATOMIC) {
        return Err(Refusal::Rights);
    }
    let pd = receive::remote_pd(qp, nic, packet)?;
    nic.memory.check_remote(pd, qp.num, eth.rkey, eth.va, 8, RemoteRight::Atomic).map_err(|fault| match fault
    {
        AccessFault::Misaligned => Refusal::Invalid("an atomic's address is a multiple of 8 (IBTA 9.4.5)"),
        fault => Refusal::Access(fault),
    })
}

/// The masks that come with an atomic, of what is swapped and of what is compared: all bits, but of a masked
/// compare and swap.
#[inline]
pub(super) fn masks(packet: &Packet, payload: &Payload<'_>) -> Result<(u64, u64), Refusal> {
    if packet.bth.opcode.operation() != Operation::MaskedCompareSwap {
        return Ok((u64::MAX, u64::MAX));
    }
    if payload.len() != MASKS_LEN || payload.is_elided() {
        return Err(Refusal::Invalid("a masked compare and swap comes with its two masks, 16 bytes"));
    }
    let mut bytes = [0; MASKS_LEN];
    payload.read(0, &mut bytes);
    Ok(adverb_wire::ext::masks(&bytes))
}

/// Carries out an atomic on its word; what that was before.
pub(super) fn perform(packet: &Packet, masks: (u64, u64), word: Span) -> u64 {
    let AtomicEth { swap_add, compare, .. } = packet.atomic;
    compute(packet.bth.opcode.operation(), (swap_add, compare), masks, word)
}

/// Computes an atomic's operands (what is swapped or added; what is compared, or bounds the fields of a
/// masked addition) and masks with a word; what that was before.
#[inline]
pub(super) fn compute(
    operation: Operation,
    (swap_add, compare): (u64, u64),
    (swap_mask, compare_mask): (u64, u64),
    word: Span,
) -> u64 {
    match operation {
        Operation::FetchAdd => dma::fetch_add(word, swap_add),
        Operation::MaskedFetchAdd => dma::update(word, |old| Some(add_fields(old, swap_add, compare))),
        Operation::MaskedCompareSwap => dma::update(word, |old| {
            let equal = (old ^ compare) & compare_mask == 0;
            equal.then_some(old & !swap_mask | swap_add & swap_mask)
        }),
        _ => dma::compare_swap(word, compare, swap_add),
    }
}

/// Adds words field by field: no carry leaves a bit that `boundary` has.
fn add_fields(a: u64, b: u64, boundary: u64) -> u64 {
    // Without the uppermost bits no field carries into the next one; they are added without a carry after.
    let low = (a & !boundary).wrapping_add(b & !boundary);
    low ^ (a ^ b) & boundary
}

fn atomic(qp: &mut Qp, nic: &mut NicState, packet: &Packet, payload: &Payload<'_>) -> Result<(), Refusal> {
    let word = atomic_target(qp, nic, packet)?;
    let masks = masks(packet, payload)?;
    room_for_answer(qp)?;
    let original = perform(packet, masks, word);
    let psn = packet.bth.psn;
    let r = &mut qp.responder;
    r.end_message();
    r.expected = psn.next();
    let msn = r.msn;
    r.keep(Resource::Atomic { psn, original });
    r.answers().push_back(Answer::Atomic { psn, original, msn, replay: false });
    Ok(())
}

fn between_messages(qp: &Qp) -> Result<(), Refusal> {
    match qp.responder.message() {
        Message::None => Ok(()),
        _ => Err(Refusal::Invalid("a READ or atomic inside a message (IBTA 9.7.4.1.2)")),
    }
}

/// The peer keeps to the depth agreed at connection (IBTA 9.7.4.1.8). If it seems not to, the oldest
/// replay is one that it has had since: the first answer was late, not lost. Then that one makes room.
fn room_for_answer(qp: &mut Qp) -> Result<(), Refusal> {
    let depth = qp.responder.depth as usize;
    let row = qp.responder.answers();
    if row.len() < depth {
        return Ok(());
    }
    match row.iter().position(Answer::is_replay) {
        Some(at) => {
            row.remove(at);
            Ok(())
        }
        None => Err(Refusal::Invalid(
            "more READs and atomics outstanding than responder resources (IBTA 9.7.4.1.8)",
        )),
    }
}

/// Answers a duplicate again, in its place among the answers, instead of one that is still on its way.
fn replay(qp: &mut Qp, nic: &mut NicState, answer: Answer) {
    let (start, end) = (answer.psn(), answer.end());
    let row = qp.responder.answers();
    row.retain(|a| !start.is_before(a.end()) || !a.psn().is_before(end));
    if room_for_answer(qp).is_err() {
        nic.counters.drop_read_depth += 1;
        return;
    }
    nic.counters.duplicate_requests += 1;
    let row = qp.responder.answers();
    let at = row.iter().position(|a| start.is_before(a.psn())).unwrap_or(row.len());
    row.insert(at, answer);
}

/// A request that came before (IBTA 9.7.5.1.1): SENDs and WRITEs are acknowledged again; of the READs and
/// atomics that are kept among the responder resources, READs are executed again and atomics answered from
/// memory of their result. The peer waits for no others, so that others are not its own.
fn duplicate(qp: &mut Qp, nic: &mut NicState, packet: &Packet) {
    let psn = packet.bth.psn;
    match packet.bth.opcode.operation() {
        Operation::ReadRequest => duplicate_read(qp, nic, packet),
        op if op.is_atomic() => {
            let msn = qp.responder.msn;
            match qp.responder.original_of(psn) {
                Some(original) => replay(qp, nic, Answer::Atomic { psn, original, msn, replay: true }),
                None => nic.counters.drop_duplicate += 1,
            }
        }
        _ => {
            nic.counters.duplicate_requests += 1;
            qp.responder.gap.on_duplicate();
            if qp.responder.acknowledge.is_none() {
                let last = qp.responder.expected.previous();
                qp.responder.owe(last, Syndrome::default());
            }
        }
    }
}

fn duplicate_read(qp: &mut Qp, nic: &mut NicState, packet: &Packet) {
    let (psn, reth) = (packet.bth.psn, packet.reth);
    let packets = reth.len.div_ceil(qp.mtu()).max(1);
    let domain = qp.responder.read_again(psn, reth.va, reth.rkey, reth.len, qp.mtu()).filter(|pd| {
        let readable =
            || nic.memory.check_remote(*pd, qp.num, reth.rkey, reth.va, reth.len, RemoteRight::Read).is_ok();
        qp.access.contains(Access::REMOTE_READ) && (reth.len == 0 || readable())
    });
    let Some(pd) = domain else {
        nic.counters.drop_duplicate += 1;
        return;
    };
    let msn = qp.responder.msn;
    let asked = Asked { pd, va: reth.va, rkey: reth.rkey, len: reth.len };
    replay(qp, nic, Answer::Read { psn, asked, packets, next: 0, msn, replay: true });
}

/// Answers a request that cannot be carried out (IBTA 9.7.5.2, table 58).
pub(super) fn refuse(qp: &mut Qp, nic: &mut NicState, now: Instant, packet: &Packet, refusal: Refusal) {
    let psn = qp.responder.expected;
    let invalid = Some(NakCode::InvalidRequest);
    let (code, receive_status, rule, event) = match refusal {
        Refusal::NotReady => {
            nic.counters.rnr_naks_sent += 1;
            if let Some(receiver) = qp.receiver.as_deref_mut() {
                receiver.not_ready = receiver.not_ready.wrapping_add(1);
            }
            qp.responder.gap.open();
            let timer = qp.attr.min_rnr_timer;
            qp.responder.owe(psn, Syndrome::RnrNak { timer });
            return;
        }
        Refusal::Invalid(rule) => (invalid, Status::RemoteInvalidRequest, rule, Event::QpRequestError(qp.id)),
        Refusal::TooLong => {
            let rule = "the receive is smaller than the message (IBTA 9.7.4.1.6)";
            (invalid, Status::LocalLength, rule, Event::QpRequestError(qp.id))
        }
        Refusal::Access(fault) => {
            let code = Some(NakCode::RemoteAccessError);
            (code, Status::LocalAccess, fault.rule(), Event::QpAccessError(qp.id))
        }
        Refusal::Rights => {
            let rule = "the queue pair does not grant this kind of remote access (IBTA 10.2.5)";
            let code = Some(NakCode::RemoteAccessError);
            (code, Status::LocalAccess, rule, Event::QpAccessError(qp.id))
        }
        Refusal::Local(fault) => {
            let code = Some(NakCode::RemoteOperationalError);
            (code, Status::LocalProtection, fault.rule(), Event::QpFatal(qp.id))
        }
        Refusal::Unruled => {
            let code = Some(NakCode::RemoteAccessError);
            (code, Status::LocalAccess, registry::REFUSED.rule, Event::QpFatal(qp.id))
        }
        // Class J (IBTA 9.9.3): the message itself was taken and may be acknowledged already, so that no NAK
        // tells of the key. The peer's next request finds the queue pair in error.
        Refusal::Invalidate(fault) => (None, Status::LocalAccess, fault.rule(), Event::QpAccessError(qp.id)),
    };
    if let Some(code) = code {
        qp.responder.owe(psn, Syndrome::Nak(code));
    }
    let wr_id = if qp.responder.receive_taken { qp.scatter().wr_id } else { 0 };
    let cause = Cause { packet: Some(received(packet)), ..Cause::local(receive_status, rule) };
    explain(qp, nic, now, wr_id, &cause);
    receive::fail_receive(qp, nic, now, receive_status);
    nic.event(event);
    enter_error(qp, nic, now);
}

/// Puts the next packet that the peer is owed into `out`.
#[inline(always)]
pub(crate) fn next_packet(qp: &mut Qp, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> bool {
    if !qp.responder.has_output() {
        return false;
    }
    out.payload.clear();
    out.packet = Packet { flow: qp.flow(nic), ..Packet::default() };
    out.path = qp.path;
    out.packet.bth.dest_qp = qp.peer;
    let r = &mut qp.responder;
    let acknowledge_first = match (r.acknowledge, r.first_answer()) {
        (Some(_), Some(answer)) => r.acknowledge_psn().is_before(answer.psn()),
        (Some(_), None) => true,
        (None, _) => false,
    };
    if acknowledge_first && let Some((psn, syndrome)) = r.take_acknowledge() {
        let msn = r.msn;
        acknowledge(qp, nic, out, psn, syndrome, msn);
        congestion::echo(qp, nic, out);
        return true;
    }
    match qp.responder.first_answer().copied() {
        Some(Answer::Atomic { psn, original, msn, .. }) => {
            qp.responder.answers().pop_front();
            let opcode = Opcode::new(qp.service(), Operation::AtomicAcknowledge);
            out.packet.bth = Bth { opcode, psn, dest_qp: qp.peer, ..Bth::default() };
            out.packet.aeth = Aeth { syndrome: Syndrome::default(), msn };
            out.packet.atomic_original = original;
            true
        }
        Some(Answer::Read { .. }) if !congestion::may_send(qp, now) => {
            qp.responder.held_back = true;
            false
        }
        Some(Answer::Read { .. }) => read_response(qp, nic, now, out),
        None => false,
    }
}

fn acknowledge(qp: &Qp, nic: &mut NicState, out: &mut TxFrame, psn: Psn, syndrome: Syndrome, msn: u32) {
    match syndrome {
        Syndrome::Ack { .. } => nic.counters.acks_sent += 1,
        Syndrome::Nak(NakCode::PsnSequenceError) => nic.counters.sequence_naks_sent += 1,
        Syndrome::Nak(_) => nic.counters.error_naks_sent += 1,
        Syndrome::RnrNak { .. } | Syndrome::Reserved(_) => {}
    }
    let opcode = Opcode::new(qp.service(), Operation::Acknowledge);
    out.packet.bth = Bth { opcode, psn, dest_qp: qp.peer, ..Bth::default() };
    out.packet.aeth = Aeth { syndrome, msn };
}

/// The next packet of the READ at the front. Its memory is checked again: the region may have gone.
fn read_response(qp: &mut Qp, nic: &mut NicState, now: Instant, out: &mut TxFrame) -> bool {
    let Some(&Answer::Read { psn, asked, packets, next, msn, .. }) = qp.responder.first_answer() else {
        return false;
    };
    let at = psn.add(next);
    if let Err(fault) = read_answer::read_out(qp, nic, &asked, next, out) {
        return read_failed(qp, nic, now, out, at, fault);
    }
    if next + 1 == packets {
        qp.responder.answers().pop_front();
    } else if let Some(Answer::Read { next, .. }) = qp.responder.answers().front_mut() {
        *next += 1;
    }
    let operation = read_answer::operation(next, packets);
    let opcode = Opcode::new(qp.service(), operation);
    out.packet.bth = Bth { opcode, psn: at, dest_qp: qp.peer, ..Bth::default() };
    if operation != Operation::ReadResponseMiddle {
        out.packet.aeth = Aeth { syndrome: Syndrome::default(), msn };
    }
    congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Answer, now);
    true
}

fn read_failed(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
    psn: Psn,
    fault: AccessFault,
) -> bool {
    qp.responder.answers().clear();
    qp.responder.acknowledge = None;
    let msn = qp.responder.msn;
    acknowledge(qp, nic, out, psn, Syndrome::Nak(NakCode::RemoteAccessError), msn);
    let cause = Cause::local(Status::LocalAccess, fault.rule());
    explain(qp, nic, now, 0, &cause);
    nic.event(Event::QpAccessError(qp.id));
    enter_error(qp, nic, now);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, as the vendor's manual describes it.
    fn slowly(a: u64, b: u64, boundary: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..64 {
            let total = (a >> bit & 1) + (b >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if boundary >> bit & 1 == 1 { 0 } else { total >> 1 };
        }
        sum
    }

    #[test]
    fn fields_are_added_without_a_carry_between_them() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..100_000 {
            let (a, b) = (rng.u64(..), rng.u64(..));
            let boundary = match round % 4 {
                0 => 0,
                1 => u64::MAX,
                2 => 0x8080_8080_8080_8080,
                _ => rng.u64(..) & rng.u64(..),
            };
            assert_eq!(add_fields(a, b, boundary), slowly(a, b, boundary), "{a:x} {b:x} {boundary:x}");
        }
    }
}
