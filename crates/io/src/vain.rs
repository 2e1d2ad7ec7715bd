//! Callers that poll in vain where processors are short.
//!
//! Who polls burns its turn, and the one it waits for may be waiting for the processor meanwhile. A thread
//! that was taken off its processor while it polled in vain asks for short turns: the same share, switched
//! more often, so that neither its answer nor itself waits for long turns. And it lets others run when it
//! has found nothing for a while, which costs it a short turn only. Where nobody else wants the processor,
//! none of this happens.

use adverb_os::sys;
use std::cell::Cell;
use std::time::Duration;

/// Empty polls in a row that are taken together: some 4 us.
pub const ROW: u32 = 64;
/// Rows between two looks at how the thread is scheduled.
const ROWS_PER_LOOK: u32 = 64;
/// Looks that find the thread undisturbed before it stops letting others run.
const CALM_LOOKS: u32 = 64;
/// The turns that a disturbed thread asks for.
const TURN: Duration = Duration::from_micros(100);

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
    /// Ask for short turns, then let others run.
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
}

impl Caller {
    const fn new() -> Caller {
        Caller { rows: 0, taken_off: 0, courteous: 0, short: false }
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
}

/// [`ROW`] polls in a row have found nothing: the last of them by this thread. True where the host has more
/// to do than its processors can: then others have run meanwhile.
#[cold]
pub fn row() -> bool {
    let mut caller = CALLER.get();
    let advice = caller.row(sys::involuntary_switches);
    CALLER.set(caller);
    if advice == Advice::Shorten {
        sys::prefer_short_turns(TURN);
    }
    let is_crowded = advice != Advice::Poll;
    if is_crowded {
        std::thread::yield_now();
    }
    is_crowded
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
}
