//! Callers that poll in vain where processors are short.
//!
//! Who polls burns its turn, and the one it waits for may be waiting for the processor meanwhile. A thread
//! that was taken off its processor while it polled in vain asks for short turns: the same share, switched
//! more often, so that neither its answer nor itself waits for long turns. And it lets others run when it
//! has found nothing for a while, which costs it a short turn only. Where nobody else wants the processor,
//! none of this happens.
//!
//! Where others have most of the processor, what each answer costs of it decides how soon the next one comes.
//! Who waits for datagrams one by one then sleeps until one comes, in place of the progress thread: the
//! datagram's wake gets it the processor at once. In shared memory that is none of the sender's calls, and a
//! bell rung for each frame measured worse. There, who has yielded and was without the processor for long
//! naps in place of yielding: a timer gets it the processor back, where a yield leaves it to the others until
//! the scheduler's next tick.

use adverb_os::clock::Clock;
use adverb_os::sys::{self, WaitSet};
use adverb_wire::{Duration, Instant};
use std::cell::Cell;
use std::time::Duration as StdDuration;

/// Empty polls in a row that are taken together: some 4 us.
pub const ROW: u32 = 64;
/// The same of who then sleeps until a datagram comes, and asks the kernel for it in each poll.
pub const ROW_FOR_ONE: u32 = 8;
/// Rows between two looks at how the thread is scheduled.
const ROWS_PER_LOOK: u32 = 64;
/// Looks that find the thread undisturbed before it stops letting others run.
const CALM_LOOKS: u32 = 64;
/// The turns that a disturbed thread asks for.
const TURN: StdDuration = StdDuration::from_micros(100);
/// Times that a thread sleeps before it looks anew how much of its processor others have.
const SLEEPS: u32 = 2048;
/// Polls that find something between two looks, of who might sleep.
const FINDS_MAX: u32 = 2 * ROWS_PER_LOOK;
/// Sleeps that take less than this, on average, with all that the thread does between them, are none of one
/// whose processor others have: a wake and an answer take 40 us of it.
const BRIEF: Duration = Duration::from_us(64);
/// A sleep ends after this, whatever comes.
const SLEEP: StdDuration = StdDuration::from_micros(500);
/// A yield that takes this long has given the processor to one that does not wait for the caller.
const LONG: Duration = Duration::from_us(500);
/// Times that a thread naps after such a yield, before it yields anew to see whether that is still so.
const NAPS: u32 = 1024;
/// A nap: longer than an answer takes, much shorter than the scheduler's tick.
const NAP: StdDuration = StdDuration::from_micros(20);

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::new()) };
}

/// What to do after a row of empty polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Advice {
    /// Poll on.
    Poll,
    /// Let others run.
    Yield,
    /// Ask for short turns and exact timers, then let others run.
    Shorten,
}

/// A thread that polls.
#[derive(Clone, Copy, Debug)]
struct Caller {
    rows: u32,
    /// Times that it was taken off its processor, when that was last looked at.
    taken_off: u64,
    /// Looks for which it still lets others run.
    courteous: u32,
    /// It has asked for short turns.
    short: bool,
    /// It sleeps so often in place of letting others run, where it may.
    sleeps_left: u32,
    /// It naps so often in place of yielding, where it may.
    naps_left: u32,
    /// Since when it is looked how much others run, how many polls had found something by then, how often
    /// others were let run, or it slept, and for how long they ran when they were let.
    since: Instant,
    finds_then: u32,
    rests: u32,
    others: Duration,
}

impl Caller {
    const fn new() -> Caller {
        Caller {
            rows: 0,
            taken_off: 0,
            courteous: 0,
            short: false,
            sleeps_left: 0,
            naps_left: 0,
            since: Instant::ZERO,
            finds_then: 0,
            rests: 0,
            others: Duration::ZERO,
        }
    }

    /// A row of its polls has found nothing.
    fn row(&mut self, taken_off: impl FnOnce() -> u64) -> Advice {
        self.rows = self.rows.wrapping_add(1);
        if self.rows.is_multiple_of(ROWS_PER_LOOK) {
            let before = std::mem::replace(&mut self.taken_off, taken_off());
            let disturbed = before < self.taken_off && self.rows > ROWS_PER_LOOK;
            self.courteous = if disturbed { CALM_LOOKS } else { self.courteous.saturating_sub(1) };
        }
        match self.courteous {
            0 => Advice::Poll,
            _ if self.short => Advice::Yield,
            _ => {
                self.short = true;
                Advice::Shorten
            }
        }
    }

