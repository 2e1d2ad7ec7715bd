//! Walks of a linked list of eight nodes, as RedN measures them (section 5.3): by a chain in the server's NIC
//! with and without a break, by READs of the client, and by the server's processor.
//!
//! A node holds a key of six bytes, its value's address and the next node's, big-endian. Each walk has a
//! connection and a chain of its own: a chain without a break goes on after it has answered, and one with a
//! break never comes to its end.

use super::gets::{self, connect, key, request, take, word};
use super::{How, Shared, text};
use adverb_rdma::{
    Access, Caps, Data, Duration, Error, Key, Listener, On, Pd, Qp, QpType, Rdma, RecvRequest, Region,
    Remote, SendOp, SendOrder,
};
use adverb_redn::chain::{
    Address, Bytes, Chain, Done, Field, Form, Memory, Op, Peer, Place, QueueId, RegionId, Source, Until,
    Word, Wqe, WqeId, parts,
};
use adverb_redn::{Loaded, WqeOp};

/// Nodes of the list.
const NODES: u64 = 8;
/// Bytes from node to node, and of a value.
const STRIDE: u64 = 64;
const VALUE: u64 = 64;
/// Bytes of a node that count.
const NODE: u32 = 22;

/// Longer than a walk of the whole list takes.
const REST: Duration = Duration::from_us(50);

/// What is walked for, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walks {
    /// By whom.
    pub how: How,
    /// The chain stops where it has found the key.
    pub breaks: bool,
    /// The keys are those of the first so many nodes, in turns.
    pub range: u32,
    /// Walks.
    pub count: u32,
    /// What the processor computes: the server's handler, or a one-sided client between its READs.
    pub think: Duration,
}

/// A walk's chain.
struct Program {
    chain: Chain,
    client: QueueId,
    list: RegionId,
    values: RegionId,
    reply: RegionId,
    /// WQEs of a walk.
    count: u32,
}

/// Queues and regions of a chain that is being made.
struct Maker {
    chain: Chain,
    client: QueueId,
    worker: QueueId,
    list: RegionId,
    values: RegionId,
    reply: RegionId,
    /// A compare-and-swap's word with the key that the client seeks, and a place for what nobody needs.
    sought: Place,
    dump: Place,
}

impl Maker {
    fn push(&mut self, wqe: Wqe) -> WqeId {
        self.chain.push(self.worker, wqe)
    }

    /// The worker goes on through a WQE that is `ahead` of the next one.
    fn enable_self(&mut self, ahead: u32) {
        let last = WqeId { queue: self.worker, at: self.chain.next(self.worker).at + ahead };
        self.push(Wqe::new(Op::Enable(Until::Through(last))));
    }

    /// A reply, posted as a NOP.
    fn reply(&mut self, breaks: bool) -> WqeId {
        let from = Source::Pieces(vec![Place::Of(self.values).piece(VALUE as u32)]);
        let write = Wqe::new(Op::Write(from, Place::At(self.reply, 0), None));
        let wqe = match breaks {
            true => write.posted_as(Form::of(WqeOp::Nop)).signaled(),
            false => write.posted_as(Form::nop([0; 6])),
        };
        self.chain.push(self.client, wqe)
    }

    /// Turns a WQE on if its operand is what is sought.
    fn test(&self, target: WqeId) -> Wqe {
        let old = Word::Control(target, Form::nop([0; 6]));
        let new = Word::Control(target, Form::of(WqeOp::Write));
        let place = Place::In(target, Field::Control, 0);
        Wqe::new(Op::CompareSwap(place, (old, new), self.dump.piece(8))).fenced().signaled()
    }

