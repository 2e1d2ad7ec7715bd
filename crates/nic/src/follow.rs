//! What becomes of requests, seen from outside: a follower looks at a NIC after each of its calls, and tells
//! what has been posted to send queues since, and what is done. The NIC knows nothing of it and pays nothing;
//! what is posted, done and polled between two looks is not seen.

use crate::attr::QpState;
use crate::congestion;
use crate::ids::QpId;
use crate::limits;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue::wqe::WqeOp;
use adverb_wire::{Gid, QpNumber};

/// What a follower has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "names say it")]
pub enum Followed {
    /// A queue pair has a peer.
    Connected { qp: QpNumber, peer: QpNumber, at: Gid },
    /// A request was posted, whose WQE starts at this block of the send queue. An inline or gathered payload
    /// has so many bytes.
    Posted { qp: QpNumber, block: u32, op: WqeOp, bytes: u32, wr_id: u64 },
    /// All requests before this block have ended; `in_error`: their queue pair is in the error state.
    Done { qp: QpNumber, end: u32, in_error: bool },
    /// So many packets may be unacknowledged now, and so many are.
    Window { qp: QpNumber, allowed: u32, unacked: u32 },
    /// The queue pair has gone, or begins anew: what it had posted has ended.
    Gone { qp: QpNumber },
}

/// A queue pair as it was seen last.
#[derive(Clone, Copy, Debug)]
struct Seen {
    id: QpId,
    num: QpNumber,
    peer: (QpNumber, Gid),
    posted: u32,
    done: u32,
    window: (u32, u32),
}

/// Follows the first [`limits::MAX_FOLLOWED`] queue pairs of a NIC's table; the transport-less ends of StaR
/// have no place there.
#[derive(Debug, Default)]
pub struct Follower {
    seen: Vec<Option<Seen>>,
}

/// One count of blocks lies before another one.
fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Follower {
    /// Tells what has changed since the last look.
    pub fn look(&mut self, nic: &Nic, tell: &mut dyn FnMut(Followed)) {
        let made = nic.counters().qps_created.min(limits::MAX_FOLLOWED as u64) as usize;
        self.seen.resize(made.max(self.seen.len()), None);
        for (index, seen) in self.seen.iter_mut().enumerate() {
            let pair = nic.qps.peek(index as u32);
            let qp = pair.map(|pair| &pair.qp);
            if let Some(old) = *seen
                && qp.is_none_or(|qp| qp.id != old.id || is_before(qp.sq.posted, old.posted))
            {
                tell(Followed::Gone { qp: old.num });
                *seen = None;
            }
            let Some(qp) = qp else { continue };
            let seen = seen.get_or_insert_with(|| Seen::begin(qp));
            seen.look(nic, qp, tell);
        }
    }
}

impl Seen {
    fn begin(qp: &Qp) -> Seen {
        let nobody = (QpNumber::default(), Gid::default());
        let (done, posted) = (qp.sq.released, qp.sq.released);
        Seen { id: qp.id, num: qp.num, peer: nobody, posted, done, window: (0, 0) }
    }

    fn look(&mut self, nic: &Nic, qp: &Qp, tell: &mut dyn FnMut(Followed)) {
        let num = self.num;
        let peer = (qp.peer, qp.dst);
        if peer != self.peer {
            self.peer = peer;
            tell(Followed::Connected { qp: num, peer: peer.0, at: peer.1 });
        }
        self.posted(qp, tell);
        let r = &qp.requester;
        // What was executed and is not in flight is done.
        let end = r.oldest().map_or(qp.sq.fetched, |entry| entry.block);
        if is_before(self.done, end) {
            self.done = end;
            tell(Followed::Done { qp: num, end, in_error: qp.state == QpState::Err });
        }
        if qp.is_reliable() {
            let (allowed, _) = congestion::allowed(qp, &nic.state);
            let window = (allowed, r.sent.since(r.una).max(0) as u32);
            if window != self.window {
                self.window = window;
                tell(Followed::Window { qp: num, allowed: window.0, unacked: window.1 });
            }
        }
    }

    fn posted(&mut self, qp: &Qp, tell: &mut dyn FnMut(Followed)) {
        let sq = &qp.sq;
        // An empty queue begins again at its first block: those between were not posted. One of cross-channel
        // verbs does not, and lets go of blocks itself; of what it has overwritten nothing can be told.
        let oldest = if sq.is_cross() { sq.posted.wrapping_sub(sq.ring.blocks()) } else { sq.released };
        let mut block = if is_before(self.posted, oldest) { oldest } else { self.posted };
        while is_before(block, sq.posted) {
            let left = sq.posted.wrapping_sub(block);
            // A WQE that nobody understands will fail; the one behind it starts where it says.
            let (op, bytes) = match sq.ring.decode(block, left, sq.layout()) {
                Ok(wqe) => (wqe.op, wqe.len),
                Err(_) => (WqeOp::Nop, 0),
            };
            let wr_id = qp.requester.wr_id(block);
            tell(Followed::Posted { qp: self.num, block, op, bytes, wr_id });
            block = block.wrapping_add(sq.ring.peek(block).1.clamp(1, left));
        }
        self.posted = sq.posted;
    }
}
