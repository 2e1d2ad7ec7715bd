//! Histories that are right or wrong by hand, and random ones against all permutations.

use super::model::{
    Lock, LockAnswer, LockCall, OrderedCall, OrderedWords, Queue, QueueAnswer, QueueCall, Tagged,
    TaggedAnswer, TaggedCall, Word, WordCall,
};
use super::*;

/// (client, call, begun, ended): one line of a history.
type Line<M> = (u32, <M as Model>::Call, u64, Option<(u64, <M as Model>::Answer)>);

fn history<M: Model>(lines: impl IntoIterator<Item = Line<M>>) -> History<M> {
    let mut history = History::default();
    for (client, call, begun, ended) in lines {
        history.add(Operation { client, object: 0, call, begun, ended });
    }
    history
}

#[track_caller]
fn right<M: Model>(model: &M, lines: impl IntoIterator<Item = Line<M>>) {
    assert_eq!(history::<M>(lines).check(model, WORK_MAX), Verdict::Linearizable);
}

#[track_caller]
fn wrong<M: Model>(model: &M, lines: impl IntoIterator<Item = Line<M>>, placed: usize) {
    let verdict = history::<M>(lines).check(model, WORK_MAX);
    assert!(matches!(&verdict, Verdict::Wrong(c) if c.placed == placed), "{verdict:?}");
}

#[test]
fn registers() {
    use WordCall::{Read, Write};
    let word = Word::default();
    // The value is read before, after, or while it is written.
    right(&word, [(0, Write(1), 0, Some((10, 0))), (1, Read, 1, Some((2, 0))), (1, Read, 3, Some((4, 1)))]);
    // A later read sees an older value than an earlier one.
    wrong(
        &word,
        [(0, Write(1), 0, Some((10, 0))), (1, Read, 1, Some((2, 1))), (1, Read, 3, Some((4, 0)))],
        2,
    );
    // Values repeat: 1, 2, 1 again.
    let repeated = |last| {
        [
            (0, Write(1), 0, Some((1, 0))),
            (0, Write(2), 2, Some((3, 0))),
            (0, Write(1), 4, Some((5, 0))),
            (1, Read, 6, Some((7, last))),
        ]
    };
    right(&word, repeated(1));
    wrong(&word, repeated(2), 3);
    // A write that was never answered may have taken effect, late, or not at all; not twice, and not before
    // it began.
    right(&word, [(0, Write(1), 0, None), (1, Read, 50, Some((51, 0))), (1, Read, 60, Some((61, 1)))]);
    right(&word, [(0, Write(1), 0, None), (1, Read, 50, Some((51, 0)))]);
    wrong(&word, [(1, Read, 0, Some((1, 1))), (0, Write(1), 2, None)], 0);
    wrong(
        &word,
        [
            (0, Write(1), 0, None),
            (1, Read, 1, Some((2, 1))),
            (1, Write(3), 3, Some((4, 0))),
            (1, Read, 5, Some((6, 1))),
        ],
        3,
    );
}

#[test]
fn counters_and_swaps() {
    use WordCall::{Add, CompareSwap, Read};
    let word = Word::default();
    right(&word, [(0, Add(1), 0, Some((10, 1))), (1, Add(1), 5, Some((12, 0)))]);
    wrong(&word, [(0, Add(1), 0, Some((10, 1))), (1, Add(1), 11, Some((12, 0)))], 0);
    // Done twice: the third sees 3.
    let three = |last| (0..3).map(move |n| (n, Add(1), 0, Some((9, if n < 2 { n.into() } else { last }))));
    right(&word, three(2));
    wrong(&word, three(3), 2);
    let swap = |compare, swap| CompareSwap { compare, swap };
    // Two swaps of the same value both succeed.
    wrong(&word, [(0, swap(0, 1), 0, Some((9, 0))), (1, swap(0, 2), 0, Some((9, 0)))], 1);
    // ... unless a third puts it back.
    right(
        &word,
        [
            (0, swap(0, 1), 0, Some((9, 0))),
            (1, swap(0, 2), 0, Some((9, 0))),
            (2, swap(1, 0), 0, Some((9, 1))),
        ],
    );
    // Of several pending adds some have taken effect.
    let pending = |seen| (0..6).map(|n| (n, Add(1), 0, None)).chain([(9, Read, 20, Some((21, seen)))]);
    right(&word, pending(0));
    right(&word, pending(6));
    wrong(&word, pending(7), 6);
}

