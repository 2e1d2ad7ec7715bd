//! How a connection's numbers at the client and at the server differ, once requests travel on other
//! connections than their own: who has which of a queue pair's numbers at the server.
//!
//! A queue pair at the server belongs to its own client for a while, and to requests that it carries for all
//! (as a *carrier*) for a while, in turns: the one begins when the other's last request is acknowledged. So
//! within one turn the two numbers differ by a constant.

use super::carry::Carried;
use adverb_wire::{Instant, Psn};
use std::collections::VecDeque;

/// Turns that are remembered: answers and repetitions of older ones are not told apart any more.
const TURNS: usize = 16;

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The connection's own client's.
    Own,
    /// Requests that it carries.
    Carried,
}

/// A turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Turn {
    side: Side,
    /// Its first number at the client, if it is the client's, and the first one behind it.
    from: Psn,
    until: Psn,
    /// Its first number at the server.
    out: Psn,
    /// How many messages more the client has had answered than the server has answered on this queue pair.
    messages: u32,
}

/// A queue pair's numbers at the server.
#[derive(Debug)]
pub struct Lane {
    turns: VecDeque<Turn>,
    /// The first of these is not the first that there was.
    forgot: bool,
    /// Its next number at the server.
    pub out: Psn,
    /// The last number of the client's own requests that the server has not acknowledged.
    pub open: Option<Psn>,
    /// The client's own message has more packets to come.
    pub in_message: bool,
    /// Requests of the client that carriers have under way.
    pub carried: u32,
    /// What it carries, in order.
    pub ring: VecDeque<Carried>,
    /// Which side waits for a turn, a request of which connection, and since when.
    pub claim: Option<(Side, u32, Instant)>,
    /// A request of its client has claimed a turn of a carrier.
    pub claims: bool,
    /// From when on requests that it is to carry have waited for its client's own.
    pub blocked: Option<Instant>,
    /// When what it carries was sent last, or some of it was acknowledged.
    pub sent: Instant,
    /// How often all of it was sent since some of it was acknowledged.
    pub tries: u32,
    /// It takes no more requests to carry.
    pub closed: bool,
    /// Requests that went elsewhere, less those that came from elsewhere: the difference of message numbers.
    moved: u32,
    /// Its numbers at the client and at the server may have been different.
    pub shifted: bool,
    /// Its client has gone; what it carries is still to be acknowledged.
    pub orphan: bool,
    /// A request of its client was lost with a carrier: nothing behind it may go on.
    pub broken: bool,
    /// When the server has answered this queue pair last, which it does not once it has destroyed it.
    pub proved: Option<Instant>,
}

impl Lane {
    /// One of a connection whose first request has this number.
    pub fn new(first: Psn, now: Instant) -> Lane {
        let turn = Turn { side: Side::Own, from: first, until: first, out: first, messages: 0 };
        Lane {
            turns: VecDeque::from([turn]),
            forgot: false,
            out: first,
            open: None,
            in_message: false,
            carried: 0,
            ring: VecDeque::new(),
            claim: None,
            claims: false,
            blocked: None,
            sent: now,
            tries: 0,
            closed: false,
            moved: 0,
            shifted: false,
            orphan: false,
            broken: false,
            proved: None,
        }
    }

    fn begin(&mut self, turn: Turn) {
        let goes_on = |last: &Turn| match turn.side {
            Side::Carried => true,
            Side::Own => {
                let same = turn.out.since(last.out) == turn.from.since(last.from);
                same && turn.messages == last.messages
            }
        };
        if self.turns.back().is_some_and(|last| last.side == turn.side && goes_on(last)) {
            return;
        }
        if self.turns.len() == TURNS {
            self.turns.pop_front();
            self.forgot = true;
        }
        self.turns.push_back(turn);
    }

    /// The client's own next request, of so many numbers; the server's number for it.
    pub fn take_own(&mut self, psn: Psn, count: u32) -> Psn {
        let out = self.out;
        let until = psn.add(count);
        self.begin(Turn { side: Side::Own, from: psn, until, out, messages: self.moved });
        if let Some(turn) = self.turns.back_mut() {
            turn.until = until;
        }
        self.out = out.add(count);
        self.open = Some(psn.add(count.wrapping_sub(1)));
        self.claim = self.claim.filter(|(side, ..)| *side != Side::Own);
        out
    }

    /// The next number for a request that it carries.
    pub fn take_carried(&mut self) -> Psn {
        let out = self.out;
        self.begin(Turn { side: Side::Carried, from: out, until: out, out, messages: 0 });
        self.out = out.next();
        self.blocked = None;
        self.moved = self.moved.wrapping_sub(1);
        self.claim = self.claim.filter(|(side, ..)| *side != Side::Carried);
        out
    }

