//! What goes wrong, and how it is said: NAKs, retries, flushes, explanations.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Key, NakCode, Opcode, Operation, Packet, Psn, Service, Syndrome};
use world::*;

fn one(w: &mut World) -> (QpId, QpId, Memory, Memory) {
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 16384), w.memory(1, 16384));
    (a, b, ma, mb)
}

fn state(w: &World, node: usize, qp: QpId) -> QpState {
    w.nodes[node].nic.query_qp(qp).unwrap().0.state
}

#[test]
fn refused_access_is_a_nak_and_ends_both_sides() {
    for what in ["key", "bounds", "rights", "queue pair"] {
        let mut w = World::new(2, 1);
        let (a, b, ma, mb) = one(&mut w);
        let local_only = w.memory_with(1, 64, Access::LOCAL_WRITE);
        let (mut va, mut rkey) = mb.at(0);
        match what {
            "key" => rkey = Key(rkey.0 ^ 0x100),
            "bounds" => va += 16384 - 4,
            "rights" => (va, rkey) = local_only.at(0),
            _ => {
                let (mut attr, _) = w.nodes[1].nic.query_qp(b).unwrap();
                attr.access = Access::REMOTE_READ;
                let mask = QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS;
                w.nodes[1].nic.modify_qp(w.now, b, &attr, mask).unwrap();
            }
        }
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
        w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status, done.vendor), (1, Status::RemoteAccess, 0x62), "{what}");
        assert_eq!(w.completion(0).status, Status::WorkRequestFlushed);
        assert_eq!((state(&w, 0, a), state(&w, 1, b)), (QpState::Err, QpState::Err));
        assert_eq!(w.nodes[1].nic.next_event(), Some(Event::QpAccessError(b)));
        let why = w.nodes[0].nic.next_explanation().unwrap();
        let packet = why.packet.unwrap();
        assert_eq!((why.wr_id, packet.syndrome, packet.psn), (1, Some(0x62), Psn::new(100)));
        assert!(why.to_string().contains("RemoteAccess"), "{why}");
        let theirs = w.nodes[1].nic.next_explanation().unwrap();
        assert!(!theirs.rule.is_empty());
    }
}

/// A switch that decides atomics sends them on as WRITEs of a word, or of nothing.
#[test]
fn behind_a_switch_a_word_is_written_under_the_right_to_atomics() {
    let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    // What the queue pair grants and the region; length, offset; whether it passes behind such a switch.
    let rights = Access::REMOTE_ATOMIC;
    for (granted, region, len, offset, passes) in [
        (rights, atomic, 8, 16, true),
        (rights, atomic, 0, 16, true),
        (rights, atomic | Access::REMOTE_WRITE, 8, 16, true),
        (rights | Access::REMOTE_WRITE, atomic, 8, 16, true),
        (rights, atomic, 8, 12, false),
        (rights, atomic, 4, 16, false),
        (rights, atomic, 16, 16, false),
        (rights, atomic, 2048, 16, false),
        (rights, atomic, 8, 4096 - 4, false),
        (rights, Access::LOCAL_WRITE, 8, 16, false),
        (Access::REMOTE_READ, atomic, 8, 16, false),
    ] {
        for is_behind in [false, true] {
            let mut w = World::new(2, 1);
            let (a, b) = w.pair(QpType::Rc, CAPS, &Link { access: granted, ..Link::default() });
            let (ma, mb) = (w.memory(0, 4096), w.memory_with(1, 4096, region));
            w.nodes[1].nic.set_words_by_write(is_behind);
            ma.write(0, &pattern(3, 2048));
            let (va, rkey) = mb.at(offset);
            w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, len)]));
            w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, len)]));
            let done = w.completion(0);
            let what = format!("{granted:?} {region:?} {len} bytes at {offset}, {is_behind}");
            if passes && is_behind {
                assert_eq!(
                    (done.status, w.completion(0).status),
                    (Status::Success, Status::Success),
                    "{what}"
                );
                assert_eq!(
                    (mb.read(offset, len), state(&w, 1, b)),
                    (pattern(3, len), QpState::Rts),
                    "{what}"
                );
            } else {
                assert_eq!((done.status, state(&w, 1, b)), (Status::RemoteAccess, QpState::Err), "{what}");
                assert_eq!(mb.read(0, 4096), vec![0; 4096], "{what}");
            }
            assert_eq!(w.counter(1, "writes_for_atomics"), if passes && is_behind { 2 } else { 0 }, "{what}");
        }
    }
}

