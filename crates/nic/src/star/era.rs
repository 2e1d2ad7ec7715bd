//! What one side knows of its connection's switches ([`super::switch`]), and what it does when nothing comes:
//! repeats, gives an attempt up, or waits no longer for a peer that has gone.

use super::Nic;
use super::switch::TRIES;
use crate::endpoint::Object;
use crate::event::{Event, StarOutcome, Why};
use crate::ids::QpId;
use crate::qp::ack_timeout;
use crate::star::StarSide;
use adverb_wire::star::{Side, SwitchStep, Ticket};
use adverb_wire::{Duration, Instant, Psn};

/// Of the waits, the longest has so many doublings.
const DOUBLINGS_MAX: u8 = 4;

/// How far a switch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Rest,
    /// The peer is asked to begin.
    Asking,
    /// Coordinator: both sides finish; the peer has, once it has told so many send requests in all.
    Quiescing {
        peer: Option<u32>,
    },
    /// Coordinator: the peer may have switched.
    Committing {
        next: (Psn, Psn),
    },
    /// The peer coordinates.
    Held,
}

/// What a side knows of its connection's switches.
#[derive(Debug)]
pub(super) struct Era {
    /// First PSNs of the connection, this side's and the peer's: who knows both is the peer.
    pub first: (Option<Psn>, Psn),
    /// The newest attempt that this side has begun or taken part in; the last one that came to something; of
    /// those up to `barred` no other will.
    pub epoch: u32,
    pub committed: u32,
    pub barred: u32,
    pub step: Step,
    /// What this side becomes by the attempt.
    pub to: Side,
    pub goal: Option<(Side, Why)>,
    pub why: Why,
    pub tries: u8,
    pub repeats: u8,
    /// When to look again, and when the timers will.
    pub at: Instant,
    pub heap_at: Instant,
    /// When the attempt began, or a message of it was sent; when the last switch ended.
    pub begun: Instant,
    pub said: Instant,
    pub changed: Instant,
    /// When the newest attempt began to hold back what is posted.
    pub held_since: Instant,
    pub round_trip: Option<Duration>,
    /// A message to be sent, with its epoch.
    pub says: Option<(SwitchStep, Side, u32)>,
    /// Since when policy has wanted something else.
    pub wanted: Option<(Side, Instant)>,
    /// What policy has told the peer that it wants.
    pub proposed: Option<Side>,
    /// The peer is known to speak StaR: policy says nothing to others.
    pub speaks: bool,
    /// Extensions that it wants, as its last hello has told.
    pub features: u8,
    /// It has longer queues than this side would keep; and its record, which says so, is to be refused.
    pub is_too_large: bool,
    pub refuses: Option<Ticket>,
    /// A command has chosen what this side is: policy leaves it so.
    pub commanded: bool,
    /// It stays plain RC: the peer's registry has not taken this side's rules.
    pub unregistered: bool,
}

impl Era {
    pub fn new(peer: Psn) -> Era {
        Era {
            first: (None, peer),
            epoch: 0,
            committed: 0,
            barred: 0,
            step: Step::Rest,
            to: Side::Plain,
            goal: None,
            why: Why::Peer,
            tries: 0,
            repeats: 0,
            at: Instant::NEVER,
            heap_at: Instant::NEVER,
            begun: Instant::ZERO,
            said: Instant::ZERO,
            changed: Instant::ZERO,
            held_since: Instant::NEVER,
            round_trip: None,
            says: None,
            wanted: None,
            proposed: None,
            speaks: false,
            features: 0,
            is_too_large: false,
            refuses: None,
            commanded: false,
            unregistered: false,
        }
    }

    /// This side's program has said where it begins.
    pub fn begins_at(&mut self, psn: Psn) {
        self.first.0 = Some(psn);
    }

    /// Whether nothing is under way or wanted.
    pub fn is_idle(&self) -> bool {
        self.step == Step::Rest && self.goal.is_none()
    }

    /// Whether policy may change it: it has been what it is for its time, by nobody's command.
    pub fn is_free(&self, now: Instant, hold: Duration) -> bool {
        let settled = self.changed == Instant::ZERO || now.since(self.changed) >= hold;
        settled && self.is_idle() && !self.commanded
    }

    pub fn bar(&mut self) {
        self.barred = self.barred.max(self.epoch);
        self.step = Step::Rest;
    }

