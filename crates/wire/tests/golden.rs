//! Captures of Linux rxe are the golden data: each packet parses, is emitted again byte for byte, and
//! has the ICRC that this crate computes. Then each is damaged.

mod common;

use adverb_wire::{
    Flow, FrameMut, Icrc, MAX_BTH_HEADER_LEN, MAX_IP_PREFIX_LEN, Packet, WireExtra, infer_ipv4_id, verify_ip,
    verify_udp,
};
use std::collections::BTreeMap;

/// Offset of the UDP header; rxe sends no IP options.
fn udp_at(ip: &[u8]) -> usize {
    if ip[0] >> 4 == 4 { 20 } else { 40 }
}

#[test]
fn parses_and_emits_byte_for_byte() {
    let mut seen = 0;
    for (name, ip) in common::golden_packets() {
        let parsed = Packet::parse_ip(&ip).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(parsed.frame_len, ip.len(), "{name}");
        assert!(verify_ip(&ip, parsed.ip_header_len), "{name}");
        let mut out = vec![0xee; ip.len() + 3];
        let len = parsed.packet.emit_frame(&parsed.extra, &ip[parsed.payload.clone()], &mut out);
        assert_eq!(&out[..len], &ip[..], "{name}: {:?}", parsed.packet);
        assert_eq!(len, parsed.packet.frame_len());
        assert_eq!(u32::from_le_bytes(*ip.last_chunk().unwrap()), parsed.icrc);
        seen += 1;
    }
    assert_eq!(seen, common::GOLDEN_PACKETS);
}

/// What rxe leaves constant, and what it does not: the defaults of emission rest on this.
#[test]
fn fields_beyond_the_descriptor() {
    let (mut ids, mut checksums) = (0, 0);
    for (name, ip) in common::golden_packets() {
        let parsed = Packet::parse_ip(&ip).unwrap();
        let WireExtra { ipv4_id, udp_checksum, .. } = parsed.extra;
        assert_eq!(parsed.extra, WireExtra { ipv4_id, udp_checksum, ..WireExtra::default() }, "{name}");
        ids += (ipv4_id != 0) as usize;
        checksums += (udp_checksum != 0) as usize;
        // One peer in one capture is a plain UDP socket, whose kernel adds a checksum.
        assert!(udp_checksum == 0 || name == "pcap/host-python.pcap", "{name}");
    }
    assert_eq!(checksums, 15);
    assert!(ids > 3000, "rxe varies the identification");
}

/// A plain UDP socket sees neither the IP header nor the identification.
#[test]
fn udp_socket_view_agrees() {
    for (name, ip) in common::golden_packets() {
        let whole = Packet::parse_ip(&ip).unwrap();
        let at = udp_at(&ip) + 8;
        let udp_payload = &ip[at..];
        let flow = Flow { ..whole.packet.flow };
        let inner = Packet::parse_bth(flow, udp_payload).unwrap();
        assert_eq!(inner.packet, whole.packet, "{name}");
        assert_eq!((inner.icrc, inner.payload.start + at), (whole.icrc, whole.payload.start));
        let id = whole.extra.ipv4_id;
        let covered = &udp_payload[..udp_payload.len() - 4];
        assert_eq!(Icrc::over_flow(&flow, id, udp_payload.len(), covered).finish(), whole.icrc, "{name}");
        assert_eq!(verify_udp(&flow, udp_payload), Some(id), "{name}");
        if flow.is_ipv4() {
            let zero = Icrc::over_flow(&flow, 0, udp_payload.len(), covered).finish();
            assert_eq!(infer_ipv4_id(whole.icrc, zero, udp_payload.len()), Some(id));
        }
    }
}

