//! timeout: the sender's timer (IRN 3.1, 6.1). In the paper it is a short one while few packets are in
//! flight, when a loss may leave nobody to send a NACK; else a long one.
//!
//! Beyond the paper ([`Timers::Measured`]), the timeout follows the measured round trip, between the paper's
//! two, and a tail probe goes before it (RFC 8985 7): when nothing was acknowledged for two round trips since
//! the last packet left, one packet is sent again that asks for an acknowledgement. What the receiver answers
//! tells which packets are lost. There is one probe until the cumulative acknowledgement moves, and none
//! after a timeout; it begins no recovery and costs no retry.
//!
//! ```text
//!   last packet sent          2 round trips           the timeout
//!   ───────┼────────────────────────┼──────────────────────┼───────
//!          |     (acknowledged?)    | probe                | recovery
//! ```

use super::config::{IrnConfig, Scheme, Timers};
use super::round_trip::RoundTrip;
use super::sender::{Probe, Sender};
use adverb_wire::{Duration, Instant};

/// What [`timeout`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// Nothing is in flight.
    Idle,
    /// More packets are in flight than when the timer was set; it runs on until the sender's deadline.
    Early,
    /// A tail probe is to be sent.
    Probe,
    /// The oldest packet is sent again.
    Expired,
}

/// Length of the timeout with so many packets in flight. `ceiling` is the queue pair's local ACK timeout,
/// zero for none.
#[inline]
pub(super) fn length(
    config: &IrnConfig,
    round_trip: &RoundTrip,
    in_flight: u32,
    expiries: u8,
    ceiling: Duration,
) -> Duration {
    let measured = match config.timers {
        Timers::Measured { .. } => round_trip.timeout(),
        Timers::Paper => None,
    };
    let base = match measured {
        Some(time) => time.max(config.rto_low).min(config.rto_high),
        None if in_flight <= config.few_packets => config.rto_low,
        None => config.rto_high,
    };
    let base = if config.backoff { base.times(1 << expiries.min(10)) } else { base };
    if ceiling > Duration::ZERO { base.min(ceiling) } else { base.min(config.rto_high.times(64)) }
}

/// When the timeout is over.
#[inline]
fn due(s: &Sender, config: &IrnConfig, ceiling: Duration) -> Instant {
    s.armed + length(config, &s.round_trip, s.in_flight(), s.expiries, ceiling)
}

/// How long a tail probe waits, where there are any; before the first sample as long as the short timeout.
#[inline]
fn patience(s: &Sender, config: &IrnConfig) -> Option<Duration> {
    match config.timers {
        Timers::Measured { probe: Some(floor) } if s.probe == Probe::Ready => {
            Some(s.round_trip.probe().map_or(config.rto_low, |time| time.max(floor)))
        }
        _ => None,
    }
}

/// Starts the timer anew, or stops it when nothing is in flight.
#[inline]
pub(super) fn rearm(s: &mut Sender, config: &IrnConfig, ceiling: Duration, now: Instant) {
    if s.una == s.next {
        (s.armed, s.deadline) = (Instant::NEVER, Instant::NEVER);
        return;
    }
    s.armed = now;
    s.deadline = due(s, config, ceiling);
    if let Some(wait) = patience(s, config) {
        s.deadline = s.deadline.min(now + wait);
    }
}

/// Whether the timeout is not over, since more packets are in flight than when the timer was set, or it ended
/// for a tail probe.
pub(super) fn is_early(s: &Sender, config: &IrnConfig, ceiling: Duration, now: Instant) -> bool {
    s.una != s.next && due(s, config, ceiling) > now
}

/// The timer ended.
pub fn timeout(s: &mut Sender, config: &IrnConfig, ceiling: Duration, now: Instant) -> Expiry {
    if s.una == s.next {
        s.deadline = Instant::NEVER;
        return Expiry::Idle;
    }
    let due = due(s, config, ceiling);
    if due > now {
        s.deadline = due;
        let Some(wait) = patience(s, config) else { return Expiry::Early };
        let at = s.armed.max(s.sent) + wait;
        if at > now {
            s.deadline = due.min(at);
            return Expiry::Early;
        }
        s.probe = Probe::Due;
        // The probe gets the time that it waited for.
        s.deadline = due.max(now + wait);
        return Expiry::Probe;
    }
    s.expiries = s.expiries.saturating_add(1);
    s.probe = Probe::Spent;
    s.recover(true);
    s.lost_before(if config.scheme == Scheme::GoBackN { s.next } else { s.una.next() });
    s.fetched_at = now + config.retransmit_delay;
    rearm(s, config, ceiling, now);
    Expiry::Expired
}
