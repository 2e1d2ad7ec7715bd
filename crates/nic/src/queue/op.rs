//! Operations of send work queue elements, by their code in the control segment: those of mlx5.

use crate::work::CompletionOp;

/// Operation codes of the control segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "names are the operations'")]
pub enum WqeOp {
    Nop = 0x00,
    SendInv = 0x01,
    Write = 0x08,
    WriteImm = 0x09,
    Send = 0x0a,
    SendImm = 0x0b,
    Wait = 0x0f,
    Read = 0x10,
    CompareSwap = 0x11,
    FetchAdd = 0x12,
    MaskedCompareSwap = 0x14,
    MaskedFetchAdd = 0x15,
    RecvEnable = 0x16,
    SendEnable = 0x17,
    LocalInv = 0x1b,
    BindMw = 0x25,
}

impl WqeOp {
    /// The operation that this byte stands for.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => WqeOp::Nop,
            0x01 => WqeOp::SendInv,
            0x08 => WqeOp::Write,
            0x09 => WqeOp::WriteImm,
            0x0a => WqeOp::Send,
            0x0b => WqeOp::SendImm,
            0x0f => WqeOp::Wait,
            0x10 => WqeOp::Read,
            0x11 => WqeOp::CompareSwap,
            0x12 => WqeOp::FetchAdd,
            0x14 => WqeOp::MaskedCompareSwap,
            0x15 => WqeOp::MaskedFetchAdd,
            0x16 => WqeOp::RecvEnable,
            0x17 => WqeOp::SendEnable,
            0x1b => WqeOp::LocalInv,
            0x25 => WqeOp::BindMw,
            _ => return None,
        })
    }

    /// READ or atomic: completes with its response, and counts against `max_rd_atomic`.
    #[inline]
    pub const fn awaits_response(self) -> bool {
        matches!(self, WqeOp::Read) || self.is_atomic()
    }

    /// Done by the NIC itself, without a packet.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, WqeOp::Nop | WqeOp::LocalInv | WqeOp::BindMw) || self.acts_on_queues()
    }

    /// Orders queues: WAIT for a completion queue, ENABLE of a send or receive queue.
    #[inline]
    pub const fn acts_on_queues(self) -> bool {
        matches!(self, WqeOp::Wait | WqeOp::SendEnable | WqeOp::RecvEnable)
    }

    #[inline]
    pub(super) const fn has_remote_address(self) -> bool {
        matches!(self, WqeOp::Write | WqeOp::WriteImm) || self.awaits_response()
    }

    /// What its completion says.
    pub const fn completion(self) -> CompletionOp {
        match self {
            WqeOp::Write | WqeOp::WriteImm => CompletionOp::Write,
            WqeOp::Read => CompletionOp::Read,
            WqeOp::CompareSwap | WqeOp::MaskedCompareSwap => CompletionOp::CompareSwap,
            WqeOp::FetchAdd | WqeOp::MaskedFetchAdd => CompletionOp::FetchAdd,
            WqeOp::BindMw => CompletionOp::BindMw,
            WqeOp::LocalInv => CompletionOp::LocalInv,
            WqeOp::Send | WqeOp::SendImm | WqeOp::SendInv => CompletionOp::Send,
            WqeOp::Nop | WqeOp::Wait | WqeOp::SendEnable | WqeOp::RecvEnable => CompletionOp::Send,
        }
    }

    /// Compares and swaps, or adds.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, WqeOp::CompareSwap | WqeOp::FetchAdd) || self.is_masked()
    }

    /// Compares and swaps, or adds, in parts of a word.
    #[inline]
    pub const fn is_masked(self) -> bool {
        matches!(self, WqeOp::MaskedCompareSwap | WqeOp::MaskedFetchAdd)
    }

    /// Sends bytes of its own: a SEND or a WRITE.
    #[inline]
    pub const fn is_message(self) -> bool {
        matches!(self, WqeOp::Send | WqeOp::SendImm | WqeOp::SendInv | WqeOp::Write | WqeOp::WriteImm)
    }
}
