//! Whether other seeds, or longer runs, say the same: finished runs of several folders, each judged by the
//! same bounds, and the verdicts beside one another.
//!
//! What is read is `runs.csv`, which any build has written. A verdict is the same if it holds in all folders,
//! whatever it then shows of the paper; differs, fails, or reports in all of them.

use crate::Error;
use crate::bounds::{Checked, Verdict, check};
use crate::csv;
use crate::definition::{Experiment, Kind};
use crate::measure::Measured;
use crate::run::{Outcome, Seeds};
use core::fmt::Write as _;

/// Seeds that a file has at most.
const MAX_SEEDS: usize = 10_000;

/// The runs of an experiment, as a folder has them.
#[derive(Clone, Debug)]
pub struct Kept {
    /// What the folder is called in what is printed.
    pub name: String,
    /// Its runs.
    pub outcome: Outcome,
}

/// What became of an experiment's verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compared {
    /// They are the same in all folders.
    pub same: usize,
    /// They are not.
    pub changed: usize,
    /// Those that are the same because they fail everywhere.
    pub failed: usize,
}

/// Whether an experiment's runs can be compared. Times of this machine are not what a seed makes.
pub fn is_comparable(experiment: &Experiment) -> bool {
    !matches!(experiment.kind, Kind::Modules | Kind::Cache)
}

/// Reads what [`csv::runs`] wrote of an experiment.
pub fn read(experiment: &Experiment, text: &str) -> Result<Outcome, String> {
    let mut lines = text.lines();
    let (head, wanted) = (lines.next().unwrap_or_default(), csv::head(experiment));
    if head != wanted {
        return Err(format!("its columns are not this experiment's; run it again ({wanted})"));
    }
    let rows =
        lines.enumerate().map(|(n, line)| row(experiment, line).ok_or(format!("line {} is none", n + 2)));
    let rows: Vec<(String, u64, Measured)> = rows.collect::<Result<_, _>>()?;
    let groups = experiment.series.len() * experiment.places();
    let count = rows.len() / groups.max(1);
    if count == 0 || count > MAX_SEEDS || rows.len() != count * groups {
        return Err(format!("{} runs of {groups} series and points: not as many of each", rows.len()));
    }
    let first = rows[0].1;
    let mut at = 0;
    for name in csv::places(experiment) {
        for seed in (first..).take(count) {
            if rows[at].0 != name || rows[at].1 != seed {
                return Err(format!("line {} is not {name} with seed {seed}", at + 2));
            }
            at += 1;
        }
    }
    let runs = rows.into_iter().map(|(_, _, run)| run).collect();
    Ok(Outcome::new(Seeds { first, count: count as u32 }, experiment.places(), runs))
}

/// Series and point as they stand at the head of a line; the seed; the run.
fn row(experiment: &Experiment, line: &str) -> Option<(String, u64, Measured)> {
    // A name has commas, and no quotes in it.
    let end = line.get(1..)?.find("\",")? + 2;
    let (name, rest) = line.split_at(end);
    let mut cells = rest.strip_prefix(',')?.split(',');
    let place = format!("{name},{}", cells.next()?);
    let seed = cells.next()?.parse().ok()?;
    let mut run = Measured { exact: experiment.kind == Kind::Chains, ..Measured::default() };
    for _ in 0..experiment.measured.len() {
        run.values.push(cells.next()?.parse().ok()?);
        for half in &mut run.halves {
            half.push(match cells.next()? {
                "" => f64::NAN,
                value => value.parse().ok()?,
            });
        }
    }
    run.flows = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
    run.link_hops = cells.next()?.parse().ok()?;
    run.trace = u64::from_str_radix(cells.next().filter(|cell| cell.len() == 16)?, 16).ok()?;
    cells.next().is_none().then_some((place, seed, run))
}

