//! Sequential models of the objects that programs build on remote memory.

use super::Model;
use std::collections::{BTreeMap, VecDeque};

/// A word of eight bytes: a register, a counter, a word that is compared and swapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Word {
    /// What it holds at first.
    pub start: u64,
}

/// What a [`Word`] is asked. Each answers what it held before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordCall {
    /// What it holds.
    Read,
    /// To hold this. The answer says nothing that the caller could know, and is not looked at.
    Write(u64),
    /// That its lower half be this.
    WriteLow(u32),
    /// To hold so much more, modulo 2^64.
    Add(u64),
    /// To hold `swap`, if it holds `compare`.
    CompareSwap {
        /// What it must hold.
        compare: u64,
        /// What it holds then.
        swap: u64,
    },
}

impl Model for Word {
    type Call = WordCall;
    type Answer = u64;
    type State = u64;

    fn start(&self) -> u64 {
        self.start
    }

    fn step(&self, state: &u64, call: &WordCall, answer: Option<&u64>) -> Option<u64> {
        let after = match *call {
            WordCall::Read => *state,
            WordCall::Write(value) => return Some(value),
            WordCall::WriteLow(low) => return Some(*state >> 32 << 32 | u64::from(low)),
            WordCall::Add(more) => state.wrapping_add(more),
            WordCall::CompareSwap { compare, swap } if *state == compare => swap,
            WordCall::CompareSwap { .. } => *state,
        };
        match answer {
            Some(before) => (before == state).then_some(after),
            None => (after != *state).then_some(after),
        }
    }

    fn only_looks(&self, call: &WordCall, answer: &u64) -> bool {
        match *call {
            WordCall::Read => true,
            WordCall::CompareSwap { compare, .. } => compare != *answer,
            WordCall::Write(_) | WordCall::WriteLow(_) | WordCall::Add(_) => false,
        }
    }
}

/// A lock that is lent for a time (a lease), and a value that it guards. Each lending has a token, greater
/// than all before. Who has lost the lock may not know it; so whoever changes the value shows its token, and
/// the value remembers the greatest that it has seen (Kleppmann 2016 calls this fencing).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lock;

/// What a [`Lock`] is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockCall {
    /// To be lent.
    Acquire,
    /// To be lent although somebody holds it, whose lease has run out: that lending's token.
    TakeOver(u64),
    /// To be free again, by the holder of this token.
    Release(u64),
    /// That the value becomes this, by the holder of this token.
    Store {
        /// The token.
        token: u64,
        /// The value.
        value: u64,
    },
    /// The value, by the holder of this token.
    Load(u64),
}

/// What a [`Lock`] answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// It was done; this token was lent, if one was.
    Done(u64),
    /// It was not done: somebody else holds the lock, or held it with a greater token.
    Refused,
    /// The value.
    Value(u64),
}

/// What a [`Lock`] holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct LockState {
    /// The token of the last lending; 0 before the first.
    pub token: u64,
    /// Somebody holds it.
    pub held: bool,
    /// The greatest token that the value has seen.
    pub fence: u64,
    /// The value.
    pub value: u64,
}

impl Lock {
    /// What a call does, and what it answers. A lending's token is not fixed by the model, as long as it
    /// grows: with `lent` the lock gives that one.
    fn apply(state: LockState, call: LockCall, lent: u64) -> (LockState, LockAnswer) {
        let LockState { token, held, fence, .. } = state;
        match call {
            LockCall::Acquire if !held && lent > token => {
                (LockState { token: lent, held: true, ..state }, LockAnswer::Done(lent))
            }
            LockCall::TakeOver(from) if held && from == token && lent > token => {
                (LockState { token: lent, ..state }, LockAnswer::Done(lent))
            }
            LockCall::Release(own) if held && own == token => {
                (LockState { held: false, ..state }, LockAnswer::Done(own))
            }
            LockCall::Store { token: own, value } if own >= fence => {
                (LockState { fence: own, value, ..state }, LockAnswer::Done(own))
            }
            LockCall::Load(own) if own >= fence => {
                (LockState { fence: own, ..state }, LockAnswer::Value(state.value))
            }
            _ => (state, LockAnswer::Refused),
        }
    }
}

