//! What a NIC's hardware costs: PCIe, WQE fetches, processing units, a cache of connection state,
//! atomics. Neutral by default: every piece of work takes no time, and the NIC is driven without steps.
//!
//! With a profile, [`adverb_nic::Nic::step`] is called one piece of work at a time, and the next
//! piece of the same side starts when the one before is paid for. Sending and receiving are a
//! pipeline each. A frame leaves when its cost is paid; a frame that arrives is processed when its
//! cost is paid.

use adverb_nic::Step;

/// Times in picoseconds; all zero is neutral.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Reading a WQE over PCIe.
    pub fetch_ps: u64,
    /// Executing a WQE on a processing unit.
    pub execute_ps: u64,
    /// Producing a packet, its payload read included.
    pub packet_ps: u64,
    /// Writing a completion.
    pub completion_ps: u64,
    /// Taking in a packet.
    pub receive_ps: u64,
    /// An atomic at the responder, on top of `receive_ps`.
    pub atomic_ps: u64,
    /// Processing units that work side by side; 0 counts as 1.
    pub units: u32,
    /// Connections whose state fits on the NIC; 0 for all.
    pub cache_entries: u32,
    /// Reading a connection's state over PCIe.
    pub miss_ps: u64,
}

impl Profile {
    /// Costs nothing.
    pub fn is_neutral(&self) -> bool {
        let Profile { fetch_ps, execute_ps, packet_ps, completion_ps, receive_ps, atomic_ps, .. } = *self;
        let misses = self.cache_entries > 0 && self.miss_ps > 0;
        [fetch_ps, execute_ps, packet_ps, completion_ps, receive_ps, atomic_ps] == [0; 6] && !misses
    }

    fn units(&self) -> u64 {
        u64::from(self.units.max(1))
    }
}

/// A side of the NIC, and what waits there.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Busy until then, in ps.
    pub free_at: u64,
    /// Packets in order, each with the time when its cost is paid, in ps.
    pub row: std::collections::VecDeque<(u64, u32)>,
}

/// The hardware of one NIC.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its costs.
    pub profile: Profile,
    /// Sending.
    pub tx: Side,
    /// Receiving.
    pub rx: Side,
    /// Queue pair indices whose state is on the NIC, least recently used first.
    cached: Vec<u32>,
    /// Times that a connection's state had to be read.
    pub misses: u64,
}

impl Unit {
    /// Idle hardware.
    pub fn new(profile: Profile) -> Unit {
        Unit { profile, tx: Side::default(), rx: Side::default(), cached: Vec::new(), misses: 0 }
    }

    /// Cost of a step of queue pair `qp` (its index), in ps.
    pub fn step_cost(&mut self, step: Step, qp: u32) -> u64 {
        let p = self.profile;
        match step {
            Step::Idle | Step::Waiting(_) | Step::Enabled(_) => 0,
            Step::Fetched(..) => self.touch(qp) + p.fetch_ps / p.units(),
            Step::Executed(..) => p.execute_ps / p.units(),
            Step::Frame(_) | Step::Answer(_) => self.touch(qp) + p.packet_ps / p.units(),
            Step::Completed(_) => p.completion_ps,
        }
    }

    /// Cost of taking in a packet for queue pair `qp`, in ps.
    pub fn receive_cost(&mut self, qp: u32, atomic: bool) -> u64 {
        let p = self.profile;
        self.touch(qp) + p.receive_ps / p.units() + if atomic { p.atomic_ps } else { 0 }
    }

    /// Brings a connection's state on to the NIC; what that costs.
    fn touch(&mut self, qp: u32) -> u64 {
        if self.profile.cache_entries == 0 {
            return 0;
        }
        if let Some(at) = self.cached.iter().rposition(|&q| q == qp) {
            self.cached.remove(at);
            self.cached.push(qp);
            return 0;
        }
        if self.cached.len() == self.profile.cache_entries as usize {
            self.cached.remove(0);
        }
        self.cached.push(qp);
        self.misses += 1;
        self.profile.miss_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_keeps_what_was_used_last() {
        let mut unit = Unit::new(Profile { cache_entries: 2, miss_ps: 7, ..Profile::default() });
        let costs: Vec<u64> = [1, 2, 1, 3, 1, 2].map(|qp| unit.receive_cost(qp, false)).to_vec();
        assert_eq!(costs, [7, 7, 0, 7, 0, 7]);
        assert_eq!(unit.misses, 4);
        assert!(Profile::default().is_neutral());
        assert!(!unit.profile.is_neutral());
    }
}
