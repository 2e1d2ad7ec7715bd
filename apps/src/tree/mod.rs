//! A B+tree in remote memory, as Sherman has it (Wang, Lu and Shu: Sherman, SIGMOD 2022): a passive home,
//! whose memory clients read and write one-sidedly; lock words on the home's NIC; releases behind the data,
//! in one list on one queue pair.
//!
//! ```text
//! pages   of 1 KB in the home's memory, numbered from 1; `page` says what is in one
//! words   on its NIC: a lock for each hash of a page's number; ROOT; NEXT, the first page never used
//!
//! get     pages from the root down, without a lock; then right, as far as the key lies beyond a page
//! put     LOCK; READ the leaf; [WRITE the entry's 18 bytes, WRITE 0 to the lock]
//! split   LOCK; READ; [WRITE the new sibling, WRITE the header, (WRITE the entry,) WRITE 0 to the lock];
//!         then a put of the sibling's first key one level up
//! raise   LOCK of page 0; READ ROOT and its page; [WRITE the new root, WRITE ROOT, WRITE 0 to the lock]
//! ```
//! **One lock at a time.** A split is done when its list is: the sibling can be reached by the left page's
//! `right`, which everybody follows (a B-link tree). The entry one level up is a short cut. If the client
//! dies before it is there, whoever has to go right next puts it there.
//!
//! **Nothing is torn for good.** The sibling is written before anything leads to it. What others can reach is
//! changed by entries and headers, a packet each. So a holder that dies leaves a page that is as it was
//! before the change, or after it, or has the split without the entry, which then is not put. Its lock is
//! taken over as in [`locks`](crate::locks): the home ends its queue pair first.
//!
//! **Readers.** What was found was there. That a key was *not* found may be due to a split while the page's
//! packets were read: its entry had moved on, and its place was taken. So the header is read again, after the
//! page has come: as long as it is the same, no entry has moved.
//!
//! **What is not Sherman's.** Its splits write the left page anew, and its pages have versions in front and
//! at the end: both can be torn for good. Its clients of one process hand locks over to each other; here each
//! asks the home.
//!
//! What the oracle is told. Of keys, with the key as the object: `put` [value] → []; `remove` [] → []; `get`
//! and `seen` (by a scan) [] → [value, or 0 if there is none]. Of locks, as in [`locks`](crate::locks):
//! `try`, `release`, `lost`. And for counts: `split`, `raise`, `heal`, `move-right`, `torn`, `take-over`,
//! `scan`.

mod change;
mod client;
mod page;
mod work;

pub use client::{Client, Did};
pub use page::{ENTRIES, PAGE};
pub use work::{Work, work};

use crate::locks::home::{Home, lent};
use crate::locks::table::Told;
use crate::locks::{LOCKS_MAX, LocksError};
use crate::meeting::Fields;
use adverb_rdma::{Connect, Duration, Error, Listener, Rdma, Remote};
use page::{Header, NO_KEY, Page};
use std::fmt;

/// Pages of a tree at most: 1 GiB.
pub const PAGES_MAX: u64 = 1 << 20;
/// The greatest key.
pub const KEY_MAX: u64 = NO_KEY - 1;
/// Least entries of a full page: both halves of a split have some.
pub const FANOUT_MIN: u32 = 4;

/// A mistake made on purpose, for an oracle to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// The release stands before the data in the list.
    EarlyRelease,
    /// A lock is taken over while its holder's queue pair lives.
    NoFence,
    /// The left half of a split leads past its sibling.
    NoSibling,
    /// Entries are believed without their versions and CRC.
    TornEntry,
}

/// What a home has.
#[derive(Clone, Copy, Debug)]
pub struct HomeConfig {
    /// Lock words.
    pub locks: u32,
    /// Pages, with number 0, which is none.
    pub pages: u64,
    /// Entries of a full page.
    pub fanout: u32,
    /// Keys that are there from the beginning: so many of them, from 0 on, in such steps, with [`loaded`]
    /// values.
    pub keys: (u64, u64),
    /// When a holder is suspected.
    pub lease: Duration,
    /// How clients are connected.
    pub connect: Connect,
}

impl Default for HomeConfig {
    fn default() -> Self {
        HomeConfig {
            locks: LOCKS_MAX,
            pages: 1 << 16,
            fanout: ENTRIES as u32,
            keys: (0, 1),
            lease: Duration::from_ms(2000),
            connect: Connect::default(),
        }
    }
}

