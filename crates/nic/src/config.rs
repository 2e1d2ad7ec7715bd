//! What a NIC is made with.

use crate::cm::CmConfig;
use crate::congestion::config::CongestionControl;
use crate::silence::Tolerance;
use crate::transport::rc::irn::config::IrnConfig;
use crate::transport::star::StarConfig;
use adverb_wire::{Duration, Gid};

/// What an error completion does to WAITs that it should have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WaitOnError {
    /// They fail too, so that nobody works on what was not done.
    #[default]
    Fail,
    /// They end, as with any completion.
    Release,
}

/// What a NIC is made with.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// Source addresses, by GID index.
    pub gids: Vec<Gid>,
    /// Upper bits of every queue pair number; the NIC hands out the low 16.
    pub qpn_base: u32,
    /// Hands them out in order, which keeps its tables dense: for simulations. Without it they are drawn at
    /// random: who knows none of them has to guess one to be heard by a queue pair.
    pub qpns_in_order: bool,
    /// Congestion control of reliable queue pairs.
    pub congestion: CongestionControl,
    /// Bits per second of the port, at which rate-based schemes start and which they do not exceed.
    pub line_rate: u64,
    /// Packets that a queue pair below line rate may send at once to catch up, when the driver's timer was
    /// late.
    pub pacing_burst: u32,
    /// Packets that a reliable queue pair may have unacknowledged at most; below 8 it is 8.
    pub max_unacked_packets: u32,
    /// A reliable requester asks for an acknowledgement with every so many packets of a message, and
    /// with its last one; 0 for a quarter of what may be unacknowledged. A responder that owes an answer
    /// then goes before queue pairs that send, as in hardware, so that answers are not merged.
    pub ack_every: u32,
    /// Completions are written by [`Nic::step`](crate::Nic::step) only, and a WQE is fetched in one step and
    /// executed in another, so that the driver can put time before each.
    pub stepped: bool,
    /// Offers IRN to the peers of RC queue pairs; those that do not know it get plain RC.
    pub irn: Option<IrnConfig>,
    /// Offers StaR to the peers of RC queue pairs without shared receive queues; those that do not know it
    /// get plain RC.
    pub star: Option<StarConfig>,
    /// Has a connection manager, which takes what comes for queue pair 1 unless a program has made one.
    pub cm: Option<CmConfig>,
    /// Replaces the local ACK timeout attribute of queue pairs that have one, as long as they speak plain RC.
    /// The attribute knows powers of two only. IRN has timeouts of its own, bounded by the attribute.
    pub rto: Option<Duration>,
    /// A retry count does not run out: for experiments whose networks lose more than an application would
    /// bear.
    pub retry_forever: bool,
    /// Silence that the retry count does not speak of: for drivers whose peers may wait for a processor.
    pub tolerance: Tolerance,
    /// WQEs that a fetch of a cross-channel queue brings, WAITs not counted: the first one after idleness,
    /// and later ones.
    pub prefetch: (u8, u8),
    /// What an error completion does to WAITs for it, or for later ones of its completion queue.
    pub wait_on_error: WaitOnError,
    /// A WQE that a program writes must name its place and its queue pair in its control segment, as stock
    /// firmware demands; otherwise it fails. Without this, neither is looked at.
    pub wqe_checks: bool,
    /// Tells what cross-channel queues do, step by step:
    /// [`Nic::next_chain_event`](crate::Nic::next_chain_event).
    pub watch_chains: bool,
    /// Counts the payload that requests have moved (`payload_requested`, `payload_served`, `requests_done`),
    /// which costs each frame something.
    pub tally: bool,
    /// Frames to an own queue pair number on an own address stay inside, as with an adapter's loopback:
    /// [`Nic::next_frame`](crate::Nic::next_frame) takes them in at once, and no driver sees them. Without
    /// it they leave like all others. A driver that steps the NIC gets them in either case, and can tell
    /// them by [`PathId::LOOPBACK`](crate::PathId::LOOPBACK).
    pub loopback: bool,
    /// Frames that a queue pair may send before the next one's turn; 1 is round robin by packets, as hardware
    /// does.
    pub quantum: u32,
}

impl Default for NicConfig {
    fn default() -> Self {
        NicConfig {
            gids: Vec::new(),
            qpn_base: 0,
            qpns_in_order: false,
            congestion: CongestionControl::default(),
            line_rate: 100_000_000_000,
            pacing_burst: 16,
            max_unacked_packets: 256,
            ack_every: 0,
            stepped: false,
            irn: None,
            star: None,
            cm: None,
            rto: None,
            retry_forever: false,
            tolerance: Tolerance::default(),
            prefetch: (4, 16),
            wait_on_error: WaitOnError::default(),
            wqe_checks: false,
            watch_chains: false,
            tally: false,
            loopback: true,
            quantum: 16,
        }
    }
}
