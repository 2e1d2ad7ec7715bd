//! What a switch does to a connection's queues: nothing new is begun, all that is in flight ends, and then
//! they go from one stack to the other, with whatever is posted. [`super::switch`] says when.

use super::frames::Ends;
use super::library::{Library, RECEIVES, SENDS};
use super::{Hosted, Nic, Phase};
use crate::attr::QpState;
use crate::endpoint::{Endpoint, Object, Place};
use crate::engine::wake::wake;
use crate::event::{Event, StarOutcome};
use crate::ids::QpId;
use crate::queue_pair::QueuePair;
use crate::star::{StarSide, grant_of};
use crate::transport::incoming::Message;
use crate::transport::rc::star::Star;
use crate::transport::requester;
use adverb_wire::star::{Side, features};
use adverb_wire::{Instant, Psn};

/// How far a side has come to rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    InFlight,
    /// Its own requests are done.
    Own,
    /// Both directions', with the PSNs from which this side and the peer go on.
    Whole((Psn, Psn)),
}

impl Nic {
    /// A connection begins nothing new, or goes on.
    pub(super) fn hold(&mut self, name: QpId, on: bool) {
        match self.endpoints.get_mut(name) {
            Some(Place::Off(endpoint)) => {
                if let Some(hosted) = endpoint.star.as_deref_mut() {
                    hosted.held = on;
                }
                if !on {
                    self.star_due(name);
                }
            }
            Some(Place::On(inner)) => {
                let inner = *inner;
                let Some(pair) = self.qps.get_mut(inner) else { return };
                pair.qp.held = on;
                if pair.qp.state == QpState::Sqd {
                    // Its program may wait to be told that it has drained.
                    pair.qp.draining = true;
                } else {
                    pair.qp.draining = on;
                }
                if !on {
                    if pair.qp.state == QpState::Sqd {
                        // When it drained is not known any more, so the event comes now.
                        requester::settle(&mut pair.qp, &mut self.state, Instant::ZERO);
                    }
                    wake(pair, &mut self.ready);
                }
            }
            None => {}
        }
    }

    /// How far a side is at rest. The stateful one has heard of so many of its peer's send requests that
    /// there are `told` of them.
    pub(super) fn rest(&self, name: QpId, told: Option<u32>) -> Rest {
        let pair = match self.object(name) {
            Ok(Object::On(pair)) => pair,
            // What the host has told is the peer's to end.
            Ok(Object::Off(_)) => return Rest::Own,
            Err(_) => return Rest::InFlight,
        };
        let QueuePair { qp, mode } = pair;
        if !qp.requester.is_empty() {
            return Rest::InFlight;
        }
        let between = qp.responder.message() == Message::None && !qp.responder.receive_taken;
        if !between {
            return Rest::Own;
        }
        match mode.star() {
            None => Rest::Whole((qp.requester.next_psn(), qp.responder.expected())),
            Some(star) => match told.and_then(|told| star.next_psns(qp, told)) {
                Some(next) => Rest::Whole(next),
                None => Rest::Own,
            },
        }
    }

    /// The commit: this side, which does not coordinate, becomes the other thing. False if it cannot, and
    /// nothing has changed.
    pub(super) fn become_other(&mut self, now: Instant, name: QpId, to: Side, next: (Psn, Psn)) -> bool {
        match to {
            Side::Plain => self.become_plain_again(name, next),
            Side::Stateless => self.rest(name, None) == Rest::Whole(next) && self.become_stateless(now, name),
            Side::Stateful => false,
        }
    }

