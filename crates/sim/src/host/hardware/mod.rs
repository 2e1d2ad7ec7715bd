//! What a host's NIC costs: doorbells, WQE fetches, processing units, PCIe, connection state, the port's
//! pipelines, atomics, completions. Neutral by default: nothing takes time, no event is entered, and the NIC
//! is driven without steps.
//!
//! A *cost* either holds a server, so that the next piece of work waits for it, or is a latency that holds
//! nothing. What memory holds is read when a transfer is issued; a write takes effect when its time is over.
//!
//! | file | holds |
//! |---|---|
//! | [`profile`] | the parameters and their names |
//! | [`profiles`] | cards by name |
//! | [`cache`], [`state`] | connection state: what is on the NIC, and how long a miss takes |
//! | [`responder`] | requests in turn, the atomic unit, words that are held |
//! | `unit` | the stations of one NIC, and the work under way |
//! | `drive` | the NIC driven through them, in the order of charging |
//! | `arrive` | the way of a packet that comes in |

mod arrive;
pub mod cache;
mod drive;
pub mod profile;
pub mod profiles;
pub mod responder;
pub mod state;
#[cfg(test)]
mod tests;
mod unit;

pub use profile::Profile;
pub use responder::Need;
pub use unit::Unit;
pub(crate) use unit::Way;
