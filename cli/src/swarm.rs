//! `adverb swarm` and `adverb replay`: random networks, faults and work under an oracle that knows what must
//! come of them, and one of them step by step.

use crate::args;
use crate::error::Error;
use crate::progress::Progress;
use crate::redn_swarm::{REDN, covered, show_programs};
use crate::simulate::{Traced, perfetto_row};
use crate::switch_swarm::{SWITCH, Shown};
use crate::tree_swarm::{NOTED, TREE};
use adverb_os::say;
use adverb_redn::language::coverage::Coverage;
use adverb_sim::sabotage::Sabotage;
use adverb_sim::swarm::one_rma;
use adverb_sim::swarm::programs::System;
use adverb_sim::swarm::{Outcome, replay as replay_seed, run_broken, star};
use adverb_sim::trace::mix;
use adverb_sim::{Sim, sweep};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::process::ExitCode;

/// Lines before a failure that `--around-failure` shows without `--limit`.
const AROUND: usize = 100;
/// Seeds in which a system of programs has to have done all that it can.
const NOTED_BY: u64 = 1000;
/// Seeds of StaR in which all must have befallen its registries.
const REGISTERED_BY: u64 = 200;
/// Seeds whose programs have to have everything in them.
const COVERED_BY: u64 = 1000;

thread_local! {
    /// The seed that this thread runs: what broke an assertion is told with it.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
    /// What else `adverb replay` needs to show it.
    static OPTIONS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What a swarm tries.
#[derive(Clone, Copy)]
enum Tried<'a> {
    /// Queue pairs, on NICs that are broken in this way.
    Queues(Option<Sabotage>),
    /// Queue pairs of NICs that offer StaR, broken in this way.
    Star(Option<Sabotage>),
    /// 1RMA.
    OneRma,
    /// A system of programs, broken in this way.
    App(&'a System, Option<&'a str>),
}

impl<'a> Tried<'a> {
    fn new(words: &'a args::Tried) -> Result<Tried<'a>, Error> {
        let args::Tried { sabotage, one_rma, star, redn, switch, .. } = *words;
        // An option of its own stands for some systems.
        let own = redn.then_some(&REDN).or(switch.then_some(&SWITCH));
        let (app, bug) = (own.or(words.app.as_ref()), words.bug.as_deref());
        if let Some(kind) = sabotage.filter(|kind| kind.is_of_star() && !star) {
            return Err(Error::Options(format!("--sabotage {}: needs --star", kind.name())));
        }
        let Some(app) = app else {
            return match bug {
                Some(bug) => {
                    Err(Error::Options(format!("--bug {bug}: needs --app NAME, --redn or --switch")))
                }
                None if one_rma => Ok(Tried::OneRma),
                None if star => Ok(Tried::Star(sabotage)),
                None => Ok(Tried::Queues(sabotage)),
            };
        };
        match bug.filter(|bug| !app.has_bug(bug)) {
            Some(bug) => {
                let known: Vec<&str> = app.bugs.iter().map(|(name, _)| *name).collect();
                let known = known.join(", ");
                Err(Error::Options(format!("--bug {bug}: {} can be broken by: {known}", app.name)))
            }
            None => Ok(Tried::App(app, bug)),
        }
    }

    fn run(self, seed: u64) -> Outcome {
        match self {
            Tried::Queues(sabotage) => run_broken(seed, sabotage),
            Tried::Star(sabotage) => star::run_broken(seed, sabotage),
            Tried::OneRma => one_rma::run_seed(seed),
            Tried::App(app, bug) => app.run_seed(seed, bug),
        }
    }

    /// What came of it, and the simulation, which can write what was `traced`.
    fn replay(self, seed: u64, traced: bool, show: &mut dyn FnMut(&str)) -> (Outcome, Option<Sim>) {
        match self {
            Tried::Queues(sabotage) => replay_seed(seed, sabotage, traced, show),
            Tried::Star(sabotage) => star::replay(seed, sabotage, traced, show),
            Tried::OneRma => (one_rma::replay(seed, show), None),
            Tried::App(app, bug) => app.replay_traced(seed, bug, traced, show),
        }
    }

    /// What `adverb replay` has to be told beside the seed.
    fn options(self) -> String {
        match self {
            Tried::Queues(None) => String::new(),
            Tried::Queues(Some(kind)) => format!(" --sabotage {}", kind.name()),
            Tried::Star(None) => " --star".to_owned(),
            Tried::Star(Some(kind)) => format!(" --star --sabotage {}", kind.name()),
            Tried::OneRma => " --1rma".to_owned(),
            Tried::App(app, bug) => {
                let bug = bug.map_or(String::new(), |bug| format!(" --bug {bug}"));
                match app.name {
                    name if name == REDN.name || name == SWITCH.name => format!(" --{name}{bug}"),
                    name => format!(" --app {name}{bug}"),
                }
            }
        }
    }

    /// Programs in NICs, which are made by the seed.
    fn is_redn(self) -> bool {
        matches!(self, Tried::App(app, _) if app.name == REDN.name)
    }

    /// Programs behind a switch.
    fn switched(self) -> Option<&'a System> {
        match self {
            Tried::App(app, _) if app.switch.is_some() => Some(app),
            _ => None,
        }
    }

