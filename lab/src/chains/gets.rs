//! Lookups in a hash table, as RedN measures them (section 5.2): by a chain in the server's NIC, by READs of
//! the client, by the server's processor, and as one READ that knows where the value is.
//!
//! A bucket holds a key of six bytes, and address and length of its value, big-endian. A chain takes the key
//! and the buckets' addresses from the client's message; a READ brings a bucket into a reply that is a NOP
//! with the key as its operand, and a compare-and-swap makes it a WRITE if the keys agree.

use super::{How, Shared, text};
use adverb_rdma::{
    Access, Caps, Connect, Cq, Data, Duration, Error, Key, Line, Listener, On, Pd, Qp, Rdma, RecvRequest,
    Region, Remote, SendFlags, SendOp, SendOrder, SendRequest, Status,
};
use adverb_redn::chain::{
    Address, Chain, Done, Field, Form, Op, Peer, Place, QueueId, RegionId, Source, Until, Word, Wqe, WqeId,
    parts,
};
use adverb_redn::{Loaded, WqeOp};

/// Where a server can be asked; behind it stands which.
pub(super) const NAME: &str = "server";
/// Keys of the table.
const KEYS: u64 = 16;
/// Bytes from bucket to bucket.
const STRIDE: u64 = 32;
/// Buckets of a neighbourhood, which a one-sided client reads at once (FaRM's).
const NEIGHBOURHOOD: u64 = 6;

/// What is looked up, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gets {
    /// By whom.
    pub how: How,
    /// Bytes of a value.
    pub value: u32,
    /// Lookups.
    pub count: u32,
    /// Lookups under way at once.
    pub depth: u32,
    /// What the processor computes for each: the server's handler, or a one-sided client between its READs.
    pub think: Duration,
    /// Which pair of hosts it is.
    pub port: u32,
}

pub(super) fn connect() -> Connect {
    Connect { timeout: 0, ..Connect::default() }
}

/// The key of a number.
pub(super) fn key(n: u64) -> u64 {
    0x0a00_0000_0000 | (n % KEYS) << 20 | 7
}

/// Word of the value of a number's key; never 0.
pub(super) fn word(n: u64, at: u64) -> u64 {
    (key(n) << 12 | at & 0xfff).swap_bytes() | 1
}

impl Gets {
    /// Where the server can be asked.
    fn name(&self) -> String {
        format!("{NAME} {}", self.port)
    }

    fn bytes(&self, n: u64) -> Vec<u8> {
        (0..u64::from(self.value) / 8).flat_map(|at| word(n, at).to_ne_bytes()).collect()
    }

    /// Buckets that a lookup tries.
    fn buckets(&self) -> u32 {
        if matches!(self.how, How::Sequential | How::Parallel) { 2 } else { 1 }
    }

    /// Queues on the server that work at once for a client, and queue pairs to it.
    fn lanes(&self) -> u32 {
        if self.how == How::Parallel { 2 } else { 1 }
    }

    fn is_offload(&self) -> bool {
        matches!(self.how, How::Offload | How::Sequential | How::Parallel)
    }

    /// Bytes of a message that asks: for each bucket the key and the bucket's address.
    fn asks(&self) -> u32 {
        14 * self.buckets()
    }
}

/// The table's memory and the values', with their rights.
struct Store {
    table: Region,
    values: Region,
}

impl Store {
    /// Fills both. Bucket 0 of each pair has a key that nobody looks up.
    async fn fill(&self, gets: &Gets) -> Result<(), Error> {
        for n in 0..KEYS {
            let at = n * u64::from(gets.value);
            self.values.write(at, &gets.bytes(n)).await?;
            let (address, first) = (self.values.addr() + at, 2 * n);
            for (bucket, key) in [(first, key(n) | 1 << 44), (first + 1, key(n))] {
                let mut bytes = parts::big(key).to_vec();
                bytes.extend_from_slice(&address.to_be_bytes());
                bytes.extend_from_slice(&gets.value.to_be_bytes());
                self.table.write(bucket * STRIDE, &bytes).await?;
            }
        }
        Ok(())
    }

    fn told(&self) -> Vec<u8> {
        [self.table.remote().to_bytes(), self.values.remote().to_bytes()].concat()
    }
}

/// Bytes of the table: every key has its bucket and one before it, and a neighbourhood ends within.
const TABLE: u64 = (2 * KEYS + NEIGHBOURHOOD) * STRIDE;

