//! Seeded chaos: random work in both directions over a wire that loses, doubles, reorders and damages
//! frames. Every request must complete exactly once, in order, with the right bytes.
//!
//! `ADVERB_SEEDS=n` sets how many seeds are run, `ADVERB_SEED=s` replays one of them.
#![allow(clippy::print_stderr, reason = "a test")]

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Psn};
use std::collections::VecDeque;
use world::*;

const REGION: usize = 1 << 17;
/// Layout of each region: what its peer writes to, what everybody reads and nobody changes, atomics'
/// words, answers, and receives.
const TARGET: usize = 24 << 10;
const CONSTANT: usize = 48 << 10;
const WORDS: usize = 72 << 10;
const ANSWERS: usize = 73 << 10;
const RECEIVES: usize = 100 << 10;
const LONGEST: usize = 20 << 10;
const RECEIVE: usize = 4 << 10;

#[derive(Debug)]
enum Expect {
    Plain,
    Read { at: usize, bytes: Vec<u8> },
    Atomic { at: usize, original: u64 },
}

/// What one node does to its peer, and what must come of it.
struct Side {
    qp: QpId,
    next: u64,
    /// Signalled requests in order: word, and what to check.
    expected: VecDeque<(u64, Expect)>,
    /// Requests posted whose slots the queue still holds.
    open: usize,
    /// SENDs that the peer must receive, in order: bytes and immediate.
    messages: VecDeque<(Vec<u8>, Option<u32>)>,
    /// What the peer's TARGET area must hold at the end.
    shadow: Vec<u8>,
    words: [u64; 8],
    answer_slot: usize,
    posted_receives: u64,
    taken_receives: u64,
}

impl Side {
    fn new(qp: QpId) -> Side {
        Side {
            qp,
            next: 0,
            expected: VecDeque::new(),
            open: 0,
            messages: VecDeque::new(),
            shadow: vec![0; CONSTANT - TARGET],
            words: [0; 8],
            answer_slot: 0,
            posted_receives: 0,
            taken_receives: 0,
        }
    }
}

struct Chaos {
    w: World,
    rng: fastrand::Rng,
    memory: [Memory; 2],
    sides: [Side; 2],
    stalls: bool,
}

/// Random parameters of IRN, and which of the two nodes offer it; none without `irn`.
fn offers(seed: u64, irn: bool) -> [Option<IrnConfig>; 2] {
    let mut rng = fastrand::Rng::with_seed(!seed);
    if !irn {
        return [None; 2];
    }
    // A simulation's bitmaps, on one side or on both.
    let wide = seed.is_multiple_of(4);
    let config = IrnConfig {
        scheme: [Scheme::Selective, Scheme::Selective, Scheme::NoSack, Scheme::GoBackN][rng.usize(..4)],
        bdp_packets: (rng.u8(..8) > 0).then(|| rng.u32(1..200)),
        receive_packets: rng.u32(1..=512) << if wide { 3 } else { 0 },
        wide,
        agreed: None,
        rto_low: Duration::from_us(rng.u64(10..200)),
        rto_high: Duration::from_us(rng.u64(50..1000)),
        few_packets: rng.u32(..10),
        nack_threshold: [1, 1, 1, 3][rng.usize(..4)],
        backoff: rng.bool(),
        redetect: rng.bool(),
        retransmit_delay: if rng.bool() { Duration::from_us(2) } else { Duration::ZERO },
        hello_interval: Duration::from_us(rng.u64(10..1000)),
        runs: rng.bool(),
        timers: match rng.u8(..3) {
            0 => Timers::Paper,
            1 => Timers::Measured { probe: None },
            _ => Timers::Measured { probe: Some(Duration::from_us(rng.u64(..100))) },
        },
    };
    let both = rng.u8(..8);
    let other = IrnConfig { runs: rng.u8(..4) > 0, wide: wide && !seed.is_multiple_of(8), ..config };
    [(both != 0).then_some(config), (both != 1).then_some(other)]
}