    /// Prints what programs of a system have noted, or what befell StaR's registries; false if so many seeds
    /// should have had more.
    fn has_noted(self, noted: &BTreeMap<&'static str, u64>, seeds: u64) -> io::Result<bool> {
        let (where_, all, by) = match self {
            Tried::App(app, _) if app.name == TREE.name => {
                ("done where there were faults", &NOTED[..], NOTED_BY)
            }
            Tried::App(..) => ("done where there were faults", &[][..], NOTED_BY),
            Tried::Star(_) => ("registries", &star::OF_REGISTRIES[..], REGISTERED_BY),
            _ => return Ok(true),
        };
        let mut out = io::stdout();
        if !noted.is_empty() {
            let each: Vec<String> = noted.iter().map(|(name, count)| format!("{count} {name}")).collect();
            writeln!(out, "{where_}: {}", each.join(", "))?;
        }
        let missing: Vec<&str> = all.iter().copied().filter(|name| !noted.contains_key(name)).collect();
        if !missing.is_empty() && seeds >= by {
            writeln!(out, "in these seeds there were no: {}", missing.join(", "))?;
        }
        Ok(missing.is_empty() || seeds < by)
    }

    /// What is counted as completed, and as dead.
    fn counted(self) -> [&'static str; 2] {
        match self {
            Tried::App(..) => ["calls made", "programs killed"],
            _ => ["requests completed", "connections gave up under faults"],
        }
    }
}

/// What seeds came to.
#[derive(Default)]
struct Sums {
    ended: u64,
    failed: u64,
    completed: u64,
    faults: u64,
    dead: u64,
    changed: [u64; 2],
    noted: BTreeMap<&'static str, u64>,
    /// A sum, so that it does not depend on the order in which the seeds end.
    hash: u64,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.ended += 1;
        self.failed += u64::from(!outcome.failures.is_empty());
        self.completed += outcome.completed;
        self.faults += outcome.faults;
        self.dead += u64::from(outcome.dead);
        self.changed.iter_mut().zip(outcome.changed).for_each(|(sum, one)| *sum += one);
        outcome.noted.iter().for_each(|(name, count)| *self.noted.entry(name).or_default() += count);
        self.hash = self.hash.wrapping_add(mix(mix(outcome.seed) ^ outcome.trace));
    }

    fn tell(&self, tried: Tried<'_>, hash: bool) -> io::Result<()> {
        let mut out = io::stdout();
        let Sums { ended, failed, completed, faults, dead, .. } = self;
        let [counted, ends] = tried.counted();
        writeln!(
            out,
            "{ended} seeds, {failed} failed; {completed} {counted}, {faults} packets lost, damaged, doubled \
             or dropped, {dead} {ends}"
        )?;
        if let Tried::Star(_) = tried {
            let [done, vain] = self.changed;
            writeln!(out, "{done} changes of stack, {vain} attempts at one that came to nothing")?;
        }
        if hash {
            writeln!(out, "hash {:016x}", self.hash)?;
        }
        Ok(())
    }
}

