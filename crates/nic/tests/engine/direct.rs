//! Requests to queue pairs of the same NIC are carried out without packets where a chain runs, and by packets
//! where it is watched. Nothing that a program can see tells the two apart.

use super::world::*;
use adverb_nic::*;

const BYTES: usize = 8192;
const ROOM: QpCaps =
    QpCaps { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 3, max_recv_sge: 1, max_inline: 64 };

/// A NIC with a cross-channel queue pair that is connected to itself, and two that are to each other.
struct Loops {
    w: World,
    memory: Memory,
    /// Read-only to peers, and to the NIC.
    fixed: Memory,
    qps: [QpId; 3],
    /// Requests may break rules.
    faults: bool,
    /// RECV_ENABLEs let messages take receives.
    managed: bool,
}

impl Loops {
    fn new(seed: u64, watched: bool) -> Loops {
        let mut w = World::with_config(1, seed, |config| config.watch_chains = watched);
        w.keep_log = true;
        let memory = w.memory(0, BYTES);
        let fixed = w.memory_with(0, BYTES, Access::REMOTE_READ);
        memory.write(0, &pattern(seed as u8, BYTES));
        fixed.write(0, &pattern(!seed as u8, BYTES));
        let node = &mut w.nodes[0];
        let init = QpInit::rc(node.pd, node.cq, ROOM);
        let (faults, managed) = (seed.is_multiple_of(4), seed.is_multiple_of(7));
        let flags = if managed { QpFlags::MANAGED_RECV } else { QpFlags::empty() } | QpFlags::CROSS_CHANNEL;
        let qps = [(); 3].map(|()| node.nic.create_qp_with(&init, flags).unwrap());
        let start = adverb_wire::Psn::new(0xff_fff0);
        let mut access = Link::default().access;
        if seed.is_multiple_of(20) {
            access.remove(Access::REMOTE_READ);
        }
        let link = Link { psn: (start, start), access, ..Link::default() };
        for (near, far) in [(0, 0), (1, 2), (2, 1)] {
            w.connect((0, qps[near]), (0, qps[far]), &link);
        }
        Loops { w, memory, fixed, qps, faults, managed }
    }

    /// Posts a random request to one of the queue pairs.
    fn post(&mut self, rng: &mut fastrand::Rng, qp: usize, wr_id: u64) {
        let Loops { w, memory, fixed, qps, .. } = self;
        let faulty = |rng: &mut fastrand::Rng| self.faults && rng.u8(..20) == 0;
        let number = w.nodes[0].nic.qp_number(qps[qp]).unwrap();
        let len = [8, 8, 8, 1, 64, 100, 1024, 1025, 3000, 0][rng.usize(..10)];
        let place = |rng: &mut fastrand::Rng, len: usize| rng.usize(..(BYTES - len) / 8) * 8 + len % 2;
        let there = if faulty(rng) { &*fixed } else { &*memory };
        let op = rng.u8(..12);
        let target = match op {
            4..8 if !faulty(rng) => rng.usize(..BYTES / 8) * 8,
            _ => place(rng, len),
        };
        let (mut addr, mut rkey) = there.at(target);
        if faulty(rng) {
            rkey = adverb_wire::Key(rkey.0 ^ 0x100);
        }
        if faulty(rng) {
            addr += BYTES as u64;
        }
        let here = if faulty(rng) { &*fixed } else { &*memory };
        let size = if (4..8).contains(&op) && !faulty(rng) { 8 } else { len };
        let mut sges = vec![here.sge(place(rng, size), size)];
        if rng.u8(..4) == 0 && size > 1 {
            let (half, from) = (size / 2, place(rng, size));
            sges = vec![here.sge(from, half), here.sge(place(rng, size), size - half)];
        }
        let bytes = pattern(wr_id as u8, 24);
        let (compare, swap) = (memory.word(target / 8 * 8 % BYTES), rng.u64(..));
        let (compare_mask, swap_mask) = (rng.u64(..) | 0xff, rng.u64(..));
        let op = match op {
            0..2 => SendOp::Write(addr, rkey),
            2..4 => SendOp::Read(addr, rkey),
            4 => SendOp::CompareSwap { addr, rkey, compare, swap },
            5 => SendOp::FetchAdd { addr, rkey, add: swap },
            6 => SendOp::MaskedCompareSwap { addr, rkey, compare, swap, compare_mask, swap_mask },
            7 => SendOp::MaskedFetchAdd { addr, rkey, add: swap, boundary: swap_mask },
            8 => SendOp::WriteImm(addr, rkey, wr_id as u32),
            9 if self.managed => SendOp::RecvEnable { qp: number, index: wr_id as u32 },
            9 | 10 => SendOp::Nop,
            _ => SendOp::Send,
        };
        let inline = rng.u8(..6) == 0 && matches!(op, SendOp::Write(..) | SendOp::Send) && size <= 24;
        let data = if inline { SendData::Inline(&bytes[..size]) } else { SendData::Sges(&sges) };
        let flags = SendFlags { signaled: rng.bool(), fence: rng.u8(..4) == 0, solicited: false };
        w.send(0, qps[qp], SendWr { wr_id, op, flags, data, ud: None, xrc_srqn: 0 });
    }

