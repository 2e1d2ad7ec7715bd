//! Roles by the number of connections, while those last: many of them, and sides that outgrow each other.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Instant};
use world::*;

const EVERY: Duration = Duration::from_ms(1);

fn world(nodes: usize, seed: u64, threshold: u32, every: Duration) -> World {
    World::with_config(nodes, seed, |config| {
        let star = StarConfig { threshold, compare: every, hold: EVERY.times(40), ..StarConfig::default() };
        config.star = Some(StarConfig { hello_interval: Duration::from_us(500), ..star });
    })
}

fn link() -> Link {
    Link { timeout: 14, ..Link::default() }
}

fn connect(w: &mut World, here: usize, there: usize) -> [QpId; 2] {
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, ..CAPS };
    let (own, other) = (w.qp(here, QpType::Rc, caps), w.qp(there, QpType::Rc, caps));
    w.connect((here, own), (there, other), &link());
    w.connect((there, other), (here, own), &link());
    [own, other]
}

fn are(w: &World, nodes: [usize; 2], pairs: &[[QpId; 2]], sides: [StarSide; 2]) -> usize {
    let is = |node: usize, qp, side| w.nodes[node].nic.star_side(qp) == Ok(side);
    pairs.iter().filter(|[a, b]| is(nodes[0], *a, sides[0]) && is(nodes[1], *b, sides[1])).count()
}

/// The server of many has clients of few. One of these gets more connections than the server: of those that
/// the two share the roles are swapped, through plain RC, under requests that go on; of the others nothing
/// changes.
#[test]
fn roles_are_swapped_when_the_stateful_side_outgrows_the_other() {
    let mut w = world(4, 31, 4, EVERY);
    let memory = [w.memory(0, 4096), w.memory(1, 4096)];
    let shared: Vec<_> = (0..4).map(|_| connect(&mut w, 1, 0)).collect();
    let others: Vec<_> = (0..3).map(|_| connect(&mut w, 1, 2)).collect();
    w.run(Duration::from_ms(60));
    assert_eq!(are(&w, [1, 0], &shared, [StarSide::Stateless, StarSide::Stateful]), 4);
    assert_eq!(are(&w, [1, 2], &others, [StarSide::Stateless, StarSide::Stateful]), 3);
    let before = [0, 1].map(|node| (w.counter(node, "star_to_rc"), w.counter(node, "star_to_stateless")));
    for _ in 0..6 {
        connect(&mut w, 0, 3);
    }
    let mut asked = 0;
    let (va, rkey) = memory[1].at(0);
    for at in 0..200 {
        // A fetch-and-add is executed once, whatever stack carries it.
        let add = SendOp::FetchAdd { addr: va, rkey, add: 1 };
        w.send(0, shared[0][1], wr(at, add, &[memory[0].sge(0, 8)]));
        asked += 1;
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (at, Status::Success));
        assert_eq!(memory[0].word(0), asked - 1, "in order, and once");
        w.run(EVERY);
    }
    assert_eq!(are(&w, [1, 0], &shared, [StarSide::Stateful, StarSide::Stateless]), 4, "swapped");
    assert_eq!(are(&w, [1, 2], &others, [StarSide::Stateless, StarSide::Stateful]), 3, "as they were");
    assert_eq!(memory[1].word(0), asked);
    let after = [0, 1].map(|node| (w.counter(node, "star_to_rc"), w.counter(node, "star_to_stateless")));
    // Each of the four has gone through plain RC, and nothing has gone back and forth.
    assert_eq!([after[0].0 - before[0].0, after[1].0 - before[1].0], [4, 4]);
    assert_eq!([after[0].1 - before[0].1, after[1].1 - before[1].1], [4, 0]);
}

/// What is begun in a second is bounded, and so is what is looked at in a step; all change in the end.
#[test]
fn many_connections_are_looked_at_in_steps_and_change_a_hundred_in_a_second() {
    const COUNT: usize = 600;
    let every = Duration::from_ms(100);
    let mut w = world(3, 32, COUNT as u32, every);
    let mut pairs: [Vec<_>; 2] = Default::default();
    for at in 0..COUNT {
        let there = [0, 2][at % 2];
        pairs[at % 2].push(connect(&mut w, 1, there));
    }
    w.run(Duration::from_ms(150));
    let changed = |w: &World, pairs: &[Vec<[QpId; 2]>; 2]| {
        let sides = [StarSide::Stateless, StarSide::Stateful];
        are(w, [1, 0], &pairs[0], sides) + are(w, [1, 2], &pairs[1], sides)
    };
    assert_eq!(changed(&w, &pairs), 0, "as many as the threshold");
    // Nothing else has a time: a look at all of them takes three steps, evenly in its time.
    let mut steps: Vec<Instant> = Vec::new();
    let end = w.now + every.times(2);
    loop {
        let at = w.nodes[1].nic.next_deadline().expect("the next look");
        if at >= end {
            break;
        }
        steps.push(at);
        w.run(at.since(w.now) + Duration::from_ns(1));
    }
    assert!((6..=7).contains(&steps.len()), "{steps:?}");
    assert!(steps.windows(2).all(|two| two[1].since(two[0]) >= Duration::from_ms(30)), "{steps:?}");
    // One more, stateless from the beginning, and all are to change: a hundred in a second.
    pairs[0].push(connect(&mut w, 1, 0));
    while w.counter(1, "star_to_stateless") == 0 {
        w.run(Duration::from_ms(10));
    }
    let first = w.now;
    let mut last = 0;
    for second in 1..=12 {
        w.run(Duration::from_ms(1000));
        let count = w.counter(1, "star_to_stateless");
        assert!(count <= 100 * (second + 1), "{count} in {second} s");
        if count == COUNT as u64 {
            last = second;
            break;
        }
    }
    assert_eq!(changed(&w, &pairs), COUNT + 1);
    assert!((6..=10).contains(&last), "{last} s");
    assert!(w.now.since(first) >= Duration::from_ms(5000));
}
