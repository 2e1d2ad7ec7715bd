//! IRN between two NICs: how they find out, what a loss costs, what comes early, and the errors, which are
//! plain RC's.

mod world;
use adverb_nic::irn::{WIDE, WINDOW};
use adverb_nic::*;
use adverb_wire::{
    Duration, IrnEth, Key, NakCode, Operation, Packet, Psn, SackEth, Service, Syndrome, WriteLength,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use world::*;

/// Both nodes offer IRN with the paper's timeouts.
fn both(seed: u64) -> World {
    World::with_config(2, seed, |c| c.irn = Some(IrnConfig::paper()))
}

/// A pair that has agreed.
fn agreed(w: &mut World, link: &Link) -> (QpId, QpId, Memory, Memory) {
    let (a, b) = w.pair(QpType::Rc, CAPS, link);
    w.run(Duration::from_us(100));
    assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Irn));
    assert_eq!(w.nodes[1].nic.recovery_of(b), Ok(LossRecovery::Irn));
    let memory = (w.memory(0, 65536), w.memory(1, 65536));
    w.log.clear();
    (a, b, memory.0, memory.1)
}

/// Loses the packets of node `from` for which the rule answers true.
fn lose(w: &mut World, from: usize, mut rule: impl FnMut(&Packet) -> bool + 'static) {
    w.drop_if = Some(Box::new(move |sender, p| sender == from && rule(p)));
}

/// Loses the first packet that the rule picks, once.
fn lose_once(w: &mut World, from: usize, rule: impl Fn(&Packet) -> bool + 'static) {
    let mut first = true;
    lose(w, from, move |p| rule(p) && std::mem::take(&mut first));
}

fn is_irn(p: &Packet) -> bool {
    p.bth.opcode.service() == Service::Irn
}

#[test]
fn two_that_offer_it_agree_and_speak_it() {
    let mut w = both(1);
    w.keep_log = true;
    let (a, b, ma, mb) = agreed(&mut w, &Link::default());
    for (node, qp) in [(0, a), (1, b)] {
        let mut events = std::iter::from_fn(|| w.nodes[node].nic.next_event());
        assert_eq!(events.next(), Some(Event::IrnAgreed(qp)));
        assert_eq!(events.next(), None, "a hello is not communication");
        assert_eq!(w.counter(node, "irn_agreed"), 1);
    }
    let data = pattern(1, 5000);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 5000)]));
    w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(8192, 5000)]));
    w.send(0, a, wr(3, SendOp::FetchAdd { addr: va + 8192, rkey, add: 5 }, &[ma.sge(16384, 8)]));
    for id in [1, 2, 3] {
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (id, Status::Success));
    }
    assert_eq!((mb.read(0, 5000), ma.read(8192, 5000), mb.word(8192)), (data.clone(), data, 5));
    w.run(Duration::from_ms(1));
    assert!(!w.log.is_empty() && w.log.iter().all(|(_, p)| is_irn(p)));
    // A READ takes one PSN, and every WRITE packet says where it goes and how much follows.
    let psns: Vec<_> = w.log.iter().filter(|(n, _)| *n == 0).map(|(_, p)| p.bth.psn.get()).collect();
    assert_eq!(psns[..7], [100, 101, 102, 103, 104, 105, 106]);
    for (k, (_, p)) in w.log.iter().take(5).enumerate() {
        let following = (5000 - 1024 * k as u32).saturating_sub(1024);
        let length = WriteLength { following, ordered: false }.wire();
        assert_eq!((p.reth.va, p.reth.len), (va + 1024 * k as u64, length));
    }
    assert_eq!((w.counter(0, "timeouts"), w.counter(1, "timeouts")), (0, 0));
}

/// A driver may have one queue pair offer nothing, as long as the peers have not begun to agree.
#[test]
fn what_a_queue_pair_offers_is_settled_before_rtr() {
    let mut w = World::with_config(2, 2, |c| c.irn = Some(IrnConfig::paper()));
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    w.run(Duration::from_ms(1));
    let nic = &mut w.nodes[0].nic;
    assert!(matches!(nic.offer_irn(a, false), Err(adverb_nic::Error::Invalid(_))));
    assert_eq!(nic.recovery_of(a), Ok(LossRecovery::Irn), "nothing has changed");
    nic.destroy_qp(a).unwrap();
    assert_eq!(nic.offer_irn(a, false), Err(adverb_nic::Error::NoSuchObject));
}

#[test]
fn one_that_does_not_offer_it_gets_plain_rc() {
    for offers in [0, 1] {
        let mut w = World::with_config(2, 2, |c| {
            c.irn = (c.qpn_base >> 16 == offers + 1).then(IrnConfig::paper);
        });
        w.keep_log = true;
        let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        let ids = [a, b];
        let offering = |w: &World| w.nodes[offers as usize].nic.recovery_of(ids[offers as usize]).unwrap();
        assert_eq!(offering(&w), LossRecovery::Undecided);
        let (va, rkey) = mb.at(0);
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 3000)]));
        assert_eq!(w.completion(0).status, Status::Success);
        w.run(Duration::from_ms(1_000));
        assert_eq!(offering(&w), LossRecovery::GoBackN);
        let other = 1 - offers as usize;
        assert_eq!(w.nodes[other].nic.recovery_of(ids[other]), Ok(LossRecovery::GoBackN));
        let hellos = w.log.iter().filter(|(_, p)| is_irn(p)).count() as u64;
        // Whatever the peer takes it for, it is older than all that is under way in either of its sequences.
        let first = Link::default().psn;
        for (_, p) in w.log.iter().filter(|(_, p)| is_irn(p)) {
            assert!(p.bth.psn.since(first.0) < -4_000_000, "{:?}", p.bth);
            assert!(p.bth.psn.since(first.1) < -4_000_000, "{:?}", p.bth);
        }
        assert!((2..=12).contains(&hellos), "{hellos} hellos");
        assert_eq!(w.counter(other, "drop_wrong_service"), hellos);
        assert_eq!((w.counter(offers as usize, "irn_unanswered"), w.counter(other, "irn_agreed")), (1, 0));
        let offering = &mut w.nodes[offers as usize].nic;
        assert_eq!(offering.next_event(), Some(Event::IrnUnanswered(ids[offers as usize])));
        assert_eq!(offering.next_event(), None);
    }
}

