//! Swift (Kumar et al., SIGCOMM 2020, section 3, algorithm 1): a window that grows while the round-trip time
//! is below a target, and falls by how far it is above, once a round trip at most. A window below one packet
//! is a pause between packets. The target is longer for small windows, of which many share a queue
//! (section 3.5).
//!
//! A NIC's round trip is the network's: the paper's second window, for what hosts add, has nothing to go by
//! here. Nor does the target grow with the hops of a path.

use super::config::SwiftConfig;
use super::window::Window;
use adverb_wire::{Duration, Instant, Psn};
use std::collections::VecDeque;

/// Packets that may be timed at once; more of them go untimed.
const MARKS_MAX: usize = 4096;
/// Timeouts in a row after which the window is the smallest (RETX_RESET_THRESHOLD).
const TIMEOUTS_MAX: u32 = 5;

/// A queue pair's window.
#[derive(Clone, Debug, PartialEq)]
pub struct Swift {
    /// cwnd, packets.
    window: f64,
    /// The last round trip, ps; zero before the first.
    rtt: u64,
    decreased: Instant,
    timeouts: u32,
    /// Packets on their way, and when they left.
    marks: VecDeque<(Psn, Instant)>,
}

impl Swift {
    /// With the initial window.
    pub fn new(c: &SwiftConfig) -> Self {
        let window = f64::from(c.initial);
        Swift { window, rtt: 0, decreased: Instant::ZERO, timeouts: 0, marks: VecDeque::new() }
    }

    /// Packets; a fraction is a pause.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Bits per second that a window below one packet lets leave; none otherwise.
    pub(super) fn rate(&self, packet_bits: f64) -> Option<f64> {
        (self.window < 1.0 && self.rtt > 0).then(|| packet_bits * self.window * 1e12 / self.rtt as f64)
    }

    /// The delay that is wanted at a window, ps (section 3.5).
    fn target(c: &SwiftConfig, window: f64) -> f64 {
        let base = c.target.as_ps() as f64;
        let range = c.fs_range.as_ps() as f64;
        let (high, low) = (c.fs_min_cwnd.powf(-0.5), c.fs_max_cwnd.powf(-0.5));
        let scaled = range * (window.powf(-0.5) - low) / (high - low);
        base + scaled.clamp(0.0, range)
    }

    /// A new packet left.
    pub(super) fn on_sent(&mut self, psn: Psn, now: Instant) {
        if self.marks.len() < MARKS_MAX {
            self.marks.push_back((psn, now));
        }
    }

    /// `count` packets more are acknowledged, all before `una`.
    pub(super) fn on_ack(
        &mut self,
        c: &SwiftConfig,
        window: &mut Window,
        (count, una): (u32, Psn),
        ceiling: u32,
        now: Instant,
    ) {
        let mut newest = None;
        while let Some(&(psn, sent)) = self.marks.front()
            && psn.is_before(una)
        {
            newest = Some(sent);
            self.marks.pop_front();
        }
        self.timeouts = 0;
        if let Some(sent) = newest {
            self.on_sample(c, count, now.since(sent), now);
        }
        self.apply(c, window, ceiling);
    }

    /// Algorithm 1's onReceiveAck.
    fn on_sample(&mut self, c: &SwiftConfig, count: u32, rtt: Duration, now: Instant) {
        self.rtt = rtt.as_ps().max(1);
        let (delay, target) = (self.rtt as f64, Self::target(c, self.window));
        if delay < target {
            let step = c.ai * f64::from(count);
            self.window += if self.window >= 1.0 { step / self.window } else { step };
        } else if self.may_decrease(now) {
            let factor = (1.0 - c.beta * (delay - target) / delay).max(1.0 - c.max_mdf);
            self.window *= factor;
            self.decreased = now;
        }
    }

    fn may_decrease(&self, now: Instant) -> bool {
        now.since(self.decreased).as_ps() >= self.rtt
    }

