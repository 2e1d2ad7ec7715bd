//! The target's half: peers' requests, from the check of their tag to the last byte served or taken.

use super::initiator::{fits, payload, payload_mut};
use super::key_cache::Origin;
use super::keys::{Iv, MessageKey, NO_IV, RegionKey};
use super::regions::{Region, RegionId, Regions, Rights};
use super::timeouts::Wait;
use super::window::Waiting;
use super::{OneRma, Out};
use crate::memory::{Memory, Span, dma};
use crate::one_rma::leave_row;
use adverb_wire::one_rma::{Body, Header, KEY_LEN, Op, Piece, Request, Status};
use adverb_wire::{Gid, Instant};
use std::sync::Arc;
use zeroize::Zeroize;

/// A peer's operation in progress.
struct Inbound {
    from: Gid,
    slot: u32,
    op: Op,
    class: u8,
    len: u16,
    region: RegionId,
    /// Of the region's key, when the request was checked.
    key_epoch: u32,
    offset: u64,
    key: Arc<MessageKey>,
    /// Nonce of the request.
    request: Iv,
    /// Bytes of it that the NIC's depth counts.
    queued: u16,
    state: State,
}

impl Inbound {
    /// Where a piece of a write belongs, if it is inside, and the region still has the key that it was asked
    /// for under.
    fn place(&self, regions: &Regions, memory: &Memory, piece: Piece) -> Option<Span> {
        if self.op != Op::Write || !fits(piece, self.len) {
            return None;
        }
        let region = regions.get(self.region).filter(|region| region.key_epoch == self.key_epoch)?;
        region.span(memory, self.offset + piece.offset as u64, piece.len as u32, true)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A read; bytes before `next` have been sent.
    Serving { next: u16 },
    /// Waits for the solicitation window.
    Waiting,
    /// Its data have been solicited under this nonce, and these grains have come.
    Open { solicitation: Iv, arrived: u64 },
}

struct Entry {
    /// Number of its use; the upper half of a ticket.
    generation: u16,
    op: Option<Inbound>,
}

/// Table of peers' operations.
pub(super) struct Inbounds {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

/// What the rest of the NIC should agree with.
#[derive(Default)]
pub(super) struct Summary {
    pub debits: u32,
    pub waiting: usize,
    pub serving: usize,
    pub queued: u32,
}

impl Inbounds {
    pub fn new(size: u32) -> Inbounds {
        let entries = (0..size).map(|_| Entry { generation: 0, op: None }).collect();
        Inbounds { entries, free: (0..size).rev().collect() }
    }

    fn insert(&mut self, op: Inbound) -> Option<u32> {
        let index = self.free.pop()?;
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.op = Some(op);
        Some(index)
    }

    fn remove(&mut self, index: u32) -> Option<Inbound> {
        let op = self.entries[index as usize].op.take();
        if op.is_some() {
            self.free.push(index);
        }
        op
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut Inbound> {
        self.entries.get_mut(index as usize)?.op.as_mut()
    }

    fn ticket(&self, index: u32) -> u32 {
        (self.entries[index as usize].generation as u32) << 16 | index
    }

    /// The operation that a ticket names.
    fn by_ticket(&mut self, ticket: u32) -> Option<(u32, &mut Inbound)> {
        let index = ticket & 0xffff;
        let entry = self.entries.get_mut(index as usize)?;
        let current = entry.generation as u32 == ticket >> 16;
        entry.op.as_mut().filter(|_| current).map(|op| (index, op))
    }

    pub fn summary(&self) -> Summary {
        let mut sum = Summary::default();
        for op in self.entries.iter().filter_map(|entry| entry.op.as_ref()) {
            sum.queued += op.queued as u32;
            match op.state {
                State::Serving { .. } => sum.serving += 1,
                State::Waiting => sum.waiting += 1,
                State::Open { .. } => sum.debits += op.len as u32,
            }
        }
        sum
    }
}

impl OneRma {
    pub(super) fn on_request(
        &mut self,
        now: Instant,
        from: Gid,
        header: &Header,
        request: &Request,
        message: &mut [u8],
    ) {
        let previous = header.nonce();
        let id = RegionId::from_wire(request.region);
        let Some(region) = self.regions.get(id) else {
            self.counters.requests_unknown_region += 1;
            return self.notify_failure(from, request.slot, &previous);
        };
        let Request { pid, op, .. } = *request;
        let origin = Origin { region: id, key_epoch: region.key_epoch, from, pid, op };
        let known = self.key_cache.get(&origin);
        let key = known.clone().unwrap_or_else(|| {
            Arc::new(MessageKey::new(region.derive(from, request.pid, request.op, id).expose()))
        });
        if !key.open(header, &NO_IV, message) {
            self.counters.requests_unauthentic += 1;
            return self.notify_failure(from, request.slot, &previous);
        }
        self.counters.requests += 1;
        if known.is_none() {
            self.counters.keys_derived += 1;
            self.key_cache.put(origin, &key);
        }
        let refusal = if !region.rights.contains(Rights::for_op(request.op)) {
            Some(&mut self.counters.requests_without_right)
        } else if !allows(region, request) {
            Some(&mut self.counters.requests_out_of_bounds)
        } else {
            None
        };
        if let Some(counter) = refusal {
            *counter += 1;
            let body = Body::Completion { slot: request.slot, status: Status::Refused };
            return self.outbox.answer(&mut self.counters, from, &key, &previous, body);
        }
        let key_epoch = region.key_epoch;
        let state = if request.op == Op::Read { State::Serving { next: 0 } } else { State::Waiting };
        let nack = Body::Nack { slot: request.slot };
        if self.depth > self.nack_threshold {
            self.counters.nacks_queue += 1;
            return self.outbox.answer(&mut self.counters, from, &key, &previous, nack);
        }
        if self.inbound.free.is_empty() {
            self.counters.nacks_table += 1;
            return self.outbox.answer(&mut self.counters, from, &key, &previous, nack);
        }
        let &Request { op, class, slot, offset, len, .. } = request;
        let inbound = Inbound {
            from,
            slot,
            op,
            class,
            len,
            region: id,
            key_epoch,
            offset,
            key,
            request: previous,
            queued: len,
            state,
        };
        self.enter(now, inbound);
    }

