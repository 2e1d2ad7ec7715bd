//! Send work queue elements: 64-byte blocks in the mlx5 layout, built when posted, read when executed.
//!
//! A WQE is a row of 16-byte segments: control, then by operation remote address, atomic, datagram or
//! XRC, then data segments or one inline segment. It takes as many 64-byte blocks as its segments need
//! and may wrap at the ring's end. Fields are big-endian. Layout and opcodes are the public ones of
//! the mlx5 hardware, so that programs that write WQEs by hand (RedN) look here as they do there.
//!
//! Own additions, all in fields that mlx5 reserves: the datagram segment carries the driver's path;
//! a window bind is opcode UMR with one bind segment of ours instead of mlx5's key contexts.
// Long: one layout, with what writes it and what reads it.

use crate::error::Error;
use crate::ids::{MwId, PathId};
use crate::limits;
use crate::memory::{Access, Gather, MwBind, QueueMemory};
use crate::slab::Id as _;
use crate::work::{SendData, SendFlags, SendOp, SendWr, Sge, Status, UdAddress};
use adverb_wire::{Gid, Key, QpNumber};

pub use super::calc::{Calc, CalcOp, ENTRY as CALC_ENTRY};
pub use super::op::WqeOp;

/// Bytes of one block.
pub const BLOCK: usize = 64;
/// Bytes of one segment.
pub const SEGMENT: usize = 16;
/// Segments that the largest WQE may have (the 6-bit `ds` field).
const MAX_SEGMENTS: usize = 63;
/// Top bit of a data segment's byte count: inline bytes follow. Alone, with no inline bytes, it is the count
/// of the longest entry, 2^31: no bytes at all are written as no segment.
const INLINE: u32 = 1 << 31;
const _: () = assert!(limits::MAX_MESSAGE == INLINE as u64);
/// Operation modifier of a SEND or WRITE that sends the result of a [`Calc`].
pub const OPMOD_CALC: u8 = 0xff;
/// Operation modifier of a masked atomic on 8 bytes: extended (8), and the binary logarithm of its size less
/// 2.
pub const OPMOD_MASKED: u8 = 0x09;
/// Low byte of the control segment's flags: generate a solicited event.
const SOLICITED: u8 = 1 << 1;
/// Write a completion.
const CQ_UPDATE: u8 = 2 << 2;
/// Wait for earlier READs and atomics.
const FENCE: u8 = 4 << 5;

/// Which transport segment follows the control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    Connected,
    Datagram,
    Xrc,
}

/// What is wrong with a WQE in memory; ends in an error completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WqeFault {
    UnknownOpcode,
    UnknownModifier,
    SegmentCount,
    TooLong,
    /// Found by checks that a NIC makes only if it is told to.
    Index,
    Number,
}

impl WqeFault {
    /// Status of its completion.
    pub const fn status(self) -> Status {
        match self {
            WqeFault::TooLong => Status::LocalLength,
            _ => Status::LocalQpOperation,
        }
    }

    pub const fn rule(self) -> &'static str {
        match self {
            WqeFault::UnknownOpcode => "the WQE's opcode is not one that this NIC executes",
            WqeFault::UnknownModifier => "the WQE's operation modifier is none that its opcode has here",
            WqeFault::Index => "the index in the WQE is not that of its place (wqe-checks=on)",
            WqeFault::Number => "the number in the WQE is not that of its queue pair (wqe-checks=on)",
            WqeFault::SegmentCount => "the WQE's segment count does not fit its operation or its queue",
            WqeFault::TooLong => "the message is longer than 2^31 bytes (IBTA 9.7.7)",
        }
    }
}

/// What an atomic computes with, beside its [`Wqe`].
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Operands {
    pub swap_add: u64,
    /// Of a masked addition, the bits that no carry leaves.
    pub compare: u64,
}

impl Operands {
    /// Those of all that is no atomic.
    pub const NONE: Operands = Operands { swap_add: 0, compare: 0 };
}

