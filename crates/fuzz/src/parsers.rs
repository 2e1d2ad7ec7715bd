//! The parsers: whatever the bytes are, they are parsed or refused; and what was parsed is emitted as it
//! stood there.

use crate::{Seen, Target};
use adverb_wire::one_rma::{Body, Header, Kind, Op, Piece, Request, Status};
use adverb_wire::packet::WireExtra;
use adverb_wire::pcap::{LinkType, Reader, Writer};
use adverb_wire::star;
use adverb_wire::{FrameMut, Gid, Opcode, Operation, Packet, Psn, QpNumber, Service};
use std::net::Ipv4Addr;

fn opcodes() -> Vec<String> {
    Opcode::all().map(|opcode| format!("{opcode:?}")).collect()
}

fn ends() -> (Gid, Gid) {
    (Gid::from(Ipv4Addr::new(10, 0, 0, 1)), Gid::from(Ipv4Addr::new(10, 0, 0, 2)))
}

/// A frame of each opcode, with a payload where it may have one.
fn frames() -> Vec<(String, Vec<u8>)> {
    let frame = |opcode: Opcode| {
        let mut packet = Packet::default();
        (packet.flow.src, packet.flow.dst) = ends();
        packet.flow.src_port = 4791;
        packet.flow.hop_limit = 64;
        packet.bth.opcode = opcode;
        packet.bth.dest_qp = QpNumber::new(0x11);
        packet.bth.psn = Psn::new(100);
        packet.bth.pkey = 0xffff;
        let carries = opcode.operation().is_send()
            || opcode.operation().is_write()
            || opcode.operation().is_read_response();
        packet.payload_len = if opcode == Opcode::CNP { 16 } else { 30 * carries as u32 };
        let mut payload = vec![if opcode == Opcode::CNP { 0 } else { 7 }; packet.payload_len as usize];
        if opcode.is_of(Service::Star) {
            payload = star_body(opcode.operation());
            packet.payload_len = payload.len() as u32;
        }
        let mut bytes = [0; 512];
        let len = packet.emit_frame(&WireExtra::default(), &payload, &mut bytes);
        (format!("{opcode:?}").to_lowercase().replace(' ', "-"), bytes[..len].to_vec())
    };
    Opcode::all().map(frame).collect()
}

/// The payload that a packet of StaR's may have.
fn star_body(operation: Operation) -> Vec<u8> {
    match operation {
        Operation::RemoteData | Operation::GetDataAnswer => vec![7; 30],
        Operation::Hello => {
            let (wish, connections, threshold, clock) = (star::Wish::Auto, 3, 128, 1000);
            let (features, window, capacity, queues) = (0, 512, 60, (64, 64));
            let hello =
                star::Hello { wish, features, window, connections, threshold, capacity, queues, clock };
            hello.bytes().to_vec()
        }
        Operation::WqePacket => {
            let (op, flags) = (star::Op::Send, star::Wqe::SIGNALED);
            star::Wqe { op, flags, index: 5, len: 64, va: 0, rkey: 0, immediate: 0 }.bytes().to_vec()
        }
        Operation::CqePacket => {
            let (op, flags) = (star::Op::Recv, star::Cqe::RECV_QUEUE);
            star::Cqe { flags, status: 0, op, index: 5, len: 64, immediate: 0 }.bytes().to_vec()
        }
        _ => Vec::new(),
    }
}

/// What a packet of StaR's carries is read or refused, and read it is written as it stood there.
fn star_payload(operation: Operation, payload: &[u8], seen: &mut Seen) {
    match operation {
        Operation::Hello => {
            let Some(hello) = star::Hello::read(payload) else { return };
            assert_eq!(hello.bytes(), payload);
            seen.accept("Star hello's payload");
        }
        Operation::WqePacket => {
            if let Some(record) = star::Record::read(payload) {
                assert_eq!(record.bytes(), payload);
            }
            for entry in payload.as_chunks().0 {
                let Some(wqe) = star::Wqe::read(entry) else { return };
                assert_eq!(wqe.bytes(), *entry);
                seen.accept("Star WQE");
            }
        }
        Operation::CqePacket => {
            for entry in payload.as_chunks().0 {
                let Some(cqe) = star::Cqe::read(entry) else { return };
                assert_eq!(cqe.bytes(), *entry);
                seen.accept("Star CQE");
            }
        }
        _ => {}
    }
}

