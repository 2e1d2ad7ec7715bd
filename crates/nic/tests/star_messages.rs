//! StaR's messages: what both sides send, and what the stateless side reads, writes and receives though its
//! NIC keeps nothing of it.

mod world;
use adverb_nic::*;
use adverb_wire::star::{Answer, Cqe, Op, Place, StarEth, Verdict, Wish};
use adverb_wire::{Duration, Key, Operation, Packet, Psn, Service};
use std::collections::VecDeque;
use world::*;

/// The client's node, which is stateful, and the server's, which is stateless.
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn client_and_server(seed: u64, lifetime: Duration, merge: bool) -> World {
    both_with(seed, StarConfig { lifetime, merge, ..StarConfig::default() })
}

fn both_with(seed: u64, star: StarConfig) -> World {
    World::with_config(2, seed, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, ..star });
    })
}

/// A pair of queue pairs that have agreed.
fn agreed(w: &mut World, link: &Link) -> [QpId; 2] {
    let (a, b) = w.pair(QpType::Rc, CAPS, link);
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    [a, b]
}

fn world(seed: u64) -> (World, [QpId; 2]) {
    world_that(seed, false)
}

/// The same, with completions that come with their data or without.
fn world_that(seed: u64, merges: bool) -> (World, [QpId; 2]) {
    let mut w = client_and_server(seed, Duration::from_ms(20), merges);
    let ids = agreed(&mut w, &Link { timeout: 14, ..Link::default() });
    (w, ids)
}

fn is_star(p: &Packet) -> bool {
    p.bth.opcode.is_of(Service::Star)
}

fn inline(wr_id: u64, op: SendOp, bytes: &[u8]) -> SendWr<'_> {
    SendWr { data: SendData::Inline(bytes), ..wr(wr_id, op, &[]) }
}

#[test]
fn sends_of_every_length_arrive_whole_both_ways() {
    for merges in [false, true] {
        sends_of_every_length(merges);
    }
}

fn sends_of_every_length(merges: bool) {
    let (mut w, ids) = world_that(1, merges);
    w.keep_log = true;
    let memory = [w.memory(CLIENT, 1 << 17), w.memory(SERVER, 1 << 17)];
    for from in [CLIENT, SERVER] {
        let to = 1 - from;
        for len in [0, 1, 8, 64, 1000, 1024, 1025, 10_000, 60_000] {
            let bytes = pattern(len as u8, len);
            memory[from].write(0, &bytes);
            memory[to].write(0, &vec![0; len + 100]);
            let halves = [memory[to].sge(0, len / 3), memory[to].sge(len / 3, len)];
            w.recv(to, ids[to], 7, &halves);
            let op = if len % 2 == 0 { SendOp::Send } else { SendOp::SendImm(0x1234_5678) };
            let mut request = wr(9, op, &[]);
            let pieces = [memory[from].sge(0, len / 2), memory[from].sge(len / 2, len - len / 2)];
            request.data = SendData::Sges(&pieces);
            request.flags.solicited = true;
            w.send(from, ids[from], request);
            let (sent, received) = (w.completion(from), w.completion(to));
            assert_eq!((sent.wr_id, sent.status, sent.op), (9, Status::Success, CompletionOp::Send));
            assert_eq!((received.wr_id, received.status), (7, Status::Success), "{len} from {from}");
            assert_eq!((received.byte_len, received.solicited), (len as u32, true));
            assert_eq!(received.has_immediate, len % 2 == 1);
            assert!(len % 2 == 0 || received.immediate == 0x1234_5678);
            assert_eq!(memory[to].read(0, len), bytes, "{len} from {from}");
            assert_eq!(memory[to].read(len, 100), [0; 100]);
        }
        w.recv(to, ids[to], 7, &[memory[to].sge(0, 64)]);
        w.send(from, ids[from], inline(9, SendOp::Send, b"comes along"));
        assert_eq!((w.completion(from).status, w.completion(to).byte_len), (Status::Success, 11));
        assert_eq!(memory[to].read(0, 11), b"comes along");
    }
    assert!(w.log.iter().all(|(_, p)| is_star(p)));
    assert_eq!(w.counter(CLIENT, "retransmitted_packets"), 0);
    assert_eq!(w.counter(SERVER, "star_repeats"), 0);
    // Of the client's SENDs those of up to 1,024 bytes, and the inline one.
    assert_eq!(w.counter(SERVER, "star_merged"), if merges { 6 + 1 } else { 0 });
}

#[test]
fn the_stateless_side_reads_writes_and_computes_too() {
    for merges in [false, true] {
        reads_writes_and_computes(merges);
    }
}

fn reads_writes_and_computes(merges: bool) {
    let (mut w, ids) = world_that(2, merges);
    let memory = [w.memory(CLIENT, 1 << 17), w.memory(SERVER, 1 << 17)];
    let (va, rkey) = memory[CLIENT].at(16);
    for len in [0, 1, 1024, 1025, 60_000] {
        let bytes = pattern(len as u8, len);
        memory[SERVER].write(0, &bytes);
        w.send(SERVER, ids[SERVER], wr(1, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, len)]));
        memory[SERVER].sge(0, len);
        assert_eq!(w.completion(SERVER).status, Status::Success);
        assert_eq!(memory[CLIENT].read(16, len), bytes);
        w.send(SERVER, ids[SERVER], wr(2, SendOp::Read(va, rkey), &[memory[SERVER].sge(65_000, len)]));
        let read = w.completion(SERVER);
        assert_eq!((read.status, read.byte_len), (Status::Success, len as u32));
        assert_eq!(memory[SERVER].read(65_000, len), bytes);
        // WRITEs with immediate data take a receive, in either direction.
        for from in [CLIENT, SERVER] {
            let to = 1 - from;
            let (va, rkey) = memory[to].at(16);
            memory[from].write(0, &bytes);
            w.recv(to, ids[to], 5, &[]);
            w.send(from, ids[from], wr(6, SendOp::WriteImm(va, rkey, 77), &[memory[from].sge(0, len)]));
            let (sent, got) = (w.completion(from), w.completion(to));
            assert_eq!((sent.status, got.status), (Status::Success, Status::Success));
            assert_eq!((got.op, got.immediate, got.wr_id), (CompletionOp::RecvWriteImm, 77, 5));
            assert_eq!((got.byte_len, memory[to].read(16, len)), (len as u32, bytes.clone()));
        }
    }
    memory[CLIENT].write(16, &5u64.to_ne_bytes());
    let result = memory[SERVER].sge(0, 8);
    w.send(SERVER, ids[SERVER], wr(3, SendOp::FetchAdd { addr: va, rkey, add: 7 }, &[result]));
    assert_eq!((w.completion(SERVER).status, memory[SERVER].word(0)), (Status::Success, 5));
    let swap = SendOp::CompareSwap { addr: va, rkey, compare: 12, swap: 99 };
    w.send(SERVER, ids[SERVER], wr(4, swap, &[result]));
    assert_eq!((w.completion(SERVER).status, memory[SERVER].word(0)), (Status::Success, 12));
    assert_eq!(memory[CLIENT].word(16), 99);
}

/// What the server tells its peer, or the acknowledgement of it, is lost once: that is noticed after what
/// was measured of the round trip, not after the time of a hello (10 ms).
#[test]
fn a_lost_wqep_or_its_acknowledgement_is_noticed_by_the_measured_round_trip() {
    for lost in [Operation::WqePacket, Operation::WqeEventAcknowledge] {
        let (mut w, ids) = world(3);
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        let mut left = 1;
        w.drop_if = Some(Box::new(move |_, p| {
            let hit = left > 0 && p.bth.opcode == adverb_wire::Opcode::new(Service::Star, lost);
            left -= i32::from(hit);
            hit
        }));
        let begun = w.now;
        w.recv(CLIENT, ids[CLIENT], 7, &[memory[CLIENT].sge(0, 64)]);
        w.send(SERVER, ids[SERVER], wr(9, SendOp::Send, &[memory[SERVER].sge(0, 64)]));
        assert_eq!(
            (w.completion(CLIENT).status, w.completion(SERVER).status),
            (Status::Success, Status::Success)
        );
        assert_eq!(w.lost, 1, "{lost:?}");
        let took = w.now.since(begun);
        assert!(took < Duration::from_ms(2), "{lost:?}: {took:?}");
        // The time does not run out where nothing is lost.
        let repeats = w.counter(SERVER, "star_repeats");
        assert!(repeats <= 1, "{repeats} repeats");
        for round in 0..50 {
            w.recv(CLIENT, ids[CLIENT], round, &[memory[CLIENT].sge(0, 64)]);
            w.send(SERVER, ids[SERVER], wr(round, SendOp::Send, &[memory[SERVER].sge(0, 64)]));
            w.completion(CLIENT);
            w.completion(SERVER);
        }
        assert_eq!(w.counter(SERVER, "star_repeats"), repeats);
    }
}

/// Client and server that have agreed, on a network where everything goes wrong now and then.
fn in_trouble(seed: u64) -> (World, [QpId; 2], [Memory; 2]) {
    let mut w = client_and_server(seed, Duration::from_us(300), false);
    let ids = agreed(&mut w, &Link { timeout: 18, depth: 16, ..Link::default() });
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    w.faults = TROUBLE;
    (w, ids, memory)
}

