//! Chains of work requests on simulated adapters: what an experiment asks for, and what came of it.
//!
//! A run is programs over `adverb_rdma` on hosts whose hardware costs what a profile says. The NIC executes
//! what they post WQE by WQE; every figure is a difference of two times of that run, or a count over one.
//!
//! | file | holds |
//! |---|---|
//! | [`metric`] | figures of a run, by name |
//! | `verbs` | single verbs: how long one takes, how many a second |
//! | `nops` | chains of NOPs in RedN's three orders |
//! | `wqe` | WQEs written by hand |

pub mod metric;
mod nops;
mod verbs;
mod wqe;

pub use metric::Metric;

use crate::definition::Metrics;
use crate::measure::Measured;
use crate::points::{Asked, plan, scenario};
use crate::{Error, Experiment};
use adverb_rdma::Rdma;
use adverb_sim::program::{self, Doing, Start, Task};
use adverb_sim::{Plan, Scenario};
use core::cell::RefCell;
use serde::Deserialize;
use std::rc::Rc;
use toml::Value;

/// Operations of a run at most.
const COUNT_MAX: u32 = 100_000;
/// Virtual time after which a run that has not ended has failed, in ps.
const END_PS: u64 = 10_000_000_000_000;

/// What the programs of a run do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "run", deny_unknown_fields, rename_all = "kebab-case")]
pub enum Program {
    /// One verb after the other, each posted when the one before is done.
    Verb {
        /// Which.
        verb: Verb,
        /// Payload.
        bytes: u32,
        /// How many.
        count: u32,
    },
    /// As many of a verb as the adapter can.
    Verbs {
        /// Which.
        verb: Verb,
        /// Payload.
        bytes: u32,
        /// Queue pairs.
        pairs: u32,
        /// Requests that each of them has, all posted at the start.
        each: u32,
    },
    /// Chains of NOPs on the adapter itself, one after another.
    Nops {
        /// Their order.
        order: Order,
        /// NOPs of each chain.
        counts: Vec<u32>,
    },
}

/// A verb, as RedN's figure 7 has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// A READ.
    Read,
    /// A WRITE from registered memory.
    Write,
    /// A compare and swap.
    Cas,
    /// A fetch and add.
    Add,
    /// A WRITE of no bytes: a NOP that goes to the other adapter and back.
    NopRemote,
    /// A NOP, which stays on the adapter.
    NopLocal,
}

/// RedN's three orders (section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// As they stand in the queue.
    Queue,
    /// Each when the one before has completed.
    Completion,
    /// Each fetched only when the one before has completed.
    Doorbell,
}

/// What a run asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    scenario: Scenario,
    program: Program,
}

/// What programs have found out, in ps of their own clocks.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// How long each operation took.
    pub samples: Vec<u64>,
    /// Of chains: how long each of them is.
    pub counts: Vec<u32>,
    /// When each operation of a stream of them was done.
    pub done: Vec<u64>,
}

/// A log that the programs of a run share.
type Shared = Rc<RefCell<Log>>;

impl Setup {
    /// What one place of a series asks for: a scenario's tables, and `program`.
    pub fn of(asked: &Asked) -> Result<Setup, Error> {
        let fail = |why: String| Error(format!("{}: {why}", asked.name));
        let mut table = asked.table.clone();
        let program = table.remove("program").ok_or_else(|| fail("needs a table `program`".to_owned()))?;
        let program: Program = Value::try_into(program)
            .map_err(|e: toml::de::Error| fail(format!("program: {}", e.message())))?;
        program.check().map_err(|why| fail(format!("program: {why}")))?;
        // There may be flows beside the programs; a scenario without either would be refused.
        let no_flows = || {
            Value::Table(toml::toml! { kind = "list"
            list = [] })
        };
        table.entry("workload").or_insert_with(no_flows);
        let scenario = scenario(&Asked { table, ..asked.clone() })?;
        if scenario.programs.is_some() {
            return Err(fail("[programs] are not for this kind; give `program`".to_owned()));
        }
        Ok(Setup { scenario, program })
    }

    /// What is simulated for a seed.
    pub fn plan(&self, name: &str, seed: u64) -> Result<Plan, Error> {
        let mut plan = plan(name, &self.scenario, seed)?;
        // Programs look at bytes.
        plan.config.payload = true;
        if plan.config.topology.hosts < 2 || plan.config.one_rma.is_some() {
            return Err(Error(format!("{name}: chains need two hosts with queue pairs")));
        }
        Ok(plan)
    }

