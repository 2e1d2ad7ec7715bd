//! Clients that read all the time while the server changes its key (1RMA, 7.3). Standard RDMA has nothing
//! with which to change the key of an open connection: the server closes it, the client finds out when its
//! retries run out, and connects once more.

use super::{Clock, Done, NAME, Parts, SERVER, Shared, client};
use adverb_rdma::{
    Access, Caps, Connect, Cq, Data, Duration, Error, Line, Listener, On, Pd, Qp, Rdma, Region, Remote,
    SendOp,
};
use adverb_sim::program::Start;
use adverb_sim::units::parse_time;
use serde::Deserialize;

/// Bytes of a READ at most.
const BYTES_MAX: u32 = 4096;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rotate {
    /// Clients, each with a connection of its own.
    pub clients: u32,
    /// Bytes of a READ.
    bytes: u32,
    /// From the beginning of one READ to that of the next one, if it has ended by then.
    every: String,
    /// When the server changes its key, in the run's time.
    at: String,
    /// Local ACK timeout: 4.096 us * 2^n.
    timeout: u8,
    /// Transport retries, up to 7.
    retries: u8,
}

/// The same, in ps.
#[derive(Clone, Copy)]
struct Asked {
    clients: u32,
    bytes: u32,
    every: Duration,
    at: u64,
    how: Connect,
}

impl Rotate {
    fn asked(&self) -> Result<Asked, String> {
        let time = |key: &str, text: &str| parse_time(text).map_err(|why| format!("{key}: {why}"));
        if !(1..=31).contains(&self.timeout) || self.retries > 7 {
            return Err(
                "timeout, retries: 1 to 31, and 0 to 7: who waits for ever never connects again".to_owned()
            );
        }
        if !(1..=BYTES_MAX).contains(&self.bytes) {
            return Err(format!("bytes: 1 to {BYTES_MAX}"));
        }
        let (every, at) = (time("every", &self.every)?, time("at", &self.at)?.as_ps());
        let how = Connect { timeout: self.timeout, retries: self.retries, ..Connect::default() };
        Ok(Asked { clients: self.clients, bytes: self.bytes, every, at, how })
    }

    pub fn check(&self) -> Result<(), String> {
        self.asked().map(|_| ())
    }

    pub fn programs(&self, log: &Shared, parts: Parts) -> Result<Vec<Start>, String> {
        let asked = self.asked()?;
        let serve = move |rdma: Rdma| async move { serve(rdma, asked).await };
        let mut programs = vec![Start::new(NAME, SERVER, serve).serving()];
        for number in 0..self.clients {
            programs.push(client(number, log, move |rdma, log| go_on(rdma, log, asked, parts)));
        }
        Ok(programs)
    }
}

/// Connections of all clients, and the region that they may read.
type Held = (Region, Vec<(Qp, Line)>);

/// Makes a region under a new key, and connects each client once.
async fn offer(pd: &Pd, cq: &Cq, listener: &Listener, asked: &Asked) -> Result<Held, Error> {
    let memory = pd.region(u64::from(BYTES_MAX), Access::LOCAL_WRITE | Access::REMOTE_READ).await?;
    let mut peers = Vec::new();
    for _ in 0..asked.clients {
        let peer = listener.accept().await?;
        let qp = pd.create_rc(cq, Caps::default()).await?;
        let line = peer.accept(&qp, &memory.remote().to_bytes(), &asked.how).await?;
        peers.push((qp, line));
    }
    Ok((memory, peers))
}

async fn serve(rdma: Rdma, asked: Asked) -> Result<(), Error> {
    let clock = Clock::begin(&rdma).await?;
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let listener = rdma.listen(NAME).await?;
    let old = offer(&pd, &cq, &listener, &asked).await?;
    let left = asked.at.saturating_sub(clock.ps(rdma.now().await?));
    rdma.sleep(Duration::from_ps(left)).await?;
    drop(old);
    let _new = offer(&pd, &cq, &listener, &asked).await?;
    rdma.until(&[On::Stop], None).await.map(|_| ())
}

/// A connection, and what may be read over it.
async fn open(rdma: &Rdma, pd: &Pd, cq: &Cq, how: &Connect) -> Result<(Qp, Line, Remote), Error> {
    let qp = pd.create_rc(cq, Caps::default()).await?;
    let patience = rdma.now().await? + Duration::from_ms(100);
    let (line, told) = qp.connect(NAME, &[], how, Some(patience)).await?;
    let far = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    Ok((qp, line, far))
}

async fn go_on(rdma: Rdma, log: Shared, asked: Asked, parts: Parts) -> Result<(), Error> {
    let clock = Clock::begin(&rdma).await?;
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let own = pd.region(u64::from(BYTES_MAX), Access::LOCAL_WRITE).await?;
    let mut connection = open(&rdma, &pd, &cq, &asked.how).await?;
    clock.wait(&rdma, &log, parts.start).await?;
    loop {
        let (qp, _, far) = &connection;
        let begun = rdma.now().await?;
        let read = SendOp::Read(far.at(0, u64::from(asked.bytes))?, far.rkey);
        match qp.execute(read, Data::Piece(own.piece(0, asked.bytes)?)).await {
            Ok(_) => {}
            Err(Error::Failed { .. }) => {
                connection = open(&rdma, &pd, &cq, &asked.how).await?;
                continue;
            }
            Err(other) => return Err(other),
        }
        let now = rdma.now().await?;
        let took = now.since(begun);
        log.borrow_mut().done.push(Done {
            changes: false,
            ended: clock.ps(now),
            took: took.as_ps(),
            refused: 0,
            passed: 0,
        });
        if took < asked.every {
            rdma.sleep(Duration::from_ps(asked.every.as_ps() - took.as_ps())).await?;
        }
    }
}
