//! A store of chains in remote memory, as Clover has it (Tsai, Shan and Zhang: Disaggregating Persistent
//! Memory and Controlling Them Remotely, USENIX ATC 2020), written from the published design only: each key
//! is a chain of entries that only grows, and its value is that of the last one.
//!
//! One process is the store's *home*: its memory holds the entries, and its program does nothing but connect
//! clients, and give them places for new entries. Clients read and write entries themselves.
//!
//! ```text
//! entry     next:64 key:64 version:64 place:64 len:32 crc:32 value. `next` is 0 or the address of another.
//!
//! put       WRITE of a fresh entry, and when that is acknowledged
//!           next of the last entry 0 ─► the fresh one's address      a compare and swap
//!           if it was not 0: on from what it was, to the end, and again
//! get       READ of the entry that was the last one when it was seen; while its `next` is not 0, the next
//! ```
//! **Linearizable, whoever helps.** A put takes place when its compare and swap does: an entry gets one
//! follower, once. A get takes place when it reads a `next` of 0. Neither depends on what a client remembers
//! or a switch knows (`adverb_switch::steer`): any entry of a key's chain is as good a place to begin as any
//! other, and the last one is the fastest. So a switch may send both to another entry *of the same chain*.
//!
//! **Places are not used twice.** A home has so many entries, clients get them by the dozen, and when all
//! are given away a put is refused ([`ChainError::Full`]). What a client had and did not use is lost with
//! it. Older entries are not collected: who comes late has to find its way along them.
//!
//! A key's number in entries is the home's epoch and more, so that two homes of one address have no key in
//! common, and a switch that remembers one's chains takes nothing of the other's for them.
//!
//! What the oracle is told, with that number as the object: `put` [digest] → []; `get` [] → [digest];
//! `broken` [what] → [], if a chain has an end that is none.

mod client;
mod entry;
mod work;

pub use client::{Client, Counted};
pub use entry::entry_len;
pub use work::{Ask, Step, Work, follow, work};

use crate::meeting::{self, Fields, Met};
use adverb_rdma::{Access, Asked, Connect, Error, Listener, On, Pd, Rdma, Region, Remote};
use entry::Entry;
use std::fmt;

/// Keys of a home at most.
pub const KEYS_MAX: u32 = 1 << 16;
/// Entries of a home at most, those that chains begin with included.
pub const ENTRIES_MAX: u32 = 1 << 24;
/// Bytes of a value at most.
pub const VALUE_MAX: u32 = 4096 - entry::HEAD as u32 - entry::PAD as u32;
/// Clients of a home at once at most.
pub const CLIENTS_MAX: usize = 512;
/// First byte of the question for more places: not that of an endpoint.
const MORE: u8 = 0xec;

/// A mistake made on purpose, for an oracle to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// A put is over before its compare and swap is answered.
    UnlinkedAck,
    /// An entry is linked before it is written.
    TornEntry,
    /// What was the last entry is taken for it still.
    StaleTail,
}

/// What a home has.
#[derive(Clone, Copy, Debug)]
pub struct HomeConfig {
    /// Keys.
    pub keys: u32,
    /// Places for entries beside those that chains begin with.
    pub entries: u32,
    /// Places that a client gets at once.
    pub share: u32,
    /// Bytes of a value at most.
    pub value_max: u32,
    /// How clients are connected.
    pub connect: Connect,
}

impl Default for HomeConfig {
    fn default() -> Self {
        HomeConfig { keys: 1024, entries: 1 << 18, share: 256, value_max: 80, connect: Connect::default() }
    }
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChainError {
    /// The home cannot be reached, or a call failed. Whether it had its effect is not known.
    Rdma(Error),
    /// There is no such key.
    NoKey {
        /// The key that was named.
        key: u32,
        /// How many there are.
        keys: u32,
    },
    /// A value that no entry holds.
    TooLong {
        /// Its bytes.
        len: usize,
        /// Bytes that an entry holds.
        most: u32,
    },
    /// The home has no place left. Nothing was changed.
    Full,
    /// A chain leads to what is no entry of it, or back to itself.
    Broken(Broken),
}

/// What is wrong with a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// An entry is torn, or another key's.
    Entry = 1,
    /// An address where no entry stands.
    Address,
    /// It has no end.
    Cycle,
}

