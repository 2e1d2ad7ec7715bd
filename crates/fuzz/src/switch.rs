//! A switch's way in: frames at three ports, two clients and a server, past all its programs.
//!
//! An input is steps. A frame's first byte says at which port it comes, and whether its ICRC stays as it is:
//! who changes bytes at random would never get past that otherwise. What a step posts is the operator's: a
//! port goes and comes again, its queue grows, a connection is announced. Each input meets four switches:
//! atomics are decided in place, by carriers, and as the draft has it, or steered.

use crate::frames::{Step, append, steps};
use crate::{Seen, Target};
use adverb_switch::cas_to_write::carry::CarryConfig;
use adverb_switch::{
    Announcement, CasConfig, Counter, LinksWait, Mark, MarkConfig, PaperConfig, PortId, Program,
    ProgramConfig, SteerConfig, Switch,
};
use adverb_wire::{
    Aeth, AtomicEth, Duration, FrameMut, Gid, Instant, Key, NakCode, Opcode, Operation, Packet, Psn,
    QpNumber, Reth, Service, Syndrome, WireExtra,
};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::num::NonZero;

const PORTS: u8 = 3;
const SERVER: u8 = 1;
/// In a frame's first byte: its ICRC stays as it is.
const RAW: u8 = 0x80;
const LIFE: Duration = Duration::from_us(300);
/// Frames that leave for one that came, at most.
const OUT_MAX: usize = 2000;
/// Queue pairs of the clients are numbered so much higher than the server's.
const CLIENTS: u32 = 100;
/// Where the server's words are, and their key.
const WORDS: (u64, Key) = (0x1000, Key(1));
/// Bytes of an entry, which has its key at 8.
const ENTRY: u32 = 64;
/// A wait after which what another switch may have converted has gone.
const LONG: u8 = 19;

fn address(port: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 9, 0, port + 1))
}

/// How a switch decides atomics.
#[derive(Clone, Copy)]
enum Deciding {
    InPlace,
    Carriers,
    Draft,
    /// Not at all: they go to another entry.
    Steers,
}

impl Deciding {
    const ALL: [Deciding; 4] = [Deciding::InPlace, Deciding::Carriers, Deciding::Draft, Deciding::Steers];

    fn program(self, config: CasConfig) -> ProgramConfig {
        let (resend, proof) = (Duration::from_us(8), Duration::from_us(20));
        let carry = CarryConfig { carriers: 2, ring: 2, resend, tries: 2, proof };
        match self {
            Deciding::InPlace => ProgramConfig::CasToWrite(config),
            Deciding::Carriers => ProgramConfig::CasToWrite(CasConfig { carry: Some(carry), ..config }),
            Deciding::Draft => ProgramConfig::Paper(PaperConfig { cas: config, clients: 3 }),
            Deciding::Steers => ProgramConfig::Steer(SteerConfig {
                keys_max: 2,
                entries_max: 256,
                connections_max: 3,
                hold: Duration::from_us(20),
                links_wait: LinksWait::Always,
                ..SteerConfig::new(config.server, ENTRY)
            }),
        }
    }

    /// Before the names of its conversations.
    fn prefix(self) -> &'static str {
        match self {
            Deciding::InPlace => "",
            Deciding::Carriers => "carriers-",
            Deciding::Draft => "draft-",
            Deciding::Steers => "steers-",
        }
    }
}

struct Scene {
    switch: Switch,
    now: Instant,
}

impl Scene {
    fn new(deciding: Deciding) -> Scene {
        let config = CasConfig {
            life: LIFE,
            flight: Duration::from_us(10),
            hold: Duration::from_us(20),
            words_max: 4,
            connections_max: 4,
            ..CasConfig::new(address(SERVER))
        };
        let now = Instant::from_ns(1);
        let every = |n| Mark::new(MarkConfig { every: NonZero::new(n), above: Some(1 << 16) });
        let programs = vec![
            deciding.program(config).begin(now).expect("a configuration that fits"),
            Program::Ecn(every(3)),
            Program::Trim(every(4)),
        ];
        let mut switch = Switch::new(programs, 16).expect("programs that fit");
        for port in 0..PORTS {
            let id = switch.add_port().expect("there is room");
            switch.claim(id, address(port)).expect("nobody has it");
        }
        Scene { switch, now }
    }

