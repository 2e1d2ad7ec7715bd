//! Copies over memory that others change meanwhile.
//!
//! Rust's ordinary copies may not race with other accesses. These may: on x86-64 they are assembly,
//! whose accesses the compiler neither repeats nor invents; elsewhere, under Miri, and where a sanitizer
//! of the compiler is to see them (`--cfg adverb_portable_copy`), relaxed
//! atomics. What a copy returns while its source changes is some mix of old and new bytes.
//!
//! A source that is a slice of our own may be read-only to Rust, which an atomic load is not allowed
//! to see; so [`Source`] says which it is. The assembly treats both alike.

use core::sync::atomic::{Ordering, fence};

/// Whose bytes are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Registered memory, which threads of this program write.
    Shared,
    /// A slice, or memory that at most another process writes.
    Arrived,
}

#[cfg(any(miri, adverb_portable_copy, not(target_arch = "x86_64")))]
use portable as arch;
#[cfg(all(not(any(miri, adverb_portable_copy)), target_arch = "x86_64"))]
use x86_64 as arch;

pub(super) use arch::{copy, copy_word, zero};
#[cfg(all(test, not(any(miri, adverb_portable_copy)), target_arch = "x86_64"))]
pub(super) use arch::{steps, string};

/// Copies such that whoever sees a change in the last bytes (8, 4, 2 or 1 of them) sees all others.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes.
#[inline]
pub(super) unsafe fn copy_last_word_last(dst: *mut u8, src: *const u8, len: usize, source: Source) {
    if len == 0 {
        return;
    }
    let tail = match len {
        8.. => 8,
        4.. => 4,
        2.. => 2,
        _ => 1,
    };
    let bulk = len - tail;
    if bulk > 0 {
        // SAFETY: the first part of the caller's ranges.
        unsafe { copy(dst, src, bulk, source) };
        // On x86-64 this costs nothing: stores become visible in order, and a string copy's before
        // any later store.
        fence(Ordering::Release);
    }
    // SAFETY: the last part of the caller's ranges.
    unsafe { copy_word(dst.wrapping_add(bulk), src.wrapping_add(bulk), tail, source) };
}

#[cfg(all(not(any(miri, adverb_portable_copy)), target_arch = "x86_64"))]
pub(super) mod x86_64 {
    use super::Source;
    use core::arch::asm;

    /// From this length on, the string instruction is faster than 64-byte steps where the processor has FSRM
    /// (`bench/NOTEBOOK.md`, "a copy's two ways").
    pub const STRING_MIN: usize = 1536;

    /// One load and one store of `$reg` size.
    macro_rules! move_one {
        ($dst:expr, $src:expr, $class:ident, $fmt:literal) => {
            asm!(
                concat!("mov {t", $fmt, "}, [{s}]"),
                concat!("mov [{d}], {t", $fmt, "}"),
                s = in(reg) $src, d = in(reg) $dst, t = out($class) _,
                options(nostack, preserves_flags),
            )
        };
    }

    /// The first and the last `$reg`, which together cover the range; both loads before the stores.
    macro_rules! move_ends {
        ($dst:expr, $src:expr, $len:expr, $size:literal, $fmt:literal) => {
            asm!(
                concat!("mov {a", $fmt, "}, [{s}]"),
                concat!("mov {b", $fmt, "}, [{s} + {n} - ", $size, "]"),
                concat!("mov [{d}], {a", $fmt, "}"),
                concat!("mov [{d} + {n} - ", $size, "], {b", $fmt, "}"),
                s = in(reg) $src, d = in(reg) $dst, n = in(reg) $len,
                a = out(reg) _, b = out(reg) _,
                options(nostack, preserves_flags),
            )
        };
    }

    /// Copies 1, 2, 4 or 8 bytes with one store.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes.
    #[inline]
    pub unsafe fn copy_word(dst: *mut u8, src: *const u8, len: usize, _: Source) {
        // SAFETY: the caller's ranges.
        unsafe {
            match len {
                8 => move_one!(dst, src, reg, ":r"),
                4 => move_one!(dst, src, reg, ":e"),
                2 => move_one!(dst, src, reg, ":x"),
                _ => move_one!(dst, src, reg_byte, ""),
            }
        }
    }

