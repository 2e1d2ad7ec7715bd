//! `adverb star`: services without connections, over real processes. The timestamp oracle is the StaR paper's
//! own case of a server with thousands of clients. And a running program's connections change their roles.

use crate::args::Nic;
use crate::bench::Times;
use crate::error::Error;
use crate::output::{answer, print};
use crate::remote::span;
use crate::settings::from_options;
use crate::star_registry::{Registry, registry};
use adverb_apps::oracle::{self, Oracle as Source};
use adverb_io::roles::{self, To};
use adverb_io::star::{ClientConfig, ClientId, Desk, Mtu, Outcome, ServiceConfig, Waker};
use adverb_os::{say, signals, sys};
use adverb_wire::{Duration as Time, Gid, Instant, QpNumber};
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Shown by `adverb star --help`.
pub const EXAMPLES: &str = "\
A service answers requests without connections: a client shows a sealed ticket with each, the server keeps
nothing of a client that asks nothing, and no request is executed twice. The oracle gives timestamps, each
greater than all before. It is found at a TCP port of its host (--at), which also tells what it has used;
requests go over the NIC.

`switch` tells a program that runs under `adverb run` with a transport of StaR's to change its connections
while they last, and says what became of each queue pair: rc is plain RC, a server keeps nothing of them, a
client keeps both sides' state. The peer takes the other side. The exit status is 1 if one did not change.

`registry` is the agent of an address for programs with `adverb run --star-registry on`: what their NICs send
to stateless peers needs a rule, which the server grants with its memory and takes back with it. Agents know
each other by certificates.

Examples:
  adverb star oracle serve &
  adverb star oracle bench --clients 1000 --time 3s
  adverb star oracle bench --clients 50000 --idle
  adverb star switch --pid 4711 --to server
  adverb certs --out certs one=127.0.0.1 two=127.0.0.2
  adverb star registry --address 127.0.0.1 --ca certs/ca.pem --cert certs/one.pem --key certs/one.key";

/// Timestamps that a request of `bench` asks for.
const COUNT: u32 = 1;
/// Hellos and requests under way while clients are opened, or asked one after another.
const BATCH: usize = 64;
/// How long anything may take that is not measured.
const PATIENCE: Time = Time::from_ms(60_000);
/// Bytes of the line that tells where the service is.
const LINE: usize = 256;

/// `adverb star`.
#[derive(Subcommand, Debug)]
pub enum Star {
    /// A timestamp oracle: serve, bench
    #[command(subcommand)]
    Oracle(Oracle),
    /// Change what a running program's connections are, while they last
    Switch(Switch),
    /// Carry the rules of what StaR's clients may send to its servers, for the processes of an address
    Registry(Registry),
}

/// `adverb star switch`.
#[derive(Args, Debug)]
pub struct Switch {
    /// The program's process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: u32,
    /// What its side of the connections is to be: rc, server (stateless) or client (keeps both sides' state)
    #[arg(long, value_name = "ROLE", value_parser = role)]
    pub to: To,
    /// Only this queue pair, by its number as --trace prints it
    #[arg(long, value_name = "N", value_parser = number)]
    pub qp: Option<u32>,
}

fn role(word: &str) -> Result<To, String> {
    To::parse(word).ok_or_else(|| "give rc, server or client".to_owned())
}

fn number(word: &str) -> Result<u32, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.map_err(|error| format!("{error}; give the number of a queue pair, as 0x10a4f or 68175"))
}

/// `adverb star oracle`.
#[derive(Subcommand, Debug)]
pub enum Oracle {
    /// Give timestamps until ended by a signal
    Serve(Box<Serve>),
    /// Ask for timestamps, check that each is greater than all before, print the rate and the times
    Bench(Box<Bench>),
}

/// `adverb star oracle serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where clients find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_ORACLE", default_value = "127.0.0.1:7463")]
    pub at: String,
    /// For how long a request may be on its way, and its client goes on asking: longer than a process of a
    /// busy host waits for a processor, 1ms to 10s
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "100ms")]
    pub lifetime: Duration,
    /// Requests that are remembered, so that none is executed twice: rate times lifetime, and half as many
    /// more
    #[arg(long, value_name = "N", default_value_t = 1 << 18,
        value_parser = clap::value_parser!(u32).range(1 << 10..=1 << 20))]
    pub remembered: u32,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// `adverb star oracle bench`.
