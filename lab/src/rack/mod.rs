//! Programs of a rack whose clients share one server's memory, behind a switch that may run programs: what
//! an experiment asks for, and what came of it.
//!
//! Clients go on until the end of the run; what ends within a part of it is counted. Host 0 is the server,
//! the clients are spread over the others. All of it is the product's: applications over `adverb_rdma`, its
//! NIC on hosts whose hardware costs what a profile says, and the same switch that carries real frames.
//!
//! | file | holds |
//! |---|---|
//! | [`metric`] | figures of a run, by name |
//! | `store` | a store of chains: gets and puts by YCSB's streams |
//! | `lock` | one lock, or a few: acquired and released again and again |
//! | `rotate` | READs while the server changes its key: connections that are made once more |
//! | `words` | single verbs on words: as many as queue pairs have under way |
//! | `mix` | verbs on words at a steady rate |
//! | `order` | a program of the switch that looks at the order of answers |

mod lock;
pub mod metric;
mod mix;
mod order;
mod rotate;
mod store;
mod words;

pub use metric::Metric;

use crate::definition::Metrics;
use crate::measure::Measured;
use crate::points::{Asked, plan, scenario};
use crate::run::Seeds;
use crate::{Error, Experiment};
use adverb_rdma::{Connect, Instant, Rdma};
use adverb_sim::program::{self, Doing, Start, Task};
use adverb_sim::programmed::SwitchPrograms;
use adverb_sim::units::parse_time;
use adverb_sim::{Plan, Scenario, Sim};
use adverb_switch::keys::{ProgramKeys, configs};
use adverb_switch::{Counters, ProgramConfig};
use core::cell::RefCell;
use metric::{Seen, Window};
use serde::Deserialize;
use std::rc::Rc;
use toml::{Table, Value};

/// Clients of a run at most.
const CLIENTS_MAX: u32 = 512;
/// The longest run, in ps.
const END_MAX: u64 = 1_000_000_000_000;
/// What the exchange of attributes takes each way, in ps.
const EXCHANGE: u64 = 1_000_000;
/// The server's host.
const SERVER: u32 = 0;
/// Under this name it listens.
const NAME: &str = "server";

/// What the programs of a run do.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "run", rename_all = "kebab-case")]
enum Program {
    /// A store of chains.
    Chain(store::Chains),
    /// Locks that are acquired and released.
    Lock(lock::Locks),
    /// READs while the server changes its key.
    Rotate(rotate::Rotate),
    /// Single verbs on words.
    Words(words::Words),
    /// Verbs on words at a steady rate.
    Mix(mix::Mix),
}

impl Program {
    fn clients(&self) -> u32 {
        match self {
            Program::Chain(chains) => chains.clients,
            Program::Lock(locks) => locks.clients,
            Program::Rotate(rotate) => rotate.clients,
            Program::Words(words) => words.pairs,
            Program::Mix(mix) => mix.pairs,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Program::Chain(chains) => chains.check(),
            Program::Lock(locks) => locks.check(),
            Program::Rotate(rotate) => rotate.check(),
            Program::Words(words) => words.check(),
            Program::Mix(mix) => mix.check(),
        }
    }
}

/// The parts of a run: times such as `"1ms"`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Times {
    /// By then all clients are connected; then they begin.
    start: String,
    /// What ends from here on counts.
    from: String,
    /// The end.
    until: String,
}

/// The same in ps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    start: u64,
    from: u64,
    until: u64,
}

impl Times {
    fn parts(&self) -> Result<Parts, String> {
        let ps = |text: &str| parse_time(text).map(|time| time.as_ps()).map_err(|why| format!("time: {why}"));
        let parts = Parts { start: ps(&self.start)?, from: ps(&self.from)?, until: ps(&self.until)? };
        match parts.start <= parts.from && parts.from < parts.until && parts.until <= END_MAX {
            true => Ok(parts),
            false => Err("time: start, from and until follow each other, up to 1s".to_owned()),
        }
    }
}

/// What a run asks for.
#[derive(Clone, Debug)]
pub struct Setup {
    scenario: Scenario,
    program: Program,
    parts: Parts,
    switch: Vec<ProgramConfig>,
    /// What a frame takes of a core of the switch, in ps.
    core: u64,
}

/// What the clients of a run have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// Clients that have begun.
    begun: u32,
    /// Operations, in the order in which they ended.
    done: Vec<Done>,
}

/// An operation that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    /// It changes something.
    changes: bool,
    /// In ps of the run's time.
    ended: u64,
    /// In ps.
    took: u64,
    /// Compare and swaps that found something else than they compared with.
    refused: u32,
    /// Entries that were passed on the way to the last one.
    passed: u32,
}

