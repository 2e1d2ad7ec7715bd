//! The client's side: a connection to an owner, and the leases that it keeps alive.
//!
//! ```text
//! Session ── calls ──────────────► owner      one question after the other
//!    ├─ renews leases on the same connection, long before they end
//!    └─ watches on another one: is told of each next key before it is in force
//! Held: the key to use now. A refused one is exchanged for the one that was told, without a question.
//! ```

use crate::clock::now;
use crate::error::{Error, Refusal};
use crate::wire::{self, ALPN, Answer, Ask, Issued, Known, MAX_HELD, RegionInfo, Request, Rotation, Secret};
use adverb_nic::one_rma::Rights;
use adverb_os::signals::library_thread;
use adverb_rdma::Grant;
use adverb_tls::{ClientStream, Connector, Identity};
use adverb_wire::one_rma::Op;
use std::fmt;
use std::io;
use std::net::{IpAddr, Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For a connection, and for an answer. Rotations take [`TELL_TIME`](crate::TELL_TIME) of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// A question for news waits so long at the owner.
const WATCH: Duration = Duration::from_secs(1);
/// Connections are not idle for longer.
const RENEW_MAX: Duration = Duration::from_secs(120);
/// After a renewal that failed.
const RENEW_AGAIN: Duration = Duration::from_millis(500);

/// A connection to an owner.
struct Connection {
    stream: ClientStream,
}

impl Connection {
    fn open(to: &str, name: &str, connector: &Connector) -> Result<Connection, Error> {
        let unreached = |e| Error::Connect(to.to_owned(), e);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address has this name");
        for address in to.to_socket_addrs().map_err(unreached)? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(tcp) => {
                    return Ok(Connection { stream: connector.connect(tcp, name, PATIENCE)? });
                }
                Err(error) => last = error,
            }
        }
        Err(unreached(last))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        wire::send(&mut self.stream, request)?;
        wire::receive::<Answer, _>(&mut self.stream, |_| ())?.granted()
    }
}

const OTHER: Error = Error::Protocol("an answer to another question");

/// A lease and its keys.
struct Lease {
    number: u64,
    rights: Rights,
    grant: Arc<Grant>,
    /// The owner's number of that key. A key that a third party gave the region has its predecessor's.
    epoch: u64,
    /// Counts the keys that were used.
    turn: u64,
    /// Told ahead.
    next: Option<(u64, Arc<Grant>)>,
    expires: Instant,
    /// Counted from its last renewal.
    ttl: Duration,
    renew_at: Instant,
    /// Its key was refused, and the owner is being asked.
    asked: bool,
    /// Why it could not be renewed.
    refused: Option<Refusal>,
}

impl Lease {
    /// Takes over what the owner issued.
    fn take(&mut self, at: Instant, issued: &Issued) -> Result<(), Error> {
        let grant = Grant::from_bytes(&issued.grant.0).filter(|grant| grant.rights() == self.rights);
        let grant = Arc::new(grant.ok_or(Error::Protocol("a grant that cannot be read"))?);
        if issued.in_force {
            self.next = self.next.take().filter(|(epoch, _)| *epoch > issued.epoch);
            self.turn += !same_keys(&self.grant, &grant) as u64;
            (self.grant, self.epoch, self.refused) = (grant, issued.epoch, None);
        } else if issued.epoch > self.epoch {
            self.next = Some((issued.epoch, grant));
        }
        // Counted from the question: too early rather than too late. Of several such guesses the latest is
        // the best.
        self.expires = self.expires.max(at + Duration::from_millis(issued.left_ms));
        Ok(())
    }

    fn known(&self) -> Known {
        let announced = self.next.as_ref().map_or(self.epoch, |(epoch, _)| *epoch);
        Known { lease: self.number, epoch: self.epoch, announced }
    }
}

/// Of two grants with the same rights.
fn same_keys(a: &Grant, b: &Grant) -> bool {
    [Op::Read, Op::Write, Op::Rekey].into_iter().all(|op| match (a.key(op), b.key(op)) {
        (Some(a), Some(b)) => a.equals(b),
        (a, b) => a.is_none() && b.is_none(),
    })
}

