//! Attacks on IRN's agreement: packets from the right address, to the right queue pair, whose sender does not
//! know the PSNs.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, IrnEth, Opcode, Operation, Packet, Psn, Reth, Service, WriteLength};
use world::*;

/// Node 0 offers IRN; node 1 only if told so.
fn world(seed: u64, peer_offers: bool) -> World {
    World::with_config(2, seed, |c| {
        c.irn = (c.qpn_base >> 16 == 1 || peer_offers).then(IrnConfig::paper);
    })
}

/// A packet of IRN's that node 1 might send.
fn forged(w: &World, a: QpId, operation: Operation, psn: Psn) -> Packet {
    let mut p = Packet::default();
    (p.flow.src, p.flow.dst) = (w.nodes[1].gid, w.nodes[0].gid);
    p.bth.opcode = Opcode::new(Service::Irn, operation);
    p.bth.dest_qp = w.nodes[0].nic.qp_number(a).unwrap();
    p.bth.psn = psn;
    p.bth.ack_req = true;
    if operation == Operation::Hello {
        p.irn = IrnEth::new(0, adverb_wire::irn::VERSION, 1);
    }
    p
}

/// The PSN of a hello whose sender expects `next`.
fn hello_psn(next: Psn) -> Psn {
    next.add(3 << (Psn::BITS - 2))
}

fn works(w: &mut World, a: QpId, ma: &Memory, mb: &Memory) {
    let (va, rkey) = mb.at(0);
    ma.write(0, &pattern(5, 4000));
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 4000)]));
    let done = w.completion(0);
    assert_eq!(done.status, Status::Success);
    assert_eq!(mb.read(0, 4000), pattern(5, 4000));
}

#[test]
fn a_forged_hello_does_not_make_a_plain_connection_speak_irn() {
    for seed in 0..40 {
        let mut w = world(seed, false);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        // While node 0 asks, and when it has given up.
        for wait in [Duration::from_us(10), Duration::from_ms(1_000)] {
            w.run(wait);
            for _ in 0..200 {
                let hello = forged(&w, a, Operation::Hello, Psn::new(rng.u32(..)));
                w.inject(hello, &[]);
            }
            w.run(Duration::from_us(20));
            assert_ne!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Irn), "seed {seed}");
            works(&mut w, a, &ma, &mb);
        }
        assert_eq!(w.counter(0, "drop_hello"), 400);
    }
}

#[test]
fn no_hello_is_believed_when_plain_rc_has_been_settled_on() {
    let mut w = world(1, false);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    w.run(Duration::from_ms(1_000));
    works(&mut w, a, &ma, &mb);
    // Even with the right PSN.
    let next = w.nodes[0].nic.query_qp(a).unwrap().0.sq_psn;
    let hello = forged(&w, a, Operation::Hello, hello_psn(next));
    w.inject(hello, &[]);
    w.run(Duration::from_us(20));
    assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::GoBackN));
    assert_eq!(w.counter(0, "drop_hello"), 1);
    works(&mut w, a, &ma, &mb);
}

#[test]
fn a_forged_hello_before_rts_is_found_out_there() {
    for peer_offers in [false, true] {
        let mut w = world(2, peer_offers);
        let (a, b) = (w.qp(0, QpType::Rc, CAPS), w.qp(1, QpType::Rc, CAPS));
        let link = Link::default();
        let (mut attr, _) = w.nodes[0].nic.query_qp(a).unwrap();
        use QpAttrMask as M;
        (attr.state, attr.port, attr.access) = (QpState::Init, 1, link.access);
        let nic = &mut w.nodes[0].nic;
        nic.modify_qp(w.now, a, &attr, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS).unwrap();
        (attr.state, attr.path_mtu, attr.rq_psn) = (QpState::Rtr, link.mtu, link.psn.1);
        (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (4, 1);
        attr.dest_qpn = w.nodes[1].nic.qp_number(b).unwrap();
        attr.av.dgid = w.nodes[1].gid;
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        w.nodes[0].nic.modify_qp(w.now, a, &attr, M::STATE | rtr).unwrap();
        let hello = forged(&w, a, Operation::Hello, Psn::new(0x123456));
        w.inject(hello, &[]);
        w.run(Duration::from_us(10));
        (attr.state, attr.sq_psn, attr.timeout) = (QpState::Rts, link.psn.0, link.timeout);
        (attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (7, 7, 4);
        let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
        w.nodes[0].nic.modify_qp(w.now, a, &attr, M::STATE | rts).unwrap();
        assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Undecided));
        w.connect((1, b), (0, a), &link);
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        works(&mut w, a, &ma, &mb);
        w.run(Duration::from_ms(1_000));
        let expected = if peer_offers { LossRecovery::Irn } else { LossRecovery::GoBackN };
        assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(expected));
        works(&mut w, a, &ma, &mb);
    }
}

#[test]
fn a_request_from_elsewhere_does_not_make_a_plain_connection_speak_irn() {
    for operation in [Operation::WriteOnly, Operation::Acknowledge, Operation::ReadAcknowledge] {
        let mut w = world(3, false);
        let (a, b) = w.pair(QpType::Rc, CAPS, &Link::default());
        let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
        for psn in [0x20_0000, 0x12_3456, 0xff_ffef, 0x7f_fff0] {
            let mut request = forged(&w, a, operation, Psn::new(psn));
            if operation == Operation::WriteOnly {
                let length = WriteLength { following: 0, ordered: false }.wire();
                request.reth = Reth { va: ma.addr(), rkey: ma.mr.rkey, len: length };
                request.payload_len = 8;
            }
            w.inject(request, &vec![0xee; request.payload_len as usize]);
            w.run(Duration::from_us(20));
        }
        assert_ne!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Irn), "{operation:?}");
        works(&mut w, a, &ma, &mb);
        // The peer's requests, plain RC's, are taken too.
        let (va, rkey) = ma.at(0);
        w.send(1, b, wr(2, SendOp::Write(va, rkey), &[mb.sge(0, 3000)]));
        assert_eq!(w.completion(1).status, Status::Success);
    }
}

#[test]
fn a_forged_hello_does_not_narrow_what_was_agreed() {
    let mut w = world(4, true);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 65536), w.memory(1, 65536));
    w.run(Duration::from_us(100));
    assert_eq!(w.nodes[0].nic.recovery_of(a), Ok(LossRecovery::Irn));
    for psn in [0, 100, 0x123456] {
        let hello = forged(&w, a, Operation::Hello, Psn::new(psn));
        w.inject(hello, &[]);
    }
    w.run(Duration::from_us(20));
    w.keep_log = true;
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 30_000)]));
    w.transmit();
    assert_eq!(w.log.len(), 30, "all at once: no window of one packet");
    assert_eq!(w.completion(0).status, Status::Success);
}
