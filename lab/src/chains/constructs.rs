//! RedN's constructs at full speed (table 3): conditionals one after another, and a loop in recycled queues.
//! Each is one serial chain, on queues that are connected to themselves.

use super::{Shared, text};
use adverb_rdma::{Connect, Error, On, Rdma, Region, SendOrder, Status};
use adverb_redn::chain::laps::{Lap, TwoStages};
use adverb_redn::chain::{
    Chain, Done, Form, Op, Peer, Place, QueueId, RegionId, Source, Until, Word, Wqe, parts,
};
use adverb_redn::{Loaded, WqeOp};

/// What the conditionals of a chain look for.
const KEY: u64 = 0x0102_0304_0506;

/// So many conditionals: a compare-and-swap each turns a NOP into a WRITE of the conditional's number, if it
/// `hits`. WAIT and ENABLE have the WRITE fetched only when the compare-and-swap is done, and a WAIT has the
/// next conditional begin when the WRITE is (1C + 1A + 3E, table 2).
fn conditionals(count: u32, hits: bool) -> (Chain, QueueId, RegionId) {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 64 + 16 * u64::from(count));
    let tests = chain.queue("tests", SendOrder::Cross, Peer::Itself);
    let acts = chain.queue("acts", SendOrder::Managed, Peer::Itself);
    let dump = Place::At(memory, 0).piece(8);
    let mut before = None;
    for n in 0..u64::from(count) {
        if let Some(act) = before {
            chain.push(tests, Wqe::new(Op::Wait(Done::Of(act))));
        }
        let (from, to) = (64 + 16 * n, 72 + 16 * n);
        chain.data(memory, from, (n + 1).to_ne_bytes());
        let write =
            Op::Write(Source::Pieces(vec![Place::At(memory, from).piece(8)]), Place::At(memory, to), None);
        let act = chain.push(acts, Wqe::new(write).posted_as(Form::nop(parts::big(KEY))).signaled());
        let sought = if hits { KEY } else { KEY + 1 };
        let old = Word::Control(act, Form::nop(parts::big(sought)));
        let new = Word::Control(act, Form::of(WqeOp::Write));
        let test = Op::CompareSwap(Place::In(act, adverb_redn::chain::Field::Control, 0), (old, new), dump);
        let test = chain.push(tests, Wqe::new(test).signaled());
        chain.push(tests, Wqe::new(Op::Wait(Done::Of(test))));
        chain.push(tests, Wqe::new(Op::Enable(Until::Through(act))));
        before = Some(act);
    }
    (chain, acts, memory)
}

/// Runs conditionals, and looks that each has done what it had to.
pub async fn run_conditionals(rdma: Rdma, log: Shared, count: u32, hits: bool) -> Result<(), Error> {
    let (chain, acts, memory) = conditionals(count, hits);
    let loaded = load(&rdma, chain).await?;
    let cq = loaded.completions(acts);
    let mut left = count;
    while left > 0 {
        rdma.until(&[On::Cq(cq)], None).await?;
        let now = rdma.now().await?.as_ps();
        for completion in cq.poll(16).await? {
            if completion.status != Status::Success {
                return Err(Error::of(&completion));
            }
            left -= 1;
            log.borrow_mut().done.push(now);
        }
    }
    let memory = region(&loaded, memory)?;
    for n in 0..u64::from(count) {
        let written = memory.load(72 + 16 * n).await?;
        if written != if hits { n + 1 } else { 0 } {
            return Err(Error::System(format!("conditional {n} wrote {written}")));
        }
    }
    Ok(())
}

/// What stands in the loop's WRITE. Its highest byte, of 48 bits, lies in the operation modifier, which must
/// be 0 in a WRITE that is executed.
const MARK: u64 = 0x02_0304_0506;

/// A loop in two recycled rings, which has no end: each lap tests, and does its WRITE unless the test has
/// turned it off. The laps' number is kept by an ADD and two READs that scatter it into the indices of WAITs
/// and ENABLEs (3C + 2A + 4E, table 2).
fn recycled(hits: bool) -> (Chain, RegionId, u32) {
    let mut chain = Chain::new();
    let memory = chain.memory("memory", 128);
    let dump = Place::At(memory, 32);
    let stages = TwoStages::new(&mut chain, ["tests", "acts"]);
    let act = stages.in_second(0);
    let on = Form { op: WqeOp::Write, operand: Some(parts::big(MARK)) };
    let sought = Form { operand: Some(parts::big(if hits { MARK } else { MARK + 1 })), ..on };
    let (old, off) = (Word::Control(act, sought), Word::Control(act, Form::of(WqeOp::Nop)));
    let place = Place::In(act, adverb_redn::chain::Field::Control, 0);
    let test = Op::CompareSwap(place, (old, off), dump.plus(16).piece(8));
    let from = Source::Pieces(vec![Place::At(memory, 8).piece(8)]);
    let write = Wqe::new(Op::Write(from, Place::At(memory, 0), None)).posted_as(on);
    let lap = Lap { first: vec![Wqe::new(test).fenced()], second: vec![write], next: None };
    let blocks = stages.lay_out(&mut chain, lap, (memory, 8), dump);
    (chain, memory, blocks)
}

/// Lets the loop go round so many times, and then takes its queues away.
pub async fn run_recycled(rdma: Rdma, log: Shared, laps: u32, hits: bool) -> Result<(), Error> {
    let (chain, memory, blocks) = recycled(hits);
    let loaded = load(&rdma, chain).await?;
    let memory = region(&loaded, memory)?;
    let begun = memory.load(8).await?;
    let mut seen = begun;
    let lap = parts::lanes(1, blocks);
    let mut passed = 0u64;
    while passed < laps.into() {
        rdma.until(&[On::Word(memory, 8, seen)], None).await?;
        let now = rdma.now().await?.as_ps();
        seen = memory.load(8).await?;
        // The lower lane counts laps; a program that is slower than the loop misses some.
        let before = core::mem::replace(&mut passed, seen.wrapping_sub(begun) & 0xffff_ffff);
        log.borrow_mut().done.extend((before..passed).map(|_| now));
    }
    // The other lane has kept step, and the last lap's WRITE may be under way.
    let written = memory.load(0).await?;
    let counted = seen.wrapping_sub(begun) == lap.wrapping_mul(passed);
    let wrote = if hits { written == 0 } else { seen.wrapping_sub(written) <= lap };
    match counted && wrote {
        true => Ok(()),
        false => {
            Err(Error::System(format!("after {laps} laps the counter is {seen:#x}, written {written:#x}")))
        }
    }
}

async fn load(rdma: &Rdma, chain: Chain) -> Result<Loaded, Error> {
    let pd = rdma.create_pd().await?;
    let loaded = Loaded::create(rdma, &pd, chain).await.map_err(text)?;
    loaded.connect(&Connect { timeout: 0, ..Connect::default() }).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    Ok(loaded)
}

fn region(loaded: &Loaded, region: RegionId) -> Result<&Region, Error> {
    loaded.region(region).ok_or(Error::NoSuchObject("region"))
}
