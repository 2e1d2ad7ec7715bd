//! Asking the processor for memory that a coming call will read. A hint without effect on results.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Starts to bring the first cache line of `item` closer.
#[inline(always)]
pub fn prefetch<T: ?Sized>(item: &T) {
    line(core::ptr::from_ref(item).cast());
}

/// Starts to bring all of `item` closer.
#[inline(always)]
pub fn prefetch_whole<T>(item: &T) {
    let first = core::ptr::from_ref(item).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        line(first.wrapping_add(offset));
    }
}

/// Starts to bring the cache line at an address closer, whatever is there.
#[inline(always)]
pub(super) fn line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see, and faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_changes_nothing() {
        let words = [[1u64; 20], [2; 20], [3; 20]];
        words.iter().for_each(prefetch);
        words.iter().for_each(prefetch_whole);
        prefetch(&words[3..]);
        assert_eq!(words, [[1; 20], [2; 20], [3; 20]]);
    }
}
