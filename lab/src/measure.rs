//! What came out of one run.

use crate::operations::Slice;
use crate::served::Served;
use adverb_sim::{Flow, Sim};
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
    /// Request completion time: from the start of the last workload's first flow to the end of its last, in ms.
    Rct,
    /// Packets that switches dropped, as a share of data packets sent.
    Drops,
    /// Share of data packets that were sent again.
    Resent,
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
    /// Median time of a cache's lookups, in us.
    LookupP50,
    /// Their 99th percentile.
    LookupP99,
    /// Lookups that no server answered, of all.
    LookupFailed,
    /// Longest time between lookups that end well, in us.
    LookupGap,
    /// For how long a client asked in vain, in us.
    Unavailable,
    /// 99.9th percentile of a cache's lookups, in us. This and the following are of the real cache.
    LookupP999,
    /// Lookups a second, in thousands, with as many at once as there may be.
    Saturation,
    /// Lookups that arrived a second, in thousands.
    Asked,
    /// Lookups answered a second, in thousands.
    Answered,
    /// Values that were not what had been set.
    Wrong,
    /// From the first event until latencies stay as they are later, in ms.
    Settled,
    /// Operations that ended with REMOTE_AUTHENTICATION_FAILURE.
    Refused,
    /// Of these, how many for each that was under way when a key changed.
    RefusedTrips,
    /// Of these, those on regions whose keys nobody had changed.
    RefusedElsewhere,
    /// Operations that failed in other ways.
    OtherFailures,
}

impl Metric {
    /// For headings: what it is, with its unit.
    pub fn label(self) -> &'static str {
        match self {
            Metric::Slowdown => "avg slowdown",
            Metric::FctAvg => "avg FCT (ms)",
            Metric::FctP99 => "99% FCT (ms)",
            Metric::SingleP90 => "1-packet 90% (ms)",
            Metric::SingleP99 => "1-packet 99% (ms)",
            Metric::SingleP999 => "1-packet 99.9% (ms)",
            Metric::Rct => "RCT (ms)",
            Metric::Drops => "dropped share",
            Metric::Resent => "resent share",
            Metric::Pauses => "pauses/1000 pkts",
            Metric::LatencyP50 => "median (us)",
            Metric::LatencyP99 => "99% (us)",
            Metric::LatencyP999 => "99.9% (us)",
            Metric::SlowdownP50 => "median slowdown",
            Metric::SlowdownP99 => "99% slowdown",
            Metric::Goodput => "goodput (Gb/s)",
            Metric::Accepted => "accepted share",
            Metric::Nacked => "NACK share",
            Metric::TimedOut => "TIMEOUT share",
            Metric::DispatchTimedOut => "DISPATCH_T. share",
            Metric::Ramp => "ramp (RTT)",
            Metric::Converge => "converged (RTT)",
            Metric::LookupP50 => "lookup median (us)",
            Metric::LookupP99 => "lookup 99% (us)",
            Metric::LookupFailed => "lookups failed",
            Metric::LookupGap => "longest gap (us)",
            Metric::Unavailable => "unavailable (us)",
            Metric::LookupP999 => "lookup 99.9% (us)",
            Metric::Saturation => "saturation (k/s)",
            Metric::Asked => "asked (k/s)",
            Metric::Answered => "answered (k/s)",
            Metric::Wrong => "wrong values",
            Metric::Settled => "settled (ms)",
            Metric::Refused => "refused ops",
            Metric::RefusedTrips => "refused/under way",
            Metric::RefusedElsewhere => "refused elsewhere",
            Metric::OtherFailures => "other failures",
        }
    }

    /// For columns of CSV files.
    pub fn key(self) -> &'static str {
        match self {
            Metric::Slowdown => "slowdown",
            Metric::FctAvg => "fct_avg_ms",
            Metric::FctP99 => "fct_p99_ms",
            Metric::SingleP90 => "single_p90_ms",
            Metric::SingleP99 => "single_p99_ms",
            Metric::SingleP999 => "single_p999_ms",
            Metric::Rct => "rct_ms",
            Metric::Drops => "drops",
            Metric::Resent => "resent",
            Metric::Pauses => "pauses",
            Metric::LatencyP50 => "latency_p50_us",
            Metric::LatencyP99 => "latency_p99_us",
            Metric::LatencyP999 => "latency_p999_us",
            Metric::SlowdownP50 => "slowdown_p50",
            Metric::SlowdownP99 => "slowdown_p99",
            Metric::Goodput => "goodput_gbps",
            Metric::Accepted => "accepted",
            Metric::Nacked => "nack_share",
            Metric::TimedOut => "timeout_share",
            Metric::DispatchTimedOut => "dispatch_timeout_share",
            Metric::Ramp => "ramp_rtt",
            Metric::Converge => "converge_rtt",
            Metric::LookupP50 => "lookup_p50_us",
            Metric::LookupP99 => "lookup_p99_us",
            Metric::LookupFailed => "lookups_failed",
            Metric::LookupGap => "lookup_gap_us",
            Metric::Unavailable => "unavailable_us",
            Metric::LookupP999 => "lookup_p999_us",
            Metric::Saturation => "saturation_kps",
            Metric::Asked => "asked_kps",
            Metric::Answered => "answered_kps",
            Metric::Wrong => "wrong",
            Metric::Settled => "settled_ms",
            Metric::Refused => "refused",
            Metric::RefusedTrips => "refused_trips",
            Metric::RefusedElsewhere => "refused_elsewhere",
            Metric::OtherFailures => "other_failures",
        }
    }
}

