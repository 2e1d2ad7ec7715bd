//! Connections that change their stack or their roles while they last: under load, with everything going
//! wrong on the way, with messages lost, late and forged, and with peers that die in the middle.

mod world;
use adverb_nic::*;
use adverb_wire::star::{StarEth, Switch, SwitchStep, Wish};
use adverb_wire::{Duration, Flow, Gid, Operation, Packet, Psn, Service};
use std::net::Ipv4Addr;
use world::*;

const SIDES: [StarSide; 3] = [StarSide::Plain, StarSide::Stateless, StarSide::Stateful];

/// Two that leave the choice to their NICs, below the threshold: plain RC.
fn plain(seed: u64, link: &Link) -> (World, [QpId; 2]) {
    plain_within(seed, link, Duration::from_ms(5))
}

/// The same, and what is in flight has so long to come to its end.
fn plain_within(seed: u64, link: &Link, drain: Duration) -> (World, [QpId; 2]) {
    let mut w = World::with_config(2, seed, |config| {
        let star = StarConfig {
            wish: Wish::Auto,
            lifetime: Duration::from_us(300),
            hello_interval: Duration::from_us(500),
            drain,
            merge: seed & 1 != 0,
            burst: seed & 2 != 0,
            ..StarConfig::default()
        };
        config.star = Some(star);
    });
    let (a, b) = w.pair(QpType::Rc, CAPS, link);
    w.run(Duration::from_ms(5));
    assert_eq!(sides(&w, [a, b]), [StarSide::Plain; 2]);
    (w, [a, b])
}

fn sides(w: &World, ids: [QpId; 2]) -> [StarSide; 2] {
    [0, 1].map(|n| w.nodes[n].nic.star_side(ids[n]).unwrap())
}

fn switch(w: &mut World, node: usize, ids: [QpId; 2], to: StarSide) {
    let now = w.now;
    w.nodes[node].nic.star_switch(now, ids[node], to).unwrap();
}

fn is_switch(p: &Packet) -> bool {
    let hello = adverb_wire::Opcode::new(Service::Star, Operation::Hello);
    p.bth.opcode == hello && StarEth::from(p.irn).has(StarEth::MIGRATION)
}

/// Counted messages both ways, and a WRITE and an atomic of each side beside each: what must come is known.
struct Load {
    memory: [Memory; 2],
    posted: [u64; 2],
    sent: [u64; 2],
    received: [u64; 2],
    receives: [u64; 2],
    ids: [QpId; 2],
}

/// Everything that a network does.
const TROUBLE: Faults =
    Faults { loss: 0.02, duplicate: 0.03, reorder: 0.1, corrupt: 0.005, late: 0.01, mark: 0.0 };

const DEPTH: u64 = 8;
const LEN: usize = 1500;

impl Load {
    fn new(w: &mut World, ids: [QpId; 2]) -> Load {
        let memory = [w.memory(0, 1 << 16), w.memory(1, 1 << 16)];
        let mut load = Load { memory, posted: [0; 2], sent: [0; 2], received: [0; 2], receives: [0; 2], ids };
        load.fill(w, ids);
        load
    }

    fn fill(&mut self, w: &mut World, ids: [QpId; 2]) {
        self.fill_receives(w, ids);
        self.fill_sends(w, ids);
    }

    fn fill_receives(&mut self, w: &mut World, ids: [QpId; 2]) {
        for node in [0, 1] {
            while self.receives[node] < self.received[node] + DEPTH {
                let at = 16384 + (self.receives[node] % DEPTH) as usize * 2048;
                let sge = self.memory[node].sge(at, LEN);
                w.recv(node, ids[node], 1 << 32 | self.receives[node], &[sge]);
                self.receives[node] += 1;
            }
        }
    }

    fn fill_sends(&mut self, w: &mut World, ids: [QpId; 2]) {
        for node in [0, 1] {
            while self.posted[node] < self.sent[node] + DEPTH / 2 {
                let number = self.posted[node];
                let at = (number % DEPTH) as usize * 2048;
                self.memory[node].write(at, &pattern(number as u8, LEN));
                let (addr, rkey) = self.memory[1 - node].at(40960);
                let result = self.memory[node].sge(49152 + (number % DEPTH) as usize * 8, 8);
                let add = SendOp::FetchAdd { addr, rkey, add: 1 };
                let mut quiet = wr(2 << 32 | number, add, &[]);
                let list = [result];
                quiet.data = SendData::Sges(&list);
                w.send(node, ids[node], quiet);
                let data = self.memory[node].sge(at, LEN);
                w.send(node, ids[node], wr(number, SendOp::Send, &[data]));
                self.posted[node] += 1;
            }
        }
    }

