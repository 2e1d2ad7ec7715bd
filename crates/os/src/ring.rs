//! A ring of frames from one process to another: one producer, one consumer, no locks.
//!
//! Entries start at multiples of 64 bytes, with a word that says what follows. Most are COMPACT: they begin
//! at the BTH, since both ends of a ring have one address, and what else the IP and UDP headers say fits the
//! word; nor do they have an ICRC, since memory flips no bits. So an 8-byte WRITE takes one cache line and a
//! 64-byte WRITE two. Others hold the whole IP packet as it would be on the wire. The offset puts a large
//! payload at a multiple of 64 bytes, where copies are fastest. Positions count bytes and never wrap; the
//! data is mapped twice in a row, so every entry is contiguous.
//!
//! ```text
//! control page:  128 tail (producer, when it waits)  256 head (consumer)
//!                384 producer waits                  512 consumer sleeps
//! word:          | len:16 offset:8 flags:8 class:8 hops:8 port:16 |   0: nothing yet
//! compact entry: | word | BTH .. | payload | pad | .. to a multiple of 64
//! whole entry:   | word | IP UDP BTH .. | payload | pad ICRC | .. to a multiple of 64
//! ```
//!
//! The word itself tells the consumer that the entry is there: one that looks for frames reads only the line
//! that the next one will be in. Behind the last entry stands a word of 0. A burst is shown at once, by
//! writing its first word last.
//!
//! Either side may be killed at any instruction, and neither trusts the other: positions and entry
//! words are checked before use, and a side that finds nonsense reports [`Broken`] and lets the ring go.
#![allow(unsafe_code)]

use crate::hint::{prefetch_line, prefetch_line_for_write};
#[cfg(loom)]
use crate::ring::model::Mirror;
#[cfg(not(loom))]
use crate::shm::Mirror;
use crate::shm::PAGE;
use crate::sync::{AtomicU64, Ordering, Plant, fence_at, ordering};
use adverb_wire::{
    Flow, Gid, ICRC_LEN, MAX_BTH_HEADER_LEN, MAX_IP_HEADER_LEN, MAX_IP_PREFIX_LEN, Packet, ParseError,
    ParsedHeaders,
};

/// Bytes of data in a ring. Holds a window of 128 packets of 4 KB with room to spare, and stays in a
/// second-level cache while nearly empty entries are reused only once per lap.
pub const RING_LEN: usize = 1 << 20;

/// Number of the layout below. To be counted up with every change of what the two ends of a ring agree on.
pub const LAYOUT: u8 = 2;

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
/// Only used where the two ends share nothing else.
const SLEEPS_AT: usize = 512;

const _: () = assert!(RING_LEN.is_multiple_of(PAGE) && RING_LEN.is_power_of_two());
const _: () = assert!(MAX_ENTRY * 16 <= RING_LEN);

/// An entry is there.
const VALID: u8 = 1;
/// The frame's ICRC was not computed. In a whole frame its four bytes are undefined, a compact one has none.
const ICRC_ELIDED: u8 = 2;
/// The entry starts at the BTH.
const COMPACT: u8 = 4;

// A compact entry's headers end within its first line.
const _: () = assert!(WORD + MAX_BTH_HEADER_LEN <= ALIGN);

/// What the first word of an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Word {
    /// Bytes of the frame, as far as it is in the entry.
    len: u16,
    /// Where it starts in the entry.
    offset: u8,
    flags: u8,
    /// Of compact entries, the rest of what their IP and UDP headers would say.
    traffic_class: u8,
    hop_limit: u8,
    src_port: u16,
}

impl Word {
    #[inline]
    fn pack(self) -> u64 {
        u64::from(self.len)
            | u64::from(self.offset) << 16
            | u64::from(self.flags) << 24
            | u64::from(self.traffic_class) << 32
            | u64::from(self.hop_limit) << 40
            | u64::from(self.src_port) << 48
    }

    #[inline]
    fn unpack(word: u64) -> Word {
        Word {
            len: word as u16,
            offset: (word >> 16) as u8,
            flags: (word >> 24) as u8,
            traffic_class: (word >> 32) as u8,
            hop_limit: (word >> 40) as u8,
            src_port: (word >> 48) as u16,
        }
    }

    /// Of a whole frame of at most [`FRAME_MAX`] bytes.
    fn whole(len: usize) -> Word {
        Word { len: len as u16, offset: WORD as u8, flags: VALID, ..Word::default() }
    }

    /// Bytes that the entry takes.
    #[inline]
    fn entry_len(self) -> usize {
        entry_len(self.offset.into(), self.len.into())
    }
}

