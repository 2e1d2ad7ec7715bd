//! A table of locks in remote memory, as trees in disaggregated memory have it (Wang, Lu and Shu:
//! Sherman, SIGMOD 2022): a word for each lock, acquired by a compare and swap, released by a WRITE
//! behind the data on the same queue pair, in one list. And the records that the locks guard.
//!
//! One process is the table's *home*: memory of its NIC holds the words, its own memory the records, and its
//! program does nothing but connect clients, and end the connections of clients that are taken for dead.
//!
//! ```text
//! word      0: free; else the holder's tag: holder:32 count:32. No tag is used twice.
//! record    two slots, each: seq:64 len:32 crc:32 value. The current one is whole, and has the greater seq.
//!
//! acquire   word 0 ─► tag                                       a compare and swap
//! store     WRITE of the slot that is not current, seq + 1
//! release   word tag ─► 0                                       a WRITE, or a compare and swap
//! look      READ of both slots, without the lock
//! recover   of a tag that has not changed for 9/8 of the lease: the home ends its holder's queue pair;
//!           then word tag ─► own tag                            a compare and swap
//! ```
//! **A WRITE has no condition.** A holder that was stopped, or whose packets are late, would release a
//! lock that somebody else has by now, or write over his record. So a lock is taken over only when the
//! home has destroyed the queue pair of its holder: what that has under way does not arrive any more. No
//! clock is trusted for that; the lease says only when a holder is suspected. Who was suspected wrongly
//! finds its queue pair in error, and connects anew.
//!
//! **Order.** A record's WRITE and the release behind it are one list on one queue pair, which does them
//! in that order: who acquires the lock next reads the record. A holder that dies between the two leaves
//! a whole record and its tag; one that dies within the first leaves a torn slot, which is not the
//! current one.
//!
//! What the oracle is told, with the number of the lock as the object, above it the home's epoch: `try`
//! [expected, tag] → [what the word was]; `store` [tag, digest] → []; `load` [tag] → [digest]; `release`
//! [tag], or [tag, digest] if the holder knows the value → [], or what the word was, if asked; `look` []
//! → [digest]; `lost` [lock] → [], if it cannot be had.

mod client;
pub(crate) mod home;
mod slot;
pub(crate) mod table;
mod work;

pub use client::{Client, Held};
pub use work::{Work, work};

use crate::meeting::Fields;
use adverb_rdma::{Connect, Duration, Error, Listener, Rdma, Remote};
use std::fmt;
use table::Told;

/// Locks of a home at most: as many as Sherman has in 256 KiB of an adapter's memory.
pub const LOCKS_MAX: u32 = 32_768;
/// Bytes of a value at most.
pub const VALUE_MAX: u32 = 4096 - slot::HEAD as u32;
/// Clients of a home at once at most.
pub const CLIENTS_MAX: usize = 256;
/// First byte of the question by which a lock's holder is to be shut out: not that of an endpoint.
const SHUT_OUT: u8 = 0xee;

/// A mistake made on purpose, for an oracle to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// The release stands before the record in the list.
    EarlyRelease,
    /// A lock is taken over while its holder's queue pair lives.
    NoFence,
    /// Locks of dead holders are not taken over.
    NoRecovery,
}

/// How a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// By a WRITE, as Sherman does.
    #[default]
    Write,
    /// By a compare and swap.
    CompareSwap,
}

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

impl Counted {
    /// What has come since then.
    pub fn since(&self, then: &Counted) -> Counted {
        Counted {
            acquired: self.acquired - then.acquired,
            taken_over: self.taken_over - then.taken_over,
            refused: self.refused - then.refused,
        }
    }
}

/// What a home has.
#[derive(Clone, Copy, Debug)]
pub struct HomeConfig {
    /// Locks.
    pub locks: u32,
    /// Bytes of a value at most.
    pub value_max: u32,
    /// When a holder is suspected.
    pub lease: Duration,
    /// How clients are connected.
    pub connect: Connect,
}

impl Default for HomeConfig {
    fn default() -> Self {
        HomeConfig {
            locks: LOCKS_MAX,
            value_max: 64,
            lease: Duration::from_ms(2000),
            connect: Connect::default(),
        }
    }
}

/// Why something was not done under a lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LocksError {
    /// The home cannot be reached, or has shut this client out, or a call failed. Whether it had its effect
    /// is not known.
    Rdma(Error),
    /// The lease has run out by the own clock. Nothing was tried.
    Expired,
    /// There is no such lock.
    NoLock {
        /// The lock that was named.
        lock: u32,
        /// How many there are.
        locks: u32,
    },
    /// A value that no slot holds.
    TooLong {
        /// Its bytes.
        len: usize,
        /// Bytes that a slot holds.
        most: u32,
    },
    /// The client has used all of its tags.
    Exhausted,
    /// The record changed faster than it could be read.
    Torn,
}

impl From<Error> for LocksError {
    fn from(error: Error) -> LocksError {
        LocksError::Rdma(error)
    }
}

