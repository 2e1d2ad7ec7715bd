//! Words in remote memory that several clients change as they like: compare and swap, fetch and add, WRITEs
//! of a word and of half of one, READs, several at once. Nothing is built on them; this is what an oracle
//! needs that judges whatever lies between clients and words.
//!
//! A client begins with an addition of nothing to each word, [`Work::begins`] times, with [`Work::settle`]
//! behind each, so that a switch that decides atomics may learn the words. Then it works in turns: up to
//! [`Work::depth`] operations are posted, some of them in one list, and the next ones when some have
//! completed.
//!
//! What the oracle is told, with the number of the word as the object, above it the home's epoch: `cas`
//! [compare, swap] → [was]; `add` [more] → [was]; `read` [] → [value]; `write` [value] → []; `write-low`
//! [value] → [], which replaces the lower half.

use crate::meeting::{self, Fields, Met};
use adverb_rdma::{
    Access, Caps, Connect, Cq, Data, Duration, Error, Key, Line, Listener, On, Operation, Pd, Qp, Rdma,
    Region, Remote, SendFlags, SendOp, SendRequest, Status,
};
use std::collections::BTreeMap;

/// Words of a home at most.
pub const WORDS_MAX: u32 = 1 << 12;
/// Operations of a client at once at most.
pub const DEPTH_MAX: u32 = 16;
/// Clients of a home at once at most.
const CLIENTS_MAX: usize = 256;
/// Where the words that WRITEs send lie in a client's memory, behind those where answers land.
const SENT: u64 = 8 * DEPTH_MAX as u64;

/// What makes a wrong key of the right one.
const WRONG: u32 = 0x5a5a_5a00;

/// The words' owner: zeros at first, and nothing but what clients do to them. It serves until it is asked to
/// end.
pub async fn serve(rdma: &Rdma, name: &str, words: u32, connect: &Connect) -> Result<(), Error> {
    let words = words.clamp(1, WORDS_MAX);
    let pd = rdma.create_pd().await?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = pd.region(u64::from(words) * 8, access).await?;
    let epoch = rdma.random().await?;
    let listener = rdma.listen(name).await?;
    let mut welcome = epoch.to_be_bytes().to_vec();
    welcome.extend_from_slice(&memory.remote().to_bytes());
    let (mut clients, mut number) = (BTreeMap::<u64, Met>::new(), 0u64);
    loop {
        let mut on = vec![On::Stop, On::Asked(&listener)];
        let fixed = on.len();
        on.extend(clients.values().map(|client| On::Gone(&client.line)));
        match rdma.until(&on, None).await? {
            Some(0) | None => return Ok(()),
            Some(1) => match admit(rdma, &pd, &listener, &welcome, connect, clients.len()).await {
                Ok(Some(client)) => {
                    number += 1;
                    clients.insert(number, client);
                }
                Ok(None) => {}
                // One client's mistake, or its end, is not the home's.
                Err(error) => rdma.say(|| format!("a client was not connected: {error}")),
            },
            Some(index) => {
                let gone = clients.keys().nth(index - fixed).copied();
                gone.and_then(|gone| clients.remove(&gone));
            }
        }
    }
}

async fn admit(
    rdma: &Rdma,
    pd: &Pd,
    listener: &Listener,
    welcome: &[u8],
    connect: &Connect,
    clients: usize,
) -> Result<Option<Met>, Error> {
    let Some(asked) = listener.try_accept().await? else { return Ok(None) };
    if clients >= CLIENTS_MAX {
        // Not answered, so refused.
        return Ok(None);
    }
    meeting::admit(rdma, pd, asked, welcome, connect).await.map(Some)
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Operations, beside those that begin.
    pub operations: u32,
    /// Words that it uses: the first ones.
    pub words: u32,
    /// Different values; few, so that they repeat and compare and swaps succeed.
    pub values: u64,
    /// Operations at once.
    pub depth: u32,
    /// Rounds of the beginning.
    pub begins: u32,
    /// How long it waits after each of them, and at times later.
    pub settle: Duration,
    /// Of a hundred operations, those that replace half a word.
    pub halves: u64,
    /// Which operations.
    pub mix: Mix,
    /// How it is connected.
    pub connect: Connect,
}

