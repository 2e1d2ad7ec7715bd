//! Messages of 1RMA: connection-free, encrypted operations of up to 4 KB on a peer's memory (Singhvi et al.,
//! SIGCOMM 2020).
//!
//! The paper gives no format; this one is ours. A message is the payload of one UDP datagram to [`UDP_PORT`],
//! from any port. Numbers are big-endian. Reserved bytes are zero, and a message in which they are not is
//! refused.
//!
//! Every message starts with 16 bytes:
//!
//! | byte | field | meaning |
//! |---|---|---|
//! | 0 | version | [`VERSION`] |
//! | 1 | kind | [`Kind`] |
//! | 2 | detail | requests: class of service, 0 or 1; completion: status, [`Status`]; else 0 |
//! | 3 | reserved | |
//! | 4..8 | to | the initiator's command slot, which answers repeat; write data: the solicitation's ticket |
//! | 8..16 | counter | the sender's message counter: never the same twice from one NIC |
//!
//! and goes on by kind:
//!
//! | kind | hop | from | after byte 16 | payload |
//! |---|---|---|---|---|
//! | 1 read request | 1 of 2 | initiator | request | |
//! | 2 read response | 2 of 2 | target | piece | bytes read |
//! | 3 write request | 1 of 4 | initiator | request | |
//! | 4 rekey request | 1 of 4 | initiator | request | |
//! | 5 solicitation | 2 of 4 | target | 16..20 ticket, 20..24 nanoseconds for which the target takes data | |
//! | 6 write data | 3 of 4 | initiator | piece | bytes to write, or the new region key |
//! | 7 completion | 4 of 4, or 2 of 2 when refused | target | | |
//! | 8 NACK | 2 | target | | |
//! | 9 authentication failure | 2 | target | | |
//!
//! request, 20 bytes: 16..20 PID of the initiator, 20..24 region of the target, 24..32 offset in the region,
//! 32..34 bytes of the operation (1 to [`MAX_OP`]; 16 for a rekey), 34..36 reserved. piece, 4 bytes: 16..18
//! offset in the operation, a multiple of [`GRAIN`], 18..20 bytes of the payload, of which there is at least
//! one; all pieces but the last are multiples of [`GRAIN`].
//!
//! The last 16 bytes of every message are the tag of AES-128-GCM. What lies before the payload is
//! authenticated, the payload is encrypted. The nonce of 12 bytes is the counter, the kind, a zero, and the
//! offset of a piece or zero ([`Header::nonce`]). The additional data are the message's own header and the
//! *previous nonce*, 12 bytes that do not travel, which chains the messages of an operation:
//!
//! | message | previous nonce |
//! |---|---|
//! | requests | zeros |
//! | read response, solicitation, NACK, authentication failure, completion of two hops | the request's |
//! | write data, completion of a four-hop operation | the solicitation's |
//!
//! The key is the one derived for initiator, process and kind of operation, but for the authentication
//! failure's, whose key is [`RESERVED_KEY`], known to everybody: it is a hint, not a proof (section 4.2).

use core::fmt;

