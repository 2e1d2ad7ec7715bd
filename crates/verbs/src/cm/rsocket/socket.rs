//! Sockets: their numbers, how far each has come, and waiting for it to come further.
//!
//! A socket's number is the descriptor of its event channel, so that no file has it. Whoever looks at a
//! socket takes in all that has come for it, and rings the bells of the threads that wait for the same one.

use super::bell;
use super::datagrams::Datagrams;
use super::link::{Link, Parts};
use super::options::Settings;
use super::poll::now_ns;
use super::wire::{CONNECT_LEN, Connect};
use crate::abi::*;
use crate::cm::address::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, read};
use crate::cm::channel::{
    rdma_ack_cm_event, rdma_create_event_channel, rdma_destroy_event_channel, rdma_get_cm_event,
};
use crate::cm::connect::{rdma_connect, rdma_disconnect, rdma_listen, rdma_notify};
use crate::cm::id::{rdma_create_id, rdma_destroy_id};
use crate::cm::options::rdma_set_option;
use crate::event::lock;
use crate::handle::errno;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Local ACK timeout of sockets' queue pairs: 0.54 s. A packet that is lost behind all others costs that, not
/// rdma_cm's 2.1 s.
const ACK_TIMEOUT: u8 = 17;
/// How long an address is looked for, in milliseconds; here it is known at once.
const RESOLVE_MS: c_int = 2000;
/// Calls in vain after which the event channel is looked at too.
const VAIN: u32 = 64;
/// How often is looked before a thread sleeps: an answer of a peer that runs is there by then.
const LOOKS: u32 = 200;

static SOCKETS: Mutex<BTreeMap<c_int, Arc<Socket>>> = Mutex::new(BTreeMap::new());

/// The socket of a number.
pub(super) fn find(number: c_int) -> Option<Arc<Socket>> {
    lock(&SOCKETS).get(&number).cloned()
}

/// As [`find`]; `Err` is errno. A socket of a process that this one was forked from is not this one's.
pub(super) fn of(number: c_int) -> Result<Arc<Socket>, c_int> {
    let socket = find(number).ok_or(libc::EBADF)?;
    if socket.is_own() { Ok(socket) } else { Err(libc::ENODEV) }
}

/// A socket.
pub(super) struct Socket {
    pub(super) number: c_int,
    /// Whether it is for datagrams; its state says so until it is closed.
    pub(super) datagrams: bool,
    forks: u32,
    state: Mutex<State>,
}

/// How far it has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    Connecting,
    /// It has accepted, and the peer has not confirmed that.
    Accepted,
    Connected,
    /// It could not connect, or was closed.
    Ended,
}

/// What is kept for a socket.
pub(super) struct State {
    pub(super) id: *mut rdma_cm_id,
    pub(super) channel: *mut rdma_event_channel,
    pub(super) phase: Phase,
    pub(super) domain: c_int,
    pub(super) settings: Settings,
    /// Flags of `rfcntl`.
    pub(super) flags: c_int,
    /// What SO_ERROR says once.
    pub(super) error: c_int,
    /// Until the peer has answered.
    parts: Option<Parts>,
    pub(super) link: Option<Link>,
    /// Of a socket for datagrams, which has nothing of a connection.
    pub(super) datagrams: Option<Datagrams>,
    vain: u32,
    /// Bells of threads that wait.
    waiters: Vec<c_int>,
}

// SAFETY: identifiers and channels are made for use by several threads; these are only used under the lock.
unsafe impl Send for State {}

/// -1 with errno to a result.
pub(super) fn outcome(result: c_int) -> Result<(), c_int> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// Makes a channel that does not block.
pub(super) fn channel() -> Result<*mut rdma_event_channel, c_int> {
    let channel = rdma_create_event_channel();
    if channel.is_null() {
        return Err(errno());
    }
    // SAFETY: just made.
    unsafe { libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK) };
    Ok(channel)
}

impl Socket {
    /// A new socket; `Err` is errno.
    pub(super) fn create(domain: c_int, settings: Settings) -> Result<Arc<Socket>, c_int> {
        let channel = channel()?;
        let mut id = null_mut();
        // SAFETY: a live channel and a place for the identifier.
        if let Err(errno) = outcome(unsafe { rdma_create_id(channel, &mut id, null_mut(), RDMA_PS_TCP) }) {
            // SAFETY: made just now, and nobody has it.
            unsafe { rdma_destroy_event_channel(channel) };
            return Err(errno);
        }
        Ok(Socket::add(id, channel, domain, settings, Phase::Idle))
    }

