//! Sockets for datagrams. Each has a queue pair for them, and a socket of the kernel's UDP at the NIC's
//! address, whose port is the socket's. A peer's queue pair is not known at first: the datagram goes by UDP,
//! which the peer answers with the number of its queue pair, to which the next ones go.
//!
//! Nobody serves a socket between the program's calls: what comes by UDP waits in the kernel.

use super::completions::{BATCH, room};
use super::datagram_queue::{Done, Handle, PLACE, Queue};
use super::heads::{HEAD_MAX, Head, Notice, parse_source};
use super::link::Pieces;
use super::options::Settings;
use super::peers::Peers;
use crate::cm::address::{bindable, own_address, own_mtu, read, write};
use crate::handle::errno;
use crate::host::settings;
use adverb_nic::memory::dma;
use adverb_os::say;
use core::ffi::c_int;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Packets by UDP that are looked at in one call.
const HEARD_MAX: usize = 64;
/// While datagrams come to the queue pair without a pause, UDP is looked at in one call of so many.
const LOOK_EVERY: u32 = 16;

/// A NIC may have an address that only a switch's port knows (`--via`). Programs print their errno; what is
/// to be done about it they cannot know.
fn say_why(errno: c_int, own: SocketAddr) {
    if errno == libc::EADDRNOTAVAIL && settings().is_ok_and(|settings| settings.via.is_some()) {
        say!(
            "adverb: a socket for datagrams needs its address in the kernel too, for its first packets: no \
             interface has {}",
            own.ip()
        );
    }
}

/// Where a datagram is that the program has not read.
enum Place {
    /// At a place of the queue's.
    Queue(u32),
    /// It came by UDP.
    Kept(Vec<u8>),
}

/// A datagram that came.
struct Arrived {
    from: SocketAddr,
    place: Place,
    /// Bytes of its head, and those behind it.
    at: usize,
    len: usize,
}

/// What a program is told of a datagram that it has read.
pub(super) struct Taken {
    pub(super) from: SocketAddr,
    pub(super) copied: usize,
    /// How long it was.
    pub(super) len: usize,
}

/// A socket.
pub(super) struct Datagrams {
    udp: OwnedFd,
    domain: c_int,
    /// From when it has an address.
    queue: Option<Queue>,
    own: SocketAddr,
    /// To whom it is connected.
    peer: Option<SocketAddr>,
    peers: Peers<Handle>,
    arrived: VecDeque<Arrived>,
    looks: u32,
    /// What the next call says, and SO_ERROR.
    pub(super) error: c_int,
}

/// -1 with errno to a result.
fn outcome(result: c_int) -> Result<(), c_int> {
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// The same address in one form, as tables have it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// An address as sockets of a domain have it.
fn as_of(domain: c_int, address: SocketAddr) -> Result<SocketAddr, c_int> {
    match (domain, address.ip().to_canonical()) {
        (libc::AF_INET6, IpAddr::V4(v4)) => Ok(SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())),
        (libc::AF_INET6, _) => Ok(address),
        (_, IpAddr::V4(v4)) => Ok(SocketAddr::new(v4.into(), address.port())),
        _ => Err(libc::EAFNOSUPPORT),
    }
}

impl Datagrams {
    pub(super) fn new(domain: c_int) -> Result<Datagrams, c_int> {
        // SAFETY: plain system call without pointers; the descriptor is this one's own.
        let udp = unsafe {
            let fd = libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
            outcome(fd)?;
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Datagrams {
            udp,
            domain,
            queue: None,
            own: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            peer: None,
            peers: Peers::new(),
            arrived: VecDeque::new(),
            looks: 0,
            error: 0,
        })
    }

