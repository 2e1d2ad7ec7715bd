//! What an executor is asked for, and what it reports.

use crate::error::Error;
use crate::one_rma::{DerivedKey, Outcome, RegionId};
use adverb_wire::one_rma::{KEY_LEN, Op};
use adverb_wire::{Duration, Gid, Instant};
use core::fmt;

/// A transfer of any size, to be carried out as commands of up to 4 KB.
#[derive(Clone, Debug)]
pub struct TransferInit {
    /// Operation.
    pub op: Op,
    /// Class of service of its commands, 0 or 1.
    pub class: u8,
    /// Bytes, at least 1; 16 for a rekey.
    pub len: u64,
    /// Address of the target.
    pub target: Gid,
    /// Region of the target.
    pub remote_region: RegionId,
    /// Offset in it; 0 for a rekey.
    pub remote_offset: u64,
    /// Own region that takes or gives the bytes.
    pub local_region: RegionId,
    /// Offset in it.
    pub local_offset: u64,
    /// K_d for this operation on the remote region.
    pub key: DerivedKey,
    /// When no further command is issued and the transfer ends with [`End::Deadline`], unless it is done by
    /// then.
    pub deadline: Option<Instant>,
    /// What becomes of commands that fail.
    pub retry: Retry,
    /// The caller's own name for it; comes back in the report.
    pub tag: u64,
}

impl TransferInit {
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.len == 0 {
            return Err(Error::Invalid("length of a transfer: 0"));
        }
        if self.class > 1 {
            return Err(Error::Invalid("class of service of a transfer: 0 or 1"));
        }
        if self.op == Op::Rekey && (self.len != KEY_LEN as u64 || self.remote_offset != 0) {
            return Err(Error::Invalid("rekey: 16 bytes at offset 0"));
        }
        if self.remote_offset.checked_add(self.len).is_none()
            || self.local_offset.checked_add(self.len).is_none()
        {
            return Err(Error::Invalid("range of a transfer"));
        }
        Ok(())
    }

    pub(super) fn direction(&self) -> Direction {
        if self.op == Op::Read { Direction::Inbound } else { Direction::Outbound }
    }
}

/// How often a command of a transfer is issued again after it failed with NACK, TIMEOUT or DISPATCH_TIMEOUT,
/// under the congestion windows that the failure has made smaller. After REMOTE_AUTHENTICATION_FAILURE never:
/// the same key would fail again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Retry {
    /// Further attempts for each command.
    pub times: u8,
}

impl Retry {
    /// The first failure ends the transfer.
    pub const NEVER: Retry = Retry { times: 0 };

    /// Up to this many further attempts for each command.
    pub const fn times(times: u8) -> Retry {
        Retry { times }
    }

    pub(super) fn allows(self, outcome: Outcome, attempts: u8) -> bool {
        let transient = matches!(outcome, Outcome::Nack | Outcome::Timeout | Outcome::DispatchTimeout);
        transient && attempts < self.times
    }
}

/// Which way the bytes of an operation flow: congestion is known for each by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Reads.
    Inbound,
    /// Writes and rekeys.
    Outbound,
}

/// Name of a transfer in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransferId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// How a transfer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All commands ended with [`Outcome::Ok`], or one with something else and may not be issued again: then
    /// this is the first that did.
    Outcome(Outcome),
    /// Its deadline came first.
    Deadline,
    /// The caller cancelled it.
    Cancelled,
    /// The NIC refused a command: a mistake of the caller's, such as a range outside the own region.
    Refused(Error),
    /// The NIC is gone.
    Abandoned,
}

impl End {
    /// Whether all bytes are where they belong.
    pub fn is_ok(self) -> bool {
        self == End::Outcome(Outcome::Ok)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Outcome(outcome) => outcome.fmt(f),
            End::Deadline => f.write_str("deadline exceeded"),
            End::Cancelled => f.write_str("cancelled"),
            End::Refused(error) => write!(f, "refused by the own NIC: {error}"),
            End::Abandoned => f.write_str("the own NIC is gone"),
        }
    }
}

/// What became of a transfer. When it is there, none of its commands is in progress any more: the own memory
/// is the caller's again, and no side effect follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The transfer.
    pub id: TransferId,
    /// As it was submitted with.
    pub tag: u64,
    /// How it ended.
    pub end: End,
    /// Bytes of the commands that ended well. They need not be the first ones.
    pub bytes: u64,
    /// Commands issued, repeated ones included.
    pub commands: u64,
    /// Of these, how many were repeats.
    pub repeats: u64,
    /// Largest issue delay of its commands, as the NIC measured it.
    pub issue_delay: Duration,
    /// Largest total delay of its commands, as the NIC measured it.
    pub total_delay: Duration,
    /// From the submission until its end: waiting for slots, pacing, and deadlines included.
    pub elapsed: Duration,
}

/// A part of a transfer: one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Offset in the transfer.
    pub offset: u64,
    pub len: u16,
    /// Times that it was issued before.
    pub attempts: u8,
}

/// A transfer in progress.
pub(super) struct Transfer {
    pub init: TransferInit,
    pub flow: u32,
    pub submitted: Instant,
    /// Bytes before this have been cut into commands.
    pub next: u64,
    /// Commands that failed and are to be issued again. No more than there are slots.
    pub again: Vec<Chunk>,
    pub in_flight: u32,
    /// It is in its flow's row.
    pub in_row: bool,
    /// Why no further command is issued.
    pub end: Option<End>,
    pub bytes: u64,
    pub commands: u64,
    pub repeats: u64,
    pub issue_delay: Duration,
    pub total_delay: Duration,
}

impl Transfer {
    pub fn new(init: TransferInit, flow: u32, now: Instant) -> Transfer {
        Transfer {
            init,
            flow,
            submitted: now,
            next: 0,
            again: Vec::new(),
            in_flight: 0,
            in_row: false,
            end: None,
            bytes: 0,
            commands: 0,
            repeats: 0,
            issue_delay: Duration::ZERO,
            total_delay: Duration::ZERO,
        }
    }

    /// Whether there is a command to issue.
    pub fn wants_more(&self) -> bool {
        self.end.is_none() && (!self.again.is_empty() || self.next < self.init.len)
    }

    /// The next command's part: what failed goes first.
    pub fn cut(&mut self, op_size: u16) -> Chunk {
        if let Some(chunk) = self.again.pop() {
            return chunk;
        }
        let len = (self.init.len - self.next).min(op_size as u64) as u16;
        let chunk = Chunk { offset: self.next, len, attempts: 0 };
        self.next += len as u64;
        chunk
    }

    /// How it ended, once nothing is in flight and nothing is to come.
    pub fn ended(&self) -> Option<End> {
        match self.end {
            _ if self.in_flight > 0 => None,
            // Even one that was cancelled, or late, when its last commands came home.
            _ if self.bytes == self.init.len => Some(End::Outcome(Outcome::Ok)),
            end => end,
        }
    }
}
