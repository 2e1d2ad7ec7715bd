//! The NIC's way in for RoCEv2: frames to queue pairs that are connected, that have requests under way, and
//! whose peer is silent but for what the input says.
//!
//! The corpus is recorded from conversations between two NICs. What differs from run to run (addresses, keys,
//! queue pair numbers) stands in an input by small numbers, and is put in when the frame is given to the NIC;
//! any other number there goes through as it is.

use crate::frames::{Step, append, steps};
use crate::tested::world::*;
use crate::tested::*;
use crate::{Seen, Target};
use adverb_nic::*;
use adverb_wire::packet::Flow;
use adverb_wire::{AtomicEth, Bth, Duration, Gid, Key, Opcode, Operation, Packet, QpNumber, Service};
use std::net::Ipv4Addr;

/// Stands in an input for a window over the tested node's region.
const WINDOW_KEY: u32 = 0x33;
/// Order of the queue pairs by the number that stands for them.
const TYPES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::Ud];

/// Two nodes with a pair of queue pairs of each type, and their memory.
struct Scene {
    w: World,
    qps: Vec<(QpId, QpId)>,
    memory: [Memory; 2],
    guarded: Memory,
    window: Key,
}

impl Scene {
    fn new(irn: bool) -> Scene {
        let mut w = World::with_config(2, 1, |config| {
            if irn {
                config.irn = Some(IrnConfig::paper());
            }
        });
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let memory = [w.memory(PEER, LEN), w.memory_with(TESTED, LEN, access)];
        let guarded = guarded(&mut w);
        let link = Link { mtu: MTU, timeout: 14, ..Link::default() };
        let qps: Vec<_> = TYPES.into_iter().map(|kind| w.pair(kind, CAPS, &link)).collect();
        for (at_peer, at_tested) in &qps {
            for i in 0..16 {
                w.recv(PEER, *at_peer, i, &[memory[PEER].sge(0, 1024)]);
                w.recv(TESTED, *at_tested, i, &[memory[TESTED].sge(0, 1024)]);
            }
        }
        let mut scene = Scene { w, qps, memory, guarded, window: Key(0) };
        scene.bind_window();
        scene
    }

    /// A window that a SEND may invalidate.
    fn bind_window(&mut self) {
        let (node, own) = (&mut self.w.nodes[TESTED], &self.memory[TESTED]);
        let mw = node.nic.memory().alloc_mw(node.pd, MwType::Two).expect("room for a window");
        self.window = Key(mw.rkey.0 & !0xff | 0x5a);
        let bind = SendOp::BindMw {
            mw: mw.id,
            rkey: self.window,
            lkey: own.mr.lkey,
            addr: own.addr(),
            len: 64,
            access: Access::REMOTE_WRITE,
        };
        let qp = self.qps[0].1;
        self.w.send(TESTED, qp, wr(99, bind, &[]));
        // A bind leaves no frame, and a hello that leaves before it is sent again.
        let now = self.w.now;
        for _ in 0..4 {
            self.w.nodes[TESTED].nic.next_frame(now, &mut TxFrame::default());
        }
        let bound = self.w.poll(TESTED).expect("the bind ends");
        assert_eq!(bound.status, Status::Success);
    }

    fn number(&self, node: usize, index: usize) -> QpNumber {
        let qp = if node == PEER { self.qps[index].0 } else { self.qps[index].1 };
        self.w.nodes[node].nic.qp_number(qp).expect("a queue pair of this node")
    }

