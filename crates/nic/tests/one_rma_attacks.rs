//! The paper's attacks (section 4.2) on real NICs: A1, a process that reaches for others' memory; A2,
//! somebody on the wire who sees, changes, repeats and invents messages. None reads or changes a byte that it
//! may not, and each is counted by name.

mod one_rma_world;

use adverb_nic::one_rma::*;
use adverb_wire::Duration;
use adverb_wire::one_rma::{Body, Header, Kind, MessageError, Op, Request, Status};
use one_rma_world::*;

const OPS: [Op; 3] = [Op::Read, Op::Write, Op::Rekey];
const FAILED: Outcome = Outcome::RemoteAuthenticationFailure;

fn op_len(op: Op) -> usize {
    if op == Op::Rekey { 16 } else { 150 }
}

/// Two hosts with secrets in the second's target region and something to write at the first.
fn scene(hosts: usize) -> Rma {
    let w = Rma::with(hosts, 1, &|c| c.max_piece = 64);
    w.hosts[1].memory.write(TARGET, &pattern(1, PART));
    w.hosts[0].memory.write(LOCAL + PART / 2, &pattern(2, 4096));
    w
}

/// Reads land at the start of the own region; writes and keys come from its middle.
fn aim(w: &Rma, from: usize, op: Op) -> Command {
    let mut command = w.command(from, 1, op, op_len(op));
    command.local_offset = if op == Op::Read { 0 } else { PART as u64 / 2 };
    command
}

/// Nothing of the second host was read by the first or changed, its key included.
fn assert_untouched(w: &Rma, what: &str) {
    assert_eq!(w.hosts[1].memory.read(TARGET, PART), pattern(1, PART), "{what}: changed");
    assert_eq!(w.hosts[0].memory.read(LOCAL, 4096), vec![0; 4096], "{what}: read");
    let expected = derive(&region_key(1), gid(1), w.hosts[1].target.wire(), gid(0), PID, Op::Read);
    assert!(w.key(0, 1, Op::Read).equals(&expected), "{what}: rekeyed");
}

#[test]
fn a_guessed_region_gives_nothing() {
    let mut w = scene(2);
    let known = [w.hosts[1].target, w.hosts[1].local, w.hosts[1].ring];
    let mut guesses = 0;
    for generation in 0..4u32 {
        for index in (0..40).chain([0xffff]) {
            let region = RegionId::from_wire(generation << 16 | index);
            if known.contains(&region) {
                continue;
            }
            for op in OPS {
                let mut command = aim(&w, 0, op);
                command.remote_region = region;
                assert_eq!(w.run(0, &command).outcome, FAILED);
                guesses += 1;
            }
        }
    }
    assert_eq!(w.hosts[1].counter("requests_unknown_region"), guesses);
    assert_untouched(&w, "guessed regions");
}

#[test]
fn a_key_for_something_else_opens_nothing() {
    let mut w = scene(3);
    let target = w.hosts[1].target;
    // A region beside it, and a replica, whose keys are made of the same K_r.
    let Host { pd, memory, .. } = &w.hosts[1];
    let beside = RegionInit {
        owner: PID,
        pd: *pd,
        lkey: memory.mr.lkey,
        addr: memory.addr(),
        len: PART as u64,
        rights: Rights::all(),
        key: region_key(1),
    };
    let beside = w.hosts[1].nic.register(&beside).unwrap();
    let replica = w.hosts[2].target;
    w.hosts[2].nic.rotate(replica, &region_key(1)).unwrap();
    assert_eq!(replica, target, "of the same name");
    let mut tries = 0;
    for op in OPS {
        let owner = &w.hosts[1].nic;
        let mut keys = vec![
            ("another host's", owner.derive(target, gid(2), PID, op).unwrap()),
            ("another process's", owner.derive(target, gid(0), PID + 1, op).unwrap()),
            ("another region's", owner.derive(beside, gid(0), PID, op).unwrap()),
            ("another target's", w.hosts[2].nic.derive(replica, gid(0), PID, op).unwrap()),
            ("guessed", DerivedKey::new([0; 16])),
            ("the reserved", DerivedKey::new(adverb_wire::one_rma::RESERVED_KEY)),
            ("K_r itself", DerivedKey::new(*region_key(1).expose())),
        ];
        for other in OPS.into_iter().filter(|other| *other != op) {
            keys.push(("another operation's", owner.derive(target, gid(0), PID, other).unwrap()));
        }
        for (whose, key) in keys {
            let mut command = aim(&w, 0, op);
            command.key = key;
            assert_eq!(w.run(0, &command).outcome, FAILED, "{op:?} with {whose} key");
            tries += 1;
        }
    }
    assert_eq!(w.hosts[1].counter("requests_unauthentic"), tries);
    assert_untouched(&w, "keys of others");
    // A host that holds a right key sends under another's address: the key is not for that address.
    let command = aim(&w, 0, Op::Read);
    w.post(0, 0, &command);
    w.meddler = Some(Box::new(|_, _, _| Vec::new()));
    w.advance(w.now);
    let stolen = w.log.last().unwrap().2.clone();
    w.meddler = None;
    w.inject(gid(2), 1, stolen, Duration::ZERO);
    w.drain();
    assert_eq!(w.hosts[1].counter("requests_unauthentic"), tries + 1);
    assert_untouched(&w, "another's address");
}

