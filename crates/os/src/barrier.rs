//! A full memory barrier in every thread of this process at once (`membarrier(2)`, private expedited).
//!
//! The kernel wants to be asked first. It answers a process of one thread at once; one of several waits until
//! every processor has been through the scheduler, which takes seconds on a busy host. Whoever opens a device
//! must not wait for that, so a thread asks in its stead, and until the kernel has answered there are no such
//! barriers.
#![allow(unsafe_code)]

use crate::say;
use crate::signals::library_thread;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// `enum membarrier_cmd` of the kernel.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// Process that has asked, and process that was answered. A forked child asks for itself.
static ASKED_BY: AtomicU32 = AtomicU32::new(0);
static GRANTED_TO: AtomicU32 = AtomicU32::new(0);

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: takes plain values; what it does to other threads no program can notice but by their order of
    // memory.
    match unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the kernel once for each process, and returns without having waited for other processors.
pub fn ask() {
    let process = std::process::id();
    if ASKED_BY.swap(process, Ordering::Relaxed) == process {
        return;
    }
    if is_alone() {
        return register(process);
    }
    let asking = library_thread("adverb-barrier", move || register(process));
    // Where there can be no thread, there are no barriers.
    drop(asking);
}

/// Whether this process may call [`in_all_threads`].
pub fn is_granted() -> bool {
    GRANTED_TO.load(Ordering::Acquire) == std::process::id()
}

fn register(process: u32) {
    if membarrier(REGISTER_PRIVATE_EXPEDITED).is_ok() && membarrier(PRIVATE_EXPEDITED).is_ok() {
        GRANTED_TO.store(process, Ordering::Release);
    }
}

/// Whether this process has one thread, as far as can be seen.
fn is_alone() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.take(2).count() == 1)
}

/// A full memory barrier in every thread of this process that runs, before this returns. It was granted.
pub fn in_all_threads() {
    while let Err(error) = membarrier(PRIVATE_EXPEDITED) {
        // The kernel may lack memory for a moment. Otherwise a filter of system calls was put in place
        // meanwhile, and there is no safe way to go on.
        if error.raw_os_error() != Some(libc::ENOMEM) {
            say!(
                "adverb: membarrier(2) failed: {error}; let system call filters allow it, or set them before \
                 the device is opened"
            );
            std::process::abort();
        }
    }
}