    /// The next message may be answered within this time.
    pub fn wait(&self, longest: Duration, least: Duration) -> Duration {
        let measured = self.round_trip.map_or(longest, |time| time.times(4).max(least));
        measured.min(longest).times(1 << self.repeats.min(DOUBLINGS_MAX))
    }
}

/// Timers.
impl Nic {
    /// How long what is in flight may take to end: losses are noticed meanwhile, by the local ACK timeout.
    pub(super) fn drain_limit(&self, name: QpId) -> Duration {
        let drain = self.star.as_ref().map_or(Duration::ZERO, |star| star.config.drain);
        let timeout = self.object(name).map_or(0, |object| object.attributes().timeout);
        let rto = self.state.rto.unwrap_or(ack_timeout(timeout).max(self.state.rto_min));
        if timeout > 0 { drain.max(rto.times(3)) } else { drain }
    }

    /// A connection's timer ran out: a switch may have something to repeat.
    pub(super) fn switch_timer(&mut self, now: Instant, name: QpId) {
        let limit = self.drain_limit(name);
        let Some(era) = self.era(name.index) else { return };
        if era.heap_at <= now {
            era.heap_at = Instant::NEVER;
        }
        if era.at > now {
            let at = era.at;
            return self.look_at(name, at);
        }
        era.at = Instant::NEVER;
        let (epoch, to, lasted) = (era.epoch, era.to, now.since(era.begun));
        let again = era.repeats.saturating_add(1);
        match era.step {
            Step::Rest => return self.pursue(now, name),
            // Late is not unwilling: the peer has the time that so many attempts may take.
            Step::Asking if again > TRIES && lasted >= limit.times(TRIES.into()) => {
                era.step = Step::Rest;
                era.tries = TRIES;
                return self.pursue(now, name);
            }
            Step::Asking => {}
            Step::Held => return self.end_attempt(now, name),
            Step::Quiescing { .. } if lasted >= limit => {
                era.says = Some((SwitchStep::Resume, to.other(), epoch));
                self.say(name);
                return self.end_attempt(now, name);
            }
            Step::Quiescing { peer } => {
                era.says = peer.is_none().then_some((SwitchStep::Quiesce, to.other(), epoch));
                era.repeats = again;
                let silent = peer.is_some();
                self.try_commit(now, name);
                return if silent { self.look_at(name, now + limit) } else { self.say(name) };
            }
            Step::Committing { .. } => {
                era.says = Some((SwitchStep::Commit, to.other(), epoch));
                era.repeats = again;
                if self.has_failed(name) || self.has_waited_too_long(now, name) {
                    // What is posted fails as it does when a peer has gone: by its own retries.
                    return self.give_up_commit(name);
                }
                return self.say(name);
            }
        }
        let Some(era) = self.era(name.index) else { return };
        era.repeats = again;
        let asks = match self.star_side(name) {
            Ok(StarSide::Plain) => Side::Stateful,
            _ => Side::Plain,
        };
        self.answer(name, SwitchStep::Ask, asks, epoch);
    }

    pub(super) fn give_up_commit(&mut self, name: QpId) {
        if let Some(era) = self.era(name.index) {
            era.bar();
            (era.goal, era.says) = (None, None);
        }
        self.state.counters.star_switch_given_up += 1;
        self.state.event(Event::Star(name, StarOutcome::NotSwitched));
        self.hold(name, false);
    }

    /// Whether a connection is up no more, so that nothing that is said of it is heard.
    pub(super) fn has_failed(&self, name: QpId) -> bool {
        !self.object(name).is_ok_and(|object| object.state().is_up())
    }

    /// Whether something is posted, and the peer has been silent for the timeout, retry count times over.
    pub(super) fn has_waited_too_long(&mut self, now: Instant, name: QpId) -> bool {
        let (posted, patience) = match self.object(name) {
            Ok(Object::On(pair)) => {
                let (qp, rto) = (&pair.qp, pair.qp.rto(&self.state));
                let share = self.state.tolerance.share(qp.attr.retry_cnt);
                (qp.sq.has_unfetched(), rto.max(share).times(u64::from(qp.attr.retry_cnt) + 1))
            }
            _ => return false,
        };
        let Some(era) = self.era(name.index) else { return false };
        if !posted {
            era.begun = now;
        }
        patience > Duration::ZERO && now.since(era.begun) >= patience
    }
}
