//! What adverb's libmlx5.so.1 asks of this library: doorbell records, raw WQEs among those that are being
//! built, and creation through functions instead of a context's table. Both are of one build, so these calls
//! may change with it; programs do not call them.

use crate::abi::*;
use crate::handle::code;
use crate::qp::Qp;
use crate::{cq_ex, host, qp, qp_ex};
use core::ffi::{c_int, c_void};

/// A queue pair's doorbell records, and a line behind them for a register that nobody reads.
///
/// # Safety
/// C ABI: a live queue pair, and a place for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_direct_doorbell(pair: *mut ibv_qp, record: *mut *mut c_void) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let id = unsafe { Qp::of(pair) }.id;
    code(host::doorbell_record(id).map(|addr| {
        // SAFETY: the caller passes a place for the address.
        unsafe { *record = addr as *mut c_void };
    }))
}

/// As `ibv_create_qp_ex(3)`, of an extended queue pair if that is asked for.
///
/// # Safety
/// C ABI: as for `ibv_create_qp_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_direct_create_qp(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    extended: c_int,
) -> *mut ibv_qp {
    // SAFETY: as the caller promises.
    unsafe {
        if extended != 0 { qp::create_extended_qp(context, init) } else { qp::create_qp_ex(context, init) }
    }
}

/// As `ibv_create_cq_ex(3)`.
///
/// # Safety
/// C ABI: as for `ibv_create_cq_ex(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_direct_create_cq(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: as the caller promises.
    unsafe { cq_ex::create_cq_ex(context, init) }
}

/// Words that libmlx5 keeps with an extended queue pair; NULL for a plain one.
///
/// # Safety
/// C ABI: a live queue pair, and a function that fills 16 words in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_direct_words(
    pair: *mut ibv_qp_ex,
    begin: unsafe extern "C" fn(*mut u64, *mut ibv_qp_ex),
) -> *mut u64 {
    // SAFETY: the caller passes a live queue pair.
    unsafe {
        if pair.is_null() || Qp::of(pair.cast()).builder.is_none() {
            return core::ptr::null_mut();
        }
        qp_ex::direct_words(pair, begin)
    }
}

/// Adds a raw WQE to those that are being built.
///
/// # Safety
/// C ABI: a live extended queue pair between `ibv_wr_start` and `ibv_wr_complete`, and a readable WQE that
/// is as long as its control segment says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_direct_wr(pair: *mut ibv_qp_ex, wqe: *const c_void) {
    // SAFETY: as the caller promises.
    unsafe { qp_ex::wr_built(pair, wqe) };
}
