//! A ring of frames from one process to another: one producer, one consumer, no locks.
//!
//! Entries start at multiples of 64 bytes: a word that states length, offset and flags, then the IP packet
//! as it would be on the wire. The offset puts a large payload at a multiple of 64 bytes, where copies are
//! fastest. Positions count bytes and never wrap; the data is mapped twice in a row, so every entry is
//! contiguous.
//!
//! ```text
//! control page:  128 tail (producer)   256 head (consumer)   384 producer waits
//! entry:         | len:32 offset:16 flags:16 | .. | headers | payload | pad ICRC | .. to a multiple of 64
//! ```
//!
//! Either side may be killed at any instruction, and neither trusts the other: positions and entry
//! words are checked before use, and a side that finds nonsense reports [`Broken`] and lets the ring go.
#![allow(unsafe_code)]

use crate::shm::{Mirror, PAGE};
use adverb_nic::memory::{Gather, Payload};
use adverb_wire::{ICRC_LEN, MAX_IP_HEADER_LEN, MAX_IP_PREFIX_LEN, Packet};
use std::sync::atomic::{Ordering, fence};

/// Bytes of data in a ring. Holds a window of 128 packets of 4 KB with room to spare, and stays in a
/// second-level cache while nearly empty entries are reused only once per lap.
pub const RING_LEN: usize = 1 << 20;

/// Entries start at multiples of this, a cache line.
const ALIGN: usize = 64;
/// Bytes of an entry's word.
const WORD: usize = 8;
/// Payloads of at least this many bytes start at a multiple of [`ALIGN`].
const ALIGNED_PAYLOAD_MIN: usize = 256;
/// Longest frame: what an IP length field can state.
const FRAME_MAX: usize = 65_535;
/// Largest offset of a frame in its entry.
const OFFSET_MAX: usize = WORD + ALIGN;

/// Room that a frame of the largest path MTU needs.
pub const MAX_ENTRY: usize = (OFFSET_MAX + MAX_IP_PREFIX_LEN + 4096 + ICRC_LEN).next_multiple_of(ALIGN);

const TAIL_AT: usize = 128;
const HEAD_AT: usize = 256;
const WAITS_AT: usize = 384;

const _: () = assert!(RING_LEN.is_multiple_of(PAGE) && RING_LEN.is_power_of_two());
const _: () = assert!(MAX_ENTRY * 16 <= RING_LEN);

/// The frame's ICRC was not computed: memory does not flip bits. Its four bytes are undefined.
pub const ICRC_ELIDED: u16 = 1;

/// The other side left its rules: the ring cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Bytes that an entry takes.
#[inline]
const fn entry_len(offset: usize, frame_len: usize) -> usize {
    (offset + frame_len).next_multiple_of(ALIGN)
}

/// How far before their use lines of small entries are asked for: some entries, about a microsecond.
const AHEAD: usize = 1024;

