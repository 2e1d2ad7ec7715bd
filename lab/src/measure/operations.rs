//! What came out of a run of single operations: tails of latency, goodput over time, how soon rates are
//! right. For 1RMA's experiments, and for what they are compared with.

use super::{Metric, Span, first_workload, of_times, sorted};
use adverb_nic::one_rma::Outcome;
use adverb_sim::rma::Operation;
use adverb_sim::workload::Workload;
use adverb_sim::workload::lookups::{Lookup, Lookups};
use adverb_sim::{Flow, Sim};
use std::collections::BTreeMap;

const US: f64 = 1e6;

/// A rate has been reached from the round trip on in which so much of it is asked for, and stays so on
/// average.
const FULL: f64 = 0.95;
/// Two flows have converged when each has this share at least over every so many round trips, for so many in
/// a row.
const SHARE_LEAST: f64 = 0.45;
const SHARE_TRIPS: usize = 4;
const SHARE_HOLDS: usize = 20;
/// Slices of lookups, in ps, and by how much of what is later they may differ where they have settled.
const SETTLE_SLICE: u64 = 10_000_000;
const SETTLED: f64 = 0.05;
/// Round trips after a flow's start in which the link's use is looked at.
const DIP_TRIPS: usize = 40;

/// A metric of this kind; not a number for others, and where there is nothing of which it could be.
pub fn value(sim: &Sim, metric: Metric, span: Span) -> f64 {
    match metric {
        Metric::LatencyP50 => of_times(&latencies(sim, span), 0.5) / US,
        Metric::LatencyP99 => of_times(&latencies(sim, span), 0.99) / US,
        Metric::LatencyP999 => of_times(&latencies(sim, span), 0.999) / US,
        Metric::SlowdownP50 => of_times(&slowdowns(sim, span), 0.5),
        Metric::SlowdownP99 => of_times(&slowdowns(sim, span), 0.99),
        Metric::OpDelayP50 => of_times(&delays(sim, span), 0.5) / US,
        Metric::Goodput => goodput(sim, span),
        Metric::Accepted => accepted(sim, span),
        Metric::Nacked => share(sim, Outcome::Nack, span),
        Metric::TimedOut => share(sim, Outcome::Timeout, span),
        Metric::DispatchTimedOut => share(sim, Outcome::DispatchTimeout, span),
        Metric::Ramp => ramp(sim),
        Metric::Converge => converge(sim),
        Metric::Dip => dip(sim),
        Metric::LookupP50 => lookup(sim, 0.5, span),
        Metric::LookupP99 => lookup(sim, 0.99, span),
        Metric::LookupFailed => lookup_failed(sim, span),
        Metric::LookupGap => lookup_gap(sim, span),
        Metric::LookupSettled => lookup_settled(sim),
        Metric::Unavailable => unavailable(sim),
        Metric::IssueRise => issue_rise(sim),
        _ => f64::NAN,
    }
}

/// Until the requester knew, in ps. What failed or did not end took for ever.
fn took(flow: &Flow) -> f64 {
    if flow.failed || flow.completed == u64::MAX {
        return f64::INFINITY;
    }
    (flow.completed - flow.spec.start) as f64
}

fn latencies(sim: &Sim, span: Span) -> Vec<f64> {
    sorted(first_workload(sim, span).map(took))
}

fn slowdowns(sim: &Sim, span: Span) -> Vec<f64> {
    sorted(first_workload(sim, span).map(|f| took(f) / sim.ideal_ps(f) as f64))
}

/// Of operations of 1RMA that were posted within the span and ended well: from the post to the end, in ps.
fn delays(sim: &Sim, span: Span) -> Vec<f64> {
    let all = sim.rma_record().map_or(&[][..], |record| &record.operations);
    let well = all.iter().filter(|o| o.outcome == Outcome::Ok && span.has(posted(o)));
    sorted(well.map(|o| o.total_ps as f64))
}

/// Payload that arrived, in Gb/s.
fn goodput(sim: &Sim, span: Span) -> f64 {
    let bytes: u64 = match sim.rma_record() {
        // What was not kept cannot be counted.
        Some(record) if record.missed > 0 => return f64::NAN,
        Some(record) => {
            let well = record.operations.iter().filter(|o| o.outcome == Outcome::Ok && span.has(o.at));
            well.map(|o| u64::from(o.len)).sum()
        }
        None => {
            let well = sim.flows().iter().filter(|f| !f.failed && span.has(f.received));
            well.map(|f| u64::from(f.spec.bytes)).sum()
        }
    };
    bytes as f64 * 8e3 / span.length() as f64
}

