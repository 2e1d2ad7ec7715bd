//! Connection multiplexing: converted atomics of all clients travel to the server on a few of their queue
//! pairs, the *carriers*, each word on one of them. A carrier's order takes the place of waiting: a word's
//! next change is decided at once, at the value that the last one will leave.
//!
//! What the draft leaves open, and what is done: a request goes on another queue pair than its client's last
//! one only when that is acknowledged, so that each queue pair's order holds (H1). The switch keeps what a
//! carrier has under way and sends it again itself, in order (H2). Only what the server accepts from the
//! request's queue pair and from the carrier's is carried (H3). Queue pairs whose numbers have been shifted
//! are told to the driver, which tells them to the next instance: their packets are dropped (H7).
//!
//! A carrier that does not answer any more gives what it carries to another one, when its packets have left
//! the path. It is not known what of it was executed, so a word gets its last value by the first request for
//! it, and those behind that one write nothing: nobody sees a value twice.

use super::connection::{Entry, Kind};
use super::lane::Side;
use super::word::State;
use super::{CasToWrite, Mistake};
use crate::counters::{Counter, Drop};
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{
    Aeth, Duration, Flow, Gid, Instant, Key, NakCode, Opcode, Operation, Packet, Psn, QpNumber, Service,
    Syndrome,
};

/// Requests that a carrier has under way, at most.
pub const RING_MAX: usize = 128;
/// Carriers of one key, at most.
pub const CARRIERS_MAX: usize = 64;

/// Queue pairs that are remembered for their shifted numbers; with more, nothing more is carried.
const SHIFTED_MAX: usize = 1 << 14;

/// How atomics are carried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CarryConfig {
    /// Queue pairs that carry atomics under one key.
    pub carriers: usize,
    /// Requests that each of them has under way at most.
    pub ring: usize,
    /// What is not acknowledged is sent again after this time.
    pub resend: Duration,
    /// After so many times the carrier has failed.
    pub tries: u32,
    /// A client's requests are carried for so long after its own queue pair was answered; then the server is
    /// asked for an answer first.
    pub proof: Duration,
}

impl Default for CarryConfig {
    fn default() -> Self {
        let (resend, proof) = (Duration::from_us(500), Duration::from_ms(10));
        CarryConfig { carriers: 4, ring: RING_MAX, resend, tries: 4, proof }
    }
}

impl CarryConfig {
    /// For how long a carrier need not answer.
    fn patience(&self) -> Duration {
        Duration::from_ps(self.resend.as_ps().saturating_mul(u64::from(self.tries)))
    }

    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        match () {
            () if !(1..=CARRIERS_MAX).contains(&self.carriers) => Err("carriers: 1 to 64"),
            () if !(1..=RING_MAX).contains(&self.ring) => Err("ring: 1 to 128"),
            () if self.resend == Duration::ZERO || self.tries == 0 => Err("resend-us and tries are above 0"),
            // Else no answer would come in time.
            () if self.proof < self.resend => Err("proof-us: resend-us at least"),
            () => Ok(()),
        }
    }
}

/// A request that a carrier has under way.
#[derive(Clone, Debug)]
pub struct Carried {
    /// It is the switch's own question whether the server still has the queue pair.
    pub(super) is_proof: bool,
    /// Whose, and under which number of its own; nobody's, if that connection is not followed any more.
    pub of: Option<u32>,
    pub(super) psn: Psn,
    /// Its number on the carrier.
    pub out: Psn,
    /// Its word and what becomes of it.
    pub(super) word: u32,
    /// Its address.
    pub va: u64,
    /// The value that it writes, if it writes one.
    pub value: Option<u64>,
    /// As it was sent.
    pub(super) frame: Box<Frame>,
}

/// What a connection waits for that must not overtake its own requests, among the addresses of words.
pub(super) fn lane_key(at: u32) -> u64 {
    u64::from(at) << 3 | 1
}

