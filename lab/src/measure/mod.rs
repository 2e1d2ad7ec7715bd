//! What came out of one run of the simulator.

pub mod bottleneck;
pub mod calls;
pub mod operations;

use crate::cache::Served;
use crate::definition::{Interval, Metrics};
use adverb_sim::statistics::percentile;
use adverb_sim::workload::Workload;
use adverb_sim::{Flow, Sim};
use operations::Slice;
use serde::Deserialize;

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean over flows of completion time over that of an idle network.
    Slowdown,
    /// Mean flow completion time, in ms.
    FctAvg,
    /// Its 99th percentile, in ms.
    FctP99,
    /// 90th percentile of the latency of messages of one packet, in ms.
    SingleP90,
    /// Their 99th percentile, in ms.
    SingleP99,
    /// Their 99.9th percentile, in ms.
    SingleP999,
    /// Request completion time: from the start of the last workload's first flow to the end of its last, in
    /// ms.
    Rct,
    /// Packets that switches dropped, as a share of data packets sent.
    Drops,
    /// Share of data packets that were sent again.
    Resent,
    /// Retransmission timeouts for each thousand data packets.
    Timeouts,
    /// Pause frames for each thousand data packets.
    Pauses,
    /// Median time of flows of the first workload, until the requester knows, in us.
    LatencyP50,
    /// Its 99th percentile.
    LatencyP99,
    /// Its 99.9th percentile.
    LatencyP999,
    /// Median of that time over that of an idle network.
    SlowdownP50,
    /// Its 99th percentile.
    SlowdownP99,
    /// Median time of 1RMA's operations that end well, from the post to the end, in us.
    OpDelayP50,
    /// Payload that arrived, in Gb/s.
    Goodput,
    /// Goodput over what was asked for.
    Accepted,
    /// Operations of 1RMA that ended with NACK, of all.
    Nacked,
    /// Those that ended with TIMEOUT.
    TimedOut,
    /// Those that ended with DISPATCH_TIMEOUT.
    DispatchTimedOut,
    /// Round trips until operations are asked for at line rate.
    Ramp,
    /// Round trips from the start of the last flow until two flows have fair shares.
    Converge,
    /// The least share of the line rate that is asked for, over four round trips of the forty after the start
    /// of the last flow.
    Dip,
    /// Median time of a cache's lookups, in us.
    LookupP50,
    /// Their 99th percentile.
    LookupP99,
    /// Lookups that no server answered, of all.
    LookupFailed,
    /// Longest time between lookups that end well, in us.
    LookupGap,
    /// From the last change of a region until lookups take as long as they do later on, in us.
    LookupSettled,
    /// For how long a client asked in vain, in us.
    Unavailable,
    /// By how much the mean issue delay rises when the last flow starts, at its highest over four round trips
    /// of the forty after it, in us.
    IssueRise,
    /// Calls on connections that last, in millions a second.
    Calls,
    /// Mean time of a call, in us.
    CallAvg,
    /// Its 99th percentile.
    CallP99,
    /// Reads of connection state at the server's NIC, for each call.
    Misses,
    /// Rules that StaR's stateful sides looked up, for each packet that they sent to a stateless one.
    Rules,
    /// Posted WQEs that StaR's stateless side read, for each call.
    PostedReads,
    /// Share of the server's link that is used, of the direction that is used more.
    LinkShare,
    /// Packets on the server's link, both ways, for each call.
    Packets,
    /// Packets that were sent again, for each thousand calls.
    Again,
    /// Bytes that StaR's stateless half has allocated at the server.
    StatelessBytes,
    /// Mean of what waits for the busiest link between switch and host or switch, in KB.
    QueueMean,
    /// The most.
    QueueMax,
    /// How full that link is.
    Utilisation,
    /// Jain's index of what senders send.
    Fairness,
    /// Packets that StaR's registry has let leave for stateless sides, for each call.
    Allowed,
    /// Packets that named by address what a stateless side has posted, for each call.
    ByAddress,
    /// Connections that have become StaR's with nothing kept at the server, while they lasted.
    ToStateless,
    /// Those of which the server has taken both sides' state on.
    ToStateful,
    /// Those that have become plain RC.
    ToPlain,
    /// Median time for which a side held back what was posted while it changed its role, in us.
    PauseP50,
    /// Its 99th percentile.
    PauseP99,
    /// The longest.
    PauseMax,
}

