//! The half of a native service that serves: buffers, a history, and keys of its own. Nothing in it is a
//! client's; what it knows of one stands in the packet at hand, or in the [`Reply`] that the application has.

use super::Around;
use crate::admission::PKEY_BASE;
use crate::attr::Mtu;
use crate::counters::Counters;
use crate::error::Error;
use crate::frame::TxFrame;
use crate::limits::MAX_STAR_ANSWERS;
use crate::memory::{Payload, QueueMemory, dma};
use crate::qp::source_port;
use crate::random::{Generator, Purpose, Seed};
use crate::transport::star::history::{Found, HISTORY_MAX, History, Identity};
use crate::transport::star::seal::Sealer;
use crate::transport::star::{back, clock};
use adverb_wire::star::{self, Answer, Grant, Hello, Op, Record, Stamp, StarEth, Ticket, Verdict, Wish, Wqe};
use adverb_wire::{Bth, Duration, Flow, Gid, Instant, Opcode, Operation, Packet, Psn, QpNumber, Service};
use std::collections::VecDeque;

/// Hellos that are answered in a millisecond; the others are asked again.
const HELLOS_PER_MS: u32 = 1024;
/// Buffers that are looked at for one that a reply can have.
const LOOKS: u32 = 16;
/// Buffers of each kind at most: their number has 16 bits of a token.
const MAX_BUFFERS: u32 = 1 << 16;

/// What a service is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// Requests that may wait for the application, and replies that may wait for their acknowledgement.
    pub buffers: u32,
    /// Bytes of a request at most; a reply may have 32 fewer.
    pub mtu: Mtu,
    /// Time that a client gives a request: so long each is remembered.
    pub lifetime: Duration,
    /// Requests that are remembered at most: rate times lifetime, and half as many more.
    pub remembered: u32,
    /// Time after which tickets are sealed with a new key. Those of the last key are still good.
    pub key_life: Duration,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        ServiceConfig {
            buffers: 4096,
            mtu: Mtu::M1024,
            lifetime: Duration::from_ms(100),
            remembered: 1 << 16,
            key_life: Duration::from_ms(3_600_000),
        }
    }
}

/// Whom to reply to: plain data that may be copied, kept, given to another thread or dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    client: Gid,
    ticket: Ticket,
    psn: Psn,
    deadline: u32,
    /// Which of the NIC's addresses was asked.
    gid: u8,
    traffic_class: u8,
}

const _: () = assert!(core::mem::size_of::<Reply>() == 48);

impl Reply {
    /// Of all copies of a request the same, and of no other request's while the history remembers it. The
    /// ticket's seal is the client's name: its number and address went into it.
    fn identity(&self) -> Identity {
        let queue = (self.ticket.seal >> 32 ^ self.ticket.seal) as u32;
        Identity { queue, psn: self.psn.get(), deadline: self.deadline }
    }

    fn peer(&self) -> QpNumber {
        Grant::of_word(self.ticket.word).peer
    }
}

/// A request that waits for the application.
#[derive(Clone, Copy)]
struct Waiting {
    reply: Reply,
    len: u32,
    buffer: u32,
}

/// A reply that is kept until it is acknowledged or its request's time is up.
#[derive(Clone, Copy)]
struct Kept {
    reply: Option<Reply>,
    len: u16,
    generation: u16,
    is_queued: bool,
}

/// An answer without a reply.
#[derive(Clone, Copy)]
struct Owed {
    flow: Flow,
    peer: QpNumber,
    psn: Psn,
    /// `None`: a record, for a hello.
    answer: Option<Answer>,
}

pub(super) struct Server {
    pub number: QpNumber,
    /// The key that seals, and the one before it.
    keys: [Sealer; 2],
    generator: Generator,
    rotates: Instant,
    key_life: Duration,
    mtu: Mtu,
    /// In microseconds.
    lifetime: u32,
    history: History,
    waiting: VecDeque<Waiting>,
    next_buffer: u32,
    requests: QueueMemory,
    kept: Box<[Kept]>,
    next_kept: u32,
    replies: QueueMemory,
    /// Replies to send, each at most once.
    ready: VecDeque<u16>,
    owed: VecDeque<Owed>,
    /// The record that leaves.
    record: QueueMemory,
    /// The millisecond, and hellos answered in it.
    hellos: (u64, u32),
}