#[test]
fn locks() {
    use LockAnswer::{Done, Refused, Value};
    use LockCall::{Acquire, Load, Release, Store, TakeOver};
    let store = |token, value| Store { token, value };
    let one = |client, call, begun, answer| (client, call, begun, Some((begun + 1, answer)));
    let held_once = [
        one(0, Acquire, 0, Done(1)),
        one(1, Acquire, 2, Refused),
        one(0, store(1, 7), 4, Done(1)),
        one(0, Release(1), 6, Done(1)),
        one(1, Acquire, 8, Done(2)),
        one(1, Load(2), 10, Value(7)),
    ];
    right(&Lock, held_once);
    // Lent to two.
    wrong(&Lock, [one(0, Acquire, 0, Done(1)), one(1, Acquire, 2, Done(2))], 1);
    // A token for the second time.
    let again = [one(0, Acquire, 0, Done(1)), one(0, Release(1), 2, Done(1)), one(1, Acquire, 4, Done(1))];
    wrong(&Lock, again, 2);
    // The next holder reads what was there before the last one's store.
    let mut stale = held_once;
    stale[5] = one(1, Load(2), 10, Value(0));
    wrong(&Lock, stale, 5);
    // A holder whose lease has run out: the lock passes on, and its store comes too late or in time.
    let late = |answer| {
        [
            one(0, Acquire, 0, Done(1)),
            one(1, TakeOver(1), 2, Done(2)),
            one(1, store(2, 8), 4, Done(2)),
            one(0, store(1, 7), 6, answer),
            one(1, Load(2), 8, Value(8)),
        ]
    };
    right(&Lock, late(Refused));
    wrong(&Lock, late(Done(1)), 3);
    // It never answered: its store may have come before the value saw token 2, not after.
    let gone = |value| {
        [
            one(0, Acquire, 0, Done(1)),
            (0, store(1, 7), 2, None),
            one(1, TakeOver(1), 4, Done(2)),
            one(1, Load(2), 6, Value(value)),
            one(1, Load(2), 8, Value(value)),
        ]
    };
    right(&Lock, gone(0));
    right(&Lock, gone(7));
    let mut changes = gone(0);
    changes[4] = one(1, Load(2), 8, Value(7));
    wrong(&Lock, changes, 3);
}

#[test]
fn queues() {
    use QueueAnswer::{Dequeued, Empty, Enqueued, Full};
    use QueueCall::{Dequeue, Enqueue};
    let queue = Queue { capacity: 2 };
    let one = |client, call, begun, answer| (client, call, begun, Some((begun + 1, answer)));
    right(
        &queue,
        [
            one(0, Enqueue(5), 0, Enqueued),
            one(0, Enqueue(5), 2, Enqueued),
            one(0, Enqueue(6), 4, Full),
            one(1, Dequeue, 6, Dequeued(5)),
            one(1, Dequeue, 8, Dequeued(5)),
            one(1, Dequeue, 10, Empty),
        ],
    );
    // Out of order, unless both came at the same time.
    let two = |begun| {
        [
            one(0, Enqueue(1), 0, Enqueued),
            (1, Enqueue(2), begun, Some((9, Enqueued))),
            one(2, Dequeue, 10, Dequeued(2)),
            one(2, Dequeue, 12, Dequeued(1)),
        ]
    };
    wrong(&queue, two(2), 2);
    right(&queue, two(1));
    // A value that nobody put in, one that comes twice, one that is lost.
    wrong(&queue, [one(0, Enqueue(1), 0, Enqueued), one(1, Dequeue, 2, Dequeued(3))], 1);
    wrong(
        &queue,
        [one(0, Enqueue(1), 0, Enqueued), one(1, Dequeue, 2, Dequeued(1)), one(1, Dequeue, 4, Dequeued(1))],
        2,
    );
    wrong(&queue, [one(0, Enqueue(1), 0, Enqueued), one(1, Dequeue, 2, Empty)], 1);
    // Of a producer that was killed the value may come, or not.
    right(&queue, [(0, Enqueue(1), 0, None), one(1, Dequeue, 20, Dequeued(1)), one(1, Dequeue, 22, Empty)]);
    right(&queue, [(0, Enqueue(1), 0, None), one(1, Dequeue, 20, Empty)]);
}