#[test]
fn silence_exhausts_the_retries() {
    let mut w = World::new(2, 2);
    let (a, _, ma, mb) = one(&mut w);
    w.drop_if = Some(Box::new(|from, _| from == 1));
    let (va, rkey) = mb.at(0);
    let start = w.now;
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    let done = w.completion(0);
    assert_eq!(done.status, Status::TransportRetryExceeded);
    // Eight timeouts of 4.096 us * 2^8.
    let took = w.now.since(start).as_ns();
    assert!((8 * 1_048_576..9 * 1_048_576).contains(&took), "{took} ns");
    let why = w.nodes[0].nic.next_explanation().unwrap();
    let timer = why.timer.unwrap();
    assert_eq!((timer.name, timer.expiries), ("local ACK timeout", 8));
    assert_eq!(w.counter(0, "timeouts"), 8);
    assert_eq!(w.counter(0, "retransmitted_packets"), 7);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut w = World::new(2, 3);
    let (a, b, ma, mb) = one(&mut w);
    ma.write(0, b"late");
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 4)]));
    w.send(0, a, wr(2, SendOp::Send, &[ma.sge(0, 4)]));
    w.run(Duration::from_us(100));
    assert!(w.poll(0).is_none());
    assert!(w.counter(1, "rnr_naks_sent") >= 5, "one each 10 us");
    w.recv(1, b, 1, &[mb.sge(0, 4)]);
    w.recv(1, b, 2, &[mb.sge(4, 4)]);
    assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2));
    assert_eq!(mb.read(0, 8), b"latelate");
}

#[test]
fn a_sequence_nak_behind_an_rnr_nak_neither_ends_the_wait_nor_costs_a_retry() {
    let mut w = World::new(2, 6);
    let link = Link { rnr_timer: 20, ..Link::default() };
    let (a, b) = w.pair(QpType::Rc, CAPS, &link);
    let (ma, mb) = (w.memory(0, 16384), w.memory(1, 16384));
    ma.write(0, &pattern(3, 3000));
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 3000)]));
    // Until after the RNR NAK, within the 10.24 ms that it asks for.
    w.run(Duration::from_us(100));
    assert_eq!(w.counter(1, "rnr_naks_sent"), 1);
    let mut nak = Packet::default();
    (nak.flow.src, nak.flow.dst) = (w.nodes[1].gid, w.nodes[0].gid);
    nak.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    nak.bth.dest_qp = w.nodes[0].nic.qp_number(a).unwrap();
    nak.bth.psn = Psn::new(100);
    nak.aeth.syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
    let sent = w.counter(0, "tx_packets");
    for _ in 0..20 {
        let now = w.now;
        w.nodes[0].nic.on_frame(now, &nak, &Payload::from_slice(&[]));
        w.run(Duration::from_us(10));
    }
    assert_eq!(w.counter(0, "sequence_naks_received"), 20);
    assert_eq!(w.counter(0, "tx_packets"), sent, "nothing is sent during the wait");
    w.recv(1, b, 1, &[mb.sge(0, 3000)]);
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 3000), pattern(3, 3000));
}

#[test]
fn read_and_atomic_depths_are_bounded_as_requester_and_as_responder() {
    let mut w = World::new(2, 7);
    let (a, ..) = one(&mut w);
    let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
    let mask = QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::STATE;
    attr.state = QpState::Sqd;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, QpAttrMask::STATE).unwrap();
    attr.max_rd_atomic = limits::MAX_INIT_RD_ATOMIC;
    assert_eq!(attr.max_rd_atomic, 128, "what Linux's rxe answers, and perftest asks for");
    w.nodes[0].nic.modify_qp(w.now, a, &attr, mask).unwrap();
    attr.max_rd_atomic += 1;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, mask).unwrap_err();
    attr.max_dest_rd_atomic = limits::MAX_RD_ATOMIC + 1;
    let mask = QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::STATE;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, mask).unwrap_err();
}

