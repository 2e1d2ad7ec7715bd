//! The files of an experiment: what they may say.

use crate::Error;
use crate::measure::Metric;
use serde::Deserialize;
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
    /// `simulation` (the default); `modules`, times and sizes of the NIC's own code; or `cache`, the real cache under load.
    #[serde(default)]
    pub kind: Kind,
    /// What is measured and plotted, in this order.
    #[serde(default)]
    pub metrics: Vec<Metric>,
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
    /// Where ours is known to differ, and why; printed with the results.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Flows may fail, or not end: that is what it is about.
    #[serde(default)]
    pub may_fail: bool,
    /// What happens over time is written in slices of so many us; 0 for not.
    #[serde(default)]
    pub timeline_us: u32,
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
    /// The points.
    pub points: Vec<Point>,
}

/// A point along the x axis.
#[derive(Clone, Debug, Deserialize)]
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

/// A relation that must hold at every point, seed by seed: the ratio of two series' values, or one series' value itself.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bound {
    /// Numerator: a series.
    pub ratio: String,
    /// Denominator: a series; none for the value itself.
    pub over: Option<String>,
    /// The denominator's value at this x, wherever the numerator's is.
    pub over_at: Option<f64>,
    /// Metrics that it holds for; all if absent.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// Points that it holds for, by x; all if absent.
    #[serde(default)]
    pub at: Vec<f64>,
    /// The ratio is at least this.
    pub min: Option<f64>,
    /// The ratio is at most this.
    pub max: Option<f64>,
    /// What the paper has, in its words or numbers.
    #[serde(default)]
    pub paper: String,
    /// Where that stands, and how sure it is: read in the text, or from memory of the figure.
    #[serde(default)]
    pub source: String,
    /// Whether missing it fails the experiment; otherwise it is reported only.
    #[serde(default = "yes")]
    pub gate: bool,
}

fn yes() -> bool {
    true
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
        for bound in &self.bounds {
            for side in core::iter::once(&bound.ratio).chain(&bound.over) {
                if !self.series.iter().any(|s| s.name == *side) {
                    return fail(format!("bound: there is no series `{side}`"));
                }
            }
            if bound.min.is_none() && bound.max.is_none() {
                return fail(format!("bound of `{}`: give min, max or both", bound.ratio));
            }
            let points = self.sweep.as_ref().map_or(&[][..], |sweep| &sweep.points);
            let known = |x: &f64| points.iter().any(|point| point.x == *x);
            if let Some(x) = bound.over_at.iter().chain(&bound.at).find(|x| !known(x)) {
                return fail(format!("bound of `{}`: there is no point at {x}", bound.ratio));
            }
            if bound.over_at.is_some() && bound.over.is_none() {
                return fail(format!("bound of `{}`: over-at goes with over", bound.ratio));
            }
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