/// Runs the seeds; failure when any of them fails.
pub fn swarm(arguments: &args::Swarm) -> Result<ExitCode, Error> {
    let (first, count) = (arguments.first, arguments.seeds);
    if first.checked_add(count - 1).is_none() {
        let why = format!("--first {first}: {count} seeds count beyond the last one; give a smaller one");
        return Err(Error::Options(why));
    }
    let tried = Tried::new(&arguments.tried)?;
    name_the_seed_of_panics();
    let mut bar = Progress::new(false);
    let mut sums = Sums::default();
    let work = |n: usize| {
        let seed = first + n as u64;
        SEED.set(Some(seed));
        OPTIONS.set(tried.options());
        let outcome = tried.run(seed);
        (outcome, covered())
    };
    let mut written = Ok(());
    let (mut coverage, mut shown) = (Coverage::default(), Shown::default());
    let jobs = arguments.jobs.unwrap_or(0) as usize;
    sweep::run(count as usize, jobs, work, |_, (outcome, covered): &(Outcome, Coverage)| {
        coverage.add(covered);
        shown.add(outcome);
        sums.add(outcome);
        if !outcome.failures.is_empty() {
            drop(std::mem::replace(&mut bar, Progress::new(false)));
            written = tell(outcome, &tried.options());
        }
        let Sums { ended, failed, .. } = sums;
        bar.show(ended as f64 / count as f64, || format!("{ended} of {count} seeds, {failed} failed"));
        written.is_ok() && failed < arguments.failures
    });
    drop(bar);
    written.map_err(Error::Output)?;
    sums.tell(tried, arguments.hash).map_err(Error::Output)?;
    let Sums { ended, failed, noted, .. } = sums;
    let complete = tried.has_noted(&noted, ended).and_then(|noted| {
        let rest = match tried.switched() {
            _ if tried.is_redn() => cover(&coverage, ended),
            Some(system) => show_switches(&shown, system),
            None => Ok(true),
        };
        Ok(rest? && noted)
    });
    let complete = complete.map_err(Error::Output)?;
    Ok(if failed == 0 && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints what programs had in them; false if so many seeds should have had more.
fn cover(coverage: &Coverage, seeds: u64) -> io::Result<bool> {
    let mut out = io::stdout();
    writeln!(out, "{coverage}")?;
    let missing = coverage.missing();
    if !missing.is_empty() {
        writeln!(out, "no program of these seeds had: {}", missing.join("; "))?;
    }
    Ok(missing.is_empty() || seeds < COVERED_BY)
}

/// Prints what switches did; false if so many seeds should have had more.
fn show_switches(shown: &Shown, system: &System) -> io::Result<bool> {
    let mut out = io::stdout();
    writeln!(out, "{}", shown.of(system))?;
    let missing = shown.missing(system);
    if !missing.is_empty() {
        writeln!(out, "no switch of these seeds had: {}", missing.join(", "))?;
    }
    Ok(missing.is_empty())
}

fn tell(outcome: &Outcome, option: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "seed {} failed; see `adverb replay {0}{option} --around-failure`", outcome.seed)?;
    let lines = outcome.failures.iter().flat_map(|failure| failure.lines());
    lines.into_iter().try_for_each(|line| writeln!(out, "  {line}"))
}

/// Shows a seed step by step; failure when it fails.
pub fn replay(arguments: &args::Replay) -> Result<ExitCode, Error> {
    let tried = Tried::new(&arguments.tried)?;
    if let (Tried::OneRma, Some(_)) = (tried, &arguments.perfetto) {
        return Err(Error::Options(
            "--perfetto: is of queue pairs' requests, and --1rma has none".to_owned(),
        ));
    }
    // What cannot be written is refused before the seed runs.
    let trace = arguments.perfetto.as_deref().map(Traced::create).transpose()?;
    name_the_seed_of_panics();
    SEED.set(Some(arguments.seed));
    let mut out = io::BufWriter::new(io::stdout().lock());
    let limit = arguments.limit.unwrap_or(if arguments.around_failure { AROUND } else { usize::MAX });
    let (mut shown, mut left_out) = (0, 0u64);
    let mut last: VecDeque<String> = VecDeque::new();
    let mut written = Ok(());
    OPTIONS.set(tried.options());
    if tried.is_redn() && !arguments.around_failure {
        show_programs();
    }
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
    let (outcome, sim) = tried.replay(arguments.seed, trace.is_some(), &mut show);
    written.map_err(Error::Output)?;
    if let (Some(trace), Some(sim)) = (trace, &sim) {
        let mut line = String::new();
        perfetto_row(&mut line, &trace.write("", |out| sim.write_perfetto(out))?);
        out.write_all(line.as_bytes()).map_err(Error::Output)?;
    }
    let counted = tried.counted()[0];
    conclude(&mut out, arguments, (&outcome, counted), &last, left_out).map_err(Error::Output)?;
    Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn conclude(
    out: &mut impl Write,
    arguments: &args::Replay,
    (outcome, counted): (&Outcome, &str),
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
        writeln!(out, "seed {seed}: nothing wrong; {completed} {counted}, trace {trace:016x}")?;
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
            let options = OPTIONS.take();
            say!("seed {seed} broke an assertion; see `adverb replay {seed}{options}`");
        }
        usual(info);
    }));
}
