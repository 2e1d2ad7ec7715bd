//! Native programs on this host: what `adverb_rdma` promises, over real sockets and threads, with the own
//! executor and with another.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_io::Settings;
use adverb_io::program::{Programs, Stopper};
use adverb_rdma::{
    Access, CALLS_UNWAITED, Caps, Connect, Data, Duration, Error, On, Qp, QpType, Rdma, RecvRequest, Region,
    Remote, SendOp, SendOrder, without_progress,
};
use common::local;
use std::future::{Future, poll_fn};
use std::net::TcpListener;
use std::ops::Deref;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A driver, and the folder of its address, which goes when the driver has gone.
struct Opened {
    programs: Rc<Programs>,
    _folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Deref for Opened {
    type Target = Rc<Programs>;

    fn deref(&self) -> &Rc<Programs> {
        &self.programs
    }
}

fn open(test: u8, host: u8) -> Opened {
    let path = format!("/dev/shm/adverb-io-test-{}-program-{test}-{host}", std::process::id());
    let settings = Settings::parse(&format!("address={},directory={path}", local(test, host))).unwrap();
    let programs = Programs::open(&settings).unwrap_or_else(|error| panic!("{error}"));
    Opened { programs, _folder: Folder(path.into()) }
}

/// A free address for the exchange.
fn rendezvous() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Which executor runs a program.
#[derive(Clone, Copy)]
enum Executor {
    Own,
    Other,
}

fn run<F: Future>(executor: Executor, programs: &Programs, future: F) -> F::Output {
    match executor {
        Executor::Own => programs.block_on(future),
        Executor::Other => futures_executor::block_on(future),
    }
}

/// A program's connection: a region of 4096 bytes, and the peer's.
struct End {
    qp: Qp,
    memory: Region,
    peer: Remote,
    _line: adverb_rdma::Line,
}

async fn served(rdma: &Rdma, name: &str) -> Result<End, Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory = pd.region(4096, ALL).await?;
    let listener = rdma.listen(name).await?;
    let asked = listener.accept().await?;
    let peer = Remote::from_bytes(asked.own()?).ok_or(Error::Garbled("a region"))?;
    let qp = pd.create_rc(&cq, Caps::default()).await?;
    let line = asked.accept(&qp, &memory.remote().to_bytes(), &Connect::default()).await?;
    Ok(End { qp, memory, peer, _line: line })
}

async fn connected(rdma: &Rdma, name: &str) -> Result<End, Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory = pd.region(4096, ALL).await?;
    let qp = pd.create_rc(&cq, Caps { max_inline: 64, ..Caps::default() }).await?;
    let patience = rdma.now().await? + Duration::from_ms(10_000);
    let own = memory.remote().to_bytes();
    let (line, told) = qp.connect(name, &own, &Connect::default(), Some(patience)).await?;
    let peer = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    Ok(End { qp, memory, peer, _line: line })
}

async fn serve(rdma: Rdma, name: String) -> Result<u64, Error> {
    let end = served(&rdma, &name).await?;
    // Asleep until the peer's last write comes.
    let mut seen = 0;
    while seen != 99 {
        let limit = rdma.now().await? + Duration::from_ms(20_000);
        let woken = rdma.until(&[On::Stop, On::Word(&end.memory, 128, seen)], Some(limit)).await?;
        assert_eq!(woken, Some(1), "the peer's write is noticed");
        seen = end.memory.load(128).await?;
    }
    // The other way round, so that the peer has to notice.
    end.qp.write((&end.memory, 128), 8, (&end.peer, 512)).await?;
    end.memory.load(0).await
}

