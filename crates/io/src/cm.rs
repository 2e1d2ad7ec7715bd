//! The connection manager of the process's NIC, as programs call it: see [`adverb_nic::cm::Cm`]. The progress
//! thread answers peers while the program sleeps.

use crate::directory::Member;
use crate::host::Host;
use crate::ports;
use crate::progress::Call;
use adverb_nic::cm::{
    Cm, CmError, CmEvent, Connect, ConnectionId, Cookie, Listen, ListenerId, Offer, PortSpace, Reason,
    Resolve, Resolved, Service,
};
use adverb_wire::{Gid, Instant};
use std::net::IpAddr;

/// Hears the connection manager's events, one at a time and in order, while the NIC is locked: it may only
/// queue them and signal.
pub type OnCmEvent = Box<dyn Fn(CmEvent) + Send + Sync>;

/// A port of this address, had by this process until it is given back or the process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    row: usize,
    /// What was bound; the port is never 0.
    pub service: Service,
}

/// How a port is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// In which space.
    pub space: PortSpace,
    /// 0 for one that is free, from the range of `/proc/sys/net/ipv4/ip_local_port_range`.
    pub port: u16,
    /// The address as the program named it. Unspecified and loopback ones stand for any address, unless the
    /// NIC is at that one; `::` for IPv4's too.
    pub address: IpAddr,
    /// Others with this flag may bind the same, until one listens (`RDMA_OPTION_ID_REUSEADDR`).
    pub reuse: bool,
    /// An IPv6 address stands for no IPv4 one (`RDMA_OPTION_ID_AFONLY`).
    pub af_only: bool,
}

/// The connection manager. Every call fails with [`CmError::Closed`] where the NIC is closed, or is that of
/// the process that this one was forked from.
impl Host {
    /// Has events told from now on; to be called once, before any other of these.
    pub fn on_cm_event(&self, hear: OnCmEvent) {
        self.shared().lock().on_cm_event = Some(hear);
    }

    /// Calls the connection manager and sends what it has to say. The caller probably waits for an answer
    /// asleep, so the progress thread takes over at once.
    fn manage<R>(&self, call: impl FnOnce(&mut Cm, Instant) -> Result<R, CmError>) -> Result<R, CmError> {
        if !self.is_own() {
            return Err(CmError::Closed);
        }
        let core = &mut *self.shared().lock();
        if core.port.is_none() {
            return Err(CmError::Closed);
        }
        let now = core.clock.now();
        let result = core.nic.with_cm(|cm| call(cm, now)).unwrap_or(Err(CmError::Closed));
        core.transmit(now);
        core.round(false);
        self.after(core, Call::Arm);
        result
    }

    /// This process among those of its address, as long as its NIC is open.
    fn member(&self) -> Result<&Member, CmError> {
        let open = self.is_own() && self.shared().lock().port.is_some();
        if open { Ok(&self.shared().member) } else { Err(CmError::Closed) }
    }

    /// Takes a port: EADDRINUSE ([`CmError::InUse`]), EADDRNOTAVAIL ([`CmError::NotAvailable`]), EACCES
    /// below 1024 without the privilege.
    pub fn cm_bind(&self, bind: &Bind) -> Result<Binding, CmError> {
        let member = self.member()?;
        let Bind { space, port, address, reuse, af_only } = *bind;
        let row = ports::row(space, port, address, reuse, af_only, Gid::from(self.device().address));
        let (row, port) = member.ports().bind(&row, member.owner(), |owner| member.lives(owner))?;
        self.manage(|cm, now| {
            cm.expect_listener(now, port);
            Ok(())
        })?;
        Ok(Binding { row, service: Service { space, port } })
    }

    /// Gives it back; its listener must have gone.
    pub fn cm_unbind(&self, binding: Binding) -> Result<(), CmError> {
        let member = self.member()?;
        member.ports().unbind(binding.row, member.owner())
    }

