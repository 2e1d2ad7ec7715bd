//! What the stateless NIC reads of a host's queues: for a packet that names something posted it looks at the
//! range of what is outstanding and at that one WQE, as every NIC fetches WQEs. A name that is not
//! outstanding any more opens nothing, so late copies and replays end here.

use crate::ids::PdId;
use crate::memory::{AccessFault, Gather, Memory, Payload, dma};
use crate::queue::recv::RecvQueue;
use crate::queue::send::SendQueue;
use crate::queue::wqe::BLOCK;
use crate::transport::inflight::Slots;
use crate::work::Sge;
use adverb_wire::Psn;
use adverb_wire::star::{Cqe, Merged, Place};
use std::cell::Cell;

/// Bits of an index that travel.
const INDEX_BITS: u32 = 24;

/// The queues of one endpoint, to be read only. What is read for one packet is counted: the range of what is
/// outstanding and, of a request, that one's own bytes.
pub(crate) struct HostQueues<'a> {
    sends: &'a SendQueue,
    starts: &'a Slots,
    receives: Option<&'a RecvQueue>,
    pd: PdId,
    /// Bytes read so far.
    read: Cell<u32>,
    /// The number of the next completion, where completions may come with their data.
    completion: Option<Psn>,
}

/// Bytes of the range of what is outstanding in a queue, and of the length of a request there.
const RANGE_BYTES: u32 = 16;

/// Whether a completion that comes with its data has its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Now,
    /// It was taken.
    Past,
    /// One before it has not come.
    Early,
    /// It was not agreed on, or is not for the oldest of what is posted.
    Never,
}

/// Why a place in a posted request cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misplaced {
    /// It is not outstanding, of another kind, or shorter.
    NotPosted,
    /// The request's own entries are at fault.
    Local(AccessFault),
}

/// The place in the order of a queue that a 24-bit index stands for, if it is outstanding.
pub(crate) fn outstanding(index: u32, (first, end): (u32, u32)) -> Option<u32> {
    let ahead = index.wrapping_sub(first) & ((1 << INDEX_BITS) - 1);
    (ahead < end.wrapping_sub(first)).then(|| first.wrapping_add(ahead))
}

/// Walks `len` bytes from `offset` of a list: address ranges, each inside of one entry. False when the list
/// is shorter.
fn walk(
    list: impl Iterator<Item = Sge>,
    offset: u32,
    len: u32,
    mut each: impl FnMut(Sge) -> Result<(), AccessFault>,
) -> Result<bool, AccessFault> {
    let (mut skip, mut left) = (u64::from(offset), len);
    for sge in list {
        if left == 0 {
            break;
        }
        if skip >= u64::from(sge.len) {
            skip -= u64::from(sge.len);
            continue;
        }
        let part = (sge.len - skip as u32).min(left);
        each(Sge { addr: sge.addr.wrapping_add(skip), len: part, lkey: sge.lkey })?;
        left -= part;
        skip = 0;
    }
    Ok(left == 0)
}

impl<'a> HostQueues<'a> {
    /// `completion` is the number of the next completion, if one may come with its data.
    pub fn new(
        sends: &'a SendQueue,
        starts: &'a Slots,
        receives: Option<&'a RecvQueue>,
        pd: PdId,
        completion: Option<Psn>,
    ) -> HostQueues<'a> {
        HostQueues { sends, starts, receives, pd, read: Cell::new(0), completion }
    }

    /// Bytes of the queues that were read.
    pub fn read(&self) -> u32 {
        self.read.get()
    }

    /// What is outstanding: in a packet's way it is looked at once.
    fn range(&self, of_receives: bool) -> (u32, u32) {
        if self.read.get() == 0 {
            self.read.set(RANGE_BYTES);
        }
        match of_receives {
            true => self.receives.map_or((0, 0), RecvQueue::waiting),
            false => (self.sends.fetched, self.sends.posted),
        }
    }

    /// Whether a completion is the next one.
    pub fn turn(&self, merged: &Merged) -> Turn {
        let Some(expected) = self.completion else { return Turn::Never };
        let range = self.range(merged.flags & Cqe::RECV_QUEUE != 0);
        match merged.number.since(expected) {
            0 if outstanding(merged.index, range) == Some(range.0) => Turn::Now,
            0 => Turn::Never,
            1.. => Turn::Early,
            _ => Turn::Past,
        }
    }

    /// Puts data into a posted receive, or into the buffer of a READ or atomic.
    pub fn place(
        &self,
        memory: &Memory,
        of_receives: bool,
        place: Place,
        payload: &Payload<'_>,
    ) -> Result<(), Misplaced> {
        let mut done = 0;
        let put = |sge: Sge| {
            let span = memory.check_local(self.pd, sge.lkey, sge.addr, sge.len, true)?;
            if !payload.is_elided() {
                dma::write(span, payload, done, sge.len as usize);
            }
            done += sge.len as usize;
            Ok(())
        };
        let len = payload.len() as u32;
        // All of it, or none.
        let fits = |room: u64| u64::from(place.offset) + u64::from(len) <= room;
        let whole = if of_receives {
            let queue = self.receives.ok_or(Misplaced::NotPosted)?;
            let index = outstanding(place.index, self.range(true)).ok_or(Misplaced::NotPosted)?;
            self.read.set(self.read.get() + queue.stride() as u32);
            if !fits(queue.capacity_of(index)) {
                return Err(Misplaced::NotPosted);
            }
            walk(queue.sges_of(index), place.offset, len, put)
        } else {
            let wqe = self.wqe(place.index).filter(|wqe| wqe.op.awaits_response() && !wqe.inline);
            let wqe = wqe.filter(|wqe| fits(wqe.len.into())).ok_or(Misplaced::NotPosted)?;
            let list = (wqe.data_segment..wqe.segments).map(|at| self.sends.ring.sge(&wqe, at));
            walk(list, place.offset, len, put)
        };
        if whole.map_err(Misplaced::Local)? { Ok(()) } else { Err(Misplaced::NotPosted) }
    }

    /// Collects data of a posted SEND or WRITE.
    pub fn gather(
        &self,
        memory: &Memory,
        place: Place,
        len: u32,
        into: &mut Gather,
    ) -> Result<(), Misplaced> {
        let wqe = self.wqe(place.index).filter(|wqe| wqe.op.is_message() && !wqe.calc);
        let wqe = wqe.ok_or(Misplaced::NotPosted)?;
        let end = u64::from(place.offset) + u64::from(len);
        if end > u64::from(wqe.len) {
            return Err(Misplaced::NotPosted);
        }
        if wqe.inline {
            self.sends.ring.gather_inline(&wqe, place.offset, len, into);
            return Ok(());
        }
        let list = (wqe.data_segment..wqe.segments).map(|at| self.sends.ring.sge(&wqe, at));
        let whole = walk(list, place.offset, len, |sge| {
            into.push(memory.check_local(self.pd, sge.lkey, sge.addr, sge.len, false)?);
            Ok(())
        });
        if whole.map_err(Misplaced::Local)? { Ok(()) } else { Err(Misplaced::NotPosted) }
    }

    /// The WQE that starts at a block, if it is outstanding.
    fn wqe(&self, index: u32) -> Option<crate::queue::wqe::Wqe> {
        let block = outstanding(index, self.range(false))?;
        let blocks = self.starts.blocks_from(block)?;
        self.read.set(self.read.get() + blocks * BLOCK as u32);
        self.sends.ring.decode(block, self.sends.posted.wrapping_sub(block), self.sends.layout()).ok()
    }
}
