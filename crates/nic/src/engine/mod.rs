//! What drives the queue pairs: whose turn it is (`turn`), who has work, who waits for a path, whose timer
//! runs.

pub(crate) mod chain;
pub(crate) mod execute;
pub(crate) mod fetch;
mod guess;
pub mod live;
mod paths;
mod ready;
pub mod step;
mod timers;
mod turn;
pub(crate) mod wake;
pub mod watch;

pub(crate) use guess::Turns;
pub(crate) use paths::Paths;
pub(crate) use ready::Ready;
pub(crate) use timers::Timers;
