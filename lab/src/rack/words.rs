//! Single verbs on words of the server: each client has a queue pair and keeps so many requests under way on
//! it.

use super::{Clock, Done, NAME, Parts, SERVER, Shared, client};
use crate::lent::{everything, lend};
use adverb_rdma::{
    Access, Caps, Connect, Data, Error, On, Pd, Rdma, Region, Remote, SendFlags, SendOp, SendRequest, Status,
};
use adverb_sim::program::Start;
use serde::Deserialize;

/// Words that are apart share no cache line.
const LINE: u64 = 64;
/// Requests of a queue pair at most.
const DEPTH_MAX: u32 = 64;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Words {
    /// Which verb.
    verb: Verb,
    /// Queue pairs.
    pub pairs: u32,
    /// Requests under way on each.
    depth: u32,
    /// All of them name one word; otherwise each its own.
    #[serde(default)]
    one: bool,
    /// The words lie on the NIC.
    #[serde(default)]
    chip: bool,
}

/// A verb of eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verb {
    Read,
    Write,
    /// A compare and swap that finds what it compares with only once.
    Cas,
    Add,
}

/// Nothing is lost here, and a NIC that is busy is not dead.
fn connect() -> Connect {
    Connect { timeout: 0, ..Connect::default() }
}

impl Words {
    pub fn check(&self) -> Result<(), String> {
        match (1..=DEPTH_MAX).contains(&self.depth) {
            true => Ok(()),
            false => Err(format!("depth: 1 to {DEPTH_MAX}")),
        }
    }

    pub fn programs(&self, log: &Shared, parts: Parts) -> Vec<Start> {
        let words = *self;
        let serve = move |rdma: Rdma| async move { serve(rdma, words).await };
        let mut programs = vec![Start::new(NAME, SERVER, serve).serving()];
        for number in 0..words.pairs {
            programs.push(client(number, log, move |rdma, log| go_on(rdma, log, (words, number), parts)));
        }
        programs
    }
}

async fn region(pd: &Pd, words: Words) -> Result<Region, Error> {
    let all = everything();
    let len = LINE * u64::from(words.pairs);
    if words.chip { pd.device_region(len, all).await } else { pd.region(len, all).await }
}

async fn serve(rdma: Rdma, words: Words) -> Result<(), Error> {
    lend(rdma, NAME, words.pairs, &connect(), async |pd| region(pd, words).await).await
}

async fn go_on(rdma: Rdma, log: Shared, (words, number): (Words, u32), parts: Parts) -> Result<(), Error> {
    let clock = Clock::begin(&rdma).await?;
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(2 * DEPTH_MAX).await?;
    let own = pd.region(LINE, Access::LOCAL_WRITE).await?;
    let caps = Caps { max_send_wr: DEPTH_MAX, max_inline: 8, ..Caps::default() };
    let qp = pd.create_rc(&cq, caps).await?;
    let patience = rdma.now().await? + adverb_rdma::Duration::from_ms(100);
    let (_line, told) = qp.connect(NAME, &[], &connect(), Some(patience)).await?;
    let far = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    let at = if words.one { 0 } else { LINE * u64::from(number) };
    let (addr, rkey) = (far.at(at, 8)?, far.rkey);
    let request = || -> Result<SendRequest, Error> {
        let op = match words.verb {
            Verb::Read => SendOp::Read(addr, rkey),
            Verb::Write => SendOp::Write(addr, rkey),
            Verb::Cas => SendOp::CompareSwap { addr, rkey, compare: 0, swap: u64::from(number) + 1 },
            Verb::Add => SendOp::FetchAdd { addr, rkey, add: 1 },
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        // The adapter need not fetch what a WRITE carries in itself.
        let data = match words.verb {
            Verb::Write => Data::Inline(vec![number as u8; 8]),
            Verb::Read | Verb::Cas | Verb::Add => Data::Piece(own.piece(0, 8)?),
        };
        Ok(SendRequest { wr_id: 0, op, flags, data, ud: None, xrc_srqn: 0 })
    };
    clock.wait(&rdma, &log, parts.start).await?;
    qp.post((0..words.depth).map(|_| request()).collect::<Result<_, _>>()?).await?;
    loop {
        rdma.until(&[On::Cq(&cq)], None).await?;
        let completions = cq.poll(DEPTH_MAX as usize).await?;
        let ended = clock.ps(rdma.now().await?);
        for completion in &completions {
            if completion.status != Status::Success {
                return Err(Error::of(completion));
            }
            let done = Done { changes: words.verb != Verb::Read, ended, took: 0, refused: 0, passed: 0 };
            log.borrow_mut().done.push(done);
        }
        qp.post(completions.iter().map(|_| request()).collect::<Result<_, _>>()?).await?;
    }
}
