//! What each fuzz target does with its input: every parser, and every way in for frames: of NICs, and of
//! the switch.
//!
//! `fuzz/` hands these targets to `cargo fuzz`, which runs for as long as one likes; `tests/bounded.rs` hands
//! them a fixed number of inputs made from the same corpus, `fuzz/corpus`. An input must not panic, and what
//! a target can check it checks: what was parsed is emitted as it was, invariants hold after each frame, and
//! memory that nobody gave away stays as it is.
//!
//! A target says in [`Seen`] what it *accepted*, by opcode, so that a run shows whether its inputs get past
//! the first check.
#![allow(clippy::duplicate_mod, reason = "1RMA's world of tests is made of RC's, and targets take both")]

mod chains;
mod frames;
mod mutate;
mod nicd;
mod one_rma;
mod parsers;
mod roce;
mod star;
mod switch;
mod tested;

pub use mutate::Mutator;

use std::collections::BTreeMap;

/// What was accepted so far, by opcode or by another name for what was said.
#[derive(Default, Debug)]
pub struct Seen(pub BTreeMap<String, u64>);

impl Seen {
    fn accept(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }
}

/// A fuzz target.
pub struct Target {
    /// Its name: of the file in `fuzz/fuzz_targets`, of the folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Takes one input.
    pub run: fn(&[u8], &mut Seen),
    /// Inputs to begin with, by name: together they reach everything that the target can accept.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// What must be accepted at least once in a run.
    pub expected: fn() -> Vec<String>,
    /// Inputs of a bounded run.
    pub bounded: u32,
}

/// All of them.
pub const TARGETS: [Target; 14] = [
    parsers::WIRE,
    parsers::REWRITE,
    parsers::ONE_RMA_WIRE,
    parsers::PCAP,
    parsers::SCENARIO,
    roce::CONNECTED,
    roce::DATAGRAM,
    roce::IRN,
    star::NIC,
    chains::CHAINS,
    one_rma::NIC,
    parsers::GRANTS,
    nicd::NICD,
    switch::SWITCH,
];

/// The target of a name.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a target of that name")
}
