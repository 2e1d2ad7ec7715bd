//! A native service: requests and replies without connections, so that a server keeps nothing at all of an
//! idle client, in its NIC or beside it (StaR carried to its end; Trickles, NSDI 2005, is the idea for TCP).
//!
//! ```text
//!   client                                server
//!   hello                          ->     (answers from what stands in it)
//!                                  <-     record: a ticket, the clock
//!   RD: ticket, deadline, request  ->     history; a buffer; the application
//!                                  <-     WQEP: the reply
//!   EA: token                      ->     the reply's buffer is free
//! ```
//!
//! All that the server has is of fixed size: buffers of requests that wait, buffers of replies that are not
//! acknowledged, a history of what was executed in one lifetime. It has no timers: the client repeats its
//! request, and a copy of one that was replied to brings the reply again.
//!
//! **At most once.** All copies of a request carry one deadline. The server executes none after it, and
//! remembers each until then; a client that has no reply by then is told [`Outcome::ReplyLost`], never tries
//! again by itself. Only when the server's clock says that the deadline had passed before the first copy
//! left, so that none can have been executed, does a request get a new one.
//!
//! [`server`] and [`client`] are the halves; here is their way into the NIC. Numbers of both come from the
//! table of queue pair numbers, so that frames find the right process.

mod client;
mod server;

pub use client::{ClientConfig, ClientId, Outcome, Reached};
pub use server::{Reply, ServiceConfig};

use crate::error::Error;
use crate::frame::TxFrame;
use crate::ids::PathId;
use crate::limits::{MAX_QP, MAX_STAR_CLIENTS};
use crate::memory::Payload;
use crate::nic::Nic;
use crate::numbers::Numbers;
use crate::random::Seed;
use adverb_wire::{Gid, Instant, Packet, QpNumber};
use client::Clients;
use server::Server;

/// Owners of numbers: behind queue pairs and endpoints come clients, then services.
const FIRST_CLIENT: u32 = 2 * MAX_QP;
const FIRST_SERVICE: u32 = FIRST_CLIENT + MAX_STAR_CLIENTS;
/// Services of one NIC.
const MAX_SERVICES: u32 = 16;

/// A service of this NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceId(u32);

/// What a NIC has of services, from the first one on.
#[derive(Default)]
pub(crate) struct Native {
    servers: Vec<Option<Box<Server>>>,
    clients: Option<Box<Clients>>,
    /// When the NIC's timers look here next.
    entered: Option<Instant>,
}

/// Whether the owner of a number is a service, or a client of one.
#[inline]
pub(crate) fn has_index(index: u32) -> bool {
    index.wrapping_sub(FIRST_CLIENT) < MAX_STAR_CLIENTS + MAX_SERVICES
}

/// What both halves are given for each call.
struct Around<'a> {
    gids: &'a [Gid],
    counters: &'a mut crate::Counters,
}

impl Native {
    fn server(&mut self, id: ServiceId) -> Result<&mut Server, Error> {
        let place = self.servers.get_mut(id.0 as usize);
        place.and_then(Option::as_deref_mut).ok_or(Error::NoSuchObject)
    }

    fn clients(&mut self) -> Result<&mut Clients, Error> {
        self.clients.as_deref_mut().ok_or(Error::NoSuchObject)
    }

    fn next_frame(&mut self, now: Instant, around: &mut Around<'_>, out: &mut TxFrame) -> bool {
        self.servers.iter_mut().flatten().any(|server| server.next_frame(now, around, out))
            || self.clients.as_deref_mut().is_some_and(|clients| clients.next_frame(now, around, out))
    }
}

/// A number for the first free place of a kind.
fn numbered(numbers: &mut Numbers, first: u32, place: usize) -> Result<QpNumber, Error> {
    numbers.allocate(first + place as u32)
}

/// Services.
impl Nic {
    /// Opens a service. Its tickets' keys are drawn from `seed`, which outsiders must not know.
    pub fn open_service(
        &mut self,
        now: Instant,
        config: &ServiceConfig,
        seed: Seed,
    ) -> Result<ServiceId, Error> {
        let native = self.native.get_or_insert_default();
        let place = native.servers.iter().position(Option::is_none).unwrap_or(native.servers.len());
        if place >= MAX_SERVICES as usize {
            return Err(Error::TableFull);
        }
        let mut server = Server::new(now, config, seed)?;
        server.number = numbered(&mut self.numbers, FIRST_SERVICE, place)?;
        if place == native.servers.len() {
            native.servers.push(None);
        }
        native.servers[place] = Some(Box::new(server));
        Ok(ServiceId(place as u32))
    }

    /// The number that clients name.
    pub fn service_number(&self, id: ServiceId) -> Result<QpNumber, Error> {
        let place = self.native.as_ref().and_then(|native| native.servers.get(id.0 as usize));
        place.and_then(Option::as_ref).map(|server| server.number).ok_or(Error::NoSuchObject)
    }

    /// Bytes that a service has allocated, in the NIC and for its host: the same for any number of clients.
    pub fn service_bytes(&self, id: ServiceId) -> Result<usize, Error> {
        let place = self.native.as_ref().and_then(|native| native.servers.get(id.0 as usize));
        place.and_then(Option::as_ref).map(|server| server.allocated()).ok_or(Error::NoSuchObject)
    }

