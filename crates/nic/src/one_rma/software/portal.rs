//! CommandPortal (section 4.4): a process's command slots and its completion ring, for a driver that has the
//! NIC at hand.

use crate::error::Error;
use crate::ids::{MrId, PdId};
use crate::memory::QueueMemory;
use crate::one_rma::{COMPLETION_LEN, Completion, OneRma, RegionId, RegionInit, RegionKey, Rights, SlotId};

/// Command slots and completion ring of one process.
pub struct CommandPortal {
    slots: Vec<SlotId>,
    ring: QueueMemory,
    mr: MrId,
    region: RegionId,
    /// Records taken.
    taken: u64,
}

impl CommandPortal {
    /// Allots `slots` command slots to a process that is attached, and registers a completion ring for them.
    /// On an error nothing is allotted.
    pub fn open(nic: &mut OneRma, pid: u32, pd: PdId, slots: u32) -> Result<CommandPortal, Error> {
        // One record for each slot of the quota: no more operations can end before their records are taken.
        let quota = nic.quota(pid).ok_or(Error::NoSuchObject)?;
        let ring = QueueMemory::new(quota as usize * COMPLETION_LEN)?;
        let mr = nic.memory().reg_queue(pd, &ring)?;
        let init = RegionInit {
            owner: pid,
            pd,
            lkey: mr.lkey,
            addr: ring.addr(),
            len: ring.len() as u64,
            rights: Rights::empty(),
            // No peer may do anything to it, whatever key it has.
            key: RegionKey::new([0; 16]),
        };
        let region = match nic.register(&init) {
            Ok(region) => region,
            Err(error) => {
                nic.memory().dereg_mr(mr.id)?;
                return Err(error);
            }
        };
        let mut portal = CommandPortal { slots: Vec::new(), ring, mr: mr.id, region, taken: 0 };
        for _ in 0..slots {
            match nic.allot_slot(pid) {
                Ok(slot) => portal.slots.push(slot),
                Err(error) => {
                    portal.close(nic)?;
                    return Err(error);
                }
            }
        }
        Ok(portal)
    }

    /// The slots.
    pub fn slots(&self) -> &[SlotId] {
        &self.slots
    }

    /// The region of the completion ring, which commands name.
    pub fn completion_region(&self) -> RegionId {
        self.region
    }

    /// The next completion, if the NIC has written it.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let entries = (self.ring.len() / COMPLETION_LEN) as u64;
        let at = (self.taken % entries) as usize * COMPLETION_LEN;
        let mut record = [0; COMPLETION_LEN];
        record[..16].copy_from_slice(&self.ring.read_segment(at));
        record[16..].copy_from_slice(&self.ring.read_segment(at + 16));
        let completion = Completion::decode(&record).filter(|found| found.number == self.taken + 1)?;
        self.taken += 1;
        Some(completion)
    }

    /// Gives everything back. What was in progress ends without a completion.
    pub fn close(self, nic: &mut OneRma) -> Result<(), Error> {
        for slot in &self.slots {
            nic.release_slot(*slot)?;
        }
        nic.deregister(self.region)?;
        nic.memory().dereg_mr(self.mr)
    }
}
