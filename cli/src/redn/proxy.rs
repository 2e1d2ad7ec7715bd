//! `adverb redn proxy`: memcached's text protocol for programs that know nothing of a NIC. Gets are answered
//! by the hull's chain; what changes the table goes to the worker, in the same protocol.
//!
//! ```text
//! get                        the chain's answer; a call, where that is unsure
//! gets, set, delete, ..      the worker's answer, or SERVER_ERROR while there is none
//! stats                      what is counted here, and what the worker counts, if it answers
//! ```

use super::connect::{Served, connect};
use super::desk::Desk;
use super::worker::Session;
use crate::args::Nic;
use crate::error::Error;
use crate::program::open_plain;
use adverb_os::signals::Quiet;
use adverb_os::sys::reset_on_close;
use adverb_os::{clock, say};
use adverb_rdma::Rdma;
use adverb_redn::service::chain::Shape;
use adverb_redn::service::client::{Client, Got};
use adverb_redn::service::item::Item;
use adverb_redn::service::memcached::{
    BAD_DATA, Command, LINE_MAX, Store, VERSION, Wrong, parse, push_value,
};
use clap::Args;
use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// For the worker to answer a call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections at once.
const CONNECTIONS_MAX: u32 = 1024;
/// Said where only the worker could answer.
const NO_WORKER: &[u8] = b"SERVER_ERROR the worker does not answer\r\n";

