//! The responder's part of the hardware: requests of a queue pair one after another, and the atomic unit with
//! its slots and the words that it holds.

use super::profile::{AtomicOp, Profile};
use std::collections::VecDeque;

/// What a request needs of the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A slot and its word.
    Atomic(AtomicOp),
    /// To hold a word, for a READ or, if set, a WRITE of one.
    Word {
        /// It writes.
        writes: bool,
    },
    /// Nothing but its turn, and that no atomic is under way in its bytes.
    Turn,
}

impl Need {
    /// It is an atomic.
    pub fn is_atomic(self) -> bool {
        matches!(self, Need::Atomic(_))
    }
}

/// A request as the responder sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its packet.
    pub packet: u32,
    /// Index of its queue pair.
    pub qp: u32,
    /// What it needs.
    pub need: Need,
    /// First byte that it is about, and how many.
    pub addr: u64,
    /// See `addr`.
    pub len: u64,
    /// The bytes are on the NIC.
    pub chip: bool,
}

/// A request that holds its queue pair and its word.
#[derive(Clone, Copy, Debug)]
struct Held {
    request: Request,
    word: u64,
}

/// Requests that hold something, and requests that wait for it, in the order of their arrival.
#[derive(Clone, Debug, Default)]
pub struct Responder {
    held: Vec<Held>,
    waiting: VecDeque<Request>,
    slots_used: u64,
}