async fn use_it(rdma: Rdma, name: String) -> Result<(), Error> {
    let End { qp, memory, peer, _line } = &connected(&rdma, &name).await?;
    for was in 0..20 {
        assert_eq!(qp.fetch_add((peer, 0), 1, (memory, 0)).await?, was);
    }
    assert_eq!(qp.compare_swap((peer, 0), (7, 8), (memory, 0)).await?, 20);
    assert_eq!(qp.compare_swap((peer, 0), (20, 21), (memory, 0)).await?, 20);
    memory.write(256, b"one-sided bytes, and more than a word of them").await?;
    qp.write((memory, 256), 45, (peer, 1024)).await?;
    qp.read((memory, 2048), 45, (peer, 1024)).await?;
    assert_eq!(memory.read(2048, 45).await?, b"one-sided bytes, and more than a word of them");
    // Two at once on one queue: each gets its own completion.
    let (a, b) = futures_util::future::join(
        qp.fetch_add((peer, 8), 5, (memory, 8)),
        qp.fetch_add((peer, 16), 7, (memory, 16)),
    )
    .await;
    assert_eq!((a?, b?), (0, 0));
    // One whose future is dropped while it is under way has its effect all the same.
    {
        let mut dropped = Box::pin(qp.fetch_add((peer, 24), 1, (memory, 24)));
        // Once: then it is posted.
        poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await;
    }
    while qp.fetch_add((peer, 24), 0, (memory, 32)).await? == 0 {}
    qp.write_inline(&99u64.to_ne_bytes(), (peer, 128)).await?;
    let limit = rdma.now().await? + Duration::from_ms(20_000);
    assert_eq!(rdma.until(&[On::Word(memory, 512, 0)], Some(limit)).await?, Some(0));
    Ok(())
}

fn both(test: u8, server: Executor, client: Executor) {
    let name = rendezvous();
    let there = name.clone();
    let serving = std::thread::spawn(move || {
        let programs = open(test, 1);
        run(server, &programs, serve(Rdma::new(programs.clone()), there))
    });
    let programs = open(test, 2);
    run(client, &programs, use_it(Rdma::new(programs.clone()), name)).unwrap();
    assert_eq!(serving.join().unwrap(), Ok(21));
}

#[test]
fn one_sided_operations_between_two_programs() {
    both(1, Executor::Own, Executor::Own);
}

#[test]
fn any_executor_runs_a_program() {
    both(2, Executor::Other, Executor::Other);
}

#[test]
fn deadlines_come_and_stops_are_heard_under_any_executor() {
    for (test, executor) in [(3, Executor::Own), (4, Executor::Other)] {
        let programs = open(test, 1);
        let stopper: Stopper = programs.stopper();
        let rdma = Rdma::new(programs.clone());
        let start = Instant::now();
        run(executor, &programs, rdma.sleep(Duration::from_ms(50))).unwrap();
        let slept = start.elapsed().as_millis();
        assert!((50..5_000).contains(&slept), "{slept} ms");
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            stopper.stop();
        });
        assert_eq!(run(executor, &programs, rdma.until(&[On::Stop], None)), Ok(Some(0)));
    }
}

#[test]
fn a_region_stays_until_what_was_posted_is_done() {
    let programs = open(5, 1);
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(64).await?;
        let caps = Caps { max_send_wr: 64, max_recv_wr: 4, ..Caps::default() };
        let qp = pd.create_rc(&cq, caps).await?;
        qp.connect_to_itself(&Connect::default()).await?;
        let target = pd.region(1 << 20, ALL).await?;
        for _ in 0..20 {
            let source = pd.region(1 << 20, Access::LOCAL_WRITE).await?;
            source.write(0, &[7; 64]).await?;
            let flags = adverb_rdma::SendFlags { signaled: true, ..Default::default() };
            let op = SendOp::Write(target.addr(), target.remote().rkey);
            let data = Data::Piece(source.piece(0, 1 << 20)?);
            let request = adverb_rdma::SendRequest { wr_id: 1, op, flags, data, ud: None, xrc_srqn: 0 };
            qp.post(vec![request]).await?;
            // Gone for the program; the NIC still reads it.
            drop(source);
            let limit = rdma.now().await? + Duration::from_ms(20_000);
            assert_eq!(rdma.until(&[On::Cq(&cq)], Some(limit)).await?, Some(0));
            let completions = cq.poll(4).await?;
            assert_eq!(completions[0].status, adverb_rdma::Status::Success);
            assert_eq!(target.read(0, 64).await?, [7; 64]);
        }
        // The same for a receive that is posted and not taken yet.
        let inbox = pd.region(4096, Access::LOCAL_WRITE).await?;
        qp.post_recv(vec![RecvRequest::into_piece(9, inbox.piece(0, 4096)?)]).await?;
        drop(inbox);
        qp.send((&target, 0), 64).await?;
        Ok::<_, Error>(())
    });
    assert_eq!(done, Ok(()));
    // Everything has gone by now, in whatever order the handles were dropped.
    drop(rdma);
    let counts = programs.host().control(|nic, _| nic.memory().counts());
    assert_eq!(counts, [0, 0, 0], "domains, regions and windows are all given back");
}