#[test]
fn a_receiver_that_is_never_ready_ends_it() {
    let mut w = World::new(2, 4);
    let link = Link { rnr_retries: 3, ..Link::default() };
    let (a, _) = w.pair(QpType::Rc, CAPS, &link);
    let ma = w.memory(0, 64);
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 4)]));
    assert_eq!(w.completion(0).status, Status::RnrRetryExceeded);
    assert_eq!(w.counter(1, "rnr_naks_sent"), 4);
    assert_eq!(w.nodes[0].nic.next_explanation().unwrap().timer.unwrap().name, "RNR timer");
}

#[test]
fn too_long_a_send_is_an_error_on_both_sides() {
    let mut w = World::new(2, 5);
    let (a, b, ma, mb) = one(&mut w);
    w.recv(1, b, 7, &[mb.sge(0, 2000)]);
    w.recv(1, b, 8, &[mb.sge(0, 2000)]);
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 3000)]));
    assert_eq!(w.completion(0).status, Status::RemoteInvalidRequest);
    let (first, second) = (w.completion(1), w.completion(1));
    assert_eq!((first.wr_id, first.status), (7, Status::LocalLength));
    assert_eq!((second.wr_id, second.status), (8, Status::WorkRequestFlushed));
}

#[test]
fn bad_local_memory_fails_in_its_turn() {
    let mut w = World::new(2, 6);
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 5000)]));
    let mut bad = ma.sge(0, 8);
    bad.lkey = Key(bad.lkey.0 ^ 0x5500);
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[bad]));
    w.send(0, a, wr(3, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    let statuses: Vec<_> = (0..3).map(|_| w.completion(0)).map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(
        statuses,
        [(1, Status::Success), (2, Status::LocalProtection), (3, Status::WorkRequestFlushed)]
    );
}

#[test]
fn atomics_must_be_aligned_and_eight_bytes() {
    let mut w = World::new(2, 7);
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(4);
    w.send(0, a, wr(1, SendOp::FetchAdd { addr: va, rkey, add: 1 }, &[ma.sge(0, 8)]));
    assert_eq!(w.completion(0).status, Status::RemoteInvalidRequest);
    let mut w = World::new(2, 7);
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::FetchAdd { addr: va, rkey, add: 1 }, &[ma.sge(0, 4)]));
    assert_eq!(w.completion(0).status, Status::LocalLength);
}

#[test]
fn a_gap_draws_exactly_one_nak() {
    let mut w = World::new(2, 8);
    let (a, _, ma, mb) = one(&mut w);
    w.keep_log = true;
    let mut first = true;
    w.drop_if =
        Some(Box::new(move |from, p| from == 0 && p.bth.psn == Psn::new(103) && std::mem::take(&mut first)));
    let data = pattern(1, 10_000);
    ma.write(0, &data);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 10_000)]));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 10_000), data);
    let naks: Vec<_> = w
        .log
        .iter()
        .filter(|(from, p)| *from == 1 && p.aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError))
        .map(|(_, p)| p.bth.psn)
        .collect();
    assert_eq!(naks, [Psn::new(103)]);
    assert_eq!(w.counter(0, "timeouts"), 0);
}

#[test]
fn a_lost_read_response_is_asked_for_from_where_it_is_missing() {
    let mut w = World::new(2, 9);
    let (a, _, ma, mb) = one(&mut w);
    w.keep_log = true;
    let data = pattern(4, 8192);
    mb.write(0, &data);
    let mut seen = 0;
    w.drop_if = Some(Box::new(move |from, p| {
        seen += (from == 1 && p.bth.opcode.operation() == Operation::ReadResponseMiddle) as u32;
        from == 1 && seen == 3
    }));
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 8192)]));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(ma.read(0, 8192), data);
    let requests: Vec<_> = w
        .log
        .iter()
        .filter(|(from, p)| *from == 0 && p.bth.opcode.operation() == Operation::ReadRequest)
        .map(|(_, p)| (p.bth.psn, p.reth.va - va, p.reth.len))
        .collect();
    assert_eq!(requests[0], (Psn::new(100), 0, 8192));
    assert_eq!(requests[1], (Psn::new(103), 3 * 1024, 8192 - 3 * 1024));
    assert_eq!((w.counter(0, "implied_naks"), w.counter(0, "timeouts")), (1, 0));
}

