//! READs, WRITEs and compare and swaps of words at a steady rate, whatever is under way: clients post in
//! turns, one request after each interval, of a word by Zipf's distribution.

use super::{Clock, Done, NAME, Parts, SERVER, Shared, client};
use crate::lent::{everything, lend};
use adverb_apps::ycsb::Zipf;
use adverb_rdma::{
    Access, Caps, Connect, Data, Duration, Error, Rdma, Remote, SendFlags, SendOp, SendRequest, Status,
};
use adverb_sim::program::Start;
use adverb_sim::units::parse_time;
use serde::Deserialize;

/// Words share no cache line.
const LINE: u64 = 64;
const WORDS_MAX: u64 = 1 << 16;
/// Requests of a queue pair at once at most.
const DEPTH: u32 = 64;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mix {
    /// Clients, each with a queue pair.
    pub pairs: u32,
    /// From one request to the next, of all clients.
    every: String,
    /// Words.
    words: u64,
    /// Zipf's exponent.
    exponent: f64,
}

impl Mix {
    fn every(&self) -> Result<u64, String> {
        let every = parse_time(&self.every).map_err(|why| format!("every: {why}"))?.as_ps();
        if every == 0 { Err("every: a time above zero".to_owned()) } else { Ok(every) }
    }

    pub fn check(&self) -> Result<(), String> {
        self.every()?;
        Zipf::new(self.words, self.exponent).map_err(|why| why.to_string())?;
        if self.words > WORDS_MAX { Err(format!("words: at most {WORDS_MAX}")) } else { Ok(()) }
    }

    pub fn programs(&self, log: &Shared, parts: Parts) -> Result<Vec<Start>, String> {
        let (pairs, words, every) = (self.pairs, self.words, self.every()?);
        let zipf = Zipf::new(words, self.exponent).map_err(|why| why.to_string())?;
        let serve = move |rdma: Rdma| async move { serve(rdma, pairs, words).await };
        let mut programs = vec![Start::new(NAME, SERVER, serve).serving()];
        for number in 0..pairs {
            let first = parts.start + u64::from(number) * every;
            let (zipf, apart) = (zipf.clone(), u64::from(pairs) * every);
            programs
                .push(client(number, log, move |rdma, log| go_on(rdma, log, (first, apart), zipf.clone())));
        }
        Ok(programs)
    }
}

/// What is under way for long is no reason to ask again.
fn connect() -> Connect {
    Connect { timeout: 0, ..Connect::default() }
}

async fn serve(rdma: Rdma, pairs: u32, words: u64) -> Result<(), Error> {
    lend(rdma, NAME, pairs, &connect(), async |pd| pd.region(LINE * words, everything()).await).await
}

async fn go_on(rdma: Rdma, log: Shared, (first, apart): (u64, u64), zipf: Zipf) -> Result<(), Error> {
    let clock = Clock::begin(&rdma).await?;
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(2 * DEPTH).await?;
    let own = pd.region(LINE, Access::LOCAL_WRITE).await?;
    let qp = pd.create_rc(&cq, Caps { max_send_wr: DEPTH, max_inline: 8, ..Caps::default() }).await?;
    let patience = rdma.now().await? + Duration::from_ms(100);
    let (_line, told) = qp.connect(NAME, &[], &connect(), Some(patience)).await?;
    let far = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    let mut next = first;
    loop {
        let Some(left) = next.checked_sub(clock.ps(rdma.now().await?)) else {
            return Err(Error::System("later than its turn; give `start` or `every` more time".to_owned()));
        };
        rdma.sleep(Duration::from_ps(left)).await?;
        if next == first {
            log.borrow_mut().begun += 1;
        }
        let ended = clock.ps(rdma.now().await?);
        for completion in cq.poll(DEPTH as usize).await? {
            if completion.status != Status::Success {
                return Err(Error::of(&completion));
            }
            let changes = completion.wr_id != 0;
            log.borrow_mut().done.push(Done { changes, ended, took: 0, refused: 0, passed: 0 });
        }
        let (verb, dice) = (rdma.random().await? % 3, rdma.random().await?);
        let (addr, rkey) = (far.at(LINE * zipf.rank(dice), 8)?, far.rkey);
        let (op, data) = match verb {
            0 => (SendOp::Read(addr, rkey), Data::Piece(own.piece(0, 8)?)),
            1 => (SendOp::Write(addr, rkey), Data::Inline(vec![0; 8])),
            _ => {
                let op = SendOp::CompareSwap { addr, rkey, compare: 0, swap: 1 };
                (op, Data::Piece(own.piece(0, 8)?))
            }
        };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        qp.post(vec![SendRequest { wr_id: verb, op, flags, data, ud: None, xrc_srqn: 0 }]).await?;
        next += apart;
    }
}
