//! One NIC, several threads: the lock around [`Core`], and who makes its rounds.
//!
//! Either the program does, inside [`Rma::block_on`](crate::Rma::block_on), or the NIC's thread. A caller says with a lease, a time that it moves on with
//! every round, that it is there; the thread looks again when the lease has run out, so that neither has to tell the other when calls
//! come and go quickly. Whoever submits a transfer from elsewhere sends it at once, under the lock, and rings the thread's bell only if the thread
//! sleeps longer than the transfer can wait.

use crate::core::{Aftermath, Core};
use crate::engine::clock;
use crate::error::Error;
use crate::spin::Spin;
use crate::sys::Bell;
use adverb_io::sys::WaitSet;
use adverb_wire::{Duration, Instant};
use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration as StdDuration;

/// How long a caller's last round keeps the NIC's thread away.
const LEASE: Duration = Duration::from_us(200);
/// Scheduling slice that the NIC's thread asks for, so that its wake-up preempts a program that computes.
const SLICE: StdDuration = StdDuration::from_micros(100);

/// See the top of this file.
pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Threads that want the lock; a thread that makes rounds lets them go first.
    wanting: AtomicU32,
    /// Until when a caller makes the rounds, in picoseconds.
    lease: AtomicU64,
    /// Until when the NIC's thread sleeps, in picoseconds; 0 while it is awake. Written under the lock.
    sleeps_until: AtomicU64,
    bell: Bell,
    spin: Duration,
}

thread_local! {
    /// The NIC (by address) whose rounds this thread makes in `block_on`.
    static DRIVING: Cell<usize> = const { Cell::new(0) };
}

impl Shared {
    pub fn new(core: Core, spin: StdDuration) -> std::io::Result<Shared> {
        Ok(Shared {
            core: Mutex::new(core),
            wanting: AtomicU32::new(0),
            lease: AtomicU64::new(0),
            sleeps_until: AtomicU64::new(0),
            bell: Bell::new()?,
            spin: Duration::from_ns(u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX / 1000).min(1 << 50)),
        })
    }

    /// The core, even after a panic of a thread that had it: its tables change in whole steps, and a waker that panics does so outside.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
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
        core.send(clock(), &mut aftermath);
        let sleeps_until = self.sleeps_until.load(Ordering::Relaxed);
        let due = core.next_deadline();
        drop(core);
        if due.is_some_and(|due| due.as_ps() < sleeps_until) {
            self.bell.ring();
        }
        aftermath.conclude();
    }

    /// One round, for callers. True if there was anything to do.
    fn round(&self, aftermath: &mut Aftermath) -> bool {
        let mut core = self.lock();
        let moved = core.round(aftermath);
        self.lease.store((core.last_round() + LEASE).as_ps(), Ordering::Relaxed);
        drop(core);
        aftermath.conclude();
        moved
    }

    /// Runs a future to its end on this thread, which makes the NIC's rounds meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let signal = Arc::new(Signal { woken: AtomicBool::new(true), thread: std::thread::current() });
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        let mut aftermath = Aftermath::default();
        let _driving = Driving::start(self);
        let mut spin = Spin::new(self.spin);
        loop {
            if signal.woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return output;
            }
            if self.round(&mut aftermath) || signal.woken.load(Ordering::Relaxed) {
                spin.busy();
                continue;
            }
            if spin.idle(clock()) {
                std::hint::spin_loop();
                continue;
            }
            // The NIC's thread waits better than this one can: for the network, and for whoever wakes the future.
            self.lease.store(0, Ordering::Relaxed);
            self.bell.ring();
            while !signal.woken.load(Ordering::Acquire) {
                std::thread::park();
            }
            self.lease.store((clock() + LEASE).as_ps(), Ordering::Relaxed);
            spin.busy();
        }
    }

    /// What the NIC's thread does until the NIC is closed.
    pub fn serve(&self) {
        adverb_io::sys::prefer_short_waits(SLICE);
        let mut aftermath = Aftermath::default();
        let mut waits = WaitSet::default();
        let mut spin = Spin::new(self.spin);
        loop {
            let lease = Instant::from_ps(self.lease.load(Ordering::Relaxed));
            let now = clock();
            if lease > now {
                waits.clear();
                waits.add(self.bell.fd(), false);
                waits.wait(Some(std_duration(lease.since(now))));
                self.bell.quieten();
                if self.lock().is_closed() {
                    return;
                }
                continue;
            }
            while self.wanting.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let mut core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
            if core.is_closed() {
                return;
            }
            if core.round(&mut aftermath) {
                drop(core);
                aftermath.conclude();
                spin.busy();
                continue;
            }
            if spin.idle(now) {
                drop(core);
                aftermath.conclude();
                std::hint::spin_loop();
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
            waits.wait(due.map(|due| std_duration(due.since(clock()))));
            self.sleeps_until.store(0, Ordering::Relaxed);
            self.bell.quieten();
            let mut core = self.lock();
            if !core.side.after_sleep() {
                // The daemon is gone, and will not come back for this connection.
                core.close(&mut aftermath);
                drop(core);
                aftermath.conclude();
                return;
            }
            spin.busy();
        }
    }

    /// Ends everything; the thread returns.
    pub fn close(&self) {
        let mut aftermath = Aftermath::default();
        self.lock().close(&mut aftermath);
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
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that makes rounds itself sees the flag.
        if !self.woken.swap(true, Ordering::Release) && std::thread::current().id() != self.thread.id() {
            self.thread.unpark();
        }
    }
}

/// While it lives, this thread makes the rounds of a NIC.
struct Driving {
    before: usize,
}

impl Driving {
    fn start(shared: &Shared) -> Driving {
        shared.lease.store((clock() + LEASE).as_ps(), Ordering::Relaxed);
        Driving { before: DRIVING.replace(std::ptr::from_ref(shared).addr()) }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVING.set(self.before);
    }
}
