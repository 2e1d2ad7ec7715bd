//! WQEs are memory, read when they are executed; and the engine's steps can be taken one at a time.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Key};
use world::*;

#[test]
fn a_posted_wqe_can_be_changed_through_memory_until_it_is_executed() {
    let mut w = World::new(2, 1);
    let link = Link { depth: 1, ..Link::default() };
    let (a, _) = w.pair(QpType::Rc, CAPS, &link);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    ma.write(0, b"first---second--");
    // Register the send queue itself, as a program of self-modifying work requests does.
    let queue = w.nodes[0].nic.send_queue_memory(a).unwrap();
    let (addr, len) = (queue.addr(), queue.len() as u64);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let init = MrInit { pd: w.nodes[0].pd, addr, len, iova: addr, access };
    // SAFETY: the queue's memory lives as long as the queue pair, which outlives this test's calls.
    let sq = unsafe { w.nodes[0].nic.memory().reg_mr(&init) }.unwrap();

    let (va, rkey) = mb.at(0);
    // Two READs with depth 1: the second one, and the WRITE behind it, wait in memory.
    w.send(0, a, wr(1, SendOp::Read(va + 64, rkey), &[ma.sge(64, 8)]));
    w.send(0, a, wr(2, SendOp::Read(va + 64, rkey), &[ma.sge(72, 8)]));
    w.send(0, a, wr(3, SendOp::Write(va, rkey), &[ma.sge(0, 8)]));
    w.transmit();
    // A queue pair of the peer writes into the third WQE: its local address, 8 bytes on. The WQE is in
    // block 2; control and remote address take 32 bytes, and the address is the data segment's second half.
    let (c, d) = w.pair(QpType::Rc, CAPS, &Link::default());
    let _ = c;
    mb.write(1024, &(ma.addr() + 8).to_be_bytes());
    w.send(1, d, wr(9, SendOp::Write(addr + 2 * 64 + 32 + 8, sq.rkey), &[mb.sge(1024, 8)]));
    // Deliver the change first: the answers to the first READ are late.
    let mut held = true;
    w.drop_if = Some(Box::new(move |from, p| {
        let read = p.bth.opcode.operation().is_read_response();
        from == 1 && read && std::mem::take(&mut held)
    }));
    assert_eq!(w.completion(1).wr_id, 9);
    for id in [1, 2, 3] {
        let done = w.completion(0);
        assert_eq!((done.wr_id, done.status), (id, Status::Success));
    }
    assert_eq!(mb.read(0, 8), b"second--");
}

#[test]
fn fetch_execute_payload_and_completion_are_separate_steps() {
    let mut w = World::with_config(2, 2, |c| c.stepped = true);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    ma.write(0, b"before");
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 6)]));
    let mut out = TxFrame::default();
    let now = w.now;
    let nic = &mut w.nodes[0].nic;
    assert_eq!(nic.step(now, &mut out), Step::Fetched(a, 1));
    assert_eq!(nic.step(now, &mut out), Step::Executed(a, queue::wqe::WqeOp::Write));
    assert_eq!(nic.step(now, &mut out), Step::Frame(a));
    assert_eq!(out.payload.len(), 6);
    // The payload is read from memory only now, when the driver says so.
    ma.write(0, b"after!");
    let mut bytes = [0u8; 6];
    adverb_nic::memory::dma::read_bytes(out.payload.spans()[0], &mut bytes);
    assert_eq!(&bytes, b"after!");
    assert_eq!(nic.step(now, &mut out), Step::Idle);
    let packet = out.packet;
    w.inject(packet, &bytes);
    w.run(Duration::from_us(3));
    assert!(w.poll(0).is_none());
    w.run(Duration::from_us(3));
    // The world takes every step when it transmits; the completion was one of them.
    assert_eq!(w.completion(0).wr_id, 1);
}

