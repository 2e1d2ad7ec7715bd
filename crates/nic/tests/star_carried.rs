//! StaR with `carried`: addresses of what is posted travel, as in the paper. Who agrees to it, what goes by
//! address and what does not, and what the stateless side checks though nothing says what is posted.

mod world;
use adverb_nic::*;
use adverb_wire::star::{Answer, Op, StarEth, Verdict, Wish, Wqe, names_carried};
use adverb_wire::{Duration, Key, Opcode, Operation, Packet, Service};
use world::*;

/// The client's node, which is stateful, and the server's, which is stateless.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Two that have agreed on their roles; who of them wants addresses to travel, and completions with data.
fn client_and_server(seed: u64, carried: [bool; 2], merge: bool) -> (World, [QpId; 2]) {
    let mut w = World::with_config(2, seed, |config| {
        let node = (config.qpn_base >> 16) as usize - 1;
        let wish = [Wish::Client, Wish::Server][node];
        config.star = Some(StarConfig { wish, carried: carried[node], merge, ..StarConfig::default() });
    });
    w.keep_log = true;
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    (w, [a, b])
}

fn operation(p: &Packet) -> Operation {
    p.bth.opcode.operation()
}

/// Of the RDs and GDs so far: those by address, by place, and by a region's key.
fn names(w: &World) -> [usize; 3] {
    let mut count = [0; 3];
    for (_, p) in &w.log {
        if p.bth.opcode.is_of(Service::Star)
            && matches!(operation(p), Operation::RemoteData | Operation::GetData)
        {
            let eth = StarEth::from(p.irn);
            let posted = eth.has(StarEth::POSTED);
            count[if names_carried(operation(p), eth) { 0 } else { 2 - usize::from(posted) }] += 1;
        }
    }
    count
}

/// Both sides send, and the stateless one writes, reads and adds: bytes and completions are RC's.
fn talk(w: &mut World, ids: &[QpId; 2], len: usize) -> [Memory; 2] {
    let memory = [w.memory(CLIENT, 1 << 16), w.memory(SERVER, 1 << 16)];
    let all = pattern(len as u8, len);
    for from in [CLIENT, SERVER] {
        let to = 1 - from;
        memory[from].write(0, &all);
        w.recv(to, ids[to], 7, &[memory[to].sge(30_000, len)]);
        w.send(from, ids[from], wr(9, SendOp::SendImm(5), &[memory[from].sge(0, len)]));
        assert_eq!((w.completion(from).status, w.completion(to).byte_len), (Status::Success, len as u32));
        assert_eq!(memory[to].read(30_000, len), all);
    }
    let (va, rkey) = memory[CLIENT].at(50_000);
    w.send(SERVER, ids[SERVER], wr(1, SendOp::Write(va, rkey), &[memory[SERVER].sge(0, len)]));
    w.send(SERVER, ids[SERVER], wr(2, SendOp::Read(va, rkey), &[memory[SERVER].sge(45_000, len)]));
    let (addr, rkey) = memory[CLIENT].at(65_000);
    let add = SendOp::FetchAdd { addr, rkey, add: 3 };
    w.send(SERVER, ids[SERVER], wr(3, add, &[memory[SERVER].sge(60_000, 8)]));
    for number in 1..4 {
        let end = w.completion(SERVER);
        assert_eq!((end.wr_id, end.status), (number, Status::Success));
    }
    assert_eq!((memory[CLIENT].read(50_000, len), memory[SERVER].read(45_000, len)), (all.clone(), all));
    assert_eq!((memory[CLIENT].word(65_000), memory[SERVER].word(60_000)), (3, 0));
    memory
}

#[test]
fn what_lies_in_one_piece_goes_by_address_where_both_want_it() {
    for (carried, merge) in
        [([true; 2], false), ([true; 2], true), ([true, false], false), ([false, true], false)]
    {
        let both = carried == [true; 2];
        let (mut w, ids) = client_and_server(1, carried, merge);
        talk(&mut w, &ids, 3000);
        // Three packets each of two SENDs, a WRITE and a READ, and an atomic's result.
        let expected = if both { [4 * 3 + 1, 0, 0] } else { [0, 4 * 3 + 1, 0] };
        assert_eq!(names(&w), expected);
        let counted = ["star_carried", "star_merged"].map(|name| w.counter(SERVER, name));
        assert_eq!(counted, [expected[0] as u64, 0]);
        assert_eq!(w.counter(SERVER, "star_host_bytes") == 0, both, "of its queues nothing is read");
        assert_eq!(w.counter(CLIENT, "retransmitted_packets"), 0);
    }
}

