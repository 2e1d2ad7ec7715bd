//! Programs on simulated hosts: a system of clients that share two words of a server's memory, under swarms;
//! kills in the middle of things; processors that cost time.

use adverb_rdma::{
    Access, Caps, Connect, Data, Duration, Error, On, RateLimit, Rdma, Remote, SendFlags, SendOp, SendRequest,
};
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::linear::WORK_MAX;
use adverb_sim::linear::model::{Word, WordCall};
use adverb_sim::program::history::{Told, history};
use adverb_sim::program::{Cut, Doing, Fault, Mortal, Noted, Setup, Stalls, Start, What};
use adverb_sim::swarm::programs::{Made, Run, System};
use adverb_sim::{CableKind, Config, Sim, Topology};
use std::cell::RefCell;
use std::rc::Rc;

/// Remote access of every kind.
fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// Lets peers use its memory until it is asked to end.
async fn serve(rdma: Rdma, name: &str, bytes: u64) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(16).await?;
    let memory = pd.region(bytes, all()).await?;
    let listener = rdma.listen(name).await?;
    let mut peers = Vec::new();
    while rdma.until(&[On::Stop, On::Asked(&listener)], None).await? != Some(0) {
        let Some(asked) = listener.try_accept().await? else { continue };
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &memory.remote().to_bytes(), &Connect::default()).await?;
        peers.push((qp, line));
    }
    Ok(())
}

/// Does operations on a counter (object 0) and a register (object 8) of the server's memory, and connects
/// anew when its connection fails. If `hasty`, it takes a write for done when it is posted.
async fn use_words(rdma: Rdma, mut left: u64, hasty: bool) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let own = pd.region(64, Access::LOCAL_WRITE).await?;
    'connected: loop {
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("words", &[], &Connect::default(), None).await?;
        let words = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        while left > 0 {
            left -= 1;
            let value = rdma.random().await? % 3;
            let done = match rdma.random().await? % 4 {
                0 => {
                    let op = rdma.operation(0, "add", &[1]);
                    qp.fetch_add((&words, 0), 1, (&own, 0)).await.map(|was| op.end(&[was]))
                }
                1 => {
                    let op = rdma.operation(8, "read", &[]);
                    match qp.read((&own, 8), 8, (&words, 8)).await {
                        Ok(()) => {
                            op.end(&[own.load(8).await?]);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                2 => {
                    let op = rdma.operation(8, "swap", &[value, value + 1]);
                    let swapped = qp.compare_swap((&words, 8), (value, value + 1), (&own, 16)).await;
                    swapped.map(|was| op.end(&[was]))
                }
                _ => {
                    let op = rdma.operation(8, "write", &[value]);
                    own.store(24, value).await?;
                    if hasty {
                        op.end(&[]);
                        qp.write((&own, 24), 8, (&words, 8)).await
                    } else {
                        qp.write((&own, 24), 8, (&words, 8)).await.map(|()| op.end(&[]))
                    }
                }
            };
            match done {
                Ok(()) => {}
                Err(Error::Failed { .. }) => continue 'connected,
                Err(error) => return Err(error),
            }
        }
        return Ok(());
    }
}

fn words_of(told: &Told<'_>) -> Result<Option<(WordCall, Option<u64>)>, String> {
    let call = match (told.name, told.arguments) {
        ("add", [more]) => WordCall::Add(*more),
        ("read", []) => WordCall::Read,
        ("write", [value]) => WordCall::Write(*value),
        ("swap", [compare, swap]) => WordCall::CompareSwap { compare: *compare, swap: *swap },
        other => return Err(format!("{other:?}")),
    };
    Ok(Some((call, told.results.map(|results| results.first().copied().unwrap_or(0)))))
}

fn judge(run: &Run<'_>) -> Vec<String> {
    match history::<Word>(run.notes, words_of) {
        Ok(history) => history.check(&Word::default(), WORK_MAX).failure().into_iter().collect(),
        Err(why) => vec![why],
    }
}

const WORDS: System = System {
    name: "words",
    about: "clients that add, read, write and swap two words of a server's memory",
    bugs: &[("hasty", "a write is taken for done when it is posted")],
    one_rma: false,
    make: |rng, hosts, bug| {
        let hasty = bug == Some("hasty");
        let server = rng.u32(0..hosts);
        let mut programs = vec![
            Start::new("server", server, |rdma| serve(rdma, "words", 64)).serving().mortal(Mortal::Never),
        ];
        for n in 0..rng.u32(1..=4) {
            let (host, left) = (rng.u32(0..hosts), rng.u64(1..20));
            let run = move |rdma| use_words(rdma, left, hasty);
            programs.push(Start::new(format!("client {n}"), host, run));
        }
        Made { programs, judge: Box::new(judge), settled: |_| true }
    },
    switch: None,
    tune: |_, _| {},
};

#[test]
fn words_stay_linearizable_whatever_happens() {
    let (mut faults, mut dead) = (0, 0);
    for seed in 0..300 {
        let outcome = WORDS.run_seed(seed, None);
        assert_eq!(outcome.failures, Vec::<String>::new(), "seed {seed}");
        faults += outcome.faults;
        dead += outcome.dead;
    }
    assert!(faults > 300 && dead > 100, "{faults} faults, {dead} kills");
}

#[test]
fn a_hasty_client_is_found_and_replayed() {
    let found = (0..1_000).map(|seed| WORDS.run_seed(seed, Some("hasty"))).find(|o| !o.failures.is_empty());
    let found = found.expect("a write that is taken for done too early");
    assert!(found.failures[0].contains("no order of its"), "{:?}", found.failures);
    let mut lines = Vec::new();
    let replayed = WORDS.replay(found.seed, Some("hasty"), &mut |line| lines.push(line.to_owned()));
    assert_eq!(replayed, found, "watching changes nothing");
    for part in ["client 0 (host", "connects", "WRITE of 8 B", "begins", "takes it"] {
        let part = if part == "connects" { "asks words" } else { part };
        assert!(lines.iter().any(|line| line.contains(part)), "{part}");
    }
    assert_eq!(WORDS.run_seed(found.seed, None).failures, Vec::<String>::new());
}

fn two_hosts() -> Config {
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_us(1) };
    Config { payload: true, flow_bytes_max: 8, ..Config::new(Topology::two_hosts(cable)) }
}