struct State {
    leases: Vec<Lease>,
    /// Why the connection is over.
    over: Option<String>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        match self.changed.wait_timeout(state, time) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }

    fn end(&self, why: &str) {
        self.lock().over.get_or_insert_with(|| why.to_owned());
        self.changed.notify_all();
    }
}

/// A client's connection to an owner. It does not come back once it is lost; a new one may find another
/// owner, with other regions, there.
pub struct Session {
    to: String,
    name: String,
    connector: Connector,
    client: String,
    calls: Arc<Mutex<Connection>>,
    shared: Arc<Shared>,
    /// Ends the threads' connections from outside.
    handles: Mutex<Vec<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What was granted, once: nobody renews it.
#[derive(Debug)]
pub struct Leased {
    /// Its number, to renew or release it.
    pub lease: u64,
    /// Keys.
    pub grant: Grant,
    /// The owner's number of the region's key.
    pub epoch: u64,
    /// Until it expires, from the answer on.
    pub left: Duration,
}

impl Session {
    /// Connects to `HOST:PORT`. `name` is what the owner's certificate must be for; without one, `HOST`.
    pub fn connect(to: &str, name: Option<&str>, identity: &Identity) -> Result<Session, Error> {
        let host = to.rsplit_once(':').map_or(to, |(host, _)| host).trim_matches(['[', ']']);
        let name = name.unwrap_or(host).to_owned();
        let connector = identity.connector(ALPN)?;
        let mut calls = Connection::open(to, &name, &connector)?;
        // TLS 1.3 tells a client only with the first answer whether its certificate was accepted.
        let Answer::Hello { client } = calls.ask(&Request::Hello)? else { return Err(OTHER) };
        let handle = calls.stream.sock.try_clone().map_err(Error::Lost)?;
        let state = Mutex::new(State { leases: Vec::new(), over: None });
        Ok(Session {
            to: to.to_owned(),
            name,
            connector,
            client,
            calls: Arc::new(Mutex::new(calls)),
            shared: Arc::new(Shared { state, changed: Condvar::new() }),
            handles: Mutex::new(vec![handle]),
            threads: Mutex::new(Vec::new()),
        })
    }

    /// The name by which the owner knows this client.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Regions that this client may use.
    pub fn list(&self) -> Result<Vec<RegionInfo>, Error> {
        match self.ask(&Request::List)? {
            Answer::Regions(regions) => Ok(regions),
            _ => Err(OTHER),
        }
    }

