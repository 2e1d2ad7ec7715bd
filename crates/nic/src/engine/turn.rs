//! Whose turn it is, and what a turn comes to. A driver that takes no time for it runs turns back to back;
//! one that models several processing units names the queue pair of each step.

use crate::congestion;
use crate::engine::paths::Paths;
use crate::engine::step::{Effect, Intent, Next, SendStep, Step};
use crate::engine::wake::wake;
use crate::engine::{execute, fetch};
use crate::frame::TxFrame;
use crate::ids::{PathId, QpId};
use crate::limits;
use crate::memory::Payload;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::queue_pair::QueuePair;
use crate::silence::{Overdue, Silence};
use crate::slab::Held;
use crate::state::NicState;
use crate::transport::rc;
use crate::transport::{requester, ud};
use adverb_wire::Instant;

/// Turns.
impl Nic {
    /// The next frame, unless there is none, or it takes too many steps.
    #[inline]
    pub(crate) fn find_frame(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        let mut budget = limits::STEPS_WITHOUT_FRAME;
        // What is left of the budget when the turn of who is first ends. What a step does to others counts as
        // its own, and may be the last of a turn.
        let mut end = budget - limits::QUANTUM_OF_STEPS;
        while budget > 0 {
            if self.state.is_outside_due() {
                match self.step_first(now, out) {
                    Step::Idle => {}
                    Step::Answer(_) | Step::Stateless if out.path != PathId::LOOPBACK => return true,
                    Step::Answer(_) | Step::Stateless => {
                        budget = self.loop_back(now, out, budget);
                        continue;
                    }
                    _ => {
                        budget -= 1;
                        continue;
                    }
                }
            }
            let Some(index) = self.ready.front() else { return false };
            match self.step_at(index, now, out) {
                SendStep::Idle => self.ready.pop(),
                SendStep::Packet | SendStep::Answer => {
                    if out.path != PathId::LOOPBACK {
                        self.ready.served(index, self.quantum);
                        return true;
                    }
                    self.ready.served(index, self.quantum.min(limits::QUANTUM_OF_LOOPED_FRAMES));
                    budget = self.loop_back(now, out, budget);
                }
                step => {
                    budget = match step {
                        SendStep::Chain => self.run_chain(index, now, budget),
                        _ => budget - 1,
                    };
                    if budget <= end {
                        self.ready.pass(index);
                        end = budget.saturating_sub(limits::QUANTUM_OF_STEPS);
                    }
                }
            }
        }
        false
    }

    /// Takes in a frame that an own queue pair has sent to another one, or to itself: what is left of the
    /// budget. Its payload is copied first, as on a wire, because where it came from may be where it goes.
    #[inline(never)]
    fn loop_back(&mut self, now: Instant, out: &TxFrame, budget: u32) -> u32 {
        let mut bounce = self.bounce.take().unwrap_or_else(|| Box::new([0; limits::MAX_MTU]));
        let payload = &mut bounce[..out.payload.len()];
        out.payload.read(payload);
        self.state.counters.loopback_packets += 1;
        self.on_frame(now, &out.packet, &Payload::from_slice(payload));
        self.bounce = Some(bounce);
        budget.saturating_sub(limits::STEPS_OF_LOOPED_FRAME)
    }

    /// The next step, whoever's it is.
    pub(crate) fn next_step(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        match self.step_outside(now, out) {
            Step::Idle => {}
            step => return step,
        }
        while let Some(index) = self.ready.front() {
            let id = self.name_at(index);
            match self.step_once(index, now, out) {
                SendStep::Idle => self.ready.pop(),
                step => {
                    if let SendStep::Packet | SendStep::Answer = step {
                        self.ready.served(index, self.quantum);
                    }
                    return id.map_or(Step::Idle, |id| step.of(id));
                }
            }
        }
        Step::Idle
    }

    /// [`Nic::step_outside`], apart from the way of a frame, which seldom needs it.
    #[cold]
    fn step_first(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        self.step_outside(now, out)
    }

    /// What goes before all queue pairs: notifications of congestion, and completions that the driver has put
    /// time before.
    #[inline]
    pub(crate) fn step_outside(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        if self.state.notifier.is_due()
            && let Some(id) = self.next_notification(out)
        {
            return Step::Answer(id);
        }
        if self.state.stepped
            && let Some((cq, entry)) = self.state.pending.pop_front()
        {
            self.state.write_completion(Held::new(cq), entry);
            return Step::Completed(cq);
        }
        if self.state.has_effects { self.step_effects(now, out) } else { Step::Idle }
    }

