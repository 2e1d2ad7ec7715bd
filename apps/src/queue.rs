//! A bounded queue in remote memory: several producers write it one-sidedly, one consumer takes from it.
//!
//! The queue is in the consumer's memory: slots in a ring, used in the order of *tickets*, 0, 1, 2 and so
//! on; ticket n has slot n modulo their number.
//!
//! ```text
//! HEAD   the consumer's next ticket: a hint for producers that come late
//! slot   claim     ticket:47 whole:1 producer:16   producer 0: free for this ticket
//!        payload   what is queued
//!        check     length:32 CRC:32                over ticket, length and payload
//!
//! producer   CAS claim (n, nobody) ─► (n, me)        the queue is full while n's slot still has n - slots
//!            one list: WRITE payload, WRITE check, CAS claim (n, me) ─► (n, me, whole)
//! consumer   until(claim of ticket n is whole); takes it; claim ─► (n + slots, nobody); HEAD
//! ```
//! **Tickets are claimed in order**: a producer tries ticket n only after it has seen that n - 1 is
//! claimed. So the order of claims is the order of the queue, and whoever had its element queued before
//! another began comes before it.
//!
//! **An atomic ends an element.** Bytes of a WRITE may be placed in any order before its completion, and a
//! NIC that recovers losses selectively places a later WRITE before an earlier one's lost packet. A header
//! that is written behind its payload, and even one with a CRC, may so be there too early: when the payload
//! is the one that the slot had before, the CRC is right, the consumer goes on, and the payload's WRITE, sent
//! again, lands in a later element. An atomic is executed after all that was posted before it (IBTA
//! 10.8.3.3), so the claim that it marks as whole is. [`Bug::TornHeader`] marks it first, and believes it.
//!
//! **Producers that die.** A claimed ticket that is not filled stops everybody behind it. When its
//! producer's line has ended, or after [`QueueConfig::patience`], the consumer takes that producer's queue
//! pair to the error state: from then on nothing of it can arrive. Then it looks a last time: what is
//! whole is taken, what is not is skipped. A producer that was only slow finds its connection failed, and
//! does not know whether its last element was taken.
//!
//! What the oracle is told, with the queue's epoch as the object: `enqueue` [digest] → [ticket];
//! `dequeue` [] → [digest].
// Long: a program is one file: its protocol, its consumer, its producers.

use crate::lock::digest;
use crate::meeting::{self, Fields, Met};
use adverb_rdma::{
    Access, Connect, Data, Duration, Error, Instant, Line, Listener, On, Pd, Qp, QpAttrMask, QpState, Rdma,
    Region, Remote, SendOp,
};
use std::collections::BTreeMap;
use std::fmt;

const HEAD: u64 = 0;
const SLOTS: u64 = 64;
/// Claim and check.
const SLOT_WORDS: u64 = 16;
/// Slots of a queue at most.
pub const SLOTS_MAX: u32 = 1 << 16;
/// Bytes of an element at most.
pub const ITEM_MAX: u32 = 1 << 20;
/// Producers at once at most.
pub const PRODUCERS_MAX: usize = 256;
/// First pause of a producer before a queue that is full.
const PAUSE: Duration = Duration::from_us(10);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_us(1000);

/// A mistake made on purpose, for an oracle to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Bug {
    /// None.
    #[default]
    None,
    /// The element is marked as whole before its payload is written, and the consumer believes it.
    TornHeader,
}

/// What a queue is made with.
#[derive(Clone, Copy, Debug)]
pub struct QueueConfig {
    /// Elements that it holds.
    pub slots: u32,
    /// Bytes of an element at most.
    pub item_max: u32,
    /// How long a claimed ticket may stay empty before its producer is shut out.
    pub patience: Duration,
    /// How producers are connected.
    pub connect: Connect,
    /// The consumer's mistake.
    pub bug: Bug,
}

impl Default for QueueConfig {
    fn default() -> Self {
        QueueConfig {
            slots: 64,
            item_max: 4096,
            patience: Duration::from_ms(2000),
            connect: Connect::default(),
            bug: Bug::None,
        }
    }
}

/// Why an element was not queued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueueError {
    /// The consumer cannot be reached, or has shut this producer out. Whether the element is queued is
    /// not known.
    Rdma(Error),
    /// An element that no slot holds, and what one holds.
    TooLong(usize, u32),
    /// A queue that cannot be.
    Config(&'static str),
}

