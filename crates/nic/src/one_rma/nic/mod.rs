//! The 1RMA NIC: connection-free, encrypted, fail-fast operations of up to 4 KB on a peer's memory (Singhvi
//! et al., SIGCOMM 2020).
//!
//! [`OneRma`] stands beside [`Nic`](crate::Nic), not in it: it has no queue pairs, and shares nothing with it
//! but the driver, which calls both in the same way: [`on_frame`](OneRma::on_frame),
//! [`on_timer`](OneRma::on_timer), [`next_frame`](OneRma::next_frame),
//! [`next_deadline`](OneRma::next_deadline). Its messages are their own UDP payloads,
//! [`adverb_wire::one_rma`]. Its own [`Memory`] holds the memory that its regions lie in; one process's
//! memory may be registered with both.
//!
//! ```text
//! initiator (initiator.rs)                                    target (target.rs)
//!
//!  post ─► waiting ─── window has 4 KB ──► requested ─ read request ─►  authentic? room? ─► serving
//!             │                              │  ▲ ◄─ read responses ──────────────────────────┘
//!      DISPATCH_TIMEOUT                      │  └ all bytes here: OK
//!                                            ├── NACK, authentication failure, TIMEOUT
//!
//!                           requested ─ write request ─►  authentic? room? ─► waiting ─ NACK
//!                              │                                                │ window has 4 KB
//!                           sending  ◄─ solicitation ──────────────────────── open, until now + timeout
//!                              │     ── write data ─────────────────────────►   │
//!                            sent    ◄─ completion ──────────────────────────── placed, all bytes here
//! ```
//!
//! **No side effect follows a reported failure** (section 5.1). Data leave only after a solicitation; from
//! then on the initiator ignores NACKs and authentication failures, and waits a little longer than the
//! solicitation says that the target takes data, a time that began at the target earlier. All calls first let
//! expire what is due, so late data never land. What the driver owes for this: the `now` of a call is not
//! older than the frame that it brings, and a frame that was produced is not held back from the wire before
//! its `now`.
//!
//! **Nothing is kept for a peer** but the operations in progress, whose tables are fixed. Keys are derived
//! from each request (`keys.rs`), the last ones kept set up in a cache of fixed size (`key_cache.rs`), nonces
//! come from one counter (`iv.rs`), and what chains the messages of an operation stands in its slot or table
//! entry and goes with it.
//!
//! Where the paper leaves something open, this is what was built: what K_d is made of (`keys.rs`); nonces and
//! what is chained to what ([`adverb_wire::one_rma`]); own writes debit the window too (`window.rs`); a
//! solicitation tells how long it holds, so that the promise above does not rest on equal configurations; an
//! authentic request that the region does not allow, or whose key changes halfway, is refused with
//! REMOTE_AUTHENTICATION_FAILURE in a completion signed with K_d; peers' writes that wait too long for the
//! window are NACKed.

mod command;
mod config;
mod counters;
mod initiator;
mod iv;
mod key_cache;
mod keys;
mod regions;
mod slots;
mod target;
mod timeouts;
mod window;

pub use command::{COMMAND_LEN, COMPLETION_LEN, Command, Completion, Outcome};
pub use config::{OneRmaConfig, PRIORITIES};
pub use counters::OneRmaCounters;
pub use keys::{DerivedKey, ENCRYPTED, RegionKey, derive};
pub use regions::{RegionId, RegionInit, Rights};
pub use slots::{ProcessInit, SlotId};

use crate::error::Error;
use crate::limits;
use crate::memory::{Ahead, Memory};
use adverb_wire::one_rma::{Body, HEAD_LEN, Header, MAX_MESSAGE, Op, RESERVED_KEY, TAG_LEN};
use adverb_wire::{Gid, Instant};
use core::ops::Range;
use iv::Counter;
use key_cache::KeyCache;
use keys::{Iv, MessageKey};
use regions::Regions;
use slots::Slots;
use std::collections::VecDeque;
use target::Inbounds;
use timeouts::Timeouts;
use window::{Arbiter, SolicitationWindow, Waiting};

/// A message that leaves the NIC: the payload of a UDP datagram to [`adverb_wire::one_rma::UDP_PORT`].
pub struct OneRmaFrame {
    /// Destination address.
    pub to: Gid,
    bytes: Box<[u8; MAX_MESSAGE]>,
    len: usize,
}

impl OneRmaFrame {
    /// An empty one, to be reused.
    pub fn new() -> Self {
        OneRmaFrame { to: Gid::default(), bytes: Box::new([0; MAX_MESSAGE]), len: 0 }
    }