/// Runs programs on two hosts with such processors to their end.
fn run(hardware: Profile, setup: Setup) -> Sim {
    let mut sim = Sim::new(Config { hardware, ..two_hosts() }).unwrap();
    sim.set_programs(setup);
    sim.run(u64::MAX, u64::MAX);
    sim
}

/// A client that posts a list of eight WRITEs of a word each, and is cut off at each step: as many words as
/// were posted before land, and no more.
#[test]
fn a_kill_falls_within_a_posted_list() {
    async fn post(rdma: Rdma) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(64, Access::LOCAL_WRITE).await?;
        own.write(0, &[0xff; 64]).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("words", &[], &Connect::default(), None).await?;
        let words = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        rdma.operation(0, "posts", &[]).end(&[]);
        let request = |n: u64| -> Result<SendRequest, Error> {
            Ok(SendRequest {
                wr_id: n,
                op: SendOp::Write(words.at(8 * n, 8)?, words.rkey),
                flags: SendFlags { signaled: true, ..SendFlags::default() },
                data: Data::Piece(own.piece(8 * n, 8)?),
                ud: None,
                xrc_srqn: 0,
            })
        };
        qp.post((0..8).map(request).collect::<Result<_, _>>()?).await?;
        rdma.operation(0, "posted", &[]).end(&[]);
        let mut done = 0;
        while done < 8 {
            rdma.until(&[On::Cq(&cq)], None).await?;
            done += cq.poll(8).await?.len();
        }
        Ok(())
    }
    async fn watch(rdma: Rdma, seen: Rc<RefCell<u64>>) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let memory = pd.region(64, all()).await?;
        let listener = rdma.listen("words").await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line =
            listener.accept().await?.accept(&qp, &memory.remote().to_bytes(), &Connect::default()).await?;
        // A killed program's line ends.
        rdma.until(&[On::Gone(&line)], None).await?;
        for word in 0..8 {
            *seen.borrow_mut() += u64::from(memory.load(8 * word).await? == u64::MAX);
        }
        Ok(())
    }
    let trial = |step: Option<u64>| {
        let seen = Rc::new(RefCell::new(0));
        let watched = seen.clone();
        let programs = vec![
            Start::new("watcher", 0, move |rdma| watch(rdma, watched.clone())).mortal(Mortal::Never),
            Start::new("poster", 1, post).mortal(Mortal::Once),
        ];
        let cuts = step.map(|step| Cut { program: 1, step, again: None }).into_iter().collect();
        // Each request has left before the next is posted.
        let cpu = Profile { cpu_post: 3_000_000, ..Profile::NEUTRAL };
        let sim = run(cpu, Setup { programs, cuts, exchange_ps: 10_000_000, ..Setup::default() });
        let noted = sim.notes().iter().filter(|n| n.program == 1).count() / 2;
        // Cut off before it connects, nobody is there whom the watcher could miss.
        assert!(sim.programs_ended() || noted == 0);
        let steps = sim.programs().nth(1).unwrap().3;
        (*seen.borrow(), noted, steps)
    };
    let (whole, noted, steps) = trial(None);
    assert_eq!((whole, noted), (8, 2));
    let mut in_the_middle = Vec::new();
    for step in 0..steps {
        let (seen, noted, _) = trial(Some(step));
        if noted == 1 {
            in_the_middle.push(seen);
        }
    }
    assert_eq!(in_the_middle, [0, 1, 2, 3, 4, 5, 6, 7], "one kill before each request");
}