impl From<Error> for ChainError {
    fn from(error: Error) -> ChainError {
        ChainError::Rdma(error)
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainError::Rdma(error) => error.fmt(f),
            ChainError::NoKey { key, keys } => {
                write!(f, "there is no key {key}; the home has {keys}, from 0")
            }
            ChainError::TooLong { len, most } => write!(f, "a value of {len} bytes; at most {most}"),
            ChainError::Full => f.write_str(
                "the home has no place for another entry; nothing was changed. Places are not used twice",
            ),
            ChainError::Broken(Broken::Entry) => {
                f.write_str("the chain leads to what is no whole entry of it")
            }
            ChainError::Broken(Broken::Address) => f.write_str("the chain leads to where no entry stands"),
            ChainError::Broken(Broken::Cycle) => f.write_str("the chain leads back to itself"),
        }
    }
}

impl std::error::Error for ChainError {}

/// What a client is told when it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Welcome {
    epoch: u64,
    client: u32,
    keys: u32,
    value_max: u32,
    /// All entries. The first ones are those that chains begin with, in the order of the keys.
    entries: Remote,
}

impl Welcome {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        for number in [self.client, self.keys, self.value_max] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.entries.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let epoch = fields.u64()?;
        let (client, keys, value_max) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let entries = Remote::from_bytes(fields.0)?;
        let sound = client != 0
            && (1..=KEYS_MAX).contains(&keys)
            && (1..=VALUE_MAX).contains(&value_max)
            && entries.addr.is_multiple_of(8)
            && (u64::from(keys)..=u64::from(ENTRIES_MAX)).contains(&(entries.len / entry_len(value_max)));
        sound.then_some(Welcome { epoch, client, keys, value_max, entries })
    }

    /// How many entries there are.
    fn count(&self) -> u32 {
        (self.entries.len / entry_len(self.value_max)) as u32
    }

    /// Where an entry stands.
    fn address(&self, number: u32) -> u64 {
        self.entries.addr + u64::from(number) * entry_len(self.value_max)
    }
}

/// Places that a client may write entries to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Share {
    first: u32,
    count: u32,
}

impl Share {
    fn to_bytes(self, epoch: u64) -> Vec<u8> {
        let mut out = epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.first.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out
    }

    /// Places of the home of this epoch.
    fn from_bytes(bytes: &[u8], of: &Welcome) -> Option<Share> {
        let mut fields = Fields(bytes);
        let (epoch, first, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let inside = first >= of.keys && first.checked_add(count).is_some_and(|end| end <= of.count());
        (epoch == of.epoch && fields.0.is_empty() && inside).then_some(Share { first, count })
    }
}

/// A store's home.
struct Home<'a> {
    rdma: &'a Rdma,
    pd: Pd,
    /// Peers reach it as long as it is there.
    _memory: Region,
    welcome: Welcome,
    connect: Connect,
    share: u32,
    /// The first place that was given to nobody.
    free: u32,
    clients: Vec<Met>,
}

/// A store's home: connects clients until the program is asked to end.
pub async fn serve(rdma: &Rdma, name: &str, config: &HomeConfig) -> Result<(), Error> {
    let listener = rdma.listen(name).await?;
    serve_at(rdma, &listener, config).await
}

/// The same under a name that is listened at already.
pub async fn serve_at(rdma: &Rdma, listener: &Listener, config: &HomeConfig) -> Result<(), Error> {
    let mut home = Home::new(rdma, config).await?;
    loop {
        let mut on = vec![On::Stop, On::Asked(listener)];
        let fixed = on.len();
        on.extend(home.clients.iter().map(|client| On::Gone(&client.line)));
        match rdma.until(&on, None).await? {
            Some(0) | None => return Ok(()),
            Some(1) => {
                let Some(asked) = listener.try_accept().await? else { continue };
                // One client's mistake, or its end, is not the home's.
                if let Err(error) = home.answer(asked).await {
                    rdma.say(|| format!("a client was not answered: {error}"));
                }
            }
            Some(index) => drop(home.clients.remove(index - fixed)),
        }
    }
}