impl Model for Lock {
    type Call = LockCall;
    type Answer = LockAnswer;
    type State = LockState;

    fn start(&self) -> LockState {
        LockState::default()
    }

    fn step(&self, state: &LockState, call: &LockCall, answer: Option<&LockAnswer>) -> Option<LockState> {
        let lent = match answer {
            Some(LockAnswer::Done(token)) => *token,
            _ => state.token + 1,
        };
        let (after, said) = Lock::apply(*state, *call, lent);
        match answer {
            // A lock may be refused to one while another tries; what counts is that it is not lent twice.
            Some(LockAnswer::Refused) if matches!(call, LockCall::Acquire | LockCall::TakeOver(_)) => {
                Some(*state)
            }
            Some(answer) => (said == *answer).then_some(after),
            None => (after != *state).then_some(after),
        }
    }

    fn only_looks(&self, _: &LockCall, answer: &LockAnswer) -> bool {
        *answer == LockAnswer::Refused
    }
}

/// A queue that holds so many values at most, first in, first out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Values that it holds at most.
    pub capacity: usize,
}

/// What a [`Queue`] is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueCall {
    /// To take in a value behind all others.
    Enqueue(u64),
    /// To give out the first value.
    Dequeue,
}

/// What a [`Queue`] answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueAnswer {
    /// The value was taken in.
    Enqueued,
    /// It was not: the queue is full.
    Full,
    /// The first value.
    Dequeued(u64),
    /// There is none.
    Empty,
}

impl Model for Queue {
    type Call = QueueCall;
    type Answer = QueueAnswer;
    type State = VecDeque<u64>;

    fn start(&self) -> VecDeque<u64> {
        VecDeque::new()
    }

    fn step(
        &self,
        state: &VecDeque<u64>,
        call: &QueueCall,
        answer: Option<&QueueAnswer>,
    ) -> Option<VecDeque<u64>> {
        let mut after = state.clone();
        let said = match *call {
            QueueCall::Enqueue(_) if state.len() >= self.capacity => QueueAnswer::Full,
            QueueCall::Enqueue(value) => {
                after.push_back(value);
                QueueAnswer::Enqueued
            }
            QueueCall::Dequeue => after.pop_front().map_or(QueueAnswer::Empty, QueueAnswer::Dequeued),
        };
        match answer {
            Some(answer) => (said == *answer).then_some(after),
            None => (after.len() != state.len()).then_some(after),
        }
    }

    fn only_looks(&self, _: &QueueCall, answer: &QueueAnswer) -> bool {
        matches!(answer, QueueAnswer::Full | QueueAnswer::Empty)
    }
}

/// Words that clients use over queue pairs, each of which does what it is asked in the order in which it was
/// asked: a client's later request takes effect after its earlier ones, whether they were answered or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OrderedWords;

/// A client's request for a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderedCall {
    /// Whose.
    pub client: u64,
    /// How many of its requests come before it.
    pub place: u64,
    /// Which word.
    pub word: u64,
    /// What is asked.
    pub call: WordCall,
}

/// What [`OrderedWords`] hold: words that are not 0, and how many requests of each client have had their
/// effect.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct OrderedState {
    /// By number.
    pub words: BTreeMap<u64, u64>,
    /// By client.
    pub done: BTreeMap<u64, u64>,
}

impl Model for OrderedWords {
    type Call = OrderedCall;
    type Answer = u64;
    type State = OrderedState;

    fn start(&self) -> OrderedState {
        OrderedState::default()
    }

