//! Every operation of every service, between two NICs without faults.

mod world;
use adverb_nic::*;
use adverb_wire::Duration;
use world::*;

#[test]
fn rc_write_read_atomics_and_sends() {
    let mut w = World::new(2, 1);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    for len in [0usize, 1, 63, 1024, 1025, 5000, 20_000] {
        let data = pattern(len as u8, len);
        ma.write(0, &data);
        let (va, rkey) = mb.at(3);
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, len)]));
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status, done.op), (1, Status::Success, CompletionOp::Write));
        assert_eq!(mb.read(3, len), data);

        // Scattered over two entries.
        w.send(
            0,
            a,
            wr(2, SendOp::Read(va, rkey), &[ma.sge(30_000, len / 2), ma.sge(40_000, len - len / 2)]),
        );
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status, done.byte_len), (2, Status::Success, len as u32));
        assert_eq!([ma.read(30_000, len / 2), ma.read(40_000, len - len / 2)].concat(), data);

        w.recv(1, b, 77, &[mb.sge(30_000, 100.min(len)), mb.sge(31_000, 25_000)]);
        w.send(0, a, wr(3, SendOp::SendImm(0xcafe), &[ma.sge(0, len)]));
        let got = w.completion(1);
        assert_eq!((got.wr_id, got.op, got.byte_len), (77, CompletionOp::Recv, len as u32));
        assert!(got.has_immediate && got.immediate == 0xcafe);
        assert_eq!([mb.read(30_000, 100.min(len)), mb.read(31_000, len - 100.min(len))].concat(), data);
        assert_eq!(w.completion(0).wr_id, 3);

        w.recv(1, b, 78, &[]);
        w.send(0, a, wr(4, SendOp::WriteImm(va, rkey, 9), &[ma.sge(0, len)]));
        let got = w.completion(1);
        assert_eq!(
            (got.wr_id, got.op, got.byte_len, got.immediate),
            (78, CompletionOp::RecvWriteImm, len as u32, 9)
        );
        assert_eq!(w.completion(0).wr_id, 4);
    }
    mb.write(64, &5u64.to_ne_bytes());
    let (va, rkey) = mb.at(64);
    w.send(0, a, wr(5, SendOp::FetchAdd { addr: va, rkey, add: 10 }, &[ma.sge(0, 8)]));
    assert_eq!(w.completion(0).op, CompletionOp::FetchAdd);
    assert_eq!((ma.word(0), mb.word(64)), (5, 15));
    for (compare, after) in [(14, 15), (15, 99)] {
        let op = SendOp::CompareSwap { addr: va, rkey, compare, swap: 99 };
        w.send(0, a, wr(6, op, &[ma.sge(8, 8)]));
        assert_eq!(w.completion(0).status, Status::Success);
        assert_eq!((ma.word(8), mb.word(64)), (15, after));
    }
}

#[test]
fn inline_data_may_be_overwritten_after_posting() {
    let mut w = World::new(2, 2);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let mb = w.memory(1, 128);
    let (va, rkey) = mb.at(0);
    let mut bytes = *b"written inline, forty bytes of it, yes!!";
    let flags = SendFlags { signaled: true, ..Default::default() };
    let op = SendOp::Write(va, rkey);
    let request = SendWr { wr_id: 1, op, flags, data: SendData::Inline(&bytes), ud: None, xrc_srqn: 0 };
    w.nodes[0].nic.post_send(w.now, a, &request).unwrap();
    bytes.fill(0);
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 40), b"written inline, forty bytes of it, yes!!");
}

#[test]
fn one_acknowledgement_covers_many_requests() {
    let mut w = World::new(2, 3);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    for i in 0..40 {
        let mut request = wr(i, SendOp::Write(va, rkey), &[]);
        let sges = [ma.sge(0, 64)];
        request.data = SendData::Sges(&sges);
        request.flags.signaled = i % 10 == 9;
        w.send(0, a, request);
    }
    for i in [9, 19, 29, 39] {
        assert_eq!(w.completion(0).wr_id, i);
    }
    w.run(Duration::from_ms(1));
    assert!(w.poll(0).is_none());
}

