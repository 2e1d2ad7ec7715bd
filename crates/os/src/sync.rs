//! What the lock and the rings synchronise with: the standard library's, or loom's where `cfg(loom)` runs
//! them through every order that the memory model allows.
//!
//! loom knows no `membarrier(2)`. Its pair, a compiler's fence on the frequent side and a barrier in all
//! threads on the rare one, is modelled as a sequentially consistent fence on each.

#[cfg(loom)]
pub(crate) use self::model::*;
#[cfg(not(loom))]
pub(crate) use self::real::*;

#[cfg(not(loom))]
mod real {
    use super::Plant;
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    /// The rare side's half of a barrier in all threads.
    pub(crate) fn heavy_barrier() {
        crate::barrier::in_all_threads();
    }

    /// Asks for the two, and whether they are there by now.
    pub(crate) use crate::barrier::{ask as ask_for_barriers, is_granted as barriers_are_there};

    /// An ordering of the code; in models a planted bug weakens it.
    #[inline(always)]
    pub(crate) const fn ordering(_: Plant, ordering: Ordering) -> Ordering {
        ordering
    }

    /// A fence of the code; in models a planted bug leaves it out.
    #[inline(always)]
    pub(crate) fn fence_at(_: Plant) {
        fence(Ordering::SeqCst);
    }

    /// The frequent side's half of a barrier in all threads; in models a planted bug leaves it out.
    #[inline(always)]
    pub(crate) fn light_barrier_at(_: Plant) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// Places where a model plants a bug, to show that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plant {
    /// A biased thread looks at the bias before its mark is seen.
    Enter,
    /// A biased thread that leaves looks at the bias before its mark is seen clear.
    Leave,
    /// A cleared mark does not carry what was written inside.
    Mark,
    /// An entry's word does not carry its bytes.
    Publish,
    /// A ring's head does not carry that its bytes were read.
    Release,
    /// A producer that waits looks at the head before the consumer sees that it waits.
    Wait,
    /// A consumer looks whether the producer waits before its head is seen.
    Room,
}

#[cfg(loom)]
mod model {
    use super::Plant;
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    use std::cell::Cell;

    std::thread_local! {
        /// loom's threads all run on the thread that runs the model.
        static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    /// Runs a model with a bug.
    pub(crate) fn with_planted(plant: Plant, model: impl FnOnce()) {
        PLANTED.set(Some(plant));
        model();
    }

    fn is_planted(plant: Plant) -> bool {
        PLANTED.get() == Some(plant)
    }

    pub(crate) fn heavy_barrier() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn ask_for_barriers() {}

    pub(crate) fn barriers_are_there() -> bool {
        true
    }

    pub(crate) fn ordering(plant: Plant, ordering: Ordering) -> Ordering {
        if is_planted(plant) { Ordering::Relaxed } else { ordering }
    }

    pub(crate) fn fence_at(plant: Plant) {
        if !is_planted(plant) {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn light_barrier_at(plant: Plant) {
        fence_at(plant);
    }
}