    /// A node's WQEs. The next node's are fetched only when this one's address, and the key that it is
    /// compared with, stand in them.
    fn node(&mut self, n: u64, breaks: bool) {
        let more = n + 1 < NODES;
        let reply = self.reply(breaks);
        // READ, WRITE and test; with a break also WAIT, ENABLE, and the WRITE that is the break.
        let read = self.chain.next(self.worker);
        let test = WqeId { at: read.at + 1 + u32::from(more), ..read };
        let per_node = if breaks { 10 } else { 6 };
        let target = if breaks { WqeId { at: test.at + 3, ..test } } else { reply };
        let mut into = parts::operand(target).to_vec();
        into.push(Place::In(reply, Field::LocalAddress(0), 0).piece(8));
        if more {
            let next = WqeId { at: read.at + per_node, ..read };
            into.push(Place::In(next, Field::RemoteAddress, 0).piece(8));
        }
        self.push(Wqe::new(Op::Read(Place::Of(self.list), into)));
        if more {
            let last = n + 2 == NODES;
            let next = WqeId { at: read.at + per_node + 1 + u32::from(!last), ..read };
            let from = Source::Pieces(vec![self.sought.piece(8)]);
            self.push(Wqe::new(Op::Write(from, Place::In(next, Field::Compare, 0), None)));
        }
        let wqe = self.test(target);
        let test = self.push(wqe);
        self.push(Wqe::new(Op::Wait(Done::Of(test))));
        if breaks {
            self.enable_self(if more { 5 } else { 3 });
            let form = Bytes::ControlAndFlags(reply, Form::of(WqeOp::Write), false);
            let leave = Op::Write(Source::Inline(form), Place::In(reply, Field::Control, 0), None);
            let leave = self.push(Wqe::new(leave).posted_as(Form::nop([0; 6])).signaled());
            self.push(Wqe::new(Op::Wait(Done::Of(leave))));
        }
        self.push(Wqe::new(Op::Enable(Until::Through(reply))));
        if !more {
            return;
        }
        if breaks {
            // Of a reply that was sent there is no completion: nothing goes on.
            self.push(Wqe::new(Op::Wait(Done::Of(reply))));
        }
        // Of a chain with breaks only what comes before the next break is to be fetched.
        let through = if breaks { 5 } else { per_node };
        let last = n + 2 == NODES;
        self.enable_self(through - u32::from(last) * if breaks { 1 } else { 2 });
    }
}

/// The chain of one walk.
fn program(breaks: bool) -> Program {
    let mut chain = Chain::new();
    let list = chain.memory("list", NODES * STRIDE);
    let values = chain.memory("values", NODES * VALUE);
    let words = chain.memory("words", 64);
    let reply = chain.region("reply", Memory::Given);
    let client = chain.queue("client", SendOrder::Managed, Peer::Client);
    let worker = chain.queue("worker", SendOrder::Managed, Peer::Itself);
    let starter = chain.queue("starter", SendOrder::Cross, Peer::Itself);
    // All targets of tests are WRITEs of three segments: byte 7 of the control segment, byte 0 of the word.
    chain.data(words, 0, [3, 0, 0, 0, 0, 0, 0, 0]);
    let (sought, dump) = (Place::At(words, 0), Place::At(words, 8));
    let mut maker = Maker { chain, client, worker, list, values, reply, sought, dump };
    maker.push(Wqe::new(Op::Wait(Done::Received(client, 0))));
    maker.enable_self(if breaks { 5 } else { 6 });
    (0..NODES).for_each(|n| maker.node(n, breaks));
    let Maker { mut chain, .. } = maker;
    let worker_at = |at| WqeId { queue: worker, at };
    chain.push(starter, Wqe::new(Op::Enable(Until::Through(worker_at(1)))));
    // The key goes into the first test and, for the others, into memory; the first node's address with it.
    let mut entries = parts::compared(worker_at(4)).to_vec();
    entries.push(Place::In(worker_at(2), Field::RemoteAddress, 0).piece(8));
    entries.extend([sought.plus(1).piece(3), sought.plus(5).piece(3)]);
    chain.receive(client, entries);
    let count = [worker, client].map(|queue| chain.queue_of(queue).wqes.len() as u32).iter().sum();
    Program { chain, client, list, values, reply, count }
}

