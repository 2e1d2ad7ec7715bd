//! BTH opcodes: three bits of service, five bits of operation (IBTA table 38).

use core::fmt;

/// Transport service, the upper three bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification (RoCEv2 CNP, opcode 0x81 only; IBTA A17.9.3).
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
    /// Reliable connection with selective recovery, in the manufacturers' range ([`crate::irn`]).
    Irn = 6,
    /// Reliable connection of which one NIC keeps nothing, in the manufacturers' range ([`crate::star`]).
    Star = 7,
}

/// Operation, the lower five bits of the opcode. StaR's own have numbers from 0x20 on here: they share their
/// bits with operations of other services, and none of what those are holds for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's own")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInv = 0x16,
    SendOnlyInv = 0x17,
    /// IRN only: acknowledges READ responses and atomic answers.
    ReadAcknowledge = 0x18,
    /// IRN and StaR: the sender knows the service.
    Hello = 0x19,
    /// Own: compares and swaps the bits of two masks, which are its payload ([`masks`](crate::ext::masks)).
    MaskedCompareSwap = 0x1a,
    /// Own: adds in fields whose upper ends a mask tells, in the place of the value to compare with.
    MaskedFetchAdd = 0x1b,
    /// StaR: acknowledges WQE packets, to the stateless side.
    WqeEventAcknowledge = 0x20 | 0x14,
    /// StaR: data that the stateless side was asked for.
    GetDataAnswer = 0x20 | 0x15,
    /// StaR: WQEs of the stateless side.
    WqePacket = 0x20 | 0x1a,
    /// StaR: CQEs for the stateless side.
    CqePacket = 0x20 | 0x1b,
    /// StaR: acknowledges CQE packets, to the stateful side.
    CqeEventAcknowledge = 0x20 | 0x1c,
    /// StaR: data for the stateless side.
    RemoteData = 0x20 | 0x1d,
    /// StaR: says what became of remote data.
    RemoteDataAnswer = 0x20 | 0x1e,
    /// StaR: asks the stateless side for data.
    GetData = 0x20 | 0x1f,
}

impl Operation {
    const ALL: [Option<Operation>; 32] = {
        use Operation::*;
        let mut table = [None; 32];
        let known = [
            SendFirst,
            SendMiddle,
            SendLast,
            SendLastImm,
            SendOnly,
            SendOnlyImm,
            WriteFirst,
            WriteMiddle,
            WriteLast,
            WriteLastImm,
            WriteOnly,
            WriteOnlyImm,
            ReadRequest,
            ReadResponseFirst,
            ReadResponseMiddle,
            ReadResponseLast,
            ReadResponseOnly,
            Acknowledge,
            AtomicAcknowledge,
            CompareSwap,
            FetchAdd,
            SendLastInv,
            SendOnlyInv,
            ReadAcknowledge,
            Hello,
            MaskedCompareSwap,
            MaskedFetchAdd,
        ];
        let mut i = 0;
        while i < known.len() {
            table[known[i] as usize] = Some(known[i]);
            i += 1;
        }
        table
    };

    /// What StaR has beside the hello.
    const OF_STAR: [Operation; 8] = {
        use Operation::*;
        [
            WqeEventAcknowledge,
            GetDataAnswer,
            WqePacket,
            CqePacket,
            CqeEventAcknowledge,
            RemoteData,
            RemoteDataAnswer,
            GetData,
        ]
    };

    /// By the byte of any opcode; those of no operation stand in no valid one.
    const BY_BYTE: [Operation; 256] = {
        let mut table = [Operation::SendMiddle; 256];
        let mut byte = 0;
        while byte < table.len() {
            if let Some(operation) = Self::of_byte(byte as u8) {
                table[byte] = operation;
            }
            byte += 1;
        }
        table
    };

