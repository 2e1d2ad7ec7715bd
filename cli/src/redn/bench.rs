//! `adverb redn bench`: gets of one table in a closed loop, by three ways that take turns in one run: the
//! hull's NIC answers (offload), the client reads bucket and record itself (two READs), the worker answers a
//! SEND (two-sided).

use super::measure::{Bench, Load, Way, now_ns};
use super::proxy::Counters as Called;
use crate::args::Nic;
use crate::error::Error;
use crate::output::print;
use crate::program::open_plain;
use crate::remote::{size, span};
use adverb_rdma::Rdma;
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

/// What a way has at a time.
const TURN: Duration = Duration::from_millis(50);
/// For the worker to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// `adverb redn bench`.
#[derive(Args, Debug)]
pub struct Options {
    /// The hull: its address, or address and port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub server: String,
    /// How long to ask
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub time: Duration,
    /// Ask until the NIC has answered so many gets, however long that takes
    #[arg(long, value_name = "N", conflicts_with = "time")]
    pub gets: Option<u64>,
    /// A line for each such time
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub timeline: Option<Duration>,
    /// By READs of the client too, which `serve --one-sided` allows
    #[arg(long)]
    pub one_sided: bool,
    /// By SENDs that the worker answers too, which `serve --two-sided` has it do
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

impl Options {
    fn load(&self) -> Load {
        let mut ways = vec![Way::Offload];
        ways.extend(self.one_sided.then_some(Way::Reads));
        ways.extend(self.two_sided.then_some(Way::TwoSided));
        let turn = TURN.min(self.timeline.unwrap_or(TURN) / ways.len() as u32);
        Load { keys: self.keys, value: self.value, turn, patience: PATIENCE, ways }
    }
}

/// Measures.
pub fn bench(options: &Options) -> Result<ExitCode, Error> {
    let programs = open_plain(&options.nic)?;
    let rdma = Rdma::new(programs.clone());
    programs.block_on(async {
        let called = Called::default();
        let mut bench = Bench::connect(&rdma, &options.server, options.load(), &called).await?;
        if !options.no_fill {
            bench.fill()?;
        }
        let begin = now_ns();
        let line = options.timeline.map(|line| line.as_nanos() as u64);
        let mut next_line = line.map_or(u64::MAX, |line| begin + line);
        if line.is_some() {
            print("       ms  way         gets/s   p50 us   p99 us  failed\n")?;
        }
        let mut until = begin + options.time.as_nanos() as u64;
        loop {
            bench
                .run(until, |tallies, now| {
                    if now < next_line {
                        return Ok(());
                    }
                    let mut text = String::new();
                    tallies.iter_mut().for_each(|tally| tally.line(next_line - begin, &mut text));
                    next_line += line.unwrap_or(u64::MAX);
                    print(&text)
                })
                .await?;
            match options.gets {
                Some(gets) if bench.tallies[0].latencies.total() < gets => {
                    until = now_ns() + TURN.as_nanos() as u64
                }
                _ => break,
            }
        }
        let mut text = String::new();
        bench.tallies.iter().for_each(|tally| tally.sum(&mut text));
        print(&text)?;
        let failed: u64 = bench.tallies.iter().map(|tally| tally.failed).sum();
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}
