//! The clocks of the host. Protocol code takes the time as an argument; the loops at the edge, which sleep
//! and wake, ask for it here.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the clocks themselves")]

use adverb_wire::Instant;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the clocks used here always exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Time since the machine started, so that all processes of a host agree.
#[inline]
pub fn now() -> Instant {
    Instant::from_ns(monotonic_ns())
}

/// Nanoseconds of CLOCK_REALTIME.
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

/// Processor time that the other threads of this process have used, in nanoseconds.
pub fn other_threads_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).saturating_sub(clock_ns(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// The processor's cycle counter. Where there is none to read, a number that never seems fresh.
#[inline]
fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register that every x86-64 processor has.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        use std::sync::atomic::{AtomicU64, Ordering};
        static STEPS: AtomicU64 = AtomicU64::new(0);
        STEPS.fetch_add(1 << 32, Ordering::Relaxed)
    }
}

/// A clock that starts at zero, and whose readings serve for a microsecond: asking the kernel takes longer
/// than most of the work that wants to know the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch_ns: u64,
    last: Instant,
    /// Cycle counter at the last reading.
    cycles: u64,
}

/// Cycles for which a reading serves: below a microsecond on any processor of today.
const FRESH_CYCLES: u64 = 2_000;

impl Clock {
    /// Starts at zero.
    pub fn start() -> Clock {
        Clock { epoch_ns: monotonic_ns(), last: Instant::ZERO, cycles: 0 }
    }

    /// When it was zero, by the clock that all processes of the host share.
    pub fn epoch_ns(&self) -> u64 {
        self.epoch_ns
    }

    /// Time since the start.
    #[inline]
    pub fn now(&mut self) -> Instant {
        let cycles = cycles();
        if cycles.wrapping_sub(self.cycles) >= FRESH_CYCLES {
            self.cycles = cycles;
            self.last = Instant::from_ns(monotonic_ns() - self.epoch_ns);
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance() {
        let start = monotonic_ns();
        while monotonic_ns() == start {}
        assert!(realtime_ns() > 1_600_000_000_000_000_000);
        assert!(realtime_ns() > 1_600_000_000_000_000_000);
    }

    #[test]
    fn a_clock_starts_at_zero_and_never_goes_back() {
        let mut clock = Clock::start();
        let mut last = clock.now();
        assert!(last < Instant::from_ns(1_000_000_000));
        let start = last;
        while last == start {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