    /// The stateless side's host gets a queue pair.
    fn become_plain_again(&mut self, name: QpId, next: (Psn, Psn)) -> bool {
        let why = self.why(name);
        if !self.qps.has_room() {
            return false;
        }
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return false };
        let at_rest = |hosted: &Hosted| {
            hosted.phase == Phase::Stateless
                && hosted.library.is_done()
                && hosted.library.is_before(hosted.base, next.0)
        };
        if !endpoint.star.as_deref().is_some_and(at_rest) {
            return false;
        }
        endpoint.go_on_at(next);
        self.leave_for(name, StarOutcome::Switched(StarSide::Plain, why));
        matches!(self.endpoints.get(name), Some(Place::On(_)))
    }

    /// The peer is to have the state of what has been plain RC.
    fn become_stateless(&mut self, now: Instant, name: QpId) -> bool {
        if !self.take_back_quiet(name) {
            return false;
        }
        let connections = self.qps.len() as u32;
        let Some(star) = &mut self.star else { return false };
        let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) else { return false };
        endpoint.keep_starts();
        let told = star.hello(endpoint, connections);
        let (num, dst) = (endpoint.num, endpoint.dst);
        let spoken = star.eras.get(&name.index).map_or(0, |era| era.features);
        let features = features::agreed(spoken, told.features);
        let ticket = star.stateless.bring_to_life(num, dst, grant_of(endpoint, features));
        let mut library = Library::new(endpoint.sq.fetched);
        library.begin_receives(endpoint.receives_waiting());
        library.heard_at(now);
        let base = endpoint.next_psn();
        let handing = Hosted::new(told, library);
        endpoint.star = Some(Box::new(Hosted {
            phase: Phase::Handing,
            ask: false,
            hand_over: true,
            ticket,
            base,
            features,
            switched: true,
            ..handing
        }));
        self.star_due(name);
        true
    }

    /// The coordinator becomes plain RC, since its peer has.
    pub(super) fn become_plain(&mut self, name: QpId, next: (Psn, Psn)) -> bool {
        let why = self.why(name);
        if !self.take_back_quiet(name) {
            return false;
        }
        if let Some(Place::Off(endpoint)) = self.endpoints.get_mut(name) {
            endpoint.go_on_at(next);
        }
        self.leave_for(name, StarOutcome::Switched(StarSide::Plain, why));
        true
    }

    /// The coordinator gets the state that its peer hands over. False if it is not at rest.
    pub(super) fn become_stateful(
        &mut self,
        now: Instant,
        name: QpId,
        star: impl FnOnce(&Nic) -> Star,
    ) -> bool {
        let why = self.why(name);
        if !matches!(self.rest(name, None), Rest::Whole(_)) || !self.take_back_quiet(name) {
            return false;
        }
        let star = star(self);
        self.leave_in(name, StarOutcome::Switched(StarSide::Stateful, why), Some(star));
        self.finish(now, name);
        true
    }

    pub(super) fn why(&mut self, name: QpId) -> crate::event::Why {
        self.era(name.index).map_or(crate::event::Why::Peer, |era| era.why)
    }

    /// What became of a connection whose state was handed over: agreed on, or switched to.
    pub(super) fn tell_stateless(&mut self, name: QpId, switched: bool) {
        let outcome = if switched {
            self.state.counters.star_to_stateless += 1;
            StarOutcome::Switched(StarSide::Stateless, self.why(name))
        } else {
            self.state.counters.star_agreed += 1;
            StarOutcome::Stateless
        };
        self.state.event(Event::Star(name, outcome));
    }

    /// Ends of a connection, for messages of a switch.
    pub(super) fn ends_of(&self, name: QpId) -> Option<Ends> {
        Some(match self.object(name).ok()? {
            Object::On(QueuePair { qp, .. }) => Ends {
                flow: qp.flow(&self.state),
                peer: qp.peer,
                path: qp.path,
                expected: qp.responder.expected(),
            },
            Object::Off(endpoint) => Ends {
                flow: endpoint.flow(&self.state.gids),
                peer: endpoint.peer,
                path: endpoint.path,
                expected: endpoint.expected(),
            },
        })
    }
}

impl Endpoint {
    /// Receives that were posted and taken before.
    fn receives_waiting(&self) -> u32 {
        self.receiver.as_deref().map_or(0, |receiver| receiver.queue.waiting().0)
    }
}

impl Library {
    /// Whether every number that was used comes before this one.
    fn is_before(&self, base: Psn, next: Psn) -> bool {
        [SENDS, RECEIVES].iter().all(|queue| self.number(base, *queue, self.told[*queue]).is_before(next))
    }

    /// Whether nothing that was told is under way.
    fn is_done(&self) -> bool {
        self.done == self.told[SENDS]
    }
}
