//! One NIC, several threads: the lock around [`Core`], and who makes its rounds.
//!
//! Either the program does, inside [`Rma::block_on`](crate::Rma::block_on), or the NIC's thread. A caller
//! says with a lease, a time that it moves on with every round, that it is there; the thread looks again when
//! the lease has run out, so that neither has to tell the other when calls come and go quickly. A caller with
//! nothing to do sleeps on the network itself. Whoever submits a transfer from elsewhere sends it at once,
//! under the lock, and rings the thread's bell only if the thread sleeps longer than the transfer can wait.

use crate::core::{Aftermath, Core};
use crate::error::Error;
use adverb_os::clock;
use adverb_os::spin::{Next, Spin};
use adverb_os::sys::{WaitSet, prefer_short_waits};
use adverb_os::wake::EventFd;
use adverb_wire::{Duration, Instant};
use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration as StdDuration;

/// How long a caller's last round keeps the NIC's thread away.
const LEASE: Duration = Duration::from_us(200);
/// How long a caller may be inside one round: hundreds of messages are opened in one.
const ROUND: Duration = Duration::from_ms(5);
/// Longest sleep of the NIC's thread while callers make the rounds, which it works up to from [`LEASE`].
const LOOK: Duration = Duration::from_ms(1);
/// Longest sleep of a caller, after which it looks what other threads have submitted meanwhile.
const NAP: Duration = Duration::from_ms(10);
/// Scheduling slice that the NIC's thread asks for, so that its wake-up preempts a program that computes.
const SLICE: StdDuration = StdDuration::from_micros(100);

/// What the NIC's thread and callers share: the core under its lock, and who makes the rounds.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Threads that want the lock; a thread that makes rounds lets them go first.
    wanting: AtomicU32,
    /// Until when a caller makes the rounds, in picoseconds.
    lease: AtomicU64,
    /// Until when the NIC's thread sleeps, in picoseconds; 0 while it is awake. Written under the lock.
    sleeps_until: AtomicU64,
    bell: EventFd,
    spin: Duration,
    /// What the core says, for who does not need the lock otherwise.
    closed: AtomicBool,
    /// Drivers of programs that have waited for words of memory, at least as many as still live.
    waits: AtomicUsize,
    /// The NIC's thread has returned: the NIC was closed, or its daemon is gone.
    ended: (Mutex<bool>, Condvar),
}

thread_local! {
    /// The NIC (by address) whose rounds this thread makes in `block_on`.
    static DRIVING: Cell<usize> = const { Cell::new(0) };
}

/// A number that no other thread has at the same time, and that costs no count of references.
fn here() -> usize {
    DRIVING.with(|cell| std::ptr::from_ref(cell).addr())
}