    /// Takes what has completed: each once, in order, whole.
    fn take(&mut self, w: &mut World, what: &str) {
        for node in [0, 1] {
            while let Some(c) = w.poll(node) {
                assert_eq!(c.status, Status::Success, "{what}: node {node}, {c:?}");
                match c.wr_id >> 32 {
                    1 => {
                        assert_eq!(c.wr_id as u32 as u64, self.received[node], "{what}: order of receives");
                        let at = 16384 + (self.received[node] % DEPTH) as usize * 2048;
                        let expected = pattern(self.received[node] as u8, LEN);
                        assert_eq!(self.memory[node].read(at, LEN), expected, "{what}: bytes at {node}");
                        self.received[node] += 1;
                    }
                    2 => {
                        let number = c.wr_id as u32 as u64;
                        let found = self.memory[node].word(49152 + (number % DEPTH) as usize * 8);
                        assert_eq!((number, found), (self.sent[node], number), "{what}: atomics once");
                    }
                    _ => {
                        assert_eq!(c.wr_id, self.sent[node], "{what}: order of sends");
                        self.sent[node] += 1;
                    }
                }
            }
        }
    }

    fn run(&mut self, w: &mut World, ids: [QpId; 2], time: Duration, what: &str) {
        let end = w.now + time;
        while w.now < end && w.advance(end) {
            self.take(w, what);
            self.fill(w, ids);
        }
    }

    /// Until a side is what it is to be, and its peer fits.
    fn run_until(&mut self, w: &mut World, ids: [QpId; 2], node: usize, to: StarSide, what: &str) {
        let other = match to {
            StarSide::Stateless => StarSide::Stateful,
            StarSide::Stateful => StarSide::Stateless,
            other => other,
        };
        let (end, mut again) = (w.now + Duration::from_ms(9_000), w.now + Duration::from_ms(1_000));
        loop {
            let now = sides(w, ids);
            if now[node] == to && now[1 - node] == other {
                return;
            }
            if w.now > again {
                // The other side's wish came later, or the two have stood in each other's way too often.
                again = w.now + Duration::from_ms(1_000);
                switch(w, node, ids, to);
            }
            assert!(w.now < end && w.advance(end), "{what}: {now:?} at {:?}", w.now);
            self.take(w, what);
            self.fill(w, ids);
        }
    }

    fn end(&mut self, w: &mut World, what: &str) {
        let end = w.now + Duration::from_ms(5_000);
        while self.sent != self.posted || self.received != [self.posted[1], self.posted[0]] {
            let goes_on = w.advance(end);
            assert!(goes_on, "{what}: {:?} of {:?}", self.sent, self.posted);
            self.take(w, what);
            // What was sent may be known before what was received.
            self.fill_receives(w, self.ids);
        }
    }
}

fn link() -> Link {
    Link { timeout: 8, depth: 16, ..Link::default() }
}

/// Every change that there is, by either side, while messages run both ways.
#[test]
fn every_change_by_either_side_under_load() {
    let (mut w, ids) = plain(1, &link());
    let bytes = [0, 1].map(|n| w.nodes[n].nic.stateless_bytes());
    let mut load = Load::new(&mut w, ids);
    let mut changes = 0;
    for from in SIDES {
        for to in SIDES {
            for node in [0, 1] {
                for (side, by) in [(from, 0), (to, node)] {
                    switch(&mut w, by, ids, side);
                    let what = format!("{from:?} to {to:?} by {node}");
                    load.run_until(&mut w, ids, by, side, &what);
                    let before = load.received;
                    load.run(&mut w, ids, Duration::from_us(300), &what);
                    assert!(load.received[0] > before[0] && load.received[1] > before[1], "{what}: goes on");
                    changes += 1;
                }
            }
        }
    }
    load.end(&mut w, "end");
    let count = |name| w.counter(0, name) + w.counter(1, name);
    assert!(changes == 36 && count("star_to_rc") > 20 && count("star_to_stateless") > 10);
    assert_eq!((count("star_switch_given_up"), count("star_drop_switch")), (0, 0));
    assert_eq!([0, 1].map(|n| w.nodes[n].nic.stateless_bytes()), bytes, "nothing is left behind");
}

