//! Words of a server that the switch follows, and what it knows of each.
//!
//! ```text
//!              an atomic, alone                 its answer
//!   Unsure ────────────────────▶ Learning ────────────────▶ Known ◀─────────┐
//!     ▲ ▲ no answer for long         │                        │  a change   │ its
//!     │ └────────────────────────────┘                        ▼             │ ACK
//!     │      an access that is not followed, no answer     Pending ─────────┘
//!     └───────────────────────────────────────────────────────┘
//! ```
//! A WRITE of a word that is unsure, alone, leads to Pending at once: it tells what the word is behind it.
//!
//! At most one change of a word is under way, so no order between queue pairs is needed: the next one waits
//! until the server has acknowledged it. Where the switch is not sure, the server decides.

use crate::register::{Pass, Register, Shape};
use adverb_wire::{Duration, Instant, Key, Psn};
use std::collections::BTreeMap;

/// Bytes of a word.
pub const WORD_LEN: u64 = 8;
/// Words that are looked at for one to give away, when the table is full.
const LOOKED_AT: usize = 8;

/// What the switch knows of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The server decides. Not before this time may the word be learned: what the switch did not follow is
    /// still on its way.
    Unsure {
        /// The time; [`Instant::NEVER`] for a word that the server has under two keys.
        until: Instant,
    },
    /// One atomic is on its way to the server, alone; its answer will tell the value.
    Learning {
        /// Whose.
        connection: u32,
        /// Which.
        psn: Psn,
        /// From when on.
        since: Instant,
        /// What the word held before, if that was known: what it holds if the server refuses.
        before: Option<u64>,
    },
    /// The word has this value.
    Known(u64),
    /// The word had another value, and has this one as soon as the server acknowledges it.
    Pending {
        /// The new one.
        value: u64,
        /// Whose change.
        connection: u32,
        /// Which.
        psn: Psn,
        /// From when on.
        since: Instant,
    },
    /// The word has this value as soon as the server has executed a request that a carrier has under way.
    Carried {
        /// The value.
        value: u64,
        /// The carrier.
        carrier: u32,
        /// The request's number on it.
        out: Psn,
    },
    /// A change may be on its way that nobody waits for any more. Until it has arrived or never will, nothing
    /// else may reach the word: it was decided at a value that another change would replace.
    Closed {
        /// Until then.
        until: Instant,
    },
}

/// Under which key the server grants a word, and which of its processes: the upper eight bits of the queue
/// pair's number. Processes behind one address have keys and addresses of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The key.
    pub rkey: Key,
    /// The process.
    pub process: u8,
}

/// A word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Its address.
    pub va: u64,
    /// What is known of it.
    pub state: State,
    /// Who answered for it last.
    pub owner: Option<Owner>,
    /// Atomics, and WRITEs of it, on their way that the server has as they are.
    pub natives: u16,
    /// Waits to be alone with it that have ended in vain, one after another, since it was known last.
    pub vain: u8,
}

impl Default for Word {
    fn default() -> Self {
        Word { va: 0, state: State::Unsure { until: Instant::ZERO }, owner: None, natives: 0, vain: 0 }
    }
}

impl Word {
    /// Whether what comes must wait.
    pub fn is_busy(&self) -> bool {
        matches!(
            self.state,
            State::Learning { .. } | State::Pending { .. } | State::Carried { .. } | State::Closed { .. }
        )
    }

    /// Whether nobody may be alone with it yet, though that time has come: others are on their way.
    pub fn is_shared(&self, now: Instant) -> bool {
        matches!(self.state, State::Unsure { until } if now >= until) && self.natives > 0
    }

    /// It has this value.
    pub fn is_known(&mut self, value: u64) {
        (self.state, self.vain) = (State::Known(value), 0);
    }

    /// Somebody has waited to be alone with it in vain, for so long. For as long nobody waits, and the next
    /// wait is twice as long.
    pub fn rest(&mut self, now: Instant, patience: Duration) {
        self.state = State::Unsure { until: now + patience };
        self.vain = self.vain.saturating_add(1);
    }
}

/// The words of a server.
#[derive(Debug)]
pub struct Words {
    index: BTreeMap<u64, u32>,
    register: Register<Word>,
    used: usize,
    hand: usize,
}

impl Words {
    /// Room for so many.
    pub fn new(entries: usize) -> Words {
        // The value with its state, and what decides whose it is.
        let shape = Shape { name: "words", width: 192, entries, stage: 2 };
        Words { index: BTreeMap::new(), register: Register::new(shape), used: 0, hand: 0 }
    }

    /// What they cost.
    pub fn shape(&self) -> Shape {
        self.register.shape()
    }

    /// Room for so many, which are not fewer than before.
    pub fn grow(&mut self, entries: usize) {
        self.register.grow(entries);
    }

    /// Where the word of an address stands.
    pub fn find(&self, va: u64) -> Option<u32> {
        self.index.get(&va).copied()
    }

    /// The one access of a pass.
    pub fn access(&mut self, pass: Pass, at: u32) -> &mut Word {
        self.register.access(pass, at as usize)
    }

    /// For the control plane.
    pub fn get_mut(&mut self, at: u32) -> &mut Word {
        &mut self.register.entries_mut()[at as usize]
    }

    /// A word as it stands.
    pub fn get(&self, at: u32) -> &Word {
        &self.register.entries()[at as usize]
    }

    /// Follows an address from now on. `until` is when it may be learned. `None` if there is no room.
    pub fn follow(&mut self, va: u64, until: Instant) -> Option<u32> {
        let at = if self.used < self.register.entries().len() {
            self.used += 1;
            self.used - 1
        } else {
            self.give_away()?
        };
        self.register.entries_mut()[at] = Word { va, state: State::Unsure { until }, ..Word::default() };
        self.index.insert(va, at as u32);
        Some(at as u32)
    }

    /// A word that nobody changes now makes room for another.
    fn give_away(&mut self) -> Option<usize> {
        let entries = self.register.entries();
        let at = (0..LOOKED_AT.min(entries.len()))
            .map(|step| (self.hand + step) % entries.len())
            .find(|at| !entries[*at].is_busy() && entries[*at].natives == 0)?;
        self.hand = at + 1;
        self.index.remove(&entries[at].va);
        Some(at)
    }

    /// The words that share a byte with a range of addresses.
    pub fn overlapping(&self, va: u64, len: u64) -> impl Iterator<Item = u32> {
        let first = va.saturating_sub(WORD_LEN - 1);
        let last = va.saturating_add(len.saturating_sub(1));
        let range = (len > 0).then_some(first..=last);
        range.into_iter().flat_map(|range| self.index.range(range)).map(|(_, at)| *at)
    }

    /// All that are followed.
    pub fn all(&self) -> impl Iterator<Item = &Word> {
        self.index.values().map(|at| self.get(*at))
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Word> {
        self.register.entries_mut().iter_mut().take(self.used)
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.index.clear();
        self.used = 0;
    }
}