#[test]
fn a_queue_is_memory_and_a_doorbell_has_it_looked_at() {
    let programs = open(6, 1);
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(64).await?;
        let qp = pd.create_rc(&cq, Caps { max_send_wr: 4, ..Caps::default() }).await?;
        qp.connect_to_itself(&Connect::default()).await?;
        let memory = pd.region(4096, ALL).await?;
        memory.store(0, 0x1122_3344_5566_7788).await?;
        let queue = qp.send_queue().await?;
        // An RDMA WRITE of 8 bytes in mlx5's layout, asking for a completion: control segment, remote
        // address, data.
        let mut wqe = [0u8; 64];
        wqe[3] = 0x08;
        wqe[4..8].copy_from_slice(&(qp.number().get() << 8 | 3).to_be_bytes());
        wqe[11] = 0x08;
        wqe[16..24].copy_from_slice(&(memory.addr() + 64).to_be_bytes());
        wqe[24..28].copy_from_slice(&memory.remote().rkey.0.to_be_bytes());
        wqe[32..36].copy_from_slice(&8u32.to_be_bytes());
        wqe[36..40].copy_from_slice(&memory.lkey().0.to_be_bytes());
        wqe[40..48].copy_from_slice(&memory.addr().to_be_bytes());
        queue.write(0, &wqe).await?;
        qp.doorbell(1).await?;
        let limit = rdma.now().await? + Duration::from_ms(20_000);
        assert_eq!(rdma.until(&[On::Cq(&cq)], Some(limit)).await?, Some(0));
        assert_eq!(cq.poll(4).await?[0].status, adverb_rdma::Status::Success);
        memory.load(64).await
    });
    assert_eq!(done, Ok(0x1122_3344_5566_7788));
}

#[test]
fn a_managed_queue_waits_for_another_to_enable_it() {
    let programs = open(9, 1);
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(64).await?;
        let memory = pd.region(4096, ALL).await?;
        let mut woken = Vec::new();
        for order in [SendOrder::Own, SendOrder::Cross, SendOrder::Managed] {
            let qp = pd.create_ordered_qp(QpType::Rc, (&cq, &cq), None, Caps::default(), order).await?;
            qp.connect_to_itself(&Connect::default()).await?;
            let flags = adverb_rdma::SendFlags { signaled: true, ..Default::default() };
            let op = SendOp::Write(memory.addr() + 64, memory.remote().rkey);
            let data = Data::Piece(memory.piece(0, 8)?);
            let request = adverb_rdma::SendRequest { wr_id: 1, op, flags, data, ud: None, xrc_srqn: 0 };
            qp.post(vec![request]).await?;
            let patience = if order == SendOrder::Managed { 50 } else { 20_000 };
            let limit = rdma.now().await? + Duration::from_ms(patience);
            woken.push(rdma.until(&[On::Cq(&cq)], Some(limit)).await?);
            cq.poll(4).await?;
        }
        Ok::<_, Error>(woken)
    });
    assert_eq!(done, Ok(vec![Some(0), Some(0), None]));
}

