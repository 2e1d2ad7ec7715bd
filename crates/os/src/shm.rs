//! Memory that several processes share: files without a name, sealed where the other side is not trusted, and
//! a mirror, whose bytes appear twice in a row so that an entry which wraps around its end is still
//! contiguous.
//!
//! Nothing here forms a reference to bytes that another process may change, other than to atomics.
#![allow(unsafe_code)]

use crate::check;
use crate::mapping::Mapping;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes that the kernel maps at a time.
pub const PAGE: usize = 4096;

/// Maps `len` bytes of a file from `offset` on, or reserves as many addresses where there is none.
fn map_at(at: Option<*mut u8>, len: usize, file: Option<(BorrowedFd<'_>, usize)>) -> io::Result<NonNull<u8>> {
    let (protection, flags) = match file {
        Some(_) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE),
    };
    let flags = if at.is_some() { flags | libc::MAP_FIXED } else { flags };
    let at = at.unwrap_or(std::ptr::null_mut());
    let (fd, offset) = file.map_or((-1, 0), |(fd, offset)| (fd.as_raw_fd(), offset));
    // SAFETY: with an address, callers pass a range inside a reservation of their own; without one, the
    // kernel chooses a free range.
    let base = unsafe { libc::mmap(at.cast(), len, protection, flags, fd, offset as libc::off_t) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A page of control words, then `len` bytes of data that are mapped twice in a row.
#[derive(Debug)]
pub struct Mirror {
    control: Mapping,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, and is reached only raw and by atomics.
unsafe impl Send for Mirror {}

impl Mirror {
    /// Bytes of the file behind a mirror with `len` bytes of data.
    pub const fn file_len(len: usize) -> u64 {
        (PAGE + len) as u64
    }

    /// Maps a file of [`file_len`](Self::file_len) bytes. `len` is a multiple of [`PAGE`].
    pub fn map(file: BorrowedFd<'_>, len: usize) -> io::Result<Mirror> {
        assert!(len > 0 && len.is_multiple_of(PAGE));
        let control = Mapping::of_file(file, PAGE)?;
        let data = map_at(None, 2 * len, None)?;
        let mirror = Mirror { control, data, len };
        // SAFETY: both halves lie inside the reservation just made.
        let second = unsafe { data.as_ptr().add(len) };
        map_at(Some(data.as_ptr()), len, Some((file, PAGE)))?;
        map_at(Some(second), len, Some((file, PAGE)))?;
        Ok(mirror)
    }

    /// The control page.
    #[inline]
    pub fn control(&self) -> &Mapping {
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

/// What a ring does with it.
#[cfg(not(loom))]
impl Mirror {
    /// The word at an index of the data, a multiple of 8 below [`data_len`](Self::data_len).
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        debug_assert!(index.is_multiple_of(8) && index < self.len);
        // SAFETY: inside the mapping and aligned; words are only ever accessed as atomics by either side.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.data.as_ptr().add(index).cast()) }
    }

    /// Copies bytes in from an index on.
    ///
    /// # Safety
    /// They end inside the doubled mapping, and nobody of this process accesses them meanwhile.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, index: usize, bytes: &[u8]) {
        // SAFETY: inside the mapping, as the caller says.
        unsafe {
            self.data.as_ptr().add(index).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// Copies `len` bytes out from an index on.
    ///
    /// # Safety
    /// They are inside the doubled mapping, and nobody of this process writes them meanwhile; `out` is
    /// writable for as many.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, index: usize, out: *mut u8, len: usize) {
        // SAFETY: as the caller says.
        unsafe { out.copy_from_nonoverlapping(self.data.as_ptr().add(index), len) };
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the reservation and what was mapped over it belong to this value alone.
        unsafe { libc::munmap(self.data.as_ptr().cast(), 2 * self.len) };
    }
}

fn nameless(name: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string; the descriptor returned is ours.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags))?)) }
}

/// A nameless file of `len` bytes in memory, for this process alone.
pub fn anonymous_file(len: u64) -> io::Result<OwnedFd> {
    let file = nameless(c"adverb-ring", 0)?;
    crate::sys::allocate(file.as_fd(), len)?;
    Ok(file)
}

/// Seals that keep a file's mappings whole.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Zeroed memory without a name that other processes may map, of a length that nobody can change.
pub fn sealed_memory(len: usize) -> io::Result<OwnedFd> {
    let file = nameless(c"adverb-1rma", libc::MFD_ALLOW_SEALING)?;
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: plain values.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), len) })?;
    // SAFETY: plain values.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(file)
}

/// Whether a file that another process gave is memory that it cannot take away from a mapping: a memfd of
/// ordinary pages, sealed against shrinking, of at least `len` bytes. Accesses to anything else could raise
/// SIGBUS.
pub fn check_sealed(file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    // First: a file system of the other process's own making, which may take its time with an answer, is not
    // asked anything else.
    // SAFETY: plain values.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return refused("memory that is no memfd");
    }
    // SAFETY: all zeroes is a valid `statfs` and a valid `stat`; both calls fill what they are given.
    let (system, status) = unsafe {
        let (mut system, mut status): (libc::statfs, libc::stat) = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &mut system) < 0 || libc::fstat(file.as_raw_fd(), &mut status) < 0
        {
            return Err(io::Error::last_os_error());
        }
        (system, status)
    };
    if system.f_type as libc::c_long != libc::TMPFS_MAGIC as libc::c_long {
        return refused("memory that is no memfd");
    }
    if seals & libc::F_SEAL_SHRINK == 0 {
        return refused("memory that is not sealed against shrinking");
    }
    if u64::try_from(status.st_size).is_ok_and(|size| size >= len) && len > 0 {
        return Ok(());
    }
    refused("memory that is shorter than said")
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn only_memory_that_stays_is_taken() {
        let good = sealed_memory(8192).unwrap();
        assert!(check_sealed(good.as_fd(), 8192).is_ok());
        assert!(check_sealed(good.as_fd(), 8193).is_err());
        assert!(check_sealed(good.as_fd(), 0).is_err());
        // SAFETY: plain values.
        assert!(unsafe { libc::ftruncate(good.as_raw_fd(), 1) } < 0, "it cannot shrink");
        // SAFETY: a C string and plain values.
        let raw =
            unsafe { libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        // SAFETY: the descriptor is ours.
        let loose = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: plain values.
        assert_eq!(unsafe { libc::ftruncate(loose.as_raw_fd(), 8192) }, 0);
        assert!(check_sealed(loose.as_fd(), 4096).unwrap_err().to_string().contains("not sealed"));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(check_sealed(file.as_fd(), 1).unwrap_err().to_string().contains("no memfd"));
    }
}
