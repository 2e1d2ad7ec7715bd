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
    SendEnable = 0x17,
    LocalInv = 0x1b,
    BindMw = 0x25,
}

impl WqeOp {
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
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
            0x17 => WqeOp::SendEnable,
            0x1b => WqeOp::LocalInv,
            0x25 => WqeOp::BindMw,
            _ => return None,
        })
    }

    /// READ or atomic: completes with its response, and counts against `max_rd_atomic`.
    #[inline]
    pub const fn awaits_response(self) -> bool {
        matches!(self, WqeOp::Read | WqeOp::CompareSwap | WqeOp::FetchAdd)
    }

    /// Done by the NIC itself, without a packet.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, WqeOp::Nop | WqeOp::LocalInv | WqeOp::BindMw | WqeOp::Wait | WqeOp::SendEnable)
    }

    /// Orders queues: WAIT for a completion queue, ENABLE of a send queue.
    #[inline]
    pub const fn acts_on_queues(self) -> bool {
        matches!(self, WqeOp::Wait | WqeOp::SendEnable)
    }

    #[inline]
    pub(super) const fn has_remote_address(self) -> bool {
        matches!(self, WqeOp::Write | WqeOp::WriteImm | WqeOp::Read | WqeOp::CompareSwap | WqeOp::FetchAdd)
    }

    /// What its completion says.
    pub const fn completion(self) -> CompletionOp {
        match self {
            WqeOp::Write | WqeOp::WriteImm => CompletionOp::Write,
            WqeOp::Read => CompletionOp::Read,
            WqeOp::CompareSwap => CompletionOp::CompareSwap,
            WqeOp::FetchAdd => CompletionOp::FetchAdd,
            WqeOp::BindMw => CompletionOp::BindMw,
            WqeOp::LocalInv => CompletionOp::LocalInv,
            WqeOp::Send | WqeOp::SendImm | WqeOp::SendInv => CompletionOp::Send,
            WqeOp::Nop | WqeOp::Wait | WqeOp::SendEnable => CompletionOp::Send,
        }
    }

    /// Compares and swaps, or adds.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, WqeOp::CompareSwap | WqeOp::FetchAdd)
    }
}
