//! What is printed of an experiment, and its CSV files.

use crate::bounds::Checked;
use crate::definition::{Experiment, Kind};
use crate::measure::TAIL;
use crate::run::Outcome;
use core::fmt::Write;

/// The table of measured values, the bounds with the paper's values beside ours, and the notes.
pub fn text(experiment: &Experiment, outcome: &Outcome, checked: &[Checked<'_>]) -> String {
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{}: {}\n{}\n", experiment.name, experiment.title, experiment.cite());
    values(&mut out, experiment, outcome);
    bounds(&mut out, checked);
    for note in &experiment.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if let Some(reason) = outcome.reason() {
        let _ = writeln!(out, "a lookup was not answered: {reason}");
    }
    let (bad, all) = outcome.unfinished();
    let seeds =
        if outcome.seeds == 1 { "1 seed, so no".to_owned() } else { format!("{} seeds,", outcome.seeds) };
    let hops = outcome.link_hops() as f64 / 1e6;
    let _ = match experiment.kind {
        Kind::Cache => writeln!(out, "{seeds} 95% confidence; {all} lookups, {bad} without the value"),
        _ => writeln!(out, "{seeds} 95% confidence; {all} flows, {bad} unfinished; {hops:.1} M link-hops"),
    };
    out
}

fn values(out: &mut String, experiment: &Experiment, outcome: &Outcome) {
    let width = experiment.series.iter().map(|s| s.name.chars().count()).max().unwrap_or(0).max(8);
    let _ = write!(out, "{:width$}", "");
    if let Some(sweep) = &experiment.sweep {
        let _ = write!(out, " {:>16}", sweep.label);
    }
    for metric in &experiment.metrics {
        let _ = write!(out, " {:>20}", metric.label());
    }
    let _ = writeln!(out);
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let name = if at == 0 { series.name.as_str() } else { "" };
            let _ = write!(out, "{name:width$}");
            if let Some(sweep) = &experiment.sweep {
                let _ = write!(out, " {:>16}", sweep.points[at].x);
            }
            for m in 0..experiment.metrics.len() {
                let _ = write!(out, " {:>20}", format!("{:.3}", outcome.estimate(n, at, m)));
            }
            let _ = writeln!(out);
        }
    }
    let _ = writeln!(out);
}

fn bounds(out: &mut String, checked: &[Checked<'_>]) {
    let mut last = None;
    for c in checked {
        let this = core::ptr::from_ref(c.bound);
        if last != Some(this) {
            let b = c.bound;
            let source = if b.source.is_empty() { String::new() } else { format!(" [{}]", b.source) };
            let paper =
                if b.paper.is_empty() { String::new() } else { format!("; the paper: {}{source}", b.paper) };
            let place = b.over_at.map_or(String::new(), |x| format!(" at {x}"));
            let over = b.over.as_ref().map_or(String::new(), |over| format!(" / {over}{place}"));
            let _ = writeln!(out, "{}{over}: {}{paper}", b.ratio, c.asked());
            last = Some(this);
        }
        let verdict = match (c.holds(), c.bound.gate) {
            (true, _) => "holds",
            (false, true) => "FAILS",
            (false, false) => "differs",
        };
        let place = c.x.map_or(String::new(), |x| format!(" at {x}"));
        let _ = writeln!(
            out,
            "    {:32} {:>18}  {verdict}",
            format!("{}{place}", c.metric.label()),
            format!("{:.2}", c.ratio)
        );
    }
    if !checked.is_empty() {
        let _ = writeln!(out);
    }
}

/// Every run: a line for each series, place and seed.
pub fn runs_csv(experiment: &Experiment, outcome: &Outcome) -> String {
    let mut out = String::from("series,x,seed");
    for metric in &experiment.metrics {
        let _ = write!(out, ",{}", metric.key());
    }
    let cache = experiment.kind == Kind::Cache;
    let _ = writeln!(out, "{}", if cache { ",lookups,failed" } else { ",flows,unfinished,link_hops,trace" });
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let x = experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
            for (seed, run) in outcome.runs(n, at).iter().enumerate() {
                let _ = write!(out, "\"{}\",{x},{}", series.name.replace('"', "'"), seed + 1);
                for value in &run.values {
                    let _ = write!(out, ",{value}");
                }
                let (flows, bad) = run.flows;
                let _ = match cache {
                    true => writeln!(out, ",{flows},{bad}"),
                    false => writeln!(out, ",{flows},{bad},{},{:016x}", run.link_hops, run.trace),
                };
            }
        }
    }
    out
}

