//! Memory that a NIC reaches, and the regions of it that peers may use.

use crate::error::Error;
use crate::mapping;
use crate::shared::Shared;
use crate::side::MemoryName;

use adverb_nic::one_rma::{RegionId, RegionKey, Rights};
use adverb_os::mapping::Mapping;
use adverb_os::sys::random_bytes;
use adverb_rdma::Grant;
use adverb_wire::Gid;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use zeroize::Zeroize;

/// Zeroed memory that is registered with a NIC: the own side of transfers, and where [regions](Region) lie.
/// Clones are the same memory; it is given back when the last clone, region and transfer of it is gone.
///
/// Peers with a key write to it, and the NIC reads it, at any moment. So its bytes are copied in and out and
/// never borrowed: a copy may hold bytes from before and after a peer's write, but single aligned 8-byte
/// words are whole.
#[derive(Clone)]
pub struct Memory(pub(crate) Arc<Inner>);

/// See [`Memory`].
pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    mapping: Mapping,
    name: MemoryName,
    /// The region that makes it the own side of operations; peers have no right to it.
    pub local: RegionId,
    /// It held a key.
    erase: bool,
}

/// A part of memory that a transfer uses; keeps it registered.
pub(crate) struct Part {
    pub memory: Arc<Inner>,
    pub offset: u64,
    pub len: u64,
}

impl Memory {
    pub(crate) fn allocate(shared: &Arc<Shared>, len: usize, erase: bool) -> Result<Memory, Error> {
        Self::make(shared, (len, None), erase)
    }

    /// The first bytes of a sealed file that is open under a number.
    pub(crate) fn of_file(shared: &Arc<Shared>, file: i32, len: usize) -> Result<Memory, Error> {
        Self::make(shared, (len, Some(file)), false)
    }

    fn make(shared: &Arc<Shared>, (len, file): (usize, Option<i32>), erase: bool) -> Result<Memory, Error> {
        if len == 0 {
            return Err(Error::Range { start: 0, len: 0, of: 0 });
        }
        let (mapping, name, local) = shared.open()?.side.allocate(len, file)?;
        Ok(Memory(Arc::new(Inner { shared: shared.clone(), mapping, name, local, erase })))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.mapping.len()
    }

    /// Never: memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        mapping::read(&self.0.mapping, offset, out);
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        mapping::write(&self.0.mapping, offset, bytes);
    }

    /// The bytes of a range, copied.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.read(range.start, &mut bytes);
        bytes
    }

    /// The word at a multiple of 8, in the host's byte order.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.0.mapping.u64_at(offset)
    }

    /// Makes a range of it usable for peers that are granted keys. Its region key is random.
    pub fn register(&self, range: Range<usize>, rights: Rights) -> Result<Region, Error> {
        let mut bytes = random_bytes().map_err(|e| Error::System("drawing a region key", e))?;
        let key = RegionKey::new(bytes);
        bytes.zeroize();
        self.register_with_key(range, rights, key)
    }

    /// The same with a region key of the caller's, such as one that replicas share.
    pub fn register_with_key(
        &self,
        range: Range<usize>,
        rights: Rights,
        key: RegionKey,
    ) -> Result<Region, Error> {
        let Inner { shared, mapping, name, .. } = &*self.0;
        check_range(&range, mapping.len())?;
        let part = (range.start as u64, range.len() as u64);
        let id = shared.open()?.side.register(*name, part, rights, key)?;
        Ok(Region { id, memory: self.clone(), range, rights })
    }

    pub(crate) fn part(&self, shared: &Arc<Shared>, range: Range<usize>) -> Result<Part, Error> {
        if !Arc::ptr_eq(shared, &self.0.shared) {
            return Err(Error::Foreign);
        }
        check_range(&range, self.len())?;
        Ok(Part { memory: self.0.clone(), offset: range.start as u64, len: range.len() as u64 })
    }
}

fn check_range(range: &Range<usize>, of: usize) -> Result<(), Error> {
    if range.is_empty() || range.end > of {
        return Err(Error::Range { start: range.start as u64, len: range.len() as u64, of: of as u64 });
    }
    Ok(())
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.erase {
            let zeros = vec![0; self.mapping.len()];
            mapping::write(&self.mapping, 0, &zeros);
        }
        self.shared.lock().side.free(self.name, Some(self.local));
    }
}

/// A range of memory that peers may use with a key derived from its own. It is theirs until this value is
/// gone, or its key changes: then what they have in progress is refused.
#[derive(Debug)]
pub struct Region {
    id: RegionId,
    memory: Memory,
    range: Range<usize>,
    rights: Rights,
}

impl Region {
    /// Its name. No secret.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// What peers may be granted.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The memory that it lies in, and where.
    pub fn memory(&self) -> (&Memory, Range<usize>) {
        (&self.memory, self.range.clone())
    }

    /// Keys for one process of one peer, for these operations: derived from the region's key, useless to any
    /// other process or host. To be handed over on an encrypted channel, to a peer that has proved who it is.
    pub fn grant(&self, peer: IpAddr, pid: u32, rights: Rights) -> Result<Grant, Error> {
        let mut core = self.memory.0.shared.open()?;
        let target = core.side.address();
        let mut grant = Grant::new(target, self.id, self.range.len() as u64);
        for (op, right) in adverb_rdma::GRANT_OPS {
            if rights.contains(right) {
                if !self.rights.contains(right) {
                    return Err(Error::NoKey(op));
                }
                let key = core.side.derive(self.id, Gid::from(peer), pid, op)?;
                grant = grant.with_key(op, key);
            }
        }
        Ok(grant)
    }

    /// Gives the region another key: all keys granted before are worthless from now on.
    pub fn rotate(&self, key: &RegionKey) -> Result<(), Error> {
        self.memory.0.shared.open()?.side.rotate(self.id, key)
    }

    /// The same with a random key.
    pub fn rotate_random(&self) -> Result<(), Error> {
        let mut bytes = random_bytes().map_err(|e| Error::System("drawing a region key", e))?;
        let rotated = self.rotate(&RegionKey::new(bytes));
        bytes.zeroize();
        rotated
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Gone already when the NIC was closed.
        let _ = self.memory.0.shared.lock().side.deregister(self.id);
    }
}
