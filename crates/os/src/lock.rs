//! The NIC's lock, which leans towards the thread that uses it: that one takes and leaves it with plain
//! stores, where a mutex's locked instructions would each wait until the ring entries just written have left
//! the store buffer.
//!
//! ```text
//! BIASED to a thread  the thread sets its mark, looks whether the bias still stands, and is inside;
//!                     it leaves by clearing the mark
//! NOT BIASED          everyone takes the mutex; a thread that took it STREAK times in a row gets the bias
//! ```
//! Whoever else wants in takes the mutex, ends the bias, and waits until the mark is clear. Between the two
//! it has the kernel run a full barrier on every processor that runs a thread of this process
//! (`membarrier(2)`, private expedited): a mark set before the barrier is seen after it, and a look at the
//! bias after the barrier finds it ended. So one of the two always notices the other, and only the one that
//! comes rarely pays. For the same reason a thread that leaves clears its mark first and then looks at the
//! bias: it finds it ended, and wakes who waits, or its mark is seen clear. Each time the bias is taken from
//! a thread by another of the application's, the next one takes a longer streak. Kernels without `membarrier`
//! get no bias.
#![allow(unsafe_code)]

use crate::sync::{
    AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering, Plant, ask_for_barriers, barriers_are_there,
    heavy_barrier, light_barrier_at, ordering, spin_loop,
};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

/// Looks at a held lock before sleeping for it: some tens of microseconds.
const LOCK_SPINS: u32 = if cfg!(loom) { 0 } else { 1000 };
/// Times in a row that a thread takes the mutex before it gets the bias: so long that what it saves pays for
/// the barrier.
const STREAK: u32 = if cfg!(loom) { 1 } else { 64 };
/// Doublings of the streak, at most.
const BACK_OFF_MAX: u32 = 10;
/// Threads of a process that may ever have a bias. Later ones take the mutex.
const MARKS: usize = if cfg!(loom) { 3 } else { 64 };
/// Bias and mark number of nobody.
const NOBODY: u32 = 0;

/// Mark numbers given out. Each number is one thread's for ever: so nobody but that thread writes its mark.
#[cfg(not(loom))]
static NEXT_MARK: AtomicU32 = AtomicU32::new(NOBODY + 1);
#[cfg(loom)]
loom::lazy_static! {
    static ref NEXT_MARK: AtomicU32 = AtomicU32::new(NOBODY + 1);
}

#[cfg(not(loom))]
thread_local! {
    /// This thread's mark number, once it has one. Its address names the thread.
    static MARK: Cell<u32> = const { Cell::new(NOBODY) };
}
#[cfg(loom)]
loom::thread_local! {
    static MARK: Cell<u32> = Cell::new(NOBODY);
}

/// A thread's sign that it is inside, in a cache line of its own.
#[repr(align(64))]
struct Mark(AtomicBool);

/// A lock as in the module's text.
pub struct BiasedLock<T> {
    /// Number of the mark whose thread needs no mutex. Changed only by who holds the mutex, or in a forked
    /// child.
    bias: AtomicU32,
    /// There may be a bias.
    allowed: AtomicBool,
    marks: [Mark; MARKS],
    mutex: Mutex<Habits>,
    /// Threads of the application that found the mutex held.
    waiting: AtomicU32,
    /// Who ended the bias of a thread that is inside waits here for its mark to be clear.
    gate: Mutex<()>,
    outside: Condvar,
    value: UnsafeCell<T>,
}

/// Who takes the mutex.
#[derive(Debug, Default)]
struct Habits {
    /// Name of the thread that took it last.
    last: usize,
    /// How often in a row.
    streak: u32,
    /// Biases that another of the application's threads ended.
    ended: u32,
}

// SAFETY: the value is reached only through a guard, and there is at most one at a time: see `acquire`.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Access to the value. Stays in its thread, whose mark it may have set.
pub struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    held: Held<'a>,
    thread: PhantomData<*const ()>,
}

enum Held<'a> {
    ByMark(&'a AtomicBool),
    ByMutex(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'a, Habits>),
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the only guard, as for the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the only guard, as for the lock, and borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Releases what was written to who sees the mark cleared. A mutex guard is dropped after this.
        if let Held::ByMark(mark) = self.held {
            self.lock.leave(mark);
        }
    }
}

