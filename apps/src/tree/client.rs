//! A client of a tree: what it knows of the home, how it finds pages, and how it reads.

use super::page::{HEADER, Header, PAGE, Page};
use super::{Bug, KEY_MAX, TreeError, Welcome, object};
use crate::locks::table::{OWN, Words};
use crate::locks::{self, Counted, Release};
use crate::meeting::{self, Met};
use adverb_rdma::{Access, Connect, Data, Duration, Error, Instant, Line, Rdma, SendOp};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A page that changes while it is read is read so many times.
const TORN_TRIES: u32 = 16;
/// Bytes of a READ that is one packet at every path MTU.
pub const READ_MIN: u32 = 256;
/// Pages on the way to a key at most, and times that a way is begun anew.
pub(super) const STEPS: u32 = 4096;
pub(super) const WAYS: u32 = 16;
/// Pages that a client takes from the home at once.
pub(super) const TAKEN: u64 = 4;
/// Pages above the leaves that a client remembers.
const INDEX_MAX: usize = 4096;

// Own memory behind the words': a word, then what is sent, then what is read.
pub(super) const WORD: u64 = OWN;
pub(super) const OUT_HEADER: u64 = 128;
pub(super) const OUT_ENTRY: u64 = 192;
pub(super) const OUT_PAGE: u64 = 256;
const IN_PAGE: u64 = OUT_PAGE + PAGE;
const IN_HEADER: u64 = IN_PAGE + PAGE;
const OWN_LEN: u64 = IN_HEADER + 64;

/// What a client has met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Did {
    /// Pages split.
    pub splits: u64,
    /// Roots put above others.
    pub raised: u64,
    /// Steps to the right.
    pub moved_right: u64,
    /// Entries put one level up that a dead client, or a late one, has left out.
    pub healed: u64,
    /// Pages that were torn when they were read.
    pub torn: u64,
}

impl Did {
    /// What has come since then.
    pub fn since(&self, then: &Did) -> Did {
        Did {
            splits: self.splits - then.splits,
            raised: self.raised - then.raised,
            moved_right: self.moved_right - then.moved_right,
            healed: self.healed - then.healed,
            torn: self.torn - then.torn,
        }
    }
}

/// A client of a tree. It does one thing at a time.
pub struct Client {
    pub(super) words: Words,
    pub(super) home: Welcome,
    pub(super) bug: Bug,
    /// Bytes of a READ of a part of a page.
    reads: u32,
    /// How long a lock is waited for.
    pub(super) patience: Option<Duration>,
    /// How long a lock is kept before the change is posted, for trials.
    pub(super) dawdle: Cell<Duration>,
    /// Pages taken from the home that nothing leads to.
    pub(super) spare: RefCell<Vec<u64>>,
    /// The home has no more.
    pub(super) full: Cell<bool>,
    /// The root as it was last seen; 0 if it is not known.
    pub(super) root: Cell<u64>,
    /// Pages above the leaves. They may be old: then they lead to a page left of the right one.
    index: RefCell<BTreeMap<u64, Page>>,
    did: Cell<Did>,
}

/// Opening, and what it is told.
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
        let home = Welcome::from_bytes(&told).ok_or(Error::Garbled("a tree"))?;
        let own = pd.region(OWN_LEN, Access::LOCAL_WRITE).await?;
        Ok(Client {
            words: Words::new(rdma, name, (qp, line), own, home.table()),
            home,
            bug: Bug::default(),
            reads: PAGE as u32,
            patience: None,
            dawdle: Cell::new(Duration::ZERO),
            spare: RefCell::default(),
            full: Cell::new(false),
            root: Cell::new(0),
            index: RefCell::default(),
            did: Cell::default(),
        })
    }

    /// Releases in this way, and makes this mistake.
    pub fn with(mut self, release: Release, bug: Bug) -> Client {
        self.words.release = release;
        self.words.bug = match bug {
            Bug::EarlyRelease => locks::Bug::EarlyRelease,
            Bug::NoFence => locks::Bug::NoFence,
            Bug::None | Bug::NoSibling | Bug::TornEntry => locks::Bug::None,
        };
        self.bug = bug;
        self
    }

    /// Waits for a lock for so long; then an operation ends with [`TreeError::Busy`].
    pub fn with_patience(mut self, patience: Duration) -> Client {
        self.patience = Some(patience);
        self
    }

    /// Waits so long before it tries again for a lock that is held, at first. Zero: not at all.
    pub fn with_pause(mut self, pause: Duration) -> Client {
        self.words.pause = pause;
        self
    }

    /// Reads pages in READs of [`READ_MIN`] bytes, one list of them for a page. They are one packet each at
    /// every path MTU: a switch that has not heard of it can count no others, and does not decide for their
    /// queue pair.
    pub fn with_short_reads(mut self) -> Client {
        self.reads = READ_MIN;
        self
    }

    /// The next change is posted so long after its lock was acquired.
    pub(super) fn dawdle(&self, time: Duration) {
        self.dawdle.set(time);
    }

    /// When a holder is suspected.
    pub fn lease(&self) -> Duration {
        self.home.lease
    }

    /// Keys that were there from the beginning: so many, from 0 on, in such steps.
    pub fn loaded(&self) -> (u64, u64) {
        self.home.keys
    }

    /// Names the home's life.
    pub fn epoch(&self) -> u64 {
        self.home.epoch
    }

    /// What it has done with locks.
    pub fn counted(&self) -> Counted {
        self.words.counted()
    }

    /// What it has met.
    pub fn did(&self) -> Did {
        self.did.get()
    }

    /// The home's line: it ends with the home.
    pub fn line(&self) -> &Line {
        &self.words.line
    }

    /// Counts something, and tells the oracle that it has happened.
    pub(super) fn note(&self, name: &'static str, change: impl FnOnce(&mut Did)) {
        let mut did = self.did.get();
        change(&mut did);
        self.did.set(did);
        self.words.rdma.operation(self.home.epoch, name, &[]).end(&[]);
    }
}