/// A driver with several processing units takes the queue pairs out of the row, and says whose step is next.
#[test]
fn a_driver_may_take_queue_pairs_and_name_the_one_that_steps() {
    use queue::wqe::WqeOp;
    let mut w = World::with_config(2, 7, |c| c.stepped = true);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (b, c) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 6)]));
    w.send(0, b, wr(2, SendOp::Write(va, rkey), &[ma.sge(0, 6)]));
    let mut out = TxFrame::default();
    let now = w.now;
    let nic = &mut w.nodes[0].nic;
    assert_eq!(nic.ready().collect::<Vec<_>>(), [a, b]);
    assert_eq!((nic.take_ready(), nic.take_ready(), nic.take_ready()), (Some(a), Some(b), None));
    assert!(!nic.has_work(), "the driver has taken all of it");
    // In steps of both in turns, though each queue pair's own are in order.
    for qp in [b, a] {
        assert_eq!(nic.step_qp(now, qp, &mut out), Step::Fetched(qp, 1));
    }
    for qp in [b, a] {
        assert_eq!(nic.step_qp(now, qp, &mut out), Step::Executed(qp, WqeOp::Write));
    }
    for qp in [a, b] {
        assert_eq!(nic.step_qp(now, qp, &mut out), Step::Frame(qp));
        assert_eq!(nic.step_qp(now, qp, &mut out), Step::Idle);
    }
    assert_eq!(nic.step_qp(now, a, &mut out), Step::Idle, "it is not the driver's any more");
    // What it has to do later brings it back into the row; one that was not taken can be named as well.
    w.send(0, b, wr(3, SendOp::Write(va, rkey), &[ma.sge(0, 6)]));
    let nic = &mut w.nodes[0].nic;
    assert_eq!(nic.ready().collect::<Vec<_>>(), [b]);
    assert_eq!(nic.step_qp(now, b, &mut out), Step::Fetched(b, 1));
    assert_eq!(nic.step_qp(now, b, &mut out), Step::Executed(b, WqeOp::Write));
    assert_eq!(nic.step_qp(now, b, &mut out), Step::Frame(b));
    assert_eq!(nic.step_qp(now, b, &mut out), Step::Idle);
    assert_eq!(nic.ready().count(), 0);
    // The peer misses the first packet and says so: an answer, not a frame of a request.
    let packet = out.packet;
    let peer = &mut w.nodes[1].nic;
    peer.on_frame(now, &packet, &memory::Payload::from_slice(b"......"));
    assert_eq!(peer.take_ready(), Some(c));
    assert_eq!(peer.step_qp(now, c, &mut out), Step::Answer(c));
    assert_eq!(peer.step_qp(now, c, &mut out), Step::Idle);
    // A completion is nobody's turn: what the acknowledgement of both would bring.
    let mut packet = out.packet;
    packet.bth.psn = packet.bth.psn.next();
    packet.aeth.syndrome = adverb_wire::Syndrome::default();
    let nic = &mut w.nodes[0].nic;
    nic.on_frame(now, &packet, &memory::Payload::from_slice(&[]));
    for _ in [2, 3] {
        assert!(matches!(nic.step_common(now, &mut out), Step::Completed(_)));
    }
    assert_eq!(nic.step_common(now, &mut out), Step::Idle);
}

#[test]
fn a_doorbell_covers_wqes_written_by_hand() {
    let mut w = World::new(2, 3);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    ma.write(0, b"by hand!");
    let (va, rkey) = mb.at(0);
    // mlx5 layout: control (opcode RDMA_WRITE, 3 segments, completion), remote address, data.
    let mut wqe = [0u8; 48];
    wqe[3] = 0x08;
    wqe[7] = 3;
    wqe[11] = 8;
    wqe[16..24].copy_from_slice(&va.to_be_bytes());
    wqe[24..28].copy_from_slice(&rkey.0.to_be_bytes());
    wqe[32..36].copy_from_slice(&8u32.to_be_bytes());
    wqe[36..40].copy_from_slice(&ma.mr.lkey.0.to_be_bytes());
    wqe[40..48].copy_from_slice(&ma.addr().to_be_bytes());
    w.nodes[0].nic.send_queue_memory(a).unwrap().write(0, &wqe);
    w.nodes[0].nic.on_doorbell(w.now, a, 1).unwrap();
    assert_eq!(w.completion(0).status, Status::Success);
    assert_eq!(mb.read(0, 8), b"by hand!");
    let beyond = w.nodes[0].nic.on_doorbell(w.now, a, 1 << 20);
    assert_eq!(beyond, Err(Error::QueueFull));
}

/// A WRITE of 8 bytes as a program builds it, with room for more blocks behind it.
fn built_write(to: (u64, Key), from: Sge, segments: usize) -> Vec<u8> {
    let mut wqe = vec![0; 16 * segments];
    (wqe[3], wqe[7], wqe[11]) = (0x08, segments as u8, 8);
    wqe[16..24].copy_from_slice(&to.0.to_be_bytes());
    wqe[24..28].copy_from_slice(&to.1.0.to_be_bytes());
    wqe[32..36].copy_from_slice(&from.len.to_be_bytes());
    wqe[36..40].copy_from_slice(&from.lkey.0.to_be_bytes());
    wqe[40..48].copy_from_slice(&from.addr.to_be_bytes());
    wqe
}

