//! READs, WRITEs and atomics to a queue pair of the same NIC, or to the queue pair itself, as an adapter's
//! loopback has them: the checks of both ends and a copy in memory, in place of a packet that is built, sent,
//! taken in, acknowledged and completed.
//!
//! Nobody can tell the difference. Rights, bounds and order are those of packets, both ends' packet numbers
//! move on, and the counters count the request and its answer. So this is for what must go well: one packet,
//! a few pieces of memory, a connection in RTS that is idle both ways, and no rate, congestion control, IRN
//! or StaR that would have a say. Whatever is not so, every fault among it, goes by packets,
//! which know all rules and say what was broken.

use crate::attr::{QpState, QpType};
use crate::ids::{PathId, PdId};
use crate::limits;
use crate::memory::{Access, RemoteRight, Span, dma};
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::wqe::{Control, OPMOD_MASKED, WqeOp};
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::transport::incoming::Message;
use crate::transport::rc::responder;
use crate::transport::report::completion;
use crate::work::{CompletionOp, Sge, Status};
use adverb_wire::ext::MASKS_LEN;
use adverb_wire::{Gid, Instant, Operation, Psn, QpNumber};

/// Codepoint of congestion experienced (RFC 3168): packets that say so ask for notifications.
const MARKED: u8 = 3;

/// Pieces of memory of one request at most: a chain's READs fill several operands of its WQEs.
const PIECES: usize = 8;

/// The end of a connection that asks.
pub(crate) struct Asking {
    from: QpNumber,
    source: Gid,
    destination: Gid,
    psn: Psn,
    mtu: u32,
    answers: bool,
}

/// A connection whose requests may be carried out so, as long as nothing else is done with its ends.
pub(crate) struct Route {
    /// Index of the queue pair at the other end.
    pub peer: u32,
    number: QpNumber,
    pd: PdId,
    access: Access,
    mtu: u32,
    /// READs and atomics may be outstanding.
    answers: bool,
}

/// Whether an end of a connection is as plain as it must be.
fn is_plain(QueuePair { qp, mode }: &QueuePair) -> bool {
    qp.state == QpState::Rts
        && qp.qp_type == QpType::Rc
        && qp.path == PathId::LOOPBACK
        && !mode.keeps_state()
        && qp.control.is_none()
        && qp.traffic_class & MARKED != MARKED
}

/// The end that asks, if it has nothing in flight and nobody has a say in what it sends.
pub(crate) fn asking(pair: &QueuePair, nic: &NicState) -> Option<Asking> {
    let (qp, r) = (&pair.qp, &pair.qp.requester);
    let open = r.window.packets() == nic.congestion.ceiling;
    let idle = r.is_empty() && !r.rnr_wait && !r.has_failed && !qp.draining;
    (is_plain(pair) && open && idle).then(|| Asking {
        from: qp.num,
        source: qp.flow(nic).src,
        destination: qp.dst,
        psn: r.next_psn,
        mtu: qp.mtu(),
        answers: r.max_rd_atomic > 0,
    })
}

/// The way to the queue pair with this index, if it would take what is asked as the next request, and answer
/// at once.
pub(crate) fn route(pair: &QueuePair, index: u32, nic: &NicState, asking: &Asking) -> Option<Route> {
    let (qp, r) = (&pair.qp, &pair.qp.responder);
    let connected = qp.peer == asking.from && qp.dst == asking.source;
    let returns = qp.flow(nic).src == asking.destination;
    let next = r.expected == asking.psn && !r.has_output() && r.message() == Message::None;
    (is_plain(pair) && connected && returns && next).then(|| Route {
        peer: index,
        number: qp.num,
        pd: qp.pd,
        access: qp.access,
        mtu: asking.mtu.min(qp.mtu()),
        answers: asking.answers && r.depth > 0,
    })
}

/// What a request does at the other end, and its first data segment, if it is one that can be carried out so.
#[inline]
fn kind(control: Control) -> Option<(RemoteRight, u8)> {
    let masked = control.modifier == OPMOD_MASKED;
    match control.op? {
        WqeOp::Write if control.modifier == 0 => Some((RemoteRight::Write, 2)),
        WqeOp::Read => Some((RemoteRight::Read, 2)),
        WqeOp::CompareSwap | WqeOp::FetchAdd => Some((RemoteRight::Atomic, 3)),
        WqeOp::MaskedFetchAdd if masked => Some((RemoteRight::Atomic, 3)),
        WqeOp::MaskedCompareSwap if masked => Some((RemoteRight::Atomic, 4)),
        _ => None,
    }
}

/// Carries out the next WQE at hand, of which this is the control segment, at the end that asks. False if it
/// is no request that can be carried out so, or fails a check: then nothing has happened.
#[inline]
pub(crate) fn carry_out(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    control: Control,
    route: &Route,
    bounce: &mut [u8; limits::MAX_MTU],
) -> bool {
    let Some((kind, first)) = kind(control) else { return false };
    let block = qp.sq.fetched;
    let granted = route.access.contains(kind.access());
    if control.segments <= first || !granted || !(route.answers || kind == RemoteRight::Write) {
        return false;
    }
    let len = if control.segments == first + 1 {
        one_piece(qp, nic, control, kind, first, route, bounce)
    } else {
        several_pieces(qp, nic, control, kind, first, route, bounce)
    };
    let Some(len) = len else { return false };
    count(nic, control, kind, len);
    let r = &mut qp.requester;
    r.next_psn = r.next_psn.next();
    (r.una, r.sent) = (r.next_psn, r.next_psn);
    qp.sq.fetched = block.wrapping_add(control.blocks());
    if control.signaled {
        let operation = control.op.map_or(CompletionOp::Send, WqeOp::completion);
        let mut done = completion(qp, now, qp.requester.wr_id(block), operation, Status::Success);
        done.byte_len = if kind == RemoteRight::Write { 0 } else { len };
        nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: qp.sq.fetched }));
    }
    true
}

