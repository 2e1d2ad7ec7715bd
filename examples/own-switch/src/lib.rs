//! A sequencer in the switch: a fetch and add to the server is answered by the switch itself, with the next
//! number of a count that the switch keeps. The server's NIC sees a connection's first one only.
//!
//! - A number has the switch's epoch in its upper bits. Who starts a switch gives it an epoch that no other
//!   one had, so nothing has to be remembered from start to start, and nothing is handed out twice.
//! - Packets name the queue pair that they go to, and no other. So a connection's first requests go on to the
//!   server, whose answer tells the client's queue pair, and gets a number in the place of the word's value.
//!   From then on the switch answers. The server has not seen these requests: it does not move on, and so
//!   takes nothing else on that connection. What else comes is refused by a NAK.
//! - A request that is sent again gets another number. A client takes the first answer that it sees, so the
//!   other is skipped, and no table of answers is needed. A client that asks for `n` gets `n` in a row.
//! - A switch that is started anew does not know whom the one before it answered. It lets these requests
//!   pass, the server refuses them, and the clients' queue pairs fail: they learn what is in doubt.

use adverb_switch::register::digest;
use adverb_switch::{Context, Counter, Drop, Frame, Making, Note, Own, OwnConfig};
use adverb_switchd::{OwnKind, toml};
use adverb_wire::{
    Aeth, Duration, Gid, Instant, NakCode, Opcode, Operation, Packet, Psn, QpNumber, Service, Syndrome,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// Connections that are followed at most. The server answers others; they, too, get the switch's numbers.
pub const CONNECTIONS_MAX: usize = 1024;
/// Requests of a connection that may be under way while the server still has to answer.
pub const UNDER_WAY_MAX: usize = 64;
/// Numbers that one request may ask for.
pub const AT_ONCE_MAX: u64 = 1024;
/// Bits of a number that count; above them is the epoch.
pub const COUNT_BITS: u32 = 40;
/// A sequence number further off than this is of another connection with the same number.
const WINDOW: i32 = 1 << 16;
/// A connection that was silent for so long may lose its place to another.
const SILENT: Duration = Duration::from_ms(10_000);
/// Message numbers have 24 bits.
const MSN_MASK: u32 = 0xff_ffff;

/// What the sequencer is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The server that clients believe to ask.
    pub server: Gid,
    /// No other start of a switch for this server has this one.
    pub epoch: u64,
}

impl Making for Told {
    fn name(&self) -> &'static str {
        "sequencer"
    }

    fn begin(&self, _now: Instant) -> Result<Box<dyn Own>, &'static str> {
        Ok(Box::new(Sequencer::new(*self)?))
    }
}

/// The kind of program, for files: `kind = "sequencer"` with `server` and `epoch`.
pub const KIND: OwnKind = OwnKind { name: "sequencer", read };

fn read(mut table: toml::Table) -> Result<OwnConfig, String> {
    let server = table.remove("server").and_then(|value| value.as_str()?.parse::<IpAddr>().ok());
    let epoch = table.remove("epoch").and_then(|value| u64::try_from(value.as_integer()?).ok());
    if let Some(key) = table.keys().next() {
        return Err(format!("sequencer has no key {key}; it has server and epoch"));
    }
    let told = Told {
        server: server.ok_or("server: the server's address")?.into(),
        epoch: epoch.ok_or("epoch: a number that no start of a switch had before")?,
    };
    Sequencer::new(told)?;
    Ok(OwnConfig::new(told))
}

/// What it has counted.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Answers that the switch made itself.
    pub own: u64,
    /// Of these, to requests that were sent again.
    pub again: u64,
    /// Answers of the server that got the switch's number.
    pub by_server: u64,
    /// Requests that a sequencer does not take.
    pub refused: u64,
    /// NAKs for a request that was missing.
    pub gaps: u64,
    /// Answers that fit several connections, so that these stay the server's.
    pub ambiguous: u64,
    /// Connections that found no place.
    pub full: u64,
}

/// A connection to the server.
#[derive(Debug)]
struct Connection {
    /// The queue pair that asks, as soon as an answer has told.
    client_qpn: Option<QpNumber>,
    /// The next request in order.
    next: Psn,
    /// Requests that the server has to answer, and how many numbers each wants.
    asked: VecDeque<(Psn, u64)>,
    /// From this one on the switch answers.
    own_from: Option<Psn>,
    /// Requests that the switch is to answer when the server has answered those before.
    waiting: VecDeque<(Psn, u64)>,
    /// It asks for something else, too, or for too much at once: it is the server's for good.
    is_servers: bool,
    /// The client was told of the gap before `next`.
    told_gap: bool,
    /// Messages that are answered.
    msn: u32,
    seen: Instant,
}

