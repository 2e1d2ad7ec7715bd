//! What one 1RMA operation costs in the NICs themselves: two of them back to back, messages handed over as
//! bytes, everything sealed and opened. `cargo bench -p adverb-nic --bench one_rma [case] [count]`; with
//! `--features benchmark-only-cleartext` the same without encryption.
#![allow(clippy::print_stdout, reason = "a tool of those who build adverb")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../tests/one_rma_world/mod.rs"]
mod one_rma_world;

use adverb_nic::one_rma::{COMMAND_LEN, ENCRYPTED, OneRmaFrame, Outcome};
use adverb_wire::Instant;
use adverb_wire::one_rma::Op;
use one_rma_world::*;
use std::hint::black_box;
use std::time::Instant as Clock;

const NOW: Instant = Instant::from_ns(1);

struct Pair {
    hosts: [Host; 2],
    frame: OneRmaFrame,
    message: Vec<u8>,
}

impl Pair {
    fn new() -> Pair {
        let host = |index| host(index, 1, &|c| c.max_piece = 4096);
        Pair { hosts: [host(0), host(1)], frame: OneRmaFrame::new(), message: Vec::with_capacity(8192) }
    }

    fn command(&self, op: Op, len: usize) -> [u8; COMMAND_LEN] {
        let [initiator, target] = &self.hosts;
        let key = target.nic.derive(target.target, initiator.gid, PID, op).unwrap();
        adverb_nic::one_rma::Command {
            op,
            class: 0,
            len: len as u16,
            remote_region: target.target,
            local_region: initiator.local,
            completion_region: initiator.ring,
            target: target.gid,
            remote_offset: 0,
            local_offset: 0,
            key,
        }
        .encode()
    }

    /// Posts `batch` commands and carries them out.
    fn round(&mut self, command: &[u8; COMMAND_LEN], batch: usize) {
        let initiator = &mut self.hosts[0];
        for slot in 0..batch {
            initiator.nic.post(NOW, initiator.slots[slot], command).unwrap();
        }
        loop {
            let mut moved = false;
            for from in 0..2 {
                while self.hosts[from].nic.next_frame(NOW, &mut self.frame) {
                    self.message.clear();
                    self.message.extend_from_slice(self.frame.message());
                    let source = self.hosts[from].gid;
                    self.hosts[1 - from].nic.on_frame(NOW, source, &mut self.message);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        for _ in 0..batch {
            assert_eq!(self.hosts[0].completion().unwrap().outcome, Outcome::Ok);
        }
    }
}

/// The best of five runs, in ns each.
fn time(count: usize, mut work: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Clock::now();
        (0..count).for_each(|_| work());
        best = best.min(start.elapsed().as_nanos() as f64 / count as f64);
    }
    best
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let count: usize = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    println!("messages are {}", if ENCRYPTED { "encrypted" } else { "in cleartext: for comparison only" });
    let derivation = {
        let pair = Pair::new();
        let [initiator, target] = &pair.hosts;
        time(count, || {
            let key = target.nic.derive(target.target, black_box(initiator.gid), PID, Op::Read);
            black_box(key.is_ok());
        })
    };
    println!("{:<14} {derivation:9.1} ns", "derive K_d");
    let cases = [
        ("read64", Op::Read, 64, 1),
        ("read64x16", Op::Read, 64, 16),
        ("read4k", Op::Read, 4096, 1),
        ("read4kx16", Op::Read, 4096, 16),
        ("write64", Op::Write, 64, 1),
        ("write64x16", Op::Write, 64, 16),
        ("write4k", Op::Write, 4096, 1),
        ("write4kx16", Op::Write, 4096, 16),
    ];
    for (name, op, len, batch) in cases {
        if args.first().is_some_and(|only| only != name) {
            continue;
        }
        let mut pair = Pair::new();
        let command = pair.command(op, len);
        let ns = time(count.div_ceil(5 * batch), || pair.round(&command, batch)) / batch as f64;
        println!("{name:<14} {ns:9.1} ns/op  derivation {:4.1}%", 100.0 * derivation / ns);
    }
}
