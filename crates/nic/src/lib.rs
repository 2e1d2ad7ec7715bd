//! The NIC, sans-IO: no sockets, no clocks, no threads.
//!
//! [`nic`] is its whole face. A frame's way in: [`Nic::on_frame`] → `demux` → `transport` → `memory`
//! and `queue`. A work request's way out: [`Nic::post_send`] → `queue` (a WQE in memory) → `engine`
//! (whose turn) → `transport::requester` (fetch, execute, packets) → [`Nic::next_frame`].
#![deny(unsafe_code)]

mod admission;
mod ahead;
pub mod attr;
mod attributes;
mod chains;
pub mod cm;
pub mod config;
pub mod congestion;
pub mod counters;
mod demux;
mod endpoint;
mod engine;
pub mod error;
pub mod event;
pub mod explain;
pub mod follow;
pub mod frame;
pub mod ids;
mod lend;
pub mod limits;
mod manager;
#[allow(unsafe_code, reason = "the room of raw memory access")]
pub mod memory;
mod multicast;
pub mod nic;
mod numbers;
mod objects;
pub mod one_rma;
mod qp;
pub mod queue;
mod queue_pair;
pub mod random;
pub mod silence;
mod slab;
mod star;
mod state;
mod tally;
mod transport;
pub mod work;

pub use attr::{
    AddressVector, Mtu, QpAttr, QpAttrMask, QpCaps, QpFlags, QpInit, QpState, QpType, SrqAttr, SrqInit,
};
pub use congestion::telemetry;
pub use congestion::{
    CongestionControl, DcqcnConfig, DctcpConfig, HpccConfig, RateLimit, SwiftConfig, TcpConfig, TimelyConfig,
};
pub use counters::Counters;
pub use error::Error;
pub use event::{Event, StarOutcome};
pub use explain::Explanation;
pub use one_rma::OneRma;
pub use transport::rc::irn::{self, IrnConfig, LossRecovery, Scheme, Timers};
pub use transport::star::StarConfig;
pub use transport::star::registry::{Rule, RuleFor};

pub use config::{NicConfig, WaitOnError};
pub use engine::live::{LiveQueue, LiveWait};
pub use engine::step::{Intent, Step};
pub use engine::watch::{Author, ChainEvent, ChainStep, Change, Copied, WqePlace};
pub use follow::{Followed, Follower};
pub use frame::TxFrame;
pub use ids::{CqId, MrId, MwId, PathId, PdId, QpId, SrqId, XrcdId};
pub use memory::{Access, MrInfo, MrInit, MwInfo, MwType, Payload};
pub use nic::Nic;
pub use random::Seed;
pub use silence::{Overdue, SHORTEST_TIMEOUT, Silence, Tolerance};
pub use star::StarSide;
pub use star::service;
pub use work::{
    Completion, CompletionOp, Posted, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status, UdAddress,
};