impl<'a> Home<'a> {
    async fn new(rdma: &'a Rdma, config: &HomeConfig) -> Result<Home<'a>, Error> {
        let (keys, value_max) = (config.keys.clamp(1, KEYS_MAX), config.value_max.clamp(1, VALUE_MAX));
        let count = keys.saturating_add(config.entries).min(ENTRIES_MAX);
        let pd = rdma.create_pd().await?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = pd.region(u64::from(count) * entry_len(value_max), access).await?;
        let epoch = rdma.random().await?;
        let welcome = Welcome { epoch, client: 0, keys, value_max, entries: memory.remote() };
        for number in 0..keys {
            let (key, place) = (epoch.wrapping_add(number.into()), welcome.address(number));
            let first = Entry { next: 0, key, version: 0, place, value: Vec::new() };
            memory.write(u64::from(number) * entry_len(value_max), &first.emit()).await?;
        }
        let (connect, share) = (config.connect, config.share.max(1));
        Ok(Home { rdma, pd, _memory: memory, welcome, connect, share, free: keys, clients: Vec::new() })
    }

    async fn answer(&mut self, asked: Asked) -> Result<(), Error> {
        if asked.attributes().first() == Some(&MORE) {
            let Welcome { epoch, .. } = self.welcome;
            // Another home's client gets nothing of this one.
            let count = match asked.attributes()[1..] == epoch.to_be_bytes() {
                true => self.share.min(self.welcome.count() - self.free),
                false => 0,
            };
            let share = Share { first: self.free, count };
            // Lost with an answer that does not arrive, as with a client that dies.
            self.free += count;
            return asked.reply(&share.to_bytes(epoch)).await.map(drop);
        }
        if self.clients.len() >= CLIENTS_MAX {
            // Not answered, so refused.
            return Ok(());
        }
        // Versions name their client.
        let Some(client) = self.welcome.client.checked_add(1) else { return Ok(()) };
        self.welcome.client = client;
        let welcome = self.welcome.to_bytes();
        let met = meeting::admit(self.rdma, &self.pd, asked, &welcome, &self.connect).await?;
        self.clients.push(met);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn welcome() -> Welcome {
        let entries = Remote { addr: 4096, len: 10 * entry_len(100), rkey: adverb_rdma::Key(5) };
        Welcome { epoch: 3, client: 9, keys: 7, value_max: 100, entries }
    }

    #[test]
    fn a_welcome_is_checked() {
        let welcome = welcome();
        let bytes = welcome.to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes), Some(welcome));
        assert_eq!((welcome.count(), welcome.address(7)), (10, 4096 + 7 * entry_len(100)));
        for len in 0..bytes.len() {
            assert_eq!(Welcome::from_bytes(&bytes[..len]), None);
        }
        let of = |addr, len| Remote { addr, len, ..welcome.entries };
        let wrong = [
            Welcome { entries: of(4096, 7 * entry_len(100) - 1), ..welcome },
            Welcome { entries: of(4097, 10 * entry_len(100)), ..welcome },
            Welcome { entries: of(4096, (1 << 25) * entry_len(100)), ..welcome },
            Welcome { client: 0, ..welcome },
            Welcome { keys: 0, ..welcome },
            Welcome { keys: KEYS_MAX + 1, entries: of(0, 1 << 40), ..welcome },
            Welcome { value_max: 0, ..welcome },
            Welcome { value_max: VALUE_MAX + 1, entries: of(0, 1 << 30), ..welcome },
        ];
        for wrong in wrong {
            assert_eq!(Welcome::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn places_are_the_homes_and_begin_behind_the_chains() {
        let of = welcome();
        let share = Share { first: 7, count: 3 };
        assert_eq!(Share::from_bytes(&share.to_bytes(3), &of), Some(share));
        for (share, epoch) in [
            (share, 4),
            (Share { first: 6, count: 1 }, 3),
            (Share { first: 8, count: 3 }, 3),
            (Share { first: u32::MAX, count: 3 }, 3),
        ] {
            assert_eq!(Share::from_bytes(&share.to_bytes(epoch), &of), None, "{share:?}");
        }
        assert_eq!(Share::from_bytes(&[&share.to_bytes(3)[..], &[0]].concat(), &of), None);
    }
}