#[test]
fn uc_and_ud() {
    let mut w = World::new(2, 4);
    let (a, b) = w.pair(QpType::Uc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    let data = pattern(3, 10_000);
    ma.write(0, &data);
    w.recv(1, b, 5, &[mb.sge(0, 20_000)]);
    w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 10_000)]));
    assert_eq!(w.completion(0).status, Status::Success);
    let got = w.completion(1);
    assert_eq!((got.wr_id, got.byte_len), (5, 10_000));
    assert_eq!(mb.read(0, 10_000), data);
    let (va, rkey) = mb.at(30_000);
    w.send(0, a, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 10_000)]));
    w.completion(0);
    w.run(Duration::from_ms(1));
    assert_eq!(mb.read(30_000, 10_000), data);

    let (c, d) = w.pair(QpType::Ud, CAPS, &Link::default());
    w.recv(1, d, 6, &[mb.sge(0, 2048)]);
    let to = UdAddress {
        dgid: w.nodes[1].gid,
        qpn: w.nodes[1].nic.qp_number(d).unwrap(),
        qkey: 0x1111,
        traffic_class: 0,
        hop_limit: 0,
        path: PathId::DEFAULT,
    };
    let sges = [ma.sge(0, 1000)];
    let request = SendWr { ud: Some(to), ..wr(3, SendOp::SendImm(44), &sges) };
    w.send(0, c, request);
    assert_eq!(w.completion(0).wr_id, 3);
    let got = w.completion(1);
    assert_eq!((got.wr_id, got.byte_len, got.immediate, got.has_grh), (6, 1040, 44, true));
    assert_eq!(got.src_qp, w.nodes[0].nic.qp_number(c).unwrap());
    assert_eq!(mb.read(40, 1000), data[..1000]);
    let header = mb.read(20, 20);
    assert_eq!((header[0], &header[12..16], &header[16..20]), (0x45, &[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));

    let wrong = SendWr { ud: Some(UdAddress { qkey: 1, ..to }), ..wr(4, SendOp::Send, &sges) };
    w.recv(1, d, 7, &[mb.sge(0, 2048)]);
    w.send(0, c, wrong);
    w.completion(0);
    w.run(Duration::from_ms(1));
    assert!(w.poll(1).is_none());
    assert_eq!(w.counter(1, "drop_qkey"), 1);
}

#[test]
fn xrc_reaches_several_shared_queues_through_one_target() {
    let mut w = World::new(2, 5);
    let xrcd = w.nodes[1].nic.alloc_xrcd().unwrap();
    let n = &mut w.nodes[1];
    let init = SrqInit { pd: n.pd, max_wr: 16, max_sge: 1, xrc: Some((xrcd, n.cq)) };
    let srqs = [n.nic.create_srq(&init).unwrap(), n.nic.create_srq(&init).unwrap()];
    let target = QpInit {
        qp_type: QpType::XrcRecv,
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: Some(xrcd),
        sq_sig_all: false,
        caps: QpCaps::default(),
    };
    let b = n.nic.create_qp(&target).unwrap();
    let a = w.qp(0, QpType::XrcSend, CAPS);
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    let (ma, mb) = (w.memory(0, 8192), w.memory(1, 8192));
    ma.write(0, &pattern(1, 3000));
    for (i, srq) in srqs.iter().enumerate() {
        let sges = [mb.sge(i * 4000, 4000)];
        w.nodes[1].nic.post_srq_recv(*srq, &RecvWr { wr_id: i as u64, sges: &sges }).unwrap();
    }
    for (i, srq) in srqs.iter().enumerate() {
        let number = w.nodes[1].nic.srq_number(*srq).unwrap();
        let sges = [ma.sge(0, 3000)];
        w.send(0, a, SendWr { xrc_srqn: number, ..wr(9, SendOp::Send, &sges) });
        let got = w.completion(1);
        assert_eq!((got.wr_id, got.byte_len, got.status), (i as u64, 3000, Status::Success));
        assert_eq!(mb.read(i * 4000, 3000), pattern(1, 3000));
        assert_eq!(w.completion(0).status, Status::Success);
    }
    let sges = [ma.sge(0, 8)];
    w.send(0, a, SendWr { xrc_srqn: 4242, ..wr(10, SendOp::Send, &sges) });
    assert_eq!(w.completion(0).status, Status::RemoteInvalidRequest);
    assert_eq!(w.nodes[1].nic.dealloc_xrcd(xrcd), Err(Error::Busy));
}

