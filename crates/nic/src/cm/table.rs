//! The connections of a connection manager: by their own id, by their peer's, by the peer's queue pair, and
//! by when their time is over.

use super::types::{ConnectionId, Cookie, ListenerId};
use crate::limits;
use crate::slab::{Id, Slab};
use adverb_wire::cm::MAD_LEN;
use adverb_wire::{Duration, Gid, Instant, QpNumber};
use std::collections::{BTreeMap, BTreeSet};

/// How far a connection has come (IBTA 12.9). What the peer's process does not see is left out: a MRA only
/// moves a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// A REQ has left, and no answer has come.
    ReqSent,
    /// A REQ has come; the program is to answer.
    ReqReceived,
    /// A REP has left, and no RTU has come.
    RepSent,
    /// A REP has come; the program is to establish or reject.
    RepReceived,
    Established,
    /// A DREQ has left, and no answer has come.
    DreqSent,
    /// Ended; late messages are answered until its time is over.
    Timewait,
    /// Refused by this side; the refusal is repeated until its time is over.
    Refused,
    /// A SIDR_REQ has left, and no answer has come.
    SidrSent,
    /// A SIDR_REQ has come; the program is to answer.
    SidrReceived,
    /// It was answered; the answer is repeated until its time is over.
    SidrAnswered,
    /// Over: only its owner still names it.
    Idle,
}

/// Index and generation of a connection, of which its id on the wire is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    index: u32,
    generation: u32,
}

impl Id for Entry {
    fn new(index: u32, generation: u32) -> Self {
        Entry { index, generation }
    }
    fn index(self) -> u32 {
        self.index
    }
    fn generation(self) -> u32 {
        self.generation
    }
}

/// What the peer calls a connection: its address, its id, and whether that is a SIDR request's.
pub(super) type PeerKey = ([u8; 16], u32, bool);

/// One connection, or one request for a datagram service.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnectionId,
    /// The peer's id; 0 until it is known.
    pub remote: u32,
    pub peer: Gid,
    pub cookie: Cookie,
    /// Somebody names it; otherwise it goes when the wire needs it no more.
    pub owned: bool,
    pub state: State,
    pub transaction: u64,
    /// This side's queue pair, which a DREQ must name.
    pub qpn: QpNumber,
    /// The peer's.
    pub peer_qpn: QpNumber,
    /// It counts against this listener's backlog.
    pub waits: Option<ListenerId>,
    /// How often each of its messages is repeated.
    pub retries: u8,
    /// Repeats that are left.
    pub tries: u8,
    /// The peer's port, of who asked, and when.
    pub asked: Option<(u16, Instant)>,
    /// Until when nobody's listening there is not believed, once it was said.
    pub patience: Option<Instant>,
    /// Time between repeats.
    pub interval: Duration,
    deadline: Instant,
    /// What is repeated, when its time comes or when the peer repeats.
    pub message: Option<Box<[u8; MAD_LEN]>>,
    peer_key: Option<PeerKey>,
    peer_pair: Option<(u64, u32)>,
}

/// All connections.
pub(super) struct Table {
    slot: u8,
    /// Where generations begin, so that ids of one run are not those of the next.
    base: u8,
    slab: Slab<Entry, Connection>,
    by_peer: BTreeMap<PeerKey, u32>,
    by_pair: BTreeMap<(u64, u32), u32>,
    /// By this side's queue pair, those that were accepted.
    by_own: BTreeMap<QpNumber, u32>,
    by_time: BTreeSet<(Instant, u32)>,
}

