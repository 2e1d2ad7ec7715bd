//! The assembler: WQEs on queues, whose operands may be fields of other WQEs.
//!
//! A [`Chain`] names queues, regions and WQEs before they exist. What stands in an operand is a [`Place`]: a
//! byte of a region, or of a field of a WQE. What stands in a WAIT or an ENABLE is a WQE too: the one whose
//! completion is awaited, the one up to which a queue may be fetched. [`layout`] gives each WQE its blocks
//! and each completion its index; [`encode`] writes the bytes, when [`load`](crate::load) knows addresses,
//! keys and numbers.
//!
//! ```text
//! byte     0      1-2    3       4-6   7    8-10  11       12-15  16..
//! control  opmod  index  opcode  QPN   ds         flags    imm    segments: address, atomic, data
//! operand  k0     k1 k2          k3-k5      of a conditional WQE: 48 bits that a compare-and-swap tests
//! ```
//! The NIC compares numbers in the host's byte order, and atomic segments are big-endian: byte m of what is
//! compared stands in byte 7-m of the segment's word.

mod check;
mod encode;
pub mod laps;
mod layout;
pub mod parts;

pub use check::check;
pub use encode::{Address, Addresses, encode};
pub(crate) use encode::{address, data};
pub use layout::Layout;
pub(crate) use layout::{blocks_of, field_of, inline_len, result_len};

use crate::WqeOp;
pub use adverb_nic::queue::wqe::{CALC_ENTRY, Calc, CalcOp};
use adverb_rdma::{Access, SendOrder};
use std::fmt;

/// Bytes of a block of a send queue.
pub const BLOCK: usize = 64;
/// Scatter or gather entries of a WQE at most.
pub const ENTRIES_MAX: usize = adverb_nic::limits::MAX_SGE as usize;
/// Blocks of a queue at most: an ENABLE's index has 16 bits, compared on its circle.
pub const BLOCKS_MAX: u32 = 1 << 15;
/// Blocks that the longest NOP takes.
pub const NOP_BLOCKS_MAX: u8 = 15;

/// A queue of a chain: a queue pair's send queue, with the receives of its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueId(pub u16);

/// Memory of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u16);

/// A WQE of a chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WqeId {
    /// On which queue.
    pub queue: QueueId,
    /// Which one there, counted from 0.
    pub at: u32,
}

/// Who is at the other end of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Itself: the queue's operations act on this host's memory, WQEs too.
    Itself,
    /// Somebody else, to whom the loader's caller connects it.
    Client,
}

/// Where a region's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// New memory of zeros.
    New {
        /// Bytes.
        len: u64,
        /// Rights of WQEs that name it as their peer's memory; local writes are always allowed.
        access: Access,
    },
    /// Told to the loader: a region of the caller's, or a peer's.
    Given,
}

/// Part of a WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The control segment's first byte and what follows.
    Control,
    /// Its operation code.
    Opcode,
    /// Its flags: fence, completion, solicited.
    Flags,
    /// Its immediate.
    Immediate,
    /// 8 bytes, big-endian: where a READ reads, a WRITE writes, an atomic works.
    RemoteAddress,
    /// Its key.
    RemoteKey,
    /// 8 bytes, big-endian: what is swapped in, or added.
    Swap,
    /// 8 bytes, big-endian: what is compared.
    Compare,
    /// 4 bytes, big-endian: length of a data entry.
    Count(u8),
    /// 4 bytes: key of a data entry.
    LocalKey(u8),
    /// 8 bytes, big-endian: address of a data entry.
    LocalAddress(u8),
    /// First byte of inline data.
    Inline,
    /// 4 bytes, big-endian: index of a WAIT or ENABLE.
    Index,
}

/// Bytes that a WQE reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A byte of a region.
    At(RegionId, u64),
    /// Somewhere in a region: the address is filled in while the chain runs.
    Of(RegionId),
    /// A byte of a WQE's field, counted from the field's first.
    In(WqeId, Field, u8),
}

impl Place {
    /// The place so many bytes further.
    pub fn plus(self, bytes: u64) -> Place {
        match self {
            Place::At(region, at) => Place::At(region, at + bytes),
            Place::Of(region) => Place::Of(region),
            Place::In(wqe, field, skip) => Place::In(wqe, field, skip + bytes as u8),
        }
    }

    /// So many bytes from here on.
    pub fn piece(self, len: u32) -> Piece {
        Piece { place: self, len }
    }
}

/// A data entry: bytes read or written in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The first byte.
    pub place: Place,
    /// How many; with [`Place::Of`] this too may be filled in later.
    pub len: u32,
}

