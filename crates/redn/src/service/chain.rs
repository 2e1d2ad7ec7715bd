//! The chain that answers one client's gets for ever: no CPU posts anything after it was started.
//!
//! The client sends a key's fingerprint and the addresses of its two buckets ([`message`]). The record of the
//! bucket that has the fingerprint is written into the client's buffer, with an immediate. If neither has it,
//! one byte is: so nobody waits in vain.
//!
//! ```text
//! receive t       fills in slot t: fingerprints of both tests, addresses of both READs
//! look    slot t  READ bucket 1, READ bucket 2   fingerprint -> the copies' operands, word B -> scratch
//!                 CAS copy 1, CAS copy 2         NOP -> READ if the fingerprint is the client's
//!                 ENABLE act < slot t            fenced: both tests have been answered
//!                 WAIT message t+1, ENABLE look < slot t+1
//! act     slot t  copy 2, copy 1                 scratch -> length and address of reply t
//!                 ENABLE reply < reply t         fenced: both copies have been answered
//!                 upkeep                         what this lap changed, in slots that are over
//! reply   slot t  WRITE_IMM                      to slot t of the client's buffer
//! ```
//! Slots are round a ring, and all that counts up is brought up once a lap, in the manner of
//! [`parts`]: a counter in memory of two lanes, to which each step adds, and which lands as it was before in
//! the word behind it. So one READ finds numbers of this step and of the step before. With `t` the step, `S`
//! the slots, and `B` the blocks of a slot of either ring it finds
//!
//! ```text
//! counter  t + S + 1   (t + S + 1) * B      look's WAIT and ENABLE of slot t - 1, in the next lap
//! before   t + S       (t + S) * B          ENABLE reply and ENABLE act of slot t - 1, in the next lap
//! behind   NOP, NOP    1                    copies of slot t - 1; length of the reply S / 4 steps ahead
//! ```
//! as long as the READ is answered before the counter is added to. A READ's answer is taken from memory when
//! it leaves, which may be behind an atomic that came later, where they go over a wire: so the ADD is fenced.
//! The numbers are right because the messages' completion queue has one completion more at the beginning.
//! Four times a lap `act` enables receives: half a lap's from there on, once the replies of half a lap ago
//! have been acknowledged. So no message fills in a slot, and no copy a reply, that is still in use,
//! whatever a client sends: a message that comes too early finds no receive, and is sent again. A client
//! that has at most [`Shape::outstanding`] gets under way never meets that.
//!
//! Left out: checks of WQEs (a conditional's index and number are operands here).

use super::layout::{RECORD_MAX, Sought};
use crate::WqeOp;
use crate::chain::{
    Chain, Done, Field, Form, Memory, Op, Peer, Place, QueueId, RegionId, Source, Until, Word, Wqe, WqeId,
    parts,
};
use adverb_rdma::SendOrder;

/// Bytes of a client's message.
pub const MESSAGE_LEN: usize = 28;
/// Blocks of a slot of the rings that look and act.
const STEP: u32 = 16;
/// Slots of the smallest and of the largest ring.
pub const SLOTS: core::ops::RangeInclusive<u32> = 8..=256;
/// Memory of a chain: counter, the counter before, what is restored; where nothing matters; words of slots.
const BEFORE: u64 = 8;
const RESTORED: u64 = 16;
const DUMP: u64 = 32;
const SCRATCH: u64 = 64;
/// Bytes of a slot's scratch: word B of either bucket.
const SCRATCH_LEN: u64 = 16;

/// How large a chain is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Slots: a power of two among [`SLOTS`].
    pub slots: u32,
    /// Bytes of the client's buffer for each.
    pub reply_len: u32,
}

impl Default for Shape {
    /// Four gets under way, of the largest values.
    fn default() -> Self {
        Shape { slots: 16, reply_len: RECORD_MAX as u32 }
    }
}

impl Shape {
    /// Whether there are such chains.
    pub fn is_sound(&self) -> bool {
        let Shape { slots, reply_len } = *self;
        slots.is_power_of_two() && SLOTS.contains(&slots) && (64..=RECORD_MAX as u32).contains(&reply_len)
    }

