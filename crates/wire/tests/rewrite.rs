//! Rewriting in place gives the bytes that emitting the changed packet gives.

mod common;

use adverb_wire::bth::BthReserved;
use adverb_wire::icrc::{seal, verify_in_place, verify_ip};
use adverb_wire::{
    Aeth, AtomicEth, Deth, Flow, FrameMut, OVER_PAYLOAD_MAX, Opcode, Operation, Packet, Psn, QpNumber, Reth,
    Service, Syndrome, WireExtra,
};

fn frame(packet: &Packet) -> Vec<u8> {
    frame_with(packet, &WireExtra::with_ipv4_id(9))
}

fn frame_with(packet: &Packet, extra: &WireExtra) -> Vec<u8> {
    let mut out = vec![0; packet.frame_len()];
    let payload: Vec<u8> = (0..packet.payload_len).map(|i| i as u8).collect();
    assert_eq!(packet.emit_frame(extra, &payload, &mut out), out.len());
    out
}

#[test]
fn every_setter_on_every_opcode() {
    for ipv4 in [true, false] {
        for opcode in Opcode::all() {
            let before = common::packet(opcode, common::flow(ipv4), 21, 5);
            let source = common::packet(opcode, common::flow(ipv4), 21, 6);
            let mut bytes = frame(&before);
            // Ethernet padding must survive.
            bytes.extend([0x77; 5]);
            let mut after = before;
            let mut view = FrameMut::new(&mut bytes).unwrap();

            after.bth.dest_qp = QpNumber::new(0xabcdef);
            view.set_dest_qp(after.bth.dest_qp);
            after.bth.psn = Psn::new(0xfedcba);
            view.set_psn(after.bth.psn);
            after.bth.ack_req = !after.bth.ack_req;
            view.set_ack_req(after.bth.ack_req);
            (after.bth.fecn, after.bth.becn) = (!after.bth.fecn, !after.bth.becn);
            view.set_congestion(after.bth.fecn, after.bth.becn);

            after.flow.src = before.flow.dst;
            after.flow.dst = before.flow.src;
            (after.flow.src_port, after.flow.traffic_class, after.flow.hop_limit) = (1, 0xb7, 9);
            assert!(view.set_flow(after.flow).is_ok());
            assert!(view.set_flow(common::flow(!ipv4)).is_err());

            // Each of these holds exactly when the header is there: `source` has it then.
            let Packet { reth, atomic, aeth, atomic_original, immediate, deth, .. } = source;
            let expect = |done: bool, there: bool| assert_eq!(done, there, "{opcode:?}");
            expect(view.set_reth_target(reth.va, reth.rkey).is_ok(), reth != Reth::default());
            expect(view.set_atomic(atomic).is_ok(), atomic != AtomicEth::default());
            expect(view.set_aeth(aeth).is_ok(), aeth != Aeth::default());
            expect(view.set_atomic_original(atomic_original).is_ok(), atomic_original != 0);
            expect(view.set_immediate(immediate).is_ok(), immediate != 0);
            expect(view.set_deth(deth).is_ok(), deth != Deth::default());
            after.reth = Reth { len: before.reth.len, ..reth };
            after = Packet { atomic, aeth, atomic_original, immediate, deth, ..after };

            view.refresh_icrc();
            assert_eq!(view.packet(), &after);
            assert_eq!(view.payload().len(), 21);
            assert_eq!(&bytes[..after.frame_len()], &frame(&after)[..], "{opcode:?}");
            assert!(bytes.ends_with(&[0x77; 5]));
        }
    }
}

#[test]
fn opcode_changes_keep_the_layout() {
    let only = Opcode::new(Service::Rc, Operation::WriteOnly);
    let first = Opcode::new(Service::Rc, Operation::WriteFirst);
    let before = common::packet(only, common::flow(true), 64, 7);
    let mut bytes = frame(&before);
    let mut view = FrameMut::new(&mut bytes).unwrap();
    assert!(view.set_opcode(Opcode::default()).is_err());
    assert!(view.set_opcode(first).is_ok());
    view.payload_mut()[0] = 0xff;
    view.refresh_icrc();
    let parsed = Packet::parse_ip(&bytes).unwrap();
    assert_eq!(parsed.packet.bth.opcode, first);
    assert_eq!(bytes[parsed.payload.start], 0xff);
    assert!(adverb_wire::verify_ip(&bytes, parsed.ip_header_len));
}

