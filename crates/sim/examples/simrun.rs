//! Runs a scenario: `cargo run --release -p adverb-sim --example simrun -- FILE.toml [FLOWS.csv] [PORTS.csv]`.

use adverb_sim::record::peak_rss;
use adverb_sim::{Scenario, Sim};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(file) = args.first() else {
        eprintln!("usage: simrun FILE.toml [FLOWS.csv] [PORTS.csv]");
        return ExitCode::from(2);
    };
    let started = Scenario::load(Path::new(file)).and_then(|plan| Ok((plan.start()?, plan)));
    let (mut sim, plan) = match started {
        Ok(started) => started,
        Err(error) => {
            eprintln!("simrun: {error}");
            return ExitCode::FAILURE;
        }
    };
    let rss_before = peak_rss();
    let shown = std::io::stderr().is_terminal();
    plan.run(&mut sim, &mut |sim| {
        if !shown {
            return;
        }
        eprint!("\r{:?}: {} of {} flows", sim.now(), sim.flows_ended(), sim.flows().len());
    });
    if shown {
        eprintln!();
    }
    report(&sim, rss_before);
    for (path, text) in args[1..].iter().zip([sim.flows_csv(), sim.ports_csv()]) {
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("simrun: {path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn report(sim: &Sim, rss_before: u64) {
    let (s, sum) = (sim.stats(), sim.summary(|_| true));
    println!(
        "flows {} ended, {} failed or unfinished, {} at once",
        sum.flows,
        sum.failed,
        sim.flows_at_once()
    );
    println!(
        "slowdown {:.3} on average; FCT {:.3} us on average, {:.3} us p99, {:.3} us p99.9",
        sum.slowdown_avg,
        sum.fct_avg_ps / 1e6,
        sum.fct_p99_ps as f64 / 1e6,
        sum.fct_p999_ps as f64 / 1e6
    );
    println!(
        "link-hops {}, events {}, drops {}, lost {}, marked {}, pauses {}, retransmitted {}",
        s.link_hops,
        s.events,
        s.drops,
        s.lost,
        s.marked,
        s.pauses,
        sim.retransmissions()
    );
    if let Some(cycle) = sim.deadlock() {
        let names: Vec<String> = cycle.iter().map(|l| sim.link_name(*l)).collect();
        println!("PFC deadlock: {}", names.join(", "));
    }
    println!(
        "virtual time {:?}; trace {:016x}; peak RSS {:.1} MB, {:.1} MB before the run",
        sim.now(),
        sim.trace_hash(),
        peak_rss() as f64 / 1e6,
        rss_before as f64 / 1e6
    );
}