impl From<Error> for QueueError {
    fn from(error: Error) -> QueueError {
        QueueError::Rdma(error)
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueError::Rdma(error) => error.fmt(f),
            QueueError::TooLong(len, max) => write!(f, "an element of {len} bytes; at most {max}"),
            QueueError::Config(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for QueueError {}

/// A claim, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    ticket: u64,
    /// Its element can be taken.
    whole: bool,
    producer: u64,
}

impl Claim {
    fn from_word(word: u64) -> Claim {
        Claim { ticket: word >> 17, whole: word >> 16 & 1 != 0, producer: word & 0xffff }
    }

    /// Of a ticket that nobody has claimed.
    fn free(ticket: u64) -> Claim {
        Claim { ticket, whole: false, producer: 0 }
    }

    fn word(self) -> u64 {
        self.ticket << 17 | u64::from(self.whole) << 16 | self.producer
    }
}

/// Where everything is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    slots: u64,
    item_max: u64,
}

impl Layout {
    fn stride(self) -> u64 {
        (SLOT_WORDS + self.item_max).next_multiple_of(64)
    }

    fn slot(self, ticket: u64) -> u64 {
        SLOTS + ticket % self.slots * self.stride()
    }

    fn payload(self, ticket: u64) -> u64 {
        self.slot(ticket) + 8
    }

    /// The check.
    fn header(self, ticket: u64) -> u64 {
        self.slot(ticket) + self.stride() - 8
    }

    fn len(self) -> u64 {
        SLOTS + self.slots * self.stride()
    }
}

/// The check word: length and CRC.
fn check(ticket: u64, payload: &[u8]) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&ticket.to_le_bytes());
    crc.update(&(payload.len() as u32).to_le_bytes());
    crc.update(payload);
    (payload.len() as u64) << 32 | u64::from(crc.finalize())
}

/// What a producer is told when it comes.
struct Welcome {
    epoch: u64,
    producer: u16,
    layout: Layout,
    memory: Remote,
}

impl Welcome {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.producer.to_be_bytes());
        out.extend_from_slice(&(self.layout.slots as u32).to_be_bytes());
        out.extend_from_slice(&(self.layout.item_max as u32).to_be_bytes());
        out.extend_from_slice(&self.memory.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let (epoch, producer) = (fields.u64()?, fields.u16()?);
        let (slots, item_max) = (fields.u32()?, fields.u32()?);
        let memory = Remote::from_bytes(fields.0)?;
        let layout = Layout { slots: slots.into(), item_max: item_max.into() };
        let sound = (1..=SLOTS_MAX).contains(&slots)
            && (1..=ITEM_MAX).contains(&item_max)
            && memory.len >= layout.len()
            && producer != 0;
        sound.then_some(Welcome { epoch, producer, layout, memory })
    }
}

/// The consumer, which owns the queue.
pub struct Consumer {
    rdma: Rdma,
    pd: Pd,
    listener: Listener,
    memory: Region,
    config: QueueConfig,
    layout: Layout,
    epoch: u64,
    /// The next ticket.
    head: u64,
    /// Those that are connected.
    producers: BTreeMap<u64, Met>,
    /// The last producer's number.
    number: u16,
    skipped: u64,
}

/// What the head of the queue is like.
enum Head {
    Ready(Vec<u8>),
    /// Nobody has claimed it.
    Empty,
    /// Claimed by this producer, and not whole.
    Waiting(u64),
}

impl Consumer {
    /// A queue that producers find under this name.
    pub async fn open(rdma: &Rdma, name: &str, config: QueueConfig) -> Result<Consumer, QueueError> {
        if !(1..=SLOTS_MAX).contains(&config.slots) || !(1..=ITEM_MAX).contains(&config.item_max) {
            return Err(QueueError::Config("a queue has 1 to 65536 slots of 1 byte to 1 MB"));
        }
        let layout = Layout { slots: config.slots.into(), item_max: config.item_max.into() };
        let pd = rdma.create_pd().await?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = pd.region(layout.len(), access).await?;
        for ticket in 0..layout.slots {
            memory.store(layout.slot(ticket), Claim::free(ticket).word()).await?;
        }
        let epoch = rdma.random().await?;
        let listener = rdma.listen(name).await?;
        Ok(Consumer {
            rdma: rdma.clone(),
            pd,
            listener,
            memory,
            config,
            layout,
            epoch,
            head: 0,
            producers: BTreeMap::new(),
            number: 0,
            skipped: 0,
        })
    }

    /// Producers that are connected.
    pub fn producers(&self) -> usize {
        self.producers.len()
    }

