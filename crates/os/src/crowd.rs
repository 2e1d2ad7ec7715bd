//! Whether who polls in vain had better let others run. On a processor of its own, polling on is quickest.
//! On a host with more to do than it can, who polls burns its whole turn while the one that would answer
//! waits for a processor; and the longer it burns, the later its next turn comes.
//!
//! That the host is such a one shows by this thread being taken off its processor. The kernel is asked only
//! after a pause between two polls that nobody explains, so it costs nothing elsewhere.

use adverb_wire::{Duration, Instant};

/// A poll that comes this much after the last one may have been kept from running.
const PAUSE: Duration = Duration::from_us(500);
/// For how long the host counts as crowded after that.
const CROWDED: Duration = Duration::from_ms(50);
/// How long to poll before others may run: what a peer that runs takes to answer.
const PATIENCE: Duration = Duration::from_us(10);

/// Decides after each poll that found nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Crowd {
    /// When polls began to find nothing.
    since: Option<Instant>,
    last: Instant,
    /// Times that the thread had been taken off its processor, when last asked.
    taken_off: u64,
    crowded_until: Instant,
}

impl Crowd {
    /// A poll found something.
    #[inline]
    pub fn found(&mut self) {
        self.since = None;
    }

    /// A poll found nothing. Whether to let others run now; `taken_off` tells how often the calling thread
    /// was taken off its processor, and is asked seldom.
    #[inline]
    pub fn found_nothing(&mut self, now: Instant, taken_off: impl FnOnce() -> u64) -> bool {
        if now.since(self.last) > PAUSE {
            let times = taken_off();
            if times != self.taken_off {
                self.crowded_until = now + CROWDED;
            }
            self.taken_off = times;
        }
        self.last = now;
        let since = *self.since.get_or_insert(now);
        now < self.crowded_until && now.since(since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_taken_off_lets_others_run_for_a_while() {
        let mut crowd = Crowd::default();
        // (us, times taken off, lets others run)
        for (us, times, expected) in [
            (1_000, 3, false),
            (1_400, 3, false),
            (1_800, 9, false),
            // The first pause shows only that it was taken off some time: from then on.
            (2_301, 3, false),
            // Kept from running.
            (3_000, 4, true),
            (3_001, 4, true),
            (3_400, 4, true),
            // It paused by itself, but the host is still crowded.
            (9_000, 4, true),
            (52_999, 4, true),
            (53_001, 4, false),
            (60_000, 4, false),
        ] {
            let at = Instant::from_ns(us * 1000);
            assert_eq!(crowd.found_nothing(at, || times), expected, "{us} us");
            if us == 1_000 {
                // Asked for the first time, any number is news; forget what came of that.
                crowd.crowded_until = Instant::ZERO;
            }
        }
        // After it found something, it polls for a moment first.
        let at = |us: u64| Instant::from_ns(us * 1000);
        assert!(crowd.found_nothing(at(61_000), || 5));
        crowd.found();
        assert!(!crowd.found_nothing(at(61_001), || 5));
        assert!(!crowd.found_nothing(at(61_010), || 5));
        assert!(crowd.found_nothing(at(61_011), || 5));
    }
}
