//! The key table: from the random upper 24 bits of a key to its check line (IBTA 10.6.3).
//!
//! A key that can be guessed lets any peer of a queue pair write any region, so the 24 bits that the
//! NIC chooses are drawn by a cryptographic generator, not counted. They are their own hash: open
//! addressing, linear probing, at most half full. Removal shifts the rest of a run back, so there are
//! no tombstones and any number of registrations and deregistrations leaves the table as large as its
//! largest content.

use super::prefetch::prefetch;
use crate::error::Error;
use crate::limits;
use crate::random::{Generator, Purpose, Seed};
use adverb_wire::Key;

/// Cells of an empty table: one page.
const MIN_CELLS: usize = 512;

/// Upper 24 bits of a key; never 0.
pub(super) type KeyIndex = u32;

/// A cell: key index in the upper half, line number in the lower. 0 is empty, as no index is 0.
type Cell = u64;

/// Of the 2^24 indices, at most one in eight is ever in use, so a few draws find a free one.
const _: () = assert!(limits::MAX_MR + limits::MAX_MW <= 1 << 21);

/// Where the line of each key is.
#[repr(C)]
pub(super) struct KeyTable {
    cells: Box<[Cell]>,
    used: usize,
    generator: Generator,
}

impl KeyTable {
    /// An empty table that draws its keys from a seed.
    pub fn new(seed: Seed) -> Self {
        KeyTable {
            cells: vec![0; MIN_CELLS].into_boxed_slice(),
            used: 0,
            generator: Generator::new(seed, Purpose::Keys),
        }
    }

    /// The line of a key, compared by its upper 24 bits. The line knows the rest.
    #[inline]
    pub fn find(&self, key: Key) -> Option<u32> {
        self.position(key.0 >> 8).map(|at| self.cells[at] as u32)
    }

    /// Asks for the cell where the search for a key starts.
    #[inline]
    pub fn prefetch(&self, key: Key) {
        let home = (key.0 >> 8) as usize & (self.cells.len() - 1);
        prefetch(&self.cells[home]);
    }

    /// Draws a key that nobody has, and enters its line. `TableFull` when memory is exhausted.
    pub fn draw(&mut self, line: u32) -> Result<Key, Error> {
        if (self.used + 1) * 2 > self.cells.len() {
            self.resize(self.cells.len() * 2)?;
        }
        let key = loop {
            let key = self.generator.word();
            if key >> 8 != 0 && self.position(key >> 8).is_none() {
                break Key(key);
            }
        };
        self.enter(key.0 >> 8, line);
        self.used += 1;
        Ok(key)
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: Key) {
        let Some(mut hole) = self.position(key.0 >> 8) else { return };
        let mask = self.cells.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let cell = self.cells[at];
            if cell == 0 {
                break;
            }
            // A cell may move back to the hole unless its home lies behind the hole.
            let home = (cell >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = 0;
        self.used -= 1;
        if self.cells.len() > MIN_CELLS && self.used * 16 < self.cells.len() {
            // A smaller table is a saving, not a need.
            let _ = self.resize(self.cells.len() / 2);
        }
    }

    #[inline]
    fn position(&self, index: KeyIndex) -> Option<usize> {
        let mask = self.cells.len() - 1;
        let mut at = index as usize & mask;
        loop {
            let cell = self.cells[at];
            if (cell >> 32) as u32 == index && cell != 0 {
                return Some(at);
            }
            if cell == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
    }

    fn enter(&mut self, index: KeyIndex, line: u32) {
        let mask = self.cells.len() - 1;
        let mut at = index as usize & mask;
        while self.cells[at] != 0 {
            at = (at + 1) & mask;
        }
        self.cells[at] = u64::from(index) << 32 | u64::from(line);
    }

    fn resize(&mut self, len: usize) -> Result<(), Error> {
        let mut cells = Vec::new();
        cells.try_reserve_exact(len).map_err(|_| Error::TableFull)?;
        cells.resize(len, 0);
        let old = core::mem::replace(&mut self.cells, cells.into_boxed_slice());
        for cell in old.into_iter().filter(|&cell| cell != 0) {
            self.enter((cell >> 32) as u32, cell as u32);
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn cells(&self) -> usize {
        self.cells.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agrees_with_a_map_through_growth_and_removal() {
        let mut table = KeyTable::new(Seed::from(1));
        let mut model = BTreeMap::new();
        let mut rng = fastrand::Rng::with_seed(2);
        let rounds = if cfg!(miri) { 2_000 } else { 200_000 };
        for line in 0..rounds {
            // Grows for the first half, shrinks in the second.
            let grow = rng.u32(..100) < if line < rounds / 2 { 70 } else { 30 };
            if grow {
                let key = table.draw(line).unwrap();
                assert!(model.insert(key.0, line).is_none());
            } else if let Some((&key, _)) = model.range(rng.u32(..)..).next() {
                model.remove(&key);
                table.remove(Key(key));
                assert_eq!(table.find(Key(key)), None);
            }
            assert!(table.used * 2 <= table.cells.len());
        }
        assert_eq!(table.used, model.len());
        for (&key, &line) in &model {
            assert_eq!(table.find(Key(key)), Some(line));
        }
        for key in model.keys() {
            table.remove(Key(*key));
        }
        assert_eq!((table.used, table.cells.len()), (0, MIN_CELLS));
        assert!(table.cells.iter().all(|&cell| cell == 0));
    }

    #[test]
    fn a_run_that_wraps_around_the_end_survives_removal() {
        let mut table = KeyTable::new(Seed::from(1));
        // Homes 510, 510, 511, 510, 0: the run wraps.
        let indices = [510, 512 + 510, 511, 1024 + 510, 512];
        for (line, &index) in indices.iter().enumerate() {
            table.enter(index, line as u32);
            table.used += 1;
        }
        table.remove(Key(510 << 8));
        for (line, &index) in indices.iter().enumerate().skip(1) {
            assert_eq!(table.find(Key(index << 8 | 7)), Some(line as u32));
        }
        table.remove(Key(511 << 8));
        assert_eq!(table.find(Key(512 << 8)), Some(4));
        assert_eq!(table.find(Key((1024 + 510) << 8)), Some(3));
    }

    #[test]
    fn keys_are_distinct_and_their_upper_bits_spread() {
        let mut table = KeyTable::new(Seed::from(3));
        let count: u32 = if cfg!(miri) { 500 } else { 100_000 };
        let mut keys: Vec<u32> = (0..count).map(|line| table.draw(line).unwrap().0).collect();
        for bit in 0..32 {
            let ones = keys.iter().filter(|&&key| key >> bit & 1 == 1).count() as f64 / f64::from(count);
            let slack = 5.0 * 0.5 / f64::from(count).sqrt();
            assert!((ones - 0.5).abs() < slack, "bit {bit}: {ones}");
        }
        // A key says nothing about its successor: differences of neighbours hardly ever repeat.
        let mut steps: Vec<u32> = keys.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() as f64 > f64::from(count) * 0.99);
        keys.iter_mut().for_each(|key| *key >>= 8);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count as usize);
        assert!(keys[0] != 0);
    }
}
