//! What the switch's programs cost, from bytes to bytes, each frame's ICRC checked and renewed where the
//! program does so, without a system call: `drive --op switch-forward|switch-write|switch-cas|switch-add`.
//!
//! An operation is one frame of 4 KB that is forwarded (`forward`), or that passes `cas_to_write` on its way
//! to the server (`write`); or an atomic's way to and fro, which are two frames that the switch makes anew:
//! the request becomes a WRITE, and its acknowledgement an atomic's answer (`cas`, `add`).

use adverb_bench::{Options, now};
use adverb_switch::{CasConfig, CasToWrite, Counter, PortId, Program, Switch};
use adverb_wire::{
    Aeth, AtomicEth, Bth, Flow, Gid, Instant, Key, Opcode, Operation, Packet, Psn, QpNumber, Reth, Service,
    WireExtra,
};
use std::net::Ipv4Addr;

const VA: u64 = 0x1000;
const RKEY: Key = Key(0x1234);
/// Events that the switch keeps: what `adverb switch run` keeps if nothing else is said.
const TRACE: usize = 1000;
const PAYLOAD: usize = 4096;
/// Room behind a frame, as there is in the process, where the memory of frames is used again.
const ROOM: usize = 64;
/// Atomics after which the switch knows a word.
const KNOWN: usize = 2;
/// Operations between two looks at the clock.
const TURN: usize = 64;

/// A switch with a client at its first port and a server at its second.
struct Bench {
    switch: Switch,
    ports: [PortId; 2],
    now: Instant,
}

/// Everything but the making of frames, which is not the switch's work.
#[inline(never)]
fn layer_switch(bench: &mut Bench, from: usize, bytes: Vec<u8>) -> Option<Vec<u8>> {
    bench.switch.on_frame(bench.now, bench.ports[from], bytes);
    let (to, bytes) = bench.switch.next_frame()?;
    let single = to == bench.ports[1 - from] && bench.switch.next_frame().is_none();
    single.then_some(bytes)
}

fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::new(10, 9, 0, host as u8 + 1))
}

impl Bench {
    fn new(programs: Vec<Program>) -> Result<Bench, String> {
        let mut switch = Switch::new(programs, TRACE).map_err(|e| e.to_string())?;
        let mut ports = [PortId::default(); 2];
        for (host, port) in ports.iter_mut().enumerate() {
            *port = switch.add_port().map_err(|e| e.to_string())?;
            switch.claim(*port, gid(host)).map_err(|e| e.to_string())?;
        }
        // Past the time in which nothing passes that changes memory.
        Ok(Bench { switch, ports, now: Instant::from_ns(1_000_000_000) })
    }

    fn cas() -> Result<Bench, String> {
        let program = CasToWrite::new(CasConfig::new(gid(1)), Instant::ZERO)?;
        Bench::new(vec![Program::CasToWrite(Box::new(program))])
    }

    /// A frame from one of the two hosts, through the switch.
    fn send(&mut self, from: usize, packet: &Packet, payload: &[u8]) -> Result<Vec<u8>, String> {
        let bytes = frame(packet, payload);
        layer_switch(self, from, bytes).ok_or_else(|| "the switch kept a frame".to_owned())
    }
}

fn packet(from: usize, operation: Operation, psn: usize) -> Packet {
    let flow = Flow { src: gid(from), dst: gid(1 - from), src_port: 0xc123, traffic_class: 2, hop_limit: 64 };
    let opcode = Opcode::new(Service::Rc, operation);
    let dest_qp = QpNumber::new(0x11_0001 + from as u32);
    let bth = Bth { opcode, psn: Psn::new(psn as u32), dest_qp, ..Bth::default() };
    Packet { flow, bth, ..Packet::default() }
}

fn frame(packet: &Packet, payload: &[u8]) -> Vec<u8> {
    let packet = Packet { payload_len: payload.len() as u32, ..*packet };
    let mut bytes = Vec::with_capacity(packet.frame_len() + ROOM);
    bytes.resize(packet.frame_len(), 0);
    let len = packet.emit_frame(&WireExtra::default(), payload, &mut bytes);
    assert_eq!(len, bytes.len(), "a packet of our own");
    bytes
}

