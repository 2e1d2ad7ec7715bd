//! The NIC's way in for StaR: frames to either side of connections that have agreed, and of one that has not.
//!
//! An input's first byte says which side is under test, and whether addresses travel; the rest are steps.
//! Addresses of memory differ from run to run, so they stand in an input by offsets, and queue pairs by small
//! numbers; tickets come out the same in every run, since they are drawn from the NIC's seed.

use crate::frames::{Step, append, steps};
use crate::tested::world::*;
use crate::tested::*;
use crate::{Seen, Target};
use adverb_nic::*;
use adverb_wire::star::{Sge, StarEth, Wish, Wqe};
use adverb_wire::{Duration, Key, Opcode, Operation, Packet, QpNumber, Service};

/// Connections: one that has agreed, and one that still asks.
const PAIRS: usize = 2;
const ASKING: usize = 1;
/// What a step may post, beside requests.
const RECEIVE: u8 = 0x20;
/// Bits of an input's first byte: the server is under test; addresses travel.
const SERVER: u8 = 1;
const CARRIED: u8 = 2;
/// What is to be accepted beside the opcodes.
const BY_ADDRESS: [&str; 2] = ["data by address", "work that comes with its address"];

/// Two nodes, of which one is the server, with their connections and memory.
struct Scene {
    w: World,
    qps: Vec<(QpId, QpId)>,
    memory: [Memory; 2],
    guarded: Memory,
    /// What the stateless half has allocated from the start.
    stateless: usize,
}

impl Scene {
    fn new(which: u8) -> Scene {
        let (tests_server, carried) = (which & SERVER != 0, which & CARRIED != 0);
        let mut w = World::with_config(2, 1, |config| {
            let is_tested = config.qpn_base == (TESTED as u32 + 1) << 16;
            let wish = if is_tested == tests_server { Wish::Server } else { Wish::Client };
            config.star = Some(StarConfig { wish, carried, ..StarConfig::default() });
        });
        let memory = [w.memory(PEER, LEN), w.memory(TESTED, LEN)];
        let guarded = guarded(&mut w);
        let link = Link { mtu: MTU, timeout: 14, ..Link::default() };
        let first = w.pair(QpType::Rc, CAPS, &link);
        w.run(Duration::from_us(100));
        let stateless = w.nodes[TESTED].nic.stateless_bytes();
        let qps = vec![first, w.pair(QpType::Rc, CAPS, &link)];
        let mut scene = Scene { w, qps, memory, guarded, stateless };
        assert_ne!(scene.side(), StarSide::Undecided, "the first connection has agreed");
        for node in [PEER, TESTED] {
            for _ in 0..4 {
                scene.post(node, 0, RECEIVE);
            }
        }
        scene
    }

    fn side(&self) -> StarSide {
        self.w.nodes[TESTED].nic.star_side(self.qps[0].1).expect("a queue pair of this node")
    }

    fn qp(&self, node: usize, pair: usize) -> QpId {
        if node == PEER { self.qps[pair].0 } else { self.qps[pair].1 }
    }

    fn number(&self, pair: usize) -> QpNumber {
        self.w.nodes[TESTED].nic.qp_number(self.qps[pair].1).expect("a queue pair of this node")
    }

    /// The request of an index, posted by one node to the other. False if it was refused.
    fn post(&mut self, node: usize, pair: usize, what: u8) -> bool {
        let (own, theirs) = (&self.memory[node], &self.memory[1 - node]);
        let (va, rkey) = theirs.at(0);
        let qp = self.qp(node, pair);
        let now = self.w.now;
        if what & 0x7f == RECEIVE {
            let sges = [own.sge(0, 1024)];
            return self.w.nodes[node].nic.post_recv(now, qp, &RecvWr { wr_id: 7, sges: &sges }).is_ok();
        }
        let op = match what & 0x7f {
            0 => SendOp::Send,
            1 => SendOp::SendImm(7),
            3 => SendOp::Write(va, rkey),
            4 => SendOp::WriteImm(va, rkey, 8),
            5 => SendOp::Read(va, rkey),
            6 => SendOp::CompareSwap { addr: va, rkey, compare: 0, swap: 1 },
            7 => SendOp::FetchAdd { addr: va, rkey, add: 1 },
            // A key that nobody gave out.
            _ => SendOp::Write(0x1000, Key(0x7777_7777)),
        };
        let len = if what >= 0x80 { LONG } else { 64 };
        let len = if matches!(what & 0x7f, 6 | 7) { 8 } else { len };
        let sges = [own.sge(2048, len)];
        let mut request = wr(u64::from(what), op, &sges);
        if matches!(what, 0 | 1) && node != TESTED {
            request.data = SendData::Inline(b"inline bytes");
        }
        self.w.nodes[node].nic.post_send(now, qp, &request).is_ok()
    }