    /// Closes a service: no ticket of it opens anything any more.
    pub fn close_service(&mut self, id: ServiceId) -> Result<(), Error> {
        let native = self.native.as_mut().ok_or(Error::NoSuchObject)?;
        let place = native.servers.get_mut(id.0 as usize).ok_or(Error::NoSuchObject)?;
        let server = place.take().ok_or(Error::NoSuchObject)?;
        self.numbers.release(server.number);
        Ok(())
    }

    /// The oldest request that waits: its bytes, as many as `out` has room for, their number, and whom to
    /// reply to. Requests whose time is up are passed over.
    pub fn next_request(
        &mut self,
        now: Instant,
        id: ServiceId,
        out: &mut [u8],
    ) -> Result<Option<(usize, Reply)>, Error> {
        let native = self.native.as_mut().ok_or(Error::NoSuchObject)?;
        Ok(native.server(id)?.next_request(now, out, &mut self.state.counters))
    }

    /// Replies to a request. [`Error::NoSuchObject`] when its time is up, or when it has been replied to;
    /// [`Error::Busy`] when every buffer holds a reply that is not acknowledged.
    pub fn reply(&mut self, now: Instant, id: ServiceId, to: &Reply, bytes: &[u8]) -> Result<(), Error> {
        let native = self.native.as_mut().ok_or(Error::NoSuchObject)?;
        native.server(id)?.reply(now, to, bytes)?;
        self.state.has_effects = true;
        Ok(())
    }

    /// Opens a client of a service: says hello. `seed` is for the first client of this NIC; its requests'
    /// numbers are masked by what is drawn from it.
    pub fn open_client(
        &mut self,
        now: Instant,
        config: &ClientConfig,
        seed: impl FnOnce() -> Seed,
    ) -> Result<ClientId, Error> {
        if usize::from(config.gid) >= self.state.gids.len() {
            return Err(Error::Invalid("GID index"));
        }
        if self.state.registry.is_some() {
            return Err(Error::Unsupported("a service's client at a NIC with a registry"));
        }
        let native = self.native.get_or_insert_default();
        let clients = native.clients.get_or_insert_with(|| Box::new(Clients::new(seed())));
        let place = clients.place()?;
        let number = numbered(&mut self.numbers, FIRST_CLIENT, place)?;
        let id = clients.open(now, place, number, config);
        self.state.has_effects = true;
        self.enter_native();
        Ok(id)
    }

    /// Closes a client. What it has asked gets no answer any more.
    pub fn close_client(&mut self, id: ClientId) -> Result<(), Error> {
        let native = self.native.as_mut().ok_or(Error::NoSuchObject)?;
        let number = native.clients()?.close(id)?;
        self.numbers.release(number);
        Ok(())
    }

    /// Sends a request, which `tag` names when [`Nic::next_reached`] tells what came of it.
    pub fn request(&mut self, now: Instant, id: ClientId, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        let native = self.native.as_mut().ok_or(Error::NoSuchObject)?;
        native.clients()?.request(now, id, tag, bytes)?;
        self.state.has_effects = true;
        self.enter_native();
        Ok(())
    }

    /// What has become of a client's hello or request; a reply's bytes go to `out`, as many as it has room
    /// for.
    pub fn next_reached(&mut self, out: &mut [u8]) -> Option<Reached> {
        self.native.as_mut()?.clients.as_mut()?.next_reached(out)
    }

    /// Whether [`Nic::next_reached`] has something to tell.
    pub fn has_reached(&self) -> bool {
        let clients = self.native.as_ref().and_then(|native| native.clients.as_ref());
        clients.is_some_and(|clients| clients.has_reached())
    }

    /// Takes in a frame for a service, or for a client.
    #[cold]
    pub(crate) fn on_native_frame(
        &mut self,
        index: u32,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
    ) {
        let Some(native) = &mut self.native else { return };
        let mut around = Around { gids: &self.state.gids, counters: &mut self.state.counters };
        if index < FIRST_SERVICE {
            let Some(clients) = &mut native.clients else { return };
            clients.on_frame((index - FIRST_CLIENT) as usize, now, packet, payload, &mut around);
        } else {
            let Ok(server) = native.server(ServiceId(index - FIRST_SERVICE)) else { return };
            server.on_frame(now, packet, payload, &mut around);
        }
        self.state.has_effects = true;
        self.enter_native();
    }

    /// The next frame of a service, or of a client.
    pub(crate) fn put_native_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        let Some(native) = &mut self.native else { return false };
        if self.paths.is_blocked(PathId::DEFAULT) {
            return false;
        }
        let mut around = Around { gids: &self.state.gids, counters: &mut self.state.counters };
        if !native.next_frame(now, &mut around, out) {
            return false;
        }
        out.path = self.state.path_to(out.packet.flow.dst, out.packet.bth.dest_qp, PathId::DEFAULT);
        self.enter_native();
        true
    }

    /// Clients' timers may have run out.
    pub(crate) fn on_native_timer(&mut self, now: Instant) {
        let Some(native) = &mut self.native else { return };
        if native.entered.is_some_and(|at| at <= now) {
            native.entered = None;
        }
        if let Some(clients) = &mut native.clients {
            clients.on_timer(now);
        }
        self.state.has_effects = true;
        self.enter_native();
    }

    /// Has the NIC's timers look at the clients in time.
    fn enter_native(&mut self) {
        let Some(native) = &mut self.native else { return };
        let Some(at) = native.clients.as_deref().and_then(Clients::deadline) else { return };
        if native.entered.is_none_or(|entered| at < entered) {
            native.entered = Some(at);
            self.timers.enter(at, FIRST_CLIENT);
        }
    }
}