    /// Takes an operation into the table, which has room.
    #[inline]
    fn enter(&mut self, now: Instant, inbound: Inbound) {
        let Inbound { op, class, len, .. } = inbound;
        let Some(index) = self.inbound.insert(inbound) else { unreachable!("there is a free entry") };
        self.depth += len as u32;
        let (wait, patience) = if op == Op::Read {
            self.serving.push_back(index);
            (Wait::End, self.config.timeout)
        } else {
            self.arbiter.push(class, Waiting::Inbound(index));
            (Wait::Service, self.config.dispatch_timeout)
        };
        self.timeouts.set(self.thing(index), wait, now + patience);
    }

    /// Tells an initiator at once that its request failed (section 4.2): under the reserved key, for there is
    /// no other that both have.
    fn notify_failure(&mut self, to: Gid, slot: u32, previous: &Iv) {
        let body = Body::AuthenticationFailure { slot };
        self.outbox.answer(&mut self.counters, to, &self.notice_key, previous, body);
    }

    /// A peer's operation among the deadlines.
    fn thing(&self, index: u32) -> usize {
        self.config.slots as usize + index as usize
    }

    /// Takes a peer's operation out of everything.
    fn drop_inbound(&mut self, index: u32) -> Option<Inbound> {
        let op = self.inbound.remove(index)?;
        self.timeouts.clear(self.thing(index));
        self.depth -= op.queued as u32;
        match op.state {
            State::Serving { .. } => leave_row(&mut self.serving, index),
            State::Waiting => self.arbiter.remove(op.class, Waiting::Inbound(index)),
            State::Open { .. } => self.window.refund(op.len),
        }
        Some(op)
    }

    /// Ends an operation whose region is gone or has another key.
    fn revoke(&mut self, index: u32) {
        self.counters.revoked += 1;
        let Some(op) = self.drop_inbound(index) else { return };
        let previous = match op.state {
            State::Open { solicitation, .. } => solicitation,
            _ => op.request,
        };
        let body = Body::Completion { slot: op.slot, status: Status::Refused };
        self.outbox.answer(&mut self.counters, op.from, &op.key, &previous, body);
    }

    /// Sends a piece of the read whose turn it is. False when the region no longer serves it.
    pub(super) fn serve(&mut self, out: &mut Out<'_>) -> bool {
        let Some(index) = self.serving.front().copied() else { return false };
        let Some(op) = self.inbound.get_mut(index) else { unreachable!("who is served is in the table") };
        let State::Serving { next } = op.state else { unreachable!("who is in the row is served") };
        let piece = Piece { offset: next, len: (op.len - next).min(self.config.max_piece) };
        let region = self.regions.get(op.region).filter(|region| region.key_epoch == op.key_epoch);
        let at = op.offset + next as u64;
        let Some(span) = region.and_then(|region| region.span(&self.memory, at, piece.len as u32, false))
        else {
            self.revoke(index);
            return false;
        };
        let body = Body::ReadResponse { slot: op.slot, piece };
        let Some(header) = self.outbox.header(&mut self.counters, body) else { return false };
        let message = out.prepare(op.from, &header);
        dma::read_bytes(span, payload_mut(&header, message));
        op.key.seal(&header, &op.request, message);
        op.queued -= piece.len;
        self.depth -= piece.len as u32;
        op.state = State::Serving { next: next + piece.len };
        if next + piece.len == op.len {
            self.counters.reads_served += 1;
            self.drop_inbound(index);
        }
        true
    }

