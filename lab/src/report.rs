//! What is printed of an experiment: measured values, bounds with the paper's values beside ours, notes.

use crate::bounds::{Checked, Relation};
use crate::definition::{Bound, Experiment, Kind};
use crate::run::{Outcome, Part};
use crate::verdicts::Counts;
use core::fmt::Write;

/// The table of measured values, the bounds with the paper's values beside ours, and the notes.
pub fn text(experiment: &Experiment, outcome: &Outcome, checked: &[Checked<'_>]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{}: {}\n{}\n", experiment.name, experiment.title, experiment.cite());
    values(&mut out, experiment, outcome);
    bounds(&mut out, experiment, checked);
    for note in &experiment.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(reason) = outcome.reason() {
        let _ = writeln!(out, "a lookup was not answered: {reason}");
    }
    out + &measured(experiment, outcome)
}

/// What was measured, and how much of it.
pub(crate) fn measured(experiment: &Experiment, outcome: &Outcome) -> String {
    let mut out = String::new();
    if let Some(interval) = experiment.interval().filter(|_| experiment.kind == Kind::Simulation) {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let _ = writeln!(
            out,
            "measured: what begins from {} to {} of the time in which flows begin; [x]: its second half over \
             its \
             first",
            percent(interval.warm_up),
            percent(1.0 - interval.drain)
        );
    }
    let (bad, all) = outcome.unfinished();
    let seeds = match outcome.seeds.count {
        1 => "1 seed, so no interval and no verdict".to_owned(),
        n if experiment.kind == Kind::Chains => format!("{n} seeds"),
        n => format!("{n} seeds, 95% confidence"),
    };
    let hops = outcome.link_hops() as f64 / 1e6;
    let _ = match experiment.kind {
        Kind::Budget => writeln!(out, "an estimate of {all} programs' needs, exact; nothing was run"),
        Kind::Cache => writeln!(out, "{seeds}; {all} lookups, {bad} without the value"),
        Kind::Chains => writeln!(out, "{seeds}; {all} programs, {bad} unfinished"),
        Kind::Rack => writeln!(
            out,
            "{seeds}; {all} clients, {bad} that did not begin; {hops:.1} M link-hops; [x]: the second half \
             of the time that is measured over the first"
        ),
        _ => writeln!(out, "{seeds}; {all} flows, {bad} unfinished; {hops:.1} M link-hops"),
    };
    out
}

/// A value with its interval, and by what it changes as a run goes on.
pub(crate) fn value(outcome: &Outcome, run: (usize, usize), metric: usize) -> String {
    let drift = drift(outcome, run, metric).map_or(String::new(), |d| format!(" [{d:.2}]"));
    format!("{:.3}{drift}", outcome.estimate(run.0, run.1, metric))
}

fn values(out: &mut String, experiment: &Experiment, outcome: &Outcome) {
    let width = experiment.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).max(8);
    let _ = write!(out, "{:width$}", "");
    if let Some(sweep) = &experiment.sweep {
        let _ = write!(out, " {:>16}", sweep.label);
    }
    for metric in 0..experiment.measured.len() {
        let _ = write!(out, " {:>24}", experiment.measured.label(metric));
    }
    let _ = writeln!(out);
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let name = if at == 0 { series.name.as_str() } else { "" };
            let _ = write!(out, "{name:width$}");
            if let Some(sweep) = &experiment.sweep {
                let _ = write!(out, " {:>16}", sweep.points[at].x);
            }
            for metric in 0..experiment.measured.len() {
                let _ = write!(out, " {:>24}", value(outcome, (n, at), metric));
            }
            let _ = writeln!(out);
        }
    }
    let _ = writeln!(out);
}

/// By what a value changes as a run goes on: that of the second half over that of the first, their means over
/// seeds.
fn drift(outcome: &Outcome, run: (usize, usize), metric: usize) -> Option<f64> {
    let mean = |part| {
        let values = outcome.values(run, metric, part);
        values.iter().sum::<f64>() / values.len() as f64
    };
    let drift = mean(Part::Second) / mean(Part::First);
    drift.is_finite().then_some(drift)
}

fn heading(out: &mut String, bound: &Bound, relation: impl core::fmt::Display) {
    let source = if bound.source.is_empty() { String::new() } else { format!(" [{}]", bound.source) };
    let paper =
        if bound.paper.is_empty() { String::new() } else { format!("; the paper: {}{source}", bound.paper) };
    let place = bound.over_at.map_or(String::new(), |x| format!(" at {x}"));
    let over = bound.over.as_ref().map(|over| format!(" / {over}{place}"));
    let over = over.or(bound.minus.as_ref().map(|minus| format!(" - {minus}"))).unwrap_or_default();
    let _ = match (bound.values.is_empty(), bound.within) {
        (true, _) => writeln!(out, "{}{over}: {relation}{paper}", bound.ratio),
        (false, None) => writeln!(out, "{}: beside the paper's values{source}", bound.ratio),
        (false, Some(share)) => {
            writeln!(out, "{}: within {:.0}% of the paper's values{source}", bound.ratio, share * 100.0)
        }
    };
    if let Some(cited) = bound.cited {
        let (low, high) = cited.ends();
        let to = if low < high { format!(" to {high}") } else { String::new() };
        let _ = writeln!(out, "    cited: {low}{to}");
    }
    if let Some(why) = &bound.differs {
        let _ = writeln!(out, "    differs: {why}");
    }
    if bound.gate && bound.differs.is_none() && bound.verdict.is_none() {
        let _ = writeln!(out, "    says no verdict: a direction");
    }
}

fn bounds(out: &mut String, experiment: &Experiment, checked: &[Checked<'_>]) {
    let mut last = None;
    for c in checked {
        let this = core::ptr::from_ref(c.bound);
        if last != Some(this) {
            heading(out, c.bound, c.relation);
            last = Some(this);
        }
        let place = c.x.map_or(String::new(), |x| format!(" at {x}"));
        let halves = c.halves.map_or(String::new(), |(a, b)| format!("[{a:.2}, {b:.2}]"));
        // Beside a paper's value, three digits and by how much ours differs.
        let (ratio, beside) = match c.relation {
            Relation::Near(value, _) => (
                format!("{:.3}", c.ratio),
                format!("{value} ({:+.1}%)", (c.ratio.mean / value - 1.0) * 100.0),
            ),
            _ => (format!("{:.2}", c.ratio), halves),
        };
        let label = format!("{}{place}", experiment.measured.label(c.metric));
        let _ = writeln!(out, "    {label:32} {ratio:>18} {beside:>16}  {}", c.verdict());
    }
    if !checked.is_empty() {
        let _ = writeln!(out);
    }
}

/// How an experiment stands, in one line: how many of its bounds hold, and what they show; how many report,
/// differ and fail.
pub fn summary(checked: &[Checked<'_>], stranded: bool) -> String {
    let stranded = if stranded { "; flows did not end" } else { "" };
    format!("{}{stranded}", Counts::of(checked))
}
