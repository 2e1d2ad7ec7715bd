//! Atomics and ordering between threads.

use super::*;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::Barrier;

#[test]
fn atomics_of_verbs_and_cpu_are_one() {
    let host = Host::new(64);
    // Many short races, each started together: a long one may find its threads run in turn.
    let (races, each): (u64, u64) = if cfg!(miri) { (3, 10) } else { (200, 1000) };
    let rounds = races * each;
    let line = Barrier::new(3);
    let race = |step: &dyn Fn()| {
        for _ in 0..races {
            line.wait();
            (0..each).for_each(|_| step());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| race(&|| ignore(dma::fetch_add(host.span(8, 8), 3))));
        scope.spawn(|| {
            race(&|| {
                let mut seen = 0;
                loop {
                    let was = dma::compare_swap(host.span(8, 8), seen, seen.wrapping_add(5));
                    if was == seen {
                        break;
                    }
                    seen = was;
                }
            });
        });
        // The application's own CPU.
        // SAFETY: an aligned word inside, accessed only atomically while threads run.
        let word = unsafe { AtomicU64::from_ptr(host.at(8).cast()) };
        race(&|| ignore(word.fetch_add(7, Ordering::SeqCst)));
    });
    assert_eq!(host.bytes(8, 8), (rounds * 15).to_ne_bytes());
    assert_eq!(dma::fetch_add(host.span(8, 8), u64::MAX), rounds * 15);
    assert_eq!(dma::compare_swap(host.span(8, 8), 1, 2), rounds * 15 - 1);
    assert_eq!(dma::compare_swap(host.span(8, 8), rounds * 15 - 1, 2), rounds * 15 - 1);
    assert_eq!(host.bytes(0, 24), [[0; 8], 2u64.to_ne_bytes(), [0; 8]].concat());
}

/// Whoever sees the last byte of a write sees all of it, as applications that poll it expect.
#[test]
fn the_last_byte_comes_last() {
    let host = Host::new(8192);
    let rounds = if cfg!(miri) { 6 } else { 20_000 };
    let sizes: &[usize] =
        if cfg!(miri) { &[5, 13, 40] } else { &[2, 5, 8, 9, 16, 31, 64, 100, 511, 512, 1544, 4096] };
    for &len in sizes {
        for offset in [0, 3] {
            host.fill(0);
            let taken = AtomicU8::new(0);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // SAFETY: inside, and accessed only atomically while the threads run.
                    let byte = |i: usize| unsafe { AtomicU8::from_ptr(host.at(offset + i)) };
                    for round in 0..rounds {
                        let value = (round % 255) as u8 + 1;
                        while byte(len - 1).load(Ordering::Acquire) != value {
                            if stop.load(Ordering::Relaxed) {
                                return;
                            }
                            std::thread::yield_now();
                        }
                        for i in 0..len {
                            let seen = byte(i).load(Ordering::Relaxed);
                            if seen != value {
                                stop.store(true, Ordering::Relaxed);
                                panic!("byte {i} of {len} is late");
                            }
                        }
                        taken.store(value, Ordering::Release);
                    }
                });
                for round in 0..rounds {
                    let value = (round % 255) as u8 + 1;
                    let bytes = [value; 4096];
                    dma::write(host.span(offset, len), &Payload::from_slice(&bytes), 0, len);
                    while taken.load(Ordering::Acquire) != value && !stop.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                }
            });
        }
    }
}
