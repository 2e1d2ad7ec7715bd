//! Congestion control's tables, with every value checked.

use super::build::{bytes, time};
use super::format::{DcqcnTable, TimelyTable, TransportTable};
use crate::error::Error;
use crate::units::parse_rate;
use adverb_nic::{CongestionControl, DcqcnConfig, TcpConfig, TimelyConfig};
use adverb_wire::Duration;

impl TransportTable {
    pub(super) fn congestion(&self) -> Result<CongestionControl, Error> {
        let name = self.congestion.as_deref().unwrap_or("fixed");
        let tables =
            [("dcqcn", self.dcqcn.is_some()), ("timely", self.timely.is_some()), ("tcp", self.tcp.is_some())];
        for (table, given) in tables {
            if given && table != name {
                let why = format!("goes with congestion = \"{table}\"; add that, or remove it");
                return Err(Error::new(format!("transport.{table}"), why));
            }
        }
        Ok(match name {
            "fixed" => CongestionControl::Fixed,
            "halving" => CongestionControl::Halving,
            "dcqcn" => CongestionControl::Dcqcn(dcqcn(&self.dcqcn.clone().unwrap_or_default())?),
            "timely" => CongestionControl::Timely(timely(&self.timely.clone().unwrap_or_default())?),
            "tcp" => {
                let default = TcpConfig::default();
                let initial = self.tcp.as_ref().and_then(|t| t.initial).unwrap_or(default.initial);
                if initial == 0 {
                    return Err(Error::new("transport.tcp.initial", "is zero; give at least 1 packet"));
                }
                CongestionControl::Tcp(TcpConfig { initial })
            }
            other => {
                let why = format!("`{other}` is not one of fixed, halving, dcqcn, timely, tcp");
                return Err(Error::new("transport.congestion", why));
            }
        })
    }
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
