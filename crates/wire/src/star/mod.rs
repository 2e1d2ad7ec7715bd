//! StaR on the wire: a reliable connection of which one NIC keeps nothing (StaR, sections III and IV-A).
//!
//! The *stateful* side keeps both ends' state and numbers every packet. The *stateless* side executes what a
//! packet says and answers from what stands in it. Packets are RoCEv2's of service 7, which is among the
//! opcodes that IBTA leaves to manufacturers:
//!
//! | packet | to | after the BTH |
//! |---|---|---|
//! | RD, GD | stateless | [`Reth`], [`StarEth`], [`Ticket`] |
//! | RDA, GDA | stateful | [`Answer`] as an AETH, [`Stamp`] |
//! | WQEP | stateful | [`StarEth`]; entries of [`Wqe`], or a [`Record`] |
//! | its EA | stateless | [`StarEth`], [`Ticket`] |
//! | CQEP | stateless | [`StarEth`], [`Ticket`]; entries of [`Cqe`] |
//! | its EA | stateful | [`StarEth`] |
//! | hello | either | [`StarEth`]; a [`Hello`] |
//!
//! Every number is big-endian. The paper's own header (20 bytes behind UDP, on ports of its own) has no key
//! and no word on who sends; here a ticket that the stateless side has sealed says both.
//!
//! **RD** and **GD** say where: [`Reth::va`] and key of a region, or with [`StarEth::POSTED`] a [`Place`] in
//! what the stateless side has posted, so that its addresses never leave its host. [`Reth::len`] is the
//! deadline, in microseconds of the stateless side's clock.
//!
//! With [`features::CARRIED`] work that was posted may be named as the paper names it: a work request's
//! address and local key travel in its WQEP ([`Sge`]), and RDs and GDs for it have them in [`Reth`] without
//! `POSTED` ([`names_carried`]). The ticket says whether that was agreed on ([`Grant::carried`]).
//!
//! With [`StarEth::MERGED`] an RD completes a message of one packet as well ([`Merged`]), and with
//! [`StarEth::BURST`] a GD asks for several packets' data: each is answered by a GDA of its own, numbered on
//! from the GD. Both are [`features`] that the two hellos have to agree on.
//!
//! **Hello**: AckReq asks for a hello in return, without AckReq. Its PSN is a quarter of the circle before
//! the next request that the sender expects, as with IRN's. With [`StarEth::MIGRATION`] it carries a
//! [`Switch`].
//!
//! **A native service** has no queue pairs ([`StarEth::POOL`]). A client's hello names the client's number in
//! [`StarEth::value`], and any PSN; a record with that PSN answers it. A request is an RD, its reply a WQEP
//! with its PSN, one inline entry and in [`StarEth::value`] a token; the EA to that repeats PSN and token.

mod body;
mod merged;

pub use merged::Merged;

pub use body::{Cqe, Hello, Record, Sge, Side, Switch, SwitchStep, Wish, Wqe};

use crate::ext::{Aeth, NakCode, Reth, Syndrome};
use crate::irn::IrnEth;
use crate::opcode::Operation;
use crate::units::QpNumber;

/// Version of the protocol that a hello names.
pub const VERSION: u8 = 1;

/// Extensions, a bit each, in [`Hello::features`] as known and in [`Record::features`] as agreed.
pub mod features {
    /// The completion of a message of one packet rides in its RD, and the first packet for a work request
    /// acknowledges that.
    pub const MERGE: u8 = 1;
    /// One GD brings several GDAs.
    pub const BURST: u8 = 2;
    /// GDAs that one GD brings at most.
    pub const BURST_MAX: u32 = 16;
    /// Addresses and local keys of what is posted travel.
    pub const CARRIED: u8 = 4;

    /// What two sides that want these extensions have agreed on. A completion that comes with its data names
    /// what is posted by its place: with addresses there is no [`MERGE`].
    pub const fn agreed(one: u8, other: u8) -> u8 {
        let both = one & other;
        if both & CARRIED != 0 { both & !MERGE } else { both }
    }
}