/// A request with one piece of memory: its length.
#[inline]
fn one_piece(
    qp: &Qp,
    nic: &NicState,
    control: Control,
    kind: RemoteRight,
    first: u8,
    route: &Route,
    bounce: &mut [u8; limits::MAX_MTU],
) -> Option<u32> {
    let block = qp.sq.fetched;
    let Sge { addr, len, lkey } = qp.sq.ring.data(block, first);
    let (va, rkey) = qp.sq.ring.target(block);
    let atomic = kind == RemoteRight::Atomic;
    if len == 0 || len > route.mtu || atomic && len != 8 {
        return None;
    }
    let remote = nic.memory.check_remote(route.pd, route.number, rkey, va, len, kind).ok()?;
    let lands = kind != RemoteRight::Write;
    let local = nic.memory.check_local(qp.pd, lkey, addr, len, lands).ok()?;
    if atomic {
        dma::write_bytes(local, &compute(qp, control, remote).to_ne_bytes());
        return Some(len);
    }
    let (to, from) = if lands { (local, remote) } else { (remote, local) };
    // By way of private memory, because where it comes from may be where it goes.
    let bytes = &mut bounce[..len as usize];
    dma::read_bytes(from, bytes);
    dma::write_bytes(to, bytes);
    Some(len)
}

/// A READ or WRITE with several pieces of memory.
#[inline(never)]
fn several_pieces(
    qp: &Qp,
    nic: &NicState,
    control: Control,
    kind: RemoteRight,
    first: u8,
    route: &Route,
    bounce: &mut [u8; limits::MAX_MTU],
) -> Option<u32> {
    let block = qp.sq.fetched;
    let (va, rkey) = qp.sq.ring.target(block);
    let mut pieces = [Span::EMPTY; PIECES];
    let pieces = pieces.get_mut(..usize::from(control.segments - first))?;
    if kind == RemoteRight::Atomic {
        return None;
    }
    let (lands, mut total) = (kind == RemoteRight::Read, 0);
    for (piece, segment) in pieces.iter_mut().zip(first..) {
        let Sge { addr, len, lkey } = qp.sq.ring.data(block, segment);
        // An inline one, which is no entry, is longer than any packet.
        if len > route.mtu - total {
            return None;
        }
        *piece = nic.memory.check_local(qp.pd, lkey, addr, len, lands).ok()?;
        total += len;
    }
    if total == 0 {
        return None;
    }
    let remote = nic.memory.check_remote(route.pd, route.number, rkey, va, total, kind).ok()?;
    let bytes = &mut bounce[..total as usize];
    if lands {
        dma::read_bytes(remote, bytes);
    }
    let mut at = 0;
    for piece in pieces.iter() {
        let part = &mut bytes[at..at + piece.len()];
        if lands {
            dma::write_bytes(*piece, part);
        } else {
            dma::read_bytes(*piece, part);
        }
        at += piece.len();
    }
    if !lands {
        dma::write_bytes(remote, bytes);
    }
    Some(total)
}

/// Computes an atomic with its word; what that was.
#[inline]
fn compute(qp: &Qp, control: Control, word: Span) -> u64 {
    let block = qp.sq.fetched;
    let mut masks = (u64::MAX, u64::MAX);
    let operation = match control.op {
        Some(WqeOp::CompareSwap) => Operation::CompareSwap,
        Some(WqeOp::MaskedCompareSwap) => {
            masks = qp.sq.ring.longs(block, 3);
            Operation::MaskedCompareSwap
        }
        Some(WqeOp::MaskedFetchAdd) => Operation::MaskedFetchAdd,
        _ => Operation::FetchAdd,
    };
    responder::compute(operation, qp.sq.ring.longs(block, 2), masks, word)
}

/// The request and its answer.
#[inline]
fn count(nic: &mut NicState, control: Control, kind: RemoteRight, len: u32) {
    let counters = &mut nic.counters;
    counters.tx_packets += 2;
    counters.rx_packets += 2;
    counters.loopback_packets += 2;
    let bytes = match kind {
        RemoteRight::Atomic if control.op == Some(WqeOp::MaskedCompareSwap) => MASKS_LEN as u64,
        RemoteRight::Atomic => 0,
        _ => len.into(),
    };
    counters.tx_bytes += bytes;
    counters.rx_bytes += bytes;
    if kind == RemoteRight::Write {
        counters.acks_sent += 1;
        counters.acks_received += 1;
    }
}

/// The other end has taken a request, and answered.
#[inline]
pub(crate) fn taken(qp: &mut Qp, control: Control) {
    let r = &mut qp.responder;
    r.expected = r.expected.next();
    r.gap.close();
    r.end_message();
    if control.op != Some(WqeOp::Write) {
        // All answers have arrived, so that no duplicate is one of theirs.
        r.forget_resources();
    }
}