/// A session in which every kind of message occurs: operations one after another, with the outcome that each
/// has when left alone.
fn session() -> Vec<(Op, bool, Outcome)> {
    vec![
        (Op::Read, true, Outcome::Ok),
        (Op::Write, true, Outcome::Ok),
        (Op::Read, false, FAILED),
        (Op::Rekey, true, Outcome::Ok),
    ]
}

/// Runs the session and gives the outcomes. The rekey comes last, and leaves another key behind.
fn play(w: &mut Rma) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (op, right, _) in session() {
        let mut command = aim(w, 0, op);
        if !right {
            command.key = DerivedKey::new([1; 16]);
        }
        outcomes.push(w.run(0, &command).outcome);
    }
    w.drain();
    outcomes
}

/// Which operation of the session each message belongs to.
fn owners(log: &[(usize, usize, Vec<u8>)]) -> Vec<usize> {
    let mut op = 0;
    let owner = |(_, _, bytes): &(usize, usize, Vec<u8>)| {
        op += request_of(bytes).is_some() as usize;
        op - 1
    };
    log.iter().map(owner).collect()
}

#[test]
fn every_flipped_bit_of_every_message_is_noticed() {
    let mut clean = scene(2);
    let expected: Vec<Outcome> = session().iter().map(|(_, _, outcome)| *outcome).collect();
    assert_eq!(play(&mut clean), expected);
    let owners = owners(&clean.log);
    let written = clean.hosts[1].memory.read(TARGET, PART);
    let refused: u64 = clean.hosts.iter().map(Host::refused).sum();
    let mut bits = 0;
    for (number, (_, _, bytes)) in clean.log.iter().enumerate() {
        let kind = Header::parse(bytes).unwrap().kind();
        for bit in 0..bytes.len() * 8 {
            let mut w = scene(2);
            w.meddler = Some(Box::new(move |which, _, bytes| {
                let mut bytes = bytes.to_vec();
                if which == number {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
                vec![(LATENCY, bytes)]
            }));
            let outcomes = play(&mut w);
            let (hit, what) = (owners[number], format!("{kind:?}, message {number}, bit {bit}"));
            assert_ne!(outcomes[hit], Outcome::Ok, "{what}");
            for (i, outcome) in outcomes.iter().enumerate() {
                assert!(i == hit || *outcome == expected[i], "{what}: operation {i} was {outcome}");
            }
            let counted: u64 = w.hosts.iter().map(Host::refused).sum();
            assert!(counted >= refused, "{what}");
            let noticed = w.hosts.iter().any(|host| {
                ["parse_", "drop_", "requests_un"].iter().any(|prefix| {
                    host.nic.counters().iter().any(|(name, n)| {
                        let was = clean.hosts.iter().map(|host| host.counter(name)).max().unwrap_or(0);
                        name.starts_with(prefix) && n > was
                    })
                })
            });
            // A request under a wrong key is refused with the bit flipped or not.
            let refused_anyway = request_of(bytes).is_some() && !session()[hit].1;
            assert!(noticed || refused_anyway, "{what}: not counted");
            // Whole right pieces may have landed, and nothing else.
            let now = w.hosts[1].memory.read(TARGET, PART);
            let before = pattern(1, PART);
            assert!((0..PART).all(|i| now[i] == before[i] || now[i] == written[i]), "{what}: wrong bytes");
            let sink = w.hosts[0].memory.read(LOCAL, 4096);
            assert!(
                (0..4096).all(|i| sink[i] == 0 || i < 150 && sink[i] == before[i]),
                "{what}: wrong bytes"
            );
            bits += 1;
        }
    }
    assert!(bits > 7000, "{bits}");
}

/// Two operations that end with a NACK and with a refusal, after the message with this number has had this
/// bit flipped.
fn refused_session(flip: Option<(usize, usize)>) -> (Rma, [Outcome; 2]) {
    let mut w = Rma::with(2, 1, &|c| c.nack_threshold = Some(0));
    w.meddler = Some(Box::new(move |which, _, bytes| {
        let mut bytes = bytes.to_vec();
        match flip {
            Some((number, bit)) if number == which => bytes[bit / 8] ^= 1 << (bit % 8),
            _ => {}
        }
        vec![(LATENCY, bytes)]
    }));
    w.post(0, 0, &aim(&w, 0, Op::Read));
    w.post(0, 1, &aim(&w, 0, Op::Read));
    let second = w.hosts[0].slots[1];
    let outcomes = [w.finish(0), w.finish(0)];
    let nacked = outcomes.iter().find(|done| done.slot == second).unwrap().outcome;
    w.drain();
    let mut outside = aim(&w, 0, Op::Read);
    outside.remote_offset = PART as u64;
    let refused = w.run(0, &outside).outcome;
    w.drain();
    (w, [nacked, refused])
}

#[test]
fn every_flipped_bit_of_a_nack_and_of_a_refusal_is_noticed() {
    let (clean, outcomes) = refused_session(None);
    assert_eq!(outcomes, [Outcome::Nack, FAILED]);
    let mut flipped = 0;
    for (number, (from, _, bytes)) in clean.log.iter().enumerate() {
        let kind = Header::parse(bytes).unwrap().kind();
        if *from != 1 || kind == Kind::ReadResponse {
            continue;
        }
        for bit in 0..bytes.len() * 8 {
            let (w, outcomes) = refused_session(Some((number, bit)));
            let expected = if kind == Kind::Nack {
                [Outcome::Timeout, FAILED]
            } else {
                [Outcome::Nack, Outcome::Timeout]
            };
            assert_eq!(outcomes, expected, "{kind:?}, bit {bit}");
            assert!(
                w.hosts.iter().map(Host::refused).sum::<u64>() > clean.hosts.iter().map(Host::refused).sum()
            );
            flipped += 1;
        }
    }
    assert_eq!(flipped, 2 * 32 * 8);
}

/// Messages of a session with live memory behind it that has moved on since.
fn captured() -> (Rma, Vec<(usize, usize, Vec<u8>)>) {
    let mut w = scene(2);
    play(&mut w);
    let log = core::mem::take(&mut w.log);
    move_on(&mut w);
    (w, log)
}

/// The owner puts its key and its bytes back, and the first host its own.
fn move_on(w: &mut Rma) {
    let region = w.hosts[1].target;
    w.hosts[1].nic.rotate(region, &region_key(1)).unwrap();
    w.hosts[1].memory.write(TARGET, &pattern(1, PART));
    w.hosts[0].memory.write(LOCAL, &vec![0; 4096]);
}

#[test]
fn a_captured_session_replayed_in_any_order_does_nothing() {
    let (mut w, log) = captured();
    let landed = |w: &Rma| {
        let count = |name| w.hosts.iter().map(|host| host.counter(name)).sum::<u64>();
        (count("writes_landed"), count("rekeys"), count("ops_ok"))
    };
    let before = landed(&w);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut order: Vec<usize> = (0..log.len()).collect();
    for round in 0..300 {
        // In order and backwards first; then shuffled, some twice, some late, some to the other side.
        match round {
            0 => {}
            1 => order.reverse(),
            _ => rng.shuffle(&mut order),
        }
        for which in &order {
            let (from, to, bytes) = &log[*which];
            let copies = if round > 1 { rng.usize(..3) } else { 1 };
            for _ in 0..copies {
                let (from, to) = if round > 100 && rng.u8(..4) == 0 { (*to, *from) } else { (*from, *to) };
                let delay = if round > 1 { rng.u64(..30_000) } else { 0 };
                w.inject(gid(from), to, bytes.clone(), Duration::from_ns(delay));
            }
        }
        w.drain();
        assert_untouched(&w, &format!("round {round}"));
    }
    assert_eq!(landed(&w), before);
    assert!(w.hosts[1].counter("solicitations_expired") > 100, "replayed writes are solicited, in vain");
    assert!(w.hosts[0].counter("drop_unexpected") > 1000);
}

#[test]
fn a_captured_session_replayed_after_a_restart_does_nothing() {
    let (mut w, log) = captured();
    for (boot, who) in [(2, vec![1]), (3, vec![0]), (4, vec![0, 1])] {
        for index in who {
            // The same regions, keys and slots as before, and the next range of counters.
            w.hosts[index] = host(index, boot + 10 * index as u64, &|c| c.max_piece = 64);
            w.hosts[index].memory.write(LOCAL + PART / 2, &pattern(2, 4096));
        }
        move_on(&mut w);
        let mut rng = fastrand::Rng::with_seed(boot);
        let mut order: Vec<usize> = (0..log.len()).collect();
        for _ in 0..50 {
            for which in &order {
                let (from, to, bytes) = &log[*which];
                w.inject(gid(*from), *to, bytes.clone(), Duration::from_ns(rng.u64(..30_000)));
            }
            w.drain();
            assert_untouched(&w, "after a restart");
            rng.shuffle(&mut order);
        }
    }
}

#[test]
fn old_messages_among_new_ones_change_no_result() {
    let (mut w, log) = captured();
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..200 {
        // New operations of the same slot while every old message comes by.
        let bytes = pattern(round, 150);
        w.hosts[0].memory.write(LOCAL + PART / 2, &bytes);
        for (from, to, bytes) in &log {
            w.inject(gid(*from), *to, bytes.clone(), Duration::from_ns(rng.u64(..12_000)));
        }
        let op = if round % 2 == 0 { Op::Write } else { Op::Read };
        let command = aim(&w, 0, op);
        let outcome = w.run(0, &command).outcome;
        assert_eq!(outcome, Outcome::Ok, "round {round}");
        if op == Op::Write {
            assert_eq!(w.hosts[1].memory.read(TARGET, 150), bytes);
        } else {
            assert_eq!(w.hosts[0].memory.read(LOCAL, 150), w.hosts[1].memory.read(TARGET, 150));
        }
        let landed = w.hosts[1].memory.read(TARGET, PART);
        w.drain();
        assert_eq!(w.hosts[1].memory.read(TARGET, PART), landed);
    }
    assert!(w.hosts[0].counter("drop_unauthentic") > 10, "old answers for a busy slot");
}

/// A header of any kind, for a slot and a ticket that may exist.
fn invented(rng: &mut fastrand::Rng, region: u32) -> Header {
    let slot = rng.u32(..2);
    let piece = adverb_wire::one_rma::Piece { offset: 64 * rng.u16(..3), len: rng.u16(1..64) };
    let ticket = rng.u32(..4) << 16 | rng.u32(..4);
    let op = OPS[rng.usize(..3)];
    let len = op_len(op) as u16;
    let body = match rng.u8(..7) {
        0 => Body::Request(Request { op, class: 0, slot, pid: PID, region, offset: 0, len }),
        1 => Body::ReadResponse { slot, piece },
        2 => Body::WriteData { ticket, piece },
        3 => Body::Solicitation { slot, ticket, open_ns: rng.u32(..) },
        4 => Body::Completion { slot, status: if rng.bool() { Status::Ok } else { Status::Refused } },
        5 => Body::Nack { slot },
        _ => Body::AuthenticationFailure { slot },
    };
    Header { counter: (1 << 32) + rng.u64(..20), body }
}

#[test]
fn invented_messages_complete_nothing_and_change_nothing() {
    let mut w = scene(2);
    let region = w.hosts[1].target.wire();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut injected = 0;
    for round in 0..400 {
        for _ in 0..20 {
            let bytes = if rng.u8(..4) == 0 {
                (0..rng.usize(..200)).map(|_| rng.u8(..)).collect()
            } else {
                let header = invented(&mut rng, region);
                let mut bytes: Vec<u8> = (0..header.message_len()).map(|_| rng.u8(..)).collect();
                header.emit(&mut bytes);
                bytes
            };
            let (from, to) = if rng.bool() { (0, 1) } else { (1, 0) };
            w.inject(gid(from), to, bytes, Duration::from_ns(rng.u64(..10_000)));
            injected += 1;
        }
        let op = OPS[round % 2];
        let mut command = aim(&w, 0, op);
        command.remote_offset = 4096;
        if op == Op::Write {
            w.hosts[0].memory.write(LOCAL + PART / 2, &pattern(1, PART)[4096..4246]);
        }
        assert_eq!(w.run(0, &command).outcome, Outcome::Ok, "round {round}");
        w.drain();
        assert_eq!(w.hosts[1].memory.read(TARGET, PART), pattern(1, PART));
    }
    // Each was refused, and so was, at the other end, each notice that an invented request drew.
    let sum = |name| w.hosts.iter().map(|host| host.counter(name)).sum::<u64>();
    let notices = sum("requests_unauthentic") + sum("requests_unknown_region");
    assert_eq!(w.hosts.iter().map(Host::refused).sum::<u64>(), injected + notices);
}

#[test]
fn every_malformed_message_has_its_counter() {
    let mut w = scene(2);
    let command = aim(&w, 0, Op::Read);
    w.run(0, &command);
    let (request, response) = (w.log[0].2.clone(), w.log[1].2.clone());
    let changed = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    let cases = [
        (request[..20].to_vec(), MessageError::Truncated),
        (changed(&request, 0, 9), MessageError::Version),
        (changed(&request, 1, 77), MessageError::Kind),
        (changed(&request, 3, 1), MessageError::Reserved),
        (changed(&request, 2, 2), MessageError::Detail),
        (changed(&request, 32, 0xff), MessageError::OpLength),
        (changed(&response, 17, 1), MessageError::Piece),
        ([&request[..], &[0]].concat(), MessageError::Length),
    ];
    assert_eq!(cases.len(), MessageError::ALL.len());
    for (bytes, reason) in cases {
        w.inject(gid(0), 1, bytes, Duration::ZERO);
        w.drain();
        assert_eq!(w.hosts[1].counter(reason.name()), 1, "{reason}");
    }
}

/// A message as somebody seals it who has the key, whatever it says.
fn sealed(key: &[u8; 16], header: &Header, previous: &[u8; 12], payload: &[u8]) -> Vec<u8> {
    use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let mut bytes = vec![0; header.message_len()];
    let len = header.emit(&mut bytes);
    let aad = [&bytes[..len], &previous[..]].concat();
    let (_, rest) = bytes.split_at_mut(len);
    let (body, tag) = rest.split_at_mut(payload.len());
    body.copy_from_slice(payload);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).unwrap());
    let nonce = Nonce::assume_unique_for_key(header.nonce());
    let made = key.seal_in_place_separate_tag(nonce, Aad::from(aad), body).unwrap();
    tag.copy_from_slice(made.as_ref());
    bytes
}

