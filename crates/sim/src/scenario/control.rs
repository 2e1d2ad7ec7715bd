//! Congestion control's tables, with every value checked.

use super::build::{bytes, time};
use super::format::{DcqcnTable, Scenario, TimelyTable, TransportTable, WorkloadTable};
use crate::error::Error;
use crate::units::parse_rate;
use adverb_nic::{
    CongestionControl, DcqcnConfig, DctcpConfig, HpccConfig, SwiftConfig, TcpConfig, TimelyConfig,
};
use adverb_wire::Duration;
use serde::{Deserialize, Serialize};

/// `[transport.dctcp]`: what is absent is as in the paper ([`adverb_nic::DctcpConfig`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DctcpTable {
    /// Weight of the newest share of marked packets.
    pub g: Option<f64>,
    /// Initial window, packets; 10 if absent.
    pub initial: Option<u32>,
}

/// `[transport.swift]`: what is absent is [`adverb_nic::SwiftConfig`]'s, but for the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SwiftTable {
    /// Base target delay.
    pub target: Option<String>,
    /// Additive increase, packets a round trip.
    pub ai: Option<f64>,
    /// Multiplicative decrease.
    pub beta: Option<f64>,
    /// What one decrease takes at most.
    pub max_mdf: Option<f64>,
    /// How much longer the target is for the smallest windows; `0us` for no scaling.
    pub fs_range: Option<String>,
    /// Windows from which on, and at which, the target is scaled by nothing, and by all of it.
    pub fs_max_cwnd: Option<f64>,
    /// See `fs_max_cwnd`.
    pub fs_min_cwnd: Option<f64>,
    /// The window does not fall below this, packets.
    pub min_cwnd: Option<f64>,
    /// Initial window, packets; 10 if absent.
    pub initial: Option<u32>,
}

/// `[transport.hpcc]`: what is absent is as in the paper ([`adverb_nic::HpccConfig`]), but for the round
/// trip.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HpccTable {
    /// T: round trip of the idle network.
    pub base_rtt: Option<String>,
    /// How full links are wanted.
    pub eta: Option<f64>,
    /// Rounds of additive increase before a multiplicative one.
    pub max_stage: Option<u32>,
    /// W_AI, bytes.
    pub additive: Option<String>,
}

impl TransportTable {
    pub(super) fn congestion(&self) -> Result<CongestionControl, Error> {
        let name = self.congestion.as_deref().unwrap_or("fixed");
        let tables = [
            ("dcqcn", self.dcqcn.is_some()),
            ("timely", self.timely.is_some()),
            ("tcp", self.tcp.is_some()),
            ("dctcp", self.dctcp.is_some()),
            ("swift", self.swift.is_some()),
            ("hpcc", self.hpcc.is_some()),
        ];
        for (table, given) in tables {
            if given && table != name {
                let why = format!("goes with congestion = \"{table}\"; add that, or remove it");
                return Err(Error::new(format!("transport.{table}"), why));
            }
        }
        let scheme = match name {
            "fixed" => CongestionControl::Fixed,
            "halving" => CongestionControl::Halving,
            "dcqcn" => CongestionControl::Dcqcn(dcqcn(&self.dcqcn.clone().unwrap_or_default())?),
            "timely" => CongestionControl::Timely(timely(&self.timely.clone().unwrap_or_default())?),
            "tcp" => {
                let t = self.tcp.clone().unwrap_or_default();
                let d = TcpConfig::default();
                CongestionControl::Tcp(TcpConfig {
                    initial: initial("transport.tcp.initial", t.initial, d.initial)?,
                    slow_start: t.slow_start.unwrap_or(d.slow_start),
                })
            }
            "dctcp" => CongestionControl::Dctcp(dctcp(&self.dctcp.clone().unwrap_or_default())?),
            "swift" => CongestionControl::Swift(swift(&self.swift.clone().unwrap_or_default())?),
            "hpcc" => CongestionControl::Hpcc(hpcc(&self.hpcc.clone().unwrap_or_default())?),
            other => {
                let why =
                    format!("`{other}` is not one of fixed, halving, dcqcn, timely, tcp, dctcp, swift, hpcc");
                return Err(Error::new("transport.congestion", why));
            }
        };
        match self.ack_every {
            Some(n) if n != 1 && scheme.heeds_each_packet() => {
                let why = format!("{n}: \"{name}\" goes by an acknowledgement of each packet; remove it");
                Err(Error::new("transport.ack-every", why))
            }
            _ => Ok(scheme),
        }
    }
}

