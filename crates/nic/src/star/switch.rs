//! A connection changes its stack or its roles while it lasts: the handshake (StaR, VI, where it is future
//! work). Stacks are changed between plain RC and StaR only; roles are swapped through plain RC.
//!
//! ```text
//!   coordinator (is or will be stateful)             the other side
//!   begins nothing new    -- Quiesce(epoch) -->   begins nothing new, finishes what is in flight
//!                         <-- Quiesced -------
//!   has finished too      -- Commit ---------->   is it from now on
//!   is it from now on     <-- Done, or record --
//! ```
//!
//! The coordinator repeats every message until it is answered. The other side decides an attempt: once, by
//! taking the commit, or by its own patience or a refusal, and then the attempt is barred for ever. So a
//! coordinator that has sent a commit goes on asking; before, it may give up. Both sides go on from PSNs that
//! neither stack has used, and a new life of the stateless number has new tickets: late packets of an earlier
//! stack or role fit nothing.

use super::era::{Era, Step};
use super::stack::Rest;
use super::{Nic, Phase};
use crate::attr::QpState;
use crate::endpoint::{Object, Place};
use crate::error::Error;
use crate::event::{Event, StarOutcome, Why};
use crate::frame::TxFrame;
use crate::ids::QpId;
use crate::memory::Payload;
use crate::star::StarSide;
use adverb_wire::star::{Op, Side, StarEth, Switch, SwitchStep};
use adverb_wire::{Bth, Duration, Instant, Opcode, Operation, Packet, Psn, Service};

/// Attempts and questions after which a switch is given up.
pub(super) const TRIES: u8 = 12;
/// What the words of an API say, as they travel.
pub(super) fn side_of(side: StarSide) -> Option<Side> {
    match side {
        StarSide::Stateless => Some(Side::Stateless),
        StarSide::Stateful => Some(Side::Stateful),
        StarSide::Plain => Some(Side::Plain),
        StarSide::Undecided => None,
    }
}

/// Asked for here.
impl Nic {
    /// Changes what a connection is at this side, and with that its peer: the two finish what is in flight
    /// and go on with what is posted. It takes its time; [`Event::Star`] tells the end, whatever it is.
    pub fn star_switch(&mut self, now: Instant, qp: QpId, to: StarSide) -> Result<(), Error> {
        let Some(to) = side_of(to) else { return Err(Error::Invalid("role: none to be changed to")) };
        let name = match self.object(qp)? {
            Object::On(pair) => pair.qp.id,
            Object::Off(endpoint) => endpoint.id,
        };
        self.check_can_switch(name)?;
        if let Some(era) = self.era(name.index) {
            era.commanded = true;
        }
        self.aim(now, name, to, Why::Command);
        Ok(())
    }

    /// Every queue pair that may change its role, as far as it is connected.
    pub fn star_connections(&self) -> Vec<QpId> {
        let Some(star) = &self.star else { return Vec::new() };
        star.eras.keys().filter_map(|index| self.endpoints.name_at(*index)).collect()
    }

    /// Whether a change of a connection's is under way, or waits for its turn.
    pub fn star_is_changing(&self, qp: QpId) -> bool {
        let name = match self.object(qp) {
            Ok(Object::On(pair)) => pair.qp.id,
            Ok(Object::Off(endpoint)) => endpoint.id,
            Err(_) => return false,
        };
        let era = self.star.as_ref().and_then(|star| star.eras.get(&name.index));
        era.is_some_and(|era| !era.is_idle())
    }

    /// When a connection's newest change began to hold back what is posted; `None` before the first one. The
    /// pause lasts until [`Event::Star`] tells the end.
    pub fn star_held_since(&self, qp: QpId) -> Option<Instant> {
        let name = match self.object(qp).ok()? {
            Object::On(pair) => pair.qp.id,
            Object::Off(endpoint) => endpoint.id,
        };
        let era = self.star.as_ref()?.eras.get(&name.index)?;
        (era.held_since < Instant::NEVER).then_some(era.held_since)
    }

