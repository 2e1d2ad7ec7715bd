//! What is in rings that their receivers have not been shown, and which packets somebody waits for.

use adverb_wire::{Operation, Packet, Service, Syndrome};

/// Acknowledgements that may wait to be shown.
const ACKS_MAX: usize = 32;

/// Frames that no receiver has been shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unshown {
    acks: usize,
    /// There are others than plain acknowledgements.
    others: bool,
}

impl Unshown {
    /// One more.
    #[inline]
    pub fn note(&mut self, packet: &Packet) {
        if is_plain_ack(packet) { self.acks += 1 } else { self.note_other() }
    }

    /// One more, which is not taken for a plain acknowledgement.
    #[inline]
    pub fn note_other(&mut self) {
        self.others = true;
    }

    /// Whether there are some, and nothing but plain acknowledgements.
    #[inline]
    pub fn is_acks_only(&self) -> bool {
        !self.others && (1..=ACKS_MAX).contains(&self.acks)
    }
}

/// Whether a packet only says that all was well until there. It is never the last that a peer hears, nor in
/// order with requests.
#[inline]
pub fn is_plain_ack(packet: &Packet) -> bool {
    let opcode = packet.bth.opcode;
    opcode.operation() == Operation::Acknowledge
        && matches!(opcode.service(), Service::Rc | Service::Xrc)
        && matches!(packet.aeth.syndrome, Syndrome::Ack { .. })
}

/// Whether a packet is more than a plain acknowledgement, which an application that neither polls nor waits
/// has no use for now.
#[inline]
pub fn is_urgent(packet: &Packet) -> bool {
    packet.bth.opcode.operation() != Operation::Acknowledge
        || !matches!(packet.aeth.syndrome, Syndrome::Ack { .. })
}