    /// The operation of an opcode, if its service has operations of that number.
    const fn of_byte(byte: u8) -> Option<Operation> {
        let (service, bits) = (byte >> 5, byte & 0x1f);
        if service != Service::Star as u8 {
            return Self::ALL[bits as usize];
        }
        let mut i = 0;
        while i < Self::OF_STAR.len() {
            if Self::OF_STAR[i] as u8 & 0x1f == bits {
                return Some(Self::OF_STAR[i]);
            }
            i += 1;
        }
        if bits == Operation::Hello as u8 { Some(Operation::Hello) } else { None }
    }

    /// First packet of a multi-packet message.
    #[inline]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst)
    }

    /// Neither first nor last.
    #[inline]
    pub const fn is_middle(self) -> bool {
        matches!(self, Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle)
    }

    /// Last or only packet of a SEND or WRITE.
    #[inline]
    pub const fn ends_message(self) -> bool {
        matches!(
            self,
            Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// First or only packet of a SEND or WRITE.
    #[inline]
    pub const fn starts_message(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
                | Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Any packet of a SEND.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImm
                | Self::SendLastInv
                | Self::SendOnly
                | Self::SendOnlyImm
                | Self::SendOnlyInv
        )
    }

    /// Any packet of an RDMA WRITE.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImm
                | Self::WriteOnly
                | Self::WriteOnlyImm
        )
    }

    /// Any packet of a READ response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// CAS or FETCH-ADD request, masked or not.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd) || self.is_masked()
    }

    /// CAS or FETCH-ADD request with masks. IBTA's table 38 has none, and the one vendor who has such atomics
    /// does not publish theirs; so these are sent only to an end that is known to read them.
    #[inline]
    pub const fn is_masked(self) -> bool {
        matches!(self, Self::MaskedCompareSwap | Self::MaskedFetchAdd)
    }

    /// Travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge | Self::AtomicAcknowledge)
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm)
    }
}

/// The extension headers of a packet, as a set. On the wire they stand in the order of the
/// constants below (IBTA 9.2, table 38).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers(u16);

impl Headers {
    /// No extension header.
    pub const NONE: Headers = Headers(0);
    /// Datagram header, 8 bytes.
    pub const DETH: Headers = Headers(1);
    /// Extended reliable connection header, 4 bytes.
    pub const XRCETH: Headers = Headers(1 << 1);
    /// RDMA address header, 16 bytes.
    pub const RETH: Headers = Headers(1 << 2);
    /// Atomic request header, 28 bytes.
    pub const ATOMIC_ETH: Headers = Headers(1 << 3);
    /// Acknowledge header, 4 bytes.
    pub const AETH: Headers = Headers(1 << 4);
    /// Original value of an atomic, 8 bytes.
    pub const ATOMIC_ACK_ETH: Headers = Headers(1 << 5);
    /// Immediate data, 4 bytes.
    pub const IMM_DT: Headers = Headers(1 << 6);
    /// Key to invalidate, 4 bytes.
    pub const IETH: Headers = Headers(1 << 7);
    /// IRN's sequence number and offset, 8 bytes.
    pub const IRN_ETH: Headers = Headers(1 << 8);
    /// IRN's selective acknowledgement, 4 bytes.
    pub const SACK_ETH: Headers = Headers(1 << 9);
    /// StaR's header, 8 bytes: no packet has both, so it is [`Headers::IRN_ETH`]'s bit.
    pub const STAR_ETH: Headers = Headers::IRN_ETH;
    /// StaR's ticket, 16 bytes. It stands behind a StaR header only.
    pub const TICKET: Headers = Headers(1 << 10);

    /// What an atomic's answer has.
    pub(crate) const ATOMIC_ANSWER: Headers = Headers::AETH.union(Headers::ATOMIC_ACK_ETH);

    /// Lengths in bytes, by bit.
    const LENGTHS: [usize; 11] = [8, 4, 16, 28, 4, 8, 4, 4, 8, 4, 16];

    /// Whether every header of `other` is in this set.
    #[inline]
    pub const fn contains(self, other: Headers) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[inline]
    pub const fn union(self, other: Headers) -> Headers {
        Headers(self.0 | other.0)
    }