#[test]
fn shared_receive_queue_raises_its_limit_event_once() {
    let mut w = World::new(2, 6);
    let n = &mut w.nodes[1];
    let srq = n.nic.create_srq(&SrqInit { pd: n.pd, max_wr: 8, max_sge: 1, xrc: None }).unwrap();
    let init = QpInit {
        qp_type: QpType::Rc,
        pd: Some(n.pd),
        send_cq: Some(n.cq),
        recv_cq: Some(n.cq),
        srq: Some(srq),
        xrcd: None,
        sq_sig_all: false,
        caps: CAPS,
    };
    let b = n.nic.create_qp(&init).unwrap();
    let a = w.qp(0, QpType::Rc, CAPS);
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 1024));
    for i in 0..8 {
        let sges = [mb.sge(i as usize * 64, 64)];
        w.nodes[1].nic.post_srq_recv(srq, &RecvWr { wr_id: i, sges: &sges }).unwrap();
    }
    assert_eq!(w.nodes[1].nic.post_srq_recv(srq, &RecvWr { wr_id: 0, sges: &[] }), Err(Error::QueueFull));
    w.nodes[1].nic.modify_srq(srq, None, Some(6)).unwrap();
    for _ in 0..5 {
        w.send(0, a, wr(0, SendOp::Send, &[ma.sge(0, 8)]));
        w.completion(1);
    }
    let events: Vec<_> = std::iter::from_fn(|| w.nodes[1].nic.next_event()).collect();
    assert_eq!(events, [Event::SrqLimitReached(srq)]);
    assert_eq!(w.nodes[1].nic.destroy_srq(srq), Err(Error::Busy));
}

#[test]
fn completion_events_are_raised_once_for_each_arming() {
    let mut w = World::new(2, 7);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let cq = w.nodes[1].cq;
    let send = |w: &mut World, solicited: bool| {
        w.recv(1, b, 0, &[mb.sge(0, 64)]);
        let sges = [ma.sge(0, 8)];
        let mut request = wr(0, SendOp::Send, &sges);
        request.flags.solicited = solicited;
        w.send(0, a, request);
        w.completion(0);
        w.nodes[1].nic.next_event()
    };
    assert_eq!(send(&mut w, false), None);
    w.nodes[1].nic.arm_cq(cq, false).unwrap();
    assert_eq!(send(&mut w, false), Some(Event::Completion(cq)));
    assert_eq!(send(&mut w, false), None);
    w.nodes[1].nic.arm_cq(cq, true).unwrap();
    assert_eq!(send(&mut w, false), None);
    assert_eq!(send(&mut w, true), Some(Event::Completion(cq)));
}