/// What waits for a carrier's turn or room.
pub(super) fn carrier_key(at: u32) -> u64 {
    u64::from(at) << 3 | 3
}

impl CasToWrite {
    /// The carrier of a word for requests of a connection under a key. The first ones that the server accepts
    /// become carriers.
    pub(super) fn carrier_for(&mut self, at: u32, va: u64, rkey: Key) -> Option<u32> {
        let config = self.config.carry.filter(|_| self.shifted.len() < SHIFTED_MAX)?;
        let owner = self.connections.get(at).owner(rkey);
        let carries = |connections: &super::connection::Connections, other: &u32| {
            let connection = connections.get(*other);
            !connection.lane.closed && connection.accepts(rkey) && connection.owner(rkey) == owner
        };
        let mut fitting: Vec<u32> =
            self.carriers.iter().copied().filter(|other| carries(&self.connections, other)).collect();
        let own = self.connections.get(at);
        if fitting.len() < config.carriers
            && !self.carriers.contains(&at)
            && !own.uncounted
            && !own.lane.closed
        {
            self.carriers.push(at);
            fitting.push(at);
        }
        // One that has taken a failed carrier's place may make them more.
        fitting.truncate(config.carriers);
        let place = (va / super::word::WORD_LEN) as usize % fitting.len().max(1);
        fitting.get(place).copied()
    }

    /// The first request of a connection asks for this turn, of this carrier or of its own queue pair, or for
    /// none: what it has claimed as another kind of request, before its word became another's or was known,
    /// nobody needs to wait for.
    pub(super) fn asks_for(&mut self, at: u32, turn: Option<(Side, u32)>) {
        let lane = &mut self.connections.get_mut(at).lane;
        if turn != Some((Side::Own, at)) && lane.unclaim(Side::Own, at) {
            self.freed.push_back(carrier_key(at));
        }
        let carried = turn.filter(|(side, _)| *side == Side::Carried).map(|(_, carrier)| carrier);
        if !std::mem::replace(&mut lane.claims, carried.is_some()) {
            return;
        }
        for carrier in self.carriers.iter().copied().filter(|other| Some(*other) != carried) {
            if self.connections.get_mut(carrier).lane.unclaim(Side::Carried, at) {
                self.freed.push_back(carrier_key(carrier));
            }
        }
    }

    /// Whether the client's own request may go on its own queue pair now.
    pub(super) fn own_turn(&mut self, now: Instant, at: u32) -> Result<(), u64> {
        if self.config.carry.is_none() {
            return Ok(());
        }
        let hold = self.config.hold;
        self.asks_for(at, Some((Side::Own, at)));
        let lane = &mut self.connections.get_mut(at).lane;
        if lane.carried > 0 && self.config.mistake != Some(Mistake::Overtakes) {
            return Err(lane_key(at));
        }
        let others_first = !lane.in_message && lane.claimed(now, hold) == Some(Side::Carried);
        if !lane.ring.is_empty() || others_first {
            lane.wait_for_turn((Side::Own, at), now, hold);
            return Err(carrier_key(at));
        }
        Ok(())
    }

    /// Whether a request of a connection, for a word, may go on a carrier now.
    pub(super) fn carried_turn(
        &mut self,
        ctx: &mut Context<'_>,
        (at, carrier): (u32, u32),
        word: u32,
        request: &Frame,
    ) -> Result<(), u64> {
        let (config, hold) = (self.config.carry, self.config.hold);
        let overtakes = self.config.mistake == Some(Mistake::Overtakes);
        self.asks_for(at, Some((Side::Carried, carrier)));
        if !self.connections.get(at).lane.own_is_over() && !overtakes {
            return Err(lane_key(at));
        }
        if at != carrier && !self.is_proved(ctx.now, at) {
            self.ask_for_proof(ctx, at, word, request);
            return Err(carrier_key(at));
        }
        let lane = &mut self.connections.get_mut(carrier).lane;
        if !lane.own_is_over() || lane.claimed(ctx.now, hold) == Some(Side::Own) {
            lane.wait_for_turn((Side::Carried, at), ctx.now, hold);
            let since = *lane.blocked.get_or_insert(ctx.now);
            if ctx.now.since(since) > config.map_or(hold, |config| config.patience()) {
                // Its client's own request is not answered, or never ends: others take its place.
                lane.closed = true;
            }
            return Err(carrier_key(carrier));
        }
        if config.is_some_and(|config| lane.ring.len() >= config.ring) {
            ctx.count(Counter::RingFull);
            return Err(carrier_key(carrier));
        }
        Ok(())
    }