    /// It sleeps after its next row, if it may.
    fn sleeps(&self) -> bool {
        self.courteous > 0 && self.sleeps_left > 0
    }

    /// It has let others run from then until now. After as many times as there are rows between two looks, it
    /// will sleep for a while if they had more than two thirds of the time, for who shares a processor with
    /// two or fewer is quicker awake; and if hardly more polls found something, `finds` in all, than rows
    /// found nothing: what comes while it polls costs the least.
    fn has_yielded(&mut self, from: Instant, now: Instant, finds: u32) {
        self.others = self.others + now.since(from);
        if let Some(time) = self.has_rested(now) {
            let found = finds.wrapping_sub(std::mem::replace(&mut self.finds_then, finds));
            let is_most = 3 * self.others.as_ns() > 2 * time.as_ns();
            self.sleeps_left = if is_most && found <= FINDS_MAX { SLEEPS } else { 0 };
            self.others = Duration::ZERO;
        }
    }

    /// It has yielded, and had its processor back after so long.
    fn was_away(&mut self, time: Duration) {
        if time >= LONG {
            self.naps_left = NAPS;
        }
    }

    /// It has slept until now. After as many times it will not any more if they were brief.
    fn has_slept(&mut self, now: Instant, finds: u32) {
        self.sleeps_left = self.sleeps_left.saturating_sub(1);
        self.finds_then = finds;
        if let Some(time) = self.has_rested(now) {
            self.others = Duration::ZERO;
            if time.as_ns() < u64::from(ROWS_PER_LOOK) * BRIEF.as_ns() {
                self.sleeps_left = 0;
            }
        }
    }

    /// The time that it takes stock of, if that is due.
    fn has_rested(&mut self, now: Instant) -> Option<Duration> {
        self.rests += 1;
        if self.rests < ROWS_PER_LOOK {
            return None;
        }
        self.rests = 0;
        Some(now.since(std::mem::replace(&mut self.since, now)))
    }
}

/// Whether this thread would sleep after the row of polls that it has made, if it may.
#[cold]
pub fn sleeps() -> bool {
    CALLER.get().sleeps()
}

/// A row of empty polls, and what its caller may do then.
pub struct EmptyPolls<'a> {
    /// The time.
    pub clock: Clock,
    /// How many polls of this program have found something by now, modulo 2^32.
    pub finds: u32,
    /// What it may wait for.
    pub until: Option<&'a mut WaitSet>,
    /// What it polls for comes through shared memory.
    pub by_memory: bool,
}

/// Whether who is waited for has answered on this processor while others ran for so long, if an answer was
/// there then: it will again, and not before it is let.
pub fn was_answered_here(time: Duration) -> bool {
    time < BRIEF
}

/// A row of polls has found nothing, the last of them by this thread. Where the host has more to do than its
/// processors can, others run: for a moment, or until what it may wait for comes. For how long they did.
#[cold]
pub fn rest(mut row: EmptyPolls<'_>) -> Option<Duration> {
    let mut caller = CALLER.get();
    let advice = caller.row(sys::involuntary_switches);
    if advice == Advice::Shorten {
        sys::prefer_short_waits(TURN);
    }
    let from = row.clock.now();
    match row.until {
        Some(set) => {
            set.wait(Some(SLEEP));
            caller.has_slept(row.clock.now(), row.finds);
        }
        None if advice == Advice::Poll => {}
        None if row.by_memory && caller.naps_left > 0 => {
            nap();
            caller.naps_left -= 1;
        }
        None => {
            std::thread::yield_now();
            let now = row.clock.now();
            caller.was_away(now.since(from));
            caller.has_yielded(from, now, row.finds);
        }
    }
    CALLER.set(caller);
    (advice != Advice::Poll).then(|| row.clock.now().since(from))
}

