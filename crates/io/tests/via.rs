//! NICs behind a switch's process: addresses that no interface has, programs of the switch, its loss and its
//! end.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use adverb_io::program::{self, Programs};
use adverb_io::{Host, Settings};
use adverb_rdma::{
    Access, Asked, Caps, Connect, Duration, Error, Listener, On, Rdma, Region, Remote, Status,
};
use adverb_switchd::{Config, Process, Question, Stopper, control};
use serde_json::Value;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A switch on a thread, in a folder that goes with it.
struct Running {
    folder: PathBuf,
    path: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(test: &str, text: &str) -> Running {
        let folder = PathBuf::from(format!("/dev/shm/adverb-io-test-{}-via-{test}", std::process::id()));
        let (path, stopper, thread) = Running::begin(&folder, text);
        Running { folder, path, stopper, thread: Some(thread) }
    }

    fn begin(folder: &Path, text: &str) -> (PathBuf, Stopper, JoinHandle<()>) {
        let mut process = Process::open(Config::parse(text).unwrap(), folder).unwrap();
        let (path, stopper) = (process.path().to_owned(), process.stopper());
        (path, stopper, std::thread::spawn(move || process.run().unwrap()))
    }

    fn stop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Settings of an address; which host's it is says the folder.
    fn settings(&self, address: &str, host: &str) -> Settings {
        let folder = self.folder.join(host);
        let text = format!("address={address},directory={},via={}", folder.display(), self.path.display());
        Settings::parse(&text).unwrap()
    }

    fn open(&self, address: &str) -> Rc<Programs> {
        Programs::open(&self.settings(address, address)).unwrap_or_else(|error| panic!("{error}"))
    }

    fn show(&self) -> Value {
        control::ask(&self.path, &Question::Show {}).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn rendezvous() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Who asks, unless the program is asked to end before anybody does.
async fn accept(rdma: &Rdma, listener: &Listener) -> Result<Asked, Error> {
    match rdma.until(&[On::Asked(listener), On::Stop], None).await? {
        Some(0) => listener.accept().await,
        _ => Err(Error::Left),
    }
}

/// Memory for others until the word at its end is set; returns the first word then. An error, if the program
/// is asked to end before that.
async fn serve(rdma: Rdma, name: String) -> Result<u64, Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory = pd.region(1 << 20, ALL).await?;
    let listener = rdma.listen(&name).await?;
    let asked = accept(&rdma, &listener).await?;
    let qp = pd.create_rc(&cq, Caps::default()).await?;
    let _line = asked.accept(&qp, &memory.remote().to_bytes(), &Connect::default()).await?;
    match rdma.until(&[On::Word(&memory, END, 0), On::Stop], None).await? {
        Some(0) => memory.load(0).await,
        _ => Err(Error::Left),
    }
}

const END: u64 = (1 << 20) - 8;
/// Rounds of a client that nobody tells otherwise.
const ROUNDS: u64 = 200;
/// Within this a switch decides about a word.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Writes and reads 64 KB and counts by atomics, for as many rounds as `go_on` wants, which is asked with
/// their number before each. Returns how many it were.
async fn work(rdma: Rdma, name: String, mut go_on: impl FnMut(u64) -> bool) -> Result<u64, Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory: Region = pd.region(1 << 20, ALL).await?;
    let qp = pd.create_rc(&cq, Caps::default()).await?;
    let patience = rdma.now().await? + Duration::from_ms(20_000);
    let own = memory.remote().to_bytes();
    let (_line, told) = qp.connect(&name, &own, &Connect::default(), Some(patience)).await?;
    let peer = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    let bytes: Vec<u8> = (0..64 << 10).map(|i: u32| (i / 7) as u8).collect();
    memory.write(4096, &bytes).await?;
    let mut was = 0;
    while go_on(was) {
        if was % 50 == 0 {
            qp.write((&memory, 4096), 64 << 10, (&peer, 4096)).await?;
            qp.read((&memory, 128 << 10), 64 << 10, (&peer, 4096)).await?;
            assert_eq!(memory.read(128 << 10, 64 << 10).await?, bytes);
        }
        assert_eq!(qp.fetch_add((&peer, 0), 1, (&memory, 0)).await?, was);
        assert_eq!(qp.compare_swap((&peer, 0), (was, 7), (&memory, 0)).await?, was + 1, "refused");
        was += 1;
    }
    memory.store(8, 1).await?;
    qp.write((&memory, 8), 8, (&peer, END)).await?;
    Ok(was)
}

