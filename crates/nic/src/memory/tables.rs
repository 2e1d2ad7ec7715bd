//! Protection domains and regions (IBTA 10.2.3, 10.6.2, 11.2.8).

use super::access::Access;
use super::keys::KeyTable;
use super::queue_memory::QueueMemory;
use super::window::Window;
use crate::error::Error;
use crate::ids::{MrId, MwId, PdId};
use crate::limits;
use crate::random::Seed;
use crate::slab::Slab;
use adverb_wire::{Key, QpNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Protection domains, regions, windows and their keys, of one NIC.
#[repr(C)]
pub struct Memory {
    /// What a check needs, one cache line per key. Freed lines are reused last in, first out: the
    /// line is likely still in cache, and a key's line number is known to nobody outside.
    pub(super) lines: Vec<Line>,
    pub(super) keys: KeyTable,
    free_lines: Vec<u32>,
    pub(super) pds: Slab<PdId, Domain>,
    pub(super) regions: Slab<MrId, Region>,
    pub(super) windows: Slab<MwId, Window>,
    /// Bound type 2 windows by their queue pair.
    pub(super) owned: BTreeSet<(QpNumber, MwId)>,
    /// Keys of windows that were bound and are not any more, and how often, for who asked to hear of it
    /// ([`Memory::watch_windows`]): at most 256 keys of each window.
    pub(super) ended: Option<BTreeMap<u32, u32>>,
}

/// Everything that a check reads, in one cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line {
    /// The whole key; its upper 24 bits found the line.
    pub key: Key,
    pub access: Access,
    pub pd: PdId,
    /// First address as the key's users name it.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Host virtual address of the first byte.
    pub host: u64,
    pub kind: LineKind,
    /// Queue pair of a bound type 2 window.
    pub qp: QpNumber,
    /// The region itself, or the region of a bound window.
    pub region: MrId,
    /// The window, bound or not.
    pub window: MwId,
}

const _: () = assert!(core::mem::size_of::<Line>() == 64);

/// What a line stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum LineKind {
    Region,
    /// Bound type 1 window.
    WindowOne,
    /// Bound type 2 window.
    WindowTwo,
    /// Window that is not bound, or nothing.
    Unbound,
}

/// A protection domain: how many objects refer to it.
#[derive(Default)]
pub(super) struct Domain {
    users: u32,
}

/// The cold part of a region.
pub(super) struct Region {
    pub line: u32,
    /// Windows bound to it.
    pub windows: u32,
}

/// What a region is registered with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrInit {
    /// Protection domain.
    pub pd: PdId,
    /// Host virtual address of the first byte.
    pub addr: u64,
    /// Bytes, up to [`limits::MAX_MR_SIZE`].
    pub len: u64,
    /// Address by which work requests name the first byte; taken as 0 for a zero-based region.
    pub iova: u64,
    /// Rights.
    pub access: Access,
}

/// A region's names. One key serves as both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrInfo {
    /// For the owner's control calls.
    pub id: MrId,
    /// For scatter/gather entries.
    pub lkey: Key,
    /// For peers.
    pub rkey: Key,
}

/// What [`Memory::rereg_mr`] changes; `None` stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rereg {
    /// Protection domain.
    pub pd: Option<PdId>,
    /// Host virtual address, bytes, and iova, as in [`MrInit`].
    pub translation: Option<(u64, u64, u64)>,
    /// Rights.
    pub access: Option<Access>,
}

impl Memory {
    /// No objects. Keys are drawn from the seed.
    pub fn new(seed: impl Into<Seed>) -> Self {
        Memory {
            keys: KeyTable::new(seed.into()),
            lines: Vec::new(),
            free_lines: Vec::new(),
            pds: Slab::new(limits::MAX_PD),
            regions: Slab::new(limits::MAX_MR),
            windows: Slab::new(limits::MAX_MW),
            owned: BTreeSet::new(),
            ended: None,
        }
    }

    /// See [`Nic::begin_names_at`](crate::Nic::begin_names_at).
    pub(crate) fn begin_names_at(&mut self, generation: u32) {
        self.pds.begin_at(generation);
        self.regions.begin_at(generation);
        self.windows.begin_at(generation);
    }

