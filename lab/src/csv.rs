//! CSV files of an experiment: every run, tails, and what happened over time.

use crate::cache::{failed_otherwise, us};
use crate::definition::{Experiment, Kind};
use crate::measure::TAIL;
use crate::run::Outcome;
use core::fmt::Write;

/// The first line of [`runs`].
pub(crate) fn head(experiment: &Experiment) -> String {
    let mut out = String::from("series,x,seed");
    let cache = experiment.kind == Kind::Cache;
    for metric in 0..experiment.measured.len() {
        let key = experiment.measured.names(metric).1;
        let _ = if cache { write!(out, ",{key}") } else { write!(out, ",{key},{key}_first,{key}_second") };
    }
    out + if cache { ",lookups,failed" } else { ",flows,unfinished,link_hops,trace" }
}

/// Every series at every place, in the order of [`runs`], as its lines begin.
pub(crate) fn places(experiment: &Experiment) -> impl Iterator<Item = String> {
    let x = move |at: usize| experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
    experiment.series.iter().flat_map(move |series| {
        let name = series.name.replace('"', "'");
        (0..experiment.places()).map(move |at| format!("\"{name}\",{}", x(at)))
    })
}

/// Every run: a line for each series, place and seed.
pub fn runs(experiment: &Experiment, outcome: &Outcome) -> String {
    let cache = experiment.kind == Kind::Cache;
    let mut out = head(experiment) + "\n";
    let mut names = places(experiment);
    for n in 0..experiment.series.len() {
        for at in 0..outcome.places {
            let name = names.next().unwrap_or_default();
            for (seed, run) in outcome.seeds.all().zip(outcome.runs(n, at)) {
                let _ = write!(out, "{name},{seed}");
                for (metric, value) in run.values.iter().enumerate() {
                    let _ = write!(out, ",{value}");
                    // Empty where a metric is of the whole run.
                    for half in run.halves.iter().filter(|_| !cache) {
                        let _ = match half.get(metric) {
                            Some(value) if !value.is_nan() => write!(out, ",{value}"),
                            _ => write!(out, ","),
                        };
                    }
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

/// What happened over time in the simulator, a line for each series, seed, slice and pair of hosts; none
/// where nobody asked.
pub fn timeline(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let head = "series,x,seed,t_us,initiator,target,goodput_gbps,ok,failed,issue_delay_us,total_delay_us\n";
    let mut out = String::from(head);
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let x = experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
            for (seed, run) in outcome.seeds.all().zip(outcome.runs(n, at)) {
                for s in &run.timeline {
                    let name = series.name.replace('"', "'");
                    let _ = writeln!(
                        out,
                        "\"{name}\",{x},{},{},{},{},{:.3},{},{},{:.3},{:.3}",
                        seed,
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

/// What the real cache did over time, a line for each series, seed and slice; none for a sweep, or a
/// simulation.
pub fn served(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let mut out = String::from(
        "series,seed,t_ms,p50_us,p99_us,max_us,hits_by_replica,refused,failed,in_vain_us,under_way,\
         allowed_by_replica,event\n",
    );
    let mut any = false;
    for (n, series) in experiment.series.iter().enumerate().filter(|_| experiment.sweep.is_none()) {
        for (seed, run) in outcome.seeds.all().zip(outcome.runs(n, 0)) {
            let Some(served) = &run.served else { continue };
            for (at, s) in served.slices.iter().enumerate() {
                any = true;
                let name = series.name.replace('"', "'");
                let hits: Vec<String> = s.replicas.iter().map(|r| r.hits.to_string()).collect();
                let allowed = |window: &Option<f64>| window.map_or("-".to_owned(), |w| format!("{w:.2}"));
                let allowed: Vec<String> = s.allowed.iter().map(allowed).collect();
                let sum = |of: fn(&adverb_apps::kv::ReplicaCounters) -> u64| -> u64 {
                    s.replicas.iter().map(of).sum()
                };
                let (t_ms, latency) = (us(s.start) / 1e3, &s.latency);
                let _ = write!(
                    out,
                    "\"{name}\",{},{},{:.1},{:.1},{:.1},{},{},{},{:.1},{},{},",
                    seed,
                    t_ms,
                    us(latency.percentile(0.5)),
                    us(latency.percentile(0.99)),
                    us(latency.max()),
                    hits.join(" "),
                    sum(|r| r.refused),
                    sum(failed_otherwise),
                    sum(|r| r.in_vain_ns) as f64 / 1e3,
                    s.under_way,
                    allowed.join(" ")
                );
                let until = served.slices.get(at + 1).map_or(f64::INFINITY, |next| us(next.start) / 1e3);
                let here = served.events.iter().filter(|(_, t, _)| (t_ms..until).contains(t));
                let here: Vec<String> = here
                    .map(|(event, t, _)| format!("R{} {:?} {t:.2} ms", event.replica, event.what))
                    .collect();
                let _ = writeln!(out, "{}", here.join("; "));
            }
        }
    }
    any.then_some(out)
}

/// The tails of messages of one packet, a line for each series, seed and percentile; none if there are no
/// such messages.
pub fn tail(experiment: &Experiment, outcome: &Outcome) -> Option<String> {
    let mut out = String::from("series,x,seed,percentile,latency_ms\n");
    let mut any = false;
    for (n, series) in experiment.series.iter().enumerate() {
        for at in 0..outcome.places {
            let x = experiment.sweep.as_ref().map_or(String::new(), |s| s.points[at].x.to_string());
            for (seed, run) in outcome.seeds.all().zip(outcome.runs(n, at)) {
                for (percent, ms) in TAIL.iter().zip(&run.tail) {
                    any = true;
                    let _ = writeln!(out, "\"{}\",{x},{},{percent},{ms}", series.name, seed);
                }
            }
        }
    }
    any.then_some(out)
}