    /// A loss was found, or the timer ended; what is on its way will be sent again, and says nothing of
    /// delays any more.
    pub(super) fn on_loss(
        &mut self,
        c: &SwiftConfig,
        window: &mut Window,
        timeout: bool,
        ceiling: u32,
        now: Instant,
    ) {
        self.marks.clear();
        self.timeouts = if timeout { self.timeouts + 1 } else { 0 };
        if self.timeouts >= TIMEOUTS_MAX {
            self.window = c.min_cwnd;
        } else if self.may_decrease(now) {
            self.window *= 1.0 - c.max_mdf;
            self.decreased = now;
        }
        self.apply(c, window, ceiling);
    }

    fn apply(&mut self, c: &SwiftConfig, window: &mut Window, ceiling: u32) {
        self.window = self.window.clamp(c.min_cwnd, f64::from(ceiling));
        window.set((self.window as u32).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant::from_ps(us * 1_000_000)
    }

    fn config() -> SwiftConfig {
        SwiftConfig { target: Duration::from_us(50), fs_range: Duration::ZERO, ..SwiftConfig::default() }
    }

    #[test]
    fn a_window_below_the_target_gains_a_packet_a_round_trip() {
        let (c, mut w) = (config(), Window::new(10));
        let mut s = Swift::new(&c);
        for k in 0..10u32 {
            s.on_sent(Psn::new(k), us(0));
            s.on_ack(&c, &mut w, (1, Psn::new(k + 1)), 100, us(20));
        }
        assert!((s.window() - 11.0).abs() < 0.05, "{}", s.window());
        assert_eq!((w.packets(), s.marks.len()), (10, 0));
    }

    #[test]
    fn above_it_falls_by_how_far_once_a_round_trip() {
        let (c, mut w) = (config(), Window::new(10));
        let mut s = Swift::new(&c);
        // 62.5 us: a fifth above of what it is, times 0.8.
        for k in 0..5u32 {
            s.on_sent(Psn::new(k), Instant::from_ps(1_000_000_000 - 62_500_000));
        }
        for k in 0..5u32 {
            s.on_ack(&c, &mut w, (1, Psn::new(k + 1)), 100, us(1000));
        }
        assert!((s.window() - 8.4).abs() < 1e-9, "{}", s.window());
        // A second later and far above: half at most.
        s.on_sent(Psn::new(5), us(2000));
        s.on_ack(&c, &mut w, (1, Psn::new(6)), 100, us(9000));
        assert!((s.window() - 4.2).abs() < 1e-9, "{}", s.window());
    }

    #[test]
    fn the_target_is_scaled_by_the_window_and_small_windows_pace() {
        let c = SwiftConfig { fs_range: Duration::from_us(100), ..config() };
        let at = |w: f64| Swift::target(&c, w) / 1e6;
        assert_eq!([at(100.0), at(1000.0), at(0.1), at(0.01)], [50.0, 50.0, 150.0, 150.0]);
        assert!(at(1.0) > at(4.0) && at(4.0) > 50.0);
        let mut s = Swift::new(&c);
        assert_eq!(s.rate(8000.0), None);
        (s.window, s.rtt) = (0.5, 100_000_000);
        // Half a packet of 1,000 bytes in 100 us.
        assert_eq!(s.rate(8000.0), Some(40e6));
        let mut w = Window::new(1);
        s.apply(&c, &mut w, 100);
        assert_eq!(w.packets(), 1);
    }

    #[test]
    fn losses_cost_the_largest_cut_and_silence_the_window() {
        let (c, mut w) = (config(), Window::new(10));
        let mut s = Swift::new(&c);
        s.on_sent(Psn::new(0), us(1));
        s.on_loss(&c, &mut w, false, 100, us(100));
        assert_eq!((s.window(), s.marks.len()), (5.0, 0));
        for k in 0..5 {
            s.on_loss(&c, &mut w, true, 100, us(1000 * (k + 1)));
        }
        assert_eq!(s.window(), c.min_cwnd);
    }
}
