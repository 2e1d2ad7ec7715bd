//! Flow sizes: fixed, uniform, heavy-tailed, or a distribution from a file.

use crate::error::Error;

/// A distribution of flow sizes in bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// Always this.
    Fixed(u32),
    /// Anything from the first to the second, equally likely.
    Uniform(u32, u32),
    /// Steps of a cumulative distribution: (bytes, chance of at most so many), linear in between.
    Steps(Vec<(u32, f64)>),
}

/// IRN's default: half of the flows are one packet (32 B to 1 KB), 15% are background of 200 KB to
/// 3 MB, the rest lie between (IRN, section 4.1). The text has no more than that: the other steps are ours.
pub const HEAVY_TAILED: [(u32, f64); 10] = [
    (32, 0.0),
    (128, 0.2),
    (512, 0.4),
    (1_000, 0.5),
    (10_000, 0.65),
    (50_000, 0.76),
    (200_000, 0.85),
    (800_000, 0.93),
    (1_600_000, 0.97),
    (3_000_000, 1.0),
];

/// Web search (Alizadeh et al., DCTCP, SIGCOMM 2010), as HPCC's authors published it with their simulator
/// (`WebSearch_distribution.txt` of alibaba-edu/High-Precision-Congestion-Control).
pub const WEB_SEARCH: [(u32, f64); 12] = [
    (0, 0.0),
    (10_000, 0.15),
    (20_000, 0.2),
    (30_000, 0.3),
    (50_000, 0.4),
    (80_000, 0.53),
    (200_000, 0.6),
    (1_000_000, 0.7),
    (2_000_000, 0.8),
    (5_000_000, 0.9),
    (10_000_000, 0.97),
    (30_000_000, 1.0),
];

/// Facebook's Hadoop cluster (Roy et al., Inside the Social Network's (Datacenter) Network, SIGCOMM 2015),
/// from the same place (`FbHdp_distribution.txt`).
pub const HADOOP: [(u32, f64); 20] = [
    (0, 0.0),
    (100, 0.01),
    (200, 0.02),
    (300, 0.05),
    (350, 0.15),
    (400, 0.2),
    (500, 0.3),
    (600, 0.4),
    (700, 0.5),
    (1_000, 0.6),
    (2_000, 0.67),
    (7_000, 0.7),
    (30_000, 0.72),
    (50_000, 0.82),
    (80_000, 0.87),
    (120_000, 0.9),
    (300_000, 0.95),
    (1_000_000, 0.975),
    (2_000_000, 0.99),
    (10_000_000, 1.0),
];

impl Sizes {
    /// IRN's heavy-tailed default.
    pub fn heavy_tailed() -> Sizes {
        Sizes::Steps(HEAVY_TAILED.to_vec())
    }

