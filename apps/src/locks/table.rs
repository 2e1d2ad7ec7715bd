//! Lock words by a client: acquired by compare and swap, released behind the data, taken over from holders
//! that the home has shut out. What the locks guard is another matter.

use super::{Bug, Counted, LocksError, Release, holder_of, shut_out};
use adverb_rdma::{Data, Duration, Error, Instant, Line, On, Operation, Qp, Rdma, Region, Remote, SendOp};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Tags of a client: the lower half of a tag counts.
const TAGS_MAX: u32 = u32::MAX;
/// How long a home may take to shut a holder out.
const PATIENCE: Duration = Duration::from_ms(1000);

// Own memory: where a word's old value lands, and a zero to release with.
const LANDING: u64 = 0;
const ZERO: u64 = 8;
/// Bytes of own memory that are the words'.
pub(crate) const OWN: u64 = 64;

/// What a home tells of its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// Names the home's life.
    pub epoch: u64,
    /// When a holder is suspected.
    pub lease: Duration,
    /// The client's number.
    pub holder: u32,
    /// How many there are.
    pub locks: u32,
    /// Where they are.
    pub words: Remote,
}

/// A table's words, and the locks that a client holds. It does one thing at a time.
pub(crate) struct Words {
    pub rdma: Rdma,
    pub qp: Qp,
    /// The home's line: it ends with the home.
    pub line: Line,
    /// Own memory, whose first bytes are the words'.
    pub own: Region,
    pub told: Told,
    pub release: Release,
    pub bug: Bug,
    /// Pause between two tries at a lock that is held; it doubles up to an eighth of the lease. Zero: none.
    pub pause: Duration,
    /// What the last try took that found a lock held, if others wanted what was acquired last.
    contended: Cell<Option<Duration>>,
    name: String,
    tags: Cell<u32>,
    /// Tags of locks that are held.
    held: RefCell<BTreeSet<u64>>,
    counted: Cell<Counted>,
}

/// A lock that was acquired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acquired {
    pub lock: u32,
    pub tag: u64,
    /// When its lease has run out.
    pub until: Instant,
}

impl Words {
    pub fn new(rdma: &Rdma, name: &str, (qp, line): (Qp, Line), own: Region, told: Told) -> Words {
        assert!(own.len() >= OWN, "room for what lands");
        Words {
            rdma: rdma.clone(),
            qp,
            line,
            own,
            told,
            release: Release::default(),
            bug: Bug::default(),
            pause: Duration::from_us(20),
            contended: Cell::new(None),
            name: name.to_owned(),
            tags: Cell::new(0),
            held: RefCell::default(),
            counted: Cell::default(),
        }
    }