    /// The request of an index, posted by one node to the other. False if it was refused.
    fn post(&mut self, node: usize, kind: usize, what: u8) -> bool {
        let other = 1 - node;
        let (own, theirs) = (&self.memory[node], &self.memory[other]);
        let (va, rkey) = theirs.at(0);
        let long = what >= 0x80;
        let len = if long { LONG } else { 64 };
        let op = match what & 0x7f {
            0 => SendOp::Send,
            1 => SendOp::SendImm(7),
            2 => SendOp::SendInv(self.window),
            3 => SendOp::Write(va, rkey),
            4 => SendOp::WriteImm(va, rkey, 8),
            5 => SendOp::Read(va, rkey),
            6 => SendOp::CompareSwap { addr: va, rkey, compare: 0, swap: 1 },
            7 => SendOp::FetchAdd { addr: va, rkey, add: 1 },
            0x10 => SendOp::MaskedFetchAdd { addr: va, rkey, add: 1, boundary: 1 << 31 },
            0x11 => SendOp::MaskedCompareSwap {
                addr: va,
                rkey,
                compare: 0,
                swap: 1,
                compare_mask: 0xff,
                swap_mask: 0xffff,
            },
            // A key that nobody gave out.
            _ => SendOp::Write(0x1000, Key(0x7777_7777)),
        };
        let len = if matches!(what & 0x7f, 6 | 7 | 0x10 | 0x11) { 8 } else { len };
        let sges = [own.sge(2048, len)];
        let ud = (TYPES[kind] == QpType::Ud).then(|| UdAddress {
            dgid: self.w.nodes[other].gid,
            qpn: self.number(other, kind),
            qkey: Link::default().qkey,
            traffic_class: 0,
            hop_limit: 0,
            path: PathId::DEFAULT,
        });
        let request = SendWr { ud, ..wr(u64::from(what), op, &sges) };
        let qp = if node == PEER { self.qps[kind].0 } else { self.qps[kind].1 };
        let now = self.w.now;
        self.w.nodes[node].nic.post_send(now, qp, &request).is_ok()
    }

    /// A packet of this run as it stands in an input.
    fn abstracted(&self, packet: &Packet) -> Packet {
        let mut p = *packet;
        if let Some(i) = (0..TYPES.len()).find(|i| self.number(TESTED, *i) == p.bth.dest_qp) {
            p.bth.dest_qp = QpNumber::new(i as u32);
        }
        for (va, key) in [(&mut p.reth.va, &mut p.reth.rkey), (&mut p.atomic.va, &mut p.atomic.rkey)] {
            for (memory, stands) in [(&self.memory[TESTED], OWN_KEY), (&self.memory[PEER], PEER_KEY)] {
                if *key == memory.mr.rkey && key.0 != 0 {
                    *va = va.wrapping_sub(memory.addr());
                    *key = Key(stands);
                }
            }
        }
        if p.invalidate == self.window.0 {
            p.invalidate = WINDOW_KEY;
        }
        p
    }

    /// The other way round.
    fn concrete(&self, mut p: Packet) -> Packet {
        let index = p.bth.dest_qp.get() as usize;
        if index < TYPES.len() {
            p.bth.dest_qp = self.number(TESTED, index);
        }
        for (va, key) in [(&mut p.reth.va, &mut p.reth.rkey), (&mut p.atomic.va, &mut p.atomic.rkey)] {
            for (memory, stands) in [(&self.memory[TESTED], OWN_KEY), (&self.memory[PEER], PEER_KEY)] {
                if key.0 == stands {
                    *va = va.wrapping_add(memory.addr());
                    *key = memory.mr.rkey;
                    break;
                }
            }
        }
        if p.invalidate == WINDOW_KEY {
            p.invalidate = self.window.0;
        }
        p
    }

    /// Packets that the tested NIC has refused, in whatever way.
    fn refused(&self) -> u64 {
        refused(&self.w, |name| {
            let sent =
                matches!(name, "sequence_naks_sent" | "rnr_naks_sent" | "error_naks_sent" | "early_refused");
            sent || name.starts_with("drop_") && name != "drop_tx_blocked"
        })
    }

