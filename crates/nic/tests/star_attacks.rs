//! Attacks on StaR that take more than one packet, or more than one connection; those on single checks stand
//! in `star.rs` and `star_messages.rs`. What each comes to: `docs/star-attacks.md`.

mod world;
use adverb_nic::*;
use adverb_wire::star::{Answer, Cqe, Hello, Op, StarEth, Verdict, Wish};
use adverb_wire::{Bth, Duration, Gid, Key, Opcode, Operation, Packet, Psn, Reth, Service};
use std::net::Ipv4Addr;
use world::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Somebody else, who knows no connection.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
/// The lifetime of packets, which is the configuration's own.
const LIFETIME: Duration = Duration::from_ms(20);

fn client_and_server(seed: u64) -> World {
    World::with_config(2, seed, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, lifetime: LIFETIME, ..StarConfig::default() });
    })
}

fn agreed(w: &mut World) -> [QpId; 2] {
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    [a, b]
}

fn world(seed: u64) -> (World, [QpId; 2]) {
    let mut w = client_and_server(seed);
    let ids = agreed(&mut w);
    (w, ids)
}

fn operation(p: &Packet) -> Operation {
    p.bth.opcode.operation()
}

fn star(operation: Operation) -> Opcode {
    Opcode::new(Service::Star, operation)
}

fn verdicts(answers: &[Packet]) -> Vec<Verdict> {
    answers.iter().map(|p| Answer::of_aeth(p.aeth).unwrap().verdict).collect()
}

/// What a node has said so far, with payloads.
fn said(w: &mut World, node: usize) -> Vec<(Packet, Vec<u8>)> {
    let payloads = std::mem::take(&mut w.log_payloads);
    let all = std::mem::take(&mut w.log).into_iter().zip(payloads);
    all.filter(|((from, _), _)| *from == node).map(|((_, packet), payload)| (packet, payload)).collect()
}

/// The client's WRITE of eight bytes as it leaves; it does not arrive.
fn captured_write(w: &mut World, a: QpId, from: &Memory, to: &Memory) -> Packet {
    w.keep_log = true;
    said(w, CLIENT);
    w.drop_if = Some(Box::new(|from, _| from == CLIENT));
    let (va, rkey) = to.at(0);
    w.send(CLIENT, a, wr(99, SendOp::Write(va, rkey), &[from.sge(0, 8)]));
    w.transmit();
    w.drop_if = None;
    let said = said(w, CLIENT);
    said.iter().find(|(p, _)| operation(p) == Operation::RemoteData).expect("an RD left").0
}

