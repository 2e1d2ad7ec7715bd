//! StaR between sides that come late: packets past their deadlines, sides that have a processor now and then.

mod world;
use adverb_nic::*;
use adverb_wire::star::Wish;
use adverb_wire::{Duration, Instant};
use std::cell::Cell;
use std::rc::Rc;
use world::*;

/// The client's node, which is stateful, and the server's, which is stateless.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two queue pairs that have agreed.
fn agreed(seed: u64, tolerance: Tolerance, lifetime: Duration, timeout: u8) -> (World, [QpId; 2]) {
    let mut w = World::with_config(2, seed, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, lifetime, ..StarConfig::default() });
        config.tolerance = tolerance;
    });
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout, ..Link::default() });
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    (w, [a, b])
}

/// Where every copy comes past its deadline, a side that lives is borne as one without a processor is, and
/// then what either side has posted fails; hardware, which is never late, bears nothing. If the way gets
/// shorter again before that, nothing fails.
#[test]
fn who_is_always_late_is_borne_as_long_as_silence_is() {
    let patience = Duration::from_us(8 * 4096 * 4096 / 1000);
    let borne = Duration::from_ms(2000);
    for (from, excused_max, ends) in [
        (CLIENT, Duration::ZERO, false),
        (CLIENT, borne, false),
        (CLIENT, borne, true),
        (SERVER, Duration::ZERO, false),
        (SERVER, borne, false),
        (SERVER, borne, true),
    ] {
        let tolerance = match excused_max {
            Duration::ZERO => Tolerance::default(),
            _ => Tolerance { excused_max, silence_min: Duration::from_ms(1) },
        };
        // Less than any way takes, once it takes so long.
        let (mut w, ids) = agreed(17, tolerance, Duration::from_us(10), 12);
        w.faults.late = 1.0;
        let (to, memory) = (1 - from, [w.memory(CLIENT, 64), w.memory(SERVER, 64)]);
        let (va, rkey) = memory[to].at(0);
        let begun = w.now;
        w.send(from, ids[from], wr(1, SendOp::Write(va, rkey), &[memory[from].sge(0, 8)]));
        if ends {
            w.run(Duration::from_ms(1500));
            assert!(w.poll(from).is_none(), "{from}: it bears it");
            w.faults.late = 0.0;
            assert_eq!(w.completion(from).status, Status::Success, "{from}");
            continue;
        }
        assert_eq!(w.completion(from).status, Status::TransportRetryExceeded, "{from}");
        let took = w.now.since(begun);
        // An answer takes milliseconds.
        let least = (patience + excused_max).minus(Duration::from_ms(10));
        assert!((least..least + patience).contains(&took), "{from}: it took {took:?}, not {least:?}");
        let why = w.nodes[from].nic.next_explanation().expect("a reason").rule;
        let words: &[&str] = match from {
            CLIENT => &["past its deadline", "did not acknowledge"],
            _ => &["had no answer to what the request takes"],
        };
        assert!(words.iter().any(|words| why.contains(words)), "{why}");
    }
}

/// Packets that are under way for the server's requests, and all of one request's.
const WINDOW: u64 = 64;
const PACKETS: usize = 200;

/// A request of the server's whose packets, 64 at a time, meet with something; what the client's NIC has sent
/// again for it.
fn sent_again(write: bool, meet: impl FnOnce(&mut World)) -> (World, u64) {
    let (mut w, ids) = agreed(19, Tolerance::default(), Duration::from_ms(20), 18);
    let len = PACKETS * Mtu::M1024.bytes() as usize;
    let memory = [w.memory(CLIENT, len), w.memory(SERVER, len)];
    let (from, to) = if write { (SERVER, CLIENT) } else { (CLIENT, SERVER) };
    memory[from].write(0, &pattern(3, len));
    let (va, rkey) = memory[CLIENT].at(0);
    let op = if write { SendOp::Write(va, rkey) } else { SendOp::Read(va, rkey) };
    w.send(SERVER, ids[SERVER], wr(1, op, &[memory[SERVER].sge(0, len)]));
    // Up to where a window of packets is on its way.
    let sent = |w: &World| w.counter(CLIENT, "tx_packets");
    let before = sent(&w);
    while sent(&w) < before + WINDOW {
        assert!(w.advance(Instant::NEVER));
    }
    meet(&mut w);
    assert_eq!(w.completion(SERVER).status, Status::Success);
    assert_eq!(memory[to].read(0, len), pattern(3, len));
    let again = w.counter(CLIENT, "retransmitted_packets");
    (w, again)
}

/// The server's process is stopped while a window of packets waits for it. If it goes on before they are too
/// late, they are asked for again at each time that was waited; if not, they are all sent
/// once more. Asked for one by one, with all behind it each time, they were 2,000.
#[test]
fn who_comes_late_is_not_asked_for_the_same_again_and_again() {
    for write in [true, false] {
        for (stopped, most) in [(15, 10 * WINDOW), (100, 15 * WINDOW), (400, 20 * WINDOW)] {
            let (w, again) = sent_again(write, |w| {
                w.stop(SERVER);
                w.run(Duration::from_ms(stopped));
                w.go_on(SERVER);
            });
            assert!((1..=most).contains(&again), "{stopped} ms, {write}: {again} sent again");
            let late = w.counter(SERVER, "star_drop_expired");
            assert!(
                if stopped < 20 { late == 0 } else { late >= WINDOW },
                "{stopped} ms, {write}: {late} late"
            );
        }
    }
}

