//! The sending half's state: WQEs that have been executed and are not done, in a ring, and where in it the
//! next packet comes from. [`super::requester`] tells how it moves. The caller's words for completions stand
//! in the same ring, so that a queue pair with one request in flight reads one line of it.

use crate::congestion::window::Window;
use crate::explain::Cause;
use crate::limits;
use crate::memory::{prefetch, prefetch_whole};
use crate::queue::wqe::{GatherCursor, Operands, Wqe, WqeOp};
use crate::silence::Excused;
use adverb_wire::Psn;

/// A WQE that has been executed and is not done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inflight {
    /// First PSN; a READ takes one for each response packet.
    pub psn: Psn,
    /// PSNs taken; 0 for local operations.
    pub packets: u32,
    /// Where the WQE starts in the send queue, and how many blocks it takes.
    pub block: u32,
    pub blocks: u8,
    pub op: WqeOp,
    pub signaled: bool,
}

const _: () = assert!(limits::MAX_WQE_BLOCKS <= u8::MAX as u32);

impl Inflight {
    /// Where the next WQE starts in the send queue.
    #[inline]
    pub fn end_block(&self) -> u32 {
        self.block.wrapping_add(self.blocks.into())
    }
}

/// A place of the ring: for an executed WQE, by its index in flight, and for the caller's word of a WQE that
/// was posted, by its first block in the send queue. The two rows only share memory.
#[derive(Clone, Copy, Debug)]
struct Slot {
    wr_id: u64,
    entry: Inflight,
}

const _: () = assert!(core::mem::size_of::<Slot>() == 24);

const VACANT: Slot = Slot { wr_id: 0, entry: BLANK };

#[cold]
fn first_slots(blocks: u32) -> Box<[Slot]> {
    vec![VACANT; blocks as usize].into_boxed_slice()
}

/// The ring's memory. It stays with the send queue, whose callers' words are in it, when the requester goes.
/// Empty until the first WQE.
#[derive(Debug, Default)]
pub(crate) struct Slots(Box<[Slot]>);

impl Slots {
    /// Takes the memory, before the first WQE of a send queue with so many blocks.
    #[inline]
    pub fn allocate(&mut self, blocks: u32) {
        if self.0.is_empty() {
            self.0 = first_slots(blocks);
        }
    }

    /// Keeps the caller's word for the WQE that was posted at `block`, of a send queue with so many blocks.
    #[inline]
    pub fn keep_wr_id(&mut self, block: u32, wr_id: u64, blocks: u32) {
        self.allocate(blocks);
        let place = self.place(block);
        self.0[place].wr_id = wr_id;
    }

    /// The caller's word for the WQE that starts at `block`.
    pub fn wr_id(&self, block: u32) -> u64 {
        self.0.get(self.place(block)).map_or(0, |slot| slot.wr_id)
    }

    /// Keeps where a WQE starts and how long it is, while its queue has no requester.
    pub fn keep_start(&mut self, block: u32, blocks: u32) {
        for inside in (0..blocks).map(|at| block.wrapping_add(at)) {
            let place = self.place(inside);
            if let Some(slot) = self.0.get_mut(place) {
                slot.entry = Inflight { block, blocks: blocks as u8, ..BLANK };
            }
        }
    }

    /// Blocks of the WQE that was kept for this block; `None` where none starts.
    pub fn blocks_from(&self, block: u32) -> Option<u32> {
        let entry = &self.0.get(self.place(block))?.entry;
        (entry.block == block).then_some(entry.blocks.into())
    }

    /// Where a free-running index stands in the ring, whose size is a power of two.
    #[inline]
    fn place(&self, index: u32) -> usize {
        index as usize & self.0.len().wrapping_sub(1)
    }
}