/// For [`both`]: so many rounds, with `between` in the middle.
fn halves(between: impl FnOnce()) -> impl FnMut(u64) -> bool {
    let mut between = Some(between);
    move |round| {
        if round == ROUNDS / 2 {
            between.take().into_iter().for_each(|between| between());
        }
        round < ROUNDS
    }
}

/// Asks a program to end when it goes: after what was to be done, or as that has failed.
struct Ends(program::Stopper);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Runs a server on a thread of its own, and a client, which is given its rendezvous; when that one is done,
/// or has failed, the server is asked to end.
fn beside<S: Send, R>(
    running: &Running,
    server: impl AsyncFnOnce(Rdma, String) -> S + Send,
    client: impl FnOnce(String) -> R,
) -> (S, R) {
    let name = rendezvous();
    let there = name.clone();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || {
            let programs = running.open("10.9.0.1");
            tell.send(programs.stopper()).unwrap();
            programs.block_on(server(Rdma::new(programs.clone()), there))
        });
        let ends = Ends(told.recv().expect("the server's NIC is open"));
        let done = client(name);
        drop(ends);
        (serving.join().unwrap(), done)
    })
}

fn both(running: &Running, go_on: impl FnMut(u64) -> bool) {
    let (served, rounds) = beside(running, serve, |name| {
        let programs = running.open("10.9.0.2");
        programs.block_on(work(Rdma::new(programs.clone()), name, go_on)).unwrap()
    });
    assert_eq!(served, Ok(rounds));
}

/// A test whose client fails must fail, and not wait for its server.
#[test]
fn a_client_that_fails_leaves_no_server_that_waits() {
    for has_come in [false, true] {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let running = Running::start(&format!("fails-{has_come}"), "");
            let failed = catch_unwind(AssertUnwindSafe(|| match has_come {
                true => {
                    both(&running, |round| round < 3 || panic!("on purpose, in the middle of its rounds"))
                }
                false => drop(beside::<_, ()>(&running, serve, |_| panic!("on purpose, before it asks"))),
            }));
            tell.send(failed.is_err()).unwrap();
        });
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "has come: {has_come}");
    }
}

#[test]
fn nics_at_addresses_that_nobody_has_reach_each_other() {
    let running = Running::start("forward", "");
    let look = halves(|| {
        let ports = running.show()["ports"].clone();
        assert_eq!(ports.as_array().unwrap().len(), 2);
        assert!(
            ports[0]["rx_frames"].as_u64() > Some(ROUNDS) && ports[1]["rx_frames"].as_u64() > Some(ROUNDS)
        );
        // Another host's process at one of these addresses.
        let refused = Host::open(&running.settings("10.9.0.1", "elsewhere"), Box::new(|_| ())).map(drop);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("10.9.0.1") && refused.contains("another host"), "{refused}");
    });
    both(&running, look);
}

#[test]
fn atomics_that_the_switch_decides_come_out_the_same() {
    let text = "[faults]\nloss = 0.01\nduplicate = 0.01\ncorrupt = 0.01\nseed = 3\n\
                [[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'";
    let running = Running::start("cas", text);
    // A word is learned a packet's life, one second, after its first atomic; from then on the switch decides.
    let deadline = Instant::now() + PATIENCE;
    both(&running, |round| {
        if !round.is_multiple_of(20) {
            return true;
        }
        let counters = running.show()["counters"].clone();
        let count = |name: &str| counters[name].as_u64().unwrap();
        assert!(Instant::now() < deadline, "{counters}");
        let decides = count("fetch_added") > 50 && count("cas_refused") > 50 && count("answered") > 100;
        !decides || count("drop_icrc") + count("drop_parse") == 0
    });
}

#[test]
fn a_switch_that_ends_and_comes_back_loses_nothing_for_good() {
    let mut running = Running::start("again", "");
    let folder = running.folder.clone();
    let (stopper, thread) = (running.stopper.clone(), running.thread.take().unwrap());
    let mut second = None;
    let restart = halves(|| {
        stopper.stop();
        thread.join().unwrap();
        second = Some(Running::begin(&folder, ""));
    });
    both(&running, restart);
    let (_, stopper, thread) = second.unwrap();
    (running.stopper, running.thread) = (stopper, Some(thread));
    assert!(running.show()["counters"]["rx_frames"].as_u64() > Some(ROUNDS));
}

