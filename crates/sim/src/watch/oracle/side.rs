//! One side of a connection: the requests it posts, and what must come of them.

use super::{Oracle, SHARED_BYTES, SOURCE_BYTES};
use crate::linear::Operation;
use crate::linear::model::WordCall;
use adverb_nic::{Completion, CompletionOp, Nic, QpId, SendData, SendFlags, SendOp, SendWr, Sge};
use adverb_wire::{Instant, Key};
use std::collections::VecDeque;

/// Requests that a side has outstanding at most.
pub const WANTED_MAX: usize = 8;
/// Bytes of the other side's memory that a side writes and reads.
pub const SLICE_BYTES: usize = 16 << 10;
/// Bytes of a side's own memory where answers land: a place for each outstanding request.
pub const LANDING_BYTES: usize = WANTED_MAX * PLACE_BYTES;
const PLACE_BYTES: usize = 4096;
/// Bytes that a side may copy into a WQE.
pub const INLINE_BYTES: usize = 64;
/// Receives that a side has posted.
pub const RECV_SLOTS: u32 = 4;
/// Bytes of each.
pub const RECV_BYTES: usize = 8192;

/// What must come of a request.
#[derive(Clone, PartialEq, Debug)]
pub enum Wanted {
    /// A completion.
    Done,
    /// These bytes at this place of the side's own memory.
    Bytes { at: usize, bytes: Vec<u8> },
    /// The original value of the shared counter, one of the shared register, at this place.
    Counter { at: usize, begun: u64 },
    /// See `Counter`.
    Register { at: usize, begun: u64, compare: u64, swap: u64 },
}

impl Wanted {
    /// Of an atomic, what was asked of which word, by a client, and when.
    pub fn pending(&self, client: u32) -> Option<Operation<WordCall, u64>> {
        let (object, call, begun) = match *self {
            Wanted::Counter { begun, .. } => (0, WordCall::Add(1), begun),
            Wanted::Register { begun, compare, swap, .. } => {
                (8, WordCall::CompareSwap { compare, swap }, begun)
            }
            Wanted::Done | Wanted::Bytes { .. } => return None,
        };
        Some(Operation { client, object, call, begun, ended: None })
    }
}

/// What takes a receive at the peer: a SEND, or a WRITE with immediate.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Message {
    /// Offset in the source.
    from: usize,
    len: usize,
    immediate: Option<u32>,
    /// A key of the receiver's that it invalidates.
    invalidates: Option<Key>,
    /// The bytes are in the slice, not in the receive's place.
    write: bool,
}

/// Bytes of a request, kept until it is posted.
enum Data {
    Gathered([Sge; 2]),
    Copied([u8; INLINE_BYTES], usize),
    Landing([Sge; 1]),
}

impl Data {
    fn as_posted(&self) -> SendData<'_> {
        match self {
            Data::Gathered(sges) => SendData::Sges(sges),
            Data::Copied(bytes, length) => SendData::Inline(&bytes[..*length]),
            Data::Landing(sges) => SendData::Sges(sges),
        }
    }
}

/// A request, and what must come of it.
struct Request {
    op: SendOp,
    data: Data,
    wanted: Wanted,
    fence: bool,
    length: usize,
}

/// A side.
pub struct Side {
    pub host: u32,
    pub peer: u32,
    pub qp: QpId,
    /// Where its slice is in the peer's memory, its landing place and its inbox in its own.
    pub slice: usize,
    pub landing: usize,
    pub inbox: usize,
    pub next_at: u64,
    pub gap_ps: u64,
    pub posted: u32,
    pub completed: u32,
    /// Outstanding requests, oldest first: their words, and what must come of them.
    pub wanted: VecDeque<(u64, Wanted)>,
    /// What takes a receive at the peer and has not yet, oldest first.
    sent: VecDeque<Message>,
    /// Receives that are not posted yet, and when they will be, in ps.
    pub owed: VecDeque<(u64, u64)>,
    /// READs and atomics outstanding.
    reads: u32,
    /// The last value of the shared register that this side saw.
    seen: u64,
    /// Messages received.
    received: u64,
    pub dead: bool,
    /// Its program was killed.
    pub killed: bool,
}

