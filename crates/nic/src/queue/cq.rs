//! Completion queues (IBTA 10.8, 11.4.2): a bounded ring of completions, armed for events.

use crate::error::Error;
use crate::explain::Awaited;
use crate::ids::{QpId, SrqId};
use crate::work::{Completion, Status};
use adverb_wire::QpNumber;
use std::collections::VecDeque;

/// Which completions raise the next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

impl Armed {
    /// Whether a completion raises the event.
    #[inline]
    fn takes(self, entry: &Entry) -> bool {
        match self {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => entry.completion.solicited || entry.completion.status != Status::Success,
        }
    }
}

/// A completion with what polling it frees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub completion: Completion,
    /// What polling the entry frees.
    pub release: Option<Release>,
}

/// What a program gets back with a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Release {
    /// Send queue blocks before `end` of a queue pair.
    Send { qp: QpId, end: u32 },
    /// A place in the receive queue of a queue pair.
    Receive(QpId),
    /// A place in a shared receive queue.
    Shared(SrqId),
}

impl Release {
    /// Whether it outlives the queue pair.
    pub fn is_shared(&self) -> bool {
        matches!(self, Release::Shared(_))
    }
}

// A completion with what it releases takes a cache line.
const _: () = assert!(core::mem::size_of::<Entry>() == 64);

/// Who stands among the waiters of a completion queue that is watched, and waits for nothing.
const WATCHER: u32 = u32::MAX;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    entries: VecDeque<Entry>,
    capacity: u32,
    armed: Armed,
    overrun: bool,
    /// Completions that had been added when the last event was raised.
    notified: u64,
    /// Queue pairs and XRC shared receive queues that complete here.
    pub users: u32,
    /// Completions ever added, the count that a WAIT compares with.
    pub produced: u64,
    /// When it is full, the oldest completion gives way: nobody polls, but WAITs count.
    pub ignores_overrun: bool,
    /// Queue pairs whose WAIT is for the completion with this index.
    waiters: Vec<(u32, u32)>,
    /// The first error completion whose queue pair has not been reset or destroyed: its index, and what it
    /// was.
    failed: Option<Box<(u64, Awaited)>>,
}

/// What adding a completion led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Added {
    Quiet,
    Event,
    /// A completion is lost: for the first time, or once more. Nobody will poll it, so this is free at once.
    Overrun {
        first: bool,
        freed: Option<Release>,
    },
    /// The oldest completion gave way, and frees this.
    Displaced(Option<Release>),
}

impl Cq {
    /// A queue of at least `capacity` entries.
    pub fn new(capacity: u32) -> Self {
        Cq {
            entries: VecDeque::with_capacity(capacity as usize),
            capacity,
            armed: Armed::No,
            overrun: false,
            notified: 0,
            users: 0,
            produced: 0,
            ignores_overrun: false,
            waiters: Vec::new(),
            failed: None,
        }
    }

    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether completions have been lost.
    pub fn is_overrun(&self) -> bool {
        self.overrun
    }

    /// Adds a completion; a full queue is overrun for good (IBTA 11.6.3.1).
    #[inline]
    pub fn add(&mut self, entry: Entry) -> Added {
        if self.entries.len() == self.capacity as usize {
            if self.ignores_overrun {
                let oldest = self.entries.pop_front();
                self.entries.push_back(entry);
                self.produced += 1;
                return Added::Displaced(oldest.and_then(|oldest| oldest.release));
            }
            let first = !core::mem::replace(&mut self.overrun, true);
            return Added::Overrun { first, freed: entry.release };
        }
        let wakes = self.armed.takes(&entry);
        self.entries.push_back(entry);
        self.produced += 1;
        if wakes {
            self.armed = Armed::No;
            self.notified = self.produced;
            return Added::Event;
        }
        Added::Quiet
    }

    /// Counts from `produced` on.
    pub fn start_at(&mut self, produced: u64) {
        (self.produced, self.notified) = (produced, produced);
    }

    /// Whether so many completions have come that the one with this index is among them. Indices are counted
    /// modulo 2^24, and compared on that circle.
    pub fn has_passed(&self, index: u32) -> bool {
        let ahead = (self.produced as u32).wrapping_sub(index) & 0xff_ffff;
        ahead != 0 && ahead < 1 << 23
    }

