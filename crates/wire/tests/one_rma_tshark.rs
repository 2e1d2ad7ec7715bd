//! A second reader of 1RMA's messages: `scripts/adverb_1rma.lua` under tshark agrees on every field of every
//! kind, over IPv4 and IPv6, and says what is malformed.

use adverb_wire::ip::{IPV4_DF, IPV4_LEN, Ipv4, PROTOCOL_UDP};
use adverb_wire::one_rma::*;
use adverb_wire::pcap;
use adverb_wire::udp::{UDP_LEN, Udp};
use std::io::Write as _;
use std::process::Command;

const FIELDS: [&str; 17] = [
    "adverb_1rma.version",
    "adverb_1rma.kind",
    "adverb_1rma.class",
    "adverb_1rma.status",
    "adverb_1rma.slot",
    "adverb_1rma.ticket",
    "adverb_1rma.counter",
    "adverb_1rma.pid",
    "adverb_1rma.region",
    "adverb_1rma.offset",
    "adverb_1rma.length",
    "adverb_1rma.open_ns",
    "adverb_1rma.piece.offset",
    "adverb_1rma.piece.length",
    "adverb_1rma.bad_length",
    "adverb_1rma.unknown",
    "_ws.malformed",
];

/// What the dissector should print.
fn expected(header: &Header) -> Vec<Option<u64>> {
    let request = match header.body {
        Body::Request(request) => Some(request),
        _ => None,
    };
    let slot = match header.body {
        Body::Request(Request { slot, .. })
        | Body::ReadResponse { slot, .. }
        | Body::Solicitation { slot, .. }
        | Body::Completion { slot, .. }
        | Body::Nack { slot }
        | Body::AuthenticationFailure { slot } => Some(slot as u64),
        Body::WriteData { .. } => None,
    };
    let ticket = match header.body {
        Body::Solicitation { ticket, .. } | Body::WriteData { ticket, .. } => Some(ticket as u64),
        _ => None,
    };
    let status = match header.body {
        Body::Completion { status, .. } => Some(status as u64),
        _ => None,
    };
    let open = match header.body {
        Body::Solicitation { open_ns, .. } => Some(open_ns as u64),
        _ => None,
    };
    vec![
        Some(VERSION as u64),
        Some(header.kind() as u64),
        request.map(|r| r.class as u64),
        status,
        slot,
        ticket,
        Some(header.counter),
        request.map(|r| r.pid as u64),
        request.map(|r| r.region as u64),
        request.map(|r| r.offset),
        request.map(|r| r.len as u64),
        open,
        header.piece().map(|p| p.offset as u64),
        header.piece().map(|p| p.len as u64),
        None,
        None,
        None,
    ]
}

fn headers() -> Vec<Header> {
    let request = |op, len| {
        Body::Request(Request {
            op,
            class: 1,
            slot: 0x0a0b_0c0d,
            pid: 4242,
            region: 0x8000_0001,
            offset: 1 << 40,
            len,
        })
    };
    let piece = Piece { offset: 1024, len: 100 };
    let bodies = [
        request(Op::Read, 4096),
        request(Op::Write, 1),
        request(Op::Rekey, 16),
        Body::ReadResponse { slot: 9, piece },
        Body::WriteData { ticket: 0x0007_0003, piece },
        Body::Solicitation { slot: 8, ticket: 0x0007_0003, open_ns: 25_000 },
        Body::Completion { slot: 7, status: Status::Ok },
        Body::Completion { slot: 7, status: Status::Refused },
        Body::Nack { slot: 6 },
        Body::AuthenticationFailure { slot: 5 },
    ];
    let all = bodies.into_iter().enumerate();
    all.map(|(i, body)| Header { counter: 0xfedc_ba98_7654_3210 - i as u64, body }).collect()
}