#[test]
fn replays_of_all_that_was_said_change_nothing_once_it_is_done() {
    let (mut w, ids) = world(1);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    memory[CLIENT].write(0, &pattern(1, 4096));
    w.keep_log = true;
    let (va, rkey) = memory[SERVER].at(2048);
    w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 2000)]);
    for (number, op) in [(1, SendOp::Send), (2, SendOp::Write(va, rkey)), (3, SendOp::Read(va, rkey))] {
        w.send(CLIENT, ids[CLIENT], wr(number, op, &[memory[CLIENT].sge(0, 2000)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
    }
    let add = SendOp::FetchAdd { addr: va + 2040, rkey, add: 1 };
    w.send(CLIENT, ids[CLIENT], wr(4, add, &[memory[CLIENT].sge(0, 8)]));
    assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).wr_id), (Status::Success, 50));
    w.run(Duration::from_ms(2));
    let heard = said(&mut w, CLIENT);
    w.keep_log = false;
    // The server's program uses its memory for something else.
    let other = pattern(77, 4096);
    memory[SERVER].write(0, &other);
    let owner = w.nodes[CLIENT].gid;
    for round in 0..3 {
        for (packet, payload) in &heard {
            let answers = w.give(SERVER, packet, payload);
            assert!(answers.iter().all(|p| p.flow.dst == owner), "answers go to the ticket's owner");
            let mut moved = *packet;
            moved.flow.src = Gid::from(STRANGER);
            assert_eq!(w.give(SERVER, &moved, payload), [], "nobody else is made to hear one");
        }
        assert!(memory[SERVER].read(0, 4096) == other, "round {round}: a replay landed");
        assert!(w.poll(SERVER).is_none(), "round {round}: something completes once more");
        w.run(Duration::from_ms(11));
    }
    // With a deadline of the attacker's own, data for what is posted find it done.
    let now = (w.now.as_ps() / 1_000_000) as u32;
    for (packet, payload) in &heard {
        if operation(packet) == Operation::RemoteData && StarEth::from(packet.irn).has(StarEth::POSTED) {
            let mut later = *packet;
            later.reth.len = now + 5000;
            assert_eq!(verdicts(&w.give(SERVER, &later, payload)), [Verdict::NotPosted]);
        }
    }
    assert!(memory[SERVER].read(0, 4096) == other);
    for (name, count) in [
        ("star_duplicate", 2),
        ("star_drop_expired", 2),
        ("star_nak_not_posted", 2),
        ("star_cqe_duplicate", 1),
        ("star_drop_ticket", 3),
    ] {
        assert!(w.counter(SERVER, name) >= count, "{name}: {}", w.counter(SERVER, name));
    }
    // And the connection goes on.
    w.send(CLIENT, ids[CLIENT], wr(5, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
}

#[test]
fn a_ticket_of_an_earlier_process_opens_nothing() {
    let (mut before, old) = world(2);
    let memory = [before.memory(CLIENT, 64), before.memory(SERVER, 64)];
    let stolen = captured_write(&mut before, old[CLIENT], &memory[CLIENT], &memory[SERVER]);
    // The server starts again, as another process at the same address and with the same number.
    let (mut w, ids) = world(3);
    let (own, target) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    let fresh = captured_write(&mut w, ids[CLIENT], &own, &target);
    let replayed = Packet { ticket: stolen.ticket, ..fresh };
    assert_ne!(stolen.ticket, fresh.ticket);
    assert_eq!(w.give(SERVER, &replayed, &[1; 8]), []);
    assert_eq!((w.counter(SERVER, "star_drop_ticket"), target.read(0, 8)), (1, vec![0; 8]));
    assert_eq!(verdicts(&w.give(SERVER, &fresh, &[1; 8])), [Verdict::Done]);
}

/// The byte by which a ticket says its queue pair's life comes round: who was this number's peer long ago is
/// still nobody, whatever deadline he claims.
#[test]
fn a_ticket_of_a_life_long_past_opens_nothing() {
    let (mut w, ids) = world(3);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    let mut write = captured_write(&mut w, ids[CLIENT], &memory[CLIENT], &memory[SERVER]);
    w.keep_log = false;
    let first = write.bth.psn;
    for life in 2..520u32 {
        for (node, peer) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let nic = &mut w.nodes[node].nic;
            let attr = QpAttr { state: QpState::Reset, ..nic.query_qp(ids[node]).unwrap().0 };
            nic.modify_qp(w.now, ids[node], &attr, QpAttrMask::STATE).unwrap();
            w.connect((node, ids[node]), (peer, ids[peer]), &Link { timeout: 14, ..Link::default() });
        }
        w.run(Duration::from_ms(1));
        assert_eq!(w.nodes[SERVER].nic.star_side(ids[SERVER]), Ok(StarSide::Stateless), "life {life}");
        write.reth.len = (w.now.as_ps() / 1_000_000) as u32 + 5000;
        write.bth.psn = first.add(life);
        assert_eq!(w.give(SERVER, &write, &[1; 8]), [], "life {life}");
        assert_eq!(memory[SERVER].read(0, 8), [0; 8], "life {life}");
    }
    let dropped = ["star_drop_not_live", "star_drop_ticket"].map(|name| w.counter(SERVER, name));
    assert_eq!(dropped.iter().sum::<u64>(), 518);
    assert!(dropped.iter().all(|count| *count > 100), "{dropped:?}: by the byte first, then by the seal");
    // And the connection that it has now works.
    let (va, rkey) = memory[SERVER].at(0);
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
}

#[test]
fn a_ticket_speaks_for_its_own_connection_only() {
    let (mut w, victim) = world(4);
    let attacker = agreed(&mut w);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    w.recv(SERVER, victim[SERVER], 50, &[memory[SERVER].sge(0, 16)]);
    w.run(Duration::from_ms(1));
    let own = captured_write(&mut w, attacker[CLIENT], &memory[CLIENT], &memory[SERVER]);
    let number = w.nodes[SERVER].nic.qp_number(victim[SERVER]).unwrap();
    let entry = Cqe { flags: Cqe::RECV_QUEUE, status: 0, op: Op::Recv, index: 0, len: 8, immediate: 0 };
    for kind in
        [Operation::RemoteData, Operation::GetData, Operation::CqePacket, Operation::WqeEventAcknowledge]
    {
        let mut packet = own;
        packet.bth.opcode = star(kind);
        packet.bth.dest_qp = number;
        // The victim's first number, which is the link's: nothing but the ticket is wrong.
        packet.bth.psn = Link::default().psn.1;
        let payload = if kind == Operation::CqePacket { entry.bytes().to_vec() } else { Vec::new() };
        packet.irn = StarEth::new(Op::Control, 0, u16::from(kind == Operation::CqePacket), 0).into();
        packet.payload_len = payload.len() as u32;
        assert_eq!(w.give(SERVER, &packet, &payload), [], "{kind:?}");
    }
    assert_eq!(w.counter(SERVER, "star_drop_ticket"), 4);
    assert!(w.poll(SERVER).is_none());
    w.send(CLIENT, victim[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 16)]));
    assert_eq!(w.completion(SERVER).wr_id, 50);
}

