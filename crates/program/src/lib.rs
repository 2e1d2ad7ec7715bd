//! What drivers of native programs on a host share. `adverb_io` drives queue pairs and `adverb_rma` 1RMA's
//! transfers; each alone is a program's whole world, and [`Both`] makes one world of the two.
//!
//! ```text
//! waits     who is to be woken, by which thread
//! exchange  attributes over TCP, at an address of its own
//! both      a driver that hands each call to the NIC that it is for
//! ```
#![forbid(unsafe_code)]

mod both;
mod exchange;
mod waits;

pub use both::Both;
pub use exchange::Exchange;
pub use waits::{Changed, Stopper, Waits, Watch, clock_ns};