/// The chains of all lookups, posted beforehand.
struct Program {
    chain: Chain,
    clients: Vec<QueueId>,
    table: RegionId,
    values: RegionId,
    reply: RegionId,
}

fn program(gets: &Gets) -> Program {
    let mut chain = Chain::new();
    let table = chain.memory("table", TABLE);
    let values = chain.memory("values", KEYS * u64::from(gets.value));
    let dump = chain.memory("dump", 64);
    let reply = chain.region("reply", adverb_redn::chain::Memory::Given);
    let lanes = gets.lanes();
    let queue = |chain: &mut Chain, peer| chain.queue("", SendOrder::Managed, peer);
    let clients: Vec<QueueId> = (0..lanes).map(|_| queue(&mut chain, Peer::Client)).collect();
    let workers: Vec<QueueId> = (0..lanes).map(|_| queue(&mut chain, Peer::Itself)).collect();
    let starter = chain.queue("starter", SendOrder::Cross, Peer::Itself);
    // WQEs of a lookup on a worker: two that wait for the client, four for each bucket, and between two
    // buckets one that waits for the first one's reply: each is a conditional of its own (1C + 1A + 3E).
    let per_worker = gets.buckets() / lanes;
    let per_get = 2 + 4 * per_worker + (per_worker - 1);
    for k in 0..gets.count {
        let mut entries = Vec::new();
        let mut before = None;
        for bucket in 0..gets.buckets() {
            let lane = (bucket % lanes) as usize;
            let worker = workers[lane];
            if bucket < lanes {
                chain.push(worker, Wqe::new(Op::Wait(Done::Received(clients[0], k))));
                // This lookup's WQEs, and the two that wait for the next client.
                let last = (per_get * (k + 1) + 1).min(per_get * gets.count - 1);
                let last = WqeId { queue: worker, at: last };
                chain.push(worker, Wqe::new(Op::Enable(Until::Through(last))));
            }
            if let Some(before) = before.filter(|_| bucket >= lanes) {
                chain.push(worker, Wqe::new(Op::Wait(Done::Of(before))));
            }
            let to = Place::At(reply, u64::from(k % gets.depth) * u64::from(gets.value));
            let write = Op::Write(Source::Pieces(vec![Place::Of(values).piece(0)]), to, None);
            let mut write = Wqe::new(write).posted_as(Form::nop([0; 6]));
            write.signaled = bucket + lanes < gets.buckets();
            let answer = chain.push(clients[lane], write);
            before = Some(answer);
            let mut into = parts::operand(answer).to_vec();
            into.push(Place::In(answer, Field::LocalAddress(0), 0).piece(8));
            into.push(Place::In(answer, Field::Count(0), 0).piece(4));
            let read = chain.push(worker, Wqe::new(Op::Read(Place::Of(table), into)));
            let old = Word::Control(answer, Form::nop([0; 6]));
            let new = Word::Control(answer, Form::of(WqeOp::Write));
            let test = Op::CompareSwap(
                Place::In(answer, Field::Control, 0),
                (old, new),
                Place::At(dump, 8 * lane as u64).piece(8),
            );
            let test = chain.push(worker, Wqe::new(test).fenced().signaled());
            chain.push(worker, Wqe::new(Op::Wait(Done::Of(test))));
            chain.push(worker, Wqe::new(Op::Enable(Until::Through(answer))));
            entries.extend(parts::compared(test));
            entries.push(Place::In(read, Field::RemoteAddress, 0).piece(8));
        }
        chain.receive(clients[0], entries);
    }
    for worker in workers {
        chain.push(starter, Wqe::new(Op::Enable(Until::Through(WqeId { queue: worker, at: 1 }))));
    }
    Program { chain, clients, table, values, reply }
}

