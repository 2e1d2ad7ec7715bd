//! A deterministic packet-level simulator around the same NIC that serves real programs.
//!
//! [`sim::Sim`] is a fabric in virtual time. A packet's way: a host's [`adverb_nic::Nic`] gives a frame
//! (`ends`), the link carries it ([`link`]), switches queue, mark, drop or pause (`network`,
//! [`switch`]), the other host's NIC takes it. [`events`] orders what happens, [`flows`] and
//! [`workload`] say who sends what, [`record`] and [`capture`] what can be seen of it. [`sweep`] runs many of
//! them side by side, [`statistics`] says what they have in common.
#![deny(unsafe_code)]

mod ahead;
pub mod capture;
mod ends;
pub mod error;
pub mod events;
pub mod faults;
pub mod flows;
pub mod hardware;
pub mod host;
mod journal;
pub mod linear;
pub mod link;
#[allow(unsafe_code, reason = "hosts' memory is accessed through its address, as NICs do")]
pub mod memory;
mod network;
pub mod oracle;
pub mod packet;
pub mod portable;
pub mod record;
pub mod rma;
pub mod sabotage;
pub mod scenario;
mod shared;
pub mod sim;
pub mod statistics;
pub mod swarm;
pub mod sweep;
pub mod switch;
pub mod topology;
pub mod trace;
pub mod units;
pub mod workload;

pub use error::Error;
pub use flows::{Flow, FlowSpec, Op};
pub use host::Transport;
pub use record::{Report, Stats, Summary};
pub use scenario::{Plan, Scenario, ScenarioFile};
pub use sim::{Config, Sim};
pub use switch::{Balance, Discipline, SwitchConfig};
pub use topology::{CableKind, Topology};
