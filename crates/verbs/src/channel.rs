//! Completion channels (IBTA 11.2.9, 11.4.2): where armed completion queues announce themselves.

use crate::abi::*;
use crate::cq::Cq;
use crate::event::EventQueue;
use crate::handle::{fail, handle, null, set_errno};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicI32, Ordering};

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    ibv: UnsafeCell<ibv_comp_channel>,
    events: EventQueue<Announced>,
}

handle!(Channel, ibv_comp_channel);

/// A completion queue that has something to say.
struct Announced(*mut ibv_cq);

// SAFETY: the queue is made for use by several threads, and leaves the channel before it is destroyed.
unsafe impl Send for Announced {}

impl Channel {
    fn users(&self) -> &AtomicI32 {
        // SAFETY: the counter is part of the live object, and all of this library's accesses to it are
        // atomic; programs have no business with it.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.ibv.get()).refcnt) }
    }

    /// Counts a completion queue that uses the channel.
    pub(crate) fn hold(&self) {
        self.users().fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back one `hold`.
    pub(crate) fn release(&self) {
        self.users().fetch_sub(1, Ordering::AcqRel);
    }

    /// Queues an event of a completion queue.
    pub(crate) fn announce(&self, cq: *mut ibv_cq) {
        self.events.push(Announced(cq));
    }

    /// Removes the events of a completion queue that nobody has taken.
    pub(crate) fn forget(&self, cq: *mut ibv_cq) {
        self.events.remove(|event| event.0 == cq);
    }
}

/// Creates a completion channel.
///
/// # Safety
/// C ABI: see `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    match EventQueue::new() {
        Ok(events) => {
            let ibv = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
            Channel { ibv: ibv.into(), events }.give()
        }
        Err(errno) => null(errno),
    }
}

/// Destroys a completion channel. EBUSY while completion queues use it.
///
/// # Safety
/// C ABI: see `ibv_destroy_comp_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller passes a live channel.
    if unsafe { Channel::of(channel) }.users().load(Ordering::Acquire) > 0 {
        return fail(libc::EBUSY);
    }
    // SAFETY: the caller gives it up.
    drop(unsafe { Channel::take(channel) });
    0
}

/// Waits for a completion event.
///
/// # Safety
/// C ABI: see `ibv_get_cq_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live channel.
    let queue = unsafe { Channel::of(channel) };
    let taken = queue.events.pop(|Announced(cq)| {
        // SAFETY: destroying a completion queue removes its events first, so it is alive.
        let (announced, context) = unsafe { (Cq::of(cq), (*cq).cq_context) };
        announced.comp_delivered.count();
        (cq, context)
    });
    match taken {
        Ok((found, context)) => {
            // SAFETY: the caller passes places for both.
            unsafe {
                *cq = found;
                *cq_context = context;
            }
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Acknowledges completion events.
///
/// # Safety
/// C ABI: see `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the caller passes a live queue, which cannot go before its events are acknowledged.
    unsafe { Cq::of(cq).comp_acks().acknowledge(count) };
}
