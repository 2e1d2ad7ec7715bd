//! timeout: the sender's timer (IRN 3.1, 6.1). A short timeout while few packets are in flight, when a loss
//! may leave nobody to send a NACK; else a long one.

use super::config::{IrnConfig, Scheme};
use super::sender::Sender;
use adverb_wire::{Duration, Instant};

/// What [`timeout`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// Nothing is in flight.
    Idle,
    /// More packets are in flight than when the timer was set; it runs on until the sender's deadline.
    Early,
    /// The oldest packet is sent again.
    Expired,
}

/// Length of the timeout with so many packets in flight. `ceiling` is the queue pair's local ACK timeout,
/// zero for none.
#[inline]
pub(super) fn length(config: &IrnConfig, in_flight: u32, expiries: u8, ceiling: Duration) -> Duration {
    let base = if in_flight <= config.few_packets { config.rto_low } else { config.rto_high };
    let base = if config.backoff { base.times(1 << expiries.min(10)) } else { base };
    if ceiling > Duration::ZERO { base.min(ceiling) } else { base.min(config.rto_high.times(64)) }
}

/// Starts the timer anew, or stops it when nothing is in flight.
#[inline]
pub(super) fn rearm(s: &mut Sender, config: &IrnConfig, ceiling: Duration, now: Instant) {
    if s.una == s.next {
        (s.armed, s.deadline) = (Instant::NEVER, Instant::NEVER);
        return;
    }
    s.armed = now;
    s.deadline = now + length(config, s.in_flight(), s.expiries, ceiling);
}

/// Whether the timer ended too early, since more packets are in flight than when it was set.
pub(super) fn is_early(s: &Sender, config: &IrnConfig, ceiling: Duration, now: Instant) -> bool {
    s.una != s.next && s.armed + length(config, s.in_flight(), s.expiries, ceiling) > now
}

/// The timer ended.
pub fn timeout(s: &mut Sender, config: &IrnConfig, ceiling: Duration, now: Instant) -> Expiry {
    if s.una == s.next {
        s.deadline = Instant::NEVER;
        return Expiry::Idle;
    }
    let due = s.armed + length(config, s.in_flight(), s.expiries, ceiling);
    if due > now {
        s.deadline = due;
        return Expiry::Early;
    }
    s.expiries = s.expiries.saturating_add(1);
    s.recover(true);
    s.lost_before(if config.scheme == Scheme::GoBackN { s.next } else { s.una.next() });
    s.fetched_at = now + config.retransmit_delay;
    rearm(s, config, ceiling, now);
    Expiry::Expired
}
