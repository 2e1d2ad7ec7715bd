//! Shows that an experiment's bounds can fail: what is wrong on purpose must not pass for its outcome.
//!
//! Equal and swapped series, and flat and reversed points, are made of finished runs ([`Mixed`]). A mechanism
//! that is off, or a baseline that never ends, is simulated ([`Mutation`](crate::definition::Mutation)). A
//! mutation is caught when a gate that claims to hold, and holds, no longer does; or when flows do not end
//! that must.

use crate::Error;
use crate::bounds::{Checked, check};
use crate::definition::{Experiment, Mixed};
use crate::run::{Effort, Outcome, Progress, run_mutation};
use core::fmt::Write;

/// What became of one mutation.
#[derive(Clone, Debug)]
pub struct Tried {
    /// What was wrong.
    pub name: String,
    /// Gates that hold without it and not with it, by their numbers among all that were checked; the fewest,
    /// where there were several ways to do it.
    pub broken: Vec<usize>,
    /// Flows did not end that must.
    pub stranded: bool,
    /// The way in which it passed, if it did.
    pub survived: Option<String>,
}

/// All mutations of an experiment.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Each, in the order of its definition.
    pub tried: Vec<Tried>,
    /// Gates that claim to hold, and do.
    pub claims: Vec<usize>,
}

impl Trial {
    /// Whether each was caught. Where no gate claims anything, none needs to be.
    pub fn passed(&self) -> bool {
        self.claims.is_empty() || self.tried.iter().all(|tried| tried.survived.is_none())
    }

    /// Gates that no mutation broke.
    pub fn untouched(&self) -> impl Iterator<Item = usize> {
        let broken = |claim: &usize| self.tried.iter().any(|tried| tried.broken.contains(claim));
        self.claims.iter().copied().filter(move |claim| !broken(claim))
    }
}

/// A false outcome, and in which way it is false.
type Mutant = (String, Outcome);

/// Tries all mutations on an outcome.
pub fn run(
    experiment: &Experiment,
    outcome: &Outcome,
    effort: &Effort,
    progress: &mut dyn FnMut(Progress),
) -> Result<Trial, Error> {
    let checked = check(experiment, outcome);
    let claims: Vec<usize> = (0..checked.len()).filter(|at| checked[*at].is_claim_that_holds()).collect();
    let mut tried = Vec::new();
    for mixed in &experiment.mutate {
        let mutants = mixed_up(experiment, outcome, &checked, *mixed);
        let name = match mixed {
            Mixed::Equal => "all series are equal",
            Mixed::Swapped => "two series have changed places",
            Mixed::Flat => "all points are equal",
            Mixed::Reversed => "the points are in reverse order",
        };
        tried.push(judge(experiment, &claims, name, &mutants));
    }
    for mutation in &experiment.mutations {
        let mutant = if claims.is_empty() {
            // Nothing is claimed, so nothing is simulated.
            Vec::new()
        } else {
            vec![(String::new(), run_mutation(experiment, mutation, (outcome, effort), progress)?)]
        };
        tried.push(judge(experiment, &claims, &mutation.name, &mutant));
    }
    Ok(Trial { tried, claims })
}

/// What one mutation breaks in the mutant that breaks least.
fn judge(experiment: &Experiment, claims: &[usize], name: &str, mutants: &[Mutant]) -> Tried {
    let mut tried = Tried { name: name.to_owned(), broken: Vec::new(), stranded: false, survived: None };
    if claims.is_empty() {
        return tried;
    }
    if mutants.is_empty() {
        // It was to be tried, and there was no way to.
        tried.survived = Some("there is nothing that it changes".to_owned());
    }
    let mut least = usize::MAX;
    for (way, outcome) in mutants {
        let checked = check(experiment, outcome);
        let broken: Vec<usize> = claims.iter().copied().filter(|at| checked[*at].judged().is_err()).collect();
        let stranded = !experiment.may_fail && outcome.unfinished().0 > 0;
        if broken.is_empty() && !stranded {
            tried.survived.get_or_insert_with(|| way.clone());
        }
        if broken.len() < least {
            least = broken.len();
            (tried.broken, tried.stranded) = (broken, stranded);
        }
    }
    tried
}

