//! The structs and numbers of `infiniband/mlx5dv.h` that the calls here read or write, and the calls of
//! libibverbs.so.1 that stand behind them. The names are C's.
#![allow(non_camel_case_types, reason = "names of the C header")]
#![allow(missing_docs, reason = "the C header's")]

use core::ffi::{c_int, c_void};

pub const MLX5DV_OBJ_QP: u64 = 1 << 0;
pub const MLX5DV_OBJ_CQ: u64 = 1 << 1;
pub const MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS: u64 = 1 << 0;
pub const MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS: u64 = 1 << 2;
pub const MLX5DV_QP_CREATE_SCATTER_TO_CQE_HINTS: u32 = 1 << 3 | 1 << 4;
pub const MLX5DV_QP_EX_WITH_RAW_WQE: u64 = 1 << 3;

/// A type that only pointers name.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

opaque! {
    ibv_device ibv_context ibv_qp ibv_qp_ex ibv_cq ibv_cq_ex ibv_qp_init_attr_ex ibv_cq_init_attr_ex
}

/// Optional fields follow, which are not written.
#[repr(C)]
pub struct mlx5dv_context {
    pub version: u8,
    pub flags: u64,
    pub comp_mask: u64,
}

#[repr(C)]
pub struct mlx5dv_context_attr {
    pub flags: u32,
    pub comp_mask: u64,
}

#[repr(C)]
pub struct mlx5dv_ring {
    pub buf: *mut c_void,
    pub wqe_cnt: u32,
    pub stride: u32,
}

#[repr(C)]
pub struct mlx5dv_register {
    pub reg: *mut c_void,
    pub size: u32,
}

/// Optional fields follow, which are not written.
#[repr(C)]
pub struct mlx5dv_qp {
    pub dbrec: *mut u32,
    pub sq: mlx5dv_ring,
    pub rq: mlx5dv_ring,
    pub bf: mlx5dv_register,
    pub comp_mask: u64,
}

#[repr(C)]
pub struct mlx5dv_cq {
    pub buf: *mut c_void,
    pub dbrec: *mut u32,
    pub cqe_cnt: u32,
    pub cqe_size: u32,
    pub cq_uar: *mut c_void,
    pub cqn: u32,
    pub comp_mask: u64,
}

/// Places of other types follow, which are not offered.
#[repr(C)]
pub struct mlx5dv_obj {
    pub qp_in: *mut ibv_qp,
    pub qp_out: *mut mlx5dv_qp,
    pub cq_in: *mut ibv_cq,
    pub cq_out: *mut mlx5dv_cq,
}

/// The fields up to the last one that is looked at; one that is skipped is a union of 8 bytes and its kind.
#[repr(C)]
pub struct mlx5dv_qp_init_attr {
    pub comp_mask: u64,
    pub create_flags: u32,
    pub dc_init_attr: [u64; 2],
    pub send_ops_flags: u64,
}

#[repr(C)]
pub struct mlx5dv_cq_init_attr {
    pub comp_mask: u64,
}

/// Calls that are not offered are NULL.
#[repr(C)]
pub struct mlx5dv_qp_ex {
    pub comp_mask: u64,
    pub before: [Option<unsafe extern "C" fn()>; 8],
    pub wr_raw_wqe: Option<unsafe extern "C" fn(*mut mlx5dv_qp_ex, *const c_void)>,
    pub behind: [Option<unsafe extern "C" fn()>; 3],
}

#[repr(C)]
pub struct adverb_sq_info {
    pub buf: *mut c_void,
    pub blocks: u32,
    pub next: u32,
}

unsafe extern "C" {
    pub fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub fn adverb_sq_info(qp: *mut ibv_qp, info: *mut adverb_sq_info) -> c_int;
    pub fn adverb_cq_number(cq: *mut ibv_cq) -> u32;
    pub fn adverb_direct_doorbell(qp: *mut ibv_qp, record: *mut *mut c_void) -> c_int;
    pub fn adverb_direct_create_qp(
        context: *mut ibv_context,
        init: *mut ibv_qp_init_attr_ex,
        extended: c_int,
    ) -> *mut ibv_qp;
    pub fn adverb_direct_create_cq(
        context: *mut ibv_context,
        init: *mut ibv_cq_init_attr_ex,
    ) -> *mut ibv_cq_ex;
    pub fn adverb_direct_words(
        qp: *mut ibv_qp_ex,
        begin: unsafe extern "C" fn(*mut u64, *mut ibv_qp_ex),
    ) -> *mut u64;
    pub fn adverb_direct_wr(qp: *mut ibv_qp_ex, wqe: *const c_void);
}
