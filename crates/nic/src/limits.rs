//! Every bound of the NIC in one place.

/// Queue pairs of one NIC, each with 16 bits of a number.
pub const MAX_QP: u32 = 1 << 16;
/// Completion queues.
pub const MAX_CQ: u32 = 1 << 16;
/// Entries of one completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Shared receive queues.
pub const MAX_SRQ: u32 = 1 << 14;
/// Work requests of one shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 15;
/// Protection domains.
pub const MAX_PD: u32 = 1 << 16;
/// Memory regions.
pub const MAX_MR: u32 = 1 << 20;
/// Memory windows.
pub const MAX_MW: u32 = 1 << 20;
/// XRC domains.
pub const MAX_XRCD: u32 = 1 << 10;
/// Bytes of memory on the NIC itself, for programs.
pub const MAX_DM_SIZE: u64 = 4 << 20;
/// Bytes of one region.
pub const MAX_MR_SIZE: u64 = 1 << 46;
/// Send or receive work requests of one queue pair.
pub const MAX_QP_WR: u32 = 1 << 15;
/// Scatter/gather entries of one work request.
pub const MAX_SGE: u32 = 30;
/// Scatter/gather entries of a shared receive queue's work request.
pub const MAX_SRQ_SGE: u32 = 30;
/// Inline bytes of one send work request.
pub const MAX_INLINE: u32 = 928;
/// READs and atomics of a peer that a queue pair may have to answer, as responder.
pub const MAX_RD_ATOMIC: u8 = 16;
/// READs and atomics a queue pair may have outstanding, as requester: a count and no table. Programs set it
/// to what the peer can answer (perftest does), which is 128 for Linux's rxe.
pub const MAX_INIT_RD_ATOMIC: u8 = 128;
/// Multicast groups of one NIC.
pub const MAX_MCAST_GROUPS: usize = 1024;
/// Queue pairs attached to one multicast group.
pub const MAX_QP_PER_GROUP: usize = 256;
/// Bytes of one message (IBTA 9.7.7: 2^31).
pub const MAX_MESSAGE: u64 = 1 << 31;
/// Largest path MTU in bytes.
pub const MAX_MTU: usize = 4096;
/// Undelivered asynchronous events kept before the oldest repeats are dropped and counted.
pub const MAX_PENDING_EVENTS: usize = 1 << 16;
/// Undelivered explanations kept.
pub const MAX_PENDING_EXPLANATIONS: usize = 256;
/// Paths a driver may name.
pub const MAX_PATHS: usize = 4096;

/// Answers that StaR's stateless half has ready to send; what would need one more is dropped and counted.
pub const MAX_STAR_ANSWERS: usize = 1 << 10;
/// Atomics of a StaR connection of which its stateless side's host remembers what they have found; as many
/// are under way at once.
pub const MAX_STAR_ATOMICS: usize = MAX_RD_ATOMIC as usize;
/// Messages of a connection under way that bring their completions along: behind one that is lost all others
/// are put off.
pub const MAX_STAR_MERGED: usize = 32;
/// Clients of native services on one NIC.
pub const MAX_STAR_CLIENTS: u32 = 1 << 16;
/// Their requests that are under way.
pub const MAX_STAR_REQUESTS: usize = 1 << 16;
/// Rules that the registry of a StaR NIC has: its connections times their servers' regions.
pub const MAX_STAR_RULES: u32 = 1 << 16;
/// Peers that StaR remembers because they have not answered.
pub const MAX_STAR_SILENT: usize = 256;

/// Connections and requests of one connection manager; the index takes the low 16 bits of an id. Of each, at
/// most [`MAX_CM_EVENTS_EACH`] events wait.
pub const MAX_CM_IDS: u32 = 1 << 16;
/// Request, established, rejected or unreachable, disconnected, timewait: each once.
pub const MAX_CM_EVENTS_EACH: usize = 5;
/// Listeners of one connection manager.
pub const MAX_CM_LISTENERS: u32 = 1 << 12;
/// Requests that a listener keeps waiting at most.
pub const MAX_CM_BACKLOG: u32 = 1024;
/// Messages of a connection manager that wait to be sent; what comes beyond is counted, and repeated later.
pub const MAX_CM_MADS: usize = 1 << 12;
/// Ports of which a process remembers that it has lately bound them or listened on them.
pub const MAX_CM_EXPECTED: usize = 64;
/// Requests that are kept for a listener which may come back.
pub const MAX_CM_KEPT: usize = 64;

