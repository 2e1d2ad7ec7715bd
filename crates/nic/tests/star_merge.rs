//! StaR with `merge` and `burst`: what they spare of packets, who agrees to them, their order, and what
//! forged packets of them come to. The messages themselves, under loss and refusals, are tested beside those
//! without (`star_messages.rs`, `star.rs`).

mod world;
use adverb_nic::*;
use adverb_wire::star::{Cqe, Op, StarEth, Wish};
use adverb_wire::{Duration, Operation, Packet, Psn};
use world::*;

/// The client's node, which is stateful, and the server's, which is stateless.
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn client_and_server(seed: u64, merge: [bool; 2]) -> (World, [QpId; 2]) {
    let mut w = World::with_config(2, seed, |config| {
        let is_client = config.qpn_base == 1 << 16;
        let wish = if is_client { Wish::Client } else { Wish::Server };
        let merge = merge[usize::from(!is_client)];
        config.star = Some(StarConfig { wish, merge, burst: merge, ..StarConfig::default() });
    });
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, ..Link::default() });
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[SERVER].nic.star_side(b), Ok(StarSide::Stateless));
    w.keep_log = true;
    (w, [a, b])
}

/// Packets by kind.
fn kinds(log: &[(usize, Packet)]) -> [usize; 8] {
    use Operation::*;
    let all = [
        WqePacket,
        WqeEventAcknowledge,
        RemoteData,
        RemoteDataAnswer,
        GetData,
        GetDataAnswer,
        CqePacket,
        CqeEventAcknowledge,
    ];
    all.map(|kind| log.iter().filter(|(_, p)| p.bth.opcode.operation() == kind).count())
}

/// The paper's RPC: three SENDs of 32 bytes up, one back. Packets that it takes once all is under way, by
/// kind.
fn rpc(merge: [bool; 2], inline: bool) -> [usize; 8] {
    let (mut w, ids) = client_and_server(1, merge);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let mut counted = [0; 8];
    for round in 0..10u64 {
        w.log.clear();
        // In a row, so that one packet tells of them.
        for n in 0..3 {
            w.recv(SERVER, ids[SERVER], n, &[memory[SERVER].sge(64 * n as usize, 64)]);
        }
        w.recv(CLIENT, ids[CLIENT], 7, &[memory[CLIENT].sge(0, 64)]);
        w.run(Duration::from_us(100));
        for n in 0..3 {
            // Each waits for nothing, but has its turn.
            w.send(CLIENT, ids[CLIENT], wr(n, SendOp::Send, &[memory[CLIENT].sge(64, 32)]));
            assert_eq!(w.completion(SERVER).wr_id, n);
            assert_eq!(w.completion(CLIENT).wr_id, n);
            w.run(Duration::from_us(100));
        }
        let bytes = [round as u8; 32];
        memory[SERVER].write(1024, &bytes);
        let sges = [memory[SERVER].sge(1024, 32)];
        let data = if inline { SendData::Inline(&bytes) } else { SendData::Sges(&sges) };
        w.send(SERVER, ids[SERVER], SendWr { data, ..wr(9, SendOp::Send, &[]) });
        assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (7, 9));
        assert_eq!(memory[CLIENT].read(0, 32), bytes);
        w.run(Duration::from_us(100));
        let now = kinds(&w.log);
        assert_eq!(now.iter().sum::<usize>(), w.log.len(), "nothing else");
        assert!(round < 2 || now == counted, "round {round}: {now:?}, not {counted:?}");
        counted = now;
    }
    counted
}

/// 24 packets in the paper, of which posting the receives in a row spares four.
#[test]
fn an_rpc_of_four_messages_takes_13_packets_and_11_with_inline_data() {
    assert_eq!(rpc([false; 2], false), [2, 2, 3, 3, 1, 1, 4, 4]);
    assert_eq!(rpc([true; 2], false), [2, 1, 3, 3, 1, 1, 1, 1]);
    assert_eq!(rpc([true; 2], true), [2, 1, 3, 3, 0, 0, 1, 1]);
}

#[test]
fn both_sides_have_to_want_it() {
    let without = rpc([false; 2], false);
    for merge in [[true, false], [false, true]] {
        assert_eq!(rpc(merge, false), without, "{merge:?}");
    }
}