#[test]
fn a_peer_that_comes_late_is_still_found() {
    let mut w = both(3);
    let (a, b) = (w.qp(0, QpType::Rc, CAPS), w.qp(1, QpType::Rc, CAPS));
    w.connect((0, a), (1, b), &Link::default());
    w.run(Duration::from_ms(1_000));
    assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::GoBackN));
    w.connect((1, b), (0, a), &Link::default());
    w.run(Duration::from_ms(1));
    for (node, qp) in [(0, a), (1, b)] {
        assert_eq!(w.nodes[node].nic.recovery_of(qp), Ok(LossRecovery::Irn));
    }
}

#[test]
fn requests_change_when_nothing_is_in_flight() {
    // The hellos are held up; meanwhile plain RC is busy and loses packets. Then the change comes in the
    // middle.
    let mut w = both(4);
    w.keep_log = true;
    let open = Rc::new(RefCell::new(false));
    let gate = open.clone();
    let mut n = 0;
    w.drop_if = Some(Box::new(move |_, p| {
        n += 1;
        let hello = p.bth.opcode.operation() == Operation::Hello;
        (hello && !*gate.borrow()) || (!hello && n % 17 == 0)
    }));
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    ma.write(0, &pattern(3, 65536));
    let (va, rkey) = mb.at(0);
    for i in 0..40 {
        let (from, len) = (i * 1500, 1500);
        w.send(0, a, wr(i as u64, SendOp::Write(va + from as u64, rkey), &[ma.sge(from, len)]));
        if i == 10 {
            w.transmit();
            *open.borrow_mut() = true;
            // A last hello of the other side, as its timer would send it.
            let mut hello = Packet::default();
            (hello.flow.src, hello.flow.dst) = (w.nodes[1].gid, w.nodes[0].gid);
            hello.bth.opcode = adverb_wire::Opcode::new(Service::Irn, Operation::Hello);
            hello.bth.dest_qp = w.nodes[0].nic.qp_number(a).unwrap();
            hello.bth.ack_req = true;
            // What node 1 expects next, from the middle of the past.
            hello.bth.psn = w.nodes[1].nic.expected_psn(b).unwrap().add(3 << (Psn::BITS - 2));
            hello.irn = IrnEth::new(0, adverb_wire::irn::VERSION, 512);
            w.inject(hello, &[]);
            w.run(LATENCY);
            let (attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
            assert_eq!(attr.sq_psn, Psn::new(100 + 22), "eleven messages in flight");
        }
    }
    for i in 0..40 {
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (i, Status::Success));
    }
    assert_eq!(mb.read(0, 60_000), ma.read(0, 60_000));
    let services: Vec<_> = w
        .log
        .iter()
        .filter(|(from, p)| *from == 0 && p.bth.opcode.operation().is_write())
        .map(|(_, p)| is_irn(p))
        .collect();
    let change = services.iter().position(|irn| *irn).expect("IRN in the end");
    assert!(change > 0 && services[change..].iter().all(|irn| *irn), "RC, then IRN");
    assert_eq!(w.nodes[1].nic.recovery_of(b), Ok(LossRecovery::Irn));
}

#[test]
fn a_lost_packet_costs_one_retransmission() {
    let mut w = both(5);
    w.keep_log = true;
    let (a, _, ma, mb) = agreed(&mut w, &Link::default());
    let data = pattern(2, 60_000);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    lose_once(&mut w, 0, |p| p.bth.psn == Psn::new(110));
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 60_000)]));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 60_000), data);
    assert_eq!((w.counter(0, "retransmitted_packets"), w.counter(0, "timeouts")), (1, 0));
    assert_eq!(w.counter(1, "early_packets"), 59 - 11);
    assert_eq!(w.counter(1, "duplicate_requests"), 0);
    // Every early packet drew a NACK with its PSN and the cumulative one.
    let nacks: Vec<_> = w
        .log
        .iter()
        .filter(|(n, p)| *n == 1 && p.aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError))
        .map(|(_, p)| (p.bth.psn.get(), p.sack.psn().get()))
        .collect();
    let expected: Vec<_> = (111..159).map(|psn| (110, psn)).collect();
    assert_eq!(nacks, expected);
}

#[test]
fn a_lost_nack_costs_nothing_where_nacks_name_runs() {
    // Packet 110 is lost, and four of five NACKs. The last early packets' are not.
    let resent = |offers: [bool; 2]| {
        let mut w = World::with_config(2, 5, |c| {
            let runs = offers[(c.qpn_base >> 16) as usize - 1];
            c.irn = Some(IrnConfig { runs, redetect: true, ..IrnConfig::paper() });
        });
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        let data = pattern(2, 60_000);
        ma.write(0, &data);
        let (va, rkey) = mb.at(0);
        let (mut first, mut nacks, longest) = (true, 0, Rc::new(Cell::new(0)));
        let most = longest.clone();
        w.drop_if = Some(Box::new(move |_, p| {
            let nack = p.aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
            if nack {
                let longest = p.sack.more().max(most.get());
                most.set(longest);
                nacks += 1;
            }
            nack && nacks % 5 != 3 || p.bth.psn == Psn::new(110) && std::mem::take(&mut first)
        }));
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 60_000)]));
        assert_eq!(w.completion(0).status, Status::Success);
        assert_eq!(mb.read(0, 60_000), data);
        assert_eq!(w.counter(0, "timeouts"), 0);
        (w.counter(0, "retransmitted_packets"), longest.get())
    };
    assert_eq!(resent([true, true]), (1, 47), "one was lost");
    for offers in [[true, false], [false, true], [false, false]] {
        let (packets, run) = resent(offers);
        assert!(packets > 20 && run == 0, "{offers:?}: {packets}, a run of {run}");
    }
}

#[test]
fn several_lost_packets_cost_as_many_and_one_round_trip() {
    let mut w = both(6);
    let (a, _, ma, mb) = agreed(&mut w, &Link::default());
    let data = pattern(2, 60_000);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    let mut lost = vec![103, 104, 120, 140];
    lose(&mut w, 0, move |p| {
        let at = lost.iter().position(|psn| Psn::new(*psn) == p.bth.psn);
        at.map(|i| lost.remove(i)).is_some()
    });
    let start = w.now;
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 60_000)]));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 60_000), data);
    assert_eq!((w.counter(0, "retransmitted_packets"), w.counter(0, "timeouts")), (4, 0));
    // There and back, and there and back once more.
    assert!(w.now.since(start) <= LATENCY.times(4), "{:?}", w.now.since(start));
}

