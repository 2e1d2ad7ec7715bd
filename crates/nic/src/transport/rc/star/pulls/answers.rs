//! What answers say of the packets for the other side's requests: data land as packets of plain RC do, and
//! what was not executed, or not in its order, is sent again.

use super::{Pulls, Star, drop_front, finish_all, refuse};
use crate::attr::QpState;
use crate::event::Event;
use crate::memory::Payload;
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::receive;
use crate::work::Status;
use adverb_wire::star::{Answer, Stamp, Verdict};
use adverb_wire::{Instant, Operation, Packet, Psn};

/// Takes in an RDA or GDA for a request of the other side.
pub(in crate::transport::rc::star) fn on_answer(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    packet: &Packet,
    payload: &Payload<'_>,
    answer: Answer,
) {
    let stamp = Stamp::from(packet.irn);
    let before = star.peer.pulls.una;
    for step in 0..u32::from(answer.run) {
        finish_all(qp, star, nic, now);
        let psn = packet.bth.psn.add(step);
        let pulls = &mut star.peer.pulls;
        if psn.is_before(pulls.una) || !psn.is_before(pulls.high) {
            nic.counters.drop_ghost_ack += 1;
            continue;
        }
        if psn != pulls.una {
            nic.counters.drop_out_of_order += 1;
            if !core::mem::replace(&mut pulls.went_back, true) {
                pulls.go_back();
            }
            return;
        }
        let slot = pulls.slot(psn);
        let sent = pulls.sent[slot];
        if sent.is_renewed || sent.copy != answer.copy {
            nic.counters.drop_duplicate += 1;
            continue;
        }
        let order = stamp.order.wrapping_add(step);
        if !take(qp, star, nic, now, psn, answer.verdict, order, packet, payload) {
            break;
        }
    }
    let pulls = &mut star.peer.pulls;
    if pulls.una == before {
        return;
    }
    if let Some((timed, at)) = pulls.timed
        && timed.is_before(pulls.una)
    {
        pulls.timed = None;
        pulls.measured(now.since(at));
    }
    if pulls.cursor.is_before(pulls.una) {
        pulls.cursor = pulls.una;
    }
    pulls.move_on(now);
    pulls.went_back = false;
    pulls.is_due = true;
    pulls.at = if pulls.una == pulls.high { Instant::NEVER } else { now + pulls.round_trip_wait(qp, nic) };
    pulls.armed = now;
}

/// Data came that was asked for: it goes the way of plain RC. False if it is refused.
fn land(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    psn: Psn,
    payload: &Payload<'_>,
) -> bool {
    let pulls = &mut star.peer.pulls;
    let asked = pulls.sent[pulls.slot(psn)].len;
    let Some(pull) = pulls.of(psn).filter(|_| payload.len() == usize::from(asked)) else {
        nic.counters.drop_length += 1;
        return false;
    };
    let k = psn.since(pull.first) as u32;
    // Of one that was stopped in its middle the last packet does not come.
    let plain = pull.packet(k, pull.refusal.is_none() && k + 1 == pull.packets);
    match receive::accept(qp, nic, now, &plain, payload) {
        Ok(_) => {
            star.peer.pulls.una = psn.next();
            true
        }
        Err(refusal) => {
            refuse(qp, star, nic, now, &plain, refusal);
            false
        }
    }
}

impl Pulls {
    /// Whether an RD was executed after all before it, as this stamp says: if not, another copy of an earlier
    /// one has come since. Of completions that come with their data the numbers keep the order.
    fn is_in_order(&mut self, order: u32, is_merged: bool) -> bool {
        let is_before = self.last_order.is_some_and(|last| order.wrapping_sub(last) as i32 <= 0);
        if !is_before {
            self.last_order = Some(order);
        }
        is_merged || !is_before
    }
}

/// What an answer says of the oldest packet. True if that is done.
#[allow(clippy::too_many_arguments, reason = "what an answer says")]
fn take(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    now: Instant,
    psn: Psn,
    verdict: Verdict,
    order: u32,
    packet: &Packet,
    payload: &Payload<'_>,
) -> bool {
    let is_data = packet.bth.opcode.operation() == Operation::GetDataAnswer;
    let pulls = &mut star.peer.pulls;
    let slot = pulls.slot(psn);
    let sent = pulls.sent[slot];
    match verdict {
        Verdict::Done if is_data != sent.is_read => {
            nic.counters.drop_duplicate += 1;
            false
        }
        Verdict::Done if !is_data => {
            let in_order = pulls.is_in_order(order, sent.is_merged);
            if in_order {
                pulls.una = psn.next();
            } else {
                nic.counters.star_out_of_order += 1;
                pulls.sent[slot].is_renewed = true;
                pulls.go_back();
            }
            in_order
        }
        Verdict::Done => land(qp, star, nic, now, psn, payload),
        Verdict::Expired => {
            nic.counters.star_deferred += 1;
            // A way that takes longer than the lifetime is as good as none.
            if !pulls.bears_late(qp, nic, now) {
                drop_front(star, Status::TransportRetryExceeded);
                return false;
            }
            if star.has_passed(sent.deadline) {
                let pulls = &mut star.peer.pulls;
                pulls.sent[slot].is_renewed = true;
                pulls.go_back();
            }
            false
        }
        Verdict::Busy => {
            nic.counters.star_deferred += 1;
            // It has come, so it is not lost.
            pulls.moved = now;
            if sent.is_merged && star.peer.urge() {
                star.peer.pulls.go_back();
            }
            false
        }
        // Its own buffers are at fault; requests before this one are done.
        Verdict::Access => {
            drop_front(star, Status::LocalProtection);
            false
        }
        Verdict::Invalid | Verdict::NotPosted => {
            nic.counters.error_naks_received += 1;
            if qp.state != QpState::Err {
                nic.event(Event::QpFatal(qp.id));
            }
            drop_front(star, Status::General);
            false
        }
    }
}