    /// Gives one frame to the NIC; says by opcode if it was taken.
    fn deliver(&mut self, bytes: &[u8], seen: &mut Seen) {
        let Ok(parsed) = Packet::parse_bth(flow(&self.w), bytes) else { return };
        let packet = self.concrete(parsed.packet);
        let before = self.refused();
        let payload = &bytes[parsed.payload.clone()];
        let now = self.w.now;
        self.w.nodes[TESTED].nic.on_frame(now, &packet, &Payload::from_slice(payload));
        settle(&mut self.w);
        if self.refused() == before {
            seen.accept(format!("{:?}", packet.bth.opcode));
        }
    }
}

fn run(irn: bool, input: &[u8], seen: &mut Seen) {
    let mut scene = Scene::new(irn);
    settle(&mut scene.w);
    for step in steps(input) {
        match step {
            Step::Frame(bytes) => scene.deliver(bytes, seen),
            Step::Post([kind, what, ..]) => {
                scene.post(TESTED, *kind as usize % TYPES.len(), *what);
                settle(&mut scene.w);
            }
            Step::Wait([time, ..]) => wait(&mut scene.w, Duration::from_us(1 << (time % 20))),
            Step::Post(_) | Step::Wait(_) => {}
        }
        wait(&mut scene.w, LATENCY);
    }
    check_guarded(&scene.guarded);
}

/// What is recorded in one input: who posts what.
struct Conversation {
    name: &'static str,
    kind: usize,
    posts: &'static [(usize, u8)],
    /// Loses the tested node's packet of this number.
    lose: Option<u32>,
}

/// Between two NICs; the input has the peer's frames, and the tested node's posts where they were made.
fn record(irn: bool, conversation: &Conversation) -> Vec<u8> {
    let mut scene = Scene::new(irn);
    scene.w.keep_log = true;
    let mut input = Vec::new();
    scene.w.run(Duration::from_us(50));
    take_log(&mut scene, &mut input);
    for (node, what) in conversation.posts {
        lose(&mut scene.w, conversation.lose);
        assert!(scene.post(*node, conversation.kind, *what), "{}: {what:#x} is posted", conversation.name);
        if *node == TESTED {
            append(&mut input, Step::Post(&[conversation.kind as u8, *what]));
        }
        scene.w.run(Duration::from_us(60));
        take_log(&mut scene, &mut input);
    }
    input
}

/// Moves the peer's frames of the log into the input.
fn take_log(scene: &mut Scene, input: &mut Vec<u8>) {
    for (from, packet) in std::mem::take(&mut scene.w.log) {
        if from == PEER {
            append(input, Step::Frame(&with_zeros(&scene.abstracted(&packet))));
        }
    }
}

/// A packet with a payload of zeros.
fn with_zeros(packet: &Packet) -> Vec<u8> {
    bytes(packet, &vec![0; packet.payload_len as usize])
}

const fn of_peer(name: &'static str, kind: usize, posts: &'static [(usize, u8)]) -> Conversation {
    Conversation { name, kind, posts, lose: None }
}

/// Requests to the tested node, and answers to its own.
const RC: [Conversation; 11] = [
    of_peer("sends", 0, &[(PEER, 0), (PEER, 1), (PEER, LONG_BIT), (PEER, LONG_BIT | 1)]),
    of_peer("send-invalidate", 0, &[(PEER, 2)]),
    of_peer("send-long-invalidate", 0, &[(PEER, LONG_BIT | 2)]),
    of_peer("writes", 0, &[(PEER, 3), (PEER, 4), (PEER, LONG_BIT | 3), (PEER, LONG_BIT | 4)]),
    of_peer("reads", 0, &[(PEER, 5), (PEER, LONG_BIT | 5)]),
    of_peer("atomics", 0, &[(PEER, 6), (PEER, 7), (PEER, 7)]),
    of_peer("refused", 0, &[(PEER, 8)]),
    of_peer("own-writes", 0, &[(TESTED, 0), (TESTED, LONG_BIT | 3), (TESTED, 4)]),
    of_peer("own-reads", 0, &[(TESTED, 5), (TESTED, LONG_BIT | 5), (TESTED, 6), (TESTED, 7)]),
    of_peer("own-refused", 0, &[(TESTED, 3), (TESTED, 8)]),
    Conversation { name: "own-lost", kind: 0, posts: &[(TESTED, LONG_BIT | 3), (TESTED, 5)], lose: Some(1) },
];

