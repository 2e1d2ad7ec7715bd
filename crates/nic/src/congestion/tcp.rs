//! TCP's window (RFC 5681) over a NIC's packets: slow start, congestion avoidance, one halving for a window
//! with losses, one packet after a timeout. What is lost is the transport's to find and to send again;
//! packets in flight count from the cumulative acknowledgement, so there is no inflation during recovery.

use super::config::TcpConfig;
use super::window::Window;
use adverb_wire::Psn;

/// No window falls below this but after a timeout (RFC 5681, equation 4).
const HALVED_MIN: u32 = 2;

/// Beside the window itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Slow start ends here, packets.
    threshold: u32,
    /// Losses of packets before this one have been paid for.
    recover: Option<Psn>,
    /// Until it is acknowledged, the window does not grow: fast recovery, not slow start after a timeout.
    fast: bool,
}

impl Tcp {
    pub(super) fn new(c: &TcpConfig) -> Self {
        Tcp { threshold: if c.slow_start { u32::MAX } else { c.initial }, recover: None, fast: false }
    }

    /// `count` packets more are acknowledged, all before `una`.
    pub(super) fn on_ack(&mut self, window: &mut Window, ceiling: u32, count: u32, una: Psn) {
        if self.recover.is_some_and(|end| !una.is_before(end)) {
            (self.recover, self.fast) = (None, false);
        }
        if self.fast {
            return;
        }
        if window.packets() < self.threshold {
            let grown = window.packets().saturating_add(count).min(self.threshold);
            window.set(grown.min(ceiling));
        } else {
            window.grow_by_one_a_window(count, ceiling);
        }
    }

    /// A loss was found with so many packets in flight; `sent` is the next new one.
    pub(super) fn on_loss(&mut self, window: &mut Window, in_flight: u32, sent: Psn) {
        if self.recover.is_some() {
            return;
        }
        self.threshold = (in_flight / 2).max(HALVED_MIN);
        window.set(self.threshold);
        (self.recover, self.fast) = (Some(sent), true);
    }

    /// The timer ended.
    pub(super) fn on_timeout(&mut self, window: &mut Window, in_flight: u32, sent: Psn) {
        self.threshold = (in_flight.min(window.packets()) / 2).max(HALVED_MIN);
        window.set(1);
        (self.recover, self.fast) = (Some(sent), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_the_threshold_and_then_adds_one_a_window() {
        let (mut t, mut w) = (Tcp::new(&TcpConfig::default()), Window::new(4));
        t.on_ack(&mut w, 1000, 4, Psn::new(4));
        t.on_ack(&mut w, 1000, 8, Psn::new(12));
        assert_eq!(w.packets(), 16);
        t.on_loss(&mut w, 16, Psn::new(28));
        assert_eq!(w.packets(), 8);
        t.on_loss(&mut w, 16, Psn::new(28));
        t.on_ack(&mut w, 1000, 15, Psn::new(27));
        assert_eq!(w.packets(), 8, "once for a window, and no growth before it is mended");
        t.on_ack(&mut w, 1000, 1, Psn::new(28));
        t.on_ack(&mut w, 1000, 6, Psn::new(34));
        assert_eq!(w.packets(), 8);
        t.on_ack(&mut w, 1000, 1, Psn::new(35));
        assert_eq!(w.packets(), 9, "eight packets acknowledged");
        t.on_ack(&mut w, 1000, 9, Psn::new(44));
        assert_eq!(w.packets(), 10);
    }

    #[test]
    fn a_timeout_starts_from_one_packet_up_to_half_of_what_was() {
        let (mut t, mut w) = (Tcp::new(&TcpConfig::default()), Window::new(12));
        t.on_timeout(&mut w, 12, Psn::new(12));
        assert_eq!(w.packets(), 1);
        t.on_loss(&mut w, 12, Psn::new(12));
        assert_eq!(w.packets(), 1, "what was lost is paid for");
        t.on_ack(&mut w, 1000, 1, Psn::new(1));
        t.on_ack(&mut w, 1000, 2, Psn::new(3));
        t.on_ack(&mut w, 1000, 4, Psn::new(7));
        assert_eq!(w.packets(), 6, "half of 12");
        assert_eq!(Window::new(12).packets(), 12);
    }

    #[test]
    fn without_slow_start_it_adds_from_the_first_window_on() {
        let (mut t, mut w) = (Tcp::new(&TcpConfig { initial: 8, slow_start: false }), Window::new(8));
        t.on_ack(&mut w, 1000, 8, Psn::new(8));
        assert_eq!(w.packets(), 9);
        t.on_timeout(&mut w, 9, Psn::new(17));
        t.on_ack(&mut w, 1000, 3, Psn::new(17));
        assert_eq!(w.packets(), 4, "up to half of what was by doubling");
    }

    #[test]
    fn the_ceiling_holds() {
        let (mut t, mut w) = (Tcp::new(&TcpConfig::default()), Window::new(4));
        for _ in 0..10 {
            t.on_ack(&mut w, 20, 20, Psn::new(0));
        }
        assert_eq!(w.packets(), 20);
    }
}