impl Server {
    pub fn new(now: Instant, config: &ServiceConfig, seed: Seed) -> Result<Server, Error> {
        let ServiceConfig { buffers, mtu, lifetime, remembered, key_life } = *config;
        let lifetime = lifetime.as_ps() / 1_000_000;
        if !(1..=MAX_BUFFERS).contains(&buffers) || remembered as usize > HISTORY_MAX {
            return Err(Error::Invalid("service: buffers, or requests that are remembered"));
        }
        if !(100..=10_000_000).contains(&lifetime) || key_life.as_ps() / 1_000_000 < 4 * lifetime {
            return Err(Error::Invalid("service: lifetime, or life of a key"));
        }
        let mut generator = Generator::new(seed, Purpose::History);
        let secret = u64::from(generator.word()) << 32 | u64::from(generator.word());
        let first = Sealer::new(seed);
        let second = first.next(&mut generator);
        let bytes = buffers as usize * mtu.bytes() as usize;
        let kept = Kept { reply: None, len: 0, generation: 0, is_queued: false };
        Ok(Server {
            number: QpNumber::new(0),
            keys: [second, first],
            generator,
            rotates: now + key_life,
            key_life,
            mtu,
            lifetime: lifetime as u32,
            history: History::new(secret, remembered as usize),
            waiting: VecDeque::with_capacity(buffers as usize),
            next_buffer: 0,
            requests: QueueMemory::new(bytes)?,
            kept: vec![kept; buffers as usize].into_boxed_slice(),
            next_kept: 0,
            replies: QueueMemory::new(bytes)?,
            ready: VecDeque::with_capacity(buffers as usize),
            owed: VecDeque::with_capacity(MAX_STAR_ANSWERS),
            record: QueueMemory::new(Record::LEN)?,
            hellos: (0, 0),
        })
    }

    /// Bytes that it has allocated. Named one by one, so that a field that grows is not forgotten.
    pub fn allocated(&self) -> usize {
        let Server { history, waiting, requests, kept, replies, ready, owed, record, .. } = self;
        let Server { number: _, keys: _, generator: _, rotates: _, key_life: _, .. } = self;
        let Server { mtu: _, lifetime: _, next_buffer: _, next_kept: _, hellos: _, .. } = self;
        size_of::<Server>()
            + history.allocated()
            + waiting.capacity() * size_of::<Waiting>()
            + requests.len()
            + size_of_val(&**kept)
            + replies.len()
            + ready.capacity() * size_of::<u16>()
            + owed.capacity() * size_of::<Owed>()
            + record.len()
    }

    /// Takes the next key when its time has come. After two lives without a frame, no old ticket is good.
    fn rotate(&mut self, now: Instant) {
        while self.rotates <= now {
            let next = self.keys[0].next(&mut self.generator);
            self.keys[1] = core::mem::replace(&mut self.keys[0], next);
            self.rotates = (self.rotates + self.key_life).max(now.before(self.key_life));
        }
    }

    /// The client that a packet's ticket names. `None`, counted, when it is not from there.
    fn admit(&self, packet: &Packet, counters: &mut Counters) -> Option<QpNumber> {
        let key = self.keys.iter().find(|key| key.is_epoch_of(packet.ticket));
        let grant = key.and_then(|key| key.open(packet.ticket, self.number, 0, packet.flow.src));
        if grant.is_none() {
            counters.star_drop_ticket += 1;
        }
        grant.map(|grant| grant.peer)
    }

    pub fn on_frame(
        &mut self,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        around: &mut Around<'_>,
    ) {
        if packet.bth.pkey & PKEY_BASE != PKEY_BASE {
            around.counters.drop_pkey += 1;
            return;
        }
        if self.rotates <= now {
            self.rotate(now);
        }
        match packet.bth.opcode.operation() {
            Operation::Hello => self.on_hello(now, packet, payload, around.counters),
            Operation::RemoteData => self.on_request(now, packet, payload, around),
            Operation::WqeEventAcknowledge => self.on_acknowledged(packet, around.counters),
            _ => around.counters.drop_wrong_service += 1,
        }
    }

    /// A hello is answered from what stands in it.
    fn on_hello(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>, counters: &mut Counters) {
        let mut bytes = [0; Hello::LEN];
        if payload.len() == Hello::LEN && !payload.is_elided() {
            payload.read(0, &mut bytes);
        }
        let eth = StarEth::from(packet.irn);
        let asks = Hello::read(&bytes).is_some_and(|hello| hello.wish == Wish::Client) && packet.bth.ack_req;
        if !asks || !eth.has(StarEth::POOL) || !(2..1 << 24).contains(&eth.value) {
            counters.drop_hello += 1;
            return;
        }
        let ms = now.as_ps() / 1_000_000_000;
        if self.hellos.0 != ms {
            self.hellos = (ms, 0);
        }
        if self.hellos.1 >= HELLOS_PER_MS || self.owed.len() >= MAX_STAR_ANSWERS {
            counters.star_answers_full += 1;
            return;
        }
        self.hellos.1 += 1;
        let peer = QpNumber::new(eth.value);
        let flow = back(packet, self.number, peer);
        self.owed.push_back(Owed { flow, peer, psn: packet.bth.psn, answer: None });
    }

