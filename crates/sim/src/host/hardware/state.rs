//! Connection state: where a packet waits until the NIC has it. Reads of state overlap as far as the hardware
//! has slots for them, and packets of a direction still pass in order.

use super::cache::{Cache, Replacement};
use super::profile::{Profile, RANDOM};
use core::cmp::Reverse;
use std::collections::BinaryHeap;

/// What happens to an entry at a later time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Later {
    /// Its read starts: it gets its place.
    Allocate,
    /// A packet that waited for it has passed.
    Unpin,
}

/// The cache, and the reads that are under way.
#[derive(Clone, Debug)]
pub struct ConnectionState {
    cache: Cache,
    miss: u64,
    /// When each slot for a read is free; empty where a miss holds the pipeline instead.
    slots: Vec<u64>,
    /// (time, order, entry, what), earliest first.
    later: BinaryHeap<Reverse<(u64, u64, u32, Later)>>,
    order: u64,
    /// By entry: when its last read ends.
    read_until: Vec<u64>,
}

/// What a look-up came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The state is on the NIC.
    Here,
    /// It will be there at this time; packets behind may be looked up meanwhile.
    At(u64),
    /// It is read while the pipeline waits, for so long.
    Holds(u64),
}

impl ConnectionState {
    /// The state of a NIC; none where everything fits.
    pub fn new(p: &Profile) -> Option<ConnectionState> {
        if p.cache_entries == 0 || p.miss == 0 {
            return None;
        }
        let replacement = if p.cache_replacement == RANDOM { Replacement::Random } else { Replacement::Lru };
        Some(ConnectionState {
            cache: Cache::new(p.cache_entries as u32, replacement),
            miss: p.miss,
            slots: vec![0; p.cache_fetches as usize],
            later: BinaryHeap::new(),
            order: 0,
            read_until: Vec::new(),
        })
    }

    /// Look-ups that found nothing.
    pub fn misses(&self) -> u64 {
        self.cache.misses
    }

    fn catch_up(&mut self, now: u64, rng: &mut fastrand::Rng) {
        while let Some(Reverse((at, _, key, what))) = self.later.peek().copied()
            && at <= now
        {
            self.later.pop();
            match what {
                Later::Allocate => {
                    self.cache.look_up(key, rng);
                    self.cache.pin(key);
                }
                Later::Unpin => self.cache.unpin(key),
            }
        }
    }

    fn put_off(&mut self, at: u64, key: u32, what: Later) {
        self.order += 1;
        self.later.push(Reverse((at, self.order, key, what)));
    }

    /// Looks an entry up. Where reads overlap, it stays until [`ConnectionState::passed`].
    pub fn look_up(&mut self, now: u64, key: u32, rng: &mut fastrand::Rng) -> Found {
        if self.slots.is_empty() {
            return if self.cache.look_up(key, rng) { Found::Here } else { Found::Holds(self.miss) };
        }
        self.catch_up(now, rng);
        if self.read_until.len() <= key as usize {
            self.read_until.resize(key as usize + 1, 0);
        }
        let until = self.read_until[key as usize];
        if until > now {
            // Somebody waits for it already, and both wait for the same read.
            let start = until - self.miss;
            self.cache.lookups += 1;
            if start > now {
                self.put_off(start, key, Later::Allocate)
            } else {
                self.cache.pin(key)
            }
            return Found::At(until);
        }
        if self.cache.holds(key) {
            self.cache.look_up(key, rng);
            self.cache.pin(key);
            return Found::Here;
        }
        let slot = self.slots.iter_mut().min().expect("a cache with fetches has a slot");
        let start = (*slot).max(now);
        *slot = start + self.miss;
        self.read_until[key as usize] = start + self.miss;
        self.put_off(start, key, Later::Allocate);
        self.catch_up(now, rng);
        Found::At(start + self.miss)
    }

    /// A packet that looked an entry up passes at a time.
    pub fn passed(&mut self, at: u64, key: u32) {
        if !self.slots.is_empty() {
            self.put_off(at, key, Later::Unpin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(cache_fetches: u64) -> Profile {
        Profile { cache_entries: 2, miss: 100, cache_fetches, ..Profile::NEUTRAL }
    }

    #[test]
    fn a_miss_holds_the_pipeline_or_takes_a_slot() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut state = ConnectionState::new(&profile(0)).unwrap();
        let found = [1, 2, 1, 3, 1, 2].map(|key| state.look_up(0, key, &mut rng));
        let (hit, miss) = (Found::Here, Found::Holds(100));
        assert_eq!(found, [miss, miss, hit, miss, hit, miss]);
        let mut state = ConnectionState::new(&profile(2)).unwrap();
        let found = [1, 2, 1, 3, 4].map(|key| state.look_up(0, key, &mut rng));
        // Two reads at once; the second packet of 1 waits for the same read; 3 and 4 wait for slots.
        assert_eq!(found, [100, 100, 100, 200, 200].map(Found::At));
        assert!(ConnectionState::new(&Profile::NEUTRAL).is_none());
    }

    #[test]
    fn an_entry_stays_until_its_packets_have_passed() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut state = ConnectionState::new(&profile(4)).unwrap();
        for key in [1, 2] {
            assert_eq!(state.look_up(0, key, &mut rng), Found::At(100));
        }
        // Both places are waited for: 3 is read and not kept.
        assert_eq!(state.look_up(10, 3, &mut rng), Found::At(110));
        state.passed(100, 1);
        state.passed(100, 2);
        assert_eq!(state.look_up(150, 1, &mut rng), Found::Here);
        assert_eq!(state.look_up(150, 3, &mut rng), Found::At(250));
        // 1 was looked up and has not passed, so 2 went.
        assert_eq!(state.look_up(260, 1, &mut rng), Found::Here);
        assert_eq!(state.look_up(260, 2, &mut rng), Found::At(360));
    }
}