    /// What it has done.
    pub fn counted(&self) -> Counted {
        self.counted.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counted)) {
        let mut counted = self.counted.get();
        change(&mut counted);
        self.counted.set(counted);
    }

    /// A lock as the oracle names it.
    pub fn object(&self, lock: u32) -> u64 {
        self.told.epoch.wrapping_add(lock.into())
    }

    fn next_tag(&self) -> Result<u64, LocksError> {
        let count = self.tags.get();
        if count == TAGS_MAX {
            return Err(LocksError::Exhausted);
        }
        self.tags.set(count + 1);
        Ok(u64::from(self.told.holder) << 32 | u64::from(count + 1))
    }

    /// Acquires a lock, or takes it over from a holder that has kept it for longer than the lease. `None`
    /// when the patience has run out first, or the program was asked to end.
    pub async fn acquire(
        &self,
        lock: u32,
        patience: Option<Instant>,
    ) -> Result<Option<Acquired>, LocksError> {
        let lease = self.told.lease;
        let tag = self.next_tag()?;
        let (mut expected, mut seen) = (0, 0);
        if !self.let_others().await? {
            return Ok(None);
        }
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
                return Ok(Some(Acquired { lock, tag, until: asked + lease }));
            }
            self.count(|counted| counted.refused += 1);
            expected = 0;
            if was == 0 {
                continue;
            }
            let now = self.rdma.now().await?;
            self.contended.set(Some(now.since(asked)));
            if was != seen {
                (seen, since, pause) = (was, now, self.pause);
            } else if now.since(since).as_ns() >= lease.as_ns() / 8 * 9 && self.may_recover(lock, was).await?
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
            pause = (pause + pause).min(Duration::from_ns(lease.as_ns() / 8)).max(self.pause);
        }
    }

    /// Who has had a lock that others wanted stays away for a time that it draws, of up to two tries. Clients
    /// that all take the same time between two turns would fall into step: behind a switch that decides,
    /// which has requests wait for a lock's word, a few of them then have it in turns among themselves, and
    /// the others find it held each time. False if the program was asked to end.
    async fn let_others(&self) -> Result<bool, Error> {
        let Some(took) = self.contended.take() else { return Ok(true) };
        let most = (2 * took.as_ns()).min(self.told.lease.as_ns() / 8);
        let away = Duration::from_ns(self.rdma.random().await? % (most + 1));
        let until = self.rdma.now().await? + away;
        Ok(self.rdma.until(&[On::Stop], Some(until)).await?.is_none())
    }

    async fn try_acquire(&self, lock: u32, expected: u64, tag: u64) -> Result<u64, Error> {
        let operation = self.rdma.operation(self.object(lock), "try", &[expected, tag]);
        let at = (&self.told.words, u64::from(lock) * 8);
        let was = self.qp.compare_swap(at, (expected, tag), (&self.own, LANDING)).await?;
        operation.end(&[was]);
        Ok(was)
    }

    /// Has the home shut out a lock's holder. False if it is this client, which holds it still.
    async fn may_recover(&self, lock: u32, tag: u64) -> Result<bool, Error> {
        match self.bug {
            Bug::NoRecovery => return Ok(false),
            Bug::NoFence => return Ok(true),
            Bug::None | Bug::EarlyRelease => {}
        }
        if holder_of(tag) == self.told.holder {
            // What this queue pair was asked before comes before what it is asked now.
            return Ok(!self.held.borrow().contains(&tag));
        }
        let patience = self.rdma.now().await? + PATIENCE;
        let (_line, told) = self.rdma.ask(&self.name, &shut_out(lock, tag), Some(patience)).await?;
        // Another home under this name knows nothing of the holder.
        if told == self.told.epoch.to_be_bytes() { Ok(true) } else { Err(Error::Left) }
    }

    /// Nothing is done under this lock any more: it stays as it is until its lease has run out, unless it was
    /// released.
    pub fn forget(&self, tag: u64) {
        self.held.borrow_mut().remove(&tag);
    }

    /// An error, if the lease has run out by the own clock.
    pub async fn check_lease(&self, until: Instant) -> Result<(), LocksError> {
        if self.rdma.now().await? >= until { Err(LocksError::Expired) } else { Ok(()) }
    }

    /// Tells the oracle that a lock cannot be had.
    pub fn tell_lost(&self, lock: u32) {
        self.rdma.operation(self.object(lock), "lost", &[lock.into()]).end(&[]);
    }

    /// What makes a word 0.
    pub fn free(&self, lock: u32, tag: u64) -> Result<(SendOp, Data), Error> {
        let (addr, rkey) = (self.told.words.at(u64::from(lock) * 8, 8)?, self.told.words.rkey);
        Ok(match self.release {
            Release::Write => (SendOp::Write(addr, rkey), Data::Piece(self.own.piece(ZERO, 8)?)),
            Release::CompareSwap => {
                let op = SendOp::CompareSwap { addr, rkey, compare: tag, swap: 0 };
                (op, Data::Piece(self.own.piece(LANDING, 8)?))
            }
        })
    }

    /// Notes what a release was answered. False if a compare and swap has found that somebody else has the
    /// lock by now.
    pub async fn freed(&self, tag: u64, operation: Operation) -> Result<bool, LocksError> {
        match self.release {
            Release::Write => {
                operation.end(&[]);
                Ok(true)
            }
            Release::CompareSwap => {
                let was = self.own.load(LANDING).await?;
                operation.end(&[was]);
                Ok(was == tag)
            }
        }
    }
}
