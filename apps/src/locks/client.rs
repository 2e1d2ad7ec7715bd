//! A client of a table of locks, and a lock that it holds.

use super::slot::{self, Current};
use super::table::{OWN, Words};
use super::{Bug, Counted, LocksError, Release, Welcome};
use crate::lock::digest;
use crate::meeting::{self, Met};
use adverb_rdma::{Access, Connect, Data, Duration, Error, Instant, Line, Rdma, SendOp};
use std::cell::RefCell;

/// A record that changes while it is looked at is read so many times.
const TORN_TRIES: u32 = 16;

// Own memory behind the words': a slot to send, then a record to read.
const OUT: u64 = OWN;

/// A client of a table of locks. It does one thing at a time.
pub struct Client {
    words: Words,
    home: Welcome,
}

impl Client {
    /// Connects to a home. Until the deadline it tries again while nobody listens there.
    pub async fn open(
        rdma: &Rdma,
        name: &str,
        connect: &Connect,
        deadline: Option<Instant>,
    ) -> Result<Client, Error> {
        let pd = rdma.create_pd().await?;
        let (Met { qp, line }, told) = meeting::join(rdma, &pd, name, &[], connect, deadline).await?;
        let home = Welcome::from_bytes(&told).ok_or(Error::Garbled("a table of locks"))?;
        let len = OUT + slot::slot_len(home.value_max) + slot::record_len(home.value_max);
        let own = pd.region(len, Access::LOCAL_WRITE).await?;
        let words = Words::new(rdma, name, (qp, line), own, home.table());
        Ok(Client { words, home })
    }

    /// Releases in this way, and makes this mistake.
    pub fn with(mut self, release: Release, bug: Bug) -> Client {
        (self.words.release, self.words.bug) = (release, bug);
        self
    }

    /// Waits so long before it tries again for a lock that is held, at first. Zero: not at all.
    pub fn with_pause(mut self, pause: Duration) -> Client {
        self.words.pause = pause;
        self
    }

    /// When a holder is suspected.
    pub fn lease(&self) -> Duration {
        self.home.lease
    }

    /// How many locks there are.
    pub fn locks(&self) -> u32 {
        self.home.locks
    }

    /// Bytes of a value at most.
    pub fn value_max(&self) -> u32 {
        self.home.value_max
    }

    /// What it has done.
    pub fn counted(&self) -> Counted {
        self.words.counted()
    }

    /// The home's line: it ends with the home.
    pub fn line(&self) -> &Line {
        &self.words.line
    }

    fn check(&self, lock: u32) -> Result<(), LocksError> {
        let locks = self.home.locks;
        if lock < locks { Ok(()) } else { Err(LocksError::NoLock { lock, locks }) }
    }

    /// Acquires a lock, or takes it over from a holder that has kept it for longer than the lease. `None`
    /// when the patience has run out first, or the program was asked to end.
    pub async fn acquire(
        &self,
        lock: u32,
        patience: Option<Instant>,
    ) -> Result<Option<Held<'_>>, LocksError> {
        self.check(lock)?;
        let acquired = self.words.acquire(lock, patience).await?;
        Ok(acquired.map(|acquired| Held {
            client: self,
            lock,
            tag: acquired.tag,
            until: acquired.until,
            known: RefCell::default(),
        }))
    }

    /// Tells the oracle that a lock cannot be had.
    pub(super) fn tell_lost(&self, lock: u32) {
        self.words.tell_lost(lock);
    }

    /// A lock's value, without the lock: the one that was current at some time meanwhile.
    pub async fn look(&self, lock: u32) -> Result<Vec<u8>, LocksError> {
        self.check(lock)?;
        let operation = self.words.rdma.operation(self.words.object(lock), "look", &[]);
        let mut before = None;
        for _ in 0..TORN_TRIES {
            let record = self.read(lock).await?;
            // Beside a slot that is torn the other one may be older than the one that was current when the
            // READ came by: not if it has been there all the time between two READs.
            if let Some(current) = slot::current(lock, &record)
                && (slot::is_whole(lock, &record) || before == Some(current.seq))
            {
                operation.end(&[digest(&current.value)]);
                return Ok(current.value);
            }
            before = slot::current(lock, &record).map(|current| current.seq);
        }
        Err(LocksError::Torn)
    }

    async fn read(&self, lock: u32) -> Result<Vec<u8>, Error> {
        let len = slot::record_len(self.home.value_max);
        let into = OUT + slot::slot_len(self.home.value_max);
        let from = (&self.home.records, u64::from(lock) * len);
        self.words.qp.read((&self.words.own, into), len as u32, from).await?;
        self.words.own.read(into, len as usize).await
    }

    /// The current value, for the holder of the lock: nobody else writes.
    async fn read_held(&self, lock: u32) -> Result<Current, LocksError> {
        slot::current(lock, &self.read(lock).await?).ok_or(LocksError::Torn)
    }
}