/// The same at random, on a network where everything goes wrong now and then.
#[test]
fn random_changes_in_trouble_lose_nothing() {
    let seeds = std::env::var("ADVERB_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let (mut changes, mut repeated, mut earlier) = (0, 0, 0);
    for seed in 0..seeds {
        let (mut w, ids) = plain(seed, &Link { timeout: 13, ..link() });
        let mut load = Load::new(&mut w, ids);
        w.faults = TROUBLE;
        let mut rng = fastrand::Rng::with_seed(seed);
        for round in 0..12 {
            let what = format!("seed {seed}, round {round}");
            let (node, to) = (rng.usize(0..2), SIDES[rng.usize(0..3)]);
            switch(&mut w, node, ids, to);
            if rng.u32(0..4) > 0 {
                load.run_until(&mut w, ids, node, to, &what);
            }
            load.run(&mut w, ids, Duration::from_us(rng.u64(1..3_000)), &what);
            if sides(&w, ids) != [StarSide::Plain; 2] && sides(&w, ids)[node] != to {
                load.run(&mut w, ids, Duration::from_ms(80), &what);
            }
            // Both at once, against each other.
            if rng.u32(0..4) == 0 {
                switch(&mut w, 0, ids, SIDES[rng.usize(0..3)]);
                switch(&mut w, 1, ids, SIDES[rng.usize(0..3)]);
                // Each has had its way, or has given it up.
                load.run(&mut w, ids, Duration::from_ms(80), &what);
            }
        }
        load.end(&mut w, &format!("seed {seed}"));
        let count = |name| w.counter(0, name) + w.counter(1, name);
        changes += count("star_to_rc") + count("star_to_stateless");
        repeated += count("star_switches_said");
        earlier += count("star_drop_earlier") + count("star_drop_not_live") + count("drop_qp_state");
        w.faults = Faults::default();
        w.run(Duration::from_ms(200));
    }
    println!("{changes} changes, {repeated} messages, {earlier} packets of earlier stacks");
    assert!(changes > seeds * 4 && repeated > changes && earlier > seeds / 4);
}

fn parsed(payload: &[u8]) -> Switch {
    Switch::read(payload).expect("a switch's message")
}

/// Every message of a switch, by its place in the handshake, is lost once, twice, five times: it happens all
/// the same, and once.
#[test]
fn every_message_may_be_lost() {
    for (from, to) in [(StarSide::Plain, StarSide::Stateful), (StarSide::Stateful, StarSide::Stateless)] {
        for place in 0..10 {
            for times in [1, 4] {
                let (mut w, ids) = plain(1, &link());
                let mut load = Load::new(&mut w, ids);
                switch(&mut w, 0, ids, from);
                load.run_until(&mut w, ids, 0, from, "at first");
                let mut seen = 0;
                let is_control = |p: &Packet| {
                    is_switch(p)
                        || p.bth.opcode.is_of(Service::Star)
                            && StarEth::from(p.irn).has(StarEth::MIGRATION)
                            && matches!(
                                p.bth.opcode.operation(),
                                Operation::WqePacket | Operation::WqeEventAcknowledge
                            )
                };
                w.drop_if = Some(Box::new(move |_, p| {
                    let control = is_control(p);
                    seen += i32::from(control);
                    control && (place..place + times).contains(&(seen - 1))
                }));
                let end = if from == to { StarSide::Plain } else { to };
                switch(&mut w, 0, ids, end);
                let what = format!("{from:?} to {end:?}, message {place} lost {times} times");
                load.run_until(&mut w, ids, 0, end, &what);
                load.end(&mut w, &what);
            }
        }
    }
}

/// The peer is silent from some message of the handshake on: what is posted fails as it does with any dead
/// peer, within the timeout, retry count times over, and nothing hangs.
#[test]
fn a_peer_that_dies_in_the_middle_costs_the_ordinary_retry_count() {
    for dies in [0, 1] {
        for after in 0..8 {
            let (mut w, ids) = plain(2, &link());
            let memory = [w.memory(0, 4096), w.memory(1, 4096)];
            switch(&mut w, 0, ids, StarSide::Stateful);
            let mut seen = 0;
            w.drop_if = Some(Box::new(move |from, p| {
                seen += i32::from(p.bth.opcode.is_of(Service::Star));
                seen > after && from == dies
            }));
            w.run(Duration::from_ms(2));
            let left = 1 - dies;
            w.send(left, ids[left], wr(5, SendOp::Send, &[memory[left].sge(0, 64)]));
            let failed = w.completion(left);
            let what = format!("{dies} dies after {after} messages");
            assert_eq!((failed.wr_id, failed.status), (5, Status::TransportRetryExceeded), "{what}");
            assert_eq!(w.nodes[left].nic.query_qp(ids[left]).unwrap().0.state, QpState::Err, "{what}");
            w.run(Duration::from_ms(500));
        }
    }
}

/// Who has to ask the peer to begin asks for as long as an attempt's other steps may take: a peer without a
/// processor for a third of a second does not bring a command to nothing. One that stays silent does.
#[test]
fn a_question_waits_for_a_peer_that_is_late() {
    for silence in [Some(Duration::from_ms(300)), None] {
        let (mut w, ids) = plain_within(6, &Link { timeout: 14, ..link() }, Duration::from_ms(100));
        let mut load = Load::new(&mut w, ids);
        // The time to the peer and back is known afterwards, so questions are repeated soon.
        switch(&mut w, 1, ids, StarSide::Stateful);
        load.run_until(&mut w, ids, 1, StarSide::Stateful, "at first");
        load.end(&mut w, "at first");
        let given_up = w.counter(0, "star_switch_given_up");
        switch(&mut w, 0, ids, StarSide::Plain);
        w.drop_if = Some(Box::new(|_, _| true));
        w.run(silence.unwrap_or(Duration::from_ms(3_000)));
        w.drop_if = None;
        if silence.is_none() {
            assert_eq!(w.counter(0, "star_switch_given_up"), given_up + 1);
            w.run(Duration::from_ms(500));
            assert_eq!(sides(&w, ids), [StarSide::Stateless, StarSide::Stateful]);
            continue;
        }
        let end = w.now + Duration::from_ms(1_000);
        while sides(&w, ids) != [StarSide::Plain; 2] {
            assert!(w.advance(end), "{:?}", sides(&w, ids));
        }
        assert_eq!(w.counter(0, "star_switch_given_up"), given_up);
    }
}

/// What does not come to rest is not switched: here a SEND waits for a receive that is posted only when the
/// peer's own SEND has come, which the switch would hold up. Both go on as before, and it works afterwards.
#[test]
fn what_waits_for_the_program_is_not_waited_for() {
    for side in [StarSide::Plain, StarSide::Stateful] {
        let (mut w, ids) = plain(3, &link());
        let memory = [w.memory(0, 4096), w.memory(1, 4096)];
        switch(&mut w, 0, ids, side);
        w.run(Duration::from_ms(50));
        assert_eq!(sides(&w, ids)[0], side);
        w.send(0, ids[0], wr(1, SendOp::Send, &[memory[0].sge(0, 64)]));
        w.run(Duration::from_us(100));
        switch(&mut w, 0, ids, if side == StarSide::Plain { StarSide::Stateful } else { StarSide::Plain });
        w.run(Duration::from_us(100));
        w.recv(0, ids[0], 2, &[memory[0].sge(64, 64)]);
        w.send(1, ids[1], wr(3, SendOp::Send, &[memory[1].sge(0, 64)]));
        assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (2, 3), "it goes on: {side:?}");
        assert!(w.counter(0, "star_switch_aborted") > 0);
        w.recv(1, ids[1], 4, &[memory[1].sge(64, 64)]);
        assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (1, 4));
        let end = w.now + Duration::from_ms(500);
        while sides(&w, ids)[0] == side {
            assert!(w.advance(end), "and is switched in the end");
        }
    }
}

