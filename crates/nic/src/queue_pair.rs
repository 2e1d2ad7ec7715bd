//! A queue pair as the NIC's table holds it: what every mode has in common, and the mode.

use crate::qp::Qp;
use crate::transport::rc::Mode;
use adverb_wire::Instant;

/// A queue pair. Its parts are borrowed apart: what lies below the mode never sees it.
pub(crate) struct QueuePair {
    pub qp: Qp,
    pub mode: Mode,
}

// Four and a half cache lines: a flow of a simulation takes two of them.
const _: () = assert!(core::mem::size_of::<QueuePair>() <= 288);

impl QueuePair {
    /// One in RESET.
    pub fn new(qp: Qp) -> QueuePair {
        QueuePair { qp, mode: Mode::default() }
    }

    /// There is something to send that no request asked for.
    #[inline]
    pub fn owes(&mut self) -> bool {
        self.mode.owes(&self.qp)
    }

    /// The earliest of its timers.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.mode.deadline(&self.qp)
    }

    /// Back to RESET.
    pub fn reset(&mut self) {
        self.qp.reset();
        self.mode = Mode::default();
    }
}
