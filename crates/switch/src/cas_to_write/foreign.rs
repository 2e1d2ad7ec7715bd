//! Changes of memory by services whose connections are not followed: WRITEs by UC, and WRITEs and atomics
//! by XRC and IRN. They pass as they are, and what they may change is the server's to decide for a packet's
//! life.
//!
//! An address stands in the first packet of a WRITE only, but with IRN, so it is remembered for the others.
//! Of an XRC message whose first packet was not seen nobody knows where it writes: all words are the
//! server's. What UC carries then is dropped by the server.
//!
//! StaR's packets pass unseen: several requests may stand in one of them.

use super::CasToWrite;
use super::word::WORD_LEN;
use crate::counters::Drop;
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Gid, Headers, Instant, Packet, Psn, Service};
use std::collections::BTreeMap;

/// Messages of several packets that are remembered, at most.
pub(super) const MESSAGES_MAX: usize = 1 << 8;

/// What a message of several packets writes.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// Its first packet's number.
    first: Psn,
    /// Where, and so many bytes.
    range: (u64, u64),
}

/// Everything that a server has.
const ALL: (u64, u64) = (0, u64::MAX);

/// What is remembered of such services.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    /// The last message of several packets, by client and queue pair of the server.
    writing: BTreeMap<(u128, u32), Message>,
    /// When all words were to be given to the server last, and whether they were.
    all: Option<(Instant, bool)>,
}

impl Foreign {
    /// A client has gone, or the server, with all that was written to it.
    pub fn forget(&mut self, gone: Gid, is_server: bool) {
        self.writing.retain(|(client, _), _| !is_server && *client != gone.bits());
    }

    /// What a request may change, if it may change anything.
    fn range_of(&mut self, packet: &Packet) -> Option<(u64, u64)> {
        let (opcode, psn) = (packet.bth.opcode, packet.bth.psn);
        let operation = opcode.operation();
        if operation.is_atomic() {
            return Some((packet.atomic.va, WORD_LEN));
        }
        if !operation.is_write() {
            return None;
        }
        if opcode.is_of(Service::Irn) {
            // Each packet says where its own bytes go.
            return Some((packet.reth.va, packet.payload_len.into()));
        }
        let name = (packet.flow.src.bits(), packet.bth.dest_qp.get());
        if opcode.headers().contains(Headers::RETH) {
            let range = (packet.reth.va, packet.reth.len.into());
            if operation.is_first() && (self.writing.len() < MESSAGES_MAX || self.writing.contains_key(&name))
            {
                self.writing.insert(name, Message { first: psn, range });
            }
            return Some(range);
        }
        let message = self.writing.get(&name).filter(|message| !psn.is_before(message.first));
        match message {
            Some(message) => Some(message.range),
            None if opcode.is_of(Service::Uc) && self.writing.len() < MESSAGES_MAX => None,
            None => Some(ALL),
        }
    }
}

impl CasToWrite {
    /// A request of a service whose connections are not followed.
    pub(super) fn on_foreign(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        let service = frame.packet.bth.opcode.service();
        if !matches!(service, Service::Uc | Service::Xrc | Service::Irn) {
            return ctx.pass_on(frame);
        }
        // The server drops what is damaged, and later packets do not write where it says.
        if frame.packet.bth.opcode.operation().is_first() && !frame.is_sound() {
            return ctx.pass_on(frame);
        }
        let Some((va, len)) = self.foreign.range_of(&frame.packet) else { return ctx.pass_on(frame) };
        if ctx.now < self.quiet_until {
            return ctx.drop(&frame.packet, Drop::Starting);
        }
        let (now, is_all) = (ctx.now, (va, len) == ALL);
        if let Some((_, given)) =
            self.foreign.all.filter(|(at, _)| is_all && now.since(*at) < self.config.hold)
        {
            // What became unsure just now is so for long enough, and what was busy may be so still.
            return if given { ctx.pass_on(frame) } else { ctx.drop(&frame.packet, Drop::HoldRoom) };
        }
        if self.words.overlapping(va, len).next().is_none() || !frame.is_sound() {
            return ctx.pass_on(frame);
        }
        let given = self.touch(ctx, va, len).is_ok();
        if is_all {
            self.foreign.all = Some((now, given));
        }
        match given {
            true => ctx.pass_on(frame),
            // It must not meet what is on its way to the word.
            false => ctx.drop(&frame.packet, Drop::HoldRoom),
        }
    }
}
