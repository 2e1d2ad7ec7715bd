//! Relations that must hold, each judged on the 95% confidence interval (Student's t over seeds) of a ratio
//! of two series' values, seed by seed, or of one series' value.
//!
//! A mean alone proves nothing: "1.52 +- 1.66" is above 1, and so would be, half of the time, a difference
//! that is not there. So a direction holds when the whole interval lies beyond equality by the margin that
//! the experiment states, and a band when the interval is narrow enough to tell. A single run has no
//! interval: it reports, and never holds.

use crate::definition::{Bound, Claim, Experiment};
use crate::run::{Outcome, Part};
use adverb_sim::statistics::Estimate;
use core::fmt;

/// What a bound asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Relation {
    /// Above this; equality is not enough.
    Above(f64),
    /// Below this; equality is not enough.
    Below(f64),
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// From the one to the other.
    Band(f64, f64),
    /// The paper's value, and as a share of it how far ours may be from it; infinite where that is only
    /// printed.
    Near(f64, f64),
}

/// Why a relation does not hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Miss {
    /// A value is infinite, or not a number.
    NotFinite,
    /// There is one run, which has no interval.
    OneRun,
    /// Not even the mean is where it must be.
    Mean,
    /// The mean is, but the interval reaches as far as this.
    Reaches(f64),
    /// It holds, but the number that the paper prints is not within the interval.
    Cited,
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Miss::NotFinite => write!(f, "not finite"),
            Miss::OneRun => write!(f, "one run"),
            Miss::Mean => write!(f, "the mean is outside"),
            Miss::Reaches(end) => write!(f, "the interval reaches {end:.2}"),
            Miss::Cited => write!(f, "the paper's number is outside the interval"),
        }
    }
}

impl Relation {
    /// What a bound says, or why it says nothing. Of a ratio, `min` and `max` alone are directions too: a
    /// ratio that just equals them is not beyond them.
    pub fn of(bound: &Bound, at: usize) -> Result<Relation, String> {
        let ratio = bound.over.is_some();
        let finite = |x: f64| if x.is_finite() { Ok(x) } else { Err(format!("{x} is no bound")) };
        if let Some(value) = bound.values.get(at) {
            let alone = (bound.more, bound.less, bound.min, bound.max) == (None, None, None, None);
            let share = bound.within.is_none_or(|within| within > 0.0 && within < 1.0);
            return match alone && !ratio && finite(*value)? > 0.0 && share {
                true => Ok(Relation::Near(*value, bound.within.unwrap_or(f64::INFINITY))),
                false => Err("values are positive, of a series alone, and `within` is a share".to_owned()),
            };
        }
        let margin = |m: f64| match ratio && m > 0.0 && m < 1.0 {
            true => Ok(m),
            false => Err("more and less are margins of a ratio, above 0 and below 1".to_owned()),
        };
        match (bound.more, bound.less, bound.min, bound.max) {
            (Some(m), None, None, None) => Ok(Relation::Above(1.0 + margin(m)?)),
            (None, Some(m), None, None) => Ok(Relation::Below(1.0 - margin(m)?)),
            (None, None, Some(min), None) if ratio => Ok(Relation::Above(finite(min)?)),
            (None, None, None, Some(max)) if ratio => Ok(Relation::Below(finite(max)?)),
            (None, None, Some(min), None) => Ok(Relation::AtLeast(finite(min)?)),
            (None, None, None, Some(max)) => Ok(Relation::AtMost(finite(max)?)),
            (None, None, Some(min), Some(max)) if finite(min)? < finite(max)? => Ok(Relation::Band(min, max)),
            _ => Err("give one of more, less, min, max, or min below max".to_owned()),
        }
    }

    /// Whether equality of the two series would break it.
    pub fn is_direction(self) -> bool {
        match self {
            Relation::Above(x) => x >= 1.0,
            Relation::Below(x) => x <= 1.0,
            Relation::AtLeast(_) | Relation::AtMost(_) | Relation::Band(..) | Relation::Near(..) => false,
        }
    }

