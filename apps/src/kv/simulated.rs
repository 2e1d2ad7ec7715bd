//! Lookups in the simulator: the same text that reads a replica over real NICs, against an owner that
//! overwrites its records while they are read. Nothing torn, and nothing of another key, may be taken for
//! a value.

use super::layout::{BUCKET_LEN, Layout, Place, Record, hash, record_len};
use super::lookup::{Found, Met, Trouble, Which, look_up};
use adverb_rdma::{Duration, Error, Gid, Grant, On, Rdma, Rights};
use adverb_sim::host::one_rma::RmaConfig;
use adverb_sim::program::{Doing, Mortal, Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use std::cell::RefCell;
use std::rc::Rc;

const LAYOUT: Layout = Layout { buckets: 1, log_len: 2560, value_max: 2048, seed: 3 };
const KEYS: [&[u8]; 2] = [b"key", b"another"];

/// A value that says which it is in every byte.
fn value(turn: u64) -> Vec<u8> {
    vec![turn as u8; 900 + (turn % 1000) as usize]
}

/// A replica that gives its keys to whoever asks, and sets its two keys over and over.
async fn replica(rdma: Rdma) -> Result<(), Error> {
    let log_at = BUCKET_LEN as u64;
    let memory = rdma.allocate(log_at + LAYOUT.log_len).await?;
    let listener = rdma.listen("replica").await?;
    let mut lines = Vec::new();
    let mut head = 0;
    for turn in 1u64.. {
        let key = KEYS[turn as usize % 2];
        let value = value(turn);
        let mut record = vec![0; record_len(key.len(), value.len())];
        let hashed = hash(LAYOUT.seed, key);
        Record { version: turn, hash: hashed, key, value: &value }.emit(&mut record);
        if head + record.len() as u64 > LAYOUT.log_len {
            head = 0;
        }
        // Another key's record may lie there: whoever reads it meanwhile must notice.
        memory.write(log_at + head, &record).await?;
        let word = Place { tag: Place::tag_of(hashed), offset: head, len: record.len() }.word();
        memory.store(turn % 2 * 8, word.to_le()).await?;
        head += record.len() as u64;
        let next = rdma.now().await? + Duration::from_us(rdma.random().await? % 8);
        match rdma.until(&[On::Stop, On::Asked(&listener)], Some(next)).await? {
            Some(0) => return Ok(()),
            Some(_) => {
                let Some(asked) = listener.try_accept().await? else { continue };
                let (gid, pid) = asked.attributes().split_first_chunk::<16>().ok_or(Error::Left)?;
                let peer = (Gid(*gid), u32::from_be_bytes(pid.try_into().map_err(|_| Error::Left)?));
                let index = memory.grant(0..log_at, Rights::READ, peer.0, peer.1).await?;
                let log = log_at..log_at + LAYOUT.log_len;
                let data = memory.grant(log, Rights::READ, peer.0, peer.1).await?;
                lines.push(asked.reply(&[&index.to_bytes()[..], &data.to_bytes()].concat()).await?);
            }
            None => {}
        }
    }
    Ok(())
}

#[derive(Default)]
struct Seen {
    hits: u64,
    misses: u64,
    torn: u64,
}

async fn client(rdma: Rdma, seen: Rc<RefCell<Seen>>) -> Result<(), Error> {
    let device = rdma.device().await?;
    let question = [&device.gid.0[..], &device.pid.to_be_bytes()].concat();
    let (_line, told) = rdma.ask("replica", &question, None).await?;
    let (index, data) = told.split_at(told.len() / 2);
    let grant = |bytes| Grant::from_bytes(bytes).ok_or(Error::Garbled("a grant"));
    let (index, data) = (grant(index)?, grant(data)?);
    let memory = rdma.allocate(LAYOUT.record_max() as u64).await?;
    let mut last = [0; 2];
    for turn in 0..300 {
        let read = async |which, offset, len: usize| {
            let grant = if which == Which::Index { &index } else { &data };
            let report = memory.get(0..len as u64, grant, offset, None).await?;
            assert!(report.end.is_ok(), "{}", report.end);
            memory.read(0, len).await
        };
        let met = |what| seen.borrow_mut().torn += u64::from(what == Met::Torn);
        match look_up(&LAYOUT, KEYS[turn % 2], met, read).await {
            Ok(Found::Hit(found)) => {
                let of = u64::from(found[0]);
                assert!(found.iter().all(|byte| u64::from(*byte) == of), "bytes of several values");
                assert_eq!(of as usize % 2, turn % 2, "the value of another key");
                // Turns count modulo 256; a client sees them in order.
                let ahead = (of as u8).wrapping_sub(last[turn % 2]);
                assert!(ahead < 128, "an older value than was seen before");
                last[turn % 2] = of as u8;
                seen.borrow_mut().hits += 1;
            }
            Ok(Found::Miss) => seen.borrow_mut().misses += 1,
            Err(Trouble::Torn) => {}
            Err(Trouble::Read(error)) => return Err(error),
        }
    }
    Ok(())
}

#[test]
fn lookups_race_with_a_replica_in_virtual_time() {
    let mut all = Seen::default();
    for seed in 0..20 {
        let cable = CableKind { rate: 10_000_000_000, delay: Duration::from_us(1) };
        let mut config = Config::new(Topology::two_hosts(cable));
        (config.payload, config.seed, config.one_rma) = (true, seed, Some(RmaConfig::default()));
        // Copies take time, so that they are torn.
        config.hardware.cpu_copy = 16_000_000_000;
        let mut sim = Sim::new(config).unwrap();
        let seen = Rc::new(RefCell::new(Seen::default()));
        let sees = seen.clone();
        let programs = vec![
            Start::new("replica", 0, replica).serving().mortal(Mortal::Never),
            Start::new("client", 1, move |rdma| client(rdma, sees.clone())).mortal(Mortal::Never),
        ];
        sim.set_programs(Setup { programs, exchange_ps: 1_000_000, seed, ..Setup::default() });
        let mut end = 0;
        while !sim.programs_ended() {
            end += 1_000_000_000;
            assert!(end < 1_000_000_000_000, "seed {seed} does not end");
            sim.run(end, u64::MAX);
        }
        let client = sim.programs().find(|(name, ..)| *name == "client").unwrap().1.clone();
        assert_eq!(client, Doing::Ended(Ok(())), "seed {seed}");
        let seen = seen.borrow();
        all.hits += seen.hits;
        all.misses += seen.misses;
        all.torn += seen.torn;
    }
    println!("{} hits, {} misses, {} torn", all.hits, all.misses, all.torn);
    assert!(all.hits > 1000 && all.torn > 20, "{} hits, {} torn", all.hits, all.torn);
}