/// A decoded WQE: the fixed part. Its data segments stay in memory and are read as they are needed. Packed,
/// because each queue pair that sends keeps one, which with its gather then takes 48 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct Wqe {
    pub raddr: u64,
    pub rkey: Key,
    /// Immediate data, key to invalidate, or remote XRC SRQ number's companion.
    pub imm: u32,
    /// Payload bytes.
    pub len: u32,
    pub xrc_srqn: u32,
    /// Block index (free-running) where the WQE starts.
    pub block: u32,
    pub op: WqeOp,
    /// Index of the first data segment.
    pub data_segment: u8,
    /// Segments in all.
    pub segments: u8,
    pub inline: bool,
    pub signaled: bool,
    pub solicited: bool,
    pub fence: bool,
    /// Its data is computed with, and the result is sent ([`Calc`]).
    pub calc: bool,
}

const _: () = assert!(core::mem::size_of::<Wqe>() == 36);

impl Default for Wqe {
    fn default() -> Self {
        Wqe::NOP
    }
}

impl Wqe {
    /// Nothing.
    pub const NOP: Wqe = Wqe {
        raddr: 0,
        rkey: Key(0),
        imm: 0,
        len: 0,
        xrc_srqn: 0,
        block: 0,
        op: WqeOp::Nop,
        data_segment: 1,
        segments: 1,
        inline: false,
        signaled: false,
        solicited: false,
        fence: false,
        calc: false,
    };

    /// Number of the queue that a WAIT or ENABLE acts on: 24 bits.
    pub fn queue_number(&self) -> u32 {
        self.raddr as u32 & 0xff_ffff
    }

    /// Index there: of the completion waited for, or the end of what is enabled.
    pub fn queue_index(&self) -> u32 {
        (self.raddr >> 32) as u32
    }

    /// Blocks that the WQE takes.
    #[inline]
    pub fn blocks(&self) -> u32 {
        (self.segments as u32).div_ceil(4)
    }
}

/// What the first segment of a WQE says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// None of one that this NIC does not know.
    pub op: Option<WqeOp>,
    pub modifier: u8,
    pub segments: u8,
    pub signaled: bool,
}

impl Control {
    /// Of nothing.
    pub const NONE: Control = Control { op: None, modifier: 0, segments: 0, signaled: false };

    /// Blocks that the WQE says it takes.
    #[inline]
    pub fn blocks(self) -> u32 {
        u32::from(self.segments).div_ceil(4)
    }
}

/// Where a gather stands: which data segment, and how far in it.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct GatherCursor {
    /// Message offset that the fields below stand for.
    pub message_offset: u32,
    pub segment: u8,
    pub offset: u32,
}

/// The ring that holds the WQEs.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: QueueMemory,
    mask: u32,
}

impl Ring {
    /// A ring of `blocks` (a power of two) 64-byte blocks, without memory yet.
    pub fn new(blocks: u32) -> Self {
        debug_assert!(blocks.is_power_of_two());
        Ring { memory: QueueMemory::EMPTY, mask: blocks - 1 }
    }

    /// Takes its memory. `TableFull` when the host has no more.
    pub fn allocate(&mut self) -> Result<(), Error> {
        self.memory = QueueMemory::new(self.blocks() as usize * BLOCK)?;
        Ok(())
    }

    pub fn blocks(&self) -> u32 {
        self.mask + 1
    }

    /// Blocks that it has memory for: all, or none.
    #[inline]
    pub fn allocated(&self) -> u32 {
        (self.memory.len() / BLOCK) as u32
    }

    pub fn memory(&self) -> &QueueMemory {
        &self.memory
    }

    /// Asks for a block.
    #[inline]
    pub fn prefetch(&self, block: u32) {
        self.memory.prefetch(self.offset(block));
    }

    #[inline]
    fn offset(&self, block: u32) -> usize {
        (block & self.mask) as usize * BLOCK
    }

    #[inline]
    fn segment(&self, wqe_block: u32, segment: u8) -> [u8; SEGMENT] {
        let base = self.offset(wqe_block.wrapping_add(segment as u32 / 4));
        self.memory.read_segment(base + (segment as usize % 4) * SEGMENT)
    }

    /// The first segment of the WQE at `block`, as far as it says what to do.
    #[inline]
    pub fn control(&self, block: u32) -> Control {
        let segment = self.segment(block, 0);
        Control {
            op: WqeOp::from_byte(segment[3]),
            modifier: segment[0],
            segments: segment[7] & 0x3f,
            signaled: segment[11] & CQ_UPDATE != 0,
        }
    }

    /// The second segment of a WAIT or ENABLE: the number of a queue, and an index there.
    #[inline]
    pub fn queue_of(&self, block: u32) -> (u32, u32) {
        let segment = self.segment(block, 1);
        (be32(&segment[12..]) & 0xff_ffff, be32(&segment[8..]))
    }

