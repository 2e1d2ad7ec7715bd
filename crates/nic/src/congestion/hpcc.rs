//! HPCC (Li et al., SIGCOMM 2019, section 3, algorithm 1): from what switches say of each link on the way, a
//! sender computes how many bytes are in flight there, against what the link holds in a round trip, and sets
//! its window so that the fullest one comes to eta. It paces the window over the round trip.

use super::config::HpccConfig;
use super::telemetry::{Hop, Telemetry};
use super::window::Window;
use adverb_wire::Psn;

/// A queue pair's window.
#[derive(Clone, Debug, PartialEq)]
pub struct Hpcc {
    /// W and W_c, bytes.
    window: f64,
    reference: f64,
    /// U: of the fullest link, smoothed.
    utilisation: f64,
    /// incStage.
    stage: u32,
    /// lastUpdateSeq; none before the first acknowledgement.
    updated: Option<Psn>,
    /// L: what the last acknowledgement said of each link.
    links: Telemetry,
    /// Bytes of a full packet on a link.
    packet: f64,
    /// What has come with the acknowledgement that is being taken in.
    pub(super) arrived: Option<Telemetry>,
    /// The receiver's half: what the newest packet has brought, for its acknowledgement.
    pub(super) echo: Option<Telemetry>,
}

impl Hpcc {
    /// At line rate: W_init is what the link holds in a round trip.
    pub fn new(c: &HpccConfig, line: f64, packet: u32) -> Self {
        let full = Self::full(c, line);
        Hpcc {
            window: full,
            reference: full,
            utilisation: 0.0,
            stage: 0,
            updated: None,
            links: Telemetry::default(),
            packet: f64::from(packet),
            arrived: None,
            echo: None,
        }
    }

    fn full(c: &HpccConfig, line: f64) -> f64 {
        line * c.base_rtt.as_ps() as f64 / 8e12
    }

    /// Bytes.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// R: bits per second.
    pub fn rate(&self, c: &HpccConfig) -> f64 {
        self.window * 8e12 / c.base_rtt.as_ps() as f64
    }

    /// The window in packets that may be unacknowledged; the rate makes up for what is rounded.
    pub(super) fn packets(&self, ceiling: u32) -> u32 {
        ((self.window / self.packet).ceil() as u32).clamp(1, ceiling)
    }

    /// All before `una` is acknowledged; `sent` is the next new packet. True when it came with telemetry.
    pub(super) fn on_ack(
        &mut self,
        c: &HpccConfig,
        window: &mut Window,
        (una, sent): (Psn, Psn),
        (line, ceiling): (f64, u32),
    ) -> bool {
        let Some(now) = self.arrived.take() else { return false };
        // Other links, after a change of routes, or the first of all: there is nothing to compare with yet.
        if now.hops().len() == self.links.hops().len() && !now.hops().is_empty() {
            self.measure(c, &now);
            let update = self.updated.is_none_or(|last| last.is_before(una));
            self.compute(c, update, line);
            if update {
                self.updated = Some(sent);
            }
        }
        self.links = now;
        window.set(self.packets(ceiling));
        true
    }

    /// MeasureInflight.
    fn measure(&mut self, c: &HpccConfig, now: &Telemetry) {
        let base = c.base_rtt.as_ps() as f64;
        let (mut fullest, mut between) = (0.0f64, base);
        for (new, old) in now.hops().iter().zip(self.links.hops()) {
            // An acknowledgement that overtook another says nothing new.
            let Some(time) = new.at.checked_sub(old.at).filter(|time| *time > 0) else { return };
            let of_link = in_flight(new, old, time as f64, base);
            if of_link > fullest {
                (fullest, between) = (of_link, time as f64);
            }
        }
        let weight = between.min(base) / base;
        self.utilisation = (1.0 - weight) * self.utilisation + weight * fullest;
    }

    /// ComputeWind.
    fn compute(&mut self, c: &HpccConfig, update: bool, line: f64) {
        let full = Self::full(c, line);
        let additive = f64::from(c.additive);
        let multiply = self.utilisation >= c.eta || self.stage >= c.max_stage;
        let window = if multiply {
            self.reference / (self.utilisation / c.eta) + additive
        } else {
            self.reference + additive
        };
        self.window = window.min(full).max(additive);
        if update {
            self.stage = if multiply { 0 } else { self.stage + 1 };
            self.reference = self.window;
        }
    }
}