#[derive(Args, Debug)]
pub struct Bench {
    /// Where the oracle is
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_ORACLE", default_value = "127.0.0.1:7463")]
    pub at: String,
    /// Clients in this process
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub clients: u32,
    /// Requests under way at once, over random clients
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub outstanding: u32,
    /// How long to ask; with --idle, how long to ask nothing
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
    /// Each client asks once, then nothing, then once more: print what they cost the server meanwhile
    #[arg(long, conflicts_with = "outstanding")]
    pub idle: bool,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// Runs it.
pub fn star(action: &Star) -> Result<ExitCode, Error> {
    match action {
        Star::Oracle(Oracle::Serve(options)) => serve(options),
        Star::Oracle(Oracle::Bench(options)) => bench(options),
        Star::Switch(options) => switch(options),
        Star::Registry(options) => registry(options),
    }
}

/// Tells a process, and prints what became of its queue pairs.
fn switch(options: &Switch) -> Result<ExitCode, Error> {
    let Switch { pid, to, qp } = *options;
    let failed = |error| Error::Remote(format!("--pid {pid}: {error}"));
    let became = roles::switch(pid, to, qp).map_err(failed)?;
    if became.is_empty() {
        let text = match qp {
            Some(number) => format!(
                "--qp {number:#x}: process {pid} has no such queue pair connected, or StaR does not carry \
                 it; --trace tells numbers, and without --qp all are changed"
            ),
            None => format!("--pid {pid}: the process has no connection that StaR carries"),
        };
        return Err(Error::Remote(text));
    }
    let mut out = String::new();
    for one in &became {
        let _ = writeln!(out, "qp {:#x} {}", one.number, one.words);
    }
    print(&out)?;
    let all = became.iter().all(|one| one.done);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Opens the NIC for a loop that SIGINT and SIGTERM end.
fn desk(nic: &Nic) -> Result<Desk, Error> {
    let settings = from_options(nic)?;
    // Signals are kept from all threads, those of the NIC too, so before it is opened.
    let (sender, wakers) = mpsc::channel::<Waker>();
    signals::on_stop(move || {
        // Without one the NIC was not opened, and the command has ended.
        if let Ok(waker) = wakers.recv() {
            waker.stop();
        }
    })
    .map_err(|error| Error::Device(format!("waiting for signals: {error}")))?;
    let desk = Desk::open(&settings).map_err(|error| Error::Device(error.to_string()))?;
    // Nobody receives it only if the signals' thread has ended.
    let _ = sender.send(desk.waker());
    Ok(desk)
}

/// What the oracle tells at its port.
#[derive(Default)]
struct Told {
    served: AtomicU64,
    service_bytes: AtomicU64,
}

fn serve(options: &Serve) -> Result<ExitCode, Error> {
    let Serve { remembered, lifetime, .. } = *options;
    if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&lifetime) {
        return Err(Error::Options(format!("--lifetime {lifetime:?}: give 1ms to 10s")));
    }
    let failed = |error: &dyn std::fmt::Display| Error::Remote(format!("--at {}: {error}", options.at));
    let door = TcpListener::bind(&options.at).map_err(|error| failed(&error))?;
    let desk = desk(&options.nic)?;
    let lifetime = time_of(lifetime);
    let config = ServiceConfig { mtu: Mtu::M256, remembered, lifetime, ..ServiceConfig::default() };
    let service = desk.serve(&config).map_err(|error| Error::Device(error.to_string()))?;
    let told = Arc::new(Told::default());
    let bytes = service.bytes().map_err(|error| Error::Device(error.to_string()))?;
    told.service_bytes.store(bytes as u64, Ordering::Relaxed);
    let (gid, number, tells) = (desk.address(), service.number, told.clone());
    std::thread::Builder::new()
        .name("door".to_owned())
        .spawn(move || keep_door(&door, gid, number, &tells))
        .map_err(|error| failed(&error))?;
    say::announce(format_args!("oracle ready at {}, service {} of {}", options.at, number.get(), gid.ip()));
    let mut source = Source::default();
    while desk.wait(
        || {
            let now_ms = desk.host().wallclock_ns(desk.host().now()) / 1_000_000;
            let served = service.answer(|request, reply| {
                let mut first = [0; 8];
                let len = source.answer(now_ms, request, &mut first);
                reply[..len].copy_from_slice(&first[..len]);
                len
            });
            if let Ok(bytes) = service.bytes() {
                told.service_bytes.store(bytes as u64, Ordering::Relaxed);
            }
            told.served.fetch_add(served as u64, Ordering::Relaxed);
            served > 0
        },
        None,
    ) {}
    Ok(answer(format_args!("{} timestamps' requests served", told.served.load(Ordering::Relaxed))))
}

/// In place of the bytes of a heap that the C library does not tell of.
const UNTOLD: &str = "-";

/// Tells everyone who connects where the service is, and what it has used so far. Takes no memory for it.
fn keep_door(door: &TcpListener, gid: Gid, number: QpNumber, told: &Told) {
    for stream in door.incoming() {
        let Ok(mut stream) = stream else { continue };
        let mut line = [0; LINE];
        let mut rest = &mut line[..];
        let (served, bytes) =
            (told.served.load(Ordering::Relaxed), told.service_bytes.load(Ordering::Relaxed));
        // It has room, and whoever went meanwhile does not need it.
        let _ = write!(rest, "{} {} {served} {bytes} ", gid.ip(), number.get());
        let _ = match sys::heap_in_use() {
            Some(heap) => writeln!(rest, "{heap}"),
            None => writeln!(rest, "{UNTOLD}"),
        };
        let len = LINE - rest.len();
        let _ = stream.write_all(&line[..len]);
    }
}

/// What the oracle has told.
#[derive(Clone, Copy, Debug)]
struct Status {
    server: Gid,
    service: QpNumber,
    served: u64,
    /// Of the service; of all that its process's allocator has given, where that is told.
    bytes: u64,
    heap: Option<u64>,
}

fn status(at: &str) -> Result<Status, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::Remote(format!("--at {at}: {error}; is `adverb star oracle serve` running there?"))
    };
    let mut text = String::new();
    TcpStream::connect(at)
        .and_then(|stream| stream.take(LINE as u64).read_to_string(&mut text))
        .map_err(|error| failed(&error))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    let read = || {
        let ip = words.first()?.parse::<IpAddr>().ok()?;
        let service = u32::try_from(number(1)?).ok().filter(|number| number >> 24 == 0)?;
        let (served, bytes) = (number(2)?, number(3)?);
        let heap = if *words.get(4)? == UNTOLD { None } else { Some(number(4)?) };
        Some(Status { server: Gid::from(ip), service: QpNumber::new(service), served, bytes, heap })
    };
    read().ok_or_else(|| failed(&"what answers there is no oracle"))
}

