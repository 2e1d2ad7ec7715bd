//! The connection manager beside queue pairs of the same NIC: what their packets tell it.

mod world;
use adverb_nic::cm::*;
use adverb_nic::*;
use adverb_wire::cm::Attribute;
use adverb_wire::{Duration, Packet, Psn, QpNumber};
use world::*;

const SERVICE: cm::Service = cm::Service { space: PortSpace::Tcp, port: 7174 };

fn world(seed: u64, irn: bool) -> World {
    World::with_config(2, seed, |config| {
        let ca_guid = u64::from(config.qpn_base);
        config.cm = Some(CmConfig { ca_guid, ..CmConfig::default() });
        config.irn = irn.then(IrnConfig::paper);
    })
}

fn offer(qpn: QpNumber, psn: Psn) -> Offer {
    Offer { qpn, psn, responder_resources: 4, initiator_depth: 4, ..Offer::default() }
}

/// The next event of a node's connection manager, within 5 ms.
fn told(w: &mut World, node: usize) -> Option<CmEvent> {
    let end = w.now + Duration::from_ms(5);
    loop {
        let event = w.nodes[node].nic.next_cm_event();
        if event.is_some() || !w.advance(end) {
            return event;
        }
    }
}

/// Has node 0 connect to node 1; every RTU is lost. The queue pairs are at RTS, as rdma_cm has them. Gives
/// them, and node 1's connection.
fn without_rtu(w: &mut World) -> (QpId, QpId, ConnectionId) {
    let (a, b) = (w.qp(0, QpType::Rc, CAPS), w.qp(1, QpType::Rc, CAPS));
    let link = Link::default();
    let numbers = [(0, a), (1, b)].map(|(node, qp)| w.nodes[node].nic.qp_number(qp).unwrap());
    let (src, dst, now) = (w.nodes[0].gid, w.nodes[1].gid, w.now);
    let address = Address::Any { ipv4: true, ipv6: false };
    let listen = Listen { service: SERVICE, address, backlog: 4, cookie: 1 };
    w.nodes[1].nic.with_cm(|cm| cm.listen(now, &listen)).unwrap().unwrap();
    let connect = Connect {
        service: SERVICE,
        dst,
        src,
        src_port: 40_000,
        offer: offer(numbers[0], link.psn.1),
        retry_count: 7,
        mtu: 3,
        ack_timeout: 14,
        traffic_class: 0,
        private: &[],
        cookie: 2,
    };
    let active = w.nodes[0].nic.with_cm(|cm| cm.connect(now, &connect)).unwrap().unwrap();
    let Some(CmEvent { id: passive, what: What::Request(..), .. }) = told(w, 1) else { panic!("no request") };
    w.connect((1, b), (0, a), &link);
    let now = w.now;
    let reply = offer(numbers[1], link.psn.0);
    w.nodes[1].nic.with_cm(|cm| cm.accept(now, passive, &reply, &[])).unwrap().unwrap();
    let Some(CmEvent { what: What::Reply(_), .. }) = told(w, 0) else { panic!("no reply") };
    w.connect((0, a), (1, b), &link);
    w.drop_if = Some(Box::new(|from, packet| from == 0 && packet.bth.dest_qp == QpNumber::GSI));
    let now = w.now;
    w.nodes[0].nic.with_cm(|cm| cm.establish(now, active)).unwrap().unwrap();
    assert_eq!(told(w, 1), None, "a hello is no message of the peer's program");
    assert_eq!(w.lost, 1, "the RTU");
    (a, b, passive)
}

fn implied(w: &World) -> u64 {
    w.nodes[1].nic.cm_counters().unwrap().cm_implied
}