    /// The message.
    #[inline]
    pub fn message(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where a message is being written.
struct Out<'a> {
    to: Gid,
    len: usize,
    bytes: &'a mut [u8; MAX_MESSAGE],
}

impl Out<'_> {
    /// Room for the message with this header; its payload is to be written behind the header.
    fn prepare(&mut self, to: Gid, header: &Header) -> &mut [u8] {
        self.to = to;
        self.len = header.message_len();
        &mut self.bytes[..self.len]
    }
}

impl Default for OneRmaFrame {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes of a message that is sealed when it is decided on: completion, NACK, authentication failure.
const ANSWER_LEN: usize = HEAD_LEN + TAG_LEN;

/// Messages without payload that are ready to leave, and the counter behind all messages.
struct Outbox {
    counter: Counter,
    answers: VecDeque<(Gid, [u8; ANSWER_LEN])>,
}

impl Outbox {
    /// The header of the next message, unless the counter is used up.
    #[inline]
    fn header(&mut self, counters: &mut OneRmaCounters, body: Body) -> Option<Header> {
        let counter = self.counter.take();
        counters.drop_counter += counter.is_none() as u64;
        counter.map(|counter| Header { counter, body })
    }

    /// Seals an answer and puts it in the row.
    fn answer(
        &mut self,
        counters: &mut OneRmaCounters,
        to: Gid,
        key: &MessageKey,
        previous: &Iv,
        body: Body,
    ) {
        if self.answers.len() == limits::MAX_ONE_RMA_ANSWERS {
            counters.drop_answer += 1;
            return;
        }
        let Some(header) = self.header(counters, body) else { return };
        let mut message = [0; ANSWER_LEN];
        key.seal(&header, previous, &mut message);
        self.answers.push_back((to, message));
    }
}

/// A 1RMA NIC: regions, command slots, what peers are being served, and the window that bounds it all.
pub struct OneRma {
    config: OneRmaConfig,
    nack_threshold: u32,
    memory: Memory,
    regions: Regions,
    slots: Slots,
    inbound: Inbounds,
    window: SolicitationWindow,
    arbiter: Arbiter,
    /// Of slots, then of peers' operations.
    timeouts: Timeouts,
    outbox: Outbox,
    /// Slots whose data a target has solicited.
    sending: VecDeque<u32>,
    /// Peers' reads.
    serving: VecDeque<u32>,
    /// Whose turn it is to send data: `serving`'s, or `sending`'s.
    serve_next: bool,
    /// Bytes that peers have asked for and that wait: what the NACK threshold is about.
    depth: u32,
    notice_key: MessageKey,
    key_cache: KeyCache,
    /// Where the message after the one that is dealt with may lie.
    ahead: Ahead,
    counters: OneRmaCounters,
}

/// Life, objects.
impl OneRma {
    /// A NIC without objects. `message_counters` must lie above all that a NIC of this address ever had, in
    /// this process or an earlier one: on it rests that no nonce comes twice. `seed` makes the local keys of
    /// its memory.
    pub fn new(config: OneRmaConfig, message_counters: Range<u64>, seed: u64) -> Result<OneRma, Error> {
        config.check()?;
        let nack_threshold = config.nack_threshold().ok_or(Error::Invalid("timeout"))?;
        let (slots, inbound) = (config.slots as usize, config.inbound_ops as usize);
        Ok(OneRma {
            nack_threshold,
            memory: Memory::new(seed),
            regions: Regions::new(config.regions),
            slots: Slots::new(config.slots, config.processes, config.slots_by_priority),
            inbound: Inbounds::new(config.inbound_ops),
            window: SolicitationWindow::new(config.window),
            arbiter: Arbiter::new(slots + inbound),
            timeouts: Timeouts::new(slots + inbound),
            outbox: Outbox { counter: Counter::new(message_counters)?, answers: VecDeque::new() },
            sending: VecDeque::with_capacity(slots),
            serving: VecDeque::with_capacity(inbound),
            serve_next: false,
            depth: 0,
            notice_key: MessageKey::new(&RESERVED_KEY),
            key_cache: KeyCache::new(),
            ahead: Ahead::NOTHING,
            counters: OneRmaCounters::default(),
            config,
        })
    }

    /// Where memory is registered before regions are made of it.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// What it was made with.
    pub fn config(&self) -> &OneRmaConfig {
        &self.config
    }

    /// What has been counted.
    pub fn counters(&self) -> &OneRmaCounters {
        &self.counters
    }

