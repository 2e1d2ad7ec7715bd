//! READs, WRITEs and atomics to a queue pair of the same NIC, or to the queue pair itself, as an adapter's
//! loopback has them: the checks of both ends and a copy in memory, in place of a packet that is built, sent,
//! taken in, acknowledged and completed.
//!
//! Nobody can tell the difference. Rights, bounds and order are those of packets, both ends' packet numbers
//! move on, and the counters count the request and its answer. So this is for what must go well: one packet,
//! one piece of memory at each end (a READ's answer may land in several), a connection in RTS that is idle
//! both ways, and no rate, congestion control, IRN or StaR that would have a say. Whatever is not so, every
//! fault among it, goes by packets, which know all rules and say what was broken.

use crate::attr::{QpState, QpType};
use crate::ids::{PathId, PdId};
use crate::limits;
use crate::memory::{Access, Gather, RemoteRight, Span, dma};
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::wqe::{Operands, Wqe, WqeOp};
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::transport::incoming::Message;
use crate::transport::rc::responder;
use crate::transport::report::completion;
use crate::work::Status;
use adverb_wire::ext::MASKS_LEN;
use adverb_wire::{Gid, Instant, Operation, Psn, QpNumber};

/// Codepoint of congestion experienced (RFC 3168): packets that say so ask for notifications.
const MARKED: u8 = 3;

/// A request, and who asks.
pub(crate) struct Request {
    wqe: Wqe,
    from: QpNumber,
    source: Gid,
    destination: Gid,
    psn: Psn,
}

/// What the other end lets it do.
pub(crate) struct Right {
    pd: PdId,
    number: QpNumber,
}

/// Whether an end of a connection is as plain as it must be.
#[inline]
fn is_plain(QueuePair { qp, mode }: &QueuePair) -> bool {
    qp.state == QpState::Rts
        && qp.qp_type == QpType::Rc
        && qp.path == PathId::LOOPBACK
        && !mode.keeps_state()
        && qp.control.is_none()
        && qp.traffic_class & MARKED != MARKED
}

/// The next WQE at hand of a queue pair that has nothing in flight, if it can be carried out so.
#[inline]
pub(crate) fn request(pair: &QueuePair, nic: &NicState) -> Option<Request> {
    let qp = &pair.qp;
    let open = qp.requester.window.packets() == nic.congestion.ceiling;
    let r = &qp.requester;
    let idle = r.is_empty() && !r.rnr_wait && !r.has_failed && !qp.draining;
    if !is_plain(pair) || !open || !idle {
        return None;
    }
    let at_hand = nic.cross.get(qp.index())?.cached.wrapping_sub(qp.sq.fetched);
    let wqe = qp.sq.ring.decode(qp.sq.fetched, at_hand, qp.sq.layout()).ok()?;
    let pieces = wqe.segments.saturating_sub(wqe.data_segment);
    let one_piece = !wqe.inline && (pieces == 1 || pieces > 1 && wqe.op == WqeOp::Read);
    let one_packet = wqe.len > 0 && wqe.len <= qp.mtu() && (wqe.len == 8 || !wqe.op.is_atomic());
    let allowed = wqe.op == WqeOp::Write || qp.requester.max_rd_atomic > 0;
    let fits = one_piece && one_packet && allowed && !wqe.calc;
    fits.then(|| Request {
        wqe,
        from: qp.num,
        source: qp.flow(nic).src,
        destination: qp.dst,
        psn: qp.requester.next_psn,
    })
}

/// Whether the queue pair that a request is for would take it as the next one, and answer at once.
#[inline]
pub(crate) fn allow(pair: &QueuePair, nic: &NicState, request: &Request) -> Option<Right> {
    let (qp, wqe) = (&pair.qp, &request.wqe);
    let connected = qp.peer == request.from && qp.dst == request.source;
    let answers = qp.flow(nic).src == request.destination;
    let r = &qp.responder;
    let next = r.expected == request.psn && !r.has_output() && r.message() == Message::None;
    let granted = match wqe.op {
        WqeOp::Write => qp.access.contains(Access::REMOTE_WRITE),
        WqeOp::Read => qp.access.contains(Access::REMOTE_READ) && r.depth > 0,
        _ => qp.access.contains(Access::REMOTE_ATOMIC) && r.depth > 0,
    };
    let allowed = is_plain(pair) && connected && answers && next && granted && wqe.len <= qp.mtu();
    allowed.then_some(Right { pd: qp.pd, number: qp.num })
}

