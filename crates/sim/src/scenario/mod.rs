//! Scenarios: a fabric, its faults and its traffic, as a TOML file. Everything is checked before time
//! starts; what is wrong is named with its key and the remedy. `examples/*.toml` show the format.
//!
//! ```toml
//! seed = 1
//! [topology]
//! kind = "fat-tree"        # two-hosts, star, dumbbell, leaf-spine, fat-tree, cables
//! k = 6
//! rate = "40G"
//! delay = "2us"
//! [switch]
//! discipline = "input-queued"
//! buffer = "240KB"
//! [switch.pfc]
//! headroom = "20KB"
//! [transport]
//! mtu = 1024
//! [workload]
//! kind = "poisson"         # poisson, permutation, incast, all-to-all, closed-loop, list
//! load = 0.7
//! flows = 10000
//! sizes = "heavy-tailed"
//! ```

mod build;
mod control;
mod format;
mod hardware;
mod mixed;
mod one_rma;
mod place;
mod programs;
mod sense;
mod star;
mod switch;
mod traffic;

pub use format::{
    CableEntry, FaultTable, FlowEntry, HardwareOf, HardwareTable, IrnTable, LinkFaultEntry,
    OneRmaControlTable, OneRmaTable, OutageEntry, PfcTable, RedTable, RegionEventEntry, Scenario,
    SwitchFaultEntry, SwitchTable, TopologyTable, TransportTable, WorkloadTable,
};
pub use mixed::TransportOf;
pub use star::{GroupTable, OthersTable, StarTable, StepTable};

pub use programs::{Cast, ProgramFault, ProgramsTable, Role, RunTable};

use crate::error::Error;
use crate::fabric::faults::FaultPlan;
use crate::host::Device;
use crate::sim::{Config, Sim};
use crate::workload::Workload;
use crate::workload::flows::FlowSpec;
use crate::workload::ways::Way;
use std::path::{Path, PathBuf};

/// End of a run with programs that names none: programs may wait for ever.
const PROGRAMS_END_PS: u64 = 10_000_000_000_000;

/// A scenario that was checked: what a simulation is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fabric.
    pub config: Config,
    /// Its faults.
    pub faults: FaultPlan,
    /// Flows known beforehand.
    pub flows: Vec<FlowSpec>,
    /// What creates flows while it runs.
    pub workload: Workload,
    /// What workloads are called, by number.
    pub names: Vec<String>,
    /// How workloads' flows are moved, by number; empty where none has a way of its own.
    pub ways: Vec<Way>,
    /// Programs, which whoever runs the plan knows how to make.
    pub cast: Option<Cast>,
    /// End of the run, in ps; `u64::MAX` for when all flows have ended.
    pub end_ps: u64,
    /// How often queue depths are sampled, in ps; 0 for never.
    pub sample_ps: u64,
}

impl Scenario {
    /// Reads a scenario. Unknown keys are refused, with their line.
    pub fn parse(text: &str) -> Result<Scenario, Error> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            let key = at.and_then(|at| place::key_at(text, at)).unwrap_or_else(|| "scenario".to_owned());
            let why = error.message().trim_end().replace('\n', "; ");
            Error { line: at.map(|at| place::line_at(text, at)), ..Error::new(key, why) }
        })
    }

    /// Reads and checks a scenario's file; see [`ScenarioFile`].
    pub fn load(path: &Path) -> Result<Plan, Error> {
        ScenarioFile::read(path)?.plan(None)
    }

    /// Checks the scenario and turns it into what a simulation is made of. `read` reads a file that it
    /// names.
    pub fn plan(&self, read: &mut dyn FnMut(&str) -> Result<String, Error>) -> Result<Plan, Error> {
        let mut config = self.config()?;
        let routes = crate::fabric::topology::Routes::build(&config.topology)?;
        config.switch.check()?;
        let faults = self.faults(&config.topology)?;
        config.programs = self.switch_programs(&config.topology, read)?.into_iter().collect();
        let cast = self.cast(config.topology.hosts)?;
        // Programs look at bytes, those of hosts and those of switches.
        config.payload |= cast.is_some() || !config.programs.is_empty();
        if cast.is_some() && !Device::of(&config).has_queues() {
            let why = "is \"1rma\", and programs need queue pairs; give \"rc\" or \"both\"";
            return Err(Error::new("transport.kind", why));
        }
        self.congestion_hears(&config)?;
        self.bdp_of_topology(&mut config, &routes)?;
        self.agreement(&mut config, cast.is_some())?;
        let (flows, workload) = self.traffic(&config, read)?;
        let names = self.workload_names()?;
        let ways = self.ways(&config)?;
        let longest = flows.iter().map(|f| f.bytes).max().unwrap_or(0);
        self.bitmaps_span_flows(&config, longest)?;
        let closed = match &workload {
            Workload::Closed(c) => c.request.max(c.response),
            Workload::Lookups(lookups) => lookups.value,
            Workload::Persistent(work) => work.asked.bytes.max(work.asked.response),
            Workload::Open | Workload::Repeat(_) => 0,
        };
        config.flow_bytes_max = u64::from(longest.max(closed));
        drop(routes);
        let time = |key: &str, text: &Option<String>| build::time(key, text.as_deref());
        let all = if cast.is_some() { PROGRAMS_END_PS } else { u64::MAX };
        let end_ps = time("end", &self.end)?.unwrap_or(all);
        self.somebody_sends(&flows, &workload, end_ps)?;
        Ok(Plan {
            config,
            faults,
            flows,
            workload,
            names,
            ways,
            end_ps,
            cast,
            sample_ps: time("sample", &self.sample)?.unwrap_or(0),
        })
    }
}

