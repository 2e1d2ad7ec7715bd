//! A lock in remote memory, lent for a time, with fencing tokens; and the record that it guards.
//!
//! One process is the lock's *home*: its memory holds two words and a few slots for the record, and its
//! program does nothing but connect clients. Clients do everything with one-sided operations.
//!
//! ```text
//! LOCK   token:24 holder:16 renewals:24   holder 0: free. Every change is a compare-and-swap.
//! GUARD  fence:24 writer:24 seq:16        which record is current, and the greatest token seen
//! slots  64 records: token, seq, length, CRC, value
//!
//! acquire    LOCK (t, nobody) ─► (t+1, me)
//! take over  LOCK (t, other)  ─► (t+1, me), when LOCK has not changed for 9/8 of the lease
//! renew      LOCK (t, me, r)  ─► (t, me, r+1)
//! load       GUARD (f, w, s)  ─► (t, w, s) for f < t: fences off all older holders; then READ of the slot
//! store      WRITE of the record to another slot; GUARD (f, w, s) ─► (t, t, s+1)
//! release    LOCK (t, me)     ─► (t, nobody)
//! ```
//! **A lease is not enough.** Its holder counts it from before it asked for it, and others count longer
//! and from later; so as long as clocks run alike, two never believe that they hold the lock. But a
//! holder that was stopped, or whose writes are late, does not know that its time is over. So the record
//! is protected by the token, not by the time: once a newer holder has put its token into GUARD, the
//! compare-and-swap of an older one fails, and it hears [`LockError::Stale`].
//!
//! **Slots.** A WRITE cannot be conditional. A late WRITE of a stale holder must not hit the record that
//! a newer one writes, so each token modulo 32 has two slots of its own, used in turns; and a record
//! names its token and sequence number and has a CRC, so that what is not the record that GUARD means is
//! not taken for it.
//!
//! **Two connections.** LOCK and the record are reached over queue pairs of their own, since in general
//! they are in the memory of different hosts. Nothing orders one after the other but waiting for the
//! completion; [`Bug::EarlyRelease`] forgets to.
//!
//! What the oracle is told, with the home's epoch as the object: `acquire` [] → [token]; `take-over`
//! [token of who lost it] → [token]; `release` [token] → [token]; `store` [token, digest] → [token];
//! `load` [token] → [digest]. No results: it was refused.
// Long: a program is one file: its protocol, its home, its holders.

use crate::meeting::{self, Fields, Met};
use adverb_rdma::{
    Access, Connect, Data, Duration, Error, Instant, Line, Listener, On, Pd, Qp, Rdma, Region, Remote,
    SendFlags, SendOp, SendRequest,
};
use std::cell::Cell;
use std::fmt;

const LOCK: u64 = 0;
const GUARD: u64 = 8;
const SLOTS: u64 = 64;
/// Bytes of a slot.
const RECORD: u64 = 256;
/// Token, sequence number, length and CRC.
const HEAD: usize = 24;
/// Bytes of a value at most.
pub const VALUE_MAX: usize = RECORD as usize - HEAD;
const HOME_LEN: u64 = 64 + SLOTS * RECORD;
/// Tokens, and the writers in GUARD, have 24 bits.
const TOKEN_MAX: u64 = (1 << 24) - 1;
/// Clients of a home at most.
pub const CLIENTS_MAX: usize = 256;
/// A record that is overwritten while it is read is read again so many times.
const TORN_TRIES: u32 = 16;
/// First pause between two looks at a lock that somebody holds; it doubles up to an eighth of the lease.
const PAUSE: Duration = Duration::from_us(20);

// Own memory: where answers land, and records.
const LANDING_LOCK: u64 = 0;
const LANDING_GUARD: u64 = 8;
const OUT: u64 = 256;
const IN: u64 = OUT + 2 * RECORD;
const OWN_LEN: u64 = IN + RECORD;

/// A mistake made on purpose, for an oracle to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// The lock is released before the record's change is acknowledged.
    EarlyRelease,
}

/// What a home lends.
#[derive(Clone, Copy, Debug)]
pub struct HomeConfig {
    /// For how long.
    pub lease: Duration,
    /// How clients are connected.
    pub connect: Connect,
}

impl Default for HomeConfig {
    fn default() -> Self {
        HomeConfig { lease: Duration::from_ms(2000), connect: Connect::default() }
    }
}

