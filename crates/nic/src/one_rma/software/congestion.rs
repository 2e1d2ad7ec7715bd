//! Congestion control of 1RMA (section 6, algorithm 1): for the software above a NIC, which decides when
//! operations are issued. The NIC only reports delays and outcomes, and uses nothing of this.
//!
//! Each pair of remote NIC and direction has a [`CongestionWindow`] for remote congestion, moved by the
//! remote delay (total less issue delay); one more, the local one, is moved by the issue delay of all
//! operations. The smaller of the two says how many operations may be outstanding, and how fast they are
//! issued: one operation's size times the window for each round trip.
//!
//! | completion | local window | remote window |
//! |---|---|---|
//! | OK | up or down by the issue delay | up or down by the remote delay |
//! | DISPATCH_TIMEOUT | a tenth | |
//! | TIMEOUT, NACK | | a tenth |
//! | REMOTE_AUTHENTICATION_FAILURE | | |
//!
//! A window is made smaller at most once per round trip, whatever the cause.

use crate::error::Error;
use crate::one_rma::Outcome;
use adverb_wire::one_rma::MAX_OP;
use adverb_wire::{Duration, Instant};

/// Parameters. The defaults are the paper's where it gives them; it gives neither targets nor bounds of the
/// windows, which are ours.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionConfig {
    /// Operations added per round trip while the delay is below its target. Paper: 0.25.
    pub increase: f64,
    /// Weight of the delay's excess in a decrease. Paper: 0.8.
    pub beta: f64,
    /// What a decrease by delay leaves at least. Paper: 0.5.
    pub least_factor: f64,
    /// What a failure leaves. Paper: a tenth.
    pub failure_factor: f64,
    /// Issue delay above which the local window shrinks.
    pub local_target: Duration,
    /// Remote delay above which a remote window shrinks.
    pub remote_target: Duration,
    /// Round trip of the idle network.
    pub rtt: Duration,
    /// Smallest window, in operations; 0.01 is one operation in a hundred round trips.
    pub window_min: f64,
    /// Largest window, in operations.
    pub window_max: f64,
    /// First window, in operations. Not in the paper: with 13, line rate takes the 8 round trips of figure
    /// 15a; with 1 it takes 65.
    pub window_start: f64,
    /// Whether local congestion has a window of its own, as in the paper. False is for comparison (figure
    /// 15c): each pair of remote NIC and direction then has one window, moved by the total delay against the
    /// sum of both targets, and by every failure.
    pub split_local: bool,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        CongestionConfig {
            increase: 0.25,
            beta: 0.8,
            least_factor: 0.5,
            failure_factor: 0.1,
            local_target: Duration::from_us(2),
            remote_target: Duration::from_us(8),
            rtt: Duration::from_us(5),
            window_min: 0.01,
            window_max: 64.0,
            window_start: 13.0,
            split_local: true,
        }
    }
}

impl CongestionConfig {
    /// Whether the values go together.
    pub fn check(&self) -> Result<(), Error> {
        let factor = |value: f64| value > 0.0 && value <= 1.0;
        if !factor(self.beta) || !factor(self.least_factor) || !factor(self.failure_factor) {
            return Err(Error::Invalid("factor of congestion control: not above 0 and at most 1"));
        }
        if !(self.increase > 0.0 && self.increase.is_finite()) {
            return Err(Error::Invalid("increase of congestion control: not above 0"));
        }
        let ordered = 0.0 < self.window_min && self.window_min <= self.window_start;
        if !(ordered && self.window_start <= self.window_max && self.window_max.is_finite()) {
            return Err(Error::Invalid(
                "windows of congestion control: smallest, first and largest out of order",
            ));
        }
        if [self.local_target, self.remote_target, self.rtt].contains(&Duration::ZERO) {
            return Err(Error::Invalid("target or round trip of congestion control: zero"));
        }
        Ok(())
    }
}

/// One congestion window, in operations of 4 KB.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CongestionWindow {
    operations: f64,
    /// When it was last made smaller.
    decreased: Option<Instant>,
}

impl CongestionWindow {
    /// A window as it starts.
    pub fn new(config: &CongestionConfig) -> CongestionWindow {
        CongestionWindow { operations: config.window_start, decreased: None }
    }

    /// Its size in operations; below 1, less than one operation per round trip.
    pub fn operations(&self) -> f64 {
        self.operations
    }

    /// After an operation that ended well with this delay.
    fn on_delay(&mut self, config: &CongestionConfig, now: Instant, delay: Duration, target: Duration) {
        if delay < target {
            let divisor = self.operations.max(1.0);
            self.operations = (self.operations + config.increase / divisor).min(config.window_max);
            return;
        }
        // Not zero: no target is.
        let share = (delay.as_ps() - target.as_ps()) as f64 / delay.as_ps() as f64;
        self.decrease(config, now, (1.0 - config.beta * share).max(config.least_factor));
    }