/// Entries of a 1RMA NIC's Registered Region Table; the index takes the low 16 bits of a RegionId.
pub const MAX_ONE_RMA_REGIONS: u32 = 1 << 16;
/// Command slots of a 1RMA NIC.
pub const MAX_ONE_RMA_SLOTS: u32 = 1 << 16;
/// Processes attached to a 1RMA NIC.
pub const MAX_ONE_RMA_PROCESSES: u32 = 1 << 12;
/// Operations of peers that a 1RMA NIC works on at once; the index takes the low 16 bits of a ticket.
pub const MAX_ONE_RMA_INBOUND: u32 = 1 << 16;
/// Messages without payload that a 1RMA NIC has ready to send; what comes beyond is dropped and counted.
pub const MAX_ONE_RMA_ANSWERS: usize = 1 << 10;
/// Keys of peers that a 1RMA NIC keeps set up, however many peers there are.
pub const ONE_RMA_KEY_CACHE: usize = 256;
/// Keys of its commands that a process's part of a 1RMA NIC keeps set up, beside those that its slots had
/// last.
pub const ONE_RMA_COMMAND_KEYS: usize = 8;
/// Transfers that a 1RMA executor works on at once.
pub const MAX_ONE_RMA_TRANSFERS: u32 = 1 << 20;
/// Pairs of remote NIC and direction whose congestion windows a 1RMA executor remembers.
pub const MAX_ONE_RMA_FLOWS: u32 = 1 << 20;
/// Milliseconds of a 1RMA timeout; a solicitation tells its own in 32 bits of nanoseconds.
pub const MAX_ONE_RMA_TIMEOUT_MS: u64 = 4000;

/// Steps of a NIC without a frame after which its driver sees to its other duties: WQEs that order each other
/// can go on for ever.
pub const STEPS_WITHOUT_FRAME: u32 = 1 << 13;
/// Of these, what a frame counts for that the NIC takes in itself: two of its queue pairs could answer each
/// other for ever.
pub const STEPS_OF_LOOPED_FRAME: u32 = STEPS_WITHOUT_FRAME / 512;
/// Steps without a frame that a queue pair takes in its turn while others wait for theirs: about what two
/// frames cost.
pub const QUANTUM_OF_STEPS: u32 = 8;
/// Frames to its own NIC that a queue pair sends in its turn while others wait for theirs: a request and its
/// answer. Each is sent and taken in, so that chains of WQEs would otherwise take most of the NIC's time.
pub const QUANTUM_OF_LOOPED_FRAMES: u32 = 2;

/// Steps of chains of WQEs that a watched NIC keeps until they are taken; later ones are counted.
pub const MAX_CHAIN_EVENTS: usize = 1 << 16;

/// Queue pairs whose requests a [`Follower`](crate::Follower) follows.
pub const MAX_FOLLOWED: usize = 1 << 10;

/// Bytes of data that a calculation takes: one step computes all of it.
pub const MAX_CALC: usize = 8192;

/// 64-byte blocks that the largest send work request takes.
pub const MAX_WQE_BLOCKS: u32 = 16;

const _: () = assert!(16 + 48 + MAX_SGE * 16 <= MAX_WQE_BLOCKS * 64);
const _: () = assert!(16 + 48 + 4 + MAX_INLINE <= MAX_WQE_BLOCKS * 64);
const _: () = assert!(MAX_QP_WR * MAX_WQE_BLOCKS <= 1 << 20);
const _: () = assert!(STEPS_WITHOUT_FRAME.is_multiple_of(QUANTUM_OF_STEPS));
const _: () = assert!(MAX_ONE_RMA_REGIONS <= 1 << 16 && MAX_ONE_RMA_INBOUND <= 1 << 16);
const _: () = assert!(MAX_ONE_RMA_TIMEOUT_MS * 1_000_000 <= u32::MAX as u64);
