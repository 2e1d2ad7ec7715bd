//! Gets of one table in a closed loop, by several ways that take turns: what `bench` and `figure` print.
//!
//! ```text
//! offload    the chain in the hull's NIC answers a SEND
//! two reads  the client READs a bucket, then the record
//! two-sided  the worker answers a SEND: it takes it off its queue, looks the key up, writes a copy
//! ```
//! A way's rate and gaps are of the time that it had. What fails is asked again by the next get; a worker
//! that has ended is connected to anew.

use super::connect::{self, Served, To, connect};
use super::get;
use super::proxy::{Calls, Counters as Called, Expected};
use crate::error::Error;
use adverb_apps::kv::Histogram;
use adverb_os::clock;
use adverb_rdma::Rdma;
use adverb_redn::service::chain::Shape;
use adverb_redn::service::client::{By, Counters, Got};
use std::fmt::Write as _;
use std::time::Duration;

/// Between two tries of a way that fails.
const REST: adverb_rdma::Duration = adverb_rdma::Duration::from_ms(1);

/// Which gets are made.
#[derive(Clone, Debug)]
pub struct Load {
    /// Keys.
    pub keys: u64,
    /// Bytes of a value.
    pub value: usize,
    /// What a way has at a time.
    pub turn: Duration,
    /// How long the worker may take, to answer or to connect.
    pub patience: Duration,
    /// By which ways; READs need keys that the hull gives.
    pub ways: Vec<Way>,
}

/// A way to make a get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By the hull's chain.
    Offload,
    /// By READs of the client's.
    Reads,
    /// By SEND and RECV of the worker.
    TwoSided,
}

impl Way {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Way::Offload => "offload",
            Way::Reads => "two reads",
            Way::TwoSided => "two-sided",
        }
    }
}

/// What a way came to.
pub struct Tally {
    /// The way.
    pub way: Way,
    /// Of all gets that came to the right data.
    pub latencies: Histogram,
    /// Those since the last line.
    recent: Histogram,
    /// Gets that did not.
    pub failed: u64,
    failed_recently: u64,
    /// Time that it had.
    spent_ns: u64,
    /// Since the last line.
    spent_recently_ns: u64,
    last_success_ns: u64,
    longest_gap_ns: u64,
    /// Since the last success, at the end of its last turn.
    open_gap_ns: u64,
    counted: Counters,
}

/// A run.
pub struct Bench<'a> {
    load: Load,
    rdma: Rdma,
    chain: Served,
    worker: Option<Served>,
    /// What clients of workers have counted that are connected to no more.
    ended: Counters,
    calls: Calls<'a>,
    random: fastrand::Rng,
    /// One for each way.
    pub tallies: Vec<Tally>,
}

/// The time, in nanoseconds.
#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
pub fn now_ns() -> u64 {
    clock::monotonic_ns()
}

/// A key by its number.
pub fn key(n: u64) -> Vec<u8> {
    format!("bench-{n}").into_bytes()
}

/// A key's data, which every get is compared with.
pub fn data(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (n.wrapping_mul(167) + at * 31) as u8).collect()
}

/// Whether such data was found, without a copy of it.
fn is_data(found: &[u8], n: u64, len: usize) -> bool {
    found.len() == len
        && (0..len as u64).zip(found).all(|(at, byte)| *byte == (n.wrapping_mul(167) + at * 31) as u8)
}

/// Sets a key, by a call.
pub fn set(calls: &mut Calls<'_>, key: &[u8], data: &[u8]) -> Result<(), String> {
    let line = [b"set ", key, format!(" 0 0 {}", data.len()).as_bytes()].concat();
    match calls.call(&line, Some(data), Expected::Line) {
        Some(answer) if answer == b"STORED\r\n" => Ok(()),
        Some(answer) => Err(String::from_utf8_lossy(&answer).trim_end().to_owned()),
        None => Err("the worker does not answer, and keys are to be set".to_owned()),
    }
}

