//! Requests that come just before their listener. A program may bind a port, tell its peer of it, and listen
//! then (qperf); or give up its listener, agree with its peer on what comes next, and listen on the port
//! again, maybe in another port space (perftest `-R`). Its peer may ask before it listens, and neither's
//! client survives a refusal. Linux refuses such a request too, but its client needs longer to ask than the
//! server to listen.
//!
//! So a request that finds nobody on a port that this process has lately bound or listened on is kept for a
//! moment: for the listener that comes, else it is refused then.

use super::Cm;
use super::types::Service;
use crate::limits;
use adverb_wire::cm::Mad;
use adverb_wire::{Duration, Gid, Instant};
use std::collections::VecDeque;

/// A port is remembered for so long after it was bound, or after its last listener.
pub(super) const LATELY: Duration = Duration::from_ms(10_000);
/// A request is kept for so long: far less than its sender waits before it repeats it.
pub(super) const PATIENCE: Duration = Duration::from_ms(2000);

/// A request that nobody has taken or refused yet.
struct Kept {
    until: Instant,
    service: Service,
    from: Gid,
    mad: Box<Mad>,
}

/// Ports that may have a listener soon, and requests for them.
#[derive(Default)]
pub(super) struct Between {
    /// Ports that were bound or lost their listener, in that order, and until when that is lately.
    expected: VecDeque<(Instant, u16)>,
    /// Requests in the order in which they came.
    kept: VecDeque<Kept>,
}

impl Between {
    pub fn next_deadline(&self) -> Option<Instant> {
        self.kept.front().map(|kept| kept.until)
    }

    pub fn check_invariants(&self) {
        assert!(self.expected.len() <= limits::MAX_CM_EXPECTED && self.kept.len() <= limits::MAX_CM_KEPT);
        assert!(self.kept.iter().zip(self.kept.iter().skip(1)).all(|(a, b)| a.until <= b.until));
    }
}

impl Cm {
    /// A port was bound, or its listener has gone: another may follow.
    pub fn expect_listener(&mut self, now: Instant, port: u16) {
        self.port_forgotten(port);
        if self.between.expected.len() == limits::MAX_CM_EXPECTED {
            self.between.expected.pop_front();
        }
        self.between.expected.push_back((now + LATELY, port));
    }

    fn port_forgotten(&mut self, port: u16) {
        self.between.expected.retain(|(_, expected)| *expected != port);
    }

    /// Keeps a request that nobody listens for, if it is worth it.
    pub(super) fn keep(&mut self, now: Instant, from: Gid, service: Service, mad: Mad) -> bool {
        let Between { expected, kept } = &mut self.between;
        if !expected.iter().any(|(until, port)| *port == service.port && now < *until) {
            return false;
        }
        if kept.iter().any(|other| other.from == from && *other.mad == mad) {
            self.counters.cm_duplicates += 1;
            return true;
        }
        if kept.len() == limits::MAX_CM_KEPT {
            return false;
        }
        kept.push_back(Kept { until: now + PATIENCE, service, from, mad: Box::new(mad) });
        self.counters.cm_kept += 1;
        true
    }

    /// A service has a listener: it gets what was kept for it.
    pub(super) fn give_kept(&mut self, now: Instant, service: Service) {
        let (given, kept) = self.between.kept.drain(..).partition(|kept| kept.service == service);
        self.between.kept = kept;
        let given: VecDeque<Kept> = given;
        for Kept { from, mad, .. } in given {
            self.take_in(now, from, *mad);
        }
    }

    /// Refuses what was kept for long enough. Its port is a port like any other then.
    pub(super) fn refuse_kept(&mut self, now: Instant) {
        while self.between.kept.front().is_some_and(|kept| kept.until <= now)
            && let Some(Kept { service, from, mad, .. }) = self.between.kept.pop_front()
        {
            self.port_forgotten(service.port);
            self.take_in(now, from, *mad);
        }
    }

    /// Refuses all that is kept.
    pub(super) fn refuse_all_kept(&mut self, now: Instant) {
        self.between.expected.clear();
        for Kept { from, mad, .. } in std::mem::take(&mut self.between.kept) {
            self.take_in(now, from, *mad);
        }
    }
}
