//! Programs that use 1RMA on simulated hosts, beside queue pairs or without: memory, grants, transfers, and
//! what becomes of them when their peer is killed.

use adverb_rdma::{Duration, Error, Gid, Grant, On, Rdma, Report, Rights};
use adverb_sim::host::one_rma::RmaConfig;
use adverb_sim::program::{Doing, Fault, Mortal, Setup, Start, What};
use adverb_sim::{CableKind, Config, Sim, Topology};
use std::cell::RefCell;
use std::rc::Rc;

const BYTES: u64 = 20_000;

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 % 251) as u8).collect()
}

/// Lets whoever asks read and write its memory.
async fn own(rdma: Rdma) -> Result<(), Error> {
    let memory = rdma.allocate(BYTES).await?;
    memory.write(0, &pattern()).await?;
    let listener = rdma.listen("owner").await?;
    let mut lines = Vec::new();
    while rdma.until(&[On::Stop, On::Asked(&listener)], None).await? != Some(0) {
        let Some(asked) = listener.try_accept().await? else { continue };
        let (gid, pid) = asked.attributes().split_first_chunk::<16>().ok_or(Error::Garbled("an address"))?;
        let pid = u32::from_be_bytes(pid.try_into().map_err(|_| Error::Garbled("a process"))?);
        let grant = memory.grant(0..BYTES, Rights::READ | Rights::WRITE, Gid(*gid), pid).await?;
        lines.push(asked.reply(&grant.to_bytes()).await?);
    }
    Ok(())
}

async fn ask(rdma: &Rdma) -> Result<(adverb_rdma::Line, Grant), Error> {
    let device = rdma.device().await?;
    let question = [&device.gid.0[..], &device.pid.to_be_bytes()].concat();
    let (line, told) = rdma.ask("owner", &question, None).await?;
    Ok((line, Grant::from_bytes(&told).ok_or(Error::Garbled("a grant"))?))
}

async fn read(rdma: Rdma, reports: Rc<RefCell<Vec<Report>>>) -> Result<(), Error> {
    let (_line, grant) = ask(&rdma).await?;
    let memory = rdma.allocate(BYTES).await?;
    let report = memory.get(0..BYTES, &grant, 0, None).await?;
    assert!(report.end.is_ok(), "{}", report.end);
    assert_eq!(memory.read(0, BYTES as usize).await?, pattern());
    reports.borrow_mut().push(report);
    memory.write(8, b"hello").await?;
    assert!(memory.put(8..13, &grant, 100, None).await?.end.is_ok());
    assert!(memory.get(50..60, &grant, 98, None).await?.end.is_ok());
    assert_eq!(&memory.read(52, 5).await?, b"hello");
    // A mistake is refused at once, and nothing is sent.
    let beyond = memory.get(0..BYTES, &grant, 1, None).await;
    assert!(matches!(beyond, Err(Error::Range { .. })), "{beyond:?}");
    // Until the owner is killed; then its memory is nobody's any more.
    loop {
        rdma.sleep(Duration::from_us(50)).await?;
        let report = memory.get(0..64, &grant, 0, None).await?;
        reports.borrow_mut().push(report);
        if !report.end.is_ok() {
            return Ok(());
        }
    }
}

/// Somebody else's grant is worth nothing.
async fn steal(rdma: Rdma, reports: Rc<RefCell<Vec<Report>>>) -> Result<(), Error> {
    let question = [&[1; 16][..], &1u32.to_be_bytes()].concat();
    let (_line, told) = rdma.ask("owner", &question, None).await?;
    let grant = Grant::from_bytes(&told).ok_or(Error::Garbled("a grant"))?;
    let memory = rdma.allocate(64).await?;
    let report = memory.get(0..64, &grant, 0, None).await?;
    reports.borrow_mut().push(report);
    assert_eq!(memory.read(0, 64).await?, [0; 64]);
    Ok(())
}

/// What readers and the thief were told, and the trace.
fn run(beside_queues: bool, seed: u64) -> (Vec<Report>, Vec<Report>, u64) {
    let mut config =
        Config::new(Topology::star(3, CableKind { rate: 100_000_000_000, delay: Duration::from_ns(500) }));
    config.payload = true;
    config.seed = seed;
    config.one_rma = Some(RmaConfig { beside_queues, ..RmaConfig::default() });
    let mut sim = Sim::new(config).unwrap();
    let (read_by, stolen) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let (reports, thief) = (read_by.clone(), stolen.clone());
    sim.set_programs(Setup {
        programs: vec![
            Start::new("owner", 0, own).serving().mortal(Mortal::Once),
            Start::new("reader", 1, move |rdma| read(rdma, reports.clone())).mortal(Mortal::Once),
            Start::new("thief", 2, move |rdma| steal(rdma, thief.clone())).mortal(Mortal::Once),
        ],
        faults: vec![Fault { at: 2_000_000_000, what: What::Kill(0, None) }],
        exchange_ps: 1_000_000,
        seed,
        ..Setup::default()
    });
    sim.run(1_000_000_000_000, u64::MAX);
    for (name, doing, ..) in sim.programs().filter(|(name, ..)| *name != "owner") {
        assert_eq!(*doing, Doing::Ended(Ok(())), "{name}");
    }
    sim.check_invariants();
    let reports = (read_by.take(), stolen.take());
    (reports.0, reports.1, sim.trace_hash())
}

#[test]
fn transfers_move_bytes_and_end_with_their_owner() {
    for beside_queues in [true, false] {
        let (read, stolen, hash) = run(beside_queues, 7);
        assert_eq!((read[0].bytes, read[0].commands), (BYTES, 5), "4 KB each");
        assert!(read.len() > 5 && read[1..read.len() - 1].iter().all(|report| report.end.is_ok()));
        assert!(!read.last().unwrap().end.is_ok(), "the owner was killed");
        assert!(!stolen[0].end.is_ok(), "a key is one process's of one host");
        assert_eq!(run(beside_queues, 7).2, hash, "a seed replays a run");
    }
}
