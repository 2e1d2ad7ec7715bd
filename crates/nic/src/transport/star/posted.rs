//! What the stateless NIC reads of a host's queues: for a packet that names something posted it looks at the
//! range of what is outstanding and at that one WQE, as every NIC fetches WQEs. A name that is not
//! outstanding any more opens nothing, so late copies and replays end here.

use crate::ids::PdId;
use crate::memory::{AccessFault, Gather, Memory, Payload, dma};
use crate::queue::recv::RecvQueue;
use crate::queue::send::SendQueue;
use crate::transport::inflight::Slots;
use crate::work::Sge;
use adverb_wire::star::Place;

/// Bits of an index that travel.
const INDEX_BITS: u32 = 24;

/// The queues of one endpoint, to be read only.
#[derive(Clone, Copy)]
pub(crate) struct HostQueues<'a> {
    pub sends: &'a SendQueue,
    pub starts: &'a Slots,
    pub receives: Option<&'a RecvQueue>,
    pub pd: PdId,
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

impl HostQueues<'_> {
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
            let index = outstanding(place.index, queue.waiting()).ok_or(Misplaced::NotPosted)?;
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
        let block = outstanding(index, (self.sends.fetched, self.sends.posted))?;
        self.starts.blocks_from(block)?;
        self.sends.ring.decode(block, self.sends.posted.wrapping_sub(block), self.sends.layout()).ok()
    }
}