#[test]
fn atomics_of_the_stateful_side_are_executed_once_each() {
    for seed in 0..30 {
        let (mut w, ids, memory) = in_trouble(seed);
        let (addr, rkey) = memory[SERVER].at(8);
        let mut value = 0u64;
        for round in 0..100u64 {
            let result = [memory[CLIENT].sge(0, 8)];
            let op = match round % 4 {
                0 => SendOp::CompareSwap { addr, rkey, compare: value, swap: round },
                1 => SendOp::CompareSwap { addr, rkey, compare: !value, swap: 5 },
                _ => SendOp::FetchAdd { addr, rkey, add: round },
            };
            // A WRITE before it has landed, and one after it lands after it.
            memory[CLIENT].write(64, &round.to_ne_bytes());
            let word = [memory[CLIENT].sge(64, 8)];
            w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Write(addr + 8, rkey), &word));
            w.send(CLIENT, ids[CLIENT], wr(2, op, &result));
            w.send(CLIENT, ids[CLIENT], wr(3, SendOp::Write(addr + 16, rkey), &word));
            let ends: Vec<_> = (0..3).map(|_| w.completion(CLIENT)).map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(ends, [1, 2, 3].map(|id| (id, Status::Success)), "seed {seed}");
            assert_eq!(memory[CLIENT].word(0), value, "seed {seed}, round {round}");
            value = match round % 4 {
                0 => round,
                1 => value,
                _ => value + round,
            };
            assert_eq!((memory[SERVER].word(8), memory[SERVER].word(24)), (value, round), "seed {seed}");
        }
        w.run(Duration::from_ms(100));
        assert_eq!(memory[SERVER].word(8), value, "seed {seed}: a copy was executed after the end");
    }
}

/// Atomics in a row do not wait for each other's answers, and are executed in their order all the same.
#[test]
fn atomics_in_a_row_share_a_round_trip() {
    let mut w = client_and_server(1, Duration::from_ms(20), false);
    let ids = agreed(&mut w, &Link { timeout: 14, depth: 16, ..Link::default() });
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let (addr, rkey) = memory[SERVER].at(8);
    w.keep_log = true;
    for n in 0..40u64 {
        let op = match n % 2 {
            0 => SendOp::FetchAdd { addr, rkey, add: 1 },
            _ => SendOp::CompareSwap { addr, rkey, compare: n / 2 + 1, swap: n / 2 + 1 },
        };
        w.send(CLIENT, ids[CLIENT], wr(n, op, &[memory[CLIENT].sge(8 * n as usize, 8)]));
    }
    for n in 0..40u64 {
        let end = w.completion(CLIENT);
        assert_eq!((end.wr_id, end.status), (n, Status::Success));
        assert_eq!(memory[CLIENT].word(8 * n as usize), n.div_ceil(2), "atomic {n}");
    }
    assert_eq!(memory[SERVER].word(8), 20);
    let is_answer = |p: &Packet| is_star(p) && p.bth.opcode.operation() == Operation::GetDataAnswer;
    let before = w.log.iter().take_while(|(_, p)| !is_answer(p));
    let asked = before.filter(|(_, p)| is_star(p) && p.bth.opcode.operation() == Operation::GetData);
    assert_eq!(asked.count(), 16, "as many as the other side remembers");
    assert_eq!(w.counter(SERVER, "star_atomic_early"), 0);
}

/// One that is lost is asked again as soon as the others say so, and these behind it.
#[test]
fn an_atomic_that_is_lost_does_not_wait_for_the_timer() {
    let mut w = client_and_server(2, Duration::from_ms(20), false);
    let ids = agreed(&mut w, &Link { timeout: 14, depth: 16, ..Link::default() });
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let (addr, rkey) = memory[SERVER].at(8);
    let mut asked = 0;
    w.drop_if = Some(Box::new(move |_, p| {
        asked += u32::from(is_star(p) && p.bth.opcode.operation() == Operation::GetData);
        asked == 3 && p.bth.opcode.operation() == Operation::GetData
    }));
    for n in 0..16 {
        let op = SendOp::FetchAdd { addr, rkey, add: 1 };
        w.send(CLIENT, ids[CLIENT], wr(n, op, &[memory[CLIENT].sge(8 * n as usize, 8)]));
    }
    for n in 0..16 {
        assert_eq!((w.completion(CLIENT).wr_id, memory[CLIENT].word(8 * n as usize)), (n, n));
    }
    assert_eq!((w.lost, w.counter(CLIENT, "timeouts")), (1, 0));
    assert_eq!(w.counter(SERVER, "star_atomic_early"), 13);
}

/// With losses, copies and late packets, each answer is what its place in the order makes it.
#[test]
fn atomics_in_a_row_are_executed_once_each_and_in_order() {
    let (mut early, mut copies) = (0, 0);
    for seed in 0..30 {
        let (mut w, ids, memory) = in_trouble(seed);
        let (addr, rkey) = memory[SERVER].at(8);
        let mut value = 0u64;
        for round in 0..10u64 {
            let mut expected = Vec::new();
            for n in 0..24u64 {
                expected.push(value);
                let op = match n % 3 {
                    0 => SendOp::CompareSwap { addr, rkey, compare: value, swap: round * 100 + n },
                    1 => SendOp::CompareSwap { addr, rkey, compare: !value, swap: 5 },
                    _ => SendOp::FetchAdd { addr, rkey, add: n + 1 },
                };
                value = match n % 3 {
                    0 => round * 100 + n,
                    1 => value,
                    _ => value + n + 1,
                };
                w.send(CLIENT, ids[CLIENT], wr(n, op, &[memory[CLIENT].sge(8 * n as usize, 8)]));
            }
            for (n, was) in expected.into_iter().enumerate() {
                let end = w.completion(CLIENT);
                assert_eq!((end.wr_id, end.status), (n as u64, Status::Success), "seed {seed}");
                assert_eq!(memory[CLIENT].word(8 * n), was, "seed {seed}, round {round}, atomic {n}");
            }
        }
        w.run(Duration::from_ms(100));
        assert_eq!(memory[SERVER].word(8), value, "seed {seed}: a copy was executed after the end");
        early += w.counter(SERVER, "star_atomic_early");
        copies += w.counter(SERVER, "star_duplicate");
    }
    assert!(early > 100 && copies > 100, "{early} early, {copies} copies");
}

/// Everything is lost, doubled, reordered or late now and then.
const TROUBLE: Faults =
    Faults { loss: 0.03, duplicate: 0.1, reorder: 0.2, corrupt: 0.0, late: 0.05, mark: 0.0 };

/// Bytes that each receive has room for.
const ROOM: usize = 1500;

/// What a side has under way.
#[derive(Default)]
struct Side {
    posted: u64,
    done: u64,
    received: u64,
    receives: u64,
    /// Messages that the other side has sent and this one has not received.
    due: VecDeque<Vec<u8>>,
    /// READs and atomics: by number, what they must bring.
    reads: VecDeque<(u64, usize, Vec<u8>)>,
}

/// Receives that are used in turn.
const SLOTS: usize = 16;

/// What is not posted stays as the program has left it.
fn check_unposted(seed: u64, sides: &[Side; 2], into: &[Memory; 2]) {
    for (me, side) in sides.iter().enumerate() {
        for free in side.receives..side.received + SLOTS as u64 {
            let bytes = into[me].read(free as usize % SLOTS * ROOM, ROOM);
            assert!(free < SLOTS as u64 || bytes == [0xee; ROOM], "seed {seed}: a late copy landed at {me}");
        }
    }
}