/// Keys that the target keeps set up (`key_cache.rs`): one process's opens nothing for others, whose keys
/// would stand in the same place, and what is not authentic drives none out.
#[test]
fn a_key_that_is_set_up_opens_nothing_for_others_and_stays() {
    let mut w = scene(2);
    let command = aim(&w, 0, Op::Read);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
    let (key, region) = (w.key(0, 1, Op::Read), w.hosts[1].target.wire());
    let others = 2000;
    for pid in PID + 1..=PID + others {
        let request = Request { op: Op::Read, class: 0, slot: 0, pid, region, offset: 0, len: 64 };
        let header = Header { counter: pid as u64, body: Body::Request(request) };
        w.inject(gid(0), 1, sealed(key.expose(), &header, &[0; 12], &[]), Duration::ZERO);
        w.drain();
    }
    assert_eq!(w.hosts[1].counter("requests_unauthentic"), others as u64);
    assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
    assert_eq!((w.hosts[1].counter("requests"), w.hosts[1].counter("keys_derived")), (2, 1));
    // A key that the region no longer has opens nothing either, though it was set up.
    let old = command.key.clone();
    let target = w.hosts[1].target;
    w.hosts[1].nic.rotate(target, &RegionKey::new([0x77; 16])).unwrap();
    let command = Command { key: old, ..command };
    assert_eq!(w.run(0, &command).outcome, FAILED);
    assert_eq!(w.hosts[1].counter("requests_unauthentic"), others as u64 + 1);
}