/// A history of two objects is wrong if either is; a search that is given up does not pass.
#[test]
fn objects_stand_for_themselves_and_undecided_is_no_success() {
    let word = Word::default();
    let mut both: History<Word> = History::default();
    let read = |object, value| Operation {
        client: 0,
        object,
        call: WordCall::Read,
        begun: 0,
        ended: Some((1, value)),
    };
    both.add(read(3, 0));
    both.add(read(4, 0));
    assert_eq!(both.check(&word, WORK_MAX).failure(), None);
    both.add(read(4, 9));
    let failure = both.check(&word, WORK_MAX).failure();
    let named = |f: &String| f.contains("object 0x4") && f.contains("Read -> 9");
    assert!(failure.as_ref().is_some_and(named), "{failure:?}");

    // Twenty values put in at once, and the order in which they come out is not one of theirs: 20! orders.
    let queue = Queue { capacity: 30 };
    let put = (0..20).map(|n| (n, QueueCall::Enqueue(n.into()), 0, Some((9, QueueAnswer::Enqueued))));
    let take = [(30, QueueCall::Dequeue, 10, Some((11, QueueAnswer::Dequeued(77))))];
    let verdict = history::<Queue>(put.chain(take)).check(&queue, 10_000);
    assert!(matches!(verdict, Verdict::Undecided { operations: 21, .. }), "{verdict:?}");
    assert!(verdict.failure().is_some_and(|f| f.contains("undecided")));
}

/// Long histories of many clients, and several killed ones, are decided well within the bound.
#[test]
fn long_right_histories_are_decided() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let queue = Queue { capacity: 8 };
        let calls = |rng: &mut fastrand::Rng| {
            if rng.bool() { QueueCall::Enqueue(rng.u64(0..3)) } else { QueueCall::Dequeue }
        };
        let answers = |state: &std::collections::VecDeque<u64>, call: &QueueCall| match call {
            QueueCall::Enqueue(_) if state.len() == 8 => QueueAnswer::Full,
            QueueCall::Enqueue(_) => QueueAnswer::Enqueued,
            QueueCall::Dequeue => state.front().map_or(QueueAnswer::Empty, |v| QueueAnswer::Dequeued(*v)),
        };
        let history = run(&queue, &mut rng, 400, 6, calls, answers);
        assert_eq!(history.check(&queue, WORK_MAX), Verdict::Linearizable, "seed {seed}");
    }
}

/// Clients that call one after another, each call taking effect at a random moment; some are killed.
fn run<M: Model>(
    model: &M,
    rng: &mut fastrand::Rng,
    count: usize,
    clients: usize,
    calls: impl Fn(&mut fastrand::Rng) -> M::Call,
    answers: impl Fn(&M::State, &M::Call) -> M::Answer,
) -> History<M> {
    enum Doing<M: Model> {
        Nothing,
        Asking(u64, M::Call),
        Answering(u64, M::Call, M::Answer),
    }
    let mut state = model.start();
    let mut history = History::default();
    let mut doing: Vec<Doing<M>> = (0..clients).map(|_| Doing::Nothing).collect();
    let mut now = 0;
    let add = |history: &mut History<M>, client: usize, call, begun, ended| {
        history.add(Operation { client: client as u32, object: 0, call, begun, ended });
    };
    while history.operations().len() < count {
        // Two things may happen at one moment.
        now += rng.u64(0..2);
        let client = rng.usize(0..clients);
        let killed = rng.u32(0..60) == 0;
        doing[client] = match core::mem::replace(&mut doing[client], Doing::Nothing) {
            Doing::Nothing => Doing::Asking(now, calls(rng)),
            Doing::Asking(begun, call) if killed => {
                add(&mut history, client, call, begun, None);
                Doing::Nothing
            }
            Doing::Asking(begun, call) => {
                let answer = answers(&state, &call);
                state = model.step(&state, &call, Some(&answer)).expect("what the model does is right");
                Doing::Answering(begun, call, answer)
            }
            Doing::Answering(begun, call, answer) => {
                add(&mut history, client, call, begun, (!killed).then_some((now, answer)));
                Doing::Nothing
            }
        };
    }
    for (client, doing) in doing.into_iter().enumerate() {
        match doing {
            Doing::Nothing => {}
            Doing::Asking(begun, call) | Doing::Answering(begun, call, _) => {
                add(&mut history, client, call, begun, None);
            }
        }
    }
    history
}

