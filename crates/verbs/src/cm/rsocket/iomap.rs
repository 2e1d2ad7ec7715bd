//! Memory that a peer writes to by offsets (`riomap`, `riowrite`).

use super::bytes::{count, send};
use super::link::Pieces;
use super::socket::of;
use crate::cm::done;
use crate::handle::set_errno;
use core::ffi::{c_int, c_void};
use libc::{iovec, off_t};

/// Lets the peer write to a buffer, from `offset` on, or from the buffer's own address on if that is -1. It
/// knows by the time it gets bytes that are sent afterwards.
///
/// # Safety
/// C ABI: see `rsocket(7)`. The buffer stays mapped until `riounmap`, or the socket's end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    len: usize,
    rights: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = (|| {
        let socket = of(socket)?;
        if buffer.is_null() || len == 0 || flags != 0 || offset < -1 {
            return Err(libc::EINVAL);
        }
        // PROT_NONE registers memory for sends without a copy, which are not offered.
        if rights != libc::PROT_WRITE {
            return Err(libc::EOPNOTSUPP);
        }
        let addr = buffer.expose_provenance() as u64;
        let offset = if offset == -1 { addr } else { offset as u64 };
        let mut state = socket.lock();
        state.advance();
        let link = state.link.as_mut().ok_or(libc::ENOTCONN)?;
        // SAFETY: the caller shares the buffer.
        unsafe { link.map(addr, len, offset) }.map(|()| offset as off_t)
    })();
    mapped.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Takes a buffer back.
#[unsafe(no_mangle)]
pub extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, len: usize) -> c_int {
    done((|| {
        let socket = of(socket)?;
        let mut state = socket.lock();
        state.link.as_mut().ok_or(libc::ENOTCONN)?.unmap(buffer.addr() as u64, len)
    })())
}

/// Writes to memory that the peer has mapped. EINVAL where it has mapped nothing.
///
/// # Safety
/// C ABI: see `rsocket(7)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    data: *const c_void,
    len: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let from = [iovec { iov_base: data.cast_mut(), iov_len: len }];
    let written = (|| {
        let socket = of(socket)?;
        let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
        // SAFETY: the caller passes a buffer and its length.
        send(&socket, unsafe { Pieces::new(&from) }?, flags, Some(offset))
    })();
    count(written) as usize
}
