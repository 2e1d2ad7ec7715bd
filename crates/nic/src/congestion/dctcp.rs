//! DCTCP (Alizadeh et al., SIGCOMM 2010, section 3; RFC 8257): a window as TCP's that falls, once a window,
//! by half of alpha, which follows the share of packets that came marked.
//!
//! Receivers echo marks in the BTH's BECN bit of acknowledgements, where TCP has ECE. Each packet has an
//! acknowledgement, so the echo is exact; one that stands for several says whether any was marked.

use super::config::DctcpConfig;
use super::window::Window;
use adverb_wire::Psn;

/// No window falls below this but after a timeout (RFC 5681, equation 4).
const LEAST: f64 = 2.0;

/// A queue pair's window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dctcp {
    /// cwnd, packets.
    window: f64,
    /// Slow start ends here, packets.
    threshold: f64,
    alpha: f64,
    /// Packets acknowledged in this observation window, and those of them that were marked.
    acked: u32,
    marked: u32,
    /// The observation window ends when this is acknowledged; none before the first.
    observed: Option<Psn>,
    /// Until it is acknowledged, what is lost or marked has been paid for.
    reduced: Option<Psn>,
}

impl Dctcp {
    /// In slow start. Alpha is 1, so that the first mark halves (RFC 8257, 4.2).
    pub fn new(c: &DctcpConfig) -> Self {
        Dctcp {
            window: f64::from(c.initial),
            threshold: f64::INFINITY,
            alpha: 1.0,
            acked: 0,
            marked: 0,
            observed: None,
            reduced: None,
        }
    }

    /// How congested the path is, 0 to 1.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// `count` packets more are acknowledged, all before `una`; `marked` if the acknowledgement said so.
    /// `sent` is the next new one.
    pub(super) fn on_ack(
        &mut self,
        c: &DctcpConfig,
        window: &mut Window,
        (count, una, sent): (u32, Psn, Psn),
        marked: bool,
        ceiling: u32,
    ) {
        self.acked += count;
        self.marked += if marked { count } else { 0 };
        if self.observed.is_none_or(|end| !una.is_before(end)) {
            let share = f64::from(self.marked) / f64::from(self.acked.max(1));
            if self.observed.is_some() {
                self.alpha = (1.0 - c.g) * self.alpha + c.g * share;
            }
            (self.acked, self.marked, self.observed) = (0, 0, Some(sent));
        }
        if self.reduced.is_some_and(|end| !una.is_before(end)) {
            self.reduced = None;
        }
        if marked && self.reduced.is_none() {
            self.reduce(self.alpha / 2.0, sent);
        } else if self.reduced.is_none() {
            let count = f64::from(count);
            self.window += if self.window < self.threshold { count } else { count / self.window };
        }
        self.apply(window, ceiling);
    }

    fn reduce(&mut self, share: f64, sent: Psn) {
        self.window = (self.window * (1.0 - share)).max(LEAST);
        self.threshold = self.window;
        self.reduced = Some(sent);
    }

    fn apply(&mut self, window: &mut Window, ceiling: u32) {
        self.window = self.window.min(f64::from(ceiling));
        window.set(self.window as u32);
    }

    /// A loss was found: half, as TCP (RFC 8257, 3.5). After a timeout it is one packet.
    pub(super) fn on_loss(&mut self, window: &mut Window, timeout: bool, sent: Psn, ceiling: u32) {
        if timeout {
            self.threshold = (self.window / 2.0).max(LEAST);
            (self.window, self.reduced) = (1.0, None);
        } else if self.reduced.is_none() {
            self.reduce(0.5, sent);
        }
        self.apply(window, ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledges `windows` windows of packets, each of which has its first `marked` ones marked.
    fn run(d: &mut Dctcp, w: &mut Window, una: &mut u32, windows: u32, marked: u32) {
        let c = DctcpConfig::default();
        for _ in 0..windows {
            let flight = w.packets();
            for k in 0..flight {
                *una += 1;
                // As many stay in flight as the window was when this one began.
                d.on_ack(&c, w, (1, Psn::new(*una), Psn::new(*una + flight - 1)), k < marked, 1 << 20);
            }
        }
    }

    #[test]
    fn without_marks_it_is_tcp_and_the_first_mark_halves() {
        let c = DctcpConfig { initial: 4, ..DctcpConfig::default() };
        let (mut d, mut w, mut una) = (Dctcp::new(&c), Window::new(4), 0);
        run(&mut d, &mut w, &mut una, 2, 0);
        assert_eq!(w.packets(), 16, "slow start doubles");
        d.on_ack(&c, &mut w, (1, Psn::new(13), Psn::new(29)), true, 1 << 20);
        assert!((7..=9).contains(&w.packets()), "alpha is nearly 1: {}", w.packets());
        let before = w.packets();
        d.on_ack(&c, &mut w, (1, Psn::new(14), Psn::new(29)), true, 1 << 20);
        assert_eq!(w.packets(), before, "once a window");
    }

    #[test]
    fn alpha_comes_to_the_share_of_marks_and_the_cut_follows_it() {
        let c = DctcpConfig { initial: 100, ..DctcpConfig::default() };
        let (mut d, mut w, mut una) = (Dctcp::new(&c), Window::new(100), 0);
        d.threshold = 0.0;
        for _ in 0..200 {
            // A tenth of each window.
            let tenth = w.packets() / 10;
            run(&mut d, &mut w, &mut una, 1, tenth);
            d.window = 100.0;
            w.set(100);
        }
        assert!((d.alpha() - 0.1).abs() < 0.02, "{}", d.alpha());
        d.reduced = None;
        d.on_ack(&c, &mut w, (1, Psn::new(una + 1), Psn::new(una + 101)), true, 1 << 20);
        assert!((94..=96).contains(&w.packets()), "{}", w.packets());
    }

    #[test]
    fn losses_halve_and_timeouts_start_anew() {
        let c = DctcpConfig { initial: 64, ..DctcpConfig::default() };
        let (mut d, mut w) = (Dctcp::new(&c), Window::new(64));
        d.on_loss(&mut w, false, Psn::new(64), 1000);
        d.on_loss(&mut w, false, Psn::new(64), 1000);
        assert_eq!(w.packets(), 32);
        d.on_loss(&mut w, true, Psn::new(64), 1000);
        assert_eq!((w.packets(), d.threshold), (1, 16.0));
    }
}
