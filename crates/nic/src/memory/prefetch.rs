//! Asking the processor for memory that is about to be used. A hint without effect on results.

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Starts to bring the first cache line of `item` closer.
#[inline(always)]
pub fn prefetch<T: ?Sized>(item: &T) {
    prefetch_line(core::ptr::from_ref(item).cast());
}

/// Starts to bring all of `item` closer.
#[inline(always)]
pub fn prefetch_whole<T>(item: &T) {
    let first = core::ptr::from_ref(item).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        prefetch_line(first.wrapping_add(offset));
    }
}

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

/// Memory that will be read soon, asked for a few lines at a time while something else is done.
#[derive(Clone, Copy, Debug)]
pub struct Ahead {
    /// An address, not a pointer: nothing is done with it that needs the memory to be there.
    at: usize,
    lines: usize,
}

impl Ahead {
    /// Nothing is known.
    pub const NOTHING: Ahead = Ahead { at: 0, lines: 0 };
    /// Lines of a step: as many as may be on their way to a first-level cache at a time (Intel's since 2021).
    /// With more, what is done meanwhile would wait for them.
    const STEP: usize = 16;

    /// So many bytes from a line's beginning on.
    #[inline]
    pub fn new(first: *const u8, len: usize) -> Ahead {
        Ahead { at: first.addr(), lines: len.div_ceil(LINE) }
    }

    /// Asks for the next lines.
    #[inline]
    pub fn step(&mut self) {
        let lines = self.lines.min(Self::STEP);
        for line in 0..lines {
            prefetch_line(core::ptr::without_provenance(self.at.wrapping_add(line * LINE)));
        }
        self.at = self.at.wrapping_add(lines * LINE);
        self.lines -= lines;
    }
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
        prefetch_line_for_write(words.as_ptr().cast());
        assert_eq!(words, [[1; 20], [2; 20], [3; 20]]);
    }

    #[test]
    fn what_lies_ahead_is_asked_for_in_steps() {
        let bytes = [7u8; 40 * LINE];
        let mut ahead = Ahead::new(bytes.as_ptr(), bytes.len() - 1);
        let start = ahead.at;
        let mut steps = Vec::new();
        while ahead.lines > 0 {
            ahead.step();
            steps.push((ahead.at - start) / LINE);
        }
        assert_eq!(steps, [16, 32, 40]);
        ahead.step();
        assert_eq!((ahead.at - start, ahead.lines), (40 * LINE, 0), "nothing is asked for behind it");
        let mut nothing = Ahead::NOTHING;
        nothing.step();
        assert_eq!(nothing.at, 0);
    }
}