/// Why something was not done under the lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockError {
    /// The home cannot be reached, or a call failed. Whether it had its effect is not known.
    Rdma(Error),
    /// The lock has gone to a newer holder, which has fenced this one off. Nothing was changed.
    Stale {
        /// The own token.
        token: u64,
        /// The newer one.
        fence: u64,
    },
    /// The lease has run out by the own clock. Nothing was tried.
    Expired {
        /// The own token.
        token: u64,
    },
    /// A value that no slot holds.
    TooLong(usize),
    /// All tokens have been used.
    Exhausted,
    /// The record changed faster than it could be read.
    Torn,
}

impl From<Error> for LockError {
    fn from(error: Error) -> LockError {
        LockError::Rdma(error)
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockError::Rdma(error) => error.fmt(f),
            LockError::Stale { token, fence } => {
                write!(f, "stale: token {token} was fenced off by token {fence}; nothing was changed")
            }
            LockError::Expired { token } => {
                write!(f, "the lease of token {token} has run out; nothing was changed")
            }
            LockError::TooLong(len) => write!(f, "a value of {len} bytes; at most {VALUE_MAX}"),
            LockError::Exhausted => f.write_str("all tokens of this home have been used; start it anew"),
            LockError::Torn => {
                write!(f, "the record was overwritten {TORN_TRIES} times while it was read")
            }
        }
    }
}

impl std::error::Error for LockError {}

/// LOCK, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LockWord {
    token: u64,
    holder: u64,
    renewals: u64,
}

impl LockWord {
    fn from_word(word: u64) -> LockWord {
        LockWord { token: word >> 40, holder: word >> 24 & 0xffff, renewals: word & 0xff_ffff }
    }

    fn word(self) -> u64 {
        self.token << 40 | self.holder << 24 | self.renewals & 0xff_ffff
    }
}

/// GUARD, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GuardWord {
    fence: u64,
    writer: u64,
    seq: u64,
}

impl GuardWord {
    fn from_word(word: u64) -> GuardWord {
        GuardWord { fence: word >> 40, writer: word >> 16 & 0xff_ffff, seq: word & 0xffff }
    }

    fn word(self) -> u64 {
        self.fence << 40 | self.writer << 16 | self.seq & 0xffff
    }

    /// Where its record is.
    fn slot(self) -> u64 {
        64 + (self.writer % (SLOTS / 2) * 2 + self.seq % 2) * RECORD
    }

    /// The record that a holder writes after this one.
    fn next(self, token: u64) -> GuardWord {
        GuardWord { fence: token, writer: token, seq: (self.seq + 1) & 0xffff }
    }
}

/// A value as the oracle knows it: 0 is what a home begins with.
pub fn digest(value: &[u8]) -> u64 {
    if value.is_empty() {
        return 0;
    }
    // FNV-1a.
    value
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn emit(guard: GuardWord, value: &[u8]) -> Vec<u8> {
    let mut out = vec![0; HEAD];
    out[..8].copy_from_slice(&guard.writer.to_le_bytes());
    out[8..16].copy_from_slice(&guard.seq.to_le_bytes());
    out[16..20].copy_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
    let crc = checksum(&out);
    out[20..24].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The value, if this is the record that GUARD means, and whole.
fn parse(guard: GuardWord, bytes: &[u8]) -> Option<Vec<u8>> {
    if guard.writer == 0 {
        return Some(Vec::new());
    }
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (len, crc) = (word(16)? as u32 as usize, (word(16)? >> 32) as u32);
    let whole = bytes.get(..HEAD.checked_add(len)?)?;
    let sound = word(0)? == guard.writer && word(8)? == guard.seq && crc == checksum(whole);
    sound.then(|| whole[HEAD..].to_vec())
}

fn checksum(record: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&record[..20]);
    crc.update(&record[HEAD..]);
    crc.finalize()
}

/// What a client is told when it comes.
struct Welcome {
    epoch: u64,
    lease: Duration,
    holder: u16,
    memory: Remote,
}

impl Welcome {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.lease.as_ns().to_be_bytes());
        out.extend_from_slice(&self.holder.to_be_bytes());
        out.extend_from_slice(&self.memory.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let (epoch, lease, holder) = (fields.u64()?, fields.u64()?, fields.u16()?);
        let memory = Remote::from_bytes(fields.0)?;
        // An hour bounds what a home can make a client wait.
        let sound = memory.len >= HOME_LEN && holder != 0 && (1..=3_600_000_000_000).contains(&lease);
        sound.then_some(Welcome { epoch, lease: Duration::from_ns(lease), holder, memory })
    }
}

