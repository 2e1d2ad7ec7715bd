//! Lookups in a key-value cache (1RMA section 7.1): a read of an index entry, then one of the value, from one
//! of several servers that have everything. A client that meets a failure goes on with another server at
//! once, and does not come back.

use crate::workload::flows::{Flow, FlowSpec, Verb, Via};
use std::collections::BTreeSet;

/// Bits of a tag: the step, then how many servers have failed it, then the lookup.
const ATTEMPT_SHIFT: u32 = 1;
const ATTEMPT_MASK: u32 = 7;
const LOOKUP_SHIFT: u32 = 4;
/// Lookups that tags can count.
pub const LOOKUPS_MAX: u32 = 1 << (32 - LOOKUP_SHIFT);

/// A lookup that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// When it began, in ps.
    pub start: u64,
    /// When the client had the value, in ps; `u64::MAX` when no server had it.
    pub end: u64,
    /// The server that it ended with.
    pub server: u32,
    /// Reads that failed on the way.
    pub failures: u32,
}

/// Lookups in a key-value cache: a read of an index entry, then one of the value.
#[derive(Clone, Debug, Default)]
pub struct Lookups {
    /// Hosts that have everything.
    pub servers: Vec<u32>,
    /// Bytes of an index entry.
    pub index: u32,
    /// Bytes of a value.
    pub value: u32,
    /// By lookup: when it began, its client, its first server.
    pub arrivals: Vec<(u64, u32, u32)>,
    /// Those that have ended, in the order of their ends.
    pub ended: Vec<Lookup>,
    /// Pairs of client and server that have failed.
    avoided: BTreeSet<(u32, u32)>,
}

impl Lookups {
    /// Lookups at random times: `per_second` in all, from random clients to random servers, until `until` ps.
    pub fn poisson(
        clients: &[u32],
        servers: Vec<u32>,
        (index, value): (u32, u32),
        per_second: f64,
        until: u64,
        rng: &mut fastrand::Rng,
    ) -> Lookups {
        let mut arrivals = Vec::new();
        let mut at = 0.0;
        loop {
            at += -crate::portable::ln(1.0 - rng.f64()) * 1e12 / per_second;
            if at >= until as f64 || arrivals.len() == LOOKUPS_MAX as usize {
                break;
            }
            let client = clients[rng.usize(..clients.len())];
            arrivals.push((at as u64, client, servers[rng.usize(..servers.len())]));
        }
        Lookups { servers, index, value, arrivals, ..Lookups::default() }
    }

    /// Index reads to begin with.
    pub fn first(&self) -> Vec<FlowSpec> {
        let spec = |(n, (start, client, server)): (usize, &(u64, u32, u32))| FlowSpec {
            start: *start,
            src: *server,
            dst: *client,
            bytes: self.index,
            tag: (n as u32) << LOOKUP_SHIFT,
            op: Verb::Read,
            via: Via::OneRma,
        };
        self.arrivals.iter().enumerate().map(spec).collect()
    }

    /// The server that a read goes to when it starts: another one, where its own has failed the client
    /// before.
    pub fn server(&self, spec: &FlowSpec) -> u32 {
        let at = self.servers.iter().position(|server| *server == spec.src).unwrap_or(0);
        let turned = (0..self.servers.len()).map(|i| self.servers[(at + i) % self.servers.len()]);
        turned.into_iter().find(|server| !self.avoided.contains(&(spec.dst, *server))).unwrap_or(spec.src)
    }

    /// What follows from a read that has ended.
    pub fn next(&mut self, done: &Flow) -> Option<FlowSpec> {
        let spec = done.spec;
        let (number, attempts) =
            ((spec.tag >> LOOKUP_SHIFT) as usize, spec.tag >> ATTEMPT_SHIFT & ATTEMPT_MASK);
        let start = done.completed;
        if done.failed {
            self.avoided.insert((spec.dst, spec.src));
            let again = FlowSpec { start, tag: spec.tag + (1 << ATTEMPT_SHIFT), ..spec };
            if attempts + 1 < (self.servers.len() as u32).min(ATTEMPT_MASK) {
                return Some(again);
            }
        } else if spec.tag & 1 == 0 {
            return Some(FlowSpec { start, bytes: self.value, tag: spec.tag | 1, ..spec });
        }
        let end = if done.failed { u64::MAX } else { start };
        let failures = attempts + u32::from(done.failed);
        self.ended.push(Lookup { start: self.arrivals[number].0, end, server: spec.src, failures });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(spec: FlowSpec, completed: u64, failed: bool) -> Flow {
        Flow { spec, received: completed, completed, failed }
    }

    #[test]
    fn a_lookup_reads_the_index_then_the_value() {
        let arrivals = vec![(10, 7, 1)];
        let mut l = Lookups { servers: vec![1, 2], index: 64, value: 1000, arrivals, ..Lookups::default() };
        let index = l.first()[0];
        assert_eq!((index.start, index.src, index.dst, index.bytes), (10, 1, 7, 64));
        let value = l.next(&ended(index, 50, false)).unwrap();
        assert_eq!((value.start, value.src, value.bytes), (50, 1, 1000));
        assert_eq!(l.next(&ended(value, 90, false)), None);
        assert_eq!(l.ended, [Lookup { start: 10, end: 90, server: 1, failures: 0 }]);
    }

    #[test]
    fn a_client_leaves_a_server_that_failed() {
        let arrivals = vec![(10, 7, 1), (20, 7, 1), (30, 8, 1)];
        let mut l = Lookups { servers: vec![1, 2], index: 64, value: 1000, arrivals, ..Lookups::default() };
        let first = l.first();
        let again = l.next(&ended(first[0], 15, true)).unwrap();
        assert_eq!((again.start, l.server(&again), l.server(&first[1]), l.server(&first[2])), (15, 2, 2, 1));
        // The other one fails too: the lookup has failed.
        let again = FlowSpec { src: 2, ..again };
        assert_eq!(l.next(&ended(again, 17, true)), None);
        assert_eq!(l.ended, [Lookup { start: 10, end: u64::MAX, server: 2, failures: 2 }]);
    }
}
