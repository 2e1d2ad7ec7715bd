//! RedN: programs that run in the NIC, as chains of work queue elements that change each other.
//!
//! WQEs are memory. So a READ may fill in the address of the next WQE, a compare-and-swap may turn a NOP into
//! a WRITE, and WAIT and ENABLE say when a WQE is fetched. That is enough for conditionals and loops (Reda et
//! al., "RDMA is Turing complete, we just did not know it yet!", NSDI 2022).
//!
//! ```text
//! btree    a tree that one program writes while chains walk it
//! chain    assembler: WQEs on queues, with names for their fields, and numbers that stand for indices
//! load     creates queues, regions and completion queues over `adverb_rdma`, fills in addresses, starts
//! language programs of reads, comparisons, loops and moves, made into chains
//! run      a compiled program between a server and a client
//! service  gets that a NIC answers for ever: the table, and how clients read it
//! show     the way back: any send queue's bytes, in words
//! trace    what a running chain changes of itself, and when
//! trial    one run, compared with an interpreter that knows no RDMA
//! ```
//! A chain is made, loaded and run in any world that `adverb_rdma` has a driver for.
#![forbid(unsafe_code)]

pub mod btree;
pub mod chain;
pub mod language;
pub mod load;
pub mod run;
pub mod service;
pub mod show;
pub mod trace;
pub mod trial;

pub use adverb_nic::queue::wqe::WqeOp;
pub use chain::Chain;
pub use load::Loaded;
