//! A completion queue, and the channel that says when something came.

use crate::abi::*;
use crate::channel::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event,
};
use crate::cq::{ibv_create_cq, ibv_destroy_cq, poll_cq, req_notify_cq};
use crate::handle::errno;
use core::ffi::c_int;
use core::ptr::null_mut;

/// Completions looked at in one call.
pub(super) const BATCH: usize = 32;

/// A queue with a channel of its own.
pub(super) struct Completions {
    events: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
}

impl Completions {
    /// Makes both.
    ///
    /// # Safety
    /// The context is open, and stays so until this is dropped; queue pairs that use it go before.
    pub(super) unsafe fn new(context: *mut ibv_context, entries: u32) -> Result<Completions, c_int> {
        // SAFETY: by the caller's promise; the channel was made just now.
        unsafe {
            let events = ibv_create_comp_channel(context);
            if events.is_null() {
                return Err(errno());
            }
            // From here on, what was made goes when this does.
            let mut made = Completions { events, cq: null_mut() };
            libc::fcntl((*events).fd, libc::F_SETFL, libc::O_NONBLOCK);
            made.cq = ibv_create_cq(context, entries as c_int, null_mut(), events, 0);
            if made.cq.is_null() { Err(errno()) } else { Ok(made) }
        }
    }

    /// The queue, for queue pairs.
    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// The descriptor that says that a completion came.
    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel is alive until this is dropped.
        unsafe { (*self.events).fd }
    }

    /// Takes what has come, as much of it as there is room for.
    pub(super) fn poll<'a>(&self, room: &'a mut [ibv_wc; BATCH]) -> Result<&'a [ibv_wc], c_int> {
        // SAFETY: the queue is alive, and has room for that many.
        let polled = unsafe { poll_cq(self.cq, BATCH as c_int, room.as_mut_ptr()) };
        usize::try_from(polled).map(|count| &room[..count]).map_err(|_| libc::EIO)
    }

    /// Has the next completion announced; what came before is not.
    pub(super) fn arm(&self) -> Result<(), c_int> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel and the queue are alive; the descriptor does not block.
        unsafe {
            while ibv_get_cq_event(self.events, &mut cq, &mut context) == 0 {
                ibv_ack_cq_events(cq, 1);
            }
            if req_notify_cq(self.cq, 0) != 0 { Err(libc::EIO) } else { Ok(()) }
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: both are this one's own, and nobody uses them any more.
        unsafe {
            if !self.cq.is_null() {
                ibv_destroy_cq(self.cq);
            }
            ibv_destroy_comp_channel(self.events);
        }
    }
}

/// Room for a batch.
pub(super) fn room() -> [ibv_wc; BATCH] {
    // SAFETY: integers.
    unsafe { core::mem::zeroed() }
}
