//! Links: serialization and propagation, one way.
//!
//! Sending a packet is one event, its arrival at the far end: the sum of serialization, propagation
//! and the far switch's latency. That the port is free again is an event only where something waits for it;
//! what comes later finds it free by the time.

use crate::fabric::topology::{Node, Topology};
use adverb_wire::Duration;

/// Set in [`Link::to`] when the link ends at a host.
pub const HOST: u32 = 1 << 31;

/// The link's packets pass through fault rules.
pub const LINK_FAULTS: u8 = 1;
/// The link is down: what is on it, and what is sent, is lost.
pub const LINK_DOWN: u8 = 2;
/// The link's packets are captured.
pub const LINK_CAPTURE: u8 = 4;
/// The link leads to a switch that runs programs.
pub const LINK_PROGRAMS: u8 = 8;

/// Packets are stamped when they are put on the link, by the switch that sends them.
pub const LINK_STAMPS: u8 = 16;

/// Framing that a packet has on a link beside its IP packet: preamble and gap 20, Ethernet header 14,
/// frame check sequence 4.
pub const FRAMING: u32 = 38;
/// Bytes that a pause frame takes on a link, framing included.
pub const PAUSE_BYTES: u32 = 84;
/// Fewest bytes that a frame takes on a link, framing included.
pub const FRAME_MIN: u32 = 84;

/// One direction of a cable, and the port that feeds it.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Link {
    /// The port sends until then, in ps.
    pub busy_until: u64,
    /// Propagation, and latency of what is at the end, in ps.
    pub delay: u64,
    /// Picoseconds for a byte, times 2^16.
    pace: u64,
    /// Switch at the end, or host with [`HOST`] set.
    pub to: u32,
    /// Switch at the start, or host with [`HOST`] set.
    pub from: u32,
    /// Packets that wait for the port.
    pub waiting: u32,
    /// The event that the port is free again is entered: what waits goes then, before what comes.
    pub wakes: bool,
    /// Classes that may not be sent now (PFC).
    pub paused: u8,
    /// Classes that have packets waiting.
    pub queued: u8,
    /// `LINK_*`.
    pub flags: u8,
    /// Bytes of packets that were sent, framing included.
    pub bytes: u64,
    /// Packets that were sent.
    pub packets: u32,
    /// How often it has failed: what was on it then is lost.
    pub epoch: u16,
    /// The port that feeds it, and the one that it ends at, as their switches count them; 0 at hosts.
    pub port_from: u16,
    /// See `port_from`.
    pub port_to: u16,
    /// Its kind: the first of the four lanes of its events.
    pub lanes: u8,
}

const _: () = assert!(core::mem::size_of::<Link>() == 64);

impl Link {
    /// A link of a topology; `latency` is that of the switch at its end.
    pub fn new(t: &Topology, link: u32, latency: Duration) -> Link {
        let cable = &t.cables[link as usize / 2];
        let (from, to) = t.link_ends(link);
        let number = |node| match node {
            Node::Host(h) => h | HOST,
            Node::Switch(s) => s,
        };
        let latency = if matches!(to, Node::Switch(_)) { latency.as_ps() } else { 0 };
        Link {
            busy_until: 0,
            delay: cable.delay.as_ps() + latency,
            pace: ((8_000_000_000_000u128 << 16) / u128::from(cable.rate)) as u64,
            to: number(to),
            from: number(from),
            waiting: 0,
            wakes: false,
            paused: 0,
            queued: 0,
            flags: 0,
            bytes: 0,
            packets: 0,
            epoch: 0,
            port_from: 0,
            port_to: 0,
            lanes: crate::events::NO_LANE,
        }
    }

    /// Bits per second.
    pub fn rate(&self) -> u64 {
        ((8_000_000_000_000u128 << 16) / u128::from(self.pace.max(1))) as u64
    }

    /// Time that `bytes` bytes take on the link, in ps.
    #[inline]
    pub fn serialization(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * self.pace) >> 16
    }

    /// The port is sending, or is about to send what waits.
    #[inline]
    pub fn is_busy(&self, now: u64) -> bool {
        self.wakes || now < self.busy_until
    }

    /// Sends `size` bytes from `now` on or, behind a frame that is being sent, right after it. The
    /// port is busy until [`Link::busy_until`]; the time of arrival is returned.
    #[inline]
    pub fn send(&mut self, now: u64, size: u32) -> u64 {
        self.busy_until = self.busy_until.max(now) + self.serialization(size);
        self.packets = self.packets.wrapping_add(1);
        self.bytes += u64::from(size);
        self.busy_until + self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::topology::CableKind;

    fn link(rate: u64) -> Link {
        let t = Topology::two_hosts(CableKind { rate, delay: Duration::from_us(1) });
        Link::new(&t, 0, Duration::ZERO)
    }

    #[test]
    fn serialization_is_exact_at_the_usual_rates() {
        for (gbps, ps) in [(10, 800), (25, 320), (40, 200), (100, 80), (200, 40), (400, 20)] {
            assert_eq!(link(gbps * 1_000_000_000).serialization(4096), 4096 * ps);
            assert_eq!(link(gbps * 1_000_000_000).rate(), gbps * 1_000_000_000);
        }
    }

    #[test]
    fn packets_follow_each_other() {
        let mut link = link(100_000_000_000);
        assert_eq!(link.send(0, 1000), 1_080_000);
        assert_eq!(link.send(10, 1000), 1_160_000, "behind the first");
        assert_eq!(link.send(500_000, 1000), 1_580_000);
        assert_eq!((link.packets, link.bytes), (3, 3000));
    }
}
