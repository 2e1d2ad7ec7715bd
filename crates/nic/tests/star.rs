//! StaR: connections of which one NIC keeps nothing.

mod world;
use adverb_nic::*;
use adverb_wire::star::{Answer, Op, StarEth, Verdict, Wish};
use adverb_wire::{Duration, Key, Operation, Packet, Psn, Service};
use world::*;

/// The client's node, and the server's.
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn offering(seed: u64, wishes: [Option<Wish>; 2]) -> World {
    World::with_config(2, seed, move |config| {
        let wish = wishes[(config.qpn_base >> 16) as usize - 1];
        config.star = wish.map(|wish| StarConfig { wish, ..StarConfig::default() });
    })
}

fn client_and_server(seed: u64) -> World {
    offering(seed, [Some(Wish::Client), Some(Wish::Server)])
}

/// A pair of queue pairs that have agreed.
fn agreed(w: &mut World) -> (QpId, QpId) {
    agreed_with(w, &Link { timeout: 14, ..Link::default() })
}

fn agreed_with(w: &mut World, link: &Link) -> (QpId, QpId) {
    let (a, b) = w.pair(QpType::Rc, CAPS, link);
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    (a, b)
}

fn is_star(p: &Packet) -> bool {
    p.bth.opcode.is_of(Service::Star)
}

fn operation_is(p: &Packet, operation: Operation) -> bool {
    is_star(p) && p.bth.opcode.operation() == operation
}

fn done(w: &mut World, node: usize) -> Vec<(u64, Status, u32)> {
    std::iter::from_fn(|| w.poll(node)).map(|c| (c.wr_id, c.status, c.byte_len)).collect()
}

#[test]
fn writes_and_reads_of_every_length_arrive_whole() {
    let mut w = client_and_server(1);
    let (a, _) = agreed(&mut w);
    let (ma, mb) = (w.memory(CLIENT, 1 << 16), w.memory(SERVER, 1 << 16));
    w.keep_log = true;
    for len in [0, 1, 8, 1000, 1024, 1025, 10_000, 60_000] {
        let bytes = pattern(len as u8, len);
        ma.write(0, &bytes);
        let (va, rkey) = mb.at(5);
        w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, len)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success);
        assert_eq!(mb.read(5, len), bytes, "{len} bytes");
        ma.write(0, &vec![0; len]);
        let halves = [ma.sge(0, len / 3), ma.sge(len / 3, len - len / 3)];
        w.send(CLIENT, a, wr(2, SendOp::Read(va, rkey), &halves));
        let read = w.completion(CLIENT);
        assert_eq!((read.status, read.byte_len), (Status::Success, len as u32));
        assert_eq!(ma.read(0, len), bytes, "{len} bytes");
    }
    assert!(w.log.iter().all(|(_, p)| is_star(p)));
    assert_eq!(w.counter(SERVER, "star_executed"), 2 * (1 + 1 + 1 + 1 + 1 + 2 + 10 + 59));
    assert_eq!(w.counter(CLIENT, "retransmitted_packets"), 0);
}

/// A small NIC's worth of trouble: everything is lost, doubled, reordered or late now and then.
const TROUBLE: Faults =
    Faults { loss: 0.03, duplicate: 0.1, reorder: 0.2, corrupt: 0.0, late: 0.05, mark: 0.0 };

const REGION: usize = 6000;

/// WRITEs that overlap and READs of what they leave, in random order, under trouble. Each READ must return
/// what the WRITEs before it left, and in the end memory holds what the last ones left. Then the server's
/// program uses the memory for something else, and nothing that is still on its way may touch it.
fn chaos(seed: u64, lifetime: Duration, faults: Faults) -> World {
    let mut w = World::with_config(2, seed, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        let burst = seed & 2 != 0;
        config.star = Some(StarConfig { wish, lifetime, burst, ..StarConfig::default() });
    });
    // Long timeouts: nobody gives up.
    let (a, _) = agreed_with(&mut w, &Link { timeout: 18, mtu: Mtu::M256, depth: 16, ..Link::default() });
    let (ma, mb) = (w.memory(CLIENT, 1 << 20), w.memory(SERVER, REGION));
    w.faults = faults;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut shadow = vec![0; REGION];
    let mut expected = std::collections::BTreeMap::new();
    let (mut posted, mut finished, mut place, mut after_read) = (0u64, 0u64, 0, false);
    let until = w.now + Duration::from_ms(20_000);
    while finished < 300 {
        let room = posted - finished < 24 && posted < 300;
        if room && (posted == finished || rng.bool()) {
            let len = if rng.u8(..) < 200 { rng.usize(1..700) } else { rng.usize(1..3000) };
            let at = rng.usize(..REGION - len);
            let (va, rkey) = mb.at(at);
            place = (place + 4096) % (1 << 20);
            if rng.u8(..) < 170 {
                let bytes = pattern(rng.u8(..), len);
                ma.write(place, &bytes);
                shadow[at..at + len].copy_from_slice(&bytes);
                let sges = [ma.sge(place, len)];
                let mut request = wr(posted, SendOp::Write(va, rkey), &sges);
                // What a READ returns is settled before a later WRITE (IBTA 10.8.3.3).
                request.flags.fence = after_read;
                after_read = false;
                w.send(CLIENT, a, request);
            } else {
                expected.insert(posted, (place, shadow[at..at + len].to_vec()));
                after_read = true;
                w.send(CLIENT, a, wr(posted, SendOp::Read(va, rkey), &[ma.sge(place, len)]));
            }
            posted += 1;
        }
        assert!(w.advance(until), "seed {seed}: nothing happens with {finished} of {posted} done");
        while let Some(c) = w.poll(CLIENT) {
            assert_eq!((c.wr_id, c.status), (finished, Status::Success), "seed {seed}");
            if let Some((place, bytes)) = expected.remove(&c.wr_id) {
                assert_eq!(ma.read(place, bytes.len()), bytes, "seed {seed}, READ {}", c.wr_id);
            }
            finished += 1;
        }
    }
    assert_eq!(mb.read(0, REGION), shadow, "seed {seed}: memory when all is done");
    let marker = pattern(77, REGION);
    mb.write(0, &marker);
    w.run(Duration::from_ms(100));
    assert_eq!(mb.read(0, REGION), marker, "seed {seed}: a copy landed after the end");
    w
}

