//! The counter that every message's nonce is made of. It ascends for as long as the NIC's address is used,
//! restarts included (appendix A): whoever drives the NIC reserves a range on stable storage before it hands
//! it over, and never hands it over again.

use crate::error::Error;
use core::ops::Range;

pub(super) struct Counter {
    next: u64,
    end: u64,
}

impl Counter {
    pub fn new(range: Range<u64>) -> Result<Counter, Error> {
        if range.is_empty() {
            return Err(Error::Invalid("range of message counters: empty"));
        }
        Ok(Counter { next: range.start, end: range.end })
    }

    /// A number that was never given before, unless the range is used up.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let taken = self.next;
        if taken == self.end {
            return None;
        }
        self.next += 1;
        Some(taken)
    }

    pub fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Goes on with another range when this one is used up, or to its end if the two adjoin.
    pub fn extend(&mut self, range: Range<u64>) -> Result<(), Error> {
        if range.is_empty() || range.start < self.end {
            return Err(Error::Invalid("range of message counters: empty or not above the last"));
        }
        if range.start == self.end {
            self.end = range.end;
        } else {
            // The rest of the old range is given up: a counter only has to be unique.
            *self = Counter { next: range.start, end: range.end };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_run_out() {
        let mut counter = Counter::new(5..7).unwrap();
        assert_eq!((counter.take(), counter.take(), counter.take()), (Some(5), Some(6), None));
        for again in [0..100, 6..8, 9..9] {
            assert!(counter.extend(again).is_err());
        }
        counter.extend(7..8).unwrap();
        assert_eq!((counter.left(), counter.take(), counter.take()), (1, Some(7), None));
        counter.extend(10..u64::MAX).unwrap();
        assert_eq!(counter.take(), Some(10));
        counter.extend(u64::MAX - 1..u64::MAX).unwrap_err();
        assert!(Counter::new(3..3).is_err());
    }
}