    /// An address and its key of this run, as they stand in an input.
    fn abstracted(&self, va: &mut u64, key: &mut u32) {
        for (memory, stands) in [(&self.memory[TESTED], OWN_KEY), (&self.memory[PEER], PEER_KEY)] {
            if *key == memory.mr.rkey.0 {
                *va = va.wrapping_sub(memory.addr());
                *key = stands;
                return;
            }
        }
    }

    /// The other way round.
    fn concrete(&self, va: &mut u64, key: &mut u32) {
        for (memory, stands) in [(&self.memory[TESTED], OWN_KEY), (&self.memory[PEER], PEER_KEY)] {
            if *key == stands {
                *va = va.wrapping_add(memory.addr());
                *key = memory.mr.rkey.0;
                return;
            }
        }
    }

    /// Packets that the tested NIC has refused, in whatever way.
    fn refused(&self) -> u64 {
        let parts = ["drop_", "_nak", "_full", "_unknown", "_gap", "cqe_length"];
        refused(&self.w, |name| parts.iter().any(|part| name.contains(part)) && name != "drop_tx_blocked")
    }

    /// Gives one frame to the NIC; says by opcode if it was taken.
    fn deliver(&mut self, bytes: &[u8], seen: &mut Seen) {
        let Ok(parsed) = Packet::parse_bth(flow(&self.w), bytes) else { return };
        let mut packet = parsed.packet;
        let mut payload = bytes[parsed.payload.clone()].to_vec();
        let index = packet.bth.dest_qp.get() as usize;
        if index < PAIRS {
            packet.bth.dest_qp = self.number(index);
        }
        self.concrete(&mut packet.reth.va, &mut packet.reth.rkey.0);
        if has_entries(&packet) {
            each_entry(&mut payload, |va, key| self.concrete(va, key));
        }
        let by_address = |scene: &Scene| scene.w.counter(TESTED, "star_carried");
        let before = (self.refused(), by_address(self));
        let now = self.w.now;
        self.w.nodes[TESTED].nic.on_frame(now, &packet, &Payload::from_slice(&payload));
        self.settle();
        if self.refused() == before.0 {
            seen.accept(format!("{:?}", packet.bth.opcode));
            let has_address = has_entries(&packet) && carries(&payload);
            let is = [by_address(self) > before.1, has_address];
            for (what, _) in BY_ADDRESS.into_iter().zip(is).filter(|(_, is)| *is) {
                seen.accept(what);
            }
        }
    }

    /// Lets the NIC say what it has to say, and looks whether all is well.
    fn settle(&mut self) {
        settle(&mut self.w);
        let allocated = self.w.nodes[TESTED].nic.stateless_bytes();
        assert_eq!(allocated, self.stateless, "the stateless half has allocated something");
    }

    fn wait(&mut self, time: Duration) {
        wait(&mut self.w, time);
        self.settle();
    }
}

/// Whether a packet's payload are entries of work requests.
fn has_entries(packet: &Packet) -> bool {
    let opcode = packet.bth.opcode;
    opcode == Opcode::new(Service::Star, Operation::WqePacket)
        && !StarEth::from(packet.irn).has(StarEth::MIGRATION)
}

/// Whether the first work request of a payload has its address behind it.
fn carries(payload: &[u8]) -> bool {
    let first = payload.first_chunk::<{ Wqe::LEN }>().and_then(Wqe::read);
    first.is_some_and(|entry| entry.flags & Wqe::CARRIED != 0)
}

/// Changes the addresses and keys of each work request of a payload.
fn each_entry(payload: &mut [u8], mut change: impl FnMut(&mut u64, &mut u32)) {
    let mut rest = payload;
    while let Some((head, mut after)) = rest.split_first_chunk_mut::<{ Wqe::LEN }>() {
        let Some(mut entry) = Wqe::read(head) else { return };
        change(&mut entry.va, &mut entry.rkey);
        *head = entry.bytes();
        if entry.flags & Wqe::CARRIED != 0 {
            let Some((own, behind)) = after.split_first_chunk_mut::<{ Sge::LEN }>() else { return };
            let Some(mut sge) = Sge::read(own) else { return };
            change(&mut sge.addr, &mut sge.lkey);
            (*own, after) = (sge.bytes(), behind);
        }
        let inline = if entry.flags & Wqe::INLINE == 0 { 0 } else { entry.len.next_multiple_of(4) as usize };
        let follows = if entry.op as u8 >= adverb_wire::star::Op::CompareSwap as u8 { 16 } else { inline };
        let Some((_, next)) = after.split_at_mut_checked(follows) else { return };
        rest = next;
    }
}

