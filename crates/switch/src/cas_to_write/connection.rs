//! Reliable connections to the server: the order of their requests, and what became of the last atomics of
//! each.

use super::lane::Lane;
use super::word::Owner;
use crate::frame::Frame;
use crate::program::PortId;
use adverb_wire::{Flow, Gid, Instant, Key, Operation, Packet, Psn, QpNumber};
use std::collections::{BTreeMap, VecDeque};

/// Results that are kept for each connection: an end may have 16 atomics under way at most, and answers for
/// so many must be found again (IBTA 9.7.5.1.1).
pub const RESULTS: usize = 16;
/// Requests that wait for each connection, at most.
pub const HELD: usize = 64;
/// Keys that the server has accepted, remembered for each connection.
const KEYS: usize = 8;
/// Sequence numbers further off than this are another life of the queue pair.
pub const WINDOW: i32 = 1 << 16;
/// A READ of at most so many bytes is one packet at every path MTU.
const SMALLEST_MTU: u32 = 256;

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The server decides.
    Native,
    /// It became a WRITE of this value.
    Change(u64),
    /// It became a WRITE of nothing.
    Nothing,
    /// It is a WRITE of this value to a followed word.
    Store(u64),
    /// It is a WRITE to a followed word whose value is not known: until it is acknowledged, nobody may learn
    /// the word.
    Written,
}

/// A tracked request, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number.
    pub psn: Psn,
    /// Messages of the connection up to and with it.
    pub message: u32,
    /// Its word.
    pub word: u32,
    /// The request's operation.
    pub operation: Operation,
    /// Its address.
    pub va: u64,
    /// Its key.
    pub rkey: Key,
    /// Its operands.
    pub operands: (u64, u64),
    /// The word's value before it.
    pub original: u64,
    /// What became of it.
    pub kind: Kind,
    /// An answer has gone to the client since it last asked.
    pub answered: bool,
    /// Too late: the word is the server's again, and this must not reach it any more.
    pub dead: bool,
    /// The server has executed it, as the answer to a later request of its queue pair says. Sent again it
    /// changes nothing.
    pub executed: bool,
}

impl Entry {
    /// One that has just left the switch: nothing came of it yet.
    pub const OPEN: Entry = Entry {
        psn: Psn::new(0),
        message: 0,
        word: 0,
        operation: Operation::CompareSwap,
        va: 0,
        rkey: Key(0),
        operands: (0, 0),
        original: 0,
        kind: Kind::Native,
        answered: false,
        dead: false,
        executed: false,
    };

    /// Whether the server does it as the client asked, and has said nothing of it.
    pub fn is_native(&self) -> bool {
        matches!(self.kind, Kind::Native | Kind::Written) && !self.answered && !self.executed
    }

    /// Whether the client waits for an atomic's answer that the switch makes.
    pub fn is_converted(&self) -> bool {
        matches!(self.kind, Kind::Change(_) | Kind::Nothing)
    }
}

/// A frame that waits.
#[derive(Debug)]
pub struct Waiting {
    /// The frame.
    pub frame: Box<Frame>,
    /// Where it came from and where it goes.
    pub ports: (PortId, PortId),
    /// How often it has come again meanwhile.
    pub again: u8,
}

/// What a connection's first waiting request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wait {
    /// The word.
    pub va: u64,
    /// Since when.
    pub since: Instant,
    /// Until when, at most.
    pub ends: Instant,
}

