//! The initiator's half: commands, from their post to their completion.

use super::command::{COMMAND_LEN, COMPLETION_LEN, Command, Completion, Outcome};
use super::config::initiator_open;
use super::keys::{Iv, MessageKey, NO_IV, RegionKey};
use super::regions::{Region, Rights};
use super::slots::{Active, Phase, SlotId};
use super::timeouts::Wait;
use super::window::Waiting;
use super::{OneRma, Out};
use crate::error::Error;
use crate::memory::{Span, dma};
use crate::one_rma::leave_row;
use adverb_wire::one_rma::{
    Body, GRAIN, Header, KEY_LEN, MAX_HEADER_LEN, Op, Piece, Request, Status, TAG_LEN,
};
use adverb_wire::{Duration, Gid, Instant};
use zeroize::Zeroize;

impl OneRma {
    /// Writes a command into a slot. `Busy` while the slot's last one is in progress; `Invalid` for a
    /// malformed command and for own regions that are not the slot's process's, too short, or not writable
    /// where bytes are to come; then nothing has happened.
    pub fn post(&mut self, now: Instant, slot: SlotId, command: &[u8; COMMAND_LEN]) -> Result<(), Error> {
        self.on_timer(now);
        let pid = self.slots.owner(slot).ok_or(Error::NoSuchObject)?;
        if self.slots.get(slot.index()).is_some() {
            return Err(Error::Busy);
        }
        let command = Command::parse(command)?;
        let local = self.regions.owned(command.local_region, pid);
        let local = local.ok_or(Error::Invalid("region of a command: not one of the process's"))?;
        let sinks = command.op == Op::Read;
        if local.span(&self.memory, command.local_offset, command.len as u32, sinks).is_none() {
            return Err(Error::Invalid("own range of a command: outside its region, or not writable"));
        }
        let ring = self.regions.owned(command.completion_region, pid);
        let ring = ring.ok_or(Error::Invalid("completion region: not one of the process's"))?;
        let needed = COMPLETION_LEN as u64 * self.slots.quota(pid) as u64;
        if ring.len < needed || ring.span(&self.memory, 0, COMPLETION_LEN as u32, true).is_none() {
            return Err(Error::Invalid(
                "completion region: shorter than the process's quota, or not writable",
            ));
        }
        let active = Active {
            op: command.op,
            class: command.class,
            len: command.len,
            target: command.target,
            remote_region: command.remote_region,
            remote_offset: command.remote_offset,
            local_region: command.local_region,
            local_offset: command.local_offset,
            completion_region: command.completion_region,
            key: self.slots.command_key(slot, &command.key),
            posted: now,
            entered: now,
            arrived: 0,
            phase: Phase::Waiting,
        };
        self.slots.start(slot, active);
        self.arbiter.push(command.class, Waiting::Command(slot.index()));
        self.timeouts.set(slot.index() as usize, Wait::Service, now + self.config.dispatch_timeout);
        Ok(())
    }

    /// Lets a command into service. False when there is nothing to send.
    pub(super) fn enter_command(&mut self, now: Instant, slot: u32, out: &mut Out<'_>) -> bool {
        let pid = self.slots.owner(SlotId::new(slot));
        let (Some(active), Some(pid)) = (self.slots.get_mut(slot), pid) else {
            unreachable!("who waits is in the table");
        };
        self.window.debit(active.len);
        active.entered = now;
        let request = Request {
            op: active.op,
            class: active.class,
            slot,
            pid,
            region: active.remote_region.wire(),
            offset: active.remote_offset,
            len: active.len,
        };
        let Some(header) = self.outbox.header(&mut self.counters, Body::Request(request)) else {
            unreachable!("the caller has looked at the counter");
        };
        active.phase = Phase::Requested(header.nonce());
        if active.op == Op::Rekey && active.target == self.config.address {
            let outcome = self.rekey_here(slot, pid, &header);
            self.complete(now, slot, outcome);
            return false;
        }
        active.key.seal(&header, &NO_IV, out.prepare(active.target, &header));
        self.timeouts.set(slot as usize, Wait::End, now + self.config.timeout);
        true
    }

