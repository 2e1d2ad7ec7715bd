//! Gets that a NIC answers: a table of values that one process writes, and a chain for each client that looks
//! keys up in it for ever.
//!
//! ```text
//! layout  what stands in the index and among the values, as chains and clients read it
//! ```

pub mod layout;