/// Both sides send messages of random lengths into receives that are used again and again, and the stateless
/// side writes, reads and adds between them, all under trouble: every message is received once, in order and
/// whole, every READ brings what was written before it, and each addition counts once. Then the memory has
/// another use, and nothing that is still on its way may touch it.
fn chaos(seed: u64, lifetime: Duration, faults: Faults, rounds: u64) -> World {
    let (merge, burst, mtu) = (seed & 2 != 0, seed & 8 != 0, [Mtu::M256, Mtu::M1024][seed as usize >> 2 & 1]);
    let carried = seed & 16 != 0;
    let mut w = both_with(seed, StarConfig { lifetime, merge, burst, carried, ..StarConfig::default() });
    let link = Link { timeout: 18, mtu, depth: 16, rnr_timer: 1, ..Link::default() };
    let ids = agreed(&mut w, &link);
    let into = [w.memory(CLIENT, SLOTS * ROOM), w.memory(SERVER, SLOTS * ROOM)];
    let from = [w.memory(CLIENT, 1 << 20), w.memory(SERVER, 1 << 20)];
    let region = w.memory(CLIENT, 4096);
    let mut shadow = vec![0; 4000];
    let mut sum = 0u64;
    w.faults = faults;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut sides = [Side::default(), Side::default()];
    let until = w.now + Duration::from_ms(60_000);
    while sides.iter().any(|side| side.done < rounds) || sides.iter().any(|side| !side.due.is_empty()) {
        for me in [CLIENT, SERVER] {
            let other = 1 - me;
            while sides[me].receives - sides[me].received < SLOTS as u64 - 2 && rng.u8(..) < 100 {
                let slot = sides[me].receives as usize % SLOTS;
                w.recv(me, ids[me], sides[me].receives, &[into[me].sge(slot * ROOM, ROOM)]);
                sides[me].receives += 1;
            }
            let room = sides[me].posted < rounds && sides[me].posted - sides[me].done < 20;
            if !room || rng.bool() {
                continue;
            }
            let number = sides[me].posted;
            sides[me].posted += 1;
            // No other request that is under way has it.
            let place = (number as usize * 8192) % (1 << 20);
            let len = if rng.bool() { rng.usize(..300) } else { rng.usize(..ROOM) };
            let bytes = pattern(rng.u8(..), len);
            let kind = if me == SERVER { rng.u8(..10) } else { 0 };
            let at = rng.usize(..4000 - len);
            let (va, rkey) = region.at(at);
            match kind {
                7 => {
                    from[me].write(place, &bytes);
                    shadow[at..at + len].copy_from_slice(&bytes);
                    let mut request = wr(number, SendOp::Write(va, rkey), &[]);
                    let sges = [from[me].sge(place, len)];
                    request.data = SendData::Sges(&sges);
                    request.flags.fence = true;
                    w.send(me, ids[me], request);
                }
                8 => {
                    sides[me].reads.push_back((number, place, shadow[at..at + len].to_vec()));
                    w.send(me, ids[me], wr(number, SendOp::Read(va, rkey), &[from[me].sge(place, len)]));
                }
                9 => {
                    let (addr, rkey) = region.at(4000);
                    let add = rng.u64(..1000);
                    sides[me].reads.push_back((number, place, sum.to_ne_bytes().to_vec()));
                    sum += add;
                    let op = SendOp::FetchAdd { addr, rkey, add };
                    w.send(me, ids[me], wr(number, op, &[from[me].sge(place, 8)]));
                }
                _ if len <= 64 && rng.bool() => {
                    sides[other].due.push_back(bytes.clone());
                    w.send(me, ids[me], inline(number, SendOp::Send, &bytes));
                }
                _ => {
                    from[me].write(place, &bytes);
                    sides[other].due.push_back(bytes);
                    w.send(me, ids[me], wr(number, SendOp::Send, &[from[me].sge(place, len)]));
                }
            }
        }
        assert!(w.advance(until), "seed {seed}: nothing happens any more");
        for me in [CLIENT, SERVER] {
            while let Some(c) = w.poll(me) {
                let side = &mut sides[me];
                assert_eq!(c.status, Status::Success, "seed {seed} at {me}: {c:?}");
                if c.op == CompletionOp::Recv {
                    let slot = side.received as usize % SLOTS;
                    assert_eq!(c.wr_id, side.received, "seed {seed}: a receive out of order");
                    let message = side.due.pop_front().expect("a message that was sent");
                    assert_eq!(c.byte_len as usize, message.len(), "seed {seed} at {me}");
                    assert_eq!(into[me].read(slot * ROOM, message.len()), message, "seed {seed} at {me}");
                    // The program uses its memory for something else before it posts it again.
                    into[me].write(slot * ROOM, &[0xee; ROOM]);
                    side.received += 1;
                    continue;
                }
                assert_eq!(c.wr_id, side.done, "seed {seed} at {me}: a request out of order");
                side.done += 1;
                if let Some((_, place, bytes)) = side.reads.pop_front_if(|(number, ..)| *number == c.wr_id) {
                    assert_eq!(from[me].read(place, bytes.len()), bytes, "seed {seed}, READ {}", c.wr_id);
                }
            }
        }
        check_unposted(seed, &sides, &into);
    }
    assert_eq!(region.read(0, 4000), shadow, "seed {seed}: memory when all is done");
    assert_eq!(region.word(4000), sum, "seed {seed}: additions");
    w.faults = faults;
    w.run(Duration::from_ms(100));
    w
}

#[test]
fn messages_survive_loss_doubles_and_late_copies() {
    let mut counts = [
        ("star_duplicate", 0),
        ("star_drop_expired", 0),
        ("star_nak_not_posted", 0),
        ("star_cqe_duplicate", 0),
        ("star_wqe_duplicate", 0),
        ("star_repeats", 0),
        ("star_merged", 0),
        ("star_merge_early", 0),
        ("star_heard_by_data", 0),
        ("star_bursts", 0),
        ("star_carried", 0),
    ];
    for seed in 0..80 {
        let lifetime = Duration::from_us(if seed % 2 == 0 { 300 } else { 20_000 });
        let w = chaos(seed, lifetime, TROUBLE, 120);
        for (name, count) in &mut counts {
            *count += w.counter(CLIENT, name) + w.counter(SERVER, name);
        }
    }
    println!("{counts:?}");
    assert!(counts.iter().all(|(_, count)| *count > 10), "{counts:?}: every rule was needed");
}

#[test]
fn a_quiet_network_needs_no_repair_of_messages() {
    for seed in [1, 5, 7, 17, 25] {
        quiet(seed);
    }
}

fn quiet(seed: u64) {
    let w = chaos(seed, Duration::from_ms(20), Faults::default(), 200);
    let names = [
        "star_duplicate",
        "star_drop_expired",
        "star_cqe_duplicate",
        "star_wqe_duplicate",
        "star_merge_early",
        "retransmitted_packets",
    ];
    for name in names {
        assert_eq!(w.counter(CLIENT, name) + w.counter(SERVER, name), 0, "{name}");
    }
    let counts = ["star_merged", "star_heard_by_data"].map(|name| w.counter(SERVER, name));
    assert!(counts.iter().all(|count| (*count > 20) == (seed & 2 != 0)), "{counts:?}");
}

#[test]
fn each_kind_of_packet_may_be_lost_among_messages() {
    use Operation::*;
    let kinds = [
        RemoteData,
        RemoteDataAnswer,
        GetData,
        GetDataAnswer,
        WqePacket,
        WqeEventAcknowledge,
        CqePacket,
        CqeEventAcknowledge,
    ];
    for (operation, merges) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        // With completions that come along there are fewer of some.
        let most = if merges { 2 } else { 4 };
        let len = if merges { 900 } else { 2500 };
        for nth in 0..most {
            let (mut w, ids) = world_that(nth, merges);
            let memory = [w.memory(CLIENT, 8192), w.memory(SERVER, 8192)];
            let mut seen = 0;
            w.drop_if = Some(Box::new(move |_, p| {
                let is = is_star(p) && p.bth.opcode.operation() == operation;
                seen += u64::from(is);
                is && seen == nth + 1
            }));
            for round in 0..3u64 {
                for from in [CLIENT, SERVER] {
                    let to = 1 - from;
                    let bytes = pattern(round as u8, len);
                    memory[from].write(0, &bytes);
                    w.recv(to, ids[to], round, &[memory[to].sge(4096, len)]);
                    w.send(from, ids[from], wr(round, SendOp::Send, &[memory[from].sge(0, len)]));
                    assert_eq!(w.completion(from).status, Status::Success, "{operation:?} {nth}");
                    assert_eq!(w.completion(to).wr_id, round, "{operation:?} {nth}");
                    assert_eq!(memory[to].read(4096, len), bytes);
                }
                let (va, rkey) = memory[CLIENT].at(0);
                w.send(SERVER, ids[SERVER], wr(9, SendOp::Read(va, rkey), &[memory[SERVER].sge(0, len)]));
                assert_eq!(w.completion(SERVER).status, Status::Success, "{operation:?} {nth}");
            }
            assert_eq!(w.lost, 1, "{operation:?} {nth}");
        }
    }
}

#[test]
fn who_is_not_ready_is_waited_for_as_often_as_allowed() {
    for (from, merges) in [(CLIENT, false), (SERVER, false), (CLIENT, true), (SERVER, true)] {
        let to = 1 - from;
        for (retries, ready) in [(7, true), (7, false), (0, true), (0, false), (2, false)] {
            let mut w = client_and_server(3, Duration::from_ms(20), merges);
            let link = Link { timeout: 14, rnr_retries: retries, rnr_timer: 12, ..Link::default() };
            let ids = agreed(&mut w, &link);
            let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
            if ready {
                // That it has a receive is not heard at first: that is not the same as having none.
                let mut left = 3;
                w.drop_if = Some(Box::new(move |from, p| {
                    let hit = from == SERVER && p.bth.opcode.operation() == Operation::WqePacket && left > 0;
                    left -= i32::from(hit);
                    hit
                }));
                w.recv(to, ids[to], 5, &[memory[to].sge(0, 64)]);
            }
            w.send(from, ids[from], wr(1, SendOp::Send, &[memory[from].sge(0, 8)]));
            w.run(Duration::from_ms(5));
            if !ready && retries == 7 {
                assert!(w.poll(from).is_none(), "it waits for as long as it takes");
                w.recv(to, ids[to], 5, &[memory[to].sge(0, 64)]);
            }
            let end = w.completion(from);
            if ready || retries == 7 {
                assert_eq!((end.status, w.completion(to).wr_id), (Status::Success, 5), "{from} {retries}");
            } else {
                assert_eq!(end.status, Status::RnrRetryExceeded, "{from} {retries}");
                let why = w.nodes[from].nic.next_explanation().unwrap();
                assert_eq!(why.status, Status::RnrRetryExceeded);
            }
        }
    }
}

fn state(w: &mut World, node: usize, id: QpId) -> QpState {
    w.nodes[node].nic.query_qp(id).unwrap().0.state
}

fn ends(w: &mut World, node: usize) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| w.poll(node)).map(|c| (c.wr_id, c.status)).collect()
}

