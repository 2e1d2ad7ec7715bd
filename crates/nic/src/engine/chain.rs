//! Running a chain: WQEs of a cross-channel queue one after the other, in one turn.
//!
//! A driver that charges for each step takes them one by one ([`super::fetch`], [`super::execute`]). Where
//! nobody does, what a chain is mostly made of needs no more than a look at its WQE: NOPs, WAITs that are
//! met, ENABLEs, and requests to a queue pair of the same NIC, which are copies in its memory
//! ([`crate::transport::rc::direct`]). The outcome is the one that single steps have. Whatever else comes (a
//! WAIT that is not met, a frame to send, a fault) is left to the single step, which knows all rules.
//!
//! Others do not wait for longer than before: a turn has as many steps, and a request to the own NIC counts
//! as the two frames that it would have been.

use super::fetch;
use super::step::SendStep;
use super::wake::wake;
use crate::attr::QpState;
use crate::ids::PdId;
use crate::limits;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue::cq::Release;
use crate::queue::wqe::{Control, WqeOp};
use crate::queue_pair::QueuePair;
use crate::state::NicState;
use crate::transport::rc::direct::{self, Route};
use crate::transport::report::completion;
use crate::work::{CompletionOp, Status};
use adverb_wire::{Instant, QpNumber};

/// What a WQE of a chain comes to.
enum Link {
    /// Nothing is to be done.
    Done,
    /// It lets the managed send queue with this number be fetched further, up to this end.
    Enable(u32, u16),
    /// The same of a receive queue.
    EnableReceives(u32, u16),
    /// It may be a request to a queue pair of this NIC.
    Request,
    /// It is a WAIT that is not met, and stands in the row of the completion queue.
    Wait,
    /// It needs a step of its own.
    Single,
}

impl Nic {
    /// Runs the chain of the queue pair with this index, whose turn it is: what is left of the budget.
    #[inline(never)]
    pub(crate) fn run_chain(&mut self, index: u32, now: Instant, budget: u32) -> u32 {
        let (mut left, mut worked) = (budget, 0);
        // Nothing but this chain does anything with its ends meanwhile.
        let mut route = None;
        loop {
            let Some(QueuePair { qp, .. }) = self.qps.at(index) else { return left };
            if !qp.sq.has_unfetched() {
                return left;
            }
            let (link, control, fetched) = next_link(qp, &mut self.state);
            let mut steps = 1 + fetched;
            let (pd, own) = (qp.pd, qp.num.get());
            let is_done = match link {
                Link::Done => true,
                Link::Enable(number, end) => self.enable_sends(pd, number, end),
                Link::EnableReceives(number, end) => self.enable_receives(pd, number, end),
                Link::Wait => return left.saturating_sub(steps),
                Link::Request | Link::Single => false,
            };
            if is_done {
                if let Some(QueuePair { qp, .. }) = self.qps.at(index) {
                    pass(qp, &mut self.state, now, control);
                }
                // Whoever is let go on goes first: what a queue does behind that is mostly for later.
                if matches!(link, Link::Enable(number, _) if number != own) {
                    worked += limits::QUANTUM_OF_STEPS;
                }
            } else if matches!(link, Link::Request) && self.request_directly(index, now, control, &mut route)
            {
                worked += limits::QUANTUM_OF_STEPS;
                steps += 2 * limits::STEPS_OF_LOOPED_FRAME;
            } else {
                self.step_chain(index, now);
                return left.saturating_sub(steps);
            }
            // What nobody polls makes room, and who waited goes on.
            if self.state.has_effects {
                self.take_effects();
            }
            worked += steps;
            left = left.saturating_sub(steps);
            if worked >= limits::QUANTUM_OF_STEPS && self.ready.has_others() {
                self.ready.pass(index);
                return left;
            }
            if left == 0 || self.state.notifier.is_due() {
                return left;
            }
        }
    }

    #[inline(never)]
    fn take_effects(&mut self) {
        while let Some(effect) = self.state.effects.pop_front() {
            self.take_effect(effect);
        }
        self.state.has_effects = self.star.is_some() || self.native.is_some() || self.has_mads();
    }

