//! receiveAck: what an acknowledgement says to the sender (IRN 3.1, 6.1).
//!
//! A NACK carries the cumulative acknowledgement and the PSN of the packet that triggered it. The sender
//! marks that packet, and enters recovery, which lasts until the cumulative acknowledgement passes the last
//! packet sent before it.
//!
//! Beyond the paper:
//! - A receiver may have got a packet and not kept it; then it is lost like those before it.
//! - A receiver that has waited too long asks for the packet at the cumulative acknowledgement, and gets it.
//! - If holes are known when recovery ends, it goes on; the paper's would wait for the next NACK.
//! - In a recovery that the timer began, nothing is known of what was in flight; each time the cumulative
//!   acknowledgement moves on, the packet at it is sent again, so that a lost tail costs a round trip a
//!   packet, not a timeout.
//! - A NACK may name a run of packets that have come ([`SackEth::run`]), where both sides have agreed on it.
//! - A retransmission that is lost too is found by the packets that left after it and arrived (`again.rs`).
//!   The paper's waits for the timeout: a few round trips there, a hundred on a host, where timeouts cover a
//!   peer's wait for a processor. So that something does leave after it, BDP-FC does not count what the
//!   receiver has. [`IrnConfig::redetect`] is the switch.

use super::config::{IrnConfig, Scheme};
use super::sender::{Probe, Sender};
use super::timeout::rearm;
use super::tx_free::next_lost;
use adverb_wire::{Duration, Instant, Psn, SackEth};

/// What an acknowledgement changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acked {
    /// It acknowledges what was never sent.
    Ghost,
    /// The cumulative acknowledgement moved on by so many packets, perhaps none.
    Advanced(u32),
}

/// Takes in a cumulative acknowledgement; `nack` is what triggered it, if a packet came ahead of its turn.
/// `ceiling` bounds the timeout.
#[inline]
pub fn receive_ack(
    s: &mut Sender,
    config: &IrnConfig,
    cumulative: Psn,
    nack: Option<SackEth>,
    ceiling: Duration,
    now: Instant,
) -> Acked {
    if s.next.is_before(cumulative) {
        return Acked::Ghost;
    }
    let advanced = cumulative.since(s.una).max(0) as u32;
    if advanced > 0 {
        advance(s, config, cumulative, advanced, ceiling, now);
    }
    if let Some(sack) = nack {
        if sack.psn() == s.una && cumulative == s.una && s.una != s.next {
            // The receiver's own timer asks for the packet at the cumulative acknowledgement, as ours would
            // send it.
            s.recover(true);
            s.lost_before(s.una.next());
            s.expiries = 0;
            rearm(s, config, ceiling, now);
        } else {
            on_nack(s, config, cumulative, sack, advanced > 0, now);
        }
    }
    if s.recovering && !s.una.is_before(s.recovery_end) {
        s.recovering = s.una.is_before(s.lost_below);
        s.recovery_end = s.next;
        if !s.recovering {
            s.again.clear();
        }
    }
    Acked::Advanced(advanced)
}

#[inline]
fn advance(
    s: &mut Sender,
    config: &IrnConfig,
    cumulative: Psn,
    advanced: u32,
    ceiling: Duration,
    now: Instant,
) {
    // Bits are set only above `una` and below `lost_below`.
    if s.una.is_before(s.lost_below) {
        let mut done = s.sacked.clear_run(s.una, advanced);
        // It came early, and an answer to a request before it acknowledges no further; or it came early and
        // was refused in its turn. Only the cumulative acknowledgement can say that it is done.
        done += s.sacked.clear(cumulative) as u32;
        s.uncounted = s.uncounted.saturating_sub(done);
    }
    let from = core::mem::replace(&mut s.una, cumulative);
    s.round_trip.on_arrived(from, cumulative, !s.recovering, config.rto_high, now);
    if !s.again.is_empty() {
        redetect(s, config, from, cumulative, now);
    }
    s.nacks = 0;
    s.expiries = 0;
    s.probe = Probe::Ready;
    s.lost_before(cumulative);
    let blind = s.by_timer || config.scheme == Scheme::NoSack;
    if s.recovering && blind && cumulative.is_before(s.recovery_end) {
        s.lost_before(cumulative.next());
    }
    rearm(s, config, ceiling, now);
}

fn on_nack(s: &mut Sender, config: &IrnConfig, cumulative: Psn, sack: SackEth, advanced: bool, now: Instant) {
    let psn = sack.psn();
    if !psn.is_before(s.next) || psn.is_before(s.una) {
        return;
    }
    let known = s.recovering && s.una.is_before(s.lost_below);
    // A run may say more than is in flight, if the peer lies.
    let more = sack.more().min(s.next.since(psn) as u32 - 1);
    let mut news = 1;
    match config.scheme {
        Scheme::Selective => {
            if sack.is_kept() && psn != s.una {
                let new = s.sacked.set_run(psn, 1 + more);
                s.round_trip.on_arrived(psn, psn.add(1 + more), true, config.rto_high, now);
                s.uncounted += if config.redetects() { new } else { 0 };
                // A run stands for the NACKs of all its packets that are news.
                news = if more > 0 { new } else { 1 };
                s.lost_before(psn.add(more));
            } else {
                s.lost_before(psn.next());
            }
        }
        Scheme::NoSack => s.lost_before(s.una.next()),
        Scheme::GoBackN => s.lost_before(s.next),
    }
    if !s.again.is_empty() {
        redetect(s, config, psn, psn.add(1 + more), now);
    }
    if cumulative != s.una {
        return;
    }
    s.nacks = s.nacks.saturating_add(news as u16);
    if !s.recovering && u32::from(s.nacks) >= config.nack_threshold {
        s.recover(false);
        s.armed = now;
        s.fetched_at = now + config.retransmit_delay;
    } else if s.recovering && advanced && config.scheme == Scheme::GoBackN {
        s.recover(false);
    } else if s.recovering && !known {
        s.fetched_at = now + config.retransmit_delay;
    }
}

/// Packets from `from` to before `to` have arrived, kept or not: what was sent again before them and is
/// missing is lost.
#[cold]
fn redetect(s: &mut Sender, config: &IrnConfig, from: Psn, to: Psn, now: Instant) {
    let known = next_lost(s).is_some();
    if s.again.on_arrived(from, to, config.nack_threshold.max(1) - 1) && !known {
        s.fetched_at = now + config.retransmit_delay;
    }
}
