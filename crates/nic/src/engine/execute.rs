//! Executing a WQE that was fetched: whether it may be, whether it has to wait, and what it does without a
//! packet. One that has packets to send is in flight from then on, and the transport sends them.

use super::step::SendStep;
use crate::attr::QpType;
use crate::congestion;
use crate::explain::Cause;
use crate::memory::{AccessFault, MwBind, MwType, dma};
use crate::qp::Qp;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::state::NicState;
use crate::transport::inflight::Inflight;
use crate::transport::requester::{load, packets_of, settle};
use crate::work::Status;
use adverb_wire::Instant;

/// Takes a fetched WQE into flight, unless it has to wait. A WQE that waits is fetched again, so that
/// a change made to it in memory meanwhile takes effect.
pub(crate) fn execute(qp: &mut Qp, nic: &mut NicState, now: Instant) -> SendStep {
    let wqe = *qp.requester.loaded();
    execute_wqe(qp, nic, now, &wqe)
}

/// The same of the WQE that was loaded last, for who has it in registers. What seldom happens gets a copy of
/// it: a reference would keep it in memory for all.
#[inline]
pub(crate) fn execute_wqe(qp: &mut Qp, nic: &mut NicState, now: Instant, wqe: &Wqe) -> SendStep {
    qp.requester.is_loaded = false;
    // What most WQEs are breaks no rule of its own, and waits for its fence alone.
    let plain = qp.qp_type == QpType::Rc && wqe.op.is_message() && !wqe.calc;
    let mut refused = None;
    if plain {
        if waits(qp, wqe) {
            return SendStep::Idle;
        }
    } else {
        let wqe = *wqe;
        match prepare(qp, nic, now, &wqe) {
            Ok(None) => {}
            Ok(Some(step)) => return step,
            Err(cause) => refused = Some(cause),
        }
    }
    let is_local = !plain && wqe.op.is_local();
    let blocks = wqe.blocks();
    qp.sq.fetched = wqe.block.wrapping_add(blocks);
    let packets = if is_local { 0 } else { packets_of(qp, wqe) };
    let psn = qp.requester.next_psn;
    let entry = Inflight {
        psn,
        packets: if refused.is_some() { 0 } else { packets },
        block: wqe.block,
        blocks: blocks as u8,
        op: wqe.op,
        signaled: wqe.signaled,
    };
    qp.requester.push(entry);
    if let Some(cause) = refused {
        qp.requester.fail(cause);
    } else if is_local {
        let wqe = *wqe;
        if let Err(cause) = local(qp, nic, &wqe) {
            qp.requester.fail(cause);
        }
        settle(qp, nic, now);
        return SendStep::Executed(wqe.op);
    } else {
        qp.requester.outstanding_reads += (!plain && wqe.op.awaits_response()) as u8;
        if qp.requester.cursor.wrapping_add(1) == qp.requester.tail {
            qp.requester.is_loaded = true;
            qp.requester.cursor_packet = 0;
        }
    }
    settle(qp, nic, now);
    SendStep::Executed(wqe.op)
}

/// Whether a WQE that is more than a message may be executed: at once, or not, because of what this step came
/// to; or why it is refused.
#[inline]
fn prepare(qp: &mut Qp, nic: &mut NicState, now: Instant, wqe: &Wqe) -> Result<Option<SendStep>, Cause> {
    if let Some(cause) = check(qp, nic, wqe) {
        // In its turn, as all that is local.
        let held = wqe.op.is_local() && !congestion::may_execute(qp, now);
        return if held { Ok(Some(SendStep::Idle)) } else { Err(cause) };
    }
    if wqe.op == WqeOp::Wait
        && let Some(step) = wait(qp, nic, wqe)?
    {
        return Ok(Some(step));
    }
    if waits(qp, wqe) || wqe.op.is_local() && !congestion::may_execute(qp, now) {
        return Ok(Some(SendStep::Idle));
    }
    if wqe.calc {
        calculate(qp, nic, wqe)?;
        return Ok(Some(execute(qp, nic, now)));
    }
    Ok(None)
}

