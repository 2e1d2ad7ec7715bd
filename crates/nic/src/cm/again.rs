//! Asking again where nobody listens yet. A server may give up its listener, agree with its peer over their
//! connection on what comes next, and listen on the port again (perftest `-R`). An adverb keeps the request
//! that comes too early (`between`); others refuse it, and the peer's program does not survive that. Between
//! two Linux hosts such a request is mostly late, since it takes their kernels a while to make it. Here it
//! takes microseconds.
//!
//! So a refusal for want of a listener is not believed for a moment: for two seconds if it comes from a port
//! at which this process has a connection, or had one until just now. From others it is believed after
//! 100 ms, for a server that says its port and listens then (qperf).

use super::Cm;
use super::between::PATIENCE;
use super::table::State;
use super::types::ConnectionId;
use adverb_wire::{Duration, Instant};

/// Time between two requests.
const INTERVAL: Duration = Duration::from_ms(25);
/// How long a port is asked of which nothing is known.
const BRIEFLY: Duration = Duration::from_ms(100);

impl Cm {
    /// Nobody listens, says the peer of a request. Whether it is asked again.
    pub(super) fn asks_again(&mut self, now: Instant, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get(id) else { return false };
        let (State::ReqSent | State::SidrSent, Some((port, begun))) = (connection.state, connection.asked)
        else {
            return false;
        };
        let (peer, known) = (connection.peer, connection.patience);
        let until = known.unwrap_or_else(|| {
            let has_another = self.table.any(|other| {
                let is_up = matches!(other.state, State::Established | State::DreqSent | State::Timewait);
                is_up && other.peer == peer && other.asked.is_some_and(|(asked, _)| asked == port)
            });
            // A peer that has kept the request has been patient itself.
            begun + if has_another { PATIENCE } else { BRIEFLY }
        });
        let Some(connection) = self.table.get(id) else { return false };
        connection.patience = Some(until);
        if now >= until {
            return false;
        }
        // The peer is there, so that its silence is counted anew.
        connection.tries = connection.retries + 1;
        self.counters.cm_asked_again += 1;
        self.table.set_deadline(id, now + INTERVAL);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{DATAGRAMS, World, connect, connected, gid, listen, manager};
    use super::super::{Outgoing, PortSpace, Reason, Resolve, Service, What};
    use super::*;

    fn resolve(cm: &mut Cm, now: Instant, service: Service) {
        let resolve = Resolve { service, dst: gid(2), src: gid(1), src_port: 5, private: &[], cookie: 77 };
        cm.resolve(now, &resolve).unwrap();
    }

    /// Passes all messages on until there are no more.
    fn exchange(now: Instant, one: &mut Cm, server: &mut Cm) {
        while one.has_mads() || server.has_mads() {
            while let Some(Outgoing { bytes, .. }) = one.next_mad() {
                server.receive(now, gid(1), &bytes);
            }
            while let Some(Outgoing { bytes, .. }) = server.next_mad() {
                one.receive(now, gid(2), &bytes);
            }
        }
        one.check_invariants();
    }

    /// Asks for a connection and for datagrams at the port of a connection that is up, of a server that keeps
    /// no requests and listens after so many. Returns what came of both, after how long, and how often it was
    /// asked again.
    fn outcome(listens_after: u64) -> (Vec<What>, Duration, u64) {
        let World { mut now, cms: [mut one, _], .. } = connected();
        let (begun, mut server, mut told) = (now, manager(2, 2, 7), Vec::new());
        connect(&mut one, now, 0x10_0002, &[42]);
        resolve(&mut one, now, DATAGRAMS);
        while told.len() < 2 {
            exchange(now, &mut one, &mut server);
            told.extend(std::iter::from_fn(|| one.next_event()).map(|event| event.what));
            while let Some(event) = server.next_event() {
                server
                    .reject(now, event.id, Reason::CONSUMER, &[])
                    .or_else(|_| server.refuse(now, event.id, &[]))
                    .unwrap();
            }
            if one.counters().cm_asked_again >= listens_after && server.is_empty() {
                listen(&mut server, super::super::tests::SERVICE, 4);
                listen(&mut server, DATAGRAMS, 4);
            }
            if !server.has_mads() && told.len() < 2 {
                now = one.next_deadline().unwrap();
                one.on_timer(now);
            }
        }
        (told, now.since(begun), one.counters().cm_asked_again)
    }

    #[test]
    fn where_a_listener_was_the_request_is_repeated_until_it_is_back() {
        let (told, took, again) = outcome(10);
        // Both refusals are the program's own: it was asked.
        let refused =
            [What::Rejected(Reason::CONSUMER, Default::default()), What::Unresolved(2, Default::default())];
        assert!(refused.iter().all(|what| told.contains(what)), "{told:?}");
        assert!(took < INTERVAL.times(10) && (10..14).contains(&again), "{took:?} {again}");
    }

    #[test]
    fn a_listener_that_stays_away_is_believed_in_the_end() {
        let (told, took, again) = outcome(u64::MAX);
        let refused = [
            What::Rejected(Reason::INVALID_SERVICE, Default::default()),
            What::Unresolved(1, Default::default()),
        ];
        assert!(refused.iter().all(|what| told.contains(what)), "{told:?}");
        assert_eq!(took, PATIENCE);
        assert_eq!(again, 2 * 80);
    }

    #[test]
    fn who_was_kept_in_vain_asks_no_more() {
        let World { now, cms: [mut one, _], .. } = connected();
        let mut server = manager(2, 2, 7);
        server.expect_listener(now, super::super::tests::SERVICE.port);
        connect(&mut one, now, 0x10_0002, &[42]);
        exchange(now, &mut one, &mut server);
        assert_eq!((server.counters().cm_kept, one.next_event()), (1, None));
        let later = server.next_deadline().unwrap();
        server.on_timer(later);
        exchange(later, &mut one, &mut server);
        let refused = What::Rejected(Reason::INVALID_SERVICE, Default::default());
        assert_eq!(
            (one.next_event().map(|event| event.what), one.counters().cm_asked_again),
            (Some(refused), 0)
        );
    }

    #[test]
    fn a_port_without_a_connection_is_believed_soon() {
        let World { now: begun, cms: [mut one, _], .. } = connected();
        let (mut now, mut server) = (begun, manager(2, 2, 7));
        resolve(&mut one, now, Service { space: PortSpace::Tcp, port: DATAGRAMS.port + 1 });
        let told = loop {
            exchange(now, &mut one, &mut server);
            if let Some(event) = one.next_event() {
                break event.what;
            }
            now = one.next_deadline().unwrap();
            one.on_timer(now);
        };
        assert_eq!(told, What::Unresolved(1, Default::default()));
        assert_eq!((now.since(begun), one.counters().cm_asked_again), (BRIEFLY, 4));
    }
}
