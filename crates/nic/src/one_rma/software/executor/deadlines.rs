//! Deadlines of a fixed number of things, the earliest first: a binary heap that knows where each thing
//! stands, so that a deadline moves in place and the heap never holds more entries than there are things.

use adverb_wire::Instant;

/// Position of a thing that has no deadline.
const NOWHERE: u32 = u32::MAX;

pub(super) struct Deadlines {
    /// By thing.
    at: Vec<Instant>,
    /// By thing: where it stands in `heap`.
    place: Vec<u32>,
    /// Things.
    heap: Vec<u32>,
}

impl Deadlines {
    pub fn new(things: usize) -> Self {
        Deadlines {
            at: vec![Instant::NEVER; things],
            place: vec![NOWHERE; things],
            heap: Vec::with_capacity(things),
        }
    }

    /// The earliest: when, and whose.
    #[inline]
    pub fn first(&self) -> Option<(Instant, usize)> {
        self.heap.first().map(|thing| (self.at[*thing as usize], *thing as usize))
    }

    pub fn set(&mut self, thing: usize, at: Instant) {
        self.at[thing] = at;
        if self.place[thing] == NOWHERE {
            self.place[thing] = self.heap.len() as u32;
            self.heap.push(thing as u32);
        }
        let place = self.rise(self.place[thing] as usize);
        self.sink(place);
    }

    pub fn clear(&mut self, thing: usize) {
        let place = self.place[thing];
        if place == NOWHERE {
            return;
        }
        self.place[thing] = NOWHERE;
        self.heap.swap_remove(place as usize);
        if let Some(moved) = self.heap.get(place as usize) {
            self.place[*moved as usize] = place;
            let place = self.rise(place as usize);
            self.sink(place);
        }
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.heap[a], self.heap[b]);
        (self.at[a as usize], a) < (self.at[b as usize], b)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a] as usize] = a as u32;
        self.place[self.heap[b] as usize] = b as u32;
    }

    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 && self.before(place, (place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        place
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(least) = children.reduce(|a, b| if self.before(b, a) { b } else { a }) else { return };
            if !self.before(least, place) {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut deadlines = Deadlines::new(40);
        let mut model = [None; 40];
        for _ in 0..20_000 {
            let thing = rng.usize(..40);
            if rng.u8(..3) == 0 {
                deadlines.clear(thing);
                model[thing] = None;
            } else {
                let at = Instant::from_ns(rng.u64(..100));
                deadlines.set(thing, at);
                model[thing] = Some(at);
            }
            let first = (0..40).filter_map(|i| model[i].map(|at| (at, i))).min();
            assert_eq!(deadlines.first(), first);
            assert!(deadlines.heap.len() <= 40);
        }
    }
}
