//! Whether memory that a program wants to register is there, with the rights it wants: what pinning
//! finds out on hardware. Without this, a bad pointer given to a registration would end the process at
//! the first access, in a thread that has nothing to do with the mistake.

use crate::handle::errno;
use core::ffi::c_int;
use std::sync::OnceLock;

/// Ranges up to this size are paged in as they are checked, so that no page fault meets the data path.
/// Larger ones are only looked up, because registering must not cost the memory that a program
/// reserved and may never touch.
const POPULATE_MAX: u64 = 64 << 20;

/// Checks that `[addr, addr + len)` is mapped and readable, and writable if asked, and pages in what is
/// small unless it is to be paged on demand. `Err` is EFAULT.
pub(crate) fn check(addr: u64, len: u64, write: bool, on_demand: bool) -> Result<(), c_int> {
    if len == 0 {
        return Ok(());
    }
    let end = addr.checked_add(len).ok_or(libc::EFAULT)?;
    if len <= POPULATE_MAX && !on_demand && populate_works() {
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        let page = page_size();
        let start = addr & !(page - 1);
        let end = end.checked_add(page - 1).ok_or(libc::EFAULT)? & !(page - 1);
        return if populate(start, end - start, advice) { Ok(()) } else { Err(libc::EFAULT) };
    }
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => covered(&maps, addr, end, write),
        // Without procfs there is nothing to look into; trust the caller.
        Err(_) => Ok(()),
    }
}

fn page_size() -> u64 {
    // SAFETY: a query without pointers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

fn populate(start: u64, len: u64, advice: c_int) -> bool {
    loop {
        // SAFETY: populating changes no content, and reports what is not mapped instead of faulting.
        let result = unsafe { libc::madvise(start as *mut _, len as usize, advice) };
        if result == 0 {
            return true;
        }
        if !matches!(errno(), libc::EINTR | libc::EAGAIN) {
            return false;
        }
    }
}

/// Whether the kernel knows the advice (Linux 5.14): tried on a page of our own.
fn populate_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let local = 0u8;
        let page = page_size();
        let start = (&raw const local) as u64 & !(page - 1);
        populate(start, page, libc::MADV_POPULATE_READ)
    })
}

/// Whether the lines of a `maps` file cover a range with the rights wanted.
fn covered(maps: &str, addr: u64, end: u64, write: bool) -> Result<(), c_int> {
    let mut reached = addr;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((low, high)) = range.split_once('-') else { continue };
        let (Ok(low), Ok(high)) = (u64::from_str_radix(low, 16), u64::from_str_radix(high, 16)) else {
            continue;
        };
        if high <= reached {
            continue;
        }
        if low > reached || !rights.starts_with('r') || (write && rights.as_bytes().get(1) != Some(&b'w')) {
            return Err(libc::EFAULT);
        }
        reached = high;
        if reached >= end {
            return Ok(());
        }
    }
    Err(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 00000000 00:00 0 [x]\n\
                        8000-9000 rw-p 00000000 00:00 0\n";

    #[test]
    fn ranges_against_a_map() {
        for (addr, end, write, expected) in [
            (0x1000, 0x3000, true, true),
            (0x1800, 0x4000, false, true),
            (0x1800, 0x4000, true, false),
            (0x3fff, 0x4001, false, false),
            (0x5000, 0x6000, false, false),
            (0x8000, 0x9000, true, true),
            (0x8000, 0x9001, true, false),
        ] {
            assert_eq!(covered(MAPS, addr, end, write).is_ok(), expected, "{addr:#x} {end:#x} {write}");
        }
    }

    #[test]
    fn own_memory_is_there_and_page_zero_is_not() {
        let buffer = vec![0u8; 10_000];
        assert_eq!(check(buffer.as_ptr() as u64, 10_000, true, false), Ok(()));
        assert_eq!(check(16, 4, false, false), Err(libc::EFAULT));
        assert_eq!(check(u64::MAX - 8, 64, false, false), Err(libc::EFAULT));
        static CONSTANT: [u8; 64] = [1; 64];
        assert_eq!(check(CONSTANT.as_ptr() as u64, 64, false, false), Ok(()));
        assert_eq!(check(CONSTANT.as_ptr() as u64, 64, true, false), Err(libc::EFAULT));
    }
}