/// Whether an RD or GD names by address what the stateless side has posted: a receive for a SEND, the buffer
/// of its READ or atomic, the data of its SEND or WRITE. What names one of its regions by a remote key is a
/// WRITE's RD, a READ's GD, an atomic's GD.
#[inline]
pub fn names_carried(operation: Operation, eth: StarEth) -> bool {
    if eth.op_flags & (StarEth::POSTED | StarEth::POOL) != 0 {
        return false;
    }
    match (operation, eth.op()) {
        (Operation::RemoteData, Some(Op::Send)) => eth.has(StarEth::RECV_QUEUE),
        (Operation::RemoteData, Some(Op::Read | Op::CompareSwap | Op::FetchAdd)) => true,
        (Operation::GetData, Some(Op::Send | Op::Write)) => true,
        _ => false,
    }
}

/// The `N` bytes at `at` of a larger piece; lengths are known at compile time.
#[inline]
fn at<const N: usize, const M: usize>(bytes: &[u8; M], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
fn u32_at<const M: usize>(bytes: &[u8; M], place: usize) -> u32 {
    u32::from_be_bytes(at(bytes, place))
}

/// What an operation is, in the upper half of the first byte of a [`StarEth`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names of verbs")]
pub enum Op {
    Send = 0,
    Recv = 1,
    Write = 2,
    Read = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    /// None of a queue's: hellos, and what belongs to the connection.
    Control = 15,
}

impl Op {
    /// By its number.
    #[inline]
    pub const fn from_wire(number: u8) -> Option<Op> {
        Some(match number {
            0 => Op::Send,
            1 => Op::Recv,
            2 => Op::Write,
            3 => Op::Read,
            4 => Op::CompareSwap,
            5 => Op::FetchAdd,
            15 => Op::Control,
            _ => return None,
        })
    }
}

/// What every packet of StaR has, 8 bytes. In a descriptor it stands where IRN's header does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StarEth {
    /// Operation in the upper four bits, flags in the lower.
    pub op_flags: u8,
    /// How often the packet was given a new deadline, modulo 256. Copies with the same deadline are one
    /// packet, which is executed once.
    pub copy: u8,
    /// GD: bytes asked for, one less with [`StarEth::BURST`]. WQEP, CQEP and their EAs: entries.
    pub count: u16,
    /// RD, GD: bytes of the message after this packet's; an atomic's number; flags of a [`Merged`]. WQEP of
    /// send requests: the RNR retries that its sender allows them. EA to the stateless side: completions that
    /// there are in all; of the record: a [`Refusal`], or 0. EA to the stateful side: receives that were
    /// posted in all. CQEP: the status that its sender has failed with, or 0.
    pub value: u32,
}

impl StarEth {
    /// Bytes on the wire.
    pub const LEN: usize = IrnEth::LEN;
    /// Carries the connection's record; a hello with it is a [`Switch`].
    pub const MIGRATION: u8 = 1;
    /// RD: what it is for is complete with it ([`Merged`]).
    pub const MERGED: u8 = 1;
    /// GD: it asks for the data of several packets, one byte more than [`StarEth::count`] says.
    pub const BURST: u8 = 1;
    /// CQEP: completions before it that have not come will not come any more.
    pub const FINAL: u8 = 1;
    /// Entries are of the receive queue.
    pub const RECV_QUEUE: u8 = 2;
    /// Names a place in what the stateless side has posted.
    pub const POSTED: u8 = 4;
    /// Of a native service: a request for one of its buffers, or the reply to one.
    pub const POOL: u8 = 8;

    /// A header, sent for the first time.
    #[inline]
    pub const fn new(op: Op, flags: u8, count: u16, value: u32) -> Self {
        StarEth { op_flags: (op as u8) << 4 | flags & 0xf, copy: 0, count, value }
    }

    /// The operation; `None` for a number without meaning.
    #[inline]
    pub const fn op(self) -> Option<Op> {
        Op::from_wire(self.op_flags >> 4)
    }

    /// Bytes that a GD asks for.
    #[inline]
    pub const fn asked(self) -> u32 {
        self.count as u32 + (self.op_flags & StarEth::BURST) as u32
    }

    /// Whether all of these flags are set.
    #[inline]
    pub const fn has(self, flags: u8) -> bool {
        self.op_flags & flags == flags
    }
}

impl From<IrnEth> for StarEth {
    #[inline]
    fn from(eth: IrnEth) -> Self {
        let [_, copy, high, low] = eth.sn().to_be_bytes();
        StarEth { op_flags: eth.flags(), copy, count: u16::from_be_bytes([high, low]), value: eth.offset }
    }
}