#[test]
fn a_built_wqe_takes_its_turn_among_posted_ones() {
    let mut w = World::new(2, 8);
    let caps = QpCaps { max_send_wr: 4, ..CAPS };
    let (a, _) = w.pair(QpType::Rc, caps, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    ma.write(0, b"posted--built---");
    let wqe = built_write(mb.at(8), ma.sge(8, 8), 3);
    // Round the ring several times: what is polled makes room.
    for round in 0..20u64 {
        w.send(0, a, wr(2 * round, SendOp::Write(mb.at(0).0, mb.at(0).1), &[ma.sge(0, 8)]));
        let now = w.now;
        w.nodes[0].nic.post_built(now, a, &wqe, 2 * round + 1).unwrap();
        for id in [2 * round, 2 * round + 1] {
            let done = w.completion(0);
            assert_eq!((done.wr_id, done.status), (id, Status::Success));
        }
        assert_eq!(mb.read(0, 16), b"posted--built---");
        mb.write(0, &[0; 16]);
    }
    let (now, nic) = (w.now, &mut w.nodes[0].nic);
    for _ in 0..4 {
        nic.post_built(now, a, &wqe, 0).unwrap();
    }
    assert_eq!(nic.post_built(now, a, &wqe, 0), Err(Error::QueueFull), "no more than it was told");
    nic.check_invariants();
}

#[test]
fn a_built_wqe_is_as_long_as_it_says() {
    let mut w = World::new(2, 9);
    let (a, _) = w.pair(QpType::Rc, QpCaps { max_send_sge: 1, max_inline: 0, ..CAPS }, &Link::default());
    let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
    let now = w.now;
    let nic = &mut w.nodes[0].nic;
    let good = built_write(mb.at(0), ma.sge(0, 8), 3);
    let mut counts_more = good.clone();
    counts_more[7] = 4;
    for bad in [&[][..], &good[..40], &good[..32], &counts_more, &[0; 1024]] {
        assert!(matches!(nic.post_built(now, a, bad, 0), Err(Error::Invalid(_))));
    }
    // Two blocks, where every request takes one.
    let long = built_write(mb.at(0), ma.sge(0, 8), 5);
    assert!(matches!(nic.post_built(now, a, &long, 0), Err(Error::Invalid(_))));
    // Whose memory the program has asked for, it may fill as it likes.
    nic.send_queue_memory(a).unwrap();
    let next = nic.next_block(a).unwrap();
    assert_eq!(nic.post_built(now, a, &long, 7), Ok(next));
    assert_eq!(nic.next_block(a), Ok(next + 2));
    let done = w.completion(0);
    assert_eq!((done.wr_id, done.status), (7, Status::Success));
    let init = w.qp(0, QpType::Rc, CAPS);
    assert_eq!(w.nodes[0].nic.post_built(now, init, &good, 0), Err(Error::WrongState));
    let datagram = w.qp(0, QpType::Ud, CAPS);
    assert!(w.nodes[0].nic.post_built(now, datagram, &good, 0).is_err());
}

#[test]
fn rubbish_in_the_queue_is_an_error_completion() {
    let mut w = World::new(2, 4);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    w.nodes[0].nic.send_queue_memory(a).unwrap().write(0, &[0xff; 64]);
    w.nodes[0].nic.on_doorbell(w.now, a, 1).unwrap();
    assert_eq!(w.completion(0).status, Status::LocalQpOperation);
    assert!(w.nodes[0].nic.next_explanation().unwrap().rule.contains("opcode"));
}

#[test]
fn a_seed_replays_a_run() {
    let trace = |seed| {
        let mut w = World::new(2, seed);
        w.keep_log = true;
        w.faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, corrupt: 0.0, late: 0.0, mark: 0.0 };
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
        for i in 0..20 {
            let (va, rkey) = mb.at(0);
            w.send(0, a, wr(i, SendOp::Write(va, rkey), &[ma.sge(0, 20_000)]));
        }
        w.run(Duration::from_ms(1000));
        // Addresses and keys of this process's memory are not part of the run.
        w.log.iter().map(|(from, p)| (*from, p.bth, p.aeth)).collect::<Vec<_>>()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}
