//! A client of a swarm: it acquires locks at random, is sometimes too slow for its lease, leaves without
//! releasing, and connects anew when it was shut out.

use super::{Bug, Client, Held, LocksError, Release};
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
    /// Times that it acquires a lock.
    pub rounds: u32,
    /// Locks that it uses: the first ones.
    pub locks: u32,
    /// Different values that are stored; few, so that they repeat.
    pub values: u64,
    /// Bytes of a value.
    pub len: u32,
    /// How long it waits after it has touched each lock for the first and the second time, so that a switch
    /// that decides atomics may learn them.
    pub settle: Duration,
    /// How it releases.
    pub release: Release,
    /// How it is connected.
    pub connect: Connect,
    /// The mistake that it makes.
    pub bug: Bug,
}

/// Runs it.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), LocksError> {
    let mut left = work.rounds;
    let mut first = true;
    for life in 1.. {
        let patience = rdma.now().await? + Duration::from_ms(1000);
        let client = Client::open(rdma, name, &work.connect, Some(patience)).await?;
        let client = client.with(work.release, work.bug);
        let done = rounds(rdma, &client, work, &mut left, &mut first).await;
        match done {
            // Shut out, or the home has ended: who cannot connect anew knows.
            Err(LocksError::Rdma(Error::Left | Error::Failed { .. })) if life < LIVES => {
                rdma.say(|| format!("connects anew: {done:?}"));
            }
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
    first: &mut bool,
) -> Result<(), LocksError> {
    let locks = work.locks.min(client.locks()).max(1);
    if core::mem::take(first) && work.settle > Duration::ZERO {
        for lock in (0..2).flat_map(|_| 0..locks) {
            if let Some(held) = client.acquire(lock, None).await? {
                held.release().await?;
            }
            if lock + 1 == locks {
                rdma.sleep(work.settle).await?;
            }
        }
    }
    while *left > 0 {
        *left -= 1;
        let dice = rdma.random().await?;
        let lock = (dice >> 48) as u32 % locks;
        if dice & 7 == 0 {
            client.look(lock).await?;
        }
        let begun = rdma.now().await?;
        let patience = begun + Duration::from_ns(client.lease().as_ns() * LEASES) + PATIENCE;
        let Some(held) = client.acquire(lock, Some(patience)).await? else {
            if rdma.now().await? >= patience {
                // Nobody had it for so long but by a tag that nobody gives up.
                client.tell_lost(lock);
            }
            return Ok(());
        };
        match once(rdma, client, held, work).await {
            // Somebody else may hold it by now.
            Ok(()) | Err(LocksError::Expired) => {}
            Err(error) => return Err(error),
        }
        rdma.sleep(Duration::from_ns(rdma.random().await? % (client.lease().as_ns() / 4 + 1))).await?;
    }
    Ok(())
}

async fn once(rdma: &Rdma, client: &Client, held: Held<'_>, work: &Work) -> Result<(), LocksError> {
    let dice = rdma.random().await?;
    if dice % 8 < 6 {
        held.load().await?;
    }
    if dice >> 8 & 7 == 0 {
        // Too long for some leases: it is shut out meanwhile.
        rdma.sleep(Duration::from_ns(rdma.random().await? % (2 * client.lease().as_ns()))).await?;
    }
    let number = 1 + (dice >> 24) % work.values.max(1);
    let mut value = number.to_le_bytes().to_vec();
    value.resize(work.len.clamp(8, client.value_max().max(8)) as usize, number as u8);
    match dice >> 32 & 7 {
        0 => held.release().await.map(drop),
        // Left without a word: its lease has to run out.
        1 => held.store(&value).await,
        2 => {
            held.store(&value).await?;
            held.release().await.map(drop)
        }
        _ => held.store_and_release(&value).await.map(drop),
    }
}