#[test]
fn a_send_queue_takes_as_many_requests_as_it_said() {
    // Large requests leave the ring room for several times as many small ones.
    for (asked, max_sge, max_inline) in [(13, 1, 0), (16, 1, 0), (16, 30, 0), (121, 4, 200), (16, 1, 928)] {
        let mut w = World::new(2, 40);
        let caps = QpCaps { max_send_wr: asked, max_send_sge: max_sge, max_inline, ..CAPS };
        let (a, _) = w.pair(QpType::Rc, caps, &Link::default());
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        let (va, rkey) = mb.at(0);
        assert_eq!(w.nodes[0].nic.qp_caps(a).unwrap().max_send_wr, asked);
        let small = [ma.sge(0, 8)];
        let large = vec![ma.sge(0, 8); max_sge as usize];
        for round in 0..5u64 {
            // Both sizes mixed, every fifth one signalled, the last one too.
            let sges = |i: u64| if (i + round).is_multiple_of(3) { &large[..] } else { &small[..] };
            for i in 0..u64::from(asked) {
                let mut request = wr(i, SendOp::Write(va, rkey), sges(i));
                request.flags.signaled = i % 5 == 4 || i + 1 == u64::from(asked);
                w.send(0, a, request);
            }
            let full = w.nodes[0].nic.post_send(w.now, a, &wr(0, SendOp::Write(va, rkey), &small));
            assert_eq!(full, Err(Error::QueueFull), "{asked} of {max_sge} entries, round {round}");
            let room = |w: &World, n: usize| {
                let more = std::iter::repeat_n(wr(0, SendOp::Write(va, rkey), &small), n);
                w.nodes[0].nic.has_send_room(a, more).unwrap()
            };
            assert!(!room(&w, 1));
            w.run(Duration::from_ms(1));
            // Done, but not polled: adapters free a request's place when its completion is polled.
            assert!(!room(&w, 1));
            assert_eq!(w.poll(0).map(|c| c.wr_id), Some(4));
            assert!(room(&w, 5) && !room(&w, 6), "five are free");
            while w.poll(0).is_some() {}
            assert!(room(&w, asked as usize) && !room(&w, asked as usize + 1));
        }
    }
}

#[test]
fn a_receive_queue_takes_as_many_requests_as_it_said_until_they_are_polled() {
    for shared in [false, true] {
        let mut w = World::new(2, 41);
        let a = w.qp(0, QpType::Rc, CAPS);
        let n = &mut w.nodes[1];
        let srq = shared
            .then(|| n.nic.create_srq(&SrqInit { pd: n.pd, max_wr: 5, max_sge: 1, xrc: None }).unwrap());
        let caps = QpCaps { max_recv_wr: 5, ..CAPS };
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(n.pd),
            send_cq: Some(n.cq),
            recv_cq: Some(n.cq),
            srq,
            xrcd: None,
            sq_sig_all: false,
            caps,
        };
        let b = n.nic.create_qp(&init).unwrap();
        w.connect((0, a), (1, b), &Link::default());
        w.connect((1, b), (0, a), &Link::default());
        let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
        let sges = [mb.sge(0, 64)];
        let post = |w: &mut World, wr_id: u64| {
            let receive = RecvWr { wr_id, sges: &sges };
            match srq {
                Some(srq) => w.nodes[1].nic.post_srq_recv(srq, &receive),
                None => w.nodes[1].nic.post_recv(w.now, b, &receive),
            }
        };
        for round in 0..4 {
            for i in 0..5 {
                post(&mut w, i).unwrap();
            }
            assert_eq!(post(&mut w, 9), Err(Error::QueueFull));
            for i in 0..5 {
                w.send(0, a, wr(i, SendOp::Send, &[ma.sge(0, 8)]));
                w.completion(0);
            }
            // Taken, but not polled.
            assert_eq!(post(&mut w, 9), Err(Error::QueueFull), "shared: {shared}, round {round}");
            assert_eq!(w.poll(1).map(|c| c.wr_id), Some(0));
            post(&mut w, 9).unwrap();
            assert_eq!(post(&mut w, 9), Err(Error::QueueFull));
            w.send(0, a, wr(9, SendOp::Send, &[ma.sge(0, 8)]));
            w.completion(0);
            while w.poll(1).is_some() {}
        }
        // Completions that go with their queue pair free their places too.
        for i in 0..5 {
            post(&mut w, i).unwrap();
        }
        w.send(0, a, wr(0, SendOp::Send, &[ma.sge(0, 8)]));
        w.completion(0);
        w.nodes[1].nic.destroy_qp(b).unwrap();
        if shared {
            post(&mut w, 5).unwrap();
            assert_eq!(post(&mut w, 9), Err(Error::QueueFull));
        }
    }
}

