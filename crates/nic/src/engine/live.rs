//! What a send queue is doing, for who wants to see it from outside: how far it has come, and what it waits
//! for.

use crate::attr::QpState;
use crate::endpoint::Object;
use crate::error::Error;
use crate::ids::{CqId, QpId};
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue::wqe::WqeOp;
use crate::state::NicState;

/// How far a send queue has come. Indices count blocks and run freely modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveQueue {
    /// The queue pair's state.
    pub state: QpState,
    /// What was posted: the doorbell.
    pub posted: u32,
    /// How far it may be fetched: the doorbell, or of a managed queue what was enabled.
    pub enabled: u32,
    /// Copies of the WQEs before this one are at hand.
    pub cached: u32,
    /// The next WQE to be executed.
    pub next: u32,
    /// WQEs that have been executed and are not done.
    pub in_flight: u32,
    /// Blocks of the ring.
    pub blocks: u32,
    /// It is a cross-channel queue.
    pub cross: bool,
    /// Only ENABLEs let it be fetched.
    pub managed: bool,
    /// Messages to the queue pair that found no receive, modulo 2^32.
    pub not_ready: u32,
    /// Why it does not go on, if it does not.
    pub waits: Option<LiveWait>,
}

/// What a send queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveWait {
    /// A WAIT for the completion with this index, of a queue that has had so many.
    Completion {
        /// The completion queue.
        cq: CqId,
        /// Index of the completion.
        index: u32,
        /// Completions that were ever written there.
        produced: u64,
    },
    /// More to be enabled.
    Enable,
    /// Its rate.
    Rate,
    /// READs and atomics before it: for a fence, or for room among them.
    Answers,
}

impl Nic {
    /// The queue pairs whose send queues are cross-channel ones.
    pub fn cross_queues(&self) -> Vec<QpId> {
        let own = self.qps.iter().map(|(_, pair)| &pair.qp);
        own.filter(|qp| self.state.cross.get(qp.index()).is_some()).map(|qp| qp.id).collect()
    }

    /// How far a send queue has come, and what it waits for.
    pub fn live_queue(&self, id: QpId) -> Result<LiveQueue, Error> {
        Ok(match self.object(id)? {
            Object::On(pair) => live(&pair.qp, &self.state),
            Object::Off(_) => return Err(Error::Unsupported("an endpoint that is not lent does nothing")),
        })
    }
}

fn live(qp: &Qp, nic: &NicState) -> LiveQueue {
    let sq = &qp.sq;
    let cross = nic.cross.get(qp.index());
    let cached = cross.map_or(sq.fetched, |cross| cross.cached);
    LiveQueue {
        state: qp.state,
        posted: cross.map_or(sq.posted, |cross| cross.posted),
        enabled: sq.posted,
        cached,
        next: sq.fetched,
        in_flight: qp.requester.in_flight(),
        blocks: sq.ring.blocks(),
        cross: cross.is_some(),
        managed: cross.is_some_and(|cross| cross.managed),
        not_ready: qp.receiver.as_deref().map_or(0, |receiver| receiver.not_ready),
        waits: waits(qp, nic, cached),
    }
}

fn waits(qp: &Qp, nic: &NicState, cached: u32) -> Option<LiveWait> {
    if !qp.sq.has_unfetched() {
        let cross = nic.cross.get(qp.index()).filter(|cross| cross.managed)?;
        return (cross.posted.wrapping_sub(qp.sq.fetched) as i32 > 0).then_some(LiveWait::Enable);
    }
    if qp.control.as_deref().is_some_and(|control| control.waits()) {
        return Some(LiveWait::Rate);
    }
    // What is not at hand of a cross-channel queue is still the program's.
    let at_hand = if qp.sq.is_cross() { cached.wrapping_sub(qp.sq.fetched) } else { qp.sq.ring.blocks() };
    let wqe = qp.sq.ring.decode(qp.sq.fetched, at_hand.min(qp.sq.ring.blocks()), qp.sq.layout()).ok()?;
    let queue = nic.cqs.peek(wqe.queue_number()).filter(|_| wqe.op == WqeOp::Wait);
    if let Some(queue) = queue.filter(|queue| !queue.has_passed(wqe.queue_index())) {
        let cq = nic.cqs.id_at(wqe.queue_number())?;
        return Some(LiveWait::Completion { cq, index: wqe.queue_index(), produced: queue.produced });
    }
    super::execute::waits(qp, &wqe).then_some(LiveWait::Answers)
}
