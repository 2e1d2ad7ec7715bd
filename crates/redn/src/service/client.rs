//! Gets, as a client makes them: it asks the server's chain, and judges what comes.
//!
//! ```text
//! ask (buckets in order) ──► record of this key, whole          value
//!                            torn, or another key's             ask again, up to `TRIES`, then unsure
//!                            none                               ask once more, in the opposite order: none
//! ```
//! A program that answers ([`super::rpc`]) is asked by the key itself, once: it knows.
//! The opposite order is because a key may move from the bucket that is read last to the one that was read
//! first. What is unsure, only who writes the table can say: [`Client::get_or`] makes a call for it.

use super::chain::{Shape, message};
use super::layout::{BUCKET_LEN, Layout, Sought, fingerprint};
use super::rpc::{self, MISS_LEN};
use adverb_rdma::record::Record;
use adverb_rdma::{
    Access, Caps, Completion, CompletionOp, Cq, Data, Duration, Error, Instant, Key, On, Qp, Rdma,
    RecvRequest, Region, Remote, SendFlags, SendOp, SendRequest, Status,
};

/// Times that a key is asked for whose record comes torn, or is another key's.
pub const TRIES: u32 = 8;
/// How long a reply may take before the connection is given up.
pub const LIMIT: Duration = Duration::from_ms(5_000);
/// Messages that a send queue holds, for each slot.
const MESSAGES: u32 = 2;
/// The word of receives. That of a message is how many were sent with it.
const RECEIVE: u64 = 0;

/// What a get came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Got {
    /// The key's value.
    Value(Vec<u8>),
    /// There is no such key.
    Missing,
    /// The table's writer has to be asked.
    Unsure,
}

/// What gets came to, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages sent.
    pub asked: u64,
    /// Records that came torn.
    pub torn: u64,
    /// Records of other keys: with the same fingerprint, or in a place that was written anew.
    pub strangers: u64,
    /// Messages sent because of these, or in the opposite order of buckets.
    pub retries: u64,
    /// Gets that a call had to decide.
    pub fallbacks: u64,
    /// Replies that did not come in time.
    pub timeouts: u64,
}

/// Who answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A chain in the server's NIC.
    Chain,
    /// A program, by SEND and RECV.
    Program,
}

/// A client's half of a connection, to be connected: it tells its buffer, and is told a layout.
pub struct Half {
    rdma: Rdma,
    shape: Shape,
    /// Its queue pair.
    pub qp: Qp,
    /// Where replies come to.
    pub buffer: Region,
    cq: Cq,
}

/// A client of a table.
pub struct Client {
    half: Half,
    layout: Layout,
    by: By,
    /// How long a reply may take before the connection is given up.
    pub limit: Duration,
    /// Messages sent, and those of them that the send queue no longer holds. A reply may overtake the
    /// acknowledgement of its message, so replies do not tell these.
    sent: u64,
    gone: u64,
    /// Replies taken, and receives used since some were posted.
    taken: u64,
    used: u32,
    /// Replies' lengths that have come, the oldest first.
    come: std::collections::VecDeque<u32>,
    /// What gets came to.
    pub counters: Counters,
}

impl Half {
    /// A queue pair and a buffer for chains of this shape.
    pub async fn new(rdma: &Rdma, shape: Shape) -> Result<Half, Error> {
        if !shape.is_sound() {
            return Err(Error::Garbled("the shape of a chain"));
        }
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(4 * shape.slots).await?;
        let buffer = pd.region(shape.buffer_len(), Access::LOCAL_WRITE | Access::REMOTE_WRITE).await?;
        let caps = Caps {
            max_send_wr: MESSAGES * shape.slots,
            max_recv_wr: shape.slots,
            max_inline: rpc::MESSAGE_MAX as u32,
            ..Caps::default()
        };
        let qp = pd.create_rc(&cq, caps).await?;
        Ok(Half { rdma: rdma.clone(), shape, qp, buffer, cq })
    }

    /// A client, once the queue pair is connected to a chain of the same shape over a table like this.
    pub async fn connected(self, layout: Layout) -> Result<Client, Error> {
        self.connected_to(By::Chain, layout).await
    }