    fn decrease(&mut self, config: &CongestionConfig, now: Instant, factor: f64) {
        if self.decreased.is_some_and(|last| now.since(last) < config.rtt) {
            return;
        }
        self.decreased = Some(now);
        self.operations = (self.operations * factor).max(config.window_min);
    }
}

/// What a completion says about congestion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// How the operation ended.
    pub outcome: Outcome,
    /// As the completion says.
    pub issue_delay: Duration,
    /// As the completion says.
    pub total_delay: Duration,
}

/// Moves the local window and the one of the operation's remote NIC and direction.
pub fn on_completion(
    config: &CongestionConfig,
    now: Instant,
    sample: &Sample,
    local: &mut CongestionWindow,
    remote: &mut CongestionWindow,
) {
    if !config.split_local {
        return on_total(config, now, sample, remote);
    }
    match sample.outcome {
        Outcome::Ok => {
            let spent = sample.total_delay.as_ps().saturating_sub(sample.issue_delay.as_ps());
            local.on_delay(config, now, sample.issue_delay, config.local_target);
            remote.on_delay(config, now, Duration::from_ps(spent), config.remote_target);
        }
        Outcome::DispatchTimeout => local.decrease(config, now, config.failure_factor),
        Outcome::Timeout | Outcome::Nack => remote.decrease(config, now, config.failure_factor),
        // A wrong key says nothing about the network.
        Outcome::RemoteAuthenticationFailure => {}
    }
}

/// Without the split: all that delays an operation moves the one window.
fn on_total(config: &CongestionConfig, now: Instant, sample: &Sample, window: &mut CongestionWindow) {
    match sample.outcome {
        Outcome::Ok => {
            window.on_delay(config, now, sample.total_delay, config.local_target + config.remote_target)
        }
        Outcome::DispatchTimeout | Outcome::Timeout | Outcome::Nack => {
            window.decrease(config, now, config.failure_factor)
        }
        Outcome::RemoteAuthenticationFailure => {}
    }
}

/// What the smaller of two windows allows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Allowance {
    operations: f64,
    rtt: Duration,
}

impl Allowance {
    /// Of a remote window beside the local one.
    pub fn new(config: &CongestionConfig, local: &CongestionWindow, remote: &CongestionWindow) -> Allowance {
        let local = if config.split_local { local.operations } else { f64::INFINITY };
        Allowance { operations: local.min(remote.operations), rtt: config.rtt }
    }

    /// Operations that may be outstanding: whole ones, and always one, which the rate then spaces.
    pub fn outstanding(&self) -> u32 {
        (self.operations as u32).max(1)
    }

