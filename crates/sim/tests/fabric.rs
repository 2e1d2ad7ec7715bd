//! Fabrics as a whole: exact times, lossless and lossy switches, pauses, deadlock, marks, failures,
//! faults by script, captures, determinism.

use adverb_nic::Mtu;
use adverb_sim::faults::{FaultPlan, LinkFaults, Outage, Rule};
use adverb_sim::hardware::Profile;
use adverb_sim::switch::ecn::Red;
use adverb_sim::switch::pfc::Pfc;
use adverb_sim::topology::{Cable, Node};
use adverb_sim::workload::pattern::{all_to_all, incast, permutation};
use adverb_sim::workload::{Closed, Workload};
use adverb_sim::{
    Balance, CableKind, Config, Discipline, FlowSpec, Sim, SwitchConfig, Topology, TransportConfig, Verb, Via,
};
use adverb_wire::Duration;
use std::sync::{Arc, Mutex};

const CABLE: CableKind = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };
const PACKET: u32 = 1024 + 82;

fn config(topology: Topology) -> Config {
    Config { flow_bytes_max: 1 << 26, ..Config::new(topology) }
}

fn flow(src: u32, dst: u32, bytes: u32) -> FlowSpec {
    FlowSpec { start: 0, src, dst, bytes, tag: 0, op: Verb::Write, via: Via::Any }
}

fn pfc(xoff: u32, xon: u32) -> [Option<Pfc>; 8] {
    let mut classes = [None; 8];
    classes[0] = Some(Pfc { xoff: xoff * PACKET, xon: xon * PACKET, headroom: 64 * PACKET });
    classes
}

fn finish(sim: &mut Sim) {
    while sim.run(u64::MAX, 10_000) {
        sim.check_invariants();
    }
    sim.check_invariants();
}

#[test]
fn a_packet_takes_exactly_its_serialization_and_delay() {
    let mut sim = Sim::new(config(Topology::two_hosts(CABLE))).unwrap();
    sim.add_flows([flow(0, 1, 1000)]);
    finish(&mut sim);
    // IPv4 20, UDP 8, BTH 12, RETH 16, payload 1000, ICRC 4, framing 38: 1098 bytes at 80 ps.
    let flow = sim.flows()[0];
    assert_eq!(flow.received, 1098 * 80 + 1_000_000);
    // The acknowledgement: IPv4 20, UDP 8, BTH 12, AETH 4, ICRC 4, framing 38.
    assert_eq!(flow.completed, flow.received + 86 * 80 + 1_000_000);
    assert_eq!(sim.ideal_ps(&flow), flow.received);
}

#[test]
fn an_idle_fabric_gives_every_flow_its_ideal_time() {
    for bytes in [1, 1024, 1025, 100_000, 1_000_000] {
        let mut sim = Sim::new(config(Topology::fat_tree(4, CABLE).unwrap())).unwrap();
        sim.add_flows([flow(0, 15, bytes)]);
        finish(&mut sim);
        let flow = &sim.flows()[0];
        assert_eq!(flow.received, sim.ideal_ps(flow), "{bytes} bytes over six links");
    }
}

