//! What packets of StaR's carry as payload: hellos, work requests and completions, a connection's record.

use super::{Op, Ticket, VERSION, at, u32_at};

/// Which side a queue pair wants to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wish {
    /// Stateless.
    Server = 1,
    /// Stateful.
    Client = 2,
    /// Whichever suits both.
    Auto = 3,
}

impl Wish {
    /// By its number.
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Wish::Server),
            2 => Some(Wish::Client),
            3 => Some(Wish::Auto),
            _ => None,
        }
    }
}

/// The payload of a hello, 24 bytes: what both sides need to choose their roles by the same rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// What the sender wants to be.
    pub wish: Wish,
    /// Extensions that the sender knows: [`super::features`].
    pub features: u8,
    /// Packets that the sender can take in at once.
    pub window: u16,
    /// Connections that occupy the sender's NIC now.
    pub connections: u32,
    /// More than so many are too many for it.
    pub threshold: u32,
    /// More that it could take, up to 65,535.
    pub capacity: u16,
    /// Sizes of the send and receive queue, in work requests.
    pub queues: (u16, u16),
    /// Of the sender's clock, in microseconds.
    pub clock: u32,
}

impl Hello {
    /// Bytes on the wire.
    pub const LEN: usize = 24;

    /// Reads a payload; `None` for another length, version or wish.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let b: &[u8; Self::LEN] = payload.try_into().ok()?;
        let wish = Wish::from_wire(b[1])?;
        if b[0] != VERSION || b[3] != 0 {
            return None;
        }
        let queues = u32_at(b, 4);
        let window = u32_at(b, 20);
        Some(Hello {
            wish,
            features: b[2],
            window: (window >> 16) as u16,
            connections: u32_at(b, 8),
            threshold: u32_at(b, 12),
            capacity: window as u16,
            queues: ((queues >> 16) as u16, queues as u16),
            clock: u32_at(b, 16),
        })
    }

    /// The payload.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        (out[0], out[1], out[2]) = (VERSION, self.wish as u8, self.features);
        let pair = |(high, low): (u16, u16)| (high as u32) << 16 | low as u32;
        let words = [
            pair(self.queues),
            self.connections,
            self.threshold,
            self.clock,
            pair((self.window, self.capacity)),
        ];
        for (place, word) in words.into_iter().enumerate() {
            out[4 + 4 * place..][..4].copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

/// What a side of a connection is: what it becomes by a [`Switch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Side {
    /// Its NIC keeps nothing of the connection.
    Stateless = 1,
    /// Its NIC keeps both sides' state.
    Stateful = 2,
    /// Plain RC.
    Plain = 3,
}

impl Side {
    /// By its number.
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Side::Stateless),
            2 => Some(Side::Stateful),
            3 => Some(Side::Plain),
            _ => None,
        }
    }

    /// What the other end is.
    pub const fn other(self) -> Side {
        match self {
            Side::Stateless => Side::Stateful,
            Side::Stateful => Side::Stateless,
            Side::Plain => Side::Plain,
        }
    }
}

/// What a [`Switch`] is for. The side that is, or will be, stateful coordinates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SwitchStep {
    /// The receiver is to see to it that it becomes what the message says.
    Ask = 1,
    /// The receiver compares how many connections both have, and sees to it that each gets its role.
    Compare = 2,
    /// From the coordinator: begin nothing new, finish what is in flight.
    Quiesce = 3,
    /// The answer, once nothing of the sender's is in flight.
    Quiesced = 4,
    /// From the coordinator, when nothing is in flight either way: be it now.
    Commit = 5,
    /// The answer of who became plain RC; who became stateless answers with its record.
    Done = 6,
    /// From the coordinator, instead of a commit: go on as before.
    Resume = 7,
    /// This epoch comes to nothing.
    Refused = 8,
}

