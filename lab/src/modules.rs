//! What IRN's modules cost on this machine for each packet, in steady state and while a loss is being
//! repaired, and what state they keep: the answers of software to the paper's hardware tables (IRN 6.1, table
//! 2).

use adverb_nic::irn::*;
use adverb_wire::{Duration, Instant, Psn, SackEth};
use core::fmt::Write;
use core::hint::black_box;
use std::time::Instant as Clock;

const PACKETS: u32 = 1 << 20;
/// Every so many packets one is lost.
const LOSS: u32 = 100;
const ROUNDS: u32 = 10;
const NOW: Instant = Instant::from_ns(1000);
/// No local ACK timeout.
const NONE: Duration = Duration::ZERO;

/// Time of one module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Time {
    /// The module, and what it is given.
    pub name: &'static str,
    /// Best of several rounds, in ns for each packet.
    pub ns: f64,
    /// The FPGA's module.
    pub fpga: Fpga,
}

/// A row of IRN's table 2: the worst case of a module's latency and of its rate. The two are independent: a
/// module that takes 16.5 ns from its input to its output may take in a packet every 22 ns only.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fpga {
    /// Latency, ns.
    pub latency_ns: f64,
    /// Rate, M packets/s.
    pub mpps: f64,
    /// Which of the two stand in the paper's text (6.2.2); the others are from memory of the table.
    pub read: bool,
}

/// Its text has this row whole: 16.5 ns at most, and the lowest rate, 45.45 M packets/s.
const RECEIVE_DATA: Fpga = Fpga { latency_ns: 16.5, mpps: 45.45, read: true };
const TX_FREE: Fpga = Fpga { latency_ns: 15.9, mpps: 47.17, read: false };
const RECEIVE_ACK: Fpga = Fpga { latency_ns: 15.96, mpps: 46.99, read: false };
const TIMEOUT: Fpga = Fpga { latency_ns: 6.3, mpps: 318.47, read: false };

/// Times all modules; takes about a second.
pub fn times() -> Vec<Time> {
    let mut out = Vec::new();
    receive(&mut out);
    transmit(&mut out);
    acknowledge(&mut out);
    out
}

/// The table of times and sizes.
pub fn text(times: &[Time]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "{:<36} {:>10} {:>12} {:>16} {:>12}",
        "module", "ns/packet", "M packets/s", "FPGA: latency ns", "M packets/s"
    );
    for t in times {
        let sure = if t.fpga.read { "read in 6.2.2" } else { "from memory" };
        let _ = writeln!(
            out,
            "{:<36} {:>10.1} {:>12.1} {:>16} {:>12.2}  reports; the FPGA's {sure}",
            t.name,
            t.ns,
            1000.0 / t.ns,
            t.fpga.latency_ns,
            t.fpga.mpps
        );
    }
    let _ = writeln!(
        out,
        "ours is the best of {ROUNDS} rounds on this machine, a packet after another; the FPGA's are worst \
         cases of a module alone\n"
    );
    let (bitmaps, rest) = state_bits_by_kind();
    let _ = writeln!(
        out,
        "state of a queue pair, in bits         ours        the paper's (128-packet bitmaps; 512 at 100 Gb/s \
         would be 4 times)"
    );
    let _ = writeln!(
        out,
        "  bitmaps                     {bitmaps:>12}        640 (five of 128); ours: six of {WINDOW}"
    );
    let _ = writeln!(out, "  PSNs, deadlines, flags      {rest:>12}        160");
    let _ = writeln!(out, "  together                    {:>12}        800", bitmaps + rest);
    out
}

/// The same as CSV.
pub fn csv(times: &[Time]) -> String {
    let mut out = String::from("module,ns,fpga_latency_ns,fpga_mpps\n");
    for t in times {
        let _ = writeln!(out, "\"{}\",{},{},{}", t.name, t.ns, t.fpga.latency_ns, t.fpga.mpps);
    }
    out
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn measure(name: &'static str, fpga: Fpga, mut round: impl FnMut(u32)) -> Time {
    let mut ns = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Clock::now();
        round(PACKETS);
        ns = ns.min(start.elapsed().as_nanos() as f64 / f64::from(PACKETS));
    }
    Time { name, ns, fpga }
}

