//! The draft's own scheme for atomics, as its two sections say it and no better: what `cas_to_write` in the
//! mode `"paper"` is. It is for the simulator only, where it shows what the draft loses and what the rules of
//! [`cas_to_write`](crate::cas_to_write) are for.
//!
//! - A word's value is what the last decision made of it. A compare and swap goes on as a WRITE of the
//!   outcome, a refused one as a WRITE of the current value.
//! - All operations on a word travel on one queue pair, a *carrier*: one of the clients' own, chosen by the
//!   word's address. Everything else stays on its client's, which is renumbered, as it may be a carrier too.
//! - Each packet to memory takes the carrier's next number, and an entry in the carrier's ring, by which its
//!   answer is given back. An answer speaks for every entry before it: each other client gets one answer.
//! - Of each queue pair the most recent number and what became of it are kept. A request whose number does
//!   not advance gets that again.
//! - A sequence NAK is sent to all clients with requests outstanding on the carrier.
//!
//! Requests are mapped once all clients are known ([`PaperConfig::clients`]); a client's number is learned
//! from its first atomic's answer. Not in the text, and needed to run it: message numbers are counted for
//! each client, and the bytes of a WRITE are the server's.

use crate::cas_to_write::CasConfig;
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::{Context, PortId};
use crate::trace::Note;
use adverb_wire::{
    Aeth, Flow, Gid, NakCode, Opcode, Operation, Packet, Psn, QpNumber, Reth, Service, Syndrome,
};
use std::collections::BTreeMap;

/// Entries of a carrier's ring ("Ring 128").
pub const RING: usize = 128;
/// Connections at most.
pub const CLIENTS_MAX: usize = 512;

/// What the scheme is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PaperConfig {
    /// Whose words.
    pub cas: CasConfig,
    /// Requests are mapped when so many connections are known.
    pub clients: usize,
}

impl PaperConfig {
    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        self.cas.check()?;
        match (1..=CLIENTS_MAX).contains(&self.clients) {
            true => Ok(()),
            false => Err("mode \"paper\" needs clients, 1 to 512: it begins when it knows all of them"),
        }
    }
}

/// What a request has become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// An atomic that the server decides: the word is unknown.
    Native,
    /// A WRITE of this value.
    Write(u64),
    /// No atomic of a word.
    Other,
}

/// An entry of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    /// Its number on the carrier.
    out: Psn,
    /// Whose request, and under which number of its own.
    of: usize,
    psn: Psn,
    kind: Kind,
    operation: Operation,
    va: u64,
    operands: (u64, u64),
    /// The word's value before.
    original: u64,
    /// The client's message.
    message: u32,
    answered: bool,
}

/// The most recent request of a queue pair, and where it went.
#[derive(Clone, Copy, Debug)]
struct Latest {
    carrier: usize,
    entry: Entry,
}

/// A connection: a client's, and a carrier of all.
#[derive(Debug)]
struct Connection {
    client: Gid,
    port: PortId,
    server_qpn: QpNumber,
    client_qpn: Option<QpNumber>,
    /// From here on requests are mapped.
    opened: Psn,
    /// The client's next number.
    expected: Psn,
    /// The carrier's next number.
    out: Psn,
    /// The headers that the server expects of this queue pair's requests.
    flow: Flow,
    messages: u32,
    msn_base: u32,
    latest: Option<Latest>,
    ring: Box<[Option<Entry>; RING]>,
}

impl Connection {
    fn slot(&mut self, out: Psn) -> &mut Option<Entry> {
        &mut self.ring[out.get() as usize % RING]
    }

    /// Places of entries that are not answered and not behind this number, in the carrier's order.
    fn open_up_to(&self, last: Psn) -> Vec<Entry> {
        let open = self.ring.iter().flatten().filter(|e| !e.answered && e.out.since(last) <= 0);
        let mut open: Vec<Entry> = open.copied().collect();
        open.sort_by_key(|entry| std::cmp::Reverse(last.since(entry.out)));
        open
    }
}

