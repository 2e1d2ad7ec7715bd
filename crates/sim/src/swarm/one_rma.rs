//! A swarm of 1RMA: random fabrics, NICs, faults and work, all from one seed, under the oracle. First with
//! faults: every operation ends within the bound, and memory is as the reports say. Then without: everything
//! ends, and what begins then ends well.

use super::one_rma_oracle::Oracle;
use crate::fabric::faults::{FaultPlan, LinkFaults};
use crate::fabric::topology::Topology;
use crate::host::one_rma::{Pcie, RegionChange, RegionEvent, RmaConfig};
use crate::sim::{Config, Sim};
use crate::swarm::{Outcome, pick, random_faults, random_switch, random_topology};
use crate::watch::trace::seed_of;
use crate::workload::flows::{FlowSpec, Verb, Via};
use adverb_nic::Mtu;
use adverb_nic::one_rma::congestion::CongestionConfig;
use adverb_nic::one_rma::executor::Retry;
use adverb_nic::one_rma::{ExecutorConfig, OneRmaConfig};
use adverb_wire::Duration;

/// Virtual time with faults, in ps.
const FAULTY_PS: u64 = 3_000_000_000;
/// When what begins must end well: what was under way has ended by then, windows that failures have made
/// small included.
const LIVE_PS: u64 = 200_000_000_000;
/// Between one flow that must end well and the next.
const LIVE_GAP_PS: u64 = 10_000_000_000;
/// Bytes of a flow at most.
const APART: u32 = 16 << 10;

/// A mistake that a NIC could make, to see that the oracle finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// After a write was reported as failed, a byte of it lands.
    WriteAfterFailure,
    /// A byte that no operation is about changes.
    WriteOutside,
    /// A read that was reported as done has a wrong byte.
    WrongByte,
}

/// The fabric, faults and work of a seed.
fn scenario(seed: u64) -> (Config, FaultPlan, Vec<FlowSpec>) {
    let mut rng = fastrand::Rng::with_seed(seed_of(seed, "one-rma swarm", 0));
    let topology = random_topology(&mut rng);
    let switch = random_switch(&mut rng, Mtu::M4096, crate::swarm::is_ring(&topology));
    let mut faults = random_faults(&mut rng, &topology, seed);
    for LinkFaults { chances, .. } in &mut faults.links {
        chances.jitter_ps = *pick(&mut rng, &[0, 0, 2_000_000, 20_000_000]);
    }
    let class = rng.u8(0..switch.classes);
    let one_rma = random_rma(&mut rng, &topology, class);
    let mut flows = random_flows(&mut rng, topology.hosts);
    let live = 2 * topology.hosts;
    for n in 0..live {
        let (src, dst) = (n % topology.hosts, (n + 1) % topology.hosts);
        let start = LIVE_PS + u64::from(n) * LIVE_GAP_PS;
        let op = if n < topology.hosts { Verb::Read } else { Verb::Write };
        // One operation each: several at once may be NACKed for good, where nothing controls congestion.
        let bytes = rng.u32(1..=u32::from(one_rma.executor.op_size));
        flows.push(FlowSpec { start, src, dst, bytes, tag: 1, op, via: Via::Any });
    }
    let flow_bytes_max = u64::from(APART) * flows.len() as u64;
    let config = Config {
        switch,
        one_rma: Some(one_rma),
        payload: true,
        flow_bytes_max,
        seed,
        ..Config::new(topology)
    };
    (config, faults, flows)
}