/// Goodput over what was asked for.
fn accepted(sim: &Sim, span: Span) -> f64 {
    let asked = sim.flows().iter().filter(|f| span.has(f.spec.start));
    let bytes: u64 = asked.map(|f| u64::from(f.spec.bytes)).sum();
    goodput(sim, span) / (bytes as f64 * 8e3 / span.length() as f64)
}

/// Operations posted within the span that ended so, of all of these.
fn share(sim: &Sim, outcome: Outcome, span: Span) -> f64 {
    let Some(record) = sim.rma_record().filter(|record| record.missed == 0) else { return f64::NAN };
    let within = record.operations.iter().filter(|o| span.has(posted(o)));
    super::mean(within.map(|o| if o.outcome == outcome { 1.0 } else { 0.0 }))
}

fn rtt_ps(sim: &Sim) -> Option<u64> {
    sim.config().one_rma.as_ref().map(|rma| rma.nic.rtt.as_ps())
}

/// When the software gave an operation to the NIC, in ps.
fn posted(operation: &Operation) -> u64 {
    operation.at - operation.total_ps
}

/// Bytes asked for in each round trip from `from` on, of the operations that `pick` chooses; only whole round
/// trips.
fn submitted(sim: &Sim, from: u64, pick: impl Fn(&Operation) -> bool) -> Vec<f64> {
    let (Some(record), Some(rtt)) = (sim.rma_record(), rtt_ps(sim)) else { return Vec::new() };
    let last = record.operations.iter().map(posted).max().unwrap_or(0);
    let mut slices = vec![0.0; (last.saturating_sub(from) / rtt) as usize];
    for operation in record.operations.iter().filter(|o| pick(o) && posted(o) >= from) {
        if let Some(slice) = slices.get_mut(((posted(operation) - from) / rtt) as usize) {
            *slice += f64::from(operation.len);
        }
    }
    slices
}

/// Payload that a host's link carries in a round trip.
fn line(sim: &Sim) -> f64 {
    let rate = sim.config().topology.cables.first().map_or(0, |cable| cable.rate);
    let operation = sim.config().one_rma.as_ref().map_or(0.0, |rma| f64::from(rma.executor.op_size));
    // IPv4, UDP, framing, and a read response's header and tag.
    let headers = 20.0 + 8.0 + 38.0 + 36.0;
    rate as f64 / 8e12 * rtt_ps(sim).unwrap_or(0) as f64 * operation / (operation + headers)
}

/// Round trips from the start until operations are asked for at line rate.
fn ramp(sim: &Sim) -> f64 {
    let start = sim.flows().iter().map(|f| f.spec.start).min().unwrap_or(0);
    first_full(&submitted(sim, start, |_| true), FULL * line(sim))
}

/// The first slice that has `full`, as those behind it do on average.
fn first_full(slices: &[f64], full: f64) -> f64 {
    let mean = |from: usize| slices[from..].iter().sum::<f64>() / (slices.len() - from) as f64;
    let reached = (0..slices.len()).find(|k| slices[*k] >= full && mean(*k) >= full);
    reached.map_or(f64::INFINITY, |k| k as f64)
}

/// Round trips from the start of the last flow until two targets have had fair shares for some of them.
fn converge(sim: &Sim) -> f64 {
    let mut first: Vec<(u32, u64)> = Vec::new();
    for (start, source) in sim.flows().iter().map(|f| (f.spec.start, f.spec.src)) {
        match first.iter_mut().find(|(known, _)| *known == source) {
            Some((_, at)) => *at = start.min(*at),
            None => first.push((source, start)),
        }
    }
    let [(one, a), (other, b)] = first[..] else { return f64::NAN };
    let from = a.max(b);
    let [x, y] = [one, other].map(|target| submitted(sim, from, |o| o.target == target));
    first_fair(&x, &y)
}