/// Which operations a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// All kinds, mostly compare and swaps.
    All,
    /// Additions and READs. Beside one client that writes nothing explains that a WRITE is missing.
    Adds,
    /// WRITEs, of values that do not repeat.
    Writes,
}

/// One operation on a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Compare and swap: what it is compared with, and what it becomes.
    Cas(u64, u64),
    /// Fetch and add.
    Add(u64),
    /// READ.
    Read,
    /// WRITE.
    Write(u64),
    /// WRITE of the lower half.
    WriteLow(u32),
}

impl Ask {
    /// By the dice.
    fn random(dice: u64, work: &Work) -> Ask {
        let small = |shift: u32| (dice >> shift) % work.values.max(1);
        match dice % 100 {
            _ if work.mix == Mix::Writes => Ask::Write(dice),
            n if work.mix == Mix::Adds => {
                if n < 90 {
                    Ask::Add(1)
                } else {
                    Ask::Read
                }
            }
            n if n < work.halves => Ask::WriteLow(small(8) as u32),
            n if n < 60 => Ask::Cas(small(8), small(24)),
            n if n < 80 => Ask::Add(1),
            n if n < 90 => Ask::Read,
            _ => Ask::Write(small(8)),
        }
    }

    fn told(self) -> (&'static str, Vec<u64>) {
        match self {
            Ask::Cas(compare, swap) => ("cas", vec![compare, swap]),
            Ask::Add(more) => ("add", vec![more]),
            Ask::Read => ("read", Vec::new()),
            Ask::Write(value) => ("write", vec![value]),
            Ask::WriteLow(value) => ("write-low", vec![value.into()]),
        }
    }

    /// Whether the word's value comes back.
    fn answers(self) -> bool {
        !matches!(self, Ask::Write(_) | Ask::WriteLow(_))
    }
}

/// A client and what it has under way.
struct Client<'a> {
    rdma: &'a Rdma,
    cq: Cq,
    qp: Qp,
    own: Region,
    home: Remote,
    epoch: u64,
    /// By the place of its answer.
    open: BTreeMap<u64, (Ask, Operation)>,
    /// If its order is told, too: who it is, and how many requests it has made.
    told: Option<(u64, u64)>,
}

impl Client<'_> {
    /// What is posted for an operation, which begins now.
    async fn begin(&mut self, word: u64, ask: Ask) -> Result<SendRequest, Error> {
        let key = self.home.rkey;
        self.begin_with(word, ask, key).await
    }

    /// The same under some key.
    async fn begin_with(&mut self, word: u64, ask: Ask, rkey: Key) -> Result<SendRequest, Error> {
        let Some(place) = (0..u64::from(DEPTH_MAX)).find(|place| !self.open.contains_key(place)) else {
            unreachable!("there are as many places as operations at once")
        };
        let addr = self.home.at(word * 8, 8)?;
        let (mut at, mut len) = (place * 8, 8);
        let op = match ask {
            Ask::Cas(compare, swap) => SendOp::CompareSwap { addr, rkey, compare, swap },
            Ask::Add(add) => SendOp::FetchAdd { addr, rkey, add },
            Ask::Read => SendOp::Read(addr, rkey),
            Ask::Write(_) | Ask::WriteLow(_) => SendOp::Write(addr, rkey),
        };
        if let Ask::Write(value) = ask {
            at += SENT;
            self.own.write(at, &value.to_le_bytes()).await?;
        } else if let Ask::WriteLow(value) = ask {
            (at, len) = (at + SENT, 4);
            self.own.write(at, &value.to_le_bytes()).await?;
        }
        let (name, mut arguments) = ask.told();
        let mut object = self.epoch.wrapping_add(word);
        if let Some((who, count)) = &mut self.told {
            object = self.epoch;
            arguments.splice(0..0, [*who, *count, word]);
            *count += 1;
        }
        let operation = self.rdma.operation(object, name, &arguments);
        self.open.insert(place, (ask, operation));
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Piece(self.own.piece(at, len)?);
        Ok(SendRequest { wr_id: place, op, flags, data, ud: None, xrc_srqn: 0 })
    }

    /// Waits until some operation has completed, and notes what has.
    async fn complete(&mut self) -> Result<(), Error> {
        self.rdma.until(&[On::Cq(&self.cq)], None).await?;
        for completion in self.cq.poll(DEPTH_MAX as usize).await? {
            if completion.status != Status::Success {
                return Err(Error::of(&completion));
            }
            let Some((ask, operation)) = self.open.remove(&completion.wr_id) else { continue };
            match ask.answers() {
                true => operation.end(&[self.own.load(completion.wr_id * 8).await?]),
                false => operation.end(&[]),
            }
        }
        Ok(())
    }

    async fn alone(&mut self, word: u64, ask: Ask) -> Result<(), Error> {
        let request = self.begin(word, ask).await?;
        self.qp.post(vec![request]).await?;
        while !self.open.is_empty() {
            self.complete().await?;
        }
        Ok(())
    }
}