    fn frame(&mut self, bytes: &[u8]) {
        let [how, frame @ ..] = bytes else { return };
        let mut frame = frame.to_vec();
        if how & RAW == 0
            && let Ok(mut view) = FrameMut::new(&mut frame)
        {
            view.refresh_icrc();
        }
        self.switch.on_frame(self.now, PortId(u16::from(how % PORTS)), frame);
    }

    fn operator(&mut self, what: u8, more: u8) {
        let port = more % PORTS;
        let id = PortId(port.into());
        match what % 3 {
            0 => {
                self.switch.remove_port(self.now, id).expect("it is there");
                let again = self.switch.add_port().expect("there is room");
                assert_eq!(again, id, "a port's number is free again");
                self.switch.claim(again, address(port)).expect("nobody has it");
            }
            1 => self.switch.set_depth(id, u32::from(more) << 12),
            _ => {
                let qpn = u32::from(more / 16 % 4) + 1;
                let connection = Announcement {
                    client: address(port),
                    client_qpn: QpNumber::new(qpn + CLIENTS),
                    server: address(SERVER),
                    server_qpn: QpNumber::new(qpn),
                    psn: Psn::new(5),
                    path_mtu: 1024,
                };
                self.switch.announce(self.now, &connection);
            }
        }
    }

    /// Lets time pass, and takes what leaves.
    fn settle(&mut self, time: Duration) -> Vec<Vec<u8>> {
        self.now += time;
        if self.switch.next_deadline().is_some_and(|at| at <= self.now) {
            self.switch.on_timer(self.now);
        }
        self.switch.check_invariants();
        let mut out = Vec::new();
        while let Some((_, bytes)) = self.switch.next_frame() {
            out.push(bytes);
            assert!(out.len() <= OUT_MAX, "one frame in, a bounded number out");
        }
        self.switch.check_invariants();
        out
    }
}

fn wait(time: u8) -> Duration {
    Duration::from_ns(1 << (time % 20))
}

fn run(input: &[u8], seen: &mut Seen) {
    Deciding::ALL.into_iter().for_each(|deciding| run_one(deciding, input, seen));
}

fn run_one(deciding: Deciding, input: &[u8], seen: &mut Seen) {
    let mut scene = Scene::new(deciding);
    for step in steps(input) {
        let mut time = Duration::from_ns(500);
        match step {
            Step::Frame(bytes) => scene.frame(bytes),
            Step::Post([what, more, ..]) => scene.operator(*what, *more),
            Step::Wait([long, ..]) => time = wait(*long),
            Step::Post(_) | Step::Wait(_) => {}
        }
        for bytes in scene.settle(time) {
            let parsed = Packet::parse_ip(&bytes).expect("what leaves is a packet");
            seen.accept(format!("{:?}", parsed.packet.bth.opcode));
        }
    }
    let counters = scene.switch.counters();
    let counted = Counter::ALL.iter().filter(|counter| counters.get(**counter) > 0);
    counted.for_each(|counter| seen.accept(counter.name()));
}

/// What is done in a conversation.
#[derive(Clone, Copy)]
enum Act {
    /// A client's queue pair asks, with this PSN, for a word by number; two operands.
    Ask(u32, u32, Operation, u64, [u64; 2]),
    /// A client's queue pair writes an entry by number, of a key.
    Entry(u32, u32, u64, u64),
    /// It puts the second entry behind the first.
    Link(u32, u32, u64, u64),
    /// It reads an entry.
    Look(u32, u32, u64),
    /// The server answers all that has come; with `true`, its WRITEs by the last one's acknowledgement alone.
    Serve(bool),
    /// The server refuses the first of what has come, and forgets the rest.
    Refuse,
    /// What has come to the server is lost.
    Lose,
    Wait(u8),
    Operator(u8, u8),
}

