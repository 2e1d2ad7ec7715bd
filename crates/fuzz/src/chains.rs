//! WQEs that a program has written itself, into queues that order each other: an input is the memory of three
//! send queues, and how far their doorbells are rung. Whatever it says, the NIC goes on: each WQE ends, waits
//! for something, or fails its queue pair.

use crate::{Seen, Target};
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Psn};
use std::collections::BTreeMap;

#[path = "../../nic/tests/world/mod.rs"]
mod world;
use world::*;

/// Blocks of each queue.
const BLOCKS: usize = 8;
const BLOCK: usize = 64;
/// Bytes that a queue has in an input: its doorbell, and its blocks.
const PART: usize = 1 + BLOCKS * BLOCK;
/// Stand in an input for what differs from run to run, in the fields that hold it.
const KEY: u32 = 0x11;
const DATA: u64 = 0x1000;
const CODE: u64 = 0x2000;
/// Queues by the number that stands for them: one that is rung, and two that are enabled.
const QUEUES: usize = 3;
/// Where nobody may write.
const GUARDED: usize = 256;
/// Calls into the NIC: what goes on after them goes on for ever.
const CALLS: usize = 3;

/// WQEs in cross-channel queues.
pub const CHAINS: Target = Target { name: "nic_chains", run, seeds, expected, bounded: 2_000 };

struct Scene {
    w: World,
    cq: CqId,
    qps: Vec<QpId>,
    code: Vec<MrInfo>,
    data: Memory,
    guarded: Memory,
}

impl Scene {
    fn new() -> Scene {
        let mut w = World::with_config(1, 1, |config| config.watch_chains = true);
        let data = w.memory(0, 4096);
        let guarded = w.memory_with(0, GUARDED, Access::LOCAL_WRITE);
        guarded.write(0, &[0x5a; GUARDED]);
        let node = &mut w.nodes[0];
        let cq = node.nic.create_cq(16).expect("room for a completion queue");
        node.nic.ignore_overrun(cq).expect("it was just made");
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let (mut qps, mut code) = (Vec::new(), Vec::new());
        for number in 0..QUEUES {
            let init = QpInit::rc(node.pd, cq, caps);
            let managed = QpFlags::MANAGED_SEND | QpFlags::MANAGED_RECV;
            let flags = if number == 0 { QpFlags::CROSS_CHANNEL } else { managed };
            qps.push(node.nic.create_qp_with(&init, flags).expect("room for a queue pair"));
        }
        for qp in &qps {
            let same = Psn::new(100);
            w.connect((0, *qp), (0, *qp), &Link { psn: (same, same), timeout: 1, ..Link::default() });
            w.recv(0, *qp, 0, &[data.sge(2048, 64)]);
            let node = &mut w.nodes[0];
            let queue = node.nic.send_queue_memory(*qp).expect("a queue of this node");
            let (addr, len) = (queue.addr(), queue.len() as u64);
            let access =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let init = MrInit { pd: node.pd, addr, len, iova: addr, access };
            // SAFETY: the queue's memory is never unmapped, and no reference to it exists.
            code.push(unsafe { node.nic.memory().reg_mr(&init) }.expect("room for a region"));
        }
        Scene { w, cq, qps, code, data, guarded }
    }

    fn code_at(&mut self, queue: usize) -> u64 {
        let nic = &mut self.w.nodes[0].nic;
        nic.send_queue_memory(self.qps[queue]).expect("a queue of this node").addr()
    }

    /// Puts addresses, keys and numbers where small ones stand for them. Other words stay as they are.
    fn resolve(&mut self, block: &mut [u8]) {
        let op = block[3];
        for segment in (16..BLOCK).step_by(16) {
            let word = |at: usize, block: &[u8]| {
                u32::from_be_bytes(block[at..at + 4].try_into().unwrap_or_default())
            };
            let (first, second) = (word(segment, block), word(segment + 4, block));
            let (third, last) = (word(segment + 8, block), word(segment + 12, block));
            let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
            // An address with its key, as a peer's memory and as a data entry have them.
            let remote = u64::from(first) << 32 | u64::from(second);
            if let Some((addr, key)) = self.place(remote, third, false) {
                put(segment, &addr.to_be_bytes());
                put(segment + 8, &key.to_be_bytes());
            }
            let local = u64::from(third) << 32 | u64::from(last);
            if let Some((addr, key)) = self.place(local, second, true) {
                put(segment + 4, &key.to_be_bytes());
                put(segment + 8, &addr.to_be_bytes());
            }
            let orders = [WqeOp::SendEnable as u8, WqeOp::RecvEnable as u8].contains(&op);
            if orders && (last as usize) < QUEUES && segment == 16 {
                let number = self.w.nodes[0].nic.qp_number(self.qps[last as usize]);
                put(segment + 12, &number.map_or(0, |number| number.get()).to_be_bytes());
            }
            if op == WqeOp::Wait as u8 && last == 0 && segment == 16 {
                put(segment + 12, &(self.cq.index() as u32).to_be_bytes());
            }
        }
    }