    /// The remote address of a request, and its key.
    #[inline]
    pub fn target(&self, block: u32) -> (u64, Key) {
        let segment = self.segment(block, 1);
        (be64(&segment), Key(be32(&segment[8..])))
    }

    /// The two halves of a segment: what an atomic swaps or adds and compares with, or its masks.
    #[inline]
    pub fn longs(&self, block: u32, segment: u8) -> (u64, u64) {
        let segment = self.segment(block, segment);
        (be64(&segment), be64(&segment[8..]))
    }

    /// A data segment of the WQE at `block`, which may be inline data.
    #[inline]
    pub fn data(&self, block: u32, segment: u8) -> Sge {
        let segment = self.segment(block, segment);
        Sge { len: be32(&segment), lkey: Key(be32(&segment[4..])), addr: be64(&segment[8..]) }
    }

    /// Reads the fixed part of the WQE at `block`. `available` is how many blocks the doorbell covers.
    pub fn decode(&self, block: u32, available: u32, layout: Layout) -> Result<Wqe, WqeFault> {
        self.decode_here(block, available, layout)
    }

    /// [`Ring::decode`] for the way of most WQEs: what it reads stays in registers there. In memory it would
    /// be written in pieces and read back as a whole, for which the processor waits.
    #[inline(always)]
    pub fn decode_here(&self, block: u32, available: u32, layout: Layout) -> Result<Wqe, WqeFault> {
        let ctrl = self.segment(block, 0);
        let op = WqeOp::from_byte(ctrl[3]).ok_or(WqeFault::UnknownOpcode)?;
        let segments = ctrl[7] & 0x3f;
        let flags = ctrl[11];
        let mut wqe = Wqe {
            raddr: 0,
            rkey: Key(0),
            imm: be32(&ctrl[12..]),
            len: 0,
            xrc_srqn: 0,
            block,
            op,
            data_segment: 1,
            segments,
            inline: false,
            signaled: flags & CQ_UPDATE != 0,
            solicited: flags & SOLICITED != 0,
            fence: flags & FENCE != 0,
            calc: false,
        };
        if segments == 0 || wqe.blocks() > available {
            return Err(WqeFault::SegmentCount);
        }
        if op.is_local() {
            if op.acts_on_queues() {
                wqe.raddr = self.decode_queue(block, segments, op, ctrl[0])?;
            }
            return Ok(wqe);
        }
        match layout {
            Layout::Connected => {}
            Layout::Datagram => wqe.data_segment += 3,
            Layout::Xrc => {
                wqe.xrc_srqn = be32(&self.segment(block, 1)) & 0xff_ffff;
                wqe.data_segment += 1;
            }
        }
        if op.has_remote_address() {
            let seg = self.segment(block, wqe.data_segment);
            wqe.raddr = be64(&seg);
            wqe.rkey = Key(be32(&seg[8..]));
            wqe.data_segment += 1;
        }
        if op.is_atomic() {
            wqe.data_segment += atomic_segments(op, ctrl[0])?;
        } else if ctrl[0] != 0 && op.is_message() {
            wqe.data_segment += Calc::segments(ctrl[0])?;
            wqe.calc = true;
        }
        if wqe.data_segment > segments {
            return Err(WqeFault::SegmentCount);
        }
        if wqe.data_segment + 1 == segments {
            // Most have one entry.
            let count = be32(&self.segment(block, wqe.data_segment));
            if count <= INLINE {
                wqe.len = count;
                return Ok(wqe);
            }
        }
        (wqe.len, wqe.inline) = self.sum_data(block, wqe.data_segment, segments)?;
        Ok(wqe)
    }

    /// The segment of a WAIT or ENABLE: 8 bytes that do not matter, index, number.
    #[cold]
    fn decode_queue(&self, block: u32, segments: u8, op: WqeOp, modifier: u8) -> Result<u64, WqeFault> {
        // Of WAITs for memory or for a time (1, 2) this NIC has none.
        if modifier != 0 && op == WqeOp::Wait {
            return Err(WqeFault::UnknownModifier);
        }
        if segments < 2 {
            return Err(WqeFault::SegmentCount);
        }
        Ok(be64(&self.segment(block, 1)[8..]))
    }

