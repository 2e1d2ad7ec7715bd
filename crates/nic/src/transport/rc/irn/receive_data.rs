//! receiveData: what an arriving packet is to the receiver, and which acknowledgement it earns (IRN 3.1,
//! 6.1).
//!
//! Every packet that comes early and is kept earns a NACK with its PSN; one that comes early and cannot be
//! kept earns one that says so; one that comes again earns what it earned the first time. Packets in order
//! are acknowledged when they ask for it, and all of them while a gap is being filled.

use super::bitmap::Bitmap;
use adverb_wire::{Psn, SackEth};

/// What a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The one expected.
    InOrder,
    /// A later one that has not come before.
    Early,
    /// It has come before.
    Duplicate,
    /// Outside of the window.
    Beyond,
}

/// The receiving half's state: requests have one, and READ responses one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// The first PSN that has not arrived.
    pub expected: Psn,
    /// Packets that arrived early.
    pub(super) early: u32,
    /// An acknowledgement is owed.
    pub(super) ack: bool,
    /// A NACK is owed for a packet that was not kept: the latest of them.
    pub(super) not_kept: Option<Psn>,
    /// Which arrived early.
    pub(super) arrived: Bitmap,
    /// For which of them a NACK is owed.
    nacks: Bitmap,
    owed_nacks: u32,
}

/// An acknowledgement to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owed {
    /// Cumulative.
    pub psn: Psn,
    /// A packet came early: this one.
    pub nack: Option<SackEth>,
}

/// Classifies a packet. It changes nothing: the caller sees whether the packet can be taken, and says so by
/// [`Receiver::take`], [`Receiver::keep`] or [`Receiver::refuse`].
#[inline]
pub fn receive_data(r: &Receiver, psn: Psn) -> Arrival {
    match psn.since(r.expected) {
        0 => Arrival::InOrder,
        ahead if ahead < 0 => Arrival::Duplicate,
        ahead if ahead >= r.arrived.bits() as i32 => Arrival::Beyond,
        _ if r.early > 0 && r.arrived.get(psn) => Arrival::Duplicate,
        _ => Arrival::Early,
    }
}

impl Receiver {
    /// Expects `first`.
    pub fn new(first: Psn) -> Self {
        Self::spanning(first, super::WINDOW)
    }

    /// The same, with bitmaps of `window` packets.
    pub(crate) fn spanning(first: Psn, window: u32) -> Self {
        Receiver {
            expected: first,
            early: 0,
            ack: false,
            not_kept: None,
            arrived: Bitmap::spanning(window),
            nacks: Bitmap::spanning(window),
            owed_nacks: 0,
        }
    }

    /// The packet expected was taken. True if the next one is there already.
    #[inline]
    pub fn take(&mut self, ack_req: bool) -> bool {
        let psn = self.expected;
        self.expected = psn.next();
        self.ack |= ack_req;
        if self.early == 0 && self.not_kept.is_none() {
            return false;
        }
        self.filled(psn)
    }

    /// A gap is being filled.
    fn filled(&mut self, psn: Psn) -> bool {
        self.ack = true;
        if self.arrived.clear(psn) {
            self.early -= 1;
            self.owed_nacks -= self.nacks.clear(psn) as u32;
        }
        if self.not_kept.is_some_and(|at| at.is_before(self.expected)) {
            self.not_kept = None;
        }
        self.early > 0 && self.arrived.get(self.expected)
    }

    /// An early packet was kept.
    #[inline]
    pub fn keep(&mut self, psn: Psn) {
        self.early += self.arrived.set(psn) as u32;
        self.owed_nacks += self.nacks.set(psn) as u32;
    }

    /// An early packet could not be kept.
    pub fn refuse(&mut self, psn: Psn) {
        if self.not_kept.is_none_or(|at| at.is_before(psn)) {
            self.not_kept = Some(psn);
        }
    }

    /// A packet came again: the acknowledgement may have been lost.
    pub fn repeat(&mut self, psn: Psn) {
        if self.early > 0 && self.expected.is_before(psn) && self.arrived.get(psn) {
            self.owed_nacks += self.nacks.set(psn) as u32;
        } else {
            self.ack = true;
        }
    }

    /// The packet expected is there but cannot be taken now: it has to come again.
    pub(super) fn unkeep(&mut self) {
        if self.arrived.clear(self.expected) {
            self.early -= 1;
            self.owed_nacks -= self.nacks.clear(self.expected) as u32;
        }
    }

    /// Asks for the packet expected, which is overdue.
    pub(super) fn probe(&mut self) {
        self.not_kept = Some(self.expected);
    }

    /// Whether an acknowledgement is owed.
    #[inline]
    pub fn owes(&self) -> bool {
        self.ack || self.owed_nacks > 0 || self.not_kept.is_some()
    }

    /// Takes the next acknowledgement that is owed. Each is cumulative; a NACK says all that an ACK would.
    /// With `runs` a NACK names the run of packets that its own is one of, as far as a header can: what is
    /// owed for all of them, and once more what was told before, should that have been lost.
    #[inline]
    pub fn next_owed(&mut self, runs: bool) -> Option<Owed> {
        let psn = self.expected;
        if self.owed_nacks > 0 {
            let at = psn.add(self.nacks.first_one(psn, self.nacks.bits()));
            let sack = if runs { self.run_around(at) } else { SackEth::new(0, at) };
            self.owed_nacks -= self.nacks.clear_run(sack.psn(), 1 + sack.more());
            self.ack = false;
            return Some(Owed { psn, nack: Some(sack) });
        }
        if let Some(at) = self.not_kept.take() {
            self.ack = false;
            return Some(Owed { psn, nack: Some(SackEth::new(SackEth::NOT_KEPT, at)) });
        }
        core::mem::take(&mut self.ack).then_some(Owed { psn, nack: None })
    }

    /// The run of packets around `at`, which came early.
    fn run_around(&self, at: Psn) -> SackEth {
        let room = self.arrived.bits() - at.since(self.expected) as u32;
        let after = self.arrived.first_zero(at, room.min(1 + SackEth::MORE_MAX)) - 1;
        let before = at.since(self.expected) as u32;
        let before = self.arrived.ones_before(at, before.min(SackEth::MORE_MAX - after));
        SackEth::run(at.add(Psn::MASK + 1 - before), before + after)
    }

    /// Counts and bitmaps agree.
    pub fn check_invariants(&self) {
        assert_eq!(self.arrived.count_ones(), self.early, "packets that came early");
        assert_eq!(self.nacks.count_ones(), self.owed_nacks, "NACKs owed");
        assert!(!self.arrived.get(self.expected) || self.early == 0, "the one expected is there");
    }
}
