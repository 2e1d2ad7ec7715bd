//! The half of a native service that asks: it keeps all that there is to keep, numbers requests, repeats them
//! ([`say`]), and tells what came of each ([`hear`]). A client that has asked nothing sends nothing.

mod hear;
mod say;

use crate::error::Error;
use crate::limits::{MAX_STAR_CLIENTS, MAX_STAR_REQUESTS};
use crate::memory::{QueueMemory, dma};
use crate::qp::source_port;
use crate::random::{Generator, Purpose, Seed};
use adverb_wire::star::{Grant, Ticket};
use adverb_wire::{Duration, Flow, Gid, Instant, Psn, QpNumber};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Wait for an answer before any was measured.
const FIRST_WAIT: Duration = Duration::from_ms(10);
/// And the shortest one: a server on a host may wait for a processor.
const WAIT_MIN: Duration = Duration::from_ms(2);
/// Of the waits, the longest has so many doublings.
const DOUBLINGS_MAX: u8 = 4;
/// Hellos that are sent before a client gives up, for as long as nobody asks anew.
const HELLOS: u8 = 8;
/// A ticket is renewed, by a hello, when something is asked after this time; the server changes keys hourly,
/// and takes the last two.
const RENEWAL: Duration = Duration::from_ms(30 * 60 * 1000);
/// After this time a ticket may be one too old, or the clock as it was told too far off: the hello goes
/// first.
const STALE: Duration = Duration::from_ms(55 * 60 * 1000);

/// What a client is opened with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientConfig {
    /// The server's address.
    pub server: Gid,
    /// The service's number there.
    pub service: QpNumber,
    /// Which of the NIC's own addresses it uses.
    pub gid: u8,
}

/// A client of this NIC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClientId {
    index: u32,
    life: u32,
}

/// What has become of a hello or a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The service has answered the hello.
    Ready,
    /// It has not: a request that waited for that was not executed.
    NoService,
    /// The reply, of so many bytes.
    Reply(usize),
    /// There was none in time. The request was executed once, or not at all.
    ReplyLost,
    /// The service does not take such a request: it is too long.
    Refused,
}

/// Whose outcome it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// The client.
    pub client: ClientId,
    /// The request's; 0 for a hello.
    pub tag: u64,
    /// What has become of it.
    pub outcome: Outcome,
}

/// How far a client is with its ticket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Has none that is good, and has not asked for one.
    Silent,
    /// Asks for the first one, or for another because the last one may not be good any more.
    Asking,
    /// Has one.
    Ready,
    /// Has one, and asks for the next.
    Renewing,
}

struct Client {
    config: ClientConfig,
    number: QpNumber,
    life: u32,
    is_open: bool,
    phase: Phase,
    /// A hello is in the row.
    is_queued: bool,
    /// It was sent so often.
    sent: u8,
    /// The hello's number.
    nonce: Psn,
    ticket: Ticket,
    lifetime: Duration,
    /// The server's clock as last told, and when.
    told: (u32, Instant),
    issued: Instant,
    /// When to ask again; when the heap looks at it.
    at: Instant,
    heap_at: Instant,
    /// What its requests' numbers are masked with.
    mask: u32,
    /// Smoothed round trip, in microseconds; 0 before one was measured.
    round_trip: u32,
    /// Its requests that wait for a ticket, by slot.
    held: Option<u32>,
}

const _: () = assert!(core::mem::size_of::<Client>() <= 192);

impl Client {
    /// The server's clock, as far as it is sure to have come: its pace is taken for a thousandth too slow.
    fn clock(&self, now: Instant) -> u32 {
        let (told, at) = self.told;
        let since = now.since(at).as_ps() / 1_000_000;
        told.wrapping_add((since - since / 1024) as u32)
    }

    fn hear_clock(&mut self, told: u32, now: Instant) {
        if told.wrapping_sub(self.told.0) as i32 >= 0 {
            self.told = (told, now);
        }
    }

    fn wait(&self, sent: u8) -> Duration {
        let measured = Duration::from_us(u64::from(self.round_trip) * 4);
        let first = if self.round_trip == 0 { FIRST_WAIT } else { measured.max(WAIT_MIN) };
        first.times(1 << sent.min(DOUBLINGS_MAX))
    }

    /// When nothing can come of a request any more: a reply that left in time may be on its way until then.
    fn end(&self, request: &Request) -> Instant {
        request.first + self.lifetime + self.wait(0).min(self.lifetime)
    }

    fn id(&self, index: usize) -> ClientId {
        ClientId { index: index as u32, life: self.life }
    }