/// The server, which is honest.
#[derive(Default)]
struct Server {
    words: BTreeMap<u64, u64>,
    /// What has come, and its payload.
    asked: Vec<(Packet, Vec<u8>)>,
}

impl Server {
    /// The answer to a request, but for what a READ finds.
    fn answer(&mut self, packet: &Packet, payload: &[u8]) -> Packet {
        use Operation::*;
        let mut answer = answer_of(packet, Acknowledge, Syndrome::default());
        let AtomicEth { va, swap_add, compare, .. } = packet.atomic;
        match packet.bth.opcode.operation() {
            operation @ (CompareSwap | FetchAdd) => {
                answer.bth.opcode = Opcode::new(Service::Rc, AtomicAcknowledge);
                let word = self.words.entry(va).or_default();
                answer.atomic_original = *word;
                *word = match operation {
                    FetchAdd => word.wrapping_add(swap_add),
                    _ if *word == compare => swap_add,
                    _ => *word,
                };
            }
            WriteOnly => {
                if let Ok(bytes) = payload.try_into() {
                    self.words.insert(packet.reth.va, u64::from_ne_bytes(bytes));
                }
            }
            ReadRequest => {
                answer.bth.opcode = Opcode::new(Service::Rc, ReadResponseOnly);
                answer.payload_len = 16;
            }
            _ => {}
        }
        answer
    }

    /// Answers, and the first word of what READs find: a NIC reads memory when it makes the answer, behind
    /// the atomics that have come since.
    fn answers(&mut self, together: bool) -> Vec<(Packet, u64)> {
        let asked = std::mem::take(&mut self.asked);
        let is_write = |packet: &Packet| packet.bth.opcode.operation().is_write();
        let last = asked.len().saturating_sub(1);
        let mut out = Vec::new();
        for (at, (packet, payload)) in asked.iter().enumerate() {
            let answer = self.answer(packet, payload);
            if !together || at == last || !is_write(packet) {
                out.push((answer, packet.reth.va));
            }
        }
        let found = |(answer, va)| (answer, self.words.get(&va).copied().unwrap_or(0));
        out.into_iter().map(found).collect()
    }
}

fn answer_of(asked: &Packet, operation: Operation, syndrome: Syndrome) -> Packet {
    let mut packet = Packet::default();
    (packet.flow.src, packet.flow.dst) = (asked.flow.dst, asked.flow.src);
    packet.bth.opcode = Opcode::new(Service::Rc, operation);
    packet.bth.dest_qp = QpNumber::new(asked.bth.dest_qp.get() + CLIENTS);
    packet.bth.psn = asked.bth.psn;
    packet.aeth = Aeth { syndrome, msn: asked.bth.psn.get() & 0xff };
    packet
}

fn request(qp: u32, psn: u32, operation: Operation, word: u64, [first, second]: [u64; 2]) -> Packet {
    let mut packet = Packet::default();
    let port = if qp == 4 { 2 } else { 0 };
    (packet.flow.src, packet.flow.dst) = (address(port), address(SERVER));
    // One that may be marked.
    packet.flow.traffic_class = 2;
    packet.bth.opcode = Opcode::new(Service::Rc, operation);
    (packet.bth.dest_qp, packet.bth.psn) = (QpNumber::new(qp), Psn::new(psn));
    let (va, rkey) = (WORDS.0 + 8 * word, WORDS.1);
    packet.atomic = AtomicEth { va, rkey, swap_add: second, compare: first };
    packet.payload_len = if operation.is_write() { 8 } else { 0 };
    packet.reth = Reth { va, rkey, len: 8 };
    packet
}

/// Where an entry stands.
fn place_of(entry: u64) -> u64 {
    WORDS.0 + u64::from(ENTRY) * entry
}

