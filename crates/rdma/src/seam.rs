//! The seam between a program and its world: one [`Driver`], one [`Call`], one [`Answer`].
//!
//! A program reaches nothing but through its driver: no clock, no generator, no socket, no memory that
//! a NIC can reach. So a driver decides what world it is. `adverb_io` answers at once, on a real host.
//! A simulator lets each call wait for its core and its time, writes it down, and may end the program
//! between any two calls, in the middle of a posted list, or in the middle of a copy.
//!
//! ```text
//! begin(call) ──► Ready(answer)                      the call is done
//!             └─► Waiting(ticket) ──► poll(ticket)   until it is; forget(ticket) if nobody waits any more
//! release(object)                                    a handle was dropped
//! note(note)                                         for an oracle; takes no time
//! ```
//! What a driver promises:
//! - A call takes effect once, at a moment between `begin` and the answer. A call that was forgotten
//!   before its moment has no effect.
//! - `until` does not miss what happened before it was called: each of its waits is a condition, not an
//!   event.
//! - Memory stays where it is until no work request that was posted before its release can reach it.
//! - Of a program that was ended, `begin` and `poll` never answer, and `release`, `forget` and `note` do
//!   nothing.

use crate::error::Error;
use crate::grant::Grant;
use adverb_nic::one_rma::Rights;
use adverb_nic::one_rma::executor::{Report, Retry};
use adverb_nic::{
    Access, Completion, CqId, LiveQueue, Mtu, PdId, QpAttr, QpAttrMask, QpCaps, QpFlags, QpId, QpInit,
    RateLimit, SendFlags, SendOp, Sge, SrqId, SrqInit, UdAddress,
};
use adverb_wire::one_rma::Op;
use adverb_wire::{Duration, Gid, Instant, Key, QpNumber};
use core::task::{Context, Poll};

