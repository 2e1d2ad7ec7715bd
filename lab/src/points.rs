//! From an experiment to the scenarios of its points: the paper's default, changed by the experiment, the
//! scale, the series' variants, the point, the series, what was asked for on the command line (`--set`, then
//! `--longer`), and a mutation, in this order.

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
            if experiment.longer > 1 {
                lengthen(&mut table, experiment.longer);
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

/// So many times as many flows, and as long a time in which others begin, of each workload. Whether there is
/// one that has either.
pub(crate) fn lengthen(table: &mut Table, times: u32) -> bool {
    let mut changed = false;
    let mut workloads: Vec<&mut Table> = match table.get_mut("workload") {
        Some(Value::Table(one)) => vec![one],
        Some(Value::Array(all)) => all.iter_mut().filter_map(Value::as_table_mut).collect(),
        _ => Vec::new(),
    };
    for workload in &mut workloads {
        if let Some(Value::Integer(flows)) = workload.get_mut("flows") {
            *flows = flows.saturating_mul(times.into());
            changed = true;
        }
        changed |= workload.get_mut("until").is_some_and(|until| prolong(until, times));
    }
    if changed && let Some(end) = table.get_mut("end") {
        prolong(end, times);
    }
    changed
}

/// So many times a time such as `1500us`. What is none stays, for the scenario to say so.
fn prolong(time: &mut Value, times: u32) -> bool {
    let Value::String(text) = time else { return false };
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let Ok(number) = text[..unit].parse::<f64>() else { return false };
    *text = format!("{}{}", number * f64::from(times), &text[unit..]);
    true
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

    #[test]
    fn flows_times_and_the_end_of_them_grow_and_nothing_else_does() {
        let read = |text: &str| toml::from_str::<Table>(text).unwrap();
        let mut one = read("end = \"5s\"\n[workload]\nflows = 1000\nload = 0.7\nstart = \"1ms\"");
        assert!(lengthen(&mut one, 2));
        assert_eq!(one, read("end = \"10s\"\n[workload]\nflows = 2000\nload = 0.7\nstart = \"1ms\""));
        let mut two =
            read("[[workload]]\nuntil = \"1500us\"\n[[workload]]\nuntil = \"0.5ms\"\nbytes = \"4MB\"");
        assert!(lengthen(&mut two, 3));
        let wanted = "[[workload]]\nuntil = \"4500us\"\n[[workload]]\nuntil = \"1.5ms\"\nbytes = \"4MB\"";
        assert_eq!(two, read(wanted));
        // An incast is over when its bytes are there.
        let mut incast = read("end = \"5s\"\n[workload]\nbytes = \"150MB\"\nsenders = 10");
        let before = incast.clone();
        assert!(!lengthen(&mut incast, 2) && incast == before);
    }
}
