//! Native services of StaR on this host ([`adverb_nic::service`]): requests and replies without connections,
//! for a program with a loop of its own.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use adverb_io::star::{Desk, ServiceConfig};
//! let desk = Desk::open(&adverb_io::Settings::from_env()?)?;
//! let service = desk.serve(&ServiceConfig::default())?;
//! println!("{} {}", desk.address(), service.number);
//! loop {
//!     desk.wait(|| service.answer(|request, reply| {
//!         reply[..request.len()].copy_from_slice(request);
//!         request.len()
//!     }) > 0, None);
//! }
//! # }
//! ```

use crate::error::OpenError;
use crate::host::Host;
use crate::settings::Settings;
use adverb_nic::{Error, Seed};
use adverb_os::sys;
use adverb_wire::{Gid, Instant, QpNumber};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration as StdDuration;

pub use adverb_nic::Mtu;
pub use adverb_nic::service::{ClientConfig, ClientId, Outcome, Reached, Reply, ServiceConfig, ServiceId};

/// Requests that are answered in one call.
const BURST: usize = 256;

/// Wakes the thread that waits at a [`Desk`].
#[derive(Clone)]
pub struct Waker {
    thread: Thread,
    stopped: Arc<AtomicBool>,
}

impl Waker {
    /// Has the desk's thread look again.
    pub fn wake(&self) {
        self.thread.unpark();
    }

    /// Asks the desk's thread to end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// The NIC, for the thread that opened it.
pub struct Desk {
    host: Arc<Host>,
    waker: Waker,
}

impl Desk {
    /// Opens the process's NIC.
    pub fn open(settings: &Settings) -> Result<Desk, OpenError> {
        if settings.star_registry.is_some() {
            return Err(OpenError::RegistryUse { what: "a native service" });
        }
        let host = Host::open(settings, Box::new(|_| {}))?;
        let waker = Waker { thread: std::thread::current(), stopped: Arc::default() };
        let hears = waker.thread.clone();
        host.on_frames(Box::new(move || hears.unpark()));
        Ok(Desk { host, waker })
    }

    /// For another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The NIC.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// The NIC's address.
    pub fn address(&self) -> Gid {
        self.host.device().gids[0]
    }

    /// Opens a service.
    pub fn serve(&self, config: &ServiceConfig) -> Result<Service, Error> {
        let seed = random()?;
        let (id, number) = self.host.control(|nic, now| {
            let id = nic.open_service(now, config, seed)?;
            nic.service_number(id).map(|number| (id, number))
        })?;
        Ok(Service { host: self.host.clone(), id, number })
    }

    /// Opens a client of a service; [`Desk::reached`] says when it may ask.
    pub fn client(&self, config: &ClientConfig) -> Result<ClientId, Error> {
        let seed = random()?;
        self.host.control(|nic, now| nic.open_client(now, config, || seed))
    }

    /// Sends a request.
    pub fn request(&self, client: ClientId, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.host.post(|nic, now| nic.request(now, client, tag, bytes))
    }

    /// What has become of hellos and requests: `take` is called with each, and a reply's bytes.
    pub fn reached(&self, mut take: impl FnMut(Reached, &[u8])) -> usize {
        let mut bytes = [0; 4096];
        let mut count = 0;
        self.host.post(|nic, _| {
            while let Some(reached) = nic.next_reached(&mut bytes) {
                let len = if let Outcome::Reply(len) = reached.outcome { len } else { 0 };
                take(reached, &bytes[..len]);
                count += 1;
            }
        });
        count
    }

    /// Whether something has become of a hello or a request.
    pub fn has_reached(&self) -> bool {
        self.host.inspect(|nic| nic.has_reached())
    }

    /// Makes rounds of the NIC until `done` says so, or until the time has come. Sleeps when there is nothing
    /// to do. False when it was asked to [stop](Waker::stop).
    pub fn wait(&self, mut done: impl FnMut() -> bool, until: Option<Instant>) -> bool {
        loop {
            self.host.look();
            if self.waker.stopped.load(Ordering::Acquire) {
                return false;
            }
            if done() {
                return true;
            }
            let now = self.host.now();
            if until.is_some_and(|until| until <= now) {
                return true;
            }
            // What comes from here on wakes the thread, so that it does not fall asleep over it.
            self.host.rest();
            if done() {
                return true;
            }
            match until {
                None => std::thread::park(),
                Some(until) => {
                    std::thread::park_timeout(StdDuration::from_nanos(until.since(now).as_ns()));
                }
            }
        }
    }
}

/// A service of this process.
pub struct Service {
    host: Arc<Host>,
    id: ServiceId,
    /// What clients name, beside the address.
    pub number: QpNumber,
}

impl Service {
    /// Has `program` answer requests that wait: it is given a request's bytes, and where its reply goes, and
    /// gives the reply's length. How many there were. A reply that has no buffer, or comes too late, is lost,
    /// which its client is told.
    pub fn answer(&self, mut program: impl FnMut(&[u8], &mut [u8]) -> usize) -> usize {
        let (mut request, mut reply) = ([0; 4096], [0; 4096]);
        self.host.post(|nic, now| {
            for count in 0..BURST {
                let Ok(Some((len, to))) = nic.next_request(now, self.id, &mut request) else {
                    return count;
                };
                let len = program(&request[..len], &mut reply).min(reply.len());
                // Whoever asked hears of it by its own clock.
                let _ = nic.reply(now, self.id, &to, &reply[..len]);
            }
            BURST
        })
    }

    /// The oldest request that waits: its length, and whom to reply to, at any time, from any thread.
    pub fn next(&self, out: &mut [u8]) -> Result<Option<(usize, Reply)>, Error> {
        self.host.post(|nic, now| nic.next_request(now, self.id, out))
    }

    /// Replies.
    pub fn reply(&self, to: &Reply, bytes: &[u8]) -> Result<(), Error> {
        self.host.post(|nic, now| nic.reply(now, self.id, to, bytes))
    }

    /// Bytes that the service has allocated: the same for any number of clients.
    pub fn bytes(&self) -> Result<usize, Error> {
        self.host.post(|nic, _| nic.service_bytes(self.id))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It is there, unless the NIC is not.
        let _ = self.host.control(|nic, _| nic.close_service(self.id));
    }
}

fn random() -> Result<Seed, Error> {
    sys::random_bytes::<16>().map(Seed::from).map_err(|_| Error::Unsupported("drawing random bytes here"))
}