/// Whether any order of all answered operations and some pending ones is right: every one is tried.
fn by_brute_force<M: Model>(model: &M, rest: &[Operation<M::Call, M::Answer>], state: &M::State) -> bool {
    if rest.iter().all(|o| o.ended.is_none()) {
        return true;
    }
    (0..rest.len()).any(|n| {
        let next = &rest[n];
        if rest.iter().any(|o| o.ended.as_ref().is_some_and(|(at, _)| *at < next.begun)) {
            return false;
        }
        let answer = next.ended.as_ref().map(|(_, answer)| answer);
        let mut others = rest.to_vec();
        others.remove(n);
        model.step(state, &next.call, answer).is_some_and(|state| by_brute_force(model, &others, &state))
    })
}

/// Small random histories: right ones, ones with an answer changed, ones with moments changed.
fn against_brute_force<M: Model>(
    model: &M,
    calls: impl Fn(&mut fastrand::Rng) -> M::Call,
    answers: impl Fn(&M::State, &M::Call) -> M::Answer,
    other: impl Fn(&mut fastrand::Rng) -> M::Answer,
) {
    let mut counts = [0; 2];
    for seed in 0..3_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = run(model, &mut rng, 5, 3, &calls, &answers);
        for operation in &mut history.operations {
            match rng.u32(0..12) {
                0 => operation.begun = operation.begun.saturating_sub(rng.u64(0..4)),
                1 => operation.ended = None,
                2 | 3 => {
                    if let Some((_, answer)) = &mut operation.ended {
                        *answer = other(&mut rng);
                    }
                }
                _ => {}
            }
        }
        let want = by_brute_force(model, &history.operations, &model.start());
        let got = history.check(model, WORK_MAX);
        assert_eq!(got == Verdict::Linearizable, want, "seed {seed}: {:#?}\n{got:?}", history.operations);
        assert_eq!(matches!(got, Verdict::Wrong(_)), !want, "seed {seed}");
        counts[usize::from(want)] += 1;
    }
    assert!(counts.iter().all(|n| *n > 300), "both kinds of histories were tried: {counts:?}");
}

#[test]
fn agrees_with_all_permutations_on_words() {
    against_brute_force(
        &Word::default(),
        |rng| match rng.u32(0..4) {
            0 => WordCall::Read,
            1 => WordCall::Write(rng.u64(0..3)),
            2 => WordCall::Add(rng.u64(0..2)),
            _ => WordCall::CompareSwap { compare: rng.u64(0..3), swap: rng.u64(0..3) },
        },
        |state, _| *state,
        |rng| rng.u64(0..3),
    );
}

#[test]
fn agrees_with_all_permutations_on_queues() {
    against_brute_force(
        &Queue { capacity: 2 },
        |rng| if rng.bool() { QueueCall::Enqueue(rng.u64(0..2)) } else { QueueCall::Dequeue },
        |state, call| match call {
            QueueCall::Enqueue(_) if state.len() == 2 => QueueAnswer::Full,
            QueueCall::Enqueue(_) => QueueAnswer::Enqueued,
            QueueCall::Dequeue => state.front().map_or(QueueAnswer::Empty, |v| QueueAnswer::Dequeued(*v)),
        },
        |rng| match rng.u32(0..3) {
            0 => QueueAnswer::Empty,
            1 => QueueAnswer::Full,
            _ => QueueAnswer::Dequeued(rng.u64(0..2)),
        },
    );
}

#[test]
fn agrees_with_all_permutations_on_locks() {
    use LockAnswer::{Done, Refused, Value};
    against_brute_force(
        &Lock,
        |rng| match rng.u32(0..5) {
            0 => LockCall::Acquire,
            1 => LockCall::TakeOver(rng.u64(1..3)),
            2 => LockCall::Release(rng.u64(1..3)),
            3 => LockCall::Store { token: rng.u64(1..3), value: rng.u64(0..3) },
            _ => LockCall::Load(rng.u64(1..3)),
        },
        |state, call| match *call {
            LockCall::Acquire if !state.held => Done(state.token + 1),
            LockCall::TakeOver(from) if state.held && from == state.token => Done(state.token + 1),
            LockCall::Release(own) if state.held && own == state.token => Done(own),
            LockCall::Store { token, .. } if token >= state.fence => Done(token),
            LockCall::Load(token) if token >= state.fence => Value(state.value),
            _ => Refused,
        },
        |rng| match rng.u32(0..3) {
            0 => Done(rng.u64(1..3)),
            1 => Value(rng.u64(0..3)),
            _ => Refused,
        },
    );
}