impl Metric {
    /// Its heading, with its unit, and its name in CSV files.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Metric::Slowdown => ("avg slowdown", "slowdown"),
            Metric::FctAvg => ("avg FCT (ms)", "fct_avg_ms"),
            Metric::FctP99 => ("99% FCT (ms)", "fct_p99_ms"),
            Metric::SingleP90 => ("1-packet 90% (ms)", "single_p90_ms"),
            Metric::SingleP99 => ("1-packet 99% (ms)", "single_p99_ms"),
            Metric::SingleP999 => ("1-packet 99.9% (ms)", "single_p999_ms"),
            Metric::Rct => ("RCT (ms)", "rct_ms"),
            Metric::Drops => ("dropped share", "drops"),
            Metric::Resent => ("resent share", "resent"),
            Metric::Timeouts => ("timeouts/1000 pkts", "timeouts"),
            Metric::Pauses => ("pauses/1000 pkts", "pauses"),
            Metric::LatencyP50 => ("median (us)", "latency_p50_us"),
            Metric::LatencyP99 => ("99% (us)", "latency_p99_us"),
            Metric::LatencyP999 => ("99.9% (us)", "latency_p999_us"),
            Metric::SlowdownP50 => ("median slowdown", "slowdown_p50"),
            Metric::SlowdownP99 => ("99% slowdown", "slowdown_p99"),
            Metric::OpDelayP50 => ("operation (us)", "op_delay_p50_us"),
            Metric::Goodput => ("goodput (Gb/s)", "goodput_gbps"),
            Metric::Accepted => ("accepted share", "accepted"),
            Metric::Nacked => ("NACK share", "nack_share"),
            Metric::TimedOut => ("TIMEOUT share", "timeout_share"),
            Metric::DispatchTimedOut => ("DISPATCH_T. share", "dispatch_timeout_share"),
            Metric::Ramp => ("ramp (RTT)", "ramp_rtt"),
            Metric::Converge => ("converged (RTT)", "converge_rtt"),
            Metric::Dip => ("least use share", "dip_share"),
            Metric::LookupP50 => ("lookup median (us)", "lookup_p50_us"),
            Metric::LookupP99 => ("lookup 99% (us)", "lookup_p99_us"),
            Metric::LookupFailed => ("lookups failed", "lookups_failed"),
            Metric::LookupGap => ("longest gap (us)", "lookup_gap_us"),
            Metric::LookupSettled => ("settled (us)", "lookup_settled_us"),
            Metric::Unavailable => ("unavailable (us)", "unavailable_us"),
            Metric::IssueRise => ("issue delay + (us)", "issue_rise_us"),
            Metric::Calls => ("calls (M/s)", "calls_mps"),
            Metric::CallAvg => ("avg call (us)", "call_avg_us"),
            Metric::CallP99 => ("99% call (us)", "call_p99_us"),
            Metric::Misses => ("state reads a call", "misses"),
            Metric::Rules => ("rules a packet", "rules"),
            Metric::PostedReads => ("posted reads a call", "posted_reads"),
            Metric::LinkShare => ("link share", "link_share"),
            Metric::Packets => ("packets a call", "packets"),
            Metric::Again => ("again/1000 calls", "again"),
            Metric::StatelessBytes => ("stateless (B)", "stateless_bytes"),
            Metric::QueueMean => ("mean queue (KB)", "queue_mean_kb"),
            Metric::QueueMax => ("deepest queue (KB)", "queue_max_kb"),
            Metric::Utilisation => ("utilisation", "utilisation"),
            Metric::Fairness => ("Jain's index", "fairness"),
            Metric::Allowed => ("allowed a call", "allowed"),
            Metric::ByAddress => ("by address a call", "by_address"),
            Metric::ToStateless => ("to stateless", "to_stateless"),
            Metric::ToStateful => ("to stateful", "to_stateful"),
            Metric::ToPlain => ("to plain RC", "to_plain"),
            Metric::PauseP50 => ("median pause (us)", "pause_p50_us"),
            Metric::PauseP99 => ("99% pause (us)", "pause_p99_us"),
            Metric::PauseMax => ("longest pause (us)", "pause_max_us"),
        }
    }

    /// Whether it is of what begins in the interval that is measured; otherwise of the whole run.
    pub fn is_of_interval(self) -> bool {
        !matches!(
            self,
            Metric::Rct
                | Metric::Drops
                | Metric::Resent
                | Metric::Timeouts
                | Metric::Pauses
                | Metric::Ramp
                | Metric::Converge
                | Metric::Dip
                | Metric::LookupSettled
                | Metric::Unavailable
                | Metric::IssueRise
                | Metric::Misses
                | Metric::Rules
                | Metric::PostedReads
                | Metric::LinkShare
                | Metric::Packets
                | Metric::Again
                | Metric::StatelessBytes
                | Metric::QueueMean
                | Metric::QueueMax
                | Metric::Utilisation
                | Metric::Fairness
                | Metric::Allowed
                | Metric::ByAddress
                | Metric::ToStateless
                | Metric::ToStateful
                | Metric::ToPlain
                | Metric::PauseP50
                | Metric::PauseP99
                | Metric::PauseMax
        )
    }
}

