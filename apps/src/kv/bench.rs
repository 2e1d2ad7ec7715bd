//! Load on a cache, and what came of it: the paper's figures 8 (latency and rate), 9 (a timeline through a
//! failure) and 14 (one through a rotation of keys).

use super::client::{Client, GetError, SetError};
use super::histogram::Histogram;
use super::open_loop;
use super::replica::ReplicaCounters;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A run: lookups of random keys, each checked, while some values are set anew.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// How long.
    pub time: Duration,
    /// Lookups at once; with a rate, at most.
    pub depth: usize,
    /// Lookups each second on average, at random times, whether or not others have ended: their latency then
    /// counts from that time. Without it, a lookup begins when another has ended, and shows how many there
    /// can be.
    pub rate: Option<f64>,
    /// Keys; all are set at the start.
    pub keys: u32,
    /// Bytes of a value, at least 16.
    pub value_len: usize,
    /// Values set anew each second, at most.
    pub sets: u32,
    /// A line of the timeline.
    pub window: Duration,
    /// Of the choice of keys.
    pub seed: u64,
}

/// A part of a run.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Since the run began.
    pub start: Duration,
    /// Of lookups that found a value.
    pub latency: Histogram,
    /// Lookups that found none.
    pub misses: u64,
    /// Lookups that no replica answered.
    pub unavailable: u64,
    /// Why, of the last one.
    pub reason: Option<String>,
    /// Values that were not what was set. A mistake of the cache's.
    pub wrong: u64,
    /// Most lookups that were under way at once.
    pub under_way: usize,
    /// What happened at each replica meanwhile.
    pub replicas: Vec<ReplicaCounters>,
    /// As it ended, how many reads of each replica congestion control allowed to be outstanding; `None` for
    /// one that was down.
    pub allowed: Vec<Option<f64>>,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct BenchReport {
    /// All of it.
    pub all: Window,
    /// How long it took.
    pub time: Duration,
    /// Values set anew.
    pub sets: u64,
    /// Of these, how many a replica did not get.
    pub sets_partial: u64,
    /// Calls that set no value anywhere.
    pub sets_failed: u64,
    /// The longest time without a lookup that ended well.
    pub longest_gap: Duration,
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

pub(super) fn key(index: u32) -> [u8; 8] {
    (u64::from(index) | 0x6164_7600_0000_0000).to_be_bytes()
}

/// The value of a key under a number: the number, and bytes that follow from both.
fn value(index: u32, number: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number ^ u64::from(index) << 32);
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Whether it is one of the values that the key had.
fn is_right(index: u32, bytes: &[u8], len: usize) -> bool {
    let Some(number) = bytes.first_chunk::<8>() else { return false };
    bytes.len() == len && value(index, u64::from_le_bytes(*number), len) == bytes
}

pub(super) struct Tally<'a> {
    begin: Instant,
    window: Window,
    all: Window,
    last_good: Instant,
    longest_gap: Duration,
    before: Vec<ReplicaCounters>,
    on_window: &'a mut dyn FnMut(&Window),
}

fn since(now: &ReplicaCounters, then: &ReplicaCounters) -> ReplicaCounters {
    ReplicaCounters {
        hits: now.hits - then.hits,
        misses: now.misses - then.misses,
        torn: now.torn - then.torn,
        collisions: now.collisions - then.collisions,
        refused: now.refused - then.refused,
        refused_index: now.refused_index - then.refused_index,
        in_vain_ns: now.in_vain_ns - then.in_vain_ns,
        timeouts: now.timeouts - then.timeouts,
        nacks: now.nacks - then.nacks,
        others: now.others - then.others,
        suspected: now.suspected - then.suspected,
        connected: now.connected - then.connected,
    }
}

impl Tally<'_> {
    /// Ends windows that are over, and begins the one of now, with so many lookups under way.
    pub(super) fn turn(&mut self, bench: &Bench, client: &Client, at: Instant, under_way: usize) {
        while at.duration_since(self.begin) >= self.window.start + bench.window {
            self.close(client);
            self.window.start += bench.window;
        }
        self.window.under_way = self.window.under_way.max(under_way);
    }

    fn close(&mut self, client: &Client) {
        let after: Vec<ReplicaCounters> = client.replicas().map(|(_, _, counters)| counters).collect();
        self.window.replicas = after.iter().zip(&self.before).map(|(now, then)| since(now, then)).collect();
        self.before = after;
        self.window.allowed = client.read_windows();
        (self.on_window)(&self.window);
        let window = std::mem::take(&mut self.window);
        self.all.latency.add(&window.latency);
        self.all.misses += window.misses;
        self.all.unavailable += window.unavailable;
        self.all.wrong += window.wrong;
        self.all.under_way = self.all.under_way.max(window.under_way);
        self.all.reason = window.reason.or(self.all.reason.take());
        self.window.start = window.start;
    }

    fn good(&mut self, at: Instant, latency: Duration) {
        self.window.latency.record(latency);
        self.longest_gap = self.longest_gap.max(at.duration_since(self.last_good));
        self.last_good = at;
    }
}

