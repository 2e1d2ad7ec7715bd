//! Requests on their way to the server: which are tracked, in which order, and what each becomes.

use super::connection::{Connection, Entry, Kind, RESULTS, WINDOW};
use super::word::{State, WORD_LEN, Word};
use super::{CasToWrite, Mistake, REFUSED_MAX, make_unsure};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Aeth, Instant, Key, NakCode, Opcode, Operation, Packet, Psn, Reth, Service, Syndrome};
use std::cmp::Ordering;

/// What a request is to this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// A compare and swap or a fetch and add of one word.
    Atomic,
    /// A WRITE of exactly one followed word.
    Store(u64),
    /// It may change followed words in a way that is not followed.
    Touch { va: u64, len: u64 },
    /// Nothing that changes a followed word.
    Other,
}

/// A request that must wait, and for which word.
pub(super) type Blocked = (u64, Box<Frame>);

/// How a request may go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// As its word's state says.
    Usual,
    /// Its time to wait is over: if the server may decide, it does.
    Overdue,
}

impl CasToWrite {
    /// A request has come.
    pub(super) fn on_request(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let operation = frame.packet.bth.opcode.operation();
        if ctx.now < self.quiet_until && (operation.is_atomic() || operation.is_write()) {
            return ctx.drop(&frame.packet, Drop::Starting);
        }
        if self.is_of_shifted(frame.packet.flow.src, frame.packet.bth.dest_qp) {
            return ctx.drop(&frame.packet, Drop::Shifted);
        }
        let Some(at) = self.connection_of(ctx, &frame.packet) else {
            return match self.is_of_shifted(frame.packet.flow.src, frame.packet.bth.dest_qp) {
                true => ctx.drop(&frame.packet, Drop::Shifted),
                false => self.without_connection(ctx, frame),
            };
        };
        let connection = self.connections.get_mut(at);
        connection.seen = ctx.now;
        connection.flow = frame.packet.flow;
        connection.port = ctx.from;
        self.server_port = ctx.to;
        if connection.lane.broken {
            return ctx.drop(&frame.packet, Drop::Late);
        }
        let is_first = connection.held.is_empty();
        // What was sent before goes before what waits: that may wait for its answer.
        let is_earlier = frame.packet.bth.psn.is_before(connection.expected) && !connection.uncounted;
        let goes_before = is_earlier && self.config.mistake != Some(Mistake::Stuck);
        if !is_first && !goes_before {
            return self.hold(ctx, at, frame);
        }
        match self.attempt(ctx, at, frame, Way::Usual) {
            Ok(()) if is_first => {}
            Ok(()) => ctx.count(Counter::RepeatedFirst),
            Err((_, frame)) if !is_first => self.hold(ctx, at, frame),
            Err((va, frame)) => {
                self.begin_wait(ctx.now, at, va);
                self.hold(ctx, at, frame);
            }
        }
    }

    /// The request's connection; a new one if it is the first, or if the queue pair begins another life.
    fn connection_of(&mut self, ctx: &mut Context<'_>, packet: &Packet) -> Option<u32> {
        let (client, qpn, psn) = (packet.flow.src, packet.bth.dest_qp, packet.bth.psn);
        if let Some(at) = self.connections.of_request(client, qpn) {
            let connection = self.connections.get(at);
            let off = psn.since(connection.expected);
            let lost = connection.gap.is_some_and(|since| ctx.now.since(since) > self.config.life);
            if connection.uncounted || (off.abs() <= WINDOW && !(lost && off > 0)) {
                return Some(at);
            }
            let was_shifted = self.connections.get(at).lane.shifted;
            self.forget_connection(ctx, at);
            if was_shifted {
                return None;
            }
        }
        self.make_room(ctx).then(|| self.connections.add(Connection::new(client, qpn, psn, ctx.now)))
    }

    /// The table is full: the request goes on as it is, and what it may change is the server's.
    fn without_connection(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let touched = match self.classify(&frame, None) {
            Class::Atomic => Some((frame.packet.atomic.va, WORD_LEN)),
            Class::Store(_) => Some((frame.packet.reth.va, WORD_LEN)),
            Class::Touch { va, len } => Some((va, len)),
            // The rest of a message whose address was in its first packet: nobody knows where it writes.
            Class::Other if frame.packet.bth.opcode.operation().is_write() => Some((0, u64::MAX)),
            Class::Other => None,
        };
        if let Some((va, len)) = touched
            && self.touch(ctx, va, len).is_err()
        {
            return ctx.drop(&frame.packet, Drop::HoldRoom);
        }
        ctx.pass_on(frame);
    }

