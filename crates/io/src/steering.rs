//! Keeps the program that gives datagrams of port 4791 to the right process of the address
//! (`adverb_os::steer`) true, while processes come, go and are stopped.
//!
//! ```text
//! Searching  marks ask for every index; the lowest that comes back is this process's
//!     |      it goes into the table, and a program made of the table's entries to the kernel
//!     v
//! Known      now and then, and whenever the table says that something changed:
//!     v
//! Checking   a mark goes the way of this process's packets; if it does not come back, Searching
//! ```
//!
//! Nobody else has to run for that. Where the kernel refuses, a datagram may reach any process of the
//! address, which hands it on through shared memory; so it may for a moment after a process ends.

use adverb_wire::{Duration, Instant};

/// How often the way is checked while datagrams come or go.
const CHECK: Duration = Duration::from_ms(100);
/// How long a mark may lie in the socket behind other datagrams. Nothing is lost on the way to oneself.
const PATIENCE_MS: u64 = 50;
/// Searches in a row that nothing came of, each with twice the patience: then a filter keeps datagrams from
/// oneself away.
const SEARCHES_MAX: u32 = 8;
/// Changes are looked after this often at most.
const PACE: Duration = Duration::from_ms(2);
/// How often the way is checked when nothing comes or goes, where the port is shared: another may have been
/// killed, and a third, which gets this one's datagrams now, may be stopped.
const IDLE_CHECK: Duration = Duration::from_ms(1000);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// A mark with this nonce was sent for each index.
    Searching {
        until: Instant,
    },
    Known {
        since: Instant,
    },
    /// A mark was sent the way of packets.
    Checking {
        until: Instant,
    },
    /// The kernel does not steer.
    Off,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Send a mark for every index that is likely, or for all, with this nonce.
    Search { nonce: u64, all: bool },
    /// Send one that goes the way of packets, with this nonce.
    Check(u64),
}

/// What this process knows of its place.
#[derive(Debug)]
pub struct Steering {
    phase: Phase,
    nonce: u64,
    /// The table's count of changes when the way was last looked after.
    changes: u32,
    fruitless: u32,
    /// Other processes have sockets of the port.
    shared: bool,
}

impl Steering {
    /// Nothing is known. `secret` is what no other process can guess.
    pub fn new(secret: u64, changes: u32) -> Steering {
        Steering {
            phase: Phase::Searching { until: Instant::ZERO },
            nonce: secret,
            changes,
            fruitless: 0,
            shared: false,
        }
    }

    /// What is due now. `in_use` says that datagrams came or went lately, `changes` what the table counts.
    #[inline]
    pub fn due(&mut self, now: Instant, in_use: bool, changes: u32) -> Option<Order> {
        match self.phase {
            Phase::Known { since } if in_use && now.since(since) >= CHECK => {}
            Phase::Known { .. } if self.next_deadline(changes).is_some_and(|due| now >= due) => {}
            Phase::Searching { until } | Phase::Checking { until } if now >= until => {}
            _ => return None,
        }
        Some(self.order(now, changes))
    }

    #[cold]
    fn order(&mut self, now: Instant, changes: u32) -> Order {
        // A late mark of before is none of these.
        self.nonce = self.nonce.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if matches!(self.phase, Phase::Known { .. }) {
            self.changes = changes;
            self.phase = Phase::Checking { until: now + Duration::from_ms(PATIENCE_MS) };
            return Order::Check(self.nonce);
        }
        let all = self.fruitless > 0;
        self.phase = match self.fruitless {
            SEARCHES_MAX.. => Phase::Off,
            before => Phase::Searching { until: now + Duration::from_ms(PATIENCE_MS << before) },
        };
        self.fruitless += 1;
        Order::Search { nonce: self.nonce, all }
    }

    /// A mark with this nonce came. The index, if it is this process's and is news.
    pub fn on_mark(&mut self, now: Instant, index: Option<u8>, nonce: u64) -> Option<u8> {
        if nonce != self.nonce {
            return None;
        }
        match (self.phase, index) {
            (Phase::Searching { .. }, Some(index)) => {
                // Marks come in the order in which they were sent, and those for indexes that nobody has,
                // which may come too, are behind.
                (self.phase, self.fruitless) = (Phase::Known { since: now }, 0);
                Some(index)
            }
            (Phase::Checking { .. }, None) => {
                self.phase = Phase::Known { since: now };
                None
            }
            _ => None,
        }
    }