/// The other side left its rules: the ring cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// Bytes that an entry takes: whole lines.
#[inline]
const fn entry_len(offset: usize, frame_len: usize) -> usize {
    (offset + frame_len).next_multiple_of(ALIGN)
}

/// How far before their use lines of small entries are asked for: some entries, about a microsecond.
const AHEAD: usize = 1024;

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
    /// The word of the first entry that the consumer has not been told of.
    first: u64,
    /// The consumer's head, as last read.
    head: u64,
    /// The consumer's head made no sense once.
    broken: bool,
}

impl Producer {
    /// Takes over the producing side of a fresh ring.
    pub fn new(map: Mirror) -> Producer {
        Producer { map, tail: 0, published: 0, first: 0, head: 0, broken: false }
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

    /// Bytes that fit, by the head as last read. One line is for the word behind the last entry.
    #[inline]
    fn room(&self) -> usize {
        self.map.data_len() - ALIGN - (self.tail - self.head) as usize
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
    fn index(&self, position: u64) -> usize {
        position as usize & (self.map.data_len() - 1)
    }

    #[inline]
    fn at(&self, position: u64) -> *mut u8 {
        self.map.data().wrapping_add(self.index(position))
    }

    /// The word of the entry at a position, a multiple of 64.
    #[inline]
    fn word(&self, position: u64) -> &AtomicU64 {
        self.map.word(self.index(position))
    }

    /// Completes the entry at the tail and moves the tail over it. The first word of a burst is held back
    /// until the burst is published.
    #[inline]
    fn commit(&mut self, word: Word) {
        let len = word.entry_len();
        let end = self.tail + len as u64;
        self.word(end).store(0, Ordering::Relaxed);
        if self.tail == self.published {
            self.first = word.pack();
        } else {
            self.word(self.tail).store(word.pack(), Ordering::Relaxed);
        }
        self.tail = end;
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
            prefetch_line_for_write(first.wrapping_add(line));
        }
    }

    /// Appends a packet, its ICRC left out; `own` is the address of both ends. `Ok(false)` when it does not
    /// fit now. `write` has to write the payload: it is told where, and that place is writable for as many
    /// bytes as the packet says that its payload has. The consumer's process maps it too, so no reference to
    /// it is formed.
    #[inline]
    pub fn push_packet(
        &mut self,
        own: Gid,
        packet: &Packet,
        write: impl FnOnce(*mut u8),
    ) -> Result<bool, Broken> {
        if packet.flow.src != own || packet.flow.dst != own {
            return self.push_whole(packet, write);
        }
        let (header_len, payload_len) = (packet.header_len(), packet.payload_len as usize);
        let len = header_len + payload_len + packet.pad();
        let offset = frame_offset(header_len, payload_len);
        assert!(len <= FRAME_MAX, "a frame that IP carries");
        if !self.has_room(entry_len(offset, len))? {
            return Ok(false);
        }
        let mut headers = [0; MAX_BTH_HEADER_LEN];
        let written = packet.emit_bth(&mut headers);
        assert!(written == header_len, "room for all headers");
        let frame = self.at(self.tail).wrapping_add(offset);
        // SAFETY: `offset + len` bytes from the entry's start are inside the doubled mapping, since the entry
        // fits the room, and not published. All of `headers` fits too, as a copy of constant length: it
        // reaches at most one line further than the entry, which is the line behind the last entry. The
        // payload goes over what is too much.
        unsafe {
            frame.copy_from_nonoverlapping(headers.as_ptr(), MAX_BTH_HEADER_LEN);
            write(frame.add(written));
            if packet.pad() > 0 {
                frame.add(written + payload_len).write_bytes(0, packet.pad());
            }
        }
        self.commit(Word {
            len: len as u16,
            offset: offset as u8,
            flags: VALID | ICRC_ELIDED | COMPACT,
            traffic_class: packet.flow.traffic_class,
            hop_limit: packet.flow.hop_limit,
            src_port: packet.flow.src_port,
        });
        Ok(true)
    }

    /// As [`push_packet`](Self::push_packet), IP and UDP headers included.
    #[cold]
    fn push_whole(&mut self, packet: &Packet, write: impl FnOnce(*mut u8)) -> Result<bool, Broken> {
        let (header_len, frame_len) = (packet.frame_header_len(), packet.frame_len());
        assert!(frame_len <= FRAME_MAX, "a frame that IP carries");
        if !self.has_room(entry_len(WORD, frame_len))? {
            return Ok(false);
        }
        let mut headers = [0; MAX_IP_HEADER_LEN];
        let written = packet.emit_ip(&mut headers);
        assert!(written == header_len, "room for all headers");
        let frame = self.at(self.tail).wrapping_add(WORD);
        // SAFETY: as in `push_packet`; pad and ICRC follow the payload within the frame.
        unsafe {
            frame.copy_from_nonoverlapping(headers.as_ptr(), written);
            write(frame.add(written));
            frame.add(written + packet.payload_len as usize).write_bytes(0, packet.pad() + ICRC_LEN);
        }
        self.commit(Word { flags: VALID | ICRC_ELIDED, ..Word::whole(frame_len) });
        Ok(true)
    }

    /// Appends a complete frame, which has `header_len` bytes before its payload. `Ok(false)` when it does
    /// not fit now, or never would.
    pub fn push_bytes(&mut self, frame: &[u8], header_len: usize) -> Result<bool, Broken> {
        let offset = frame_offset(header_len, frame.len());
        if frame.len() > FRAME_MAX || !self.has_room(entry_len(offset, frame.len()))? {
            return Ok(false);
        }
        // SAFETY: as in `push_packet`.
        unsafe { self.map.copy_in(self.index(self.tail) + offset, frame) };
        self.commit(Word { offset: offset as u8, ..Word::whole(frame.len()) });
        Ok(true)
    }

    /// Shows the consumer what was appended. The caller follows with a sequentially consistent fence
    /// before it looks whether the consumer sleeps.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.word(self.published).store(self.first, ordering(Plant::Publish, Ordering::Release));
            self.published = self.tail;
        }
    }

    /// Whether the consumer sleeps and must be woken, which it will not say again. The caller's fence stands
    /// between [`publish`](Self::publish) and this.
    #[inline]
    pub fn take_sleep(&self) -> bool {
        let sleeps = self.map.control().u32_at(SLEEPS_AT);
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }

    /// Where the consumer is, and where what was published ends.
    pub fn progress(&mut self) -> Result<(u64, u64), Broken> {
        self.refresh_head()?;
        Ok((self.head, self.published))
    }

    /// Asks the consumer to wake this process once it has drained half of the ring, unless it has done so
    /// already: then the answer is `false`.
    pub fn wait_for_room(&mut self) -> Result<bool, Broken> {
        self.map.control().u64_at(TAIL_AT).store(self.published, Ordering::Relaxed);
        let waits = self.map.control().u32_at(WAITS_AT);
        waits.store(1, Ordering::Release);
        fence_at(Plant::Wait);
        self.refresh_head()?;
        if self.is_half_empty() {
            self.map.control().u32_at(WAITS_AT).store(0, Ordering::Relaxed);
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether at least half of the ring is free.
    fn is_half_empty(&self) -> bool {
        self.room() >= self.map.data_len() / 2
    }

    /// Whether at least half of the ring seems free; to be confirmed by [`has_drained`](Self::has_drained).
    pub fn seems_drained(&self) -> bool {
        let head = self.map.control().u64_at(HEAD_AT).load(Ordering::Acquire);
        self.tail.wrapping_sub(head) <= self.map.data_len() as u64 / 2
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
    map: &'a Mirror,
    /// Where it starts in the data.
    index: usize,
    word: Word,
}

impl<'a> Frame<'a> {
    /// Bytes of the frame, as far as it is in the entry.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.word.len.into()
    }

    /// The sender left the ICRC out.
    #[inline]
    pub fn elides_icrc(&self) -> bool {
        self.word.flags & ICRC_ELIDED != 0
    }

    /// The frame starts at the BTH.
    #[inline]
    pub fn is_compact(&self) -> bool {
        self.word.flags & COMPACT != 0
    }

    /// What the IP and UDP headers of a compact entry would say.
    #[inline]
    pub fn flow(&self, own: Gid) -> Flow {
        let Word { traffic_class, hop_limit, src_port, .. } = self.word;
        Flow { src: own, dst: own, src_port, traffic_class, hop_limit }
    }

    /// Copies the headers to private memory and parses them; `own` is the address of both ends.
    #[inline]
    pub fn parse_headers(&self, own: Gid) -> Result<ParsedHeaders, ParseError> {
        if !self.is_compact() {
            let mut prefix = [0; MAX_IP_PREFIX_LEN];
            let len = self.read_prefix(&mut prefix);
            return Packet::parse_ip_headers(&prefix[..len], self.frame_len());
        }
        let mut prefix = [0; MAX_BTH_HEADER_LEN];
        // SAFETY: an entry leaves at least a line of the doubled mapping behind it, and the frame starts in
        // its first two lines; so as many bytes follow, whatever `len` is. The constant length spares a call.
        unsafe { self.map.copy_out(self.index, prefix.as_mut_ptr(), MAX_BTH_HEADER_LEN) };
        Packet::parse_headers(
            self.flow(own),
            &prefix[..self.frame_len().min(MAX_BTH_HEADER_LEN)],
            self.frame_len() + ICRC_LEN,
        )
    }

    /// Copies the beginning, which holds all headers, to private memory. Returns how many bytes.
    #[inline]
    fn read_prefix(&self, out: &mut [u8; MAX_IP_PREFIX_LEN]) -> usize {
        let len = self.frame_len().min(MAX_IP_PREFIX_LEN);
        // SAFETY: the consumer checked that `len` bytes from there on are inside the mapping.
        unsafe { self.map.copy_out(self.index, out.as_mut_ptr(), len) };
        len
    }

    /// Where a part of the frame lies. `None` if it is not inside. The bytes stay readable for `'a`; the
    /// sender's process may change them meanwhile.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Option<*const u8> {
        let inside = offset.checked_add(len)? <= self.frame_len();
        inside.then(|| self.map.data().wrapping_add(self.index + offset).cast_const())
    }

    /// Copies the whole frame to private memory.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        let len = self.frame_len();
        out.clear();
        out.reserve(len);
        // SAFETY: room was reserved; the source is inside the mapping, as above.
        unsafe {
            self.map.copy_out(self.index, out.as_mut_ptr(), len);
            out.set_len(len);
        }
    }

    /// Copies the whole frame to the beginning of a slice. `None` when it is longer.
    #[inline]
    pub fn copy_into<'b>(&self, out: &'b mut [u8]) -> Option<&'b mut [u8]> {
        let out = out.get_mut(..self.frame_len())?;
        // SAFETY: as long as the frame, which is inside the mapping, as above.
        unsafe { self.map.copy_out(self.index, out.as_mut_ptr(), out.len()) };
        Some(out)
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
    /// Entries found in a row, up to [`STREAM`].
    found: u32,
}