    /// Creates a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, Error> {
        self.pds.insert(Domain::default())
    }

    /// The protection domain at an index, if there is one.
    #[inline]
    pub(crate) fn pd_at(&self, index: u16) -> Option<PdId> {
        self.pds.id_at(index.into())
    }

    /// Destroys a protection domain. `Busy` while a region, a window or a holder refers to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        match self.pds.get(pd) {
            None => Err(Error::NoSuchObject),
            Some(domain) if domain.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.pds.remove(pd);
                Ok(())
            }
        }
    }

    /// Counts one more user of a domain: a queue pair, shared receive queue or address handle.
    pub fn hold_pd(&mut self, pd: PdId) -> Result<(), Error> {
        let domain = self.pds.get_mut(pd).ok_or(Error::NoSuchObject)?;
        domain.users = domain.users.checked_add(1).ok_or(Error::TableFull)?;
        Ok(())
    }

    /// Takes back one [`Memory::hold_pd`].
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(domain) = self.pds.get_mut(pd) {
            debug_assert!(domain.users > 0, "released more often than held");
            domain.users = domain.users.saturating_sub(1);
        }
    }

    /// Registers memory (IBTA 11.2.8.2).
    ///
    /// A region of no bytes is accepted, as by the hardware drivers; it serves accesses of length 0.
    /// `Invalid` for more than [`limits::MAX_MR_SIZE`], for address 0, and for ranges that run over
    /// the end of an address space; `BadAccess` and `Unsupported` as [`Access::check_mr`] says.
    ///
    /// # Safety
    /// The bytes `[addr, addr + len)` must stay mapped and readable, and writable if the rights include
    /// LOCAL_WRITE, until `dereg_mr` or a `rereg_mr` that replaces the translation has returned and every
    /// [`Span`](super::Span) and [`Gather`](super::Gather) obtained before is gone. No `&mut` reference to
    /// them may be used meanwhile as if it were exclusive.
    pub unsafe fn reg_mr(&mut self, init: &MrInit) -> Result<MrInfo, Error> {
        let access = region_access(init.access)?;
        let base = check_translation(init.addr, init.len, init.iova, access)?;
        self.hold_pd(init.pd)?;
        let (key, line) = match self.new_line() {
            Ok(new) => new,
            Err(error) => {
                self.release_pd(init.pd);
                return Err(error);
            }
        };
        let id = match self.regions.insert(Region { line, windows: 0 }) {
            Ok(id) => id,
            Err(error) => {
                self.free_line(line);
                self.release_pd(init.pd);
                return Err(error);
            }
        };
        self.lines[line as usize] = Line {
            key,
            access,
            pd: init.pd,
            base,
            len: init.len,
            host: init.addr,
            kind: LineKind::Region,
            qp: QpNumber::default(),
            region: id,
            ..Line::NOTHING
        };
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// Registers the memory of a queue, with local rights. That is safe where other memory is not: it is
    /// never unmapped, and no reference to it is ever formed.
    pub fn reg_queue(&mut self, pd: PdId, queue: &QueueMemory) -> Result<MrInfo, Error> {
        let (addr, len) = (queue.addr(), queue.len() as u64);
        let init = MrInit { pd, addr, len, iova: addr, access: Access::LOCAL_WRITE };
        // SAFETY: as said above; `QueueMemory` is accessed raw by whoever has it.
        unsafe { self.reg_mr(&init) }
    }

    /// Changes a region in place (IBTA 11.2.8.6). Its keys stay the same. `Busy` while a window is bound to
    /// it; `Invalid` when nothing is to change, or the length would be 0; otherwise as [`Memory::reg_mr`]. On
    /// an error the region is as before.
    ///
    /// # Safety
    /// As for [`Memory::reg_mr`], for the bytes and rights that the region then has.
    pub unsafe fn rereg_mr(&mut self, mr: MrId, change: &Rereg) -> Result<MrInfo, Error> {
        let region = self.regions.get(mr).ok_or(Error::NoSuchObject)?;
        if region.windows > 0 {
            return Err(Error::Busy);
        }
        if *change == Rereg::default() {
            return Err(Error::Invalid("re-registration that changes nothing"));
        }
        let at = region.line as usize;
        let old = self.lines[at];
        let access = change.access.map_or(Ok(old.access), region_access)?;
        let unchanged_iova = if old.access.contains(Access::ZERO_BASED) { old.host } else { old.base };
        if change.translation.is_some_and(|(_, len, _)| len == 0) {
            return Err(Error::Invalid("re-registration of no bytes"));
        }
        let (host, len, iova) = change.translation.unwrap_or((old.host, old.len, unchanged_iova));
        let base = check_translation(host, len, iova, access)?;
        if let Some(pd) = change.pd {
            self.hold_pd(pd)?;
            self.release_pd(old.pd);
        }
        let pd = change.pd.unwrap_or(old.pd);
        self.lines[at] = Line { access, pd, base, len, host, ..old };
        Ok(MrInfo { id: mr, lkey: old.key, rkey: old.key })
    }

    /// Removes a region (IBTA 11.2.8.5). `Busy` while a window is bound to it.
    pub fn dereg_mr(&mut self, mr: MrId) -> Result<(), Error> {
        let region = self.regions.get(mr).ok_or(Error::NoSuchObject)?;
        if region.windows > 0 {
            return Err(Error::Busy);
        }
        let line = region.line;
        self.regions.remove(mr);
        self.release_pd(self.lines[line as usize].pd);
        self.free_line(line);
        Ok(())
    }

    /// What a region is registered with now.
    pub fn region(&self, mr: MrId) -> Option<MrInit> {
        let line = self.lines[self.regions.get(mr)?.line as usize];
        let iova = if line.access.contains(Access::ZERO_BASED) { line.host } else { line.base };
        Some(MrInit { pd: line.pd, addr: line.host, len: line.len, iova, access: line.access })
    }

    /// Live protection domains, regions and windows.
    pub fn counts(&self) -> [usize; 3] {
        [self.pds.len(), self.regions.len(), self.windows.len()]
    }

    /// A free line that stands for nothing yet, and its key.
    pub(super) fn new_line(&mut self) -> Result<(Key, u32), Error> {
        if self.free_lines.is_empty() {
            let line = u32::try_from(self.lines.len()).map_err(|_| Error::TableFull)?;
            self.lines.try_reserve(1).map_err(|_| Error::TableFull)?;
            self.lines.push(Line::NOTHING);
            self.free_lines.push(line);
        }
        let &line = self.free_lines.last().ok_or(Error::TableFull)?;
        let key = self.keys.draw(line)?;
        self.free_lines.pop();
        self.lines[line as usize] = Line { key, ..Line::NOTHING };
        Ok((key, line))
    }

    /// Forgets a line and its key.
    pub(super) fn free_line(&mut self, line: u32) {
        let key = core::mem::replace(&mut self.lines[line as usize], Line::NOTHING).key;
        self.keys.remove(key);
        self.free_lines.push(line);
    }
}