impl<T> BiasedLock<T> {
    /// An open lock. There is no bias before the kernel has granted the barriers, which it is asked for here.
    pub fn new(value: T) -> BiasedLock<T> {
        ask_for_barriers();
        BiasedLock {
            bias: AtomicU32::new(NOBODY),
            allowed: AtomicBool::new(true),
            marks: std::array::from_fn(|_| Mark(AtomicBool::new(false))),
            mutex: Mutex::new(Habits::default()),
            waiting: AtomicU32::new(0),
            gate: Mutex::new(()),
            outside: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock for a thread of the application.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let number = MARK.with(Cell::get);
        if number != NOBODY
            && self.bias.load(Ordering::Relaxed) == number
            && let Some(Mark(mark)) = self.marks.get(number as usize)
            // A call from inside finds the mark set, and waits for itself below as it would in any mutex.
            && !mark.load(Ordering::Relaxed)
        {
            mark.store(true, Ordering::Relaxed);
            // The processor may yet look before the mark is visible: who ends the bias makes up for that.
            light_barrier_at(Plant::Enter);
            if self.bias.load(Ordering::Acquire) == number {
                return self.guard(Held::ByMark(mark));
            }
            self.leave(mark);
        }
        self.lock_by_mutex()
    }

    /// Clears this thread's mark, and wakes who ended its bias meanwhile. No new bias is given before that
    /// one is inside, so a bias that was ended is nobody's here.
    #[inline]
    fn leave(&self, mark: &AtomicBool) {
        mark.store(false, ordering(Plant::Mark, Ordering::Release));
        light_barrier_at(Plant::Leave);
        if self.bias.load(Ordering::Relaxed) == NOBODY {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // Taken once, so that who saw the mark set is waiting by now.
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.outside.notify_all();
    }

    /// Takes the lock for a thread that comes now and then, and never gets the bias. Whoever waits goes
    /// first, if it comes soon: a visitor that has more to do each time would take the mutex again before the
    /// kernel has woken anyone.
    pub fn visit(&self) -> Guard<'_, T> {
        for _ in 0..LOCK_SPINS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            spin_loop();
        }
        self.acquire(self.lock_mutex(), true)
    }