/// A READ of the stateless side: WQEP, RD, RDA instead of six.
#[test]
fn a_servers_read_takes_three_packets() {
    let (mut w, ids) = client_and_server(2, [true; 2]);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    let (va, rkey) = memory[CLIENT].at(0);
    memory[CLIENT].write(0, &pattern(3, 1024));
    for len in [1, 1024] {
        w.log.clear();
        w.send(SERVER, ids[SERVER], wr(len, SendOp::Read(va, rkey), &[memory[SERVER].sge(0, len as usize)]));
        let end = w.completion(SERVER);
        assert_eq!((end.wr_id, end.status, end.byte_len), (len, Status::Success, len as u32));
        w.run(Duration::from_us(100));
        assert_eq!(kinds(&w.log), [1, 0, 1, 1, 0, 0, 0, 0]);
        assert_eq!(memory[SERVER].read(0, len as usize), pattern(3, len as usize));
    }
    // A row of them, and an atomic, in the order in which they were posted.
    for n in 0..8 {
        w.send(SERVER, ids[SERVER], wr(n, SendOp::Read(va, rkey), &[memory[SERVER].sge(0, 64)]));
    }
    let add = SendOp::FetchAdd { addr: va, rkey, add: 1 };
    w.send(SERVER, ids[SERVER], wr(8, add, &[memory[SERVER].sge(0, 8)]));
    for n in 0..9 {
        assert_eq!((w.completion(SERVER).wr_id, w.counter(SERVER, "star_merge_early")), (n, 0));
    }
}

/// Messages in a row are under way together, and stay in their order when the first one is lost.
#[test]
fn a_row_of_messages_shares_a_round_trip_and_one_that_is_lost_holds_the_others_up() {
    for lost in [None, Some(1), Some(3)] {
        let (mut w, ids) = client_and_server(3, [true; 2]);
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        for n in 0..16 {
            w.recv(SERVER, ids[SERVER], n, &[memory[SERVER].sge(64 * n as usize, 64)]);
        }
        w.run(Duration::from_us(200));
        let mut seen = 0;
        w.drop_if = Some(Box::new(move |_, p| {
            seen += u32::from(p.bth.opcode.operation() == Operation::RemoteData);
            p.bth.opcode.operation() == Operation::RemoteData && Some(seen) == lost
        }));
        for n in 0..16u64 {
            memory[CLIENT].write(64 * n as usize, &[n as u8 + 1; 64]);
            w.send(CLIENT, ids[CLIENT], wr(n, SendOp::Send, &[memory[CLIENT].sge(64 * n as usize, 64)]));
        }
        for n in 0..16 {
            assert_eq!(w.completion(SERVER).wr_id, n, "{lost:?}");
            assert_eq!(memory[SERVER].read(64 * n as usize, 64), [n as u8 + 1; 64]);
        }
        for n in 0..16 {
            assert_eq!(w.completion(CLIENT).wr_id, n, "{lost:?}");
        }
        assert_eq!((w.counter(SERVER, "star_merged"), w.counter(CLIENT, "timeouts")), (16, 0));
        assert_eq!(w.counter(SERVER, "star_merge_early") > 0, lost.is_some());
        w.run(Duration::from_ms(1));
        assert_eq!(kinds(&w.log)[6], 0, "no completion came in a packet of its own");
    }
}

/// What is before a message in plain packets holds it back from taking its completion along: a WRITE that is
/// lost has landed when the message behind it is received.
#[test]
fn a_message_behind_a_lost_write_is_received_behind_it() {
    let (mut w, ids) = client_and_server(4, [true; 2]);
    let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
    w.recv(SERVER, ids[SERVER], 5, &[memory[SERVER].sge(0, 64)]);
    w.run(Duration::from_us(200));
    let mut left = 1;
    w.drop_if = Some(Box::new(move |_, p| {
        let hit = left > 0 && p.bth.opcode.operation() == Operation::RemoteData;
        left -= i32::from(hit);
        hit
    }));
    let (va, rkey) = memory[SERVER].at(1024);
    memory[CLIENT].write(0, &[7; 64]);
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Write(va, rkey), &[memory[CLIENT].sge(0, 64)]));
    w.send(CLIENT, ids[CLIENT], wr(2, SendOp::Send, &[memory[CLIENT].sge(0, 8)]));
    assert_eq!(w.completion(SERVER).wr_id, 5);
    assert_eq!(memory[SERVER].read(1024, 64), [7; 64]);
    assert_eq!((w.lost, w.counter(SERVER, "star_merged")), (1, 0));
}