    /// Copies so many blocks from `block` on out of another ring of the same size, each word as it is at one
    /// moment.
    #[inline]
    pub fn copy_from(&self, other: &Ring, block: u32, blocks: u32) {
        for at in 0..blocks {
            self.memory.copy_block(&other.memory, self.offset(block.wrapping_add(at)));
        }
    }

    /// Writes a WQE that a program has built at `block`, with that index in its control segment.
    pub fn write_built(&self, block: u32, wqe: &[u8]) {
        for (at, segment) in wqe.as_chunks::<SEGMENT>().0.iter().enumerate() {
            let mut segment = *segment;
            if at == 0 {
                segment[1..3].copy_from_slice(&(block as u16).to_be_bytes());
            }
            let base = self.offset(block.wrapping_add(at as u32 / 4));
            self.memory.write_segment(base + (at % 4) * SEGMENT, segment);
        }
    }

    /// Operation byte of the WQE at `block`, and the blocks that it says it takes, at least one.
    #[inline]
    pub fn peek(&self, block: u32) -> (u8, u32) {
        let ctrl = self.segment(block, 0);
        (ctrl[3], u32::from(ctrl[7] & 0x3f).div_ceil(4).max(1))
    }

    /// Bytes of a WQE's data segments, and whether they stand in the WQE.
    fn sum_data(&self, block: u32, first: u8, segments: u8) -> Result<(u32, bool), WqeFault> {
        let mut total = 0u64;
        for segment in first..segments {
            let count = be32(&self.segment(block, segment));
            if count > INLINE {
                let len = count & !INLINE;
                let room = (segments - segment) as u32 * SEGMENT as u32 - 4;
                if segment != first || len > room {
                    return Err(WqeFault::SegmentCount);
                }
                return Ok((len, true));
            }
            total += count as u64;
        }
        if total > limits::MAX_MESSAGE {
            return Err(WqeFault::TooLong);
        }
        Ok((total as u32, false))
    }

    /// What an atomic computes with: the segment before its data, or before its masks. Read together with
    /// [`Ring::decode`].
    #[cold]
    pub fn operands(&self, wqe: &Wqe) -> Operands {
        let masks = (wqe.op == WqeOp::MaskedCompareSwap) as u8;
        let seg = self.segment(wqe.block, wqe.data_segment - 1 - masks);
        Operands { swap_add: be64(&seg), compare: be64(&seg[8..]) }
    }

    /// Data segment number `index` of a WQE that has no inline data.
    #[inline]
    pub fn sge(&self, wqe: &Wqe, segment: u8) -> Sge {
        self.data(wqe.block, segment)
    }

    /// Adds the masks of a masked compare and swap to the gather: the segment before its data.
    #[cold]
    pub fn gather_masks(&self, wqe: &Wqe, out: &mut Gather) {
        let at = wqe.data_segment - 1;
        let base = self.offset(wqe.block.wrapping_add(u32::from(at) / 4));
        out.push(self.memory.span(base + (usize::from(at) % 4) * SEGMENT, SEGMENT));
    }

    /// What a WQE computes before it is sent: the two segments before its data.
    #[cold]
    pub fn calc(&self, wqe: &Wqe) -> Option<Calc> {
        let first = wqe.data_segment - 2;
        Calc::read(&self.segment(wqe.block, first), &self.segment(wqe.block, first + 1))
    }

    /// Replaces what a WQE computes, and its data, by the result, which is inline from then on. False when
    /// that takes more segments than there are.
    #[cold]
    pub fn put_result(&self, wqe: &Wqe, result: &[u8]) -> bool {
        let first = wqe.data_segment - 2;
        if 4 + result.len() > usize::from(wqe.segments - first) * SEGMENT {
            return false;
        }
        let mut build = Builder { ring: self, block: wqe.block, segment: first.into() };
        build.inline(result);
        let mut control = self.segment(wqe.block, 0);
        control[0] = 0;
        self.memory.write_segment(self.offset(wqe.block), control);
        true
    }

    /// Whether index and number in a control segment are those of its place and of its queue pair, as stock
    /// firmware demands.
    #[cold]
    pub fn check_control(&self, block: u32, qpn: QpNumber) -> Result<(), WqeFault> {
        let control = self.segment(block, 0);
        if u16::from_be_bytes([control[1], control[2]]) != block as u16 {
            return Err(WqeFault::Index);
        }
        if be32(&control[4..]) >> 8 != qpn.get() {
            return Err(WqeFault::Number);
        }
        Ok(())
    }

