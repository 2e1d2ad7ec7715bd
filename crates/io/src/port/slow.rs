//! The slow way, on which frames are built whole: what it does faults to them by, captures and notes.

use super::{CAPTURE_FLUSH, Port, Route};
use crate::notes::Notes;
use adverb_nic::Nic;
use adverb_os::capture::Capture;
use adverb_os::faults::Lane;
use adverb_wire::Instant;

/// What faults, capture and notes need.
pub(super) struct Slow {
    pub rx: Lane<()>,
    pub tx: Lane<Route>,
    pub capture: Option<Capture>,
    pub notes: Option<Notes>,
    pub flushed: Instant,
}

impl Slow {
    /// Puts what was captured and noted into its files.
    pub fn flush(&mut self) {
        self.capture.iter_mut().for_each(Capture::flush);
        self.notes.iter_mut().for_each(Notes::flush);
    }

    /// When faults let something go, or what was captured and noted is due in its files.
    pub fn next_deadline(&self) -> Option<Instant> {
        let dirty = self.capture.as_ref().is_some_and(Capture::is_dirty)
            || self.notes.as_ref().is_some_and(Notes::is_dirty);
        let flush = dirty.then(|| self.flushed + CAPTURE_FLUSH);
        [self.rx.next_deadline(), self.tx.next_deadline(), flush].into_iter().flatten().min()
    }

    /// Whether faults hold back something until then.
    pub fn is_due(&self, by: Instant) -> bool {
        [self.rx.next_deadline(), self.tx.next_deadline()].into_iter().flatten().any(|at| at <= by)
    }
}

impl Port {
    /// Notes what became of requests, where that is noted.
    pub fn note_requests(&mut self, now: Instant, nic: &Nic) {
        if let Some(notes) = self.slow.as_mut().and_then(|slow| slow.notes.as_mut()) {
            notes.look(self.lives.host_ns(now), nic);
        }
    }

    /// Whether anything is noted.
    pub fn has_notes(&self) -> bool {
        self.slow.as_ref().is_some_and(|slow| slow.notes.is_some())
    }
}