#[test]
fn mistakes_are_typed_errors() {
    let programs = open(7, 1);
    let rdma = Rdma::new(programs.clone());
    let name = rendezvous();
    programs
        .block_on(async {
            let pd = rdma.create_pd().await?;
            let memory = pd.region(64, Access::LOCAL_WRITE).await?;
            for (at, len) in [(0, 65), (64, 1), (u64::MAX, 8)] {
                assert!(matches!(memory.read(at, len).await, Err(Error::Range { .. })), "{len} at {at}");
            }
            assert!(matches!(memory.load(4).await, Err(Error::Range { .. })), "a word is at a multiple of 8");
            assert!(matches!(memory.piece(60, 8), Err(Error::Range { .. })));
            assert!(matches!(pd.region(64, Access::REMOTE_WRITE).await, Err(Error::Refused(_))));
            assert!(matches!(rdma.allocate(64).await, Err(Error::Unsupported(_))));
            assert!(matches!(rdma.listen("nowhere").await, Err(Error::System(_))));
            let soon = rdma.now().await? + Duration::from_ms(60);
            assert!(matches!(rdma.ask(&name, b"", Some(soon)).await, Err(Error::NoAnswer)));
            // Who asks and is not answered is told so.
            let listener = rdma.listen(&name).await?;
            let asking = rdma.ask(&name, b"question", None);
            let refusing = async {
                let asked = listener.accept().await?;
                assert_eq!(asked.attributes(), b"question");
                drop(asked);
                Ok::<_, Error>(())
            };
            let (asked, refused) = futures_util::future::join(asking, refusing).await;
            assert!(matches!(asked, Err(Error::Left)));
            refused?;
            // Either end hears when the other leaves.
            let asking = rdma.ask(&name, b"", None);
            let answering = async { listener.accept().await?.reply(b"answer").await };
            let (asked, line) = futures_util::future::join(asking, answering).await;
            let ((own, answer), line) = (asked?, line?);
            assert_eq!(answer, b"answer");
            drop(own);
            let limit = rdma.now().await? + Duration::from_ms(10_000);
            assert_eq!(rdma.until(&[On::Gone(&line)], Some(limit)).await?, Some(0));
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn a_file_of_memory_is_shared_by_its_regions() {
    let programs = open(8, 1);
    let rdma = Rdma::new(programs.clone());
    programs
        .block_on(async {
            let pd = rdma.create_pd().await?;
            let file = rdma.create_file(8192).await?;
            let a = pd.region_of_file(&file, 0, 8192, ALL).await?;
            let again = rdma.file(file.number());
            let b = pd.region_of_file(&again, 4096, 4096, ALL).await?;
            a.store(4096, 77).await?;
            assert_eq!(b.load(0).await?, 77);
            assert!(matches!(pd.region_of_file(&file, 8192, 8, ALL).await, Err(Error::System(_))));
            assert!(matches!(pd.region_of_file(&rdma.file(-1), 0, 8, ALL).await, Err(Error::System(_))));
            Ok::<_, Error>(())
        })
        .unwrap();
}

#[test]
fn a_store_by_the_program_itself_wakes_another_of_its_tasks() {
    for (test, executor) in [(10, Executor::Own), (11, Executor::Other)] {
        let programs = open(test, 1);
        let rdma = Rdma::new(programs.clone());
        run(executor, &programs, async {
            let pd = rdma.create_pd().await?;
            let memory = &pd.region(4096, ALL).await?;
            for (at, bytes) in [(64, false), (128, true)] {
                let limit = rdma.now().await? + Duration::from_ms(20_000);
                let on = [On::Stop, On::Word(memory, at, 0)];
                let waits = rdma.until(&on, Some(limit));
                let stores = async {
                    // The other task waits by then.
                    rdma.sleep(Duration::from_ms(20)).await?;
                    if bytes { memory.write(at, &[7; 8]).await } else { memory.store(at, 7).await }
                };
                let (woken, stored) = futures_util::future::join(waits, stores).await;
                stored?;
                assert_eq!(woken?, Some(1), "the store is noticed, by bytes: {bytes}");
            }
            Ok::<_, Error>(())
        })
        .unwrap();
    }
}

/// Looks again and again, in one way, as often as is borne; and then often enough, but waiting between.
async fn look(rdma: Rdma, how: &str) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(4).await?;
    let memory = pd.region(4096, ALL).await?;
    let listener = rdma.listen(&rendezvous()).await?;
    let calls = if how == "waits" { CALLS_UNWAITED - 1000 } else { CALLS_UNWAITED };
    rdma.until(&[], Some(rdma.now().await?)).await?;
    for _ in 0..calls {
        match how {
            "polls" => drop(cq.poll(1).await?),
            "accepts" => assert!(listener.try_accept().await?.is_none()),
            "asks the time" => drop(rdma.now().await?),
            "copies" => drop(memory.read(0, 8).await?),
            _ => drop(memory.load(0).await?),
        }
    }
    rdma.until(&[], Some(rdma.now().await?)).await?;
    for _ in 0..2000 {
        memory.load(0).await?;
    }
    Ok(())
}

/// A child that looks in vain, in the way that its role names.
#[test]
fn helper() {
    let Some(role) = common::role() else { return };
    let programs = open(role[0].parse().unwrap(), 1);
    programs.block_on(look(Rdma::new(programs.clone()), &role[1])).unwrap();
}

#[test]
fn a_program_that_only_looks_is_told_so_whatever_it_looks_at() {
    let kinds = ["polls", "accepts", "asks the time", "copies", "loads", "waits"];
    for (n, how) in kinds.into_iter().enumerate() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
            .env("ADVERB_IO_TEST_ROLE", format!("{}|{how}", 12 + n))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let expected = if how == "waits" { 0 } else { 1 };
        let words = without_progress("the program", CALLS_UNWAITED, "in a row");
        assert_eq!(said.matches(&words).count(), expected, "{how}: {said}");
    }
}

/// Memory of the NIC's own: addresses from 0 on, loads, stores, a peer's atomics; 4 MiB and no more, which
/// come back.
#[test]
fn memory_of_the_nic_is_zero_based_and_bounded() {
    const ALL_OF_IT: u64 = 4 << 20;
    let name = rendezvous();
    let (at, here) = (name.clone(), std::sync::mpsc::channel());
    let server = std::thread::spawn(move || {
        let programs = open(40, 1);
        let rdma = Rdma::new(programs.clone());
        programs.block_on(async {
            let pd = rdma.create_pd().await?;
            let cq = rdma.create_cq(16).await?;
            let words = pd.device_region(256, ALL).await?;
            assert_eq!((words.addr(), words.len()), (0, 256));
            words.store(248, 7).await?;
            let again = pd.region_again(&words, ALL).await?;
            assert_eq!((again.addr(), again.load(248).await?), (0, 7));
            assert_ne!(again.remote().rkey, words.remote().rkey);
            let beyond = pd.device_region(ALL_OF_IT - 255, ALL).await.err();
            let refused = Error::DeviceMemory { len: ALL_OF_IT - 255, free: ALL_OF_IT - 256 };
            assert_eq!(beyond, Some(refused), "what is registered twice counts once");
            let rest = pd.device_region(ALL_OF_IT - 256, ALL).await?;
            drop(rest);
            let listener = rdma.listen(&at).await?;
            here.0.send(()).unwrap();
            let asked = listener.accept().await?;
            let qp = pd.create_rc(&cq, Caps::default()).await?;
            let line = asked.accept(&qp, &words.remote().to_bytes(), &Connect::default()).await?;
            rdma.until(&[On::Gone(&line)], None).await?;
            assert_eq!((words.load(248).await?, words.read(0, 3).await?), (9, b"abc".to_vec()));
            drop((qp, words, again));
            pd.device_region(ALL_OF_IT, ALL).await.map(drop)
        })
    });
    here.1.recv().unwrap();
    let programs = open(40, 2);
    let rdma = Rdma::new(programs.clone());
    let done: Result<(), Error> = programs.block_on(async {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(64, ALL).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect(&name, &[], &Connect::default(), None).await?;
        let words = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        assert_eq!(words.addr, 0);
        assert_eq!(qp.compare_swap((&words, 248), (7, 8), (&own, 0)).await?, 7);
        assert_eq!(qp.fetch_add((&words, 248), 1, (&own, 0)).await?, 8);
        own.write(8, b"abc").await?;
        qp.write((&own, 8), 3, (&words, 0)).await?;
        qp.read((&own, 16), 8, (&words, 248)).await?;
        assert_eq!(own.load(16).await?, 9);
        Ok(())
    });
    done.unwrap();
    server.join().unwrap().unwrap();
}