/// A request for an entry.
fn request_for(qp: u32, psn: u32, operation: Operation, behind: u64, entry: u64) -> Packet {
    let mut packet = request(qp, psn, operation, 0, [0, place_of(entry)]);
    packet.atomic.va = place_of(behind);
    packet.reth = Reth { va: place_of(entry), rkey: WORDS.1, len: ENTRY };
    packet.payload_len = if operation.is_write() { ENTRY } else { 0 };
    packet
}

/// A step that brings a packet to its source's port.
fn append_packet(input: &mut Vec<u8>, scene: &mut Scene, packet: &Packet, payload: u64) {
    let port = (0..PORTS).find(|port| address(*port) == packet.flow.src).unwrap_or(0);
    let word = payload.to_ne_bytes();
    let mut payload = vec![0; packet.payload_len as usize];
    // An entry's key is its second word.
    let at = if payload.len() > 2 * word.len() { word.len() } else { 0 };
    payload.iter_mut().skip(at).zip(word).for_each(|(byte, given)| *byte = given);
    let mut bytes = vec![0; packet.frame_len()];
    assert_eq!(packet.emit_frame(&WireExtra::default(), &payload, &mut bytes), bytes.len());
    bytes.insert(0, port);
    append(input, Step::Frame(&bytes));
    scene.frame(&bytes);
}

fn record(deciding: Deciding, acts: &[Act]) -> Vec<u8> {
    let (mut scene, mut server, mut input) = (Scene::new(deciding), Server::default(), Vec::new());
    for act in [Act::Wait(LONG)].iter().chain(acts) {
        let mut time = Duration::from_ns(500);
        match *act {
            Act::Ask(qp, psn, operation, word, operands) => {
                append_packet(
                    &mut input,
                    &mut scene,
                    &request(qp, psn, operation, word, operands),
                    operands[1],
                );
            }
            Act::Entry(qp, psn, entry, key) => {
                let packet = request_for(qp, psn, Operation::WriteOnly, 0, entry);
                append_packet(&mut input, &mut scene, &packet, key);
            }
            Act::Link(qp, psn, behind, entry) => {
                let packet = request_for(qp, psn, Operation::CompareSwap, behind, entry);
                append_packet(&mut input, &mut scene, &packet, 0);
            }
            Act::Look(qp, psn, entry) => {
                let packet = request_for(qp, psn, Operation::ReadRequest, 0, entry);
                append_packet(&mut input, &mut scene, &packet, 0);
            }
            Act::Serve(together) => {
                for (answer, found) in server.answers(together) {
                    append_packet(&mut input, &mut scene, &answer, found);
                }
            }
            Act::Refuse => {
                let asked = std::mem::take(&mut server.asked);
                let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
                let (first, _) = asked.first().expect("something has come to the server");
                let answer = answer_of(first, Operation::Acknowledge, syndrome);
                append_packet(&mut input, &mut scene, &answer, 0);
            }
            Act::Lose => server.asked.clear(),
            Act::Wait(long) => {
                append(&mut input, Step::Wait(&[long]));
                time = wait(long);
            }
            Act::Operator(what, more) => {
                append(&mut input, Step::Post(&[what, more]));
                scene.operator(what, more);
            }
        }
        for bytes in scene.settle(time) {
            let parsed = Packet::parse_ip(&bytes).expect("what leaves is a packet");
            if parsed.packet.flow.dst == address(SERVER) {
                server.asked.push((parsed.packet, bytes[parsed.payload.clone()].to_vec()));
            }
        }
    }
    input
}

const fn cas(qp: u32, psn: u32, word: u64, operands: [u64; 2]) -> Act {
    Act::Ask(qp, psn, Operation::CompareSwap, word, operands)
}

const fn add(qp: u32, psn: u32, word: u64, by: u64) -> Act {
    Act::Ask(qp, psn, Operation::FetchAdd, word, [0, by])
}

const fn store(qp: u32, psn: u32, word: u64, value: u64) -> Act {
    Act::Ask(qp, psn, Operation::WriteOnly, word, [0, value])
}

const SERVE: Act = Act::Serve(false);