    /// Tickets that were claimed and given up.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The next element. `None` when the program is asked to end, or the deadline has come.
    pub async fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Vec<u8>>, QueueError> {
        let operation = self.rdma.operation(self.epoch, "dequeue", &[]);
        // Since when the head's ticket waits for its producer.
        let mut since = None;
        loop {
            let claim = self.memory.load(self.layout.slot(self.head)).await?;
            let waits = match self.look(claim).await? {
                Head::Ready(payload) => {
                    operation.end(&[digest(&payload)]);
                    self.advance().await?;
                    return Ok(Some(payload));
                }
                Head::Empty => None,
                Head::Waiting(producer) => {
                    let now = self.rdma.now().await?;
                    let began = *since.get_or_insert(now);
                    let gone = !self.producers.contains_key(&producer);
                    if gone || now.since(began) >= self.config.patience {
                        self.give_up(producer).await?;
                        since = None;
                        continue;
                    }
                    Some(began + self.config.patience)
                }
            };
            let until = [waits, deadline].into_iter().flatten().min();
            if !self.wait(claim, until).await? {
                operation.void();
                return Ok(None);
            }
            if let Some(deadline) = deadline
                && self.rdma.now().await? >= deadline
            {
                operation.void();
                return Ok(None);
            }
        }
    }

    async fn look(&self, word: u64) -> Result<Head, QueueError> {
        let claim = Claim::from_word(word);
        if claim.whole {
            let check_word = self.memory.load(self.layout.header(self.head)).await?;
            let len = (check_word >> 32).min(self.layout.item_max);
            let payload = self.memory.read(self.layout.payload(self.head), len as usize).await?;
            if self.config.bug == Bug::TornHeader || check(self.head, &payload) == check_word {
                return Ok(Head::Ready(payload));
            }
        }
        Ok(if claim.producer == 0 { Head::Empty } else { Head::Waiting(claim.producer) })
    }