/// A lock that is held. Dropped without [`release`](Held::release) it stays so until its lease has run out.
pub struct Held<'a> {
    client: &'a Client,
    lock: u32,
    tag: u64,
    until: Instant,
    /// The record, as far as this holder knows it.
    known: RefCell<Option<Current>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.client.words.forget(self.tag);
    }
}

impl Held<'_> {
    /// What stands in the lock's word.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    async fn check_lease(&self) -> Result<(), LocksError> {
        self.client.words.check_lease(self.until).await
    }

    /// The value.
    pub async fn load(&self) -> Result<Vec<u8>, LocksError> {
        self.check_lease().await?;
        let client = self.client;
        let operation = client.words.rdma.operation(client.words.object(self.lock), "load", &[self.tag]);
        let current = client.read_held(self.lock).await?;
        operation.end(&[digest(&current.value)]);
        let value = current.value.clone();
        *self.known.borrow_mut() = Some(current);
        Ok(value)
    }

    /// Makes this the value.
    pub async fn store(&self, value: &[u8]) -> Result<(), LocksError> {
        let (client, seq) = (self.client, self.next_seq(value).await?);
        let operation =
            client.words.rdma.operation(client.words.object(self.lock), "store", &[self.tag, digest(value)]);
        let (op, data) = self.change(seq, value).await?;
        client.words.qp.execute(op, data).await?;
        operation.end(&[]);
        *self.known.borrow_mut() = Some(Current { seq, value: value.to_vec() });
        Ok(())
    }

    /// Gives it back. False if a compare and swap has found that somebody else has it by now.
    pub async fn release(self) -> Result<bool, LocksError> {
        let client = self.client;
        let mut arguments = vec![self.tag];
        arguments.extend(self.known.borrow().as_ref().map(|current| digest(&current.value)));
        let operation = client.words.rdma.operation(client.words.object(self.lock), "release", &arguments);
        let (op, data) = client.words.free(self.lock, self.tag)?;
        client.words.qp.execute(op, data).await?;
        client.words.freed(self.tag, operation).await
    }

    /// Makes this the value and gives the lock back, in one list on one queue pair.
    pub async fn store_and_release(self, value: &[u8]) -> Result<bool, LocksError> {
        let (client, seq) = (self.client, self.next_seq(value).await?);
        let (object, digest) = (client.words.object(self.lock), digest(value));
        let stored = client.words.rdma.operation(object, "store", &[self.tag, digest]);
        let released = client.words.rdma.operation(object, "release", &[self.tag, digest]);
        let (mut first, mut last) = (self.change(seq, value).await?, client.words.free(self.lock, self.tag)?);
        if client.words.bug == Bug::EarlyRelease {
            core::mem::swap(&mut first, &mut last);
        }
        client.words.qp.execute_after(vec![first], last.0, last.1).await?;
        stored.end(&[]);
        client.words.freed(self.tag, released).await
    }

    /// The sequence number of a value, if it can be stored.
    async fn next_seq(&self, value: &[u8]) -> Result<u64, LocksError> {
        let most = self.client.home.value_max;
        if value.len() > most as usize {
            return Err(LocksError::TooLong { len: value.len(), most });
        }
        let known = self.known.borrow().as_ref().map(|current| current.seq);
        let seq = match known {
            Some(seq) => seq,
            None => self.client.read_held(self.lock).await?.seq,
        };
        self.check_lease().await?;
        Ok(seq + 1)
    }

    /// The WRITE of a slot.
    async fn change(&self, seq: u64, value: &[u8]) -> Result<(SendOp, Data), Error> {
        let Client { home, words: Words { own, .. } } = self.client;
        let bytes = slot::emit(self.lock, seq, value);
        own.write(OUT, &bytes).await?;
        let at = u64::from(self.lock) * slot::record_len(home.value_max)
            + slot::place(seq) * slot::slot_len(home.value_max);
        let to = home.records.at(at, bytes.len() as u64)?;
        Ok((SendOp::Write(to, home.records.rkey), Data::Piece(own.piece(OUT, bytes.len() as u32)?)))
    }
}