/// A scenario's file: read once, planned for as many seeds as are wanted.
#[derive(Clone, Debug)]
pub struct ScenarioFile {
    /// What it says.
    pub scenario: Scenario,
    path: PathBuf,
    text: String,
}

impl ScenarioFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<ScenarioFile, Error> {
        let text = read_text(path)?;
        let scenario = Scenario::parse(&text).map_err(|e| e.in_file(&path.display().to_string()))?;
        Ok(ScenarioFile { scenario, path: path.to_owned(), text })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks it and turns it into a plan, with another seed than its own if one is given. Files that it
    /// names are looked up beside it. What is wrong is named with file, line, key and remedy.
    pub fn plan(&self, seed: Option<u64>) -> Result<Plan, Error> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let seeded = Scenario { seed: seed.or(self.scenario.seed), ..self.scenario.clone() };
        seeded.plan(&mut |file| read_text(&folder.join(file))).map_err(|e| self.located(e))
    }

    /// What is wrong with a key of it, with file and line.
    pub fn located(&self, error: Error) -> Error {
        match error.file {
            Some(_) => error,
            None => Error { line: place::line_of(&self.text, &error.key), ..error }
                .in_file(&self.path.display().to_string()),
        }
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| {
        Error::new("file", format!("{e}; name a file that can be read")).in_file(&path.display().to_string())
    })
}

impl Plan {
    /// The simulation, ready to run. One with programs is refused: only its caller can make them.
    pub fn start(&self) -> Result<Sim, Error> {
        if self.cast.is_some() {
            return Err(Error::new("programs", "are known to `adverb sim` only; run it with that"));
        }
        let mut sim = self.fabric()?;
        sim.add_flows(self.flows.iter().copied());
        sim.set_workload(self.workload.clone());
        Ok(sim)
    }

    /// The fabric without its traffic, which [`Plan::begin`] adds.
    pub fn fabric(&self) -> Result<Sim, Error> {
        let mut sim = Sim::new(self.config.clone())?;
        sim.flows.names = self.names.clone();
        sim.flows.ways = self.ways.clone();
        if self.is_mixed() {
            sim.count_recoveries();
        }
        sim.set_faults(self.faults.clone());
        if self.sample_ps > 0 {
            sim.sample_every(self.sample_ps);
        }
        Ok(sim)
    }

    /// Whether some connections may speak IRN and others plain RC.
    fn is_mixed(&self) -> bool {
        let irn = self.config.transport.irn.is_some();
        irn && (!self.config.plain_hosts.is_empty() || self.ways.iter().any(|way| way.plain))
    }

    /// Hands the traffic over to the fabric. The plan's flows are gone then: large runs need not have them
    /// twice.
    pub fn begin(&mut self, sim: &mut Sim) {
        sim.add_flows(core::mem::take(&mut self.flows));
        sim.set_workload(core::mem::take(&mut self.workload));
    }

    /// Runs to the end, and calls `progress` every million events, which is a few times a second.
    pub fn run(&self, sim: &mut Sim, progress: &mut dyn FnMut(&Sim)) {
        while sim.run(self.end_ps, 1_000_000) {
            progress(sim);
        }
    }
}