impl Side {
    #[allow(clippy::too_many_arguments, reason = "a plain record, filled in one place")]
    pub fn new(
        host: u32,
        peer: u32,
        qp: QpId,
        slice: usize,
        landing: usize,
        inbox: usize,
        next_at: u64,
        gap_ps: u64,
    ) -> Side {
        Side {
            host,
            peer,
            qp,
            slice,
            landing,
            inbox,
            next_at,
            gap_ps,
            posted: 0,
            completed: 0,
            wanted: VecDeque::new(),
            sent: VecDeque::new(),
            owed: VecDeque::new(),
            reads: 0,
            seen: 0,
            received: 0,
            dead: false,
            killed: false,
        }
    }

    /// Whether the peer has got every message of this side.
    pub(super) fn has_arrived(&self) -> bool {
        self.sent.is_empty()
    }
}

impl Oracle {
    /// Posts a side's next request and notes what must come of it. Returns its word, what
    /// it is, and its bytes.
    pub(super) fn post(&mut self, number: u32, now: u64, nic: &mut Nic) -> (u64, SendOp, usize) {
        let kind = self.rng.u32(0..12);
        let length = match self.rng.u32(0..4) {
            0 => self.rng.usize(0..=64),
            1 => self.rng.usize(0..=600),
            _ => self.rng.usize(0..=RECV_BYTES),
        };
        let (own, peer) =
            (self.sides[number as usize].host as usize, self.sides[number as usize].peer as usize);
        let from = self.rng.usize(0..=SOURCE_BYTES - length);
        let source = self.source(own, from, length);
        let solicited = self.rng.bool();
        let immediate = self.rng.u32(..);
        let request = match kind {
            0..=2 => self.write(number, from, length, source, None),
            3 => self.write(number, from, length, source, Some(immediate)),
            4..=6 => self.read(number, length),
            7..=9 => self.send(number, from, length, source, (kind == 9).then_some(immediate)),
            // The shared words are in host 0's memory: only its peers can reach them.
            _ if peer != 0 => self.write(number, from, length, source, None),
            10 => self.fetch_add(number, now),
            _ => self.compare_swap(number, now),
        };
        let Request { op, data, wanted, fence, length } = request;
        let side = &mut self.sides[number as usize];
        side.reads += u32::from(!matches!(wanted, Wanted::Done));
        let wr_id = u64::from(side.posted);
        side.wanted.push_back((wr_id, wanted));
        side.posted += 1;
        side.next_at = now + self.rng.u64(0..=side.gap_ps);
        let flags = SendFlags { signaled: true, fence, solicited };
        let wr = SendWr { wr_id, op, flags, data: data.as_posted(), ud: None, xrc_srqn: 0 };
        if let Err(error) = nic.post_send(Instant::from_ps(now), side.qp, &wr) {
            self.fail(format!("side {number}: request {wr_id} cannot be posted: {error:?}"));
        }
        (wr_id, op, length)
    }

    /// Bytes of a host's source: gathered from two places, which happen to follow each other, or copied into
    /// the WQE.
    fn source(&mut self, own: usize, from: usize, length: usize) -> Data {
        let cut = if self.rng.u32(0..3) == 0 { self.rng.usize(0..=length) } else { length };
        let room = &self.rooms[own];
        if length <= INLINE_BYTES && self.rng.bool() {
            let mut copied = [0; INLINE_BYTES];
            copied[..length].copy_from_slice(&room.shadow[from..from + length]);
            return Data::Copied(copied, length);
        }
        let key = room.mr.lkey;
        Data::Gathered([room.buffer.sge(from, cut, key), room.buffer.sge(from + cut, length - cut, key)])
    }

    /// Where the answer to a side's next request lands.
    fn landing(&self, number: u32) -> usize {
        let side = &self.sides[number as usize];
        side.landing + side.posted as usize % WANTED_MAX * PLACE_BYTES
    }