    fn classify(&self, frame: &Frame, connection: Option<&Connection>) -> Class {
        let packet = &frame.packet;
        let operation = packet.bth.opcode.operation();
        if operation.is_atomic() {
            let va = packet.atomic.va;
            return match operation.is_masked() || !self.config.has_word(va) {
                true => Class::Touch { va, len: WORD_LEN },
                false => Class::Atomic,
            };
        }
        if !operation.is_write() {
            return Class::Other;
        }
        let range = match operation {
            Operation::WriteFirst | Operation::WriteOnly | Operation::WriteOnlyImm => {
                Some((packet.reth.va, u64::from(packet.reth.len)))
            }
            _ => connection.and_then(|connection| connection.writing),
        };
        let Some((va, len)) = range else { return Class::Other };
        if self.words.overlapping(va, len).next().is_none() {
            return Class::Other;
        }
        match <[u8; 8]>::try_from(frame.payload()) {
            Ok(bytes)
                if operation == Operation::WriteOnly && len == WORD_LEN && self.words.find(va).is_some() =>
            {
                Class::Store(self.config.value(bytes))
            }
            _ => Class::Touch { va, len },
        }
    }

    /// Lets a request go on, or returns it with the word that it must wait for.
    pub(super) fn attempt(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        way: Way,
    ) -> Result<(), Blocked> {
        let connection = self.connections.get(at);
        let class = self.classify(&frame, Some(connection));
        if connection.uncounted {
            let psn = frame.packet.bth.psn;
            return match connection.entries.iter().any(|entry| entry.psn == psn) {
                true => self.repeat(ctx, at, frame, class),
                false => self.uncounted(ctx, at, frame, class),
            };
        }
        let off = frame.packet.bth.psn.since(connection.expected);
        if off == 0
            && class != Class::Atomic
            && let Err(busy) = self.own_turn(ctx.now, at)
        {
            return Err((busy, frame));
        }
        match (off.cmp(&0), class) {
            (Ordering::Equal, Class::Atomic) => self.decide(ctx, at, frame, way),
            (Ordering::Equal, Class::Store(value)) => self.store(ctx, at, frame, value, way),
            (Ordering::Equal, Class::Other) => {
                self.connections.get_mut(at).account(&frame.packet);
                self.pass_own(ctx, at, frame, true);
                Ok(())
            }
            (Ordering::Equal, Class::Touch { va, len }) => {
                self.touch_and_pass(ctx, (at, true), frame, va, len)
            }
            (Ordering::Greater, Class::Other) if self.config.carry.is_none() => {
                // The server will find the gap, too.
                let connection = self.connections.get_mut(at);
                if connection.skips_to(&frame.packet) {
                    connection.account(&frame.packet);
                } else {
                    connection.gap.get_or_insert(ctx.now);
                }
                ctx.pass_on(frame);
                Ok(())
            }
            (Ordering::Greater, _) => {
                self.refuse_behind_gap(ctx, at, &frame);
                Ok(())
            }
            (Ordering::Less, _) => self.repeat(ctx, at, frame, class),
        }
    }

    /// A request of a connection whose order is unknown: the server decides.
    pub(super) fn uncounted(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        frame: Box<Frame>,
        class: Class,
    ) -> Result<(), Blocked> {
        match class {
            _ if self.acknowledge_again(ctx, at, &frame) => Ok(()),
            Class::Other => {
                self.pass_own(ctx, at, frame, false);
                Ok(())
            }
            Class::Atomic => {
                let va = frame.packet.atomic.va;
                self.touch_and_pass(ctx, (at, false), frame, va, WORD_LEN)
            }
            Class::Store(_) => {
                let va = frame.packet.reth.va;
                self.touch_and_pass(ctx, (at, false), frame, va, WORD_LEN)
            }
            Class::Touch { va, len } => self.touch_and_pass(ctx, (at, false), frame, va, len),
        }
    }