/// Fills the list and the values.
async fn fill(list: &Region, values: &Region) -> Result<(), Error> {
    for n in 0..NODES {
        let (value, next) = (values.addr() + n * VALUE, list.addr() + (n + 1) % NODES * STRIDE);
        let mut node = parts::big(key(n)).to_vec();
        node.extend_from_slice(&value.to_be_bytes());
        node.extend_from_slice(&next.to_be_bytes());
        list.write(n * STRIDE, &node).await?;
        values.write(n * VALUE, &content(n)).await?;
    }
    Ok(())
}

fn content(n: u64) -> Vec<u8> {
    (0..VALUE / 8).flat_map(|at| word(n, at).to_ne_bytes()).collect()
}

fn told(list: &Region, values: &Region) -> Vec<u8> {
    [list.remote().to_bytes(), values.remote().to_bytes()].concat()
}

/// The server, until it is asked to end.
pub async fn serve(rdma: Rdma, log: Shared, walks: Walks) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let listener = rdma.listen(gets::NAME).await?;
    if walks.how == How::Offload {
        return serve_by_chains(&rdma, &pd, &listener, (&log, walks.breaks)).await;
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let (list, values) = (pd.region(NODES * STRIDE, access).await?, pd.region(NODES * VALUE, access).await?);
    fill(&list, &values).await?;
    let (sends, receives) = (rdma.create_cq(64).await?, rdma.create_cq(64).await?);
    let caps = Caps { max_recv_wr: 16, max_send_wr: walks.count, ..Caps::default() };
    let qp = pd.create_qp(QpType::Rc, (&sends, &receives), None, caps).await?;
    let inbox = pd.region(64, Access::LOCAL_WRITE).await?;
    let asked = listener.accept().await?;
    let reply = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
    let _line = asked.accept(&qp, &told(&list, &values), &connect()).await?;
    qp.post_recv(vec![RecvRequest::into_piece(0, inbox.piece(0, 64)?)]).await?;
    let _ready = listener.accept().await?.reply(&[]).await?;
    while rdma.until(&[On::Stop, On::Cq(&receives)], None).await? != Some(0) {
        take(&receives).await?;
        rdma.think(walks.think).await?;
        let asked = inbox.read(0, 6).await?;
        let n = (0..NODES).find(|n| parts::little(key(*n)) == asked[..]).ok_or(Error::Garbled("a key"))?;
        qp.post_recv(vec![RecvRequest::into_piece(0, inbox.piece(0, 64)?)]).await?;
        let from = Data::Piece(values.piece(n * VALUE, VALUE as u32)?);
        qp.post(vec![request(SendOp::Write(reply.addr, reply.rkey), from, false)]).await?;
    }
    Ok(())
}

/// A chain and a connection for each walk.
async fn serve_by_chains(
    rdma: &Rdma,
    pd: &Pd,
    listener: &Listener,
    (log, breaks): (&Shared, bool),
) -> Result<(), Error> {
    loop {
        let Program { chain, client, list, values, reply, count } = program(breaks);
        log.borrow_mut().wqes = count;
        let mut loaded = Loaded::create(rdma, pd, chain).await.map_err(text)?;
        let region = |id: RegionId| loaded.region(id).cloned().ok_or(Error::NoSuchObject("region"));
        let (list, values) = (region(list)?, region(values)?);
        fill(&list, &values).await?;
        let asked = listener.accept().await?;
        let place = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
        loaded.give(reply, Address { addr: place.addr, lkey: Key(0), rkey: place.rkey });
        let line = asked.accept(loaded.qp(client), &told(&list, &values), &connect()).await?;
        loaded.connect(&connect()).await.map_err(text)?;
        loaded.start().await.map_err(text)?;
        let ready = listener.accept().await?.reply(&[]).await?;
        rdma.until(&[On::Gone(&line)], None).await?;
        drop(ready);
    }
}