/// A region's bytes in a second domain, under keys of its own; and a bound on the rate of a queue pair there.
#[test]
fn a_region_again_and_a_rate() {
    async fn twice(rdma: Rdma) -> Result<(), Error> {
        let (first, second) = (rdma.create_pd().await?, rdma.create_pd().await?);
        let (memory, other) = (first.region(4096, all()).await?, first.region(4096, all()).await?);
        let again = second.region_again(&memory, all()).await?;
        assert_eq!((again.addr(), again.len()), (memory.addr(), memory.len()));
        assert_ne!(again.lkey(), memory.lkey());
        memory.write(0, &[7; 64]).await?;
        // The bytes stay as long as one of the two.
        drop(memory);
        let cq = rdma.create_cq(16).await?;
        let qp = second.create_rc(&cq, Caps::default()).await?;
        let limit = RateLimit { kbps: 1000, ..RateLimit::default() };
        assert!(qp.limit_rate(limit).await.is_err(), "not before RTS");
        qp.connect_to_itself(&Connect::default()).await?;
        let begin = rdma.now().await?;
        qp.read((&again, 2048), 64, (&again.remote(), 0)).await?;
        assert_eq!(again.read(2048, 64).await?, [7; 64]);
        let free = rdma.now().await?.since(begin);
        qp.limit_rate(limit).await?;
        let begin = rdma.now().await?;
        for _ in 0..20 {
            qp.read((&again, 2048), 64, (&again.remote(), 0)).await?;
        }
        // 512 bits each.
        let bound = rdma.now().await?.since(begin);
        assert!(free < Duration::from_us(100) && bound > Duration::from_us(19 * 512), "{free:?}, {bound:?}");
        qp.limit_rate(RateLimit::default()).await?;
        let strange = qp.read((&again, 2048), 8, (&other.remote(), 0)).await;
        assert!(strange.is_err(), "a key of another domain");
        Ok(())
    }
    let start = Start::new("twice", 0, twice).mortal(Mortal::Never);
    let sim = run(Profile::NEUTRAL, Setup { programs: vec![start], ..Setup::default() });
    assert!(sim.programs().all(|(_, doing, ..)| *doing == Doing::Ended(Ok(()))));
}

const RATE: u64 = 800_000_000_000;