    /// Lets a request of the client's go on its own queue pair: `fresh`, or sent again.
    pub(super) fn pass_own(&mut self, ctx: &mut Context<'_>, at: u32, mut frame: Box<Frame>, fresh: bool) {
        if self.config.carry.is_none() {
            return ctx.pass_on(frame);
        }
        let packet = &frame.packet;
        let (psn, operation) = (packet.bth.psn, packet.bth.opcode.operation());
        let connection = self.connections.get_mut(at);
        let out = match fresh {
            true => {
                let ends = operation.ends_message() || operation.is_atomic();
                connection.lane.in_message = !(ends || operation == Operation::ReadRequest);
                let count = connection.expected.since(psn) as u32;
                connection.lane.take_own(psn, count)
            }
            false => match connection.lane.to_server(psn, connection.uncounted) {
                Some(out) => out,
                None => return ctx.drop(packet, Drop::Late),
            },
        };
        if connection.uncounted {
            connection.lane.closed = true;
        }
        if out != psn {
            frame.readdress(Packet { bth: adverb_wire::Bth { psn: out, ..packet.bth }, ..*packet });
        }
        ctx.pass_on(frame);
    }

    /// A queue pair's numbers are shifted from now on: the driver hears of it by the count, before the frame
    /// leaves.
    pub(super) fn shift(&mut self, ctx: &mut Context<'_>, at: u32) {
        let lane = &mut self.connections.get_mut(at).lane;
        if !std::mem::replace(&mut lane.shifted, true) {
            ctx.count(Counter::Shifted);
        }
    }

    /// Sends a converted request on a carrier.
    pub(super) fn carry(
        &mut self,
        ctx: &mut Context<'_>,
        (at, carrier): (u32, u32),
        mut frame: Box<Frame>,
        entry: &Entry,
    ) {
        let (psn, word, va) = (entry.psn, entry.word, entry.va);
        let value = if let Kind::Change(value) = entry.kind { Some(value) } else { None };
        self.shift(ctx, at);
        self.shift(ctx, carrier);
        self.connections.get_mut(at).lane.give_away();
        let connection = self.connections.get_mut(carrier);
        connection.seen = ctx.now;
        let out = connection.lane.take_carried();
        let mut packet = frame.packet;
        packet.flow = Flow { traffic_class: packet.flow.traffic_class, ..connection.flow };
        (packet.bth.dest_qp, packet.bth.psn) = (connection.server_qpn, out);
        frame.readdress(packet);
        if connection.lane.ring.is_empty() {
            (connection.lane.sent, connection.lane.tries) = (ctx.now, 0);
        }
        let kept = frame.clone();
        let is_proof = false;
        let carried = Carried { is_proof, of: Some(at), psn, out, word, va, value, frame: kept };
        connection.lane.ring.push_back(carried);
        if at != carrier {
            ctx.count(Counter::Moved);
        }
        ctx.pass_on(frame);
    }

    /// The number that the next request on a carrier gets.
    pub(super) fn next_on(&self, carrier: u32) -> Psn {
        self.connections.get(carrier).lane.out
    }

