//! Memory of sockets that the NIC reads and writes.

use crate::abi::{ibv_mr, ibv_pd};
use crate::handle::errno;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};
use adverb_nic::memory::Span;
use core::ffi::c_int;
use core::ptr::null_mut;

/// Pages that are registered with the NIC.
pub(super) struct Memory {
    addr: u64,
    len: usize,
    mr: *mut ibv_mr,
}

impl Memory {
    /// Zeroed pages.
    ///
    /// # Safety
    /// The domain is alive, and outlives them.
    pub(super) unsafe fn new(pd: *mut ibv_pd, len: usize, access: u32) -> Result<Memory, c_int> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, which touches no other; it stays until the region has gone.
        unsafe {
            let pages = libc::mmap(null_mut(), len, rights, flags, -1, 0);
            if pages == libc::MAP_FAILED {
                return Err(errno());
            }
            let mr = ibv_reg_mr(pd, pages, len, access as c_int);
            if mr.is_null() {
                let cause = errno();
                libc::munmap(pages, len);
                return Err(cause);
            }
            Ok(Memory { addr: pages.expose_provenance() as u64, len, mr })
        }
    }

    pub(super) fn span(&self, at: usize, len: usize) -> Span {
        // SAFETY: mapped until this is dropped, of which no reference is ever made.
        unsafe { Span::new(self.addr, self.len) }.slice(at, len)
    }

    pub(super) fn addr(&self, at: usize) -> u64 {
        self.addr + at as u64
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: a public field of the live region.
        unsafe { (*self.mr).lkey }
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queue pairs that use it have gone.
        unsafe {
            ibv_dereg_mr(self.mr);
            libc::munmap(core::ptr::with_exposed_provenance_mut(self.addr as usize), self.len);
        }
    }
}