impl<'a> Bench<'a> {
    /// Connects to a hull, and to its worker if that is a way.
    pub async fn connect(
        rdma: &Rdma,
        server: &str,
        load: Load,
        called: &'a Called,
    ) -> Result<Bench<'a>, Error> {
        let one_sided = load.ways.contains(&Way::Reads);
        let chain = connect(rdma, server, Shape::default(), one_sided).await?;
        let calls = Calls { to: chain.told.calls.clone().into(), stream: None, counters: called };
        let tallies = load.ways.iter().map(|way| Tally::new(*way)).collect();
        let (random, ended) = (fastrand::Rng::with_seed(1), Counters::default());
        let mut bench =
            Bench { load, rdma: rdma.clone(), chain, worker: None, ended, calls, random, tallies };
        if bench.load.ways.contains(&Way::TwoSided) {
            // It serves now, however busy the host is: what a worker may take that was killed comes later.
            bench.find_worker(connect::PATIENCE).await.map_err(failed)?;
        }
        Ok(bench)
    }

    /// Counts anew, with values of so many bytes from now on.
    pub fn begin_anew(&mut self, value: usize) {
        self.load.value = value;
        self.tallies = self.load.ways.iter().map(|way| Tally::new(*way)).collect();
    }

    /// Sets all keys.
    pub fn fill(&mut self) -> Result<(), Error> {
        (0..self.load.keys)
            .try_for_each(|n| set(&mut self.calls, &key(n), &data(n, self.load.value)).map_err(failed))
    }

    async fn find_worker(&mut self, patience: Duration) -> Result<(), String> {
        let to = To { by: By::Program, shape: Shape::default(), one_sided: false, patience };
        let mut served = to.connect(&self.rdma, &self.chain.told.calls).await?;
        served.client.limit = adverb_rdma::Duration::from_ns(self.load.patience.as_nanos() as u64);
        self.worker = Some(served);
        Ok(())
    }

    /// One get: whether it came to the right data.
    async fn get(&mut self, way: Way, n: u64) -> Result<bool, Error> {
        let key = key(n);
        let client = &mut self.chain.client;
        let got = match way {
            Way::Offload => client.get(&key).await.map_err(failed)?,
            Way::Reads => match self.chain.told.rkeys {
                Some(keys) => client.get_by_reads(&key, keys).await.map_err(failed)?,
                None => return Err(failed("keys of index and values are not given")),
            },
            Way::TwoSided => {
                if self.worker.is_none() && self.find_worker(self.load.patience).await.is_err() {
                    return Ok(false);
                }
                let Some(worker) = &mut self.worker else { return Ok(false) };
                match worker.client.get(&key).await {
                    Ok(got) => got,
                    Err(_) => {
                        self.ended = sum(&self.ended, &worker.client.counters);
                        self.worker = None;
                        return Ok(false);
                    }
                }
            }
        };
        let len = self.load.value;
        Ok(match got {
            Got::Value(value) => get::item(&value).is_some_and(|found| is_data(found, n, len)),
            Got::Missing => false,
            Got::Unsure => {
                match way {
                    Way::TwoSided => self.ended.fallbacks += 1,
                    _ => self.chain.client.counters.fallbacks += 1,
                }
                let line = [b"get ", &key[..]].concat();
                let answer =
                    self.calls.call(&line, None, Expected::End).and_then(|answer| get::told(&answer));
                answer.flatten().is_some_and(|found| is_data(&found, n, len))
            }
        })
    }

    fn counted(&self, way: Way) -> Counters {
        match (way, &self.worker) {
            (Way::TwoSided, Some(worker)) => sum(&self.ended, &worker.client.counters),
            (Way::TwoSided, None) => self.ended,
            _ => self.chain.client.counters,
        }
    }

    /// A way's turn: one get at least, so that ways that had their turns before it leave none without.
    async fn turn(&mut self, at: usize, until_ns: u64) -> Result<(), Error> {
        let way = self.load.ways[at];
        let before = self.counted(way);
        let mut begin = now_ns();
        let first = begin;
        // Time that others had is no gap of this way.
        let tally = &mut self.tallies[at];
        tally.last_success_ns = begin - tally.open_gap_ns;
        loop {
            let n = self.random.u64(..self.load.keys.max(1));
            let right = self.get(way, n).await?;
            let end = now_ns();
            let tally = &mut self.tallies[at];
            if right {
                let latency = Duration::from_nanos(end - begin);
                tally.latencies.record(latency);
                tally.recent.record(latency);
                tally.longest_gap_ns = tally.longest_gap_ns.max(end - tally.last_success_ns);
                tally.last_success_ns = end;
            } else {
                tally.failed += 1;
                tally.failed_recently += 1;
                // A worker that is gone refuses at once.
                self.rdma.sleep(REST).await.map_err(failed)?;
            }
            begin = now_ns();
            if begin >= until_ns {
                break;
            }
        }
        let after = self.counted(way);
        let tally = &mut self.tallies[at];
        tally.longest_gap_ns = tally.longest_gap_ns.max(begin - tally.last_success_ns);
        tally.open_gap_ns = begin - tally.last_success_ns;
        tally.spent_ns += begin - first;
        tally.spent_recently_ns += begin - first;
        tally.count(&before, &after);
        Ok(())
    }

    /// Turns of all ways until then, after each of which this is told.
    pub async fn run(
        &mut self,
        until_ns: u64,
        mut after: impl FnMut(&mut [Tally], u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let turn = self.load.turn.as_nanos() as u64;
        while now_ns() < until_ns {
            for at in 0..self.tallies.len() {
                let until = until_ns.min(now_ns() + turn);
                self.turn(at, until).await?;
            }
            after(&mut self.tallies, now_ns())?;
        }
        Ok(())
    }
}

