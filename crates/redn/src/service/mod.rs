//! Gets that a NIC answers: a table of values that one process writes, and a chain for each client that looks
//! keys up in it for ever.
//!
//! ```text
//! layout  what stands in the index and among the values, as chains and clients read it
//! chain   what answers one client's gets
//! client  how a client asks it
//! table   the one who writes it; log has the records' places
//! setup   how a client and a hull tell each other where they are
//! hull    the one who owns the NIC, and serves clients whether the table's writer lives or not
//! watch   what each client's chain has done, and what it should not
//! item    a value as memcached's clients know it
//! memcached  their protocol, and what a worker answers
//! rpc     gets that a worker answers by SEND and RECV: what chains are compared with
//! ```

pub mod chain;
pub mod client;
pub mod hull;
pub mod item;
pub mod layout;
mod log;
pub mod memcached;
pub mod rpc;
pub mod setup;
pub mod table;
pub mod watch;