/// A connection, as the requests of its client show it.
#[derive(Debug)]
pub struct Connection {
    /// Who asks.
    pub client: Gid,
    /// The queue pair that is asked.
    pub server_qpn: QpNumber,
    /// The queue pair that asks, as soon as it is known: answers name only that.
    pub client_qpn: Option<QpNumber>,
    /// The first request that was seen.
    pub first: Psn,
    /// The next one in order.
    pub expected: Psn,
    /// The first one that the server has not acknowledged, with the message number before it, as soon as
    /// an answer has told. Of what came before the first request that was seen nothing is known.
    pub acknowledged: Option<(Psn, u32)>,
    /// Messages seen, up to the next one.
    pub messages: u32,
    /// What the server's message number is before the first of them.
    pub msn_base: Option<u32>,
    /// Payload bytes of a packet, as soon as they are known.
    pub path_mtu: Option<u32>,
    /// The order of its requests cannot be told: a READ of several packets at an unknown path MTU.
    pub uncounted: bool,
    /// What became of its last tracked requests, in order.
    pub entries: VecDeque<Entry>,
    /// Those before this place are answered.
    pub first_open: usize,
    /// Keys that the server has accepted from it.
    accepted: Vec<Key>,
    /// The first and the last number of atomics that passed and are not among these, while its answers cannot
    /// be told from those of others.
    untracked: Option<(Psn, Psn)>,
    /// The range that a WRITE of several packets is writing.
    pub writing: Option<(u64, u64)>,
    /// Requests that wait, in order, the first of them for a word.
    pub held: VecDeque<Waiting>,
    /// What the first one waits for.
    pub waits: Wait,
    /// From when on a request is missing.
    pub gap: Option<Instant>,
    /// When it was seen last.
    pub seen: Instant,
    /// The headers of its requests' packets, and the port that they come from.
    pub flow: Flow,
    /// See above.
    pub port: PortId,
    /// Its numbers at the server, where requests travel on other connections than their own.
    pub lane: Lane,
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
            acknowledged: None,
            messages: 0,
            msn_base: None,
            path_mtu: None,
            uncounted: false,
            entries: VecDeque::with_capacity(RESULTS),
            first_open: 0,
            accepted: Vec::new(),
            untracked: None,
            writing: None,
            held: VecDeque::new(),
            waits: Wait::default(),
            gap: None,
            seen: now,
            flow: Flow { src: client, ..Flow::default() },
            port: PortId::default(),
            lane: Lane::new(psn, now),
        }
    }

    /// Under which key, and in which process, the server has what this key names.
    pub fn owner(&self, rkey: Key) -> Owner {
        Owner { rkey, process: (self.server_qpn.get() >> 16) as u8 }
    }

    /// Whether the server has accepted the key from this queue pair.
    #[inline]
    pub fn accepts(&self, rkey: Key) -> bool {
        self.accepted.contains(&rkey)
    }

    /// The server has accepted the key.
    pub fn accept(&mut self, rkey: Key) {
        if !self.accepts(rkey) {
            if self.accepted.len() == KEYS {
                self.accepted.remove(0);
            }
            self.accepted.push(rkey);
        }
    }

    /// The tracked request of a number.
    pub fn entry(&mut self, psn: Psn) -> Option<&mut Entry> {
        self.entries.iter_mut().rev().find(|entry| entry.psn == psn)
    }

    /// Its place.
    pub fn place_of(&self, psn: Psn) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.psn == psn)
    }

    /// The tracked requests that may not be answered, with their places.
    pub fn unanswered(&self) -> impl Iterator<Item = (usize, &Entry)> {
        (self.first_open..self.entries.len()).map(|place| (place, &self.entries[place]))
    }

    /// The first tracked requests may have been answered.
    pub fn are_answered(&mut self) {
        while self.entries.get(self.first_open).is_some_and(|entry| entry.answered) {
            self.first_open += 1;
        }
    }

    /// The client waits again for a tracked request's answer.
    pub fn asks_again(&mut self, psn: Psn) {
        if let Some(place) = self.place_of(psn) {
            self.entries[place].answered = false;
            self.first_open = self.first_open.min(place);
        }
    }

    /// An atomic goes on that is not tracked: its answer may be taken for another connection's.
    pub fn passes_untracked(&mut self, psn: Psn) {
        let (mut first, mut last) = self.untracked.unwrap_or((psn, psn));
        first = if psn.is_before(first) { psn } else { first };
        last = if last.is_before(psn) { psn } else { last };
        self.untracked = Some((first, last));
    }

    /// The same of one in order.
    pub fn account_untracked(&mut self, packet: &Packet) {
        self.account(packet);
        self.passes_untracked(packet.bth.psn);
    }

    /// Whether an atomic of this number may have passed that is not tracked.
    pub fn may_have_asked(&self, psn: Psn) -> bool {
        self.untracked.is_some_and(|(first, last)| !psn.is_before(first) && !last.is_before(psn))
    }

    /// The oldest tracked request makes room.
    pub fn forget_oldest(&mut self) {
        self.entries.pop_front();
        self.first_open = self.first_open.saturating_sub(1);
    }

    /// A request in order is on its way.
    pub fn account(&mut self, packet: &Packet) {
        let operation = packet.bth.opcode.operation();
        if operation.is_first() || operation.is_middle() {
            self.learn_mtu(packet.payload_len);
        }
        let mut packets = 1;
        if operation == Operation::ReadRequest && packet.reth.len > SMALLEST_MTU {
            match self.path_mtu {
                Some(mtu) => packets = packet.reth.len.div_ceil(mtu),
                None => self.uncounted = true,
            }
        }
        self.gap = None;
        self.expected = packet.bth.psn.add(packets);
        let ends = operation.ends_message() || operation == Operation::ReadRequest || operation.is_atomic();
        self.messages = self.messages.wrapping_add(u32::from(ends));
        if operation == Operation::WriteFirst {
            self.writing = Some((packet.reth.va, u64::from(packet.reth.len)));
        } else if operation.ends_message() {
            self.writing = None;
        }
    }

    /// An answer says that the server has executed everything before this number.
    pub fn advance(&mut self, psn: Psn, msn: u32) {
        let inside = !psn.is_before(self.first) && psn.since(self.expected) <= 0;
        if inside && self.acknowledged.is_none_or(|(before, _)| before.is_before(psn)) {
            self.acknowledged = Some((psn, msn));
        }
    }

    /// Whether an answer says that requests are done which have not come in their order: one that had
    /// overtaken another on its way to the switch was overtaken on its way to the server. Its client would
    /// not send them again, and all that follows would be behind a gap.
    pub fn is_beyond(&self, packet: &Packet) -> bool {
        let is_nak = packet.bth.opcode.operation() == Operation::Acknowledge;
        packet.bth.psn.since(self.expected) >= i32::from(is_nak)
    }

    /// Nothing is known of it but its numbers: it begins anew with a request that another is missing before,
    /// if that one says itself where it writes. Else what follows would be behind a gap as above, whose
    /// client's own number is not known yet, so that its answers cannot be told from others.
    pub fn skips_to(&mut self, packet: &Packet) -> bool {
        let operation = packet.bth.opcode.operation();
        let says_where = !operation.is_write()
            || matches!(operation, Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm);
        let is_blank = self.client_qpn.is_none() && self.entries.is_empty() && self.held.is_empty();
        let skips = says_where && is_blank;
        if skips {
            let psn = packet.bth.psn;
            (self.first, self.expected, self.acknowledged, self.writing) = (psn, psn, None, None);
        }
        skips
    }

    /// Every packet of a message but its last is full.
    pub fn learn_mtu(&mut self, payload_len: u32) {
        if self.path_mtu.is_none() && payload_len.is_power_of_two() && (256..=4096).contains(&payload_len) {
            self.path_mtu = Some(payload_len);
        }
    }
}