#[test]
fn what_is_refused_fails_on_both_sides_as_with_rc() {
    for from in [CLIENT, SERVER] {
        let to = 1 - from;
        for case in 0..8 {
            let mut outcomes = Vec::new();
            // Plain RC, then StaR: the same program has the same completions.
            for star in [None, Some(false), Some(true)] {
                let mut w = match star {
                    Some(merge) => client_and_server(9, Duration::from_ms(20), merge),
                    None => World::new(2, 9),
                };
                let link = Link { timeout: 12, ..Link::default() };
                let ids = match star {
                    Some(_) => agreed(&mut w, &link),
                    None => <[QpId; 2]>::from(w.pair(QpType::Rc, CAPS, &link)),
                };
                let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
                let closed = w.memory_with(to, 64, Access::LOCAL_WRITE);
                let ((va, rkey), (va_closed, key_closed)) = (memory[to].at(0), closed.at(0));
                let gone = w.memory(to, 4096);
                for receive in 0..3 {
                    // The second one's own buffer, or the end of it, is not there any more when it is taken.
                    let whole = [memory[to].sge(0, 1024), gone.sge(0, 2000)];
                    let into = match (case, receive) {
                        (5, 1) => &whole[1..],
                        (6, 1) => &whole[..],
                        (7, 1) => &[closed.sge(60, 2000)],
                        _ => &[memory[to].sge(0, 16)],
                    };
                    w.recv(to, ids[to], 50 + receive, into);
                }
                w.nodes[to].nic.memory().dereg_mr(gone.mr.id).unwrap();
                w.send(from, ids[from], wr(1, SendOp::Send, &[memory[from].sge(0, 16)]));
                let op = match case {
                    0 | 5..8 => SendOp::Send,
                    1 => SendOp::Write(va_closed, key_closed),
                    2 => SendOp::Read(va + 4090, rkey),
                    3 => SendOp::FetchAdd { addr: va_closed, rkey: key_closed, add: 1 },
                    _ => SendOp::FetchAdd { addr: va + 4, rkey, add: 1 },
                };
                let len = if matches!(case, 0 | 5..8) { 2000 } else { 8 };
                w.send(from, ids[from], wr(2, op, &[memory[from].sge(0, len)]));
                w.send(from, ids[from], wr(3, SendOp::Send, &[memory[from].sge(0, 16)]));
                w.run(Duration::from_ms(2000));
                let seen = [ends(&mut w, from), ends(&mut w, to)];
                let events: Vec<_> = std::iter::from_fn(|| w.nodes[to].nic.next_event())
                    .filter(|event| !matches!(event, Event::Star(..)))
                    .map(|event| std::mem::discriminant(&event))
                    .collect();
                outcomes.push((seen, events, state(&mut w, from, ids[from]), state(&mut w, to, ids[to])));
            }
            assert_eq!(outcomes[0], outcomes[1], "case {case} from {from}");
            assert_eq!(outcomes[0], outcomes[2], "case {case} from {from}, merged");
            assert_eq!(outcomes[1].2, QpState::Err);
        }
    }
}

#[test]
fn nobody_waits_for_the_dead() {
    // The client falls silent at any packet: everybody's requests end, and another connection goes on.
    for (silent_from, merges) in (0..48).map(|n| (n % 24, n >= 24)) {
        let mut w = client_and_server(silent_from, Duration::from_ms(20), merges);
        let link = Link { timeout: 12, ..Link::default() };
        let ids = agreed(&mut w, &link);
        let other = w.pair(QpType::Rc, CAPS, &Link { psn: (Psn::new(7), Psn::new(9)), ..link });
        w.run(Duration::from_ms(1));
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        let numbers = [ids[CLIENT], other.0].map(|id| w.nodes[CLIENT].nic.qp_number(id).unwrap());
        let server = w.nodes[SERVER].nic.qp_number(ids[SERVER]).unwrap();
        let mut seen = 0;
        w.drop_if = Some(Box::new(move |from, p| {
            let is = from == CLIENT && p.bth.dest_qp == server;
            seen += u64::from(is);
            is && seen > silent_from
        }));
        for receive in 0..3 {
            w.recv(SERVER, ids[SERVER], 50 + receive, &[memory[SERVER].sge(0, 64)]);
        }
        w.recv(CLIENT, ids[CLIENT], 60, &[memory[CLIENT].sge(0, 2000)]);
        w.send(SERVER, ids[SERVER], wr(1, SendOp::Send, &[memory[SERVER].sge(0, 2000)]));
        let (va, rkey) = memory[CLIENT].at(2048);
        w.send(SERVER, ids[SERVER], wr(2, SendOp::Read(va, rkey), &[memory[SERVER].sge(100, 2000)]));
        w.send(CLIENT, ids[CLIENT], wr(3, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
        w.run(Duration::from_ms(1000));
        let seen = ends(&mut w, SERVER);
        let sends: Vec<_> = seen.iter().filter(|(id, _)| *id < 50).copied().collect();
        assert_eq!(sends.len(), 2, "{silent_from}: {seen:?}");
        let failed = sends.iter().any(|(_, status)| *status != Status::Success);
        assert_eq!(failed, state(&mut w, SERVER, ids[SERVER]) == QpState::Err, "{silent_from}: {seen:?}");
        assert!(ends(&mut w, CLIENT).iter().any(|(id, _)| *id == 3), "{silent_from}: the client waits");
        // The other connection's number differs, and nobody has disturbed it.
        assert_ne!(numbers[0], numbers[1]);
        w.recv(SERVER, other.1, 70, &[memory[SERVER].sge(0, 64)]);
        w.send(CLIENT, other.0, wr(4, SendOp::Send, &[memory[CLIENT].sge(0, 8)]));
        assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (4, 70), "{silent_from}");
    }
}

/// Gives a packet to the server's NIC; verdicts of what it answers.
fn serve(w: &mut World, packet: &Packet, payload: &[u8]) -> Vec<Verdict> {
    let nic = &mut w.nodes[SERVER].nic;
    nic.on_frame(w.now, packet, &Payload::from_slice(payload));
    let mut out = TxFrame::default();
    let packets = std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(out.packet));
    packets.filter_map(|p| Answer::of_aeth(p.aeth)).map(|answer| answer.verdict).collect()
}

#[test]
fn a_ticket_opens_what_is_posted_and_only_as_it_is_posted() {
    let (mut w, ids) = world(6);
    let memory = [w.memory(CLIENT, 8192), w.memory(SERVER, 8192)];
    w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
    w.recv(SERVER, ids[SERVER], 51, &[memory[SERVER].sge(64, 64)]);
    w.run(Duration::from_ms(1));
    // A SEND that has left; it arrives when this test gives it.
    w.keep_log = true;
    w.drop_if = Some(Box::new(|from, p| from == CLIENT && p.bth.opcode.operation() == Operation::RemoteData));
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
    w.transmit();
    let good = w.log.iter().find(|(_, p)| p.bth.opcode.operation() == Operation::RemoteData).unwrap().1;
    // Two requests of the server's own: an inline SEND of more than one block, a READ.
    let fake = [0x0a; 64];
    w.send(SERVER, ids[SERVER], inline(2, SendOp::Send, &fake));
    let (va, rkey) = memory[CLIENT].at(0);
    w.send(SERVER, ids[SERVER], wr(3, SendOp::Read(va, rkey), &[memory[SERVER].sge(4096, 64)]));
    let posted = |index: u32, offset: u32, flags: u8, get: bool, psn: u32| {
        let mut p = good;
        p.reth.va = Place { index, offset }.va();
        p.irn = StarEth::new(Op::Send, StarEth::POSTED | flags, if get { 8 } else { 0 }, 0).into();
        let operation = if get { Operation::GetData } else { Operation::RemoteData };
        p.bth.opcode = adverb_wire::Opcode::new(Service::Star, operation);
        p.bth.psn = good.bth.psn.add(psn);
        p
    };
    let receive = StarEth::RECV_QUEUE;
    let before = memory[SERVER].read(0, 8192);
    let cases = [
        ("a receive never posted", posted(2, 0, receive, false, 1)),
        ("far ahead", posted(0x80_0000, 0, receive, false, 2)),
        ("beyond the receive", posted(0, 60, receive, false, 3)),
        ("an offset that overflows", posted(0, u32::MAX, receive, false, 4)),
        ("a SEND written to", posted(0, 0, 0, false, 5)),
        ("inside of a WQE", posted(1, 0, 0, false, 6)),
        ("a READ's buffer, beyond its end", posted(2, 60, 0, false, 7)),
        ("a READ's buffer asked for", posted(2, 0, 0, true, 8)),
        ("inside of a WQE, asked for", posted(1, 0, 0, true, 9)),
        ("beyond a SEND's end", posted(0, 60, 0, true, 10)),
        ("nothing that was posted", posted(9, 0, 0, true, 11)),
    ];
    let count = cases.len() as u64;
    for (what, packet) in cases {
        let bytes = if packet.bth.opcode.operation() == Operation::GetData { &[][..] } else { &[1; 8] };
        assert_eq!(serve(&mut w, &packet, bytes), [Verdict::NotPosted], "{what}");
    }
    assert_eq!(w.counter(SERVER, "star_nak_not_posted"), count);
    assert!(memory[SERVER].read(0, 8192) == before, "nothing landed");
    assert_eq!(serve(&mut w, &posted(0, 0, 0, true, 12), &[]), [Verdict::Done]);
    assert_eq!(serve(&mut w, &good, &[7; 64]), [Verdict::Done]);
    assert_eq!(memory[SERVER].read(0, 65)[63..], [7, 0]);
    // Its completion ends it.
    w.drop_if = None;
    w.recv(CLIENT, ids[CLIENT], 61, &[memory[CLIENT].sge(1024, 64)]);
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    w.run(Duration::from_ms(30));
    let mut again = good;
    again.reth.len = again.reth.len.wrapping_add(30_000);
    memory[SERVER].write(0, &[9; 64]);
    assert_eq!(serve(&mut w, &again, &[8; 64]), [Verdict::NotPosted], "a replay with a deadline of its own");
    assert_eq!(memory[SERVER].read(0, 64), [9; 64]);
}

