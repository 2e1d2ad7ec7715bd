//! A switch's programs as files say them: `[[program]]` tables, which the switch's process and the simulator
//! read alike.

use crate::cas_to_write::carry::CarryConfig;
use crate::steer::Hot;
use crate::switch::PROGRAMS_MAX;
use crate::{ByteOrder, CasConfig, MarkConfig, PaperConfig, ProgramConfig, SteerConfig, WordRange};
use adverb_wire::{Duration, Gid, Key};
use serde::Deserialize;
use std::net::IpAddr;
use std::num::NonZeroU32;

/// One `[[program]]` table.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", deny_unknown_fields, rename_all = "snake_case", rename_all_fields = "kebab-case")]
pub enum ProgramKeys {
    /// What a switch does without a program.
    Forward {},
    /// Marks packets.
    Ecn {
        /// At so many waiting bytes.
        above: Option<u32>,
        /// Each so many-th.
        every: Option<NonZeroU32>,
    },
    /// Trims packets.
    Trim {
        /// At so many waiting bytes.
        above: Option<u32>,
        /// Each so many-th.
        every: Option<NonZeroU32>,
    },
    /// Decides atomics.
    CasToWrite(Box<CasKeys>),
    /// Steers requests for chains.
    Steer(Box<SteerKeys>),
}

/// The keys of `cas_to_write`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CasKeys {
    server: IpAddr,
    mode: Option<String>,
    clients: Option<usize>,
    carriers: Option<usize>,
    ring: Option<usize>,
    resend_us: Option<u64>,
    tries: Option<u32>,
    proof_us: Option<u64>,
    rkey: Option<u32>,
    va: Option<u64>,
    len: Option<u64>,
    byte_order: Option<String>,
    words: Option<usize>,
    connections: Option<usize>,
    hold_us: Option<u64>,
    flight_us: Option<u64>,
    life_us: Option<u64>,
}

impl CasKeys {
    fn config(&self) -> Result<CasConfig, String> {
        let usual = CasConfig::new(Gid::from(self.server));
        let time = |given: Option<u64>, usual| given.map_or(usual, Duration::from_us);
        Ok(CasConfig {
            rkey: self.rkey.map(Key),
            words: match (self.va, self.len) {
                (None, None) => WordRange::Any,
                (Some(va), Some(len)) => WordRange::Range { va, len },
                _ => return Err("a range of words has va and len, or neither".to_owned()),
            },
            byte_order: match self.byte_order.as_deref() {
                None | Some("little") => ByteOrder::Little,
                Some("big") => ByteOrder::Big,
                Some(_) => return Err("byte-order is little or big".to_owned()),
            },
            words_max: self.words.unwrap_or(usual.words_max),
            connections_max: self.connections.unwrap_or(usual.connections_max),
            hold: time(self.hold_us, usual.hold),
            flight: time(self.flight_us, usual.flight),
            life: time(self.life_us, usual.life),
            ..usual
        })
    }
}

/// The keys of `steer`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SteerKeys {
    server: IpAddr,
    entry: u32,
    mode: Option<String>,
    order: Option<String>,
    next_at: Option<u32>,
    key_at: Option<u32>,
    rkey: Option<u32>,
    keys: Option<usize>,
    hot: Option<u32>,
    decay_ms: Option<u64>,
    entries: Option<usize>,
    connections: Option<usize>,
    reads: Option<bool>,
    hold_us: Option<u64>,
    read_hold_us: Option<u64>,
    link_hold_us: Option<u64>,
}

impl SteerKeys {
    fn config(&self) -> Result<SteerConfig, String> {
        /// After so long counts are halved.
        const DECAY_MS: u64 = 100;
        let usual = SteerConfig::new(Gid::from(self.server), self.entry);
        match self.order.as_deref() {
            None | Some("strict") => {}
            Some(other) => {
                return Err(format!(
                    "order `{other}` is not offered: a link waits until the one before it is acknowledged \
                     (strict)"
                ));
            }
        }
        if self.decay_ms.is_some() && self.hot.is_none() {
            return Err("decay-ms goes with hot".to_owned());
        }
        let decay = Duration::from_ms(self.decay_ms.unwrap_or(DECAY_MS));
        let keys_max = self.keys.unwrap_or(usual.keys_max);
        let hold = self.hold_us.map_or(usual.hold, Duration::from_us);
        let read_hold = self.read_hold_us.map_or(hold, Duration::from_us);
        if read_hold > hold {
            return Err("read-hold-us: at most hold-us; after that a link counts as lost".to_owned());
        }
        let link_hold = self.link_hold_us.map_or(hold, Duration::from_us);
        if link_hold > hold {
            return Err("link-hold-us: at most hold-us; after that a link goes on in any case".to_owned());
        }
        if self.reads == Some(false) && self.read_hold_us.or(self.link_hold_us).is_some() {
            return Err("read-hold-us and link-hold-us go with reads".to_owned());
        }
        let config = SteerConfig {
            rkey: self.rkey.map(Key),
            next_at: self.next_at.unwrap_or(usual.next_at),
            key_at: self.key_at.unwrap_or(usual.key_at),
            keys_max,
            hot: self.hot.map(|above| Hot { above, decay }),
            // Three times the keys suffice for nearly all READs, by the paper.
            entries_max: self.entries.unwrap_or(keys_max.saturating_mul(3)),
            connections_max: self.connections.unwrap_or(usual.connections_max),
            reads: self.reads.unwrap_or(usual.reads),
            hold,
            read_hold,
            link_hold,
            ..usual
        };
        config.check()?;
        Ok(config)
    }
}