/// Where a requester goes on after it was taken off its send queue with nothing in flight.
#[derive(Debug)]
pub(crate) struct Resume {
    pub slots: Slots,
    pub next_psn: Psn,
    pub max_rd_atomic: u8,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Oldest PSN that is not acknowledged. Inside a READ: the next response expected.
    pub una: Psn,
    /// One past the highest PSN ever sent.
    pub sent: Psn,
    /// First PSN of the next WQE.
    pub next_psn: Psn,
    /// In-flight ring, free-running indices: oldest, sending, next free.
    pub head: u32,
    pub cursor: u32,
    pub tail: u32,
    /// Next packet of the WQE at the cursor.
    pub cursor_packet: u32,
    /// READs and atomics without an answer.
    pub outstanding_reads: u8,
    pub max_rd_atomic: u8,
    /// Retries left.
    pub retries: u8,
    pub rnr_retries: u8,
    /// Timeouts in a row, for the explanation.
    pub expiries: u8,
    /// Time without progress that costs no retry.
    pub excused: Excused,
    /// Waiting for the RNR timer; nothing is sent.
    pub rnr_wait: bool,
    /// A lost response has made us go back to `una`; not twice without progress.
    pub implied_nak: bool,
    pub window: Window,
    /// The WQE at the cursor has been read from memory; if the cursor is at the tail, it has not been
    /// executed yet.
    pub is_loaded: bool,
    /// The first response to the READ or atomic at the head came.
    pub is_answering: bool,
    /// The last WQE of the ring failed; reported when it becomes the head.
    pub has_failed: bool,
    /// From the first WQE on.
    decoded: Option<Box<Decoded>>,
    ring: Slots,
}

/// What was read from memory of the WQE at the cursor.
#[derive(Debug)]
struct Decoded {
    loaded: Wqe,
    /// How far the scatter/gather list of `loaded` has been walked.
    gather: GatherCursor,
    rare: Option<Box<Rare>>,
}

/// What atomics, READs and failures need beyond it, from the first one on.
#[derive(Debug, Default)]
struct Rare {
    /// Of the WQE at the cursor.
    operands: Operands,
    /// The READ or atomic at the head.
    answering: Wqe,
    /// Of the last WQE of the ring.
    failure: Option<Cause>,
}

// With the allocator's 8 bytes a cache line: each flow of a simulation takes one.
const _: () = assert!(core::mem::size_of::<Decoded>() == 56);

const NOTHING: Decoded = Decoded {
    loaded: Wqe::NOP,
    gather: GatherCursor { message_offset: 0, segment: 0, offset: 0 },
    rare: None,
};

#[cold]
fn first_decoded() -> Box<Decoded> {
    Box::new(NOTHING)
}

#[cold]
fn first_rare() -> Box<Rare> {
    Box::default()
}

pub const BLANK: Inflight =
    Inflight { psn: Psn::new(0), packets: 0, block: 0, blocks: 1, op: WqeOp::Nop, signaled: false };

impl Requester {
    /// A requester for a send queue of `blocks` (a power of two) blocks.
    pub fn new() -> Self {
        Requester {
            una: Psn::new(0),
            sent: Psn::new(0),
            next_psn: Psn::new(0),
            head: 0,
            cursor: 0,
            tail: 0,
            cursor_packet: 0,
            outstanding_reads: 0,
            max_rd_atomic: 0,
            retries: 0,
            rnr_retries: 0,
            expiries: 0,
            excused: Excused::default(),
            rnr_wait: false,
            implied_nak: false,
            window: Window::default(),
            is_loaded: false,
            is_answering: false,
            has_failed: false,
            decoded: None,
            ring: Slots::default(),
        }
    }

    /// Forgets everything (transition to RESET).
    pub fn reset(&mut self) {
        let ring = core::mem::take(&mut self.ring);
        *self = Requester { ring, ..Requester::new() };
    }

    /// One that goes on where another one was taken off.
    pub fn resume(from: Resume, retries: u8, rnr_retries: u8) -> Requester {
        let Resume { slots, next_psn, max_rd_atomic } = from;
        let mut requester =
            Requester { ring: slots, max_rd_atomic, retries, rnr_retries, ..Requester::new() };
        requester.set_first_psn(next_psn);
        requester
    }

    /// What of it outlives it. A WQE that was fetched and not executed is fetched again.
    pub fn into_resume(self) -> Resume {
        assert!(self.is_empty(), "a requester with requests in flight cannot go");
        Resume { slots: self.ring, next_psn: self.next_psn, max_rd_atomic: self.max_rd_atomic }
    }

    /// Sets the first PSN (transition to RTS).
    pub fn set_first_psn(&mut self, psn: Psn) {
        self.una = psn;
        self.sent = psn;
        self.next_psn = psn;
    }

    /// PSN of the next WQE.
    pub fn next_psn(&self) -> Psn {
        self.next_psn
    }

