//! What a driver may know of a peer that does not answer. The NIC sees only that an acknowledgement is
//! overdue; its driver may see that the peer's process lives and has had no processor since, which is
//! neither a loss nor a death. Such silence does not count towards the retry count, up to a limit
//! ([`Tolerance`]).
//!
//! ```text
//! the timer runs out ── ask the driver ──┬─ Unread  wait on; nothing is sent again     ┐ as long as
//!                                        ├─ Late    sent again                         ┘ the limit lasts
//!                                        └─ Unknown, Heard, Stopped, Gone              counts as a retry
//! ```

use crate::ids::PathId;
use adverb_wire::{Duration, Gid, Instant, QpNumber};

/// An acknowledgement that has not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// The way that its request took.
    pub path: PathId,
    /// Whose it would be.
    pub dst: Gid,
    /// The peer's queue pair.
    pub peer: QpNumber,
    /// Since when it has been awaited.
    pub since: Instant,
    /// When it should have come.
    pub due: Instant,
}

/// What the driver knows of the peer's silence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// Nothing.
    #[default]
    Unknown,
    /// The peer lives, but has not read, or not finished with, what it was sent.
    Unread,
    /// One of the two ends, or a switch's process between them, had no processor since; whether anything was
    /// lost is not known.
    Late,
    /// The peer has dealt with all that came.
    Heard,
    /// The peer's process is stopped, by a signal or a debugger.
    Stopped,
    /// The peer's process has ended.
    Gone,
}

impl Silence {
    /// Whether waiting costs no retry.
    #[inline]
    pub const fn is_excused(self) -> bool {
        matches!(self, Silence::Unread | Silence::Late)
    }
}

/// How long a queue pair bears silence that the retry count does not speak of. Both are zero for hardware,
/// which is never late; else no local ACK timeout is shorter than [`SHORTEST_TIMEOUT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tolerance {
    /// Excused silence in a row; what is beyond it counts.
    pub excused_max: Duration,
    /// Unexcused silence in a row before the last retry is spent, however short the local ACK timeout is. At
    /// most 255 times the shortest.
    pub silence_min: Duration,
}

/// The shortest local ACK timeout where there is a [`Tolerance`]. Software does not answer more reliably than
/// that.
pub const SHORTEST_TIMEOUT: Duration = Duration::from_ms(2);

impl Tolerance {
    /// The shortest local ACK timeout.
    pub(crate) fn shortest_timeout(self) -> Duration {
        if self == Tolerance::default() { Duration::ZERO } else { SHORTEST_TIMEOUT }
    }

    /// How much silence each of `count` retries stands for at least, and the failure after them.
    pub(crate) fn share(self, count: u8) -> Duration {
        Duration::from_ps(self.silence_min.as_ps() / (u64::from(count) + 1))
    }

    /// Whether a timeout costs a retry: the `expiries`-th in a row of this length, with `spent` of `count`
    /// retries spent already.
    pub(crate) fn costs_retry(self, timeout: Duration, expiries: u8, spent: u8, count: u8) -> bool {
        expiries == u8::MAX || timeout.times(expiries.into()) >= self.share(count).times(u64::from(spent) + 1)
    }
}

/// Excused time since the last progress. Lives in each requester, so it is small: quarters of a millisecond,
/// rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excused(u16);

const UNIT: Duration = Duration::from_us(250);

impl Excused {
    /// More of it. False, and nothing added, if it would be too much in all.
    pub fn add(&mut self, time: Duration, most: Duration) -> bool {
        let units = time.as_ps().div_ceil(UNIT.as_ps()) + u64::from(self.0);
        let fits = UNIT.times(units) <= most;
        match u16::try_from(units) {
            Ok(units) if fits => self.0 = units,
            _ => return false,
        }
        true
    }

    /// In all.
    pub fn time(self) -> Duration {
        UNIT.times(self.0.into())
    }
}

/// What was excused of a silence that is looked at now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Borne {
    excused: Excused,
    looked: Instant,
}

impl Borne {
    /// One that begins at this time.
    pub fn beginning(now: Instant) -> Borne {
        Borne { excused: Excused::default(), looked: now }
    }

    /// Of a silence since this time, what was added since the last look may be excused: up to `most` in all.
    /// True if it is. How much later this look is than it was `due` is this side's lateness, whatever the
    /// peer has done.
    pub fn look(
        &mut self,
        since: Instant,
        due: Instant,
        now: Instant,
        silence: Silence,
        most: Duration,
    ) -> bool {
        let from = since.max(core::mem::replace(&mut self.looked, now));
        if !silence.is_excused() {
            self.excused.add(now.since(due.max(from)), most);
            return false;
        }
        self.excused.add(now.since(from), most)
    }

    /// How much of it counts.
    pub fn counts(&self, since: Instant, now: Instant) -> Duration {
        now.since(since).minus(self.excused.time())
    }

    /// It has ended.
    pub fn end(&mut self) {
        self.excused = Excused::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_ms;

    #[test]
    fn excused_time_ends() {
        let mut excused = Excused::default();
        assert!(excused.add(MS(6), MS(10)) && excused.add(MS(4), MS(10)));
        assert_eq!(excused.time(), MS(10));
        assert!(!excused.add(Duration::from_ns(1), MS(10)), "rounded up");
        assert_eq!(excused.time(), MS(10));
        assert!(!Excused::default().add(Duration::from_ns(1), Duration::ZERO));
        assert!(!Excused::default().add(MS(20_000), MS(30_000)), "more than fits");
    }

    #[test]
    fn retries_are_spread_over_the_least_silence() {
        let tolerance = Tolerance { excused_max: MS(10), silence_min: MS(400) };
        // Timeout in ms, retry count, timeouts until all are spent and one more.
        for (timeout, count, expected) in
            [(2, 7, 200), (3, 7, 134), (50, 7, 8), (67, 7, 8), (400, 0, 1), (150, 1, 3)]
        {
            let (mut spent, mut expiries) = (0, 0u8);
            loop {
                expiries += 1;
                if tolerance.costs_retry(MS(timeout), expiries, spent, count) {
                    if spent == count {
                        break;
                    }
                    spent += 1;
                }
            }
            assert_eq!(expiries, expected, "{timeout} ms, {count}");
        }
        assert!(Tolerance::default().costs_retry(Duration::from_ns(1), 1, 0, 7), "each costs one");
        assert!(tolerance.costs_retry(MS(1), u8::MAX, 0, 0), "it always ends");
    }
}
