//! Asking for memory that coming calls will read: by a guess, where queue pairs are used in turn, and for a
//! driver that knows what comes: a simulator of a thousand NICs, none of which is in cache when its turn
//! comes. Each of its steps reads what the one before has asked for, so a driver leaves time between them.
//! Hints only.

use crate::memory::prefetch;
use crate::nic::Nic;
use crate::queue_pair::QueuePair;
use adverb_wire::{Key, Opcode, QpNumber, Service};

/// For callers that do not know what comes: a guess.
impl Nic {
    /// A request is posted on a queue pair.
    #[inline]
    pub(crate) fn prefetch_next_post(&mut self, index: u32) {
        if let Some(step) = self.post_turns.step_after(index) {
            let next = index.wrapping_add(step);
            if let Some(QueuePair { qp, .. }) = self.qps.peek(next) {
                qp.sq.prefetch();
                qp.requester.prefetch();
            }
            self.qps.prefetch_slot(next.wrapping_add(step));
        }
    }

    /// A frame came for a queue pair.
    #[inline]
    pub(crate) fn prefetch_next_frame(&mut self, index: u32) {
        if let Some(step) = self.frame_turns.step_after(index) {
            self.qps.prefetch_slot(index.wrapping_add(step.wrapping_mul(2)));
        }
    }
}

/// For drivers that know what comes.
impl Nic {
    /// First step: what every call reads of the NIC itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(&self.timers);
        prefetch(&self.ready);
        prefetch(&self.numbers);
        prefetch(&self.state.events);
        prefetch(&self.state.armed_cqs);
        prefetch(&self.state.counters.rx_packets);
        self.state.memory.prefetch();
    }

    /// The index of the queue pair that has a number; of nobody's, one at which nothing stands.
    #[inline]
    pub fn index_of(&self, number: QpNumber) -> u32 {
        self.numbers.owner(number)
    }

    /// Before a frame, which may lie behind others and is not verified yet: what is looked up by its number.
    #[inline]
    pub fn prefetch_number(&self, opcode: Opcode, number: QpNumber) {
        match &self.star {
            Some(star) if opcode.is_of(Service::Star) => star.stateless.prefetch_life(number),
            _ => _ = self.numbers.prefetch(number),
        }
    }

    /// Second step for a frame: whose a number is, where its owner is likely to be found, and a key.
    #[inline]
    pub fn prefetch_owner(&self, number: QpNumber, key: Option<Key>) {
        let likely = self.numbers.prefetch(number);
        self.prefetch_tables(likely, key);
    }

    /// Second step: where the queue pair at an index is found, and a key that its requests name.
    #[inline]
    pub fn prefetch_tables(&self, qp: u32, key: Option<Key>) {
        self.qps.prefetch(qp);
        self.ready.prefetch();
        if let Some(key) = key {
            self.state.memory.prefetch_key(key);
        }
    }

    /// Third step: the queue pair itself, and what the key stands for.
    #[inline]
    pub fn prefetch_qp(&self, qp: u32, key: Option<Key>) {
        self.qps.prefetch_slot(qp);
        if let Some(key) = key {
            self.state.memory.prefetch_line(key);
        }
    }

    /// The index of the queue pair whose turn it is.
    #[inline]
    pub fn next_ready(&self) -> Option<u32> {
        self.ready.front()
    }
}
