//! The connection manager's messages (IBTA 12.6, 12.11): MADs of 256 bytes, each the payload of one UD SEND
//! Only to queue pair 1. All fields are big-endian. The data of the class stands at byte 24.
//!
//! [`Mad::parse`] reads bytes that a peer controls; [`Mad::emit`] writes all 256 of them. Reserved bits are
//! neither looked at nor kept. Load alternate path and its answer are told apart and not read: rdma_cm never
//! sends them.

mod bytes;
mod ip;
mod messages;
#[cfg(test)]
mod tests;

pub use ip::{IP_HEADER_LEN, IpHeader};
pub use messages::{
    Drep, Dreq, Mra, Private, Rej, Rep, Req, Rtu, ServiceType, Side, SidrRep, SidrReq, Stage,
};

use crate::units::Gid;
use bytes::{Reader, Writer};
use core::fmt;

/// Bytes of a MAD.
pub const MAD_LEN: usize = 256;
/// Queue key of queue pair 1 (IBTA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Where the class's data begins.
const DATA_AT: usize = 24;
/// Bytes of the class's data.
pub const DATA_LEN: usize = MAD_LEN - DATA_AT;
/// Base version, management class, class version, method: Send (IBTA 13.4.2, 16.7.1).
const HEADER: [u8; 4] = [1, 7, 2, 3];
/// Where the attribute stands.
pub const ATTRIBUTE_AT: usize = 16;
/// Where the sender's communication id stands, or a request's id.
pub const FIRST_ID_AT: usize = DATA_AT;
/// Where the receiver's communication id stands in answers, those to a SIDR_REQ apart.
pub const SECOND_ID_AT: usize = DATA_AT + 4;
/// Where a REQ's or a SIDR_REQ's service id stands.
pub const SERVICE_AT: usize = DATA_AT + 8;

const REQ_PRIVATE_AT: usize = DATA_AT + 140;
const SIDR_REQ_PRIVATE_AT: usize = DATA_AT + 16;

/// What kind of message it is: the attribute (IBTA 16.7.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Attribute {
    /// ConnectRequest.
    Req = 0x10,
    /// MsgRcptAck.
    Mra = 0x11,
    /// ConnectReject.
    Rej = 0x12,
    /// ConnectReply.
    Rep = 0x13,
    /// ReadyToUse.
    Rtu = 0x14,
    /// DisconnectRequest.
    Dreq = 0x15,
    /// DisconnectReply.
    Drep = 0x16,
    /// ServiceIDResReq.
    SidrReq = 0x17,
    /// ServiceIDResReqResp.
    SidrRep = 0x18,
}

impl Attribute {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Attribute; 9] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
    ];

    /// Of its number.
    pub fn of(number: u16) -> Option<Attribute> {
        Self::ALL.into_iter().find(|attribute| *attribute as u16 == number)
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MadError {
    /// Not 256 bytes.
    Length,
    /// Another version, class or method, or a status other than 0.
    Header,
    /// An attribute that is not read here: alternate paths, or none of the class.
    Attribute,
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "not 256 bytes",
            Self::Header => "not a Send of the communication management class",
            Self::Attribute => "an attribute of no message",
        })
    }
}

impl core::error::Error for MadError {}

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "all but one are about as large")]
pub enum Message {
    /// Asks for a connection.
    Req(Req),
    /// Says that a message has come, and that its answer takes time.
    Mra(Mra),
    /// Refuses.
    Rej(Rej),
    /// Takes a connection.
    Rep(Rep),
    /// Says that the REP has come.
    Rtu(Rtu),
    /// Ends a connection.
    Dreq(Dreq),
    /// Says that the DREQ has come.
    Drep(Drep),
    /// Asks for a service's queue pair.
    SidrReq(SidrReq),
    /// Names it, or refuses.
    SidrRep(SidrRep),
}

