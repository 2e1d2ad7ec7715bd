//! Lookups and sets, over all replicas.

use super::layout::{KEY_MAX, VALUE_MAX, hash, record_len};
use super::lookup::{Found, Met, TORN_TRIES, Trouble, Which, look_up};
use super::protocol::{Call, Reply};
use super::replica::{Failure, Link, Part, Replica, ReplicaCounters, ReplicaInit, call, count};
use adverb_grants::{Error as GrantsError, Identity};
use adverb_rdma::Rdma;
use adverb_rma::{Error as RmaError, Memory, Programs, Rma};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Replicas of a cache at most.
pub const REPLICAS_MAX: usize = 16;

/// How a client is made.
pub struct ClientConfig {
    /// The replicas; 1 to 16.
    pub replicas: Vec<ReplicaInit>,
    /// This side's certificate.
    pub identity: Identity,
    /// Lookups at once at most; each has memory for the longest record of the replicas.
    pub lookups: usize,
}

/// Why a lookup found out nothing.
#[derive(Debug)]
pub enum GetError {
    /// A key that cannot be.
    Key(usize),
    /// As many lookups as the client may have are going on.
    Busy(usize),
    /// The NIC has no memory for it.
    Nic(RmaError),
    /// No replica answered: which, and why.
    Unavailable(Vec<(String, String)>),
}

/// Why a value was set nowhere.
#[derive(Debug)]
pub enum SetError {
    /// All replicas that could be reached refused it, in these words.
    Refused(String),
    /// None could be reached: which, and why.
    Unavailable(Vec<(String, String)>),
}

/// Where a value was set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its version.
    pub version: u64,
    /// Replicas that have it, or a higher version.
    pub replicas: usize,
    /// Those that have not, and why. They may serve an older value.
    pub missing: Vec<(String, String)>,
}

fn list(f: &mut fmt::Formatter<'_>, replicas: &[(String, String)]) -> fmt::Result {
    for (at, (replica, why)) in replicas.iter().enumerate() {
        write!(f, "{}{replica}: {why}", if at > 0 { "; " } else { "" })?;
    }
    Ok(())
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GetError::Key(len) => write!(f, "a key of {len} bytes: give 1 to {KEY_MAX}"),
            GetError::Busy(limit) => write!(f, "{limit} lookups at once already, as many as were asked for"),
            GetError::Nic(error) => write!(f, "the NIC refused: {error}"),
            GetError::Unavailable(replicas) => {
                f.write_str("no replica answered: ")?;
                list(f, replicas)
            }
        }
    }
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::Refused(why) => write!(f, "refused: {why}"),
            SetError::Unavailable(replicas) => {
                f.write_str("no replica could be reached: ")?;
                list(f, replicas)
            }
        }
    }
}

impl std::error::Error for GetError {}
impl std::error::Error for SetError {}

/// Memory of lookups that go on, or may.
struct Lanes {
    free: Vec<Memory>,
    used: usize,
    /// Counts lookups.
    number: u64,
}

/// Memory of one lookup. One that was given up may still be written to; its memory is not used again.
struct Lane<'a> {
    client: &'a Client,
    /// The lookup is a native program of its own.
    rdma: Rdma,
    programs: Rc<Programs>,
    memory: Memory,
    /// The same memory, as the program knows it.
    place: adverb_rdma::Memory,
    /// Of the lookup.
    number: u64,
    /// Nothing is under way to this memory.
    idle: bool,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut lanes = self.client.lanes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lanes.used -= 1;
        if self.idle {
            lanes.free.push(self.memory.clone());
        }
        drop(lanes);
        self.client.replicas.iter().for_each(|replica| replica.forget(self.number));
    }
}

/// A client of a cache.
pub struct Client {
    rma: Arc<Rma>,
    replicas: Vec<Arc<Replica>>,
    lanes: Mutex<Lanes>,
    limit: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    /// Connects to all replicas. Those that cannot be reached are tried again in the background.
    pub fn open(rma: Arc<Rma>, config: ClientConfig) -> Result<Client, GrantsError> {
        let count = config.replicas.len();
        if count == 0 || count > REPLICAS_MAX {
            return Err(GrantsError::Policy(format!("{count} replicas: give 1 to {REPLICAS_MAX}")));
        }
        let identity = Arc::new(config.identity);
        let mut client = Client {
            rma: rma.clone(),
            replicas: Vec::new(),
            lanes: Mutex::new(Lanes { free: Vec::new(), used: 0, number: 0 }),
            limit: config.lookups,
            threads: Vec::new(),
        };
        for init in config.replicas {
            let replica = Arc::new(Replica::new(init, identity.clone()));
            client.threads.push(replica.keep(&rma)?);
            client.replicas.push(replica);
        }
        Ok(client)
    }

    /// The NIC.
    pub fn rma(&self) -> &Arc<Rma> {
        &self.rma
    }

    /// Each replica, whether lookups use it, and what was counted.
    pub fn replicas(&self) -> impl Iterator<Item = (&str, bool, ReplicaCounters)> {
        self.replicas.iter().map(|replica| (&*replica.to, replica.link().is_ok(), replica.counts.read()))
    }

    /// How many reads of each replica congestion control lets be outstanding at once, in operations of 4 KB;
    /// `None` for one that is down.
    pub fn read_windows(&self) -> Vec<Option<f64>> {
        let local = self.rma.read_windows(self.rma.address()).0;
        let allowed = |replica: &Arc<Replica>| Some(replica.read_window(&self.rma)?.min(local));
        self.replicas.iter().map(allowed).collect()
    }