/// UDP destination port. IANA has none for 1RMA; this one is among those that it leaves to private use, above
/// those that Linux gives to clients.
pub const UDP_PORT: u16 = 61_113;
/// Version of this format.
pub const VERSION: u8 = 1;
/// Bytes of one operation at most (section 4.4).
pub const MAX_OP: usize = 4096;
/// Bytes of a region key, and of the payload of a rekey.
pub const KEY_LEN: usize = 16;
/// Pieces of an operation start at multiples of this, so that 64 bits tell which have arrived.
pub const GRAIN: usize = 64;
/// Bytes of an AES-128-GCM tag.
pub const TAG_LEN: usize = 16;
/// Bytes of an AES-128-GCM nonce.
pub const NONCE_LEN: usize = 12;
/// Bytes that every message starts with.
pub const HEAD_LEN: usize = 16;
/// Bytes of the longest header, a request's.
pub const MAX_HEADER_LEN: usize = HEAD_LEN + 20;
/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = HEAD_LEN + 4 + MAX_OP + TAG_LEN;
/// Key of authentication failures (section 4.2, "a well-known reserved key").
pub const RESERVED_KEY: [u8; KEY_LEN] = *b"1RMA notice key\0";

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Asks for bytes of the target's memory.
    ReadRequest = 1,
    /// A piece of them.
    ReadResponse = 2,
    /// Asks the target to fetch bytes.
    WriteRequest = 3,
    /// Asks the target to fetch a new region key.
    RekeyRequest = 4,
    /// The target fetches.
    Solicitation = 5,
    /// A piece of what it fetches.
    WriteData = 6,
    /// The outcome.
    Completion = 7,
    /// The target has too much to do.
    Nack = 8,
    /// The request's tag was wrong, or its region does not exist.
    AuthenticationFailure = 9,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::ReadRequest,
        Kind::ReadResponse,
        Kind::WriteRequest,
        Kind::RekeyRequest,
        Kind::Solicitation,
        Kind::WriteData,
        Kind::Completion,
        Kind::Nack,
        Kind::AuthenticationFailure,
    ];

    /// Bytes of the header.
    #[inline]
    pub const fn header_len(self) -> usize {
        HEAD_LEN
            + match self {
                Kind::ReadRequest | Kind::WriteRequest | Kind::RekeyRequest => 20,
                Kind::Solicitation => 8,
                Kind::ReadResponse | Kind::WriteData => 4,
                Kind::Completion | Kind::Nack | Kind::AuthenticationFailure => 0,
            }
    }

    #[inline]
    fn from_wire(byte: u8) -> Option<Kind> {
        Self::ALL.get((byte as usize).wrapping_sub(1)).copied()
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Op {
    /// Bytes of the target's region into the initiator's.
    Read = 1,
    /// Bytes of the initiator's region into the target's.
    Write = 2,
    /// A new key for the target's region.
    Rekey = 3,
}

impl Op {
    /// The kind of its request.
    #[inline]
    pub const fn request(self) -> Kind {
        match self {
            Op::Read => Kind::ReadRequest,
            Op::Write => Kind::WriteRequest,
            Op::Rekey => Kind::RekeyRequest,
        }
    }
}

/// Outcome that a completion carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Refused although the tag was right: outside the region, without the right, or the key has changed
    /// meanwhile.
    Refused = 1,
}

/// A request's fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// Class of service, 0 or 1.
    pub class: u8,
    /// Command slot of the initiator.
    pub slot: u32,
    /// Process of the initiator.
    pub pid: u32,
    /// Region of the target.
    pub region: u32,
    /// Offset in the region.
    pub offset: u64,
    /// Bytes, 1 to [`MAX_OP`].
    pub len: u16,
}

/// A part of an operation's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Offset in the operation.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
}

impl Piece {
    /// One bit for each [`GRAIN`] that it covers.
    #[inline]
    pub const fn grains(self) -> u64 {
        let first = self.offset as usize / GRAIN;
        let count = (self.len as usize).div_ceil(GRAIN);
        (u64::MAX >> (64 - count)) << first
    }
}

/// What a message says before its payload, its counter aside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// Read, write or rekey request.
    Request(Request),
    /// Read response, for a slot.
    ReadResponse {
        /// Command slot.
        slot: u32,
        /// Which bytes follow.
        piece: Piece,
    },
    /// Solicitation.
    Solicitation {
        /// Command slot.
        slot: u32,
        /// What write data must name.
        ticket: u32,
        /// Nanoseconds for which the target takes data.
        open_ns: u32,
    },
    /// Write data.
    WriteData {
        /// From the solicitation.
        ticket: u32,
        /// Which bytes follow.
        piece: Piece,
    },
    /// Completion.
    Completion {
        /// Command slot.
        slot: u32,
        /// Outcome.
        status: Status,
    },
    /// NACK.
    Nack {
        /// Command slot.
        slot: u32,
    },
    /// Authentication failure.
    AuthenticationFailure {
        /// Command slot.
        slot: u32,
    },
}

/// A message without its payload and tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// The sender's message counter.
    pub counter: u64,
    /// The rest.
    pub body: Body,
}

/// Why bytes are no message. The order is that of the checks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageError {
    /// Shorter than the header of its kind and the tag.
    Truncated,
    /// Another version.
    Version,
    /// No such kind.
    Kind,
    /// A reserved byte is not zero.
    Reserved,
    /// No such class of service, or no such status.
    Detail,
    /// An operation of no bytes, of more than 4096, or a rekey of another length than 16.
    OpLength,
    /// A piece of no bytes, beyond 4096, or not at a multiple of 64.
    Piece,
    /// The datagram is longer or shorter than the header says.
    Length,
}

impl MessageError {
    /// Every reason, in order.
    pub const ALL: [MessageError; 8] = [
        Self::Truncated,
        Self::Version,
        Self::Kind,
        Self::Reserved,
        Self::Detail,
        Self::OpLength,
        Self::Piece,
        Self::Length,
    ];

    /// The counter's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "parse_truncated",
            Self::Version => "parse_version",
            Self::Kind => "parse_kind",
            Self::Reserved => "parse_reserved",
            Self::Detail => "parse_detail",
            Self::OpLength => "parse_op_length",
            Self::Piece => "parse_piece",
            Self::Length => "parse_length",
        }
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for MessageError {}

