//! 1RMA in the simulator: on every host a [`OneRma`] NIC instead of the one with queue pairs, and above it
//! the software of the paper, [`CommandPortal`](adverb_nic::one_rma::CommandPortal) and
//! [`CommandExecutor`](adverb_nic::one_rma::CommandExecutor): the code that serves real programs. A flow is a
//! transfer. Messages travel as packets that carry their bytes, encrypted as they are on a real network;
//! links, switches, faults and captures treat them as they treat others.
//!
//! `host` makes a host, `ends` moves messages between NICs and links, `transfers` moves flows through
//! executors, [`record`] keeps what NICs reported. [`crate::swarm::one_rma`] tries random faults under an
//! oracle that knows what memory must hold.

mod ends;
mod host;

pub mod record;

mod transfers;

pub use adverb_nic::one_rma::Outcome;
pub(crate) use ends::describe;
pub use host::RmaHost;
pub(crate) use host::{Lent, PID};
pub use record::Operation;
pub(crate) use transfers::PROGRAMS;

use crate::host::hardware::Profile;
use crate::host::memory::Buffer;
use crate::sim::{Config, Sim};
use crate::swarm::one_rma_oracle::Oracle;
use adverb_nic::one_rma::executor::Retry;
use adverb_nic::one_rma::{ExecutorConfig, OneRmaConfig, OneRmaFrame};

/// How the 1RMA NICs of a fabric, and the software above them, are set up.
#[derive(Clone, Debug)]
pub struct RmaConfig {
    /// The NICs; the address is each host's own, the bandwidth that of its link.
    pub nic: OneRmaConfig,
    /// Transfers and congestion control.
    pub executor: ExecutorConfig,
    /// Command slots of each host's process (figure 11b).
    pub slots: u32,
    /// Further attempts for commands that failed.
    pub retry: Retry,
    /// What PCIe costs, but on hosts whose hardware is their own ([`Config::hardware_of`]).
    pub pcie: Pcie,
    /// What an operation takes of the processor of its host's software, in ps: the next one leaves no sooner.
    /// 0: software costs nothing.
    pub command_ps: u64,
    /// Traffic class of all messages.
    pub class: u8,
    /// Each host has memory of its own, and each flow a part of it, so many bytes apart, as the oracle needs;
    /// 0: all share one place, whose contents nobody looks at.
    pub apart: u64,
    /// What happens to hosts' regions on the way.
    pub events: Vec<RegionEvent>,
    /// Hosts keep their queue pairs beside it.
    pub beside_queues: bool,
}

impl Default for RmaConfig {
    fn default() -> Self {
        RmaConfig {
            nic: OneRmaConfig::default(),
            executor: ExecutorConfig::default(),
            slots: 256,
            retry: Retry::NEVER,
            pcie: Pcie::default(),
            command_ps: 0,
            class: 0,
            apart: 0,
            events: Vec::new(),
            beside_queues: false,
        }
    }
}

/// What moving payload between NIC and host memory costs. All zero is neutral. Commands cost nothing here:
/// software writes them into the NIC (appendix B). What they take of its processor is
/// [`RmaConfig::command_ps`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pcie {
    /// Picoseconds for a byte, each way.
    pub byte_ps: u64,
    /// From asking for memory to its first byte, in ps. Reads overlap.
    pub read_ps: u64,
    /// From the first byte of a write until software can see it, in ps.
    pub write_ps: u64,
}

impl Pcie {
    /// What it costs a host with this hardware.
    pub fn of(profile: &Profile) -> Pcie {
        let byte_ps = 8_000_000_000_000u64.checked_div(profile.pcie_rate).unwrap_or(0);
        Pcie { byte_ps, read_ps: profile.pcie_read, write_ps: profile.pcie_write }
    }

    /// Costs nothing.
    pub fn is_neutral(&self) -> bool {
        *self == Pcie::default()
    }
}

/// Something that a region's owner does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionEvent {
    /// When, in ps.
    pub at: u64,
    /// Whose region.
    pub host: u32,
    /// What.
    pub what: RegionChange,
}

/// See [`RegionEvent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionChange {
    /// A Rekey operation puts the next key in place (section 5.2). Clients have been handed their keys for it
    /// before.
    Rekey,
    /// The owner's driver does: the region is gone, and back after so many ps.
    Driver(u64),
    /// The driver has put the region back, under its next key.
    DriverDone,
    /// The owner's process is gone, and its region with it.
    Withdraw,
}

/// The 1RMA half of a simulation; without hosts in a fabric of queue pairs only.
#[derive(Default)]
pub(crate) struct Rma {
    /// By host.
    pub hosts: Vec<RmaHost>,
    pub config: RmaConfig,
    pub record: record::Record,
    pub oracle: Option<Box<Oracle>>,
    out: OneRmaFrame,
}

impl Rma {
    /// Hosts for a fabric; `shared` is the memory of those that have none of their own.
    pub fn new(
        config: &Config,
        rma: &RmaConfig,
        rates: &[u64],
        shared: &Buffer,
    ) -> Result<Rma, crate::Error> {
        let made = |(h, rate): (usize, &u64)| {
            let refuse = |e: adverb_nic::Error| {
                crate::Error::new("transport.one-rma", format!("host {h}: {e}; change it"))
            };
            let h = h as u32;
            let has_own = config.hardware_of.iter().any(|(other, _)| *other == h);
            let pcie = if has_own { Pcie::of(&config.hardware_of(h)) } else { rma.pcie };
            let own = RmaConfig { pcie, ..rma.clone() };
            RmaHost::new(h, *rate, config, &own, shared).map_err(refuse)
        };
        let hosts = rates.iter().enumerate().map(made).collect::<Result<Vec<_>, _>>()?;
        Ok(Rma {
            hosts,
            config: rma.clone(),
            record: record::Record::default(),
            oracle: None,
            out: OneRmaFrame::new(),
        })
    }
}

impl Sim {
    /// The 1RMA side of the hosts; none in a fabric of queue pairs.
    pub fn rma_hosts(&self) -> &[RmaHost] {
        &self.hosts.one_rma.hosts
    }

    /// What NICs have reported about operations.
    pub fn rma_record(&self) -> Option<&record::Record> {
        (!self.hosts.one_rma.hosts.is_empty()).then_some(&self.hosts.one_rma.record)
    }

    /// Checks every table of the 1RMA side.
    pub(crate) fn check_rma(&self) {
        for host in self.rma_hosts() {
            host.nic.check_invariants();
            host.executor.check_invariants();
        }
    }
}