    /// Judges an estimate by its interval.
    pub fn judge(self, e: &Estimate) -> Result<(), Miss> {
        if !e.mean.is_finite() {
            return Err(Miss::NotFinite);
        }
        if e.n < 2 {
            return Err(Miss::OneRun);
        }
        let (low, high) = e.interval();
        let within = |x: f64| match self {
            Relation::Above(least) => x > least,
            Relation::Below(most) => x < most,
            Relation::AtLeast(least) => x >= least,
            Relation::AtMost(most) => x <= most,
            Relation::Band(least, most) => least <= x && x <= most,
            Relation::Near(value, share) => (x / value - 1.0).abs() <= share,
        };
        let narrow = match self {
            Relation::Band(least, most) => high - low < most - least,
            Relation::Near(value, share) => high - low < 2.0 * value * share,
            _ => false,
        };
        match (within(e.mean), within(low), within(high)) {
            _ if !low.is_finite() => Err(Miss::NotFinite),
            (false, ..) => Err(Miss::Mean),
            (true, true, true) => Ok(()),
            _ if narrow => Ok(()),
            (true, false, _) => Err(Miss::Reaches(low)),
            (true, true, false) => Err(Miss::Reaches(high)),
        }
    }
}

/// As it is printed.
impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Relation::Above(x) => write!(f, "more than {x}"),
            Relation::Below(x) => write!(f, "less than {x}"),
            Relation::AtLeast(x) => write!(f, "at least {x}"),
            Relation::AtMost(x) => write!(f, "at most {x}"),
            Relation::Band(a, b) => write!(f, "{a} to {b}"),
            Relation::Near(value, share) if share.is_infinite() => write!(f, "{value}"),
            Relation::Near(value, share) => write!(f, "within {:.0}% of {value}", share * 100.0),
        }
    }
}

/// What is said of a bound at a point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// It holds, by its interval, and shows this of the paper.
    Holds(Claim),
    /// It claims nothing: it is not a gate, or there is one run.
    Reports,
    /// It is said not to hold, and does not.
    Differs,
    /// It claims to hold, and does not.
    Fails(Miss),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Holds(Claim::Faithful) => write!(f, "faithful"),
            Verdict::Holds(Claim::Direction) => write!(f, "direction"),
            Verdict::Holds(Claim::Fitted) => write!(f, "fitted"),
            Verdict::Reports => write!(f, "reports"),
            Verdict::Differs => write!(f, "differs"),
            Verdict::Fails(miss) => write!(f, "FAILS: {miss}"),
        }
    }
}

/// A bound, at one point and for one metric.
#[derive(Clone, Debug)]
pub struct Checked<'a> {
    /// The bound.
    pub bound: &'a Bound,
    /// What it asks for.
    pub relation: Relation,
    /// Of which metric, by its number.
    pub metric: usize,
    /// Where, if there is a sweep.
    pub x: Option<f64>,
    /// The ratio, or the value, over seeds. The same seed is the same workload for both series.
    pub ratio: Estimate,
    /// The means of the first half of what is measured and of the second, where it is measured by halves.
    pub halves: Option<(f64, f64)>,
    /// Whether the seeds made different runs. If not there is one run, however many seeds.
    pub varied: bool,
}

