//! From an experiment to the scenarios of its points: the paper's default, changed by the experiment, the scale, the
//! series' variants, the series and the point, in this order.

use crate::definition::Point;
use crate::{Error, Experiment, Scale};
use adverb_sim::{Plan, Scenario};
use toml::{Table, Value};

/// One series at one place on the x axis.
#[derive(Clone, Debug)]
pub struct PointOf {
    /// Number of the series.
    pub series: usize,
    /// Number of the point along the x axis; 0 where there is no sweep.
    pub at: usize,
    /// For messages.
    name: String,
    scenario: Scenario,
}

impl PointOf {
    /// What to run for a seed. The seed makes the workload, so that series can be compared seed by seed.
    pub fn plan(&self, seed: u64) -> Result<Plan, Error> {
        let seeded = Scenario { seed: Some(seed), ..self.scenario.clone() };
        let plan = seeded.plan(&mut |file| {
            Err(adverb_sim::Error::new("workload.sizes", format!("{file}: experiments name no files")))
        });
        plan.map_err(|e| Error(format!("{}: {e}", self.name)))
    }
}

/// All points, series by series.
pub fn points(experiment: &Experiment, scale: Scale) -> Result<Vec<PointOf>, Error> {
    let places = experiment.places();
    let point = |(n, (name, table)): (usize, (String, Table))| {
        let scenario = Value::Table(table)
            .try_into()
            .map_err(|e: toml::de::Error| Error(format!("{name}: {}", e.message())))?;
        Ok(PointOf { series: n / places, at: n % places, name, scenario })
    };
    tables(experiment, scale).into_iter().enumerate().map(point).collect()
}

/// What each point asks for, with its name for messages: series by series, place by place.
pub(crate) fn tables(experiment: &Experiment, scale: Scale) -> Vec<(String, Table)> {
    let Some(paper) = &experiment.paper else { return Vec::new() };
    let places: Vec<Option<&Point>> = match &experiment.sweep {
        None => vec![None],
        Some(sweep) => sweep.points.iter().map(Some).collect(),
    };
    let mut out = Vec::new();
    for series in &experiment.series {
        for place in &places {
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
            let at_x = place.map_or(String::new(), |p| format!(" at {}", p.x));
            out.push((format!("{}, series `{}`{at_x}", experiment.name, series.name), table));
        }
    }
    out
}

/// Changes `table`: values are replaced, tables merged; `false` where there was something else takes it away.
fn merge(table: &mut Table, change: &Table) {
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
