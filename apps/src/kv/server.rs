//! A replica: a store, the regions that clients read, and the port that they call.

use super::protocol::{Call, Reply};
use super::store::{Store, StoreConfig, StoreCounters};
use adverb_grants::{Error as GrantsError, Identity, Owner, Policy, Refusal, Rotation};
use adverb_rma::{Error as RmaError, Rights, Rma};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

/// Name of the region with the index.
pub const INDEX: &str = "kv-index";
/// Name of the region with the log.
pub const DATA: &str = "kv-data";

/// How a replica is started.
pub struct ServerConfig {
    /// Sizes.
    pub store: StoreConfig,
    /// Where clients call it. Port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Its certificate.
    pub identity: Identity,
    /// Who may read the regions `kv-index` and `kv-data`, and call it to set values.
    pub policy: Policy,
}

/// Why a replica did not start.
#[derive(Debug)]
pub enum ServerError {
    /// Sizes that do not go together.
    Config(String),
    /// The NIC.
    Nic(RmaError),
    /// The port, the certificate.
    Grants(GrantsError),
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerError::Config(text) => f.write_str(text),
            ServerError::Nic(error) => write!(f, "the NIC refused: {error}"),
            ServerError::Grants(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ServerError {}

impl From<RmaError> for ServerError {
    fn from(error: RmaError) -> Self {
        ServerError::Nic(error)
    }
}

impl From<GrantsError> for ServerError {
    fn from(error: GrantsError) -> Self {
        ServerError::Grants(error)
    }
}

/// A replica that serves until it is dropped.
pub struct Server {
    store: Arc<Mutex<Store>>,
    owner: Arc<Owner>,
    server: adverb_grants::Server,
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Server {
    /// Starts it on this NIC.
    pub fn start(rma: &Rma, config: &ServerConfig) -> Result<Server, ServerError> {
        config.store.check().map_err(ServerError::Config)?;
        let [a, b, c, d, e, f, g, h, ..] = *Rma::random_key()?.expose();
        let store = Store::new(rma, &config.store, u64::from_le_bytes([a, b, c, d, e, f, g, h]))?;
        let (index, log) = store.memories();
        let regions = [
            (INDEX, index.register(0..index.len(), Rights::READ)?),
            (DATA, log.register(0..log.len(), Rights::READ)?),
        ];
        let store = Arc::new(Mutex::new(store));
        let called = store.clone();
        let handler = move |_: &str, bytes: &[u8]| handle(&called, bytes);
        let owner = Owner::new(rma.address(), config.policy.clone(), Some(Box::new(handler)));
        for (name, region) in regions {
            owner.add(name, region).map_err(GrantsError::from)?;
        }
        let server = adverb_grants::Server::start(config.listen, &config.identity, owner.clone())?;
        Ok(Server { store, owner, server })
    }

    /// Where it is called.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Gives both regions other keys, of which clients are told ahead.
    pub fn rotate(&self) -> Result<[Rotation; 2], Refusal> {
        Ok([self.owner.rotate(INDEX)?, self.owner.rotate(DATA)?])
    }

    /// What has happened to its store.
    pub fn counters(&self) -> StoreCounters {
        lock(&self.store).counters()
    }
}

fn handle(store: &Mutex<Store>, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let call: Call<'_> = match postcard::take_from_bytes(bytes) {
        Ok((call, [])) => call,
        Ok(_) | Err(_) => {
            return Err("a call that this cache does not know; use the same version of adverb".to_owned());
        }
    };
    let reply = match call {
        Call::Layout => Reply::Layout(lock(store).layout()),
        Call::Set { key, value, version } => match lock(store).set(key, value, version, clock()) {
            Ok(Ok(version)) => Reply::Stored { version },
            Ok(Err(version)) => Reply::Superseded { version },
            Err(refused) => return Err(refused.to_string()),
        },
    };
    postcard::to_stdvec(&reply).map_err(|e| e.to_string())
}

/// Microseconds since 1970: versions of different servers go by it.
#[expect(clippy::disallowed_methods, reason = "servers have no other order in common")]
fn clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64)
}