    /// Keeps in mind that the completion added last was an error. The queue pairs that wait are to be woken:
    /// they fail as well.
    #[cold]
    pub fn note_error(&mut self, awaited: Awaited) {
        if self.failed.is_none() {
            self.failed = Some(Box::new((self.produced.wrapping_sub(1), awaited)));
        }
    }

    /// The error completion that came no later than the one with this index, or in its place.
    pub fn failed_before(&self, index: u32) -> Option<Awaited> {
        let (at, awaited) = self.failed.as_deref()?;
        // Once it lies so far back that the circle cannot tell, all that anybody waits for is later.
        let ahead = index.wrapping_sub(*at as u32) & 0xff_ffff;
        (ahead < 1 << 23 || self.produced - at >= 1 << 23).then_some(*awaited)
    }

    /// The queue pair at this index waits for the completion with index `index`.
    pub fn wait_for(&mut self, index: u32, qp: u32) {
        self.waiters.push((index, qp));
    }

    /// Whether anybody waits, or watches.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether a WAIT is for a completion that has not come.
    pub fn has_waiters(&self) -> bool {
        self.waiters.iter().any(|(_, qp)| *qp != WATCHER)
    }

    /// Its completions are to be told of.
    pub fn watch(&mut self) {
        if self.waiters.iter().all(|(_, qp)| *qp != WATCHER) {
            self.waiters.push((0, WATCHER));
        }
    }

    /// The completion that was added last, if it is there.
    pub fn newest(&self) -> Option<&Entry> {
        self.entries.back()
    }

    /// Takes out one who has waited long enough.
    pub fn next_passed(&mut self) -> Option<u32> {
        let done = |index: u32| self.has_passed(index) || self.failed_before(index).is_some() || self.overrun;
        let at = self.waiters.iter().position(|(index, qp)| *qp != WATCHER && done(*index))?;
        Some(self.waiters.remove(at).1)
    }

    /// A queue pair does not wait any more.
    pub fn forget_waiter(&mut self, qp: u32) {
        self.waiters.retain(|(_, waiter)| *waiter != qp);
    }

    /// Takes the oldest completion. An empty queue begins at its first entry again, so that one which is
    /// polled often keeps few lines in the processor's cache, not all of a ring of thousands.
    #[inline]
    pub fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        if self.entries.is_empty() {
            self.entries.clear();
        }
        Some(entry)
    }

    /// Whether there is no completion.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the next completion raises an event.
    pub fn is_armed(&self) -> bool {
        self.armed != Armed::No
    }

    /// Asks for an event at the next (solicited) completion (IBTA 11.4.2.2). Arming for any completion
    /// is never weakened by arming for solicited ones. True if the event is due at once, and the queue is not
    /// armed: a completion lies here that came after the last event. Adapters keep the index of the last
    /// completion that they notified of (`last_notified_index` of mlx5's queue context), and programs that do
    /// not poll between arming and sleeping rely on it (UCX).
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        let armed = match (self.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        let news = usize::try_from(self.produced - self.notified).unwrap_or(usize::MAX);
        if self.entries.iter().rev().take(news).any(|entry| armed.takes(entry)) {
            self.armed = Armed::No;
            self.notified = self.produced;
            return true;
        }
        self.armed = armed;
        false
    }

    /// Changes the size. `Invalid` when the pending completions would not fit.
    pub fn resize(&mut self, capacity: u32) -> Result<(), Error> {
        if self.entries.len() > capacity as usize {
            return Err(Error::Invalid("size below the number of pending completions"));
        }
        let mut entries = VecDeque::with_capacity(capacity as usize);
        entries.extend(self.entries.drain(..));
        self.entries = entries;
        self.capacity = capacity;
        Ok(())
    }

    /// Drops the completions of a queue pair that is being destroyed or reset; what others would have
    /// got back with them goes into `freed`.
    pub fn forget(&mut self, qp: QpNumber, freed: &mut Vec<Release>) {
        self.entries.retain(|entry| {
            let stays = entry.completion.qp != qp;
            freed.extend(entry.release.filter(|release| !stays && release.is_shared()));
            stays
        });
        if self.failed.as_deref().is_some_and(|(_, awaited)| awaited.qp == qp) {
            self.failed = None;
        }
    }
}