    /// Runs it for a seed.
    pub fn run(&self, name: &str, seed: u64, metrics: &Metrics) -> Result<Measured, Error> {
        let Metrics::Chains(metrics) = metrics else { return Ok(Measured::default()) };
        let plan = self.plan(name, seed)?;
        let mut sim = plan.start().map_err(|e| Error(format!("{name}: {e}")))?;
        let log = Shared::default();
        let programs = self.programs(&log);
        sim.set_programs(program::Setup { programs, exchange_ps: 1_000_000, seed, ..Default::default() });
        while !sim.programs_ended() && sim.run(END_PS, 1_000_000) {}
        let log = log.take();
        let values = metrics.iter().map(|metric| metric.of(&log)).collect();
        let well = |doing: &Doing, serves: bool| matches!(doing, Doing::Ended(Ok(()))) || serves;
        let all: Vec<bool> = sim.programs().map(|(name, doing, ..)| well(doing, name == "server")).collect();
        let failed = sim.programs().find_map(|(name, doing, ..)| match doing {
            Doing::Ended(Err(why)) => Some(format!("{name}: {why}")),
            _ => None,
        });
        if let Some(why) = failed.or(sim.program_failures().first().cloned()) {
            return Err(Error(format!("{name}: {why}")));
        }
        Ok(Measured {
            values,
            flows: (all.len() as u32, all.iter().filter(|well| !**well).count() as u32),
            link_hops: sim.stats().link_hops,
            exact: true,
            trace: sim.trace_hash(),
            ..Measured::default()
        })
    }

    fn programs(&self, log: &Shared) -> Vec<Start> {
        match &self.program {
            Program::Verb { verb, bytes, count } => {
                let (verb, bytes, count) = (*verb, *bytes, *count);
                let client = start("client", 0, log, move |rdma, log| {
                    Box::pin(verbs::one_by_one(rdma, log, verb, bytes, count))
                });
                vec![server(1), client]
            }
            Program::Verbs { verb, bytes, pairs, each } => {
                let (verb, bytes, pairs, each) = (*verb, *bytes, *pairs, *each);
                let client = start("client", 0, log, move |rdma, log| {
                    Box::pin(verbs::at_once(rdma, log, (verb, bytes), (pairs, each)))
                });
                vec![server(pairs), client]
            }
            Program::Nops { order, counts } => {
                let (order, counts) = (*order, counts.clone());
                vec![start("client", 0, log, move |rdma, log| {
                    Box::pin(nops::chains(rdma, log, order, counts.clone()))
                })]
            }
        }
    }
}

fn server(pairs: u32) -> Start {
    Start::new("server", 1, move |rdma| verbs::serve(rdma, pairs)).serving()
}

/// A program that shares the run's log.
fn start(
    name: &str,
    host: u32,
    log: &Shared,
    run: impl Fn(Rdma, Shared) -> core::pin::Pin<Box<dyn Future<Output = Result<(), adverb_rdma::Error>>>>
    + 'static,
) -> Start {
    let log = log.clone();
    let run = move |rdma: Rdma| -> Task {
        let future = run(rdma, log.clone());
        Box::pin(async move { future.await.map_err(|error| error.to_string()) })
    };
    Start { run: Rc::new(run), ..Start::new(name, host, |_| async { Ok::<(), String>(()) }) }
}

impl Program {
    fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}: give 1 to {most}")),
        };
        match self {
            Program::Verb { bytes, count, .. } => {
                within("count", *count, COUNT_MAX)?;
                within("bytes", (*bytes).max(1), 1 << 20)
            }
            Program::Verbs { bytes, pairs, each, .. } => {
                within("pairs", *pairs, 256)?;
                within("each", *each, 1024)?;
                within("bytes", (*bytes).max(1), 1 << 16)
            }
            Program::Nops { counts, .. } => match counts.iter().all(|n| (1..=64).contains(n)) {
                true if !counts.is_empty() => Ok(()),
                _ => Err("counts: give some from 1 to 64".to_owned()),
            },
        }
    }
}

/// Runs of what is asked for, each for seeds 1 and following.
pub(crate) fn run(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, jobs): (u32, usize),
    progress: &mut dyn FnMut(crate::Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let setups = asked.iter().map(Setup::of).collect::<Result<Vec<_>, _>>()?;
    let work = |point: usize, seed: u64| setups[point].run(&asked[point].name, seed, &experiment.measured);
    crate::run::each(asked, (seeds, jobs), &work, progress)
}

#[cfg(test)]
mod tests {
    use crate::bounds::{Verdict, check};
    use crate::{Effort, Scale, mutation, registry, report, run};

    /// Every gate of every experiment holds, and every mutation is caught.
    #[test]
    fn experiments_of_chains_hold_and_can_fail() {
        let effort = Effort { scale: Scale::Quick, seeds: None, jobs: 1, command: "adverb".into() };
        let only = std::env::var("ADVERB_REDN").unwrap_or_default();
        for name in registry::names().filter(|name| name.starts_with("redn/") && name.contains(&only)) {
            let experiment = registry::find(name).unwrap_or_else(|e| panic!("{e}"));
            let outcome = run::run(&experiment, &effort, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
            let checked = check(&experiment, &outcome);
            println!("{}", report::text(&experiment, &outcome, &checked));
            let trial = mutation::run(&experiment, &outcome, &effort, &mut |_| {}).unwrap();
            println!("{}", mutation::text(&experiment, &outcome, &trial));
            assert!(checked.iter().all(|c| !matches!(c.verdict(), Verdict::Fails(_))), "{name}");
            assert!(trial.passed() && outcome.unfinished().0 == 0, "{name}");
        }
    }
}