    /// Carries out what steps have done to other queue pairs, up to the first ENABLE; then what StaR has to
    /// say in the name of none.
    #[cold]
    fn step_effects(&mut self, now: Instant, out: &mut TxFrame) -> Step {
        while let Some(effect) = self.state.effects.pop_front() {
            if let Some(enabled) = self.take_effect(effect) {
                return Step::Enabled(enabled);
            }
        }
        if self.next_star_frame(now, out) || self.next_management(out) {
            return Step::Stateless;
        }
        self.state.has_effects = false;
        Step::Idle
    }

    /// Carries out what a step has done to another queue pair, which is named if that was an ENABLE.
    pub(crate) fn take_effect(&mut self, effect: Effect) -> Option<QpId> {
        match effect {
            Effect::Release(release) => self.release(release),
            Effect::Wake { index } => {
                if let Some(pair) = self.qps.at(index)
                    && let Some(cross) = self.state.cross.get_mut(index)
                {
                    cross.waits_for = None;
                    wake(pair, &mut self.ready);
                }
            }
            Effect::EnableReceives { index, end } => {
                let qp = &mut self.qps.at(index)?.qp;
                qp.receiver.as_deref_mut()?.queue.enable(end);
                return Some(qp.id);
            }
            Effect::Enable { index, end } => {
                let pair = self.qps.at(index)?;
                pair.qp.sq.enable(end);
                wake(pair, &mut self.ready);
                return Some(pair.qp.id);
            }
        }
        None
    }

    /// A step of a queue pair by its name.
    pub(crate) fn step_named(&mut self, now: Instant, id: QpId, out: &mut TxFrame) -> Step {
        let Some(pair) = self.qps.get(self.inner_name(id)) else { return Step::Idle };
        if !pair.qp.ready {
            return Step::Idle;
        }
        let (index, taken) = (pair.qp.index(), pair.qp.taken);
        self.step_alone(index, taken, now, out).of(id)
    }

    /// A step of a queue pair by its name, if that sends a frame.
    pub(crate) fn send_named(&mut self, now: Instant, id: QpId, out: &mut TxFrame) -> Option<Step> {
        let QueuePair { qp, mode } = self.qps.get_mut(self.inner_name(id))?;
        let sends =
            qp.ready && (mode.owes(qp) && !qp.responder.held_back || requester::next(qp) == Next::Packet);
        if !sends {
            return None;
        }
        let (index, taken) = (qp.index(), qp.taken);
        Some(self.step_alone(index, taken, now, out).of(id))
    }

    /// A step of a queue pair that is ready, in the row or taken from it.
    #[inline]
    fn step_alone(&mut self, index: u32, taken: bool, now: Instant, out: &mut TxFrame) -> SendStep {
        let step = self.step_once(index, now, out);
        if step == SendStep::Idle && !taken {
            self.ready.remove(index);
        }
        step
    }

    /// What a queue pair would do next.
    pub(crate) fn intent_of(&mut self, id: QpId) -> Intent {
        let id = self.inner_name(id);
        let Some(QueuePair { qp, mode }) = self.qps.get_mut(id) else { return Intent::Nothing };
        if !qp.ready {
            return Intent::Nothing;
        }
        if mode.owes(qp) && !qp.responder.held_back {
            return Intent::Answer;
        }
        match requester::next(qp) {
            Next::Idle => Intent::Nothing,
            Next::Packet => Intent::Packet,
            Next::Fetch if qp.sq.is_cross() => fetch::intent_of_cross(qp, &self.state),
            Next::Fetch => match qp.sq.posted.wrapping_sub(qp.sq.fetched) {
                0 => Intent::Nothing,
                blocks => Intent::Fetch(blocks),
            },
            Next::Execute => {
                let wqe = qp.requester.loaded();
                Intent::Execute { op: wqe.op, waits: execute::waits(qp, wqe), calculates: 0 }
            }
        }
    }

    /// Takes the queue pair whose turn it is out of the row.
    pub(crate) fn take_turn(&mut self) -> Option<QpId> {
        while let Some(index) = self.ready.front() {
            self.ready.pop();
            if let Some(pair) = self.qps.at(index) {
                pair.qp.taken = true;
                return Some(pair.qp.id);
            }
        }
        None
    }

    /// [`Nic::step_at`] for drivers that take steps one by one, so that the way of a frame has it alone.
    #[inline(never)]
    fn step_once(&mut self, index: u32, now: Instant, out: &mut TxFrame) -> SendStep {
        match self.step_at(index, now, out) {
            SendStep::Chain => self.step_chain(index, now),
            step => step,
        }
    }