    /// Message counters that are left. A driver reserves and hands over more long before there are none, or
    /// nothing is sent any more.
    pub fn message_counters_left(&self) -> u64 {
        self.outbox.counter.left()
    }

    /// Hands over more message counters, all above the last range.
    pub fn add_message_counters(&mut self, range: Range<u64>) -> Result<(), Error> {
        self.outbox.counter.extend(range)
    }

    /// Lets a process in. `TableFull` when the slots that its priority may have are promised to others,
    /// `Busy` when it is in already.
    pub fn attach(&mut self, process: ProcessInit) -> Result<(), Error> {
        self.slots.attach(process)
    }

    /// Forgets a process, its slots and its regions, at once. What it was doing ends without a completion;
    /// peers that work on its regions are refused.
    pub fn detach(&mut self, pid: u32) -> Result<(), Error> {
        if !self.slots.is_attached(pid) {
            return Err(Error::NoSuchObject);
        }
        for slot in self.slots.owned_by(pid) {
            self.release_slot(slot)?;
        }
        self.slots.detach(pid);
        self.regions.remove_owned_by(pid);
        self.key_cache.clear();
        Ok(())
    }

    /// Slots that a process was promised. `None` when it is not attached.
    pub fn quota(&self, pid: u32) -> Option<u32> {
        self.slots.is_attached(pid).then(|| self.slots.quota(pid))
    }

    /// Gives a process a command slot. `TableFull` beyond its quota.
    pub fn allot_slot(&mut self, pid: u32) -> Result<SlotId, Error> {
        self.slots.allot(pid)
    }

    /// Takes a slot back. Its operation, if there is one, ends without a completion.
    pub fn release_slot(&mut self, slot: SlotId) -> Result<(), Error> {
        if let Some(active) = self.slots.release(slot)? {
            self.counters.ops_abandoned += 1;
            self.forget(slot.index(), &active);
        }
        Ok(())
    }

    /// Enters a region. `Invalid` when it is not wholly inside one memory region (which must be writable if
    /// peers may write), `NoSuchObject` when its owner is not attached.
    pub fn register(&mut self, init: &RegionInit) -> Result<RegionId, Error> {
        if !self.slots.is_attached(init.owner) {
            return Err(Error::NoSuchObject);
        }
        self.regions.register(&self.memory, self.config.address, init)
    }

    /// Removes a region. Operations on it that are in progress are refused or time out.
    pub fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        self.regions.remove(region)?;
        self.key_cache.forget(region);
        Ok(())
    }

    /// Completion records that were ever written to a region. `None` when there is no such region.
    pub fn completions(&self, region: RegionId) -> Option<u64> {
        self.regions.get(region).map(|region| region.completions)
    }

    /// Changes a region's key by its owner's hand, without an operation. Operations begun under the old key
    /// are refused.
    pub fn rotate(&mut self, region: RegionId, key: &RegionKey) -> Result<(), Error> {
        let address = self.config.address;
        self.regions.get_mut(region).ok_or(Error::NoSuchObject)?.rekey(key, address);
        self.key_cache.forget(region);
        Ok(())
    }

    /// K_d of a region of this NIC for a peer's process, to be handed to it over a channel that is encrypted.
    pub fn derive(&self, region: RegionId, initiator: Gid, pid: u32, op: Op) -> Result<DerivedKey, Error> {
        let found = self.regions.get(region).ok_or(Error::NoSuchObject)?;
        Ok(found.derive(initiator, pid, op, region))
    }
}

/// Data path.
impl OneRma {
    /// Takes in a message from `from`. Its payload is decrypted where it lies.
    pub fn on_frame(&mut self, now: Instant, from: Gid, message: &mut [u8]) {
        self.on_timer(now);
        self.counters.rx_messages += 1;
        self.counters.rx_bytes += message.len() as u64;
        let header = match Header::parse(message) {
            Ok(header) => header,
            Err(error) => return self.counters.parse_error(error),
        };
        match header.body {
            Body::Request(request) => self.on_request(now, from, &header, &request, message),
            Body::WriteData { ticket, piece } => {
                self.on_write_data(from, &header, ticket, piece, message);
            }
            Body::ReadResponse { slot, piece } => {
                self.on_read_response(now, from, &header, slot, piece, message);
            }
            Body::Solicitation { slot, ticket, open_ns } => {
                self.on_solicitation(now, from, &header, slot, (ticket, open_ns), message);
            }
            Body::Completion { slot, status } => {
                self.on_completion(now, from, &header, slot, status, message);
            }
            Body::Nack { slot } | Body::AuthenticationFailure { slot } => {
                self.on_refusal(now, from, &header, slot, message);
            }
        }
    }

