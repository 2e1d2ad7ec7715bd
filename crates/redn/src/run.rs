//! Runs a compiled program: a server that loads it and a client that sends it its arguments, over any driver.

use crate::chain::{Address, Error as ChainError, Place};
use crate::language::interpret::Memory;
use crate::language::{Atom, Compiled, File};
use crate::load::{Error as LoadError, Loaded};
use adverb_rdma::{
    Access, Asked, Caps, Completion, Connect, Duration, Error, Line, On, Pd, Qp, Rdma, RecvRequest, Region,
    Remote, Status,
};
use std::collections::BTreeMap;

/// Bytes of a client's buffer.
pub const BUFFER: u64 = 65_536;
/// Receives that a client posts.
const RECEIVES: u32 = 16;

impl From<ChainError> for Failure {
    fn from(error: ChainError) -> Failure {
        Failure::Load(LoadError::Chain(error))
    }
}

/// Why a program could not be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It could not be loaded.
    Load(LoadError),
    /// A call failed.
    Rdma(Error),
    /// A WR of the program failed.
    Stopped(Completion),
    /// It cannot be compiled.
    Language(crate::language::Error),
}

impl From<crate::language::Error> for Failure {
    fn from(error: crate::language::Error) -> Failure {
        Failure::Language(error)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Load(error) => error.fmt(f),
            Failure::Rdma(error) => error.fmt(f),
            Failure::Language(error) => error.fmt(f),
            Failure::Stopped(completion) => {
                write!(f, "a WR of the program failed: {}", Error::of(completion))
            }
        }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure::Load(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Rdma(error)
    }
}

/// A program that waits for its client's message.
pub struct Served {
    /// The chain.
    pub loaded: Loaded,
    /// The program.
    pub compiled: Compiled,
    _pd: Pd,
    /// To the client.
    pub line: Line,
}

/// Loads a program, and connects its client, who asks under this name.
pub async fn serve(rdma: &Rdma, name: &str, compiled: Compiled) -> Result<Served, Failure> {
    let pd = rdma.create_pd().await?;
    let loaded = Loaded::create(rdma, &pd, compiled.chain.clone()).await?;
    loaded.connect(&Connect::default()).await?;
    let listener = rdma.listen(name).await?;
    let asked = listener.accept().await?;
    admit(asked, pd, loaded, compiled).await
}

/// Connects the client that asks with a loaded program, and starts the program.
pub async fn admit(asked: Asked, pd: Pd, mut loaded: Loaded, compiled: Compiled) -> Result<Served, Failure> {
    let buffer = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a client's buffer"))?;
    loaded.give(compiled.buffer, Address { addr: buffer.addr, rkey: buffer.rkey, ..Address::default() });
    // The client is told where regions are, so that it can name places in them.
    let mut told = Vec::new();
    for (region, id) in &compiled.regions {
        told.push(region.len() as u8);
        told.extend_from_slice(region.as_bytes());
        told.extend_from_slice(&loaded.address(Place::At(*id, 0)).addr.to_be_bytes());
    }
    // A client may send, and nothing else.
    let how = Connect { access: Access::empty(), ..Connect::default() };
    let qp = loaded.qp(compiled.client).clone();
    let line = asked.accept(&qp, &told, &how).await?;
    // A message that comes before its receive is posted is sent again.
    loaded.start().await?;
    Ok(Served { loaded, compiled, _pd: pd, line })
}

impl Served {
    /// Whether the program has come to its end.
    pub async fn has_ended(&self) -> Result<bool, Failure> {
        match (self.compiled.finish, self.loaded.region(self.compiled.cells)) {
            (Some(cell), Some(cells)) => Ok(cells.load(cell).await? != 0),
            _ => Ok(false),
        }
    }