/// A log that the programs of a run share.
type Shared = Rc<RefCell<Log>>;

impl Setup {
    /// What one place of a series asks for: a scenario's tables, `program`, `time` and `in-switch`.
    pub fn of(asked: &Asked) -> Result<Setup, Error> {
        let fail = |why: String| Error(format!("{}: {why}", asked.name));
        let mut table = asked.table.clone();
        let program: Program = read(&mut table, "program").map_err(fail)?;
        program.check().map_err(|why| fail(format!("program: {why}")))?;
        if !(1..=CLIENTS_MAX).contains(&program.clients()) {
            return Err(fail(format!("program: 1 to {CLIENTS_MAX} clients")));
        }
        let times: Times = read(&mut table, "time").map_err(fail)?;
        let parts = times.parts().map_err(fail)?;
        let (switch, core) = in_switch(&mut table).map_err(fail)?;
        no_flows(&mut table);
        let scenario = scenario(&Asked { table, ..asked.clone() })?;
        if scenario.programs.is_some() {
            return Err(fail("[programs] are not for this kind; give `program`".to_owned()));
        }
        Ok(Setup { scenario, program, parts, switch, core })
    }

    /// What is simulated for a seed.
    pub fn plan(&self, name: &str, seed: u64) -> Result<Plan, Error> {
        let mut plan = plan(name, &self.scenario, seed)?;
        // Programs look at bytes.
        plan.config.payload = true;
        if plan.config.topology.hosts < 2 || plan.config.one_rma.is_some() {
            return Err(Error(format!("{name}: needs a server and clients' hosts, with queue pairs")));
        }
        if !self.switch.is_empty() {
            let (programs, core, none) = (self.switch.clone(), self.core, Vec::new());
            let restarts = Vec::new();
            plan.config.programs = vec![SwitchPrograms { at: 0, programs, restarts, cuts: none, core }];
        }
        Ok(plan)
    }

    /// Runs it for a seed.
    pub fn run(&self, name: &str, seed: u64, metrics: &Metrics) -> Result<Measured, Error> {
        let Metrics::Rack(metrics) = metrics else { return Ok(Measured::default()) };
        let fail = |why: String| Error(format!("{name}: {why}"));
        let plan = self.plan(name, seed)?;
        let hosts = plan.config.topology.hosts;
        let mut sim = plan.start().map_err(|e| fail(e.to_string()))?;
        let log = Shared::default();
        let programs = self.programs(&log, hosts, seed).map_err(fail)?;
        sim.set_programs(program::Setup { programs, exchange_ps: EXCHANGE, seed, ..Default::default() });
        let Parts { from, until, .. } = self.parts;
        let middle = from + (until - from) / 2;
        let seen = [from, middle, until].map(|at| {
            while sim.run(at, 1_000_000) {}
            Seen::of(&sim, SERVER, at)
        });
        let failed = sim.programs().find_map(|(name, doing, ..)| match doing {
            Doing::Ended(Err(why)) => Some(format!("{name}: {why}")),
            _ => None,
        });
        if let Some(why) = failed.or(sim.program_failures().first().cloned()) {
            return Err(fail(why));
        }
        let log = log.take();
        let clients = self.program.clients();
        let window = |first: usize, last: usize| Window { log: &log, from: &seen[first], to: &seen[last] };
        let of = |window: Window<'_>| metrics.iter().map(|metric| metric.of(&window)).collect::<Vec<f64>>();
        Ok(Measured {
            values: of(window(0, 2)),
            halves: [of(window(0, 1)), of(window(1, 2))],
            flows: (clients, clients - log.begun.min(clients)),
            link_hops: sim.stats().link_hops,
            trace: sim.trace_hash(),
            ..Measured::default()
        })
    }

    fn programs(&self, log: &Shared, hosts: u32, seed: u64) -> Result<Vec<Start>, String> {
        let host = |client: u32| 1 + client % (hosts - 1);
        let mut programs = match &self.program {
            Program::Chain(chains) => chains.programs(log, self.parts, seed)?,
            Program::Lock(locks) => locks.programs(log, self.parts),
            Program::Rotate(rotate) => rotate.programs(log, self.parts)?,
            Program::Words(words) => words.programs(log, self.parts),
            Program::Mix(mix) => mix.programs(log, self.parts)?,
        };
        for (client, start) in (0..).zip(programs.iter_mut().skip(1)) {
            start.host = host(client);
        }
        Ok(programs)
    }
}

