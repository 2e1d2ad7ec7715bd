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
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let bth = Bth {
            opcode,
            solicited: b[1] & 0x80 != 0,
            migrated: b[1] & 0x40 != 0,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: b[4] & 0x80 != 0,
            becn: b[4] & 0x40 != 0,
            dest_qp: QpNumber::new(word(4) & 0xff_ffff),
            ack_req: b[8] & 0x80 != 0,
            psn: Psn::new(word(8)),
        };
        Ok((bth, b[1] >> 4 & 3, BthReserved { byte4: b[4] & 0x3f, byte8: b[8] & 0x7f }))
    }

    /// Writes the header.
    #[inline]
    pub(crate) fn write(&self, pad: u8, reserved: BthReserved, out: &mut [u8; BTH_LEN]) {
        for (place, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(self.words(pad, reserved)) {
            *place = word.to_be_bytes();
        }
    }

    /// The header as three words.
    #[inline(always)]
    pub(crate) fn words(&self, pad: u8, reserved: BthReserved) -> [u32; 3] {
        let flag = |set: bool, bit: u32| u32::from(set) << bit;
        let flags = flag(self.solicited, 23) | flag(self.migrated, 22) | u32::from(pad & 3) << 20;
        let marks = flag(self.fecn, 31) | flag(self.becn, 30) | u32::from(reserved.byte4 & 0x3f) << 24;
        let asks = flag(self.ack_req, 31) | u32::from(reserved.byte8 & 0x7f) << 24;
        [
            u32::from(self.opcode.wire()) << 24 | flags | u32::from(self.pkey),
            marks | self.dest_qp.get(),
            asks | self.psn.get(),
        ]
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