    /// Waits until the program has ended, or a WR of it has failed. `None` if the time is over first.
    pub async fn ended(&self, rdma: &Rdma, limit: Duration) -> Result<Option<()>, Failure> {
        let Some(cell) = self.compiled.finish else { return Ok(None) };
        let deadline = rdma.now().await? + limit;
        let Some(cells) = self.loaded.region(self.compiled.cells) else { return Ok(None) };
        let worker = self.loaded.completions(self.compiled.worker);
        loop {
            if cells.load(cell).await? != 0 {
                return Ok(Some(()));
            }
            self.look().await?;
            let on = [On::Word(cells, cell, 0), On::Cq(worker)];
            if rdma.until(&on, Some(deadline)).await?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Completions that are errors.
    async fn look(&self) -> Result<(), Failure> {
        for queue in 0..self.compiled.chain.queues.len() {
            let cq = self.loaded.completions(crate::chain::QueueId(queue as u16));
            for completion in cq.poll(64).await? {
                if completion.status != Status::Success {
                    return Err(Failure::Stopped(completion));
                }
            }
        }
        Ok(())
    }

    /// Variables as they are.
    pub async fn variables(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let mut out = BTreeMap::new();
        let Some(cells) = self.loaded.region(self.compiled.cells) else { return Ok(out) };
        for (name, cell) in &self.compiled.variables {
            out.insert(name.clone(), cells.load(*cell).await?);
        }
        Ok(out)
    }

    /// Regions as they were before the program was started.
    pub fn regions_before(&self) -> BTreeMap<String, Memory> {
        let regions = self.compiled.regions.iter();
        let one = |(name, id): &(String, _)| {
            let (address, bytes) = self.loaded.data(*id)?;
            Some((name.clone(), Memory { addr: address.addr, bytes }))
        };
        regions.filter_map(one).collect()
    }

    /// Regions as they are.
    pub async fn regions(&self) -> Result<BTreeMap<String, Memory>, Failure> {
        let mut out = BTreeMap::new();
        for (name, id) in &self.compiled.regions {
            let Some(region) = self.loaded.region(*id) else { continue };
            let bytes = region.read(0, region.len() as usize).await?;
            out.insert(name.clone(), Memory { addr: region.addr(), bytes });
        }
        Ok(out)
    }
}

/// A client of a program.
pub struct Client {
    /// Its queue pair.
    pub qp: Qp,
    /// Where replies come to.
    pub buffer: Region,
    /// Where the program's regions are.
    pub regions: BTreeMap<String, u64>,
    message: Region,
    line: Line,
}

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Its immediate.
    pub imm: u32,
    /// Bytes that came.
    pub len: u32,
}

/// Connects to a program that is served under this name.
pub async fn connect(rdma: &Rdma, name: &str, limit: Duration) -> Result<Client, Failure> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let buffer = pd.region(BUFFER, Access::LOCAL_WRITE | Access::REMOTE_WRITE).await?;
    let message = pd.region(256, Access::LOCAL_WRITE).await?;
    let caps = Caps { max_recv_wr: RECEIVES, ..Caps::default() };
    let qp = pd.create_rc(&cq, caps).await?;
    let deadline = rdma.now().await? + limit;
    let own = buffer.remote().to_bytes();
    let (line, told) = qp.connect(name, &own, &Connect::default(), Some(deadline)).await?;
    let mut regions = BTreeMap::new();
    let mut rest = &told[..];
    while let Some((len, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked((*len).into()).ok_or(Error::Garbled("a region"))?;
        let (addr, after) = after.split_first_chunk::<8>().ok_or(Error::Garbled("a region"))?;
        regions.insert(String::from_utf8_lossy(name).into_owned(), u64::from_be_bytes(*addr));
        rest = after;
    }
    let receive = |wr_id| RecvRequest { wr_id, pieces: Vec::new() };
    qp.post_recv((0..RECEIVES.into()).map(receive).collect()).await?;
    Ok(Client { qp, buffer, regions, message, line })
}

impl Client {
    /// The values of a program's arguments: those given, and else the file's.
    pub fn arguments(&self, file: &File, given: &[(String, Atom)]) -> Result<Vec<u64>, String> {
        let value = |atom: &Atom| match atom {
            Atom::Number(number) => Ok(*number),
            Atom::Address(region, at) => match self.regions.get(region) {
                Some(addr) => Ok(addr + at),
                None => Err(format!("there is no region {region}")),
            },
            _ => Err("an argument is a number, or &REGION+OFFSET".to_owned()),
        };
        let params = &file.program.params;
        for (name, _) in given.iter().chain(&file.run) {
            if !params.iter().any(|param| param.name == *name) {
                return Err(format!("the program has no argument {name}"));
            }
        }
        let find = |name: &str| given.iter().chain(&file.run).find(|(other, _)| other == name);
        let one = |param: &crate::language::Param| match find(&param.name) {
            Some((_, atom)) => value(atom),
            None => Err(format!("argument {} has no value", param.name)),
        };
        params.iter().map(one).collect()
    }

    /// Sends the arguments.
    pub async fn ask(&self, message: &[u8]) -> Result<(), Failure> {
        self.message.write(0, message).await?;
        self.qp.send((&self.message, 0), message.len() as u32).await?;
        Ok(())
    }

    /// The next reply with an immediate; `None` if the program has gone, or the time is over first.
    pub async fn reply_or_end(&self, rdma: &Rdma, limit: Duration) -> Result<Option<Reply>, Failure> {
        let cq = self.qp.send_cq();
        let deadline = rdma.now().await? + limit;
        let woken = rdma.until(&[On::Cq(cq), On::Gone(&self.line)], Some(deadline)).await?;
        if woken == Some(0) { self.reply(rdma, Duration::ZERO).await } else { Ok(None) }
    }

    /// The next reply with an immediate; `None` if the time is over first.
    pub async fn reply(&self, rdma: &Rdma, limit: Duration) -> Result<Option<Reply>, Failure> {
        let cq = self.qp.send_cq();
        let deadline = rdma.now().await? + limit;
        loop {
            if let Some(completion) = cq.poll(1).await?.first() {
                if completion.status != Status::Success {
                    return Err(Failure::Stopped(*completion));
                }
                let imm = completion.immediate;
                return Ok(Some(Reply { imm, len: completion.byte_len }));
            }
            if rdma.until(&[On::Cq(cq)], Some(deadline)).await?.is_none() {
                return Ok(None);
            }
        }
    }
}
