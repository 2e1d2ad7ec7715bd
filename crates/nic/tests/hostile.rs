//! Hostile bytes: any packet, to a queue pair in any state, must not panic, must not touch memory that
//! it may not, and must not make the NIC grow.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Key, Operation, Packet, Psn, Service};
use proptest::prelude::*;
use world::*;

const GUARD: usize = 4096;

struct Target {
    w: World,
    qps: Vec<QpId>,
    inside: Memory,
    outside: Memory,
}

/// Node 1 with a queue pair of each type and state; node 0 is the peer whose address is forged.
fn target(seed: u64) -> Target {
    let mut w = World::new(2, seed);
    w.drop_if = Some(Box::new(|from, _| from == 0));
    let link = Link { psn: (Psn::new(500), Psn::new(500)), timeout: 14, ..Link::default() };
    let mut qps = Vec::new();
    let inside = w.memory(1, 2 * GUARD);
    let outside = w.memory_with(1, GUARD, Access::LOCAL_WRITE);
    outside.write(0, &pattern(9, GUARD));
    for (qp_type, state) in [
        (QpType::Rc, QpState::Rts),
        (QpType::Rc, QpState::Rtr),
        (QpType::Rc, QpState::Reset),
        (QpType::Rc, QpState::Err),
        (QpType::Rc, QpState::Sqd),
        (QpType::Uc, QpState::Rts),
        (QpType::Ud, QpState::Rts),
        (QpType::Rc, QpState::Init),
    ] {
        let peer = w.qp(0, qp_type, CAPS);
        let qp = w.qp(1, qp_type, CAPS);
        w.connect((1, qp), (0, peer), &link);
        if qp_type != QpType::Ud {
            let (va, rkey) = inside.at(0);
            for i in 0..3 {
                w.send(1, qp, wr(i, SendOp::Write(va, rkey), &[inside.sge(0, 3000)]));
            }
            if qp_type == QpType::Rc {
                w.send(1, qp, wr(7, SendOp::Read(va, rkey), &[inside.sge(0, 3000)]));
            }
        }
        for i in 0..8 {
            w.recv(1, qp, i, &[inside.sge(0, 2000)]);
        }
        let (mut attr, _) = w.nodes[1].nic.query_qp(qp).unwrap();
        attr.state = state;
        w.transmit();
        match state {
            QpState::Rts => {}
            QpState::Rtr | QpState::Init => {
                attr.state = QpState::Reset;
                w.nodes[1].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE).unwrap();
            }
            _ => w.nodes[1].nic.modify_qp(w.now, qp, &attr, QpAttrMask::STATE).unwrap(),
        }
        qps.push(qp);
    }
    Target { w, qps, inside, outside }
}

/// A packet near the truth: right addresses, plausible numbers, any opcode.
fn forged(t: &Target, rng: &mut fastrand::Rng) -> (Packet, Vec<u8>) {
    let opcodes: Vec<_> = adverb_wire::Opcode::all().collect();
    let mut p = Packet::default();
    p.flow.src = t.w.nodes[0].gid;
    p.flow.dst = t.w.nodes[1].gid;
    p.bth.opcode = opcodes[rng.usize(..opcodes.len())];
    let qp = t.qps[rng.usize(..t.qps.len())];
    p.bth.dest_qp = t.w.nodes[1].nic.qp_number(qp).unwrap();
    let (attr, _) = t.w.nodes[1].nic.query_qp(qp).unwrap();
    let base = if p.bth.opcode.operation().is_response() { attr.sq_psn } else { attr.rq_psn };
    p.bth.psn = base.add(rng.u32(0..6).wrapping_sub(3));
    p.bth.ack_req = rng.bool();
    p.bth.solicited = rng.bool();
    p.deth.qkey = if rng.bool() { 0x1111 } else { rng.u32(..) };
    let key = if rng.u8(..4) > 0 { t.inside.mr.rkey } else { Key(rng.u32(..)) };
    let va = t.inside.addr().wrapping_add([0, 8, 4096, 8185, u64::MAX - 3, 1 << 63][rng.usize(..6)]);
    let len = [0, 1, 8, 1024, 4096, 8192, 8193, u32::MAX][rng.usize(..8)];
    p.reth = adverb_wire::Reth { va, rkey: key, len };
    p.atomic = adverb_wire::AtomicEth { va, rkey: key, swap_add: rng.u64(..), compare: rng.u64(..) };
    p.aeth.syndrome = adverb_wire::Syndrome::from_wire(rng.u8(..));
    p.aeth.msn = rng.u32(..) & 0xff_ffff;
    p.immediate = rng.u32(..);
    p.invalidate = key.0;
    p.xrc_srq = rng.u32(..8);
    let payload = [0, 1, 8, 952, 1023, 1024, 1025, 4096, 9000][rng.usize(..9)];
    p.payload_len = payload;
    (p, vec![0xa5; payload as usize])
}

