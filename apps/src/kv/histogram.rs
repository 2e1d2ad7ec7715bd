//! Latencies: counts in buckets whose width is a 64th of a power of two, so that any percentile is right to
//! within 1.6%.

use std::time::Duration;

/// Buckets of a power of two.
const PARTS: u64 = 1 << PART_BITS;
const PART_BITS: u32 = 6;
/// The longest that is told apart, in nanoseconds: 18 minutes.
const NS_MAX: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket(NS_MAX) + 1;

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

const fn bucket(ns: u64) -> usize {
    if ns < PARTS {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros();
    let part = (ns >> (log - PART_BITS)) & (PARTS - 1);
    ((log - PART_BITS + 1) as u64 * PARTS + part) as usize
}

/// The first value beyond a bucket.
fn upper(bucket: usize) -> u64 {
    let (log, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    if log == 0 { part + 1 } else { (PARTS + part + 1) << (log - 1) }
}

impl Histogram {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(NS_MAX).min(NS_MAX);
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
    fn percentiles_are_right_to_two_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), Duration::ZERO);
        for us in 1..=10_000u64 {
            histogram.record(Duration::from_micros(us));
        }
        for share in [0.01, 0.5, 0.9, 0.99, 0.999] {
            let exact = 10_000.0 * share;
            let told = histogram.percentile(share).as_secs_f64() * 1e6;
            assert!((exact..exact * 1.02).contains(&told), "{share}: {told}");
        }
        assert_eq!(histogram.percentile(1.0), Duration::from_millis(10));
        let mut both = Histogram::default();
        both.record(Duration::from_secs(5));
        both.add(&histogram);
        assert_eq!((both.total(), both.max()), (10_001, Duration::from_secs(5)));
        for ns in (0..40).map(|bit| 1u64 << bit).flat_map(|one| [one - 1, one, one | one >> 2]) {
            assert!(ns < upper(bucket(ns)) && bucket(ns) < BUCKETS, "{ns}");
            assert!(upper(bucket(ns)) <= ns + ns / PARTS + 1, "{ns}");
        }
        both.record(Duration::from_secs(1 << 40));
        assert_eq!(both.percentile(1.0), Duration::from_nanos(NS_MAX + 1), "the last bucket holds all above");
    }
}
