//! Calls of C that send and receive.

use super::calls::{Side, give_address};
use super::link::Pieces;
use super::socket::{Phase, Socket, State, of};
use crate::handle::set_errno;
use core::ffi::{c_int, c_void};
use libc::{iovec, msghdr, sockaddr, socklen_t};

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

/// One buffer.
fn buffer(at: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: at.cast_mut(), iov_len: len }]
}

/// A list of buffers.
///
/// # Safety
/// It has that many entries.
unsafe fn buffers<'a>(list: *const iovec, entries: usize) -> Result<&'a [iovec], c_int> {
    match entries {
        0 => Ok(&[]),
        _ if entries > BUFFERS_MAX => Err(libc::EMSGSIZE),
        // SAFETY: by the caller's promise.
        _ => Ok(unsafe { core::slice::from_raw_parts(list, entries) }),
    }
}

/// As [`send`], of a program's buffers.
///
/// # Safety
/// They can be read.
unsafe fn send_all(socket: c_int, from: &[iovec], flags: c_int) -> isize {
    // SAFETY: by the caller's promise.
    count(of(socket).and_then(|socket| send(&socket, unsafe { Pieces::new(from) }?, flags, None)))
}

/// As [`receive`], into a program's buffers.
///
/// # Safety
/// They can be written.
unsafe fn receive_all(socket: c_int, to: &[iovec], flags: c_int) -> isize {
    // SAFETY: by the caller's promise.
    count(of(socket).and_then(|socket| receive(&socket, unsafe { Pieces::new(to) }?, flags)))
}

/// Sends.
///
/// # Safety
/// C ABI: as `send(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(socket: c_int, data: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller passes a buffer and its length.
    unsafe { send_all(socket, &buffer(data, len), flags) }
}

/// Sends on a connected socket. EISCONN with an address.
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
    if !address.is_null() || length != 0 {
        return count(Err(libc::EISCONN));
    }
    // SAFETY: as for `rsend`.
    unsafe { rsend(socket, data, len, flags) }
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
        match buffers(message.msg_iov, message.msg_iovlen) {
            Ok(from) => send_all(socket, from, flags),
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
            Ok(from) => send_all(socket, from, 0),
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
    unsafe { receive_all(socket, &buffer(data, len), flags) }
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
    // SAFETY: as for `rrecv`.
    let received = unsafe { rrecv(socket, data, len, flags) };
    if received > 0 && !address.is_null() {
        // SAFETY: the caller passes a place for the address, and its length.
        let given = of(socket).and_then(|of| unsafe { give_address(&of, Side::Peer, address, length) });
        if let Err(errno) = given {
            return count(Err(errno));
        }
    }
    received
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
        match buffers((*message).msg_iov, (*message).msg_iovlen) {
            Ok(to) => {
                let received = receive_all(socket, to, flags);
                if received >= 0 {
                    // Streams have neither.
                    (*message).msg_controllen = 0;
                    (*message).msg_flags = 0;
                }
                received
            }
            Err(errno) => count(Err(errno)),
        }
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
            Ok(to) => receive_all(socket, to, 0),
            Err(errno) => count(Err(errno)),
        }
    }
}
