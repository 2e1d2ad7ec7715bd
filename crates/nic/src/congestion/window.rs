//! A window in packets that halves on loss and grows by one per window acknowledged, between a floor
//! and the configured ceiling. It keeps a lossy path (a UDP socket with a small buffer) from being
//! flooded again and again; on a path that does not lose, it stays at the ceiling.

/// Packets that may be unacknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    now: u32,
    ceiling: u32,
    /// Packets acknowledged since the window last grew.
    acked: u32,
    /// Packets for each acknowledgement asked for; 0 for a quarter of the window.
    ack_every: u32,
}

/// Below this a window would leave nothing to trigger a NAK with.
const FLOOR: u32 = 8;

impl Window {
    /// Starts at the ceiling.
    pub const fn new(ceiling: u32) -> Self {
        let ceiling = if ceiling < FLOOR { FLOOR } else { ceiling };
        Window { now: ceiling, ceiling, acked: 0, ack_every: 0 }
    }

    /// With acknowledgements asked for in a fixed rhythm, unless `packets` is 0.
    pub const fn asking_every(self, packets: u32) -> Self {
        Window { ack_every: packets, ..self }
    }

    /// The rhythm given to [`Window::asking_every`], 0 for none.
    #[inline]
    pub const fn ack_every(&self) -> u32 {
        self.ack_every
    }

    /// Packets that may be unacknowledged now.
    #[inline]
    pub const fn packets(&self) -> u32 {
        self.now
    }

    /// `count` packets were acknowledged.
    #[inline]
    pub fn on_ack(&mut self, count: u32) {
        if self.now == self.ceiling {
            return;
        }
        self.acked += count;
        if self.acked >= self.now {
            self.acked = 0;
            self.now += 1 + self.now / 16;
            self.now = self.now.min(self.ceiling);
        }
    }

    /// A loss was found.
    pub fn on_loss(&mut self) {
        self.acked = 0;
        self.now = (self.now / 2).max(FLOOR).min(self.ceiling);
    }

    /// How often a long message asks for an acknowledgement, in packets: often enough to keep the
    /// window moving.
    #[inline]
    pub const fn ack_interval(&self) -> u32 {
        if self.ack_every > 0 { self.ack_every } else { self.now.div_ceil(4) }
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
            w.on_ack(1);
        }
        assert_eq!(w.packets(), 64);
    }

    #[test]
    fn acknowledgements_are_asked_for_in_the_rhythm_given() {
        assert_eq!(Window::new(64).ack_interval(), 16);
        let mut w = Window::new(64).asking_every(1);
        w.on_loss();
        assert_eq!(w.ack_interval(), 1);
    }
}
