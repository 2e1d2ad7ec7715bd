//! A count-min sketch with decay (Cormode and Muthukrishnan 2005): about how often each key was written
//! lately, in a few rows of counters. It never says less than is true, and seldom much more.

use crate::register::{Pass, Register, Shape};
use adverb_wire::{Duration, Instant};

/// Rows, each with a hash of its own.
const ROWS: usize = 4;
/// Counters of a row.
const COLUMNS: usize = 1 << 10;
/// What the rows multiply keys by: odd, and unlike each other.
const FACTORS: [u64; ROWS] =
    [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];
/// More halvings than these leave nothing.
const HALVINGS_MAX: u64 = 32;

/// Which keys are hot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hot {
    /// Those that were written at least so often lately.
    pub above: u32,
    /// After each such time all counts are halved.
    pub decay: Duration,
}

/// The counters.
#[derive(Debug)]
pub struct Sketch {
    rows: [Register<u32>; ROWS],
    decay: Duration,
    halved: Instant,
}

impl Sketch {
    /// Nothing was written yet.
    pub fn new(decay: Duration, now: Instant) -> Sketch {
        let names = ["sketch 0", "sketch 1", "sketch 2", "sketch 3"];
        let row = |name| Register::new(Shape { name, width: 32, entries: COLUMNS, stage: 1 });
        Sketch { rows: names.map(row), decay, halved: now }
    }

    /// What it costs.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        self.rows.iter().map(Register::shape)
    }

    /// A key was written: about how often lately, with this time.
    pub fn add(&mut self, pass: Pass, now: Instant, key: u64) -> u32 {
        self.settle(now);
        let rows = self.rows.iter_mut().zip(FACTORS);
        let counts = rows.map(|(row, factor)| {
            let count = row.access(pass, column(key, factor));
            *count = count.saturating_add(1);
            *count
        });
        counts.min().unwrap_or_default()
    }

    /// About how often a key was written lately.
    pub fn estimate(&self, key: u64) -> u32 {
        let rows = self.rows.iter().zip(FACTORS);
        rows.map(|(row, factor)| row.entries()[column(key, factor)]).min().unwrap_or_default()
    }

    /// Halves all counts for each time that has passed. The control plane's work, on hardware.
    fn settle(&mut self, now: Instant) {
        let times = now.since(self.halved).as_ps() / self.decay.as_ps().max(1);
        if times == 0 {
            return;
        }
        self.halved += Duration::from_ps(times * self.decay.as_ps());
        let by = times.min(HALVINGS_MAX - 1) as u32;
        for row in &mut self.rows {
            row.entries_mut().iter_mut().for_each(|count| *count >>= by);
        }
    }
}

fn column(key: u64, factor: u64) -> usize {
    let mixed = (key ^ key >> 32).wrapping_mul(factor);
    (mixed >> 32) as usize % COLUMNS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::Passes;

    #[test]
    fn what_was_written_often_stands_out_and_fades() {
        let (mut passes, start) = (Passes::default(), Instant::from_ns(5));
        let mut sketch = Sketch::new(Duration::from_ms(1), start);
        for n in 0..1000 {
            sketch.add(passes.first(), start, n);
            sketch.add(passes.first(), start, 77);
        }
        assert!(sketch.estimate(77) >= 1001, "never less than is true");
        let others = (0..1000).filter(|key| *key != 77);
        let most = others.map(|key| sketch.estimate(key)).max().unwrap_or_default();
        assert!((1..20).contains(&most), "{most}");
        let later = start + Duration::from_ms(3);
        assert_eq!(sketch.add(passes.first(), later, 77), sketch.estimate(77));
        assert!((126..=130).contains(&sketch.estimate(77)), "an eighth: {}", sketch.estimate(77));
        let much_later = later + Duration::from_ms(1000);
        assert_eq!(sketch.add(passes.first(), much_later, 77), 1);
    }
}