#[test]
fn order_and_bytes_survive_loss_doubles_and_late_copies() {
    let mut counts =
        [("star_duplicate", 0), ("star_drop_expired", 0), ("star_out_of_order", 0), ("star_bursts", 0)];
    for seed in 0..60 {
        // Shorter than copies may be late, and longer.
        let lifetime = Duration::from_us(if seed % 2 == 0 { 300 } else { 20_000 });
        let w = chaos(seed, lifetime, TROUBLE);
        for (name, count) in &mut counts {
            *count += w.counter(CLIENT, name) + w.counter(SERVER, name);
        }
    }
    assert!(counts.iter().all(|(_, count)| *count > 50), "{counts:?}: every rule was needed");
}

#[test]
fn a_quiet_network_needs_no_repair() {
    let w = chaos(5, Duration::from_ms(20), Faults::default());
    for name in ["star_duplicate", "star_drop_expired", "star_out_of_order", "retransmitted_packets"] {
        assert_eq!(w.counter(CLIENT, name) + w.counter(SERVER, name), 0, "{name}");
    }
}

/// Drops the first so many packets of a kind.
fn lose(w: &mut World, operation: Operation, count: u32) {
    let mut left = count;
    w.drop_if = Some(Box::new(move |_, p| {
        let hit = left > 0 && operation_is(p, operation);
        left -= u32::from(hit);
        hit
    }));
}

#[test]
fn each_kind_of_packet_may_be_lost() {
    use Operation::*;
    for operation in [RemoteData, RemoteDataAnswer, GetData, GetDataAnswer] {
        for count in 1..4 {
            let mut w = client_and_server(u64::from(count));
            let (a, _) = agreed(&mut w);
            let (ma, mb) = (w.memory(CLIENT, 4096), w.memory(SERVER, 4096));
            lose(&mut w, operation, count);
            let bytes = pattern(3, 2500);
            ma.write(0, &bytes);
            let (va, rkey) = mb.at(0);
            w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 2500)]));
            w.run(Duration::from_ms(200));
            ma.write(0, &[0; 2500]);
            w.send(CLIENT, a, wr(2, SendOp::Read(va, rkey), &[ma.sge(0, 2500)]));
            w.run(Duration::from_ms(200));
            assert_eq!(done(&mut w, CLIENT), [(1, Status::Success, 0), (2, Status::Success, 2500)]);
            assert_eq!((ma.read(0, 2500), mb.read(0, 2500)), (bytes.clone(), bytes));
            assert_eq!(w.lost, u64::from(count));
        }
    }
}

/// A WRITE is lost, and what overlaps it arrives: when all is done, the later one's bytes stand, and a READ
/// behind both has them.
#[test]
fn what_overlaps_a_lost_write_has_the_last_word() {
    for lost in 0..2 {
        let mut w = client_and_server(4);
        let (a, _) = agreed(&mut w);
        let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
        let mut seen = 0;
        w.drop_if = Some(Box::new(move |_, p| {
            let is = operation_is(p, Operation::RemoteData);
            seen += u32::from(is);
            is && seen == lost + 1
        }));
        ma.write(0, b"AAAAAAAABBBBBBBB");
        let (va, rkey) = mb.at(0);
        w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
        w.send(CLIENT, a, wr(2, SendOp::Write(va + 4, rkey), &[ma.sge(8, 8)]));
        w.send(CLIENT, a, wr(3, SendOp::Read(va, rkey), &[ma.sge(32, 12)]));
        w.run(Duration::from_ms(200));
        let ends: Vec<_> = done(&mut w, CLIENT).into_iter().map(|(id, status, _)| (id, status)).collect();
        assert_eq!(ends, [1, 2, 3].map(|id| (id, Status::Success)), "{lost}");
        assert_eq!((mb.read(0, 12), ma.read(32, 12)), (b"AAAABBBBBBBB".to_vec(), b"AAAABBBBBBBB".to_vec()));
        assert_eq!((w.lost, w.counter(CLIENT, "star_out_of_order") > 0), (1, true), "{lost}");
    }
}

