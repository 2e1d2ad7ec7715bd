//! Asking for memory that coming calls will read, for a driver that knows what comes: a simulator of a thousand NICs, none
//! of which is in cache when its turn comes. Each step reads what the one before has asked for, so a driver leaves
//! time between them. Hints only.

use crate::memory::{prefetch, prefetch_whole};
use crate::nic::Nic;
use adverb_wire::Key;

impl Nic {
    /// First step: what every call reads of the NIC itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_whole(&self.qps);
        prefetch_whole(&self.ready);
        prefetch(&self.timers);
        prefetch(&self.config.qpn_base);
        prefetch(&self.shared.counters.rx_packets);
        prefetch(&self.shared.counters.tx_packets);
        prefetch(&self.shared.notifier);
        prefetch(&self.shared.pending);
        prefetch(&self.shared.events);
        prefetch(&self.shared.stepped);
        self.shared.memory.prefetch();
    }

    /// Second step: where the queue pair with these low 16 bits of its number is found, and a key that its
    /// requests name.
    #[inline]
    pub fn prefetch_tables(&self, qp: u32, key: Option<Key>) {
        self.qps.prefetch(qp & 0xffff);
        self.ready.prefetch();
        if let Some(key) = key {
            self.shared.memory.prefetch_key(key);
        }
    }

    /// Third step: the queue pair itself, and what the key stands for.
    #[inline]
    pub fn prefetch_qp(&self, qp: u32, key: Option<Key>) {
        if let Some(qp) = self.qps.peek(qp & 0xffff) {
            prefetch_whole(&**qp);
        }
        if let Some(key) = key {
            self.shared.memory.prefetch_line(key);
        }
    }

    /// The queue pair whose turn it is, by the low 16 bits of its number.
    #[inline]
    pub fn next_ready(&self) -> Option<u32> {
        self.ready.front()
    }
}
