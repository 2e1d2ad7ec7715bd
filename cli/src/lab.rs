//! `adverb lab`: the published experiments, run again, shown to be able to fail, and judged by other seeds.

use crate::args;
use crate::error::Error;
use crate::output::print;
use crate::progress::Progress;
use adverb_lab::bounds::{self, Checked};
use adverb_lab::compare::{self, Kept};
use adverb_lab::definition::Kind;
use adverb_lab::page::{self, How, Section};
use adverb_lab::store::{self, Store, Tally};
use adverb_lab::verdicts::Counts;
use adverb_lab::{Effort, Experiment, Outcome, csv, modules, mutation, own, plot, registry, report, run};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

/// Lists the experiments, runs some of them, tries their mutations, or makes a page of them.
pub fn lab(action: &args::Lab) -> Result<(), Error> {
    match action {
        args::Lab::List => list(),
        args::Lab::New { folder } => new(folder),
        args::Lab::Run(arguments) => Session::of(arguments)?.run_all(&arguments.experiments, false),
        args::Lab::Mutate(arguments) => Session::of(arguments)?.run_all(&arguments.experiments, true),
        args::Lab::Report(arguments) => write_page(arguments),
        args::Lab::Compare { folders } => compare_all(folders),
    }
}

fn list() -> Result<(), Error> {
    let mut text = String::new();
    let mut paper = String::new();
    let mut counts = Counts::default();
    for name in registry::names() {
        let experiment = registry::find(name).map_err(Error::Lab)?;
        let cite = experiment.paper.as_ref().map_or(String::new(), |p| p.cite.clone());
        if cite != paper {
            text += &declared(&mut counts);
            text += &format!("{cite}\n");
            paper = cite;
        }
        counts += Counts::declared(&experiment);
        text += &format!("  {name:<18} {} ({})\n", experiment.title, experiment.figure);
    }
    text += &declared(&mut counts);
    print(&text)
}