#[test]
fn pfc_loses_nothing_where_a_small_buffer_would() {
    for discipline in [
        Discipline::InputQueued { buffer: 94 * PACKET },
        Discipline::SharedBuffer { buffer: 600 * PACKET, alpha: f64::INFINITY },
    ] {
        let run = |lossless: bool| {
            let mut c = config(Topology::star(9, CABLE));
            let buffer = if lossless { discipline } else { Discipline::InputQueued { buffer: 30 * PACKET } };
            c.switch = SwitchConfig { discipline: buffer, ..SwitchConfig::default() };
            if lossless {
                c.switch.pfc = pfc(15, 12);
            }
            let mut sim = Sim::new(c).unwrap();
            sim.add_flows(incast(9, (8, None), 4_000_000, 0, &mut fastrand::Rng::with_seed(1)));
            finish(&mut sim);
            assert!(sim.flows_done() && sim.flows().iter().all(|f| !f.failed));
            sim
        };
        let with = run(true);
        assert_eq!(with.stats().drops, 0);
        assert_eq!(with.retransmissions(), 0);
        assert!(with.stats().pauses > 0);
        assert!(with.ports().iter().any(|p| p.paused_ps > 0));
        let without = run(false);
        assert!(without.stats().drops > 0);
        assert!(without.retransmissions() > 0);
        assert_eq!(without.stats().pauses, 0);
        // The receiver's link is the bottleneck of an incast: without loss it never idles.
        let last = with.flows().iter().map(|f| f.received).max().unwrap();
        let wire = 4_000_000u64 / 1024 * u64::from(PACKET) * 80;
        assert!(last < wire + wire / 50 + 10_000_000, "{last} against {wire}");
    }
}

#[test]
fn a_cycle_of_pauses_is_found_and_reported() {
    // Five switches in a ring, each host sends to the one two switches on: every link of the ring
    // carries two flows, and each waits for the next.
    let mut t = Topology { hosts: 10, switches: 5, cables: Vec::new() };
    let mut join = |a, b| t.cables.push(Cable { ends: [a, b], rate: CABLE.rate, delay: CABLE.delay });
    for s in 0..5 {
        join(Node::Host(s), Node::Switch(s));
        join(Node::Host(s + 5), Node::Switch(s));
    }
    for s in 0..5 {
        join(Node::Switch(s), Node::Switch((s + 1) % 5));
    }
    let mut c = config(t);
    c.switch.pfc = pfc(4, 2);
    c.transport.timeout = 0;
    let mut sim = Sim::new(c).unwrap();
    sim.add_flows((0..10).map(|h| flow(h, (h % 5 + 2) % 5, 2_000_000)));
    sim.run(10_000_000_000, u64::MAX);
    assert!(!sim.flows_done(), "the ring is stuck");
    let cycle = sim.deadlock().expect("a cycle");
    assert_eq!(cycle.len(), 5);
    let ends: Vec<_> = cycle.iter().map(|l| sim.config().topology.link_ends(*l)).collect();
    for (i, (_, to)) in ends.iter().enumerate() {
        assert_eq!(*to, ends[(i + 1) % 5].0, "each link ends where the next begins");
    }
    // Shortest paths in a tree have no cycles.
    let mut c = config(Topology::fat_tree(4, CABLE).unwrap());
    c.switch.pfc = pfc(4, 2);
    let mut sim = Sim::new(c).unwrap();
    sim.add_flows(all_to_all(16, 50_000, 0));
    while sim.run(u64::MAX, 1000) {
        assert_eq!(sim.deadlock(), None);
    }
    assert!(sim.flows_done());
}

#[test]
fn congested_queues_mark_what_may_be_marked() {
    for ecn in [false, true] {
        let mut c = config(Topology::star(5, CABLE));
        c.switch.ecn = Some(Red { kmin: 5 * PACKET, kmax: 50 * PACKET, pmax: 0.1 });
        c.transport.ecn = ecn;
        let mut sim = Sim::new(c).unwrap();
        sim.add_flows(incast(5, (4, None), 1_000_000, 0, &mut fastrand::Rng::with_seed(1)));
        finish(&mut sim);
        assert_eq!(sim.stats().marked > 0, ecn);
        assert_eq!(sim.stats().marked, sim.ports().iter().map(|p| p.marked).sum::<u64>());
    }
}

#[test]
fn spraying_uses_all_paths_for_one_flow() {
    for (balance, least) in [(Balance::Ecmp, 1), (Balance::Spray, 4)] {
        let mut c = config(Topology::leaf_spine(2, 4, 2, CABLE, CABLE));
        c.switch.balance = balance;
        let mut sim = Sim::new(c).unwrap();
        sim.add_flows([flow(0, 2, 1_000_000)]);
        finish(&mut sim);
        let t = &sim.config().topology;
        let up = (0..t.links()).filter(|l| {
            let ends = t.link_ends(*l as u32);
            ends.0 == Node::Switch(0) && matches!(ends.1, Node::Switch(_)) && sim.links()[*l].packets > 100
        });
        assert_eq!(up.count(), least);
    }
}