/// Whether a WQE has to wait for READs and atomics that were posted before it: for its fence, or for room
/// among them.
#[inline]
pub(crate) fn waits(qp: &Qp, wqe: &Wqe) -> bool {
    let reads = qp.requester.outstanding_reads;
    (wqe.fence && reads > 0) || (wqe.op.awaits_response() && reads >= qp.requester.max_rd_atomic)
}

/// Computes what a WQE sends, and latches it: what is sent again is the same, whatever becomes of the
/// operands.
#[cold]
fn calculate(qp: &mut Qp, nic: &NicState, wqe: &Wqe) -> Result<(), Cause> {
    let operation = |rule| Cause::local(Status::LocalQpOperation, rule);
    let calc = qp.sq.ring.calc(wqe).ok_or(operation(
        "a calculation that this NIC does not make: it has MAX and MIN of 64-bit integers",
    ))?;
    if wqe.inline {
        return Err(operation("a calculation takes its data from memory, not inline"));
    }
    let width = calc.result_len(wqe.len).map_err(|fault| operation(fault.rule()))?;
    let mut data = vec![0; wqe.len as usize];
    let mut at = 0;
    for segment in wqe.data_segment..wqe.segments {
        let sge = qp.sq.ring.sge(wqe, segment);
        let span = nic
            .memory
            .check_local(qp.pd, sge.lkey, sge.addr, sge.len, false)
            .map_err(|fault| Cause::local(Status::LocalProtection, fault.rule()))?;
        dma::read_bytes(span, &mut data[at..at + sge.len as usize]);
        at += sge.len as usize;
    }
    calc.compute(&mut data, width);
    if !qp.sq.ring.put_result(wqe, &data[..width]) {
        return Err(operation("the result of a calculation takes more segments than its WQE has"));
    }
    let latched = qp.sq.ring.decode(wqe.block, wqe.blocks(), qp.sq.layout());
    let latched = latched.map_err(|fault| Cause::local(fault.status(), fault.rule()))?;
    load(qp, &latched);
    Ok(())
}

/// A WAIT: nothing to do once the completion queue has moved past its index. Until then the queue pair waits
/// in the row of those that wait for it.
#[cold]
fn wait(qp: &mut Qp, nic: &mut NicState, wqe: &Wqe) -> Result<Option<SendStep>, Cause> {
    let (cq, index) = (wqe.queue_number(), wqe.queue_index());
    let Some(queue) = nic.cqs.at(cq) else {
        return Err(Cause::local(Status::LocalQpOperation, "a WAIT names no completion queue"));
    };
    if let Some(failed) = queue.failed_before(index) {
        return Err(Cause { after: Some(failed), ..Cause::local(Status::LocalQpOperation, AWAITED_FAILED) });
    }
    if queue.has_passed(index) {
        return Ok(None);
    }
    if queue.is_overrun() {
        return Err(Cause::local(Status::LocalQpOperation, AWAITED_OVERRUN));
    }
    match nic.cross.get_mut(qp.index()) {
        Some(cross) if cross.waits_for.is_none() => {
            cross.waits_for = Some(cq);
            queue.wait_for(index, qp.index());
            Ok(Some(SendStep::Waiting))
        }
        _ => Ok(Some(SendStep::Idle)),
    }
}

/// Whether the peer is known to execute masked atomics, which are not IBTA's.
#[cold]
fn has_masked_atomics(qp: &Qp, nic: &NicState) -> bool {
    qp.masked_peer || qp.is_reliable() && nic.is_own(qp.dst, qp.peer)
}

/// Rules of WAITs that nothing ends.
const AWAITED_FAILED: &str =
    "a work request that the WAIT was for has failed (wait-on-error=release goes on)";
const AWAITED_OVERRUN: &str =
    "the completion queue that the WAIT was for is overrun, and counts no further (IGNORE_OVERRUN does)";

