//! What one operation costs in the NIC itself: two NICs back to back, frames handed over as descriptors.
//! `cargo bench -p adverb-nic --bench data_path [operation] [count]`; under callgrind the count of
//! instructions repeats exactly.
#![allow(clippy::print_stdout, reason = "a tool of those who build adverb")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../tests/world/mod.rs"]
mod world;

use adverb_nic::*;
use adverb_wire::{Instant, Psn};
use std::time::Instant as Clock;
use world::*;

const QPS: usize = 1000;

struct Pair {
    w: World,
    qps: Vec<(QpId, QpId)>,
    memory: [Memory; 2],
    out: TxFrame,
    buffer: Vec<u8>,
}

impl Pair {
    fn new(count: usize, irn: bool) -> Pair {
        let mut w = World::with_config(2, 1, |c| c.irn = irn.then(IrnConfig::default));
        let link = Link { mtu: Mtu::M4096, psn: (Psn::new(0), Psn::new(0)), depth: 16, ..Link::default() };
        let caps =
            QpCaps { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let qps = (0..count).map(|_| w.pair(QpType::Rc, caps, &link)).collect();
        let memory = [w.memory(0, 1 << 20), w.memory(1, 1 << 20)];
        Pair { w, qps, memory, out: TxFrame::default(), buffer: vec![0; 8192] }
    }

    /// Moves frames until neither NIC has any.
    fn exchange(&mut self) {
        loop {
            let mut moved = 0;
            for from in 0..2 {
                let (left, right) = self.w.nodes.split_at_mut(1);
                let (a, b) =
                    if from == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
                while a.nic.next_frame(Instant::from_ns(1), &mut self.out) {
                    let len = self.out.payload.len();
                    let room = self.buffer.spare_capacity_mut();
                    debug_assert!(room.is_empty());
                    // SAFETY: the buffer holds a path MTU, which no payload exceeds.
                    unsafe { self.out.payload.copy_to_ptr(self.buffer.as_mut_ptr()) };
                    let payload = Payload::from_slice(&self.buffer[..len]);
                    b.nic.on_frame(Instant::from_ns(1), &self.out.packet, &payload);
                    moved += 1;
                }
            }
            if moved == 0 {
                return;
            }
        }
    }

    /// `batch` operations posted, then carried out.
    fn round(&mut self, kind: &str, len: usize, batch: usize, at: &mut usize) {
        for i in 0..batch {
            let (a, b) = self.qps[*at % self.qps.len()];
            *at += 1;
            let (va, rkey) = self.memory[1].at(0);
            let sges = [self.memory[0].sge(0, len)];
            let op = match kind {
                "write" => SendOp::Write(va, rkey),
                "read" => SendOp::Read(va, rkey),
                "atomic" => SendOp::FetchAdd { addr: va, rkey, add: 1 },
                _ => {
                    let land = [self.memory[1].sge(4096, len)];
                    self.w.recv(1, b, 0, &land);
                    SendOp::Send
                }
            };
            let mut request = wr(0, op, &sges);
            request.flags.signaled = i + 1 == batch || self.qps.len() > 1;
            self.w.send(0, a, request);
        }
        self.exchange();
        while self.w.poll(0).is_some() {}
        while self.w.poll(1).is_some() {}
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let count: usize = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(200_000);
    let cases = [
        ("write8", "write", 8, 1, 1),
        ("write8x16", "write", 8, 1, 16),
        ("send8", "send", 8, 1, 1),
        ("read8", "read", 8, 1, 1),
        ("atomic", "atomic", 8, 1, 1),
        ("write64x16-1000qp", "write", 64, QPS, 16),
        ("write64x16", "write", 64, 1, 16),
        ("write64k", "write", 65536, 1, 1),
        ("read64k", "read", 65536, 1, 1),
        ("irn-write8x16", "write", 8, 1, 16),
        ("irn-send8", "send", 8, 1, 1),
        ("irn-write64k", "write", 65536, 1, 1),
        ("irn-read64k", "read", 65536, 1, 1),
    ];
    for (name, kind, len, qps, batch) in cases {
        if args.first().is_some_and(|only| only != name) {
            continue;
        }
        let mut pair = Pair::new(qps, name.starts_with("irn-"));
        pair.exchange();
        let mut at = 0;
        let rounds = count.div_ceil(batch) / (1 + len / 4096);
        let mut best = f64::MAX;
        for _ in 0..5 {
            let start = Clock::now();
            for _ in 0..rounds / 5 {
                pair.round(kind, len, batch, &mut at);
            }
            let ns = start.elapsed().as_nanos() as f64 / (rounds / 5 * batch) as f64;
            best = best.min(ns);
        }
        println!("{name:<20} {best:9.1} ns/op");
    }
}
