//! The connection manager (IBTA 12), as rdma_cm uses it: REQ, REP, RTU and what ends a connection, and
//! service resolution for datagrams. Sans-IO: MADs in, MADs out, time passed in.
//!
//! It knows no queue pairs but their numbers: whoever calls moves them, when events say that it is time. What
//! peers repeat, it answers itself, whatever the program does meanwhile.
//!
//! ```text
//! types      what is asked for, what is told
//! table      connections by id, peer, queue pair and deadline
//! calls      what programs ask for
//! arrivals   what peers say; resolution has that of datagram services
//! between    requests that come just before their listener does
//! again      the same, seen from who asks
//! timers     repeats, and what becomes of who is not answered
//! ```

mod again;
mod arrivals;
#[cfg(test)]
mod attacks;
mod between;
mod calls;
mod resolution;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod types;

pub use types::{
    Address, CmError, CmEvent, Connect, ConnectionId, Cookie, DatagramRequest, Listen, ListenerId, Offer,
    Outgoing, PortSpace, Reason, Reply, Request, Resolve, Resolved, Service, What,
};

use crate::counters::counters;
use crate::limits;
use crate::random::{Generator, Purpose, Seed};
use crate::slab::Slab;
use adverb_wire::cm::{Mad, Message};
use adverb_wire::{Duration, Gid, Instant};
use between::Between;
use std::collections::{BTreeMap, VecDeque};
use table::{Connection, Table};

/// Times as Linux's rdma_cm says them in a REQ: 4.096 us * 2^n (`CMA_CM_RESPONSE_TIMEOUT`,
/// `CMA_CM_MRA_SETTING`, `CMA_MAX_CM_RETRIES`, `CMA_IBOE_PACKET_LIFETIME`).
pub(crate) mod exponents {
    pub const RESPONSE: u8 = 20;
    pub const MRA: u8 = 24;
    /// A peer's MRA asks for no more than this: 137 seconds.
    pub const MRA_MAX: u8 = 25;
    /// A peer's own time to answer is taken for no more than this: 66 seconds.
    pub const RESPONSE_MAX: u8 = 24;
}

/// What a connection manager is made with.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// The process's slot, the upper 8 bits of its ids.
    pub slot: u8,
    /// The adapter's GUID: one for all processes of an address.
    pub ca_guid: u64,
    /// After so long without an answer who asked repeats a message: 6.1 s, which is Linux's. Who was asked
    /// repeats as the request says.
    pub response: Duration,
    /// So often; 15 at most.
    pub retries: u8,
    /// How long packets of an ended connection may be on their way.
    pub timewait: Duration,
}

impl Default for CmConfig {
    fn default() -> CmConfig {
        CmConfig {
            slot: 0,
            ca_guid: 0,
            response: Duration::from_ms(6144),
            retries: 15,
            timewait: Duration::from_ms(2100),
        }
    }
}

counters! { CmCounters;
    /// Connection messages that came and could be read.
    cm_received,
    /// Connection messages sent, repeats included.
    cm_sent,
    /// Of these, repeats because no answer came.
    cm_repeats,
    /// Requests sent once more because nobody listened yet.
    cm_asked_again,
    /// Of the messages sent, answers to what a peer had repeated.
    cm_answered_again,
    /// Messages that had come before.
    cm_duplicates,
    /// Requests given to listeners.
    cm_requests,
    /// Requests kept for a moment, because their port was to have a listener soon.
    cm_kept,
    /// Connections that came up.
    cm_established,
    /// Of these, accepted ones whose peer sent data before its RTU came.
    cm_implied,
    /// Connections that ended.
    cm_disconnected,
    /// Refused: nobody listens for the service.
    cm_refused_service,
    /// Refused: as many requests wait as the listener lets.
    cm_refused_backlog,
    /// Refused: no room for another connection.
    cm_refused_full,
    /// Refused: the peer's queue pair has a connection already.
    cm_refused_stale,
    /// Refused: a request that nobody could take, by its transport, its addresses or its MTU.
    cm_refused_invalid,
    /// Messages about connections that are not there.
    cm_unknown,
    /// Connections that were given up because the peer did not answer.
    cm_unanswered,
    /// Dropped: no message of connection management.
    cm_drop_malformed,
    /// Dropped: a message that its connection does not expect.
    cm_drop_state,
    /// Not sent: too many wait to be.
    cm_drop_full,
}

/// One that takes requests.
#[derive(Debug)]
struct Listener {
    listen: Listen,
    /// Requests that count against its backlog.
    waiting: u32,
}