impl From<StarEth> for IrnEth {
    #[inline]
    fn from(eth: StarEth) -> Self {
        IrnEth::new(eth.op_flags, (eth.copy as u32) << 16 | eth.count as u32, eth.value)
    }
}

/// What an RDA or GDA has in the place of a [`StarEth`], 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// The stateless side's clock, in microseconds, modulo 2^32.
    pub clock: u32,
    /// The request's place among all that its NIC has executed, modulo 2^32; of a run, the first one's.
    pub order: u32,
}

impl From<IrnEth> for Stamp {
    #[inline]
    fn from(eth: IrnEth) -> Self {
        Stamp { clock: (eth.flags() as u32) << 24 | eth.sn(), order: eth.offset }
    }
}

impl From<Stamp> for IrnEth {
    #[inline]
    fn from(stamp: Stamp) -> Self {
        IrnEth::new((stamp.clock >> 24) as u8, stamp.clock, stamp.order)
    }
}

/// What the stateless side gave its peer, sealed with a key that only it knows: who may ask for what, in
/// the place of all that a NIC would keep of a connection. 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticket {
    /// What it says, as on the wire: [`Grant`].
    pub word: u64,
    /// A message authentication code over that, the queue pair's number and the peer's address.
    pub seal: u64,
}

impl Ticket {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the ticket.
    #[inline]
    pub fn read(b: &[u8; Self::LEN]) -> Self {
        Ticket { word: u64::from_be_bytes(at(b, 0)), seal: u64::from_be_bytes(at(b, 8)) }
    }

    /// Writes the ticket.
    #[inline]
    pub fn write(&self, out: &mut [u8; Self::LEN]) {
        out[..8].copy_from_slice(&self.word.to_be_bytes());
        out[8..].copy_from_slice(&self.seal.to_be_bytes());
    }
}

/// What a [`Ticket`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// Which of the stateless side's keys has sealed it.
    pub epoch: u8,
    /// Which life of the queue pair number it is for.
    pub incarnation: u8,
    /// Protection domain, by its index.
    pub pd: u16,
    /// Rights to regions, three bits: [`Grant::WRITE`] and so on.
    pub rights: u8,
    /// Path MTU as IBTA codes it, 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// What is posted may be named by address.
    pub carried: bool,
    /// The stateful side's queue pair, to which answers go.
    pub peer: QpNumber,
}

impl Grant {
    /// May write to regions that allow it.
    pub const WRITE: u8 = 1;
    /// May read from regions that allow it.
    pub const READ: u8 = 2;
    /// May execute atomics in regions that allow it.
    pub const ATOMIC: u8 = 4;

    /// The first word of a ticket. Rights and MTU have three bits each.
    #[inline]
    pub const fn word(self) -> u64 {
        let marks = (self.carried as u8) << 6 | (self.mtu & 7) << 3 | self.rights & 7;
        (self.epoch as u64) << 56
            | (self.incarnation as u64) << 48
            | (self.pd as u64) << 32
            | (marks as u64) << 24
            | self.peer.get() as u64
    }

    /// What a word says; the upper bit of the fifth byte is reserved and ignored.
    #[inline]
    pub const fn of_word(word: u64) -> Self {
        let marks = (word >> 24) as u8;
        Grant {
            epoch: (word >> 56) as u8,
            incarnation: (word >> 48) as u8,
            pd: (word >> 32) as u16,
            rights: marks & 7,
            mtu: marks >> 3 & 7,
            carried: marks & 1 << 6 != 0,
            peer: QpNumber::new(word as u32 & 0xff_ffff),
        }
    }
}

/// A place in what the stateless side has posted: in the [`Reth::va`] of a packet with [`StarEth::POSTED`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Work request, by its place in the order of its queue; 24 bits travel.
    pub index: u32,
    /// Bytes of the message before these.
    pub offset: u32,
}

impl Place {
    /// As an address.
    #[inline]
    pub const fn va(self) -> u64 {
        ((self.index & 0xff_ffff) as u64) << 32 | self.offset as u64
    }

    /// The upper eight bits of the address have no meaning.
    #[inline]
    pub const fn of_va(va: u64) -> Self {
        Place { index: (va >> 32) as u32 & 0xff_ffff, offset: va as u32 }
    }
}