/// Roles by the number of connections, while they last: with many the fuller side becomes stateless, with few
/// it is plain RC again, and nothing changes back before its time.
#[test]
fn connections_that_come_and_go_change_roles() {
    let mut w = World::with_config(3, 6, |config| {
        let every = Duration::from_ms(1);
        let star =
            StarConfig { threshold: 4, compare: every, hold: every.times(40), ..StarConfig::default() };
        config.star = Some(StarConfig { hello_interval: Duration::from_us(500), ..star });
    });
    let mut pairs = Vec::new();
    let connect = |w: &mut World, peer: usize, pairs: &mut Vec<(usize, QpId, QpId)>| {
        let (own, other) = (w.qp(1, QpType::Rc, CAPS), w.qp(peer, QpType::Rc, CAPS));
        w.connect((1, own), (peer, other), &link());
        w.connect((peer, other), (1, own), &link());
        pairs.push((peer, own, other));
    };
    for peer in [0, 2, 0] {
        connect(&mut w, peer, &mut pairs);
    }
    let all = |w: &World, pairs: &[(usize, QpId, QpId)], own: StarSide, other: StarSide| {
        pairs.iter().all(|(peer, a, b)| {
            w.nodes[1].nic.star_side(*a) == Ok(own) && w.nodes[*peer].nic.star_side(*b) == Ok(other)
        })
    };
    w.run(Duration::from_ms(30));
    assert!(all(&w, &pairs, StarSide::Plain, StarSide::Plain), "few");
    for peer in [2, 0, 2] {
        connect(&mut w, peer, &mut pairs);
    }
    let came = w.now;
    w.run(Duration::from_ms(8));
    assert_eq!(w.nodes[1].nic.star_side(pairs[0].1), Ok(StarSide::Plain), "not at the first look");
    w.run(Duration::from_ms(30));
    assert!(all(&w, &pairs, StarSide::Stateless, StarSide::Stateful), "many");
    // Gone again: what has just changed stays for its time.
    for (peer, own, other) in pairs.drain(1..) {
        w.nodes[1].nic.destroy_qp(own).unwrap();
        w.nodes[peer].nic.destroy_qp(other).unwrap();
    }
    let until = came + Duration::from_ms(45);
    w.run(until.since(w.now));
    assert!(all(&w, &pairs, StarSide::Stateless, StarSide::Stateful), "not before its time");
    w.run(Duration::from_ms(60));
    assert!(all(&w, &pairs, StarSide::Plain, StarSide::Plain), "few again");
}

