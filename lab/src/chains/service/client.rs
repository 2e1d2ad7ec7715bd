//! Clients of the store: a reader, whose gets are timed, and writers.

use super::super::gets::{connect, request, take};
use super::super::{How, Metric, Shared};
use super::table::heard;
use super::{CHAIN, DONE, GET, HEAD, MISS, OWN_KEYS, SET, Service, Turns, content, door, key};
use adverb_rdma::record::Record;
use adverb_rdma::{Access, Caps, Data, Duration, Error, Instant, Line, On, Qp, Rdma, Region, Remote, SendOp};
use adverb_redn::service::client::{Client, Got, Half};
use adverb_redn::service::layout::{Layout, tag};

/// Where a one-sided reader has a record: behind its buckets.
const RECORD: u64 = 64;

/// A client of a worker.
struct Caller {
    rdma: Rdma,
    service: Service,
    qp: Qp,
    place: Region,
    own: Region,
    message: Region,
    line: Line,
    turns: Turns,
}

impl Caller {
    /// `None` if there is no worker until then.
    async fn join(
        rdma: &Rdma,
        service: Service,
        n: u32,
        until: Option<Instant>,
    ) -> Result<Option<Caller>, Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(64).await?;
        let len = u64::from(service.value);
        let place = pd.region(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE).await?;
        let own = pd.region(len, Access::LOCAL_WRITE).await?;
        let message = pd.region(u64::from(HEAD) + len, Access::LOCAL_WRITE).await?;
        let caps = Caps { max_send_wr: 64, max_inline: HEAD, ..Caps::default() };
        let qp = pd.create_rc(&cq, caps).await?;
        let joined = qp.connect(&door(n), &place.remote().to_bytes(), &connect(), until).await;
        let rdma = rdma.clone();
        match joined {
            Ok((line, _)) => {
                let turns = Turns::default();
                Ok(Some(Caller { rdma, service, qp, place, own, message, line, turns }))
            }
            Err(Error::NoAnswer) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks, and waits for the last word of the reply. `None` if the worker has gone, or time is over.
    async fn call(&self, what: u64, n: u64, until: Option<Instant>) -> Result<Option<u64>, Error> {
        let last = u64::from(self.service.value) - 8;
        self.place.store(last, 0).await?;
        let head = [what, n].map(u64::to_ne_bytes).concat();
        let data = match what {
            GET => Data::Inline(head),
            _ => {
                self.message.write(0, &head).await?;
                Data::Piece(self.message.piece(0, HEAD + self.service.value)?)
            }
        };
        self.turns.post(&self.qp, self.qp.send_cq(), (SendOp::Send, data)).await?;
        let on = [On::Word(&self.place, last, 0), On::Gone(&self.line)];
        if self.rdma.until(&on, until).await? != Some(0) {
            return Ok(None);
        }
        self.place.load(last).await.map(Some)
    }

    /// The value of a reply.
    async fn value(&self) -> Result<Vec<u8>, Error> {
        let value = self.place.read(0, self.service.value as usize).await?;
        if !self.service.stack {
            return Ok(value);
        }
        self.own.write(0, &value).await?;
        self.own.read(0, self.service.value as usize).await
    }
}

/// Sets values, one after the other, until it is asked to end.
pub async fn write(rdma: Rdma, service: Service, n: u32) -> Result<(), Error> {
    let Some(caller) = Caller::join(&rdma, service, n + 1, None).await? else { return Ok(()) };
    // Writers do not begin at the same moment.
    let begin = rdma.random().await? % 20_000_000;
    rdma.sleep(Duration::from_ps(begin)).await?;
    let first = u64::from(service.keys) + OWN_KEYS * u64::from(n);
    for round in 0u64.. {
        let key = first + round % OWN_KEYS;
        let value = content(key, round + 2, service.value);
        caller.message.write(HEAD.into(), &value).await?;
        match caller.call(SET, key, None).await? {
            Some(DONE) => {}
            Some(_) => return Err(Error::Garbled("a reply to a set")),
            None => return Ok(()),
        }
    }
    Ok(())
}

/// How the reader gets values.
enum Way {
    Chain(Box<Client>, #[expect(dead_code, reason = "kept: it says that the reader is there")] Line),
    Reads(Reads),
    Call(Option<Caller>),
}

/// A reader that reads the table itself.
struct Reads {
    rdma: Rdma,
    think: Duration,
    qp: Qp,
    own: Region,
    layout: Layout,
    index: Remote,
    values: Remote,
    _line: Line,
}

impl Reads {
    async fn get(&self, n: u64) -> Result<Option<Vec<u8>>, Error> {
        let sought = self.layout.sought(self.layout.hash(&key(n)));
        let mut list = Vec::new();
        for (at, bucket) in (0..).zip(sought.buckets) {
            let op = SendOp::Read(self.layout.bucket(bucket), self.index.rkey);
            list.push(request(op, Data::Piece(self.own.piece(16 * at, 16)?), at == 1));
        }
        self.read(list).await?;
        let buckets = self.own.read(0, 32).await?;
        self.rdma.think(self.think).await?;
        for bucket in buckets.as_chunks::<16>().0 {
            let words = bucket.as_chunks::<8>().0;
            if u64::from_ne_bytes(words[0]) != tag(sought.fingerprint) {
                continue;
            }
            let extent =
                self.layout.extent(u64::from_ne_bytes(words[1])).ok_or(Error::Garbled("a bucket"))?;
            let op = SendOp::Read(self.values.addr + extent.at, self.values.rkey);
            self.read(vec![request(op, Data::Piece(self.own.piece(RECORD, extent.len)?), true)]).await?;
            let bytes = self.own.read(RECORD, extent.len as usize).await?;
            let record = Record::parse(&bytes).filter(|record| record.key == key(n));
            return Ok(record.map(|record| record.value.to_vec()));
        }
        Ok(None)
    }

