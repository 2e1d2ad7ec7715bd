//! No side effect follows a reported failure, and every operation completes once and in time: over all delays
//! and losses of the four hops, and over random networks.
//!
//! `ADVERB_SEEDS=n` sets how many random networks are run.

mod one_rma_world;

use adverb_nic::one_rma::*;
use adverb_wire::one_rma::{Header, Kind, Op};
use adverb_wire::{Duration, Instant};
use one_rma_world::*;

/// Delay of a message in the grid, in ns; `None` is lost. The timeout is 20 us.
const DELAYS: [Option<u64>; 9] = [
    Some(0),
    Some(1),
    Some(4_000),
    Some(9_999),
    Some(10_000),
    Some(19_999),
    Some(20_000),
    Some(20_313),
    None,
];

/// Which of an operation's messages this is: 0 to 3, the two pieces of data being 2 and 3.
fn hop(bytes: &[u8]) -> usize {
    let header = Header::parse(bytes).unwrap();
    match header.kind() {
        Kind::WriteRequest | Kind::RekeyRequest => 0,
        Kind::Solicitation => 1,
        Kind::WriteData if header.piece().unwrap().offset == 0 => 2,
        Kind::WriteData => 3,
        _ => 4,
    }
}

fn delay(which: usize) -> Option<Duration> {
    DELAYS[which].map(Duration::from_ns)
}

/// One write of two pieces through messages delayed and lost as told; gives its outcome.
fn write(fates: [usize; 5]) -> Outcome {
    let mut w = Rma::with(2, 1, &|c| c.max_piece = 64);
    w.hosts[0].memory.write(LOCAL, &[0xaa; 128]);
    w.meddler = Some(Box::new(move |_, _, bytes| {
        delay(fates[hop(bytes)]).map(|delay| (delay, bytes.to_vec())).into_iter().collect()
    }));
    let posted = w.now;
    let command = w.command(0, 1, Op::Write, 128);
    w.post(0, 0, &command);
    // Whatever is due at one instant happens before anybody looks.
    let done = w.finish(0);
    let at = w.now;
    assert!(at.since(posted) <= w.hosts[0].nic.config().bound(), "{fates:?}: {:?}", at.since(posted));
    assert_eq!(done.total_delay, at.since(posted));
    let seen = w.hosts[1].memory.read(TARGET, 128);
    w.drain();
    assert_eq!(w.hosts[1].memory.read(TARGET, 128), seen, "{fates:?}: a side effect after {done:?}");
    assert_eq!(done.outcome == Outcome::Ok, w.hosts[0].counter("ops_ok") == 1);
    if done.outcome == Outcome::Ok {
        assert_eq!(seen, [0xaa; 128]);
    }
    assert!(w.hosts[0].completion().is_none(), "one completion");
    done.outcome
}

#[test]
fn no_side_effect_follows_a_failure_over_all_delays_and_losses() {
    let mut outcomes = [0; 5];
    let n = DELAYS.len();
    for case in 0..n.pow(4) {
        let fate = |place: u32| case / n.pow(place) % n;
        // The two pieces of data apart in every way; the completion quick or lost with the last of the grid's
        // choices.
        for completion in [0, 6, n - 1] {
            outcomes[write([fate(0), fate(1), fate(2), fate(3), completion]) as usize] += 1;
        }
    }
    assert!(
        outcomes[Outcome::Ok as usize] > 100 && outcomes[Outcome::Timeout as usize] > 1000,
        "{outcomes:?}"
    );
}

/// What one random operation should have done.
struct Expected {
    posted: Instant,
    op: Op,
    len: usize,
    remote: usize,
    local: usize,
    bytes: Vec<u8>,
}

struct Chaos {
    w: Rma,
    /// By host and slot.
    active: Vec<Vec<Option<Expected>>>,
    /// Ranges of failed writes, and what they held when the failure was reported.
    settled: Vec<(usize, usize, Vec<u8>)>,
    outcomes: [u64; 5],
}

