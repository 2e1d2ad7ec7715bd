//! 1RMA's tables, with every value checked.

use super::build::{bytes, need, time};
use super::format::{OneRmaControlTable, OneRmaTable, RegionEventEntry, Scenario};
use crate::error::Error;
use crate::fabric::topology::Topology;
use crate::host::one_rma::{RegionChange, RegionEvent, RmaConfig};
use adverb_nic::one_rma::congestion::CongestionConfig;
use adverb_nic::one_rma::executor::Retry;
use adverb_nic::one_rma::{ExecutorConfig, OneRmaConfig};
use adverb_wire::Duration;
use adverb_wire::one_rma::MAX_OP;

/// Transfers of a host at once, unless a scenario says otherwise.
const TRANSFERS: u32 = 1 << 14;
/// Without control there is no pacing: the spacing of operations at this window is less than a picosecond.
const UNPACED: f64 = 1e9;

impl Scenario {
    pub(super) fn one_rma(&self, topology: &Topology) -> Result<Option<RmaConfig>, Error> {
        let t = &self.transport;
        let pcie = self.pcie()?;
        match t.kind.as_deref().unwrap_or("rc") {
            "1rma" => self.refuse_what_queue_pairs_have()?,
            "both" => {}
            "rc" | "star" if t.one_rma.is_some() => {
                return Err(Error::new(
                    "transport.one-rma",
                    "goes with kind = \"1rma\" or \"both\"; add that, or remove it",
                ));
            }
            "rc" | "star" => return Ok(None),
            other => {
                return Err(Error::new(
                    "transport.kind",
                    format!("`{other}` is not one of rc, star, 1rma, both"),
                ));
            }
        }
        let table = t.one_rma.clone().unwrap_or_default();
        let out = RmaConfig {
            nic: table.nic()?,
            executor: table.executor()?,
            slots: table.slots.unwrap_or(RmaConfig::default().slots),
            retry: Retry::times(table.retries.unwrap_or(0)),
            pcie,
            command_ps: time("transport.one-rma.command-cost", table.command_cost.as_deref())?.unwrap_or(0),
            class: t.class.unwrap_or(0),
            apart: 0,
            events: events(&table.events, topology)?,
            beside_queues: t.kind.as_deref() == Some("both"),
        };
        let refuse = |e: adverb_nic::Error| Error::new("transport.one-rma", format!("{e}; change it"));
        out.executor.check().map_err(refuse)?;
        if out.slots == 0 {
            return Err(Error::new("transport.one-rma.slots", "is zero; give at least 1"));
        }
        Ok(Some(out))
    }

    /// Keys that would change nothing here are refused, lest somebody believe in them.
    fn refuse_what_queue_pairs_have(&self) -> Result<(), Error> {
        let t = &self.transport;
        let given = [
            ("transport.mtu", t.mtu.is_some()),
            ("transport.window", t.window.is_some()),
            ("transport.congestion", t.congestion.is_some()),
            ("transport.recovery", t.recovery.is_some()),
            ("transport.of", !t.of.is_empty()),
            ("transport.timeout", t.timeout.is_some()),
            ("transport.retries", t.retries.is_some()),
            ("transport.retry-forever", t.retry_forever),
            ("transport.share-qp", t.share_qp),
            ("transport.ecn", t.ecn),
        ];
        let given = given.iter().find(|(_, given)| *given).map(|(key, _)| (*key).to_owned());
        match given.or_else(|| self.hardware_for_queue_pairs()) {
            Some(key) => Err(Error::new(key, "is for queue pairs; remove it, or see [transport.one-rma]")),
            None => Ok(()),
        }
    }
}

fn span(key: &str, text: &Option<String>, default: Duration) -> Result<Duration, Error> {
    match time(&format!("transport.one-rma.{key}"), text.as_deref())? {
        Some(0) => {
            Err(Error::new(format!("transport.one-rma.{key}"), "is zero; give a time, such as \"10us\""))
        }
        Some(ps) => Ok(Duration::from_ps(ps)),
        None => Ok(default),
    }
}

fn operation_bytes(key: &str, text: &Option<String>) -> Result<u16, Error> {
    let key = format!("transport.one-rma.{key}");
    match bytes(&key, text.as_deref())? {
        None => Ok(MAX_OP as u16),
        Some(n) if (1..=MAX_OP as u32).contains(&n) => Ok(n as u16),
        Some(n) => Err(Error::new(key, format!("{n} bytes are not within 1 to {MAX_OP}"))),
    }
}

