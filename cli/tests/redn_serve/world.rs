//! A hull with its worker, and clients of it: what tests of `adverb redn serve` share.

use adverb_io::Settings;
use adverb_io::program::Programs;
use adverb_os::sys::{ThreadState, thread_state};
use adverb_rdma::{Connect, Rdma};
use adverb_redn::service::chain::Shape;
use adverb_redn::service::client::{By, Client, Got, Half};
use adverb_redn::service::item::Item;
use adverb_redn::service::setup::{Offer, Told};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long anything may take that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "a test of real processes")]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks until it is so.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = now();
    while !is_so() {
        assert!(now() - begin < PATIENCE, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Of the variable by which processes of one run know its addresses.
pub const SERIES: &str = "ADVERB_TEST_REDN_SERIES";

/// An address that no other run of these tests uses.
pub fn address(host: u8) -> String {
    let run = std::env::var(SERIES).ok().and_then(|run| run.parse().ok()).unwrap_or_else(std::process::id);
    let [.., high, low] = run.to_be_bytes();
    format!("127.{}.{low}.{host}", 192 + high % 32)
}

pub struct Server {
    pub hull: Child,
    pub folder: PathBuf,
    pub worker: u32,
    pub setup: String,
    pub calls: String,
    /// What the hull has said on standard error is in this file.
    pub said: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.hull.kill();
        let _ = self.hull.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Server {
    pub fn start(host: u8, words: &[&str]) -> Server {
        let address = address(host);
        let folder = std::env::temp_dir().join(format!("adverb-redn-serve-{}-{host}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        command.args(["redn", "serve", "--address", &address, "--port", "0", "--calls-port", "0"]);
        command.args(["--memory", "4MB", "--keys", "1000"]).args(words);
        command.arg("--socket").arg(folder.join("socket"));
        let said = folder.join("said");
        command.stdout(Stdio::piped()).stderr(fs::File::create(&said).unwrap());
        let mut hull = command.spawn().unwrap();
        let mut lines = BufReader::new(hull.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (first, second) = (lines.next().unwrap(), lines.next().unwrap());
        let expected = format!("hull {} owns the NIC of {address}; worker ", hull.id());
        let worker = first.strip_prefix(&expected).and_then(|pid| pid.parse().ok());
        let (setup, calls) = second.split_once(", calls at ").unwrap();
        let setup = setup.strip_prefix("set-up at ").unwrap().to_owned();
        let (worker, calls) = (worker.expect(&first), calls.to_owned());
        Server { hull, folder, worker, setup, calls, said }
    }

    /// What a worker answers; `None` if none does.
    pub fn call(&self, text: impl AsRef<[u8]>) -> Option<String> {
        let stream = TcpStream::connect(&self.calls).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        (&stream).write_all(text.as_ref()).ok()?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).ok().filter(|len| *len > 0)?;
        Some(line.trim_end().to_owned())
    }

    pub fn set(&self, key: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let line = format!("set {key} 0 0 {}\r\n", value.len());
        let answer = self.call([line.as_bytes(), value, b"\r\n"].concat());
        assert_eq!(answer.as_deref(), Some("STORED"), "{key}");
    }

    pub fn counters(&self) -> BTreeMap<String, u64> {
        let stream = TcpStream::connect(&self.setup).unwrap();
        (&stream).write_all(b"counters\n").unwrap();
        let lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let pairs = lines.take_while(|line| line != "end");
        pairs
            .map(|line| line.split_once(' ').map(|(n, v)| (n.to_owned(), v.parse().unwrap())).unwrap())
            .collect()
    }

    pub fn worker(&self) -> u32 {
        self.counters()["worker"] as u32
    }
}

/// A process's threads, by their numbers.
pub fn tasks(pid: u32) -> Vec<i32> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    listed.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Sends a signal. Who is to stop has stopped then: a process's other threads run on until the one that the
/// kernel gave the signal has had a processor.
pub fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().unwrap().success());
    if name == "STOP" {
        let is_stopped = |task| thread_state(pid, task as u32) == ThreadState::Stopped;
        wait_for("it stops", || tasks(pid).into_iter().all(is_stopped));
    }
}

/// As the kernel shows the name of the thread that moves frames.
pub const NIC_THREAD: &str = "adverb";

/// A NIC of this thread's.
pub fn open(host: u8) -> (Rc<Programs>, Rdma) {
    open_with(host, "")
}

/// The same, with these settings.
pub fn open_with(host: u8, settings: &str) -> (Rc<Programs>, Rdma) {
    let text = format!("address={},{settings}", address(host));
    let programs = Programs::open(&Settings::parse(&text).unwrap()).unwrap();
    let rdma = Rdma::new(programs.clone());
    (programs, rdma)
}

pub fn shape() -> Shape {
    Shape { slots: 8, reply_len: 4096 }
}

/// Sets up, as any client does.
pub async fn connect(rdma: &Rdma, setup: &str) -> Result<(Client, TcpStream), String> {
    connect_to(By::Chain, rdma, setup, shape()).await
}

/// The same, with a hull or with its worker, for slots of this shape.
pub async fn connect_to(
    by: By,
    rdma: &Rdma,
    setup: &str,
    shape: Shape,
) -> Result<(Client, TcpStream), String> {
    let half = Half::new(rdma, shape).await.unwrap();
    let how = Connect::default();
    let endpoint = half.qp.endpoint(&how).await.unwrap();
    let offer = Offer { endpoint, buffer: half.buffer.remote(), shape, one_sided: false };
    let stream = TcpStream::connect(setup).unwrap();
    (&stream).write_all(format!("{offer}\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    let told = Told::parse(&line).map_err(|wrong| wrong.to_string())?;
    half.qp.connect_to(&endpoint, &told.endpoint, &how).await.unwrap();
    Ok((half.connected_to(by, told.layout).await.unwrap(), stream))
}

pub fn is_value(got: &Got, expected: &str) -> bool {
    let Got::Value(value) = got else { return false };
    Item::of_value(value).is_some_and(|item| item.data == expected.as_bytes())
}
