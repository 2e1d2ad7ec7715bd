//! `adverb sim`: runs a scenario, for one seed or several, and says how it went.

use crate::args;
use crate::enact::{self, Played};
use crate::error::Error;
use crate::progress::{self, Progress};
use adverb_os::say;
use adverb_sim::perfetto::trace::Written;
use adverb_sim::record::peak_rss;
use adverb_sim::rma::Outcome;
use adverb_sim::statistics::Estimate;
use adverb_sim::swarm::programs::Made;
use adverb_sim::workload::Workload;
use adverb_sim::{Plan, Report, ScenarioFile, Sim, sweep};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Mutex;

/// How often queues are sampled for queues.csv when the scenario does not say, in ps.
const SAMPLE_PS: u64 = 10_000_000;

/// What one seed gave.
struct Run {
    report: Report,
    /// Processor time of the run.
    seconds: f64,
    /// What the process grew by beyond the fabric without traffic, in bytes; other runs beside this one count
    /// too.
    grown: u64,
    /// What programs did, if there are any.
    played: Option<Played>,
    /// What is in its trace for Perfetto, if there is one.
    perfetto: Option<Written>,
}

/// Runs the scenario and prints what came of it.
pub fn simulate(arguments: &args::Sim) -> Result<(), Error> {
    let file = ScenarioFile::read(&arguments.scenario).map_err(Error::Scenario)?;
    let first = arguments.seed.or(file.scenario.seed).unwrap_or(1);
    if first.checked_add(u64::from(arguments.seeds) - 1).is_none() {
        let why = format!(
            "--seed {first}: {} seeds count beyond the last one; give a smaller one",
            arguments.seeds
        );
        return Err(Error::Options(why));
    }
    // Everything is checked before time starts, the options too.
    let plan = file.plan(Some(first)).map_err(Error::Scenario)?;
    check_captures(arguments, &plan)?;
    check_perfetto(arguments, &plan)?;
    enact::made(&file, &plan)?;
    let bar = Mutex::new(Progress::new(arguments.quiet));
    let show = |share: f64, text: &dyn Fn() -> String| {
        if let Ok(mut bar) = bar.lock() {
            bar.show(share, text);
        }
    };
    let alone = arguments.seeds == 1;
    let work = |n: usize| {
        let plan = file.plan(Some(first + n as u64)).map_err(Error::Scenario)?;
        let made = enact::made(&file, &plan)?;
        run_seed(arguments, plan, made, &|sim: &Sim| {
            if alone {
                let (ended, all) = (sim.flows_ended(), sim.flows().len());
                show(f64::from(ended) / all.max(1) as f64, &|| {
                    format!("{ended} of {all} flows, {:?}", sim.now())
                });
            }
        })
    };
    let (count, jobs) = (arguments.seeds as usize, arguments.jobs.unwrap_or(0) as usize);
    let mut ended = 0;
    let runs = sweep::run(count, jobs, work, |_, run| {
        ended += 1;
        if !alone {
            show(ended as f64 / count as f64, &|| format!("{ended} of {count} seeds"));
        }
        run.is_ok()
    });
    drop(bar);
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut text = describe(&file, &plan, first, count);
    match runs.as_slice() {
        [run] => one(&mut text, run),
        runs => several(&mut text, runs, first),
    }
    if arguments.stats {
        speed(&mut text, &runs);
    }
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output)?;
    let failed =
        |(_, run): &(u64, &Run)| run.played.as_ref().is_some_and(|played| !played.failures.is_empty());
    let failed: Vec<String> =
        (first..).zip(&runs).filter(failed).map(|(seed, _)| format!("seed {seed}")).collect();
    match failed.as_slice() {
        [] => Ok(()),
        seeds => Err(Error::Judged(format!(
            "{}: programs: {}: not what this system may do; see above",
            file.path().display(),
            seeds.join(", ")
        ))),
    }
}

fn check_captures(arguments: &args::Sim, plan: &Plan) -> Result<(), Error> {
    let links = plan.config.topology.links();
    for (link, _) in &arguments.pcap {
        if *link as usize >= links {
            let why = format!(
                "--pcap {link}: no such link; there are {links}, from 0; ports.csv of --out names them"
            );
            return Err(Error::Options(why));
        }
    }
    if !arguments.pcap.is_empty() && arguments.seeds > 1 {
        return Err(Error::Options("--pcap: goes with one seed; leave out --seeds".to_owned()));
    }
    Ok(())
}

