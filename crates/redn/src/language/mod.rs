//! The language: programs of reads, comparisons, loops and moves, made into chains of WQEs.
//!
//! ```text
//! program get(key: u48, bucket: addr) {
//!     region table: read
//!     region values: source
//!     let b = read table[bucket] { key: u48, ptr: addr, len: u32 }
//!     if b.key == key { reply values[b.ptr; b.len] imm 1 }
//! }
//! ```
//! [`parse`] reads it, [`lower`] makes a chain of it, [`interpret`] says what it does without knowing RDMA.
//! Errors name the line and the rule. [`random`] makes programs from seeds, and [`coverage`] says what they
//! have in them.

mod ast;
pub mod coverage;
pub mod interpret;
pub mod lower;
mod parse;
pub mod random;
pub mod wrong;

pub use ast::*;
pub use lower::{Compiled, compile};
pub use parse::parse;

use std::fmt;

/// What is wrong with a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The line, from 1.
    pub line: u32,
    /// The rule.
    pub rule: String,
}

impl Error {
    pub(crate) fn new(line: u32, rule: impl Into<String>) -> Error {
        Error { line, rule: rule.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.rule)
    }
}

impl std::error::Error for Error {}
