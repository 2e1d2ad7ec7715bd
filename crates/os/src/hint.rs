//! Prefetches: a hint asks the processor for a cache line that is about to be used, and changes no result.
#![allow(unsafe_code)]

/// Starts to bring the cache line at an address closer, whatever is there.
#[inline(always)]
pub fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see, and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The same for a line that is to be written: other processors give it up.
#[inline(always)]
pub fn prefetch_line_for_write(at: *const u8) {
    // The intrinsic makes this instruction only where the build demands a processor that has it. Those that
    // have not take it for no operation.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_changes_nothing_and_faults_nowhere() {
        let line = [1u64; 8];
        for at in [line.as_ptr().cast(), std::ptr::null(), std::ptr::without_provenance(usize::MAX)] {
            prefetch_line(at);
            prefetch_line_for_write(at);
        }
        assert_eq!(line, [1; 8]);
    }
}