/// A trace is of one run, and of flows on queue pairs.
fn check_perfetto(arguments: &args::Sim, plan: &Plan) -> Result<(), Error> {
    if arguments.perfetto.is_none() {
        return Ok(());
    }
    let why = match &plan.workload {
        _ if arguments.seeds > 1 => "goes with one seed; leave out --seeds",
        _ if plan.config.one_rma.is_some() => "is of queue pairs' traffic, and this scenario has 1RMA",
        _ if plan.cast.is_some() => "is of flows, and this scenario has programs; `adverb replay` tells them",
        Workload::Persistent(_) => "is of flows, and this scenario has calls on connections that last",
        _ => return Ok(()),
    };
    Err(Error::Options(format!("--perfetto: {why}")))
}

/// A file that gets a trace for Perfetto's viewer.
pub struct Traced<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> Traced<'a> {
    /// Makes the file, before what it is of begins.
    pub fn create(path: &'a Path) -> Result<Traced<'a>, Error> {
        let refuse = |source| Error::File { option: "--perfetto", path: path.to_owned(), source };
        Ok(Traced { path, file: File::create(path).map_err(refuse)? })
    }

    /// Writes the trace, and says how much had no room in it; `remedy` is what helps against that.
    pub fn write(
        self,
        remedy: &str,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<Written>,
    ) -> Result<Written, Error> {
        let refuse = |source| Error::File { option: "--perfetto", path: self.path.to_owned(), source };
        let written = write(&mut BufWriter::new(self.file)).map_err(refuse)?;
        if written.missed > 0 {
            let (path, missed) = (self.path.display(), written.missed);
            say!(
                "adverb: {path}: {missed} packets and steps of requests are missing, there were too \
                 many{remedy}"
            );
        }
        Ok(written)
    }
}

/// What is in the trace.
pub fn perfetto_row(out: &mut String, written: &Written) {
    let Written { hosts, queue_pairs, messages, packets, taken, lost, samples, .. } = written;
    let tracks = format!("{hosts} hosts, {queue_pairs} queue pairs");
    let rest =
        format!("{messages} slices, {packets} packets ({taken} taken, {lost} lost), {samples} samples");
    row(out, "perfetto", format_args!("{tracks}, {rest}"));
}

fn run_seed(
    arguments: &args::Sim,
    mut plan: Plan,
    made: Option<Made>,
    progress: &dyn Fn(&Sim),
) -> Result<Run, Error> {
    if (arguments.out.is_some() || arguments.perfetto.is_some()) && plan.sample_ps == 0 {
        plan.sample_ps = SAMPLE_PS;
    }
    let seed = plan.config.seed;
    let mut sim = plan.fabric().map_err(Error::Scenario)?;
    for (link, path) in &arguments.pcap {
        let refuse = |source| Error::File { option: "--pcap", path: path.clone(), source };
        let file = File::create(path).map_err(refuse)?;
        sim.capture(*link, Box::new(BufWriter::new(file))).map_err(refuse)?;
    }
    let trace = arguments.perfetto.as_deref().map(Traced::create).transpose()?;
    if trace.is_some() {
        sim.record_perfetto();
    }
    // The plan's flows were in memory before, and are the traffic's all the same.
    let idle = peak_rss().saturating_sub(size_of_val(plan.flows.as_slice()) as u64);
    plan.begin(&mut sim);
    let begun = progress::thread_seconds();
    let played = match made {
        Some(made) => Some(enact::play(&plan, &mut sim, made, &mut |sim| progress(sim))),
        None => {
            plan.run(&mut sim, &mut |sim| progress(sim));
            None
        }
    };
    let seconds = progress::thread_seconds() - begun;
    sim.finish_captures().map_err(|source| {
        let path = arguments.pcap.first().map(|(_, path)| path.clone()).unwrap_or_default();
        Error::File { option: "--pcap", path, source }
    })?;
    if let Some(directory) = &arguments.out {
        match arguments.seeds {
            1 => write_records(&sim, directory)?,
            _ => write_records(&sim, &directory.join(format!("seed-{seed}")))?,
        }
    }
    let shorter = "; give a shorter `end` in the scenario";
    let perfetto = trace.map(|trace| trace.write(shorter, |out| sim.write_perfetto(out))).transpose()?;
    // The kernel sums a process's pages up from counters of its processors, a little late: a peak may seem to
    // fall.
    Ok(Run { report: sim.report(), seconds, grown: peak_rss().saturating_sub(idle), played, perfetto })
}

