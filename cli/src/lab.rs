//! `adverb lab`: the published experiments, run again, and shown to be able to fail.

use crate::args;
use crate::error::Error;
use crate::output::print;
use crate::progress::Progress;
use adverb_lab::bounds::{self, Checked, Verdict};
use adverb_lab::definition::Kind;
use adverb_lab::{Effort, Experiment, Outcome, csv, modules, mutation, own, plot, registry, report, run};
use std::path::Path;
use std::time::Instant;

/// Lists the experiments, runs some of them, or tries their mutations.
pub fn lab(action: &args::Lab) -> Result<(), Error> {
    match action {
        args::Lab::List => list(),
        args::Lab::New { folder } => new(folder),
        args::Lab::Run(arguments) => run_all(arguments, false),
        args::Lab::Mutate(arguments) => run_all(arguments, true),
    }
}

fn list() -> Result<(), Error> {
    let mut text = String::new();
    let mut paper = String::new();
    for name in registry::names() {
        let experiment = registry::find(name).map_err(Error::Lab)?;
        let cite = experiment.paper.as_ref().map_or(String::new(), |p| p.cite.clone());
        if cite != paper {
            text += &format!("{cite}\n");
            paper = cite;
        }
        text += &format!("  {name:<18} {} ({})\n", experiment.title, experiment.figure);
    }
    print(&text)
}

fn new(folder: &Path) -> Result<(), Error> {
    let files = own::create(folder).map_err(Error::Lab)?;
    let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let folder = folder.display();
    print(&format!("{}\nrun it: adverb lab run ./{folder}\n", files.join("\n")))
}

/// Whether a name is a path: a file, or one that says so by how it begins, or a folder that no experiment is
/// called by.
fn is_path(name: &str) -> bool {
    let said = name.ends_with(".toml") || name.starts_with(['.', '/']);
    said || (Path::new(name).is_dir() && !registry::names().any(|own| own.starts_with(name)))
}

/// A name, or all experiments of a paper: `irn`, `irn/*`; or those of a path.
fn chosen(names: &[String]) -> Result<Vec<Experiment>, Error> {
    let mut out = Vec::new();
    for name in names {
        if is_path(name) {
            out.extend(own::load(Path::new(name)).map_err(Error::Lab)?);
            continue;
        }
        let folder = format!("{}/", name.trim_end_matches("/*").trim_end_matches('/'));
        let all: Vec<&str> = registry::names().filter(|n| n.starts_with(&folder)).collect();
        let found = if all.is_empty() { vec![name.as_str()] } else { all };
        for name in found {
            out.push(registry::find(name).map_err(Error::Lab)?);
        }
    }
    Ok(out)
}

/// How an experiment ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    /// A gate that claims to hold does not, or flows did not end.
    Failed,
    /// A mutation was not caught.
    Survived,
}

fn run_all(arguments: &args::LabRun, mutate: bool) -> Result<(), Error> {
    let command = std::env::current_exe().map_err(|e| {
        Error::Lab(adverb_lab::Error(format!("this program's own file cannot be found: {e}")))
    })?;
    let effort = Effort {
        scale: arguments.scale.into(),
        seeds: arguments.seeds,
        first_seed: arguments.first_seed,
        jobs: arguments.jobs.unwrap_or(0) as usize,
        command,
    };
    let (mut failed, mut survived) = (Vec::new(), Vec::new());
    if mutate && !arguments.set.is_empty() {
        return Err(Error::Options("--set takes the gates away, which mutations are to break".to_owned()));
    }
    let (begun, mut experiments) = (clock(), chosen(&arguments.experiments)?);
    for experiment in &mut experiments {
        own::change(experiment, &arguments.set).map_err(Error::Lab)?;
    }
    let count = experiments.len();
    for experiment in experiments {
        let begun = clock();
        let end = match experiment.kind {
            Kind::Modules => measure_modules(arguments, &experiment)?,
            Kind::Simulation | Kind::Cache | Kind::Chains => {
                measure(arguments, &experiment, &effort, mutate)?
            }
        };
        if !arguments.quiet {
            print(&format!("{} took {}\n\n", experiment.name, seconds(begun)))?;
        }
        match end {
            End::Well => {}
            End::Failed => failed.push(experiment.name),
            End::Survived => survived.push(experiment.name),
        }
    }
    if count > 1 && !arguments.quiet {
        print(&format!("{count} experiments took {}\n", seconds(begun)))?;
    }
    match (failed.is_empty(), survived.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => Err(Error::Bounds(failed.join(", "))),
        (true, false) => Err(Error::Survived(survived.join(", "))),
    }
}