#[test]
fn a_lost_atomic_answer_is_replayed_not_repeated() {
    let mut w = World::new(2, 10);
    let (a, _, ma, mb) = one(&mut w);
    let mut first = true;
    w.drop_if = Some(Box::new(move |from, p| {
        from == 1 && p.bth.opcode.operation() == Operation::AtomicAcknowledge && std::mem::take(&mut first)
    }));
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::FetchAdd { addr: va, rkey, add: 7 }, &[ma.sge(0, 8)]));
    w.send(0, a, wr(2, SendOp::Write(va + 8, rkey), &[ma.sge(8, 8)]));
    assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2));
    assert_eq!((mb.word(0), ma.word(0)), (7, 0));
    assert!(w.counter(1, "duplicate_requests") >= 1);
    assert_eq!((w.counter(0, "implied_naks"), w.counter(0, "timeouts")), (1, 0));
}

#[test]
fn unknown_and_foreign_packets_are_counted() {
    let mut w = World::new(2, 11);
    w.keep_log = true;
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.completion(0);
    let good = w.log[0].1;
    let mut tries = Vec::new();
    let mut stranger = good;
    stranger.bth.dest_qp = qpn(0x2fff0);
    tries.push((stranger, "drop_unknown_qp"));
    let mut spoofed = good;
    spoofed.flow.src = w.nodes[1].gid;
    tries.push((spoofed, "drop_source"));
    let mut partition = good;
    partition.bth.pkey = 0x8001;
    tries.push((partition, "drop_pkey"));
    let mut service = good;
    service.bth.opcode = adverb_wire::Opcode::new(adverb_wire::Service::Uc, Operation::WriteOnly);
    tries.push((service, "drop_wrong_service"));
    for (packet, counter) in tries {
        w.inject(packet, &[0xee; 8]);
        w.run(Duration::from_us(10));
        assert_eq!(w.counter(1, counter), 1, "{counter}");
    }
    assert_eq!(mb.read(0, 8), ma.read(0, 8));
}

#[test]
fn error_state_flushes_what_is_posted_later() {
    let mut w = World::new(2, 12);
    let (a, _, ma, _) = one(&mut w);
    let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
    w.recv(0, a, 1, &[ma.sge(0, 8)]);
    attr.state = QpState::Err;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, QpAttrMask::STATE).unwrap();
    w.send(0, a, wr(2, SendOp::Send, &[ma.sge(0, 8)]));
    w.recv(0, a, 3, &[ma.sge(0, 8)]);
    for id in [1, 2, 3] {
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (id, Status::WorkRequestFlushed));
    }
    // And back to life through RESET.
    attr.state = QpState::Reset;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, QpAttrMask::STATE).unwrap();
    let refused = w.nodes[0].nic.post_send(w.now, a, &wr(4, SendOp::Send, &[]));
    assert_eq!(refused, Err(Error::WrongState));
}

#[test]
fn draining_finishes_what_is_out_and_holds_the_rest() {
    let mut w = World::new(2, 13);
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 3000)]));
    w.transmit();
    let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
    attr.state = QpState::Sqd;
    attr.sqd_notify = true;
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, mask).unwrap();
    assert!(w.nodes[0].nic.query_qp(a).unwrap().0.sq_draining);
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    assert_eq!(w.completion(0).wr_id, 1);
    w.run(Duration::from_ms(5));
    assert!(w.poll(0).is_none());
    assert_eq!(w.nodes[0].nic.next_event(), Some(Event::SqDrained(a)));
    attr.state = QpState::Rts;
    w.nodes[0].nic.modify_qp(w.now, a, &attr, QpAttrMask::STATE).unwrap();
    assert_eq!(w.completion(0).wr_id, 2);
}