    /// Gives an answer the client's numbers. None if it was for requests that the queue pair carries.
    pub(super) fn own_answer(
        &mut self,
        ctx: &mut Context<'_>,
        at: u32,
        mut frame: Box<Frame>,
    ) -> Option<Box<Frame>> {
        if self.config.carry.is_none() {
            return Some(frame);
        }
        let packet = frame.packet;
        match self.connections.get(at).lane.of_server(packet.bth.psn) {
            Some((Side::Carried, ..)) => {
                self.on_carried_answer(ctx, at, &frame);
                None
            }
            Some((Side::Own, psn, messages)) => {
                if psn != packet.bth.psn || messages != 0 {
                    let mut packet = packet;
                    packet.bth.psn = psn;
                    packet.aeth.msn = packet.aeth.msn.wrapping_add(messages) & 0xff_ffff;
                    frame.readdress(packet);
                }
                Some(frame)
            }
            None => {
                ctx.drop(&packet, Drop::AckUnseen);
                None
            }
        }
    }

    /// The server has answered everything of the client's own before this number.
    pub(super) fn own_is_answered(&mut self, at: u32, answer: &Packet, before: Psn) {
        let is_read = answer.bth.opcode.operation().is_read_response();
        let before = if is_read { answer.bth.psn.next() } else { before };
        let lane = &mut self.connections.get_mut(at).lane;
        if lane.open.is_some_and(|last| last.is_before(before)) {
            lane.open = None;
            self.freed.extend([lane_key(at), carrier_key(at)]);
        }
    }

    /// An answer for what a queue pair carries.
    fn on_carried_answer(&mut self, ctx: &mut Context<'_>, carrier: u32, frame: &Frame) {
        let packet = frame.packet;
        let psn = packet.bth.psn;
        if packet.bth.opcode.operation() != Operation::Acknowledge {
            return ctx.drop(&packet, Drop::AckBare);
        }
        let nak = match packet.aeth.syndrome {
            Syndrome::Ack { .. } => None,
            Syndrome::Nak(code) => Some(code),
            // WRITEs need no receiver.
            _ => return ctx.drop(&packet, Drop::AckBare),
        };
        let mut done = Vec::new();
        let lane = &mut self.connections.get_mut(carrier).lane;
        while let Some(first) = lane.ring.front() {
            if !(first.out.is_before(psn) || (nak.is_none() && first.out == psn)) {
                break;
            }
            done.extend(lane.ring.pop_front());
        }
        if !done.is_empty() {
            (lane.sent, lane.tries) = (ctx.now, 0);
        }
        for carried in done.into_iter().filter(|carried| !carried.is_proof) {
            self.is_executed(ctx, carrier, &carried, frame);
        }
        if self.connections.get(carrier).lane.ring.is_empty() {
            self.provers.retain(|other| *other != carrier);
        }
        self.freed.push_back(carrier_key(carrier));
        match nak {
            None => {}
            Some(NakCode::PsnSequenceError) => self.send_again(ctx, carrier),
            Some(code) => self.on_carrier_refused(ctx, carrier, psn, code, frame),
        }
    }

    /// The server has executed a request that was carried: its client is answered.
    fn is_executed(&mut self, ctx: &mut Context<'_>, carrier: u32, carried: &Carried, ack: &Frame) {
        let word = self.words.get_mut(carried.word);
        if let State::Carried { value, carrier: on, out } = word.state
            && (word.va, on, out) == (carried.va, carrier, carried.out)
        {
            word.is_known(value);
            self.freed.push_back(carried.va);
        }
        let Some(at) = carried.of else { return };
        let connection = self.connections.get_mut(at);
        connection.lane.carried -= 1;
        if connection.lane.carried == 0 {
            self.freed.push_back(lane_key(at));
        }
        let Some(entry) = connection.entry(carried.psn) else { return };
        entry.answered = true;
        let entry = *entry;
        let msn = connection.msn_base.unwrap_or(0).wrapping_add(entry.message) & 0xff_ffff;
        connection.advance(entry.psn.next(), msn);
        if connection.lane.orphan {
            return;
        }
        if at != carrier {
            ctx.count(Counter::DeCoalesced);
        }
        self.answer_client(ctx, at, &entry, ack);
    }

