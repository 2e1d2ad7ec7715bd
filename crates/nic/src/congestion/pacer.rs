//! The rate limiter: a token bucket in virtual time that keeps no tokens but the time at which the next
//! packet may leave. Times are exact: the part of a picosecond that a division leaves is carried to the next
//! packet.

use adverb_wire::{Duration, Instant};

/// Bytes that Ethernet adds to an IP packet on the link: header, check sequence, preamble, gap.
pub const FRAMING: u64 = 38;

/// Picosecond-bits in a second-bit.
const PS: u64 = 1_000_000_000_000;

/// When a queue pair may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacer {
    /// Bits per second.
    rate: u64,
    /// The next packet may leave from now on.
    next: Instant,
    /// What the last division left, in picosecond-bits per second; below `rate`.
    rest: u64,
    /// A packet waits for that time.
    pub(super) waits: bool,
    /// The entry of the timers that stands for it.
    pub(super) queued: Instant,
}

impl Pacer {
    /// Free at once.
    pub fn new(rate: u64) -> Self {
        Pacer { rate, next: Instant::ZERO, rest: 0, waits: false, queued: Instant::NEVER }
    }

    /// Bits per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// From the next packet on.
    pub fn set_rate(&mut self, rate: u64) {
        self.rate = rate.max(1);
        self.rest = self.rest.min(self.rate - 1);
    }

    /// When the next packet may leave.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Whether it may leave now.
    #[inline]
    pub fn is_open(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// A packet of `bytes` on the link leaves. Who comes late may catch up with as many packets as `burst`;
    /// one that was idle finds the same.
    pub fn on_sent(&mut self, now: Instant, bytes: u64, burst: u32) {
        let bits = bytes * 8 * PS + self.rest;
        let gap = Duration::from_ps(bits / self.rate);
        self.rest = bits % self.rate;
        let credit = gap.times(burst as u64);
        let earliest = Instant::from_ps(now.as_ps().saturating_sub(credit.as_ps()));
        self.next = self.next.max(earliest) + gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_packets_take_exactly_their_time() {
        // 1,000 bytes at 7 Gb/s: 1142857 1/7 ps each.
        let mut p = Pacer::new(7_000_000_000);
        let start = Instant::from_ps(1_000_000);
        p.on_sent(start, 1000, 0);
        for _ in 1..1_000_000 {
            let now = p.next();
            assert!(p.is_open(now) && !p.is_open(Instant::from_ps(now.as_ps() - 1)));
            p.on_sent(now, 1000, 0);
        }
        assert_eq!(p.next().since(start).as_ps(), 8_000 * 1_000_000 * 1000 / 7);
    }

    #[test]
    fn who_is_late_catches_up_with_a_burst_and_no_more() {
        let mut p = Pacer::new(8_000_000_000);
        let gap = 1_000_000;
        p.on_sent(Instant::ZERO, 1000, 2);
        // 10 gaps late: two packets at once beside its own, then the rhythm.
        let now = Instant::from_ps(10 * gap);
        let mut sent = 0;
        while p.is_open(now) {
            p.on_sent(now, 1000, 2);
            sent += 1;
        }
        assert_eq!((sent, p.next().as_ps()), (3, 11 * gap));
    }
}
