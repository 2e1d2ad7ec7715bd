//! TIMELY (Mittal et al., SIGCOMM 2015, algorithm 1): the round-trip time of completed segments, and its
//! gradient.
//!
//! A segment ends with a packet that asks for an acknowledgement; when that is covered, the time since the
//! packet left is a sample. Samples of packets that were sent again would lie, and are dropped (Karn).

use super::config::TimelyConfig;
use adverb_wire::{Duration, Instant, Psn};
use std::collections::VecDeque;

/// Segments that may be timed at once; more of them go untimed.
const MARKS_MAX: usize = 64;

/// A queue pair's rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Timely {
    /// Bits/s.
    rate: f64,
    /// The last sample, in ps; `None` before the first.
    previous: Option<u64>,
    /// Smoothed difference between samples, ps.
    difference: f64,
    /// Samples in a row at which it did not rise.
    calm: u32,
    /// Bytes since the last segment ended.
    bytes: u32,
    /// Ends of segments on their way, and when they left.
    marks: VecDeque<(Psn, Instant)>,
}

impl Timely {
    /// At line rate.
    pub fn new(line: f64) -> Self {
        Timely { rate: line, previous: None, difference: 0.0, calm: 0, bytes: 0, marks: VecDeque::new() }
    }

    /// Bits per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// A new packet left.
    pub fn on_sent(&mut self, c: &TimelyConfig, psn: Psn, bytes: u32, asks: bool, now: Instant) {
        self.bytes = self.bytes.saturating_add(bytes);
        if asks && self.bytes >= c.segment && self.marks.len() < MARKS_MAX {
            self.bytes = 0;
            self.marks.push_back((psn, now));
        }
    }

    /// All before `una` is acknowledged.
    pub fn on_ack(&mut self, c: &TimelyConfig, line: f64, una: Psn, now: Instant) {
        let mut newest = None;
        while let Some(&(psn, sent)) = self.marks.front()
            && psn.is_before(una)
        {
            newest = Some(sent);
            self.marks.pop_front();
        }
        if let Some(sent) = newest {
            self.on_sample(c, line, now.since(sent));
        }
    }

    /// What is on its way will be sent again.
    pub fn on_loss(&mut self) {
        self.marks.clear();
    }

    /// Algorithm 1.
    pub fn on_sample(&mut self, c: &TimelyConfig, line: f64, rtt: Duration) {
        let rtt = rtt.as_ps();
        let new = rtt as f64 - self.previous.unwrap_or(rtt) as f64;
        self.previous = Some(rtt);
        self.difference = (1.0 - c.ewma) * self.difference + c.ewma * new;
        let gradient = self.difference / c.min_rtt.as_ps() as f64;
        let rate = if rtt < c.t_low.as_ps() {
            self.calm = 0;
            self.rate + c.delta
        } else if rtt > c.t_high.as_ps() {
            self.calm = 0;
            self.rate * (1.0 - c.beta * (1.0 - c.t_high.as_ps() as f64 / rtt as f64))
        } else if gradient <= 0.0 {
            self.calm += 1;
            let steps = if self.calm >= c.hai_after { 5.0 } else { 1.0 };
            self.rate + steps * c.delta
        } else {
            self.calm = 0;
            self.rate * (1.0 - c.beta * gradient)
        };
        self.rate = rate.max(c.rate_min).min(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 10e9;

    fn sampled(c: &TimelyConfig, samples: &[u64]) -> Timely {
        let mut t = Timely::new(LINE);
        t.rate = 5e9;
        for us in samples {
            t.on_sample(c, LINE, Duration::from_us(*us));
        }
        t
    }

    #[test]
    fn short_and_long_round_trips_rule_by_themselves() {
        let c = TimelyConfig::default();
        assert_eq!(sampled(&c, &[20, 49]).rate(), 5.02e9, "below 50 us it rises, however steep");
        // 1000 us: 5e9 * (1 - 0.8 * (1 - 500/1000)).
        assert_eq!(sampled(&c, &[1000]).rate(), 3e9);
    }

    #[test]
    fn between_them_the_gradient_rules() {
        let c = TimelyConfig::default();
        // 100, 104 us: difference 0.875 * 4 us, gradient 0.175: 5.01e9 * (1 - 0.14).
        let t = sampled(&c, &[100, 104]);
        assert!((t.rate() - 5.01e9 * 0.86).abs() < 1.0, "{}", t.rate());
        // Then 96 us: 0.125 * 3.5 - 0.875 * 8 us < 0: a step.
        let t = sampled(&c, &[100, 104, 96]);
        assert!((t.rate() - (5.01e9 * 0.86 + 10e6)).abs() < 1.0, "{}", t.rate());
        // A fall that steep: 100, 140 us, gradient 1.75: less than nothing is the floor.
        assert_eq!(sampled(&c, &[100, 140]).rate(), c.rate_min);
    }

    #[test]
    fn five_calm_samples_make_larger_steps() {
        let c = TimelyConfig::default();
        assert_eq!(sampled(&c, &[100; 4]).rate(), 5.04e9);
        assert_eq!(sampled(&c, &[100; 5]).rate(), 5.09e9);
        assert_eq!(sampled(&c, &[100; 6]).rate(), 5.14e9);
        // A rise by 1 us costs 0.8 * 0.875 / 20, and they are counted anew.
        let t = sampled(&c, &[100, 100, 100, 100, 101, 100]);
        assert!((t.rate() - (5.04e9 * 0.965 + 10e6)).abs() < 1.0, "{}", t.rate());
    }

    #[test]
    fn a_segment_is_timed_from_its_end_to_its_acknowledgement() {
        let c = TimelyConfig { segment: 2000, ..TimelyConfig::default() };
        let us = |us: u64| Instant::from_ps(us * 1_000_000);
        let mut t = Timely::new(LINE);
        t.on_sent(&c, Psn::new(1), 1000, true, us(0));
        t.on_sent(&c, Psn::new(2), 1000, true, us(10));
        t.on_sent(&c, Psn::new(3), 1000, true, us(20));
        t.on_ack(&c, LINE, Psn::new(2), us(500));
        assert_eq!(t.previous, None, "the segment has not ended");
        t.on_ack(&c, LINE, Psn::new(4), us(70));
        assert_eq!(t.previous, Some(60_000_000));
        t.on_sent(&c, Psn::new(4), 1000, true, us(80));
        t.on_loss();
        t.on_ack(&c, LINE, Psn::new(5), us(900));
        assert_eq!(t.previous, Some(60_000_000), "it may have been sent twice");
    }
}
