//! Fetching WQEs. A plain queue's WQE is read when its turn comes, so that what is changed in memory before
//! takes effect. A cross-channel queue's go through the NIC's own memory of WQEs, several at a time, and stay
//! there until they are done: what is executed is what was fetched, and what is sent again is what was sent
//! first.

use super::execute::{self, execute, execute_wqe};
use super::step::{Intent, SendStep};
use super::watch::Author;
use crate::attr::QpType;
use crate::explain::Cause;
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeFault, WqeOp};
use crate::state::NicState;
use crate::transport::inflight::{BLANK, Inflight};
use crate::transport::requester::{load, settle};
use adverb_wire::Instant;

/// Reads the next WQE; where nobody charges for each step, it is executed at once.
#[inline(always)]
pub(crate) fn fetch(qp: &mut Qp, nic: &mut NicState, now: Instant) -> SendStep {
    fetch_next(qp, nic, now, false)
}

/// The same, but that a chain is left to the turn, if it may be [run](super::chain).
#[inline(always)]
pub(crate) fn fetch_or_chain(qp: &mut Qp, nic: &mut NicState, now: Instant) -> SendStep {
    fetch_next(qp, nic, now, true)
}

#[inline(always)]
fn fetch_next(qp: &mut Qp, nic: &mut NicState, now: Instant, chains: bool) -> SendStep {
    if !qp.sq.has_unfetched() {
        return SendStep::Idle;
    }
    if qp.sq.is_written_by_program()
        && let Some(step) = fetch_written(qp, nic, now, chains)
    {
        return step;
    }
    let available = qp.sq.posted.wrapping_sub(qp.sq.fetched);
    match qp.sq.ring.decode_here(qp.sq.fetched, available, qp.sq.layout()) {
        Ok(wqe) => {
            load(qp, &wqe);
            if nic.stepped { SendStep::Fetched(1) } else { execute_wqe(qp, nic, now, &wqe) }
        }
        Err(fault) => reject(qp, nic, now, fault),
    }
}

/// The next WQE of a queue that a program writes, where that makes a difference.
#[cold]
fn fetch_written(qp: &mut Qp, nic: &mut NicState, now: Instant, chains: bool) -> Option<SendStep> {
    if qp.sq.is_cross() {
        return Some(match chains.then(|| runs(qp, nic)) {
            Some(Runs::Now) => SendStep::Chain,
            Some(Runs::Later) => SendStep::Idle,
            _ => fetch_cross(qp, nic, now),
        });
    }
    if !nic.wqe_checks {
        return None;
    }
    let fault = qp.sq.ring.check_control(qp.sq.fetched, qp.num).err()?;
    Some(reject(qp, nic, now, fault))
}

/// A WQE that says nothing that the NIC understands: it fails in its turn.
#[cold]
fn reject(qp: &mut Qp, nic: &mut NicState, now: Instant, fault: WqeFault) -> SendStep {
    let block = qp.sq.fetched;
    qp.sq.fetched = block.wrapping_add(1);
    if nic.watch.is_some() {
        nic.tell_refused(qp, block, fault.rule(), now);
    }
    let bad = Inflight { block, psn: qp.requester.next_psn, ..BLANK };
    qp.requester.push(Inflight { signaled: true, ..bad });
    qp.requester.fail(Cause::local(fault.status(), fault.rule()));
    settle(qp, nic, now);
    SendStep::Executed(WqeOp::Nop)
}

/// Whether the WQEs of a cross-channel queue may be executed back to back.
enum Runs {
    Now,
    /// A WAIT is in front that is not met.
    Later,
    /// Somebody charges for steps or is told of them, a rate bounds them, or something is in flight that they
    /// may have to wait for.
    Never,
}

fn runs(qp: &Qp, nic: &NicState) -> Runs {
    let plain = !nic.stepped && nic.watch.is_none() && !nic.wqe_checks;
    let free = qp.control.is_none() && qp.requester.is_empty() && qp.qp_type == QpType::Rc;
    match nic.cross.get(qp.index()) {
        Some(cross) if plain && free => {
            if cross.waits_for.is_some() {
                Runs::Later
            } else {
                Runs::Now
            }
        }
        _ => Runs::Never,
    }
}

/// Takes the next WQE from those at hand and executes it, or reads more of them.
#[cold]
pub(crate) fn fetch_cross(qp: &mut Qp, nic: &mut NicState, now: Instant) -> SendStep {
    let (fetched, posted, layout) = (qp.sq.fetched, qp.sq.posted, qp.sq.layout());
    let oldest = qp.requester.oldest().map_or(fetched, |entry| entry.block);
    if nic.watch.is_some() {
        nic.look(Author::Host, now);
    }
    let Some(cross) = nic.cross.get_mut(qp.index()) else { return SendStep::Idle };
    if cross.cached == fetched {
        // What is in flight keeps its place: a recycled queue that has come round to it waits.
        let read = cross.read_ahead(&qp.sq.ring, oldest, posted);
        if nic.watch.is_some() && read > 0 {
            nic.tell_fetched(qp, fetched, now);
        }
        return if read > 0 { SendStep::Fetched(read) } else { SendStep::Idle };
    }
    let at_hand = cross.cached.wrapping_sub(fetched).min(qp.sq.ring.blocks());
    if nic.wqe_checks
        && let Err(fault) = qp.sq.ring.check_control(fetched, qp.num)
    {
        return reject(qp, nic, now, fault);
    }
    match qp.sq.ring.decode(fetched, at_hand, layout) {
        Ok(wqe) => {
            load(qp, &wqe);
            if nic.watch.is_some() { execute_watched(qp, nic, now, &wqe) } else { execute(qp, nic, now) }
        }
        Err(fault) => reject(qp, nic, now, fault),
    }
}

/// Executes a WQE, and tells of it.
#[cold]
fn execute_watched(qp: &mut Qp, nic: &mut NicState, now: Instant, wqe: &Wqe) -> SendStep {
    let place = nic.told();
    let step = execute(qp, nic, now);
    match step {
        SendStep::Executed(_) => nic.tell_executed(qp, wqe, place, now),
        SendStep::Waiting => nic.tell_waiting(qp, wqe, now),
        _ => {}
    }
    step
}

/// What a cross-channel queue would do next: read WQEs ahead, or execute the first of those at hand.
pub(crate) fn intent_of_cross(qp: &Qp, nic: &NicState) -> Intent {
    let Some(cross) = nic.cross.get(qp.index()) else { return Intent::Nothing };
    let (fetched, posted) = (qp.sq.fetched, qp.sq.posted);
    if cross.cached == fetched {
        if posted == fetched {
            return Intent::Nothing;
        }
        return Intent::FetchAhead { managed: cross.managed, orders: cross.orders_ahead(posted) };
    }
    let at_hand = cross.cached.wrapping_sub(fetched).min(qp.sq.ring.blocks());
    match qp.sq.ring.decode(fetched, at_hand, qp.sq.layout()) {
        Ok(wqe) => {
            let queue = nic.cqs.peek(wqe.queue_number()).filter(|_| wqe.op == WqeOp::Wait);
            let unmet = queue.is_some_and(|queue| !queue.has_passed(wqe.queue_index()));
            let calculates = if wqe.calc { wqe.len } else { 0 };
            Intent::Execute { op: wqe.op, waits: unmet || execute::waits(qp, &wqe), calculates }
        }
        // One that is refused costs what a NOP does.
        Err(_) => Intent::Execute { op: WqeOp::Nop, waits: false, calculates: 0 },
    }
}
