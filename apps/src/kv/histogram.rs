//! Latencies: counts in buckets whose width is a sixteenth of a power of two, so that any percentile is right to within 6%.

use std::time::Duration;

/// Buckets of a power of two.
const PARTS: u64 = 16;
/// Covers 64 bits of nanoseconds.
const BUCKETS: usize = (64 * PARTS) as usize;

/// Latencies, of which percentiles are asked.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], total: 0, max: Duration::ZERO }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros() as u64;
    let part = (ns >> (log - 4)) & (PARTS - 1);
    ((log - 3) * PARTS + part) as usize
}

/// The first value beyond a bucket.
fn upper(bucket: usize) -> u64 {
    let (log, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    if log == 0 { part + 1 } else { (PARTS + part + 1) << (log - 1) }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX >> 8).min(u64::MAX >> 8);
        self.counts[bucket(ns)] += 1;
        self.total += 1;
        self.max = self.max.max(latency);
    }

    /// Adds another's.
    pub fn add(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// How many.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// The latency that this share of all, 0 to 1, does not exceed. Zero when there are none.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper(at)).min(self.max);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_six_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), Duration::ZERO);
        for us in 1..=10_000u64 {
            histogram.record(Duration::from_micros(us));
        }
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = 10_000.0 * share;
            let told = histogram.percentile(share).as_secs_f64() * 1e6;
            assert!((exact..exact * 1.07).contains(&told), "{share}: {told}");
        }
        assert_eq!(histogram.percentile(1.0), Duration::from_millis(10));
        let mut both = Histogram::default();
        both.record(Duration::from_secs(5));
        both.add(&histogram);
        assert_eq!((both.total(), both.max()), (10_001, Duration::from_secs(5)));
        for ns in (0..64).map(|bit| 1u64 << bit).flat_map(|one| [one - 1, one, one | one >> 2]) {
            assert!(ns < upper(bucket(ns)) || ns > u64::MAX >> 8, "{ns}");
        }
    }
}
