//! The hardware against sums by hand: each step's cost in its order, to the hundredth of a nanosecond; and
//! its parts against closed forms.

use super::Profile;
use super::profile::{AS_OTHER, KEYS};
use super::profiles::by_name;
use crate::fabric::topology::{CableKind, Topology};
use crate::host::memory::Buffer;
use crate::host::{Peer, TransportConfig};
use crate::sim::{Config, Sim};
use adverb_nic::queue::wqe::WqeOp;
use adverb_nic::*;
use adverb_wire::{Duration, Instant, Key};
use std::rc::Rc;

const NS: u64 = 1000;
const CABLE: CableKind = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(10) };

/// Two hosts with queue pairs and a region each; completions are found when a processor could find them.
struct Bench {
    sim: Sim,
    cqs: [CqId; 2],
    /// By queue pair: its two ends.
    qps: Vec<[QpId; 2]>,
    regions: [MrInfo; 2],
    memory: Vec<Rc<Buffer>>,
    found: Vec<(u32, u64, u64)>,
}

/// A time in hundredths of a nanosecond.
fn hundredths(ps: u64) -> f64 {
    ps as f64 / 1000.0
}

impl Bench {
    fn new(profile: Profile, topology: Topology, latency_ns: u64, pairs: usize) -> Bench {
        let mut config =
            Config { payload: true, flow_bytes_max: 8, hardware: profile, ..Config::new(topology) };
        config.switch.latency_ps = latency_ns * NS;
        let mut sim = Sim::new(config).unwrap();
        let memory: Vec<Rc<Buffer>> = (0..2).map(|_| Rc::new(Buffer::new(1 << 16))).collect();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let made = [0usize, 1].map(|h| {
            let host = &mut sim.hosts.list[h];
            let cq = host.nic.create_cq(256).unwrap();
            (cq, memory[h].register(&mut host.nic, host.pd, access).unwrap())
        });
        let cqs = made.map(|(cq, _)| cq);
        let mut bench =
            Bench { sim, cqs, qps: Vec::new(), regions: made.map(|(_, mr)| mr), memory, found: Vec::new() };
        for _ in 0..pairs {
            bench.join();
        }
        bench
    }

    fn direct(profile: Profile, pairs: usize) -> Bench {
        Bench::new(profile, Topology::two_hosts(CABLE), 0, pairs)
    }

    fn join(&mut self) {
        self.join_with(|nic, init| nic.create_qp(init).unwrap());
    }

    /// Connects a queue pair of the first host, made like this, with a plain one of the second.
    fn join_with(&mut self, make: impl Fn(&mut Nic, &QpInit) -> QpId) {
        let caps =
            QpCaps { max_send_wr: 64, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 4, max_inline: 64 };
        let ends = [0, 1].map(|h: usize| {
            let (pd, cq) = (self.sim.hosts.list[h].pd, Some(self.cqs[h]));
            let init = QpInit {
                qp_type: QpType::Rc,
                pd: Some(pd),
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                xrcd: None,
                sq_sig_all: false,
                caps,
            };
            let host = &mut self.sim.hosts.list[h];
            let qp = if h == 0 { make(&mut host.nic, &init) } else { host.nic.create_qp(&init).unwrap() };
            (qp, host.nic.qp_number(qp).unwrap(), host.first_psn())
        });
        let t = TransportConfig { timeout: 0, ..TransportConfig::default() };
        for (h, other) in [(0, 1), (1, 0)] {
            let (mine, theirs) = (ends[h], ends[other]);
            let peer = Peer {
                host: other as u32,
                qpn: theirs.1,
                rq_psn: theirs.2,
                sq_psn: mine.2,
                depth: 16,
                plain: false,
            };
            self.sim.hosts.list[h].connect(Instant::ZERO, mine.0, &peer, &t).unwrap();
        }
        self.qps.push(ends.map(|(qp, ..)| qp));
    }

    /// Takes the first host's end of a pair for one that is connected to itself.
    fn join_itself(&mut self) {
        self.join();
        let qp = self.qps[self.qps.len() - 1][0];
        let host = &mut self.sim.hosts.list[0];
        let (mut attr, _) = host.nic.query_qp(qp).unwrap();
        attr.state = QpState::Reset;
        host.nic.modify_qp(Instant::ZERO, qp, &attr, QpAttrMask::STATE).unwrap();
        let (qpn, psn) = (host.nic.qp_number(qp).unwrap(), host.first_psn());
        let peer = Peer { host: 0, qpn, rq_psn: psn, sq_psn: psn, depth: 16, plain: false };
        let t = TransportConfig { timeout: 0, ..TransportConfig::default() };
        host.connect(Instant::ZERO, qp, &peer, &t).unwrap();
    }