/// Takes a table of its own out of a scenario's.
fn read<T: for<'de> Deserialize<'de>>(table: &mut Table, key: &str) -> Result<T, String> {
    let value = table.remove(key).ok_or_else(|| format!("needs a table `{key}`"))?;
    value.try_into().map_err(|e: toml::de::Error| format!("{key}: {}", e.message()))
}

/// The program of the switch, with keys as `adverb switch run` has them, but for the server, which the run
/// knows itself; or `order`, which looks at the order of answers. And `core`, what a frame takes of the core
/// that sends it, in ps.
fn in_switch(table: &mut Table) -> Result<(Vec<ProgramConfig>, u64), String> {
    let Some(Value::Table(mut keys)) = table.remove("in-switch") else { return Ok((Vec::new(), 0)) };
    let core = match keys.remove("core") {
        None => 0,
        Some(Value::String(text)) => {
            parse_time(&text).map_err(|why| format!("in-switch: core: {why}"))?.as_ps()
        }
        Some(_) => return Err("in-switch: core is a time such as \"357ns\"".to_owned()),
    };
    if keys.get("kind").and_then(Value::as_str) == Some(order::NAME) {
        return match keys.keys().find(|key| *key != "kind") {
            Some(key) => Err(format!("in-switch: {key} is no key of `order`")),
            None => Ok((vec![order::config()], core)),
        };
    }
    let programs = configs(&[keys_of(keys)?]).map_err(|why| format!("in-switch: {why}"))?;
    Ok((programs, core))
}

/// A program's keys; where they need a server, that is host 0.
pub(crate) fn keys_of(mut keys: Table) -> Result<ProgramKeys, String> {
    if matches!(keys.get("kind").and_then(Value::as_str), Some("cas_to_write" | "steer")) {
        keys.entry("server").or_insert_with(|| Value::String("10.0.0.1".to_owned()));
    }
    Value::Table(keys).try_into().map_err(|e: toml::de::Error| format!("in-switch: {}", e.message()))
}

/// Where flows are not what is measured, a scenario has none.
pub(crate) fn no_flows(table: &mut Table) {
    let none = || {
        Value::Table(toml::toml! { kind = "list"
        list = [] })
    };
    table.entry("workload").or_insert_with(none);
}

/// A client, which shares the run's log.
fn client<F, E>(number: u32, log: &Shared, run: impl Fn(Rdma, Shared) -> F + 'static) -> Start
where
    F: Future<Output = Result<(), E>> + 'static,
    E: ToString,
{
    let log = log.clone();
    let run = move |rdma: Rdma| -> Task {
        let future = run(rdma, log.clone());
        Box::pin(async move { future.await.map_err(|error| error.to_string()) })
    };
    Start {
        run: Rc::new(run),
        ..Start::new(format!("client {number}"), 1, |_| async { Ok::<(), String>(()) })
    }
}

/// A NIC that is busy is not dead.
fn connect() -> Connect {
    Connect { timeout: 14, ..Connect::default() }
}

/// A client's clock: hosts' clocks differ, and operations are counted by the run's.
#[derive(Clone, Copy)]
struct Clock {
    opened: Instant,
}

impl Clock {
    /// When the program was started, at the run's beginning.
    async fn begin(rdma: &Rdma) -> Result<Clock, adverb_rdma::Error> {
        Ok(Clock { opened: rdma.now().await? })
    }

    fn ps(self, now: Instant) -> u64 {
        now.since(self.opened).as_ps()
    }

    /// Waits until clients begin, each a little later than the one before it.
    async fn wait(self, rdma: &Rdma, log: &Shared, start: u64) -> Result<(), adverb_rdma::Error> {
        /// Clients begin within this time, in ps.
        const SPREAD: u64 = 5_000_000;
        let now = self.ps(rdma.now().await?);
        let Some(left) = start.checked_sub(now) else {
            return Err(adverb_rdma::Error::System("not connected by `start`; give it more time".to_owned()));
        };
        let spread = rdma.random().await? % SPREAD;
        rdma.sleep(adverb_rdma::Duration::from_ps(left + spread)).await?;
        log.borrow_mut().begun += 1;
        Ok(())
    }
}

/// What the switch has counted.
fn counters(sim: &Sim) -> Counters {
    sim.switch_counters().map(|(counters, _)| counters).unwrap_or_default()
}

/// Runs of what is asked for, each for all seeds.
pub(crate) fn run(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, effort): (Seeds, &crate::Effort),
    progress: &mut dyn FnMut(crate::Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let setups = asked.iter().map(Setup::of).collect::<Result<Vec<_>, _>>()?;
    let work = |point: usize, seed: u64| setups[point].run(&asked[point].name, seed, &experiment.measured);
    crate::run::each(experiment, asked, (seeds, effort), &work, progress)
}