/// Rules that a WQE must meet before it is sent (IBTA table 36 for operations by service).
fn check(qp: &Qp, nic: &NicState, wqe: &Wqe) -> Option<Cause> {
    let operation = |rule| Some(Cause::local(Status::LocalQpOperation, rule));
    let allowed = match qp.qp_type {
        QpType::Rc | QpType::XrcSend => true,
        QpType::Uc => {
            wqe.op.is_local()
                || matches!(wqe.op, WqeOp::Send | WqeOp::SendImm | WqeOp::Write | WqeOp::WriteImm)
        }
        QpType::Ud | QpType::Gsi => matches!(wqe.op, WqeOp::Nop | WqeOp::Send | WqeOp::SendImm),
        QpType::XrcRecv => false,
    };
    if !allowed {
        return operation("the operation is not one of this transport service's (IBTA 9.6, table 36)");
    }
    if wqe.op.acts_on_queues() && !qp.sq.is_cross() {
        return operation("WAIT and ENABLE need a cross-channel queue pair");
    }
    if wqe.calc && !qp.sq.is_cross() {
        return operation("a calculation needs a cross-channel queue pair");
    }
    if wqe.op.awaits_response() && qp.requester.max_rd_atomic == 0 {
        return operation("READs and atomics need an initiator depth above 0 (IBTA 11.2.4.2)");
    }
    if wqe.op.is_masked() && !has_masked_atomics(qp, nic) {
        return operation(
            "masked atomics need a peer that is known to execute them: this NIC, or one that agreed on IRN",
        );
    }
    if wqe.op.is_atomic() && wqe.len != 8 {
        return Some(Cause::local(
            Status::LocalLength,
            "an atomic's answer takes exactly 8 bytes (IBTA 9.4.5)",
        ));
    }
    if qp.is_datagram() && wqe.len > qp.mtu() {
        return Some(Cause::local(Status::LocalLength, "a datagram is at most one path MTU (IBTA 9.8.4)"));
    }
    if wqe.inline && wqe.op.awaits_response() {
        return operation("an answer cannot go inline");
    }
    None
}

/// Rule of binds of which no registry can hear.
const UNTOLD: &str = "a window of type 1 is not bound by WQEs that a program writes itself: no peer's \
                      registry of StaR hears of it; ibv_bind_mw on another queue pair tells them";

/// Whether others than the queue pair's peer may use the window that is bound, and their NICs' registries
/// have to be told before. What a program writes itself is seen when it is executed only. A window of type
/// 2 is for this queue pair's peer, which speaks plain RC with it.
fn is_untold(nic: &NicState, bind: &MwBind) -> bool {
    let kind = nic.memory.foretell(bind).map(|(kind, _)| kind);
    nic.registry.is_some() && bind.len > 0 && kind == Some(MwType::One)
}

/// Executes an operation that needs no packet.
fn local(qp: &mut Qp, nic: &mut NicState, wqe: &Wqe) -> Result<(), Cause> {
    let fault = |f: AccessFault| Cause::local(Status::MemoryWindowBind, f.rule());
    match wqe.op {
        WqeOp::BindMw => {
            let bind = qp.sq.ring.bind(wqe);
            if qp.sq.is_written_by_program() && is_untold(nic, &bind) {
                return Err(Cause::local(Status::MemoryWindowBind, UNTOLD));
            }
            nic.memory.bind_mw(qp.pd, qp.num, &bind).map_err(fault)?;
        }
        WqeOp::LocalInv => {
            let key = adverb_wire::Key(wqe.imm);
            nic.memory
                .invalidate_local(qp.pd, qp.num, key)
                .map_err(|f| Cause::local(Status::LocalProtection, f.rule()))?;
        }
        WqeOp::SendEnable => nic.enable(qp.pd, wqe.queue_number(), wqe.queue_index())?,
        WqeOp::RecvEnable => nic.enable_receives(qp.pd, wqe.queue_number(), wqe.queue_index())?,
        _ => {}
    }
    Ok(())
}