/// The server, until it is asked to end.
pub async fn serve(rdma: Rdma, gets: Gets) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let listener = rdma.listen(&gets.name()).await?;
    if gets.is_offload() {
        return serve_by_chains(&rdma, &pd, &listener, &gets).await;
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let table = pd.region(TABLE, access).await?;
    let values = pd.region(KEYS * u64::from(gets.value), access).await?;
    let store = Store { table, values };
    store.fill(&gets).await?;
    let (sends, receives) = (rdma.create_cq(64).await?, rdma.create_cq(64).await?);
    let caps = Caps { max_recv_wr: 16, max_send_wr: gets.count, ..Caps::default() };
    let qp = pd.create_qp(adverb_rdma::QpType::Rc, (&sends, &receives), None, caps).await?;
    let inbox = pd.region(64, Access::LOCAL_WRITE).await?;
    let asked = listener.accept().await?;
    let reply = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
    let _line = asked.accept(&qp, &store.told(), &connect()).await?;
    qp.post_recv(vec![RecvRequest::into_piece(0, inbox.piece(0, 64)?)]).await?;
    let _ready = listener.accept().await?.reply(&[]).await?;
    while rdma.until(&[On::Stop, On::Cq(&receives)], None).await? != Some(0) {
        take(&receives).await?;
        rdma.think(gets.think).await?;
        let asked = inbox.read(0, 14).await?;
        let n = (0..KEYS).find(|n| parts::little(key(*n)) == asked[..6]).ok_or(Error::Garbled("a key"))?;
        qp.post_recv(vec![RecvRequest::into_piece(0, inbox.piece(0, 64)?)]).await?;
        let from = store.values.piece(n * u64::from(gets.value), gets.value)?;
        let op = SendOp::Write(reply.addr, reply.rkey);
        qp.post(vec![request(op, Data::Piece(from), false)]).await?;
    }
    Ok(())
}

async fn serve_by_chains(rdma: &Rdma, pd: &Pd, listener: &Listener, gets: &Gets) -> Result<(), Error> {
    let Program { chain, clients, table, values, reply } = program(gets);
    let mut loaded = Loaded::create(rdma, pd, chain).await.map_err(text)?;
    let region = |id: RegionId| loaded.region(id).cloned().ok_or(Error::NoSuchObject("region"));
    let store = Store { table: region(table)?, values: region(values)? };
    store.fill(gets).await?;
    let mut lines = Vec::new();
    for client in clients {
        let asked = listener.accept().await?;
        let told = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
        loaded.give(reply, Address { addr: told.addr, lkey: Key(0), rkey: told.rkey });
        lines.push(asked.accept(loaded.qp(client), &store.told(), &connect()).await?);
    }
    loaded.connect(&connect()).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    let _ready = listener.accept().await?.reply(&[]).await?;
    rdma.until(&[On::Stop], None).await.map(|_| ())
}

/// A client that is connected to a server that is ready.
struct Client {
    rdma: Rdma,
    gets: Gets,
    qps: Vec<Qp>,
    cq: Cq,
    own: Region,
    table: Remote,
    values: Remote,
    _lines: Vec<Line>,
}