/// The table of connections.
#[derive(Debug)]
pub struct Connections {
    slots: Vec<Option<Connection>>,
    free: Vec<u32>,
    room: usize,
    by_request: BTreeMap<(u128, u32), u32>,
    by_answer: BTreeMap<(u128, u32), u32>,
    /// Once there were more than there is room for: some are not followed.
    pub overflowed: bool,
}

impl Connections {
    /// Room for so many.
    pub fn new(room: usize) -> Connections {
        let (slots, free) = (Vec::new(), Vec::new());
        let (by_request, by_answer) = (BTreeMap::new(), BTreeMap::new());
        Connections { slots, free, room, by_request, by_answer, overflowed: false }
    }

    /// Room for so many, which are not fewer than before.
    pub fn grow(&mut self, room: usize) {
        assert!(room >= self.room, "who is there stays");
        self.room = room;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_request.len()
    }

    /// The connection that a request belongs to.
    pub fn of_request(&self, client: Gid, server_qpn: QpNumber) -> Option<u32> {
        self.by_request.get(&(client.bits(), server_qpn.get())).copied()
    }

    /// The connection that an answer belongs to.
    pub fn of_answer(&self, client: Gid, client_qpn: QpNumber) -> Option<u32> {
        self.by_answer.get(&(client.bits(), client_qpn.get())).copied()
    }

    /// Whether there is room for another.
    pub fn has_room(&self) -> bool {
        self.count() < self.room
    }

    /// Follows a connection. There must be room, and none of that name.
    pub fn add(&mut self, connection: Connection) -> u32 {
        assert!(self.has_room(), "room was asked for");
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        if at as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.by_request.insert((connection.client.bits(), connection.server_qpn.get()), at);
        self.slots[at as usize] = Some(connection);
        at
    }

    /// The client's queue pair of a connection is known now. One that had that number before has lost it.
    pub fn pair(&mut self, at: u32, client_qpn: QpNumber) {
        let client = self.get(at).client;
        if let Some(before) = self.by_answer.insert((client.bits(), client_qpn.get()), at)
            && before != at
        {
            self.get_mut(before).client_qpn = None;
        }
        if let Some(other) = self.get_mut(at).client_qpn.replace(client_qpn)
            && other != client_qpn
        {
            self.by_answer.remove(&(client.bits(), other.get()));
        }
    }

    /// Takes a connection out.
    pub fn remove(&mut self, at: u32) -> Connection {
        let gone = self.slots[at as usize].take().expect("a connection that is there");
        self.by_request.remove(&(gone.client.bits(), gone.server_qpn.get()));
        if let Some(qpn) = gone.client_qpn {
            self.by_answer.remove(&(gone.client.bits(), qpn.get()));
        }
        self.free.push(at);
        gone
    }

    /// A connection that is there.
    #[inline]
    pub fn get(&self, at: u32) -> &Connection {
        self.slots[at as usize].as_ref().expect("a connection that is there")
    }

    /// A connection that is there.
    #[inline]
    pub fn get_mut(&mut self, at: u32) -> &mut Connection {
        self.slots[at as usize].as_mut().expect("a connection that is there")
    }

    /// The connections of one client.
    pub fn of_client(&self, client: Gid) -> impl Iterator<Item = u32> + '_ {
        self.by_request.range((client.bits(), 0)..=(client.bits(), u32::MAX)).map(|(_, at)| *at)
    }

    /// All of them, with their places.
    pub fn all(&self) -> impl Iterator<Item = (u32, &Connection)> {
        self.slots.iter().enumerate().filter_map(|(at, there)| there.as_ref().map(|c| (at as u32, c)))
    }
}
