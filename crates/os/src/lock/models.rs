//! The lock under loom. Its value is a cell that tells loom of every access, so that two threads inside are
//! found; a visitor that nobody wakes is a deadlock, which loom finds too.

mod loom_models {
    use super::super::*;
    use crate::sync::with_planted;
    use loom::cell::UnsafeCell as Watched;
    use loom::thread;
    use std::sync::Arc;

    type Lock = BiasedLock<Watched<u32>>;

    fn add(guard: &Guard<'_, Watched<u32>>) {
        // SAFETY: loom has seen that nobody else is at the cell.
        guard.with_mut(|value| unsafe { *value += 1 });
    }

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(run);
    }

    /// A lock that is biased to this thread.
    fn biased() -> Arc<Lock> {
        let lock = Arc::new(BiasedLock::new(Watched::new(0)));
        for _ in 0..=STREAK {
            add(&lock.lock());
        }
        assert_ne!(lock.bias.load(Ordering::Relaxed), NOBODY);
        lock
    }

    fn sum(lock: &Lock) -> u32 {
        // SAFETY: as in `add`.
        lock.visit().with(|value| unsafe { *value })
    }

    /// The biased thread comes twice while a visitor comes once.
    fn one_at_a_time() {
        model(|| {
            let lock = biased();
            let visited = lock.clone();
            let visitor = thread::spawn(move || add(&visited.visit()));
            for _ in 0..2 {
                add(&lock.lock());
            }
            visitor.join().unwrap();
            assert_eq!(sum(&lock), STREAK + 4);
        });
    }

    #[test]
    fn a_biased_thread_and_a_visitor_are_inside_one_at_a_time() {
        one_at_a_time();
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_look_before_the_mark_is_seen_is_found() {
        with_planted(Plant::Enter, one_at_a_time);
    }

    #[test]
    #[should_panic(expected = "Causality violation")]
    fn a_cleared_mark_that_carries_nothing_is_found() {
        with_planted(Plant::Mark, one_at_a_time);
    }

    /// A visitor that finds the biased thread inside waits for it.
    fn who_waits_is_woken() {
        model(|| {
            let lock = biased();
            let visited = lock.clone();
            let guard = lock.lock();
            let visitor = thread::spawn(move || add(&visited.visit()));
            add(&guard);
            drop(guard);
            visitor.join().unwrap();
            assert_eq!(sum(&lock), STREAK + 3);
        });
    }

    #[test]
    fn a_visitor_that_waits_is_woken() {
        who_waits_is_woken();
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_leaver_that_looks_too_early_is_found() {
        with_planted(Plant::Leave, who_waits_is_woken);
    }

    /// Two threads of the application, each of which may take the bias from the other.
    #[test]
    fn the_bias_goes_from_one_to_the_other() {
        model(|| {
            let lock = Arc::new(BiasedLock::new(Watched::new(0)));
            let other = lock.clone();
            let thread = thread::spawn(move || (0..=STREAK).for_each(|_| add(&other.lock())));
            for _ in 0..=STREAK {
                add(&lock.lock());
            }
            thread.join().unwrap();
            assert_eq!(sum(&lock), 2 * (STREAK + 1));
        });
    }
}
