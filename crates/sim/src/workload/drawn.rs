//! Calls of connections that last, so many under way on all of them together: where one ends, the next begins
//! on a connection that is drawn. So a server has the same to do however many clients it has, and what one
//! more of them costs it is seen alone.

use super::persistent::{KIND_BITS, ONE_SIDED};
use adverb_nic::Completion;

/// Words of work requests have a call's number above its connection's.
const CALL_BITS: u32 = 32 + KIND_BITS;
/// Calls that may be under way.
pub const OUTSTANDING_MAX: u32 = 4096;

/// Which calls are under way, and where.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    rng: fastrand::Rng,
    /// Calls that one connection has at most: what its queue holds.
    depth: u32,
    /// By connection: calls under way.
    under_way: Vec<u32>,
    /// By call: when it began.
    since: Vec<u64>,
}

impl Drawn {
    /// None under way, `outstanding` to be.
    pub fn new(outstanding: u32, connections: u32, rng: &mut fastrand::Rng) -> Drawn {
        Drawn {
            rng: rng.fork(),
            depth: depth(outstanding, connections),
            under_way: vec![0; connections as usize],
            since: vec![0; outstanding as usize],
        }
    }

    /// A call begins: on which of the connections that there are, the first `all`, and what its work request
    /// is called.
    pub fn begin(&mut self, now: u64, call: u32, all: u32) -> (u32, u64) {
        let first = self.rng.u32(0..all);
        // There is always one with room: those of the beginning hold all calls ([`fits`]).
        let has_room = |n: &u32| self.under_way[*n as usize] < self.depth;
        let n = (0..all).map(|step| (first + step) % all).find(has_room).unwrap_or(first);
        self.under_way[n as usize] += 1;
        self.since[call as usize] = now;
        (n, u64::from(call) << CALL_BITS | u64::from(n) << KIND_BITS | ONE_SIDED)
    }

    /// A call of a connection has ended: which, and when it began.
    pub fn end(&mut self, n: u32, completion: &Completion) -> (u32, u64) {
        self.under_way[n as usize] -= 1;
        let call = (completion.wr_id >> CALL_BITS) as u32;
        (call, self.since[call as usize])
    }
}

/// Calls that a connection's queue has room for: twice its share and a little more, so that drawing another
/// one for want of room is rare, and queues stay short where there are many.
pub(super) fn depth(outstanding: u32, connections: u32) -> u32 {
    (2 * outstanding.div_ceil(connections.max(1)) + 2).min(outstanding)
}

/// Whether so many connections have room for all calls, of more to come.
pub fn fits(outstanding: u32, connections: u32, of: u32) -> bool {
    u64::from(connections) * u64::from(depth(outstanding, of)) >= u64::from(outstanding)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All calls find room wherever they are drawn, and with few connections queues are full.
    #[test]
    fn there_is_always_room() {
        for (outstanding, connections) in [(1, 1), (16, 1), (128, 1), (128, 3), (128, 100), (7, 60_000)] {
            let mut rng = fastrand::Rng::with_seed(9);
            let mut drawn = Drawn::new(outstanding, connections, &mut rng);
            let deep = depth(outstanding, connections);
            assert!(deep <= outstanding && fits(outstanding, connections, connections));
            for call in 0..outstanding {
                let (n, word) = drawn.begin(u64::from(call), call, connections);
                assert_eq!(((word >> KIND_BITS) as u32, (word >> CALL_BITS) as u32), (n, call));
            }
            assert!(drawn.under_way.iter().all(|calls| *calls <= deep), "{:?}", drawn.under_way);
            assert_eq!(drawn.under_way.iter().sum::<u32>(), outstanding);
        }
    }
}