#[test]
fn a_lost_tail_costs_the_short_timeout_once() {
    let mut w = both(7);
    let (a, _, ma, mb) = agreed(&mut w, &Link::default());
    let (va, rkey) = mb.at(0);
    let mut left = 3;
    lose(&mut w, 0, move |p| {
        let tail = p.bth.psn.since(Psn::new(107)) >= 0 && left > 0;
        left -= tail as u32;
        tail
    });
    let start = w.now;
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 10_240)]));
    assert_eq!(w.completion(0).status, Status::Success);
    // Nobody had asked for an acknowledgement before the tail: the first packet finds out what is missing.
    assert_eq!((w.counter(0, "retransmitted_packets"), w.counter(0, "timeouts")), (1 + 3, 1));
    let took = w.now.since(start);
    assert!(took >= Duration::from_us(320) && took < Duration::from_us(340), "{took:?}: ten in flight");
    lose_once(&mut w, 0, |_| true);
    let start = w.now;
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.completion(0);
    let took = w.now.since(start);
    assert!(took >= Duration::from_us(100) && took < Duration::from_us(110), "{took:?}: one in flight");
}

/// The paper's timeouts as bounds of measured ones, with tail probes and what else hosts have.
fn on_hosts(seed: u64) -> World {
    let timers = Timers::Measured { probe: Some(Duration::ZERO) };
    World::with_config(2, seed, move |c| {
        c.irn = Some(IrnConfig { timers, redetect: true, runs: true, backoff: true, ..IrnConfig::paper() });
    })
}

/// An agreed pair of [`on_hosts`] whose requester and responder have measured the round trip.
fn measured(w: &mut World) -> (QpId, QpId, Memory, Memory) {
    let (a, b, ma, mb) = agreed(w, &Link::default());
    let (va, rkey) = mb.at(0);
    for id in 0..4 {
        let op = if id % 2 == 0 { SendOp::Write(va, rkey) } else { SendOp::Read(va, rkey) };
        w.send(0, a, wr(id, op, &[ma.sge(0, 10_240)]));
        assert_eq!(w.completion(0).status, Status::Success);
    }
    w.run(Duration::from_us(50));
    (a, b, ma, mb)
}

#[test]
fn a_lost_tail_costs_a_probe_and_three_round_trips() {
    // The tail of a WRITE, of which the requester knows; and of a READ's answers, the responder.
    for (read, lost, probes, timeouts) in
        [(false, 3, 1, 0), (true, 3, 1, 0), (false, 1, 1, 0), (true, 1, 1, 0), (false, 4, 1, 1)]
    {
        let mut w = on_hosts(7);
        let (a, _, ma, mb) = measured(&mut w);
        let (data, (va, rkey)) = (pattern(3, 10_240), mb.at(0));
        (if read { &mb } else { &ma }).write(0, &data);
        let (from, mut seen, mut left) = (read as usize, 0, lost);
        // Of ten packets the last `lost`; of four, the fourth is the probe.
        lose(&mut w, from, move |p| {
            let data = p.payload_len > 0;
            seen += data as u32;
            let tail = data && seen > 10 - lost.min(3) && left > 0;
            left -= tail as u32;
            tail
        });
        let start = w.now;
        let op = if read { SendOp::Read(va, rkey) } else { SendOp::Write(va, rkey) };
        w.send(0, a, wr(9, op, &[ma.sge(0, 10_240)]));
        assert_eq!(w.completion(0).status, Status::Success);
        let took = w.now.since(start);
        assert_eq!((if read { &ma } else { &mb }).read(0, 10_240), data);
        let count = |name| w.counter(from, name);
        assert_eq!((count("irn_tail_probes"), count("timeouts")), (probes, timeouts), "{read}, {lost}");
        let most = if timeouts > 0 { Duration::from_us(320) } else { LATENCY.times(9) };
        assert!(took <= most, "{read}, {lost}: {took:?}");
    }
}

#[test]
fn lost_acknowledgements_cost_a_probe() {
    let mut w = on_hosts(8);
    let (a, _, ma, mb) = measured(&mut w);
    let (va, rkey) = mb.at(0);
    lose_once(&mut w, 1, |_| true);
    w.send(0, a, wr(9, SendOp::Write(va, rkey), &[ma.sge(0, 10_240)]));
    assert_eq!(w.completion(0).status, Status::Success);
    let count = |name| w.counter(0, name);
    assert_eq!(
        (count("irn_tail_probes"), count("retransmitted_packets"), count("timeouts")),
        (1, 1, 0),
        "one packet once more"
    );
    assert_eq!(w.counter(1, "duplicate_requests"), 1);
}

#[test]
fn a_probe_costs_no_retry_and_none_is_sent_behind_what_lies_unread() {
    for silence in [Silence::Unknown, Silence::Unread] {
        let mut w = World::with_config(2, 9, |c| {
            c.tolerance =
                Tolerance { excused_max: Duration::from_ms(300), silence_min: Duration::from_ms(100) };
            c.irn = Some(IrnConfig::default());
        });
        let (a, _, ma, mb) = measured(&mut w);
        let (va, rkey) = mb.at(0);
        w.ask = Some(Box::new(move |_, _| silence));
        w.drop_if = Some(Box::new(|from, _| from == 1));
        w.send(0, a, wr(9, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
        w.run(Duration::from_us(900));
        let probes = u64::from(silence == Silence::Unknown);
        assert_eq!((w.counter(0, "irn_tail_probes"), w.counter(0, "timeouts")), (probes, 0), "{silence:?}");
        // A peer that is gone takes as long as without.
        let start = w.now;
        assert_eq!(w.completion(0).status, Status::TransportRetryExceeded);
        let took = w.now.since(start);
        let (least, most) = if probes > 0 { (98, 110) } else { (270, 420) };
        assert!(took > Duration::from_ms(least) && took < Duration::from_ms(most), "{silence:?}: {took:?}");
        assert_eq!(w.counter(0, "irn_tail_probes"), probes, "one for all of the flight");
    }
}

#[test]
fn bdp_fc_bounds_what_is_in_flight() {
    for (bdp, expected) in [(Some(7), 7), (Some(110), 59), (None, 59)] {
        let mut w = World::with_config(2, 8, |c| {
            c.irn = Some(IrnConfig { bdp_packets: bdp, ..IrnConfig::paper() });
        });
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        let (va, rkey) = mb.at(0);
        let before = w.counter(0, "tx_packets");
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 60_000)]));
        w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(0, 60_000)]));
        w.transmit();
        let requests = w.counter(0, "tx_packets") - before;
        assert_eq!(requests, expected + (expected == 59) as u64);
        // The answers have a window of their own.
        let in_flight = Rc::new(RefCell::new((0i64, 0i64)));
        let (sent, most) = (in_flight.clone(), in_flight.clone());
        let count = move |n: usize, p: &Packet| {
            let mut sent = sent.borrow_mut();
            sent.0 += (n == 1 && p.bth.opcode.operation().is_read_response()) as i64;
            if n == 0 && p.bth.opcode.operation() == Operation::ReadAcknowledge {
                sent.0 = sent.0.min(101 + 59 - p.bth.psn.get() as i64 + sent.0);
            }
            sent.1 = sent.1.max(sent.0);
            false
        };
        w.drop_if = Some(Box::new(count));
        assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2));
        assert!(most.borrow().0 == 59, "all answers once");
        assert_eq!(w.counter(1, "retransmitted_packets"), 0);
    }
}

