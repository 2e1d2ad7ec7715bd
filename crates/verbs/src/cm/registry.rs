//! From what the connection manager tells to the identifier that it is about.

use crate::abi::rdma_cm_id;
use crate::cm::channel::{Channel, Told, Waiting};
use crate::cm::id::Id;
use crate::event::lock;
use adverb_nic::cm::{CmEvent, ConnectionId, Cookie, What};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// A live identifier's C pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct IdPointer(pub(super) *mut rdma_cm_id);

// SAFETY: identifiers are made for use by several threads; their entries and events go before they do.
unsafe impl Send for IdPointer {}

/// Identifiers that the connection manager may tell of.
pub(super) struct Registry {
    /// Which process of a line of forks the identifiers are of.
    forks: u32,
    next: Cookie,
    ids: BTreeMap<Cookie, IdPointer>,
    /// Those that requests made: the connection manager knows them by their listener's cookie.
    accepted: BTreeMap<u32, IdPointer>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { forks: 0, next: 1, ids: BTreeMap::new(), accepted: BTreeMap::new() });

/// Locks it: while it is held, no identifier changes its channel, and no event comes.
pub(super) fn registry() -> MutexGuard<'static, Registry> {
    let mut registry = lock(&REGISTRY);
    if registry.forks != adverb_io::forks() {
        // A parent's, of which this process's NIC tells nothing.
        registry.forks = adverb_io::forks();
        registry.ids.clear();
        registry.accepted.clear();
    }
    registry
}

/// A cookie that was never given before.
pub(super) fn new_cookie() -> Cookie {
    let mut registry = registry();
    registry.next += 1;
    registry.next
}

/// Has events of an identifier's cookie told to it.
pub(super) fn add(cookie: Cookie, id: *mut rdma_cm_id) {
    registry().ids.insert(cookie, IdPointer(id));
}

/// Has no more told to an identifier.
pub(super) fn remove(cookie: Cookie, connection: Option<ConnectionId>) {
    let mut registry = registry();
    let known = registry.ids.remove(&cookie);
    if let Some(connection) = connection
        && known.is_some()
        && registry.accepted.get(&connection.0) == known.as_ref()
    {
        registry.accepted.remove(&connection.0);
    }
}

/// Queues an event for its identifier's program. Called with the NIC locked, by whichever thread drives it.
pub(super) fn hear(event: CmEvent) {
    let mut registry = registry();
    let (owner, listener) = match &event.what {
        What::Request(..) | What::DatagramRequest(..) => {
            // A listener that is being destroyed: what it got is refused when the NIC knows of that.
            let Some(listener) = registry.ids.get(&event.cookie).copied() else { return };
            registry.next += 1;
            let cookie = registry.next;
            // SAFETY: an identifier leaves the registry, which is locked, before it is destroyed.
            let owner = IdPointer(unsafe { Id::requested(listener.0, cookie, &event) });
            registry.ids.insert(cookie, owner);
            registry.accepted.insert(event.id.0, owner);
            (owner, Some(listener))
        }
        _ => {
            let accepted = registry.accepted.get(&event.id.0);
            let Some(owner) = accepted.or_else(|| registry.ids.get(&event.cookie)) else { return };
            (*owner, None)
        }
    };
    // SAFETY: an identifier leaves the registry, which is locked, before it is destroyed; its channel
    // outlives it, and is only changed under the registry's lock.
    let channel = unsafe { Channel::of((*owner.0).channel) };
    channel.queue.push(Waiting { owner, listener, told: Told::Cm(event.what) });
}
