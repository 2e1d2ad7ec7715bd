//! A frame that leaves the NIC.

use crate::congestion::telemetry::Telemetry;
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
    /// What an acknowledgement brings back of the links that its packet took, for a driver whose network
    /// stamps packets; the driver takes it out.
    pub telemetry: Option<Telemetry>,
}
