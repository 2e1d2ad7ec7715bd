//! Identifiers: what rdma_cm's programs hold for a listener, a connection or datagrams.

use crate::abi::*;
use crate::cm::address::{self, Endpoints};
use crate::cm::channel::{Channel, Told, Waiting, rdma_ack_cm_event};
use crate::cm::endpoint::Template;
use crate::cm::registry::{self, IdPointer};
use crate::cm::{connect, done};
use crate::event::lock;
use crate::handle::handle;
use crate::host;
use adverb_io::cm::Binding;
use adverb_nic::cm::{CmEvent, ConnectionId, Cookie, ListenerId, Offer, PortSpace, What};
use adverb_wire::{Gid, Psn};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An identifier.
#[repr(C)]
pub(crate) struct Id {
    c: UnsafeCell<rdma_cm_id>,
    /// Of which process of a line of forks it is: in a child it has ended.
    forks: u32,
    /// What the connection manager's events bring back.
    pub(super) cookie: Cookie,
    /// It has a channel of its own, and calls wait for what they began.
    sync: AtomicBool,
    pub(super) acks: Acks,
    state: Mutex<State>,
}

handle!(Id, rdma_cm_id);

/// Events that a program has got and not acknowledged.
#[derive(Default)]
pub(super) struct Acks {
    outstanding: Mutex<u32>,
    none: Condvar,
}

impl Acks {
    pub(super) fn delivered(&self) {
        *lock(&self.outstanding) += 1;
    }

    pub(super) fn acknowledged(&self) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.none.notify_all();
        }
    }

    /// Waits until the program has acknowledged all that it got.
    fn wait(&self) {
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > 0 {
            outstanding = self.none.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How far an identifier has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    /// The peer's address is known, and by which device it is reached.
    Address,
    /// So is the path.
    Route,
    /// A request is on its way.
    Connecting,
    /// The peer has accepted, and the program moves its own queue pair.
    Answered,
    Listening,
    /// A request waits for the program's answer.
    Requested,
    /// It has accepted.
    Accepted,
    Connected,
    /// Refused, failed, or ended.
    Ended,
}

/// Options of `rdma_set_option`.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) traffic_class: u8,
    pub(super) reuse: bool,
    pub(super) af_only: bool,
    pub(super) ack_timeout: Option<u8>,
}

/// What a queue pair is connected with.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) gid: Gid,
    /// Its queue pair, as it offers it; until it has answered, only what this side asked for.
    pub(super) offer: Offer,
    pub(super) retry_count: u8,
    /// 1 for 256 bytes to 5 for 4096.
    pub(super) mtu: u8,
    pub(super) ack_timeout: u8,
    pub(super) traffic_class: u8,
}

/// All that is kept for an identifier besides its C part.
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) options: Options,
    pub(super) binding: Option<Binding>,
    pub(super) listener: Option<ListenerId>,
    pub(super) connection: Option<ConnectionId>,
    /// The PSN that the peer is to begin with.
    pub(super) psn: Psn,
    pub(super) peer: Option<Peer>,
    /// READs and atomics of this side: those it answers, those it sends.
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// What a listener's new identifiers get (`rdma_create_ep`).
    pub(super) template: Option<Template>,
    pub(super) groups: Vec<super::multicast::Group>,
}

impl Id {
    fn new(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        space: PortSpace,
        qp_type: u32,
        cookie: Cookie,
    ) -> Id {
        // SAFETY: pointers, integers, addresses of no family.
        let mut c: rdma_cm_id = unsafe { core::mem::zeroed() };
        c.channel = channel;
        c.context = context;
        c.ps = u32::from(space as u16);
        c.qp_type = qp_type;
        Id {
            c: c.into(),
            forks: adverb_io::forks(),
            cookie,
            sync: AtomicBool::new(false),
            acks: Acks::default(),
            state: Mutex::new(State {
                phase: Phase::Idle,
                options: Options::default(),
                binding: None,
                listener: None,
                connection: None,
                psn: Psn::new(adverb_os::sys::random_seed() as u32),
                peer: None,
                responder_resources: 0,
                initiator_depth: 0,
                template: None,
                groups: Vec::new(),
            }),
        }
    }