    /// Waits for a change at the head, and deals with producers that come and go. False when the program
    /// is asked to end.
    async fn wait(&mut self, claim: u64, until: Option<Instant>) -> Result<bool, QueueError> {
        let mut on = vec![
            On::Stop,
            On::Asked(&self.listener),
            On::Word(&self.memory, self.layout.slot(self.head), claim),
        ];
        let fixed = on.len();
        on.extend(self.producers.values().map(|producer| On::Gone(&producer.line)));
        match self.rdma.until(&on, until).await? {
            Some(0) => return Ok(false),
            Some(1) => {
                if let Err(error) = self.admit().await {
                    // One producer's mistake, or its end, is not the queue's.
                    self.rdma.say(|| format!("a producer was not connected: {error}"));
                }
            }
            Some(index) if index >= fixed => {
                let gone = self.producers.keys().nth(index - fixed).copied();
                if let Some(producer) = gone {
                    self.shut_out(producer).await?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    async fn admit(&mut self) -> Result<(), Error> {
        let Some(asked) = self.listener.try_accept().await? else { return Ok(()) };
        if self.producers.len() >= PRODUCERS_MAX {
            // Not answered, so refused.
            return Ok(());
        }
        loop {
            self.number = self.number.checked_add(1).unwrap_or(1);
            if !self.producers.contains_key(&self.number.into()) {
                break;
            }
        }
        let welcome = Welcome {
            epoch: self.epoch,
            producer: self.number,
            layout: self.layout,
            memory: self.memory.remote(),
        };
        let (rdma, pd, connect) = (&self.rdma, &self.pd, &self.config.connect);
        let met = meeting::admit(rdma, pd, asked, &welcome.to_bytes(), connect).await?;
        self.producers.insert(self.number.into(), met);
        Ok(())
    }

    /// Nothing of this producer arrives any more.
    async fn shut_out(&mut self, producer: u64) -> Result<(), QueueError> {
        if let Some(Met { qp, .. }) = self.producers.remove(&producer) {
            let mut attr = qp.query().await?;
            attr.state = QpState::Err;
            qp.modify(&attr, QpAttrMask::STATE).await?;
        }
        Ok(())
    }

    /// The head's producer does not fill it.
    async fn give_up(&mut self, producer: u64) -> Result<(), QueueError> {
        self.shut_out(producer).await?;
        // It may have come in the meantime.
        let claim = self.memory.load(self.layout.slot(self.head)).await?;
        if let Head::Waiting(_) = self.look(claim).await? {
            self.rdma
                .say(|| format!("ticket {} was given up: producer {producer} did not fill it", self.head));
            self.skipped += 1;
            self.advance().await?;
        }
        Ok(())
    }

    /// The head's slot is free for a later ticket.
    async fn advance(&mut self) -> Result<(), QueueError> {
        let free = Claim::free(self.head + self.layout.slots);
        self.memory.store(self.layout.slot(self.head), free.word()).await?;
        self.head += 1;
        self.memory.store(HEAD, self.head).await?;
        Ok(())
    }
}

// A producer's own memory.
const LANDING: u64 = 0;
const HEADER: u64 = 16;
const PAYLOAD: u64 = 64;

/// A producer.
pub struct Producer {
    rdma: Rdma,
    qp: Qp,
    line: Line,
    own: Region,
    queue: Remote,
    layout: Layout,
    epoch: u64,
    number: u64,
    /// All tickets before this one are claimed.
    next: u64,
    bug: Bug,
}

impl Producer {
    /// Connects to a queue. Until the deadline it tries again while nobody listens there.
    pub async fn open(
        rdma: &Rdma,
        name: &str,
        connect: &Connect,
        deadline: Option<Instant>,
        bug: Bug,
    ) -> Result<Producer, QueueError> {
        let pd = rdma.create_pd().await?;
        let (Met { qp, line }, told) = meeting::join(rdma, &pd, name, &[], connect, deadline).await?;
        let Welcome { epoch, producer, layout, memory } =
            Welcome::from_bytes(&told).ok_or(Error::Garbled("a queue"))?;
        let own = pd.region(PAYLOAD + layout.item_max, Access::LOCAL_WRITE).await?;
        let mut producer = Producer {
            rdma: rdma.clone(),
            qp,
            line,
            own,
            queue: memory,
            layout,
            epoch,
            number: producer.into(),
            next: 0,
            bug,
        };
        producer.next = producer.head().await?;
        Ok(producer)
    }

    /// Ends with the consumer.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Bytes of an element at most.
    pub fn item_max(&self) -> u64 {
        self.layout.item_max
    }

    async fn head(&self) -> Result<u64, Error> {
        self.qp.read((&self.own, LANDING), 8, (&self.queue, HEAD)).await?;
        self.own.load(LANDING).await
    }

    /// Queues an element, and returns its ticket; waits while the queue is full. `None` when the program is
    /// asked to end before it has claimed one.
    pub async fn enqueue(&mut self, payload: &[u8]) -> Result<Option<u64>, QueueError> {
        if payload.len() as u64 > self.layout.item_max {
            return Err(QueueError::TooLong(payload.len(), self.layout.item_max as u32));
        }
        let operation = self.rdma.operation(self.epoch, "enqueue", &[digest(payload)]);
        let Some(ticket) = self.claim().await? else {
            operation.void();
            return Ok(None);
        };
        self.fill(ticket, payload).await?;
        operation.end(&[ticket]);
        Ok(Some(ticket))
    }

    async fn claim(&mut self) -> Result<Option<u64>, QueueError> {
        let mut pause = PAUSE;
        loop {
            let ticket = self.next;
            let free = Claim::free(ticket).word();
            let mine = self.own_claim(ticket).word();
            let at = (&self.queue, self.layout.slot(ticket));
            let was = self.qp.compare_swap(at, (free, mine), (&self.own, LANDING)).await?;
            let found = Claim::from_word(was);
            if was == free {
                self.next = ticket + 1;
                return Ok(Some(ticket));
            }
            if found.ticket == ticket {
                self.next = ticket + 1;
            } else if found.ticket > ticket {
                // It was claimed and taken since. So was all before HEAD.
                self.next = self.head().await?.max(ticket + 1);
            } else {
                // The queue is full.
                let until = self.rdma.now().await? + pause;
                if self.rdma.until(&[On::Stop], Some(until)).await?.is_some() {
                    return Ok(None);
                }
                pause = (pause + pause).min(PAUSE_MAX);
            }
        }
    }

    fn own_claim(&self, ticket: u64) -> Claim {
        Claim { ticket, whole: false, producer: self.number }
    }

    async fn fill(&self, ticket: u64, payload: &[u8]) -> Result<(), QueueError> {
        self.own.write(PAYLOAD, payload).await?;
        self.own.store(HEADER, check(ticket, payload)).await?;
        let write = |from: u64, to: u64, len: u64| -> Result<(SendOp, Data), Error> {
            let op = SendOp::Write(self.queue.at(to, len)?, self.queue.rkey);
            Ok((op, Data::Piece(self.own.piece(from, len as u32)?)))
        };
        let body = write(PAYLOAD, self.layout.payload(ticket), payload.len() as u64)?;
        let header = write(HEADER, self.layout.header(ticket), 8)?;
        let mine = self.own_claim(ticket);
        let mark = SendOp::CompareSwap {
            addr: self.queue.at(self.layout.slot(ticket), 8)?,
            rkey: self.queue.rkey,
            compare: mine.word(),
            swap: Claim { whole: true, ..mine }.word(),
        };
        let mark = (mark, Data::Piece(self.own.piece(LANDING, 8)?));
        let (before, last) =
            if self.bug == Bug::TornHeader { (vec![header, mark], body) } else { (vec![body, header], mark) };
        self.qp.execute_after(before, last.0, last.1).await?;
        if self.own.load(LANDING).await? != mine.word() {
            // The consumer has given the ticket up, and takes nothing of this producer any more.
            return Err(Error::Left.into());
        }
        Ok(())
    }
}

/// What a producer of a swarm does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Elements that it queues.
    pub items: u32,
    /// Different elements; few, so that they repeat.
    pub values: u64,
    /// Bytes of an element at most.
    pub len_max: u32,
    /// How it is connected.
    pub connect: Connect,
    /// The mistake that it makes.
    pub bug: Bug,
}

/// A producer that queues elements at random times.
pub async fn produce(rdma: &Rdma, name: &str, work: &Work) -> Result<(), QueueError> {
    let patience = rdma.now().await? + Duration::from_ms(1000);
    let mut producer = Producer::open(rdma, name, &work.connect, Some(patience), work.bug).await?;
    for _ in 0..work.items {
        let dice = rdma.random().await?;
        let value = dice % work.values;
        // An element is known by its value: its length and all its bytes follow from it.
        let len = 8 + (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % u64::from(work.len_max.max(9) - 8);
        let payload: Vec<u8> = (0..len).map(|at| (value.wrapping_mul(31).wrapping_add(at)) as u8).collect();
        if producer.enqueue(&payload).await?.is_none() {
            return Ok(());
        }
        if dice >> 32 & 3 == 0 {
            rdma.sleep(Duration::from_ns(dice >> 40 & 0xffff)).await?;
        }
    }
    Ok(())
}

/// A consumer that takes elements until it is asked to end, or the deadline comes.
pub async fn consume(
    rdma: &Rdma,
    name: &str,
    config: QueueConfig,
    deadline: Option<Instant>,
) -> Result<u64, QueueError> {
    let mut consumer = Consumer::open(rdma, name, config).await?;
    let mut taken = 0;
    while consumer.next(deadline).await?.is_some() {
        taken += 1;
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_they_were_made_of() {
        for whole in [false, true] {
            let claim = Claim { ticket: (1 << 47) - 1, whole, producer: 0xfffe };
            assert_eq!(Claim::from_word(claim.word()), claim);
        }
        assert_ne!(check(1, b"a"), check(2, b"a"), "an element is its ticket's");
        assert_ne!(check(1, b"a"), check(1, b"b"));
        assert_eq!(check(1, b"abc") >> 32, 3);
    }

    #[test]
    fn slots_do_not_overlap() {
        for item_max in [1, 39, 40, 41, 4096] {
            let layout = Layout { slots: 3, item_max };
            for ticket in 0..3 {
                let (slot, payload, header) =
                    (layout.slot(ticket), layout.payload(ticket), layout.header(ticket));
                assert!(slot % 64 == 0 && header % 8 == 0);
                assert!(slot + 8 <= payload && payload + item_max <= header);
                assert!(header + 8 <= layout.slot(ticket) + layout.stride());
                assert_eq!(layout.slot(ticket + 3), slot);
            }
            assert_eq!(layout.slot(2) + layout.stride(), layout.len());
        }
    }

    #[test]
    fn a_welcome_is_checked() {
        let layout = Layout { slots: 4, item_max: 100 };
        let memory = Remote { addr: 4096, len: layout.len(), rkey: adverb_rdma::Key(5) };
        let welcome = Welcome { epoch: 3, producer: 9, layout, memory };
        let bytes = welcome.to_bytes();
        let told = Welcome::from_bytes(&bytes).unwrap();
        assert_eq!((told.epoch, told.producer, told.layout, told.memory), (3, 9, layout, memory));
        for len in 0..bytes.len() {
            assert!(Welcome::from_bytes(&bytes[..len]).is_none());
        }
        for wrong in [
            Welcome { producer: 0, ..welcome },
            Welcome { layout: Layout { slots: 0, ..layout }, ..Welcome::from_bytes(&bytes).unwrap() },
            Welcome { layout: Layout { slots: 5, ..layout }, ..Welcome::from_bytes(&bytes).unwrap() },
        ] {
            assert!(Welcome::from_bytes(&wrong.to_bytes()).is_none());
        }
    }
}
