//! What the connection manager is asked for, and what it tells: services, connections, events.

use adverb_wire::cm::Private;
use adverb_wire::{Gid, Psn, QpNumber};
use core::fmt;

/// A space of port numbers of rdma_cm. They are apart from one another and from the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand's, which RoCE has not: known so that it can be refused by name.
    Ipoib = 0x0002,
    /// Connections of RC, called like TCP's.
    Tcp = 0x0106,
    /// Datagrams: services by SIDR.
    Udp = 0x0111,
    /// InfiniBand's, with connections like [`PortSpace::Tcp`]'s.
    Ib = 0x013f,
}

impl PortSpace {
    /// Every space.
    pub const ALL: [PortSpace; 4] = [Self::Ipoib, Self::Tcp, Self::Udp, Self::Ib];

    /// Of its number.
    pub fn of(number: u16) -> Option<PortSpace> {
        Self::ALL.into_iter().find(|space| *space as u16 == number)
    }
}

/// A service: what a REQ or a SIDR_REQ asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Service {
    /// The space.
    pub space: PortSpace,
    /// The port in it.
    pub port: u16,
}

impl Service {
    /// As it is on the wire.
    pub const fn id(self) -> u64 {
        ((self.space as u64) << 16) + self.port as u64
    }

    /// Of its id on the wire; `None` for services that are not rdma_cm's.
    pub fn of(id: u64) -> Option<Service> {
        let space = PortSpace::of(u16::try_from(id >> 16).ok()?)?;
        Some(Service { space, port: id as u16 })
    }
}

/// Name of a connection, or of a request for a datagram service: its local communication id on the wire. The
/// upper 8 bits are the process's slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u32);

/// Name of a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId {
    index: u32,
    generation: u32,
}

impl crate::slab::Id for ListenerId {
    fn new(index: u32, generation: u32) -> Self {
        ListenerId { index, generation }
    }
    fn index(self) -> u32 {
        self.index
    }
    fn generation(self) -> u32 {
        self.generation
    }
}

/// What the caller knows an object by; events bring it back. It may be changed at any time.
pub type Cookie = u64;

/// An address that a port is bound to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// Any of IPv4, of IPv6, or both.
    Any {
        /// Of IPv4.
        ipv4: bool,
        /// Of IPv6.
        ipv6: bool,
    },
    /// This one.
    One(Gid),
}

impl Address {
    /// Whether a request for an address is for whoever listens here.
    pub fn takes(self, dst: Gid) -> bool {
        match self {
            Address::Any { ipv4, ipv6 } => {
                if dst.is_ipv4() {
                    ipv4
                } else {
                    ipv6
                }
            }
            Address::One(own) => own == dst,
        }
    }
}

/// What is listened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen {
    /// The service.
    pub service: Service,
    /// The address that requests must name.
    pub address: Address,
    /// Requests that may wait for an answer; further ones are rejected with reason
    /// [`Reason::CONSUMER`].
    pub backlog: u32,
    /// Events of its requests bring it back.
    pub cookie: Cookie,
}

/// A queue pair as this side offers it to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offer {
    /// Its number.
    pub qpn: QpNumber,
    /// The PSN that the peer is to begin with: what this queue pair expects (`rq_psn`).
    pub psn: Psn,
    /// READs and atomics that it answers at once (`max_dest_rd_atomic`).
    pub responder_resources: u8,
    /// READs and atomics that it has under way (`max_rd_atomic`).
    pub initiator_depth: u8,
    /// End-to-end credits.
    pub flow_control: bool,
    /// How often the *peer* repeats when this queue pair is not ready; at most 7, larger ones become 7.
    pub rnr_retry: u8,
    /// It has a shared receive queue.
    pub srq: bool,
}

