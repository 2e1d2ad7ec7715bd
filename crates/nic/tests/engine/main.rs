//! The engine's tests, by subject: what WQEs do to each other and to themselves.

mod atomics;
mod bench;
mod direct;
mod errors;
mod hostile;
mod indices;
mod limit;
mod order;
mod programs;
mod receives;
mod watch;
#[path = "../world/mod.rs"]
mod world;
