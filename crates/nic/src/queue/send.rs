//! A send queue: a ring of WQE blocks, its doorbell, and the caller's words for its completions.
//!
//! All indices count blocks, run freely modulo 2^32 and are masked on use:
//! `released <= fetched <= posted`, and `posted - released` never exceeds the ring.
//! A block is released when the completion that covers it is polled, as on mlx5.

use crate::error::Error;
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
    wr_ids: Box<[u64]>,
    max_inline: u16,
    max_sge: u8,
    layout: Layout,
    sig_all: bool,
}

/// Checked shape of one post: what [`SendQueue::check`] found.
impl SendQueue {
    /// A queue for `max_wr` requests of the largest size, without memory until it is used: many a queue pair only receives.
    pub fn new(max_wr: u32, max_sge: u32, max_inline: u32, layout: Layout, sig_all: bool) -> Self {
        let blocks = (max_wr.max(1) * wqe::blocks_per_wr(max_sge, max_inline, layout)).next_power_of_two();
        SendQueue {
            ring: Ring::new(blocks),
            posted: 0,
            fetched: 0,
            released: 0,
            wr_ids: Box::default(),
            max_inline: max_inline as u16,
            max_sge: max_sge as u8,
            layout,
            sig_all,
        }
    }

    /// Takes the queue's memory, if it has none yet. `TableFull` when the host has no more.
    #[cold]
    pub fn allocate(&mut self) -> Result<(), Error> {
        if self.ring.allocated() == 0 {
            self.ring.allocate()?;
            self.wr_ids = vec![0; self.ring.blocks() as usize].into_boxed_slice();
        }
        Ok(())
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
    }

    /// Work is posted that has not been fetched.
    #[inline]
    pub fn has_unfetched(&self) -> bool {
        self.posted != self.fetched
    }

    /// Writes a work request into the ring and moves the producer index over it.
    ///
    /// `QueueFull` when the ring has no room, `Invalid` when the request does not fit the sizes that
    /// the queue was created with.
    pub fn post(&mut self, qpn: QpNumber, wr: &SendWr<'_>) -> Result<(), Error> {
        match wr.data {
            SendData::Sges(list) if list.len() > self.max_sge as usize => {
                return Err(Error::Invalid("number of scatter/gather entries"));
            }
            SendData::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(Error::Invalid("inline length"));
            }
            _ => {}
        }
        if self.layout == Layout::Datagram && wr.ud.is_none() {
            return Err(Error::Invalid("datagram without an address"));
        }
        let blocks = wqe::segments_needed(wr, self.layout).div_ceil(4) as u32;
        let used = self.posted.wrapping_sub(self.released);
        if used + blocks > self.ring.allocated() {
            self.allocate()?;
            if used + blocks > self.ring.blocks() {
                return Err(Error::QueueFull);
            }
        }
        let signaled = wr.flags.signaled || self.sig_all;
        self.ring.encode(self.posted, qpn, wr, signaled, self.layout);
        let mask = self.ring.blocks() - 1;
        self.wr_ids[(self.posted & mask) as usize] = wr.wr_id;
        self.posted = self.posted.wrapping_add(blocks);
        Ok(())
    }

    /// The caller's word for the WQE that starts at `block`.
    #[inline]
    pub fn wr_id(&self, block: u32) -> u64 {
        self.wr_ids[(block & (self.ring.blocks() - 1)) as usize]
    }

    /// Frees all blocks before `end`.
    #[inline]
    pub fn release_to(&mut self, end: u32) {
        if (end.wrapping_sub(self.released) as i32) > 0 {
            self.released = end;
        }
    }

    /// `released <= fetched <= posted` on the circle, within the ring.
    pub fn check_invariants(&self) {
        let posted = self.posted.wrapping_sub(self.released);
        let fetched = self.fetched.wrapping_sub(self.released);
        assert!(posted <= self.ring.blocks(), "send queue overran");
        assert!(fetched <= posted, "fetched beyond the doorbell");
    }
}