    /// Adds `len` inline bytes from `offset` on to the gather.
    pub fn gather_inline(&self, wqe: &Wqe, offset: u32, len: u32, out: &mut Gather) {
        let start = self.offset(wqe.block) + wqe.data_segment as usize * SEGMENT + 4 + offset as usize;
        let size = self.memory.len();
        let start = start % size;
        let first = (len as usize).min(size - start);
        out.push(self.memory.span(start, first));
        if first < len as usize {
            out.push(self.memory.span(0, len as usize - first));
        }
    }

    /// The destination in a datagram WQE.
    pub fn datagram(&self, wqe: &Wqe) -> UdAddress {
        let a = self.segment(wqe.block, 1);
        let b = self.segment(wqe.block, 2);
        let c = self.segment(wqe.block, 3);
        UdAddress {
            qkey: be32(&a),
            qpn: QpNumber::new(be32(&a[8..])),
            path: PathId(u16::from_be_bytes([b[0], b[1]])),
            traffic_class: b[10],
            hop_limit: b[11],
            dgid: Gid(c),
        }
    }

    /// The bind segments of a [`WqeOp::BindMw`].
    pub fn bind(&self, wqe: &Wqe) -> MwBind {
        let a = self.segment(wqe.block, 1);
        let b = self.segment(wqe.block, 2);
        let c = self.segment(wqe.block, 3);
        MwBind {
            mw: MwId::new(be32(&a), be32(&a[4..])),
            rkey: Key(be32(&a[8..])),
            lkey: Key(be32(&a[12..])),
            addr: be64(&b),
            len: be64(&b[8..]),
            access: Access::from_bits_retain(be32(&c)),
        }
    }

    /// Writes a work request at `block`. The caller has checked its size with [`segments_needed`]. All of it
    /// stands where it is called from, because every post comes through here.
    #[inline(always)]
    pub fn encode(&self, block: u32, qpn: QpNumber, wr: &SendWr<'_>, signaled: bool, layout: Layout) {
        let mut build = Builder { ring: self, block, segment: 1 };
        if !is_local(&wr.op) {
            match (layout, &wr.ud) {
                (Layout::Datagram, Some(ud)) => build.datagram(ud),
                (Layout::Xrc, _) => build.words([wr.xrc_srqn, 0, 0, 0]),
                _ => {}
            }
        }
        build.operation(&wr.op);
        if !is_local(&wr.op) {
            build.data(&wr.data);
        }
        build.control(qpn, wr, signaled);
    }
}

/// Segments of what an atomic computes with.
#[cold]
fn atomic_segments(op: WqeOp, modifier: u8) -> Result<u8, WqeFault> {
    match op {
        WqeOp::CompareSwap | WqeOp::FetchAdd => Ok(1),
        _ if modifier != OPMOD_MASKED => Err(WqeFault::UnknownModifier),
        WqeOp::MaskedCompareSwap => Ok(2),
        _ => Ok(1),
    }
}

/// Opcode and modifier of what programs of chains post; and no immediate.
#[cold]
fn rare_code(op: &SendOp) -> (WqeOp, u8, u32) {
    let (op, modifier) = match op {
        SendOp::MaskedCompareSwap { .. } => (WqeOp::MaskedCompareSwap, OPMOD_MASKED),
        SendOp::MaskedFetchAdd { .. } => (WqeOp::MaskedFetchAdd, OPMOD_MASKED),
        SendOp::Wait { .. } => (WqeOp::Wait, 0),
        SendOp::SendEnable { .. } => (WqeOp::SendEnable, 0),
        SendOp::RecvEnable { .. } => (WqeOp::RecvEnable, 0),
        SendOp::SendCalc(_) => (WqeOp::Send, OPMOD_CALC),
        SendOp::WriteCalc(..) => (WqeOp::Write, OPMOD_CALC),
        _ => (WqeOp::Nop, 0),
    };
    (op, modifier, 0)
}

fn is_local(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::BindMw { .. }
            | SendOp::LocalInv(_)
            | SendOp::Nop
            | SendOp::Wait { .. }
            | SendOp::SendEnable { .. }
            | SendOp::RecvEnable { .. }
    )
}