impl Checked<'_> {
    /// Whether the relation holds, by its interval, whatever is claimed of it. What is called faithful has
    /// the paper's number within the interval, too.
    pub fn judged(&self) -> Result<(), Miss> {
        self.relation.judge(&self.ratio)?;
        let cited = self.bound.cited.filter(|_| self.bound.verdict == Some(Claim::Faithful));
        let (low, high) = self.ratio.interval();
        match cited.map(|cited| cited.ends()) {
            Some((from, to)) if to < low || high < from => Err(Miss::Cited),
            _ => Ok(()),
        }
    }

    /// What it shows if it holds.
    fn claim(&self) -> Claim {
        self.bound.verdict.unwrap_or(Claim::Direction)
    }

    /// What is said of it.
    pub fn verdict(&self) -> Verdict {
        if !self.bound.gate || matches!(self.relation, Relation::Near(_, share) if share.is_infinite()) {
            return Verdict::Reports;
        }
        let known = self.bound.differs.is_some();
        match self.judged() {
            Err(Miss::OneRun) => Verdict::Reports,
            Ok(()) if !self.varied => Verdict::Reports,
            Ok(()) => Verdict::Holds(self.claim()),
            Err(_) if known => Verdict::Differs,
            Err(miss) => Verdict::Fails(miss),
        }
    }

    /// Whether it is claimed to hold, and does.
    pub fn is_claim_that_holds(&self) -> bool {
        self.bound.differs.is_none() && matches!(self.verdict(), Verdict::Holds(_))
    }
}

/// A metric and a point at which a bound judges.
pub(crate) struct Judged<'a> {
    pub bound: &'a Bound,
    /// Number of the metric among the experiment's.
    pub metric: usize,
    /// Number of the point along the x axis, and where it stands there.
    pub at: usize,
    pub x: Option<f64>,
    /// Which of the bound's own values is the point's.
    pub place: usize,
}

/// All that the bounds of an experiment judge, in their order, then its metrics', then the points'.
pub(crate) fn judged(experiment: &Experiment, points: usize) -> Vec<Judged<'_>> {
    let mut out = Vec::new();
    for bound in &experiment.bounds {
        for (metric, name) in experiment.metrics.iter().enumerate() {
            if !bound.metrics.is_empty() && !bound.metrics.contains(name) {
                continue;
            }
            for at in 0..points {
                let x = experiment.sweep.as_ref().map(|s| s.points[at].x);
                let place =
                    if bound.at.is_empty() { Some(at) } else { bound.at.iter().position(|b| Some(*b) == x) };
                out.extend(place.map(|place| Judged { bound, metric, at, x, place }));
            }
        }
    }
    out
}

/// Checks all bounds of an experiment.
pub fn check<'a>(experiment: &'a Experiment, outcome: &Outcome) -> Vec<Checked<'a>> {
    let mut out = Vec::new();
    for Judged { bound, metric, at, x, place } in judged(experiment, outcome.places) {
        // An experiment that was read has been checked.
        let Ok(relation) = Relation::of(bound, place) else { continue };
        let sides = Sides::of(experiment, bound, at);
        let ratio = Estimate::of(&sides.ratios(outcome, metric, Part::Whole));
        let half = |part| Estimate::of(&sides.ratios(outcome, metric, part)).mean;
        let halves = (half(Part::First), half(Part::Second));
        let halves = (halves.0.is_finite() && halves.1.is_finite()).then_some(halves);
        let varied = sides.varied(outcome);
        out.push(Checked { bound, relation, metric, x, ratio, halves, varied });
    }
    out
}

/// The runs that a bound compares at a point: series and place of either.
struct Sides {
    above: (usize, usize),
    below: Option<(usize, usize)>,
    /// What is below is taken away.
    minus: bool,
}

impl Sides {
    fn of(experiment: &Experiment, bound: &Bound, at: usize) -> Sides {
        let series = |name: &str| experiment.series.iter().position(|s| s.name == name).unwrap_or(0);
        let places = experiment.sweep.as_ref().map_or(&[][..], |sweep| &sweep.points);
        let over_at = bound.over_at.and_then(|x| places.iter().position(|point| point.x == x));
        let other = bound.over.as_deref().or(bound.minus.as_deref());
        let below = other.map(|other| (series(other), over_at.unwrap_or(at)));
        Sides { above: (series(&bound.ratio), at), below, minus: bound.minus.is_some() }
    }

    fn ratios(&self, outcome: &Outcome, metric: usize, part: Part) -> Vec<f64> {
        let values = |side| outcome.values(side, metric, part);
        match self.below {
            None => values(self.above),
            Some(below) if self.minus => {
                values(self.above).iter().zip(values(below)).map(|(a, b)| a - b).collect()
            }
            Some(below) => outcome.ratios(self.above, below, metric, part),
        }
    }