/// Pages.
impl Client {
    /// Where a page begins at the home, if there is such a page.
    pub(super) fn place(&self, page: u64) -> Result<u64, TreeError> {
        if page == 0 || page >= self.home.page_count() { Err(TreeError::Astray) } else { Ok(page * PAGE) }
    }

    /// A page as it is now, or was in parts.
    pub(super) async fn read(&self, page: u64) -> Result<Page, TreeError> {
        let at = self.place(page)?;
        let Words { qp, own, .. } = &self.words;
        let checked = self.bug != Bug::TornEntry;
        let mut list = Vec::new();
        for part in (0..PAGE).step_by(self.reads as usize) {
            let from = self.home.pages.at(at + part, self.reads.into())?;
            let into = own.piece(IN_PAGE + part, self.reads)?;
            list.push((SendOp::Read(from, self.home.pages.rkey), Data::Piece(into)));
        }
        let last = list.pop().ok_or(TreeError::Astray)?;
        for _ in 0..TORN_TRIES {
            qp.execute_after(list.clone(), last.0, last.1.clone()).await?;
            let bytes = own.read(IN_PAGE, PAGE as usize).await?;
            if let Some(page) = Page::parse(page, &bytes, checked) {
                return Ok(page);
            }
            self.note("torn", |did| did.torn += 1);
        }
        Err(TreeError::Torn)
    }

    /// Whether a page that was read before has this header still. An entry that was not found there was not
    /// there at some time since it was asked for only then: a split may have moved it before its packet was
    /// read.
    async fn is_still(&self, page: u64, header: &Header) -> Result<bool, TreeError> {
        let at = self.place(page)?;
        let Words { qp, own, .. } = &self.words;
        qp.read((own, IN_HEADER), HEADER as u32, (&self.home.pages, at)).await?;
        Ok(Header::parse(page, &own.read(IN_HEADER, HEADER).await?).as_ref() == Some(header))
    }

    /// A page on the way down: true if it comes from the index, and so may be old.
    async fn on_the_way(&self, page: u64) -> Result<(Page, bool), TreeError> {
        if let Some(known) = self.index.borrow().get(&page) {
            return Ok((known.clone(), true));
        }
        let read = self.read(page).await?;
        if read.header.level > 0 {
            let mut index = self.index.borrow_mut();
            if index.len() >= INDEX_MAX {
                index.pop_first();
            }
            index.insert(page, read.clone());
        }
        Ok((read, false))
    }

    pub(super) async fn root(&self) -> Result<u64, TreeError> {
        if self.root.get() == 0 {
            let Words { qp, own, .. } = &self.words;
            qp.read((own, WORD), 8, (&self.home.words, self.home.root())).await?;
            self.root.set(own.load(WORD).await?);
        }
        Ok(self.root.get())
    }

    /// Forgets what it remembers of the way to a key.
    pub(super) fn lose(&self, key: u64) {
        self.root.set(0);
        self.index.borrow_mut().retain(|_, page| !page.header.covers(key));
    }

    pub(super) fn move_right(&self, from: &Page) -> Result<u64, TreeError> {
        self.note("move-right", |did| did.moved_right += 1);
        if from.header.right == 0 { Err(TreeError::Astray) } else { Ok(from.header.right) }
    }

