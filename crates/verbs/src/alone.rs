//! Fork support: nothing to do, since registered memory is not pinned, and the NIC notices a fork.

use crate::abi::IBV_FORK_UNNEEDED;
use core::ffi::{c_int, c_void};

/// Makes fork safe: it is.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Whether fork support was asked for: it is not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> u32 {
    IBV_FORK_UNNEEDED
}

/// Keeps a range from a child: not needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Undoes `ibv_dontfork_range`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