    fn varied(&self, outcome: &Outcome) -> bool {
        core::iter::once(self.above).chain(self.below).any(|(series, at)| outcome.varied(series, at))
    }
}

#[cfg(test)]
mod tests {
    use super::Relation::*;
    use super::*;

    /// An estimate with this mean and half of an interval.
    fn of(mean: f64, half_width: f64) -> Estimate {
        Estimate { n: 4, mean, half_width }
    }

    #[test]
    fn a_relation_is_judged_on_the_interval() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let one_run = Estimate::of(&[2.0]);
        for (relation, estimate, judged) in [
            // More than equal by a margin.
            (Above(1.05), of(1.52, 1.66), Err(Miss::Reaches(1.52 - 1.66))),
            (Above(1.05), of(2.17, 0.45), Ok(())),
            (Above(1.05), of(1.0, 0.0), Err(Miss::Mean)),
            (Above(1.0), of(1.0, 0.0), Err(Miss::Mean)),
            (Above(1.05), of(1.10, 0.06), Err(Miss::Reaches(1.10 - 0.06))),
            (Above(1.05), of(1.04, 0.001), Err(Miss::Mean)),
            (Above(1.05), of(inf, nan), Err(Miss::NotFinite)),
            (Above(1.05), of(nan, nan), Err(Miss::NotFinite)),
            (Above(1.05), of(2.0, inf), Err(Miss::NotFinite)),
            (Above(1.05), one_run, Err(Miss::OneRun)),
            // Less, by a margin.
            (Below(0.95), of(0.8, 0.1), Ok(())),
            (Below(0.95), of(0.8, 0.2), Err(Miss::Reaches(1.0))),
            (Below(0.95), of(1.0, 0.0), Err(Miss::Mean)),
            (Below(0.65), of(0.65, 0.0), Err(Miss::Mean)),
            (Below(0.95), of(-inf, nan), Err(Miss::NotFinite)),
            // Values, which may be exactly what they are at most.
            (AtMost(0.0), of(0.0, 0.0), Ok(())),
            (AtMost(0.0), of(0.001, 0.002), Err(Miss::Mean)),
            (AtMost(100.0), of(40.0, 467.8), Err(Miss::Reaches(507.8))),
            (AtMost(100.0), of(inf, nan), Err(Miss::NotFinite)),
            (AtLeast(85.0), of(92.7, 0.3), Ok(())),
            (AtLeast(85.0), of(86.0, 2.0), Err(Miss::Reaches(84.0))),
            (AtLeast(85.0), of(inf, nan), Err(Miss::NotFinite)),
            (AtLeast(85.0), Estimate::of(&[90.0]), Err(Miss::OneRun)),
            // Bands: the interval within, or the mean within and the interval narrower than the band.
            (Band(0.9, 1.1), of(1.0, 0.09), Ok(())),
            (Band(0.9, 1.1), of(1.0, 0.0), Ok(())),
            (Band(0.9, 1.1), of(1.08, 0.05), Ok(())),
            (Band(0.9, 1.1), of(1.04, 0.48), Err(Miss::Reaches(1.04 - 0.48))),
            (Band(0.9, 1.1), of(1.09, 0.1), Err(Miss::Reaches(1.09 + 0.1))),
            (Band(0.9, 1.1), of(1.11, 0.001), Err(Miss::Mean)),
            (Band(0.9, 1.1), of(nan, nan), Err(Miss::NotFinite)),
            (Band(0.9, 1.1), Estimate::of(&[1.0]), Err(Miss::OneRun)),
        ] {
            assert_eq!(relation.judge(&estimate), judged, "{relation}: {estimate}");
        }
    }

    /// From the runs of seeds, by Student's t.
    #[test]
    fn few_seeds_tell_little() {
        let two = Estimate::of(&[1.4, 1.64]);
        assert!(matches!(Above(1.05).judge(&two), Err(Miss::Reaches(low)) if low < 0.0), "{two}");
        assert_eq!(Above(1.05).judge(&Estimate::of(&[1.4, 1.64, 1.5, 1.52])), Ok(()));
        // One seed that never ends spoils all.
        assert_eq!(Above(1.05).judge(&Estimate::of(&[1.4, f64::INFINITY, 1.5, 1.52])), Err(Miss::NotFinite));
    }

    fn bound(text: &str) -> Result<Relation, String> {
        Relation::of(&toml::from_str::<Bound>(&format!("ratio = \"A\"\n{text}")).unwrap(), 0)
    }

    #[test]
    fn bounds_say_one_thing() {
        let over = "over = \"B\"\n";
        for (text, expected) in [
            ("more = 0.05", Some(Above(1.05))),
            ("less = 0.25", Some(Below(0.75))),
            ("min = 10", Some(Above(10.0))),
            ("min = 1.0", Some(Above(1.0))),
            ("max = 0.65", Some(Below(0.65))),
            ("min = 0.9\nmax = 1.1", Some(Band(0.9, 1.1))),
            ("more = 0.0", None),
            ("more = -0.1", None),
            ("less = 1.0", None),
            ("more = 0.1\nmin = 0.5", None),
            ("min = 1.1\nmax = 0.9", None),
            ("max = inf", None),
            ("min = nan", None),
            ("", None),
        ] {
            assert_eq!(bound(&format!("{over}{text}")).ok(), expected, "{text}");
        }
        assert_eq!(bound("max = 0"), Ok(AtMost(0.0)));
        assert_eq!(bound("min = 90"), Ok(AtLeast(90.0)));
        assert!(bound("more = 0.1").unwrap_err().contains("of a ratio"));
    }

    #[test]
    fn verdicts_are_claims_and_no_more() {
        let checked = |text: &str, ratio, varied| {
            let bound: Bound = toml::from_str(&format!("ratio = \"A\"\nover = \"B\"\n{text}")).unwrap();
            let relation = Relation::of(&bound, 0).unwrap();
            let c = Checked { bound: &bound, relation, metric: 0, x: None, ratio, halves: None, varied };
            (c.verdict().to_string(), c.is_claim_that_holds())
        };
        let said = |text: &str, claim| (text.to_owned(), claim);
        let (good, bad) = (of(1.5, 0.1), of(1.5, 0.9));
        assert_eq!(checked("more = 0.05", good, true), said("direction", true));
        assert_eq!(checked("more = 0.05", bad, true), said("FAILS: the interval reaches 0.60", false));
        assert_eq!(checked("more = 0.05", Estimate::of(&[1.5]), true), said("reports", false));
        assert_eq!(checked("more = 0.05", good, false), said("reports", false), "four times the same run");
        let inf = Estimate::of(&[f64::INFINITY]);
        assert_eq!(checked("more = 0.05", inf, true), said("FAILS: not finite", false), "of one run too");
        assert_eq!(checked("more = 0.05\ngate = false", bad, true), said("reports", false));
        assert_eq!(checked("more = 0.05\ndiffers = \"why\"", bad, true), said("differs", false));
        assert_eq!(checked("more = 0.05\ndiffers = \"why\"", good, true), said("direction", false));
        let faithful = "min = 1.2\nmax = 1.8\nsource = \"section 1\"\nverdict = \"faithful\"\n";
        assert_eq!(checked(&format!("{faithful}cited = 1.45"), good, true), said("faithful", true));
        assert_eq!(checked(&format!("{faithful}cited = [1.61, 2]"), good, true), {
            said("FAILS: the paper's number is outside the interval", false)
        });
        assert_eq!(checked(&format!("{faithful}cited = [1.59, 2]"), good, true), said("faithful", true));
        assert_eq!(checked("more = 0.05\nverdict = \"fitted\"", good, true), said("fitted", true));
    }
}
