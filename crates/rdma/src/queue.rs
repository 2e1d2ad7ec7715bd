//! Queue pairs, completion queues, shared receive queues, and one-sided operations as futures.
//!
//! An operation's future posts one signalled request, and ends with its completion. Several may share a
//! completion queue: who takes completions off it keeps those of others for them, and wakes them.
//! Dropped before its end, a future leaves its request to the NIC, and the completion is thrown away.

use crate::error::Error;
use crate::memory::{Keeps, Pd, Region, Remote};
use crate::pending::Pending;
use crate::seam::{
    Answer, Backing, Call, Data, Object, RecvRequest, RecvTarget, SendOrder, SendRequest, Wait,
};
use crate::{Rdma, done, wrong};
use adverb_nic::{
    Access, Completion, CqId, LiveQueue, QpAttr, QpAttrMask, QpCaps, QpFlags, QpId, QpInit, QpType,
    RateLimit, SendFlags, SendOp, Sge, SrqId, SrqInit, Status,
};
use adverb_wire::QpNumber;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::Pin;
use core::task::Poll;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Work request words from here on are those of operations' futures.
pub const OWN_WORDS: u64 = 1 << 63;
/// Completions that an operation's future takes at once.
const BATCH: usize = 16;

/// A completion queue.
#[derive(Clone)]
pub struct Cq {
    pub(crate) inner: Rc<CqInner>,
}

pub(crate) struct CqInner {
    rdma: Rdma,
    id: CqId,
    number: u32,
    next: Cell<u64>,
    /// Completions that operations wait for.
    claims: RefCell<BTreeMap<u64, Claimed>>,
    /// Those of requests that the program posted itself, taken off the queue by an operation's future.
    pub kept: RefCell<VecDeque<Completion>>,
}

struct Claimed {
    qp: QpId,
    state: ClaimState,
}

enum ClaimState {
    Open,
    Come(Completion),
    /// Nobody waits for it any more.
    Abandoned,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        self.rdma.world.release(Object::Cq(self.id));
    }
}

/// An operation's right to a completion.
struct Claim<'a> {
    cq: &'a CqInner,
    word: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claims = self.cq.claims.borrow_mut();
        if let Some(claimed) = claims.get_mut(&self.word) {
            match claimed.state {
                ClaimState::Open => claimed.state = ClaimState::Abandoned,
                _ => drop(claims.remove(&self.word)),
            }
        }
    }
}

impl Cq {
    pub(crate) fn new(rdma: &Rdma, id: CqId, number: u32) -> Cq {
        let inner = CqInner {
            rdma: rdma.clone(),
            id,
            number,
            next: Cell::new(OWN_WORDS),
            claims: RefCell::default(),
            kept: RefCell::default(),
        };
        Cq { inner: Rc::new(inner) }
    }

    /// The NIC's name for it.
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// The number by which a WQE names it.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Takes up to `max` completions of the program's own requests that are there. Those of operations'
    /// futures go to them.
    pub async fn poll(&self, max: usize) -> Result<Vec<Completion>, Error> {
        if self.inner.kept.borrow().is_empty() {
            self.inner.take(max).await?;
        }
        let mut kept = self.inner.kept.borrow_mut();
        let count = kept.len().min(max);
        Ok(kept.drain(..count).collect())
    }
}

