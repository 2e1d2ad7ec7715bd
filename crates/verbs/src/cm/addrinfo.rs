//! `rdma_getaddrinfo`: names to addresses, by the C library's own resolver.

use crate::abi::*;
use crate::cm::done;
use core::ffi::{c_char, c_int, c_void};

/// What the caller's hints come to.
struct Wanted {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
}

/// Port space and queue pair type follow from each other.
fn wanted(hints: Option<&rdma_addrinfo>) -> Wanted {
    let of = |field: fn(&rdma_addrinfo) -> c_int| hints.map_or(0, field);
    let (mut port_space, mut qp_type) = (of(|h| h.ai_port_space), of(|h| h.ai_qp_type));
    if port_space == 0 {
        port_space = if qp_type == IBV_QPT_UD as c_int { RDMA_PS_UDP } else { RDMA_PS_TCP } as c_int;
    }
    if qp_type == 0 {
        let datagram = port_space == RDMA_PS_UDP as c_int || port_space == RDMA_PS_IPOIB as c_int;
        qp_type = if datagram { IBV_QPT_UD } else { IBV_QPT_RC } as c_int;
    }
    Wanted { flags: of(|h| h.ai_flags), family: of(|h| h.ai_family), qp_type, port_space }
}

/// A copy of an address that `rdma_freeaddrinfo` frees; NULL where there is none or no memory.
///
/// # Safety
/// `from` has `length` bytes.
unsafe fn copy(from: *const libc::sockaddr, length: libc::socklen_t) -> *mut libc::sockaddr {
    if from.is_null() || length == 0 {
        return core::ptr::null_mut();
    }
    // SAFETY: by the caller's promise; the copy has as many bytes.
    unsafe {
        let to = libc::malloc(length as usize);
        if !to.is_null() {
            core::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), length as usize);
        }
        to.cast()
    }
}

/// An error of the C library's resolver as an errno.
fn errno_of(error: c_int) -> c_int {
    match error {
        libc::EAI_SYSTEM => crate::handle::errno(),
        libc::EAI_MEMORY => libc::ENOMEM,
        libc::EAI_AGAIN => libc::EAGAIN,
        libc::EAI_NONAME => libc::ENODATA,
        _ => libc::EINVAL,
    }
}

/// Asks the C library.
///
/// # Safety
/// The names are C strings or NULL.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    wanted: &Wanted,
) -> Result<*mut libc::addrinfo, c_int> {
    // SAFETY: integers and pointers; the caller passes C strings or NULL.
    unsafe {
        let mut hints: libc::addrinfo = core::mem::zeroed();
        let has = |bit: u32| wanted.flags as u32 & bit != 0;
        if has(RAI_PASSIVE) {
            hints.ai_flags |= libc::AI_PASSIVE;
        }
        if has(RAI_NUMERICHOST) {
            hints.ai_flags |= libc::AI_NUMERICHOST;
        }
        hints.ai_family = if has(RAI_FAMILY) { wanted.family } else { libc::AF_UNSPEC };
        hints.ai_socktype =
            if wanted.qp_type == IBV_QPT_UD as c_int { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
        let mut found = core::ptr::null_mut();
        match libc::getaddrinfo(node, service, &hints, &mut found) {
            0 => Ok(found),
            error => Err(errno_of(error)),
        }
    }
}

/// Address and service to what `rdma_create_ep` takes.
///
/// # Safety
/// As for `rdma_getaddrinfo`.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo, c_int> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(libc::EINVAL);
    }
    let wanted = wanted(hints);
    // SAFETY: integers and pointers.
    let mut info: rdma_addrinfo = unsafe { core::mem::zeroed() };
    info.ai_flags = wanted.flags;
    info.ai_family = wanted.family;
    info.ai_qp_type = wanted.qp_type;
    info.ai_port_space = wanted.port_space;
    let passive = wanted.flags as u32 & RAI_PASSIVE != 0;
    // SAFETY: the caller passes C strings or NULL, and hints whose addresses are as long as they say.
    unsafe {
        if !node.is_null() || !service.is_null() {
            let found = resolve(node, service, &wanted)?;
            let (address, length) = (copy((*found).ai_addr, (*found).ai_addrlen), (*found).ai_addrlen);
            info.ai_family = (*found).ai_family;
            libc::freeaddrinfo(found);
            if passive {
                (info.ai_src_addr, info.ai_src_len) = (address, length);
            } else {
                (info.ai_dst_addr, info.ai_dst_len) = (address, length);
            }
        }
        if let Some(hints) = hints {
            if info.ai_src_addr.is_null() && hints.ai_src_len > 0 {
                info.ai_src_addr = copy(hints.ai_src_addr, hints.ai_src_len);
                info.ai_src_len = hints.ai_src_len;
            }
            if info.ai_dst_addr.is_null() && hints.ai_dst_len > 0 {
                info.ai_dst_addr = copy(hints.ai_dst_addr, hints.ai_dst_len);
                info.ai_dst_len = hints.ai_dst_len;
            }
        }
        let lost = |address: *mut libc::sockaddr, length| address.is_null() && length > 0;
        let info = Box::into_raw(Box::new(info));
        if lost((*info).ai_src_addr, (*info).ai_src_len) || lost((*info).ai_dst_addr, (*info).ai_dst_len) {
            rdma_freeaddrinfo(info);
            return Err(libc::ENOMEM);
        }
        Ok(info)
    }
}

/// Resolves a name and a service.
///
/// # Safety
/// C ABI: see `rdma_getaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    info: *mut *mut rdma_addrinfo,
) -> c_int {
    if info.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes C strings, valid hints or NULL, and a place for the answer.
    done(unsafe { look_up(node, service, hints.as_ref()).map(|found| *info = found) })
}

/// Frees what `rdma_getaddrinfo` gave.
///
/// # Safety
/// C ABI: see `rdma_getaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: `look_up` boxed it and copied its addresses with malloc; the caller gives it up.
        unsafe {
            let this = Box::from_raw(next);
            next = this.ai_next;
            for memory in [this.ai_src_addr.cast::<c_void>(), this.ai_dst_addr.cast()] {
                libc::free(memory);
            }
        }
    }
}
