//! Congestion control between two NICs: who slows down by what, when packets leave, and whom nobody believes.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Instant, Opcode, Packet, QpNumber};
use world::*;

const LINE: u64 = 10_000_000_000;

/// A packet of 1 KB on the link at 10 Gb/s: IPv4, UDP, BTH, ICRC and Ethernet around it.
const PACKET_PS: u64 = (1024 + 20 + 8 + 12 + 4 + 38) * 800;

fn dcqcn() -> CongestionControl {
    CongestionControl::Dcqcn(DcqcnConfig::default())
}

fn world(seed: u64, congestion: CongestionControl, irn: bool) -> World {
    World::with_config(2, seed, |c| {
        c.irn = irn.then(|| IrnConfig { agreed: Some(512), bdp_packets: None, ..IrnConfig::paper() });
        (c.congestion, c.line_rate, c.pacing_burst) = (congestion, LINE, 0);
    })
}

/// A notification for a queue pair of node 0, as its peer would send it.
fn notification(w: &World, a: QpId) -> Packet {
    let flow = adverb_wire::Flow {
        src: w.nodes[1].gid,
        dst: w.nodes[0].gid,
        src_port: 1,
        traffic_class: 0,
        hop_limit: 64,
    };
    Packet::cnp(flow, w.nodes[0].nic.qp_number(a).unwrap())
}

/// When the packets of one WRITE of `n` KB leave, as times in ps since the first; the WRITE comes to its end.
fn departures(w: &mut World, a: QpId, n: usize) -> Vec<u64> {
    let (ma, mb) = (w.memory(0, n << 10), w.memory(1, n << 10));
    let data = pattern(n as u8, n << 10);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, n << 10)]));
    let mut times = Vec::new();
    loop {
        let before = w.log.len();
        w.transmit();
        let new =
            w.log[before..].iter().filter(|(from, p)| *from == 0 && p.bth.opcode != Opcode::CNP).count();
        times.extend(std::iter::repeat_n(w.now, new));
        if let Some(done) = w.poll(0) {
            assert_eq!(done.status, Status::Success);
            break;
        }
        assert!(w.advance(w.now + Duration::from_ms(100)), "it goes on");
    }
    assert_eq!(mb.read(0, n << 10), data);
    times.iter().map(|at: &Instant| at.since(times[0]).as_ps()).collect()
}

#[test]
fn a_notification_halves_the_rate_exactly_and_without_drift() {
    for irn in [false, true] {
        let mut w = world(1, dcqcn(), irn);
        w.keep_log = true;
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let free = departures(&mut w, a, 30);
        assert!(free.iter().all(|at| *at == 0), "at line rate the port is the limit: {free:?}");
        w.inject(notification(&w, a), &[0; 16]);
        w.run(LATENCY);
        assert_eq!((w.counter(0, "cnps_received"), w.counter(0, "cnp_handled")), (1, 1));
        let paced = departures(&mut w, a, 20);
        // IRN's WRITE packets each carry a RETH; the others only the first one.
        let size = |k: u64| if irn || k == 0 { PACKET_PS + 16 * 800 } else { PACKET_PS };
        let expected: Vec<u64> = (0..20).map(|n| (0..n).map(size).sum::<u64>() * 2).collect();
        assert_eq!(paced, expected, "irn {irn}");
        let ect = w.log.iter().filter(|(from, _)| *from == 0).all(|(_, p)| p.flow.traffic_class == 2);
        assert!(ect, "data is ECN-capable");
    }
}

#[test]
fn marks_are_answered_once_in_an_interval_and_end_in_a_lower_rate() {
    let mut w = world(2, dcqcn(), false);
    w.keep_log = true;
    w.faults.mark = 1.0;
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    for _ in 0..5 {
        departures(&mut w, a, 200);
    }
    w.run(Duration::from_us(10));
    let cnps: Vec<_> = w.log.iter().filter(|(_, p)| p.bth.opcode == Opcode::CNP).collect();
    let (sent, marked) = (w.counter(1, "cnp_sent"), w.counter(1, "ecn_marked"));
    assert_eq!(cnps.len() as u64, sent);
    assert!(marked == 1000 && sent >= 5, "{marked} {sent}");
    assert!(sent <= w.now.as_ps() / 50_000_000 + 1, "{sent} in {:?}", w.now);
    assert_eq!(w.counter(0, "cnp_handled"), sent);
    for (from, p) in cnps {
        assert_eq!((*from, p.flow.traffic_class & 3, p.bth.becn, p.payload_len), (1, 0, true, 16));
    }
    // Acknowledgements were marked as well, and nobody minds.
    assert_eq!((w.counter(0, "ecn_marked"), w.counter(0, "cnp_sent")), (0, 0));
}

