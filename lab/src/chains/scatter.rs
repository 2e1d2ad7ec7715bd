//! What a receive's entries change (RedN, section 3.2: a message fills in up to 16 places of a chain). Each
//! message has two bytes for each of so many WRITEs, which put them into a row of words; a reply brings the
//! client that row.

use super::gets::{NAME, connect, request};
use super::{Fault, Metric, Shared, text};
use adverb_rdma::{Access, Caps, Data, Error, Key, On, Rdma, Remote, SendOp, SendOrder};
use adverb_redn::Loaded;
use adverb_redn::chain::{
    Address, Bytes, Chain, Done, Field, Memory, Op, Peer, Place, QueueId, RegionId, Source, Until, Wqe, WqeId,
};

/// Bytes of an entry: the third and the fourth of a word, of which the others say whose it is.
const ENTRY: u32 = 2;
const SKIP: u8 = 2;

/// What is scattered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scattered {
    /// Entries of a receive.
    pub entries: u32,
    /// Messages.
    pub count: u32,
    /// How the chain is made wrong on purpose.
    pub fault: Option<Fault>,
}

impl Scattered {
    /// What a message brings for a word.
    fn told(message: u64, word: u64) -> [u8; 2] {
        ((message * 251 + word * 7 + 1) as u16).to_be_bytes()
    }

    /// A word before a message has filled it in: it is never 0.
    fn blank(word: u64) -> [u8; 8] {
        [0xad, word as u8, 0, 0, 0, 0, 0, 0xad]
    }

    /// The row that a message leads to.
    fn row(&self, message: u64) -> Vec<u8> {
        let filled = |word: u64| {
            let mut bytes = Scattered::blank(word);
            bytes[SKIP.into()..][..2].copy_from_slice(&Scattered::told(message, word));
            bytes
        };
        (0..u64::from(self.entries)).flat_map(filled).collect()
    }

    fn row_len(&self) -> u32 {
        8 * self.entries
    }
}

/// The chains of all messages, posted beforehand: WAIT and ENABLE, the WRITEs, WAIT and the reply's ENABLE.
fn program(scattered: Scattered) -> (Chain, QueueId, RegionId) {
    let mut chain = Chain::new();
    let row = chain.memory("row", scattered.row_len().into());
    let reply = chain.region("reply", Memory::Given);
    let client = chain.queue("client", SendOrder::Managed, Peer::Client);
    let worker = chain.queue("worker", SendOrder::Managed, Peer::Itself);
    let starter = chain.queue("starter", SendOrder::Cross, Peer::Itself);
    let each = scattered.entries + 4;
    for k in 0..scattered.count {
        let through =
            |at: u32| Until::Through(WqeId { queue: worker, at: at.min(each * scattered.count - 1) });
        chain.push(worker, Wqe::new(Op::Wait(Done::Received(client, k))));
        // This message's WQEs, and the two that wait for the next one.
        chain.push(worker, Wqe::new(Op::Enable(through(each * (k + 1) + 1))));
        let mut entries = Vec::new();
        let mut last = None;
        for word in 0..u64::from(scattered.entries) {
            let blank = Source::Inline(Bytes::Are(Scattered::blank(word).to_vec()));
            let mut write = Wqe::new(Op::Write(blank, Place::At(row, 8 * word), None));
            write.signaled = word + 1 == scattered.entries.into();
            let write = chain.push(worker, write);
            entries.push(Place::In(write, Field::Inline, SKIP).piece(ENTRY));
            last = Some(write);
        }
        let from = vec![Place::At(row, 0).piece(scattered.row_len())];
        let answer = chain.push(client, Wqe::new(Op::Write(Source::Pieces(from), Place::At(reply, 0), None)));
        if let Some(last) = last {
            chain.push(worker, Wqe::new(Op::Wait(Done::Of(last))));
        }
        chain.push(worker, Wqe::new(Op::Enable(Until::Through(answer))));
        chain.receive(client, entries);
    }
    // Without the order all is fetched before a message has come.
    let first = if scattered.fault.is_some() { each * scattered.count - 1 } else { 1 };
    chain.push(starter, Wqe::new(Op::Enable(Until::Through(WqeId { queue: worker, at: first }))));
    (chain, client, reply)
}

/// The server, until it is asked to end.
pub async fn serve(rdma: Rdma, scattered: Scattered) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let listener = rdma.listen(NAME).await?;
    let (chain, client, reply) = program(scattered);
    let mut loaded = Loaded::create(&rdma, &pd, chain).await.map_err(text)?;
    let asked = listener.accept().await?;
    let told = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
    loaded.give(reply, Address { addr: told.addr, lkey: Key(0), rkey: told.rkey });
    let _line = asked.accept(loaded.qp(client), &[], &connect()).await?;
    loaded.connect(&connect()).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    let _ready = listener.accept().await?.reply(&[]).await?;
    rdma.until(&[On::Stop], None).await.map(|_| ())
}

/// The client: one message after the other. It counts bytes of rows that are not as they must be.
pub async fn ask(rdma: Rdma, log: Shared, scattered: Scattered) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let own = pd.region(scattered.row_len().into(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).await?;
    let caps = Caps { max_send_wr: 2 * scattered.count, max_inline: 64, ..Caps::default() };
    let qp = pd.create_rc(&cq, caps).await?;
    let (_line, _) = qp.connect(NAME, &own.remote().to_bytes(), &connect(), None).await?;
    let _ready = rdma.ask(NAME, &[], None).await?;
    let last = u64::from(scattered.row_len()) - 8;
    let mut wrong = 0;
    for message in 0..u64::from(scattered.count) {
        own.store(last, 0).await?;
        let told =
            (0..u64::from(scattered.entries)).flat_map(|word| Scattered::told(message, word)).collect();
        let begun = rdma.now().await?.as_ps();
        qp.post(vec![request(SendOp::Send, Data::Inline(told), false)]).await?;
        rdma.until(&[On::Word(&own, last, 0)], None).await?;
        let took = rdma.now().await?.as_ps() - begun;
        let row = own.read(0, scattered.row_len() as usize).await?;
        wrong += row.iter().zip(scattered.row(message)).filter(|(byte, said)| **byte != *said).count();
        log.borrow_mut().samples.push(took);
    }
    log.borrow_mut().fact(Metric::Wrong, wrong as f64);
    Ok(())
}
