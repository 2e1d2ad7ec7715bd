//! A replicated in-memory cache, the paper's KVCS (Singhvi et al., SIGCOMM 2020, section 7.1): lookups are
//! two one-sided reads, of the index and of the value, and cost the server no instruction; values are set by
//! calls to the server.
//!
//! ```text
//! client                                            each replica: a process that owns two regions
//! get ── read 64 B of kv-index ───────────────────► index: buckets of eight words: where a record is
//!     ── read one record of kv-data ──────────────► log: records, the oldest overwritten first
//!     checks version and checksum; torn: again
//! set ── call, to every replica ──────────────────► appends a record, then points the index to it
//! ```
//!
//! **Reads race with writes**, and nothing is locked. A word of the index is whole. A record has its version
//! at both ends and a checksum over all of it; one that does not check was overwritten while it was read, and
//! the lookup begins anew. A record that checks and has another key was found by a tag that two keys share;
//! the next candidate is looked at.
//!
//! **Everything is bounded.** The log overwrites what was set first; a bucket that is full gives up its
//! oldest record. It is a cache: what is evicted is missed.
//!
//! **Replicas are equal.** A client sets a value on all that it reaches, under a version that the first one
//! assigns; each keeps the highest version, so that they agree in the end. A replica that could not be
//! reached may serve what it has, an older value, until it is set again or evicted; [`Stored`] says which had
//! it. A restarted replica is empty. A get asks one replica, chosen by the key so that load spreads; it turns
//! to the next at the first failed operation, and when the key is missed.
//!
//! **Keys of the regions** come from [`adverb_grants`], whose rotations cost a client the operations that
//! were under way.

mod bench;
mod client;
mod histogram;
mod layout;
mod lookup;
mod open_loop;
mod protocol;
mod replica;
mod server;
#[cfg(test)]
mod simulated;
mod store;

pub use bench::{Bench, BenchReport, Window};
pub use client::{Client, ClientConfig, GetError, SetError, Stored};
pub use histogram::Histogram;
pub use layout::{KEY_MAX, VALUE_MAX};
pub use replica::{ReplicaCounters, ReplicaInit};
pub use server::{DATA, INDEX, Server, ServerConfig, ServerError};
pub use store::{StoreConfig, StoreCounters};
