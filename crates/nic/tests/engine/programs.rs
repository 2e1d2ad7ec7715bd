//! Programs in the manner of RedN (NSDI 2022): conditions, breaks and recycled loops made of WQEs that change
//! WQEs. All of it runs in one NIC, on queue pairs that are connected to themselves.

use super::bench::*;
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Key};

/// A NIC with cross-channel queues of a size, each with a completion queue of its own.
struct Program {
    b: Bench,
}

/// A queue of a program.
#[derive(Clone, Copy)]
struct Queue {
    qp: QpId,
    cq: CqId,
    number: u32,
    code: (u64, Key, Key),
}

impl Queue {
    /// Where a byte of a block is, for others' verbs.
    fn at(&self, block: usize, byte: usize) -> (u64, Key) {
        (self.code.0 + 64 * block as u64 + byte as u64, self.code.2)
    }

    /// The same, for a scatter list.
    fn sge(&self, block: usize, byte: usize, len: u32) -> Sge {
        Sge { addr: self.at(block, byte).0, len, lkey: self.code.1 }
    }
}

impl Program {
    fn new(seed: u64, prefetch: u8) -> Program {
        Program { b: Bench::with_config(seed, |config| config.prefetch = (prefetch, prefetch)) }
    }

    fn queue(&mut self, flags: QpFlags, blocks: u32) -> Queue {
        let cq = self.b.unpolled_cq();
        let caps = QpCaps { max_send_wr: blocks, ..SMALL };
        let qp = self.b.own(flags, caps, cq);
        let (addr, mr) = self.b.code(qp);
        Queue { qp, cq, number: self.b.number(qp), code: (addr, mr.lkey, mr.rkey) }
    }

    fn put(&mut self, queue: Queue, wqes: &[[u8; 64]]) {
        for (at, wqe) in wqes.iter().enumerate() {
            self.b.put(queue.qp, at, wqe);
        }
    }

    /// One call into the NIC does all that there is to do.
    fn run(&mut self) {
        self.b.w.run(Duration::from_ms(1));
        self.b.w.nodes[0].nic.check_invariants();
    }

    fn produced(&self, queue: Queue) -> u64 {
        self.b.w.nodes[0].nic.cq_produced(queue.cq).unwrap()
    }
}

fn wait(on: Queue, index: u32) -> [u8; 64] {
    wqe(WqeOp::Wait, &[queue(index, on.cq.index() as u32)], 0)
}

fn enable(target: Queue, end: u32) -> [u8; 64] {
    wqe(WqeOp::SendEnable, &[queue(end, target.number)], 0)
}

/// The first 8 bytes of a control segment, as an atomic sees them: opcode, operand and segments.
fn control(op: WqeOp, operand: u64, segments: u8) -> u64 {
    let k = operand.to_be_bytes();
    u64::from_ne_bytes([k[2], k[3], k[4], op as u8, k[5], k[6], k[7], segments])
}

fn compare_swap((addr, rkey): (u64, Key), compare: u64, swap: u64, into: Sge) -> [u8; 64] {
    wqe(WqeOp::CompareSwap, &[words(addr, rkey.0, 0), longs(swap, compare), data(into)], SIGNALED)
}

fn longs(a: u64, b: u64) -> [u8; 16] {
    words(a, (b >> 32) as u32, b as u32)
}

/// A WQE with an operand in its control segment.
fn with_control(mut wqe: [u8; 64], control: u64) -> [u8; 64] {
    wqe[..8].copy_from_slice(&control.to_ne_bytes());
    wqe
}

/// `if x == y`: the conditional WQE holds x, the CAS compares with y. Whether the conditional WRITE was done.
fn condition(prefetch: u8, managed: bool, x: u64, y: u64) -> bool {
    let mut p = Program::new(1, prefetch);
    let worker = p.queue(QpFlags::CROSS_CHANNEL, 8);
    let flags = if managed { QpFlags::MANAGED_SEND } else { QpFlags::CROSS_CHANNEL };
    let reply = p.queue(flags, 4);
    p.b.near.write(0, &1u64.to_ne_bytes());
    let act = write(p.b.near.at(8), p.b.near.sge(0, 8));
    p.put(reply, &[with_control(act, control(WqeOp::Nop, x, 3))]);
    p.b.ring(reply.qp, 1);
    if !managed {
        // The conditional WQE is in a queue that the doorbell lets go on: it is fetched, and waits.
        p.put(reply, &[wait(worker, 0), with_control(act, control(WqeOp::Nop, x, 3))]);
        p.b.ring(reply.qp, 2);
        p.run();
    }
    let at = reply.at(if managed { 0 } else { 1 }, 0);
    let (old, new) = (control(WqeOp::Nop, y, 3), control(WqeOp::Write, 0, 3));
    let dump = p.b.near.sge(64, 8);
    p.put(worker, &[compare_swap(at, old, new, dump), wait(worker, 0), enable(reply, 1)]);
    p.b.ring(worker.qp, if managed { 3 } else { 2 });
    p.run();
    p.b.near.word(8) == 1
}