    /// A client, once the queue pair is connected to whoever answers.
    pub async fn connected_to(self, by: By, layout: Layout) -> Result<Client, Error> {
        if !layout.is_sound() {
            return Err(Error::Garbled("the layout of a table"));
        }
        let (used, come) = (self.shape.slots, std::collections::VecDeque::new());
        let counters = Counters::default();
        let (sent, gone, taken, limit) = (0, 0, 0, LIMIT);
        let mut client = Client { half: self, layout, by, limit, sent, gone, taken, used, come, counters };
        client.post_receives().await?;
        Ok(client)
    }
}

impl Client {
    /// How keys are spread.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its queue pair.
    pub fn qp(&self) -> &Qp {
        &self.half.qp
    }

    /// Where replies come to.
    pub fn buffer(&self) -> &Region {
        &self.half.buffer
    }

    /// Messages that have no reply yet.
    pub fn under_way(&self) -> u64 {
        self.sent - self.taken
    }

    /// The value of a key.
    pub async fn get(&mut self, key: &[u8]) -> Result<Got, Error> {
        let sought = self.layout.sought(self.layout.hash(key));
        let mut missed = false;
        for attempt in 0..TRIES {
            self.counters.retries += u64::from(attempt > 0);
            // After a miss, and at every other attempt, the other bucket first.
            self.ask(key, &sought, attempt % 2 == 1).await?;
            match self.answer(key).await? {
                Some(Got::Missing) if missed || self.by == By::Program => return Ok(Got::Missing),
                Some(Got::Missing) => missed = true,
                Some(got) => return Ok(got),
                None => missed = false,
            }
        }
        Ok(Got::Unsure)
    }