/// Whether the bytes of all entries of a list are no more than a message may have.
#[inline]
pub(crate) fn is_message(list: &[Sge]) -> bool {
    list.iter().try_fold(limits::MAX_MESSAGE, |room, sge| room.checked_sub(sge.len.into())).is_some()
}

/// Blocks of a WQE that a program has built: as many segments as its control segment says. A datagram's
/// destination is in the driver's own words, which programs do not have.
pub(crate) fn blocks_of_built(wqe: &[u8], layout: Layout) -> Result<u32, Error> {
    if layout == Layout::Datagram {
        return Err(Error::Unsupported("a built work queue element on a datagram queue pair"));
    }
    let (segments, rest) = wqe.as_chunks::<SEGMENT>();
    let fits = rest.is_empty() && (1..=MAX_SEGMENTS).contains(&segments.len());
    if !fits || segments[0][7] & 0x3f != segments.len() as u8 {
        return Err(Error::Invalid("work queue element: its length and its segment count do not agree"));
    }
    Ok(segments.len().div_ceil(4) as u32)
}

/// Segments that a work request of this shape takes.
pub(crate) fn segments_needed(wr: &SendWr<'_>, layout: Layout) -> usize {
    let op = match wr.op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::Nop | SendOp::LocalInv(_) => 0,
        SendOp::Write(..) | SendOp::WriteImm(..) | SendOp::Read(..) => 1,
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::MaskedFetchAdd { .. } => 2,
        SendOp::MaskedCompareSwap { .. } => 3,
        SendOp::Wait { .. } | SendOp::SendEnable { .. } | SendOp::RecvEnable { .. } => 1,
        SendOp::SendCalc(_) => 2,
        SendOp::WriteCalc(..) => 3,
        SendOp::BindMw { .. } => 3,
    };
    if is_local(&wr.op) {
        return 1 + op;
    }
    let destination = match layout {
        Layout::Connected => 0,
        Layout::Datagram => 3,
        Layout::Xrc => 1,
    };
    let data = match wr.data {
        SendData::Sges(list) => list.len(),
        SendData::Inline([]) => 0,
        SendData::Inline(bytes) => (4 + bytes.len()).div_ceil(SEGMENT),
    };
    1 + destination + op + data
}

/// Blocks that the largest work request of a queue with these sizes takes.
pub(crate) fn blocks_per_wr(max_sge: u32, max_inline: u32, layout: Layout) -> u32 {
    // Control, destination, and what an operation adds: a remote address before the data, or for an
    // atomic (one piece of data) a remote address and its operands; a bind takes 4 in all.
    let (plain, atomic) = match layout {
        Layout::Connected => (2, 4),
        Layout::Datagram => (4, 0),
        Layout::Xrc => (3, 5),
    };
    let data = max_sge.max(if max_inline > 0 { (4 + max_inline).div_ceil(SEGMENT as u32) } else { 0 });
    (plain + data).max(atomic).max(4).div_ceil(4)
}

/// Writes a WQE segment by segment; the control segment, which says how many there are, comes last.
struct Builder<'a> {
    ring: &'a Ring,
    block: u32,
    segment: u32,
}