#[expect(clippy::disallowed_methods, reason = "what comes in memory wakes nobody; the clock does")]
fn nap() {
    std::thread::sleep(NAP);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_taken_off_lets_others_run_and_not_for_ever() {
        let mut caller = Caller::new();
        // What happened before its first look counts for nothing, and an undisturbed one is never asked to.
        for _ in 0..10 * ROWS_PER_LOOK {
            assert_eq!(caller.row(|| 7), Advice::Poll);
        }
        let next = |caller: &mut Caller, switches| {
            (0..ROWS_PER_LOOK).map(|_| caller.row(|| switches)).collect::<Vec<_>>()
        };
        let first = next(&mut caller, 8);
        assert_eq!(first.iter().filter(|advice| **advice == Advice::Shorten).count(), 1);
        assert_eq!(first.last(), Some(&Advice::Shorten), "at the look");
        assert!(next(&mut caller, 9).iter().all(|advice| *advice == Advice::Yield), "short turns once");
        for _ in 0..CALM_LOOKS {
            next(&mut caller, 9);
        }
        assert!(next(&mut caller, 9).iter().all(|advice| *advice == Advice::Poll), "calm again");
        assert_eq!(next(&mut caller, 10).last(), Some(&Advice::Yield));
    }

    #[test]
    fn who_was_away_for_long_will_nap_and_a_short_yield_takes_none_away() {
        let mut caller = Caller::new();
        caller.was_away(Duration::from_ps(LONG.as_ps() - 1));
        assert_eq!(caller.naps_left, 0, "a peer on the same processor takes less");
        caller.was_away(LONG);
        caller.was_away(Duration::ZERO);
        assert_eq!(caller.naps_left, NAPS);
    }

    /// As of a thread that others have kept from its processor.
    fn rest_after(caller: Caller, by_memory: bool) -> (Caller, Option<Duration>) {
        CALLER.set(caller);
        let time = rest(EmptyPolls { clock: Clock::start(), finds: 0, until: None, by_memory });
        (CALLER.get(), time)
    }

    #[test]
    fn naps_are_for_what_comes_in_memory_and_where_others_want_the_processor() {
        let away = Caller { courteous: 1, short: true, naps_left: 2, ..Caller::new() };
        let (caller, time) = rest_after(away, true);
        assert_eq!((caller.naps_left, caller.rests), (1, 0), "no yield");
        assert!(time.is_some_and(|time| time.as_ns() >= NAP.as_nanos() as u64), "{time:?}");
        let (caller, _) = rest_after(caller, true);
        assert_eq!((caller.naps_left, caller.rests), (0, 0));
        assert_eq!(rest_after(caller, true).0.rests, 1, "it looks anew");
        let (caller, _) = rest_after(away, false);
        assert_eq!(caller.rests, 1, "a yield");
        let (caller, time) = rest_after(Caller { courteous: 0, ..away }, true);
        assert_eq!((caller.naps_left, time), (2, None), "it polls on");
    }

    #[test]
    fn who_gets_a_third_of_its_processor_or_less_sleeps_for_a_while() {
        let at = |us: u64| Instant::from_ns(1000 * us);
        let mut caller = Caller::new();
        caller.courteous = 1;
        let look = |caller: &mut Caller, start: u64, others_us: u64, finds: u32| {
            let before = caller.finds_then;
            for k in 1..=ROWS_PER_LOOK {
                assert!(!caller.sleeps(), "only after a look");
                let now = start + 30 * u64::from(k);
                caller.has_yielded(
                    at(now - others_us),
                    at(now),
                    before.wrapping_add(finds * k / ROWS_PER_LOOK),
                );
            }
            start + 30 * u64::from(ROWS_PER_LOOK)
        };
        // 20 of 30 us are two thirds, which is not more.
        let now = look(&mut caller, 0, 20, 0);
        assert!(!caller.sleeps());
        let now = look(&mut caller, now, 21, FINDS_MAX);
        assert_eq!((caller.sleeps(), caller.sleeps_left), (true, SLEEPS));
        // Not where it is undisturbed.
        caller.courteous = 0;
        assert!(!caller.sleeps());
        (caller.courteous, caller.sleeps_left) = (1, 0);
        // Nor where polls mostly find something.
        let now = look(&mut caller, now, 29, FINDS_MAX + 1);
        assert!(!caller.sleeps());
        caller.finds_then = u32::MAX - 7;
        let now = look(&mut caller, now, 29, FINDS_MAX);
        assert!(caller.sleeps());
        // What it did elsewhere is its own time.
        caller.sleeps_left = 0;
        let now = look(&mut caller, now + 10_000, 29, 0);
        assert!(!caller.sleeps());
        // It sleeps as long as sleeps are not brief.
        for (each_us, left) in [(64, SLEEPS - ROWS_PER_LOOK), (63, 0)] {
            (caller.sleeps_left, caller.since) = (SLEEPS, at(now));
            // Others ran before it slept, which says nothing of the yields after that.
            caller.others = Duration::from_us(1);
            (1..=u64::from(ROWS_PER_LOOK)).for_each(|k| caller.has_slept(at(now + each_us * k), 0));
            assert_eq!((caller.sleeps_left, caller.others), (left, Duration::ZERO), "{each_us} us each");
        }
    }
}
