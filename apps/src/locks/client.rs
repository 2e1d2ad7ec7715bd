//! A client of a table of locks, and a lock that it holds.

use super::slot::{self, Current};
use super::{Bug, LocksError, Release, Welcome, shut_out};
use crate::lock::digest;
use crate::meeting::{self, Met};
use adverb_rdma::{
    Access, Connect, Data, Duration, Error, Instant, Line, On, Operation, Qp, Rdma, Region, SendOp,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Tags of a client: the lower half of a tag counts.
const TAGS_MAX: u32 = u32::MAX;
/// A record that changes while it is looked at is read so many times.
const TORN_TRIES: u32 = 16;
/// How long a home may take to shut a holder out.
const PATIENCE: Duration = Duration::from_ms(1000);

// Own memory: where the word's old value lands, a zero to release with, a slot to send, a record to read.
const LANDING: u64 = 0;
const ZERO: u64 = 8;
const OUT: u64 = 64;

/// What a client has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Locks acquired.
    pub acquired: u64,
    /// Of these, taken over from a holder that was shut out.
    pub taken_over: u64,
    /// Compare and swaps that found the lock held.
    pub refused: u64,
}

/// A client of a table of locks. It does one thing at a time.
pub struct Client {
    rdma: Rdma,
    qp: Qp,
    line: Line,
    own: Region,
    name: String,
    home: Welcome,
    release: Release,
    bug: Bug,
    /// Pause between two tries at a lock that is held; it doubles up to an eighth of the lease. Zero: none.
    pause: Duration,
    tags: Cell<u32>,
    /// Tags of locks that are held.
    held: RefCell<BTreeSet<u64>>,
    counted: Cell<Counted>,
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
        Ok(Client {
            rdma: rdma.clone(),
            qp,
            line,
            own,
            name: name.to_owned(),
            home,
            release: Release::default(),
            bug: Bug::default(),
            pause: Duration::from_us(20),
            tags: Cell::new(0),
            held: RefCell::default(),
            counted: Cell::default(),
        })
    }

    /// Releases in this way, and makes this mistake.
    pub fn with(self, release: Release, bug: Bug) -> Client {
        Client { release, bug, ..self }
    }

    /// Waits so long before it tries again for a lock that is held, at first. Zero: not at all.
    pub fn with_pause(self, pause: Duration) -> Client {
        Client { pause, ..self }
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
        self.counted.get()
    }

    /// The home's line: it ends with the home.
    pub fn line(&self) -> &Line {
        &self.line
    }

    fn count(&self, change: impl FnOnce(&mut Counted)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }

    fn object(&self, lock: u32) -> u64 {
        self.home.epoch.wrapping_add(lock.into())
    }

    fn check(&self, lock: u32) -> Result<(), LocksError> {
        let locks = self.home.locks;
        if lock < locks { Ok(()) } else { Err(LocksError::NoLock { lock, locks }) }
    }

    fn next_tag(&self) -> Result<u64, LocksError> {
        let count = self.tags.get();
        if count == TAGS_MAX {
            return Err(LocksError::Exhausted);
        }
        self.tags.set(count + 1);
        Ok(u64::from(self.home.holder) << 32 | u64::from(count + 1))
    }

    /// Acquires a lock, or takes it over from a holder that has kept it for longer than the lease. `None`
    /// when the patience has run out first, or the program was asked to end.
    pub async fn acquire(
        &self,
        lock: u32,
        patience: Option<Instant>,
    ) -> Result<Option<Held<'_>>, LocksError> {
        self.check(lock)?;
        let tag = self.next_tag()?;
        let (mut expected, mut seen) = (0, 0);
        let mut since = self.rdma.now().await?;
        let mut pause = self.pause;
        loop {
            // The lease counts from before it was asked for.
            let asked = self.rdma.now().await?;
            let was = self.try_acquire(lock, expected, tag).await?;
            if was == expected {
                self.count(|counted| {
                    counted.acquired += 1;
                    counted.taken_over += u64::from(was != 0);
                });
                self.held.borrow_mut().insert(tag);
                let until = asked + self.home.lease;
                return Ok(Some(Held { client: self, lock, tag, until, known: RefCell::default() }));
            }
            self.count(|counted| counted.refused += 1);
            expected = 0;
            if was == 0 {
                continue;
            }
            let now = self.rdma.now().await?;
            if was != seen {
                (seen, since, pause) = (was, now, self.pause);
            } else if now.since(since).as_ns() >= self.home.lease.as_ns() / 8 * 9
                && self.may_recover(lock, was).await?
            {
                expected = was;
                continue;
            }
            if patience.is_some_and(|patience| now >= patience) {
                return Ok(None);
            }
            if self.rdma.until(&[On::Stop], Some(now + pause)).await?.is_some() {
                return Ok(None);
            }
            pause = (pause + pause).min(Duration::from_ns(self.home.lease.as_ns() / 8)).max(self.pause);
        }
    }

    async fn try_acquire(&self, lock: u32, expected: u64, tag: u64) -> Result<u64, Error> {
        let operation = self.rdma.operation(self.object(lock), "try", &[expected, tag]);
        let was = self.swap(lock, expected, tag).await?;
        operation.end(&[was]);
        Ok(was)
    }

    async fn swap(&self, lock: u32, from: u64, to: u64) -> Result<u64, Error> {
        let at = (&self.home.words, u64::from(lock) * 8);
        self.qp.compare_swap(at, (from, to), (&self.own, LANDING)).await
    }

    /// Has the home shut out a lock's holder. False if it is this client, which holds it still.
    async fn may_recover(&self, lock: u32, tag: u64) -> Result<bool, Error> {
        match self.bug {
            Bug::NoRecovery => return Ok(false),
            Bug::NoFence => return Ok(true),
            Bug::None | Bug::EarlyRelease => {}
        }
        if super::holder_of(tag) == self.home.holder {
            // What this queue pair was asked before comes before what it is asked now.
            return Ok(!self.held.borrow().contains(&tag));
        }
        let patience = self.rdma.now().await? + PATIENCE;
        let (_line, told) = self.rdma.ask(&self.name, &shut_out(lock, tag), Some(patience)).await?;
        // Another home under this name knows nothing of the holder.
        if told == self.home.epoch.to_be_bytes() { Ok(true) } else { Err(Error::Left) }
    }

    /// Tells the oracle that a lock cannot be had.
    pub(super) fn tell_lost(&self, lock: u32) {
        self.rdma.operation(self.object(lock), "lost", &[lock.into()]).end(&[]);
    }

    /// A lock's value, without the lock: the one that was current at some time meanwhile.
    pub async fn look(&self, lock: u32) -> Result<Vec<u8>, LocksError> {
        self.check(lock)?;
        let operation = self.rdma.operation(self.object(lock), "look", &[]);
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
        self.qp.read((&self.own, into), len as u32, from).await?;
        self.own.read(into, len as usize).await
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
        self.client.held.borrow_mut().remove(&self.tag);
    }
}