    fn flow(&self, gids: &[Gid]) -> Flow {
        Flow {
            src: gids[usize::from(self.config.gid)],
            dst: self.config.server,
            src_port: source_port(self.number, self.config.service),
            traffic_class: 0,
            hop_limit: 64,
        }
    }
}

/// A request under way.
struct Request {
    client: u32,
    is_used: bool,
    /// Its time has begun: it does not wait for a ticket.
    is_begun: bool,
    is_queued: bool,
    /// Copies that were sent.
    sent: u8,
    /// How often the slot was used: part of its numbers.
    uses: u8,
    len: u16,
    tag: u64,
    /// All copies show the same one.
    ticket: Ticket,
    deadline: u32,
    first: Instant,
    at: Instant,
    heap_at: Instant,
    /// The next that waits for a ticket.
    next: Option<u32>,
    bytes: QueueMemory,
}

impl Request {
    fn psn(&self, slot: u32, client: &Client) -> Psn {
        Psn::new((u32::from(self.uses) << 16 | slot) ^ client.mask)
    }
}

/// Something to send.
#[derive(Clone, Copy)]
enum Say {
    Hello(u32),
    Request(u32),
    /// A reply came.
    Event {
        client: u32,
        psn: Psn,
        token: u32,
    },
}

/// What the heap looks at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timed {
    Client(u32),
    Request(u32),
}

pub(super) struct Clients {
    generator: Generator,
    list: Vec<Client>,
    closed: Vec<u32>,
    requests: Vec<Request>,
    free: VecDeque<u32>,
    say: VecDeque<Say>,
    /// EAs among these.
    events: usize,
    timers: BinaryHeap<Reverse<(Instant, Timed)>>,
    reached: VecDeque<(Reached, Option<u32>)>,
    hello: Option<QueueMemory>,
}

impl Clients {
    pub fn new(seed: Seed) -> Clients {
        Clients {
            generator: Generator::new(seed, Purpose::Numbers),
            list: Vec::new(),
            closed: Vec::new(),
            requests: Vec::new(),
            free: VecDeque::new(),
            say: VecDeque::new(),
            events: 0,
            timers: BinaryHeap::new(),
            reached: VecDeque::new(),
            hello: None,
        }
    }

    /// Where the next client stands.
    pub fn place(&self) -> Result<usize, Error> {
        match self.closed.last() {
            Some(place) => Ok(*place as usize),
            None if self.list.len() < MAX_STAR_CLIENTS as usize => Ok(self.list.len()),
            None => Err(Error::TableFull),
        }
    }

    pub fn open(&mut self, now: Instant, place: usize, number: QpNumber, config: &ClientConfig) -> ClientId {
        let life = self.list.get(place).map_or(1, |client| client.life.wrapping_add(1));
        let client = Client {
            config: *config,
            number,
            life,
            is_open: true,
            phase: Phase::Silent,
            is_queued: false,
            sent: 0,
            nonce: Psn::new(0),
            ticket: Ticket::default(),
            lifetime: Duration::ZERO,
            told: (0, now),
            issued: now,
            at: Instant::NEVER,
            heap_at: Instant::NEVER,
            mask: self.generator.word() & Psn::MASK,
            round_trip: 0,
            held: None,
        };
        let id = client.id(place);
        if place == self.list.len() {
            self.list.push(client);
        } else {
            self.closed.retain(|closed| *closed as usize != place);
            self.list[place] = client;
        }
        self.ask(place, Phase::Asking);
        id
    }

    fn find(&mut self, id: ClientId) -> Result<&mut Client, Error> {
        let client = self.list.get_mut(id.index as usize);
        client.filter(|client| client.is_open && client.life == id.life).ok_or(Error::NoSuchObject)
    }

    pub fn close(&mut self, id: ClientId) -> Result<QpNumber, Error> {
        let client = self.find(id)?;
        client.is_open = false;
        let number = client.number;
        for slot in 0..self.requests.len() as u32 {
            if self.requests[slot as usize].is_used && self.requests[slot as usize].client == id.index {
                self.release(slot);
            }
        }
        self.closed.push(id.index);
        Ok(number)
    }

    /// Begins to say hello.
    fn ask(&mut self, place: usize, phase: Phase) {
        let nonce = Psn::new(self.generator.word() & Psn::MASK);
        let client = &mut self.list[place];
        (client.phase, client.sent, client.nonce) = (phase, 0, nonce);
        self.queue_hello(place);
    }

