//! `parse(emit(x)) == x` for arbitrary packets of every opcode, and no panic on arbitrary bytes.

mod common;

use adverb_wire::bth::BthReserved;
use adverb_wire::{
    CNP_PAYLOAD, Flow, FrameMut, Gid, Icrc, Opcode, Packet, ParseError, QpNumber, WireExtra, pcap, verify_ip,
    verify_udp,
};
use proptest::prelude::*;

fn opcodes() -> Vec<Opcode> {
    Opcode::all().collect()
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let gid = |ipv4: bool, mut bytes: [u8; 16]| {
        if ipv4 {
            bytes[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        } else {
            // Anything but a mapped address.
            bytes[0] |= 1;
        }
        Gid(bytes)
    };
    (any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u16>(), any::<u8>(), any::<u8>()).prop_map(
        move |(ipv4, src, dst, src_port, traffic_class, hop_limit)| Flow {
            src: gid(ipv4, src),
            dst: gid(ipv4, dst),
            src_port,
            traffic_class,
            hop_limit,
        },
    )
}

fn any_packet() -> impl Strategy<Value = Packet> {
    (prop::sample::select(opcodes()), any_flow(), 0..300u32, any::<u64>())
        .prop_map(|(opcode, flow, payload_len, seed)| common::packet(opcode, flow, payload_len, seed))
}

/// Extra fields that a packet of this opcode and IP version can carry.
fn any_extra() -> impl Strategy<Value = WireExtra> {
    let numbers = (any::<u16>(), 0..0x10_0000u32, any::<u16>());
    let reserved = (any::<bool>(), 0..64u8, 0..128u8, any::<u8>());
    (numbers, reserved).prop_map(|((ipv4_id, flow_label, udp_checksum), (df, byte4, byte8, byte))| {
        WireExtra {
            ipv4_id,
            ipv4_flags: (df as u8) << 1,
            flow_label,
            udp_checksum,
            bth_reserved: BthReserved { byte4, byte8 },
            deth_reserved: byte,
            xrceth_reserved: byte,
        }
    })
}

/// What of `extra` comes back: only fields of headers that are there.
fn visible(extra: WireExtra, packet: &Packet) -> WireExtra {
    use adverb_wire::Headers;
    let none = WireExtra::default();
    let headers = packet.bth.opcode.headers();
    let ipv4 = packet.flow.is_ipv4();
    let has = |header, byte| if headers.contains(header) { byte } else { 0 };
    WireExtra {
        ipv4_id: if ipv4 { extra.ipv4_id } else { none.ipv4_id },
        ipv4_flags: if ipv4 { extra.ipv4_flags } else { none.ipv4_flags },
        flow_label: if ipv4 { 0 } else { extra.flow_label },
        deth_reserved: has(Headers::DETH, extra.deth_reserved),
        xrceth_reserved: has(Headers::XRCETH, extra.xrceth_reserved),
        ..extra
    }
}

fn payload(packet: &Packet) -> Vec<u8> {
    (0..packet.payload_len).map(|i| (i * 13 + 5) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn frame(packet in any_packet(), extra in any_extra()) {
        let payload = payload(&packet);
        let mut out = vec![0xaa; 600];
        let len = packet.emit_frame(&extra, &payload, &mut out);
        prop_assert_eq!(len, packet.frame_len());
        let parsed = Packet::parse_ip(&out).unwrap();
        prop_assert_eq!(parsed.packet, packet);
        prop_assert_eq!(parsed.extra, visible(extra, &packet));
        prop_assert_eq!(parsed.frame_len, len);
        prop_assert_eq!(&out[parsed.payload.clone()], &payload[..]);
        prop_assert!(verify_ip(&out[..len], parsed.ip_header_len));
        prop_assert!(len % 4 == 0);
        // A short buffer is left alone.
        let mut short = vec![0xaa; len - 1];
        prop_assert_eq!(packet.emit_frame(&extra, &payload, &mut short), 0);
        prop_assert!(short.iter().all(|&b| b == 0xaa));
        let mut short = vec![0xaa; packet.frame_header_len() - 1];
        prop_assert_eq!(packet.emit_ip_with(&extra, &mut short), 0);
        prop_assert!(short.iter().all(|&b| b == 0xaa));
    }

    #[test]
    fn udp_payload(packet in any_packet(), id in any::<u16>()) {
        let payload = payload(&packet);
        let mut wire = [0; 64];
        let header_len = packet.emit_bth(&mut wire);
        prop_assert_eq!(header_len, packet.header_len());
        let mut icrc = Icrc::over_flow(&packet.flow, id, packet.wire_len(), &wire[..header_len]);
        let (one, two) = payload.split_at(payload.len() / 3);
        icrc.update(one);
        icrc.update(two);
        let pad = &[0; 3][..packet.pad()];
        icrc.update(pad);
        let wire = [&wire[..header_len], &payload, pad, &icrc.finish().to_le_bytes()].concat();
        prop_assert_eq!(wire.len(), packet.wire_len());
        let parsed = Packet::parse_bth(packet.flow, &wire).unwrap();
        prop_assert_eq!(parsed.packet, packet);
        let expected = if packet.flow.is_ipv4() { id } else { 0 };
        prop_assert_eq!(verify_udp(&packet.flow, &wire), Some(expected));
        // The same packet with its IP header is the same packet.
        let mut frame = vec![0; packet.frame_len()];
        packet.emit_frame(&WireExtra::with_ipv4_id(id), &payload, &mut frame);
        prop_assert!(frame.ends_with(&wire));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        version in 0..3usize,
        total in any::<usize>(),
    ) {
        // Bytes that start like IP and have plausible lengths get further than noise.
        if let Some(first) = bytes.first_mut() {
            *first = [*first, 0x45, 0x60][version];
        }
        let _ = Packet::parse_ip(&bytes);
        let _ = Packet::parse_ip_headers(&bytes, total);
        let _ = Packet::parse_bth(Flow::default(), &bytes);
        let _ = Packet::parse_headers(Flow::default(), &bytes, total);
        let _ = verify_ip(&bytes, total);
        let _ = verify_udp(&common::flow(true), &bytes);
        let _ = adverb_wire::eth::ip_packet(&bytes);
        if let Ok(reader) = pcap::Reader::new(&bytes) {
            let _ = reader.count();
        }
        if let Ok(mut view) = FrameMut::new(&mut bytes) {
            view.refresh_icrc();
        }
    }

    #[test]
    fn arbitrary_transport_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 12..80),
        opcode in prop::sample::select(opcodes()),
    ) {
        bytes[0] = opcode.wire();
        bytes[1] &= 0xf0;
        let len = bytes.len() & !3;
        match Packet::parse_bth(common::flow(false), &bytes[..len]) {
            Ok(parsed) => {
                let mut out = [0; 64];
                let header_len = parsed.packet.emit_bth_with(&parsed.extra, &mut out);
                // The pad count alone may differ: the peer may pad a payload that needs none, or
                // less than its length says.
                out[1] = out[1] & 0xcf | bytes[1] & 0x30;
                prop_assert_eq!(&out[..header_len], &bytes[..header_len]);
            }
            Err(e) => prop_assert!(matches!(e, ParseError::HeaderSpace | ParseError::PadCount), "{e}"),
        }
    }
}