impl OneRmaTable {
    fn nic(&self) -> Result<OneRmaConfig, Error> {
        let default = OneRmaConfig::default();
        let threshold = match self.nack_threshold.as_deref() {
            None => None,
            Some("off") => Some(u32::MAX),
            text => bytes("transport.one-rma.nack-threshold", text)?,
        };
        let window = bytes("transport.one-rma.window", self.window.as_deref())?.unwrap_or(default.window);
        if (window as usize) < MAX_OP {
            let why = format!("{window} bytes are below the {MAX_OP} of one operation; raise it");
            return Err(Error::new("transport.one-rma.window", why));
        }
        Ok(OneRmaConfig {
            regions: 16,
            processes: 1,
            inbound_ops: self.inbound.unwrap_or(default.inbound_ops),
            window,
            max_piece: operation_bytes("piece", &self.piece)?,
            dispatch_timeout: span("dispatch-timeout", &self.dispatch_timeout, default.dispatch_timeout)?,
            timeout: span("timeout", &self.timeout, default.timeout)?,
            rtt: span("rtt", &self.rtt, default.rtt)?,
            nack_threshold: threshold,
            ..default
        })
    }

    fn executor(&self) -> Result<ExecutorConfig, Error> {
        let congestion = match &self.control {
            None => CongestionConfig::default(),
            Some(control) => control.congestion()?,
        };
        let rtt = span("rtt", &self.rtt, congestion.rtt)?;
        Ok(ExecutorConfig {
            congestion: CongestionConfig { rtt, ..congestion },
            op_size: operation_bytes("op-size", &self.op_size)?,
            transfers: self.transfers.unwrap_or(TRANSFERS),
            ..ExecutorConfig::default()
        })
    }
}

impl OneRmaControlTable {
    fn congestion(&self) -> Result<CongestionConfig, Error> {
        let d = CongestionConfig::default();
        if let Some(operations) = self.fixed {
            if *self != (OneRmaControlTable { fixed: self.fixed, ..OneRmaControlTable::default() }) {
                let why = "switches control off; remove it, or the other keys of control";
                return Err(Error::new("transport.one-rma.control.fixed", why));
            }
            if operations != 0 {
                let window = f64::from(operations);
                let same =
                    CongestionConfig { window_min: window, window_start: window, window_max: window, ..d };
                return Ok(same);
            }
            return Ok(CongestionConfig {
                window_min: UNPACED,
                window_start: UNPACED,
                window_max: UNPACED,
                ..d
            });
        }
        Ok(CongestionConfig {
            increase: self.increase.unwrap_or(d.increase),
            beta: self.beta.unwrap_or(d.beta),
            least_factor: self.least_factor.unwrap_or(d.least_factor),
            failure_factor: self.failure_factor.unwrap_or(d.failure_factor),
            local_target: span("control.local-target", &self.local_target, d.local_target)?,
            remote_target: span("control.remote-target", &self.remote_target, d.remote_target)?,
            window_min: self.window_min.unwrap_or(d.window_min),
            window_max: self.window_max.unwrap_or(d.window_max),
            window_start: self.window_start.unwrap_or(d.window_start),
            split_local: self.split.unwrap_or(d.split_local),
            ..d
        })
    }
}

fn events(entries: &[RegionEventEntry], t: &Topology) -> Result<Vec<RegionEvent>, Error> {
    let mut out = Vec::new();
    for (n, entry) in entries.iter().enumerate() {
        let key = |part: &str| format!("transport.one-rma.events[{n}].{part}");
        if entry.host >= t.hosts {
            let why = format!("host {} does not exist; there are {}, from 0", entry.host, t.hosts);
            return Err(Error::new(key("host"), why));
        }
        let length = time(&key("for"), entry.length.as_deref())?;
        let what = match (entry.what.as_str(), length) {
            ("rekey", None) => RegionChange::Rekey,
            ("withdraw", None) => RegionChange::Withdraw,
            ("driver", length) => RegionChange::Driver(need(&key("for"), length)?),
            ("rekey" | "withdraw", Some(_)) => {
                return Err(Error::new(key("for"), "goes with what = \"driver\"; remove it"));
            }
            (other, _) => {
                return Err(Error::new(
                    key("what"),
                    format!("`{other}` is not one of rekey, driver, withdraw"),
                ));
            }
        };
        let at = need(&key("at"), time(&key("at"), Some(&entry.at))?)?;
        out.push(RegionEvent { at, host: entry.host, what });
    }
    out.sort_by_key(|event| event.at);
    Ok(out)
}