impl Responder {
    /// Nothing is under way: requests that need only their turn pass without asking.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// A request comes in. What can start now is said by [`Responder::start`].
    pub fn add(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Takes out the next request that can start, and for how long it holds its queue pair and word. One that
    /// holds nothing is done with.
    pub fn start(&mut self, p: &Profile) -> Option<(Request, u64)> {
        let at = (0..self.waiting.len()).find(|&at| self.may_start(p, at))?;
        let request = self.waiting.remove(at)?;
        let hold = match request.need {
            Need::Atomic(op) => p.hold(op, request.chip),
            Need::Word { writes } => p.word(writes, request.chip),
            Need::Turn => 0,
        };
        if hold > 0 {
            self.slots_used += u64::from(request.need.is_atomic());
            self.held.push(Held { request, word: word(p, request.addr) });
        }
        Some((request, hold))
    }

    /// The request of a queue pair that [started](Responder::start) with a hold has ended.
    pub fn end(&mut self, qp: u32) -> Option<Request> {
        let at = self.held.iter().position(|held| held.request.qp == qp)?;
        let request = self.held.swap_remove(at).request;
        self.slots_used -= u64::from(request.need.is_atomic());
        Some(request)
    }

    /// Forgets everything; the packets that were not on their way to memory yet.
    pub fn restart(&mut self) -> Vec<u32> {
        let held = self.held.drain(..).map(|held| held.request).filter(|request| request.need.is_atomic());
        let packets = held.chain(self.waiting.drain(..)).map(|request| request.packet).collect();
        self.slots_used = 0;
        packets
    }

    fn may_start(&self, p: &Profile, at: usize) -> bool {
        let request = &self.waiting[at];
        let before = || self.waiting.iter().take(at);
        if self.held.iter().any(|held| held.request.qp == request.qp) || before().any(|r| r.qp == request.qp)
        {
            return false;
        }
        let own = word(p, request.addr);
        match request.need {
            Need::Atomic(_) | Need::Word { .. } => {
                let atomic = request.need.is_atomic();
                let full = atomic && p.atomic_slots > 0 && self.slots_used >= p.atomic_slots;
                // Of those that wait for one word, the first goes first.
                let later = before().any(|r| r.need != Need::Turn && word(p, r.addr) == own);
                !full && !later && !self.held.iter().any(|held| held.word == own)
            }
            Need::Turn => {
                let inside = |held: &Held| {
                    let addr = held.request.addr;
                    addr.wrapping_sub(request.addr) < request.len || request.addr.wrapping_sub(addr) < 8
                };
                p.atomic_excludes == 0 || !self.held.iter().any(inside)
            }
        }
    }
}

/// What a word is held as: its address, or the low bits of it that the hardware looks at.
fn word(p: &Profile, addr: u64) -> u64 {
    if p.atomic_buckets == 0 { addr >> 3 } else { (addr & ((1 << p.atomic_buckets) - 1)) >> 3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs requests that all come at once; when each ends.
    fn ends(p: &Profile, requests: &[(u32, u64)]) -> Vec<u64> {
        let mut responder = Responder::default();
        for (packet, (qp, addr)) in requests.iter().enumerate() {
            let need = Need::Atomic(AtomicOp::CompareSwap);
            responder.add(Request { packet: packet as u32, qp: *qp, need, addr: *addr, len: 8, chip: false });
        }
        let mut running: Vec<(u64, u32)> = Vec::new();
        let mut ends = vec![0; requests.len()];
        let mut now = 0;
        loop {
            while let Some((request, hold)) = responder.start(p) {
                running.push((now + hold, request.packet));
            }
            running.sort_unstable();
            if running.is_empty() {
                assert!(responder.is_idle());
                return ends;
            }
            let (at, packet) = running.remove(0);
            now = at;
            ends[packet as usize] = at;
            responder.end(requests[packet as usize].0).unwrap();
        }
    }

    const P: Profile = Profile { atomic: 357, atomic_slots: 3, ..Profile::NEUTRAL };

    #[test]
    fn a_hot_word_is_served_one_at_a_time_whoever_asks() {
        let hot: Vec<_> = (0..10).map(|qp| (qp, 64)).collect();
        assert_eq!(ends(&P, &hot), (1..=10).map(|n| n * 357).collect::<Vec<_>>());
        let one_qp: Vec<_> = (0..10).map(|word| (5, word * 8)).collect();
        assert_eq!(ends(&P, &one_qp), (1..=10).map(|n| n * 357).collect::<Vec<_>>());
    }

    #[test]
    fn slots_bound_what_goes_on_at_once() {
        let apart: Vec<_> = (0..9).map(|n| (n, u64::from(n) * 8)).collect();
        assert_eq!(ends(&P, &apart), [357, 357, 357, 714, 714, 714, 1071, 1071, 1071]);
        let free = Profile { atomic_slots: 0, ..P };
        assert_eq!(ends(&free, &apart), [357; 9]);
        // Words that are equal in the low bits are one.
        let buckets = Profile { atomic_buckets: 12, ..free };
        assert_eq!(ends(&buckets, &[(0, 8), (1, 4096 + 8), (2, 16)]), [357, 714, 357]);
    }

    #[test]
    fn a_word_that_waits_holds_no_slot() {
        // Two wait for the word of the first; a third word finds a slot.
        assert_eq!(ends(&P, &[(0, 8), (1, 8), (2, 8), (3, 64)]), [357, 714, 1071, 357]);
    }

    #[test]
    fn reads_and_writes_of_a_held_word_wait_where_hardware_excludes_them() {
        for (excludes, waits) in [(0, false), (1, true)] {
            let p = Profile { atomic_excludes: excludes, ..P };
            let mut responder = Responder::default();
            let cas = Need::Atomic(AtomicOp::CompareSwap);
            responder.add(Request { packet: 0, qp: 0, need: cas, addr: 64, len: 8, chip: false });
            responder.add(Request { packet: 1, qp: 1, need: Need::Turn, addr: 0, len: 100, chip: false });
            responder.add(Request { packet: 2, qp: 2, need: Need::Turn, addr: 72, len: 8, chip: false });
            let started: Vec<u32> =
                core::iter::from_fn(|| responder.start(&p).map(|(request, _)| request.packet)).collect();
            assert_eq!(started, if waits { vec![0, 2] } else { vec![0, 1, 2] });
        }
    }
}