/// RoCEv2 packets, IRN's and StaR's among them: from the IP header on, and from the BTH on as a socket gives
/// them.
pub const WIRE: Target =
    Target { name: "wire", run: wire, seeds: frames, expected: all_of_wire, bounded: 200_000 };

fn all_of_wire() -> Vec<String> {
    let bodies = ["Star hello's payload", "Star WQE", "Star CQE"].map(String::from);
    opcodes().into_iter().chain(bodies).collect()
}

fn wire(input: &[u8], seen: &mut Seen) {
    if let Ok(parsed) = Packet::parse_ip(input) {
        let frame = &input[..parsed.frame_len];
        let payload = &input[parsed.payload.clone()];
        let mut out = vec![0; parsed.frame_len + 64];
        let len = parsed.packet.emit_frame(&parsed.extra, payload, &mut out);
        let again = Packet::parse_ip(&out[..len]).expect("what was parsed can be emitted and parsed");
        assert_eq!(again.packet, parsed.packet);
        assert_eq!(&out[again.payload.clone()], payload);
        // It says the same whether its ICRC is right or not; looking must not panic either.
        let _ = adverb_wire::icrc::verify_ip(frame, parsed.ip_header_len);
        let opcode = parsed.packet.bth.opcode;
        if opcode.is_of(Service::Star) {
            star_payload(opcode.operation(), payload, seen);
        }
        seen.accept(format!("{opcode:?}"));
    }
    let (src, dst) = ends();
    let flow = adverb_wire::packet::Flow { src, dst, ..Default::default() };
    // The IPv4 and UDP headers of the corpus, left away.
    if let Some(datagram) = input.get(28..)
        && let Ok(parsed) = Packet::parse_bth(flow, datagram)
    {
        assert!(parsed.frame_len <= datagram.len() && parsed.payload.end <= parsed.frame_len);
        let _ = adverb_wire::icrc::verify_udp(&flow, datagram);
    }
}

/// The view with which a switch rewrites headers in place.
pub const REWRITE: Target =
    Target { name: "rewrite", run: rewrite, seeds: frames, expected: opcodes, bounded: 100_000 };

fn rewrite(input: &[u8], seen: &mut Seen) {
    let mut bytes = input.to_vec();
    let number = input.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    let Ok(mut frame) = FrameMut::new(&mut bytes) else { return };
    frame.set_dest_qp(QpNumber::new(number & 0xff_ffff));
    frame.set_psn(Psn::new(number >> 8));
    frame.refresh_icrc();
    let (packet, len) = (*frame.packet(), frame.payload().len());
    let again = Packet::parse_ip(&bytes).expect("what was rewritten parses");
    assert_eq!((again.packet, again.payload.len()), (packet, len));
    assert!(adverb_wire::icrc::verify_ip(&bytes[..again.frame_len], again.ip_header_len));
    seen.accept(format!("{:?}", packet.bth.opcode));
}

/// Messages of 1RMA, before anything is decrypted.
pub const ONE_RMA_WIRE: Target = Target {
    name: "one_rma_wire",
    run: one_rma_wire,
    seeds: one_rma_messages,
    expected: || Kind::ALL.iter().map(|kind| format!("{kind:?}")).collect(),
    bounded: 200_000,
};

fn one_rma_messages() -> Vec<(String, Vec<u8>)> {
    let request = |op, len| {
        Body::Request(Request { op, class: 1, slot: 3, pid: 100, region: 0x10001, offset: 64, len })
    };
    let piece = Piece { offset: 64, len: 64 };
    let bodies = [
        request(Op::Read, 4096),
        request(Op::Write, 100),
        request(Op::Rekey, 16),
        Body::ReadResponse { slot: 3, piece },
        Body::Solicitation { slot: 3, ticket: 9, open_ns: 50_000 },
        Body::WriteData { ticket: 9, piece },
        Body::Completion { slot: 3, status: Status::Ok },
        Body::Nack { slot: 3 },
        Body::AuthenticationFailure { slot: 3 },
    ];
    let message = |body| {
        let header = Header { counter: 1 << 32, body };
        let mut bytes = vec![0x5a; header.message_len()];
        header.emit(&mut bytes);
        (format!("{:?}", header.kind()).to_lowercase(), bytes)
    };
    bodies.map(message).into()
}