/// Copies are torn by whatever else happens meanwhile, words are not.
#[test]
fn a_copy_that_takes_time_may_be_torn() {
    async fn write(rdma: Rdma, file: Rc<RefCell<Option<i32>>>) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let made = rdma.create_file(4096).await?;
        *file.borrow_mut() = Some(made.number());
        let memory = pd.region_of_file(&made, 0, 4096, Access::LOCAL_WRITE).await?;
        for round in 1..=20u8 {
            memory.write(0, &[round; 64]).await?;
        }
        Ok(())
    }
    async fn read(rdma: Rdma, file: Rc<RefCell<Option<i32>>>, torn: Rc<RefCell<u32>>) -> Result<(), Error> {
        let number = file.borrow().ok_or(Error::NoSuchObject("file"))?;
        let pd = rdma.create_pd().await?;
        let memory = pd.region_of_file(&rdma.file(number), 0, 4096, Access::LOCAL_WRITE).await?;
        for _ in 0..20 {
            let bytes = memory.read(0, 64).await?;
            assert!(bytes.chunks(8).all(|word| word.iter().all(|byte| *byte == word[0])), "words are whole");
            *torn.borrow_mut() += u32::from(bytes[0] != bytes[63]);
            rdma.think(Duration::from_ps(150)).await?;
        }
        Ok(())
    }
    let trial = |cpu_copy, stalls| {
        let (file, torn) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(0)));
        let (made, found, seen) = (file.clone(), file, torn.clone());
        let mut reader = Start::new("reader", 0, move |rdma| read(rdma, found.clone(), seen.clone()))
            .mortal(Mortal::Never);
        reader.at = 100;
        let writer = Start::new("writer", 0, move |rdma| write(rdma, made.clone())).mortal(Mortal::Never);
        let cpu = Profile { cpu_copy, ..Profile::NEUTRAL };
        let sim = run(cpu, Setup { stalls, programs: vec![writer, reader], ..Setup::default() });
        assert!(sim.programs().all(|(_, doing, ..)| *doing == Doing::Ended(Ok(()))));
        (*torn.borrow(), sim.now().as_ps())
    };
    assert_eq!(trial(0, None), (0, 100 + 20 * 150), "copies that take no time are whole");
    // At 800 Gb/s a byte takes 10 ps.
    let (_, now) = trial(RATE, None);
    assert_eq!(now, 100 + 20 * (64 * 10 + 150), "the reader's copies, one after another");
    let (torn, _) = trial(RATE, Some(Stalls { chance: 0.2, most_ps: 1_000 }));
    assert!(torn > 5, "{torn} torn");
}

/// Destructors of a killed program ask in vain; a host that crashes takes all with it; programs that are
/// started again find nothing of what they had.
#[test]
fn kills_crashes_and_restarts() {
    struct Cry(Rdma);
    impl Drop for Cry {
        fn drop(&mut self) {
            let rdma = self.0.clone();
            rdma.operation(99, "cry", &[]).end(&[]);
        }
    }
    async fn live(rdma: Rdma) -> Result<(), Error> {
        let _cry = Cry(rdma.clone());
        let pd = rdma.create_pd().await?;
        let memory = pd.region(4096, all()).await?;
        let was = memory.load(0).await?;
        memory.store(0, 1).await?;
        let op = rdma.operation(1, "lives", &[was]);
        rdma.until(&[On::Stop], None).await?;
        op.end(&[]);
        Ok(())
    }
    let fault = |at, what| Fault { at, what };
    let faults = vec![
        fault(1_000, What::Kill(0, Some(500))),
        fault(2_000, What::Crash(0, 5_000)),
        // Stopped, it does not see that it is asked to end.
        fault(8_000, What::Stop(0)),
        fault(8_500, What::Ask(0)),
        fault(9_000, What::Continue(0)),
    ];
    let sim = run(
        Profile::NEUTRAL,
        Setup { programs: vec![Start::new("one", 0, live)], faults, ..Setup::default() },
    );
    sim.check_invariants();
    let told: Vec<(u64, u32, String)> =
        sim.notes().iter().map(|Noted { at, life, note, .. }| (*at, *life, format!("{note:?}"))).collect();
    let begun = |life: u32| told.iter().find(|n| n.1 == life && n.2.contains("lives")).unwrap();
    assert_eq!([0, 1, 2].map(|life| begun(life).0), [0, 1_500, 7_000]);
    assert!((0..3).all(|life| begun(life).2.contains("arguments: [0]")), "memory is new in each life");
    let cries: Vec<u32> = told.iter().filter(|n| n.2.contains("cry")).map(|n| n.1).collect();
    assert_eq!(cries, [2], "only who ends by itself is heard");
    let ends = told.iter().filter(|n| n.2.contains("End")).map(|n| n.0).min();
    assert_eq!(ends, Some(9_000));
    let (_, doing, lives, _) = sim.programs().next().unwrap();
    assert_eq!((doing, lives), (&Doing::Ended(Ok(())), 3));
}