    fn check_can_switch(&self, name: QpId) -> Result<(), Error> {
        let era = self.star.as_ref().and_then(|star| star.eras.get(&name.index));
        let unsupported = |what| Err(Error::Unsupported(what));
        match era {
            None => return unsupported("changing the role of a connection that StaR does not carry"),
            Some(era) if era.unregistered => {
                return unsupported("changing the role of a connection whose rules the peer has not taken");
            }
            Some(_) => {}
        }
        match self.object(name)? {
            Object::On(pair) if pair.qp.state != QpState::Rts => Err(Error::WrongState),
            Object::Off(endpoint) if endpoint.state != QpState::Rts => Err(Error::WrongState),
            Object::On(pair) if pair.qp.sq.is_written_by_program() => {
                Err(Error::Unsupported("changing the role of a queue pair whose program writes its own WQEs"))
            }
            Object::On(pair) if pair.mode.keeps_state() && !pair.mode.is_star() => {
                Err(Error::Unsupported("changing the role of a queue pair that may speak IRN"))
            }
            _ => Ok(()),
        }
    }

    /// A side is to become something, from now on until it has or that is given up.
    pub(super) fn aim(&mut self, now: Instant, name: QpId, to: Side, why: Why) {
        let Some(era) = self.era(name.index) else { return };
        (era.goal, era.tries) = (Some((to, why)), 0);
        if era.step == Step::Asking {
            era.step = Step::Rest;
        }
        self.pursue(now, name);
    }

    pub(super) fn era(&mut self, index: u32) -> Option<&mut Era> {
        self.star.as_mut()?.eras.get_mut(&index).map(|era| &mut **era)
    }

    /// Whether one switch more may begin in this second.
    fn may_begin(&mut self, now: Instant) -> bool {
        let Some(star) = &mut self.star else { return false };
        if now.since(star.begun.0) >= Duration::from_ms(1000) {
            star.begun = (now, 0);
        }
        star.begun.1 += 1;
        star.begun.1 <= star.config.changes
    }

    /// Takes the next step towards what a side is to become.
    pub(super) fn pursue(&mut self, now: Instant, name: QpId) {
        let (interval, second) = self.star.as_ref().map_or((Duration::ZERO, now), |star| {
            (star.config.hello_interval, star.begun.0 + Duration::from_ms(1000))
        });
        let can = self.check_can_switch(name);
        let side = self.star_side(name).ok().and_then(side_of);
        let Some(era) = self.era(name.index) else { return };
        let Some((to, why)) = era.goal.filter(|_| era.step == Step::Rest) else { return };
        if side == Some(to) {
            era.goal = None;
            return;
        }
        let refuses = to == Side::Stateful && era.is_too_large;
        if can.is_err() || refuses || era.tries >= TRIES {
            era.goal = None;
            self.state.counters.star_switch_given_up += 1;
            self.state.event(Event::Star(name, StarOutcome::NotSwitched));
            return;
        }
        let Some(side) = side.filter(|_| self.may_begin(now)) else {
            // Undecided for a moment, or too many in this second.
            return self.look_at(name, if side.is_some() { second } else { now + interval });
        };
        let Some(era) = self.era(name.index) else { return };
        era.tries += 1;
        (era.why, era.begun, era.repeats) = (why, now, 0);
        match (side, to) {
            (Side::Plain, Side::Stateless) | (Side::Stateless, _) => {
                era.step = Step::Asking;
                let ask = if side == Side::Plain { Side::Stateful } else { Side::Plain };
                era.says = Some((SwitchStep::Ask, ask, era.epoch));
            }
            _ => {
                era.epoch = era.epoch.max(era.barred) + 1;
                era.held_since = now;
                era.step = Step::Quiescing { peer: None };
                era.to = if side == Side::Plain { Side::Stateful } else { Side::Plain };
                era.says = Some((SwitchStep::Quiesce, era.to.other(), era.epoch));
                self.hold(name, true);
            }
        }
        self.say(name);
    }

    /// Has the timers look at a connection's switch.
    pub(super) fn look_at(&mut self, name: QpId, at: Instant) {
        let Some(era) = self.era(name.index) else { return };
        era.at = at;
        if at < era.heap_at {
            era.heap_at = at;
            self.timers.enter(at, name.index);
        }
    }

    /// A connection has a message to send.
    pub(super) fn say(&mut self, name: QpId) {
        if let Some(star) = &mut self.star {
            star.says.push_back(name.index);
        }
        self.state.has_effects = true;
    }

    pub(super) fn answer(&mut self, name: QpId, step: SwitchStep, to: Side, epoch: u32) {
        if let Some(era) = self.era(name.index) {
            era.says = Some((step, to, epoch));
        }
        self.say(name);
    }
}