fn write_records(sim: &Sim, directory: &Path) -> Result<(), Error> {
    let refuse = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { option: "--out", path, source }
    };
    std::fs::create_dir_all(directory).map_err(refuse(directory))?;
    for (name, text) in [
        ("flows.csv", sim.flows_csv()),
        ("slowdowns.csv", sim.slowdowns_csv()),
        ("ports.csv", sim.ports_csv()),
        ("queues.csv", sim.queues_csv()),
        ("links.csv", sim.links_csv()),
        ("windows.csv", sim.windows_csv()),
    ] {
        let path = directory.join(name);
        std::fs::write(&path, text).map_err(refuse(&path))?;
    }
    let missed = sim.samples().missed + sim.series().missed;
    if missed > 0 {
        say!(
            "adverb: {}: {missed} samples are missing, there were too many; give a longer `sample` in the \
             scenario",
            directory.display()
        );
    }
    Ok(())
}

fn describe(file: &ScenarioFile, plan: &Plan, first: u64, count: usize) -> String {
    let t = &plan.config.topology;
    let seeds = match count {
        1 => format!("seed {first}"),
        _ => format!("seeds {first} to {}", first + count as u64 - 1),
    };
    let (name, cables) = (file.path().display(), t.cables.len());
    format!("{name}, {seeds}: {} hosts, {} switches, {cables} cables\n", t.hosts, t.switches)
}

/// A row of the answer. Writing to a `String` cannot fail.
pub fn row(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{name:<18}{value}");
}

/// A time for people: three digits and the unit that suits it.
pub fn time(ps: f64) -> String {
    match ps {
        0.0 => "0 us".to_owned(),
        ps if ps < 1e6 => format!("{:.3} ns", ps / 1e3),
        ps if ps < 1e9 => format!("{:.3} us", ps / 1e6),
        ps if ps < 1e12 => format!("{:.3} ms", ps / 1e9),
        ps => format!("{:.3} s", ps / 1e12),
    }
}

fn one(out: &mut String, run: &Run) {
    let r = &run.report;
    if let Some(played) = &run.played {
        played.tell(out);
    }
    if run.played.is_none() || r.at_once > 0 {
        flow_rows(out, r);
    }
    let stats = &r.stats;
    row(
        out,
        "drops",
        format_args!("{}, {} lost and {} damaged on links", stats.drops, stats.lost, stats.corrupted),
    );
    if let Some(counts) = r.operations {
        let named: Vec<String> = Outcome::ALL.iter().zip(counts).map(|(o, n)| format!("{n} {o}")).collect();
        row(out, "operations", named.join(", "));
    }
    if let Some((counters, restarts)) = &r.switch {
        let counted = counters.iter().filter(|(_, count)| *count > 0);
        let counted: Vec<String> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        row(out, "switch's programs", counted.join(", "));
        row(out, "switch restarts", restarts.all);
    }
    row(out, "retransmissions", r.retransmissions);
    for of in &r.recoveries {
        let kind = if of.irn { "IRN" } else { "go-back-N" };
        let counts = format!("{} packets with data, {} sent again", of.packets, of.again);
        row(out, "recovery", format_args!("{} by {kind}: {counts}", of.workload));
    }
    row(out, "ECN marks", stats.marked);
    if stats.stamped > 0 {
        row(out, "stamps", stats.stamped);
    }
    row(out, "pauses", format_args!("{}, {} paused, over all links", stats.pauses, time(r.paused_ps as f64)));
    if let Some(cycle) = &r.deadlock {
        row(out, "PFC deadlock", format_args!("each waits for the next: {}", cycle.join(", ")));
    }
    row(out, "virtual time", time(stats.now_ps as f64));
    if let Some(written) = &run.perfetto {
        perfetto_row(out, written);
    }
    row(out, "trace", format_args!("{:016x}", r.trace));
}