impl Builder<'_> {
    #[inline]
    fn put(&mut self, segment: [u8; SEGMENT]) {
        let base = self.ring.offset(self.block.wrapping_add(self.segment / 4));
        self.ring.memory.write_segment(base + (self.segment % 4) as usize * SEGMENT, segment);
        self.segment += 1;
    }

    #[inline]
    fn words(&mut self, words: [u32; 4]) {
        self.put(segment_of(words));
    }

    #[inline]
    fn longs(&mut self, first: u64, second: u64) {
        self.words([(first >> 32) as u32, first as u32, (second >> 32) as u32, second as u32]);
    }

    #[inline(always)]
    fn control(self, qpn: QpNumber, wr: &SendWr<'_>, signaled: bool) {
        let (op, modifier, imm) = match wr.op {
            SendOp::Send => (WqeOp::Send, 0, 0),
            SendOp::SendImm(imm) => (WqeOp::SendImm, 0, imm),
            SendOp::SendInv(key) => (WqeOp::SendInv, 0, key.0),
            SendOp::Write(..) => (WqeOp::Write, 0, 0),
            SendOp::WriteImm(_, _, imm) => (WqeOp::WriteImm, 0, imm),
            SendOp::Read(..) => (WqeOp::Read, 0, 0),
            SendOp::CompareSwap { .. } => (WqeOp::CompareSwap, 0, 0),
            SendOp::FetchAdd { .. } => (WqeOp::FetchAdd, 0, 0),
            SendOp::BindMw { .. } => (WqeOp::BindMw, 0, 0),
            SendOp::LocalInv(key) => (WqeOp::LocalInv, 0, key.0),
            SendOp::Nop => (WqeOp::Nop, 0, 0),
            ref rare => rare_code(rare),
        };
        debug_assert!(self.segment as usize <= MAX_SEGMENTS);
        let SendFlags { solicited, fence, .. } = wr.flags;
        let flags = (signaled as u8 * CQ_UPDATE) | (solicited as u8 * SOLICITED) | (fence as u8 * FENCE);
        let first = (modifier as u32) << 24 | (self.block & 0xffff) << 8 | op as u32;
        let segment = segment_of([first, qpn.get() << 8 | self.segment, flags as u32, imm]);
        self.ring.memory.write_segment(self.ring.offset(self.block), segment);
    }

    fn datagram(&mut self, ud: &UdAddress) {
        self.words([ud.qkey, 0, ud.qpn.get(), 0]);
        let marks = (ud.traffic_class as u32) << 8 | ud.hop_limit as u32;
        self.words([(ud.path.0 as u32) << 16, 0, marks, 0]);
        self.put(ud.dgid.0);
    }

    #[inline(always)]
    fn operation(&mut self, op: &SendOp) {
        match *op {
            SendOp::Write(addr, rkey) | SendOp::WriteImm(addr, rkey, _) | SendOp::Read(addr, rkey) => {
                self.longs(addr, (rkey.0 as u64) << 32);
            }
            SendOp::CompareSwap { addr, rkey, compare, swap } => {
                self.longs(addr, (rkey.0 as u64) << 32);
                self.longs(swap, compare);
            }
            SendOp::FetchAdd { addr, rkey, add } => {
                self.longs(addr, (rkey.0 as u64) << 32);
                self.longs(add, 0);
            }
            SendOp::BindMw { mw, rkey, lkey, addr, len, access } => {
                self.words([mw.index, mw.generation, rkey.0, lkey.0]);
                self.longs(addr, len);
                self.words([access.bits(), 0, 0, 0]);
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) | SendOp::LocalInv(_) | SendOp::Nop => {}
            ref rare => self.rare_operation(rare),
        }
    }

    /// What programs of chains post.
    #[cold]
    fn rare_operation(&mut self, op: &SendOp) {
        match *op {
            SendOp::MaskedCompareSwap { addr, rkey, compare, swap, compare_mask, swap_mask } => {
                self.longs(addr, (rkey.0 as u64) << 32);
                self.longs(swap, compare);
                self.longs(swap_mask, compare_mask);
            }
            SendOp::MaskedFetchAdd { addr, rkey, add, boundary } => {
                self.longs(addr, (rkey.0 as u64) << 32);
                self.longs(add, boundary);
            }
            SendOp::Wait { cq, index } => self.words([0, 0, index, cq]),
            SendOp::SendEnable { qp, index } | SendOp::RecvEnable { qp, index } => {
                self.words([0, 0, index, qp.get()]);
            }
            SendOp::SendCalc(calc) => calc.write(|words| self.words(words)),
            SendOp::WriteCalc(addr, rkey, calc) => {
                self.longs(addr, (rkey.0 as u64) << 32);
                calc.write(|words| self.words(words));
            }
            _ => {}
        }
    }

    #[inline(always)]
    fn data(&mut self, data: &SendData<'_>) {
        match *data {
            SendData::Sges(list) => {
                for sge in list {
                    debug_assert!(sge.len <= INLINE, "checked when it was posted");
                    self.words([sge.len, sge.lkey.0, (sge.addr >> 32) as u32, sge.addr as u32]);
                }
            }
            SendData::Inline(bytes) => self.inline(bytes),
        }
    }

    /// The first segment holds the length and 12 bytes, the others 16 each.
    fn inline(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (head, rest) = bytes.split_at(bytes.len().min(SEGMENT - 4));
        let mut segment = [0u8; SEGMENT];
        segment[..4].copy_from_slice(&(INLINE | bytes.len() as u32).to_be_bytes());
        segment[4..4 + head.len()].copy_from_slice(head);
        self.put(segment);
        for piece in rest.chunks(SEGMENT) {
            let mut segment = [0u8; SEGMENT];
            segment[..piece.len()].copy_from_slice(piece);
            self.put(segment);
        }
    }
}