    /// A request that changes words in a way that is not followed goes on, when nothing else is under way.
    fn touch_and_pass(
        &mut self,
        ctx: &mut Context<'_>,
        (at, fresh): (u32, bool),
        frame: Box<Frame>,
        va: u64,
        len: u64,
    ) -> Result<(), Blocked> {
        match self.touch(ctx, va, len) {
            Err(busy) => Err((busy, frame)),
            Ok(()) => {
                if frame.packet.bth.opcode.operation().is_atomic() {
                    ctx.count(Counter::AtomicsPassed);
                    ctx.note(&frame.packet, Note::Passed);
                    self.connections.get_mut(at).passes_untracked(frame.packet.bth.psn);
                }
                if fresh {
                    self.connections.get_mut(at).account(&frame.packet);
                }
                self.pass_own(ctx, at, frame, fresh);
                Ok(())
            }
        }
    }

    /// Gives the words of a range to the server for a packet's life. If something is under way to one of
    /// them, that one is told.
    pub(super) fn touch(&mut self, ctx: &mut Context<'_>, va: u64, len: u64) -> Result<(), u64> {
        let touched: Vec<u32> = self.words.overlapping(va, len).collect();
        let until = ctx.now + self.config.life;
        for at in touched {
            self.expire(ctx, at);
            let pass = ctx.again();
            let word = self.words.access(pass, at);
            if word.is_busy() {
                return Err(word.va);
            }
            make_unsure(word, until);
            ctx.count(Counter::WordsUnsure);
        }
        Ok(())
    }

    /// What has been under way to a word for longer than a packet's life will not be answered.
    pub(super) fn expire(&mut self, ctx: &mut Context<'_>, at: u32) {
        let life = self.config.life;
        let word = self.words.get_mut(at);
        let (connection, psn, pending) = match word.state {
            State::Closed { until } if ctx.now >= until => {
                word.state = State::Unsure { until: until + life };
                return;
            }
            State::Pending { connection, psn, since, .. } if ctx.now.since(since) > life => {
                (connection, psn, true)
            }
            State::Learning { connection, psn, since, .. } if ctx.now.since(since) > life => {
                (connection, psn, false)
            }
            _ => return,
        };
        word.state = State::Unsure { until: ctx.now };
        ctx.count(Counter::WordsUnsure);
        if pending && let Some(entry) = self.connections.get_mut(connection).entry(psn) {
            entry.dead = true;
        }
    }

    /// An atomic in its turn.
    fn decide(&mut self, ctx: &mut Context<'_>, at: u32, frame: Box<Frame>, way: Way) -> Result<(), Blocked> {
        let packet = &frame.packet;
        let va = packet.atomic.va;
        let (found, until) = (self.words.find(va), ctx.now + self.config.life);
        let Some(word_at) = found.or_else(|| self.words.follow(va, until)) else {
            if let Err(busy) = self.own_turn(ctx.now, at) {
                return Err((busy, frame));
            }
            ctx.count(Counter::WordsFull);
            ctx.count(Counter::AtomicsPassed);
            self.connections.get_mut(at).account_untracked(packet);
            self.pass_own(ctx, at, frame, true);
            return Ok(());
        };
        if !self.make_result_room(ctx, at) {
            ctx.drop(packet, Drop::Depth);
            return Ok(());
        }
        self.expire(ctx, word_at);
        let AtomicOperands { rkey, operands } = operands_of(packet);
        let convertible = self.converts(at, rkey);
        let carrier = if convertible { self.carrier_for(at, va, rkey) } else { None };
        let owner = self.connections.get(at).owner(rkey);
        let (psn, since, operation) = (packet.bth.psn, ctx.now, packet.bth.opcode.operation());
        if self.config.mistake == Some(Mistake::Hasty) {
            self.forget_shared(ctx.now, word_at);
        }
        let word = self.words.access(ctx.pass, word_at);
        let original = match word.state {
            State::Known(value) => value,
            // It will be so behind that one on the same carrier.
            State::Carried { value, carrier: on, .. } if Some(on) == carrier => value,
            _ => 0,
        };
        let kind = match word.state {
            State::Known(_) if convertible && word.owner == Some(owner) => outcome(packet, original),
            State::Carried { carrier: on, .. } if Some(on) == carrier && word.owner == Some(owner) => {
                outcome(packet, original)
            }
            State::Pending { .. } | State::Carried { .. } | State::Closed { .. } => return Err((va, frame)),
            State::Learning { .. } if way == Way::Usual => return Err((va, frame)),
            _ if word.is_shared(since) && way == Way::Usual => return Err((va, frame)),
            _ => Kind::Native,
        };
        let in_vain = way == Way::Overdue && is_native_in_vain(word, kind, since);
        let carrier = carrier.filter(|_| kind != Kind::Native);
        let turn = match carrier {
            Some(carrier) => self.carried_turn(ctx, (at, carrier), word_at, &frame),
            None => self.own_turn(ctx.now, at),
        };
        if let Err(busy) = turn {
            return Err((busy, frame));
        }
        let out = carrier.map(|carrier| (carrier, self.next_on(carrier)));
        let word = self.words.get_mut(word_at);
        word.natives += u16::from(kind == Kind::Native);
        word.state = state_after(word, kind, out, (at, psn, since));
        if in_vain {
            self.rest(ctx, word_at);
        }
        let connection = self.connections.get_mut(at);
        let (word, message) = (word_at, connection.messages.wrapping_add(1));
        connection.account(packet);
        let entry =
            Entry { psn, message, word, operation, va, rkey, operands, original, kind, ..Entry::OPEN };
        self.send_as(ctx, (at, carrier), frame, &entry, true);
        // Behind what needs it: what was just written in parts is slow to copy.
        self.connections.get_mut(at).entries.push_back(entry);
        Ok(())
    }

