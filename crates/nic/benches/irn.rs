//! What IRN's modules cost for each packet in steady state, and while a loss is being repaired: `cargo bench -p adverb-nic
//! --bench irn`. The bound is 22 ns, the FPGA's slowest module's rate (IRN table 2: 45.45 M packets/s).
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use adverb_nic::irn::*;
use adverb_wire::{Duration, Instant, Psn, SackEth};
use std::hint::black_box;
use std::time::Instant as Clock;

const PACKETS: u32 = 1 << 20;
const BOUND_NS: f64 = 22.0;
/// Every so many packets one is lost.
const LOSS: u32 = 100;

/// Best of several rounds, in nanoseconds for each packet.
fn measure(name: &str, paper: f64, mut round: impl FnMut(u32)) -> bool {
    let mut best = f64::MAX;
    for _ in 0..10 {
        let start = Clock::now();
        round(PACKETS);
        best = best.min(start.elapsed().as_nanos() as f64 / PACKETS as f64);
    }
    println!("{name:<34} {best:6.1} ns {:8.1} Mpps   FPGA {paper:5.2} ns", 1000.0 / best);
    best <= BOUND_NS
}

fn main() {
    let config = IrnConfig::paper();
    let none = Duration::ZERO;
    let now = Instant::from_ns(1000);
    let mut ok = true;

    let mut r = Receiver::new(Psn::new(7));
    ok &= measure("receiveData, in order", 16.5, |n| {
        for i in 0..n {
            let psn = black_box(r.expected);
            assert!(receive_data(&r, psn) == Arrival::InOrder);
            r.take(i % 4 == 3);
            if r.owes() {
                black_box(r.next_owed());
            }
        }
    });
    ok &= measure("receiveData, 1% lost, 50 in flight", 16.5, |n| {
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
                black_box(r.next_owed());
            }
        }
        r = Receiver::new(base.add(n));
    });

    let mut s = Sender::new(Psn::new(7));
    ok &= measure("txFree, new packets", 15.9, |n| {
        for i in 0..n {
            assert!(tx_free(&mut s, 110, true, black_box(now)) == Free::New);
            s.on_sent(&config, none, now);
            if i % 64 == 63 {
                s = Sender::new(s.next);
            }
        }
    });
    ok &= measure("txFree, half of 100 lost", 15.9, |n| {
        for _ in 0..n / 50 {
            s = Sender::new(Psn::new(0xff_ff80));
            (0..100).for_each(|_| s.on_sent(&config, none, now));
            for k in 0..50 {
                let una = s.una;
                let sack = SackEth::new(0, una.add(2 * k + 1));
                receive_ack(&mut s, &config, una, Some(sack), none, now);
            }
            let mut resent = 0;
            while let Free::Resend(psn) = tx_free(&mut s, 110, false, black_box(now)) {
                resent += 1;
                black_box(psn);
            }
            assert_eq!(resent, 50);
        }
    });
    println!("{:<34} (includes setting it up: 2 packets sent and 1 NACK for each)", "");

    s = Sender::new(Psn::new(7));
    ok &= measure("receiveAck, and sending", 15.96, |n| {
        for _ in 0..n {
            s.on_sent(&config, none, now);
            let next = black_box(s.next);
            let acked = receive_ack(&mut s, &config, next, None, none, now);
            assert!(acked == Acked::Advanced(1));
        }
    });
    ok &= measure("receiveAck, NACKs", 15.96, |n| {
        for i in 0..n {
            if i % 100 == 0 {
                s = Sender::new(Psn::new(0xff_fff0));
                (0..110).for_each(|_| s.on_sent(&config, none, now));
            }
            let una = black_box(s.una);
            let sack = SackEth::new(0, una.add(i % 100 + 1));
            black_box(receive_ack(&mut s, &config, una, Some(sack), none, now));
        }
    });
    ok &= measure("timeout", 6.3, |n| {
        for _ in 0..n {
            black_box(timeout(&mut s, &config, none, black_box(now)));
        }
    });
    println!("bound {BOUND_NS} ns: {}", if ok { "kept" } else { "MISSED" });
}
