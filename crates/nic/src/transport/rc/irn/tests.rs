//! The four modules: tables of what they do, and both halves against naive ones made of sets, over a wire
//! that loses, doubles and reorders.

use super::sender::Probe;
use super::tx_free::next_lost;
use super::*;
use adverb_wire::{Duration, SackEth};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NONE: Duration = Duration::ZERO;

fn psn(n: u32) -> Psn {
    Psn::new(0xff_fffa).add(n)
}

fn at(us: u64) -> Instant {
    Instant::ZERO + Duration::from_us(us)
}

fn sender(config: &IrnConfig, packets: u32) -> Sender {
    let mut s = Sender::new(psn(0));
    (0..packets).for_each(|_| s.on_sent(config, false, NONE, at(0)));
    s
}

fn nack(s: &mut Sender, config: &IrnConfig, cumulative: u32, sack: u32, us: u64) -> Acked {
    receive_ack(s, config, psn(cumulative), Some(SackEth::new(0, psn(sack))), NONE, at(us))
}

fn ack(s: &mut Sender, config: &IrnConfig, cumulative: u32, us: u64) -> Acked {
    receive_ack(s, config, psn(cumulative), None, NONE, at(us))
}

/// What the sender sends again now, as in the paper.
fn resent(s: &mut Sender, us: u64) -> Vec<u32> {
    resent_by(s, &IrnConfig::paper(), us)
}

fn resent_by(s: &mut Sender, config: &IrnConfig, us: u64) -> Vec<u32> {
    let mut all = Vec::new();
    while let Free::Resend(p) = tx_free(s, config, WINDOW, false, at(us)) {
        all.push(p.since(psn(0)) as u32);
    }
    s.check_invariants();
    all
}

#[test]
fn recovery_is_what_the_paper_says() {
    let c = IrnConfig::paper();
    let mut s = sender(&c, 10);
    assert_eq!(resent(&mut s, 1), [0u32; 0], "nothing before a NACK");
    // 0 and 1 arrived, 2 is missing: first the packet at the cumulative acknowledgement.
    assert_eq!(nack(&mut s, &c, 2, 4, 1), Acked::Advanced(2));
    assert!(s.is_recovering());
    // 3 is lost too: one with a higher PSN was selectively acknowledged. 5 and on may be under way.
    assert_eq!(resent(&mut s, 1), [2, 3]);
    nack(&mut s, &c, 2, 5, 2);
    assert_eq!(resent(&mut s, 2), [0u32; 0], "each once");
    nack(&mut s, &c, 2, 8, 2);
    assert_eq!(resent(&mut s, 2), [6, 7]);
    // Then new ones, if BDP-FC allows.
    assert_eq!(tx_free(&mut s, &c, 8, true, at(2)), Free::Closed);
    assert_eq!(tx_free(&mut s, &c, 9, true, at(2)), Free::New);
    s.on_sent(&c, false, NONE, at(2));
    // It lasts until the cumulative one passes what was sent before it.
    assert_eq!(ack(&mut s, &c, 9, 3), Acked::Advanced(7));
    assert!(s.is_recovering());
    assert_eq!(ack(&mut s, &c, 10, 3), Acked::Advanced(1));
    assert!(!s.is_recovering());
    assert_eq!(ack(&mut s, &c, 10, 3), Acked::Advanced(0));
    assert_eq!(ack(&mut s, &c, 9, 3), Acked::Advanced(0), "an old one");
    assert_eq!(ack(&mut s, &c, 12, 3), Acked::Ghost);
    assert_eq!(s.una, psn(10));
}

#[test]
fn a_threshold_waits_for_reordered_packets() {
    let c = IrnConfig { nack_threshold: 3, ..IrnConfig::paper() };
    let mut s = sender(&c, 10);
    nack(&mut s, &c, 0, 1, 1);
    nack(&mut s, &c, 0, 2, 1);
    assert_eq!(resent(&mut s, 1), [0u32; 0]);
    // The late one came.
    ack(&mut s, &c, 3, 1);
    nack(&mut s, &c, 3, 4, 1);
    nack(&mut s, &c, 3, 5, 1);
    assert_eq!(resent(&mut s, 1), [0u32; 0]);
    nack(&mut s, &c, 3, 7, 1);
    assert_eq!(resent(&mut s, 1), [3, 6]);
}