/// All runs of folders whose seeds are not the same and whose runs are about as long, as if they were one
/// folder's. None where there is nothing to put together.
fn together(kept: &[Kept], experiment: &Experiment) -> Option<Outcome> {
    let seeds = |k: &Kept| k.outcome.seeds.first..k.outcome.seeds.first + u64::from(k.outcome.seeds.count);
    let length = |k: &Kept| k.outcome.unfinished().1 as f64 / f64::from(k.outcome.seeds.count);
    let mut of: Vec<&Kept> = Vec::new();
    for k in kept {
        let apart = of.iter().all(|o| seeds(o).end <= seeds(k).start || seeds(k).end <= seeds(o).start);
        let alike = of.first().is_none_or(|o| (length(k) / length(o) - 1.0).abs() < 0.2);
        if apart && alike {
            of.push(k);
        }
    }
    if of.len() < 2 {
        return None;
    }
    let count = of.iter().map(|k| k.outcome.seeds.count).sum();
    let mut runs = Vec::new();
    for (n, at) in (0..experiment.series.len()).flat_map(|n| (0..experiment.places()).map(move |at| (n, at)))
    {
        runs.extend(of.iter().flat_map(|k| k.outcome.runs(n, at).iter().cloned()));
    }
    Some(Outcome::new(Seeds { first: seeds(of[0]).start, count }, experiment.places(), runs))
}

/// What two verdicts have in common when they are the same.
fn class(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Holds(_) => 0,
        Verdict::Reports => 1,
        Verdict::Differs => 2,
        Verdict::Fails(_) => 3,
    }
}

/// Compares what folders have of an experiment: the text, with a part for each verdict that is not the same,
/// and how many there are.
pub fn compare(experiment: &Experiment, kept: &[Kept]) -> Result<(String, Compared), Error> {
    if kept.is_empty() {
        return Err(Error(format!("{}: no folder has its runs", experiment.name)));
    }
    let all: Vec<Vec<Checked<'_>>> = kept.iter().map(|k| check(experiment, &k.outcome)).collect();
    let pooled = together(kept, experiment);
    let pooled = pooled.as_ref().map(|outcome| (outcome, check(experiment, outcome)));
    let (mut out, mut compared) = (String::new(), Compared::default());
    let width = kept.iter().map(|k| k.name.chars().count()).max().unwrap_or(0).max("together".len());
    for n in 0..all[0].len() {
        let verdicts: Vec<usize> = all.iter().map(|checked| class(&checked[n].verdict())).collect();
        if verdicts.iter().all(|v| *v == verdicts[0]) {
            compared.same += 1;
            compared.failed += usize::from(matches!(all[0][n].verdict(), Verdict::Fails(_)));
            continue;
        }
        compared.changed += 1;
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "{}: {}", experiment.name, what(experiment, &all[0][n]));
        let mut line = |name: &str, c: &Checked<'_>, seeds: u32| {
            let ratio = format!("{:.2}", c.ratio);
            let _ = writeln!(out, "    {name:width$} {seeds:>4} seeds {ratio:>16}  {}", c.verdict());
        };
        for (k, checked) in kept.iter().zip(&all) {
            line(&k.name, &checked[n], k.outcome.seeds.count);
        }
        if let Some((outcome, checked)) = &pooled {
            line("together", &checked[n], outcome.seeds.count);
        }
    }
    Ok((out, compared))
}

