//! The program of a home of lock words: it connects clients, each with a number that no other has had, and
//! ends the queue pairs of those that are taken for dead.

use super::{CLIENTS_MAX, holder_of, parse_shut_out};
use crate::meeting::{self, Met};
use adverb_rdma::{Access, Asked, Connect, Error, Listener, On, Pd, Rdma, Region};
use std::collections::BTreeMap;

/// Rights of memory that clients use as they like.
pub(crate) fn lent() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// A home's program.
pub(crate) struct Home<'a> {
    rdma: &'a Rdma,
    pd: &'a Pd,
    /// The words; behind those of locks there may be others.
    words: &'a Region,
    locks: u32,
    epoch: u64,
    connect: Connect,
    /// The last number given.
    holder: u32,
    /// By holder.
    clients: BTreeMap<u32, Met>,
}

impl<'a> Home<'a> {
    pub fn new(
        (rdma, pd): (&'a Rdma, &'a Pd),
        (words, locks): (&'a Region, u32),
        epoch: u64,
        connect: Connect,
    ) -> Home<'a> {
        Home { rdma, pd, words, locks, epoch, connect, holder: 0, clients: BTreeMap::new() }
    }

    /// Connects clients until the program is asked to end; each is welcomed by its number.
    pub async fn serve(
        &mut self,
        listener: &Listener,
        welcome: impl Fn(u32) -> Vec<u8>,
    ) -> Result<(), Error> {
        loop {
            let mut on = vec![On::Stop, On::Asked(listener)];
            let fixed = on.len();
            on.extend(self.clients.values().map(|client| On::Gone(&client.line)));
            match self.rdma.until(&on, None).await? {
                Some(0) | None => return Ok(()),
                Some(1) => {
                    let Some(asked) = listener.try_accept().await? else { continue };
                    // One client's mistake, or its end, is not the home's.
                    if let Err(error) = self.answer(asked, &welcome).await {
                        self.rdma.say(|| format!("a client was not answered: {error}"));
                    }
                }
                Some(index) => {
                    let gone = self.clients.keys().nth(index - fixed).copied();
                    gone.and_then(|gone| self.clients.remove(&gone));
                }
            }
        }
    }

    async fn answer(&mut self, asked: Asked, welcome: impl Fn(u32) -> Vec<u8>) -> Result<(), Error> {
        if let Some((lock, tag)) = parse_shut_out(asked.attributes()) {
            return self.shut_out(asked, lock, tag).await;
        }
        if self.clients.len() >= CLIENTS_MAX {
            // Not answered, so refused.
            return Ok(());
        }
        // Tags name their holder: a number that was used would let a tag come again.
        let Some(holder) = self.holder.checked_add(1) else { return Ok(()) };
        self.holder = holder;
        let met = meeting::admit(self.rdma, self.pd, asked, &welcome(holder), &self.connect).await?;
        self.clients.insert(holder, met);
        Ok(())
    }

    /// Ends the queue pair of a lock's holder. When the answer is given, nothing of it arrives any more. If
    /// the lock has another holder by now, nobody is shut out: the one that asks finds that by itself.
    async fn shut_out(&mut self, asked: Asked, lock: u32, tag: u64) -> Result<(), Error> {
        if lock < self.locks && self.words.load(u64::from(lock) * 8).await? == tag {
            // Its queue pair goes with it.
            drop(self.clients.remove(&holder_of(tag)));
        }
        asked.reply(&self.epoch.to_be_bytes()).await.map(drop)
    }
}