/// What one queue pair asks takes effect in its order, even if all of it was under way at once.
#[test]
fn a_queue_pair_keeps_its_order() {
    let ask = |client, place, word, call| OrderedCall { client, place, word, call };
    let [free, data] = [0, 1];
    let release = |answer| {
        let (taken, released) = (WordCall::Write(7), WordCall::CompareSwap { compare: 0, swap: 1 });
        [
            (0, ask(0, 0, data, taken), 0, None),
            (0, ask(0, 1, free, released), 1, Some((2, 0))),
            (1, ask(1, 0, free, WordCall::Read), 3, Some((4, 1))),
            (1, ask(1, 1, data, WordCall::Read), 5, Some((6, answer))),
        ]
    };
    right(&OrderedWords, release(7));
    wrong(&OrderedWords, release(0), 3);
    // One that was never answered and changes nothing does not stop those behind it.
    let idle = WordCall::CompareSwap { compare: 5, swap: 6 };
    right(
        &OrderedWords,
        [(0, ask(0, 0, data, idle), 0, None), (0, ask(0, 1, data, WordCall::Read), 1, Some((2, 0)))],
    );
}

#[test]
fn tagged_locks() {
    use TaggedAnswer::{Done, Value, Was};
    use TaggedCall::{Load, Look, Release, Store, Try};
    let take = |expected, tag| Try { expected, tag };
    let free = |tag, value| Release { tag, value };
    // One after the other; a try meanwhile finds the tag.
    right(
        &Tagged,
        [
            (0, take(0, 7), 0, Some((1, Was(0)))),
            (1, take(0, 8), 2, Some((3, Was(7)))),
            (0, Store { tag: 7, value: 5 }, 4, Some((7, Done))),
            (0, free(7, Some(5)), 4, Some((7, Done))),
            (1, take(0, 8), 5, Some((9, Was(0)))),
            (1, Load(8), 10, Some((11, Value(5)))),
            (2, Look, 10, Some((11, Value(5)))),
            (1, free(8, None), 12, Some((13, Was(8)))),
        ],
    );
    // Two holders.
    wrong(&Tagged, [(0, take(0, 7), 0, Some((1, Was(0)))), (1, take(0, 8), 2, Some((3, Was(0))))], 1);
    // A lock that is lost: nobody has released it, and it is free.
    wrong(
        &Tagged,
        [
            (0, take(0, 7), 0, Some((1, Was(0)))),
            (0, free(7, None), 2, Some((3, Done))),
            (1, take(0, 8), 4, Some((5, Was(7)))),
        ],
        2,
    );
    // Who has lost it changes the value, or frees it.
    let lost = |last: TaggedCall| {
        [
            (0, take(0, 7), 0, Some((1, Was(0)))),
            (1, take(7, 8), 2, Some((3, Was(7)))),
            (0, last, 4, Some((5, Done))),
        ]
    };
    wrong(&Tagged, lost(Store { tag: 7, value: 1 }), 2);
    wrong(&Tagged, lost(free(7, None)), 2);
    // Or it asks, and learns that it has lost it.
    let asks = |was| {
        let mut lines = lost(free(7, None));
        lines[2].3 = Some((5, Was(was)));
        lines
    };
    right(&Tagged, asks(8));
    wrong(&Tagged, asks(7), 2);
    wrong(&Tagged, asks(0), 2);
    // A holder that died between its record and its release, or before both: never after the release alone.
    let died = |next: TaggedCall, answer, seen| {
        [
            (0, take(0, 7), 0, Some((1, Was(0)))),
            (0, Store { tag: 7, value: 5 }, 2, None),
            (0, free(7, Some(5)), 2, None),
            (1, next, 3, Some((4, answer))),
            (1, Load(8), 5, Some((6, Value(seen)))),
        ]
    };
    for seen in [0, 5] {
        right(&Tagged, died(take(7, 8), Was(7), seen));
    }
    right(&Tagged, died(take(0, 8), Was(0), 5));
    wrong(&Tagged, died(take(0, 8), Was(0), 0), 4);
}
