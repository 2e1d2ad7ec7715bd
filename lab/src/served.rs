//! Trials of the real cache: what one asks for, what came of it, and the metrics of that.
//!
//! The trial itself, with processes and packets, is run by the command (`adverb lab`), which starts itself as the cache's replicas.

use crate::measure::{Measured, Metric};
use crate::points::tables;
use crate::{Error, Experiment, Scale};
use serde::Deserialize;
use toml::Value;

/// Processes that serve, at most.
pub const REPLICAS_MAX: u8 = 4;
/// So many slices in a row are to be within twice their later latency for a cache to have settled.
const SETTLED_SLICES: usize = 10;

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
    /// Lookups under way at once, at most. That many at once, each begun when another ends, show the saturation.
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
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Served {
    /// Lookups each second with as many at once as there may be.
    pub saturation: f64,
    /// Lookups that arrived.
    pub asked: u64,
    /// Lookups that found the value.
    pub answered: u64,
    /// Values that were not what had been set.
    pub wrong: u64,
    /// Why the last lookup that no replica answered was not.
    pub reason: Option<String>,
    /// For how long lookups arrived, in s.
    pub asked_s: f64,
    /// Until the last one ended, in s.
    pub answered_s: f64,
    /// Median latency from the arrival, in us.
    pub p50_us: f64,
    /// Its 99th percentile.
    pub p99_us: f64,
    /// Its 99.9th percentile.
    pub p999_us: f64,
    /// Longest time between lookups that end well, in us.
    pub gap_us: f64,
    /// What operations on each replica met.
    pub replicas: Vec<Met>,
    /// Slices of time, for a timeline.
    pub slices: Vec<ServedSlice>,
    /// What happened, and when it began and was done, in ms.
    pub events: Vec<(Event, f64, f64)>,
}

/// What operations on a replica met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Met {
    /// REMOTE_AUTHENTICATION_FAILURE on the index.
    pub refused_index: u64,
    /// The same on the values.
    pub refused_data: u64,
    /// Any other failure.
    pub failed: u64,
}

/// A slice of time.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ServedSlice {
    /// Its start, in ms.
    pub t_ms: f64,
    /// Median latency of lookups that ended in it, in us.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
    /// Their longest.
    pub max_us: f64,
    /// Values read from each replica.
    pub hits: Vec<u64>,
    /// Operations that ended with REMOTE_AUTHENTICATION_FAILURE.
    pub refused: u64,
    /// Operations that failed in other ways.
    pub failed: u64,
    /// How long operations were asked for in vain while a key changed, in us.
    pub in_vain_us: f64,
    /// Most lookups under way at once.
    pub under_way: usize,
    /// Reads of each replica that congestion control allowed to be outstanding at its end; `None` for one that was down.
    pub allowed: Vec<Option<f64>>,
}

impl Served {
    /// Its figures. Metrics of simulations are not among them.
    pub fn measured(self, metrics: &[Metric]) -> Result<Measured, Error> {
        let value = |metric: &Metric| {
            self.value(*metric)
                .ok_or_else(|| Error(format!("`{}`: no metric of the real cache", metric.label())))
        };
        let values = metrics.iter().map(value).collect::<Result<Vec<f64>, Error>>()?;
        let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let flows = (count(self.asked), count(self.asked.saturating_sub(self.answered)));
        let (tail, timeline) = (Vec::new(), Vec::new());
        Ok(Measured { values, tail, timeline, flows, link_hops: 0, trace: 0, served: Some(Box::new(self)) })
    }

    fn value(&self, metric: Metric) -> Option<f64> {
        let all = |which: fn(&Met) -> u64| self.replicas.iter().map(which).sum::<u64>() as f64;
        Some(match metric {
            Metric::Saturation => self.saturation / 1e3,
            Metric::Asked => self.asked as f64 / self.asked_s / 1e3,
            Metric::Answered => self.answered as f64 / self.answered_s / 1e3,
            Metric::LookupP50 => self.p50_us,
            Metric::LookupP99 => self.p99_us,
            Metric::LookupP999 => self.p999_us,
            Metric::LookupFailed => {
                self.asked.saturating_sub(self.answered) as f64 / self.asked.max(1) as f64
            }
            Metric::LookupGap => self.gap_us,
            Metric::Wrong => self.wrong as f64,
            Metric::Settled => self.settled_ms(),
            Metric::Refused => all(|met| met.refused_index + met.refused_data),
            Metric::RefusedTrips => self.refused_trips(),
            Metric::RefusedElsewhere => self.refused_elsewhere() as f64,
            Metric::OtherFailures => all(|met| met.failed),
            Metric::Unavailable => {
                self.per_event(|slices| slices.iter().map(|slice| slice.in_vain_us).sum()).fold(0.0, f64::max)
            }
            _ => return None,
        })
    }

