//! The notification point: who receives packets that switches have marked tells their sender, at most once in
//! an interval for a queue pair (IBTA A17.9; DCQCN 3.1).

use crate::memory::{QueueMemory, Span};
use adverb_wire::{CNP_PAYLOAD, Duration, Instant};
use std::collections::VecDeque;

/// Notifications of a NIC. Queue pairs carry nothing for it.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Notifier {
    /// Queue pairs whose peers are to be told, by index; each at most once.
    due: VecDeque<u32>,
    /// When each queue pair's peer was last told, by index; as long as the last index that was marked.
    told: Vec<Instant>,
    /// What notifications carry: zeros.
    payload: Option<QueueMemory>,
}

impl Notifier {
    /// Whether somebody is to be told.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// A marked packet came for the queue pair.
    pub fn on_marked(&mut self, index: u32, interval: Duration, now: Instant) {
        let at = index as usize;
        if self.told.len() <= at {
            // The index is below `limits::MAX_QP`.
            self.told.resize(at + 1, Instant::NEVER);
        }
        let told = &mut self.told[at];
        if *told == Instant::NEVER || now.since(*told) >= interval {
            *told = now;
            self.due.push_back(index);
        }
    }

    /// Whose turn it is.
    pub fn next(&mut self) -> Option<u32> {
        self.due.pop_front()
    }

    /// A queue pair begins anew, or goes away.
    pub fn forget(&mut self, index: u32) {
        self.due.retain(|due| *due != index);
        if let Some(told) = self.told.get_mut(index as usize) {
            *told = Instant::NEVER;
        }
    }

    /// The bytes of a notification; `None` when the host has no memory for them.
    pub fn payload(&mut self) -> Option<Span> {
        if self.payload.is_none() {
            self.payload = QueueMemory::new(CNP_PAYLOAD.len()).ok();
        }
        self.payload.as_ref().map(|memory| memory.span(0, CNP_PAYLOAD.len()))
    }
}
