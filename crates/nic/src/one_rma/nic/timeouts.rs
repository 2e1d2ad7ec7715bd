//! When the operations in progress time out. What waits for the same thing waits equally long, so that each
//! kind of waiting is a row in the order of time, in which almost everything enters at the end: a step for
//! each change, whatever is in progress, where a heap takes a dozen.

use adverb_wire::Instant;

/// Nobody.
const NONE: u32 = u32::MAX;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// To enter service: the own command for the window, a peer's request too.
    Service,
    /// The end of an operation that has been asked for, or that is being served.
    End,
    /// A peer's data, which this NIC has solicited.
    Data,
    /// The end of an operation that a peer has solicited: the one time that peers choose, up to a bound.
    Landing,
}

const WAITS: usize = 4;

#[derive(Clone, Copy)]
struct Place {
    at: Instant,
    before: u32,
    after: u32,
    /// In whose row; none when it waits for nothing.
    row: Option<Wait>,
}

#[derive(Clone, Copy)]
struct Row {
    /// Time of the first: never when there is none.
    at: Instant,
    first: u32,
    last: u32,
}

pub(super) struct Timeouts {
    /// By thing.
    places: Vec<Place>,
    rows: [Row; WAITS],
}

impl Timeouts {
    pub fn new(things: usize) -> Timeouts {
        Timeouts {
            places: vec![Place { at: Instant::NEVER, before: NONE, after: NONE, row: None }; things],
            rows: [Row { at: Instant::NEVER, first: NONE, last: NONE }; WAITS],
        }
    }

    /// The earliest: when, and whose.
    #[inline]
    pub fn first(&self) -> Option<(Instant, usize)> {
        let [a, b, c, d] = &self.rows;
        let row = earlier(earlier(a, b), earlier(c, d));
        (row.first != NONE).then_some((row.at, row.first as usize))
    }

    /// A thing waits until `at`, and for nothing else any more.
    #[inline]
    pub fn set(&mut self, thing: usize, wait: Wait, at: Instant) {
        self.clear(thing);
        let row = &mut self.rows[wait as usize];
        let mut before = row.last;
        // Only a peer that names times of its own makes this more than one look.
        while before != NONE && self.places[before as usize].at > at {
            before = self.places[before as usize].before;
        }
        let after = match before {
            NONE => core::mem::replace(&mut row.first, thing as u32),
            _ => core::mem::replace(&mut self.places[before as usize].after, thing as u32),
        };
        match after {
            NONE => row.last = thing as u32,
            _ => self.places[after as usize].before = thing as u32,
        }
        if before == NONE {
            row.at = at;
        }
        self.places[thing] = Place { at, before, after, row: Some(wait) };
    }

    /// A thing waits for nothing any more.
    #[inline]
    pub fn clear(&mut self, thing: usize) {
        let Place { before, after, row, .. } = self.places[thing];
        let Some(wait) = row else { return };
        let row = &mut self.rows[wait as usize];
        match before {
            NONE => {
                row.first = after;
                row.at = if after == NONE { Instant::NEVER } else { self.places[after as usize].at };
            }
            _ => self.places[before as usize].after = after,
        }
        match after {
            NONE => row.last = before,
            _ => self.places[after as usize].before = before,
        }
        self.places[thing].row = None;
    }
}

#[inline]
fn earlier<'a>(a: &'a Row, b: &'a Row) -> &'a Row {
    if b.at < a.at { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_sorted_list() {
        const WAITS: [Wait; 4] = [Wait::Service, Wait::End, Wait::Data, Wait::Landing];
        let mut rng = fastrand::Rng::with_seed(1);
        let mut timeouts = Timeouts::new(40);
        let mut model = [None; 40];
        for _ in 0..20_000 {
            let thing = rng.usize(..40);
            if rng.u8(..3) == 0 {
                timeouts.clear(thing);
                model[thing] = None;
            } else {
                let at = Instant::from_ns(rng.u64(..100));
                timeouts.set(thing, WAITS[rng.usize(..4)], at);
                model[thing] = Some(at);
            }
            let first = timeouts.first();
            assert_eq!(first.map(|(at, _)| at), model.iter().flatten().min().copied());
            assert!(first.is_none_or(|(at, thing)| model[thing] == Some(at)));
        }
    }

    #[test]
    fn a_row_is_first_in_first_out() {
        let mut timeouts = Timeouts::new(4);
        for thing in [2, 0, 3, 1] {
            timeouts.set(thing, Wait::End, Instant::from_ns(7));
        }
        timeouts.clear(3);
        let order = core::iter::from_fn(|| {
            let (_, thing) = timeouts.first()?;
            timeouts.clear(thing);
            Some(thing)
        });
        assert_eq!(order.collect::<Vec<_>>(), [2, 0, 1]);
    }
}
