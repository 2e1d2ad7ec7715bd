//! What a program tells an oracle of an operation on what programs share.

use crate::Rdma;
use crate::seam::Note;

/// An operation that has begun. Dropped without a word it stays open: it may or may not have had its
/// effect, as if the program had been ended in the middle of it.
#[must_use = "an operation without an end stays open for the oracle"]
pub struct Operation {
    rdma: Rdma,
    operation: u64,
}

impl Operation {
    pub(crate) fn new(rdma: &Rdma, operation: u64) -> Operation {
        Operation { rdma: rdma.clone(), operation }
    }

    /// It had its effect, and this result.
    pub fn end(self, results: &[u64]) {
        let (operation, results) = (self.operation, results.to_vec());
        self.rdma.world.note(Note::End { operation, results });
    }

    /// It certainly had no effect, and never will.
    pub fn void(self) {
        self.rdma.world.note(Note::Void { operation: self.operation });
    }
}
