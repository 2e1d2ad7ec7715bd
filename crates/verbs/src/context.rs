//! Opening and closing the device: a context, its operation tables, and what it owns.

use crate::abi::*;
use crate::device::Device;
use crate::event::{EventQueue, lock};
use crate::handle::{MUTEX, null};
use crate::{cq, cq_ex, dm, host, import, mr, mw, pd, post, qp, query, rate, srq, tables, xrcd};
use adverb_nic::{CqId, MrId, MwId, PdId, QpId, SrqId, XrcdId};
use adverb_wire::Key;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// Completion vectors: all completion events come from one NIC in one process, so one is honest.
const COMP_VECTORS: c_int = 1;

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    verbs: UnsafeCell<verbs_context>,
    /// Asynchronous events on their way to `ibv_get_async_event`.
    pub(crate) events: EventQueue<AsyncEvent>,
    /// Objects of the NIC that live in this context, in the order in which closing destroys them.
    resources: Mutex<BTreeSet<Resource>>,
    /// The descriptor that stands in for the kernel's command channel.
    cmd_fd: c_int,
}

/// An object of the NIC. The order is that of destruction: users before what they use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Qp(QpId),
    Srq(SrqId),
    Mw(MwId),
    /// With its key for peers.
    Mr(MrId, u32),
    Cq(CqId),
    /// A domain may be open several times; the address tells the handles apart.
    Xrcd(XrcdId, usize),
    Pd(PdId),
}

/// An asynchronous event and the object that it is about.
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent(pub(crate) ibv_async_event);

impl AsyncEvent {
    /// Whether the event is about this object.
    pub(crate) fn is_about(&self, object: *mut c_void) -> bool {
        self.0.element == object
    }
}

// SAFETY: the pointer names an object that all threads may use; destroying the object removes its
// events first.
unsafe impl Send for AsyncEvent {}

impl Context {
    /// The context behind a C pointer.
    ///
    /// # Safety
    /// `context` came from `ibv_open_device` and has not been closed.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: every context of this library is the last field of the `verbs_context` with which a
        // `Context` begins.
        unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() }
    }

    fn as_c(&self) -> *mut ibv_context {
        // SAFETY: stays within the object.
        unsafe { self.verbs.get().byte_add(offset_of!(verbs_context, context)).cast() }
    }

    /// Notes an object of this context.
    pub(crate) fn add(&self, resource: Resource) {
        lock(&self.resources).insert(resource);
    }

    /// Forgets an object of this context.
    pub(crate) fn remove(&self, resource: &Resource) {
        lock(&self.resources).remove(resource);
    }
}

fn context_ops() -> ibv_context_ops {
    // SAFETY: every field is an optional function or an unused pointer; zero is valid for all.
    let mut ops: ibv_context_ops = unsafe { core::mem::zeroed() };
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops
}

/// Operations that this NIC does not offer stay NULL: the inline calls of `verbs.h` then answer
/// EOPNOTSUPP by themselves.
fn verbs_ops(context: ibv_context) -> verbs_context {
    // SAFETY: every field but the last is an optional function, a pointer or an integer.
    let mut verbs: verbs_context = unsafe { core::mem::zeroed() };
    verbs.query_port = Some(query::query_port);
    verbs.advise_mr = Some(mr::advise_mr);
    verbs.reg_dm_mr = Some(dm::reg_dm_mr);
    verbs.alloc_dm = Some(dm::alloc_dm);
    verbs.free_dm = Some(dm::free_dm);
    verbs.modify_qp_rate_limit = Some(rate::modify_qp_rate_limit);
    verbs.alloc_parent_domain = Some(pd::alloc_parent_domain);
    verbs.dealloc_td = Some(pd::dealloc_td);
    verbs.alloc_td = Some(pd::alloc_td);
    verbs.modify_cq = Some(cq::modify_cq);
    verbs.query_rt_values = Some(query::query_rt_values);
    verbs.create_cq_ex = Some(cq_ex::create_cq_ex);
    verbs.query_device_ex = Some(query::query_device_ex);
    verbs.open_qp = Some(qp::open_qp);
    verbs.create_qp_ex = Some(qp::create_qp_ex);
    verbs.get_srq_num = Some(srq::get_srq_num);
    verbs.create_srq_ex = Some(srq::create_srq_ex);
    verbs.open_xrcd = Some(xrcd::open_xrcd);
    verbs.close_xrcd = Some(xrcd::close_xrcd);
    verbs.sz = size_of::<verbs_context>();
    verbs.context = context;
    verbs
}