/// What a command has chosen, policy does not change: neither side's, though both would have it otherwise.
#[test]
fn policy_leaves_what_a_command_has_chosen() {
    let every = Duration::from_ms(1);
    let mut w = World::with_config(2, 15, |config| {
        let star = StarConfig { threshold: 4, compare: every, hold: every, ..StarConfig::default() };
        config.star = Some(StarConfig { hello_interval: Duration::from_us(500), ..star });
    });
    let ids = <[QpId; 2]>::from(w.pair(QpType::Rc, CAPS, &link()));
    w.run(Duration::from_ms(30));
    assert_eq!(sides(&w, ids), [StarSide::Plain; 2], "few");
    switch(&mut w, 0, ids, StarSide::Stateless);
    w.run(Duration::from_ms(100));
    assert_eq!(sides(&w, ids), [StarSide::Stateless, StarSide::Stateful]);
    let said = [0, 1].map(|n| w.counter(n, "star_switches_said"));
    w.run(Duration::from_ms(200));
    assert_eq!(sides(&w, ids), [StarSide::Stateless, StarSide::Stateful], "few still, and nobody minds");
    assert_eq!([0, 1].map(|n| w.counter(n, "star_switches_said")), said);
}

/// Peers that do not know StaR hear no word of the policy's, however many they are.
#[test]
fn policy_says_nothing_to_who_does_not_know_it() {
    let every = Duration::from_ms(1);
    let mut w = World::with_config(2, 16, |config| {
        let star = StarConfig { threshold: 0, compare: every, hold: every, ..StarConfig::default() };
        // Of the two nodes one knows it.
        config.star = (config.qpn_base == 1 << 16).then_some(star);
    });
    let memory = [w.memory(0, 4096), w.memory(1, 4096)];
    let ids = <[QpId; 2]>::from(w.pair(QpType::Rc, CAPS, &link()));
    w.recv(1, ids[1], 1, &[memory[1].sge(0, 64)]);
    w.send(0, ids[0], wr(2, SendOp::Send, &[memory[0].sge(0, 64)]));
    assert_eq!((w.completion(0).wr_id, w.completion(1).wr_id), (2, 1));
    w.run(Duration::from_ms(200));
    assert_eq!((sides(&w, ids)[0], w.counter(0, "star_switches_said")), (StarSide::Plain, 0));
}

/// Messages of a switch that are forged: from elsewhere, by who does not know where the connection began, of
/// an attempt that is over. Each is counted, and nothing changes.
#[test]
fn forged_and_old_messages_change_nothing() {
    let (mut w, ids) = plain(4, &link());
    w.keep_log = true;
    let mut load = Load::new(&mut w, ids);
    switch(&mut w, 0, ids, StarSide::Stateful);
    load.run_until(&mut w, ids, 0, StarSide::Stateful, "first");
    switch(&mut w, 0, ids, StarSide::Plain);
    load.run_until(&mut w, ids, 0, StarSide::Plain, "back");
    load.end(&mut w, "quiet");
    let said: Vec<(usize, Packet, Vec<u8>)> = w
        .log
        .iter()
        .zip(&w.log_payloads)
        .filter(|((_, p), _)| is_switch(p))
        .map(|((from, p), bytes)| (*from, *p, bytes.clone()))
        .collect();
    assert!(said.len() >= 7, "{} messages", said.len());
    let before = [0, 1].map(|n| w.counter(n, "star_to_rc") + w.counter(n, "star_to_stateless"));
    let refused = |w: &World| w.counter(0, "star_drop_switch") + w.counter(1, "star_drop_switch");
    for (from, packet, bytes) in &said {
        let to = 1 - from;
        let real = parsed(bytes);
        let far = Switch { epoch: real.epoch + 7, ..real };
        let elsewhere =
            Packet { flow: Flow { src: Gid::from(Ipv4Addr::new(10, 0, 0, 99)), ..packet.flow }, ..*packet };
        let wrong = [
            (elsewhere, far),
            (*packet, Switch { first: (far.first.0 ^ 1, far.first.1), ..far }),
            (*packet, Switch { first: (far.first.0, far.first.1 ^ 1), ..far }),
        ];
        for (packet, forged) in wrong {
            let counted = refused(&w);
            w.inject(packet, &forged.bytes());
            w.run(Duration::from_us(50));
            assert_eq!(refused(&w), counted + 1, "{forged:?} to {to}");
        }
        // As it was: its attempt is over. A question is not of an attempt, so it may be asked again.
        if !matches!(real.step, SwitchStep::Ask | SwitchStep::Compare) {
            w.inject(*packet, bytes);
            w.run(Duration::from_ms(20));
        }
        w.inject(*packet, &bytes[1..]);
        w.run(Duration::from_us(50));
        assert_eq!(sides(&w, ids), [StarSide::Plain; 2]);
    }
    assert_eq!([0, 1].map(|n| w.counter(n, "star_to_rc") + w.counter(n, "star_to_stateless")), before);
    load.fill(&mut w, ids);
    load.end(&mut w, "goes on");
}

