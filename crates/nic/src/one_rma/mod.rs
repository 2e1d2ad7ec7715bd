//! 1RMA (Singhvi et al., SIGCOMM 2020), in the paper's two halves.
//!
//! `nic` is what the paper has in hardware: [`OneRma`], which knows regions, command slots and independent
//! operations of up to 4 KB. `software` is what runs above it on the host: [`CommandPortal`], a process's
//! slots and completion ring, and [`executor`], transfers of any size under the congestion control of
//! [`congestion`]. It stands here because every driver needs the same.

mod nic;
mod software;

pub use nic::{
    COMMAND_LEN, COMPLETION_LEN, Command, Completion, DerivedKey, ENCRYPTED, OneRma, OneRmaConfig,
    OneRmaCounters, OneRmaFrame, Outcome, PRIORITIES, ProcessInit, RegionId, RegionInit, RegionKey, Rights,
    SlotId, derive,
};
pub use software::{CommandExecutor, CommandPortal, ExecutorConfig, congestion, executor};

use std::collections::VecDeque;

/// Takes somebody out of a row.
fn leave_row(row: &mut VecDeque<u32>, who: u32) {
    if let Some(at) = row.iter().position(|waiting| *waiting == who) {
        row.remove(at);
    }
}
