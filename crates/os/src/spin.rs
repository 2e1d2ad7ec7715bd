//! How long to look before sleeping. On a processor of its own, looking on is quicker than a wake-up. But
//! where processors are short, who spins uses up its turn, and is not there when something comes; while who
//! sleeps is woken before others. So a spinner that was kept from running stops spinning for a while.

use adverb_wire::{Duration, Instant};

/// A look that comes this much after the last one was kept from running.
const KEPT: Duration = Duration::from_us(500);
/// For how long to keep the processor for oneself: what is awaited may be to come from a thread that waits
/// for the same one.
const ALONE: Duration = Duration::from_us(20);
/// For how long not to spin then.
const CALM: Duration = Duration::from_ms(20);

/// What to do when there was nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Look again at once.
    Look,
    /// Let another thread of this processor run, then look again.
    Yield,
    /// Sleep.
    Sleep,
}

impl Next {
    /// Does it, unless it is to sleep. Whether to look again.
    pub fn looks(self) -> bool {
        match self {
            Next::Look => std::hint::spin_loop(),
            Next::Yield => std::thread::yield_now(),
            Next::Sleep => {}
        }
        self != Next::Sleep
    }
}

/// Decides, each time that there was nothing to do, whether to look again or to sleep.
#[derive(Debug)]
pub struct Spin {
    /// How long to spin.
    time: Duration,
    /// Since when there was nothing to do.
    idle_since: Option<Instant>,
    last_look: Instant,
    calm_until: Instant,
}

impl Spin {
    /// One that spins for so long at most.
    pub fn new(time: Duration) -> Spin {
        Spin { time, idle_since: None, last_look: Instant::ZERO, calm_until: Instant::ZERO }
    }

    /// There was something to do.
    pub fn busy(&mut self) {
        self.idle_since = None;
    }

    /// There was nothing to do.
    pub fn idle(&mut self, now: Instant) -> Next {
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
        match now.since(since) {
            _ if now < self.calm_until => Next::Sleep,
            idle if idle >= self.time => Next::Sleep,
            idle if idle >= ALONE => Next::Yield,
            _ => Next::Look,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use Next::{Look, Sleep, Yield};

    const US: fn(u64) -> Instant = |us| Instant::from_ns(us * 1000);

    #[test]
    fn it_looks_for_a_time_and_less_where_others_want_the_processor() {
        let mut spin = Spin::new(Duration::from_us(100));
        assert_eq!([1000, 1019, 1020, 1099].map(|us| spin.idle(US(us))), [Look, Look, Yield, Yield]);
        assert_eq!(spin.idle(US(1100)), Sleep);
        // After a sleep, a long one even.
        spin.busy();
        assert_eq!(spin.idle(US(9000)), Look);
        // Kept from running for a millisecond: no spinning for 20.
        assert_eq!(spin.idle(US(10_000)), Sleep);
        spin.busy();
        assert_eq!(spin.idle(US(29_000)), Sleep);
        spin.busy();
        assert_eq!(spin.idle(US(30_001)), Look);
    }
}