#[test]
fn read_responses_are_notified_and_paced_too() {
    for irn in [false, true] {
        let mut w = world(3, dcqcn(), irn);
        let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
        let data = pattern(9, 65536);
        mb.write(0, &data);
        let (va, rkey) = mb.at(0);
        let flow = adverb_wire::Flow {
            src: w.nodes[0].gid,
            dst: w.nodes[1].gid,
            src_port: 1,
            traffic_class: 0,
            hop_limit: 64,
        };
        w.inject(Packet::cnp(flow, w.nodes[1].nic.qp_number(b).unwrap()), &[0; 16]);
        w.run(LATENCY);
        assert_eq!(w.counter(1, "cnp_handled"), 1);
        let start = w.now;
        w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 65536)]));
        assert_eq!(w.completion(0).status, Status::Success);
        assert_eq!(ma.read(0, 65536), data);
        let took = w.now.since(start).as_ps();
        // 64 packets at 5 Gb/s, and faster from 55 us on; at line rate all came after 4 us.
        assert!((80_000_000..64 * 2 * PACKET_PS).contains(&took), "irn {irn}: {took} ps");
        w.faults.mark = 1.0;
        w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(0, 65536)]));
        assert_eq!(w.completion(0).status, Status::Success);
        w.run(Duration::from_us(100));
        assert!(w.counter(0, "cnp_sent") >= 1);
        assert_eq!(w.counter(1, "cnp_handled"), w.counter(0, "cnp_sent") + 1);
    }
}

#[test]
fn notifications_that_are_not_the_peer_s_change_nothing() {
    let mut w = world(4, dcqcn(), false);
    w.keep_log = true;
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let unconnected = w.qp(0, QpType::Rc, CAPS);
    let (datagram, _) = w.pair(QpType::Ud, CAPS, &Link::default());
    let good = notification(&w, a);
    let mut stranger = good;
    stranger.flow.src = "10.9.9.9".parse::<std::net::Ipv4Addr>().unwrap().into();
    let mut key = good;
    key.bth.pkey = 0x1234;
    let mut nobody = good;
    nobody.bth.dest_qp = QpNumber::new(0x1_7777);
    for packet in [stranger, key, nobody, notification(&w, unconnected), notification(&w, datagram)] {
        w.inject(packet, &[0; 16]);
    }
    w.run(Duration::from_us(10));
    assert_eq!((w.counter(0, "cnps_received"), w.counter(0, "cnp_handled")), (4, 0));
    assert_eq!((w.counter(0, "drop_source"), w.counter(0, "drop_pkey")), (1, 1));
    assert_eq!((w.counter(0, "drop_unknown_qp"), w.counter(0, "drop_qp_state")), (1, 1));
    assert_eq!(w.counter(0, "drop_wrong_service"), 1, "a datagram queue pair has no notifications");
    assert!(departures(&mut w, a, 20).iter().all(|at| *at == 0), "line rate still");
}

#[test]
fn a_scheme_without_notifications_ignores_them_and_sends_them() {
    let mut w = world(5, CongestionControl::Fixed, false);
    w.keep_log = true;
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    w.inject(notification(&w, a), &[0; 16]);
    w.run(LATENCY);
    assert!(departures(&mut w, a, 20).iter().all(|at| *at == 0));
    assert_eq!((w.counter(0, "cnps_received"), w.counter(0, "cnp_handled")), (1, 0));
    assert!(w.log.iter().all(|(_, p)| p.flow.traffic_class == 0), "not ECN-capable unless asked for");
    // An application may ask for it by its traffic class; then the marks are answered.
    let mut marked = w.log.iter().find(|(from, _)| *from == 0).unwrap().1;
    marked.flow.traffic_class = 3;
    marked.bth.dest_qp = w.nodes[1].nic.qp_number(b).unwrap();
    w.inject(marked, &[0; 1024]);
    w.run(Duration::from_us(10));
    assert_eq!((w.counter(1, "ecn_marked"), w.counter(1, "cnp_sent")), (1, 1));
}

#[test]
fn round_trip_times_above_the_limit_slow_timely_down() {
    let config = TimelyConfig {
        t_high: Duration::from_us(2),
        t_low: Duration::from_us(1),
        segment: 1024,
        ..TimelyConfig::default()
    };
    for irn in [false, true] {
        let mut w = world(6, CongestionControl::Timely(config), irn);
        w.keep_log = true;
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let first = departures(&mut w, a, 40);
        assert!(first.iter().all(|at| *at == 0), "the first round trip is at line rate");
        // 4 us is twice the limit: each sample takes 0.8 * (1 - 1/2) of the rate.
        let second = departures(&mut w, a, 10);
        let gap = second[2] - second[1];
        let samples = ((gap as f64 / PACKET_PS as f64).ln() / (1.0f64 / 0.6).ln()).round();
        assert!((1.0..=40.0).contains(&samples), "irn {irn}: {gap} ps");
    }
}

