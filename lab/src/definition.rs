//! The files of an experiment: what they may say.

use crate::bounds::Relation;
use crate::plot::hex;
use crate::{Error, budget, cache, chains, measure, rack};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as NameError, StrDeserializer};
use std::collections::BTreeMap;
use toml::Table;

/// `paper.toml`: what the experiments of one paper have in common.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Paper {
    /// The paper, as it is cited.
    pub cite: String,
    /// Its default scenario, in the format of scenario files; of trials of the real cache, what they ask for.
    pub scenario: Table,
    /// Changes to a scenario, by name.
    #[serde(default)]
    pub variants: BTreeMap<String, Table>,
    /// Which part of a simulation is measured, where an experiment does not say.
    #[serde(default)]
    pub measure: Option<Interval>,
    /// Colours of schemes in plots, `#rrggbb`, by what the names of series begin with.
    #[serde(default)]
    pub colours: BTreeMap<String, String>,
}

/// The part of a simulation that is measured: what begins within it. Shares of the time in which flows begin,
/// from the first to the last.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Interval {
    /// Left out at first, while the network fills.
    pub warm_up: f64,
    /// Left out at last, while it empties.
    pub drain: f64,
}

/// `experiment.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// Its name, such as `irn/fig1`; from its folder.
    #[serde(skip)]
    pub name: String,
    /// The paper that it is from; from the folder above.
    #[serde(skip)]
    pub paper: Option<Paper>,
    /// What is compared, in a line.
    pub title: String,
    /// Which figure or table, and anything a reader must know of it.
    pub figure: String,
    /// `simulation` (the default); `modules`, times and sizes of the NIC's own code; `cache`, the real
    /// cache under load; `chains`, chains of work requests on simulated adapters; or `rack`, clients that
    /// share a server's memory behind a simulated switch.
    #[serde(default)]
    pub kind: Kind,
    /// Names of what is measured and plotted, in this order.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Those of them whose axis is logarithmic in the plot.
    #[serde(default)]
    pub log: Vec<String>,
    /// The same, read.
    #[serde(skip)]
    pub measured: Metrics,
    /// Which part of a simulation is measured; the paper's if absent.
    #[serde(default)]
    pub measure: Option<Interval>,
    /// Changes to the paper's scenario that hold for all of it.
    #[serde(default)]
    pub set: Table,
    /// What the points along the x axis change; none for one point.
    #[serde(default)]
    pub sweep: Option<Sweep>,
    /// What is compared.
    #[serde(default)]
    pub series: Vec<Series>,
    /// Relations that must hold.
    #[serde(default, rename = "bound")]
    pub bounds: Vec<Bound>,
    /// What is made of finished runs so that the bounds must fail.
    #[serde(default)]
    pub mutate: Vec<Mixed>,
    /// Changes to scenarios that must make the bounds fail.
    #[serde(default, rename = "mutation")]
    pub mutations: Vec<Mutation>,
    /// Where ours is known to differ, and why; printed with the results.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What somebody has set otherwise for a run.
    #[serde(skip)]
    pub own: Table,
    /// So many times the flows, or the time in which they begin; 0 and 1 for as many as it says.
    #[serde(skip)]
    pub longer: u32,
    /// Flows may fail, or not end: that is what it is about.
    #[serde(default)]
    pub may_fail: bool,
    /// What happens over time is written in slices of so many us; 0 for not.
    #[serde(default)]
    pub timeline_us: u32,
    /// What of it is drawn, a row of panels for each.
    #[serde(default = "goodput")]
    pub timeline_of: Vec<TimelineOf>,
    /// Ratios of series that are drawn beside the values.
    #[serde(default, rename = "ratio")]
    pub ratios: Vec<Ratio>,
    /// For a look: ends within a minute.
    #[serde(default)]
    pub quick: Size,
    /// For figures as tight as the paper's.
    #[serde(default, rename = "full")]
    pub full: Size,
}

/// What an experiment runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The simulator.
    #[default]
    Simulation,
    /// The NIC's modules, on this machine.
    Modules,
    /// The real cache: processes of this machine, and packets between them.
    Cache,
    /// Programs over simulated adapters that charge for each work request.
    Chains,
    /// Clients that share one server's memory, behind a switch that may run programs.
    Rack,
    /// What programs of a switch need of its hardware: nothing is run.
    Budget,
}

/// What is drawn over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimelineOf {
    /// Payload of what ends well.
    Goodput,
    /// How long that took.
    Delay,
    /// How much of that passed before the NIC sent it: 1RMA's measure of congestion at its own host.
    IssueDelay,
}

fn goodput() -> Vec<TimelineOf> {
    vec![TimelineOf::Goodput]
}