fn run(input: &[u8], seen: &mut Seen) {
    let Some((which, input)) = input.split_first() else { return };
    let mut scene = Scene::new(*which);
    scene.settle();
    for step in steps(input) {
        match step {
            Step::Frame(bytes) => scene.deliver(bytes, seen),
            Step::Post([pair, what, ..]) => {
                scene.post(TESTED, usize::from(*pair) % PAIRS, *what);
                scene.settle();
            }
            Step::Wait([time, ..]) => scene.wait(Duration::from_us(1 << (time % 20))),
            Step::Post(_) | Step::Wait(_) => {}
        }
        scene.wait(LATENCY);
    }
    check_guarded(&scene.guarded);
}

/// What is recorded in one input: who posts what on which connection.
struct Conversation {
    name: &'static str,
    pair: usize,
    posts: &'static [(usize, u8)],
    /// Loses the tested node's packet of this number.
    lose: Option<u32>,
}

/// Between two NICs; the input has the peer's frames, and the tested node's posts where they were made.
fn record(which: u8, conversation: &Conversation) -> Vec<u8> {
    let mut scene = Scene::new(which);
    scene.w.keep_log = true;
    let mut input = vec![which];
    lose(&mut scene.w, conversation.lose);
    scene.w.run(Duration::from_us(50));
    take_log(&mut scene, conversation.pair, &mut input);
    for (node, what) in conversation.posts {
        assert!(scene.post(*node, conversation.pair, *what), "{}: {what:#x} is posted", conversation.name);
        if *node == TESTED {
            append(&mut input, Step::Post(&[conversation.pair as u8, *what]));
        }
        scene.w.run(Duration::from_us(100));
        take_log(&mut scene, conversation.pair, &mut input);
    }
    // What was lost is found by a timer.
    scene.w.run(Duration::from_ms(25));
    take_log(&mut scene, conversation.pair, &mut input);
    input
}

/// Moves the peer's frames of the log that are for a connection into the input.
fn take_log(scene: &mut Scene, pair: usize, input: &mut Vec<u8>) {
    let packets = std::mem::take(&mut scene.w.log);
    let payloads = std::mem::take(&mut scene.w.log_payloads);
    for ((from, packet), payload) in packets.into_iter().zip(payloads) {
        if from == PEER && packet.bth.dest_qp == scene.number(pair) {
            append(input, Step::Frame(&frame(scene, packet, payload, pair)));
        }
    }
}

/// A packet of this run as it stands in an input.
fn frame(scene: &Scene, mut packet: Packet, mut payload: Vec<u8>, pair: usize) -> Vec<u8> {
    packet.bth.dest_qp = QpNumber::new(pair as u32);
    scene.abstracted(&mut packet.reth.va, &mut packet.reth.rkey.0);
    if has_entries(&packet) {
        each_entry(&mut payload, |va, key| scene.abstracted(va, key));
    }
    bytes(&packet, &payload)
}

const fn said(name: &'static str, pair: usize, posts: &'static [(usize, u8)]) -> Conversation {
    Conversation { name, pair, posts, lose: None }
}

/// What is said to either side.
const CONVERSATIONS: [Conversation; 9] = [
    said("hellos", ASKING, &[]),
    said("hellos-and-work", ASKING, &[(PEER, RECEIVE), (TESTED, RECEIVE), (TESTED, 0), (PEER, 0)]),
    said("sends", 0, &[(PEER, 0), (PEER, 1), (PEER, LONG_BIT), (TESTED, 0), (TESTED, LONG_BIT | 1)]),
    said("writes", 0, &[(PEER, 3), (PEER, LONG_BIT | 3), (PEER, 4), (TESTED, 3), (TESTED, LONG_BIT | 4)]),
    said("reads", 0, &[(PEER, 5), (PEER, LONG_BIT | 5), (TESTED, 5), (TESTED, LONG_BIT | 5)]),
    said("atomics", 0, &[(PEER, 6), (PEER, 7), (TESTED, 6), (TESTED, 7)]),
    said("refused", 0, &[(PEER, 3), (PEER, 8)]),
    said("own-refused", 0, &[(TESTED, 3), (TESTED, 8)]),
    Conversation { name: "lost", pair: 0, posts: &[(TESTED, LONG_BIT | 3), (PEER, 5)], lose: Some(1) },
];

fn seeds() -> Vec<(String, Vec<u8>)> {
    let of = |which: u8| {
        let side = if which & SERVER != 0 { "server" } else { "client" };
        let how = if which & CARRIED != 0 { "carried-" } else { "" };
        CONVERSATIONS.iter().map(move |c| (format!("{side}-{how}{}", c.name), record(which, c)))
    };
    [SERVER, 0, SERVER | CARRIED, CARRIED].into_iter().flat_map(of).collect()
}

fn expected() -> Vec<String> {
    let opcodes = Opcode::all().filter(|opcode| opcode.is_of(Service::Star));
    opcodes.map(|opcode| format!("{opcode:?}")).chain(BY_ADDRESS.map(str::to_owned)).collect()
}

/// Both sides of StaR, from the hello on.
pub const NIC: Target = Target { name: "nic_star", run, seeds, expected, bounded: 10_000 };
