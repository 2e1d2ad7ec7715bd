//! This process's side of a NIC: one that is here, or one in another process. Everything above is the same
//! for both.

use crate::attached::Attached;
use crate::counters::DriverCounters;
use crate::engine::Engine;
use crate::error::Error;
use crate::mapping;
use adverb_nic::one_rma::{
    COMMAND_LEN, CommandPortal, Completion, DerivedKey, OneRmaCounters, RegionId, RegionInit, RegionKey,
    Rights, SlotId,
};
use adverb_nic::{MrId, PdId};
use adverb_os::mapping::Mapping;
use adverb_wire::one_rma::Op;
use adverb_wire::{Gid, Instant, Key};
use std::os::fd::RawFd;

/// A NIC in this process, and the slots in it.
pub(crate) struct Embedded {
    pub engine: Engine,
    pub portal: CommandPortal,
    pub pd: PdId,
    pub pid: u32,
}

/// Either kind of NIC, as this process uses it.
pub(crate) enum Side {
    Embedded(Box<Embedded>),
    Attached(Box<Attached>),
}

/// How a NIC knows memory that was registered with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemoryName {
    /// In this process: its region among [`adverb_nic::memory::Memory`]'s, the key, and where it starts.
    Embedded { mr: MrId, lkey: Key, addr: u64 },
    /// At the daemon: its number.
    Attached(u32),
}

impl Side {
    pub fn address(&self) -> Gid {
        match self {
            Side::Embedded(here) => here.engine.nic.config().address,
            Side::Attached(there) => there.address,
        }
    }

    /// Whether the NIC is in this process, which is told then what it takes in.
    pub fn is_here(&self) -> bool {
        matches!(self, Side::Embedded(_))
    }

    pub fn pid(&self) -> u32 {
        match self {
            Side::Embedded(here) => here.pid,
            Side::Attached(there) => there.pid,
        }
    }

    /// Takes in what has come from the network. If anything had: when it was taken, by a clock that is asked
    /// then.
    pub fn receive(&mut self, clock: impl Fn() -> Instant) -> Option<Instant> {
        match self {
            Side::Embedded(here) => here.engine.receive(clock),
            Side::Attached(_) => None,
        }
    }

    pub fn next_completion(&mut self) -> Option<Completion> {
        match self {
            Side::Embedded(here) => here.portal.next_completion(),
            Side::Attached(there) => there.next_completion(),
        }
    }

    /// A command that was refused after [`post`](Side::post) had taken it.
    pub fn next_refusal(&mut self) -> Option<(SlotId, adverb_nic::Error)> {
        match self {
            Side::Embedded(_) => None,
            Side::Attached(there) => there.next_refusal(),
        }
    }

    pub fn post(
        &mut self,
        now: Instant,
        slot: SlotId,
        command: &[u8; COMMAND_LEN],
    ) -> Result<(), adverb_nic::Error> {
        match self {
            Side::Embedded(here) => here.engine.nic.post(now, slot, command),
            Side::Attached(there) => there.post(slot, command),
        }
    }

    /// Sends what is to be sent. True if anything was.
    pub fn transmit(&mut self, now: Instant) -> bool {
        match self {
            Side::Embedded(here) => here.engine.transmit(now),
            Side::Attached(there) => {
                there.feel_pulse(now);
                there.ring_bell()
            }
        }
    }

    /// Whether there is anything for [`transmit`](Side::transmit).
    pub fn has_work(&self) -> bool {
        match self {
            Side::Embedded(here) => here.engine.has_work(),
            Side::Attached(there) => there.has_work(),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Side::Embedded(here) => here.engine.next_deadline(),
            Side::Attached(there) => Some(there.next_deadline()),
        }
    }

    /// Before a sleep. False if something has come meanwhile.
    pub fn prepare_sleep(&mut self) -> bool {
        self.driver_counters().sleeps += 1;
        match self {
            Side::Embedded(here) => here.engine.prepare_sleep(),
            Side::Attached(there) => there.prepare_sleep(),
        }
    }

    /// After a sleep. False if the NIC is gone.
    pub fn after_sleep(&mut self, now: Instant) -> bool {
        match self {
            Side::Embedded(here) => {
                here.engine.after_sleep(now);
                true
            }
            Side::Attached(there) => there.after_sleep(now),
        }
    }