impl Line {
    pub(super) const NOTHING: Line = Line {
        key: Key(0),
        access: Access::empty(),
        pd: PdId { index: u32::MAX, generation: 0 },
        base: 0,
        len: 0,
        host: 0,
        kind: LineKind::Unbound,
        qp: QpNumber::SMI,
        region: MrId { index: u32::MAX, generation: 0 },
        window: MwId { index: u32::MAX, generation: 0 },
    };
}

/// Rights as stored: checked, and without unknown optional bits.
fn region_access(access: Access) -> Result<Access, Error> {
    access.check_mr()?;
    Access::from_verbs(access.bits())
}

/// The base address of a region, if its ranges are possible.
fn check_translation(host: u64, len: u64, iova: u64, access: Access) -> Result<u64, Error> {
    if len > limits::MAX_MR_SIZE {
        return Err(Error::Invalid("length of a region: above the limit"));
    }
    // Page 0 may be mapped, but a pointer to it is Rust's null.
    if (host == 0 && len > 0) || host.checked_add(len).is_none_or(|end| usize::try_from(end).is_err()) {
        return Err(Error::Invalid("address of a region"));
    }
    let base = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
    // The last byte must have an address; the byte after it need not.
    if base.checked_add(len.saturating_sub(1)).is_none() {
        return Err(Error::Invalid("iova of a region"));
    }
    Ok(base)
}
