//! Base transport header, 12 bytes (IBTA 9.2).

use crate::error::ParseError;
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

impl Bth {
    /// Reads the header: the fields, the pad count (0..=3) and the reserved bits.
    #[inline]
    pub(crate) fn read(b: &[u8; BTH_LEN]) -> Result<(Bth, u8, BthReserved), ParseError> {
        if b[1] & 0x0f != 0 {
            return Err(ParseError::TransportVersion);
        }
        let opcode = Opcode::from_wire(b[0]).ok_or(ParseError::Opcode)?;
        let bth = Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: QpNumber::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        };
        Ok((bth, b[1] >> 4 & 3, BthReserved { byte4: b[4] & 0x3f, byte8: b[8] & 0x7f }))
    }

    /// Writes the header.
    #[inline]
    pub(crate) fn write(&self, pad: u8, reserved: BthReserved, out: &mut [u8; BTH_LEN]) {
        let flag = |set: bool, bit: u32| (set as u8) << bit;
        let [pkey0, pkey1] = self.pkey.to_be_bytes();
        let [_, qp0, qp1, qp2] = self.dest_qp.get().to_be_bytes();
        let [_, psn0, psn1, psn2] = self.psn.get().to_be_bytes();
        *out = [
            self.opcode.wire(),
            flag(self.solicited, 7) | flag(self.migrated, 6) | (pad & 3) << 4,
            pkey0,
            pkey1,
            flag(self.fecn, 7) | flag(self.becn, 6) | reserved.byte4 & 0x3f,
            qp0,
            qp1,
            qp2,
            flag(self.ack_req, 7) | reserved.byte8 & 0x7f,
            psn0,
            psn1,
            psn2,
        ];
    }
}

/// Reserved bits of the header. Sent as zero and ignored on receipt; kept so that a captured frame
/// can be emitted again as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BthReserved {
    /// Six bits after FECN and BECN; the ICRC does not cover them.
    pub byte4: u8,
    /// Seven bits after AckReq.
    pub byte8: u8,
}