    /// Sends the answer that a converted request's client waits for, in a frame like this one.
    fn answer_client(&mut self, ctx: &mut Context<'_>, at: u32, entry: &Entry, like: &Frame) {
        let connection = self.connections.get(at);
        let Some(qpn) = connection.client_qpn else { return };
        let to = connection.port;
        let mut ack = Packet { bth: like.packet.bth, ..Packet::default() };
        ack.flow = Flow { traffic_class: like.packet.flow.traffic_class, ..connection.flow };
        (ack.flow.src, ack.flow.dst) = (connection.flow.dst, connection.flow.src);
        (ack.bth.dest_qp, ack.bth.ack_req) = (qpn, false);
        (ack.bth.fecn, ack.bth.becn, ack.bth.solicited) = (false, false, false);
        self.answer(ctx, at, &mut ack, entry);
        ctx.again();
        let (from, before) = (ctx.from, ctx.to);
        (ctx.from, ctx.to) = (self.server_port, to);
        ctx.pass_on(like.made_like(ack, &[]));
        (ctx.from, ctx.to) = (from, before);
    }

    /// A converted request has come again. If it is still under way, the switch sees to it.
    pub(super) fn repeat_carried(&mut self, ctx: &mut Context<'_>, at: u32, frame: &Frame, entry: &Entry) {
        ctx.count(Counter::Repeated);
        match entry.answered {
            true => self.answer_client(ctx, at, entry, frame),
            false => ctx.drop(&frame.packet, Drop::UnderWay),
        }
    }

    /// The client sends again what the server has acknowledged: on a queue pair that carries others' requests
    /// by now, the server's own answer would be theirs.
    pub(super) fn acknowledge_again(&mut self, ctx: &mut Context<'_>, at: u32, frame: &Frame) -> bool {
        let connection = self.connections.get(at);
        let packet = frame.packet;
        let operation = packet.bth.opcode.operation();
        let (Some((first, msn)), Some(qpn)) = (connection.acknowledged, connection.client_qpn) else {
            return false;
        };
        if !connection.lane.shifted
            || !(operation.is_write() || operation.is_send())
            || !packet.bth.psn.is_before(first)
        {
            return false;
        }
        let aeth = Aeth { syndrome: Syndrome::default(), msn };
        let mut ack = Packet { flow: packet.flow, bth: packet.bth, aeth, ..Packet::default() };
        (ack.flow.src, ack.flow.dst) = (packet.flow.dst, packet.flow.src);
        ack.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        (ack.bth.dest_qp, ack.bth.ack_req, ack.bth.solicited) = (qpn, false, false);
        (ack.bth.fecn, ack.bth.becn) = (false, false);
        ctx.count(Counter::Repeated);
        ctx.count(Counter::Generated);
        ctx.again();
        ctx.send_back(frame.made_like(ack, &[]));
        true
    }

    /// Sends all that a carrier has under way, in order.
    pub(super) fn send_again(&mut self, ctx: &mut Context<'_>, carrier: u32) {
        let connection = self.connections.get_mut(carrier);
        connection.lane.sent = ctx.now;
        let (from, to) = (ctx.from, ctx.to);
        (ctx.from, ctx.to) = (connection.port, self.server_port);
        for carried in &connection.lane.ring {
            ctx.count(Counter::Resent);
            ctx.again();
            ctx.pass_on(carried.frame.clone());
        }
        (ctx.from, ctx.to) = (from, to);
    }