#[test]
fn values_wider_than_their_field_are_cut() {
    let ack = Opcode::new(Service::Rc, Operation::Acknowledge);
    let mut bytes = frame(&common::packet(ack, common::flow(true), 0, 8));
    let mut view = FrameMut::new(&mut bytes).unwrap();
    view.set_aeth(Aeth { syndrome: Syndrome::default(), msn: u32::MAX }).unwrap();
    assert_eq!(view.packet().aeth.msn, 0xff_ffff);
    let shown = *view.packet();
    assert_eq!(Packet::parse_ip(&bytes).unwrap().packet, shown);
}

#[test]
fn a_packet_over_another_one_is_the_packet() {
    for ipv4 in [true, false] {
        for (from, to) in Opcode::all().flat_map(|from| Opcode::all().map(move |to| (from, to))) {
            let had = u32::from(from.wire() % 19);
            // None, one word and what is not one, and more than one.
            for has in [0, 1, 7, 8, 9, 16] {
                over(common::flow(ipv4), (from, had), (to, has));
            }
        }
    }
}

/// Writes a packet over another one, and compares with one written anew.
fn over(flow: Flow, (from, had): (Opcode, u32), (to, has): (Opcode, u32)) {
    let seed = u64::from(from.wire()) << 8 | u64::from(has);
    let (before, after) = (common::packet(from, flow, had, seed), common::packet(to, flow, has, !seed));
    let bth_reserved = BthReserved { byte4: 0x2d, byte8: 0x5a };
    let extra = WireExtra { bth_reserved, ..WireExtra::with_ipv4_id(9) };
    let (mut bytes, expected) = (frame(&before), frame_with(&after, &extra));
    let mut payload = [0; OVER_PAYLOAD_MAX];
    payload.iter_mut().zip(0..has).for_each(|(byte, i)| *byte = i as u8);
    let len = after.emit_over(&extra, &payload, flow.ip_header_len(), &mut bytes);
    assert_eq!((len, &bytes), (expected.len(), &expected), "{from:?} becomes {to:?} with {has} bytes");
}

#[test]
fn an_icrc_in_place_is_the_icrc() {
    for ipv4 in [true, false] {
        let flow = common::flow(ipv4);
        for payload_len in (0..300).chain([4096]) {
            let packet = common::packet(Opcode::new(Service::Rc, Operation::WriteOnly), flow, payload_len, 5);
            let (mut bytes, ip_header_len) = (frame(&packet), flow.ip_header_len());
            // What the ICRC does not cover is as no mask leaves it: of IP, and the checksum of UDP.
            let of_ip: &[usize] = if ipv4 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
            let checksum = [ip_header_len + 6, ip_header_len + 7];
            of_ip.iter().chain(&checksum).for_each(|at| bytes[*at] = 0x21);
            let kept = bytes.clone();
            assert!(verify_in_place(&mut bytes, ip_header_len) && verify_ip(&bytes, ip_header_len));
            assert_eq!(bytes, kept, "what was masked is as it was");
            let at = bytes.len() - 5;
            bytes[at] ^= 1;
            assert!(!verify_in_place(&mut bytes, ip_header_len) && !verify_ip(&bytes, ip_header_len));
            seal(&mut bytes, ip_header_len);
            assert!(verify_in_place(&mut bytes, ip_header_len) && verify_ip(&bytes, ip_header_len));
        }
    }
    // With options, and what is no packet.
    for (mut bytes, ip_header_len) in
        [(vec![0x4a; 90], 40), (vec![0x45; 90], 60), (vec![0x65; 9], 40), (vec![0x45; 3], 20), (vec![], 20)]
    {
        seal(&mut bytes, ip_header_len);
        assert_eq!(verify_in_place(&mut bytes, ip_header_len), verify_ip(&bytes, ip_header_len));
    }
}