#[test]
fn higher_classes_go_first_and_only_their_class_is_paused() {
    let mut c = config(Topology::star(4, CABLE));
    c.switch.classes = 2;
    c.switch.pfc = pfc(15, 12);
    c.transport.class = 1;
    let mut sim = Sim::new(c).unwrap();
    sim.add_flows(incast(4, (3, None), 1_000_000, 0, &mut fastrand::Rng::with_seed(1)));
    finish(&mut sim);
    assert!(sim.flows_done());
    assert_eq!(sim.stats().pauses, 0, "class 1 has no PFC");
}

#[test]
fn a_failed_cable_loses_what_is_on_it_and_go_back_n_recovers() {
    let mut sim = Sim::new(config(Topology::two_hosts(CABLE))).unwrap();
    let down = Outage { at: 20_000_000, cable: 0, repair: false };
    let up = Outage { at: 400_000_000, cable: 0, repair: true };
    sim.set_faults(FaultPlan { outages: vec![down, up], ..FaultPlan::default() });
    sim.add_flows([flow(0, 1, 1_000_000)]);
    finish(&mut sim);
    let flow = sim.flows()[0];
    assert!(!flow.failed && flow.received > up.at);
    assert!(sim.stats().lost > 0);
    assert!(sim.retransmissions() > 0);
}

#[test]
fn a_script_hits_the_packet_that_it_names() {
    let drops = |script: &[&str]| {
        let mut sim = Sim::new(config(Topology::two_hosts(CABLE))).unwrap();
        let script = script.iter().map(|line| Rule::parse(line).unwrap()).collect();
        sim.set_faults(FaultPlan { script, ..FaultPlan::default() });
        sim.add_flows([flow(0, 1, 50 * 1024)]);
        finish(&mut sim);
        assert!(sim.flows_done() && !sim.flows()[0].failed);
        (sim.stats(), sim.retransmissions())
    };
    let (none, again) = drops(&[]);
    assert_eq!((none.lost, again), (0, 0));
    let (s, again) = drops(&["drop write nth=10"]);
    assert_eq!(s.lost, 1);
    assert!(again > 0);
    let (s, again) = drops(&["corrupt ack nth=3", "duplicate write nth=7", "delay write nth=12 by=5us"]);
    assert_eq!((s.lost, s.corrupted, s.duplicated), (0, 1, 1));
    assert!(again > 0, "the packet that was late left a gap");
    let (s, _) = drops(&["drop ack link=0"]);
    assert_eq!(s.lost, 0, "no acknowledgement goes that way");
}