/// A completion that comes along names a place: with addresses none does, though both want it.
#[test]
fn with_addresses_no_completion_comes_with_its_data() {
    for carried in [false, true] {
        let (mut w, ids) = client_and_server(2, [carried; 2], true);
        talk(&mut w, &ids, 100);
        assert_eq!(w.counter(SERVER, "star_merged") == 0, carried);
        assert_eq!(w.counter(SERVER, "star_heard_by_data") == 0, carried);
        assert_eq!(names(&w), if carried { [5, 0, 0] } else { [0, 5, 0] });
    }
}

#[test]
fn what_lies_in_several_pieces_comes_along_or_is_nothing_goes_by_its_place() {
    let (mut w, ids) = client_and_server(3, [true; 2], false);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    memory[SERVER].write(0, &pattern(3, 100));
    let pieces = |side: usize| [memory[side].sge(0, 40), memory[side].sge(40, 60)];
    for from in [CLIENT, SERVER] {
        let to = 1 - from;
        w.recv(to, ids[to], 7, &[memory[to].sge(2000, 10), memory[to].sge(2010, 90)]);
        w.send(from, ids[from], wr(9, SendOp::Send, &pieces(from)));
        assert_eq!((w.completion(from).status, w.completion(to).byte_len), (Status::Success, 100));
    }
    assert_eq!(memory[CLIENT].read(2000, 100), pattern(3, 100));
    assert_eq!(names(&w), [0, 2, 0]);
    // A message of nothing lands in a receive of one piece.
    w.recv(SERVER, ids[SERVER], 8, &[memory[SERVER].sge(0, 64)]);
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[]));
    assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).byte_len), (Status::Success, 0));
    // Inline data leave with their request.
    w.recv(CLIENT, ids[CLIENT], 8, &[memory[CLIENT].sge(0, 64)]);
    let inline = SendWr { data: SendData::Inline(b"inline"), ..wr(2, SendOp::Send, &[]) };
    w.send(SERVER, ids[SERVER], inline);
    assert_eq!((w.completion(SERVER).status, w.completion(CLIENT).byte_len), (Status::Success, 6));
    assert_eq!(names(&w), [1, 2, 0]);
    // What the client writes and reads is of a region, as ever.
    let (va, rkey) = memory[SERVER].at(0);
    for (number, op) in [(3, SendOp::Write(va, rkey)), (4, SendOp::Read(va, rkey))] {
        w.send(CLIENT, ids[CLIENT], wr(number, op, &[memory[CLIENT].sge(0, 8)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
    }
    assert_eq!(names(&w), [1, 2, 2]);
}

fn verdicts(answers: &[Packet]) -> Vec<Verdict> {
    answers.iter().filter_map(|p| Answer::of_aeth(p.aeth)).map(|answer| answer.verdict).collect()
}

/// The client's SEND of eight bytes as it leaves; it does not arrive.
fn captured_send(w: &mut World, ids: &[QpId; 2], memory: &[Memory; 2]) -> Packet {
    w.recv(SERVER, ids[SERVER], 50, &[memory[SERVER].sge(0, 64)]);
    w.run(Duration::from_us(200));
    w.drop_if = Some(Box::new(|from, p| from == CLIENT && operation(p) == Operation::RemoteData));
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 8)]));
    w.transmit();
    w.log.iter().rfind(|(_, p)| operation(p) == Operation::RemoteData).expect("an RD left").1
}

/// A packet with a right ticket that names other memory, for data to be written or asked for.
fn forged(good: &Packet, (va, key): (u64, Key), asks: bool, psn: u32) -> Packet {
    let mut p = *good;
    let (operation, flags) = match asks {
        true => (Operation::GetData, 0),
        false => (Operation::RemoteData, StarEth::RECV_QUEUE),
    };
    p.bth.opcode = Opcode::new(Service::Star, operation);
    p.bth.psn = good.bth.psn.add(psn);
    p.irn = StarEth::new(Op::Send, flags, if asks { 8 } else { 0 }, 0).into();
    (p.reth.va, p.reth.rkey) = (va, key);
    p
}