#[test]
fn a_condition_compares_each_of_its_48_bits() {
    let x = 0x1234_5678_9abc;
    assert!(condition(4, true, x, x));
    for bit in 0..48 {
        assert!(!condition(4, true, x, x ^ 1 << bit), "bit {bit}");
        assert!(condition(4, true, x ^ 1 << bit, x ^ 1 << bit), "bit {bit}");
    }
    // In an unmanaged queue the NOP was fetched before the CAS made it a WRITE: completion order is not
    // enough.
    for prefetch in [2, 8, 64] {
        assert!(!condition(prefetch, false, x, x));
    }
}

/// Two CASes of 48 bits each: the first one, if it finds its bits, turns the second one on.
#[test]
fn wide_operands_are_compared_by_a_chain_of_swaps() {
    for (low, high, hit) in [(1u64 << 47, 5u64, true), (1 << 47, 4, false), (0, 5, false), (0, 0, false)] {
        let mut p = Program::new(2, 4);
        let worker = p.queue(QpFlags::CROSS_CHANNEL, 8);
        let second = p.queue(QpFlags::MANAGED_SEND, 4);
        let reply = p.queue(QpFlags::MANAGED_SEND, 4);
        p.b.near.write(0, &1u64.to_ne_bytes());
        let act = write(p.b.near.at(8), p.b.near.sge(0, 8));
        p.put(reply, &[with_control(act, control(WqeOp::Nop, 5, 3))]);
        let dump = p.b.near.sge(64, 8);
        let on =
            compare_swap(reply.at(0, 0), control(WqeOp::Nop, high, 3), control(WqeOp::Write, 0, 3), dump);
        p.put(
            second,
            &[with_control(on, control(WqeOp::Nop, 1 << 47, 4)), wait(second, 0), enable(reply, 1)],
        );
        let first = compare_swap(
            second.at(0, 0),
            control(WqeOp::Nop, low, 4),
            control(WqeOp::CompareSwap, 0, 4),
            dump,
        );
        p.put(worker, &[first, wait(worker, 0), enable(second, 3)]);
        for (queue, blocks) in [(reply, 1), (second, 3), (worker, 3)] {
            p.b.ring(queue.qp, blocks);
        }
        p.run();
        assert_eq!(p.b.near.word(8) == 1, hit, "{low:x} {high}");
    }
}

/// A break is one WRITE of 12 bytes into the reply's control segment: it becomes a WRITE, and completes no
/// more. What would come after it waits for that completion.
#[test]
fn a_break_sends_the_reply_and_ends_the_loop() {
    let (iterations, found) = (5usize, 2usize);
    let mut p = Program::new(3, 4);
    let worker = p.queue(QpFlags::MANAGED_SEND, 64);
    let reply = p.queue(QpFlags::MANAGED_SEND, 8);
    let starter = p.queue(QpFlags::CROSS_CHANNEL, 4);
    p.b.near.write(0, &7u64.to_ne_bytes());
    // What the break writes: opcode WRITE, no completion.
    let mut head = [0; 16];
    head[..8].copy_from_slice(&control(WqeOp::Write, 0, 3).to_ne_bytes());
    p.b.near.write(128, &head);
    let mut chain = Vec::new();
    for turn in 0..iterations {
        let target = p.b.near.at(8 + 8 * turn);
        let act = write(target, p.b.near.sge(0, 8));
        p.b.put(reply.qp, turn, &with_control(act, control(WqeOp::Nop, 0, 3)));
        let operand = if turn == found { 9 } else { turn as u64 + 100 };
        let brk = chain.len() + 3;
        // The conditional BREAK, its test, and the order between them.
        chain.push(compare_swap(
            worker.at(brk, 0),
            control(WqeOp::Nop, 9, 3),
            control(WqeOp::Write, 0, 3),
            p.b.near.sge(64, 8),
        ));
        chain.push(wait(worker, 2 * turn as u32));
        chain.push(enable(worker, brk as u32 + 5));
        let break_to = write(reply.at(turn, 0), p.b.near.sge(128, 12));
        chain.push(with_control(break_to, control(WqeOp::Nop, operand, 3)));
        chain.push(wait(worker, 2 * turn as u32 + 1));
        chain.push(enable(reply, turn as u32 + 1));
        // The next turn begins when the reply has completed, which a reply that was sent never does.
        chain.push(wait(reply, turn as u32));
        chain.push(enable(worker, chain.len() as u32 + 4));
    }
    p.put(worker, &chain);
    p.b.ring(worker.qp, chain.len() as u32);
    p.b.ring(reply.qp, iterations as u32);
    p.put(starter, &[enable(worker, 3)]);
    p.b.ring(starter.qp, 1);
    p.run();
    let replies: Vec<u64> = (0..iterations).map(|turn| p.b.near.word(8 + 8 * turn)).collect();
    assert_eq!(replies, [0, 0, 7, 0, 0]);
    assert_eq!(p.produced(reply), found as u64, "the reply itself has none");
    // Neither fetched nor executed: later turns.
    let live = p.b.w.nodes[0].nic.live_queue(worker.qp).unwrap();
    assert_eq!(live.next, 8 * found as u32 + 6);
    assert!(live.cached <= 8 * (found as u32 + 1), "{live:?}");
    let waits = LiveWait::Completion { cq: reply.cq, index: found as u32, produced: found as u64 };
    assert_eq!(live.waits, Some(waits), "what is stuck says what it waits for");
}