#[test]
fn a_shared_receive_queue_changes_its_size_and_keeps_what_is_posted() {
    let mut w = World::new(2, 42);
    let n = &mut w.nodes[1];
    let srq = n.nic.create_srq(&SrqInit { pd: n.pd, max_wr: 6, max_sge: 2, xrc: None }).unwrap();
    let init = QpInit {
        qp_type: QpType::Rc,
        pd: Some(n.pd),
        send_cq: Some(n.cq),
        recv_cq: Some(n.cq),
        srq: Some(srq),
        xrcd: None,
        sq_sig_all: false,
        caps: CAPS,
    };
    let b = n.nic.create_qp(&init).unwrap();
    let a = w.qp(0, QpType::Rc, CAPS);
    w.connect((0, a), (1, b), &Link::default());
    w.connect((1, b), (0, a), &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 4096));
    ma.write(0, &pattern(7, 64));
    let (mut posted, mut received) = (0u64, 0u64);
    for size in [6u32, 4, 20, 100, 3, 64, 64, 7] {
        w.nodes[1].nic.modify_srq(srq, Some(size), None).unwrap();
        assert_eq!(w.nodes[1].nic.query_srq(srq).unwrap().max_wr, size);
        while posted - received < u64::from(size) {
            let at = (posted % 32) as usize * 64;
            let sges = [mb.sge(at, 1), mb.sge(at + 1, 63)];
            w.nodes[1].nic.post_srq_recv(srq, &RecvWr { wr_id: posted, sges: &sges }).unwrap();
            posted += 1;
        }
        let full = w.nodes[1].nic.post_srq_recv(srq, &RecvWr { wr_id: 0, sges: &[] });
        assert_eq!(full, Err(Error::QueueFull));
        let small = w.nodes[1].nic.modify_srq(srq, Some(size - 1), None);
        assert!(matches!(small, Err(Error::Invalid(_))), "more is posted than that");
        // All but two are taken, so that what stays lies anywhere in the ring.
        while posted - received > 2 {
            mb.write((received % 32) as usize * 64, &[0; 64]);
            w.send(0, a, wr(0, SendOp::Send, &[ma.sge(0, 64)]));
            let got = w.completion(1);
            assert_eq!((got.wr_id, got.status, got.byte_len), (received, Status::Success, 64));
            assert_eq!(mb.read((received % 32) as usize * 64, 64), pattern(7, 64));
            w.completion(0);
            received += 1;
        }
    }
    let nic = &mut w.nodes[1].nic;
    nic.modify_srq(srq, None, Some(5)).unwrap();
    assert!(matches!(nic.modify_srq(srq, Some(4), None), Err(Error::Invalid(_))), "below the limit");
    assert!(matches!(nic.modify_srq(srq, Some(limits::MAX_SRQ_WR + 1), None), Err(Error::Invalid(_))));
    assert!(matches!(nic.modify_srq(srq, Some(0), None), Err(Error::Invalid(_))));
    nic.modify_srq(srq, Some(4), Some(3)).unwrap();
    assert_eq!(nic.query_srq(srq).unwrap().limit, 3);
}

