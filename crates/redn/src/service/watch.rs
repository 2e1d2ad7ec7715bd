//! What a client's chain does, counted for each client; and, where chains are audited, what it should not.
//!
//! Counters come from the NIC's own view of the chain's queues, and cost nothing while gets go on. An audited
//! chain signals each WQE: its completions say which of them failed and why, and a client whose chain failed,
//! whose own request was refused, or whose messages find no receive too often is found.

use super::chain::{Lookup, STATE, answered};
use crate::chain::{QueueId, RegionId};
use crate::load::Loaded;
use adverb_rdma::{Cq, Error, Gid, QpState, Status};
use std::fmt;

/// Completions that are taken at one look from one queue: what comes meanwhile waits for the next one.
const TAKEN_MAX: u64 = 4096;
/// Completions that are taken by one call.
const BATCH: usize = 64;

/// What one client's chain has done, or what those of all clients have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientCounters {
    /// Messages that were answered.
    pub answered: u64,
    /// Blocks of WQEs that its queues have executed.
    pub blocks: u64,
    /// Messages that found no receive: they came too early, and are sent again.
    pub not_ready: u64,
    /// Chains with a queue that has failed: 0 or 1 for a client.
    pub failed: u64,
    /// Completions that an audit has taken.
    pub audited: u64,
}

impl ClientCounters {
    /// Adds another's.
    pub fn add(&mut self, other: &ClientCounters) {
        self.answered += other.answered;
        self.blocks += other.blocks;
        self.not_ready += other.not_ready;
        self.failed += other.failed;
        self.audited += other.audited;
    }

    /// With their names.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let ClientCounters { answered, blocks, not_ready, failed, audited } = *self;
        let counts = [answered, blocks, not_ready, failed, audited];
        let names = ["answered", "blocks", "not_ready", "failed", "audited"];
        std::array::from_fn(|at| (names[at], counts[at]))
    }
}

/// What a client did that it should not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// A WQE of its chain failed.
    Failed {
        /// The queue.
        queue: String,
        /// How. A request of a queue to its own NIC, once refused, is flushed with all others: `None`.
        status: Option<Status>,
    },
    /// Its queue pair has failed without a WQE that did: the NIC has refused a request of the client's own.
    Refused,
    /// So many of its messages found no receive since the last look.
    Flood(u64),
}

/// Which client did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its number.
    pub client: u32,
    /// Its address.
    pub gid: Gid,
    /// What.
    pub why: Why,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = std::net::Ipv6Addr::from(self.gid.0);
        match address.to_ipv4_mapped() {
            Some(address) => write!(f, "client {} at {address}: ", self.client)?,
            None => write!(f, "client {} at {address}: ", self.client)?,
        }
        match &self.why {
            Why::Failed { queue, status: Some(status) } => {
                write!(f, "queue {queue} of its chain failed: {status:?}")
            }
            Why::Failed { queue, status: None } => {
                write!(f, "queue {queue} of its chain failed: the NIC has refused what it asked for")
            }
            Why::Refused => f.write_str("the NIC has refused a request of its own"),
            Why::Flood(messages) => write!(f, "{messages} messages at once came before their turn"),
        }
    }
}

/// One queue, as it was at the last look.
#[derive(Clone, Copy, Default)]
struct Seen {
    next: u32,
    not_ready: u32,
    failed: bool,
}

/// Who looks at one client's chain.
pub struct Watch {
    queues: Vec<Seen>,
    counters: ClientCounters,
    slots: u32,
    client: QueueId,
    state: RegionId,
}

impl Watch {
    /// At a chain of this shape, which has not started.
    pub fn new(lookup: &Lookup, slots: u32) -> Watch {
        let queues = vec![Seen::default(); lookup.chain.queues.len()];
        let state = lookup.chain.regions.iter().position(|region| region.name == STATE);
        let state = RegionId(state.unwrap_or_default() as u16);
        let (client, counters) = (lookup.client, ClientCounters::default());
        Watch { queues, counters, slots, client, state }
    }

    /// What it has counted up to now.
    pub async fn look(&mut self, loaded: &Loaded) -> Result<ClientCounters, Error> {
        let mut failed = false;
        for (q, seen) in self.queues.iter_mut().enumerate() {
            let live = loaded.qp(QueueId(q as u16)).live().await?;
            self.counters.blocks += u64::from(live.next.wrapping_sub(seen.next));
            self.counters.not_ready += u64::from(live.not_ready.wrapping_sub(seen.not_ready));
            let has_failed = live.state == QpState::Err;
            failed |= has_failed;
            *seen = Seen { next: live.next, not_ready: live.not_ready, failed: has_failed };
        }
        self.counters.failed = failed.into();
        if let Some(state) = loaded.region(self.state) {
            self.counters.answered = answered(state.load(0).await?, self.slots);
        }
        Ok(self.counters)
    }

    /// Takes an audited chain's completions; what its client should not have done, if so many of its messages
    /// may find no receive between two looks.
    pub async fn audit(&mut self, loaded: &Loaded, not_ready_max: u64) -> Result<Option<Why>, Error> {
        let before = self.counters.not_ready;
        let counters = self.look(loaded).await?;
        let (mut why, mut followed) = (None, None);
        for (q, queue) in loaded.chain().queues.iter().enumerate() {
            let id = QueueId(q as u16);
            let own = queue.completes_with.is_none().then(|| loaded.completions(id));
            let receives = (!queue.receives.is_empty()).then(|| loaded.receives(id));
            for cq in own.into_iter().chain(receives) {
                let taken = take(cq).await?;
                self.counters.audited += taken.count;
                let failed = |status| Why::Failed { queue: queue.name.clone(), status: Some(status) };
                why = why.or(taken.failed.map(failed));
                followed = followed.or(taken.followed.map(failed));
            }
        }
        // A WAIT fails when what it waits for is flushed, because the client's own request was refused.
        let refused = self.queues[usize::from(self.client.0)].failed.then_some(Why::Refused);
        let mut queues = loaded.chain().queues.iter().zip(&self.queues);
        let alone = queues.find(|(_, seen)| seen.failed).filter(|_| followed.is_none());
        let alone = alone.map(|(queue, _)| Why::Failed { queue: queue.name.clone(), status: None });
        let failed = why.or(refused).or(alone).or(followed);
        let flood = counters.not_ready - before;
        Ok(failed.or((flood > not_ready_max).then_some(Why::Flood(flood))))
    }
}

/// What was taken from a completion queue.
#[derive(Default)]
struct Taken {
    count: u64,
    /// The first that failed.
    failed: Option<Status>,
    /// The first that failed in a way that another one's failure can bring about.
    followed: Option<Status>,
}

/// Takes completions. What is flushed has not failed itself.
async fn take(cq: &Cq) -> Result<Taken, Error> {
    let mut taken = Taken::default();
    while taken.count < TAKEN_MAX {
        let batch = cq.poll(BATCH).await?;
        for completion in &batch {
            match completion.status {
                Status::Success | Status::WorkRequestFlushed => {}
                Status::LocalQpOperation => taken.followed = taken.followed.or(Some(completion.status)),
                status => taken.failed = taken.failed.or(Some(status)),
            }
        }
        taken.count += batch.len() as u64;
        if batch.len() < BATCH {
            break;
        }
    }
    Ok(taken)
}
