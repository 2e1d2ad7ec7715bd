//! The rate that a program sets for a queue pair (`ibv_modify_qp_rate_limit`): what its work requests count,
//! and when the next one may go. A request counts its bytes, and never less than a typical packet; so
//! requests without a frame count too, and a chain of them that never ends keeps to the rate.

use super::pacer::Pacer;
use adverb_wire::{Instant, Operation, Packet};

/// What a request counts at least, if its program says nothing of typical packets.
const LEAST: u32 = 64;
/// Parts of a second whose bytes may go at once, if the program says nothing of bursts: drivers' timers are
/// late.
const BURST_PARTS: u64 = 10_000;

/// A bound on the rate of a queue pair's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimit {
    /// Kilobits per second; 0 for no bound.
    pub kbps: u32,
    /// Bytes that may go at once after idleness; 0 for the NIC's choice.
    pub burst: u32,
    /// Bytes of a typical packet, which a request counts at least; 0 for 64.
    pub typical_packet: u16,
}

/// The bound, and how far it is used.
#[derive(Debug)]
pub(crate) struct Limiter {
    pub set: RateLimit,
    pacer: Pacer,
}

impl Limiter {
    pub fn new(set: RateLimit) -> Limiter {
        Limiter { set, pacer: Pacer::new(u64::from(set.kbps) * 1000) }
    }

    /// Whether a request may go on now.
    pub fn is_open(&self, now: Instant) -> bool {
        self.pacer.is_open(now)
    }

    /// When it may.
    pub fn next(&self) -> Instant {
        self.pacer.next()
    }

    fn least(&self) -> u32 {
        if self.set.typical_packet == 0 { LEAST } else { self.set.typical_packet.into() }
    }

    /// A request of no frame is executed.
    pub fn on_local(&mut self, now: Instant) {
        self.count(now, self.least());
    }

    /// A packet of a request leaves. The request for a READ stands for all that is read.
    pub fn on_sent(&mut self, now: Instant, packet: &Packet) {
        let operation = packet.bth.opcode.operation();
        let bytes = match operation {
            Operation::ReadRequest => packet.reth.len,
            _ if operation.is_atomic() => 8,
            _ => packet.payload_len,
        };
        let begins = operation.starts_message() || !(operation.is_send() || operation.is_write());
        self.count(now, if begins { bytes.max(self.least()) } else { bytes });
    }

    fn count(&mut self, now: Instant, bytes: u32) {
        let burst = match u64::from(self.set.burst) {
            0 => self.pacer.rate() / 8 / BURST_PARTS,
            burst => burst,
        };
        let packets = burst.div_ceil(u64::from(bytes.max(1))).min(u32::MAX.into());
        self.pacer.on_sent(now, bytes.into(), packets as u32);
    }
}