    /// A new socket for datagrams; `Err` is errno.
    pub(super) fn create_datagrams(domain: c_int, settings: Settings) -> Result<Arc<Socket>, c_int> {
        let datagrams = Datagrams::new(domain)?;
        let number = datagrams.fd();
        let mut state = State::new(domain, settings, Phase::Idle);
        state.datagrams = Some(datagrams);
        Ok(Socket::keep(number, state))
    }

    pub(super) fn add(
        id: *mut rdma_cm_id,
        channel: *mut rdma_event_channel,
        domain: c_int,
        settings: Settings,
        phase: Phase,
    ) -> Arc<Socket> {
        let state = State { id, channel, ..State::new(domain, settings, phase) };
        // SAFETY: the channel is alive.
        Socket::keep(unsafe { (*channel).fd }, state)
    }

    fn keep(number: c_int, state: State) -> Arc<Socket> {
        let (datagrams, forks) = (state.datagrams.is_some(), adverb_io::forks());
        let socket = Arc::new(Socket { number, datagrams, forks, state: Mutex::new(state) });
        lock(&SOCKETS).insert(number, socket.clone());
        socket
    }

    /// Locks it.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Whether it is this process's, not one's that it was forked from.
    pub(super) fn is_own(&self) -> bool {
        self.forks == adverb_io::forks()
    }

    /// Waits until something has come, or another thread has taken something in; the caller looks again.
    pub(super) fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, c_int> {
        for _ in 0..LOOKS {
            if state.advance() {
                return Ok(state);
            }
        }
        let bell = bell::own()?;
        let Some(fds) = state.watch(bell) else { return Ok(state) };
        drop(state);
        let mut polled =
            [fds[0], fds[1], bell].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: three entries; a negative descriptor is passed over.
        let woken = unsafe { libc::poll(polled.as_mut_ptr(), 3, -1) };
        let cause = errno();
        let mut state = self.lock();
        state.unwatch(bell);
        bell::silence(bell);
        if woken < 0 { Err(cause) } else { Ok(state) }
    }

    /// Waits while the condition holds.
    pub(super) fn wait_while<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        condition: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, c_int> {
        while condition(&state) {
            state = self.wait(state)?;
        }
        Ok(state)
    }

    /// Ends a socket: waits until the peer has all, unless the program does not want that, and frees it.
    pub(super) fn close(&self) -> Result<(), c_int> {
        lock(&SOCKETS).remove(&self.number);
        let mut state = self.lock();
        if self.is_own() {
            state.shut(true, true);
            let lingers = !matches!(state.settings.linger, Some(0));
            let waits = |state: &State| {
                matches!(state.phase, Phase::Accepted | Phase::Connected)
                    && state.link.as_ref().is_some_and(|link| !link.stream.all_sent())
                    || state.datagrams.as_ref().is_some_and(Datagrams::sending)
            };
            while lingers && waits(&state) {
                // A signal does not cut short what the peer is to get.
                state = match self.wait(state) {
                    Ok(state) => state,
                    Err(_) => self.lock(),
                };
            }
        }
        state.free();
        Ok(())
    }
}

/// The private data of an event of a connection.
///
/// # Safety
/// The event is alive.
pub(super) unsafe fn private_data<'a>(event: *mut rdma_cm_event) -> &'a [u8] {
    // SAFETY: by the caller's promise; it is part of the event, and as long as it says.
    unsafe {
        let of = (*event).param.conn;
        if of.private_data.is_null() {
            return &[];
        }
        core::slice::from_raw_parts(of.private_data.cast(), of.private_data_len.into())
    }
}