fn receive(out: &mut Vec<Time>) {
    let mut r = Receiver::new(Psn::new(7));
    out.push(measure("receiveData, in order", RECEIVE_DATA, |n| {
        for i in 0..n {
            let psn = black_box(r.expected);
            assert!(receive_data(&r, psn) == Arrival::InOrder);
            r.take(i % 4 == 3);
            if r.owes() {
                black_box(r.next_owed(false));
            }
        }
    }));
    out.push(measure("receiveData, 1% lost, 50 in flight", RECEIVE_DATA, |n| {
        // The packet lost comes 50 packets late.
        let base = r.expected;
        for i in 0..n {
            let (at, lost) = (i % LOSS, i / LOSS * LOSS);
            let psn = match at {
                0..50 => base.add(i + 1),
                50 => base.add(lost),
                _ => base.add(i),
            };
            match receive_data(&r, black_box(psn)) {
                Arrival::InOrder => while r.take(true) {},
                Arrival::Early => r.keep(psn),
                Arrival::Duplicate | Arrival::Beyond => {}
            }
            if r.owes() {
                black_box(r.next_owed(false));
            }
        }
        r = Receiver::new(base.add(n));
    }));
}

fn transmit(out: &mut Vec<Time>) {
    let config = IrnConfig::paper();
    let mut s = Sender::new(Psn::new(7));
    out.push(measure("txFree, new packets", TX_FREE, |n| {
        for i in 0..n {
            assert!(tx_free(&mut s, &config, 110, true, black_box(NOW)) == Free::New);
            s.on_sent(&config, false, NONE, NOW);
            if i % 64 == 63 {
                s = Sender::new(s.next);
            }
        }
    }));
    out.push(measure("txFree, half of 100 lost", TX_FREE, |n| {
        for _ in 0..n / 50 {
            s = Sender::new(Psn::new(0xff_ff80));
            (0..100).for_each(|_| s.on_sent(&config, false, NONE, NOW));
            for k in 0..50 {
                let una = s.una;
                let sack = SackEth::new(0, una.add(2 * k + 1));
                receive_ack(&mut s, &config, una, Some(sack), NONE, NOW);
            }
            let mut resent = 0;
            while let Free::Resend(psn) = tx_free(&mut s, &config, 110, false, black_box(NOW)) {
                resent += 1;
                black_box(psn);
            }
            assert_eq!(resent, 50);
        }
    }));
}

fn acknowledge(out: &mut Vec<Time>) {
    let config = IrnConfig::paper();
    let mut s = Sender::new(Psn::new(7));
    out.push(measure("receiveAck, and sending", RECEIVE_ACK, |n| {
        for _ in 0..n {
            s.on_sent(&config, false, NONE, NOW);
            let next = black_box(s.next);
            let acked = receive_ack(&mut s, &config, next, None, NONE, NOW);
            assert!(acked == Acked::Advanced(1));
        }
    }));
    out.push(measure("receiveAck, NACKs", RECEIVE_ACK, |n| {
        for i in 0..n {
            if i % 100 == 0 {
                s = Sender::new(Psn::new(0xff_fff0));
                (0..110).for_each(|_| s.on_sent(&config, false, NONE, NOW));
            }
            let una = black_box(s.una);
            let sack = SackEth::new(0, una.add(i % 100 + 1));
            black_box(receive_ack(&mut s, &config, una, Some(sack), NONE, NOW));
        }
    }));
    out.push(measure("timeout", TIMEOUT, |n| {
        for _ in 0..n {
            black_box(timeout(&mut s, &config, NONE, black_box(NOW)));
        }
    }));
}