/// What a link holds, over what it holds in a round trip when it is full: line 5 and 6.
fn in_flight(new: &Hop, old: &Hop, time: f64, base: f64) -> f64 {
    let rate = new.rate.max(1) as f64 / 8e12;
    let sent = new.sent.wrapping_sub(old.sent) as f64 / time;
    f64::from(new.queue.min(old.queue)) / (rate * base) + sent / rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::Duration;

    const LINE: f64 = 100e9;

    fn config() -> HpccConfig {
        HpccConfig { base_rtt: Duration::from_us(10), ..HpccConfig::default() }
    }

    /// One link of 100 Gb/s at `us`, that has sent so many bytes and has so many waiting.
    fn link(us: u64, sent: u64, queue: u32) -> Telemetry {
        let mut t = Telemetry::default();
        assert!(t.push(Hop { rate: 100_000_000_000, at: us * 1_000_000, sent, queue }));
        t
    }

    fn acked(h: &mut Hpcc, w: &mut Window, una: u32, t: Telemetry) {
        h.arrived = Some(t);
        assert!(h.on_ack(&config(), w, (Psn::new(una), Psn::new(una + 100)), (LINE, 1 << 20)));
    }

    #[test]
    fn a_link_that_holds_twice_what_it_should_halves_the_window() {
        let (c, mut w) = (config(), Window::new(1));
        let mut h = Hpcc::new(&c, LINE, 1000);
        assert_eq!((h.window(), h.packets(1 << 20), h.rate(&c)), (125_000.0, 125, LINE));
        acked(&mut h, &mut w, 1, link(0, 0, 125_000));
        assert_eq!(h.window(), 125_000.0, "one look says nothing");
        // Full rate over a round trip, and a round trip's bytes wait: U is 2.
        acked(&mut h, &mut w, 2, link(10, 125_000, 125_000));
        let expected = 125_000.0 * 0.95 / 2.0 + 80.0;
        assert!((h.window() - expected).abs() < 1e-6, "{}", h.window());
        assert_eq!(w.packets(), 60);
        // The same again, before what was sent then is acknowledged: from W_c, not from W.
        acked(&mut h, &mut w, 3, link(20, 250_000, 125_000));
        let again = expected * 0.95 / 2.0 + 80.0;
        assert!((h.window() - again).abs() < 1e-6, "{}", h.window());
        acked(&mut h, &mut w, 4, link(30, 375_000, 125_000));
        assert!((h.window() - again).abs() < 1e-6, "W_c has not moved");
    }

    #[test]
    fn a_link_that_is_half_empty_is_filled_after_five_steps() {
        let (c, mut w) = (config(), Window::new(1));
        let mut h = Hpcc::new(&c, LINE, 1000);
        (h.window, h.reference) = (50_000.0, 50_000.0);
        for k in 0..7u32 {
            // Half of the rate, no queue; each acknowledgement is of what left after the one before.
            acked(&mut h, &mut w, 1000 * k, link(10 * u64::from(k), 62_500 * u64::from(k), 0));
        }
        // Five additive steps, then as much as the link is less full than wanted.
        let expected = (50_000.0 + 5.0 * 80.0) * 0.95 / 0.5 + 80.0;
        assert!((h.window() - expected).abs() < 1.0, "{} {expected}", h.window());
    }

    #[test]
    fn telemetry_that_is_late_or_of_another_path_changes_nothing() {
        let (c, mut w) = (config(), Window::new(1));
        let mut h = Hpcc::new(&c, LINE, 1000);
        acked(&mut h, &mut w, 1, link(20, 0, 0));
        acked(&mut h, &mut w, 2, link(10, 999, 9));
        assert_eq!(h.utilisation, 0.0);
        acked(&mut h, &mut w, 3, Telemetry::default());
        assert!(h.window() >= 125_000.0 - 1.0);
        let mut t = Telemetry::default();
        assert_eq!((0..20).filter(|_| t.push(Hop::default())).count(), super::super::telemetry::HOPS_MAX);
    }
}
