//! Queue pair numbers: handed out apart from where queue pairs stand, so that a number may follow its owner
//! when that moves, and may be had by who has no queue pair.
//!
//! They are drawn at random, so that one's own number tells nothing of others', or, for simulations, in
//! order. Where there are many, a guess finds one in any case, and they are drawn from blocks, so that what
//! is kept by number stays in a cache. A number that was given back rests for as long as possible, because
//! late packets may still name it.

use crate::error::Error;
use crate::limits;
use crate::memory::prefetch;
use crate::random::{Generator, Purpose, Seed};
use adverb_wire::QpNumber;
use std::collections::VecDeque;

/// Numbers that rest before one is used again, as long as there are others: of those in order.
const RESTING: usize = 4096;
/// The same of those drawn at random, whose table is there in any case. A peer's connection manager refuses
/// a number for seconds after its connection has ended (`cm::Config::timewait`): so many may come and go
/// meanwhile.
const RESTING_DRAWN: usize = 1 << 15;
/// Draws before a number is looked for in order, behind the last one: only a table that is nearly full has so
/// many misses.
const DRAWS: u32 = 64;
/// So many are drawn from all numbers: each has a cache line of the table of owners to itself, and so in any
/// other table by number. With as many every 256th guess finds one.
const SCATTERED: u32 = 256;
/// Those beyond are drawn from a block of so many, until it has no more, then from another: 10,000 take up
/// 10 pages of a table of words, and not each of its 64, which the processor would have to look up.
const BLOCK: u16 = 1024;

/// Who has a number: the index of a queue pair, or of an endpoint whose queues no queue pair has, plus one.
type Owner = u32;
/// Nobody has it. Zero, so that a table of such needs no memory before it is used.
const FREE: Owner = 0;
/// Nobody has it, and nobody may have it yet.
const RESTS: Owner = u32::MAX;

/// The numbers of one NIC: the upper bits are its own, the low 16 name an entry of the table.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Numbers {
    /// By the low 16 bits of a number; as long as the highest that was handed out in order, or full.
    owners: Vec<Owner>,
    base: u32,
    /// The lowest of a NIC's own.
    first: u32,
    /// So many from `first` on have gone with the indices from 0 on ever since: for these nobody needs the
    /// table, of which a simulator of a thousand NICs has a thousand to fetch.
    straight: u32,
    /// How many are neither had nor resting.
    free: u32,
    giving: Box<Giving>,
}

/// What only who hands out numbers and takes them back needs.
#[derive(Debug)]
struct Giving {
    /// Numbers given back, by their low 16 bits, the one that has rested longest first.
    resting: VecDeque<u16>,
    /// Where the next ones come from, unless they come in order.
    generator: Option<Generator>,
    /// Where the search in order goes on.
    next: u16,
    /// The block that numbers are drawn from where there are many: its first, by the low 16 bits.
    block: u16,
}

const _: () = assert!(BLOCK.is_power_of_two(), "blocks fill the table");
const _: () = assert!(limits::MAX_QP == 1 << 16, "a number has 16 bits of its own");

impl Numbers {
    /// Numbers with these upper bits, drawn from a seed, or in order. 0 and 1 are QP0's and QP1's on every
    /// NIC (IBTA 3.5.3).
    pub fn new(base: u32, seed: Option<Seed>) -> Numbers {
        assert!(base & 0xffff == 0 && base < 1 << 24, "the upper bits of a queue pair number");
        let reserved = if base == 0 { 2 } else { 0 };
        let mut owners = vec![FREE; if seed.is_some() { limits::MAX_QP as usize } else { reserved }];
        owners[..reserved].fill(RESTS);
        Numbers {
            owners,
            base,
            first: reserved as u32,
            straight: 0,
            free: limits::MAX_QP - reserved as u32,
            giving: Box::new(Giving {
                resting: VecDeque::new(),
                generator: seed.map(|seed| Generator::new(seed, Purpose::Numbers)),
                next: reserved as u16,
                block: 0,
            }),
        }
    }

    /// A number for the queue pair at an index.
    pub fn allocate(&mut self, index: u32) -> Result<QpNumber, Error> {
        // In order, the table is to stay short.
        let is_long = self.giving.generator.is_none() && self.owners.len() >= RESTING;
        let rested = if is_long || self.free == 0 { self.giving.resting.pop_front() } else { None };
        let low = match rested {
            Some(low) => low,
            None if self.free == 0 => return Err(Error::TableFull),
            None => {
                self.free -= 1;
                self.unused()
            }
        };
        if self.owners.len() <= usize::from(low) {
            self.owners.resize(usize::from(low) + 1, FREE);
        }
        self.owners[usize::from(low)] = index + 1;
        if index == self.straight && u32::from(low) == self.first + index {
            self.straight += 1;
        }
        Ok(QpNumber::new(self.base | u32::from(low)))
    }

