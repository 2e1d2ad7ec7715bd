//! Gets that a program answers: what chains are compared with. A client SENDs a key; the server takes it off
//! a receive queue, looks it up, and writes a copy of the record into the client's buffer, with an immediate.
//!
//! ```text
//! client   SEND key                 1 to 256 bytes
//! server   WRITE_IMM of the record  message n's to slot n of the buffer, modulo its slots, as of a chain
//!          .. of one byte           there is no such key
//!          .. of no byte            its record does not fit into a slot
//! ```
//! So a client judges both alike, and a get differs in nothing but who looks the key up. A reply is copied
//! before it is sent, as a program has to do whose table changes meanwhile. Clients have no rights here:
//! their messages and replies are in memory of the server's, whose keys nobody is told.
//!
//! A client may have a reply and ask again before the server knows that it has: acknowledgements can be late,
//! and one completion tells of a lap's replies. A message that the send queue has no room to answer waits.

use super::chain::Shape;
use super::setup::Offer;
use adverb_rdma::record::KEY_MAX;
use adverb_rdma::{
    Access, Caps, Completion, CompletionOp, Connect, Cq, Data, Endpoint, Error, On, Pd, Qp, Rdma,
    RecvRequest, Region, Remote, SendFlags, SendOp, SendRequest, Status,
};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a message at most.
pub const MESSAGE_MAX: usize = KEY_MAX;
/// Completions taken at once.
const BATCH: usize = 16;
/// The part of a request's word that says which slot a receive is of; of a reply.
const SLOT_BITS: u32 = 16;
const REPLY: u64 = (1 << SLOT_BITS) - 1;

/// Replies that the send queue holds, in laps of the slots: the last of a lap tells that the others are gone.
const LAPS: u32 = 2;

/// One byte, which no record is: a miss.
pub const MISS_LEN: u32 = 1;

/// What clients may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Clients at once.
    pub clients: u32,
    /// Gets that a client may have under way.
    pub slots: u32,
}

/// What has been counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Messages answered.
    pub answered: u64,
    /// Clients whose queue pairs failed.
    pub broken: u64,
}

/// A client's things, in the order in which they go.
struct Peer {
    qp: Qp,
    requests: Region,
    replies: Region,
    buffer: Remote,
    shape: Shape,
    answered: u64,
    /// How many of the answers have completed, as far as has been told.
    completed: u64,
    /// Messages that wait for room in the send queue: slots of their receives, and lengths. Each has its
    /// receive, so there are no more than slots.
    waiting: VecDeque<(u32, u32)>,
}

/// Who answers.
pub struct Server {
    rdma: Rdma,
    limits: Limits,
    pd: Pd,
    cq: Cq,
    peers: BTreeMap<u32, Peer>,
    last: u32,
    /// What has been counted.
    pub counters: Counters,
}

impl Server {
    /// Without clients.
    pub async fn new(rdma: &Rdma, limits: Limits) -> Result<Server, Error> {
        let pd = rdma.create_pd().await?;
        // When a connection fails, all that is posted completes: receives, and twice as many replies.
        let cq = rdma.create_cq(limits.clients.saturating_mul(4 * limits.slots)).await?;
        let (peers, counters) = (BTreeMap::new(), Counters::default());
        Ok(Server { rdma: rdma.clone(), limits, pd, cq, peers, last: 0, counters })
    }

