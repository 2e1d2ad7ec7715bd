//! Congestion control over a fabric: two flows that share a bottleneck, with each scheme.

use adverb_nic::{
    CongestionControl, DcqcnConfig, DctcpConfig, HpccConfig, SwiftConfig, TcpConfig, TimelyConfig,
};
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
        CongestionControl::Dctcp(DctcpConfig::default()),
        CongestionControl::Swift(SwiftConfig::default()),
        CongestionControl::Hpcc(HpccConfig::default()),
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
        [switch.ecn]\nkmin = \"5KB\"\nkmax = \"200KB\"\npmax = 0.01\n[switch.pfc]\nheadroom = \"24KB\"\n\
        [transport]\ntimeout = 0\nack-every = 1000000\ncongestion = \"dcqcn\"\necn = true\n\
        [workload]\nkind = \"poisson\"\nload = 0.7\nflows = 2000\nsizes = \"heavy-tailed\"\n";
    let scenario = adverb_sim::Scenario::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let mut sim = scenario.plan(&mut |_| unreachable!("it names no file")).unwrap().start().unwrap();
    sim.run(u64::MAX, u64::MAX);
    assert!(sim.stats().marked > 1000, "rates were cut");
    assert!(sim.flows_done(), "{} of {} ended", sim.flows_ended(), sim.flows().len());
}

fn step(bytes: u32) -> Red {
    Red { kmin: bytes, kmax: bytes, pmax: 1.0 }
}

/// Mean and most of what waited for the busiest port in the second half, in KB.
fn queue(sim: &Sim, end: u64) -> (f64, f64) {
    let series = sim.series();
    assert_eq!(series.missed, 0);
    let late = || series.links.iter().filter(|s| s.at > end / 2);
    let sum = |link| late().filter(|s| s.link == link).map(|s| f64::from(s.queue)).sum::<f64>();
    let busiest = (0..sim.links().len() as u32).max_by(|a, b| sum(*a).total_cmp(&sum(*b))).unwrap_or(0);
    let times = (end - end / 2) / sim.sampled_every();
    let most = late().filter(|s| s.link == busiest).map(|s| s.queue).max().unwrap_or(0);
    (sum(busiest) / times as f64 / 1e3, f64::from(most) / 1e3)
}

/// The schemes that go by each packet: two flows, the second one later, get fair shares, with either
/// recovery; the queue and the link are as their papers derive, and what they go by is at work.
#[test]
fn two_flows_meet_what_papers_derive_of_queue_and_link() {
    const END: u64 = 16_000_000_000;
    // Six cables of 2 us, three full packets and as many acknowledgements.
    const RTT_US: f64 = 12.7;
    // Payload in a packet of 1,106 bytes, and in one that is stamped.
    let (line, stamped) = (40.0 * 1024.0 / 1106.0, 40.0 * 1024.0 / 1148.0);
    let swift = SwiftConfig { target: Duration::from_us(30), ..SwiftConfig::default() };
    let hpcc = HpccConfig { base_rtt: Duration::from_us(13), ..HpccConfig::default() };
    for scheme in [
        CongestionControl::Dctcp(DctcpConfig::default()),
        CongestionControl::Swift(swift),
        CongestionControl::Hpcc(hpcc),
    ] {
        for irn in [false, true] {
            let mut c = config(scheme, irn);
            // The bandwidth-delay product is 64 KB; a seventh of it is what K has to be above.
            c.switch.ecn = Some(step(30_000));
            let (sim, found) = shares(c, 1_000_000_000, END);
            let (mean, most) = queue(&sim, END);
            let counts = |f: fn(&adverb_nic::Counters) -> u64| {
                sim.hosts().iter().map(|h| f(h.nic.counters())).sum::<u64>()
            };
            let (echoes, brought) = (counts(|c| c.ecn_echo_handled), counts(|c| c.telemetry_handled));
            let (fair, sum) = (fairness(found), found[0] + found[1]);
            let is = format!(
                "{scheme:?} irn {irn}: {found:.2?} Gb/s, fairness {fair:.3}, queue {mean:.1} KB, at most \
                 {most:.1}, {echoes} echoes, {brought} with telemetry"
            );
            println!("{is}");
            assert!(fair > 0.95, "{is}");
            let drops: u64 = sim.ports().iter().map(|p| p.drops).sum();
            assert_eq!(drops, 0, "the queue stays in its buffer");
            let works = (echoes > 100, brought > 10_000, sim.stats().stamped > 20_000);
            let near = |value: f64, wanted: f64, by: f64| (value / wanted - 1.0).abs() < by;
            match scheme {
                // Section 3.3: Q_max = K + N; section 3.4: above C RTT / 7 the queue does not run empty.
                CongestionControl::Dctcp(_) => {
                    assert!(near(most, 30.0 + 2.0 * 1.106, 0.15) && near(sum, line, 0.03), "{is}");
                    assert_eq!(works, (true, false, false), "{is}");
                }
                // The round trip is kept at the target, which is a little longer for windows of 69 packets:
                // shares would otherwise stay what they were.
                CongestionControl::Swift(_) => {
                    assert!(near(mean, (30.7 - RTT_US) * 5.0, 0.15) && near(sum, line, 0.03), "{is}");
                    assert_eq!(works, (false, false, false), "{is}");
                }
                // Links are as full as eta says, and the queue is below a tenth of the product.
                _ => {
                    assert!(near(sum, 0.95 * stamped, 0.03) && mean < 6.4, "{is}");
                    assert_eq!(works, (false, true, true), "{is}");
                }
            }
        }
    }
}

/// More senders than the bandwidth-delay product has packets: Swift's windows fall below one, and its queue
/// stays bounded; without them it would be a packet for each sender.
#[test]
fn swift_goes_below_a_packet_where_an_incast_needs_it() {
    let deepest = |min_cwnd: f64| {
        let swift = SwiftConfig {
            target: Duration::from_us(25),
            fs_range: Duration::from_us(15),
            min_cwnd,
            ..SwiftConfig::default()
        };
        let mut c = Config::new(Topology::star(201, CABLE));
        c.transport = TransportConfig { congestion: CongestionControl::Swift(swift), ..c.transport };
        let mut sim = Sim::new(c).unwrap();
        sim.sample_every(5_000_000);
        let mut rng = fastrand::Rng::with_seed(1);
        let flows = adverb_sim::workload::pattern::incast(201, (200, Some(0)), 20_000_000, 0, &mut rng);
        sim.add_flows(flows);
        let end = 3_000_000_000;
        while sim.run(end, u64::MAX) {}
        let (mean, _) = queue(&sim, end);
        let paced = sim.series().flows.iter().filter(|s| s.rate < 40_000_000_000).count();
        (mean, paced)
    };
    let (own, whole) = (deepest(0.001), deepest(1.0));
    println!("windows below a packet: {own:?}, from one packet on: {whole:?}");
    assert!(own.1 > 1000 && whole.1 == 0, "{own:?} {whole:?}");
    assert!(own.0 < 150.0 && whole.0 > 170.0, "{own:?} {whole:?}");
}
