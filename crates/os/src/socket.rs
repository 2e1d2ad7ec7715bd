//! UDP sockets as RoCEv2 and 1RMA need them: batches in both directions, segmentation by the kernel
//! (UDP_SEGMENT, UDP_GRO), DF set, and traffic class and hop limit per message.
#![allow(unsafe_code)]

use crate::sys::{Buffer, ask_for_buffer, set_option};
use adverb_wire::ROCE_UDP_PORT;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

/// Hop limit of messages that do not ask for another.
pub const HOP_LIMIT: u8 = 64;
/// Messages given to or taken from the kernel in one call.
pub(crate) const BATCH: usize = 16;
/// Send and receive buffer asked for; the system's limits may give less.
const SOCKET_BUFFER: usize = 8 << 20;
/// How long a port may stay taken before it must be a stranger's, and how often it is asked for in that time:
/// on a busy host, where this process asks less often, who was just started waits for a processor too.
const HANDOVER: Duration = Duration::from_secs(1);
const HANDOVER_TRIES: u32 = 250;
/// Of `linux/udp.h`: datagrams over IPv6 with checksum 0 are received too.
const UDP_NO_CHECK6_RX: libc::c_int = 102;
/// Room for three control messages of one word each, in words.
const CONTROL_WORDS: usize = 12;
/// That room.
pub(crate) type Control = [u64; CONTROL_WORDS];

/// One message to send: one frame, or several of equal length (the last may be shorter) that the
/// kernel or the adapter cuts apart.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Destination.
    pub to: SocketAddr,
    /// First byte in the batch's buffer.
    pub start: usize,
    /// Bytes of all frames.
    pub len: usize,
    /// Bytes of one frame.
    pub segment: usize,
    /// Frames.
    pub frames: usize,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit.
    pub hop_limit: u8,
}

impl Run {
    fn has_usual_hops(&self) -> bool {
        matches!(self.hop_limit, 0 | HOP_LIMIT)
    }

    /// Whether it is one frame, without a wish of its own.
    fn is_plain(&self) -> bool {
        self.frames == 1 && self.traffic_class == 0 && self.has_usual_hops()
    }
}

/// A socket on port 4791, or on another driver's port.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    ipv4: bool,
    /// Bytes that the kernel keeps for a slow reader.
    receive_buffer: usize,
    /// Whom it is connected to.
    peer: Option<SocketAddr>,
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A socket address as the kernel takes it.
pub(crate) fn encode(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zeroes is a valid `sockaddr_storage`.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let len = match address {
        SocketAddr::V4(v4) => {
            let out = (&raw mut storage).cast::<libc::sockaddr_in>();
            // SAFETY: the storage is large enough and aligned for every family.
            unsafe {
                (*out).sin_family = libc::AF_INET as libc::sa_family_t;
                (*out).sin_port = v4.port().to_be();
                (*out).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(v6) => {
            let out = (&raw mut storage).cast::<libc::sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*out).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                (*out).sin6_port = v6.port().to_be();
                (*out).sin6_addr.s6_addr = v6.ip().octets();
                (*out).sin6_scope_id = v6.scope_id();
            }
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}

/// A socket address as the kernel gives it.
pub(crate) fn decode(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what the storage, which is large enough for it, holds.
            let v4 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::from((ip, u16::from_be(v6.sin6_port))))
        }
        _ => None,
    }
}

