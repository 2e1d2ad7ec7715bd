//! Figures of a run of chains, by name.

use super::Log;
use adverb_sim::statistics::percentile;
use serde::Deserialize;

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Mean time of an operation, in us.
    Latency,
    /// Its median.
    LatencyP50,
    /// Its 99th percentile.
    LatencyP99,
    /// Millions of operations a second, between the first fifth of them and the last.
    Rate,
    /// WQEs of a walk's chain.
    Wqes,
    /// A construct's READs, WRITEs and SENDs.
    Copies,
    /// Its atomics.
    Atomics,
    /// Its WAITs and ENABLEs.
    Orders,
    /// From the first chain to the last one, us for each NOP that it has more; only for chains of NOPs.
    Slope,
}

const US: f64 = 1e6;

impl Metric {
    /// Its heading, with its unit, and its name in CSV files.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Metric::Latency => ("mean (us)", "latency_us"),
            Metric::LatencyP50 => ("median (us)", "latency_p50_us"),
            Metric::LatencyP99 => ("99% (us)", "latency_p99_us"),
            Metric::Rate => ("rate (M/s)", "rate_mps"),
            Metric::Wqes => ("WQEs", "wqes"),
            Metric::Copies => ("copies", "copies"),
            Metric::Atomics => ("atomics", "atomics"),
            Metric::Orders => ("orders", "orders"),
            Metric::Slope => ("slope (us/op)", "slope_us"),
        }
    }

    /// Its value. Of a run that has none, not a number.
    pub fn of(self, log: &Log) -> f64 {
        match self {
            Metric::Latency => log.samples.iter().sum::<u64>() as f64 / log.samples.len() as f64 / US,
            Metric::LatencyP50 => of_times(log, 0.5),
            Metric::LatencyP99 => of_times(log, 0.99),
            Metric::Rate => rate(&log.done),
            Metric::Wqes => log.wqes.into(),
            Metric::Copies => log.kinds[0],
            Metric::Atomics => log.kinds[1],
            Metric::Orders => log.kinds[2],
            Metric::Slope => match (log.samples.as_slice(), log.counts.as_slice()) {
                ([first, .., last], [one, .., many]) if many > one => {
                    (*last as f64 - *first as f64) / f64::from(many - one) / US
                }
                _ => f64::NAN,
            },
        }
    }
}

fn of_times(log: &Log, share: f64) -> f64 {
    let mut sorted = log.samples.clone();
    sorted.sort_unstable();
    percentile(&sorted, share).map_or(f64::NAN, |ps| ps as f64 / US)
}

/// The beginning, while queues fill, and the end, while they empty, do not count.
fn rate(done: &[u64]) -> f64 {
    let (from, to) = (done.len() / 5, done.len() * 4 / 5);
    match (done.get(from), done.get(to)) {
        (Some(start), Some(end)) if end > start => (to - from) as f64 * US / (end - start) as f64,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_the_times_that_were_logged() {
        let log = Log {
            samples: vec![1_000_000, 3_000_000],
            done: (0..100).map(|n| n * 10_000).collect(),
            counts: vec![1, 5],
            ..Log::default()
        };
        let of = |metric: Metric| metric.of(&log);
        assert_eq!((of(Metric::Latency), of(Metric::LatencyP50), of(Metric::LatencyP99)), (2.0, 1.0, 3.0));
        assert_eq!((of(Metric::Rate), of(Metric::Slope)), (100.0, 0.5));
        assert!(Metric::Rate.of(&Log::default()).is_nan() && Metric::Slope.of(&Log::default()).is_nan());
    }
}
