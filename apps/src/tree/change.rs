//! How a client changes a tree: locks, splits, and the lists that release.

use super::client::{Client, OUT_ENTRY, OUT_HEADER, OUT_PAGE, STEPS, TAKEN, WAYS, WORD, check};
use super::page::{ENTRY, Entry, HEADER, Header, LEVEL_MAX, PAGE, Page, offset};
use super::{Bug, NO_KEY, TreeError, lock_of, object};
use crate::locks::table::{Acquired, Words};
use adverb_rdma::{Data, Duration, Remote, SendOp};

/// A split whose sibling is to be known one level up; also a page that was found to be missing there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Split {
    level: u8,
    key: u64,
    page: u64,
}

/// What has come of an attempt at a change.
enum Attempt {
    /// It is done, and this is to be known above.
    Done(Option<Split>),
    /// The way has led to a wrong page.
    Astray,
}

/// A lock that is held. Dropped unreleased it stays so until its lease has run out.
struct Hold<'a> {
    words: &'a Words,
    acquired: Acquired,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.words.forget(self.acquired.tag);
    }
}

/// Changes, from the leaf up.
impl Client {
    /// A key's value from now on.
    pub async fn put(&self, key: u64, value: u64) -> Result<(), TreeError> {
        check(key)?;
        let operation = self.words.rdma.operation(object(self.home.epoch, key), "put", &[value]);
        let above = match self.change(0, key, Some(value)).await {
            // Nothing was written.
            Err(TreeError::Full) => {
                operation.void();
                return Err(TreeError::Full);
            }
            done => done?,
        };
        operation.end(&[]);
        self.grow(above).await
    }

    /// The key has no value from now on.
    pub async fn remove(&self, key: u64) -> Result<(), TreeError> {
        check(key)?;
        let operation = self.words.rdma.operation(object(self.home.epoch, key), "remove", &[]);
        let above = self.change(0, key, None).await?;
        operation.end(&[]);
        self.grow(above).await
    }

    /// Has splits known one level up each, as far as there are such levels.
    async fn grow(&self, mut above: Option<Split>) -> Result<(), TreeError> {
        while let Some(split) = above {
            let level = split.level + 1;
            if level > LEVEL_MAX {
                // All that is missing is a short cut.
                return Ok(());
            }
            above = match self.locate(split.key, level).await? {
                Some(_) => self.change(level, split.key, Some(split.page)).await?,
                None if self.raise(&split).await? => None,
                None => Some(split),
            };
        }
        Ok(())
    }

    async fn change(&self, level: u8, key: u64, value: Option<u64>) -> Result<Option<Split>, TreeError> {
        for _ in 0..WAYS {
            self.reserve().await?;
            let at = self.locate(key, level).await?.ok_or(TreeError::Astray)?;
            match self.change_from(at, level, key, value).await? {
                Attempt::Done(above) => return Ok(above),
                Attempt::Astray => self.lose(key),
            }
        }
        Err(TreeError::Astray)
    }

    /// The change of a key of a level, whose page is this one or right of it.
    async fn change_from(
        &self,
        from: u64,
        level: u8,
        key: u64,
        value: Option<u64>,
    ) -> Result<Attempt, TreeError> {
        let mut at = from;
        for _ in 0..STEPS {
            let hold = self.lock(at).await?;
            let page = self.read(at).await?;
            let header = page.header;
            if header.level != level || key < header.low {
                self.commit(hold, Vec::new()).await?;
                return Ok(Attempt::Astray);
            }
            if key >= header.high {
                self.commit(hold, Vec::new()).await?;
                at = self.move_right(&page)?;
                continue;
            }
            let (list, split) = match self.plan(at, &page, (key, value)).await {
                Ok(planned) => planned,
                Err(error) => {
                    self.commit(hold, Vec::new()).await?;
                    return Err(error);
                }
            };
            self.commit(hold, list).await?;
            if split.is_some() {
                self.note("split", |did| did.splits += 1);
            }
            let missing =
                if at == from || split.is_some() { None } else { self.missing(at, &header).await? };
            return Ok(Attempt::Done(split.or(missing)));
        }
        Ok(Attempt::Astray)
    }

    /// A page that was come to from the left, if nothing leads there one level up.
    async fn missing(&self, page: u64, header: &Header) -> Result<Option<Split>, TreeError> {
        self.lose(header.low);
        let found = self.locate(header.low, header.level).await?;
        if found == Some(page) {
            return Ok(None);
        }
        self.note("heal", |did| did.healed += 1);
        Ok(Some(Split { level: header.level, key: header.low, page }))
    }

    /// What has to be written to a page, of which the lock is held.
    async fn plan(
        &self,
        at: u64,
        page: &Page,
        (key, value): (u64, Option<u64>),
    ) -> Result<(Vec<(SendOp, Data)>, Option<Split>), TreeError> {
        let places = self.home.fanout as usize;
        let place = page.find(key);
        let (place, entry) = match (place, value) {
            (None, None) => return Ok((Vec::new(), None)),
            (Some(place), None) => (place, page.entries[place].next(Entry::EMPTY.key, 0)),
            (Some(place), Some(value)) => (place, page.entries[place].next(key, value)),
            (None, Some(value)) => match page.room(places) {
                Some(place) => (place, page.entries[place].next(key, value)),
                None => return self.split(at, page, (key, value)).await,
            },
        };
        Ok((vec![self.entry(at, place, &entry).await?], None))
    }

    /// The WRITE of an entry.
    async fn entry(&self, page: u64, place: usize, entry: &Entry) -> Result<(SendOp, Data), TreeError> {
        self.words.own.write(OUT_ENTRY, &entry.emit(page, place)).await?;
        self.sent(page, offset(place), OUT_ENTRY, ENTRY)
    }