    /// A number that is free. There is one.
    fn unused(&mut self) -> u16 {
        let resting = self.giving.resting.len() as u32;
        let had = limits::MAX_QP - self.first - self.free - resting;
        if let Some(generator) = &mut self.giving.generator {
            // The one that is being handed out is counted.
            if had > SCATTERED
                && let Some(low) = free_in_block(&self.owners, self.giving.block, generator.word() as u16)
            {
                return low;
            }
            for _ in 0..DRAWS {
                let low = generator.word() as u16;
                if is_free(&self.owners, low) {
                    self.giving.block = low & !(BLOCK - 1);
                    return low;
                }
            }
        }
        while !is_free(&self.owners, self.giving.next) {
            self.giving.next = self.giving.next.wrapping_add(1);
        }
        self.giving.next
    }

    /// The owner of a number stands at another index now.
    pub fn follow(&mut self, number: QpNumber, index: u32) {
        let low = number.get() ^ self.base;
        let owner = &mut self.owners[low as usize];
        assert!(*owner != FREE && *owner != RESTS, "a number that nobody has cannot follow its owner");
        *owner = index + 1;
        self.bend(low);
    }

    /// What a number leads to is no longer what its place in the order says.
    fn bend(&mut self, low: u32) {
        self.straight = self.straight.min(low.saturating_sub(self.first));
    }

    /// A number is given back.
    pub fn release(&mut self, number: QpNumber) {
        let low = number.get() ^ self.base;
        let Some(owner) = self.owners.get_mut(low as usize) else { return };
        if *owner == FREE || *owner == RESTS {
            return;
        }
        *owner = RESTS;
        self.bend(low);
        self.giving.resting.push_back(low as u16);
        if self.giving.generator.is_some() && self.giving.resting.len() > RESTING_DRAWN {
            let rested = self.giving.resting.pop_front();
            rested.into_iter().for_each(|low| self.owners[usize::from(low)] = FREE);
            self.free += 1;
        }
    }

    /// Asks for what [`Numbers::owner`] reads; the index that is likely, without a look there: numbers that
    /// come in order mostly go with the indices.
    #[inline]
    pub fn prefetch(&self, number: QpNumber) -> u32 {
        let low = number.get() ^ self.base;
        let index = low.wrapping_sub(self.first);
        if index >= self.straight
            && let Some(owner) = self.owners.get(low as usize)
        {
            prefetch(owner);
        }
        index
    }

    /// The index of the queue pair that has a number, or of its endpoint; if nobody has, one at which neither
    /// stands.
    #[inline]
    pub fn owner(&self, number: QpNumber) -> u32 {
        // Other upper bits lie beyond the table.
        let low = number.get() ^ self.base;
        let index = low.wrapping_sub(self.first);
        if index < self.straight {
            return index;
        }
        self.owners.get(low as usize).copied().unwrap_or(FREE).wrapping_sub(1)
    }
}

/// Whether nobody has a number, by its low 16 bits, and one may have it.
fn is_free(owners: &[Owner], low: u16) -> bool {
    owners.get(usize::from(low)).is_none_or(|owner| *owner == FREE)
}

