//! Managed receive queues: messages take what RECV_ENABLEs allow, round and round; and receives that scatter
//! into WQEs.

use super::bench::*;
use super::world::*;
use adverb_nic::*;
use adverb_wire::Duration;

const CLIENT: QpFlags = QpFlags::MANAGED_RECV;

/// A message of these bytes from the far end.
fn send(b: &mut Bench, from: QpId, bytes: &[u8]) {
    b.far.write(0, bytes);
    let list = [b.far.sge(0, bytes.len())];
    b.w.send(1, from, wr(7, SendOp::Send, &list));
}

#[test]
fn messages_take_receives_as_far_as_they_are_enabled_round_and_round() {
    let mut b = Bench::new(1);
    let (qp, client) = b.pair(CLIENT, SMALL);
    let starter = b.qp(false);
    for at in 0..4 {
        b.w.recv(0, qp, 40 + at as u64, &[b.near.sge(64 * at, 8)]);
    }
    send(&mut b, client, b"message0");
    b.w.run(Duration::from_us(100));
    assert!(b.w.poll(0).is_none(), "posted is not enabled");
    assert!(b.w.counter(0, "rnr_naks_sent") > 0);
    // 70,000 messages through 4 receives: past 2^16, without one more post.
    let number = b.w.nodes[0].nic.qp_number(qp).unwrap();
    let mut enabled = 0u32;
    for round in 0..70_000u32 {
        if round == enabled {
            // Two more, said by the low 16 bits, and more than are left in those posted.
            enabled += 2;
            b.post(starter, SendOp::RecvEnable { qp: number, index: enabled & 0xffff }, &[]).unwrap();
            assert_eq!(b.w.completion(0).status, Status::Success);
        }
        if round > 0 {
            send(&mut b, client, &u64::from(round).to_ne_bytes());
        }
        let got = b.w.completion(0);
        assert_eq!((got.status, got.wr_id, got.byte_len), (Status::Success, 40 + u64::from(round % 4), 8));
        if round > 0 {
            assert_eq!(b.near.word(64 * (round as usize % 4)), round.into());
        }
        assert_eq!(b.w.completion(1).status, Status::Success);
    }
    // An ENABLE that says less than was said changes nothing.
    b.post(starter, SendOp::RecvEnable { qp: number, index: (enabled - 1) & 0xffff }, &[]).unwrap();
    b.w.completion(0);
    send(&mut b, client, b"too many");
    b.w.run(Duration::from_us(100));
    assert!(b.w.poll(0).is_none());
    // An error flushes no more than was posted, and that was taken long ago.
    let now = b.w.now;
    let nic = &mut b.w.nodes[0].nic;
    let (mut attr, _) = nic.query_qp(qp).unwrap();
    attr.state = QpState::Err;
    nic.modify_qp(now, qp, &attr, QpAttrMask::STATE).unwrap();
    assert!(b.w.poll(0).is_none());
}

#[test]
fn what_was_posted_and_not_enabled_is_flushed_once() {
    let mut b = Bench::new(2);
    let (qp, _) = b.pair(CLIENT, SMALL);
    for id in 0..3 {
        b.w.recv(0, qp, id, &[b.near.sge(0, 8)]);
    }
    let now = b.w.now;
    let nic = &mut b.w.nodes[0].nic;
    let (mut attr, _) = nic.query_qp(qp).unwrap();
    attr.state = QpState::Err;
    nic.modify_qp(now, qp, &attr, QpAttrMask::STATE).unwrap();
    for id in 0..3 {
        let done = b.w.completion(0);
        assert_eq!((done.wr_id, done.status), (id, Status::WorkRequestFlushed));
    }
    b.nothing_more();
}

#[test]
fn a_recv_enable_names_a_managed_receive_queue_of_its_domain() {
    let mut b = Bench::new(3);
    let (unmanaged, _) = b.pair(QpFlags::CROSS_CHANNEL, SMALL);
    let init = b.init(SMALL);
    let in_reset = b.w.nodes[0].nic.create_qp_with(&init, CLIENT).unwrap();
    let other = b.w.nodes[0].nic.memory().alloc_pd().unwrap();
    let foreign = QpInit { pd: Some(other), ..b.init(SMALL) };
    let foreign = b.w.nodes[0].nic.create_qp_with(&foreign, CLIENT).unwrap();
    let none = "a RECV_ENABLE names no managed receive queue of its own protection domain";
    for (target, rule) in [
        (unmanaged, none),
        (foreign, none),
        (in_reset, "a RECV_ENABLE names a queue pair that is in RESET or ERR"),
    ] {
        let starter = b.qp(false);
        let number = b.w.nodes[0].nic.qp_number(target).unwrap();
        b.post(starter, SendOp::RecvEnable { qp: number, index: 1 }, &[]).unwrap();
        assert_eq!(b.w.completion(0).status, Status::LocalQpOperation);
        assert_eq!(b.rule(), rule);
    }
    // A shared receive queue cannot be managed, nor a datagram queue pair's.
    let nic = &mut b.w.nodes[0].nic;
    let srq = nic.create_srq(&SrqInit { pd: init.pd.unwrap(), max_wr: 4, max_sge: 1, xrc: None }).unwrap();
    let shared = nic.create_qp_with(&QpInit { srq: Some(srq), ..init }, CLIENT);
    assert!(matches!(shared, Err(Error::Unsupported(_))));
    let datagram = nic.create_qp_with(&QpInit { qp_type: QpType::Ud, ..init }, CLIENT);
    assert!(matches!(datagram, Err(Error::Unsupported(_))));
    let plain = nic.create_qp_with(&init, QpFlags::IGNORE_SQ_OVERFLOW);
    assert!(matches!(plain, Err(Error::Invalid(_))));
}