    async fn read(&self, list: Vec<adverb_rdma::SendRequest>) -> Result<(), Error> {
        self.qp.post(list).await?;
        self.rdma.until(&[On::Cq(self.qp.send_cq())], None).await?;
        take(self.qp.send_cq()).await
    }
}

impl Way {
    async fn new(rdma: &Rdma, service: Service) -> Result<Way, Error> {
        match service.how {
            How::OneSided => {
                let pd = rdma.create_pd().await?;
                let cq = rdma.create_cq(64).await?;
                let own = pd.region(RECORD + service.record_len(), Access::LOCAL_WRITE).await?;
                let qp = pd.create_rc(&cq, Caps::default()).await?;
                let (line, told) = qp.connect(CHAIN, &own.remote().to_bytes(), &connect(), None).await?;
                let (layout, index, values) = heard(&told)?;
                let (rdma, think) = (rdma.clone(), service.think);
                Ok(Way::Reads(Reads { rdma, think, qp, own, layout, index, values, _line: line }))
            }
            How::TwoSided => Caller::join(rdma, service, 0, None).await.map(Way::Call),
            _ => {
                let half = Half::new(rdma, service.shape()).await?;
                let own = half.buffer.remote().to_bytes();
                let (line, told) = half.qp.connect(CHAIN, &own, &connect(), None).await?;
                let (layout, ..) = heard(&told)?;
                Ok(Way::Chain(Box::new(half.connected(layout).await?), line))
            }
        }
    }

    /// A key's value, if it is there. With a worker, it may have gone: then one that comes in its place is
    /// sought, until then.
    async fn get(
        &mut self,
        rdma: &Rdma,
        service: Service,
        n: u64,
        until: Instant,
    ) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Way::Reads(reads) => reads.get(n).await,
            Way::Chain(client, _) => match client.get(&key(n)).await? {
                Got::Value(value) => Ok(Some(value)),
                Got::Missing => Ok(None),
                Got::Unsure => Err(Error::Garbled("a record")),
            },
            Way::Call(caller) => {
                let Some(at) = caller else {
                    *caller = Caller::join(rdma, service, 0, Some(until)).await?;
                    return Ok(None);
                };
                match at.call(GET, n, Some(until)).await? {
                    Some(MISS) => Ok(None),
                    Some(_) => at.value().await.map(Some),
                    None => {
                        *caller = None;
                        Ok(None)
                    }
                }
            }
        }
    }
}

/// The reader: one get after the other, until it has had enough, or time is over.
pub async fn read(rdma: Rdma, log: Shared, service: Service) -> Result<(), Error> {
    let mut way = Way::new(&rdma, service).await?;
    let end = rdma.now().await? + service.time;
    let (mut found, mut asked) = (0, 0u64);
    while found < service.gets {
        // In an order that meets keys of all ages.
        let n = asked * 7919 % u64::from(service.keys);
        asked += 1;
        let begun = rdma.now().await?;
        if begun >= end {
            break;
        }
        let value = way.get(&rdma, service, n, end).await?;
        let now = rdma.now().await?;
        if let Some(value) = value {
            if value != content(n, 1, service.value) {
                return Err(Error::Garbled("another value"));
            }
            found += 1;
            let mut log = log.borrow_mut();
            log.samples.push(now.since(begun).as_ps());
            log.done.push(now.as_ps());
        }
        if service.pause > Duration::ZERO {
            rdma.sleep(service.pause).await?;
        }
    }
    let now = rdma.now().await?.as_ps();
    let mut log = log.borrow_mut();
    log.fact(Metric::Asked, asked as f64);
    log.ended = Some(now);
    Ok(())
}