/// Percentiles of the tail's curve: 90 to 99 in steps of 1, then to 99.9 in steps of 0.1.
pub const TAIL: [f64; 19] = [
    90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0, 99.0, 99.1, 99.2, 99.3, 99.4, 99.5, 99.6, 99.7,
    99.8, 99.9,
];

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// In the order asked for.
    pub values: Vec<f64>,
    /// The same of the first half of the interval that is measured, and of the second. Not a number where a
    /// metric is of the whole run; empty for the real cache.
    pub halves: [Vec<f64>; 2],
    /// Latency of messages of one packet at [`TAIL`], in ms; empty if there are none.
    pub tail: Vec<f64>,
    /// What happened over time; empty unless asked for.
    pub timeline: Vec<Slice>,
    /// Flows, and those that failed or did not end.
    pub flows: (u32, u32),
    /// Packets that crossed a link.
    pub link_hops: u64,
    /// Nothing in it was left to chance: another seed makes the same run.
    pub exact: bool,
    /// Hash of all that happened; 0 for the real cache.
    pub trace: u64,
    /// What the real cache did; `None` for simulations.
    pub served: Option<Box<Served>>,
}

const MS: f64 = 1e9;

/// From when to when a run is measured, in ps: what begins at `from` or later, and before `to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Its beginning.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

impl Span {
    /// The part of a run that an interval leaves: of the time in which flows begin.
    pub fn of(sim: &Sim, interval: Interval) -> Span {
        let starts = || sim.flows().iter().map(|f| f.spec.start);
        let (first, last) = (starts().min().unwrap_or(0), starts().max().unwrap_or(0));
        // Flows that begin as others end go on until their workload's time is over.
        let until = match sim.workload() {
            Workload::Repeat(repeat) => repeat.until_ps.iter().map(|(_, until)| *until).max(),
            Workload::Persistent(work) => Some(work.asked.until_ps),
            _ => None,
        };
        let last = until.unwrap_or(last).min(sim.now().as_ps());
        let span = Span::cut(first, last, interval);
        match sim.workload() {
            Workload::Persistent(work) => Span { from: work.asked.measured_ps.unwrap_or(span.from), ..span },
            _ => span,
        }
    }

    fn cut(first: u64, last: u64, interval: Interval) -> Span {
        let length = last.saturating_sub(first) as f64;
        let from = first + (length * interval.warm_up) as u64;
        // The last flow is one of those that begin within all of the time.
        let to = last.saturating_sub((length * interval.drain) as u64) + u64::from(interval.drain == 0.0);
        Span { from, to: to.max(from) }
    }

    /// Whether a time is within it.
    pub fn has(self, at: u64) -> bool {
        self.from <= at && at < self.to
    }

    /// How long it is, in ps.
    pub fn length(self) -> u64 {
        self.to - self.from
    }

    /// Its two halves.
    pub fn halves(self) -> [Span; 2] {
        let middle = self.from + self.length() / 2;
        [Span { to: middle, ..self }, Span { from: middle, ..self }]
    }
}

