//! Memory of send and receive queues: WQEs are memory.
//!
//! An application may register a queue and let peers, or other queues, rewrite its WQEs. Then spans
//! and regions over a queue's bytes outlive the queue, and nothing could say when its pages may be
//! unmapped. So they never are: a dropped block goes back to a store of blocks and serves later
//! queues. The store never holds more than was once in use at the same time, per power-of-two size.
//! It is shared by the NICs of a process, which no NIC can notice, as only addresses depend on it.

use super::copy::{self, Source};
use super::span::Span;
use crate::error::Error;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Mutex, PoisonError};

/// Smallest block: a cache line, one send WQE.
const SMALLEST: usize = 64;

/// Alignment of blocks that are at least as large. Smaller ones are cut from a page, and so aligned to their
/// size.
const PAGE: usize = 4096;

/// Size classes: `SMALLEST << class` bytes.
const CLASSES: usize = 32;

/// Blocks between two uses, by size class.
static STORE: Mutex<[Vec<Block>; CLASSES]> = Mutex::new([const { Vec::new() }; CLASSES]);

/// Start of `SMALLEST << class` bytes that are never given back to the allocator.
#[derive(Clone, Copy)]
struct Block(*mut u8);

// SAFETY: the address of memory that lives as long as the process; whoever has the block uses it
// with atomic accesses only.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// Memory, zeroed at first, that others may read and write at any moment. It starts at a cache line; a
/// page and more, at a page.
///
/// Packed, because a queue pair has one that often is all that it has of a send queue.
#[repr(Rust, packed(4))]
pub struct QueueMemory {
    block: Block,
    len: u32,
}

/// The size class that holds so many bytes.
fn class_of(len: usize) -> Option<usize> {
    Some(len.div_ceil(SMALLEST).checked_next_power_of_two()?.trailing_zeros() as usize)
}

impl QueueMemory {
    /// No memory.
    pub const EMPTY: QueueMemory = QueueMemory { block: Block(core::ptr::null_mut()), len: 0 };

