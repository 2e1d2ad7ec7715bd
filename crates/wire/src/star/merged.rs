//! The completion that comes with its data: a message of one packet leaves fields of its RD empty, and these
//! hold all that a completion of its own would say.
//!
//! | field of the RD | of any message | with [`StarEth::MERGED`] |
//! |---|---|---|
//! | address, upper half | index of the posted request | the same |
//! | address, lower half | offset in the message | number of the completion |
//! | key | 0 | immediate data |
//! | [`StarEth::value`] | bytes that follow | flags, as [`Cqe`] has them |

use super::{Cqe, Op, Place, StarEth};
use crate::opcode::Operation;
use crate::packet::Packet;
use crate::units::Psn;

/// What a merged RD says of the completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Merged {
    /// Posted request that is complete, by its place in the order of its queue; 24 bits travel.
    pub index: u32,
    /// The completion's number, among all of the connection.
    pub number: Psn,
    /// Those of a [`Cqe`].
    pub flags: u8,
    /// Immediate data, with [`Cqe::IMMEDIATE`].
    pub immediate: u32,
}

impl Merged {
    /// Of an RD that has one.
    pub fn of(packet: &Packet) -> Option<Merged> {
        let eth = StarEth::from(packet.irn);
        let is = packet.bth.opcode.operation() == Operation::RemoteData;
        if !is || !eth.has(StarEth::MERGED | StarEth::POSTED) {
            return None;
        }
        let Place { index, offset } = Place::of_va(packet.reth.va);
        let flags = if eth.has(StarEth::RECV_QUEUE) { Cqe::RECV_QUEUE } else { 0 };
        let known = Cqe::SOLICITED | Cqe::IMMEDIATE;
        Some(Merged {
            index,
            number: Psn::new(offset & Psn::MASK),
            flags: eth.value as u8 & known | flags,
            immediate: packet.reth.rkey.0,
        })
    }

    /// The address that it travels in.
    #[inline]
    pub const fn va(index: u32, number: Psn) -> u64 {
        Place { index, offset: number.get() }.va()
    }

    /// As the completion of a message of `len` bytes; `op` is the packet's.
    pub fn completion(self, op: Op, len: u32) -> Cqe {
        let op = if self.flags & Cqe::RECV_QUEUE != 0 { Op::Recv } else { op };
        let Merged { index, flags, immediate, .. } = self;
        Cqe { flags, status: 0, op, index, len, immediate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bth, Key, Opcode, Reth, Service};

    #[test]
    fn a_completion_survives_in_its_packet_and_no_other_packet_has_one() {
        let opcode = |operation| Opcode::new(Service::Star, operation);
        let flags = StarEth::MERGED | StarEth::POSTED | StarEth::RECV_QUEUE;
        let eth = StarEth::new(Op::Send, flags, 0, u32::from(Cqe::SOLICITED | Cqe::IMMEDIATE));
        let packet = Packet {
            bth: Bth { opcode: opcode(Operation::RemoteData), ..Bth::default() },
            reth: Reth { va: Merged::va(0x01_0203, Psn::new(0x04_0506)), rkey: Key(7), len: 99 },
            irn: eth.into(),
            ..Packet::default()
        };
        let merged = Merged::of(&packet).unwrap();
        assert_eq!((merged.index, merged.number, merged.immediate), (0x01_0203, Psn::new(0x04_0506), 7));
        let flags = Cqe::RECV_QUEUE | Cqe::SOLICITED | Cqe::IMMEDIATE;
        let cqe = Cqe { flags, status: 0, op: Op::Recv, index: 0x01_0203, len: 32, immediate: 7 };
        assert_eq!(merged.completion(Op::Send, 32), cqe);
        let sends = StarEth::new(Op::Read, StarEth::MERGED | StarEth::POSTED, 0, 0);
        let of_sends = Merged::of(&Packet { irn: sends.into(), ..packet }).unwrap();
        assert_eq!((of_sends.flags, of_sends.completion(Op::Read, 8).op), (0, Op::Read));

        let region = StarEth::new(Op::Write, StarEth::MERGED, 0, 0);
        assert_eq!(Merged::of(&Packet { irn: region.into(), ..packet }), None);
        let plain = StarEth::new(Op::Send, StarEth::POSTED | StarEth::RECV_QUEUE, 0, 0);
        assert_eq!(Merged::of(&Packet { irn: plain.into(), ..packet }), None);
        let asked = Bth { opcode: opcode(Operation::GetData), ..packet.bth };
        assert_eq!(Merged::of(&Packet { bth: asked, ..packet }), None);
    }
}
