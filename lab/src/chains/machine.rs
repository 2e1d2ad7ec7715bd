//! Turing machines (section 3.4): one loop of WQEs whose transition table is data. After its doorbell no
//! processor posts anything; the machine ends, or its queues are taken to ERR.
//!
//! ```text
//! ring 0   ADD laps          head's address -> READ in 1, WRITE in 3
//! ring 1   READ  tape[head]                 -> symbol: low byte of the READ in 2's address
//! ring 2   READ  table[state][symbol]       -> next state (its own address); what ring 3 writes and adds
//! ring 3   WRITE tape[head]   ADD head      ENABLE of the next lap, or of the end: as the transition says
//! ```
//! A cell of the tape is a byte, the symbol times the bytes of a transition; a row of the table has 256
//! bytes: so that the bytes of a transition's address are the state and the cell. Each ring's last WQEs wait
//! for its work and enable the next one, which is fetched only then; a counter in memory brings their indices
//! up, in another ring than the one that it changes.

use super::{Fault, Metric, Shared, text};
use adverb_rdma::{Connect, Duration, Error, On, QpAttr, QpAttrMask, QpState, Rdma, Region, SendOrder};
use adverb_redn::chain::{
    Chain, Done, Field, Form, Op, Peer, Piece, Place, QueueId, RegionId, Source, Until, Word, Wqe, WqeId,
    parts,
};
use adverb_redn::{Loaded, WqeOp};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// Bytes of a transition, and of a state's row.
const TRANSITION: usize = 32;
const ROW: usize = 256;
/// Cells of the tape; the head begins in the middle. With addresses at a multiple of this, two bytes of them
/// change.
const TAPE: usize = 1 << 16;
/// Blocks of each ring.
const BLOCKS: u32 = 8;
/// Rings of a lap.
const RINGS: usize = 4;
/// A lap takes longer than this: how long to sleep before the next look at a machine that goes on.
const LAP_LEAST: u64 = 1_000_000;
/// How long queues that were stopped are watched.
const WATCHED: Duration = Duration::from_us(100);

/// What a machine does in a state, at a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rule {
    write: u8,
    right: bool,
    /// `None` for the end.
    next: Option<u8>,
}

/// A machine: rules by state and symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    rules: Vec<Vec<Rule>>,
}

impl Machine {
    /// Of the usual text, such as `1RB1LB_1LA1RH`: for each state, and each symbol, what is written, where
    /// the head goes, and the next state; `H` is the end.
    pub fn parse(text: &str) -> Result<Machine, String> {
        let rows: Vec<&str> = text.split('_').collect();
        let rule = |part: &[u8]| match *part {
            [write @ b'0'..=b'7', way @ (b'L' | b'R'), next @ b'A'..=b'Z'] => {
                let next = (next != b'H').then(|| next - b'A');
                if next.is_some_and(|next| usize::from(next) >= rows.len()) {
                    return Err(format!("{text}: a rule leads to a state that there is not"));
                }
                Ok(Rule { write: write - b'0', right: way == b'R', next })
            }
            _ => Err(format!("{text}: rules are such as 1RB, of symbols 0 to 7 and states A to G")),
        };
        let row = |row: &&str| row.as_bytes().chunks(3).map(rule).collect::<Result<Vec<_>, _>>();
        let rules = rows.iter().map(row).collect::<Result<Vec<_>, _>>()?;
        let symbols = rules[0].len();
        let sound = rows.len() <= 7
            && (1..=8).contains(&symbols)
            && rules.iter().all(|row| row.len() == symbols)
            && rules.iter().flatten().all(|rule| usize::from(rule.write) < symbols);
        if sound { Ok(Machine { rules }) } else { Err(format!("{text}: states have different symbols")) }
    }

    /// The table as the loop reads it.
    fn table(&self) -> Vec<u8> {
        let mut table = vec![0; self.rules.len() * ROW];
        for (state, row) in self.rules.iter().enumerate() {
            for (symbol, rule) in row.iter().enumerate() {
                let move_by: u64 = if rule.right { 1 } else { u64::MAX };
                let (on, off) = (WqeOp::SendEnable as u8, WqeOp::Nop as u8);
                let (next, end) = if rule.next.is_some() { (on, off) } else { (off, on) };
                let at = state * ROW + symbol * TRANSITION;
                let bytes = [cell(rule.write), rule.next.unwrap_or(0), next, end];
                table[at..at + 4].copy_from_slice(&bytes);
                table[at + 4..at + 12].copy_from_slice(&move_by.to_be_bytes());
            }
        }
        table
    }
}

impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Machine, D::Error> {
        Machine::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A symbol as it stands on the tape.
fn cell(symbol: u8) -> u8 {
    symbol * TRANSITION as u8
}

/// The same machine step by step, by an interpreter that knows no RDMA.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    tape: Vec<u8>,
    head: usize,
    state: u8,
    steps: u64,
    ended: bool,
}

impl Run {
    fn new() -> Run {
        Run { tape: vec![0; TAPE], head: TAPE / 2, state: 0, steps: 0, ended: false }
    }

    /// Goes on until so many steps are done, or the machine ends.
    fn to(&mut self, machine: &Machine, steps: u64) {
        while self.steps < steps && !self.ended {
            let rule = machine.rules[usize::from(self.state)][usize::from(self.tape[self.head])];
            self.tape[self.head] = rule.write;
            // The tape is a ring.
            self.head = (self.head + if rule.right { 1 } else { TAPE - 1 }) % TAPE;
            self.steps += 1;
            match rule.next {
                Some(next) => self.state = next,
                None => self.ended = true,
            }
        }
    }

    /// Bytes of memory that are not as this run has them: cells, and the head's place. Memory in which a step
    /// is half done may have the next one's.
    fn differs(&self, next: &Run, tape: &[u8], head: u64) -> u64 {
        let symbols = self.tape.iter().zip(&next.tape).zip(tape);
        let wrong = symbols.filter(|((a, b), found)| cell(**a) != **found && cell(**b) != **found).count();
        let head = head as usize % TAPE;
        wrong as u64 + u64::from(head != self.head && head != next.head)
    }
}

/// What is in memory beside table and tape.
const LAPS: u64 = 0;
const HEAD: u64 = 8;
const SYMBOL: u64 = 16;
const DUMP: u64 = 32;

struct Program {
    chain: Chain,
    rings: [QueueId; RINGS],
    end: QueueId,
    words: RegionId,
    tape: RegionId,
    table: RegionId,
}

/// The loop. It knows of the machine only its table's bytes.
fn program(table: &[u8], fault: Option<Fault>) -> Program {
    let mut chain = Chain::new();
    let words = chain.memory("words", 64);
    let tape = chain.memory("tape", TAPE as u64);
    let rows = chain.memory("table", table.len() as u64);
    chain.data(rows, 0, table);
    let at = |at| Place::At(words, at);
    let (laps, head, dump) = (at(LAPS), at(HEAD), at(DUMP));
    chain.word(words, HEAD, Word::AddressOf(Place::At(tape, TAPE as u64 / 2)));
    let blocks = if fault == Some(Fault::Padded) { 2 * BLOCKS } else { BLOCKS };
    chain.data(words, LAPS, parts::lanes(0, blocks).to_ne_bytes());
    let rings = [0, 1, 2, 3].map(|n| chain.queue(&format!("ring{n}"), SendOrder::Managed, Peer::Itself));
    let end = chain.queue("end", SendOrder::Managed, Peer::Itself);
    let starter = chain.queue("starter", SendOrder::Cross, Peer::Itself);
    rings.iter().for_each(|ring| chain.recycle(*ring));
    // One completion before the last ring's own, so that all pairs have the same numbers.
    chain.complete_with(starter, rings[3]);
    let wqe = |ring: usize, at| WqeId { queue: rings[ring], at };
    let byte = |wqe, field, skip| Place::In(wqe, field, skip).piece(1);
    // WAIT and ENABLE at the end of each ring.
    let pair = |ring, wait, enable| (wqe(ring, wait), wqe(ring, enable));
    let no_order = fault == Some(Fault::NoOrder);
    let pairs =
        [pair(0, 4, 5), if no_order { pair(1, 3, 2) } else { pair(1, 2, 3) }, pair(2, 2, 3), pair(3, 3, 5)];
    let upkeep = |ring: usize| match fault {
        Some(Fault::NoUpkeep) if ring == 1 => Op::Nop(1),
        _ => parts::upkeep(laps, pairs[ring].0, pairs[ring].1, dump),
    };
    let (symbol, transition, write) = (wqe(1, 0), wqe(2, 0), wqe(3, 0));
    let (add, exit, next) = (wqe(3, 1), wqe(3, 4), wqe(3, 5));
    let address = |wqe| vec![byte(wqe, Field::RemoteAddress, 7), byte(wqe, Field::RemoteAddress, 6)];
    let middle = Place::At(tape, TAPE as u64 / 2);
    let mut push = |ring: usize, wqe: Wqe| {
        chain.push(rings[ring], wqe);
    };
    push(0, Wqe::new(Op::FetchAdd(laps, Word::Is(parts::lanes(1, blocks)), dump.piece(8))));
    push(0, Wqe::new(upkeep(3)));
    push(0, Wqe::new(Op::Read(head, address(symbol))));
    push(0, Wqe::new(Op::Read(head, address(write))).signaled());

    push(1, Wqe::new(Op::Read(middle, vec![byte(transition, Field::RemoteAddress, 7)])));
    push(1, Wqe::new(upkeep(0)).signaled());

    let what: Vec<Piece> = vec![
        at(SYMBOL).piece(1),
        byte(transition, Field::RemoteAddress, 6),
        byte(next, Field::Opcode, 0),
        byte(exit, Field::Opcode, 0),
        Place::In(add, Field::Swap, 0).piece(8),
    ];
    push(2, Wqe::new(Op::Read(Place::At(rows, 0), what)));
    push(2, Wqe::new(upkeep(1)).signaled());

    push(3, Wqe::new(Op::Write(Source::Pieces(vec![at(SYMBOL).piece(1)]), middle, None)));
    push(3, Wqe::new(Op::FetchAdd(head, Word::Is(0), dump.piece(8))));
    push(3, Wqe::new(upkeep(2)).signaled());

    for ring in 0..RINGS {
        close(&mut chain, ring, (&rings, end, blocks), ring == 1 && no_order);
        if blocks > BLOCKS {
            chain.push(rings[ring], Wqe::new(Op::Nop(BLOCKS as u8)));
        }
    }
    chain.push(end, Wqe::new(Op::Nop(1)).signaled());
    chain.push(starter, Wqe::new(Op::Nop(1)).signaled());
    chain.push(starter, Wqe::new(Op::Wait(Done::Index(rings[3], 0))));
    chain.push(starter, Wqe::new(Op::Enable(Until::Blocks(rings[0], blocks))));
    Program { chain, rings, end, words, tape, table: rows }
}

