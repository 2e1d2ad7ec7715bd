//! Runs every point of an experiment for every seed, side by side.

use crate::budget;
use crate::cache::trial;
use crate::chains;
use crate::definition::{Kind, Mutation};
use crate::measure::{Measured, measured, operations};
use crate::points::{Asked, asked, plan, scenario};
use crate::rack;
use crate::store::Store;
use crate::{Error, Experiment, Scale};
use adverb_sim::Scenario;
use adverb_sim::statistics::Estimate;
use adverb_sim::sweep;
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

/// How far a run of an experiment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Simulations that have ended.
    pub done: usize,
    /// Of so many.
    pub of: usize,
}

/// How much of an experiment is run, and with what.
#[derive(Clone, Debug)]
pub struct Effort {
    /// How long the runs are.
    pub scale: Scale,
    /// How many seeds; the scale's own number if none is given.
    pub seeds: Option<u32>,
    /// The first of them: 1 for the published runs.
    pub first_seed: u64,
    /// How many simulations at once; 0 for as many as there are processors. What comes out does not depend on
    /// it.
    pub jobs: usize,
    /// The program `adverb`, for the replicas of the real cache.
    pub command: PathBuf,
    /// Where runs are kept that have ended, and taken from; those of the real cache are not.
    pub store: Option<Rc<RefCell<Store>>>,
}

/// Seeds, one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// So many.
    pub count: u32,
}

impl Seeds {
    /// All of them.
    pub fn all(self) -> impl Iterator<Item = u64> {
        (self.first..).take(self.count as usize)
    }

    /// The first of them, so many at most.
    pub(crate) fn at_most(self, count: u32) -> Seeds {
        Seeds { count: self.count.min(count), ..self }
    }
}

/// Which part of the interval that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// What begins in its first half.
    First,
    /// What begins in its second half.
    Second,
}

/// What came out of an experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seeds.
    pub seeds: Seeds,
    /// Points along the x axis; one without a sweep.
    pub places: usize,
    /// By series, place and seed.
    runs: Vec<Measured>,
}

impl Outcome {
    /// Of runs by series, place and seed, as they come.
    pub fn new(seeds: Seeds, places: usize, runs: Vec<Measured>) -> Outcome {
        Outcome { seeds, places, runs }
    }

    fn range(&self, series: usize, at: usize) -> core::ops::Range<usize> {
        let from = (series * self.places + at) * self.seeds.count as usize;
        from..from + self.seeds.count as usize
    }

    /// The runs of a series at a place, seed by seed.
    pub fn runs(&self, series: usize, at: usize) -> &[Measured] {
        &self.runs[self.range(series, at)]
    }

    /// Puts other runs in their place.
    pub fn replace(&mut self, series: usize, at: usize, runs: &[Measured]) {
        let range = self.range(series, at);
        self.runs[range].clone_from_slice(runs);
    }

    /// A metric, by its number, over seeds.
    pub fn estimate(&self, series: usize, at: usize, metric: usize) -> Estimate {
        Estimate::of(&self.values((series, at), metric, Part::Whole))
    }

    /// A metric's value for each seed, of a series at a place.
    pub fn values(&self, (series, at): (usize, usize), metric: usize, part: Part) -> Vec<f64> {
        let of = |m: &Measured| match part {
            Part::Whole => m.values[metric],
            Part::First => m.halves[0].get(metric).copied().unwrap_or(f64::NAN),
            Part::Second => m.halves[1].get(metric).copied().unwrap_or(f64::NAN),
        };
        self.runs(series, at).iter().map(of).collect()
    }

    /// What one series at a place has over what another has, seed by seed.
    pub fn ratios(
        &self,
        above: (usize, usize),
        below: (usize, usize),
        metric: usize,
        part: Part,
    ) -> Vec<f64> {
        let below = self.values(below, metric, part);
        self.values(above, metric, part).iter().zip(below).map(|(a, b)| a / b).collect()
    }

    /// Whether seeds made different runs, or are known to need no different ones. Those of the real cache
    /// always are; of chains, in which nothing is left to chance, all seeds make the same run, and its values
    /// are exact.
    pub fn varied(&self, series: usize, at: usize) -> bool {
        let runs = self.runs(series, at);
        runs.iter().any(|run| run.served.is_some() || run.exact)
            || runs.windows(2).any(|two| two[0].trace != two[1].trace)
    }

    /// Packets that crossed a link, in all runs together.
    pub fn link_hops(&self) -> u64 {
        self.runs.iter().map(|m| m.link_hops).sum()
    }

    /// Why a lookup of the real cache was not answered, if there is one.
    pub fn reason(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.served.as_ref()?.report.all.reason.as_deref())
    }

    /// Flows that failed or did not end, of how many.
    pub fn unfinished(&self) -> (u64, u64) {
        self.runs
            .iter()
            .fold((0, 0), |(bad, all), m| (bad + u64::from(m.flows.1), all + u64::from(m.flows.0)))
    }
}