/// A sink that the test can read while the simulation owns it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn captures_hold_every_packet_of_a_link() {
    for payload in [false, true] {
        let mut c = config(Topology::star(2, CABLE));
        c.payload = payload;
        let mut sim = Sim::new(c).unwrap();
        sim.region().write(0, &[7; 5000]);
        let sink = Shared::default();
        let down = sim.routes().down[1];
        sim.capture(down, Box::new(sink.clone())).unwrap();
        sim.add_flows([flow(0, 1, 5000)]);
        finish(&mut sim);
        sim.finish_captures().unwrap();
        let file = sink.0.lock().unwrap().clone();
        let records: Vec<_> = adverb_wire::pcap::Reader::new(&file).unwrap().collect();
        assert_eq!(records.len(), 5);
        assert_eq!(sim.links()[down as usize].packets, 5);
        for (i, record) in records.iter().enumerate() {
            let whole = record.bytes.len() == record.original_len as usize;
            assert_eq!(whole, payload);
            if payload {
                let parsed = adverb_wire::Packet::parse_ip(record.bytes).unwrap();
                assert!(adverb_wire::icrc::verify_ip(record.bytes, parsed.ip_header_len));
                assert!(record.bytes[parsed.payload].iter().all(|b| *b == 7));
                assert_eq!(parsed.packet.payload_len, if i < 4 { 1024 } else { 904 });
            }
        }
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed: u64, payload: bool| {
        let mut c = config(Topology::fat_tree(4, CABLE).unwrap());
        c.switch.pfc = pfc(15, 12);
        c.switch.ecn = Some(Red { kmin: 5 * PACKET, kmax: 50 * PACKET, pmax: 0.1 });
        c.switch.balance = Balance::Spray;
        c.transport = TransportConfig { ecn: true, mtu: Mtu::M1024, ..TransportConfig::default() };
        (c.seed, c.payload, c.flow_bytes_max) = (seed, payload, 1 << 20);
        let mut sim = Sim::new(c).unwrap();
        let chances = adverb_sim::faults::Chances { loss: 0.001, ..Default::default() };
        let rng = |l| fastrand::Rng::with_seed(adverb_sim::trace::seed_of(seed, "link", l));
        let links = (0..96).map(|l| LinkFaults::new(chances, rng(l))).collect();
        sim.set_faults(FaultPlan { links, ..FaultPlan::default() });
        sim.add_flows(permutation(16, 200_000, 0, &mut fastrand::Rng::with_seed(seed)));
        finish(&mut sim);
        assert!(sim.flows_done());
        (sim.trace_hash(), sim.stats())
    };
    let first = run(1, false);
    assert_eq!(run(1, false), first, "again");
    assert_eq!(run(1, true), first, "carrying payload changes no time");
    assert_ne!(run(2, false).0, first.0);
    let jobs: Vec<_> = (0..4).map(|_| std::thread::spawn(move || run(1, false))).collect();
    for job in jobs {
        assert_eq!(job.join().unwrap(), first, "beside other runs");
    }
}

#[test]
fn hardware_costs_take_their_time_and_neutral_ones_none() {
    let received = |hardware: Profile| {
        let mut c = config(Topology::two_hosts(CABLE));
        c.hardware = hardware;
        let mut sim = Sim::new(c).unwrap();
        sim.add_flows([flow(0, 1, 3000)]);
        finish(&mut sim);
        assert!(sim.flows_done());
        (sim.flows()[0].received, sim.flows()[0].completed)
    };
    let none = received(Profile::default());
    let sending = Profile { fetch: 500_000, execute: 100_000, ..Profile::default() };
    assert_eq!(received(sending).0, none.0 + 600_000, "fetched and executed once");
    // Three packets of 1 us each: the pipe, not the link, sets the pace.
    let packets = Profile { packet: 1_000_000, ..Profile::default() };
    let last = (3000 - 2048 + 82) * 80 + 1_000_000;
    assert_eq!(received(packets).0, 3 * 1_000_000 + last);
    let receiving = Profile { receive: 200_000, ..Profile::default() };
    assert_eq!(received(receiving).0, none.0 + 200_000 + 2 * 200_000 - 2 * 88_480 + (1024 - 952) * 80);
    let completing = Profile { completion: 300_000, ..Profile::default() };
    assert_eq!(received(completing), (none.0, none.1 + 300_000));
    let misses = Profile { cache_entries: 1, miss: 400_000, ..Profile::default() };
    // Once at either end; at the receiver the last packet has come meanwhile, 88.48 + 82.72 ns later.
    assert_eq!(received(misses).0, none.0 + 2 * 400_000 - 171_200);
}

