//! Completions that the stateful side has told of, and that do not come. With each acknowledgement it says
//! how many there are; where these are ahead of what came for longer than the timeout, retry count times
//! over, CQEPs are lost, or their acknowledgements are, and the requests that wait for them fail. Only what
//! this side has asked for again and again counts, so that one that had no processor asks first.

use crate::silence::{Borne, Silence};
use adverb_wire::{Duration, Instant};

/// Questions in vain before it gives up. It asks at least so often within its patience.
const QUESTIONS: u8 = 3;

/// Why a connection fails where CQEPs do not come, in words.
pub(super) const RULE: &str = "the stateful side said that it has completed requests, and its completions \
                               did not come within the timeout, retry count times over (StaR; IBTA \
                               9.7.6.1.3)";

/// Why a connection fails whose stateful side is silent, in words.
pub(super) fn rule_of_silence(silence: Silence) -> &'static str {
    match silence {
        Silence::Unknown => {
            "the stateful side did not answer within the timeout, retry count times over (StaR; IBTA \
                9.7.6.1.3)"
        }
        Silence::Heard => {
            "the stateful side runs and took in what arrived, but did not answer within the timeout, retry \
                count times over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Stopped => {
            "the stateful side's process is stopped, and did not answer within the timeout, retry count \
                times over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Gone => {
            "the stateful side's process has ended, and did not answer within the timeout, retry count times \
                over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Unread | Silence::Late => {
            "the stateful side's process lives, but had no processor for longer than is waited for, and then \
                for the timeout, retry count times over (StaR; IBTA 9.7.6.1.3)"
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Promised {
    /// Since when they are ahead, if they are; and what was excused of that time.
    since: Option<Instant>,
    borne: Borne,
    questions: u8,
}

impl Promised {
    /// The peer has so many, and so many came.
    pub fn hear(&mut self, now: Instant, there_are: u32, came: u32) {
        if there_are.wrapping_sub(came) as i32 > 0 {
            self.since.get_or_insert(now);
        }
    }

    /// One came.
    pub fn keep(&mut self) {
        if self.since.is_some() {
            *self = Promised::default();
        }
    }

    /// The peer is asked once more.
    pub fn ask(&mut self) {
        if self.since.is_some() {
            self.questions = self.questions.saturating_add(1);
        }
    }

    /// Whether they have been ahead for so long, but for what the driver excuses.
    pub fn is_broken(
        &mut self,
        due: Instant,
        now: Instant,
        silence: Silence,
        most: Duration,
        patience: Duration,
    ) -> bool {
        let Some(since) = self.since else { return false };
        self.borne.look(since, due, now, silence, most);
        self.questions >= QUESTIONS && self.borne.counts(since, now) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_ms;
    const NEVER_EXCUSED: Duration = Duration::ZERO;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + MS(ms)
    }

    fn is_broken(promised: &mut Promised, ms: u64) -> bool {
        promised.is_broken(at(ms), at(ms), Silence::Unknown, NEVER_EXCUSED, MS(100))
    }

    #[test]
    fn what_comes_in_time_is_kept() {
        let mut promised = Promised::default();
        promised.hear(at(1), 7, 7);
        promised.hear(at(1), 0, 7);
        (0..9).for_each(|_| promised.ask());
        assert!(!is_broken(&mut promised, 1000), "nothing was promised");
        promised.hear(at(1000), 8, 7);
        (0..9).for_each(|_| promised.ask());
        assert!(!is_broken(&mut promised, 1099));
        promised.keep();
        assert!(!is_broken(&mut promised, 5000));
    }

    #[test]
    fn what_does_not_come_is_broken_after_its_time_and_questions() {
        let mut promised = Promised::default();
        // The count turns.
        promised.hear(at(1), 2, u32::MAX);
        promised.hear(at(90), 3, u32::MAX);
        for _ in 0..QUESTIONS {
            assert!(!is_broken(&mut promised, 500), "it has asked too seldom");
            promised.ask();
        }
        assert!(!is_broken(&mut promised, 100));
        assert!(is_broken(&mut promised, 101));
    }

    #[test]
    fn a_side_without_a_processor_is_borne_up_to_a_limit() {
        let mut promised = Promised::default();
        promised.hear(at(0), 1, 0);
        (0..QUESTIONS).for_each(|_| promised.ask());
        for ms in [50, 100, 150] {
            assert!(!promised.is_broken(at(ms), at(ms), Silence::Late, MS(150), MS(100)), "{ms}");
        }
        assert!(!promised.is_broken(at(249), at(249), Silence::Late, MS(150), MS(100)));
        assert!(promised.is_broken(at(250), at(250), Silence::Late, MS(150), MS(100)));
    }
}