impl SwitchStep {
    /// By its number.
    pub const fn from_wire(number: u8) -> Option<Self> {
        use SwitchStep as S;
        Some(match number {
            1 => S::Ask,
            2 => S::Compare,
            3 => S::Quiesce,
            4 => S::Quiesced,
            5 => S::Commit,
            6 => S::Done,
            7 => S::Resume,
            8 => S::Refused,
            _ => return None,
        })
    }
}

/// A connection changes its stack or its roles, 36 bytes: the payload of a hello with
/// [`super::StarEth::MIGRATION`]. Who sends it knows where both directions began, as only the peer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch {
    /// What it is for.
    pub step: SwitchStep,
    /// What the receiver is to become, or has become of the sender's.
    pub to: Side,
    /// Which of the connection's attempts at a switch it belongs to.
    pub epoch: u32,
    /// First PSNs of the connection: the sender's, and the receiver's.
    pub first: (u32, u32),
    /// Commit: the PSNs from which the sender and the receiver go on.
    pub next: (u32, u32),
    /// Quiesced: send requests that were told to the stateful side. Refused: the newest epoch known.
    pub told: u32,
    /// Connections at the sender's end, stateless ones too.
    pub connections: u32,
    /// More than so many are too many for it.
    pub threshold: u32,
}

impl Switch {
    /// Bytes on the wire.
    pub const LEN: usize = 36;

    /// Reads a payload; `None` for another length or version, and for what has no meaning.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let b: &[u8; Self::LEN] = payload.try_into().ok()?;
        if b[0] != VERSION || b[3] != 0 {
            return None;
        }
        let word = |place: usize| u32_at(b, 4 * place);
        let psn = |place: usize| Some(word(place)).filter(|psn| *psn <= 0xff_ffff);
        Some(Switch {
            step: SwitchStep::from_wire(b[1])?,
            to: Side::from_wire(b[2])?,
            epoch: word(1),
            first: (psn(2)?, psn(3)?),
            next: (psn(4)?, psn(5)?),
            told: word(6),
            connections: word(7),
            threshold: word(8),
        })
    }

    /// The payload.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        (out[0], out[1], out[2]) = (VERSION, self.step as u8, self.to as u8);
        let words = [
            self.epoch,
            self.first.0,
            self.first.1,
            self.next.0,
            self.next.1,
            self.told,
            self.connections,
            self.threshold,
        ];
        for (place, word) in words.into_iter().enumerate() {
            out[4 + 4 * place..][..4].copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

/// A work request of the stateless side, 32 bytes of a WQEP's payload. Its own addresses and keys stay at
/// home, but for those of an [`Sge`] that follows; inline bytes follow behind, padded to four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wqe {
    /// What it does.
    pub op: Op,
    /// Of [`Wqe::SIGNALED`] and those below it.
    pub flags: u8,
    /// Its place in the order of its queue, 24 bits.
    pub index: u32,
    /// Bytes of the message, or of the receive.
    pub len: u32,
    /// Address at the stateful side.
    pub va: u64,
    /// Its key there.
    pub rkey: u32,
    /// Immediate data, or the key to invalidate.
    pub immediate: u32,
}

impl Wqe {
    /// Bytes on the wire.
    pub const LEN: usize = 32;
    /// Asks for a completion.
    pub const SIGNALED: u8 = 1;
    /// Asks for an event at the peer.
    pub const SOLICITED: u8 = 2;
    /// Waits for the READs and atomics before it.
    pub const FENCE: u8 = 4;
    /// Its data follow.
    pub const INLINE: u8 = 8;
    /// Carries immediate data.
    pub const IMMEDIATE: u8 = 16;
    /// Names a key to invalidate.
    pub const INVALIDATE: u8 = 32;
    /// Its [`Sge`] follows.
    pub const CARRIED: u8 = 64;