/// When the last host to begin posts its first flow, in ps.
fn last_start(sim: &Sim, host: impl Fn(&Flow) -> u32) -> u64 {
    let mut first: BTreeMap<u32, u64> = BTreeMap::new();
    for flow in sim.flows() {
        first.entry(host(flow)).and_modify(|at| *at = flow.spec.start.min(*at)).or_insert(flow.spec.start);
    }
    first.into_values().max().unwrap_or(0)
}

/// The least that is asked for over some round trips of those after the last flow's start, as a share of line
/// rate.
fn dip(sim: &Sim) -> f64 {
    let from = last_start(sim, |flow| flow.spec.dst);
    least_share(&submitted(sim, from, |_| true), line(sim))
}

/// Of the first [`DIP_TRIPS`] slices, those [`SHARE_TRIPS`] in a row that have least, as a share of `full`
/// each.
fn least_share(slices: &[f64], full: f64) -> f64 {
    let rows = slices.get(..DIP_TRIPS).unwrap_or_default().windows(SHARE_TRIPS);
    let shares = rows.map(|row| row.iter().sum::<f64>() / (SHARE_TRIPS as f64 * full));
    shares.min_by(f64::total_cmp).unwrap_or(f64::NAN)
}

/// By how much operations wait longer in their own NIC when another target is read from as well, in us: at
/// most, over some round trips after the last flow's start, than on average before it.
fn issue_rise(sim: &Sim) -> f64 {
    let (Some(record), Some(rtt)) = (sim.rma_record(), rtt_ps(sim)) else { return f64::NAN };
    let start = last_start(sim, |flow| flow.spec.src);
    let waited = |from: u64, to: u64| {
        let ended =
            record.operations.iter().filter(|o| o.outcome == Outcome::Ok && (from..to).contains(&o.at));
        super::mean(ended.map(|o| o.issue_ps as f64 / US))
    };
    let before = waited(start.saturating_sub(DIP_TRIPS as u64 * rtt), start);
    let trips = SHARE_TRIPS as u64 * rtt;
    let after = (0..DIP_TRIPS as u64 - SHARE_TRIPS as u64).map(|k| start + k * rtt);
    after.map(|from| waited(from, from + trips)).filter(|w| w.is_finite()).fold(f64::NAN, f64::max) - before
}

/// The slice by which two have had fair shares for some, which then last.
fn first_fair(x: &[f64], y: &[f64]) -> f64 {
    let count = x.len().min(y.len()).saturating_sub(SHARE_TRIPS);
    let fair = |k: usize| {
        let [p, q] = [x, y].map(|s| s[k..k + SHARE_TRIPS].iter().sum::<f64>());
        p.min(q) >= SHARE_LEAST * (p + q) && p + q > 0.0
    };
    let mut runs = (0..count.saturating_sub(SHARE_HOLDS)).filter(|k| (*k..k + SHARE_HOLDS).all(fair));
    runs.next().map_or(f64::INFINITY, |k| (k + SHARE_TRIPS) as f64)
}

fn lookups(sim: &Sim) -> Option<&Lookups> {
    match sim.workload() {
        Workload::Lookups(lookups) => Some(lookups),
        _ => None,
    }
}

/// Of lookups that began within the span; one that no server answered, or that did not end, took for ever.
fn lookup(sim: &Sim, share: f64, span: Span) -> f64 {
    let Some(lookups) = lookups(sim) else { return f64::NAN };
    let took = |l: &Lookup| if l.end == u64::MAX { f64::INFINITY } else { (l.end - l.start) as f64 };
    let ended = lookups.ended.iter().filter(|l| span.has(l.start)).map(took);
    let asked = lookups.arrivals.iter().filter(|(at, ..)| span.has(*at)).count();
    let mut all = sorted(ended);
    all.resize(all.len().max(asked), f64::INFINITY);
    of_times(&all, share) / US
}

/// Lookups that no server answered, or that did not end, of all that began within the span.
fn lookup_failed(sim: &Sim, span: Span) -> f64 {
    let Some(lookups) = lookups(sim) else { return f64::NAN };
    let well = lookups.ended.iter().filter(|l| l.end != u64::MAX && span.has(l.start)).count();
    let asked = lookups.arrivals.iter().filter(|(at, ..)| span.has(*at)).count();
    1.0 - well as f64 / asked.max(1) as f64
}