#[test]
fn the_factor_switches() {
    let c = IrnConfig { scheme: Scheme::GoBackN, ..IrnConfig::paper() };
    let mut s = sender(&c, 6);
    nack(&mut s, &c, 2, 4, 1);
    assert_eq!(resent(&mut s, 1), [2, 3, 4, 5]);
    nack(&mut s, &c, 2, 5, 1);
    assert_eq!(resent(&mut s, 1), [0u32; 0], "one NACK for each gap");
    nack(&mut s, &c, 4, 5, 1);
    assert_eq!(resent(&mut s, 1), [4, 5]);

    let c = IrnConfig { scheme: Scheme::NoSack, ..IrnConfig::paper() };
    let mut s = sender(&c, 6);
    nack(&mut s, &c, 1, 5, 1);
    assert_eq!(resent(&mut s, 1), [1]);
    ack(&mut s, &c, 3, 2);
    assert_eq!(resent(&mut s, 2), [3]);
    ack(&mut s, &c, 6, 3);
    assert!(!s.is_recovering());

    let c = IrnConfig { retransmit_delay: Duration::from_us(2), ..IrnConfig::paper() };
    let mut s = sender(&c, 6);
    nack(&mut s, &c, 1, 3, 10);
    assert_eq!(tx_free(&mut s, &c, 110, false, at(10)), Free::Wait(at(12)));
    assert_eq!(tx_free(&mut s, &c, 110, true, at(10)), Free::New, "others go before it");
    assert_eq!(resent(&mut s, 12), [1, 2]);

    let c = IrnConfig { bdp_packets: None, ..IrnConfig::paper() };
    assert_eq!((c.limit(WINDOW), c.limit(64), IrnConfig::paper().limit(WINDOW)), (WINDOW, 64, 110));
    let c = IrnConfig { wide: true, ..c };
    assert_eq!(
        (c.window(), c.limit(WIDE), c.limit(WINDOW)),
        (WIDE, WIDE, WINDOW),
        "the peer's may be narrow"
    );
}

#[test]
fn timeouts_short_and_long() {
    let c = IrnConfig::paper();
    for (packets, us) in [(1, 100), (3, 100), (4, 320), (50, 320)] {
        let mut s = sender(&c, packets);
        assert_eq!(timeout(&mut s, &c, NONE, at(us - 1)), Expiry::Early);
        assert_eq!(s.deadline(), at(us));
        assert_eq!(timeout(&mut s, &c, NONE, at(us)), Expiry::Expired);
        assert_eq!(resent(&mut s, us), [0], "the oldest only: nothing is known of the others");
        assert_eq!(s.deadline(), at(2 * us), "and again, in the paper without doubling");
    }
    // A cumulative acknowledgement starts it anew; the last one stops it.
    let mut s = sender(&c, 5);
    ack(&mut s, &c, 3, 50);
    assert_eq!(s.deadline(), at(150));
    ack(&mut s, &c, 5, 60);
    assert_eq!(s.deadline(), Instant::NEVER);
    assert_eq!(timeout(&mut s, &c, NONE, at(1000)), Expiry::Idle);
    // A lost tail, with what the timer finds out.
    let mut s = sender(&c, 3);
    timeout(&mut s, &c, NONE, at(100));
    assert_eq!(resent(&mut s, 100), [0]);
    ack(&mut s, &c, 2, 101);
    assert_eq!(resent(&mut s, 101), [2]);
    // The receiver asks, whatever was sent again before.
    receive_ack(&mut s, &c, psn(2), Some(SackEth::new(SackEth::NOT_KEPT, psn(2))), NONE, at(150));
    assert_eq!((resent(&mut s, 150), s.deadline()), (vec![2], at(250)));
    // Doubling, and its bound.
    let c = IrnConfig { backoff: true, ..IrnConfig::paper() };
    let mut s = sender(&c, 1);
    for until in [100, 300, 700, 1500, 2500, 3500] {
        assert_eq!(timeout(&mut s, &c, Duration::from_us(1000), at(until)), Expiry::Expired, "{until}");
    }
}