/// What became of flows.
fn flow_rows(out: &mut String, r: &Report) {
    let s = &r.summary;
    row(
        out,
        "flows",
        format_args!(
            "{} ended, {} failed, {} unfinished, {} at once",
            s.flows, r.failed, r.unfinished, r.at_once
        ),
    );
    row(out, "average slowdown", format_args!("{:.3}", s.slowdown_avg));
    row(
        out,
        "FCT",
        format_args!(
            "average {}, p99 {}, p99.9 {}",
            time(s.fct_avg_ps),
            time(s.fct_p99_ps as f64),
            time(s.fct_p999_ps as f64)
        ),
    );
}

fn several(out: &mut String, runs: &[Run], first: u64) {
    let over = |value: &dyn Fn(&Report) -> f64| {
        Estimate::of(&runs.iter().map(|run| value(&run.report)).collect::<Vec<_>>())
    };
    for (seed, run) in (first..).zip(runs) {
        if let Some(played) = &run.played {
            row(out, &format!("seed {seed}"), "");
            played.verdict(out);
        }
    }
    let _ = writeln!(out, "mean over {} seeds ± 95% confidence interval", runs.len());
    row(
        out,
        "flows",
        format_args!(
            "{:.1} ended, {:.1} failed, {:.1} unfinished",
            over(&|r| f64::from(r.summary.flows)),
            over(&|r| f64::from(r.failed)),
            over(&|r| f64::from(r.unfinished))
        ),
    );
    row(out, "average slowdown", over(&|r| r.summary.slowdown_avg));
    let us = |pick: &dyn Fn(&Report) -> f64| over(&|r| pick(r) / 1e6);
    row(
        out,
        "FCT in us",
        format_args!(
            "average {}, p99 {}, p99.9 {}",
            us(&|r| r.summary.fct_avg_ps),
            us(&|r| r.summary.fct_p99_ps as f64),
            us(&|r| r.summary.fct_p999_ps as f64)
        ),
    );
    row(out, "drops", format_args!("{:.1}", over(&|r| r.stats.drops as f64)));
    row(out, "retransmissions", format_args!("{:.1}", over(&|r| r.retransmissions as f64)));
    row(out, "ECN marks", format_args!("{:.1}", over(&|r| r.stats.marked as f64)));
    let paused = us(&|r| r.paused_ps as f64);
    row(out, "pauses", format_args!("{:.1}, {paused} us paused", over(&|r| r.stats.pauses as f64)));
    for (seed, run) in (first..).zip(runs) {
        if let Some(cycle) = &run.report.deadlock {
            row(
                out,
                "PFC deadlock",
                format_args!("seed {seed}, each waits for the next: {}", cycle.join(", ")),
            );
        }
    }
    for (seed, run) in (first..).zip(runs) {
        row(out, "trace", format_args!("{:016x} of seed {seed}", run.report.trace));
    }
}

fn speed(out: &mut String, runs: &[Run]) {
    let sum = |pick: &dyn Fn(&Run) -> f64| runs.iter().map(pick).sum::<f64>();
    let (events, hops) = (sum(&|r| r.report.stats.events as f64), sum(&|r| r.report.stats.link_hops as f64));
    let seconds = sum(&|r| r.seconds);
    row(out, "events", format_args!("{events:.0}"));
    row(out, "link-hops", format_args!("{hops:.0}"));
    row(out, "link-hops/s", format_args!("{:.0}, in {seconds:.3} s of one processor", hops / seconds));
    row(out, "peak RSS", format_args!("{:.1} MB", peak_rss() as f64 / 1e6));
    if let [Run { report, grown, .. }] = runs {
        let (flows, packets) = (report.at_once, report.stats.packets_peak);
        let each = *grown as f64 / f64::from(flows.max(1));
        row(
            out,
            "memory of traffic",
            format_args!(
                "{:.1} MB: {each:.0} B for each of {flows} flows at once, with {packets} packets",
                *grown as f64 / 1e6
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        for (ps, text) in
            [(0.0, "0 us"), (7.0, "0.007 ns"), (1.5e6, "1.500 us"), (2.5e9, "2.500 ms"), (3e12, "3.000 s")]
        {
            assert_eq!(time(ps), text);
        }
    }
}