/// Longest time within the span between one lookup that ends well and the next, in us.
fn lookup_gap(sim: &Sim, span: Span) -> f64 {
    let Some(lookups) = lookups(sim) else { return f64::NAN };
    let ends: Vec<u64> = lookups.ended.iter().map(|l| l.end).filter(|end| span.has(*end)).collect();
    ends.windows(2).map(|pair| pair[1] - pair[0]).max().map_or(f64::NAN, |gap| gap as f64 / US)
}

/// From the last change of a region until lookups take as long as in the second half of the time that is
/// left, and do so for the rest of it, in us. Lookups are taken together by when they began, in slices of
/// [`SETTLE_SLICE`]; one that no server answered took for ever.
fn lookup_settled(sim: &Sim) -> f64 {
    let (Some(lookups), Some(rma)) = (lookups(sim), &sim.config().one_rma) else { return f64::NAN };
    let (Some(event), Some(last)) = (rma.events.last(), lookups.arrivals.iter().map(|a| a.0).max()) else {
        return f64::NAN;
    };
    let count = (last.saturating_sub(event.at) / SETTLE_SLICE) as usize;
    let mut slices: Vec<(f64, u64)> = vec![(0.0, 0); count];
    for l in lookups.ended.iter().filter(|l| l.start >= event.at) {
        if let Some((sum, n)) = slices.get_mut(((l.start - event.at) / SETTLE_SLICE) as usize) {
            *sum += if l.end == u64::MAX { f64::INFINITY } else { (l.end - l.start) as f64 };
            *n += 1;
        }
    }
    settled(&slices).map_or(f64::INFINITY, |k| (k as u64 * SETTLE_SLICE) as f64 / US)
}

/// The first slice from which on three together are always as the second half is, by [`SETTLED`] of it.
fn settled(slices: &[(f64, u64)]) -> Option<usize> {
    let mean = |part: &[(f64, u64)]| {
        part.iter().map(|s| s.0).sum::<f64>() / part.iter().map(|s| s.1).sum::<u64>() as f64
    };
    let level = mean(&slices[slices.len() / 2..]);
    let as_later = |three: &[(f64, u64)]| (mean(three) - level).abs() <= SETTLED * level;
    let unlike = slices.windows(3).rposition(|three| !as_later(three));
    let first = unlike.map_or(0, |k| k + 1);
    (first + 3 <= slices.len()).then_some(first)
}

/// From when the first operation that fails was posted until the first one of those that end well after it
/// was posted, in us: for how long a client asked in vain.
fn unavailable(sim: &Sim) -> f64 {
    let Some(record) = sim.rma_record() else { return f64::NAN };
    let failed = |o: &&Operation| o.outcome == Outcome::RemoteAuthenticationFailure;
    let Some(first) = record.operations.iter().filter(failed).min_by_key(|o| posted(o)) else { return 0.0 };
    let later = |o: &&Operation| o.outcome == Outcome::Ok && posted(o) > posted(first);
    let well = record.operations.iter().filter(|o| later(o) && o.initiator == first.initiator);
    well.map(posted).min().map_or(f64::INFINITY, |at| (at - posted(first)) as f64 / US)
}

/// What happened between two hosts in a slice of time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Slice {
    /// Its start, in us.
    pub t_us: f64,
    /// Who asked.
    pub initiator: u32,
    /// Whom.
    pub target: u32,
    /// Payload of what ended well, in Gb/s.
    pub goodput: f64,
    /// Operations that ended well.
    pub well: u64,
    /// Others.
    pub failed: u64,
    /// Their mean issue delay, in us; 0 if there are none.
    pub issue_us: f64,
    /// Their mean total delay, in us; 0 if there are none.
    pub total_us: f64,
}