/// A series' values over those of another one, seed by seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ratio {
    /// What is above.
    pub of: String,
    /// What it is divided by.
    pub over: String,
}

/// How much of an experiment is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Within a minute.
    Quick,
    /// As much as the paper.
    Paper,
}

/// One scale.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Size {
    /// Seeds, each another workload.
    #[serde(default = "three")]
    pub seeds: u32,
    /// Changes to every scenario.
    #[serde(default)]
    pub set: Table,
}

fn three() -> u32 {
    3
}

impl Default for Size {
    fn default() -> Self {
        Size { seeds: three(), set: Table::new() }
    }
}

/// Points along the x axis.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sweep {
    /// What x is, with its unit.
    pub label: String,
    /// The axis is logarithmic, as the paper's is.
    #[serde(default)]
    pub log: bool,
    /// The points.
    pub points: Vec<Point>,
}

/// A point along the x axis.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Point {
    /// Where.
    pub x: f64,
    /// What is changed.
    #[serde(default)]
    pub set: Table,
    /// What is changed for series that have a variant, by the variant's name.
    #[serde(default)]
    pub with: BTreeMap<String, Table>,
    /// What is changed of all series, whatever they say: a point that somebody has asked for.
    #[serde(skip)]
    pub own: Table,
}

/// A line or a bar of the plot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The paper's variants that it is made of, applied in this order.
    #[serde(default)]
    pub variants: Vec<String>,
    /// What else is changed.
    #[serde(default)]
    pub set: Table,
}

/// A relation that must hold at every point, seed by seed: of the ratio of two series' values, or of one
/// series' value itself. It says one of: `more`, `less`, `min`, `max`, or `min` and `max` for a band.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bound {
    /// Numerator: a series.
    pub ratio: String,
    /// Denominator: a series; none for the value itself.
    pub over: Option<String>,
    /// A series whose value is taken away instead: a difference, which `min` and `max` bound.
    pub minus: Option<String>,
    /// The denominator's value at this x, wherever the numerator's is.
    pub over_at: Option<f64>,
    /// Names of metrics that it holds for; all if absent.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// Points that it holds for, by x; all if absent.
    #[serde(default)]
    pub at: Vec<f64>,
    /// The ratio is above 1 by this margin at least.
    pub more: Option<f64>,
    /// The ratio is below 1 by this margin at least.
    pub less: Option<f64>,
    /// The ratio, or the value, is at least this.
    pub min: Option<f64>,
    /// The ratio, or the value, is at most this.
    pub max: Option<f64>,
    /// The paper's value at each point that it holds for, in their order. With `within` the series' value is
    /// to be near it; otherwise it is printed beside ours.
    #[serde(default)]
    pub values: Vec<f64>,
    /// How far from the paper's value it may be, as a share of that.
    pub within: Option<f64>,
    /// What the paper has, in its words or numbers.
    #[serde(default)]
    pub paper: String,
    /// Where that stands, and how sure it is: read in the text, or from memory of the figure.
    #[serde(default)]
    pub source: String,
    /// What it shows when it holds; `direction` if absent.
    #[serde(default)]
    pub verdict: Option<Claim>,
    /// The number that the paper prints, or, of a printed number that is rounded or a range, from and to.
    /// Drawn in the plot.
    #[serde(default)]
    pub cited: Option<Cited>,
    /// Whether it is claimed to hold; otherwise it is reported only.
    #[serde(default = "yes")]
    pub gate: bool,
    /// It is known not to hold, and this is why.
    #[serde(default)]
    pub differs: Option<String>,
}

/// What a bound that holds shows of the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// The number that the paper prints lies within our interval.
    Faithful,
    /// Which of two is larger, or where a curve bends: no number of the paper is at hand.
    Direction,
    /// A parameter of ours was chosen so that it holds.
    Fitted,
}

/// A number of the paper.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Cited {
    /// As it is printed.
    Value(f64),
    /// From the one to the other: a printed range, or what the rounding of a printed number leaves open.
    Range([f64; 2]),
}

impl Cited {
    /// From and to.
    pub fn ends(self) -> (f64, f64) {
        match self {
            Cited::Value(value) => (value, value),
            Cited::Range([low, high]) => (low, high),
        }
    }
}

/// What can be made of finished runs that must not pass for the experiment's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mixed {
    /// All series have the runs of one of them, each in turn.
    Equal,
    /// The two series of a ratio that is to lie beyond equality change places, each pair in turn.
    Swapped,
    /// All points along the x axis have the runs of one of them, each in turn.
    Flat,
    /// The points along the x axis are in reverse order.
    Reversed,
}

