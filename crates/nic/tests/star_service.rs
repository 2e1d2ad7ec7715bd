//! A native service: hellos, requests and replies under faults, at most once, and against who lies. What an
//! idle client costs stands in `star_service_idle.rs`.

mod world;
use adverb_nic::service::{ClientConfig, ClientId, Outcome, Reached, Reply, ServiceConfig, ServiceId};
use adverb_nic::*;
use adverb_wire::star::{Answer, Hello, StarEth, Verdict, Wish};
use adverb_wire::{Bth, Duration, Gid, Opcode, Operation, Packet, Psn, Reth, Service};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use world::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const LIFETIME: Duration = Duration::from_ms(100);

fn world(seed: u64) -> (World, ServiceId) {
    world_with(seed, &ServiceConfig::default())
}

fn world_with(seed: u64, config: &ServiceConfig) -> (World, ServiceId) {
    let mut w = World::new(2, seed);
    let service = w.nodes[SERVER].nic.open_service(w.now, config, Seed::from(seed)).unwrap();
    (w, service)
}

fn client(w: &mut World, service: ServiceId) -> ClientId {
    let number = w.nodes[SERVER].nic.service_number(service).unwrap();
    let config = ClientConfig { server: w.nodes[SERVER].gid, service: number, gid: 0 };
    w.nodes[CLIENT].nic.open_client(w.now, &config, || Seed::from(99)).unwrap()
}

/// A client whose hello was answered.
fn ready(w: &mut World, service: ServiceId) -> ClientId {
    let client = client(w, service);
    w.run(Duration::from_ms(1));
    assert_eq!(reached(w), [(Reached { client, tag: 0, outcome: Outcome::Ready }, Vec::new())]);
    client
}

fn reached(w: &mut World) -> Vec<(Reached, Vec<u8>)> {
    let mut bytes = [0; 4096];
    let mut all = Vec::new();
    while let Some(reached) = w.nodes[CLIENT].nic.next_reached(&mut bytes) {
        let len = if let Outcome::Reply(len) = reached.outcome { len } else { 0 };
        all.push((reached, bytes[..len].to_vec()));
    }
    all
}

fn ask(w: &mut World, client: ClientId, tag: u64, bytes: &[u8]) {
    w.nodes[CLIENT].nic.request(w.now, client, tag, bytes).unwrap();
}

fn take(w: &mut World, service: ServiceId) -> Option<(Vec<u8>, Reply)> {
    let mut bytes = [0; 4096];
    let next = w.nodes[SERVER].nic.next_request(w.now, service, &mut bytes).unwrap();
    next.map(|(len, reply)| (bytes[..len].to_vec(), reply))
}

