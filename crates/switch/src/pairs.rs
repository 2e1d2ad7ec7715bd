//! Cases of packets as pairs of captures: what comes in, and what has to leave. A frame comes in at the port
//! that has its source, at its time in the capture, and has to leave by the port that has its destination, in
//! the capture's order among those of this port, byte for byte.

use crate::program::PortId;
use crate::stf::{Passed, hex, wait};
use crate::switch::Switch;
use adverb_wire::eth::ip_packet;
use adverb_wire::pcap::{LinkType, Reader};
use adverb_wire::{Duration, Gid, Instant, Packet};
use std::collections::{BTreeMap, VecDeque};

/// A frame of a capture: when, in nanoseconds, and what, from its IP header on.
struct Captured<'a> {
    at_ns: u64,
    bytes: &'a [u8],
}

/// Runs a case on a switch that began at `start`.
///
/// # Errors
/// A capture cannot be read, a frame in it has no port, or something else left.
pub fn run(switch: &mut Switch, start: Instant, came: &[u8], leaves: &[u8]) -> Result<Passed, String> {
    let came = frames(came).map_err(|why| format!("what comes in: {why}"))?;
    let mut expected: BTreeMap<PortId, VecDeque<&[u8]>> = BTreeMap::new();
    let leaves = frames(leaves).map_err(|why| format!("what leaves: {why}"))?;
    for (number, frame) in leaves.iter().enumerate() {
        let to = port_of(switch, frame.bytes, |packet| packet.flow.dst);
        let to = to.map_err(|why| format!("what leaves, frame {}: {why}", number + 1))?;
        expected.entry(to).or_default().push_back(frame.bytes);
    }
    let (mut now, first_ns) = (start, came.first().map_or(0, |frame| frame.at_ns));
    for (number, frame) in came.iter().enumerate() {
        let fail = |why: String| format!("frame {}: {why}", number + 1);
        let from = port_of(switch, frame.bytes, |packet| packet.flow.src).map_err(fail)?;
        let at = start + Duration::from_ns(frame.at_ns.saturating_sub(first_ns));
        now = wait(switch, now, at.since(now));
        take(switch, &mut expected).map_err(fail)?;
        switch.on_frame(now, from, frame.bytes.to_vec());
        take(switch, &mut expected).map_err(fail)?;
    }
    // What is held back still has the time that programs give it.
    while let Some(due) = switch.next_deadline().filter(|_| expected.values().any(|left| !left.is_empty())) {
        let before = now;
        now = wait(switch, now, due.since(now));
        take(switch, &mut expected).map_err(|why| format!("at the end: {why}"))?;
        if now == before {
            break;
        }
    }
    let missing = expected.iter().find_map(|(port, left)| Some((port, left.front()?)));
    if let Some((port, frame)) = missing {
        return Err(format!("at the end: by port {} has to leave {}, and did not", port.0, hex(frame)));
    }
    Ok(Passed { packets: came.len(), expected: leaves.len() })
}

/// Takes what has left, which must be what is expected next.
fn take(switch: &mut Switch, expected: &mut BTreeMap<PortId, VecDeque<&[u8]>>) -> Result<(), String> {
    while let Some((port, bytes)) = switch.next_frame() {
        match expected.get_mut(&port).and_then(VecDeque::pop_front) {
            Some(wanted) if wanted == bytes => {}
            Some(wanted) => {
                return Err(format!("by port {} left {}, not {}", port.0, hex(&bytes), hex(wanted)));
            }
            None => return Err(format!("by port {} left {}, which was not expected", port.0, hex(&bytes))),
        }
    }
    Ok(())
}

/// The port of an address that a frame names.
fn port_of(switch: &Switch, bytes: &[u8], address: impl Fn(&Packet) -> Gid) -> Result<PortId, String> {
    let parsed = Packet::parse_ip(bytes).map_err(|e| format!("no RoCE packet: {e}"))?;
    let address = address(&parsed.packet);
    switch.port_of(address).ok_or_else(|| format!("{} is no port's address", address.ip()))
}

/// The frames of a capture, whole and without Ethernet. Frames of other protocols are left out.
fn frames(file: &[u8]) -> Result<Vec<Captured<'_>>, String> {
    let reader = Reader::new(file).map_err(|e| e.to_string())?;
    let link_type = reader.link_type();
    let mut frames = Vec::new();
    for (number, record) in (1..).zip(reader) {
        if record.original_len as usize != record.bytes.len() {
            return Err(format!("frame {number} was not captured whole"));
        }
        let packet = match link_type {
            LinkType::Raw => Some(record.bytes),
            LinkType::Ethernet => ip_packet(record.bytes),
        };
        let Some(bytes) = packet else { continue };
        // Ethernet pads what is short.
        let len = Packet::parse_ip(bytes).map_or(bytes.len(), |parsed| parsed.frame_len);
        let bytes = &bytes[..len];
        let at_ns = u64::from(record.seconds) * 1_000_000_000 + u64::from(record.nanos);
        frames.push(Captured { at_ns, bytes });
    }
    Ok(frames)
}