/// A change to scenarios under which some bound must fail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mutation {
    /// What is wrong then.
    pub name: String,
    /// The series that are changed; all if absent.
    #[serde(default)]
    pub series: Vec<String>,
    /// The points that are changed, by x; all if absent.
    #[serde(default)]
    pub at: Vec<f64>,
    /// The change, made last.
    pub set: Table,
}

/// What is measured in either world.
#[derive(Clone, Debug)]
pub enum Metrics {
    /// In the simulator.
    Simulated(Vec<measure::Metric>),
    /// Of the real cache.
    Cache(Vec<cache::Metric>),
    /// Of chains of work requests.
    Chains(Vec<chains::Metric>),
    /// Of clients that share a server's memory.
    Rack(Vec<rack::Metric>),
    /// Of a switch's hardware.
    Budget(Vec<budget::Metric>),
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::Simulated(Vec::new())
    }
}

/// Reads names as variants of `T`; the message of a failure names those that there are.
fn named<'de, T: Deserialize<'de>>(names: &'de [String]) -> Result<Vec<T>, String> {
    let read = |name: &'de String| {
        let deserializer: StrDeserializer<'de, NameError> = name.as_str().into_deserializer();
        T::deserialize(deserializer).map_err(|e| e.to_string())
    };
    names.iter().map(read).collect()
}

impl Metrics {
    fn read(kind: Kind, names: &[String]) -> Result<Metrics, String> {
        match kind {
            Kind::Cache => named(names).map(Metrics::Cache),
            Kind::Chains => named(names).map(Metrics::Chains),
            Kind::Rack => named(names).map(Metrics::Rack),
            Kind::Budget => named(names).map(Metrics::Budget),
            Kind::Simulation | Kind::Modules => named(names).map(Metrics::Simulated),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Metrics::Simulated(all) => all.len(),
            Metrics::Cache(all) => all.len(),
            Metrics::Chains(all) => all.len(),
            Metrics::Rack(all) => all.len(),
            Metrics::Budget(all) => all.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The heading of one, with its unit, and its name in CSV files.
    pub fn names(&self, at: usize) -> (&'static str, &'static str) {
        match self {
            Metrics::Simulated(all) => all[at].names(),
            Metrics::Cache(all) => all[at].names(),
            Metrics::Chains(all) => all[at].names(),
            Metrics::Rack(all) => all[at].names(),
            Metrics::Budget(all) => all[at].names(),
        }
    }

    /// The heading of one, with its unit.
    pub fn label(&self, at: usize) -> &'static str {
        self.names(at).0
    }
}

fn yes() -> bool {
    true
}

/// A verdict claims no more than the bound has: a number that was read somewhere, for `faithful`.
fn check_verdict(bound: &Bound) -> Result<(), String> {
    let Some(claim) = bound.verdict else { return check_cited(bound) };
    if !bound.gate || bound.differs.is_some() {
        return Err("verdict: goes neither with gate = false, which reports, nor with differs".to_owned());
    }
    if claim == Claim::Faithful {
        let read = !bound.source.is_empty() && !bound.source.contains("from memory");
        if bound.cited.is_none() || !read {
            let why =
                "verdict = \"faithful\" needs `cited`, the paper's number, and a `source` where it was read";
            return Err(why.to_owned());
        }
    }
    check_cited(bound)
}

fn check_cited(bound: &Bound) -> Result<(), String> {
    let Some(cited) = bound.cited else { return Ok(()) };
    let (low, high) = cited.ends();
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err("cited: give a number, or [from, to]".to_owned());
    }
    match bound.values.is_empty() {
        true => Ok(()),
        false => Err("cited: goes without `values`, which are the paper's already".to_owned()),
    }
}

impl Experiment {
    /// Reads an experiment and its paper. `name` is for messages.
    pub fn parse(name: &str, text: &str, paper: &str) -> Result<Experiment, Error> {
        let folder = name.split('/').next().unwrap_or(name);
        let place = |file: &str, e: &toml::de::Error| Error(format!("{file}: {}", e.to_string().trim_end()));
        let mut experiment: Experiment =
            toml::from_str(text).map_err(|e| place(&format!("{name}/experiment.toml"), &e))?;
        let paper = toml::from_str(paper).map_err(|e| place(&format!("{folder}/paper.toml"), &e))?;
        (experiment.name, experiment.paper) = (name.to_owned(), Some(paper));
        let measured = Metrics::read(experiment.kind, &experiment.metrics);
        experiment.measured = measured.map_err(|e| Error(format!("{name}/experiment.toml: metrics: {e}")))?;
        experiment.check()?;
        Ok(experiment)
    }

    /// How it is cited.
    pub fn cite(&self) -> String {
        let paper = self.paper.as_ref().map_or("", |p| p.cite.as_str());
        format!("{paper}, {}", self.figure)
    }

