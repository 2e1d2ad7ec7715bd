//! The `@IBVERBS_1.0` forms of the calls whose structs changed in 2007. A program that old finds every
//! name, and the device list of its version is empty, so that it stops with its own "no device" message
//! instead of meeting structs that it does not know.
//!
//! A version can only be given to a symbol in the object that defines it, and which of a crate's
//! objects holds a function is the compiler's choice; so these are two trampolines that are defined
//! here, in assembly, beside their version names.

use core::arch::global_asm;
use core::ffi::{c_int, c_void};

/// What a 1.0 call that returns a pointer returns.
#[unsafe(no_mangle)]
extern "C" fn adverb_verbs_compat_absent() -> *mut c_void {
    crate::set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// What a 1.0 call that returns an error number returns.
#[unsafe(no_mangle)]
extern "C" fn adverb_verbs_compat_refused() -> c_int {
    crate::handle::fail(libc::EOPNOTSUPP)
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}

/// A trampoline with one version. Each version has a symbol of its own, because assemblers before
/// binutils 2.35 allow one `.symver` per symbol.
macro_rules! version {
    ($target:literal, $name:literal, $node:literal) => {
        concat!(
            ".globl adverb_v10_",
            $name,
            "\n",
            ".type adverb_v10_",
            $name,
            ", @function\n",
            "adverb_v10_",
            $name,
            ":\n",
            jump!(),
            " adverb_verbs_compat_",
            $target,
            "\n",
            ".symver adverb_v10_",
            $name,
            ", ",
            $name,
            "@",
            $node,
            "\n",
        )
    };
}

global_asm!(
    ".text",
    version!("refused", "ibv_ack_async_event", "IBVERBS_1.0"),
    version!("refused", "ibv_ack_cq_events", "IBVERBS_1.0"),
    version!("absent", "ibv_alloc_pd", "IBVERBS_1.0"),
    version!("refused", "ibv_attach_mcast", "IBVERBS_1.0"),
    version!("refused", "ibv_close_device", "IBVERBS_1.0"),
    version!("absent", "ibv_create_ah", "IBVERBS_1.0"),
    version!("absent", "ibv_create_cq", "IBVERBS_1.0"),
    version!("absent", "ibv_create_qp", "IBVERBS_1.0"),
    version!("absent", "ibv_create_srq", "IBVERBS_1.0"),
    version!("refused", "ibv_dealloc_pd", "IBVERBS_1.0"),
    version!("refused", "ibv_dereg_mr", "IBVERBS_1.0"),
    version!("refused", "ibv_destroy_ah", "IBVERBS_1.0"),
    version!("refused", "ibv_destroy_cq", "IBVERBS_1.0"),
    version!("refused", "ibv_destroy_qp", "IBVERBS_1.0"),
    version!("refused", "ibv_destroy_srq", "IBVERBS_1.0"),
    version!("refused", "ibv_detach_mcast", "IBVERBS_1.0"),
    version!("refused", "ibv_free_device_list", "IBVERBS_1.0"),
    version!("refused", "ibv_get_async_event", "IBVERBS_1.0"),
    version!("refused", "ibv_get_cq_event", "IBVERBS_1.0"),
    version!("absent", "ibv_get_device_guid", "IBVERBS_1.0"),
    version!("absent", "ibv_get_device_list", "IBVERBS_1.0"),
    version!("absent", "ibv_get_device_name", "IBVERBS_1.0"),
    version!("refused", "ibv_modify_qp", "IBVERBS_1.0"),
    version!("refused", "ibv_modify_srq", "IBVERBS_1.0"),
    version!("absent", "ibv_open_device", "IBVERBS_1.0"),
    version!("refused", "ibv_query_device", "IBVERBS_1.0"),
    version!("refused", "ibv_query_gid", "IBVERBS_1.0"),
    version!("refused", "ibv_query_pkey", "IBVERBS_1.0"),
    version!("refused", "ibv_query_port", "IBVERBS_1.0"),
    version!("refused", "ibv_query_qp", "IBVERBS_1.0"),
    version!("refused", "ibv_query_srq", "IBVERBS_1.0"),
    version!("absent", "ibv_reg_mr", "IBVERBS_1.0"),
    version!("refused", "ibv_resize_cq", "IBVERBS_1.0"),
    version!("refused", "ibv_register_driver", "IBVERBS_1.1"),
);