/// A merged packet that names another receive than the oldest, a number that is not the next one, or a
/// connection that has not agreed, completes nothing.
#[test]
fn a_forged_completion_with_data_completes_nothing() {
    for agreed in [true, false] {
        let (mut w, ids) = client_and_server(5, [true, agreed]);
        let memory = [w.memory(CLIENT, 4096), w.memory(SERVER, 4096)];
        for n in 0..2 {
            w.recv(SERVER, ids[SERVER], 50 + n, &[memory[SERVER].sge(64 * n as usize, 64)]);
        }
        w.run(Duration::from_us(200));
        w.drop_if = Some(Box::new(|_, p| p.bth.opcode.operation() == Operation::RemoteData));
        w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Send, &[memory[CLIENT].sge(0, 64)]));
        w.transmit();
        let good = w.log.iter().rfind(|(_, p)| p.bth.opcode.operation() == Operation::RemoteData).unwrap().1;
        let merged = StarEth::MERGED | StarEth::POSTED | StarEth::RECV_QUEUE;
        let base = w.log.iter().find(|(_, p)| p.bth.opcode.operation() == Operation::WqePacket);
        let first = base.map(|(_, p)| p.bth.psn).unwrap();
        let forged = |index: u32, number: Psn, psn: u32| {
            let mut p = good;
            p.irn = StarEth::new(Op::Send, merged, 0, Cqe::SOLICITED.into()).into();
            p.reth.va = adverb_wire::star::Merged::va(index, number);
            p.bth.psn = good.bth.psn.add(psn);
            p
        };
        let give = |w: &mut World, packet: &Packet| {
            let nic = &mut w.nodes[SERVER].nic;
            nic.on_frame(w.now, packet, &Payload::from_slice(&[9; 64]));
            w.poll(SERVER).map(|end| (end.wr_id, end.solicited))
        };
        for (what, packet) in [
            ("the second receive", forged(1, first, 1)),
            ("a number to come", forged(0, first.next(), 2)),
            ("a number of the past", forged(0, first.add(Psn::MASK), 3)),
        ] {
            assert_eq!(give(&mut w, &packet), None, "{what}");
            assert_eq!(memory[SERVER].read(0, 128), [0; 128], "{what}");
        }
        let next = give(&mut w, &forged(0, first, 4));
        assert_eq!(next, agreed.then_some((50, true)));
        assert_eq!(w.counter(SERVER, "star_merged"), u64::from(agreed));
        // Once more, with another deadline: it was taken.
        memory[SERVER].write(0, &[0; 64]);
        let mut again = forged(0, first, 4);
        again.reth.len = again.reth.len.wrapping_add(5);
        assert_eq!(give(&mut w, &again), None);
        assert_eq!(memory[SERVER].read(0, 64), [0; 64]);
        assert_eq!(state(&mut w, ids[SERVER]), QpState::Rts);
    }
}

fn state(w: &mut World, id: QpId) -> QpState {
    w.nodes[SERVER].nic.query_qp(id).unwrap().0.state
}

/// One GD brings the data of 16 packets, and each that is lost is asked for alone.
#[test]
fn one_packet_asks_for_the_data_of_sixteen() {
    for lost in [None, Some(1), Some(5), Some(16)] {
        let (mut w, ids) = client_and_server(6, [true; 2]);
        let memory = [w.memory(CLIENT, 1 << 16), w.memory(SERVER, 1 << 16)];
        let bytes = pattern(9, 20_000);
        let mut seen = 0;
        let mut drop = move |p: &Packet| {
            seen += u32::from(p.bth.opcode.operation() == Operation::GetDataAnswer);
            p.bth.opcode.operation() == Operation::GetDataAnswer && Some(seen) == lost
        };
        w.drop_if = Some(Box::new(move |_, p| drop(p)));
        // The client reads 20 packets, then the server sends and writes as many.
        memory[SERVER].write(0, &bytes);
        let (va, rkey) = memory[SERVER].at(0);
        w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Read(va, rkey), &[memory[CLIENT].sge(0, 20_000)]));
        assert_eq!(w.completion(CLIENT).byte_len, 20_000);
        assert_eq!(memory[CLIENT].read(0, 20_000), bytes);
        let asked = kinds(&w.log)[4];
        assert_eq!(
            (asked, kinds(&w.log)[5]),
            (2 + usize::from(lost.is_some()), 20 + usize::from(lost.is_some()))
        );
        w.recv(CLIENT, ids[CLIENT], 5, &[memory[CLIENT].sge(30_000, 20_000)]);
        w.send(SERVER, ids[SERVER], wr(2, SendOp::Send, &[memory[SERVER].sge(0, 20_000)]));
        assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (5, 2));
        assert_eq!(memory[CLIENT].read(30_000, 20_000), bytes);
        assert_eq!(kinds(&w.log)[4], asked + 2);
        assert_eq!(w.counter(CLIENT, "star_bursts"), 4);
    }
}

