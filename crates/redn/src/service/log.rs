//! Where records go: a ring of places, written in order, whose oldest are taken back.
//!
//! ```text
//! 0      tail                          head      len
//! | free |  records, oldest to newest  |  free   |
//! ```
//! A place that was taken back is not given away until the head comes round to it. Between head and tail
//! there is always a gap, so that so many bytes are written elsewhere before a place is written again: who
//! has read a bucket before its record was replaced has that long to read the record.

use super::layout::{Extent, RECORD_MAX};
use std::collections::VecDeque;

/// Part of the log that is kept free between its newest and its oldest record.
const GAP_PART: u64 = 16;
/// The least gap: the oldest record always has a place to be moved to, whatever the end of the ring wastes.
const GAP_MIN: u64 = 3 * RECORD_MAX as u64;
/// Bytes of a log at least.
pub(super) const LOG_MIN: u64 = 4 * GAP_MIN;

/// A place that was given away, with the hash of the key that was written there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub extent: Extent,
    pub hash: u64,
}

impl Place {
    fn end(&self) -> u64 {
        self.extent.at + u64::from(self.extent.len)
    }
}

/// The places of a log.
#[derive(Debug)]
pub(super) struct Log {
    len: u64,
    gap: u64,
    /// Where the next record goes, if it fits there.
    head: u64,
    /// Oldest first.
    places: VecDeque<Place>,
}

impl Log {
    /// Of so many bytes, with these places in use, which do not overlap.
    pub fn new(len: u64, mut places: Vec<Place>) -> Log {
        assert!(len >= LOG_MIN, "a log of {len} bytes");
        let gap = (len / GAP_PART).max(GAP_MIN);
        places.sort_unstable_by_key(|place| place.extent.at);
        // What was last between head and tail is the longest free piece: it starts behind the newest record.
        let next = |i: usize| match places.get(i + 1) {
            Some(next) => next.extent.at,
            None => len + places[0].extent.at,
        };
        let newest = (0..places.len()).max_by_key(|i| next(*i).saturating_sub(places[*i].end()));
        let head = newest.map_or(0, |newest| places[newest].end());
        if let Some(newest) = newest {
            places.rotate_left(newest + 1);
        }
        Log { len, gap, head, places: places.into() }
    }

    /// Bytes that records may have, so that there is always something to take back.
    pub fn limit(&self) -> u64 {
        (self.len - self.gap) / 4 * 3
    }

    /// Free bytes from the head on. Never 0: a full ring would look like an empty one.
    fn free(&self) -> u64 {
        match self.places.front() {
            None => self.len,
            Some(tail) if tail.extent.at > self.head => tail.extent.at - self.head,
            Some(tail) => self.len - self.head + tail.extent.at,
        }
    }

    /// Where so many bytes go, and how many the head moves over, if they leave `gap` bytes free.
    fn room(&self, len: u64, gap: u64) -> Option<u64> {
        let (at, taken) = match self.head + len <= self.len {
            true => (self.head, len),
            false => (0, self.len - self.head + len),
        };
        (taken + gap <= self.free()).then_some(at)
    }

    /// A place for so many bytes, if it leaves the gap.
    pub fn take(&mut self, len: u32, hash: u64) -> Option<Extent> {
        self.take_leaving(len, hash, self.gap)
    }

    /// A place for a record that comes from the tail: in the gap.
    pub fn take_for_move(&mut self, len: u32, hash: u64) -> Option<Extent> {
        self.take_leaving(len, hash, 1)
    }

    fn take_leaving(&mut self, len: u32, hash: u64, gap: u64) -> Option<Extent> {
        if self.places.is_empty() && self.head + u64::from(len) > self.len {
            self.head = 0;
        }
        let at = self.room(len.into(), gap)?;
        let extent = Extent { at, len };
        self.head = at + u64::from(len);
        self.places.push_back(Place { extent, hash });
        Some(extent)
    }

    /// The oldest place.
    pub fn tail(&self) -> Option<Place> {
        self.places.front().copied()
    }

    /// Takes the oldest place back.
    pub fn take_back(&mut self) {
        self.places.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(log: &Log) -> bool {
        let mut places: Vec<Place> = log.places.iter().copied().collect();
        places.sort_unstable_by_key(|place| place.extent.at);
        places.windows(2).any(|two| two[0].end() > two[1].extent.at)
            || places.last().is_some_and(|last| last.end() > log.len)
    }

    #[test]
    fn places_never_overlap_and_are_not_given_again_before_the_gap_was_written() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut log = Log::new(LOG_MIN, Vec::new());
        // How much had been written when a place was taken back.
        let mut back: Vec<(Extent, u64)> = Vec::new();
        let mut written = 0;
        for round in 0..20_000u64 {
            let len = 64 * random.u32(1..=RECORD_MAX as u32 / 64);
            let extent = loop {
                match log.take(len, round) {
                    Some(extent) => break extent,
                    None => {
                        back.push((log.tail().unwrap().extent, written));
                        log.take_back();
                    }
                }
            };
            let meets = |other: &Extent| {
                other.at < extent.at + u64::from(extent.len) && extent.at < other.at + u64::from(other.len)
            };
            for (_, since) in back.iter().filter(|(other, _)| meets(other)) {
                assert!(written - since + 2 * RECORD_MAX as u64 >= log.gap, "written again after {written}");
            }
            back.retain(|(other, _)| !meets(other));
            written += u64::from(len);
            assert!(!overlaps(&log), "after {round} records");
        }
    }

    #[test]
    fn a_log_is_found_again_by_its_places() {
        let mut log = Log::new(LOG_MIN, Vec::new());
        for round in 0..500 {
            while log.take(4096, round).is_none() {
                log.take_back();
            }
            // Some records are not in use any more, which makes small holes.
            let kept = log.places.iter().copied().filter(|place| place.hash % 3 > 0).collect();
            let found = Log::new(LOG_MIN, kept);
            assert_eq!(found.places.back().map(|newest| newest.hash), {
                log.places.iter().rev().map(|place| place.hash).find(|hash| hash % 3 > 0)
            });
            assert!(found.free() >= log.free() && !overlaps(&found));
        }
        let empty = Log::new(LOG_MIN, Vec::new());
        assert_eq!((empty.head, empty.free(), empty.tail()), (0, LOG_MIN, None));
    }
}