    /// What stands for an address: in the data, or in a queue.
    fn place(&mut self, addr: u64, key: u32, local: bool) -> Option<(u64, u32)> {
        if key != KEY {
            return None;
        }
        if (DATA..DATA + 4096).contains(&addr) {
            let key = if local { self.data.mr.lkey } else { self.data.mr.rkey };
            return Some((self.data.addr() + (addr - DATA), key.0));
        }
        let offset = addr.checked_sub(CODE)? as usize;
        let queue = offset / (BLOCKS * BLOCK);
        let mr = *self.code.get(queue)?;
        let key = if local { mr.lkey } else { mr.rkey };
        Some((self.code_at(queue) + (offset % (BLOCKS * BLOCK)) as u64, key.0))
    }
}

fn run(input: &[u8], seen: &mut Seen) {
    let mut scene = Scene::new();
    for queue in (0..QUEUES).rev() {
        let part = input.get(queue * PART..).unwrap_or_default();
        let Some((doorbell, bytes)) = part.split_first() else { continue };
        for (at, bytes) in bytes.chunks(BLOCK).take(BLOCKS).enumerate() {
            let mut block = [0; BLOCK];
            block[..bytes.len()].copy_from_slice(bytes);
            scene.resolve(&mut block);
            let nic = &mut scene.w.nodes[0].nic;
            let memory = nic.send_queue_memory(scene.qps[queue]).expect("a queue of this node");
            memory.write(at * BLOCK, &block);
        }
        let posted = u32::from(doorbell % (BLOCKS as u8 + 1));
        let now = scene.w.now;
        scene.w.nodes[0].nic.on_doorbell(now, scene.qps[queue], posted).expect("it fits the ring");
    }
    let mut before = BTreeMap::new();
    for _ in 0..CALLS {
        scene.w.run(Duration::from_us(50));
        let nic = &mut scene.w.nodes[0].nic;
        nic.check_invariants();
        let mut now = Vec::new();
        for qp in &scene.qps {
            now.push(nic.live_queue(*qp).expect("a queue of this node"));
        }
        // A queue that has work and no reason to wait goes on, or has ended.
        for (at, live) in now.iter().enumerate() {
            let state = nic.query_qp(scene.qps[at]).expect("a queue of this node").0.state;
            let stands = before.insert(at, live.next) == Some(live.next);
            if stands && state == QpState::Rts && live.next != live.enabled {
                let known = live.waits.is_some() || live.in_flight > 0;
                assert!(known, "queue {at} stands still and says not why: {live:?}");
            }
        }
        while let Some(event) = nic.next_chain_event() {
            match event.what {
                ChainStep::Executed { op, .. } => seen.accept(format!("{op:?}")),
                ChainStep::Refused { .. } => seen.accept("refused"),
                ChainStep::Changed(_) => seen.accept("changed"),
                ChainStep::Waiting { .. } => seen.accept("waits"),
                _ => {}
            }
        }
        if nic.has_work() {
            seen.accept("goes on");
        }
        while let Ok(Some(completion)) = nic.poll_cq(scene.cq) {
            seen.accept(format!("{:?}", completion.status));
        }
        while nic.next_event().is_some() {}
        while nic.next_explanation().is_some() {}
    }
    assert_eq!(scene.guarded.read(0, GUARDED), [0x5a; GUARDED], "nobody has this key");
    for qp in scene.qps {
        scene.w.nodes[0].nic.destroy_qp(qp).expect("it can go at any time");
    }
    let now = scene.w.now;
    assert!(!scene.w.nodes[0].nic.next_frame(now, &mut TxFrame::default()));
    scene.w.nodes[0].nic.destroy_cq(scene.cq).expect("nobody waits any more");
}

/// A WQE of one block.
fn wqe(op: WqeOp, segments: &[[u32; 4]], flags: u8) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[3] = op as u8;
    block[7] = 1 + segments.len() as u8;
    block[11] = flags;
    for (at, word) in segments.iter().flatten().enumerate() {
        block[16 + 4 * at..20 + 4 * at].copy_from_slice(&word.to_be_bytes());
    }
    block
}