#[test]
fn a_write_with_immediate_that_is_refused_fails_its_receive() {
    for what in ["key", "bounds", "rights"] {
        let mut w = World::new(2, 30);
        let (a, b, ma, mb) = one(&mut w);
        let local_only = w.memory_with(1, 64, Access::LOCAL_WRITE);
        let (mut va, mut rkey) = mb.at(0);
        match what {
            "key" => rkey = Key(rkey.0 ^ 0x100),
            "bounds" => va += 16384 - 4,
            _ => (va, rkey) = local_only.at(0),
        }
        // Without a receive the key is not looked at.
        w.send(0, a, wr(1, SendOp::WriteImm(va, rkey, 5), &[ma.sge(0, 8)]));
        w.run(Duration::from_us(30));
        assert!(w.counter(1, "rnr_naks_sent") >= 1 && w.poll(0).is_none(), "{what}");
        w.recv(1, b, 7, &[]);
        w.recv(1, b, 8, &[]);
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (1, Status::RemoteAccess), "{what}");
        let (first, second) = (w.completion(1), w.completion(1));
        assert_eq!((first.wr_id, first.status), (7, Status::LocalAccess), "{what}");
        assert_eq!((second.wr_id, second.status), (8, Status::WorkRequestFlushed), "{what}");
        let why = w.nodes[1].nic.next_explanation().unwrap();
        assert_eq!(
            (why.wr_id, why.status),
            (7, Status::LocalAccess),
            "what the trace says is what was polled"
        );
    }
}

#[test]
fn a_refused_invalidation_draws_no_nak() {
    let mut w = World::new(2, 31);
    w.keep_log = true;
    let (a, b, ma, mb) = one(&mut w);
    // The key of a region: only a bound type 2 window of this queue pair may be invalidated.
    let (_, rkey) = mb.at(0);
    w.recv(1, b, 7, &[mb.sge(0, 64)]);
    ma.write(0, b"taken");
    w.send(0, a, wr(1, SendOp::SendInv(rkey), &[ma.sge(0, 5)]));
    let got = w.completion(1);
    assert_eq!((got.wr_id, got.status), (7, Status::LocalAccess));
    assert_eq!(state(&w, 1, b), QpState::Err);
    assert_eq!(w.nodes[1].nic.next_event(), Some(Event::QpAccessError(b)));
    // Nothing tells the sender: it asks until its retries are used up.
    assert_eq!(w.completion(0).status, Status::TransportRetryExceeded);
    assert!(w.log.iter().all(|(from, _)| *from == 0), "the responder said nothing");
}

/// A datagram queue pair of node 1 with a receive queue of its own or a shared one.
fn datagrams(w: &mut World, shared: bool) -> (QpId, QpId, UdAddress, Option<SrqId>) {
    let a = w.qp(0, QpType::Ud, CAPS);
    let n = &mut w.nodes[1];
    let srq =
        shared.then(|| n.nic.create_srq(&SrqInit { pd: n.pd, max_wr: 8, max_sge: 1, xrc: None }).unwrap());
    let init = QpInit {
        qp_type: QpType::Ud,
        pd: Some(n.pd),
        send_cq: Some(n.cq),
        recv_cq: Some(n.cq),
        srq,
        xrcd: None,
        sq_sig_all: false,
        caps: CAPS,
    };
    let b = n.nic.create_qp(&init).unwrap();
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    let to = UdAddress {
        dgid: w.nodes[1].gid,
        qpn: w.nodes[1].nic.qp_number(b).unwrap(),
        qkey: 0x1111,
        traffic_class: 0,
        hop_limit: 0,
        path: PathId::DEFAULT,
    };
    (a, b, to, srq)
}

