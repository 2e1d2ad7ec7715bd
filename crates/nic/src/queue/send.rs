//! A send queue: a ring of WQE blocks and its doorbell.
//!
//! All indices count blocks, run freely modulo 2^32 and are masked on use:
//! `released <= fetched <= posted`, and `posted - released` never exceeds the ring.
//! A block is released when the completion that covers it is polled, as on mlx5. A request may take fewer
//! blocks than the largest one, of which the ring has room for as many as the queue pair was created with; so
//! requests are counted too, and no more are taken than the program was told.
//!
//! An empty queue goes on at the first block of its ring: a thousand queue pairs that are used now and then
//! keep a line each in the processor's cache, not all of their rings. A program that writes WQEs itself
//! counts blocks, so a queue whose memory it has asked for goes round.

use crate::error::Error;
use crate::memory::QueueMemory;
use crate::queue::cross::CrossChannel;
use crate::queue::wqe::{self, Layout, Ring};
use crate::work::{SendData, SendWr};
use adverb_wire::QpNumber;

/// A queue pair's send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub ring: Ring,
    /// Producer index: the doorbell.
    pub posted: u32,
    /// Next block to fetch.
    pub fetched: u32,
    /// Blocks before this one may be overwritten.
    pub released: u32,
    max_inline: u16,
    max_sge: u8,
    layout: Layout,
    sig_all: bool,
    writer: Writer,
    /// Requests that were posted and not released, where only the NIC writes WQEs.
    requests: u16,
}

/// Who writes a send queue's WQEs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Writer {
    /// The NIC, of requests that were posted.
    Nic,
    /// A program too, which counts on where the next one goes.
    Program,
    /// A cross-channel queue: programs write another ring.
    Cross,
}

const _: () = assert!(core::mem::size_of::<SendQueue>() == 36);

