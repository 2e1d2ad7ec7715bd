//! Registered memory: protection domains, regions, windows, their keys, the checks that every access
//! passes, and the copies that follow a check (IBTA 10.6; responder checks 9.7.4.1).
//!
//! Way of an access: [`Memory::check_local`] or [`Memory::check_remote`] turns a key, an address and
//! a length into a [`Span`]; [`dma`] and [`Gather`] move bytes between spans and frames. Registered
//! memory belongs to a running program, which reads and writes it at any moment, so no reference to
//! it is ever formed: all accesses are atomic, or assembly that the compiler cannot see through.
//!
//! This is the only room of the crate that contains `unsafe`. What the rest of the crate may rely on:
//! a span is usable as long as the promise given at [`Memory::reg_mr`] holds, and the spans of a
//! [`QueueMemory`] are usable for ever.

mod access;
mod check;
mod copy;
pub mod dma;
mod fault;
mod keys;
mod prefetch;
mod queue_memory;
mod span;
mod tables;
mod window;

#[cfg(test)]
mod tests;

pub use access::Access;
pub use check::RemoteRight;
pub use fault::AccessFault;
pub use prefetch::{Ahead, prefetch, prefetch_line, prefetch_line_for_write, prefetch_whole};
pub use queue_memory::QueueMemory;
pub use span::{Gather, Payload, Span};
pub use tables::{Memory, MrInfo, MrInit, Rereg};
pub use window::{MwBind, MwInfo, MwType};
