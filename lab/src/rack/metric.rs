//! Figures of a run of clients, by name: of what ended within a window, and of what was counted meanwhile.

use super::{Done, Log, counters, order};
use adverb_sim::Sim;
use adverb_sim::statistics::percentile;
use adverb_switch::{Counter, Counters};
use serde::Deserialize;

/// A figure of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Millions of operations a second.
    Rate,
    /// Median time of those that only read, in us.
    ReadP50,
    /// Their 99th percentile.
    ReadP99,
    /// 99th percentile of those that change something, in us.
    WriteP99,
    /// The longest time of the window in which no operation ended, in us.
    Gap,
    /// Of a hundred operations, those that came to their end at the first try.
    First,
    /// Compare and swaps in vain for each operation that changes something.
    Refused,
    /// Entries passed on the way to the last one, for each operation.
    Passed,
    /// Bytes on the server's link, both ways, for each operation.
    Bytes,
    /// Share of its rate that the busier direction of the server's link carries.
    LinkShare,
    /// Of a hundred atomics that the switch followed, those that it decided.
    Converted,
    /// Compare and swaps, and READs, that the switch sent elsewhere, for each operation.
    Steered,
    /// Requests that waited in the switch, for each operation.
    Held,
    /// Of a hundred answers that passed the switch, those that were to the request next to the last answer's.
    InOrder,
    /// How many requests two successive answers were apart, at most.
    Farthest,
}

/// What could be counted at a moment of a run.
pub struct Seen {
    /// The moment, in ps.
    at: u64,
    /// Bytes on the server's link, each way.
    bytes: [u64; 2],
    /// Its rate, in bits a second.
    rate: u64,
    switch: Counters,
    order: order::Seen,
}

impl Seen {
    /// Now.
    pub fn of(sim: &Sim, server: u32, at: u64) -> Seen {
        let up = sim.hosts()[server as usize].up;
        let bytes = [up, up ^ 1].map(|link| sim.links()[link as usize].bytes);
        let rate = sim.config().topology.cables[up as usize / 2].rate;
        Seen { at, bytes, rate, switch: counters(sim), order: order::Seen::of(sim) }
    }
}

/// A part of a run.
pub struct Window<'a> {
    /// What clients did in all of it.
    pub(crate) log: &'a Log,
    /// At its beginning.
    pub from: &'a Seen,
    /// At its end.
    pub to: &'a Seen,
}

const US: f64 = 1e6;

impl Window<'_> {
    fn done(&self) -> impl Iterator<Item = &Done> {
        let (from, to) = (self.from.at, self.to.at);
        self.log.done.iter().filter(move |done| (from..to).contains(&done.ended))
    }

    fn count(&self) -> f64 {
        self.done().count() as f64
    }

    /// Of operations that are in the order of their ends, and of the window's own ends.
    fn gap(&self) -> f64 {
        let ends = self.done().map(|done| done.ended).chain([self.to.at]);
        let (mut before, mut longest) = (self.from.at, 0);
        for end in ends {
            longest = longest.max(end - before);
            before = end;
        }
        longest as f64 / US
    }

    fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|way| self.to.bytes[way] - self.from.bytes[way])
    }

    fn switch(&self, counters: &[Counter]) -> f64 {
        let of = |counter: &Counter| self.to.switch.get(*counter) - self.from.switch.get(*counter);
        counters.iter().map(of).sum::<u64>() as f64
    }

    fn time(&self, changes: bool, share: f64) -> f64 {
        let mut all: Vec<u64> =
            self.done().filter(|done| done.changes == changes).map(|done| done.took).collect();
        all.sort_unstable();
        percentile(&all, share).map_or(f64::NAN, |ps| ps as f64 / US)
    }
}

impl Metric {
    /// Its heading, with its unit, and its name in CSV files.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Metric::Rate => ("rate (M/s)", "rate_mps"),
            Metric::ReadP50 => ("reads: median (us)", "read_p50_us"),
            Metric::ReadP99 => ("reads: 99% (us)", "read_p99_us"),
            Metric::WriteP99 => ("writes: 99% (us)", "write_p99_us"),
            Metric::Gap => ("longest gap (us)", "gap_us"),
            Metric::First => ("at the first try (%)", "first_percent"),
            Metric::Refused => ("CAS in vain a write", "refused"),
            Metric::Passed => ("entries passed", "passed"),
            Metric::Bytes => ("bytes an operation", "bytes"),
            Metric::LinkShare => ("share of the link", "link_share"),
            Metric::Converted => ("converted (%)", "converted_percent"),
            Metric::Steered => ("steered", "steered"),
            Metric::Held => ("held", "held"),
            Metric::InOrder => ("answers in order (%)", "in_order_percent"),
            Metric::Farthest => ("farthest apart", "farthest"),
        }
    }

    /// Its value. Of a run that has none, not a number.
    pub fn of(self, window: &Window<'_>) -> f64 {
        const DECIDED: [Counter; 3] = [Counter::CasGranted, Counter::CasRefused, Counter::FetchAdded];
        let ps = (window.to.at - window.from.at) as f64;
        let sum = |of: fn(&Done) -> u32| window.done().map(|done| f64::from(of(done))).sum::<f64>();
        let writes = || window.done().filter(|done| done.changes).count() as f64;
        match self {
            // In ps, so that millions a second are operations times 10^6.
            Metric::Rate => window.count() * US / ps,
            Metric::ReadP50 => window.time(false, 0.5),
            Metric::ReadP99 => window.time(false, 0.99),
            Metric::WriteP99 => window.time(true, 0.99),
            Metric::Gap => window.gap(),
            Metric::First => {
                let first = window.done().filter(|done| done.refused == 0 && done.passed == 0).count();
                100.0 * first as f64 / window.count()
            }
            Metric::Refused => sum(|done| done.refused) / writes(),
            Metric::Passed => sum(|done| done.passed) / window.count(),
            Metric::Bytes => window.bytes().iter().sum::<u64>() as f64 / window.count(),
            Metric::LinkShare => {
                let most = window.bytes().into_iter().max().unwrap_or(0) as f64;
                most * 8.0 / (window.from.rate as f64 * ps / 1e12)
            }
            Metric::Converted => {
                let decided = window.switch(&DECIDED);
                100.0 * decided / (decided + window.switch(&[Counter::AtomicsPassed]))
            }
            Metric::Steered => window.switch(&[Counter::SteeredCas, Counter::SteeredReads]) / window.count(),
            Metric::Held => window.switch(&[Counter::Held]) / window.count(),
            Metric::InOrder => {
                let (from, to) = (window.from.order, window.to.order);
                100.0 * (to.next - from.next) as f64 / (to.answers - from.answers) as f64
            }
            Metric::Farthest => window.to.order.farthest as f64,
        }
    }
}
