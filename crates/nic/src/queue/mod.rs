//! Queues: WQE and CQE layouts, send, receive, shared receive and completion queues, doorbells.

mod calc;
pub(crate) mod cq;
pub(crate) mod cross;
mod op;
pub(crate) mod recv;
pub(crate) mod send;
pub mod wqe;