/// A connection has been followed from its first request, and word 0 is known: from a packet's life after it
/// was first seen, the server's answer tells it.
const BEGUN: [Act; 5] = [cas(1, 5, 0, [0, 1]), SERVE, Act::Wait(LONG), cas(1, 6, 0, [1, 2]), SERVE];

/// What is said behind that.
const CONVERSATIONS: [(&str, &[Act]); 14] = [
    ("granted-and-refused", &[cas(1, 7, 0, [2, 3]), cas(1, 8, 0, [2, 4]), SERVE]),
    ("adds", &[add(1, 7, 0, 5), SERVE, add(1, 8, 1, 5), SERVE, add(1, 9, 1, 5), SERVE]),
    ("stores", &[store(1, 7, 0, 9), SERVE, cas(1, 8, 0, [9, 1]), SERVE]),
    ("one-answer", &[cas(1, 7, 0, [2, 3]), cas(1, 8, 0, [3, 4]), cas(1, 9, 0, [4, 5]), Act::Serve(true)]),
    ("again", &[cas(1, 7, 0, [2, 3]), Act::Lose, cas(1, 7, 0, [2, 3]), SERVE, cas(1, 7, 0, [2, 3]), SERVE]),
    ("gap", &[cas(1, 9, 0, [2, 3]), Act::Wait(14), cas(1, 7, 0, [2, 3]), cas(1, 8, 0, [3, 4]), SERVE]),
    // The third queue pair is carried by another; when the server has been silent it is asked about it first.
    (
        "asked-first",
        &[
            cas(2, 5, 0, [2, 3]),
            SERVE,
            cas(3, 5, 0, [3, 4]),
            SERVE,
            Act::Wait(LONG),
            cas(1, 7, 0, [4, 5]),
            SERVE,
            cas(3, 6, 0, [5, 6]),
            SERVE,
            SERVE,
            Act::Wait(16),
            cas(3, 7, 0, [6, 7]),
            SERVE,
            SERVE,
        ],
    ),
    ("other-operands", &[cas(1, 7, 0, [2, 3]), cas(1, 7, 0, [2, 4]), SERVE]),
    ("refused-key", &[cas(1, 7, 0, [2, 3]), Act::Refuse, cas(1, 8, 0, [2, 3]), SERVE]),
    (
        "two-clients",
        &[cas(4, 77, 0, [2, 3]), cas(1, 7, 0, [3, 4]), cas(4, 78, 0, [3, 4]), SERVE, SERVE, SERVE],
    ),
    (
        "many-words",
        &[cas(1, 7, 2, [0, 1]), cas(1, 8, 3, [0, 1]), cas(1, 9, 4, [0, 1]), cas(1, 10, 5, [0, 1]), SERVE],
    ),
    (
        "many-connections",
        &[cas(2, 5, 0, [2, 3]), cas(3, 5, 0, [2, 3]), cas(4, 5, 0, [2, 3]), cas(5, 5, 0, [2, 3]), SERVE],
    ),
    (
        "operator",
        &[
            Act::Operator(2, 0x10),
            Act::Operator(1, 0xf1),
            cas(2, 5, 0, [2, 3]),
            store(2, 6, 3, 9),
            SERVE,
            Act::Operator(0, 0),
            cas(2, 7, 0, [3, 4]),
        ],
    ),
    (
        "silence",
        &[cas(1, 7, 0, [2, 3]), Act::Lose, Act::Wait(LONG), Act::Wait(LONG), cas(1, 8, 0, [2, 3]), SERVE],
    ),
];

/// Two clients have put entries 1 and 2 behind entry 0, so that the end is known, and both keys.
const CHAINED: [Act; 6] = [
    Act::Entry(1, 5, 1, 9),
    Act::Link(1, 6, 0, 1),
    SERVE,
    Act::Entry(4, 77, 2, 9),
    Act::Link(4, 78, 1, 2),
    SERVE,
];

