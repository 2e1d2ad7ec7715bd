//! What a NIC does at a time.

use crate::ids::{CqId, QpId};
use crate::queue::cq::Release;
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
    /// A frame that no request asked for is in the buffer: an acknowledgement, an answer to a READ or atomic,
    /// a notification.
    Answer(QpId),
    /// A frame that belongs to no queue pair is in the buffer: of StaR's stateless half, or of an endpoint.
    Stateless,
    /// A WAIT whose completions have not come was reached; the queue goes on when they have.
    Waiting(QpId),
    /// An ENABLE took effect on this managed queue.
    Enabled(QpId),
    /// A completion was written.
    Completed(CqId),
}

/// What one step of a queue pair did: of its requester, or for what it owes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendStep {
    /// Nothing to do until something else happens.
    Idle,
    /// Read so many WQEs from memory.
    Fetched(u8),
    /// Came to a WAIT that is not met.
    Waiting,
    /// Nothing yet: the WQEs at hand are a chain, of which the turn executes as many as it may.
    Chain,
    /// Executed a WQE. One that has packets to send is in flight now; of others nothing is left to do.
    Executed(WqeOp),
    /// A packet of a request is in the frame.
    Packet,
    /// A packet that no request asked for is in the frame: an acknowledgement, an answer.
    Answer,
}

/// What the sending half would do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Idle,
    Fetch,
    Execute,
    /// A packet of the WQE at the cursor.
    Packet,
}

impl SendStep {
    /// As the driver sees it.
    pub fn of(self, id: QpId) -> Step {
        match self {
            SendStep::Idle | SendStep::Chain => Step::Idle,
            SendStep::Fetched(count) => Step::Fetched(id, count.into()),
            SendStep::Waiting => Step::Waiting(id),
            SendStep::Executed(op) => Step::Executed(id, op),
            SendStep::Packet => Step::Frame(id),
            SendStep::Answer => Step::Answer(id),
        }
    }
}

/// What a step of one queue pair does to others. The turn carries it out as a step of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The managed send queue of the queue pair at this index may be fetched up to this count of blocks,
    /// modulo 2^16.
    Enable { index: u32, end: u16 },
    /// Messages may take requests of the managed receive queue of the queue pair at this index up to this
    /// count, modulo 2^16.
    EnableReceives { index: u32, end: u16 },
    /// Completions that the queue pair at this index waits for have come.
    Wake { index: u32 },
    /// A completion that nobody polled has given way to a newer one, or found no place.
    Release(Release),
}

impl Effect {
    /// Whether it makes room in a queue pair's own queues.
    pub fn frees(&self, id: QpId) -> bool {
        matches!(*self, Effect::Release(Release::Send { qp, .. } | Release::Receive(qp)) if qp == id)
    }
}

/// What a queue pair would do in its next step, as far as it can be told without doing it; see
/// [`Nic::intent`](crate::Nic::intent).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Nothing, or nothing that can be told.
    Nothing,
    /// Send a frame that no request asked for.
    Answer,
    /// Send a frame of a request.
    Packet,
    /// Read a WQE, the first of so many blocks that are posted.
    Fetch(u32),
    /// Read several WQEs of a cross-channel queue, as they are now.
    FetchAhead {
        /// Only ENABLEs let it be fetched, no doorbell.
        managed: bool,
        /// A WAIT or an ENABLE is among them.
        orders: bool,
    },
    /// Execute the WQE that was read.
    Execute {
        /// What it is.
        op: WqeOp,
        /// It has to wait for what was posted before it.
        waits: bool,
        /// Bytes that a calculation reads, of which it sends less; 0 for what is none.
        calculates: u32,
    },
}
