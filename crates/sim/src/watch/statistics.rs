//! Figures over several runs: a mean and its 95% confidence interval, percentiles.

use core::fmt;

/// Quantiles 0.975 of Student's t distribution for 1 to 30 degrees of freedom.
const T_975: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// A mean over runs, and how far the true one may lie from it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Runs.
    pub n: usize,
    /// Their mean; not a number without any.
    pub mean: f64,
    /// Half of the 95% confidence interval (Student's t); not a number for fewer than two runs, which say
    /// nothing about how runs differ.
    pub half_width: f64,
}

impl Estimate {
    /// From one value of each run.
    pub fn of(values: &[f64]) -> Estimate {
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        if n < 2 {
            return Estimate { n, mean, half_width: f64::NAN };
        }
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        let deviation = (squares / (n - 1) as f64).sqrt();
        Estimate { n, mean, half_width: t_975(n - 1) * deviation / (n as f64).sqrt() }
    }

    /// Ends of the interval.
    pub fn interval(&self) -> (f64, f64) {
        (self.mean - self.half_width, self.mean + self.half_width)
    }
}

/// With the digits that the format asks for, three otherwise: `1.234 ± 0.056`, or the mean alone.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(3);
        write!(f, "{:.digits$}", self.mean)?;
        if self.half_width.is_nan() { Ok(()) } else { write!(f, " ± {:.digits$}", self.half_width) }
    }
}

/// Between 30, 40, 60 and 120 degrees the quantile falls as their reciprocal does.
fn t_975(degrees: usize) -> f64 {
    if let Some(t) = T_975.get(degrees.wrapping_sub(1)) {
        return *t;
    }
    const LATER: [(f64, f64); 4] = [(30.0, 2.042), (40.0, 2.021), (60.0, 2.000), (120.0, 1.980)];
    let d = degrees as f64;
    let at = LATER.iter().rposition(|(from, _)| *from <= d).unwrap_or(0);
    let ((d0, t0), (end, t1)) = (LATER[at], LATER.get(at + 1).copied().unwrap_or((f64::INFINITY, 1.960)));
    let part = (1.0 / d0 - 1.0 / d) / (1.0 / d0 - 1.0 / end);
    t0 + (t1 - t0) * part
}

/// The smallest of the values, in order, that at least the share `p` of them does not exceed (nearest
/// rank); none of none.
pub fn percentile<T: Copy>(sorted: &[T], p: f64) -> Option<T> {
    let rank = (sorted.len() as f64 * p).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        // Five values with mean 3 and variance 2.5: 2.776 * sqrt(2.5 / 5).
        let e = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((e.n, e.mean), (5, 3.0));
        assert!((e.half_width - 1.9629).abs() < 1e-3, "{e:?}");
        assert_eq!(format!("{e:.1}"), "3.0 ± 2.0");
        assert_eq!(e.interval(), (e.mean - e.half_width, e.mean + e.half_width));
        let one = Estimate::of(&[7.0]);
        assert!(one.half_width.is_nan());
        assert_eq!(one.to_string(), "7.000");
        assert_eq!(Estimate::of(&[2.0; 9]).half_width, 0.0);
    }

    #[test]
    fn quantiles_fall_to_the_normal_one() {
        for (degrees, t) in [(1, 12.706), (30, 2.042), (40, 2.021), (50, 2.009), (100, 1.984), (1000, 1.962)]
        {
            assert!((t_975(degrees) - t).abs() < 1.5e-3, "{degrees}: {}", t_975(degrees));
        }
        assert!((1..500).all(|d| t_975(d) >= t_975(d + 1)));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(
            [0.0, 0.5, 0.99, 0.999, 1.0].map(|p| percentile(&values, p)),
            [1, 500, 990, 999, 1000].map(Some)
        );
        assert_eq!(percentile::<u32>(&[], 0.5), None);
        assert_eq!(percentile(&[4], 0.99), Some(4));
    }
}