    /// [`on_frame`](OneRma::on_frame) for who knows where the message after this one lies, if it is there,
    /// far from this processor: its lines are asked for between the steps of this one.
    pub fn on_frame_before(&mut self, ahead: Ahead, now: Instant, from: Gid, message: &mut [u8]) {
        self.ahead = ahead;
        self.ahead.step();
        self.on_frame(now, from, message);
        self.ahead.step();
        self.ahead = Ahead::NOTHING;
    }

    /// Ends what has run out of time.
    #[inline]
    pub fn on_timer(&mut self, now: Instant) {
        while let Some((at, thing)) = self.timeouts.first()
            && at <= now
        {
            match thing.checked_sub(self.config.slots as usize) {
                None => self.expire_command(now, thing as u32),
                Some(inbound) => self.expire_inbound(inbound as u32),
            }
        }
    }

    /// When [`OneRma::on_timer`] should be called next.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timeouts.first().map(|(at, _)| at)
    }

    /// Whether [`OneRma::next_frame`] could produce something.
    pub fn has_work(&self) -> bool {
        let enters = self.window.is_open() && !self.arbiter.is_empty();
        let data = !self.sending.is_empty() || !self.serving.is_empty();
        !self.outbox.answers.is_empty() || (self.outbox.counter.left() > 0 && (enters || data))
    }

    /// Produces the next message. False when there is none. Answers go first, then requests, then data of
    /// both kinds in turns.
    pub fn next_frame(&mut self, now: Instant, out: &mut OneRmaFrame) -> bool {
        match self.next_message(now, &mut out.bytes) {
            None => false,
            Some((to, len)) => {
                (out.to, out.len) = (to, len);
                true
            }
        }
    }

    /// The same, written where the driver wants it: destination and length.
    pub fn next_message(&mut self, now: Instant, bytes: &mut [u8; MAX_MESSAGE]) -> Option<(Gid, usize)> {
        self.on_timer(now);
        let out = &mut Out { to: Gid::default(), len: 0, bytes };
        let produced = self.next_answer(out) || self.next_entrant(now, out) || self.next_data(out);
        if !produced {
            return None;
        }
        self.counters.tx_messages += 1;
        self.counters.tx_bytes += out.len as u64;
        Some((out.to, out.len))
    }

    fn next_answer(&mut self, out: &mut Out<'_>) -> bool {
        let Some((to, message)) = self.outbox.answers.pop_front() else { return false };
        out.to = to;
        out.len = message.len();
        out.bytes[..message.len()].copy_from_slice(&message);
        true
    }

    /// Lets operations into service while the window has room.
    fn next_entrant(&mut self, now: Instant, out: &mut Out<'_>) -> bool {
        while self.window.is_open() && self.outbox.counter.left() > 0 {
            let produced = match self.arbiter.pop() {
                None => return false,
                Some(Waiting::Command(slot)) => self.enter_command(now, slot, out),
                Some(Waiting::Inbound(index)) => self.enter_inbound(now, index, out),
            };
            if produced {
                return true;
            }
        }
        false
    }

    fn next_data(&mut self, out: &mut Out<'_>) -> bool {
        while self.outbox.counter.left() > 0 && (!self.serving.is_empty() || !self.sending.is_empty()) {
            self.serve_next = !self.serve_next;
            let serve = if self.serve_next { !self.serving.is_empty() } else { self.sending.is_empty() };
            if if serve { self.serve(out) } else { self.send_data(out) } {
                return true;
            }
        }
        // What could not be served has an answer now.
        self.next_answer(out)
    }

    /// Asserts that the tables agree with one another; for tests, after every call.
    pub fn check_invariants(&self) {
        let (mut debits, mut waiting, mut sending) = (0, 0, 0);
        for active in self.slots.actives() {
            waiting += (active.phase == slots::Phase::Waiting) as usize;
            sending += matches!(active.phase, slots::Phase::Sending { .. }) as usize;
            debits += if active.phase == slots::Phase::Waiting { 0 } else { active.len as u32 };
        }
        let inbound = self.inbound.summary();
        assert_eq!(self.window.taken(), debits + inbound.debits, "the window's debits");
        assert_eq!(self.arbiter.len(), waiting + inbound.waiting, "who waits for the window");
        assert_eq!(self.sending.len(), sending, "who sends data");
        assert_eq!(self.serving.len(), inbound.serving, "who is served");
        assert_eq!(self.depth, inbound.queued, "bytes that wait to be served");
    }
}