impl Message {
    /// Its kind.
    pub fn attribute(&self) -> Attribute {
        match self {
            Message::Req(_) => Attribute::Req,
            Message::Mra(_) => Attribute::Mra,
            Message::Rej(_) => Attribute::Rej,
            Message::Rep(_) => Attribute::Rep,
            Message::Rtu(_) => Attribute::Rtu,
            Message::Dreq(_) => Attribute::Dreq,
            Message::Drep(_) => Attribute::Drep,
            Message::SidrReq(_) => Attribute::SidrReq,
            Message::SidrRep(_) => Attribute::SidrRep,
        }
    }
}

/// A message with its transaction's number, which answers repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// The transaction's number.
    pub transaction: u64,
    /// What it says.
    pub message: Message,
}

impl Mad {
    /// Reads a MAD.
    pub fn parse(bytes: &[u8]) -> Result<Mad, MadError> {
        let bytes: &[u8; MAD_LEN] = bytes.try_into().map_err(|_| MadError::Length)?;
        let attribute = attribute_of(bytes)?;
        let head = Reader(bytes);
        let data = Reader(&bytes[DATA_AT..]);
        let message = match attribute {
            Attribute::Req => Message::Req(Req::read(data)),
            Attribute::Mra => Message::Mra(Mra::read(data)),
            Attribute::Rej => Message::Rej(Rej::read(data)),
            Attribute::Rep => Message::Rep(Rep::read(data)),
            Attribute::Rtu => Message::Rtu(Rtu::read(data)),
            Attribute::Dreq => Message::Dreq(Dreq::read(data)),
            Attribute::Drep => Message::Drep(Drep::read(data)),
            Attribute::SidrReq => Message::SidrReq(SidrReq::read(data)),
            Attribute::SidrRep => Message::SidrRep(SidrRep::read(data)),
        };
        Ok(Mad { transaction: head.u64(8), message })
    }

    /// As it is sent.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let mut head = Writer(&mut bytes);
        head.bytes(0, &HEADER);
        head.u64(8, self.transaction);
        head.u16(ATTRIBUTE_AT, self.message.attribute() as u16);
        let data = Writer(&mut bytes[DATA_AT..]);
        match &self.message {
            Message::Req(req) => req.write(data),
            Message::Mra(mra) => mra.write(data),
            Message::Rej(rej) => rej.write(data),
            Message::Rep(rep) => rep.write(data),
            Message::Rtu(rtu) => rtu.write(data),
            Message::Dreq(dreq) => dreq.write(data),
            Message::Drep(drep) => drep.write(data),
            Message::SidrReq(req) => req.write(data),
            Message::SidrRep(rep) => rep.write(data),
        }
        bytes
    }
}

fn attribute_of(bytes: &[u8; MAD_LEN]) -> Result<Attribute, MadError> {
    let head = Reader(bytes);
    if bytes[..HEADER.len()] != HEADER || head.u16(4) != 0 {
        return Err(MadError::Header);
    }
    Attribute::of(head.u16(ATTRIBUTE_AT)).ok_or(MadError::Attribute)
}

/// Whose a message is among several connection managers that share an address: told without reading it all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressee {
    /// Whoever listens for this service, by its id, at the address that rdma_cm's header names.
    Service(u64, Option<Gid>),
    /// Whoever gave this communication or request id.
    Id(u32),
}

/// Whom a message is for. `None` for what is no message of this class.
pub fn addressee(bytes: &[u8]) -> Option<Addressee> {
    let bytes: &[u8; MAD_LEN] = bytes.try_into().ok()?;
    let head = Reader(bytes);
    let service = |private_at: usize| {
        let header = IpHeader::parse(&bytes[private_at..]);
        Addressee::Service(head.u64(SERVICE_AT), header.map(|header| header.dst))
    };
    Some(match attribute_of(bytes).ok()? {
        Attribute::Req => service(REQ_PRIVATE_AT),
        Attribute::SidrReq => service(SIDR_REQ_PRIVATE_AT),
        Attribute::SidrRep => Addressee::Id(head.u32(FIRST_ID_AT)),
        _ => Addressee::Id(head.u32(SECOND_ID_AT)),
    })
}