#[test]
fn tcp_starts_slowly_and_halves_once_for_a_window() {
    for irn in [false, true] {
        let mut w = world(7, CongestionControl::Tcp(TcpConfig { initial: 2, ..TcpConfig::default() }), irn);
        w.keep_log = true;
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let times = departures(&mut w, a, 62);
        let mut flights: Vec<(u64, u32)> = Vec::new();
        for at in times {
            match flights.last_mut() {
                Some((last, n)) if *last == at => *n += 1,
                _ => flights.push((at, 1)),
            }
        }
        let round = 2 * LATENCY.as_ps();
        let doubling: Vec<(u64, u32)> = (0..5).map(|k| (k * round, 2 << k)).collect();
        assert_eq!(flights, doubling, "irn {irn}");
        // The window is 64 now. Two packets of the next flight are lost.
        let base = 162;
        let mut lost = vec![base + 3, base + 9];
        w.drop_if = Some(Box::new(move |from, p| {
            let hit = lost.iter().position(|psn| from == 0 && p.bth.psn.get() == *psn);
            hit.map(|at| lost.remove(at)).is_some()
        }));
        departures(&mut w, a, 64);
        w.drop_if = None;
        let third = departures(&mut w, a, 60);
        let first_flight = third.iter().filter(|at| **at == 0).count();
        assert!((30..45).contains(&first_flight), "irn {irn}: {first_flight} after a halving");
    }
}

/// Marks come back in acknowledgements, one for each, and leave a window of two packets where every packet is
/// marked; no notification says them again. With loss, repeats and reordering everything still arrives.
#[test]
fn dctcp_s_marks_come_back_in_acknowledgements() {
    for irn in [false, true] {
        let mut w = world(7, CongestionControl::Dctcp(DctcpConfig::default()), irn);
        w.keep_log = true;
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        departures(&mut w, a, 60);
        let (window, _) = w.nodes[0].nic.allowed(a).unwrap();
        assert_eq!((window, w.counter(0, "ecn_echo_handled")), (70, 0), "irn {irn}: slow start from ten");
        w.faults.mark = 1.0;
        departures(&mut w, a, 200);
        assert_eq!(w.nodes[0].nic.allowed(a).unwrap().0, 2, "irn {irn}");
        let echoes = w.counter(0, "ecn_echo_handled");
        assert!(echoes >= 100 && echoes <= w.counter(1, "ecn_echo_sent"), "{echoes}");
        assert_eq!(w.counter(1, "ecn_marked"), 200);
        assert_eq!((w.counter(1, "cnp_sent"), w.counter(0, "cnps_received")), (0, 0));
        let echo = |p: &Packet| p.bth.becn;
        assert!(w.log.iter().all(|(from, p)| !echo(p) || *from == 1), "data echoes nothing");
    }
}

#[test]
fn schemes_that_heed_each_packet_survive_every_fault() {
    let hpcc = HpccConfig { base_rtt: Duration::from_us(5), ..HpccConfig::default() };
    for scheme in [
        CongestionControl::Dctcp(DctcpConfig::default()),
        CongestionControl::Swift(SwiftConfig::default()),
        CongestionControl::Hpcc(hpcc),
    ] {
        for irn in [false, true] {
            let mut w = world(8, scheme, irn);
            w.faults =
                Faults { loss: 0.02, duplicate: 0.02, reorder: 0.05, corrupt: 0.01, late: 0.0, mark: 0.1 };
            let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
            for _ in 0..5 {
                departures(&mut w, a, 200);
            }
            assert!(w.counter(0, "retransmitted_packets") > 0);
            let (window, rate) = w.nodes[0].nic.allowed(a).unwrap();
            assert!(window >= 1 && rate > 0 && rate <= LINE, "{scheme:?} {window} {rate}");
        }
    }
}

/// Telemetry that is not the peer's, or for nobody, or for a queue pair without a scheme for it, changes
/// nothing.
#[test]
fn telemetry_of_strangers_changes_nothing() {
    use adverb_nic::telemetry::{Hop, Telemetry};
    let mut full = Telemetry::default();
    full.push(Hop { rate: 1, at: 1, sent: u64::MAX, queue: u32::MAX });
    let hpcc = CongestionControl::Hpcc(HpccConfig::default());
    for scheme in [hpcc, CongestionControl::Fixed] {
        let mut w = world(9, scheme, false);
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let before = w.nodes[0].nic.allowed(a);
        let mut ack = notification(&w, a);
        ack.bth.opcode = Opcode::new(adverb_wire::Service::Rc, adverb_wire::Operation::Acknowledge);
        let mut stranger = ack;
        stranger.flow.src = "10.9.9.9".parse::<std::net::Ipv4Addr>().unwrap().into();
        let mut nobody = ack;
        nobody.bth.dest_qp = QpNumber::new(0xfffff0);
        for packet in [stranger, nobody] {
            w.nodes[0].nic.on_telemetry(&packet, &full);
        }
        departures(&mut w, a, 30);
        assert_eq!(w.counter(0, "telemetry_handled"), 0);
        assert_eq!(w.nodes[0].nic.allowed(a), before);
    }
}