/// The handshake.
impl Nic {
    /// The peer says something of a switch.
    #[cold]
    pub(super) fn on_switch(&mut self, now: Instant, packet: &Packet, payload: &Payload<'_>) {
        let mut bytes = [0; Switch::LEN];
        let whole = payload.len() == Switch::LEN && !payload.is_elided();
        if whole {
            payload.read(0, &mut bytes);
        }
        let said = Switch::read(&bytes).filter(|_| whole);
        let index = self.numbers.owner(packet.bth.dest_qp);
        let name = match self.qps.at(index) {
            Some(pair) => Some(pair.qp.id),
            None => self.endpoints.name_at(index),
        };
        let fits = name.is_some_and(|name| self.may_say(name, packet, said.as_ref()));
        let (Some(name), Some(said)) = (name.filter(|_| fits), said) else {
            self.state.counters.star_drop_switch += 1;
            return;
        };
        self.hear_of_peer(name.index);
        match said.step {
            SwitchStep::Ask | SwitchStep::Compare if self.check_can_switch(name).is_err() => {
                self.state.counters.star_switch_refused += 1;
                self.answer(name, SwitchStep::Refused, said.to, said.epoch);
            }
            SwitchStep::Ask => self.aim(now, name, said.to, Why::Peer),
            SwitchStep::Compare => self.compare(now, name, (said.connections, said.threshold)),
            SwitchStep::Quiesce => self.on_quiesce(now, name, &said),
            SwitchStep::Quiesced => self.on_quiesced(now, name, &said),
            SwitchStep::Commit => self.on_commit(now, name, &said),
            SwitchStep::Done => self.on_done(now, name, said.epoch),
            SwitchStep::Resume => {
                if let Some(era) = self.era(name.index)
                    && era.step == Step::Held
                    && era.epoch == said.epoch
                {
                    self.end_attempt(now, name);
                }
            }
            SwitchStep::Refused => self.on_refused(now, name, &said),
        }
    }

    /// Whether a message is the peer's: by its source, its partition and where both directions began.
    fn may_say(&self, name: QpId, packet: &Packet, said: Option<&Switch>) -> bool {
        let Some(era) = self.star.as_ref().and_then(|star| star.eras.get(&name.index)) else { return false };
        let dst = match self.object(name) {
            Ok(Object::On(pair)) => pair.qp.dst,
            Ok(Object::Off(endpoint)) => endpoint.dst,
            Err(_) => return false,
        };
        let base = crate::admission::PKEY_BASE;
        let knows = said.is_some_and(|said| {
            Some(said.first.1) == era.first.0.map(Psn::get) && said.first.0 == era.first.1.get()
        });
        !self.has_failed(name) && knows && packet.flow.src == dst && packet.bth.pkey & base == base
    }

    fn on_quiesce(&mut self, now: Instant, name: QpId, said: &Switch) {
        if said.to == Side::Stateless
            && let Some(epoch) = self.era(name.index).map(|era| era.epoch)
            && said.epoch > epoch
        {
            // Only who is plain RC says so: a commit to that has been taken.
            self.on_done(now, name, epoch);
        }
        let side = self.star_side(name).ok().and_then(side_of);
        let can = self.check_can_switch(name).is_ok();
        let limit = self.drain_limit(name);
        let Some(era) = self.era(name.index) else { return };
        if era.epoch == said.epoch && era.step == Step::Held {
            return self.tell_quiet(name);
        }
        if said.epoch <= era.committed {
            // A copy from before the commit.
            return;
        }
        let fits = matches!(
            (side, said.to),
            (Some(Side::Plain), Side::Stateless) | (Some(Side::Stateless), Side::Plain)
        );
        // Who is held, and hears of another attempt, has missed the end of the one before.
        let free = matches!(era.step, Step::Rest | Step::Asking | Step::Held);
        if !fits || !can || !free || said.epoch <= era.epoch.max(era.barred) {
            // What was refused once is not taken when a copy of it comes.
            era.barred = era.barred.max(said.epoch);
            self.state.counters.star_switch_refused += 1;
            return self.answer(name, SwitchStep::Refused, said.to, said.epoch);
        }
        let mine = matches!(era.goal, Some((to, _)) if to == said.to);
        era.why = match era.proposed.take() {
            _ if mine => era.why,
            Some(to) if to == said.to => Why::Load,
            _ => Why::Peer,
        };
        (era.epoch, era.step, era.to) = (said.epoch, Step::Held, said.to);
        (era.begun, era.held_since) = (now, now);
        self.hold(name, true);
        self.look_at(name, now + limit.times(2));
        self.tell_quiet(name);
    }

