//! WRs by kind that the compiler emits for RedN's constructs (table 2), of programs that are compiled and
//! loaded and have done what they say when they are counted.

use super::{Shared, text};
use adverb_rdma::{Duration, Error, Rdma};
use adverb_redn::language::lower::{Counts, Options};
use adverb_redn::language::{Compiled, compile, parse};
use adverb_redn::run::{connect, serve};
use serde::Deserialize;

/// A construct of the language.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Construct {
    /// `if`, with one WR in its body.
    If,
    /// The same, with two.
    IfTwo,
    /// A round of an unrolled loop that tests.
    Unrolled,
    /// A lap of a recycled loop that tests.
    Recycled,
}

/// How often the longer one of two unrolled loops goes round, and the shorter one.
const ROUNDS: [u32; 2] = [8, 4];
/// The argument for which all conditions hold.
const SOUGHT: u64 = 5;
/// How long a program may take.
const PATIENCE: Duration = Duration::from_ms(10);

impl Construct {
    /// A program with it, whose line 2 it is; of an unrolled loop with so many rounds.
    fn program(self, rounds: u32) -> Result<Compiled, Error> {
        let body = match self {
            Construct::If => "if x == 5 { mov done, 1 }".to_owned(),
            Construct::IfTwo => "if x == 5 { mov done, 1; mov more, 1 }".to_owned(),
            Construct::Unrolled => format!("loop unroll {rounds} {{ if x == 5 {{ mov done, 1 }} }}"),
            Construct::Recycled => "loop recycle { if 5 == 5 { mov done, 1 } }".to_owned(),
        };
        let file = parse(&format!("program counted(x: u48) {{\n{body}\n}}")).map_err(text)?;
        compile(&file, Options::default()).map_err(text)
    }

    /// Its copies, atomics and orders.
    fn counts(self) -> Result<[f64; 3], Error> {
        let kinds = |counts: Counts| [counts.copies, counts.atomics, counts.orders].map(f64::from);
        let compiled = self.program(ROUNDS[0])?;
        Ok(match self {
            Construct::If | Construct::IfTwo => {
                let line = compiled.lines.iter().find(|(line, _)| *line == 2);
                kinds(line.map(|(_, counts)| *counts).unwrap_or_default())
            }
            Construct::Unrolled => {
                let (more, less) = (kinds(compiled.counts), kinds(self.program(ROUNDS[1])?.counts));
                let rounds = f64::from(ROUNDS[0] - ROUNDS[1]);
                core::array::from_fn(|kind| (more[kind] - less[kind]) / rounds)
            }
            Construct::Recycled => {
                let mut lap = Counts::default();
                let rings = compiled.chain.queues.iter().filter(|queue| queue.recycled);
                rings.flat_map(|queue| &queue.wqes).for_each(|wqe| lap.add(&wqe.op));
                kinds(lap)
            }
        })
    }
}

/// Loads a program, waits until it has done what it says, and counts.
pub async fn count(rdma: Rdma, log: Shared, construct: Construct) -> Result<(), Error> {
    let served = serve(&rdma, "counted", construct.program(ROUNDS[0])?).await.map_err(text)?;
    let deadline = rdma.now().await? + PATIENCE;
    while served.variables().await.map_err(text)?.get("done") != Some(&1) {
        if rdma.now().await? > deadline {
            return Err(Error::System("the program does nothing".to_owned()));
        }
        rdma.sleep(Duration::from_us(1)).await?;
    }
    log.borrow_mut().kinds = construct.counts()?;
    Ok(())
}

/// Asks the program.
pub async fn ask(rdma: Rdma, construct: Construct) -> Result<(), Error> {
    let client = connect(&rdma, "counted", PATIENCE).await.map_err(text)?;
    client.ask(&construct.program(ROUNDS[0])?.message(&[SOUGHT])).await.map_err(text)?;
    client.reply_or_end(&rdma, PATIENCE).await.map(drop).map_err(text)
}