/// A connection by who asks and the queue pair that is asked.
type Key = ([u8; 16], u32);

/// The program.
#[derive(Debug)]
pub struct Sequencer {
    told: Told,
    /// Numbers of this epoch that were handed out.
    count: u64,
    connections: BTreeMap<Key, Connection>,
    counts: Counts,
}

impl Sequencer {
    /// One that has handed out nothing.
    ///
    /// # Errors
    /// The epoch has no place in a number.
    pub fn new(told: Told) -> Result<Sequencer, &'static str> {
        if told.epoch >= 1 << (64 - COUNT_BITS) {
            return Err("epoch: below 16777216");
        }
        Ok(Sequencer { told, count: 0, connections: BTreeMap::new(), counts: Counts::default() })
    }

    /// The next numbers, if the epoch has so many.
    fn hand_out(&mut self, many: u64) -> Option<u64> {
        let first = self.count;
        let next = first.checked_add(many).filter(|next| *next <= 1 << COUNT_BITS)?;
        self.count = next;
        Some(self.told.epoch << COUNT_BITS | first)
    }

    fn on_request(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = frame.packet;
        let (psn, key) = (packet.bth.psn, (packet.flow.src.0, packet.bth.dest_qp.get()));
        let operation = packet.bth.opcode.operation();
        let many = packet.atomic.swap_add;
        let is_take = operation == Operation::FetchAdd;
        if operation.is_atomic() && (!is_take || !(1..=AT_ONCE_MAX).contains(&many)) {
            return self.refuse(ctx, &frame, key);
        }
        let is_other_life = |found: &Connection| !(-WINDOW..WINDOW).contains(&psn.since(found.next));
        if self.connections.get(&key).is_some_and(is_other_life) {
            self.connections.remove(&key);
        }
        if !self.connections.contains_key(&key) {
            if !is_take || !self.make_room(ctx.now) {
                self.counts.full += u64::from(is_take);
                return ctx.pass_on(frame);
            }
            self.connections.insert(key, Connection::new(psn, ctx.now));
        }
        let Some(connection) = self.connections.get_mut(&key) else { unreachable!("it was added") };
        connection.seen = ctx.now;
        match connection.own_from {
            Some(first) if !psn.is_before(first) && is_take => self.on_own(ctx, &frame, key),
            Some(first) if !psn.is_before(first) => self.refuse(ctx, &frame, key),
            Some(_) => ctx.pass_on(frame),
            None if is_take && connection.may_become_own(psn) => {
                connection.own_from = Some(psn);
                self.on_own(ctx, &frame, key);
            }
            None => {
                connection.note_asked(psn, is_take.then_some(many));
                ctx.pass_on(frame);
            }
        }
    }

    /// A request that the switch answers.
    fn on_own(&mut self, ctx: &mut Context<'_>, frame: &Frame, key: Key) {
        let (psn, many) = (frame.packet.bth.psn, frame.packet.atomic.swap_add);
        let Some(connection) = self.connections.get_mut(&key) else { unreachable!("its caller found it") };
        let is_free = connection.asked.is_empty();
        if connection.next.is_before(psn) {
            // A request is missing before it. While the server has to answer, its client asks again anyway.
            ctx.drop(&frame.packet, Drop::Gap);
            if is_free && !std::mem::replace(&mut connection.told_gap, true) {
                let (qpn, next, msn) = (connection.client_qpn, connection.next, connection.msn);
                self.counts.gaps += 1;
                nak(ctx, frame, qpn, Aeth { syndrome: Syndrome::Nak(NakCode::PsnSequenceError), msn }, next);
            }
            return;
        }
        let is_again = psn.is_before(connection.next);
        if !is_free {
            if !is_again && connection.waiting.len() < UNDER_WAY_MAX {
                connection.next = psn.next();
                connection.waiting.push_back((psn, many));
            }
            // It is answered behind those before it, once.
            return ctx.note(&frame.packet, Note::Own("waits for the server; waiting", u64::from(!is_again)));
        }
        if !is_again {
            (connection.next, connection.told_gap) = (psn.next(), false);
        }
        self.counts.again += u64::from(is_again);
        let mut answer = answered(&frame.packet);
        (answer.bth.psn, answer.flow.src, answer.flow.dst) =
            (psn, frame.packet.flow.dst, frame.packet.flow.src);
        if let Some(answer) = self.answer(ctx, key, answer, many, is_again) {
            ctx.again();
            ctx.send_back(frame.made_like(answer, &[]));
        }
    }

    /// Puts a number and the client's queue pair into an answer. None if no number is left.
    fn answer(
        &mut self,
        ctx: &mut Context<'_>,
        key: Key,
        mut answer: Packet,
        many: u64,
        is_again: bool,
    ) -> Option<Packet> {
        let Some(number) = self.hand_out(many) else {
            ctx.drop(&answer, Drop::Own);
            return None;
        };
        let connection = self.connections.get_mut(&key)?;
        connection.msn = connection.msn.wrapping_add(u32::from(!is_again)) & MSN_MASK;
        answer.bth.dest_qp = connection.client_qpn?;
        answer.aeth = Aeth { syndrome: Syndrome::default(), msn: connection.msn };
        answer.atomic_original = number;
        self.counts.own += 1;
        ctx.count(Counter::Generated);
        ctx.note(&answer, Note::Own("answered by the switch:", number));
        Some(answer)
    }

    /// Refuses a request, where it is known whom to tell; else its client asks until it gives up.
    fn refuse(&mut self, ctx: &mut Context<'_>, frame: &Frame, key: Key) {
        self.counts.refused += 1;
        ctx.drop(&frame.packet, Drop::Own);
        if let Some(connection) = self.connections.get(&key) {
            let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::InvalidRequest), msn: connection.msn };
            nak(ctx, frame, connection.client_qpn, aeth, frame.packet.bth.psn);
        }
    }

    /// The server has answered: the client gets a number, and perhaps those that wait behind it.
    fn on_answer(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        let mut packet = frame.packet;
        let (client, qpn, psn) = (packet.flow.dst.0, packet.bth.dest_qp, packet.bth.psn);
        let fits = |connection: &Connection| {
            connection.client_qpn.is_none_or(|known| known == qpn)
                && connection.asked.iter().any(|(asked, _)| *asked == psn)
        };
        let of_client = self.connections.range((client, 0)..=(client, u32::MAX));
        let mut fitting = of_client.filter(|(_, connection)| fits(connection)).map(|(key, _)| *key);
        let (first, is_several) = (fitting.next(), fitting.next().is_some());
        drop(fitting);
        self.counts.ambiguous += u64::from(is_several);
        let whose = first.filter(|_| !is_several);
        let wanted = whose.and_then(|key| {
            let connection = self.connections.get(&key)?;
            connection.asked.iter().find(|(asked, _)| *asked == psn).map(|(_, many)| *many)
        });
        // Of a request that nobody has noted, as much as one may want.
        let Some(number) = self.hand_out(wanted.unwrap_or(AT_ONCE_MAX)) else {
            return ctx.drop(&packet, Drop::Own);
        };
        packet.atomic_original = number;
        frame.change(packet, &[]);
        self.counts.by_server += 1;
        ctx.note(&packet, Note::Own("answered by the server, as", number));
        let mut behind = VecDeque::new();
        if let Some(connection) = whose.and_then(|key| self.connections.get_mut(&key)) {
            connection.client_qpn = Some(qpn);
            connection.msn = packet.aeth.msn;
            connection.asked.retain(|(asked, _)| psn.is_before(*asked));
            if connection.asked.is_empty() {
                behind = std::mem::take(&mut connection.waiting);
            }
        }
        let template = answered(&packet);
        let mut more = Vec::new();
        for (psn, many) in behind {
            let mut answer = template;
            answer.bth.psn = psn;
            let answer = whose.and_then(|key| self.answer(ctx, key, answer, many, false));
            more.extend(answer.map(|answer| frame.made_like(answer, &[])));
        }
        ctx.pass_on(frame);
        for answer in more {
            ctx.again();
            ctx.pass_on(answer);
        }
    }

    /// Whether a connection more has a place. One that has long been silent makes some.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.connections.len() < CONNECTIONS_MAX {
            return true;
        }
        let oldest = self.connections.iter().min_by_key(|(_, connection)| connection.seen);
        let silent = oldest.filter(|(_, connection)| now.since(connection.seen) >= SILENT);
        let Some(key) = silent.map(|(key, _)| *key) else { return false };
        self.connections.remove(&key).is_some()
    }
}