    /// Points along the x axis; one without a sweep.
    pub fn places(&self) -> usize {
        self.sweep.as_ref().map_or(1, |sweep| sweep.points.len())
    }

    /// One of its two sizes.
    pub fn size(&self, scale: Scale) -> &Size {
        match scale {
            Scale::Quick => &self.quick,
            Scale::Paper => &self.full,
        }
    }

    /// Which part of a simulation is measured.
    pub fn interval(&self) -> Option<Interval> {
        self.measure.or(self.paper.as_ref()?.measure)
    }

    fn has_series(&self, name: &str) -> bool {
        self.series.iter().any(|s| s.name == name)
    }

    fn has_point(&self, x: f64) -> bool {
        self.sweep.as_ref().is_some_and(|sweep| sweep.points.iter().any(|point| point.x == x))
    }

    fn check_bound(&self, bound: &Bound) -> Result<(), String> {
        if let Some(name) = core::iter::once(&bound.ratio)
            .chain(&bound.over)
            .chain(&bound.minus)
            .find(|s| !self.has_series(s))
        {
            return Err(format!("there is no series `{name}`"));
        }
        if let Some(name) = bound.metrics.iter().find(|name| !self.metrics.contains(name)) {
            return Err(format!("`{name}` is not among the metrics"));
        }
        if let Some(x) = bound.over_at.iter().chain(&bound.at).find(|x| !self.has_point(**x)) {
            return Err(format!("there is no point at {x}"));
        }
        if bound.over.is_some() && bound.minus.is_some() {
            return Err("give over or minus".to_owned());
        }
        if bound.over_at.is_some() && bound.over.is_none() && bound.minus.is_none() {
            return Err("over-at goes with over or minus".to_owned());
        }
        check_verdict(bound)?;
        let places = if bound.at.is_empty() { self.places() } else { bound.at.len() };
        if !bound.values.is_empty() && (bound.values.len() != places || bound.metrics.len() != 1) {
            return Err(format!("values: give one for each of its {places} points, and one metric"));
        }
        (0..places).try_for_each(|at| Relation::of(bound, at).map(|_| ()))
    }

    fn check(&self) -> Result<(), Error> {
        let fail = |why: String| Err(Error(format!("{}/experiment.toml: {why}", self.name)));
        if self.kind == Kind::Modules {
            return Ok(());
        }
        if self.sweep.as_ref().is_some_and(|sweep| sweep.points.is_empty()) {
            return fail("sweep: needs points".to_owned());
        }
        if self.series.is_empty() || self.metrics.is_empty() {
            return fail("needs [[series]] and metrics".to_owned());
        }
        if let Some(name) = self.log.iter().find(|name| !self.metrics.contains(name)) {
            return fail(format!("log: `{name}` is not among the metrics"));
        }
        if self.sweep.as_ref().is_some_and(|sweep| sweep.log && sweep.points.iter().any(|p| p.x <= 0.0)) {
            return fail("sweep: a logarithmic axis has no point at 0 or below".to_owned());
        }
        for bound in &self.bounds {
            if let Err(why) = self.check_bound(bound) {
                return fail(format!("bound of `{}`: {why}", bound.ratio));
            }
        }
        for Ratio { of, over } in &self.ratios {
            if let Some(name) = [of, over].into_iter().find(|name| !self.has_series(name)) {
                return fail(format!("ratio: there is no series `{name}`"));
            }
        }
        for mutation in &self.mutations {
            if let Some(name) = mutation.series.iter().find(|name| !self.has_series(name)) {
                return fail(format!("mutation `{}`: there is no series `{name}`", mutation.name));
            }
            if let Some(x) = mutation.at.iter().find(|x| !self.has_point(**x)) {
                return fail(format!("mutation `{}`: there is no point at {x}", mutation.name));
            }
        }
        if self.kind == Kind::Simulation && self.interval().is_none() {
            return fail("measure: give warm-up and drain, here or in paper.toml".to_owned());
        }
        if let Some(Interval { warm_up, drain }) = self.interval()
            && !(warm_up >= 0.0 && drain >= 0.0 && warm_up + drain <= 0.9)
        {
            return fail("measure: warm-up and drain are shares, together at most 0.9".to_owned());
        }
        let colours = self.paper.iter().flat_map(|paper| &paper.colours);
        if let Some((scheme, text)) = colours.into_iter().find(|(_, text)| hex(text).is_none()) {
            return fail(format!("paper.toml: colours: `{text}` of `{scheme}` is not like #0072b2"));
        }
        for series in &self.series {
            for variant in &series.variants {
                if self.paper.as_ref().is_none_or(|p| !p.variants.contains_key(variant)) {
                    return fail(format!("series `{}`: the paper has no variant `{variant}`", series.name));
                }
            }
        }
        Ok(())
    }
}