/// 708 packets of twelve WRITEs: the bitmaps' 512 are in flight, or all of them where bitmaps are wide. The
/// one that is lost, with all others behind it, comes again by itself.
#[test]
fn without_bdp_fc_only_the_bitmaps_bound_what_is_in_flight() {
    for (wide, expected) in [(false, 512), (true, 12 * 59)] {
        let mut w = World::with_config(2, 8, |c| {
            let receive_packets = if wide { WIDE } else { WINDOW };
            c.irn = Some(IrnConfig { bdp_packets: None, wide, receive_packets, ..IrnConfig::paper() });
        });
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        let rkey = mb.at(0).1;
        for n in 0..12 {
            let at = 400 * n as usize;
            w.send(0, a, wr(n, SendOp::Write(mb.at(at).0, rkey), &[ma.sge(at, 60_000)]));
        }
        let before = w.counter(0, "tx_packets");
        lose_once(&mut w, 0, |p| p.bth.opcode.operation().is_write());
        w.transmit();
        assert_eq!(w.counter(0, "tx_packets") - before, expected);
        for n in 0..12 {
            let done = w.completion(0);
            assert_eq!((done.wr_id, done.status), (n, Status::Success));
        }
        assert_eq!(w.counter(0, "retransmitted_packets"), 1, "the one that was lost");
        assert_eq!(w.counter(1, "early_packets"), expected - 1, "what was in flight with it had landed");
    }
}

#[test]
fn no_more_is_in_flight_than_the_receiver_takes_in() {
    let mut w = World::with_config(2, 8, |c| {
        let receive_packets = if c.qpn_base >> 16 == 2 { 5 } else { 40 };
        c.irn = Some(IrnConfig { receive_packets, ..IrnConfig::paper() });
    });
    let (a, b, ma, mb) = agreed(&mut w, &Link::default());
    let (at_a, at_b) = (ma.at(0), mb.at(0));
    for (node, qp, from, to, limit) in [(0, a, &ma, at_b, 5), (1, b, &mb, at_a, 40)] {
        let before = w.counter(node, "tx_packets");
        w.send(node, qp, wr(1, SendOp::Write(to.0, to.1), &[from.sge(0, 60_000)]));
        w.transmit();
        assert_eq!(w.counter(node, "tx_packets") - before, limit);
        assert_eq!(w.completion(node).status, Status::Success);
    }
}

#[test]
fn the_factor_analysis_recovers_as_it_should() {
    // Two losses in one window: go-back-N sends everything again, without SACK each loss takes a round trip
    // of its own.
    for (scheme, resent) in [(Scheme::Selective, 2..=2), (Scheme::NoSack, 2..=2), (Scheme::GoBackN, 49..=49)]
    {
        let mut w = World::with_config(2, 9, |c| c.irn = Some(IrnConfig { scheme, ..IrnConfig::paper() }));
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        let data = pattern(2, 60_000);
        ma.write(0, &data);
        let (va, rkey) = mb.at(0);
        let mut lost = vec![110, 120];
        lose(&mut w, 0, move |p| {
            let at = lost.iter().position(|psn| Psn::new(*psn) == p.bth.psn);
            at.map(|i| lost.remove(i)).is_some()
        });
        let start = w.now;
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 60_000)]));
        assert_eq!(w.completion(0).status, Status::Success);
        assert_eq!(mb.read(0, 60_000), data);
        let n = w.counter(0, "retransmitted_packets");
        assert!(resent.contains(&n), "{scheme:?}: {n} sent again");
        let round_trips = if scheme == Scheme::NoSack { 3 } else { 2 };
        assert_eq!(w.now.since(start), LATENCY.times(2 * round_trips), "{scheme:?}");
    }
}

#[test]
fn a_fetch_from_the_host_delays_what_is_sent_again() {
    let mut took = Vec::new();
    for us in [0, 2] {
        let mut w = World::with_config(2, 10, |c| {
            c.irn = Some(IrnConfig { retransmit_delay: Duration::from_us(us), ..IrnConfig::paper() });
        });
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        let (va, rkey) = mb.at(0);
        lose_once(&mut w, 0, |p| p.bth.psn == Psn::new(101));
        let start = w.now;
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 10_000)]));
        w.completion(0);
        assert_eq!(w.counter(0, "retransmitted_packets"), 1);
        took.push(w.now.since(start));
    }
    assert_eq!(took[1].as_ns(), took[0].as_ns() + 2000);
}

#[test]
fn an_older_write_goes_under_newer_ones() {
    let mut w = both(11);
    let (a, _, ma, mb) = agreed(&mut w, &Link { mtu: Mtu::M256, ..Link::default() });
    let (va, rkey) = mb.at(0);
    // (from, length) of WRITEs, of which the first packet of each of the first two is lost; the second packet
    // of the first one comes early.
    let writes =
        [(100, 400), (50, 200), (110, 20), (120, 30), (149, 1), (240, 20), (300, 0), (0, 60), (356, 100)];
    let mut expected = vec![0; 1024];
    for (i, (from, len)) in writes.into_iter().enumerate() {
        ma.write(i * 1024, &vec![i as u8 + 1; len]);
        expected[from..from + len].fill(i as u8 + 1);
    }
    let mut lost = vec![100, 102];
    lose(&mut w, 0, move |p| {
        let at = lost.iter().position(|psn| Psn::new(*psn) == p.bth.psn);
        at.map(|i| lost.remove(i)).is_some()
    });
    for (i, (from, len)) in writes.into_iter().enumerate() {
        w.send(0, a, wr(i as u64, SendOp::Write(va + from as u64, rkey), &[ma.sge(i * 1024, len)]));
    }
    for i in 0..writes.len() {
        assert_eq!(w.completion(0).wr_id, i as u64);
    }
    assert_eq!(w.counter(1, "early_packets"), 8);
    assert_eq!(mb.read(0, 1024), expected);
}

