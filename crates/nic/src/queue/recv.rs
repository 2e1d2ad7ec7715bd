//! Receive queues, own and shared: rings of scatter lists in memory.
//!
//! An entry is a row of 16-byte data segments in the mlx5 layout (byte count, lkey, address), ended
//! early by [`END_OF_LIST`]. The NIC copies an entry out when a message takes it; its place counts as taken
//! until the program has polled its completion, as on mlx5. A shared queue is the same ring: entries leave it
//! in order, so the linked list that mlx5 keeps for out-of-order release is not needed.
//!
//! Of a managed queue messages take only what ENABLEs allow, which may go round and round: the same requests
//! are then taken again.

use crate::error::Error;
use crate::ids::{CqId, PdId, SrqId, XrcdId};
use crate::limits;
use crate::memory::QueueMemory;
use crate::queue::wqe::SEGMENT;
use crate::work::{RecvWr, Sge};
use adverb_wire::Key;
use std::collections::VecDeque;

/// The lkey that ends a scatter list shorter than its entry.
const END_OF_LIST: u32 = 0x100;

/// A ring of receive work requests.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    memory: QueueMemory,
    wr_ids: Box<[u64]>,
    /// What messages may take: what was posted, or of a managed queue what was enabled.
    posted: u32,
    /// What was posted to a managed queue.
    written: u32,
    taken: u32,
    /// Requests posted whose completions have not been polled.
    held: u32,
    mask: u32,
    max_wr: u32,
    max_sge: u16,
    managed: bool,
    ignores_overflow: bool,
}

const _: () = assert!(limits::MAX_SGE <= u16::MAX as u32 && limits::MAX_SRQ_SGE <= u16::MAX as u32);

impl RecvQueue {
    /// A queue for `max_wr` requests of `max_sge` entries each; both may be 0.
    pub fn new(max_wr: u32, max_sge: u32) -> Result<Self, Error> {
        // A queue that nothing may be posted to takes no memory.
        let slots = if max_wr == 0 { 0 } else { max_wr.next_power_of_two() };
        let stride = max_sge.max(1) as usize * SEGMENT;
        Ok(RecvQueue {
            memory: QueueMemory::new(slots as usize * stride)?,
            wr_ids: vec![0; slots as usize].into_boxed_slice(),
            posted: 0,
            written: 0,
            taken: 0,
            held: 0,
            mask: slots.saturating_sub(1),
            max_wr,
            max_sge: max_sge as u16,
            managed: false,
            ignores_overflow: false,
        })
    }

    /// Requests posted and not yet taken.
    #[inline]
    pub fn len(&self) -> u32 {
        self.posted.wrapping_sub(self.taken)
    }

    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    pub fn max_sge(&self) -> u32 {
        self.max_sge.into()
    }

    /// Lets only ENABLEs say which requests messages may take.
    pub fn manage(&mut self) {
        self.managed = true;
    }

    /// Takes more requests than it has room for: newer ones replace the oldest.
    pub fn ignore_overflow(&mut self) {
        self.ignores_overflow = true;
    }

    /// Whether messages take only what ENABLEs allow.
    #[inline]
    pub fn is_managed(&self) -> bool {
        self.managed
    }

    /// An ENABLE: messages may take requests up to `end`, a count modulo 2^16. One that says less than is
    /// enabled already, or more than half of that circle ahead of what is taken, changes nothing.
    pub fn enable(&mut self, end: u16) {
        let posted = self.posted.wrapping_add(end.wrapping_sub(self.posted as u16).into());
        if self.len() <= posted.wrapping_sub(self.taken) && posted.wrapping_sub(self.taken) <= 1 << 15 {
            self.posted = posted;
        }
    }

    /// What was posted and not taken is to be flushed, whatever was enabled.
    pub fn enable_all(&mut self) {
        if self.managed {
            let left = self.written.wrapping_sub(self.taken) as i32;
            self.posted = if left > 0 { self.written } else { self.taken };
        }
    }

