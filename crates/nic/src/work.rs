//! Work requests as a caller states them, and completions as it receives them.

use crate::ids::{MwId, PathId};
use crate::memory::Access;
use crate::queue::wqe::Calc;
use adverb_wire::{Gid, Key, QpNumber};

/// One scatter/gather entry: a piece of a registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Virtual address in the region named by `lkey`.
    pub addr: u64,
    /// Bytes, at most 2^31. Zero means zero here (not 2^31 as in some encodings).
    pub len: u32,
    /// Local key.
    pub lkey: Key,
}

/// What a send work request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND; with immediate data in host order; or invalidating a remote key.
    Send,
    /// SEND with immediate data (host order of the big-endian wire value).
    SendImm(u32),
    /// SEND that invalidates the receiver's `rkey`.
    SendInv(Key),
    /// RDMA WRITE to (address, rkey).
    Write(u64, Key),
    /// RDMA WRITE with immediate data.
    WriteImm(u64, Key, u32),
    /// RDMA READ from (address, rkey).
    Read(u64, Key),
    /// Compare with the first value, swap in the second.
    CompareSwap {
        /// Remote address, 8-byte aligned.
        addr: u64,
        /// Remote key.
        rkey: Key,
        /// Value expected.
        compare: u64,
        /// Value stored on equality.
        swap: u64,
    },
    /// Fetch, then add.
    FetchAdd {
        /// Remote address, 8-byte aligned.
        addr: u64,
        /// Remote key.
        rkey: Key,
        /// Value added.
        add: u64,
    },
    /// As [`SendOp::CompareSwap`], in parts of the word: compares the bits of one mask, and swaps those of
    /// the other.
    MaskedCompareSwap {
        /// Remote address, 8-byte aligned.
        addr: u64,
        /// Remote key.
        rkey: Key,
        /// Value expected.
        compare: u64,
        /// Value stored on equality.
        swap: u64,
        /// Bits that are compared.
        compare_mask: u64,
        /// Bits that are stored.
        swap_mask: u64,
    },
    /// As [`SendOp::FetchAdd`], in fields of the word that do not carry into each other.
    MaskedFetchAdd {
        /// Remote address, 8-byte aligned.
        addr: u64,
        /// Remote key.
        rkey: Key,
        /// Values added.
        add: u64,
        /// The uppermost bit of each field.
        boundary: u64,
    },
    /// Holds the queue until the completion queue has got the completion with this index, counted from 0
    /// modulo 2^24. Only a cross-channel queue may, here and below.
    Wait {
        /// The completion queue's number.
        cq: u32,
        /// Index of the completion.
        index: u32,
    },
    /// Lets a managed send queue go on to this index, a count of blocks modulo 2^16.
    SendEnable {
        /// Whose send queue.
        qp: QpNumber,
        /// End of what is enabled.
        index: u32,
    },
    /// Lets messages take a managed receive queue's requests up to this index, a count modulo 2^16.
    RecvEnable {
        /// Whose receive queue.
        qp: QpNumber,
        /// End of what is enabled.
        index: u32,
    },
    /// SEND of what is computed of the data.
    SendCalc(Calc),
    /// RDMA WRITE of what is computed of the data, to (address, rkey).
    WriteCalc(u64, Key, Calc),
    /// Binds a memory window. Length 0 unbinds a type 1 window and is refused for type 2.
    BindMw {
        /// The window.
        mw: MwId,
        /// New key; its low byte is the consumer's choice.
        rkey: Key,
        /// Region to bind to, by its lkey.
        lkey: Key,
        /// First address.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Remote rights granted.
        access: Access,
    },
    /// Invalidates a local key.
    LocalInv(Key),
    /// Does nothing, in order.
    Nop,
}

/// Options of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// Write a completion on success.
    pub signaled: bool,
    /// Raise a solicited event at the receiver.
    pub solicited: bool,
    /// Start only when all earlier READs and atomics of the queue have completed.
    pub fence: bool,
}