#[test]
fn sends_find_their_receives_and_complete_in_order() {
    let mut w = both(12);
    let (a, b, ma, mb) = agreed(&mut w, &Link::default());
    let data = pattern(5, 10_000);
    ma.write(0, &data);
    for i in 0..6 {
        w.recv(1, b, i, &[mb.sge(i as usize * 4096, 1000), mb.sge(i as usize * 4096 + 1000, 3000)]);
    }
    let (va, rkey) = mb.at(40_000);
    let mut lost = vec![100, 103, 105];
    lose(&mut w, 0, move |p| {
        let at = lost.iter().position(|psn| Psn::new(*psn) == p.bth.psn);
        at.map(|i| lost.remove(i)).is_some()
    });
    let sges = |from: usize, len| [ma.sge(from, len)];
    w.send(0, a, wr(1, SendOp::SendImm(11), &sges(0, 2500)));
    w.send(0, a, wr(2, SendOp::WriteImm(va, rkey, 22), &sges(0, 1500)));
    w.send(0, a, wr(3, SendOp::Send, &sges(100, 4000)));
    w.send(0, a, wr(4, SendOp::WriteImm(va + 8192, rkey, 44), &sges(0, 0)));
    w.send(0, a, wr(5, SendOp::Send, &sges(7, 0)));
    // 100 to 102, 103 and 104, 105 to 108, 109, 110.
    w.run(LATENCY.times(2));
    assert!(w.poll(1).is_none(), "nothing completes before the first");
    assert_eq!(w.counter(1, "early_packets"), 8);
    for id in 1..=5 {
        assert_eq!(w.completion(0).wr_id, id);
    }
    let expected = [
        (0, CompletionOp::Recv, 2500, Some(11)),
        (1, CompletionOp::RecvWriteImm, 1500, Some(22)),
        (2, CompletionOp::Recv, 4000, None),
        (3, CompletionOp::RecvWriteImm, 0, Some(44)),
        (4, CompletionOp::Recv, 0, None),
    ];
    for expected in expected {
        let c = w.completion(1);
        let immediate = c.has_immediate.then_some(c.immediate);
        assert_eq!((c.wr_id, c.op, c.byte_len, immediate), expected);
    }
    assert_eq!(mb.read(0, 2500), data[..2500]);
    assert_eq!(mb.read(2 * 4096, 4000), data[100..4100]);
    assert_eq!(mb.read(40_000, 1500), data[..1500]);
    assert_eq!((w.counter(0, "retransmitted_packets"), w.counter(0, "timeouts")), (3, 0));
}

#[test]
fn reads_and_atomics_wait_for_their_turn_and_what_follows_them_too() {
    let mut w = both(13);
    let (a, _, ma, mb) = agreed(&mut w, &Link::default());
    ma.write(0, &[9; 64]);
    let (va, rkey) = mb.at(0);
    // A WRITE is lost, a READ of the same bytes and two atomics on them follow; then a WRITE over them.
    lose_once(&mut w, 0, |p| p.bth.psn == Psn::new(100));
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(1024, 8)]));
    w.send(0, a, wr(3, SendOp::FetchAdd { addr: va, rkey, add: 1 }, &[ma.sge(1032, 8)]));
    w.send(0, a, wr(4, SendOp::FetchAdd { addr: va, rkey, add: 1 }, &[ma.sge(1040, 8)]));
    w.send(0, a, wr(5, SendOp::Write(va, rkey), &[ma.sge(16, 4)]));
    for id in 1..=5 {
        assert_eq!(w.completion(0).wr_id, id);
    }
    let nines = u64::from_ne_bytes([9; 8]);
    assert_eq!((ma.word(1032), ma.word(1040)), (nines, nines + 1));
    let mut last = (nines + 2).to_ne_bytes();
    last[..4].fill(9);
    assert_eq!(mb.read(0, 8), last);
    assert_eq!((w.counter(1, "early_packets"), w.counter(1, "early_refused")), (3, 1));
    assert_eq!(w.counter(0, "timeouts"), 0);
}

#[test]
fn a_lost_answer_is_sent_again_alone() {
    let mut w = both(14);
    w.keep_log = true;
    let (a, _, ma, mb) = agreed(&mut w, &Link::default());
    let data = pattern(4, 20_000);
    mb.write(0, &data);
    let (va, rkey) = mb.at(0);
    lose_once(&mut w, 1, |p| p.bth.opcode.operation() == Operation::ReadResponseMiddle);
    w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 20_000)]));
    w.send(0, a, wr(2, SendOp::Write(va + 30_000, rkey), &[ma.sge(30_000, 8)]));
    assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2));
    assert_eq!(ma.read(0, 20_000), data);
    assert_eq!((w.counter(1, "retransmitted_packets"), w.counter(1, "timeouts")), (1, 0));
    assert_eq!(w.counter(0, "retransmitted_packets"), 0, "the request is not sent again");
    let nacks =
        w.log.iter().filter(|(n, p)| *n == 0 && p.bth.opcode.operation() == Operation::ReadAcknowledge);
    assert!(
        nacks.clone().any(|(_, p)| (p.bth.psn, p.sack) == (Psn::new(101), SackEth::new(0, Psn::new(102))))
    );
    // A lost answer of an atomic: no one else's answer tells, so the timer does; it is not executed again.
    lose_once(&mut w, 1, |p| p.bth.opcode.operation() == Operation::AtomicAcknowledge);
    w.send(0, a, wr(3, SendOp::FetchAdd { addr: va + 40_000, rkey, add: 7 }, &[ma.sge(40_000, 8)]));
    assert_eq!(w.completion(0).wr_id, 3);
    assert_eq!((mb.word(40_000), ma.word(40_000)), (7, 0));
    w.run(Duration::from_ms(100));
    assert!(w.nodes[1].nic.next_deadline().is_none_or(|at| at > w.now), "the answers are acknowledged");
}

