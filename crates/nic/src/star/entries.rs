//! Entries of WQEPs: what is posted, as it travels to the peer. Where its data lie at this side travels along
//! only where that was agreed on (`carried`), and if they lie in one piece.

use super::library::{Library, RECEIVES, SENDS};
use crate::endpoint::Endpoint;
use crate::explain::Cause;
use crate::memory::QueueMemory;
use crate::queue::wqe::{Wqe, WqeOp};
use crate::state::NicState;
use crate::work::{Sge, Status};
use adverb_wire::Key;
use adverb_wire::star::{self, Op};

/// Inline bytes up to these travel with their request.
const CARRIED_INLINE: u32 = 256;

/// Entries of receives: how many, and their bytes.
pub(super) fn put_receives(
    endpoint: &Endpoint,
    library: &mut Library,
    memory: &QueueMemory,
    room: usize,
    carries: bool,
) -> (u16, usize) {
    let Some(receiver) = endpoint.receiver.as_deref() else { return (0, 0) };
    let (mut count, mut len) = (0, 0);
    while library.told[RECEIVES] != receiver.queue.waiting().1 {
        let index = library.told[RECEIVES];
        let capacity = receiver.queue.capacity_of(index) as u32;
        let sge = the_one(receiver.queue.sges_of(index), capacity).filter(|_| carries);
        let (op, flags) = (Op::Recv, 0);
        let entry = star::Wqe { op, flags, index, len: capacity, va: 0, rkey: 0, immediate: 0 };
        if len + size_of(sge, 0) > room {
            break;
        }
        len = put_entry(memory, len, entry, sge);
        count += 1;
        library.told[RECEIVES] = index.wrapping_add(1);
    }
    (count, len)
}

/// Entries of send requests: how many, and their bytes.
pub(super) fn put_sends(
    endpoint: &mut Endpoint,
    library: &mut Library,
    nic: &mut NicState,
    memory: &QueueMemory,
    room: usize,
    carries: bool,
) -> (u16, usize) {
    let (mut count, mut len) = (0, 0);
    while library.told_block != endpoint.sq.posted {
        let block = library.told_block;
        let available = endpoint.sq.posted.wrapping_sub(block);
        let decoded = endpoint.sq.ring.decode(block, available, endpoint.sq.layout());
        let blocks = endpoint.starts().blocks_from(block).unwrap_or(1);
        // What cannot be read has its turn all the same, and fails then.
        let wqe = decoded.unwrap_or(Wqe { block, segments: 4 * blocks as u8, ..Wqe::NOP });
        if let Err(fault) = decoded {
            let cause = Cause::local(fault.status(), fault.rule());
            library.failed.get_or_insert_with(|| Box::new((block, cause)));
        }
        let mut entry = entry_of(&wqe);
        let once = library.told[SENDS] == library.executed;
        if once {
            library.executed = library.executed.wrapping_add(1);
            if let Err(cause) = check(endpoint, nic, &wqe) {
                library.failed.get_or_insert_with(|| Box::new((block, cause)));
            }
        }
        let fails = library.failed.as_deref().is_some_and(|(at, _)| *at == block);
        if fails || wqe.op.is_local() {
            // The peer only gives it its turn.
            entry = star::Wqe { op: Op::Write, flags: entry.flags & star::Wqe::FENCE, len: 0, ..entry };
        }
        let follows = follows(&entry, &wqe);
        let list = (wqe.data_segment..wqe.segments).map(|at| endpoint.sq.ring.sge(&wqe, at));
        let sge = if carries && !wqe.inline && !wqe.op.is_local() { the_one(list, entry.len) } else { None };
        if len + size_of(sge, follows) > room {
            break;
        }
        len = put_entry(memory, len, entry, sge);
        let mut data = [0; CARRIED_INLINE as usize];
        match entry.op {
            Op::CompareSwap | Op::FetchAdd => {
                let operands = endpoint.sq.ring.operands(&wqe);
                data[..8].copy_from_slice(&operands.swap_add.to_be_bytes());
                data[8..16].copy_from_slice(&operands.compare.to_be_bytes());
            }
            _ if follows > 0 => {
                let mut gather = crate::memory::Gather::new();
                endpoint.sq.ring.gather_inline(&wqe, 0, wqe.len, &mut gather);
                gather.read(&mut data[..wqe.len as usize]);
            }
            _ => {}
        }
        memory.write(len, &data[..follows.next_multiple_of(4)]);
        len += follows.next_multiple_of(4);
        count += 1;
        library.told[SENDS] = library.told[SENDS].wrapping_add(1);
        library.told_block = block.wrapping_add(blocks);
    }
    (count, len)
}

