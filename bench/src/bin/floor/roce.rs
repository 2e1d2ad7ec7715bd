//! What RoCEv2 costs over UDP before there is a NIC: the sockets, batches and ICRCs that adverb uses, real
//! frames, one copy at either end, and nothing else. What adverb takes beyond it is its own; what this takes
//! beyond a raw round trip, or beyond segmentation offload alone, is the price of the format.

use super::{Outcome, SILENCE};
use adverb_bench::{Options, now, percentile};
use adverb_os::batch::Tally;
use adverb_os::roce::RoceSockets;
use adverb_wire::{
    Aeth, Bth, Flow, Gid, Instant, Opcode, Operation, Packet, Parsed, Psn, QpNumber, Service, verify_udp,
};
use std::net::IpAddr;
use std::process::{Command, Stdio};

/// Bytes that payloads are copied from, and to.
const MEMORY: usize = 1 << 20;
/// Frames between two words of the sink's, and those under way at most.
const CREDIT: u32 = 120;
const WINDOW: u32 = 4 * CREDIT;

/// Its frames end the other side.
const BYE: Operation = Operation::SendLast;

struct End {
    sockets: RoceSockets,
    flow: Flow,
    memory: Vec<u8>,
    tally: Tally,
}

/// Addresses of a pair of this number; they are no other pair's.
fn addresses(pair: u32) -> [IpAddr; 2] {
    let [_, _, high, low] = pair.to_be_bytes();
    [12, 13].map(|net| IpAddr::from([127, net, high, low]))
}

impl End {
    fn new(from: IpAddr, to: IpAddr) -> std::io::Result<End> {
        let flow = Flow { src: Gid::from(from), dst: Gid::from(to), hop_limit: 64, ..Flow::default() };
        let sockets = RoceSockets::bind(from, 1, true)?;
        Ok(End { sockets, flow, memory: vec![0x5a; MEMORY], tally: Tally::default() })
    }

    fn stage(&mut self, operation: Operation, psn: u32, payload: usize) {
        if !self.sockets.has_room() {
            self.flush();
        }
        let packet = Packet {
            flow: self.flow,
            bth: Bth {
                opcode: Opcode::new(Service::Rc, operation),
                dest_qp: QpNumber::new(0x01_0001),
                psn: Psn::new(psn),
                ..Bth::default()
            },
            aeth: Aeth::default(),
            payload_len: payload as u32,
            ..Packet::default()
        };
        let at = psn as usize * payload % (MEMORY - payload + 1);
        let memory = &self.memory[at..at + payload];
        self.sockets.stage_packet(Instant::ZERO, &packet, |place| place.copy_from_slice(memory));
    }

    fn flush(&mut self) {
        while !self.sockets.flush(&mut self.tally) {}
    }

    /// Takes what has come: each sound frame's operation and PSN. Its payload is in memory then.
    fn take(&mut self, mut each: impl FnMut(Operation, u32)) -> u64 {
        let End { sockets, memory, .. } = self;
        let mut parsed = Parsed::default();
        let received = sockets.receive(
            Instant::ZERO,
            |datagram| {
                let sound = Packet::parse_bth_into(&mut parsed, datagram.flow, datagram.bytes).is_ok()
                    && verify_udp(&datagram.flow, datagram.bytes).is_some();
                let Some(payload) = datagram.bytes.get(parsed.payload.clone()).filter(|_| sound) else {
                    return;
                };
                let (len, psn) = (payload.len(), parsed.packet.bth.psn.get());
                let at = psn as usize * len % (MEMORY - len + 1);
                memory[at..at + len].copy_from_slice(payload);
                each(parsed.packet.bth.opcode.operation(), psn);
            },
            |_| {},
        );
        received.frames
    }

    /// The same, until something comes.
    fn wait(&mut self, mut each: impl FnMut(Operation, u32)) -> Result<u64, &'static str> {
        let mut idle_since = None;
        for turn in 1u32.. {
            let frames = self.take(&mut each);
            if frames > 0 {
                return Ok(frames);
            }
            if turn.is_multiple_of(4096) && idle_since.get_or_insert_with(now).elapsed() > SILENCE {
                break;
            }
        }
        Err("the other side is silent")
    }
}