/// Alone in the network, each operation takes its ideal time; a READ that of its request besides.
#[test]
fn operations_take_their_ideal_time() {
    for bytes in [1, 1000, 1024, 50_001, 1_000_000] {
        let times = [Verb::Write, Verb::Send, Verb::Read].map(|op| {
            let mut sim = Sim::new(config(Topology::leaf_spine(2, 1, 2, CABLE, CABLE))).unwrap();
            sim.add_flows([
                FlowSpec { op, ..flow(0, 3, bytes) },
                FlowSpec { op, start: 9_000_000_000, ..flow(0, 3, bytes) },
            ]);
            finish(&mut sim);
            let [one, two] = [0, 1].map(|n| sim.flows()[n]);
            assert!(!one.failed && !two.failed, "{op:?} of {bytes}");
            assert_eq!(
                one.received - one.spec.start,
                two.received - two.spec.start,
                "a queue pair used again"
            );
            let took = one.received - one.spec.start;
            let (ideal, packet) = (sim.ideal_ps(&one), 4 * u64::from(PACKET) * 80);
            assert!(took.abs_diff(ideal) <= packet, "{op:?} of {bytes}: {took}, ideal {ideal}");
            took
        });
        assert!(times[1] <= times[0], "a SEND has no RETH");
        assert!(times[2] > times[0] + 4 * 1_000_000, "a READ's request goes first");
    }
}

#[test]
fn closed_loops_take_turns() {
    let mut sim = Sim::new(config(Topology::star(3, CABLE))).unwrap();
    let closed = Closed::new(vec![(0, 1), (0, 1), (2, 1)], 100, 5000, 1_000_000, 4);
    sim.set_workload(Workload::Closed(closed));
    finish(&mut sim);
    assert_eq!(sim.flows().len(), 3 * 2 * 4);
    assert!(sim.flows_done());
    for pair in 0..3 {
        let turns: Vec<_> = sim.flows().iter().filter(|f| f.spec.tag / 2 == pair).collect();
        for (n, window) in turns.windows(2).enumerate() {
            let think = if n % 2 == 1 { 1_000_000 } else { 0 };
            assert!(window[1].spec.start >= window[0].received + think);
            assert_eq!(window[0].spec.tag % 2, n as u32 % 2, "request, response, request ..");
        }
    }
}

#[test]
fn records_tell_every_flow_and_port() {
    let mut sim = Sim::new(config(Topology::star(5, CABLE))).unwrap();
    sim.sample_every(1_000_000);
    sim.add_flows(incast(5, (4, None), 400_000, 0, &mut fastrand::Rng::with_seed(1)));
    finish(&mut sim);
    let flows = sim.flows_csv();
    assert_eq!(flows.lines().count(), 5);
    assert!(flows.lines().nth(1).unwrap().starts_with("0,"));
    assert!(
        flows.lines().nth(1).unwrap().ends_with(",0,0,"),
        "it did not fail, and is of the first workload"
    );
    // What links have carried over time is what they have carried, but for the end.
    let (mut carried, mut full) = (vec![0; 10], 0);
    for s in &sim.series().links {
        carried[s.link as usize] += s.bytes;
        full = full.max(s.bytes);
    }
    for (l, link) in sim.links().iter().enumerate() {
        assert!(carried[l] <= link.bytes && link.bytes - carried[l] < full + 1, "link {l}: {}", carried[l]);
    }
    assert_eq!(sim.links_csv().lines().count(), 1 + sim.series().links.len());
    let of = |flow| sim.series().flows.iter().filter(move |s| s.flow == flow);
    assert!((0..4).all(|flow| of(flow).count() > 10 && of(flow).all(|s| s.window == 1 << 20)));
    assert_eq!(sim.ports_csv().lines().count(), 11);
    assert!(sim.samples().depths.iter().any(|(_, _, bytes)| *bytes > 10 * PACKET));
    let s = sim.summary(|_| true);
    assert_eq!((s.flows, s.failed), (4, 0));
    assert!(s.slowdown_avg > 3.0 && s.slowdown_avg < 4.2, "four share one link: {}", s.slowdown_avg);
    assert!(s.fct_p99_ps as f64 >= s.fct_avg_ps && s.fct_max_ps == s.fct_p999_ps);
}