#[test]
fn completions_for_nothing_take_the_queue_pair_to_err_and_no_other() {
    for case in 0..4 {
        let (mut w, ids) = world(7);
        let memory = w.memory(SERVER, 64);
        w.keep_log = true;
        w.recv(SERVER, ids[SERVER], 50, &[memory.sge(0, 16)]);
        w.run(Duration::from_ms(1));
        let told = w.log.iter().find(|(_, p)| p.bth.opcode.operation() == Operation::WqePacket).unwrap().1;
        let ea = w
            .log
            .iter()
            .rfind(|(_, p)| p.bth.opcode.operation() == Operation::WqeEventAcknowledge)
            .unwrap()
            .1;
        let cqe = |flags, index, len, op| Cqe { flags, status: 0, op, index, len, immediate: 0 };
        let entry = match case {
            0 => cqe(Cqe::RECV_QUEUE, 1, 8, Op::Recv),
            1 => cqe(0, 0, 8, Op::Send),
            2 => cqe(Cqe::RECV_QUEUE, 0, 17, Op::Recv),
            _ => cqe(Cqe::RECV_QUEUE, 0, 8, Op::Recv),
        };
        let mut packet = ea;
        packet.bth.opcode = adverb_wire::Opcode::new(Service::Star, Operation::CqePacket);
        packet.bth.psn = told.bth.psn;
        packet.irn = StarEth::new(Op::Control, 0, 1, 0).into();
        packet.payload_len = 16;
        serve(&mut w, &packet, &entry.bytes());
        let wanted = match case {
            3 => (QpState::Rts, vec![(50, Status::Success)], 0, 0),
            2 => (QpState::Err, vec![(50, Status::LocalLength)], 0, 1),
            _ => (QpState::Err, vec![(50, Status::WorkRequestFlushed)], 1, 0),
        };
        let counts = (w.counter(SERVER, "star_cqe_unknown"), w.counter(SERVER, "star_cqe_length"));
        assert_eq!(
            (state(&mut w, SERVER, ids[SERVER]), ends(&mut w, SERVER), counts.0, counts.1),
            wanted,
            "{case}"
        );
        if case == 3 {
            // Once more: acknowledged, not taken.
            serve(&mut w, &packet, &entry.bytes());
            assert_eq!((ends(&mut w, SERVER), w.counter(SERVER, "star_cqe_duplicate")), (vec![], 1));
        }
    }
}

/// Takes a queue pair to RTR, and no further: a server that only responds.
fn respond_only(w: &mut World, (node, qp): (usize, QpId), (peer, peer_qp): (usize, QpId), how: &Link) {
    use QpAttrMask as M;
    let (dest, dgid) = (w.nodes[peer].nic.qp_number(peer_qp).unwrap(), w.nodes[peer].gid);
    let nic = &mut w.nodes[node].nic;
    let (mut a, _) = nic.query_qp(qp).unwrap();
    (a.state, a.port, a.access) = (QpState::Init, 1, how.access);
    nic.modify_qp(w.now, qp, &a, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS).unwrap();
    (a.state, a.path_mtu, a.dest_qpn, a.av.dgid) = (QpState::Rtr, how.mtu, dest, dgid);
    a.rq_psn = if node < peer { how.psn.1 } else { how.psn.0 };
    (a.max_dest_rd_atomic, a.min_rnr_timer) = (how.depth, how.rnr_timer);
    let depths = M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let path = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    nic.modify_qp(w.now, qp, &a, M::STATE | path | depths).unwrap();
}

#[test]
fn a_server_that_stays_in_rtr_is_served_and_may_go_on_later() {
    // Either side may be the one that only responds.
    for server in [CLIENT, SERVER] {
        let client = 1 - server;
        let mut w = client_and_server(8, Duration::from_ms(20), false);
        let link = Link { timeout: 14, ..Link::default() };
        let ids = [w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS)];
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        respond_only(&mut w, (server, ids[server]), (client, ids[client]), &link);
        w.recv(server, ids[server], 50, &[memory[server].sge(0, 64)]);
        // Longer than anybody asks.
        w.run(Duration::from_ms(100));
        w.connect((client, ids[client]), (server, ids[server]), &link);
        w.send(client, ids[client], wr(1, SendOp::Send, &[memory[client].sge(0, 64)]));
        assert_eq!((w.completion(client).status, w.completion(server).wr_id), (Status::Success, 50));
        let sides = [CLIENT, SERVER].map(|node| w.nodes[node].nic.star_side(ids[node]));
        assert_eq!(sides, [Ok(StarSide::Stateful), Ok(StarSide::Stateless)], "server {server}");
        // It sends something of its own after all.
        let nic = &mut w.nodes[server].nic;
        let (mut a, _) = nic.query_qp(ids[server]).unwrap();
        a.state = QpState::Rts;
        a.sq_psn = if server < client { link.psn.0 } else { link.psn.1 };
        (a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic) = (14, 7, 7, 4);
        use QpAttrMask as M;
        let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN;
        nic.modify_qp(w.now, ids[server], &a, M::STATE | rts).unwrap();
        w.recv(client, ids[client], 60, &[memory[client].sge(0, 2000)]);
        w.send(server, ids[server], wr(2, SendOp::Send, &[memory[server].sge(0, 2000)]));
        assert_eq!((w.completion(server).status, w.completion(client).wr_id), (Status::Success, 60));
        w.send(server, ids[server], wr(3, SendOp::Send, &[memory[server].sge(0, 8)]));
        w.run(Duration::from_ms(20));
        w.recv(client, ids[client], 61, &[memory[client].sge(0, 2000)]);
        assert_eq!((w.completion(server).status, w.completion(client).wr_id), (Status::Success, 61));
    }
}

/// The first that the stateless side hears may be a completion packet, when the record's acknowledgement was
/// lost: what it has posted until then is told all the same.
#[test]
fn what_was_posted_before_a_lost_acknowledgement_of_the_record_is_told() {
    let mut w = client_and_server(10, Duration::from_ms(20), false);
    let mut lost = false;
    w.drop_if = Some(Box::new(move |_, p| {
        let is = is_star(p) && p.bth.opcode.operation() == Operation::WqeEventAcknowledge;
        is && !core::mem::replace(&mut lost, true)
    }));
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    w.recv(SERVER, b, 50, &[memory[SERVER].sge(0, 64)]);
    w.recv(CLIENT, a, 60, &[memory[CLIENT].sge(0, 64)]);
    w.send(CLIENT, a, inline(1, SendOp::Send, b"there"));
    w.send(SERVER, b, inline(2, SendOp::Send, b"and back"));
    w.run(Duration::from_ms(5));
    for (node, wr_ids, bytes) in [(CLIENT, [1, 60], &b"and back"[..]), (SERVER, [2, 50], b"there")] {
        let mut done: Vec<_> = std::iter::from_fn(|| w.poll(node)).map(|c| (c.wr_id, c.status)).collect();
        done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
        assert_eq!(done, wr_ids.map(|wr_id| (wr_id, Status::Success)), "node {node}");
        assert_eq!(memory[node].read(0, bytes.len()), bytes);
    }
    assert_eq!(w.lost, 1);
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
}

/// How many RNR retries its requests have a server knows from RTS on only, when its connection is told
/// already.
#[test]
fn a_servers_rnr_retries_travel_with_its_requests() {
    let mut w = client_and_server(9, Duration::from_ms(20), false);
    let link = Link { timeout: 14, ..Link::default() };
    let ids = [w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS)];
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    respond_only(&mut w, (SERVER, ids[SERVER]), (CLIENT, ids[CLIENT]), &link);
    w.connect((CLIENT, ids[CLIENT]), (SERVER, ids[SERVER]), &link);
    w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
    w.keep_log = true;
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
    assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).wr_id), (Status::Success, 50));
    // No record gets through any more.
    let is_record = |p: &Packet| {
        p.bth.opcode.operation() == Operation::WqePacket && StarEth::from(p.irn).has(StarEth::MIGRATION)
    };
    assert!(w.log.iter().any(|(_, p)| is_record(p)));
    w.drop_if = Some(Box::new(move |_, p| is_record(p)));
    let nic = &mut w.nodes[SERVER].nic;
    let (mut a, _) = nic.query_qp(ids[SERVER]).unwrap();
    a.state = QpState::Rts;
    (a.sq_psn, a.timeout, a.retry_cnt, a.rnr_retry, a.max_rd_atomic) = (link.psn.1, 14, 7, 2, 4);
    use QpAttrMask as M;
    let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN;
    nic.modify_qp(w.now, ids[SERVER], &a, M::STATE | rts).unwrap();
    w.send(SERVER, ids[SERVER], wr(2, SendOp::Send, &[memory[SERVER].sge(0, 64)]));
    assert_eq!(w.completion(SERVER).status, Status::RnrRetryExceeded);
    assert_eq!(w.counter(CLIENT, "rnr_naks_sent"), 2);
}

