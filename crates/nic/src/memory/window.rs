//! Memory windows: binding, invalidation (IBTA 10.6.7, 11.2.8.9, 11.2.8.10).
//!
//! ```text
//!   type 1:  unbound --bind--> bound --bind (any number), bind of length 0--> ...
//!   type 2:  unbound --bind--> bound --LOCAL_INV, SEND with invalidate, end of the QP--> unbound
//! ```
//! Type 2 windows are of kind 2B: a bound one serves one queue pair, of the window's domain.

use super::access::Access;
use super::fault::AccessFault;
use super::tables::{Line, LineKind, Memory};
use crate::error::Error;
use crate::ids::{MrId, MwId, PdId};
use adverb_wire::{Key, QpNumber};
use std::collections::BTreeMap;

/// Type of a window (IBTA 10.6.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MwType {
    /// The NIC chooses each key; any queue pair of the domain may use it.
    One,
    /// The consumer chooses the key's low byte; only the binding queue pair may use it.
    Two,
}

/// A window's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwInfo {
    /// For the owner's control calls and binds.
    pub id: MwId,
    /// Its first key; grants nothing before a bind.
    pub rkey: Key,
}

/// A bind, as a work request states it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MwBind {
    /// The window.
    pub mw: MwId,
    /// New key. Of type 2 its low byte counts, and the upper 24 bits stay the window's, as adapters have
    /// it. Of type 1 the upper 24 bits must be the window's; `Key(0)` lets the NIC choose: the low byte
    /// is then the previous one plus 1, as `ibv_inc_rkey` does, so that a library which must name the
    /// key before the bind executes can foretell it.
    pub rkey: Key,
    /// The region, by its lkey. Not looked at when `len` is 0.
    pub lkey: Key,
    /// First address, as the region's users name it (also for a zero-based window).
    pub addr: u64,
    /// Bytes. 0 unbinds a type 1 window.
    pub len: u64,
    /// Remote rights; for type 2 also ZERO_BASED.
    pub access: Access,
}

/// The cold part of a window.
pub(super) struct Window {
    line: u32,
    kind: MwType,
    pd: PdId,
}

impl Memory {
    /// Creates an unbound window.
    pub fn alloc_mw(&mut self, pd: PdId, kind: MwType) -> Result<MwInfo, Error> {
        self.hold_pd(pd)?;
        let (rkey, line) = match self.new_line() {
            Ok(new) => new,
            Err(error) => {
                self.release_pd(pd);
                return Err(error);
            }
        };
        match self.windows.insert(Window { line, kind, pd }) {
            Ok(id) => {
                self.lines[line as usize] = Line { key: rkey, pd, window: id, ..Line::NOTHING };
                Ok(MwInfo { id, rkey })
            }
            Err(error) => {
                self.free_line(line);
                self.release_pd(pd);
                Err(error)
            }
        }
    }

    /// Destroys a window, bound or not.
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<(), Error> {
        let window = self.windows.get(mw).ok_or(Error::NoSuchObject)?;
        let (line, pd) = (window.line, window.pd);
        self.unbind(line);
        self.windows.remove(mw);
        self.free_line(line);
        self.release_pd(pd);
        Ok(())
    }

    /// Executes a bind posted to queue pair `qp` of domain `pd`, and returns the window's new key.
    /// A refused bind changes nothing.
    pub fn bind_mw(&mut self, pd: PdId, qp: QpNumber, bind: &MwBind) -> Result<Key, AccessFault> {
        let window = self.windows.get(bind.mw).ok_or(AccessFault::UnknownKey)?;
        let (at, kind) = (window.line, window.kind);
        let old = self.lines[at as usize];
        //= IBTA C10-72
        if window.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        let key = next_key(kind, old.key, bind.rkey).ok_or(AccessFault::ForeignKey)?;
        //= IBTA o10-37.2.30
        if old.kind == LineKind::WindowTwo {
            return Err(AccessFault::AlreadyBound);
        }
        if bind.len == 0 {
            return match kind {
                MwType::One => {
                    self.unbind(at);
                    self.lines[at as usize].key = key;
                    Ok(key)
                }
                //= IBTA o10-37.2.40
                MwType::Two => Err(AccessFault::EmptyBind),
            };
        }
        let (region_line, region) = self.bindable(pd, kind, bind)?;
        self.unbind(at);
        let (line_kind, owner) = match kind {
            MwType::One => (LineKind::WindowOne, QpNumber::default()),
            MwType::Two => (LineKind::WindowTwo, qp),
        };
        self.lines[at as usize] = Line {
            key,
            access: bind.access,
            pd,
            base: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            len: bind.len,
            host: region_line.host + (bind.addr - region_line.base),
            kind: line_kind,
            qp: owner,
            region,
            window: bind.mw,
        };
        if let Some(region) = self.regions.get_mut(region) {
            region.windows += 1;
        }
        if kind == MwType::Two {
            self.owned.insert((qp, bind.mw));
        }
        Ok(key)
    }