    /// A connection is to be forgotten. Whether it still carries something: then it stays until that is
    /// acknowledged.
    pub(super) fn leaves_carriers(&mut self, at: u32) -> bool {
        for carrier in &self.carriers {
            let ring = &mut self.connections.get_mut(*carrier).lane.ring;
            ring.iter_mut().filter(|carried| carried.of == Some(at)).for_each(|carried| carried.of = None);
        }
        let connection = self.connections.get_mut(at);
        if connection.lane.shifted && self.config.mistake != Some(Mistake::ForgetsShift) {
            let name = (connection.client.bits(), connection.server_qpn.get());
            self.shifted.insert(name);
        }
        connection.lane.closed = true;
        connection.lane.orphan = true;
        connection.lane.ring.retain(|carried| !carried.is_proof);
        self.provers.retain(|prover| *prover != at);
        if !connection.lane.ring.is_empty() {
            return true;
        }
        self.carriers.retain(|carrier| *carrier != at);
        false
    }

    /// Forgets those of whom only what they carried was left.
    pub(super) fn forget_orphans(&mut self, ctx: &mut Context<'_>) {
        let is_over = |at: &u32| {
            let lane = &self.connections.get(*at).lane;
            lane.orphan && lane.ring.is_empty()
        };
        let over: Vec<u32> = self.carriers.iter().copied().filter(is_over).collect();
        for at in over {
            self.forget_connection(ctx, at);
        }
    }

    /// Whether a packet is of a queue pair whose numbers another instance, or an earlier life of the
    /// connection, has shifted. No packet tells a new queue pair of that number, so it is dropped until its
    /// address has left.
    pub(super) fn is_of_shifted(&self, client: Gid, server_qpn: QpNumber) -> bool {
        self.shifted.contains(&(client.bits(), server_qpn.get()))
    }

    /// Whether an answer to a client may be one to a request that another instance has let go under a shifted
    /// number: at the client that is another request's. Such a request has arrived when a flight is over,
    /// and its answer is here after another one. It does not say of which queue pair of the server's it is.
    pub(super) fn may_be_of_shifted(&self, now: Instant, client: Gid) -> bool {
        now < self.quiet_until + self.config.flight && self.shifted.iter().any(|(of, _)| *of == client.bits())
    }

    /// Queue pairs whose numbers are shifted, by their client and the server's number.
    pub fn shifted(&self) -> Vec<(Gid, QpNumber)> {
        let live = self.connections.all().map(|(_, connection)| connection);
        let live = live.filter(|c| c.lane.shifted).map(|c| (c.client, c.server_qpn));
        live.chain(self.shifted.iter().map(|(gid, qpn)| (Gid(gid.to_be_bytes()), QpNumber::new(*qpn))))
            .collect()
    }

    /// Queue pairs whose numbers the instance before this one had shifted.
    pub fn set_shifted(&mut self, all: &[(Gid, QpNumber)]) {
        if self.config.mistake != Some(Mistake::ForgetsShift) {
            self.shifted.extend(all.iter().map(|(gid, qpn)| (gid.bits(), qpn.get())));
        }
    }

    /// Asserts what must hold of carriers between two frames.
    pub(super) fn check_carriers(&self) {
        for carrier in self.tended() {
            let lane = &self.connections.get(carrier).lane;
            assert!(lane.ring.len() <= RING_MAX);
            for (first, second) in lane.ring.iter().zip(lane.ring.iter().skip(1)) {
                assert!(first.out.is_before(second.out), "a ring is in order");
            }
        }
        for (at, connection) in self.connections.all() {
            assert!(connection.lane.ring.is_empty() || self.is_tended(at), "nobody tends what is carried");
            let of = |carrier: &u32| {
                let ring = &self.connections.get(*carrier).lane.ring;
                ring.iter().filter(|carried| carried.of == Some(at)).count()
            };
            let all: usize = self.carriers.iter().map(of).sum();
            assert_eq!(all, connection.lane.carried as usize, "requests under way on carriers");
        }
    }
}