impl CqInner {
    fn claim(&self, qp: QpId) -> Claim<'_> {
        let word = self.next.get();
        self.next.set(word.checked_add(1).unwrap_or(OWN_WORDS));
        self.claims.borrow_mut().insert(word, Claimed { qp, state: ClaimState::Open });
        Claim { cq: self, word }
    }

    /// Takes completions off the queue, each for whom it is for.
    async fn take(&self, max: usize) -> Result<(), Error> {
        let taken = match self.rdma.world.call(Call::PollCq { cq: self.id, max }).await? {
            Answer::Completions(taken) => taken,
            other => wrong(&other),
        };
        if taken.is_empty() {
            return Ok(());
        }
        let mut claims = self.claims.borrow_mut();
        for completion in taken {
            let word = completion.wr_id;
            match claims.get_mut(&word) {
                Some(claimed) => match claimed.state {
                    ClaimState::Open => claimed.state = ClaimState::Come(completion),
                    // Flushed behind the request whose failure has the same word.
                    ClaimState::Come(_) => {}
                    ClaimState::Abandoned => drop(claims.remove(&word)),
                },
                None if word >= OWN_WORDS => {}
                None => self.kept.borrow_mut().push_back(completion),
            }
        }
        drop(claims);
        self.rdma.world.kept();
        Ok(())
    }

    fn has_come(&self, word: u64) -> bool {
        matches!(self.claims.borrow().get(&word), Some(Claimed { state: ClaimState::Come(_), .. }))
    }

    /// The completion of a claim.
    async fn completion(&self, claim: &Claim<'_>) -> Result<Completion, Error> {
        loop {
            if !self.has_come(claim.word) {
                self.take(BATCH).await?;
            }
            if self.has_come(claim.word)
                && let Some(Claimed { state: ClaimState::Come(completion), .. }) =
                    self.claims.borrow_mut().remove(&claim.word)
            {
                return Ok(completion);
            }
            let call = Call::Until { waits: vec![Wait::Cq(self.id)], deadline: None };
            let mut pending: Pending<'_> = self.rdma.world.call(call);
            poll_fn(|context| {
                if self.has_come(claim.word) {
                    return Poll::Ready(Ok(()));
                }
                match Pin::new(&mut pending).poll(context) {
                    Poll::Ready(woken) => Poll::Ready(woken.map(|_| ())),
                    Poll::Pending => {
                        self.rdma.world.wait(context);
                        Poll::Pending
                    }
                }
            })
            .await?;
        }
    }

    /// The queue pair is gone, and completions of it do not come any more.
    fn forget(&self, qp: QpId) {
        self.claims.borrow_mut().retain(|_, claimed| claimed.qp != qp);
    }
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq {
    inner: Rc<SrqInner>,
}

struct SrqInner {
    pd: Pd,
    id: SrqId,
    number: u32,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        self.pd.inner.rdma.world.release(Object::Srq(self.id));
    }
}

impl Srq {
    /// The NIC's name for it.
    pub fn id(&self) -> SrqId {
        self.inner.id
    }

    /// The number by which XRC peers name it.
    pub fn number(&self) -> u32 {
        self.inner.number
    }

    /// Posts receives.
    pub async fn post_recv(&self, list: Vec<RecvRequest>) -> Result<(), Error> {
        let call = Call::PostRecv { to: RecvTarget::Srq(self.id()), list };
        posted(self.inner.pd.inner.rdma.world.call(call).await?)
    }
}

/// A queue pair.
#[derive(Clone)]
pub struct Qp {
    inner: Rc<QpInner>,
}

struct QpInner {
    pd: Pd,
    id: QpId,
    number: QpNumber,
    caps: QpCaps,
    send_cq: Cq,
    recv_cq: Cq,
    _srq: Option<Srq>,
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.pd.inner.rdma.world.release(Object::Qp(self.id));
        self.send_cq.inner.forget(self.id);
        self.recv_cq.inner.forget(self.id);
    }
}

impl Pd {
    /// A shared receive queue.
    pub async fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        let init = SrqInit { pd: self.id(), max_wr, max_sge, xrc: None };
        match self.inner.rdma.world.call(Call::CreateSrq(init)).await? {
            Answer::Srq(id, number) => Ok(Srq { inner: Rc::new(SrqInner { pd: self.clone(), id, number }) }),
            other => wrong(&other),
        }
    }

    /// A reliable connection's queue pair, both of whose queues complete in one completion queue.
    pub async fn create_rc(&self, cq: &Cq, caps: QpCaps) -> Result<Qp, Error> {
        self.create_qp(QpType::Rc, (cq, cq), None, caps).await
    }

    /// A queue pair in RESET: its service, the completion queues of sends and of receives, a shared
    /// receive queue in place of its own, and sizes; of sizes that are 0 a default is taken.
    pub async fn create_qp(
        &self,
        qp_type: QpType,
        cqs: (&Cq, &Cq),
        srq: Option<&Srq>,
        caps: QpCaps,
    ) -> Result<Qp, Error> {
        self.create_ordered_qp(qp_type, cqs, srq, caps, SendOrder::Own).await
    }

    /// The same, with a send queue whose WQEs may order, or be ordered by, those of other queues.
    pub async fn create_ordered_qp(
        &self,
        qp_type: QpType,
        cqs: (&Cq, &Cq),
        srq: Option<&Srq>,
        caps: QpCaps,
        order: SendOrder,
    ) -> Result<Qp, Error> {
        self.create_qp_with(qp_type, cqs, srq, caps, order.flags()).await
    }

    /// The same, with all that queues may be beyond plain ones: of receives too.
    pub async fn create_qp_with(
        &self,
        qp_type: QpType,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<&Srq>,
        caps: QpCaps,
        flags: QpFlags,
    ) -> Result<Qp, Error> {
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let caps = QpCaps {
            max_send_wr: or(caps.max_send_wr, 64),
            max_recv_wr: or(caps.max_recv_wr, 1),
            max_send_sge: or(caps.max_send_sge, 1),
            max_recv_sge: or(caps.max_recv_sge, 1),
            max_inline: caps.max_inline,
        };
        let init = QpInit {
            qp_type,
            pd: Some(self.id()),
            send_cq: Some(send_cq.id()),
            recv_cq: Some(recv_cq.id()),
            srq: srq.map(Srq::id),
            xrcd: None,
            sq_sig_all: false,
            caps,
        };
        match self.inner.rdma.world.call(Call::CreateQp { init, flags }).await? {
            Answer::Qp(id, number, caps) => {
                let (send_cq, recv_cq) = (send_cq.clone(), recv_cq.clone());
                let inner =
                    QpInner { pd: self.clone(), id, number, caps, send_cq, recv_cq, _srq: srq.cloned() };
                Ok(Qp { inner: Rc::new(inner) })
            }
            other => wrong(&other),
        }
    }
}