#[test]
fn a_client_that_fills_the_history_takes_its_share_and_hurts_itself() {
    let (mut w, attacker) = world(5);
    let honest = agreed(&mut w);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    let write = captured_write(&mut w, attacker[CLIENT], &memory[CLIENT], &memory[SERVER]);
    let now = (w.now.as_ps() / 1_000_000) as u32;
    let far = |ahead: u32, n: u32| {
        let mut packet = write;
        packet.bth.psn = write.bth.psn.add(n);
        packet.reth.len = now.wrapping_add(ahead);
        packet
    };
    // Farther ahead than two lifetimes nothing is remembered, because nothing is done.
    assert_eq!(verdicts(&w.give(SERVER, &far(40_001, 0), &[1; 8])), [Verdict::Expired]);
    let mut refused = 0;
    for n in 0..100_000 {
        let answers = w.give(SERVER, &far(39_000, n), &[1; 8]);
        refused += usize::from(verdicts(&answers) == [Verdict::Busy]);
    }
    assert!(refused > 30_000, "{refused} of 100,000 were put off");
    assert_eq!(w.counter(SERVER, "star_history_full"), refused as u64);
    // Others find room: their requests are done at the first attempt.
    let before = w.counter(SERVER, "star_history_full");
    for number in 0..100 {
        let (va, rkey) = memory[SERVER].at(8);
        w.send(CLIENT, honest[CLIENT], wr(number, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
    }
    assert_eq!(w.counter(SERVER, "star_history_full"), before);
    // When the deadlines have passed, there is room again.
    w.run(Duration::from_ms(40));
    let mut again = far(60_000, 200_000);
    again.reth.len = (w.now.as_ps() / 1_000_000) as u32 + 10_000;
    assert_eq!(verdicts(&w.give(SERVER, &again, &[1; 8])), [Verdict::Done]);
}

#[test]
fn floods_find_no_memory_to_take() {
    let (mut w, ids) = world(6);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    let bytes = w.nodes[SERVER].nic.stateless_bytes();
    assert!(bytes > 1 << 20, "the history alone has a mebibyte");
    let write = captured_write(&mut w, ids[CLIENT], &memory[CLIENT], &memory[SERVER]);
    let ea = Packet {
        bth: Bth { opcode: star(Operation::CqePacket), ..write.bth },
        irn: StarEth::new(Op::Control, 0, 0, 0).into(),
        reth: Reth::default(),
        payload_len: 0,
        ..write
    };
    let get = Packet {
        bth: Bth { opcode: star(Operation::GetData), ..write.bth },
        irn: StarEth::new(Op::Read, 0, 8, 0).into(),
        payload_len: 0,
        ..write
    };
    let record = Packet {
        bth: Bth { opcode: star(Operation::WqePacket), ..write.bth },
        irn: StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0).into(),
        payload_len: 48,
        ..Packet { flow: write.flow, ..Packet::default() }
    };
    let mut answers = 0;
    for kind in [&get, &ea, &write, &record] {
        let payload = vec![0; kind.payload_len as usize];
        let nic = &mut w.nodes[SERVER].nic;
        for n in 0..20_000 {
            let packet = Packet { bth: Bth { psn: kind.bth.psn.add(n), ..kind.bth }, ..*kind };
            nic.on_frame(w.now, &packet, &Payload::from_slice(&payload));
        }
        assert_eq!(nic.stateless_bytes(), bytes);
        let mut out = TxFrame::default();
        answers += std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(())).count();
    }
    assert!(answers <= 3 * limits::MAX_STAR_ANSWERS, "{answers}");
    assert!(w.counter(SERVER, "star_answers_full") > 30_000);
    assert_eq!(w.counter(SERVER, "drop_hello"), 20_000, "records for who keeps no state");
    w.nodes[SERVER].nic.check_invariants();
    assert_eq!(w.nodes[SERVER].nic.star_side(ids[SERVER]), Ok(StarSide::Stateless));
}

