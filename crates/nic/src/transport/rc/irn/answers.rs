//! IRN's answers to READs and atomics on their way out: new ones, lost ones, and the NAK behind the last.

use super::requester::probe;
use super::responder::{Answer, Responses, What};
use super::sender::{Probe, Sender};
use super::tx_free::{Free, tx_free};
use super::{Irn, ack_interval};
use crate::attr::QpState;
use crate::congestion;
use crate::event::Event;
use crate::explain::Cause;
use crate::frame::TxFrame;
use crate::memory::AccessFault;
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::failure::enter_error;
use crate::transport::rc::read_answer;
use crate::transport::report::explain;
use crate::work::Status;
use adverb_wire::{Aeth, Instant, NakCode, Operation, Psn, Syndrome};

/// The next answer, or the NAK that follows what is owed. An RNR NAK waits for nothing.
pub(super) fn next_answer(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
) -> bool {
    let r = &mut irn.responses;
    let at_once = matches!(r.nak, Some((_, Syndrome::RnrNak { .. }))) || !r.has_answer();
    if at_once && let Some((psn, syndrome)) = r.nak.take() {
        nak(qp, nic, out, psn, syndrome);
        return true;
    }
    if !congestion::may_send(qp, now) {
        irn.held_back = true;
        return false;
    }
    let r = &mut irn.responses;
    let next = if r.last_words && r.unsent > 0 {
        Free::New
    } else if r.tx.probe == Probe::Due
        && let Some(psn) = tail_probe(r, nic, now)
    {
        Free::Resend(psn)
    } else {
        tx_free(&mut r.tx, &nic.irn, r.limit, r.unsent > 0, now)
    };
    let psn = match next {
        Free::Resend(psn) => psn,
        Free::New => r.tx.next,
        Free::Wait(_) | Free::Closed => return false,
    };
    let holds = |a: &&Answer| (0..a.packets as i32).contains(&psn.since(a.first));
    let found =
        if next == Free::New { r.answers.get(r.sending as usize) } else { r.answers.iter().find(holds) };
    let Some(answer) = found.copied() else { return false };
    if let Err(fault) = build(qp, nic, &answer, psn, out) {
        return read_failed(qp, irn, nic, now, out, answer.request, fault);
    }
    let rto = qp.rto(nic);
    let r = &mut irn.responses;
    let interval = ack_interval(nic.congestion.ack_every, r.limit);
    if next != Free::New {
        out.packet.bth.ack_req = true;
        nic.counters.retransmitted_packets += 1;
        congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Answer, now);
        return true;
    }
    r.unsent -= 1;
    r.sending += (psn.next() == answer.first.add(answer.packets)) as u8;
    if r.last_words {
        // Nobody will acknowledge it.
        r.tx = Sender::spanning(psn.next(), r.tx.sacked.bits());
        congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Answer, now);
        return true;
    }
    // Behind the last one there is, or none for a while, nothing else would bring an acknowledgement: a READ
    // request that follows says which answers have come.
    r.unasked += 1;
    if r.unsent == 0 || r.unasked as u32 >= interval {
        r.unasked = 0;
        out.packet.bth.ack_req = true;
    }
    r.tx.on_sent(&nic.irn, out.packet.bth.ack_req, rto, now);
    congestion::on_sent(qp, nic, &mut out.packet, congestion::Sent::Answer, now);
    true
}

/// The tail probe that is due, if no answer goes anyway.
#[cold]
fn tail_probe(r: &mut Responses, nic: &mut NicState, now: Instant) -> Option<Psn> {
    let fresh = r.unsent > 0 && r.tx.has_room(r.limit);
    probe(&mut r.tx, &mut r.unasked, fresh, nic, now)
}

fn nak(qp: &Qp, nic: &mut NicState, out: &mut TxFrame, psn: Psn, syndrome: Syndrome) {
    if let Syndrome::Nak(_) = syndrome {
        nic.counters.error_naks_sent += 1;
    }
    out.packet.bth = super::bth(qp, Operation::Acknowledge, psn);
    out.packet.aeth = Aeth { syndrome, msn: qp.responder.msn() };
    out.packet.sack = adverb_wire::SackEth::new(0, psn);
}

/// Builds answer `psn`. The memory is checked again: the region may have gone.
fn build(qp: &Qp, nic: &NicState, answer: &Answer, psn: Psn, out: &mut TxFrame) -> Result<(), AccessFault> {
    let k = psn.since(answer.first) as u32;
    let operation = match answer.what {
        What::Atomic(_) => Operation::AtomicAcknowledge,
        What::Read(_) => read_answer::operation(k, answer.packets),
    };
    out.packet.bth = super::bth(qp, operation, psn);
    if operation != Operation::ReadResponseMiddle {
        out.packet.aeth = Aeth { syndrome: Syndrome::default(), msn: answer.msn };
    }
    match &answer.what {
        What::Atomic(original) => out.packet.atomic_original = *original,
        What::Read(asked) => read_answer::read_out(qp, nic, asked, k, out)?,
    }
    Ok(())
}

/// The memory of a READ has gone: its request fails, and with it the queue pair.
fn read_failed(
    qp: &mut Qp,
    irn: &mut Irn,
    nic: &mut NicState,
    now: Instant,
    out: &mut TxFrame,
    request: Psn,
    fault: AccessFault,
) -> bool {
    let r = &mut irn.responses;
    r.answers.clear();
    r.sending = 0;
    r.unsent = 0;
    r.acked = 0;
    r.nak = None;
    r.tx = Sender::spanning(r.tx.next, r.tx.sacked.bits());
    nak(qp, nic, out, request, Syndrome::Nak(NakCode::RemoteAccessError));
    explain(qp, nic, now, 0, &Cause::local(Status::LocalAccess, fault.rule()));
    if qp.state != QpState::Err {
        nic.event(Event::QpAccessError(qp.id));
    }
    enter_error(qp, nic, now);
    true
}