    /// The descriptor of the kernel's socket, which is the socket's number.
    pub(super) fn fd(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    /// The descriptors that say that something came.
    pub(super) fn fds(&self) -> [c_int; 2] {
        [self.fd(), self.queue.as_ref().map_or(-1, |queue| queue.completions.fd())]
    }

    /// Whether it has an address, and its sizes are fixed.
    pub(super) fn is_bound(&self) -> bool {
        self.queue.is_some()
    }

    fn option(&self, level: c_int, name: c_int, value: bool) -> Result<(), c_int> {
        let value = c_int::from(value);
        // SAFETY: a value of the length that is said.
        let set = unsafe {
            libc::setsockopt(self.fd(), level, name, (&raw const value).cast(), size_of::<c_int>() as u32)
        };
        outcome(set)
    }

    /// Gives the socket a port of the NIC's address, and its queue pair.
    pub(super) fn bind(&mut self, wanted: SocketAddr, settings: &Settings) -> Result<(), c_int> {
        if self.is_bound() {
            return Err(libc::EINVAL);
        }
        // The NIC has one address, which is what "any" comes to: the kernel's socket must not take the port
        // at others, nor say another address to peers.
        bindable(wanted.ip())?;
        crate::cm::open()?;
        let own = as_of(self.domain, SocketAddr::new(own_address()?, wanted.port()))
            .map_err(|_| libc::EADDRNOTAVAIL)?;
        self.option(libc::SOL_SOCKET, libc::SO_REUSEADDR, settings.reuse)?;
        if self.domain == libc::AF_INET6 {
            self.option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, settings.only_v6)?;
        }
        // SAFETY: what identifiers share was opened just now.
        let queue = unsafe { Queue::new(settings) }?;
        let (address, length) = write(&own);
        // SAFETY: an address and its length.
        outcome(unsafe { libc::bind(self.fd(), (&raw const address).cast(), length) })
            .inspect_err(|errno| say_why(*errno, own))?;
        self.own = plain(self.name(false)?);
        self.queue = Some(queue);
        Ok(())
    }

