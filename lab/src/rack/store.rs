//! Clients of a store of chains (`adverb_apps::chain`), each in a closed loop over a stream of YCSB's.

use super::{Clock, Done, NAME, Parts, SERVER, Shared, client, connect};
use adverb_apps::chain::{self, ChainError, Client, HomeConfig};
use adverb_apps::ycsb::{Op, Stream, Streams, Workload, Zipf};
use adverb_rdma::{Duration, Rdma};
use adverb_sim::program::Start;
use adverb_sim::units::parse_time;
use serde::Deserialize;

/// Bytes of an entry beside its value.
const HEAD: u32 = 48;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Chains {
    /// Threads, each with a queue pair.
    pub clients: u32,
    /// YCSB's: `a` half puts, `b` 5%, `c` none, `write-only`.
    workload: String,
    /// Keys.
    keys: u32,
    /// Bytes of an entry, its head included.
    entry: u32,
    /// Zipf's exponent.
    exponent: f64,
    /// What a client computes for a get.
    #[serde(default)]
    think_get: Option<String>,
    /// What a client computes for a put.
    #[serde(default)]
    think_put: Option<String>,
    /// Places that a client is given at once.
    #[serde(default = "share")]
    share: u32,
    /// Each client has keys of its own: nobody meets anybody.
    #[serde(default)]
    apart: bool,
}

fn share() -> u32 {
    512
}

impl Chains {
    fn workload(&self) -> Result<Workload, String> {
        Workload::by_name(&self.workload)
            .filter(|workload| *workload != Workload::D)
            .ok_or_else(|| format!("workload `{}`: a, b, c or write-only", self.workload))
    }

    fn think(text: Option<&String>) -> Result<Duration, String> {
        text.map_or(Ok(Duration::ZERO), |text| parse_time(text)).map_err(|why| format!("think: {why}"))
    }

    pub fn check(&self) -> Result<(), String> {
        self.workload()?;
        Zipf::new(self.keys.into(), self.exponent).map_err(|why| why.to_string())?;
        Chains::think(self.think_get.as_ref())?;
        Chains::think(self.think_put.as_ref())?;
        let whole = self.entry.is_multiple_of(64) && (64..=4096).contains(&self.entry);
        if !whole {
            return Err(format!("entry = {}: a multiple of 64, up to 4096", self.entry));
        }
        if self.apart && !self.keys.is_multiple_of(self.clients) {
            return Err("apart: keys are a multiple of clients".to_owned());
        }
        let places = u64::from(self.share) * u64::from(self.clients.max(1));
        match self.keys <= chain::KEYS_MAX && places + u64::from(self.keys) <= chain::ENTRIES_MAX.into() {
            true => Ok(()),
            false => Err("keys, and share for each client: more than a home has".to_owned()),
        }
    }

    pub fn programs(&self, log: &Shared, parts: Parts, seed: u64) -> Result<Vec<Start>, String> {
        // A client that has used its share asks for another one.
        let entries =
            (self.clients.saturating_mul(self.share).saturating_mul(4)).min(chain::ENTRIES_MAX - self.keys);
        let value_max = self.entry - HEAD;
        let config =
            HomeConfig { keys: self.keys, entries, share: self.share, value_max, connect: connect() };
        let home =
            Start::new(
                NAME,
                SERVER,
                move |rdma: Rdma| async move { chain::serve(&rdma, NAME, &config).await },
            );
        let keys = if self.apart { self.keys / self.clients } else { self.keys };
        let zipf = Zipf::new(keys.into(), self.exponent).map_err(|why| why.to_string())?;
        let (workload, clients) = (self.workload()?, u64::from(self.clients));
        let streams = Streams { workload, zipf, clients, drift: None, seed };
        let think = [Chains::think(self.think_get.as_ref())?, Chains::think(self.think_put.as_ref())?];
        let mut programs = vec![home.serving()];
        for number in 0..self.clients {
            let does = Does {
                stream: Stream::new(&streams, number.into()),
                first: if self.apart { number * keys } else { 0 },
                value: vec![number as u8; value_max as usize],
                think,
                parts,
            };
            programs.push(client(number, log, move |rdma, log| go_on(rdma, log, does.clone())));
        }
        Ok(programs)
    }
}

/// What one client does.
#[derive(Clone)]
struct Does {
    stream: Stream,
    /// Its keys begin here.
    first: u32,
    value: Vec<u8>,
    /// For a get, for a put.
    think: [Duration; 2],
    parts: Parts,
}

async fn go_on(rdma: Rdma, log: Shared, mut does: Does) -> Result<(), ChainError> {
    let clock = Clock::begin(&rdma).await?;
    let patience = rdma.now().await? + Duration::from_ms(100);
    let client = Client::open(&rdma, NAME, &connect(), Some(patience)).await?;
    clock.wait(&rdma, &log, does.parts.start).await?;
    loop {
        let op = does.stream.next_op();
        let (before, begun) = (client.counted(), rdma.now().await?);
        let changes = !matches!(op, Op::Get(_));
        rdma.sleep(does.think[usize::from(changes)]).await?;
        match op {
            Op::Get(key) => drop(client.get(does.first + key as u32).await?),
            Op::Update(key) | Op::Insert(key) => client.put(does.first + key as u32, &does.value).await?,
        }
        let (after, ended) = (client.counted(), rdma.now().await?);
        log.borrow_mut().done.push(Done {
            changes,
            ended: clock.ps(ended),
            took: ended.since(begun).as_ps(),
            refused: (after.refused - before.refused) as u32,
            passed: (after.passed - before.passed) as u32,
        });
    }
}