/// A client of a home, connected.
async fn client<'a>(rdma: &'a Rdma, name: &str, connect: &Connect) -> Result<(Client<'a>, Line), Error> {
    let patience = rdma.now().await? + Duration::from_ms(1000);
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let qp = pd.create_rc(&cq, Caps { max_send_wr: DEPTH_MAX, ..Caps::default() }).await?;
    let (line, told) = qp.connect(name, &[], connect, Some(patience)).await?;
    let own = pd.region(2 * SENT, Access::LOCAL_WRITE).await?;
    let mut fields = Fields(&told);
    let epoch = fields.u64().ok_or(Error::Garbled("words"))?;
    let home = Remote::from_bytes(fields.0).ok_or(Error::Garbled("words"))?;
    Ok((Client { rdma, cq, qp, own, home, epoch, open: BTreeMap::new(), told: None }, line))
}

/// A client that does random operations on random words.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), Error> {
    let depth = work.depth.clamp(1, DEPTH_MAX);
    let (mut client, _line) = client(rdma, name, &work.connect).await?;
    let words = u64::from(work.words).min(client.home.len / 8).max(1);
    for _ in 0..work.begins {
        for word in 0..words {
            client.alone(word, Ask::Add(0)).await?;
        }
        rdma.sleep(work.settle).await?;
    }
    let mut left = work.operations;
    while left > 0 {
        let dice = rdma.random().await?;
        let room = u64::from(depth) - client.open.len() as u64;
        let count = (dice % (room + 1)).min(left.into());
        let mut list = Vec::new();
        for _ in 0..count {
            let dice = rdma.random().await?;
            list.push(client.begin((dice >> 40) % words, Ask::random(dice, work)).await?);
        }
        if !list.is_empty() {
            left -= list.len() as u32;
            client.qp.post(list).await?;
        }
        if client.open.len() as u32 == depth || (dice >> 32 & 1 == 0 && !client.open.is_empty()) {
            client.complete().await?;
        } else if dice >> 33 & 31 == 0 {
            rdma.sleep(work.settle).await?;
        } else if dice >> 33 & 3 == 1 {
            rdma.sleep(Duration::from_ns(dice >> 40 & 0xffff)).await?;
        }
    }
    while !client.open.is_empty() {
        client.complete().await?;
    }
    Ok(())
}

/// Requests that are posted in one list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// When, from the client's start on; at once, if that is over.
    pub at: Duration,
    /// For which word, what, and whether under a key that the home has not given.
    pub list: Vec<(u64, Ask, bool)>,
}

/// A client that does what it is told, list by list; the next one when all of the last has completed. The
/// oracle is told the same as of [`work`], but all words are one object, and before the other arguments stand
/// who asks, how many requests came before, and the word: what a queue pair asks takes effect in that order.
pub async fn follow(
    rdma: &Rdma,
    name: &str,
    who: u64,
    connect: &Connect,
    steps: &[Step],
) -> Result<(), Error> {
    let start = rdma.now().await?;
    let (mut client, _line) = client(rdma, name, connect).await?;
    client.told = Some((who, 0));
    for step in steps {
        let now = rdma.now().await?;
        let at = start + step.at;
        if at > now {
            rdma.sleep(at.since(now)).await?;
        }
        let mut list = Vec::new();
        for (word, ask, wrong) in step.list.iter().take(DEPTH_MAX as usize) {
            let key = client.home.rkey;
            let key = if *wrong { Key(key.0 ^ WRONG) } else { key };
            list.push(client.begin_with(*word, *ask, key).await?);
        }
        client.qp.post(list).await?;
        while !client.open.is_empty() {
            client.complete().await?;
        }
    }
    Ok(())
}