/// What came of requests so far.
#[derive(Default)]
struct Tally {
    /// The greatest timestamp so far.
    last: u64,
    times: Vec<u64>,
    lost: u64,
    /// Timestamps that were not greater than one that was known when they were asked for.
    disordered: u64,
    refused: u64,
    under_way: usize,
}

/// A request under way, by its tag: when it was asked, and the greatest timestamp that was known then.
#[derive(Clone, Copy)]
struct Asked {
    at: Instant,
    known: u64,
}

struct Asker {
    desk: Desk,
    clients: Vec<ClientId>,
    tally: Tally,
    asked: Vec<Asked>,
    free: Vec<u64>,
    ready: usize,
    unanswered: usize,
}

impl Asker {
    fn ask(&mut self, client: ClientId) -> Result<(), Error> {
        let now = self.desk.host().now();
        let entry = Asked { at: now, known: self.tally.last };
        let tag = match self.free.pop() {
            Some(tag) => tag,
            None => {
                self.asked.push(entry);
                self.asked.len() as u64
            }
        };
        self.asked[tag as usize - 1] = entry;
        self.tally.under_way += 1;
        let sent = self.desk.request(client, tag, &oracle::request(COUNT));
        sent.map_err(|error| Error::Device(format!("a request: {error}")))
    }

    /// Takes what has come.
    fn take(&mut self) -> usize {
        let Asker { desk, tally, asked, free, ready, unanswered, .. } = self;
        let now = desk.host().now();
        desk.reached(|reached, bytes| {
            match reached.outcome {
                Outcome::Ready => {
                    *ready += 1;
                    return;
                }
                Outcome::NoService if reached.tag == 0 => {
                    *unanswered += 1;
                    return;
                }
                Outcome::Reply(_) => {
                    let Asked { at, known } = asked[reached.tag as usize - 1];
                    match oracle::first(bytes) {
                        Some(first) if first > known => tally.last = tally.last.max(first),
                        Some(_) => tally.disordered += 1,
                        None => tally.refused += 1,
                    }
                    tally.times.push(now.since(at).as_ns());
                }
                Outcome::ReplyLost | Outcome::NoService => tally.lost += 1,
                Outcome::Refused => tally.refused += 1,
            }
            tally.under_way -= 1;
            free.push(reached.tag);
        })
    }

    /// Makes rounds until something has come, or until then. False when it is to end.
    fn wait(&mut self, until: Instant) -> bool {
        let goes_on = self.desk.wait(|| self.desk.has_reached(), Some(until));
        self.take();
        goes_on
    }

    /// Opens clients, some at a time, until there are so many. False when it is to end.
    fn open(&mut self, status: &Status, count: usize) -> Result<bool, Error> {
        let config = ClientConfig { server: status.server, service: status.service, gid: 0 };
        let end = self.desk.host().now() + PATIENCE;
        while self.ready < count {
            while self.clients.len() < count && self.clients.len() < self.ready + BATCH {
                let opened = self.desk.client(&config);
                self.clients.push(opened.map_err(|error| Error::Device(format!("a client: {error}")))?);
            }
            if !self.wait(end) {
                return Ok(false);
            }
            if self.unanswered > 0 || self.desk.host().now() >= end {
                return Err(Error::Remote("the oracle did not answer a hello".to_owned()));
            }
        }
        Ok(true)
    }

