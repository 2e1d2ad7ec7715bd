//! DCQCN at the reaction point (Zhu et al., SIGCOMM 2015, section 3.1 and figure 7).
//!
//! A notification cuts the rate by half of alpha, which follows how often notifications come. Without them a
//! timer and a byte counter each count cycles; every cycle moves the rate halfway to the target (fast
//! recovery), which after F cycles of either rises by a step (additive), and after F cycles of both by larger
//! ones (hyper).
//!
//! Its two timers are looked at when something is sent or notified: nothing in between could see the
//! difference.

use super::config::DcqcnConfig;
use adverb_wire::Instant;

/// Alpha below this is nothing.
const ALPHA_MIN: f64 = 1e-9;

/// A queue pair's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dcqcn {
    /// R_C and R_T, bits/s.
    rate: f64,
    target: f64,
    alpha: f64,
    /// When alpha decays next, and when the timer's next cycle ends; `NEVER` until the first notification.
    alpha_at: Instant,
    increase_at: Instant,
    /// Bytes of the byte counter's cycle.
    bytes: u64,
    /// Cycles of the timer and of the byte counter.
    timer_cycles: u32,
    byte_cycles: u32,
}

impl Dcqcn {
    /// At line rate.
    pub fn new(line: f64) -> Self {
        Dcqcn {
            rate: line,
            target: line,
            alpha: 1.0,
            alpha_at: Instant::NEVER,
            increase_at: Instant::NEVER,
            bytes: 0,
            timer_cycles: 0,
            byte_cycles: 0,
        }
    }

    /// Bits per second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// How congested the path is, 0 to 1.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// A notification came.
    pub fn on_cnp(&mut self, c: &DcqcnConfig, line: f64, now: Instant) {
        self.on_time(c, line, now);
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(c.rate_min).min(line);
        self.alpha = (1.0 - c.g) * self.alpha + c.g;
        (self.alpha_at, self.increase_at) = (now + c.alpha_interval, now + c.increase_interval);
        (self.bytes, self.timer_cycles, self.byte_cycles) = (0, 0, 0);
    }

    /// Bytes left.
    pub fn on_sent(&mut self, c: &DcqcnConfig, line: f64, bytes: u64, now: Instant) {
        self.on_time(c, line, now);
        if self.rate >= line {
            return;
        }
        self.bytes += bytes;
        if self.bytes >= c.increase_bytes {
            self.bytes -= c.increase_bytes;
            self.increase(c, line);
            self.byte_cycles += 1;
        }
    }

    /// Time has passed.
    fn on_time(&mut self, c: &DcqcnConfig, line: f64, now: Instant) {
        while self.alpha_at <= now {
            self.alpha *= 1.0 - c.g;
            self.alpha_at += c.alpha_interval;
            if self.alpha < ALPHA_MIN {
                (self.alpha, self.alpha_at) = (0.0, Instant::NEVER);
            }
        }
        while self.increase_at <= now && self.rate < line {
            self.increase(c, line);
            self.timer_cycles += 1;
            self.increase_at += c.increase_interval;
        }
    }

    /// A cycle has ended; those before it say of which kind it was.
    fn increase(&mut self, c: &DcqcnConfig, line: f64) {
        let (fewer, more) =
            (self.timer_cycles.min(self.byte_cycles), self.timer_cycles.max(self.byte_cycles));
        if more >= c.fast_recovery {
            self.target += if fewer >= c.fast_recovery { c.rate_hyper } else { c.rate_additive };
            self.target = self.target.min(line);
        }
        self.rate = (self.rate + self.target) / 2.0;
        if line - self.rate < 1.0 {
            self.rate = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::Duration;

    const LINE: f64 = 40e9;

    fn at(us: u64) -> Instant {
        Instant::from_ps(us * 1_000_000)
    }

    fn config() -> DcqcnConfig {
        DcqcnConfig { g: 0.5, increase_bytes: 1000, ..DcqcnConfig::default() }
    }

    #[test]
    fn notifications_cut_and_alpha_follows_them() {
        let c = config();
        let mut d = Dcqcn::new(LINE);
        d.on_cnp(&c, LINE, at(100));
        assert_eq!((d.rate(), d.alpha()), (20e9, 1.0));
        // 110 us without one: alpha decays twice, and two cycles of fast recovery: 30, 35 Gb/s.
        d.on_sent(&c, LINE, 1, at(210));
        assert_eq!((d.rate(), d.alpha()), (35e9, 0.25));
        d.on_cnp(&c, LINE, at(210));
        assert_eq!((d.rate(), d.alpha()), (35e9 * 0.875, 0.625));
    }

    #[test]
    fn five_cycles_recover_then_steps_follow_and_larger_ones() {
        let c = config();
        let mut d = Dcqcn::new(LINE);
        d.on_cnp(&c, LINE, at(0));
        d.on_cnp(&c, LINE, at(1));
        // Target 20 Gb/s, rate 10; five halvings of the distance.
        assert_eq!(d.rate(), 10e9);
        d.on_sent(&c, LINE, 1, at(1 + 55 * 5));
        assert_eq!(d.rate(), 20e9 - 10e9 / 32.0);
        // The timer's sixth cycle: additive.
        d.on_sent(&c, LINE, 1, at(1 + 55 * 6));
        let sixth = (20e9 - 10e9 / 32.0 + 20.04e9) / 2.0;
        assert!((d.rate() - sixth).abs() < 1.0, "{}", d.rate());
        // Five cycles of the byte counter are additive too; when both have five, it is hyper.
        for _ in 0..5 {
            d.on_sent(&c, LINE, 1000, at(1 + 55 * 6));
        }
        assert!((d.target - 20.24e9).abs() < 1.0, "{}", d.target);
        d.on_sent(&c, LINE, 1000, at(1 + 55 * 6));
        assert!((d.target - 20.64e9).abs() < 1.0, "{}", d.target);
    }

    #[test]
    fn it_ends_at_line_rate_and_a_long_rest_costs_little() {
        let c = DcqcnConfig::default();
        let mut d = Dcqcn::new(LINE);
        d.on_cnp(&c, LINE, at(0));
        d.on_sent(&c, LINE, 1, at(3_600_000_000));
        assert_eq!((d.rate(), d.alpha()), (LINE, 0.0));
        d.on_cnp(&c, LINE, at(3_600_000_001));
        assert_eq!(
            (d.rate(), d.alpha()),
            (LINE, 1.0 / 256.0),
            "the first mark after a quiet hour says little"
        );
    }

    #[test]
    fn it_does_not_fall_below_its_floor() {
        let c = DcqcnConfig { increase_interval: Duration::from_ms(1000), ..DcqcnConfig::default() };
        let mut d = Dcqcn::new(LINE);
        for us in 0..1000 {
            d.on_cnp(&c, LINE, at(us * 50));
        }
        assert_eq!(d.rate(), 100e6);
    }
}