    /// The region that a bind names, if the bind may have it.
    fn bindable(&self, pd: PdId, kind: MwType, bind: &MwBind) -> Result<(Line, MrId), AccessFault> {
        let line = *self.line(bind.lkey).ok_or(AccessFault::UnknownKey)?;
        if line.kind != LineKind::Region {
            return Err(AccessFault::UnknownKey);
        }
        //= IBTA C10-72
        if line.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        //= IBTA C10-73
        if !line.access.contains(Access::MW_BIND) {
            return Err(AccessFault::NotBindable);
        }
        //= IBTA o10-36.2.2
        let known = Access::OF_WINDOW.contains(bind.access);
        if !known || kind == MwType::One && bind.access.contains(Access::ZERO_BASED) {
            return Err(AccessFault::BadWindowRights);
        }
        //= IBTA C10-74
        let writes = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
        if bind.access.intersects(writes) && !line.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessFault::BadWindowRights);
        }
        //= IBTA C10-75
        line.offset(bind.addr, bind.len)?;
        Ok((line, line.region))
    }

    /// Executes LOCAL_INV on a queue pair: unbinds a type 2 window that was bound through it
    /// (IBTA 10.6.5). Anything else is refused, a window that is not bound too.
    pub fn invalidate_local(&mut self, pd: PdId, qp: QpNumber, key: Key) -> Result<(), AccessFault> {
        self.invalidate(pd, qp, key)
    }

    /// Executes the invalidation that a SEND asked for: unbinds a type 2 window of the queue pair
    /// that received it (IBTA 9.4.1.1). Regions and type 1 windows are refused.
    pub fn invalidate_remote(&mut self, pd: PdId, qp: QpNumber, key: Key) -> Result<(), AccessFault> {
        self.invalidate(pd, qp, key)
    }

    fn invalidate(&mut self, pd: PdId, qp: QpNumber, key: Key) -> Result<(), AccessFault> {
        let at = self.keys.find(key).ok_or(AccessFault::UnknownKey)?;
        let line = self.lines[at as usize];
        if line.key != key {
            return Err(AccessFault::UnknownKey);
        }
        if line.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        match line.kind {
            //= IBTA o10-37.2.26
            LineKind::Region | LineKind::WindowOne => Err(AccessFault::NotInvalidatable),
            LineKind::Unbound => Err(AccessFault::Unbound),
            LineKind::WindowTwo if line.qp != qp => Err(AccessFault::OtherQp),
            LineKind::WindowTwo => {
                self.unbind(at);
                Ok(())
            }
        }
    }

    /// Has the ends of bound windows noted, for [`Memory::take_ended_windows`].
    pub fn watch_windows(&mut self) {
        self.ended.get_or_insert_default();
    }

    /// Whether a window that was bound is not any more, under the key that it had.
    pub fn has_ended_windows(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| !ended.is_empty())
    }

    /// Keys under which windows were bound that are not any more, since this was asked last, and how often.
    pub fn take_ended_windows(&mut self) -> BTreeMap<u32, u32> {
        self.ended.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// The type of a window, and the key that this bind would give it. `None` for no window, or no key of it.
    pub fn foretell(&self, bind: &MwBind) -> Option<(MwType, Key)> {
        let window = self.windows.get(bind.mw)?;
        let key = next_key(window.kind, self.lines[window.line as usize].key, bind.rkey)?;
        Some((window.kind, key))
    }

    /// Whether a window is bound under this key.
    pub fn is_bound(&self, key: Key) -> bool {
        self.line(key).is_some_and(|line| matches!(line.kind, LineKind::WindowOne | LineKind::WindowTwo))
    }

    /// Whether a type 2 window is bound through the queue pair, for a NIC that refuses to destroy
    /// such a queue pair.
    pub fn has_windows(&self, qp: QpNumber) -> bool {
        self.owned.range((qp, FIRST)..=(qp, LAST)).next().is_some()
    }

    /// Unbinds the type 2 windows of a queue pair that ends. One look at a set if it has none.
    pub fn release_qp(&mut self, qp: QpNumber) {
        while let Some(&owned) = self.owned.range((qp, FIRST)..=(qp, LAST)).next() {
            match self.windows.get(owned.1) {
                Some(window) => self.unbind(window.line),
                None => unreachable!("a window that is gone still owned: dealloc_mw unbinds first"),
            }
        }
    }

    /// Takes a window off its region. Its key stays, and grants nothing.
    fn unbind(&mut self, at: u32) {
        let line = &mut self.lines[at as usize];
        let old = *line;
        *line = Line { key: old.key, pd: old.pd, window: old.window, ..Line::NOTHING };
        match old.kind {
            LineKind::WindowTwo => {
                self.owned.remove(&(old.qp, old.window));
            }
            LineKind::WindowOne => {}
            LineKind::Region | LineKind::Unbound => return,
        }
        if let Some(ended) = &mut self.ended {
            *ended.entry(old.key.0).or_default() += 1;
        }
        if let Some(region) = self.regions.get_mut(old.region) {
            region.windows -= 1;
        }
    }
}

/// The key that a bind gives a window of this key, if it may.
fn next_key(kind: MwType, old: Key, asked: Key) -> Option<Key> {
    match (kind, asked) {
        (MwType::One, Key(0)) => Some(Key(old.0 & !0xff | (old.0.wrapping_add(1) & 0xff))),
        (MwType::One, key) if key.0 >> 8 != old.0 >> 8 => None,
        //= IBTA 10.6.7.2.2
        (_, key) => Some(Key(old.0 & !0xff | key.0 & 0xff)),
    }
}

const FIRST: MwId = MwId { index: 0, generation: 0 };
const LAST: MwId = MwId { index: u32::MAX, generation: u32::MAX };