    fn step(&self, state: &OrderedState, call: &OrderedCall, answer: Option<&u64>) -> Option<OrderedState> {
        let mut after = state.clone();
        let (done, word) = (after.done.entry(call.client).or_default(), after.words.entry(call.word));
        if *done != call.place {
            return None;
        }
        *done += 1;
        let word = word.or_default();
        // What has no effect on the word still lets those behind it have theirs.
        *word = match answer {
            Some(_) => Word::default().step(word, &call.call, answer)?,
            None => Word::default().step(word, &call.call, None).unwrap_or(*word),
        };
        Some(after)
    }
}

/// A lock's word, in which its holder's tag stands, and a value that the lock guards. Only the holder may
/// change the value or free the lock: who has lost it can do neither any more, and nothing tells it so but
/// that its requests fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tagged;

/// What a [`Tagged`] lock is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaggedCall {
    /// That this tag stand in the word, if what is expected stands there: 0, or the tag of who has lost it.
    Try {
        /// What must stand there.
        expected: u64,
        /// What stands there then.
        tag: u64,
    },
    /// That the value become this, by the holder with this tag.
    Store {
        /// The tag.
        tag: u64,
        /// The value.
        value: u64,
    },
    /// The value, by the holder with this tag.
    Load(u64),
    /// The value, by whomever.
    Look,
    /// To be free, by the holder with this tag, and with this value if the holder knows it: unconditionally,
    /// or only if the tag stands there, which then is the answer.
    Release {
        /// The tag.
        tag: u64,
        /// The value.
        value: Option<u64>,
    },
}

/// What a [`Tagged`] lock answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaggedAnswer {
    /// It was done.
    Done,
    /// What stood in the word before.
    Was(u64),
    /// The value.
    Value(u64),
}

/// What a [`Tagged`] lock holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TaggedState {
    /// The holder's tag; 0 when it is free.
    pub holder: u64,
    /// The value.
    pub value: u64,
}

impl Model for Tagged {
    type Call = TaggedCall;
    type Answer = TaggedAnswer;
    type State = TaggedState;

    fn start(&self) -> TaggedState {
        TaggedState::default()
    }

    fn step(
        &self,
        state: &TaggedState,
        call: &TaggedCall,
        answer: Option<&TaggedAnswer>,
    ) -> Option<TaggedState> {
        let TaggedState { holder, value: current } = *state;
        let after = match *call {
            TaggedCall::Try { expected, tag } if expected == holder => TaggedState { holder: tag, ..*state },
            TaggedCall::Try { .. } | TaggedCall::Look => *state,
            TaggedCall::Store { tag, value } if tag == holder => TaggedState { value, ..*state },
            TaggedCall::Load(tag) if tag == holder => *state,
            TaggedCall::Release { tag, value }
                if tag == holder && value.is_none_or(|value| value == current) =>
            {
                TaggedState { holder: 0, ..*state }
            }
            // Who has lost it may ask whether the tag still stands there, and learns that it does not.
            TaggedCall::Release { tag, .. }
                if tag != holder && matches!(answer, Some(TaggedAnswer::Was(_))) =>
            {
                *state
            }
            TaggedCall::Store { .. } | TaggedCall::Load(_) | TaggedCall::Release { .. } => return None,
        };
        match answer {
            Some(TaggedAnswer::Done) => {
                matches!(call, TaggedCall::Store { .. } | TaggedCall::Release { .. }).then_some(after)
            }
            Some(TaggedAnswer::Was(was)) => (*was == holder).then_some(after),
            Some(TaggedAnswer::Value(value)) => (*value == current).then_some(after),
            None => (after != *state).then_some(after),
        }
    }

    fn only_looks(&self, call: &TaggedCall, answer: &TaggedAnswer) -> bool {
        match (call, answer) {
            (TaggedCall::Try { expected: asked, .. } | TaggedCall::Release { tag: asked, .. }, answer) => {
                matches!(answer, TaggedAnswer::Was(was) if was != asked)
            }
            (call, _) => matches!(call, TaggedCall::Load(_) | TaggedCall::Look),
        }
    }
}