impl Connection {
    fn new(first: Psn, now: Instant) -> Connection {
        Connection {
            client_qpn: None,
            next: first,
            asked: VecDeque::new(),
            own_from: None,
            waiting: VecDeque::new(),
            is_servers: false,
            told_gap: false,
            msn: 0,
            seen: now,
        }
    }

    /// Whether the switch may answer from this request on: it is the next one, and all that were before were
    /// such requests, one of them answered.
    fn may_become_own(&self, psn: Psn) -> bool {
        self.client_qpn.is_some() && !self.is_servers && psn == self.next
    }

    /// A request goes on to the server. What comes behind a gap the server does not take.
    fn note_asked(&mut self, psn: Psn, many: Option<u64>) {
        let Some(many) = many.filter(|_| self.asked.len() < UNDER_WAY_MAX) else {
            self.is_servers = true;
            return;
        };
        if psn == self.next {
            self.next = psn.next();
            self.asked.push_back((psn, many));
        }
    }
}

/// The headers of an answer like this packet.
fn answered(like: &Packet) -> Packet {
    let mut packet = Packet { flow: like.flow, bth: like.bth, ..Packet::default() };
    packet.bth.opcode = Opcode::new(Service::Rc, Operation::AtomicAcknowledge);
    (packet.bth.ack_req, packet.bth.solicited) = (false, false);
    (packet.bth.fecn, packet.bth.becn) = (false, false);
    packet
}