/// Blocks of one of the two bodies of a recycled ring.
const BODY: u32 = 16;

/// A ring that enables itself, round and round, for ever: how often it went on until `laps` of its two bodies
/// were done. A body counts, moves two lanes of indices on by one ADD, READs them byte by byte in reverse
/// into the WAIT and the ENABLE of the *other* body, waits for that, and enables the other body. Nobody else
/// restores anything.
fn recycled(prefetch: u8, bodies: u64) -> u64 {
    let mut p = Program::new(4, prefetch);
    let ring = p.queue(QpFlags::MANAGED_SEND, 2 * BODY);
    let (counter, lanes, dump) = (0, 256, 512);
    // Body k waits for completion k, and enables up to the end of body k + 1.
    p.b.near.write(lanes, &(u64::from(2 * BODY) << 48).to_ne_bytes());
    let near = &p.b.near;
    let quiet = |mut wqe: [u8; 64]| {
        wqe[11] = 0;
        wqe
    };
    let add = |at: usize, value: u64| quiet(fetch_add(near.at(at), value, near.sge(dump, 8)));
    let mut code = Vec::new();
    for body in 0..2 {
        let start = (BODY * body) as usize;
        let other = (BODY * (1 - body)) as usize;
        code.push(add(counter, 1));
        code.push(add(lanes, (u64::from(BODY) << 48) + 1));
        let to_wait = (0..3).map(|byte| (lanes + byte, ring.sge(other + 14, 16 + 11 - byte, 1)));
        let to_enable = (0..2).map(|byte| (lanes + 6 + byte, ring.sge(other + 15, 16 + 11 - byte, 1)));
        for (from, to) in to_wait.chain(to_enable) {
            let (va, rkey) = near.at(from);
            let signaled = if code.len() == start + 6 { SIGNALED } else { 0 };
            code.push(wqe(WqeOp::Read, &[words(va, rkey.0, 0), data(to)], signaled));
        }
        code.resize(start + BODY as usize - 2, wqe(WqeOp::Nop, &[], 0));
        code.push(wait(ring, body));
        code.push(enable(ring, (body + 2) * BODY));
    }
    p.put(ring, &code);
    let starter = p.queue(QpFlags::CROSS_CHANNEL, 4);
    p.b.ring(ring.qp, 2 * BODY);
    p.put(starter, &[enable(ring, BODY)]);
    p.b.ring(starter.qp, 1);
    let mut out = TxFrame::default();
    loop {
        let now = p.b.w.now;
        let nic = &mut p.b.w.nodes[0].nic;
        assert!(!nic.next_frame(now, &mut out), "all of it stays in the NIC");
        let done = p.b.near.word(counter);
        if done >= bodies || !nic.has_work() {
            nic.check_invariants();
            // The call may have ended between a body's two ADDs.
            let lanes_of = |bodies: u64| ((u64::from(BODY) * (bodies + 2)) & 0xffff) << 48 | bodies;
            let index = p.b.near.word(lanes);
            let moved = index == lanes_of(done) || index == lanes_of(done - 1);
            assert!(moved, "the lanes have carried into each other: {index:x} after {done}");
            return done;
        }
    }
}

/// Indices past 2^8 and 2^16: 10,000 bodies are 160,000 blocks.
#[test]
fn a_recycled_ring_keeps_its_own_indices() {
    for prefetch in [1, 2, 3, 4, 8, 16, 64] {
        let done = recycled(prefetch, 10_000);
        assert!((10_000..12_000).contains(&done), "{prefetch}: {done}");
    }
}

/// Two million bodies, a million laps: 2^25 blocks, and the WAITs' index past 2^20.
#[test]
#[ignore = "takes seconds; `make test-long` runs it"]
fn a_recycled_ring_goes_a_million_laps() {
    assert!(recycled(8, 2_000_000) >= 2_000_000);
}
