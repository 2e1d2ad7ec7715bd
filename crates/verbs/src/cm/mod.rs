//! A drop-in `librdmacm.so.1`: rdma_cm's C ABI of rdma-core v44 over the NIC's connection manager.
//!
//! The protocol and the port space are `adverb_nic::cm` and `adverb_io::cm`; what is here are the objects
//! that programs hold and what librdmacm does for them: it moves queue pairs when a connection comes up.
//!
//! ```text
//! id          identifiers: made, bound to channels, destroyed
//! channel     event channels; getting and acknowledging events
//! registry    from what the connection manager tells to the identifier that it is about
//! event       what a program sees of it
//! address     addresses: binding, resolving, paths
//! addrinfo    rdma_getaddrinfo
//! connect     listening, connecting, accepting, refusing, ending
//! queue_pair  queue pairs of identifiers, and their changes of state
//! endpoint    identifiers with everything in one call
//! multicast   groups
//! options     options, devices, names
//! rsocket     sockets over connections, in a folder
//! absent      what answers ENOSYS
//! ```
//! Lock order: an identifier's state, the NIC, the registry, an event queue. The NIC tells its events while
//! it is locked, so that the registry is never held while it is called.

mod absent;
mod address;
mod addrinfo;
mod channel;
mod connect;
mod endpoint;
mod event;
mod id;
mod multicast;
mod options;
mod queue_pair;
mod registry;
mod rsocket;

use crate::abi::{ibv_context, ibv_pd};
use crate::device::{Device, devices};
use crate::event::lock;
use crate::handle::{errno, set_errno};
use crate::{context, host, pd};
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Mutex;

/// The context and the domain that identifiers share, as every one of a process has the same device. Like the
/// device, they live as long as the process.
struct Common {
    /// Which process of a line of forks they are of.
    forks: u32,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

// SAFETY: both objects are made for use by several threads, and are never destroyed.
unsafe impl Send for Common {}
// SAFETY: as above.
unsafe impl Sync for Common {}

/// What `open` made last; it is never freed.
static COMMON: AtomicPtr<Common> = AtomicPtr::new(core::ptr::null_mut());
/// Serialises openings, which may fail and be tried again.
static OPENING: Mutex<()> = Mutex::new(());

/// The one device; `Err` is errno, after a word on standard error.
fn device() -> Result<&'static Device, c_int> {
    devices()?.first().ok_or(libc::ENODEV)
}

/// Opens what identifiers share, unless it is open.
fn open() -> Result<(), c_int> {
    let _opening = lock(&OPENING);
    if common().is_some() {
        return Ok(());
    }
    // SAFETY: a device of the list, and then a context that was opened just now.
    let (context, pd) = unsafe {
        let context = context::ibv_open_device(core::ptr::from_ref(device()?).cast_mut().cast());
        if context.is_null() {
            return Err(errno());
        }
        (context, pd::ibv_alloc_pd(context))
    };
    if pd.is_null() {
        let cause = errno();
        // SAFETY: nobody else has it.
        unsafe { context::ibv_close_device(context) };
        return Err(cause);
    }
    host::on_cm_event(registry::hear);
    let common = Box::new(Common { forks: adverb_io::forks(), context, pd });
    COMMON.store(Box::into_raw(common), Ordering::Release);
    Ok(())
}

/// What identifiers share, if this process has opened it.
fn common() -> Option<&'static Common> {
    // SAFETY: it is null, or came from a box that is never given back.
    let common = unsafe { COMMON.load(Ordering::Acquire).as_ref() };
    common.filter(|common| common.forks == adverb_io::forks())
}

/// The context that identifiers share; NULL before `open` has succeeded.
fn common_context() -> *mut ibv_context {
    common().map_or(core::ptr::null_mut(), |common| common.context)
}

/// The domain of queue pairs for which the program names none; NULL before `open` has succeeded.
fn common_pd() -> *mut ibv_pd {
    common().map_or(core::ptr::null_mut(), |common| common.pd)
}

/// The way in which rdma_cm's calls end: 0, or -1 with errno.
fn done(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