impl SendQueue {
    /// A queue for `max_wr` requests of the largest size, without memory until it is used: many a queue pair
    /// only receives.
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32, layout: Layout, sig_all: bool) -> Self {
        let blocks = (max_wr.max(1) * wqe::blocks_per_wr(max_sge, max_inline, layout)).next_power_of_two();
        SendQueue {
            ring: Ring::new(blocks),
            posted: 0,
            fetched: 0,
            released: 0,
            max_inline: max_inline as u16,
            max_sge: max_sge as u8,
            layout,
            sig_all,
            writer: Writer::Nic,
            requests: 0,
        }
    }

    /// Makes it a cross-channel queue.
    pub fn cross(&mut self) {
        self.writer = Writer::Cross;
    }

    /// Whether it is a cross-channel queue.
    #[inline]
    pub fn is_cross(&self) -> bool {
        self.writer == Writer::Cross
    }

    /// Whether its WQEs are not only the NIC's own.
    #[inline]
    pub fn is_written_by_program(&self) -> bool {
        self.writer != Writer::Nic
    }

    /// Whether `more` requests that take `blocks` blocks fit, of `most` that the queue may hold.
    #[inline]
    pub fn has_room(&self, more: usize, blocks: usize, most: u32) -> bool {
        let free = self.ring.blocks().saturating_sub(self.posted.wrapping_sub(self.released));
        let counted = self.writer != Writer::Nic || usize::from(self.requests) + more <= most as usize;
        counted && blocks <= free as usize
    }

    /// Takes the queue's memory, if it has none yet. `TableFull` when the host has no more.
    #[cold]
    pub fn allocate(&mut self) -> Result<(), Error> {
        if self.ring.allocated() == 0 {
            self.ring.allocate()?;
        }
        Ok(())
    }

    /// The ring's memory, for a program that writes WQEs itself.
    pub fn memory(&mut self) -> Result<&QueueMemory, Error> {
        self.allocate()?;
        self.writer = Writer::Program;
        Ok(self.ring.memory())
    }

    /// Asks for where the next post writes.
    #[inline]
    pub fn prefetch(&self) {
        let block = if self.begins_again() { 0 } else { self.posted & (self.ring.blocks() - 1) };
        self.ring.prefetch(block);
    }

    /// Whether the next post goes to the first block.
    #[inline]
    fn begins_again(&self) -> bool {
        self.posted == self.released && self.writer == Writer::Nic
    }

    /// Moves on to the first block of the ring.
    #[inline]
    fn begin_again(&mut self) {
        let mask = self.ring.blocks() - 1;
        self.posted = self.posted.wrapping_add(mask) & !mask;
        (self.fetched, self.released) = (self.posted, self.posted);
    }

    /// Inline bytes of a request, and entries of its list, that it was made for.
    pub fn request_sizes(&self) -> (u16, u8) {
        (self.max_inline, self.max_sge)
    }

    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Every request asks for a completion.
    pub fn signals_all(&self) -> bool {
        self.sig_all
    }

    /// Empties the queue (transition to RESET).
    pub fn reset(&mut self) {
        self.posted = 0;
        self.fetched = 0;
        self.released = 0;
        self.requests = 0;
    }

    /// Work is posted that has not been fetched.
    #[inline]
    pub fn has_unfetched(&self) -> bool {
        self.posted != self.fetched
    }

    #[inline]
    fn check_sizes(&self, wr: &SendWr<'_>) -> Result<(), Error> {
        match wr.data {
            SendData::Sges(list) if list.len() > self.max_sge as usize => {
                return Err(Error::Invalid("number of scatter/gather entries"));
            }
            SendData::Sges(list) if !wqe::is_message(list) => {
                return Err(Error::Invalid("message longer than 2^31 bytes"));
            }
            SendData::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(Error::Invalid("inline length"));
            }
            _ => {}
        }
        if self.layout == Layout::Datagram && wr.ud.is_none() {
            return Err(Error::Invalid("datagram without an address"));
        }
        Ok(())
    }

    /// As [`SendQueue::post`], on a cross-channel queue: into the ring that programs write. A managed queue's
    /// doorbell lets nothing be fetched.
    #[inline(never)]
    pub fn post_cross(
        &mut self,
        cross: &mut CrossChannel,
        qpn: QpNumber,
        wr: &SendWr<'_>,
    ) -> Result<u32, Error> {
        self.check_sizes(wr)?;
        let blocks = wqe::segments_needed(wr, self.layout).div_ceil(4) as u32;
        // What was recycled may be released beyond the doorbell.
        let used = (cross.posted.wrapping_sub(self.released) as i32).max(0) as u32;
        let room = if cross.ignores_overflow { blocks } else { used + blocks };
        if room > self.ring.blocks() {
            return Err(Error::QueueFull);
        }
        let signaled = wr.flags.signaled || self.sig_all;
        cross.host.encode(cross.posted, qpn, wr, signaled, self.layout);
        let block = cross.posted;
        cross.posted = block.wrapping_add(blocks);
        if !cross.managed {
            self.posted = cross.posted;
        }
        Ok(block)
    }

    /// Writes a WQE that a program has built, all but its index, and moves the producer index over it; the
    /// block that it starts at. `most` is as for [`SendQueue::post`].
    pub fn post_built(
        &mut self,
        cross: Option<&mut CrossChannel>,
        wqe: &[u8],
        most: u32,
    ) -> Result<u32, Error> {
        let blocks = wqe::blocks_of_built(wqe, self.layout)?;
        if let Some(cross) = cross {
            // What was recycled may be released beyond the doorbell.
            let used = (cross.posted.wrapping_sub(self.released) as i32).max(0) as u32;
            let room = if cross.ignores_overflow { blocks } else { used + blocks };
            if room > self.ring.blocks() {
                return Err(Error::QueueFull);
            }
            let block = cross.posted;
            cross.host.write_built(block, wqe);
            cross.posted = block.wrapping_add(blocks);
            if !cross.managed {
                self.posted = cross.posted;
            }
            return Ok(block);
        }
        let largest = wqe::blocks_per_wr(self.max_sge.into(), self.max_inline.into(), self.layout);
        if self.writer == Writer::Nic && blocks > largest {
            return Err(Error::Invalid("work queue element longer than any request of its queue pair"));
        }
        self.allocate()?;
        if self.begins_again() {
            self.begin_again();
        }
        let used = self.posted.wrapping_sub(self.released);
        if (u32::from(self.requests) >= most && self.writer == Writer::Nic)
            || used + blocks > self.ring.blocks()
        {
            return Err(Error::QueueFull);
        }
        let block = self.posted;
        self.ring.write_built(block, wqe);
        self.posted = block.wrapping_add(blocks);
        self.requests = self.requests.wrapping_add((self.writer == Writer::Nic) as u16);
        Ok(block)
    }

    /// Rings the doorbell of a queue whose WQEs were written through memory: `posted` blocks in all.
    pub fn ring(&mut self, posted: u32) -> Result<(), Error> {
        let blocks = self.ring.blocks();
        if posted.wrapping_sub(self.released) > blocks || posted.wrapping_sub(self.fetched) > blocks {
            return Err(Error::QueueFull);
        }
        self.allocate()?;
        self.posted = posted;
        Ok(())
    }

    /// Rings the doorbell of a cross-channel queue: `posted` blocks in all.
    pub fn ring_cross(&mut self, cross: &mut CrossChannel, posted: u32) -> Result<(), Error> {
        let blocks = self.ring.blocks();
        let used = (posted.wrapping_sub(self.released) as i32).max(0) as u32;
        let overflows = used > blocks && !cross.ignores_overflow;
        if overflows || posted.wrapping_sub(cross.posted) > blocks {
            return Err(Error::QueueFull);
        }
        cross.posted = posted;
        if !cross.managed {
            self.posted = posted;
        }
        Ok(())
    }

    /// An ENABLE: the managed send queue may be fetched up to `end`, a count of blocks modulo 2^16. One that
    /// says less than is enabled already, or more than half of that circle ahead of what is fetched, changes
    /// nothing.
    pub fn enable(&mut self, end: u16) {
        let posted = self.posted.wrapping_add(end.wrapping_sub(self.posted as u16).into());
        let before = self.posted.wrapping_sub(self.fetched);
        let after = posted.wrapping_sub(self.fetched);
        if before <= after && after <= 1 << 15 {
            self.posted = posted;
        }
    }

    /// Writes a work request into the ring and moves the producer index over it; the block that it starts at.
    ///
    /// `QueueFull` when `most` requests are in the queue or the ring has no room, `Invalid` when the request
    /// does not fit the sizes that the queue was created with.
    pub fn post(&mut self, qpn: QpNumber, wr: &SendWr<'_>, most: u32) -> Result<u32, Error> {
        self.check_sizes(wr)?;
        if u32::from(self.requests) >= most && self.writer == Writer::Nic {
            return Err(Error::QueueFull);
        }
        let blocks = wqe::segments_needed(wr, self.layout).div_ceil(4) as u32;
        if self.begins_again() {
            self.begin_again();
        }
        let used = self.posted.wrapping_sub(self.released);
        if used + blocks > self.ring.allocated() {
            self.allocate()?;
            if used + blocks > self.ring.blocks() {
                return Err(Error::QueueFull);
            }
        }
        let signaled = wr.flags.signaled || self.sig_all;
        self.ring.encode(self.posted, qpn, wr, signaled, self.layout);
        let block = self.posted;
        self.posted = block.wrapping_add(blocks);
        self.requests = self.requests.wrapping_add((self.writer == Writer::Nic) as u16);
        Ok(block)
    }

    /// Frees all blocks before `end`, and the requests that they hold.
    #[inline]
    pub fn release_to(&mut self, end: u32) {
        let freed = end.wrapping_sub(self.released) as i32;
        if freed > 0 {
            let requests = if freed == 1 { 1 } else { self.requests_before(end) };
            self.requests = self.requests.saturating_sub(requests);
            self.released = end;
        }
    }

    /// Requests whose blocks lie between those released and `end`.
    fn requests_before(&self, end: u32) -> u16 {
        if wqe::blocks_per_wr(self.max_sge.into(), self.max_inline.into(), self.layout) == 1 {
            return end.wrapping_sub(self.released) as u16;
        }
        let mut requests = 0;
        let mut block = self.released;
        while self.writer == Writer::Nic && (end.wrapping_sub(block) as i32) > 0 {
            requests += 1;
            block = block.wrapping_add(self.ring.peek(block).1);
        }
        requests
    }

    /// `released <= fetched <= posted` on the circle, within the ring.
    pub fn check_invariants(&self) {
        let posted = self.posted.wrapping_sub(self.released);
        let fetched = self.fetched.wrapping_sub(self.released);
        assert!(posted <= self.ring.blocks(), "send queue overran");
        assert!(fetched <= posted, "fetched beyond the doorbell");
        assert!(u32::from(self.requests) <= posted, "more requests than blocks");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{SendFlags, SendOp, Sge};

    /// Posts `count` requests and releases them; the masked blocks that they took.
    fn use_queue(queue: &mut SendQueue, count: u32) -> Vec<u32> {
        let sges = [Sge::default()];
        let data = SendData::Sges(&sges);
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let mut blocks = Vec::new();
        for number in 0..count {
            let wr = SendWr { wr_id: number.into(), op: SendOp::Send, flags, data, ud: None, xrc_srqn: 0 };
            let block = queue.post(QpNumber::new(1), &wr, u32::MAX).unwrap();
            assert_eq!(block, queue.posted.wrapping_sub(1));
            blocks.push(block & (queue.ring.blocks() - 1));
            queue.check_invariants();
        }
        queue.fetched = queue.posted;
        queue.release_to(queue.posted);
        queue.check_invariants();
        assert_eq!(queue.requests, 0);
        blocks
    }

    #[test]
    fn an_empty_queue_goes_on_at_its_first_block() {
        let mut queue = SendQueue::new(8, 1, 0, Layout::Connected, false);
        // Near the end of the circle, which a long life reaches.
        (queue.posted, queue.fetched, queue.released) = (u32::MAX - 8, u32::MAX - 8, u32::MAX - 8);
        for _ in 0..4 {
            assert_eq!(use_queue(&mut queue, 3), [0, 1, 2]);
        }
        assert_eq!(use_queue(&mut queue, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_queue_that_somebody_else_writes_goes_round() {
        let mut queue = SendQueue::new(8, 1, 0, Layout::Connected, false);
        queue.memory().unwrap();
        assert_eq!(use_queue(&mut queue, 3), [0, 1, 2]);
        assert_eq!(use_queue(&mut queue, 3), [3, 4, 5]);
        assert_eq!(use_queue(&mut queue, 3), [6, 7, 0]);
    }
}