    /// The identifier that a request makes.
    ///
    /// # Safety
    /// `listener` is alive.
    pub(super) unsafe fn requested(
        listener: *mut rdma_cm_id,
        cookie: Cookie,
        event: &CmEvent,
    ) -> *mut rdma_cm_id {
        // SAFETY: by the caller's promise; nobody else writes these fields of a listener.
        let of = unsafe { &*listener };
        let space = space_of(of.ps);
        let id = Id::new(of.channel, of.context, space, of.qp_type, cookie);
        let (endpoints, peer) = match &event.what {
            What::Request(_, request) => {
                let peer = Peer {
                    gid: request.from,
                    offer: request.offer,
                    retry_count: request.retry_count,
                    mtu: request.mtu,
                    ack_timeout: request.ack_timeout,
                    traffic_class: request.traffic_class,
                };
                (Endpoints::asked(request.dst, request.service, request.src, request.src_port), Some(peer))
            }
            What::DatagramRequest(_, request) => {
                (Endpoints::asked(request.dst, request.service, request.src, request.src_port), None)
            }
            _ => unreachable!("only requests make identifiers"),
        };
        {
            let mut state = lock(&id.state);
            state.phase = Phase::Requested;
            state.connection = Some(event.id);
            if let Some(peer) = &peer {
                state.responder_resources = peer.offer.initiator_depth;
                state.initiator_depth = peer.offer.responder_resources;
            }
            state.peer = peer;
        }
        let c = id.give();
        // SAFETY: just made.
        unsafe {
            address::set_device(c);
            address::set_endpoints(c, &endpoints);
            address::set_path(c, peer.as_ref().map(|peer| peer.mtu));
        }
        c
    }

    /// Locks what is kept for it.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if !self.is_own() {
            state.phase = Phase::Ended;
            (state.binding, state.listener, state.connection) = (None, None, None);
            state.groups.clear();
        }
        state
    }

    /// Whether this process made it, not one that it was forked from, whose NIC has what it stands for.
    fn is_own(&self) -> bool {
        self.forks == adverb_io::forks()
    }

    /// C's part.
    pub(super) fn as_c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Its port space.
    pub(super) fn space(&self) -> PortSpace {
        // SAFETY: a public field of the live object, never written after creation.
        space_of(unsafe { (*self.as_c()).ps })
    }

    /// Whether it is for datagrams.
    pub(super) fn is_datagram(&self) -> bool {
        matches!(self.space(), PortSpace::Udp | PortSpace::Ipoib)
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Acquire)
    }

    /// Queues an event that was found out on this side.
    pub(super) fn tell(&self, told: Told) {
        let owner = IdPointer(self.as_c());
        let _unmoved = registry::registry();
        // SAFETY: the channel outlives the identifier, and is only changed under the registry's lock.
        let channel = unsafe { Channel::of((*self.as_c()).channel) };
        channel.queue.push(Waiting { owner, listener: None, told });
    }

    /// Waits for the outcome of what a call began, if calls of this identifier wait; `Err` is errno.
    ///
    /// # Safety
    /// The identifier is alive.
    pub(super) unsafe fn complete(&self) -> Result<(), c_int> {
        if !self.is_sync() {
            return Ok(());
        }
        // SAFETY: by the caller's promise; the event was got here before.
        unsafe {
            self.drop_event();
            let channel = Channel::of((*self.as_c()).channel);
            let event = channel.next()?;
            (*self.as_c()).event = event;
            match (*event).status {
                0 => Ok(()),
                _ if (*event).event == RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
                status => Err(status.saturating_abs()),
            }
        }
    }

    /// Acknowledges the event that a waiting call got.
    ///
    /// # Safety
    /// The identifier is alive, and its event was not acknowledged by the program.
    unsafe fn drop_event(&self) {
        // SAFETY: by the caller's promise.
        unsafe {
            let event = core::mem::replace(&mut (*self.as_c()).event, core::ptr::null_mut());
            if !event.is_null() {
                rdma_ack_cm_event(event);
            }
        }
    }

    /// Makes it one whose calls wait, on a channel that is its own alone.
    pub(super) fn set_sync(&self, sync: bool) {
        self.sync.store(sync, Ordering::Release);
    }
}

/// The port space of a number that was checked when the identifier was made.
fn space_of(number: u32) -> PortSpace {
    u16::try_from(number).ok().and_then(PortSpace::of).unwrap_or(PortSpace::Tcp)
}

/// Creates an identifier, with the type of queue pair that its port space has.
pub(super) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: u32,
    qp_type: Option<u32>,
) -> Result<*mut rdma_cm_id, c_int> {
    let space = u16::try_from(space).ok().and_then(PortSpace::of).ok_or(libc::EINVAL)?;
    let by_space = match space {
        PortSpace::Tcp | PortSpace::Ib => IBV_QPT_RC,
        PortSpace::Udp | PortSpace::Ipoib => IBV_QPT_UD,
    };
    let qp_type = match space {
        PortSpace::Ib => qp_type.unwrap_or(by_space),
        _ => by_space,
    };
    let own = channel.is_null();
    // SAFETY: the caller passes a live channel or NULL.
    if !own && !unsafe { Channel::of(channel) }.queue.is_own() {
        return Err(libc::ENODEV);
    }
    let channel = if own { Channel::create()? } else { channel };
    let cookie = registry::new_cookie();
    let id = Id::new(channel, context, space, qp_type, cookie);
    id.set_sync(own);
    let id = id.give();
    registry::add(cookie, id);
    Ok(id)
}