    /// Solicits a peer's data. The window has room.
    pub(super) fn enter_inbound(&mut self, now: Instant, index: u32, out: &mut Out<'_>) -> bool {
        let (ticket, thing) = (self.inbound.ticket(index), self.thing(index));
        let Some(op) = self.inbound.get_mut(index) else { unreachable!("who waits is in the table") };
        let body = Body::Solicitation { slot: op.slot, ticket, open_ns: self.config.open_ns() };
        let Some(header) = self.outbox.header(&mut self.counters, body) else {
            unreachable!("the caller has looked at the counter");
        };
        self.window.debit(op.len);
        self.depth -= op.queued as u32;
        op.queued = 0;
        op.state = State::Open { solicitation: header.nonce(), arrived: 0 };
        op.key.seal(&header, &op.request, out.prepare(op.from, &header));
        let patience = adverb_wire::Duration::from_ns(self.config.open_ns() as u64);
        self.timeouts.set(thing, Wait::Data, now + patience);
        true
    }

    pub(super) fn on_write_data(
        &mut self,
        from: Gid,
        header: &Header,
        ticket: u32,
        piece: Piece,
        message: &mut [u8],
    ) {
        let Some((index, op)) = self.inbound.by_ticket(ticket) else {
            self.counters.drop_unexpected += 1;
            return;
        };
        let State::Open { solicitation, arrived } = op.state else {
            self.counters.drop_unexpected += 1;
            return;
        };
        if op.from != from {
            self.counters.drop_source += 1;
            return;
        }
        let place = op.place(&self.regions, &self.memory, piece);
        if let Some(place) = place {
            // Its lines come while the message is opened.
            place.prefetch_for_write();
        }
        if !op.key.open(header, &solicitation, message) {
            self.counters.drop_unauthentic += 1;
            return;
        }
        self.ahead.step();
        if !fits(piece, op.len) {
            self.counters.drop_piece += 1;
            return;
        }
        if arrived & piece.grains() != 0 {
            self.counters.drop_duplicate += 1;
            return;
        }
        let arrived = arrived | piece.grains();
        let whole = arrived == Piece { offset: 0, len: op.len }.grains();
        op.state = State::Open { solicitation, arrived };
        let (kind, id, epoch) = (op.op, op.region, op.key_epoch);
        let placed = match kind {
            Op::Rekey => self.take_key(id, epoch, payload(header, message)),
            _ => place.inspect(|place| dma::write_bytes(*place, payload(header, message))).is_some(),
        };
        if !placed {
            return self.revoke(index);
        }
        self.ahead.step();
        if whole && let Some(op) = self.drop_inbound(index) {
            *if kind == Op::Rekey { &mut self.counters.rekeys } else { &mut self.counters.writes_landed } +=
                1;
            let body = Body::Completion { slot: op.slot, status: Status::Ok };
            self.outbox.answer(&mut self.counters, op.from, &op.key, &solicitation, body);
        }
    }

    /// Puts a new region key in place. A rekey's only piece holds it whole: 16 bytes are one grain.
    fn take_key(&mut self, id: RegionId, epoch: u32, bytes: &[u8]) -> bool {
        let address = self.config.address;
        let region = self.regions.get_mut(id).filter(|region| region.key_epoch == epoch);
        let (Some(region), Some(key)) = (region, bytes.first_chunk::<KEY_LEN>()) else { return false };
        let mut key = *key;
        region.rekey(&RegionKey::new(key), address);
        self.key_cache.forget(id);
        key.zeroize();
        true
    }

    /// The time of a peer's operation has run out.
    pub(super) fn expire_inbound(&mut self, index: u32) {
        let Some(op) = self.drop_inbound(index) else { return };
        match op.state {
            State::Serving { .. } => self.counters.reads_expired += 1,
            State::Open { .. } => self.counters.solicitations_expired += 1,
            State::Waiting => {
                self.counters.nacks_window += 1;
                let body = Body::Nack { slot: op.slot };
                self.outbox.answer(&mut self.counters, op.from, &op.key, &op.request, body);
            }
        }
    }
}

/// Whether the region has the range that a request names. A rekey names none.
fn allows(region: &Region, request: &Request) -> bool {
    match request.op {
        Op::Rekey => request.offset == 0,
        Op::Read | Op::Write => region.holds(request.offset, request.len as u64),
    }
}