#[test]
fn lost_acknowledgements_cost_nothing_but_time() {
    // All acknowledgements of one kind are lost for a while.
    for lost in [Operation::Acknowledge, Operation::ReadAcknowledge] {
        let mut w = both(15);
        let (a, _, ma, mb) = agreed(&mut w, &Link { depth: 2, ..Link::default() });
        let (va, rkey) = mb.at(0);
        let mut left = 12;
        w.drop_if = Some(Box::new(move |_, p| {
            let drop = left > 0 && p.bth.opcode.operation() == lost;
            left -= drop as u32;
            drop
        }));
        for i in 0..20 {
            let sges = [ma.sge(0, 3000)];
            let op = if i % 2 == 0 { SendOp::Read(va, rkey) } else { SendOp::Write(va, rkey) };
            w.send(0, a, wr(i, op, &sges));
        }
        for i in 0..20 {
            let done = w.completion(0);
            assert_eq!((done.wr_id, done.status), (i, Status::Success), "{lost:?}");
        }
    }
}

fn state(w: &World, node: usize, qp: QpId) -> QpState {
    w.nodes[node].nic.query_qp(qp).unwrap().0.state
}

/// Work that ends in an error, by name; receives are posted by the caller.
fn faulty<'a>(what: &str, mem: &Memory, sges: &'a [Sge]) -> SendWr<'a> {
    let (va, rkey) = mem.at(0);
    let op = match what {
        "key" => SendOp::Write(va, Key(rkey.0 ^ 0x100)),
        "bounds" => SendOp::Write(va + 65536 - 2000, rkey),
        "read bounds" => SendOp::Read(va + 65536 - 2000, rkey),
        "atomic" => SendOp::FetchAdd { addr: va + 4, rkey, add: 1 },
        _ => SendOp::Send,
    };
    wr(3, op, sges)
}

/// Completions by node, states, and the bytes written.
type Outcome = (Vec<(usize, u64, Status)>, [QpState; 2], Vec<u8>);

/// Every completion of a run with a fault in its middle, and the states at the end.
fn outcome(what: &str, irn: bool, lost: Option<u32>) -> Outcome {
    let mut w = World::with_config(2, 16, |c| c.irn = irn.then(IrnConfig::paper));
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { rnr_retries: 2, ..Link::default() });
    w.run(Duration::from_us(100));
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    ma.write(0, &pattern(8, 8192));
    if what != "not ready" {
        w.recv(1, b, 7, &[mb.sge(0, 2000)]);
        w.recv(1, b, 8, &[mb.sge(4096, 2000)]);
    }
    if let Some(psn) = lost {
        lose_once(&mut w, 0, move |p| p.bth.psn == Psn::new(psn));
    }
    let (va, rkey) = mb.at(8192);
    let sges = [ma.sge(0, 3000)];
    let small = [ma.sge(0, 8)];
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &sges));
    w.send(0, a, wr(2, SendOp::Write(va + 4096, rkey), &sges));
    w.send(0, a, faulty(what, &mb, if what == "atomic" { &small } else { &sges }));
    w.send(0, a, wr(4, SendOp::Write(va + 12288, rkey), &small));
    w.run(Duration::from_ms(1_000));
    let mut all = Vec::new();
    for node in [0, 1] {
        while let Some(c) = w.poll(node) {
            all.push((node, c.wr_id, c.status));
        }
    }
    (all, [state(&w, 0, a), state(&w, 1, b)], mb.read(8192, 4096))
}

#[test]
fn errors_are_those_of_plain_rc_whatever_is_lost() {
    for what in ["key", "bounds", "read bounds", "atomic", "too long", "not ready"] {
        let expected = outcome(what, false, None);
        assert_ne!(expected.0[2].2, Status::Success);
        // Nothing lost; a packet before the faulty one; the faulty one; one after it.
        for lost in [None, Some(100), Some(104), Some(106), Some(107), Some(109)] {
            assert_eq!(outcome(what, true, lost), expected, "{what}, {lost:?} lost");
        }
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut w = both(17);
    let (a, b, ma, mb) = agreed(&mut w, &Link::default());
    ma.write(0, b"late");
    let (va, rkey) = mb.at(100);
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 4)]));
    w.send(0, a, wr(2, SendOp::Send, &[ma.sge(0, 4)]));
    w.send(0, a, wr(3, SendOp::Write(va, rkey), &[ma.sge(0, 4)]));
    w.run(Duration::from_us(100));
    assert!(w.poll(0).is_none());
    assert!(w.counter(1, "rnr_naks_sent") >= 5, "one each 10 us");
    w.recv(1, b, 1, &[mb.sge(0, 4)]);
    w.recv(1, b, 2, &[mb.sge(4, 4)]);
    for id in [1, 2, 3] {
        assert_eq!(w.completion(0).wr_id, id);
    }
    assert_eq!((mb.read(0, 8), mb.read(100, 4)), (b"latelate".to_vec(), b"late".to_vec()));
}

#[test]
fn silence_exhausts_the_retries_as_in_plain_rc() {
    for read in [false, true] {
        let mut w = both(18);
        let (a, _, ma, mb) = agreed(&mut w, &Link::default());
        // Of a READ, the acknowledgement comes, and no answer ever.
        lose(&mut w, 1, move |p| !read || p.bth.opcode.operation().is_read_response());
        let (va, rkey) = mb.at(0);
        let start = w.now;
        let op = if read { SendOp::Read(va, rkey) } else { SendOp::Write(va, rkey) };
        w.send(0, a, wr(1, op, &[ma.sge(0, 3000)]));
        assert_eq!(w.completion(0).status, Status::TransportRetryExceeded);
        // Eight timeouts of 4.096 us * 2^8.
        let took = w.now.since(start).as_ns();
        assert!((8 * 1_048_576..9 * 1_048_576).contains(&took), "{took} ns");
        let why = w.nodes[0].nic.next_explanation().unwrap();
        assert_eq!(why.timer.unwrap().name, "local ACK timeout");
        w.drop_if = None;
        w.run(Duration::from_ms(10_000));
        assert!(w.nodes.iter().all(|n| !n.nic.has_work()), "and then there is peace");
        let last = w.counter(1, "tx_packets");
        w.run(Duration::from_ms(10_000));
        assert_eq!(w.counter(1, "tx_packets"), last);
    }
}