impl fmt::Display for LocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocksError::Rdma(error) => error.fmt(f),
            LocksError::Expired => f.write_str("the lease has run out; nothing was changed"),
            LocksError::NoLock { lock, locks } => {
                write!(f, "there is no lock {lock}; the home has {locks}, from 0")
            }
            LocksError::TooLong { len, most } => write!(f, "a value of {len} bytes; at most {most}"),
            LocksError::Exhausted => f.write_str("this client has used all of its tags; connect anew"),
            LocksError::Torn => f.write_str("the record was overwritten each time while it was read"),
        }
    }
}

impl std::error::Error for LocksError {}

/// What a client is told when it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Welcome {
    epoch: u64,
    lease: Duration,
    holder: u32,
    locks: u32,
    value_max: u32,
    words: Remote,
    records: Remote,
}

impl Welcome {
    fn table(&self) -> Told {
        let Welcome { epoch, lease, holder, locks, words, .. } = *self;
        Told { epoch, lease, holder, locks, words }
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.lease.as_ns().to_be_bytes());
        for number in [self.holder, self.locks, self.value_max] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.words.to_bytes());
        out.extend_from_slice(&self.records.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let (epoch, lease) = (fields.u64()?, fields.u64()?);
        let (holder, locks, value_max) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let words = Remote::from_bytes(fields.take::<{ Remote::LEN }>()?)?;
        let records = Remote::from_bytes(fields.0)?;
        // An hour bounds what a home can make a client wait.
        let sound = holder != 0
            && (1..=LOCKS_MAX).contains(&locks)
            && (1..=VALUE_MAX).contains(&value_max)
            && (1..=3_600_000_000_000).contains(&lease)
            && words.len >= u64::from(locks) * 8
            && records.len >= u64::from(locks) * slot::record_len(value_max);
        let lease = Duration::from_ns(lease);
        sound.then_some(Welcome { epoch, lease, holder, locks, value_max, words, records })
    }
}

/// The question to shut out the holder of a lock with a tag.
fn shut_out(lock: u32, tag: u64) -> Vec<u8> {
    let mut out = vec![SHUT_OUT];
    out.extend_from_slice(&lock.to_be_bytes());
    out.extend_from_slice(&tag.to_be_bytes());
    out
}

fn parse_shut_out(bytes: &[u8]) -> Option<(u32, u64)> {
    let (first, rest) = bytes.split_first()?;
    let mut fields = Fields(rest);
    let (lock, tag) = (fields.u32()?, fields.u64()?);
    (*first == SHUT_OUT && fields.0.is_empty()).then_some((lock, tag))
}

/// A tag's holder.
fn holder_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}

/// A table's home: connects clients until the program is asked to end.
pub async fn serve(rdma: &Rdma, name: &str, config: &HomeConfig) -> Result<(), Error> {
    let listener = rdma.listen(name).await?;
    serve_at(rdma, &listener, config).await
}

/// The same under a name that is listened at already.
pub async fn serve_at(rdma: &Rdma, listener: &Listener, config: &HomeConfig) -> Result<(), Error> {
    let (locks, value_max) = (config.locks.clamp(1, LOCKS_MAX), config.value_max.clamp(1, VALUE_MAX));
    let pd = rdma.create_pd().await?;
    let words = pd.device_region(u64::from(locks) * 8, home::lent()).await?;
    let records = pd.region(u64::from(locks) * slot::record_len(value_max), home::lent()).await?;
    let epoch = rdma.random().await?;
    let welcome = Welcome {
        epoch,
        lease: config.lease,
        holder: 0,
        locks,
        value_max,
        words: words.remote(),
        records: records.remote(),
    };
    let mut home = home::Home::new((rdma, &pd), (&words, locks), epoch, config.connect);
    home.serve(listener, |holder| Welcome { holder, ..welcome }.to_bytes()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_is_checked() {
        let remote = |len| Remote { addr: 4096, len, rkey: adverb_rdma::Key(5) };
        let welcome = Welcome {
            epoch: 3,
            lease: Duration::from_ms(5),
            holder: 9,
            locks: 7,
            value_max: 100,
            words: remote(56),
            records: remote(7 * slot::record_len(100)),
        };
        let bytes = welcome.to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes), Some(welcome));
        for len in 0..bytes.len() {
            assert_eq!(Welcome::from_bytes(&bytes[..len]), None);
        }
        let wrong = [
            Welcome { words: remote(55), ..welcome },
            Welcome { records: remote(7 * slot::record_len(100) - 1), ..welcome },
            Welcome { holder: 0, ..welcome },
            Welcome { locks: 0, ..welcome },
            Welcome { locks: LOCKS_MAX + 1, words: remote(u64::MAX >> 8), ..welcome },
            Welcome { value_max: 0, ..welcome },
            Welcome { lease: Duration::ZERO, ..welcome },
        ];
        for wrong in wrong {
            assert_eq!(Welcome::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_question_to_shut_out_is_nothing_else() {
        let bytes = shut_out(5, 0x3_0000_0001);
        assert_eq!(parse_shut_out(&bytes), Some((5, 0x3_0000_0001)));
        assert_eq!(holder_of(0x3_0000_0001), 3);
        for len in 0..bytes.len() {
            assert_eq!(parse_shut_out(&bytes[..len]), None);
        }
        assert_eq!(parse_shut_out(&[&bytes[..], &[0]].concat()), None);
        // Byte 0 of what a queue pair tells is a version, which this must not be.
        assert_ne!(bytes[0], 1);
    }
}