/// A lock's home: connects clients until the program is asked to end.
pub async fn serve(rdma: &Rdma, name: &str, config: &HomeConfig) -> Result<(), Error> {
    let listener = rdma.listen(name).await?;
    serve_at(rdma, &listener, config).await
}

/// The same under a name that is listened at already.
pub async fn serve_at(rdma: &Rdma, listener: &Listener, config: &HomeConfig) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = pd.region(HOME_LEN, access).await?;
    let mut welcome =
        Welcome { epoch: rdma.random().await?, lease: config.lease, holder: 0, memory: memory.remote() };
    let mut clients: Vec<Met> = Vec::new();
    loop {
        let gone = clients.iter().map(|client| On::Gone(&client.line));
        let on: Vec<On<'_>> = [On::Stop, On::Asked(listener)].into_iter().chain(gone).collect();
        match rdma.until(&on, None).await? {
            Some(0) | None => return Ok(()),
            Some(1) => {
                if clients.len() >= 2 * CLIENTS_MAX {
                    // Not answered, so refused.
                    drop(listener.try_accept().await?);
                    continue;
                }
                match admit(rdma, &pd, listener, config, &mut welcome).await {
                    Ok(connected) => clients.extend(connected),
                    // One client's mistake, or its end, is not the home's.
                    Err(error) => rdma.say(|| format!("a client was not connected: {error}")),
                }
            }
            // Its queue pair goes with it: nothing that it has under way arrives any more.
            Some(index) => drop(clients.swap_remove(index - 2)),
        }
    }
}

async fn admit(
    rdma: &Rdma,
    pd: &Pd,
    listener: &Listener,
    config: &HomeConfig,
    welcome: &mut Welcome,
) -> Result<Option<Met>, Error> {
    let Some(asked) = listener.try_accept().await? else { return Ok(None) };
    welcome.holder = welcome.holder.checked_add(1).unwrap_or(1);
    meeting::admit(rdma, pd, asked, &welcome.to_bytes(), &config.connect).await.map(Some)
}

/// A client of a lock.
pub struct Client {
    rdma: Rdma,
    /// To LOCK, and to the record.
    lock: Qp,
    data: Qp,
    lines: [Line; 2],
    own: Region,
    home: Remote,
    epoch: u64,
    holder: u64,
    lease: Duration,
    bug: Bug,
}

impl Client {
    /// Connects to a home. Until the deadline it tries again while nobody listens there.
    pub async fn open(
        rdma: &Rdma,
        name: &str,
        connect: &Connect,
        deadline: Option<Instant>,
        bug: Bug,
    ) -> Result<Client, Error> {
        let pd = rdma.create_pd().await?;
        let own = pd.region(OWN_LEN, Access::LOCAL_WRITE).await?;
        let mut ends = Vec::with_capacity(2);
        for _ in 0..2 {
            let (Met { qp, line }, told) = meeting::join(rdma, &pd, name, &[], connect, deadline).await?;
            let welcome = Welcome::from_bytes(&told).ok_or(Error::Garbled("a lock"))?;
            ends.push((qp, line, welcome));
        }
        let (Some((data, data_line, again)), Some((lock, lock_line, welcome))) = (ends.pop(), ends.pop())
        else {
            unreachable!("two were connected");
        };
        if again.epoch != welcome.epoch {
            // The home was started anew between the two.
            return Err(Error::Left);
        }
        Ok(Client {
            rdma: rdma.clone(),
            lock,
            data,
            lines: [lock_line, data_line],
            own,
            home: welcome.memory,
            epoch: welcome.epoch,
            holder: welcome.holder.into(),
            lease: welcome.lease,
            bug,
        })
    }

    /// How long the lock is lent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Names the home's life: a home that is started anew has lost the lock and the record.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The home's lines: either ends with the home.
    pub fn lines(&self) -> &[Line; 2] {
        &self.lines
    }

    /// LOCK and GUARD, without touching either: token, holder (0 when it is free), fence.
    pub async fn look(&self) -> Result<(u64, u64, u64), Error> {
        let word = LockWord::from_word(self.load_word(&self.lock, LOCK, LANDING_LOCK).await?);
        let guard = GuardWord::from_word(self.load_word(&self.data, GUARD, LANDING_GUARD).await?);
        Ok((word.token, word.holder, guard.fence))
    }

    async fn load_word(&self, qp: &Qp, at: u64, landing: u64) -> Result<u64, Error> {
        qp.read((&self.own, landing), 8, (&self.home, at)).await?;
        self.own.load(landing).await
    }

