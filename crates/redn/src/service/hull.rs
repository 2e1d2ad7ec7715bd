//! The hull: it owns all that the NIC needs, index and values, each client's queues and regions, and runs
//! nothing of the application. A table's writer may stop, die and come back meanwhile; chains go on.
//!
//! Each client has a protection domain of its own, with a chain, its memory, and index and values once more
//! under keys of their own. They go when the client goes.
//!
//! ```text
//! values   LOCAL           their key stands in replies
//! index    REMOTE_READ     its key stands in the READs that the chain makes of its own host
//! client   no rights       it sends, and nothing else
//! ```
//! As in the paper, index and values may be one region instead, under one key: then a value that a client has
//! stored may be a bucket, and names any byte of the region ([`Files::Together`]; docs/redn-attacks.md).

use super::chain::Lookup;
use super::layout::{BUCKET_LEN, Layout};
use super::setup::{Offer, Told};
use super::watch::{ClientCounters, Finding, Watch};
use crate::chain::{Address, QueueId};
use crate::load::{self, Loaded};
use adverb_rdma::{Access, Connect, Error as RdmaError, File, Gid, Pd, RateLimit, Rdma, Region};
use std::collections::BTreeMap;
use std::fmt;

/// How long a message has to wait that comes before its turn, as IBTA's table 45 counts: 0.64 ms, so that
/// who floods its chain slows down itself and nobody else. A client that keeps to
/// [`Shape::outstanding`](super::chain::Shape::outstanding) never meets it.
const RNR_TIMER: u8 = 12;

/// What clients may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients at once.
    pub clients: u32,
    /// Slots of a client's chain.
    pub slots: u32,
    /// Megabits per second of each queue of a client's chain, in which a request counts its bytes and never
    /// less than 64; 0 for no bound.
    pub mbps: u32,
    /// Bytes of this host's memory that a client's chain may take.
    pub memory: u64,
    /// Chains are audited, and so many messages of a client may find no receive between two looks.
    pub audit: Option<u64>,
    /// Clients may be told the keys of index and values, and read them.
    pub one_sided: bool,
}

/// The table's files, of which a worker has the other descriptors.
#[derive(Clone, Copy)]
pub enum Files<'f> {
    /// Two regions, each of which has a key of its own.
    Apart {
        /// The index.
        index: &'f File,
        /// The values.
        values: &'f File,
    },
    /// One region, as in the paper: the index, and behind it the values.
    Together(&'f File),
}

