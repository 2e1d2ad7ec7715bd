//! A client of a swarm: it puts, gets, removes and scans at random, is sometimes too slow for its lease, and
//! connects anew when it was shut out.

use super::client::Client;
use super::{Bug, TreeError, object};
use crate::locks::{LocksError, Release};
use adverb_rdma::{Connect, Duration, Error, Rdma};

/// A client that was shut out comes again so often.
const LIVES: u32 = 100;
/// A lock that cannot be had for so many leases, and [`PATIENCE`], is lost.
const LEASES: u64 = 50;
/// For all that is not counted in leases: programs that are stopped, connections that give up.
const PATIENCE: Duration = Duration::from_ms(200);

/// What a client of a swarm does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Operations.
    pub rounds: u32,
    /// Keys, from 0 on.
    pub keys: u64,
    /// Of these, such as many operations want: their values repeat, and readers find them torn.
    pub hot: [u64; 3],
    /// Different values that are put; few, so that they repeat.
    pub values: u64,
    /// Of a hundred operations, those that want a hot key.
    pub heat: u64,
    /// How long it waits after it has used each lock for the first and the second time, so that a switch that
    /// decides atomics may learn them.
    pub settle: Duration,
    /// Whether it reads pages in READs of one packet, so that a switch can count them.
    pub short_reads: bool,
    /// How it releases.
    pub release: Release,
    /// How it is connected.
    pub connect: Connect,
    /// The mistake that it makes.
    pub bug: Bug,
}

/// Runs it.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), TreeError> {
    let mut left = work.rounds;
    let mut settles = 2;
    for life in 1.. {
        let patience = rdma.now().await? + Duration::from_ms(1000);
        let client = Client::open(rdma, name, &work.connect, Some(patience)).await?;
        let patience = Duration::from_ns(client.lease().as_ns() * LEASES) + PATIENCE;
        let client = client.with(work.release, work.bug).with_patience(patience);
        let client = if work.short_reads { client.with_short_reads() } else { client };
        let done = rounds(rdma, &client, work, &mut left, &mut settles).await;
        match done {
            // Shut out, or the home has ended: who cannot connect anew knows.
            Err(TreeError::Locks(LocksError::Rdma(Error::Left | Error::Failed { .. }))) if life < LIVES => {
                rdma.say(|| format!("connects anew: {done:?}"));
            }
            // No page is left: what is there can still be changed and read.
            Err(TreeError::Full) => {}
            done => return done,
        }
    }
    Ok(())
}

async fn rounds(
    rdma: &Rdma,
    client: &Client,
    work: &Work,
    left: &mut u32,
    settles: &mut u32,
) -> Result<(), TreeError> {
    while *settles > 0 && work.settle > Duration::ZERO {
        *settles -= 1;
        for key in work.hot {
            client.remove(key).await?;
        }
        rdma.sleep(work.settle).await?;
    }
    while *left > 0 {
        *left -= 1;
        let dice = rdma.random().await?;
        let key = match dice >> 8 & 0xff {
            n if n * 100 < work.heat * 256 => work.hot[(dice >> 16) as usize % work.hot.len()],
            _ => (dice >> 16) % work.keys,
        };
        if dice >> 56 & 31 == 0 {
            // Too long for some leases: it is shut out meanwhile.
            let most = 2 * client.lease().as_ns();
            client.dawdle(Duration::from_ns(rdma.random().await? % most));
        }
        // Each byte is the same: what is made of two values is neither.
        let value = (1 + (dice >> 32) % work.values.clamp(1, 255)) * 0x0101_0101_0101_0101;
        match dice % 100 {
            0..55 => client.put(key, value).await?,
            55..63 => client.remove(key).await?,
            63..92 => client.get(key).await.map(drop)?,
            _ => scan(rdma, client, key, (key + 1 + (dice >> 40 & 31)).min(work.keys)).await?,
        }
        if dice >> 60 == 0 {
            rdma.sleep(Duration::from_ns(rdma.random().await? % (client.lease().as_ns() / 4 + 1))).await?;
        }
    }
    Ok(())
}

/// A scan of all keys from `from` on and below `to`, each of which is read thereby.
async fn scan(rdma: &Rdma, client: &Client, from: u64, to: u64) -> Result<(), TreeError> {
    let read = |key| (key, rdma.operation(object(client.epoch(), key), "seen", &[]));
    let open: Vec<_> = (from..to).map(read).collect();
    let found = client.scan(from, to, usize::MAX).await?;
    let in_order =
        found.is_sorted_by(|a, b| a.0 < b.0) && found.iter().all(|(key, _)| (from..to).contains(key));
    if !in_order {
        rdma.operation(client.epoch(), "phantom", &[from, to]).end(&[]);
    }
    for (key, operation) in open {
        let value = found.iter().find(|(other, _)| *other == key).map_or(0, |(_, value)| *value);
        operation.end(&[value]);
    }
    Ok(())
}
