//! `[programs]`: programs on hosts of a scenario, and what befalls them. What the programs are, the caller of
//! [`Plan`](super::Plan) knows: this reads who runs where, and hands each its own keys.

use super::build::{need, time};
use super::format::Scenario;
use crate::error::Error;
use crate::program::{Fault, Setup, What};
use crate::swarm::programs::Made;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use toml::Value;

/// Programs of a scenario at most.
const PROGRAMS_MAX: usize = 1024;

/// `[programs]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramsTable {
    /// The system that they belong to.
    pub system: String,
    /// A mistake that they make on purpose.
    pub bug: Option<String>,
    /// Time that the exchange of attributes takes each way.
    pub exchange: Option<String>,
    /// Who runs where.
    #[serde(default)]
    pub run: Vec<RunTable>,
    /// What befalls them.
    #[serde(default)]
    pub faults: Vec<ProgramFault>,
}

/// `[[programs.run]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunTable {
    /// What it does in its system.
    pub role: String,
    /// Hosts that run one each.
    pub hosts: Vec<u32>,
    /// When they start.
    pub start: Option<String>,
    /// Keys of the role.
    #[serde(flatten)]
    pub keys: BTreeMap<String, Value>,
}

/// `[[programs.faults]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramFault {
    /// When.
    pub at: String,
    /// `stop`, `continue`, `kill`, `ask` or `crash`.
    pub what: String,
    /// To which program, by its name.
    pub program: Option<String>,
    /// To which host.
    pub host: Option<u32>,
    /// After how long it is back.
    pub again: Option<String>,
}

/// A program of a scenario, before it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    /// Its name: its role and a number.
    pub name: String,
    /// What it does in its system.
    pub role: String,
    /// Where it runs.
    pub host: u32,
    /// When it starts, in ps.
    pub start_ps: u64,
    /// Where its keys stand in the file.
    pub place: String,
    /// Keys of the role.
    pub keys: BTreeMap<String, Value>,
}

/// The programs of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// The system that they belong to.
    pub system: String,
    /// A mistake that they make on purpose.
    pub bug: Option<String>,
    /// Who they are, in their order.
    pub roles: Vec<Role>,
    faults: Vec<Fault>,
    exchange_ps: u64,
}

impl Scenario {
    pub(super) fn cast(&self, hosts: u32) -> Result<Option<Cast>, Error> {
        let Some(table) = &self.programs else { return Ok(None) };
        let mut roles: Vec<Role> = Vec::new();
        for (n, run) in table.run.iter().enumerate() {
            let place = format!("programs.run[{n}]");
            let start_ps = time(&format!("{place}.start"), run.start.as_deref())?.unwrap_or(0);
            for &host in &run.hosts {
                if host >= hosts {
                    let why = format!("host {host} does not exist; there are {hosts}, from 0");
                    return Err(Error::new(format!("{place}.hosts"), why));
                }
                let number = roles.iter().filter(|other| other.role == run.role).count();
                let (role, keys) = (run.role.clone(), run.keys.clone());
                let name = format!("{role} {number}");
                roles.push(Role { name, role, host, start_ps, place: place.clone(), keys });
            }
        }
        if roles.is_empty() || roles.len() > PROGRAMS_MAX {
            let why = format!("names {} programs; give 1 to {PROGRAMS_MAX}, by `hosts`", roles.len());
            return Err(Error::new("programs.run", why));
        }
        let faults = table.faults.iter().enumerate().map(|(n, fault)| fault.read(n, &roles, hosts));
        Ok(Some(Cast {
            system: table.system.clone(),
            bug: table.bug.clone(),
            faults: faults.collect::<Result<_, _>>()?,
            exchange_ps: time("programs.exchange", table.exchange.as_deref())?.unwrap_or(10_000_000),
            roles,
        }))
    }
}

impl ProgramFault {
    fn read(&self, n: usize, roles: &[Role], hosts: u32) -> Result<Fault, Error> {
        let key = |part: &str| format!("programs.faults[{n}].{part}");
        let at = need(&key("at"), time(&key("at"), Some(&self.at))?)?;
        let again = time(&key("again"), self.again.as_deref())?;
        let program = || {
            let name = need(&key("program"), self.program.as_deref())?;
            roles.iter().position(|role| role.name == name).map(|at| at as u32).ok_or_else(|| {
                let known: BTreeSet<&str> = roles.iter().map(|role| role.name.as_str()).collect();
                let known: Vec<&str> = known.into_iter().collect();
                Error::new(key("program"), format!("`{name}` is not one of {}", known.join(", ")))
            })
        };
        if self.what == "crash" && self.program.is_some() {
            return Err(Error::new(key("program"), "does not crash, its host does; give `host`"));
        }
        if self.what != "crash" && self.host.is_some() {
            return Err(Error::new(key("host"), "goes with what = \"crash\"; give `program`"));
        }
        if self.again.is_some() && !matches!(self.what.as_str(), "crash" | "kill") {
            return Err(Error::new(key("again"), "goes with kill and crash; remove it"));
        }
        let what = match self.what.as_str() {
            "stop" => What::Stop(program()?),
            "continue" => What::Continue(program()?),
            "ask" => What::Ask(program()?),
            "kill" => What::Kill(program()?, again),
            "crash" => {
                let host = need(&key("host"), self.host)?;
                if host >= hosts {
                    let why = format!("host {host} does not exist; there are {hosts}, from 0");
                    return Err(Error::new(key("host"), why));
                }
                What::Crash(host, need(&key("again"), again)?)
            }
            other => {
                let why = format!("`{other}` is not one of stop, continue, ask, kill, crash");
                return Err(Error::new(key("what"), why));
            }
        };
        Ok(Fault { at, what })
    }
}

impl Cast {
    /// What a simulation runs: the programs that `made` has, in the order of the roles.
    pub fn setup(&self, made: &mut Made, seed: u64) -> Setup {
        Setup {
            programs: core::mem::take(&mut made.programs),
            faults: self.faults.clone(),
            exchange_ps: self.exchange_ps,
            seed,
            ..Setup::default()
        }
    }
}