/// A WQE's control segment as a conditional has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Operation code.
    pub op: WqeOp,
    /// The 48 bits in place of opmod, index and queue pair number; `None` for what these are in truth.
    pub operand: Option<[u8; 6]>,
}

impl Form {
    /// An operation with its own fields.
    pub fn of(op: WqeOp) -> Form {
        Form { op, operand: None }
    }

    /// A NOP that holds an operand.
    pub fn nop(operand: [u8; 6]) -> Form {
        Form { op: WqeOp::Nop, operand: Some(operand) }
    }
}

/// Bytes 0 to 2 and 4 to 6 of a control segment, where an operand's six bytes stand.
pub const OPERAND: [u8; 6] = [0, 1, 2, 4, 5, 6];

/// A number of 64 bits for an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// This one.
    Is(u64),
    /// The first 8 bytes of a WQE's control segment, as it would be in this form.
    Control(WqeId, Form),
    /// A place's address.
    AddressOf(Place),
}

/// Bytes that stand in a WQE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bytes {
    /// These.
    Are(Vec<u8>),
    /// The first 8 bytes of a WQE's control segment, as it would be in this form.
    Control(WqeId, Form),
    /// A number in the host's byte order.
    Word(Word),
    /// A place's address, big-endian.
    Address(Place),
    /// The first 12 bytes, which end with the flags: whether it completes with success.
    ControlAndFlags(WqeId, Form, bool),
}

/// What is written or sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// Pieces of memory, gathered when the WQE is executed.
    Pieces(Vec<Piece>),
    /// Bytes in the WQE.
    Inline(Bytes),
}

/// What a WAIT is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// The completion of this WQE, in the first lap.
    Of(WqeId),
    /// The message with this number, counted from 0, that the queue's peer sends.
    Received(QueueId, u32),
    /// The completion with this index of the queue's sends.
    Index(QueueId, u32),
}

/// How far an ENABLE lets a queue be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// This WQE, in the first lap.
    Through(WqeId),
    /// This many blocks.
    Blocks(QueueId, u32),
}

/// What a WQE does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Nothing, for so many blocks.
    Nop(u8),
    /// The queue goes on when this has come.
    Wait(Done),
    /// Another queue, or this one, may go on.
    Enable(Until),
    /// Messages may take the receives of a queue up to this one, counted from 1 round and round.
    EnableReceives(QueueId, u32),
    /// Writes to the peer's memory, and with an immediate tells it.
    Write(Source, Place, Option<u32>),
    /// Reads the peer's memory into these pieces.
    Read(Place, Vec<Piece>),
    /// Compares and swaps a word of the peer's memory; what it was goes into the piece.
    CompareSwap(Place, (Word, Word), Piece),
    /// Adds to a word of the peer's memory; what it was goes into the piece.
    FetchAdd(Place, Word, Piece),
    /// Sends a message.
    Send(Source, Option<u32>),
    /// Writes the greatest, or the least, of its operands to the peer's memory: rows of entries, each a value
    /// and what goes with it, gathered when the WQE is executed.
    Calc(Calc, Vec<Piece>, Place),
}

impl Op {
    /// Its operation code.
    pub fn code(&self) -> WqeOp {
        match self {
            Op::Nop(_) => WqeOp::Nop,
            Op::Wait(_) => WqeOp::Wait,
            Op::Enable(_) => WqeOp::SendEnable,
            Op::EnableReceives(..) => WqeOp::RecvEnable,
            Op::Write(_, _, None) => WqeOp::Write,
            Op::Write(_, _, Some(_)) => WqeOp::WriteImm,
            Op::Read(..) => WqeOp::Read,
            Op::CompareSwap(..) => WqeOp::CompareSwap,
            Op::FetchAdd(..) => WqeOp::FetchAdd,
            Op::Send(_, None) => WqeOp::Send,
            Op::Send(_, Some(_)) => WqeOp::SendImm,
            Op::Calc(..) => WqeOp::Write,
        }
    }
}

/// A WQE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wqe {
    /// What it does, or will do.
    pub op: Op,
    /// How its control segment is posted, if not as what it does.
    pub posted: Option<Form>,
    /// Makes a completion.
    pub signaled: bool,
    /// Waits for the READs and atomics before it.
    pub fence: bool,
    /// For people: the line of a program that it comes from, 0 for none.
    pub line: u32,
}

impl Wqe {
    /// One that makes no completion and waits for nothing.
    pub fn new(op: Op) -> Wqe {
        Wqe { op, posted: None, signaled: false, fence: false, line: 0 }
    }

