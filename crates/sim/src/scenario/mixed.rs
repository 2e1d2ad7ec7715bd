//! Transports mixed in one fabric: hosts with NICs of their own kind (`[[transport.of]]`), and workloads
//! whose connections recover, or whose packets are queued, in another way than others'.

use super::format::{Scenario, WorkloadTable};
use super::traffic::of_many;
use crate::error::Error;
use crate::host::Device;
use crate::sim::Config;
use crate::workload::ways::Way;
use serde::{Deserialize, Serialize};

/// An entry of `[[transport.of]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportOf {
    /// Which hosts.
    pub hosts: Vec<u32>,
    /// How their NICs recover from loss: `go-back-n` or `irn`.
    pub recovery: String,
}

/// Whether a recovery's name is IRN's.
fn is_irn(key: &str, name: &str) -> Result<bool, Error> {
    match name {
        "irn" => Ok(true),
        "go-back-n" => Ok(false),
        other => Err(Error::new(key, format!("`{other}` is not one of go-back-n, irn"))),
    }
}

impl Scenario {
    /// Whether hosts and workloads that say nothing else recover by IRN.
    fn base_is_irn(&self) -> Result<bool, Error> {
        is_irn("transport.recovery", self.transport.recovery.as_deref().unwrap_or("go-back-n"))
    }

    /// What a workload says of its own.
    fn own_recovery(&self, n: usize, table: &WorkloadTable) -> Result<Option<bool>, Error> {
        let own = table.recovery.as_deref().map(|name| is_irn("workload.recovery", name)).transpose();
        own.map_err(|e| of_many(e, n, self.workloads.len()))
    }

    /// Whether anybody is to recover by IRN. Its parameters without that are refused.
    pub(super) fn speaks_irn(&self) -> Result<bool, Error> {
        let mut irn = self.base_is_irn()?;
        for (n, of) in self.transport.of.iter().enumerate() {
            irn |= is_irn(&format!("transport.of[{n}].recovery"), &of.recovery)?;
        }
        for (n, table) in self.workloads.iter().enumerate() {
            irn |= self.own_recovery(n, table)? == Some(true);
        }
        if self.transport.irn.is_some() && !irn {
            return Err(Error::new("transport.irn", "goes with recovery = \"irn\"; add that, or remove it"));
        }
        Ok(irn)
    }

    /// Hosts whose NICs have no IRN, in order; none where all are alike.
    pub(super) fn plain_hosts(&self, hosts: u32) -> Result<Vec<u32>, Error> {
        let of = &self.transport.of;
        if of.is_empty() {
            return Ok(Vec::new());
        }
        if self.transport.kind.as_deref() == Some("star") {
            let why = "is of plain RC and IRN, and kind = \"star\" has roles instead; remove one of the two";
            return Err(Error::new("transport.of", why));
        }
        let mut own = vec![None; hosts as usize];
        for (n, of) in of.iter().enumerate() {
            let irn = is_irn(&format!("transport.of[{n}].recovery"), &of.recovery)?;
            for &host in &of.hosts {
                let key = || format!("transport.of[{n}].hosts");
                match own.get_mut(host as usize) {
                    None => {
                        let why = format!("host {host} does not exist; there are {hosts}, from 0");
                        return Err(Error::new(key(), why));
                    }
                    Some(Some(_)) => {
                        return Err(Error::new(key(), format!("host {host} is named twice; name it once")));
                    }
                    Some(own) => *own = Some(irn),
                }
            }
        }
        let base = self.base_is_irn()?;
        let plain: Vec<u32> =
            (0..).zip(&own).filter(|(_, own)| !own.unwrap_or(base)).map(|(h, _)| h).collect();
        if plain.is_empty() || plain.len() == own.len() {
            let why = "leaves all hosts alike; name some of them with another recovery than the others', or \
                       give transport.recovery alone";
            return Err(Error::new("transport.of", why));
        }
        Ok(plain)
    }

    /// How the ends of a connection learn of each other, where they may speak IRN.
    pub(super) fn agreement(&self, config: &mut Config, programs: bool) -> Result<(), Error> {
        let key = "transport.irn.agreement";
        let mixed = !config.plain_hosts.is_empty();
        let Some(irn) = &mut config.transport.irn else { return Ok(()) };
        let given = self.transport.irn.as_ref().and_then(|t| t.agreement.as_deref());
        match given.unwrap_or("set-up") {
            "set-up" if mixed && programs => {
                let why = "is \"set-up\", which programs' connections do not have, and some hosts do not \
                           know IRN; give \"hello\"";
                return Err(Error::new(key, why));
            }
            "set-up" => return Ok(()),
            "hello" => {}
            other => return Err(Error::new(key, format!("`{other}` is not one of set-up, hello"))),
        }
        let lasts = self.transport.share_qp || self.workloads.iter().all(|w| w.kind == "connections");
        if !lasts {
            let why = "is \"hello\", which takes a round trip, and each flow has queue pairs to itself that \
                       end with it: all would be plain RC; add transport.share-qp = true, or give \"set-up\"";
            return Err(Error::new(key, why));
        }
        irn.agreed = None;
        Ok(())
    }

    /// How each workload's flows are moved; empty where none has a way of its own.
    pub(super) fn ways(&self, config: &Config) -> Result<Vec<Way>, Error> {
        let (base, count) = (self.base_is_irn()?, self.workloads.len());
        let mut ways = Vec::new();
        for (n, table) in self.workloads.iter().enumerate() {
            let own = self.own_recovery(n, table)?;
            self.check_way(table, config).map_err(|e| of_many(e, n, count))?;
            // Where hosts differ, their NICs say what they offer.
            let plain =
                config.transport.irn.is_some() && self.transport.of.is_empty() && !own.unwrap_or(base);
            ways.push(Way { plain, class: table.class });
        }
        let own = |table: &WorkloadTable| table.recovery.is_some() || table.class.is_some();
        if self.workloads.iter().any(own) { Ok(ways) } else { Ok(Vec::new()) }
    }

    /// Refuses a way of its own for a workload that cannot have one.
    fn check_way(&self, table: &WorkloadTable, config: &Config) -> Result<(), Error> {
        let given =
            [("workload.recovery", table.recovery.is_some()), ("workload.class", table.class.is_some())];
        let Some((key, _)) = given.into_iter().find(|(_, given)| *given) else { return Ok(()) };
        let by_one_rma = match Device::of(config) {
            Device::OneRma => true,
            Device::Both => table.via.as_deref() == Some("1rma"),
            Device::Queues => false,
        };
        let why = if by_one_rma {
            "is of queue pairs, and these flows go by 1RMA; remove it"
        } else if self.transport.share_qp {
            "is of a workload, and with share-qp its flows take the connections of others; remove one of the \
             two, or name hosts by [[transport.of]]"
        } else if table.kind == "connections" {
            "goes with flows; `connections` go alone: give transport.recovery, transport.class or \
             [[transport.of]]"
        } else if table.recovery.is_some() && !self.transport.of.is_empty() {
            "goes without [[transport.of]]: either hosts say how they recover, or workloads do; remove one"
        } else {
            return match table.class {
                Some(class) if class >= config.switch.classes => {
                    let why = format!("{class} does not exist; there are {} classes", config.switch.classes);
                    Err(Error::new("workload.class", why))
                }
                _ => Ok(()),
            };
        };
        Err(Error::new(key, why))
    }
}
