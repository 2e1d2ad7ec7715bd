//! Headers of IRN, the selective recovery that two NICs of this kind agree on between themselves
//! (Mittal et al., SIGCOMM 2018, section 5).
//!
//! IBTA 9.2 leaves BTH opcodes `0xc0..=0xff` to manufacturers. IRN's packets are those of RC with the upper
//! three bits `110` and four operations more. A NIC that does not know them (Linux's rxe) drops them.
//!
//! | operations | headers after the BTH, in this order |
//! |---|---|
//! | SEND first, middle, last, only | `IrnEth` |
//! | SEND with immediate | ImmDt, `IrnEth` |
//! | SEND with invalidate | IETH, `IrnEth` |
//! | WRITE first, middle, last, only | RETH |
//! | WRITE with immediate | RETH, ImmDt, `IrnEth` |
//! | READ request | RETH, `IrnEth` |
//! | compare and swap, fetch and add | AtomicETH, `IrnEth` |
//! | READ response first, last, only; middle | AETH; nothing |
//! | atomic acknowledge | AETH, AtomicAckETH |
//! | acknowledge, READ acknowledge (`0x18`) | AETH, `SackEth` |
//! | hello (`0x19`) | `IrnEth` |
//! | masked compare and swap (`0x1a`), fetch and add (`0x1b`) | AtomicETH, `IrnEth` |
//!
//! **Two sequences of PSNs.** Requests are numbered one by one, a READ or atomic taking one number. READ
//! responses and atomic acknowledges are numbered in a sequence of their own, in the order of their requests;
//! it starts with the PSN of the first IRN request of that direction.
//!
//! **RETH of a WRITE packet**: every packet carries one. Address: that of the packet's own first byte.
//! Length: a [`WriteLength`], the bytes of the message *after* this packet in the low 31 bits,
//! [`WriteLength::ordered`] above.
//!
//! **`IrnEth`**, 8 bytes:
//!
//! | byte | SEND, WRITE with immediate | READ, atomic | hello |
//! |---|---|---|---|
//! | 0 | flags; bit 0: [`IrnEth::ORDERED`] | 0 | flags: [`IrnEth::RUNS`], [`IrnEth::MASKED_ATOMICS`] |
//! | 1..4 | number of the receive that the message takes | of the READ or atomic | [`VERSION`] |
//! | 4..8 | bytes of the message before this packet | PSN of the next response awaited | the sender's room |
//!
//! A requester that awaits the response of a PSN has all before it. The room that a hello tells is the
//! packets that its sender can take in at once.
//!
//! **Acknowledgements.** `BTH.psn` is the cumulative one: the first PSN that has not arrived, or, with an RNR
//! or error NAK, the PSN that was refused. Everything before it is done. The AETH's syndrome tells them
//! apart: ACK, or NAK PSN sequence error (a packet has come ahead of its turn), or RNR and error NAKs as in
//! RC. A READ acknowledge travels from the requester and counts in the responses' sequence.
//!
//! **`SackEth`**, 4 bytes: flags (bit 0: [`SackEth::NOT_KEPT`]), and in the lower 24 bits the PSN of the
//! packet that triggered the acknowledgement; equal to the cumulative one when there is nothing to say. To a
//! peer whose hello says that it reads runs, the upper seven bits of the flags say how many packets after
//! that one have come, too.
//!
//! **Hello**: AckReq asks for a hello in return, without AckReq. Its PSN is a quarter of the circle before
//! the next request that the sender expects: who knows the opcode ignores it, and who takes it for an answer
//! takes it for an old one.

use crate::ext::u24_after;
use crate::units::Psn;

/// Version of the protocol that a hello names.
pub const VERSION: u32 = 1;

/// The length field of the RETH in an IRN WRITE packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteLength {
    /// Bytes of the message after this packet's, below 2^31.
    pub following: u32,
    /// As [`IrnEth::ORDERED`].
    pub ordered: bool,
}

impl WriteLength {
    /// Reads the field.
    #[inline]
    pub const fn from_wire(len: u32) -> Self {
        WriteLength { following: len & 0x7fff_ffff, ordered: len >> 31 != 0 }
    }

    /// The field.
    #[inline]
    pub const fn wire(self) -> u32 {
        self.following & 0x7fff_ffff | (self.ordered as u32) << 31
    }
}

/// Sequence number and offset: what a packet of IRN has beyond RC's, and a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IrnEth {
    /// Flags in the upper byte, sequence number in the lower three: the first word of the wire.
    word: u32,
    /// Second word.
    pub offset: u32,
}