/// The value that a key has which is there from the beginning.
pub fn loaded(key: u64) -> u64 {
    key + 1
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// A lock could not be asked for; the home cannot be reached, or has shut this client out.
    Locks(LocksError),
    /// A lock was not free in time, or the program was asked to end.
    Busy,
    /// No page is left for a split.
    Full,
    /// No key: the greatest one is one less.
    NoKey,
    /// A page changed each time while it was read.
    Torn,
    /// Pages do not lead to the key. The home's memory is not a tree.
    Astray,
}

impl From<LocksError> for TreeError {
    fn from(error: LocksError) -> TreeError {
        TreeError::Locks(error)
    }
}

impl From<Error> for TreeError {
    fn from(error: Error) -> TreeError {
        TreeError::Locks(LocksError::Rdma(error))
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::Locks(error) => error.fmt(f),
            TreeError::Busy => f.write_str("a lock was not free in time"),
            TreeError::Full => f.write_str("the home has no page left for a split"),
            TreeError::NoKey => write!(f, "{NO_KEY} is no key; the greatest is {KEY_MAX}"),
            TreeError::Torn => f.write_str("a page was written to each time while it was read"),
            TreeError::Astray => f.write_str("the pages at the home are no tree"),
        }
    }
}

impl std::error::Error for TreeError {}

/// What a client is told when it comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Welcome {
    epoch: u64,
    lease: Duration,
    holder: u32,
    locks: u32,
    fanout: u32,
    keys: (u64, u64),
    words: Remote,
    pages: Remote,
}

impl Welcome {
    fn table(&self) -> Told {
        let Welcome { epoch, lease, holder, locks, words, .. } = *self;
        Told { epoch, lease, holder, locks, words }
    }

    /// Where ROOT and NEXT stand among the words.
    fn root(&self) -> u64 {
        u64::from(self.locks) * 8
    }

    fn next(&self) -> u64 {
        self.root() + 8
    }

    /// How many pages there are.
    fn page_count(&self) -> u64 {
        self.pages.len / PAGE
    }

    fn to_bytes(self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.lease.as_ns().to_be_bytes());
        for number in [self.holder, self.locks, self.fanout] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.keys.0.to_be_bytes());
        out.extend_from_slice(&self.keys.1.to_be_bytes());
        out.extend_from_slice(&self.words.to_bytes());
        out.extend_from_slice(&self.pages.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let (epoch, lease) = (fields.u64()?, fields.u64()?);
        let (holder, locks, fanout) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let keys = (fields.u64()?, fields.u64()?);
        let words = Remote::from_bytes(fields.take::<{ Remote::LEN }>()?)?;
        let pages = Remote::from_bytes(fields.0)?;
        // An hour bounds what a home can make a client wait.
        let sound = holder != 0
            && (1..=LOCKS_MAX).contains(&locks)
            && (FANOUT_MIN..=ENTRIES as u32).contains(&fanout)
            && (1..=3_600_000_000_000).contains(&lease)
            && words.len >= u64::from(locks) * 8 + 16
            && pages.len >= 2 * PAGE;
        let lease = Duration::from_ns(lease);
        sound.then_some(Welcome { epoch, lease, holder, locks, fanout, keys, words, pages })
    }
}

