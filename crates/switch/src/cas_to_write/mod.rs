//! Atomics that the switch decides (SwordBox, in place): a compare and swap or a fetch and add of a followed
//! word goes on as a WRITE of its outcome, on its own queue pair and under its own number, and the server's
//! acknowledgement becomes the atomic's answer. The server's NIC does a WRITE where it would have done an
//! atomic.
//!
//! The switch follows a word of the server from the first atomic on ([`word`]), and converts for a queue pair
//! as soon as the server has accepted the word's key from it. A refused compare and swap goes on as a WRITE
//! of nothing, so that sequence and message numbers agree. Requests of a connection are decided in their
//! order only ([`connection`]); what must wait for a word waits with all that comes behind it, for a stated
//! time. A request that is sent again becomes what it was before.
//!
//! An operation takes place, for those who look at the word, when the server executes its WRITE; one that was
//! refused, when the switch decided. Both lie between its request and its answer, because changes of one
//! word follow each other: the next one is decided when the server has acknowledged the last. That holds
//! for all accesses that pass the switch. Accesses that it does not follow (WRITEs of other lengths, masked
//! atomics, connections without a place in the table) leave the word to the server for a packet's life.
//!
//! What passes untouched: everything but RC to and from the server, and IPv4 with options. Of it, WRITEs and
//! atomics by UC, XRC and IRN leave their words to the server, too (`foreign.rs`). What StaR carries and
//! what the server's own processors do to a word is unseen; such words do not belong into the range.
//!
//! With [`CasConfig::carry`] atomics of all clients share queue pairs ([`carry`]), whose order takes the
//! place of waiting.
//!
//! Deviations from the paper: multiplexing is a choice, and without it compare and swaps wait for a pending
//! word even if they will be refused, so that no answer tells a value that may still be lost.

mod answers;
pub mod carry;
pub mod connection;
mod failing;
mod foreign;
mod hold;
pub mod lane;
mod mistake;
mod proof;
mod repeats;
mod requests;
mod stores;
mod told;
pub mod word;

use crate::budget::{Ability, Needs};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::{Context, PortId};
use crate::register::{Shape, digest};
use crate::switch::Announcement;
use adverb_wire::{Duration, Gid, Instant, Key, Service};
use carry::CarryConfig;
use connection::{Connection, Connections, Kind};
use foreign::Foreign;
pub use mistake::Mistake;
use std::collections::{BTreeSet, VecDeque};
use word::{State, WORD_LEN, Word, Words};

/// Words that one program follows, at most.
pub const WORDS_MAX: usize = 1 << 16;
/// Connections that one program follows, at most.
pub const CONNECTIONS_MAX: usize = 1 << 12;
/// Frames that wait in one program, at most.
pub const HELD_MAX: usize = 1 << 10;
/// Of these, frames of one client: who waits with many connections leaves room for others.
const HELD_OF_CLIENT: usize = HELD_MAX / 4;
/// Keys for which the server refused a WRITE, remembered at most.
const REFUSED_MAX: usize = 64;

/// Which addresses are words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordRange {
    /// Every aligned address that an atomic names.
    Any,
    /// Those of a range.
    Range {
        /// Its first byte, aligned.
        va: u64,
        /// Its length, a multiple of 8.
        len: u64,
    },
}

/// How the server's processors keep numbers. An atomic's operands are numbers, a WRITE's payload is bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ByteOrder {
    /// The least significant byte first, as x86 and Arm do.
    #[default]
    Little,
    /// The most significant byte first.
    Big,
}

/// What the program is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CasConfig {
    /// Whose words.
    pub server: Gid,
    /// Under this key only; by default under each that the server accepts.
    pub rkey: Option<Key>,
    /// Which addresses.
    pub words: WordRange,
    /// The server's.
    pub byte_order: ByteOrder,
    /// Words that are followed at most.
    pub words_max: usize,
    /// Connections that are followed at most.
    pub connections_max: usize,
    /// How long a request may wait for its word.
    pub hold: Duration,
    /// How long a packet is on its way from the switch to the server at most.
    pub flight: Duration,
    /// What left the switch so long ago has arrived or never will, and its sender has given up.
    pub life: Duration,
    /// How converted atomics share queue pairs; without it each stays on its own.
    pub carry: Option<CarryConfig>,
    /// What it does wrong on purpose; nothing, outside of swarms.
    pub mistake: Option<Mistake>,
}

