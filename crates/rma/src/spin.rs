//! How long to look before sleeping. On a processor of its own, looking on is quicker than a wake-up. But where processors are short, who spins uses up its
//! turn, and is not there when something comes; while who sleeps is woken before others. So a spinner that was kept from running stops
//! spinning for a while.

use adverb_wire::{Duration, Instant};

/// A look that comes this much after the last one was kept from running.
const KEPT: Duration = Duration::from_us(500);
/// For how long not to spin then.
const CALM: Duration = Duration::from_ms(20);

/// See the top of this file.
pub(crate) struct Spin {
    /// How long to spin.
    time: Duration,
    /// Since when there was nothing to do.
    idle_since: Option<Instant>,
    last_look: Instant,
    calm_until: Instant,
}

impl Spin {
    pub fn new(time: Duration) -> Spin {
        Spin { time, idle_since: None, last_look: Instant::ZERO, calm_until: Instant::ZERO }
    }

    /// There was something to do.
    pub fn busy(&mut self) {
        self.idle_since = None;
    }

    /// There was nothing to do. Whether to look again at once.
    pub fn idle(&mut self, now: Instant) -> bool {
        let since = match self.idle_since {
            None => now,
            Some(since) => {
                if now.since(self.last_look) > KEPT {
                    self.calm_until = now + CALM;
                }
                since
            }
        };
        self.idle_since = Some(since);
        self.last_look = now;
        now >= self.calm_until && now.since(since) < self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Instant = |us| Instant::from_ns(us * 1000);

    #[test]
    fn it_looks_for_a_time_and_less_where_others_want_the_processor() {
        let mut spin = Spin::new(Duration::from_us(100));
        assert!(spin.idle(US(1000)) && spin.idle(US(1050)) && spin.idle(US(1099)));
        assert!(!spin.idle(US(1100)));
        // After a sleep, a long one even.
        spin.busy();
        assert!(spin.idle(US(9000)));
        // Kept from running for a millisecond: no spinning for 20.
        assert!(!spin.idle(US(10_000)));
        spin.busy();
        assert!(!spin.idle(US(29_000)));
        spin.busy();
        assert!(spin.idle(US(30_001)));
    }
}
