//! Calls of C that send and receive.

use super::calls::{Side, check, give_address, put_address};
use super::datagrams::Taken;
use super::link::Pieces;
use super::poll::now_ns;
use super::socket::{Phase, Socket, State, of};
use crate::cm::address::read;
use crate::handle::set_errno;
use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, sockaddr, socklen_t};
use std::net::SocketAddr;

/// Buffers of one call at most, as the kernel's.
const BUFFERS_MAX: usize = 1024;
/// Flags that mean something here, or nothing anywhere. Without signals, none is to be suppressed.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_MORE;
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_PEEK;

/// The way in which these calls end: a count, or -1 with errno.
pub(super) fn count(result: Result<usize, c_int>) -> isize {
    match result {
        Ok(bytes) => bytes as isize,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The same for datagrams, which are not waited for in part; and their length may be asked for.
const DATAGRAM_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL | libc::MSG_PEEK | libc::MSG_TRUNC;

/// What was done before an error counts for more than it.
fn some(done: usize, otherwise: c_int) -> Result<usize, c_int> {
    if done > 0 { Ok(done) } else { Err(otherwise) }
}

/// Why nothing can be sent any more, or not yet at all.
fn refuses(state: &State) -> Option<c_int> {
    match (&state.link, state.phase) {
        (Some(link), _) if link.broken.is_some() => link.broken,
        (Some(link), _) if link.stream.cannot_write() => Some(libc::EPIPE),
        (_, Phase::Idle | Phase::Bound | Phase::Listening) => Some(libc::ENOTCONN),
        (_, Phase::Ended) => Some(libc::EPIPE),
        _ => None,
    }
}

/// Sends all, or as much as there is room for if the call does not wait. With an offset, to memory that the
/// peer has mapped.
pub(super) fn send(
    socket: &Socket,
    mut from: Pieces<'_>,
    flags: c_int,
    offset: Option<u64>,
) -> Result<usize, c_int> {
    if flags & !SEND_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let total = from.left();
    let mut state = socket.lock();
    let waits = !state.nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    loop {
        state.advance();
        let done = total - from.left();
        if let Some(errno) = refuses(&state) {
            return some(done, errno);
        }
        if state.phase == Phase::Connected
            && let Some(link) = &mut state.link
        {
            match offset {
                None => {
                    link.write(&mut from);
                }
                Some(offset) => {
                    link.write_to(offset + done as u64, &mut from)?;
                }
            }
        }
        if from.left() == 0 {
            return Ok(total);
        }
        if !waits {
            return some(total - from.left(), libc::EAGAIN);
        }
        state = match socket.wait(state) {
            Ok(state) => state,
            Err(errno) => return some(total - from.left(), errno),
        };
    }
}

/// Receives what there is, at least a byte if the call waits; all of it if that is asked for.
fn receive(socket: &Socket, mut to: Pieces<'_>, flags: c_int) -> Result<usize, c_int> {
    if flags & !RECEIVE_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let total = to.left();
    let peek = flags & libc::MSG_PEEK != 0;
    let mut state = socket.lock();
    let waits = !state.nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let whole = waits && !peek && flags & libc::MSG_WAITALL != 0;
    loop {
        state.advance();
        if let Some(link) = &mut state.link {
            if link.read(&mut to, peek) > 0 {
                // The peer may have to wait for the room.
                link.tell();
            }
            let done = total - to.left();
            if to.left() == 0 || done > 0 && !whole {
                return Ok(done);
            }
            if link.stream.ended() && link.stream.unread() == 0 {
                return match link.broken {
                    Some(errno) => some(done, errno),
                    None => Ok(done),
                };
            }
        } else if matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening | Phase::Ended) {
            return Err(libc::ENOTCONN);
        }
        if !waits {
            return Err(libc::EAGAIN);
        }
        state = match socket.wait(state) {
            Ok(state) => state,
            Err(errno) => return some(total - to.left(), errno),
        };
    }
}

/// Sends a datagram, to whom the socket is connected unless the call names another.
fn send_datagram(
    socket: &Socket,
    mut from: Pieces<'_>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize, c_int> {
    if flags & !(SEND_FLAGS & !libc::MSG_MORE) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = socket.lock();
    loop {
        state.advance();
        let waits = !state.nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let settings = state.settings;
        let datagrams = state.datagrams.as_mut().ok_or(libc::EBADF)?;
        match datagrams.send(&mut from, to, &settings, now_ns()) {
            Err(libc::EAGAIN) if waits => state = socket.wait(state)?,
            sent => return sent,
        }
    }
}

/// Receives a datagram.
fn receive_datagram(socket: &Socket, mut to: Pieces<'_>, flags: c_int) -> Result<Taken, c_int> {
    if flags & !DATAGRAM_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = socket.lock();
    loop {
        state.advance();
        let waits = !state.nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let datagrams = state.datagrams.as_mut().ok_or(libc::EBADF)?;
        match datagrams.receive(&mut to, flags & libc::MSG_PEEK != 0) {
            Err(libc::EAGAIN) if waits => state = socket.wait(state)?,
            received => return received,
        }
    }
}

/// What came, and from whom.
struct Received {
    count: usize,
    /// `None` for streams, whose sockets know it.
    from: Option<SocketAddr>,
    truncated: bool,
}

/// One buffer.
fn buffer(at: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// A list of buffers. Its length is a `size_t` in glibc's messages, an `int` in musl's.
///
/// # Safety
/// It has that many entries.
unsafe fn buffers<'a>(list: *const iovec, entries: impl TryInto<usize>) -> Result<&'a [iovec], c_int> {
    match entries.try_into() {
        Ok(0) => Ok(&[]),
        // SAFETY: by the caller's promise.
        Ok(entries @ ..=BUFFERS_MAX) => Ok(unsafe { core::slice::from_raw_parts(list, entries) }),
        _ => Err(libc::EMSGSIZE),
    }
}

/// An address that a call names; `None` if it names none.
///
/// # Safety
/// It has as many bytes as it says.
unsafe fn named(address: *const sockaddr, length: socklen_t) -> Result<Option<SocketAddr>, c_int> {
    if address.is_null() && length == 0 {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        check(address, length)?;
        read(address).map(Some).ok_or(libc::EAFNOSUPPORT)
    }
}

/// Sends a program's buffers, as bytes of a stream or as a datagram.
///
/// # Safety
/// They can be read.
unsafe fn send_all(socket: c_int, from: &[iovec], flags: c_int, to: Option<SocketAddr>) -> isize {
    count(of(socket).and_then(|socket| {
        // SAFETY: by the caller's promise.
        let from = unsafe { Pieces::new(from) }?;
        match to {
            _ if socket.datagrams => send_datagram(&socket, from, flags, to),
            None => send(&socket, from, flags, None),
            Some(_) => Err(libc::EISCONN),
        }
    }))
}

/// Receives into a program's buffers.
///
/// # Safety
/// They can be written.
unsafe fn receive_all(socket: c_int, to: &[iovec], flags: c_int) -> Result<Received, c_int> {
    let socket = of(socket)?;
    // SAFETY: by the caller's promise.
    let to = unsafe { Pieces::new(to) }?;
    if !socket.datagrams {
        let count = receive(&socket, to, flags)?;
        return Ok(Received { count, from: None, truncated: false });
    }
    let taken = receive_datagram(&socket, to, flags)?;
    let count = if flags & libc::MSG_TRUNC != 0 { taken.len } else { taken.copied };
    Ok(Received { count, from: Some(taken.from), truncated: taken.copied < taken.len })
}

/// Sends.
///
/// # Safety
/// C ABI: as `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(socket: c_int, data: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller passes a buffer and its length.
    unsafe { send_all(socket, &buffer(data, len), flags, None) }
}

/// Sends to an address, or on a connected socket. A stream's is always that: EISCONN with an address.
///
/// # Safety
/// C ABI: as `sendto(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    data: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    // SAFETY: the caller passes a buffer, an address, and their lengths.
    unsafe {
        match named(address, length) {
            Ok(to) => send_all(socket, &buffer(data, len), flags, to),
            Err(errno) => count(Err(errno)),
        }
    }
}