    /// A step of the queue pair with this index, which is ready. If it turns out to be idle, it must leave
    /// the row.
    #[inline(always)]
    fn step_at(&mut self, index: u32, now: Instant, out: &mut TxFrame) -> SendStep {
        loop {
            let Some(pair) = self.qps.at(index) else { return SendStep::Idle };
            let QueuePair { qp, mode } = pair;
            if self.some_blocked
                && let Some(path) = path_to_wait_for(qp, &self.state, &self.paths)
            {
                (qp.ready, qp.taken) = (false, false);
                if !qp.parked {
                    qp.parked = true;
                    self.paths.park(path, index);
                    self.state.counters.datagram_waits += u64::from(qp.is_datagram());
                }
                start_blocked_timer(qp, &self.state, now);
                self.timers.track(pair);
                return SendStep::Idle;
            }
            let step = rc::step(qp, mode, &mut self.state, now, out);
            self.timers.track(pair);
            let qp = &mut pair.qp;
            match step {
                SendStep::Packet if qp.is_datagram() && self.paths.is_blocked(out.path) => {
                    self.state.counters.drop_tx_blocked += 1;
                }
                SendStep::Packet | SendStep::Answer => {
                    self.state.counters.tx_packets += 1;
                    self.state.counters.tx_bytes += out.packet.payload_len as u64;
                    return step;
                }
                SendStep::Idle if pair.mode.owes(qp) && !qp.responder.held_back => {}
                SendStep::Idle => {
                    if let Some(control) = qp.control.as_deref_mut() {
                        self.timers.wait(control, index);
                    }
                    (qp.ready, qp.taken) = (false, false);
                    let stalled = qp.sends() && (qp.requester.has_unsent() || qp.sq.has_unfetched());
                    self.stalled = self.stalled + stalled as u32 - qp.stalled as u32;
                    qp.stalled = stalled;
                    return step;
                }
                _ => return step,
            }
        }
    }

    /// Notifications of congestion go before everything else. One whose path is blocked is left out: the next
    /// mark brings another.
    #[cold]
    fn next_notification(&mut self, out: &mut TxFrame) -> Option<QpId> {
        while let Some(index) = self.state.notifier.next() {
            let Some(QueuePair { qp, .. }) = self.qps.at(index) else { continue };
            if !qp.receives() || self.paths.is_blocked(qp.path) {
                continue;
            }
            out.payload.clear();
            out.payload.push(self.state.notifier.payload()?);
            out.packet = congestion::cnp(qp, &self.state);
            out.path = qp.path;
            let counters = &mut self.state.counters;
            counters.cnp_sent += 1;
            counters.tx_packets += 1;
            counters.tx_bytes += out.packet.payload_len as u64;
            return Some(qp.id);
        }
        None
    }

    /// Lets timers run out whose time has come. `ask` says what the driver knows of a peer's silence.
    pub(crate) fn run_timers(&mut self, now: Instant, mut ask: impl FnMut(&Overdue) -> Silence) {
        while let Some((index, at)) = self.timers.waited(now) {
            let Some(pair) = self.qps.at(index) else { continue };
            let QueuePair { qp, mode } = pair;
            if qp.control.as_deref_mut().is_some_and(|control| control.end_wait(at)) {
                rc::end_wait(qp, mode);
                wake(pair, &mut self.ready);
            }
        }
        while let Some((index, at)) = self.timers.expired(now) {
            let Some(pair) = self.qps.at(index) else {
                self.on_endpoint_timer(index, now, &mut ask);
                continue;
            };
            let QueuePair { qp, mode } = pair;
            if qp.heap_at != at {
                continue;
            }
            qp.heap_at = Instant::NEVER;
            let overdue = rc::overdue(qp, mode, &self.state, now);
            let silence = overdue.map_or(Silence::Unknown, |overdue| ask(&overdue));
            rc::on_timer(qp, mode, &mut self.state, now, silence);
            wake(pair, &mut self.ready);
            self.timers.track(pair);
        }
    }
}

/// The blocked path that a queue pair has to wait for: its own, or that of the datagram which is next.
#[cold]
fn path_to_wait_for(qp: &mut Qp, nic: &NicState, paths: &Paths) -> Option<PathId> {
    if !qp.is_datagram() {
        return paths.is_blocked(qp.path).then_some(qp.path);
    }
    if requester::next(qp) != Next::Packet || !qp.requester.is_loaded {
        return None;
    }
    let path = ud::path(qp, nic, qp.requester.loaded());
    paths.holds_datagrams(path).then_some(path)
}

/// A queue pair whose path is blocked must still notice that its peer is gone.
fn start_blocked_timer(qp: &mut Qp, nic: &NicState, now: Instant) {
    let owed = qp.is_reliable() && qp.requester.awaits_acknowledgement();
    if owed && qp.deadline == Instant::NEVER && qp.has_timeout() {
        qp.deadline = now + qp.rto(nic);
    }
}