    /// Gets that a client may have under way: one more may have to be sent again.
    pub fn outstanding(&self) -> u32 {
        self.slots / 4
    }

    /// Bytes of a client's buffer.
    pub fn buffer_len(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.reply_len)
    }

    /// Where the reply to the client's message number `n`, counted from 0, is in its buffer.
    pub fn reply_at(&self, n: u64) -> u64 {
        n % u64::from(self.slots) * u64::from(self.reply_len)
    }
}

/// A client's message: what to look for, and where.
pub fn message(sought: &Sought, buckets: [u64; 2]) -> [u8; MESSAGE_LEN] {
    let mut out = [0; MESSAGE_LEN];
    // In the order in which a compare-and-swap takes it.
    let compared = parts::little(sought.fingerprint);
    out[..6].copy_from_slice(&compared);
    out[6..12].copy_from_slice(&compared);
    out[12..20].copy_from_slice(&buckets[0].to_be_bytes());
    out[20..28].copy_from_slice(&buckets[1].to_be_bytes());
    out
}

/// The region of a chain whose first word counts its steps.
pub const STATE: &str = "state";

/// Steps that a chain has made, by that word: messages that it has answered.
pub fn answered(counter: u64, slots: u32) -> u64 {
    let steps = counter & (parts::lanes(0, 1) - 1);
    steps.saturating_sub(u64::from(slots) + 1)
}

/// A chain of one client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The chain.
    pub chain: Chain,
    /// The queue to the client.
    pub client: QueueId,
    /// The index, which is to be given: its key is known to READs only.
    pub index: RegionId,
    /// The values, which are to be given: their key is known to replies only.
    pub values: RegionId,
    /// The client's buffer, which is to be given.
    pub buffer: RegionId,
}

/// What the parts of a chain are made of.
struct Making {
    chain: Chain,
    slots: u32,
    reply: QueueId,
    look: QueueId,
    act: QueueId,
    index: RegionId,
    state: RegionId,
}

impl Lookup {
    /// A chain of a sound shape.
    pub fn new(shape: Shape) -> Lookup {
        Lookup::made(shape, false)
    }

    /// The same, of which every WQE makes a completion, so that somebody can watch what it does.
    pub fn audited(shape: Shape) -> Lookup {
        Lookup::made(shape, true)
    }

    fn made(shape: Shape, audited: bool) -> Lookup {
        assert!(shape.is_sound(), "{shape:?}");
        let slots = shape.slots;
        let mut chain = Chain::new();
        let index = chain.region("index", Memory::Given);
        let values = chain.region("values", Memory::Given);
        let buffer = chain.region("buffer", Memory::Given);
        let state = chain.memory(STATE, SCRATCH + u64::from(slots) * SCRATCH_LEN);
        let reply = chain.queue("reply", SendOrder::Managed, Peer::Client);
        let look = chain.queue("look", SendOrder::Managed, Peer::Itself);
        let act = chain.queue("act", SendOrder::Managed, Peer::Itself);
        [reply, look, act].into_iter().for_each(|queue| chain.recycle(queue));
        chain.manage_receives(reply);
        let numbers = |step: u32| parts::lanes(step.into(), step * STEP).to_ne_bytes();
        chain.data(state, 0, numbers(slots + 1));
        chain.data(state, BEFORE, numbers(slots));
        chain.data(state, RESTORED, [WqeOp::Nop as u8, WqeOp::Nop as u8, 0, 0, 1]);
        let mut making = Making { chain, slots, reply, look, act, index, state };
        for slot in 0..slots {
            let to = Place::At(buffer, shape.reply_at(slot.into()));
            // One byte, unless a copy says which record.
            let from = Source::Pieces(vec![Place::At(values, 0).piece(1)]);
            making.push(reply, Wqe::new(Op::Write(from, to, Some(slot))).signaled());
            making.look(slot);
            making.act(slot);
        }
        making.starters(audited);
        if audited {
            making.signal_all();
        }
        Lookup { chain: making.chain, client: reply, index, values, buffer }
    }
}

impl Making {
    fn push(&mut self, queue: QueueId, wqe: Wqe) {
        self.chain.push(queue, wqe);
    }