#[expect(clippy::disallowed_methods, reason = "the command shows real time to people")]
fn clock() -> Instant {
    Instant::now()
}

/// Real time since then.
fn seconds(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}

fn measure(
    arguments: &args::LabRun,
    experiment: &Experiment,
    effort: &Effort,
    mutate: bool,
) -> Result<End, Error> {
    let name = &experiment.name;
    let mut bar = Progress::new(arguments.quiet);
    let mut progress = |p: run::Progress| {
        bar.show(p.done as f64 / p.of as f64, || format!("{name}: {} of {} runs", p.done, p.of));
    };
    let outcome = run::run(experiment, effort, &mut progress).map_err(Error::Lab)?;
    drop(bar);
    let checked = bounds::check(experiment, &outcome);
    print(&report::text(experiment, &outcome, &checked))?;
    if let Some(directory) = &arguments.out {
        let directory = directory.join(name);
        write_all(&directory, experiment, &outcome)?;
        print(&format!("runs.csv, plot.svg in {}\n", directory.display()))?;
    }
    let stranded = !experiment.may_fail && outcome.unfinished().0 > 0;
    print(&format!("{name}: {}\n\n", report::summary(&checked, stranded)))?;
    let failed = stranded || checked.iter().any(|c: &Checked<'_>| matches!(c.verdict(), Verdict::Fails(_)));
    if !mutate {
        return Ok(if failed { End::Failed } else { End::Well });
    }
    let mut bar = Progress::new(arguments.quiet);
    let mut progress = |p: run::Progress| {
        bar.show(p.done as f64 / p.of as f64, || format!("{name}, mutated: {} of {} runs", p.done, p.of));
    };
    let trial = mutation::run(experiment, &outcome, effort, &mut progress).map_err(Error::Lab)?;
    drop(bar);
    print(&(mutation::text(experiment, &outcome, &trial) + "\n"))?;
    Ok(match (failed, trial.passed()) {
        (true, _) => End::Failed,
        (false, true) => End::Well,
        (false, false) => End::Survived,
    })
}

fn write_all(directory: &Path, experiment: &Experiment, outcome: &Outcome) -> Result<(), Error> {
    write(directory, "runs.csv", &csv::runs(experiment, outcome))?;
    if let Some(tail) = csv::tail(experiment, outcome) {
        write(directory, "tail.csv", &tail)?;
    }
    let timeline = csv::timeline(experiment, outcome);
    if let Some(timeline) = timeline.or_else(|| csv::served(experiment, outcome)) {
        write(directory, "timeline.csv", &timeline)?;
    }
    write(directory, "plot.svg", &plot::svg(experiment, outcome).map_err(Error::Lab)?)
}

/// Times of one run on whatever machine this is: they report, and hold or fail nothing.
fn measure_modules(arguments: &args::LabRun, experiment: &Experiment) -> Result<End, Error> {
    let times = modules::times();
    let head = format!("{}: {}\n{}\n\n", experiment.name, experiment.title, experiment.cite());
    print(&(head + &modules::text(&times) + "\n"))?;
    if let Some(directory) = &arguments.out {
        write(&directory.join(&experiment.name), "modules.csv", &modules::csv(&times))?;
    }
    Ok(End::Well)
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = directory.join(name);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
    written.map_err(|source| Error::File { option: "--out", path, source })
}
