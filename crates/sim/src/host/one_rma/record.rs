//! What NICs reported about operations, one record each: the source of time series and shares.

use adverb_nic::one_rma::Outcome;

/// Records that a run keeps at most (160 MB).
pub const OPERATIONS_MAX: usize = 4 << 20;

/// An operation that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// When the initiator's software had the completion, in ps.
    pub at: u64,
    /// From the post until the operation entered service, in ps.
    pub issue_ps: u64,
    /// From the post until its end, in ps.
    pub total_ps: u64,
    /// Who posted it.
    pub initiator: u32,
    /// Whose memory it is about.
    pub target: u32,
    /// Bytes.
    pub len: u16,
    /// How it ended.
    pub outcome: Outcome,
}

const _: () = assert!(core::mem::size_of::<Operation>() <= 40);

/// All of them, in the order of their ends.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The records.
    pub operations: Vec<Operation>,
    /// Operations beyond [`OPERATIONS_MAX`], which are not kept.
    pub missed: u64,
    /// By outcome, as [`Outcome::ALL`] orders them; all operations.
    pub outcomes: [u64; 5],
    /// Longest that an operation took, from its post to its end, in ps.
    pub longest_ps: u64,
}

impl Record {
    pub(crate) fn add(&mut self, operation: Operation) {
        self.outcomes[operation.outcome as usize] += 1;
        self.longest_ps = self.longest_ps.max(operation.total_ps);
        if self.operations.len() < OPERATIONS_MAX {
            self.operations.push(operation);
        } else {
            self.missed += 1;
        }
    }

    /// Operations that ended so.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// All operations.
    pub fn total(&self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// Bits per second that ended well in each slice of `slice_ps`, for the operations that `pick` chooses.
    pub fn throughput(&self, slice_ps: u64, pick: impl Fn(&Operation) -> bool) -> Vec<f64> {
        let mut slices: Vec<f64> = Vec::new();
        for operation in self.operations.iter().filter(|o| o.outcome == Outcome::Ok && pick(o)) {
            let at = (operation.at / slice_ps) as usize;
            if slices.len() <= at {
                slices.resize(at + 1, 0.0);
            }
            slices[at] += f64::from(operation.len) * 8.0 * 1e12 / slice_ps as f64;
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ended_well_counts_as_throughput() {
        let mut record = Record::default();
        for (at, outcome) in [(1, Outcome::Ok), (9, Outcome::Ok), (9, Outcome::Nack), (25, Outcome::Ok)] {
            let at = at * 1_000_000;
            record.add(Operation {
                at,
                issue_ps: 1,
                total_ps: at,
                initiator: 0,
                target: 1,
                len: 1250,
                outcome,
            });
        }
        // Two of 10,000 bits in 10 us are 2 Gb/s.
        assert_eq!(record.throughput(10_000_000, |o| o.target == 1), [2e9, 0.0, 1e9]);
        assert_eq!(record.throughput(10_000_000, |o| o.target == 2), [0.0; 0]);
        assert_eq!((record.total(), record.count(Outcome::Nack), record.longest_ps), (4, 1, 25_000_000));
    }
}
