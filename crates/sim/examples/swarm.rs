//! Runs swarm seeds: `cargo run --release -p adverb-sim --example swarm -- FIRST COUNT`. Prints the seed
//! of every failure; with COUNT 1, every packet's way.

use adverb_sim::swarm::{replay, run_seed};

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (first, count) = (args.next().unwrap_or(0), args.next().unwrap_or(1000));
    let (mut failed, mut completed, mut faults, mut dead) = (0, 0, 0, 0u64);
    for seed in first..first + count {
        let outcome = if count == 1 { replay(seed, &mut |line| println!("{line}")) } else { run_seed(seed) };
        completed += outcome.completed;
        faults += outcome.faults;
        dead += u64::from(outcome.dead);
        if !outcome.failures.is_empty() {
            failed += 1;
            println!("seed {seed}:");
            outcome.failures.iter().for_each(|f| println!("  {f}"));
        }
    }
    println!(
        "{count} seeds, {failed} failed; {completed} requests completed, {faults} faults, {dead} sides dead"
    );
}
