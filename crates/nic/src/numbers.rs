//! Queue pair numbers: handed out apart from where queue pairs stand, so that a number may follow its owner
//! when that moves, and may be had by who has no queue pair.
//!
//! A number that was given back rests for as long as possible, because late packets may still name it.

use crate::error::Error;
use crate::limits;
use adverb_wire::QpNumber;
use std::collections::VecDeque;

/// Numbers in circulation before one is used again.
const CIRCULATION: usize = 4096;

/// Nobody's number. No index of a queue pair: a look at where that would stand finds nothing.
pub(crate) const NOBODY: u32 = u32::MAX;

/// The numbers of one NIC: the upper bits are its own, the low 16 name an entry of the table.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// By the low 16 bits of a number: the index of the queue pair that has it.
    owners: Vec<u32>,
    base: u32,
    /// Numbers given back, by their low 16 bits, the one that has rested longest first.
    free: VecDeque<u16>,
}

const _: () = assert!(limits::MAX_QP <= 1 << 16, "a number has 16 bits of its own");

impl Numbers {
    /// Numbers with these upper bits. 0 and 1 are QP0's and QP1's on every NIC (IBTA 3.5.3).
    pub fn new(base: u32) -> Numbers {
        assert!(base & 0xffff == 0 && base < 1 << 24, "the upper bits of a queue pair number");
        let owners = if base == 0 { vec![NOBODY; 2] } else { Vec::new() };
        Numbers { owners, base, free: VecDeque::new() }
    }

    /// A number for the queue pair at an index.
    pub fn allocate(&mut self, index: u32) -> Result<QpNumber, Error> {
        let fresh = self.owners.len() < limits::MAX_QP as usize;
        let low = match self.free.front() {
            Some(_) if self.owners.len() >= CIRCULATION || !fresh => {
                usize::from(self.free.pop_front().ok_or(Error::TableFull)?)
            }
            _ if fresh => {
                self.owners.push(NOBODY);
                self.owners.len() - 1
            }
            _ => return Err(Error::TableFull),
        };
        self.owners[low] = index;
        Ok(QpNumber::new(self.base | low as u32))
    }

    /// A number is given back.
    pub fn release(&mut self, number: QpNumber) {
        let low = number.get() ^ self.base;
        if let Some(owner) = self.owners.get_mut(low as usize)
            && *owner != NOBODY
        {
            *owner = NOBODY;
            self.free.push_back(low as u16);
        }
    }

    /// The index of the queue pair that has a number, or [`NOBODY`].
    #[inline]
    pub fn owner(&self, number: QpNumber) -> u32 {
        // Other upper bits lie beyond the table.
        self.owners.get((number.get() ^ self.base) as usize).copied().unwrap_or(NOBODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_leads_to_its_owner_and_rests_after_it() {
        let mut numbers = Numbers::new(7 << 16);
        let a = numbers.allocate(500).unwrap();
        let b = numbers.allocate(2).unwrap();
        assert_eq!((numbers.owner(a), numbers.owner(b)), (500, 2));
        for other in [QpNumber::new(a.get() ^ 1 << 16), QpNumber::new((7 << 16) + 2), QpNumber::new(1)] {
            assert_eq!(numbers.owner(other), NOBODY);
        }
        numbers.release(a);
        numbers.release(a);
        assert_eq!(numbers.owner(a), NOBODY);
        let others: Vec<_> = (0..CIRCULATION as u32 - 2).map(|n| numbers.allocate(n).unwrap()).collect();
        assert!(!others.contains(&a), "it rests");
        assert_eq!(numbers.allocate(9), Ok(a));
    }

    #[test]
    fn the_table_is_bounded_and_no_number_is_given_twice() {
        let mut numbers = Numbers::new(0);
        let all: Vec<_> = (0..limits::MAX_QP - 2).map(|n| numbers.allocate(n).unwrap()).collect();
        assert_eq!((all[0], all[all.len() - 1]), (QpNumber::new(2), QpNumber::new(0xffff)));
        assert_eq!(numbers.allocate(0), Err(Error::TableFull));
        numbers.release(all[4000]);
        assert_eq!(numbers.allocate(1), Ok(all[4000]));
        assert_eq!(numbers.allocate(0), Err(Error::TableFull));
    }
}