/// Why the hull does not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There are as many clients as there may be.
    Clients(u32),
    /// Its chain would have more slots than a client may have.
    Slots(u32),
    /// Its chain would take so many bytes of memory, and may take so many.
    Memory(u64, u64),
    /// Keys of index and values are not given here.
    OneSided,
    /// Index or values are where no layout has them.
    Layout,
    /// The chain could not be loaded.
    Load(load::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Clients(most) => write!(f, "{most} clients are served already"),
            Refused::Slots(most) => write!(f, "slots: {most} at most"),
            Refused::Memory(takes, most) => {
                write!(f, "memory: a chain of these slots takes {takes} bytes, {most} at most")
            }
            Refused::OneSided => f.write_str("keys of index and values are not given here"),
            Refused::Layout => f.write_str("index or values are where no table can be"),
            Refused::Load(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<load::Error> for Refused {
    fn from(error: load::Error) -> Refused {
        Refused::Load(error)
    }
}

impl From<RdmaError> for Refused {
    fn from(error: RdmaError) -> Refused {
        Refused::Load(load::Error::Rdma(error))
    }
}

/// What the hull has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HullCounters {
    /// Clients that were connected.
    pub connected: u64,
    /// Clients that were refused.
    pub refused: u64,
    /// Clients that have gone.
    pub gone: u64,
    /// Clients whose connections an audit has ended.
    pub ended: u64,
}

/// A client's things, in the order in which they go.
struct Client {
    loaded: Loaded,
    watch: Watch,
    gid: Gid,
    _regions: [Region; 2],
    _pd: Pd,
}

/// Who owns the NIC.
pub struct Hull {
    rdma: Rdma,
    limits: Limits,
    layout: Layout,
    index: Region,
    values: Region,
    /// They are one region.
    together: bool,
    _pd: Pd,
    calls: String,
    clients: BTreeMap<u32, Client>,
    last: u32,
    counters: HullCounters,
    /// Of clients that have gone.
    gone: ClientCounters,
}

impl Hull {
    /// Of a table in these files. Clients are told where calls go that the worker answers.
    pub async fn open(
        rdma: &Rdma,
        files: Files<'_>,
        (buckets, values_len): (u64, u64),
        seed: u64,
        calls: String,
        limits: Limits,
    ) -> Result<Hull, Refused> {
        let pd = rdma.create_pd().await?;
        let (index_len, none) = (buckets * BUCKET_LEN, Access::empty());
        let (index, values) = match files {
            Files::Apart { index, values } => {
                let index = pd.region_of_file(index, 0, index_len, none).await?;
                (index, pd.region_of_file(values, 0, values_len, none).await?)
            }
            Files::Together(file) => {
                let both = pd.region_of_file(file, 0, index_len + values_len, none).await?;
                (both.clone(), both)
            }
        };
        let together = matches!(files, Files::Together(_));
        let at = if together { index_len } else { 0 };
        let layout = Layout { buckets, seed, index: index.addr(), values: values.addr() + at, values_len };
        if !layout.is_sound() {
            return Err(Refused::Layout);
        }
        let (clients, last, counters) = (BTreeMap::new(), 0, HullCounters::default());
        let (rdma, gone) = (rdma.clone(), ClientCounters::default());
        Ok(Hull {
            rdma,
            limits,
            layout,
            index,
            values,
            together,
            _pd: pd,
            calls,
            clients,
            last,
            counters,
            gone,
        })
    }

    /// The table, as clients and its worker know it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Clients that are served.
    pub fn clients(&self) -> u32 {
        self.clients.len() as u32
    }

    /// What was counted, by name: of the hull, of all clients that there were, and of each that there is.
    pub async fn counted(&mut self) -> Result<Vec<(String, u64)>, Refused> {
        let (mut all, mut each) = (self.gone, Vec::new());
        for (number, client) in &mut self.clients {
            let counters = client.watch.look(&client.loaded).await?;
            all.add(&counters);
            let named = counters.named().map(|(name, value)| (format!("client_{number}_{name}"), value));
            each.extend(named);
        }
        let HullCounters { connected, refused, gone, ended } = self.counters;
        let names = [
            ("clients", self.clients().into()),
            ("clients_connected", connected),
            ("clients_refused", refused),
            ("clients_gone", gone),
            ("clients_ended", ended),
        ];
        let own = names.into_iter().chain(all.named()).map(|(name, value)| (name.to_owned(), value));
        Ok(own.chain(each).collect())
    }

    /// What the chains of all clients have done that there were.
    pub async fn summed(&mut self) -> Result<ClientCounters, Refused> {
        let mut all = self.gone;
        for client in self.clients.values_mut() {
            all.add(&client.watch.look(&client.loaded).await?);
        }
        Ok(all)
    }

    /// Looks at every audited chain, and ends the clients that do what they should not.
    pub async fn audit(&mut self) -> Result<Vec<Finding>, Refused> {
        let Some(not_ready_max) = self.limits.audit else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (number, Client { loaded, watch, gid, .. }) in &mut self.clients {
            if let Some(why) = watch.audit(loaded, not_ready_max).await? {
                found.push(Finding { client: *number, gid: *gid, why });
            }
        }
        for finding in &found {
            // It may be found again while it goes.
            let _ = self.leave(finding.client).await?;
            self.counters.ended += 1;
        }
        Ok(found)
    }

    /// What has been counted.
    pub fn counters(&self) -> HullCounters {
        self.counters
    }

    /// Serves a client from now on.
    pub async fn connect(&mut self, offer: &Offer) -> Result<Told, Refused> {
        let made = self.try_connect(offer).await;
        match made {
            Ok(_) => self.counters.connected += 1,
            Err(_) => self.counters.refused += 1,
        }
        made
    }

    async fn try_connect(&mut self, offer: &Offer) -> Result<Told, Refused> {
        if self.clients() >= self.limits.clients {
            return Err(Refused::Clients(self.limits.clients));
        }
        if offer.shape.slots > self.limits.slots {
            return Err(Refused::Slots(self.limits.slots));
        }
        if offer.one_sided && !self.limits.one_sided {
            return Err(Refused::OneSided);
        }
        let made = if self.limits.audit.is_some() { Lookup::audited } else { Lookup::new };
        let lookup = made(offer.shape);
        let takes = Loaded::memory_of(&lookup.chain)?;
        if takes > self.limits.memory {
            return Err(Refused::Memory(takes, self.limits.memory));
        }
        let pd = self.rdma.create_pd().await?;
        let rights = if offer.one_sided { Access::REMOTE_READ } else { Access::empty() };
        let index = pd.region_again(&self.index, Access::REMOTE_READ).await?;
        let values = match self.together {
            true => index.clone(),
            false => pd.region_again(&self.values, rights).await?,
        };
        let watch = Watch::new(&lookup, offer.shape.slots);
        let mut loaded = Loaded::create(&self.rdma, &pd, lookup.chain).await?;
        loaded.connect(&Connect::default()).await?;
        let of = |region: &Region, addr| Address { addr, lkey: region.lkey(), rkey: region.remote().rkey };
        loaded.give(lookup.index, of(&index, self.layout.index));
        loaded.give(lookup.values, of(&values, self.layout.values));
        let buffer = Address { addr: offer.buffer.addr, rkey: offer.buffer.rkey, ..Address::default() };
        loaded.give(lookup.buffer, buffer);
        let how = Connect { access: rights, rnr_timer: RNR_TIMER, ..Connect::default() };
        let qp = loaded.qp(lookup.client).clone();
        let endpoint = qp.endpoint(&how).await?;
        qp.connect_to(&endpoint, &offer.endpoint, &how).await?;
        if self.limits.mbps > 0 {
            let limit = RateLimit { kbps: self.limits.mbps.saturating_mul(1000), ..RateLimit::default() };
            for queue in 0..loaded.chain().queues.len() {
                loaded.qp(QueueId(queue as u16)).limit_rate(limit).await?;
            }
        }
        loaded.start().await?;
        self.last = self.last.wrapping_add(1);
        let rkeys = offer.one_sided.then(|| (index.remote().rkey, values.remote().rkey));
        let gid = offer.endpoint.gid;
        let client = Client { loaded, watch, gid, _regions: [index, values], _pd: pd };
        self.clients.insert(self.last, client);
        let (layout, calls) = (self.layout, self.calls.clone());
        Ok(Told { client: self.last, endpoint, layout, calls, rkeys })
    }

    /// A client has gone, and all that it had goes. What its chain has done is kept in the sums; what it
    /// should not have done is told, where chains are audited.
    pub async fn leave(&mut self, number: u32) -> Result<Option<Finding>, Refused> {
        let Some(mut client) = self.clients.remove(&number) else { return Ok(None) };
        let why = match self.limits.audit {
            Some(most) => client.watch.audit(&client.loaded, most).await?,
            None => None,
        };
        self.gone.add(&client.watch.look(&client.loaded).await?);
        self.counters.gone += 1;
        Ok(why.map(|why| Finding { client: number, gid: client.gid, why }))
    }
}