/// The message inside IP and UDP.
fn frame(message: &[u8], ipv4: bool) -> Vec<u8> {
    let udp =
        Udp { src_port: 50_000, dst_port: UDP_PORT, len: (UDP_LEN + message.len()) as u16, checksum: 0 };
    let mut udp_bytes = [0; UDP_LEN];
    udp.write(&mut udp_bytes);
    let mut frame = Vec::new();
    if ipv4 {
        let mut header = [0; IPV4_LEN];
        let total_len = IPV4_LEN as u16 + udp.len;
        Ipv4 {
            header_len: 20,
            tos: 0,
            total_len,
            id: 0,
            flags: IPV4_DF,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            src: [10, 0, 0, 1],
            dst: [10, 0, 0, 2],
        }
        .emit(&mut header);
        frame.extend_from_slice(&header);
    } else {
        frame.extend_from_slice(&[0x60, 0, 0, 0, (udp.len >> 8) as u8, udp.len as u8, PROTOCOL_UDP, 64]);
        frame.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }
    frame.extend_from_slice(&udp_bytes);
    frame.extend_from_slice(message);
    frame
}

fn number(text: &str) -> Option<u64> {
    match (text, text.strip_prefix("0x")) {
        ("", _) => None,
        (_, Some(hex)) => Some(u64::from_str_radix(hex, 16).unwrap()),
        // What an expert says is text: it was said.
        _ => Some(text.parse().unwrap_or(1)),
    }
}

/// What tshark prints for each frame, field by field.
fn dissect(frames: &[Vec<u8>], name: &str) -> Vec<Vec<Option<u64>>> {
    let mut writer = pcap::Writer::new(Vec::new(), pcap::LinkType::Raw).unwrap();
    frames.iter().enumerate().for_each(|(i, frame)| writer.record(i as u32, 0, &[frame]).unwrap());
    let path = std::env::temp_dir().join(format!("adverb-1rma-{name}-{}.pcap", std::process::id()));
    std::fs::write(&path, writer.into_inner()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/adverb_1rma.lua");
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-X").arg(format!("lua_script:{script}")).arg("-r").arg(&path);
    command.args(["-T", "fields", "-E", "occurrence=f"]);
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(number).collect()).collect()
}

fn tshark_is_there() -> bool {
    let found = Command::new("tshark").arg("--version").output();
    if let Err(e) = &found {
        // Past the test harness, which hides what a passing test prints.
        let mut out = std::io::stdout();
        writeln!(out, "SKIPPED: tshark cannot be run: {e}").unwrap();
    }
    found.is_ok()
}

#[test]
fn dissects_every_kind() {
    if !tshark_is_there() {
        return;
    }
    let headers = headers();
    let mut kinds: Vec<u8> = headers.iter().map(|h| h.kind() as u8).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), Kind::ALL.len(), "one message of every kind");
    let mut frames = Vec::new();
    for ipv4 in [true, false] {
        for header in &headers {
            let mut message = vec![0x5a; header.message_len()];
            header.emit(&mut message);
            frames.push(frame(&message, ipv4));
        }
    }
    let shown = dissect(&frames, "kinds");
    assert_eq!(shown.len(), frames.len());
    for (shown, header) in shown.iter().zip(headers.iter().cycle()) {
        assert_eq!(*shown, expected(header), "{header:?}: {FIELDS:?}");
    }
}

#[test]
fn says_what_is_malformed() {
    if !tshark_is_there() {
        return;
    }
    let header = headers()[3];
    let mut message = vec![0; header.message_len()];
    header.emit(&mut message);
    let with = |at: usize, value: u8| {
        let mut changed = message.clone();
        changed[at] = value;
        changed
    };
    let cases = [
        (message[..message.len() - 1].to_vec(), Some(1), None),
        (message[..31].to_vec(), Some(1), None),
        (message[..35].to_vec(), Some(1), None),
        (with(0, 2), None, Some(1)),
        (with(1, 10), None, Some(1)),
        (message.clone(), None, None),
    ];
    let frames: Vec<_> = cases.iter().map(|(message, ..)| frame(message, true)).collect();
    let shown = dissect(&frames, "malformed");
    assert_eq!(shown.len(), cases.len());
    for (i, (shown, (_, bad_length, unknown))) in shown.iter().zip(&cases).enumerate() {
        // What is malformed is found by Wireshark's own filter too.
        let malformed = bad_length.or(*unknown);
        assert_eq!((shown[14], shown[15], shown[16]), (*bad_length, *unknown, malformed), "case {i}");
    }
}
