//! `adverb swarm` and `adverb replay`: random networks, faults and work under an oracle that knows what must come
//! of them, and one of them step by step.

use crate::args;
use crate::error::Error;
use crate::progress::Progress;
use adverb_sim::swarm::one_rma;
use adverb_sim::swarm::{Outcome, replay as replay_seed, run_broken};
use adverb_sim::sweep;
use adverb_sim::trace::mix;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::ExitCode;

/// Lines before a failure that `--around-failure` shows without `--limit`.
const AROUND: usize = 100;

thread_local! {
    /// The seed that this thread runs: what broke an assertion is told with it.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    /// What else `adverb replay` needs to show it.
    static OPTION: Cell<&'static str> = const { Cell::new("") };
}

/// Runs the seeds; failure when any of them fails.
pub fn swarm(arguments: &args::Swarm) -> Result<ExitCode, Error> {
    let (first, count) = (arguments.first, arguments.seeds);
    if first.checked_add(count - 1).is_none() {
        let why = format!("--first {first}: {count} seeds count beyond the last one; give a smaller one");
        return Err(Error::Options(why));
    }
    name_the_seed_of_panics();
    let mut bar = Progress::new(false);
    let (mut failed, mut ended) = (0u64, 0u64);
    let (mut completed, mut faults, mut dead) = (0, 0, 0);
    // A sum, so that it does not depend on the order in which the seeds end.
    let mut hash = 0u64;
    let work = |n: usize| {
        let seed = first + n as u64;
        SEED.set(Some(seed));
        OPTION.set(option(arguments.one_rma));
        if arguments.one_rma { one_rma::run_seed(seed) } else { run_broken(seed, arguments.sabotage) }
    };
    let mut written = Ok(());
    sweep::run(count as usize, arguments.jobs.unwrap_or(0) as usize, work, |_, outcome: &Outcome| {
        ended += 1;
        completed += outcome.completed;
        faults += outcome.faults;
        dead += u64::from(outcome.dead);
        hash = hash.wrapping_add(mix(mix(outcome.seed) ^ outcome.trace));
        if !outcome.failures.is_empty() {
            failed += 1;
            drop(std::mem::replace(&mut bar, Progress::new(false)));
            written = tell(outcome, option(arguments.one_rma));
        }
        bar.show(ended as f64 / count as f64, || format!("{ended} of {count} seeds, {failed} failed"));
        written.is_ok() && failed < arguments.failures
    });
    drop(bar);
    written.map_err(Error::Output)?;
    let mut out = io::stdout();
    writeln!(
        out,
        "{ended} seeds, {failed} failed; {completed} requests completed, {faults} packets lost, damaged, doubled or \
         dropped, {dead} connections gave up under faults"
    )
    .map_err(Error::Output)?;
    if arguments.hash {
        writeln!(out, "hash {hash:016x}").map_err(Error::Output)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What `adverb replay` has to be told beside the seed.
fn option(one_rma: bool) -> &'static str {
    if one_rma { " --1rma" } else { "" }
}

fn tell(outcome: &Outcome, option: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "seed {} failed; see `adverb replay {0}{option} --around-failure`", outcome.seed)?;
    outcome.failures.iter().try_for_each(|failure| writeln!(out, "  {failure}"))
}

/// Shows a seed step by step; failure when it fails.
pub fn replay(arguments: &args::Replay) -> Result<ExitCode, Error> {
    name_the_seed_of_panics();
    SEED.set(Some(arguments.seed));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let limit = arguments.limit.unwrap_or(if arguments.around_failure { AROUND } else { usize::MAX });
    let (mut shown, mut left_out) = (0, 0u64);
    let mut last: VecDeque<String> = VecDeque::new();
    let mut written = Ok(());
    OPTION.set(option(arguments.one_rma));
    let mut show = |line: &str| {
        if arguments.around_failure {
            if last.len() == limit {
                last.pop_front();
                left_out += 1;
            }
            last.push_back(line.to_owned());
        } else if shown < limit && written.is_ok() {
            written = writeln!(out, "{line}");
            shown += 1;
        } else {
            left_out += 1;
        }
    };
    let outcome = if arguments.one_rma {
        one_rma::replay(arguments.seed, &mut show)
    } else {
        replay_seed(arguments.seed, arguments.sabotage, &mut show)
    };
    written.map_err(Error::Output)?;
    conclude(&mut out, arguments, &outcome, &last, left_out).map_err(Error::Output)?;
    Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn conclude(
    out: &mut impl Write,
    arguments: &args::Replay,
    outcome: &Outcome,
    last: &VecDeque<String>,
    left_out: u64,
) -> io::Result<()> {
    if arguments.around_failure && outcome.failures.is_empty() {
        writeln!(out, "no failure to show; leave out --around-failure to see all that happened")?;
    } else {
        if arguments.around_failure && left_out > 0 {
            writeln!(out, "({left_out} lines before)")?;
        }
        last.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        if !arguments.around_failure && left_out > 0 {
            writeln!(out, "({left_out} more lines)")?;
        }
    }
    let (seed, trace) = (outcome.seed, outcome.trace);
    if outcome.failures.is_empty() {
        let completed = outcome.completed;
        writeln!(out, "seed {seed}: nothing wrong; {completed} requests completed, trace {trace:016x}")?;
    } else {
        writeln!(out, "seed {seed} failed, trace {trace:016x}:")?;
        outcome.failures.iter().try_for_each(|failure| writeln!(out, "  {failure}"))?;
    }
    out.flush()
}

/// A broken assertion of the NIC ends the process: its message must say which seed it was.
fn name_the_seed_of_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(seed) = SEED.get() {
            let option = OPTION.get();
            eprintln!("seed {seed} broke an assertion; see `adverb replay {seed}{option}`");
        }
        usual(info);
    }));
}