/// Runs an experiment.
pub fn run(
    experiment: &Experiment,
    effort: &Effort,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Error> {
    let count = effort.seeds.unwrap_or(experiment.size(effort.scale).seeds).max(1);
    let seeds = Seeds { first: effort.first_seed, count };
    let runs = runs(experiment, &asked(experiment, effort.scale, None), seeds, effort, progress)?;
    Ok(Outcome::new(seeds, experiment.places(), runs.into_iter().flatten().collect()))
}

/// Runs what a mutation changes, for the seeds of an outcome, and returns that outcome with it.
pub fn run_mutation(
    experiment: &Experiment,
    mutation: &Mutation,
    (outcome, effort): (&Outcome, &Effort),
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Error> {
    let asked = asked(experiment, effort.scale, Some(mutation));
    let runs = runs(experiment, &asked, outcome.seeds, effort, progress)?;
    let mut mutant = outcome.clone();
    for (asked, runs) in asked.iter().zip(&runs) {
        mutant.replace(asked.series, asked.at, runs);
    }
    Ok(mutant)
}

/// The runs of what is asked for, each for all seeds.
fn runs(
    experiment: &Experiment,
    asked: &[Asked],
    seeds: Seeds,
    effort: &Effort,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    match experiment.kind {
        Kind::Cache => trial::run(experiment, asked, (seeds, &effort.command), progress),
        Kind::Chains => chains::run(experiment, asked, (seeds, effort), progress),
        Kind::Rack => rack::run(experiment, asked, (seeds, effort), progress),
        Kind::Budget => budget::run(experiment, asked, (seeds, effort), progress),
        Kind::Simulation | Kind::Modules => simulate(experiment, asked, (seeds, effort), progress),
    }
}

fn simulate(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, effort): (Seeds, &Effort),
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let scenarios = asked.iter().map(scenario).collect::<Result<Vec<Scenario>, Error>>()?;
    let interval = experiment.interval().unwrap_or_default();
    let work = |point: usize, seed: u64| {
        let plan = plan(&asked[point].name, &scenarios[point], seed)?;
        let mut sim = plan.start().map_err(|e| Error(format!("{}: {e}", asked[point].name)))?;
        plan.run(&mut sim, &mut |_| {});
        let mut measured = measured(&sim, &experiment.measured, interval);
        if experiment.timeline_us > 0 {
            let slice = u64::from(experiment.timeline_us) * 1_000_000;
            measured.timeline = operations::timeline(&sim, slice);
        }
        Ok(measured)
    };
    each(experiment, asked, (seeds, effort), &work, progress)
}

/// Does some work for each point and seed, side by side. What is asked for twice, as a series that a sweep
/// does not change, is run once; what is kept of an earlier time is not run.
pub(crate) fn each(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, effort): (Seeds, &Effort),
    work: &(dyn Fn(usize, u64) -> Result<Measured, Error> + Sync),
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let same = |n: usize| asked.iter().position(|a| a.table == asked[n].table).unwrap_or(n);
    let first: Vec<usize> = (0..asked.len()).map(same).collect();
    let distinct: Vec<usize> = (0..asked.len()).filter(|n| first[*n] == *n).collect();
    let each = seeds.count as usize;
    let what = |n: usize| (distinct[n / each], seeds.first + (n % each) as u64);
    let key = |n: usize| Store::key(experiment, &asked[what(n).0], what(n).1);
    let mut store = effort.store.as_ref().map(|store| store.borrow_mut());
    let count = distinct.len() * each;
    let mut runs: Vec<Option<Measured>> =
        (0..count).map(|n| store.as_mut().and_then(|store| store.take(key(n)))).collect();
    let left: Vec<usize> = (0..count).filter(|n| runs[*n].is_none()).collect();
    let mut done = count - left.len();
    let mut kept = Ok(());
    let job = |at: usize| work(what(left[at]).0, what(left[at]).1);
    let results = sweep::run(left.len(), effort.jobs, job, |at, result: &Result<Measured, Error>| {
        done += 1;
        progress(Progress { done, of: count });
        if let (Some(store), Ok(run)) = (&mut store, result) {
            kept = store.add(key(left[at]), run);
        }
        result.is_ok() && kept.is_ok()
    });
    kept?;
    for (at, result) in left.iter().zip(results) {
        runs[*at] = Some(result?);
    }
    let runs: Vec<Measured> = runs.into_iter().flatten().collect();
    let of = |n: &usize| {
        let at = distinct.binary_search(n).unwrap_or(0) * each;
        runs[at..at + each].to_vec()
    };
    Ok(first.iter().map(of).collect())
}