#[inline]
fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline]
fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
fn be64(b: &[u8], at: usize) -> u64 {
    (be32(b, at) as u64) << 32 | be32(b, at + 4) as u64
}

impl Header {
    /// The message's kind.
    #[inline]
    pub const fn kind(&self) -> Kind {
        match &self.body {
            Body::Request(request) => request.op.request(),
            Body::ReadResponse { .. } => Kind::ReadResponse,
            Body::Solicitation { .. } => Kind::Solicitation,
            Body::WriteData { .. } => Kind::WriteData,
            Body::Completion { .. } => Kind::Completion,
            Body::Nack { .. } => Kind::Nack,
            Body::AuthenticationFailure { .. } => Kind::AuthenticationFailure,
        }
    }

    /// Bytes of the header.
    #[inline]
    pub const fn len(&self) -> usize {
        self.kind().header_len()
    }

    /// Never: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The piece that follows.
    #[inline]
    pub const fn piece(&self) -> Option<Piece> {
        match self.body {
            Body::ReadResponse { piece, .. } | Body::WriteData { piece, .. } => Some(piece),
            _ => None,
        }
    }

    /// Bytes of the whole message.
    #[inline]
    pub const fn message_len(&self) -> usize {
        let payload = match self.piece() {
            Some(piece) => piece.len as usize,
            None => 0,
        };
        self.len() + payload + TAG_LEN
    }

    /// The nonce: the counter, the kind, a zero, and the offset of a piece or zero.
    #[inline]
    pub fn nonce(&self) -> [u8; NONCE_LEN] {
        let offset = self.piece().map_or(0, |piece| piece.offset);
        let rest = (self.kind() as u32) << 24 | offset as u32;
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.counter.to_be_bytes());
        nonce[8..].copy_from_slice(&rest.to_be_bytes());
        nonce
    }

    /// Reads and checks a whole datagram. The payload lies between [`Header::len`] and the tag; nothing of it
    /// is true before the tag has been verified.
    pub fn parse(b: &[u8]) -> Result<Header, MessageError> {
        use MessageError as E;
        if b.len() < HEAD_LEN + TAG_LEN {
            return Err(E::Truncated);
        }
        if b[0] != VERSION {
            return Err(E::Version);
        }
        let kind = Kind::from_wire(b[1]).ok_or(E::Kind)?;
        if b.len() < kind.header_len() + TAG_LEN {
            return Err(E::Truncated);
        }
        if b[3] != 0 {
            return Err(E::Reserved);
        }
        let (detail, to) = (b[2], be32(b, 4));
        let plain = |body| if detail == 0 { Ok(body) } else { Err(E::Reserved) };
        let body = match kind {
            Kind::ReadRequest => Body::Request(parse_request(b, Op::Read)?),
            Kind::WriteRequest => Body::Request(parse_request(b, Op::Write)?),
            Kind::RekeyRequest => Body::Request(parse_request(b, Op::Rekey)?),
            Kind::ReadResponse => plain(Body::ReadResponse { slot: to, piece: parse_piece(b)? })?,
            Kind::WriteData => plain(Body::WriteData { ticket: to, piece: parse_piece(b)? })?,
            Kind::Solicitation => {
                plain(Body::Solicitation { slot: to, ticket: be32(b, 16), open_ns: be32(b, 20) })?
            }
            Kind::Completion => {
                let status = match detail {
                    0 => Status::Ok,
                    1 => Status::Refused,
                    _ => return Err(E::Detail),
                };
                Body::Completion { slot: to, status }
            }
            Kind::Nack => plain(Body::Nack { slot: to })?,
            Kind::AuthenticationFailure => plain(Body::AuthenticationFailure { slot: to })?,
        };
        let header = Header { counter: be64(b, 8), body };
        if header.message_len() != b.len() {
            return Err(E::Length);
        }
        Ok(header)
    }

    /// Writes the header to the start of `out` and returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than that; [`MAX_HEADER_LEN`] is always enough.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let out = &mut out[..len];
        let (detail, to) = match self.body {
            Body::Request(request) => (request.class, request.slot),
            Body::Completion { slot, status } => (status as u8, slot),
            Body::ReadResponse { slot: to, .. }
            | Body::WriteData { ticket: to, .. }
            | Body::Solicitation { slot: to, .. }
            | Body::Nack { slot: to }
            | Body::AuthenticationFailure { slot: to } => (0, to),
        };
        // Whole words, here and below: what has just been written in bytes and is read in words holds the
        // processor up.
        let first = [VERSION, self.kind() as u8, detail, 0];
        out[..8].copy_from_slice(&((u32::from_be_bytes(first) as u64) << 32 | to as u64).to_be_bytes());
        out[8..16].copy_from_slice(&self.counter.to_be_bytes());
        match self.body {
            Body::Request(Request { pid, region, offset, len, .. }) => {
                out[16..24].copy_from_slice(&((pid as u64) << 32 | region as u64).to_be_bytes());
                out[24..32].copy_from_slice(&offset.to_be_bytes());
                out[32..36].copy_from_slice(&((len as u32) << 16).to_be_bytes());
            }
            Body::ReadResponse { piece, .. } | Body::WriteData { piece, .. } => {
                out[16..20].copy_from_slice(&((piece.offset as u32) << 16 | piece.len as u32).to_be_bytes());
            }
            Body::Solicitation { ticket, open_ns, .. } => {
                out[16..24].copy_from_slice(&((ticket as u64) << 32 | open_ns as u64).to_be_bytes());
            }
            Body::Completion { .. } | Body::Nack { .. } | Body::AuthenticationFailure { .. } => {}
        }
        len
    }
}