#[test]
fn a_datagram_that_is_too_large_leaves_the_receive_where_it_was() {
    for shared in [false, true] {
        let mut w = World::new(2, 32);
        let (a, b, to, srq) = datagrams(&mut w, shared);
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        ma.write(0, &pattern(1, 1000));
        for (id, len) in [(5, 140), (6, 240)] {
            let sges = [mb.sge(id as usize * 256, len)];
            match srq {
                Some(srq) => w.nodes[1].nic.post_srq_recv(srq, &RecvWr { wr_id: id, sges: &sges }).unwrap(),
                None => w.recv(1, b, id, &sges),
            }
        }
        for len in [101, 1000, 100, 200] {
            let sges = [ma.sge(0, len)];
            w.send(0, a, SendWr { ud: Some(to), ..wr(1, SendOp::Send, &sges) });
            assert_eq!(w.completion(0).status, Status::Success);
        }
        w.run(Duration::from_ms(1));
        let got: Vec<_> = std::iter::from_fn(|| w.poll(1)).map(|c| (c.wr_id, c.status, c.byte_len)).collect();
        assert_eq!(got, [(5, Status::Success, 140), (6, Status::Success, 240)], "shared: {shared}");
        assert_eq!(w.counter(1, "drop_receive_error"), 2);
        assert_eq!(state(&w, 1, b), QpState::Rts);
        assert_eq!(mb.read(5 * 256 + 40, 100), pattern(1, 1000)[..100]);
    }
}

/// A READ request as node 0 would send it.
fn read_request(w: &World, b: QpId, psn: u32, (va, rkey): (u64, Key), len: u32) -> Packet {
    let mut read = Packet::default();
    (read.flow.src, read.flow.dst) = (w.nodes[0].gid, w.nodes[1].gid);
    read.bth.opcode = Opcode::new(Service::Rc, Operation::ReadRequest);
    read.bth.dest_qp = w.nodes[1].nic.qp_number(b).unwrap();
    read.bth.psn = Psn::new(psn);
    read.bth.ack_req = true;
    read.reth = adverb_wire::Reth { va, rkey, len };
    read
}

#[test]
fn only_reads_and_atomics_among_the_responder_resources_are_repeated() {
    let mut w = World::new(2, 33);
    // Depth 4. PSNs: a WRITE 100, READs of three packets 101, 104, .. 119, an atomic 122.
    let (a, b, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(0, SendOp::Write(va + 8192, rkey), &[ma.sge(0, 8)]));
    for i in 1..=7 {
        w.send(0, a, wr(i, SendOp::Read(va, rkey), &[ma.sge(0, 3000)]));
    }
    w.send(0, a, wr(8, SendOp::FetchAdd { addr: va + 4096, rkey, add: 3 }, &[ma.sge(4096, 8)]));
    for i in 0..=8 {
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (i, Status::Success));
    }
    w.run(Duration::from_us(100));
    // Nearly half the circle back.
    let far = Psn::new(123).add(1 << 23 | 5).get();
    let other = w.memory(1, 4096);
    let tries = [
        // Kept: the latest three READs, whole or from a packet on, and the atomic beside them.
        (119, mb.at(0), 3000, 3),
        (116, mb.at(0), 3000, 3),
        (117, mb.at(1024), 1976, 2),
        (118, mb.at(2048), 952, 1),
        // Asked for before those, or never.
        (110, mb.at(0), 3000, 0),
        (101, mb.at(0), 3000, 0),
        (100, mb.at(0), 1024, 0),
        (99, mb.at(0), 1024, 0),
        (far, mb.at(0), 1024, 0),
        (122, mb.at(0), 8, 0),
        // Other bytes, another key, or more than there was.
        (119, mb.at(4096), 3000, 0),
        (119, other.at(0), 3000, 0),
        (119, mb.at(0), 3001, 0),
        (121, mb.at(0), 3000, 0),
    ];
    for (psn, at, len, packets) in tries {
        let before = (w.counter(1, "tx_packets"), w.counter(1, "drop_duplicate"));
        let request = read_request(&w, b, psn, at, len);
        w.inject(request, &[]);
        w.run(Duration::from_us(100));
        let sent = w.counter(1, "tx_packets") - before.0;
        let dropped = w.counter(1, "drop_duplicate") - before.1;
        assert_eq!((sent, dropped), (packets, u64::from(packets == 0)), "PSN {psn}, {len} bytes");
    }
    assert_eq!(mb.word(4096), 3, "the atomic was executed once");
}

