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
use adverb_wire::{Instant, Psn};

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
    pub(super) nacks: u32,
    /// Timeouts since it moved.
    pub(super) expiries: u8,
    pub(super) recovering: bool,
    /// The timer began this recovery: nothing is known of what was in flight.
    pub(super) by_timer: bool,
    /// A lost packet is being fetched; a timer says when it can be sent.
    pub(super) fetching: bool,
    /// When it can.
    pub(super) fetched_at: Instant,
    /// Since when the timer runs, and when it ends; `NEVER` when it does not run.
    pub(super) armed: Instant,
    pub(super) deadline: Instant,
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
            fetched_at: Instant::ZERO,
            armed: Instant::NEVER,
            deadline: Instant::NEVER,
            sacked: Bitmap::default(),
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
        (limit + self.uncounted).min(Bitmap::BITS)
    }

    /// Whether lost packets are being sent again.
    pub fn is_recovering(&self) -> bool {
        self.recovering
    }

    /// When the timer ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// A new packet, numbered `next`, has left. `ceiling` bounds the timeout, as in [`super::receive_ack()`].
    #[inline]
    pub fn on_sent(&mut self, config: &super::IrnConfig, ceiling: adverb_wire::Duration, now: Instant) {
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
        assert!((0..=Bitmap::BITS as i32).contains(&window), "in flight: {window}");
        let inside = |psn: Psn| (0..=window).contains(&psn.since(self.una));
        assert!(inside(self.lost_below), "lost beyond what was sent");
        assert!(!self.recovering || inside(self.recovery_end), "recovery ends outside of what was sent");
        assert!(!self.sacked.get(self.una) || window == Bitmap::BITS as i32, "sacked at the cumulative one");
        let outside = Bitmap::BITS - window as u32;
        assert_eq!(self.sacked.first_one(self.next, outside), outside, "sacked what was not sent");
        assert!([0, self.sacked.count_ones()].contains(&self.uncounted), "BDP-FC counts what has arrived");
        assert!(self.recovering || self.again.is_empty(), "remembers an old recovery");
        self.again.check_invariants(self.next);
    }
}