#[test]
fn arming_a_queue_with_news_raises_the_event_at_once() {
    let mut w = World::new(2, 43);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 1024));
    let cq = w.nodes[1].cq;
    let send = |w: &mut World, solicited: bool| {
        w.recv(1, b, 0, &[mb.sge(0, 64)]);
        let sges = [ma.sge(0, 8)];
        let mut request = wr(0, SendOp::Send, &sges);
        request.flags.solicited = solicited;
        w.send(0, a, request);
        w.completion(0);
    };
    let arm = |w: &mut World, solicited_only: bool| {
        w.nodes[1].nic.arm_cq(cq, solicited_only).unwrap();
        w.nodes[1].nic.next_event()
    };
    while w.nodes[1].nic.next_event().is_some() {}
    send(&mut w, false);
    assert_eq!(arm(&mut w, true), None, "none was solicited");
    assert_eq!(arm(&mut w, false), Some(Event::Completion(cq)));
    // The event is spent, and has told of all that is there.
    assert_eq!(arm(&mut w, false), None);
    send(&mut w, false);
    assert_eq!(w.nodes[1].nic.next_event(), Some(Event::Completion(cq)));
    // The usual way: an event, arm, poll. There is no second event for the same completion.
    assert_eq!(arm(&mut w, false), None);
    while w.poll(1).is_some() {}
    assert_eq!(w.nodes[1].nic.next_event(), None);
    // One that comes between the event and the arming, and is not polled.
    send(&mut w, true);
    assert_eq!(w.nodes[1].nic.next_event(), Some(Event::Completion(cq)));
    send(&mut w, true);
    assert_eq!(w.nodes[1].nic.next_event(), None);
    assert_eq!(arm(&mut w, true), Some(Event::Completion(cq)));
    // One that was polled needs no event.
    send(&mut w, true);
    while w.poll(1).is_some() {}
    assert_eq!(arm(&mut w, true), None);
    send(&mut w, true);
    assert_eq!(w.nodes[1].nic.next_event(), Some(Event::Completion(cq)));
    // An armed queue awaits acknowledgements, a queue whose event was raised at once does not.
    assert!(!w.nodes[1].nic.awaits_acknowledgement());
}

#[test]
fn fence_waits_for_reads() {
    let mut w = World::new(2, 8);
    w.keep_log = true;
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let (va, rkey) = mb.at(0);
    mb.write(0, b"eight by");
    w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 8)]));
    // Sends what the READ brings: right only if it waits for it.
    let sges = [ma.sge(0, 8)];
    let mut write = wr(2, SendOp::Write(va + 8, rkey), &sges);
    write.flags.fence = true;
    w.send(0, a, write);
    assert_eq!((w.completion(0).wr_id, w.completion(0).wr_id), (1, 2));
    assert_eq!(mb.read(8, 8), b"eight by");
}

#[test]
fn multicast_reaches_every_member() {
    let mut w = World::new(2, 9);
    let (c, d) = w.pair(QpType::Ud, CAPS, &Link::default());
    let e = w.qp(1, QpType::Ud, CAPS);
    w.connect((1, e), (0, c), &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 4096));
    let group = adverb_wire::Gid::from(std::net::Ipv4Addr::new(239, 1, 2, 3));
    for qp in [d, e] {
        w.nodes[1].nic.attach_multicast(qp, group).unwrap();
        w.recv(1, qp, 1, &[mb.sge(0, 100)]);
    }
    assert_eq!(w.nodes[1].nic.destroy_qp(d), Err(Error::Busy));
    let to = UdAddress {
        dgid: group,
        qpn: qpn(0xff_ffff),
        qkey: 0x1111,
        traffic_class: 0,
        hop_limit: 1,
        path: PathId::DEFAULT,
    };
    let sges = [ma.sge(0, 16)];
    w.send(0, c, SendWr { ud: Some(to), ..wr(3, SendOp::Send, &sges) });
    w.keep_log = true;
    w.transmit();
    let mut packet = w.log[0].1;
    assert_eq!((packet.flow.dst, packet.bth.dest_qp), (group, qpn(0xff_ffff)));
    // The wire of this world does not know groups: hand the frame over.
    packet.flow.dst = group;
    let now = w.now;
    w.nodes[1].nic.on_frame(now, &packet, &Payload::from_slice(&[7; 16]));
    assert_eq!((w.completion(1).byte_len, w.completion(1).byte_len), (56, 56));
    w.nodes[1].nic.detach_multicast(d, group).unwrap();
    w.nodes[1].nic.destroy_qp(d).unwrap();
}