/// What a run does.
pub fn drive(options: &Options, op: &str) -> Result<String, String> {
    let count = options.get("count", 20_000usize)?;
    let (mut bench, frames) = match op {
        "switch-forward" => (Bench::new(Vec::new())?, 1),
        "switch-write" => (Bench::cas()?, 1),
        "switch-cas" | "switch-add" => (Bench::cas()?, 2),
        other => return Err(format!("--op {other}: switch-forward, switch-write, switch-cas or switch-add")),
    };
    let took = match frames {
        1 => writes(&mut bench, count)?,
        _ => atomics(&mut bench, count, op == "switch-add")?,
    };
    let each = took.as_nanos() as f64 / count.max(1) as f64;
    Ok(format!(
        r#"{{"ns_per_op": {each:.1}, "ns_per_frame": {:.1}, "frames_per_op": {frames}.00}}"#,
        each / f64::from(frames)
    ))
}

fn writes(bench: &mut Bench, count: usize) -> Result<std::time::Duration, String> {
    let payload = vec![0x5a; PAYLOAD];
    let mut took = std::time::Duration::ZERO;
    for first in (0..count).step_by(TURN) {
        let frames: Vec<Vec<u8>> = (first..count.min(first + TURN))
            .map(|psn| {
                let mut packet = packet(0, Operation::WriteOnly, psn);
                packet.reth = Reth { va: 0x10_0000, rkey: RKEY, len: PAYLOAD as u32 };
                frame(&packet, &payload)
            })
            .collect();
        let begun = now();
        for bytes in frames {
            let len = bytes.len();
            if layer_switch(bench, 0, bytes).is_none_or(|out| out.len() != len) {
                return Err(format!("a WRITE from {first} on did not leave as it came"));
            }
        }
        took += begun.elapsed();
    }
    Ok(took)
}

/// Atomics of one connection, one after the other: so many are decided by the switch.
fn atomics(bench: &mut Bench, count: usize, adds: bool) -> Result<std::time::Duration, String> {
    let operation = if adds { Operation::FetchAdd } else { Operation::CompareSwap };
    let request = |psn: usize| {
        let mut packet = packet(0, operation, psn);
        let value = psn as u64;
        let swap_add = if adds { 1 } else { value + 1 };
        packet.atomic = AtomicEth { va: VA, rkey: RKEY, swap_add, compare: value };
        packet
    };
    let answer = |operation: Operation, psn: usize| {
        let mut packet = packet(1, operation, psn);
        packet.aeth = Aeth { msn: psn as u32 + 1, ..Aeth::default() };
        packet
    };
    // The server's own answers tell the connection and, a packet's life after the word's first atomic, the
    // word: it holds its next atomic's number.
    for psn in 0..KNOWN {
        bench.send(0, &request(psn), &[])?;
        let packet = Packet { atomic_original: psn as u64, ..answer(Operation::AtomicAcknowledge, psn) };
        bench.send(1, &packet, &[])?;
        bench.now += CasConfig::new(gid(1)).life;
    }
    let mut took = std::time::Duration::ZERO;
    for first in (KNOWN..KNOWN + count).step_by(TURN) {
        let pairs: Vec<[Vec<u8>; 2]> = (first..(KNOWN + count).min(first + TURN))
            .map(|psn| [frame(&request(psn), &[]), frame(&answer(Operation::Acknowledge, psn), &[])])
            .collect();
        let begun = now();
        for [there, back] in pairs {
            let written = layer_switch(bench, 0, there);
            let answered = layer_switch(bench, 1, back);
            if written.is_none() || answered.is_none() {
                return Err(format!("an atomic from {first} on was not carried out"));
            }
        }
        took += begun.elapsed();
    }
    let counters = bench.switch.counters();
    let decided = counters.get(Counter::CasGranted) + counters.get(Counter::FetchAdded);
    if decided != count as u64 || counters.get(Counter::Answered) != count as u64 {
        return Err(format!("the switch decided {decided} of {count}"));
    }
    Ok(took)
}
