//! Memory windows (IBTA 11.2.8.9 to 11.2.8.12).

use crate::abi::*;
use crate::context::{Context, Resource};
use crate::handle::{fail, handle, null};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::{host, post};
use adverb_nic::{Access, MwId, MwType, SendData, SendOp, SendWr};
use adverb_wire::Key;
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// A memory window.
#[repr(C)]
pub(crate) struct Mw {
    ibv: UnsafeCell<ibv_mw>,
    /// The NIC's window.
    pub(crate) id: MwId,
}

handle!(Mw, ibv_mw);

/// `ibv_alloc_mw(3)`.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    // SAFETY: the caller passes a live domain.
    let domain = unsafe { Pd::of(pd) };
    let kind = match mw_type {
        IBV_MW_TYPE_1 => MwType::One,
        IBV_MW_TYPE_2 => MwType::Two,
        _ => return null(libc::EINVAL),
    };
    match host::memory(|memory| memory.alloc_mw(domain.id, kind)) {
        Ok(info) => {
            domain.hold();
            let context = domain.context();
            // SAFETY: the context outlives its objects.
            unsafe { Context::of(context) }.add(Resource::Mw(info.id));
            let handle = info.id.index() as u32;
            let ibv = ibv_mw { context, pd, rkey: info.rkey.0, handle, r#type: mw_type };
            Mw { ibv: ibv.into(), id: info.id }.give()
        }
        Err(errno) => null(errno),
    }
}

/// `ibv_dealloc_mw(3)`.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller passes a live window.
    let window = unsafe { Mw::of(mw) };
    match host::memory(|memory| memory.dealloc_mw(window.id)) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => return fail(errno),
    }
    host::settle_windows();
    // SAFETY: context and domain outlive the window; the caller gives the window up.
    unsafe {
        Context::of((*mw).context).remove(&Resource::Mw(window.id));
        Pd::of((*mw).pd).release();
        drop(Mw::take(mw));
    }
    0
}

/// The next key of a window: the low byte counts up (`ibv_inc_rkey`).
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | (rkey.wrapping_add(1) & 0xff)
}

/// A bind as a send operation.
///
/// # Safety
/// The window is alive, and the region is alive or NULL.
pub(crate) unsafe fn bind_op(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendOp, c_int> {
    // A window only grants remote rights; that the program itself may write is the region's matter, and
    // callers who repeat it here are served.
    let access = Access::from_verbs(info.mw_access_flags).map_err(|error| error.errno())?;
    let access = access.difference(Access::LOCAL_WRITE);
    // SAFETY: by the caller's promise.
    let (window, lkey) =
        unsafe { (Mw::of(mw).id, if info.mr.is_null() { 0 } else { Mr::of(info.mr).lkey() }) };
    Ok(SendOp::BindMw {
        mw: window,
        rkey: Key(rkey),
        lkey: Key(lkey),
        addr: info.addr,
        len: info.length,
        access,
    })
}

/// The bind of a work request in C's list, if it is one that can be posted.
///
/// # Safety
/// The request is valid.
unsafe fn listed_bind(wr: &ibv_send_wr) -> Option<SendOp> {
    // SAFETY: by the caller's promise; a bind without a window will be refused.
    unsafe {
        let bind = wr.opcode == IBV_WR_BIND_MW && !wr.bind_mw.mw.is_null();
        bind.then(|| bind_op(wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info).ok()).flatten()
    }
}

/// Tells StaR's registries of the windows that a list of work requests is to bind: the first of them that was
/// refused, or NULL, and why.
///
/// # Safety
/// The list is valid.
pub(crate) unsafe fn grant_listed(queue: &Qp, wr: *mut ibv_send_wr) -> (*mut ibv_send_wr, c_int) {
    let mut at = if host::has_registry() { wr } else { core::ptr::null_mut() };
    // SAFETY: by the caller's promise.
    while let Some(request) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        let bind = unsafe { listed_bind(request) };
        if let Err((_, errno)) = host::grant_binds(queue.id, bind.iter()) {
            return (at, errno);
        }
        at = request.next;
    }
    (at, 0)
}

/// From one on, the requests up to another one, or to the end, were not posted.
///
/// # Safety
/// The list is valid.
pub(crate) unsafe fn retract_listed(queue: &Qp, from: *mut ibv_send_wr, to: *mut ibv_send_wr) {
    let mut at = if host::has_registry() { from } else { core::ptr::null_mut() };
    // SAFETY: by the caller's promise.
    while let Some(request) = unsafe { at.as_ref() }.filter(|_| at != to) {
        // SAFETY: as above.
        host::retract_binds(queue.id, unsafe { listed_bind(request) }.iter());
        at = request.next;
    }
}

/// `ibv_bind_mw(3)`, type 1: posts the bind, and names the new key at once.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller passes live objects and a valid request.
    let (queue, bind, rkey) = unsafe { (Qp::of(qp), &*bind, next_key((*mw).rkey)) };
    // SAFETY: as above.
    let op = match unsafe { bind_op(mw, rkey, &bind.bind_info) } {
        Ok(op) => op,
        Err(errno) => return fail(errno),
    };
    let Some(flags) = post::send_flags(bind.send_flags & !IBV_SEND_INLINE) else { return fail(libc::EINVAL) };
    let wr = SendWr { wr_id: bind.wr_id, op, flags, data: SendData::Sges(&[]), ud: None, xrc_srqn: 0 };
    if let Err((_, errno)) = host::grant_binds(queue.id, core::iter::once(&op)) {
        return fail(errno);
    }
    if let Err(error) = host::post(|nic, now| nic.post_send(now, queue.id, &wr)) {
        host::retract_binds(queue.id, core::iter::once(&op));
        return fail(error.errno());
    }
    // SAFETY: a public field of the live window.
    unsafe { (*mw).rkey = rkey };
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_counts_up_in_its_low_byte_only() {
        assert_eq!(super::next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(super::next_key(0x1234_5601), 0x1234_5602);
    }
}
