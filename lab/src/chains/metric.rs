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
    /// Steps that a machine took.
    Steps,
    /// Steps that it should have taken before it was stopped, and did not.
    Short,
    /// Cells of its tape that are not blank.
    Marks,
    /// It came to its end by itself: 1 or 0.
    Halted,
    /// Bytes of memory that are not as an interpreter has them that knows no RDMA.
    Wrong,
    /// Blocks of the rings of a recycled loop.
    Blocks,
    /// Requests that processors posted, and doorbells that they rang, after the chain was started.
    Posts,
    /// WQEs that NICs executed since then.
    Executed,
    /// The same of the server's NIC, for each operation of the client.
    ExecutedEach,
    /// What a reader asked for, whether it was there or not.
    Asked,
    /// Gets that found their value in the worst quarter of a second, over those in the best.
    Worst,
    /// Gets that found their value in the last quarter of a second, over those in the best.
    Last,
    /// Longest time without such a get, in ms.
    Gap,
    /// From that time's beginning until a quarter of a second has nine tenths of the best's, in ms.
    Back,
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
            Metric::Steps => ("steps", "steps"),
            Metric::Short => ("steps short", "steps_short"),
            Metric::ExecutedEach => ("WQEs each", "executed_each"),
            Metric::Asked => ("asked", "asked"),
            Metric::Worst => ("worst / best", "worst"),
            Metric::Last => ("last / best", "last"),
            Metric::Gap => ("gap (ms)", "gap_ms"),
            Metric::Back => ("back (ms)", "back_ms"),
            Metric::Marks => ("marks", "marks"),
            Metric::Halted => ("halted", "halted"),
            Metric::Wrong => ("wrong bytes", "wrong"),
            Metric::Blocks => ("blocks of rings", "blocks"),
            Metric::Posts => ("posts", "posts"),
            Metric::Executed => ("WQEs executed", "executed"),
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
            Metric::Worst => Slices::of(log).map_or(f64::NAN, |slices| slices.worst()),
            Metric::Last => Slices::of(log).map_or(f64::NAN, |slices| slices.last()),
            Metric::Gap => Slices::of(log).map_or(f64::NAN, |slices| slices.gap as f64 / 1e9),
            Metric::Back => Slices::of(log).map_or(f64::NAN, |slices| slices.back(log)),
            Metric::Asked
            | Metric::ExecutedEach
            | Metric::Steps
            | Metric::Short
            | Metric::Marks
            | Metric::Halted
            | Metric::Wrong
            | Metric::Blocks
            | Metric::Posts
            | Metric::Executed => {
                log.facts.iter().find(|(fact, _)| *fact == self).map_or(f64::NAN, |(_, value)| *value)
            }
        }
    }
}

/// A quarter of a second, in ps.
const SLICE: u64 = 250_000_000_000;

/// Gets by quarters of a second.
struct Slices {
    counts: Vec<u64>,
    /// The longest time without a get, in ps, and its beginning.
    gap: u64,
    gap_at: u64,
}

impl Slices {
    /// Of a run that had a time.
    fn of(log: &Log) -> Option<Slices> {
        let (first, end) = (*log.done.first()?, log.ended?);
        let mut counts = vec![0; ((end - first) / SLICE) as usize];
        for at in &log.done {
            if let Some(count) = counts.get_mut(((at - first) / SLICE) as usize) {
                *count += 1;
            }
        }
        let ends = log.done[1..].iter().chain([&end]);
        let gaps = log.done.iter().zip(ends).map(|(from, to)| (to - from, *from));
        let (gap, gap_at) = gaps.max_by_key(|(gap, at)| (*gap, core::cmp::Reverse(*at)))?;
        (!counts.is_empty()).then_some(Slices { counts, gap, gap_at })
    }

    fn best(&self) -> f64 {
        self.counts.iter().copied().max().unwrap_or(0) as f64
    }

    fn worst(&self) -> f64 {
        self.counts.iter().copied().min().unwrap_or(0) as f64 / self.best()
    }

    fn last(&self) -> f64 {
        self.counts.last().copied().unwrap_or(0) as f64 / self.best()
    }

    /// Infinite if it never is.
    fn back(&self, log: &Log) -> f64 {
        let end = log.ended.unwrap_or(0);
        let mut from = self.gap_at;
        while from + SLICE <= end {
            let within =
                log.done.partition_point(|at| *at < from + SLICE) - log.done.partition_point(|at| *at < from);
            if within as f64 >= 0.9 * self.best() {
                return (from - self.gap_at) as f64 / 1e9;
            }
            from += SLICE / 5;
        }
        f64::INFINITY
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
        // A get each ms for a second, none for half a second, and again for a second.
        let done: Vec<u64> = (0..1000).chain(1500..2500).map(|ms| ms * 1_000_000_000).collect();
        let log = Log { done, ended: Some(2_500_000_000_000), ..Log::default() };
        let of = |metric: Metric| metric.of(&log);
        assert_eq!((of(Metric::Worst), of(Metric::Last), of(Metric::Gap)), (0.0, 1.0, 501.0));
        assert_eq!(of(Metric::Back), 500.0, "nine tenths of a quarter from here on");
        assert!(Metric::Rate.of(&Log::default()).is_nan() && Metric::Slope.of(&Log::default()).is_nan());
    }
}