/// A loop that never waits is ended, and named.
#[test]
fn a_loop_without_progress_is_reported() {
    async fn spin(rdma: Rdma) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let memory = pd.region(64, all()).await?;
        while memory.load(0).await? == 0 {}
        Ok(())
    }
    for (cpu_copy, how) in [(0, "at one moment"), (RATE, "in a row")] {
        let cpu = Profile { cpu_copy, ..Profile::NEUTRAL };
        let programs = vec![Start::new("spinner", 0, spin).mortal(Mortal::Never)];
        let sim = run(cpu, Setup { programs, ..Setup::default() });
        let [failure] = sim.program_failures() else { panic!("one failure") };
        assert!(failure.contains("spinner makes no progress") && failure.contains(how), "{failure}");
    }
}

/// A READ of 4,096 bytes that a program posts, finds and copies, on a ConnectX-5 as RedN measured it: each of
/// its steps at its time, to the picosecond. The NIC's part is the hardware model's own sum.
#[test]
fn a_program_s_timeline_is_the_sum_of_nic_and_processor() {
    type Times = Rc<RefCell<Vec<u64>>>;
    async fn read(rdma: Rdma, times: Times) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(4096, Access::LOCAL_WRITE).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("words", &[], &Connect::default(), None).await?;
        let theirs = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        let note = async || rdma.now().await.map(|now| times.borrow_mut().push(now.as_ps()));
        note().await?;
        let request = SendRequest {
            wr_id: 1,
            op: SendOp::Read(theirs.at(0, 4096)?, theirs.rkey),
            flags: SendFlags { signaled: true, ..SendFlags::default() },
            data: Data::Piece(own.piece(0, 4096)?),
            ud: None,
            xrc_srqn: 0,
        };
        qp.post(vec![request]).await?;
        note().await?;
        rdma.until(&[On::Cq(&cq)], None).await?;
        note().await?;
        assert_eq!(cq.poll(1).await?.len(), 1);
        note().await?;
        own.read(0, 4096).await?;
        note().await?;
        // It sleeps until a time.
        let from = rdma.now().await?;
        rdma.sleep(Duration::from_us(1)).await?;
        let slept = rdma.now().await? - from;
        times.borrow_mut().push(slept.as_ps());
        Ok(())
    }
    let steps = |hardware: Profile| {
        let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(10) };
        let config = Config { payload: true, flow_bytes_max: 8, hardware, ..two_hosts() };
        let mut sim = Sim::new(Config { topology: Topology::two_hosts(cable), ..config }).unwrap();
        let times = Times::default();
        let noted = times.clone();
        let programs = vec![
            Start::new("server", 0, |rdma| serve(rdma, "words", 4096)).serving().mortal(Mortal::Never),
            Start::new("reader", 1, move |rdma| read(rdma, noted.clone())).mortal(Mortal::Never),
        ];
        sim.set_programs(Setup { programs, exchange_ps: 1_000_000, ..Setup::default() });
        sim.run(u64::MAX, u64::MAX);
        assert!(sim.programs_ended());
        let times = times.take();
        let spent: Vec<u64> = times[..5].windows(2).map(|pair| pair[1] - pair[0]).collect();
        (spent, times[5])
    };
    // A program that spins never sleeps, so that nothing wakes it.
    let spins = Profile { cpu_wake: 0, ..profiles::by_name("connectx5").unwrap() };
    let (nic, poll, copy) = (2_323_240, 2_513_000, 4096 * 80);
    assert_eq!(steps(spins), (vec![0, nic, poll, copy], 1_000_000));
    assert_eq!(nic + poll + copy, 5_163_920, "5.18 us in the paper's figure 10");
    // Each processor key moves its own step and no other: a post, a wake, a poll, a copy.
    let wake = 9_620_000;
    let cases = [
        (Profile { cpu_post: 700_000, ..spins }, [700_000, nic, poll, copy], 0),
        (Profile { cpu_wake: wake, ..spins }, [0, nic + wake, poll, copy], wake),
        (Profile { cpu_poll: 2 * poll, ..spins }, [0, nic, 2 * poll, copy], 0),
        (Profile { cpu_copy: spins.cpu_copy / 2, ..spins }, [0, nic, poll, 2 * copy], 0),
        (Profile { cpu_spin: 2 * spins.cpu_spin, ..spins }, [0, nic, poll, copy], 0),
        (Profile { cpu_cores: 1, cpu_slice: 1_000_000, ..spins }, [0, nic, poll, copy], 0),
    ];
    for (hardware, wanted, wakes) in cases {
        assert_eq!(steps(hardware), (wanted.to_vec(), 1_000_000 + wakes), "{hardware:?}");
    }
}