/// Measures a run that has ended.
pub fn measure(sim: &Sim, metrics: &[Metric], interval: Interval) -> Measured {
    let span = Span::of(sim, interval);
    let all = |span: Span| metrics.iter().map(|metric| value(sim, *metric, span)).collect::<Vec<f64>>();
    let half = |span: Span| {
        let of = |metric: &Metric| if metric.is_of_interval() { value(sim, *metric, span) } else { f64::NAN };
        metrics.iter().map(of).collect::<Vec<f64>>()
    };
    let single = single_packets(sim, span);
    let tail = || TAIL.map(|p| of_times(&single, p / 100.0) / MS).to_vec();
    let summary = sim.summary(|_| true);
    let flows = match sim.workload() {
        Workload::Persistent(work) => (work.planned(), work.stalled(span.from)),
        _ => (summary.flows + summary.failed, summary.failed),
    };
    Measured {
        values: all(span),
        halves: span.halves().map(half),
        tail: if single.is_empty() { Vec::new() } else { tail() },
        timeline: Vec::new(),
        flows,
        link_hops: sim.stats().link_hops,
        exact: false,
        trace: sim.trace_hash(),
        served: None,
    }
}

fn value(sim: &Sim, metric: Metric, span: Span) -> f64 {
    let stats = sim.stats();
    let mtu = sim.config().transport.mtu.bytes();
    // Data packets: each once, and those sent again.
    let once = || sim.flows().iter().map(|f| u64::from(f.spec.bytes.div_ceil(mtu).max(1))).sum::<u64>();
    let share = |n: u64| n as f64 / (once() + sim.retransmissions()).max(1) as f64;
    match metric {
        Metric::Slowdown => mean(first_workload(sim, span).map(|f| took(f) / sim.ideal_ps(f) as f64)),
        Metric::FctAvg => mean(first_workload(sim, span).map(took)) / MS,
        Metric::FctP99 => of_times(&sorted(first_workload(sim, span).map(took)), 0.99) / MS,
        Metric::SingleP90 => of_times(&single_packets(sim, span), 0.90) / MS,
        Metric::SingleP99 => of_times(&single_packets(sim, span), 0.99) / MS,
        Metric::SingleP999 => of_times(&single_packets(sim, span), 0.999) / MS,
        Metric::Rct => request(sim.flows()),
        Metric::Drops => share(stats.drops),
        Metric::Resent => share(sim.retransmissions()),
        Metric::Timeouts => 1000.0 * share(sim.timeouts()),
        Metric::Pauses => 1000.0 * share(stats.pauses),
        Metric::QueueMean | Metric::QueueMax | Metric::Utilisation | Metric::Fairness => {
            bottleneck::value(sim, metric)
        }
        other => match sim.workload() {
            Workload::Persistent(work) => calls::value(sim, work, other, span),
            _ => operations::value(sim, other, span),
        },
    }
}

/// Flows of the first workload that begin within a span.
pub(crate) fn first_workload(sim: &Sim, span: Span) -> impl Iterator<Item = &Flow> {
    let first = sim.flows().iter().map(|f| f.spec.tag).min().unwrap_or(0);
    sim.flows().iter().filter(move |f| f.spec.tag == first && span.has(f.spec.start))
}

/// Until the receiver had all bytes, in ps. A flow that failed or did not end took for ever: to leave it out
/// would make the scheme that strands its slowest flows the fastest.
fn took(flow: &Flow) -> f64 {
    if flow.failed || flow.received == u64::MAX {
        return f64::INFINITY;
    }
    (flow.received - flow.spec.start) as f64
}

/// Of none, not a number.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0u64, 0.0), |(n, sum), value| (n + 1, sum + value));
    sum / count as f64
}

pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

/// The smallest value that so large a share does not exceed; of none, not a number.
pub(crate) fn of_times(sorted: &[f64], share: f64) -> f64 {
    percentile(sorted, share).unwrap_or(f64::NAN)
}

fn single_packets(sim: &Sim, span: Span) -> Vec<f64> {
    let mtu = sim.config().transport.mtu.bytes();
    sorted(first_workload(sim, span).filter(|f| f.spec.bytes <= mtu).map(took))
}

/// From the start of the last workload's first flow to the end of its last one, in ms.
fn request(flows: &[Flow]) -> f64 {
    let last = flows.iter().map(|f| f.spec.tag).max().unwrap_or(0);
    let of_request = || flows.iter().filter(|f| f.spec.tag == last);
    let start = of_request().map(|f| f.spec.start).min().unwrap_or(0);
    let ends = of_request().map(|f| f.spec.start as f64 + took(f));
    ends.reduce(f64::max).map_or(f64::NAN, |end| (end - start as f64) / MS)
}

