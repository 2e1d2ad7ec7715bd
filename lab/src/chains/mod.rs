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
//! | `language` | programs of the language: WRs by kind, and memory beside an interpreter's |
//! | `constructs` | conditionals and recycled loops at full speed |
//! | `kinds` | WRs by kind that the compiler emits for a construct |
//! | `scatter` | messages that fill in one WQE or many |
//! | `gets` | lookups in a hash table: by chains, by READs, by the server's processor |
//! | `walks` | walks of a linked list, likewise |
//! | `service` | a store of values with other clients and with faults: gets by recycled chains or processes |
//! | `machine` | Turing machines by one recycled loop |
//! | `wqe` | WQEs written by hand |

mod constructs;
mod gets;
mod kinds;
mod language;
mod machine;
pub mod metric;
mod nops;
mod scatter;
mod service;
mod verbs;
mod walks;
mod wqe;

pub use metric::Metric;

use crate::definition::Metrics;
use crate::measure::Measured;
use crate::points::{Asked, plan, scenario};
use crate::{Error, Experiment};
use adverb_rdma::{Duration, Rdma};
use adverb_sim::program::{self, Doing, Start, Task};
use adverb_sim::{Plan, Scenario, Sim};
use core::cell::RefCell;
use serde::Deserialize;
use std::rc::Rc;
use toml::Value;

/// Operations of a run at most.
const COUNT_MAX: u32 = 100_000;
/// Steps of a machine at most.
const STEPS_MAX: u64 = 1_000_000;
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
    /// Conditionals one after another.
    Conditionals {
        /// How many.
        count: u32,
        /// Their conditions hold.
        hits: bool,
    },
    /// A loop in recycled queues.
    Recycled {
        /// How often it goes round.
        laps: u32,
        /// Its condition holds in the first lap, and turns its WRITE off.
        hits: bool,
    },
    /// A program of the language, whose WRs are counted.
    Compiled {
        /// What is counted in it.
        construct: kinds::Construct,
    },
    /// Lookups in a hash table.
    Gets {
        /// By whom.
        how: How,
        /// Bytes of a value.
        value: u32,
        /// How many.
        count: u32,
        /// How many at once.
        depth: u32,
        /// Pairs of a client's host and a server's: 0 and 1, 2 and 3.
        #[serde(default = "one")]
        ports: u32,
        /// What a processor computes for each: the server's handler, or a one-sided client between its READs.
        #[serde(default)]
        think: Option<String>,
    },
    /// Messages whose receives are scattered into WQEs, one after the other.
    Scatter {
        /// Entries of each receive, of two bytes each, and WQEs that they fill in.
        entries: u32,
        /// How many messages.
        count: u32,
        /// How the chain is made wrong on purpose.
        #[serde(default)]
        fault: Option<Fault>,
    },
    /// A program of the language, whose outcome is judged.
    Language {
        /// Its text, with data and arguments.
        source: String,
        /// The line whose WRs are counted.
        line: u32,
        /// How the compiler errs on purpose.
        #[serde(default)]
        fault: Option<Fault>,
    },
    /// A store of values, with other clients and with faults.
    Service(service::Serving),
    /// A Turing machine, whose table is data of one loop.
    Machine {
        /// Its rules, such as `1RB1LB_1LA1RH`.
        machine: machine::Machine,
        /// Steps after which it is stopped, if it does not end before.
        limit: u64,
        /// How the loop is made wrong on purpose.
        #[serde(default)]
        fault: Option<Fault>,
    },
    /// Walks of a linked list of eight nodes.
    Walks {
        /// By whom: `offload`, `one-sided` or `two-sided`.
        how: How,
        /// The chain stops where it has found the key.
        #[serde(default)]
        breaks: bool,
        /// The keys are those of the first so many nodes, in turns.
        range: u32,
        /// How many.
        count: u32,
        /// What a processor computes for each: the server's handler, or a one-sided client between its READs.
        #[serde(default)]
        think: Option<String>,
    },
}

/// How a chain is made wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// An ENABLE stands before the WAIT that it has to follow.
    NoOrder,
    /// Indices of a pair of WAIT and ENABLE stay as they are.
    NoUpkeep,
    /// What processors post at the start is counted as well.
    Posts,
    /// No WQE waits for READs before it that bring what it uses.
    NoFence,
    /// What changes a WQE is fetched together with it.
    NoStage,
    /// A conditional of a loop stays as the last lap has left it.
    NoRestore,
    /// Each `mov` is made as an indexed one.
    Indexed,
    /// Rings are twice as long as their loop needs.
    Padded,
}