    /// A place in the second host's memory.
    fn far(&self, at: u64) -> (u64, Key) {
        (self.memory[1].addr() + at, self.regions[1].rkey)
    }

    fn post(&mut self, pair: usize, wr_id: u64, op: SendOp, data: SendData<'_>) {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id, op, flags, data, ud: None, xrc_srqn: 0 };
        let (qp, now) = (self.qps[pair][0], Instant::from_ps(self.sim.now));
        self.sim.hosts.list[0].nic.post_send(now, qp, &wr).unwrap();
    }

    fn post_bytes(&mut self, pair: usize, wr_id: u64, op: SendOp, len: u32) {
        let sge = self.memory[0].sge(0, len as usize, self.regions[0].lkey);
        self.post(pair, wr_id, op, SendData::Sges(&[sge]));
    }

    fn post_inline(&mut self, pair: usize, wr_id: u64, op: SendOp, len: usize) {
        let bytes = [7u8; 64];
        self.post(pair, wr_id, op, SendData::Inline(&bytes[..len]));
    }

    fn post_recv(&mut self, pair: usize, len: usize) {
        self.post_entries(pair, &[len]);
    }

    /// A receive of entries of so many bytes each.
    fn post_entries(&mut self, pair: usize, entries: &[usize]) {
        let sges: Vec<Sge> =
            entries.iter().map(|len| self.memory[1].sge(0, *len, self.regions[1].lkey)).collect();
        let (qp, now) = (self.qps[pair][1], Instant::from_ps(self.sim.now));
        self.sim.hosts.list[1].nic.post_recv(now, qp, &RecvWr { wr_id: 99, sges: &sges }).unwrap();
    }

    fn post_nops(&mut self, pair: usize, count: u32) {
        for n in 1..=count {
            self.post(pair, u64::from(n), SendOp::Nop, SendData::Sges(&[]));
        }
    }

    /// Runs until nothing happens: (host, request, when a processor can find its completion, in ns).
    fn run(&mut self) -> Vec<(u32, u64, f64)> {
        self.sim.after_nic(0, false);
        while self.sim.run(u64::MAX, 1) {
            self.look();
            self.sim.check_invariants();
        }
        self.found.iter().map(|(h, id, at)| (*h, *id, hundredths(*at))).collect()
    }

    fn look(&mut self) {
        for h in [0usize, 1] {
            let cq = self.cqs[h];
            let host = &mut self.sim.hosts.list[h];
            while host.unit.as_deref_mut().is_none_or(|unit| unit.take_visible(cq))
                && let Some(done) = host.nic.poll_cq(cq).unwrap()
            {
                assert_eq!(done.status, Status::Success);
                self.found.push((h as u32, done.wr_id, self.sim.now));
            }
        }
    }
}

/// When a SEND of 64 B from memory is done that finds no receive at first, with a small SEND behind it.
fn sent_again(inline_behind: bool) -> f64 {
    let mut bench = Bench::direct(connectx5(), 1);
    bench.post_bytes(0, 1, SendOp::Send, 64);
    match inline_behind {
        true => bench.post_inline(0, 2, SendOp::Send, 8),
        false => bench.post_bytes(0, 2, SendOp::Send, 8),
    }
    bench.sim.after_nic(0, false);
    let mut receives = 2;
    while bench.sim.run(u64::MAX, 1) {
        // Both have left by then, and the first was refused.
        while receives > 0 && bench.sim.now > 5_000 * NS {
            bench.post_recv(0, 64);
            receives -= 1;
        }
        bench.look();
    }
    assert!(bench.sim.hosts.list[0].nic.counters().retransmitted_packets > 0);
    let done = bench.found.iter().find(|(h, id, _)| (*h, *id) == (0, 1));
    hundredths(done.expect("the first SEND completes").2)
}

#[test]
fn what_is_sent_again_is_read_again_whatever_was_executed_behind_it() {
    near(sent_again(true), sent_again(false), "a SEND before an inline one");
}

fn connectx5() -> Profile {
    by_name("connectx5").unwrap()
}

fn near(found: f64, wanted: f64, what: &str) {
    assert!((found - wanted).abs() < 0.0051, "{what}: {found} instead of {wanted}");
}