/// A peer that has the key and breaks the protocol: its pieces stay inside the operation that this side
/// began.
#[test]
fn an_authentic_peer_reaches_no_byte_beside_the_operation() {
    let piece = adverb_wire::one_rma::Piece { offset: 64, len: 64 };
    // A target that answers a read of 64 bytes with 64 more.
    let mut w = scene(2);
    w.hosts[0].memory.write(LOCAL, &[0xcc; 256]);
    let mut command = aim(&w, 0, Op::Read);
    command.len = 64;
    w.post(0, 0, &command);
    w.advance(w.now);
    let request = Header::parse(&w.log[0].2).unwrap();
    let body = Body::ReadResponse { slot: w.hosts[0].slots[0].index(), piece };
    let beside = sealed(command.key.expose(), &Header { counter: 1, body }, &request.nonce(), &[0xdd; 64]);
    w.inject(gid(1), 0, beside, Duration::ZERO);
    assert_eq!(w.finish(0).outcome, Outcome::Ok);
    assert_eq!(w.hosts[0].counter("drop_piece"), 1);
    assert_eq!(w.hosts[0].memory.read(LOCAL + 64, 192), [0xcc; 192]);

    // An initiator that sends 64 bytes more than it asked to write.
    let mut w = scene(2);
    let mut command = aim(&w, 0, Op::Write);
    command.len = 64;
    w.post(0, 0, &command);
    while w.log.len() < 2 {
        assert!(w.advance(adverb_wire::Instant::NEVER));
    }
    let solicitation = Header::parse(&w.log[1].2).unwrap();
    let Body::Solicitation { ticket, .. } = solicitation.body else { panic!("{solicitation:?}") };
    let header = Header { counter: 1, body: Body::WriteData { ticket, piece } };
    let beside = sealed(command.key.expose(), &header, &solicitation.nonce(), &[0xdd; 64]);
    w.inject(gid(0), 1, beside, Duration::ZERO);
    assert_eq!(w.finish(0).outcome, Outcome::Ok);
    assert_eq!(w.hosts[1].counter("drop_piece"), 1);
    assert_eq!(w.hosts[1].memory.read(TARGET + 64, PART - 64), pattern(1, PART)[64..]);
}

