//! Native programs over 1RMA NICs: what `adverb_rdma` promises of `until`, of `listen` and `ask`, over real
//! sockets and threads, in the NIC's own executor and in one that knows nothing of it.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rdma::{Duration, Error, Gid, Grant, Memory, On, Rdma, Rights};
use adverb_rma::{Programs, Rma};
use common::{Folder, all, block_on, pair, settings};
use std::net::TcpListener;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// A free address for the exchange.
fn rendezvous() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Which executor runs a program.
#[derive(Clone, Copy, Debug)]
enum Executor {
    Own,
    Other,
}

/// Runs a program over a NIC.
fn run<R>(executor: Executor, rma: &Arc<Rma>, program: impl AsyncFnOnce(Rdma, Rc<Programs>) -> R) -> R {
    let programs = Programs::new(rma.clone());
    let future = program(Rdma::new(programs.clone()), programs);
    match executor {
        Executor::Own => rma.block_on(future),
        Executor::Other => block_on(future),
    }
}

const WORD: u64 = 4000;

async fn soon(rdma: &Rdma) -> Result<Option<adverb_rdma::Instant>, Error> {
    Ok(Some(rdma.now().await? + Duration::from_ms(20_000)))
}

/// Gives its memory to whoever asks, and sleeps until that one has written and left.
async fn serve(rdma: Rdma, name: String) -> Result<Vec<u64>, Error> {
    let memory: Memory = rdma.allocate(4096).await?;
    let listener = rdma.listen(&name).await?;
    let asked = listener.accept().await?;
    let (gid, pid) = asked.attributes().split_first_chunk::<16>().ok_or(Error::Garbled("a device"))?;
    let pid = u32::from_be_bytes(pid.try_into().map_err(|_| Error::Garbled("a device"))?);
    let grant = memory.grant(0..4096, Rights::READ | Rights::WRITE, Gid(*gid), pid).await?;
    let line = asked.reply(&grant.to_bytes()).await?;
    let mut seen = vec![0];
    loop {
        let last = seen[seen.len() - 1];
        let on = [On::Stop, On::Word(&memory, WORD, last), On::Gone(&line)];
        match rdma.until(&on, soon(&rdma).await?).await? {
            Some(1) => seen.push(memory.load(WORD).await?),
            Some(2) => return Ok(seen),
            other => panic!("{other:?} instead of a write or the peer's end"),
        }
        // Tells the peer to go on, by a word that the peer does not wait for: it reads it.
        memory.store(0, seen[seen.len() - 1]).await?;
    }
}

async fn write_words(rdma: Rdma, name: String) -> Result<(), Error> {
    let device = rdma.device().await?;
    let memory = rdma.allocate(4096).await?;
    let question = [&device.gid.0[..], &device.pid.to_be_bytes()].concat();
    let (_line, told) = rdma.ask(&name, &question, soon(&rdma).await?).await?;
    let grant = Grant::from_bytes(&told).ok_or(Error::Garbled("a grant"))?;
    for word in 1..=20u64 {
        memory.store(8, word).await?;
        assert!(memory.put(8..16, &grant, WORD, None).await?.end.is_ok());
        while memory.load(16).await? != word {
            assert!(memory.get(16..24, &grant, 0, None).await?.end.is_ok());
        }
    }
    Ok(())
}

#[test]
fn programs_meet_and_a_peers_write_ends_a_wait() {
    for (test, server, client) in [(1, Executor::Own, Executor::Other), (2, Executor::Other, Executor::Own)] {
        let folder = Folder::new(&format!("program-{test}"));
        let (owner, peer) = pair(&folder, test);
        let (name, there) = (rendezvous(), Arc::new(owner));
        let asked = name.clone();
        let serving =
            std::thread::spawn(move || run(server, &there, async move |rdma, _| serve(rdma, name).await));
        run(client, &Arc::new(peer), async |rdma, _| write_words(rdma, asked).await).unwrap();
        let seen = serving.join().unwrap().unwrap();
        assert_eq!(seen, (0..=20).collect::<Vec<_>>(), "each write was noticed, and none twice");
    }
}