    /// Acquires the lock, or takes it over from a holder whose lease has run out. `None` when the patience
    /// has run out first, or the program was asked to end.
    pub async fn acquire(&self, patience: Option<Instant>) -> Result<Option<Held<'_>>, LockError> {
        let mut word = self.load_word(&self.lock, LOCK, LANDING_LOCK).await?;
        let mut since = self.rdma.now().await?;
        let mut pause = PAUSE;
        loop {
            let now = self.rdma.now().await?;
            let seen = LockWord::from_word(word);
            let abandoned = now.since(since).as_ns() >= self.lease.as_ns() / 8 * 9;
            if seen.holder == 0 || abandoned {
                match self.try_acquire(seen).await? {
                    Ok(held) => return Ok(Some(held)),
                    Err(other) => {
                        (word, since) = (other, self.rdma.now().await?);
                        continue;
                    }
                }
            }
            if patience.is_some_and(|patience| now >= patience) {
                return Ok(None);
            }
            let until = now + pause;
            if self.rdma.until(&[On::Stop], Some(until)).await?.is_some() {
                return Ok(None);
            }
            pause = (pause + pause).min(Duration::from_ns(self.lease.as_ns() / 8)).max(PAUSE);
            let again = self.load_word(&self.lock, LOCK, LANDING_LOCK).await?;
            if again != word {
                (word, since, pause) = (again, self.rdma.now().await?, PAUSE);
            }
        }
    }

    /// Swaps LOCK from what was seen to the next token's. `Err` is what it held instead.
    async fn try_acquire(&self, seen: LockWord) -> Result<Result<Held<'_>, u64>, LockError> {
        let token = seen.token + 1;
        if token > TOKEN_MAX {
            return Err(LockError::Exhausted);
        }
        // The lease counts from before it was asked for.
        let now = self.rdma.now().await?;
        let operation = match seen.holder {
            0 => self.rdma.operation(self.epoch, "acquire", &[]),
            _ => self.rdma.operation(self.epoch, "take-over", &[seen.token]),
        };
        let mine = LockWord { token, holder: self.holder, renewals: 0 }.word();
        let was = self.swap_lock(seen.word(), mine).await?;
        if was != seen.word() {
            operation.void();
            return Ok(Err(was));
        }
        operation.end(&[token]);
        let until = Cell::new(now + self.lease);
        Ok(Ok(Held { client: self, token, word: Cell::new(mine), guard: Cell::new(None), until }))
    }

    async fn swap_lock(&self, from: u64, to: u64) -> Result<u64, Error> {
        self.lock.compare_swap((&self.home, LOCK), (from, to), (&self.own, LANDING_LOCK)).await
    }

    async fn swap_guard(&self, from: u64, to: u64) -> Result<u64, Error> {
        self.data.compare_swap((&self.home, GUARD), (from, to), (&self.own, LANDING_GUARD)).await
    }
}

/// The lock, lent. Dropped without [`release`](Held::release) it stays lent until the lease has run out.
pub struct Held<'a> {
    client: &'a Client,
    token: u64,
    /// LOCK as this holder left it.
    word: Cell<u64>,
    /// GUARD as this holder last saw it, if it has fenced older ones off.
    guard: Cell<Option<u64>>,
    until: Cell<Instant>,
}