impl CasConfig {
    /// The usual for a server.
    pub fn new(server: Gid) -> CasConfig {
        CasConfig {
            server,
            rkey: None,
            words: WordRange::Any,
            byte_order: ByteOrder::Little,
            words_max: 1 << 15,
            connections_max: 1 << 10,
            hold: Duration::from_ms(1),
            flight: Duration::from_ms(10),
            life: Duration::from_ms(1000),
            carry: None,
            mistake: None,
        }
    }

    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        if let WordRange::Range { va, len } = self.words {
            if !va.is_multiple_of(WORD_LEN) || !len.is_multiple_of(WORD_LEN) || len == 0 {
                return Err("a range of words begins at a multiple of 8 and is a multiple of 8 bytes long");
            }
            if va.checked_add(len).is_none() {
                return Err("the range of words runs beyond the last address");
            }
        }
        if let Some(carry) = self.carry {
            carry.check()?;
        }
        match () {
            () if !(1..=WORDS_MAX).contains(&self.words_max) => Err("words: 1 to 65536"),
            () if !(1..=CONNECTIONS_MAX).contains(&self.connections_max) => Err("connections: 1 to 4096"),
            () if self.hold == Duration::ZERO || self.hold >= self.life || self.flight >= self.life => Err(
                "a request waits for some time, and a packet's life is longer than that and than its flight",
            ),
            () => Ok(()),
        }
    }

    /// Whether an atomic's address is a word's.
    pub(crate) fn has_word(&self, va: u64) -> bool {
        va.is_multiple_of(WORD_LEN)
            && match self.words {
                WordRange::Any => true,
                WordRange::Range { va: first, len } => va >= first && va - first < len,
            }
    }

    pub(crate) fn bytes(&self, value: u64) -> [u8; 8] {
        match self.byte_order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }

    fn value(&self, bytes: [u8; 8]) -> u64 {
        match self.byte_order {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// The program's state.
#[derive(Debug)]
pub struct CasToWrite {
    config: CasConfig,
    words: Words,
    connections: Connections,
    /// Connections whose requests wait, in the order of their turns.
    waiting: Vec<u32>,
    /// Frames that wait.
    held: usize,
    /// Words that became free, for which others may wait.
    freed: VecDeque<u64>,
    /// Keys for which the server refused a WRITE.
    refused: Vec<Key>,
    /// What another switch in this place has converted may be on its way until then.
    quiet_until: Instant,
    /// Connections that carry others' atomics, too.
    carriers: Vec<u32>,
    /// Connections that are none of these, and whose queue pair the server is to prove alive.
    provers: Vec<u32>,
    /// Queue pairs whose packets are dropped, since their numbers were shifted by who is not there any more.
    shifted: BTreeSet<(u128, u32)>,
    /// What services write whose connections are not followed.
    foreign: Foreign,
    /// The port that the server is at.
    server_port: PortId,
}

/// How many words are in which state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WordCounts {
    /// Their value is known.
    pub known: usize,
    /// A change is on its way to the server.
    pub pending: usize,
    /// An answer will tell.
    pub learning: usize,
    /// The server decides.
    pub unsure: usize,
}

impl CasToWrite {
    /// A program that follows nothing yet. What changes words does not pass for a packet's flight from its
    /// start on: a WRITE that another switch in this place has made of an atomic must not meet it.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: CasConfig, start: Instant) -> Result<CasToWrite, &'static str> {
        config.check()?;
        let quiet = if config.mistake == Some(Mistake::Forgetful) { Duration::ZERO } else { config.flight };
        Ok(CasToWrite {
            quiet_until: start + quiet,
            words: Words::new(config.words_max),
            connections: Connections::new(config.connections_max),
            waiting: Vec::new(),
            held: 0,
            freed: VecDeque::new(),
            refused: Vec::new(),
            carriers: Vec::new(),
            provers: Vec::new(),
            shifted: BTreeSet::new(),
            foreign: Foreign::default(),
            server_port: PortId::default(),
            config,
        })
    }

    /// What it was told.
    pub fn config(&self) -> &CasConfig {
        &self.config
    }

    /// The words that are followed.
    pub fn words(&self) -> impl Iterator<Item = &Word> {
        self.words.all()
    }

    /// The connections that are followed.
    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.all().map(|(_, connection)| connection)
    }

    /// The connections that carry others' requests, too.
    pub fn carriers(&self) -> impl Iterator<Item = &Connection> {
        self.carriers.iter().map(|at| self.connections.get(*at))
    }

    /// Frames that wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// How many words are in which state.
    pub fn count_words(&self) -> WordCounts {
        let mut counts = WordCounts::default();
        for word in self.words.all() {
            match word.state {
                State::Known(_) => counts.known += 1,
                State::Pending { .. } | State::Carried { .. } | State::Closed { .. } => counts.pending += 1,
                State::Learning { .. } => counts.learning += 1,
                State::Unsure { .. } => counts.unsure += 1,
            }
        }
        counts
    }

    /// Gives a word back to the server, which decides for a packet's life. Whether it was followed, and
    /// nothing was on its way to it.
    pub fn forget_word(&mut self, now: Instant, va: u64) -> bool {
        let Some(at) = self.words.find(va) else { return false };
        let word = self.words.get_mut(at);
        if word.is_busy() {
            return false;
        }
        word.state = State::Unsure { until: now + self.config.life };
        word.owner = None;
        true
    }

    /// The words whose value is known, by address.
    pub fn known_words(&self) -> impl Iterator<Item = (u64, u64)> {
        let value = |word: &Word| if let State::Known(value) = word.state { Some(value) } else { None };
        self.words.all().filter_map(move |word| Some((word.va, value(word)?)))
    }

    /// A word's value, if it is known.
    pub fn known_word(&self, va: u64) -> Option<u64> {
        match self.words.get(self.words.find(va)?).state {
            State::Known(value) => Some(value),
            _ => None,
        }
    }

    /// Says what a word is that is known, and to which nothing is on its way. Whether it is such a one.
    pub fn set_known(&mut self, va: u64, value: u64) -> bool {
        let Some(at) = self.words.find(va) else { return false };
        let word = self.words.get_mut(at);
        let is_known = matches!(word.state, State::Known(_)) && word.natives == 0;
        if is_known {
            word.state = State::Known(value);
        }
        is_known
    }

    /// Digests of what it remembers, by name.
    pub fn digests(&self) -> Vec<(&'static str, u64)> {
        let carriers = (&self.carriers, &self.provers, &self.shifted);
        let rows = (&self.waiting, self.held, &self.freed, &self.refused, carriers);
        vec![
            ("words", digest(&self.words.all().collect::<Vec<_>>())),
            ("connections", digest(&self.connections.all().collect::<Vec<_>>())),
            ("rows", digest(&(rows, &self.foreign, self.quiet_until, self.server_port))),
        ]
    }

    /// What it needs of hardware.
    pub fn needs(&self, needs: &mut Needs) {
        let connections = self.config.connections_max;
        // Sequence numbers, the other end's number, message numbers, keys; with carriers, when the server has
        // answered last, and its question that is under way.
        let width = if self.config.carry.is_some() { 512 } else { 448 };
        needs.registers.extend([
            Shape { name: "connections", width, entries: connections, stage: 1 },
            self.words.shape(),
            // Of other services' messages: whose, the first number, the range.
            Shape { name: "messages", width: 320, entries: foreign::MESSAGES_MAX, stage: 1 },
            // Operands, original, numbers and flags of the last requests of each connection.
            Shape { name: "results", width: 384, entries: connections * connection::RESULTS, stage: 3 },
        ]);
        if let Some(carry) = self.config.carry {
            // Whose it is, both numbers, the word, its address and the value of each request under way.
            let entries = carry.carriers * carry.ring;
            needs.registers.push(Shape { name: "carried", width: 224, entries, stage: 4 });
        }
        needs.abilities.extend([Ability::Holds, Ability::Generates, Ability::SumsPayload]);
    }

    /// Deals with one frame.
    pub fn on_frame(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        let packet = &frame.packet;
        let (src, dst) = (packet.flow.src, packet.flow.dst);
        let is_response = packet.bth.opcode.operation().is_response();
        let to_server = dst == self.config.server && !is_response;
        let from_server = src == self.config.server && is_response;
        if !(to_server || from_server) || frame.has_options() {
            return ctx.pass_on(frame);
        }
        if !packet.bth.opcode.is_of(Service::Rc) {
            return if to_server { self.on_foreign(ctx, frame) } else { ctx.pass_on(frame) };
        }
        // A new sum would hide the damage, and a damaged number would be believed.
        if !frame.is_sound() && self.config.mistake != Some(Mistake::Unchecked) {
            return ctx.drop(&frame.packet, Drop::Icrc);
        }
        match to_server {
            true => self.on_request(ctx, frame),
            false => self.on_answer(ctx, frame),
        }
        self.release(ctx);
    }

    /// A connection's ends, told by one of them. It begins anew.
    pub fn announce(&mut self, ctx: &mut Context<'_>, told: &Announcement) {
        if told.server != self.config.server {
            return;
        }
        if let Some(at) = self.connections.of_request(told.client, told.server_qpn) {
            self.forget_connection(ctx, at);
        }
        if !self.make_room(ctx) {
            return;
        }
        let mut connection = Connection::new(told.client, told.server_qpn, told.psn, ctx.now);
        connection.learn_mtu(told.path_mtu);
        connection.msn_base = Some(0);
        connection.acknowledged = Some((told.psn, 0));
        let at = self.connections.add(connection);
        self.connections.pair(at, told.client_qpn);
        ctx.count(Counter::Paired);
        self.release(ctx);
    }

    /// An address has left: what was known of it is gone. A server that comes again has other memory.
    pub fn on_gone(&mut self, ctx: &mut Context<'_>, address: Gid) {
        let is_server = address == self.config.server;
        let gone: Vec<u32> = self
            .connections
            .all()
            .filter(|(_, connection)| is_server || connection.client == address)
            .map(|(at, _)| at)
            .collect();
        gone.into_iter().for_each(|at| self.forget_connection(ctx, at));
        self.shifted.retain(|(client, _)| !is_server && *client != address.bits());
        self.foreign.forget(address, is_server);
        if is_server {
            self.provers.clear();
            std::mem::take(&mut self.carriers).into_iter().for_each(|at| drop(self.connections.remove(at)));
            self.words.clear();
            self.refused.clear();
            self.freed.clear();
        }
        self.release(ctx);
    }

    /// Whether a connection more has room; the one that has been silent for longest makes some, if it has
    /// been so for long. One that is not silent stays: its client may ask again for what was converted. So
    /// does one whose numbers are shifted: nobody else could map them.
    fn make_room(&mut self, ctx: &mut Context<'_>) -> bool {
        if self.connections.has_room() {
            return true;
        }
        self.connections.overflowed = true;
        let oldest = self.connections.all().filter(|(_, connection)| !connection.lane.shifted);
        let oldest = oldest.min_by_key(|(_, connection)| connection.seen);
        match oldest.map(|(at, connection)| (at, connection.seen)) {
            Some((at, seen)) if seen + self.config.life < ctx.now => {
                self.forget_connection(ctx, at);
                true
            }
            _ => {
                ctx.count(Counter::ConnectionsFull);
                false
            }
        }
    }

    /// Takes a connection out of the table. Its words are the server's for a packet's life, because what it
    /// has under way may still arrive.
    fn forget_connection(&mut self, ctx: &mut Context<'_>, at: u32) {
        let stays = self.leaves_carriers(at);
        let connection = self.connections.get_mut(at);
        (connection.lane.carried, connection.lane.open) = (0, None);
        let (entries, held) = (std::mem::take(&mut connection.entries), std::mem::take(&mut connection.held));
        connection.first_open = 0;
        for entry in &entries {
            self.settle_for_good(ctx, at, entry);
        }
        if !stays {
            self.connections.remove(at);
        }
        self.waiting.retain(|other| *other != at);
        self.held -= held.len();
        for waiting in held {
            ctx.drop(&waiting.frame.packet, Drop::NoPort);
        }
    }

    /// Nothing more is expected of a tracked request: what it may still do to its word is unsure, for a life
    /// of what its connection has sent last.
    fn settle_for_good(&mut self, ctx: &mut Context<'_>, connection: u32, entry: &connection::Entry) {
        let seen = self.connections.get(connection).seen;
        let until = if entry.executed { ctx.now } else { seen + self.config.life };
        let native = entry.is_native();
        let word = self.words.get_mut(entry.word);
        if word.va != entry.va {
            return;
        }
        if native {
            word.natives -= 1;
        }
        let its_own = match word.state {
            State::Learning { connection: whose, psn, .. }
            | State::Pending { connection: whose, psn, .. } => whose == connection && psn == entry.psn,
            State::Unsure { .. } | State::Known(_) | State::Carried { .. } | State::Closed { .. } => native,
        };
        if its_own {
            match word.state {
                State::Pending { .. } => {
                    word.state = State::Closed { until: ctx.now + self.config.flight };
                }
                _ => make_unsure(word, until),
            }
            ctx.count(Counter::WordsUnsure);
            self.freed.push_back(entry.va);
        }
    }

    /// Does what is due.
    pub fn on_timer(&mut self, ctx: &mut Context<'_>) {
        self.end_waits(ctx);
        self.tend_carriers(ctx);
        self.release(ctx);
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_wait_end().into_iter().chain(self.carriers_due()).min()
    }

    /// Asserts what must hold between two frames.
    pub fn check_invariants(&self) {
        let mut held = 0;
        let mut natives = vec![0; self.config.words_max];
        for (at, connection) in self.connections.all() {
            held += connection.held.len();
            assert_ne!(connection.held.is_empty(), self.waiting.contains(&at), "who waits stands in the row");
            assert!(
                connection.entries.len() <= connection::RESULTS && connection.held.len() <= connection::HELD
            );
            assert!(connection.entries.iter().take(connection.first_open).all(|entry| entry.answered));
            for entry in connection.entries.iter().filter(|entry| entry.is_native()) {
                natives[entry.word as usize] += 1;
            }
        }
        self.check_carriers();
        assert_eq!(held, self.held, "frames that wait");
        assert!(held <= HELD_MAX);
        for word in self.words.all() {
            let at = self.words.find(word.va).expect("it is in the table");
            assert_eq!(natives[at as usize], word.natives, "atomics on their way to {:#x}", word.va);
            let (connection, psn, learning) = match word.state {
                State::Learning { connection, psn, .. } => (connection, psn, true),
                State::Pending { connection, psn, .. } => (connection, psn, false),
                State::Known(_) => {
                    assert_eq!(word.natives, 0, "what the server changes is not known");
                    continue;
                }
                State::Carried { carrier, out, .. } => {
                    let ring = &self.connections.get(carrier).lane.ring;
                    assert!(ring.iter().any(|carried| carried.out == out && carried.va == word.va));
                    continue;
                }
                State::Unsure { .. } | State::Closed { .. } => continue,
            };
            let mut entries = self.connections.get(connection).entries.iter();
            let entry = entries.find(|entry| entry.psn == psn).expect("a busy word has its request");
            assert_eq!(entry.kind == Kind::Native, learning);
            assert!(entry.va == word.va && !entry.dead);
        }
    }
}

/// The server decides until then, at least.
fn make_unsure(word: &mut Word, until: Instant) {
    word.state = match word.state {
        State::Unsure { until: before } => State::Unsure { until: before.max(until) },
        State::Closed { .. } => return,
        _ => State::Unsure { until },
    };
}
