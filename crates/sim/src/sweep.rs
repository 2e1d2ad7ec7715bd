//! Many runs side by side: seeds, points of a figure. The crate's only threads are here. A run lives in one
//! of them from its beginning to its end and shares nothing with others, so that what comes out does
//! not depend on how many there are.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Does `work(0)` to `work(count - 1)`, up to `jobs` at once (0 for [`processors`]), and returns what they
/// returned, in that order. `done` is called on this thread as each one ends, in the order of ending; it
/// is for showing progress, as only it depends on the jobs. It returns whether to go on: after a `false`,
/// no further run is begun, and those that never began are missing from the result.
pub fn run<T: Send>(
    count: usize,
    jobs: usize,
    work: impl Fn(usize) -> T + Sync,
    mut done: impl FnMut(usize, &T) -> bool,
) -> Vec<T> {
    let jobs = if jobs == 0 { processors() } else { jobs }.min(count);
    let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
    if jobs <= 1 {
        for (n, slot) in results.iter_mut().enumerate() {
            let result = slot.insert(work(n));
            if !done(n, result) {
                break;
            }
        }
        return results.into_iter().flatten().collect();
    }
    let next = AtomicUsize::new(0);
    let (ended, endings) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (next, work, ended) = (&next, &work, ended.clone());
            scope.spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    // The other end goes only if this thread's parent does.
                    if n >= count || ended.send((n, work(n))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(ended);
        for (n, result) in endings {
            if !done(n, results[n].insert(result)) {
                next.store(count, Ordering::Relaxed);
            }
        }
    });
    results.into_iter().flatten().collect()
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_jobs() {
        for jobs in [0, 1, 2, 7, 100] {
            let mut seen = Vec::new();
            let results = run(
                20,
                jobs,
                |n| n * n,
                |n, r| {
                    seen.push((n, *r));
                    true
                },
            );
            assert_eq!(results, (0..20).map(|n| n * n).collect::<Vec<_>>());
            seen.sort_unstable();
            assert_eq!(seen, (0..20).map(|n| (n, n * n)).collect::<Vec<_>>(), "each one is told of once");
        }
        assert_eq!(run(0, 4, |n| n, |_, _| true), Vec::<usize>::new());
    }

    #[test]
    fn no_run_begins_after_an_end_is_called() {
        assert_eq!(run(1000, 1, |n| n, |n, _| n < 3), [0, 1, 2, 3]);
        let begun = AtomicUsize::new(0);
        let results = run(1_000_000, 2, |_| begun.fetch_add(1, Ordering::Relaxed), |_, _| false);
        assert_eq!(results.len(), begun.into_inner());
        assert!(results.len() < 1_000_000);
    }
}