    fn queue_hello(&mut self, place: usize) {
        if !core::mem::replace(&mut self.list[place].is_queued, true) {
            self.say.push_back(Say::Hello(place as u32));
        }
    }

    pub fn request(&mut self, now: Instant, id: ClientId, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        let client = self.find(id)?;
        let age = now.since(client.issued);
        let phase = client.phase;
        let room = 128 << Grant::of_word(client.ticket.word).mtu;
        let is_known = matches!(phase, Phase::Ready | Phase::Renewing);
        if bytes.len() > crate::limits::MAX_MTU || is_known && bytes.len() > room {
            return Err(Error::Invalid("request: longer than the service takes"));
        }
        let slot = self.take_slot(bytes.len())?;
        let request = &mut self.requests[slot as usize];
        (request.client, request.is_used, request.tag) = (id.index, true, tag);
        (request.len, request.is_begun) = (bytes.len() as u16, false);
        (request.uses, request.sent, request.next) = (request.uses.wrapping_add(1), 0, None);
        if !bytes.is_empty() {
            request.bytes.write(0, bytes);
        }
        let place = id.index as usize;
        match phase {
            Phase::Ready | Phase::Renewing if age < STALE => {
                self.begin(now, slot);
                if phase == Phase::Ready && age > RENEWAL {
                    self.ask(place, Phase::Renewing);
                }
            }
            _ => {
                self.requests[slot as usize].next = self.list[place].held.replace(slot);
                if phase != Phase::Asking {
                    self.ask(place, Phase::Asking);
                }
            }
        }
        Ok(())
    }

    /// A slot with room for so many bytes.
    fn take_slot(&mut self, len: usize) -> Result<u32, Error> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.requests.len() < MAX_STAR_REQUESTS => {
                self.requests.push(Request {
                    client: 0,
                    is_used: false,
                    is_begun: false,
                    is_queued: false,
                    sent: 0,
                    uses: 0,
                    len: 0,
                    tag: 0,
                    ticket: Ticket::default(),
                    deadline: 0,
                    first: Instant::ZERO,
                    at: Instant::NEVER,
                    heap_at: Instant::NEVER,
                    next: None,
                    bytes: QueueMemory::EMPTY,
                });
                self.requests.len() as u32 - 1
            }
            None => return Err(Error::QueueFull),
        };
        if self.requests[slot as usize].bytes.len() < len {
            match QueueMemory::new(len.next_power_of_two()) {
                Ok(bytes) => self.requests[slot as usize].bytes = bytes,
                Err(error) => {
                    self.free.push_front(slot);
                    return Err(error);
                }
            }
        }
        Ok(slot)
    }

    /// A request's time begins.
    fn begin(&mut self, now: Instant, slot: u32) {
        let request = &mut self.requests[slot as usize];
        let client = &self.list[request.client as usize];
        let lifetime = (client.lifetime.as_ps() / 1_000_000) as u32;
        (request.ticket, request.first) = (client.ticket, now);
        request.deadline = client.clock(now).wrapping_add(lifetime);
        (request.sent, request.at, request.is_begun) = (0, Instant::NEVER, true);
        self.queue_request(slot);
    }

    fn queue_request(&mut self, slot: u32) {
        if !core::mem::replace(&mut self.requests[slot as usize].is_queued, true) {
            self.say.push_back(Say::Request(slot));
        }
    }

    /// A slot has nothing under way. Its bytes stay for what is in the row.
    fn release(&mut self, slot: u32) {
        let request = &mut self.requests[slot as usize];
        (request.is_used, request.at, request.next) = (false, Instant::NEVER, None);
        self.free.push_back(slot);
    }

    /// A request has come to its end.
    fn finish(&mut self, slot: u32, outcome: Outcome) {
        let Request { client, tag, .. } = self.requests[slot as usize];
        let client = self.list[client as usize].id(client as usize);
        self.reached.push_back((Reached { client, tag, outcome }, Some(slot)));
        self.requests[slot as usize].at = Instant::NEVER;
        self.requests[slot as usize].is_used = false;
    }

    pub fn has_reached(&self) -> bool {
        !self.reached.is_empty()
    }

    pub fn next_reached(&mut self, out: &mut [u8]) -> Option<Reached> {
        let (mut reached, slot) = self.reached.pop_front()?;
        if let Some(slot) = slot {
            if let Outcome::Reply(len) = &mut reached.outcome {
                let len = (*len).min(out.len());
                dma::read_bytes(self.requests[slot as usize].bytes.span(0, len), &mut out[..len]);
            }
            self.release(slot);
        }
        Some(reached)
    }
}
