//! How a thread that waits for several descriptors is told that another one has taken in what it waits for:
//! an event descriptor of its own, which it waits for too.

use crate::handle::errno;
use core::ffi::c_int;
use std::cell::RefCell;

/// A thread's descriptor, of a process of a line of forks: a child must not take its parent's tokens.
struct Bell {
    fd: c_int,
    forks: u32,
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this thread's own.
        unsafe { libc::close(self.fd) };
    }
}

thread_local! {
    static OWN: RefCell<Option<Bell>> = const { RefCell::new(None) };
}

/// The calling thread's bell; `Err` is errno.
pub(super) fn own() -> Result<c_int, c_int> {
    let forks = adverb_io::forks();
    OWN.with_borrow_mut(|own| {
        if let Some(bell) = own.as_ref().filter(|bell| bell.forks == forks) {
            return Ok(bell.fd);
        }
        // SAFETY: plain system call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno());
        }
        *own = Some(Bell { fd, forks });
        Ok(fd)
    })
}

/// Wakes the thread whose bell it is.
pub(super) fn ring(fd: c_int) {
    let one = 1u64;
    // A full count is a bell that rings already.
    // SAFETY: writes 8 bytes from a local.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Takes the bell's token, if it has rung.
pub(super) fn silence(fd: c_int) {
    let mut count = 0u64;
    // SAFETY: reads 8 bytes into a local; the descriptor does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}