    fn on_request(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>, around: &mut Around<'_>) {
        let counters = &mut *around.counters;
        let Some(peer) = self.admit(packet, counters) else { return };
        if self.owed.len() >= MAX_STAR_ANSWERS {
            counters.star_answers_full += 1;
            return;
        }
        let gid = around.gids.iter().position(|gid| *gid == packet.flow.dst).unwrap_or(0) as u8;
        let reply = Reply {
            client: packet.flow.src,
            ticket: packet.ticket,
            psn: packet.bth.psn,
            deadline: star::deadline(&packet.reth),
            gid,
            traffic_class: packet.flow.traffic_class,
        };
        let Some(verdict) = self.execute(now, packet, payload, reply, counters) else { return };
        let copy = StarEth::from(packet.irn).copy;
        let answer = Answer { verdict, copy, congested: false, of_sends: false, run: 1 };
        let flow = back(packet, self.number, peer);
        self.owed.push_back(Owed { flow, peer, psn: packet.bth.psn, answer: Some(answer) });
    }

    /// Keeps a request for the application. What is to be answered at once: a request that is taken is
    /// answered by its reply.
    fn execute(
        &mut self,
        now: Instant,
        packet: &Packet,
        payload: &Payload<'_>,
        reply: Reply,
        counters: &mut Counters,
    ) -> Option<Verdict> {
        let eth = StarEth::from(packet.irn);
        let len = payload.len();
        if !eth.has(StarEth::POOL) || eth.op() != Some(Op::Send) || len > self.mtu.bytes() as usize {
            counters.star_nak_invalid += 1;
            return Some(Verdict::Invalid);
        }
        let ahead = reply.deadline.wrapping_sub(clock(now)) as i32;
        if ahead < 0 || ahead as u32 > 2 * self.lifetime {
            counters.star_drop_expired += 1;
            return Some(Verdict::Expired);
        }
        let place = match self.history.find(reply.identity(), clock(now)) {
            Found::Executed(token) => {
                counters.star_duplicate += 1;
                return (!self.reply_again(token)).then_some(Verdict::Done);
            }
            Found::Full => {
                counters.star_history_full += 1;
                return Some(Verdict::Busy);
            }
            Found::Place(place) => place,
        };
        if self.waiting.len() == self.kept.len() {
            counters.star_pool_full += 1;
            return Some(Verdict::Busy);
        }
        let buffer = self.next_buffer;
        self.next_buffer = (buffer + 1) % self.kept.len() as u32;
        if len > 0 {
            let start = buffer as usize * self.mtu.bytes() as usize;
            dma::write(self.requests.span(start, len), payload, 0, len);
        }
        self.waiting.push_back(Waiting { reply, len: len as u32, buffer });
        self.history.keep(place, reply.identity(), 0, clock(now));
        counters.star_executed += 1;
        None
    }

    /// A copy of a request that was replied to brings the reply again. False if there is none to bring.
    fn reply_again(&mut self, token: u32) -> bool {
        let (slot, generation) = (token as u16, (token >> 16) as u16);
        let Some(kept) = self.kept.get_mut(usize::from(slot)) else { return false };
        if token == 0 || kept.generation != generation || kept.reply.is_none() {
            return false;
        }
        if !core::mem::replace(&mut kept.is_queued, true) {
            self.ready.push_back(slot);
        }
        true
    }

    /// A client has a reply.
    fn on_acknowledged(&mut self, packet: &Packet, counters: &mut Counters) {
        if self.admit(packet, counters).is_none() {
            return;
        }
        let token = StarEth::from(packet.irn).value;
        let Some(kept) = self.kept.get_mut(usize::from(token as u16)) else { return };
        let (ticket, psn) = (packet.ticket, packet.bth.psn);
        let is_its = |reply: &Reply| (reply.ticket, reply.psn) == (ticket, psn);
        if u32::from(kept.generation) == token >> 16 && kept.reply.as_ref().is_some_and(is_its) {
            kept.reply = None;
        }
    }

    pub fn next_request(
        &mut self,
        now: Instant,
        out: &mut [u8],
        counters: &mut Counters,
    ) -> Option<(usize, Reply)> {
        while let Some(Waiting { reply, len, buffer }) = self.waiting.pop_front() {
            if (reply.deadline.wrapping_sub(clock(now)) as i32) < 0 {
                counters.star_requests_late += 1;
                continue;
            }
            let len = (len as usize).min(out.len());
            let start = buffer as usize * self.mtu.bytes() as usize;
            dma::read_bytes(self.requests.span(start, len), &mut out[..len]);
            return Some((len, reply));
        }
        None
    }

