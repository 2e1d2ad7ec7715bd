//! Workloads: which flows there are. Open ones are lists made beforehand; closed ones start a flow when
//! another one ends.

pub mod arrivals;
pub mod comings;
pub(crate) mod connections;
pub mod drawn;
pub mod flows;
pub mod lookups;
pub mod pattern;
pub mod persistent;
pub mod sizes;
pub mod ways;

use crate::workload::flows::{Flow, FlowSpec, Verb, Via};

/// What creates flows while a simulation runs.
#[derive(Clone, Debug, Default)]
pub enum Workload {
    /// Nothing: all flows are known beforehand.
    #[default]
    Open,
    /// Request and response, for ever: see [`Closed`].
    Closed(Closed),
    /// Flows that begin again when they end.
    Repeat(Repeat),
    /// Lookups in a cache.
    Lookups(lookups::Lookups),
    /// Calls on connections that last.
    Persistent(Box<persistent::Persistent>),
}

/// Flows each of which begins again when it has ended, well or not.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Repeat {
    /// By tag of the flows: when none begins any more, in ps.
    pub until_ps: Vec<(u32, u64)>,
}

/// Clients that send a request and, when the response has come, the next one.
#[derive(Clone, Debug)]
pub struct Closed {
    /// Pairs of client and server; several of one pair are several outstanding requests.
    pub pairs: Vec<(u32, u32)>,
    /// Bytes of a request.
    pub request: u32,
    /// Bytes of a response.
    pub response: u32,
    /// Time from a response to the next request, in ps.
    pub think_ps: u64,
    /// Requests of each pair.
    pub rounds: u32,
    /// How requests and responses are moved.
    pub op: Verb,
    /// By which NIC.
    pub via: Via,
    /// Its flows' tags begin here; smaller ones are other workloads'. Even.
    pub tags: u32,
    /// Its number among the workloads.
    pub number: u32,
    /// By pair: requests sent so far.
    sent: Vec<u32>,
}

impl Closed {
    /// Clients that have not begun.
    pub fn new(pairs: Vec<(u32, u32)>, request: u32, response: u32, think_ps: u64, rounds: u32) -> Closed {
        let sent = vec![0; pairs.len()];
        Closed {
            pairs,
            request,
            response,
            think_ps,
            rounds,
            op: Verb::Write,
            via: Via::Any,
            tags: 0,
            number: 0,
            sent,
        }
    }

    /// It is the `number`th of so many workloads, and its flows' tags are none of the others'.
    pub fn stands_among(&mut self, number: usize, workloads: usize) {
        self.number = number as u32;
        self.tags = if workloads > 1 { (workloads as u32).next_multiple_of(2) } else { 0 };
    }

    fn request(&mut self, pair: u32, start: u64) -> Option<FlowSpec> {
        let at = pair as usize;
        if self.sent[at] == self.rounds {
            return None;
        }
        self.sent[at] += 1;
        let (src, dst) = self.pairs[at];
        let tag = self.tags + pair * 2;
        Some(FlowSpec { start, src, dst, bytes: self.request, tag, op: self.op, via: self.via })
    }
}

impl Workload {
    /// Flows to begin with.
    pub fn first(&mut self) -> Vec<FlowSpec> {
        match self {
            Workload::Open | Workload::Repeat(_) | Workload::Persistent(_) => Vec::new(),
            Workload::Lookups(lookups) => lookups.first(),
            Workload::Closed(closed) => {
                (0..closed.pairs.len() as u32).filter_map(|pair| closed.request(pair, 0)).collect()
            }
        }
    }

    /// The flow that follows from one that has ended. An even tag is a request, its odd neighbour the
    /// response.
    pub fn next(&mut self, done: &Flow) -> Option<FlowSpec> {
        let closed = match self {
            Workload::Open | Workload::Persistent(_) => return None,
            Workload::Repeat(repeat) => {
                let until = repeat.until_ps.iter().find(|(tag, _)| *tag == done.spec.tag);
                let again = until.is_some_and(|(_, until)| done.completed < *until);
                return again.then_some(FlowSpec { start: done.completed, ..done.spec });
            }
            Workload::Lookups(lookups) => return lookups.next(done),
            Workload::Closed(closed) => closed,
        };
        let FlowSpec { src, dst, tag, op, via, .. } = done.spec;
        if done.failed || tag < closed.tags {
            return None;
        }
        if tag.is_multiple_of(2) {
            let start = done.received.min(done.completed);
            return Some(FlowSpec {
                start,
                src: dst,
                dst: src,
                bytes: closed.response,
                tag: tag + 1,
                op,
                via,
            });
        }
        closed.request((tag - closed.tags) / 2, done.completed.saturating_add(closed.think_ps))
    }

    /// Changes where a flow that starts now goes, if the workload has learnt something since it was made.
    pub fn redirect(&self, spec: &mut FlowSpec) {
        if let Workload::Lookups(lookups) = self {
            spec.src = lookups.server(spec);
        }
    }
}
