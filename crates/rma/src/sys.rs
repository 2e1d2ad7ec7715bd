//! System calls that std and `adverb_io::sys` do not offer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    adverb_io::sys::realtime_ns() / 1_000_000_000
}

/// Sixteen bytes from the kernel's random generator, for a key.
pub(crate) fn random_key() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer is valid for its length.
    match unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) } {
        16 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Something to wait for that another thread or process rings: an eventfd.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        // SAFETY: plain values; the descriptor returned is ours.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => Ok(Bell(unsafe { OwnedFd::from_raw_fd(fd) })),
        }
    }

    /// Wakes whoever waits. One that was rung already stays so.
    pub fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes that live here.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Forgets all rings so far.
    pub fn quieten(&self) {
        let mut count = 0u64;
        // SAFETY: room for eight bytes that live here.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Readable while rung.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