impl Socket {
    /// An unbound socket of the address's family.
    fn new(ipv4: bool) -> io::Result<Socket> {
        let family = if ipv4 { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain values; the descriptor returned is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(family, kind, 0))?) };
        Ok(Socket { fd, ipv4, receive_buffer: 0, peer: None })
    }

    pub(crate) fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        set_option(self.fd.as_fd(), level, option, value)
    }

    fn get(&self, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
        let mut value: libc::c_int = 0;
        let mut len = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the value is an int, valid for the length given.
        check(unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len)
        })?;
        Ok(value)
    }

    fn bind_to(&self, address: SocketAddr) -> io::Result<()> {
        let (storage, len) = encode(address);
        // SAFETY: the storage holds an address of `len` bytes.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const storage).cast(), len) }).map(drop)
    }

    /// The socket of one address, shared with this user's other processes. With `alone`, nobody else may hold
    /// the port. `AddrInUse` if someone does.
    ///
    /// A program that a former owner, or this process, has just started holds copies of its sockets from its
    /// fork to its exec, where they close. Nothing tells when, so this asks until it is clear that a stranger
    /// has the port.
    #[expect(clippy::disallowed_methods, reason = "the kernel does not tell when a port becomes free")]
    pub fn bind(address: IpAddr, alone: bool) -> io::Result<Socket> {
        let (start, mut tries) = (Instant::now(), 0);
        loop {
            let bound = if alone { Socket::probe(address) } else { Ok(()) };
            let is_early = || tries < HANDOVER_TRIES || start.elapsed() < HANDOVER;
            match bound.and_then(|()| Socket::bind_shared(address)) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_early() => {
                    std::thread::sleep(Duration::from_millis(1));
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Succeeds if nobody holds port 4791 of the address.
    fn probe(address: IpAddr) -> io::Result<()> {
        Socket::new(address.is_ipv4())?.bind_to((address, ROCE_UDP_PORT).into())
    }

    fn bind_shared(address: IpAddr) -> io::Result<Socket> {
        let mut socket = Socket::new(address.is_ipv4())?;
        socket.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        socket.configure()?;
        socket.bind_to((address, ROCE_UDP_PORT).into())?;
        Ok(socket)
    }

    /// A socket that only sends, from a port of its own. Give it a peer by [`Socket::connect`].
    pub fn sender(address: IpAddr) -> io::Result<Socket> {
        let socket = Socket::new(address.is_ipv4())?;
        socket.configure_sending()?;
        // Nobody reads what a peer sends to this port.
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 0)?;
        socket.bind_to((address, 0).into())?;
        Ok(socket)
    }

    /// Makes this the peer whose messages go without a look for the route. From now on nobody else's are
    /// received.
    pub fn connect(&mut self, peer: SocketAddr) -> io::Result<()> {
        let (storage, len) = encode(peer);
        // SAFETY: the storage holds an address of `len` bytes.
        check(unsafe { libc::connect(self.fd.as_raw_fd(), (&raw const storage).cast(), len) })?;
        self.peer = Some(peer);
        Ok(())
    }

    /// The peer that it is connected to.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// The socket of an address and port that nobody else has.
    pub fn bind_alone(address: SocketAddr) -> io::Result<Socket> {
        let mut socket = Socket::new(address.is_ipv4())?;
        socket.configure()?;
        // Nobody looks at the class of what arrives, and each look costs.
        match socket.ipv4 {
            true => socket.set(libc::IPPROTO_IP, libc::IP_RECVTOS, 0)?,
            false => socket.set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 0)?,
        }
        socket.bind_to(address)?;
        Ok(socket)
    }

    /// A socket that receives one multicast group on the interface of `address`. Everyone who joined gets
    /// every datagram.
    pub fn bind_group(group: IpAddr, address: IpAddr, interface_index: u32) -> io::Result<Socket> {
        let mut socket = Socket::new(group.is_ipv4())?;
        socket.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        socket.configure()?;
        socket.bind_to((group, ROCE_UDP_PORT).into())?;
        match (group, address) {
            (IpAddr::V4(group), IpAddr::V4(address)) => {
                let join = libc::ip_mreqn {
                    imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
                    imr_address: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
                    imr_ifindex: interface_index as libc::c_int,
                };
                socket.join(libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &join)?;
            }
            (IpAddr::V6(group), _) => {
                let join = libc::ipv6_mreq {
                    ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.octets() },
                    ipv6mr_interface: interface_index,
                };
                socket.join(libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, &join)?;
            }
            _ => return Err(io::ErrorKind::AddrNotAvailable.into()),
        }
        Ok(socket)
    }

    fn join<T>(&self, level: libc::c_int, option: libc::c_int, request: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: callers pass the structure that the option takes, valid for its length.
        check(unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, option, std::ptr::from_ref(request).cast(), len)
        })
        .map(drop)
    }

    /// Sends multicast out of this interface, and back to this host's members.
    pub fn multicast_from(&self, interface_index: u32) -> io::Result<()> {
        let index = interface_index as libc::c_int;
        if self.ipv4 {
            // SAFETY: all zeroes is a valid `ip_mreqn`.
            let mut request: libc::ip_mreqn = unsafe { zeroed() };
            request.imr_ifindex = index;
            self.join(libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)?;
            self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, libc::c_int::from(HOP_LIMIT))?;
            self.set(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 1)
        } else {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, index)?;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, libc::c_int::from(HOP_LIMIT))?;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 1)
        }
    }

    /// Has the kernel give each datagram of the group that this socket shares its port with to the index of
    /// its destination queue pair's upper byte, requests for a service to its listener's, and those of others
    /// to `other`; see
    /// [`steer`](crate::steer).
    pub fn steer(&self, owners: &[(u8, u8)], listeners: &[(u32, u8)], other: u8) -> io::Result<()> {
        let mut code = crate::steer::program(owners, listeners, other);
        let len = libc::c_ushort::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // A `sock_fprog`, its padding included: what goes to the kernel is all written.
        #[repr(C)]
        struct Program {
            len: libc::c_ushort,
            padding: [u8; size_of::<*mut libc::sock_filter>() - size_of::<libc::c_ushort>()],
            filter: *mut libc::sock_filter,
        }
        const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());
        let padding = Default::default();
        let program = Program { len, padding, filter: code.as_mut_ptr() };
        // The instructions live here for as long as the call takes, which copies them.
        self.join(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
    }

    /// What all sockets need to send.
    fn configure_sending(&self) -> io::Result<()> {
        if self.ipv4 {
            // DF on an unconnected socket makes the identification zero, which the ICRC covers.
            self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            self.set(libc::IPPROTO_IP, libc::IP_TTL, libc::c_int::from(HOP_LIMIT))?;
        } else {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            self.set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::c_int::from(HOP_LIMIT))?;
        }
        ask_for_buffer(self.fd.as_fd(), Buffer::Send, SOCKET_BUFFER)
    }

    /// What those need that receive too.
    fn configure(&mut self) -> io::Result<()> {
        self.configure_sending()?;
        match self.ipv4 {
            true => self.set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?,
            false => self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?,
        }
        if !self.ipv4 {
            // Linux's rdma_rxe sends such datagrams (RFC 6935 allows it for tunnels), and the ICRC, or 1RMA's
            // authentication, covers what the checksum would. Kernels before 3.16 lack it.
            let _ = self.set(libc::SOL_UDP, UDP_NO_CHECK6_RX, 1);
        }
        ask_for_buffer(self.fd.as_fd(), Buffer::Receive, SOCKET_BUFFER)?;
        // Kernels before 5.0 lack it; then frames come one by one.
        let _ = self.set(libc::SOL_UDP, libc::UDP_GRO, 1);
        self.receive_buffer = self.get(libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as usize;
        Ok(())
    }

    /// Bytes that the kernel keeps for a slow reader, its own overhead included.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sends messages in order, and returns how many the kernel took. An error is about the first message
    /// that it did not take.
    pub fn send(&self, runs: &[Run], buffer: &[u8]) -> (usize, Option<io::Error>) {
        let mut sent = 0;
        while sent < runs.len() {
            match self.send_batch(&runs[sent..], buffer) {
                Ok(0) => break,
                Ok(count) => sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (sent, Some(e)),
            }
        }
        (sent, None)
    }

    fn send_batch(&self, runs: &[Run], buffer: &[u8]) -> io::Result<usize> {
        if let [run] = runs
            && run.is_plain()
        {
            return self.send_plain(run, &buffer[run.start..run.start + run.len]);
        }
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; BATCH];
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; BATCH];
        let count = runs.len().min(BATCH);
        for (i, run) in runs.iter().take(count).enumerate() {
            let bytes = &buffer[run.start..run.start + run.len];
            let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let header = headers[i].write(no_message());
            if self.peer != Some(run.to) {
                let (name, name_len) = encode(run.to);
                header.msg_hdr.msg_name = (names[i].write(name) as *mut libc::sockaddr_storage).cast();
                header.msg_hdr.msg_namelen = name_len;
            }
            header.msg_hdr.msg_iov = pieces[i].write(piece);
            header.msg_hdr.msg_iovlen = 1;
            self.add_controls(run, &mut header.msg_hdr, controls[i].write([0; CONTROL_WORDS]));
        }
        // SAFETY: the first `count` headers are written, and point to names, pieces, controls and bytes that
        // are written too and outlive the call.
        unsafe { self.call(Call::Send, &mut headers[..count]) }
    }

    /// Sends a message that needs no control messages: the kernel has no header to copy in.
    fn send_plain(&self, run: &Run, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let (start, len, flags) = (bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL);
        let sent = if self.peer == Some(run.to) {
            let nobody = ptr::null::<libc::sockaddr_storage>();
            // SAFETY: the bytes are borrowed for as long as the call takes; there is no name.
            unsafe { libc::syscall(libc::SYS_sendto, fd, start, len, flags, nobody, 0) }
        } else {
            let (name, name_len) = encode(run.to);
            // SAFETY: as above, and the name has `name_len` bytes.
            unsafe { libc::syscall(libc::SYS_sendto, fd, start, len, flags, &raw const name, name_len) }
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
    }

    /// Adds the control messages that a run needs.
    fn add_controls(&self, run: &Run, header: &mut libc::msghdr, control: &mut Control) {
        let mut words: [(libc::c_int, libc::c_int, libc::c_int); 3] = [(0, 0, 0); 3];
        let mut count = 0;
        let mut add = |level, kind, value| {
            words[count] = (level, kind, value);
            count += 1;
        };
        if run.frames > 1 {
            add(libc::SOL_UDP, libc::UDP_SEGMENT, run.segment as libc::c_int);
        }
        if run.traffic_class != 0 {
            let class = libc::c_int::from(run.traffic_class);
            match self.ipv4 {
                true => add(libc::IPPROTO_IP, libc::IP_TOS, class),
                false => add(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class),
            }
        }
        if !run.has_usual_hops() {
            let hops = libc::c_int::from(run.hop_limit);
            match self.ipv4 {
                true => add(libc::IPPROTO_IP, libc::IP_TTL, hops),
                false => add(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, hops),
            }
        }
        if count == 0 {
            return;
        }
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>() as _;
        let mut used = 0;
        // SAFETY: the control buffer is aligned and has room for three messages of one word; CMSG_FIRSTHDR
        // and CMSG_NXTHDR stay inside it.
        unsafe {
            let mut at = libc::CMSG_FIRSTHDR(header);
            for &(level, kind, value) in &words[..count] {
                let len = if kind == libc::UDP_SEGMENT && level == libc::SOL_UDP { 2 } else { 4 };
                (*at).cmsg_level = level;
                (*at).cmsg_type = kind;
                (*at).cmsg_len = libc::CMSG_LEN(len) as _;
                match len {
                    2 => libc::CMSG_DATA(at).cast::<u16>().write_unaligned(value as u16),
                    _ => libc::CMSG_DATA(at).cast::<libc::c_int>().write_unaligned(value),
                }
                used += libc::CMSG_SPACE(len) as usize;
                at = libc::CMSG_NXTHDR(header, at);
            }
        }
        header.msg_controllen = used as _;
    }

    /// Sends or receives messages; returns how many. One alone goes the shorter way. The library's functions
    /// are points of cancellation of the thread, which takes as long as a short message's copy; the calls
    /// themselves are not.
    ///
    /// # Safety
    /// The headers must be written, and what they point to valid as the call has it.
    pub(crate) unsafe fn call(
        &self,
        call: Call,
        headers: &mut [MaybeUninit<libc::mmsghdr>],
    ) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        let count = headers.len() as libc::c_uint;
        let (one, many, flags) = match call {
            Call::Receive => (libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::MSG_DONTWAIT),
            Call::Send => (libc::SYS_sendmsg, libc::SYS_sendmmsg, libc::MSG_NOSIGNAL),
        };
        let first = headers.as_mut_ptr().cast::<libc::mmsghdr>();
        let result = match count {
            // SAFETY: `msg_hdr` is the first member; the caller says that it is valid.
            1 => unsafe { libc::syscall(one, fd, first, flags) },
            // SAFETY: `count` headers, as the caller says. Without a time, and where there is none the fifth
            // argument is not looked at.
            _ => unsafe { libc::syscall(many, fd, first, count, flags, ptr::null::<libc::timespec>()) },
        };
        let result = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        if count > 1 {
            return Ok(result);
        }
        // SAFETY: written, as the caller says.
        unsafe { (*first).msg_len = result as libc::c_uint };
        Ok(1)
    }
}

