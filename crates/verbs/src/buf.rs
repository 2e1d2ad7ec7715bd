//! Buffers that the library allocates (IBVERBS_1.17), and registration by attributes (IBVERBS_1.15). A device
//! that reaches all memory has no memory to prefer: a buffer is pages of the process.

use crate::abi::{ibv_mr, ibv_pd};
use crate::handle::{null, pointer_or_null};
use crate::mr::{self, Piece};
use crate::pd::Pd;
use core::ffi::{c_int, c_uint, c_void};

/// A buffer. Programs hold its address and look at nothing in it.
pub struct Buf {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
}

/// Allocates zeroed pages and stores their handle. NULL and errno where there is no memory, or none was asked
/// for.
///
/// # Safety
/// C ABI: see `ibv_alloc_buf(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut Buf) -> *mut c_void {
    if size == 0 {
        return null(libc::EINVAL);
    }
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which touches no other.
    let addr = unsafe { libc::mmap(core::ptr::null_mut(), size, rights, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        return core::ptr::null_mut();
    }
    // SAFETY: the caller passes a live domain, and a place for the handle.
    unsafe {
        Pd::of(pd).hold();
        *buf = Box::into_raw(Box::new(Buf { pd, addr, length: size }));
    }
    addr
}

/// Gives a buffer back. Its regions are to be deregistered before.
///
/// # Safety
/// C ABI: see `ibv_alloc_buf(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut Buf) {
    if buf.is_null() {
        return;
    }
    // SAFETY: `ibv_alloc_buf` made it, and the caller gives it up; its domain counted it until now.
    unsafe {
        let Buf { pd, addr, length } = *Box::from_raw(buf);
        libc::munmap(addr, length);
        Pd::of(pd).release();
    }
}

/// Registers a part of a buffer, with the domain that it was allocated with.
///
/// # Safety
/// C ABI: see `ibv_alloc_buf(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut Buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    if buf.is_null() {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller passes a live buffer.
    let whole = unsafe { &*buf };
    let start = (addr as usize).checked_sub(whole.addr as usize);
    let end = start.and_then(|start| start.checked_add(length));
    if pd != whole.pd || end.is_none_or(|end| end > whole.length) {
        return null(libc::EINVAL);
    }
    let piece = Piece { addr, length, iova: addr as u64, access: access as c_uint, dm: None };
    // SAFETY: the memory is the buffer's, which the caller keeps until it deregisters the region.
    pointer_or_null(unsafe { mr::register(pd, piece) })
}

const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 2;

/// `struct ibv_mr_init_attr` up to the fields that are read here.
#[repr(C)]
pub struct MrInitAttr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
}

/// Registers memory by attributes: an address, and another name for it if that is wanted. Memory behind a
/// descriptor, processing hints and buffers by their handle are EOPNOTSUPP.
///
/// # Safety
/// C ABI: see `ibv_reg_mr_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *const MrInitAttr) -> *mut ibv_mr {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    if attr.comp_mask & !(MASK_IOVA | MASK_ADDR) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & MASK_ADDR == 0 {
        return null(libc::EINVAL);
    }
    let iova = if attr.comp_mask & MASK_IOVA != 0 { attr.iova } else { attr.addr as u64 };
    let (addr, length, access) = (attr.addr, attr.length, attr.access as c_uint);
    // SAFETY: as the caller promises.
    pointer_or_null(unsafe { mr::register(pd, Piece { addr, length, iova, access, dm: None }) })
}
