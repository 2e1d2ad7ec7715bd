//! Queue pairs with something to send, served round robin.

use crate::limits;
use crate::memory::prefetch;
use std::collections::VecDeque;

/// A row of queue pair indices; each stands in it at most once (`Qp::ready`).
#[derive(Default)]
pub(crate) struct Ready {
    row: VecDeque<u16>,
    served: u32,
}

const _: () = assert!(limits::MAX_QP <= 1 << 16);

impl Ready {
    /// Whose turn it is.
    #[inline]
    pub fn front(&self) -> Option<u32> {
        self.row.front().map(|&index| index.into())
    }

    /// Everybody, in the order of their turns.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.row.iter().map(|&index| index.into())
    }

    /// Asks for the row.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(self.row.as_slices().0);
    }

    /// Adds a queue pair at the end.
    #[inline]
    pub fn push(&mut self, index: u32) {
        self.row.push_back(index as u16);
    }

    /// Adds a queue pair before all others.
    #[inline]
    pub fn push_first(&mut self, index: u32) {
        self.row.push_front(index as u16);
    }

    /// Takes the first one out.
    #[inline]
    pub fn pop(&mut self) {
        self.row.pop_front();
        self.served = 0;
    }

    /// The first one has sent a frame; after a quantum the turn goes on.
    #[inline]
    pub fn served(&mut self, index: u32, quantum: u32) {
        self.served += 1;
        if self.served >= quantum && self.row.len() > 1 && self.front() == Some(index) {
            self.row.rotate_left(1);
            self.served = 0;
        }
    }

    /// The first one has worked for as long as a turn is, without a frame: the turn goes on.
    #[cold]
    pub fn pass(&mut self, index: u32) {
        if self.row.len() > 1 && self.front() == Some(index) {
            self.row.rotate_left(1);
            self.served = 0;
        }
    }

    /// Whether others than the first one wait for their turn.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.row.len() > 1
    }

    /// Takes a queue pair out wherever it stands.
    pub fn remove(&mut self, index: u32) {
        self.row.retain(|&i| u32::from(i) != index);
    }
}