fn random_rma(rng: &mut fastrand::Rng, t: &Topology, class: u8) -> RmaConfig {
    let pcie = match rng.u32(0..3) {
        0 => {
            Pcie { byte_ps: rng.u64(10..200), read_ps: rng.u64(0..1_000_000), write_ps: rng.u64(0..500_000) }
        }
        _ => Pcie::default(),
    };
    // The longest way there and back, with a full message on every link, and memory at both ends.
    let slowest = t.cables.iter().map(|c| c.rate).min().unwrap_or(1);
    let link = t.delay_max().as_ps() + 4_300 * 8_000_000_000_000 / slowest;
    let rtt = Duration::from_ps(14 * link + 8192 * pcie.byte_ps + pcie.read_ps + pcie.write_ps);
    let times = |n: u64| Duration::from_ps(rtt.as_ps() * n);
    let window = *pick(rng, &[4096, 8191, 20_000, 64 << 10, 256 << 10]);
    let nic = OneRmaConfig {
        regions: 16,
        processes: 1,
        inbound_ops: *pick(rng, &[1, 4, 64, 256]),
        window,
        max_piece: *pick(rng, &[64, 256, 1024, 4096, 4096]),
        dispatch_timeout: times(rng.u64(1..=2)),
        timeout: times(rng.u64(4..=6)),
        rtt,
        nack_threshold: *pick(rng, &[None, Some(0), Some(5_000), Some(u32::MAX)]),
        ..OneRmaConfig::default()
    };
    let default =
        CongestionConfig { rtt, remote_target: times(2), local_target: rtt, ..CongestionConfig::default() };
    let free = CongestionConfig { window_min: 1e9, window_start: 1e9, window_max: 1e9, ..default };
    let congestion = if rng.u32(0..4) == 0 { free } else { default };
    let mut events = Vec::new();
    for _ in 0..rng.u32(0..3) {
        let what =
            if rng.bool() { RegionChange::Rekey } else { RegionChange::Driver(rng.u64(1..200_000_000)) };
        events.push(RegionEvent { at: rng.u64(0..FAULTY_PS), host: rng.u32(0..t.hosts), what });
    }
    events.sort_by_key(|event| event.at);
    RmaConfig {
        nic,
        executor: ExecutorConfig {
            congestion,
            op_size: *pick(rng, &[4096, 4096, 1000, 64]),
            ..ExecutorConfig::default()
        },
        slots: rng.u32(1..40),
        retry: Retry::times(*pick(rng, &[0, 0, 1, 5])),
        pcie,
        command_ps: 0,
        class,
        apart: u64::from(APART),
        events,
        beside_queues: false,
    }
}

fn random_flows(rng: &mut fastrand::Rng, hosts: u32) -> Vec<FlowSpec> {
    let most = if rng.bool() { APART } else { 4096 };
    let within = *pick(rng, &[10_000_000, 300_000_000, FAULTY_PS]);
    let flow = |rng: &mut fastrand::Rng| {
        let src = rng.u32(0..hosts);
        let dst = (src + rng.u32(1..hosts)) % hosts;
        let op = if rng.bool() { Verb::Read } else { Verb::Write };
        FlowSpec { start: rng.u64(0..within), src, dst, bytes: rng.u32(1..=most), tag: 0, op, via: Via::Any }
    };
    (0..rng.u32(5..60)).map(|_| flow(rng)).collect()
}

/// Runs a seed.
pub fn run_seed(seed: u64) -> Outcome {
    run(seed, None, &mut |_| {})
}

/// Runs a seed with a mistake made on purpose.
pub fn run_broken(seed: u64, mistake: Mistake) -> Outcome {
    run(seed, Some(mistake), &mut |_| {})
}

/// Runs a seed again and shows all that happens, a line each.
pub fn replay(seed: u64, show: &mut dyn FnMut(&str)) -> Outcome {
    run(seed, None, &mut |sim| super::show_step(sim, false, show))
}