    /// WQEs in flight.
    pub fn in_flight(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether anything is in flight.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether a WQE in flight has packets that have not been sent, or not again.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.cursor != self.tail
    }

    /// Whether packets are out that have not been acknowledged.
    #[inline]
    pub fn awaits_acknowledgement(&self) -> bool {
        self.una != self.sent
    }

    /// Place of the WQE that the next packet comes from.
    #[inline]
    pub fn cursor(&self) -> u32 {
        self.cursor
    }

    /// The oldest WQE in flight.
    #[inline]
    pub fn oldest(&self) -> Option<Inflight> {
        (!self.is_empty()).then(|| *self.entry(self.head))
    }

    /// Whether every WQE in flight has been sent.
    pub fn is_all_sent(&self) -> bool {
        self.cursor == self.tail
    }

    /// The newest WQE in flight, and its place.
    pub fn newest(&self) -> (u32, Inflight) {
        let index = self.tail.wrapping_sub(1);
        (index, *self.entry(index))
    }

    /// Place of the WQE in flight that the PSN belongs to.
    pub fn find(&self, psn: Psn) -> Option<u32> {
        let (mut low, mut high) = (self.head, self.tail);
        while low != high {
            let middle = low.wrapping_add(high.wrapping_sub(low) / 2);
            let entry = self.entry(middle);
            if psn.since(entry.psn) >= 0 && psn.since(entry.psn.add(entry.packets)) >= 0 {
                low = middle.wrapping_add(1);
            } else {
                high = middle;
            }
        }
        let found = low != self.tail && psn.since(self.entry(low).psn) >= 0;
        (found && !(self.has_failed && low.wrapping_add(1) == self.tail)).then_some(low)
    }

    /// A WQE that has lately left the ring, if its place still has it.
    pub fn retired(&self, index: u32) -> Option<Inflight> {
        self.ring.0.get(self.place(index)).map(|slot| slot.entry)
    }

    #[inline]
    pub fn entry(&self, index: u32) -> &Inflight {
        &self.ring.0[self.place(index)].entry
    }

    /// Asks for where the next WQE is taken into flight.
    #[inline]
    pub fn prefetch(&self) {
        let place = if self.is_empty() { 0 } else { self.place(self.tail) };
        if let Some(entry) = self.ring.0.get(place) {
            prefetch(entry);
        }
        if let Some(decoded) = self.decoded.as_deref() {
            prefetch_whole(decoded);
        }
    }

    /// Keeps the caller's word for the WQE that was posted at `block`, of a send queue with so many blocks.
    #[inline]
    pub fn keep_wr_id(&mut self, block: u32, wr_id: u64, blocks: u32) {
        self.ring.keep_wr_id(block, wr_id, blocks);
    }

    /// Takes the ring's memory, before the first WQE of a send queue with so many blocks.
    #[inline]
    pub fn allocate(&mut self, blocks: u32) {
        self.ring.allocate(blocks);
    }

    /// Where a free-running index stands in the ring, whose size is a power of two.
    #[inline]
    fn place(&self, index: u32) -> usize {
        self.ring.place(index)
    }

    /// The caller's word for the WQE that starts at `block`; 0 of one that was never posted but written
    /// through memory.
    #[inline]
    pub fn wr_id(&self, block: u32) -> u64 {
        self.ring.0.get(self.place(block)).map_or(0, |slot| slot.wr_id)
    }

    /// Takes a WQE into flight.
    pub fn push(&mut self, entry: Inflight) {
        if self.is_empty() {
            // At the first place again, whose line is the likeliest to be in cache.
            let mask = (self.ring.0.len() as u32).wrapping_sub(1);
            self.head = self.head.wrapping_add(mask) & !mask;
            (self.cursor, self.tail) = (self.head, self.head);
        }
        let place = self.place(self.tail);
        self.ring.0[place].entry = entry;
        self.tail = self.tail.wrapping_add(1);
        self.next_psn = self.next_psn.add(entry.packets);
    }

    /// The WQE at the cursor, where `is_loaded`.
    #[inline]
    pub fn loaded(&self) -> &Wqe {
        &self.decoded().loaded
    }

    /// What the atomic at the cursor computes with, where `is_loaded`.
    pub fn operands(&self) -> Operands {
        self.decoded().rare.as_deref().map_or(Operands::NONE, |rare| rare.operands)
    }

