//! A bitmap over the packets of a window, with find-first-zero, find-first-one and population count (IRN
//! 6.1).
//!
//! IRN's hardware shifts its bitmaps as the window moves. Here a bit's place is its PSN modulo the size, so
//! that moving the window costs nothing but clearing the bits that it leaves behind.

use super::{WIDE, WINDOW};
use adverb_wire::Psn;

const WORDS: usize = WINDOW as usize / 64;
const WIDE_WORDS: usize = WIDE as usize / 64;

const _: () = assert!(WINDOW.is_power_of_two() && WINDOW >= 64, "whole words; the PSN circle is a multiple");
const _: () =
    assert!(WIDE.is_power_of_two() && WIDE > WINDOW && WIDE <= 1 << 15, "a hello's window is 16 bits");

/// One bit for each PSN of a window of [`WINDOW`] packets, or of [`WIDE`]. The user keeps all bits outside of
/// the window clear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bitmap {
    words: [u64; WORDS],
    /// Those of a wide one, instead.
    wide: Option<Box<[u64; WIDE_WORDS]>>,
}

impl Default for Bitmap {
    fn default() -> Self {
        Bitmap { words: [0; WORDS], wide: None }
    }
}

/// Word and mask of a PSN, in a bitmap of so many words.
#[inline]
const fn place(psn: Psn, words: usize) -> (usize, u64) {
    let at = psn.get();
    ((at / 64) as usize & (words - 1), 1 << (at & 63))
}

impl Bitmap {
    /// One that spans `window` packets, [`WINDOW`] or [`WIDE`].
    pub fn spanning(window: u32) -> Self {
        assert!([WINDOW, WIDE].contains(&window), "no bitmap has {window} bits");
        Bitmap { words: [0; WORDS], wide: (window == WIDE).then(|| Box::new([0; WIDE_WORDS])) }
    }

