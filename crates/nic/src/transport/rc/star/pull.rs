//! One send request of the stateless side, as the stateful one executes it: its packets as plain RC would
//! have them, and as they are asked for.

use super::{Names, Remote, Sent, Star};
use crate::frame::TxFrame;
use crate::memory::{Access, QueueMemory, RemoteRight};
use crate::qp::Qp;
use crate::state::NicState;
use crate::transport::rc::responder;
use crate::transport::receive::Refusal;
use adverb_wire::star::{self, Op, Sge, StarEth};
use adverb_wire::{AtomicEth, Bth, Key, Opcode, Operation, Packet, Psn, Reth, Service};

/// A send request of the other side.
#[derive(Debug)]
pub(super) struct Pull {
    pub wqe: star::Wqe,
    /// Where its data lie, if that was told.
    pub at: Option<Sge>,
    /// Inline data, or what an atomic computes with.
    pub data: Box<[u8]>,
    /// Its packets, once it was begun.
    pub first: Psn,
    pub packets: u32,
    /// What an atomic has found.
    pub original: Option<u64>,
    /// Its completion has gone with its data.
    pub merged: bool,
    /// Why it is refused when its turn comes.
    pub refusal: Option<Refusal>,
}

impl Pull {
    pub fn new(wqe: star::Wqe, at: Option<Sge>, data: &[u8]) -> Pull {
        let (first, packets) = (Psn::new(0), 0);
        Pull { wqe, at, data: data.into(), first, packets, original: None, merged: false, refusal: None }
    }

    pub fn has(&self, flag: u8) -> bool {
        self.wqe.flags & flag != 0
    }

    /// Sends data of this side: READ or atomic.
    pub fn is_read(&self) -> bool {
        matches!(self.wqe.op, Op::Read | Op::CompareSwap | Op::FetchAdd)
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self.wqe.op, Op::CompareSwap | Op::FetchAdd)
    }

    /// Takes a receive of this side.
    pub fn takes_receive(&self) -> bool {
        self.wqe.op == Op::Send || self.has(star::Wqe::IMMEDIATE)
    }

    /// Bytes to be moved by packets of its own.
    pub fn len(&self) -> u32 {
        if self.has(star::Wqe::INLINE) && !self.is_atomic() { 0 } else { self.wqe.len }
    }

    /// Packet `k` as plain RC would have it.
    pub fn packet(&self, k: u32, last: bool) -> Packet {
        let first = k == 0;
        let (imm, inv) = (self.has(star::Wqe::IMMEDIATE), self.has(star::Wqe::INVALIDATE));
        use Operation::*;
        let operation = match (self.wqe.op, first, last) {
            (Op::Read, ..) => ReadRequest,
            (Op::CompareSwap, ..) => CompareSwap,
            (Op::FetchAdd, ..) => FetchAdd,
            (Op::Write, true, true) => [WriteOnly, WriteOnlyImm][usize::from(imm)],
            (Op::Write, true, false) => WriteFirst,
            (Op::Write, false, false) => WriteMiddle,
            (Op::Write, false, true) => [WriteLast, WriteLastImm][usize::from(imm)],
            (_, true, true) if inv => SendOnlyInv,
            (_, true, true) => [SendOnly, SendOnlyImm][usize::from(imm)],
            (_, true, false) => SendFirst,
            (_, false, false) => SendMiddle,
            (_, false, true) if inv => SendLastInv,
            (_, false, true) => [SendLast, SendLastImm][usize::from(imm)],
        };
        let solicited = last && self.has(star::Wqe::SOLICITED);
        let (va, rkey) = (self.wqe.va, Key(self.wqe.rkey));
        let word = |at: usize| {
            self.data
                .get(at..at + 8)
                .map_or(0, |bytes| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        };
        Packet {
            bth: Bth {
                opcode: Opcode::new(Service::Rc, operation),
                psn: self.first.add(k),
                solicited,
                ..Bth::default()
            },
            reth: Reth { va, rkey, len: self.wqe.len },
            atomic: AtomicEth { va, rkey, swap_add: word(0), compare: word(8) },
            immediate: self.wqe.immediate,
            invalidate: self.wqe.immediate,
            ..Packet::default()
        }
    }
}

/// Whether what a READ or atomic names may be accessed.
pub(super) fn check(qp: &Qp, nic: &NicState, pull: &Pull) -> Result<(), Refusal> {
    let packet = pull.packet(0, true);
    match pull.is_atomic() {
        true => responder::atomic_target(qp, nic, &packet).map(|_| ()),
        false => responder::check_read(qp, nic, &packet).map(|_| ()),
    }
}

/// The headers of an RD or GD for a posted request, with a new deadline if it is to have one.
pub(super) fn head(
    sent: &mut Sent,
    remote: Remote,
    clock: u32,
    wqe: &star::Wqe,
    psn: Psn,
    (offset, len): (u32, u32),
    out: &mut TxFrame,
) {
    sent.renew(clock, remote.lifetime);
    let burst = sent.is_read && len > sent.len.into();
    let count = (len - u32::from(burst)) as u16;
    let (operation, count) =
        if sent.is_read { (Operation::GetData, count) } else { (Operation::RemoteData, 0) };
    let opcode = Opcode::new(Service::Star, operation);
    let mark = match (burst, sent.is_merged) {
        (true, _) => StarEth::BURST,
        // It is the last one, and has no flags to tell.
        (_, true) => StarEth::MERGED,
        _ => 0,
    };
    let posted = if sent.names == Names::Place { StarEth::POSTED } else { 0 };
    let eth = StarEth::new(wqe.op, posted | mark, count, wqe.len - offset - len);
    out.packet = Packet {
        bth: Bth { opcode, psn, ack_req: true, ..Bth::default() },
        reth: Reth { va: sent.va, rkey: sent.key, len: sent.deadline },
        irn: StarEth { copy: sent.copy, ..eth }.into(),
        ticket: remote.ticket,
        payload_len: out.payload.len() as u32,
        ..Packet::default()
    };
}

/// Puts what a READ or atomic sends into `out`. An atomic is executed when it is first sent.
pub(super) fn read_out(
    qp: &mut Qp,
    star: &mut Star,
    nic: &mut NicState,
    psn: Psn,
    (offset, len): (u32, u32),
    out: &mut TxFrame,
) -> Result<(), Refusal> {
    let Some((pull, result)) = star.peer.pulls.of_mut(psn) else { return Ok(()) };
    if !pull.is_atomic() {
        if !qp.access.contains(Access::REMOTE_READ) {
            return Err(Refusal::Rights);
        }
        let va = pull.wqe.va.wrapping_add(offset.into());
        let rkey = Key(pull.wqe.rkey);
        let span = nic.memory.check_remote(qp.pd, qp.num, rkey, va, len, RemoteRight::Read);
        out.payload.push(span.map_err(Refusal::Access)?);
        return Ok(());
    }
    let original = match pull.original {
        Some(original) => original,
        None => {
            let packet = pull.packet(0, true);
            let word = responder::atomic_target(qp, nic, &packet)?;
            responder::perform(&packet, (u64::MAX, u64::MAX), word)
        }
    };
    pull.original = Some(original);
    if result.is_none() {
        *result = QueueMemory::new(8).ok();
    }
    if let Some(result) = result {
        // As it stands in memory there: this side's order of bytes, the least significant one first.
        result.write(0, &original.to_le_bytes());
        out.payload.push(result.span(0, 8));
    }
    Ok(())
}