/// A client's connection.
struct Client {
    rdma: Rdma,
    think: Duration,
    qp: Qp,
    own: Region,
    list: Remote,
    values: Remote,
    _lines: [adverb_rdma::Line; 2],
}

impl Client {
    async fn join(rdma: &Rdma, pd: &Pd, walks: &Walks) -> Result<Client, Error> {
        let cq = rdma.create_cq(64).await?;
        let own = pd.region(256, Access::LOCAL_WRITE | Access::REMOTE_WRITE).await?;
        let caps = Caps { max_send_wr: walks.count.max(16), max_inline: 64, ..Caps::default() };
        let qp = pd.create_rc(&cq, caps).await?;
        let (line, told) = qp.connect(gets::NAME, &own.remote().to_bytes(), &connect(), None).await?;
        let (list, values) = told.split_at_checked(Remote::LEN).ok_or(Error::Garbled("regions"))?;
        let region = |bytes| Remote::from_bytes(bytes).ok_or(Error::Garbled("a region"));
        let (list, values) = (region(list)?, region(values)?);
        let ready = rdma.ask(gets::NAME, &[], None).await?.0;
        let (rdma, think) = (rdma.clone(), walks.think);
        Ok(Client { rdma, think, qp, own, list, values, _lines: [line, ready] })
    }

    /// By a message: to a chain, or to the server's processor.
    async fn by_message(&self, n: u64) -> Result<(), Error> {
        self.own.store(VALUE - 8, 0).await?;
        let key = parts::little(key(n));
        let message = [&key[..], &self.list.addr.to_be_bytes(), &key].concat();
        self.qp.post(vec![request(SendOp::Send, Data::Inline(message), false)]).await?;
        self.rdma.until(&[On::Word(&self.own, VALUE - 8, 0)], None).await.map(drop)
    }

    async fn read(&self, to: u64, len: u32, addr: u64, key: Key) -> Result<(), Error> {
        let data = Data::Piece(self.own.piece(to, len)?);
        self.qp.post(vec![request(SendOp::Read(addr, key), data, true)]).await?;
        self.rdma.until(&[On::Cq(self.qp.send_cq())], None).await?;
        take(self.qp.send_cq()).await
    }

    /// By a READ of each node, and one of the value.
    async fn by_reads(&self, n: u64) -> Result<(), Error> {
        let mut at = self.list.addr;
        for _ in 0..NODES {
            self.read(128, NODE, at, self.list.rkey).await?;
            let node = self.own.read(128, NODE as usize).await?;
            self.rdma.think(self.think).await?;
            let address = |from: usize| {
                let bytes = node[from..].first_chunk().copied().unwrap_or_default();
                u64::from_be_bytes(bytes)
            };
            if node[..6] == parts::big(key(n)) {
                return self.read(0, VALUE as u32, address(6), self.values.rkey).await;
            }
            at = address(14);
        }
        Err(Error::Garbled("a list"))
    }
}

/// The client: one walk after the other, each for the next key of the range.
pub async fn ask(rdma: Rdma, log: Shared, walks: Walks) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let mut client = Client::join(&rdma, &pd, &walks).await?;
    log.borrow_mut().begun = true;
    for n in 0..u64::from(walks.count) {
        if n > 0 && walks.how == How::Offload {
            drop(client);
            client = Client::join(&rdma, &pd, &walks).await?;
        }
        let at = n % u64::from(walks.range);
        let begun = rdma.now().await?.as_ps();
        match walks.how {
            How::OneSided => client.by_reads(at).await?,
            _ => client.by_message(at).await?,
        }
        let found = client.own.read(0, VALUE as usize).await?;
        let took = rdma.now().await?.as_ps() - begun;
        if found != content(at) {
            return Err(Error::Garbled("another value"));
        }
        log.borrow_mut().samples.push(took);
        if walks.how == How::Offload {
            // What the chain does after its answer is counted, too.
            rdma.sleep(REST).await?;
        }
    }
    Ok(())
}