/// Four big-endian words.
#[inline]
fn segment_of(words: [u32; 4]) -> [u8; SEGMENT] {
    let mut segment = [0u8; SEGMENT];
    for (bytes, word) in segment.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_be_bytes();
    }
    segment
}

#[inline]
fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[inline]
fn be64(bytes: &[u8]) -> u64 {
    (be32(bytes) as u64) << 32 | be32(&bytes[4..]) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(blocks: u32) -> Ring {
        let mut ring = Ring::new(blocks);
        ring.allocate().unwrap();
        ring
    }

    fn wr<'a>(op: SendOp, data: SendData<'a>) -> SendWr<'a> {
        SendWr { wr_id: 0, op, flags: SendFlags::default(), data, ud: None, xrc_srqn: 0 }
    }

    #[test]
    fn what_is_posted_is_what_is_read() {
        let ring = ring(4);
        let sges = [Sge { addr: 0x1000, len: 5, lkey: Key(7) }, Sge { addr: 0x2000, len: 9, lkey: Key(8) }];
        // Starts in the last block, so that the third SGE's segment wraps.
        let three = [sges[0], sges[1], Sge { addr: 0x3000, len: 1, lkey: Key(9) }];
        let write = wr(SendOp::WriteImm(0xabcd, Key(0x99), 0x1234), SendData::Sges(&three));
        ring.encode(3, QpNumber::new(0x11), &write, true, Layout::Connected);
        let wqe = ring.decode(3, 2, Layout::Connected).unwrap();
        assert_eq!((wqe.op, wqe.raddr, wqe.rkey, wqe.imm), (WqeOp::WriteImm, 0xabcd, Key(0x99), 0x1234));
        assert_eq!((wqe.len, wqe.blocks(), wqe.signaled, wqe.inline), (15, 2, true, false));
        assert_eq!(ring.sge(&wqe, wqe.data_segment + 2), three[2]);
        assert_eq!(ring.decode(3, 1, Layout::Connected).unwrap_err(), WqeFault::SegmentCount);
    }

    #[test]
    fn inline_bytes_wrap_with_the_ring() {
        let ring = ring(4);
        let bytes: Vec<u8> = (0..100).collect();
        ring.encode(
            3,
            QpNumber::new(1),
            &wr(SendOp::Send, SendData::Inline(&bytes)),
            false,
            Layout::Connected,
        );
        let wqe = ring.decode(3, 3, Layout::Connected).unwrap();
        assert!(wqe.inline && wqe.len == 100);
        let mut gather = Gather::default();
        ring.gather_inline(&wqe, 10, 80, &mut gather);
        let out: Vec<u8> = gather.spans().iter().flat_map(read).collect();
        assert_eq!(out, bytes[10..90]);
    }

    fn read(span: &crate::memory::Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len()];
        crate::memory::dma::read_bytes(*span, &mut bytes);
        bytes
    }

    #[test]
    fn a_garbage_ring_never_panics() {
        let mut rng = fastrand::Rng::with_seed(7);
        let ring = ring(16);
        for _ in 0..200_000 {
            let block = rng.u32(..);
            let mut bytes = [0u8; BLOCK];
            rng.fill(&mut bytes);
            ring.memory.write(ring.offset(block), &bytes);
            for layout in [Layout::Connected, Layout::Datagram, Layout::Xrc] {
                if let Ok(wqe) = ring.decode(block, rng.u32(0..=16), layout)
                    && wqe.inline
                {
                    let mut gather = Gather::default();
                    ring.gather_inline(&wqe, 0, wqe.len, &mut gather);
                    assert_eq!(gather.len(), wqe.len as usize);
                }
            }
        }
    }

    #[test]
    fn queue_sizes() {
        assert_eq!(blocks_per_wr(1, 0, Layout::Connected), 1);
        assert_eq!(blocks_per_wr(2, 28, Layout::Connected), 1);
        assert_eq!(blocks_per_wr(1, 220, Layout::Connected), 4);
        assert_eq!(blocks_per_wr(1, 0, Layout::Datagram), 2);
        assert!(
            blocks_per_wr(limits::MAX_SGE, limits::MAX_INLINE, Layout::Datagram) <= limits::MAX_WQE_BLOCKS
        );
    }
}