    /// Sends a tracked request on as what it has become.
    pub(super) fn send_as(
        &mut self,
        ctx: &mut Context<'_>,
        (at, carrier): (u32, Option<u32>),
        mut frame: Box<Frame>,
        entry: &Entry,
        first: bool,
    ) {
        let (counter, note) = match entry.kind {
            Kind::Native => (Counter::AtomicsPassed, Note::Passed),
            Kind::Change(value) if entry.operation == Operation::FetchAdd => {
                (Counter::FetchAdded, Note::Added(value))
            }
            Kind::Change(value) => (Counter::CasGranted, Note::Granted(value)),
            Kind::Nothing => (Counter::CasRefused, Note::Refused(entry.original)),
            Kind::Store(value) => (Counter::Stores, Note::Stored(value)),
            Kind::Written => (Counter::StoresPassed, Note::Passed),
        };
        if first {
            ctx.count(counter);
            ctx.note(&frame.packet, note);
        }
        match entry.kind {
            Kind::Native => {}
            Kind::Store(_) | Kind::Written if frame.packet.bth.ack_req => {}
            Kind::Store(_) | Kind::Written => {
                frame.change_with(self.config.bytes(entry.operands.0), |packet| packet.bth.ack_req = true);
            }
            Kind::Change(value) => {
                frame.change_with(self.config.bytes(value), |packet| become_write(packet, 8));
            }
            Kind::Nothing => frame.change_with([], |packet| become_write(packet, 0)),
        }
        match carrier {
            Some(carrier) => self.carry(ctx, (at, carrier), frame, entry),
            None => self.pass_own(ctx, at, frame, first),
        }
    }

    /// Room for one more result: the oldest one makes some, unless its client waits for an answer that only
    /// the switch can make.
    pub(super) fn make_result_room(&mut self, ctx: &mut Context<'_>, at: u32) -> bool {
        let connection = self.connections.get(at);
        if connection.entries.len() < RESULTS {
            return true;
        }
        let oldest = connection.entries[0];
        if !oldest.answered && !oldest.executed && !oldest.is_native() {
            return false;
        }
        self.connections.get_mut(at).forget_oldest();
        self.settle_for_good(ctx, at, &oldest);
        true
    }

    /// Whether atomics of a connection under a key are converted.
    pub(super) fn converts(&self, at: u32, rkey: Key) -> bool {
        let connection = self.connections.get(at);
        connection.client_qpn.is_some()
            && connection.msn_base.is_some()
            && connection.accepts(rkey)
            && !self.refused.contains(&rkey)
            && self.config.rkey.is_none_or(|only| only == rkey)
    }

