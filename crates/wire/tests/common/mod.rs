//! What the integration tests share: the committed captures, and packets of every shape.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Cursor;

use adverb_wire::eth::ip_packet;
use adverb_wire::{
    Aeth, AtomicEth, Bth, Deth, Flow, Gid, Headers, IrnEth, Key, Opcode, Packet, Psn, QpNumber, Reth,
    SackEth, Syndrome, pcap,
};

/// Number of RoCEv2 packets in the captures.
pub const GOLDEN_PACKETS: usize = 3675;
/// Number of capture files.
pub const GOLDEN_FILES: usize = 45;

/// Every frame that carries UDP to port 4791, from its IP header on, with its file's name.
pub fn golden_packets() -> Vec<(String, Vec<u8>)> {
    let archive = include_bytes!("../data/rxe-6.1.tar.xz");
    let mut tar = Vec::new();
    lzma_rs::xz_decompress(&mut Cursor::new(archive), &mut tar).unwrap();
    let mut packets = Vec::new();
    let files = tar_files(&tar);
    assert_eq!(files.len(), GOLDEN_FILES);
    for (name, content) in files {
        for record in pcap::Reader::new(content).unwrap() {
            assert_eq!(record.original_len as usize, record.bytes.len());
            let Some(ip) = ip_packet(record.bytes) else { continue };
            let (udp_at, protocol) = match ip[0] >> 4 {
                4 => ((ip[0] & 15) as usize * 4, ip[9]),
                _ => (40, ip[6]),
            };
            if protocol == 17 && ip[udp_at + 2..udp_at + 4] == 4791u16.to_be_bytes() {
                packets.push((name.clone(), ip.to_vec()));
            }
        }
    }
    assert_eq!(packets.len(), GOLDEN_PACKETS);
    packets
}

/// The regular files of an archive: 512-byte headers with the name first and an octal size at 124.
fn tar_files(tar: &[u8]) -> Vec<(String, &[u8])> {
    let text = |bytes: &[u8]| {
        String::from_utf8(bytes.iter().copied().take_while(|&b| b != 0).collect()).unwrap().trim().to_owned()
    };
    let mut files = Vec::new();
    let mut rest = tar;
    while rest.len() >= 512 && rest[0] != 0 {
        let (header, after) = rest.split_at(512);
        let size = usize::from_str_radix(&text(&header[124..136]), 8).unwrap();
        let name = text(&header[..100]);
        if matches!(header[156], b'0' | 0) {
            files.push((name, &after[..size]));
        }
        rest = &after[size.next_multiple_of(512)..];
    }
    files
}

/// A flow between two addresses of one IP version.
pub fn flow(ipv4: bool) -> Flow {
    let gid = |last: u8| {
        let mut bytes = [0; 16];
        if ipv4 {
            bytes[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, last]);
        } else {
            bytes[..2].copy_from_slice(&[0xfd, 0x01]);
            bytes[15] = last;
        }
        Gid(bytes)
    };
    Flow { src: gid(1), dst: gid(2), src_port: 0xc0de, traffic_class: 0x6a, hop_limit: 63 }
}

/// Sets what the opcode's headers carry from distinct values derived of `seed`; other fields stay at
/// their defaults, as the parser leaves them.
pub fn packet(opcode: Opcode, flow: Flow, payload_len: u32, seed: u64) -> Packet {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let bits = next();
    let bit = |i: u32| bits >> i & 1 == 1;
    let bth = Bth {
        opcode,
        solicited: bit(0),
        migrated: bit(1),
        pkey: next() as u16,
        fecn: bit(2),
        becn: bit(3),
        dest_qp: QpNumber::new(next() as u32),
        ack_req: bit(4),
        psn: Psn::new(next() as u32),
    };
    let mut p = Packet { flow, bth, payload_len, ..Packet::default() };
    let headers = opcode.headers();
    let has = |header| headers.contains(header);
    if has(Headers::DETH) {
        p.deth = Deth { qkey: next() as u32, src_qp: QpNumber::new(next() as u32) };
    }
    if has(Headers::XRCETH) {
        p.xrc_srq = next() as u32 & 0xff_ffff;
    }
    if has(Headers::RETH) {
        p.reth = Reth { va: next(), rkey: Key(next() as u32), len: next() as u32 };
    }
    if has(Headers::ATOMIC_ETH) {
        p.atomic = AtomicEth { va: next(), rkey: Key(next() as u32), swap_add: next(), compare: next() };
    }
    if has(Headers::AETH) {
        p.aeth = Aeth { syndrome: Syndrome::from_wire(next() as u8), msn: next() as u32 & 0xff_ffff };
    }
    if has(Headers::ATOMIC_ACK_ETH) {
        p.atomic_original = next();
    }
    if has(Headers::IMM_DT) {
        p.immediate = next() as u32;
    }
    if has(Headers::IETH) {
        p.invalidate = next() as u32;
    }
    if has(Headers::IRN_ETH) {
        p.irn = IrnEth::new(next() as u8, next() as u32, next() as u32);
    }
    if has(Headers::SACK_ETH) {
        p.sack = SackEth::new(next() as u8, Psn::new(next() as u32));
    }
    if has(Headers::TICKET) {
        p.ticket = adverb_wire::star::Ticket { word: next(), seal: next() };
    }
    p
}