    fn write(
        &mut self,
        number: u32,
        from: usize,
        length: usize,
        data: Data,
        immediate: Option<u32>,
    ) -> Request {
        let side = &mut self.sides[number as usize];
        let (own, peer) = (side.host as usize, side.peer as usize);
        let at = side.slice + self.rng.usize(0..=SLICE_BYTES - length);
        let bytes = self.rooms[own].shadow[from..from + length].to_vec();
        self.rooms[peer].shadow[at..at + length].copy_from_slice(&bytes);
        let (addr, rkey) = (self.rooms[peer].buffer.addr() + at as u64, self.key_at_peer(number));
        let side = &mut self.sides[number as usize];
        if immediate.is_some() {
            side.sent.push_back(Message { from, len: length, immediate, invalidates: None, write: true });
        }
        let op = match immediate {
            Some(immediate) => SendOp::WriteImm(addr, rkey, immediate),
            None => SendOp::Write(addr, rkey),
        };
        Request { op, data, wanted: Wanted::Done, fence: side.reads > 0, length }
    }

    fn read(&mut self, number: u32, length: usize) -> Request {
        let side = &self.sides[number as usize];
        let (own, peer) = (side.host as usize, side.peer as usize);
        let length = length.min(PLACE_BYTES);
        let at = side.slice + self.rng.usize(0..=SLICE_BYTES - length);
        let bytes = self.rooms[peer].shadow[at..at + length].to_vec();
        let (addr, rkey) = (self.rooms[peer].buffer.addr() + at as u64, self.key_at_peer(number));
        let place = self.landing(number);
        let data = self.answer(own, place, length);
        let fence = self.rng.bool();
        Request {
            op: SendOp::Read(addr, rkey),
            data,
            wanted: Wanted::Bytes { at: place, bytes },
            fence,
            length,
        }
    }

    fn send(
        &mut self,
        number: u32,
        from: usize,
        length: usize,
        data: Data,
        immediate: Option<u32>,
    ) -> Request {
        let invalidates = if immediate.is_none() { self.invalidated(number) } else { None };
        let side = &mut self.sides[number as usize];
        side.sent.push_back(Message { from, len: length, immediate, invalidates, write: false });
        let op = match (immediate, invalidates) {
            (Some(immediate), _) => SendOp::SendImm(immediate),
            (None, Some(key)) => SendOp::SendInv(key),
            (None, None) => SendOp::Send,
        };
        // A READ's bytes may otherwise be fetched once more after it (IBTA 10.8.3.3).
        let fence = invalidates.is_some() && side.reads > 0;
        Request { op, data, wanted: Wanted::Done, fence, length }
    }

    fn fetch_add(&mut self, number: u32, now: u64) -> Request {
        let (side, at) = (&self.sides[number as usize], self.landing(number));
        let (addr, rkey) = self.shared(side.peer);
        let (op, fence) = (SendOp::FetchAdd { addr, rkey, add: 1 }, side.reads > 0);
        let data = self.answer(side.host as usize, at, 8);
        Request { op, data, wanted: Wanted::Counter { at, begun: now }, fence, length: 8 }
    }

    fn compare_swap(&mut self, number: u32, now: u64) -> Request {
        let (side, at) = (&self.sides[number as usize], self.landing(number));
        let (addr, rkey) = self.shared(side.peer);
        // A value that nobody else stores.
        let swap = u64::from(number) << 32 | u64::from(side.posted + 1);
        let (compare, fence) = (side.seen, side.reads > 0);
        let op = SendOp::CompareSwap { addr: addr + 8, rkey, compare, swap };
        let data = self.answer(side.host as usize, at, 8);
        Request { op, data, wanted: Wanted::Register { at, begun: now, compare, swap }, fence, length: 8 }
    }

    fn answer(&self, own: usize, place: usize, length: usize) -> Data {
        let room = &self.rooms[own];
        Data::Landing([room.buffer.sge(place, length, room.mr.lkey)])
    }

    /// Address and key of the shared words, in the memory of host 0, which is the peer.
    fn shared(&self, peer: u32) -> (u64, Key) {
        let room = &self.rooms[peer as usize];
        (room.buffer.addr() + SOURCE_BYTES as u64, room.mr.rkey)
    }

