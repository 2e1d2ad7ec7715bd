//! Extended completion queues: the calls that walk over completions and read one field at a time.

use crate::abi::*;
use crate::cq::{Cq, CqInit, flags, immediate};
use crate::handle::{fail, null};
use crate::host;
use adverb_nic::Completion;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint};

/// What `read_*` can answer.
const SUPPORTED_WC_FLAGS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// The completion that an extended queue stands at.
pub(crate) struct Cursor {
    at: UnsafeCell<Option<Completion>>,
    /// Held from `start_poll` to `end_poll`, unless the program promised one thread.
    mutex: Option<UnsafeCell<libc::pthread_mutex_t>>,
}

impl Cursor {
    pub(crate) fn new(single_threaded: bool) -> Self {
        let mutex = (!single_threaded).then(|| crate::handle::MUTEX.into());
        Cursor { at: None.into(), mutex }
    }

    fn lock(&self) {
        if let Some(mutex) = &self.mutex {
            // SAFETY: an initialised mutex, which stays in place as long as the boxed queue.
            unsafe { libc::pthread_mutex_lock(mutex.get()) };
        }
    }

    fn unlock(&self) {
        if let Some(mutex) = &self.mutex {
            // SAFETY: locked by this thread in `start_poll`.
            unsafe { libc::pthread_mutex_unlock(mutex.get()) };
        }
    }
}

/// `ibv_create_cq_ex(3)`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    const KNOWN_MASK: u32 = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    const KNOWN_FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    // SAFETY: the caller passes valid attributes, of which the later fields only count if the mask
    // says so.
    let attr = unsafe { &*attr };
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    if attr.comp_mask & !KNOWN_MASK != 0 || flags & !KNOWN_FLAGS != 0 {
        return null(libc::EINVAL);
    }
    if attr.wc_flags & !SUPPORTED_WC_FLAGS != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let with_domain = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0;
    let init = CqInit {
        cqe: attr.cqe,
        cq_context: attr.cq_context,
        channel: attr.channel,
        comp_vector: attr.comp_vector,
        domain: if with_domain { attr.parent_domain } else { core::ptr::null_mut() },
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
        ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
    };
    // SAFETY: the caller passes an open context and live objects.
    match unsafe { Cq::create(context, &init) } {
        Ok(cq) => {
            let cq: *mut ibv_cq_ex = cq.cast();
            // SAFETY: the object was just created, and nobody else has it yet.
            unsafe { fill_calls(&mut *cq, attr.wc_flags as u32) };
            cq
        }
        Err(errno) => null(errno),
    }
}

fn fill_calls(cq: &mut ibv_cq_ex, wc_flags: u32) {
    let with = |flag: u32| wc_flags & flag != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    // The rest is there if it was asked for, so that a program which forgot to ask fails here as it
    // would on hardware.
    cq.read_byte_len = with(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = with(IBV_WC_EX_WITH_IMM).then_some(read_imm_data as _);
    cq.read_qp_num = with(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num as _);
    cq.read_src_qp = with(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp as _);
    cq.read_slid = with(IBV_WC_EX_WITH_SLID).then_some(read_slid as _);
    cq.read_sl = with(IBV_WC_EX_WITH_SL).then_some(read_sl as _);
    cq.read_dlid_path_bits = with(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits as _);
    cq.read_completion_ts = with(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts as _);
    cq.read_completion_wallclock_ns =
        with(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_wallclock_ns as _);
}

/// Steps to the next completion: 0, or ENOENT.
///
/// # Safety
/// A live extended queue whose cursor this thread holds.
unsafe fn step(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by the caller's promise.
    let queue = unsafe { Cq::of(cq.cast()) };
    let polled = host::poll(queue.id, 1, |_, completion| {
        // SAFETY: this thread holds the cursor; the two fields are public.
        unsafe {
            *queue.cursor.at.get() = Some(*completion);
            (*cq).wr_id = completion.wr_id;
            (*cq).status = completion.status as u32;
        }
    });
    match polled {
        Ok(0) => libc::ENOENT,
        Ok(_) => 0,
        Err(error) => fail(error.errno()),
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller passes NULL or valid attributes.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live extended queue.
    let cursor = unsafe { &Cq::of(cq.cast()).cursor };
    cursor.lock();
    // SAFETY: locked just now, or promised to be used by one thread.
    let result = unsafe { step(cq) };
    if result != 0 {
        cursor.unlock();
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller is between a `start_poll` that succeeded and `end_poll`.
    unsafe { step(cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller ends what its `start_poll` began.
    unsafe { &Cq::of(cq.cast()).cursor }.unlock();
}

/// Defines a `read_*` call.
macro_rules! reads {
    ($($name:ident -> $ty:ty: |$completion:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the caller is between `start_poll` and `end_poll`, so this thread holds the
            // cursor.
            match unsafe { &*Cq::of(cq.cast()).cursor.at.get() } {
                Some($completion) => $value,
                None => 0,
            }
        }
    )*};
}

reads! {
    read_opcode -> u32: |c| c.op as u32;
    read_vendor_err -> u32: |c| c.vendor;
    read_byte_len -> u32: |c| c.byte_len;
    read_imm_data -> u32: |c| immediate(c);
    read_qp_num -> u32: |c| c.qp.get();
    read_src_qp -> u32: |c| c.src_qp.get();
    read_wc_flags -> c_uint: |c| flags(c);
    read_slid -> u32: |_c| 0;
    read_sl -> u8: |c| c.sl;
    read_dlid_path_bits -> u8: |_c| 0;
    read_completion_ts -> u64: |c| c.timestamp_ns;
    read_wallclock_ns -> u64: |c| host::wallclock_ns(c.timestamp_ns);
}