    /// Takes requests for the port's service. `backlog` 0 stands for 1024, and more than that is 1024.
    pub fn cm_listen(&self, binding: &Binding, backlog: u32, cookie: Cookie) -> Result<ListenerId, CmError> {
        let member = self.member()?;
        let row = member.ports().listen(binding.row, member.owner(), |owner| member.lives(owner))?;
        let listen = Listen { service: row.service, address: row.address, backlog, cookie };
        let listener = self.manage(|cm, now| cm.listen(now, &listen));
        match listener {
            Ok(_) => self.note_listeners(),
            Err(_) => member.ports().unlisten(binding.row, member.owner())?,
        }
        listener
    }

    /// Takes no more; requests that nobody has taken or answered are rejected. The port stays.
    pub fn cm_unlisten(&self, binding: &Binding, listener: ListenerId) -> Result<(), CmError> {
        let done = self.manage(|cm, now| cm.unlisten(now, listener));
        let member = self.member()?;
        member.ports().unlisten(binding.row, member.owner())?;
        self.note_listeners();
        done
    }

    /// Who gets which requests has changed.
    fn note_listeners(&self) {
        if let Some(port) = &mut self.shared().lock().port {
            port.listeners_changed();
        }
    }

    /// See [`Cm::set_listener_cookie`].
    pub fn cm_set_listener_cookie(&self, listener: ListenerId, cookie: Cookie) -> Result<(), CmError> {
        self.manage(|cm, _| cm.set_listener_cookie(listener, cookie))
    }

    /// See [`Cm::taken`].
    pub fn cm_taken(&self, id: ConnectionId) -> Result<(), CmError> {
        self.manage(|cm, _| {
            cm.taken(id);
            Ok(())
        })
    }

    /// See [`Cm::connect`].
    pub fn cm_connect(&self, connect: &Connect<'_>) -> Result<ConnectionId, CmError> {
        self.manage(|cm, now| cm.connect(now, connect))
    }

    /// See [`Cm::accept`].
    pub fn cm_accept(&self, id: ConnectionId, offer: &Offer, private: &[u8]) -> Result<(), CmError> {
        self.manage(|cm, now| cm.accept(now, id, offer, private))
    }

    /// See [`Cm::reject`].
    pub fn cm_reject(&self, id: ConnectionId, reason: Reason, private: &[u8]) -> Result<(), CmError> {
        self.manage(|cm, now| cm.reject(now, id, reason, private))
    }

    /// See [`Cm::establish`].
    pub fn cm_establish(&self, id: ConnectionId) -> Result<(), CmError> {
        self.manage(|cm, now| cm.establish(now, id))
    }

    /// See [`Cm::notify`].
    pub fn cm_notify(&self, id: ConnectionId) -> Result<(), CmError> {
        self.manage(|cm, now| cm.notify(now, id))
    }

    /// See [`Cm::disconnect`].
    pub fn cm_disconnect(&self, id: ConnectionId) -> Result<(), CmError> {
        self.manage(|cm, now| cm.disconnect(now, id))
    }

    /// See [`Cm::resolve`].
    pub fn cm_resolve(&self, resolve: &Resolve<'_>) -> Result<ConnectionId, CmError> {
        self.manage(|cm, now| cm.resolve(now, resolve))
    }

    /// See [`Cm::answer`].
    pub fn cm_answer(&self, id: ConnectionId, answer: &Resolved<'_>) -> Result<(), CmError> {
        self.manage(|cm, now| cm.answer(now, id, answer))
    }

    /// See [`Cm::refuse`].
    pub fn cm_refuse(&self, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        self.manage(|cm, now| cm.refuse(now, id, private))
    }

    /// See [`Cm::destroy`]. When it returns, the id's events are all told.
    pub fn cm_destroy(&self, id: ConnectionId) -> Result<(), CmError> {
        self.manage(|cm, now| cm.destroy(now, id))
    }

    /// See [`Cm::set_cookie`].
    pub fn cm_set_cookie(&self, id: ConnectionId, cookie: Cookie) -> Result<(), CmError> {
        self.manage(|cm, _| cm.set_cookie(id, cookie))
    }
}