    /// A request completed.
    pub(super) fn on_done(&mut self, number: u32, now: u64, completion: &Completion) {
        let side = &mut self.sides[number as usize];
        if side.dead {
            return;
        }
        let Some((wr_id, wanted)) = side.wanted.pop_front() else {
            return self.fail(format!("side {number}: a completion ({}) too many", completion.wr_id));
        };
        if wr_id != completion.wr_id {
            return self
                .fail(format!("side {number}: completion {} came in place of {wr_id}", completion.wr_id));
        }
        side.completed += 1;
        side.reads -= u32::from(!matches!(wanted, Wanted::Done));
        let own = side.host as usize;
        self.window_done(number, wr_id);
        let operation = wanted.pending(number);
        match wanted {
            Wanted::Done => {}
            Wanted::Bytes { at, bytes } => {
                let mut got = vec![0; bytes.len()];
                self.rooms[own].buffer.read(at, &mut got);
                if got != bytes {
                    let first = got.iter().zip(&bytes).position(|(a, b)| a != b).unwrap_or(0);
                    self.fail(format!(
                        "side {number}: READ {wr_id} of {} bytes is wrong from byte {first}",
                        bytes.len()
                    ));
                }
                self.rooms[own].shadow[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Wanted::Counter { at, .. } => {
                let original = self.land_word(own, at);
                self.note(operation, now, original);
            }
            Wanted::Register { at, compare, swap, .. } => {
                let original = self.land_word(own, at);
                self.sides[number as usize].seen = if original == compare { swap } else { original };
                self.note(operation, now, original);
            }
        }
    }

    fn note(&mut self, operation: Option<Operation<WordCall, u64>>, now: u64, original: u64) {
        if let Some(operation) = operation {
            self.atomics.add(Operation { ended: Some((now, original)), ..operation });
        }
    }

    fn land_word(&mut self, own: usize, at: usize) -> u64 {
        let word = self.rooms[own].buffer.word(at);
        self.rooms[own].shadow[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        word
    }

    /// A message arrived at a side. True when its receive may be posted again.
    pub(super) fn on_message(&mut self, number: u32, completion: &Completion) -> bool {
        let sender = (number ^ 1) as usize;
        let Some(Message { from, len: length, immediate, invalidates, write }) =
            self.sides[sender].sent.pop_front()
        else {
            self.fail(format!("side {number}: a message that nobody sent"));
            return false;
        };
        let side = &mut self.sides[number as usize];
        let slot = side.received % u64::from(super::RECV_SLOTS);
        side.received += 1;
        let (own, inbox) = (side.host as usize, side.inbox);
        if completion.wr_id != slot || completion.byte_len as usize != length {
            let (id, len) = (completion.wr_id, completion.byte_len);
            self.fail(format!("side {number}: receive {id} of {len} bytes, not {slot} of {length}"));
            return false;
        }
        let op = if write { CompletionOp::RecvWriteImm } else { CompletionOp::Recv };
        let got = completion.has_immediate.then_some(completion.immediate);
        if completion.op != op || got != immediate {
            let found = completion.op;
            self.fail(format!(
                "side {number}: {found:?} with immediate {got:?}, not {op:?} with {immediate:?}"
            ));
        }
        let gone = completion.has_invalidate.then_some(Key(completion.immediate));
        if gone != invalidates {
            self.fail(format!("side {number}: a message invalidates {gone:?}, not {invalidates:?}"));
        }
        if invalidates.is_some() {
            self.window_invalidated(number);
        }
        if write {
            // Its bytes are in the slice; later WRITEs may have changed them since.
            return true;
        }
        let at = inbox + slot as usize * RECV_BYTES;
        let want = self.rooms[self.sides[sender].host as usize].shadow[from..from + length].to_vec();
        let mut got = vec![0; length];
        self.rooms[own].buffer.read(at, &mut got);
        if got != want {
            self.fail(format!("side {number}: a message of {length} bytes arrived with other content"));
        }
        self.rooms[own].shadow[at..at + length].copy_from_slice(&want);
        true
    }
}

const _: () = assert!(SHARED_BYTES >= 16, "a counter and a register");