#[test]
fn a_prefix_is_enough_for_the_headers() {
    for (name, ip) in common::golden_packets() {
        let whole = Packet::parse_ip(&ip).unwrap();
        let prefix = &ip[..ip.len().min(MAX_IP_PREFIX_LEN)];
        let headers = Packet::parse_ip_headers(prefix, ip.len()).unwrap();
        assert_eq!((headers.packet, headers.payload()), (whole.packet, whole.payload), "{name}");
        assert_eq!((headers.frame_len, headers.icrc_offset()), (ip.len(), ip.len() - 4));
        let udp_payload = &ip[udp_at(&ip) + 8..];
        let prefix = &udp_payload[..udp_payload.len().min(MAX_BTH_HEADER_LEN)];
        let inner = Packet::parse_headers(whole.packet.flow, prefix, udp_payload.len()).unwrap();
        assert_eq!(inner.packet, whole.packet, "{name}");
    }
}

#[test]
fn every_truncation_is_refused() {
    for (name, ip) in common::golden_packets() {
        // Past the headers all lengths fail the same check.
        for len in (0..ip.len().min(160)).chain((160..ip.len()).step_by(61)) {
            assert!(Packet::parse_ip(&ip[..len]).is_err(), "{name} cut to {len}");
            let _ = Packet::parse_bth(Flow::default(), &ip[..len]);
            let _ = Packet::parse_headers(Flow::default(), &ip[..len], ip.len());
            let _ = FrameMut::new(&mut ip[..len].to_vec());
        }
    }
}

#[test]
fn ethernet_padding_is_ignored() {
    for (_, mut ip) in common::golden_packets() {
        let before = Packet::parse_ip(&ip).unwrap();
        ip.extend([0xa5; 7]);
        assert_eq!(Packet::parse_ip(&ip), Ok(before));
    }
}

/// One packet of each opcode, IP version and payload length.
fn distinct() -> Vec<Vec<u8>> {
    let mut by_shape = BTreeMap::new();
    for (_, ip) in common::golden_packets() {
        by_shape.entry((ip[udp_at(&ip) + 8], ip[0], ip.len())).or_insert(ip);
    }
    by_shape.into_values().collect()
}

/// A flip passes exactly where neither the ICRC nor the IPv4 checksum looks.
#[test]
fn bit_flips_in_covered_bits_are_refused() {
    let frames = distinct();
    assert!(frames.len() > 50);
    for mut ip in frames {
        let udp = udp_at(&ip);
        let uncovered = |bit: usize| match bit / 8 {
            0 => udp == 40 && bit % 8 < 4,
            1..=3 | 7 => udp == 40,
            byte => byte == udp + 6 || byte == udp + 7 || byte == udp + 12,
        };
        let header_bits = 0..ip.len().min(96) * 8;
        for bit in header_bits.chain((96 * 8..ip.len() * 8).step_by(101)) {
            ip[bit / 8] ^= 1 << (bit % 8);
            let accepted = Packet::parse_ip(&ip)
                .is_ok_and(|parsed| verify_ip(&ip[..parsed.frame_len], parsed.ip_header_len));
            assert_eq!(accepted, uncovered(bit), "bit {bit} of {ip:02x?}");
            ip[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Damage in several places at once, to reach deeper than single flips do.
#[test]
fn heavy_damage_never_panics() {
    let frames = distinct();
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize
    };
    let mut parsed = 0;
    for round in 0..200_000 {
        let frame = &frames[next() % frames.len()];
        let mut ip = frame[..frame.len().min(256)].to_vec();
        for _ in 0..1 + next() % 4 {
            let at = next() % ip.len().min(100);
            ip[at] = next() as u8;
        }
        let start = if round % 2 == 0 { 0 } else { udp_at(frame) + 8 };
        parsed += Packet::parse_ip(&ip).is_ok() as u32;
        parsed += Packet::parse_bth(Flow::default(), &ip[start..]).is_ok() as u32;
        parsed += Packet::parse_ip_headers(&ip, frame.len()).is_ok() as u32;
        let _ = verify_ip(&ip, next() % 64);
        let _ = verify_udp(&common::flow(true), &ip[start..]);
        if let Ok(mut view) = FrameMut::new(&mut ip) {
            view.refresh_icrc();
        }
    }
    assert!(parsed > 1000, "the damage left {parsed} parsable");
}