/// The lock of a page.
fn lock_of(page: u64, locks: u32) -> u32 {
    // The finalizer of MurmurHash3: all bits depend on all.
    let mixed = (page ^ page >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    ((mixed ^ mixed >> 33) % u64::from(locks)) as u32
}

/// A key as the oracle names it: apart from locks.
fn object(epoch: u64, key: u64) -> u64 {
    epoch.wrapping_add(1 << 32).wrapping_add(key)
}

/// The pages of a tree with such keys, numbered from 1, level by level; the last one is the root. Pages are
/// three quarters full.
fn load((count, step): (u64, u64), fanout: u32) -> Vec<Page> {
    let full = (fanout as usize * 3).div_ceil(4);
    let mut entries: Vec<(u64, u64)> = (0..count)
        .map(|n| n.saturating_mul(step.max(1)).min(KEY_MAX))
        .map(|key| (key, loaded(key)))
        .collect();
    entries.dedup_by_key(|(key, _)| *key);
    let mut pages = Vec::new();
    for level in 0.. {
        let first = pages.len() as u64 + 1;
        let mut above = Vec::new();
        // Even a tree without keys has a leaf.
        for at in (0..entries.len().max(1)).step_by(full) {
            let part = &entries[at..entries.len().min(at + full)];
            let number = first + above.len() as u64;
            let low = if at == 0 { 0 } else { part[0].0 };
            let (high, right) = entries.get(at + full).map_or((NO_KEY, 0), |next| (next.0, number + 1));
            pages.push(Page::new(Header { level, low, high, right, splits: 0 }, part));
            above.push((low, number));
        }
        if above.len() == 1 {
            break;
        }
        entries = above;
    }
    pages
}

/// A tree's home: connects clients until the program is asked to end.
pub async fn serve(rdma: &Rdma, name: &str, config: &HomeConfig) -> Result<(), TreeError> {
    let listener = rdma.listen(name).await?;
    serve_at(rdma, &listener, config, || {}).await
}

/// The same under a name that is listened at already; says when it is ready.
pub async fn serve_at(
    rdma: &Rdma,
    listener: &Listener,
    config: &HomeConfig,
    ready: impl FnOnce(),
) -> Result<(), TreeError> {
    let locks = config.locks.clamp(1, LOCKS_MAX);
    let fanout = config.fanout.clamp(FANOUT_MIN, ENTRIES as u32);
    let count = config.pages.clamp(2, PAGES_MAX);
    if config.keys.0 / 2 >= count * u64::from(fanout) {
        // Not worth the memory that building it takes.
        return Err(TreeError::Full);
    }
    let made = load(config.keys, fanout);
    if made.len() as u64 >= count {
        return Err(TreeError::Full);
    }
    let pd = rdma.create_pd().await?;
    let words = pd.device_region(u64::from(locks) * 8 + 16, lent()).await?;
    let pages = pd.region(count * PAGE, lent()).await?;
    let epoch = rdma.random().await?;
    let welcome = Welcome {
        epoch,
        lease: config.lease,
        holder: 0,
        locks,
        fanout,
        keys: config.keys,
        words: words.remote(),
        pages: pages.remote(),
    };
    for (number, page) in (1..).zip(&made) {
        for (key, value) in page.sorted().into_iter().filter(|_| page.header.level == 0) {
            rdma.operation(object(epoch, key), "put", &[value]).end(&[]);
        }
        pages.write(number * PAGE, &page.emit(number)).await?;
    }
    words.store(welcome.root(), made.len() as u64).await?;
    words.store(welcome.next(), made.len() as u64 + 1).await?;
    ready();
    let mut home = Home::new((rdma, &pd), (&words, locks), epoch, config.connect);
    Ok(home.serve(listener, |holder| Welcome { holder, ..welcome }.to_bytes()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_is_checked() {
        let remote = |len| Remote { addr: 0, len, rkey: adverb_rdma::Key(5) };
        let welcome = Welcome {
            epoch: 3,
            lease: Duration::from_ms(5),
            holder: 9,
            locks: 7,
            fanout: 54,
            keys: (7, 1),
            words: remote(72),
            pages: remote(2 * PAGE),
        };
        let bytes = welcome.to_bytes();
        assert_eq!(Welcome::from_bytes(&bytes), Some(welcome));
        for len in 0..bytes.len() {
            assert_eq!(Welcome::from_bytes(&bytes[..len]), None);
        }
        let wrong = [
            Welcome { words: remote(71), ..welcome },
            Welcome { pages: remote(2 * PAGE - 1), ..welcome },
            Welcome { holder: 0, ..welcome },
            Welcome { locks: 0, ..welcome },
            Welcome { fanout: 55, ..welcome },
            Welcome { fanout: 3, ..welcome },
            Welcome { lease: Duration::ZERO, ..welcome },
        ];
        for wrong in wrong {
            assert_eq!(Welcome::from_bytes(&wrong.to_bytes()), None, "{wrong:?}");
        }
    }

    /// Each key is found from the root, each level is a chain that covers all keys, and each child is covered
    /// as its entry says.
    #[test]
    fn a_loaded_tree_is_one() {
        for (count, step, fanout) in
            [(0, 1, 54), (1, 7, 4), (41, 2, 54), (42, 2, 54), (1000, 3, 4), (5000, 1, 54)]
        {
            let pages = load((count, step), fanout);
            let page = |number: u64| &pages[number as usize - 1];
            let root = pages.len() as u64;
            for n in 0..count {
                let (key, mut at) = (n * step, root);
                while page(at).header.level > 0 {
                    at = page(at).child(key).unwrap();
                }
                let leaf = page(at);
                assert_eq!(leaf.find(key).map(|place| leaf.entries[place].value), Some(key + 1));
            }
            let (mut low, mut level) = (0, 0);
            for (number, page) in (1..).zip(&pages) {
                assert!(page.sorted().len() <= fanout as usize);
                if page.header.level > level {
                    (low, level) = (0, page.header.level);
                }
                assert_eq!((page.header.level, page.header.low), (level, low));
                low = page.header.high;
                assert_eq!(page.header.right, if low == NO_KEY { 0 } else { number + 1 });
            }
            assert_eq!((page(root).header.low, page(root).header.high), (0, NO_KEY));
        }
    }
}