/// The end of a ring: waits for its work, and enables the next one. `swapped`, that is fetched before the
/// work is done.
fn close(
    chain: &mut Chain,
    ring: usize,
    (rings, end, blocks): (&[QueueId; RINGS], QueueId, u32),
    swapped: bool,
) {
    let last = ring + 1 == RINGS;
    let wait = Wqe::new(Op::Wait(Done::Index(rings[ring], u32::from(last))));
    let blocks = if last { 2 * blocks } else { blocks };
    let enable = Wqe::new(Op::Enable(Until::Blocks(rings[(ring + 1) % RINGS], blocks)));
    let exit = Wqe::new(Op::Enable(Until::Blocks(end, 1))).posted_as(Form::of(WqeOp::Nop));
    let all = match (swapped, last) {
        (true, _) => vec![enable, wait],
        (_, true) => vec![wait, exit, enable],
        (_, false) => vec![wait, enable],
    };
    for wqe in all {
        chain.push(rings[ring], wqe);
    }
}

/// Runs a machine until it ends, or has gone so many steps and is stopped, and compares memory with the
/// interpreter's.
pub async fn run(
    rdma: Rdma,
    log: Shared,
    (machine, limit): (Machine, u64),
    fault: Option<Fault>,
) -> Result<(), Error> {
    let Program { chain, rings, end, words, tape, table } = program(&machine.table(), fault);
    let pd = rdma.create_pd().await?;
    let loaded = Loaded::create(&rdma, &pd, chain).await.map_err(text)?;
    loaded.connect(&Connect { timeout: 0, ..Connect::default() }).await.map_err(text)?;
    let region = |id: RegionId| loaded.region(id).ok_or(Error::NoSuchObject("region"));
    let (words, tape, table) = (region(words)?, region(tape)?, region(table)?);
    if tape.addr() % TAPE as u64 != 0 || table.addr() % TAPE as u64 != 0 {
        return Err(Error::System("tape and table have to begin at a multiple of 64 KB".to_owned()));
    }
    if fault == Some(Fault::Posts) {
        begin(&rdma, &log).await?;
    }
    loaded.start().await.map_err(text)?;
    let begun = rdma.now().await?;
    begin(&rdma, &log).await?;
    let ended = wait(&rdma, &loaded, words, (end, limit)).await?;
    let took = rdma.now().await?.since(begun).as_ps();
    if !ended {
        stop(&rdma, &loaded, &rings, words).await?;
    }
    let laps = steps(words).await?;
    let mut said = Run::new();
    // Of a machine that was stopped the last step may be half done.
    said.to(&machine, if ended { laps } else { laps.saturating_sub(1) });
    let mut next = said.clone();
    next.to(&machine, laps);
    let found = tape.read(0, TAPE).await?;
    let head = words.load(HEAD).await?.wrapping_sub(tape.addr());
    let wrong = said.differs(&next, &found, head) + u64::from(said.ended != ended);
    let layout = loaded.layout();
    let blocks: u32 = rings.iter().map(|ring| layout.blocks(loaded.chain(), *ring)).sum();
    let mut log = log.borrow_mut();
    log.samples.push(took / laps.max(1));
    log.fact(Metric::Steps, laps as f64);
    log.fact(Metric::Short, if ended { 0.0 } else { limit.saturating_sub(laps) as f64 });
    log.fact(Metric::Marks, found.iter().filter(|cell| **cell != 0).count() as f64);
    log.fact(Metric::Wrong, wrong as f64);
    log.fact(Metric::Blocks, f64::from(blocks));
    log.fact(Metric::Halted, f64::from(u8::from(ended)));
    Ok(())
}

