//! Figures of a trial of the real cache, by name.

use super::{Served, What};
use adverb_apps::kv::{ReplicaCounters, Window};
use serde::Deserialize;

/// So many slices in a row are to be within twice their later latency for a cache to have settled.
const SETTLED_SLICES: usize = 10;

/// A figure of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Lookups a second, in thousands, with as many at once as there may be.
    Saturation,
    /// Lookups that arrived a second, in thousands.
    Asked,
    /// Lookups answered a second, in thousands.
    Answered,
    /// Median latency of lookups from their arrival, in us.
    LookupP50,
    /// Its 99th percentile.
    LookupP99,
    /// Its 99.9th percentile.
    LookupP999,
    /// Lookups that no replica answered with the value, of all.
    LookupFailed,
    /// Longest time between lookups that end well, in us.
    LookupGap,
    /// Values that were not what had been set.
    Wrong,
    /// From the first event until latencies stay as they are later, in ms.
    Settled,
    /// Operations that ended with REMOTE_AUTHENTICATION_FAILURE.
    Refused,
    /// Of these, how many for each that was under way when a key changed.
    RefusedTrips,
    /// Of these, those on regions whose keys nobody had changed.
    RefusedElsewhere,
    /// Operations that failed in other ways.
    OtherFailures,
    /// For how long the client asked in vain while a key changed, in us; the longest of all changes.
    Unavailable,
}

impl Metric {
    /// Its heading, with its unit, and its name in CSV files.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Metric::Saturation => ("saturation (k/s)", "saturation_kps"),
            Metric::Asked => ("asked (k/s)", "asked_kps"),
            Metric::Answered => ("answered (k/s)", "answered_kps"),
            Metric::LookupP50 => ("lookup median (us)", "lookup_p50_us"),
            Metric::LookupP99 => ("lookup 99% (us)", "lookup_p99_us"),
            Metric::LookupP999 => ("lookup 99.9% (us)", "lookup_p999_us"),
            Metric::LookupFailed => ("lookups failed", "lookups_failed"),
            Metric::LookupGap => ("longest gap (us)", "lookup_gap_us"),
            Metric::Wrong => ("wrong values", "wrong"),
            Metric::Settled => ("settled (ms)", "settled_ms"),
            Metric::Refused => ("refused ops", "refused"),
            Metric::RefusedTrips => ("refused/under way", "refused_trips"),
            Metric::RefusedElsewhere => ("refused elsewhere", "refused_elsewhere"),
            Metric::OtherFailures => ("other failures", "other_failures"),
            Metric::Unavailable => ("unavailable (us)", "unavailable_us"),
        }
    }

    /// Its value in a trial.
    pub fn of(self, served: &Served) -> f64 {
        let all = |which: fn(&ReplicaCounters) -> u64| {
            served.report.all.replicas.iter().map(which).sum::<u64>() as f64
        };
        match self {
            Metric::Saturation => served.saturation / 1e3,
            Metric::Asked => served.asked_kps(),
            Metric::Answered => served.answered_kps(),
            Metric::LookupP50 => served.latency_us(0.5),
            Metric::LookupP99 => served.latency_us(0.99),
            Metric::LookupP999 => served.latency_us(0.999),
            Metric::LookupFailed => {
                served.asked().saturating_sub(served.answered()) as f64 / served.asked().max(1) as f64
            }
            Metric::LookupGap => super::us(served.report.longest_gap),
            Metric::Wrong => served.report.all.wrong as f64,
            Metric::Settled => settled_ms(served),
            Metric::Refused => all(|replica| replica.refused),
            Metric::RefusedTrips => refused_trips(served),
            Metric::RefusedElsewhere => refused_elsewhere(served) as f64,
            Metric::OtherFailures => all(super::failed_otherwise),
            Metric::Unavailable => {
                let in_vain = |slice: &Window| slice.replicas.iter().map(|r| r.in_vain_ns).sum::<u64>();
                per_event(served, |slices| slices.iter().map(in_vain).sum::<u64>() as f64 / 1e3)
                    .fold(0.0, f64::max)
            }
        }
    }
}

fn refused(slice: &Window) -> u64 {
    slice.replicas.iter().map(|replica| replica.refused).sum()
}

fn start_ms(slice: &Window) -> f64 {
    super::us(slice.start) / 1e3
}

/// Something of the slices of each event, until the next one's.
fn per_event<'a>(
    served: &'a Served,
    of: impl Fn(&'a [Window]) -> f64 + 'a,
) -> impl Iterator<Item = f64> + 'a {
    let (slices, events) = (&served.slices, &served.events);
    // The slice in which it happens is the last that begins no later.
    let from = |t: f64| slices.partition_point(|slice| start_ms(slice) <= t).saturating_sub(1);
    (0..events.len()).map(move |at| {
        let until = events.get(at + 1).map_or(slices.len(), |next| from(next.1));
        of(slices.get(from(events[at].1)..until).unwrap_or(&[]))
    })
}

