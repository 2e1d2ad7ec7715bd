//! IRN between two NICs: how they find out, what a loss costs, what comes early, and the errors, which are plain RC's.

mod world;
use adverb_nic::*;
use adverb_wire::{
    Duration, IrnEth, Key, NakCode, Operation, Packet, Psn, SackEth, Service, Syndrome, WriteLength,
};
use std::cell::RefCell;
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
        assert!((2..=12).contains(&hellos), "{hellos} hellos");
        assert_eq!(w.counter(other, "drop_wrong_service"), hellos);
        assert_eq!((w.counter(offers as usize, "irn_unanswered"), w.counter(other, "irn_agreed")), (1, 0));
        assert_eq!(w.nodes[offers as usize].nic.next_event(), None);
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
    // The hellos are held up; meanwhile plain RC is busy and loses packets. Then the change comes in the middle.
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

#[test]
fn the_factor_analysis_recovers_as_it_should() {
    // Two losses in one window: go-back-N sends everything again, without SACK each loss takes a round trip of its own.
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