    pub fn reply(&mut self, now: Instant, to: &Reply, bytes: &[u8]) -> Result<(), Error> {
        let room = self.mtu.bytes() as usize;
        if bytes.len() > room - Wqe::LEN {
            return Err(Error::Invalid("reply: longer than the service's MTU"));
        }
        let clock = clock(now);
        // Replied to already, or its time is up: the history has it no more.
        if self.history.find(to.identity(), clock) != Found::Executed(0) {
            return Err(Error::NoSuchObject);
        }
        let count = self.kept.len() as u32;
        let is_free = |kept: &Kept| {
            let is_over = |reply: &Reply| (reply.deadline.wrapping_sub(clock) as i32) < 0;
            !kept.is_queued && kept.reply.as_ref().is_none_or(is_over)
        };
        let slots = (0..LOOKS.min(count)).map(|ahead| (self.next_kept + ahead) % count);
        let slot = slots.into_iter().find(|slot| is_free(&self.kept[*slot as usize])).ok_or(Error::Busy)?;
        self.next_kept = (slot + 1) % count;
        let kept = &mut self.kept[slot as usize];
        let generation = kept.generation.wrapping_add(1).max(1);
        *kept = Kept { reply: Some(*to), len: bytes.len() as u16, generation, is_queued: true };
        self.history.note(to.identity(), u32::from(generation) << 16 | slot, clock);
        let entry = Wqe {
            op: Op::Send,
            flags: Wqe::INLINE,
            index: to.psn.get(),
            len: bytes.len() as u32,
            va: 0,
            rkey: 0,
            immediate: 0,
        };
        let start = slot as usize * room;
        self.replies.write(start, &entry.bytes());
        self.replies.write(start + Wqe::LEN, bytes);
        self.ready.push_back(slot as u16);
        Ok(())
    }

    pub fn next_frame(&mut self, now: Instant, around: &mut Around<'_>, out: &mut TxFrame) -> bool {
        if let Some(owed) = self.owed.pop_front() {
            out.payload.clear();
            self.put_owed(now, owed, out);
            return true;
        }
        while let Some(slot) = self.ready.pop_front() {
            let kept = &mut self.kept[usize::from(slot)];
            kept.is_queued = false;
            // Acknowledged meanwhile.
            let Some(reply) = kept.reply else { continue };
            let token = u32::from(kept.generation) << 16 | u32::from(slot);
            let len = Wqe::LEN + usize::from(kept.len);
            let peer = reply.peer();
            let flow = Flow {
                src: around.gids[usize::from(reply.gid)],
                dst: reply.client,
                src_port: source_port(self.number, peer),
                traffic_class: reply.traffic_class & !3,
                hop_limit: 64,
            };
            let opcode = Opcode::new(Service::Star, Operation::WqePacket);
            out.payload.clear();
            out.payload.push(self.replies.span(usize::from(slot) * self.mtu.bytes() as usize, len));
            out.packet = Packet {
                flow,
                bth: Bth { opcode, psn: reply.psn, dest_qp: peer, ack_req: true, ..Bth::default() },
                irn: StarEth::new(Op::Send, StarEth::POOL, 1, token).into(),
                payload_len: len as u32,
                ..Packet::default()
            };
            return true;
        }
        false
    }

    fn put_owed(&mut self, now: Instant, owed: Owed, out: &mut TxFrame) {
        let Owed { flow, peer, psn, answer } = owed;
        let bth = |operation| Bth {
            opcode: Opcode::new(Service::Star, operation),
            psn,
            dest_qp: peer,
            ..Bth::default()
        };
        if let Some(answer) = answer {
            let stamp = Stamp { clock: clock(now), order: 0 };
            let (bth, irn) = (bth(Operation::RemoteDataAnswer), stamp.into());
            out.packet = Packet { flow, bth, aeth: answer.aeth(), irn, ..Packet::default() };
            return;
        }
        let grant = Grant { incarnation: 1, mtu: self.mtu as u8, peer, ..Grant::default() };
        let record = Record {
            timeout: 0,
            retries: 0,
            rnr_retries: 0,
            rnr_timer: 0,
            depths: (0, 0),
            features: 0,
            psn: psn.get(),
            queues: (0, 0),
            clock: clock(now),
            lifetime: self.lifetime,
            receives: 0,
            ticket: self.keys[0].seal(grant, self.number, 0, flow.dst),
        };
        self.record.write(0, &record.bytes());
        out.payload.push(self.record.span(0, Record::LEN));
        out.packet = Packet {
            flow,
            bth: bth(Operation::WqePacket),
            irn: StarEth::new(Op::Control, StarEth::MIGRATION | StarEth::POOL, 0, 0).into(),
            payload_len: Record::LEN as u32,
            ..Packet::default()
        };
    }
}