#[test]
fn an_address_opens_only_what_the_own_domain_may_use_locally() {
    let (mut w, ids) = client_and_server(4, [true; 2], false);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let good = captured_send(&mut w, &ids, &memory);
    let read_only = w.memory_with(SERVER, 64, Access::REMOTE_READ);
    let elsewhere = {
        let memory = w.nodes[SERVER].nic.memory();
        let pd = memory.alloc_pd().unwrap();
        Memory::register(memory, pd, 64, Access::LOCAL_WRITE)
    };
    let gone = w.memory(SERVER, 64);
    w.nodes[SERVER].nic.memory().dereg_mr(gone.mr.id).unwrap();
    let (va, key) = memory[SERVER].at(0);
    let before = [memory[SERVER].read(0, 4096), elsewhere.read(0, 64), read_only.read(0, 64)];
    let mut cases = Vec::new();
    for asks in [false, true] {
        cases.extend([
            ("a key that nobody has", (va, Key(key.0 ^ 0x5a00)), asks),
            ("a key that was given back", gone.at(0), asks),
            ("another domain", elsewhere.at(0), asks),
            ("before the region", (va - 1, key), asks),
            ("beyond its end", (va + 4089, key), asks),
            ("round the end of all addresses", (u64::MAX - 3, key), asks),
        ]);
    }
    cases.push(("a region that may not be written to", read_only.at(0), false));
    let count = cases.len() as u64;
    for (n, (what, target, asks)) in cases.into_iter().enumerate() {
        let bytes: &[u8] = if asks { &[] } else { &[0x77; 8] };
        let answers = w.give(SERVER, &forged(&good, target, asks, n as u32 + 1), bytes);
        assert_eq!(verdicts(&answers), [Verdict::Access], "{what}, asked for: {asks}");
    }
    assert_eq!(w.counter(SERVER, "star_nak_region"), count);
    assert_eq!(w.counter(SERVER, "star_carried"), 0);
    assert_eq!([memory[SERVER].read(0, 4096), elsewhere.read(0, 64), read_only.read(0, 64)], before);
    // The control: what may be read only is read, and what is the domain's own is both.
    for (n, (target, asks)) in
        [(read_only.at(0), true), (memory[SERVER].at(8), true), (memory[SERVER].at(8), false)]
            .into_iter()
            .enumerate()
    {
        let bytes: &[u8] = if asks { &[] } else { &[0x77; 8] };
        let answers = w.give(SERVER, &forged(&good, target, asks, 100 + n as u32), bytes);
        assert_eq!(verdicts(&answers), [Verdict::Done]);
    }
    assert_eq!(memory[SERVER].read(8, 9), [&[0x77; 8][..], &[0]].concat());
    assert_eq!(w.counter(SERVER, "star_carried"), 3);
    assert!(w.poll(SERVER).is_none(), "no completion without a CQEP");
}

/// Whose ticket does not say that addresses travel opens nothing by them, whatever the packet says.
#[test]
fn no_address_is_followed_where_that_was_not_agreed_on() {
    for carried in [[false; 2], [true, false], [false, true]] {
        let (mut w, ids) = client_and_server(5, carried, false);
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        let good = captured_send(&mut w, &ids, &memory);
        let before = memory[SERVER].read(0, 4096);
        for (n, asks) in [false, true].into_iter().enumerate() {
            let bytes: &[u8] = if asks { &[] } else { &[0x77; 8] };
            let packet = forged(&good, memory[SERVER].at(0), asks, n as u32 + 1);
            assert_eq!(verdicts(&w.give(SERVER, &packet, bytes)), [Verdict::Invalid]);
            // The bit that says so is under the seal.
            let mut word = packet;
            word.ticket.word ^= 1 << 30;
            assert_eq!(w.give(SERVER, &word, bytes), []);
        }
        // A READ's buffer and an atomic's.
        for (n, op) in [Op::Read, Op::CompareSwap, Op::FetchAdd].into_iter().enumerate() {
            let mut packet = forged(&good, memory[SERVER].at(0), false, n as u32 + 10);
            packet.irn = StarEth::new(op, 0, 0, 0).into();
            assert_eq!(verdicts(&w.give(SERVER, &packet, &[1; 8])), [Verdict::Invalid], "{op:?}");
        }
        let counted = ["star_nak_invalid", "star_drop_ticket", "star_carried"];
        assert_eq!(counted.map(|name| w.counter(SERVER, name)), [5, 2, 0]);
        assert_eq!(memory[SERVER].read(0, 4096), before);
    }
}

/// What is done with is no longer protected by what is posted: copies end at the history until their
/// deadline, and at the deadline after that. A deadline of the attacker's own is what is given up.
#[test]
fn a_copy_that_comes_late_ends_at_the_history_and_then_at_its_deadline() {
    let (mut w, ids) = client_and_server(6, [true; 2], false);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let good = captured_send(&mut w, &ids, &memory);
    assert_eq!(verdicts(&w.give(SERVER, &good, &[5; 8])), [Verdict::Done]);
    w.drop_if = None;
    assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).wr_id), (Status::Success, 50));
    memory[SERVER].write(0, &[0xee; 64]);
    let mut counts = [0; 2];
    for _ in 0..60 {
        match verdicts(&w.give(SERVER, &good, &[5; 8]))[..] {
            [Verdict::Done] => counts[0] += 1,
            [Verdict::Expired] => counts[1] += 1,
            ref other => panic!("{other:?}"),
        }
        assert_eq!(memory[SERVER].read(0, 64), [0xee; 64], "a late copy landed");
        w.run(Duration::from_ms(1));
    }
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}: both had their turn");
    assert_eq!(w.counter(SERVER, "star_drop_expired"), counts[1]);
    // With a number and a deadline of its own it lands: docs/design/star.md says so.
    let mut own = good;
    (own.bth.psn, own.reth.len) = (good.bth.psn.add(7), good.reth.len.wrapping_add(60_000));
    assert_eq!(verdicts(&w.give(SERVER, &own, &[5; 8])), [Verdict::Done]);
    assert_eq!(memory[SERVER].read(0, 9), [&[5; 8][..], &[0xee]].concat());
    // Not any more when the number of the queue pair has died.
    w.nodes[SERVER].nic.destroy_qp(ids[SERVER]).unwrap();
    own.bth.psn = good.bth.psn.add(8);
    assert_eq!(w.give(SERVER, &own, &[6; 8]), []);
    assert_eq!(w.counter(SERVER, "star_drop_not_live"), 1);
}

