//! A `libmlx5.so.1` of our own, for programs that write mlx5's work queue elements through the direct verbs
//! (`mlx5dv`). It holds no NIC: what it knows it asks of adverb's `libibverbs.so.1`. `adverb run --mlx5dv`
//! puts it into a program's path, and nothing else does: programs that find mlx5 change their transport.
//!
//! Send queues are what this is for: where their WQEs are, a doorbell record, raw WQEs among posted ones.
//! Receive queues and completion queues are in no layout of mlx5's, so they have no buffers here, only a
//! completion queue's number, which a WAIT names. [`refused`] has the rest.

mod abi;
mod refused;

use abi::*;
use core::arch::global_asm;
use core::ffi::{c_int, c_void};

/// Words that libibverbs keeps for this library with an extended queue pair.
const _: () = assert!(size_of::<Direct>() <= 16 * 8);

/// What lies in them.
#[repr(C)]
struct Direct {
    /// What the program sees.
    ex: mlx5dv_qp_ex,
    qp: *mut ibv_qp_ex,
}

fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    core::ptr::null_mut()
}

/// Whether a device has direct verbs: every device of adverb's.
#[unsafe(no_mangle)]
pub extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    !device.is_null()
}

/// Opens a device, without DevX.
///
/// # Safety
/// C ABI: a device, and valid attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_open_device(
    device: *mut ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ibv_context {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    if attr.flags != 0 || attr.comp_mask != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller passes a device.
    unsafe { ibv_open_device(device) }
}

/// Capabilities: those that a plain adapter of mlx5 has to have. `comp_mask` says that none of the optional
/// fields is filled in.
///
/// # Safety
/// C ABI: an open context, and a place for the attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_query_device(_context: *mut ibv_context, out: *mut mlx5dv_context) -> c_int {
    // SAFETY: the caller passes a place for the attributes, of which older programs know these fields.
    unsafe {
        (*out).version = 0;
        (*out).flags = 0;
        (*out).comp_mask = 0;
    }
    0
}

/// What the program asks to know about a queue pair, a completion queue or both.
///
/// # Safety
/// C ABI: the object and the place that the type names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, kind: u64) -> c_int {
    if kind & !(MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) != 0 {
        return refused::unsupported();
    }
    // SAFETY: the caller passes what the type names.
    unsafe {
        let obj = &*obj;
        if kind & MLX5DV_OBJ_QP != 0 {
            let error = queue_pair(obj.qp_in, obj.qp_out);
            if error != 0 {
                return error;
            }
        }
        if kind & MLX5DV_OBJ_CQ != 0 {
            let number = adverb_cq_number(obj.cq_in);
            let out = mlx5dv_cq { cqn: number, comp_mask: 0, ..core::mem::zeroed() };
            *obj.cq_out = out;
        }
    }
    0
}

// The form of programs that were linked in 2017: the same call.
global_asm!(
    ".text",
    ".globl adverb_mlx5_init_obj_1_0",
    ".type adverb_mlx5_init_obj_1_0, @function",
    "adverb_mlx5_init_obj_1_0:",
    #[cfg(target_arch = "x86_64")]
    "jmp {target}",
    #[cfg(target_arch = "aarch64")]
    "b {target}",
    ".symver adverb_mlx5_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0",
    target = sym init_obj,
);

/// The call behind both versions' names.
unsafe extern "C" fn init_obj(obj: *mut mlx5dv_obj, kind: u64) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { mlx5dv_init_obj(obj, kind) }
}

/// A queue pair's send queue, its doorbell record, and a register that may be written and does nothing: the
/// record says all. Optional fields that are asked for are not there.
///
/// # Safety
/// A live queue pair, and a place for the answer.
unsafe fn queue_pair(qp: *mut ibv_qp, out: *mut mlx5dv_qp) -> c_int {
    let mut queue = adverb_sq_info { buf: core::ptr::null_mut(), blocks: 0, next: 0 };
    let mut record = core::ptr::null_mut();
    // SAFETY: by the caller's promise; the places are local.
    let error = unsafe {
        let error = adverb_sq_info(qp, &mut queue);
        if error == 0 { adverb_direct_doorbell(qp, &mut record) } else { error }
    };
    if error != 0 {
        return error;
    }
    let sq = mlx5dv_ring { buf: queue.buf, wqe_cnt: queue.blocks, stride: 64 };
    // Two records of 4 bytes, and behind them the register on a line of its own. SAFETY: libibverbs gives
    // two lines; the caller passes a place, of which older programs know these fields.
    unsafe {
        (*out).dbrec = record.cast();
        (*out).sq = sq;
        (*out).rq = mlx5dv_ring { buf: core::ptr::null_mut(), wqe_cnt: 0, stride: 0 };
        (*out).bf = mlx5dv_register { reg: record.byte_add(64), size: 0 };
        (*out).comp_mask = 0;
    }
    0
}

/// Creates a queue pair; `RAW_WQE` is the only operation beyond the plain ones.
///
/// # Safety
/// C ABI: an open context, valid attributes, and valid attributes of mlx5's or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_qp(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    own: *mut mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    let mut raw = false;
    if !own.is_null() {
        // SAFETY: the caller passes valid attributes, of which those count that the mask names.
        let own = unsafe { &*own };
        const KNOWN: u64 = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS;
        let has = |bit: u64| own.comp_mask & bit != 0;
        let flags = if has(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS) { own.create_flags } else { 0 };
        let ops = if has(MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS) { own.send_ops_flags } else { 0 };
        // Where a message's bytes are put is the NIC's affair: both hints are met.
        let unknown_flags = flags & !(MLX5DV_QP_CREATE_SCATTER_TO_CQE_HINTS) != 0;
        if own.comp_mask & !KNOWN != 0 || unknown_flags || ops & !MLX5DV_QP_EX_WITH_RAW_WQE != 0 {
            return null(libc::EOPNOTSUPP);
        }
        raw = ops != 0;
    }
    // SAFETY: as the caller promises.
    unsafe { adverb_direct_create_qp(context, init, raw.into()) }
}

/// Creates a completion queue; nothing of mlx5's own is offered.
///
/// # Safety
/// C ABI: an open context, valid attributes, and valid attributes of mlx5's or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_create_cq(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    own: *mut mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes valid attributes or NULL.
    if !own.is_null() && unsafe { (*own).comp_mask } != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: as the caller promises.
    unsafe { adverb_direct_create_cq(context, init) }
}

/// The direct calls of an extended queue pair.
///
/// # Safety
/// C ABI: a live extended queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    // SAFETY: the caller passes a live queue pair; the words are room for a `Direct`, and stay where they
    // are.
    unsafe { adverb_direct_words(qp, begin).cast() }
}

/// Fills the words in, once.
unsafe extern "C" fn begin(words: *mut u64, qp: *mut ibv_qp_ex) {
    // SAFETY: libibverbs passes 16 words, all 0, which nobody else knows yet. A pointer to a function that is
    // not offered stays NULL.
    unsafe {
        let direct = words.cast::<Direct>();
        (*direct).ex.wr_raw_wqe = Some(wr_raw_wqe);
        (*direct).qp = qp;
    }
}

/// Adds a WQE to those being built.
unsafe extern "C" fn wr_raw_wqe(ex: *mut mlx5dv_qp_ex, wqe: *const c_void) {
    // SAFETY: the caller passes what `mlx5dv_qp_ex_from_ibv_qp_ex` gave, between `ibv_wr_start` and
    // `ibv_wr_complete`, and a WQE as long as it says.
    unsafe { adverb_direct_wr(ex.cast::<Direct>().read().qp, wqe) };
}
