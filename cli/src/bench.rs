//! What the benches of native programs share: clients side by side for a time, the times that they took, and
//! what the switch before them has counted meanwhile.

use crate::error::Error;
use crate::program::{all, wire_time};
use crate::switch::shown;
use adverb_rdma::{Error as RdmaError, Instant, Rdma};
use serde_json::Value;
use std::fmt;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

/// All of these side by side: what each gave, or the first error.
pub async fn each<T, E>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T, E>>>,
) -> Result<Vec<T>, E> {
    all(futures).await.into_iter().collect()
}

/// Runs this for each client with the time at which to stop: what they have measured, and the seconds that
/// it took.
pub async fn side_by_side<C, T, E: From<RdmaError>, F: Future<Output = Result<T, E>>>(
    rdma: &Rdma,
    time: Duration,
    clients: impl IntoIterator<Item = C>,
    run: impl Fn(C, Instant) -> F,
) -> Result<(Vec<T>, f64), E> {
    let start = rdma.now().await?;
    let end = start + wire_time(time);
    let measured = each(clients.into_iter().map(|client| run(client, end))).await?;
    Ok((measured, rdma.now().await?.since(start).as_ns() as f64 / 1e9))
}

/// Runs this to its end, and something else for as long.
pub async fn beside<T>(run: impl Future<Output = T>, other: impl Future) -> T {
    let (mut run, mut other) = (pin!(run), pin!(other));
    let mut is_over = false;
    poll_fn(|context| {
        is_over = is_over || other.as_mut().poll(context).is_ready();
        run.as_mut().poll(context)
    })
    .await
}

/// What operations took, in ns, in order. Shown as their median, the 99th of a hundred, and the longest.
pub struct Times(Vec<u64>);

impl Times {
    /// Of all clients.
    pub fn new(taken: impl IntoIterator<Item = u64>) -> Times {
        let mut taken: Vec<u64> = taken.into_iter().collect();
        taken.sort_unstable();
        Times(taken)
    }

    /// How many operations.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |part: usize| {
            let at = (self.0.len() * part / 1000).min(self.0.len().saturating_sub(1));
            self.0.get(at).map_or(f64::NAN, |ns| *ns as f64 / 1000.0)
        };
        write!(f, "median {:.1} us, 99% {:.1} us, longest {:.1} us", us(500), us(990), us(1000))
    }
}

/// A switch whose counters a bench reads before and after.
pub struct Watched<const N: usize> {
    via: PathBuf,
    names: [&'static str; N],
    before: [u64; N],
    /// It has a program of the kind that the bench is about.
    pub has_program: bool,
}

impl<const N: usize> Watched<N> {
    /// From now on.
    pub fn new(via: &Path, kind: &str, names: [&'static str; N]) -> Result<Watched<N>, Error> {
        let shown = shown(via)?;
        let mut programs = shown["programs"].as_array().into_iter().flatten();
        let has_program = programs.any(|program| program["kind"] == kind);
        Ok(Watched { via: via.to_owned(), names, before: counted(&shown, names), has_program })
    }

    /// Where it is.
    pub fn name(&self) -> impl fmt::Display {
        self.via.display()
    }

    /// What it has counted since.
    pub fn since(&self) -> Result<[u64; N], Error> {
        let after = counted(&shown(&self.via)?, self.names);
        // One that was started anew meanwhile has counted from zero.
        Ok(std::array::from_fn(|at| after[at].checked_sub(self.before[at]).unwrap_or(after[at])))
    }
}

fn counted<const N: usize>(shown: &Value, names: [&'static str; N]) -> [u64; N] {
    names.map(|name| shown["counters"][name].as_u64().unwrap_or_default())
}