    /// Tells the coordinator that nothing of this side's is in flight, if that is so.
    fn tell_quiet(&mut self, name: QpId) {
        let Some((epoch, to)) = self.era(name.index).map(|era| (era.epoch, era.to)) else { return };
        if self.rest(name, None) != Rest::InFlight {
            self.answer(name, SwitchStep::Quiesced, to, epoch);
        }
    }

    fn on_quiesced(&mut self, now: Instant, name: QpId, said: &Switch) {
        let Some(era) = self.era(name.index) else { return };
        let Step::Quiescing { peer } = &mut era.step else { return };
        if era.epoch != said.epoch {
            return;
        }
        if peer.is_none() && era.repeats == 0 {
            let took = now.since(era.said);
            era.round_trip = Some(era.round_trip.map_or(took, |old| old.min(took)));
        }
        *peer = Some(said.told);
        self.try_commit(now, name);
    }

    /// Something of a side that begins nothing new has come to its end.
    #[cold]
    pub(crate) fn on_held_moved(&mut self, now: Instant, name: QpId) {
        match self.era(name.index).map(|era| era.step) {
            Some(Step::Held) => self.tell_quiet(name),
            Some(Step::Quiescing { .. }) => self.try_commit(now, name),
            _ => {}
        }
    }

    /// Commits, once both sides are at rest.
    pub(super) fn try_commit(&mut self, now: Instant, name: QpId) {
        let Some(Step::Quiescing { peer: Some(told) }) = self.era(name.index).map(|era| era.step) else {
            return;
        };
        if self.has_failed(name) {
            // At rest, but for good: it hears no answer.
            return self.give_up_commit(name);
        }
        let Rest::Whole(next) = self.rest(name, Some(told)) else { return };
        let Some(era) = self.era(name.index) else { return };
        (era.step, era.begun, era.repeats) = (Step::Committing { next }, now, 0);
        era.says = Some((SwitchStep::Commit, era.to.other(), era.epoch));
        self.say(name);
    }

    fn on_commit(&mut self, now: Instant, name: QpId, said: &Switch) {
        let Some(era) = self.era(name.index) else { return };
        if said.epoch <= era.committed {
            if said.epoch == era.committed && said.to == Side::Plain {
                self.answer(name, SwitchStep::Done, said.to, said.epoch);
            }
            return;
        }
        let held = era.step == Step::Held && era.epoch == said.epoch && era.to == said.to;
        let next = (Psn::new(said.next.1), Psn::new(said.next.0));
        if !held || !self.become_other(now, name, said.to, next) {
            self.state.counters.star_switch_refused += 1;
            if held {
                self.end_attempt(now, name);
            } else if let Some(era) = self.era(name.index) {
                era.barred = era.barred.max(said.epoch);
            }
            return self.answer(name, SwitchStep::Refused, said.to, said.epoch);
        }
        let Some(era) = self.era(name.index) else { return };
        (era.step, era.committed, era.changed, era.at) = (Step::Rest, era.epoch, now, Instant::NEVER);
        if said.to == Side::Plain {
            self.answer(name, SwitchStep::Done, said.to, said.epoch);
            self.pursue(now, name);
        }
    }

    fn on_done(&mut self, now: Instant, name: QpId, epoch: u32) {
        let Some(era) = self.era(name.index) else { return };
        let Step::Committing { next } = era.step else { return };
        if era.epoch != epoch || era.to != Side::Plain {
            return;
        }
        if self.become_plain(name, next) {
            self.finish(now, name);
        }
    }

    /// PSNs of the peer and this side from which a commit to StaR goes on, while its answer is waited for.
    pub(super) fn awaits_record(&mut self, name: QpId) -> bool {
        self.era(name.index)
            .is_some_and(|era| matches!(era.step, Step::Committing { .. }) && era.to == Side::Stateful)
    }

    /// The PSN of the peer's next request, if its being plain RC is waited for: such a request answers too.
    pub(crate) fn awaits_plain(&mut self, name: QpId) -> Option<Psn> {
        let era = self.era(name.index)?;
        match era.step {
            Step::Committing { next } if era.to == Side::Plain => Some(next.1),
            _ => None,
        }
    }

    /// A request of plain RC came from a peer whose being plain RC is waited for.
    pub(crate) fn on_plain_instead(&mut self, now: Instant, name: QpId) {
        if let Some(epoch) = self.era(name.index).map(|era| era.epoch) {
            self.on_done(now, name, epoch);
        }
    }

