//! Linearizability of atomics on two shared words (Herlihy and Wing): a counter that everybody adds 1
//! to, and a register that everybody swaps with values that never repeat. For these two the value that an operation saw
//! tells its place in the order, so that checking is sorting.

use std::collections::BTreeMap;

/// One operation: when it was posted and completed, what it saw and left.
#[derive(Clone, Copy, Debug)]
struct Op {
    begun: u64,
    ended: u64,
    original: u64,
    new: u64,
    changed: bool,
}

/// What was done to a word.
#[derive(Clone, Debug, Default)]
pub struct History {
    ops: Vec<Op>,
}

impl History {
    /// Adds an operation that completed: `new` was stored if `changed`.
    pub fn add(&mut self, begun: u64, ended: u64, original: u64, new: u64, changed: bool) {
        self.ops.push(Op { begun, ended, original, new, changed });
    }

    /// Each value was seen once, and the order of values agrees with time.
    pub fn check_counter(&self) -> Option<String> {
        let mut places: Vec<(u64, &Op)> = self.ops.iter().map(|op| (op.original, op)).collect();
        places.sort_by_key(|(place, _)| *place);
        for (n, (place, _)) in places.iter().enumerate() {
            if *place != n as u64 {
                return Some(format!(
                    "fetch-and-add: the {n}-th value is {place}: one was lost or done twice"
                ));
            }
        }
        in_time(&places, "fetch-and-add")
    }

    /// Successful swaps form one chain from 0, every value seen is on it, and places agree with time.
    pub fn check_register(&self) -> Option<String> {
        let mut next = BTreeMap::new();
        for op in self.ops.iter().filter(|op| op.changed) {
            if next.insert(op.original, op.new).is_some() {
                return Some(format!(
                    "compare-and-swap: two swaps saw {:#x} and both succeeded",
                    op.original
                ));
            }
        }
        let mut place_of = BTreeMap::from([(0, 0u64)]);
        let mut at = 0;
        while let Some(&to) = next.get(&at) {
            let place = place_of.len() as u64;
            place_of.insert(to, place);
            at = to;
        }
        if place_of.len() != next.len() + 1 {
            return Some("compare-and-swap: successful swaps do not form one chain".into());
        }
        let mut places = Vec::new();
        for op in &self.ops {
            let Some(place) = place_of.get(&op.original) else {
                return Some(format!("compare-and-swap: saw {:#x}, which was never stored", op.original));
            };
            // Those that only saw a value come before the one that replaced it.
            places.push((*place * 2 + u64::from(op.changed), op));
        }
        places.sort_by_key(|(place, _)| *place);
        in_time(&places, "compare-and-swap")
    }
}

/// No operation that ended before another began comes after it. `places` is in order.
fn in_time(places: &[(u64, &Op)], what: &str) -> Option<String> {
    let mut latest_begin = 0;
    let mut group = 0;
    for (i, (place, op)) in places.iter().enumerate() {
        if i > 0 && *place != places[i - 1].0 {
            // Everything at earlier places must have begun before this one ended.
            latest_begin = latest_begin.max(places[group..i].iter().map(|(_, o)| o.begun).max().unwrap_or(0));
            group = i;
        }
        if op.ended < latest_begin {
            return Some(format!("{what}: value {:#x} was seen after a later one was known", op.original));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_histories_pass_and_wrong_ones_do_not() {
        let mut h = History::default();
        h.add(0, 10, 1, 2, true);
        h.add(5, 12, 0, 1, true);
        assert_eq!(h.check_counter(), None, "concurrent: either order");
        h.add(20, 30, 1, 2, true);
        assert!(h.check_counter().unwrap().contains("done twice"));
        let mut h = History::default();
        h.add(0, 10, 1, 2, true);
        h.add(11, 12, 0, 1, true);
        assert!(h.check_counter().unwrap().contains("later one"));

        let mut h = History::default();
        h.add(0, 10, 0, 7, true);
        h.add(0, 10, 7, 9, false);
        h.add(20, 30, 7, 8, true);
        assert_eq!(h.check_register(), None);
        let mut stale = h.clone();
        stale.add(40, 50, 7, 9, false);
        assert!(stale.check_register().unwrap().contains("later one"));
        let mut fork = h.clone();
        fork.add(0, 50, 7, 5, true);
        assert!(fork.check_register().unwrap().contains("both succeeded"));
        h.add(0, 50, 3, 5, false);
        assert!(h.check_register().unwrap().contains("never stored"));
    }
}
