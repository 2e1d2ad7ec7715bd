//! What the bench programs share: a clock, a median, and options of the form `--name value`.
//!
//! The programs are leaves: they measure real time, so they may read the clock.

use std::str::FromStr;

/// Time now. The one place of this crate that reads the clock.
#[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Options after the subcommand, as `--name value` pairs.
pub struct Options(Vec<String>);

impl Options {
    /// Takes the words over.
    pub fn new(words: Vec<String>) -> Self {
        Options(words)
    }

    /// Value of `--name`, or `default` where it is not given. An error names the option.
    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        let Some(at) = self.0.iter().position(|word| word.strip_prefix("--") == Some(name)) else {
            return Ok(default);
        };
        let word = self.0.get(at + 1).ok_or_else(|| format!("--{name} wants a value"))?;
        word.parse().map_err(|_| format!("--{name}: cannot read {word:?}"))
    }
}

/// Value at `rank` (0 to 1) of unsorted samples; zero where there are none.
pub fn percentile(samples: &mut [u64], rank: f64) -> u64 {
    if samples.is_empty() {
        return 0;
    }
    samples.sort_unstable();
    let last = samples.len() - 1;
    samples[((last as f64 * rank).round() as usize).min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options::new(text.split_whitespace().map(str::to_owned).collect())
    }

    #[test]
    fn options_are_found_defaulted_and_refused() {
        assert_eq!(options("--size 64").get("size", 8usize), Ok(64));
        assert_eq!(options("--other 64").get("size", 8usize), Ok(8));
        assert!(options("--size").get("size", 8usize).is_err());
        assert!(options("--size many").get("size", 8usize).is_err());
    }

    #[test]
    fn percentile_takes_the_ranked_sample() {
        assert_eq!(percentile(&mut [], 0.5), 0);
        assert_eq!(percentile(&mut [5, 1, 3], 0.0), 1);
        assert_eq!(percentile(&mut [5, 1, 3], 0.5), 3);
        assert_eq!(percentile(&mut [5, 1, 3], 1.0), 5);
    }
}