/// The connection manager of one process.
pub struct Cm {
    config: CmConfig,
    /// The NIC's own addresses.
    own: Vec<Gid>,
    table: Table,
    listeners: Slab<ListenerId, Listener>,
    by_service: BTreeMap<Service, Vec<ListenerId>>,
    between: Between,
    /// Upper half of this manager's transactions.
    agent: u32,
    out: VecDeque<Outgoing>,
    events: VecDeque<CmEvent>,
    counters: CmCounters,
}

impl Cm {
    /// A connection manager without connections, of a NIC with these addresses.
    pub fn new(config: CmConfig, own: Vec<Gid>, seed: impl Into<Seed>) -> Cm {
        let mut drawn = Generator::new(seed.into(), Purpose::Connections);
        let agent = drawn.word();
        let table = Table::new(config.slot, drawn.word() as u8);
        Cm {
            config,
            own,
            table,
            listeners: Slab::new(limits::MAX_CM_LISTENERS),
            by_service: BTreeMap::new(),
            between: Between::default(),
            agent,
            out: VecDeque::new(),
            events: VecDeque::new(),
            counters: CmCounters::default(),
        }
    }

    /// What has been counted.
    pub fn counters(&self) -> &CmCounters {
        &self.counters
    }

    /// Connections and requests that there are, lingering ones included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// When [`Cm::on_timer`] is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        [self.table.next_deadline(), self.between.next_deadline()].into_iter().flatten().min()
    }

    /// Whether messages wait to be sent.
    pub fn has_mads(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next MAD to send.
    pub fn next_mad(&mut self) -> Option<Outgoing> {
        self.out.pop_front()
    }

    /// Whether events wait to be taken.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The oldest event that has not been taken.
    pub fn next_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// Sends a message that is not repeated.
    fn send(&mut self, to: Gid, transaction: u64, message: Message) {
        self.send_bytes(to, Mad { transaction, message }.emit());
    }

    fn send_bytes(&mut self, to: Gid, bytes: [u8; adverb_wire::cm::MAD_LEN]) {
        if self.out.len() == limits::MAX_CM_MADS {
            self.counters.cm_drop_full += 1;
            return;
        }
        self.counters.cm_sent += 1;
        self.out.push_back(Outgoing { to, bytes });
    }

    /// Sends a connection's message, and repeats it until another deadline is set.
    fn send_repeated(&mut self, now: Instant, id: ConnectionId, message: Message) {
        let Some(connection) = self.table.get(id) else { return };
        connection.tries = connection.retries;
        let at = now + connection.interval;
        self.send_kept(id, message);
        self.table.set_deadline(id, at);
    }

    /// Sends a connection's message, and keeps it for when the peer repeats what it answers.
    fn send_kept(&mut self, id: ConnectionId, message: Message) {
        let Some(connection) = self.table.get(id) else { return };
        let bytes = Mad { transaction: connection.transaction, message }.emit();
        connection.message = Some(Box::new(bytes));
        let to = connection.peer;
        self.send_bytes(to, bytes);
    }

    /// Sends the message that was kept once more.
    fn send_again(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        let Some(bytes) = connection.message.as_deref().copied() else { return };
        let to = connection.peer;
        self.counters.cm_answered_again += 1;
        self.send_bytes(to, bytes);
    }

    /// Keeps a refusal, or the answer to a SIDR_REQ, for as long as the peer may ask again. It names the same
    /// queue pair in another request, if it likes.
    fn linger(&mut self, now: Instant, id: ConnectionId) {
        let asked_for = self.config.response.times(u64::from(self.config.retries) + 1);
        self.table.forget_pair(id);
        self.table.set_deadline(id, now + asked_for);
    }

    /// Tells a connection's owner, if it has one.
    fn tell(&mut self, id: ConnectionId, what: What) {
        let Some(Connection { owned: true, cookie, .. }) = self.table.get(id) else { return };
        let cookie = *cookie;
        self.events.push_back(CmEvent { id, cookie, what });
    }

    /// A request is answered, or taken: its listener may get another.
    fn no_longer_waits(&mut self, id: ConnectionId) {
        let Some(listener) = self.table.get(id).and_then(|connection| connection.waits.take()) else {
            return;
        };
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.waiting -= 1;
        }
    }

    /// Checks every invariant; for tests.
    pub fn check_invariants(&self) {
        self.table.check_invariants();
        self.between.check_invariants();
        assert!(self.out.len() <= limits::MAX_CM_MADS);
        assert!(self.events.len() <= self.table.len() * limits::MAX_CM_EVENTS_EACH);
        for (id, listener) in self.listeners.iter() {
            assert!(listener.waiting <= listener.listen.backlog);
            let of_service = &self.by_service[&listener.listen.service];
            assert_eq!(of_service.iter().filter(|other| **other == id).count(), 1);
        }
    }
}