    /// Reads an entry; `None` for an operation that no queue has, or bytes that are reserved.
    pub fn read(b: &[u8; Self::LEN]) -> Option<Self> {
        let op = Op::from_wire(b[0]).filter(|op| *op != Op::Control)?;
        if b[2..4] != [0; 2] || b[4] != 0 || b[28..] != [0; 4] || b[1] & 0x80 != 0 {
            return None;
        }
        Some(Wqe {
            op,
            flags: b[1],
            index: u32_at(b, 4),
            len: u32_at(b, 8),
            va: u64::from_be_bytes(at(b, 12)),
            rkey: u32_at(b, 20),
            immediate: u32_at(b, 24),
        })
    }

    /// The entry.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        (out[0], out[1]) = (self.op as u8, self.flags & 0x7f);
        out[4..8].copy_from_slice(&(self.index & 0xff_ffff).to_be_bytes());
        out[8..12].copy_from_slice(&self.len.to_be_bytes());
        out[12..20].copy_from_slice(&self.va.to_be_bytes());
        out[20..24].copy_from_slice(&self.rkey.to_be_bytes());
        out[24..28].copy_from_slice(&self.immediate.to_be_bytes());
        out
    }
}

/// Where a work request's data lie at the stateless side, 16 bytes behind its entry: as an mlx5 data segment.
/// A request with one such entry may travel with it; those with several are named by their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Bytes: as many as the work request has.
    pub len: u32,
    /// The local key.
    pub lkey: u32,
    /// The address.
    pub addr: u64,
}

impl Sge {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads an entry; `None` for one of nothing.
    pub fn read(b: &[u8; Self::LEN]) -> Option<Self> {
        let sge = Sge { len: u32_at(b, 0), lkey: u32_at(b, 4), addr: u64::from_be_bytes(at(b, 8)) };
        (sge.len > 0).then_some(sge)
    }

    /// The entry.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.len.to_be_bytes());
        out[4..8].copy_from_slice(&self.lkey.to_be_bytes());
        out[8..].copy_from_slice(&self.addr.to_be_bytes());
        out
    }
}

/// A completion for the stateless side, 16 bytes of a CQEP's payload. The application's own number for the
/// request lies in the host's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// Of [`Cqe::RECV_QUEUE`] and those below it.
    pub flags: u8,
    /// 0 for success; otherwise as IBTA's completion statuses are numbered in `ibv_wc_status`.
    pub status: u8,
    /// What was done.
    pub op: Op,
    /// The work request's place in the order of its queue, 24 bits.
    pub index: u32,
    /// Bytes moved.
    pub len: u32,
    /// Immediate data, or the key that was invalidated.
    pub immediate: u32,
}

impl Cqe {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// Completes a receive.
    pub const RECV_QUEUE: u8 = 1;
    /// The sender asked for an event.
    pub const SOLICITED: u8 = 2;
    /// There is immediate data.
    pub const IMMEDIATE: u8 = 4;
    /// A key was invalidated.
    pub const INVALIDATED: u8 = 8;

    /// Reads an entry; `None` for an operation that no queue has, or bytes that are reserved.
    pub fn read(b: &[u8; Self::LEN]) -> Option<Self> {
        let op = Op::from_wire(b[2]).filter(|op| *op != Op::Control)?;
        if b[3..5] != [0; 2] || b[0] & 0xf0 != 0 {
            return None;
        }
        let (index, len, immediate) = (u32_at(b, 4), u32_at(b, 8), u32_at(b, 12));
        Some(Cqe { flags: b[0], status: b[1], op, index, len, immediate })
    }

    /// The entry.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        (out[0], out[1], out[2]) = (self.flags & 0xf, self.status, self.op as u8);
        out[4..8].copy_from_slice(&(self.index & 0xff_ffff).to_be_bytes());
        out[8..12].copy_from_slice(&self.len.to_be_bytes());
        out[12..].copy_from_slice(&self.immediate.to_be_bytes());
        out
    }
}