/// For each change of a key, operations refused over lookups under way at once meanwhile; the most of all.
fn refused_trips(served: &Served) -> f64 {
    let share = |slices: &[Window]| {
        let all: u64 = slices.iter().map(refused).sum();
        // Those under way when the key changed, and when the first of them was refused: slices with refusals,
        // and those before.
        let near = (0..slices.len()).filter(|at| {
            refused(&slices[*at]) > 0 || slices.get(at + 1).is_some_and(|next| refused(next) > 0)
        });
        let under_way = near.map(|at| slices[at].under_way).max().unwrap_or(0);
        if all == 0 { 0.0 } else { all as f64 / under_way.max(1) as f64 }
    };
    per_event(served, share).fold(0.0, f64::max)
}

/// Operations refused on regions whose keys nobody changed.
fn refused_elsewhere(served: &Served) -> u64 {
    let changed = |replica: usize, what: What| {
        served.events.iter().any(|(event, ..)| event.what == what && usize::from(event.replica) == replica)
    };
    let of = |(at, met): (usize, &ReplicaCounters)| {
        let index = if changed(at + 1, What::RotateIndex) { 0 } else { met.refused_index };
        index + if changed(at + 1, What::RotateData) { 0 } else { met.refused - met.refused_index }
    };
    served.report.all.replicas.iter().enumerate().map(of).sum()
}

/// From the first event until the median of slices stays within twice that of the last quarter, for ten of
/// them. In ms; infinite if never.
fn settled_ms(served: &Served) -> f64 {
    let Some(&(_, event, _)) = served.events.first() else { return 0.0 };
    let slices = &served.slices;
    let median = |slice: &Window| super::us(slice.latency.percentile(0.5));
    let mut last: Vec<f64> = slices[slices.len() * 3 / 4..].iter().map(median).collect();
    last.sort_unstable_by(f64::total_cmp);
    let Some(later) = last.get(last.len() / 2) else { return f64::INFINITY };
    let calm = |slices: &[Window]| slices.iter().all(|s| median(s) > 0.0 && median(s) <= 2.0 * later);
    let rest = &slices[slices.partition_point(|slice| start_ms(slice) <= event)..];
    let settled = rest.windows(SETTLED_SLICES).position(calm);
    settled.map_or(f64::INFINITY, |at| (start_ms(&rest[at]) - event).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;
    use std::time::Duration;

    fn slice(t_ms: u64, p50_us: u64, refused: u64, under_way: usize) -> Window {
        let mut slice = Window { start: Duration::from_millis(t_ms), under_way, ..Window::default() };
        slice.latency.record(Duration::from_micros(p50_us));
        slice.replicas =
            vec![ReplicaCounters { refused, in_vain_ns: 7000 * refused, ..ReplicaCounters::default() }];
        slice
    }

    fn event(what: What, at: f64) -> (Event, f64, f64) {
        (Event { at: 0.5, replica: 1, what }, at, at + 0.5)
    }

    #[test]
    fn refusals_are_counted_for_each_change_and_where_they_belong() {
        let refused = [0, 0, 3, 0, 0, 1, 1, 0];
        let slices = (0..).zip(refused).map(|(t, n)| slice(t, 20, n, if n == 3 { 4 } else { 2 }));
        let mut served = Served {
            slices: slices.collect(),
            events: vec![event(What::RotateData, 1.9), event(What::RotateData, 5.1)],
            ..Served::default()
        };
        served.report.all.replicas =
            vec![ReplicaCounters { refused: 5, ..ReplicaCounters::default() }, ReplicaCounters::default()];
        // Three of four at the first, two of two at the second.
        assert_eq!(Metric::RefusedTrips.of(&served), 1.0);
        assert_eq!(Metric::Unavailable.of(&served), 21.0);
        assert_eq!((Metric::Refused.of(&served), refused_elsewhere(&served)), (5.0, 0));
        let replicas = &mut served.report.all.replicas;
        (replicas[0].refused, replicas[0].refused_index, replicas[1].refused) = (7, 2, 1);
        assert_eq!(refused_elsewhere(&served), 3);
        served.slices[5].replicas[0].refused = 2;
        assert_eq!(Metric::RefusedTrips.of(&served), 1.5, "more than were under way");
    }

    #[test]
    fn a_cache_has_settled_when_it_stays_as_it_is_later() {
        let medians = |slow: u64| {
            let at = |t: u64| slice(t, if (50..50 + slow).contains(&t) { 90 } else { 30 }, 0, 1);
            Served {
                slices: (0..100).map(at).collect(),
                events: vec![event(What::Kill, 49.5)],
                ..Served::default()
            }
        };
        assert_eq!(settled_ms(&medians(0)), 0.5);
        assert_eq!(settled_ms(&medians(7)), 7.5);
        assert_eq!(settled_ms(&medians(60)), 0.5, "it is as slow later");
        assert_eq!(settled_ms(&medians(24)), 24.5);
        assert_eq!(settled_ms(&Served::default()), 0.0);
    }
}
