//! Who waits for what, as other threads see it: a NIC's thread, when completions or frames have come; the
//! exchange's threads; a timer's.
//!
//! The program's own thread decides whether a wait is over, by looking. Others only wake it, and rather
//! once too often than not at all. Wakers are called when the table is free again: they may do anything.
//! Drivers of one program share one table, so that a word of memory that two NICs reach is looked at
//! whichever of them has written it, or the program's own processor.
//!
//! Calls that are answered at once are counted until the program waits: one that only looks is told so.

use adverb_nic::{CqId, Event};
use adverb_os::say;
use adverb_os::signals::library_thread;
use adverb_rdma::seam::Ticket;
use adverb_rdma::{Answer, CALLS_UNWAITED, Error, without_progress};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// The clock by which waits are woken.
#[expect(clippy::disallowed_methods, reason = "waits of a driver")]
pub fn clock_ns() -> u64 {
    adverb_os::clock::monotonic_ns()
}

/// Whether a word is not what was seen there any more.
pub type Changed = Box<dyn Fn() -> bool + Send>;

/// One wait.
pub struct Watch {
    /// The program's task.
    pub waker: Waker,
    /// Completion queues.
    pub cqs: Vec<CqId>,
    /// Words of memory.
    pub words: Vec<Changed>,
    /// When to wake it, in ns of [`clock_ns`], if somebody else than its own executor must.
    pub deadline_ns: Option<u64>,
}

#[derive(Default)]
struct Table {
    watches: BTreeMap<Ticket, Watch>,
    /// The timer's thread runs.
    timer: bool,
    closed: bool,
}

/// What the timer's thread shares with the rest.
#[derive(Default)]
struct Timed {
    table: Mutex<Table>,
    /// A deadline was added, or it is over.
    changed: Condvar,
}

/// The waits of a process's programs. The timer's thread ends when it is dropped.
#[derive(Default)]
pub struct Waits {
    timed: Arc<Timed>,
    stop: AtomicBool,
    last_ticket: AtomicU64,
    /// Calls since the program last waited for anything.
    unwaited: AtomicU64,
}

/// Asks a program to end, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<Waits>);

impl Stopper {
    /// Of the program that waits there.
    pub fn new(waits: Arc<Waits>) -> Stopper {
        Stopper(waits)
    }

    /// From now on [`adverb_rdma::On::Stop`] holds.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake_all();
    }
}