/// A copy of the last change's commit comes between the beginning of the next change and its first message:
/// the answer takes that message's place, and the timer says it again.
#[test]
fn a_copy_of_the_last_commit_does_not_silence_the_next_change() {
    let (mut w, ids) = plain(11, &link());
    w.keep_log = true;
    let mut load = Load::new(&mut w, ids);
    switch(&mut w, 0, ids, StarSide::Stateless);
    load.run_until(&mut w, ids, 0, StarSide::Stateless, "stateless");
    switch(&mut w, 0, ids, StarSide::Plain);
    load.run_until(&mut w, ids, 0, StarSide::Plain, "plain");
    load.run(&mut w, ids, Duration::from_ms(5), "at rest");
    let is_commit = |bytes: &[u8]| parsed(bytes).step == SwitchStep::Commit;
    let last = w.log.iter().zip(&w.log_payloads).rfind(|((from, p), bytes)| {
        *from == 1 && is_switch(p) && is_commit(bytes) && parsed(bytes).to == adverb_wire::star::Side::Plain
    });
    let ((_, packet), bytes) = last.map(|(sent, bytes)| (*sent, bytes.clone())).expect("a commit was sent");
    switch(&mut w, 0, ids, StarSide::Stateful);
    let now = w.now;
    w.nodes[0].nic.on_frame(now, &packet, &Payload::from_slice(&bytes));
    load.run_until(&mut w, ids, 0, StarSide::Stateful, "stateful");
    load.end(&mut w, "goes on");
}

/// Packets of a stack that a connection had before, repeated late in another one: each is dropped and
/// counted, and memory, completions and numbers are as without them.
#[test]
fn late_packets_of_earlier_stacks_are_dropped() {
    let (mut w, ids) = plain(5, &link());
    w.keep_log = true;
    let mut load = Load::new(&mut w, ids);
    let mut eras: Vec<Vec<(Packet, Vec<u8>)>> = Vec::new();
    for (round, to) in
        [StarSide::Plain, StarSide::Stateful, StarSide::Plain, StarSide::Stateless, StarSide::Stateful]
            .into_iter()
            .enumerate()
    {
        switch(&mut w, 0, ids, to);
        let what = format!("round {round}, {to:?}");
        load.run_until(&mut w, ids, 0, to, &what);
        load.run(&mut w, ids, Duration::from_us(200), &what);
        let took = w.log.drain(..).map(|(_, p)| p).zip(w.log_payloads.drain(..)).collect::<Vec<_>>();
        let count = |w: &World| {
            ["star_drop_earlier", "star_drop_not_live", "drop_qp_state", "drop_hello", "star_drop_switch"]
                .iter()
                .map(|name| w.counter(0, name) + w.counter(1, name))
                .sum::<u64>()
        };
        let before = count(&w);
        let mut late = 0;
        for (packet, bytes) in eras.iter().flatten().filter(|(p, _)| !is_switch(p)) {
            w.inject(*packet, bytes);
            late += 1;
            load.run(&mut w, ids, Duration::from_us(1), &what);
        }
        load.run(&mut w, ids, Duration::from_us(500), &what);
        assert!(round == 0 || count(&w) > before + late / 8, "{what}: {} of {late}", count(&w) - before);
        assert_eq!(sides(&w, ids)[0], to, "{what}");
        w.log.clear();
        w.log_payloads.clear();
        eras.push(took);
    }
    load.end(&mut w, "end");
}

