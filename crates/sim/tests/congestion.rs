//! Congestion control over a fabric: two flows that share a bottleneck, with each scheme.

use adverb_nic::{CongestionControl, DcqcnConfig, TcpConfig, TimelyConfig};
use adverb_sim::switch::ecn::Red;
use adverb_sim::{CableKind, Config, FlowSpec, Sim, SwitchConfig, Topology, TransportConfig, Verb, Via};
use adverb_wire::Duration;

const CABLE: CableKind = CableKind { rate: 40_000_000_000, delay: Duration::from_us(2) };

fn config(congestion: CongestionControl, irn: bool) -> Config {
    let mut c = Config::new(Topology::dumbbell(2, 2, CABLE, CABLE));
    c.flow_bytes_max = 1 << 28;
    c.switch =
        SwitchConfig { ecn: Some(Red { kmin: 5_000, kmax: 200_000, pmax: 0.01 }), ..SwitchConfig::default() };
    c.transport = TransportConfig { congestion, ecn: true, ..TransportConfig::default() };
    c.transport.irn = irn.then(|| adverb_nic::IrnConfig {
        bdp_packets: None,
        agreed: Some(512),
        ..adverb_nic::IrnConfig::paper()
    });
    c
}

/// Two flows, the second one `later` ps after the first. The bytes that each has had acknowledged in the last
/// half of `end`.
fn shares(config: Config, later: u64, end: u64) -> (Sim, [f64; 2]) {
    let mut sim = Sim::new(config).unwrap();
    sim.sample_every(10_000_000);
    let flow = |src, start| FlowSpec {
        start,
        src,
        dst: src + 2,
        bytes: 1 << 28,
        tag: 0,
        op: Verb::Write,
        via: Via::Any,
    };
    sim.add_flows([flow(0, 0), flow(1, later)]);
    let received = |sim: &Sim, h: usize| sim.hosts()[h].nic.counters().rx_bytes;
    while sim.run(end / 2, u64::MAX) {}
    let half = [received(&sim, 2), received(&sim, 3)];
    while sim.run(end, u64::MAX) {}
    sim.check_invariants();
    let gbps = |h: usize| (received(&sim, h) - half[h - 2]) as f64 * 8.0 / (end as f64 / 2.0 * 1e-12) / 1e9;
    let found = [gbps(2), gbps(3)];
    (sim, found)
}

/// Jain's index: 1 is fair, 1/2 is one flow alone.
fn fairness([a, b]: [f64; 2]) -> f64 {
    (a + b) * (a + b) / (2.0 * (a * a + b * b))
}

#[test]
fn two_flows_come_to_fair_shares() {
    // Timers of 55 us and steps of 40 Mb/s take their time; steps ten times as large are looked at here as
    // well.
    let dcqcn = DcqcnConfig { rate_additive: 400e6, ..DcqcnConfig::default() };
    let timely = TimelyConfig { delta: 50e6, ..TimelyConfig::default() };
    for (scheme, end_ms) in [
        (CongestionControl::Dcqcn(dcqcn), 30),
        (CongestionControl::Dcqcn(DcqcnConfig::default()), 40),
        (CongestionControl::Timely(timely), 40),
    ] {
        for irn in [false, true] {
            let (sim, found) = shares(config(scheme, irn), 1_000_000_000, end_ms * 1_000_000_000);
            let sum = found[0] + found[1];
            println!("{scheme:?} irn {irn}: {found:.2?} Gb/s, fairness {:.3}", fairness(found));
            assert!(fairness(found) > 0.95, "{scheme:?} irn {irn}: {found:?}");
            assert!(sum > 25.0, "{scheme:?} irn {irn}: {found:?} leaves the link idle");
            let drops: u64 = sim.ports().iter().map(|p| p.drops).sum();
            assert_eq!(drops, 0, "the queue stays in its buffer");
        }
    }
}

#[test]
fn without_control_the_queue_fills_and_with_it_does_not() {
    let deepest = |scheme| {
        let end = 10_000_000_000;
        let (sim, _) = shares(config(scheme, false), 0, end);
        let late = sim.samples().depths.iter().filter(|(at, ..)| *at > end / 2);
        late.map(|(.., depth)| *depth).max().unwrap_or(0)
    };
    let free = deepest(CongestionControl::Fixed);
    for scheme in
        [CongestionControl::Dcqcn(DcqcnConfig::default()), CongestionControl::Timely(TimelyConfig::default())]
    {
        let held = deepest(scheme);
        println!("{scheme:?}: {held} of {free}");
        assert!(held < free / 4, "{scheme:?}: {held} of {free}");
    }
}

#[test]
fn tcp_s_window_fills_a_link_and_gives_way_to_losses() {
    let mut c = config(CongestionControl::Tcp(TcpConfig::default()), true);
    c.switch.discipline = adverb_sim::Discipline::SharedBuffer { buffer: 240_000, alpha: f64::INFINITY };
    let (sim, found) = shares(c, 1_000_000_000, 40_000_000_000);
    println!("TCP: {found:.2?} Gb/s, fairness {:.3}", fairness(found));
    let drops: u64 = sim.ports().iter().map(|p| p.drops).sum();
    assert!(drops > 0 && found[0] + found[1] > 25.0, "{found:?}, {drops} drops");
    // Queues that drop their tail are not fair to windows in step; nobody starves.
    assert!(found[0].min(found[1]) > 1.0, "{found:?}");
}

#[test]
fn a_seed_replays() {
    for scheme in [
        CongestionControl::Dcqcn(DcqcnConfig::default()),
        CongestionControl::Timely(TimelyConfig::default()),
        CongestionControl::Tcp(TcpConfig::default()),
    ] {
        let hash = || shares(config(scheme, true), 10_000, 3_000_000_000).0.trace_hash();
        assert_eq!(hash(), hash());
    }
}

/// A queue pair that its rate keeps waiting is found out when its port becomes free; nothing else may happen
/// at its host until its time comes, and there is no retransmission timer to hide a timer that was missed.
#[test]
fn a_queue_pair_that_waits_for_its_rate_goes_on() {
    let text = "seed = 1\n[topology]\nkind = \"fat-tree\"\nk = 4\nrate = \"40G\"\ndelay = \"2us\"\n\
        [switch]\ndiscipline = \"input-queued\"\nbuffer = \"240KB\"\n\
        [switch.ecn]\nkmin = \"5KB\"\nkmax = \"200KB\"\npmax = 0.01\n[switch.pfc]\nxoff = \"220KB\"\n\
        [transport]\ntimeout = 0\nack-every = 1000000\ncongestion = \"dcqcn\"\necn = true\n\
        [workload]\nkind = \"poisson\"\nload = 0.7\nflows = 2000\nsizes = \"heavy-tailed\"\n";
    let scenario = adverb_sim::Scenario::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let mut sim = scenario.plan(&mut |_| unreachable!("it names no file")).unwrap().start().unwrap();
    sim.run(u64::MAX, u64::MAX);
    assert!(sim.stats().marked > 1000, "rates were cut");
    assert!(sim.flows_done(), "{} of {} ended", sim.flows_ended(), sim.flows().len());
}
