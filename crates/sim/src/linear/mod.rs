//! Linearizability (Herlihy and Wing 1990): whether operations that overlapped in time could have been done
//! one after another, each at a moment between its call and its return, with the answers that they got.
//!
//! A [`History`] is what was noted of a run: calls, with their answers or without. A call without an answer
//! is *pending*: its client was killed, or the run ended, and it may have taken effect at any time after it
//! began, or never. A [`Model`] says what an object does when it is used by one client at a time; [`model`]
//! has those of words, of a lock with fencing tokens and of a bounded queue. Values may repeat.
//!
//! [`History::check`] takes each object for itself, which is enough, because linearizability is local. It
//! then searches as Wing and Gong (1993) do, with the states that it has been in remembered (Lowe 2017). The
//! problem is NP-complete, so that the search has a bound on its work; beyond it a history is
//! [`Verdict::Undecided`], which a caller must treat as a failure.

pub mod model;
mod search;
#[cfg(test)]
mod tests;

use core::fmt::{Debug, Write};
use std::collections::BTreeMap;

/// Calls of a model that a check makes at most: some seconds.
pub const WORK_MAX: u64 = 4_000_000;

/// What an object does when one client at a time uses it.
pub trait Model {
    /// What the object is asked.
    type Call: Clone + PartialEq + Debug;
    /// What it answers.
    type Answer: Clone + PartialEq + Debug;
    /// What it holds.
    type State: Clone + Ord + Debug;

    /// What it holds at first.
    fn start(&self) -> Self::State;

    /// What it holds after a call that answered so; `None` when the call cannot have answered so. Of a
    /// pending call the answer is not known; it has an effect that does not depend on it, or `None` if it has
    /// no effect here.
    fn step(
        &self,
        state: &Self::State,
        call: &Self::Call,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;

    /// Whether a call with this answer changes nothing, in whatever state it gives that answer. Such a call
    /// may be placed as soon as it fits, which saves work.
    fn only_looks(&self, call: &Self::Call, answer: &Self::Answer) -> bool {
        let _ = (call, answer);
        false
    }
}

/// One call. Its moments are places in one order of all that a run noted; an operation that ended at a lower
/// place than another's beginning came before it.
#[derive(Clone, PartialEq, Debug)]
pub struct Operation<C, A> {
    /// Who called.
    pub client: u32,
    /// What was called; objects are independent.
    pub object: u64,
    /// What was asked.
    pub call: C,
    /// When it was asked.
    pub begun: u64,
    /// When it was answered, and how; `None` while it is pending.
    pub ended: Option<(u64, A)>,
}

/// An operation on a model's object.
pub type OperationOf<M> = Operation<<M as Model>::Call, <M as Model>::Answer>;

/// What was noted of a run.
#[derive(Clone, Debug)]
pub struct History<M: Model> {
    operations: Vec<OperationOf<M>>,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// There is an order that explains every answer.
    Linearizable,
    /// There is none.
    Wrong(Conflict),
    /// The search was given up. This is no success.
    Undecided {
        /// The object whose order was sought.
        object: u64,
        /// Its operations.
        operations: usize,
        /// Calls of the model that were made.
        work: u64,
    },
}

/// The nearest that the search came to an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The object.
    pub object: u64,
    /// Operations in the longest order that was found.
    pub placed: usize,
    /// The object's operations.
    pub operations: usize,
    /// What the object held then, and the calls that could have been next and were not, a line each.
    pub why: String,
}

impl Verdict {
    /// What is wrong, in words; `None` when nothing is.
    pub fn failure(&self) -> Option<String> {
        match self {
            Verdict::Linearizable => None,
            Verdict::Wrong(Conflict { object, placed, operations, why }) => Some(format!(
                "object {object:#x}: no order of its {operations} operations explains their answers; of the \
                 order \
                 that explains most, {placed} long, {why}"
            )),
            Verdict::Undecided { object, operations, work } => Some(format!(
                "object {object:#x}: undecided after {work} steps whether an order of its {operations} \
                 operations \
                 explains their answers"
            )),
        }
    }
}

impl<M: Model> Default for History<M> {
    fn default() -> Self {
        History { operations: Vec::new() }
    }
}

impl<M: Model> History<M> {
    /// Adds an operation.
    pub fn add(&mut self, operation: OperationOf<M>) {
        self.operations.push(operation);
    }

    /// All operations, as they were added.
    pub fn operations(&self) -> &[OperationOf<M>] {
        &self.operations
    }

    /// Checks every object, each with at most `work_max` calls of the model. The first object that is not
    /// linearizable, or undecided, is the verdict.
    pub fn check(&self, model: &M, work_max: u64) -> Verdict {
        let mut objects: BTreeMap<u64, Vec<&OperationOf<M>>> = BTreeMap::new();
        for operation in &self.operations {
            objects.entry(operation.object).or_default().push(operation);
        }
        let mut undecided = None;
        for (object, operations) in objects {
            match search::search(model, &operations, work_max) {
                search::Found::Order => {}
                search::Found::None { placed, state, next } => {
                    let mut why = format!("the object then holds {state:?}, and none of these can be next:");
                    for operation in next.iter().map(|n| operations[*n]) {
                        // Writing to a `String` cannot fail.
                        let _ = write!(why, "\n    {}", in_words(operation));
                    }
                    let operations = operations.len();
                    return Verdict::Wrong(Conflict { object, placed, operations, why });
                }
                search::Found::GivenUp { work } => {
                    let operations = operations.len();
                    undecided = undecided.or(Some(Verdict::Undecided { object, operations, work }));
                }
            }
        }
        undecided.unwrap_or(Verdict::Linearizable)
    }
}

/// An operation, for people.
fn in_words<C: Debug, A: Debug>(operation: &Operation<C, A>) -> String {
    let Operation { client, call, begun, ended, .. } = operation;
    match ended {
        Some((at, answer)) => format!("client {client}: {call:?} -> {answer:?}, at {begun} to {at}"),
        None => format!("client {client}: {call:?}, begun at {begun}, never answered"),
    }
}