/// Who has waited in vain for a commit goes on as before, and from then on refuses that attempt: whatever
/// copies of its messages come, in whatever order, while the coordinator has heard of no refusal.
#[test]
fn an_attempt_that_was_given_up_is_refused_for_ever() {
    for to in [StarSide::Stateful, StarSide::Plain] {
        let (mut w, ids) = plain(12, &link());
        if to == StarSide::Plain {
            switch(&mut w, 0, ids, StarSide::Stateful);
            w.run(Duration::from_ms(50));
        }
        let before = sides(&w, ids);
        w.keep_log = true;
        // Of each side's messages the first arrives: Quiesce, and its answer.
        let mut seen = [0; 2];
        w.drop_if = Some(Box::new(move |from, p| {
            seen[from] += usize::from(is_switch(p));
            is_switch(p) && seen[from] > 1
        }));
        switch(&mut w, 0, ids, to);
        w.run(Duration::from_ms(60));
        assert_eq!((w.counter(1, "star_switch_aborted"), sides(&w, ids)), (1, before), "{to:?}");
        let said = |step| {
            let of = |((from, _), bytes): &(&(usize, Packet), &Vec<u8>)| {
                *from == 0 && bytes.len() == Switch::LEN && parsed(bytes).step == step
            };
            let ((_, packet), bytes) = w.log.iter().zip(&w.log_payloads).find(of).expect("it was said");
            (*packet, bytes.clone())
        };
        let (quiesce, commit) = (said(SwitchStep::Quiesce), said(SwitchStep::Commit));
        let attempt = parsed(&quiesce.1).epoch;
        for (n, late) in [&quiesce, &commit, &quiesce, &quiesce, &commit].into_iter().enumerate() {
            let (now, refused) = (w.now, w.counter(1, "star_switch_refused"));
            w.log.clear();
            w.log_payloads.clear();
            w.nodes[1].nic.on_frame(now, &late.0, &Payload::from_slice(&late.1));
            w.run(Duration::from_us(10));
            let answers =
                w.log.iter().zip(&w.log_payloads).filter(|((from, p), _)| *from == 1 && is_switch(p));
            let answers: Vec<_> = answers.map(|(_, bytes)| parsed(bytes)).collect();
            let steps: Vec<_> = answers.iter().map(|said| (said.step, said.epoch)).collect();
            assert_eq!(steps, [(SwitchStep::Refused, attempt)], "{to:?}: copy {n}");
            assert_eq!(w.counter(1, "star_switch_refused"), refused + 1, "{to:?}: copy {n}");
            assert_eq!(sides(&w, ids)[1], before[1], "{to:?}: copy {n}");
        }
        // Another attempt is another matter.
        w.drop_if = None;
        let end = w.now + Duration::from_ms(3_000);
        while sides(&w, ids)[0] != to || sides(&w, ids)[1] == before[1] {
            assert!(w.advance(end), "{to:?}: {:?}", sides(&w, ids));
        }
        let mut load = Load::new(&mut w, ids);
        load.run(&mut w, ids, Duration::from_ms(1), "after");
        load.end(&mut w, "after");
    }
}

/// Who cannot take part refuses, and does not take that attempt either when it could, and a copy comes.
#[test]
fn an_attempt_that_came_at_the_wrong_time_is_refused_later_too() {
    let (mut w, ids) = plain(14, &link());
    w.keep_log = true;
    let set_state = |w: &mut World, state| {
        let attr = QpAttr { state, ..w.nodes[1].nic.query_qp(ids[1]).unwrap().0 };
        let now = w.now;
        w.nodes[1].nic.modify_qp(now, ids[1], &attr, QpAttrMask::STATE).unwrap();
    };
    set_state(&mut w, QpState::Sqd);
    let mut seen = 0;
    w.drop_if = Some(Box::new(move |from, p| {
        seen += i32::from(is_switch(p));
        is_switch(p) && (from == 1 || seen > 1)
    }));
    switch(&mut w, 0, ids, StarSide::Stateful);
    w.run(Duration::from_us(100));
    assert_eq!(w.counter(1, "star_switch_refused"), 1);
    set_state(&mut w, QpState::Rts);
    let quiesce = w.log.iter().zip(&w.log_payloads).find(|((from, p), _)| *from == 0 && is_switch(p));
    let (packet, bytes) = quiesce.map(|((_, p), bytes)| (*p, bytes.clone())).expect("it was said");
    assert_eq!(parsed(&bytes).step, SwitchStep::Quiesce);
    for refused in 2..5 {
        let now = w.now;
        w.nodes[1].nic.on_frame(now, &packet, &Payload::from_slice(&bytes));
        w.run(Duration::from_us(100));
        assert_eq!(w.counter(1, "star_switch_refused"), refused);
        let last = w.log.iter().zip(&w.log_payloads).rfind(|((from, p), _)| *from == 1 && is_switch(p));
        let said = last.map(|(_, bytes)| parsed(bytes)).expect("it answers");
        assert_eq!((said.step, said.epoch), (SwitchStep::Refused, parsed(&bytes).epoch));
    }
    w.drop_if = None;
    let end = w.now + Duration::from_ms(3_000);
    while sides(&w, ids) != [StarSide::Stateful, StarSide::Stateless] {
        assert!(w.advance(end), "another attempt is another matter: {:?}", sides(&w, ids));
    }
}