/// All answers of a window are lost: the window is sent once more, and what a timer asks for beside it.
#[test]
fn a_lost_window_is_sent_again_once() {
    for write in [true, false] {
        let (w, again) = sent_again(write, |w| {
            let until = w.now + Duration::from_us(50);
            w.drop_if = Some(Box::new(|from, _| from == SERVER));
            w.run(until.since(w.now));
            w.drop_if = None;
        });
        assert!(
            w.lost > 0 && (1..=3 * WINDOW).contains(&again),
            "{write}: {again} sent again, {} lost",
            w.lost
        );
    }
}

/// When a node has lost its processor, and when it has had it again.
#[derive(Clone, Copy, Default)]
struct Turns {
    lost: Option<Instant>,
    had: Instant,
}

/// What a driver says of a silence: whether its own process came late to its timer, and whether the peer's
/// has had a processor since.
fn judge(own: Turns, peer: Turns, overdue: &Overdue) -> Silence {
    let timeout = overdue.due.since(overdue.since);
    let slack = Duration::from_ms(1);
    let is_late = own.had.since(overdue.due) > slack.max(Duration::from_ps(timeout.as_ps() / 2));
    match peer.lost {
        _ if is_late => Silence::Late,
        Some(lost) if lost < overdue.since + slack => Silence::Late,
        _ => Silence::Heard,
    }
}

/// Calls and answers between two processes of a busy host: each has a processor for a moment, and then none
/// for longer than packets live, and of the packets some are lost. Both live, so nothing fails, and nothing
/// hangs either. `ADVERB_SEEDS=n` sets how many seeds are run.
#[test]
fn sides_that_have_a_processor_now_and_then_bear_each_other() {
    let (mut expired, mut excused) = (0, 0);
    let seeds = std::env::var("ADVERB_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    for seed in (0..seeds).chain(JUDGED_BY_FIRST) {
        let w = calls(seed);
        expired += w.counter(SERVER, "star_drop_expired");
        excused += w.counter(CLIENT, "timeouts_excused") + w.counter(SERVER, "timeouts_excused");
    }
    assert!(expired > 100 && excused > 100, "{expired} too late, {excused} excused");
}

const SEEDS: u64 = 40;
/// Of 4,000, those that failed while silence was judged by the first copy that was sent, not the last.
const JUDGED_BY_FIRST: [u64; 7] = [133, 574, 1070, 2072, 2498, 2883, 2982];
const CALLS: u64 = 200;
/// How many calls may be under way.
const DEPTH: u64 = 8;

fn calls(seed: u64) -> World {
    // As real hosts have it.
    let (excused_max, silence_min) = (Duration::from_ms(10_000), Duration::from_ms(500));
    let (mut w, ids) = agreed(seed, Tolerance { excused_max, silence_min }, Duration::from_ms(20), 14);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let turns = Rc::new(Cell::new([Turns::default(); 2]));
    let known = turns.clone();
    w.ask = Some(Box::new(move |node, overdue| {
        let turns = known.get();
        judge(turns[node], turns[1 - node], overdue)
    }));
    w.faults.loss = 0.05;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut next = [w.now; 2];
    let post = |w: &mut World, node: usize, number: u64| {
        w.recv(node, ids[node], 1000 + number, &[memory[node].sge(2048, 600)]);
    };
    let (mut called, mut sent, mut answered) = (0, [0; 2], [0; 2]);
    // As long as any silence is borne, and all timeouts after that.
    let longest = excused_max + silence_min.times(2);
    let mut moved = w.now;
    for number in 0..DEPTH {
        (0..2).for_each(|node| post(&mut w, node, number));
    }
    while answered[CLIENT] < CALLS || sent[SERVER] < CALLS {
        while called < CALLS && called < answered[CLIENT] + DEPTH && turns.get()[CLIENT].lost.is_none() {
            w.send(CLIENT, ids[CLIENT], wr(called, SendOp::Send, &[memory[CLIENT].sge(0, 600)]));
            called += 1;
        }
        assert!(w.now.since(moved) < longest, "seed {seed}: nothing completes, and nothing fails");
        let end = next[0].min(next[1]);
        while w.advance(end) {}
        for node in [CLIENT, SERVER] {
            let mut now = turns.get();
            if next[node] <= w.now {
                let had_one = now[node].lost.is_none();
                match had_one {
                    true => w.stop(node),
                    false => w.go_on(node),
                }
                now[node] = match had_one {
                    true => Turns { lost: Some(w.now), ..now[node] },
                    false => Turns { lost: None, had: w.now },
                };
                let longest = if had_one { 80_000 } else { 10_000 };
                next[node] = w.now + Duration::from_us(rng.u64(100..longest));
                turns.set(now);
            }
            if turns.get()[node].lost.is_some() {
                continue;
            }
            while let Some(done) = w.poll(node) {
                assert_eq!(done.status, Status::Success, "seed {seed}, at {node}: {done:?}");
                moved = w.now;
                if done.op != CompletionOp::Recv {
                    sent[node] += 1;
                    continue;
                }
                assert_eq!(done.wr_id, 1000 + answered[node], "seed {seed}, at {node}");
                post(&mut w, node, answered[node] + DEPTH);
                if node == SERVER {
                    w.send(
                        SERVER,
                        ids[SERVER],
                        wr(answered[node], SendOp::Send, &[memory[SERVER].sge(0, 600)]),
                    );
                }
                answered[node] += 1;
            }
        }
    }
    w
}