/// Programs of one host connect to each other, and one to itself: their frames stay in the NIC, and see no
/// link.
#[test]
fn programs_of_one_host_talk_to_each_other() {
    async fn talk(rdma: Rdma, took: Rc<RefCell<u64>>) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(64, all()).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("words", &[], &Connect::default(), None).await?;
        let words = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        let begun = rdma.now().await?;
        for n in 0..100 {
            assert_eq!(qp.fetch_add((&words, 0), 1, (&own, 0)).await?, n);
            own.store(8, n).await?;
            qp.write((&own, 8), 8, (&words, 8)).await?;
            qp.read((&own, 16), 8, (&words, 8)).await?;
            assert_eq!(own.load(16).await?, n);
        }
        *took.borrow_mut() = rdma.now().await?.since(begun).as_ps();
        let itself = pd.create_rc(&cq, Caps::default()).await?;
        itself.connect_to_itself(&Connect::default()).await?;
        let own_words = own.remote();
        assert_eq!(itself.fetch_add((&own_words, 24), 7, (&own, 32)).await?, 0);
        assert_eq!(own.load(24).await?, 7);
        Ok(())
    }
    let trial = |hardware| {
        let took = Rc::new(RefCell::new(0));
        let told = took.clone();
        let programs = vec![
            Start::new("server", 0, |rdma| serve(rdma, "words", 64)).serving().mortal(Mortal::Never),
            Start::new("client", 0, move |rdma| talk(rdma, told.clone())).mortal(Mortal::Never),
        ];
        let mut sim = Sim::new(Config { hardware, ..two_hosts() }).unwrap();
        sim.set_programs(Setup { programs, ..Setup::default() });
        sim.run(u64::MAX, u64::MAX);
        sim.check_invariants();
        let (_, doing, ..) = sim.programs().nth(1).unwrap();
        assert_eq!(*doing, Doing::Ended(Ok(())));
        assert_eq!(sim.stats().link_hops, 0, "a link saw a frame");
        *took.borrow()
    };
    assert_eq!(trial(Profile::NEUTRAL), 0, "what costs nothing takes no time");
    let costly = trial(Profile { execute: 100_000, completion: 50_000, ..Profile::NEUTRAL });
    assert_eq!(costly, 300 * 150_000, "a WQE and a completion for each of three operations");
}

/// A program that waits for a word sees a peer's WRITE of it `pcie-write` after the NIC has written it, and
/// finds that out in `cpu-spin`; no other wait becomes later.
#[test]
fn a_word_that_the_nic_writes_is_seen_later() {
    type Times = Rc<RefCell<Vec<u64>>>;
    async fn wait(rdma: Rdma, times: Times) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(64, all()).await?;
        own.store(8, 7).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        qp.connect_to_itself(&Connect::default()).await?;
        let note = async || rdma.now().await.map(|now| times.borrow_mut().push(now.as_ps()));
        let write = SendRequest {
            wr_id: 1,
            op: SendOp::Write(own.addr(), own.remote().rkey),
            flags: SendFlags { signaled: true, ..SendFlags::default() },
            data: Data::Piece(own.piece(8, 8)?),
            ud: None,
            xrc_srqn: 0,
        };
        // Once by the word, and once, when the word is what it was, by the completion.
        note().await?;
        qp.post(vec![write.clone()]).await?;
        rdma.until(&[On::Word(&own, 0, 0)], None).await?;
        note().await?;
        assert_eq!(own.load(0).await?, 7);
        rdma.sleep(Duration::from_us(100)).await?;
        cq.poll(1).await?;
        note().await?;
        qp.post(vec![write]).await?;
        rdma.until(&[On::Word(&own, 0, 7), On::Cq(&cq)], None).await?;
        note().await
    }
    let steps = |hardware: Profile| {
        let times = Times::default();
        let noted = times.clone();
        let programs =
            vec![Start::new("waiter", 0, move |rdma| wait(rdma, noted.clone())).mortal(Mortal::Never)];
        let sim = run(hardware, Setup { programs, ..Setup::default() });
        assert!(sim.programs_ended());
        let times = times.take();
        [times[1] - times[0], times[3] - times[2]]
    };
    let p = Profile { execute: 100_000, completion: 50_000, ..Profile::NEUTRAL };
    assert_eq!(steps(p), [100_000, 150_000]);
    assert_eq!(steps(Profile { pcie_write: 280_000, ..p }), [380_000, 150_000]);
    assert_eq!(steps(Profile { pcie_write: 280_000, cpu_spin: 9_000, ..p }), [389_000, 150_000]);
}