/// Runs a seed; `step` sees the simulation before its first event and after every one.
fn run(seed: u64, mistake: Option<Mistake>, step: &mut dyn FnMut(&mut Sim)) -> Outcome {
    let (config, faults, flows) = scenario(seed);
    let mut outcome = Outcome::new(seed);
    let mut sim = match Sim::new(config) {
        Ok(sim) => sim,
        Err(why) => {
            outcome.failures.push(why.to_string());
            return outcome;
        }
    };
    let rma = &mut sim.hosts.one_rma;
    rma.oracle = Some(Box::new(Oracle::new(&rma.hosts, rma.config.apart)));
    sim.set_faults(faults);
    sim.add_flows(flows);
    let mut mistake = mistake;
    step(&mut sim);
    for end in [FAULTY_PS, u64::MAX] {
        while sim.run(end, 1) && !sim.has_failed() {
            sim.check_invariants();
            if mistake.is_some_and(|mistake| sim.make(mistake)) {
                mistake = None;
            }
            step(&mut sim);
        }
        sim.repair();
    }
    step(&mut sim);
    sim.conclude_rma(&mut outcome);
    outcome
}

impl Sim {
    fn has_failed(&self) -> bool {
        self.hosts.one_rma.oracle.as_ref().is_some_and(|oracle| !oracle.failures.is_empty())
    }

    /// What is wrong when nothing is left to happen.
    fn conclude_rma(&mut self, outcome: &mut Outcome) {
        let (s, count) = (self.stats(), self.flows.list.len());
        let live_failed =
            self.flows.list.iter().filter(|f| f.spec.tag == 1 && (f.failed || f.received == u64::MAX));
        let live_failed = live_failed.count();
        let live = self.fabric.packets.live();
        outcome.trace = self.trace_hash();
        outcome.faults = s.lost + s.corrupted + s.duplicated + s.drops;
        outcome.completed = self.flows.list.iter().filter(|f| f.received != u64::MAX).count() as u64;
        let rma = &mut self.hosts.one_rma;
        let Some(oracle) = &mut rma.oracle else { return };
        if oracle.failures.is_empty() {
            oracle.verdict(&rma.hosts, count);
            let bound = rma.hosts[0].nic.config().bound().as_ps();
            if rma.record.longest_ps > bound {
                let longest = rma.record.longest_ps;
                oracle
                    .failures
                    .push(format!("an operation took {longest} ps, longer than the bound of {bound}"));
            }
            if live_failed > 0 {
                oracle.failures.push(format!("without faults, {live_failed} flows did not end well"));
            }
            if live > 0 || s.injected + s.duplicated != s.delivered + s.lost + s.drops {
                oracle.failures.push(format!("messages are unaccounted for: {s:?}, {live} under way"));
            }
            for (h, host) in rma.hosts.iter().enumerate() {
                let idle = !host.nic.has_work()
                    && host.executor.transfers() == 0
                    && host.executor.outstanding() == 0;
                if !idle || host.nic.next_deadline().is_some() {
                    oracle.failures.push(format!("host {h} is not idle when nothing is left to happen"));
                }
            }
        }
        outcome.failures.append(&mut oracle.failures);
    }

    /// Makes a mistake, once there is an occasion; whether it was made.
    fn make(&mut self, mistake: Mistake) -> bool {
        let rma = &mut self.hosts.one_rma;
        let apart = rma.config.apart as usize;
        let ended = self.flows.list.iter().enumerate().filter(|(_, flow)| flow.completed != u64::MAX);
        let found = match mistake {
            Mistake::WriteAfterFailure => ended.clone().find(|(_, f)| f.failed && f.spec.op == Verb::Write),
            Mistake::WrongByte => ended.clone().find(|(_, f)| !f.failed && f.spec.op == Verb::Read),
            Mistake::WriteOutside => ended.clone().next(),
        };
        let Some((number, flow)) = found else { return false };
        let host = if mistake == Mistake::WriteOutside { flow.spec.src } else { flow.spec.dst };
        let Some(memory) = rma.hosts[host as usize].memory() else { return false };
        let mut byte = [0];
        memory.read(number * apart, &mut byte);
        memory.write(number * apart, &[byte[0] ^ 1]);
        true
    }
}