/// The parameters of a connection, with what is told to the peer.
pub(super) fn parameters(own: &[u8; CONNECT_LEN]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: own.as_ptr().cast(),
        private_data_len: CONNECT_LEN as u8,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 1,
        retry_count: 7,
        // Without an end: a peer that does not look is waited for.
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

impl State {
    fn new(domain: c_int, settings: Settings, phase: Phase) -> State {
        State {
            id: null_mut(),
            channel: null_mut(),
            phase,
            domain,
            settings,
            flags: libc::O_RDWR,
            error: 0,
            parts: None,
            link: None,
            datagrams: None,
            vain: 0,
            waiters: Vec::new(),
        }
    }

    /// Whether calls that find nothing come back at once.
    pub(super) fn nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }

    /// Takes in what has come; whether anything was new.
    pub(super) fn advance(&mut self) -> bool {
        if let Some(of) = &mut self.datagrams {
            let any = of.process(now_ns());
            if any {
                self.ring();
            }
            return any;
        }
        let mut any = self.link.as_mut().is_some_and(Link::process);
        if any && self.phase == Phase::Accepted {
            // Bytes say that the peer has the answer, even if its confirmation was lost.
            self.confirmed();
            // SAFETY: the identifier is alive. A connection that has ended meanwhile needs no such word.
            unsafe { rdma_notify(self.id, IBV_EVENT_COMM_EST) };
        }
        self.vain = if any { 0 } else { self.vain + 1 };
        if self.link.is_none() || self.phase != Phase::Connected || self.vain.is_multiple_of(VAIN) {
            any |= self.take_events();
        }
        if any {
            self.ring();
        }
        any
    }

    /// Whether a request waits.
    pub(super) fn requested(&self) -> bool {
        // SAFETY: the channel is alive until the socket is closed, which ends listening.
        let mut polled = libc::pollfd { fd: unsafe { (*self.channel).fd }, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut polled, 1, 0) == 1 }
    }

    fn ring(&self) {
        self.waiters.iter().for_each(|bell| bell::ring(*bell));
    }

    /// Takes in the connection manager's events; a listener's are requests, which wait.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        if matches!(self.phase, Phase::Listening | Phase::Ended) {
            return false;
        }
        loop {
            let mut event = null_mut();
            // SAFETY: a live channel and a place for the event; it is acknowledged when it was looked at.
            unsafe {
                if rdma_get_cm_event(self.channel, &mut event) != 0 {
                    return any;
                }
                let (number, status) = ((*event).event, (*event).status);
                let peer = Connect::parse(private_data(event));
                rdma_ack_cm_event(event);
                self.heard(number, status, peer.ok());
            }
            any = true;
        }
    }

    fn heard(&mut self, number: u32, status: c_int, peer: Option<Connect>) {
        match (number, self.phase) {
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Connecting) => match (peer, self.parts.take()) {
                (Some(peer), Some(parts)) => {
                    let mut link = Link::new(parts, &peer, true);
                    link.process();
                    self.link = Some(link);
                    self.phase = Phase::Connected;
                }
                // Not an rsocket.
                _ => self.fail(libc::EPROTO),
            },
            (RDMA_CM_EVENT_ESTABLISHED, Phase::Accepted) => self.confirmed(),
            (RDMA_CM_EVENT_REJECTED, _) => self.fail(libc::ECONNREFUSED),
            (RDMA_CM_EVENT_UNREACHABLE, _) => self.fail(libc::ETIMEDOUT),
            (RDMA_CM_EVENT_CONNECT_ERROR, _) => self.fail(status.saturating_abs()),
            (RDMA_CM_EVENT_DISCONNECTED, _) => {
                if let Some(link) = &mut self.link {
                    // What came before can be read.
                    link.process();
                    link.stream.lost();
                }
            }
            _ => {}
        }
    }

    /// The peer is known to have the answer to its request.
    fn confirmed(&mut self) {
        self.phase = Phase::Connected;
        if let Some(link) = &mut self.link {
            link.confirm();
        }
    }

    /// It will not connect.
    fn fail(&mut self, errno: c_int) {
        self.error = errno;
        self.phase = Phase::Ended;
        self.parts = None;
        if let Some(link) = &mut self.link {
            link.stream.lost();
        }
    }

    /// Has whoever waits told of what comes, and gives the descriptors that say so. `None` if something came
    /// meanwhile.
    pub(super) fn watch(&mut self, bell: c_int) -> Option<[c_int; 2]> {
        if let Some(of) = &mut self.datagrams {
            if of.arm(now_ns()) {
                self.ring();
                return None;
            }
            let fds = of.fds();
            self.waiters.push(bell);
            return Some(fds);
        }
        if self.take_events() {
            self.ring();
            return None;
        }
        let mut fds = [-1, -1];
        // SAFETY: the channel is alive until the socket is closed.
        fds[0] = if self.phase == Phase::Ended { -1 } else { unsafe { (*self.channel).fd } };
        if let Some(link) = &mut self.link {
            if link.arm() {
                self.ring();
                return None;
            }
            fds[1] = link.fd();
        }
        self.waiters.push(bell);
        Some(fds)
    }

    /// Takes back a `watch`.
    pub(super) fn unwatch(&mut self, bell: c_int) {
        if let Some(at) = self.waiters.iter().position(|waiter| *waiter == bell) {
            self.waiters.swap_remove(at);
        }
    }

    fn set_option(&self, name: u32, value: &[u8]) -> Result<(), c_int> {
        let level = RDMA_OPTION_ID as c_int;
        let pointer = value.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: a live identifier, and a value as long as it says.
        outcome(unsafe { rdma_set_option(self.id, level, name as c_int, pointer, value.len()) })
    }

    /// Tells the identifier what the socket's options say of its address.
    fn address_options(&self) -> Result<(), c_int> {
        if self.settings.reuse {
            self.set_option(RDMA_OPTION_ID_REUSEADDR, &1i32.to_ne_bytes())?;
        }
        if self.settings.only_v6 {
            self.set_option(RDMA_OPTION_ID_AFONLY, &1i32.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Binds to an address.
    ///
    /// # Safety
    /// The address is valid.
    pub(super) unsafe fn bind(&mut self, address: *const libc::sockaddr) -> Result<(), c_int> {
        if let Some(of) = &mut self.datagrams {
            // SAFETY: by the caller's promise.
            let address = unsafe { read(address) }.ok_or(libc::EAFNOSUPPORT)?;
            return of.bind(address, &self.settings);
        }
        if self.phase != Phase::Idle {
            return Err(libc::EINVAL);
        }
        self.address_options()?;
        // SAFETY: by the caller's promise; the identifier is alive.
        outcome(unsafe { rdma_bind_addr(self.id, address.cast_mut()) })?;
        self.phase = Phase::Bound;
        Ok(())
    }

    /// Takes requests.
    pub(super) fn listen(&mut self, backlog: c_int) -> Result<(), c_int> {
        if self.datagrams.is_some() {
            return Err(libc::EOPNOTSUPP);
        }
        match self.phase {
            Phase::Listening => return Ok(()),
            Phase::Idle => self.address_options()?,
            Phase::Bound => {}
            _ => return Err(libc::EINVAL),
        }
        // SAFETY: the identifier is alive.
        outcome(unsafe { rdma_listen(self.id, backlog) })?;
        self.phase = Phase::Listening;
        Ok(())
    }

    /// The next event, of which rdma_cm tells at once.
    fn expect(&mut self, number: u32) -> Result<(), c_int> {
        let mut event = null_mut();
        // SAFETY: a live channel and a place for the event.
        unsafe {
            outcome(rdma_get_cm_event(self.channel, &mut event))?;
            let (found, status) = ((*event).event, (*event).status);
            rdma_ack_cm_event(event);
            match found {
                _ if found == number => Ok(()),
                RDMA_CM_EVENT_ADDR_ERROR => Err(libc::ENETUNREACH),
                _ if status != 0 => Err(status.saturating_abs()),
                _ => Err(libc::EIO),
            }
        }
    }

    /// Asks for a connection; the answer is an event.
    ///
    /// # Safety
    /// The address is valid.
    pub(super) unsafe fn connect(&mut self, address: *const libc::sockaddr) -> Result<(), c_int> {
        if let Some(of) = &mut self.datagrams {
            // SAFETY: by the caller's promise.
            let address = unsafe { read(address) }.ok_or(libc::EAFNOSUPPORT)?;
            return of.connect(address, &self.settings);
        }
        match self.phase {
            Phase::Idle => self.address_options()?,
            Phase::Bound => {}
            Phase::Connecting => return Err(libc::EALREADY),
            Phase::Accepted | Phase::Connected => return Err(libc::EISCONN),
            Phase::Listening => return Err(libc::EOPNOTSUPP),
            Phase::Ended => return Err(libc::EINVAL),
        }
        self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, &[ACK_TIMEOUT])?;
        // SAFETY: by the caller's promise; the identifier is alive.
        unsafe {
            outcome(rdma_resolve_addr(self.id, null_mut(), address.cast_mut(), RESOLVE_MS))?;
            self.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
            outcome(rdma_resolve_route(self.id, RESOLVE_MS))?;
            self.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
            let parts = Parts::new(self.id, self.settings)?;
            let own = parts.connect().emit();
            outcome(rdma_connect(self.id, &mut parameters(&own)))?;
            self.parts = Some(parts);
        }
        self.phase = Phase::Connecting;
        Ok(())
    }

    /// Ends reading, writing, or both.
    pub(super) fn shut(&mut self, reading: bool, writing: bool) {
        let Some(link) = &mut self.link else { return };
        if reading {
            link.stream.stop_reading();
        }
        if writing {
            // A peer that has nothing to say either is told that this is the end.
            let close = reading || link.stream.ended();
            link.stream.stop_writing(close);
        }
        link.process();
        self.ring();
    }

    /// Frees all that the socket has.
    fn free(&mut self) {
        self.phase = Phase::Ended;
        if self.datagrams.take().is_some() {
            self.ring();
        }
        if self.id.is_null() {
            return;
        }
        // SAFETY: nobody else has the identifier and its channel; what uses the queue pair goes first.
        unsafe {
            if self.link.is_some() {
                // It may have ended already.
                rdma_disconnect(self.id);
            }
            self.link = None;
            self.parts = None;
            rdma_destroy_id(self.id);
            rdma_destroy_event_channel(self.channel);
        }
        (self.id, self.channel) = (null_mut(), null_mut());
        self.ring();
    }
}