/// Sends a message's buffers. Ancillary data is not offered.
///
/// # Safety
/// C ABI: as `sendmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    if message.is_null() {
        return count(Err(libc::EFAULT));
    }
    // SAFETY: the caller passes a valid message.
    unsafe {
        let message = &*message;
        if message.msg_controllen != 0 {
            return count(Err(libc::EOPNOTSUPP));
        }
        let to = if message.msg_namelen == 0 {
            Ok(None)
        } else {
            named(message.msg_name.cast(), message.msg_namelen)
        };
        match to.and_then(|to| Ok((buffers(message.msg_iov, message.msg_iovlen)?, to))) {
            Ok((from, to)) => send_all(socket, from, flags, to),
            Err(errno) => count(Err(errno)),
        }
    }
}

/// Sends.
///
/// # Safety
/// C ABI: as `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, data: *const c_void, len: usize) -> isize {
    // SAFETY: as for `rsend`.
    unsafe { rsend(socket, data, len, 0) }
}

/// Sends a list of buffers.
///
/// # Safety
/// C ABI: as `writev(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, list: *const iovec, entries: c_int) -> isize {
    let entries = usize::try_from(entries).map_err(|_| libc::EINVAL);
    // SAFETY: the caller passes a list of buffers.
    unsafe {
        match entries.and_then(|entries| buffers(list, entries)) {
            Ok(from) => send_all(socket, from, 0, None),
            Err(errno) => count(Err(errno)),
        }
    }
}