/// Sends a new packet.
fn fresh(s: &mut Sender, config: &IrnConfig, us: u64) {
    assert_eq!(tx_free(s, config, 110, true, at(us)), Free::New);
    s.on_sent(config, false, NONE, at(us));
}

#[test]
fn a_retransmission_that_is_lost_is_found_by_what_left_after_it() {
    let c = IrnConfig { redetect: true, ..IrnConfig::paper() };
    let mut s = sender(&c, 10);
    // 2, 5 and 7 are lost; 2 and 5 are found first.
    [3, 4, 6].iter().for_each(|sack| _ = nack(&mut s, &c, 2, *sack, 1));
    assert_eq!(resent_by(&mut s, &c, 1), [2, 5]);
    // Sent before them: says nothing about them, but that 7 is lost.
    nack(&mut s, &c, 2, 8, 2);
    nack(&mut s, &c, 2, 9, 2);
    assert_eq!(resent_by(&mut s, &c, 2), [7]);
    // 5 has come the second time and 2 has not.
    nack(&mut s, &c, 2, 5, 3);
    assert_eq!(resent_by(&mut s, &c, 3), [2]);
    nack(&mut s, &c, 2, 5, 3);
    assert_eq!(resent_by(&mut s, &c, 3), [0u32; 0], "no news");
    // New packets left after both; one of them has come, so 7 is lost twice, and 2 three times.
    fresh(&mut s, &c, 4);
    fresh(&mut s, &c, 4);
    nack(&mut s, &c, 2, 10, 5);
    assert_eq!(resent_by(&mut s, &c, 5), [7, 2]);
    // The one that left last has come; 7 had left before it.
    ack(&mut s, &c, 7, 6);
    assert_eq!(resent_by(&mut s, &c, 6), [7]);
    fresh(&mut s, &c, 6);
    nack(&mut s, &c, 7, 12, 7);
    assert_eq!(resent_by(&mut s, &c, 7), [7, 11], "11 for the first time");
    ack(&mut s, &c, 13, 8);
    assert!(!s.is_recovering());
    assert_eq!((resent_by(&mut s, &c, 8), s.in_flight()), (vec![], 0));
    // The paper's waits for its timer.
    let paper = IrnConfig::paper();
    let mut s = sender(&paper, 10);
    nack(&mut s, &paper, 2, 6, 1);
    assert_eq!(resent(&mut s, 1), [2, 3, 4, 5]);
    fresh(&mut s, &paper, 2);
    nack(&mut s, &paper, 2, 10, 3);
    assert_eq!(resent(&mut s, 3), [7, 8, 9]);
    nack(&mut s, &paper, 2, 9, 4);
    assert_eq!(resent(&mut s, 4), [0u32; 0]);
}

#[test]
fn retransmissions_may_be_overtaken_by_as_many_as_the_threshold_allows() {
    let c = IrnConfig { redetect: true, nack_threshold: 3, ..IrnConfig::paper() };
    let mut s = sender(&c, 6);
    for sack in [1, 3, 5] {
        nack(&mut s, &c, 0, sack, 1);
    }
    assert_eq!(resent_by(&mut s, &c, 1), [0, 2, 4]);
    (0..4).for_each(|_| fresh(&mut s, &c, 1));
    // 2, 4 and 6 left one, two and three places after 0.
    nack(&mut s, &c, 0, 2, 2);
    nack(&mut s, &c, 0, 4, 2);
    assert_eq!(resent_by(&mut s, &c, 2), [0u32; 0]);
    nack(&mut s, &c, 0, 7, 2);
    assert_eq!(resent_by(&mut s, &c, 2), [6], "lost once: 7 left only two places after the last of them");
    nack(&mut s, &c, 0, 8, 2);
    assert_eq!(resent_by(&mut s, &c, 2), [0]);
}