/// A connection that is asked for.
#[derive(Clone, Debug)]
pub struct Connect<'a> {
    /// The service at the peer.
    pub service: Service,
    /// The peer.
    pub dst: Gid,
    /// The address that programs know this side by; the NIC's own.
    pub src: Gid,
    /// The port that programs know this side by.
    pub src_port: u16,
    /// Its queue pair.
    pub offer: Offer,
    /// How often both sides repeat what is not acknowledged; at most 7, larger ones become 7.
    pub retry_count: u8,
    /// Path MTU: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Local ACK timeout of the queue pairs: 19, unless the program set another.
    pub ack_timeout: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Of the program; at most [`Connect::PRIVATE`] bytes.
    pub private: &'a [u8],
    /// Events bring it back.
    pub cookie: Cookie,
}

impl Connect<'_> {
    /// Bytes of private data behind rdma_cm's header.
    pub const PRIVATE: usize = 56;
}

/// A datagram service that is asked for.
#[derive(Clone, Debug)]
pub struct Resolve<'a> {
    /// The service at the peer.
    pub service: Service,
    /// The peer.
    pub dst: Gid,
    /// The address that programs know this side by; the NIC's own.
    pub src: Gid,
    /// The port that programs know this side by.
    pub src_port: u16,
    /// Of the program; at most [`Resolve::PRIVATE`] bytes.
    pub private: &'a [u8],
    /// Events bring it back.
    pub cookie: Cookie,
}

impl Resolve<'_> {
    /// Bytes of private data behind rdma_cm's header.
    pub const PRIVATE: usize = 180;
}

/// The answer to a request for a datagram service.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The queue pair.
    pub qpn: QpNumber,
    /// Its key.
    pub qkey: u32,
    /// Of the program; at most [`Resolved::PRIVATE`] bytes.
    pub private: &'a [u8],
}

impl Resolved<'_> {
    /// Bytes of private data.
    pub const PRIVATE: usize = 136;
}

/// A request for a connection, as the listener sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The service that it named.
    pub service: Service,
    /// The address that the request came from and is answered to.
    pub from: Gid,
    /// The address that programs know the peer by.
    pub src: Gid,
    /// The port that programs know the peer by.
    pub src_port: u16,
    /// The address that it asked for: this side's own.
    pub dst: Gid,
    /// The peer's queue pair, as the peer sees it: its responder resources are this side's initiator depth.
    pub offer: Offer,
    /// How often both sides repeat what is not acknowledged.
    pub retry_count: u8,
    /// Path MTU: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// Local ACK timeout of the queue pairs.
    pub ack_timeout: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Of the program.
    pub private: Private<56>,
}

/// The reply to a request, as the requester sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The peer's queue pair, as the peer sees it.
    pub offer: Offer,
    /// Of the program.
    pub private: Private<196>,
}

/// A request for a datagram service, as the listener sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramRequest {
    /// The service that it named.
    pub service: Service,
    /// The address that the request came from and is answered to.
    pub from: Gid,
    /// The address that programs know the peer by.
    pub src: Gid,
    /// The port that programs know the peer by.
    pub src_port: u16,
    /// The address that it asked for: this side's own.
    pub dst: Gid,
    /// Of the program.
    pub private: Private<180>,
}

/// Why a connection was refused: the number on the wire (IBTA 12.6.7.2), which programs see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reason(pub u16);

impl Reason {
    /// No resources.
    pub const NO_RESOURCES: Reason = Reason(3);
    /// The sender has waited long enough, or has gone.
    pub const TIMEOUT: Reason = Reason(4);
    /// The message names no connection.
    pub const INVALID_ID: Reason = Reason(6);
    /// Nobody listens for the service.
    pub const INVALID_SERVICE: Reason = Reason(8);
    /// A transport that is not there.
    pub const TRANSPORT: Reason = Reason(9);
    /// The peer's queue pair has a connection already.
    pub const STALE: Reason = Reason(10);
    /// Not an address of this NIC.
    pub const INVALID_GID: Reason = Reason(12);
    /// No path MTU that is known.
    pub const INVALID_MTU: Reason = Reason(26);
    /// The program refused.
    pub const CONSUMER: Reason = Reason(28);
}