    /// Keys of a region for the process with this number on the NIC with this address, valid for `ttl` from
    /// now on.
    pub fn grant(
        &self,
        region: &str,
        initiator: (IpAddr, u32),
        rights: Rights,
        ttl: Duration,
    ) -> Result<Leased, Error> {
        let ask = Ask {
            region: region.to_owned(),
            address: initiator.0,
            pid: initiator.1,
            rights: rights.bits(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        };
        leased(self.ask(&Request::Grant(ask))?)
    }

    /// The lease begins anew, with the key that is in force.
    pub fn renew(&self, lease: u64) -> Result<Leased, Error> {
        leased(self.ask(&Request::Renew { lease })?)
    }

    /// The lease ends; its keys are worthless soon.
    pub fn release(&self, lease: u64) -> Result<(), Error> {
        match self.ask(&Request::Release { lease })? {
            Answer::Released => Ok(()),
            _ => Err(OTHER),
        }
    }

    /// Gives a region another key, of which all that listen are told ahead.
    pub fn rotate(&self, region: &str) -> Result<Rotation, Error> {
        match self.ask(&Request::Rotate { region: region.to_owned() })? {
            Answer::Rotated(rotation) => Ok(rotation),
            _ => Err(OTHER),
        }
    }

    /// Calls the application behind the owner.
    pub fn call(&self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        match self.ask(&Request::Call(Secret::from(bytes)))? {
            Answer::Called(answer) => Ok(answer.0.to_vec()),
            _ => Err(OTHER),
        }
    }

    /// Keys that are kept fresh as long as the session lives.
    pub fn hold(
        &self,
        region: &str,
        initiator: (IpAddr, u32),
        rights: Rights,
        ttl: Duration,
    ) -> Result<Held, Error> {
        if self.shared.lock().leases.len() == MAX_HELD {
            return Err(
                Refusal::Full { what: "leases in this session".into(), limit: MAX_HELD as u64 }.into()
            );
        }
        let at = now();
        let leased = self.grant(region, initiator, rights, ttl)?;
        let lease = Lease {
            number: leased.lease,
            rights,
            grant: Arc::new(leased.grant),
            epoch: leased.epoch,
            turn: 0,
            next: None,
            expires: at + leased.left,
            ttl,
            renew_at: at + renewal(ttl),
            asked: false,
            refused: None,
        };
        let index = {
            let mut state = self.shared.lock();
            state.leases.push(lease);
            state.leases.len() - 1
        };
        self.shared.changed.notify_all();
        self.keep()?;
        Ok(Held { shared: self.shared.clone(), index })
    }

    /// Waits until the connection is lost: why. `None` when that has not happened within this time.
    pub fn lost_within(&self, time: Duration) -> Option<String> {
        let end = now() + time;
        let mut state = self.shared.lock();
        loop {
            let left = end.saturating_duration_since(now());
            if state.over.is_some() || left.is_zero() {
                return state.over.clone();
            }
            state = self.shared.wait(state, left);
        }
    }

    fn ask(&self, request: &Request) -> Result<Answer, Error> {
        ask(&self.calls, &self.shared, request)
    }

    /// Starts the threads that keep leases.
    fn keep(&self) -> Result<(), Error> {
        let mut threads = self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !threads.is_empty() {
            return Ok(());
        }
        let watch = Connection::open(&self.to, &self.name, &self.connector)?;
        let handle = watch.stream.sock.try_clone().map_err(Error::Lost)?;
        self.handles.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(handle);
        let (shared, calls) = (self.shared.clone(), self.calls.clone());
        let started = |e| Error::System("starting a thread", e);
        let renewing = library_thread("adverb-renew", move || renew_leases(&calls, &shared));
        threads.push(renewing.map_err(started)?);
        let shared = self.shared.clone();
        let watching = library_thread("adverb-watch", move || watch_keys(watch, &shared));
        threads.push(watching.map_err(started)?);
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.end("closed by this side");
        for handle in self.handles.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
            // It may be over.
            let _ = handle.shutdown(Shutdown::Both);
        }
        for thread in self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).drain(..) {
            // A panic in it was reported by itself.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({} at {})", self.client, self.to)
    }
}

fn ask(calls: &Mutex<Connection>, shared: &Shared, request: &Request) -> Result<Answer, Error> {
    let mut connection = calls.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // After half a message nothing on this connection has a meaning.
    if let Some(why) = &shared.lock().over {
        return Err(Error::Lost(io::Error::new(io::ErrorKind::NotConnected, why.clone())));
    }
    connection.ask(request).inspect_err(|error| {
        if error.refusal().is_none() && !matches!(error, Error::TooLong(_)) {
            shared.end(&error.to_string());
        }
    })
}

fn leased(answer: Answer) -> Result<Leased, Error> {
    let Answer::Issued(issued) = answer else { return Err(OTHER) };
    let grant = Grant::from_bytes(&issued.grant.0).ok_or(Error::Protocol("a grant that cannot be read"))?;
    let epoch = issued.epoch;
    Ok(Leased { lease: issued.lease, grant, epoch, left: Duration::from_millis(issued.left_ms) })
}

/// From one renewal to the next.
fn renewal(ttl: Duration) -> Duration {
    (ttl / 3).min(RENEW_MAX)
}

fn renew_leases(calls: &Mutex<Connection>, shared: &Shared) {
    let mut state = shared.lock();
    while state.over.is_none() {
        let at = now();
        let due = state.leases.iter().position(|lease| lease.renew_at <= at);
        let Some(index) = due else {
            let next = state.leases.iter().map(|lease| lease.renew_at).min().unwrap_or(at + RENEW_MAX);
            state = shared.wait(state, next - at);
            continue;
        };
        let lease = &mut state.leases[index];
        lease.renew_at = at + renewal(lease.ttl);
        let number = lease.number;
        drop(state);
        let answered = ask(calls, shared, &Request::Renew { lease: number });
        state = shared.lock();
        let lease = &mut state.leases[index];
        lease.asked = false;
        match answered {
            Ok(Answer::Issued(issued)) => match lease.take(at, &issued) {
                Ok(()) => {}
                Err(error) => state.over = Some(error.to_string()),
            },
            Ok(_) => state.over = Some(OTHER.to_string()),
            Err(Error::Refused(refusal)) => {
                lease.refused = Some(refusal);
                lease.renew_at = lease.renew_at.max(at + RENEW_AGAIN);
            }
            // Told already.
            Err(_) => {}
        }
        shared.changed.notify_all();
    }
}

fn watch_keys(mut connection: Connection, shared: &Shared) {
    loop {
        let held: Vec<Known> = {
            let state = shared.lock();
            if state.over.is_some() {
                return;
            }
            // Not those that the owner does not want to hear of any more.
            state.leases.iter().filter(|lease| lease.refused.is_none()).map(Lease::known).collect()
        };
        let at = now();
        let wait_ms = WATCH.as_millis() as u32;
        let news = match connection.ask(&Request::Watch { held, wait_ms }) {
            Ok(Answer::Told(news)) => news,
            Ok(_) => return shared.end(&OTHER.to_string()),
            // A lease was refused: the other thread asks for it by itself and learns why.
            Err(Error::Refused(_)) => {
                let mut state = shared.lock();
                state.leases.iter_mut().for_each(|lease| lease.renew_at = lease.renew_at.min(at));
                shared.changed.notify_all();
                drop(shared.wait(state, RENEW_AGAIN));
                continue;
            }
            Err(error) => return shared.end(&error.to_string()),
        };
        let mut state = shared.lock();
        for issued in &news {
            let Some(lease) = state.leases.iter_mut().find(|lease| lease.number == issued.lease) else {
                continue;
            };
            if let Err(error) = lease.take(at, issued) {
                state.over = Some(error.to_string());
                break;
            }
        }
        drop(state);
        shared.changed.notify_all();
    }
}

/// A lease that its [`Session`] keeps alive, with the key to use now.
#[derive(Clone)]
pub struct Held {
    shared: Arc<Shared>,
    index: usize,
}

/// What follows after a key was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterRefusal {
    /// There is another key: try again.
    Another,
    /// The owner is being asked for one. [`Held::wait`] waits for it.
    Asked,
}