    /// Where nothing matters.
    fn dump(&self) -> Place {
        Place::At(self.state, DUMP)
    }

    /// A WQE of a slot, by its number there.
    fn at(&self, queue: QueueId, slot: u32, at: u32) -> WqeId {
        let slot = slot % self.slots;
        let first = match queue == self.look {
            true => slot * LOOK_WQES,
            // Those before it that enable receives have some more.
            false => slot * ACT_WQES + slot.div_ceil(self.slots / 4) * RECEIVES_WQES,
        };
        WqeId { queue, at: first + at }
    }

    fn reply_of(&self, slot: u32) -> WqeId {
        WqeId { queue: self.reply, at: slot % self.slots }
    }

    fn scratch(&self, slot: u32, bucket: u32) -> Place {
        Place::At(self.state, SCRATCH + u64::from(slot) * SCRATCH_LEN + 8 * u64::from(bucket))
    }

    /// The copy of a bucket.
    fn copy(&self, slot: u32, bucket: u32) -> WqeId {
        self.at(self.act, slot, if bucket == 0 { COPY_1 } else { COPY_2 })
    }

    /// Both buckets are read, and their fingerprints compared.
    fn look(&mut self, slot: u32) {
        let (look, dump) = (self.look, self.dump());
        let mut entries = Vec::new();
        for bucket in [0, 1] {
            let copy = self.copy(slot, bucket);
            let [high, low] = parts::operand(copy);
            let into = vec![high, low, dump.piece(2), self.scratch(slot, bucket).piece(8)];
            self.push(look, Wqe::new(Op::Read(Place::Of(self.index), into)));
        }
        for bucket in [0, 1] {
            let copy = self.copy(slot, bucket);
            let words = (Word::Control(copy, Form::nop([0; 6])), Word::Control(copy, Form::of(WqeOp::Read)));
            let test = self.chain.next(look);
            entries.extend(parts::compared(test));
            let test = Op::CompareSwap(Place::In(copy, Field::Control, 0), words, dump.plus(8).piece(8));
            self.push(look, Wqe::new(test).fenced());
        }
        for bucket in [READ_1, READ_2] {
            let read = self.at(look, slot, bucket);
            entries.push(Place::In(read, Field::RemoteAddress, 0).piece(8));
        }
        self.chain.receive(self.reply, entries);
        let act = Until::Blocks(self.act, (slot + 1) * STEP);
        self.push(look, Wqe::new(Op::Enable(act)).fenced());
        self.push(look, Wqe::new(Op::Nop(LOOK_PADDING)));
        // The messages' completions have one more before the first.
        self.push(look, Wqe::new(Op::Wait(Done::Received(self.reply, slot + 2))));
        self.push(look, Wqe::new(Op::Enable(Until::Blocks(look, (slot + 2) * STEP))));
    }

    /// What was found goes into the reply, and the reply to the client. Then the chain puts itself right.
    fn act(&mut self, slot: u32) {
        let act = self.act;
        let reply = self.reply_of(slot);
        let record = || {
            let len = Place::In(reply, Field::Count(0), 1).piece(3);
            vec![len, Place::In(reply, Field::LocalAddress(0), 3).piece(5)]
        };
        for bucket in [1, 0] {
            let copy = Op::Read(self.scratch(slot, bucket), record());
            self.push(act, Wqe::new(copy).posted_as(Form::nop([0; 6])));
        }
        self.push(act, Wqe::new(Op::Enable(Until::Blocks(self.reply, slot + 1))).fenced());
        self.push(act, Wqe::new(self.upkeep(slot)).fenced());
        let add = Op::FetchAdd(
            Place::At(self.state, 0),
            Word::Is(parts::lanes(1, STEP)),
            Place::At(self.state, BEFORE).piece(8),
        );
        if !slot.is_multiple_of(self.slots / 4) {
            self.push(act, Wqe::new(add).fenced());
            self.push(act, Wqe::new(Op::Nop(ACT_PADDING)));
            return;
        }
        // The WAIT and the ENABLE half a ring away have been executed in this lap.
        let (half, dump) = (self.slots / 2, self.dump());
        let index = |at: u32, bytes| parts::index(self.at(act, slot + half, at), bytes);
        let into = index(REPLIED, 3).chain([dump.piece(5)]).chain(index(RECEIVES, 2)).collect();
        self.push(act, Wqe::new(Op::Read(Place::At(self.state, 0), into)));
        self.push(act, Wqe::new(add).fenced());
        self.push(act, Wqe::new(Op::Wait(Done::Index(self.reply, slot + half + 1))));
        let enable = Op::EnableReceives(self.reply, slot + half);
        self.push(act, Wqe::new(enable).fenced());
        self.push(act, Wqe::new(Op::Nop(ACT_PADDING_ENABLES)));
    }