#[test]
fn what_is_wrong_with_a_way_through_a_switch_is_said() {
    let running = Running::start("wrong", "");
    let open = |text: &str| {
        let settings = Settings::parse(&format!("directory={},{text}", running.folder.display())).unwrap();
        Host::open(&settings, Box::new(|_| ())).map(drop).unwrap_err().to_string()
    };
    let none = open("address=10.9.0.1,via=sw9");
    assert!(none.contains("sw9") && none.contains("adverb switch run"), "{none}");
    assert!(open("via=sw0").contains("needs an address="));
    assert!(open("address=0.0.0.0,via=sw0").contains("no host's address"));
}

/// A peer that lives, until it is asked to end.
async fn stay(rdma: Rdma, name: String) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory = pd.region(64, ALL).await?;
    let listener = rdma.listen(&name).await?;
    let asked = accept(&rdma, &listener).await?;
    let qp = pd.create_rc(&cq, Caps::default()).await?;
    let _line = asked.accept(&qp, &memory.remote().to_bytes(), &Connect::default()).await?;
    rdma.until(&[On::Stop], None).await.map(drop)
}

/// One WRITE; how it ends.
async fn write_once(rdma: Rdma, name: String, how: Connect) -> Result<(), Error> {
    let pd = rdma.create_pd().await?;
    let cq = rdma.create_cq(64).await?;
    let memory = pd.region(64, ALL).await?;
    let qp = pd.create_rc(&cq, Caps::default()).await?;
    let patience = rdma.now().await? + Duration::from_ms(20_000);
    let (_line, told) = qp.connect(&name, &memory.remote().to_bytes(), &how, Some(patience)).await?;
    let peer = Remote::from_bytes(&told).ok_or(Error::Garbled("a region"))?;
    qp.write((&memory, 0), 8, (&peer, 0)).await.map(drop)
}

/// Where a port loses all that is for its processes, or all that they say, a request leaves once and once
/// more for each retry, and fails when as many timeouts are over. A host that was late to one excuses it.
#[test]
fn who_is_cut_off_is_tried_as_often_as_configured() {
    for (direction, timeout, retries) in [("tx", 14, 7), ("tx", 16, 2), ("tx", 17, 0), ("rx", 16, 2)] {
        let faults = format!("faults = {{ loss = 1.0, direction = '{direction}' }}");
        let text = format!("[[port]]\naddress = '10.9.0.1'\n{faults}");
        let running = Running::start(&format!("cut-off-{direction}-{retries}"), &text);
        let (stayed, (took, port, [counted, excused])) = beside(&running, stay, |name| {
            let programs = running.open("10.9.0.2");
            let how = Connect { timeout, retries, ..Connect::default() };
            let begun = Instant::now();
            let ended = programs.block_on(write_once(Rdma::new(programs.clone()), name, how));
            let took = begun.elapsed();
            // A port goes with its processes.
            let ports = running.show()["ports"].as_array().unwrap().clone();
            let port = ports.into_iter().find(|port| port["address"] == "10.9.0.1").unwrap();
            let failed = matches!(ended, Err(Error::Failed { status: Status::TransportRetryExceeded, .. }));
            assert!(failed, "{direction} {retries}: {ended:?}");
            let text = programs.host().counters_text();
            let count = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
            };
            (took, port, ["timeouts", "timeouts_excused"].map(count))
        });
        assert_eq!(stayed, Ok(()));
        let tries = u64::from(retries) + 1;
        assert_eq!(counted, tries, "{direction} {retries}: {excused} excused");
        let wait = std::time::Duration::from_nanos(4096 << timeout);
        let longest = wait * (tries + excused) as u32 + std::time::Duration::from_secs(3);
        assert!((wait * tries as u32..longest).contains(&took), "{direction} {retries}: {took:?}, {excused}");
        assert_eq!(port["tx_frames"], tries + excused, "{direction} {retries}: {port}");
        let lost = port[format!("{direction}_faults")]["lost"].as_u64();
        assert!(lost == Some(tries + excused) || direction == "rx" && lost > Some(0), "{port}");
    }
}