impl Held<'_> {
    /// The lending's token: greater than those of all lendings before.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// When the lease runs out by the own clock.
    pub fn until(&self) -> Instant {
        self.until.get()
    }

    /// Whom another token may be shown to, so that it can tell a stale holder.
    fn stale(&self, fence: u64) -> LockError {
        let token = self.token;
        self.client.rdma.say(|| format!("stale: token {token} was fenced off by token {fence}"));
        LockError::Stale { token, fence }
    }

    async fn check_lease(&self) -> Result<(), LockError> {
        if self.client.rdma.now().await? >= self.until.get() {
            return Err(LockError::Expired { token: self.token });
        }
        Ok(())
    }

    /// Lends it anew. False when somebody else has it.
    pub async fn renew(&self) -> Result<bool, LockError> {
        let client = self.client;
        let now = client.rdma.now().await?;
        let old = LockWord::from_word(self.word.get());
        let new = LockWord { renewals: old.renewals + 1, ..old }.word();
        if client.swap_lock(old.word(), new).await? != old.word() {
            return Ok(false);
        }
        self.word.set(new);
        self.until.set(now + client.lease);
        Ok(true)
    }

    /// The value, after fencing off all older holders.
    pub async fn load(&self) -> Result<Vec<u8>, LockError> {
        self.check_lease().await?;
        let client = self.client;
        let operation = client.rdma.operation(client.epoch, "load", &[self.token]);
        for _ in 0..TORN_TRIES {
            let word = client.load_word(&client.data, GUARD, LANDING_GUARD).await?;
            let mut guard = GuardWord::from_word(word);
            if guard.fence > self.token {
                operation.end(&[]);
                return Err(self.stale(guard.fence));
            }
            if guard.fence < self.token {
                guard.fence = self.token;
                if client.swap_guard(word, guard.word()).await? != word {
                    continue;
                }
            }
            self.guard.set(Some(guard.word()));
            client.data.read((&client.own, IN), RECORD as u32, (&client.home, guard.slot())).await?;
            let bytes = client.own.read(IN, RECORD as usize).await?;
            if let Some(value) = parse(guard, &bytes) {
                operation.end(&[digest(&value)]);
                return Ok(value);
            }
        }
        Err(LockError::Torn)
    }

    /// Makes this the value. When it returns, every later holder loads it, or a newer one.
    pub async fn store(&self, value: &[u8]) -> Result<(), LockError> {
        let client = self.client;
        self.check_lease().await?;
        if value.len() > VALUE_MAX {
            return Err(LockError::TooLong(value.len()));
        }
        let operation = client.rdma.operation(client.epoch, "store", &[self.token, digest(value)]);
        let mut word = match self.guard.get() {
            Some(word) => word,
            None => client.load_word(&client.data, GUARD, LANDING_GUARD).await?,
        };
        loop {
            let guard = GuardWord::from_word(word);
            if guard.fence > self.token {
                operation.end(&[]);
                return Err(self.stale(guard.fence));
            }
            let (before, op, data) = self.change(word, value).await?;
            client.data.execute_after(vec![before], op, data).await?;
            let was = client.own.load(LANDING_GUARD).await?;
            if was == word {
                self.guard.set(Some(guard.next(self.token).word()));
                operation.end(&[self.token]);
                return Ok(());
            }
            // Not fenced off: an older holder was quicker, before this one has fenced it.
            word = was;
        }
    }

    /// The record's WRITE, and the swap of GUARD that makes it the current one.
    async fn change(&self, word: u64, value: &[u8]) -> Result<((SendOp, Data), SendOp, Data), LockError> {
        let Client { home, own, .. } = self.client;
        let next = GuardWord::from_word(word).next(self.token);
        let record = emit(next, value);
        let from = OUT + next.seq % 2 * RECORD;
        own.write(from, &record).await?;
        let to = home.at(next.slot(), record.len() as u64)?;
        let write = (SendOp::Write(to, home.rkey), Data::Piece(own.piece(from, record.len() as u32)?));
        let swap = SendOp::CompareSwap {
            addr: home.at(GUARD, 8)?,
            rkey: home.rkey,
            compare: word,
            swap: next.word(),
        };
        Ok((write, swap, Data::Piece(own.piece(LANDING_GUARD, 8)?)))
    }

    /// Gives it back. False when somebody else has taken it over.
    pub async fn release(self) -> Result<bool, LockError> {
        let client = self.client;
        let operation = client.rdma.operation(client.epoch, "release", &[self.token]);
        let free = LockWord { token: self.token, holder: 0, renewals: 0 }.word();
        let released = client.swap_lock(self.word.get(), free).await? == self.word.get();
        operation.end(if released { core::slice::from_ref(&self.token) } else { &[] });
        Ok(released)
    }

    /// Makes this the value and gives the lock back. With [`Bug::EarlyRelease`], in the wrong order: the
    /// change is under way, and taken for done.
    pub async fn store_and_release(self, value: &[u8]) -> Result<bool, LockError> {
        if self.client.bug == Bug::None {
            self.store(value).await?;
            return self.release().await;
        }
        let Some(word) = self.guard.get() else {
            self.store(value).await?;
            return self.release().await;
        };
        self.check_lease().await?;
        let client = self.client;
        let operation = client.rdma.operation(client.epoch, "store", &[self.token, digest(value)]);
        let (write, swap, landing) = self.change(word, value).await?;
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = |op, data| SendRequest { wr_id: 0, op, flags, data, ud: None, xrc_srqn: 0 };
        client.data.post(vec![request(write.0, write.1), request(swap, landing)]).await?;
        operation.end(&[self.token]);
        let released = self.release().await?;
        // The completions, whenever they come.
        client.data.send_cq().poll(16).await?;
        Ok(released)
    }
}