    #[inline]
    fn words(&self) -> &[u64] {
        match &self.wide {
            None => &self.words,
            Some(wide) => &wide[..],
        }
    }

    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        match &mut self.wide {
            None => &mut self.words,
            Some(wide) => &mut wide[..],
        }
    }

    /// Bits.
    #[inline]
    pub const fn bits(&self) -> u32 {
        if self.wide.is_some() { WIDE } else { WINDOW }
    }

    /// Whether the PSN's bit is set.
    #[inline]
    pub fn get(&self, psn: Psn) -> bool {
        let words = self.words();
        let (word, mask) = place(psn, words.len());
        words[word] & mask != 0
    }

    /// Sets a bit; true if it was clear.
    #[inline]
    pub fn set(&mut self, psn: Psn) -> bool {
        let words = self.words_mut();
        let (word, mask) = place(psn, words.len());
        let was_clear = words[word] & mask == 0;
        words[word] |= mask;
        was_clear
    }

    /// Clears a bit; true if it was set.
    #[inline]
    pub fn clear(&mut self, psn: Psn) -> bool {
        let words = self.words_mut();
        let (word, mask) = place(psn, words.len());
        let was_set = words[word] & mask != 0;
        words[word] &= !mask;
        was_set
    }

    /// Clears `count` bits from `from` on, at most all; how many were set.
    pub fn clear_run(&mut self, from: Psn, count: u32) -> u32 {
        let mut cleared = 0;
        self.each_word(from, count, |word, mask| {
            cleared += (*word & mask).count_ones();
            *word &= !mask;
        });
        cleared
    }

    /// Sets `count` bits from `from` on, at most all; how many were clear.
    pub fn set_run(&mut self, from: Psn, count: u32) -> u32 {
        let mut set = 0;
        self.each_word(from, count, |word, mask| {
            set += (!*word & mask).count_ones();
            *word |= mask;
        });
        set
    }

    /// The words that hold `count` bits from `from` on, each with the mask of these bits.
    #[inline]
    fn each_word(&mut self, from: Psn, count: u32, mut each: impl FnMut(&mut u64, u64)) {
        let mut left = count.min(self.bits());
        let words = self.words_mut();
        let mut at = from;
        while left > 0 {
            let bit = at.get() & 63;
            let step = left.min(64 - bit);
            let mask = (u64::MAX >> (64 - step)) << bit;
            each(&mut words[place(at, words.len()).0], mask);
            at = at.add(step);
            left -= step;
        }
    }

    /// How many bits just before `to` are set without a gap, at most `count`.
    pub fn ones_before(&self, to: Psn, count: u32) -> u32 {
        let mut at = to;
        (0..count.min(self.bits()))
            .take_while(|_| {
                at = at.add(Psn::MASK);
                self.get(at)
            })
            .count() as u32
    }

    /// Distance from `from` to the first clear bit, or `count` if there is none among so many.
    #[inline]
    pub fn first_zero(&self, from: Psn, count: u32) -> u32 {
        self.find(from, count, u64::MAX)
    }

    /// Distance from `from` to the first set bit, or `count` if there is none among so many.
    #[inline]
    pub fn first_one(&self, from: Psn, count: u32) -> u32 {
        self.find(from, count, 0)
    }

    #[inline]
    fn find(&self, from: Psn, count: u32, flip: u64) -> u32 {
        let count = count.min(self.bits());
        let words = self.words();
        let mut done = 0;
        while done < count {
            let at = from.add(done);
            let bit = at.get() & 63;
            let word = (words[place(at, words.len()).0] ^ flip) >> bit;
            if word != 0 {
                return (done + word.trailing_zeros()).min(count);
            }
            done += 64 - bit;
        }
        count
    }

    /// Bits that are set.
    pub fn count_ones(&self) -> u32 {
        self.words().iter().map(|w| w.count_ones()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Op {
        Set(u32),
        Clear(u32),
        ClearRun(u32, u32),
        SetRun(u32, u32),
        Advance(u32),
    }

    fn op(window: u32) -> impl Strategy<Value = Op> {
        let all = 0..window;
        prop_oneof![
            4 => all.clone().prop_map(Op::Set),
            1 => all.clone().prop_map(Op::Clear),
            1 => (all.clone(), all.clone()).prop_map(move |(a, n)| Op::ClearRun(a, n.min(window - a))),
            1 => (all.clone(), all).prop_map(move |(a, n)| Op::SetRun(a, n.min(window - a))),
            1 => (1..200u32).prop_map(Op::Advance),
        ]
    }

    /// A window and what is done to it. A wide one has less done to it: it is 64 times as long to compare.
    fn ops() -> impl Strategy<Value = (u32, Vec<Op>)> {
        prop_oneof![
            3 => prop::collection::vec(op(WINDOW), 1..200).prop_map(|ops| (WINDOW, ops)),
            1 => prop::collection::vec(op(WIDE), 1..8).prop_map(|ops| (WIDE, ops)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        /// The same as a set of PSNs, wherever on the circle the window stands.
        #[test]
        fn is_a_set(start in any::<u32>(), (window, ops) in ops()) {
            let mut base = Psn::new(start | 0xff_ff00);
            let (mut map, mut set) = (Bitmap::spanning(window), BTreeSet::new());
            prop_assert_eq!(map.bits(), window);
            for op in ops {
                match op {
                    Op::Set(i) => {
                        let psn = base.add(i);
                        prop_assert_eq!(map.set(psn), set.insert(psn.get()));
                    }
                    Op::Clear(i) => {
                        let psn = base.add(i);
                        prop_assert_eq!(map.clear(psn), set.remove(&psn.get()));
                    }
                    Op::ClearRun(i, n) => {
                        let gone = (0..n).filter(|k| set.remove(&base.add(i + k).get())).count();
                        prop_assert_eq!(map.clear_run(base.add(i), n), gone as u32);
                    }
                    Op::SetRun(i, n) => {
                        let new = (0..n).filter(|k| set.insert(base.add(i + k).get())).count();
                        prop_assert_eq!(map.set_run(base.add(i), n), new as u32);
                    }
                    Op::Advance(n) => {
                        (0..n).for_each(|k| { set.remove(&base.add(k).get()); });
                        map.clear_run(base, n);
                        base = base.add(n);
                    }
                }
                prop_assert_eq!(map.count_ones() as usize, set.len());
                for from in [0, 1, 63, 64, 300, window - 1] {
                    let count = window - from;
                    let at = |k: u32| set.contains(&base.add(from + k).get());
                    let zero = (0..count).find(|k| !at(*k)).unwrap_or(count);
                    let one = (0..count).find(|k| at(*k)).unwrap_or(count);
                    prop_assert_eq!(map.first_zero(base.add(from), count), zero);
                    prop_assert_eq!(map.first_one(base.add(from), count), one);
                    prop_assert_eq!(map.first_zero(base.add(from), count.min(5)), zero.min(5));
                    prop_assert_eq!(map.get(base.add(from)), at(0));
                    let before = (1..=from).take_while(|k| set.contains(&base.add(from - k).get())).count();
                    prop_assert_eq!(map.ones_before(base.add(from), from) as usize, before);
                }
            }
        }
    }
}