fn one_rma_wire(input: &[u8], seen: &mut Seen) {
    let Ok(header) = Header::parse(input) else { return };
    let mut out = input.to_vec();
    assert_eq!((header.message_len(), header.emit(&mut out)), (input.len(), header.len()));
    assert_eq!(out, input, "every byte of a header has one meaning");
    seen.accept(format!("{:?}", header.kind()));
}

/// Captures.
pub const PCAP: Target = Target {
    name: "pcap",
    run: pcap,
    seeds: captures,
    expected: || ["Ethernet", "Raw", "little-endian record", "big-endian record"].map(String::from).into(),
    bounded: 100_000,
};

fn captures() -> Vec<(String, Vec<u8>)> {
    let written = |link| {
        let mut writer = Writer::new(Vec::new(), link).expect("memory takes it");
        writer.record(1, 2, &[b"one", b"frame"]).expect("memory takes it");
        writer.record(3, 999_999_999, &[b"another"]).expect("memory takes it");
        writer.into_inner()
    };
    // The same of a machine of the other byte order: header words and each record's four.
    let mut swapped = written(LinkType::Raw);
    let mut swap = |at: usize, len: usize| swapped[at..at + len].reverse();
    for (at, len) in [(0, 4), (4, 2), (6, 2), (8, 4), (12, 4), (16, 4), (20, 4)] {
        swap(at, len);
    }
    for record in [24, 24 + 16 + 8] {
        (0..4).for_each(|word| swap(record + 4 * word, 4));
    }
    vec![
        ("ethernet".into(), written(LinkType::Ethernet)),
        ("raw".into(), written(LinkType::Raw)),
        ("big-endian".into(), swapped),
    ]
}

fn pcap(input: &[u8], seen: &mut Seen) {
    let Ok(reader) = Reader::new(input) else { return };
    seen.accept(format!("{:?}", reader.link_type()));
    let mut bytes = 0;
    for record in reader {
        bytes += record.bytes.len() + 16;
        let order = if input[0] == 0xa1 { "big" } else { "little" };
        seen.accept(format!("{order}-endian record"));
    }
    assert!(bytes + 24 <= input.len(), "records lie apart, within the file");
}

/// Scenario files of the simulator, up to the plan: everything but running it.
pub const SCENARIO: Target = Target {
    name: "scenario",
    run: scenario,
    seeds: || {
        let examples = [
            ("faults", include_str!("../../sim/examples/faults.toml")),
            ("incast", include_str!("../../sim/examples/incast.toml")),
            ("one-rma", include_str!("../../sim/examples/one-rma.toml")),
            ("permutation", include_str!("../../sim/examples/permutation.toml")),
        ];
        examples.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into()
    },
    expected: || ["parsed", "planned"].map(String::from).into(),
    bounded: 10_000,
};

fn scenario(input: &[u8], seen: &mut Seen) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(scenario) = adverb_sim::scenario::Scenario::parse(text) else { return };
    seen.accept("parsed");
    let mut read = |name: &str| Err(adverb_sim::Error::new(name.to_owned(), "no file is read here"));
    if scenario.plan(&mut read).is_ok() {
        seen.accept("planned");
    }
}

/// The RPC by which keys of 1RMA are handed out: its requests, its answers, and the owner's policy file.
pub const GRANTS: Target = Target {
    name: "grants",
    run: grants,
    seeds: || {
        let mut seeds = adverb_grants::fuzzing::samples();
        let policy =
            "[[client]]\nname = 'app'\nregions = ['kv-*']\nrights = ['read', 'write']\ncall = true\n";
        seeds.push(("policy".to_owned(), policy.as_bytes().to_vec()));
        seeds
    },
    expected: || {
        let messages = adverb_grants::fuzzing::samples().into_iter().map(|(name, _)| name);
        messages.chain(["policy".to_owned()]).collect()
    },
    bounded: 100_000,
};

fn grants(input: &[u8], seen: &mut Seen) {
    adverb_grants::fuzzing::read(input).into_iter().for_each(|name| seen.accept(name));
    if let Ok(text) = std::str::from_utf8(input)
        && text.contains("client")
        && adverb_grants::Policy::parse(text).is_ok()
    {
        seen.accept("policy");
    }
}
