//! Shared-buffer, output-queued: one FIFO for each output and class.

use super::iq::Row;
use crate::fabric::packet::{Hot, NONE, Packets};

/// Whether a queue of `depth` bytes may grow by `size`, of a buffer of which `used` bytes are taken.
/// The dynamic threshold is for lossy classes: lossless ones are held back by PFC instead.
#[inline]
pub fn admits(used: u32, buffer: u32, alpha: f64, depth: u32, size: u32, lossless: bool) -> bool {
    let Some(free) = buffer.checked_sub(used).filter(|free| size <= *free) else { return false };
    lossless || alpha == f64::INFINITY || f64::from(depth + size) <= alpha * f64::from(free)
}

/// Adds a packet.
#[inline]
pub fn push(row: &mut Row, packets: &mut Packets, id: u32) {
    packets.hot[id as usize].next = NONE;
    match row.tail {
        NONE => row.head = id,
        tail => packets.hot[tail as usize].next = id,
    }
    row.tail = id;
}

/// Takes the oldest packet of a row that is not empty.
#[inline]
pub fn pop(row: &mut Row, packets: &Packets) -> u32 {
    let id = row.head;
    row.head = packets.hot[id as usize].next;
    if row.head == NONE {
        row.tail = NONE;
    }
    id
}

pub(super) fn for_each(row: &Row, packets: &Packets, f: &mut impl FnMut(&Hot)) {
    let mut at = row.head;
    while at != NONE {
        f(&packets.hot[at as usize]);
        at = packets.hot[at as usize].next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dynamic_threshold_leaves_room_for_others() {
        // 100 bytes, alpha 1: one queue alone gets half.
        assert!(admits(40, 100, 1.0, 40, 10, false));
        assert!(!admits(50, 100, 1.0, 50, 10, false));
        assert!(admits(50, 100, 1.0, 50, 10, true), "a lossless class only stops at the buffer's end");
        assert!(!admits(95, 100, f64::INFINITY, 0, 10, true));
    }
}