#[test]
fn deadlines_come_stops_are_heard_and_nobody_spins_meanwhile() {
    for (test, executor) in [(3, Executor::Own), (4, Executor::Other)] {
        let folder = Folder::new(&format!("program-{test}"));
        let rma = Arc::new(Rma::open(settings(&folder, test, 1)).unwrap());
        run(executor, &rma, async |rdma, programs| {
            let memory = rdma.allocate(64).await?;
            let start = Instant::now();
            let rounds = rma.counters().1.rounds;
            let limit = rdma.now().await? + Duration::from_ms(300);
            let woken = rdma.until(&[On::Stop, On::Word(&memory, 0, 0)], Some(limit)).await?;
            let (slept, rounds) = (start.elapsed().as_millis(), rma.counters().1.rounds - rounds);
            assert_eq!(woken, None);
            assert!((300..10_000).contains(&slept), "{slept} ms");
            // A round takes a microsecond or two: who spins makes far more in this time.
            assert!(rounds < 10_000, "{rounds} rounds in {slept} ms, {executor:?}");
            // What holds before is not missed, and a word that the program itself changes is a change.
            memory.store(0, 1).await?;
            assert_eq!(rdma.until(&[On::Stop, On::Word(&memory, 0, 0)], None).await?, Some(1));
            let stopper = programs.stopper();
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(30));
                stopper.stop();
            });
            assert_eq!(rdma.until(&[On::Word(&memory, 0, 1), On::Stop], None).await?, Some(1));
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

#[test]
fn memory_of_a_file_is_the_same_bytes_wherever_it_begins() {
    let folder = Folder::new("program-5");
    let rma = Arc::new(Rma::open(settings(&folder, 5, 1)).unwrap());
    run(Executor::Own, &rma, async |rdma, _| {
        let file = rdma.create_file(8192).await?;
        let whole = rdma.allocate_of_file(&file, 0, 8192).await?;
        let end = rdma.allocate_of_file(&rdma.file(file.number()), 4096, 4096).await?;
        end.store(8, 77).await?;
        assert_eq!(whole.load(4104).await?, 77);
        assert!(matches!(end.load(4096).await, Err(Error::Range { .. })));
        // The NIC knows it at the right place: a transfer to itself reads what lies at its end.
        let device = rdma.device().await?;
        let grant = end.grant(0..4096, Rights::READ, device.gid, device.pid).await?;
        assert!(whole.get(0..16, &grant, 0, None).await?.end.is_ok());
        assert_eq!((whole.load(0).await?, whole.load(8).await?), (0, 77));
        for (at, len) in [(0, 8193), (8192, 8), (0, 0), (u64::MAX - 7, 8)] {
            assert!(rdma.allocate_of_file(&file, at, len).await.is_err(), "{len} at {at}");
        }
        assert!(rdma.allocate_of_file(&rdma.file(-1), 0, 8).await.is_err());
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn what_it_cannot_do_it_says() {
    let folder = Folder::new("program-6");
    let rma = Arc::new(Rma::open(settings(&folder, 6, 1)).unwrap());
    let name = rendezvous();
    run(Executor::Own, &rma, async |rdma, _| {
        assert!(matches!(rdma.create_pd().await, Err(Error::Unsupported(_))));
        assert!(matches!(rdma.create_cq(4).await, Err(Error::Unsupported(_))));
        assert!(matches!(rdma.listen("nowhere").await, Err(Error::System(_))));
        let limit = rdma.now().await? + Duration::from_ms(60);
        assert!(matches!(rdma.ask(&name, b"", Some(limit)).await, Err(Error::NoAnswer)));
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_store_by_the_program_itself_wakes_another_of_its_tasks() {
    for (test, executor) in [(7, Executor::Own), (8, Executor::Other)] {
        let folder = Folder::new(&format!("program-{test}"));
        let rma = Arc::new(Rma::open(settings(&folder, test, 1)).unwrap());
        run(executor, &rma, async |rdma, _| {
            let memory = &rdma.allocate(4096).await?;
            for (at, bytes) in [(64, false), (128, true)] {
                let limit = soon(&rdma).await?;
                let waits = async {
                    let woken = rdma.until(&[On::Stop, On::Word(memory, at, 0)], limit).await?;
                    assert_eq!(woken, Some(1), "the store is noticed, by bytes: {bytes}");
                    Ok::<_, Error>(())
                };
                let stores = async {
                    // The other task waits by then.
                    rdma.sleep(Duration::from_ms(20)).await?;
                    if bytes { memory.write(at, &[7; 8]).await } else { memory.store(at, 7).await }
                };
                let both: [Pin<Box<dyn Future<Output = _>>>; 2] = [Box::pin(waits), Box::pin(stores)];
                all(both).await.into_iter().collect::<Result<(), Error>>()?;
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

#[test]
fn a_store_through_one_driver_wakes_who_waits_at_another_of_the_same_nic() {
    let folder = Folder::new("program-9");
    let rma = Arc::new(Rma::open(settings(&folder, 9, 1)).unwrap());
    let (number, told) = std::sync::mpsc::channel();
    let (waits, ready) = std::sync::mpsc::channel();
    let there = rma.clone();
    let waiting = std::thread::spawn(move || {
        run(Executor::Other, &there, async |rdma, _| {
            let file = rdma.create_file(4096).await?;
            let memory = rdma.allocate_of_file(&file, 0, 4096).await?;
            number.send(file.number()).unwrap();
            for seen in 0..100 {
                waits.send(()).unwrap();
                let on = [On::Stop, On::Word(&memory, 8, seen)];
                assert_eq!(rdma.until(&on, soon(&rdma).await?).await?, Some(1), "store {seen} is noticed");
            }
            Ok::<_, Error>(())
        })
    });
    run(Executor::Other, &rma, async |rdma, _| {
        let file = rdma.file(told.recv().unwrap());
        let memory = rdma.allocate_of_file(&file, 0, 4096).await?;
        for value in 1..=100 {
            ready.recv().unwrap();
            memory.store(8, value).await?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    waiting.join().unwrap().unwrap();
}