/// By whom a lookup or a walk is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// By nobody: the client reads the value, whose address it knows.
    Ideal,
    /// By a chain in the server's NIC; the key is in the bucket that the client names.
    Offload,
    /// By a chain that tries one bucket and then another, where the key is.
    Sequential,
    /// By two chains that try a bucket each.
    Parallel,
    /// By the client, with two READs.
    OneSided,
    /// By the server's processor.
    TwoSided,
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
    /// A WRITE of the greater one of two entries, on a cross-channel queue.
    Max,
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
    /// WQEs of a walk's chain.
    pub wqes: u32,
    /// Of a construct: copies, atomics and orders.
    pub kinds: [f64; 3],
    /// When each operation of a stream of them was done.
    pub done: Vec<u64>,
    /// The chain has been started: what is counted from outside counts from here on.
    pub begun: bool,
    /// When a reader that looks at the time has ended.
    pub ended: Option<u64>,
    /// Replies of a program: bytes and immediate.
    pub replies: Vec<(Vec<u8>, u32)>,
    /// What is a single number.
    pub facts: Vec<(Metric, f64)>,
}

impl Log {
    /// Enters a single number.
    pub fn fact(&mut self, metric: Metric, value: f64) {
        self.facts.push((metric, value));
    }
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
        let hosts = match &self.program {
            Program::Gets { ports, .. } => 2 * ports,
            _ => 2,
        };
        if plan.config.topology.hosts < hosts || plan.config.one_rma.is_some() {
            return Err(Error(format!("{name}: chains need {hosts} hosts with queue pairs")));
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
        let faults = match &self.program {
            Program::Service(serving) => serving.faults().map_err(|why| Error(format!("{name}: {why}")))?,
            _ => Vec::new(),
        };
        let exchange_ps = 1_000_000;
        sim.set_programs(program::Setup { programs, faults, exchange_ps, seed, ..Default::default() });
        // What programs post to start a chain does not count, nor what the NIC executes of it.
        while !log.borrow().begun && !sim.programs_ended() && sim.run(END_PS, 1) {}
        let before = Counted::of(&sim);
        while !sim.programs_ended() && sim.run(END_PS, 1_000_000) {}
        let mut log = log.take();
        before.tell(&sim, &mut log);
        if let Program::Language { source, line, fault } = &self.program {
            let counts = language::Source::new(source, *fault).and_then(|source| source.counts(*line));
            let counts = counts.map_err(|why| Error(format!("{name}: {why}")))?;
            log.kinds = [counts.copies, counts.atomics, counts.orders].map(f64::from);
        }
        let values = metrics.iter().map(|metric| metric.of(&log)).collect();
        let well = |doing: &Doing, serves: bool| matches!(doing, Doing::Ended(Ok(()))) || serves;
        let asks = |name: &str| name.starts_with("client") || name == "reader";
        let all: Vec<bool> = sim.programs().map(|(name, doing, ..)| well(doing, !asks(name))).collect();
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
            &Program::Conditionals { count, hits } => vec![start("client", 0, log, move |rdma, log| {
                Box::pin(constructs::run_conditionals(rdma, log, count, hits))
            })],
            &Program::Recycled { laps, hits } => vec![start("client", 0, log, move |rdma, log| {
                Box::pin(constructs::run_recycled(rdma, log, laps, hits))
            })],
            Program::Compiled { construct } => {
                let construct = *construct;
                let server =
                    start("server", 1, log, move |rdma, log| Box::pin(kinds::count(rdma, log, construct)));
                let client = Start::new("client", 0, move |rdma| kinds::ask(rdma, construct));
                vec![server, client]
            }
            Program::Gets { how, value, count, depth, ports, .. } => {
                let think = self.program.think().unwrap_or_default();
                let gets =
                    gets::Gets { how: *how, value: *value, count: *count, depth: *depth, think, port: 0 };
                (0..*ports).flat_map(|port| lookups(gets::Gets { port, ..gets }, log)).collect()
            }
            Program::Scatter { entries, count, fault } => {
                let scattered = scatter::Scattered { entries: *entries, count: *count, fault: *fault };
                let server = Start::new("server", 1, move |rdma| scatter::serve(rdma, scattered)).serving();
                let client =
                    start("client", 0, log, move |rdma, log| Box::pin(scatter::ask(rdma, log, scattered)));
                vec![server, client]
            }
            Program::Service(serving) => serving.programs(log).unwrap_or_default(),
            Program::Language { source, fault, .. } => language::programs(source, *fault, log),
            Program::Machine { machine, limit, fault } => {
                let (machine, limit, fault) = (machine.clone(), *limit, *fault);
                vec![start("client", 0, log, move |rdma, log| {
                    Box::pin(machine::run(rdma, log, (machine.clone(), limit), fault))
                })]
            }
            Program::Walks { how, breaks, range, count, .. } => {
                let think = self.program.think().unwrap_or_default();
                let walks = walks::Walks { how: *how, breaks: *breaks, range: *range, count: *count, think };
                let server =
                    start("server", 1, log, move |rdma, log| Box::pin(walks::serve(rdma, log, walks)));
                let client = start("client", 0, log, move |rdma, log| Box::pin(walks::ask(rdma, log, walks)));
                vec![server.serving(), client]
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

/// What is counted outside of programs: requests that they post, and WQEs that hosts' hardware executes.
struct Counted {
    posts: u64,
    executed: Vec<u64>,
}

impl Counted {
    fn of(sim: &Sim) -> Counted {
        let hosts = sim.config().topology.hosts;
        Counted { posts: sim.program_posts(), executed: (0..hosts).map(|host| sim.executed(host)).collect() }
    }

    /// What came since then.
    fn tell(&self, sim: &Sim, log: &mut Log) {
        let now = Counted::of(sim);
        log.fact(Metric::Posts, (now.posts - self.posts) as f64);
        let since = now.executed.iter().zip(&self.executed).map(|(now, before)| now - before);
        let since: Vec<u64> = since.collect();
        log.fact(Metric::Executed, since.iter().sum::<u64>() as f64);
        let each = since.get(1).copied().unwrap_or(0) as f64 / log.samples.len() as f64;
        log.fact(Metric::ExecutedEach, each);
    }
}

/// The server and the client of one pair of hosts.
fn lookups(gets: gets::Gets, log: &Shared) -> [Start; 2] {
    let host = 2 * gets.port;
    let serve = move |rdma| gets::serve(rdma, gets);
    let server = Start::new(format!("server {}", gets.port), host + 1, serve).serving();
    let client = format!("client {}", gets.port);
    [server, start(&client, host, log, move |rdma, log| Box::pin(gets::ask(rdma, log, gets)))]
}

fn one() -> u32 {
    1
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

fn text(error: impl core::fmt::Display) -> adverb_rdma::Error {
    adverb_rdma::Error::System(error.to_string())
}

impl Program {
    /// What a processor computes, if it is given and is a time.
    fn think(&self) -> Result<Duration, String> {
        match self {
            Program::Gets { think: Some(text), .. } | Program::Walks { think: Some(text), .. } => {
                adverb_sim::units::parse_time(text)
            }
            _ => Ok(Duration::ZERO),
        }
    }

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
            Program::Conditionals { count, .. } => within("count", *count, 1000),
            Program::Recycled { laps, .. } => within("laps", *laps, COUNT_MAX),
            Program::Compiled { .. } => Ok(()),
            Program::Scatter { entries, count, fault } => {
                within("entries", *entries, adverb_redn::chain::ENTRIES_MAX as u32)?;
                within("count", *count, 1000)?;
                match fault {
                    None | Some(Fault::NoOrder) => Ok(()),
                    Some(_) => Err("fault: no-order of messages that are scattered".to_owned()),
                }
            }
            Program::Gets { value, count, depth, how, ports, .. } => {
                within("ports", *ports, 16)?;
                within("value", *value / 8, 1 << 13)?;
                within("count", *count, 2000)?;
                within("depth", *depth, 32)?;
                if *depth > 1 && !matches!(how, How::Offload | How::Sequential | How::Parallel) {
                    return Err("depth: only chains have several lookups under way".to_owned());
                }
                if !value.is_multiple_of(8) {
                    return Err(format!("value = {value}: give a multiple of 8"));
                }
                self.think().map(drop).map_err(|why| format!("think: {why}"))
            }
            Program::Service(serving) => serving.check(),
            Program::Language { source, line, fault } => {
                language::Source::new(source, *fault)?.counts(*line).map(drop)
            }
            Program::Machine { limit, .. } => match (1..=STEPS_MAX).contains(limit) {
                true => Ok(()),
                false => Err(format!("limit = {limit}: give 1 to {STEPS_MAX}")),
            },
            Program::Walks { range, count, how, .. } => {
                within("range", *range, 8)?;
                within("count", *count, 64)?;
                if !matches!(how, How::Offload | How::OneSided | How::TwoSided) {
                    return Err("how: walks are by offload, one-sided or two-sided".to_owned());
                }
                self.think().map(drop).map_err(|why| format!("think: {why}"))
            }
            Program::Nops { counts, .. } => match counts.iter().all(|n| (1..=64).contains(n)) {
                true if !counts.is_empty() => Ok(()),
                _ => Err("counts: give some from 1 to 64".to_owned()),
            },
        }
    }
}

/// Runs of what is asked for, each for all seeds. Where two seeds make the same run, to the bit,
/// nothing in it is left to chance, and more of them are not tried.
pub(crate) fn run(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, effort): (crate::run::Seeds, &crate::Effort),
    progress: &mut dyn FnMut(crate::Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let setups = asked.iter().map(Setup::of).collect::<Result<Vec<_>, _>>()?;
    let work = |point: usize, seed: u64| setups[point].run(&asked[point].name, seed, &experiment.measured);
    let mut runs = crate::run::each(experiment, asked, (seeds.at_most(2), effort), &work, progress)?;
    let same = |runs: &[Measured]| runs.windows(2).all(|two| two[0].trace == two[1].trace);
    if !runs.iter().all(|runs| same(runs)) {
        return crate::run::each(experiment, asked, (seeds, effort), &work, progress);
    }
    for runs in &mut runs {
        let first = runs[0].clone();
        runs.resize(seeds.count as usize, first);
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use crate::bounds::{Verdict, check};
    use crate::{Effort, Scale, csv, mutation, plot, registry, report, run};

    /// Every gate of every experiment holds, and every mutation is caught.
    #[test]
    fn experiments_of_chains_hold_and_can_fail() {
        // All seeds make the same run; one alone would have no verdict.
        let effort = Effort {
            scale: Scale::Quick,
            seeds: Some(2),
            first_seed: 1,
            jobs: 1,
            command: "adverb".into(),
            store: None,
        };
        let only = std::env::var("ADVERB_REDN").unwrap_or_default();
        let mut wrong = Vec::new();
        // These take minutes: `lab-gates.sh long` has them.
        let long = ["turing-endless", "fig15", "fig16", "doubled-writers", "doubled-outage"];
        let names = registry::names()
            .filter(|name| name.strip_prefix("redn/").is_some_and(|name| !long.contains(&name)));
        for name in names.filter(|name| name.contains(&only)) {
            let experiment = registry::find(name).unwrap_or_else(|e| panic!("{e}"));
            let outcome = match run::run(&experiment, &effort, &mut |_| {}) {
                Ok(outcome) => outcome,
                Err(error) => {
                    wrong.push(error.to_string());
                    continue;
                }
            };
            let checked = check(&experiment, &outcome);
            println!("{}", report::text(&experiment, &outcome, &checked));
            if checked.iter().any(|c| matches!(c.verdict(), Verdict::Fails(_))) || outcome.unfinished().0 > 0
            {
                wrong.push(format!("{name}: gates do not hold"));
            }
            let drawn = plot::svg(&experiment, &outcome).unwrap_or_else(|e| panic!("{e}"));
            assert!(experiment.series.iter().all(|series| drawn.contains(&series.name)), "{name}");
            let rows = experiment.series.len() * outcome.places * outcome.seeds.count as usize;
            assert_eq!(csv::runs(&experiment, &outcome).lines().count(), rows + 1);
            match mutation::run(&experiment, &outcome, &effort, &mut |_| {}) {
                Ok(trial) => {
                    println!("{}", mutation::text(&experiment, &outcome, &trial));
                    if !trial.passed() {
                        wrong.push(format!("{name}: a mutation survived"));
                    }
                }
                Err(error) => wrong.push(error.to_string()),
            }
        }
        assert_eq!(wrong, Vec::<String>::new());
    }
}