#[test]
fn hellos_and_records_may_be_lost() {
    use Operation::*;
    for operation in [Hello, WqePacket, WqeEventAcknowledge] {
        for nth in 0..4 {
            let mut w = client_and_server(nth);
            let mut seen = 0;
            w.drop_if = Some(Box::new(move |_, p| {
                let hit = operation_is(p, operation) && seen == nth;
                seen += u64::from(operation_is(p, operation));
                hit
            }));
            let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
            let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
            ma.write(0, b"eight!!!");
            let (va, rkey) = mb.at(0);
            w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
            assert_eq!(w.completion(CLIENT).status, Status::Success, "{operation:?} {nth}");
            assert_eq!(mb.read(0, 8), b"eight!!!");
            w.run(Duration::from_ms(2000));
            assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful), "{operation:?} {nth}");
            assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless), "{operation:?} {nth}");
        }
    }
}

#[test]
fn who_does_not_know_star_gets_plain_rc() {
    for (wishes, asked) in [
        ([Some(Wish::Client), None], CLIENT),
        ([None, Some(Wish::Server)], SERVER),
        ([Some(Wish::Client), Some(Wish::Client)], CLIENT),
        ([Some(Wish::Server), Some(Wish::Server)], SERVER),
    ] {
        for first in [CLIENT, SERVER] {
            let mut w = offering(3, wishes);
            w.keep_log = true;
            let ids = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
            let ids = [ids.0, ids.1];
            let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
            let both = wishes.iter().all(Option::is_some);
            // Two who both insist are plain RC once they have heard of each other.
            w.run(Duration::from_ms(if both { 1 } else { 0 }));
            let other = 1 - first;
            memory[first].write(0, b"plain!!!");
            w.recv(other, ids[other], 7, &[memory[other].sge(0, 8)]);
            w.send(first, ids[first], wr(1, SendOp::Send, &[memory[first].sge(0, 8)]));
            w.run(Duration::from_ms(100));
            assert_eq!(done(&mut w, first), [(1, Status::Success, 0)], "{wishes:?}");
            assert_eq!(done(&mut w, other), [(7, Status::Success, 8)], "{wishes:?}");
            assert_eq!(memory[other].read(0, 8), b"plain!!!");
            assert_eq!(w.nodes[asked].nic.star_side(ids[asked]), Ok(StarSide::Plain));
            assert!(w.log.iter().all(|(_, p)| !is_star(p) || operation_is(p, Operation::Hello)));
            let conflict = if both { "star_role_conflicts" } else { "star_fell_back" };
            assert_eq!(w.counter(asked, conflict), 1, "{wishes:?}");
        }
    }
}

/// How long a WRITE takes on a pair that is new.
fn first_write(w: &mut World, from: &Memory, to: &Memory) -> Duration {
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    let (begun, (va, rkey)) = (w.now, to.at(0));
    w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[from.sge(0, 8)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    w.now.since(begun)
}

#[test]
fn only_one_request_in_a_while_waits_for_who_does_not_know_star() {
    let mut w = offering(14, [Some(Wish::Client), None]);
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    for _ in 0..2 {
        let waits: Vec<_> = (0..4).map(|_| first_write(&mut w, &ma, &mb)).collect();
        assert!(waits[0] >= Duration::from_ms(10), "{waits:?}");
        assert!(waits[1..].iter().all(|wait| *wait < Duration::from_ms(1)), "{waits:?}");
        // The process there may be another one by then.
        w.run(Duration::from_ms(1000));
    }
}

#[test]
fn a_hello_from_who_was_silent_counts_at_once() {
    let mut w = client_and_server(15);
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    w.drop_if = Some(Box::new(|_, p| operation_is(p, Operation::Hello)));
    first_write(&mut w, &ma, &mb);
    w.drop_if = None;
    // The server's hello comes before anything is posted here.
    agreed(&mut w);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    let (va, rkey) = mb.at(0);
    w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Stateful));
}

