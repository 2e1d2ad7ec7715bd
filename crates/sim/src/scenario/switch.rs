//! What a scenario says of the programs of a switch: the file that describes them, which switch runs them,
//! and when that is started anew.

use super::format::Scenario;
use crate::error::Error;
use crate::fabric::programmed::{Restart, SwitchPrograms};
use crate::fabric::topology::Topology;
use crate::host::address;
use adverb_switch::keys::{self, ProgramKeys};
use serde::Deserialize;

/// The file of a switch's process, as far as it says something to a simulation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramFile {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "trace")]
    _trace: Option<usize>,
    #[serde(default, rename = "program")]
    programs: Vec<ProgramKeys>,
}

impl Scenario {
    /// The switch that runs programs, if the scenario names a file of some.
    pub(super) fn switch_programs(
        &self,
        t: &Topology,
        read: &mut dyn FnMut(&str) -> Result<String, Error>,
    ) -> Result<Option<SwitchPrograms>, Error> {
        let key = "switch.program";
        let Some(file) = &self.switch.program else {
            return match (self.switch.program_at, self.faults.switch.is_empty()) {
                (None, true) => Ok(None),
                (Some(_), _) => {
                    Err(Error::new("switch.program-at", "goes with switch.program; give that too"))
                }
                (None, false) => Err(Error::new("faults.switch", "goes with switch.program; give that too")),
            };
        };
        let wrong = |why: String| Error::new(key, format!("{file}: {why}"));
        let parsed: ProgramFile = toml::from_str(&read(file)?).map_err(|e| {
            let why = e.message().replace('\n', "; ");
            wrong(format!("{why}; ports and their faults are the scenario's links"))
        })?;
        let programs = keys::configs(&parsed.programs).map_err(wrong)?;
        let servers: Vec<_> = programs.iter().filter_map(|program| program.server()).collect();
        let home = |server| (0..t.hosts).find(|host| address(*host) == server);
        let mut at = self.switch.program_at.or((t.switches == 1).then_some(0));
        for server in servers {
            let Some(host) = home(server) else {
                let last = t.hosts.saturating_sub(1);
                let why = format!("no host has {server}; they have {} to {}", address(0), address(last));
                return Err(wrong(why));
            };
            let own = t.switch_of(host);
            // All packets to a host pass the switch that it is at, and perhaps no other.
            if own.is_none() || at.is_some_and(|at| own != Some(at)) {
                let why =
                    format!("{server} is host {host}, which is not at the switch; name the one it is at");
                return Err(Error::new("switch.program-at", why));
            }
            at = own;
        }
        let at = at.ok_or_else(|| Error::new("switch.program-at", "is missing; say which switch runs it"))?;
        let mut restarts = Vec::new();
        for (n, entry) in self.faults.switch.iter().enumerate() {
            let at = super::build::time(&format!("faults.switch[{n}].at"), Some(&entry.at))?.unwrap_or(0);
            let length = super::build::time(&format!("faults.switch[{n}].for"), entry.length.as_deref())?;
            restarts.push(Restart { at, length: length.unwrap_or(0) });
        }
        restarts.sort_by_key(|restart| restart.at);
        Ok(Some(SwitchPrograms { at, programs, restarts, cuts: Vec::new(), core: 0 }))
    }
}
