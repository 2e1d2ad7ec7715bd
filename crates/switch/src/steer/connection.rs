//! Connections, as their clients' requests show them: what became of the last ones, so that one that is sent
//! again becomes the same, and those that wait.

use crate::cas_to_write::word::Owner;
use crate::frame::Frame;
use crate::program::PortId;
use adverb_wire::{Gid, Instant, Key, Packet, Psn, QpNumber};
use std::collections::{BTreeMap, VecDeque};

/// Decisions that are kept of a connection: as many atomics and READs as a queue pair may have open.
pub const DECISIONS: usize = 16;
/// Keys that are kept of those which the server has accepted.
const KEYS: usize = 4;
/// A number that is off by more begins another life of the queue pair.
const WINDOW: i32 = 1 << 16;
/// The smallest path MTU: a READ takes at most so many numbers as it has parts of these bytes.
const SMALLEST_MTU: u32 = 256;

/// What was decided of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Its number.
    pub psn: Psn,
    /// The address that it named.
    pub from: u64,
    /// The address that it goes to.
    pub to: u64,
    /// What it was.
    pub kind: Decided,
}

/// What a decision was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decided {
    /// A READ of an entry.
    Read,
    /// A link.
    Link(Link),
}

/// A compare and swap that is to put an entry at a chain's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Where the chain stands, and its key: another may stand there by now.
    pub chain: u32,
    /// See above.
    pub key: u64,
    /// Under which key of the server, and in which process.
    pub owner: Owner,
    /// The entry.
    pub place: u64,
    /// Others have waited for it: it went to the entry that was the last one.
    pub led: bool,
    /// The server has said what came of it.
    pub answered: bool,
}

/// A READ that was sent to a chain's last entry and is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Its number.
    pub psn: Psn,
    /// Where the chain stands, and its key: another may stand there by now.
    pub chain: u32,
    /// See above.
    pub key: u64,
    /// Under which key of the server, and in which process.
    pub owner: Owner,
    /// The entry.
    pub to: u64,
    /// When it left; nothing, if it was sent again.
    pub since: Option<Instant>,
}

/// A request that waits, and between which ports.
#[derive(Debug)]
pub struct Waiting {
    /// The request.
    pub frame: Box<Frame>,
    /// From, and to.
    pub ports: (PortId, PortId),
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// Who asks.
    pub client: Gid,
    /// The queue pair that is asked.
    pub server_qpn: QpNumber,
    /// The queue pair that asks, as soon as it is known: answers name only that.
    pub client_qpn: Option<QpNumber>,
    /// The first request that was seen. It may have been sent before, when another switch was here.
    pub first: Psn,
    /// Behind the last number that was seen.
    pub expected: Psn,
    /// What was decided last, in order.
    pub decisions: VecDeque<Decision>,
    /// READs of last entries that are not answered, in order.
    pub looks: VecDeque<Look>,
    /// Keys under which the server has executed a compare and swap of it.
    accepted: VecDeque<Key>,
    /// Requests that wait, in order, the first of them for a chain.
    pub held: VecDeque<Waiting>,
    /// That chain, and since when.
    pub waits: (u32, Instant),
    /// When it was seen last.
    pub seen: Instant,
}

impl Connection {
    /// One whose first request has this number.
    pub fn new(client: Gid, server_qpn: QpNumber, psn: Psn, now: Instant) -> Connection {
        Connection {
            client,
            server_qpn,
            client_qpn: None,
            first: psn,
            expected: psn,
            decisions: VecDeque::with_capacity(DECISIONS),
            looks: VecDeque::new(),
            accepted: VecDeque::new(),
            held: VecDeque::new(),
            waits: (0, Instant::ZERO),
            seen: now,
        }
    }

    /// Under which key, and in which process, the server has what this key names.
    pub fn owner(&self, rkey: Key) -> Owner {
        Owner { rkey, process: (self.server_qpn.get() >> 16) as u8 }
    }

    /// Whether the server has executed a compare and swap of this queue pair under the key.
    pub fn accepts(&self, rkey: Key) -> bool {
        self.accepted.contains(&rkey)
    }

    /// The server has executed one.
    pub fn accept(&mut self, rkey: Key) {
        if !self.accepts(rkey) {
            if self.accepted.len() == KEYS {
                self.accepted.pop_front();
            }
            self.accepted.push_back(rkey);
        }
    }

    /// Whether a number is of another life of the queue pair than those before.
    pub fn begins_again(&self, psn: Psn) -> bool {
        psn.since(self.expected).abs() > WINDOW
    }