impl IrnEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;
    /// A READ, an atomic or a SEND with invalidate before this packet is not acknowledged yet. Such a request
    /// is executed in its turn, so the bytes of this packet must not land before theirs.
    pub const ORDERED: u8 = 1;
    /// In a hello: its sender reads NACKs that name a run of packets ([`SackEth::run`]).
    pub const RUNS: u8 = 1;
    /// In a hello: its sender executes masked atomics.
    pub const MASKED_ATOMICS: u8 = 2;

    /// A header; the low 24 bits of `sn` travel.
    #[inline]
    pub const fn new(flags: u8, sn: u32, offset: u32) -> Self {
        IrnEth { word: (flags as u32) << 24 | sn & 0xff_ffff, offset }
    }

    /// Sequence number, 24 bits.
    #[inline]
    pub const fn sn(self) -> u32 {
        self.word & 0xff_ffff
    }

    /// Flags.
    #[inline]
    pub const fn flags(self) -> u8 {
        (self.word >> 24) as u8
    }

    /// Whether [`IrnEth::ORDERED`] is set.
    #[inline]
    pub const fn is_ordered(self) -> bool {
        self.flags() & Self::ORDERED != 0
    }

    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        IrnEth { word, offset: u32::from_be_bytes([b[4], b[5], b[6], b[7]]) }
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..4].copy_from_slice(&self.word.to_be_bytes());
        out[4..].copy_from_slice(&self.offset.to_be_bytes());
    }
}

/// Which packet an acknowledgement answers, beside the cumulative one of its BTH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackEth(u32);

impl SackEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// The packet came but was not kept: send it again too.
    pub const NOT_KEPT: u8 = 1;
    /// Most packets after the first that a run names.
    pub const MORE_MAX: u32 = 127;

    /// A run of packets that have come: this one, and so many after it, at most [`SackEth::MORE_MAX`].
    #[inline]
    pub fn run(psn: Psn, more: u32) -> Self {
        Self::new((more.min(Self::MORE_MAX) as u8) << 1, psn)
    }

    /// Packets after [`SackEth::psn`] that have come, too.
    #[inline]
    pub const fn more(self) -> u32 {
        (self.flags() >> 1) as u32
    }

    /// A header.
    #[inline]
    pub const fn new(flags: u8, psn: Psn) -> Self {
        SackEth((flags as u32) << 24 | psn.get())
    }

    /// The packet that triggered the acknowledgement.
    #[inline]
    pub const fn psn(self) -> Psn {
        Psn::new(self.0)
    }

    /// Flags.
    #[inline]
    pub const fn flags(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Whether the receiver has the packet.
    #[inline]
    pub const fn is_kept(self) -> bool {
        self.flags() & Self::NOT_KEPT == 0
    }

    /// Reads the header.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        SackEth(u32::from_be_bytes(*b))
    }

    /// Writes the header.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        *out = u24_after(self.flags(), self.psn().get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_tables_say() {
        let mut out = [0; 8];
        let eth = IrnEth::new(IrnEth::ORDERED, 0x0102_0304, 0x0506_0708);
        eth.write(&mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(IrnEth::read(&out), eth);
        assert_eq!((eth.sn(), eth.flags(), eth.is_ordered()), (0x02_0304, 1, true));

        let mut out = [0; 4];
        let sack = SackEth::new(SackEth::NOT_KEPT, Psn::new(0x0a_0b0c));
        sack.write(&mut out);
        assert_eq!(out, [1, 10, 11, 12]);
        assert_eq!(SackEth::read(&out), sack);
        assert_eq!((sack.is_kept(), sack.more()), (false, 0));

        let run = SackEth::run(Psn::new(0x0a_0b0c), 5);
        run.write(&mut out);
        assert_eq!(out, [10, 10, 11, 12]);
        assert_eq!((run.psn(), run.more(), run.is_kept()), (Psn::new(0x0a_0b0c), 5, true));
        assert_eq!(SackEth::run(Psn::new(0), 4000).more(), SackEth::MORE_MAX);
        assert!(!sack.is_kept() && SackEth::new(0, Psn::new(1)).is_kept());

        let length = WriteLength { following: 0x7fff_ff00, ordered: true };
        assert_eq!(length.wire(), 0xffff_ff00);
        assert_eq!(WriteLength::from_wire(length.wire()), length);
    }
}
