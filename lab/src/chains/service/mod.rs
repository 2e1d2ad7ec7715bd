//! A store of values under load and through faults (figures 14 to 16): gets that a recycled chain answers
//! beside a process that sets values, and gets that the process answers itself.
//!
//! ```text
//! host 1   hull       owns table, chains; with `two-sided` it is a part of the process, and ends with it
//!          worker n   the process's thread for one client: gets and sets by messages
//! host 0   reader     gets, one after the other        writer n   sets, one after the other
//! ```
//! | file | holds |
//! |---|---|
//! | `table` | the table, as programs of its host see it |
//! | `server` | hull and workers |
//! | `client` | readers and writers |
//!
//! The table is that of `adverb_redn::service`: an index of buckets, and records out of place. A key has two
//! places for its record, so that a set is a record and one store of a word.

mod client;
mod server;
mod table;

use super::gets::request;
use super::{COUNT_MAX, END_PS, How, Shared, start};
use adverb_rdma::record::record_len;
use adverb_rdma::{Cq, Data, Duration, Error, Qp, SendOp};
use adverb_redn::service::chain::Shape;
use adverb_sim::program::{Fault, Start, What};
use core::cell::Cell;
use serde::Deserialize;
use std::rc::Rc;

/// Where workers ask for the table, and readers for their chain.
const TABLE: &str = "table";
const CHAIN: &str = "chain";
/// A message: what is asked for, and the key's number; of a set the value stands behind it.
const HEAD: u32 = 16;
const GET: u64 = 0;
const SET: u64 = 1;
/// Last word of a reply that has no value, and of one to a set.
const MISS: u64 = 2;
const DONE: u64 = 3;

/// What is asked of a store of values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Serving {
    /// By whom gets are answered: `offload`, `one-sided` or `two-sided`.
    pub how: How,
    /// Bytes of a value.
    pub value: u32,
    /// Keys that are read.
    #[serde(default = "sixteen")]
    pub keys: u32,
    /// Clients that set values meanwhile.
    #[serde(default)]
    pub writers: u32,
    /// Gets at most.
    pub gets: u32,
    /// How long the reader goes on at most.
    #[serde(default)]
    pub time: Option<String>,
    /// Between two gets.
    #[serde(default)]
    pub pause: Option<String>,
    /// What the process computes for a message, or a one-sided reader between its READs.
    #[serde(default)]
    pub think: Option<String>,
    /// Both ends copy values between programs and a stack.
    #[serde(default)]
    pub stack: bool,
    /// What befalls the server.
    #[serde(default)]
    pub outage: Option<Outage>,
    /// When that is, from the beginning of the run.
    #[serde(default)]
    pub at: Option<String>,
    /// When a killed process is started again.
    #[serde(default)]
    pub again: Option<String>,
    /// What it takes then to fill its table.
    #[serde(default)]
    pub rebuild: Option<String>,
}

fn sixteen() -> u32 {
    16
}

/// What befalls a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outage {
    /// The process is killed.
    Kill,
    /// All of the host's programs stop for good, as in an operating system's panic.
    Panic,
}

impl Serving {
    /// The same, as programs need it.
    fn service(&self) -> Result<Service, String> {
        let time = |name: &str, text: &Option<String>| match text {
            Some(text) => adverb_sim::units::parse_time(text).map_err(|why| format!("{name}: {why}")),
            None => Ok(Duration::ZERO),
        };
        let Serving { how, value, keys, writers, gets, stack, .. } = *self;
        let end = time("time", &self.time)?;
        Ok(Service {
            how,
            value,
            keys,
            writers,
            gets,
            time: if end == Duration::ZERO { Duration::from_ps(END_PS) } else { end },
            pause: time("pause", &self.pause)?,
            think: time("think", &self.think)?,
            stack,
            rebuild: time("rebuild", &self.rebuild)?,
        })
    }

