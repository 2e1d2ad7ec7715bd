//! What a 1RMA NIC is made with.

use crate::error::Error;
use crate::limits;
use adverb_wire::one_rma::{GRAIN, MAX_OP};
use adverb_wire::{Duration, Gid};

/// Priorities of processes; 0 is the highest.
pub const PRIORITIES: usize = 4;

/// Sizes and times of a 1RMA NIC. The defaults are the paper's simulation (sections 6.1 and 7.5): 100 Gb/s, a
/// round trip of 5 us.
#[derive(Clone, Debug)]
pub struct OneRmaConfig {
    /// The NIC's address: part of every key that it derives, and the source of everything it sends.
    pub address: Gid,
    /// Entries of the Registered Region Table.
    pub regions: u32,
    /// Command slots.
    pub slots: u32,
    /// Processes that may be attached at once.
    pub processes: u32,
    /// Slots that processes of a priority *and all lower ones* may be promised together, so that the less
    /// important never take what the more important were promised.
    pub slots_by_priority: [u32; PRIORITIES],
    /// Operations of peers in progress at once; more are answered with a NACK.
    pub inbound_ops: u32,
    /// Solicitation window in bytes, at least one operation's 4 KB.
    pub window: u32,
    /// Bytes of one message's payload at most: a multiple of 64, no more than the path's MTU bears.
    pub max_piece: u16,
    /// How long an operation may wait for the solicitation window.
    pub dispatch_timeout: Duration,
    /// How long a request may be unanswered, and how long a target takes data after it has solicited them.
    pub timeout: Duration,
    /// Round trip of the idle network; only the NACK threshold is made of it.
    pub rtt: Duration,
    /// Bits per second of the port; only the NACK threshold is made of it.
    pub bandwidth: u64,
    /// Bytes that peers have asked for and not been served, above which requests are answered with a NACK.
    /// `None`: what the port sends in the time left, see [`OneRmaConfig::nack_threshold`].
    pub nack_threshold: Option<u32>,
}

impl Default for OneRmaConfig {
    fn default() -> Self {
        OneRmaConfig {
            address: Gid::default(),
            regions: 1024,
            slots: 1024,
            processes: 64,
            slots_by_priority: [1024; PRIORITIES],
            inbound_ops: 256,
            window: 64 << 10,
            max_piece: MAX_OP as u16,
            dispatch_timeout: Duration::from_us(10),
            timeout: Duration::from_us(20),
            rtt: Duration::from_us(5),
            bandwidth: 100_000_000_000,
            nack_threshold: None,
        }
    }
}

impl OneRmaConfig {
    /// (timeout - rtt - dispatch timeout) * bandwidth, in bytes: what is behind more than that reaches its
    /// initiator after its timeout. Section 6.1 prints a division by the bandwidth, which would not be bytes.
    pub fn nack_threshold(&self) -> Option<u32> {
        if self.nack_threshold.is_some() {
            return self.nack_threshold;
        }
        let spent = self.rtt.as_ps().checked_add(self.dispatch_timeout.as_ps())?;
        let left = self.timeout.as_ps().checked_sub(spent)?;
        let bytes = left as u128 * self.bandwidth as u128 / 8_000_000_000_000;
        Some(u32::try_from(bytes).unwrap_or(u32::MAX))
    }

    /// By when every operation has completed, counted from its post: it waited for the window, its request
    /// was answered at the last moment, and the target's time ran out.
    pub fn bound(&self) -> Duration {
        self.dispatch_timeout + self.timeout + initiator_open(self.open_ns())
    }

    /// For how long this NIC takes data that it solicited, as it tells its peers.
    pub(super) fn open_ns(&self) -> u32 {
        u32::try_from(self.timeout.as_ns()).unwrap_or(u32::MAX)
    }

    /// Whether the values go together.
    pub(super) fn check(&self) -> Result<(), Error> {
        let tables = [
            (self.regions, limits::MAX_ONE_RMA_REGIONS, "number of regions"),
            (self.slots, limits::MAX_ONE_RMA_SLOTS, "number of command slots"),
            (self.processes, limits::MAX_ONE_RMA_PROCESSES, "number of processes"),
            (self.inbound_ops, limits::MAX_ONE_RMA_INBOUND, "number of inbound operations"),
        ];
        for (value, most, what) in tables {
            if value == 0 || value > most {
                return Err(Error::Invalid(what));
            }
        }
        if (self.window as usize) < MAX_OP {
            return Err(Error::Invalid("solicitation window: below the 4096 bytes of one operation"));
        }
        let piece = self.max_piece as usize;
        if piece == 0 || piece > MAX_OP || !piece.is_multiple_of(GRAIN) {
            return Err(Error::Invalid("payload of a message: not a multiple of 64 from 64 to 4096"));
        }
        if self.slots_by_priority.iter().any(|slots| *slots > self.slots) {
            return Err(Error::Invalid("slots of a priority: more than there are"));
        }
        if self.slots_by_priority.windows(2).any(|pair| pair[0] < pair[1]) {
            return Err(Error::Invalid("slots of a priority: more than those of a higher one"));
        }
        let longest = Duration::from_ms(limits::MAX_ONE_RMA_TIMEOUT_MS);
        if self.timeout.as_ns() == 0 || self.timeout > longest {
            return Err(Error::Invalid("timeout: below 1 ns or above 4 s"));
        }
        if self.dispatch_timeout == Duration::ZERO || self.dispatch_timeout > longest {
            return Err(Error::Invalid("dispatch timeout: zero or above 4 s"));
        }
        if self.nack_threshold().is_none() {
            return Err(Error::Invalid("timeout: no longer than round trip and dispatch timeout together"));
        }
        Ok(())
    }
}

/// How long an initiator waits after a solicitation that told `open_ns`. The target's time began before the
/// message was sent, so the same time would do if both clocks ran alike; a 64th is for those that do not.
pub(super) fn initiator_open(open_ns: u32) -> Duration {
    let ns = open_ns as u64;
    Duration::from_ns(ns + ns / 64 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_of_the_papers_simulation() {
        assert_eq!(OneRmaConfig::default().nack_threshold(), Some(62_500));
        assert_eq!(OneRmaConfig::default().check(), Ok(()));
    }

    #[test]
    fn values_that_do_not_go_together_are_refused() {
        let refused = |change: fn(&mut OneRmaConfig)| {
            let mut config = OneRmaConfig::default();
            change(&mut config);
            matches!(config.check(), Err(Error::Invalid(_)))
        };
        assert!(refused(|c| c.window = 4095));
        assert!(!refused(|c| c.window = 4096));
        assert!(refused(|c| c.regions = 0));
        assert!(refused(|c| c.slots = limits::MAX_ONE_RMA_SLOTS + 1));
        assert!(refused(|c| c.max_piece = 100));
        assert!(refused(|c| c.max_piece = 0));
        assert!(refused(|c| c.slots_by_priority = [2000, 1, 1, 1]));
        assert!(refused(|c| c.slots_by_priority = [10, 20, 1, 1]));
        assert!(refused(|c| c.timeout = Duration::from_ns(14_999)));
        assert!(refused(|c| c.timeout = Duration::from_ms(4001)));
        assert!(refused(|c| c.dispatch_timeout = Duration::ZERO));
    }
}