    /// Each client asks once. False when it is to end.
    fn ask_each(&mut self) -> Result<bool, Error> {
        let end = self.desk.host().now() + PATIENCE;
        let mut next = 0;
        while next < self.clients.len() || self.tally.under_way > 0 {
            while next < self.clients.len() && self.tally.under_way < BATCH {
                self.ask(self.clients[next])?;
                next += 1;
            }
            if !self.wait(end) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn bench(options: &Bench) -> Result<ExitCode, Error> {
    let first = status(&options.at)?;
    let desk = desk(&options.nic)?;
    let mut asker = Asker {
        desk,
        clients: Vec::new(),
        tally: Tally::default(),
        asked: Vec::new(),
        free: Vec::new(),
        ready: 0,
        unanswered: 0,
    };
    let goes_on = match options.idle {
        true => idle(options, &first, &mut asker)?,
        false => load(options, &first, &mut asker)?,
    };
    let Tally { disordered, refused, lost, .. } = asker.tally;
    let bad = disordered + refused;
    if bad > 0 {
        say!("adverb: {disordered} timestamps were not greater than all before, {refused} requests refused");
    }
    let whole = goes_on && bad == 0 && (!options.idle || lost == 0);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Keeps requests under way. False when it was ended before its time.
fn load(options: &Bench, status: &Status, asker: &mut Asker) -> Result<bool, Error> {
    if !asker.open(status, options.clients as usize)? {
        return Ok(false);
    }
    let mut rng = fastrand::Rng::with_seed(sys::random_seed());
    let start = asker.desk.host().now();
    let end = start + time_of(options.time);
    let mut goes_on = true;
    while goes_on && asker.desk.host().now() < end {
        while asker.tally.under_way < options.outstanding as usize {
            asker.ask(asker.clients[rng.usize(..asker.clients.len())])?;
        }
        goes_on = asker.wait(end);
    }
    let seconds = asker.desk.host().now().since(start).as_ns() as f64 / 1e9;
    let tally = &mut asker.tally;
    let times = Times::new(std::mem::take(&mut tally.times));
    let text = format!(
        "{} clients, {} requests under way, {seconds:.1} s: {:.0}/s; {times}; {} replies \
         lost; in order",
        options.clients,
        options.outstanding,
        times.count() as f64 / seconds,
        tally.lost,
    );
    let text = if tally.disordered == 0 { text } else { text.replace("; in order", "; NOT in order") };
    Ok(answer(format_args!("{text}")) == ExitCode::SUCCESS && goes_on)
}

/// Opens clients, of which each asks once, has them idle, and asks each once more.
fn idle(options: &Bench, status_at_first: &Status, asker: &mut Asker) -> Result<bool, Error> {
    // The first one alone, so that what the server takes when it first works does not count.
    if !asker.open(status_at_first, 1)? || !asker.ask_each()? {
        return Ok(false);
    }
    let before = status(&options.at)?;
    if !asker.open(status_at_first, options.clients as usize)? || !asker.ask_each()? {
        return Ok(false);
    }
    let end = asker.desk.host().now() + time_of(options.time);
    while asker.desk.host().now() < end {
        if !asker.wait(end) {
            return Ok(false);
        }
    }
    let during = status(&options.at)?;
    if !asker.ask_each()? {
        return Ok(false);
    }
    let after = status(&options.at)?;
    let mut text = String::new();
    let clients = options.clients - 1;
    // Text takes all of it.
    let _ = writeln!(text, "{clients} idle clients beside one: the server's service has");
    let _ =
        writeln!(text, "  {} bytes before, {} with them, {} after", before.bytes, during.bytes, after.bytes);
    let _ = match (before.heap, during.heap) {
        (Some(before), Some(during)) => {
            let more = i128::from(during) - i128::from(before);
            let each = more as f64 / f64::from(clients.max(1));
            let _ = writeln!(
                text,
                "and its process's heap {before} bytes before, {during} with them: {more} more,"
            );
            write!(text, "  {each:.4} for each")
        }
        _ => write!(text, "and what its process's heap has its C library does not tell"),
    };
    let served = after.served - status_at_first.served;
    let lost = asker.tally.lost;
    let _ = write!(text, "; each was served before and after, {served} requests, {lost} lost");
    Ok(answer(format_args!("{text}")) == ExitCode::SUCCESS)
}

fn time_of(time: Duration) -> Time {
    Time::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 12))
}