/// Sends a NAK to who has asked, if its queue pair is known.
fn nak(ctx: &mut Context<'_>, frame: &Frame, qpn: Option<QpNumber>, aeth: Aeth, psn: Psn) {
    let Some(qpn) = qpn else { return };
    let mut packet = answered(&frame.packet);
    packet.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
    (packet.flow.src, packet.flow.dst) = (frame.packet.flow.dst, frame.packet.flow.src);
    (packet.bth.dest_qp, packet.bth.psn, packet.aeth) = (qpn, psn, aeth);
    ctx.count(Counter::Generated);
    ctx.again();
    ctx.send_back(frame.made_like(packet, &[]));
}

impl Own for Sequencer {
    fn on_frame(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        let packet = &frame.packet;
        let operation = packet.bth.opcode.operation();
        let is_asked = packet.flow.dst == self.told.server && !operation.is_response();
        let is_answer = packet.flow.src == self.told.server && operation == Operation::AtomicAcknowledge;
        if !packet.bth.opcode.is_of(Service::Rc) || frame.has_options() || !(is_asked || is_answer) {
            return ctx.pass_on(frame);
        }
        // What it says is believed, and what leaves gets a new sum, which would hide the damage.
        if !frame.is_sound() {
            return ctx.drop(&frame.packet, Drop::Icrc);
        }
        match is_asked {
            true => self.on_request(ctx, frame),
            false => self.on_answer(ctx, frame),
        }
    }

    fn digests(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("count", self.count),
            ("connections", digest(&self.connections)),
            ("counts", digest(&self.counts)),
        ]
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let Counts { own, again, by_server, refused, gaps, ambiguous, full } = self.counts;
        vec![
            ("numbers", self.count),
            ("answered", own),
            ("answered_again", again),
            ("answered_by_server", by_server),
            ("refused", refused),
            ("gaps", gaps),
            ("ambiguous", ambiguous),
            ("connections_full", full),
            ("connections", self.connections.len() as u64),
        ]
    }

    fn tables(&self) -> Vec<&'static str> {
        vec!["count"]
    }

    fn entries(&self, _table: &str) -> Vec<(u64, u64)> {
        vec![(0, self.count)]
    }

    /// Numbers are skipped, never given back.
    fn set_entry(&mut self, _table: &str, key: u64, value: Option<u64>) -> Result<(), String> {
        match value.filter(|value| key == 0 && *value >= self.count && *value <= 1 << COUNT_BITS) {
            Some(value) => {
                self.count = value;
                Ok(())
            }
            None => Err(format!("count has the entry 0, which only rises from {}", self.count)),
        }
    }

    /// A host that is back has other queue pairs; where the server has gone nobody is answered any more.
    fn on_gone(&mut self, _ctx: &mut Context<'_>, address: Gid) {
        let is_server = address == self.told.server;
        self.connections.retain(|(client, _), _| !is_server && *client != address.0);
    }

    fn awaits(&self) -> bool {
        self.connections.values().any(|connection| !connection.asked.is_empty())
    }

    fn check_invariants(&self) {
        for connection in self.connections.values() {
            assert!(connection.asked.len() <= UNDER_WAY_MAX && connection.waiting.len() <= UNDER_WAY_MAX);
            assert!(
                connection.waiting.is_empty() || !connection.asked.is_empty(),
                "who waits waits for the server"
            );
            assert!(
                connection.own_from.is_none() || connection.client_qpn.is_some(),
                "whom to answer is known"
            );
        }
    }
}
