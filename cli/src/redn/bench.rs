//! `adverb redn bench`: gets of one table in a closed loop, by three ways that take turns in one run: the
//! hull's NIC answers (offload), the client reads bucket and record itself (two READs), the worker answers a
//! call.

use super::connect::{Served, connect};
use super::get;
use super::proxy::{Calls, Counters as Called, Expected};
use crate::args::Nic;
use crate::error::Error;
use crate::output::print;
use crate::program::open_plain;
use crate::remote::{size, span};
use adverb_apps::kv::Histogram;
use adverb_os::clock;
use adverb_rdma::{Key, Rdma};
use adverb_redn::service::chain::Shape;
use adverb_redn::service::client::{Client, Counters, Got};
use clap::Args;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// What a way has at a time.
const TURN: Duration = Duration::from_millis(50);
/// Between two tries of a way that fails.
const REST: adverb_rdma::Duration = adverb_rdma::Duration::from_ms(1);

/// `adverb redn bench`.
#[derive(Args, Debug)]
pub struct Options {
    /// The hull: its address, or address and port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub server: String,
    /// How long to ask
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub time: Duration,
    /// A line for each such time
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub timeline: Option<Duration>,
    /// By READs of the client too, which `serve --one-sided` allows
    #[arg(long)]
    pub one_sided: bool,
    /// By calls that the worker answers too
    #[arg(long)]
    pub two_sided: bool,
    /// Keys, which are set before
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub keys: u64,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64")]
    pub value: usize,
    /// Ask for keys that an earlier run has set: no worker is needed
    #[arg(long)]
    pub no_fill: bool,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// A way to make a get.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Offload,
    Reads(Key, Key),
    Calls,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Offload => "offload",
            Way::Reads(..) => "two reads",
            Way::Calls => "call",
        }
    }
}

/// What a way came to.
struct Tally {
    way: Way,
    latencies: Histogram,
    /// Of this line of the time line.
    recent: Histogram,
    failed: u64,
    failed_recently: u64,
    /// Time that it had.
    spent_ns: u64,
    spent_recently_ns: u64,
    last_success_ns: u64,
    longest_gap_ns: u64,
    /// Since the last success, at the end of its last turn.
    open_gap_ns: u64,
    counted: Counters,
}

/// A run.
struct Bench<'a> {
    options: &'a Options,
    rdma: Rdma,
    client: Client,
    calls: Calls<'a>,
    random: fastrand::Rng,
}

#[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
fn now_ns() -> u64 {
    clock::monotonic_ns()
}

fn key(n: u64) -> Vec<u8> {
    format!("bench-{n}").into_bytes()
}

/// A key's data, which every get is compared with.
fn data(n: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (n.wrapping_mul(167) + at * 31) as u8).collect()
}

/// Measures.
pub fn bench(options: &Options) -> Result<ExitCode, Error> {
    let programs = open_plain(&options.nic)?;
    let rdma = Rdma::new(programs.clone());
    programs.block_on(async {
        let Served { client, told, line: _line } =
            connect(&rdma, &options.server, Shape::default(), options.one_sided).await?;
        let mut ways = vec![Way::Offload];
        ways.extend(told.rkeys.map(|(index, values)| Way::Reads(index, values)));
        ways.extend(options.two_sided.then_some(Way::Calls));
        let called = Called::default();
        let calls = Calls { to: &told.calls, stream: None, counters: &called };
        let mut bench = Bench { options, rdma, client, calls, random: fastrand::Rng::with_seed(1) };
        if !options.no_fill {
            bench.fill()?;
        }
        bench.run(&ways).await
    })
}