/// What answers a program's calls. A program is one task of one thread, so a driver need not be `Send`.
pub trait Driver {
    /// Begins a call. The waker of `context` is called when a call that waits may have its answer.
    fn begin(&self, call: Call, context: &mut Context<'_>) -> Begun;

    /// The answer of a call that waits. The ticket is used up when there is one.
    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, Error>>;

    /// Nobody waits for this call any more. If it has not had its effect, it will have none.
    fn forget(&self, ticket: Ticket);

    /// A handle is gone. The object goes when nothing needs it any more.
    fn release(&self, object: Object);

    /// What an oracle is to know, or a reader of a replay.
    fn note(&self, note: Note);
}

/// Names a call that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What came of [`Driver::begin`].
#[derive(Debug)]
pub enum Begun {
    /// Done.
    Ready(Result<Answer, Error>),
    /// To be polled.
    Waiting(Ticket),
}

/// Memory that the driver holds for the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemoryId(pub u32);

/// A file of memory that outlives the program: on a host, the descriptor of a sealed memfd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub i32);

/// A name at which the program can be asked for attributes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId(pub u32);

/// One exchange of attributes, which lasts as long as both programs keep it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LineId(pub u32);

/// What a program asks of its world.
#[derive(Clone, Debug)]
pub enum Call {
    /// What the NIC is: [`Answer::Device`].
    Device,
    /// A protection domain: [`Answer::Pd`].
    CreatePd,
    /// Registered memory: [`Answer::Memory`].
    CreateRegion {
        /// Domain.
        pd: PdId,
        /// Where its bytes are.
        backing: Backing,
        /// Rights.
        access: Access,
    },
    /// A file of zeros that regions of several programs can be made of: [`Answer::File`].
    CreateFile {
        /// Bytes.
        len: u64,
    },
    /// A completion queue: [`Answer::Cq`].
    CreateCq {
        /// Entries at least.
        entries: u32,
        /// A full queue is not overrun: its oldest completion gives way. WAITs count on, and nobody has to
        /// poll.
        endless: bool,
    },
    /// A shared receive queue: [`Answer::Srq`].
    CreateSrq(SrqInit),
    /// A queue pair in RESET: [`Answer::Qp`].
    CreateQp {
        /// What it is made of.
        init: QpInit,
        /// What its queues are beyond plain ones.
        flags: QpFlags,
    },
    /// Changes a queue pair's attributes and state. The driver finds the path to the destination.
    ModifyQp {
        /// The queue pair.
        qp: QpId,
        /// What to change to.
        attr: Box<QpAttr>,
        /// Which of it.
        mask: QpAttrMask,
    },
    /// A queue pair's attributes: [`Answer::Attributes`].
    QueryQp(QpId),
    /// How far its send queue has come, and what it waits for: [`Answer::Live`].
    Live(QpId),
    /// Posts sends one after the other, up to the first that is refused: [`Answer::Posted`].
    PostSend {
        /// The queue pair.
        qp: QpId,
        /// The requests.
        list: Vec<SendRequest>,
    },
    /// Posts receives likewise.
    PostRecv {
        /// Where to.
        to: RecvTarget,
        /// The requests.
        list: Vec<RecvRequest>,
    },
    /// Rings the doorbell of a send queue whose WQEs were written through memory: `posted` counts
    /// blocks of 64 bytes since the beginning.
    Doorbell {
        /// The queue pair.
        qp: QpId,
        /// Blocks posted.
        posted: u32,
    },
    /// Bounds the rate of a queue pair's requests, those without a frame too.
    LimitRate {
        /// The queue pair, in RTS.
        qp: QpId,
        /// The bound.
        limit: RateLimit,
    },
    /// Takes completions that are there: [`Answer::Completions`].
    PollCq {
        /// The queue.
        cq: CqId,
        /// At most so many.
        max: usize,
    },
    /// The word at a multiple of 8, read whole: [`Answer::Word`].
    LoadWord {
        /// The memory.
        memory: MemoryId,
        /// Offset.
        at: u64,
    },
    /// Writes a word at a multiple of 8, whole.
    StoreWord {
        /// The memory.
        memory: MemoryId,
        /// Offset.
        at: u64,
        /// In the host's byte order.
        value: u64,
    },
    /// Copies bytes out, in steps of 8: [`Answer::Bytes`].
    Load {
        /// The memory.
        memory: MemoryId,
        /// Offset.
        at: u64,
        /// Bytes.
        len: usize,
    },
    /// Copies bytes in, in steps of 8, the first bytes first.
    Store {
        /// The memory.
        memory: MemoryId,
        /// Offset.
        at: u64,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// Waits until one of these holds, or this time has come: [`Answer::Woken`].
    Until {
        /// Conditions.
        waits: Vec<Wait>,
        /// Time.
        deadline: Option<Instant>,
    },
    /// The time since the NIC was opened: [`Answer::Time`]. Clocks of two hosts have nothing in common.
    Now,
    /// A random number: [`Answer::Word`].
    Random,
    /// Computes for so long. On a host, computing takes its own time.
    Think(Duration),
    /// Can be asked for attributes under this name from now on: [`Answer::Listener`]. On a host the name
    /// is an address and TCP port, apart from the NIC's own address.
    Listen {
        /// The name.
        name: String,
    },
    /// The oldest question that nobody has taken: [`Answer::Asked`].
    Accept(ListenerId),
    /// Answers it.
    Reply {
        /// The question's line.
        line: LineId,
        /// Attributes.
        attributes: Vec<u8>,
    },
    /// Gives attributes to whoever listens there, and waits for its own: [`Answer::Told`].
    Ask {
        /// The name.
        name: String,
        /// Attributes.
        attributes: Vec<u8>,
        /// When to give up; [`Error::NoAnswer`] then.
        deadline: Option<Instant>,
    },
    /// Memory for 1RMA: [`Answer::Memory`], without keys. A region of queue pairs and memory of 1RMA that are
    /// parts of one file are the same bytes; a send queue's blocks are none for 1RMA.
    Allocate {
        /// Where its bytes are.
        backing: Backing,
    },
    /// Lets a peer's process use a part of such memory: [`Answer::Granted`].
    Grant {
        /// The memory.
        memory: MemoryId,
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// What the peer may do.
        rights: Rights,
        /// Its address.
        peer: Gid,
        /// Its process.
        pid: u32,
    },
    /// A 1RMA transfer: [`Answer::Report`], whatever its end.
    Transfer(Box<Transfer>),
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// New memory of zeros.
    Zeros {
        /// Bytes.
        len: u64,
    },
    /// A part of a file of memory.
    File {
        /// The file.
        file: FileId,
        /// First byte, a multiple of the page size.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// The bytes of a region that is there, under the same addresses: for another domain, with keys of its
    /// own.
    Same(MemoryId),
    /// The blocks of a queue pair's send queue.
    SendQueue(QpId),
    /// New memory of zeros on the NIC itself, which it reaches without PCIe, under addresses from 0 on. A NIC
    /// has [`MAX_DM_SIZE`](adverb_nic::limits::MAX_DM_SIZE) bytes of it; [`Error::DeviceMemory`] beyond.
    Device {
        /// Bytes.
        len: u64,
    },
}

/// Who says when the WQEs of a send queue are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SendOrder {
    /// The queue itself: one after the other.
    #[default]
    Own,
    /// The queue itself, whose WQEs may wait for completions and enable other queues (cross-channel): they
    /// are fetched ahead, and executed as they were then.
    Cross,
    /// Other queues: it is fetched as far as they enable it.
    Managed,
}

impl SendOrder {
    /// What a queue pair is created with for it.
    pub fn flags(self) -> QpFlags {
        match self {
            SendOrder::Own => QpFlags::empty(),
            SendOrder::Cross => QpFlags::CROSS_CHANNEL,
            SendOrder::Managed => QpFlags::CROSS_CHANNEL | QpFlags::MANAGED_SEND,
        }
    }
}

/// Where receives are posted to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvTarget {
    /// A queue pair's own queue.
    Qp(QpId),
    /// A shared one.
    Srq(SrqId),
}

/// A send work request that owns what it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Options.
    pub flags: SendFlags,
    /// Payload; for READ and atomics, where the answer goes.
    pub data: Data,
    /// Destination of a datagram.
    pub ud: Option<UdAddress>,
    /// Remote shared receive queue number, XRC only.
    pub xrc_srqn: u32,
}