/// What is asked of the kernel.
#[derive(Clone, Copy)]
pub(crate) enum Call {
    Receive,
    Send,
}

/// A header that says nothing yet.
pub(crate) fn no_message() -> libc::mmsghdr {
    // SAFETY: all zeroes is a valid `mmsghdr`.
    unsafe { zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::{Inbox, Message};

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 41, last])
    }

    fn receive_all(socket: &Socket, inbox: &mut Inbox, mut each: impl FnMut(&Message<'_>)) {
        crate::sys::wait_readable(socket.fd(), std::time::Duration::from_secs(5));
        while let Ok(1..) = socket.receive(inbox) {
            inbox.messages().for_each(|m| each(&m));
        }
    }

    #[test]
    fn runs_arrive_cut_apart_with_their_class() {
        for (from, to) in [(address(1), address(2)), ("::1".parse().unwrap(), "::1".parse().unwrap())] {
            let (a, b) = (Socket::bind(from, true).unwrap(), Socket::bind(to, from != to).unwrap());
            // On ::1 both share the port, and either may get the messages.
            let mut buffer = vec![0; 1000];
            buffer.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 100) as u8);
            let to = SocketAddr::from((to, ROCE_UDP_PORT));
            let run = |start, len, frames, traffic_class| Run {
                to,
                start,
                len,
                segment: 100,
                frames,
                traffic_class,
                hop_limit: HOP_LIMIT,
            };
            let runs = [run(0, 950, 10, 0), run(100, 100, 1, 0x2e << 2 | 1)];
            let (sent, error) = a.send(&runs, &buffer);
            assert!(sent == 2 && error.is_none(), "{error:?}");
            let mut frames = Vec::new();
            let mut inbox = Inbox::new();
            let mut note = |m: &Message<'_>| {
                for frame in m.bytes.chunks(m.segment) {
                    frames.push((frame[0], frame.len(), m.traffic_class));
                }
            };
            let reader = if crate::sys::wait_readable(a.fd(), Default::default()) { &a } else { &b };
            receive_all(reader, &mut inbox, &mut note);
            let expected: Vec<_> = (0..9).map(|i| (i, 100, 0)).chain([(9, 50, 0), (1, 100, 0xb9)]).collect();
            assert_eq!(frames, expected);
        }
    }

    /// As Linux's rdma_rxe sends them.
    #[test]
    fn datagrams_over_ipv6_with_checksum_zero_are_received() {
        const UDP_NO_CHECK6_TX: libc::c_int = 101;
        let own = SocketAddr::from((Ipv6Addr::LOCALHOST, 4792));
        let receiver = Socket::bind_alone(own).unwrap();
        let sender = Socket::new(false).unwrap();
        sender.set(libc::SOL_UDP, UDP_NO_CHECK6_TX, 1).unwrap();
        let run =
            Run { to: own, start: 0, len: 4, segment: 4, frames: 1, traffic_class: 0, hop_limit: HOP_LIMIT };
        assert_eq!(sender.send(&[run], b"zero").0, 1);
        let (mut inbox, mut heard) = (Inbox::new(), Vec::new());
        receive_all(&receiver, &mut inbox, |m| heard.push(m.bytes.to_vec()));
        assert_eq!(heard, [b"zero"]);
    }

    #[test]
    fn a_taken_port_is_seen() {
        let address = address(3);
        let _holder = Socket::bind(address, true).unwrap();
        assert_eq!(Socket::bind(address, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(Socket::bind(address, false).is_ok());
        let unknown = Socket::bind(IpAddr::from([192, 0, 2, 77]), true).unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn addresses_survive_the_kernel_form() {
        for text in ["10.1.2.3:4791", "[fd00::1:2]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode(&encode(address).0), Some(address));
        }
    }

    #[test]
    fn a_sender_reaches_whom_it_is_connected_to_from_its_address() {
        let (from, mut inbox) = (address(6), Inbox::new());
        let mut sender = Socket::sender(from).unwrap();
        for last in [7, 8] {
            let peer = Socket::bind(address(last), true).unwrap();
            let to = SocketAddr::from((address(last), ROCE_UDP_PORT));
            sender.connect(to).unwrap();
            let run =
                Run { to, start: 1, len: 3, segment: 2, frames: 2, traffic_class: 0, hop_limit: HOP_LIMIT };
            assert_eq!(sender.send(&[run, run], b"abcd").0, 2);
            let mut heard = Vec::new();
            receive_all(&peer, &mut inbox, |m| heard.push((m.bytes.to_vec(), m.segment, m.from.ip())));
            assert_eq!(heard, vec![(b"bcd".to_vec(), 2, from); 2]);
            drop(peer);
            // What reaches no port comes back as an error, at the next sending at the latest.
            let refused = (0..2).find_map(|_| sender.send(&[run], b"abcd").1).expect("the port is closed");
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn every_member_of_a_group_hears_it() {
        let group: IpAddr = "239.41.0.1".parse().unwrap();
        let sender = Socket::bind(address(4), true).unwrap();
        sender.multicast_from(1).unwrap();
        let members = [1, 2].map(|_| Socket::bind_group(group, address(4), 1).unwrap());
        let run = Run {
            to: (group, ROCE_UDP_PORT).into(),
            start: 0,
            len: 4,
            segment: 4,
            frames: 1,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        };
        assert_eq!(sender.send(&[run], b"abcd").0, 1);
        for member in &members {
            let (mut inbox, mut heard) = (Inbox::new(), 0);
            receive_all(member, &mut inbox, |m| {
                assert_eq!((m.bytes, m.from.ip()), (&b"abcd"[..], address(4)));
                heard += 1;
            });
            assert_eq!(heard, 1);
        }
    }
}