    /// Empties the queue (transition to RESET).
    pub fn reset(&mut self) {
        self.posted = 0;
        self.written = 0;
        self.taken = 0;
        self.held = 0;
    }

    /// The program has polled the completions of so many requests.
    #[inline]
    pub fn release(&mut self, requests: u32) {
        self.held = self.held.saturating_sub(requests);
    }

    /// Changes the size; what is posted stays. `Invalid` when more is held than would fit.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), Error> {
        if self.held > max_wr {
            return Err(Error::Invalid("size below the number of receives posted and not polled"));
        }
        let mut new = RecvQueue::new(max_wr, self.max_sge())?;
        (new.posted, new.taken, new.held) = (self.posted, self.taken, self.held);
        let stride = self.stride();
        for index in 0..self.len() {
            let at = self.taken.wrapping_add(index);
            let (from, to) = ((at & self.mask) as usize, (at & new.mask) as usize);
            for offset in (0..stride).step_by(SEGMENT) {
                let segment = self.memory.read_segment(from * stride + offset);
                new.memory.write_segment(to * stride + offset, segment);
            }
            new.wr_ids[to] = self.wr_ids[from];
        }
        *self = new;
        Ok(())
    }

    /// Adds a request. `QueueFull` at the queue's size, `Invalid` for too long a list.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), Error> {
        if wr.sges.len() > self.max_sge as usize {
            return Err(Error::Invalid("number of scatter/gather entries"));
        }
        if wr.sges.iter().any(|sge| u64::from(sge.len) > limits::MAX_MESSAGE) {
            return Err(Error::Invalid("scatter entry longer than 2^31 bytes"));
        }
        if self.held >= self.max_wr && !(self.ignores_overflow && self.max_wr > 0) {
            return Err(Error::QueueFull);
        }
        let at = if self.managed { self.written } else { self.posted };
        let slot = (at & self.mask) as usize;
        let base = slot * self.stride();
        for (i, sge) in wr.sges.iter().enumerate() {
            self.write(base, i, sge);
        }
        if wr.sges.len() < self.max_sge as usize {
            self.write(base, wr.sges.len(), &Sge { addr: 0, len: 0, lkey: Key(END_OF_LIST) });
        }
        self.wr_ids[slot] = wr.wr_id;
        if self.managed {
            self.written = at.wrapping_add(1);
        } else {
            self.posted = at.wrapping_add(1);
        }
        self.held += 1;
        Ok(())
    }

    /// Entries of the oldest request that so many bytes come to.
    pub fn entries(&self, bytes: u64) -> u32 {
        if self.posted == self.taken {
            return 0;
        }
        let base = (self.taken & self.mask) as usize * self.stride();
        let (mut count, mut room) = (0, 0);
        while room < bytes && count < u32::from(self.max_sge) {
            let seg = self.memory.read_segment(base + count as usize * SEGMENT);
            let word = |at: usize| u32::from_be_bytes([seg[at], seg[at + 1], seg[at + 2], seg[at + 3]]);
            if (word(0), word(4)) == (0, END_OF_LIST) {
                break;
            }
            room += u64::from(word(0));
            count += 1;
        }
        count
    }

    /// Takes the oldest request into `into`.
    #[inline]
    pub fn take(&mut self, into: &mut ScatterList) -> bool {
        if self.posted == self.taken {
            return false;
        }
        let slot = (self.taken & self.mask) as usize;
        let base = slot * self.stride();
        into.wr_id = self.wr_ids[slot];
        into.count = 0;
        into.capacity = 0;
        for i in 0..(self.max_sge as usize).min(into.sges.len()) {
            let seg = self.memory.read_segment(base + i * SEGMENT);
            let word = |at: usize| u32::from_be_bytes([seg[at], seg[at + 1], seg[at + 2], seg[at + 3]]);
            let (len, lkey) = (word(0), word(4));
            if len == 0 && lkey == END_OF_LIST {
                break;
            }
            let addr = (word(8) as u64) << 32 | word(12) as u64;
            into.sges[i] = Sge { addr, len, lkey: Key(lkey) };
            into.count += 1;
            into.capacity += len as u64;
        }
        into.capacity = into.capacity.min(limits::MAX_MESSAGE);
        self.taken = self.taken.wrapping_add(1);
        true
    }

    /// Requests that were posted and not taken, by their places in the order of the queue: the first one, and
    /// one past the last.
    #[inline]
    pub fn waiting(&self) -> (u32, u32) {
        (self.taken, self.posted)
    }

    /// Entries of the request at a place in the order of the queue.
    pub fn sges_of(&self, index: u32) -> impl Iterator<Item = Sge> + '_ {
        let base = (index & self.mask) as usize * self.stride();
        (0..self.max_sge as usize).map_while(move |i| {
            let seg = self.memory.read_segment(base + i * SEGMENT);
            let word = |at: usize| u32::from_be_bytes([seg[at], seg[at + 1], seg[at + 2], seg[at + 3]]);
            let (len, lkey) = (word(0), word(4));
            let sge = Sge { addr: (word(8) as u64) << 32 | word(12) as u64, len, lkey: Key(lkey) };
            (len != 0 || lkey != END_OF_LIST).then_some(sge)
        })
    }

    /// Bytes that the request at a place has room for.
    pub fn capacity_of(&self, index: u32) -> u64 {
        self.sges_of(index).map(|sge| u64::from(sge.len)).sum::<u64>().min(limits::MAX_MESSAGE)
    }

    /// The oldest request that was not taken is done: the caller's word for it.
    pub fn pass(&mut self) -> u64 {
        let wr_id = self.wr_ids[(self.taken & self.mask) as usize];
        self.taken = self.taken.wrapping_add(1);
        wr_id
    }

    /// The request taken last is the oldest again; nothing has been posted since.
    pub fn put_back(&mut self) {
        self.taken = self.taken.wrapping_sub(1);
    }

    /// Bytes that a request takes in memory.
    pub fn stride(&self) -> usize {
        self.max_sge.max(1) as usize * SEGMENT
    }

    fn write(&mut self, base: usize, index: usize, sge: &Sge) {
        let mut seg = [0u8; SEGMENT];
        seg[..4].copy_from_slice(&sge.len.to_be_bytes());
        seg[4..8].copy_from_slice(&sge.lkey.0.to_be_bytes());
        seg[8..].copy_from_slice(&sge.addr.to_be_bytes());
        self.memory.write(base + index * SEGMENT, &seg);
    }
}

