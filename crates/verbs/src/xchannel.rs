//! `adverb/xchannel.h`: what C programs need beyond verbs for queues whose work requests order each other
//! (CORE-Direct's WAIT and ENABLE), and for work requests that are changed in memory. The header says what
//! each call does.

use crate::abi::*;
use crate::cq::Cq;
use crate::handle::code;
use crate::host;
use crate::qp::Qp;
use adverb_nic::{CqId, QpFlags, QpType};
use core::ffi::{c_int, c_void};

/// Work queue elements, in the mlx5 layout.
const SEGMENT: usize = 16;
const OP_WAIT: u8 = 0x0f;
const OP_RECV_ENABLE: u8 = 0x16;
const OP_SEND_ENABLE: u8 = 0x17;
/// The control segment's flag for a completion.
const CQ_UPDATE: u8 = 2 << 2;

/// What `adverb_sq_info` tells.
#[repr(C)]
pub struct AdverbSqInfo {
    buf: *mut c_void,
    blocks: u32,
    next: u32,
}

/// What the flags of `ibv_create_qp_ex` ask for: the numbers are those of OFED's interface and the kernel.
/// The NIC says which of them go with which queue pairs. `Err` is errno.
pub(crate) fn creation(flags: u32) -> Result<QpFlags, c_int> {
    let flags = QpFlags::from_bits(flags).ok_or(libc::EOPNOTSUPP)?;
    if flags.contains(QpFlags::MANAGED_SEND) && !flags.contains(QpFlags::CROSS_CHANNEL) {
        return Err(libc::EINVAL);
    }
    Ok(flags)
}

/// A WAIT or ENABLE for the queue with this number.
fn ordering(qp: &Qp, op: u8, index: u32, number: u32) -> [u8; 2 * SEGMENT] {
    let mut wqe = [0; 2 * SEGMENT];
    wqe[3] = op;
    wqe[4..7].copy_from_slice(&qp.number().to_be_bytes()[1..]);
    wqe[7] = 2;
    wqe[11] = if qp.signals_all { CQ_UPDATE } else { 0 };
    wqe[24..28].copy_from_slice(&index.to_be_bytes());
    wqe[28..32].copy_from_slice(&number.to_be_bytes());
    wqe
}

/// Posts a WQE that stands complete.
fn post(qp: &Qp, wqe: &[u8], wr_id: u64) -> c_int {
    let posted = host::post(|nic, now| nic.post_built(now, qp.id, wqe, wr_id));
    code(posted.map(|_| ()).map_err(|error| error.errno()))
}

/// The number by which a WAIT names a completion queue.
pub(crate) fn cq_number(id: CqId) -> u32 {
    id.index() as u32
}

/// Posts a WAIT.
///
/// # Safety
/// C ABI: a live queue pair and a live completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_post_wait(qp: *mut ibv_qp, cq: *mut ibv_cq, index: u32) -> c_int {
    // SAFETY: the caller passes live objects.
    let (qp, cq) = unsafe { (Qp::of(qp), Cq::of(cq)) };
    if !qp.may_order() {
        return code(Err(libc::EINVAL));
    }
    post(qp, &ordering(qp, OP_WAIT, index, cq_number(cq.id)), 0)
}

/// Posts an ENABLE of a queue of `target` that was created with `flag`.
fn enable(qp: &Qp, target: &Qp, flag: QpFlags, op: u8, index: u32) -> c_int {
    if !qp.may_order() || !target.create_flags.contains(flag) || qp.pd != target.pd {
        return code(Err(libc::EINVAL));
    }
    post(qp, &ordering(qp, op, index, target.number()), 0)
}

/// Posts an ENABLE of a managed send queue.
///
/// # Safety
/// C ABI: live queue pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_post_enable(qp: *mut ibv_qp, target: *mut ibv_qp, index: u32) -> c_int {
    // SAFETY: the caller passes live objects.
    let (qp, target) = unsafe { (Qp::of(qp), Qp::of(target)) };
    enable(qp, target, QpFlags::MANAGED_SEND, OP_SEND_ENABLE, index)
}

/// Posts an ENABLE of a managed receive queue.
///
/// # Safety
/// C ABI: live queue pairs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_post_recv_enable(qp: *mut ibv_qp, target: *mut ibv_qp, index: u32) -> c_int {
    // SAFETY: the caller passes live objects.
    let (qp, target) = unsafe { (Qp::of(qp), Qp::of(target)) };
    enable(qp, target, QpFlags::MANAGED_RECV, OP_RECV_ENABLE, index)
}