    /// Whether the set has no header.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Bytes that these headers take on the wire.
    pub const fn len(self) -> usize {
        let mut len = 0;
        let mut bit = 0;
        while bit < Self::LENGTHS.len() {
            if self.0 >> bit & 1 == 1 {
                len += Self::LENGTHS[bit];
            }
            bit += 1;
        }
        len
    }

    /// Bytes from the end of the BTH to `header`, one header of this set; `None` when it is absent.
    pub const fn offset_of(self, header: Headers) -> Option<usize> {
        if header.0.count_ones() != 1 || !self.contains(header) {
            return None;
        }
        Some(Headers(self.0 & (header.0 - 1)).len())
    }

    /// What the operation adds to the headers of its service.
    const fn of_operation(operation: Operation) -> Headers {
        use Operation::*;
        match operation {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast => Self::NONE,
            SendLastImm | SendOnlyImm | WriteLastImm => Self::IMM_DT,
            SendLastInv | SendOnlyInv => Self::IETH,
            WriteFirst | WriteOnly | ReadRequest => Self::RETH,
            WriteOnlyImm => Self::RETH.union(Self::IMM_DT),
            ReadResponseMiddle => Self::NONE,
            ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge => Self::AETH,
            AtomicAcknowledge => Self::AETH.union(Self::ATOMIC_ACK_ETH),
            CompareSwap | FetchAdd | MaskedCompareSwap | MaskedFetchAdd => Self::ATOMIC_ETH,
            ReadAcknowledge => Self::AETH,
            Hello => Self::NONE,
            RemoteData | GetData => Self::RETH.union(Self::STAR_ETH).union(Self::TICKET),
            RemoteDataAnswer | GetDataAnswer => Self::AETH.union(Self::STAR_ETH),
            WqePacket | CqeEventAcknowledge => Self::STAR_ETH,
            CqePacket | WqeEventAcknowledge => Self::STAR_ETH.union(Self::TICKET),
        }
    }

    /// What IRN adds to the headers of RC.
    const fn of_irn(operation: Operation) -> Headers {
        use Operation::*;
        match operation {
            WriteMiddle | WriteLast => Self::RETH,
            WriteLastImm => Self::RETH.union(Self::IRN_ETH),
            WriteOnlyImm | ReadRequest | Hello => Self::IRN_ETH,
            _ if operation.is_atomic() => Self::IRN_ETH,
            Acknowledge | ReadAcknowledge => Self::SACK_ETH,
            _ if operation.is_send() => Self::IRN_ETH,
            _ => Self::NONE,
        }
    }

    const fn of_opcode(opcode: Opcode) -> Headers {
        let operation = opcode.operation();
        let own = Self::of_operation(operation);
        match opcode.service() {
            Service::Rc | Service::Uc => own,
            Service::Ud => Self::DETH.union(own),
            Service::Xrc if operation.is_response() => own,
            Service::Xrc => Self::XRCETH.union(own),
            Service::Irn => own.union(Self::of_irn(operation)),
            Service::Star => own.union(Self::STAR_ETH),
            Service::Cnp => Self::NONE,
        }
    }
}

/// What the parser and the emitter look up by opcode byte.
#[derive(Clone, Copy)]
struct Layout {
    known: bool,
    headers: Headers,
    ext_len: u8,
}

static LAYOUTS: [Layout; 256] = LAYOUTS_CONST;

const LAYOUTS_CONST: [Layout; 256] = {
    let mut table = [Layout { known: false, headers: Headers::NONE, ext_len: 0 }; 256];
    let mut byte = 0;
    while byte < 256 {
        if let Some(opcode) = Opcode::checked(byte as u8) {
            let headers = Headers::of_opcode(opcode);
            table[byte] = Layout { known: true, headers, ext_len: headers.len() as u8 };
        }
        byte += 1;
    }
    table
};