#[test]
fn a_request_of_plain_rc_turns_a_silent_endpoint_into_a_queue_pair_if_it_fits() {
    let mut w = offering(4, [None, Some(Wish::Server)]);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    let (va, rkey) = mb.at(0);
    w.keep_log = true;
    w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.transmit();
    let good = w.log.iter().find(|(from, p)| *from == CLIENT && !is_star(p)).unwrap().1;
    let mut strange = [good; 3];
    strange[0].flow.src = adverb_wire::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9));
    strange[1].bth.psn = good.bth.psn.add(1);
    strange[2].bth.pkey = 0x1234;
    for packet in strange {
        let nic = &mut w.nodes[SERVER].nic;
        nic.on_frame(w.now, &packet, &Payload::from_slice(&[9; 8]));
        assert_eq!(nic.star_side(b), Ok(StarSide::Undecided), "a stranger's packet changes nothing");
    }
    assert_eq!(w.counter(SERVER, "drop_qp_state"), 3);
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Plain));
}

#[test]
fn forged_hellos_change_nothing() {
    let mut w = client_and_server(6);
    let (a, b) = agreed(&mut w);
    let numbers = [w.nodes[CLIENT].nic.qp_number(a).unwrap(), w.nodes[SERVER].nic.qp_number(b).unwrap()];
    // Towards an agreed pair, with every first byte of a PSN; and towards one that still asks.
    w.drop_if = Some(Box::new(|_, p| operation_is(p, Operation::Hello)));
    let (c, d) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    let asking = [w.nodes[CLIENT].nic.qp_number(c).unwrap(), w.nodes[SERVER].nic.qp_number(d).unwrap()];
    w.transmit();
    let mut rng = fastrand::Rng::with_seed(1);
    for to in [CLIENT, SERVER] {
        for dest_qp in [numbers[to], asking[to]] {
            for _ in 0..2000 {
                let mut packet = Packet::default();
                packet.flow.src = w.nodes[1 - to].gid;
                packet.flow.dst = w.nodes[to].gid;
                packet.bth.opcode = adverb_wire::Opcode::new(Service::Star, Operation::Hello);
                packet.bth.psn = Psn::new(rng.u32(..));
                packet.bth.pkey = 0xffff;
                packet.bth.dest_qp = dest_qp;
                packet.payload_len = 24;
                let mut hello = [0; 24];
                (hello[0], hello[1]) = (1, if to == CLIENT { 1 } else { 2 });
                w.nodes[to].nic.on_frame(w.now, &packet, &Payload::from_slice(&hello));
            }
        }
    }
    assert_eq!(w.nodes[CLIENT].nic.star_side(c), Ok(StarSide::Undecided));
    assert_eq!(w.nodes[SERVER].nic.star_side(d), Ok(StarSide::Undecided));
    assert_eq!(w.counter(SERVER, "drop_hello"), 4000);
    assert!(
        !w.nodes[CLIENT].nic.has_work() || !w.nodes[CLIENT].nic.next_frame(w.now, &mut TxFrame::default())
    );
}

/// Frames that the client sends, as they leave; none of them arrives.
fn captured(w: &mut World, a: QpId, op: SendOp, sge: Sge) -> Packet {
    w.keep_log = true;
    w.log.clear();
    w.drop_if = Some(Box::new(|from, _| from == CLIENT));
    w.send(CLIENT, a, wr(99, op, &[sge]));
    w.transmit();
    w.drop_if = None;
    w.log.iter().find(|(from, p)| *from == CLIENT && is_star(p)).expect("a request left").1
}

/// Gives a packet to the server's NIC; what it answers.
fn serve(w: &mut World, packet: &Packet, payload: &[u8]) -> Vec<Packet> {
    let nic = &mut w.nodes[SERVER].nic;
    nic.on_frame(w.now, packet, &Payload::from_slice(payload));
    let mut out = TxFrame::default();
    std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(out.packet)).collect()
}

fn verdict(packet: &Packet) -> Verdict {
    Answer::of_aeth(packet.aeth).unwrap().verdict
}