    /// A rekey of a region of this NIC: the same proof as a peer's, without messages (section 5.2).
    fn rekey_here(&mut self, slot: u32, pid: u32, header: &Header) -> Outcome {
        let address = self.config.address;
        let Some(active) = self.slots.get(slot) else { unreachable!("the caller's slot") };
        let Some(region) = self.regions.get(active.remote_region) else {
            return Outcome::RemoteAuthenticationFailure;
        };
        let mut proof = [0; MAX_HEADER_LEN + TAG_LEN];
        active.key.seal(header, &NO_IV, &mut proof);
        let expected = region.derive(address, pid, Op::Rekey, active.remote_region);
        let authentic = MessageKey::new(expected.expose()).open(header, &NO_IV, &mut proof);
        if !authentic || !region.rights.contains(Rights::REKEY) {
            return Outcome::RemoteAuthenticationFailure;
        }
        let mut bytes = [0; KEY_LEN];
        let remote = active.remote_region;
        let source = self.regions.owned(active.local_region, pid);
        let span = source.and_then(|own| own.span(&self.memory, active.local_offset, KEY_LEN as u32, false));
        let Some(span) = span else {
            self.counters.drop_local_region += 1;
            return Outcome::Timeout;
        };
        dma::read_bytes(span, &mut bytes);
        let key = RegionKey::new(bytes);
        bytes.zeroize();
        if let Some(region) = self.regions.get_mut(active.remote_region) {
            region.rekey(&key, address);
        }
        self.key_cache.forget(remote);
        self.counters.rekeys += 1;
        Outcome::Ok
    }

    /// The command that a message is for, if it comes from whom it asked; else counts.
    fn expecting(&mut self, slot: u32, from: Gid) -> Option<&mut Active> {
        let Some(active) = self.slots.get_mut(slot) else {
            self.counters.drop_unexpected += 1;
            return None;
        };
        if active.phase == Phase::Waiting {
            self.counters.drop_unexpected += 1;
            return None;
        }
        if active.target != from {
            self.counters.drop_source += 1;
            return None;
        }
        Some(active)
    }

    pub(super) fn on_read_response(
        &mut self,
        now: Instant,
        from: Gid,
        header: &Header,
        slot: u32,
        piece: Piece,
        message: &mut [u8],
    ) {
        let Some(active) = self.expecting(slot, from) else { return };
        let (Op::Read, Phase::Requested(request)) = (active.op, active.phase) else {
            self.counters.drop_unexpected += 1;
            return;
        };
        let sink = self.sink(slot, piece);
        if let Some(sink) = sink {
            // Its lines come while the message is opened.
            sink.prefetch_for_write();
        }
        let Some(active) = self.slots.get_mut(slot) else { unreachable!("looked at just now") };
        if !active.key.open(header, &request, message) {
            self.counters.drop_unauthentic += 1;
            return;
        }
        self.ahead.step();
        if !fits(piece, active.len) {
            self.counters.drop_piece += 1;
            return;
        }
        if active.arrived & piece.grains() != 0 {
            self.counters.drop_duplicate += 1;
            return;
        }
        let arrived = active.arrived | piece.grains();
        let whole = Piece { offset: 0, len: active.len }.grains();
        let Some(sink) = sink else {
            self.counters.drop_local_region += 1;
            return;
        };
        dma::write_bytes(sink, payload(header, message));
        self.ahead.step();
        if arrived == whole {
            self.complete(now, slot, Outcome::Ok);
        } else if let Some(active) = self.slots.get_mut(slot) {
            active.arrived = arrived;
        }
    }

    /// Where a piece of a read belongs, unless it is outside, or the process's memory is no longer registered
    /// for it.
    fn sink(&self, slot: u32, piece: Piece) -> Option<Span> {
        let active = self.slots.get(slot).filter(|active| fits(piece, active.len))?;
        let own = self.regions.owned(active.local_region, self.slots.owner(SlotId::new(slot))?)?;
        own.span(&self.memory, active.local_offset + piece.offset as u64, piece.len as u32, true)
    }