    /// As `bind`, to any port, unless it is bound.
    fn ready(&mut self, settings: &Settings) -> Result<(), c_int> {
        if self.is_bound() {
            return Ok(());
        }
        self.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), settings)
    }

    /// A peer's address, as the kernel's socket is to have it: "any" is the NIC's own.
    fn reachable(&self, to: SocketAddr) -> Result<SocketAddr, c_int> {
        let ip = if to.ip().is_unspecified() { self.own.ip() } else { to.ip() };
        let to = if ip == to.ip() { to } else { SocketAddr::new(ip, to.port()) };
        as_of(self.domain, to)
    }

    /// Names the peer to which datagrams go that name none, and from which alone they come.
    pub(super) fn connect(&mut self, to: SocketAddr, settings: &Settings) -> Result<(), c_int> {
        self.ready(settings)?;
        let to = self.reachable(to)?;
        let (address, length) = write(&to);
        // SAFETY: an address and its length.
        outcome(unsafe { libc::connect(self.fd(), (&raw const address).cast(), length) })?;
        self.peer = Some(to);
        Ok(())
    }

    /// The socket's address, or its peer's, in the domain's form.
    pub(super) fn name(&self, peer: bool) -> Result<SocketAddr, c_int> {
        // SAFETY: integers; the storage has room for every address, and its length is passed.
        unsafe {
            let mut storage: libc::sockaddr_storage = core::mem::zeroed();
            let mut length = size_of_val(&storage) as libc::socklen_t;
            let (fd, to) = (self.fd(), (&raw mut storage).cast());
            outcome(if peer {
                libc::getpeername(fd, to, &mut length)
            } else {
                libc::getsockname(fd, to, &mut length)
            })?;
            read((&raw const storage).cast()).ok_or(libc::EAFNOSUPPORT)
        }
    }

    pub(super) fn readable(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(super) fn writable(&self) -> bool {
        self.queue.as_ref().is_none_or(Queue::writable)
    }

    pub(super) fn sending(&self) -> bool {
        self.queue.as_ref().is_some_and(Queue::sending)
    }

    /// The error that the next call says, once.
    pub(super) fn take_error(&mut self) -> Result<(), c_int> {
        match core::mem::take(&mut self.error) {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Takes in what has come; whether anything was new.
    pub(super) fn process(&mut self, now: u64) -> bool {
        let mut any = false;
        let mut wcs = room();
        while let Some(queue) = &mut self.queue {
            let found = match queue.completions.poll(&mut wcs) {
                Ok(found) => found,
                Err(errno) => {
                    self.error = errno;
                    return true;
                }
            };
            let last = found.len() < BATCH;
            any |= !found.is_empty();
            for wc in found {
                let done = queue.done(wc);
                let taken = match done {
                    Done::Sent(_) => continue,
                    Done::Came(place, len) => came(queue, place, len),
                    Done::Failed(_) => None,
                };
                let (Done::Came(place, _) | Done::Failed(place) | Done::Sent(place)) = done;
                // Who is connected hears one peer only, as by UDP.
                let wanted = |arrived: &Arrived| {
                    as_of(self.domain, arrived.from).is_ok()
                        && self.peer.is_none_or(|peer| plain(peer) == arrived.from)
                };
                match taken.filter(wanted) {
                    Some(arrived) => {
                        self.peers.heard(arrived.from, now);
                        self.arrived.push_back(arrived);
                    }
                    None => {
                        if let Err(errno) = queue.give_back(place) {
                            self.error = errno;
                        }
                    }
                }
            }
            if last {
                break;
            }
        }
        self.looks = self.looks.wrapping_add(1);
        if self.is_bound() && (!any || self.looks.is_multiple_of(LOOK_EVERY)) {
            any |= self.hear(now);
        }
        any
    }

    /// Has what comes next announced. Whether something came meanwhile.
    pub(super) fn arm(&mut self, now: u64) -> bool {
        let Some(queue) = &self.queue else { return false };
        if let Err(errno) = queue.completions.arm() {
            self.error = errno;
            return true;
        }
        // Both in any case: what came before is not announced.
        let came = self.process(now);
        self.hear(now) || came
    }

    /// Takes in what came by UDP.
    fn hear(&mut self, now: u64) -> bool {
        let mut bytes = [0; PLACE + HEAD_MAX];
        for heard in 0..HEARD_MAX {
            // SAFETY: integers; the room and its length, and a place for the address and its length.
            let (got, from) = unsafe {
                let mut from: libc::sockaddr_storage = core::mem::zeroed();
                let mut length = size_of_val(&from) as libc::socklen_t;
                let (to, room) = (bytes.as_mut_ptr().cast(), bytes.len());
                let at = (&raw mut from).cast();
                let got = libc::recvfrom(self.fd(), to, room, libc::MSG_DONTWAIT, at, &mut length);
                (got, read((&raw const from).cast()))
            };
            match (usize::try_from(got), from) {
                (Ok(got), Some(from)) => self.noticed(&bytes[..got], from, now),
                (Ok(_), None) => {}
                (Err(_), _) => match errno() {
                    libc::EAGAIN => return heard > 0,
                    libc::EINTR => {}
                    errno => {
                        // Nobody is there any more: the next datagram asks again.
                        if let Some(peer) = self.peer {
                            self.peers.forget(plain(peer));
                        }
                        self.error = errno;
                        return true;
                    }
                },
            }
        }
        true
    }

    /// A packet came by UDP; one that is not a socket's is nobody's.
    fn noticed(&mut self, bytes: &[u8], from: SocketAddr, now: u64) {
        let (Some((notice, at)), Some(queue)) = (Notice::parse(bytes), &self.queue) else { return };
        let who = plain(from);
        // SAFETY: a queue pair is there, so that what identifiers share is open.
        let learned = self.peers.learn(who, notice.qpn, now, || unsafe { Handle::new(who.ip()) });
        if let Err(errno) = learned {
            self.error = errno;
        }
        if !notice.with_data {
            return;
        }
        // More than that many is lost, as it is where no receive is posted.
        if self.arrived.len() < 2 * queue.receives as usize {
            let len = bytes.len() - at;
            self.arrived.push_back(Arrived { from: who, place: Place::Kept(bytes.to_vec()), at, len });
        }
        // If the answer is lost, the next datagram comes by UDP too.
        let _ = self.send_udp(false, &[], from, libc::MSG_DONTWAIT);
    }

    /// Sends bytes behind a notice by UDP.
    fn send_udp(&self, with_data: bool, data: &[u8], to: SocketAddr, flags: c_int) -> Result<(), c_int> {
        let Some(queue) = &self.queue else { return Err(libc::EINVAL) };
        let head = Head::notice(Notice { with_data, qpn: queue.number() }, self.own.ip());
        let mut packet = head.bytes().to_vec();
        packet.extend_from_slice(data);
        let (address, length) = write(&to);
        // SAFETY: bytes and their length, an address and its length.
        let sent = unsafe {
            let (bytes, len) = (packet.as_ptr().cast(), packet.len());
            let flags = flags | libc::MSG_NOSIGNAL;
            libc::sendto(self.fd(), bytes, len, flags, (&raw const address).cast(), length)
        };
        if sent < 0 { Err(errno()) } else { Ok(()) }
    }

    /// Sends a datagram: all of it, or EAGAIN.
    pub(super) fn send(
        &mut self,
        from: &mut Pieces<'_>,
        to: Option<SocketAddr>,
        settings: &Settings,
        now: u64,
    ) -> Result<usize, c_int> {
        self.take_error()?;
        let to = match (to, self.peer) {
            (None, Some(peer)) => peer,
            (None, None) => return Err(libc::EDESTADDRREQ),
            (Some(to), _) => {
                self.ready(settings)?;
                self.reachable(to)?
            }
        };
        let source = Head::source(self.own);
        let notice = Head::notice(Notice { with_data: true, qpn: 0 }, self.own.ip());
        // A datagram is one packet, and either way must have room for it.
        let mtu = PLACE.min(128 << own_mtu());
        let (len, room) = (from.left(), (mtu - source.bytes().len()).min(PLACE - notice.bytes().len()));
        if len > room {
            return Err(libc::EMSGSIZE);
        }
        if let (Some(route), Some(queue)) = (self.peers.route(plain(to), now), &mut self.queue) {
            return queue.send(&source, from, route).map(|()| len);
        }
        // Where the kernel has no room the call waits, as it does not last until the card has sent.
        let mut bytes = vec![0; len];
        from.each(len, |done, piece| dma::read_bytes(piece, &mut bytes[done..done + piece.len()]));
        self.send_udp(true, &bytes, to, 0).map(|()| len)
    }

    /// Reads the first datagram that came, as much of it as there is room for; EAGAIN if none is there.
    pub(super) fn receive(&mut self, to: &mut Pieces<'_>, peek: bool) -> Result<Taken, c_int> {
        self.take_error()?;
        // Nothing can come to a socket without an address.
        let queue = self.queue.as_ref().ok_or(libc::EINVAL)?;
        let arrived = self.arrived.front().ok_or(libc::EAGAIN)?;
        let copied = arrived.len.min(to.left());
        match &arrived.place {
            Place::Queue(place) => queue.copy(*place, arrived.at, copied, to),
            Place::Kept(bytes) => {
                let bytes = &bytes[arrived.at..];
                to.each(copied, |done, piece| dma::write_bytes(piece, &bytes[done..done + piece.len()]));
            }
        }
        let taken = Taken { from: as_of(self.domain, arrived.from)?, copied, len: arrived.len };
        if !peek && let Some(Arrived { place: Place::Queue(place), .. }) = self.arrived.pop_front() {
            queue.give_back(place)?;
        }
        Ok(taken)
    }
}

/// The datagram at a place. `None` if it does not say who sent it, or says another address than the network.
fn came(queue: &Queue, place: u32, len: usize) -> Option<Arrived> {
    let mut head = [0; HEAD_MAX];
    let head = &mut head[..len.min(HEAD_MAX)];
    queue.read(place, 0, head);
    let (from, at) = parse_source(head)?;
    if from.ip() != queue.sender(place).to_canonical() {
        return None;
    }
    Some(Arrived { from, place: Place::Queue(place), at, len: len - at })
}