/// A connection as the stateless side sees it, 48 bytes: the payload of a WQEP with [`StarEth::MIGRATION`].
/// The stateful side keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Local ACK timeout, as IBTA codes it.
    pub timeout: u8,
    /// Retries of packets.
    pub retries: u8,
    /// Retries after "receiver not ready".
    pub rnr_retries: u8,
    /// Its wait before one, as IBTA codes it.
    pub rnr_timer: u8,
    /// READs and atomics under way, as requester and as responder.
    pub depths: (u8, u8),
    /// Extensions that both sides know and want: [`super::features`].
    pub features: u8,
    /// The PSN at which the stateful side begins, 24 bits.
    pub psn: u32,
    /// Sizes of the send and receive queue, in work requests.
    pub queues: (u16, u16),
    /// The stateless side's clock, in microseconds.
    pub clock: u32,
    /// For how long a request may be on its way, in microseconds.
    pub lifetime: u32,
    /// Receives that the connection has had before, since its stateless side counts on.
    pub receives: u32,
    /// What the stateful side shows with each packet.
    pub ticket: Ticket,
}

impl Record {
    /// Bytes on the wire.
    pub const LEN: usize = 48;

    /// Reads a payload; `None` for another length, or bytes that are reserved.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let b: &[u8; Self::LEN] = payload.try_into().ok()?;
        if b[7..9] != [0; 2] || b[28..32] != [0; 4] {
            return None;
        }
        Some(Record {
            timeout: b[0],
            retries: b[1],
            rnr_retries: b[2],
            rnr_timer: b[3],
            depths: (b[4], b[5]),
            features: b[6],
            psn: u32_at(b, 8),
            queues: (u16::from_be_bytes(at(b, 12)), u16::from_be_bytes(at(b, 14))),
            clock: u32_at(b, 16),
            lifetime: u32_at(b, 20),
            receives: u32_at(b, 24),
            ticket: Ticket::read(&at(b, 32)),
        })
    }

    /// The payload.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let (own, theirs) = self.depths;
        out[..7].copy_from_slice(&[
            self.timeout,
            self.retries,
            self.rnr_retries,
            self.rnr_timer,
            own,
            theirs,
            self.features,
        ]);
        out[8..12].copy_from_slice(&(self.psn & 0xff_ffff).to_be_bytes());
        out[12..14].copy_from_slice(&self.queues.0.to_be_bytes());
        out[14..16].copy_from_slice(&self.queues.1.to_be_bytes());
        out[16..20].copy_from_slice(&self.clock.to_be_bytes());
        out[20..24].copy_from_slice(&self.lifetime.to_be_bytes());
        out[24..28].copy_from_slice(&self.receives.to_be_bytes());
        out[32..40].copy_from_slice(&self.ticket.word.to_be_bytes());
        out[40..].copy_from_slice(&self.ticket.seal.to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            wish: Wish::Auto,
            features: 0x0f,
            window: 0x0102,
            connections: 0x0203_0405,
            threshold: 0x0607_0809,
            capacity: 0x0b0c,
            queues: (0x0d0e, 0x0f10),
            clock: 0x1112_1314,
        }
    }

    #[test]
    fn bodies_survive_and_others_are_refused() {
        let hello = hello();
        let bytes = hello.bytes();
        assert_eq!(Hello::read(&bytes), Some(hello));
        assert_eq!(bytes[..12], [VERSION, 3, 0x0f, 0, 0x0d, 0x0e, 0x0f, 0x10, 2, 3, 4, 5]);
        assert_eq!(bytes[12..], [6, 7, 8, 9, 0x11, 0x12, 0x13, 0x14, 1, 2, 11, 12]);
        for (place, value) in [(0, VERSION + 1), (1, 0), (1, 4), (3, 1)] {
            let mut bad = bytes;
            bad[place] = value;
            assert_eq!(Hello::read(&bad), None, "byte {place}");
        }
        assert_eq!(Hello::read(&bytes[1..]), None);

        let wqe = Wqe {
            op: Op::Write,
            flags: Wqe::SIGNALED | Wqe::INVALIDATE | Wqe::CARRIED,
            index: 0x01_0203,
            len: 0x0405_0607,
            va: 0x0809_0a0b_0c0d_0e0f,
            rkey: 0x1011_1213,
            immediate: 0x1415_1617,
        };
        let bytes = wqe.bytes();
        assert_eq!(bytes[..12], [2, 0x61, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Wqe::read(&bytes), Some(wqe));
        for (place, value) in [(0, 6), (0, 15), (1, 0x80), (2, 1), (4, 1), (31, 1)] {
            let mut bad = bytes;
            bad[place] = value;
            assert_eq!(Wqe::read(&bad), None, "byte {place}");
        }

        let sge = Sge { len: 0x0102_0304, lkey: 0x0506_0708, addr: 0x090a_0b0c_0d0e_0f10 };
        let bytes = sge.bytes();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Sge::read(&bytes), Some(sge));
        assert_eq!(Sge::read(&Sge { len: 0, ..sge }.bytes()), None);

        let cqe = Cqe {
            flags: Cqe::RECV_QUEUE | Cqe::IMMEDIATE,
            status: 10,
            op: Op::Recv,
            index: 0x01_0203,
            len: 4,
            immediate: 5,
        };
        let bytes = cqe.bytes();
        assert_eq!(bytes, [5, 10, 1, 0, 0, 1, 2, 3, 0, 0, 0, 4, 0, 0, 0, 5]);
        assert_eq!(Cqe::read(&bytes), Some(cqe));
        for (place, value) in [(0, 0x10), (2, 15), (3, 1), (4, 1)] {
            let mut bad = bytes;
            bad[place] = value;
            assert_eq!(Cqe::read(&bad), None, "byte {place}");
        }
    }

    #[test]
    fn a_switch_survives_and_what_has_no_meaning_is_refused() {
        for step in 1..=8 {
            let switch = Switch {
                step: SwitchStep::from_wire(step).unwrap(),
                to: Side::Stateful,
                epoch: 0x0102_0304,
                first: (0x05_0607, 0x08_090a),
                next: (0x0b_0c0d, 0x0e_0f10),
                told: 0x1112_1314,
                connections: 0x1516_1718,
                threshold: 0x191a_1b1c,
            };
            let bytes = switch.bytes();
            assert_eq!(Switch::read(&bytes), Some(switch));
            assert_eq!(bytes[..12], [VERSION, step, 2, 0, 1, 2, 3, 4, 0, 5, 6, 7]);
            assert_eq!(bytes[24..], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c]);
            for (place, value) in [(0, VERSION + 1), (1, 0), (1, 9), (2, 0), (2, 4), (3, 1), (8, 1), (20, 1)]
            {
                let mut bad = bytes;
                bad[place] = value;
                assert_eq!(Switch::read(&bad), None, "byte {place}");
            }
            assert_eq!(Switch::read(&bytes[1..]), None);
        }
        for side in [Side::Stateless, Side::Stateful, Side::Plain] {
            assert_eq!((Side::from_wire(side as u8), side.other().other()), (Some(side), side));
        }
    }

    #[test]
    fn a_record_survives() {
        let record = Record {
            timeout: 14,
            retries: 7,
            rnr_retries: 6,
            rnr_timer: 12,
            depths: (16, 1),
            features: 3,
            psn: 0x01_0203,
            queues: (0x0405, 0x0607),
            clock: 0x0809_0a0b,
            lifetime: 20_000,
            receives: 0x1516_1718,
            ticket: Ticket { word: 3, seal: 4 },
        };
        let bytes = record.bytes();
        assert_eq!(bytes[..16], [14, 7, 6, 12, 16, 1, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((bytes[39], bytes[47]), (3, 4));
        assert_eq!(Record::read(&bytes), Some(record));
        assert_eq!(bytes[24..32], [0x15, 0x16, 0x17, 0x18, 0, 0, 0, 0]);
        for place in [7, 8, 28, 31] {
            let mut bad = bytes;
            bad[place] = 1;
            assert_eq!(Record::read(&bad), None, "byte {place}");
        }
        assert_eq!(Record::read(&bytes[..47]), None);
    }
}