    pub(super) fn on_solicitation(
        &mut self,
        now: Instant,
        from: Gid,
        header: &Header,
        slot: u32,
        (ticket, open_ns): (u32, u32),
        message: &mut [u8],
    ) {
        let longest = self.config.open_ns();
        let Some(active) = self.expecting(slot, from) else { return };
        let (Op::Write | Op::Rekey, Phase::Requested(request)) = (active.op, active.phase) else {
            self.counters.drop_unexpected += 1;
            return;
        };
        if !active.key.open(header, &request, message) {
            self.counters.drop_unauthentic += 1;
            return;
        }
        // To answer would mean to wait longer than the bound that every operation has, or to report a failure
        // while the target still takes data.
        if open_ns > longest {
            self.counters.drop_solicitation += 1;
            return;
        }
        active.phase = Phase::Sending { solicitation: header.nonce(), ticket, next: 0 };
        self.sending.push_back(slot);
        self.timeouts.set(slot as usize, Wait::Landing, now + initiator_open(open_ns));
    }

    /// Sends a piece of what was solicited. False when the own region is gone.
    pub(super) fn send_data(&mut self, out: &mut Out<'_>) -> bool {
        let Some(slot) = self.sending.front().copied() else { return false };
        let pid = self.slots.owner(SlotId::new(slot));
        let Some(active) = self.slots.get_mut(slot) else { unreachable!("who sends is in the table") };
        let Phase::Sending { solicitation, ticket, next } = active.phase else {
            unreachable!("who is in the row of senders sends");
        };
        let piece = Piece { offset: next, len: (active.len - next).min(self.config.max_piece) };
        let source = pid.and_then(|pid| self.regions.owned(active.local_region, pid));
        let at = active.local_offset + next as u64;
        let span = source.and_then(|source| source.span(&self.memory, at, piece.len as u32, false));
        let last = next + piece.len == active.len;
        if last || span.is_none() {
            active.phase = Phase::Sent { solicitation };
            self.sending.pop_front();
        } else {
            active.phase = Phase::Sending { solicitation, ticket, next: next + piece.len };
        }
        let Some(span) = span else {
            self.counters.drop_local_region += 1;
            return false;
        };
        let Some(header) = self.outbox.header(&mut self.counters, Body::WriteData { ticket, piece }) else {
            return false;
        };
        let message = out.prepare(active.target, &header);
        dma::read_bytes(span, payload_mut(&header, message));
        active.key.seal(&header, &solicitation, message);
        true
    }

    pub(super) fn on_completion(
        &mut self,
        now: Instant,
        from: Gid,
        header: &Header,
        slot: u32,
        status: Status,
        message: &mut [u8],
    ) {
        let Some(active) = self.expecting(slot, from) else { return };
        let previous: Iv = match (active.phase, status) {
            (Phase::Requested(request), Status::Refused) => request,
            (Phase::Sending { solicitation, .. }, Status::Refused) => solicitation,
            (Phase::Sent { solicitation }, _) => solicitation,
            _ => {
                self.counters.drop_unexpected += 1;
                return;
            }
        };
        if !active.key.open(header, &previous, message) {
            self.counters.drop_unauthentic += 1;
            return;
        }
        let outcome = match status {
            Status::Ok => Outcome::Ok,
            Status::Refused => Outcome::RemoteAuthenticationFailure,
        };
        self.complete(now, slot, outcome);
    }

    /// A NACK or an authentication failure. Once the target has taken the operation up neither is believed:
    /// an old one, or an invented one, must not report a failure whose side effect is still to come.
    pub(super) fn on_refusal(
        &mut self,
        now: Instant,
        from: Gid,
        header: &Header,
        slot: u32,
        message: &mut [u8],
    ) {
        let Some(active) = self.expecting(slot, from) else { return };
        let Phase::Requested(request) = active.phase else {
            self.counters.drop_late_refusal += 1;
            return;
        };
        let nack = matches!(header.body, Body::Nack { .. });
        let authentic = match self.slots.get(slot) {
            Some(active) if nack => active.key.open(header, &request, message),
            _ => self.notice_key.open(header, &request, message),
        };
        if !authentic {
            self.counters.drop_unauthentic += 1;
            return;
        }
        let outcome = if nack { Outcome::Nack } else { Outcome::RemoteAuthenticationFailure };
        self.complete(now, slot, outcome);
    }

