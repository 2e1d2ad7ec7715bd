//! StaR: a reliable connection of which one NIC keeps nothing (Wang et al., ICNP 2021).
//!
//! | file | holds |
//! |---|---|
//! | [`stateless`] | the half that keeps nothing: executes, answers |
//! | `checks` | what a packet must meet beside its ticket |
//! | `seal` | tickets, by which it knows whom to obey |
//! | [`posted`] | what it reads of its host's queues, for packets that name something posted |
//! | `history` | what it executed lately, in a table of constant size |
//! | `registry` | what may leave the stateful side, where that is asked for |
//! | [`config`] | parameters, and the rule that gives each side its role |
//! | [`super::rc::star`] | the stateful half, a mode of RC |
//! | `nic/src/star.rs` | endpoints, hellos, the way of frames to the halves |
//! | `nic/src/star/library.rs` | what the stateless side's host does: work requests out, completions in |
//!
//! Beyond the paper, which trusts every NIC and every packet of its network: tickets and keys of regions are
//! checked where memory is; deadlines, a history and order stamps make a late or doubled packet harmless, and
//! keep the order of overlapping WRITEs and of READs after WRITEs when packets are lost.

mod checks;
pub(crate) mod config;
pub(crate) mod history;
pub(crate) mod posted;
pub(crate) mod registry;
pub(crate) mod seal;
pub(crate) mod stateless;

pub(crate) use checks::back;
pub use config::StarConfig;
pub(crate) use config::{Role, role};
pub(crate) use stateless::{Atomics, News, Stateless, clock};