/// What a queue pair needs only if it may take receives: its own queue, empty of one that has a shared one,
/// and the request that a message in progress lands in.
#[derive(Debug)]
pub(crate) struct Receives {
    pub queue: RecvQueue,
    pub list: ScatterList,
    /// The queue pair's shared receive queue.
    pub shared: Option<SrqId>,
    /// XRC: the shared receive queue that the request came from.
    pub of_xrc: Option<SrqId>,
    /// The queue pair's XRC domain.
    pub xrcd: Option<XrcdId>,
    /// Receives that messages have taken in order, on a circle of 2^32.
    pub taken: u32,
    /// Messages that found none, since RESET: modulo 2^32.
    pub not_ready: u32,
    /// From the first message on that came before its turn.
    early: Option<Box<Early>>,
}

/// Receives taken for messages that came before their turn, oldest first, and lists to reuse.
#[derive(Debug, Default)]
struct Early {
    lists: VecDeque<ScatterList>,
    spare: Vec<ScatterList>,
}

#[cold]
fn first_early() -> Box<Early> {
    Box::default()
}

impl Receives {
    pub fn new(queue: RecvQueue, list: ScatterList, shared: Option<SrqId>, xrcd: Option<XrcdId>) -> Receives {
        Receives { queue, list, shared, of_xrc: None, xrcd, taken: 0, not_ready: 0, early: None }
    }

    /// Forgets everything posted (transition to RESET).
    pub fn reset(&mut self) {
        self.queue.reset();
        self.of_xrc = None;
        self.not_ready = 0;
        self.early = None;
    }

    /// Receives that have been taken early.
    pub fn early_count(&self) -> usize {
        self.early.as_deref().map_or(0, |early| early.lists.len())
    }

