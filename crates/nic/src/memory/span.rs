//! Checked pieces of memory, lists of them, and what arrived to be written into them.

use super::copy::{self, Source};
use super::prefetch::{LINE, prefetch_line_for_write};
use crate::limits;
use core::marker::PhantomData;

/// A checked piece of memory that others may read and write at any moment. It can be copied from and
/// to, never borrowed. Made only by [`Memory`](super::Memory)'s checks and by
/// [`QueueMemory`](super::QueueMemory).
#[derive(Clone, Copy, Debug)]
pub struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a span is an address. All accesses through it are atomic or opaque to the compiler, so
// they may come from any thread, at the same time as any others.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// No bytes.
    pub const EMPTY: Span = Span { ptr: core::ptr::dangling_mut(), len: 0 };

    /// The memory of `len` bytes from `addr` on.
    ///
    /// # Safety
    /// The bytes must stay mapped, and writable where the check allowed writing, until the span and
    /// its copies are gone. Their address must have been exposed, and no `&mut` reference to them may
    /// be used meanwhile as if it were exclusive.
    #[inline]
    pub unsafe fn new(addr: u64, len: usize) -> Span {
        Span { ptr: core::ptr::with_exposed_provenance_mut(addr as usize), len }
    }

    /// Bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Host virtual address of the first byte.
    #[inline]
    pub fn addr(self) -> u64 {
        self.ptr.addr() as u64
    }

    /// A part.
    ///
    /// # Panics
    /// If the part is not inside.
    #[inline]
    pub fn slice(self, offset: usize, len: usize) -> Span {
        assert!(offset <= self.len && len <= self.len - offset, "a slice inside its span");
        Span { ptr: self.ptr.wrapping_add(offset), len }
    }

    /// Asks for its lines, to be written soon. A hint.
    #[inline]
    pub fn prefetch_for_write(self) {
        for offset in (0..self.len).step_by(LINE) {
            prefetch_line_for_write(self.ptr.wrapping_add(offset));
        }
    }

    #[inline]
    pub(super) const fn ptr(self) -> *mut u8 {
        self.ptr
    }
}

/// Spans that one entry list of a work request can need: its entries, a GRH area, a pad.
const MAX_SPANS: usize = limits::MAX_SGE as usize + 2;

/// The pieces of memory that one frame's payload is gathered from, or scattered to. Made once and
/// reused: `clear` does not touch the entries.
pub struct Gather {
    bytes: usize,
    used: usize,
    spans: [Span; MAX_SPANS],
}

impl Gather {
    /// Spans it holds.
    pub const CAPACITY: usize = MAX_SPANS;

    /// No spans.
    pub const fn new() -> Self {
        Gather { bytes: 0, used: 0, spans: [Span::EMPTY; MAX_SPANS] }
    }

    /// Drops all spans.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes = 0;
        self.used = 0;
    }

    /// Adds a span at the end. Empty ones are left out.
    ///
    /// # Panics
    /// On more than [`Gather::CAPACITY`] spans, which the limits of a work request exclude.
    #[inline]
    pub fn push(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        assert!(self.used < MAX_SPANS, "more spans than a work request can name");
        self.spans[self.used] = span;
        self.used += 1;
        self.bytes += span.len();
    }

    /// Bytes of all spans.
    #[inline]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The spans, in order.
    #[inline]
    pub fn spans(&self) -> &[Span] {
        &self.spans[..self.used]
    }

    /// Copies all bytes to the start of private memory, and leaves what is behind them as it is.
    ///
    /// # Panics
    /// If `out` is shorter than that.
    #[inline]
    pub fn read(&self, out: &mut [u8]) {
        assert!(out.len() >= self.bytes, "room for all gathered bytes");
        // SAFETY: `out` is writable for its whole length, which was just compared.
        unsafe { self.copy_to_ptr(out.as_mut_ptr()) }
    }

    /// Copies all bytes to `dst`.
    ///
    /// # Safety
    /// `dst` must be writable for `self.len()` bytes. Others may access these bytes meanwhile (then
    /// nobody may hold a reference to them).
    #[inline]
    pub unsafe fn copy_to_ptr(&self, dst: *mut u8) {
        let mut at = dst;
        for span in self.spans() {
            // SAFETY: a span is readable; the caller's promise covers the sum of all lengths.
            unsafe { copy::copy(at, span.ptr(), span.len(), Source::Shared) };
            at = at.wrapping_add(span.len());
        }
    }
}

impl Default for Gather {
    fn default() -> Self {
        Self::new()
    }
}

/// Payload of a frame that arrived: bytes, or only their number (a simulator may elide them).
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Null when elided.
    ptr: *const u8,
    len: usize,
    _bytes: PhantomData<&'a [u8]>,
}

// SAFETY: as for `Span`; bytes borrowed as a slice may be read from any thread anyhow.
unsafe impl Send for Payload<'_> {}
// SAFETY: as above.
unsafe impl Sync for Payload<'_> {}

impl<'a> Payload<'a> {
    /// No bytes.
    pub const EMPTY: Payload<'static> = Payload::elided(0);

    /// Private bytes.
    #[inline]
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Payload { ptr: bytes.as_ptr(), len: bytes.len(), _bytes: PhantomData }
    }

    /// Bytes that another process may write meanwhile, such as a slot of a shared ring.
    ///
    /// # Safety
    /// `ptr` must not be null, `len` bytes from it must stay readable for the lifetime `'a`, and no
    /// thread of this process may write them meanwhile.
    #[inline]
    pub const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Payload { ptr, len, _bytes: PhantomData }
    }

    /// Only a number of bytes; writing them changes no memory.
    #[inline]
    pub const fn elided(len: usize) -> Self {
        Payload { ptr: core::ptr::null(), len, _bytes: PhantomData }
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the bytes themselves are absent.
    #[inline]
    pub fn is_elided(&self) -> bool {
        self.ptr.is_null()
    }

    /// A part.
    ///
    /// # Panics
    /// If the part is not inside.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "a slice inside its payload");
        if self.is_elided() {
            return Payload::elided(len);
        }
        Payload { ptr: self.ptr.wrapping_add(offset), len, _bytes: PhantomData }
    }

    /// Copies bytes from `offset` on to private memory; zeros if elided.
    ///
    /// # Panics
    /// If the payload ends before `out` is full.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let part = self.slice(offset, out.len());
        if part.is_elided() {
            out.fill(0);
            return;
        }
        // SAFETY: `part` is readable for its length, which is that of `out`.
        unsafe { copy::copy(out.as_mut_ptr(), part.ptr, out.len(), Source::Arrived) }
    }

    #[inline]
    pub(super) const fn ptr(&self) -> *const u8 {
        self.ptr
    }
}