impl SteerKeys {
    /// The program of the mode that is asked for.
    fn in_mode(&self, config: SteerConfig) -> Result<ProgramConfig, String> {
        let not_the_drafts = self.order.is_some()
            || self.hot.is_some()
            || self.rkey.is_some()
            || self.hold_us.is_some()
            || self.read_hold_us.or(self.link_hold_us).is_some();
        match self.mode.as_deref() {
            None | Some("linked") => Ok(ProgramConfig::Steer(config)),
            Some("paper") if not_the_drafts => {
                let these = "rkey, order, hot, hold-us, read-hold-us and link-hold-us";
                Err(format!("{these} are not of mode \"paper\""))
            }
            Some("paper") => Ok(ProgramConfig::PaperSteer(config)),
            Some(other) => {
                let known = "linked, paper (the last in simulations)";
                Err(format!("mode `{other}` is not one of {known}"))
            }
        }
    }
}

impl CasKeys {
    /// The program of the mode that is asked for.
    fn in_mode(&self, cas: CasConfig) -> Result<ProgramConfig, String> {
        let usual = CarryConfig::default();
        let resend = self.resend_us.map_or(usual.resend, Duration::from_us);
        let carry = CarryConfig {
            carriers: self.carriers.unwrap_or(usual.carriers),
            ring: self.ring.unwrap_or(usual.ring),
            resend,
            tries: self.tries.unwrap_or(usual.tries),
            proof: self.proof_us.map_or(usual.proof.max(resend), Duration::from_us),
        };
        let of_carriers = self.carriers.or(self.ring).is_some()
            || self.resend_us.or(self.proof_us).is_some()
            || self.tries.is_some();
        let mode = self.mode.as_deref().unwrap_or("in-place");
        if self.clients.is_some() && mode != "paper" {
            return Err("clients goes with mode = \"paper\"".to_owned());
        }
        if of_carriers && mode != "multiplex" {
            return Err(
                "carriers, ring, resend-us, tries and proof-us go with mode = \"multiplex\"".to_owned()
            );
        }
        match mode {
            "in-place" => Ok(ProgramConfig::CasToWrite(cas)),
            "multiplex" => {
                carry.check()?;
                Ok(ProgramConfig::CasToWrite(CasConfig { carry: Some(carry), ..cas }))
            }
            "paper" => {
                let config = PaperConfig { cas, clients: self.clients.unwrap_or(0) };
                config.check()?;
                Ok(ProgramConfig::Paper(config))
            }
            other => {
                let known = "in-place, multiplex, paper (the last in simulations)";
                Err(format!("mode `{other}` is not one of {known}"))
            }
        }
    }
}

impl ProgramKeys {
    /// The program's name.
    pub fn name(&self) -> &'static str {
        match self {
            ProgramKeys::Forward {} => "forward",
            ProgramKeys::Ecn { .. } => "ecn",
            ProgramKeys::Trim { .. } => "trim",
            ProgramKeys::CasToWrite(_) => "cas_to_write",
            ProgramKeys::Steer(_) => "steer",
        }
    }

    /// What the program is told. `None` for `forward`, which is what a switch does without one.
    ///
    /// # Errors
    /// What is wrong with the table.
    pub fn config(&self) -> Result<Option<ProgramConfig>, String> {
        let mark = |above: Option<u32>, every: Option<NonZeroU32>| match (above, every) {
            (None, None) => Err("give above, in waiting bytes, or every, in packets".to_owned()),
            _ => Ok(MarkConfig { above, every }),
        };
        Ok(match self {
            ProgramKeys::Forward {} => None,
            ProgramKeys::Ecn { above, every } => Some(ProgramConfig::Ecn(mark(*above, *every)?)),
            ProgramKeys::Trim { above, every } => Some(ProgramConfig::Trim(mark(*above, *every)?)),
            ProgramKeys::CasToWrite(keys) => {
                let config = keys.config()?;
                config.check()?;
                Some(keys.in_mode(config)?)
            }
            ProgramKeys::Steer(keys) => Some(keys.in_mode(keys.config()?)?),
        })
    }
}

/// What the programs of these tables are told, in their order.
///
/// # Errors
/// What is wrong, with the number of its table.
pub fn configs(tables: &[ProgramKeys]) -> Result<Vec<ProgramConfig>, String> {
    if tables.len() > PROGRAMS_MAX {
        return Err(format!("at most {PROGRAMS_MAX} programs"));
    }
    let mut configs = Vec::new();
    for (at, keys) in tables.iter().enumerate() {
        configs.extend(keys.config().map_err(|why| format!("[[program]] {}: {why}", at + 1))?);
    }
    Ok(configs)
}
