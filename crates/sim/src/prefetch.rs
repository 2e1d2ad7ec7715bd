//! Asking the processor for memory that a coming event will read. A hint without effect on results.

/// Starts to bring the cache line of `item` closer.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see and faults on no address; this one
        // is a reference's, so it is mapped at that.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(item).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_hint_changes_nothing() {
        let words = [1u64, 2, 3];
        words.iter().for_each(super::prefetch);
        assert_eq!(words, [1, 2, 3]);
    }
}
