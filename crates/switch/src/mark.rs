//! `ecn` marks packets, `trim` cuts their payloads off: where many bytes wait at the port that they leave by,
//! or every so many-th of that port.
//!
//! A trimmed packet keeps its headers and has a wrong ICRC: its receiver drops and counts it, and a receiver
//! that knows of trimming learns of the loss without waiting for a timeout.

use crate::counters::Counter;
use crate::frame::Frame;
use crate::program::{Context, PortId};
use crate::register::{Register, Shape, digest};
use crate::switch::PORTS_MAX;
use crate::trace::Note;
use std::num::NonZeroU32;

/// When a packet is marked or trimmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MarkConfig {
    /// At so many waiting bytes, each.
    pub above: Option<u32>,
    /// Every so many-th of a port, whatever waits there.
    pub every: Option<NonZeroU32>,
}

/// The state of `ecn` or `trim`.
#[derive(Debug)]
pub struct Mark {
    config: MarkConfig,
    /// By port: packets that could have been marked.
    seen: Register<u32>,
}

impl Mark {
    /// A program that begins to count.
    pub fn new(config: MarkConfig) -> Mark {
        let shape = Shape { name: "seen", width: 32, entries: PORTS_MAX, stage: 1 };
        Mark { config, seen: Register::new(shape) }
    }

    /// Other conditions, from now on.
    pub fn set_config(&mut self, config: MarkConfig) {
        self.config = config;
    }

    /// The conditions.
    pub fn config(&self) -> MarkConfig {
        self.config
    }

    /// Digests of what it remembers, by name.
    pub fn digests(&self) -> Vec<(&'static str, u64)> {
        vec![("config", digest(&self.config)), ("seen", digest(&self.seen.entries()))]
    }

    /// By port: packets that could have been marked.
    pub fn seen(&self) -> &[u32] {
        self.seen.entries()
    }

    /// The same, to be set.
    pub fn seen_mut(&mut self) -> &mut [u32] {
        self.seen.entries_mut()
    }

    /// What its register costs.
    pub fn shape(&self) -> Shape {
        self.seen.shape()
    }

    fn is_due(&mut self, ctx: &Context<'_>) -> bool {
        if ctx.to == PortId::NONE {
            return false;
        }
        let seen = self.seen.access(ctx.pass, usize::from(ctx.to.0));
        *seen = seen.wrapping_add(1);
        let by_turn = self.config.every.is_some_and(|every| (*seen).is_multiple_of(every.get()));
        by_turn || self.config.above.is_some_and(|above| ctx.depth >= above)
    }

    /// Marks, if it is time and the packet is ECN-capable.
    pub fn ecn(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        if frame.packet.flow.traffic_class & 3 != 0 && self.is_due(ctx) && frame.mark_congestion() {
            ctx.count(Counter::Marked);
            ctx.note(&frame.packet, Note::Marked);
        }
        ctx.pass_on(frame);
    }

    /// Trims, if it is time and the packet has a payload.
    pub fn trim(&mut self, ctx: &mut Context<'_>, mut frame: Box<Frame>) {
        if frame.packet.payload_len > 0 && self.is_due(ctx) && frame.trim() {
            ctx.count(Counter::Trimmed);
            ctx.note(&frame.packet, Note::Trimmed);
        }
        ctx.pass_on(frame);
    }
}