/// Where a request's data lie, if that is one piece.
fn the_one(mut list: impl Iterator<Item = Sge>, len: u32) -> Option<star::Sge> {
    if len == 0 {
        return None;
    }
    let Sge { addr, lkey, .. } = list.next().filter(|sge| sge.len == len)?;
    list.next().is_none().then_some(star::Sge { len, lkey: lkey.0, addr })
}

/// Bytes of an entry, with what follows it.
fn size_of(sge: Option<star::Sge>, follows: usize) -> usize {
    star::Wqe::LEN + sge.map_or(0, |_| star::Sge::LEN) + follows.next_multiple_of(4)
}

/// Puts an entry, and where its data lie if that is told; the place behind them.
fn put_entry(memory: &QueueMemory, at: usize, entry: star::Wqe, sge: Option<star::Sge>) -> usize {
    let flags = if sge.is_some() { entry.flags | star::Wqe::CARRIED } else { entry.flags };
    memory.write(at, &star::Wqe { flags, ..entry }.bytes());
    let behind = at + star::Wqe::LEN;
    sge.map_or(behind, |sge| {
        memory.write(behind, &sge.bytes());
        behind + star::Sge::LEN
    })
}

/// Bytes of data that follow an entry.
fn follows(entry: &star::Wqe, wqe: &Wqe) -> usize {
    match entry.op {
        Op::CompareSwap | Op::FetchAdd => 16,
        _ if entry.flags & star::Wqe::INLINE != 0 => wqe.len as usize,
        _ => 0,
    }
}

/// A send request as it travels.
fn entry_of(wqe: &Wqe) -> star::Wqe {
    use star::Wqe as W;
    let (op, mut flags) = match wqe.op {
        WqeOp::Send => (Op::Send, 0),
        WqeOp::SendImm => (Op::Send, W::IMMEDIATE),
        WqeOp::SendInv => (Op::Send, W::INVALIDATE),
        WqeOp::WriteImm => (Op::Write, W::IMMEDIATE),
        WqeOp::Read => (Op::Read, 0),
        WqeOp::CompareSwap => (Op::CompareSwap, W::INLINE),
        WqeOp::FetchAdd => (Op::FetchAdd, W::INLINE),
        _ => (Op::Write, 0),
    };
    flags |= if wqe.solicited { W::SOLICITED } else { 0 };
    flags |= if wqe.fence { W::FENCE } else { 0 };
    if wqe.inline && wqe.op.is_message() && (1..=CARRIED_INLINE).contains(&wqe.len) {
        flags |= W::INLINE;
    }
    W { op, flags, index: wqe.block, len: wqe.len, va: wqe.raddr, rkey: wqe.rkey.0, immediate: wqe.imm }
}

/// Rules that a request must meet before it is told; what needs no packet is carried out.
fn check(endpoint: &Endpoint, nic: &mut NicState, wqe: &Wqe) -> Result<(), Cause> {
    let operation = |rule| Err(Cause::local(Status::LocalQpOperation, rule));
    if wqe.op.awaits_response() && endpoint.query().max_rd_atomic == 0 {
        return operation("READs and atomics need an initiator depth above 0 (IBTA 11.2.4.2)");
    }
    if wqe.op.is_atomic() && wqe.len != 8 {
        let rule = "an atomic's answer takes exactly 8 bytes (IBTA 9.4.5)";
        return Err(Cause::local(Status::LocalLength, rule));
    }
    match wqe.op {
        WqeOp::BindMw => {
            let bind = endpoint.sq.ring.bind(wqe);
            let bound = nic.memory.bind_mw(endpoint.pd, endpoint.num, &bind);
            bound.map_err(|f| Cause::local(Status::MemoryWindowBind, f.rule()))?;
        }
        WqeOp::LocalInv => {
            let done = nic.memory.invalidate_local(endpoint.pd, endpoint.num, Key(wqe.imm));
            done.map_err(|f| Cause::local(Status::LocalProtection, f.rule()))?;
        }
        op if op.acts_on_queues() => return operation("WAIT and ENABLE need a cross-channel queue pair"),
        op if op.is_masked() => return operation("StaR carries no masked atomics"),
        _ if wqe.calc => return operation("a calculation needs a cross-channel queue pair"),
        _ if wqe.inline && wqe.op.awaits_response() => return operation("an answer cannot go inline"),
        _ => {}
    }
    Ok(())
}