/// Each check is reached by a frame that fails this check alone.
#[test]
fn each_check_has_its_own_reason() {
    let packet = common::packet(Opcode::default(), common::flow(true), 5, 1);
    let frame_of = |packet: &Packet| {
        let mut out = vec![0; packet.frame_len()];
        packet.emit_frame(&WireExtra::default(), &payload(packet), &mut out);
        out
    };
    let good = frame_of(&packet);
    let edit = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        edit(&mut frame);
        // Keep the header checksum right, so that the check under test is the one that fails.
        frame[10..12].fill(0);
        let header = *frame.first_chunk::<20>().unwrap();
        let sum = adverb_wire::ip::checksum(&header, &[]);
        frame[10..12].copy_from_slice(&sum.to_be_bytes());
        Packet::parse_ip(&frame).err()
    };
    assert_eq!(edit(&|_| ()), None);
    assert_eq!(Packet::parse_ip(&[]), Err(ParseError::Truncated));
    assert_eq!(Packet::parse_ip(&good[..19]), Err(ParseError::Truncated));
    assert_eq!(edit(&|f| f[0] = 0x55), Some(ParseError::IpVersion));
    assert_eq!(edit(&|f| f[0] = 0x44), Some(ParseError::IpHeaderLength));
    assert_eq!(edit(&|f| f[2] = 0xff), Some(ParseError::IpTotalLength));
    assert_eq!(edit(&|f| f[6] = 0x20), Some(ParseError::Fragment));
    assert_eq!(edit(&|f| f[9] = 6), Some(ParseError::Protocol));
    assert_eq!(edit(&|f| f[23] ^= 1), Some(ParseError::DstPort));
    assert_eq!(edit(&|f| f[25] ^= 4), Some(ParseError::UdpLength));
    assert_eq!(edit(&|f| (f[3], f[25]) = (f[3] - 1, f[25] - 1)), Some(ParseError::Alignment));
    assert_eq!(edit(&|f| (f[3], f[25]) = (20 + 8 + 12, 8 + 12)), Some(ParseError::HeaderSpace));
    assert_eq!(edit(&|f| f[29] |= 1), Some(ParseError::TransportVersion));
    assert_eq!(edit(&|f| f[28] = 0x40), Some(ParseError::Opcode));
    assert_eq!(edit(&|f| (f[3], f[25]) = (20 + 8 + 16, 8 + 16)), Some(ParseError::PadCount));
    let mut bad_sum = good.clone();
    bad_sum[10] ^= 1;
    assert_eq!(Packet::parse_ip(&bad_sum), Err(ParseError::IpChecksum));
    let mut mapped = frame_of(&Packet { flow: common::flow(false), ..packet });
    mapped[8..24].copy_from_slice(&common::flow(true).src.0);
    assert_eq!(Packet::parse_ip(&mapped), Err(ParseError::MappedAddress));
    assert_eq!(packet.pad(), 3);
}

