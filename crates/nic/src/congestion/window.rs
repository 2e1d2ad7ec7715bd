//! A window in packets that halves on loss and grows by one per window acknowledged, between a floor
//! and the configured ceiling. It keeps a lossy path (a UDP socket with a small buffer) from being
//! flooded again and again; on a path that does not lose, it stays at the ceiling.

/// Packets that may be unacknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    now: u32,
    /// Packets acknowledged since the window last grew.
    acked: u32,
}

/// Below this a window would leave nothing to trigger a NAK with.
pub(super) const FLOOR: u32 = 8;

impl Window {
    /// Starts at the ceiling, which is at least [`FLOOR`].
    pub const fn new(ceiling: u32) -> Self {
        Window { now: ceiling, acked: 0 }
    }

    /// Packets that may be unacknowledged now.
    #[inline]
    pub const fn packets(&self) -> u32 {
        self.now
    }

    /// To another size.
    pub fn set(&mut self, packets: u32) {
        *self = Window { now: packets, acked: 0 };
    }

    /// One packet more for each window acknowledged.
    pub fn grow_by_one_a_window(&mut self, count: u32, ceiling: u32) {
        self.acked += count;
        if self.acked >= self.now {
            self.acked -= self.now;
            self.now = (self.now + 1).min(ceiling);
        }
    }

    /// `count` packets were acknowledged.
    #[inline]
    pub fn on_ack(&mut self, count: u32, ceiling: u32) {
        if self.now == ceiling {
            return;
        }
        self.acked += count;
        if self.acked >= self.now {
            self.acked = 0;
            self.now += 1 + self.now / 16;
            self.now = self.now.min(ceiling);
        }
    }

    /// A loss was found.
    pub fn on_loss(&mut self) {
        self.acked = 0;
        self.now = (self.now / 2).max(FLOOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_recovers() {
        let mut w = Window::new(64);
        w.on_loss();
        assert_eq!(w.packets(), 32);
        for _ in 0..10 {
            w.on_loss();
        }
        assert_eq!(w.packets(), FLOOR);
        for _ in 0..10_000 {
            w.on_ack(1, 64);
        }
        assert_eq!(w.packets(), 64);
    }
}