#[test]
fn the_peers_first_message_stands_for_an_rtu_that_was_lost() {
    for irn in [false, true] {
        let mut w = world(1, irn);
        let (a, b, passive) = without_rtu(&mut w);
        let (ma, mb) = (w.memory(0, 64), w.memory(1, 64));
        w.recv(1, b, 7, &[mb.sge(0, 64)]);
        ma.write(0, &pattern(3, 64));
        w.send(0, a, wr(1, SendOp::Send, &[ma.sge(0, 64)]));
        let event = told(&mut w, 1);
        assert_eq!(
            event.map(|event| (event.id, event.what)),
            Some((passive, What::Established)),
            "IRN {irn}"
        );
        assert_eq!((w.completion(1).wr_id, mb.read(0, 64)), (7, pattern(3, 64)));
        assert_eq!(implied(&w), 1);
        // Nothing is told again, by what follows or by the RTU, which comes after all.
        w.drop_if = None;
        w.recv(1, b, 8, &[mb.sge(0, 64)]);
        w.send(0, a, wr(2, SendOp::Send, &[ma.sge(0, 64)]));
        assert_eq!(w.completion(1).wr_id, 8);
        w.run(Duration::from_ms(10_000));
        assert_eq!(w.nodes[1].nic.next_cm_event(), None);
        assert_eq!(w.nodes[1].nic.cm_counters().unwrap().cm_repeats, 0, "the REP needs no answer any more");
    }
}

#[test]
fn a_first_packet_that_is_lost_too_is_waited_for() {
    let mut w = world(2, false);
    let (a, _, passive) = without_rtu(&mut w);
    let (ma, mb) = (w.memory(0, 4096), w.memory(1, 4096));
    let (va, rkey) = mb.at(0);
    let mut first = true;
    w.drop_if = Some(Box::new(move |from, packet| {
        from == 0 && (packet.bth.dest_qp == QpNumber::GSI || std::mem::take(&mut first))
    }));
    w.send(0, a, wr(1, SendOp::Write(va, rkey), &[ma.sge(0, 4096)]));
    let event = told(&mut w, 1);
    assert_eq!(event.map(|event| (event.id, event.what)), Some((passive, What::Established)));
    assert_eq!((w.completion(0).status, w.lost), (Status::Success, 2));
}

#[test]
fn who_does_not_know_the_psn_makes_no_connection_come_up() {
    let mut w = world(3, false);
    let (_, b, _) = without_rtu(&mut w);
    let mut forged = Packet::default();
    (forged.flow.src, forged.flow.dst) = (w.nodes[0].gid, w.nodes[1].gid);
    forged.bth.dest_qp = w.nodes[1].nic.qp_number(b).unwrap();
    forged.bth.opcode = adverb_wire::Opcode::new(adverb_wire::Service::Rc, adverb_wire::Operation::SendOnly);
    let right = Link::default().psn.0;
    for psn in (0..1000).map(|n| Psn::new(n * 16_381)).filter(|psn| *psn != right) {
        forged.bth.psn = psn;
        w.inject(forged, &[]);
    }
    assert_eq!((told(&mut w, 1), implied(&w)), (None, 0));
    forged.bth.psn = right;
    w.inject(forged, &[]);
    assert!(told(&mut w, 1).is_some());
}

#[test]
fn without_a_message_the_reply_is_repeated_until_the_rtu_comes() {
    let mut w = world(4, true);
    let (_, _, passive) = without_rtu(&mut w);
    w.drop_if = None;
    w.keep_log = true;
    w.run(Duration::from_ms(7_000));
    let event = w.nodes[1].nic.next_cm_event();
    assert_eq!(event.map(|event| (event.id, event.what)), Some((passive, What::Established)));
    assert_eq!(implied(&w), 0);
    let attribute = |payload: &Vec<u8>| u16::from_be_bytes([payload[16], payload[17]]);
    let said: Vec<u16> = (w.log.iter().zip(&w.log_payloads))
        .filter(|((_, packet), _)| packet.bth.dest_qp == QpNumber::GSI)
        .map(|(_, payload)| attribute(payload))
        .collect();
    assert_eq!(said, [Attribute::Rep as u16, Attribute::Rtu as u16]);
}