#[test]
fn a_ticket_opens_nothing_but_what_it_is_for() {
    let mut w = client_and_server(7);
    let (a, b) = agreed(&mut w);
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    let guarded = w.memory_with(SERVER, 64, Access::LOCAL_WRITE);
    guarded.write(0, &pattern(9, 64));
    let (va, rkey) = mb.at(0);
    let good = captured(&mut w, a, SendOp::Write(va, rkey), ma.sge(0, 8));
    let number = w.nodes[SERVER].nic.qp_number(b).unwrap();
    let changed = |change: &dyn Fn(&mut Packet)| {
        let mut packet = good;
        change(&mut packet);
        packet
    };
    // Every bit of the ticket, another's address, another queue pair's number: no answer, so nobody is
    // made to hear one.
    let mut forged: Vec<Packet> = (0..64)
        .flat_map(|bit| [changed(&|p| p.ticket.word ^= 1 << bit), changed(&|p| p.ticket.seal ^= 1 << bit)])
        .collect();
    forged.push(changed(&|p| p.flow.src = adverb_wire::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9))));
    forged.push(changed(&|p| p.bth.dest_qp = qpn(number.get() ^ 1)));
    for packet in &forged {
        assert_eq!(serve(&mut w, packet, &[1; 8]), []);
    }
    assert_eq!(w.counter(SERVER, "star_drop_ticket"), forged.len() as u64);
    assert_eq!(mb.read(0, 8), [0; 8]);

    // What the ticket is right for, but the rights are not.
    let (outside, other_key) = guarded.at(0);
    let refused = [
        (changed(&|p| p.reth.rkey = other_key), Verdict::Access),
        (changed(&|p| (p.reth.va, p.reth.rkey) = (outside, other_key)), Verdict::Access),
        (changed(&|p| p.reth.va += 60), Verdict::Access),
        (changed(&|p| p.reth.va = u64::MAX - 3), Verdict::Access),
        (changed(&|p| p.reth.rkey = Key(0x7777)), Verdict::Access),
        (changed(&|p| p.irn = StarEth::new(Op::Read, 0, 0, 0).into()), Verdict::Invalid),
        (changed(&|p| p.irn = StarEth::new(Op::CompareSwap, 0, 0, 0).into()), Verdict::Invalid),
        (changed(&|p| p.irn = StarEth::new(Op::Write, StarEth::POSTED, 0, 0).into()), Verdict::NotPosted),
        (changed(&|p| p.reth.len = p.reth.len.wrapping_add(1 << 30)), Verdict::Expired),
        (changed(&|p| p.reth.len = p.reth.len.wrapping_sub(40_000)), Verdict::Expired),
    ];
    for (packet, why) in &refused {
        let answers = serve(&mut w, packet, &[1; 8]);
        assert_eq!(answers.iter().map(verdict).collect::<Vec<_>>(), [*why], "{packet:?}");
        assert!(answers.iter().all(|p| p.flow.dst == w.nodes[CLIENT].gid && p.payload_len == 0));
    }
    for (name, count) in [
        ("star_nak_region", 5),
        ("star_nak_invalid", 2),
        ("star_nak_not_posted", 1),
        ("star_drop_expired", 2),
        ("star_executed", 0),
    ] {
        assert_eq!(w.counter(SERVER, name), count, "{name}");
    }
    assert_eq!((mb.read(0, 8), guarded.read(0, 64)), (vec![0; 8], pattern(9, 64)));
    // A packet that is longer than the path allows.
    assert_eq!(serve(&mut w, &good, &[1; 1025]).iter().map(verdict).collect::<Vec<_>>(), [Verdict::Invalid]);
    // And the good one.
    assert_eq!(serve(&mut w, &good, &[1; 8]).iter().map(verdict).collect::<Vec<_>>(), [Verdict::Done]);
    assert_eq!(mb.read(0, 8), [1; 8]);
    // Again, with other bytes: acknowledged as the first one, not executed.
    assert_eq!(serve(&mut w, &good, &[2; 8]).iter().map(verdict).collect::<Vec<_>>(), [Verdict::Done]);
    assert_eq!((mb.read(0, 8), w.counter(SERVER, "star_duplicate")), (vec![1; 8], 1));
}

#[test]
fn flipped_bits_reach_no_memory_that_nobody_gave_away() {
    let mut w = client_and_server(8);
    let (a, _) = agreed(&mut w);
    let (ma, mb) = (w.memory(CLIENT, 4096), w.memory(SERVER, 4096));
    let guarded = w.memory_with(SERVER, 4096, Access::LOCAL_WRITE);
    guarded.write(0, &pattern(9, 4096));
    let (va, rkey) = mb.at(0);
    let requests = [
        captured(&mut w, a, SendOp::Write(va, rkey), ma.sge(0, 100)),
        captured(&mut w, a, SendOp::Read(va, rkey), ma.sge(0, 100)),
    ];
    let mut rng = fastrand::Rng::with_seed(8);
    for _ in 0..20_000 {
        let packet = requests[rng.usize(..2)];
        let payload = vec![rng.u8(..); packet.payload_len as usize];
        let mut bytes = vec![0; packet.frame_len()];
        packet.emit_frame(&adverb_wire::packet::WireExtra::default(), &payload, &mut bytes);
        // Behind the addresses; the ticket stays, or nothing would get past it.
        let place = *rng.choice(&[28, 33, 37, 39, 41, 45, 50, 54, 58, 60, 61, 63, 65]).unwrap();
        bytes[place] ^= 1 << rng.u32(..8);
        let Ok(parsed) = Packet::parse_ip(&bytes) else { continue };
        serve(&mut w, &parsed.packet, &bytes[parsed.payload]);
    }
    w.nodes[SERVER].nic.check_invariants();
    assert_eq!(guarded.read(0, 4096), pattern(9, 4096));
    for name in
        ["star_executed", "star_duplicate", "star_nak_region", "star_nak_invalid", "star_drop_expired"]
    {
        assert!(w.counter(SERVER, name) > 0, "{name}");
    }
}