#[test]
fn what_has_arrived_makes_room_for_new_packets() {
    let c = IrnConfig { redetect: true, ..IrnConfig::paper() };
    let mut s = sender(&c, 10);
    let limit = 10;
    assert_eq!(tx_free(&mut s, &c, limit, true, at(1)), Free::Closed);
    nack(&mut s, &c, 0, 1, 1);
    nack(&mut s, &c, 0, 2, 1);
    assert_eq!(tx_free(&mut s, &c, limit, true, at(1)), Free::Resend(psn(0)));
    for _ in 0..2 {
        assert_eq!(tx_free(&mut s, &c, limit, true, at(1)), Free::New);
        s.on_sent(&c, false, NONE, at(1));
    }
    assert_eq!(tx_free(&mut s, &c, limit, true, at(1)), Free::Closed);
    // What arrived and is now acknowledged is not counted twice.
    ack(&mut s, &c, 3, 2);
    s.check_invariants();
    assert_eq!((s.reach(limit), s.in_flight()), (10, 9));
    // Never farther than the receiver's bitmap.
    (0..WINDOW - 9).for_each(|_| s.on_sent(&c, false, NONE, at(2)));
    (1..WINDOW).for_each(|k| _ = nack(&mut s, &c, 3, 3 + k, 2));
    assert_eq!((s.reach(limit), s.has_room(limit)), (WINDOW, false));
    s.check_invariants();
}

#[test]
fn what_a_packet_earns() {
    let mut r = Receiver::new(psn(0));
    let owed = |r: &mut Receiver| {
        let mut all = Vec::new();
        while let Some(Owed { psn: p, nack }) = r.next_owed(false) {
            let sack = nack.map(|s| (s.psn().since(psn(0)), s.is_kept()));
            all.push((p.since(psn(0)), sack));
        }
        assert!(!r.owes());
        all
    };
    assert_eq!(receive_data(&r, psn(0)), Arrival::InOrder);
    assert!(!r.take(false));
    assert_eq!(owed(&mut r), [], "in order and not asked for");
    assert!(!r.take(true));
    assert_eq!(owed(&mut r), [(2, None)]);
    // 2 is missing.
    for n in [3, 5] {
        assert_eq!(receive_data(&r, psn(n)), Arrival::Early);
        r.keep(psn(n));
    }
    assert_eq!(owed(&mut r), [(2, Some((3, true))), (2, Some((5, true)))]);
    assert_eq!(receive_data(&r, psn(3)), Arrival::Duplicate);
    r.repeat(psn(3));
    assert_eq!(owed(&mut r), [(2, Some((3, true)))]);
    r.refuse(psn(6));
    assert_eq!(owed(&mut r), [(2, Some((6, false)))]);
    assert_eq!(receive_data(&r, psn(2 + WINDOW)), Arrival::Beyond);
    assert_eq!(receive_data(&r, psn(1 + WINDOW)), Arrival::Early);
    assert_eq!(receive_data(&r, psn(1)), Arrival::Duplicate);
    // It comes: 3 is there already, 4 is not.
    assert!(r.take(false));
    assert!(!r.take(false));
    assert_eq!(r.expected, psn(4));
    assert_eq!(owed(&mut r), [(4, None)], "asked for or not");
    assert!(r.take(false));
    assert!(!r.take(false));
    r.check_invariants();
    assert_eq!(owed(&mut r), [(6, None)]);
    r.probe();
    assert_eq!(owed(&mut r), [(6, Some((6, false)))]);
}