    /// A page of a level: that of a key, or one left of it. `None` if the tree is not that high.
    pub(super) async fn locate(&self, key: u64, level: u8) -> Result<Option<u64>, TreeError> {
        for _ in 0..WAYS {
            match self.way(key, level).await? {
                Way::At(page) => return Ok(Some(page)),
                Way::Low if self.root.get() != 0 => {
                    // The root that is remembered may be one no more.
                    let seen = self.root.replace(0);
                    if self.root().await? == seen {
                        return Ok(None);
                    }
                }
                Way::Low | Way::Lost => self.lose(key),
            }
        }
        Err(TreeError::Astray)
    }

    async fn way(&self, key: u64, level: u8) -> Result<Way, TreeError> {
        let remembered = self.root.get() != 0;
        let top = self.root().await?;
        let mut at = top;
        for _ in 0..STEPS {
            let (page, is_old) = self.on_the_way(at).await?;
            let header = page.header;
            if header.level < level {
                return Ok(if at == top { Way::Low } else { Way::Lost });
            }
            if key < header.low {
                return Ok(Way::Lost);
            }
            if key >= header.high {
                if is_old {
                    self.index.borrow_mut().remove(&at);
                    continue;
                }
                if at == top && remembered {
                    // There may be a root above it by now.
                    return Ok(Way::Lost);
                }
                at = self.move_right(&page)?;
                continue;
            }
            if header.level == level {
                return Ok(Way::At(at));
            }
            match page.child(key) {
                Some(child) if header.level == level + 1 => return Ok(Way::At(child)),
                Some(child) => at = child,
                None => return Ok(Way::Lost),
            }
        }
        Ok(Way::Lost)
    }
}

/// Where a way has led.
enum Way {
    At(u64),
    /// The root lies below the level.
    Low,
    /// Something on it is not what it was.
    Lost,
}

pub(super) fn check(key: u64) -> Result<(), TreeError> {
    if key <= KEY_MAX { Ok(()) } else { Err(TreeError::NoKey) }
}

/// Reading.
impl Client {
    /// A key's value, if it has one.
    pub async fn get(&self, key: u64) -> Result<Option<u64>, TreeError> {
        check(key)?;
        let operation = self.words.rdma.operation(object(self.home.epoch, key), "get", &[]);
        let value = self.look(key).await?;
        operation.end(&[value.unwrap_or(0)]);
        Ok(value)
    }

    async fn look(&self, key: u64) -> Result<Option<u64>, TreeError> {
        let mut at = self.leaf(key).await?;
        for _ in 0..STEPS {
            let page = self.read(at).await?;
            if page.header.level != 0 || key < page.header.low {
                self.lose(key);
                at = self.leaf(key).await?;
            } else if key >= page.header.high {
                self.lose(key);
                at = self.move_right(&page)?;
            } else if let Some(place) = page.find(key) {
                return Ok(Some(page.entries[place].value));
            } else if self.is_still(at, &page.header).await? {
                return Ok(None);
            }
        }
        Err(TreeError::Astray)
    }

    async fn leaf(&self, key: u64) -> Result<u64, TreeError> {
        self.locate(key, 0).await?.ok_or(TreeError::Astray)
    }

    /// Keys from `from` on and below `to`, in their order, with their values; no more than `limit`. Each was
    /// there with its value at some time meanwhile, and each key that is left out was at some time not there.
    pub async fn scan(&self, from: u64, to: u64, limit: usize) -> Result<Vec<(u64, u64)>, TreeError> {
        check(from)?;
        let (mut next, mut found) = (from, Vec::new());
        let mut at = self.leaf(from).await?;
        // Pages since the last that was taken, and pages that were.
        let (mut idle, mut taken) = (0, 0);
        while next < to && found.len() < limit {
            idle += 1;
            if idle > STEPS || taken > self.home.page_count() {
                return Err(TreeError::Astray);
            }
            let page = self.read(at).await?;
            let header = page.header;
            if header.level != 0 || next < header.low {
                self.lose(next);
                at = self.leaf(next).await?;
            } else if next >= header.high {
                at = self.move_right(&page)?;
            } else if self.is_still(at, &header).await? {
                let part = page.sorted().into_iter().filter(|(key, _)| (next..to).contains(key));
                found.extend(part);
                (idle, taken) = (0, taken + 1);
                (next, at) = (header.high, header.right);
                if at == 0 {
                    break;
                }
            }
        }
        found.truncate(limit);
        self.note("scan", |_| {});
        Ok(found)
    }
}