impl Scenario {
    /// What a scheme of congestion control needs of the rest of the scenario.
    pub(super) fn check_congestion(&self, scheme: CongestionControl) -> Result<(), Error> {
        let key = "transport.congestion";
        let marks = matches!(scheme, CongestionControl::Dcqcn(_) | CongestionControl::Dctcp(_));
        if marks && self.switch.ecn.is_none() && self.switch.program.is_none() {
            return Err(Error::new(key, "heeds marks, and no switch makes any; add [switch.ecn]"));
        }
        if !scheme.heeds_each_packet() {
            return Ok(());
        }
        if self.transport.kind.as_deref() == Some("star") {
            let why = "StaR's acknowledgements do not say what it heeds; give another, or kind = \"rc\"";
            return Err(Error::new(key, why));
        }
        let asks = |w: &WorkloadTable| w.op.as_deref() == Some("read") || w.pattern.is_some();
        if self.workloads.iter().any(asks) {
            let why = "governs requests, and nobody acknowledges answers to READs; give op = \"write\" or \
                       \"send\", or another scheme";
            return Err(Error::new(key, why));
        }
        Ok(())
    }
}

fn initial(key: &str, given: Option<u32>, default: u32) -> Result<u32, Error> {
    match given {
        Some(0) => Err(Error::new(key, "is zero; give at least 1 packet")),
        n => Ok(n.unwrap_or(default)),
    }
}

/// A number above 0.
fn above(key: &str, given: Option<f64>, default: f64) -> Result<f64, Error> {
    match given {
        Some(v) if !(v > 0.0 && v.is_finite()) => Err(Error::new(key, format!("{v} is not above 0"))),
        v => Ok(v.unwrap_or(default)),
    }
}

fn dctcp(t: &DctcpTable) -> Result<DctcpConfig, Error> {
    let d = DctcpConfig::default();
    Ok(DctcpConfig {
        g: share("transport.dctcp.g", t.g, d.g)?,
        initial: initial("transport.dctcp.initial", t.initial, d.initial)?,
    })
}

/// A time without which a scheme means nothing.
fn needed(key: &str, text: &Option<String>, what: &str) -> Result<Duration, Error> {
    if text.is_none() {
        return Err(Error::new(key, format!("is missing; give {what}, such as \"25us\"")));
    }
    span(key, text, Duration::ZERO)
}

fn swift(t: &SwiftTable) -> Result<SwiftConfig, Error> {
    let d = SwiftConfig::default();
    let what = "the round trip that is wanted, a queue included";
    let out = SwiftConfig {
        target: needed("transport.swift.target", &t.target, what)?,
        ai: above("transport.swift.ai", t.ai, d.ai)?,
        beta: share("transport.swift.beta", t.beta, d.beta)?,
        max_mdf: share("transport.swift.max-mdf", t.max_mdf, d.max_mdf)?,
        fs_range: time("transport.swift.fs-range", t.fs_range.as_deref())?
            .map_or(d.fs_range, Duration::from_ps),
        fs_max_cwnd: above("transport.swift.fs-max-cwnd", t.fs_max_cwnd, d.fs_max_cwnd)?,
        fs_min_cwnd: above("transport.swift.fs-min-cwnd", t.fs_min_cwnd, d.fs_min_cwnd)?,
        min_cwnd: above("transport.swift.min-cwnd", t.min_cwnd, d.min_cwnd)?,
        initial: initial("transport.swift.initial", t.initial, d.initial)?,
    };
    if out.fs_min_cwnd >= out.fs_max_cwnd {
        return Err(Error::new("transport.swift.fs-min-cwnd", "is not below fs-max-cwnd; lower it"));
    }
    Ok(out)
}