    /// What was decided of a request, or of the READ that this one is the rest of: a READ whose answer was
    /// lost in part is sent again from there on (IBTA 9.7.5.1.9).
    pub fn decided(&self, packet: &Packet, entry: u32) -> Option<&Decision> {
        let is_atomic = packet.bth.opcode.operation().is_atomic();
        self.decisions.iter().find(|decision| {
            let off = packet.bth.psn.since(decision.psn);
            match decision.kind {
                Decided::Link(link) => {
                    let same = (packet.atomic.va, packet.atomic.swap_add) == (decision.from, link.place);
                    is_atomic && off == 0 && same
                }
                Decided::Read => {
                    let len = u64::from(packet.reth.len);
                    let (va, end) = (packet.reth.va, decision.from.checked_add(entry.into()));
                    let part = match off {
                        0 => va == decision.from,
                        _ => va > decision.from && (1..=(entry / SMALLEST_MTU) as i32).contains(&off),
                    };
                    !is_atomic && part && va.checked_add(len) == end
                }
            }
        })
    }

    /// Keeps a decision.
    pub fn decide(&mut self, decision: Decision) {
        if self.decisions.len() == DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    /// A READ of a chain's last entry leaves; the one that is not watched any more for it.
    pub fn look(&mut self, look: Look) -> Option<Look> {
        let left = if self.looks.len() == DECISIONS { self.looks.pop_front() } else { None };
        self.looks.push_back(look);
        left
    }

    /// A request has come. If it is a READ that was sent before, its answer does not say how long it took.
    pub fn sent_again(&mut self, psn: Psn) {
        self.looks.iter_mut().filter(|look| look.psn == psn).for_each(|look| look.since = None);
    }

    /// The link of a number that has not been answered.
    pub fn open_link(&mut self, psn: Psn) -> Option<(u64, &mut Link)> {
        self.decisions.iter_mut().find_map(|decision| match &mut decision.kind {
            Decided::Link(link) if decision.psn == psn && !link.answered => Some((decision.to, link)),
            _ => None,
        })
    }
}

/// The table of connections.
#[derive(Debug)]
pub struct Connections {
    slots: Vec<Option<Connection>>,
    room: usize,
    by_request: BTreeMap<([u8; 16], u32), u32>,
    by_answer: BTreeMap<([u8; 16], u32), u32>,
}

impl Connections {
    /// Room for so many.
    pub fn new(room: usize) -> Connections {
        let (by_request, by_answer) = (BTreeMap::new(), BTreeMap::new());
        Connections { slots: Vec::new(), room, by_request, by_answer }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_request.len()
    }

    /// The connection that a request belongs to.
    pub fn of_request(&self, client: Gid, server_qpn: QpNumber) -> Option<u32> {
        self.by_request.get(&(client.0, server_qpn.get())).copied()
    }

    /// The connection that an answer belongs to.
    pub fn of_answer(&self, client: Gid, client_qpn: QpNumber) -> Option<u32> {
        self.by_answer.get(&(client.0, client_qpn.get())).copied()
    }

    /// The connections of one client.
    pub fn of_client(&self, client: Gid) -> impl Iterator<Item = u32> + '_ {
        self.by_request.range((client.0, 0)..=(client.0, u32::MAX)).map(|(_, at)| *at)
    }

    /// Whether there is room for another.
    pub fn has_room(&self) -> bool {
        self.count() < self.room
    }

    /// Follows a connection. There must be room, and none of that name.
    pub fn add(&mut self, connection: Connection) -> u32 {
        assert!(self.has_room(), "room was asked for");
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or(self.slots.len());
        if free.is_none() {
            self.slots.push(None);
        }
        self.by_request.insert((connection.client.0, connection.server_qpn.get()), at as u32);
        self.slots[at] = Some(connection);
        at as u32
    }

    /// The client's queue pair of a connection is known now. One that had that number before has lost it.
    pub fn pair(&mut self, at: u32, client_qpn: QpNumber) {
        let Some(connection) = self.get_mut(at) else { return };
        let client = connection.client;
        let before = connection.client_qpn.replace(client_qpn);
        if let Some(before) = before.filter(|before| *before != client_qpn) {
            self.by_answer.remove(&(client.0, before.get()));
        }
        let other = self.by_answer.insert((client.0, client_qpn.get()), at);
        if let Some(other) = other.filter(|other| *other != at).and_then(|other| self.get_mut(other)) {
            other.client_qpn = None;
        }
    }

    /// Takes a connection out.
    pub fn remove(&mut self, at: u32) -> Option<Connection> {
        let gone = self.slots.get_mut(at as usize)?.take()?;
        self.by_request.remove(&(gone.client.0, gone.server_qpn.get()));
        if let Some(qpn) = gone.client_qpn {
            self.by_answer.remove(&(gone.client.0, qpn.get()));
        }
        Some(gone)
    }

    /// A connection, if it is there.
    pub fn get(&self, at: u32) -> Option<&Connection> {
        self.slots.get(at as usize)?.as_ref()
    }

    /// A connection, if it is there.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut Connection> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    /// All of them, with their places.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Connection)> {
        self.slots.iter().enumerate().filter_map(|(at, there)| there.as_ref().map(|c| (at as u32, c)))
    }
}
