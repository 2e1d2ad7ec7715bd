//! Base transport header, 12 bytes (IBTA 9.2).

use crate::opcode::Opcode;
use crate::units::{Psn, QpNumber};

/// Bytes on the wire.
pub const BTH_LEN: usize = 12;

/// The default partition's key with full membership, the only one on RoCE in practice.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// A parsed base transport header. The pad count follows from the payload length and is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Service and operation.
    pub opcode: Opcode,
    /// Solicited event: the responder's completion raises an event on a CQ armed for solicited ones.
    pub solicited: bool,
    /// Path migration state.
    pub migrated: bool,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification (set in CNPs).
    pub becn: bool,
    /// Destination queue pair.
    pub dest_qp: QpNumber,
    /// The requester asks for an acknowledgement.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Default for Bth {
    fn default() -> Self {
        Bth {
            opcode: Opcode::default(),
            solicited: false,
            migrated: false,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp: QpNumber::default(),
            ack_req: false,
            psn: Psn::default(),
        }
    }
}
