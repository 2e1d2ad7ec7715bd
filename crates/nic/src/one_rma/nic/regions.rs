//! The Registered Region Table (section 4.3): fixed size, one entry for each region, and all that the NIC
//! knows about memory. It stands on [`crate::memory`], whose regions say which bytes exist; an entry adds an
//! owner, a key and what peers may do.

use super::keys::{DerivedKey, Deriver, RegionKey};
use crate::error::Error;
use crate::ids::PdId;
use crate::memory::{Memory, Span};
use adverb_wire::one_rma::Op;
use adverb_wire::{Gid, Key};
use bitflags::bitflags;

bitflags! {
    /// What peers may do to a region, provided that they have the key for it. The owner may always use it as
    /// its own side of an operation.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Rights: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
        /// Change its key.
        const REKEY = 4;
    }
}

impl Rights {
    pub(super) const fn for_op(op: Op) -> Rights {
        match op {
            Op::Read => Rights::READ,
            Op::Write => Rights::WRITE,
            Op::Rekey => Rights::REKEY,
        }
    }
}

/// Name of a region, on the wire too. The table's index is in the low 16 bits, the number of its use above.
/// It is no secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(u32);

impl RegionId {
    /// As it travels.
    pub const fn wire(self) -> u32 {
        self.0
    }

    /// As it travelled.
    pub const fn from_wire(id: u32) -> Self {
        RegionId(id)
    }

    const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// What a region is registered with.
#[derive(Clone, Debug)]
pub struct RegionInit {
    /// The process that owns it.
    pub owner: u32,
    /// Protection domain and local key of the memory region that it lies in.
    pub pd: PdId,
    /// As above.
    pub lkey: Key,
    /// First address, as the memory region names it.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do.
    pub rights: Rights,
    /// K_r. A region without rights may have any.
    pub key: RegionKey,
}

pub(super) struct Region {
    pub owner: u32,
    pub rights: Rights,
    pd: PdId,
    lkey: Key,
    addr: u64,
    pub len: u64,
    keys: Deriver,
    /// Changes with the key, so that operations begun under another key are noticed.
    pub key_epoch: u32,
    /// Completion records written to it.
    pub completions: u64,
}

impl Region {
    /// K_d for a request.
    #[inline]
    pub fn derive(&self, initiator: Gid, pid: u32, op: Op, id: RegionId) -> DerivedKey {
        self.keys.derive(initiator, pid, op, id.wire())
    }

    /// Puts another key in place.
    pub fn rekey(&mut self, key: &RegionKey, target: Gid) {
        self.keys = Deriver::new(key, target);
        self.key_epoch = self.key_epoch.wrapping_add(1);
    }

    /// Whether a range lies inside.
    #[inline]
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// The memory of a range, unless it is outside, or no longer registered for this.
    #[inline]
    pub fn span(&self, memory: &Memory, offset: u64, len: u32, write: bool) -> Option<Span> {
        if !self.holds(offset, len as u64) {
            return None;
        }
        memory.check_local(self.pd, self.lkey, self.addr.wrapping_add(offset), len, write).ok()
    }
}

struct Entry {
    /// Number of its use.
    generation: u16,
    region: Option<Region>,
}

pub(super) struct Regions {
    entries: Vec<Entry>,
    /// Where the search for a free entry goes on, so that a name is not used again soon.
    next: usize,
}

impl Regions {
    pub fn new(size: u32) -> Regions {
        let entries = (0..size).map(|_| Entry { generation: 0, region: None }).collect();
        Regions { entries, next: 0 }
    }

    pub fn register(&mut self, memory: &Memory, target: Gid, init: &RegionInit) -> Result<RegionId, Error> {
        if init.len == 0 {
            return Err(Error::Invalid("length of a region: 0"));
        }
        // One memory region holds the first byte and the last, so it holds all.
        let last = init.addr.checked_add(init.len - 1).ok_or(Error::Invalid("range of a region"))?;
        let writes = init.rights.contains(Rights::WRITE);
        for addr in [init.addr, last] {
            memory
                .check_local(init.pd, init.lkey, addr, 1, writes)
                .map_err(|_| Error::Invalid("range of a region: not registered memory with these rights"))?;
        }
        let count = self.entries.len();
        let index = (0..count)
            .map(|i| (self.next + i) % count)
            .find(|i| self.entries[*i].region.is_none())
            .ok_or(Error::TableFull)?;
        self.next = index + 1;
        let entry = &mut self.entries[index];
        entry.generation = entry.generation.wrapping_add(1);
        entry.region = Some(Region {
            owner: init.owner,
            rights: init.rights,
            pd: init.pd,
            lkey: init.lkey,
            addr: init.addr,
            len: init.len,
            keys: Deriver::new(&init.key, target),
            key_epoch: 0,
            completions: 0,
        });
        Ok(RegionId((entry.generation as u32) << 16 | index as u32))
    }

    pub fn remove(&mut self, id: RegionId) -> Result<(), Error> {
        self.get(id).ok_or(Error::NoSuchObject)?;
        self.entries[id.index()].region = None;
        Ok(())
    }

    pub fn remove_owned_by(&mut self, pid: u32) {
        for entry in &mut self.entries {
            if entry.region.as_ref().is_some_and(|region| region.owner == pid) {
                entry.region = None;
            }
        }
    }

    #[inline]
    pub fn get(&self, id: RegionId) -> Option<&Region> {
        let entry = self.entries.get(id.index())?;
        entry.region.as_ref().filter(|_| entry.generation as u32 == id.0 >> 16)
    }

    #[inline]
    pub fn get_mut(&mut self, id: RegionId) -> Option<&mut Region> {
        let entry = self.entries.get_mut(id.index())?;
        entry.region.as_mut().filter(|_| entry.generation as u32 == id.0 >> 16)
    }

    /// A region of this process.
    #[inline]
    pub fn owned(&self, id: RegionId, pid: u32) -> Option<&Region> {
        self.get(id).filter(|region| region.owner == pid)
    }
}
