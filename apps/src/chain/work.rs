//! A client of a swarm: it puts and gets values of a few keys at random, forgets what it knew at times,
//! connects anew when its connection has failed, and looks along all chains in the end. And one that does
//! what it is told, step by step.

use super::{Bug, ChainError, Client};
use adverb_rdma::{Connect, Duration, Error, Rdma};

/// A client whose connection has failed comes again so often.
const LIVES: u32 = 100;

/// What a client of a swarm does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Puts and gets.
    pub rounds: u32,
    /// Keys that it uses: the first ones.
    pub keys: u32,
    /// Different values that are put; few, so that they repeat.
    pub values: u64,
    /// Bytes of a value.
    pub len: u32,
    /// Up to so long it waits between two of them.
    pub pause: Duration,
    /// How it is connected.
    pub connect: Connect,
    /// The mistake that it makes.
    pub bug: Bug,
}

/// Runs it.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), ChainError> {
    let mut left = work.rounds;
    for life in 1.. {
        let patience = rdma.now().await? + Duration::from_ms(1000);
        let client = Client::open(rdma, name, &work.connect, Some(patience)).await?.with(work.bug);
        match rounds(rdma, &client, work, &mut left).await {
            // The connection has given up, or the home has ended: who cannot connect anew knows.
            Err(ChainError::Rdma(error @ (Error::Left | Error::Failed { .. }))) if life < LIVES => {
                rdma.say(|| format!("connects anew: {error}"));
            }
            done => return done,
        }
    }
    Ok(())
}

async fn rounds(rdma: &Rdma, client: &Client, work: &Work, left: &mut u32) -> Result<(), ChainError> {
    let keys = work.keys.min(client.keys()).max(1);
    while *left > 0 {
        *left -= 1;
        let dice = rdma.random().await?;
        let key = (dice >> 48) as u32 % keys;
        if dice & 7 == 0 {
            client.forget();
        }
        if dice >> 8 & 1 == 0 {
            client.get(key).await?;
        } else {
            let number = 1 + (dice >> 24) % work.values.max(1);
            let mut value = number.to_le_bytes().to_vec();
            value.resize(work.len.clamp(8, client.value_max().max(8)) as usize, number as u8);
            match client.put(key, &value).await {
                Ok(()) | Err(ChainError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        rdma.sleep(Duration::from_ns(rdma.random().await? % (work.pause.as_ns() + 1))).await?;
    }
    for key in 0..keys {
        client.get_along(key).await?;
    }
    Ok(())
}

/// What a client that follows steps does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Makes this a key's value.
    Put(u32, u64),
    /// Looks for a key's value from where it knows the chain.
    Get(u32),
    /// Looks for it along the whole chain, whatever a switch knows.
    Along(u32),
}

/// What it does, and when: from its start on; at once, if that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The time.
    pub at: Duration,
    /// What.
    pub ask: Ask,
}

/// A client that follows steps, each when the last one has completed.
pub async fn follow(rdma: &Rdma, name: &str, connect: &Connect, steps: &[Step]) -> Result<(), ChainError> {
    let start = rdma.now().await?;
    let client = Client::open(rdma, name, connect, Some(start + Duration::from_ms(1000))).await?;
    for step in steps {
        let (now, at) = (rdma.now().await?, start + step.at);
        if at > now {
            rdma.sleep(at.since(now)).await?;
        }
        match step.ask {
            Ask::Put(key, value) => client.put(key, &value.to_le_bytes()).await?,
            Ask::Get(key) => client.get(key).await.map(drop)?,
            Ask::Along(key) => client.get_along(key).await.map(drop)?,
        }
    }
    Ok(())
}