#[test]
fn after_destroy_reset_or_error_nothing_lands() {
    for way in 0..3 {
        let mut w = client_and_server(9);
        let (a, b) = agreed(&mut w);
        let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
        let (va, rkey) = mb.at(0);
        let write = captured(&mut w, a, SendOp::Write(va, rkey), ma.sge(0, 8));
        let read = captured(&mut w, a, SendOp::Read(va, rkey), ma.sge(0, 8));
        // An answer that has not left goes with the queue pair.
        let nic = &mut w.nodes[SERVER].nic;
        nic.on_frame(w.now, &read, &Payload::from_slice(&[]));
        let (mut attr, _) = nic.query_qp(b).unwrap();
        match way {
            0 => nic.destroy_qp(b).unwrap(),
            _ => {
                attr.state = if way == 1 { QpState::Reset } else { QpState::Err };
                nic.modify_qp(w.now, b, &attr, QpAttrMask::STATE).unwrap();
            }
        }
        assert_eq!(serve(&mut w, &write, &[1; 8]), [], "way {way}");
        assert_eq!((mb.read(0, 8), w.counter(SERVER, "star_drop_not_live")), (vec![0; 8], 1));
        if way == 1 {
            // The number's next life has another ticket.
            let link = Link { timeout: 14, ..Link::default() };
            w.connect((SERVER, b), (CLIENT, a), &link);
            assert!(serve(&mut w, &write, &[1; 8]).iter().all(|p| operation_is(p, Operation::Hello)));
            assert_eq!(w.counter(SERVER, "star_drop_not_live"), 2);
        }
        // The client's requests end by its retry count.
        let failed = w.completion(CLIENT);
        assert_eq!(failed.status, Status::TransportRetryExceeded, "way {way}");
    }
}

/// A connection that ends by RESET says nothing of the next one: each life has roles of its own.
#[test]
fn each_life_of_a_queue_pair_finds_its_roles_anew() {
    let mut w = client_and_server(9);
    let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
    let (va, rkey) = memory[SERVER].at(0);
    let ids = [w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS)];
    for life in 0..8u32 {
        // In some the hellos are lost, and plain RC it is.
        let silent = life % 3 == 1;
        w.drop_if = Some(Box::new(move |_, p| silent && operation_is(p, Operation::Hello)));
        let psn = (Psn::new(1000 * life), Psn::new(77 + life));
        let link = Link { timeout: 14, psn, ..Link::default() };
        // Either side may be first, and wait for the other in vain for a while.
        for node in if life % 2 == 0 { [CLIENT, SERVER] } else { [SERVER, CLIENT] } {
            w.connect((node, ids[node]), (1 - node, ids[1 - node]), &link);
            w.run(Duration::from_ms(u64::from(life) * 10));
        }
        memory[CLIENT].write(0, &[life as u8 + 1; 8]);
        w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 8)]));
        assert_eq!(w.completion(CLIENT).status, Status::Success, "life {life}");
        assert_eq!(memory[SERVER].read(0, 8), [life as u8 + 1; 8]);
        w.recv(CLIENT, ids[CLIENT], 5, &[memory[CLIENT].sge(0, 64)]);
        w.send(SERVER, ids[SERVER], wr(2, SendOp::Send, &[memory[SERVER].sge(0, 8)]));
        assert_eq!((w.completion(SERVER).wr_id, w.completion(CLIENT).wr_id), (2, 5), "life {life}");
        let sides = [CLIENT, SERVER].map(|node| w.nodes[node].nic.star_side(ids[node]).unwrap());
        let expected = match silent {
            true => [StarSide::Plain; 2],
            false => [StarSide::Stateful, StarSide::Stateless],
        };
        assert_eq!(sides, expected, "life {life}");
        // What is posted and not done goes with the life.
        w.recv(SERVER, ids[SERVER], 6, &[memory[SERVER].sge(0, 64)]);
        for node in [SERVER, CLIENT] {
            let nic = &mut w.nodes[node].nic;
            let attr = QpAttr { state: QpState::Reset, ..nic.query_qp(ids[node]).unwrap().0 };
            nic.modify_qp(w.now, ids[node], &attr, QpAttrMask::STATE).unwrap();
            assert_eq!(nic.star_side(ids[node]), Ok(StarSide::Undecided));
            nic.check_invariants();
        }
    }
    assert!(w.poll(CLIENT).is_none() && w.poll(SERVER).is_none());
}