    /// What to sleep on, and whether its becoming writable matters too.
    pub fn fds(&self) -> [Option<(RawFd, bool)>; 2] {
        match self {
            Side::Embedded(here) => here.engine.fds(),
            Side::Attached(there) => there.fds().map(|fd| Some((fd, false))),
        }
    }

    pub fn driver_counters(&mut self) -> &mut DriverCounters {
        match self {
            Side::Embedded(here) => &mut here.engine.counters,
            Side::Attached(there) => &mut there.counters,
        }
    }

    pub fn counters(&mut self) -> (OneRmaCounters, DriverCounters) {
        match self {
            Side::Embedded(here) => (*here.engine.nic.counters(), here.engine.counters),
            Side::Attached(there) => there.all_counters(),
        }
    }

    /// Leaves the NIC: nothing of this process is touched afterwards.
    pub fn close(&mut self) {
        match self {
            Side::Embedded(here) => {
                // It is attached.
                let _ = here.engine.nic.detach(here.pid);
                here.engine.close();
            }
            Side::Attached(there) => there.close(),
        }
    }
}

/// Memory and regions.
impl Side {
    /// Memory that the NIC reaches, zeros or the first bytes of a sealed file that is open under a number,
    /// and the region that makes it the own side of operations.
    pub fn allocate(
        &mut self,
        len: usize,
        file: Option<i32>,
    ) -> Result<(Mapping, MemoryName, RegionId), Error> {
        let here = match self {
            Side::Attached(there) => {
                let (mapping, number, local) = there.allocate(len, file)?;
                return Ok((mapping, MemoryName::Attached(number), local));
            }
            Side::Embedded(here) => here,
        };
        let mapping = match file {
            None => Mapping::anonymous(len),
            Some(file) => Mapping::of_number(file, len),
        };
        let mapping = mapping.map_err(|e| Error::System("allocating memory", e))?;
        let nic = &mut here.engine.nic;
        let mr = mapping::register(&mapping, nic, here.pd)?;
        let name = MemoryName::Embedded { mr: mr.id, lkey: mr.lkey, addr: mapping.addr() };
        // Without rights nobody else can do anything with it, whatever the key.
        match self.register(name, (0, len as u64), Rights::empty(), RegionKey::new([0; 16])) {
            Ok(local) => Ok((mapping, name, local)),
            Err(error) => {
                self.free(name, None);
                Err(error)
            }
        }
    }

    /// Forgets memory; its mapping may go when this has returned.
    pub fn free(&mut self, name: MemoryName, local: Option<RegionId>) {
        // What fails here is gone already, because the NIC was closed.
        match (self, name) {
            (Side::Embedded(here), MemoryName::Embedded { mr, .. }) => {
                if let Some(local) = local {
                    let _ = here.engine.nic.deregister(local);
                }
                let _ = here.engine.nic.memory().dereg_mr(mr);
            }
            (Side::Attached(there), MemoryName::Attached(number)) => drop(there.free(number)),
            _ => unreachable!("memory stays with its NIC"),
        }
    }

    pub fn register(
        &mut self,
        name: MemoryName,
        (offset, len): (u64, u64),
        rights: Rights,
        key: RegionKey,
    ) -> Result<RegionId, Error> {
        match (self, name) {
            (Side::Embedded(here), MemoryName::Embedded { lkey, addr, .. }) => {
                let (owner, pd) = (here.pid, here.pd);
                let init = RegionInit { owner, pd, lkey, addr: addr + offset, len, rights, key };
                Ok(here.engine.nic.register(&init)?)
            }
            (Side::Attached(there), MemoryName::Attached(number)) => {
                there.register(number, (offset, len), rights, &key)
            }
            _ => unreachable!("memory stays with its NIC"),
        }
    }

    pub fn deregister(&mut self, region: RegionId) -> Result<(), Error> {
        match self {
            Side::Embedded(here) => Ok(here.engine.nic.deregister(region)?),
            Side::Attached(there) => there.deregister(region),
        }
    }

    pub fn derive(&mut self, region: RegionId, peer: Gid, pid: u32, op: Op) -> Result<DerivedKey, Error> {
        match self {
            Side::Embedded(here) => Ok(here.engine.nic.derive(region, peer, pid, op)?),
            Side::Attached(there) => there.derive(region, peer, pid, op),
        }
    }

    pub fn rotate(&mut self, region: RegionId, key: &RegionKey) -> Result<(), Error> {
        match self {
            Side::Embedded(here) => Ok(here.engine.nic.rotate(region, key)?),
            Side::Attached(there) => there.rotate(region, key),
        }
    }
}