    /// What befalls programs, in the order in which they are started.
    pub(super) fn faults(&self) -> Result<Vec<Fault>, String> {
        let time = |name: &str, text: &Option<String>| match text {
            Some(text) => adverb_sim::units::parse_time(text).map_err(|why| format!("{name}: {why}")),
            None => Err(format!("{name}: an outage needs it")),
        };
        let Some(outage) = self.outage else { return Ok(Vec::new()) };
        let at = time("at", &self.at)?.as_ps();
        let what: Vec<What> = match outage {
            // The hull of chains is another process.
            Outage::Kill => {
                let again = Some(time("again", &self.again)?.as_ps());
                let first = u32::from(self.how != How::TwoSided);
                (first..2 + self.writers).map(|n| What::Kill(n, again)).collect()
            }
            Outage::Panic => (0..2 + self.writers).map(What::Stop).collect(),
        };
        Ok(what.into_iter().map(|what| Fault { at, what }).collect())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        if !matches!(self.how, How::Offload | How::OneSided | How::TwoSided) {
            return Err("how: a service is by offload, one-sided or two-sided".to_owned());
        }
        let within = |name: &str, value: u32, most: u32| match (1..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("{name} = {value}: give 1 to {most}")),
        };
        within("value", self.value / 16, 1 << 12)?;
        if !self.value.is_multiple_of(16) {
            return Err(format!("value = {}: give a multiple of 16", self.value));
        }
        within("keys", self.keys, 4096)?;
        within("gets", self.gets, COUNT_MAX)?;
        within("writers", self.writers + 1, 33)?;
        self.service()?;
        self.faults().map(drop)
    }

    pub(super) fn programs(&self, log: &Shared) -> Result<Vec<Start>, String> {
        let service = self.service()?;
        let lives = Rc::new(Cell::new(0));
        let mut all =
            vec![Start::new("hull", 1, move |rdma| server::hull(rdma, service, lives.clone())).serving()];
        for n in 0..=self.writers {
            let worker = Start::new(format!("worker {n}"), 1, move |rdma| server::worker(rdma, service, n));
            all.push(worker.serving());
        }
        all.push(start("reader", 0, log, move |rdma, log| Box::pin(client::read(rdma, log, service))));
        for n in 0..self.writers {
            let writer = Start::new(format!("writer {n}"), 0, move |rdma| client::write(rdma, service, n));
            all.push(writer.serving());
        }
        Ok(all)
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// By whom gets are answered.
    pub how: How,
    /// Bytes of a value.
    pub value: u32,
    /// Keys that are read.
    pub keys: u32,
    /// Clients that set values, each of keys of its own.
    pub writers: u32,
    /// Gets, and how long they go on at most.
    pub gets: u32,
    pub time: Duration,
    /// Between two gets.
    pub pause: Duration,
    /// What a worker computes for a message, or a one-sided reader between its READs.
    pub think: Duration,
    /// Both ends copy values between programs and a stack.
    pub stack: bool,
    /// What a process that is started again takes to fill its table.
    pub rebuild: Duration,
}

/// Keys of each writer.
const OWN_KEYS: u64 = 16;

impl Service {
    fn all_keys(&self) -> u64 {
        u64::from(self.keys) + OWN_KEYS * u64::from(self.writers)
    }

    fn record_len(&self) -> u64 {
        record_len(key(0).len(), self.value as usize) as u64
    }

    fn values_len(&self) -> u64 {
        2 * self.all_keys() * self.record_len()
    }

    fn shape(&self) -> Shape {
        Shape { slots: 8, reply_len: self.record_len() as u32 }
    }
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// A value: its words are of the key and the version, and none of them is a mark.
fn content(n: u64, version: u64, len: u32) -> Vec<u8> {
    let word = |at: u64| (n << 40 | version << 16 | at & 0xfff).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 63;
    (0..u64::from(len) / 8).flat_map(|at| word(at).to_ne_bytes()).collect()
}

/// The name under which a client finds its worker; the reader's is 0.
fn door(n: u32) -> String {
    format!("worker {n}")
}

/// Requests so far: of some of them a completion is asked for, and looked at when it has long been there.
#[derive(Default)]
struct Turns(Cell<u32>);

impl Turns {
    async fn post(&self, qp: &Qp, cq: &Cq, (op, data): (SendOp, Data)) -> Result<(), Error> {
        let turn = self.0.replace(self.0.get() + 1) % 16;
        qp.post(vec![request(op, data, turn == 0)]).await?;
        if turn == 15 {
            cq.poll(16).await?;
        }
        Ok(())
    }
}