    /// A slot's time has run out.
    pub(super) fn expire_command(&mut self, now: Instant, slot: u32) {
        let waiting = self.slots.get(slot).is_some_and(|active| active.phase == Phase::Waiting);
        self.complete(now, slot, if waiting { Outcome::DispatchTimeout } else { Outcome::Timeout });
    }

    /// Ends an operation: the slot is free, the window refunded, the key gone, and the software told.
    fn complete(&mut self, now: Instant, slot: u32, outcome: Outcome) {
        let owner = self.slots.owner(SlotId::new(slot));
        let Some(active) = self.slots.finish(slot) else { return };
        self.forget(slot, &active);
        *match outcome {
            Outcome::Ok => &mut self.counters.ops_ok,
            Outcome::RemoteAuthenticationFailure => &mut self.counters.ops_remote_authentication_failure,
            Outcome::Nack => &mut self.counters.ops_nack,
            Outcome::Timeout => &mut self.counters.ops_timeout,
            Outcome::DispatchTimeout => &mut self.counters.ops_dispatch_timeout,
        } += 1;
        let total_delay = now.since(active.posted);
        let entered = active.phase != Phase::Waiting;
        let issue_delay = if entered { active.entered.since(active.posted) } else { total_delay };
        let ring = self.regions.get_mut(active.completion_region);
        let ring = ring.filter(|ring| owner == Some(ring.owner));
        let written =
            ring.is_some_and(|ring| tell(ring, &self.memory, slot, outcome, issue_delay, total_delay));
        self.counters.completions_lost += !written as u64;
        self.slots.keep_key(slot, active.key);
    }

    /// Takes an operation that has left its slot out of everything else.
    pub(super) fn forget(&mut self, slot: u32, active: &Active) {
        self.timeouts.clear(slot as usize);
        match active.phase {
            Phase::Waiting => return self.arbiter.remove(active.class, Waiting::Command(slot)),
            Phase::Sending { .. } => leave_row(&mut self.sending, slot),
            Phase::Requested(_) | Phase::Sent { .. } => {}
        }
        self.window.refund(active.len);
    }
}

/// Writes a record to a completion ring. False when its memory is gone.
fn tell(
    ring: &mut Region,
    memory: &crate::memory::Memory,
    slot: u32,
    outcome: Outcome,
    issue_delay: Duration,
    total_delay: Duration,
) -> bool {
    let entries = ring.len / COMPLETION_LEN as u64;
    let at = (ring.completions % entries) * COMPLETION_LEN as u64;
    let Some(span) = ring.span(memory, at, COMPLETION_LEN as u32, true) else { return false };
    ring.completions += 1;
    let slot = SlotId::new(slot);
    let record = Completion { slot, outcome, issue_delay, total_delay, number: ring.completions };
    dma::write_words(span, &record.encode());
    true
}

/// Whether a piece lies in an operation and leaves no grain half filled.
pub(super) fn fits(piece: Piece, len: u16) -> bool {
    let end = piece.offset as usize + piece.len as usize;
    end == len as usize || (end < len as usize && (piece.len as usize).is_multiple_of(GRAIN))
}

/// The payload of a whole message.
pub(super) fn payload<'a>(header: &Header, message: &'a [u8]) -> &'a [u8] {
    &message[header.len()..message.len() - TAG_LEN]
}

/// Room for the payload of a whole message.
pub(super) fn payload_mut<'a>(header: &Header, message: &'a mut [u8]) -> &'a mut [u8] {
    let end = message.len() - TAG_LEN;
    &mut message[header.len()..end]
}
