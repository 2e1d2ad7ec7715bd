//! Trials of the real cache: what one asks for and what came of it. [`trial`] runs them, [`metric`] has their
//! figures, [`plot`] draws them.

pub mod metric;
pub(crate) mod plot;
pub mod trial;

pub use metric::Metric;

use crate::measure::Measured;
use crate::points::Asked;
use crate::{Error, Experiment};
use adverb_apps::kv::{BenchReport, ReplicaCounters, Window};
use serde::Deserialize;
use std::time::Duration;
use toml::Value;

/// Processes that serve, at most.
pub const REPLICAS_MAX: u8 = 4;

/// What a trial asks for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Setup {
    /// Processes that serve.
    pub replicas: u8,
    /// Keys, all set at the start.
    pub keys: u32,
    /// Bytes of a value.
    pub value: usize,
    /// Values set anew each second meanwhile.
    pub sets: u32,
    /// Lookups under way at once, at most. That many at once, each begun when another ends, show the
    /// saturation.
    pub depth: u16,
    /// Lookups asked for, over the saturation; they arrive at random times.
    pub load: f64,
    /// How long, in ms.
    pub time_ms: u32,
    /// How long the saturation is measured for, in ms.
    pub saturation_ms: u32,
    /// The NICs' time after which an operation that is not answered has failed, in ms.
    pub timeout_ms: u32,
    /// What happens meanwhile, in order of time.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// Something that happens to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Event {
    /// When, as a share of the time.
    pub at: f64,
    /// To which replica: 1, 2, ...
    pub replica: u8,
    /// What.
    pub what: What,
}

/// What can happen to a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// SIGKILL.
    Kill,
    /// The region with the index gets another key, of which clients are told ahead.
    RotateIndex,
    /// The region with the values does.
    RotateData,
}

/// What came of a trial.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Lookups each second with as many at once as there may be.
    pub saturation: f64,
    /// For how long lookups arrived.
    pub time: Duration,
    /// What the client saw, until the last lookup ended.
    pub report: BenchReport,
    /// The same in slices of time, for a timeline.
    pub slices: Vec<Window>,
    /// What happened, and when it began and was done, in ms.
    pub events: Vec<(Event, f64, f64)>,
}

pub(crate) fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Operations that failed in another way than by a key that had changed.
pub(crate) fn failed_otherwise(replica: &ReplicaCounters) -> u64 {
    replica.timeouts + replica.nacks + replica.others
}

impl Served {
    /// Lookups that arrived: each is in one of these when all have ended.
    pub fn asked(&self) -> u64 {
        let all = &self.report.all;
        all.latency.total() + all.misses + all.unavailable + all.wrong
    }

    /// Lookups that found the value.
    pub fn answered(&self) -> u64 {
        self.report.all.latency.total()
    }

    /// Thousands of lookups that arrived a second.
    pub fn asked_kps(&self) -> f64 {
        self.asked() as f64 / self.time.as_secs_f64() / 1e3
    }

    /// Thousands of lookups answered a second, until the last one ended.
    pub fn answered_kps(&self) -> f64 {
        self.answered() as f64 / self.report.time.as_secs_f64() / 1e3
    }

    /// The latency that a share of the lookups does not exceed, from the arrival, in us.
    pub fn latency_us(&self, share: f64) -> f64 {
        us(self.report.all.latency.percentile(share))
    }

    /// Its figures.
    pub fn measured(self, metrics: &[Metric]) -> Measured {
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let values = metrics.iter().map(|metric| metric.of(&self)).collect();
        let flows = (count(self.asked()), count(self.asked().saturating_sub(self.answered())));
        Measured { values, flows, served: Some(Box::new(self)), ..Measured::default() }
    }
}

impl Setup {
    /// What one place of a series asks for.
    pub fn of(asked: &Asked, experiment: &Experiment) -> Result<Setup, Error> {
        let fail = |why: String| Error(format!("{}: {why}", asked.name));
        let table = Value::Table(asked.table.clone());
        let setup: Setup = table.try_into().map_err(|e: toml::de::Error| fail(e.message().to_owned()))?;
        setup.check(experiment.places()).map_err(fail)?;
        Ok(setup)
    }

    fn check(&self, places: usize) -> Result<(), String> {
        let within = |name: &str, value: f64, least: f64, most: f64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}: give {least} to {most}")),
        };
        within("replicas", self.replicas.into(), 1.0, REPLICAS_MAX.into())?;
        within("keys", self.keys.into(), 1.0, 1e6)?;
        within("value", self.value as f64, 16.0, 65536.0)?;
        within("depth", self.depth.into(), 1.0, 64.0)?;
        within("load", self.load, 0.001, 4.0)?;
        within("timeout-ms", self.timeout_ms.into(), 1.0, 4000.0)?;
        within("time-ms", self.time_ms.into(), 10.0, 600_000.0)?;
        within("saturation-ms", self.saturation_ms.into(), 10.0, 600_000.0)?;
        if places > 1 && !self.events.is_empty() {
            return Err("events: not in a sweep, whose trials have the same replicas".to_owned());
        }
        if !self.events.is_sorted_by(|a, b| a.at <= b.at) {
            return Err("events: give them in order of time".to_owned());
        }
        for event in &self.events {
            within("at", event.at, 0.0, 1.0)?;
            within("replica", event.replica.into(), 1.0, self.replicas.into())?;
        }
        Ok(())
    }
}