#[test]
fn refusals_fail_the_request_and_say_why() {
    let mut w = client_and_server(10);
    let (ma, mb) = (w.memory(CLIENT, 4096), w.memory(SERVER, 4096));
    let readable = w.memory_with(SERVER, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let (va, rkey) = mb.at(0);
    let (va_ro, rkey_ro) = readable.at(0);
    let cases = [
        (SendOp::Write(va_ro, rkey_ro), Status::RemoteAccess, "StaR NAK access"),
        (SendOp::Read(va + 4090, rkey), Status::RemoteAccess, "StaR NAK access"),
        (SendOp::FetchAdd { addr: va_ro, rkey: rkey_ro, add: 1 }, Status::RemoteAccess, "StaR NAK access"),
        (SendOp::FetchAdd { addr: va + 4, rkey, add: 1 }, Status::RemoteInvalidRequest, "StaR NAK invalid"),
    ];
    for (op, status, rule) in cases {
        let (a, _) = agreed(&mut w);
        // What was posted before is done, what comes after is flushed.
        w.send(CLIENT, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 2000)]));
        w.send(CLIENT, a, wr(2, op, &[ma.sge(0, 8)]));
        w.send(CLIENT, a, wr(3, SendOp::Read(va, rkey), &[ma.sge(0, 8)]));
        w.run(Duration::from_ms(1));
        let ends: Vec<_> = done(&mut w, CLIENT).into_iter().map(|(id, status, _)| (id, status)).collect();
        assert_eq!(ends, [(1, Status::Success), (2, status), (3, Status::WorkRequestFlushed)], "{op:?}");
        let why = w.nodes[CLIENT].nic.next_explanation().unwrap();
        assert!(why.rule.contains(rule), "{}", why.rule);
    }
}

#[test]
fn the_stateless_side_is_lent_to_nobody_and_takes_no_wqes_of_a_programs() {
    let mut w = client_and_server(11);
    let (_, b) = agreed(&mut w);
    let now = w.now;
    let nic = &mut w.nodes[SERVER].nic;
    assert_eq!(nic.lend(b), Err(Error::Busy));
    assert!(matches!(nic.send_queue_memory(b), Err(Error::Unsupported(_))));
    assert!(matches!(nic.on_doorbell(now, b, 1), Err(Error::Unsupported(_))));
    // Whose program writes WQEs itself before RTS is plain RC.
    let (c, d) = (w.qp(CLIENT, QpType::Rc, CAPS), w.qp(SERVER, QpType::Rc, CAPS));
    w.nodes[SERVER].nic.send_queue_memory(d).unwrap();
    let link = Link { timeout: 14, ..Link::default() };
    w.connect((SERVER, d), (CLIENT, c), &link);
    assert_eq!(w.nodes[SERVER].nic.star_side(d), Ok(StarSide::Plain));
    let events: Vec<_> = std::iter::from_fn(|| w.nodes[SERVER].nic.next_event()).collect();
    assert!(events.contains(&Event::Star(d, StarOutcome::Written)), "{events:?}");
}

#[test]
fn roles_by_number_of_connections() {
    // Both over their threshold, one of them, none; the client's pairs are made before the server's.
    for (thresholds, first, second) in [
        ([128, 1], StarSide::Stateful, StarSide::Stateless),
        ([1, 128], StarSide::Stateless, StarSide::Stateful),
        ([128, 128], StarSide::Plain, StarSide::Plain),
        // The connection itself is one too many, at both: the lower name is stateful.
        ([0, 0], StarSide::Stateful, StarSide::Stateless),
    ] {
        let mut w = World::with_config(2, 4, move |config| {
            let threshold = thresholds[(config.qpn_base >> 16) as usize - 1];
            config.star = Some(StarConfig { threshold, ..StarConfig::default() });
        });
        // What is counted is what takes a place in a NIC: one connection that is plain, to each NIC itself.
        for node in [CLIENT, SERVER] {
            if thresholds[node] == 1 {
                w.qp(node, QpType::Uc, CAPS);
            }
        }
        let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
        w.run(Duration::from_ms(100));
        let sides = [w.nodes[CLIENT].nic.star_side(a).unwrap(), w.nodes[SERVER].nic.star_side(b).unwrap()];
        assert_eq!(sides, [first, second], "{thresholds:?}");
    }
}

#[test]
fn answers_wait_in_a_row_of_fixed_length_and_merge_into_runs() {
    let mut w = client_and_server(12);
    let (a, _) = agreed(&mut w);
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    let (va, rkey) = mb.at(0);
    let read = captured(&mut w, a, SendOp::Read(va, rkey), ma.sge(0, 8));
    let nic = &mut w.nodes[SERVER].nic;
    for _ in 0..limits::MAX_STAR_ANSWERS + 10 {
        nic.on_frame(w.now, &read, &Payload::from_slice(&[]));
    }
    let mut out = TxFrame::default();
    let answers = std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(())).count();
    assert_eq!(answers, limits::MAX_STAR_ANSWERS);
    assert_eq!(w.counter(SERVER, "star_answers_full"), 10);

    // WRITEs that come one right after another get one answer, or each its own.
    assert_eq!(answers_to_a_row(&mut w, a), [(0, 4), (7, 2)]);
    let star = StarConfig { single_answers: true, ..StarConfig::default() };
    let mut w = World::with_config(2, 12, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, ..star });
    });
    let (a, _) = agreed(&mut w);
    assert_eq!(answers_to_a_row(&mut w, a), [0, 1, 2, 3, 7, 8].map(|step| (step, 1)));
}