    /// Brings the slot before this one to where it has to be in the next lap.
    fn upkeep(&self, slot: u32) -> Op {
        let before = slot + self.slots - 1;
        let (message, next) = (self.at(self.look, before, MESSAGE), self.at(self.look, before, NEXT));
        let (tested, copied) = (self.at(self.look, before, TESTED), self.at(self.act, before, COPIED));
        let opcode = |bucket| Place::In(self.copy(before, bucket), Field::Opcode, 0).piece(1);
        let ahead = self.reply_of(slot + self.slots / 4);
        let length = Place::In(ahead, Field::Count(0), 1).piece(3);
        let into = parts::index(message, 3)
            .chain([self.dump().piece(3)])
            .chain(parts::index(next, 2))
            .chain(parts::index(copied, 2))
            .chain([self.dump().piece(4)])
            .chain(parts::index(tested, 2))
            .chain([opcode(0), opcode(1), length]);
        Op::Read(Place::At(self.state, 0), into.collect())
    }

    /// What starts the rings, and makes the completions that they count from.
    fn starters(&mut self, audited: bool) {
        let starter = self.chain.queue("starter", SendOrder::Cross, Peer::Itself);
        self.chain.complete_with_receives(starter, self.reply);
        let receives = Wqe::new(Op::EnableReceives(self.reply, self.slots / 2));
        let waker = if audited {
            // This is the one completion before the first message; what comes after it completes elsewhere.
            self.push(starter, receives.signaled());
            self.chain.queue("waker", SendOrder::Cross, Peer::Itself)
        } else {
            self.push(starter, Wqe::new(Op::Nop(1)).signaled());
            self.push(starter, receives);
            starter
        };
        self.push(waker, Wqe::new(Op::Wait(Done::Received(self.reply, 1))));
        self.push(waker, Wqe::new(Op::Enable(Until::Blocks(self.look, STEP))));
        // Reply number r is completion r + S + 2.
        let counted = self.chain.queue("counted", SendOrder::Cross, Peer::Itself);
        self.chain.complete_with(counted, self.reply);
        for _ in 0..self.slots + 2 {
            self.push(counted, Wqe::new(Op::Nop(1)).signaled());
        }
    }

    /// Every WQE makes a completion. WAITs are for messages and for replies: those of the other rings, which
    /// have completion queues of their own, change no index.
    fn signal_all(&mut self) {
        let wqes = self.chain.queues.iter_mut().flat_map(|queue| &mut queue.wqes);
        wqes.for_each(|wqe| wqe.signaled = true);
    }
}

/// WQEs of a slot of `look`, by number.
const LOOK_WQES: u32 = 8;
const READ_1: u32 = 0;
const READ_2: u32 = 1;
const TESTED: u32 = 4;
const MESSAGE: u32 = 6;
const NEXT: u32 = 7;
/// The others take 9 blocks.
const LOOK_PADDING: u8 = STEP as u8 - 9;

/// WQEs of a slot of `act`, by number; the last two where receives are enabled, which takes some more.
const ACT_WQES: u32 = 6;
const RECEIVES_WQES: u32 = 3;
const COPY_2: u32 = 0;
const COPY_1: u32 = 1;
const COPIED: u32 = 2;
const REPLIED: u32 = 6;
const RECEIVES: u32 = 7;
const ACT_PADDING: u8 = STEP as u8 - 8;
const ACT_PADDING_ENABLES: u8 = STEP as u8 - 12;