fn hpcc(t: &HpccTable) -> Result<HpccConfig, Error> {
    let d = HpccConfig::default();
    Ok(HpccConfig {
        base_rtt: needed("transport.hpcc.base-rtt", &t.base_rtt, "the round trip of the idle network")?,
        eta: share("transport.hpcc.eta", t.eta, d.eta)?,
        max_stage: t.max_stage.unwrap_or(d.max_stage),
        additive: size("transport.hpcc.additive", &t.additive, d.additive)?,
    })
}

/// A rate in bits/s.
fn rate(key: &str, text: &Option<String>, default: f64) -> Result<f64, Error> {
    let Some(text) = text else { return Ok(default) };
    match parse_rate(text) {
        Ok(0) => Err(Error::new(key, "is zero; give bits per second, such as \"40M\"")),
        Ok(rate) => Ok(rate as f64),
        Err(why) => Err(Error::new(key, why)),
    }
}

fn span(key: &str, text: &Option<String>, default: Duration) -> Result<Duration, Error> {
    match time(key, text.as_deref())? {
        Some(0) => Err(Error::new(key, "is zero; give a time, such as \"55us\"")),
        Some(ps) => Ok(Duration::from_ps(ps)),
        None => Ok(default),
    }
}

/// A share: above 0 and up to 1.
fn share(key: &str, value: Option<f64>, default: f64) -> Result<f64, Error> {
    match value {
        Some(v) if !(v > 0.0 && v <= 1.0) => {
            Err(Error::new(key, format!("{v} is not above 0 and at most 1")))
        }
        v => Ok(v.unwrap_or(default)),
    }
}

fn size(key: &str, text: &Option<String>, default: u32) -> Result<u32, Error> {
    match bytes(key, text.as_deref())? {
        Some(0) => Err(Error::new(key, "is zero; give bytes")),
        n => Ok(n.unwrap_or(default)),
    }
}

fn dcqcn(t: &DcqcnTable) -> Result<DcqcnConfig, Error> {
    let d = DcqcnConfig::default();
    Ok(DcqcnConfig {
        g: share("transport.dcqcn.g", t.g, d.g)?,
        rate_additive: rate("transport.dcqcn.rate-additive", &t.rate_additive, d.rate_additive)?,
        rate_hyper: rate("transport.dcqcn.rate-hyper", &t.rate_hyper, d.rate_hyper)?,
        alpha_interval: span("transport.dcqcn.alpha-interval", &t.alpha_interval, d.alpha_interval)?,
        increase_interval: span(
            "transport.dcqcn.increase-interval",
            &t.increase_interval,
            d.increase_interval,
        )?,
        increase_bytes: size("transport.dcqcn.increase-bytes", &t.increase_bytes, d.increase_bytes as u32)?
            .into(),
        fast_recovery: t.fast_recovery.unwrap_or(d.fast_recovery),
        rate_min: rate("transport.dcqcn.rate-min", &t.rate_min, d.rate_min)?,
        cnp_interval: span("transport.dcqcn.cnp-interval", &t.cnp_interval, d.cnp_interval)?,
    })
}

fn timely(t: &TimelyTable) -> Result<TimelyConfig, Error> {
    let d = TimelyConfig::default();
    let out = TimelyConfig {
        ewma: share("transport.timely.ewma", t.ewma, d.ewma)?,
        beta: share("transport.timely.beta", t.beta, d.beta)?,
        t_low: span("transport.timely.t-low", &t.t_low, d.t_low)?,
        t_high: span("transport.timely.t-high", &t.t_high, d.t_high)?,
        min_rtt: span("transport.timely.min-rtt", &t.min_rtt, d.min_rtt)?,
        delta: rate("transport.timely.delta", &t.delta, d.delta)?,
        hai_after: t.hai_after.unwrap_or(d.hai_after),
        segment: size("transport.timely.segment", &t.segment, d.segment)?,
        rate_min: rate("transport.timely.rate-min", &t.rate_min, d.rate_min)?,
    };
    if out.t_low > out.t_high {
        return Err(Error::new("transport.timely.t-low", "is above t-high; lower it"));
    }
    Ok(out)
}
