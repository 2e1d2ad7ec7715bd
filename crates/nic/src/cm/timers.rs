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
            State::ReqSent => {
                self.give_up(id);
                self.unanswered(id);
            }
            State::RepSent => self.unconfirmed(now, id),
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

    /// No RTU has come. The peer may go on with its REQ for longer than the REP was repeated (98 s and 66 s
    /// between two of rdma_cm's): it hears the refusal then, and the program is not asked the same again.
    fn unconfirmed(&mut self, now: Instant, id: ConnectionId) {
        self.counters.cm_unanswered += 1;
        self.give_up(id);
        if let Some(connection) = self.table.get(id) {
            connection.state = State::Refused;
        }
        self.linger(now, id);
        self.tell(id, What::Unreachable);
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
    use super::super::tests::{SERVICE, World, connect, connected, gid, listen, manager, offer};
    use super::super::types::Reason;
    use super::*;
    use adverb_wire::Duration;
    use adverb_wire::cm::{Mad, Message, Mra, Private, Stage};

    /// What one manager sends from now on, each with when, until it has told what it tells at last.
    fn unanswered(cm: &mut Cm, begun: Instant) -> (Vec<Duration>, Vec<(What, Duration)>) {
        let (mut now, mut sent, mut told) = (begun, Vec::new(), Vec::new());
        loop {
            sent.extend(std::iter::from_fn(|| cm.next_mad()).map(|_| now.since(begun)));
            told.extend(std::iter::from_fn(|| cm.next_event()).map(|event| (event.what, now.since(begun))));
            let Some(next) = cm.next_deadline() else { return (sent, told) };
            now = next;
            cm.on_timer(now);
        }
    }

    /// So many times, so far apart.
    fn every(interval: Duration, count: u64) -> Vec<Duration> {
        (0..count).map(|nth| interval.times(nth)).collect()
    }

    /// One that was asked by a REQ with these two fields, and has accepted.
    fn accepted(local_timeout: u8, max_cm_retries: u8) -> (Cm, ConnectionId) {
        let (mut one, mut two) = (manager(1, 1, 5), manager(2, 2, 6));
        listen(&mut two, SERVICE, 0);
        connect(&mut one, Instant::ZERO, 0x10_0001, &[42]);
        let mut mad = Mad::parse(&one.next_mad().unwrap().bytes).unwrap();
        let Message::Req(req) = &mut mad.message else { panic!("{mad:?}") };
        assert_eq!((req.local_timeout, req.max_cm_retries), (20, 15), "as rdma_cm says it");
        (req.local_timeout, req.max_cm_retries) = (local_timeout, max_cm_retries);
        two.receive(Instant::ZERO, gid(1), &mad.emit());
        let id = two.next_event().unwrap().id;
        two.accept(Instant::ZERO, id, &offer(0x20_0002), &[]).unwrap();
        (two, id)
    }

    /// What a REQ says of its sender's time to answer and of repeats, and what follows from it.
    const SAID: [(u8, u8, u64, u64); 6] = [
        (20, 15, 4096, 16),
        (18, 3, 1024, 4),
        (20, 0, 4096, 1),
        (21, 15, 8192, 16),
        // Bytes of strangers: at least a millisecond, at most 66 s.
        (0, 15, 1, 16),
        (31, 1, 65536, 2),
    ];

    #[test]
    fn who_was_asked_repeats_its_rep_as_the_req_says() {
        for (timeout, retries, ms, times) in SAID {
            let interval = Duration::from_ms(ms);
            let (mut two, id) = accepted(timeout, retries);
            let (mut sent, told) = unanswered(&mut two, Instant::ZERO);
            let given_up = interval.times(times);
            assert_eq!(told, [(What::Unreachable, given_up)]);
            assert_eq!(sent.pop(), Some(given_up), "a REJ: nobody waits any more");
            assert_eq!(sent, every(interval, times), "{timeout} {retries}");
            two.destroy(Instant::ZERO, id).unwrap();
            assert!(two.is_empty());
        }
    }

    #[test]
    fn a_req_after_its_rep_was_given_up_is_refused_and_no_new_request() {
        let (mut two, id) = accepted(20, 15);
        let mut one = manager(1, 1, 5);
        connect(&mut one, Instant::ZERO, 0x10_0001, &[42]);
        let req = one.next_mad().unwrap();
        let mut now = Instant::ZERO;
        while two.next_event().is_none() {
            now = two.next_deadline().unwrap();
            two.on_timer(now);
        }
        while two.next_mad().is_some() {}
        two.receive(now + Duration::from_ms(2000), gid(1), &req.bytes);
        one.receive(now, gid(2), &two.next_mad().unwrap().bytes);
        let told = one.next_event().map(|event| event.what);
        assert!(matches!(told, Some(What::Rejected(Reason::TIMEOUT, _))), "{told:?}");
        assert_eq!((two.next_event(), two.counters().cm_requests), (None, 1));
        two.destroy(now, id).unwrap();
        two.check_invariants();
    }

    /// A MRA puts off the next repeat by what it says, and no more than that: the interval is the REQ's.
    #[test]
    fn patience_for_a_rep_is_counted_from_the_reqs_interval() {
        let (mut two, id) = accepted(18, 3);
        let remote_id = id.0;
        let local_id = two.table.get(id).unwrap().remote;
        let (stage, private) = (Stage::Rep, Private::default());
        let mra = Mra { local_id, remote_id, stage, timeout: 20, private };
        two.receive(Instant::ZERO, gid(1), &Mad { transaction: 1, message: Message::Mra(mra) }.emit());
        let put_off = Duration::from_ms(1024) + Duration::from_ns(4096 << 20);
        let (sent, told) = unanswered(&mut two, Instant::ZERO);
        let again = (0..4).map(|nth| put_off + Duration::from_ms(1024).times(nth));
        assert_eq!(sent, [Duration::ZERO].into_iter().chain(again).collect::<Vec<_>>());
        assert_eq!(told.len(), 1);
    }

    #[test]
    fn an_end_that_is_never_answered_comes_with_other_words() {
        let told_alone = |given_up: Duration| {
            [(What::DisconnectedAlone, given_up), (What::TimewaitExit, given_up + Duration::from_ms(2100))]
        };
        // Who has asked: its own 6144 ms, 16 times.
        let World { now, cms: [mut one, _], told, .. } = connected();
        one.disconnect(now, told[0][0].id).unwrap();
        let (sent, told) = unanswered(&mut one, now);
        let interval = Duration::from_ms(6144);
        assert_eq!(sent, every(interval, 16));
        assert_eq!(told, told_alone(interval.times(16)));
        // Who was asked: what the REQ said.
        for (timeout, retries, ms, times) in SAID {
            let interval = Duration::from_ms(ms);
            let (mut two, id) = accepted(timeout, retries);
            while two.next_mad().is_some() {}
            two.notify(Instant::ZERO, id).unwrap();
            assert_eq!(two.next_event().unwrap().what, What::Established);
            two.disconnect(Instant::ZERO, id).unwrap();
            let (sent, told) = unanswered(&mut two, Instant::ZERO);
            assert_eq!(sent, every(interval, times), "{timeout} {retries}");
            assert_eq!(told, told_alone(interval.times(times)));
        }
    }
}