/// What one request takes on an idle network, until its requester's processor can find the completion.
fn takes(bench: &mut Bench, what: &str) -> f64 {
    let found = bench.run();
    let (_, _, at) = found.iter().rfind(|(h, ..)| *h == 0).unwrap_or_else(|| panic!("{what} completes"));
    *at
}

#[test]
fn writes_sends_and_reads_take_the_sums_of_their_parts() {
    type Post = fn(&mut Bench);
    let cases: [(&str, f64, Post); 8] = [
        ("WRITE of 64 B", 1_597.08, |b| {
            let (addr, key) = b.far(0);
            b.post_bytes(0, 1, SendOp::Write(addr, key), 64);
        }),
        ("WRITE of nothing", 1_271.72, |b| {
            let (addr, key) = b.far(0);
            b.post(0, 1, SendOp::Write(addr, key), SendData::Sges(&[]));
        }),
        ("inline WRITE of 64 B", 1_281.96, |b| {
            let (addr, key) = b.far(0);
            b.post_inline(0, 1, SendOp::Write(addr, key), 64);
        }),
        ("inline SEND of 14 B", 1_272.84, |b| {
            b.post_recv(0, 64);
            b.post_inline(0, 1, SendOp::Send, 14);
        }),
        ("SEND of 4,096 B", 2_091.64, |b| {
            b.post_recv(0, 4096);
            b.post_bytes(0, 1, SendOp::Send, 4096);
        }),
        ("READ of 64 B", 1_827.08, |b| {
            let (addr, key) = b.far(0);
            b.post_bytes(0, 1, SendOp::Read(addr, key), 64);
        }),
        ("READ of 4,096 B", 2_323.24, |b| {
            let (addr, key) = b.far(0);
            b.post_bytes(0, 1, SendOp::Read(addr, key), 4096);
        }),
        ("NOP", 1_037.0, |b| b.post_nops(0, 1)),
    ];
    for (what, wanted, post) in cases {
        let mut bench = Bench::direct(connectx5(), 1);
        post(&mut bench);
        near(takes(&mut bench, what), wanted, what);
        let received = bench.found.iter().find(|(h, ..)| *h == 1).map(|(.., at)| hundredths(*at));
        match what {
            "inline SEND of 14 B" => near(received.unwrap(), 1_155.96, "its receiver"),
            "SEND of 4,096 B" => near(received.unwrap(), 1_694.76 + 280.0, "its receiver"),
            _ => assert_eq!(received, None),
        }
    }
}

/// A cross-channel queue pair of the first host, connected to a plain one.
impl Bench {
    fn join_cross(&mut self, managed: bool) -> QpId {
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        self.join_with(|nic, init| nic.create_cross_qp(&QpInit { caps, ..*init }, managed).unwrap());
        self.qps.last().unwrap()[0]
    }

    /// Writes WQEs into a ring and rings its doorbell once, for all of them.
    fn chain(&mut self, qp: QpId, wqes: &[[u8; 64]]) {
        let now = Instant::from_ps(self.sim.now);
        let nic = &mut self.sim.hosts.list[0].nic;
        let memory = nic.send_queue_memory(qp).unwrap();
        wqes.iter().enumerate().for_each(|(at, wqe)| memory.write(64 * at, wqe));
        nic.on_doorbell(now, qp, wqes.len() as u32).unwrap();
    }

