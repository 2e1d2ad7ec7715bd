//! What a NIC needs for chains of WQEs, on one core: single WQEs of a ring that goes round, conditions, and
//! laps of a recycled loop.
//!
//! A condition is RedN's `if`: a compare-and-swap in a WQE's control segment makes an atomic of a NOP, a WAIT
//! and an ENABLE let it be fetched, and another WAIT ends it. It is posted each time, which is counted too. A
//! lap is half a round of a ring that enables itself: it counts, moves the indices of its WAITs and ENABLEs
//! on by an ADD and five READs, tests the next lap's conditional WQE by a compare-and-swap, and enables the
//! next lap.

use crate::{End, NOW, QUEUE, layer_next_frame, layer_post_send, said};
use adverb_bench::{Options, now};
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::{Access, CqId, Error, MrInfo, MrInit, Nic, QpFlags, QpId, QpInit, SendOp, Sge, TxFrame};
use adverb_wire::{Key, QpNumber};
use std::time::Duration;

/// Runs one of the chains.
pub fn drive(options: &Options, op: &str) -> Result<String, String> {
    match op {
        "chain-if" => conditions(options),
        "chain-loop" => laps(options),
        single_op => single(options, single_op),
    }
}

fn report(took: Duration, count: u32) -> String {
    let each = took.as_nanos() as f64 / f64::from(count.max(1));
    format!(r#"{{"ns_per_op": {each:.1}, "m_per_s": {:.3}, "frames_per_op": 0.00}}"#, 1000.0 / each)
}

/// What a NIC does with the WQEs of a ring that goes round, beside their posting.
fn single(options: &Options, op: &str) -> Result<String, String> {
    let count = options.get("count", 20_000u32)?;
    let mut a = End::new(1, false, QpFlags::MANAGED_SEND | QpFlags::MANAGED_RECV).map_err(said)?;
    let (ring, own) = (a.qp, a.name().map_err(said)?);
    a.connect(own).map_err(said)?;
    let local = [Sge { addr: a.region.addr(), len: 8, lkey: a.mr.lkey }];
    let request = a
        .to_itself(op.trim_start_matches("chain-"))
        .ok_or_else(|| format!("--op {op}: chain-nop, -wait, -enable, -write, -read, -atomic, -if, -loop"))?;
    for _ in 0..QUEUE {
        layer_post_send(&mut a, request, &local, false).map_err(said)?;
    }
    // Another queue pair enables it, as far as the circle of indices allows at once.
    a.qp = a.nic.create_qp_with(&a.init, QpFlags::CROSS_CHANNEL).map_err(said)?;
    let starter = a.name().map_err(said)?;
    a.connect(starter).map_err(said)?;
    let mut out = TxFrame::default();
    let mut turn = |a: &mut End, request: SendOp| -> Result<(), String> {
        layer_post_send(a, request, &[], true).map_err(said)?;
        a.finish(op, &mut out)
    };
    // The completion that WAITs are for.
    turn(&mut a, SendOp::Nop)?;
    let begun = now();
    let mut done = 0;
    while done < count {
        done += (count - done).min(1 << 12);
        turn(&mut a, SendOp::SendEnable { qp: own.1, index: done })?;
        if a.nic.live_queue(ring).map_err(said)?.next != done {
            return Err(format!("{op}: the ring has not come to block {done}"));
        }
    }
    Ok(report(begun.elapsed(), count))
}

/// A queue whose WQEs other WQEs may change.
struct Queue {
    qp: QpId,
    cq: CqId,
    number: QpNumber,
    code: MrInfo,
    addr: u64,
}

/// A cross-channel queue pair that is connected to itself, with a completion queue that nobody polls.
fn queue(end: &mut End, flags: QpFlags, blocks: u32) -> Result<Queue, Error> {
    let cq = end.nic.create_cq(16)?;
    end.nic.ignore_overrun(cq)?;
    let mut init = QpInit { send_cq: Some(cq), recv_cq: Some(cq), ..end.init };
    init.caps.max_send_wr = blocks;
    let qp = end.nic.create_qp_with(&init, flags)?;
    let before = core::mem::replace(&mut end.qp, qp);
    let name = end.name()?;
    end.connect(name)?;
    end.qp = before;
    let memory = end.nic.send_queue_memory(qp)?;
    let (addr, len) = (memory.addr(), memory.len() as u64);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let init = MrInit { pd: init.pd.ok_or(Error::NoSuchObject)?, addr, len, iova: addr, access };
    // SAFETY: a queue's memory is never unmapped, and there is no reference to it.
    let code = unsafe { end.nic.memory().reg_mr(&init) }?;
    Ok(Queue { qp, cq, number: name.1, code, addr })
}

impl Queue {
    fn at(&self, block: u32, byte: u32) -> u64 {
        self.addr + u64::from(64 * block + byte)
    }

    fn sge(&self, block: u32, byte: u32, len: u32) -> Sge {
        Sge { addr: self.at(block, byte), len, lkey: self.code.lkey }
    }
}

const SIGNALED: u8 = 8;

/// A WQE of one block.
fn wqe(op: WqeOp, segments: &[[u8; 16]], flags: u8) -> [u8; 64] {
    let mut block = [0; 64];
    (block[3], block[7], block[11]) = (op as u8, 1 + segments.len() as u8, flags);
    for (at, segment) in segments.iter().enumerate() {
        block[16 * (at + 1)..16 * (at + 2)].copy_from_slice(segment);
    }
    block
}

fn segment(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
}

fn remote((addr, rkey): (u64, Key)) -> [u8; 16] {
    segment(addr, u64::from(rkey.0) << 32)
}

fn data(sge: Sge) -> [u8; 16] {
    segment(u64::from(sge.len) << 32 | u64::from(sge.lkey.0), sge.addr)
}

/// The first 8 bytes of a control segment, as an atomic sees them: operation, operand and segments.
fn control(op: WqeOp, operand: u64, segments: u8) -> u64 {
    let [_, _, a, b, c, d, e, f] = operand.to_be_bytes();
    u64::from_ne_bytes([a, b, c, op as u8, d, e, f, segments])
}

fn with_control(mut wqe: [u8; 64], control: u64) -> [u8; 64] {
    wqe[..8].copy_from_slice(&control.to_ne_bytes());
    wqe
}

fn wait(cq: CqId, index: u32) -> [u8; 64] {
    wqe(WqeOp::Wait, &[segment(0, u64::from(index) << 32 | cq.index() as u64)], 0)
}

fn enable(target: &Queue, end: u32) -> [u8; 64] {
    wqe(WqeOp::SendEnable, &[segment(0, u64::from(end) << 32 | u64::from(target.number.get()))], 0)
}

fn load(nic: &mut Nic, queue: &Queue, from: u32, code: &[[u8; 64]]) -> Result<(), Error> {
    let memory = nic.send_queue_memory(queue.qp)?;
    let blocks = memory.len() / 64;
    for (at, wqe) in code.iter().enumerate() {
        memory.write((from as usize + at) % blocks * 64, wqe);
    }
    Ok(())
}

/// Conditions posted at a time.
const BATCH: u32 = 16;
/// Blocks of one condition in the queue that tests.
const TEST: u32 = 4;

/// Conditions that hold, and those that do not, in turns.
fn conditions(options: &Options) -> Result<String, String> {
    let count = options.get("count", 20_000u32)?.div_ceil(BATCH) * BATCH;
    let mut end = End::new(1, false, QpFlags::empty()).map_err(said)?;
    let tests = queue(&mut end, QpFlags::CROSS_CHANNEL, 4 * BATCH * TEST).map_err(said)?;
    let acts = queue(&mut end, QpFlags::MANAGED_SEND, 4 * BATCH).map_err(said)?;
    let (base, mr) = (end.region.addr(), end.mr);
    let counter = (base + 64, mr.rkey);
    let spare = Sge { addr: base, len: 8, lkey: mr.lkey };
    // What holds adds one.
    let act = wqe(WqeOp::Nop, &[remote(counter), segment(1, 0), data(spare)], SIGNALED);
    let mut out = TxFrame::default();
    let begun = now();
    let mut done = 0;
    while done < count {
        let mut code = [[0; 64]; (BATCH * TEST) as usize];
        let mut actions = [[0; 64]; BATCH as usize];
        for at in 0..BATCH {
            let number = done + at;
            let first = (at * TEST) as usize;
            actions[at as usize] = with_control(act, control(WqeOp::Nop, u64::from(number) + 7, 4));
            let wanted = if number.is_multiple_of(2) { number + 7 } else { 0 };
            let (old, new) = (control(WqeOp::Nop, wanted.into(), 4), control(WqeOp::FetchAdd, 0, 4));
            let at_act = (acts.at(number % (4 * BATCH), 0), acts.code.rkey);
            let swap = [remote(at_act), segment(new, old), data(spare)];
            code[first] = wqe(WqeOp::CompareSwap, &swap, SIGNALED);
            code[first + 1] = wait(tests.cq, number);
            code[first + 2] = enable(&acts, number + 1);
            code[first + 3] = wait(acts.cq, number);
        }
        load(&mut end.nic, &acts, done, &actions).map_err(said)?;
        load(&mut end.nic, &tests, done * TEST, &code).map_err(said)?;
        done += BATCH;
        end.nic.on_doorbell(NOW, acts.qp, done).map_err(said)?;
        end.nic.on_doorbell(NOW, tests.qp, done * TEST).map_err(said)?;
        while layer_next_frame(&mut end, &mut out) || end.nic.has_work() {}
    }
    let took = begun.elapsed();
    let held = end.region.word(64);
    if held != u64::from(count / 2) {
        return Err(format!("chain-if: {held} conditions of {count} held"));
    }
    Ok(report(took, count))
}

/// A ring of two laps that goes round until so many are done.
fn laps(options: &Options) -> Result<String, String> {
    let count = options.get("count", 20_000u32)?;
    let mut end = End::new(1, false, QpFlags::empty()).map_err(said)?;
    let ring = queue(&mut end, QpFlags::MANAGED_SEND, 32).map_err(said)?;
    let starter = queue(&mut end, QpFlags::CROSS_CHANNEL, 4).map_err(said)?;
    let (base, mr) = (end.region.addr(), end.mr);
    let spare = Sge { addr: base, len: 8, lkey: mr.lkey };
    let (counter, lanes) = (64, 72);
    let blocks = 16;
    end.region.set_word(lanes, u64::from(2 * blocks) << 48);
    let at = |offset: usize| (base + offset as u64, mr.rkey);
    let add = |offset, value| wqe(WqeOp::FetchAdd, &[remote(at(offset)), segment(value, 0), data(spare)], 0);
    let mut code = Vec::new();
    for lap in 0..2 {
        let (start, other) = ((blocks * lap) as usize, blocks * (1 - lap));
        // While it is no WRITE, the loop goes on.
        let act = wqe(WqeOp::Nop, &[remote(at(counter)), data(spare)], 0);
        code.push(with_control(act, control(WqeOp::Nop, 5, 3)));
        code.push(add(counter, 1));
        code.push(add(lanes, (u64::from(blocks) << 48) + 1));
        let to_wait = (0..3).map(|byte| (lanes + byte as usize, ring.sge(other + 14, 16 + 11 - byte, 1)));
        let to_enable =
            (0..2).map(|byte| (lanes + 6 + byte as usize, ring.sge(other + 15, 16 + 11 - byte, 1)));
        for (from, to) in to_wait.chain(to_enable) {
            code.push(wqe(WqeOp::Read, &[remote(at(from)), data(to)], 0));
        }
        let (old, new) = (control(WqeOp::Nop, 4, 3), control(WqeOp::Write, 0, 3));
        let test = [remote((ring.at(other, 0), ring.code.rkey)), segment(new, old), data(spare)];
        code.push(wqe(WqeOp::CompareSwap, &test, SIGNALED));
        code.resize(start + blocks as usize - 2, wqe(WqeOp::Nop, &[], 0));
        code.push(wait(ring.cq, lap));
        code.push(enable(&ring, (lap + 2) * blocks));
    }
    load(&mut end.nic, &ring, 0, &code).map_err(said)?;
    end.nic.on_doorbell(NOW, ring.qp, 2 * blocks).map_err(said)?;
    load(&mut end.nic, &starter, 0, &[enable(&ring, blocks)]).map_err(said)?;
    let mut out = TxFrame::default();
    let begun = now();
    end.nic.on_doorbell(NOW, starter.qp, 1).map_err(said)?;
    let mut done = 0;
    while done < u64::from(count) {
        if layer_next_frame(&mut end, &mut out) || !end.nic.has_work() {
            return Err(format!("chain-loop: it stopped after {done} laps"));
        }
        done = end.region.word(counter);
    }
    Ok(report(begun.elapsed(), done as u32))
}