/// Measures what an experiment asks for; nothing of the real cache and of chains, which are measured as they
/// run.
pub(crate) fn measured(sim: &Sim, metrics: &Metrics, interval: Interval) -> Measured {
    match metrics {
        Metrics::Simulated(metrics) => measure(sim, metrics, interval),
        Metrics::Cache(_) | Metrics::Chains(_) | Metrics::Rack(_) | Metrics::Budget(_) => Measured::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_sim::Scenario;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!([0.9, 0.99, 0.999].map(|p| of_times(&times, p)), [900.0, 990.0, 999.0]);
        assert_eq!(of_times(&times[..1], 0.999), 1.0);
        assert!(of_times(&[], 0.5).is_nan() && mean(core::iter::empty()).is_nan());
    }

    #[test]
    fn an_interval_leaves_what_begins_within_it() {
        let cut = |warm_up, drain| Span::cut(1000, 2000, Interval { warm_up, drain });
        assert_eq!(cut(0.0, 0.0), Span { from: 1000, to: 2001 }, "the last flow too");
        assert_eq!(cut(0.2, 0.1), Span { from: 1200, to: 1900 });
        let span = cut(0.2, 0.1);
        assert_eq!([1199, 1200, 1899, 1900].map(|at| span.has(at)), [false, true, true, false]);
        assert_eq!(span.halves(), [Span { from: 1200, to: 1550 }, Span { from: 1550, to: 1900 }]);
        assert_eq!(Span::cut(5, 5, Interval { warm_up: 0.5, drain: 0.4 }).length(), 0);
    }

    fn run(text: &str) -> Sim {
        let plan = Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap();
        let mut sim = plan.start().unwrap();
        plan.run(&mut sim, &mut |_| {});
        sim
    }

    const FABRIC: &str = "[topology]\nkind = \"star\"\nhosts = 8\nrate = \"100G\"\ndelay = \"1us\"\n\
                          [switch]\nbuffer = \"1MB\"\n\
                          [workload]\nkind = \"poisson\"\nload = 0.6\nflows = 400\n\
                          sizes = \"fixed 65536\"\n";

    /// The whole span without a cut is what the simulator itself reports, and halves are of their flows.
    #[test]
    fn figures_are_of_the_flows_that_begin_within() {
        let sim = run(FABRIC);
        let metrics = [Metric::Slowdown, Metric::FctAvg, Metric::FctP99, Metric::Drops];
        let all = measure(&sim, &metrics, Interval::default());
        let summary = sim.summary(|_| true);
        assert_eq!(all.flows, (400, 0));
        for (value, expected) in all.values.iter().zip([
            summary.slowdown_avg,
            summary.fct_avg_ps / MS,
            summary.fct_p99_ps as f64 / MS,
        ]) {
            assert!((value / expected - 1.0).abs() < 1e-9, "{value} {expected}");
        }
        let cut = Interval { warm_up: 0.25, drain: 0.25 };
        let span = Span::of(&sim, cut);
        let some = measure(&sim, &metrics, cut);
        let picked = sim.summary(|f| span.has(f.spec.start));
        assert!(picked.flows > 100 && picked.flows < 300, "{}", picked.flows);
        assert!((some.values[0] / picked.slowdown_avg - 1.0).abs() < 1e-9);
        for (half, span) in some.halves.iter().zip(span.halves()) {
            let expected = sim.summary(|f| span.has(f.spec.start)).slowdown_avg;
            assert!((half[0] / expected - 1.0).abs() < 1e-9 && half[3].is_nan(), "{half:?}");
        }
    }

    /// What is stranded is not left out of means and tails.
    #[test]
    fn flows_that_do_not_end_took_for_ever() {
        let sim = run(&format!("end = \"40us\"\n{FABRIC}"));
        let metrics = [Metric::Slowdown, Metric::FctAvg, Metric::FctP99, Metric::Rct];
        let all = measure(&sim, &metrics, Interval::default());
        assert!(all.flows.1 > 100, "{:?}", all.flows);
        assert!(all.values.iter().all(|value| *value == f64::INFINITY), "{:?}", all.values);
    }
}