    /// The same, unless another thread holds the mutex.
    pub fn try_visit(&self) -> Option<Guard<'_, T>> {
        self.try_mutex().map(|habits| self.acquire(habits, true))
    }

    /// Ends the bias for ever. To be called by the only thread of a forked child, which holds the lock: the
    /// kernel was asked for barriers by the parent.
    pub fn forbid_bias(&self) {
        self.allowed.store(false, Ordering::Relaxed);
        self.bias.store(NOBODY, Ordering::Relaxed);
    }

    fn lock_by_mutex(&self) -> Guard<'_, T> {
        let habits = self.try_mutex().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let habits = self.lock_mutex();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            habits
        });
        self.acquire(habits, false)
    }

    /// Locks the mutex, spinning for as long as a round usually takes: on a machine whose processors all
    /// spin, a thread that went to sleep for the lock would wait for the next scheduling tick.
    fn lock_mutex(&self) -> MutexGuard<'_, Habits> {
        for _ in 0..LOCK_SPINS {
            if let Some(habits) = self.try_mutex() {
                return habits;
            }
            spin_loop();
        }
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex if nobody holds it.
    ///
    /// A thread that panicked while it held the lock was in a caller's closure, or hit one of our
    /// assertions; the NIC itself is whole between calls, so a poisoned lock is taken as it is.
    fn try_mutex(&self) -> Option<MutexGuard<'_, Habits>> {
        match self.mutex.try_lock() {
            Ok(habits) => Some(habits),
            Err(TryLockError::Poisoned(habits)) => Some(habits.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Ends another thread's bias, if there is one, and waits until that thread is outside. From then on the
    /// mutex, which is held, keeps everyone out: a bias is given only under it, and a thread that finds none
    /// takes it.
    #[inline]
    fn acquire<'a>(&'a self, mut habits: MutexGuard<'a, Habits>, visit: bool) -> Guard<'a, T> {
        let biased = self.bias.load(Ordering::Relaxed);
        if biased != NOBODY {
            self.end_bias(biased);
            habits.ended = (habits.ended + u32::from(!visit)).min(BACK_OFF_MAX);
            habits.streak = 0;
        }
        if !visit && self.allowed.load(Ordering::Relaxed) {
            let name = MARK.with(|mark| std::ptr::from_ref(mark) as usize);
            habits.streak = if habits.last == name { habits.streak + 1 } else { 0 };
            habits.last = name;
            if habits.streak >= STREAK << habits.ended {
                habits.streak = 0;
                if barriers_are_there() {
                    self.bias.store(own_mark(), Ordering::Relaxed);
                }
            }
        }
        self.guard(Held::ByMutex(habits))
    }

    #[cold]
    fn end_bias(&self, biased: u32) {
        self.bias.store(NOBODY, Ordering::Relaxed);
        heavy_barrier();
        let Some(Mark(mark)) = self.marks.get(biased as usize) else { return };
        for _ in 0..LOCK_SPINS {
            if !mark.load(Ordering::Acquire) {
                return;
            }
            spin_loop();
        }
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while mark.load(Ordering::Acquire) {
            gate = self.outside.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    #[inline]
    fn guard<'a>(&'a self, held: Held<'a>) -> Guard<'a, T> {
        Guard { lock: self, held, thread: PhantomData }
    }
}

/// The number of this thread's mark, [`NOBODY`] if all are taken.
#[cold]
fn own_mark() -> u32 {
    if MARK.with(Cell::get) == NOBODY {
        let free = |next: u32| ((next as usize) < MARKS).then_some(next + 1);
        if let Ok(number) = NEXT_MARK.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            MARK.with(|mark| mark.set(number));
        }
    }
    MARK.with(Cell::get)
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Two words that are equal whenever nobody is inside, and of which a second one inside would see them
    /// differ.
    fn add(guard: &mut Guard<'_, [u64; 2]>) {
        let [a, b] = **guard;
        assert_eq!(a, b, "one at a time");
        guard[0] = std::hint::black_box(a + 1);
        std::hint::black_box(&mut guard[0]);
        guard[1] = b + 1;
    }

    /// A lock whose barriers are there: on a busy host the kernel takes seconds.
    #[expect(clippy::disallowed_methods, reason = "how long the kernel may take")]
    fn lock_with_barriers() -> BiasedLock<[u64; 2]> {
        let lock = BiasedLock::new([0; 2]);
        let limit = crate::clock::monotonic_ns() + 120_000_000_000;
        while !barriers_are_there() {
            assert!(crate::clock::monotonic_ns() < limit, "this test needs membarrier(2)");
            std::thread::yield_now();
        }
        lock
    }

    #[test]
    fn a_thread_alone_gets_the_bias_and_loses_it_to_a_visitor() {
        let lock = lock_with_barriers();
        for _ in 0..=STREAK + 1 {
            add(&mut lock.lock());
        }
        assert_ne!(lock.bias.load(Ordering::Relaxed), NOBODY);
        assert!(matches!(lock.lock().held, Held::ByMark(_)));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(matches!(lock.visit().held, Held::ByMutex(_)))).join().unwrap();
        });
        assert_eq!(lock.bias.load(Ordering::Relaxed), NOBODY);
        assert!(matches!(lock.lock().held, Held::ByMutex(_)));
    }

    /// Has this thread biased the lock, and enters by its mark.
    fn enter_biased(lock: &BiasedLock<[u64; 2]>) -> Guard<'_, [u64; 2]> {
        for _ in 0..=STREAK + 1 {
            drop(lock.lock());
        }
        let guard = lock.lock();
        assert!(matches!(guard.held, Held::ByMark(_)));
        guard
    }

    /// Until a visitor has ended the bias and so is at the mark.
    fn until_visited(lock: &BiasedLock<[u64; 2]>) {
        while lock.bias.load(Ordering::Relaxed) != NOBODY {
            spin_loop();
        }
    }

    #[test]
    fn a_visitor_waits_until_the_biased_thread_is_outside() {
        let lock = lock_with_barriers();
        let inside = Barrier::new(2);
        let left = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = enter_biased(&lock);
                inside.wait();
                until_visited(&lock);
                left.store(true, Ordering::Relaxed);
                drop(guard);
            });
            inside.wait();
            let _guard = lock.visit();
            assert!(left.load(Ordering::Relaxed));
        });
    }

    /// Each time the visitor has stopped spinning and waits when the biased thread leaves.
    #[test]
    fn who_leaves_wakes_a_visitor_that_waits() {
        let lock = lock_with_barriers();
        let (inside, next) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    let guard = enter_biased(&lock);
                    inside.wait();
                    until_visited(&lock);
                    // Far longer than the visitor spins.
                    for _ in 0..200 * LOCK_SPINS {
                        spin_loop();
                    }
                    drop(guard);
                    next.wait();
                }
            });
            for _ in 0..20 {
                inside.wait();
                add(&mut lock.visit());
                next.wait();
            }
        });
        assert_eq!(*lock.visit(), [20; 2]);
    }

    /// Threads that come often, one that visits, and turns that let each of them have the bias.
    #[test]
    fn threads_and_a_visitor_are_inside_one_at_a_time() {
        const ROUNDS: u64 = 300_000;
        let lock = lock_with_barriers();
        let done = AtomicU32::new(0);
        let visits = std::thread::scope(|scope| {
            for thread in 0..3 {
                let (lock, done) = (&lock, &done);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        add(&mut lock.lock());
                        // Long rows without the others, so that the bias goes round.
                        if round % 5000 == thread * 1000 {
                            std::thread::yield_now();
                            // Forget the back-off: what is tested is the handing over.
                            lock.visit();
                            lock.mutex.lock().unwrap().ended = 0;
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            let mut visits = 0;
            while done.load(Ordering::Relaxed) < 3 {
                match visits % 2 {
                    0 => add(&mut lock.visit()),
                    _ => {
                        let Some(mut guard) = lock.try_visit() else { continue };
                        add(&mut guard);
                    }
                }
                visits += 1;
                for _ in 0..200 {
                    spin_loop();
                }
            }
            visits
        });
        assert!(visits > 0);
        assert_eq!(*lock.lock(), [3 * ROUNDS + visits; 2]);
    }

    #[test]
    fn without_barriers_there_is_no_bias() {
        let lock = lock_with_barriers();
        for _ in 0..=STREAK + 1 {
            drop(lock.lock());
        }
        let guard = lock.lock();
        assert!(matches!(guard.held, Held::ByMark(_)));
        lock.forbid_bias();
        drop(guard);
        for _ in 0..=STREAK + 1 {
            assert!(matches!(lock.lock().held, Held::ByMutex(_)));
        }
    }
}