    /// A WRITE to a page, of what is in own memory.
    fn sent(&self, page: u64, at: u64, from: u64, len: usize) -> Result<(SendOp, Data), TreeError> {
        let to = self.home.pages.at(self.place(page)? + at, len as u64)?;
        Ok((SendOp::Write(to, self.home.pages.rkey), Data::Piece(self.words.own.piece(from, len as u32)?)))
    }

    /// The WRITEs of a split: the sibling, to which nothing leads; then the header, after which it takes the
    /// upper half; then the new entry, if it is of the lower half, in a place that nobody needs any more.
    async fn split(
        &self,
        at: u64,
        page: &Page,
        (key, value): (u64, u64),
    ) -> Result<(Vec<(SendOp, Data)>, Option<Split>), TreeError> {
        let sibling = self.spare.borrow_mut().pop().ok_or(TreeError::Full)?;
        let mut all = page.sorted();
        all.push((key, value));
        all.sort_unstable();
        let upper = all.split_off(all.len() / 2);
        let (first, header) = (upper[0].0, page.header);
        let made = Page::new(Header { low: first, splits: 0, ..header }, &upper);
        let right = if self.bug == Bug::NoSibling { header.right } else { sibling };
        let left = Header { high: first, right, splits: header.splits + 1, ..header };
        let own = &self.words.own;
        own.write(OUT_PAGE, &made.emit(sibling)).await?;
        own.write(OUT_HEADER, &left.emit(at)).await?;
        let mut list = vec![self.sent(sibling, 0, OUT_PAGE, PAGE as usize)?];
        list.push(self.sent(at, 0, OUT_HEADER, HEADER)?);
        if key < first {
            let left = Page { header: left, ..page.clone() };
            let place = left.room(self.home.fanout as usize).ok_or(TreeError::Astray)?;
            list.push(self.entry(at, place, &page.entries[place].next(key, value)).await?);
        }
        Ok((list, Some(Split { level: header.level, key: first, page: sibling })))
    }

    /// Puts a root above the one that was split. False if there is one by now.
    async fn raise(&self, split: &Split) -> Result<bool, TreeError> {
        self.reserve().await?;
        let hold = self.lock(0).await?;
        self.root.set(0);
        let below = self.root().await?;
        if self.read(below).await?.header.level > split.level {
            self.commit(hold, Vec::new()).await?;
            return Ok(false);
        }
        let Some(root) = self.spare.borrow_mut().pop() else {
            // All that is missing is a short cut.
            self.commit(hold, Vec::new()).await?;
            return Ok(true);
        };
        let header = Header { level: split.level + 1, low: 0, high: NO_KEY, right: 0, splits: 0 };
        let made = Page::new(header, &[(0, below), (split.key, split.page)]);
        let own = &self.words.own;
        own.write(OUT_PAGE, &made.emit(root)).await?;
        own.store(WORD, root).await?;
        let Remote { rkey, .. } = self.home.words;
        let to = SendOp::Write(self.home.words.at(self.home.root(), 8)?, rkey);
        let list = vec![self.sent(root, 0, OUT_PAGE, PAGE as usize)?, (to, Data::Piece(own.piece(WORD, 8)?))];
        self.commit(hold, list).await?;
        self.root.set(root);
        self.note("raise", |did| did.raised += 1);
        Ok(true)
    }

    /// Sees that there are pages for a split and a root, if the home has any.
    async fn reserve(&self) -> Result<(), TreeError> {
        if self.spare.borrow().len() >= 2 || self.full.get() {
            return Ok(());
        }
        let Words { qp, own, .. } = &self.words;
        let first = qp.fetch_add((&self.home.words, self.home.next()), TAKEN, (own, WORD)).await?;
        let taken = first..first.saturating_add(TAKEN).min(self.home.page_count());
        self.full.set(taken.is_empty());
        self.spare.borrow_mut().extend(taken);
        Ok(())
    }

    async fn lock(&self, page: u64) -> Result<Hold<'_>, TreeError> {
        let deadline = match self.patience {
            Some(patience) => Some(self.words.rdma.now().await? + patience),
            None => None,
        };
        let (lock, before) = (lock_of(page, self.home.locks), self.words.counted().taken_over);
        let Some(acquired) = self.words.acquire(lock, deadline).await? else {
            if let Some(deadline) = deadline
                && self.words.rdma.now().await? >= deadline
            {
                // Nobody had it for so long but by a tag that nobody gives up.
                self.words.tell_lost(lock);
            }
            return Err(TreeError::Busy);
        };
        if self.words.counted().taken_over > before {
            self.note("take-over", |_| {});
        }
        Ok(Hold { words: &self.words, acquired })
    }

    /// Writes all of this and releases the lock, in one list. A lease that has run out is nothing to look at:
    /// whoever has the lock by then has had this queue pair ended.
    async fn commit(&self, hold: Hold<'_>, mut list: Vec<(SendOp, Data)>) -> Result<(), TreeError> {
        let dawdle = self.dawdle.replace(Duration::ZERO);
        if dawdle > Duration::ZERO {
            self.words.rdma.sleep(dawdle).await?;
        }
        let Acquired { lock, tag, .. } = hold.acquired;
        let operation = self.words.rdma.operation(self.words.object(lock), "release", &[tag]);
        let mut last = self.words.free(lock, tag)?;
        if self.bug == Bug::EarlyRelease
            && let Some(data) = list.last_mut()
        {
            core::mem::swap(data, &mut last);
            list.rotate_right(1);
        }
        let (op, data) = last;
        self.words.qp.execute_after(list, op, data).await?;
        self.words.freed(tag, operation).await?;
        Ok(())
    }
}
