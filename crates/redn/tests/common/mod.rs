//! Chains in both worlds: over the simulator's driver, and over real NICs' in this process.
#![allow(dead_code, reason = "each suite uses a part")]

use adverb_io::Settings;
use adverb_io::program::Programs;
use adverb_rdma::{Duration, Rdma};
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::program::{Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use std::cell::RefCell;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::rc::Rc;

/// A folder of an address, which goes at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a program says, or why it failed.
pub type Said<T> = Result<T, String>;

/// A simulation of two hosts with such NICs.
pub fn fabric(hardware: &str) -> Sim {
    let hardware = match hardware.strip_suffix(" without processors") {
        Some(name) => profiles::by_name(name).map(|profile| profile.without_processors()),
        None => profiles::by_name(hardware),
    };
    let hardware = hardware.unwrap_or(Profile::NEUTRAL);
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(110) };
    let config =
        Config { payload: true, flow_bytes_max: 8, hardware, ..Config::new(Topology::two_hosts(cable)) };
    Sim::new(config).unwrap()
}

/// Runs a program on a simulated host.
pub fn in_simulator<T: 'static, F: Future<Output = Said<T>> + 'static>(
    run: impl Fn(Rdma) -> F + 'static,
) -> T {
    let said = Rc::new(RefCell::new(None));
    let kept = said.clone();
    let run = Rc::new(run);
    let start = Start::new("program", 0, move |rdma| {
        let (run, kept) = (run.clone(), kept.clone());
        async move {
            *kept.borrow_mut() = Some(run(rdma).await?);
            Ok::<(), String>(())
        }
    });
    let mut sim = fabric("neutral");
    sim.set_programs(Setup { programs: vec![start], exchange_ps: 1_000_000, ..Setup::default() });
    sim.run(u64::MAX, u64::MAX);
    let how: Vec<_> = sim.programs().map(|(_, doing, ..)| doing.clone()).collect();
    assert_eq!(sim.program_failures(), Vec::<String>::new());
    said.take().unwrap_or_else(|| panic!("{how:?}"))
}

/// Runs a program on a real NIC.
pub fn for_real<T, F: Future<Output = Said<T>>>(test: u8, run: impl Fn(Rdma) -> F) -> T {
    let path = format!("/dev/shm/adverb-redn-test-{}-{test}", std::process::id());
    let pid = std::process::id();
    let address = format!("127.{}.{}.{test}", 64 + (pid >> 8) % 64, pid % 256);
    let settings = Settings::parse(&format!("address={address},directory={path}")).unwrap();
    let _folder = Folder(path.into());
    let programs = Programs::open(&settings).unwrap_or_else(|error| panic!("{error}"));
    let rdma = Rdma::new(programs.clone());
    programs.block_on(run(rdma)).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs two programs on two simulated hosts: the first one serves.
pub fn two_in_simulator<T: 'static, A, B>(
    hardware: &str,
    serve: impl Fn(Rdma, String) -> A + 'static,
    ask: impl Fn(Rdma, String) -> B + 'static,
) -> T
where
    A: Future<Output = Said<()>> + 'static,
    B: Future<Output = Said<T>> + 'static,
{
    let said = Rc::new(RefCell::new(None));
    let kept = said.clone();
    let (serve, ask) = (Rc::new(serve), Rc::new(ask));
    let server = Start::new("server", 0, move |rdma| serve(rdma, "chain".to_owned())).serving();
    let client = Start::new("client", 1, move |rdma| {
        let (ask, kept) = (ask.clone(), kept.clone());
        async move {
            *kept.borrow_mut() = Some(ask(rdma, "chain".to_owned()).await?);
            Ok::<(), String>(())
        }
    });
    let mut sim = fabric(hardware);
    sim.set_programs(Setup { programs: vec![server, client], exchange_ps: 1_000_000, ..Setup::default() });
    sim.run(u64::MAX, u64::MAX);
    let how: Vec<_> = sim.programs().map(|(_, doing, ..)| doing.clone()).collect();
    said.take().unwrap_or_else(|| panic!("{how:?}"))
}

/// Runs two programs on two real NICs: the server in a thread of its own.
pub fn two_for_real<T, A, B>(
    test: u8,
    serve: impl Fn(Rdma, String) -> A + Send + 'static,
    ask: impl Fn(Rdma, String) -> B,
) -> T
where
    A: Future<Output = Said<()>>,
    B: Future<Output = Said<T>>,
{
    two_for_real_with((test, ""), serve, ask)
}

/// The same with more settings than the addresses.
pub fn two_for_real_with<T, A, B>(
    (test, more): (u8, &str),
    serve: impl Fn(Rdma, String) -> A + Send + 'static,
    ask: impl Fn(Rdma, String) -> B,
) -> T
where
    A: Future<Output = Said<()>>,
    B: Future<Output = Said<T>>,
{
    let name = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (sender, stopper) = std::sync::mpsc::channel();
    let at = name.clone();
    let settings = more.to_owned();
    let server = std::thread::spawn(move || {
        open((test, &settings), |programs| {
            sender.send(programs.stopper()).unwrap();
            programs.block_on(serve(Rdma::new(programs.clone()), at))
        })
    });
    let said = open((test + 1, more), |programs| programs.block_on(ask(Rdma::new(programs.clone()), name)));
    stopper.recv().unwrap().stop();
    server.join().unwrap().unwrap();
    said.unwrap_or_else(|error| panic!("{error}"))
}

fn open<T>((test, more): (u8, &str), run: impl FnOnce(Rc<Programs>) -> T) -> T {
    let pid = std::process::id();
    let path = format!("/dev/shm/adverb-redn-test-{pid}-{test}");
    let address = format!("127.{}.{}.{test}", 64 + (pid >> 8) % 64, pid % 256);
    let settings = Settings::parse(&format!("address={address},directory={path},{more}")).unwrap();
    let _folder = Folder(path.into());
    run(Programs::open(&settings).unwrap_or_else(|error| panic!("{error}")))
}

/// An error in words.
pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
