//! What happens to an open NIC when its process forks, and when it ends.
//!
//! The lock is held across a fork, so that the child's copy is whole. In the child the NIC is dead: its
//! objects can still be named and destroyed, but nothing is sent, received or removed. The child may open
//! one of its own, to which those objects are unknown.
#![allow(unsafe_code)]

use crate::core::Core;
use crate::host::Shared;
use adverb_os::lock::Guard;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

/// Forks since the first process.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Sockets that a child closes: they would take frames that belong to its parent.
static SOCKETS: [AtomicI32; 64] = [const { AtomicI32::new(-1) }; 64];
/// NICs of this process, and of its ancestors.
static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static HANDLERS: Once = Once::new();

struct Entry {
    forks: u32,
    folder: PathBuf,
    shared: Option<&'static Shared>,
}

thread_local! {
    /// Locks that this thread holds while it forks.
    static HELD: RefCell<Vec<(&'static Shared, Guard<'static, Core>)>> = const { RefCell::new(Vec::new()) };
}

/// Which process of a line of forks this is.
pub fn epoch() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

fn entries() -> MutexGuard<'static, Vec<Entry>> {
    OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reserves a folder for this process. False if it has it already: a second use of its table would give up
/// the locks of the first.
pub fn reserve(folder: &Path) -> bool {
    let mut open = entries();
    if open.iter().any(|e| e.forks == epoch() && e.folder == folder) {
        return false;
    }
    open.push(Entry { forks: epoch(), folder: folder.to_owned(), shared: None });
    true
}

/// Ends a reservation.
pub fn release(folder: &Path) {
    entries().retain(|e| e.forks != epoch() || e.folder != folder);
}

/// Registers an open NIC for forks and for the end of the process.
pub fn register(folder: &Path, shared: &'static Shared) {
    HANDLERS.call_once(|| {
        // SAFETY: the handlers are functions of this program, which take no arguments and unwind nowhere.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
            libc::atexit(at_exit);
        }
    });
    for entry in entries().iter_mut() {
        if entry.forks == epoch() && entry.folder == folder {
            entry.shared = Some(shared);
        }
    }
}

/// Notes a socket that children close.
pub fn note_socket(fd: i32) {
    let _ = SOCKETS.iter().any(|s| s.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok());
}

/// Forgets a socket that is about to be closed.
pub fn forget_socket(fd: i32) {
    for socket in &SOCKETS {
        let _ = socket.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn own_nics() -> Vec<&'static Shared> {
    // A fork in another thread's reservation finds the list locked; it lasts microseconds.
    entries().iter().filter(|e| e.forks == epoch()).filter_map(|e| e.shared).collect()
}

extern "C" fn before_fork() {
    // By the mutex: no other thread may hold that when the child is copied.
    let guards = own_nics().into_iter().map(|shared| (shared, shared.core.visit())).collect();
    HELD.with(|held| *held.borrow_mut() = guards);
}

extern "C" fn in_parent() {
    HELD.with(|held| held.borrow_mut().clear());
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for socket in &SOCKETS {
        let fd = socket.swap(-1, Ordering::Relaxed);
        if fd >= 0 {
            // SAFETY: the descriptor is this process's copy of a socket that nothing here uses any more:
            // the port that owns it is forgotten, not dropped, just below.
            unsafe { libc::close(fd) };
        }
    }
    HELD.with(|held| {
        for (shared, core) in held.borrow_mut().iter_mut() {
            shared.core.forbid_bias();
            // Dropping it would close descriptors a second time and remove the parent's files.
            std::mem::forget(core.port.take());
            // The file is the parent's; only the mapping goes.
            core.board = None;
        }
        held.borrow_mut().clear();
    });
}

extern "C" fn at_exit() {
    for shared in own_nics() {
        shared.close();
    }
}
