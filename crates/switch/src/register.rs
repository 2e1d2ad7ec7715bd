//! Registers: what a program remembers from packet to packet, in arrays of a stated width and stage.
//!
//! Hardware reads and writes each register array once a packet, in one place of the pipeline. Debug builds
//! check that: a second access in one pass is our own mistake. What needs another one asks for a pass more
//! ([`Pass::again`]), which on hardware is a recirculation, and is counted.

use std::fmt::{self, Debug, Write};

/// One way of a packet through the pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pass(u64);

/// Hands out passes.
#[derive(Default, Debug)]
pub struct Passes {
    last: u64,
    /// Passes beyond the first one of a packet that came in.
    pub recirculated: u64,
}

impl Passes {
    /// The first pass of a packet that came in.
    pub fn first(&mut self) -> Pass {
        self.last += 1;
        Pass(self.last)
    }

    /// A pass more: of a packet that was held, or of one that the switch makes.
    pub fn again(&mut self) -> Pass {
        self.recirculated += 1;
        self.first()
    }
}

/// What a register array costs, for a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Bits of an entry.
    pub width: u32,
    /// Entries.
    pub entries: usize,
    /// The stage of the pipeline that it lies in.
    pub stage: u32,
}

/// An array of registers.
#[derive(Debug)]
pub struct Register<T> {
    shape: Shape,
    entries: Vec<T>,
    last: Pass,
}

impl<T: Clone + Default> Register<T> {
    /// All entries at their defaults.
    pub fn new(shape: Shape) -> Register<T> {
        Register { entries: vec![T::default(); shape.entries], shape, last: Pass::default() }
    }

    /// Entries at their defaults behind those that there are, up to so many.
    pub fn grow(&mut self, entries: usize) {
        assert!(entries >= self.entries.len(), "{}: what is there stays", self.shape.name);
        self.entries.resize(entries, T::default());
        self.shape.entries = entries;
    }

    /// What it costs.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The one access of a pass: reads and changes one entry.
    ///
    /// # Panics
    /// In debug builds, if this pass has accessed the array already. If there is no such entry.
    pub fn access(&mut self, pass: Pass, index: usize) -> &mut T {
        debug_assert_ne!(self.last, pass, "{}: a second access in one pass", self.shape.name);
        self.last = pass;
        &mut self.entries[index]
    }

    /// All entries, for those who look from outside the pipeline.
    pub fn entries(&self) -> &[T] {
        &self.entries
    }

    /// All entries, for the control plane.
    pub fn entries_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }
}

/// A number for what something remembers: two of them that differ are of two that differ. It says so from
/// one build of this program to itself, not from version to version.
pub fn digest(of: &impl Debug) -> u64 {
    /// FNV-1a, 64 bits, over text.
    struct Fnv(u64);
    impl Write for Fnv {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
            Ok(())
        }
    }
    let mut sum = Fnv(0xcbf2_9ce4_8422_2325);
    // It takes whatever it is given.
    let _ = write!(sum, "{of:?}");
    sum.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { name: "words", width: 64, entries: 4, stage: 2 };

    #[test]
    fn one_access_a_pass() {
        let (mut passes, mut register) = (Passes::default(), Register::<u64>::new(SHAPE));
        let first = passes.first();
        *register.access(first, 1) = 7;
        let again = passes.again();
        assert_eq!(*register.access(again, 1), 7);
        assert_eq!(passes.recirculated, 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "words: a second access")]
    fn a_second_access_is_our_mistake() {
        let (mut passes, mut register) = (Passes::default(), Register::<u64>::new(SHAPE));
        let pass = passes.first();
        register.access(pass, 0);
        register.access(pass, 1);
    }
}
