//! The cache of connection state: which entries are on the NIC. A look-up takes the same time however many
//! there are.

/// No place, no entry.
const NONE: u32 = u32::MAX;

/// What makes room for a new entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The least recently used entry goes.
    Lru,
    /// Any entry goes.
    Random,
}

/// An entry, in the list of all that are on the NIC.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    /// Towards the one that was used last.
    newer: u32,
    /// Towards the one that was used first.
    older: u32,
    /// Packets that wait for it or use it: it cannot go.
    pins: u32,
}

/// Entries by place, and the place of each key.
#[derive(Clone, Debug)]
pub struct Cache {
    replacement: Replacement,
    places: usize,
    entries: Vec<Entry>,
    place_of: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// Look-ups, and how many of them found nothing.
    pub lookups: u64,
    /// See `lookups`.
    pub misses: u64,
}

impl Cache {
    /// An empty cache of `places` entries.
    pub fn new(places: u32, replacement: Replacement) -> Cache {
        Cache {
            replacement,
            places: places as usize,
            entries: Vec::with_capacity(places as usize),
            place_of: Vec::new(),
            newest: NONE,
            oldest: NONE,
            lookups: 0,
            misses: 0,
        }
    }

    /// Looks a key up, and brings it in if it is not there; whether it was. A key that comes in is allocated
    /// at once, in the place of another that nobody waits for; where all are waited for, it is read and not
    /// kept.
    pub fn look_up(&mut self, key: u32, rng: &mut fastrand::Rng) -> bool {
        self.lookups += 1;
        if self.place_of.len() <= key as usize {
            self.place_of.resize(key as usize + 1, NONE);
        }
        let place = self.place_of[key as usize];
        if place != NONE {
            self.unlink(place);
            self.link_newest(place);
            return true;
        }
        self.misses += 1;
        let entry = Entry { key, newer: NONE, older: NONE, pins: 0 };
        if self.entries.len() < self.places {
            self.entries.push(entry);
            let place = self.entries.len() as u32 - 1;
            self.place_of[key as usize] = place;
            self.link_newest(place);
        } else if let Some(place) = self.victim(rng) {
            self.unlink(place);
            let old = core::mem::replace(&mut self.entries[place as usize], entry);
            self.place_of[old.key as usize] = NONE;
            self.place_of[key as usize] = place;
            self.link_newest(place);
        }
        false
    }

    /// Whether an entry is there.
    pub fn holds(&self, key: u32) -> bool {
        self.place_of.get(key as usize).is_some_and(|place| *place != NONE)
    }

    /// Somebody waits for an entry: it stays until [`Cache::unpin`].
    pub fn pin(&mut self, key: u32) {
        if let Some(entry) = self.entry_mut(key) {
            entry.pins += 1;
        }
    }

    /// One that waited for an entry waits no longer.
    pub fn unpin(&mut self, key: u32) {
        if let Some(entry) = self.entry_mut(key) {
            entry.pins = entry.pins.saturating_sub(1);
        }
    }

    fn entry_mut(&mut self, key: u32) -> Option<&mut Entry> {
        let place = *self.place_of.get(key as usize)?;
        self.entries.get_mut(place as usize)
    }

    fn victim(&self, rng: &mut fastrand::Rng) -> Option<u32> {
        let free = |place: &u32| self.entries[*place as usize].pins == 0;
        match self.replacement {
            Replacement::Lru => {
                let mut place = self.oldest;
                while place != NONE && !free(&place) {
                    place = self.entries[place as usize].newer;
                }
                (place != NONE).then_some(place)
            }
            Replacement::Random => {
                // Few are pinned, so a few draws find one; a full turn from the last draw finds any.
                let places = self.entries.len() as u32;
                let first = (0..8).map(|_| rng.u32(0..places)).find(free);
                first.or_else(|| (0..places).find(free))
            }
        }
    }

    fn link_newest(&mut self, place: u32) {
        let newest = core::mem::replace(&mut self.newest, place);
        let entry = &mut self.entries[place as usize];
        (entry.newer, entry.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = place,
            before => self.entries[before as usize].newer = place,
        }
    }

    fn unlink(&mut self, place: u32) {
        let Entry { newer, older, .. } = self.entries[place as usize];
        match newer {
            NONE => self.newest = older,
            at => self.entries[at as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            at => self.entries[at as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses(cache: &mut Cache, keys: impl Iterator<Item = u32>) -> u64 {
        let mut rng = fastrand::Rng::with_seed(1);
        let before = cache.misses;
        keys.for_each(|key| {
            cache.look_up(key, &mut rng);
        });
        cache.misses - before
    }

    /// A cyclic scan over one key more than there are places never hits where the least recently used goes;
    /// one that fits misses each key once.
    #[test]
    fn a_cyclic_scan_hits_always_or_never() {
        for places in [1u32, 7, 240] {
            let scan = |keys: u32| (0..keys * 10).map(move |n| n % keys);
            let mut cache = Cache::new(places, Replacement::Lru);
            assert_eq!(misses(&mut cache, scan(places)), u64::from(places));
            let mut cache = Cache::new(places, Replacement::Lru);
            assert_eq!(misses(&mut cache, scan(places + 1)), u64::from(places + 1) * 10);
        }
    }

    /// Random replacement over a scan of k keys and n places: the hit ratio h of the steady state solves
    /// h = (1 - 1/n)^((1 - h) k), the chance to survive the misses of one turn.
    #[test]
    fn random_replacement_hits_as_often_as_chance_has_it() {
        let (places, keys) = (400.0f64, 600.0f64);
        let mut hits = 0.5f64;
        for _ in 0..1000 {
            hits = crate::portable::power(1.0 - 1.0 / places, ((1.0 - hits) * keys) as u32);
        }
        let mut cache = Cache::new(places as u32, Replacement::Random);
        misses(&mut cache, (0..60_000).map(|n| n % 600));
        let missed = misses(&mut cache, (0..60_000).map(|n| n % 600)) as f64 / 60_000.0;
        assert!((1.0 - missed - hits).abs() < 0.02, "{missed} {hits}");
    }

    /// Against a list that is searched.
    #[test]
    fn the_least_recently_used_goes_and_what_is_waited_for_stays() {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut cache = Cache::new(5, Replacement::Lru);
        let mut model: Vec<u32> = Vec::new();
        for _ in 0..10_000 {
            let key = rng.u32(0..9);
            let hit = cache.look_up(key, &mut rng.clone());
            assert_eq!(hit, model.contains(&key));
            model.retain(|k| *k != key);
            model.push(key);
            if model.len() > 5 {
                model.remove(0);
            }
        }
        let mut cache = Cache::new(2, Replacement::Lru);
        cache.look_up(1, &mut rng);
        cache.pin(1);
        assert_eq!(misses(&mut cache, [2, 3, 1, 4, 1].into_iter()), 3, "1 is never the one to go");
        cache.unpin(1);
        assert_eq!(misses(&mut cache, [5, 6, 1].into_iter()), 3);
    }
}