/// What a bound says, of which metric and where.
fn what(experiment: &Experiment, c: &Checked<'_>) -> String {
    let place = c.bound.over_at.map_or(String::new(), |x| format!(" at {x}"));
    let over = c.bound.over.as_ref().map(|over| format!(" / {over}{place}"));
    let over = over.or(c.bound.minus.as_ref().map(|minus| format!(" - {minus}"))).unwrap_or_default();
    let x = c.x.map_or(String::new(), |x| format!(" at {x}"));
    format!("{}{over}, {}{x}: {}", c.bound.ratio, experiment.measured.label(c.metric), c.relation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = "cite = \"a paper\"\nscenario = {}\nmeasure = { warm-up = 0.2, drain = 0.1 }\n";

    fn experiment() -> Experiment {
        let text = "title = \"t\"\nfigure = \"f\"\nmetrics = [\"slowdown\", \"rct\"]\n\
                    [sweep]\nlabel = \"x\"\npoints = [{ x = 1 }, { x = 2.5 }]\n\
                    [[series]]\nname = \"A, with a comma\"\n[[series]]\nname = \"B\"\n\
                    [[bound]]\nratio = \"A, with a comma\"\nover = \"B\"\nmetrics = [\"slowdown\"]\n\
                    more = 0.05";
        Experiment::parse("p/x", text, PAPER).unwrap()
    }

    /// A's slowdown over B's is this at either point, a tenth to either side; four seeds.
    fn outcome(first: u64, ratio: f64) -> Outcome {
        let run = |mean: f64, n: u64| Measured {
            values: vec![mean * [0.9, 0.97, 1.03, 1.1][n as usize], f64::INFINITY],
            halves: [vec![mean, f64::NAN], vec![mean, f64::NAN]],
            trace: first + n,
            flows: (10, 1),
            link_hops: 7,
            ..Measured::default()
        };
        let of = |mean: f64| (0..8).map(move |n| run(mean, n % 4));
        let below = |n: u64| run(1.0, 3 - n % 4);
        Outcome::new(Seeds { first, count: 4 }, 2, of(ratio).chain((0..8).map(below)).collect())
    }

    fn kept(name: &str, outcome: Outcome) -> Kept {
        Kept { name: name.to_owned(), outcome }
    }

    #[test]
    fn runs_are_read_as_they_were_written() {
        let experiment = experiment();
        let text = csv::runs(&experiment, &outcome(100, 1.7));
        let read = read(&experiment, &text).unwrap();
        assert_eq!(csv::runs(&experiment, &read), text);
        assert_eq!((read.seeds.first, read.seeds.count), (100, 4));
        assert!(read.varied(0, 0) && read.unfinished() == (16, 160));
    }

    #[test]
    fn what_is_not_this_experiments_is_refused() {
        let experiment = experiment();
        let text = csv::runs(&experiment, &outcome(1, 1.7));
        let lines: Vec<&str> = text.lines().collect();
        // Without any one line, with one twice, or with two that have changed places.
        for n in 0..lines.len() {
            let without: Vec<&str> = (0..lines.len()).filter(|at| *at != n).map(|at| lines[at]).collect();
            assert!(read(&experiment, &without.join("\n")).is_err(), "without line {n}");
            let mut twice = lines.clone();
            twice.insert(n, lines[n]);
            assert!(read(&experiment, &twice.join("\n")).is_err(), "line {n} twice");
            if n > 1 {
                let mut swapped = lines.clone();
                swapped.swap(n - 1, n);
                assert!(read(&experiment, &swapped.join("\n")).is_err(), "line {n} before its turn");
            }
        }
        // Cut anywhere within a line.
        let last = lines[lines.len() - 1];
        for end in 1..last.len() {
            let mut cut = lines.clone();
            *cut.last_mut().unwrap() = &last[..end];
            assert!(read(&experiment, &cut.join("\n")).is_err(), "cut to {:?}", &last[..end]);
        }
        assert!(read(&experiment, "").is_err());
        assert!(read(&experiment, &text.replace("rct", "drops")).unwrap_err().contains("columns"));
    }

    #[test]
    fn a_verdict_that_changes_is_shown_and_counted() {
        let experiment = experiment();
        let well = kept("one", outcome(1, 3.0));
        let (text, compared) = compare(&experiment, &[well.clone(), kept("two", outcome(100, 2.0))]).unwrap();
        assert_eq!((text.as_str(), compared), ("", Compared { same: 2, changed: 0, failed: 0 }));
        let (text, compared) = compare(&experiment, &[well, kept("two", outcome(100, 1.0))]).unwrap();
        assert_eq!(compared, Compared { same: 0, changed: 2, failed: 0 });
        assert!(text.starts_with("p/x: A, with a comma / B, avg slowdown at 1: more than 1.05\n"), "{text}");
        let lines: Vec<&str> = text.lines().take(4).collect();
        assert!(lines[1].contains("one") && lines[1].ends_with("direction"), "{text}");
        assert!(lines[2].contains("two") && lines[2].contains("FAILS"), "{text}");
        assert!(lines[3].contains("together    8 seeds"), "{text}");
        // What fails in both is the same, and is counted.
        let bad = [kept("one", outcome(1, 1.0)), kept("two", outcome(100, 1.0))];
        assert_eq!(compare(&experiment, &bad).unwrap().1, Compared { same: 2, changed: 0, failed: 2 });
    }

    /// The same seeds are the same workload: a longer run of it is not one more.
    #[test]
    fn the_same_seeds_are_not_put_together() {
        let experiment = experiment();
        let of =
            |first| together(&[kept("one", outcome(1, 1.0)), kept("two", outcome(first, 3.0))], &experiment);
        assert!(of(1).is_none() && of(4).is_none());
        assert_eq!(of(5).unwrap().seeds.count, 8);
    }
}