#[test]
fn full_queues_say_so() {
    let mut w = World::new(2, 14);
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
    let (a, _) = w.pair(QpType::Rc, caps, &Link::default());
    let ma = w.memory(0, 64);
    let given = w.nodes[0].nic.qp_caps(a).unwrap().max_send_wr;
    assert_eq!(given, 4);
    for i in 0..u64::from(given) {
        w.send(0, a, wr(i, SendOp::Send, &[ma.sge(0, 1)]));
    }
    let sges = [ma.sge(0, 1)];
    let full = w.nodes[0].nic.post_send(w.now, a, &wr(9, SendOp::Send, &sges));
    assert_eq!(full, Err(Error::QueueFull));
    let two = [ma.sge(0, 1); 2];
    let long = w.nodes[0].nic.post_send(w.now, a, &wr(9, SendOp::Send, &two));
    assert!(matches!(long, Err(Error::Invalid(_))));
    let inline = SendWr { data: SendData::Inline(&[1]), ..wr(9, SendOp::Send, &[]) };
    assert!(matches!(w.nodes[0].nic.post_send(w.now, a, &inline), Err(Error::Invalid(_))));
}

#[test]
fn an_overrun_completion_queue_is_an_event() {
    let mut w = World::new(2, 15);
    let small = w.nodes[0].nic.create_cq(2).unwrap();
    w.nodes[0].cq = small;
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let (va, rkey) = mb.at(0);
    for i in 0..3 {
        w.send(0, a, wr(i, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    }
    w.run(Duration::from_ms(1));
    assert_eq!(w.nodes[0].nic.next_event(), Some(Event::CqError(small)));
    assert!(w.nodes[0].nic.cq_overrun(small).unwrap());
    assert_eq!(
        w.nodes[0].nic.resize_cq(small, 1),
        Err(Error::Invalid("size below the number of pending completions"))
    );
    assert_eq!(w.nodes[0].nic.destroy_cq(small), Err(Error::Busy));
}

#[test]
fn requests_whose_completions_are_lost_take_no_room() {
    let mut w = World::new(2, 17);
    let small = w.nodes[0].nic.create_cq(1).unwrap();
    w.nodes[0].cq = small;
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, ..CAPS };
    let (a, b) = w.pair(QpType::Rc, caps, &Link::default());
    // Receives: of four completions one has room.
    for round in 0..3 {
        for id in 0..4 {
            w.recv(0, a, id, &[]);
            w.send(1, b, wr(id, SendOp::Send, &[]));
        }
        let refused = w.nodes[0].nic.post_recv(w.now, a, &RecvWr { wr_id: 9, sges: &[] });
        assert_eq!(refused, Err(Error::QueueFull), "round {round}");
        w.run(Duration::from_ms(1));
        while w.poll(1).is_some() {}
        assert_eq!(w.poll(0).map(|done| done.wr_id), Some(0));
        assert_eq!(w.poll(0), None);
    }
    // Sends likewise.
    for _ in 0..3 {
        for id in 0..4 {
            w.recv(1, b, id, &[]);
            w.send(0, a, wr(id, SendOp::Send, &[]));
        }
        w.run(Duration::from_ms(1));
        while w.poll(1).is_some() {}
        assert_eq!(w.poll(0).map(|done| done.wr_id), Some(0));
    }
    assert_eq!(w.counter(0, "cq_overruns"), 1);
    // What is left of a lost completion does not free what is posted after RESET.
    for id in 0..4 {
        w.recv(0, a, id, &[]);
    }
    for state in [QpState::Err, QpState::Reset] {
        let attr = QpAttr { state, ..w.nodes[0].nic.query_qp(a).unwrap().0 };
        w.nodes[0].nic.modify_qp(w.now, a, &attr, QpAttrMask::STATE).unwrap();
    }
    w.connect((0, a), (1, b), &Link::default());
    for id in 0..4 {
        w.recv(0, a, id, &[]);
    }
    w.transmit();
    let refused = w.nodes[0].nic.post_recv(w.now, a, &RecvWr { wr_id: 9, sges: &[] });
    assert_eq!(refused, Err(Error::QueueFull));
}

#[test]
fn a_blocked_path_holds_frames_but_not_timers() {
    let mut w = World::new(2, 16);
    let (a, _, ma, mb) = one(&mut w);
    let (va, rkey) = mb.at(0);
    w.nodes[0].nic.block_path(PathId::DEFAULT);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.run(Duration::from_ms(1));
    assert_eq!(w.counter(0, "tx_packets"), 0);
    w.nodes[0].nic.unblock_path(PathId::DEFAULT);
    assert_eq!(w.completion(0).status, Status::Success);
    w.drop_if = Some(Box::new(|_, _| true));
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.transmit();
    w.nodes[0].nic.block_path(PathId::DEFAULT);
    assert_eq!(w.completion(0).status, Status::TransportRetryExceeded);
}

/// A datagram whose path is blocked is not lost: its queue pair waits with it, and others' paths go on. When
/// the driver gives up on the path, what is for it is dropped, and what is for others leaves.
#[test]
fn datagrams_wait_for_a_blocked_path_until_it_is_given_up() {
    let mut w = World::new(2, 32);
    let (a, b, near, _) = datagrams(&mut w, false);
    let other = w.qp(0, QpType::Ud, CAPS);
    w.connect((0, other), (1, b), &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 4096));
    for id in 0..8 {
        w.recv(1, b, id, &[mb.sge(id as usize * 256, 104)]);
    }
    let far = UdAddress { path: PathId(7), ..near };
    let sges = [ma.sge(0, 64)];
    let datagram = |wr_id, to| SendWr { ud: Some(to), ..wr(wr_id, SendOp::Send, &sges) };
    let taken = |w: &mut World, node: usize| -> Vec<u64> {
        let all = std::iter::from_fn(|| w.poll(node));
        all.map(|done| (done.status == Status::Success).then_some(done.wr_id).unwrap()).collect()
    };
    w.nodes[0].nic.block_path(PathId(7));
    for (id, to) in [(1, far), (2, near)] {
        w.send(0, a, datagram(id, to));
    }
    w.send(0, other, datagram(3, near));
    w.run(Duration::from_ms(1));
    // The queue keeps its order; another one goes on.
    assert_eq!((taken(&mut w, 0), taken(&mut w, 1)), (vec![3], vec![0]));
    assert_eq!((w.counter(0, "datagram_waits"), w.counter(0, "drop_tx_blocked")), (1, 0));
    w.nodes[0].nic.unblock_path(PathId(7));
    w.run(Duration::from_ms(1));
    assert_eq!((taken(&mut w, 0), taken(&mut w, 1)), (vec![1, 2], vec![1, 2]));
    // Given up: dropped now, and later ones at once, until the path is free again.
    w.nodes[0].nic.block_path(PathId(7));
    w.send(0, a, datagram(4, far));
    w.send(0, a, datagram(5, near));
    w.run(Duration::from_ms(1));
    assert_eq!((taken(&mut w, 0), taken(&mut w, 1)), (vec![], vec![]));
    w.nodes[0].nic.give_up_path(PathId(7));
    w.send(0, a, datagram(6, far));
    w.run(Duration::from_ms(1));
    assert_eq!((taken(&mut w, 0), taken(&mut w, 1)), (vec![4, 5, 6], vec![3]));
    assert_eq!((w.counter(0, "datagram_waits"), w.counter(0, "drop_tx_blocked")), (2, 2));
    w.nodes[0].nic.unblock_path(PathId(7));
    w.nodes[0].nic.block_path(PathId(7));
    w.send(0, a, datagram(7, far));
    w.run(Duration::from_ms(1));
    assert_eq!(taken(&mut w, 1), vec![]);
    // Who waits may go away, and is not missed.
    w.nodes[0].nic.destroy_qp(a).unwrap();
    w.nodes[0].nic.unblock_path(PathId(7));
    w.send(0, other, datagram(8, far));
    w.run(Duration::from_ms(1));
    assert_eq!((taken(&mut w, 0), taken(&mut w, 1)), (vec![8], vec![4]));
}