/// A hint that the line will be written soon.
#[inline]
fn prefetch_for_write(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches no memory in a way that a program can notice, at any address.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// A hint that the line will be read soon.
#[inline]
fn prefetch_for_read(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Where a frame starts in its entry.
#[inline]
const fn frame_offset(header_len: usize, payload_len: usize) -> usize {
    if payload_len < ALIGNED_PAYLOAD_MIN {
        return WORD;
    }
    (WORD + header_len).next_multiple_of(ALIGN) - header_len
}

/// The sending side.
#[derive(Debug)]
pub struct Producer {
    map: Mirror,
    /// Where the next entry goes.
    tail: u64,
    /// What the consumer has been told.
    published: u64,
    /// The consumer's head, as last read.
    head: u64,
    /// The consumer's head made no sense once.
    broken: bool,
}

impl Producer {
    /// Takes over the producing side of a fresh ring.
    pub fn new(map: Mirror) -> Producer {
        Producer { map, tail: 0, published: 0, head: 0, broken: false }
    }

    fn refresh_head(&mut self) -> Result<(), Broken> {
        let head = self.map.control().u64_at(HEAD_AT).load(Ordering::Acquire);
        if self.broken || head < self.head || head > self.published {
            self.broken = true;
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    /// Bytes that fit, by the head as last read.
    #[inline]
    fn room(&self) -> usize {
        self.map.len() - (self.tail - self.head) as usize
    }

    /// Whether an entry of `len` bytes fits, asking the consumer only if it did not when last asked.
    #[inline]
    pub fn has_room(&mut self, len: usize) -> Result<bool, Broken> {
        if self.room() >= len {
            return Ok(true);
        }
        self.refresh_head()?;
        Ok(self.room() >= len)
    }

    /// Whether another frame of any size fits.
    #[inline]
    pub fn has_room_for_frame(&mut self) -> Result<bool, Broken> {
        self.has_room(MAX_ENTRY)
    }

    /// Bytes written and not yet published.
    #[inline]
    pub fn unpublished(&self) -> usize {
        (self.tail - self.published) as usize
    }

    #[inline]
    fn at(&self, position: u64) -> *mut u8 {
        let index = position as usize & (self.map.len() - 1);
        // SAFETY: the index is below `len`, inside the mapping.
        unsafe { self.map.data().add(index) }
    }

    /// Writes the entry's word and moves the tail over the entry.
    #[inline]
    fn commit(&mut self, offset: usize, frame_len: usize, flags: u16) {
        let word = frame_len as u64 | (offset as u64) << 32 | u64::from(flags) << 48;
        // SAFETY: the entry starts at a multiple of 64 inside the mapping, and is not published yet.
        unsafe { self.at(self.tail).cast::<u64>().write(word) };
        let len = entry_len(offset, frame_len);
        self.tail += len as u64;
        if len <= AHEAD {
            self.claim_ahead(len);
        }
    }

    /// Asks for ownership of the lines that entries soon to come will be written to. The consumer's cache
    /// holds them since the last lap, and the next locked instruction would wait for each of them.
    #[inline]
    fn claim_ahead(&self, len: usize) {
        let first = self.at(self.tail + AHEAD as u64);
        for line in (0..len).step_by(ALIGN) {
            prefetch_for_write(first.wrapping_add(line));
        }
    }

    /// Appends a frame, its payload copied straight from registered memory, its ICRC left out.
    /// `Ok(false)` when it does not fit now; a payload that is not as long as the packet says is an
    /// error of the NIC.
    #[inline]
    pub fn push_packet(&mut self, packet: &Packet, payload: &Gather) -> Result<bool, Broken> {
        let (header_len, frame_len) = (packet.frame_header_len(), packet.frame_len());
        let offset = frame_offset(header_len, payload.len());
        assert!(payload.len() == packet.payload_len as usize && frame_len <= FRAME_MAX, "payload as stated");
        if !self.has_room(entry_len(offset, frame_len))? {
            return Ok(false);
        }
        let mut headers = [0; MAX_IP_HEADER_LEN];
        let written = packet.emit_ip(&mut headers);
        assert!(written == header_len, "room for all headers");
        let frame = self.at(self.tail).wrapping_add(offset);
        // SAFETY: `offset + frame_len` bytes from the entry's start are inside the doubled mapping, since the
        // entry fits the room, and not published; `headers` holds `written` bytes; pad and ICRC follow the
        // payload within the frame.
        unsafe {
            frame.copy_from_nonoverlapping(headers.as_ptr(), written);
            payload.copy_to_ptr(frame.add(written));
            frame.add(written + payload.len()).write_bytes(0, packet.pad());
        }
        self.commit(offset, frame_len, ICRC_ELIDED);
        Ok(true)
    }

    /// Appends a complete frame. `Ok(false)` when it does not fit now, or never would.
    pub fn push_bytes(&mut self, frame: &[u8]) -> Result<bool, Broken> {
        if frame.len() > FRAME_MAX || !self.has_room(entry_len(WORD, frame.len()))? {
            return Ok(false);
        }
        let at = self.at(self.tail).wrapping_add(WORD);
        // SAFETY: as in `push_packet`.
        unsafe { at.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        self.commit(WORD, frame.len(), 0);
        Ok(true)
    }

    /// Shows the consumer what was appended. The caller follows with a sequentially consistent fence
    /// before it looks whether the consumer sleeps.
    #[inline]
    pub fn publish(&mut self) {
        self.map.control().u64_at(TAIL_AT).store(self.tail, Ordering::Release);
        self.published = self.tail;
    }

    /// Asks the consumer to wake this process once it has drained half of the ring, unless it has done so
    /// already: then the answer is `false`.
    pub fn wait_for_room(&mut self) -> Result<bool, Broken> {
        let waits = self.map.control().u32_at(WAITS_AT);
        waits.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.refresh_head()?;
        if self.is_half_empty() {
            self.map.control().u32_at(WAITS_AT).store(0, Ordering::Relaxed);
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether at least half of the ring is free.
    fn is_half_empty(&self) -> bool {
        self.room() >= self.map.len() / 2
    }

    /// Whether at least half of the ring seems free; to be confirmed by [`has_drained`](Self::has_drained).
    pub fn seems_drained(&self) -> bool {
        let head = self.map.control().u64_at(HEAD_AT).load(Ordering::Acquire);
        self.tail.wrapping_sub(head) <= self.map.len() as u64 / 2
    }

    /// Whether at least half of the ring is free, by the consumer's present head.
    pub fn has_drained(&mut self) -> Result<bool, Broken> {
        self.refresh_head()?;
        Ok(self.is_half_empty())
    }
}

/// One frame in the ring, as its checked word describes it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    at: *const u8,
    len: usize,
    /// [`ICRC_ELIDED`].
    pub flags: u16,
    ring: std::marker::PhantomData<&'a Consumer>,
}

impl<'a> Frame<'a> {
    /// Bytes of the packet from its IP header on.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the beginning, which holds all headers, to private memory. Returns how many bytes.
    #[inline]
    pub fn read_prefix(&self, out: &mut [u8; MAX_IP_PREFIX_LEN]) -> usize {
        let len = self.len.min(MAX_IP_PREFIX_LEN);
        // SAFETY: the consumer checked that `self.len` bytes from `self.at` are inside the mapping.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(self.at, len) };
        len
    }

    /// A part of the frame where it lies. `None` if it is not inside.
    #[inline]
    pub fn payload(&self, offset: usize, len: usize) -> Option<Payload<'a>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: checked to be inside the frame, whose bytes stay mapped while the consumer is borrowed.
        Some(unsafe { Payload::from_raw(self.at.add(offset), len) })
    }

    /// Copies the whole frame to private memory.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.len);
        // SAFETY: room was reserved; the source is inside the mapping, as above.
        unsafe {
            out.as_mut_ptr().copy_from_nonoverlapping(self.at, self.len);
            out.set_len(self.len);
        }
    }
}

/// The receiving side.
#[derive(Debug)]
pub struct Consumer {
    map: Mirror,
    /// Next entry to read.
    head: u64,
    /// What the producer has been told.
    released: u64,
    /// The producer's tail, as last read.
    tail: u64,
}

impl Consumer {
    /// Takes over the consuming side of a fresh ring.
    pub fn new(map: Mirror) -> Consumer {
        Consumer { map, head: 0, released: 0, tail: 0 }
    }

    /// Whether frames wait.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.head != self.tail || self.map.control().u64_at(TAIL_AT).load(Ordering::Acquire) != self.tail
    }

    fn refresh_tail(&mut self) -> Result<(), Broken> {
        let tail = self.map.control().u64_at(TAIL_AT).load(Ordering::Acquire);
        let plausible = tail >= self.tail
            && tail - self.head <= self.map.len() as u64
            && tail.is_multiple_of(ALIGN as u64);
        if !plausible {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }

    /// The next frame and, for [`skip`](Self::skip), the bytes of its entry.
    #[inline]
    pub fn next(&mut self) -> Result<Option<(Frame<'_>, usize)>, Broken> {
        if self.head == self.tail {
            self.refresh_tail()?;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let index = self.head as usize & (self.map.len() - 1);
        let entry = self.map.data().wrapping_add(index);
        // SAFETY: `index` is a multiple of 64 below `len`. The word is read once, since the producer may
        // break its rules and change it.
        let word = unsafe { entry.cast::<u64>().read_volatile() };
        let (len, offset, flags) = (word as u32 as usize, (word >> 32) as u16 as usize, (word >> 48) as u16);
        let taken = entry_len(offset, len);
        let sound = (WORD..=OFFSET_MAX).contains(&offset)
            && len <= FRAME_MAX
            && taken as u64 <= self.tail - self.head;
        if !sound {
            return Err(Broken);
        }
        // Lines of the entry after the next, unless the producer may still be writing them.
        if taken < AHEAD && self.tail - self.head >= 4 * taken as u64 {
            for line in (0..taken).step_by(ALIGN) {
                prefetch_for_read(entry.wrapping_add(2 * taken + line));
            }
        }
        let frame = Frame { at: entry.wrapping_add(offset), len, flags, ring: std::marker::PhantomData };
        Ok(Some((frame, taken)))
    }

    /// Moves over an entry that was dealt with.
    #[inline]
    pub fn skip(&mut self, entry_len: usize) {
        self.head += entry_len as u64;
    }

    /// Bytes dealt with that the producer does not know of yet.
    #[inline]
    pub fn unreleased(&self) -> usize {
        (self.head - self.released) as usize
    }

    /// Gives the room of all entries dealt with back to the producer. Returns whether the producer
    /// waits and must be woken.
    #[inline]
    pub fn release(&mut self) -> bool {
        if self.released == self.head {
            return false;
        }
        self.map.control().u64_at(HEAD_AT).store(self.head, Ordering::Release);
        self.released = self.head;
        fence(Ordering::SeqCst);
        let waits = self.map.control().u32_at(WAITS_AT);
        if waits.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let used = self.map.control().u64_at(TAIL_AT).load(Ordering::Relaxed).saturating_sub(self.head);
        used <= self.map.len() as u64 / 2 && waits.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests;