/// WRITEs that come one right after another, but for a gap: which are answered, and how many by one answer.
fn answers_to_a_row(w: &mut World, a: QpId) -> Vec<(i32, u8)> {
    let (ma, mb) = (w.memory(CLIENT, 64), w.memory(SERVER, 64));
    let (va, rkey) = mb.at(0);
    let write = captured(w, a, SendOp::Write(va, rkey), ma.sge(0, 8));
    let nic = &mut w.nodes[SERVER].nic;
    for step in [0, 1, 2, 3, 7, 8] {
        let mut packet = write;
        packet.bth.psn = write.bth.psn.add(step);
        nic.on_frame(w.now, &packet, &Payload::from_slice(&[1; 8]));
    }
    let mut out = TxFrame::default();
    let mut runs = Vec::new();
    while nic.next_frame(w.now, &mut out) {
        let answer = Answer::of_aeth(out.packet.aeth).unwrap();
        runs.push((out.packet.bth.psn.since(write.bth.psn), answer.run));
    }
    runs
}

#[test]
fn many_connections_take_no_place_at_the_stateless_nic() {
    let mut w = client_and_server(13);
    let pairs: Vec<_> = (0..20).map(|_| agreed(&mut w)).collect();
    let (ma, mb) = (w.memory(CLIENT, 4096), w.memory(SERVER, 4096));
    for (i, (a, _)) in pairs.iter().enumerate() {
        ma.write(8 * i, &[i as u8 + 1; 8]);
        let (va, rkey) = mb.at(8 * i);
        w.send(CLIENT, *a, wr(i as u64, SendOp::Write(va, rkey), &[ma.sge(8 * i, 8)]));
    }
    w.run(Duration::from_ms(1));
    assert_eq!(done(&mut w, CLIENT).len(), 20);
    assert_eq!(mb.read(0, 160), ma.read(0, 160));
    assert_eq!(w.counter(SERVER, "star_agreed"), 20);
    assert_eq!(w.nodes[SERVER].nic.qp_at(0), None);
}

/// A client's NIC keeps the server's queues, up to a length: longer ones stay at home, and the connection is
/// plain RC. The server hears it even when it is lost once, or when it is the one that sends first.
#[test]
fn queues_that_are_too_long_for_the_peer_become_plain_rc_and_both_say_why() {
    for (limit, lost, first) in
        [(63, 0, CLIENT), (63, 1, CLIENT), (63, 0, SERVER), (63, 2, SERVER), (64, 0, SERVER)]
    {
        let mut w = World::with_config(2, limit, |config| {
            let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
            config.star = Some(StarConfig { wish, queue_max: limit as u32, ..StarConfig::default() });
        });
        let mut left = lost;
        w.drop_if = Some(Box::new(move |_, p| {
            let is = p.bth.opcode == adverb_wire::Opcode::new(Service::Star, Operation::WqeEventAcknowledge);
            let hit = is && left > 0;
            left -= i32::from(hit);
            hit
        }));
        let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
        let ids = [a, b];
        let memory = [w.memory(CLIENT, 64), w.memory(SERVER, 64)];
        let to = 1 - first;
        w.recv(to, ids[to], 5, &[memory[to].sge(0, 64)]);
        w.send(first, ids[first], wr(1, SendOp::Send, &[memory[first].sge(0, 64)]));
        assert_eq!((w.completion(first).status, w.completion(to).wr_id), (Status::Success, 5));
        w.run(Duration::from_ms(200));
        let sides = [0, 1].map(|node| w.nodes[node].nic.star_side(ids[node]).unwrap());
        let words: Vec<Vec<_>> = (0..2)
            .map(|node| {
                let events = std::iter::from_fn(|| w.nodes[node].nic.next_event());
                let outcome = |event| if let Event::Star(_, outcome) = event { Some(outcome) } else { None };
                events.filter_map(outcome).collect()
            })
            .collect();
        if limit == 64 {
            assert_eq!(sides, [StarSide::Stateful, StarSide::Stateless]);
            continue;
        }
        assert_eq!(sides, [StarSide::Plain; 2], "{lost} lost, {first} first");
        assert_eq!(words[CLIENT], [StarOutcome::TooLarge]);
        // A request of plain RC may have come before the refusal: it says the same.
        let heard = [StarOutcome::Refused, StarOutcome::PlainRequest];
        assert!(words[SERVER].len() == 1 && heard.contains(&words[SERVER][0]), "{words:?}");
        assert!(first == CLIENT || words[SERVER] == [StarOutcome::Refused], "{words:?}");
        assert!(words[CLIENT][0].words().contains("longer than this side keeps"));
        // Asked to take them on by a change of stack, it declines.
        let now = w.now;
        w.nodes[CLIENT].nic.star_switch(now, a, StarSide::Stateful).unwrap();
        w.run(Duration::from_ms(200));
        assert_eq!(w.nodes[CLIENT].nic.star_side(a), Ok(StarSide::Plain));
        assert_eq!(w.nodes[CLIENT].nic.next_event(), Some(Event::Star(a, StarOutcome::NotSwitched)));
    }
}
