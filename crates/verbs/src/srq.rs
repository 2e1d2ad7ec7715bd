//! Shared receive queues (IBTA 11.2.6), basic and XRC.

use crate::abi::*;
use crate::context::{AsyncEvent, Context, Resource};
use crate::cq::Cq;
use crate::event::{AckCount, Delivered};
use crate::handle::{COND, MUTEX, code, fail, handle, null, pointer_or_null};
use crate::pd::Pd;
use crate::xrcd::Xrcd;
use crate::{host, tables};
use adverb_nic::{CqId, SrqId, SrqInit, XrcdId};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    ibv: UnsafeCell<ibv_srq>,
    /// The NIC's queue.
    pub(crate) id: SrqId,
    pub(crate) async_delivered: Delivered,
}

handle!(Srq, ibv_srq);

impl Srq {
    /// Tells the context about an asynchronous event.
    pub(crate) fn raise(&self, event_type: u32) {
        let ibv = self.ibv.get();
        let event = ibv_async_event { element: ibv.cast(), event_type };
        // SAFETY: the context outlives the queue.
        unsafe { Context::of((*ibv).context) }.events.push(AsyncEvent(event));
    }

    /// The count of acknowledged asynchronous events.
    pub(crate) fn async_acks(&self) -> AckCount {
        let ibv = self.ibv.get();
        // SAFETY: field addresses of the live object.
        unsafe {
            AckCount {
                mutex: &raw mut (*ibv).mutex,
                cond: &raw mut (*ibv).cond,
                completed: &raw mut (*ibv).events_completed,
            }
        }
    }
}

/// Creates the NIC's queue and the object; writes back the sizes given.
///
/// # Safety
/// `context` is open and `pd` is alive.
unsafe fn create(
    context: *mut ibv_context,
    srq_context: *mut c_void,
    pd: *mut ibv_pd,
    attr: &mut ibv_srq_attr,
    xrc: Option<(XrcdId, CqId)>,
) -> Result<*mut ibv_srq, c_int> {
    // SAFETY: by the caller's promise.
    let domain = unsafe { Pd::of(pd) };
    let init = SrqInit { pd: domain.id, max_wr: attr.max_wr, max_sge: attr.max_sge, xrc };
    let limit = attr.srq_limit;
    let (id, given) = host::control(|nic| {
        let id = nic.create_srq(&init)?;
        if limit != 0
            && let Err(error) = nic.modify_srq(id, None, Some(limit))
        {
            nic.destroy_srq(id)?;
            return Err(error);
        }
        Ok((id, nic.query_srq(id)?))
    })?;
    attr.max_wr = given.max_wr;
    attr.max_sge = given.max_sge;
    domain.hold();
    // SAFETY: by the caller's promise.
    unsafe { Context::of(context) }.add(Resource::Srq(id));
    let ibv = ibv_srq {
        context,
        srq_context,
        pd,
        handle: id.index() as u32,
        mutex: MUTEX,
        cond: COND,
        events_completed: 0,
    };
    let srq = Srq { ibv: ibv.into(), id, async_delivered: Delivered::default() }.give();
    tables::add_srq(id, srq);
    Ok(srq)
}

/// Creates a shared receive queue.
///
/// # Safety
/// C ABI: see `ibv_create_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller passes a live domain and valid attributes.
    pointer_or_null(unsafe { create(Pd::of(pd).context(), (*init).srq_context, pd, &mut (*init).attr, None) })
}

/// `ibv_create_srq_ex(3)`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const KNOWN: u32 =
        IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    // SAFETY: the caller passes valid attributes, of which those count that the mask names.
    let init = unsafe { &mut *init };
    let has = |bits: u32| init.comp_mask & bits == bits;
    if init.comp_mask & !KNOWN != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    if !has(IBV_SRQ_INIT_ATTR_PD) {
        return null(libc::EINVAL);
    }
    let xrc = match srq_type {
        IBV_SRQT_BASIC => None,
        IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) => {
            // SAFETY: the caller passes live objects.
            Some(unsafe { (Xrcd::of(init.xrcd).id, Cq::of(init.cq).id) })
        }
        IBV_SRQT_XRC => return null(libc::EINVAL),
        _ => return null(libc::EOPNOTSUPP),
    };
    // SAFETY: the caller passes an open context and a live domain.
    pointer_or_null(unsafe { create(context, init.srq_context, init.pd, &mut init.attr, xrc) })
}

/// Changes the size or the limit.
///
/// # Safety
/// C ABI: see `ibv_modify_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    let mask = mask as u32;
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller passes a live queue and valid attributes.
    let (queue, attr) = unsafe { (Srq::of(srq), &*attr) };
    let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
    let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
    code(host::control(|nic| nic.modify_srq(queue.id, max_wr, limit)))
}

/// Sizes and limit.
///
/// # Safety
/// C ABI: see `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Srq::of(srq) };
    code(host::control(|nic| nic.query_srq(queue.id)).map(|found| {
        let out = ibv_srq_attr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit };
        // SAFETY: the caller passes a place for the attributes.
        unsafe { *attr = out };
    }))
}

/// `ibv_get_srq_num(3)`.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Srq::of(srq) };
    code(host::control(|nic| nic.srq_number(queue.id)).map(|found| {
        // SAFETY: the caller passes a place for the number.
        unsafe { *number = found };
    }))
}

/// Destroys a shared receive queue, after its events have been acknowledged. EBUSY while queue pairs
/// use it.
///
/// # Safety
/// C ABI: see `ibv_destroy_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the caller passes a live queue.
    let queue = unsafe { Srq::of(srq) };
    match host::control(|nic| nic.destroy_srq(queue.id)) {
        Ok(()) | Err(libc::ENOENT) => {}
        Err(errno) => return fail(errno),
    }
    tables::remove_srq(queue.id);
    // SAFETY: context and domain outlive the queue; the caller gives the queue up.
    unsafe {
        let context = Context::of((*srq).context);
        context.remove(&Resource::Srq(queue.id));
        context.events.remove(|event| event.is_about(srq.cast()));
        queue.async_acks().wait(queue.async_delivered.total());
        Pd::of((*srq).pd).release();
        drop(Srq::take(srq));
    }
    0
}