/// A server that says it has a receive and never tells which is no reason to wait for ever.
#[test]
fn a_receive_that_is_promised_and_never_told_fails_the_send() {
    let mut w = client_and_server(11, Duration::from_ms(20), false);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 10, ..Link::default() });
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    w.drop_if = Some(Box::new(|_, p| is_star(p) && p.bth.opcode.operation() == Operation::WqePacket));
    w.recv(SERVER, b, 50, &[memory[SERVER].sge(0, 64)]);
    w.send(CLIENT, a, wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
    let begin = w.now;
    assert_eq!(w.completion(CLIENT).status, Status::TransportRetryExceeded);
    // 4.2 ms, eight times over, and a wait of the RNR timer.
    let took = w.now.since(begin);
    assert!((Duration::from_ms(33)..Duration::from_ms(60)).contains(&took), "{took:?}");
    assert_eq!(w.counter(CLIENT, "rnr_naks_received"), 0, "it was not said to have none");
    let why = w.nodes[CLIENT].nic.next_explanation().unwrap();
    assert!(why.rule.contains("did not tell which"), "{}", why.rule);
}

/// What the stateless NIC reads of its host for a packet, counted: for a posted request the range of what is
/// outstanding (16 bytes) and that one request; for a region nothing of any connection. An atomic has its
/// record in the host, and reads none of the queues.
#[test]
fn a_packet_reads_of_its_hosts_queues_a_range_and_one_request_or_nothing() {
    for (merges, len) in [(false, 64), (true, 64), (false, 5000), (true, 5000)] {
        let (mut w, ids) = world_that(12, merges);
        w.keep_log = true;
        let memory = [w.memory(CLIENT, 1 << 16), w.memory(SERVER, 1 << 16)];
        // Others' requests lie beside: they are not looked at.
        for n in 0..20 {
            w.recv(SERVER, ids[SERVER], n, &[memory[SERVER].sge(0, 3000), memory[SERVER].sge(3000, 3000)]);
            w.recv(CLIENT, ids[CLIENT], n, &[memory[CLIENT].sge(0, 6000)]);
        }
        w.run(Duration::from_ms(1));
        let (va, rkey) = memory[CLIENT].at(0);
        let (at, key) = memory[SERVER].at(8192);
        let long = [memory[SERVER].sge(0, len / 2), memory[SERVER].sge(len / 2, len - len / 2)];
        // An entry of a receive has four places for ranges; a WQE of two or three segments takes a block.
        let receive = 16 + 4 * 16;
        let wqe = 16 + 64;
        let cases: [(usize, SendOp, &[Sge], usize, u64); 6] = [
            (CLIENT, SendOp::Send, &[memory[CLIENT].sge(0, len)], 1, receive),
            (SERVER, SendOp::Send, &long, 1, wqe),
            (SERVER, SendOp::Read(va, rkey), &long, 1, wqe),
            (CLIENT, SendOp::Write(at, key), &[memory[CLIENT].sge(0, len)], 0, 0),
            (CLIENT, SendOp::Read(at, key), &[memory[CLIENT].sge(0, len)], 0, 0),
            (CLIENT, SendOp::FetchAdd { addr: at, rkey: key, add: 1 }, &[memory[CLIENT].sge(0, 8)], 0, 0),
        ];
        for (from, op, sges, posted, each) in cases {
            w.log.clear();
            let (before, executed) =
                (w.counter(SERVER, "star_host_bytes"), w.counter(SERVER, "star_executed"));
            w.send(from, ids[from], SendWr { data: SendData::Sges(sges), ..wr(100, op, &[]) });
            while w.completion(from).wr_id != 100 {}
            w.run(Duration::from_us(200));
            let is = |p: &&(usize, Packet)| {
                let request =
                    [Operation::RemoteData, Operation::GetData].contains(&p.1.bth.opcode.operation());
                request && p.0 == CLIENT
            };
            let packets = w.log.iter().filter(is).count() as u64;
            assert_eq!(w.counter(SERVER, "star_executed") - executed, packets, "{op:?}");
            let names = w.log.iter().filter(is).filter(|p| StarEth::from(p.1.irn).has(StarEth::POSTED));
            assert_eq!(names.count() as u64, packets * posted as u64, "{op:?}");
            let read = w.counter(SERVER, "star_host_bytes") - before;
            assert_eq!(read, packets * each, "{op:?} of {len}, {packets} packets, merged {merges}");
        }
    }
}

/// Masked atomics are refused in words, whoever asks, also where both sides are of one NIC, which would
/// execute them for plain RC.
#[test]
fn masked_atomics_are_refused_and_change_nothing() {
    let ops = |addr, rkey| {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        let swap = SendOp::MaskedCompareSwap { addr, rkey, compare: 0, swap: 9, compare_mask, swap_mask };
        [swap, SendOp::MaskedFetchAdd { addr, rkey, add: 1, boundary: 0 }]
    };
    for (case, op) in (0..6).map(|n| (n / 2, n % 2)) {
        let mut w = client_and_server(11, Duration::from_ms(20), false);
        let (from, ids) = match case {
            0 | 1 => (case, agreed(&mut w, &Link { timeout: 14, ..Link::default() })),
            _ => {
                w = World::with_config(1, 11, |config| {
                    let auto = StarConfig { wish: Wish::Auto, threshold: 0, ..StarConfig::default() };
                    config.star = Some(auto);
                });
                let ids = [w.qp(0, QpType::Rc, CAPS), w.qp(0, QpType::Rc, CAPS)];
                let link = Link { timeout: 14, psn: (Psn::new(7), Psn::new(7)), ..Link::default() };
                w.connect((0, ids[0]), (0, ids[1]), &link);
                w.connect((0, ids[1]), (0, ids[0]), &link);
                w.run(Duration::from_ms(1));
                // Whichever is stateful asks.
                let is_first = w.nodes[0].nic.star_side(ids[0]) == Ok(StarSide::Stateful);
                assert!(is_first || w.nodes[0].nic.star_side(ids[1]) == Ok(StarSide::Stateful));
                (0, if is_first { ids } else { [ids[1], ids[0]] })
            }
        };
        let there = if case == 2 { 0 } else { 1 - from };
        let memory = [w.memory(from, 64), w.memory(there, 64)];
        let (addr, rkey) = memory[1].at(8);
        let asking = if case == 2 { ids[0] } else { ids[from] };
        w.send(from, asking, wr(1, SendOp::Write(addr + 8, rkey), &[memory[0].sge(0, 8)]));
        w.send(from, asking, wr(2, ops(addr, rkey)[op], &[memory[0].sge(0, 8)]));
        w.send(from, asking, wr(3, SendOp::Write(addr + 16, rkey), &[memory[0].sge(0, 8)]));
        w.run(Duration::from_ms(1000));
        let wanted = [(1, Status::Success), (2, Status::LocalQpOperation), (3, Status::WorkRequestFlushed)];
        assert_eq!(ends(&mut w, from), wanted, "case {case}, {op}");
        assert_eq!(memory[1].word(8), 0, "case {case}, {op}");
        let why = w.nodes[from].nic.next_explanation().expect("a reason").rule;
        assert!(why.contains("masked atomics"), "case {case}, {op}: {why}");
    }
}

