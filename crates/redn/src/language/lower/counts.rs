//! WRs by kind, as the paper's table 2 counts them.

use crate::chain::Op;

/// Which of the kinds of WRs that the paper counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Copies: READ, WRITE, SEND.
    pub copies: u32,
    /// Atomics.
    pub atomics: u32,
    /// WAIT and ENABLE.
    pub orders: u32,
    /// NOPs that fill a ring.
    pub fill: u32,
}

impl Counts {
    /// One WR more.
    pub fn add(&mut self, op: &Op) {
        match op {
            Op::Nop(_) => self.fill += 1,
            Op::Wait(_) | Op::Enable(_) | Op::EnableReceives(..) => self.orders += 1,
            Op::CompareSwap(..) | Op::FetchAdd(..) => self.atomics += 1,
            Op::Write(..) | Op::Read(..) | Op::Send(..) | Op::Calc(..) => self.copies += 1,
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}C {}A {}E", self.copies, self.atomics, self.orders)
    }
}