#[test]
fn memory_that_goes_away_under_a_read_fails_it() {
    let mut w = both(19);
    let (a, b, ma, mb) = agreed(&mut w, &Link::default());
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 60_000)]));
    w.transmit();
    w.run(LATENCY.times(1));
    // The request has come; its answers are about to leave.
    let mut gone = false;
    w.nodes[1].nic.memory().dereg_mr(mb.mr.id).map(|()| gone = true).unwrap();
    assert!(gone);
    w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(0, 60_000)]));
    let done = w.completion(0);
    assert!(matches!(done.status, Status::RemoteAccess | Status::Success), "{done:?}");
    let second = w.completion(0);
    assert_ne!(second.status, Status::Success);
    w.run(Duration::from_ms(100));
    assert_eq!((state(&w, 0, a), state(&w, 1, b)), (QpState::Err, QpState::Err));
}

#[test]
fn a_queue_pair_lives_again_after_reset() {
    let mut w = both(20);
    let link = Link::default();
    let (a, b, ma, mb) = agreed(&mut w, &link);
    let (va, rkey) = mb.at(0);
    for round in 0..3 {
        lose_once(&mut w, 0, |p| p.bth.psn == Psn::new(101));
        for i in 0..8 {
            w.recv(1, b, i, &[mb.sge(4096, 3000)]);
        }
        w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 3000)]));
        w.send(0, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(0, 3000)]));
        assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2), "round {round}");
        while w.poll(1).is_some() {}
        w.send(0, a, wr(3, SendOp::Write(va, rkey), &[ma.sge(0, 3000)]));
        w.transmit();
        for (node, qp) in [(0, a), (1, b)] {
            let (mut attr, _) = w.nodes[node].nic.query_qp(qp).unwrap();
            attr.state = QpState::Reset;
            w.nodes[node].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE).unwrap();
            assert_eq!(w.nodes[node].nic.recovery_of(qp), Ok(LossRecovery::GoBackN));
        }
        w.run(Duration::from_us(50));
        w.connect((0, a), (1, b), &link);
        w.connect((1, b), (0, a), &link);
        w.run(Duration::from_us(50));
        assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Irn));
    }
}

/// A packet of IRN's near the truth, from node 0 to node 1.
fn forged(w: &World, qp: QpId, mem: &Memory, rng: &mut fastrand::Rng) -> (Packet, Vec<u8>) {
    let opcodes: Vec<_> =
        adverb_wire::Opcode::all().filter(|o| matches!(o.service(), Service::Irn | Service::Rc)).collect();
    let mut p = Packet::default();
    (p.flow.src, p.flow.dst) = (w.nodes[0].gid, w.nodes[1].gid);
    let irn = opcodes.iter().filter(|o| o.service() == Service::Irn).count();
    p.bth.opcode = match rng.u8(..8) {
        0 => opcodes[rng.usize(..opcodes.len())],
        _ => opcodes[opcodes.len() - 1 - rng.usize(..irn)],
    };
    p.bth.dest_qp = w.nodes[1].nic.qp_number(qp).unwrap();
    let (attr, _) = w.nodes[1].nic.query_qp(qp).unwrap();
    let operation = p.bth.opcode.operation();
    let response = operation.is_response() || operation == Operation::ReadAcknowledge;
    let base = if response { attr.sq_psn } else { attr.rq_psn };
    let near = |rng: &mut fastrand::Rng| match rng.u8(..4) {
        0 => rng.u32(..1200).wrapping_sub(600),
        _ => rng.u32(..10).wrapping_sub(4),
    };
    p.bth.psn = base.add(near(rng));
    let flags = [0, 1, rng.u8(..)][rng.usize(..3)];
    p.sack = SackEth::new(flags, base.add(near(rng)));
    let sn = if rng.bool() { rng.u32(..6) } else { rng.u32(..) };
    let offset = [0, 1024, 2048, 4096, base.add(near(rng)).get(), rng.u32(..)][rng.usize(..6)];
    p.irn = IrnEth::new((rng.u8(..4) == 0) as u8, sn, offset);
    (p.bth.ack_req, p.bth.solicited) = (rng.bool(), rng.bool());
    let key = if rng.u8(..6) > 0 { mem.mr.rkey } else { Key(rng.u32(..)) };
    let va = mem.addr().wrapping_add([0, 8, 1024, 2048, 4096, 65533, u64::MAX - 3][rng.usize(..7)]);
    let len = [0, 0, 1, 8, 1024, 2048, 1 << 31, u32::MAX][rng.usize(..8)];
    p.reth = adverb_wire::Reth { va, rkey: key, len };
    p.atomic = adverb_wire::AtomicEth { va, rkey: key, swap_add: rng.u64(..), compare: rng.u64(..) };
    let syndromes = [0x1f, 0x60, 0x60, 0x60, 0x21, 0x61, 0x62, rng.u8(..)];
    p.aeth.syndrome = Syndrome::from_wire(syndromes[rng.usize(..8)]);
    (p.immediate, p.invalidate) = (rng.u32(..), key.0);
    p.payload_len = [0, 1, 8, 952, 1024, 1024, 1025, 4096][rng.usize(..8)];
    (p, vec![0xa5; p.payload_len as usize])
}

#[test]
fn forged_packets_do_no_harm_in_any_state() {
    let states = [QpState::Rts, QpState::Rts, QpState::Rtr, QpState::Sqd, QpState::Err, QpState::Reset];
    for seed in 0..600 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut w = if seed % 2 == 0 { both(seed) } else { on_hosts(seed) };
        let heard = rng.bool();
        let link = Link { psn: (Psn::new(500), Psn::new(500)), timeout: 14, ..Link::default() };
        let (peer, qp) = (w.qp(0, QpType::Rc, CAPS), w.qp(1, QpType::Rc, CAPS));
        if heard {
            w.connect((0, peer), (1, qp), &link);
        }
        w.connect((1, qp), (0, peer), &link);
        w.run(Duration::from_us(20));
        w.drop_if = Some(Box::new(|from, _| from == 0));
        let inside = w.memory(1, 65536);
        let outside = w.memory_with(1, 4096, Access::LOCAL_WRITE);
        outside.write(0, &pattern(9, 4096));
        let (va, rkey) = inside.at(0);
        for i in 0..6 {
            let op = if i % 2 == 0 { SendOp::Write(va, rkey) } else { SendOp::Read(va, rkey) };
            w.send(1, qp, wr(i, op, &[inside.sge(0, 3000)]));
            w.recv(1, qp, i, &[inside.sge(0, 2000)]);
        }
        w.transmit();
        let (mut attr, _) = w.nodes[1].nic.query_qp(qp).unwrap();
        attr.state = states[rng.usize(..states.len())];
        match attr.state {
            QpState::Rts => {}
            QpState::Rtr => {
                attr.state = QpState::Reset;
                w.nodes[1].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE).unwrap();
                attr.state = QpState::Init;
                let identity =
                    QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::PKEY_INDEX | QpAttrMask::ACCESS_FLAGS;
                w.nodes[1].nic.modify_qp(w.now, qp, &attr, identity).unwrap();
                attr.state = QpState::Rtr;
                use QpAttrMask as M;
                let rtr =
                    M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                w.nodes[1].nic.modify_qp(w.now, qp, &attr, M::STATE | rtr).unwrap();
            }
            _ => w.nodes[1].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE).unwrap(),
        }
        for _ in 0..300 {
            let (packet, payload) = forged(&w, qp, &inside, &mut rng);
            let now = w.now;
            w.nodes[1].nic.on_frame(now, &packet, &Payload::from_slice(&payload));
            w.nodes[1].nic.check_invariants();
            if rng.u8(..6) == 0 {
                w.run(Duration::from_us(rng.u64(1..500)));
            }
            while w.poll(1).is_some() {}
        }
        assert!(outside.read(0, 4096) == pattern(9, 4096), "seed {seed} wrote where it may not");
    }
}