impl Held {
    /// The key to use now, and its number, for [`Held::refused`]. An error when it has expired.
    pub fn key(&self) -> Result<(Arc<Grant>, u64), Error> {
        let state = self.shared.lock();
        let lease = &state.leases[self.index];
        match now().checked_duration_since(lease.expires) {
            None => Ok((lease.grant.clone(), lease.turn)),
            Some(ago) => {
                let expired = Refusal::Expired { lease: lease.number, ago_ms: ago.as_millis() as u64 };
                Err(lease.refused.clone().unwrap_or(expired).into())
            }
        }
    }

    /// A command under the key of this number ended with REMOTE_AUTHENTICATION_FAILURE.
    pub fn refused(&self, number: u64) -> AfterRefusal {
        let mut state = self.shared.lock();
        let lease = &mut state.leases[self.index];
        if lease.turn != number {
            return AfterRefusal::Another;
        }
        if let Some((epoch, grant)) = lease.next.take() {
            (lease.epoch, lease.grant) = (epoch, grant);
            lease.turn += 1;
            return AfterRefusal::Another;
        }
        if !lease.asked {
            (lease.asked, lease.renew_at) = (true, now());
            drop(state);
            self.shared.changed.notify_all();
        }
        AfterRefusal::Asked
    }

    /// Waits until there is another key than the one of this number, or this time is over.
    pub fn wait(&self, number: u64, time: Duration) -> Result<(), Error> {
        let end = now() + time;
        let mut state = self.shared.lock();
        loop {
            let lease = &state.leases[self.index];
            if lease.turn != number {
                return Ok(());
            }
            if let Some(refusal) = &lease.refused {
                return Err(refusal.clone().into());
            }
            let left = end.saturating_duration_since(now());
            if let Some(why) = &state.over {
                return Err(Error::Lost(io::Error::new(io::ErrorKind::NotConnected, why.clone())));
            }
            if left.is_zero() {
                return Err(Error::Lost(io::ErrorKind::TimedOut.into()));
            }
            state = self.shared.wait(state, left);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        let lease = &state.leases[self.index];
        write!(f, "Held(lease {}, key {}, {:?})", lease.number, lease.epoch, lease.grant)
    }
}