    /// The server has refused a WRITE under a key whose atomics it took.
    pub(super) fn refuse_key(&mut self, ctx: &mut Context<'_>, rkey: Key) {
        if !self.refused.contains(&rkey) {
            if self.refused.len() == REFUSED_MAX {
                self.refused.remove(0);
            }
            self.refused.push(rkey);
            ctx.count(Counter::KeysRefused);
        }
    }

    /// A tracked request came before one that is missing. The client is told once, as a server would. A NAK
    /// also acknowledges all that is before its number, so it names what the server has acknowledged last:
    /// requests that this switch has seen may be lost behind it.
    fn refuse_behind_gap(&mut self, ctx: &mut Context<'_>, at: u32, frame: &Frame) {
        ctx.drop(&frame.packet, Drop::Gap);
        let connection = self.connections.get_mut(at);
        let told = connection.gap.replace(connection.gap.unwrap_or(ctx.now)).is_some();
        let (Some(qpn), Some((psn, msn)), false) = (connection.client_qpn, connection.acknowledged, told)
        else {
            return;
        };
        let syndrome = Syndrome::Nak(NakCode::PsnSequenceError);
        let aeth = Aeth { syndrome, msn };
        let mut nak = Packet { flow: frame.packet.flow, bth: frame.packet.bth, aeth, ..Packet::default() };
        (nak.flow.src, nak.flow.dst) = (frame.packet.flow.dst, frame.packet.flow.src);
        nak.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        (nak.bth.dest_qp, nak.bth.psn, nak.bth.ack_req) = (qpn, psn, false);
        (nak.bth.fecn, nak.bth.becn, nak.bth.solicited) = (false, false, false);
        let nak = frame.made_like(nak, &[]);
        ctx.count(Counter::GapNaks);
        ctx.count(Counter::Generated);
        ctx.note(&frame.packet, Note::GapNak);
        ctx.again();
        ctx.send_back(nak);
    }
}

/// What identifies an atomic's operands.
pub(super) struct AtomicOperands {
    pub rkey: Key,
    pub operands: (u64, u64),
}

/// A fetch and add has no value to compare with: what stands there is not used.
pub(super) fn operands_of(packet: &Packet) -> AtomicOperands {
    let atomic = packet.atomic;
    AtomicOperands { rkey: atomic.rkey, operands: (atomic.swap_add, atomic.compare) }
}

/// What an atomic becomes at a word of this value.
pub(super) fn outcome(packet: &Packet, value: u64) -> Kind {
    let atomic = packet.atomic;
    match packet.bth.opcode.operation() {
        Operation::FetchAdd => Kind::Change(value.wrapping_add(atomic.swap_add)),
        _ if atomic.compare == value => Kind::Change(atomic.swap_add),
        _ => Kind::Nothing,
    }
}

/// The WRITE that an atomic goes on as. It asks for an acknowledgement, which an atomic need not.
pub(super) fn become_write(packet: &mut Packet, len: u32) {
    packet.bth.opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
    packet.bth.ack_req = true;
    packet.reth = Reth { va: packet.atomic.va, rkey: packet.atomic.rkey, len };
    packet.atomic = Default::default();
    packet.payload_len = len;
}

/// What is known of a word when an atomic has been decided. `out` is where it is carried, if it is.
fn state_after(
    word: &Word,
    kind: Kind,
    out: Option<(u32, Psn)>,
    (connection, psn, since): (u32, Psn, Instant),
) -> State {
    match (kind, out, word.state) {
        (Kind::Native, _, State::Learning { .. }) => State::Unsure { until: since },
        (Kind::Native, _, State::Unsure { until }) if since < until || word.natives > 1 => {
            State::Unsure { until }
        }
        (Kind::Native, _, State::Known(value)) => {
            State::Learning { connection, psn, since, before: Some(value) }
        }
        (Kind::Native, ..) => State::Learning { connection, psn, since, before: None },
        (Kind::Change(value), Some((carrier, out)), _) => State::Carried { value, carrier, out },
        (Kind::Change(value), None, _) => State::Pending { value, connection, psn, since },
        (_, _, state) => state,
    }
}

/// Whether an atomic whose time to be alone with its word is over goes to the server beside others.
fn is_native_in_vain(word: &Word, kind: Kind, now: Instant) -> bool {
    kind == Kind::Native && (word.is_shared(now) || matches!(word.state, State::Learning { .. }))
}