    /// Where messages come.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Clients that are served.
    pub fn clients(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Serves a client from now on: its number, and the queue pair to connect to.
    pub async fn connect(&mut self, offer: &Offer) -> Result<(u32, Endpoint), Refused> {
        let Limits { clients, slots } = self.limits;
        if self.clients() >= clients {
            return Err(Refused::Clients(clients));
        }
        if offer.shape.slots > slots {
            return Err(Refused::Slots(slots));
        }
        if offer.one_sided {
            return Err(Refused::OneSided);
        }
        let shape = offer.shape;
        let caps = Caps { max_send_wr: LAPS * shape.slots, max_recv_wr: shape.slots, ..Caps::default() };
        let qp = self.pd.create_rc(&self.cq, caps).await?;
        let requests = u64::from(shape.slots) * MESSAGE_MAX as u64;
        let requests = self.pd.region(requests, Access::LOCAL_WRITE).await?;
        let replies = self.pd.region(shape.buffer_len(), Access::LOCAL_WRITE).await?;
        let how = Connect { access: Access::empty(), ..Connect::default() };
        let endpoint = qp.endpoint(&how).await?;
        qp.connect_to(&endpoint, &offer.endpoint, &how).await?;
        let number = self.last.wrapping_add(1);
        let (buffer, waiting) = (offer.buffer, VecDeque::new());
        let peer = Peer { qp, requests, replies, buffer, shape, answered: 0, completed: 0, waiting };
        for slot in 0..shape.slots {
            peer.receive(number, slot).await?;
        }
        self.last = number;
        self.peers.insert(number, peer);
        Ok((number, endpoint))
    }

    /// A client has gone.
    pub fn leave(&mut self, client: u32) {
        self.peers.remove(&client);
    }

    /// Answers what has come, by the record that this finds for a key; how many messages there were.
    pub async fn answer(&mut self, mut find: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<u32, Error> {
        let completions = self.cq.poll(BATCH).await?;
        let mut answered = 0;
        for completion in &completions {
            let client = (completion.wr_id >> SLOT_BITS) as u32;
            // What comes of one that has gone is over.
            let Some(peer) = self.peers.get_mut(&client) else { continue };
            match peer.take(client, completion, &mut find).await {
                Ok(more) => answered += more,
                // Its connection has failed, which the client finds as well.
                Err(_) => {
                    self.counters.broken += 1;
                    self.peers.remove(&client);
                }
            }
        }
        self.counters.answered += u64::from(answered);
        Ok(answered)
    }

    /// Waits until something has come.
    pub async fn wait(&self) -> Result<(), Error> {
        self.rdma.until(&[On::Cq(&self.cq)], None).await.map(|_| ())
    }
}

impl Peer {
    /// Posts a slot's receive.
    async fn receive(&self, client: u32, slot: u32) -> Result<(), Error> {
        let piece = self.requests.piece(u64::from(slot) * MESSAGE_MAX as u64, MESSAGE_MAX as u32)?;
        let word = u64::from(client) << SLOT_BITS | u64::from(slot);
        self.qp.post_recv(vec![RecvRequest::into_piece(word, piece)]).await
    }

    /// Takes a completion; how many messages have been answered.
    async fn take(
        &mut self,
        client: u32,
        completion: &Completion,
        find: &mut impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<u32, Error> {
        if completion.status != Status::Success {
            return Err(Error::of(completion));
        }
        if completion.op == CompletionOp::Recv {
            self.waiting.push_back(((completion.wr_id & REPLY) as u32, completion.byte_len));
        } else {
            self.completed += u64::from(self.shape.slots);
        }
        let mut answered = 0;
        while self.answered - self.completed < u64::from(LAPS * self.shape.slots)
            && let Some((slot, len)) = self.waiting.pop_front()
        {
            self.reply(client, slot, len as usize, find).await?;
            answered += 1;
        }
        Ok(answered)
    }

    /// Answers the message in a slot.
    async fn reply(
        &mut self,
        client: u32,
        slot: u32,
        len: usize,
        find: &mut impl FnMut(&[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), Error> {
        let key = self.requests.read(u64::from(slot) * MESSAGE_MAX as u64, len.min(MESSAGE_MAX)).await?;
        let record = find(&key);
        // The client has what stood here a lap ago, or it would not ask again.
        let at = self.shape.reply_at(self.answered);
        let len = match &record {
            None => MISS_LEN,
            Some(record) if record.len() > self.shape.reply_len as usize => 0,
            Some(record) => {
                self.replies.write(at, record).await?;
                record.len() as u32
            }
        };
        let number = (self.answered % u64::from(self.shape.slots)) as u32;
        let signaled = number + 1 == self.shape.slots;
        let to = self.buffer.at(at, len.into())?;
        let request = SendRequest {
            wr_id: u64::from(client) << SLOT_BITS | REPLY,
            op: SendOp::WriteImm(to, self.buffer.rkey, number),
            flags: SendFlags { signaled, ..SendFlags::default() },
            data: Data::Piece(self.replies.piece(at, len)?),
            ud: None,
            xrc_srqn: 0,
        };
        // The receive first: whoever has the reply may send again.
        self.receive(client, slot).await?;
        self.qp.post(vec![request]).await?;
        self.answered += 1;
        Ok(())
    }
}

/// Why a client is not served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There are as many clients as there may be.
    Clients(u32),
    /// It would have more under way than a client may.
    Slots(u32),
    /// It asked for keys of index and values.
    OneSided,
    /// The NIC refused.
    Rdma(Error),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Clients(most) => write!(f, "{most} clients are served already"),
            Refused::Slots(most) => write!(f, "slots: {most} at most"),
            Refused::OneSided => f.write_str("keys of index and values are given by the hull only"),
            Refused::Rdma(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Rdma(error)
    }
}