    /// NOPs in one of the three orders of RedN's figure 8; when the last one's completion can be found, in
    /// ns.
    fn nops(profile: Profile, order: Order, count: u32) -> f64 {
        let mut bench = Bench::direct(profile, 0);
        let cq = bench.cqs[0].index() as u32;
        let nop = ordering(WqeOp::Nop, 0, 0);
        match order {
            Order::Plain => {
                bench.join();
                bench.post_nops(0, count);
            }
            Order::Queue => {
                let qp = bench.join_cross(false);
                bench.chain(qp, &vec![nop; count as usize]);
            }
            Order::Completion => {
                let qp = bench.join_cross(false);
                let wait = |n| [ordering(WqeOp::Wait, n, cq), nop];
                let chain: Vec<_> = [nop].into_iter().chain((0..count - 1).flat_map(wait)).collect();
                bench.chain(qp, &chain);
            }
            Order::Doorbell => {
                let (starter, target) = (bench.join_cross(false), bench.join_cross(true));
                bench.chain(target, &vec![nop; count as usize]);
                let number = bench.sim.hosts.list[0].nic.qp_number(target).unwrap().get();
                let enable = |n| ordering(WqeOp::SendEnable, n, number);
                let next = |n| [ordering(WqeOp::Wait, n - 1, cq), enable(n + 1)];
                let chain: Vec<_> = [enable(1)].into_iter().chain((1..count).flat_map(next)).collect();
                bench.chain(starter, &chain);
            }
        }
        let found = bench.run();
        assert_eq!(found.len(), count as usize, "each NOP completes, and nothing else");
        found.last().unwrap().2
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Order {
    /// A queue as others, which fetches as it executes.
    Plain,
    /// A cross-channel queue that is fetched ahead.
    Queue,
    /// Each NOP waits for the completion of the one before.
    Completion,
    /// Each NOP of a managed queue is enabled when the one before has completed, and fetched then.
    Doorbell,
}

/// A WQE of one block: a NOP that is signaled, or a WAIT or ENABLE about a place in a queue, which is not.
fn ordering(op: WqeOp, index: u32, number: u32) -> [u8; 64] {
    let mut block = [0; 64];
    (block[3], block[7]) = (op as u8, 1);
    if op == WqeOp::Nop {
        block[11] = 8;
        return block;
    }
    block[7] = 2;
    block[24..28].copy_from_slice(&index.to_be_bytes());
    block[28..32].copy_from_slice(&number.to_be_bytes());
    block
}

/// RedN's figure 8: the order costs what its start, its WAITs, its ENABLEs and its fetches do.
#[test]
fn chains_of_nops_take_what_their_order_costs() {
    let cases = [
        (Order::Plain, 5, 2_065.0 - 170.0),
        (Order::Plain, 50, 8_480.0 - 170.0),
        (Order::Queue, 1, 1_207.0),
        (Order::Queue, 5, 2_065.0),
        (Order::Queue, 50, 8_480.0),
        (Order::Completion, 5, 2_613.0),
        (Order::Completion, 50, 9_230.5),
        // The starter's later fetches, of a WAIT and an ENABLE for each NOP from the fifth on, hold PCIe
        // before the target's fetches, which the model's sums leave out.
        (Order::Doorbell, 5, 4_108.0 + 0.08 * 128.0),
        (Order::Doorbell, 50, 26_630.5 + 0.08 * 46.0 * 128.0),
    ];
    for (order, count, wanted) in cases {
        near(Bench::nops(connectx5(), order, count), wanted, &format!("{count} NOPs, {order:?} order"));
    }
}

/// A WAIT that is not met leaves its unit to others; a WQE that was fetched runs as it was then.
#[test]
fn a_queue_that_waits_leaves_its_unit_free_and_keeps_what_it_has_fetched() {
    let p = Profile { units: 1, execute: 100 * NS, wait: 10 * NS, fetch: 300 * NS, ..Profile::NEUTRAL };
    let mut bench = Bench::direct(Profile { fetch_first: 4, ..p }, 0);
    let cq = bench.cqs[0].index() as u32;
    let (waiter, worker) = (bench.join_cross(false), bench.join_cross(false));
    let nop = ordering(WqeOp::Nop, 0, 0);
    // Both are on the one unit. The waiter goes on when the third NOP of the worker has completed.
    bench.chain(waiter, &[ordering(WqeOp::Wait, 2, cq), nop]);
    bench.chain(worker, &[nop; 4]);
    bench.sim.after_nic(0, false);
    bench.sim.run(200 * NS, u64::MAX);
    // What is written meanwhile is not what is executed: an operation that there is not would fail.
    let memory = bench.sim.hosts.list[0].nic.send_queue_memory(waiter).unwrap();
    memory.write(64, &[0xff; 64]);
    let found = bench.run();
    let at: Vec<f64> = found.iter().map(|(.., at)| *at).collect();
    // Fetched at 300, the worker's NOPs end at 400, 500, 600 and, the unit being taken already, at 700; the
    // WAIT is next, and then its NOP.
    assert_eq!(at, [400.0, 500.0, 600.0, 700.0, 810.0]);
}

/// Work of which a figure is made: what it takes, in ns.
type Figure = (&'static str, fn(Profile) -> f64);

const FIGURES: [Figure; 11] = [
    ("WRITE", |p| request(p, |b| b.post_bytes(0, 1, SendOp::Write(b.far(0).0, b.far(0).1), 64))),
    ("remote NOOP", |p| {
        request(p, |b| b.post(0, 1, SendOp::Write(b.far(0).0, b.far(0).1), SendData::Sges(&[])))
    }),
    ("inline WRITE", |p| request(p, |b| b.post_inline(0, 1, SendOp::Write(b.far(0).0, b.far(0).1), 64))),
    ("READ", |p| request(p, |b| b.post_bytes(0, 1, SendOp::Read(b.far(0).0, b.far(0).1), 64))),
    ("CAS", |p| request(p, |b| swap(b, 0, 1, 0))),
    ("ADD", |p| {
        request(p, |b| {
            let (addr, rkey) = b.far(0);
            b.post_bytes(0, 1, SendOp::FetchAdd { addr, rkey, add: 5 }, 8);
        })
    }),
    ("NOP", |p| Bench::nops(p, Order::Plain, 1)),
    ("queue order", |p| Bench::nops(p, Order::Queue, 5)),
    ("completion order", |p| Bench::nops(p, Order::Completion, 5)),
    ("doorbell order", |p| Bench::nops(p, Order::Doorbell, 5)),
    ("second CAS of a word", |p| {
        // The second one comes when the first holds the word: it waits for the rest of that.
        let mut bench = Bench::direct(p, 2);
        swap(&mut bench, 0, 1, 0);
        swap(&mut bench, 1, 2, 0);
        let found = bench.run();
        found[1].2 - found[0].2
    }),
];

fn request(profile: Profile, post: impl Fn(&mut Bench)) -> f64 {
    let mut bench = Bench::direct(profile, 1);
    post(&mut bench);
    takes(&mut bench, "a request")
}

/// Each parameter doubled moves the figures in which it is charged, by as many times its value as it is
/// charged there, and no other figure at all.
#[test]
fn a_parameter_moves_the_figures_in_which_it_is_charged() {
    // By figure: how many times.
    let table: [(&str, [i32; 11]); 27] = [
        ("doorbell", [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]),
        ("cross-start", [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0]),
        ("cross-load", [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0]),
        ("fetch", [1, 1, 1, 1, 1, 1, 1, 2, 2, 6, 0]),
        ("fetch-batch", [0; 11]),
        ("execute", [1, 1, 1, 1, 1, 1, 1, 5, 5, 5, 0]),
        ("wait", [0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 0]),
        ("enable", [0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0]),
        ("units", [0; 11]),
        ("pcie-read", [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        ("pcie-write", [0; 11]),
        ("pcie-reads", [0; 11]),
        ("port", [4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0]),
        ("read-turn", [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        ("atomic", [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1]),
        ("atomic-turn", [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        ("add", [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        ("add-turn", [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        ("atomic-slots", [0; 11]),
        ("completion", [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]),
        ("calc", [0; 11]),
        ("cpu-spin", [0; 11]),
        ("cpu-poll", [0; 11]),
        ("cpu-wake", [0; 11]),
        ("cpu-copy", [0; 11]),
        // Those that the card has not: nothing, doubled, is nothing.
        ("responder", [0; 11]),
        ("packet", [0; 11]),
    ];
    let before = FIGURES.map(|(_, figure)| figure(connectx5()));
    for (name, times) in table {
        let key = KEYS.iter().find(|key| key.name == name).unwrap();
        let mut doubled = connectx5();
        let value = *(key.field)(&mut doubled);
        *(key.field)(&mut doubled) = 2 * value;
        for (n, (what, figure)) in FIGURES.iter().enumerate() {
            let by = hundredths(value) * f64::from(times[n]);
            near(figure(doubled) - before[n], by, &format!("{name} doubled moves {what} by"));
        }
    }
    // Half the rate of PCIe: as many bytes again of payload at each end, and of an atomic's answer.
    let halved = Profile { pcie_rate: connectx5().pcie_rate / 2, ..connectx5() };
    let bytes = [128, 0, 64, 128, 8, 8, 0, 0, 0, 128, 0];
    for (n, (what, figure)) in FIGURES.iter().enumerate() {
        let by = 0.08 * f64::from(bytes[n]);
        near(figure(halved) - before[n], by, &format!("half the rate of PCIe moves {what} by"));
    }
    // A larger first fetch saves a chain its second one, and where that only holds PCIe before another's, its
    // bytes.
    let larger = Profile { fetch_first: 8, ..connectx5() };
    for (n, (what, figure)) in FIGURES.iter().enumerate() {
        let by = match *what {
            "queue order" | "completion order" => -350.0,
            "doorbell order" => -0.08 * 128.0,
            _ => 0.0,
        };
        near(figure(larger) - before[n], by, &format!("a first fetch of 8 moves {what} by"));
    }
}

/// Requests a second, in millions, of so many queue pairs that have 60 each: from the first fifth of the
/// completions to the last.
fn rate(profile: Profile, rack: bool, pairs: usize, post: impl Fn(&mut Bench, usize, u64)) -> f64 {
    let mut bench = match rack {
        true => Bench::new(profile, Topology::star(2, CABLE), 455, pairs),
        false => Bench::direct(profile, pairs),
    };
    for n in 0..60 {
        (0..pairs).for_each(|pair| post(&mut bench, pair, n));
    }
    let at: Vec<f64> = bench.run().iter().map(|(.., at)| *at).collect();
    let (from, to) = (at.len() / 5, at.len() * 4 / 5);
    (to - from) as f64 * 1000.0 / (at[to] - at[from])
}

const RATES: [Figure; 7] = [
    ("WRITEs of 16 queue pairs", |p| rate(p, false, 16, inline_write)),
    ("CAS of 24 words", |p| rate(p, false, 24, |b, pair, n| swap(b, pair, n + 1, pair as u64 * 8))),
    ("CAS of one word", |p| rate(p, false, 6, |b, pair, n| swap(b, pair, n + 1, 0))),
    ("rack: WRITEs of a queue pair", |p| rate(p, true, 1, inline_write)),
    ("rack: WRITEs of 24", |p| rate(p, true, 24, inline_write)),
    ("rack: READs of 24", |p| {
        rate(p, true, 24, |b, pair, n| {
            b.post_bytes(pair, n, SendOp::Read(b.far(8 * pair as u64).0, b.far(0).1), 8)
        })
    }),
    ("rack: CAS of a queue pair", |p| rate(p, true, 1, |b, pair, n| swap(b, pair, n + 1, 8 * n))),
];

fn inline_write(b: &mut Bench, pair: usize, n: u64) {
    b.post_inline(pair, n, SendOp::Write(b.far(8 * pair as u64).0, b.far(0).1), 8);
}

/// What saturates, saturates where the model says, and moves with its own parameter only.
#[test]
fn rates_are_those_of_what_they_saturate() {
    let rack = by_name("connectx5-rack").unwrap();
    let card = |n: usize| if n < 3 { connectx5() } else { rack };
    // RedN's table 1 and atomics; SwordBox's queue pair, its cap, its READs, its one queue pair of atomics.
    let wanted = [63.0, 8.40, 2.80, 18.2, 117.6, 93.5, 2.93];
    for (n, (what, figure)) in RATES.iter().enumerate() {
        let found = figure(card(n));
        assert!((found / wanted[n] - 1.0).abs() < 0.025, "{what}: {found} instead of {}", wanted[n]);
    }
    // By rate: what it is multiplied by.
    let table: [(&str, [f64; 7]); 8] = [
        ("execute", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("fetch", [1.0; 7]),
        ("pcie-read", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("atomic", [1.0, 0.5, 0.5, 1.0, 1.0, 1.0, 0.5]),
        ("atomic-slots", [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("responder", [1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0]),
        ("answer", [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0]),
        ("read-turn", [1.0; 7]),
    ];
    for (name, by) in table {
        let key = KEYS.iter().find(|key| key.name == name).unwrap();
        for (n, (what, figure)) in RATES.iter().enumerate() {
            let mut doubled = card(n);
            let value = *(key.field)(&mut doubled);
            *(key.field)(&mut doubled) = if value == AS_OTHER { value } else { 2 * value };
            let found = figure(doubled) / wanted[n];
            assert!((found / by[n] - 1.0).abs() < 0.06, "{name} doubled: {what} at {found} of {}", by[n]);
        }
    }
    let pipeline = Profile { packet: 2 * rack.packet, receive: 2 * rack.receive, ..rack };
    let found = [RATES[3], RATES[4], RATES[5], RATES[6]].map(|(_, figure)| figure(pipeline));
    for (found, wanted) in found.into_iter().zip([18.2, 58.8, 58.8, 2.93]) {
        assert!((found / wanted - 1.0).abs() < 0.06, "packet and receive doubled: {found}, not {wanted}");
    }
}

fn swap(b: &mut Bench, pair: usize, id: u64, at: u64) {
    let (addr, rkey) = b.far(at);
    b.post_bytes(pair, id, SendOp::CompareSwap { addr, rkey, compare: 0, swap: id }, 8);
}

#[test]
fn atomics_hold_their_word_and_their_queue_pair() {
    let mut bench = Bench::direct(connectx5(), 1);
    swap(&mut bench, 0, 1, 0);
    near(takes(&mut bench, "CAS"), 1_723.96, "CAS");
    let mut bench = Bench::direct(connectx5(), 1);
    let (addr, rkey) = bench.far(0);
    bench.post_bytes(0, 1, SendOp::FetchAdd { addr, rkey, add: 5 }, 8);
    near(takes(&mut bench, "ADD"), 1_633.96, "ADD");
    assert_eq!(bench.memory[1].word(0), 5);
    // Two at once: of one word by two queue pairs, on two units; the second waits for the first to let go.
    let mut bench = Bench::direct(connectx5(), 2);
    swap(&mut bench, 0, 1, 0);
    swap(&mut bench, 1, 2, 0);
    let found = bench.run();
    near(found[0].2, 1_723.96, "the first of one word");
    assert!((found[1].2 - 2_080.96).abs() < 10.0, "the second, behind the first's frame: {}", found[1].2);
    assert_eq!(bench.memory[1].word(0), 1, "the second compares in vain");
}

#[test]
fn a_rack_adds_its_switch() {
    let rack = by_name("connectx5-rack").unwrap();
    let bench = || Bench::new(rack, Topology::star(2, CABLE), 455, 1);
    let mut b = bench();
    let (addr, key) = b.far(0);
    b.post_inline(0, 1, SendOp::Write(addr, key), 8);
    assert!((takes(&mut b, "WRITE") - 2_179.5).abs() < 0.5, "{:?}", b.found);
    for (chip, read, cas) in [(false, 2_699.7, 2_759.8), (true, 2_349.7, 2_339.8)] {
        let mut b = bench();
        if chip {
            b.sim.hosts.list[1].chip.add(&b.memory[1]);
        }
        let (addr, key) = b.far(0);
        b.post_bytes(0, 1, SendOp::Read(addr, key), 8);
        let took = takes(&mut b, "READ");
        assert!((took - read).abs() < 0.5, "READ, chip {chip}: {took}");
        let mut b = bench();
        if chip {
            b.sim.hosts.list[1].chip.add(&b.memory[1]);
        }
        swap(&mut b, 0, 1, 0);
        let took = takes(&mut b, "CAS");
        assert!((took - cas).abs() < 0.5, "CAS, chip {chip}: {took}");
    }
}

/// Two queue pairs that share a unit take turns on it; on two units neither waits.
#[test]
fn queue_pairs_share_a_unit_or_have_one_each() {
    let last = |units: u64| {
        let p = Profile { units, execute: 100 * NS, fetch_batch: 64, fetch_first: 64, ..Profile::NEUTRAL };
        let mut bench = Bench::direct(p, 2);
        for pair in [0, 1] {
            bench.post_nops(pair, 20);
        }
        let found = bench.run();
        found.iter().filter(|(_, id, _)| *id == 20).map(|(.., at)| *at).collect::<Vec<_>>()
    };
    assert_eq!(last(1), [3_900.0, 4_000.0]);
    assert_eq!(last(2), [2_000.0, 2_000.0]);
    assert_eq!(last(0), [2_000.0, 2_000.0]);
}

/// More connections than fit, used in turns: each packet's state is read anew; those that fit, once.
#[test]
fn connections_beyond_the_cache_miss_every_time() {
    for (pairs, rounds) in [(4, 5u64), (5, 5)] {
        let p = Profile { cache_entries: 4, miss: 100 * NS, ..Profile::NEUTRAL };
        let mut bench = Bench::direct(p, pairs);
        for round in 0..rounds {
            for pair in 0..pairs {
                let (addr, key) = bench.far(0);
                bench.post_inline(pair, round, SendOp::Write(addr, key), 8);
                // One after another, so that the order of look-ups is that of the connections.
                bench.run();
            }
        }
        let misses = bench.sim.hosts.list[0].unit.as_ref().unwrap().misses();
        assert_eq!(misses, if pairs == 4 { 4 } else { pairs as u64 * rounds }, "{pairs} connections");
    }
}

#[test]
fn neutral_hardware_is_no_hardware() {
    let run = |profile: Profile| {
        let mut bench = Bench::direct(profile, 1);
        assert!(bench.sim.hosts.list[0].unit.is_none() && bench.sim.hosts.list[0].is_plain);
        let (addr, key) = bench.far(0);
        bench.post_inline(0, 1, SendOp::Write(addr, key), 8);
        bench.run();
        (bench.sim.stats(), bench.sim.trace_hash())
    };
    assert_eq!(run(Profile { cpu_spin: 5, ..Profile::NEUTRAL }), run(Profile::NEUTRAL));
}

/// Reads of one word by many queue pairs: the word sets the pace, however many ask; of words apart, it does
/// not.
#[test]
fn a_hot_word_sets_the_pace_of_those_who_read_it() {
    let last = |apart: u64| {
        let p = Profile { word_read: 1_000 * NS, ..Profile::NEUTRAL };
        let mut bench = Bench::direct(p, 8);
        for pair in 0..8 {
            let (addr, key) = bench.far(pair as u64 * apart);
            bench.post_bytes(pair, 1, SendOp::Read(addr, key), 8);
        }
        bench.run().iter().map(|(.., at)| *at).fold(0.0, f64::max)
    };
    let (hot, cold) = (last(0), last(8));
    // Eight requests of 98 bytes arrive 7.84 ns apart; the last waits for seven holds that began with the
    // first.
    assert!((hot - cold - (7.0 * 1_000.0 - 7.0 * 7.84)).abs() < 8.0, "{hot} {cold}");
}

/// What a queue pair owes while a unit works on its next WQE is sent meanwhile, and the unit's work counts.
#[test]
fn a_queue_pair_that_answers_itself_is_not_charged_twice() {
    let mut bench = Bench::direct(by_name("connectx5").unwrap(), 0);
    bench.join_itself();
    let (addr, key) = (bench.memory[0].addr(), bench.regions[0].rkey);
    for wr in 1..=4 {
        bench.post_bytes(0, wr, SendOp::Read(addr + 8 * wr, key), 8);
    }
    let found: Vec<f64> = bench.run().iter().map(|(.., at)| *at).collect();
    // To the responder and back: payload's read, the turn, and 8 bytes on PCIe twice.
    near(found[0], 757.0 + 540.0 + 280.0 + 1.28, "the first READ");
    let apart: Vec<f64> = found.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(apart.iter().all(|apart| (apart - 127.0).abs() < 0.01), "{apart:?}");
}

/// That a request's memory is not there is found out when its frame would leave: no frame leaves, and the
/// completion comes all the same.
#[test]
fn a_request_without_memory_ends_with_a_completion() {
    let mut bench = Bench::direct(by_name("connectx5").unwrap(), 1);
    let foreign = Key(bench.regions[0].lkey.0 ^ 1 << 16);
    let sge = bench.memory[0].sge(0, 8, foreign);
    let (addr, rkey) = bench.far(0);
    bench.post(0, 1, SendOp::Write(addr, rkey), SendData::Sges(&[sge]));
    bench.sim.after_nic(0, false);
    while bench.sim.run(u64::MAX, 1) {}
    let (cq, host) = (bench.cqs[0], &mut bench.sim.hosts.list[0]);
    assert!(host.unit.as_deref_mut().unwrap().take_visible(cq));
    assert_eq!(host.nic.poll_cq(cq).unwrap().unwrap().status, Status::LocalProtection);
}

/// A receive's first entry costs nothing, and neither does one that the message does not come to.
#[test]
fn each_further_entry_that_a_message_comes_to_takes_its_time() {
    let took = |scatter: u64, entries: &[usize]| {
        let profile = Profile { scatter: scatter * NS, ..by_name("connectx5").unwrap() };
        request(profile, |b| {
            b.post_entries(0, entries);
            b.post_inline(0, 1, SendOp::Send, 14);
        })
    };
    for (entries, charged) in
        [(&[64][..], 0), (&[14, 6], 0), (&[6, 8], 1), (&[3, 3, 4, 4], 3), (&[2, 2, 60], 2)]
    {
        near(took(50, entries) - took(0, entries), f64::from(charged) * 50.0, &format!("{entries:?}"));
    }
}

/// What one port of a card moves, the other one waits for; a card of its own does not.
#[test]
fn ports_of_a_card_share_its_pcie() {
    let took = |pcie_group: u64| {
        let profile = Profile { pcie_group, ..by_name("connectx5").unwrap() };
        request(profile, |b| {
            b.sim.hosts.list[1].unit.as_deref().unwrap().to_nic.take(0, 10_000 * NS);
            let (addr, key) = b.far(0);
            b.post_bytes(0, 1, SendOp::Write(addr, key), 64);
        })
    };
    near(took(0), 1_597.08, "a card of its own");
    // The fetch waits until the other port's bytes are through; the doorbell has come by then.
    near(took(1) - took(0), 10_000.0 - 280.0, "the same card");
}
