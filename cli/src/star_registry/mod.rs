//! `adverb star registry`: the agent of an address, by which StaR's rules travel (StaR, III-D). A process of
//! its own, so that no program loads TLS with its verbs library.
//!
//! ```text
//! a server's process --asks--> its agent ==TLS==> the client's agent --orders--> the client's NIC
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`local`] | this host's processes: what they grant, and who takes rules |
//! | [`peers`] | connections to other agents, with what was told to each |
//! | [`door`] | connections of other agents, and what to take back when one ends |
//!
//! Rules live no longer than the connection that brought them, nor than the process or the agent that it
//! belongs to: nobody else could take them back.

mod door;
mod local;
mod peers;

use crate::error::Error;
use crate::output::print;
use crate::remote::span;
use adverb_io::registry::words::{LINE, Order, Said, socket};
use adverb_os::signals;
use adverb_os::sys::wait_readable;
use adverb_os::unix::{Channel, Listener};
use adverb_tls::{Acceptor, Connector, Identity};
use adverb_wire::{Gid, QpNumber};
use clap::Args;
use door::Holder;
use peers::Session;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Both sides name it when they meet.
const ALPN: &[u8] = b"adverb-star-registry/1";
/// The longest patience with peers: a process waits for its agent longer.
const PATIENCE_MAX: Duration = Duration::from_secs(20);
/// Bits of a queue pair number below those of its process.
const SLOT_SHIFT: u32 = 16;

/// `adverb star registry`.
#[derive(Args, Debug)]
pub struct Registry {
    /// The address whose processes it serves, as ADVERB's address= names it
    #[arg(long, value_name = "IP")]
    pub address: IpAddr,
    /// TCP port of the agents, the same on all hosts
    #[arg(long, value_name = "PORT", default_value_t = 7464,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Certificate of the CA that has signed all agents' (`adverb certs` makes some for trials)
    #[arg(long, value_name = "FILE")]
    pub ca: PathBuf,
    /// Own certificate, which names the address
    #[arg(long, value_name = "FILE")]
    pub cert: PathBuf,
    /// Its key
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// How long a peer's agent may take to answer, before it counts as dead
    #[arg(long, value_name = "TIME", value_parser = patience, default_value = "2s")]
    pub patience: Duration,
}

fn patience(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    let fits = (Duration::from_millis(10)..=PATIENCE_MAX).contains(&time);
    if fits { Ok(time) } else { Err("a time from 10ms to 20s is needed".to_owned()) }
}

/// What the threads share.
struct Agent {
    address: Gid,
    port: u16,
    patience: Duration,
    connector: Connector,
    acceptor: Acceptor,
    /// Processes of this address that take rules, by slot: 256 at most.
    takers: Mutex<BTreeMap<u32, Arc<Mutex<Channel>>>>,
    /// Servers whose agents have put rules here.
    servers: Mutex<BTreeMap<[u8; 16], Holder>>,
    /// Agents of the peers of this address's servers.
    sessions: Mutex<BTreeMap<[u8; 16], Session>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "patience with real processes")]
fn now() -> Instant {
    Instant::now()
}

/// Runs it, until a signal ends it.
pub fn registry(options: &Registry) -> Result<ExitCode, Error> {
    let (sender, stopped) = mpsc::channel();
    signals::on_stop(move || {
        // Nobody receives it only if the command has ended.
        let _ = sender.send(());
    })
    .map_err(|error| Error::Device(format!("waiting for signals: {error}")))?;
    let failed = |what: &str, error: &dyn std::fmt::Display| Error::Remote(format!("{what}: {error}"));
    let identity = Identity::load(&options.ca, &options.cert, &options.key);
    let identity = identity.map_err(|error| failed("the certificates", &error))?;
    let agent = Agent::new(options.address, options.port, options.patience, &identity);
    let agent = Arc::new(agent.map_err(|error| failed("the certificates", &error))?);
    let own = |error: io::Error| {
        let why = if error.kind() == io::ErrorKind::AddrInUse { "; it has an agent already" } else { "" };
        Error::Remote(format!("--address {}: {error}{why}", options.address))
    };
    let listener = Listener::bind(&socket(options.address)).map_err(own)?;
    let at = (options.address, options.port);
    let door = TcpListener::bind(at).map_err(|error| failed(&format!("--port {}", at.1), &error))?;
    let (of_door, of_local) = (agent.clone(), agent);
    spawn("door", move || door::run(&of_door, &door))
        .and_then(|()| spawn("local", move || local::run(&of_local, &listener)))
        .map_err(|error| Error::Device(format!("starting a thread: {error}")))?;
    print(&format!("adverb star registry: the agent of {}, at TCP port {}\n", at.0, at.1))?;
    // An error says that the signals' thread has ended.
    let _ = stopped.recv();
    Ok(ExitCode::SUCCESS)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(format!("adverb-{name}")).spawn(work).map(drop)
}

impl Agent {
    fn new(
        address: IpAddr,
        port: u16,
        patience: Duration,
        identity: &Identity,
    ) -> Result<Agent, adverb_tls::Error> {
        Ok(Agent {
            address: Gid::from(address),
            port,
            patience,
            connector: identity.connector(ALPN)?,
            acceptor: identity.acceptor(ALPN)?,
            takers: Mutex::default(),
            servers: Mutex::default(),
            sessions: Mutex::default(),
        })
    }

    /// Has the process with a queue pair carry an order out. One that does not answer takes rules no more,
    /// and hears that its agent has gone, when it hears again.
    fn order(&self, to: QpNumber, order: &Order) -> Said {
        let slot = to.get() >> SLOT_SHIFT;
        let Some(taker) = lock(&self.takers).get(&slot).cloned() else {
            return Said::Refused(format!("{to:?} is of no process there that takes rules"));
        };
        let channel = lock(&taker);
        let answered = exchange(&channel, &order.to_string(), self.patience / 2);
        answered.unwrap_or_else(|error| {
            channel.hang_up();
            lock(&self.takers).retain(|_, other| !Arc::ptr_eq(other, &taker));
            Said::Refused(format!("the process of {to:?} does not answer: {error}"))
        })
    }
}

fn exchange(channel: &Channel, line: &str, patience: Duration) -> io::Result<Said> {
    channel.send(line.as_bytes(), &[])?;
    let answer = next_word(channel, patience)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    Said::parse(&answer).ok_or_else(garbled)
}

/// The next packet of a process; `None` when it has closed.
fn next_word(channel: &Channel, patience: Duration) -> io::Result<Option<String>> {
    if !wait_readable(channel.fd(), patience) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut bytes = [0; LINE];
    let Some((len, _)) = channel.receive(&mut bytes)? else { return Ok(None) };
    Ok(Some(std::str::from_utf8(&bytes[..len]).map_err(|_| garbled())?.to_owned()))
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other side speaks otherwise")
}

/// The lines that come in a stream.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// Bytes of a line at most: an order, and whose it is.
    const MAX: usize = LINE + 16;

    /// The next one, without its end.
    fn next(&mut self, stream: &mut impl Read) -> io::Result<String> {
        loop {
            if let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
                let line = self.0.drain(..=end).collect::<Vec<_>>();
                return String::from_utf8(line[..end].to_vec()).map_err(|_| garbled());
            }
            if self.0.len() > Self::MAX {
                return Err(garbled());
            }
            let mut bytes = [0; LINE];
            match stream.read(&mut bytes)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.0.extend_from_slice(&bytes[..len]),
            }
        }
    }
}

#[cfg(test)]
mod tests;
