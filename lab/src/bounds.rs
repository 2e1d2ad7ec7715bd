//! Relations that must hold: ratios of series' values, or the values themselves, seed by seed.

use crate::definition::{Bound, Experiment};
use crate::measure::Metric;
use crate::run::Outcome;
use adverb_sim::statistics::Estimate;

/// A bound, at one point and for one metric.
#[derive(Clone, Debug)]
pub struct Checked<'a> {
    /// The bound.
    pub bound: &'a Bound,
    /// Of this.
    pub metric: Metric,
    /// Where, if there is a sweep.
    pub x: Option<f64>,
    /// The ratio, or the value, over seeds. The same seed is the same workload for both series.
    pub ratio: Estimate,
}

impl Checked<'_> {
    /// Whether the mean of the ratio is within the bound.
    pub fn holds(&self) -> bool {
        let r = self.ratio.mean;
        // Written so that a ratio that is not a number does not hold.
        self.bound.min.is_none_or(|min| r >= min) && self.bound.max.is_none_or(|max| r <= max)
    }

    /// What is asked, for people.
    pub fn asked(&self) -> String {
        match (self.bound.min, self.bound.max) {
            (Some(min), Some(max)) => format!("{min} to {max}"),
            (Some(min), None) => format!("at least {min}"),
            (None, Some(max)) => format!("at most {max}"),
            (None, None) => String::new(),
        }
    }
}

/// Checks all bounds of an experiment.
pub fn check<'a>(experiment: &'a Experiment, outcome: &Outcome) -> Vec<Checked<'a>> {
    let series = |name: &str| experiment.series.iter().position(|s| s.name == name).unwrap_or(0);
    let mut out = Vec::new();
    for bound in &experiment.bounds {
        let (a, b) = (series(&bound.ratio), bound.over.as_deref().map(series));
        let places = experiment.sweep.as_ref().map_or(&[][..], |sweep| &sweep.points);
        let over_at = bound.over_at.and_then(|x| places.iter().position(|point| point.x == x));
        for (m, &metric) in experiment.metrics.iter().enumerate() {
            if !bound.metrics.is_empty() && !bound.metrics.contains(&metric) {
                continue;
            }
            for at in 0..outcome.places {
                let x = experiment.sweep.as_ref().map(|s| s.points[at].x);
                if !bound.at.is_empty() && x.is_none_or(|x| !bound.at.contains(&x)) {
                    continue;
                }
                let mut ratios = outcome.values(a, at, m);
                if let Some(b) = b {
                    let below = outcome.values(b, over_at.unwrap_or(at), m);
                    ratios.iter_mut().zip(&below).for_each(|(a, b)| *a /= b);
                }
                out.push(Checked { bound, metric, x, ratio: Estimate::of(&ratios) });
            }
        }
    }
    out
}
