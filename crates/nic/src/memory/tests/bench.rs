//! Measurements, run by hand:
//! `cargo test -p adverb-nic --release memory::tests::bench -- --ignored --nocapture`

use super::super::copy;
use super::*;
use core::hint::black_box;
use std::time::Instant;

/// Nanoseconds of one call: the best of several runs.
#[expect(clippy::disallowed_methods, reason = "a measurement of this host, not protocol time")]
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 200_000;
    let run = |call: &mut dyn FnMut(u32)| {
        let start = Instant::now();
        call(CALLS);
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut batch = |calls| (0..calls).for_each(|_| call());
    (0..9).map(|_| run(&mut batch)).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn copies() {
    let (src, dst) = (Host::new(1 << 16), Host::new(1 << 16));
    println!("{:>6} {:>8} {:>8} {:>8} {:>8} {:>8}", "bytes", "copy", "write", "steps", "string", "memcpy");
    for len in [8usize, 16, 64, 128, 192, 256, 384, 512, 768, 1024, 1500, 2048, 4096, 8192, 65536] {
        for offset in [0usize, 1] {
            if len + offset > 1 << 16 {
                continue;
            }
            let (s, d) = (src.at(offset), dst.at(0));
            let span = dst.span(0, len);
            // SAFETY: `Payload` and all copies stay inside the two hosts.
            let payload = unsafe { Payload::from_raw(s, len) };
            // SAFETY: as above.
            let plain =
                nanoseconds(|| unsafe { copy::copy(black_box(d), s, black_box(len), copy::Source::Shared) });
            let write = nanoseconds(|| dma::write(black_box(span), &payload, 0, black_box(len)));
            let steps = if len > 64 {
                // SAFETY: as above.
                nanoseconds(|| unsafe { copy::steps(black_box(d), s, black_box(len)) })
            } else {
                f64::NAN
            };
            // SAFETY: as above.
            let string = nanoseconds(|| unsafe { copy::string(black_box(d), s, black_box(len)) });
            // SAFETY: as above.
            let memcpy = nanoseconds(|| unsafe { black_box(s).copy_to_nonoverlapping(black_box(d), len) });
            println!(
                "{len:>5}{} {plain:>8.1} {write:>8.1} {steps:>8.1} {string:>8.1} {memcpy:>8.1}",
                if offset == 0 { ' ' } else { '+' }
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn lookups() {
    for regions in [1u32, 100, 10_000, 1_000_000] {
        let mut m = Memory::new(1);
        let pd = m.alloc_pd().unwrap();
        let keys: Vec<Key> =
            (0..regions).map(|_| register(&mut m, pd, 4096, 4096, 4096, ALL).unwrap().rkey).collect();
        let mut i = 0;
        let mut next = || {
            i = (i + 7919) % keys.len();
            keys[i]
        };
        let local = nanoseconds(|| {
            black_box(m.check_local(pd, next(), 4100, 8, true).is_ok());
        });
        let remote = nanoseconds(|| {
            black_box(m.check_remote(pd, QP, next(), 4100, 8, RemoteRight::Write).is_ok());
        });
        println!("{regions:>8} regions: local {local:.1} ns, remote {remote:.1} ns");
    }
    let mut m = Memory::new(1);
    let pd = m.alloc_pd().unwrap();
    let cycle = nanoseconds(|| {
        let mr = register(&mut m, pd, 4096, 4096, 4096, ALL).unwrap();
        m.dereg_mr(mr.id).unwrap();
    });
    let release = nanoseconds(|| m.release_qp(black_box(QP)));
    println!("register and deregister {cycle:.1} ns, release_qp of none {release:.1} ns");
}
