//! Payloads on their way between the NIC's memory and what `os` gives room for: rings and staged datagrams.
#![allow(unsafe_code)]

use adverb_nic::memory::{Gather, Payload};
use adverb_os::ring::{Broken, Frame, Producer};
use adverb_wire::{Gid, Packet};

/// Copies a frame's payload to private memory.
#[inline]
pub fn copy_payload(payload: &Gather, out: &mut [u8]) {
    assert!(out.len() == payload.len(), "room for the payload");
    payload.read(out);
}

/// Appends a packet to a ring, its payload copied straight from registered memory; `own` is the address of
/// both ends. `Ok(false)` when it does not fit now.
#[inline]
pub fn push_packet(
    producer: &mut Producer,
    own: Gid,
    packet: &Packet,
    payload: &Gather,
) -> Result<bool, Broken> {
    assert!(payload.len() == packet.payload_len as usize, "payload as stated");
    // SAFETY: the ring gives room for as many bytes as the packet states, which are as many as are copied;
    // only the ring's other process maps that room besides, and no reference to it exists.
    producer.push_packet(own, packet, |place| unsafe { payload.copy_to_ptr(place) })
}

/// A part of a frame in a ring, where it lies. `None` if it is not inside.
#[inline]
pub fn payload_in_ring<'a>(frame: &Frame<'a>, offset: usize, len: usize) -> Option<Payload<'a>> {
    let place = frame.part(offset, len)?;
    // SAFETY: `len` bytes from there on are inside the frame, which stays mapped while the ring's consumer is
    // borrowed for `'a`; of this process no thread writes them, since the ring has one consumer.
    Some(unsafe { Payload::from_raw(place, len) })
}