/// What happened over time, in slices of `slice_ps`: one for each pair of hosts that something ended for.
pub fn timeline(sim: &Sim, slice_ps: u64) -> Vec<Slice> {
    let mut slices: BTreeMap<(u64, u32, u32), Slice> = BTreeMap::new();
    for o in sim.rma_record().map_or(&[][..], |record| &record.operations) {
        let slice = slices.entry((o.at / slice_ps, o.initiator, o.target)).or_default();
        if o.outcome != Outcome::Ok {
            slice.failed += 1;
            continue;
        }
        slice.goodput += f64::from(o.len) * 8e3 / slice_ps as f64;
        slice.well += 1;
        slice.issue_us += o.issue_ps as f64 / US;
        slice.total_us += o.total_ps as f64 / US;
    }
    let finished = |((at, initiator, target), slice): ((u64, u32, u32), Slice)| Slice {
        t_us: (at * slice_ps) as f64 / US,
        initiator,
        target,
        issue_us: slice.issue_us / slice.well.max(1) as f64,
        total_us: slice.total_us / slice.well.max(1) as f64,
        ..slice
    };
    slices.into_iter().map(finished).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_reached_when_it_stays() {
        assert_eq!(first_full(&[1.0, 5.0, 10.0, 10.0, 10.0], 9.5), 2.0);
        assert_eq!(first_full(&[10.0, 1.0, 1.0, 10.0, 10.0], 9.5), 3.0, "one burst is no rate");
        assert_eq!(first_full(&[1.0, 2.0], 9.5), f64::INFINITY);
    }

    #[test]
    fn lookups_have_settled_when_they_stay_so() {
        let of = |means: &[f64]| settled(&means.iter().map(|m| (10.0 * m, 10)).collect::<Vec<_>>());
        assert_eq!(of(&[5.0; 12]), Some(0));
        // Two slices that take longer: settled once three in a row do not.
        assert_eq!(of(&[9.0, 9.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]), Some(2));
        assert_eq!(of(&[5.0, 5.0, 5.0, f64::INFINITY, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]), Some(4));
        assert_eq!(of(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]), None, "what only grows does not");
    }

    #[test]
    fn shares_are_fair_when_they_stay() {
        let (x, mut y) = ([10.0; 60], [10.0; 60]);
        assert_eq!(first_fair(&x, &y), 4.0, "four round trips are looked at");
        y[..7].fill(2.0);
        // The first four that are even: from the eighth on.
        assert_eq!(first_fair(&x, &y), 11.0);
        y[25..29].fill(1.0);
        assert_eq!(first_fair(&x, &y), 33.0, "what does not last does not count");
        assert_eq!(first_fair(&x, &[0.0; 60]), f64::INFINITY);
        assert_eq!(first_fair(&[0.0; 60], &[0.0; 60]), f64::INFINITY);
    }

    #[test]
    fn operations_of_a_run_are_measured() {
        let text = "end = \"300us\"\n\
                    [topology]\nkind = \"two-hosts\"\nrate = \"100G\"\ndelay = \"2us\"\n\
                    [transport]\nkind = \"1rma\"\n\
                    [transport.one-rma.control]\nfixed = 0\n\
                    [workload]\nkind = \"steady\"\nop = \"read\"\npairs = [[0, 1]]\n\
                    bytes = \"4096\"\nload = 0.5\nuntil = \"200us\"\n";
        let plan = adverb_sim::Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap();
        let mut sim = plan.start().unwrap();
        plan.run(&mut sim, &mut |_| {});
        let span = Span::of(&sim, crate::definition::Interval { warm_up: 0.2, drain: 0.0 });
        let of = |metric| value(&sim, metric, span);
        assert!((of(Metric::Goodput) - 50.0).abs() < 1.0, "{}", of(Metric::Goodput));
        assert!((of(Metric::Accepted) - 1.0).abs() < 0.02);
        assert_eq!((of(Metric::SlowdownP50), of(Metric::Nacked), of(Metric::Unavailable)), (1.0, 0.0, 0.0));
        assert!((of(Metric::OpDelayP50) - 4.345).abs() < 0.001, "{}", of(Metric::OpDelayP50));
        // Two times 2 us, 118 and 4198 bytes at 100 Gb/s.
        assert!((of(Metric::LatencyP50) - 4.345).abs() < 0.001, "{}", of(Metric::LatencyP50));
        assert!(of(Metric::LookupP50).is_nan() && of(Metric::Slowdown).is_nan());
        let slices = timeline(&sim, 50_000_000);
        assert!((slices[1].goodput - 50.0).abs() < 1.0 && slices[1].failed == 0);
        assert_eq!(
            (slices[1].t_us, slices[1].initiator, slices[1].target, slices[1].issue_us),
            (50.0, 1, 0, 0.0)
        );
    }
}