    /// The value of a key; what is unsure is asked for by a call.
    pub async fn get_or<E: From<Error>>(
        &mut self,
        key: &[u8],
        call: impl AsyncFnOnce(&[u8]) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, E> {
        match self.get(key).await? {
            Got::Value(value) => Ok(Some(value)),
            Got::Missing => Ok(None),
            Got::Unsure => {
                self.counters.fallbacks += 1;
                call(key).await
            }
        }
    }

    /// The values of keys, so many under way at once as there are slots at most. More than
    /// [`Shape::outstanding`] have to be sent again, which takes its time.
    pub async fn get_all(&mut self, keys: &[&[u8]], under_way: u32) -> Result<Vec<Got>, Error> {
        let window = under_way.clamp(1, self.half.shape.slots) as usize;
        let mut out = Vec::with_capacity(keys.len());
        let mut asked = 0;
        while out.len() < keys.len() {
            while asked < keys.len() && asked - out.len() < window {
                let sought = self.layout.sought(self.layout.hash(keys[asked]));
                self.ask(keys[asked], &sought, false).await?;
                asked += 1;
            }
            out.push(self.answer(keys[out.len()]).await?.filter(|got| *got != Got::Missing));
        }
        // Those that were not found at once are asked for alone.
        let mut settled = Vec::with_capacity(keys.len());
        for (got, key) in out.into_iter().zip(keys) {
            settled.push(match got {
                Some(got) => got,
                None => {
                    self.counters.retries += 1;
                    self.get(key).await?
                }
            });
        }
        Ok(settled)
    }

    /// The value of a key, read by the client itself: one bucket, or both, and the record. The keys are those
    /// of index and values, if the server gives them. Nothing else may be under way.
    pub async fn get_by_reads(&mut self, key: &[u8], (index, values): (Key, Key)) -> Result<Got, Error> {
        assert_eq!(self.under_way(), 0, "the buffer is free");
        let Layout { index: at, values: from, values_len, .. } = self.layout;
        let index = Remote { addr: at, len: self.layout.index_len(), rkey: index };
        let values = Remote { addr: from, len: values_len, rkey: values };
        let sought = self.layout.sought(self.layout.hash(key));
        let Half { qp, buffer, shape, .. } = &self.half;
        let mut missed = 0;
        for attempt in 0..2 * TRIES as usize {
            let bucket = sought.buckets[attempt % 2];
            qp.read((buffer, 0), BUCKET_LEN as u32, (&index, Layout::bucket_at(bucket))).await?;
            if fingerprint(buffer.load(0).await?) != sought.fingerprint {
                // Neither bucket has it, in both orders.
                missed += 1;
                if missed == 4 {
                    return Ok(Got::Missing);
                }
                continue;
            }
            missed = 0;
            let extent = self.layout.extent(buffer.load(8).await?);
            let Some(extent) = extent.filter(|extent| extent.len <= shape.reply_len) else { continue };
            qp.read((buffer, 0), extent.len, (&values, extent.at)).await?;
            let bytes = buffer.read(0, extent.len as usize).await?;
            match Record::parse(&bytes) {
                Some(record) if record.key == key => return Ok(Got::Value(record.value.to_vec())),
                Some(_) => self.counters.strangers += 1,
                None => self.counters.torn += 1,
            }
            self.counters.retries += 1;
        }
        Ok(Got::Unsure)
    }

    /// Sends a message, once the send queue has room for it.
    async fn ask(&mut self, key: &[u8], sought: &Sought, flipped: bool) -> Result<(), Error> {
        let [first, second] = sought.buckets.map(|bucket| self.layout.bucket(bucket));
        let buckets = if flipped { [second, first] } else { [first, second] };
        let message = match self.by {
            By::Chain => message(sought, buckets).to_vec(),
            By::Program => key.to_vec(),
        };
        let slots = u64::from(self.half.shape.slots);
        let most = u64::from(MESSAGES) * slots;
        if self.sent - self.gone >= most {
            let deadline = self.half.rdma.now().await? + self.limit;
            while self.sent - self.gone >= most {
                self.collect(deadline).await?;
            }
        }
        // One completion for several messages, so that the queue has room again.
        let signaled = self.sent.is_multiple_of(slots);
        let request = SendRequest {
            wr_id: self.sent + 1,
            op: SendOp::Send,
            flags: SendFlags { signaled, ..SendFlags::default() },
            data: Data::Inline(message),
            ud: None,
            xrc_srqn: 0,
        };
        self.half.qp.post(vec![request]).await?;
        self.sent += 1;
        self.counters.asked += 1;
        Ok(())
    }

    /// What the oldest message's reply says of this key; `None` for a record that is not the key's.
    async fn answer(&mut self, key: &[u8]) -> Result<Option<Got>, Error> {
        let deadline = self.half.rdma.now().await? + self.limit;
        while self.come.is_empty() {
            self.collect(deadline).await?;
        }
        let len = self.come.pop_front().unwrap_or_default() as usize;
        let at = self.half.shape.reply_at(self.taken);
        self.taken += 1;
        match len as u32 {
            // It is there, and longer than a slot.
            0 => return Ok(Some(Got::Unsure)),
            MISS_LEN => return Ok(Some(Got::Missing)),
            _ => {}
        }
        let bytes = self.half.buffer.read(at, len.min(self.half.shape.reply_len as usize)).await?;
        match Record::parse(&bytes) {
            Some(record) if record.key == key => Ok(Some(Got::Value(record.value.to_vec()))),
            Some(_) => {
                self.counters.strangers += 1;
                Ok(None)
            }
            None => {
                self.counters.torn += 1;
                Ok(None)
            }
        }
    }

    /// Takes completions, and waits for one if there are none.
    async fn collect(&mut self, deadline: Instant) -> Result<(), Error> {
        let completions = self.half.cq.poll(16).await?;
        if completions.is_empty() {
            let woken = self.half.rdma.until(&[On::Cq(&self.half.cq)], Some(deadline)).await?;
            if woken.is_none() {
                self.counters.timeouts += 1;
                return Err(Error::NoAnswer);
            }
        }
        completions.iter().try_for_each(|completion| self.note(completion))?;
        if self.used >= self.half.shape.slots / 2 {
            self.post_receives().await?;
        }
        Ok(())
    }

    fn note(&mut self, completion: &Completion) -> Result<(), Error> {
        if completion.status != Status::Success {
            return Err(Error::of(completion));
        }
        match completion.op {
            CompletionOp::RecvWriteImm => {
                self.used += 1;
                self.come.push_back(completion.byte_len);
            }
            CompletionOp::Send => self.gone = completion.wr_id,
            // READs of its own are waited for by their name.
            _ => {}
        }
        Ok(())
    }

    /// Posts receives for those that were used.
    async fn post_receives(&mut self) -> Result<(), Error> {
        let receive = |_| RecvRequest { wr_id: RECEIVE, pieces: Vec::new() };
        self.half.qp.post_recv((0..self.used).map(receive).collect()).await?;
        self.used = 0;
        Ok(())
    }
}
