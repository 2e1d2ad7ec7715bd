//! txFree: which packet a sender that is free to send sends next (IRN 3.1, 6.1).

use super::config::IrnConfig;
use super::sender::Sender;
use adverb_wire::{Instant, Psn};

/// What [`tx_free`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Free {
    /// A lost packet.
    Resend(Psn),
    /// The next new packet.
    New,
    /// A lost packet that can be sent at this time, and nothing before.
    Wait(Instant),
    /// Nothing: the window is closed, or there is nothing new.
    Closed,
}

/// In recovery: what was sent again and lost again; the packet at the cumulative acknowledgement, then every
/// lost one, each once. Else, and after them, new packets while fewer than `limit` are in flight. `fresh`:
/// there is something new to send.
#[inline]
pub fn tx_free(s: &mut Sender, config: &IrnConfig, limit: u32, fresh: bool, now: Instant) -> Free {
    let mut wait = None;
    if s.recovering
        && let Some(psn) = next_lost(s)
    {
        if now >= s.fetched_at {
            if psn == s.resend {
                s.resend = psn.next();
            }
            if config.redetects() {
                s.again.on_resent(psn, s.next);
            }
            s.fetching = false;
            s.on_resent(psn, now);
            return Free::Resend(psn);
        }
        s.fetching = true;
        wait = Some(s.fetched_at);
    }
    if fresh && s.has_room(limit) {
        return Free::New;
    }
    wait.map_or(Free::Closed, Free::Wait)
}

/// The next lost packet: one lost twice, or else look-ahead over the bitmap.
#[inline]
pub(super) fn next_lost(s: &mut Sender) -> Option<Psn> {
    if let Some(psn) = s.again.first_lost(s.una, &s.sacked) {
        return Some(psn);
    }
    if s.resend.is_before(s.una) {
        s.resend = s.una;
    }
    let span = s.lost_below.since(s.resend);
    if span <= 0 {
        return None;
    }
    let skip = s.sacked.first_zero(s.resend, span as u32);
    s.resend = s.resend.add(skip);
    (skip < span as u32).then_some(s.resend)
}

/// Whether [`tx_free`] would find a packet, or a time to wait for that no timer has been set for.
#[inline]
pub(super) fn has_lost(s: &mut Sender) -> bool {
    s.recovering && !s.fetching && next_lost(s).is_some()
}