/// Posts a WQE that the program has built.
///
/// # Safety
/// C ABI: a live queue pair, and a readable WQE that is as long as its control segment says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_post_wqe(qp: *mut ibv_qp, wqe: *const c_void, wr_id: u64) -> c_int {
    // SAFETY: by the caller's promise the control segment is readable, and all the segments that it counts.
    let (qp, wqe) = unsafe { (Qp::of(qp), built(wqe)) };
    post(qp, wqe, wr_id)
}

/// The bytes of a WQE that a program has built.
///
/// # Safety
/// The WQE is readable and as long as its control segment says, at least that segment.
pub(crate) unsafe fn built<'a>(wqe: *const c_void) -> &'a [u8] {
    // SAFETY: by the caller's promise.
    unsafe {
        let segments = usize::from(*wqe.cast::<u8>().add(7) & 0x3f).max(1);
        core::slice::from_raw_parts(wqe.cast(), segments * SEGMENT)
    }
}

/// Where a send queue's WQEs are.
///
/// # Safety
/// C ABI: a live queue pair, and a place for the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_sq_info(qp: *mut ibv_qp, info: *mut AdverbSqInfo) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let qp = unsafe { Qp::of(qp) };
    code(send_queue(qp).map(|found| {
        // SAFETY: the caller passes a place for the answer.
        unsafe { *info = found };
    }))
}

fn send_queue(qp: &Qp) -> Result<AdverbSqInfo, c_int> {
    if qp.kind == QpType::XrcRecv {
        return Err(libc::EINVAL);
    }
    host::control(|nic| {
        let memory = nic.send_queue_memory(qp.id)?;
        let (addr, blocks) = (memory.addr(), (memory.len() / 64) as u32);
        Ok(AdverbSqInfo { buf: addr as *mut c_void, blocks, next: nic.next_block(qp.id)? })
    })
}

/// Rings the doorbell of a send queue whose WQEs were written into its memory.
///
/// # Safety
/// C ABI: a live queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_ring(qp: *mut ibv_qp, next: u32) -> c_int {
    // SAFETY: the caller passes a live queue pair.
    let id = unsafe { Qp::of(qp) }.id;
    let rung = host::post(|nic, now| nic.on_doorbell(now, id, next));
    code(rung.map_err(|error| error.errno()))
}

/// The number by which a WAIT names a completion queue.
///
/// # Safety
/// C ABI: a live completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_cq_number(cq: *mut ibv_cq) -> u32 {
    // SAFETY: the caller passes a live completion queue.
    cq_number(unsafe { Cq::of(cq) }.id)
}

/// Completions that a queue has got in all.
///
/// # Safety
/// C ABI: a live completion queue, and a place for the count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_cq_produced(cq: *mut ibv_cq, count: *mut u64) -> c_int {
    // SAFETY: the caller passes a live completion queue.
    let id = unsafe { Cq::of(cq) }.id;
    code(host::control(|nic| nic.cq_produced(id)).map(|produced| {
        // SAFETY: the caller passes a place for the count.
        unsafe { *count = produced };
    }))
}

/// Lets a completion queue go on counting when it is full.
///
/// # Safety
/// C ABI: a live completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_cq_ignore_overrun(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller passes a live completion queue.
    let id = unsafe { Cq::of(cq) }.id;
    code(host::control(|nic| nic.ignore_overrun(id)))
}

/// The flags that a queue pair was created with.
///
/// # Safety
/// C ABI: a live queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_qp_flags(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the caller passes a live queue pair.
    unsafe { Qp::of(qp) }.create_flags.bits()
}

/// Two words of the program's own, kept with a queue pair.
///
/// # Safety
/// C ABI: a live queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_qp_words(qp: *mut ibv_qp) -> *mut u64 {
    // SAFETY: the caller passes a live queue pair.
    unsafe { Qp::of(qp) }.words.get().cast()
}

/// Two words of the program's own, kept with a completion queue.
///
/// # Safety
/// C ABI: a live completion queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn adverb_cq_words(cq: *mut ibv_cq) -> *mut u64 {
    // SAFETY: the caller passes a live completion queue.
    unsafe { Cq::of(cq) }.words.get().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_go_together() {
        assert_eq!(creation(0), Ok(QpFlags::empty()));
        assert_eq!(creation(1 << 2), Ok(QpFlags::CROSS_CHANNEL));
        assert_eq!(creation(1 << 2 | 1 << 3), Ok(QpFlags::CROSS_CHANNEL | QpFlags::MANAGED_SEND));
        assert_eq!(creation(1 << 4 | 1 << 7), Ok(QpFlags::MANAGED_RECV | QpFlags::IGNORE_RQ_OVERFLOW));
        assert_eq!(creation(1 << 3), Err(libc::EINVAL));
        assert_eq!(creation(1 << 1), Err(libc::EOPNOTSUPP));
        assert_eq!(creation(1 << 8), Err(libc::EOPNOTSUPP));
    }
}