impl Client {
    async fn join(rdma: Rdma, gets: Gets) -> Result<Client, Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(64).await?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // A place for each reply, and behind them one for what a neighbourhood has.
        let own = pd.region(u64::from(gets.depth * gets.value) + TABLE, access).await?;
        let caps = Caps { max_send_wr: 2 * gets.count, max_inline: 64, ..Caps::default() };
        let (mut qps, mut lines, mut told) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..gets.lanes() {
            let qp = pd.create_rc(&cq, caps).await?;
            let (line, bytes) = qp.connect(&gets.name(), &own.remote().to_bytes(), &connect(), None).await?;
            qps.push(qp);
            lines.push(line);
            told = bytes;
        }
        let (table, values) = told.split_at_checked(Remote::LEN).ok_or(Error::Garbled("regions"))?;
        let region = |bytes| Remote::from_bytes(bytes).ok_or(Error::Garbled("a region"));
        let (table, values) = (region(table)?, region(values)?);
        lines.push(rdma.ask(&gets.name(), &[], None).await?.0);
        Ok(Client { rdma, gets, qps, cq, own, table, values, _lines: lines })
    }

    /// First byte of the place for a lookup's reply.
    fn place(&self, n: u64) -> u64 {
        n % u64::from(self.gets.depth) * u64::from(self.gets.value)
    }

    /// What a lookup sends: a key, its bytes in the order of a compare-and-swap's word, and a bucket's
    /// address; as often as there are buckets to try.
    fn message(&self, n: u64) -> Vec<u8> {
        let second = self.table.addr + (2 * (n % KEYS) + 1) * STRIDE;
        let first = second - STRIDE * u64::from(self.gets.buckets() - 1);
        let mut out = Vec::new();
        for bucket in 0..u64::from(self.gets.buckets()) {
            out.extend_from_slice(&parts::little(key(n)));
            out.extend_from_slice(&(first + bucket * STRIDE).to_be_bytes());
        }
        debug_assert_eq!(out.len() as u32, self.gets.asks());
        out
    }

    /// Asks, but does not wait for the answer.
    async fn send(&self, n: u64) -> Result<(), Error> {
        // The last word of a value is never 0, and comes last.
        self.own.store(self.place(n) + u64::from(self.gets.value) - 8, 0).await?;
        self.qps[0].post(vec![request(SendOp::Send, Data::Inline(self.message(n)), false)]).await
    }

    /// Waits for the answer, and reads it.
    async fn answer(&self, n: u64) -> Result<(), Error> {
        let last = self.place(n) + u64::from(self.gets.value) - 8;
        self.rdma.until(&[On::Word(&self.own, last, 0)], None).await?;
        self.look(n).await
    }

    /// Reads a value, which must be the key's.
    async fn look(&self, n: u64) -> Result<(), Error> {
        let found = self.own.read(self.place(n), self.gets.value as usize).await?;
        if found == self.gets.bytes(n) { Ok(()) } else { Err(Error::Garbled("another value")) }
    }

    async fn read(&self, to: u64, len: u32, addr: u64, key: Key) -> Result<(), Error> {
        let op = SendOp::Read(addr, key);
        self.qps[0].post(vec![request(op, Data::Piece(self.own.piece(to, len)?), true)]).await?;
        self.rdma.until(&[On::Cq(&self.cq)], None).await?;
        take(&self.cq).await
    }

    /// By READs: of the neighbourhood, in which it finds the bucket, and of the value.
    async fn by_reads(&self, n: u64) -> Result<(), Error> {
        let at = u64::from(self.gets.depth * self.gets.value);
        let len = (NEIGHBOURHOOD * STRIDE) as u32;
        let from = self.table.addr + 2 * (n % KEYS) * STRIDE;
        self.read(at, len, from, self.table.rkey).await?;
        let buckets = self.own.read(at, len as usize).await?;
        let sought = parts::big(key(n));
        let bucket = buckets.chunks(STRIDE as usize).find(|bucket| bucket[..6] == sought);
        let address = bucket.and_then(|bucket| bucket[6..].first_chunk()).ok_or(Error::Garbled("a table"))?;
        self.rdma.think(self.gets.think).await?;
        self.read(self.place(n), self.gets.value, u64::from_be_bytes(*address), self.values.rkey).await?;
        self.look(n).await
    }

    /// One lookup, from beginning to end.
    async fn get(&self, n: u64) -> Result<(), Error> {
        match self.gets.how {
            How::Ideal => {
                let from = self.values.addr + n % KEYS * u64::from(self.gets.value);
                self.read(self.place(n), self.gets.value, from, self.values.rkey).await?;
                self.look(n).await
            }
            How::OneSided => self.by_reads(n).await,
            How::TwoSided | How::Offload | How::Sequential | How::Parallel => {
                self.send(n).await?;
                self.answer(n).await
            }
        }
    }
}

/// The client: one lookup after the other, or several at once.
pub async fn ask(rdma: Rdma, log: Shared, gets: Gets) -> Result<(), Error> {
    let client = Client::join(rdma.clone(), gets).await?;
    if gets.depth == 1 {
        for n in 0..u64::from(gets.count) {
            let begun = rdma.now().await?.as_ps();
            client.get(n).await?;
            let took = rdma.now().await?.as_ps() - begun;
            log.borrow_mut().samples.push(took);
        }
        return Ok(());
    }
    let (depth, count) = (u64::from(gets.depth), u64::from(gets.count));
    for n in 0..depth.min(count) {
        client.send(n).await?;
    }
    for n in 0..count {
        client.answer(n).await?;
        let now = rdma.now().await?.as_ps();
        log.borrow_mut().done.push(now);
        if n + depth < count {
            client.send(n + depth).await?;
        }
    }
    Ok(())
}

pub(super) fn request(op: SendOp, data: Data, signaled: bool) -> SendRequest {
    let flags = SendFlags { signaled, ..SendFlags::default() };
    SendRequest { wr_id: 0, op, flags, data, ud: None, xrc_srqn: 0 }
}

/// Takes the one completion that is there, with what a look costs the processor.
pub(super) async fn take(cq: &Cq) -> Result<(), Error> {
    match cq.poll(1).await?.first() {
        Some(done) if done.status == Status::Success => Ok(()),
        Some(failed) => Err(Error::of(failed)),
        None => Err(Error::Garbled("no completion")),
    }
}
