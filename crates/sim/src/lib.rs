//! A deterministic packet-level simulator around the same NIC that serves real programs.
//!
//! [`sim::Sim`] is hosts on a fabric in virtual time. A packet's way: a host's [`adverb_nic::Nic`] gives a
//! frame ([`host`]), a link carries it, switches queue, mark, drop or pause ([`fabric`]), the other host's
//! NIC takes it. [`events`] orders what happens, [`workload`] says who sends what, [`watch`] holds what can
//! be seen of it, [`scenario`] reads a run from a file. [`sweep`] runs many of them side by side, [`swarm`]
//! random ones under an oracle.
#![deny(unsafe_code)]

pub mod error;
pub mod events;
pub mod fabric;
pub mod host;
pub mod linear;
pub mod program;
pub mod scenario;
pub mod sim;
mod source;
pub mod swarm;
pub mod sweep;
pub mod units;
pub mod watch;
pub mod workload;

pub use adverb_rdma::portable;
pub use error::Error;
pub use fabric::switch::{Balance, Discipline, SwitchConfig};
pub use fabric::topology::{CableKind, Topology};
pub use fabric::{faults, link, packet, programmed, switch, topology};
pub use host::one_rma as rma;
pub use host::{TransportConfig, hardware, memory};
pub use scenario::{Plan, Scenario, ScenarioFile};
pub use sim::{Config, Sim};
pub use watch::record::{Report, Stats, Summary};
pub use watch::{capture, oracle, perfetto, record, sabotage, series, slowdowns, statistics, trace};
pub use workload::flows::{self, Flow, FlowSpec, Verb, Via};
pub use workload::ways;
