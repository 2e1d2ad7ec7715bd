//! rsockets: sockets' calls over a connection of rdma_cm (`rsocket(7)`), their protocol rdma-core's.
//!
//! ```text
//! wire     private data, messages, entries of tables
//! ring     positions in a ring
//! stream   a connection's state: grants, messages, the end; without memory and clock
//! link     its queue pair, queues and memory
//! socket   sockets by number; connecting, accepting, waiting, closing
//! bell     how threads that wait for one socket wake each other
//! calls    the calls of C: connecting, addresses, flags
//! bytes    the calls of C that send and receive
//! poll     rpoll, rselect
//! options  options and their bounds
//! iomap    memory that a peer writes to by offsets
//! ```
//! Lock order: a socket, and then all that rdma_cm and the NIC lock.

mod bell;
mod bytes;
mod calls;
mod iomap;
mod link;
mod options;
mod poll;
mod ring;
mod socket;
mod stream;
mod wire;