/// Receives that were told, and of which the peer has never heard, have used their numbers all the same: both
/// sides go on past them, and when they come, late, in the next life of StaR, they are no news.
#[test]
fn numbers_of_receives_that_were_told_and_never_heard_are_not_used_again() {
    let (mut w, ids) = plain(13, &link());
    let memory = [w.memory(0, 4096), w.memory(1, 8192)];
    switch(&mut w, 0, ids, StarSide::Stateful);
    w.run(Duration::from_ms(50));
    assert_eq!(sides(&w, ids), [StarSide::Stateful, StarSide::Stateless]);
    w.keep_log = true;
    let is_told = |p: &Packet| {
        p.bth.opcode == adverb_wire::Opcode::new(Service::Star, Operation::WqePacket)
            && !StarEth::from(p.irn).has(StarEth::MIGRATION)
    };
    w.drop_if = Some(Box::new(move |from, p| from == 1 && is_told(p)));
    for number in 0..8 {
        w.recv(1, ids[1], number, &[memory[1].sge(number as usize * 64, 64)]);
        w.run(Duration::from_us(50));
    }
    w.run(Duration::from_ms(3));
    let told = |w: &World| -> Vec<(Packet, Vec<u8>)> {
        let all = w.log.iter().zip(&w.log_payloads);
        all.filter(|((from, p), _)| *from == 1 && is_told(p)).map(|((_, p), b)| (*p, b.clone())).collect()
    };
    let numbers: Vec<Psn> = told(&w).iter().map(|(p, _)| p.bth.psn).collect();
    let newest = numbers.iter().copied().reduce(|a, b| if a.is_before(b) { b } else { a }).expect("told");
    assert!(numbers[0].add(4).is_before(newest), "{numbers:?}");
    switch(&mut w, 0, ids, StarSide::Plain);
    let end = w.now + Duration::from_ms(2_000);
    while sides(&w, ids) != [StarSide::Plain; 2] {
        assert!(w.advance(end), "it changes without them: {:?}", sides(&w, ids));
    }
    let next = w.nodes[1].nic.query_qp(ids[1]).unwrap().0.sq_psn;
    assert!(newest.is_before(next), "{newest:?} was told; its side goes on at {next:?}");
    let late = told(&w);
    w.drop_if = None;
    let send = |w: &mut World, number: usize| {
        memory[0].write(0, &pattern(number as u8, 64));
        w.send(0, ids[0], wr(100 + number as u64, SendOp::Send, &[memory[0].sge(0, 64)]));
        let (sent, got) = (w.completion(0), w.completion(1));
        let what = format!("SEND {number}: {sent:?}, {got:?}");
        assert_eq!((sent.status, got.status), (Status::Success, Status::Success), "{what}");
        assert_eq!(got.wr_id, number as u64, "{what}");
        assert_eq!(memory[1].read(number * 64, 64), pattern(number as u8, 64), "{what}");
    };
    // They are receives of plain RC now.
    (0..3).for_each(|number| send(&mut w, number));
    switch(&mut w, 0, ids, StarSide::Stateful);
    w.run(Duration::from_ms(50));
    assert_eq!(sides(&w, ids), [StarSide::Stateful, StarSide::Stateless]);
    let known = w.counter(0, "star_wqe_duplicate") + w.counter(0, "star_drop_earlier");
    let now = w.now;
    for (packet, bytes) in &late {
        w.nodes[0].nic.on_frame(now, packet, &Payload::from_slice(bytes));
    }
    let dropped = w.counter(0, "star_wqe_duplicate") + w.counter(0, "star_drop_earlier") - known;
    assert!(!late.is_empty() && dropped >= late.len() as u64, "{dropped} of {} late ones", late.len());
    (3..8).for_each(|number| send(&mut w, number));
}