/// Memory on the NIC has addresses from 0 on, two regions of it the same ones under other keys; there are 4
/// MiB of it for all programs of a host; and where hardware costs time, what is done to it takes no turn over
/// PCIe.
#[test]
fn memory_on_the_nic_is_zero_based_bounded_and_near() {
    async fn lend(rdma: Rdma, on_chip: bool) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let other = pd.device_region(64, all()).await?;
        other.store(8, 77).await?;
        let words = if on_chip { pd.device_region(64, all()).await? } else { pd.region(64, all()).await? };
        assert_eq!((other.addr(), words.addr() == 0), (0, on_chip));
        assert_ne!(other.remote().rkey, words.remote().rkey);
        words.write(16, &[5; 8]).await?;
        assert_eq!((words.load(8).await?, words.read(16, 4).await?), (0, vec![5; 4]));
        let (len, free) = ((4 << 20) - 63, (4 << 20) - if on_chip { 128 } else { 64 });
        let beyond = pd.device_region(len, all()).await;
        assert_eq!(beyond.err(), Some(Error::DeviceMemory { len, free }));
        let listener = rdma.listen("words").await?;
        let asked = listener.accept().await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let line = asked.accept(&qp, &words.remote().to_bytes(), &Connect::default()).await?;
        rdma.until(&[On::Gone(&line)], None).await?;
        assert_eq!((other.load(8).await?, words.load(8).await?), (77, 100), "the key says which");
        drop((qp, words, other));
        // Both have gone, and all of it is there again, once no queue pair is left.
        pd.device_region(4 << 20, all()).await.map(drop)
    }
    async fn swap(rdma: Rdma, took: Rc<RefCell<[u64; 2]>>) -> Result<(), Error> {
        let pd = rdma.create_pd().await?;
        let cq = rdma.create_cq(16).await?;
        let own = pd.region(64, all()).await?;
        let qp = pd.create_rc(&cq, Caps::default()).await?;
        let (_line, told) = qp.connect("words", &[], &Connect::default(), None).await?;
        let words = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
        let begun = rdma.now().await?;
        for n in 0..100 {
            assert_eq!(qp.compare_swap((&words, 8), (n, n + 1), (&own, 0)).await?, n);
        }
        let swapped = rdma.now().await?;
        for _ in 0..100 {
            qp.read((&own, 8), 8, (&words, 8)).await?;
        }
        *took.borrow_mut() = [swapped.since(begun).as_ps(), rdma.now().await?.since(swapped).as_ps()];
        Ok(())
    }
    let rack = profiles::by_name("connectx5-rack").unwrap();
    let [host, chip] = [false, true].map(|on_chip| {
        let took = Rc::new(RefCell::new([0; 2]));
        let told = took.clone();
        let programs = vec![
            Start::new("server", 0, move |rdma| lend(rdma, on_chip)).mortal(Mortal::Never),
            Start::new("client", 1, move |rdma| swap(rdma, told.clone())).mortal(Mortal::Never),
        ];
        let sim = run(rack, Setup { programs, ..Setup::default() });
        assert!(
            sim.programs().all(|(_, doing, ..)| *doing == Doing::Ended(Ok(()))),
            "{:?}",
            sim.programs().collect::<Vec<_>>()
        );
        let took = *took.borrow();
        took.map(|ps| ps / 100_000)
    });
    // In ns, of one: as `a_rack_adds_its_switch` has it of single requests.
    assert_eq!([host[0] - chip[0], host[1] - chip[1]], [420, 350], "{host:?} {chip:?}");
}