    /// The value of a key, or `None` when no replica that answers has it.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, GetError> {
        if key.is_empty() || key.len() > KEY_MAX {
            return Err(GetError::Key(key.len()));
        }
        let mut lane = self.lane()?;
        let first = hash(0, key) as usize;
        let (mut missed, mut failed) = (false, Vec::new());
        // Those that are up; and when none of them answers, all that are connected.
        for up in [true, false] {
            for turn in 0..self.replicas.len() {
                let replica = &self.replicas[(first + turn) % self.replicas.len()];
                let link = if up { replica.link() } else { replica.any_link() };
                let others =
                    || self.replicas.iter().any(|other| other.to != replica.to && other.is_trusted());
                let give_up = up && others();
                let found = match link {
                    Ok(link) => self.get_from(replica, &link, &mut lane, key, give_up).await,
                    Err(failure) => Err(failure),
                };
                match found {
                    Ok(Found::Hit(value)) => return Ok(Some(value)),
                    Ok(Found::Miss) => missed = true,
                    Err(failure) if !up => {
                        failed.push((replica.to.clone(), failure.to_string()));
                    }
                    Err(_) => {}
                }
            }
            if missed {
                return Ok(None);
            }
        }
        Err(GetError::Unavailable(failed))
    }

    fn lane(&self) -> Result<Lane<'_>, GetError> {
        let (free, number) = {
            let mut lanes = self.lanes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if lanes.used == self.limit {
                return Err(GetError::Busy(self.limit));
            }
            lanes.used += 1;
            lanes.number += 1;
            (lanes.free.pop(), lanes.number)
        };
        match free.map_or_else(|| self.memory(), Ok) {
            Ok(memory) => {
                let programs = Programs::new(self.rma.clone());
                let rdma = Rdma::new(programs.clone());
                let place = programs.adopt(&rdma, memory.clone());
                Ok(Lane { client: self, rdma, programs, memory, place, number, idle: true })
            }
            Err(error) => {
                self.lanes.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).used -= 1;
                Err(GetError::Nic(error))
            }
        }
    }

    /// Memory for a lookup.
    fn memory(&self) -> Result<Memory, RmaError> {
        self.rma.allocate(record_len(KEY_MAX, VALUE_MAX))
    }

    /// Reads into a lane's memory, and copies it out.
    async fn read(
        &self,
        replica: &Replica,
        part: &Part,
        lane: &mut Lane<'_>,
        (offset, len): (u64, usize),
        give_up: bool,
    ) -> Result<Vec<u8>, Failure> {
        // Should this future be dropped while it waits.
        lane.idle = false;
        let lookup = give_up.then_some(lane.number);
        let read = replica.read(part, offset, (&lane.place, len), lookup).await;
        if matches!(read, Err(Failure::Abandoned)) {
            lane.memory = self.memory().map_err(|error| Failure::Operation(error.to_string()))?;
            lane.place = lane.programs.adopt(&lane.rdma, lane.memory.clone());
        }
        lane.idle = true;
        read?;
        lane.place.read(0, len).await.map_err(|error| Failure::Operation(error.to_string()))
    }

    async fn get_from(
        &self,
        replica: &Replica,
        link: &Link,
        lane: &mut Lane<'_>,
        key: &[u8],
        give_up: bool,
    ) -> Result<Found, Failure> {
        let met = |what| {
            count(match what {
                Met::Torn => &replica.counts.torn,
                Met::Collision => &replica.counts.collisions,
            });
        };
        let read = async |which, offset, len| {
            let part = if which == Which::Index { &link.index } else { &link.data };
            self.read(replica, part, lane, (offset, len), give_up).await
        };
        let found = look_up(&link.layout, key, met, read).await.map_err(|trouble| match trouble {
            Trouble::Read(failure) => failure,
            Trouble::Torn => Failure::Torn,
        })?;
        count(match found {
            Found::Hit(_) => &replica.counts.hits,
            Found::Miss => &replica.counts.misses,
        });
        Ok(found)
    }

    /// Sets a value, on all replicas that can be reached. Waits for them; not for use in an async task.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<Stored, SetError> {
        let (mut version, mut replicas, mut missing, mut refused) = (None, 0, Vec::new(), None);
        for replica in &self.replicas {
            let answered = replica.any_link().map_err(|failure| failure.to_string()).and_then(|link| {
                call(&link.session, &Call::Set { key, value, version }).map_err(|error| {
                    match error.refusal() {
                        Some(refusal) => refusal.to_string(),
                        None => error.to_string(),
                    }
                })
            });
            match answered {
                Ok(Reply::Stored { version: stored }) => {
                    version.get_or_insert(stored);
                    replicas += 1;
                }
                // Another client was quicker with a higher version. It is the value from now on.
                Ok(Reply::Superseded { .. }) => replicas += 1,
                Ok(Reply::Layout(_)) => {
                    missing.push((replica.to.clone(), "an answer to another call".to_owned()))
                }
                Err(why) => {
                    if replica.any_link().is_ok() {
                        refused.get_or_insert_with(|| why.clone());
                    }
                    missing.push((replica.to.clone(), why));
                }
            }
        }
        match (version, refused) {
            (Some(version), _) => Ok(Stored { version, replicas, missing }),
            (None, Some(why)) => Err(SetError::Refused(why)),
            (None, None) => Err(SetError::Unavailable(missing)),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.replicas.iter().for_each(|replica| replica.stop());
        for thread in self.threads.drain(..) {
            // A panic in it was reported by itself.
            let _ = thread.join();
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Down(why) | Failure::Operation(why) => f.write_str(why),
            Failure::Abandoned => f.write_str("another operation on it failed just now"),
            Failure::Torn => {
                write!(f, "its records were overwritten {TORN_TRIES} times while they were read")
            }
        }
    }
}
