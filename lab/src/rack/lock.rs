//! Clients of a table of locks (`adverb_apps::locks`): each acquires one, keeps it for a time, and releases
//! it again, for ever. Who finds it held tries again at once.

use super::{Clock, Done, NAME, Parts, SERVER, Shared, client, connect};
use adverb_apps::locks::{self, Bug, Client, HomeConfig, LocksError, Release};
use adverb_rdma::{Duration, Rdma};
use adverb_sim::program::Start;
use adverb_sim::units::parse_time;
use serde::Deserialize;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Locks {
    /// Clients.
    pub clients: u32,
    /// Locks; a client takes them in turns.
    #[serde(default = "one")]
    locks: u32,
    /// How long a lock is kept.
    #[serde(default)]
    inside: Option<String>,
    /// By a compare and swap, not by a WRITE.
    #[serde(default)]
    release_by_cas: bool,
}

fn one() -> u32 {
    1
}

impl Locks {
    fn inside(&self) -> Result<Duration, String> {
        let text = self.inside.as_ref();
        text.map_or(Ok(Duration::ZERO), |text| parse_time(text)).map_err(|why| format!("inside: {why}"))
    }

    pub fn check(&self) -> Result<(), String> {
        self.inside()?;
        if self.clients as usize > locks::CLIENTS_MAX {
            return Err(format!("clients: at most {}", locks::CLIENTS_MAX));
        }
        match (1..=locks::LOCKS_MAX).contains(&self.locks) {
            true => Ok(()),
            false => Err(format!("locks: 1 to {}", locks::LOCKS_MAX)),
        }
    }

    pub fn programs(&self, log: &Shared, parts: Parts) -> Vec<Start> {
        let config =
            HomeConfig { locks: self.locks, value_max: 8, connect: connect(), ..HomeConfig::default() };
        let home =
            Start::new(
                NAME,
                SERVER,
                move |rdma: Rdma| async move { locks::serve(&rdma, NAME, &config).await },
            );
        let (locks, inside) = (self.locks, self.inside().unwrap_or_default());
        let release = if self.release_by_cas { Release::CompareSwap } else { Release::Write };
        let mut programs = vec![home.serving()];
        for number in 0..self.clients {
            programs.push(client(number, log, move |rdma, log| {
                go_on(rdma, log, (number, locks), (inside, release), parts)
            }));
        }
        programs
    }
}

async fn go_on(
    rdma: Rdma,
    log: Shared,
    (number, locks): (u32, u32),
    (inside, release): (Duration, Release),
    parts: Parts,
) -> Result<(), LocksError> {
    let clock = Clock::begin(&rdma).await?;
    let patience = rdma.now().await? + Duration::from_ms(100);
    let client = Client::open(&rdma, NAME, &connect(), Some(patience)).await?;
    let client = client.with(release, Bug::None).with_pause(Duration::ZERO);
    clock.wait(&rdma, &log, parts.start).await?;
    for turn in number.. {
        let (before, begun) = (client.counted(), rdma.now().await?);
        let Some(held) = client.acquire(turn % locks, None).await? else { break };
        if inside > Duration::ZERO {
            rdma.sleep(inside).await?;
        }
        held.release().await?;
        let (after, ended) = (client.counted(), rdma.now().await?);
        log.borrow_mut().done.push(Done {
            changes: true,
            ended: clock.ps(ended),
            took: ended.since(begun).as_ps(),
            refused: (after.refused - before.refused) as u32,
            passed: 0,
        });
    }
    Ok(())
}