/// A scheme with random parameters.
fn scheme(seed: u64) -> CongestionControl {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xcc);
    let rate_min = 2e8;
    match rng.u8(..5) {
        0 => CongestionControl::Fixed,
        1 | 2 => CongestionControl::Dcqcn(DcqcnConfig {
            rate_min,
            increase_bytes: rng.u64(1000..1_000_000),
            alpha_interval: Duration::from_us(rng.u64(1..100)),
            increase_interval: Duration::from_us(rng.u64(1..100)),
            cnp_interval: Duration::from_us(rng.u64(1..100)),
            ..DcqcnConfig::default()
        }),
        3 => CongestionControl::Timely(TimelyConfig {
            rate_min,
            segment: rng.u32(1..20_000),
            t_low: Duration::from_us(rng.u64(1..50)),
            t_high: Duration::from_us(rng.u64(50..500)),
            ..TimelyConfig::default()
        }),
        _ => CongestionControl::Tcp(TcpConfig { initial: rng.u32(1..20), ..TcpConfig::default() }),
    }
}

impl Chaos {
    fn new(seed: u64, irn: bool, controlled: bool) -> Chaos {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window = rng.u32(8..300);
        let mut w = World::with_config(2, seed, |c| {
            c.max_unacked_packets = window;
            c.irn = offers(seed, irn)[(c.qpn_base >> 16) as usize - 1];
            if controlled {
                c.congestion = scheme(seed);
                c.line_rate = [1, 10, 100][seed as usize / 7 % 3] * 1_000_000_000;
            }
        });
        w.faults = Faults {
            loss: rng.f64() * 0.05,
            duplicate: rng.f64() * 0.05,
            reorder: rng.f64() * 0.05,
            corrupt: rng.f64() * 0.01,
            late: if rng.bool() { rng.f64() * 0.02 } else { 0.0 },
            mark: if controlled { 0.1 } else { 0.0 },
        };
        let mtu = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096][rng.usize(..5)];
        let near_wrap =
            |r: &mut fastrand::Rng| Psn::new(if r.bool() { r.u32(..) } else { 0xff_fff0 + r.u32(..16) });
        let stalls = rng.bool();
        let link = Link {
            mtu,
            psn: (near_wrap(&mut rng), near_wrap(&mut rng)),
            depth: rng.u8(1..=16),
            timeout: if stalls { 11 } else { 6 },
            ..Link::default()
        };
        let (a, b) = w.pair(QpType::Rc, CAPS, &link);
        let memory = [w.memory(0, REGION), w.memory(1, REGION)];
        for (i, m) in memory.iter().enumerate() {
            m.write(CONSTANT, &pattern(i as u8, WORDS - CONSTANT));
        }
        Chaos { w, rng, stalls, memory, sides: [Side::new(a), Side::new(b)] }
    }

    fn post_receives(&mut self, node: usize) {
        let side = &mut self.sides[node];
        while side.posted_receives - side.taken_receives < 6 && self.rng.u8(..4) > 0 {
            let slot = side.posted_receives as usize % 6;
            let sges = [self.memory[node].sge(RECEIVES + slot * RECEIVE, RECEIVE)];
            self.w.recv(node, side.qp, side.posted_receives, &sges);
            side.posted_receives += 1;
        }
    }

    fn post(&mut self, node: usize) {
        let rng = &mut self.rng;
        let (mine, theirs) = (&self.memory[node], &self.memory[1 - node]);
        let side = &mut self.sides[node];
        let rkey = theirs.mr.rkey;
        let base = theirs.addr();
        let len = match rng.u8(..4) {
            0 => rng.usize(..9),
            1 => rng.usize(..300),
            _ => rng.usize(..LONGEST),
        };
        let mut expect = Expect::Plain;
        let mut signaled = rng.u8(..3) == 0 || side.open > 40;
        let mut list = Vec::new();
        let kind = rng.u8(..6);
        let op = match kind {
            0 | 1 => {
                // The source is constant memory, so that a retransmission sends the same bytes.
                let from = rng.usize(..WORDS - CONSTANT - len);
                let to = rng.usize(..CONSTANT - TARGET - len);
                let bytes = mine.read(CONSTANT + from, len);
                side.shadow[to..to + len].copy_from_slice(&bytes);
                let cut = rng.usize(..=len);
                list.extend([mine.sge(CONSTANT + from, cut), mine.sge(CONSTANT + from + cut, len - cut)]);
                let va = base + (TARGET + to) as u64;
                if kind == 1 && len <= RECEIVE {
                    let imm = rng.u32(..);
                    side.messages.push_back((vec![0; len], Some(imm)));
                    SendOp::WriteImm(va, rkey, imm)
                } else {
                    SendOp::Write(va, rkey)
                }
            }
            2 => {
                let len = len.min(RECEIVE);
                let from = rng.usize(..WORDS - CONSTANT - len);
                let bytes = mine.read(CONSTANT + from, len);
                list.push(mine.sge(CONSTANT + from, len));
                let imm = rng.bool().then(|| rng.u32(..));
                side.messages.push_back((bytes, imm));
                imm.map_or(SendOp::Send, SendOp::SendImm)
            }
            3 | 4 => {
                let len = len.min(3 << 10);
                let from = rng.usize(..WORDS - CONSTANT - len);
                let at = ANSWERS + side.answer_slot * (3 << 10);
                side.answer_slot = (side.answer_slot + 1) % 8;
                let bytes = theirs.read(CONSTANT + from, len);
                let cut = rng.usize(..=len);
                list.extend([mine.sge(at, cut), mine.sge(at + cut, len - cut)]);
                expect = Expect::Read { at, bytes };
                signaled = true;
                SendOp::Read(base + (CONSTANT + from) as u64, rkey)
            }
            _ => {
                let word = rng.usize(..8);
                let at = ANSWERS + side.answer_slot * (3 << 10);
                side.answer_slot = (side.answer_slot + 1) % 8;
                list.push(mine.sge(at, 8));
                let original = side.words[word];
                expect = Expect::Atomic { at, original };
                signaled = true;
                let addr = base + (WORDS + word * 8) as u64;
                if rng.bool() {
                    let add = rng.u64(..);
                    side.words[word] = original.wrapping_add(add);
                    SendOp::FetchAdd { addr, rkey, add }
                } else {
                    let compare = if rng.bool() { original } else { rng.u64(..) };
                    let swap = rng.u64(..);
                    if compare == original {
                        side.words[word] = swap;
                    }
                    SendOp::CompareSwap { addr, rkey, compare, swap }
                }
            }
        };
        let mut request = wr(side.next, op, &list);
        request.flags = SendFlags { signaled, solicited: false, fence: rng.u8(..8) == 0 };
        self.w.nodes[node].nic.post_send(self.w.now, side.qp, &request).unwrap();
        side.open += 1;
        if signaled {
            side.expected.push_back((side.next, expect));
        }
        side.next += 1;
    }

    fn poll(&mut self, node: usize) {
        while let Some(done) = self.w.poll(node) {
            if done.status != Status::Success {
                for n in &mut self.w.nodes {
                    while let Some(why) = n.nic.next_explanation() {
                        eprintln!("{why}");
                    }
                }
            }
            assert_eq!(done.status, Status::Success, "{done:?}");
            if matches!(done.op, CompletionOp::Recv | CompletionOp::RecvWriteImm) {
                self.received(node, &done);
                continue;
            }
            let side = &mut self.sides[node];
            let (id, expect) = side.expected.pop_front().expect("a completion that was asked for");
            assert_eq!(done.wr_id, id, "completions in order, each once");
            side.open = (side.next - 1 - id) as usize;
            match expect {
                Expect::Plain => {}
                Expect::Read { at, bytes } => {
                    assert_eq!(done.byte_len as usize, bytes.len());
                    assert!(
                        self.memory[node].read(at, bytes.len()) == bytes,
                        "READ {id} brought other bytes"
                    );
                }
                Expect::Atomic { at, original } => {
                    assert_eq!(self.memory[node].word(at), original, "atomic {id}")
                }
            }
        }
    }

    fn received(&mut self, node: usize, done: &Completion) {
        let (bytes, imm) = self.sides[1 - node].messages.pop_front().expect("a message that was sent");
        let side = &mut self.sides[node];
        assert_eq!(done.wr_id, side.taken_receives, "receives in order");
        side.taken_receives += 1;
        assert_eq!(done.byte_len as usize, bytes.len());
        assert_eq!(done.has_immediate.then_some(done.immediate), imm);
        if done.op == CompletionOp::Recv {
            let slot = done.wr_id as usize % 6;
            assert!(
                self.memory[node].read(RECEIVES + slot * RECEIVE, bytes.len()) == bytes,
                "message changed"
            );
        }
    }

    /// Blocks or frees a path now and then, as a full ring does.
    fn stall(&mut self) {
        let node = self.rng.usize(..2);
        let nic = &mut self.w.nodes[node].nic;
        match (self.stalls, self.rng.u8(..)) {
            (true, 0..10) => nic.block_path(PathId::DEFAULT),
            (_, 10..130) => nic.unblock_path(PathId::DEFAULT),
            _ => {}
        }
    }

    fn run(&mut self, requests: usize) {
        let mut left = [requests; 2];
        let end = self.w.now + Duration::from_ms(100_000);
        loop {
            for (node, left) in left.iter_mut().enumerate() {
                self.post_receives(node);
                while *left > 0
                    && self.sides[node].open < 50
                    && self.sides[node].expected.len() < 7
                    && self.rng.u8(..3) > 0
                {
                    self.post(node);
                    *left -= 1;
                }
            }
            self.stall();
            for _ in 0..self.rng.u8(1..20) {
                self.w.advance(self.w.now + Duration::from_us(50));
            }
            self.poll(0);
            self.poll(1);
            let done = |s: &Side| s.expected.is_empty() && s.messages.is_empty();
            if left == [0, 0] && self.sides.iter().all(done) {
                break;
            }
            assert!(self.w.now < end, "stuck: {:?} {:?}", self.sides[0].expected, self.sides[1].expected);
        }
        for node in &mut self.w.nodes {
            node.nic.unblock_path(PathId::DEFAULT);
        }
        self.w.run(Duration::from_ms(1_000));
        for node in 0..2 {
            let side = &self.sides[node];
            let theirs = &self.memory[1 - node];
            assert!(
                theirs.read(TARGET, side.shadow.len()) == side.shadow,
                "memory of node {} differs",
                1 - node
            );
            for (i, word) in side.words.iter().enumerate() {
                assert_eq!(theirs.word(WORDS + i * 8), *word);
            }
            assert!(theirs.read(CONSTANT, WORDS - CONSTANT) == pattern(1 - node as u8, WORDS - CONSTANT));
            assert!(self.w.poll(node).is_none());
            assert!(!self.w.nodes[node].nic.has_work());
            let (attr, _) = self.w.nodes[node].nic.query_qp(side.qp).unwrap();
            assert_eq!(attr.state, QpState::Rts);
        }
    }
}

#[test]
fn every_request_completes_once_in_order_with_the_right_bytes() {
    seeds(|seed| Chaos::new(seed, false, false));
}

#[test]
fn irn_gives_the_same() {
    seeds(|seed| Chaos::new(seed, true, false));
}

#[test]
fn every_control_of_congestion_gives_the_same() {
    seeds(|seed| Chaos::new(seed, seed.is_multiple_of(2), true));
}

fn seeds(new: impl Fn(u64) -> Chaos + Sync) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("ADVERB_SEED") {
        new(seed).run(30);
        return;
    }
    let seeds = number("ADVERB_SEEDS").unwrap_or(10_000);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()) as u64;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let new = &new;
            scope.spawn(move || {
                for seed in (worker..seeds).step_by(workers as usize) {
                    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| new(seed).run(30)));
                    assert!(run.is_ok(), "seed {seed} failed; replay it with ADVERB_SEED={seed}");
                }
            });
        }
    });
}
