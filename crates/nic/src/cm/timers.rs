//! Repeats of what is not answered, and what becomes of it when it never is.

use super::Cm;
use super::table::State;
use super::types::{ConnectionId, What};
use adverb_wire::Instant;

impl Cm {
    /// Lets times run out.
    pub fn on_timer(&mut self, now: Instant) {
        while let Some(id) = self.table.expired(now) {
            self.expire(now, id);
        }
        self.refuse_kept(now);
    }

    fn expire(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        let state = connection.state;
        if matches!(state, State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent)
            && let Some(tries) = connection.tries.checked_sub(1)
        {
            connection.tries = tries;
            let (to, at) = (connection.peer, now + connection.interval);
            let message = connection.message.as_deref().copied();
            self.table.set_deadline(id, at);
            if let Some(bytes) = message {
                self.counters.cm_repeats += 1;
                self.send_bytes(to, bytes);
            }
            return;
        }
        match state {
            State::ReqSent | State::RepSent => {
                self.give_up(id);
                self.unanswered(id);
            }
            State::SidrSent => self.unanswered(id),
            State::DreqSent => {
                self.counters.cm_unanswered += 1;
                self.end(now, id, What::DisconnectedAlone);
            }
            State::Timewait => self.over(id, Some(What::TimewaitExit)),
            State::Refused | State::SidrAnswered => self.over(id, None),
            // They have no deadline.
            State::ReqReceived
            | State::RepReceived
            | State::Established
            | State::SidrReceived
            | State::Idle => {}
        }
    }

    fn unanswered(&mut self, id: ConnectionId) {
        self.counters.cm_unanswered += 1;
        self.over(id, Some(What::Unreachable));
    }

    /// The wire needs nothing more of a connection. Its owner may still name it.
    fn over(&mut self, id: ConnectionId, what: Option<What>) {
        self.table.forget_peer(id);
        let Some(connection) = self.table.get(id) else { return };
        connection.state = State::Idle;
        connection.message = None;
        if !connection.owned {
            return self.table.remove(id);
        }
        if let Some(what) = what {
            self.tell(id, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{World, connected};
    use super::*;
    use adverb_wire::Duration;

    #[test]
    fn an_end_that_is_never_answered_comes_with_other_words() {
        let World { now: begun, cms: [mut one, _], told, .. } = connected();
        let id = told[0][0].id;
        one.disconnect(begun, id).unwrap();
        let (mut now, mut sent) = (begun, 0);
        let mut next = |one: &mut Cm| loop {
            sent += std::iter::from_fn(|| one.next_mad()).count();
            if let Some(event) = one.next_event() {
                return (event.what, now.since(begun));
            }
            now = one.next_deadline().unwrap();
            one.on_timer(now);
        };
        let given_up = Duration::from_ms(16 * 6144);
        assert_eq!(next(&mut one), (What::DisconnectedAlone, given_up));
        assert_eq!(next(&mut one), (What::TimewaitExit, given_up + Duration::from_ms(2100)));
        assert_eq!(sent, 16);
    }
}