/// 16 packets of the longest MTU are the most: 65,536 bytes.
#[test]
fn a_burst_of_the_longest_packets_is_whole() {
    let mut w = World::with_config(2, 7, |config| {
        let wish = if config.qpn_base == 1 << 16 { Wish::Client } else { Wish::Server };
        config.star = Some(StarConfig { wish, burst: true, ..StarConfig::default() });
    });
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link { timeout: 14, mtu: Mtu::M4096, ..Link::default() });
    let memory = [w.memory(CLIENT, 1 << 18), w.memory(SERVER, 1 << 18)];
    let (bytes, len) = (pattern(4, 1 << 17), 1 << 17);
    memory[SERVER].write(0, &bytes);
    let (va, rkey) = memory[SERVER].at(0);
    w.send(CLIENT, a, wr(1, SendOp::Read(va, rkey), &[memory[CLIENT].sge(0, len)]));
    assert_eq!(w.completion(CLIENT).status, Status::Success);
    w.recv(CLIENT, a, 2, &[memory[CLIENT].sge(len, len)]);
    w.send(SERVER, b, wr(3, SendOp::Send, &[memory[SERVER].sge(0, len)]));
    assert_eq!((w.completion(CLIENT).wr_id, w.completion(SERVER).wr_id), (2, 3));
    assert_eq!(memory[CLIENT].read(0, 2 * len), [&bytes[..], &bytes].concat());
    assert_eq!(w.counter(CLIENT, "star_bursts"), 4);
}

/// Asking for more than 16 packets, or beyond a region's end, brings nothing.
#[test]
fn a_burst_that_is_too_long_or_out_of_bounds_brings_nothing() {
    let (mut w, ids) = client_and_server(8, [true; 2]);
    let memory = [w.memory(CLIENT, 1 << 16), w.memory(SERVER, 4096)];
    let (va, rkey) = memory[SERVER].at(0);
    w.send(CLIENT, ids[CLIENT], wr(1, SendOp::Read(va, rkey), &[memory[CLIENT].sge(0, 4096)]));
    w.completion(CLIENT);
    let good = w.log.iter().find(|(_, p)| p.bth.opcode.operation() == Operation::GetData).unwrap().1;
    let ask = |w: &mut World, len: u32| {
        let mut packet = good;
        let eth = StarEth::from(good.irn);
        packet.irn = StarEth { count: (len - 1) as u16, ..eth }.into();
        let nic = &mut w.nodes[SERVER].nic;
        nic.on_frame(w.now, &packet, &Payload::from_slice(&[]));
        let mut out = TxFrame::default();
        let answers = std::iter::from_fn(|| nic.next_frame(w.now, &mut out).then_some(out.packet));
        answers.map(|p| (p.bth.opcode.operation(), p.payload_len)).collect::<Vec<_>>()
    };
    assert_eq!(ask(&mut w, 2500), [1024, 1024, 452].map(|len| (Operation::GetDataAnswer, len)));
    assert_eq!(ask(&mut w, 16 * 1024 + 1), [(Operation::RemoteDataAnswer, 0)], "too many");
    assert_eq!(ask(&mut w, 4097), [(Operation::RemoteDataAnswer, 0)], "beyond the region");
    assert_eq!((w.counter(SERVER, "star_nak_invalid"), w.counter(SERVER, "star_nak_region")), (1, 1));
}