fn parse_request(b: &[u8], op: Op) -> Result<Request, MessageError> {
    if b[34..36] != [0, 0] {
        return Err(MessageError::Reserved);
    }
    if b[2] > 1 {
        return Err(MessageError::Detail);
    }
    let len = be16(b, 32);
    let allowed = if op == Op::Rekey { KEY_LEN..=KEY_LEN } else { 1..=MAX_OP };
    if !allowed.contains(&(len as usize)) {
        return Err(MessageError::OpLength);
    }
    let (slot, pid, region, offset) = (be32(b, 4), be32(b, 16), be32(b, 20), be64(b, 24));
    Ok(Request { op, class: b[2], slot, pid, region, offset, len })
}

fn parse_piece(b: &[u8]) -> Result<Piece, MessageError> {
    let piece = Piece { offset: be16(b, 16), len: be16(b, 18) };
    let end = piece.offset as usize + piece.len as usize;
    if piece.len == 0 || end > MAX_OP || !(piece.offset as usize).is_multiple_of(GRAIN) {
        return Err(MessageError::Piece);
    }
    Ok(piece)
}

const _: () = assert!(MAX_OP / GRAIN == 64, "one bit of a word for each grain");
const _: () = {
    let mut i = 0;
    while i < MessageError::ALL.len() {
        assert!(MessageError::ALL[i] as usize == i);
        i += 1;
    }
    let mut i = 0;
    while i < Kind::ALL.len() {
        assert!(Kind::ALL[i] as usize == i + 1);
        i += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_tables_say() {
        let request = Request {
            op: Op::Write,
            class: 1,
            slot: 0x0102_0304,
            pid: 0x1112_1314,
            region: 0x2122_2324,
            offset: 0x3132_3334_3536_3738,
            len: 0x0abc,
        };
        let header = Header { counter: 0x4142_4344_4546_4748, body: Body::Request(request) };
        let mut out = [0xff; MAX_HEADER_LEN + TAG_LEN];
        assert_eq!(header.emit(&mut out), 36);
        #[rustfmt::skip]
        assert_eq!(out[..36], [
            1, 3, 1, 0, 1, 2, 3, 4, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
            0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38,
            0x0a, 0xbc, 0, 0,
        ]);
        assert_eq!(Header::parse(&out), Ok(header));
        assert_eq!(header.nonce(), [0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 3, 0, 0, 0]);

        let piece = Piece { offset: 0x0340, len: 0x0102 };
        let header = Header { counter: 5, body: Body::WriteData { ticket: 7, piece } };
        assert_eq!(header.emit(&mut out), 20);
        assert_eq!(out[..20], [1, 6, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 3, 0x40, 1, 2]);
        assert_eq!(header.nonce(), [0, 0, 0, 0, 0, 0, 0, 5, 6, 0, 3, 0x40]);

        let header =
            Header { counter: 6, body: Body::Solicitation { slot: 1, ticket: 2, open_ns: 0x0304_0506 } };
        assert_eq!(header.emit(&mut out), 24);
        assert_eq!(out[16..24], [0, 0, 0, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn grains_of_a_piece() {
        let grains = |offset, len| Piece { offset, len }.grains();
        assert_eq!(grains(0, 1), 1);
        assert_eq!(grains(64, 64), 2);
        assert_eq!(grains(64, 65), 6);
        assert_eq!(grains(0, 4096), u64::MAX);
        assert_eq!(grains(4032, 64), 1 << 63);
    }
}
