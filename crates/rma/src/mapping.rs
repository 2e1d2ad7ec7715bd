//! Memory that peers read and write while the program does: anonymous, or of a sealed memfd that
//! two processes share. No reference to its bytes is ever formed; what
//! is read may be torn where somebody writes at the same time, but single aligned words are whole.
#![allow(unsafe_code)]

use adverb_nic::memory::{MrInit, Span, dma};
use adverb_nic::{Access, MrInfo, OneRma, PdId};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Mapping {
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

    /// The first `len` bytes of a file that has them and can never lose them: see [`sys::check_sealed`](crate::sys::check_sealed).
    pub fn of_sealed(file: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        crate::sys::check_sealed(file, len as u64)?;
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free range; the other values are plain.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The NIC names the memory by its number.
        base.expose_provenance();
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn addr(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    /// # Panics
    /// If the range is not inside.
    fn span(&self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len && len <= self.len - offset, "inside the memory");
        // SAFETY: inside the mapping, which lives as long as `self`; callers use the span within their own call.
        unsafe { Span::new(self.addr() + offset as u64, len) }
    }

    /// # Panics
    /// If the bytes are not inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        dma::read_bytes(self.span(offset, out.len()), out);
    }

    /// # Panics
    /// If the bytes are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        dma::write_bytes(self.span(offset, bytes.len()), bytes);
    }

    /// # Panics
    /// If the word is not inside or not aligned.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset <= self.len && self.len - offset >= 8,
            "an aligned word inside"
        );
        // SAFETY: inside the mapping and aligned, as mappings start at pages; atomics are the only references ever formed over it.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Registers all of it. The caller keeps the mapping until it has deregistered it.
    pub fn register(&self, nic: &mut OneRma, pd: PdId) -> Result<MrInfo, adverb_nic::Error> {
        let (addr, len) = (self.addr(), self.len as u64);
        let init = MrInit { pd, addr, len, iova: addr, access: Access::LOCAL_WRITE };
        // SAFETY: who registers keeps the mapping beside the registration (`memory.rs`, `nicd/tenant.rs`), and drops it after the other.
        unsafe { nic.memory().reg_mr(&init) }
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
    use std::sync::atomic::Ordering;

    #[test]
    fn bytes_and_words_are_where_they_were_put() {
        let memory = Mapping::anonymous(100).unwrap();
        let mut out = [9; 5];
        memory.read(95, &mut out);
        assert_eq!(out, [0; 5]);
        memory.write(3, b"12345");
        memory.read(3, &mut out);
        assert_eq!(&out, b"12345");
        memory.word(8).store(7, Ordering::Release);
        assert_eq!(memory.word(8).load(Ordering::Acquire), 7);
        for wrong in [96, 97, usize::MAX] {
            assert!(std::panic::catch_unwind(|| memory.write(wrong, b"12345")).is_err());
        }
        assert!(std::panic::catch_unwind(|| memory.word(4)).is_err());
        assert!(std::panic::catch_unwind(|| memory.word(96)).is_err());
        assert!(Mapping::anonymous(0).is_err());
    }
}
