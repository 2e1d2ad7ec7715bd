//! The seam for programs of others: a crate outside this workspace implements [`Own`], and a switch runs it
//! among the programs that are built in, in the real process as in a simulation.
//!
//! `examples/own-switch` has one. The built-in programs stay variants of an enum that is matched in one
//! place; only a frame that reaches a program of somebody else pays for the call through a table.

use crate::budget::Needs;
use crate::frame::Frame;
use crate::program::Context;
use adverb_wire::{Gid, Instant};
use std::fmt::Debug;
use std::sync::Arc;

/// A program of somebody else.
///
/// It is what the built-in ones are: a state machine. It reads no clock, draws no random number, and opens
/// nothing: two that are given the same frames at the same times must do the same, or recordings and seeds
/// cannot be replayed. What it remembers is bounded.
pub trait Own: Debug + Send {
    /// Deals with one frame: passes it on ([`Context::pass_on`]), changed or not, drops it
    /// ([`Context::drop`]), sends another one back ([`Context::send_back`]), or keeps it.
    fn on_frame(&mut self, ctx: &mut Context<'_>, frame: Box<Frame>);

    /// Digests of what it remembers, by name: by them a recording that is played again is compared.
    fn digests(&self) -> Vec<(&'static str, u64)>;

    /// What it has counted, by name, for `adverb switch show`.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What it has of tables and registers for those who look from outside: their names.
    fn tables(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// The entries of one of these tables, in the order of their keys.
    fn entries(&self, _table: &str) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// One entry of one of these tables.
    fn entry(&self, table: &str, key: u64) -> Option<u64> {
        self.entries(table).into_iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Sets an entry of one of these tables, or takes it away.
    ///
    /// # Errors
    /// Why it cannot have this value.
    fn set_entry(&mut self, table: &str, _key: u64, _value: Option<u64>) -> Result<(), String> {
        Err(format!("{table} is to be read only"))
    }

    /// Does what is due.
    fn on_timer(&mut self, _ctx: &mut Context<'_>) {}

    /// When something is due next.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// An address has left its port.
    fn on_gone(&mut self, _ctx: &mut Context<'_>, _address: Gid) {}

    /// Whether an answer is awaited: a switch that is started anew then is one that a swarm tries.
    fn awaits(&self) -> bool {
        false
    }

    /// What it needs of hardware.
    fn needs(&self, _needs: &mut Needs) {}

    /// Asserts what must hold between two frames.
    fn check_invariants(&self) {}
}

/// What a program of somebody else is told: enough to begin it, and to begin it anew.
pub trait Making: Debug + Send + Sync {
    /// Its name, as files and `adverb switch show` have it.
    fn name(&self) -> &'static str;

    /// The program, which begins now and remembers nothing.
    ///
    /// # Errors
    /// What is wrong with what it was told.
    fn begin(&self, now: Instant) -> Result<Box<dyn Own>, &'static str>;
}

/// The same, as a switch keeps it: two are one where they are the same object.
#[derive(Clone, Debug)]
pub struct OwnConfig(Arc<dyn Making>);

impl OwnConfig {
    /// Of what somebody's program is told.
    pub fn new(making: impl Making + 'static) -> OwnConfig {
        OwnConfig(Arc::new(making))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The program, which begins now.
    ///
    /// # Errors
    /// What is wrong with what it was told.
    pub fn begin(&self, now: Instant) -> Result<Box<dyn Own>, &'static str> {
        self.0.begin(now)
    }
}

impl PartialEq for OwnConfig {
    fn eq(&self, other: &OwnConfig) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OwnConfig {}
