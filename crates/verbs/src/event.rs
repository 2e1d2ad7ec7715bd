//! Queues of events behind a file descriptor: completion channels and a context's asynchronous events.
//!
//! The descriptor is an eventfd in semaphore mode that counts the queued events, so that it polls
//! readable exactly while there are some, and a blocking or non-blocking read (the program decides,
//! with `O_NONBLOCK`) is the wait. The events themselves stay in memory.

use crate::handle::{errno, set_errno};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most events that wait in one queue: more than a NIC keeps (`limits::MAX_PENDING_EVENTS`).
const PENDING_MAX: usize = 1 << 17;

/// A lock that a panic elsewhere does not poison for us: the queues are consistent at every unlock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Events and the descriptor that counts them.
pub(crate) struct EventQueue<T> {
    fd: c_int,
    /// Of which process of a line of forks it is. A child has the same descriptor, whose tokens are its
    /// parent's.
    forks: u32,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty queue; `Err` is errno.
    pub(crate) fn new() -> Result<Self, c_int> {
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno());
        }
        Ok(EventQueue { fd, forks: adverb_io::forks(), events: Mutex::new(VecDeque::new()) })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// Whether it is this process's, not one that it was forked from's.
    pub(crate) fn is_own(&self) -> bool {
        self.forks == adverb_io::forks()
    }

    /// Adds an event. Beyond the bound it is dropped, and in a child of the queue's process.
    pub(crate) fn push(&self, event: T) {
        if !self.is_own() {
            return;
        }
        let mut events = lock(&self.events);
        if events.len() >= PENDING_MAX {
            return;
        }
        events.push_back(event);
        let one = 1u64;
        let saved = errno();
        // SAFETY: writes 8 bytes from a local. The count stays far below the eventfd's maximum, so
        // that the write never blocks.
        unsafe { libc::write(self.fd, (&raw const one).cast::<c_void>(), 8) };
        set_errno(saved);
    }

    /// Waits for the next event (or not, if the descriptor is non-blocking) and hands it to `taken`
    /// before any `remove` can run. `Err` is errno: EAGAIN, EINTR; ENODEV in a child of the queue's process.
    pub(crate) fn pop<R>(&self, taken: impl Fn(T) -> R) -> Result<R, c_int> {
        if !self.is_own() {
            return Err(libc::ENODEV);
        }
        loop {
            let mut count = 0u64;
            // SAFETY: reads 8 bytes into a local.
            let n = unsafe { libc::read(self.fd, (&raw mut count).cast::<c_void>(), 8) };
            if n < 0 {
                return Err(errno());
            }
            let mut events = lock(&self.events);
            if let Some(event) = events.pop_front() {
                return Ok(taken(event));
            }
            // `remove` took the event whose token this was: wait again.
        }
    }

    /// Removes the events that `unwanted` names, and their tokens; gives them back in their order.
    pub(crate) fn remove(&self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = lock(&self.events);
        let (removed, kept): (Vec<T>, Vec<T>) = events.drain(..).partition(&unwanted);
        events.extend(kept);
        for _ in removed.iter().filter(|_| self.is_own()) {
            let mut count = 0u64;
            let buffer = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
            // Whoever reads concurrently may have taken the token already; then it finds no event
            // and waits again, so a token that cannot be had without blocking is not missed.
            // Asked of the kernel, because musl has `preadv2` from 1.2.5 on only. The position's two halves
            // are -1: the descriptor has none.
            let (at, flags) = (-1 as libc::c_long, libc::RWF_NOWAIT);
            // SAFETY: reads 8 bytes into a local.
            unsafe { libc::syscall(libc::SYS_preadv2, self.fd, &raw const buffer, 1, at, at, flags) };
        }
        removed
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this queue's own.
        unsafe { libc::close(self.fd) };
    }
}

/// Events of one object that programs have taken and must acknowledge.
#[derive(Default)]
pub(crate) struct Delivered(AtomicU32);

impl Delivered {
    /// Counts one more.
    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// How many so far; wraps, as the counter of acknowledgements does.
    pub(crate) fn total(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// The part of a C object that counts acknowledged events: its mutex, condition and counter.
pub(crate) struct AckCount {
    pub(crate) mutex: *mut libc::pthread_mutex_t,
    pub(crate) cond: *mut libc::pthread_cond_t,
    pub(crate) completed: *mut u32,
}

impl AckCount {
    /// Counts `n` more acknowledged events.
    ///
    /// # Safety
    /// The three pointers are those of one live object.
    pub(crate) unsafe fn acknowledge(&self, n: u32) {
        // SAFETY: by the caller's promise; the counter is guarded by the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(n);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until `delivered` events have been acknowledged, as destroying an object must.
    ///
    /// # Safety
    /// The three pointers are those of one live object.
    pub(crate) unsafe fn wait(&self, delivered: u32) {
        // SAFETY: by the caller's promise; the counter is guarded by the mutex.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            // Volatile only says that others write it; the mutex orders the accesses.
            while self.completed.read_volatile() != delivered {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(fd: c_int) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, no wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let queue = EventQueue::new().expect("eventfd");
        assert!(!readable(queue.fd()));
        queue.push(1);
        queue.push(2);
        queue.push(3);
        assert_eq!(queue.pop(|e| e), Ok(1));
        queue.remove(|e| *e == 2);
        assert!(readable(queue.fd()));
        assert_eq!(queue.pop(|e| e), Ok(3));
        assert!(!readable(queue.fd()));
    }

    #[test]
    fn a_nonblocking_descriptor_says_eagain() {
        let queue = EventQueue::<u32>::new().expect("eventfd");
        // SAFETY: sets a flag of our own descriptor.
        unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.pop(|e| e), Err(libc::EAGAIN));
    }

    #[test]
    fn a_blocked_reader_gets_the_event_of_another_thread() {
        let queue = EventQueue::new().expect("eventfd");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.pop(|e| e));
            queue.push(7);
            assert_eq!(reader.join().expect("no panic"), Ok(7));
        });
    }

    #[test]
    fn waiting_for_acknowledgements_ends_when_all_have_come() {
        let (mut mutex, mut cond, mut completed) = (crate::handle::MUTEX, crate::handle::COND, 0u32);
        let ack = AckCount { mutex: &mut mutex, cond: &mut cond, completed: &mut completed };
        // SAFETY: the three locals outlive the calls.
        unsafe {
            ack.acknowledge(2);
            ack.acknowledge(1);
            ack.wait(3);
        }
        assert_eq!(completed, 3);
    }
}
