//! `adverb lab`: the published experiments, run again.

use crate::args;
use crate::error::Error;
use crate::progress::Progress;
use crate::trial;
use adverb_lab::definition::Kind;
use adverb_lab::{Experiment, bounds, modules, plot, registry, report, run};
use std::io::Write as _;
use std::path::Path;

/// Lists the experiments, or runs some of them.
pub fn lab(action: &args::Lab) -> Result<(), Error> {
    match action {
        args::Lab::List => list(),
        args::Lab::Run(arguments) => run_all(arguments),
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

fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output)
}

/// A name, or all experiments of a paper: `irn`, `irn/*`.
fn chosen(names: &[String]) -> Result<Vec<Experiment>, Error> {
    let mut out = Vec::new();
    for name in names {
        let folder = format!("{}/", name.trim_end_matches("/*").trim_end_matches('/'));
        let all: Vec<&str> = registry::names().filter(|n| n.starts_with(&folder)).collect();
        let found = if all.is_empty() { vec![name.as_str()] } else { all };
        for name in found {
            out.push(registry::find(name).map_err(Error::Lab)?);
        }
    }
    Ok(out)
}

fn run_all(arguments: &args::LabRun) -> Result<(), Error> {
    let mut failed = Vec::new();
    for experiment in chosen(&arguments.experiments)? {
        let holds = match experiment.kind {
            Kind::Simulation | Kind::Cache => measure(arguments, &experiment)?,
            Kind::Modules => measure_modules(arguments, &experiment)?,
        };
        if !holds {
            failed.push(experiment.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Error::Bounds(failed.join(", "))) }
}

fn measure(arguments: &args::LabRun, experiment: &Experiment) -> Result<bool, Error> {
    let mut bar = Progress::new(arguments.quiet);
    let (scale, seeds) = (arguments.scale.into(), arguments.seeds);
    let mut progress = |p: run::Progress| {
        bar.show(p.done as f64 / p.of as f64, || format!("{}: {} of {} runs", experiment.name, p.done, p.of));
    };
    let outcome = match experiment.kind {
        Kind::Cache => trial::run(experiment, scale, seeds, &mut progress)?,
        _ => {
            let jobs = arguments.jobs.unwrap_or(0) as usize;
            run::run(experiment, scale, seeds, jobs, &mut progress).map_err(Error::Lab)?
        }
    };
    drop(bar);
    let checked = bounds::check(experiment, &outcome);
    print(&report::text(experiment, &outcome, &checked))?;
    if let Some(directory) = &arguments.out {
        let directory = directory.join(&experiment.name);
        write(&directory, "runs.csv", &report::runs_csv(experiment, &outcome))?;
        if let Some(tail) = report::tail_csv(experiment, &outcome) {
            write(&directory, "tail.csv", &tail)?;
        }
        let timeline = report::timeline_csv(experiment, &outcome);
        if let Some(timeline) = timeline.or_else(|| report::served_csv(experiment, &outcome)) {
            write(&directory, "timeline.csv", &timeline)?;
        }
        write(&directory, "plot.svg", &plot::svg(experiment, &outcome).map_err(Error::Lab)?)?;
        print(&format!("runs.csv, plot.svg in {}\n", directory.display()))?;
    }
    print("\n")?;
    Ok(checked.iter().all(|c| c.holds() || !c.bound.gate)
        && (experiment.may_fail || outcome.unfinished().0 == 0))
}

fn measure_modules(arguments: &args::LabRun, experiment: &Experiment) -> Result<bool, Error> {
    let times = modules::times();
    let kept = times.iter().all(|t| t.ns <= modules::BOUND_NS);
    let head = format!("{}: {}\n{}\n\n", experiment.name, experiment.title, experiment.cite());
    print(&(head + &modules::text(&times) + "\n"))?;
    if let Some(directory) = &arguments.out {
        write(&directory.join(&experiment.name), "modules.csv", &modules::csv(&times))?;
    }
    Ok(kept)
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = directory.join(name);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
    written.map_err(|source| Error::File { option: "--out", path, source })
}
