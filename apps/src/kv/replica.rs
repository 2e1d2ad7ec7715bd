//! A client's side of one replica: connected or not, trusted or not. A thread keeps it.
//!
//! ```text
//!          connected, layout known, leases held
//!  DOWN ────────────────────────────────────────► UP ──── an operation failed ───► SUSPECT
//!    ▲                                             │ ▲                               │ │
//!    └──────────── connection lost ────────────────┘ └──── a read of it succeeded ───┘ │
//!    └──────────────────────────────── connection lost ────────────────────────────────┘
//! ```
//!
//! Lookups use replicas that are up: the first failed operation, or the end of the connection of a process
//! that died, takes a replica away from all of them, those included that wait for it. Only when no replica is
//! up do they try suspects.

use super::layout::{BUCKET_LEN, Layout};
use super::protocol::{Call, Reply};
use super::server::{DATA, INDEX};
use adverb_grants::{AfterRefusal, Error, Held, Identity, Session};
use adverb_rma::{Memory, Outcome, Report, Rights, Rma, TransferError};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From one attempt to connect to the next.
const AGAIN: Duration = Duration::from_millis(200);
/// From one look at a connected replica to the next: whether it is suspected, and answers again.
const LOOK: Duration = Duration::from_millis(20);
/// For a key that the owner is asked for.
const KEY_WAIT: Duration = Duration::from_secs(1);

/// Where a replica is, and what this side shows it.
pub struct ReplicaInit {
    /// `HOST:PORT` of its server.
    pub to: String,
    /// What its certificate is for, if not `HOST`.
    pub name: Option<String>,
    /// Of leases.
    pub ttl: Duration,
}

/// What a client has seen of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplicaCounters {
    /// Values read from it.
    pub hits: u64,
    /// Lookups that found nothing there.
    pub misses: u64,
    /// Records that were overwritten while they were read.
    pub torn: u64,
    /// Records of another key with the same tag.
    pub collisions: u64,
    /// Operations refused because of a key that had changed.
    pub refused: u64,
    /// Of these, those on the index.
    pub refused_index: u64,
    /// How long operations were asked for in vain, in ns: for each change of a key, from when the first one
    /// that was refused was given to the NIC until the first that went well was.
    pub in_vain_ns: u64,
    /// Operations that it did not answer in time.
    pub timeouts: u64,
    /// Operations that it turned away.
    pub nacks: u64,
    /// Other failures.
    pub others: u64,
    /// Times that it was taken away from lookups.
    pub suspected: u64,
    /// Times that it was connected to.
    pub connected: u64,
}

