//! A drop-in `libibverbs.so.1`: the verbs C ABI of rdma-core (v44's structs, names up to v65) over adverb's
//! NIC. [`cm`] is a drop-in `librdmacm.so.1` in the same library.
//!
//! A program's pointers name objects of this crate ([`handle`]); calls translate C structs ([`abi`])
//! to the NIC's own types and go to the process's one [`host`]. Events come back through [`tables`]
//! into the queues of [`event`]. `link.sh` makes the shared library, with the symbol versions of
//! `libibverbs.map`.
//!
//! What is not offered answers EOPNOTSUPP: flow steering, counters of flows and of completions, raw packet
//! queues, work queues and their indirection tables, tag matching, DMA buffers and their handles, imports
//! from other processes, enhanced connection options.

pub mod abi;
mod ah;
mod alone;
mod buf;
mod channel;
mod cm;
mod compat;
mod context;
mod cq;
mod cq_ex;
mod device;
mod direct;
mod dm;
mod event;
mod handle;
mod host;
mod import;
mod later;
mod mapping;
mod marshal;
mod mr;
mod mw;
mod names;
mod nodes;
mod pd;
mod post;
mod private;
mod qp;
mod qp_attr;
mod qp_ex;
mod query;
mod rate;
mod srq;
mod sysfs;
mod tables;
mod xchannel;
mod xrcd;

pub(crate) use handle::set_errno;