/// A free number of the block that begins at `block`, from one drawn on.
fn free_in_block(owners: &[Owner], block: u16, drawn: u16) -> Option<u16> {
    (0..BLOCK).map(|n| block | drawn.wrapping_add(n) & (BLOCK - 1)).find(|low| is_free(owners, *low))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn is_had(numbers: &Numbers, number: u32) -> bool {
        numbers.owner(QpNumber::new(number)) < limits::MAX_QP
    }

    #[test]
    fn a_number_leads_to_its_owner_and_rests_after_it() {
        for (seed, resting) in [(None, RESTING), (Some(Seed::from(1)), RESTING_DRAWN)] {
            let mut numbers = Numbers::new(7 << 16, seed);
            let a = numbers.allocate(500).unwrap();
            let b = numbers.allocate(2).unwrap();
            assert_eq!((numbers.owner(a), numbers.owner(b)), (500, 2));
            for other in [a.get() ^ 1 << 16, b.get() ^ 1 << 10, 1 << 16, 1] {
                assert!(!is_had(&numbers, other));
            }
            numbers.release(a);
            numbers.release(a);
            assert!(!is_had(&numbers, a.get()));
            // As many others live and die as rest at once, and none comes again.
            let mut had = BTreeSet::from([a.get(), b.get()]);
            for n in 0..resting as u32 - 2 {
                let other = numbers.allocate(n).unwrap();
                assert!(had.insert(other.get()), "{other:?} rests");
                numbers.release(other);
            }
        }
    }

    #[test]
    fn in_order_the_one_that_rested_longest_is_next() {
        let mut numbers = Numbers::new(7 << 16, None);
        let all: Vec<_> = (0..RESTING as u32).map(|n| numbers.allocate(n).unwrap()).collect();
        assert!(all.iter().enumerate().all(|(n, number)| number.get() == 7 << 16 | n as u32));
        numbers.release(all[9]);
        numbers.release(all[5]);
        assert_eq!((numbers.allocate(1), numbers.allocate(1)), (Ok(all[9]), Ok(all[5])));
        assert_eq!(numbers.allocate(1).unwrap().get(), 7 << 16 | RESTING as u32);
    }

    /// Against a map: numbers come and go and move, and lead to whoever has them.
    #[test]
    fn numbers_that_go_with_the_indices_lead_where_the_table_would() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let base = if seed % 2 == 0 { 0 } else { 9 << 16 };
            let mut numbers = Numbers::new(base, None);
            let mut model = BTreeMap::new();
            let mut next = 0;
            for _ in 0..200 {
                let had: Vec<u32> = model.keys().copied().collect();
                match rng.u32(0..12) {
                    0 if !had.is_empty() => {
                        let number = had[rng.usize(0..had.len())];
                        numbers.release(QpNumber::new(number));
                        model.remove(&number);
                    }
                    1 if !had.is_empty() => {
                        let (number, index) = (had[rng.usize(0..had.len())], rng.u32(0..500));
                        numbers.follow(QpNumber::new(number), index);
                        model.insert(number, index);
                    }
                    _ => {
                        let index = if rng.u32(0..20) == 0 { rng.u32(0..500) } else { next };
                        next += 1;
                        let number = numbers.allocate(index).unwrap();
                        assert!(model.insert(number.get(), index).is_none());
                    }
                }
                for low in 0..300 {
                    let number = base | low;
                    let owner = numbers.owner(QpNumber::new(number));
                    match model.get(&number) {
                        Some(index) => assert_eq!(owner, *index, "seed {seed}, number {number:#x}"),
                        None => assert!(owner >= limits::MAX_QP, "seed {seed}, number {number:#x}: {owner}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_table_is_bounded_and_no_number_is_given_twice() {
        for seed in [None, Some(Seed::from(2))] {
            let mut numbers = Numbers::new(0, seed);
            let all: Vec<_> = (0..limits::MAX_QP - 2).map(|n| numbers.allocate(n).unwrap()).collect();
            let set: BTreeSet<_> = all.iter().map(|number| number.get()).collect();
            assert!(set.into_iter().eq(2..=0xffff), "all but those of QP0 and QP1");
            assert_eq!(numbers.allocate(0), Err(Error::TableFull));
            numbers.release(all[4000]);
            assert_eq!(numbers.allocate(1), Ok(all[4000]));
            assert_eq!(numbers.allocate(0), Err(Error::TableFull));
            for number in &all {
                numbers.release(*number);
            }
            for n in 0..2 * limits::MAX_QP {
                let number = numbers.allocate(n % 1000).unwrap();
                assert_eq!(numbers.owner(number), n % 1000);
                numbers.release(number);
            }
        }
    }

    #[test]
    fn drawn_numbers_spread_and_their_neighbours_tell_nothing() {
        let mut numbers = Numbers::new(0, Some(Seed::from(3)));
        let mut all = Vec::new();
        // As many as are there at once without blocks, 20 times, since those before rest.
        for _ in 0..20 {
            let some: Vec<_> = (0..SCATTERED).map(|n| numbers.allocate(n).unwrap()).collect();
            some.iter().for_each(|number| numbers.release(*number));
            all.extend(some.iter().map(|number| number.get()));
        }
        for bit in 0..16 {
            let ones = all.iter().filter(|number| *number >> bit & 1 == 1).count();
            assert!((2330..2790).contains(&ones), "bit {bit}: {ones}");
        }
        let steps: BTreeSet<_> = all.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 4500, "{}", steps.len());
    }

    #[test]
    fn many_numbers_share_the_lines_of_a_table() {
        const LINE: u32 = 16;
        let mut numbers = Numbers::new(0, Some(Seed::from(4)));
        let all: Vec<_> = (0..10_000).map(|n| numbers.allocate(n).unwrap()).collect();
        let mut lines = BTreeMap::new();
        for number in &all {
            *lines.entry(number.get() / LINE).or_insert(0_u32) += 1;
        }
        // Those without a block lie alone, the others fill theirs.
        assert!(lines.len() < 256 + 10_000 / 16 + 40, "{} lines", lines.len());
        // Blocks lie anywhere, each is taken up before the next, and a block's numbers come in no order.
        let drawn: Vec<_> = all[SCATTERED as usize..].iter().map(|number| number.get()).collect();
        let mut blocks: Vec<_> = drawn.iter().map(|number| number / u32::from(BLOCK)).collect();
        blocks.dedup();
        assert!(blocks.len() <= 10_000 / usize::from(BLOCK) + 2, "{blocks:?}");
        let far = blocks.iter().max().unwrap() - blocks.iter().min().unwrap();
        assert!(far > limits::MAX_QP / u32::from(BLOCK) / 2, "{blocks:?}");
        assert!(drawn.windows(2).filter(|w| w[0] + 1 == w[1]).count() < drawn.len() * 3 / 10);
        // When most have gone, those that come are anywhere again.
        all[100..].iter().for_each(|number| numbers.release(*number));
        let new: BTreeSet<_> = (0..100).map(|n| numbers.allocate(n).unwrap().get() / LINE).collect();
        assert!(new.len() > 90, "{} lines", new.len());
    }
}
