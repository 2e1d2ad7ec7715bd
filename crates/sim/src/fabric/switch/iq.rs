//! Input-queued: virtual output queues, served round robin by each output (IRN, section 4.1).
//!
//! An output keeps the row of its virtual output queues that have packets; it serves the first one's
//! first packet and puts the queue at the row's end. The crossbar is not a bottleneck: an input may
//! send to several outputs at once.

use crate::fabric::packet::{Hot, NONE, Packets};

/// First and last: of packets (shared buffer) or of queues that have packets (input-queued).
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// First.
    pub head: u32,
    /// Last.
    pub tail: u32,
}

impl Row {
    /// Nothing.
    pub const EMPTY: Row = Row { head: NONE, tail: NONE };

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// A virtual output queue: packets from one input to one output.
#[derive(Clone, Copy, Debug)]
pub struct Voq {
    head: u32,
    tail: u32,
    /// The queue behind it in its output's row.
    next: u32,
}

impl Voq {
    /// No packets.
    pub const EMPTY: Voq = Voq { head: NONE, tail: NONE, next: NONE };
}

#[inline]
fn append(row: &mut Row, voqs: &mut [Voq], voq: u32) {
    voqs[voq as usize].next = NONE;
    match row.tail {
        NONE => row.head = voq,
        tail => voqs[tail as usize].next = voq,
    }
    row.tail = voq;
}

/// Adds a packet to a queue of the row's output.
#[inline]
pub fn push(row: &mut Row, voqs: &mut [Voq], packets: &mut Packets, voq: u32, id: u32) {
    packets.hot[id as usize].next = NONE;
    let queue = &mut voqs[voq as usize];
    if queue.head == NONE {
        queue.head = id;
        queue.tail = id;
        append(row, voqs, voq);
    } else {
        packets.hot[queue.tail as usize].next = id;
        queue.tail = id;
    }
}

/// Takes a packet of the queue whose turn it is. The row is not empty.
#[inline]
pub fn pop(row: &mut Row, voqs: &mut [Voq], packets: &Packets) -> u32 {
    let turn = row.head;
    let queue = &mut voqs[turn as usize];
    let id = queue.head;
    queue.head = packets.hot[id as usize].next;
    row.head = queue.next;
    if row.head == NONE {
        row.tail = NONE;
    }
    if queue.head == NONE {
        queue.tail = NONE;
    } else {
        append(row, voqs, turn);
    }
    id
}

pub(super) fn for_each(row: &Row, voqs: &[Voq], packets: &Packets, f: &mut impl FnMut(&Hot)) {
    let mut queue = row.head;
    while queue != NONE {
        let mut at = voqs[queue as usize].head;
        while at != NONE {
            f(&packets.hot[at as usize]);
            at = packets.hot[at as usize].next;
        }
        queue = voqs[queue as usize].next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_take_turns() {
        let mut packets = Packets::default();
        let mut voqs = vec![Voq::EMPTY; 3];
        let mut row = Row::EMPTY;
        let mut from = Vec::new();
        for voq in [0, 0, 0, 1, 2, 2] {
            let id = packets.take();
            from.push(voq);
            push(&mut row, &mut voqs, &mut packets, voq, id);
        }
        let mut order = Vec::new();
        while !row.is_empty() {
            order.push(from[pop(&mut row, &mut voqs, &packets) as usize]);
        }
        assert_eq!(order, [0, 1, 2, 0, 2, 0]);
    }
}
