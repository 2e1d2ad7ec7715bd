//! Memory that several processes map: a plain region of atomics, and a mirror, whose bytes appear twice in
//! a row so that an entry which wraps around its end is still contiguous.
//!
//! Nothing here forms a reference to bytes that another process may change, other than to atomics.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes that the kernel maps at a time.
pub const PAGE: usize = 4096;

/// A shared mapping of the beginning of a file.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, and is reached only through atomics and raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

fn map(
    at: *mut u8,
    len: usize,
    fixed: bool,
    file: Option<(BorrowedFd<'_>, usize)>,
) -> io::Result<NonNull<u8>> {
    let (protection, flags) = match file {
        Some(_) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE),
    };
    let flags = if fixed { flags | libc::MAP_FIXED } else { flags };
    let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
    // SAFETY: with MAP_FIXED, callers pass a range inside a reservation of their own; without it, the
    // kernel chooses a free range.
    let base = unsafe { libc::mmap(at.cast(), len, protection, flags, fd, offset as libc::off_t) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl Region {
    /// Maps `len` bytes, which the file must have.
    pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Region> {
        Ok(Region { base: map(std::ptr::null_mut(), len, false, Some((file, 0)))?, len })
    }

    /// The 32-bit word at a byte offset.
    ///
    /// # Panics
    /// When the offset is out of the region or not aligned: callers compute it from constants.
    #[inline]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: inside the mapping, aligned (mappings start at pages), and atomics are all that is
        // ever formed over it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 64-bit word at a byte offset.
    ///
    /// # Panics
    /// As [`u32_at`](Self::u32_at).
    #[inline]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and belongs to this value alone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A page of control words, then `len` bytes of data that are mapped twice in a row.
#[derive(Debug)]
pub struct Mirror {
    control: Region,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: as for `Region`.
unsafe impl Send for Mirror {}

impl Mirror {
    /// Bytes of the file behind a mirror with `len` bytes of data.
    pub const fn file_len(len: usize) -> u64 {
        (PAGE + len) as u64
    }

    /// Maps a file of [`file_len`](Self::file_len) bytes. `len` is a multiple of [`PAGE`].
    pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Mirror> {
        assert!(len > 0 && len.is_multiple_of(PAGE));
        let control = Region::map(file, PAGE)?;
        let data = map(std::ptr::null_mut(), 2 * len, false, None)?;
        let mirror = Mirror { control, data, len };
        // SAFETY: both halves lie inside the reservation just made.
        let second = unsafe { data.as_ptr().add(len) };
        map(data.as_ptr(), len, true, Some((file, PAGE)))?;
        map(second, len, true, Some((file, PAGE)))?;
        Ok(mirror)
    }

    /// The control page.
    #[inline]
    pub fn control(&self) -> &Region {
        &self.control
    }

    /// Bytes of data; a power of two is up to the caller.
    #[inline]
    pub fn data_len(&self) -> usize {
        self.len
    }

    /// Start of the data; `2 * len` bytes are mapped from here, the second half repeating the first.
    #[inline]
    pub fn data(&self) -> *mut u8 {
        self.data.as_ptr()
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the reservation and what was mapped over it belong to this value alone.
        unsafe { libc::munmap(self.data.as_ptr().cast(), 2 * self.len) };
    }
}

/// A nameless file of `len` bytes in memory.
pub fn anonymous_file(len: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the descriptor returned is ours.
    let file = unsafe {
        let fd = libc::memfd_create(c"adverb-ring".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    crate::sys::allocate(std::os::fd::AsFd::as_fd(&file), len)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn the_second_half_repeats_the_first() {
        let file = anonymous_file(Mirror::file_len(2 * PAGE)).unwrap();
        let a = Mirror::map(file.as_fd(), 2 * PAGE).unwrap();
        let b = Mirror::map(file.as_fd(), 2 * PAGE).unwrap();
        // SAFETY: all offsets are below 2 * len.
        unsafe {
            a.data().add(2 * PAGE - 1).write(7);
            a.data().add(2 * PAGE).write(8);
            assert_eq!((b.data().add(4 * PAGE - 1).read(), b.data().read()), (7, 8));
        }
        a.control().u32_at(64).store(9, Ordering::Relaxed);
        assert_eq!(b.control().u32_at(64).load(Ordering::Relaxed), 9);
        a.control().u64_at(8).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(b.control().u32_at(12).load(Ordering::Relaxed), u32::MAX);
    }

    #[test]
    #[should_panic]
    fn words_outside_the_region_are_refused() {
        let file = anonymous_file(PAGE as u64).unwrap();
        let region = Region::map(file.as_fd(), PAGE).unwrap();
        region.u32_at(PAGE);
    }
}