/// What became of an RD or GD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Done: the data is in memory, or here it is.
    Done,
    /// The key, the bounds or the rights do not allow it.
    Access,
    /// Nothing that this side executes.
    Invalid,
    /// It names no work request that is outstanding, or one of another kind.
    NotPosted,
    /// Its deadline has passed, or is too far ahead; with this answer comes the clock.
    Expired,
    /// No room now.
    Busy,
}

impl Verdict {
    /// As an AETH's syndrome. The first of the own codes is the ninth of the NAKs; IBTA has five.
    #[inline]
    pub const fn syndrome(self) -> Syndrome {
        match self {
            Verdict::Done => Syndrome::Ack { credits: Syndrome::NO_CREDITS },
            Verdict::Access => Syndrome::Nak(NakCode::RemoteAccessError),
            Verdict::Invalid => Syndrome::Nak(NakCode::InvalidRequest),
            Verdict::NotPosted => Syndrome::Reserved(0x68),
            Verdict::Expired => Syndrome::Reserved(0x69),
            Verdict::Busy => Syndrome::Reserved(0x6a),
        }
    }

    /// `None` for a syndrome that StaR does not use.
    #[inline]
    pub const fn of_syndrome(syndrome: Syndrome) -> Option<Self> {
        Some(match syndrome {
            Syndrome::Ack { .. } => Verdict::Done,
            Syndrome::Nak(NakCode::RemoteAccessError) => Verdict::Access,
            Syndrome::Nak(NakCode::InvalidRequest) => Verdict::Invalid,
            Syndrome::Reserved(0x68) => Verdict::NotPosted,
            Syndrome::Reserved(0x69) => Verdict::Expired,
            Syndrome::Reserved(0x6a) => Verdict::Busy,
            _ => return None,
        })
    }
}

/// What an RDA or GDA has in the place of an AETH's message number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What became of the request.
    pub verdict: Verdict,
    /// [`StarEth::copy`] of the request that is answered.
    pub copy: u8,
    /// The request came marked with "congestion experienced".
    pub congested: bool,
    /// The request was for a work request of the stateless side's send queue: numbers of those are a sequence
    /// of their own.
    pub of_sends: bool,
    /// So many packets are answered, from this one's PSN on; at least 1.
    pub run: u8,
}

impl Answer {
    /// As an AETH.
    #[inline]
    pub const fn aeth(self) -> Aeth {
        let marks = (self.of_sends as u32) << 1 | self.congested as u32;
        let msn = (self.copy as u32) << 16 | marks << 8 | self.run as u32;
        Aeth { syndrome: self.verdict.syndrome(), msn }
    }

    /// `None` for a syndrome that StaR does not use, and for an answer to nothing.
    #[inline]
    pub const fn of_aeth(aeth: Aeth) -> Option<Self> {
        let Some(verdict) = Verdict::of_syndrome(aeth.syndrome) else { return None };
        let run = aeth.msn as u8;
        if run == 0 {
            return None;
        }
        let (congested, of_sends) = (aeth.msn >> 8 & 1 == 1, aeth.msn >> 9 & 1 == 1);
        Some(Answer { verdict, copy: (aeth.msn >> 16) as u8, congested, of_sends, run })
    }
}

/// Why an EA refuses what it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Refusal {
    /// Queues are larger than the other side takes on.
    TooLarge = 1,
    /// No such connection.
    Unknown = 2,
}

impl Refusal {
    /// By the [`StarEth::value`] of an EA.
    pub const fn from_wire(value: u32) -> Option<Self> {
        match value {
            1 => Some(Refusal::TooLarge),
            2 => Some(Refusal::Unknown),
            _ => None,
        }
    }
}