    /// How long after an operation of `len` bytes the next one may be issued: its time at the rate of 4 KB
    /// times the window per round trip.
    pub fn spacing(&self, len: u16) -> Duration {
        let share = len as f64 / MAX_OP as f64;
        Duration::from_ps((self.rtt.as_ps() as f64 * share / self.operations) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_us;

    struct Pair {
        config: CongestionConfig,
        local: CongestionWindow,
        remote: CongestionWindow,
        now: Instant,
    }

    impl Pair {
        fn new(start: f64) -> Pair {
            let config = CongestionConfig { window_start: start, ..CongestionConfig::default() };
            let window = CongestionWindow::new(&config);
            Pair { config, local: window, remote: window, now: Instant::from_ns(1_000_000) }
        }

        /// Both windows after a completion that comes `after` the last one.
        fn after(&mut self, after: Duration, outcome: Outcome, issue: Duration, total: Duration) -> [f64; 2] {
            self.now += after;
            let sample = Sample { outcome, issue_delay: issue, total_delay: total };
            on_completion(&self.config, self.now, &sample, &mut self.local, &mut self.remote);
            [self.local.operations(), self.remote.operations()]
        }
    }

    #[track_caller]
    fn assert_near(found: [f64; 2], expected: [f64; 2]) {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(found[0], expected[0]) && near(found[1], expected[1]), "{found:?}, not {expected:?}");
    }

    #[test]
    fn windows_grow_by_a_quarter_over_themselves() {
        let mut p = Pair::new(0.5);
        let mut ok = || p.after(Duration::ZERO, Outcome::Ok, Duration::ZERO, US(5));
        // Below 1 a quarter each, then a quarter of the inverse: 1 + 1/4, 1.25 + 1/5, 1.45 + 5/29.
        assert_near(ok(), [0.75, 0.75]);
        assert_near(ok(), [1.0, 1.0]);
        assert_near(ok(), [1.25, 1.25]);
        assert_near(ok(), [1.45, 1.45]);
        assert_near(ok(), [1.45 + 5.0 / 29.0, 1.45 + 5.0 / 29.0]);
    }

    #[test]
    fn each_window_goes_by_its_own_delay() {
        let mut p = Pair::new(10.0);
        // Issue 4 us against 2: 1 - .8 * 2/4 = .6. Remote 5 us against 8: up by .025.
        assert_near(p.after(US(0), Outcome::Ok, US(4), US(9)), [6.0, 10.025]);
        // Issue 1 us: up by .25/6. Remote 10 us against 8: 1 - .8 * 2/10 = .84.
        let remote = 10.025 * 0.84;
        assert_near(p.after(US(6), Outcome::Ok, US(1), US(11)), [6.0 + 0.25 / 6.0, remote]);
        // Within the same round trip it does not shrink again; the local one, last shrunk 6 us ago, halves at
        // most: 1 - .8 * 98/100 is below .5.
        let local = (6.0 + 0.25 / 6.0) * 0.5;
        assert_near(p.after(US(0), Outcome::Ok, US(100), US(150)), [local, remote]);
        // At the target itself: a decrease by nothing.
        assert_near(p.after(US(6), Outcome::Ok, US(2), US(10)), [local, remote]);
    }

    #[test]
    fn without_the_split_one_window_goes_by_the_total_delay() {
        let mut p = Pair::new(10.0);
        p.config.split_local = false;
        // Issue 9 us alone would shrink the local window; 9.5 in all are below 2 + 8.
        assert_near(p.after(US(0), Outcome::Ok, US(9), Duration::from_ns(9_500)), [10.0, 10.025]);
        // 12.5 us against 10: 1 - .8 * 2.5/12.5 = .84.
        assert_near(p.after(US(0), Outcome::Ok, US(9), Duration::from_ns(12_500)), [10.0, 10.025 * 0.84]);
        assert_near(p.after(US(6), Outcome::DispatchTimeout, US(10), US(10)), [10.0, 10.025 * 0.084]);
        let large = CongestionWindow { operations: 20.0, decreased: None };
        assert_eq!(Allowance::new(&p.config, &p.local, &large).outstanding(), 20);
    }

    #[test]
    fn failures_leave_a_tenth_of_the_window_that_they_are_about() {
        let mut p = Pair::new(20.0);
        assert_near(p.after(US(0), Outcome::DispatchTimeout, US(10), US(10)), [2.0, 20.0]);
        assert_near(p.after(US(0), Outcome::Nack, US(0), US(5)), [2.0, 2.0]);
        // Once per round trip, then again, then down to the smallest.
        assert_near(p.after(Duration::from_ns(4_999), Outcome::Timeout, US(0), US(20)), [2.0, 2.0]);
        assert_near(p.after(Duration::from_ns(1), Outcome::Timeout, US(0), US(20)), [2.0, 0.2]);
        assert_near(p.after(US(5), Outcome::Timeout, US(0), US(20)), [2.0, 0.02]);
        assert_near(p.after(US(5), Outcome::Timeout, US(0), US(20)), [2.0, 0.01]);
        assert_near(p.after(US(5), Outcome::RemoteAuthenticationFailure, US(9), US(99)), [2.0, 0.01]);
    }

    #[test]
    fn values_that_do_not_go_together_are_refused() {
        let refused = |change: fn(&mut CongestionConfig)| {
            let mut config = CongestionConfig::default();
            change(&mut config);
            matches!(config.check(), Err(Error::Invalid(_)))
        };
        assert!(!refused(|_| {}));
        assert!(refused(|c| c.beta = 1.1));
        assert!(refused(|c| c.failure_factor = 0.0));
        assert!(refused(|c| c.increase = f64::NAN));
        assert!(refused(|c| c.window_min = 0.0));
        assert!(refused(|c| c.window_start = 65.0));
        assert!(refused(|c| c.window_max = f64::INFINITY));
        assert!(refused(|c| c.rtt = Duration::ZERO));
    }

    #[test]
    fn windows_stay_within_their_bounds() {
        let mut p = Pair::new(63.999);
        assert_near(p.after(US(0), Outcome::Ok, US(0), US(5)), [64.0, 64.0]);
    }

    #[test]
    fn the_smaller_window_says_how_many_and_how_fast() {
        let config = CongestionConfig::default();
        let allowance = |local, remote| {
            let window = |operations| CongestionWindow { operations, decreased: None };
            Allowance::new(&config, &window(local), &window(remote))
        };
        assert_eq!((allowance(2.5, 9.0).outstanding(), allowance(9.0, 2.5).outstanding()), (2, 2));
        assert_eq!(allowance(9.0, 2.5).spacing(4096), US(2));
        assert_eq!(allowance(9.0, 2.5).spacing(1024), Duration::from_ns(500));
        // 15 operations in 5 us are 100 Gb/s: one each third of a microsecond (section 7.4).
        assert_eq!(allowance(15.0, 64.0).spacing(4096).as_ns(), 333);
        // Less than one per round trip: one outstanding, far apart.
        assert_eq!((allowance(0.1, 5.0).outstanding(), allowance(0.1, 5.0).spacing(4096)), (1, US(50)));
    }
}
