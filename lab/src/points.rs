//! From an experiment to the scenarios of its points: the paper's default, changed by the experiment, the
//! scale, the series' variants, the point, the series, what was asked for on the command line, and a
//! mutation, in this order.

use crate::definition::{Mutation, Point};
use crate::{Error, Experiment, Scale};
use adverb_sim::{Plan, Scenario};
use toml::{Table, Value};

/// What one series asks for at one place on the x axis.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Number of the series.
    pub series: usize,
    /// Number of the point along the x axis; 0 where there is no sweep.
    pub at: usize,
    /// For messages.
    pub name: String,
    /// A scenario, or a trial of the real cache.
    pub table: Table,
}

/// What every series asks for at every place, series by series. With a mutation: only what it changes, so
/// changed.
pub fn asked(experiment: &Experiment, scale: Scale, mutation: Option<&Mutation>) -> Vec<Asked> {
    let Some(paper) = &experiment.paper else { return Vec::new() };
    let places: Vec<Option<&Point>> = match &experiment.sweep {
        None => vec![None],
        Some(sweep) => sweep.points.iter().map(Some).collect(),
    };
    let mut out = Vec::new();
    for (n, series) in experiment.series.iter().enumerate() {
        if mutation.is_some_and(|m| !m.series.is_empty() && !m.series.contains(&series.name)) {
            continue;
        }
        for (at, place) in places.iter().enumerate() {
            if mutation.is_some_and(|m| !m.at.is_empty() && place.is_none_or(|p| !m.at.contains(&p.x))) {
                continue;
            }
            let mut table = paper.scenario.clone();
            merge(&mut table, &experiment.set);
            merge(&mut table, &experiment.size(scale).set);
            for variant in series.variants.iter().filter_map(|v| paper.variants.get(v)) {
                merge(&mut table, variant);
            }
            if let Some(point) = place {
                merge(&mut table, &point.set);
                for with in series.variants.iter().filter_map(|v| point.with.get(v)) {
                    merge(&mut table, with);
                }
            }
            merge(&mut table, &series.set);
            merge(&mut table, &experiment.own);
            if let Some(point) = place {
                merge(&mut table, &point.own);
            }
            if let Some(mutation) = mutation {
                merge(&mut table, &mutation.set);
            }
            let at_x = place.map_or(String::new(), |p| format!(" at {}", p.x));
            let mutated = mutation.map_or(String::new(), |m| format!(", mutation `{}`", m.name));
            let name = format!("{}, series `{}`{at_x}{mutated}", experiment.name, series.name);
            out.push(Asked { series: n, at, name, table });
        }
    }
    out
}

/// The scenario that a table describes.
pub fn scenario(asked: &Asked) -> Result<Scenario, Error> {
    let table = Value::Table(asked.table.clone());
    table.try_into().map_err(|e: toml::de::Error| Error(format!("{}: {}", asked.name, e.message())))
}

/// What to run for a seed. The seed makes the workload, so that series can be compared seed by seed.
pub fn plan(name: &str, scenario: &Scenario, seed: u64) -> Result<Plan, Error> {
    let seeded = Scenario { seed: Some(seed), ..scenario.clone() };
    let plan = seeded.plan(&mut |file| {
        Err(adverb_sim::Error::new("workload.sizes", format!("{file}: experiments name no files")))
    });
    plan.map_err(|e| Error(format!("{name}: {e}")))
}

/// Changes `table`: values are replaced, tables merged; `false` where there was something else takes it away.
pub(crate) fn merge(table: &mut Table, change: &Table) {
    for (key, value) in change {
        match (table.get_mut(key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (Some(old), Value::Boolean(false)) if !old.is_bool() => {
                table.remove(key);
            }
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_go_deep_and_take_tables_away() {
        let read = |text: &str| toml::from_str::<Table>(text).unwrap();
        let mut table = read("a = 1\n[b]\nc = 2\n[b.d]\ne = 3\n[f]\ng = 4");
        merge(&mut table, &read("f = false\nh = 5\n[b]\nc = 6"));
        assert_eq!(table, read("a = 1\nh = 5\n[b]\nc = 6\n[b.d]\ne = 3"));
    }
}