    /// Reads a distribution: lines of bytes and cumulative chance (0..=1, or 0..=100), as the files of
    /// published workloads have them. `#` begins a comment.
    pub fn parse_cdf(text: &str) -> Result<Sizes, Error> {
        let fail = |n: usize, why: &str| Error::new("workload.sizes", format!("line {}: {why}", n + 1));
        let mut steps: Vec<(u32, f64)> = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split(|c: char| c.is_whitespace() || c == ',').filter(|w| !w.is_empty());
            let bytes: f64 = words.next().and_then(|w| w.parse().ok()).unwrap_or(-1.0);
            let chance: f64 = words.next_back().and_then(|w| w.parse().ok()).unwrap_or(-1.0);
            if !(0.0..=4e9).contains(&bytes) || chance < 0.0 {
                return Err(fail(n, "expected bytes and a cumulative chance"));
            }
            if steps.last().is_some_and(|(b, c)| *b > bytes as u32 || *c > chance) {
                return Err(fail(n, "bytes and chances must not fall"));
            }
            steps.push((bytes as u32, chance));
        }
        let total = steps.last().map_or(0.0, |(_, c)| *c);
        if (total - 100.0).abs() < 1e-6 {
            steps.iter_mut().for_each(|(_, c)| *c /= 100.0);
        } else if (total - 1.0).abs() > 1e-6 {
            return Err(Error::new("workload.sizes", "the last chance must be 1 (or 100)"));
        }
        Ok(Sizes::Steps(steps))
    }

    /// Draws a size; at least 1.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> u32 {
        let size = match self {
            Sizes::Fixed(bytes) => *bytes,
            Sizes::Uniform(low, high) => rng.u32(*low..=*high),
            Sizes::Steps(steps) => {
                let u = rng.f64();
                let at = steps.partition_point(|(_, c)| *c < u).min(steps.len() - 1);
                let (high, c1) = steps[at];
                let (low, c0) = if at == 0 { (high, 0.0) } else { steps[at - 1] };
                let part = if c1 > c0 { (u - c0) / (c1 - c0) } else { 1.0 };
                low + (f64::from(high - low) * part) as u32
            }
        };
        size.max(1)
    }

    /// Mean size in bytes.
    pub fn mean(&self) -> f64 {
        match self {
            Sizes::Fixed(bytes) => f64::from(*bytes),
            Sizes::Uniform(low, high) => (f64::from(*low) + f64::from(*high)) / 2.0,
            Sizes::Steps(steps) => {
                let first = steps.first().map_or(0.0, |(b, c)| f64::from(*b) * c);
                let rest = steps
                    .windows(2)
                    .map(|w| (f64::from(w[0].0) + f64::from(w[1].0)) / 2.0 * (w[1].1 - w[0].1));
                first + rest.sum::<f64>()
            }
        }
    }

    /// Largest size.
    pub fn max(&self) -> u32 {
        match self {
            Sizes::Fixed(bytes) => *bytes,
            Sizes::Uniform(_, high) => *high,
            Sizes::Steps(steps) => steps.last().map_or(1, |(b, _)| *b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_shares_that_they_should() {
        let mut rng = fastrand::Rng::with_seed(3);
        for sizes in [Sizes::Fixed(7), Sizes::Uniform(500_000, 5_000_000), Sizes::heavy_tailed()] {
            let n = 200_000;
            let mean = (0..n).map(|_| f64::from(sizes.draw(&mut rng))).sum::<f64>() / f64::from(n);
            assert!((mean / sizes.mean() - 1.0).abs() < 0.02, "{mean} {}", sizes.mean());
        }
        for (steps, median, mean) in [(&WEB_SEARCH[..], 73_000.0, 1711250.0), (&HADOOP[..], 700.0, 120420.8)]
        {
            let sizes = Sizes::Steps(steps.to_vec());
            let mut drawn: Vec<u32> = (0..100_000).map(|_| sizes.draw(&mut rng)).collect();
            drawn.sort_unstable();
            let middle = f64::from(drawn[50_000]);
            assert!((middle / median - 1.0).abs() < 0.05, "{middle}");
            assert!((sizes.mean() / mean - 1.0).abs() < 0.01, "{}", sizes.mean());
        }
        let sizes = Sizes::heavy_tailed();
        let drawn: Vec<u32> = (0..100_000).map(|_| sizes.draw(&mut rng)).collect();
        let share = |f: &dyn Fn(u32) -> bool| drawn.iter().filter(|b| f(**b)).count() as f64 / 1e5;
        assert!((share(&|b| b <= 1000) - 0.5).abs() < 0.01);
        assert!((share(&|b| b >= 200_000) - 0.15).abs() < 0.01);
        assert!(drawn.iter().all(|b| (32..=3_000_000).contains(b)));
    }

    #[test]
    fn files_are_read_and_bad_ones_are_refused() {
        let sizes = Sizes::parse_cdf("# bytes percent\n0 0\n1000 50\n2000 100\n").unwrap();
        assert_eq!(sizes, Sizes::Steps(vec![(0, 0.0), (1000, 0.5), (2000, 1.0)]));
        assert_eq!(sizes.mean(), 1000.0);
        for (text, part) in [("10 1\n5 1", "line 2"), ("10 0.5", "last chance"), ("x 1", "line 1")] {
            assert!(Sizes::parse_cdf(text).unwrap_err().to_string().contains(part));
        }
    }
}