/// The deadline of an RD or GD, in microseconds of the stateless side's clock, modulo 2^32.
#[inline]
pub const fn deadline(reth: &Reth) -> u32 {
    reth.len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_lie_where_the_tables_say() {
        let eth =
            StarEth { op_flags: 3 << 4 | StarEth::POSTED, copy: 0x01, count: 0x0203, value: 0x0405_0607 };
        let mut out = [0; StarEth::LEN];
        IrnEth::from(eth).write(&mut out);
        assert_eq!(out, [0x34, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(StarEth::from(IrnEth::read(&out)), eth);
        assert_eq!((eth.op(), eth.has(StarEth::POSTED)), (Some(Op::Read), true));
        assert!(!eth.has(StarEth::POSTED | StarEth::MIGRATION));

        let stamp = Stamp { clock: 0x0102_0304, order: 0x0506_0708 };
        IrnEth::from(stamp).write(&mut out);
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Stamp::from(IrnEth::read(&out)), stamp);

        let grant = Grant {
            epoch: 1,
            incarnation: 2,
            pd: 0x0304,
            rights: Grant::READ,
            mtu: 5,
            carried: true,
            peer: QpNumber::new(0x0a_0b0c),
        };
        let ticket = Ticket { word: grant.word(), seal: 0x1112_1314_1516_1718 };
        let mut out = [0; Ticket::LEN];
        ticket.write(&mut out);
        let marks = 1 << 6 | 5 << 3 | 2;
        assert_eq!(out, [1, 2, 3, 4, marks, 10, 11, 12, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!((Ticket::read(&out), Grant::of_word(ticket.word)), (ticket, grant));
        let posted = Grant { carried: false, ..grant };
        assert_eq!((posted.word() ^ grant.word(), Grant::of_word(posted.word())), (1 << 30, posted));

        let place = Place { index: 0x01_0203, offset: 0x0405_0607 };
        assert_eq!((place.va(), Place::of_va(place.va())), (0x01_0203_0405_0607, place));
    }

    #[test]
    fn addresses_are_told_from_places_and_from_remote_keys() {
        use Operation::{GetData, RemoteData};
        let carried = |operation, op, flags| names_carried(operation, StarEth::new(op, flags, 0, 0));
        let all = [Op::Send, Op::Recv, Op::Write, Op::Read, Op::CompareSwap, Op::FetchAdd, Op::Control];
        for op in all {
            let is_data = matches!(op, Op::Read | Op::CompareSwap | Op::FetchAdd);
            assert_eq!(carried(RemoteData, op, 0), is_data, "{op:?}");
            assert_eq!(carried(RemoteData, op, StarEth::RECV_QUEUE), is_data || op == Op::Send, "{op:?}");
            assert_eq!(carried(GetData, op, 0), matches!(op, Op::Send | Op::Write), "{op:?}");
            for flag in [StarEth::POSTED, StarEth::POOL] {
                assert!([RemoteData, GetData].iter().all(|operation| !carried(*operation, op, flag)));
            }
        }
        assert!(!carried(Operation::WqePacket, Op::Send, StarEth::RECV_QUEUE));
    }

    #[test]
    fn only_what_both_want_is_agreed_and_addresses_go_without_merged_completions() {
        use features::{BURST, CARRIED, MERGE, agreed};
        for (one, other, both) in [
            (MERGE | BURST, MERGE, MERGE),
            (MERGE | BURST, MERGE | BURST | CARRIED, MERGE | BURST),
            (MERGE | BURST | CARRIED, MERGE | BURST | CARRIED, BURST | CARRIED),
            (CARRIED, MERGE, 0),
        ] {
            assert_eq!((agreed(one, other), agreed(other, one)), (both, both));
        }
    }

    #[test]
    fn verdicts_and_answers_survive() {
        let verdicts = [
            (Verdict::Done, 0x1f),
            (Verdict::Invalid, 0x61),
            (Verdict::Access, 0x62),
            (Verdict::NotPosted, 0x68),
            (Verdict::Expired, 0x69),
            (Verdict::Busy, 0x6a),
        ];
        for (verdict, byte) in verdicts {
            let answer = Answer { verdict, copy: 7, congested: true, of_sends: false, run: 3 };
            let mut out = [0; 4];
            answer.aeth().write(&mut out);
            assert_eq!(out, [byte, 7, 1, 3]);
            assert_eq!(Answer::of_aeth(Aeth::read(&out)), Some(answer));
        }
        assert_eq!(Answer::of_aeth(Aeth { msn: 0, ..Aeth::default() }), None, "an answer to nothing");
        let known =
            (0..=255).filter(|byte| Verdict::of_syndrome(Syndrome::from_wire(*byte)).is_some()).count();
        assert_eq!(known, 32 + 5, "an ACK has 32 forms");
    }
}