#[test]
fn memory_windows_narrow_and_end_access() {
    let mut w = World::new(2, 10);
    let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
    let ma = w.memory(0, 64);
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let mb = w.memory_with(1, 4096, access);
    let pd = w.nodes[1].pd;
    let mw = w.nodes[1].nic.memory().alloc_mw(pd, MwType::Two).unwrap();
    let key = adverb_wire::Key(mw.rkey.0 & !0xff | 0x5a);
    let bind = SendOp::BindMw {
        mw: mw.id,
        rkey: key,
        lkey: mb.mr.lkey,
        addr: mb.addr() + 100,
        len: 50,
        access: Access::REMOTE_WRITE,
    };
    w.send(1, b, wr(1, bind, &[]));
    let done = w.completion(1);
    assert_eq!((done.status, done.op), (Status::Success, CompletionOp::BindMw));
    ma.write(0, &pattern(1, 50));
    w.send(0, a, wr(2, SendOp::Write(mb.addr() + 100, key), &[ma.sge(0, 50)]));
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(100, 50), pattern(1, 50));
    // The peer gives it back with a SEND that invalidates; after that the key is dead.
    w.recv(1, b, 3, &[mb.sge(0, 64)]);
    w.send(0, a, wr(3, SendOp::SendInv(key), &[ma.sge(0, 4)]));
    let got = w.completion(1);
    assert!(got.has_invalidate && got.immediate == key.0);
    w.completion(0);
    w.send(0, a, wr(4, SendOp::Write(mb.addr() + 100, key), &[ma.sge(0, 1)]));
    assert_eq!(w.completion(0).status, Status::RemoteAccess);
}

#[test]
fn the_general_services_queue_frees_its_own_slots_only() {
    let mut w = World::new(2, 11);
    let caps = QpCaps { max_send_wr: 16, max_send_sge: 1, max_inline: 0, ..CAPS };
    // Index 1 is another queue pair's; queue pair number 1 is the general services'.
    let (first, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (second, _) = w.pair(QpType::Rc, caps, &Link::default());
    let gsi = w.qp(0, QpType::Gsi, CAPS);
    w.connect((0, gsi), (1, first), &Link::default());
    assert_eq!(w.nodes[0].nic.qp_number(gsi).unwrap(), qpn(1));
    let ma = w.memory(0, 64);
    let to = UdAddress {
        dgid: w.nodes[1].gid,
        qpn: qpn(1),
        qkey: 0x8001_0000,
        traffic_class: 0,
        hop_limit: 0,
        path: PathId::DEFAULT,
    };
    let sges = [ma.sge(0, 8)];
    for i in 0..40 {
        w.send(0, gsi, SendWr { ud: Some(to), ..wr(i, SendOp::Send, &sges) });
        assert_eq!(w.completion(0).wr_id, i);
    }
    w.drop_if = Some(Box::new(|_, _| true));
    for i in 0..16 {
        w.send(0, second, wr(i, SendOp::Send, &sges));
    }
    let full = w.nodes[0].nic.post_send(w.now, second, &wr(16, SendOp::Send, &sges));
    assert_eq!(full, Err(Error::QueueFull));
}

#[test]
fn a_fixed_window_stays_and_one_that_halves_does_not() {
    for (congestion, second) in [(CongestionControl::Fixed, 32), (CongestionControl::Halving, 16)] {
        let mut w = World::with_config(2, 50, |c| (c.max_unacked_packets, c.congestion) = (32, congestion));
        w.keep_log = true;
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
        let (va, rkey) = mb.at(0);
        w.drop_if = Some(Box::new(|from, _| from == 0));
        w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 65536)]));
        w.transmit();
        assert_eq!(w.log.len(), 32);
        w.log.clear();
        w.run(Duration::from_ms(2));
        assert_eq!((w.counter(0, "timeouts"), w.log.len()), (1, second), "{congestion:?}");
    }
}