    /// One of them.
    pub fn early(&self, index: usize) -> Option<&ScatterList> {
        self.early.as_deref()?.lists.get(index)
    }

    /// A list to take a receive into, with room for so many entries.
    pub fn spare_list(&mut self, room: u32) -> ScatterList {
        let spare = self.early.as_deref_mut().and_then(|early| early.spare.pop());
        spare.unwrap_or_else(|| ScatterList::with_room(room))
    }

    /// The list was not needed.
    pub fn keep_spare(&mut self, list: ScatterList) {
        self.early.get_or_insert_with(first_early).spare.push(list);
    }

    /// A receive was taken early.
    pub fn keep_early(&mut self, list: ScatterList) {
        self.early.get_or_insert_with(first_early).lists.push_back(list);
    }

    /// Makes the oldest receive taken early the one in use. False when there is none.
    #[inline]
    pub fn take_early(&mut self) -> bool {
        let Some(early) = self.early.as_deref_mut() else { return false };
        let Some(mut list) = early.lists.pop_front() else { return false };
        core::mem::swap(&mut self.list, &mut list);
        early.spare.push(list);
        true
    }

    /// Takes the next receive of the own queue, one taken early before all others. False when there is none.
    #[inline]
    pub fn take(&mut self) -> bool {
        self.take_early() || self.queue.take(&mut self.list)
    }
}

/// A receive request taken from its queue: the message in progress lands here.
#[derive(Debug, Default)]
pub(crate) struct ScatterList {
    pub wr_id: u64,
    /// Bytes of a message that the list has room for: those of its entries, or of the longest message.
    pub capacity: u64,
    pub count: usize,
    sges: Vec<Sge>,
}

/// That of a queue pair that cannot take receives.
static NO_LIST: ScatterList = ScatterList { wr_id: 0, capacity: 0, count: 0, sges: Vec::new() };

impl ScatterList {
    /// One of no receive, with room for none.
    pub fn none() -> &'static ScatterList {
        &NO_LIST
    }

    /// Room for lists of up to `max_sge` entries.
    pub fn with_room(max_sge: u32) -> Self {
        ScatterList { sges: vec![Sge::default(); max_sge as usize], ..Default::default() }
    }

    /// Entries that it can hold.
    pub fn room(&self) -> u32 {
        self.sges.len() as u32
    }

    /// The entries.
    #[inline]
    pub fn sges(&self) -> &[Sge] {
        &self.sges[..self.count]
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub queue: RecvQueue,
    pub pd: PdId,
    pub xrc: Option<(XrcdId, CqId)>,
    /// Raise an event below this many; 0 disarmed.
    pub limit: u32,
    /// Queue pairs that use it.
    pub users: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_out_as_they_went_in() {
        let mut q = RecvQueue::new(3, 2).unwrap();
        let sge = |n| Sge { addr: n, len: n as u32, lkey: Key(n as u32) };
        let mut list = ScatterList::with_room(2);
        for round in 0..10u64 {
            q.post(&RecvWr { wr_id: round, sges: &[sge(round + 1)] }).unwrap();
            q.post(&RecvWr { wr_id: 100 + round, sges: &[sge(1), sge(2)] }).unwrap();
            q.post(&RecvWr { wr_id: 200, sges: &[] }).unwrap();
            assert_eq!(q.post(&RecvWr { wr_id: 0, sges: &[] }), Err(Error::QueueFull));
            assert!(q.take(&mut list));
            assert_eq!((list.wr_id, list.sges()), (round, &[sge(round + 1)][..]));
            assert!(q.take(&mut list));
            assert_eq!((list.wr_id, list.count, list.capacity), (100 + round, 2, 3));
            assert!(q.take(&mut list));
            assert_eq!((list.count, list.capacity), (0, 0));
            assert!(!q.take(&mut list));
            q.release(3);
        }
        let three = [sge(1); 3];
        assert!(matches!(q.post(&RecvWr { wr_id: 0, sges: &three }), Err(Error::Invalid(_))));
    }
}
