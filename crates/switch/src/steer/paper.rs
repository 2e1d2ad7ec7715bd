//! The draft's own rules for chains, as its sections say them and no better: what `steer` in the mode
//! `"paper"` is. It is for the simulator only, where it shows what the rules of [`steer`](super) are for.
//!
//! - A WRITE of an entry says which key its queue pair is at, and which entry is to be linked.
//! - A compare and swap is of the key that its queue pair has written last, and goes to that key's tail, if
//!   one is known. From then on the tail is the entry that the queue pair has written last, acknowledged or
//!   not.
//! - A READ of an entry that was seen written goes to its key's tail.
//! - Of each queue pair the most recent number and what became of it are kept. A request whose number does
//!   not advance gets that again.
//!
//! Nothing is learned from answers, so a link that is lost or refused stays the tail. The draft leaves repair
//! to clients that send again, and what a dead one leaves to a control plane, which nobody has described.

use super::SteerConfig;
use super::requests::{Class, classify, readdress};
use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::Context;
use crate::trace::Note;
use adverb_wire::{Psn, Service};
use std::collections::BTreeMap;

/// A queue pair of a client: its address, and the number of its end at the server.
type Name = ([u8; 16], u32);

/// What is kept of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// The key and the address of the entry that it has written last.
    written: Option<(u64, u64)>,
    /// Its most recent request.
    psn: Psn,
    /// By how much that was moved.
    by: u64,
}

/// The rules' state.
#[derive(Debug)]
pub struct PaperSteer {
    config: SteerConfig,
    latest: BTreeMap<Name, Latest>,
    /// By key. The draft has one for READs beside it, which is the same at all times.
    tails: BTreeMap<u64, u64>,
    /// Keys of entries, by address.
    keys: BTreeMap<u64, u64>,
}

impl PaperSteer {
    /// A program that knows no chain yet.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: SteerConfig) -> Result<PaperSteer, &'static str> {
        config.check()?;
        Ok(PaperSteer { config, latest: BTreeMap::new(), tails: BTreeMap::new(), keys: BTreeMap::new() })
    }

    /// What it was told.
    pub fn config(&self) -> &SteerConfig {
        &self.config
    }

    /// Deals with one frame.
    pub fn on_frame(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>) {
        let packet = frame.packet;
        let to_server = packet.flow.dst == self.config.server && !packet.bth.opcode.operation().is_response();
        if !to_server || !packet.bth.opcode.is_of(Service::Rc) || frame.has_options() {
            return ctx.pass_on(frame);
        }
        let name = (packet.flow.src.0, packet.bth.dest_qp.get());
        let psn = packet.bth.psn;
        let latest = self.latest.get(&name).copied();
        if latest.is_none() && self.latest.len() == self.config.connections_max {
            ctx.count(Counter::ConnectionsFull);
            return ctx.pass_on(frame);
        }
        let by = match latest {
            Some(latest) if psn == latest.psn => {
                ctx.count(Counter::Repeated);
                return readdress(ctx, frame, latest.by);
            }
            // Only the most recent one is kept.
            Some(latest) if psn.is_before(latest.psn) => 0,
            _ => self.decide(ctx, name, &frame),
        };
        if by != 0 {
            ctx.note(&packet, Note::Steered(by.wrapping_add(address_of(&frame))));
        }
        readdress(ctx, frame, by);
    }

    /// By how much a new request is moved.
    fn decide(&mut self, ctx: &mut Context<'_>, name: Name, frame: &Frame) -> u64 {
        let psn = frame.packet.bth.psn;
        let mut written = self.latest.get(&name).and_then(|latest| latest.written);
        let mut by = 0;
        match classify(&self.config, frame) {
            Class::Entry { place, key } => {
                written = Some((key, place));
                if self.keys.len() < self.config.entries_max || self.keys.contains_key(&place) {
                    self.keys.insert(place, key);
                }
            }
            Class::Link { behind, .. } => {
                let has_room = self.tails.len() < self.config.keys_max;
                let tails = &mut self.tails;
                let of = written.filter(|(key, _)| has_room || tails.contains_key(key));
                let tail = of.and_then(|(key, place)| tails.insert(key, place));
                by = tail.map_or(0, |tail| tail.wrapping_sub(behind));
                ctx.count(match tail {
                    None if of.is_none() && written.is_some() => Counter::KeysFull,
                    None => Counter::ChainsPassed,
                    Some(_) if by == 0 => Counter::CurrentCas,
                    Some(_) => Counter::SteeredCas,
                });
            }
            Class::Look { place } => {
                let tail = self.keys.get(&place).and_then(|key| self.tails.get(key));
                by = tail.map_or(0, |tail| tail.wrapping_sub(place));
                match tail {
                    None => {}
                    Some(_) if by == 0 => ctx.count(Counter::CurrentReads),
                    Some(_) => ctx.count(Counter::SteeredReads),
                }
            }
            Class::Other => {}
        }
        self.latest.insert(name, Latest { written, psn, by });
        by
    }
}

/// The address that a request names.
fn address_of(frame: &Frame) -> u64 {
    match frame.packet.bth.opcode.operation().is_atomic() {
        true => frame.packet.atomic.va,
        false => frame.packet.reth.va,
    }
}
