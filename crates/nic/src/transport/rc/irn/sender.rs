//! The sending half's state: what is in flight, what the receiver has of it, and recovery. Requests have one,
//! and READ responses one. [`tx_free`](super::tx_free), [`receive_ack`](super::receive_ack) and
//! [`timeout`](super::timeout()) work on it.
//!
//! ```text
//!    una ....... resend ....... lost_below ....... recovery_end ....... next
//!     |  sent again  |   lost unless  |      not known      | new in recovery |
//!     |              |     sacked     |                     |
//! ```

use super::again::Again;
use super::bitmap::Bitmap;
use super::round_trip::RoundTrip;
use adverb_wire::{Instant, Psn};

/// The tail probe of what is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Probe {
    /// None was sent since the cumulative acknowledgement moved.
    Ready,
    /// One is to be sent.
    Due,
    /// It was sent, or there is to be none.
    Spent,
}

/// What is in flight in one direction, what the receiver has of it, and how far recovery has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sender {
    /// Cumulative acknowledgement: the first PSN that the receiver does not have.
    pub una: Psn,
    /// The next PSN that has never been sent.
    pub next: Psn,
    /// Packets before it that are not sacked are lost.
    pub(super) lost_below: Psn,
    /// Recovery looks for lost packets from here on; those before it have been sent again.
    pub(super) resend: Psn,
    /// Recovery ends when the cumulative acknowledgement gets here.
    pub(super) recovery_end: Psn,
    /// NACKs since the cumulative acknowledgement moved.
    pub(super) nacks: u16,
    /// Timeouts since it moved.
    pub(super) expiries: u8,
    pub(super) recovering: bool,
    /// The timer began this recovery: nothing is known of what was in flight.
    pub(super) by_timer: bool,
    /// A lost packet is being fetched; a timer says when it can be sent.
    pub(super) fetching: bool,
    pub(super) probe: Probe,
    /// When it can.
    pub(super) fetched_at: Instant,
    /// Since when the timer runs, and when it ends; `NEVER` when it does not run.
    pub(super) armed: Instant,
    pub(super) deadline: Instant,
    /// When the newest packet left, new or again.
    pub(super) sent: Instant,
    pub(super) round_trip: RoundTrip,
    /// Packets above `una` that the receiver has, and how many of them BDP-FC does not count
    /// ([`super::IrnConfig::redetect`]: all or none).
    pub(super) sacked: Bitmap,
    pub(super) uncounted: u32,
    /// What was sent again.
    pub(super) again: Again,
}

impl Sender {
    /// Nothing in flight; the first packet will be `first`.
    pub fn new(first: Psn) -> Self {
        Self::spanning(first, super::WINDOW)
    }

    /// The same, with a bitmap of `window` packets.
    pub(crate) fn spanning(first: Psn, window: u32) -> Self {
        Sender {
            una: first,
            next: first,
            lost_below: first,
            resend: first,
            recovery_end: first,
            nacks: 0,
            expiries: 0,
            recovering: false,
            by_timer: false,
            fetching: false,
            probe: Probe::Ready,
            fetched_at: Instant::ZERO,
            armed: Instant::NEVER,
            deadline: Instant::NEVER,
            sent: Instant::ZERO,
            round_trip: RoundTrip::default(),
            sacked: Bitmap::spanning(window),
            uncounted: 0,
            again: Again::default(),
        }
    }

    /// Packets sent and not acknowledged.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.next.since(self.una) as u32
    }

    /// Whether BDP-FC lets a new packet go, with `limit` packets in flight at most.
    #[inline]
    pub(super) fn has_room(&self, limit: u32) -> bool {
        self.in_flight() < self.reach(limit)
    }

    /// How far the next new packet may be ahead of the cumulative acknowledgement.
    #[inline]
    pub(super) fn reach(&self, limit: u32) -> u32 {
        (limit + self.uncounted).min(self.sacked.bits())
    }

    /// Whether lost packets are being sent again.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// When the timer was set last.
    pub fn armed(&self) -> Instant {
        self.armed
    }

    /// When the timer ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether something other than a new packet may be to be sent.
    #[inline]
    pub(super) fn has_repairs(&self) -> bool {
        self.recovering || self.probe == Probe::Due
    }

    /// The tail probe that is due, if any, leaves now; or a new packet goes in its place, which asks for an
    /// acknowledgement as it does. In recovery the probe is the packet at the cumulative acknowledgement;
    /// else the last one that the receiver is not known to have, since what it answers to that tells most.
    #[inline(never)]
    pub(super) fn take_probe(&mut self, new_instead: bool) -> Option<Psn> {
        if self.probe != Probe::Due {
            return None;
        }
        self.probe = Probe::Spent;
        if new_instead || self.una == self.next {
            return None;
        }
        if self.recovering {
            return Some(self.una);
        }
        let known = self.sacked.ones_before(self.next, self.in_flight() - 1);
        Some(self.next.add(Psn::MASK - known))
    }

    /// No probe is sent until the cumulative acknowledgement has moved.
    pub(super) fn withhold_probe(&mut self) {
        self.probe = Probe::Spent;
    }

    /// A new packet, numbered `next`, has left, which asks for an acknowledgement or not. `ceiling` bounds
    /// the timeout, as in [`super::receive_ack()`].
    #[inline]
    pub fn on_sent(
        &mut self,
        config: &super::IrnConfig,
        asks: bool,
        ceiling: adverb_wire::Duration,
        now: Instant,
    ) {
        if asks {
            self.round_trip.on_asked(self.next, now);
        }
        self.sent = now;
        self.next = self.next.next();
        if self.deadline == Instant::NEVER {
            super::timeout::rearm(self, config, ceiling, now);
        }
    }

    /// Begins recovery from `una` on.
    pub(super) fn recover(&mut self, by_timer: bool) {
        self.recovering = true;
        self.by_timer = by_timer;
        self.recovery_end = self.next;
        self.resend = self.una;
        self.nacks = 0;
        self.again.clear();
    }

    /// A packet leaves again.
    #[inline]
    pub(super) fn on_resent(&mut self, psn: Psn, now: Instant) {
        self.sent = now;
        self.round_trip.on_resent(psn);
    }

    /// What the receiver does not have has to be sent again, all of it: it refused a packet and dropped
    /// others.
    pub(super) fn resend_all(&mut self) {
        self.recover(true);
        self.lost_below = self.next;
    }

    /// Raises the bound below which packets count as lost.
    #[inline]
    pub(super) fn lost_before(&mut self, psn: Psn) {
        if self.lost_below.is_before(psn) {
            self.lost_below = psn;
        }
    }

    /// Order of the marks; bits only inside of what is in flight.
    pub fn check_invariants(&self) {
        let window = self.next.since(self.una);
        let bits = self.sacked.bits();
        assert!((0..=bits as i32).contains(&window), "in flight: {window}");
        let inside = |psn: Psn| (0..=window).contains(&psn.since(self.una));
        assert!(inside(self.lost_below), "lost beyond what was sent");
        assert!(!self.recovering || inside(self.recovery_end), "recovery ends outside of what was sent");
        assert!(!self.sacked.get(self.una) || window == bits as i32, "sacked at the cumulative one");
        let outside = bits - window as u32;
        assert_eq!(self.sacked.first_one(self.next, outside), outside, "sacked what was not sent");
        assert!([0, self.sacked.count_ones()].contains(&self.uncounted), "BDP-FC counts what has arrived");
        assert!(self.recovering || self.again.is_empty(), "remembers an old recovery");
        assert!(self.probe != Probe::Due || window > 0, "a probe of nothing");
        self.again.check_invariants(self.next);
    }
}