/// Opens a device.
///
/// # Safety
/// C ABI: see `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: a C string; plain system call.
    let cmd_fd = unsafe { libc::memfd_create(c"adverb".as_ptr(), libc::MFD_CLOEXEC) };
    if cmd_fd < 0 {
        return null(crate::handle::errno());
    }
    open(device, cmd_fd).unwrap_or_else(|errno| {
        // SAFETY: created just now.
        unsafe { libc::close(cmd_fd) };
        null(errno)
    })
}

/// A new context of a device. Its command descriptor is a file of its own whose identity stands for the
/// context (`ibv_import_device`); the context takes it over unless opening fails.
pub(crate) fn open(device: *mut ibv_device, cmd_fd: c_int) -> Result<*mut ibv_context, c_int> {
    host::open()?;
    let events = EventQueue::new()?;
    let verbs = verbs_ops(ibv_context {
        device,
        ops: context_ops(),
        cmd_fd,
        async_fd: events.fd(),
        num_comp_vectors: COMP_VECTORS,
        mutex: MUTEX,
        abi_compat: usize::MAX as *mut c_void,
    });
    let context = Context { verbs: verbs.into(), events, resources: Mutex::new(BTreeSet::new()), cmd_fd };
    import::offer_context(cmd_fd, device);
    Ok(Box::leak(Box::new(context)).as_c())
}

/// Closes a context. What the program left alive in it is destroyed, as a kernel would.
///
/// # Safety
/// C ABI: see `ibv_close_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller passes an open context and gives it up; `ibv_open_device` boxed it.
    let context = unsafe { Box::from_raw(core::ptr::from_ref(Context::of(context)).cast_mut()) };
    let left = core::mem::take(&mut *lock(&context.resources));
    for resource in left {
        // A failure means that another context's objects still use this one; they keep it.
        let _ = match resource {
            Resource::Qp(id) => {
                tables::forget_qp(id);
                host::destroy_qp(id)
            }
            Resource::Srq(id) => {
                tables::remove_srq(id);
                host::control(|nic| nic.destroy_srq(id))
            }
            Resource::Mw(id) => host::memory(|memory| memory.dealloc_mw(id)),
            Resource::Mr(id, key) => {
                import::withdraw_mr(id);
                host::withdraw(Key(key));
                host::memory(|memory| memory.dereg_mr(id))
            }
            Resource::Cq(id) => {
                tables::remove_cq(id);
                host::control(|nic| nic.destroy_cq(id))
            }
            Resource::Xrcd(id, _) => xrcd::release(id),
            Resource::Pd(id) => {
                import::withdraw_pd(id);
                host::memory(|memory| memory.dealloc_pd(id))
            }
        };
    }
    import::withdraw_context(context.cmd_fd);
    // SAFETY: the descriptor is this context's own.
    unsafe { libc::close(context.cmd_fd) };
    0
}

/// Waits for an asynchronous event.
///
/// # Safety
/// C ABI: see `ibv_get_async_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller passes an open context.
    let owner = unsafe { Context::of(context) };
    let taken = owner.events.pop(|AsyncEvent(taken)| {
        // SAFETY: destroying an object removes its events from the queue first, so it is alive.
        unsafe { count_delivered(&taken) };
        taken
    });
    match taken {
        Ok(taken) => {
            // SAFETY: the caller passes a place for the event.
            unsafe { *event = taken };
            0
        }
        Err(errno) => {
            crate::handle::set_errno(errno);
            -1
        }
    }
}

/// Counts an event that its object's destruction must see acknowledged.
///
/// # Safety
/// The event's object is alive.
unsafe fn count_delivered(event: &ibv_async_event) {
    // SAFETY: the type says which object it is; it is alive by the caller's promise.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => cq::Cq::of(event.element.cast()).async_delivered.count(),
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                qp::Qp::of(event.element.cast()).async_delivered.count();
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                srq::Srq::of(event.element.cast()).async_delivered.count();
            }
            _ => {}
        }
    }
}

/// Acknowledges an asynchronous event.
///
/// # Safety
/// C ABI: see `ibv_ack_async_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes an event that it got, so its object is alive until this returns.
    unsafe {
        let event = *event;
        match event.event_type {
            IBV_EVENT_CQ_ERR => cq::Cq::of(event.element.cast()).async_acks().acknowledge(1),
            IBV_EVENT_QP_FATAL..=IBV_EVENT_PATH_MIG_ERR | IBV_EVENT_QP_LAST_WQE_REACHED => {
                qp::Qp::of(event.element.cast()).async_acks().acknowledge(1);
            }
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                srq::Srq::of(event.element.cast()).async_acks().acknowledge(1);
            }
            _ => {}
        }
    }
}

/// The device that a context was opened on.
///
/// # Safety
/// `context` is open.
pub(crate) unsafe fn device_of<'a>(context: *mut ibv_context) -> &'a Device {
    // SAFETY: the field is written once, before the context is given to C; devices live for ever.
    unsafe { Device::of((*context).device) }
}