/// Each slot has its own part of the target's and of its own region.
const SHARE: usize = PART / 2 / 8;

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window = [4096, 8192, 20_000, 65_536][rng.usize(..4)];
        let max_piece = [64, 256, 1024, 1408, 4096][rng.usize(..5)];
        let (threshold, inbound) = ([0, 4096, 62_500][rng.usize(..3)], rng.u32(1..40));
        let mut w = Rma::with(2, seed, &|c| {
            (c.window, c.max_piece, c.inbound_ops) = (window, max_piece, inbound);
            c.nack_threshold = Some(threshold);
            c.slots = 8;
            c.slots_by_priority = [8; 4];
        });
        w.faults = Faults {
            loss: rng.f64() * 0.2,
            duplicate: rng.f64() * 0.2,
            reorder: rng.f64(),
            corrupt: rng.f64() * 0.1,
            late: rng.f64() * 0.2,
            ..Faults::default()
        };
        for host in 0..2 {
            // The upper half of a target region is read, the lower written.
            w.hosts[host].memory.write(TARGET + PART / 2, &pattern(seed + host as u64, PART / 2));
        }
        let active = (0..2).map(|_| (0..8).map(|_| None).collect()).collect();
        Chaos { w, active, settled: Vec::new(), outcomes: [0; 5] }
    }

    fn post(&mut self, host: usize, slot: usize) {
        let rng = &mut self.w.rng;
        let op = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Rekey][rng.usize(..5)];
        let len = match (op, rng.u8(..3)) {
            (Op::Rekey, _) => 16,
            (_, 0) => rng.usize(1..=64),
            (_, 1) => rng.usize(1..=2048),
            _ => 2048,
        };
        // Two operations of one slot never meet in the target's memory: halves take turns.
        let half = (self.w.hosts[host].taken as usize % 2) * SHARE / 2;
        let remote = slot * SHARE + half;
        let local = slot * SHARE + rng.usize(..SHARE / 2);
        let bytes = pattern(rng.u64(..), len);
        let (class, peer) = (rng.u8(..2), 1 - host);
        let mut command = self.w.command(host, peer, op, len);
        (command.class, command.local_offset) = (class, local as u64);
        let expected = match op {
            Op::Read => {
                command.remote_offset = (PART / 2 + remote) as u64;
                self.w.hosts[peer].memory.read(TARGET + PART / 2 + remote, len)
            }
            Op::Write => {
                command.remote_offset = remote as u64;
                self.w.hosts[host].memory.write(LOCAL + local, &bytes);
                self.settled.retain(|(at, start, _)| (*at, *start) != (peer, remote));
                bytes
            }
            // Its own key again: nobody else's operations should end by it.
            Op::Rekey => {
                self.w.hosts[host].memory.write(LOCAL + local, region_key(peer).expose());
                Vec::new()
            }
        };
        let posted = self.w.now;
        self.w.post(host, slot, &command);
        self.active[host][slot] = Some(Expected { posted, op, len, remote, local, bytes: expected });
    }

    fn complete(&mut self, host: usize, done: Completion) {
        let slot = done.slot.index() as usize;
        let expected = self.active[host][slot].take().expect("one completion for each operation");
        let took = self.w.now.since(expected.posted);
        assert!(took <= self.w.hosts[host].nic.config().bound(), "{took:?}");
        assert!(done.issue_delay <= done.total_delay && done.total_delay == took);
        self.outcomes[done.outcome as usize] += 1;
        let peer = &self.w.hosts[1 - host].memory;
        match (expected.op, done.outcome) {
            (Op::Read, Outcome::Ok) => {
                let landed = self.w.hosts[host].memory.read(LOCAL + expected.local, expected.len);
                assert_eq!(landed, expected.bytes);
            }
            (Op::Write, Outcome::Ok) => {
                assert_eq!(peer.read(TARGET + expected.remote, expected.len), expected.bytes);
            }
            _ => {}
        }
        if expected.op == Op::Write {
            let held = peer.read(TARGET + expected.remote, SHARE / 2);
            self.settled.push((1 - host, expected.remote, held));
        }
    }

    fn check_settled(&self) {
        for (host, start, held) in &self.settled {
            let now = self.w.hosts[*host].memory.read(TARGET + start, held.len());
            assert_eq!(&now, held, "a side effect after the report, at host {host} from {start}");
        }
    }

    fn run(&mut self, ops: u64) {
        let mut posted = 0;
        loop {
            for host in 0..2 {
                while let Some(done) = self.w.hosts[host].completion() {
                    self.complete(host, done);
                }
                for slot in 0..8 {
                    if posted < ops && self.active[host][slot].is_none() && self.w.rng.u8(..4) == 0 {
                        self.post(host, slot);
                        posted += 1;
                    }
                }
            }
            if !self.w.advance(Instant::NEVER) && posted == ops {
                break;
            }
        }
        assert!(self.active.iter().flatten().all(Option::is_none), "every operation has completed");
        self.check_settled();
        self.w.drain();
    }
}

#[test]
fn random_networks_break_no_promise() {
    let seeds = std::env::var("ADVERB_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut outcomes = [0; 5];
    for seed in 0..seeds {
        let mut chaos = Chaos::new(seed);
        chaos.run(120);
        (0..5).for_each(|i| outcomes[i] += chaos.outcomes[i]);
    }
    let seen = |outcome: Outcome| outcomes[outcome as usize];
    for outcome in Outcome::ALL {
        assert!(seen(outcome) > 0, "{outcome} was never seen: {outcomes:?}");
    }
}
