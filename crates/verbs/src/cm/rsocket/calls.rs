//! Calls of C that make sockets, connect them, and say what they are.

use super::defaults;
use super::socket::{Phase, Socket, of};
use crate::abi::rdma_cm_id;
use crate::cm::address::{read, write};
use crate::cm::done;
use crate::handle::set_errno;
use core::ffi::{c_int, c_long};
use libc::{sockaddr, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The way in which calls that give a number end: it, or -1 with errno.
fn number(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Makes a socket, for a stream or for datagrams.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number((|| {
        if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
            return Err(libc::EAFNOSUPPORT);
        }
        // Flags in the type are not offered, as in rdma-core's: librspreload then gives the program a socket
        // of the kernel's, and has no accept4 that would make use of them.
        let made = match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => Socket::create(domain, defaults::settings()),
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                Socket::create_datagrams(domain, defaults::settings())
            }
            _ => Err(libc::EOPNOTSUPP),
        };
        made.map(|socket| socket.number)
    })())
}

/// An address is one of IP's, and as long as it must be.
///
/// # Safety
/// It has as many bytes as it says.
pub(super) unsafe fn check(address: *const sockaddr, length: socklen_t) -> Result<(), c_int> {
    let length = length as usize;
    if address.is_null() || length < size_of::<libc::sa_family_t>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the family was there; by the caller's promise so is the rest.
    let needed = match i32::from(unsafe { (&raw const (*address).sa_family).read_unaligned() }) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(libc::EAFNOSUPPORT),
    };
    if length < needed { Err(libc::EINVAL) } else { Ok(()) }
}

/// Binds a socket to an address.
///
/// # Safety
/// C ABI: as `bind(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    done((|| {
        let socket = of(socket)?;
        // SAFETY: the caller passes an address and its length.
        unsafe {
            check(address, length)?;
            socket.lock().bind(address)
        }
    })())
}

/// Takes requests for connections.
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    done(of(socket).and_then(|socket| socket.lock().listen(backlog)))
}

/// Waits for a request and accepts it, on a new socket.
///
/// # Safety
/// C ABI: as `accept(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    number((|| {
        let listener = of(socket)?;
        let mut state = listener.lock();
        if state.datagrams.is_some() {
            return Err(libc::EOPNOTSUPP);
        }
        loop {
            match listener.accept(&mut state) {
                Ok(made) => {
                    // SAFETY: the caller passes a place for the address, and its length.
                    unsafe { give_address(&made, Side::Peer, address, length) }?;
                    return Ok(made.number);
                }
                Err(libc::EAGAIN) if !state.nonblocking() => state = listener.wait(state)?,
                Err(errno) => return Err(errno),
            }
        }
    })())
}

/// Connects a socket; one that does not block says EINPROGRESS.
///
/// # Safety
/// C ABI: as `connect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    done((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        state.advance();
        // SAFETY: the caller passes an address and its length.
        unsafe {
            check(address, length)?;
            state.connect(address)?;
        }
        if state.datagrams.is_some() {
            return Ok(());
        }
        if state.nonblocking() {
            return Err(libc::EINPROGRESS);
        }
        let mut state = socket.wait_while(state, |state| state.phase == Phase::Connecting)?;
        if state.phase == Phase::Connected {
            return Ok(());
        }
        // A socket that another thread has closed has no error of its own.
        Err(match core::mem::take(&mut state.error) {
            0 => libc::ECONNABORTED,
            errno => errno,
        })
    })())
}

/// Ends reading, writing, or both.
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    done((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        let (reading, writing) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(libc::EINVAL),
        };
        if state.datagrams.is_some() {
            return Err(libc::EOPNOTSUPP);
        }
        if state.link.is_none() {
            return Err(libc::ENOTCONN);
        }
        state.shut(reading, writing);
        Ok(())
    })())
}

/// Closes a socket, when the peer has all that was sent.
#[unsafe(no_mangle)]
pub extern "C" fn rclose(socket: c_int) -> c_int {
    done(super::socket::find(socket).ok_or(libc::EBADF).and_then(|socket| socket.close()))
}

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Own,
    Peer,
}

/// An end's address, as much of it as there is room for, and its whole length.
///
/// # Safety
/// `address` has room for `*length` bytes, or is NULL; so may `length` be.
pub(super) unsafe fn give_address(
    socket: &Socket,
    side: Side,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    let state = socket.lock();
    if let Some(of) = &state.datagrams {
        let name = of.name(side == Side::Peer)?;
        // SAFETY: by the caller's promise.
        return unsafe { put_address(&name, address, length) };
    }
    let id: *mut rdma_cm_id = state.id;
    if id.is_null() || side == Side::Peer && state.link.is_none() {
        return Err(libc::ENOTCONN);
    }
    // SAFETY: the live identifier's own fields, which are valid addresses or zeroes; the program's room by
    // the caller's promise.
    unsafe {
        let from = match side {
            Side::Own => &raw const (*id).route.addr.src_storage,
            Side::Peer => &raw const (*id).route.addr.dst_storage,
        };
        let any: IpAddr = match state.domain {
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        };
        let from = read(from.cast()).unwrap_or(SocketAddr::new(any, 0));
        put_address(&from, address, length)
    }
}

/// Writes an address, as much of it as there is room for, and its whole length.
///
/// # Safety
/// As for `give_address`.
pub(super) unsafe fn put_address(
    from: &SocketAddr,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<(), c_int> {
    if length.is_null() {
        return if address.is_null() { Ok(()) } else { Err(libc::EFAULT) };
    }
    let (from, whole) = write(from);
    // SAFETY: by the caller's promise.
    unsafe {
        if !address.is_null() {
            let room = whole.min(*length) as usize;
            core::ptr::copy_nonoverlapping((&raw const from).cast::<u8>(), address.cast(), room);
        }
        *length = whole;
    }
    Ok(())
}

/// The peer's address.
///
/// # Safety
/// C ABI: as `getpeername(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller passes a place for the address, and its length.
    done(of(socket).and_then(|socket| unsafe { give_address(&socket, Side::Peer, address, length) }))
}

/// The socket's address.
///
/// # Safety
/// C ABI: as `getsockname(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller passes a place for the address, and its length.
    done(of(socket).and_then(|socket| unsafe { give_address(&socket, Side::Own, address, length) }))
}

/// Flags: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD. C's call takes any arguments; on this processor
/// the third is where it is for a fixed list.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    number((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        match command {
            libc::F_GETFL => Ok(state.flags),
            libc::F_SETFL => {
                state.flags = libc::O_RDWR | (argument as c_int & libc::O_NONBLOCK);
                Ok(0)
            }
            // The number is a descriptor of this library's.
            libc::F_GETFD => Ok(libc::FD_CLOEXEC),
            libc::F_SETFD if argument as c_int & libc::FD_CLOEXEC != 0 => Ok(0),
            _ => Err(libc::EOPNOTSUPP),
        }
    })())
}
