//! Moving bytes in and out of registered memory.
//!
//! Everything written here becomes visible such that the last bytes (the last aligned-size word: 8,
//! 4, 2 or 1) come after all others: applications spin on the last byte of an RDMA WRITE, and
//! although IBTA 9.5 promises order only at completion, they rely on it.

use super::copy::{self, Source};
use super::span::{Payload, Span};
use core::sync::atomic::{AtomicU64, Ordering};

/// Writes `len` bytes of a payload, from `offset` on, to the start of `dst`. Elided bytes change
/// nothing.
///
/// # Panics
/// If `dst` or the payload is shorter than said.
#[inline]
pub fn write(dst: Span, payload: &Payload<'_>, offset: usize, len: usize) {
    assert!(len <= dst.len(), "room for the payload");
    let part = payload.slice(offset, len);
    if part.is_elided() || len == 0 {
        return;
    }
    // SAFETY: both are checked pieces of at least `len` bytes.
    unsafe { copy::copy_last_word_last(dst.ptr(), part.ptr(), len, Source::Arrived) }
}

/// Copies all of `src` to the start of `dst`. If they overlap, the result is some mix of the two.
///
/// # Panics
/// If `dst` is shorter than `src`.
#[inline]
pub fn copy(dst: Span, src: Span) {
    assert!(src.len() <= dst.len(), "room for the source");
    // SAFETY: both are checked pieces of at least `src.len()` bytes.
    unsafe { copy::copy_last_word_last(dst.ptr(), src.ptr(), src.len(), Source::Shared) }
}

/// Writes private bytes to the start of `dst`.
///
/// # Panics
/// If `dst` is shorter than `bytes`.
#[inline]
pub fn write_bytes(dst: Span, bytes: &[u8]) {
    assert!(bytes.len() <= dst.len(), "room for the bytes");
    // SAFETY: `dst` is a checked piece of at least that length.
    unsafe { copy::copy_last_word_last(dst.ptr(), bytes.as_ptr(), bytes.len(), Source::Arrived) }
}

/// Writes words to the start of `dst`, one store each, in order. Bytes that were made as words and are copied
/// otherwise are loaded before they have left the processor's store buffer, which then must run empty: behind
/// a large copy that takes longer than all else.
///
/// # Panics
/// If `dst` is shorter than all of them.
#[inline]
pub fn write_words(dst: Span, words: &[[u8; 8]]) {
    assert!(words.len() * 8 <= dst.len(), "room for the words");
    for (i, word) in words.iter().enumerate() {
        // SAFETY: `dst` is a checked piece of at least that length.
        unsafe { copy::copy_word(dst.ptr().wrapping_add(8 * i), word.as_ptr(), 8, Source::Arrived) };
    }
}

/// Reads bytes from the start of `src` into private memory.
///
/// # Panics
/// If `src` is shorter than `out`.
#[inline]
pub fn read_bytes(src: Span, out: &mut [u8]) {
    assert!(out.len() <= src.len(), "as many bytes as asked for");
    // SAFETY: `src` is a checked piece of at least that length.
    unsafe { copy::copy(out.as_mut_ptr(), src.ptr(), out.len(), Source::Shared) }
}

/// The word under a span that an atomic check let pass.
#[inline]
fn word<'a>(target: Span) -> &'a AtomicU64 {
    assert!(target.len() >= 8 && target.addr().is_multiple_of(8), "an aligned word, as check_remote demands");
    // SAFETY: the span is mapped and writable, aligned, and long enough. `AtomicU64` is made for
    // memory that others change; the reference lives only inside this module's functions.
    unsafe { AtomicU64::from_ptr(target.ptr().cast()) }
}

/// The word at an aligned span of 8 bytes or more, whole. What was written before it is seen too.
///
/// # Panics
/// If the span is shorter or not aligned.
#[inline]
pub fn load_word(src: Span) -> u64 {
    word(src).load(Ordering::Acquire)
}

/// Writes the word at an aligned span of 8 bytes or more, whole. Who sees it sees what was written before.
///
/// # Panics
/// If the span is shorter or not aligned.
#[inline]
pub fn store_word(dst: Span, value: u64) {
    word(dst).store(value, Ordering::Release);
}

/// Adds to a word in host byte order, wrapping, and returns what it was. Atomic against the CPU's
/// own atomics and all other verbs.
///
/// # Panics
/// If the span is not one that `check_remote` returned for an atomic.
#[inline]
pub fn fetch_add(target: Span, add: u64) -> u64 {
    word(target).fetch_add(add, Ordering::SeqCst)
}

/// Replaces a word in host byte order by what `new` makes of it, if anything, and returns what it was. Atomic
/// like [`fetch_add`].
///
/// # Panics
/// As [`fetch_add`].
pub fn update(target: Span, new: impl Fn(u64) -> Option<u64>) -> u64 {
    match word(target).fetch_update(Ordering::SeqCst, Ordering::SeqCst, new) {
        Ok(was) | Err(was) => was,
    }
}

/// Stores `swap` in a word in host byte order if it equals `compare`, and returns what it was.
/// Atomic like [`fetch_add`].
///
/// # Panics
/// As [`fetch_add`].
#[inline]
pub fn compare_swap(target: Span, compare: u64, swap: u64) -> u64 {
    match word(target).compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(was) | Err(was) => was,
    }
}