/// The server's program: an echo that says how often it has run for this request.
fn serve(w: &mut World, service: ServiceId, runs: &mut BTreeMap<Vec<u8>, u32>) {
    while let Some((bytes, reply)) = take(w, service) {
        *runs.entry(bytes.clone()).or_default() += 1;
        let answer: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        match w.nodes[SERVER].nic.reply(w.now, service, &reply, &answer) {
            Ok(()) | Err(Error::Busy | Error::NoSuchObject) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

fn operation(p: &Packet) -> Operation {
    p.bth.opcode.operation()
}

/// The client's next request as it leaves; it does not arrive.
fn captured(w: &mut World, client: ClientId, bytes: &[u8]) -> Packet {
    w.keep_log = true;
    w.log.clear();
    w.drop_if = Some(Box::new(|from, _| from == CLIENT));
    ask(w, client, 1, bytes);
    w.transmit();
    w.drop_if = None;
    *w.log.iter().map(|(_, p)| p).find(|p| operation(p) == Operation::RemoteData).expect("an RD left")
}

fn verdicts(answers: &[Packet]) -> Vec<Verdict> {
    answers.iter().map(|p| Answer::of_aeth(p.aeth).unwrap().verdict).collect()
}

#[test]
fn a_request_takes_three_packets_and_leaves_nothing() {
    let (mut w, service) = world(1);
    let client = ready(&mut w, service);
    let bytes = w.nodes[SERVER].nic.service_bytes(service).unwrap();
    w.keep_log = true;
    for (tag, len) in [(1, 0), (2, 1), (3, 992)] {
        w.log.clear();
        let request = pattern(tag as u8, len);
        ask(&mut w, client, tag, &request);
        w.run(Duration::from_us(5));
        let (got, reply) = take(&mut w, service).expect("a request");
        assert!(got == request);
        assert_eq!(take(&mut w, service), None);
        let nic = &mut w.nodes[SERVER].nic;
        nic.reply(w.now, service, &reply, &request).unwrap();
        assert_eq!(nic.reply(w.now, service, &reply, &request), Err(Error::NoSuchObject), "a second reply");
        w.run(Duration::from_ms(1));
        let outcome = Outcome::Reply(len);
        assert_eq!(reached(&mut w), [(Reached { client, tag, outcome }, request)]);
        let said: Vec<_> = w.log.iter().map(|(_, p)| operation(p)).collect();
        let expected = [Operation::RemoteData, Operation::WqePacket, Operation::WqeEventAcknowledge];
        assert_eq!(said, expected);
    }
    w.run(Duration::from_ms(300));
    assert_eq!(w.log.len(), 3, "an idle client says nothing");
    assert_eq!(w.nodes[SERVER].nic.service_bytes(service), Ok(bytes));
    w.nodes[SERVER].nic.check_invariants();
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut w, service) = world(2);
    let client = ready(&mut w, service);
    let nic = &mut w.nodes[CLIENT].nic;
    assert!(matches!(nic.request(w.now, client, 1, &[0; 1025]), Err(Error::Invalid(_))));
    // Longer than what the network carries, whatever the service takes.
    assert!(matches!(nic.request(w.now, client, 1, &[0; 4097]), Err(Error::Invalid(_))));
    nic.close_client(client).unwrap();
    assert_eq!(nic.request(w.now, client, 1, &[0]), Err(Error::NoSuchObject));
    assert_eq!(nic.close_client(client), Err(Error::NoSuchObject));
    // One that asks before it knows how much the service takes.
    let other = self::client(&mut w, service);
    ask(&mut w, other, 7, &[0; 2000]);
    w.run(Duration::from_ms(1));
    let outcomes: Vec<_> = reached(&mut w).into_iter().map(|(r, _)| (r.tag, r.outcome)).collect();
    assert_eq!(outcomes, [(0, Outcome::Ready), (7, Outcome::Refused)]);
    ask(&mut w, other, 8, &[1; 1024]);
    w.run(Duration::from_ms(1));
    let (_, reply) = take(&mut w, service).unwrap();
    let nic = &mut w.nodes[SERVER].nic;
    assert!(matches!(nic.reply(w.now, service, &reply, &[0; 993]), Err(Error::Invalid(_))));
    nic.reply(w.now, service, &reply, &[0; 992]).unwrap();
    w.run(Duration::from_ms(1));
    assert_eq!(reached(&mut w).len(), 1);
    for bad in [
        ServiceConfig { buffers: 0, ..ServiceConfig::default() },
        ServiceConfig { buffers: 1 << 17, ..ServiceConfig::default() },
        ServiceConfig { remembered: 1 << 21, ..ServiceConfig::default() },
        ServiceConfig { lifetime: Duration::from_us(1), ..ServiceConfig::default() },
        ServiceConfig { key_life: LIFETIME, ..ServiceConfig::default() },
    ] {
        let nic = &mut w.nodes[SERVER].nic;
        assert!(matches!(nic.open_service(w.now, &bad, Seed::from(1)), Err(Error::Invalid(_))), "{bad:?}");
    }
}

/// Clients and requests under faults: each request ends once, none is executed twice, a reply is its own.
fn under(faults: Faults, seed: u64) -> (u32, u32) {
    let (mut w, service) = world(seed);
    w.faults = faults;
    let clients: Vec<_> = (0..20).map(|_| client(&mut w, service)).collect();
    let (mut runs, mut ends) = (BTreeMap::new(), BTreeMap::new());
    for round in 0..30u64 {
        for (at, client) in clients.iter().enumerate() {
            let tag = (round << 8) + at as u64 + 1;
            ask(&mut w, *client, tag, &tag.to_le_bytes());
        }
        for _ in 0..30 {
            w.run(Duration::from_ms(1));
            serve(&mut w, service, &mut runs);
            for (reached, bytes) in reached(&mut w) {
                if reached.tag == 0 {
                    continue;
                }
                if let Outcome::Reply(_) = reached.outcome {
                    let expected: Vec<u8> = reached.tag.to_le_bytes().iter().map(|byte| !byte).collect();
                    assert_eq!(bytes, expected);
                    assert_eq!(runs.get(&reached.tag.to_le_bytes()[..]), Some(&1));
                }
                assert_eq!(ends.insert(reached.tag, reached.outcome), None, "a request ends once");
            }
        }
    }
    for _ in 0..500 {
        w.run(Duration::from_ms(1));
        serve(&mut w, service, &mut runs);
        for (reached, _) in reached(&mut w).into_iter().filter(|(reached, _)| reached.tag != 0) {
            assert_eq!(ends.insert(reached.tag, reached.outcome), None, "a request ends once");
        }
    }
    assert_eq!(ends.len(), 600, "each ends");
    assert!(runs.values().all(|runs| *runs == 1), "at most once");
    let lost = ends.values().filter(|outcome| !matches!(outcome, Outcome::Reply(_))).count() as u32;
    (lost, runs.len() as u32)
}

#[test]
fn faults_double_and_lose_nothing() {
    let none = Faults::default();
    assert_eq!(under(none, 3), (0, 600));
    for seed in 0..4 {
        let all = Faults { loss: 0.05, duplicate: 0.1, reorder: 0.3, corrupt: 0.03, late: 0.1, mark: 0.1 };
        let (lost, executed) = under(all, seed);
        assert!(lost <= 3 && executed >= 597, "seed {seed}: {lost} lost, {executed} executed");
        for one in [
            Faults { loss: 0.3, ..none },
            Faults { duplicate: 0.9, ..none },
            Faults { reorder: 0.9, ..none },
            Faults { late: 0.5, ..none },
        ] {
            let (lost, _) = under(one, seed);
            assert!(lost <= 40, "seed {seed}, {one:?}: {lost} lost");
        }
    }
}

#[test]
fn a_reply_that_is_always_lost_ends_after_one_execution() {
    let (mut w, service) = world(4);
    let client = ready(&mut w, service);
    w.drop_if = Some(Box::new(|from, p| from == SERVER && operation(p) == Operation::WqePacket));
    ask(&mut w, client, 5, b"once");
    let mut runs = BTreeMap::new();
    for _ in 0..300 {
        w.run(Duration::from_ms(1));
        serve(&mut w, service, &mut runs);
    }
    assert_eq!(runs.into_values().collect::<Vec<_>>(), [1]);
    assert_eq!(reached(&mut w), [(Reached { client, tag: 5, outcome: Outcome::ReplyLost }, Vec::new())]);
    assert!(w.counter(SERVER, "star_duplicate") >= 3);
    // And the same client is served again, after a hello of its own.
    w.drop_if = None;
    ask(&mut w, client, 6, b"again");
    w.run(Duration::from_ms(1));
    let mut runs = BTreeMap::new();
    serve(&mut w, service, &mut runs);
    w.run(Duration::from_ms(1));
    let outcomes: Vec<_> = reached(&mut w).into_iter().map(|(r, _)| (r.tag, r.outcome)).collect();
    assert_eq!(outcomes, [(0, Outcome::Ready), (6, Outcome::Reply(5))]);
}

#[test]
fn copies_are_not_executed_and_late_ones_are_refused() {
    let (mut w, service) = world(5);
    let client = ready(&mut w, service);
    let rd = captured(&mut w, client, b"request");
    assert_eq!(w.give(SERVER, &rd, b"request"), [], "the reply will answer");
    assert_eq!(verdicts(&w.give(SERVER, &rd, b"request")), [Verdict::Done], "it is known");
    let (_, reply) = take(&mut w, service).expect("executed");
    assert_eq!(take(&mut w, service), None, "and once");
    w.nodes[SERVER].nic.reply(w.now, service, &reply, b"reply").unwrap();
    let again = |w: &mut World| {
        let said = w.give(SERVER, &rd, b"request");
        said.iter().map(operation).collect::<Vec<_>>()
    };
    assert_eq!(again(&mut w), [Operation::WqePacket]);
    assert_eq!(again(&mut w), [Operation::WqePacket], "a copy brings the reply again");
    w.run(LIFETIME + LIFETIME);
    for _ in 0..3 {
        assert_eq!(verdicts(&w.give(SERVER, &rd, b"request")), [Verdict::Expired]);
    }
    let far = Packet { reth: Reth { len: rd.reth.len + 1_000_000, ..rd.reth }, ..rd };
    assert_eq!(verdicts(&w.give(SERVER, &far, b"request")), [Verdict::Expired], "further than two lifetimes");
    assert_eq!(take(&mut w, service), None);
    assert_eq!(w.nodes[SERVER].nic.reply(w.now, service, &reply, b"late"), Err(Error::NoSuchObject));
}

#[test]
fn a_request_whose_time_is_up_does_not_reach_the_program() {
    let (mut w, service) = world(6);
    let client = ready(&mut w, service);
    ask(&mut w, client, 1, b"slow");
    w.run(LIFETIME + LIFETIME);
    assert_eq!(take(&mut w, service), None);
    assert_eq!(w.counter(SERVER, "star_requests_late"), 1);
    assert_eq!(reached(&mut w)[0].0.outcome, Outcome::ReplyLost);
}

#[test]
fn tickets_are_good_for_their_owner_only() {
    let (mut w, service) = world(7);
    let client = ready(&mut w, service);
    let rd = captured(&mut w, client, b"x");
    for bit in 0..64 {
        let mut word = rd;
        word.ticket.word ^= 1 << bit;
        assert_eq!(w.give(SERVER, &word, b"x"), [], "bit {bit}");
        let mut seal = rd;
        seal.ticket.seal ^= 1 << bit;
        assert_eq!(w.give(SERVER, &seal, b"x"), [], "bit {bit}");
    }
    let mut moved = rd;
    moved.flow.src = Gid::from(Ipv4Addr::new(10, 0, 0, 9));
    assert_eq!(w.give(SERVER, &moved, b"x"), [], "nobody else is made to hear an answer");
    assert_eq!(w.counter(SERVER, "star_drop_ticket"), 129);
    // Another service of the same NIC.
    let config = ServiceConfig::default();
    let other = w.nodes[SERVER].nic.open_service(w.now, &config, Seed::from(8)).unwrap();
    let mut there = rd;
    there.bth.dest_qp = w.nodes[SERVER].nic.service_number(other).unwrap();
    assert_eq!(w.give(SERVER, &there, b"x"), []);
    assert_eq!(w.counter(SERVER, "star_drop_ticket"), 130);
    assert_eq!(take(&mut w, service), None);
    // What is none of a service's.
    for wrong in [Operation::GetData, Operation::CqePacket, Operation::RemoteDataAnswer] {
        let mut p = rd;
        p.bth.opcode = Opcode::new(Service::Star, wrong);
        assert_eq!(w.give(SERVER, &p, b"x"), [], "{wrong:?}");
    }
    let mut plain = rd;
    plain.irn = StarEth::new(adverb_wire::star::Op::Write, 0, 0, 0).into();
    assert_eq!(verdicts(&w.give(SERVER, &plain, b"x")), [Verdict::Invalid], "a region's");
    let mut partition = rd;
    partition.bth.pkey = 1;
    assert_eq!(w.give(SERVER, &partition, b"x"), []);
    // Closed, nothing opens it, and a number of the same value would have other keys.
    w.nodes[SERVER].nic.close_service(service).unwrap();
    assert_eq!(w.give(SERVER, &rd, b"x"), []);
    assert_eq!(w.nodes[SERVER].nic.next_request(w.now, service, &mut []), Err(Error::NoSuchObject));
}

#[test]
fn keys_change_and_clients_that_idled_through_it_are_served() {
    const HOUR: Duration = Duration::from_ms(3_600_000);
    let (mut w, service) = world(9);
    let client = ready(&mut w, service);
    let served = |w: &mut World, tag| {
        ask(w, client, tag, b"x");
        let mut runs = BTreeMap::new();
        for _ in 0..40 {
            w.run(Duration::from_ms(1));
            serve(w, service, &mut runs);
        }
        let outcomes: Vec<_> = reached(w).into_iter().map(|(r, _)| (r.tag, r.outcome)).collect();
        (outcomes, runs.len())
    };
    assert_eq!(served(&mut w, 1), (vec![(1, Outcome::Reply(1))], 1));
    let rd = captured(&mut w, client, b"y");
    w.run(Duration::from_ms(300));
    assert_eq!(reached(&mut w)[0].0.outcome, Outcome::ReplyLost);
    // An hour later the ticket is good; two hours later it is not.
    for (hours, verdict) in [(1, vec![Verdict::Expired]), (2, vec![])] {
        let nic = &mut w.nodes[SERVER].nic;
        let now = w.now + HOUR.times(hours);
        nic.on_frame(now, &rd, &Payload::from_slice(b"y"));
        let mut out = TxFrame::default();
        let said: Vec<_> =
            std::iter::from_fn(|| nic.next_frame(now, &mut out).then_some(out.packet)).collect();
        assert_eq!(verdicts(&said), verdict, "after {hours} hours");
    }
}

#[test]
fn a_clock_that_ran_away_while_a_client_idled_costs_a_round_trip() {
    let (mut w, service) = world(10);
    let client = ready(&mut w, service);
    let mut tag = 0;
    for minutes in [20, 50, 54, 70, 300] {
        w.run(Duration::from_ms(minutes * 60_000));
        tag += 1;
        ask(&mut w, client, tag, b"x");
        let mut runs = BTreeMap::new();
        for _ in 0..40 {
            w.run(Duration::from_ms(1));
            serve(&mut w, service, &mut runs);
        }
        assert_eq!(runs.len(), 1, "after {minutes} minutes");
        let outcomes: Vec<_> = reached(&mut w)
            .into_iter()
            .map(|(r, _)| (r.tag, r.outcome))
            .filter(|(tag, _)| *tag > 0)
            .collect();
        assert_eq!(outcomes, [(tag, Outcome::Reply(1))], "after {minutes} minutes");
    }
    assert!(
        w.counter(SERVER, "star_drop_expired") >= 3,
        "the first copy came too late by the server's clock"
    );
}

#[test]
fn full_buffers_put_off_and_lose_nothing() {
    let config = ServiceConfig { buffers: 4, ..ServiceConfig::default() };
    let (mut w, service) = world_with(11, &config);
    let client = ready(&mut w, service);
    for tag in 1..=12u64 {
        ask(&mut w, client, tag, &tag.to_le_bytes());
    }
    w.run(Duration::from_ms(1));
    assert_eq!(w.counter(SERVER, "star_pool_full"), 8);
    // Replies are lost, so that their buffers stay taken.
    w.drop_if = Some(Box::new(|from, p| from == CLIENT && operation(p) == Operation::WqeEventAcknowledge));
    let mut taken = Vec::new();
    for _ in 0..60 {
        w.run(Duration::from_ms(1));
        while let Some((_, reply)) = take(&mut w, service) {
            taken.push(reply);
        }
    }
    assert_eq!(taken.len(), 12, "all came in the end");
    let answers: Vec<_> =
        taken.iter().map(|reply| w.nodes[SERVER].nic.reply(w.now, service, reply, b"r")).collect();
    let busy = answers.iter().filter(|answer| **answer == Err(Error::Busy)).count();
    assert_eq!((busy, answers.iter().filter(|answer| answer.is_ok()).count()), (8, 4));
    w.run(Duration::from_ms(300));
    // Their requests' time is up, so their buffers are free.
    w.drop_if = None;
    reached(&mut w);
    let mut runs = BTreeMap::new();
    ask(&mut w, client, 99, b"y");
    for _ in 0..20 {
        w.run(Duration::from_ms(1));
        serve(&mut w, service, &mut runs);
    }
    assert!(reached(&mut w).iter().any(|(r, _)| (r.tag, r.outcome) == (99, Outcome::Reply(1))));
}

#[test]
fn without_a_service_a_client_is_told() {
    let (mut w, service) = world(12);
    let number = w.nodes[SERVER].nic.service_number(service).unwrap();
    w.nodes[SERVER].nic.close_service(service).unwrap();
    let config = ClientConfig { server: w.nodes[SERVER].gid, service: number, gid: 0 };
    let client = w.nodes[CLIENT].nic.open_client(w.now, &config, || Seed::from(1)).unwrap();
    ask(&mut w, client, 3, b"x");
    w.run(Duration::from_ms(5_000));
    let outcomes: Vec<_> = reached(&mut w).into_iter().map(|(r, _)| (r.tag, r.outcome)).collect();
    assert_eq!(outcomes, [(0, Outcome::NoService), (3, Outcome::NoService)]);
}

#[test]
fn hostile_bytes_change_nothing_and_reach_nobody() {
    let (mut w, service) = world(13);
    let client = ready(&mut w, service);
    let bytes = w.nodes[SERVER].nic.service_bytes(service).unwrap();
    w.keep_log = true;
    let mut runs = BTreeMap::new();
    for tag in 1..=4u64 {
        ask(&mut w, client, tag, &tag.to_le_bytes());
        w.run(Duration::from_us(10));
        serve(&mut w, service, &mut runs);
        w.run(Duration::from_ms(1));
    }
    assert_eq!(reached(&mut w).len(), 4);
    let seen: Vec<_> = w.log.iter().map(|(from, p)| (*from, *p)).zip(w.log_payloads.clone()).collect();
    w.keep_log = false;
    let mut rng = fastrand::Rng::with_seed(14);
    let owner = w.nodes[CLIENT].gid;
    for _ in 0..60_000 {
        let ((from, mut p), mut payload) = seen[rng.usize(..seen.len())].clone();
        for _ in 0..rng.u32(1..4) {
            match rng.u32(..9) {
                0 => p.bth.psn = Psn::new(rng.u32(..) & Psn::MASK),
                1 => p.irn = StarEth { op_flags: rng.u8(..), ..StarEth::from(p.irn) }.into(),
                2 => p.irn = StarEth { value: rng.u32(..), ..StarEth::from(p.irn) }.into(),
                3 => p.reth.len = rng.u32(..),
                4 => p.aeth.msn = rng.u32(..) & 0xff_ffff,
                5 if !payload.is_empty() => {
                    let at = rng.usize(..payload.len());
                    payload[at] = rng.u8(..);
                }
                6 => payload.truncate(rng.usize(..=payload.len())),
                7 => p.ticket.seal ^= 1 << rng.u32(..64),
                _ => p.bth.ack_req = rng.bool(),
            }
        }
        p.payload_len = payload.len() as u32;
        let to = 1 - from;
        let nic = &mut w.nodes[to].nic;
        nic.on_frame(w.now, &p, &Payload::from_slice(&payload));
        let mut out = TxFrame::default();
        while nic.next_frame(w.now, &mut out) {
            assert!(to == CLIENT || out.packet.flow.dst == owner, "answers go to the ticket's owner");
        }
        while let Some((_, reply)) = take(&mut w, service) {
            // A request of its own, made under the client's ticket; what was executed is not again.
            let _ = w.nodes[SERVER].nic.reply(w.now, service, &reply, b"r");
        }
        assert_eq!(reached(&mut w), [], "nothing is under way");
        if rng.u32(..1000) == 0 {
            w.run(Duration::from_ms(1));
            reached(&mut w);
        }
    }
    assert_eq!(w.nodes[SERVER].nic.service_bytes(service), Ok(bytes), "nobody makes it allocate");
    ask(&mut w, client, 100, b"alive");
    for _ in 0..200 {
        w.run(Duration::from_ms(1));
        serve(&mut w, service, &mut runs);
    }
    assert!(reached(&mut w).iter().any(|(r, _)| (r.tag, r.outcome) == (100, Outcome::Reply(5))));
}

#[test]
fn a_flood_of_hellos_is_answered_by_the_millisecond() {
    let (mut w, service) = world(15);
    let number = w.nodes[SERVER].nic.service_number(service).unwrap();
    let hello = Hello {
        wish: Wish::Client,
        features: 0,
        window: 1,
        connections: 0,
        threshold: 0,
        capacity: 0,
        queues: (0, 0),
        clock: 0,
    };
    let (mut answers, flow) = (0, Packet::default().flow);
    let flow = adverb_wire::Flow { src: w.nodes[CLIENT].gid, dst: w.nodes[SERVER].gid, ..flow };
    for n in 0..20_000u32 {
        let opcode = Opcode::new(Service::Star, Operation::Hello);
        let bth = Bth { opcode, dest_qp: number, ack_req: true, ..Bth::default() };
        let irn = StarEth::new(adverb_wire::star::Op::Control, StarEth::POOL, 0, 2 + n).into();
        let packet = Packet { flow, bth, irn, payload_len: Hello::LEN as u32, ..Packet::default() };
        answers += w.give(SERVER, &packet, &hello.bytes()).len();
    }
    assert_eq!(answers, 1024);
    w.now += Duration::from_ms(1);
    let client = ready(&mut w, service);
    ask(&mut w, client, 1, b"x");
    w.run(Duration::from_ms(1));
    assert!(take(&mut w, service).is_some());
}
