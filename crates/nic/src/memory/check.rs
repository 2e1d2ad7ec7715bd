//! The checks that every access passes (IBTA 10.6.3, 9.7.4.1): one probe of the key table, one line.

use super::access::Access;
use super::fault::AccessFault;
use super::prefetch::prefetch;
use super::span::Span;
use super::tables::{Line, LineKind, Memory};
use crate::ids::PdId;
use adverb_wire::{Key, QpNumber};

/// Kind of a remote access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteRight {
    /// RDMA READ.
    Read,
    /// RDMA WRITE.
    Write,
    /// Compare-and-swap or fetch-and-add, of 8 bytes.
    Atomic,
}

impl RemoteRight {
    /// The right that a region or window must grant.
    #[inline]
    pub const fn access(self) -> Access {
        match self {
            RemoteRight::Read => Access::REMOTE_READ,
            RemoteRight::Write => Access::REMOTE_WRITE,
            RemoteRight::Atomic => Access::REMOTE_ATOMIC,
        }
    }
}

impl Line {
    /// Distance of a range from the base, if the range lies wholly inside.
    #[inline]
    pub(super) fn offset(&self, addr: u64, len: u64) -> Result<u64, AccessFault> {
        // An address below the base wraps to an offset above any length.
        let offset = addr.wrapping_sub(self.base);
        if offset <= self.len && len <= self.len - offset {
            Ok(offset)
        } else {
            Err(AccessFault::OutOfBounds)
        }
    }

    #[inline]
    fn span(&self, offset: u64, len: u32) -> Span {
        // SAFETY: `offset` came from `Line::offset` for `len` bytes, so the range lies in the
        // region's bytes, for which the caller of `reg_mr` has given the promise that a span needs.
        unsafe { Span::new(self.host + offset, len as usize) }
    }
}

impl Memory {
    /// Asks for what every check reads.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.lines);
    }

    /// Asks for what the check of a key reads first.
    #[inline]
    pub(crate) fn prefetch_key(&self, key: Key) {
        self.keys.prefetch(key);
    }

    /// Asks for what the check of a key reads last.
    #[inline]
    pub(crate) fn prefetch_line(&self, key: Key) {
        if let Some(line) = self.line_of(key) {
            prefetch(line);
        }
    }

    #[inline]
    fn line_of(&self, key: Key) -> Option<&Line> {
        self.lines.get(self.keys.find(key)? as usize)
    }

    /// The line whose whole key this is.
    #[inline]
    pub(super) fn line(&self, key: Key) -> Option<&Line> {
        self.line_of(key).filter(|line| line.key == key)
    }

    /// The host address of a byte that a peer names, whatever the peer may do there: for who charges for the
    /// way to it.
    pub fn host_address(&self, rkey: Key, va: u64) -> Option<u64> {
        let line = self.line(rkey)?;
        line.offset(va, 1).ok().map(|offset| line.host + offset)
    }

    /// Checks one scatter/gather entry of a work request of domain `pd`, for writing if `write`.
    ///
    /// An entry of length 0 names no memory, and its key is not looked at, as in the hardware
    /// drivers, which drop such entries when they build a WQE.
    #[inline]
    pub fn check_local(
        &self,
        pd: PdId,
        lkey: Key,
        addr: u64,
        len: u32,
        write: bool,
    ) -> Result<Span, AccessFault> {
        if len == 0 {
            return Ok(Span::EMPTY);
        }
        let line = self.line(lkey).ok_or(AccessFault::UnknownKey)?;
        if line.kind != LineKind::Region {
            return Err(AccessFault::UnknownKey);
        }
        if line.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        if write && !line.access.contains(Access::LOCAL_WRITE) {
            return Err(AccessFault::MissingRight);
        }
        let offset = line.offset(addr, u64::from(len))?;
        Ok(line.span(offset, len))
    }

    /// Checks a request that a peer sent to queue pair `qp` of domain `pd`.
    ///
    /// A READ or WRITE of no bytes passes with any key: the responder shall not check it
    /// (//= IBTA C9-88). An atomic is always checked; `len` must then be 8.
    #[inline]
    pub fn check_remote(
        &self,
        pd: PdId,
        qp: QpNumber,
        rkey: Key,
        va: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<Span, AccessFault> {
        let atomic = right == RemoteRight::Atomic;
        if len == 0 && !atomic {
            return Ok(Span::EMPTY);
        }
        let line = self.line(rkey).ok_or(AccessFault::UnknownKey)?;
        if line.pd != pd {
            return Err(AccessFault::OtherDomain);
        }
        match line.kind {
            LineKind::Region | LineKind::WindowOne => {}
            LineKind::WindowTwo if line.qp == qp => {}
            LineKind::WindowTwo => return Err(AccessFault::OtherQp),
            LineKind::Unbound => return Err(AccessFault::Unbound),
        }
        if !line.access.contains(right.access()) {
            return Err(AccessFault::MissingRight);
        }
        let offset = line.offset(va, u64::from(len))?;
        // The address that the peer names must be aligned (IBTA 9.4.5), and, for a real atomic, the
        // host's too: an iova may be shifted against its host address by any number of bytes.
        if atomic && (len != 8 || !va.is_multiple_of(8) || !(line.host + offset).is_multiple_of(8)) {
            return Err(AccessFault::Misaligned);
        }
        Ok(line.span(offset, len))
    }
}