/// `adverb redn proxy`.
#[derive(Args, Debug)]
pub struct Options {
    /// Address and TCP port at which memcached's clients are served
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:11211")]
    pub memcached: String,
    /// The hull: its address, or address and port
    #[arg(long, value_name = "HOST[:PORT]")]
    pub server: String,
    /// Slots of the chain; a quarter of them may be gets under way
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub slots: u32,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// What connections ask of the program that owns the NIC.
enum Question {
    /// Values of keys, each of which may have none.
    Get(Vec<Vec<u8>>, Sender<Vec<Option<Got>>>),
    /// The hull has ended.
    Gone,
}

/// What is counted.
#[derive(Default)]
pub(super) struct Counters {
    gets: AtomicU64,
    hits: AtomicU64,
    calls: AtomicU64,
    calls_failed: AtomicU64,
    retries: AtomicU64,
}

/// What connections share.
struct Shared {
    desk: Arc<Desk<Question>>,
    calls: String,
    counters: Arc<Counters>,
    connections: AtomicU32,
}

#[expect(clippy::disallowed_methods, reason = "the edge")]
fn now_s() -> u64 {
    clock::realtime_ns() / 1_000_000_000
}

/// Serves until it is ended, or the hull is.
pub fn proxy(options: &Options) -> Result<ExitCode, Error> {
    let shape = Shape { slots: options.slots, ..Shape::default() };
    if !shape.is_sound() {
        return Err(Error::Options(format!("--slots {}: give 8, 16, 32, 64, 128 or 256", options.slots)));
    }
    let listening = TcpListener::bind(&options.memcached).and_then(|found| Ok((found.local_addr()?, found)));
    let (at, listener) =
        listening.map_err(|error| Error::Device(format!("--memcached {}: {error}", options.memcached)))?;
    let programs = open_plain(&options.nic)?;
    let rdma = Rdma::new(programs.clone());
    programs.block_on(async {
        let Served { client, told, line } = connect(&rdma, &options.server, shape, false).await?;
        let (desk, counters) = (Desk::new(), Arc::new(Counters::default()));
        let (calls, connections) = (told.calls.clone(), AtomicU32::new(0));
        let shared = Shared { desk: desk.clone(), calls, counters: counters.clone(), connections };
        say::announce(format_args!(
            "memcached's protocol at {at}; gets by the NIC of {}, the rest by the worker at {}",
            options.server, told.calls
        ));
        let ends = desk.clone();
        spawn("adverb-line", move || {
            // A hull says nothing more: this returns when it has ended.
            let _ = (&line).read(&mut [0]);
            ends.ask(Question::Gone);
        })?;
        spawn("adverb-accept", move || accept(&listener, &Arc::new(shared)))?;
        answer(client, &desk, &counters, shape.outstanding()).await;
        Err(Error::Remote(format!("--server {}: the hull has ended", options.server)))
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(|_| ()).map_err(|error| Error::Device(format!("starting a thread: {error}")))
}

/// Makes gets until the hull ends. Those of all connections that have asked meanwhile go together.
async fn answer(mut client: Client, desk: &Desk<Question>, counters: &Counters, under_way: u32) {
    loop {
        let (mut asked, mut next) = (Vec::new(), Some(desk.next().await));
        while let Some(question) = next {
            match question {
                Question::Get(keys, answer) => asked.push((keys, answer)),
                Question::Gone => return,
            }
            next = desk.try_next();
        }
        let keys: Vec<&[u8]> = asked.iter().flat_map(|(keys, _)| keys).map(Vec::as_slice).collect();
        let Ok(got) = client.get_all(&keys, under_way).await else { return };
        counters.retries.store(client.counters.retries, Ordering::Relaxed);
        let mut got = got.into_iter().map(Some);
        for (keys, answer) in &asked {
            // Who asked may have gone.
            let _ = answer.send(got.by_ref().take(keys.len()).collect());
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().flatten() {
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let inside = shared.clone();
        let spawned = spawn("adverb-memcached", move || {
            // Whatever went wrong, the connection ends, which says it.
            let _ = serve(&stream, &inside);
            inside.connections.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut session = Session::new(stream);
    let mut calls = Calls { to: shared.calls.as_str().into(), stream: None, counters: &shared.counters };
    while let Some(line) = session.line()? {
        let answer = match parse(&line) {
            Ok(Command::Quit) => return Ok(()),
            Ok(Command::Get { keys, versions: false }) => get(&keys, shared, &mut calls)?,
            Ok(Command::Version) => format!("VERSION {VERSION}\r\n").into_bytes(),
            Ok(Command::Stats) => stats(&shared.counters, calls.call(&line, None, Expected::End)),
            Ok(command) => match session.data(&command)? {
                Some(data) => forward(&command, &line, &data, &mut calls),
                None => BAD_DATA.as_bytes().to_vec(),
            },
            Err(Wrong { answer, swallow }) => {
                session.swallow(swallow)?;
                answer.into_bytes()
            }
        };
        session.answer(&answer)?;
    }
    Ok(())
}

/// The chain's answers; `Err` when the hull has ended.
fn get(keys: &[&[u8]], shared: &Shared, calls: &mut Calls<'_>) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    shared.desk.ask(Question::Get(keys.iter().map(|key| key.to_vec()).collect(), sender));
    let got = receiver.recv().map_err(|_| io::ErrorKind::ConnectionAborted)?;
    let mut out = Vec::new();
    shared.counters.gets.fetch_add(keys.len() as u64, Ordering::Relaxed);
    for (key, got) in keys.iter().zip(got) {
        match got {
            Some(Got::Value(value)) => {
                let Some(item) = Item::of_value(&value).filter(|item| !item.has_ended(now_s())) else {
                    continue;
                };
                shared.counters.hits.fetch_add(1, Ordering::Relaxed);
                push_value(&mut out, key, &item, None);
            }
            Some(Got::Missing) => {}
            Some(Got::Unsure) | None => {
                let line = [b"get ", *key].concat();
                match calls.call(&line, None, Expected::End) {
                    Some(answer) => out.extend_from_slice(answer.strip_suffix(b"END\r\n").unwrap_or(&answer)),
                    None => return Ok(NO_WORKER.to_vec()),
                }
            }
        }
    }
    out.extend_from_slice(b"END\r\n");
    Ok(out)
}

fn forward(command: &Command<'_>, line: &[u8], data: &[u8], calls: &mut Calls<'_>) -> Vec<u8> {
    let (data, noreply) = match command {
        Command::Store(Store { noreply, .. }) => (Some(data), *noreply),
        Command::Delete { noreply, .. } | Command::FlushAll { noreply } | Command::Verbosity { noreply } => {
            (None, *noreply)
        }
        _ => (None, false),
    };
    let expected = match command {
        Command::Get { .. } => Expected::End,
        _ if noreply => Expected::Nothing,
        _ => Expected::Line,
    };
    match calls.call(line, data, expected) {
        Some(answer) => answer,
        None if noreply => Vec::new(),
        None => NO_WORKER.to_vec(),
    }
}

fn stats(counters: &Counters, worker: Option<Vec<u8>>) -> Vec<u8> {
    let Counters { gets, hits, calls, calls_failed, retries } = counters;
    let mut out = String::new();
    for (name, counter) in [
        ("proxy_gets", gets),
        ("proxy_hits", hits),
        ("proxy_retries", retries),
        ("proxy_calls", calls),
        ("proxy_calls_failed", calls_failed),
    ] {
        out.push_str(&format!("STAT {name} {}\r\n", counter.load(Ordering::Relaxed)));
    }
    out.push_str(&format!("STAT worker_answers {}\r\n", u8::from(worker.is_some())));
    let mut out = out.into_bytes();
    out.extend_from_slice(&worker.unwrap_or_else(|| b"END\r\n".to_vec()));
    out
}

/// What a call is answered with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Nothing,
    Line,
    /// Lines, and values, up to `END`.
    End,
}

/// A connection's way to the worker.
pub(super) struct Calls<'c> {
    pub to: Cow<'c, str>,
    pub stream: Option<BufReader<TcpStream>>,
    pub counters: &'c Counters,
}

impl Calls<'_> {
    /// What the worker answers; `None` if it does not. Then it may have done what it was asked, but does not
    /// begin to.
    pub fn call(&mut self, line: &[u8], data: Option<&[u8]>, expected: Expected) -> Option<Vec<u8>> {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let answered = self.try_call(line, data, expected);
        if answered.is_err() {
            if let Some(stream) = self.stream.take() {
                // Without it the worker would do later what nobody waits for any more.
                let _ = reset_on_close(stream.get_ref().as_fd());
            }
            self.counters.calls_failed.fetch_add(1, Ordering::Relaxed);
        }
        answered.ok()
    }

    fn try_call(&mut self, line: &[u8], data: Option<&[u8]>, expected: Expected) -> io::Result<Vec<u8>> {
        let mut request = [line, b"\r\n"].concat();
        if let Some(data) = data {
            request.extend_from_slice(data);
            request.extend_from_slice(b"\r\n");
        }
        // The worker that this connection was to may have ended since: nothing has reached its successor.
        if self.stream.as_ref().is_some_and(|stream| has_ended(stream.get_ref())) {
            self.stream = None;
        }
        let reader = match &mut self.stream {
            Some(reader) => reader,
            None => self.stream.insert(BufReader::new(open(&self.to)?)),
        };
        Quiet(reader.get_ref()).write_all(&request)?;
        match expected {
            Expected::Nothing => Ok(Vec::new()),
            Expected::Line => read_line(reader),
            Expected::End => read_to_end(reader),
        }
    }
}

fn open(to: &str) -> io::Result<TcpStream> {
    let address = to.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Whether the other end has closed a connection on which nothing is to be read.
fn has_ended(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let peeked = stream.peek(&mut [0]);
    let blocks = stream.set_nonblocking(false);
    blocks.is_err() || !matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn read_line(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
    if line.ends_with(b"\r\n") { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn read_to_end(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line = read_line(reader)?;
        out.extend_from_slice(&line);
        let text = String::from_utf8_lossy(&line);
        let mut words = text.split_ascii_whitespace();
        match words.next() {
            Some("VALUE") => {
                let len = words.nth(2).and_then(|len| len.parse::<u64>().ok());
                let len = len.ok_or(io::ErrorKind::InvalidData)? + 2;
                if io::copy(&mut reader.by_ref().take(len), &mut out)? < len {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Some("STAT") => {}
            _ => return Ok(out),
        }
    }
}
