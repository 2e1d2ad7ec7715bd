//! The queue pairs' timers. A deadline that moves back, as it does with each acknowledgement, costs
//! nothing: the heap holds one early entry for the queue pair, looks at it when its time comes, and
//! puts it back at the deadline that holds by then.

use crate::congestion::Control;
use crate::qp::Qp;
use adverb_wire::Instant;
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// Heap of (time, queue pair index).
#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Queue pairs that wait for their rate, apart: their times come often, and would leave an entry of the other heap behind
    /// each time.
    waiting: BinaryHeap<Reverse<(Instant, u32)>>,
}

/// The earliest of a queue pair's timers when IRN has some of its own.
#[inline(never)]
fn with_irn(qp: &Qp) -> Instant {
    qp.irn.as_ref().map_or(qp.deadline, |irn| qp.deadline.min(irn.at))
}

impl Timers {
    /// Makes sure that an entry no later than the queue pair's deadline is in the heap.
    #[inline]
    pub fn track(&mut self, qp: &mut Qp) {
        let deadline = if qp.has_irn { with_irn(qp) } else { qp.deadline };
        if deadline < qp.heap_at {
            qp.heap_at = deadline;
            self.heap.push(Reverse((deadline, qp.id.index)));
        }
    }

    /// The next entry whose time has come: index, and the time that it was entered with.
    #[inline]
    pub fn expired(&mut self, now: Instant) -> Option<(u32, Instant)> {
        match self.heap.peek() {
            Some(Reverse((at, _))) if *at <= now => {}
            _ => return None,
        }
        self.heap.pop().map(|Reverse((at, index))| (index, at))
    }

    /// Brings a queue pair that waits for its rate back in time.
    pub fn wait(&mut self, control: &mut Control, index: u32) {
        if let Some(at) = control.wait() {
            self.waiting.push(Reverse((at, index)));
        }
    }

    /// The next queue pair that has waited long enough, and the time that it was entered with.
    #[inline]
    pub fn waited(&mut self, now: Instant) -> Option<(u32, Instant)> {
        match self.waiting.peek() {
            Some(Reverse((at, _))) if *at <= now => {}
            _ => return None,
        }
        self.waiting.pop().map(|Reverse((at, index))| (index, at))
    }

    /// The earliest entry.
    #[inline]
    pub fn next(&self) -> Option<Instant> {
        let timer = self.heap.peek().map(|Reverse((at, _))| *at);
        match self.waiting.peek() {
            None => timer,
            Some(Reverse((at, _))) => Some(timer.map_or(*at, |timer| timer.min(*at))),
        }
    }
}