/// After so many entries in a row, more are likely to be there.
const STREAM: u32 = 4;

impl Consumer {
    /// Takes over the consuming side of a fresh ring.
    pub fn new(map: Mirror) -> Consumer {
        Consumer { map, head: 0, released: 0, found: 0 }
    }

    #[inline]
    fn index(&self) -> usize {
        self.head as usize & (self.map.data_len() - 1)
    }

    #[inline]
    fn entry(&self) -> *mut u8 {
        self.map.data().wrapping_add(self.index())
    }

    /// The word of the next entry, read once, since the producer may break its rules and change it.
    #[inline]
    fn word(&self) -> u64 {
        self.map.word(self.index()).load(Ordering::Acquire)
    }

    /// Whether frames wait.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.word() != 0
    }

    /// The next frame and, for [`skip`](Self::skip), the bytes of its entry.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<(Frame<'_>, usize)>, Broken> {
        let word = self.word();
        if word == 0 {
            self.found = 0;
            return Ok(None);
        }
        let word = Word::unpack(word);
        let taken = word.entry_len();
        let sound = word.flags & VALID != 0
            && (WORD..=OFFSET_MAX).contains(&word.offset.into())
            && taken + ALIGN <= self.map.data_len();
        if !sound {
            return Err(Broken);
        }
        let entry = self.entry();
        // Lines of the entry after the next, unless the producer may still be writing them.
        if self.found < STREAM {
            self.found += 1;
        } else if taken < AHEAD {
            for line in (0..taken).step_by(ALIGN) {
                prefetch_line(entry.wrapping_add(2 * taken + line));
            }
        }
        let index = self.index() + usize::from(word.offset);
        Ok(Some((Frame { map: &self.map, index, word }, taken)))
    }

    /// Where the next entry will be, for who wants to ask for its lines early: they take as long from the
    /// producer's processor to this one as dealing with an entry that is here.
    #[inline]
    pub fn next_entry(&self) -> *const u8 {
        self.entry()
    }

    /// Moves over an entry that was dealt with.
    #[inline]
    pub fn skip(&mut self, entry_len: usize) {
        self.head += entry_len as u64;
    }

    /// Tells the producer whether this side sleeps. Before it does, a sequentially consistent fence and
    /// [`has_frames`](Self::has_frames) have to follow.
    pub fn set_sleeps(&self, sleeps: bool) {
        self.map.control().u32_at(SLEEPS_AT).store(sleeps.into(), Ordering::Relaxed);
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
        self.map.control().u64_at(HEAD_AT).store(self.head, ordering(Plant::Release, Ordering::Release));
        self.released = self.head;
        fence_at(Plant::Room);
        let waits = self.map.control().u32_at(WAITS_AT);
        if waits.load(Ordering::Acquire) == 0 {
            return false;
        }
        let used = self.map.control().u64_at(TAIL_AT).load(Ordering::Relaxed).saturating_sub(self.head);
        used <= self.map.data_len() as u64 / 2 && waits.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(loom)]
mod model;

#[cfg(all(test, not(loom)))]
mod tests;
