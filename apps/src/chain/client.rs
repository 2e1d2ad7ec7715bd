//! A client of a store of chains.

use super::entry::{Entry, PAD};
use super::{Broken, Bug, ChainError, MORE, Share, Welcome, entry_len};
use crate::lock::digest;
use crate::meeting::{self, Met};
use adverb_rdma::{Access, Connect, Data, Duration, Error, Instant, Line, Qp, Rdma, Region, SendOp};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// An entry that is torn, or another key's, is read so many times.
const TORN_TRIES: u32 = 3;
/// How long a home may take to give more places.
const PATIENCE: Duration = Duration::from_ms(1000);

// Own memory: where a word's old value lands, an entry to write, an entry that was read.
const LANDING: u64 = 0;
const OUT: u64 = 64;

/// What a client has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Values put.
    pub puts: u64,
    /// Compare and swaps that found an entry with a follower.
    pub refused: u64,
    /// Values got.
    pub gets: u64,
    /// Entries that were read on the way to the last one, which is not counted.
    pub passed: u64,
}

/// How an entry is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// Any entry of the chain that is not before this one.
    Steered,
    /// This one and no other.
    Exact,
}

/// A client of a store. It does one thing at a time.
pub struct Client {
    rdma: Rdma,
    qp: Qp,
    line: Line,
    own: Region,
    name: String,
    home: Welcome,
    bug: Bug,
    share: Cell<Share>,
    written: Cell<u32>,
    /// By key: the entry that was the last one when it was seen.
    tails: RefCell<BTreeMap<u32, u64>>,
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
        let home = Welcome::from_bytes(&told).ok_or(Error::Garbled("a store of chains"))?;
        let own = pd.region(OUT + 2 * entry_len(home.value_max), Access::LOCAL_WRITE).await?;
        Ok(Client {
            rdma: rdma.clone(),
            qp,
            line,
            own,
            name: name.to_owned(),
            home,
            bug: Bug::default(),
            share: Cell::default(),
            written: Cell::new(0),
            tails: RefCell::default(),
            counted: Cell::default(),
        })
    }

    /// Makes this mistake.
    pub fn with(self, bug: Bug) -> Client {
        Client { bug, ..self }
    }

    /// How many keys there are.
    pub fn keys(&self) -> u32 {
        self.home.keys
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

    /// Begins with the first entries of chains again, as a client that has just come.
    pub fn forget(&self) {
        self.tails.borrow_mut().clear();
    }

    fn count(&self, change: impl FnOnce(&mut Counted)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }

    fn object(&self, key: u32) -> u64 {
        self.home.epoch.wrapping_add(key.into())
    }

    fn check(&self, key: u32) -> Result<(), ChainError> {
        let keys = self.home.keys;
        if key < keys { Ok(()) } else { Err(ChainError::NoKey { key, keys }) }
    }

    /// Where the search for a key's last entry begins.
    fn tail(&self, key: u32) -> u64 {
        self.tails.borrow().get(&key).copied().unwrap_or_else(|| self.home.address(key))
    }

    /// Makes this a key's value.
    pub async fn put(&self, key: u32, value: &[u8]) -> Result<(), ChainError> {
        self.check(key)?;
        let most = self.home.value_max;
        if value.len() > most as usize {
            return Err(ChainError::TooLong { len: value.len(), most });
        }
        let number = self.take_place().await?;
        let mut operation = Some(self.rdma.operation(self.object(key), "put", &[digest(value)]));
        let place = self.home.address(number);
        let written = self.write_entry(key, place, value).await?;
        let mut tail = self.tail(key);
        let mut was = None;
        if self.bug == Bug::TornEntry {
            self.qp.execute_after(vec![self.link(tail, place)?], written.0, written.1).await?;
            was = Some(self.own.load(LANDING).await?);
        } else {
            self.qp.execute(written.0, written.1).await?;
        }
        if self.bug == Bug::UnlinkedAck
            && let Some(operation) = operation.take()
        {
            operation.end(&[]);
        }
        loop {
            let found = match was.take() {
                Some(found) => found,
                None => {
                    let (op, data) = self.link(tail, place)?;
                    self.qp.execute(op, data).await?;
                    self.own.load(LANDING).await?
                }
            };
            if found == 0 {
                break;
            }
            self.count(|counted| counted.refused += 1);
            tail = self.last(key, found, Reading::Steered).await?.place;
        }
        self.tails.borrow_mut().insert(key, place);
        self.count(|counted| counted.puts += 1);
        if let Some(operation) = operation {
            operation.end(&[]);
        }
        Ok(())
    }

    /// A key's value.
    pub async fn get(&self, key: u32) -> Result<Vec<u8>, ChainError> {
        self.get_from(key, self.tail(key), Reading::Steered).await
    }

    /// A key's value, by way of all its entries, whatever a switch knows of them.
    pub async fn get_along(&self, key: u32) -> Result<Vec<u8>, ChainError> {
        self.check(key)?;
        self.get_from(key, self.home.address(key), Reading::Exact).await
    }

    /// How many values a key has had: entries along its chain, whatever a switch knows of them. It has one
    /// more for each put, and none twice.
    pub async fn count_values(&self, key: u32) -> Result<u32, ChainError> {
        self.check(key)?;
        let mut at = self.home.address(key);
        for values in 0..self.home.count() {
            match self.read(key, at, Reading::Exact).await?.next {
                0 => return Ok(values),
                next => at = next,
            }
        }
        Err(self.broken(key, Broken::Cycle))
    }

    async fn get_from(&self, key: u32, from: u64, how: Reading) -> Result<Vec<u8>, ChainError> {
        self.check(key)?;
        let operation = self.rdma.operation(self.object(key), "get", &[]);
        let last = self.last(key, from, how).await?;
        operation.end(&[digest(&last.value)]);
        self.tails.borrow_mut().insert(key, last.place);
        self.count(|counted| counted.gets += 1);
        Ok(last.value)
    }

    /// A place for a fresh entry.
    async fn take_place(&self) -> Result<u32, ChainError> {
        if self.share.get().count == 0 {
            let mut question = vec![MORE];
            question.extend_from_slice(&self.home.epoch.to_be_bytes());
            let patience = self.rdma.now().await? + PATIENCE;
            let (_line, told) = self.rdma.ask(&self.name, &question, Some(patience)).await?;
            // Another home under this name has nothing for who is connected to this one.
            self.share.set(Share::from_bytes(&told, &self.home).ok_or(Error::Left)?);
        }
        let Share { first, count } = self.share.get();
        let left = count.checked_sub(1).ok_or(ChainError::Full)?;
        self.share.set(Share { first: first + 1, count: left });
        Ok(first)
    }

    /// The WRITE of a fresh entry.
    async fn write_entry(&self, key: u32, place: u64, value: &[u8]) -> Result<(SendOp, Data), ChainError> {
        let count = self.written.get().checked_add(1).ok_or(ChainError::Full)?;
        self.written.set(count);
        let version = u64::from(self.home.client) << 32 | u64::from(count);
        let entry = Entry { next: 0, key: self.object(key), version, place, value: value.to_vec() };
        let (len, mut bytes) = (entry_len(self.home.value_max), entry.emit());
        bytes.resize(len as usize, 0);
        self.own.write(OUT, &bytes).await?;
        let op = SendOp::Write(self.home.entries.at(place - self.home.entries.addr, len)?, self.rkey());
        Ok((op, Data::Piece(self.own.piece(OUT, len as u32)?)))
    }

    fn rkey(&self) -> adverb_rdma::Key {
        self.home.entries.rkey
    }

    /// The compare and swap that puts an entry behind another, if that is the last one.
    fn link(&self, tail: u64, place: u64) -> Result<(SendOp, Data), ChainError> {
        let addr = self.home.entries.at(tail - self.home.entries.addr, 8)?;
        let op = SendOp::CompareSwap { addr, rkey: self.rkey(), compare: 0, swap: place };
        Ok((op, Data::Piece(self.own.piece(LANDING, 8)?)))
    }

    /// The last entry of a key's chain, from one of its entries on.
    async fn last(&self, key: u32, from: u64, how: Reading) -> Result<Entry, ChainError> {
        let mut at = from;
        for _ in 0..=self.home.count() {
            let entry = self.read(key, at, how).await?;
            if entry.next == 0 || self.bug == Bug::StaleTail {
                return Ok(entry);
            }
            if entry.next == entry.place {
                break;
            }
            self.count(|counted| counted.passed += 1);
            at = entry.next;
        }
        Err(self.broken(key, Broken::Cycle))
    }

    async fn read(&self, key: u32, at: u64, mut how: Reading) -> Result<Entry, ChainError> {
        let Welcome { entries, value_max, .. } = self.home;
        let (len, into) = (entry_len(value_max), OUT + entry_len(value_max));
        let offset = at.checked_sub(entries.addr).filter(|at| at.is_multiple_of(len));
        let Some(offset) = offset.filter(|at| at / len < u64::from(self.home.count())) else {
            return Err(self.broken(key, Broken::Address));
        };
        for _ in 0..TORN_TRIES {
            let bytes = if how == Reading::Exact { len - PAD } else { len };
            self.qp.read((&self.own, into), bytes as u32, (&entries, offset)).await?;
            let read = Entry::parse(&self.own.read(into, bytes as usize).await?);
            let whole = read.filter(|entry| entry.key == self.object(key));
            if let Some(entry) = whole.filter(|entry| how == Reading::Steered || entry.place == at) {
                return Ok(entry);
            }
            // A switch that was started anew amid a READ of several packets may have steered a part of it.
            how = Reading::Exact;
        }
        Err(self.broken(key, Broken::Entry))
    }

    /// Tells the oracle that a chain is broken.
    fn broken(&self, key: u32, what: Broken) -> ChainError {
        self.rdma.operation(self.object(key), "broken", &[what as u64]).end(&[]);
        ChainError::Broken(what)
    }
}