/// Entries with addresses that make no sense, or were not agreed on, are not taken in by the client.
#[test]
fn entries_that_say_nonsense_are_not_taken() {
    for carried in [true, false] {
        let (mut w, ids) = client_and_server(7, [carried; 2], false);
        let memory = w.memory(SERVER, 4096);
        w.drop_if = Some(Box::new(|from, p| from == SERVER && operation(p) == Operation::WqePacket));
        w.recv(SERVER, ids[SERVER], 50, &[memory.sge(0, 64)]);
        w.transmit();
        let at = w.log.iter().rposition(|(_, p)| operation(p) == Operation::WqePacket).expect("a WQEP");
        let (told, body) = (w.log[at].1, w.log_payloads[at].clone());
        let entry = Wqe::read(body[..32].try_into().unwrap()).unwrap();
        assert_eq!((entry.flags & Wqe::CARRIED != 0, body.len()), (carried, if carried { 48 } else { 32 }));
        let by_address = Wqe { flags: Wqe::CARRIED, ..entry }.bytes();
        let inline = Wqe { op: Op::Send, flags: Wqe::CARRIED | Wqe::INLINE, ..entry }.bytes();
        let sge = |len: u32| adverb_wire::star::Sge { len, lkey: 1, addr: 2 }.bytes();
        let mut bad: Vec<Vec<u8>> = vec![
            by_address.to_vec(),
            [&by_address[..], &sge(64)[..15]].concat(),
            [&by_address[..], &sge(65)].concat(),
            [&by_address[..], &sge(0)].concat(),
        ];
        if !carried {
            bad.push([&by_address[..], &sge(64)].concat());
        }
        let count = bad.len() as u64;
        for body in bad {
            let mut packet = told;
            packet.payload_len = body.len() as u32;
            w.give(CLIENT, &packet, &body);
        }
        assert_eq!(w.counter(CLIENT, "star_wqe_gap"), count);
        let mut packet = told;
        let both = [&inline[..], &sge(64), &[0; 64]].concat();
        packet.irn = StarEth::new(Op::Send, 0, 1, 0).into();
        packet.payload_len = both.len() as u32;
        w.give(CLIENT, &packet, &both);
        assert_eq!(w.counter(CLIENT, "star_wqe_gap"), count + 1);
        // The right one is.
        w.give(CLIENT, &told, &body);
        assert_eq!(w.counter(CLIENT, "star_wqe_gap"), count + 1);
        let other = w.memory(CLIENT, 64);
        w.drop_if = None;
        w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[other.sge(0, 8)]));
        assert_eq!((w.completion(CLIENT).status, w.completion(SERVER).wr_id), (Status::Success, 50));
    }
}

/// Own buffers that are not there any more when their turn comes: both sides fail as with places.
#[test]
fn a_buffer_that_was_given_back_fails_both_sides_as_with_places() {
    for from in [CLIENT, SERVER] {
        let mut outcomes = Vec::new();
        for carried in [false, true] {
            let (mut w, ids) = client_and_server(8, [carried; 2], false);
            let to = 1 - from;
            let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
            let gone = w.memory(SERVER, 64);
            let here = memory[CLIENT].sge(0, 64);
            let (receive, send) =
                if from == CLIENT { (gone.sge(0, 64), here) } else { (here, gone.sge(0, 64)) };
            w.recv(to, ids[to], 50, &[receive]);
            w.run(Duration::from_ms(1));
            w.nodes[SERVER].nic.memory().dereg_mr(gone.mr.id).unwrap();
            w.send(from, ids[from], wr(1, SendOp::Send, &[send]));
            w.run(Duration::from_ms(500));
            let ends = |w: &mut World, node: usize| -> Vec<_> {
                std::iter::from_fn(|| w.poll(node)).map(|c| (c.wr_id, c.status)).collect()
            };
            outcomes.push([ends(&mut w, CLIENT), ends(&mut w, SERVER)]);
        }
        assert_eq!(outcomes[0], outcomes[1], "from {from}");
        assert!(!outcomes[0][from].is_empty(), "{outcomes:?}");
    }
}