/// What a client of a swarm does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Times that it acquires the lock.
    pub rounds: u32,
    /// Different values that are stored; few, so that they repeat.
    pub values: u64,
    /// How it is connected.
    pub connect: Connect,
    /// The mistake that it makes.
    pub bug: Bug,
}

/// A client that acquires, loads, stores and releases at random: sometimes it is too slow for its lease,
/// or leaves without releasing.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), LockError> {
    let patience = rdma.now().await? + Duration::from_ms(1000);
    let client = Client::open(rdma, name, &work.connect, Some(patience), work.bug).await?;
    for _ in 0..work.rounds {
        let lease = client.lease().as_ns();
        let patience = rdma.now().await? + Duration::from_ns(lease * 4);
        let Some(held) = client.acquire(Some(patience)).await? else { continue };
        match once(rdma, held, work, lease).await {
            // Whoever has lost the lock begins anew.
            Ok(()) | Err(LockError::Stale { .. } | LockError::Expired { .. }) => {}
            Err(error) => return Err(error),
        }
        rdma.sleep(Duration::from_ns(rdma.random().await? % (lease / 2))).await?;
    }
    Ok(())
}

async fn once(rdma: &Rdma, held: Held<'_>, work: &Work, lease: u64) -> Result<(), LockError> {
    let dice = rdma.random().await?;
    if dice % 8 < 6 {
        held.load().await?;
    }
    if dice >> 8 & 7 == 0 {
        // Too long for some leases: a newer holder comes meanwhile.
        rdma.sleep(Duration::from_ns(rdma.random().await? % (2 * lease))).await?;
    }
    if dice >> 16 & 3 == 0 && !held.renew().await? {
        return Ok(());
    }
    let value = (1 + (dice >> 24) % work.values).to_le_bytes();
    match dice >> 32 & 7 {
        0 => held.release().await.map(|_| ()),
        // Left without a word: its lease has to run out.
        1 => held.store(&value).await,
        _ => held.store_and_release(&value).await.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_they_were_made_of() {
        let lock = LockWord { token: TOKEN_MAX, holder: 0xfffe, renewals: 0xff_fffd };
        assert_eq!(LockWord::from_word(lock.word()), lock);
        let guard = GuardWord { fence: TOKEN_MAX, writer: 77, seq: 0xffff };
        assert_eq!(GuardWord::from_word(guard.word()), guard);
        assert_eq!(guard.next(78), GuardWord { fence: 78, writer: 78, seq: 0 });
        for token in 1..200 {
            let next = guard.next(token);
            assert_ne!(next.slot(), guard.slot(), "the current record is never written over");
            assert!(next.slot() + RECORD <= HOME_LEN);
        }
    }

    #[test]
    fn a_record_is_taken_for_itself_only() {
        let guard = GuardWord { fence: 9, writer: 7, seq: 3 };
        let bytes = emit(guard, b"value");
        assert_eq!(parse(guard, &bytes), Some(b"value".to_vec()));
        assert_eq!(parse(GuardWord { fence: 10, ..guard }, &bytes), Some(b"value".to_vec()));
        assert_eq!(parse(GuardWord { writer: 8, ..guard }, &bytes), None);
        assert_eq!(parse(GuardWord { seq: 4, ..guard }, &bytes), None);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(guard, &other), None, "bit {bit}");
        }
        assert_eq!(parse(guard, &bytes[..HEAD + 4]), None);
        assert_eq!(parse(GuardWord { writer: 0, ..guard }, &[]), Some(Vec::new()), "nothing was stored yet");
    }

    #[test]
    fn a_welcome_is_checked() {
        let memory = Remote { addr: 4096, len: HOME_LEN, rkey: adverb_rdma::Key(5) };
        let welcome = Welcome { epoch: 3, lease: Duration::from_ms(5), holder: 9, memory };
        let bytes = welcome.to_bytes();
        let told = Welcome::from_bytes(&bytes).unwrap();
        assert_eq!((told.epoch, told.lease, told.holder, told.memory), (3, welcome.lease, 9, memory));
        for len in 0..bytes.len() {
            assert!(Welcome::from_bytes(&bytes[..len]).is_none());
        }
        let small = Remote { len: HOME_LEN - 1, ..memory };
        assert!(Welcome::from_bytes(&Welcome { memory: small, ..welcome }.to_bytes()).is_none());
    }
}