/// The false outcomes that finished runs can be made into.
fn mixed_up(
    experiment: &Experiment,
    outcome: &Outcome,
    checked: &[Checked<'_>],
    mixed: Mixed,
) -> Vec<Mutant> {
    let (series, places) = (experiment.series.len(), outcome.places);
    let name = |n: usize| experiment.series[n].name.as_str();
    let x = |at: usize| experiment.sweep.as_ref().map_or(0.0, |sweep| sweep.points[at].x);
    // Where each series' runs at each place come from.
    let from = |way: String, of: &dyn Fn(usize, usize) -> (usize, usize)| {
        let mut mutant = outcome.clone();
        for (n, at) in (0..series).flat_map(|n| (0..places).map(move |at| (n, at))) {
            let (from_series, from_place) = of(n, at);
            mutant.replace(n, at, outcome.runs(from_series, from_place));
        }
        (way, mutant)
    };
    match mixed {
        Mixed::Equal if series > 1 => {
            (0..series).map(|all| from(format!("all are `{}`", name(all)), &|_, at| (all, at))).collect()
        }
        Mixed::Swapped => {
            let swap = |(a, b): (usize, usize)| {
                let other = move |n: usize| {
                    if n == a {
                        b
                    } else if n == b {
                        a
                    } else {
                        n
                    }
                };
                from(format!("`{}` and `{}`", name(a), name(b)), &|n, at| (other(n), at))
            };
            directions(experiment, checked).into_iter().map(swap).collect()
        }
        Mixed::Flat if places > 1 => {
            (0..places).map(|all| from(format!("all are as at {}", x(all)), &|n, _| (n, all))).collect()
        }
        Mixed::Reversed if places > 1 => {
            vec![from("reversed".to_owned(), &|n, at| (n, places - 1 - at))]
        }
        Mixed::Equal | Mixed::Flat | Mixed::Reversed => Vec::new(),
    }
}

/// Pairs of series of which a gate claims that they differ in one direction.
fn directions(experiment: &Experiment, checked: &[Checked<'_>]) -> Vec<(usize, usize)> {
    let number = |name: &str| experiment.series.iter().position(|s| s.name == name).unwrap_or(0);
    let claims = checked.iter().filter(|c| c.is_claim_that_holds() && c.relation.is_direction());
    let pairs = claims.filter_map(|c| Some((number(&c.bound.ratio), number(c.bound.over.as_deref()?))));
    let mut pairs: Vec<_> = pairs.map(|(a, b)| (a.min(b), a.max(b))).filter(|(a, b)| a != b).collect();
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

/// What is printed of it: each mutation, caught or survived, and the gates that none of them breaks.
pub fn text(experiment: &Experiment, outcome: &Outcome, trial: &Trial) -> String {
    let mut out = String::new();
    let checked = check(experiment, outcome);
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "{}: mutations", experiment.name);
    let claims = trial.claims.len();
    for tried in &trial.tried {
        let verdict = match (&tried.survived, tried.stranded) {
            _ if claims == 0 => "not tried: no gate claims to hold".to_owned(),
            (Some(way), _) => format!("SURVIVED ({way})").replace(" ()", ""),
            (None, true) => format!("caught by {} of {claims} gates; flows did not end", tried.broken.len()),
            (None, false) => format!("caught by {} of {claims} gates", tried.broken.len()),
        };
        let _ = writeln!(out, "    {:56} {verdict}", tried.name);
    }
    let untouched: Vec<usize> = trial.untouched().collect();
    for at in untouched {
        let c = &checked[at];
        let over = c.bound.over.as_ref().map_or(String::new(), |over| format!(" / {over}"));
        let x = c.x.map_or(String::new(), |x| format!(" at {x}"));
        let label = experiment.measured.label(c.metric);
        let _ = writeln!(out, "    no mutation breaks: {}{over}, {label}{x}: {}", c.bound.ratio, c.relation);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measured;
    use crate::run::Seeds;

    const PAPER: &str = "cite = \"a paper\"\nscenario = {}\nmeasure = { warm-up = 0.2, drain = 0.1 }\n";

    fn experiment(text: &str) -> Experiment {
        let head = "title = \"t\"\nfigure = \"f\"\nmetrics = [\"slowdown\"]\n";
        Experiment::parse("p/x", &format!("{head}{text}"), PAPER).unwrap()
    }

    /// Four seeds around each mean, a tenth to either side.
    fn outcome(places: usize, means: &[f64]) -> Outcome {
        let seed = |mean: &f64, n: u64| Measured {
            values: vec![mean * [0.9, 0.97, 1.03, 1.1][n as usize]],
            trace: n,
            flows: (10, 0),
            ..Measured::default()
        };
        let runs = means.iter().flat_map(|mean| (0..4).map(move |n| seed(mean, n)));
        Outcome::new(Seeds { first: 1, count: 4 }, places, runs.collect())
    }

    fn effort() -> Effort {
        Effort {
            scale: crate::Scale::Quick,
            seeds: None,
            first_seed: 1,
            jobs: 1,
            command: "adverb".into(),
            store: None,
        }
    }

    fn trial(experiment: &Experiment, outcome: &Outcome) -> Trial {
        run(experiment, outcome, &effort(), &mut |_| {}).unwrap()
    }

    const SERIES: &str = "[[series]]\nname = \"A\"\n[[series]]\nname = \"B\"\n";

    #[test]
    fn equal_and_swapped_series_are_caught_by_a_direction_with_a_margin() {
        let text = format!(
            "mutate = [\"equal\", \"swapped\"]\n{SERIES}[[bound]]\nratio = \"A\"\nover = \"B\"\nmore = 0.05"
        );
        let experiment = experiment(&text);
        let tried = trial(&experiment, &outcome(1, &[6.0, 3.0]));
        assert_eq!(tried.claims, [0]);
        assert!(tried.passed() && tried.tried.iter().all(|t| t.broken == [0]), "{tried:?}");
        assert_eq!(tried.untouched().count(), 0);
        // Where the gate does not hold there is nothing to be caught, and nothing passes for it either.
        let none = trial(&experiment, &outcome(1, &[3.0, 6.0]));
        assert!(none.claims.is_empty() && none.passed());
        assert!(super::text(&experiment, &outcome(1, &[3.0, 6.0]), &none).contains("no gate claims"));
    }

    /// A band around equality cannot see them: that is what the mutation is for.
    #[test]
    fn equal_series_survive_a_band_around_equality() {
        let bound = "[[bound]]\nratio = \"A\"\nover = \"B\"\nmin = 0.8\nmax = 1.3";
        let experiment = experiment(&format!("mutate = [\"equal\"]\n{SERIES}{bound}"));
        let outcome = outcome(1, &[3.0, 3.1]);
        let tried = trial(&experiment, &outcome);
        assert!(!tried.passed() && tried.untouched().collect::<Vec<_>>() == [0]);
        let said = super::text(&experiment, &outcome, &tried);
        assert!(said.contains("SURVIVED (all are `A`)"), "{said}");
        assert!(said.contains("no mutation breaks: A / B, avg slowdown: 0.8 to 1.3"), "{said}");
    }

    #[test]
    fn flat_and_reversed_points_are_caught_by_a_slope() {
        let sweep = "[sweep]\nlabel = \"x\"\npoints = [{ x = 1 }, { x = 2 }, { x = 4 }]\n";
        let bound = "[[bound]]\nratio = \"A\"\nover = \"A\"\nover-at = 1\nat = [4]\nmore = 0.5";
        let series = "[[series]]\nname = \"A\"\n";
        let mutate = "mutate = [\"flat\", \"reversed\"]\n";
        let experiment = experiment(&format!("{mutate}{sweep}{series}{bound}"));
        assert!(trial(&experiment, &outcome(3, &[1.0, 2.0, 4.0])).passed());
        let bound = "[[bound]]\nratio = \"A\"\nmin = 0.5";
        let level = super::tests::experiment(&format!("{mutate}{sweep}{series}{bound}"));
        let tried = trial(&level, &outcome(3, &[1.0, 2.0, 4.0]));
        assert_eq!(tried.tried.iter().filter(|t| t.survived.is_some()).count(), 2);
    }

    /// What is asked for and cannot be done is not taken for done.
    #[test]
    fn a_mutation_that_changes_nothing_has_survived() {
        let bound = "[[bound]]\nratio = \"A\"\nmin = 0.5";
        let experiment = experiment(&format!("mutate = [\"equal\"]\n[[series]]\nname = \"A\"\n{bound}"));
        assert!(!trial(&experiment, &outcome(1, &[1.0])).passed());
    }
}
