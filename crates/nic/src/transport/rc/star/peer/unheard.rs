//! A CQEP that nobody acknowledges: how long it is repeated, and who gives up then.
//!
//! - **It completes a receive**, so it is the end of a message of this side. Its retry count speaks of that
//!   as of the data: this side fails, though the message itself may have completed.
//! - **It asks for receives** that a message of this side waits for. The same.
//! - **It only completes requests of the other side.** This side waits for nothing, as a responder of RC does
//!   when its acknowledgements are lost: it rests until it is asked, or until it has another completion to
//!   tell. The other side hears with each acknowledgement how many completions there are, and gives up by its
//!   own retry count if they do not come.

use super::super::{Star, is_patient, share_of_patience};
use super::{Ask, DOUBLINGS_MAX, FIRST_WAIT, Peer};
use crate::event::{Event, StarOutcome};
use crate::explain::{Cause, TimerCause};
use crate::qp::Qp;
use crate::silence::{Borne, Silence};
use crate::state::NicState;
use crate::transport::failure::{enter_error, fail_oldest};
use crate::work::Status;
use adverb_wire::star::Cqe;
use adverb_wire::{Duration, Instant};

/// What was waited for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Unheard {
    /// Whether there is a receive for the oldest message.
    Receive,
    /// That the completion of a message has come.
    Completion,
}

/// The silence that a CQEP meets.
#[derive(Debug, Default)]
pub(super) struct Wait {
    /// Since when the CQEP is under way; and what the driver has excused of its silence.
    pub since: Instant,
    /// When it was last sent: what the driver knows of the time before says nothing of that copy.
    sent: Instant,
    borne: Borne,
    /// How often it was sent again.
    pub repeats: u8,
    /// Nobody waits for it any more, so it is not sent again either.
    rests: bool,
}

impl Wait {
    /// A CQEP goes out for the first time, or after a rest.
    pub fn begin(&mut self, now: Instant) {
        *self = Wait { since: now, sent: now, borne: Borne::beginning(now), ..Wait::default() };
    }

    /// It is sent again. After a rest its time begins anew.
    pub fn go_on(&mut self, now: Instant) {
        if self.rests {
            self.begin(now);
        }
        self.sent = now;
    }

    pub fn rests(&self) -> bool {
        self.rests
    }
}

impl Peer {
    /// Since when a copy of a CQEP has been unacknowledged whose time is up, and when it was: the driver may
    /// know why.
    pub fn overdue(&self, now: Instant) -> Option<(Instant, Instant)> {
        (self.at <= now && self.under_way.is_some()).then_some((self.wait.sent, self.at))
    }

    /// How long an acknowledgement is waited for, for the so manieth time.
    pub(super) fn wait(&self, qp: &Qp, nic: &NicState) -> Duration {
        let wait = self.pulls.round_trip_wait(qp, nic).times(1 << self.wait.repeats.min(DOUBLINGS_MAX));
        share_of_patience(qp, nic, wait)
    }

    /// Completions that there are, told or not: all that the other side will have when nothing is lost.
    pub(super) fn completions(&self) -> u32 {
        let under_way = self.under_way.map_or(0, |(_, count)| usize::from(count));
        self.next.wrapping_add(self.cqes.len().saturating_sub(under_way) as u32)
    }

    /// The timer of a CQEP may have run out. What is given up, if it is.
    pub fn on_timer(
        &mut self,
        qp: &Qp,
        nic: &mut NicState,
        now: Instant,
        silence: Silence,
    ) -> Option<Unheard> {
        if self.at > now {
            return None;
        }
        let due = core::mem::replace(&mut self.at, Instant::NEVER);
        let wait = &mut self.wait;
        let excused = wait.borne.look(wait.since, due, now, silence, nic.tolerance.excused_max);
        nic.counters.timeouts_excused += u64::from(excused);
        if is_patient(qp, nic, wait.borne.counts(wait.since, now)) {
            wait.repeats = wait.repeats.saturating_add(1);
            self.is_due = true;
            return None;
        }
        wait.rests = true;
        if self.has_ended {
            return None;
        }
        if self.ask == Ask::Asking {
            // It is told again when it asks.
            self.ask = Ask::No;
            return Some(Unheard::Receive);
        }
        self.cqes.iter().any(|cqe| cqe.flags & Cqe::RECV_QUEUE != 0).then_some(Unheard::Completion)
    }
}

/// The other side has not answered for too long: the oldest request fails of it. Where all are done, the
/// queue pair fails, and its owner hears that.
pub(in super::super) fn give_up(
    qp: &mut Qp,
    star: &Star,
    nic: &mut NicState,
    now: Instant,
    what: Unheard,
    silence: Silence,
) {
    nic.counters.timeouts += 1;
    let wait = &star.peer.wait;
    let length = now.since(wait.since);
    let timer = TimerCause { name: "patience with the stateless side", length, expiries: wait.repeats };
    let rule = match what {
        Unheard::Receive => RECEIVE,
        Unheard::Completion => rule_of_silence(silence),
    };
    let cause = Cause { timer: Some(timer), ..Cause::local(Status::TransportRetryExceeded, rule) };
    if qp.requester.oldest().is_some() {
        return fail_oldest(qp, nic, now, &cause);
    }
    nic.event(Event::QpFatal(qp.id));
    nic.event(Event::Star(qp.id, StarOutcome::Unheard));
    enter_error(qp, nic, now);
}

const RECEIVE: &str = "the stateless side did not say whether it has a receive, within the timeout, retry \
                       count times over (StaR; IBTA 9.7.6.1.3)";

/// Why a connection fails whose stateless side does not acknowledge completions, in words.
fn rule_of_silence(silence: Silence) -> &'static str {
    match silence {
        Silence::Unknown | Silence::Heard => {
            "the stateless side did not acknowledge the completion of a message within the timeout, retry \
                count times over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Stopped => {
            "the stateless side's process is stopped, and did not acknowledge the completion of a message \
                within the timeout, retry count times over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Gone => {
            "the stateless side's process has ended, and did not acknowledge the completion of a message \
                within the timeout, retry count times over (StaR; IBTA 9.7.6.1.3)"
        }
        Silence::Unread | Silence::Late => {
            "the stateless side's process lives, but had no processor for longer than is waited for, and \
                then for the timeout, retry count times over (StaR; IBTA 9.7.6.1.3)"
        }
    }
}

/// The wait for an acknowledgement that was not measured yet.
pub(in super::super) const fn first_wait() -> Duration {
    FIRST_WAIT
}