/// Destination of one datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdAddress {
    /// Destination.
    pub dgid: Gid,
    /// Destination queue pair.
    pub qpn: QpNumber,
    /// Queue key; with the top bit set, the sender's own key is used instead (IBTA 10.2.5).
    pub qkey: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Route, as the driver resolved it.
    pub path: PathId,
}

/// Bytes to send: gathered from regions when executed, or copied into the WQE when posted.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Scatter/gather list.
    Sges(&'a [Sge]),
    /// Inline bytes.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Options.
    pub flags: SendFlags,
    /// Payload; for READ and atomics, where the answer goes.
    pub data: SendData<'a>,
    /// Destination, UD only.
    pub ud: Option<UdAddress>,
    /// Remote shared receive queue number, XRC only.
    pub xrc_srqn: u32,
}

/// Send work requests that were posted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Posted {
    /// How many.
    pub requests: u32,
    /// Bytes of the longest; of READs and atomics, of the answer.
    pub longest: u64,
    /// One of them asks for a completion.
    pub signaled: bool,
}

impl Posted {
    /// Counts one.
    #[inline]
    pub(crate) fn note(&mut self, wr: &SendWr<'_>, signals_all: bool) {
        // Not every driver asks.
        self.requests = self.requests.saturating_add(1);
        let bytes = match wr.data {
            SendData::Sges(list) => list.iter().map(|sge| u64::from(sge.len)).sum(),
            SendData::Inline(bytes) => bytes.len() as u64,
        };
        self.longest = self.longest.max(bytes);
        self.signaled |= wr.flags.signaled || signals_all;
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// Outcome of a work request; numbers are those of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's own (IBTA 11.6.2)")]
pub enum Status {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    WorkRequestFlushed = 5,
    MemoryWindowBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    TransportRetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAborted = 16,
    Fatal = 19,
    General = 21,
}

impl Status {
    /// By its number; one without meaning here is a general error.
    pub const fn of_wire(number: u8) -> Status {
        use Status::*;
        match number {
            0 => Success,
            1 => LocalLength,
            2 => LocalQpOperation,
            4 => LocalProtection,
            5 => WorkRequestFlushed,
            6 => MemoryWindowBind,
            7 => BadResponse,
            8 => LocalAccess,
            9 => RemoteInvalidRequest,
            10 => RemoteAccess,
            11 => RemoteOperation,
            12 => TransportRetryExceeded,
            13 => RnrRetryExceeded,
            16 => RemoteAborted,
            19 => Fatal,
            _ => General,
        }
    }
}

/// What completed; numbers are those of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the specification's own")]
pub enum CompletionOp {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Recv = 128,
    RecvWriteImm = 129,
}

/// A completion queue entry, one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The work request's own word.
    pub wr_id: u64,
    /// Local queue pair.
    pub qp: QpNumber,
    /// Source queue pair (UD, XRC target).
    pub src_qp: QpNumber,
    /// Bytes received or read. Meaningless unless `status` is `Success`.
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated key, as the two flags below say.
    pub immediate: u32,
    /// Outcome.
    pub status: Status,
    /// What completed.
    pub op: CompletionOp,
    /// `immediate` holds immediate data.
    pub has_immediate: bool,
    /// `immediate` holds the key that the peer invalidated.
    pub has_invalidate: bool,
    /// A 40-byte GRH area precedes the payload (UD).
    pub has_grh: bool,
    /// The message asked for a solicited event.
    pub solicited: bool,
    /// Service level; for UD on RoCEv2 the network type of the GRH area, as rxe and mlx5 report it.
    pub sl: u8,
    /// Vendor syndrome: which rule made an error; see [`crate::explain`].
    pub vendor: u32,
    /// When the completion was written, in nanoseconds of the driver's clock.
    pub timestamp_ns: u64,
}

const _: () = assert!(core::mem::size_of::<Completion>() <= 64);
