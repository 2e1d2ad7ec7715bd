//! Programs of RedN's language: how many WRs of which kind they are compiled to (table 7), and whether
//! memory and replies are afterwards what an interpreter says that knows no RDMA.

use super::{Fault, Metric, Shared, start, text};
use adverb_rdma::{Duration, Error, On, Rdma};
use adverb_redn::language::interpret::{Memory, interpret};
use adverb_redn::language::lower::{Bug, Counts, Options};
use adverb_redn::language::{Atom, Compiled, File, compile, parse};
use adverb_redn::run::{connect, serve};
use adverb_sim::program::Start;
use std::collections::BTreeMap;

/// Where the server can be asked.
const NAME: &str = "program";
/// What a program may take.
const LIMIT: Duration = Duration::from_ms(100);
/// How long a client waits for a reply more.
const PATIENCE: Duration = Duration::from_us(200);
/// Statements that the interpreter does at most.
const STEPS: u64 = 1_000_000;

/// A program, and how it is made wrong on purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub file: File,
    pub bug: Option<Bug>,
}

impl Source {
    pub fn new(source: &str, fault: Option<Fault>) -> Result<Source, String> {
        let file = parse(source).map_err(|error| error.to_string())?;
        let bug = match fault {
            None => None,
            Some(Fault::NoFence) => Some(Bug::NoFence),
            Some(Fault::NoStage) => Some(Bug::NoStage),
            Some(Fault::NoRestore) => Some(Bug::NoRestore),
            Some(Fault::Indexed) => Some(Bug::Indexed),
            Some(_) => {
                let known = "fault: no-fence, no-stage, no-restore or indexed of a compiled program";
                return Err(known.to_owned());
            }
        };
        let source = Source { file, bug };
        source.compile(true).map(|_| source)
    }

    fn compile(&self, finish: bool) -> Result<Compiled, String> {
        compile(&self.file, Options { finish, bug: self.bug }).map_err(|error| error.to_string())
    }

    /// WRs of a line.
    pub fn counts(&self, line: u32) -> Result<Counts, String> {
        let compiled = self.compile(false)?;
        let found = compiled.lines.iter().find(|(other, _)| *other == line);
        found.map(|(_, counts)| *counts).ok_or_else(|| format!("line {line} is no statement"))
    }

    /// The arguments' values, in the file's order of parameters.
    fn arguments(&self, regions: &BTreeMap<String, Memory>) -> Result<Vec<u64>, Error> {
        let value = |atom: &Atom| match atom {
            Atom::Number(number) => Some(*number),
            Atom::Address(region, at) => regions.get(region).map(|memory| memory.addr + at),
            _ => None,
        };
        let of = |name: &str| self.file.run.iter().find(|(other, _)| other == name).map(|(_, atom)| atom);
        let params = self.file.program.params.iter();
        params.map(|param| of(&param.name).and_then(value).ok_or(Error::Garbled("an argument"))).collect()
    }
}

/// The server and the client of a program; none of one that is refused.
pub fn programs(source: &str, fault: Option<Fault>, log: &Shared) -> Vec<Start> {
    let Ok(source) = Source::new(source, fault) else { return Vec::new() };
    let other = source.clone();
    let server = start("server", 1, log, move |rdma, log| Box::pin(run(rdma, log, source.clone())));
    let client = start("client", 0, log, move |rdma, log| Box::pin(ask(rdma, log, other.clone())));
    vec![server, client]
}

/// Serves the program until its end, and says how many bytes and numbers are not as the interpreter has them.
/// Of a program that is wrong on purpose whatever stops it counts as wrong.
async fn run(rdma: Rdma, log: Shared, source: Source) -> Result<(), Error> {
    match judged(&rdma, &log, &source).await {
        Err(_) if source.bug.is_some() => log.borrow_mut().fact(Metric::Wrong, f64::INFINITY),
        Err(error) => return Err(error),
        Ok(wrong) => log.borrow_mut().fact(Metric::Wrong, wrong as f64),
    }
    Ok(())
}

async fn judged(rdma: &Rdma, log: &Shared, source: &Source) -> Result<u64, Error> {
    let served = serve(rdma, NAME, source.compile(true).map_err(Error::System)?).await.map_err(text)?;
    log.borrow_mut().begun = true;
    let before = served.regions().await.map_err(text)?;
    served.ended(rdma, LIMIT).await.map_err(text)?.ok_or(Error::NoAnswer)?;
    let (variables, regions) =
        (served.variables().await.map_err(text)?, served.regions().await.map_err(text)?);
    rdma.until(&[On::Gone(&served.line), On::Stop], None).await?;
    let arguments = source.arguments(&before)?;
    let said = interpret(&source.file.program, &arguments, before, STEPS);
    if let Some(why) = said.stopped {
        return Err(Error::System(why));
    }
    let differs = |(name, memory): (&String, &Memory)| {
        let said = said.regions.get(name).map_or(&[][..], |memory| &memory.bytes);
        memory.bytes.iter().zip(said).filter(|(a, b)| a != b).count() as u64
    };
    let bytes: u64 = regions.iter().map(differs).sum();
    let other = |(name, value): &(&String, &u64)| said.variables.get(*name).copied().unwrap_or(0) != **value;
    let numbers = variables.iter().filter(other).count() as u64;
    let found = &log.borrow().replies;
    let last = said.replies.last().map(|(bytes, _)| bytes) == found.last().map(|(bytes, _)| bytes);
    let imms: Vec<u32> = said.replies.iter().map(|(_, imm)| imm.unwrap_or(0)).collect();
    let same = last && imms == found.iter().map(|(_, imm)| *imm).collect::<Vec<_>>();
    Ok(bytes + numbers + u64::from(!same))
}

/// Asks for the program, and takes its replies.
async fn ask(rdma: Rdma, log: Shared, source: Source) -> Result<(), Error> {
    let compiled = source.compile(true).map_err(Error::System)?;
    let client = connect(&rdma, NAME, LIMIT).await.map_err(text)?;
    let arguments = client.arguments(&source.file, &[]).map_err(Error::System)?;
    let begun = rdma.now().await?;
    client.ask(&compiled.message(&arguments)).await.map_err(text)?;
    while let Some(reply) = client.reply(&rdma, PATIENCE).await.map_err(text)? {
        let took = rdma.now().await?.since(begun).as_ps();
        let bytes = client.buffer.read(0, reply.len as usize).await?;
        let mut log = log.borrow_mut();
        log.samples.push(took);
        log.replies.push((bytes, reply.imm));
    }
    Ok(())
}
