//! What parsing, emitting and summing one packet cost: `cargo bench -p adverb-wire`. Prints the best of
//! several rounds, in nanoseconds per call.
#![allow(clippy::print_stdout, reason = "a tool of those who build adverb")]

use std::hint::black_box;
use std::net::Ipv4Addr;

use adverb_wire::{
    Flow, Gid, Icrc, MAX_IP_HEADER_LEN, Opcode, Operation, Packet, Reth, Service, WireExtra, infer_ipv4_id,
};

const ROUNDS: u32 = 20;
const CALLS: u32 = 100_000;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn measure(name: &str, mut call: impl FnMut()) {
    let round = |call: &mut dyn FnMut()| {
        let start = now();
        call();
        start.elapsed().as_nanos() as f64 / CALLS as f64
    };
    let mut calls = || (0..CALLS).for_each(|_| call());
    let best = (0..ROUNDS).map(|_| round(&mut calls)).fold(f64::INFINITY, f64::min);
    println!("{name:32} {best:8.1} ns");
}

fn main() {
    let flow = Flow {
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        src_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
    };
    let mut packet = Packet { flow, payload_len: 1024, ..Packet::default() };
    packet.bth.opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
    packet.reth = Reth { va: 0x1000, len: 1024, ..Reth::default() };
    let payload = [0x5a; 1024];
    let mut frame = [0; 2048];
    let len = packet.emit_frame(&WireExtra::with_ipv4_id(0xbeef), &payload, &mut frame);
    let frame = &frame[..len];
    let udp_payload = &frame[28..];
    let covered = &udp_payload[..udp_payload.len() - 4];
    let parsed = Packet::parse_ip(frame).expect("emitted above");
    let computed = Icrc::over_flow(&flow, 0, udp_payload.len(), covered).finish();
    let mut out = [0; MAX_IP_HEADER_LEN];

    measure("parse_ip, WRITE only", || {
        let _ = black_box(Packet::parse_ip(black_box(frame)));
    });
    measure("parse_bth, WRITE only", || {
        let _ = black_box(Packet::parse_bth(flow, black_box(udp_payload)));
    });
    measure("parse_headers, WRITE only", || {
        let _ = black_box(Packet::parse_headers(flow, black_box(&udp_payload[..44]), udp_payload.len()));
    });
    measure("emit_ip, WRITE only", || {
        black_box(black_box(&packet).emit_ip(&mut out));
    });
    measure("emit_bth, WRITE only", || {
        black_box(black_box(&packet).emit_bth(&mut out));
    });
    measure("Icrc::over_flow, headers only", || {
        black_box(Icrc::over_flow(black_box(&flow), 0, udp_payload.len(), &covered[..28]).finish());
    });
    measure("Icrc::over_flow, 1 KiB payload", || {
        black_box(Icrc::over_flow(black_box(&flow), 0, udp_payload.len(), black_box(covered)).finish());
    });
    measure("infer_ipv4_id", || {
        black_box(infer_ipv4_id(black_box(parsed.icrc), black_box(computed), udp_payload.len()));
    });
}
