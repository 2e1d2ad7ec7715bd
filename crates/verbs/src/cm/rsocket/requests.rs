//! Requests for connections, and the sockets that accept them.

use super::link::{Link, Parts};
use super::socket::{Phase, Socket, State, channel, outcome, parameters, private_data};
use super::wire::Connect;
use crate::abi::*;
use crate::cm::channel::{rdma_ack_cm_event, rdma_destroy_event_channel, rdma_get_cm_event};
use crate::cm::connect::rdma_accept;
use crate::cm::id::{migrate, rdma_destroy_id};
use core::ffi::c_int;
use core::ptr::null_mut;
use std::sync::Arc;

impl Socket {
    /// Takes a request; `Err` is errno, EAGAIN if there is none.
    pub(super) fn accept(&self, state: &mut State) -> Result<Arc<Socket>, c_int> {
        if state.phase != Phase::Listening {
            return Err(libc::EINVAL);
        }
        loop {
            let mut event = null_mut();
            // SAFETY: a live channel and a place for the event.
            outcome(unsafe { rdma_get_cm_event(state.channel, &mut event) })?;
            // SAFETY: the event was got just now; a request's identifier is this one's from here on.
            unsafe {
                let request = (*event).event == RDMA_CM_EVENT_CONNECT_REQUEST;
                let id = (*event).id;
                let peer = Connect::parse(private_data(event));
                rdma_ack_cm_event(event);
                if !request {
                    // Of a request that its peer has given up: it goes when it is taken.
                    continue;
                }
                // A request that is refused is none.
                if let Ok(peer) = peer
                    && let Ok(socket) = accept(id, &peer, state)
                {
                    return Ok(socket);
                }
                rdma_destroy_id(id);
            }
        }
    }
}

/// Accepts a request on a socket of its own. Where that fails, the caller destroys the identifier.
///
/// # Safety
/// The identifier is a request's, which the caller gives up on success.
unsafe fn accept(id: *mut rdma_cm_id, peer: &Connect, listener: &State) -> Result<Arc<Socket>, c_int> {
    let channel = channel()?;
    // SAFETY: by the caller's promise; both are alive.
    let made = unsafe {
        (|| {
            migrate(id, channel)?;
            let parts = Parts::new(id, listener.settings)?;
            let own = parts.connect().emit();
            let link = Link::new(parts, peer, false);
            outcome(rdma_accept(id, &mut parameters(&own)))?;
            Ok(link)
        })()
    };
    match made {
        Ok(link) => {
            let socket = Socket::add(id, channel, listener.domain, listener.settings, Phase::Accepted);
            socket.lock().link = Some(link);
            Ok(socket)
        }
        Err(errno) => {
            // The identifier goes with a channel that lives: back to the listener's.
            // SAFETY: all three are alive; nobody else has the new channel.
            unsafe {
                if migrate(id, listener.channel).is_ok() {
                    rdma_destroy_event_channel(channel);
                }
            }
            Err(errno)
        }
    }
}