    /// Makes a completion.
    pub fn signaled(self) -> Wqe {
        Wqe { signaled: true, ..self }
    }

    /// Waits for the READs and atomics before it.
    pub fn fenced(self) -> Wqe {
        Wqe { fence: true, ..self }
    }

    /// Is posted with another control segment.
    pub fn posted_as(self, form: Form) -> Wqe {
        Wqe { posted: Some(form), ..self }
    }
}

/// A queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// For people.
    pub name: String,
    /// Who says when its WQEs are fetched.
    pub order: SendOrder,
    /// Where it leads.
    pub peer: Peer,
    /// Its WQEs, in order.
    pub wqes: Vec<Wqe>,
    /// Receives that are posted, each with the pieces that a message fills one after the other.
    pub receives: Vec<Vec<Piece>>,
    /// It is executed round and round: its ring is exactly as long as its WQEs, padded with NOPs.
    pub recycled: bool,
    /// Messages take its receives as far as WQEs enable them, round and round.
    pub managed_receives: bool,
    /// Its sends complete where something of another queue does.
    pub completes_with: Option<With>,
}

/// What a queue's sends complete with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum With {
    /// The sends of this queue.
    Sends(QueueId),
    /// Its receives.
    Receives(QueueId),
}

/// A region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// For people.
    pub name: String,
    /// Where its bytes are.
    pub memory: Memory,
    /// What is written into it before the chain starts.
    pub data: Vec<(u64, Bytes)>,
}

/// Queues of WQEs, and the memory that they work on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// The queues.
    pub queues: Vec<Queue>,
    /// The regions.
    pub regions: Vec<Region>,
}

/// Making a chain.
impl Chain {
    /// An empty one.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// A queue.
    pub fn queue(&mut self, name: &str, order: SendOrder, peer: Peer) -> QueueId {
        let name = name.to_owned();
        let (wqes, receives) = (Vec::new(), Vec::new());
        self.queues.push(Queue {
            name,
            order,
            peer,
            wqes,
            receives,
            recycled: false,
            managed_receives: false,
            completes_with: None,
        });
        QueueId(self.queues.len() as u16 - 1)
    }

    /// A region.
    pub fn region(&mut self, name: &str, memory: Memory) -> RegionId {
        self.regions.push(Region { name: name.to_owned(), memory, data: Vec::new() });
        RegionId(self.regions.len() as u16 - 1)
    }

    /// New memory that the chain's own queues read, write and count in.
    pub fn memory(&mut self, name: &str, len: u64) -> RegionId {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.region(name, Memory::New { len, access })
    }

    /// Puts bytes into a region before the chain starts.
    pub fn data(&mut self, region: RegionId, at: u64, bytes: impl Into<Vec<u8>>) {
        self.regions[usize::from(region.0)].data.push((at, Bytes::Are(bytes.into())));
    }

    /// Puts a number into a region before the chain starts, in the host's byte order.
    pub fn word(&mut self, region: RegionId, at: u64, word: Word) {
        self.regions[usize::from(region.0)].data.push((at, Bytes::Word(word)));
    }

    /// Puts a place's address into a region before the chain starts, big-endian.
    pub fn big(&mut self, region: RegionId, at: u64, place: Place) {
        self.regions[usize::from(region.0)].data.push((at, Bytes::Address(place)));
    }

    /// Puts a WQE behind those of a queue.
    pub fn push(&mut self, queue: QueueId, wqe: Wqe) -> WqeId {
        let wqes = &mut self.queues[usize::from(queue.0)].wqes;
        wqes.push(wqe);
        WqeId { queue, at: wqes.len() as u32 - 1 }
    }

    /// The name that the next WQE of a queue will have.
    pub fn next(&self, queue: QueueId) -> WqeId {
        WqeId { queue, at: self.queues[usize::from(queue.0)].wqes.len() as u32 }
    }

    /// A WQE.
    pub fn wqe(&self, id: WqeId) -> &Wqe {
        &self.queues[usize::from(id.queue.0)].wqes[id.at as usize]
    }

    /// A WQE, to be changed.
    pub fn wqe_mut(&mut self, id: WqeId) -> &mut Wqe {
        &mut self.queues[usize::from(id.queue.0)].wqes[id.at as usize]
    }

    /// Posts a receive.
    pub fn receive(&mut self, queue: QueueId, pieces: Vec<Piece>) {
        self.queues[usize::from(queue.0)].receives.push(pieces);
    }

