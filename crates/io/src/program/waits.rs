//! Who waits for what, as other threads see it: the progress thread, when completions or frames have
//! come; the exchange's threads; a timer's.
//!
//! The program's own thread decides whether a wait is over, by looking. Others only wake it, and rather
//! once too often than not at all.

use super::memory::Memory;
use adverb_nic::{CqId, Event};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// The clock by which waits are woken.
#[expect(clippy::disallowed_methods, reason = "waits of a driver")]
pub(super) fn clock_ns() -> u64 {
    adverb_os::clock::monotonic_ns()
}

/// One wait.
pub(super) struct Watch {
    pub waker: Waker,
    pub cqs: Vec<CqId>,
    /// Words, and what was seen there.
    pub words: Vec<(Memory, u64, u64)>,
    /// When to wake it, in ns of the monotonic clock, if somebody else than its own executor must.
    pub deadline_ns: Option<u64>,
}

#[derive(Default)]
struct Table {
    watches: BTreeMap<u64, Watch>,
    /// The timer's thread runs.
    timer: bool,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Waits {
    table: Mutex<Table>,
    /// A deadline was added, or it is over.
    changed: Condvar,
    stop: AtomicBool,
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a wait, or replaces it.
    pub fn set(self: &Arc<Waits>, ticket: u64, watch: Watch) -> std::io::Result<()> {
        let timed = watch.deadline_ns.is_some();
        let mut table = self.lock();
        table.watches.insert(ticket, watch);
        if timed && !table.timer {
            let own = self.clone();
            std::thread::Builder::new().name("adverb-timer".to_owned()).spawn(move || own.run_timer())?;
            table.timer = true;
        }
        drop(table);
        if timed {
            self.changed.notify_all();
        }
        Ok(())
    }

    pub fn remove(&self, ticket: u64) {
        self.lock().watches.remove(&ticket);
    }

    /// What the NIC says while it is locked.
    pub fn on_event(&self, event: Event) {
        if let Event::Completion(cq) = event {
            self.wake(|watch| watch.cqs.contains(&cq));
        }
    }

    /// Frames have come.
    pub fn on_frames(&self) {
        let changed = |(memory, at, seen): &(Memory, u64, u64)| memory.load_word(*at) != Ok(*seen);
        self.wake(|watch| watch.words.iter().any(changed));
    }

    pub fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn wake(&self, wanted: impl Fn(&Watch) -> bool) {
        for watch in self.lock().watches.values().filter(|watch| wanted(watch)) {
            watch.waker.wake_by_ref();
        }
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Ends the timer's thread.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn run_timer(&self) {
        let mut table = self.lock();
        while !table.closed {
            let now = clock_ns();
            let mut next = None;
            for watch in table.watches.values_mut() {
                match watch.deadline_ns {
                    Some(at) if at <= now => {
                        watch.deadline_ns = None;
                        watch.waker.wake_by_ref();
                    }
                    Some(at) => next = Some(next.map_or(at, |next: u64| next.min(at))),
                    None => {}
                }
            }
            table = match next {
                Some(at) => {
                    let time = Duration::from_nanos(at - now);
                    self.changed.wait_timeout(table, time).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(table).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
