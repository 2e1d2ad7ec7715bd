//! Event channels: queues of what happened to identifiers, behind a descriptor.

use crate::abi::*;
use crate::cm::event::{Event, deliver};
use crate::cm::id::Id;
use crate::cm::registry::IdPointer;
use crate::cm::{device, done};
use crate::event::EventQueue;
use crate::handle::{handle, null, pointer_or_null};
use adverb_nic::cm::What;
use core::cell::UnsafeCell;
use core::ffi::c_int;

/// An event channel.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<rdma_event_channel>,
    pub(super) queue: EventQueue<Waiting>,
}

handle!(Channel, rdma_event_channel);

/// An event that no program has got yet.
pub(super) struct Waiting {
    /// What it is about; of a request, the new identifier.
    pub(super) owner: IdPointer,
    /// Of a request, who got it.
    pub(super) listener: Option<IdPointer>,
    pub(super) told: Told,
}

impl Waiting {
    /// The identifier that must see it acknowledged before it goes.
    pub(super) fn counted(&self) -> IdPointer {
        self.listener.unwrap_or(self.owner)
    }
}

/// What happened.
#[allow(clippy::large_enum_variant, reason = "few wait at a time")]
pub(super) enum Told {
    /// Found out on this side: an event's number and its status.
    Local(u32, c_int),
    /// A multicast group was joined.
    Joined(rdma_ud_param),
    /// Written by a program: an event's number, its status, its argument.
    Written(u32, c_int, u64),
    /// By the connection manager.
    Cm(What),
}

// SAFETY: the pointer in `rdma_ud_param` is the program's own, which is only handed back to it.
unsafe impl Send for Told {}

impl Channel {
    /// An empty channel; `Err` is errno.
    pub(super) fn create() -> Result<*mut rdma_event_channel, c_int> {
        let queue = EventQueue::new()?;
        Ok(Channel { c: rdma_event_channel { fd: queue.fd() }.into(), queue }.give())
    }

    /// Waits for the next event, or not, as the descriptor says; `Err` is errno.
    ///
    /// # Safety
    /// The identifiers of the channel are alive, but for those that are being destroyed.
    pub(super) unsafe fn next(&self) -> Result<*mut rdma_cm_event, c_int> {
        loop {
            let waiting = self.queue.pop(|waiting| {
                // SAFETY: destroying an identifier removes its events from the queue first.
                unsafe { Id::of(waiting.counted().0) }.acks.delivered();
                waiting
            })?;
            let counted = waiting.counted();
            // SAFETY: its destruction waits for the acknowledgement of the event.
            match unsafe { deliver(waiting) } {
                Some(event) => return Ok(event),
                // SAFETY: as above.
                None => unsafe { Id::of(counted.0) }.acks.acknowledged(),
            }
        }
    }
}

/// Creates an event channel. ENODEV where there is no device.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    if let Err(errno) = device() {
        return null(errno);
    }
    pointer_or_null(Channel::create())
}

/// Destroys an event channel; its identifiers must have gone.
///
/// # Safety
/// C ABI: see `rdma_destroy_event_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller gives it up.
    drop(unsafe { Channel::take(channel) });
}

/// Waits for an event.
///
/// # Safety
/// C ABI: see `rdma_get_cm_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live channel and a place for the event.
    done(unsafe { Channel::of(channel).next() }.map(|next| unsafe { *event = next }))
}

/// Acknowledges an event, which frees it.
///
/// # Safety
/// C ABI: see `rdma_ack_cm_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes an event that it got and gives it up; the identifier that counts it waits for
    // that.
    unsafe {
        let counted = Event::take(event).counted;
        Id::of(counted.0).acks.acknowledged();
    }
    0
}