    /// A queue is executed round and round.
    pub fn recycle(&mut self, queue: QueueId) {
        self.queues[usize::from(queue.0)].recycled = true;
    }

    /// Messages take a queue's receives as far as [`Op::EnableReceives`] says, round and round.
    pub fn manage_receives(&mut self, queue: QueueId) {
        self.queues[usize::from(queue.0)].managed_receives = true;
    }

    /// The sends of a queue complete where those of another do, which was made before it.
    pub fn complete_with(&mut self, queue: QueueId, other: QueueId) {
        assert!(other < queue, "the other queue comes first");
        self.queues[usize::from(queue.0)].completes_with = Some(With::Sends(other));
    }

    /// The sends of a queue complete where the receives of another do, which was made before it.
    pub fn complete_with_receives(&mut self, queue: QueueId, other: QueueId) {
        assert!(other < queue, "the other queue comes first");
        self.queues[usize::from(queue.0)].completes_with = Some(With::Receives(other));
    }

    /// The queue with this id.
    pub fn queue_of(&self, id: QueueId) -> &Queue {
        &self.queues[usize::from(id.0)]
    }
}

/// Why a chain cannot be assembled or loaded. WQEs are named by queue and number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// More blocks than a queue may have.
    QueueTooLong {
        /// The queue.
        queue: String,
        /// Its blocks.
        blocks: u32,
    },
    /// More data entries than a WQE or a receive may have.
    TooManyEntries {
        /// The WQE, or the queue of the receive.
        wqe: String,
        /// Its entries.
        entries: usize,
    },
    /// The WQE has no such field, or fewer bytes in it.
    NoSuchField {
        /// The WQE.
        wqe: String,
        /// The field.
        field: Field,
    },
    /// A WQE waits for the completion of one that makes none.
    NotSignaled {
        /// The one that makes none.
        wqe: String,
    },
    /// An ENABLE is of a queue that is not managed, or of receives that are not.
    NotManaged {
        /// The queue.
        queue: String,
    },
    /// A NOP that takes no block, or too many.
    NopBlocks(u8),
    /// A queue of a recycled ring whose WQEs do not fit it.
    NoSuchWqe {
        /// The queue.
        queue: String,
        /// Which one there.
        at: u32,
    },
    /// The first byte of an operand stands in the operation modifier of a WQE that is executed, and says
    /// there what the operation is.
    Modifier {
        /// The WQE.
        wqe: String,
        /// The line of a program that it comes from, 0 for none.
        line: u32,
        /// Its operation.
        op: WqeOp,
    },
    /// What a client sends would reach a part of a WQE that it may not decide about.
    Reaches {
        /// The WQE.
        wqe: String,
        /// The byte of the WQE.
        byte: usize,
        /// What stands there.
        what: &'static str,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::QueueTooLong { queue, blocks } => {
                write!(f, "queue {queue} takes {blocks} blocks: at most {BLOCKS_MAX} can be enabled")
            }
            Error::TooManyEntries { wqe, entries } => {
                write!(f, "{wqe} has {entries} scatter entries: at most {ENTRIES_MAX}")
            }
            Error::NoSuchField { wqe, field } => write!(f, "{wqe} has no such bytes of its {field:?}"),
            Error::NotSignaled { wqe } => write!(f, "{wqe} is waited for, but makes no completion"),
            Error::NotManaged { queue } => write!(f, "queue {queue} is enabled, but is not managed"),
            Error::NopBlocks(blocks) => {
                write!(f, "a NOP of {blocks} blocks: it takes 1 to {NOP_BLOCKS_MAX}")
            }
            Error::Modifier { wqe, line, op } => {
                if *line > 0 {
                    write!(f, "line {line}: ")?;
                }
                write!(
                    f,
                    "{wqe} is executed as {op:?}, whose operation modifier is the operand's first byte: it \
                     must be 0, or the WQE be posted as a NOP"
                )
            }
            Error::NoSuchWqe { queue, at } => write!(f, "queue {queue} has no WQE {at}"),
            Error::Reaches { wqe, byte, what } => {
                write!(
                    f,
                    "what a client sends reaches byte {byte} of {wqe}, {what}: it may fill in operands, "
                )?;
                f.write_str("addresses and lengths only")
            }
        }
    }
}

impl std::error::Error for Error {}

impl Chain {
    /// A WQE's name for people: its queue and number.
    pub fn name(&self, id: WqeId) -> String {
        let queue = self.queues.get(usize::from(id.queue.0)).map_or("?", |queue| &queue.name);
        format!("{queue}[{}]", id.at)
    }
}