/// This program's own number names the pair; the far end is told it.
fn start(role: &str) -> Result<(End, std::process::Child), Box<dyn std::error::Error>> {
    let pair = std::process::id();
    let [own, far] = addresses(pair);
    let mut end = End::new(own, far)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([role, "--pair", &pair.to_string()]).stdout(Stdio::null());
    let child = command.spawn()?;
    end.wait(|_, _| {})?;
    Ok((end, child))
}

fn join(options: &Options) -> Result<End, Box<dyn std::error::Error>> {
    let [far, own] = addresses(options.get("pair", 0u32)?);
    let mut end = End::new(own, far)?;
    end.stage(Operation::Acknowledge, 0, 0);
    end.flush();
    Ok(end)
}

/// A message and the acknowledgement of the one before, to and fro: what a ping-pong of SENDs is on the wire.
/// With `--frames 1` without acknowledgements, as READs and their answers are.
pub fn pingpong(options: &Options) -> Outcome {
    let size = options.get("size", 8usize)?;
    let rounds = options.get("rounds", 20_000u32)?;
    let frames = options.get("frames", 2u64)?.clamp(1, 2);
    let (mut end, mut child) = start("roce-echo")?;
    let mut samples = Vec::new();
    for psn in 0..rounds + rounds / 10 {
        let before = now();
        turn(&mut end, psn, size, frames);
        let mut came = 0;
        while came < frames {
            came += end.wait(|_, _| {})?;
        }
        if psn >= rounds / 10 {
            samples.push(before.elapsed().as_nanos() as u64);
        }
    }
    end.stage(BYE, 0, 0);
    end.flush();
    child.wait()?;
    let p50 = percentile(&mut samples, 0.5) as f64 / 1e3;
    println!(r#"{{"size": {size}, "frames": {frames}, "rtt_p50_us": {p50:.3}}}"#);
    Ok(())
}

fn turn(end: &mut End, psn: u32, size: usize, frames: u64) {
    end.stage(Operation::SendOnly, psn, size);
    if frames > 1 {
        end.stage(Operation::Acknowledge, psn, 0);
    }
    end.flush();
}

/// The far end of it: answers as it is asked.
pub fn echo(options: &Options) -> Outcome {
    let mut end = join(options)?;
    loop {
        let (mut bye, mut last) = (false, 0);
        let frames = end.wait(|operation, psn| {
            bye |= operation == BYE;
            last = psn;
        })?;
        if bye {
            return Ok(());
        }
        turn(&mut end, last, 8, frames);
    }
}

/// Frames of a long WRITE, as fast as they come through.
pub fn bulk(options: &Options) -> Outcome {
    let payload = options.get("segment", 4096usize)?.clamp(1, 4096);
    let run_ms = options.get("milliseconds", 300u128)?;
    let (mut end, mut child) = start("roce-sink")?;
    let (mut sent, mut heard) = (0u32, 0u32);
    let begun = now();
    while begun.elapsed().as_millis() < run_ms {
        if sent - heard > WINDOW - CREDIT {
            end.wait(|_, psn| heard = heard.max(psn))?;
            continue;
        }
        for _ in 0..CREDIT {
            end.stage(Operation::WriteMiddle, sent, payload);
            sent += 1;
        }
        end.flush();
    }
    let seconds = begun.elapsed().as_secs_f64();
    end.stage(BYE, 0, 0);
    end.flush();
    child.wait()?;
    let gbps = f64::from(heard) * payload as f64 * 8.0 / seconds / 1e9;
    println!(r#"{{"segment": {payload}, "gbps": {gbps:.3}}}"#);
    Ok(())
}

/// Its far end: says how many frames have come. PSNs here are far from their end.
pub fn sink(options: &Options) -> Outcome {
    let mut end = join(options)?;
    let (mut frames, mut said) = (0u32, 0u32);
    loop {
        let mut bye = false;
        end.wait(|operation, _| {
            bye |= operation == BYE;
            frames += 1;
        })?;
        if bye {
            return Ok(());
        }
        if frames - said >= CREDIT {
            said = frames;
            end.stage(Operation::Acknowledge, frames, 0);
            end.flush();
        }
    }
}
