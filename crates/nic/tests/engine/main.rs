//! The engine's tests, by subject: what WQEs do to each other and to themselves.

mod atomics;
mod bench;
mod errors;
mod indices;
mod limit;
mod order;
mod programs;
mod receives;
#[path = "../world/mod.rs"]
mod world;
