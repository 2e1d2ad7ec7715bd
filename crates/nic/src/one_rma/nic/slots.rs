//! Processes and their command slots: the Command Slot Table (section 4.3). Its size is fixed; a process is
//! promised a quota of it when it is attached, and is refused more. The process number in a slot is set when
//! the slot is allotted, by the NIC's driver, and no command can change it.

use super::config::PRIORITIES;
use super::keys::{DerivedKey, Iv, MessageKey};
use super::regions::RegionId;
use crate::error::Error;
use crate::limits;
use adverb_wire::one_rma::Op;
use adverb_wire::{Gid, Instant};
use core::ops::Deref;
use std::sync::Arc;

/// Name of a command slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(u32);

impl SlotId {
    pub(super) const fn new(index: u32) -> Self {
        SlotId(index)
    }

    /// From its position, for software above a NIC in another process.
    pub const fn from_index(index: u32) -> Self {
        SlotId(index)
    }

    /// Position in the table: CommandSlotId.
    pub const fn index(self) -> u32 {
        self.0
    }
}

/// What a process is attached with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessInit {
    /// Its number, which whoever attaches it vouches for.
    pub pid: u32,
    /// Slots that it may have at once.
    pub quota: u32,
    /// Business priority, 0 (highest) to 3.
    pub priority: u8,
}

struct Process {
    init: ProcessInit,
    /// Slots that it has.
    slots: u32,
    /// Keys that its commands had last, ready for use. Each process has its own, so that none learns from a
    /// command's time what keys others have.
    keys: [Option<Arc<CommandKey>>; limits::ONE_RMA_COMMAND_KEYS],
    /// Whose place the next one takes.
    oldest: usize,
}

/// K_d of commands, and what messages are sealed with.
pub(super) struct CommandKey {
    derived: DerivedKey,
    message: MessageKey,
}

impl CommandKey {
    fn new(derived: &DerivedKey) -> CommandKey {
        CommandKey { derived: derived.clone(), message: MessageKey::new(derived.expose()) }
    }
}

impl Deref for CommandKey {
    type Target = MessageKey;

    #[inline]
    fn deref(&self) -> &MessageKey {
        &self.message
    }
}

/// A command in progress.
pub(super) struct Active {
    pub op: Op,
    pub class: u8,
    pub len: u16,
    pub target: Gid,
    pub remote_region: RegionId,
    pub remote_offset: u64,
    pub local_region: RegionId,
    pub local_offset: u64,
    pub completion_region: RegionId,
    pub key: Arc<CommandKey>,
    pub posted: Instant,
    /// When it entered service; meaningless while it waits.
    pub entered: Instant,
    /// One bit for each grain of a read that has arrived.
    pub arrived: u64,
    pub phase: Phase,
}

/// How far a command has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Waits for the solicitation window.
    Waiting,
    /// The request has been sent under this nonce.
    Requested(Iv),
    /// The target has solicited the data, under this nonce; they are sent from `next` on.
    Sending { solicitation: Iv, ticket: u32, next: u16 },
    /// All data are sent.
    Sent { solicitation: Iv },
}

struct Slot {
    owner: Option<u32>,
    active: Option<Active>,
    /// Key of the last command: commands of a slot often have the same one, and to set it up costs more than
    /// to seal a request. Slots share it, so that one key is in the processor's cache where hundreds were
    /// not. Dropped with the slot's owner.
    last_key: Option<Arc<CommandKey>>,
}

pub(super) struct Slots {
    slots: Vec<Slot>,
    processes: Vec<Process>,
    most_processes: usize,
    by_priority: [u32; PRIORITIES],
    next: usize,
}

impl Slots {
    pub fn new(count: u32, processes: u32, by_priority: [u32; PRIORITIES]) -> Slots {
        Slots {
            slots: (0..count).map(|_| Slot { owner: None, active: None, last_key: None }).collect(),
            processes: Vec::new(),
            most_processes: processes as usize,
            by_priority,
            next: 0,
        }
    }

    pub fn attach(&mut self, init: ProcessInit) -> Result<(), Error> {
        if init.priority as usize >= PRIORITIES {
            return Err(Error::Invalid("priority of a process: 0 to 3"));
        }
        if self.process(init.pid).is_some() {
            return Err(Error::Busy);
        }
        if init.quota == 0 || init.quota as usize > self.slots.len() {
            return Err(Error::Invalid("slot quota of a process: none, or more than there are"));
        }
        if self.processes.len() == self.most_processes {
            return Err(Error::TableFull);
        }
        // For each priority from this one up: what it and all below it have been promised.
        for level in 0..=init.priority {
            let below = self.processes.iter().filter(|process| process.init.priority >= level);
            let promised: u64 = below.map(|process| process.init.quota as u64).sum();
            if promised + init.quota as u64 > self.by_priority[level as usize] as u64 {
                return Err(Error::TableFull);
            }
        }
        let keys = Default::default();
        self.processes.push(Process { init, slots: 0, keys, oldest: 0 });
        Ok(())
    }

    /// Forgets a process. Its slots must have been released.
    pub fn detach(&mut self, pid: u32) {
        self.processes.retain(|process| process.init.pid != pid);
    }

    fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.init.pid == pid)
    }

    pub fn is_attached(&self, pid: u32) -> bool {
        self.process(pid).is_some()
    }

    /// Slots that a process was promised.
    pub fn quota(&self, pid: u32) -> u32 {
        self.process(pid).map_or(0, |process| process.init.quota)
    }

    pub fn allot(&mut self, pid: u32) -> Result<SlotId, Error> {
        let process = self.processes.iter_mut().find(|process| process.init.pid == pid);
        let process = process.ok_or(Error::NoSuchObject)?;
        if process.slots == process.init.quota {
            return Err(Error::TableFull);
        }
        let count = self.slots.len();
        let index = (0..count).map(|i| (self.next + i) % count).find(|i| self.slots[*i].owner.is_none());
        // Quotas never add up to more than the table.
        let index = index.ok_or(Error::TableFull)?;
        self.next = index + 1;
        process.slots += 1;
        self.slots[index].owner = Some(pid);
        Ok(SlotId(index as u32))
    }

    /// Gives a slot back, and what it was doing.
    pub fn release(&mut self, id: SlotId) -> Result<Option<Active>, Error> {
        let slot = self.slots.get_mut(id.0 as usize).ok_or(Error::NoSuchObject)?;
        let owner = slot.owner.take().ok_or(Error::NoSuchObject)?;
        let active = slot.active.take();
        slot.last_key = None;
        if let Some(process) = self.processes.iter_mut().find(|process| process.init.pid == owner) {
            process.slots -= 1;
        }
        Ok(active)
    }

    pub fn owned_by(&self, pid: u32) -> Vec<SlotId> {
        let ids = (0..self.slots.len() as u32).map(SlotId);
        ids.filter(|id| self.slots[id.0 as usize].owner == Some(pid)).collect()
    }

    #[inline]
    pub fn owner(&self, id: SlotId) -> Option<u32> {
        self.slots.get(id.0 as usize)?.owner
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&Active> {
        self.slots.get(index as usize)?.active.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Active> {
        self.slots.get_mut(index as usize)?.active.as_mut()
    }

    pub fn start(&mut self, id: SlotId, active: Active) {
        self.slots[id.0 as usize].active = Some(active);
    }

    /// A command's key, set up; the slot's last one, or another of its process, where it is the same.
    #[inline]
    pub fn command_key(&mut self, id: SlotId, key: &DerivedKey) -> Arc<CommandKey> {
        match self.slots[id.0 as usize].last_key.take() {
            Some(last) if last.derived.equals(key) => last,
            _ => self.shared_key(id, key),
        }
    }

    fn shared_key(&mut self, id: SlotId, key: &DerivedKey) -> Arc<CommandKey> {
        let owner = self.slots[id.0 as usize].owner;
        let process = self.processes.iter_mut().find(|process| Some(process.init.pid) == owner);
        let Some(process) = process else { unreachable!("a slot's owner is attached") };
        if let Some(known) = process.keys.iter().flatten().find(|known| known.derived.equals(key)) {
            return known.clone();
        }
        let made = Arc::new(CommandKey::new(key));
        process.keys[process.oldest] = Some(made.clone());
        process.oldest = (process.oldest + 1) % process.keys.len();
        made
    }

    #[inline]
    pub fn finish(&mut self, index: u32) -> Option<Active> {
        self.slots.get_mut(index as usize)?.active.take()
    }

    /// Keeps the key of a command that has ended for the next one.
    #[inline]
    pub fn keep_key(&mut self, index: u32, key: Arc<CommandKey>) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.last_key = Some(key);
        }
    }

    pub fn actives(&self) -> impl Iterator<Item = &Active> {
        self.slots.iter().filter_map(|slot| slot.active.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_priorities_hold() {
        let mut slots = Slots::new(10, 4, [10, 6, 6, 2]);
        let process = |pid, quota, priority| ProcessInit { pid, quota, priority };
        assert!(matches!(slots.attach(process(1, 11, 0)), Err(Error::Invalid(_))));
        assert!(matches!(slots.attach(process(1, 0, 0)), Err(Error::Invalid(_))));
        assert!(matches!(slots.attach(process(1, 1, 4)), Err(Error::Invalid(_))));
        assert_eq!(slots.attach(process(1, 3, 3)), Err(Error::TableFull));
        assert_eq!(slots.attach(process(1, 2, 3)), Ok(()));
        assert_eq!(slots.attach(process(1, 1, 0)), Err(Error::Busy));
        assert_eq!(slots.attach(process(2, 5, 2)), Err(Error::TableFull));
        assert_eq!(slots.attach(process(2, 4, 1)), Ok(()));
        assert_eq!(slots.attach(process(3, 1, 2)), Err(Error::TableFull));
        assert_eq!(slots.attach(process(3, 5, 0)), Err(Error::TableFull));
        assert_eq!(slots.attach(process(3, 3, 0)), Ok(()));
        assert_eq!(slots.attach(process(4, 1, 0)), Ok(()));
        assert_eq!(slots.attach(process(5, 1, 0)), Err(Error::TableFull));

        let first = slots.allot(1).unwrap();
        let second = slots.allot(1).unwrap();
        assert_ne!(first, second);
        assert_eq!(slots.allot(1), Err(Error::TableFull), "over its quota");
        assert_eq!(slots.allot(9), Err(Error::NoSuchObject));
        assert!(slots.release(first).unwrap().is_none());
        assert!(matches!(slots.release(first), Err(Error::NoSuchObject)));
        assert_eq!(slots.owned_by(1), [second]);
        assert!(slots.allot(1).is_ok());
    }
}