#[test]
fn receives_taken_early_are_flushed_in_order_and_shared_ones_come_back() {
    for shared in [false, true] {
        let mut w = both(21);
        let (a, b) = (w.qp(0, QpType::Rc, CAPS), w.qp(1, QpType::Rc, CAPS));
        let b = if shared {
            let node = &mut w.nodes[1];
            let srq = SrqInit { pd: node.pd, max_wr: 16, max_sge: 2, xrc: None };
            let srq = node.nic.create_srq(&srq).unwrap();
            let (_, init) = node.nic.query_qp(b).unwrap();
            node.nic.create_qp(&QpInit { srq: Some(srq), ..init }).unwrap()
        } else {
            b
        };
        w.connect((0, a), (1, b), &Link::default());
        w.connect((1, b), (0, a), &Link::default());
        w.run(Duration::from_us(100));
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        for i in 0..5 {
            let sges = [mb.sge(i * 100, 100)];
            let receive = RecvWr { wr_id: i as u64, sges: &sges };
            match w.nodes[1].nic.query_qp(b).unwrap().1.srq {
                Some(srq) => w.nodes[1].nic.post_srq_recv(srq, &receive).unwrap(),
                None => w.nodes[1].nic.post_recv(w.now, b, &receive).unwrap(),
            }
        }
        // The first message arrives, the second does not, the third and fourth do.
        lose(&mut w, 0, |p| p.bth.psn == Psn::new(101));
        for i in 0..4 {
            ma.write(0, &[i as u8 + 1; 100]);
            w.send(0, a, wr(i, SendOp::Send, &[ma.sge(0, 100)]));
            w.transmit();
        }
        w.run(Duration::from_us(50));
        assert_eq!(w.poll(1).map(|c| (c.wr_id, c.status)), Some((0, Status::Success)));
        assert!(w.poll(1).is_none(), "premature completions are held");
        assert_eq!(w.counter(1, "early_packets"), 2);
        assert_eq!((mb.read(200, 100), mb.read(300, 100)), (vec![3; 100], vec![4; 100]));
        let (mut attr, _) = w.nodes[1].nic.query_qp(b).unwrap();
        attr.state = QpState::Err;
        w.nodes[1].nic.modify_qp(w.now, b, &attr, QpAttrMask::STATE).unwrap();
        // Those that were taken, and of its own queue the rest too.
        for id in 1..if shared { 4 } else { 5 } {
            let done = w.completion(1);
            assert_eq!((done.wr_id, done.status), (id, Status::WorkRequestFlushed));
        }
        assert!(w.poll(1).is_none());
    }
}

#[test]
fn what_was_agreed_on_out_of_band_holds_from_the_first_request_on() {
    let config = IrnConfig { agreed: Some(16), bdp_packets: Some(32), ..IrnConfig::paper() };
    let mut w = World::with_config(2, 40, |c| c.irn = Some(config));
    w.keep_log = true;
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    assert_eq!(
        (w.nodes[0].nic.recovery_of(a), w.nodes[1].nic.recovery_of(b)),
        (Ok(LossRecovery::Irn), Ok(LossRecovery::Irn))
    );
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    let data = pattern(7, 40_000);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    lose_once(&mut w, 0, |p| p.bth.psn == Psn::new(100));
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 40_000)]));
    w.transmit();
    assert_eq!(w.log.len(), 16, "no hello, and no more than the peer takes in");
    assert!(w.log.iter().all(|(_, p)| is_irn(p) && p.bth.opcode.operation().is_write()));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 40_000), data);
    assert_eq!((w.counter(0, "irn_hellos_sent"), w.counter(0, "irn_agreed")), (0, 1));
    assert_eq!((w.counter(0, "retransmitted_packets"), w.counter(0, "timeouts")), (1, 0));
}

#[test]
fn a_peer_that_says_hello_is_answered_by_one_that_knows_already() {
    let mut w = World::with_config(2, 41, |c| {
        let agreed = (c.qpn_base >> 16 == 1).then_some(512);
        c.irn = Some(IrnConfig { agreed, ..IrnConfig::paper() });
    });
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    assert_eq!(w.nodes[1].nic.recovery_of(b), Ok(LossRecovery::Undecided));
    w.run(Duration::from_us(100));
    assert_eq!(
        (w.nodes[0].nic.recovery_of(a), w.nodes[1].nic.recovery_of(b)),
        (Ok(LossRecovery::Irn), Ok(LossRecovery::Irn))
    );
    assert_eq!((w.counter(0, "irn_hellos_sent"), w.counter(1, "irn_hellos_sent")), (1, 1));
}

#[test]
fn an_explicit_timeout_is_plain_rc_s_and_leaves_irn_its_own() {
    // The first packet is lost, and nothing follows it.
    for (irn, elapsed) in [(None, 320), (Some(IrnConfig { agreed: Some(512), ..IrnConfig::paper() }), 100)] {
        let mut w = World::with_config(2, 42, |c| {
            c.irn = irn;
            c.rto = Some(Duration::from_us(320));
        });
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
        let (va, rkey) = mb.at(0);
        lose_once(&mut w, 0, |_| true);
        let start = w.now;
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 64)]));
        assert_eq!(w.completion(0).status, Status::Success);
        assert_eq!(w.now.since(start), Duration::from_us(elapsed + 4));
        assert_eq!(w.counter(0, "timeouts"), 1);
    }
}