impl Held<'_> {
    /// What stands in the lock's word.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    async fn check_lease(&self) -> Result<(), LocksError> {
        if self.client.rdma.now().await? >= self.until { Err(LocksError::Expired) } else { Ok(()) }
    }

    /// The value.
    pub async fn load(&self) -> Result<Vec<u8>, LocksError> {
        self.check_lease().await?;
        let client = self.client;
        let operation = client.rdma.operation(client.object(self.lock), "load", &[self.tag]);
        let current = client.read_held(self.lock).await?;
        operation.end(&[digest(&current.value)]);
        let value = current.value.clone();
        *self.known.borrow_mut() = Some(current);
        Ok(value)
    }

    /// Makes this the value.
    pub async fn store(&self, value: &[u8]) -> Result<(), LocksError> {
        let (client, seq) = (self.client, self.next_seq(value).await?);
        let operation = client.rdma.operation(client.object(self.lock), "store", &[self.tag, digest(value)]);
        let (op, data) = self.change(seq, value).await?;
        client.qp.execute(op, data).await?;
        operation.end(&[]);
        *self.known.borrow_mut() = Some(Current { seq, value: value.to_vec() });
        Ok(())
    }

    /// Gives it back. False if a compare and swap has found that somebody else has it by now.
    pub async fn release(self) -> Result<bool, LocksError> {
        let client = self.client;
        let mut arguments = vec![self.tag];
        arguments.extend(self.known.borrow().as_ref().map(|current| digest(&current.value)));
        let operation = client.rdma.operation(client.object(self.lock), "release", &arguments);
        let (op, data) = self.free()?;
        client.qp.execute(op, data).await?;
        self.freed(operation).await
    }

    /// Notes what the release was answered.
    async fn freed(&self, operation: Operation) -> Result<bool, LocksError> {
        match self.client.release {
            Release::Write => {
                operation.end(&[]);
                Ok(true)
            }
            Release::CompareSwap => {
                let was = self.client.own.load(LANDING).await?;
                operation.end(&[was]);
                Ok(was == self.tag)
            }
        }
    }

    /// Makes this the value and gives the lock back, in one list on one queue pair.
    pub async fn store_and_release(self, value: &[u8]) -> Result<bool, LocksError> {
        let (client, seq) = (self.client, self.next_seq(value).await?);
        let (object, digest) = (client.object(self.lock), digest(value));
        let stored = client.rdma.operation(object, "store", &[self.tag, digest]);
        let released = client.rdma.operation(object, "release", &[self.tag, digest]);
        let (mut first, mut last) = (self.change(seq, value).await?, self.free()?);
        if client.bug == Bug::EarlyRelease {
            core::mem::swap(&mut first, &mut last);
        }
        client.qp.execute_after(vec![first], last.0, last.1).await?;
        stored.end(&[]);
        self.freed(released).await
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
        let Client { home, own, .. } = self.client;
        let bytes = slot::emit(self.lock, seq, value);
        own.write(OUT, &bytes).await?;
        let at = u64::from(self.lock) * slot::record_len(home.value_max)
            + slot::place(seq) * slot::slot_len(home.value_max);
        let to = home.records.at(at, bytes.len() as u64)?;
        Ok((SendOp::Write(to, home.records.rkey), Data::Piece(own.piece(OUT, bytes.len() as u32)?)))
    }

    /// What makes the word 0.
    fn free(&self) -> Result<(SendOp, Data), Error> {
        let Client { home, own, release, .. } = self.client;
        let (addr, rkey) = (home.words.at(u64::from(self.lock) * 8, 8)?, home.words.rkey);
        Ok(match release {
            Release::Write => (SendOp::Write(addr, rkey), Data::Piece(own.piece(ZERO, 8)?)),
            Release::CompareSwap => {
                let op = SendOp::CompareSwap { addr, rkey, compare: self.tag, swap: 0 };
                (op, Data::Piece(own.piece(LANDING, 8)?))
            }
        })
    }
}
