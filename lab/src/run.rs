//! Runs every point of an experiment for every seed, side by side.

use crate::measure::{Measured, measure};
use crate::operations;
use crate::points::points;
use crate::{Error, Experiment, Scale};
use adverb_sim::statistics::Estimate;
use adverb_sim::sweep;

/// How far a run of an experiment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Simulations that have ended.
    pub done: usize,
    /// Of so many.
    pub of: usize,
}

/// What came out of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Seeds.
    pub seeds: u32,
    /// Points along the x axis; one without a sweep.
    pub places: usize,
    /// By series, place and seed.
    runs: Vec<Measured>,
}

impl Outcome {
    /// Of runs by series, place and seed, as they come.
    pub fn new(seeds: u32, places: usize, runs: Vec<Measured>) -> Outcome {
        Outcome { seeds, places, runs }
    }

    /// The runs of a series at a place, seed by seed.
    pub fn runs(&self, series: usize, at: usize) -> &[Measured] {
        let from = (series * self.places + at) * self.seeds as usize;
        &self.runs[from..from + self.seeds as usize]
    }

    /// A metric, by its number, over seeds.
    pub fn estimate(&self, series: usize, at: usize, metric: usize) -> Estimate {
        Estimate::of(&self.values(series, at, metric))
    }

    /// A metric's value for each seed.
    pub fn values(&self, series: usize, at: usize, metric: usize) -> Vec<f64> {
        self.runs(series, at).iter().map(|m| m.values[metric]).collect()
    }

    /// Packets that crossed a link, in all runs together.
    pub fn link_hops(&self) -> u64 {
        self.runs.iter().map(|m| m.link_hops).sum()
    }

    /// Why a lookup of the real cache was not answered, if there is one.
    pub fn reason(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.served.as_ref()?.reason.as_deref())
    }

    /// Flows that failed or did not end, of how many.
    pub fn unfinished(&self) -> (u64, u64) {
        self.runs
            .iter()
            .fold((0, 0), |(bad, all), m| (bad + u64::from(m.flows.1), all + u64::from(m.flows.0)))
    }
}

/// Runs an experiment: `seeds` of them (the scale's own number if none is given), `jobs` at once (0 for as many
/// as there are processors). The result does not depend on `jobs`.
pub fn run(
    experiment: &Experiment,
    scale: Scale,
    seeds: Option<u32>,
    jobs: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, Error> {
    let points = points(experiment, scale)?;
    let seeds = seeds.unwrap_or(experiment.size(scale).seeds).max(1);
    let places = experiment.places();
    let count = points.len() * seeds as usize;
    let work = |n: usize| {
        let (point, seed) = (&points[n / seeds as usize], n as u64 % u64::from(seeds) + 1);
        let plan = point.plan(seed)?;
        let mut sim = plan.start().map_err(|e| Error(format!("{}: {e}", experiment.name)))?;
        plan.run(&mut sim, &mut |_| {});
        let mut measured = measure(&sim, &experiment.metrics);
        if experiment.timeline_us > 0 {
            let slice = u64::from(experiment.timeline_us) * 1_000_000;
            measured.timeline = operations::timeline(&sim, slice);
        }
        Ok(measured)
    };
    let mut done = 0;
    let results = sweep::run(count, jobs, work, |_, result: &Result<Measured, Error>| {
        done += 1;
        progress(Progress { done, of: count });
        result.is_ok()
    });
    let runs = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Outcome::new(seeds, places, runs))
}
