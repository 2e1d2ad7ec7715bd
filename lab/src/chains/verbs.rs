//! Single verbs between two hosts: how long one takes on an idle network, and how many there are a second
//! when as many queue pairs as are given have enough to do.

use super::{Shared, Verb};
use crate::lent::{everything, lend};
use adverb_rdma::{
    Access, Caps, Connect, Cq, Data, Error, Line, On, Pd, Qp, QpType, Rdma, Region, Remote, SendFlags,
    SendOp, SendOrder, SendRequest, Status,
};
use adverb_redn::chain::{CALC_ENTRY, Calc, CalcOp};

/// Where the server can be asked.
const NAME: &str = "server";
/// Queue pairs' words and payloads are so far apart.
const APART: u64 = 1 << 16;

/// The greater one of two entries of a value and a location.
const MAX: Calc = Calc { op: CalcOp::Max, signed: false, big_endian: false, vectors: 2 };

/// No timeout: nothing is lost here, and a NIC that is busy is not dead.
fn connect() -> Connect {
    Connect { timeout: 0, ..Connect::default() }
}

/// Lets peers use its memory, through so many queue pairs, until it is asked to end.
pub async fn serve(rdma: Rdma, pairs: u32) -> Result<(), Error> {
    let len = APART * u64::from(pairs);
    lend(rdma, NAME, pairs, &connect(), async |pd| pd.region(len, everything()).await).await
}

/// A client's end of one queue pair, and where its bytes are.
struct Pair {
    qp: Qp,
    _line: Line,
    own: Region,
    far: Remote,
    at: u64,
}

async fn join(pd: &Pd, cq: &Cq, at: u64, (verb, depth): (Verb, u32)) -> Result<Pair, Error> {
    let own = pd.region(APART, Access::LOCAL_WRITE).await?;
    // A calculation takes two segments more, and a queue that may hold it.
    let more = if verb == Verb::Max { 2 * depth } else { depth };
    let caps = Caps { max_send_wr: more, ..Caps::default() };
    let order = if verb == Verb::Max { SendOrder::Cross } else { SendOrder::Own };
    let qp = pd.create_ordered_qp(QpType::Rc, (cq, cq), None, caps, order).await?;
    let (line, told) = qp.connect(NAME, &[], &connect(), None).await?;
    let far = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    Ok(Pair { qp, _line: line, own, far, at })
}

impl Pair {
    fn request(&self, verb: Verb, bytes: u32, wr_id: u64) -> Result<SendRequest, Error> {
        let (addr, rkey) = (self.far.at(self.at, bytes.max(8).into())?, self.far.rkey);
        let (op, len) = match verb {
            Verb::Read => (SendOp::Read(addr, rkey), bytes),
            Verb::Write => (SendOp::Write(addr, rkey), bytes),
            Verb::NopRemote => (SendOp::Write(addr, rkey), 0),
            Verb::NopLocal => (SendOp::Nop, 0),
            Verb::Max => (SendOp::WriteCalc(addr, rkey, MAX), CALC_ENTRY as u32 * 2),
            Verb::Cas => (SendOp::CompareSwap { addr, rkey, compare: 0, swap: 1 }, 8),
            Verb::Add => (SendOp::FetchAdd { addr, rkey, add: 1 }, 8),
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = match len {
            0 => Data::Pieces(Vec::new()),
            len => Data::Piece(self.own.piece(0, len)?),
        };
        Ok(SendRequest { wr_id, op, flags, data, ud: None, xrc_srqn: 0 })
    }
}

/// One after the other.
pub async fn one_by_one(rdma: Rdma, log: Shared, verb: Verb, bytes: u32, count: u32) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let pair = join(&pd, &cq, 0, (verb, 16)).await?;
    for n in 0..count {
        let request = pair.request(verb, bytes, n.into())?;
        let begun = rdma.now().await?;
        pair.qp.post(vec![request]).await?;
        rdma.until(&[On::Cq(&cq)], None).await?;
        let took = rdma.now().await?.as_ps() - begun.as_ps();
        took_off(&cq).await?;
        log.borrow_mut().samples.push(took);
    }
    Ok(())
}

/// All that the queue pairs have, from the start.
pub async fn at_once(
    rdma: Rdma,
    log: Shared,
    (verb, bytes): (Verb, u32),
    (pairs, each): (u32, u32),
) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(pairs * each).await?;
    let mut all = Vec::new();
    for n in 0..pairs {
        all.push(join(&pd, &cq, APART * u64::from(n), (verb, each)).await?);
    }
    for pair in &all {
        let list = (0..each).map(|n| pair.request(verb, bytes, n.into())).collect::<Result<_, _>>()?;
        pair.qp.post(list).await?;
    }
    let mut left = pairs * each;
    while left > 0 {
        rdma.until(&[On::Cq(&cq)], None).await?;
        let now = rdma.now().await?.as_ps();
        let taken = took_off(&cq).await?;
        left -= taken;
        log.borrow_mut().done.extend((0..taken).map(|_| now));
    }
    Ok(())
}

/// Takes completions off a queue: how many, all of which must be successes.
async fn took_off(cq: &Cq) -> Result<u32, Error> {
    let taken = cq.poll(64).await?;
    match taken.iter().find(|completion| completion.status != Status::Success) {
        None => Ok(taken.len() as u32),
        Some(completion) => Err(Error::of(completion)),
    }
}