/// Of what `bench` prints.
fn sum(one: &Counters, other: &Counters) -> Counters {
    Counters {
        timeouts: one.timeouts + other.timeouts,
        retries: one.retries + other.retries,
        fallbacks: one.fallbacks + other.fallbacks,
        ..Counters::default()
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::Remote(format!("--server: {why}"))
}

fn us(latencies: &Histogram, share: f64) -> f64 {
    latencies.percentile(share).as_secs_f64() * 1e6
}

fn rate(count: u64, ns: u64) -> f64 {
    count as f64 * 1e9 / ns.max(1) as f64
}

impl Tally {
    fn new(way: Way) -> Tally {
        Tally {
            way,
            latencies: Histogram::default(),
            recent: Histogram::default(),
            failed: 0,
            failed_recently: 0,
            spent_ns: 0,
            spent_recently_ns: 0,
            last_success_ns: 0,
            longest_gap_ns: 0,
            open_gap_ns: 0,
            counted: Counters::default(),
        }
    }

    /// What clients have counted in a turn.
    fn count(&mut self, before: &Counters, after: &Counters) {
        self.counted.timeouts += after.timeouts - before.timeouts;
        self.counted.retries += after.retries - before.retries;
        self.counted.fallbacks += after.fallbacks - before.fallbacks;
    }

    /// The median, and the 99th percentile, in us.
    pub fn median_and_p99(&self) -> (f64, f64) {
        (us(&self.latencies, 0.5), us(&self.latencies, 0.99))
    }

    /// Gets a second, of the time that it had.
    pub fn rate(&self) -> f64 {
        rate(self.latencies.total(), self.spent_ns)
    }

    /// Milliseconds without a get, at most.
    pub fn longest_gap_ms(&self) -> f64 {
        self.longest_gap_ns as f64 / 1e6
    }

    /// Gets a second since the last line, which ends here, and how many failed.
    pub fn take_recent(&mut self) -> (f64, u64) {
        let found = (rate(self.recent.total(), self.spent_recently_ns), self.failed_recently);
        self.forget_recent();
        found
    }

    fn forget_recent(&mut self) {
        (self.recent, self.failed_recently, self.spent_recently_ns) = (Histogram::default(), 0, 0);
    }

    /// A line of the time line, which begins anew.
    pub fn line(&mut self, at_ns: u64, out: &mut String) {
        let _ = writeln!(
            out,
            "{:>9}  {:<9} {:>8.0} {:>8.1} {:>8.1} {:>7}",
            at_ns / 1_000_000,
            self.way.name(),
            rate(self.recent.total(), self.spent_recently_ns),
            us(&self.recent, 0.5),
            us(&self.recent, 0.99),
            self.failed_recently
        );
        self.forget_recent();
    }

    /// The whole in a line.
    pub fn sum(&self, out: &mut String) {
        let Counters { timeouts, retries, fallbacks, .. } = self.counted;
        let (median, p99) = self.median_and_p99();
        let _ = writeln!(
            out,
            "{}: {} gets, {:.0}/s, p50 {median:.1} us, p99 {p99:.1} us; {} failed, {timeouts} timeouts, \
             {retries} retries, {fallbacks} fallbacks, longest gap {:.1} ms",
            self.way.name(),
            self.latencies.total(),
            self.rate(),
            self.failed,
            self.longest_gap_ms(),
        );
    }
}