/// Life of a queue pair.
impl Qp {
    /// The NIC's name for it.
    pub fn id(&self) -> QpId {
        self.inner.id
    }

    /// Its number.
    pub fn number(&self) -> QpNumber {
        self.inner.number
    }

    /// The sizes that it was given.
    pub fn caps(&self) -> QpCaps {
        self.inner.caps
    }

    /// Where its sends complete.
    pub fn send_cq(&self) -> &Cq {
        &self.inner.send_cq
    }

    pub(crate) fn rdma(&self) -> &Rdma {
        &self.inner.pd.inner.rdma
    }

    /// Changes attributes and state.
    pub async fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), Error> {
        let call = Call::ModifyQp { qp: self.id(), attr: Box::new(*attr), mask };
        done(self.rdma().world.call(call).await?)
    }

    /// Current attributes.
    pub async fn query(&self) -> Result<QpAttr, Error> {
        match self.rdma().world.call(Call::QueryQp(self.id())).await? {
            Answer::Attributes(attr) => Ok(*attr),
            other => wrong(&other),
        }
    }

    /// How far its send queue has come, what it waits for, and how many messages found no receive.
    pub async fn live(&self) -> Result<LiveQueue, Error> {
        match self.rdma().world.call(Call::Live(self.id())).await? {
            Answer::Live(live) => Ok(live),
            other => wrong(&other),
        }
    }

    /// The memory of its send queue as a region: 64-byte blocks in mlx5's layout. A doorbell has the NIC
    /// look at what was written there.
    pub async fn send_queue(&self) -> Result<Region, Error> {
        self.code(Access::LOCAL_WRITE).await
    }

    /// The same, with rights for queue pairs of its domain: so that their operations can change its WQEs.
    /// Who has the region's key and such a queue pair has this one's rights.
    pub async fn code(&self, access: Access) -> Result<Region, Error> {
        let keeps = Keeps::Qp { _qp: self.clone() };
        self.inner.pd.region_of(Backing::SendQueue(self.id()), access, keeps).await
    }

    /// Bounds the rate of its requests, those without a frame too. It is in RTS.
    pub async fn limit_rate(&self, limit: RateLimit) -> Result<(), Error> {
        done(self.rdma().world.call(Call::LimitRate { qp: self.id(), limit }).await?)
    }

    /// Rings the doorbell of a send queue that was written through memory: `posted` counts blocks of 64
    /// bytes since the beginning.
    pub async fn doorbell(&self, posted: u32) -> Result<(), Error> {
        done(self.rdma().world.call(Call::Doorbell { qp: self.id(), posted }).await?)
    }
}

/// Posts, and operations as futures.
impl Qp {
    /// Posts requests one after the other. Their words stay below [`OWN_WORDS`].
    pub async fn post(&self, list: Vec<SendRequest>) -> Result<(), Error> {
        posted(self.rdma().world.call(Call::PostSend { qp: self.id(), list }).await?)
    }

    /// Posts receives.
    pub async fn post_recv(&self, list: Vec<RecvRequest>) -> Result<(), Error> {
        let call = Call::PostRecv { to: RecvTarget::Qp(self.id()), list };
        posted(self.rdma().world.call(call).await?)
    }

    /// One request, and its completion once it is a success.
    pub async fn execute(&self, op: SendOp, data: Data) -> Result<Completion, Error> {
        self.execute_after(Vec::new(), op, data).await
    }