    /// Something of the slices of each event, until the next one's.
    fn per_event<'a>(&'a self, of: impl Fn(&'a [ServedSlice]) -> f64 + 'a) -> impl Iterator<Item = f64> + 'a {
        // The slice in which it happens is the last that begins no later.
        let from = |t: f64| self.slices.partition_point(|slice| slice.t_ms <= t).saturating_sub(1);
        (0..self.events.len()).map(move |at| {
            let until = self.events.get(at + 1).map_or(self.slices.len(), |next| from(next.1));
            of(self.slices.get(from(self.events[at].1)..until).unwrap_or(&[]))
        })
    }

    /// For each change of a key, operations refused over lookups under way at once meanwhile; the most of all.
    fn refused_trips(&self) -> f64 {
        let share = |slices: &[ServedSlice]| {
            let refused: u64 = slices.iter().map(|slice| slice.refused).sum();
            // Those under way when the key changed, and when the first of them was refused: slices with refusals, and those before.
            let near = (0..slices.len()).filter(|at| {
                slices[*at].refused > 0 || slices.get(at + 1).is_some_and(|next| next.refused > 0)
            });
            let under_way = near.map(|at| slices[at].under_way).max().unwrap_or(0);
            if refused == 0 { 0.0 } else { refused as f64 / under_way.max(1) as f64 }
        };
        self.per_event(share).fold(0.0, f64::max)
    }

    /// Operations refused on regions whose keys nobody changed.
    fn refused_elsewhere(&self) -> u64 {
        let changed = |replica: usize, what: What| {
            self.events.iter().any(|(event, ..)| event.what == what && usize::from(event.replica) == replica)
        };
        let of = |(at, met): (usize, &Met)| {
            let index = if changed(at + 1, What::RotateIndex) { 0 } else { met.refused_index };
            index + if changed(at + 1, What::RotateData) { 0 } else { met.refused_data }
        };
        self.replicas.iter().enumerate().map(of).sum()
    }

    /// From the first event until the median of slices stays within twice that of the last quarter, for ten of them. In ms; infinite if never.
    fn settled_ms(&self) -> f64 {
        let Some(&(_, event, _)) = self.events.first() else { return 0.0 };
        let mut last: Vec<f64> = self.slices[self.slices.len() * 3 / 4..].iter().map(|s| s.p50_us).collect();
        last.sort_unstable_by(f64::total_cmp);
        let Some(later) = last.get(last.len() / 2) else { return f64::INFINITY };
        let from = self.slices.partition_point(|slice| slice.t_ms <= event);
        let calm = |slices: &[ServedSlice]| slices.iter().all(|s| s.p50_us > 0.0 && s.p50_us <= 2.0 * later);
        let rest = &self.slices[from.min(self.slices.len())..];
        let settled = rest.windows(SETTLED_SLICES).position(calm);
        settled.map_or(f64::INFINITY, |at| (rest[at].t_ms - event).max(0.0))
    }
}

/// The trials of an experiment, series by series, each at all places of the x axis.
pub fn setups(experiment: &Experiment, scale: Scale) -> Result<Vec<Vec<Setup>>, Error> {
    let places = experiment.places();
    let mut out = Vec::new();
    for (name, table) in tables(experiment, scale) {
        let fail = |why: String| Error(format!("{name}: {why}"));
        let setup: Setup =
            Value::Table(table).try_into().map_err(|e: toml::de::Error| fail(e.message().to_owned()))?;
        setup.check(places).map_err(fail)?;
        out.push(setup);
    }
    Ok(out.chunks(places).map(<[Setup]>::to_vec).collect())
}

impl Setup {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(t_ms: f64, p50_us: f64, refused: u64, under_way: usize) -> ServedSlice {
        ServedSlice {
            t_ms,
            p50_us,
            refused,
            under_way,
            in_vain_us: 7.0 * refused as f64,
            ..ServedSlice::default()
        }
    }

    fn event(what: What, at: f64) -> (Event, f64, f64) {
        (Event { at: 0.5, replica: 1, what }, at, at + 0.5)
    }

    #[test]
    fn refusals_are_counted_for_each_change_and_where_they_belong() {
        let refused = [0, 0, 3, 0, 0, 1, 1, 0];
        let slices = (0u8..).zip(refused).map(|(t, n)| slice(t.into(), 20.0, n, if n == 3 { 4 } else { 2 }));
        let mut served = Served {
            slices: slices.collect(),
            events: vec![event(What::RotateData, 1.9), event(What::RotateData, 5.1)],
            replicas: vec![Met { refused_data: 5, ..Met::default() }, Met::default()],
            ..Served::default()
        };
        // Three of four at the first, two of two at the second.
        assert_eq!(served.value(Metric::RefusedTrips), Some(1.0));
        assert_eq!(served.value(Metric::Unavailable), Some(21.0));
        assert_eq!((served.value(Metric::Refused), served.refused_elsewhere()), (Some(5.0), 0));
        served.replicas[0].refused_index = 2;
        served.replicas[1].refused_data = 1;
        assert_eq!(served.refused_elsewhere(), 3);
        served.slices[5].refused = 2;
        assert_eq!(served.value(Metric::RefusedTrips), Some(1.5), "more than were under way");
        assert_eq!(served.value(Metric::Goodput), None);
    }

    #[test]
    fn a_cache_has_settled_when_it_stays_as_it_is_later() {
        let medians = |slow: usize| {
            let at = |t: usize| slice(t as f64, if (50..50 + slow).contains(&t) { 90.0 } else { 30.0 }, 0, 1);
            Served {
                slices: (0..100).map(at).collect(),
                events: vec![event(What::Kill, 49.5)],
                ..Served::default()
            }
        };
        assert_eq!(medians(0).settled_ms(), 0.5);
        assert_eq!(medians(7).settled_ms(), 7.5);
        assert_eq!(medians(60).settled_ms(), 0.5, "it is as slow later");
        assert_eq!(medians(24).settled_ms(), 24.5);
        assert_eq!(Served::default().settled_ms(), 0.0);
    }
}