/// Percentiles of the tail's curve: 90 to 99 in steps of 1, then to 99.9 in steps of 0.1.
pub const TAIL: [f64; 19] = [
    90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 96.0, 97.0, 98.0, 99.0, 99.1, 99.2, 99.3, 99.4, 99.5, 99.6, 99.7,
    99.8, 99.9,
];

/// The figures of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// In the order asked for.
    pub values: Vec<f64>,
    /// Latency of messages of one packet at [`TAIL`], in ms; empty if there are none.
    pub tail: Vec<f64>,
    /// What happened over time; empty unless asked for.
    pub timeline: Vec<Slice>,
    /// Flows, and those that failed or did not end.
    pub flows: (u32, u32),
    /// Packets that crossed a link.
    pub link_hops: u64,
    /// Hash of all that happened.
    pub trace: u64,
    /// What the real cache did; `None` for simulations.
    pub served: Option<Box<Served>>,
}

const MS: f64 = 1e9;

/// Measures a run that has ended.
pub fn measure(sim: &Sim, metrics: &[Metric]) -> Measured {
    let last = sim.flows().iter().map(|f| f.spec.tag).max().unwrap_or(0);
    let first = sim.flows().iter().map(|f| f.spec.tag).min().unwrap_or(0);
    let sum = sim.summary(|f| f.spec.tag == first);
    let all = sim.summary(|_| true);
    let mtu = sim.config().transport.mtu.bytes();
    let mut single: Vec<u64> = sim
        .flows()
        .iter()
        .filter(|f| f.spec.tag == first && f.spec.bytes <= mtu && f.received != u64::MAX)
        .map(|f| f.received - f.spec.start)
        .collect();
    single.sort_unstable();
    let stats = sim.stats();
    // Data packets: each once, and those sent again.
    let once: u64 = sim.flows().iter().map(|f| u64::from(f.spec.bytes.div_ceil(mtu).max(1))).sum();
    let share = |n: u64| n as f64 / (once + sim.retransmissions()).max(1) as f64;
    let value = |metric: &Metric| match metric {
        Metric::Slowdown => sum.slowdown_avg,
        Metric::FctAvg => sum.fct_avg_ps / MS,
        Metric::FctP99 => sum.fct_p99_ps as f64 / MS,
        Metric::SingleP90 => percentile(&single, 90.0),
        Metric::SingleP99 => percentile(&single, 99.0),
        Metric::SingleP999 => percentile(&single, 99.9),
        Metric::Rct => request(sim.flows(), last),
        Metric::Drops => share(stats.drops),
        Metric::Resent => share(sim.retransmissions()),
        Metric::Pauses => 1000.0 * share(stats.pauses),
        other => crate::operations::value(sim, *other).unwrap_or(f64::NAN),
    };
    Measured {
        values: metrics.iter().map(value).collect(),
        tail: if single.is_empty() { Vec::new() } else { TAIL.map(|p| percentile(&single, p)).to_vec() },
        timeline: Vec::new(),
        flows: (all.flows + all.failed, all.failed),
        link_hops: stats.link_hops,
        trace: sim.trace_hash(),
        served: None,
    }
}

/// In ms, of sorted times in ps: the smallest that so many percent do not exceed.
fn percentile(sorted: &[u64], percent: f64) -> f64 {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).map_or(f64::NAN, |ps| *ps as f64 / MS)
}

fn request(flows: &[Flow], tag: u32) -> f64 {
    let mut of_request = flows.iter().filter(|f| f.spec.tag == tag);
    let start = of_request.clone().map(|f| f.spec.start).min().unwrap_or(0);
    let end = of_request.try_fold(0, |end, f| (f.received != u64::MAX).then_some(end.max(f.received)));
    end.map_or(f64::NAN, |end| (end - start) as f64 / MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<u64> = (1..=1000).map(|n| n * 1_000_000_000).collect();
        assert_eq!([90.0, 99.0, 99.9].map(|p| percentile(&times, p)), [900.0, 990.0, 999.0]);
        assert_eq!(percentile(&times[..1], 99.9), 1.0);
        assert!(percentile(&[], 50.0).is_nan());
    }
}