    /// Posts requests, and one more behind them in the same list; ends with the completion of that one,
    /// which comes after theirs. Requests before it ask for no completion of their own, but make one when
    /// they fail: then this is the error.
    pub async fn execute_after(
        &self,
        before: Vec<(SendOp, Data)>,
        op: SendOp,
        data: Data,
    ) -> Result<Completion, Error> {
        let cq = &*self.inner.send_cq.inner;
        let claim = cq.claim(self.id());
        // An unsignalled request that fails has the word of the one that it went before.
        let request = |(op, data): (SendOp, Data), signaled: bool| SendRequest {
            wr_id: claim.word,
            op,
            flags: SendFlags { signaled, ..SendFlags::default() },
            data,
            ud: None,
            xrc_srqn: 0,
        };
        let mut list: Vec<SendRequest> = before.into_iter().map(|work| request(work, false)).collect();
        list.push(request((op, data), true));
        let posting = self.rdma().world.call(Call::PostSend { qp: self.id(), list }).await;
        if let Err(error) = posting.and_then(posted) {
            // No completion will come of what was not posted.
            cq.claims.borrow_mut().remove(&claim.word);
            return Err(error);
        }
        let completion = cq.completion(&claim).await?;
        if completion.status == Status::Success { Ok(completion) } else { Err(Error::of(&completion)) }
    }

    /// Writes a piece of own memory to a place in a peer's.
    pub async fn write(&self, from: (&Region, u64), len: u32, to: (&Remote, u64)) -> Result<(), Error> {
        let op = SendOp::Write(to.0.at(to.1, len.into())?, to.0.rkey);
        self.execute(op, Data::Piece(from.0.piece(from.1, len)?)).await.map(|_| ())
    }

    /// Writes bytes that are copied into the request. The queue pair must have been made for so many.
    pub async fn write_inline(&self, bytes: &[u8], to: (&Remote, u64)) -> Result<(), Error> {
        let op = SendOp::Write(to.0.at(to.1, bytes.len() as u64)?, to.0.rkey);
        self.execute(op, Data::Inline(bytes.to_vec())).await.map(|_| ())
    }

    /// Reads from a place in a peer's memory into a piece of own memory.
    pub async fn read(&self, into: (&Region, u64), len: u32, from: (&Remote, u64)) -> Result<(), Error> {
        let op = SendOp::Read(from.0.at(from.1, len.into())?, from.0.rkey);
        self.execute(op, Data::Piece(into.0.piece(into.1, len)?)).await.map(|_| ())
    }

    /// Adds to a word of a peer's memory, and returns what it was. It lands in a word of own memory,
    /// which no other operation may use meanwhile.
    pub async fn fetch_add(
        &self,
        to: (&Remote, u64),
        add: u64,
        landing: (&Region, u64),
    ) -> Result<u64, Error> {
        let op = SendOp::FetchAdd { addr: to.0.at(to.1, 8)?, rkey: to.0.rkey, add };
        self.execute(op, Data::Piece(landing.0.piece(landing.1, 8)?)).await?;
        landing.0.load(landing.1).await
    }

    /// Stores `swap` in a word of a peer's memory if it is `compare`, and returns what it was, as
    /// [`Qp::fetch_add`] does.
    pub async fn compare_swap(
        &self,
        to: (&Remote, u64),
        (compare, swap): (u64, u64),
        landing: (&Region, u64),
    ) -> Result<u64, Error> {
        let op = SendOp::CompareSwap { addr: to.0.at(to.1, 8)?, rkey: to.0.rkey, compare, swap };
        self.execute(op, Data::Piece(landing.0.piece(landing.1, 8)?)).await?;
        landing.0.load(landing.1).await
    }

    /// Sends a piece of own memory as a message.
    pub async fn send(&self, from: (&Region, u64), len: u32) -> Result<(), Error> {
        self.execute(SendOp::Send, Data::Piece(from.0.piece(from.1, len)?)).await.map(|_| ())
    }
}

impl RecvRequest {
    /// A receive into one piece of memory.
    pub fn into_piece(wr_id: u64, piece: Sge) -> RecvRequest {
        RecvRequest { wr_id, pieces: vec![piece] }
    }
}

fn posted(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Posted(_, None) => Ok(()),
        Answer::Posted(0, Some(refused)) => Err(Error::Refused(refused)),
        Answer::Posted(posted, Some(refused)) => Err(Error::NotPosted { posted, refused }),
        other => wrong(&other),
    }
}