    /// What a program sees: completions, memory, packet numbers, explanations; and what is counted.
    fn outcome(&mut self) -> (Vec<Completion>, Vec<u8>, Vec<String>, Vec<String>, Counters) {
        // Each queue pair's in their order.
        let mut done: Vec<_> = std::iter::from_fn(|| self.w.poll(0)).collect();
        done.sort_by_key(|done| done.qp.get());
        let nic = &mut self.w.nodes[0].nic;
        let ends = self.qps.iter().map(|qp| {
            let (attr, _) = nic.query_qp(*qp).unwrap();
            format!("{:?} {:?} {:?}", attr.state, attr.sq_psn, attr.rq_psn)
        });
        let ends = ends.collect();
        let told = std::iter::from_fn(|| nic.next_explanation()).map(|e| format!("{} {}", e.wr_id, e.rule));
        let told = told.collect();
        nic.check_invariants();
        (done, self.memory.read(0, BYTES), ends, told, *nic.counters())
    }
}

/// Counters that do not depend on how many packets there were. Between two queue pairs one acknowledgement
/// may stand for several requests, and packets may leave before the one in front of them is refused.
fn without_packets(counters: Counters) -> [u64; 6] {
    let Counters { completions, error_completions, rnr_naks_sent, error_naks_sent, timeouts, .. } = counters;
    [completions, error_completions, rnr_naks_sent, error_naks_sent, timeouts, counters.drop_length]
}

#[test]
fn requests_without_packets_end_as_those_with_packets() {
    let (mut failed, mut succeeded) = (0, 0);
    for seed in 0..250u64 {
        let mut worlds = [Loops::new(seed, false), Loops::new(seed, true)];
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut posted = 0;
        for round in 0..12 {
            // Between two queue pairs a READ may be answered when later requests have been executed.
            let (qp, count) = if seed % 3 == 0 { (rng.usize(1..3), 1) } else { (0, rng.u64(1..6)) };
            let receives = count + rng.u64(..2);
            for loops in &mut worlds {
                let mut rng = rng.clone();
                let peer = [0, 2, 1][qp];
                for _ in 0..receives {
                    let sge = loops.memory.sge(rng.usize(..500) * 8, 4096);
                    let now = loops.w.now;
                    let recv = RecvWr { wr_id: 1 << 32 | round, sges: &[sge] };
                    // A full queue takes no more.
                    let _ = loops.w.nodes[0].nic.post_recv(now, loops.qps[peer], &recv);
                }
                for number in 0..count {
                    loops.post(&mut rng, qp, posted + number);
                }
                loops.w.run(adverb_wire::Duration::from_ms(1));
                assert!(loops.w.log.is_empty(), "seed {seed}: a frame reached the driver");
            }
            for _ in 0..400 {
                rng.u64(..);
            }
            posted += count;
            let [direct, packets] = worlds.each_mut().map(Loops::outcome);
            let (done, memory, ends, told, counted) = direct;
            succeeded += done.iter().filter(|done| done.status == Status::Success).count();
            failed += done.iter().filter(|done| done.status != Status::Success).count();
            assert_eq!(done, packets.0, "seed {seed}, round {round}");
            // What waited for a receive is sent again together with what came behind it.
            let ordered = qp == 0 || counted.rnr_naks_sent == 0;
            assert!(!ordered || memory == packets.1, "seed {seed}, round {round}: memory");
            assert_eq!((ends, told), (packets.2, packets.3), "seed {seed}, round {round}");
            if qp == 0 && seed % 3 != 0 {
                assert_eq!(counted, packets.4, "seed {seed}, round {round}");
            }
            assert_eq!(without_packets(counted), without_packets(packets.4), "seed {seed}, round {round}");
        }
    }
    assert!(succeeded > 2000 && failed > 500, "{succeeded} and {failed}");
}