macro_rules! counts {
    ($($name:ident),*) => {
        #[derive(Default)]
        pub(super) struct Counts { $(pub $name: AtomicU64),* }

        impl Counts {
            pub fn read(&self) -> ReplicaCounters {
                ReplicaCounters { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}
counts!(
    hits,
    misses,
    torn,
    collisions,
    refused,
    refused_index,
    in_vain_ns,
    timeouts,
    nacks,
    others,
    suspected,
    connected
);

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A replica that is connected.
pub(super) struct Link {
    pub session: Session,
    pub layout: Layout,
    pub index: Part,
    pub data: Part,
}

/// A region of a replica.
pub(super) struct Part {
    held: Held,
    /// [`INDEX`] or [`DATA`].
    name: &'static str,
    /// When the first operation that was refused was given to the NIC, in ns since the replica was made; 0
    /// since one went well.
    in_vain_since: AtomicU64,
}

struct State {
    link: Option<Arc<Link>>,
    /// Why there is none.
    why: String,
    stop: bool,
}

/// One replica as a client sees it: connected or not, trusted or not.
pub(super) struct Replica {
    pub to: String,
    init: ReplicaInit,
    identity: Arc<Identity>,
    made: Instant,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether lookups may use the link.
    trusted: AtomicBool,
    /// Whom to wake when it is suspected: waiting operations, by their lookup's number.
    waiting: Mutex<BTreeMap<u64, Waker>>,
    pub counts: Counts,
}

/// Why an operation on a replica failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It was not there to begin with.
    Down(String),
    /// As the operation ended.
    Operation(String),
    /// Another operation on it failed, and this one was not waited for.
    Abandoned,
    /// Its records changed faster than they could be read.
    Torn,
}

#[expect(clippy::disallowed_methods, reason = "waits of a driver")]
fn now() -> Instant {
    Instant::now()
}

impl Replica {
    pub fn new(init: ReplicaInit, identity: Arc<Identity>) -> Replica {
        let state = State { link: None, why: "not connected yet".to_owned(), stop: false };
        Replica {
            to: init.to.clone(),
            init,
            identity,
            made: now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            trusted: AtomicBool::new(false),
            waiting: Mutex::new(BTreeMap::new()),
            counts: Counts::default(),
        }
    }

    /// Keeps it on a thread. Returns when the first attempt to connect is over.
    pub fn keep(self: &Arc<Replica>, rma: &Arc<Rma>) -> Result<JoinHandle<()>, Error> {
        let probe = rma
            .allocate(BUCKET_LEN)
            .map_err(|e| Error::System("allocating memory", std::io::Error::other(e)))?;
        let (replica, rma) = (self.clone(), rma.clone());
        let builder = std::thread::Builder::new().name("adverb-replica".to_owned());
        let first = Arc::new((Mutex::new(false), Condvar::new()));
        let over = first.clone();
        let thread = builder
            .spawn(move || replica.run(&rma, &probe, &over))
            .map_err(|e| Error::System("starting a thread", e))?;
        let tried = first.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(first.1.wait_while(tried, |tried| !*tried));
        Ok(thread)
    }

    pub fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// The link, if lookups may use it.
    pub fn link(&self) -> Result<Arc<Link>, Failure> {
        let state = self.lock();
        match (&state.link, self.trusted.load(Ordering::Acquire)) {
            (Some(link), true) => Ok(link.clone()),
            (Some(_), false) => Err(Failure::Down("an operation on it failed just now".to_owned())),
            (None, _) => Err(Failure::Down(state.why.clone())),
        }
    }

    /// The link, suspected or not.
    pub fn any_link(&self) -> Result<Arc<Link>, Failure> {
        let state = self.lock();
        state.link.clone().ok_or_else(|| Failure::Down(state.why.clone()))
    }

    /// How many reads of it congestion control lets be outstanding at once, without regard to local
    /// congestion; `None` when it is down.
    pub fn read_window(&self, rma: &Rma) -> Option<f64> {
        let link = self.any_link().ok()?;
        let (grant, _) = link.index.held.key().ok()?;
        rma.read_windows(grant.target()).1
    }

    pub fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Acquire)
    }

    /// Reads a part of a region, with the key to use now. A failure other than our own NIC's takes the
    /// replica away from lookups. With `lookup` its number, a read that another's failure shows to be vain is
    /// given up: then the memory may still be written to.
    pub async fn read(
        &self,
        part: &Part,
        offset: u64,
        into: (&adverb_rdma::Memory, usize),
        lookup: Option<u64>,
    ) -> Result<(), Failure> {
        loop {
            let (grant, number) = part.held.key().map_err(|e| self.failed(e.to_string()))?;
            let transfer = pin!(into.0.get(0..into.1 as u64, &grant, offset, None));
            let (report, why) = match self.unless_suspected(transfer, lookup).await {
                None => return Err(Failure::Abandoned),
                Some(Ok(report)) if report.end.is_ok() => {
                    self.went_well(part, &report);
                    return Ok(());
                }
                Some(Ok(report)) => (Some(report), TransferError::Ended(report).to_string()),
                Some(Err(error)) => (None, error.to_string()),
            };
            let outcome = match report.map(|report| report.end) {
                Some(adverb_rma::End::Outcome(outcome)) => Some(outcome),
                _ => None,
            };
            match outcome {
                Some(Outcome::RemoteAuthenticationFailure) => {
                    self.refused(part, report.as_ref());
                    match part.held.refused(number) {
                        AfterRefusal::Another => continue,
                        AfterRefusal::Asked => return Err(self.failed(why)),
                    }
                }
                // Our own NIC is busy; no other replica is better off.
                Some(Outcome::DispatchTimeout) => {
                    count(&self.counts.others);
                    return Err(Failure::Operation(why));
                }
                Some(Outcome::Timeout) => count(&self.counts.timeouts),
                Some(Outcome::Nack) => count(&self.counts.nacks),
                _ => count(&self.counts.others),
            }
            return Err(self.failed(why));
        }
    }

    /// When an operation that has ended now was given to the NIC, in ns since the replica was made.
    fn given(&self, report: &Report) -> u64 {
        (self.made.elapsed().as_nanos() as u64).saturating_sub(report.total_delay.as_ns()).max(1)
    }

    fn refused(&self, part: &Part, report: Option<&Report>) {
        count(&self.counts.refused);
        if part.name == INDEX {
            count(&self.counts.refused_index);
        }
        if let Some(report) = report {
            let given = self.given(report);
            let first = |since| if since == 0 { given } else { given.min(since) };
            let _ = part.in_vain_since.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |s| Some(first(s)));
        }
    }

    fn went_well(&self, part: &Part, report: &Report) {
        let since = part.in_vain_since.load(Ordering::Relaxed);
        if since == 0 {
            return;
        }
        // One that was given to the NIC before may have found the old key in force.
        let given = self.given(report);
        if given > since && part.in_vain_since.swap(0, Ordering::Relaxed) != 0 {
            self.counts.in_vain_ns.fetch_add(given - since, Ordering::Relaxed);
        }
    }

    /// What comes of a transfer. `None` when the replica is suspected first.
    async fn unless_suspected(
        &self,
        mut transfer: Pin<&mut impl Future<Output = Result<Report, adverb_rdma::Error>>>,
        lookup: Option<u64>,
    ) -> Option<Result<Report, adverb_rdma::Error>> {
        poll_fn(|context| {
            // In this order: who is suspected later wakes whom it finds.
            if let Some(lookup) = lookup {
                self.waiting().insert(lookup, context.waker().clone());
            }
            match transfer.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if lookup.is_some() && !self.trusted.load(Ordering::Acquire) => {
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// A lookup waits no longer.
    pub fn forget(&self, lookup: u64) {
        self.waiting().remove(&lookup);
    }

    fn failed(&self, why: String) -> Failure {
        if self.leave() {
            count(&self.counts.suspected);
        }
        Failure::Operation(why)
    }

    /// Takes it away from lookups, those included that wait for it. False when somebody else has done so.
    fn leave(&self) -> bool {
        let was_up = self.trusted.swap(false, Ordering::AcqRel);
        let woken = std::mem::take(&mut *self.waiting());
        woken.into_values().for_each(Waker::wake);
        was_up
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waker>> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// True when it is to stop.
    fn pause(&self, time: Duration) -> bool {
        let end = now() + time;
        let mut state = self.lock();
        loop {
            let left = end.saturating_duration_since(now());
            if state.stop || left.is_zero() {
                return state.stop;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    fn run(&self, rma: &Arc<Rma>, probe: &Memory, first: &(Mutex<bool>, Condvar)) {
        loop {
            let connected = self.connect(rma);
            let link = {
                let mut state = self.lock();
                match connected {
                    Ok(link) => {
                        count(&self.counts.connected);
                        state.link = Some(Arc::new(link));
                        self.trusted.store(true, Ordering::Release);
                    }
                    Err(error) => state.why = error.to_string(),
                }
                state.link.clone()
            };
            *first.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
            first.1.notify_all();
            if let Some(link) = link {
                let why = self.watch(rma, probe, &link);
                self.leave();
                let mut state = self.lock();
                (state.link, state.why) = (None, why);
            }
            if self.pause(AGAIN) {
                return;
            }
        }
    }

    /// Until the connection is lost: why.
    fn watch(&self, rma: &Rma, probe: &Memory, link: &Link) -> String {
        loop {
            if let Some(why) = link.session.lost_within(LOOK) {
                return why;
            }
            if self.lock().stop {
                return "closed".to_owned();
            }
            if !self.trusted.load(Ordering::Acquire) && self.answers(rma, probe, link) {
                self.trusted.store(true, Ordering::Release);
            }
        }
    }

    /// Whether both regions of a suspect can be read again.
    fn answers(&self, rma: &Rma, probe: &Memory, link: &Link) -> bool {
        [&link.index.held, &link.data.held].into_iter().all(|held| {
            let Ok((grant, number)) = held.key() else { return false };
            match rma.block_on(rma.read(&grant, 0, probe, 0..BUCKET_LEN)) {
                Ok(_) => true,
                Err(error) => {
                    let end = error.report().map(|report| report.end);
                    end == Some(adverb_rma::End::Outcome(Outcome::RemoteAuthenticationFailure))
                        && (held.refused(number) == AfterRefusal::Another
                            || held.wait(number, KEY_WAIT).is_ok())
                }
            }
        })
    }

    fn connect(&self, rma: &Rma) -> Result<Link, Error> {
        let session = Session::connect(&self.init.to, self.init.name.as_deref(), &self.identity)?;
        let Reply::Layout(layout) = call(&session, &Call::Layout)? else {
            return Err(Error::Protocol("an answer to another call"));
        };
        if !layout.is_sound() {
            return Err(Error::Protocol("sizes that cannot be; use the same version of adverb"));
        }
        let me = (rma.address(), rma.pid());
        let part = |name: &'static str| {
            let held = session.hold(name, me, Rights::READ, self.init.ttl)?;
            Ok::<Part, Error>(Part { held, name, in_vain_since: AtomicU64::new(0) })
        };
        let (index, data) = (part(INDEX)?, part(DATA)?);
        Ok(Link { session, layout, index, data })
    }
}

/// Calls a replica's server.
pub(super) fn call(session: &Session, call: &Call<'_>) -> Result<Reply, Error> {
    let bytes = postcard::to_stdvec(call).map_err(|_| Error::Protocol("a call that cannot be written"))?;
    let answer = session.call(&bytes)?;
    match postcard::take_from_bytes(&answer) {
        Ok((reply, [])) => Ok(reply),
        Ok(_) | Err(_) => Err(Error::Protocol("an answer that cannot be read")),
    }
}
