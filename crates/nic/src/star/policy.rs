//! Which role a connection gets while it lasts, by the number of connections that both sides have (StaR, VI).
//! A side with more than its threshold would rather keep none, one with less than half of it does not mind;
//! between the two nothing changes. Only where both sides leave the choice to the NICs, and no command has
//! made it.

use super::Nic;
use super::switch::side_of;
use crate::event::Why;
use crate::ids::QpId;
use crate::star::StarSide;
use crate::transport::star::Role;
use adverb_wire::star::{Side, SwitchStep, Wish};
use adverb_wire::{Duration, Instant};

/// Stands for the policy among the timers' indices.
pub(super) const INDEX: u32 = u32::MAX;
/// What the numbers say must hold for so many looks.
const LOOKS: u64 = 10;
/// Connections that are looked at in one step.
const A_STEP: usize = 256;

/// How far a look at all connections is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    /// The timers know of its next step.
    is_due: bool,
    /// When it began, and the next connection.
    began: Instant,
    next: u32,
    /// Changes that were wanted in this second, and when that began.
    wanted: (Instant, u32),
}

impl Look {
    /// Whether one change more may be wanted: as many in a second as may begin.
    fn may_want(&mut self, now: Instant, most: u32) -> bool {
        if now.since(self.wanted.0) >= Duration::from_ms(1000) {
            self.wanted = (now, 0);
        }
        self.wanted.1 += 1;
        self.wanted.1 <= most
    }
}

impl Nic {
    /// Connections have begun: from now on they are compared.
    pub(crate) fn begin_to_compare(&mut self, now: Instant) {
        let Some(star) = &mut self.star else { return };
        let every = star.config.compare;
        if star.config.wish == Wish::Auto && every.as_ps() > 0 && !star.look.is_due {
            star.look = Look { is_due: true, began: now + every, next: 0, ..star.look };
            self.timers.enter(now + every, INDEX);
        }
    }

    /// The time to look at the number of connections has come. However many there are, a step looks at a
    /// part of them, and the steps stand evenly in the time that a look takes.
    #[cold]
    pub(super) fn compare_all(&mut self, now: Instant) {
        let Some(star) = &mut self.star else { return };
        star.look.is_due = false;
        if star.eras.is_empty() {
            return;
        }
        let (config, own) = (star.config, star.eras.len() as u32);
        let names: Vec<_> = star.eras.range(star.look.next..).map(|(index, _)| *index).take(A_STEP).collect();
        for index in &names {
            self.compare_one(now, *index, own);
        }
        let Some(star) = &mut self.star else { return };
        let steps = (own as usize).div_ceil(A_STEP) as u64;
        let next = names.last().map_or(0, |last| last.saturating_add(1));
        let at = match star.eras.range(next..).next().is_some() && !names.is_empty() {
            true => {
                star.look.next = next;
                now + Duration::from_ps(config.compare.as_ps() / steps)
            }
            false => {
                let at = (star.look.began + config.compare).max(now + Duration::from_ps(1));
                (star.look.next, star.look.began) = (0, at);
                at
            }
        };
        star.look.is_due = true;
        self.timers.enter(at, INDEX);
    }

    /// Looks at one of `own` connections.
    fn compare_one(&mut self, now: Instant, index: u32, own: u32) {
        let Some(name) = self.endpoints.name_at(index) else { return };
        let Ok(side) = self.star_side(name) else { return };
        let Some(star) = &mut self.star else { return };
        let config = star.config;
        let wants = match side {
            StarSide::Plain if own > config.threshold => Some(Side::Stateless),
            StarSide::Stateful if own > config.threshold => Some(Side::Stateless),
            StarSide::Stateless if own < config.threshold / 2 => Some(Side::Plain),
            _ => None,
        };
        let Some(era) = star.eras.get_mut(&index) else { return };
        let since = era.wanted.filter(|(to, _)| Some(*to) == wants).map_or(now, |(_, since)| since);
        era.wanted = wants.map(|to| (to, since));
        era.proposed = era.proposed.filter(|to| Some(*to) == wants);
        let held = now.since(since) >= config.compare.times(LOOKS);
        let is_free = era.is_free(now, config.hold) && era.speaks;
        if wants.is_some() && held && is_free && star.look.may_want(now, config.changes) {
            // The peer compares the two numbers, and does what they say.
            (era.wanted, era.proposed) = (None, wants);
            self.say_compare(name);
        }
    }

    /// The peer has said a word of StaR.
    pub(super) fn hear_of_peer(&mut self, index: u32) {
        if let Some(era) = self.era(index) {
            era.speaks = true;
        }
    }

    fn say_compare(&mut self, name: QpId) {
        let Some(epoch) = self.era(name.index).map(|era| era.epoch) else { return };
        self.answer(name, SwitchStep::Compare, Side::Plain, epoch);
    }

    /// The peer says how many connections it has: this side gets its role by that, unless it was chosen.
    pub(super) fn compare(&mut self, now: Instant, name: QpId, (theirs, threshold): (u32, u32)) {
        let Some(star) = &self.star else { return };
        let (config, own) = (star.config, star.eras.len() as u32);
        let Some(era) = star.eras.get(&name.index) else { return };
        if config.wish != Wish::Auto || !era.is_free(now, config.hold) {
            return;
        }
        let Some(side) = self.star_side(name).ok().and_then(side_of) else { return };
        let role = match (own > config.threshold, theirs > threshold) {
            (false, false) => Role::Plain,
            _ if own < theirs => Role::Stateful,
            _ if own > theirs => Role::Stateless,
            _ => return,
        };
        let is_low = own < config.threshold / 2 && theirs < threshold / 2;
        let to = match role {
            Role::Stateful => Side::Stateful,
            Role::Stateless => Side::Stateless,
            // Between half of the threshold and the whole, what is stays.
            _ if is_low || own < config.threshold / 2 && side == Side::Stateless => Side::Plain,
            _ if theirs < threshold / 2 && side == Side::Stateful => Side::Plain,
            _ => return,
        };
        if to != side {
            self.aim(now, name, to, Why::Load);
        }
    }
}