/// What happened to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "few wait at a time")]
pub enum What {
    /// A listener got a request; the event's id names the new connection. It wants
    /// [`accept`](super::Cm::accept), [`reject`](super::Cm::reject) or [`destroy`](super::Cm::destroy).
    Request(ListenerId, Request),
    /// The peer has accepted. Once the queue pair can receive and send, [`establish`](super::Cm::establish)
    /// says so to the peer; or [`reject`](super::Cm::reject).
    Reply(Reply),
    /// An accepted connection is up: the peer can receive.
    Established,
    /// The peer, or nobody at the peer, has refused.
    Rejected(Reason, Private<148>),
    /// The peer did not answer, however often it was asked.
    Unreachable,
    /// One of the two has ended the connection. This or the next comes once.
    Disconnected,
    /// This side has, and the peer did not answer, however often it was told.
    DisconnectedAlone,
    /// Packets of the connection are no longer on their way: its queue pair may connect again.
    TimewaitExit,
    /// A listener got a request for a datagram service; the event's id names it. It wants
    /// [`answer`](super::Cm::answer), [`refuse`](super::Cm::refuse) or [`destroy`](super::Cm::destroy).
    DatagramRequest(ListenerId, DatagramRequest),
    /// The datagram service's queue pair: number, key, private data.
    Resolved(QpNumber, u32, Private<136>),
    /// The datagram service is not there, or refuses: the status on the wire.
    Unresolved(u8, Private<136>),
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmEvent {
    /// Whose.
    pub id: ConnectionId,
    /// What its owner knows it by; of a request, what the owner of the listener knows that by.
    pub cookie: Cookie,
    /// What.
    pub what: What,
}

/// Why a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmError {
    /// No such connection, request or listener.
    NoSuchObject,
    /// Not in this state.
    WrongState,
    /// More private data than the message has room for, or another value that no message can say.
    Invalid(&'static str),
    /// A table is full.
    TableFull,
    /// Another listens there, or the port is another's, of the same address.
    InUse,
    /// The port is taken by one that is bound to any address, or by one of an address while any is asked for.
    NotAvailable,
    /// The NIC is closed, or is another process's.
    Closed,
    /// A port below 1024, without the privilege.
    Privileged,
    /// Another process holds the table of ports, and is stopped or hangs.
    Held,
}

impl CmError {
    /// The errno that rdma_cm's calls give.
    pub const fn errno(self) -> i32 {
        const ENOENT: i32 = 2;
        const ENOMEM: i32 = 12;
        const EAGAIN: i32 = 11;
        const EACCES: i32 = 13;
        const ENODEV: i32 = 19;
        const EINVAL: i32 = 22;
        const EADDRINUSE: i32 = 98;
        const EADDRNOTAVAIL: i32 = 99;
        match self {
            CmError::NoSuchObject => ENOENT,
            CmError::WrongState | CmError::Invalid(_) => EINVAL,
            CmError::TableFull => ENOMEM,
            CmError::InUse => EADDRINUSE,
            CmError::NotAvailable => EADDRNOTAVAIL,
            CmError::Closed => ENODEV,
            CmError::Privileged => EACCES,
            CmError::Held => EAGAIN,
        }
    }
}

impl fmt::Display for CmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmError::NoSuchObject => f.write_str("no such connection or listener"),
            CmError::WrongState => f.write_str("not allowed in the connection's state"),
            CmError::Invalid(what) => write!(f, "invalid {what}"),
            CmError::TableFull => f.write_str("the connection manager's table is full"),
            CmError::InUse => f.write_str("the port is in use at this address"),
            CmError::NotAvailable => f.write_str("the port is in use at some or any address"),
            CmError::Closed => f.write_str("the NIC is closed"),
            CmError::Privileged => f.write_str("ports below 1024 need CAP_NET_BIND_SERVICE"),
            CmError::Held => f.write_str("another process holds the table of ports"),
        }
    }
}

impl core::error::Error for CmError {}

/// A message that is to be sent: the payload of a UD SEND Only to queue pair 1, with its queue key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// To whom.
    pub to: Gid,
    /// The MAD.
    pub bytes: [u8; adverb_wire::cm::MAD_LEN],
}
