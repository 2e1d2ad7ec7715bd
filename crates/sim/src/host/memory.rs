//! Memory that simulated hosts register: real bytes where a run carries payload, and an address range
//! that nobody touches where payload is elided. The crate's only unsafe code.

use adverb_nic::memory::{Memory, MrInit};
use adverb_nic::{Access, Error, MrInfo, Nic, PdId, QpId, Sge};
use adverb_wire::Key;
use core::cell::UnsafeCell;
use core::ops::Range;
use std::rc::{Rc, Weak};

/// Bytes that NICs access through their address, zero at first. Pages that are never touched take no
/// memory, so a range for elided payload costs address space only.
pub struct Buffer {
    words: Box<[UnsafeCell<u64>]>,
}

impl Buffer {
    /// `len` bytes, rounded up to a multiple of 8.
    pub fn new(len: usize) -> Buffer {
        let zeroed = Box::into_raw(vec![0u64; len.div_ceil(8)].into_boxed_slice());
        // SAFETY: a cell of a word has the word's layout, and the box was just given up. (Collecting
        // into cells would touch every page.)
        let words = unsafe { Box::from_raw(zeroed as *mut [UnsafeCell<u64>]) };
        Buffer { words }
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.words.len() * 8
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Registers all of it with the NIC.
    pub fn register(&self, nic: &mut Nic, pd: PdId, access: Access) -> Result<MrInfo, Error> {
        self.register_for(nic.memory(), pd, access)
    }

    /// Registers all of it in a NIC's memory.
    pub fn register_for(&self, memory: &mut Memory, pd: PdId, access: Access) -> Result<MrInfo, Error> {
        let init = MrInit { pd, addr: self.addr(), len: self.len() as u64, iova: self.addr(), access };
        // SAFETY: the simulation drops its NICs before its buffers, the words are cells, and nobody
        // makes a reference to them.
        unsafe { memory.reg_mr(&init) }
    }

    /// Registers a part of it in a NIC's memory, named by other addresses than its own.
    ///
    /// # Panics
    /// If the part is not inside.
    pub fn register_part(
        &self,
        memory: &mut Memory,
        pd: PdId,
        access: Access,
        part: Range<u64>,
        iova: u64,
    ) -> Result<MrInfo, Error> {
        assert!(part.start <= part.end && part.end <= self.len() as u64, "inside the buffer");
        let (addr, len) = (self.addr() + part.start, part.end - part.start);
        // SAFETY: as in `register_for`; whoever registers memory of a program keeps the buffer until the
        // region is gone.
        unsafe { memory.reg_mr(&MrInit { pd, addr, len, iova, access }) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= self.len() && out.len() <= self.len() - offset, "inside the buffer");
        let start = self.words.as_ptr().cast::<u8>();
        for (i, byte) in out.iter_mut().enumerate() {
            // SAFETY: inside the allocation, as asserted. A simulation is single-threaded: no NIC runs
            // while its buffers are read.
            *byte = unsafe { start.add(offset + i).read() };
        }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len() && bytes.len() <= self.len() - offset, "inside the buffer");
        let start = self.words.as_ptr().cast::<u8>().cast_mut();
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as in `read`; the bytes are in cells, so they may be written through a pointer.
            unsafe { start.add(offset + i).write(*byte) };
        }
    }

    /// An aligned word in host order.
    pub fn word(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// A scatter/gather entry over a part.
    pub fn sge(&self, offset: usize, len: usize, lkey: Key) -> Sge {
        Sge { addr: self.addr() + offset as u64, len: len as u32, lkey }
    }
}

/// Memory on a NIC: buffers that it reaches without PCIe. One that is gone counts no more.
#[derive(Default)]
pub struct Chip {
    parts: Vec<(Range<u64>, Weak<Buffer>)>,
}

impl Chip {
    /// The buffer is on the NIC from now on.
    pub fn add(&mut self, buffer: &Rc<Buffer>) {
        self.parts.retain(|(_, buffer)| buffer.strong_count() > 0);
        let addr = buffer.addr();
        self.parts.push((addr..addr + buffer.len() as u64, Rc::downgrade(buffer)));
    }

    /// Whether nothing was ever put there.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn alive(&self) -> impl Iterator<Item = &Range<u64>> {
        self.parts.iter().filter(|(_, buffer)| buffer.strong_count() > 0).map(|(range, _)| range)
    }

    /// Whether this address of the machine that simulates is on the NIC.
    pub fn contains(&self, addr: u64) -> bool {
        self.alive().any(|range| range.contains(&addr))
    }

    /// Bytes that are taken.
    pub fn used(&self) -> u64 {
        self.alive().map(|range| range.end - range.start).sum()
    }
}

/// Registers the memory of a queue pair's send queue, named by other addresses than its own, and says how
/// long it is.
pub fn register_queue(
    nic: &mut Nic,
    pd: PdId,
    qp: QpId,
    iova: u64,
    access: Access,
) -> Result<(MrInfo, u64), Error> {
    let queue = nic.send_queue_memory(qp)?;
    let (addr, len) = (queue.addr(), queue.len() as u64);
    // SAFETY: the memory of queues is never unmapped, and whoever has it makes no reference to it.
    let mr = unsafe { nic.memory().reg_mr(&MrInit { pd, addr, len, iova, access }) }?;
    Ok((mr, len))
}

/// Copies a frame's payload into `out`, replacing what it held.
pub fn gather(payload: &adverb_nic::memory::Gather, out: &mut Vec<u8>) {
    out.clear();
    out.resize(payload.len(), 0);
    let mut at = 0;
    for span in payload.spans() {
        adverb_nic::memory::dma::read_bytes(*span, &mut out[at..at + span.len()]);
        at += span.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_and_untouched_ranges_are_zero() {
        let buffer = Buffer::new(1 << 30);
        buffer.write((1 << 30) - 11, b"hello world");
        let mut out = [0; 11];
        buffer.read((1 << 30) - 11, &mut out);
        assert_eq!(&out, b"hello world");
        assert_eq!(buffer.word(4096), 0);
    }
}