    /// Memory of `len` bytes. `TableFull` when the host has no more.
    pub fn new(len: usize) -> Result<Self, Error> {
        if len == 0 {
            return Ok(QueueMemory::EMPTY);
        }
        let short = u32::try_from(len).map_err(|_| Error::TableFull)?;
        let class = class_of(len).ok_or(Error::TableFull)?;
        let size =
            SMALLEST.checked_shl(class as u32).filter(|&size| size >= len && size >> class == SMALLEST);
        let size = size.filter(|_| class < CLASSES).ok_or(Error::TableFull)?;
        let used = STORE.lock().unwrap_or_else(PoisonError::into_inner)[class].pop();
        if let Some(block) = used {
            // SAFETY: a stored block has `size` bytes, and lives for ever.
            unsafe { copy::zero(block.0, size) };
            return Ok(QueueMemory { block, len: short });
        }
        // The allocator would add a header to each block, and to a cache line nearly another one for its
        // alignment: what is smaller than a page is cut from one.
        let layout = Layout::from_size_align(size.max(PAGE), PAGE).map_err(|_| Error::TableFull)?;
        // SAFETY: the size is at least a page, so not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(Error::TableFull);
        }
        // An application may register the block, and then names it by its number.
        ptr.expose_provenance();
        if size < PAGE {
            let rest = (1..PAGE / size).rev().map(|number| Block(ptr.wrapping_add(number * size)));
            STORE.lock().unwrap_or_else(PoisonError::into_inner)[class].extend(rest);
        }
        Ok(QueueMemory { block: Block(ptr), len: short })
    }

    /// Host virtual address of the first byte; a multiple of 64. 0 of an empty one.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.start().addr() as u64
    }

    /// Bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn start(&self) -> *mut u8 {
        let Block(start) = self.block;
        start
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len() && len <= self.len() - offset, "inside the queue's memory");
        self.start().wrapping_add(offset)
    }

    /// A big-endian word at a multiple of 4.
    ///
    /// # Panics
    /// If the word is not inside, or not aligned.
    #[inline]
    pub fn read_u32_be(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(4), "an aligned word");
        let word = self.at(offset, 4).cast();
        // SAFETY: inside a block aligned to 64 that lives for ever, aligned, always accessed raw.
        u32::from_be(unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Relaxed))
    }

    /// A 64-byte block at a multiple of 8. Each of its eight words is read once, whole, in order.
    ///
    /// # Panics
    /// If the block is not inside, or not aligned.
    #[inline]
    pub fn read_block(&self, offset: usize) -> [u8; 64] {
        assert!(offset.is_multiple_of(8), "an aligned block");
        let words = self.at(offset, 64).cast::<u64>();
        let mut block = [0; 64];
        for (i, out) in block.chunks_exact_mut(8).enumerate() {
            // SAFETY: inside a block aligned to 64 that lives for ever, aligned, always accessed raw.
            let word = unsafe { AtomicU64::from_ptr(words.wrapping_add(i)) }.load(Ordering::Relaxed);
            out.copy_from_slice(&word.to_ne_bytes());
        }
        block
    }

    /// Asks for the cache line at an offset.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        super::prefetch_line(self.start().wrapping_add(offset));
    }

    /// A 16-byte segment at a multiple of 8; each of its two words is read once, whole, in order.
    ///
    /// # Panics
    /// If the segment is not inside, or not aligned.
    #[inline(always)]
    pub fn read_segment(&self, offset: usize) -> [u8; 16] {
        assert!(offset.is_multiple_of(8), "an aligned segment");
        let words = self.at(offset, 16).cast::<u64>();
        // SAFETY: inside a block aligned to 64 that lives for ever, aligned, always accessed raw.
        let first = unsafe { AtomicU64::from_ptr(words) }.load(Ordering::Relaxed);
        // SAFETY: as above; the second word of the 16 bytes that `at` has checked.
        let second = unsafe { AtomicU64::from_ptr(words.wrapping_add(1)) }.load(Ordering::Relaxed);
        let mut segment = [0; 16];
        segment[..8].copy_from_slice(&first.to_ne_bytes());
        segment[8..].copy_from_slice(&second.to_ne_bytes());
        segment
    }

    /// Writes a 16-byte segment at a multiple of 8, as two whole words in order.
    ///
    /// # Panics
    /// If the segment is not inside, or not aligned.
    #[inline]
    pub fn write_segment(&self, offset: usize, segment: [u8; 16]) {
        assert!(offset.is_multiple_of(8), "an aligned segment");
        let words = self.at(offset, 16).cast::<u64>();
        for (i, word) in segment.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: inside a block aligned to 64 that lives for ever, aligned, always accessed raw.
            let at = unsafe { AtomicU64::from_ptr(words.wrapping_add(i)) };
            at.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    /// Copies the 64-byte block at a multiple of 64 out of another queue's memory, to the same place: word by
    /// word in order, each read once, whole.
    ///
    /// # Panics
    /// If the block is not inside both, or not aligned.
    #[inline]
    pub fn copy_block(&self, from: &QueueMemory, offset: usize) {
        assert!(offset.is_multiple_of(SMALLEST), "an aligned block");
        let (source, target) =
            (from.at(offset, SMALLEST).cast::<u64>(), self.at(offset, SMALLEST).cast::<u64>());
        for i in 0..SMALLEST / 8 {
            // SAFETY: inside a block aligned to 64 that lives for ever, aligned, always accessed raw.
            let word = unsafe { AtomicU64::from_ptr(source.wrapping_add(i)) }.load(Ordering::Relaxed);
            // SAFETY: as above, in the other block.
            unsafe { AtomicU64::from_ptr(target.wrapping_add(i)) }.store(word, Ordering::Relaxed);
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit behind `offset`.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let dst = self.at(offset, bytes.len());
        // SAFETY: `at` has checked the range.
        unsafe { copy::copy(dst, bytes.as_ptr(), bytes.len(), Source::Arrived) }
    }

    /// A part as a span. It may outlive the queue, whose memory is never unmapped.
    ///
    /// # Panics
    /// If the part is not inside.
    #[inline]
    pub fn span(&self, offset: usize, len: usize) -> Span {
        let start = self.at(offset, len).addr() as u64;
        // SAFETY: `at` has checked the range, the block is never unmapped, and was exposed.
        unsafe { Span::new(start, len) }
    }
}

impl core::fmt::Debug for QueueMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "QueueMemory({:#x}, {} bytes)", self.addr(), self.len())
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        if let Some(class) = class_of(self.len()).filter(|_| !self.is_empty()) {
            STORE.lock().unwrap_or_else(PoisonError::into_inner)[class].push(self.block);
        }
    }
}