/// Longest run of extension headers of any opcode, in bytes.
pub const MAX_EXT_LEN: usize = {
    let mut longest = 0;
    let mut byte = 0;
    while byte < 256 {
        if LAYOUTS_CONST[byte].ext_len as usize > longest {
            longest = LAYOUTS_CONST[byte].ext_len as usize;
        }
        byte += 1;
    }
    longest
};

/// A valid opcode byte: a service with an operation that the service defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The RoCEv2 congestion notification packet.
    pub const CNP: Opcode = Opcode(0x81);

    /// Builds an opcode; the caller pairs only what IBTA table 38 pairs.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Self {
        Opcode((service as u8) << 5 | operation as u8 & 0x1f)
    }

    /// Checks a byte from the wire. `None` for reserved and RD opcodes, and manufacturers' own but IRN's
    /// and StaR's.
    #[inline]
    pub fn from_wire(byte: u8) -> Option<Self> {
        if LAYOUTS[byte as usize].known { Some(Opcode(byte)) } else { None }
    }

    /// The extension headers that follow the BTH.
    #[inline]
    pub fn headers(self) -> Headers {
        LAYOUTS[self.0 as usize].headers
    }

    /// Bytes of extension headers.
    #[inline]
    pub fn ext_len(self) -> usize {
        LAYOUTS[self.0 as usize].ext_len as usize
    }

    /// Bytes of extension headers that IRN adds to what RC's packet of the same operation carries.
    pub fn irn_overhead(self) -> usize {
        match self.service() {
            Service::Irn => self.ext_len() - Headers::of_operation(self.operation()).len(),
            _ => 0,
        }
    }

    /// IBTA table 38 and the own operations, from which [`LAYOUTS`] is built.
    const fn checked(byte: u8) -> Option<Self> {
        let op = match Operation::of_byte(byte) {
            Some(op) => op,
            None => return None,
        };
        let irn_only = matches!(op, Operation::ReadAcknowledge | Operation::Hello);
        let valid = match byte >> 5 {
            6 | 7 => true,
            _ if irn_only => false,
            0 => true,
            5 => !op.is_masked(),
            1 => {
                op.is_send() && !matches!(op, Operation::SendLastInv | Operation::SendOnlyInv)
                    || op.is_write()
            }
            3 => matches!(op, Operation::SendOnly | Operation::SendOnlyImm),
            4 => byte == 0x81,
            _ => false,
        };
        if valid { Some(Opcode(byte)) } else { None }
    }

    /// Every valid opcode, in the order of their bytes.
    pub fn all() -> impl Iterator<Item = Opcode> {
        (0..=255u8).filter_map(Opcode::from_wire)
    }

    /// The byte on the wire.
    #[inline]
    pub const fn wire(self) -> u8 {
        self.0
    }

    /// Upper three bits.
    #[inline]
    pub const fn service(self) -> Service {
        match self.0 >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            4 => Service::Cnp,
            6 => Service::Irn,
            7 => Service::Star,
            _ => Service::Xrc,
        }
    }

    /// Whether this is the service.
    #[inline]
    pub const fn is_of(self, service: Service) -> bool {
        self.0 >> 5 == service as u8
    }

    /// Lower five bits. For a CNP the answer carries no meaning (`SendMiddle`).
    #[inline]
    pub const fn operation(self) -> Operation {
        Operation::BY_BYTE[self.0 as usize]
    }
}