#[test]
fn forged_packets_do_no_harm() {
    for seed in 0..400 {
        let mut t = target(seed);
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let (packet, payload) = forged(&t, &mut rng);
            let now = t.w.now;
            t.w.nodes[1].nic.on_frame(now, &packet, &Payload::from_slice(&payload));
            t.w.nodes[1].nic.check_invariants();
            if rng.u8(..8) == 0 {
                t.w.run(Duration::from_us(rng.u64(1..200)));
            }
            while t.w.poll(1).is_some() {}
        }
        assert!(t.outside.read(0, GUARD) == pattern(9, GUARD), "seed {seed} wrote where it may not");
    }
}

#[test]
fn the_unreliable_queue_takes_only_whole_messages() {
    let mut w = World::new(2, 1);
    w.faults.loss = 0.1;
    let (a, b) = w.pair(QpType::Uc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 8192), w.memory(1, 65536));
    let mut received = 0;
    for i in 0..500u64 {
        if i < 60 {
            w.recv(1, b, i, &[mb.sge(0, 8192)]);
        }
        let data = pattern(i as u8, 5000);
        ma.write(0, &data);
        w.send(0, a, wr(i, SendOp::SendImm(i as u32), &[ma.sge(0, 5000)]));
        w.completion(0);
        w.run(Duration::from_us(50));
        while let Some(done) = w.poll(1) {
            assert_eq!((done.status, done.byte_len, done.immediate), (Status::Success, 5000, i as u32));
            assert_eq!(mb.read(0, 5000), data);
            received += 1;
        }
    }
    assert_eq!(received, 60, "each receive served one whole message");
    assert!(w.counter(1, "drop_out_of_order") > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300), seed in 0u64..4) {
        let mut t = target(seed);
        let flow = adverb_wire::Flow { src: t.w.nodes[0].gid, dst: t.w.nodes[1].gid, ..Default::default() };
        if let Ok(parsed) = Packet::parse_bth(flow, &bytes) {
            let now = t.w.now;
            let payload = Payload::from_slice(&bytes[parsed.payload.clone()]);
            t.w.nodes[1].nic.on_frame(now, &parsed.packet, &payload);
            t.w.nodes[1].nic.check_invariants();
        }
        prop_assert!(t.outside.read(0, GUARD) == pattern(9, GUARD));
    }
}

#[test]
fn an_answer_cannot_land_twice_or_elsewhere() {
    // A forged READ response for the right PSN, but longer than asked for, ends the connection.
    let mut w = World::new(2, 3);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    w.drop_if = Some(Box::new(|from, _| from == 1));
    let (va, rkey) = mb.at(0);
    w.send(0, a, wr(1, SendOp::Read(va, rkey), &[ma.sge(0, 100)]));
    w.transmit();
    let mut p = Packet::default();
    p.flow.src = w.nodes[1].gid;
    p.flow.dst = w.nodes[0].gid;
    p.bth.dest_qp = w.nodes[0].nic.qp_number(a).unwrap();
    p.bth.psn = Psn::new(100);
    p.bth.opcode = adverb_wire::Opcode::new(Service::Rc, Operation::ReadResponseOnly);
    p.payload_len = 900;
    w.inject(p, &[1; 900]);
    let done = w.completion(0);
    assert_eq!(done.status, Status::BadResponse);
    assert!(ma.read(0, 4096).iter().all(|b| *b == 0));
}