/// The scheme's state.
#[derive(Debug)]
pub struct Paper {
    config: PaperConfig,
    words: BTreeMap<u64, u64>,
    connections: Vec<Connection>,
    by_request: BTreeMap<([u8; 16], u32), usize>,
    by_answer: BTreeMap<([u8; 16], u32), usize>,
    /// All clients are known.
    maps: bool,
}

impl Paper {
    /// A scheme that knows nobody yet.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: PaperConfig) -> Result<Paper, &'static str> {
        config.check()?;
        Ok(Paper {
            config,
            words: BTreeMap::new(),
            connections: Vec::new(),
            by_request: BTreeMap::new(),
            by_answer: BTreeMap::new(),
            maps: false,
        })
    }

    /// What it was told.
    pub fn config(&self) -> &PaperConfig {
        &self.config
    }

    /// Whether answers are outstanding.
    pub fn awaits(&self) -> bool {
        let entries = |c: &Connection| c.ring.iter().flatten().any(|entry| !entry.answered);
        self.connections.iter().any(entries)
    }

    /// Deals with one frame.
    pub fn on_frame(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = &frame.packet;
        let server = self.config.cas.server;
        let is_response = packet.bth.opcode.operation().is_response();
        let (to_server, from_server) =
            (packet.flow.dst == server && !is_response, packet.flow.src == server && is_response);
        match packet.bth.opcode.is_of(Service::Rc) && !frame.has_options() {
            true if to_server => self.on_request(ctx, frame),
            true if from_server => self.on_answer(ctx, frame),
            _ => ctx.pass_on(frame),
        }
    }

    fn on_request(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = frame.packet;
        let Some(of) = self.connection_of(ctx, &packet) else { return ctx.pass_on(frame) };
        let connection = &mut self.connections[of];
        let advances = packet.bth.psn.since(connection.expected) >= 0;
        if self.maps && !packet.bth.psn.is_before(connection.opened) {
            return match (advances, connection.latest) {
                (false, Some(latest)) => {
                    ctx.count(Counter::Repeated);
                    ctx.note(&packet, Note::Repeated);
                    if let Some(entry) = self.connections[latest.carrier].slot(latest.entry.out)
                        && entry.out == latest.entry.out
                    {
                        entry.answered = false;
                    }
                    self.send(ctx, frame, &latest);
                }
                _ => self.map(ctx, of, frame),
            };
        }
        if advances {
            self.account(of, &packet);
            let connection = &mut self.connections[of];
            let (operation, word) =
                (packet.bth.opcode.operation(), self.config.cas.has_word(packet.atomic.va));
            if operation.is_atomic() && !operation.is_masked() && word {
                let entry = entry_of(&packet, of, packet.bth.psn, connection.messages);
                connection.latest = Some(Latest { carrier: of, entry });
            }
        }
        if packet.bth.opcode.operation().is_atomic() {
            ctx.count(Counter::AtomicsPassed);
        }
        ctx.pass_on(frame);
    }

    /// The connection of a request, from its first one on.
    fn connection_of(&mut self, ctx: &Context<'_>, packet: &Packet) -> Option<usize> {
        let name = (packet.flow.src.0, packet.bth.dest_qp.get());
        if let Some(of) = self.by_request.get(&name) {
            return Some(*of);
        }
        // "Once mapping, no new client can come."
        if self.maps || self.connections.len() == self.config.clients {
            return None;
        }
        let psn = packet.bth.psn;
        self.connections.push(Connection {
            client: packet.flow.src,
            port: ctx.from,
            server_qpn: packet.bth.dest_qp,
            client_qpn: None,
            opened: psn,
            expected: psn,
            out: psn,
            flow: packet.flow,
            messages: 0,
            msn_base: 0,
            latest: None,
            ring: Box::new([None; RING]),
        });
        self.by_request.insert(name, self.connections.len() - 1);
        Some(self.connections.len() - 1)
    }

    /// A new request of a client has come. No packet says the path MTU, so each counts for one number, as the
    /// draft's do.
    fn account(&mut self, of: usize, packet: &Packet) {
        let connection = &mut self.connections[of];
        let operation = packet.bth.opcode.operation();
        connection.expected = packet.bth.psn.next();
        let ends = operation.ends_message() || operation == Operation::ReadRequest || operation.is_atomic();
        connection.messages = connection.messages.wrapping_add(u32::from(ends));
    }

    /// Sends a new request on the connection that is chosen for it.
    fn map(&mut self, ctx: &mut Context<'_>, of: usize, frame: Box<Frame>) {
        let packet = frame.packet;
        let operation = packet.bth.opcode.operation();
        let atomic =
            operation.is_atomic() && !operation.is_masked() && self.config.cas.has_word(packet.atomic.va);
        let carrier = match atomic {
            true => (packet.atomic.va / 8) as usize % self.connections.len(),
            false => of,
        };
        self.account(of, &packet);
        let message = self.connections[of].messages;
        let out = self.connections[carrier].out;
        let mut entry = entry_of(&packet, of, out, message);
        if atomic {
            entry.kind = self.decide(ctx, &packet, &mut entry);
        }
        let connection = &mut self.connections[carrier];
        connection.out = out.next();
        if connection.slot(out).replace(entry).is_some_and(|before| !before.answered) {
            ctx.count(Counter::RingOverrun);
        }
        if carrier != of {
            ctx.count(Counter::Moved);
        }
        let latest = Latest { carrier, entry };
        self.connections[of].latest = Some(latest);
        self.send(ctx, frame, &latest);
    }

    /// Decides an atomic by what the last decision made of its word.
    fn decide(&mut self, ctx: &mut Context<'_>, packet: &Packet, entry: &mut Entry) -> Kind {
        let Some(value) = self.words.get_mut(&entry.va) else {
            ctx.count(Counter::AtomicsPassed);
            ctx.note(packet, Note::Passed);
            return Kind::Native;
        };
        entry.original = *value;
        let (counter, note) = match after(entry.operation, entry.operands, *value) {
            sum if entry.operation == Operation::FetchAdd => {
                *value = sum;
                (Counter::FetchAdded, Note::Added(sum))
            }
            _ if entry.operands.1 != *value => (Counter::CasRefused, Note::Refused(*value)),
            swap => {
                *value = swap;
                (Counter::CasGranted, Note::Granted(swap))
            }
        };
        ctx.count(counter);
        ctx.note(packet, note);
        Kind::Write(*value)
    }

    /// Emits a request as what it has become.
    fn send(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>, to: &Latest) {
        let carrier = &self.connections[to.carrier];
        let mut packet = frame.packet;
        packet.flow = Flow { traffic_class: packet.flow.traffic_class, ..carrier.flow };
        packet.bth.dest_qp = carrier.server_qpn;
        packet.bth.psn = to.entry.out;
        match to.entry.kind {
            Kind::Write(value) if packet.bth.opcode.operation().is_atomic() => {
                packet.bth.opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
                packet.bth.ack_req = true;
                packet.reth = Reth { va: packet.atomic.va, rkey: packet.atomic.rkey, len: 8 };
                packet.atomic = Default::default();
                packet.payload_len = 8;
                frame.change(packet, &self.config.cas.bytes(value));
            }
            _ => frame.readdress(packet),
        }
        ctx.pass_on(frame);
    }

    fn on_answer(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = frame.packet;
        let name = (packet.flow.dst.0, packet.bth.dest_qp.get());
        let carrier = self.by_answer.get(&name).copied();
        match carrier {
            Some(at) if self.maps && !packet.bth.psn.is_before(self.connections[at].opened) => {
                self.give_back(ctx, at, frame);
            }
            _ => {
                if packet.bth.opcode.operation() == Operation::AtomicAcknowledge {
                    self.learn_client(ctx, &packet);
                }
                ctx.pass_on(frame);
            }
        }
    }

    /// An atomic's answer from before the mapping tells a client's number and a word's value.
    fn learn_client(&mut self, ctx: &mut Context<'_>, packet: &Packet) {
        let waits = |c: &Connection| {
            let own = c.client_qpn.is_none_or(|qpn| qpn == packet.bth.dest_qp);
            let latest = c.latest.is_some_and(|latest| latest.entry.psn == packet.bth.psn);
            c.client == packet.flow.dst && own && latest
        };
        let mut fitting = (0..self.connections.len()).filter(|at| waits(&self.connections[*at]));
        let (Some(at), None) = (fitting.next(), fitting.next()) else { return };
        let connection = &mut self.connections[at];
        let Some(Latest { entry, .. }) = connection.latest else { return };
        connection.msn_base = packet.aeth.msn.wrapping_sub(entry.message);
        if connection.client_qpn.replace(packet.bth.dest_qp).is_none() {
            ctx.count(Counter::Paired);
        }
        self.by_answer.insert((connection.client.0, packet.bth.dest_qp.get()), at);
        self.learn_word(ctx, packet, &entry);
        let paired = self.connections.iter().filter(|c| c.client_qpn.is_some()).count();
        if !self.maps && paired == self.config.clients {
            self.maps = true;
            for connection in &mut self.connections {
                (connection.opened, connection.out) = (connection.expected, connection.expected);
                connection.latest = None;
            }
        }
    }

    fn learn_word(&mut self, ctx: &mut Context<'_>, packet: &Packet, entry: &Entry) {
        if self.words.len() == self.config.cas.words_max && !self.words.contains_key(&entry.va) {
            return ctx.count(Counter::WordsFull);
        }
        let value = after(entry.operation, entry.operands, packet.atomic_original);
        self.words.insert(entry.va, value);
        ctx.note(packet, Note::Learned(value));
    }

    /// An answer of a carrier speaks for every entry up to its number.
    fn give_back(&mut self, ctx: &mut Context<'_>, carrier: usize, frame: Box<Frame>) {
        let packet = frame.packet;
        let (psn, operation) = (packet.bth.psn, packet.bth.opcode.operation());
        if operation == Operation::Acknowledge
            && packet.aeth.syndrome == Syndrome::Nak(NakCode::PsnSequenceError)
        {
            return self.broadcast(ctx, carrier, &frame);
        }
        let open = self.connections[carrier].open_up_to(psn);
        let own = self.connections[carrier].slot(psn).filter(|entry| entry.out == psn);
        // One answer for each other client, by its last entry.
        for (at, entry) in open.iter().enumerate() {
            if let Some(slot) = self.connections[carrier].slot(entry.out) {
                slot.answered = true;
            }
            let is_last = open[at + 1..].iter().all(|later| later.of != entry.of);
            if is_last && entry.out != psn && own.is_none_or(|own| own.of != entry.of) {
                ctx.count(Counter::DeCoalesced);
                self.acknowledge(ctx, &frame, entry);
            }
        }
        let Some(own) = own else { return ctx.drop(&packet, Drop::AckUnseen) };
        let is_plain =
            operation == Operation::Acknowledge && matches!(packet.aeth.syndrome, Syndrome::Ack { .. });
        match own.kind {
            _ if !open.iter().any(|entry| entry.out == psn) => ctx.drop(&packet, Drop::AckBare),
            Kind::Native if operation == Operation::AtomicAcknowledge => {
                self.learn_word(ctx, &packet, &own);
                self.hand_back(ctx, frame, &own);
            }
            Kind::Write(_) | Kind::Other if is_plain => self.acknowledge(ctx, &frame, &own),
            Kind::Native if is_plain => ctx.drop(&packet, Drop::AckBare),
            _ => self.hand_back(ctx, frame, &own),
        }
    }

    /// Makes the answer that an entry's client waits for, of an acknowledgement.
    fn acknowledge(&mut self, ctx: &mut Context<'_>, ack: &Frame, entry: &Entry) {
        let connection = &self.connections[entry.of];
        let Some(qpn) = connection.client_qpn else {
            unreachable!("all are known before requests are mapped")
        };
        let mut packet = Packet { flow: ack.packet.flow, bth: ack.packet.bth, ..Packet::default() };
        packet.flow.dst = connection.client;
        (packet.bth.dest_qp, packet.bth.psn) = (qpn, entry.psn);
        let syndrome = match ack.packet.aeth.syndrome {
            syndrome @ Syndrome::Ack { .. } => syndrome,
            _ => Syndrome::default(),
        };
        packet.aeth = Aeth { syndrome, msn: connection.msn_base.wrapping_add(entry.message) & 0xff_ffff };
        packet.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        match entry.kind {
            Kind::Write(_) => {
                packet.bth.opcode = Opcode::new(Service::Rc, Operation::AtomicAcknowledge);
                packet.atomic_original = entry.original;
                ctx.count(Counter::Answered);
                ctx.note(&packet, Note::Answered(entry.original));
            }
            // What the server decides it also answers.
            Kind::Native => return,
            Kind::Other => {}
        }
        ctx.count(Counter::Generated);
        ctx.again();
        ctx.to = connection.port;
        ctx.pass_on(ack.made_like(packet, &[]));
    }

    /// Gives an answer back under its client's own number.
    fn hand_back(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>, entry: &Entry) {
        let connection = &self.connections[entry.of];
        let Some(qpn) = connection.client_qpn else {
            unreachable!("all are known before requests are mapped")
        };
        let mut packet = frame.packet;
        packet.flow.dst = connection.client;
        (packet.bth.dest_qp, packet.bth.psn) = (qpn, entry.psn);
        packet.aeth.msn = connection.msn_base.wrapping_add(entry.message) & 0xff_ffff;
        frame.readdress(packet);
        ctx.to = connection.port;
        ctx.pass_on(frame);
    }

    /// A sequence NAK goes to all clients with requests outstanding on the carrier; what is before its number
    /// has been executed.
    fn broadcast(&mut self, ctx: &mut Context<'_>, carrier: usize, nak: &Frame) {
        for entry in self.connections[carrier].open_up_to(nak.packet.bth.psn.add(Psn::MASK)) {
            if let Some(slot) = self.connections[carrier].slot(entry.out) {
                slot.answered = true;
            }
            ctx.count(Counter::DeCoalesced);
            self.acknowledge(ctx, nak, &entry);
        }
        let far = self.connections[carrier].out;
        let open = self.connections[carrier].open_up_to(far);
        for (at, entry) in open.iter().enumerate() {
            if open[..at].iter().any(|earlier| earlier.of == entry.of) {
                continue;
            }
            let connection = &self.connections[entry.of];
            let Some(qpn) = connection.client_qpn else { continue };
            let mut packet = nak.packet;
            packet.flow.dst = connection.client;
            (packet.bth.dest_qp, packet.bth.psn) = (qpn, entry.psn);
            packet.aeth.msn = connection.msn_base.wrapping_add(entry.message.wrapping_sub(1)) & 0xff_ffff;
            ctx.count(Counter::NaksBroadcast);
            ctx.count(Counter::Generated);
            ctx.again();
            ctx.to = connection.port;
            ctx.pass_on(nak.made_like(packet, &[]));
        }
    }
}

fn entry_of(packet: &Packet, of: usize, out: Psn, message: u32) -> Entry {
    let operation = packet.bth.opcode.operation();
    let (kind, va) = match operation.is_atomic() {
        true => (Kind::Native, packet.atomic.va),
        false => (Kind::Other, packet.reth.va),
    };
    let operands = (packet.atomic.swap_add, packet.atomic.compare);
    let (psn, original, answered) = (packet.bth.psn, 0, false);
    Entry { out, of, psn, kind, operation, va, operands, original, message, answered }
}

/// A word's value after an atomic that found this one.
fn after(operation: Operation, (operand, compare): (u64, u64), value: u64) -> u64 {
    match operation {
        Operation::FetchAdd => value.wrapping_add(operand),
        _ if compare == value => operand,
        _ => value,
    }
}