#[test]
fn a_run_tells_of_all_its_packets() {
    let mut r = Receiver::new(psn(0));
    let owed = |r: &mut Receiver| {
        let mut all = Vec::new();
        while let Some(Owed { nack, .. }) = r.next_owed(true) {
            all.extend(nack.map(|s| (s.psn().since(psn(0)), s.more())));
        }
        r.check_invariants();
        all
    };
    [1, 2, 3, 5].iter().for_each(|n| r.keep(psn(*n)));
    assert_eq!(owed(&mut r), [(1, 2), (5, 0)], "what came together is answered together");
    r.keep(psn(6));
    assert_eq!(owed(&mut r), [(5, 1)], "and what was told before is told again");
    r.repeat(psn(2));
    assert_eq!(owed(&mut r), [(1, 2)]);
    // As much as a header holds: what is owed first, then what was told.
    (7..WINDOW).for_each(|n| r.keep(psn(n)));
    let most = SackEth::MORE_MAX;
    assert_eq!(owed(&mut r), [(7, most), (135, most), (263, most), (384, most)]);
    r.keep(psn(4));
    assert_eq!(owed(&mut r), [(4, most)]);

    // The sender takes each packet of a run for one that has come; packets and NACKs are counted alike.
    for redetect in [false, true] {
        let c = IrnConfig { nack_threshold: 3, redetect, runs: true, ..IrnConfig::paper() };
        let mut s = sender(&c, 10);
        let sack = |s: &mut Sender, p, more| {
            receive_ack(s, &c, psn(0), Some(SackEth::run(psn(p), more)), NONE, at(1))
        };
        sack(&mut s, 1, 1);
        assert!(!s.is_recovering(), "two packets have overtaken it");
        sack(&mut s, 1, 1);
        assert!(!s.is_recovering(), "the same two");
        sack(&mut s, 4, 2);
        assert_eq!(resent_by(&mut s, &c, 1), [0, 3]);
        assert_eq!(s.reach(10), if redetect { 15 } else { 10 });
        // A peer that tells of what was never sent is heard as far as it can be true.
        sack(&mut s, 8, 100);
        assert_eq!(resent_by(&mut s, &c, 1), [7]);
        assert_eq!(s.reach(10), if redetect { 17 } else { 10 });
    }
}

/// Timers by the round trip, with tail probes; each sender here has measured 20 us.
fn measured(nack_threshold: u32) -> (IrnConfig, Sender) {
    let timers = Timers::Measured { probe: Some(Duration::ZERO) };
    let c = IrnConfig { timers, nack_threshold, ..IrnConfig::paper() };
    let mut s = Sender::new(psn(0));
    s.on_sent(&c, true, NONE, at(0));
    assert_eq!(s.deadline(), at(100), "before the first sample the paper's");
    receive_ack(&mut s, &c, psn(1), None, NONE, at(20));
    (1..11).for_each(|_| s.on_sent(&c, false, NONE, at(100)));
    (c, s)
}

#[test]
fn a_tail_probe_goes_before_the_timeout() {
    let (c, mut s) = measured(1);
    assert_eq!(s.deadline(), at(140), "two round trips");
    s.on_sent(&c, false, NONE, at(130));
    assert_eq!(timeout(&mut s, &c, NONE, at(140)), Expiry::Early, "since the last packet left");
    assert_eq!(s.deadline(), at(170));
    assert_eq!(s.take_probe(false), None, "not due");
    assert_eq!(timeout(&mut s, &c, NONE, at(170)), Expiry::Probe);
    assert_eq!(s.take_probe(false), Some(psn(11)), "the last one");
    assert_eq!(s.take_probe(false), None, "once");
    assert!(!s.is_recovering());
    // No second one: the timeout, 20 us and four times 10, but no less than the paper's shorter one; and no
    // earlier than the probe's answer may come.
    assert_eq!(s.deadline(), at(210));
    assert_eq!(timeout(&mut s, &c, NONE, at(210)), Expiry::Expired);
    assert_eq!(resent_by(&mut s, &c, 210), [1]);
    assert_eq!(timeout(&mut s, &c, NONE, at(250)), Expiry::Early, "nor after that");
    // In recovery it is the packet at the cumulative acknowledgement.
    receive_ack(&mut s, &c, psn(2), None, NONE, at(251));
    assert_eq!(resent_by(&mut s, &c, 252), [2]);
    assert_eq!(timeout(&mut s, &c, NONE, at(292)), Expiry::Probe);
    assert_eq!(s.take_probe(false), Some(psn(2)));
    // When that moves, there may be another; a new packet can go in its place.
    receive_ack(&mut s, &c, psn(12), None, NONE, at(295));
    s.on_sent(&c, false, NONE, at(300));
    assert_eq!(timeout(&mut s, &c, NONE, at(340)), Expiry::Probe);
    assert_eq!((s.take_probe(true), s.take_probe(false)), (None, None));
    s.check_invariants();
}

