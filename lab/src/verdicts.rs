//! What bounds show of their papers, counted: as experiments declare it, and as runs bear it out.

use crate::bounds::{Checked, Verdict};
use crate::definition::{Claim, Experiment, Kind};
use core::fmt;
use core::ops::AddAssign;

/// How many bounds show what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// The paper's printed number is within our interval.
    pub faithful: usize,
    /// A direction.
    pub direction: usize,
    /// A parameter was chosen by it.
    pub fitted: usize,
    /// They are printed, and claim nothing.
    pub reports: usize,
    /// They are known not to hold, and say why.
    pub differs: usize,
    /// They claim to hold, and do not.
    pub fails: usize,
}

impl Counts {
    /// Of what was checked, by its verdict: each point and metric of a bound counts.
    pub fn of(checked: &[Checked<'_>]) -> Counts {
        let mut out = Counts::default();
        for c in checked {
            *match c.verdict() {
                Verdict::Holds(claim) => out.place(claim),
                Verdict::Reports => &mut out.reports,
                Verdict::Differs => &mut out.differs,
                Verdict::Fails(_) => &mut out.fails,
            } += 1;
        }
        out
    }

    /// Of what an experiment declares: each of its bounds counts once, and none of them can be lost without a
    /// count that falls.
    pub fn declared(experiment: &Experiment) -> Counts {
        let mut out = Counts::default();
        if experiment.kind == Kind::Modules {
            // Times of this machine beside the paper's.
            out.reports = 1;
        }
        for bound in &experiment.bounds {
            let printed = !bound.values.is_empty() && bound.within.is_none();
            *match bound.differs {
                _ if !bound.gate || printed => &mut out.reports,
                Some(_) => &mut out.differs,
                None => out.place(bound.verdict.unwrap_or(Claim::Direction)),
            } += 1;
        }
        out
    }

    fn place(&mut self, claim: Claim) -> &mut usize {
        match claim {
            Claim::Faithful => &mut self.faithful,
            Claim::Direction => &mut self.direction,
            Claim::Fitted => &mut self.fitted,
        }
    }

    /// How many hold.
    pub fn hold(&self) -> usize {
        self.faithful + self.direction + self.fitted
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.faithful += other.faithful;
        self.direction += other.direction;
        self.fitted += other.fitted;
        self.reports += other.reports;
        self.differs += other.differs;
        self.fails += other.fails;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { faithful, direction, fitted, reports, differs, fails } = self;
        let hold = self.hold();
        write!(f, "{hold} hold ({faithful} faithful, {direction} direction, {fitted} fitted), ")?;
        write!(f, "{reports} report, {differs} differ, {fails} fail")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use std::collections::BTreeMap;

    /// A line of the table in docs/lab.md, or none for another line: the paper, and how many bounds are
    /// faithful, directions, fitted, report and differ.
    fn row(line: &str) -> Option<(&str, [usize; 5])> {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let paper = cells.next()?.strip_suffix('`')?;
        let counts: Vec<usize> = cells.map_while(|cell| cell.trim_end_matches(" |").parse().ok()).collect();
        Some((paper, counts.try_into().ok()?))
    }

    /// No claim of the documentation's table is taken back without a change there, and no bound is lost.
    #[test]
    fn claims_do_not_fall_below_the_documentation() {
        let mut papers: BTreeMap<&str, Counts> = BTreeMap::new();
        for name in registry::names() {
            let declared = Counts::declared(&registry::find(name).unwrap_or_else(|e| panic!("{e}")));
            *papers.entry(name.split('/').next().unwrap()).or_default() += declared;
        }
        let rows: Vec<_> = include_str!("../../docs/lab.md").lines().filter_map(row).collect();
        assert!(rows.len() >= 5, "{rows:?}");
        for (paper, [faithful, direction, fitted, reports, differs]) in rows {
            let now = papers[paper];
            let before = Counts { faithful, direction, fitted, reports, differs, fails: 0 };
            assert!(
                now.faithful >= faithful && now.hold() >= before.hold(),
                "{paper}: {now}; it was {before}"
            );
            let all = |c: Counts| c.hold() + c.reports + c.differs;
            assert!(all(now) >= all(before), "{paper}: {now}; it was {before}");
            // Here what is known not to hold does not become more by itself either.
            if paper == "irn" || paper == "onerma" {
                assert_eq!(now, before, "{paper}: say so in docs/lab.md");
            }
        }
    }

    #[test]
    fn faithful_needs_a_number_that_was_read() {
        let parse = |bound: &str| {
            let text = format!(
                "title = \"t\"\nfigure = \"f\"\nmetrics = [\"slowdown\"]\n[[series]]\nname = \"A\"\n\
                 [[bound]]\nratio = \"A\"\nmin = 1\nmax = 2\n{bound}"
            );
            let paper = "cite = \"c\"\n[scenario]\n[measure]\nwarm-up = 0\ndrain = 0\n";
            Experiment::parse("own/one", &text, paper).map_err(|e| e.0)
        };
        let declared = |bound: &str| Counts::declared(&parse(bound).unwrap_or_else(|e| panic!("{e}")));
        let faithful = "verdict = \"faithful\"\n";
        for (text, why) in [
            (faithful.to_owned(), "needs `cited`"),
            (format!("{faithful}cited = 1.5"), "needs `cited`"),
            (format!("{faithful}cited = 1.5\nsource = \"figure 1, from memory\""), "needs `cited`"),
            (format!("{faithful}cited = [2, 1]\nsource = \"section 1\""), "cited: give a number"),
            ("verdict = \"fitted\"\ngate = false".to_owned(), "goes neither with gate"),
            ("verdict = \"direction\"\ndiffers = \"why\"".to_owned(), "goes neither with gate"),
            ("verdict = \"exact\"".to_owned(), "unknown variant"),
        ] {
            let said = parse(&text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        let good = declared(&format!("{faithful}cited = 1.5\nsource = \"section 1\""));
        assert_eq!(good, Counts { faithful: 1, ..Counts::default() });
        assert_eq!(declared(""), Counts { direction: 1, ..Counts::default() });
        assert_eq!(declared("differs = \"why\""), Counts { differs: 1, ..Counts::default() });
        assert_eq!(declared("gate = false"), Counts { reports: 1, ..Counts::default() });
        let all = Counts { faithful: 1, direction: 2, fitted: 3, reports: 4, differs: 5, fails: 6 };
        assert_eq!(all.to_string(), "6 hold (1 faithful, 2 direction, 3 fitted), 4 report, 5 differ, 6 fail");
    }
}
