//! Peers that have not answered a hello while a request waited for it. For a while after that, requests of
//! other queue pairs to them do not wait: otherwise a program with many connections to a server that does not
//! know StaR would wait for each of them.
//!
//! A peer is a process: its address, and the upper byte of its queue pair numbers, which says whose they are
//! at a NIC like this one. So it does not matter what its neighbours at the same address know. A hello ends
//! it, and so does time, since the process may be another one by then. Entries are not renewed while they
//! count, so one queue pair in a while waits again.

use crate::limits::MAX_STAR_SILENT;
use adverb_wire::{Duration, Gid, Instant, QpNumber};
use std::collections::VecDeque;

/// For how many hello intervals a peer is remembered: a second, unless they were set.
const INTERVALS: u64 = 100;
/// Bits of a queue pair number below those of its process.
const PROCESS_SHIFT: u32 = 16;

/// A queue pair's other end.
pub(super) type End = (Gid, QpNumber);

/// The peers, oldest first: [`MAX_STAR_SILENT`] at most.
#[derive(Default)]
pub(super) struct SilentPeers {
    until: VecDeque<(Gid, u32, Instant)>,
}

fn is_of((gid, process, _): &(Gid, u32, Instant), end: End) -> bool {
    (*gid, *process) == (end.0, end.1.get() >> PROCESS_SHIFT)
}

impl SilentPeers {
    /// A request has waited for this peer in vain.
    pub fn note(&mut self, now: Instant, hello_interval: Duration, end: End) {
        self.forget(end);
        if self.until.len() == MAX_STAR_SILENT {
            self.until.pop_front();
        }
        self.until.push_back((end.0, end.1.get() >> PROCESS_SHIFT, now + hello_interval.times(INTERVALS)));
    }

    /// Whether nobody has answered there lately.
    pub fn has(&self, now: Instant, end: End) -> bool {
        self.until.iter().any(|entry| is_of(entry, end) && now < entry.2)
    }

    /// The peer has said hello.
    pub fn forget(&mut self, end: End) {
        self.until.retain(|entry| !is_of(entry, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(address: u128, number: u32) -> End {
        (Gid(address.to_be_bytes()), QpNumber::new(number))
    }

    #[test]
    fn a_process_is_remembered_for_a_while_and_its_neighbours_are_not() {
        let (mut silent, interval) = (SilentPeers::default(), Duration::from_ms(10));
        let start = Instant::from_ns(5);
        silent.note(start, interval, end(1, 0x12_0001));
        let late = start + Duration::from_ms(999);
        for (other, is_known) in [
            (end(1, 0x12_0001), true),
            (end(1, 0x12_ffff), true),
            (end(1, 0x13_0001), false),
            (end(2, 0x12_0001), false),
        ] {
            assert_eq!(silent.has(late, other), is_known, "{other:?}");
        }
        assert!(!silent.has(start + Duration::from_ms(1000), end(1, 0x12_0001)));
        silent.forget(end(1, 0x12_0007));
        assert!(!silent.has(start, end(1, 0x12_0001)));
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let (mut silent, interval) = (SilentPeers::default(), Duration::from_ms(10));
        for address in 0..=MAX_STAR_SILENT as u128 {
            silent.note(Instant::ZERO, interval, end(address, 0));
            silent.note(Instant::ZERO, interval, end(address, 1));
        }
        let known = (0..=MAX_STAR_SILENT as u128).filter(|a| silent.has(Instant::ZERO, end(*a, 0))).count();
        assert_eq!((known, silent.has(Instant::ZERO, end(0, 0))), (MAX_STAR_SILENT, false));
    }
}
