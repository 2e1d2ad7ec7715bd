//! The round trip as a sender measures it, and the timers that follow from it (RFC 6298, RFC 8985 7.2).
//!
//! One packet at a time is timed, one that asks for an acknowledgement, and only if it is sent once (Karn's
//! rule: else nobody knows which of its copies was answered). It counts when a NACK names it, or when the
//! cumulative acknowledgement passes it outside of recovery: within one, that waits for others.
//!
//! What a peer says can be wrong in either direction: a sample is cut at the longest timeout, and the timers
//! have floors, so a forged acknowledgement, or an old one, makes neither of them run wild.

use adverb_wire::{Duration, Instant, Psn};

/// Smoothed round trip and its variation, and the packet that is being timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RoundTrip {
    /// In ns; zero before the first sample.
    smoothed: u32,
    variation: u32,
    timed: Psn,
    /// When it left; `NEVER` when none is timed.
    since: Instant,
}

impl Default for RoundTrip {
    fn default() -> Self {
        RoundTrip { smoothed: 0, variation: 0, timed: Psn::new(0), since: Instant::NEVER }
    }
}

impl RoundTrip {
    /// A packet that asks for an acknowledgement leaves for the first time.
    #[inline]
    pub fn on_asked(&mut self, psn: Psn, now: Instant) {
        if self.since == Instant::NEVER {
            (self.timed, self.since) = (psn, now);
        }
    }

    /// A packet is sent again.
    #[inline]
    pub fn on_resent(&mut self, psn: Psn) {
        if psn == self.timed {
            self.since = Instant::NEVER;
        }
    }

    /// Packets from `from` to before `to` are known to have arrived; `counts` unless they may have done so
    /// long before. No sample is longer than `longest`.
    #[inline]
    pub fn on_arrived(&mut self, from: Psn, to: Psn, counts: bool, longest: Duration, now: Instant) {
        if self.since != Instant::NEVER && !self.timed.is_before(from) && self.timed.is_before(to) {
            let took = now.since(core::mem::replace(&mut self.since, Instant::NEVER));
            if counts {
                self.add(took.min(longest));
            }
        }
    }

    /// One more sample (RFC 6298 2.2, 2.3: gains of 1/8 and 1/4).
    fn add(&mut self, sample: Duration) {
        let sample = u32::try_from(sample.as_ns()).unwrap_or(u32::MAX).clamp(1, 1 << 30);
        if self.smoothed == 0 {
            (self.smoothed, self.variation) = (sample, sample / 2);
            return;
        }
        self.variation = self.variation - self.variation / 4 + self.smoothed.abs_diff(sample) / 4;
        self.smoothed = (self.smoothed - self.smoothed / 8 + sample / 8).max(1);
    }

    /// The retransmission timeout without its bounds, once there is a sample (RFC 6298 2.3).
    #[inline]
    pub fn timeout(&self) -> Option<Duration> {
        let ns = u64::from(self.smoothed) + 4 * u64::from(self.variation);
        (self.smoothed > 0).then(|| Duration::from_ns(ns))
    }

    /// How long a tail probe waits, without its floor (RFC 8985 7.2).
    #[inline]
    pub fn probe(&self) -> Option<Duration> {
        (self.smoothed > 0).then(|| Duration::from_ns(2 * u64::from(self.smoothed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }

    const LONGEST: Duration = Duration::from_us(320);

    fn sample(r: &mut RoundTrip, at: u64, took: u64) {
        r.on_asked(Psn::new(7), us(at));
        r.on_arrived(Psn::new(0), Psn::new(8), true, LONGEST, us(at + took));
    }

    #[test]
    fn it_follows_the_round_trip() {
        let mut r = RoundTrip::default();
        assert_eq!((r.timeout(), r.probe()), (None, None));
        sample(&mut r, 0, 24);
        assert_eq!(r.timeout(), Some(Duration::from_us(72)), "the first: its half is the variation");
        (1..100).for_each(|n| sample(&mut r, 100 * n, 24));
        let timeout = r.timeout().unwrap();
        assert!((24_000..24_100).contains(&timeout.as_ns()), "{timeout:?}");
        assert!((47_900..=48_000).contains(&r.probe().unwrap().as_ns()));
        (100..200).for_each(|n| sample(&mut r, 100 * n, 80));
        assert!((158_000..=160_000).contains(&r.probe().unwrap().as_ns()), "{r:?}");
    }

    #[test]
    fn what_was_sent_twice_is_no_sample() {
        let mut r = RoundTrip::default();
        r.on_asked(Psn::new(7), us(0));
        r.on_asked(Psn::new(8), us(5));
        r.on_resent(Psn::new(8));
        r.on_arrived(Psn::new(0), Psn::new(7), true, LONGEST, us(10));
        assert_eq!(r.since, us(0), "another is timed");
        r.on_resent(Psn::new(7));
        r.on_arrived(Psn::new(0), Psn::new(9), true, LONGEST, us(20));
        assert_eq!(r.timeout(), None);
        // Nor what has waited for others.
        r.on_asked(Psn::new(9), us(30));
        r.on_arrived(Psn::new(9), Psn::new(10), false, LONGEST, us(90));
        assert_eq!((r.timeout(), r.since), (None, Instant::NEVER));
    }

    #[test]
    fn lies_stay_within_bounds() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut r = RoundTrip::default();
        for n in 0..10_000 {
            sample(&mut r, n * 10_000_000, if rng.bool() { 0 } else { rng.u64(0..10_000_000) });
            let (timeout, probe) = (r.timeout().unwrap(), r.probe().unwrap());
            assert!(timeout <= LONGEST.times(5) && probe <= LONGEST.times(2), "{timeout:?}, {probe:?}");
        }
        (0..100).for_each(|n| sample(&mut r, n * 1000, 24));
        assert!(r.timeout().unwrap() < Duration::from_us(25), "and are forgotten: {r:?}");
    }
}