#[test]
fn a_full_queue_refuses_posts_unless_it_was_created_to_overflow() {
    let mut b = Bench::new(4);
    let write = SendOp::Write(b.far.at(0).0, b.far.at(0).1);
    let from = [b.near.sge(0, 8)];
    for (flags, overflows) in
        [(QpFlags::MANAGED_SEND, false), (QpFlags::MANAGED_SEND | QpFlags::IGNORE_SQ_OVERFLOW, true)]
    {
        let (qp, _) = b.pair(flags, SMALL);
        for _ in 0..4 {
            b.post(qp, write, &from).unwrap();
        }
        let more = b.post(qp, write, &from);
        assert_eq!(more, if overflows { Ok(()) } else { Err(Error::QueueFull) });
        b.w.nodes[0].nic.check_invariants();
    }
    for (flags, overflows) in [(CLIENT, false), (CLIENT | QpFlags::IGNORE_RQ_OVERFLOW, true)] {
        let (qp, _) = b.pair(flags, SMALL);
        for _ in 0..4 {
            b.w.recv(0, qp, 1, &from);
        }
        let now = b.w.now;
        let more = b.w.nodes[0].nic.post_recv(now, qp, &RecvWr { wr_id: 2, sges: &from });
        assert_eq!(more, if overflows { Ok(()) } else { Err(Error::QueueFull) });
    }
}

/// A client's message into fields of WQEs: as many entries as there are, and no byte beside them.
#[test]
fn receives_scatter_into_wqes_byte_by_byte() {
    for entries in 1..=30usize {
        let mut b = Bench::new(5);
        let wide = QpCaps { max_recv_sge: 30, ..SMALL };
        let (qp, client) = b.pair(CLIENT, wide);
        let target = b.qp(true);
        let (addr, code) = b.code(target);
        // Every second byte of the first block.
        let sges: Vec<Sge> =
            (0..entries).map(|at| Sge { addr: addr + 2 * at as u64, len: 1, lkey: code.lkey }).collect();
        b.put(target, 0, &[0xaa; 64]);
        b.w.recv(0, qp, 1, &sges);
        b.w.recv(0, qp, 2, &sges);
        let starter = b.qp(false);
        let number = b.w.nodes[0].nic.qp_number(qp).unwrap();
        b.post(starter, SendOp::RecvEnable { qp: number, index: 1 }, &[]).unwrap();
        b.w.completion(0);
        let message = pattern(3, entries);
        // One byte short: the last entry keeps what it had.
        send(&mut b, client, &message[..entries - 1]);
        assert_eq!(b.w.completion(0).status, Status::Success);
        b.w.completion(1);
        let mut expected = vec![0xaa; 64];
        for (at, byte) in message.iter().take(entries - 1).enumerate() {
            expected[2 * at] = *byte;
        }
        let read = |b: &mut Bench| {
            let mut bytes = vec![0; 64];
            let span = b.w.nodes[0].nic.send_queue_memory(target).unwrap().span(0, 64);
            adverb_nic::memory::dma::read_bytes(span, &mut bytes);
            bytes
        };
        assert_eq!(read(&mut b), expected, "{entries}");
        // While the chain runs, nothing is enabled: a second message changes nothing of it.
        send(&mut b, client, &vec![0x55; entries]);
        b.w.run(Duration::from_us(50));
        assert_eq!(read(&mut b), expected);
        b.post(starter, SendOp::RecvEnable { qp: number, index: 2 }, &[]).unwrap();
        assert_eq!(b.w.completion(0).status, Status::Success);
        assert_eq!(b.w.completion(0).byte_len, entries as u32);
        b.w.completion(1);
        // One byte too many is refused, and the connection fails at both ends.
        b.w.recv(0, qp, 3, &sges);
        b.post(starter, SendOp::RecvEnable { qp: number, index: 3 }, &[]).unwrap();
        b.w.completion(0);
        send(&mut b, client, &vec![0x66; entries + 1]);
        assert_eq!(b.w.completion(0).status, Status::LocalLength);
        assert_eq!(b.w.completion(1).status, Status::RemoteInvalidRequest);
    }
}