    /// Copies.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes.
    #[inline]
    pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, _: Source) {
        // SAFETY: every branch stays inside the caller's ranges: a pair of ends overlaps in the
        // middle when `len` is below twice their size, and never reaches outside when it is at least
        // their size. The direction flag is clear on entry to `asm!`.
        unsafe {
            match len {
                0 => {}
                1 => move_one!(dst, src, reg_byte, ""),
                2..4 => move_ends!(dst, src, len, "2", ":x"),
                4..8 => move_ends!(dst, src, len, "4", ":e"),
                8..=16 => move_ends!(dst, src, len, "8", ":r"),
                17..=32 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + {n} - 16], {b}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                    a = out(xmm_reg) _, b = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                ),
                33..=64 => asm!(
                    "movups {a}, [{s}]",
                    "movups {b}, [{s} + 16]",
                    "movups {e}, [{s} + {n} - 32]",
                    "movups {f}, [{s} + {n} - 16]",
                    "movups [{d}], {a}",
                    "movups [{d} + 16], {b}",
                    "movups [{d} + {n} - 32], {e}",
                    "movups [{d} + {n} - 16], {f}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len,
                    a = out(xmm_reg) _, b = out(xmm_reg) _, e = out(xmm_reg) _, f = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                ),
                65..STRING_MIN => steps(dst, src, len),
                _ => string(dst, src, len),
            }
        }
    }

    /// Copies 64 bytes at a time, and the last 64 again.
    ///
    /// # Safety
    /// As [`copy`]; `len` must be above 64.
    #[inline]
    pub unsafe fn steps(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: full steps are taken while more than 64 bytes are left, the last one ends exactly
        // at the end; `len` is at least 64.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{s}]",
                "movups {b}, [{s} + 16]",
                "movups {e}, [{s} + 32]",
                "movups {f}, [{s} + 48]",
                "movups [{d}], {a}",
                "movups [{d} + 16], {b}",
                "movups [{d} + 32], {e}",
                "movups [{d} + 48], {f}",
                "add {s}, 64",
                "add {d}, 64",
                "sub {n}, 64",
                "cmp {n}, 64",
                "ja 2b",
                "movups {a}, [{s} + {n} - 64]",
                "movups {b}, [{s} + {n} - 48]",
                "movups {e}, [{s} + {n} - 32]",
                "movups {f}, [{s} + {n} - 16]",
                "movups [{d} + {n} - 64], {a}",
                "movups [{d} + {n} - 48], {b}",
                "movups [{d} + {n} - 32], {e}",
                "movups [{d} + {n} - 16], {f}",
                s = inout(reg) src => _, d = inout(reg) dst => _, n = inout(reg) len => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, e = out(xmm_reg) _, f = out(xmm_reg) _,
                options(nostack),
            )
        }
    }

    /// Copies with the string instruction.
    ///
    /// # Safety
    /// As [`copy`].
    #[inline]
    pub unsafe fn string(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's ranges; the direction flag is clear on entry to `asm!`.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _, inout("rsi") src => _, inout("rdi") dst => _,
                options(nostack, preserves_flags),
            )
        }
    }

    /// Writes zeros.
    ///
    /// # Safety
    /// `dst` must be writable for `len` bytes.
    #[inline]
    pub unsafe fn zero(dst: *mut u8, len: usize) {
        // SAFETY: as for `string`.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") len => _, inout("rdi") dst => _, in("al") 0u8,
                options(nostack, preserves_flags),
            )
        }
    }
}

/// Relaxed atomics: bytes, and aligned words where both sides allow them.
#[cfg(any(miri, adverb_portable_copy, test, not(target_arch = "x86_64")))]
#[cfg_attr(
    all(not(any(miri, adverb_portable_copy)), target_arch = "x86_64"),
    allow(dead_code, reason = "only its tests run here")
)]
pub(super) mod portable {
    use super::Source;
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// # Safety
    /// `src` must be readable for one byte.
    #[inline]
    unsafe fn load_byte(src: *const u8, source: Source) -> u8 {
        match source {
            // SAFETY: the caller's byte, which is always aligned. An atomic load does not write.
            Source::Shared => unsafe { AtomicU8::from_ptr(src.cast_mut()) }.load(Ordering::Relaxed),
            // SAFETY: the caller's byte.
            Source::Arrived => unsafe { src.read_volatile() },
        }
    }

    /// # Safety
    /// `src` must be readable for one word, and aligned to 8.
    #[inline]
    unsafe fn load_word(src: *const u64, source: Source) -> u64 {
        match source {
            // SAFETY: the caller's word. An atomic load does not write.
            Source::Shared => unsafe { AtomicU64::from_ptr(src.cast_mut()) }.load(Ordering::Relaxed),
            // SAFETY: the caller's word.
            Source::Arrived => unsafe { src.read_volatile() },
        }
    }

    /// Whether words can be copied as words. Miri calls a race of accesses of different sizes an
    /// error, hence only bytes there.
    #[inline]
    fn aligned_alike(dst: *mut u8, src: *const u8) -> bool {
        !cfg!(miri) && (dst.addr() ^ src.addr()).is_multiple_of(8)
    }

    /// Copies 1, 2, 4 or 8 bytes, such that who sees the last byte sees the others.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes.
    #[inline]
    pub unsafe fn copy_word(dst: *mut u8, src: *const u8, len: usize, source: Source) {
        if len == 8 && aligned_alike(dst, src) && dst.addr().is_multiple_of(8) {
            // SAFETY: the caller's ranges; one store.
            return unsafe { copy(dst, src, len, source) };
        }
        for i in 0..len {
            // SAFETY: inside the caller's ranges.
            unsafe {
                let value = load_byte(src.wrapping_add(i), source);
                AtomicU8::from_ptr(dst.wrapping_add(i)).store(value, Ordering::Release);
            }
        }
    }

    /// Copies.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `len` bytes.
    pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize, source: Source) {
        // SAFETY: `i` stays below `len`.
        let byte = |i| unsafe {
            let value = load_byte(src.wrapping_add(i), source);
            AtomicU8::from_ptr(dst.wrapping_add(i)).store(value, Ordering::Relaxed);
        };
        let mut i = 0;
        if aligned_alike(dst, src) {
            let head = (dst.addr().wrapping_neg() % 8).min(len);
            (0..head).for_each(byte);
            i = head;
            while len - i >= 8 {
                // SAFETY: inside the caller's ranges, and both aligned now.
                unsafe {
                    let value = load_word(src.wrapping_add(i).cast(), source);
                    AtomicU64::from_ptr(dst.wrapping_add(i).cast()).store(value, Ordering::Relaxed);
                }
                i += 8;
            }
        }
        (i..len).for_each(byte);
    }

    /// Writes zeros.
    ///
    /// # Safety
    /// `dst` must be writable for `len` bytes.
    pub unsafe fn zero(dst: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: inside the caller's range.
            unsafe { AtomicU8::from_ptr(dst.wrapping_add(i)) }.store(0, Ordering::Relaxed);
        }
    }
}
