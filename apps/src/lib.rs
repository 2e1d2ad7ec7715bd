//! Programs over adverb's native API.
//!
//! [`kv`]: a replicated key-value cache whose lookups are one-sided 1RMA reads.
#![forbid(unsafe_code)]

pub mod kv;