#[test]
fn a_tail_probe_is_of_what_the_receiver_is_not_known_to_have() {
    let (c, mut s) = measured(5);
    nack(&mut s, &c, 1, 10, 110);
    nack(&mut s, &c, 1, 9, 110);
    assert!(!s.is_recovering(), "two NACKs of five");
    assert_eq!(timeout(&mut s, &c, NONE, at(140)), Expiry::Probe);
    assert_eq!(s.take_probe(false), Some(psn(8)));
    // None when the peer has not read what it was sent.
    let (c, mut s) = measured(1);
    assert_eq!(timeout(&mut s, &c, NONE, at(140)), Expiry::Probe);
    s.withhold_probe();
    assert_eq!((s.take_probe(false), s.deadline()), (None, at(200)));
}

/// State for each queue pair, beside the paper's: 52 bits a side and 160 bits a queue pair, and five bitmaps
/// of 128 bits.
#[test]
fn state_is_within_its_budget() {
    let (bitmaps, rest) = state_bits_by_kind();
    assert_eq!(bitmaps, 6 * WINDOW as usize, "six bitmaps where the paper has five of 128 bits");
    assert_eq!(rest, 4992, "numbers, marks, timers, and the heads of tables");
    assert_eq!(state_bits(), 8064);
    assert_eq!(core::mem::size_of::<Option<Box<Irn>>>(), 8, "a plain RC queue pair pays one word");
}

/// One packet of either direction on the wire of the model.
#[derive(Clone, Copy, Debug)]
enum Flight {
    Data(u32),
    Ack(Psn, Option<SackEth>),
}

/// Sends `total` packets over a faulty wire, with the real halves beside naive ones.
fn run(seed: u64, config: IrnConfig, total: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let first = psn(rng.u32(0..100));
    let number = |p: Psn| p.since(first) as u32;
    let (mut s, mut r) =
        (Sender::spanning(first, config.window()), Receiver::spanning(first, config.window()));
    let mut arrived = BTreeSet::new();
    let mut sent = BTreeMap::<u32, u32>::new();
    let mut wire: Vec<Flight> = Vec::new();
    let loss = rng.f64() * 0.3;
    let reorder = rng.usize(1..20);
    let limit = config.limit(config.window());
    let (mut now, mut steps) = (0, 0);
    while number(s.una) < total {
        now += 1;
        steps += 1;
        assert!(steps < 100_000, "seed {seed} stuck at {} of {total}", number(s.una));
        let fresh = number(s.next) < total;
        if s.probe == Probe::Due {
            let lost = s.recovering && next_lost(&mut s).is_some();
            if let Some(p) = s.take_probe(lost || fresh && s.has_room(limit)) {
                assert!(!p.is_before(s.una) && p.is_before(s.next) && !s.sacked.get(p), "a probe of {p:?}");
                s.on_resent(p, at(now));
                wire.push(Flight::Data(number(p)));
            }
            assert_eq!(s.probe, Probe::Spent, "one for each stand of the cumulative acknowledgement");
        }
        match tx_free(&mut s, &config, limit, fresh, at(now)) {
            Free::New => {
                assert!(s.in_flight() < limit + s.sacked.count_ones() * config.redetect as u32, "BDP-FC");
                wire.push(Flight::Data(number(s.next)));
                sent.insert(number(s.next), 1);
                s.on_sent(&config, rng.bool(), NONE, at(now));
            }
            Free::Resend(p) => {
                assert!(s.is_recovering() && !p.is_before(s.una) && p.is_before(s.next));
                if config.scheme == Scheme::Selective {
                    assert!(!s.sacked.get(p), "sacked and sent again");
                }
                *sent.get_mut(&number(p)).expect("sent before") += 1;
                wire.push(Flight::Data(number(p)));
            }
            Free::Wait(until) => assert!(until > at(now)),
            Free::Closed if wire.is_empty() && s.deadline() > at(now) && s.deadline() != Instant::NEVER => {
                now = s.deadline().as_ps() / 1_000_000;
            }
            Free::Closed => {}
        }
        if s.deadline() <= at(now) {
            timeout(&mut s, &config, NONE, at(now));
        }
        // The longer the queue, the faster: a wire slower than the sender would only fill up.
        for _ in 0..rng.usize(..2 + wire.len() / 10).min(wire.len()) {
            let flight = wire.remove(rng.usize(..wire.len().min(reorder)));
            if rng.f64() >= loss {
                if rng.u8(..20) == 0 {
                    wire.push(flight);
                }
                deliver(&mut s, &mut r, &mut arrived, &config, first, flight, at(now), rng.bool());
            }
        }
        while let Some(owed) = r.next_owed(config.runs) {
            assert_eq!(owed.psn, r.expected);
            wire.push(Flight::Ack(owed.psn, owed.nack));
        }
        s.check_invariants();
        r.check_invariants();
    }
    assert_eq!(arrived.len() as u32, total);
    assert_eq!((s.in_flight(), r.early), (0, 0));
}