#[test]
fn every_message_of_an_operation_sent_twice_counts_once() {
    let mut w = scene(2);
    w.meddler = Some(Box::new(|_, _, bytes| vec![(LATENCY, bytes.to_vec()), (LATENCY, bytes.to_vec())]));
    for op in [Op::Read, Op::Write] {
        let command = aim(&w, 0, op);
        assert_eq!(w.run(0, &command).outcome, Outcome::Ok);
        w.drain();
    }
    // Three pieces each, of which the last ends the operation; and each request was taken twice, for nothing
    // tells the copy from the first.
    let count = |host: usize, name| w.hosts[host].counter(name);
    assert_eq!((count(1, "drop_duplicate"), count(1, "writes_landed")), (2, 1));
    assert_eq!(
        (count(1, "requests"), count(1, "reads_served"), count(1, "solicitations_expired")),
        (4, 2, 1)
    );
    assert!(count(0, "drop_duplicate") >= 2, "{}", count(0, "drop_duplicate"));
}

/// The failure notice's key is known to all, so anybody on the wire can end a request that the target has not
/// taken up. That is all it can do: what has been taken up goes on (section 4.2 accepts the first, section
/// 5.1 demands the second).
#[test]
fn a_forged_failure_notice_ends_no_write_that_may_still_land() {
    let forge = |request: &Header, slot: u32| {
        let header = Header { counter: 77, body: Body::AuthenticationFailure { slot } };
        sealed(&adverb_wire::one_rma::RESERVED_KEY, &header, &request.nonce(), &[])
    };
    for after in [Kind::WriteRequest, Kind::Solicitation] {
        let mut w = scene(2);
        let command = aim(&w, 0, Op::Write);
        w.post(0, 0, &command);
        while w.log.iter().all(|(_, _, bytes)| Header::parse(bytes).unwrap().kind() != after) {
            assert!(w.advance(adverb_wire::Instant::NEVER));
        }
        let request = Header::parse(&w.log[0].2).unwrap();
        let delay = if after == Kind::Solicitation { LATENCY.times(2) } else { Duration::ZERO };
        w.inject(gid(1), 0, forge(&request, 0), delay);
        let done = w.finish(0);
        let landed = w.hosts[1].memory.read(TARGET, PART);
        w.drain();
        assert_eq!(w.hosts[1].memory.read(TARGET, PART), landed);
        if after == Kind::WriteRequest {
            assert_eq!(done.outcome, FAILED);
            assert_untouched(&w, "a forged notice");
        } else {
            assert_eq!((done.outcome, w.hosts[0].counter("drop_late_refusal")), (Outcome::Ok, 1));
        }
    }
}