/// Carries a request out, at the end that asks. False if a check of memory fails: then nothing has happened.
#[inline]
pub(crate) fn carry_out(
    qp: &mut Qp,
    nic: &mut NicState,
    now: Instant,
    request: &Request,
    right: &Right,
    bounce: &mut [u8; limits::MAX_MTU],
) -> bool {
    let wqe = &request.wqe;
    let kind = match wqe.op {
        WqeOp::Write => RemoteRight::Write,
        WqeOp::Read => RemoteRight::Read,
        _ => RemoteRight::Atomic,
    };
    if wqe.data_segment + 1 < wqe.segments {
        return scatter(qp, nic, request, right, bounce) && end(qp, nic, now, request, wqe.len, wqe.len);
    }
    let entry = qp.sq.ring.sge(wqe, wqe.data_segment);
    let lands = wqe.op != WqeOp::Write;
    let Ok(local) = nic.memory.check_local(qp.pd, entry.lkey, entry.addr, wqe.len, lands) else {
        return false;
    };
    let Ok(remote) = nic.memory.check_remote(right.pd, right.number, wqe.rkey, wqe.raddr, wqe.len, kind)
    else {
        return false;
    };
    let (to, from) = if lands { (local, remote) } else { (remote, local) };
    let (mut sent, mut byte_len) = (wqe.len, 0);
    if wqe.op.is_atomic() {
        let operands = qp.sq.ring.operands(wqe);
        let was = atomic(qp, wqe, operands, remote);
        dma::write_bytes(local, &was.to_ne_bytes());
        byte_len = 8;
        sent = if wqe.op == WqeOp::MaskedCompareSwap { MASKS_LEN as u32 } else { 0 };
    } else {
        // By way of private memory, because where it comes from may be where it goes.
        let bytes = &mut bounce[..wqe.len as usize];
        dma::read_bytes(from, bytes);
        dma::write_bytes(to, bytes);
        if lands {
            byte_len = wqe.len;
        }
    }
    end(qp, nic, now, request, sent, byte_len)
}

/// Carries out a READ whose answer lands in several pieces of memory, all of which are checked before any is
/// written.
#[inline(never)]
fn scatter(
    qp: &Qp,
    nic: &NicState,
    request: &Request,
    right: &Right,
    bounce: &mut [u8; limits::MAX_MTU],
) -> bool {
    let wqe = &request.wqe;
    let remote = (wqe.rkey, wqe.raddr, wqe.len);
    let from =
        nic.memory.check_remote(right.pd, right.number, remote.0, remote.1, remote.2, RemoteRight::Read);
    let (Ok(from), mut pieces) = (from, Gather::new()) else { return false };
    for segment in wqe.data_segment..wqe.segments {
        let entry = qp.sq.ring.sge(wqe, segment);
        match nic.memory.check_local(qp.pd, entry.lkey, entry.addr, entry.len, true) {
            Ok(piece) => pieces.push(piece),
            Err(_) => return false,
        }
    }
    if pieces.len() != wqe.len as usize {
        return false;
    }
    let bytes = &mut bounce[..wqe.len as usize];
    dma::read_bytes(from, bytes);
    let mut rest = &bytes[..];
    for piece in pieces.spans() {
        let (first, others) = rest.split_at(piece.len());
        dma::write_bytes(*piece, first);
        rest = others;
    }
    true
}

/// What a request that was carried out leaves behind, with so many bytes sent and received.
#[inline]
fn end(qp: &mut Qp, nic: &mut NicState, now: Instant, request: &Request, sent: u32, byte_len: u32) -> bool {
    let wqe = &request.wqe;
    count(nic, wqe.op, sent.into());
    let r = &mut qp.requester;
    r.next_psn = request.psn.next();
    (r.una, r.sent) = (r.next_psn, r.next_psn);
    qp.sq.fetched = wqe.block.wrapping_add(wqe.blocks());
    if wqe.signaled {
        let mut done =
            completion(qp, now, qp.requester.wr_id(wqe.block), wqe.op.completion(), Status::Success);
        done.byte_len = byte_len;
        nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: qp.sq.fetched }));
    }
    true
}

#[inline]
fn atomic(qp: &Qp, wqe: &Wqe, of: Operands, word: Span) -> u64 {
    let mut masks = (u64::MAX, u64::MAX);
    let operation = match wqe.op {
        WqeOp::CompareSwap => Operation::CompareSwap,
        WqeOp::MaskedCompareSwap => {
            masks = qp.sq.ring.masks(wqe);
            Operation::MaskedCompareSwap
        }
        WqeOp::MaskedFetchAdd => Operation::MaskedFetchAdd,
        _ => Operation::FetchAdd,
    };
    responder::compute(operation, (of.swap_add, of.compare), masks, word)
}

/// The request and its answer, with so many bytes of payload in one of them.
#[inline]
fn count(nic: &mut NicState, op: WqeOp, bytes: u64) {
    let counters = &mut nic.counters;
    counters.tx_packets += 2;
    counters.rx_packets += 2;
    counters.loopback_packets += 2;
    counters.tx_bytes += bytes;
    counters.rx_bytes += bytes;
    if op == WqeOp::Write {
        counters.acks_sent += 1;
        counters.acks_received += 1;
    }
}

/// The other end has taken the request, and answered.
#[inline]
pub(crate) fn taken(qp: &mut Qp, request: &Request) {
    let r = &mut qp.responder;
    r.expected = request.psn.next();
    r.nak_sent = false;
    r.end_message();
    if request.wqe.op != WqeOp::Write {
        // All answers have arrived, so that no duplicate is one of theirs.
        r.forget_resources();
    }
}