impl Bench<'_> {
    fn failed(&self, why: impl std::fmt::Display) -> Error {
        Error::Remote(format!("--server {}: {why}", self.options.server))
    }

    fn fill(&mut self) -> Result<(), Error> {
        for n in 0..self.options.keys {
            let (key, data) = (key(n), data(n, self.options.value));
            let line = [b"set ", &key[..], format!(" 0 0 {}", data.len()).as_bytes()].concat();
            match self.calls.call(&line, Some(&data), Expected::Line) {
                Some(answer) if answer == b"STORED\r\n" => {}
                Some(answer) => return Err(self.failed(String::from_utf8_lossy(&answer).trim_end())),
                None => return Err(self.failed("the worker does not answer, and keys are to be set")),
            }
        }
        Ok(())
    }

    /// A call for a key: its data, unless the worker does not answer.
    fn call(calls: &mut Calls<'_>, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let line = [b"get ", key].concat();
        calls.call(&line, None, Expected::End).and_then(|answer| get::told(&answer))
    }

    /// One get: whether it came to the right data.
    async fn get(&mut self, way: Way, n: u64) -> Result<bool, Error> {
        let (key, expected) = (key(n), data(n, self.options.value));
        let got = match way {
            Way::Offload => self.client.get(&key).await,
            Way::Reads(index, values) => self.client.get_by_reads(&key, (index, values)).await,
            Way::Calls => {
                return Ok(Self::call(&mut self.calls, &key).is_some_and(|got| got == Some(expected)));
            }
        };
        match got.map_err(|error| self.failed(error))? {
            Got::Value(value) => Ok(get::data(&value).is_some_and(|found| found == expected)),
            Got::Missing => Ok(false),
            Got::Unsure => {
                self.client.counters.fallbacks += 1;
                Ok(Self::call(&mut self.calls, &key).is_some_and(|got| got == Some(expected)))
            }
        }
    }

    async fn turn(&mut self, tally: &mut Tally, until_ns: u64) -> Result<(), Error> {
        let before = self.client.counters;
        let mut begin = now_ns();
        let first = begin;
        // Time that others had is no gap of this way.
        let gap_before = tally.open_gap_ns;
        tally.last_success_ns = begin - gap_before;
        while begin < until_ns {
            let n = self.random.u64(..self.options.keys.max(1));
            let right = self.get(tally.way, n).await?;
            let end = now_ns();
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
                self.rdma.sleep(REST).await.map_err(|error| self.failed(error))?;
            }
            begin = now_ns();
        }
        tally.longest_gap_ns = tally.longest_gap_ns.max(begin - tally.last_success_ns);
        tally.open_gap_ns = begin - tally.last_success_ns;
        tally.spent_ns += begin - first;
        tally.spent_recently_ns += begin - first;
        tally.count(&before, &self.client.counters);
        Ok(())
    }

    async fn run(&mut self, ways: &[Way]) -> Result<ExitCode, Error> {
        let mut tallies: Vec<Tally> = ways.iter().map(|way| Tally::new(*way)).collect();
        let begin = now_ns();
        let end = begin + self.options.time.as_nanos() as u64;
        let line = self.options.timeline.map(|line| line.as_nanos() as u64);
        let mut next_line = line.map_or(u64::MAX, |line| begin + line);
        if line.is_some() {
            print("       ms  way         gets/s   p50 us   p99 us  failed\n")?;
        }
        let turn = (TURN.as_nanos() as u64).min(line.unwrap_or(u64::MAX) / ways.len() as u64);
        while now_ns() < end {
            for tally in &mut tallies {
                let until = end.min(now_ns() + turn);
                self.turn(tally, until).await?;
            }
            if now_ns() >= next_line {
                let mut text = String::new();
                for tally in &mut tallies {
                    tally.line(next_line - begin, &mut text);
                }
                print(&text)?;
                next_line += line.unwrap_or(u64::MAX);
            }
        }
        let mut text = String::new();
        tallies.iter().for_each(|tally| tally.sum(&mut text));
        print(&text)?;
        let failed: u64 = tallies.iter().map(|tally| tally.failed).sum();
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
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

    /// What the client has counted in a turn.
    fn count(&mut self, before: &Counters, after: &Counters) {
        self.counted.timeouts += after.timeouts - before.timeouts;
        self.counted.retries += after.retries - before.retries;
        self.counted.fallbacks += after.fallbacks - before.fallbacks;
    }

    /// A line of the time line, which begins anew.
    fn line(&mut self, at_ns: u64, out: &mut String) {
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
        (self.recent, self.failed_recently, self.spent_recently_ns) = (Histogram::default(), 0, 0);
    }

    fn sum(&self, out: &mut String) {
        let Counters { timeouts, retries, fallbacks, .. } = self.counted;
        let _ = writeln!(
            out,
            "{}: {} gets, {:.0}/s, p50 {:.1} us, p99 {:.1} us; {} failed, {timeouts} timeouts, {retries} \
             retries, {fallbacks} fallbacks, longest gap {:.1} ms",
            self.way.name(),
            self.latencies.total(),
            rate(self.latencies.total(), self.spent_ns),
            us(&self.latencies, 0.5),
            us(&self.latencies, 0.99),
            self.failed,
            self.longest_gap_ns as f64 / 1e6,
        );
    }
}