/// Creates an identifier. Without a channel, its calls wait for what they began.
///
/// # Safety
/// C ABI: see `rdma_create_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: u32,
) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    let made = super::device().and_then(|_| create(channel, context, space, None));
    // SAFETY: the caller passes a place for the identifier.
    done(made.map(|made| unsafe { *id = made }))
}

/// Ends what an identifier has under way, so that nothing is told to it any more. Requests that nobody has
/// got are refused.
///
/// # Safety
/// The identifier is alive.
unsafe fn end(id: &Id) {
    let (binding, listener, connection) = {
        let mut state = id.state();
        state.phase = Phase::Ended;
        (state.binding.take(), state.listener.take(), state.connection.take())
    };
    if let (Some(binding), Some(listener)) = (&binding, listener) {
        // A failure means that the NIC is closed: then nobody is told anything.
        let _ = host::cm(|host| host.cm_unlisten(binding, listener));
    }
    if let Some(connection) = connection {
        let _ = host::cm(|host| host.cm_destroy(connection));
    }
    registry::remove(id.cookie, connection);
    // SAFETY: the channel outlives the identifier.
    let channel = unsafe { Channel::of((*id.as_c()).channel) };
    let pointer = IdPointer(id.as_c());
    for waiting in channel.queue.remove(|waiting| waiting.counted() == pointer || waiting.owner == pointer) {
        if waiting.listener.is_some() {
            // SAFETY: no program knows it.
            unsafe { destroy(waiting.owner.0) };
        }
    }
    if let Some(binding) = binding {
        let _ = host::cm(|host| host.cm_unbind(binding));
    }
}

/// Destroys an identifier.
///
/// # Safety
/// It is alive, and the caller gives it up.
pub(super) unsafe fn destroy(c: *mut rdma_cm_id) {
    // SAFETY: by the caller's promise.
    unsafe {
        let id = Id::of(c);
        end(id);
        super::multicast::leave_all(id);
        id.drop_event();
        if id.is_own() {
            id.acks.wait();
        }
        address::free_path(c);
        if id.is_sync() {
            drop(Channel::take((*c).channel));
        }
        drop(Id::take(c));
    }
}

/// Destroys an identifier, when its events have been acknowledged.
///
/// # Safety
/// C ABI: see `rdma_destroy_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and gives it up.
    unsafe { destroy(id) };
    0
}

/// Moves an identifier and its waiting events to a channel; to one of its own if that is NULL.
///
/// # Safety
/// The identifier and the channel are alive.
pub(super) unsafe fn migrate(c: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: by the caller's promise.
    let id = unsafe { Id::of(c) };
    let own = to.is_null();
    let to = if own { Channel::create()? } else { to };
    let was_own = id.is_sync();
    if was_own {
        // SAFETY: by the caller's promise.
        unsafe { id.drop_event() };
    }
    let from = {
        let _unheard = registry::registry();
        // SAFETY: both channels are alive; the field is only changed under the registry's lock.
        unsafe {
            let from = core::mem::replace(&mut (*c).channel, to);
            let pointer = IdPointer(c);
            for waiting in Channel::of(from).queue.remove(|waiting| waiting.counted() == pointer) {
                if waiting.listener.is_some() {
                    (*waiting.owner.0).channel = to;
                }
                Channel::of(to).queue.push(waiting);
            }
            from
        }
    };
    id.set_sync(own);
    // Those of the old channel that the program has got are told of it, so they end there.
    id.acks.wait();
    if was_own {
        // SAFETY: no identifier has it any more.
        drop(unsafe { Channel::take(from) });
    }
    Ok(())
}

/// Moves an identifier to another channel.
///
/// # Safety
/// C ABI: see `rdma_migrate_id(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    if id.is_null() {
        return done(Err(libc::EINVAL));
    }
    // SAFETY: the caller passes a live identifier and a live channel or NULL.
    done(unsafe { migrate(id, channel) })
}

/// Marks an identifier's connection as ended, with its queue pair in error so that its requests come back.
///
/// # Safety
/// The identifier is alive.
pub(super) unsafe fn fail(id: &Id) {
    id.state().phase = Phase::Ended;
    // SAFETY: by the caller's promise.
    unsafe { connect::flush(id) };
}