/// What is said behind that.
const STEERED: [(&str, &[Act]); 6] = [
    // A link waits for a READ of the end; another one for a READ that is not answered, and overtakes it.
    (
        "links-wait",
        &[
            Act::Entry(4, 79, 3, 9),
            SERVE,
            Act::Look(1, 7, 0),
            Act::Link(4, 80, 2, 3),
            SERVE,
            SERVE,
            Act::Entry(4, 81, 4, 9),
            SERVE,
            Act::Look(1, 8, 0),
            Act::Link(4, 82, 3, 4),
            Act::Wait(LONG),
            SERVE,
        ],
    ),
    (
        "ends",
        &[
            Act::Look(1, 7, 0),
            Act::Look(1, 8, 2),
            Act::Entry(1, 9, 3, 9),
            Act::Link(1, 10, 1, 3),
            Act::Link(1, 10, 1, 3),
            SERVE,
            Act::Entry(1, 11, 4, 9),
            Act::Link(1, 12, 3, 4),
            SERVE,
        ],
    ),
    (
        "lost",
        &[
            Act::Entry(1, 7, 3, 9),
            Act::Entry(4, 79, 4, 9),
            SERVE,
            Act::Link(1, 8, 2, 3),
            Act::Lose,
            Act::Link(4, 80, 2, 4),
            Act::Look(4, 81, 0),
            Act::Wait(LONG),
            SERVE,
        ],
    ),
    (
        "reads-wait",
        &[
            Act::Entry(1, 7, 3, 9),
            SERVE,
            Act::Link(1, 8, 2, 3),
            Act::Look(4, 79, 0),
            SERVE,
            Act::Entry(1, 9, 4, 9),
            SERVE,
            Act::Link(1, 10, 3, 4),
            Act::Look(4, 80, 0),
            Act::Lose,
            Act::Wait(LONG),
            SERVE,
        ],
    ),
    (
        "past-the-switch",
        &[
            store(1, 7, 16, 5),
            SERVE,
            Act::Entry(1, 8, 3, 9),
            Act::Link(1, 9, 2, 3),
            SERVE,
            Act::Look(1, 10, 0),
        ],
    ),
    (
        "many-keys",
        &[Act::Entry(1, 7, 3, 8), Act::Entry(1, 8, 4, 7), Act::Entry(1, 9, 5, 6), Act::Operator(0, 0)],
    ),
];

fn seeds() -> Vec<(String, Vec<u8>)> {
    let of = |deciding: Deciding, (name, acts): &(&str, &[Act])| {
        (format!("{}{name}", deciding.prefix()), record(deciding, &[&BEGUN, *acts].concat()))
    };
    let all = |deciding: Deciding| CONVERSATIONS.iter().map(move |said| of(deciding, said));
    let steered = STEERED.iter().map(|(name, acts)| {
        let steers = Deciding::Steers;
        (format!("{}{name}", steers.prefix()), record(steers, &[&CHAINED, *acts].concat()))
    });
    let decided = Deciding::ALL.into_iter().filter(|deciding| !matches!(deciding, Deciding::Steers));
    decided.flat_map(all).chain(steered).collect()
}

fn expected() -> Vec<String> {
    let atomics = [Operation::CompareSwap, Operation::AtomicAcknowledge, Operation::WriteOnly];
    let opcodes = atomics.map(|operation| format!("{:?}", Opcode::new(Service::Rc, operation)));
    // Made elsewhere on purpose: two connections whose numbers might be either's (`crates/switch/tests`),
    // carriers that fail with requests under way (`adverb swarm --switch`), and what the draft alone does.
    let elsewhere = [Counter::Ambiguous, Counter::NaksBroadcast, Counter::RingOverrun, Counter::MovedOn];
    let counters = Counter::ALL.iter().filter(|counter| !elsewhere.contains(counter));
    opcodes.into_iter().chain(counters.map(|counter| counter.name().to_owned())).collect()
}

/// All programs in a row, past which every frame goes.
pub const SWITCH: Target = Target { name: "switch", run, seeds, expected, bounded: 20_000 };
