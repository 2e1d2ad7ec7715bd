//! A mapping of memory that others read and write while the program does: anonymous, or of a file that
//! several processes share. No reference to its bytes is ever formed, other than to atomics.
#![allow(unsafe_code)]

use crate::shm::check_sealed;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A descriptor of one's own for a file that this process has open under a number.
pub fn duplicate(number: i32) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: not -1. A number that is no open descriptor makes the next call fail, which duplicates it;
    // nothing else is done with it.
    unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()
}

/// Mapped memory, unmapped when it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the value, and is reached only raw and by atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of its own, `len` bytes, at least one.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// The first `len` bytes of a file of this user's own, which has them and keeps them.
    pub fn of_file(file: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// The first `len` bytes of a file that somebody else gave: refused unless [`check_sealed`] says that it
    /// can never lose them.
    pub fn of_sealed(file: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        check_sealed(file, len as u64)?;
        Self::of_file(file, len)
    }

    /// The same of the file that this process has open under a number. One that it has not is an error.
    pub fn of_number(number: i32, len: usize) -> io::Result<Mapping> {
        Self::of_sealed(duplicate(number)?.as_fd(), len)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free range; the other values are plain.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A NIC names the memory by its number.
        base.expose_provenance();
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes, which the kernel maps for nobody.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte. Its provenance is exposed.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// The 32-bit word at a byte offset.
    ///
    /// # Panics
    /// When the offset is out of the mapping or not aligned.
    #[inline]
    pub fn u32_at(&self, offset: usize) -> &AtomicU32 {
        self.assert_word(offset, 4);
        // SAFETY: inside the mapping, aligned (mappings start at pages), and atomics are all that is ever
        // formed over it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// The 64-bit word at a byte offset.
    ///
    /// # Panics
    /// When the offset is out of the mapping or not aligned.
    #[inline]
    pub fn u64_at(&self, offset: usize) -> &AtomicU64 {
        self.assert_word(offset, 8);
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// All of its whole 64-bit words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words from its aligned base on, which live as long as the borrow,
        // and atomics are all that is ever formed over it.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    #[inline]
    fn assert_word(&self, offset: usize, size: usize) {
        let inside = offset <= self.len && self.len - offset >= size;
        assert!(offset.is_multiple_of(size) && inside, "an aligned word inside the mapping");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and belongs to this value alone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{PAGE, anonymous_file, sealed_memory};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_where_they_were_put_and_nowhere_else() {
        let memory = Mapping::anonymous(100).unwrap();
        memory.u64_at(8).store(u64::MAX - 6, Ordering::Release);
        assert_eq!(memory.u64_at(8).load(Ordering::Acquire), u64::MAX - 6);
        assert_eq!(memory.u32_at(12).load(Ordering::Relaxed), u32::MAX);
        assert_eq!(memory.u64_at(0).load(Ordering::Relaxed), 0);
        for wrong in [4, 96, 97, usize::MAX - 7] {
            assert!(std::panic::catch_unwind(|| memory.u64_at(wrong)).is_err(), "{wrong}");
        }
        for wrong in [2, 100, usize::MAX - 3] {
            assert!(std::panic::catch_unwind(|| memory.u32_at(wrong)).is_err(), "{wrong}");
        }
        let words = memory.words();
        assert_eq!((words.len(), words[1].load(Ordering::Relaxed)), (12, u64::MAX - 6));
        assert!(Mapping::anonymous(0).is_err());
    }

    #[test]
    fn a_strangers_file_has_to_be_sealed() {
        let sealed = sealed_memory(PAGE).unwrap();
        let (a, b) = [(); 2].map(|()| Mapping::of_sealed(sealed.as_fd(), PAGE).unwrap()).into();
        a.u64_at(64).store(9, Ordering::Relaxed);
        assert_eq!(b.u64_at(64).load(Ordering::Relaxed), 9);
        let loose = anonymous_file(PAGE as u64).unwrap();
        assert!(Mapping::of_sealed(loose.as_fd(), PAGE).is_err());
        assert!(Mapping::of_file(loose.as_fd(), PAGE).is_ok());
    }
}
