//! Lookups that begin when it is their time, not when another has ended: what many clients who do not know of
//! one another ask for.

use super::bench::{Bench, Tally, key, now};
use super::client::Client;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

/// For how long to keep the processor for oneself when there is nothing to do until the next arrival:
/// replicas of this host may need it.
const ALONE: Duration = Duration::from_micros(20);

/// Poisson arrivals, `rate` of them each second on average, until the time of `bench` is over, and until all
/// have ended. At most `bench.depth` are under way; more wait for their turn, and are not forgotten: each
/// lookup's latency is counted from its arrival, whenever it was begun.
pub(super) async fn look_up(
    bench: &Bench,
    client: &Client,
    tally: &RefCell<Tally<'_>>,
    begin: Instant,
    rate: f64,
) {
    let end = begin + bench.time;
    let mut random = fastrand::Rng::with_seed(bench.seed);
    let mut pauses = fastrand::Rng::with_seed(!bench.seed);
    let mut pause = || Duration::from_secs_f64(-(1.0 - pauses.f64()).ln() / rate);
    let one = |index: u32, arrived: Instant| async move {
        let found = client.get(&key(index)).await;
        bench.note(client, &mut tally.borrow_mut(), (index, arrived), found);
    };
    let mut arrival = begin + pause();
    let mut under_way = FuturesUnordered::new();
    let mut busy = begin;
    poll_fn(|context| {
        let at = loop {
            let at = now();
            let before = arrival;
            while arrival <= at && arrival < end && under_way.len() < bench.depth {
                under_way.push(one(random.u32(..bench.keys), arrival));
                arrival += pause();
            }
            if arrival != before {
                busy = at;
            }
            tally.borrow_mut().turn(bench, client, at, under_way.len());
            match under_way.poll_next_unpin(context) {
                Poll::Ready(Some(())) => busy = at,
                Poll::Ready(None) | Poll::Pending => break at,
            }
        };
        if arrival < end && under_way.len() < bench.depth {
            // Look again, for the next one's time: nothing else wakes this task then.
            context.waker().wake_by_ref();
            if at - busy >= ALONE {
                std::thread::yield_now();
            }
            return Poll::Pending;
        }
        if under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
