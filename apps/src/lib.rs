//! Programs over adverb's native API.
//!
//! [`kv`]: a replicated key-value cache whose lookups are one-sided 1RMA reads. [`lock`]: a lock in
//! remote memory with leases and fencing tokens. [`locks`]: a table of locks for many clients, released
//! by WRITEs, and what becomes of the locks of dead ones. [`tree`]: a B+tree under such locks. [`chain`]: a
//! store whose keys are chains of entries that only grow, which a switch may help to find the ends of.
//! [`ycsb`]: what benches ask of them. [`queue`]: a bounded queue that several producers write
//! one-sidedly. [`catalog`]: a record that queue pairs update and 1RMA looks up.
//! [`words`]: words that clients change as they like, for an oracle of what lies between. `lock`, `queue`,
//! `catalog` and `words` are each one file: protocol, program, and what an oracle is told of it; `meeting`
//! has how they find each other. [`oracle`]: timestamps, each greater than all before, for a service
//! without connections.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod chain;
pub mod kv;
pub mod lock;
pub mod locks;
mod meeting;
pub mod oracle;
pub mod queue;
pub mod tree;
pub mod words;
pub mod ycsb;