    /// A request of the client's goes on a carrier.
    pub fn give_away(&mut self) {
        self.moved = self.moved.wrapping_add(1);
        self.carried += 1;
    }

    /// The server's number of a request that the client sends again; or sends, if its requests are not
    /// counted any more. None if it went elsewhere: what was its number here is another request's.
    pub fn to_server(&self, psn: Psn, uncounted: bool) -> Option<Psn> {
        let own = self.turns.iter().rev().filter(|turn| turn.side == Side::Own);
        match own.into_iter().find(|turn| !psn.is_before(turn.from)) {
            Some(turn) => {
                let goes_on = uncounted && self.turns.back() == Some(turn);
                (goes_on || psn.is_before(turn.until)).then(|| turn.out.add(psn.since(turn.from) as u32))
            }
            // From before the connection was followed: no number was shifted yet.
            None => (!self.forgot).then_some(psn),
        }
    }

    /// Whose a number of the server is: the client's, with what it is there and what its message number is
    /// more by; or that of a request that is carried. None for those that are too old.
    pub fn of_server(&self, out: Psn) -> Option<(Side, Psn, u32)> {
        match self.turns.iter().rev().find(|turn| !out.is_before(turn.out)) {
            Some(turn) => Some((turn.side, turn.from.add(out.since(turn.out) as u32), turn.messages)),
            None => (!self.forgot).then_some((Side::Own, out, 0)),
        }
    }

    /// Whether its own client has nothing under way on it.
    pub fn own_is_over(&self) -> bool {
        self.open.is_none() && !self.in_message
    }

    /// Who waits for a turn, unless it has waited for too long to be believed.
    pub fn claimed(&self, now: Instant, hold: adverb_wire::Duration) -> Option<Side> {
        self.claim.filter(|(.., since)| *since + hold > now).map(|(side, ..)| side)
    }

    /// A request of this connection waits for a turn.
    pub fn wait_for_turn(&mut self, (side, of): (Side, u32), now: Instant, hold: adverb_wire::Duration) {
        if self.claimed(now, hold).is_none() {
            self.claim = Some((side, of, now));
        }
    }

    /// A request of this connection waits for no turn of this side any more. Whether it had claimed one.
    pub fn unclaim(&mut self, side: Side, of: u32) -> bool {
        let was = self.claim;
        self.claim = was.filter(|(claimed, by, _)| (*claimed, *by) != (side, of));
        was != self.claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_apart_over_the_wrap() {
        let mut lane = Lane::new(Psn::new(0xff_fffe), Instant::ZERO);
        assert_eq!(lane.take_own(Psn::new(0xff_fffe), 1), Psn::new(0xff_fffe));
        assert_eq!(lane.take_carried(), Psn::new(0xff_ffff));
        assert_eq!(lane.take_carried(), Psn::new(0));
        lane.give_away();
        // The client's number 0xffffff went elsewhere; its next one is 0.
        assert_eq!(lane.take_own(Psn::new(0), 2), Psn::new(1));
        assert_eq!(lane.to_server(Psn::new(1), false), Some(Psn::new(2)));
        assert_eq!(lane.to_server(Psn::new(0xff_fffe), false), Some(Psn::new(0xff_fffe)));
        // What went elsewhere has none, though it be said again when it is long forgotten.
        assert_eq!(lane.to_server(Psn::new(0xff_ffff), false), None);
        // What is new has one only where nobody counts.
        assert_eq!(
            (lane.to_server(Psn::new(2), false), lane.to_server(Psn::new(2), true)),
            (None, Some(Psn::new(3)))
        );
        assert_eq!(lane.of_server(Psn::new(0)).map(|(side, ..)| side), Some(Side::Carried));
        // Two messages more at the server, one elsewhere.
        assert_eq!(lane.of_server(Psn::new(2)), Some((Side::Own, Psn::new(1), 1u32.wrapping_sub(2))));
        // From before it was followed.
        assert_eq!(lane.of_server(Psn::new(0xff_fff0)), Some((Side::Own, Psn::new(0xff_fff0), 0)));
        for psn in 2..30 {
            lane.take_carried();
            lane.take_own(Psn::new(psn), 1);
        }
        assert_eq!(
            (lane.of_server(Psn::new(2)), lane.to_server(Psn::new(2), false)),
            (None, None),
            "forgotten"
        );
    }
}
