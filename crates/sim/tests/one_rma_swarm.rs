//! Swarms of 1RMA: seeds pass and replay; mistakes are found.

use adverb_sim::swarm::one_rma::{Mistake, replay, run_broken, run_seed};

#[test]
fn seeds_pass() {
    let (mut completed, mut faults) = (0, 0);
    for seed in 0..50 {
        let outcome = run_seed(seed);
        assert!(outcome.failures.is_empty(), "seed {seed}: {:#?}", outcome.failures);
        completed += outcome.completed;
        faults += outcome.faults;
    }
    assert!(completed > 1000 && faults > 1000, "{completed} {faults}");
}

#[test]
fn a_seed_replays() {
    for seed in [3, 17] {
        let mut lines = 0;
        let told = replay(seed, &mut |_| lines += 1);
        assert_eq!(told, run_seed(seed));
        assert!(lines > 100);
    }
}

#[test]
fn mistakes_are_found() {
    for mistake in [Mistake::WriteAfterFailure, Mistake::WriteOutside, Mistake::WrongByte] {
        let found = (0..30).filter(|seed| !run_broken(*seed, mistake).failures.is_empty()).count();
        assert!(found >= 5, "{mistake:?} is found in {found} of 30 seeds");
    }
}
