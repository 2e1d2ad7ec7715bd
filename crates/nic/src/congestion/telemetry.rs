//! What switches say of the links that a packet has taken (in-band network telemetry, HPCC section 4.1), and
//! how it comes back to the sender: the receiver puts what a packet brought into its acknowledgement.
//!
//! It travels beside packets, from driver to driver: no format of it is a standard's, and only simulated
//! switches write it. The values are exact; HPCC's header has 24 bits of time, 20 of bytes and 16 of a queue.

/// Switches on a path whose links are stamped, at most; HPCC's header has five.
pub const HOPS_MAX: usize = 10;

/// Bytes that the header takes on a link, in a packet and in its acknowledgement: five hops of 8 bytes, and
/// their count and path's mark (HPCC, figure 7).
pub const TELEMETRY_BYTES: u32 = 42;

/// What a switch stamps when it sends a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// B: the link's rate, bits/s.
    pub rate: u64,
    /// ts: when the packet was put on it, ps.
    pub at: u64,
    /// txBytes: bytes sent on it before.
    pub sent: u64,
    /// qLen: bytes that wait for it.
    pub queue: u32,
}

/// The links that a packet has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Telemetry {
    hops: [Hop; HOPS_MAX],
    count: u8,
}

impl Telemetry {
    /// Adds a link. False when there is no room.
    pub fn push(&mut self, hop: Hop) -> bool {
        match self.hops.get_mut(usize::from(self.count)) {
            Some(place) => {
                *place = hop;
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The links, in the order in which they were taken.
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count)]
    }
}