impl Shared {
    pub fn new(core: Core, spin: StdDuration) -> std::io::Result<Shared> {
        Ok(Shared {
            core: Mutex::new(core),
            wanting: AtomicU32::new(0),
            lease: AtomicU64::new(0),
            sleeps_until: AtomicU64::new(0),
            bell: EventFd::new()?,
            closed: AtomicBool::new(false),
            waits: AtomicUsize::new(0),
            ended: (Mutex::new(false), Condvar::new()),
            spin: Duration::from_ns(u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX / 1000).min(1 << 50)),
        })
    }

    /// What time it is. Rounds are told: this crate asks the clock here, where threads sleep and wake, and in
    /// the daemon's loop.
    #[expect(clippy::disallowed_methods, reason = "the edge")]
    pub fn now(&self) -> Instant {
        clock::now()
    }

    /// The core, even after a panic of a thread that had it: its tables change in whole steps, and a waker
    /// that panics does so outside.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        match self.core.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let guard = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The same, for calls that make no sense on a closed NIC.
    pub fn open(&self) -> Result<MutexGuard<'_, Core>, Error> {
        let core = self.lock();
        if core.is_closed() { Err(Error::Closed) } else { Ok(core) }
    }

    /// Whether this thread makes the NIC's rounds now.
    pub fn is_driven_here(&self) -> bool {
        DRIVING.get() == std::ptr::from_ref(self).addr()
    }

    /// After something was submitted: has it sent by whoever does that best, and gives the lock back.
    pub fn submitted(&self, mut core: MutexGuard<'_, Core>) {
        if self.is_driven_here() {
            // This thread makes a round soon, and more may be submitted until then.
            return;
        }
        let mut aftermath = Aftermath::default();
        core.send(self.now(), &mut aftermath);
        let sleeps_until = self.sleeps_until.load(Ordering::Relaxed);
        let due = core.next_deadline();
        drop(core);
        if due.is_some_and(|due| due.as_ps() < sleeps_until) {
            self.bell.ring();
        }
        aftermath.conclude();
    }

    /// So many drivers of programs are told of words now.
    pub fn note_waits(&self, count: usize) {
        self.waits.store(count, Ordering::Relaxed);
        // Who waits looks at the word after this; who stores asks after the store who waits.
        fence(Ordering::SeqCst);
    }

    /// A word of memory may have been written by a program, which has told so many drivers already.
    pub fn stored(&self, told: usize) {
        fence(Ordering::SeqCst);
        if self.waits.load(Ordering::Relaxed) <= told {
            return;
        }
        let mut aftermath = Aftermath::default();
        let mut core = self.lock();
        core.tell_waits(&mut aftermath);
        self.note_waits(core.waits());
        drop(core);
        aftermath.conclude();
    }

    /// One round, for callers. Whether there was anything to do, and when it was.
    fn round(&self, aftermath: &mut Aftermath) -> (bool, Instant) {
        let mut core = self.lock();
        self.lease.store((core.last_round() + ROUND).as_ps(), Ordering::Relaxed);
        let moved = core.round(|| self.now(), aftermath);
        let now = core.last_round();
        self.lease.store((now + LEASE).as_ps(), Ordering::Relaxed);
        drop(core);
        aftermath.conclude();
        (moved, now)
    }

    /// Runs a future to its end on this thread, which makes the NIC's rounds meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let signal = Arc::new(Signal::new());
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        let mut aftermath = Aftermath::default();
        let mut waits = WaitSet::default();
        let mut driving = Driving::start(self);
        let mut spin = Spin::new(self.spin);
        loop {
            if signal.woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return output;
            }
            let (moved, now) = self.round(&mut aftermath);
            if moved || signal.woken.load(Ordering::Relaxed) {
                spin.busy();
                continue;
            }
            if spin.idle(now).looks() {
                continue;
            }
            driving.slept = true;
            self.wait(&signal, &mut waits, &mut aftermath);
            spin.busy();
        }
    }

    /// Sleeps in a caller's place until something comes, a deadline, or the future is woken.
    fn wait(&self, signal: &Signal, waits: &mut WaitSet, aftermath: &mut Aftermath) {
        let Some(bell) = signal.bell() else {
            // No descriptor is left to wait on; the NIC's thread has its own.
            self.lease.store(0, Ordering::Relaxed);
            self.bell.ring();
            return std::thread::park();
        };
        let mut core = self.lock();
        // A NIC that is closed has nothing to say, and its descriptors would say that for ever.
        let open = !core.is_closed();
        if signal.woken.load(Ordering::Relaxed) || (open && !core.side.prepare_sleep()) {
            return;
        }
        let now = self.now();
        let due = core.next_deadline().map_or(now + NAP, |due| due.min(now + NAP));
        let fds = if open { core.side.fds() } else { [None; 2] };
        self.lease.store((due + LEASE).as_ps(), Ordering::Relaxed);
        drop(core);
        waits.clear();
        waits.add(bell.fd(), false);
        fds.into_iter().flatten().for_each(|(fd, or_writable)| waits.add(fd, or_writable));
        waits.wait(Some(std_duration(due.since(now))));
        bell.quieten();
        self.wake_up(aftermath);
        self.lease.store((self.now() + LEASE).as_ps(), Ordering::Relaxed);
    }

    /// After a sleep. False when the NIC is gone: the daemon's, which will not come back for this connection.
    fn wake_up(&self, aftermath: &mut Aftermath) -> bool {
        let now = self.now();
        let mut core = self.lock();
        let there = core.is_closed() || core.side.after_sleep(now);
        if !there {
            core.close(now, aftermath);
        }
        drop(core);
        aftermath.conclude();
        there
    }

    /// What the NIC's thread does until the NIC is closed.
    pub fn serve(&self) {
        prefer_short_waits(SLICE);
        let mut aftermath = Aftermath::default();
        let mut waits = WaitSet::default();
        let mut spin = Spin::new(self.spin);
        let mut nap = LEASE;
        loop {
            let lease = Instant::from_ps(self.lease.load(Ordering::Relaxed));
            let now = self.now();
            if lease > now {
                waits.clear();
                waits.add(self.bell.fd(), false);
                waits.wait(Some(std_duration(lease.since(now).min(nap))));
                self.bell.quieten();
                nap = LOOK.min(nap + nap);
                if self.closed.load(Ordering::Acquire) {
                    return;
                }
                continue;
            }
            nap = LEASE;
            while self.wanting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
            if core.is_closed() {
                return;
            }
            if core.round(|| self.now(), &mut aftermath) {
                drop(core);
                aftermath.conclude();
                spin.busy();
                continue;
            }
            let next = spin.idle(now);
            if next != Next::Sleep {
                drop(core);
                aftermath.conclude();
                next.looks();
                continue;
            }
            let due = core.next_deadline();
            if !core.side.prepare_sleep() {
                continue;
            }
            let fds = core.side.fds();
            self.sleeps_until.store(due.unwrap_or(Instant::NEVER).as_ps(), Ordering::Relaxed);
            drop(core);
            aftermath.conclude();
            waits.clear();
            waits.add(self.bell.fd(), false);
            fds.into_iter().flatten().for_each(|(fd, or_writable)| waits.add(fd, or_writable));
            waits.wait(due.map(|due| std_duration(due.since(self.now()))));
            self.sleeps_until.store(0, Ordering::Relaxed);
            self.bell.quieten();
            if !self.wake_up(&mut aftermath) {
                return;
            }
            spin.busy();
        }
    }

    /// The NIC's thread has returned.
    pub fn tell_end(&self) {
        let (ended, changed) = &self.ended;
        *ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Waits until it has, for so long at most. True when it has.
    pub fn ended_within(&self, time: Option<StdDuration>) -> bool {
        let (ended, changed) = &self.ended;
        let guard = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = |ended: &mut bool| !*ended;
        match time {
            None => *changed.wait_while(guard, lives).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                *changed.wait_timeout_while(guard, time, lives).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Ends everything; the thread returns.
    pub fn close(&self) {
        let mut aftermath = Aftermath::default();
        self.lock().close(self.now(), &mut aftermath);
        self.closed.store(true, Ordering::Release);
        aftermath.conclude();
        self.bell.ring();
    }
}

fn std_duration(time: Duration) -> StdDuration {
    StdDuration::from_nanos(time.as_ns())
}

/// Wakes the thread of a `block_on`.
struct Signal {
    woken: AtomicBool,
    thread: Thread,
    /// [`here`] of that thread.
    here: usize,
    /// Made when the thread first sleeps. `None` in it where there is none to be had.
    bell: OnceLock<Option<EventFd>>,
}

impl Signal {
    fn new() -> Signal {
        Signal {
            woken: AtomicBool::new(true),
            thread: std::thread::current(),
            here: here(),
            bell: OnceLock::new(),
        }
    }

    fn bell(&self) -> Option<&EventFd> {
        let bell = self.bell.get_or_init(|| EventFd::new().ok());
        // Whoever wakes looks for the bell after it has said so; this thread looks whether somebody has after
        // it has made the bell.
        fence(Ordering::SeqCst);
        bell.as_ref()
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that makes rounds itself sees the flag.
        if self.woken.swap(true, Ordering::SeqCst) || here() == self.here {
            return;
        }
        fence(Ordering::SeqCst);
        match self.bell.get() {
            Some(Some(bell)) => bell.ring(),
            Some(None) => self.thread.unpark(),
            None => {}
        }
    }
}

/// While it lives, this thread makes the rounds of a NIC.
struct Driving<'a> {
    shared: &'a Shared,
    before: usize,
    slept: bool,
}

impl Driving<'_> {
    fn start(shared: &Shared) -> Driving<'_> {
        shared.lease.store((shared.now() + LEASE).as_ps(), Ordering::Relaxed);
        Driving { shared, before: DRIVING.replace(std::ptr::from_ref(shared).addr()), slept: false }
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        DRIVING.set(self.before);
        if self.slept {
            // The lease may have been a long one, for which the NIC's thread sleeps.
            self.shared.lease.store(0, Ordering::Relaxed);
            self.shared.bell.ring();
        }
    }
}