/// From here on posts are counted: a moment passes, so that whoever counts can look.
async fn begin(rdma: &Rdma, log: &Shared) -> Result<(), Error> {
    log.borrow_mut().begun = true;
    rdma.sleep(Duration::from_ps(1)).await
}

/// Laps so far.
async fn steps(words: &Region) -> Result<u64, Error> {
    Ok(words.load(LAPS).await? & 0xffff_ffff_ffff)
}

/// Waits until the machine ends. False if it has gone so many steps before, or has stood still.
async fn wait(
    rdma: &Rdma,
    loaded: &Loaded,
    words: &Region,
    (end, limit): (QueueId, u64),
) -> Result<bool, Error> {
    let mut seen = None;
    loop {
        let laps = steps(words).await?;
        if laps >= limit || seen == Some(laps) {
            return Ok(false);
        }
        seen = Some(laps);
        let least = Duration::from_ps((limit - laps).max(100) * LAP_LEAST);
        let deadline = rdma.now().await? + least;
        if rdma.until(&[On::Cq(loaded.completions(end))], Some(deadline)).await?.is_some() {
            return Ok(true);
        }
    }
}

/// Takes the rings to ERR, and looks that nothing goes on.
async fn stop(rdma: &Rdma, loaded: &Loaded, rings: &[QueueId], words: &Region) -> Result<(), Error> {
    for ring in rings {
        let qp = loaded.qp(*ring);
        let attr = QpAttr { state: QpState::Err, ..qp.query().await? };
        qp.modify(&attr, QpAttrMask::STATE).await?;
    }
    rdma.sleep(WATCHED).await?;
    let before = steps(words).await?;
    rdma.sleep(WATCHED).await?;
    match steps(words).await? == before {
        true => Ok(()),
        false => Err(Error::System("the loop goes on when its queues are in ERR".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(text: &str, steps: u64) -> Run {
        let machine = Machine::parse(text).unwrap();
        let mut run = Run::new();
        run.to(&machine, steps);
        run
    }

    /// What is known of busy beavers (Rado 1962, Brady 1983).
    #[test]
    fn the_interpreter_is_right_about_busy_beavers() {
        let known = [
            ("1RB1LB_1LA1RH", 6, 4),
            ("1RB1RH_1LB0RC_1LC1LA", 21, 5),
            ("1RB1LB_1LA0LC_1RH1LD_1RD0RA", 107, 13),
        ];
        for (text, steps, ones) in known {
            let run = ran(text, 1000);
            assert_eq!((run.steps, run.ended), (steps, true), "{text}");
            assert_eq!(run.tape.iter().filter(|symbol| **symbol == 1).count(), ones, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_machines_are_refused() {
        for text in ["", "1RB", "1RB1LB_1LA", "1RB3LB_1LA1RH", "1XB1LB_1LA1RH", "1RB1LBx_1LA1RH"] {
            assert!(Machine::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_that_differs_is_found() {
        let run = ran("1RB1LB_1LA1RH", 6);
        let mut tape: Vec<u8> = run.tape.iter().map(|symbol| cell(*symbol)).collect();
        assert_eq!(run.differs(&run, &tape, run.head as u64), 0);
        tape[TAPE / 2] ^= cell(1);
        assert_eq!(run.differs(&run, &tape, run.head as u64 + 1), 2);
    }
}