    /// The WQE at the cursor was read from memory; its list has not been walked.
    #[inline]
    pub fn load(&mut self, wqe: &Wqe) {
        self.is_loaded = true;
        let decoded = self.decoded_mut();
        decoded.loaded = *wqe;
        decoded.gather = GatherCursor { segment: wqe.data_segment, ..Default::default() };
    }

    /// The WQE at the cursor is an atomic, and computes with these.
    #[cold]
    pub fn keep_operands(&mut self, operands: Operands) {
        self.rare_mut().operands = operands;
    }

    /// The READ or atomic at the head, where `is_answering`.
    #[inline]
    pub fn answering(&self) -> &Wqe {
        self.decoded().rare.as_deref().map_or(&Wqe::NOP, |rare| &rare.answering)
    }

    /// The READ or atomic at the head is being answered.
    #[inline]
    pub fn begin_answer(&mut self, wqe: &Wqe) {
        self.is_answering = true;
        self.rare_mut().answering = *wqe;
    }

    /// How far the scatter/gather list of the WQE at the cursor has been walked.
    #[inline]
    pub fn gather(&self) -> GatherCursor {
        self.decoded().gather
    }

    /// The scatter/gather list has been walked so far.
    #[inline]
    pub fn set_gather(&mut self, at: GatherCursor) {
        self.decoded_mut().gather = at;
    }

    #[inline]
    fn decoded(&self) -> &Decoded {
        self.decoded.as_deref().unwrap_or(&NOTHING)
    }

    #[inline]
    fn decoded_mut(&mut self) -> &mut Decoded {
        self.decoded.get_or_insert_with(first_decoded)
    }

    #[inline]
    fn rare_mut(&mut self) -> &mut Rare {
        self.decoded_mut().rare.get_or_insert_with(first_rare)
    }

    /// Moves the cursor back to the oldest unacknowledged PSN.
    pub fn go_back(&mut self) {
        self.cursor = self.head;
        self.is_loaded = false;
        self.cursor_packet = match self.oldest() {
            Some(e) if e.packets > 0 => self.una.since(e.psn).max(0) as u32,
            _ => 0,
        };
    }

    /// Brings a cursor that acknowledgements have overtaken up to the oldest unacknowledged PSN.
    #[inline]
    pub fn catch_up(&mut self) {
        let behind = self.cursor.wrapping_sub(self.head) as i32;
        if behind < 0 {
            self.go_back();
        } else if behind == 0
            && let Some(e) = self.oldest()
            && self.una.since(e.psn) > self.cursor_packet as i32
        {
            self.go_back();
        }
    }

    /// Brings a cursor that stands at a WQE without packets, which is done, up to the oldest in flight.
    pub fn pass_done(&mut self) {
        if (self.cursor.wrapping_sub(self.head) as i32) < 0 {
            self.cursor = self.head;
        }
    }

    /// Whether the head is a WQE that failed before it was sent.
    pub fn head_failed(&self) -> bool {
        self.has_failed && self.head.wrapping_add(1) == self.tail
    }

    /// Everything in flight is gone, flushed.
    pub fn forget(&mut self) {
        self.cursor = self.head;
        self.tail = self.head;
        self.una = self.next_psn;
        self.sent = self.next_psn;
        self.outstanding_reads = 0;
        self.rnr_wait = false;
        self.is_loaded = false;
        self.has_failed = false;
        self.is_answering = false;
    }

    /// The newest WQE has failed.
    pub fn fail(&mut self, cause: Cause) {
        self.has_failed = true;
        self.rare_mut().failure = Some(cause);
    }

    /// What the newest WQE failed of.
    pub fn take_failure(&mut self) -> Option<Cause> {
        self.has_failed = false;
        self.rare_mut().failure.take()
    }

    /// `head <= cursor <= tail`, `una <= sent <= next_psn`.
    pub fn check_invariants(&self) {
        let inflight = self.tail.wrapping_sub(self.head);
        assert!(inflight as usize <= self.ring.0.len(), "more in flight than the ring holds");
        assert!(self.cursor.wrapping_sub(self.head) <= inflight, "cursor outside of the ring");
        assert!(self.sent.since(self.una) >= 0, "acknowledged what was not sent");
        assert!(self.next_psn.since(self.sent) >= 0, "sent what was not executed");
    }
}

const _: () = assert!(core::mem::size_of::<Requester>() <= 72);