/// What a peer sends only after both hellos.
const IRN_ALONE: [Conversation; 1] =
    [of_peer("masked-atomics", 0, &[(PEER, 0x10), (PEER, 0x11), (PEER, 0x10)])];

const UNCONNECTED: [Conversation; 3] = [
    of_peer("uc-sends", 1, &[(PEER, 0), (PEER, 1), (PEER, LONG_BIT), (PEER, LONG_BIT | 1)]),
    of_peer("uc-writes", 1, &[(PEER, 3), (PEER, 4), (PEER, LONG_BIT | 3), (PEER, LONG_BIT | 4)]),
    of_peer("ud-sends", 2, &[(PEER, 0), (PEER, 1)]),
];

fn recorded(irn: bool, conversations: &[Conversation]) -> Vec<(String, Vec<u8>)> {
    conversations.iter().map(|c| (c.name.to_owned(), record(irn, c))).collect()
}

/// A congestion notification for the connected queue pair.
fn notification() -> (String, Vec<u8>) {
    let flow = Flow {
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        ..Flow::default()
    };
    let mut input = Vec::new();
    append(&mut input, Step::Frame(&with_zeros(&Packet::cnp(flow, QpNumber::new(0)))));
    ("cnp".to_owned(), input)
}

/// Masked atomics of plain RC, which only a NIC's own queue pairs send to each other.
fn masked_atomics() -> (String, Vec<u8>) {
    let mut input = Vec::new();
    for (count, operation) in
        [Operation::MaskedFetchAdd, Operation::MaskedCompareSwap].into_iter().enumerate()
    {
        let opcode = Opcode::new(Service::Rc, operation);
        let psn = Link::default().psn.0.add(count as u32);
        let bth = Bth { opcode, psn, ack_req: true, ..Bth::default() };
        let atomic = AtomicEth { rkey: Key(OWN_KEY), swap_add: 5, ..AtomicEth::default() };
        let payload_len = if operation == Operation::MaskedCompareSwap { 16 } else { 0 };
        let packet = Packet { bth, atomic, payload_len, ..Packet::default() };
        append(&mut input, Step::Frame(&with_zeros(&packet)));
    }
    ("masked-atomics".to_owned(), input)
}

fn opcodes(services: &[Service]) -> Vec<String> {
    let wanted = Opcode::all().filter(|opcode| services.contains(&opcode.service()));
    wanted.map(|opcode| format!("{opcode:?}")).collect()
}

/// Reliable connections: requests, answers to the NIC's own requests, notifications.
pub const CONNECTED: Target = Target {
    name: "nic_rc",
    run: |input, seen| run(false, input, seen),
    seeds: || {
        let mut seeds = recorded(false, &RC);
        seeds.push(notification());
        seeds.push(masked_atomics());
        seeds
    },
    expected: || opcodes(&[Service::Rc, Service::Cnp]),
    bounded: 20_000,
};

/// Unreliable connections and datagrams.
pub const DATAGRAM: Target = Target {
    name: "nic_uc_ud",
    run: |input, seen| run(false, input, seen),
    seeds: || recorded(false, &UNCONNECTED),
    expected: || opcodes(&[Service::Uc, Service::Ud]),
    bounded: 20_000,
};

/// IRN, from the hello on.
pub const IRN: Target = Target {
    name: "nic_irn",
    run: |input, seen| run(true, input, seen),
    seeds: || [recorded(true, &RC), recorded(true, &IRN_ALONE)].concat(),
    expected: || opcodes(&[Service::Irn]),
    bounded: 20_000,
};
