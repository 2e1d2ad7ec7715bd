//! What a cross-channel send queue keeps beyond a plain one: CORE-Direct's queues, with which WQEs order each
//! other.
//!
//! Programs write the ring here; the queue pair's own ring is the NIC's memory of WQEs, filled by fetches. In
//! [`SendQueue`](super::send::SendQueue), `posted` is then how far the NIC may fetch: the doorbell, or in a
//! managed queue what was enabled. That may run past the doorbell, round and round: the same WQEs are then
//! executed again.
//!
//! ```text
//!   in flight ....... fetched ....... cached ....... may be fetched
//!   copies, until they are done       | a fetch brings more of them here
//! ```

use crate::error::Error;
use crate::queue::wqe::{Ring, WqeOp};

/// The cross-channel queues of a NIC, by queue pair index. One that has none takes no memory.
#[derive(Debug, Default)]
pub(crate) struct CrossChannels {
    by_index: Vec<Option<Box<CrossChannel>>>,
}

impl CrossChannels {
    pub fn insert(&mut self, index: u32, cross: CrossChannel) {
        let at = index as usize;
        if self.by_index.len() <= at {
            self.by_index.resize_with(at + 1, || None);
        }
        self.by_index[at] = Some(Box::new(cross));
    }

    pub fn remove(&mut self, index: u32) {
        if let Some(cross) = self.by_index.get_mut(index as usize) {
            *cross = None;
        }
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&CrossChannel> {
        self.by_index.get(index as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut CrossChannel> {
        self.by_index.get_mut(index as usize)?.as_deref_mut()
    }
}

/// A cross-channel send queue.
#[derive(Debug)]
pub(crate) struct CrossChannel {
    /// The ring that programs write.
    pub host: Ring,
    /// Blocks posted: the doorbell.
    pub posted: u32,
    /// Copies of the WQEs before this block are at hand.
    pub cached: u32,
    /// Fetched no further than ENABLEs allow.
    pub managed: bool,
    /// Posts to a full queue replace its oldest WQEs.
    pub ignores_overflow: bool,
    /// WQEs that a fetch brings, WAITs not counted: the first after all that was posted has been fetched, and
    /// the later ones.
    pub first: u8,
    pub batch: u8,
    /// The next fetch is a first one.
    pub idle: bool,
    /// Index of the completion queue in whose row this queue waits.
    pub waits_for: Option<u32>,
}

impl CrossChannel {
    /// One for a ring of so many blocks.
    pub fn new(blocks: u32, managed: bool, (first, batch): (u8, u8)) -> Result<CrossChannel, Error> {
        let mut host = Ring::new(blocks);
        host.allocate()?;
        let (first, batch) = (first.max(1), batch.max(1));
        Ok(CrossChannel {
            host,
            posted: 0,
            cached: 0,
            managed,
            ignores_overflow: false,
            first,
            batch,
            idle: true,
            waits_for: None,
        })
    }

    /// Empties the queue (transition to RESET).
    pub fn reset(&mut self) {
        (self.posted, self.cached, self.idle) = (0, 0, true);
    }

    /// Reads WQEs into `copies`, from what programs have written, up to block `end` and without touching
    /// those from block `oldest` on, which are in flight. How many were read.
    pub fn read_ahead(&mut self, copies: &Ring, oldest: u32, end: u32) -> u8 {
        let most = if core::mem::take(&mut self.idle) { self.first } else { self.batch };
        let (mut read, mut counted) = (0u8, 0u8);
        while self.cached != end && counted < most && read < u8::MAX {
            let room = copies.blocks() - self.cached.wrapping_sub(oldest);
            if room == 0 {
                break;
            }
            copies.copy_from(&self.host, self.cached, 1);
            let (op, blocks) = copies.peek(self.cached);
            if blocks > 1 {
                // One that claims more than is there is found out when it is decoded.
                let blocks = blocks.min(end.wrapping_sub(self.cached)).min(copies.blocks());
                if blocks > room {
                    break;
                }
                copies.copy_from(&self.host, self.cached.wrapping_add(1), blocks - 1);
                self.cached = self.cached.wrapping_add(blocks);
            } else {
                self.cached = self.cached.wrapping_add(1);
            }
            read += 1;
            counted += u8::from(op != WqeOp::Wait as u8);
        }
        self.idle = self.cached == end;
        read
    }

    /// Whether a WAIT or an ENABLE is among the WQEs that the next fetch reads, up to block `end`.
    pub fn orders_ahead(&self, end: u32) -> bool {
        let most = if self.idle { self.first } else { self.batch };
        let (mut at, mut counted) = (self.cached, 0u8);
        while at != end && counted < most {
            let (op, blocks) = self.host.peek(at);
            if [WqeOp::Wait, WqeOp::SendEnable, WqeOp::RecvEnable].iter().any(|known| op == *known as u8) {
                return true;
            }
            at = at.wrapping_add(blocks.min(end.wrapping_sub(at)));
            counted += 1;
        }
        false
    }

    /// What is at hand fits the ring.
    pub fn check_invariants(&self, fetched: u32) {
        assert!(
            self.cached.wrapping_sub(fetched) <= self.host.blocks(),
            "more WQEs at hand than there is room for"
        );
    }
}