fn queue(index: u32, number: u32) -> [u32; 4] {
    [0, 0, index, number]
}

fn remote(addr: u64) -> [u32; 4] {
    [(addr >> 32) as u32, addr as u32, KEY, 0]
}

fn data(len: u32, addr: u64) -> [u32; 4] {
    [len, KEY, (addr >> 32) as u32, addr as u32]
}

/// An input of these queues.
fn input(queues: [&[Vec<u8>]; QUEUES]) -> Vec<u8> {
    let mut out = Vec::new();
    for wqes in queues {
        out.push(wqes.len() as u8);
        out.extend(wqes.concat());
        out.resize(out.len() + (BLOCKS - wqes.len()) * BLOCK, 0);
    }
    out
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    use WqeOp as O;
    let done = 8;
    let enable = |end, number| wqe(O::SendEnable, &[queue(end, number)], 0);
    let wait = |index| wqe(O::Wait, &[queue(index, 0)], 0);
    let code = |of: usize, block: usize, byte: usize| CODE + ((of * BLOCKS + block) * BLOCK + byte) as u64;
    let swap = |at| wqe(O::CompareSwap, &[remote(at), [0, 0x0800_0000, 0, 0], data(8, DATA)], done);
    let write = |from, to| wqe(O::Write, &[remote(to), data(8, from)], done);
    let read = |from, to| wqe(O::Read, &[remote(from), data(8, to)], done);
    let nop = || wqe(O::Nop, &[], done);
    let lap: Vec<Vec<u8>> = (1..=8).map(|at| enable(at << 13, 1)).collect();
    let other: Vec<Vec<u8>> = (1..=8).map(|at| enable(at << 13, 2)).collect();
    let all = [
        nop(),
        write(DATA, DATA + 64),
        read(DATA, DATA + 8),
        wqe(O::FetchAdd, &[remote(DATA + 16), [0, 1, 0, 0], data(8, DATA + 24)], done | 0x80),
        wqe(O::Send, &[data(16, DATA)], done),
        wqe(O::RecvEnable, &[queue(1, 1)], done),
        wqe(O::WriteImm, &[remote(DATA + 32), data(8, DATA)], done),
        nop(),
    ];
    let list = [
        ("conditional", input([&[swap(code(1, 0, 0)), wait(0), enable(1, 1)], &[nop()], &[]])),
        ("changes-its-own-next", input([&[write(DATA, code(0, 2, 0)), wait(0), nop()], &[], &[]])),
        ("fills-in-an-address", input([&[read(DATA, code(1, 0, 16)), wait(0), enable(1, 1)], &all, &[]])),
        ("enables-for-ever", input([&[enable(8, 1)], &lap, &[]])),
        ("enable-each-other", input([&[enable(8, 1), enable(8, 2)], &other, &lap])),
        // Found by libFuzzer: sixteen steps a lap, of which every eighth was an ENABLE's effect, which ended
        // no turn.
        ("enable-each-other-but-once", {
            let mut once = other.clone();
            once[6] = nop();
            input([&[enable(8, 1), enable(8, 2)], &once, &lap])
        }),
        ("waits-for-itself", input([&[wait(0), nop()], &[], &[]])),
        ("each-operation", input([&all, &[], &[]])),
        ("each-operation-round-and-round", input([&[enable(0x4000, 1)], &all, &[]])),
        ("sends-to-a-managed-receive", {
            let send = wqe(O::SendImm, &[data(16, DATA)], done);
            input([&[wqe(O::RecvEnable, &[queue(1, 1)], 0), enable(1, 1)], &[send], &[]])
        }),
        ("enables-what-was-never-written", input([&[enable(5, 2)], &[], &[]])),
        ("longer-than-its-ring", {
            let mut long = wqe(O::Nop, &[], done);
            long[7] = 0x3f;
            input([&[enable(0x4000, 1)], &[nop(), long], &[]])
        }),
        ("masked", {
            let words = [0, 1, 0, 2];
            let mut block = wqe(O::MaskedFetchAdd, &[remote(DATA), words, data(8, DATA + 8)], done);
            block[0] = 9;
            input([&[block], &[], &[]])
        }),
    ];
    list.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
}

fn expected() -> Vec<String> {
    let all = [
        "Nop",
        "Wait",
        "SendEnable",
        "RecvEnable",
        "Write",
        "WriteImm",
        "Read",
        "CompareSwap",
        "FetchAdd",
        "Send",
        "SendImm",
        "refused",
        "changed",
        "waits",
        "goes on",
        "Success",
        "LocalQpOperation",
        "WorkRequestFlushed",
    ];
    all.map(str::to_owned).to_vec()
}