impl Table {
    pub fn new(slot: u8, base: u8) -> Table {
        Table {
            slot,
            base,
            slab: Slab::new(limits::MAX_CM_IDS),
            by_peer: BTreeMap::new(),
            by_pair: BTreeMap::new(),
            by_own: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    fn name(&self, entry: Entry) -> ConnectionId {
        let generation = (entry.generation as u8).wrapping_add(self.base);
        ConnectionId(u32::from(self.slot) << 24 | u32::from(generation) << 16 | entry.index)
    }

    /// A new connection, in `Idle`. Where the table is full, one gives way that only late messages would
    /// need. `None` if there is none.
    pub fn insert(&mut self, peer: Gid, cookie: Cookie) -> Option<&mut Connection> {
        if !self.slab.has_room() {
            let index = self.by_time.iter().map(|(_, index)| *index).find(|index| {
                self.slab.peek(*index).is_some_and(|connection| {
                    let lingers =
                        matches!(connection.state, State::Timewait | State::Refused | State::SidrAnswered);
                    lingers && !connection.owned
                })
            })?;
            self.remove_at(index);
        }
        let connection = Connection {
            id: ConnectionId(0),
            remote: 0,
            peer,
            cookie,
            owned: true,
            state: State::Idle,
            transaction: 0,
            qpn: QpNumber::default(),
            peer_qpn: QpNumber::default(),
            waits: None,
            retries: 0,
            tries: 0,
            asked: None,
            patience: None,
            interval: Duration::ZERO,
            deadline: Instant::NEVER,
            message: None,
            peer_key: None,
            peer_pair: None,
        };
        let entry = self.slab.insert(connection).ok()?;
        let id = self.name(entry);
        let connection = self.slab.at(entry.index)?;
        connection.id = id;
        Some(connection)
    }

    /// The connection of an id, unless it is gone.
    pub fn get(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.slab.at(id.0 & 0xffff).filter(|connection| connection.id == id)
    }

    /// The connection that a peer names by its own id.
    pub fn of_peer(&mut self, key: PeerKey) -> Option<&mut Connection> {
        let index = *self.by_peer.get(&key)?;
        self.slab.at(index)
    }

    /// The connection with a peer's queue pair: adapter and number.
    pub fn of_pair(&mut self, pair: (u64, QpNumber)) -> Option<&mut Connection> {
        let index = *self.by_pair.get(&(pair.0, pair.1.get()))?;
        self.slab.at(index)
    }

    /// The connection that was accepted last for this side's queue pair.
    pub fn of_own(&mut self, number: QpNumber) -> Option<&mut Connection> {
        let index = *self.by_own.get(&number)?;
        self.slab.at(index)
    }

    /// A connection is accepted for this queue pair.
    pub fn set_own(&mut self, id: ConnectionId, number: QpNumber) {
        if let Some(connection) = self.get(id) {
            connection.qpn = number;
            self.by_own.insert(number, id.0 & 0xffff);
        }
    }

    /// The peer names a connection so from now on.
    pub fn set_peer(&mut self, id: ConnectionId, sidr: bool, pair: Option<(u64, QpNumber)>) {
        let index = id.0 & 0xffff;
        let Some(connection) = self.slab.at(index).filter(|connection| connection.id == id) else { return };
        let key = (connection.peer.0, connection.remote, sidr);
        connection.peer_key = Some(key);
        self.by_peer.insert(key, index);
        if let Some((guid, number)) = pair {
            connection.peer_pair = Some((guid, number.get()));
            connection.peer_qpn = number;
            self.by_pair.insert((guid, number.get()), index);
        }
    }

    /// The peer's queue pair may have another connection.
    pub fn forget_pair(&mut self, id: ConnectionId) {
        if let Some(pair) = self.get(id).and_then(|connection| connection.peer_pair.take()) {
            self.by_pair.remove(&pair);
        }
    }

    /// The peer names it no more, and its queue pair may have another connection.
    pub fn forget_peer(&mut self, id: ConnectionId) {
        let index = id.0 & 0xffff;
        let Some(connection) = self.slab.at(index).filter(|connection| connection.id == id) else { return };
        if let Some(key) = connection.peer_key.take() {
            self.by_peer.remove(&key);
        }
        if let Some(pair) = connection.peer_pair.take() {
            self.by_pair.remove(&pair);
        }
    }

    /// When something becomes due for a connection; [`Instant::NEVER`] for nothing.
    pub fn set_deadline(&mut self, id: ConnectionId, at: Instant) {
        let index = id.0 & 0xffff;
        let Some(connection) = self.slab.at(index).filter(|connection| connection.id == id) else { return };
        self.by_time.remove(&(connection.deadline, index));
        connection.deadline = at;
        if at != Instant::NEVER {
            self.by_time.insert((at, index));
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The next connection whose time is over; its deadline is taken back.
    pub fn expired(&mut self, now: Instant) -> Option<ConnectionId> {
        let (at, index) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        let connection = self.slab.at(index)?;
        connection.deadline = Instant::NEVER;
        Some(connection.id)
    }

    pub fn remove(&mut self, id: ConnectionId) {
        if self.get(id).is_some() {
            self.remove_at(id.0 & 0xffff);
        }
    }

    fn remove_at(&mut self, index: u32) {
        let Some(entry) = self.slab.id_at(index) else { return };
        self.forget_peer(self.name(entry));
        if let Some(connection) = self.slab.remove(entry) {
            self.by_time.remove(&(connection.deadline, index));
            if self.by_own.get(&connection.qpn) == Some(&index) {
                self.by_own.remove(&connection.qpn);
            }
        }
    }

    /// Whether a connection is like that.
    pub fn any(&self, is: impl Fn(&Connection) -> bool) -> bool {
        self.slab.iter().any(|(_, connection)| is(connection))
    }

    /// The ids of all connections.
    pub fn ids(&self) -> Vec<ConnectionId> {
        self.slab.iter().map(|(_, connection)| connection.id).collect()
    }

    pub fn check_invariants(&self) {
        let mut timed = 0;
        for (entry, connection) in self.slab.iter() {
            assert_eq!(connection.id, self.name(entry));
            if connection.deadline != Instant::NEVER {
                timed += 1;
                assert!(self.by_time.contains(&(connection.deadline, entry.index)));
            }
            if let Some(key) = &connection.peer_key {
                assert_eq!(self.by_peer.get(key), Some(&entry.index));
            }
            if let Some(pair) = &connection.peer_pair {
                assert_eq!(self.by_pair.get(pair), Some(&entry.index));
            }
            let has_end = matches!(
                connection.state,
                State::ReqSent
                    | State::RepSent
                    | State::DreqSent
                    | State::Timewait
                    | State::Refused
                    | State::SidrSent
                    | State::SidrAnswered
            );
            assert_eq!(connection.deadline != Instant::NEVER, has_end, "{connection:?}");
            let is_waiting = matches!(connection.state, State::ReqReceived | State::SidrReceived);
            assert!(connection.waits.is_none() || is_waiting, "{connection:?}");
        }
        assert_eq!(timed, self.by_time.len());
        let others = [self.by_peer.len(), self.by_pair.len(), self.by_own.len()];
        assert!(others.iter().all(|len| *len <= self.slab.len()));
    }
}
