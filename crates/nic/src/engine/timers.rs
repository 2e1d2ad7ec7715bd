//! The queue pairs' timers. A deadline that moves back, as it does with each acknowledgement, costs
//! nothing: the heap holds one early entry for the queue pair, looks at it when its time comes, and
//! puts it back at the deadline that holds by then.

use crate::congestion::control::Control;
use crate::queue_pair::QueuePair;
use adverb_wire::Instant;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// When a queue pair is to be looked at; the earliest is the greatest. Packed: each queue pair with a timer
/// has one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct Entry {
    at: Reverse<Instant>,
    index: Reverse<u32>,
}

const _: () = assert!(core::mem::size_of::<Entry>() == 12);

impl Entry {
    #[inline]
    fn new(at: Instant, index: u32) -> Entry {
        Entry { at: Reverse(at), index: Reverse(index) }
    }

    #[inline]
    fn at(&self) -> Instant {
        let Reverse(at) = self.at;
        at
    }
}

/// Takes out the first entry, if its time has come: index, and the time that it was entered with.
#[inline]
fn take_due(heap: &mut BinaryHeap<Entry>, now: Instant) -> Option<(u32, Instant)> {
    let at = heap.peek().map(Entry::at).filter(|at| *at <= now)?;
    heap.pop().map(|Entry { index: Reverse(index), .. }| (index, at))
}

/// Heap of (time, queue pair index).
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Entry>,
    /// Queue pairs that wait for their rate, apart: their times come often, and would leave an entry of the
    /// other heap behind each time.
    waiting: BinaryHeap<Entry>,
}

impl Timers {
    /// Makes sure that an entry no later than the queue pair's deadline is in the heap.
    #[inline]
    pub fn track(&mut self, pair: &mut QueuePair) {
        let deadline = pair.deadline();
        let qp = &mut pair.qp;
        if deadline < qp.heap_at {
            qp.heap_at = deadline;
            self.heap.push(Entry::new(deadline, qp.index()));
        }
    }

    /// Enters a time for what is no queue pair: it is looked at when the time has come.
    pub fn enter(&mut self, at: Instant, index: u32) {
        self.heap.push(Entry::new(at, index));
    }

    /// The next entry whose time has come: index, and the time that it was entered with.
    #[inline]
    pub fn expired(&mut self, now: Instant) -> Option<(u32, Instant)> {
        take_due(&mut self.heap, now)
    }

    /// Brings a queue pair that waits for its rate back in time.
    pub fn wait(&mut self, control: &mut Control, index: u32) {
        if let Some(at) = control.wait() {
            self.waiting.push(Entry::new(at, index));
        }
    }

    /// The next queue pair that has waited long enough, and the time that it was entered with.
    #[inline]
    pub fn waited(&mut self, now: Instant) -> Option<(u32, Instant)> {
        take_due(&mut self.waiting, now)
    }

    /// The earliest entry but for those of queue pairs that wait for their rate.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.heap.peek().map(Entry::at)
    }

    /// The earliest entry.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let timer = self.heap.peek().map(Entry::at);
        match self.waiting.peek().map(Entry::at) {
            None => timer,
            Some(at) => Some(timer.map_or(at, |timer| timer.min(at))),
        }
    }
}
