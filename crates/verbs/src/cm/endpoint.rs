//! Identifiers with everything in one call: `rdma_create_ep`, and requests as such a listener gets them.

use crate::abi::*;
use crate::cm::address::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::cm::id::{self, Id};
use crate::cm::{done, queue_pair};
use crate::handle::errno;
use core::ffi::c_int;

/// How long `rdma_create_ep` lets a peer's address be looked for, in milliseconds.
const RESOLVE_MS: c_int = 2000;

/// What the queue pairs of a listener's new identifiers are created with.
#[derive(Clone, Copy)]
pub(super) struct Template {
    pd: *mut ibv_pd,
    init: ibv_qp_init_attr,
}

// SAFETY: the program's own objects, which are made for use by several threads.
unsafe impl Send for Template {}

/// -1 with errno to a result.
fn outcome(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// Makes what a new identifier is to have.
///
/// # Safety
/// As for `rdma_create_ep`.
unsafe fn furnish(
    c: *mut rdma_cm_id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    unsafe {
        if info.ai_flags as u32 & RAI_PASSIVE != 0 {
            outcome(rdma_bind_addr(c, info.ai_src_addr))?;
            if !init.is_null() {
                Id::of(c).state().template = Some(Template { pd, init: *init });
            }
            return Ok(());
        }
        outcome(rdma_resolve_addr(c, info.ai_src_addr, info.ai_dst_addr, RESOLVE_MS))?;
        outcome(rdma_resolve_route(c, RESOLVE_MS))?;
        if !init.is_null() {
            (*init).qp_type = (*c).qp_type;
            queue_pair::create_plain(c, pd, &mut *init)?;
        }
    }
    Ok(())
}

/// Creates an identifier whose calls wait: a listener's bound, a client's with its path and queue pair.
///
/// # Safety
/// C ABI: see `rdma_create_ep(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || info.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a place for the identifier, valid addresses and attributes, live objects or
    // NULL.
    unsafe {
        let info = &*info;
        let null = core::ptr::null_mut();
        let made = super::device().and_then(|_| {
            id::create(null, null.cast(), info.ai_port_space as u32, Some(info.ai_qp_type as u32))
        });
        done(made.and_then(|c| {
            furnish(c, info, pd, init).inspect_err(|_| id::destroy(c))?;
            *id = c;
            Ok(())
        }))
    }
}

/// Destroys an identifier and the queue pair and shared receive queue that it has.
///
/// # Safety
/// C ABI: see `rdma_create_ep(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    if id.is_null() {
        return;
    }
    // SAFETY: the caller passes a live identifier and gives it up.
    unsafe {
        queue_pair::rdma_destroy_qp(id);
        queue_pair::rdma_destroy_srq(id);
        id::destroy(id);
    }
}

/// Waits for a request of a listener whose calls wait.
///
/// # Safety
/// The listener is alive.
unsafe fn get_request(listener: &Id) -> Result<*mut rdma_cm_id, c_int> {
    if !listener.is_sync() {
        return Err(libc::EINVAL);
    }
    // SAFETY: by the caller's promise; the event's identifiers are alive until it is acknowledged.
    unsafe {
        let c = listener.as_c();
        let before = core::mem::replace(&mut (*c).event, core::ptr::null_mut());
        if !before.is_null() {
            super::channel::rdma_ack_cm_event(before);
        }
        let event = super::channel::Channel::of((*c).channel).next()?;
        if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
            super::channel::rdma_ack_cm_event(event);
            return Err(libc::EINVAL);
        }
        let made = (*event).id;
        let template = listener.state().template;
        let ready = id::migrate(made, core::ptr::null_mut()).and_then(|()| {
            let Some(Template { pd, mut init }) = template else { return Ok(()) };
            init.qp_type = (*c).qp_type;
            queue_pair::create_plain(made, pd, &mut init)
        });
        if let Err(errno) = ready {
            super::channel::rdma_ack_cm_event(event);
            id::destroy(made);
            return Err(errno);
        }
        // The program reads its parameters; it is acknowledged with the next call of the new identifier.
        (*made).event = event;
        Ok(made)
    }
}

/// Waits for a request.
///
/// # Safety
/// C ABI: see `rdma_get_request(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    if listener.is_null() || id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live listener and a place for the identifier.
    done(unsafe { get_request(Id::of(listener)).map(|made| *id = made) })
}