impl Timed {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut due = Vec::new();
        let mut table = self.lock();
        while !table.closed {
            let now = clock_ns();
            let mut next = None;
            for watch in table.watches.values_mut() {
                match watch.deadline_ns {
                    Some(at) if at <= now => {
                        watch.deadline_ns = None;
                        due.push(watch.waker.clone());
                    }
                    Some(at) => next = Some(next.map_or(at, |next: u64| next.min(at))),
                    None => {}
                }
            }
            if !due.is_empty() {
                drop(table);
                due.drain(..).for_each(Waker::wake);
                table = self.lock();
                continue;
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

impl Waits {
    /// A number for a call that waits: no other has it.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.last_ticket.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds a wait, or replaces it.
    pub fn set(&self, ticket: Ticket, watch: Watch) -> std::io::Result<()> {
        let timed = watch.deadline_ns.is_some();
        let mut table = self.timed.lock();
        let replaced = table.watches.insert(ticket, watch);
        if timed && !table.timer {
            let own = self.timed.clone();
            library_thread("adverb-timer", move || own.run())?;
            table.timer = true;
        }
        drop(table);
        // Words keep memory, whose end may need a NIC that is about to look at this table.
        drop(replaced);
        if timed {
            self.timed.changed.notify_all();
        }
        Ok(())
    }

    /// Nobody waits for it any more.
    pub fn remove(&self, ticket: Ticket) {
        let removed = self.timed.lock().watches.remove(&ticket);
        drop(removed);
    }

    /// What a NIC says while it is locked.
    pub fn on_event(&self, event: Event) {
        if let Event::Completion(cq) = event {
            self.wake(|watch| watch.cqs.contains(&cq));
        }
    }

    /// Words of memory may have been written: frames have come, or the program has stored.
    pub fn on_words(&self) {
        self.wake(Watch::has_changed);
    }

    /// The same for who wakes later.
    pub fn collect_changed(&self, wakers: &mut Vec<Waker>) {
        self.collect(Watch::has_changed, wakers);
    }

    /// Something else has changed.
    pub fn wake_all(&self) {
        self.wake(|_| true);
    }

    fn collect(&self, wanted: impl Fn(&Watch) -> bool, wakers: &mut Vec<Waker>) {
        let table = self.timed.lock();
        wakers.extend(table.watches.values().filter(|watch| wanted(watch)).map(|watch| watch.waker.clone()));
    }

    fn wake(&self, wanted: impl Fn(&Watch) -> bool) {
        let mut wakers = Vec::new();
        self.collect(wanted, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The program waits, or would have waited but for luck; or it has stored something.
    pub fn on_wait(&self) {
        self.unwaited.store(0, Ordering::Relaxed);
    }

    /// A call was answered without a wait. What brings something that others have done is as good as one, and
    /// so is what others can see.
    pub fn on_answer(&self, answer: &Result<Answer, Error>) {
        if self.counts_to_the_limit(answer) {
            say!(
                "adverb: {}; `until` waits without using the processor, and only a program that waits can be \
                 simulated",
                without_progress("the program", CALLS_UNWAITED, "in a row")
            );
        }
    }

    /// True of the one call that reaches the limit.
    fn counts_to_the_limit(&self, answer: &Result<Answer, Error>) -> bool {
        let moves = match answer {
            Ok(Answer::Completions(completions)) => !completions.is_empty(),
            Ok(Answer::Asked(asked)) => asked.is_some(),
            Ok(Answer::Posted(posted, _)) => *posted > 0,
            _ => false,
        };
        if moves {
            self.on_wait();
            return false;
        }
        // Calls are the program's thread's; several drivers of one program count together.
        self.unwaited.fetch_add(1, Ordering::Relaxed) + 1 == CALLS_UNWAITED
    }

    /// Whether the program was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl Watch {
    fn has_changed(&self) -> bool {
        self.words.iter().any(|changed| changed())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut table = self.timed.lock();
        table.closed = true;
        let watches = std::mem::take(&mut table.watches);
        drop(table);
        drop(watches);
        self.timed.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_rdma::seam::LineId;

    #[test]
    fn calls_count_until_the_program_waits_or_finds_what_others_did() {
        let waits = Waits::default();
        let calls = |n: u64, answer: &dyn Fn() -> Answer| {
            (0..n).filter(|_| waits.counts_to_the_limit(&Ok(answer()))).count()
        };
        let none = || Answer::Completions(Vec::new());
        assert_eq!(calls(CALLS_UNWAITED - 1, &none), 0);
        assert_eq!(calls(2 * CALLS_UNWAITED, &|| Answer::Word(7)), 1, "it is said once");
        waits.on_wait();
        assert_eq!(calls(CALLS_UNWAITED - 1, &|| Answer::Asked(None)), 0);
        assert_eq!(calls(1, &|| Answer::Asked(Some((LineId(1), Vec::new())))), 0);
        assert_eq!(calls(CALLS_UNWAITED - 1, &|| Answer::Posted(0, None)), 0);
        assert_eq!(calls(1, &|| Answer::Posted(1, None)), 0, "who posts does not only look");
        assert_eq!(calls(CALLS_UNWAITED - 1, &|| Answer::Done), 0);
        assert_eq!(calls(1, &|| Answer::Done), 1);
        // A mistake that is made again and again is no progress either.
        waits.on_wait();
        let wrong = |_: &u64| waits.counts_to_the_limit(&Err(Error::NoSuchObject("memory")));
        assert_eq!((0..CALLS_UNWAITED).filter(wrong).count(), 1);
    }
}
