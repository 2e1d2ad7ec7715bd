//! What a NIC does at a time.

use crate::ids::{CqId, QpId};
use crate::queue::wqe::WqeOp;

/// What one step did; see [`Nic::step`](crate::Nic::step).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing to do.
    Idle,
    /// So many WQEs were read from memory, in one transfer.
    Fetched(QpId, u32),
    /// A WQE was executed, or found to be invalid, which counts as a NOP.
    Executed(QpId, WqeOp),
    /// A frame of a request is in the buffer; its payload has not been read yet.
    Frame(QpId),
    /// A frame that no request asked for is in the buffer: an acknowledgement, an answer to a READ or atomic, a notification.
    Answer(QpId),
    /// A completion was written.
    Completed(CqId),
}