impl Bench {
    /// Sets all keys, then runs. `on_window` hears of each window when it is over.
    pub fn run(
        &self,
        client: &Client,
        ready: impl FnOnce(),
        on_window: &mut dyn FnMut(&Window),
    ) -> Result<BenchReport, SetError> {
        self.fill(client)?;
        ready();
        Ok(self.measure(client, on_window))
    }

    /// Sets all keys.
    pub fn fill(&self, client: &Client) -> Result<(), SetError> {
        (0..self.keys)
            .try_for_each(|index| client.set(&key(index), &value(index, 0, self.value_len)).map(|_stored| ()))
    }

    /// Runs, with keys that were set before.
    pub fn measure(&self, client: &Client, on_window: &mut dyn FnMut(&Window)) -> BenchReport {
        let before: Vec<ReplicaCounters> = client.replicas().map(|(_, _, counters)| counters).collect();
        let begin = now();
        let tally = RefCell::new(Tally {
            begin,
            window: Window::default(),
            all: Window::default(),
            last_good: begin,
            longest_gap: Duration::ZERO,
            before: before.clone(),
            on_window,
        });
        let setter = Setter::default();
        let report = std::thread::scope(|scope| {
            if self.sets > 0 {
                scope.spawn(|| setter.run(self, client));
            }
            client.rma().block_on(async {
                match self.rate {
                    None => self.look_up(client, &tally, begin + self.time).await,
                    Some(rate) => open_loop::look_up(self, client, &tally, begin, rate).await,
                }
            });
            setter.over.store(true, Ordering::Release);
            now()
        });
        let mut tally = tally.into_inner();
        tally.longest_gap = tally.longest_gap.max(report.duration_since(tally.last_good));
        tally.close(client);
        let after: Vec<ReplicaCounters> = client.replicas().map(|(_, _, counters)| counters).collect();
        let replicas = after.iter().zip(&before).map(|(now, then)| since(now, then)).collect();
        BenchReport {
            all: Window { replicas, ..tally.all },
            time: report.duration_since(begin),
            sets: setter.sets.into_inner(),
            sets_partial: setter.partial.into_inner(),
            sets_failed: setter.failed.into_inner(),
            longest_gap: tally.longest_gap,
        }
    }

    async fn look_up(&self, client: &Client, tally: &RefCell<Tally<'_>>, end: Instant) {
        let worker = |worker: usize| async move {
            let mut random = fastrand::Rng::with_seed(self.seed ^ (worker as u64) << 32);
            loop {
                let begun = now();
                tally.borrow_mut().turn(self, client, begun, self.depth);
                if begun >= end {
                    return;
                }
                let index = random.u32(..self.keys);
                let found = client.get(&key(index)).await;
                let failed = found.is_err();
                self.note(client, &mut tally.borrow_mut(), (index, begun), found);
                if failed {
                    // A cache without replicas answers at once: let others, and the network, have their turn.
                    yield_once().await;
                }
            }
        };
        let mut workers: FuturesUnordered<_> = (0..self.depth).map(worker).collect();
        while workers.next().await.is_some() {}
    }

    /// Counts a lookup that has ended.
    pub(super) fn note(
        &self,
        client: &Client,
        tally: &mut Tally<'_>,
        (index, begun): (u32, Instant),
        found: Result<Option<Vec<u8>>, GetError>,
    ) {
        let at = now();
        tally.turn(self, client, at, 0);
        match found {
            Ok(Some(bytes)) if is_right(index, &bytes, self.value_len) => tally.good(at, at - begun),
            Ok(Some(_)) => tally.window.wrong += 1,
            Ok(None) => tally.window.misses += 1,
            Err(error) => {
                tally.window.unavailable += 1;
                tally.window.reason = Some(error.to_string());
            }
        }
    }
}

/// Lets other futures of the task go first.
async fn yield_once() {
    let mut polled = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

#[derive(Default)]
struct Setter {
    over: AtomicBool,
    sets: AtomicU64,
    partial: AtomicU64,
    failed: AtomicU64,
}

impl Setter {
    fn run(&self, bench: &Bench, client: &Client) {
        let mut random = fastrand::Rng::with_seed(!bench.seed);
        let begin = now();
        let pause = Duration::from_secs(1) / bench.sets;
        let mut due = begin;
        for number in 1u64.. {
            loop {
                if self.over.load(Ordering::Acquire) {
                    return;
                }
                let left = due.saturating_duration_since(now());
                if left.is_zero() {
                    break;
                }
                // Until its time has come, or the run is over.
                std::thread::park_timeout(left.min(Duration::from_millis(10)));
            }
            // Late ones are not made up for.
            due = now().max(due) + pause;
            let index = random.u32(..bench.keys);
            match client.set(&key(index), &value(index, number, bench.value_len)) {
                Ok(stored) => {
                    self.sets.fetch_add(1, Ordering::Relaxed);
                    self.partial.fetch_add(!stored.missing.is_empty() as u64, Ordering::Relaxed);
                }
                Err(_) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
