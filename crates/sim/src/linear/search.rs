//! The search for an order of one object's operations.
//!
//! A node is a set of operations that are placed, and the state that they lead to. The next operation may be
//! any that is not placed and began before all others that are not placed had ended. A node that was visited
//! leads nowhere a second time, so nodes are remembered.

use super::{Model, OperationOf};
use std::collections::BTreeSet;

/// What the search found.
pub enum Found<S> {
    /// An order.
    Order,
    /// That there is none: the longest one, the state after it, and the operations that could not follow it.
    None { placed: usize, state: S, next: Vec<usize> },
    /// Nothing within its bound.
    GivenUp { work: u64 },
}

/// Which operations are placed: all before `base`, and those whose bit is set in `words`, which begins there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Placed {
    base: u32,
    words: Box<[u64]>,
}

/// A node on the way from the start to the node that is looked at.
struct Frame<S> {
    state: S,
    /// Operations that may be next, and how many of them have been tried.
    next: Vec<u32>,
    tried: usize,
}

struct Search<'a, M: Model> {
    model: &'a M,
    /// By the time when they began.
    operations: Vec<(usize, &'a OperationOf<M>)>,
    placed: Vec<bool>,
    /// Operations before this one are placed.
    first: usize,
    /// Operations with an answer that are not placed.
    open: usize,
    visited: BTreeSet<(Placed, M::State)>,
    work: u64,
}

impl<M: Model> Search<'_, M> {
    /// Operations that may be next: those with answers first, then pending ones.
    fn candidates(&self, state: &M::State) -> Vec<u32> {
        let (mut answered, mut pending) = (Vec::new(), Vec::new());
        let mut earliest_end = u64::MAX;
        for n in self.first..self.operations.len() {
            let operation = self.operations[n].1;
            if operation.begun > earliest_end {
                break;
            }
            match &operation.ended {
                _ if self.placed[n] => {}
                Some((at, answer)) => {
                    earliest_end = earliest_end.min(*at);
                    let looks = self.model.only_looks(&operation.call, answer);
                    if looks && self.model.step(state, &operation.call, Some(answer)).is_some() {
                        return vec![n as u32];
                    }
                    answered.push(n as u32);
                }
                // Of pending calls that ask the same, any may stand for any: the earliest does.
                None if pending.iter().any(|p| self.call(*p) == &operation.call) => {}
                None => pending.push(n as u32),
            }
        }
        answered.append(&mut pending);
        answered
    }

    fn call(&self, n: u32) -> &M::Call {
        &self.operations[n as usize].1.call
    }

    fn place(&mut self, n: usize, placed: bool) {
        self.placed[n] = placed;
        if self.operations[n].1.ended.is_some() {
            self.open = if placed { self.open - 1 } else { self.open + 1 };
        }
        if placed {
            while self.placed.get(self.first) == Some(&true) {
                self.first += 1;
            }
        } else {
            self.first = self.first.min(n);
        }
    }

    fn is_new(&mut self, state: &M::State) -> bool {
        let rest = &self.placed[self.first..];
        let used = rest.iter().rposition(|p| *p).map_or(0, |last| last + 1);
        let word = |bits: &[bool]| bits.iter().enumerate().fold(0, |w, (n, bit)| w | u64::from(*bit) << n);
        let words = rest[..used].chunks(64).map(word).collect();
        self.visited.insert((Placed { base: self.first as u32, words }, state.clone()))
    }

    /// The state after the operation, if it can be next.
    fn step(&mut self, state: &M::State, n: usize) -> Option<M::State> {
        self.work += 1;
        let operation = self.operations[n].1;
        self.model.step(state, &operation.call, operation.ended.as_ref().map(|(_, answer)| answer))
    }
}

/// Seeks an order of one object's operations, with at most about `work_max` calls of the model.
pub fn search<M: Model>(model: &M, operations: &[&OperationOf<M>], work_max: u64) -> Found<M::State> {
    let mut sorted: Vec<_> = operations.iter().copied().enumerate().collect();
    sorted.sort_by_key(|(n, operation)| (operation.begun, *n));
    let mut search = Search {
        model,
        placed: vec![false; sorted.len()],
        open: sorted.iter().filter(|(_, o)| o.ended.is_some()).count(),
        operations: sorted,
        first: 0,
        visited: BTreeSet::new(),
        work: 0,
    };
    let state = model.start();
    let next = search.candidates(&state);
    let mut best = (0, state.clone(), next.clone());
    let mut frames = vec![Frame { state, next, tried: 0 }];
    // The operations placed, in order: one for each frame but the first.
    let mut order: Vec<usize> = Vec::new();
    while search.open > 0 {
        let Some(frame) = frames.last_mut() else {
            let (placed, state, next) = best;
            let next = next.iter().map(|n| search.operations[*n as usize].0).collect();
            return Found::None { placed, state, next };
        };
        if search.work >= work_max {
            return Found::GivenUp { work: search.work };
        }
        let Some(n) = frame.next.get(frame.tried).map(|n| *n as usize) else {
            frames.pop();
            if let Some(last) = order.pop() {
                search.place(last, false);
            }
            continue;
        };
        frame.tried += 1;
        let Some(state) = search.step(&frame.state, n) else { continue };
        search.place(n, true);
        if !search.is_new(&state) {
            search.place(n, false);
            continue;
        }
        order.push(n);
        let next = search.candidates(&state);
        if order.len() > best.0 {
            best = (order.len(), state.clone(), next.clone());
        }
        frames.push(Frame { state, next, tried: 0 });
    }
    Found::Order
}