    /// This side has become what it was to become.
    pub(super) fn finish(&mut self, now: Instant, name: QpId) {
        let Some(era) = self.era(name.index) else { return };
        (era.step, era.committed, era.changed, era.at) = (Step::Rest, era.epoch, now, Instant::NEVER);
        self.pursue(now, name);
    }

    /// The handing over of the state has ended.
    pub(super) fn pursue_on(&mut self, now: Instant, name: QpId) {
        self.pursue(now, name);
    }

    fn on_refused(&mut self, now: Instant, name: QpId, said: &Switch) {
        let Some(era) = self.era(name.index) else { return };
        if era.epoch != said.epoch {
            return;
        }
        match era.step {
            Step::Asking => {
                (era.step, era.goal) = (Step::Rest, None);
                self.state.counters.star_switch_given_up += 1;
                self.state.event(Event::Star(name, StarOutcome::NotSwitched));
            }
            Step::Quiescing { .. } | Step::Committing { .. } => {
                era.barred = era.barred.max(said.told);
                self.end_attempt(now, name);
            }
            Step::Rest | Step::Held => {}
        }
    }

    /// An attempt comes to nothing at this side: it goes on as before, and tries its own again later.
    pub(super) fn end_attempt(&mut self, now: Instant, name: QpId) {
        let limit = self.drain_limit(name);
        let wins = match self.object(name) {
            Ok(Object::On(pair)) => pair.qp.num < pair.qp.peer,
            Ok(Object::Off(endpoint)) => endpoint.num < endpoint.peer,
            Err(_) => return,
        };
        let Some(era) = self.era(name.index) else { return };
        era.bar();
        era.repeats = 0;
        // Two that get into each other's way wait differently.
        let after =
            Duration::from_ps(limit.as_ps() / if wins { 16 } else { 4 }).times(u64::from(era.tries) + 1);
        self.state.counters.star_switch_aborted += 1;
        self.hold(name, false);
        self.look_at(name, now + after);
    }

    /// Puts the next message of a switch into `out`.
    pub(super) fn put_switch(&mut self, now: Instant, out: &mut TxFrame) -> bool {
        while let Some(index) = self.star.as_mut().and_then(|star| star.says.pop_front()) {
            let Some(name) = self.endpoints.name_at(index) else { continue };
            let told = self.told_of(name);
            let Some(star) = &mut self.star else { return false };
            let (least, longest) = (self.state.irn.rto_low, star.config.hello_interval);
            let connections = star.eras.len() as u32;
            let Some(era) = star.eras.get_mut(&index) else { continue };
            if let Some(ticket) = era.refuses.take() {
                if era.says.is_some() {
                    star.says.push_back(index);
                }
                return self.put_refusal(name, ticket, out);
            }
            let (Some((step, to, epoch)), Some(first)) = (era.says.take(), era.first.0) else { continue };
            let next = match era.step {
                Step::Committing { next } => (next.0.get(), next.1.get()),
                _ => (0, 0),
            };
            let newest = era.epoch.max(era.barred);
            let said = Switch {
                step,
                to,
                epoch,
                first: (first.get(), era.first.1.get()),
                next,
                told: if step == SwitchStep::Refused { newest } else { told },
                connections,
                threshold: star.config.threshold,
            };
            era.said = now;
            let at = now + era.wait(longest, least);
            // What it waits for an answer to may have given way to this message: the timer says it again, and
            // no later because the peer goes on asking for something else.
            let repeats = matches!(era.step, Step::Asking | Step::Quiescing { .. } | Step::Committing { .. });
            let is_own = matches!(step, SwitchStep::Ask | SwitchStep::Quiesce | SwitchStep::Commit);
            let at = if is_own { at } else { at.min(era.at) };
            let Some(ends) = self.ends_of(name) else { continue };
            let Some(star) = &mut self.star else { return false };
            let opcode = Opcode::new(Service::Star, Operation::Hello);
            let bth = Bth { opcode, psn: Psn::new(0), ..Bth::default() };
            let eth = StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0);
            let sent = star.put(&ends, bth, eth, &said.bytes(), out);
            if repeats {
                self.look_at(name, at);
            }
            if sent {
                self.state.counters.star_switches_said += 1;
                return true;
            }
        }
        false
    }

    /// Send requests that were told to the peer, in all.
    fn told_of(&self, name: QpId) -> u32 {
        match self.endpoints.get(name) {
            Some(Place::Off(endpoint)) => endpoint
                .star
                .as_deref()
                .filter(|h| h.phase == Phase::Stateless)
                .map_or(0, |h| h.library.sends_told()),
            _ => 0,
        }
    }
}
