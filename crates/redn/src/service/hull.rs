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

use super::chain::{Lookup, STATE, answered};
use super::layout::{BUCKET_LEN, Layout};
use super::setup::{Offer, Told};
use crate::chain::{Address, QueueId, RegionId};
use crate::load::{self, Loaded};
use adverb_rdma::{Access, Connect, Error as RdmaError, File, Pd, RateLimit, Rdma, Region};
use std::collections::BTreeMap;
use std::fmt;

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
    /// Clients may be told the keys of index and values, and read them.
    pub one_sided: bool,
}

/// Why the hull does not serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There are as many clients as there may be.
    Clients(u32),
    /// Its chain would have more slots than a client may have.
    Slots(u32),
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
}

/// A client's things, in the order in which they go.
struct Client {
    loaded: Loaded,
    slots: u32,
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
    _pd: Pd,
    calls: String,
    clients: BTreeMap<u32, Client>,
    last: u32,
    counters: HullCounters,
}

impl Hull {
    /// Of a table in these files, of which a worker has the other descriptors. Clients are told where calls
    /// go that the worker answers.
    pub async fn open(
        rdma: &Rdma,
        (index, buckets): (&File, u64),
        (values, values_len): (&File, u64),
        seed: u64,
        calls: String,
        limits: Limits,
    ) -> Result<Hull, Refused> {
        let pd = rdma.create_pd().await?;
        let index = pd.region_of_file(index, 0, buckets * BUCKET_LEN, Access::empty()).await?;
        let values = pd.region_of_file(values, 0, values_len, Access::empty()).await?;
        let layout = Layout { buckets, seed, index: index.addr(), values: values.addr(), values_len };
        if !layout.is_sound() {
            return Err(Refused::Layout);
        }
        let (clients, last, counters) = (BTreeMap::new(), 0, HullCounters::default());
        let rdma = rdma.clone();
        Ok(Hull { rdma, limits, layout, index, values, _pd: pd, calls, clients, last, counters })
    }

    /// The table, as clients and its worker know it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Clients that are served.
    pub fn clients(&self) -> u32 {
        self.clients.len() as u32
    }

    /// The same by name, with what there is now: clients, and messages that each one's chain has answered.
    pub async fn counted(&self) -> Result<Vec<(String, u64)>, Refused> {
        let HullCounters { connected, refused, gone } = self.counters;
        let names = [
            ("clients", self.clients().into()),
            ("clients_connected", connected),
            ("clients_refused", refused),
            ("clients_gone", gone),
        ];
        let mut out: Vec<(String, u64)> = names.map(|(name, value)| (name.to_owned(), value)).into();
        for (number, client) in &self.clients {
            let loaded = &client.loaded;
            let state = loaded.chain().regions.iter().position(|region| region.name == STATE);
            if let Some(state) = state.and_then(|at| loaded.region(RegionId(at as u16))) {
                let count = answered(state.load(0).await?, client.slots);
                out.push((format!("client_{number}_answered"), count));
            }
        }
        Ok(out)
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
        let pd = self.rdma.create_pd().await?;
        let rights = if offer.one_sided { Access::REMOTE_READ } else { Access::empty() };
        let index = pd.region_again(&self.index, Access::REMOTE_READ).await?;
        let values = pd.region_again(&self.values, rights).await?;
        let lookup = Lookup::new(offer.shape);
        let mut loaded = Loaded::create(&self.rdma, &pd, lookup.chain).await?;
        loaded.connect(&Connect::default()).await?;
        let of = |region: &Region| Address {
            addr: region.addr(),
            lkey: region.lkey(),
            rkey: region.remote().rkey,
        };
        loaded.give(lookup.index, of(&index));
        loaded.give(lookup.values, of(&values));
        let buffer = Address { addr: offer.buffer.addr, rkey: offer.buffer.rkey, ..Address::default() };
        loaded.give(lookup.buffer, buffer);
        let how = Connect { access: rights, ..Connect::default() };
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
        let client = Client { loaded, slots: offer.shape.slots, _regions: [index, values], _pd: pd };
        self.clients.insert(self.last, client);
        let (layout, calls) = (self.layout, self.calls.clone());
        Ok(Told { client: self.last, endpoint, layout, calls, rkeys })
    }

    /// A client has gone, and all that it had goes.
    pub fn leave(&mut self, client: u32) {
        if self.clients.remove(&client).is_some() {
            self.counters.gone += 1;
        }
    }
}
