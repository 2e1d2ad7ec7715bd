//! rsockets: sockets' calls over a connection of rdma_cm, or over datagrams (`rsocket(7)`); their protocols
//! are rdma-core's.
//!
//! ```text
//! wire     private data, messages, entries of tables
//! ring     positions in a ring
//! stream   a connection's state: grants, messages, the end; without memory and clock
//! link     its queue pair, queues and memory
//! heads    what goes before a datagram
//! peers    whose queue pair is known, in a bounded table
//! datagram_queue, datagrams   a queue pair for datagrams; a socket over it and over the kernel's UDP
//! memory, completions   what connections and datagrams both have of the NIC
//! socket   sockets by number; connecting, waiting, closing
//! requests accepting
//! bell     how threads that wait for one socket wake each other
//! calls    the calls of C: connecting, addresses, flags
//! bytes    the calls of C that send and receive
//! poll     rpoll, rselect
//! options  options and their bounds; defaults, of the host's files
//! iomap    memory that a peer writes to by offsets
//! ```
//! Lock order: a socket, and then all that rdma_cm and the NIC lock.

mod bell;
mod bytes;
mod calls;
mod completions;
mod datagram_queue;
mod datagrams;
mod defaults;
mod heads;
mod iomap;
mod link;
mod memory;
mod options;
mod peers;
mod poll;
mod requests;
mod ring;
mod socket;
mod stream;
mod wire;