/// What the bounds of a paper's experiments claim, and none of them after that.
fn declared(counts: &mut Counts) -> String {
    match core::mem::take(counts) {
        none if none == Counts::default() => String::new(),
        Counts { faithful, direction, fitted, reports, differs, .. } => format!(
            "  bounds: {faithful} faithful, {direction} direction, {fitted} fitted, {reports} report, \
             {differs} differ\n"
        ),
    }
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

/// A name, or all experiments of a paper: `irn`, `irn/*`; or those of a path. Each with what names it on a
/// command line.
fn chosen(names: &[String]) -> Result<Vec<(Experiment, String)>, Error> {
    let mut out = Vec::new();
    for name in names {
        if is_path(name) {
            let own = own::load(Path::new(name)).map_err(Error::Lab)?;
            out.extend(own.into_iter().map(|experiment| (experiment, name.clone())));
            continue;
        }
        let folder = format!("{}/", name.trim_end_matches("/*").trim_end_matches('/'));
        let all: Vec<&str> = registry::names().filter(|n| n.starts_with(&folder)).collect();
        let found = if all.is_empty() { vec![name.as_str()] } else { all };
        for name in found {
            out.push((registry::find(name).map_err(Error::Lab)?, name.to_owned()));
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

/// What experiments are run with, one after another, and what there is of them so far.
struct Session<'a> {
    how: &'a args::LabHow,
    out: Option<&'a Path>,
    effort: Effort,
    /// What tells this build's runs from others', where runs are kept.
    program: u64,
    /// Of a page, one for each experiment, if there is to be one.
    sections: Option<Vec<Section>>,
    /// What became of all mutations.
    mutated: Mutated,
}

/// Mutations of several experiments.
#[derive(Clone, Copy, Default)]
struct Mutated {
    tried: usize,
    caught: usize,
    /// Gates that claim to hold, and do.
    gates: usize,
    /// Of those, how many no mutation breaks.
    untouched: usize,
}

impl<'a> Session<'a> {
    fn new(how: &'a args::LabHow, out: Option<&'a Path>) -> Result<Session<'a>, Error> {
        let command = std::env::current_exe().map_err(|e| {
            Error::Lab(adverb_lab::Error(format!("this program's own file cannot be found: {e}")))
        })?;
        let program = match out {
            Some(_) => store::program(&command).map_err(Error::Lab)?,
            None => 0,
        };
        let effort = Effort {
            scale: how.scale.into(),
            seeds: how.seeds,
            first_seed: how.first_seed,
            jobs: how.jobs.unwrap_or(0) as usize,
            command,
            store: None,
        };
        Ok(Session { how, out, effort, program, sections: None, mutated: Mutated::default() })
    }

    fn of(arguments: &'a args::LabRun) -> Result<Session<'a>, Error> {
        Session::new(&arguments.how, arguments.out.as_deref())
    }

    fn run_all(&mut self, names: &[String], mutate: bool) -> Result<(), Error> {
        let (mut failed, mut survived) = (Vec::new(), Vec::new());
        if mutate && !self.how.set.is_empty() {
            return Err(Error::Options(
                "--set takes the gates away, which mutations are to break".to_owned(),
            ));
        }
        let (begun, mut experiments) = (clock(), chosen(names)?);
        for (experiment, _) in &mut experiments {
            own::change(experiment, &self.how.set).map_err(Error::Lab)?;
            own::lengthen(experiment, self.how.longer.unwrap_or(1));
        }
        let (count, mut counts) = (experiments.len(), Counts::default());
        for (experiment, named) in experiments {
            let begun = clock();
            let (end, of_this) = match experiment.kind {
                Kind::Modules => (self.measure_modules(&experiment, &named)?, Counts::declared(&experiment)),
                Kind::Simulation | Kind::Cache | Kind::Chains | Kind::Rack | Kind::Budget => {
                    self.measure(&experiment, &named, mutate)?
                }
            };
            counts += of_this;
            if !self.how.quiet {
                print(&format!("{} took {}\n\n", experiment.name, seconds(begun)))?;
            }
            match end {
                End::Well => {}
                End::Failed => failed.push(experiment.name),
                End::Survived => survived.push(experiment.name),
            }
        }
        if count > 1 {
            print(&format!("{count} experiments: {counts}\n"))?;
        }
        if count > 1 && mutate {
            let Mutated { tried, caught, gates, untouched } = self.mutated;
            print(&format!(
                "{tried} mutations, {caught} caught; {gates} gates, {untouched} broken by none\n"
            ))?;
        }
        if count > 1 && !self.how.quiet {
            print(&format!("{count} experiments took {}\n", seconds(begun)))?;
        }
        match (failed.is_empty(), survived.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::Bounds(failed.join(", "))),
            (true, false) => Err(Error::Survived(survived.join(", "))),
        }
    }

    /// The runs of an experiment that have ended are kept in its folder, if it has one.
    fn open_store(&mut self, experiment: &Experiment) -> Result<(), Error> {
        self.effort.store = match self.out.filter(|_| experiment.kind != Kind::Cache) {
            Some(out) => {
                let store = Store::open(&out.join(&experiment.name), self.program, self.how.resume);
                Some(Rc::new(RefCell::new(store.map_err(Error::Lab)?)))
            }
            None => None,
        };
        Ok(())
    }

    fn measure(
        &mut self,
        experiment: &Experiment,
        named: &str,
        mutate: bool,
    ) -> Result<(End, Counts), Error> {
        let name = &experiment.name;
        self.open_store(experiment)?;
        let mut bar = Progress::new(self.how.quiet);
        let mut progress = |p: run::Progress| {
            bar.show(p.done as f64 / p.of as f64, || format!("{name}: {} of {} runs", p.done, p.of));
        };
        let outcome = run::run(experiment, &self.effort, &mut progress).map_err(Error::Lab)?;
        drop(bar);
        let checked = bounds::check(experiment, &outcome);
        print(&report::text(experiment, &outcome, &checked))?;
        if let Some(directory) = self.out {
            let directory = directory.join(name);
            let files = write_all(&directory, experiment, &outcome)?;
            print(&format!("runs.csv, plot.svg in {}\n", directory.display()))?;
            self.say_resumed()?;
            self.add_section(experiment, &outcome, &checked, How { command: self.command(named), files })?;
        }
        let stranded = !experiment.may_fail && outcome.unfinished().0 > 0;
        print(&format!("{name}: {}\n\n", report::summary(&checked, stranded)))?;
        let counts = Counts::of(&checked);
        let failed = stranded || counts.fails > 0;
        if !mutate {
            return Ok((if failed { End::Failed } else { End::Well }, counts));
        }
        let mut bar = Progress::new(self.how.quiet);
        let mut progress = |p: run::Progress| {
            bar.show(p.done as f64 / p.of as f64, || format!("{name}, mutated: {} of {} runs", p.done, p.of));
        };
        let trial = mutation::run(experiment, &outcome, &self.effort, &mut progress).map_err(Error::Lab)?;
        drop(bar);
        print(&(mutation::text(experiment, &outcome, &trial) + "\n"))?;
        if !trial.claims.is_empty() {
            let of = &mut self.mutated;
            of.tried += trial.tried.len();
            of.caught += trial.tried.iter().filter(|tried| tried.survived.is_none()).count();
            (of.gates, of.untouched) =
                (of.gates + trial.claims.len(), of.untouched + trial.untouched().count());
        }
        let end = match (failed, trial.passed()) {
            (true, _) => End::Failed,
            (false, true) => End::Well,
            (false, false) => End::Survived,
        };
        Ok((end, counts))
    }

    /// How many runs were there before, where that was asked for.
    fn say_resumed(&self) -> Result<(), Error> {
        let Some(store) = self.effort.store.as_ref().filter(|_| self.how.resume) else { return Ok(()) };
        let Tally { taken, run, refused } = store.borrow().tally;
        let refused = match refused {
            0 => String::new(),
            n => format!("; {n} not taken, of another build or not whole"),
        };
        print(&format!("resumed: {taken} runs were there, {run} were run{refused}\n"))
    }

    fn add_section(
        &mut self,
        experiment: &Experiment,
        outcome: &Outcome,
        checked: &[Checked<'_>],
        how: How,
    ) -> Result<(), Error> {
        if let Some(sections) = &mut self.sections {
            sections.push(page::section(experiment, outcome, checked, &how).map_err(Error::Lab)?);
        }
        Ok(())
    }

    /// What is typed to run it again.
    fn command(&self, named: &str) -> String {
        let how = self.how;
        let mut words = vec!["adverb".to_owned(), "lab".to_owned(), "run".to_owned(), quoted(named)];
        if let args::Scale::Paper = how.scale {
            words.push("--scale paper".to_owned());
        }
        words.extend(how.seeds.map(|seeds| format!("--seeds {seeds}")));
        if how.first_seed != 1 {
            words.push(format!("--first-seed {}", how.first_seed));
        }
        words.extend(how.longer.map(|times| format!("--longer {times}")));
        words.extend(how.set.iter().map(|set| format!("--set {}", quoted(&set.to_string()))));
        words.join(" ")
    }

    /// Times of one run on whatever machine this is: they report, and hold or fail nothing.
    fn measure_modules(&mut self, experiment: &Experiment, named: &str) -> Result<End, Error> {
        let times = modules::times();
        let head = format!("{}: {}\n{}\n\n", experiment.name, experiment.title, experiment.cite());
        let text = modules::text(&times);
        print(&format!("{head}{text}\n"))?;
        if let Some(directory) = self.out {
            write(&directory.join(&experiment.name), "modules.csv", &modules::csv(&times))?;
            let how = How { command: self.command(named), files: vec!["modules.csv".to_owned()] };
            if let Some(sections) = &mut self.sections {
                sections.push(page::text_section(experiment, &text, &how));
            }
        }
        Ok(End::Well)
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:%+".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Judges what several folders have of the published experiments, and says which verdicts are not the same.
fn compare_all(folders: &[PathBuf]) -> Result<(), Error> {
    let failed =
        |path: &Path, why: String| Error::Lab(adverb_lab::Error(format!("{}: {why}", path.display())));
    let (mut count, mut judged, mut changed, mut fail) = (0, 0, 0, 0);
    let (mut bad, mut found) = (Vec::new(), vec![false; folders.len()]);
    for name in registry::names() {
        let experiment = registry::find(name).map_err(Error::Lab)?;
        let mut kept = Vec::new();
        for (at, folder) in folders.iter().enumerate() {
            let path = folder.join(name).join("runs.csv");
            if !path.is_file() {
                continue;
            }
            found[at] = true;
            if compare::is_comparable(&experiment) {
                let text = std::fs::read_to_string(&path).map_err(|e| failed(&path, e.to_string()))?;
                let outcome = compare::read(&experiment, &text).map_err(|why| failed(&path, why))?;
                kept.push(Kept { name: folder.display().to_string(), outcome });
            }
        }
        if kept.is_empty() {
            continue;
        }
        if kept.len() < folders.len() {
            print(&format!("{name}: not in all folders, so it is not compared\n"))?;
            bad.push(name);
            continue;
        }
        let (text, of) = compare::compare(&experiment, &kept).map_err(Error::Lab)?;
        print(&text)?;
        (count, judged) = (count + 1, judged + of.same + of.changed);
        (changed, fail) = (changed + of.changed, fail + of.failed);
        if of.changed + of.failed > 0 {
            bad.push(name);
        }
    }
    if let Some(at) = found.iter().position(|found| !found) {
        return Err(failed(&folders[at], "it has no runs.csv of a published experiment".to_owned()));
    }
    print(&format!(
        "{count} experiments in {} folders, {judged} verdicts: {} the same, {changed} change; {fail} fail in \
         all\n",
        folders.len(),
        judged - changed
    ))?;
    match bad.is_empty() {
        true => Ok(()),
        false => Err(Error::Verdicts(format!(
            "{}: verdicts are not the same, fail, or are missing",
            bad.join(", ")
        ))),
    }
}

/// Runs experiments and writes the page, whatever their bounds say; the exit status is that of a run.
fn write_page(arguments: &args::LabReport) -> Result<(), Error> {
    let all = || registry::names().map(str::to_owned).collect();
    let names = if arguments.experiments.is_empty() { all() } else { arguments.experiments.clone() };
    let mut session = Session::new(&arguments.how, Some(&arguments.out))?;
    session.sections = Some(Vec::new());
    let ended = session.run_all(&names, false);
    if let Err(error) = &ended
        && !matches!(error, Error::Bounds(_))
    {
        return ended;
    }
    let scale = match arguments.how.scale {
        args::Scale::Quick => "in short (--scale quick)",
        args::Scale::Paper => "as the figures need it (--scale paper)",
    };
    let about = format!("Published experiments, run again by adverb {}, {scale}.", env!("CARGO_PKG_VERSION"));
    write(
        &arguments.out,
        "index.html",
        &page::page(session.sections.as_deref().unwrap_or_default(), &about),
    )?;
    print(&format!("the page: {}\n", arguments.out.join("index.html").display()))?;
    ended
}

#[expect(clippy::disallowed_methods, reason = "the command shows real time to people")]
fn clock() -> Instant {
    Instant::now()
}

/// Real time since then.
fn seconds(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f64())
}

/// Writes an experiment's files; their names.
fn write_all(directory: &Path, experiment: &Experiment, outcome: &Outcome) -> Result<Vec<String>, Error> {
    let timeline = csv::timeline(experiment, outcome).or_else(|| csv::served(experiment, outcome));
    let files = [
        ("runs.csv", Some(csv::runs(experiment, outcome))),
        ("tail.csv", csv::tail(experiment, outcome)),
        ("timeline.csv", timeline),
        ("plot.svg", Some(plot::svg(experiment, outcome).map_err(Error::Lab)?)),
    ];
    let mut names = Vec::new();
    for (name, text) in files {
        if let Some(text) = text {
            write(directory, name, &text)?;
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Error> {
    let path = directory.join(name);
    let written = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text));
    written.map_err(|source| Error::File { option: "--out", path, source })
}