/// Bytes of a send work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Data {
    /// One piece of registered memory; of length 0, none.
    Piece(Sge),
    /// Several.
    Pieces(Vec<Sge>),
    /// Bytes copied when posted.
    Inline(Vec<u8>),
}

/// A receive work request that owns what it names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub pieces: Vec<Sge>,
}

/// A condition that [`Call::Until`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The queue holds a completion.
    Cq(CqId),
    /// The word at a multiple of 8 is not `seen`.
    Word {
        /// The memory.
        memory: MemoryId,
        /// Offset.
        at: u64,
        /// What the program has seen there.
        seen: u64,
    },
    /// A question waits to be taken.
    Asked(ListenerId),
    /// The other program has left the line, or is known to have ended. A host that crashed says nothing.
    Gone(LineId),
    /// The program was asked to end.
    Stop,
}

/// A 1RMA transfer between own memory and a peer's.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Operation.
    pub op: Op,
    /// Where the peer's memory is, and the key.
    pub grant: Grant,
    /// Offset there.
    pub offset: u64,
    /// Own memory.
    pub memory: MemoryId,
    /// Offset in it.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Class of service, 0 or 1.
    pub class: u8,
    /// How long it may take.
    pub within: Option<Duration>,
    /// What becomes of commands that fail.
    pub retry: Retry,
}

/// What a NIC is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Address of its data.
    pub gid: Gid,
    /// Path MTU that its port can carry.
    pub mtu: Mtu,
    /// Number by which 1RMA's owners know this process.
    pub pid: u32,
}

/// Memory and its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// For the program's own loads and stores.
    pub id: MemoryId,
    /// Address by which work requests name the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key for own work requests.
    pub lkey: Key,
    /// Key for peers.
    pub rkey: Key,
}

/// The world's answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Done.
    Done,
    /// Of [`Call::Device`].
    Device(Device),
    /// Of [`Call::CreatePd`].
    Pd(PdId),
    /// Of [`Call::CreateRegion`] and [`Call::Allocate`].
    Memory(MemoryInfo),
    /// Of [`Call::CreateFile`].
    File(FileId),
    /// Of [`Call::CreateCq`]: the queue, and the number by which a WQE names it.
    Cq(CqId, u32),
    /// Of [`Call::CreateSrq`]: the queue, and the number by which XRC peers name it.
    Srq(SrqId, u32),
    /// Of [`Call::CreateQp`]: the queue pair, its number, the sizes that it was given.
    Qp(QpId, QpNumber, QpCaps),
    /// Of [`Call::QueryQp`].
    Attributes(Box<QpAttr>),
    /// Of [`Call::Live`].
    Live(LiveQueue),
    /// Of posts: how many requests were taken, and why the next one was not.
    Posted(usize, Option<adverb_nic::Error>),
    /// Of [`Call::PollCq`].
    Completions(Vec<Completion>),
    /// Of [`Call::LoadWord`] and [`Call::Random`].
    Word(u64),
    /// Of [`Call::Load`].
    Bytes(Vec<u8>),
    /// Of [`Call::Until`]: the first of the waits that holds; `None` when it is only the time that has
    /// come.
    Woken(Option<usize>),
    /// Of [`Call::Now`].
    Time(Instant),
    /// Of [`Call::Listen`].
    Listener(ListenerId),
    /// Of [`Call::Accept`]: the line and the attributes given, if anybody has asked.
    Asked(Option<(LineId, Vec<u8>)>),
    /// Of [`Call::Ask`]: the line and the attributes got.
    Told(LineId, Vec<u8>),
    /// Of [`Call::Grant`].
    Granted(Grant),
    /// Of [`Call::Transfer`].
    Report(Report),
}

/// What a handle stood for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// A protection domain.
    Pd(PdId),
    /// Memory.
    Memory(MemoryId),
    /// A file.
    File(FileId),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A queue pair.
    Qp(QpId),
    /// A listener.
    Listener(ListenerId),
    /// A line.
    Line(LineId),
}

/// What an oracle is to know of a program's operations on what programs share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// An operation begins. Until its end it may or may not have had its effect.
    Begin {
        /// Names the operation among the program's.
        operation: u64,
        /// What it is done to, by the programs' own numbering.
        object: u64,
        /// What is done.
        name: &'static str,
        /// With what.
        arguments: Vec<u64>,
    },
    /// It has ended, and had this result.
    End {
        /// Names the operation.
        operation: u64,
        /// What came of it.
        results: Vec<u64>,
    },
    /// It has ended, and certainly had no effect.
    Void {
        /// Names the operation.
        operation: u64,
    },
    /// For people.
    Say(String),
}