#[test]
fn hellos_of_the_peers_own_are_answered_once_for_each_frame_that_leaves() {
    let mut w = client_and_server(7);
    // The server's hellos do not come through, so its peer's queue pair goes on asking.
    w.drop_if = Some(Box::new(|from, _| from == SERVER));
    w.keep_log = true;
    let (_, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    w.run(Duration::from_us(10));
    let hellos = said(&mut w, CLIENT);
    let (hello, payload) = hellos.iter().find(|(p, _)| operation(p) == Operation::Hello).unwrap();
    assert!(hello.bth.ack_req && Hello::read(payload).is_some());
    let nic = &mut w.nodes[SERVER].nic;
    let mut out = TxFrame::default();
    while nic.next_frame(w.now, &mut out) {}
    for _ in 0..10_000 {
        nic.on_frame(w.now, hello, &Payload::from_slice(payload));
    }
    let left: Vec<_> = std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(out.packet)).collect();
    assert_eq!(left.iter().filter(|p| operation(p) == Operation::Hello).count(), 1, "{left:?}");
    assert!(left.len() <= 2);
    nic.check_invariants();
    assert_ne!(nic.star_side(b), Ok(StarSide::Plain));
}

#[test]
fn what_is_forged_to_the_client_changes_nothing() {
    let (mut w, ids) = world(8);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    w.keep_log = true;
    w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
    w.run(Duration::from_ms(1));
    let told = said(&mut w, SERVER);
    let (work, body) = told.into_iter().find(|(p, _)| operation(p) == Operation::WqePacket).unwrap();
    // A receive that was never posted, told by a stranger, for another queue pair, or out of turn.
    let stranger = Packet { flow: adverb_wire::Flow { src: Gid::from(STRANGER), ..work.flow }, ..work };
    let next = work.bth.psn.add(1);
    let cases = [
        (Packet { bth: Bth { psn: next, ..work.bth }, ..stranger }, "drop_source"),
        (Packet { bth: Bth { psn: next.add(1), ..work.bth }, ..work }, "star_wqe_gap"),
        (Packet { bth: Bth { psn: next.add(0x40_0000), ..work.bth }, ..work }, "star_wqe_gap"),
        (work, "star_wqe_duplicate"),
        (
            Packet { bth: Bth { dest_qp: qpn(work.bth.dest_qp.get() ^ 0x5a5), ..work.bth }, ..work },
            "drop_unknown_qp",
        ),
    ];
    for (packet, counter) in &cases {
        let before = w.counter(CLIENT, counter);
        w.give(CLIENT, packet, &body);
        assert_eq!(w.counter(CLIENT, counter), before + 1, "{counter}");
    }
    // Acknowledgements of completions that are not under way, with every count and token.
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..5000 {
        let mut ea = work;
        ea.bth.opcode = star(Operation::CqeEventAcknowledge);
        ea.bth.psn = Psn::new(rng.u32(..));
        ea.irn = StarEth { copy: rng.u8(..), ..StarEth::new(Op::Control, 0, 0, rng.u32(..)) }.into();
        ea.payload_len = 0;
        w.give(CLIENT, &ea, &[]);
    }
    // The one receive is there, and no other.
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
    w.send(CLIENT, ids[CLIENT], wr(2, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
    assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (1, 50));
    w.run(Duration::from_ms(20));
    assert!(w.poll(CLIENT).is_none(), "the second one has no receive");
    w.recv(SERVER, ids[SERVER], 51, &[memory[SERVER].sge(0, 64)]);
    assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (2, 51));
}

#[test]
fn packets_of_plain_rc_open_nothing_of_a_stateless_side() {
    let (mut w, ids) = world(9);
    let memory = w.memory(SERVER, 4096);
    let number = w.nodes[SERVER].nic.qp_number(ids[SERVER]).unwrap();
    let objects = w.nodes[SERVER].nic.qp_at(0);
    let (va, rkey) = memory.at(0);
    // Every operation of RC, at the right number, from the right address, with the PSN that comes next and
    // with others: what a late packet of another life looks like.
    let all: Vec<Opcode> = Opcode::all().filter(|opcode| opcode.is_of(Service::Rc)).collect();
    assert!(all.len() > 20);
    for opcode in all {
        for psn in [0, 1, 0x7f_ffff, 0xff_ffff] {
            let mut packet = Packet::default();
            (packet.flow.src, packet.flow.dst) = (w.nodes[CLIENT].gid, w.nodes[SERVER].gid);
            packet.bth = Bth {
                opcode,
                dest_qp: number,
                psn: Link::default().psn.0.add(psn),
                ack_req: true,
                pkey: 0xffff,
                ..Bth::default()
            };
            packet.reth = Reth { va, rkey, len: 8 };
            (packet.atomic.va, packet.atomic.rkey, packet.atomic.swap_add) = (va, Key(rkey.0), 7);
            packet.payload_len = 8;
            assert_eq!(w.give(SERVER, &packet, &[1; 8]), [], "{opcode:?}");
        }
    }
    assert_eq!(w.nodes[SERVER].nic.star_side(ids[SERVER]), Ok(StarSide::Stateless));
    assert_eq!((w.nodes[SERVER].nic.qp_at(0), memory.read(0, 4096)), (objects, vec![0; 4096]));
    assert!(w.counter(SERVER, "drop_qp_state") > 80);
}