/// What happened over time, a line for each series, seed, slice and pair of hosts; none where nobody asked.
pub fn timeline_csv(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let head = "series,x,seed,t_us,initiator,target,goodput_gbps,ok,failed,issue_delay_us,total_delay_us\n";
    let mut out = String::from(head);
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let x = experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
            for (seed, run) in outcome.runs(n, at).iter().enumerate() {
                for s in &run.timeline {
                    let name = series.name.replace('"', "'");
                    let _ = writeln!(
                        out,
                        "\"{name}\",{x},{},{},{},{},{:.3},{},{},{:.3},{:.3}",
                        seed + 1,
                        s.t_us,
                        s.initiator,
                        s.target,
                        s.goodput,
                        s.well,
                        s.failed,
                        s.issue_us,
                        s.total_us
                    );
                }
            }
        }
    }
    (out.len() > head.len()).then_some(out)
}

/// What the real cache did over time, a line for each series, seed and slice; none for a sweep, or a simulation.
pub fn served_csv(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let mut out = String::from(
        "series,seed,t_ms,p50_us,p99_us,max_us,hits_by_replica,refused,failed,in_vain_us,under_way,allowed_by_replica,event\n",
    );
    let mut any = false;
    for (n, series) in experiment.series.iter().enumerate().filter(|_| experiment.sweep.is_none()) {
        for (seed, run) in outcome.runs(n, 0).iter().enumerate() {
            let Some(served) = &run.served else { continue };
            for (at, s) in served.slices.iter().enumerate() {
                any = true;
                let name = series.name.replace('"', "'");
                let hits: Vec<String> = s.hits.iter().map(u64::to_string).collect();
                let allowed = |window: &Option<f64>| window.map_or("-".to_owned(), |w| format!("{w:.2}"));
                let allowed: Vec<String> = s.allowed.iter().map(allowed).collect();
                let _ = write!(
                    out,
                    "\"{name}\",{},{},{:.1},{:.1},{:.1},{},{},{},{:.1},{},{},",
                    seed + 1,
                    s.t_ms,
                    s.p50_us,
                    s.p99_us,
                    s.max_us,
                    hits.join(" "),
                    s.refused,
                    s.failed,
                    s.in_vain_us,
                    s.under_way,
                    allowed.join(" ")
                );
                let until = served.slices.get(at + 1).map_or(f64::INFINITY, |next| next.t_ms);
                let here = served.events.iter().filter(|(_, t, _)| (s.t_ms..until).contains(t));
                let here: Vec<String> = here
                    .map(|(event, t, _)| format!("R{} {:?} {t:.2} ms", event.replica, event.what))
                    .collect();
                let _ = writeln!(out, "{}", here.join("; "));
            }
        }
    }
    any.then_some(out)
}

/// The tails of messages of one packet, a line for each series, seed and percentile; none if there are no such messages.
pub fn tail_csv(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let mut out = String::from("series,x,seed,percentile,latency_ms\n");
    let mut any = false;
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let x = experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
            for (seed, run) in outcome.runs(n, at).iter().enumerate() {
                for (percent, ms) in TAIL.iter().zip(&run.tail) {
                    any = true;
                    let _ = writeln!(out, "\"{}\",{x},{},{percent},{ms}", series.name, seed + 1);
                }
            }
        }
    }
    any.then_some(out)
}
