//! A frame that leaves the NIC.

use crate::ids::PathId;
use crate::memory::Gather;
use adverb_wire::Packet;

/// A frame that leaves the NIC: headers as a descriptor, payload as pieces of registered memory.
/// It must be emitted (its payload copied out) before the next call into the NIC.
#[derive(Default)]
pub struct TxFrame {
    /// Headers.
    pub packet: Packet,
    /// Payload.
    pub payload: Gather,
    /// Route.
    pub path: PathId,
}