impl Default for Opcode {
    fn default() -> Self {
        Opcode::new(Service::Rc, Operation::SendOnly)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::CNP {
            return f.write_str("CNP");
        }
        write!(f, "{:?} {:?}", self.service(), self.operation())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_defined_opcodes_pass() {
        let count = (0..=255u8).filter(|&b| Opcode::from_wire(b).is_some()).count();
        // RC 25, XRC 23, IRN 27, StaR 9, UC 12, UD 2, CNP 1.
        assert_eq!(count, 25 + 23 + 27 + 9 + 12 + 2 + 1);
        for b in 0..=255u8 {
            if let Some(op) = Opcode::from_wire(b) {
                assert_eq!(op.wire(), b);
                if b != 0x81 {
                    assert_eq!(Opcode::new(op.service(), op.operation()), op);
                }
            }
        }
    }

    #[test]
    fn header_lengths_by_opcode() {
        let len = |service, operation| Opcode::new(service, operation).ext_len();
        assert_eq!(len(Service::Rc, Operation::WriteOnlyImm), 20);
        assert_eq!(len(Service::Xrc, Operation::WriteOnlyImm), 24);
        assert_eq!(len(Service::Xrc, Operation::CompareSwap), 32);
        assert_eq!(len(Service::Rc, Operation::MaskedCompareSwap), 28);
        assert_eq!(len(Service::Irn, Operation::MaskedFetchAdd), 36);
        assert_eq!(len(Service::Xrc, Operation::AtomicAcknowledge), 12);
        assert_eq!(len(Service::Ud, Operation::SendOnlyImm), 12);
        assert_eq!(len(Service::Rc, Operation::ReadResponseMiddle), 0);
        assert_eq!(Opcode::CNP.ext_len(), 0);
        assert_eq!(len(Service::Irn, Operation::WriteMiddle), 16);
        assert_eq!(len(Service::Irn, Operation::WriteLastImm), 28);
        assert_eq!(len(Service::Irn, Operation::SendOnlyInv), 12);
        assert_eq!(len(Service::Irn, Operation::CompareSwap), 36);
        assert_eq!(len(Service::Irn, Operation::ReadResponseLast), 4);
        assert_eq!(len(Service::Irn, Operation::ReadAcknowledge), 8);
        assert_eq!(len(Service::Irn, Operation::Hello), 8);
        assert_eq!(Opcode::new(Service::Irn, Operation::WriteMiddle).irn_overhead(), 16);
        assert_eq!(Opcode::new(Service::Irn, Operation::SendFirst).irn_overhead(), 8);
        assert_eq!(Opcode::new(Service::Irn, Operation::ReadResponseFirst).irn_overhead(), 0);
        assert_eq!(MAX_EXT_LEN, 40);
        assert!(Opcode::all().all(|o| o.headers().is_empty() == (o.ext_len() == 0)));
    }

    #[test]
    fn stars_packets_are_none_of_the_others_kinds() {
        let table = [
            (0xf4, Operation::WqeEventAcknowledge, 24),
            (0xf5, Operation::GetDataAnswer, 12),
            (0xf9, Operation::Hello, 8),
            (0xfa, Operation::WqePacket, 8),
            (0xfb, Operation::CqePacket, 24),
            (0xfc, Operation::CqeEventAcknowledge, 8),
            (0xfd, Operation::RemoteData, 40),
            (0xfe, Operation::RemoteDataAnswer, 12),
            (0xff, Operation::GetData, 40),
        ];
        let all: Vec<u8> = Opcode::all().map(Opcode::wire).filter(|byte| *byte >= 0xe0).collect();
        assert_eq!(all, table.map(|(byte, _, _)| byte));
        for (byte, operation, len) in table {
            let opcode = Opcode::from_wire(byte).unwrap();
            assert_eq!((opcode.service(), opcode.operation()), (Service::Star, operation));
            assert_eq!((opcode, opcode.ext_len()), (Opcode::new(Service::Star, operation), len));
            let other = operation.is_send()
                || operation.is_write()
                || operation.is_atomic()
                || operation.is_response()
                || operation.is_first()
                || operation.is_middle()
                || operation.ends_message()
                || operation.starts_message()
                || operation.has_immediate();
            assert!(!other, "{operation:?}");
            // With another service in front, the same bits are another operation or none.
            let plain = Opcode::from_wire(byte & 0x1f);
            assert!(plain.is_none_or(|plain| plain.operation() != operation));
        }
    }
}