#[expect(clippy::too_many_arguments, reason = "both halves and the model")]
fn deliver(
    s: &mut Sender,
    r: &mut Receiver,
    arrived: &mut BTreeSet<u32>,
    config: &IrnConfig,
    first: Psn,
    flight: Flight,
    now: Instant,
    ack_req: bool,
) {
    // The naive cumulative acknowledgement, found near the real one so that the search is short.
    let near = (r.expected.since(first) as u32).saturating_sub(3);
    let expected = (near..).find(|n| !arrived.contains(n)).expect("one is missing");
    assert_eq!(r.expected, first.add(expected), "the first that the naive receiver misses");
    match flight {
        Flight::Data(n) => {
            let p = first.add(n);
            let arrival = receive_data(r, p);
            let naive = match n {
                _ if arrived.contains(&n) => Arrival::Duplicate,
                _ if n == expected => Arrival::InOrder,
                _ => Arrival::Early,
            };
            assert_eq!(arrival, naive);
            match arrival {
                Arrival::InOrder => {
                    arrived.insert(n);
                    let mut more = r.take(ack_req);
                    while more {
                        more = r.take(false);
                    }
                }
                Arrival::Early if config.scheme == Scheme::GoBackN => r.refuse(p),
                Arrival::Early => {
                    arrived.insert(n);
                    r.keep(p);
                }
                Arrival::Duplicate => r.repeat(p),
                Arrival::Beyond => unreachable!("BDP-FC keeps to the window"),
            }
        }
        Flight::Ack(cumulative, nack) => {
            let before = s.una;
            let Acked::Advanced(n) = receive_ack(s, config, cumulative, nack, NONE, now) else {
                panic!("a ghost")
            };
            assert_eq!(s.una, if before.is_before(cumulative) { cumulative } else { before });
            assert_eq!(s.una.since(before), n as i32);
            assert!(!r.expected.is_before(s.una), "acknowledged what has not arrived");
            for k in 0..s.in_flight() {
                let p = s.una.add(k);
                if s.sacked.get(p) {
                    assert!(arrived.contains(&(p.since(first) as u32)), "sacked what has not arrived");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]
    #[test]
    fn halves_agree_with_sets(
        seed in any::<u64>(),
        scheme in prop::sample::select(vec![Scheme::Selective, Scheme::NoSack, Scheme::GoBackN]),
        bdp in prop::option::of(1..200u32),
        threshold in 1..5u32,
        delay in 0..3u64,
        backoff in any::<bool>(),
        redetect in any::<bool>(),
        runs in any::<bool>(),
        wide in prop::bool::weighted(0.1),
        timers in prop::sample::select(vec![
            Timers::Paper,
            Timers::Measured { probe: None },
            Timers::Measured { probe: Some(Duration::ZERO) },
            Timers::Measured { probe: Some(Duration::from_us(30)) },
        ]),
    ) {
        let config = IrnConfig {
            scheme,
            bdp_packets: bdp,
            nack_threshold: threshold,
            retransmit_delay: Duration::from_us(delay),
            backoff,
            redetect,
            runs,
            timers,
            wide,
            ..IrnConfig::paper()
        };
        // More than a window of the narrow kind, if it is wide.
        run(seed, config, if wide { 700 } else { 300 });
    }
}