    /// An ENABLE of a send queue, unless it breaks a rule.
    #[inline]
    fn enable_sends(&mut self, pd: PdId, number: u32, end: u16) -> bool {
        let number = QpNumber::new(number);
        let index = self.numbers.owner(number);
        let managed = self.state.cross.get(index).is_some_and(|cross| cross.managed);
        let Some(pair) = self.qps.at(index).filter(|pair| managed && pair.qp.num == number) else {
            return false;
        };
        if pair.qp.pd != pd || !matches!(pair.qp.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        pair.qp.sq.enable(end);
        wake(pair, &mut self.ready);
        true
    }

    /// An ENABLE of a receive queue, unless it breaks a rule.
    #[inline]
    fn enable_receives(&mut self, pd: PdId, number: u32, end: u16) -> bool {
        let number = QpNumber::new(number);
        let Some(QueuePair { qp, .. }) = self.qps.at(self.numbers.owner(number)) else { return false };
        let ours = qp.num == number && qp.pd == pd && !matches!(qp.state, QpState::Reset | QpState::Err);
        match qp.receiver.as_deref_mut() {
            Some(receiver) if ours && receiver.queue.is_managed() => receiver.queue.enable(end),
            _ => return false,
        }
        true
    }

    /// A single step of a chain.
    #[cold]
    pub(crate) fn step_chain(&mut self, index: u32, now: Instant) -> SendStep {
        let Some(pair) = self.qps.at(index) else { return SendStep::Idle };
        let step = fetch::fetch_cross(&mut pair.qp, &mut self.state, now);
        self.timers.track(pair);
        step
    }

    /// The way from a queue pair to its peer, if requests may be carried out there without packets.
    #[inline(never)]
    fn route(&mut self, index: u32) -> Option<Route> {
        let pair = self.qps.at(index)?;
        let asking = direct::asking(pair, &self.state)?;
        let peer = self.numbers.owner(pair.qp.peer);
        direct::route(self.qps.at(peer)?, peer, &self.state, &asking)
    }

    /// Carries out the next WQE of a queue pair as a request to a queue pair of this NIC, if it is one and
    /// nothing stands in its way. The route is looked up if it is not known yet.
    #[inline]
    fn request_directly(
        &mut self,
        index: u32,
        now: Instant,
        control: Control,
        route: &mut Option<Route>,
    ) -> bool {
        if route.is_none() {
            *route = self.route(index);
        }
        let Some(route) = route else { return false };
        let Some(QueuePair { qp, .. }) = self.qps.at(index) else { return false };
        let bounce = self.bounce.get_or_insert_with(|| Box::new([0; limits::MAX_MTU]));
        if !direct::carry_out(qp, &mut self.state, now, control, route, bounce) {
            return false;
        }
        if let Some(QueuePair { qp, .. }) = self.qps.at(route.peer) {
            direct::taken(qp, control);
        }
        true
    }
}

/// Looks at the next WQE of a chain. How many fetches it took.
#[inline(always)]
fn next_link(qp: &Qp, nic: &mut NicState) -> (Link, Control, u32) {
    let (block, posted) = (qp.sq.fetched, qp.sq.posted);
    let Some(cross) = nic.cross.get_mut(qp.index()) else { return (Link::Single, Control::NONE, 0) };
    let mut fetched = 0;
    if cross.cached == block {
        cross.read_ahead(&qp.sq.ring, block, posted);
        fetched = 1;
    }
    let at_hand = cross.cached.wrapping_sub(block);
    let control = qp.sq.ring.control(block);
    let blocks = control.blocks();
    if blocks == 0 || blocks > at_hand {
        return (Link::Single, control, fetched);
    }
    let link = match control.op {
        Some(WqeOp::Nop) => Link::Done,
        Some(op) if op.acts_on_queues() && control.segments < 2 => Link::Single,
        Some(WqeOp::Wait) if control.modifier == 0 => {
            let (cq, index) = qp.sq.ring.queue_of(block);
            match nic.cqs.at(cq) {
                Some(queue) if queue.failed_before(index).is_some() => Link::Single,
                Some(queue) if queue.has_passed(index) => Link::Done,
                Some(queue) if !queue.is_overrun() && cross.waits_for.is_none() => {
                    cross.waits_for = Some(cq);
                    queue.wait_for(index, qp.index());
                    Link::Wait
                }
                _ => Link::Single,
            }
        }
        Some(WqeOp::SendEnable) => {
            let (number, end) = qp.sq.ring.queue_of(block);
            Link::Enable(number, end as u16)
        }
        Some(WqeOp::RecvEnable) => {
            let (number, end) = qp.sq.ring.queue_of(block);
            Link::EnableReceives(number, end as u16)
        }
        Some(op) if op.awaits_response() || op == WqeOp::Write => Link::Request,
        _ => Link::Single,
    };
    (link, control, fetched)
}

/// The next WQE has been executed, and is done.
#[inline(always)]
fn pass(qp: &mut Qp, nic: &mut NicState, now: Instant, control: Control) {
    let block = qp.sq.fetched;
    qp.sq.fetched = block.wrapping_add(control.blocks());
    if control.signaled {
        let done = completion(qp, now, qp.requester.wr_id(block), CompletionOp::Send, Status::Success);
        nic.complete(qp.send_cq, done, Some(Release::Send { qp: qp.id, end: qp.sq.fetched }));
    }
}