/// A queue of the stateless side that is full is full as with RC, and has room again when what was posted is
/// done; a completion queue that is overrun is an event, as with RC.
#[test]
fn full_queues_of_the_stateless_side_are_those_of_rc() {
    for star in [false, true] {
        let mut w = match star {
            true => client_and_server(12, Duration::from_ms(20), false),
            false => World::new(2, 12),
        };
        let small = w.nodes[SERVER].nic.create_cq(4).unwrap();
        w.nodes[SERVER].cq = small;
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, ..CAPS };
        let (a, b) = w.pair(QpType::Rc, caps, &Link { timeout: 14, ..Link::default() });
        w.run(Duration::from_ms(1));
        assert_eq!(w.nodes[SERVER].nic.star_side(b) == Ok(StarSide::Stateless), star);
        let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
        let (va, rkey) = memory[CLIENT].at(0);
        for round in 0..3 {
            for id in 0..4 {
                w.send(SERVER, b, wr(id, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
            }
            let more = wr(9, SendOp::Write(va, rkey), &[]);
            let refused = w.nodes[SERVER].nic.post_send(w.now, b, &more);
            assert_eq!(refused, Err(Error::QueueFull), "{star}, round {round}");
            w.run(Duration::from_ms(5));
            let done: Vec<_> = (0..4).map(|id| (id, Status::Success)).collect();
            assert_eq!(ends(&mut w, SERVER), done, "{star}, round {round}");
        }
        // Four receives and four sends have one queue of four entries: four are lost, once it is full.
        for id in 0..4 {
            w.recv(SERVER, b, 50 + id, &[memory[SERVER].sge(0, 64)]);
        }
        let refused = w.nodes[SERVER].nic.post_recv(w.now, b, &RecvWr { wr_id: 9, sges: &[] });
        assert_eq!(refused, Err(Error::QueueFull), "{star}");
        for id in 0..4 {
            w.send(CLIENT, a, wr(id, SendOp::Send, &[memory[CLIENT].sge(0, 8)]));
            w.send(SERVER, b, wr(id, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
        }
        w.run(Duration::from_ms(20));
        let events: Vec<_> = std::iter::from_fn(|| w.nodes[SERVER].nic.next_event())
            .filter(|event| !matches!(event, Event::Star(..)))
            .collect();
        assert_eq!(events, [Event::CqError(small)], "{star}");
        assert_eq!((ends(&mut w, SERVER).len(), w.counter(SERVER, "cq_overruns")), (4, 1), "{star}");
        assert_eq!(ends(&mut w, CLIENT).len(), 4, "{star}: the client hears nothing of it");
    }
}

/// One of a thousand clients dies in the middle of its message, either way: the others' requests are done as
/// if nothing were, and the stateless NIC has as many bytes as before.
#[test]
fn one_of_a_thousand_clients_dies_and_nobody_else_notices() {
    const CLIENTS: usize = 1000;
    let mut w = client_and_server(13, Duration::from_ms(20), false);
    let link = Link { timeout: 12, ..Link::default() };
    let pairs: Vec<_> = (0..CLIENTS).map(|_| w.pair(QpType::Rc, CAPS, &link)).collect();
    w.run(Duration::from_ms(20));
    assert_eq!(w.counter(SERVER, "star_agreed"), CLIENTS as u64);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 8 * CLIENTS)];
    let before = w.nodes[SERVER].nic.stateless_bytes();
    let dead = pairs[CLIENTS / 2];
    let number = w.nodes[SERVER].nic.qp_number(dead.1).unwrap();
    let mut seen = 0;
    w.drop_if = Some(Box::new(move |from, p| {
        let is = from == CLIENT && p.bth.dest_qp == number;
        seen += u64::from(is);
        is && seen > 3
    }));
    w.recv(CLIENT, dead.0, 60, &[memory[CLIENT].sge(0, 4096)]);
    w.send(SERVER, dead.1, wr(7777, SendOp::Send, &[memory[SERVER].sge(0, 4096)]));
    w.transmit();
    let mut done = 0;
    for (i, pair) in pairs.iter().enumerate().filter(|(_, pair)| **pair != dead) {
        let (va, rkey) = memory[SERVER].at(8 * i);
        memory[CLIENT].write(8, &(7 + i as u64).to_ne_bytes());
        w.send(CLIENT, pair.0, wr(i as u64, SendOp::Write(va, rkey), &[memory[CLIENT].sge(8, 8)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
        assert_eq!(memory[SERVER].word(8 * i), 7 + i as u64);
        done += 1;
    }
    assert_eq!(done, CLIENTS - 1);
    w.run(Duration::from_ms(1000));
    assert_eq!(ends(&mut w, SERVER), [(7777, Status::TransportRetryExceeded)]);
    assert_eq!(state(&mut w, SERVER, dead.1), QpState::Err);
    assert_eq!(w.nodes[SERVER].nic.stateless_bytes(), before);
    assert!(
        pairs.iter().filter(|pair| **pair != dead).all(|pair| state(&mut w, SERVER, pair.1) == QpState::Rts)
    );
}

/// What a message is moved from or to goes while it is on its way: no byte more is moved, and it fails as
/// with RC, with the reason in words.
#[test]
fn memory_that_goes_in_the_middle_of_a_message_fails_it() {
    const LEN: usize = 200_000;
    for (case, way) in (0..8).map(|n| (n / 2, n % 2)) {
        let (mut w, ids) = world(14);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::MW_BIND;
        let (own, there) = (w.memory(CLIENT, LEN), w.memory_with(SERVER, LEN, rights));
        own.write(0, &pattern(5, LEN));
        let (pd, server) = (w.nodes[SERVER].pd, ids[SERVER]);
        let (va, mut rkey) = there.at(0);
        // A region, a window of type 1, one of type 2; what the server has posted.
        let kind = [None, Some(MwType::One), Some(MwType::Two), None][case];
        let window = kind.map(|kind| w.nodes[SERVER].nic.memory().alloc_mw(pd, kind).unwrap());
        if let Some(window) = window {
            rkey = Key(window.rkey.0 & !0xff | 0x77);
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let (mw, lkey, len) = (window.id, there.mr.lkey, LEN as u64);
            w.send(SERVER, server, wr(40, SendOp::BindMw { mw, rkey, lkey, addr: va, len, access }, &[]));
            assert_eq!(w.completion(SERVER).status, Status::Success);
        }
        let op = if way == 0 { SendOp::Write(va, rkey) } else { SendOp::Read(va, rkey) };
        if case == 3 {
            if way == 0 {
                w.recv(SERVER, server, 50, &[there.sge(0, LEN)]);
                w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[own.sge(0, LEN)]));
            } else {
                w.recv(CLIENT, ids[CLIENT], 60, &[own.sge(0, LEN)]);
                w.send(SERVER, server, wr(2, SendOp::Send, &[there.sge(0, LEN)]));
            }
        } else {
            w.send(CLIENT, ids[CLIENT], wr(1, op, &[own.sge(0, LEN)]));
        }
        let until = w.now + Duration::from_ms(100);
        let already = w.counter(SERVER, "star_executed");
        while w.counter(SERVER, "star_executed") < already + 20 {
            assert!(w.advance(until), "case {case}, {way}: nothing happens");
        }
        let nic = &mut w.nodes[SERVER].nic;
        match (case, window) {
            (1, Some(window)) => nic.memory().dealloc_mw(window.id).unwrap(),
            (2, _) => nic.post_send(w.now, server, &wr(41, SendOp::LocalInv(rkey), &[])).unwrap(),
            _ => nic.memory().dereg_mr(there.mr.id).unwrap(),
        }
        w.transmit();
        let left = there.read(0, LEN);
        assert!(case != 0 || way != 0 || left != pattern(5, LEN), "all had landed before");
        w.run(Duration::from_ms(1000));
        if way == 0 {
            assert!(there.read(0, LEN) == left, "case {case}: something landed after its region had gone");
        }
        // As with RC: whose own memory it was that had gone has failed himself.
        let (client, server) = match (case, way) {
            (2, _) => (vec![(1, Status::RemoteAccess)], vec![(41, Status::Success)]),
            (3, 0) => (vec![(1, Status::RemoteOperation)], vec![(50, Status::LocalProtection)]),
            (3, _) => (vec![], vec![(2, Status::LocalProtection)]),
            _ => (vec![(1, Status::RemoteAccess)], vec![]),
        };
        assert_eq!(ends(&mut w, CLIENT), client, "case {case}, {way}");
        assert_eq!(ends(&mut w, SERVER), server, "case {case}, {way}");
        let (node, words) = match (case, way) {
            (3, 1) => (SERVER, "StaR"),
            (3, _) => (CLIENT, "own receive is at fault: key, bounds or rights (StaR NAK access, posted)"),
            _ => (CLIENT, "refused the access: key, bounds or rights (StaR NAK access)"),
        };
        assert_eq!(state(&mut w, node, ids[node]), QpState::Err, "case {case}, {way}");
        assert!(w.counter(SERVER, "star_nak_region") > 0 || case == 3, "case {case}, {way}");
        let why = w.nodes[node].nic.next_explanation().expect("a reason").rule;
        assert!(why.contains(words), "case {case}, {way}: {why}");
    }
}

/// What the driver knows of a silent client counts for what the stateless side has posted, as with RC: one
/// that has no processor is borne for so long, and the reason says what is known.
#[test]
fn a_client_without_a_processor_is_borne_and_the_reason_says_what_is_known() {
    let excused_max = Duration::from_ms(2000);
    for (silence, words, bears) in [
        (Silence::Unknown, "the stateful side did not answer within", false),
        (Silence::Heard, "runs and took in what arrived", false),
        (Silence::Stopped, "process is stopped", false),
        (Silence::Gone, "process has ended", false),
        (Silence::Late, "had no processor", true),
        (Silence::Unread, "had no processor", true),
    ] {
        for comes_back in [false, true] {
            let mut w = World::with_config(2, 15, |config| {
                let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
                config.star = Some(StarConfig { wish, ..StarConfig::default() });
                config.tolerance = Tolerance { excused_max, silence_min: Duration::from_ms(1) };
            });
            let ids = agreed(&mut w, &Link { timeout: 12, ..Link::default() });
            let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
            w.ask = Some(Box::new(move |node, _| if node == SERVER { silence } else { Silence::Unknown }));
            // It neither hears nor says anything.
            w.drop_if = Some(Box::new(|_, _| true));
            let (va, rkey) = memory[CLIENT].at(0);
            let begun = w.now;
            w.send(SERVER, ids[SERVER], wr(1, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
            if comes_back {
                w.run(Duration::from_ms(1000));
                w.drop_if = None;
                // What it had posted before is done, or has failed long ago.
                let status = if bears { Status::Success } else { Status::TransportRetryExceeded };
                assert_eq!(w.completion(SERVER).status, status, "{silence:?}");
                assert_eq!(w.counter(SERVER, "timeouts_excused") > 0, bears, "{silence:?}");
                continue;
            }
            assert_eq!(w.completion(SERVER).status, Status::TransportRetryExceeded, "{silence:?}");
            let took = w.now.since(begun);
            let patience = Duration::from_us(8 * 4096 * 4096 / 1000);
            // It looks four times in its patience.
            let quarter = Duration::from_ps(patience.as_ps() / 4);
            let least = if bears { (patience + excused_max).minus(quarter) } else { patience };
            let most = least + quarter.times(3);
            assert!((least..most).contains(&took), "{silence:?}: it took {took:?}, not {least:?}");
            let why = w.nodes[SERVER].nic.next_explanation().expect("a reason").rule;
            assert!(why.contains(words), "{silence:?}: {why}");
        }
    }
}

/// Packets of StaR's of one kind, of which none gets through from some moment on.
const LOST_FOR_EVER: [Operation; 8] = [
    Operation::RemoteData,
    Operation::RemoteDataAnswer,
    Operation::GetData,
    Operation::GetDataAnswer,
    Operation::WqePacket,
    Operation::WqeEventAcknowledge,
    Operation::CqePacket,
    Operation::CqeEventAcknowledge,
];

/// What a run showed in which a kind of packet was lost for ever.
#[derive(Default)]
struct Endings {
    /// Sides of which a request has failed by its retry count, or that have failed with none to say so.
    failed: u32,
    unheard: u32,
    rules: Vec<&'static str>,
}

/// Two sides, of which some post a SEND, a WRITE and a READ, while none of a kind of packet gets through
/// from the `first`-th on. Whatever was posted must end, at both sides and in the time that timeout and
/// retry count allow; who has failed is in ERR; and a message that its sender has seen complete has
/// arrived, or its sender has failed.
fn all_end(operation: Operation, first: u64, posters: &[usize], merges: bool, seen_all: &mut Endings) {
    let what = format!("{operation:?} from {first}, posted by {posters:?}, merges: {merges}");
    let mut w = client_and_server(16, Duration::from_ms(20), merges);
    let ids = agreed(&mut w, &Link { timeout: 12, ..Link::default() });
    let memory = [w.memory(CLIENT, 8192), w.memory(SERVER, 8192)];
    let mut seen = 0;
    w.drop_if = Some(Box::new(move |_, p| {
        let is = is_star(p) && p.bth.opcode.operation() == operation;
        seen += u64::from(is);
        is && seen > first
    }));
    for &from in posters {
        let to = 1 - from;
        let (va, rkey) = memory[to].at(0);
        w.recv(to, ids[to], 50, &[memory[to].sge(4096, 2500)]);
        w.send(from, ids[from], wr(1, SendOp::Send, &[memory[from].sge(0, 2500)]));
        w.send(from, ids[from], wr(2, SendOp::Write(va, rkey), &[memory[from].sge(0, 2500)]));
        w.send(from, ids[from], wr(3, SendOp::Read(va, rkey), &[memory[from].sge(0, 2500)]));
    }
    // The client's patience, then the server's, of 134 ms each, and what its messages take before.
    w.run(Duration::from_ms(600));
    let done = [CLIENT, SERVER].map(|node| ends(&mut w, node));
    for node in [CLIENT, SERVER] {
        let sends: Vec<_> = done[node].iter().filter(|(id, _)| *id < 50).copied().collect();
        let numbers = sends.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        let expected: &[u64] = if posters.contains(&node) { &[1, 2, 3] } else { &[] };
        assert_eq!(numbers, expected, "{what}, node {node}: {done:?}");
        let good = sends.iter().take_while(|(_, status)| *status == Status::Success).count();
        let first_bad = sends.get(good).map(|(_, status)| *status);
        let known = [None, Some(Status::TransportRetryExceeded), Some(Status::WorkRequestFlushed)];
        assert!(known.contains(&first_bad), "{what}, node {node}: {done:?}");
        let mut flushed = sends.iter().skip(good + 1);
        assert!(flushed.all(|(_, status)| *status == Status::WorkRequestFlushed), "{what}: {done:?}");
        let is_err = state(&mut w, node, ids[node]) == QpState::Err;
        assert!(is_err || first_bad.is_none(), "{what}, node {node}: {done:?}");
        let arrived = done[1 - node].contains(&(50, Status::Success));
        assert!(good == 0 || arrived || is_err, "{what}, node {node}: lost, and nobody knows: {done:?}");
        let nic = &mut w.nodes[node].nic;
        let told = std::iter::from_fn(|| nic.next_event());
        let unheard = told.filter(|event| *event == Event::Star(ids[node], StarOutcome::Unheard)).count();
        seen_all.unheard += unheard as u32;
        seen_all.failed += u32::from(first_bad == Some(Status::TransportRetryExceeded));
        if first_bad == Some(Status::TransportRetryExceeded) {
            seen_all.rules.push(nic.next_explanation().expect("a reason").rule);
        }
    }
}

/// Each kind of packet is lost for ever from some moment on, and nobody waits for ever.
#[test]
fn each_kind_of_packet_may_be_lost_for_ever() {
    let mut seen = Endings::default();
    for operation in LOST_FOR_EVER {
        for first in [0, 1, 2, 5] {
            for posters in [&[CLIENT, SERVER][..], &[CLIENT], &[SERVER]] {
                for merges in [false, true] {
                    all_end(operation, first, posters, merges, &mut seen);
                }
            }
        }
    }
    assert!(seen.failed > 60, "{} sides have failed by their retry count", seen.failed);
    assert!(seen.unheard > 0, "no side has failed with all its requests done");
    for words in [
        "its completions did not come",
        "had no answer to what the request takes",
        "the stateful side did not answer within",
        "the peer did not acknowledge within",
    ] {
        let told = seen.rules.iter().filter(|rule| rule.contains(words)).count();
        assert!(told > 0, "{words} is nobody's reason");
    }
}

/// The end of a message is its completion: where nobody acknowledges that, what its sender has posted since
/// fails when the message's time is up, for the reason that the driver knows.
#[test]
fn a_completion_that_nobody_acknowledges_fails_what_is_posted_after_its_message() {
    for (silence, words) in [
        (Silence::Unknown, "the stateless side did not acknowledge the completion of a message"),
        (Silence::Stopped, "process is stopped, and did not acknowledge the completion of a message"),
        (Silence::Gone, "process has ended, and did not acknowledge the completion of a message"),
    ] {
        let mut w = client_and_server(20, Duration::from_ms(20), false);
        let ids = agreed(&mut w, &Link { timeout: 12, ..Link::default() });
        let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
        w.ask = Some(Box::new(move |_, _| silence));
        w.drop_if = Some(Box::new(|_, p| p.bth.opcode.operation() == Operation::CqePacket && is_star(p)));
        w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
        w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
        let begun = w.now;
        w.run(Duration::from_ms(120));
        w.drop_if = Some(Box::new(|_, _| true));
        let (va, rkey) = memory[SERVER].at(0);
        w.send(CLIENT, ids[CLIENT], wr(2, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
        let failed = w.completion(CLIENT);
        assert_eq!((failed.wr_id, failed.status), (2, Status::TransportRetryExceeded));
        // 16.8 ms, eight times over, and a quarter of that at most.
        let took = w.now.since(begun);
        assert!((Duration::from_ms(134)..Duration::from_ms(169)).contains(&took), "{silence:?}: {took:?}");
        let why = w.nodes[CLIENT].nic.next_explanation().expect("a reason").rule;
        assert!(why.contains(words), "{why}");
    }
}

/// A peer that is silent as a whole, for much longer than all timeouts, is not given up by a side that waits
/// for nothing of its own: as with RC, both go on when it is heard again.
#[test]
fn who_waits_for_nothing_bears_any_silence() {
    let mut w = client_and_server(18, Duration::from_ms(20), false);
    let ids = agreed(&mut w, &Link { timeout: 12, ..Link::default() });
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let (va, rkey) = memory[CLIENT].at(0);
    // The server's WRITE is done, and nobody hears that its completion has come.
    w.drop_if =
        Some(Box::new(|_, p| p.bth.opcode.operation() == Operation::CqeEventAcknowledge && is_star(p)));
    w.send(SERVER, ids[SERVER], wr(1, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
    assert_eq!(w.completion(SERVER).status, Status::Success);
    w.run(Duration::from_ms(1000));
    w.drop_if = None;
    for round in 0..10 {
        w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
        w.send(CLIENT, ids[CLIENT], wr(round, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
        assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).wr_id), (Status::Success, 50));
        w.send(SERVER, ids[SERVER], wr(2, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
        assert_eq!(w.completion(SERVER).status, Status::Success, "round {round}");
    }
    for node in [CLIENT, SERVER] {
        assert_eq!(state(&mut w, node, ids[node]), QpState::Rts, "node {node}");
        assert_eq!(w.counter(node, "timeouts"), 0, "node {node}");
    }
}

/// A side that was continued after a pause of any length asks first, and takes what has come meanwhile.
#[test]
fn a_pause_after_a_lost_completion_fails_nobody() {
    let mut w = World::with_config(2, 19, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, ..StarConfig::default() });
        let excused_max = Duration::from_ms(10_000);
        config.tolerance = Tolerance { excused_max, silence_min: Duration::from_ms(1) };
    });
    w.ask = Some(Box::new(|_, _| Silence::Late));
    let ids = agreed(&mut w, &Link { timeout: 12, ..Link::default() });
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let (va, rkey) = memory[CLIENT].at(0);
    w.drop_if = Some(Box::new(|_, p| p.bth.opcode.operation() == Operation::CqePacket && is_star(p)));
    w.send(SERVER, ids[SERVER], wr(1, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, 8)]));
    w.run(Duration::from_ms(12));
    assert!(w.poll(SERVER).is_none() && memory[CLIENT].read(0, 8) == memory[SERVER].read(0, 8));
    // Time passes for both, and no timer runs out in between.
    w.drop_if = None;
    w.now += Duration::from_ms(5000);
    assert_eq!(w.completion(SERVER).status, Status::Success);
    assert_eq!(state(&mut w, SERVER, ids[SERVER]), QpState::Rts);
}