/// Receives.
///
/// # Safety
/// C ABI: as `recv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, data: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller passes a buffer and its length.
    count(unsafe { receive_all(socket, &buffer(data, len), flags) }.map(|received| received.count))
}

/// Receives, and says who the peer is.
///
/// # Safety
/// C ABI: as `recvfrom(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    data: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> isize {
    // SAFETY: the caller passes a buffer and its length, a place for the address and its length.
    count(unsafe {
        receive_all(socket, &buffer(data, len), flags).and_then(|received| {
            match received.from {
                _ if address.is_null() => {}
                Some(from) => put_address(&from, address, length)?,
                None if received.count > 0 => give_address(&*of(socket)?, Side::Peer, address, length)?,
                None => {}
            }
            Ok(received.count)
        })
    })
}

/// Receives into a message's buffers.
///
/// # Safety
/// C ABI: as `recvmsg(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    if message.is_null() {
        return count(Err(libc::EFAULT));
    }
    // SAFETY: the caller passes a valid message.
    unsafe {
        let to = buffers((*message).msg_iov, (*message).msg_iovlen);
        count(to.and_then(|to| receive_all(socket, to, flags)).and_then(|received| {
            (*message).msg_controllen = 0;
            (*message).msg_flags = if received.truncated { libc::MSG_TRUNC } else { 0 };
            // A stream's peer is known, and not said again.
            match received.from {
                Some(from) if !(*message).msg_name.is_null() => {
                    put_address(&from, (*message).msg_name.cast(), &raw mut (*message).msg_namelen)?;
                }
                _ => (*message).msg_namelen = 0,
            }
            Ok(received.count)
        }))
    }
}

/// Receives.
///
/// # Safety
/// C ABI: as `read(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, data: *mut c_void, len: usize) -> isize {
    // SAFETY: as for `rrecv`.
    unsafe { rrecv(socket, data, len, 0) }
}

/// Receives into a list of buffers.
///
/// # Safety
/// C ABI: as `readv(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, list: *const iovec, entries: c_int) -> isize {
    let entries = usize::try_from(entries).map_err(|_| libc::EINVAL);
    // SAFETY: the caller passes a list of buffers.
    unsafe {
        match entries.and_then(|entries| buffers(list, entries)) {
            Ok(to) => count(receive_all(socket, to, 0).map(|received| received.count)),
            Err(errno) => count(Err(errno)),
        }
    }
}
