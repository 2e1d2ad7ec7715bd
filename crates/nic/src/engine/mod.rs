//! What drives the queue pairs: whose turn it is ([`turn`]), who has work, who waits for a path, whose timer runs.

mod paths;
mod ready;
mod timers;
pub(crate) mod turn;

pub(crate) use paths::Paths;
pub(crate) use ready::Ready;
pub(crate) use timers::Timers;