    /// The kernel does not take programs.
    pub fn refused(&mut self) {
        self.phase = Phase::Off;
    }

    /// Whether other processes have sockets of the port.
    pub fn set_shared(&mut self, shared: bool) {
        self.shared = shared;
    }

    /// Whether a mark is on its way: the socket wants to be asked.
    #[inline]
    pub fn awaits_mark(&self) -> bool {
        matches!(self.phase, Phase::Searching { .. } | Phase::Checking { .. })
    }

    /// When something is due even if nothing comes. `changes` is what the table counts.
    #[inline]
    pub fn next_deadline(&self, changes: u32) -> Option<Instant> {
        match self.phase {
            Phase::Searching { until } | Phase::Checking { until } => Some(until),
            Phase::Known { since } if changes != self.changes => Some(since + PACE),
            Phase::Known { since } if self.shared => Some(since + IDLE_CHECK),
            Phase::Known { .. } | Phase::Off => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    /// The nonce of a search.
    fn search(steering: &mut Steering, at: Instant, changes: u32) -> u64 {
        match steering.due(at, false, changes) {
            Some(Order::Search { nonce, .. }) => nonce,
            other => panic!("{other:?} of {steering:?}"),
        }
    }

    fn check(steering: &mut Steering, at: Instant, in_use: bool, changes: u32) -> u64 {
        match steering.due(at, in_use, changes) {
            Some(Order::Check(nonce)) => nonce,
            other => panic!("{other:?} of {steering:?}"),
        }
    }

    #[test]
    fn the_first_index_that_comes_back_is_ones_own() {
        let mut steering = Steering::new(7, 0);
        let nonce = search(&mut steering, at(0), 0);
        assert_eq!(steering.next_deadline(0), Some(at(50)));
        assert!(steering.awaits_mark());
        assert_eq!(steering.on_mark(at(1), Some(1), nonce + 1), None, "a stranger's");
        assert_eq!(steering.on_mark(at(1), Some(3), nonce), Some(3));
        assert_eq!(steering.on_mark(at(1), Some(9), nonce), None, "one that nobody has");
        assert_eq!((steering.due(at(500), false, 0), steering.next_deadline(0)), (None, None));
    }

    #[test]
    fn the_way_is_checked_while_it_is_used_and_when_something_changed() {
        let mut steering = Steering::new(7, 0);
        let nonce = search(&mut steering, at(0), 0);
        steering.on_mark(at(0), Some(3), nonce);
        assert_eq!(steering.due(at(99), true, 0), None);
        let nonce = check(&mut steering, at(100), true, 0);
        assert_eq!(steering.on_mark(at(101), None, nonce), None);
        assert_eq!(steering.due(at(102), false, 1), None, "not that often");
        assert_eq!(steering.next_deadline(1), Some(at(103)));
        check(&mut steering, at(103), false, 1);
        // It went elsewhere.
        assert_eq!(steering.due(at(152), false, 1), None);
        let nonce = search(&mut steering, at(153), 1);
        assert_eq!(steering.on_mark(at(154), Some(2), nonce), Some(2));
        assert_eq!(steering.due(at(1153), false, 1), None);
        steering.set_shared(true);
        assert_eq!(steering.due(at(1153), false, 1), None);
        check(&mut steering, at(1154), false, 1);
    }

    #[test]
    fn where_nothing_comes_back_it_is_given_up() {
        let mut steering = Steering::new(7, 0);
        let mut searches = Vec::new();
        for i in 0..2000 {
            if let Some(Order::Search { all, .. }) = steering.due(at(i * 10), true, 0) {
                searches.push((i * 10, all));
            }
        }
        assert_eq!(searches[..4], [(0, false), (50, true), (150, true), (350, true)]);
        assert_eq!(searches.len(), 9);
        assert!(steering.next_deadline(0).is_none() && !steering.awaits_mark());
    }
}