#[test]
fn ipv4_options_are_skipped_and_covered() {
    for words in 1..=10usize {
        let packet = common::packet(Opcode::default(), common::flow(true), 8, 2);
        let mut plain = vec![0; packet.frame_len()];
        packet.emit_frame(&WireExtra::default(), &payload(&packet), &mut plain);
        let mut frame = [&plain[..20], &vec![1; words * 4], &plain[20..]].concat();
        let total = frame.len() as u16;
        frame[0] = 0x45 + words as u8;
        frame[2..4].copy_from_slice(&total.to_be_bytes());
        frame[10..12].fill(0);
        let sum = adverb_wire::ip::checksum(frame.first_chunk().unwrap(), &frame[20..20 + words * 4]);
        frame[10..12].copy_from_slice(&sum.to_be_bytes());
        let mut view = FrameMut::new(&mut frame).unwrap();
        view.refresh_icrc();
        let parsed = Packet::parse_ip(&frame).unwrap();
        assert_eq!((parsed.packet, parsed.ip_header_len), (packet, 20 + words * 4));
        assert!(verify_ip(&frame, parsed.ip_header_len));
        // TTL is not covered, an option is.
        frame[8] ^= 1;
        assert!(verify_ip(&frame, parsed.ip_header_len));
        frame[20] ^= 1;
        assert!(!verify_ip(&frame, parsed.ip_header_len));
    }
}

#[test]
fn too_long_for_ip_is_not_emitted() {
    let mut out = [0; 128];
    for (ipv4, most) in [(true, 65_535 - 20 - 8 - 16), (false, 65_535 - 8 - 16)] {
        let fits = common::packet(Opcode::default(), common::flow(ipv4), most / 4 * 4, 3);
        assert_ne!(fits.emit_ip(&mut out), 0);
        for payload_len in [most + 1, u32::MAX] {
            assert_eq!(Packet { payload_len, ..fits }.emit_ip(&mut out), 0);
        }
    }
}

#[test]
fn congestion_notification() {
    let cnp = Packet::cnp(common::flow(true), QpNumber::new(0x1234));
    let mut frame = [0; 128];
    let len = cnp.emit_frame(&WireExtra::default(), &CNP_PAYLOAD, &mut frame);
    assert_eq!(len, 20 + 8 + 12 + 16 + 4);
    let parsed = Packet::parse_ip(&frame[..len]).unwrap();
    assert_eq!((parsed.packet, parsed.packet.bth.becn), (cnp, true));
}
