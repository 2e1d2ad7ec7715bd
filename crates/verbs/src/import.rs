//! Calls that stand alone: imports of another process's objects (not offered: they need a kernel that
//! holds the object), translations of kernel structs (there is no kernel), and fork support (nothing
//! to do: registered memory is not pinned, and the NIC notices a fork).

use crate::abi::*;
use crate::handle::null;
use core::ffi::{c_int, c_void};

/// Imports a context: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    null(libc::EOPNOTSUPP)
}

/// Imports a protection domain: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    null(libc::EOPNOTSUPP)
}

/// Imports a memory region: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

/// Imports device memory: not offered.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    null(libc::EOPNOTSUPP)
}

/// Nothing was imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

/// Nothing was imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

/// Nothing was imported.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

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

macro_rules! kernel_structs {
    ($($name:ident,)*) => {$(
        #[doc = "Translates between a kernel's struct and a program's; no kernel struct ever comes here, \
                 and the destination stays as it is."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_to: *mut c_void, _from: *mut c_void) {}
    )*};
}

kernel_structs! {
    ibv_copy_ah_attr_from_kern,
    ibv_copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern,
}
