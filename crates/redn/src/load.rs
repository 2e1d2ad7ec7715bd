//! The loader: makes of a chain queues, regions and completion queues, fills in what only they know, and
//! starts it.
//!
//! ```text
//! create ──► connect, give ──► start
//!            clients' queues   WQEs and data are written, receives posted, managed queues' doorbells rung,
//!            and regions       and last those of the queues that start the others
//! ```
//! The keys of code regions stay in the program: whoever may write a send queue has its queue pair's rights.

use crate::chain::{self, Address, Addresses, Chain, Layout, Memory, Peer, Place, QueueId, RegionId, With};
use adverb_rdma::{
    Access, Caps, Connect, Cq, Error as RdmaError, Pd, Qp, QpFlags, QpType, Rdma, RecvRequest, Region,
    SendOrder, Sge,
};
use std::fmt;

/// Rights of a send queue's memory for the queues of its own chain.
const CODE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// Bytes of a scatter entry.
const SEGMENT: u64 = 16;
/// Completions beside those of a lap: what fails makes one too.
const SPARE: u32 = 16;

/// Why a chain could not be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The chain is wrong.
    Chain(chain::Error),
    /// A call failed.
    Rdma(RdmaError),
    /// A region that is to be given was not.
    NotGiven(String),
    /// A recycled queue's ring is not as long as its WQEs.
    Ring {
        /// The queue.
        queue: String,
        /// Blocks of its WQEs.
        wanted: u32,
        /// Blocks of the ring that it was given.
        given: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Chain(error) => error.fmt(f),
            Error::Rdma(error) => error.fmt(f),
            Error::NotGiven(name) => write!(f, "region {name} is to be given before the chain is started"),
            Error::Ring { queue, wanted, given } => {
                write!(f, "recycled queue {queue} takes {wanted} blocks, and its ring has {given}")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<chain::Error> for Error {
    fn from(error: chain::Error) -> Error {
        Error::Chain(error)
    }
}

impl From<RdmaError> for Error {
    fn from(error: RdmaError) -> Error {
        Error::Rdma(error)
    }
}

/// A queue that was made.
struct Queue {
    qp: Qp,
    code: Region,
    sends: Cq,
    receives: Cq,
}

/// A chain in a NIC.
pub struct Loaded {
    chain: Chain,
    layout: Layout,
    queues: Vec<Queue>,
    regions: Vec<Option<Region>>,
    addresses: Addresses,
    given: Vec<bool>,
}

impl Loaded {
    /// Makes a chain's queues and regions, in a domain of its own for its keys. A chain in which a client
    /// could decide about more than operands, addresses and lengths is refused.
    pub async fn create(rdma: &Rdma, pd: &Pd, chain: Chain) -> Result<Loaded, Error> {
        let layout = Layout::of(&chain)?;
        chain::check(&chain)?;
        let (mut queues, mut regions): (Vec<Queue>, _) = (Vec::new(), Vec::new());
        let mut addresses = Addresses::default();
        for (q, queue) in chain.queues.iter().enumerate() {
            let id = QueueId(q as u16);
            let own: &[Queue] = &queues;
            let sends = match queue.completes_with {
                Some(With::Sends(other)) => own[usize::from(other.0)].sends.clone(),
                Some(With::Receives(other)) => own[usize::from(other.0)].receives.clone(),
                None => completions(rdma, layout.completions(&chain, id), queue.recycled).await?,
            };
            let receives = completions(rdma, queue.receives.len() as u32, queue.managed_receives).await?;
            let entries = queue.receives.iter().map(Vec::len).max().unwrap_or(1);
            let caps = Caps {
                max_send_wr: layout.ring(id),
                max_recv_wr: queue.receives.len().max(1) as u32,
                max_recv_sge: entries.max(1) as u32,
                ..Caps::default()
            };
            let cqs = (&sends, &receives);
            let managed = if queue.managed_receives { QpFlags::MANAGED_RECV } else { QpFlags::empty() };
            let flags = queue.order.flags() | managed;
            let qp = pd.create_qp_with(QpType::Rc, cqs, None, caps, flags).await?;
            let code = qp.code(CODE).await?;
            let ring = (code.len() / chain::BLOCK as u64) as u32;
            if queue.recycled && ring != layout.ring(id) {
                let (queue, wanted) = (queue.name.clone(), layout.ring(id));
                return Err(Error::Ring { queue, wanted, given: ring });
            }
            let number = qp.number().get();
            addresses.queues.push((address(&code), number, sends.number(), receives.number()));
            queues.push(Queue { qp, code, sends, receives });
        }
        for region in &chain.regions {
            let made = match region.memory {
                Memory::New { len, access } => Some(pd.region(len, access | Access::LOCAL_WRITE).await?),
                Memory::Given => None,
            };
            addresses.regions.push(made.as_ref().map(address).unwrap_or_default());
            regions.push(made);
        }
        let given = regions.iter().map(Option::is_some).collect();
        Ok(Loaded { chain, layout, queues, regions, addresses, given })
    }

    /// Bytes that a chain takes of a host's memory: rings, receives, completions, and regions of its own.
    pub fn memory_of(chain: &Chain) -> Result<u64, Error> {
        let layout = Layout::of(chain)?;
        let queues = chain.queues.iter().enumerate().map(|(q, queue)| {
            let id = QueueId(q as u16);
            let entries = queue.receives.iter().map(Vec::len).max().unwrap_or(1).max(1) as u64;
            let receives = (queue.receives.len() as u64).next_power_of_two() * entries * SEGMENT;
            let completions = u64::from(layout.completions(chain, id)) + queue.receives.len() as u64;
            (u64::from(layout.ring(id)) + completions) * chain::BLOCK as u64 + receives
        });
        let regions = chain.regions.iter().map(|region| match region.memory {
            Memory::New { len, .. } => len,
            Memory::Given => 0,
        });
        Ok(queues.chain(regions).sum())
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Where its WQEs stand.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Addresses, keys and numbers.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The queue pair of a queue. The caller connects that of a client.
    pub fn qp(&self, queue: QueueId) -> &Qp {
        &self.queues[usize::from(queue.0)].qp
    }

    /// A queue's WQEs as memory.
    pub fn code(&self, queue: QueueId) -> &Region {
        &self.queues[usize::from(queue.0)].code
    }

    /// Where a queue's sends complete.
    pub fn completions(&self, queue: QueueId) -> &Cq {
        &self.queues[usize::from(queue.0)].sends
    }

    /// Where a queue's receives complete.
    pub fn receives(&self, queue: QueueId) -> &Cq {
        &self.queues[usize::from(queue.0)].receives
    }

    /// A region that the loader made.
    pub fn region(&self, region: RegionId) -> Option<&Region> {
        self.regions[usize::from(region.0)].as_ref()
    }

    /// What the loader writes into a region that it makes, before the chain is started.
    pub fn data(&self, region: RegionId) -> Option<(Address, Vec<u8>)> {
        let made = self.region(region)?;
        let mut out = vec![0; made.len() as usize];
        for (at, bytes) in &self.chain.regions[usize::from(region.0)].data {
            let bytes = chain::data(&self.chain, &self.layout, &self.addresses, bytes);
            out[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Some((address(made), out))
    }

    /// Says where a region is that the loader does not make: a peer's, or one of the caller's.
    pub fn give(&mut self, region: RegionId, address: Address) {
        let at = usize::from(region.0);
        self.addresses.regions[at] = address;
        self.given[at] = true;
    }

    /// Connects the queues that lead to this host itself.
    pub async fn connect(&self, how: &Connect) -> Result<(), Error> {
        for (queue, made) in self.chain.queues.iter().zip(&self.queues) {
            if queue.peer == Peer::Itself {
                made.qp.connect_to_itself(how).await?;
            }
        }
        Ok(())
    }

    /// Writes data and WQEs, posts receives, and rings the doorbells: those of managed queues first, which
    /// starts nothing.
    pub async fn start(&self) -> Result<(), Error> {
        self.prepare().await?;
        self.ring(SendOrder::Cross).await?;
        self.ring(SendOrder::Own).await
    }

    /// As [`Loaded::start`], but nothing runs yet.
    pub async fn prepare(&self) -> Result<(), Error> {
        if let Some(at) = self.given.iter().position(|given| !given) {
            return Err(Error::NotGiven(self.chain.regions[at].name.clone()));
        }
        for (region, made) in self.chain.regions.iter().zip(&self.regions) {
            let Some(made) = made else { continue };
            for (at, bytes) in &region.data {
                let bytes = chain::data(&self.chain, &self.layout, &self.addresses, bytes);
                made.write(*at, &bytes).await?;
            }
        }
        let code = chain::encode(&self.chain, &self.layout, &self.addresses);
        for (made, bytes) in self.queues.iter().zip(&code) {
            if !bytes.is_empty() {
                made.code.write(0, bytes).await?;
            }
        }
        for (queue, made) in self.chain.queues.iter().zip(&self.queues) {
            let receive = |pieces: &Vec<chain::Piece>| RecvRequest {
                wr_id: 0,
                pieces: pieces.iter().map(|piece| self.sge(*piece)).collect(),
            };
            let list: Vec<RecvRequest> = queue.receives.iter().map(receive).collect();
            if !list.is_empty() {
                made.qp.post_recv(list).await?;
            }
        }
        self.ring(SendOrder::Managed).await
    }

    /// Rings the doorbells of all queues of an order.
    pub async fn ring(&self, order: SendOrder) -> Result<(), Error> {
        for (q, (queue, made)) in self.chain.queues.iter().zip(&self.queues).enumerate() {
            let blocks = self.layout.blocks(&self.chain, QueueId(q as u16));
            if queue.order == order && blocks > 0 {
                made.qp.doorbell(blocks).await?;
            }
        }
        Ok(())
    }

    /// A piece of memory as a work request names it.
    pub fn sge(&self, piece: chain::Piece) -> Sge {
        let Address { addr, lkey, .. } = self.address(piece.place);
        Sge { addr, len: piece.len, lkey }
    }

    /// Where a place is.
    pub fn address(&self, place: Place) -> Address {
        chain::address(&self.chain, &self.layout, &self.addresses, place)
    }
}

/// A completion queue for so many completions, or for any number that nobody polls.
async fn completions(rdma: &Rdma, entries: u32, endless: bool) -> Result<Cq, RdmaError> {
    match endless {
        // One that watches it finds an error and all that is flushed behind it.
        true => rdma.create_endless_cq(entries + SPARE).await,
        false => rdma.create_cq(entries + SPARE).await,
    }
}

fn address(region: &Region) -> Address {
    Address { addr: region.addr(), lkey: region.lkey(), rkey: region.remote().rkey }
}
