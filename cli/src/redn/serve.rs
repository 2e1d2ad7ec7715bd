//! `adverb redn serve`: gets that outlive the program that serves them. This process is the hull: it owns
//! the NIC, the chains and the files of memory, and stands for an adapter. A worker, which is another
//! process, writes the table; it may be stopped, killed and started again.

use super::desk::Desk;
use super::door::Door;
use super::keeper::Keeper;
use super::worker::Attach;
use crate::args::Nic;
use crate::error::Error;
use crate::output::answer;
use crate::remote::{size, span};
use crate::settings::from_options;
use adverb_io::program::Programs;
use adverb_os::mapping::duplicate;
use adverb_os::say::Seldom;
use adverb_os::socket_file::SocketFile;
use adverb_os::{clock, folders, say, signals};
use adverb_rdma::{File, Rdma};
use adverb_redn::service::hull::{Files, Hull, Limits};
use adverb_redn::service::layout::BUCKET_LEN;
use adverb_redn::service::setup::{Offer, Told};
use adverb_redn::service::watch::Finding;
use clap::Args;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Buckets for each key that is expected: two buckets of one entry a key can be filled to a half.
const BUCKETS_PER_KEY: u64 = 2;

/// How often chains are looked at, where they are audited.
const AUDITS_A_SECOND: u64 = 10;
/// Lines that an audit says at most, in which time.
const LINES: u32 = 20;
const LINES_WINDOW: adverb_rdma::Duration = adverb_rdma::Duration::from_ms(1000);

/// What clients' threads ask of the hull.
pub enum Question {
    /// A client wants to be served, on this connection.
    Connect(Box<Offer>, TcpStream, Sender<Result<Told, String>>),
    /// It has gone.
    Leave(u32),
    /// Somebody wants to know what was counted.
    Counters(Sender<Vec<(String, u64)>>),
    /// Chains are to be looked at; the answer says when that is done.
    Audit(Sender<()>),
    /// The program is to end.
    Stop,
}

/// `adverb redn serve`.
#[derive(Args, Debug)]
pub struct Options {
    /// TCP port of the NIC's address at which clients set up; 0 for any
    #[arg(long, value_name = "PORT", default_value_t = 7470)]
    pub port: u16,
    /// TCP port of the same address at which the worker answers calls (memcached's text protocol); 0 for any
    #[arg(long, value_name = "PORT", default_value_t = 7471)]
    pub calls_port: u16,
    /// Start another worker so long after one has ended [default: none; one may attach]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub respawn: Option<Duration>,
    /// Memory of values
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64MB")]
    pub memory: usize,
    /// Keys that the index has room for
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub keys: u64,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub clients: u32,
    /// Slots of a client's chain at most; a quarter of them may be gets under way
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub slots: u32,
    /// Megabits per second of each queue of a client's chain, in which a request counts its bytes and 64 at
    /// least: who floods it slows down itself [default: no bound]
    #[arg(long, value_name = "MBPS", default_value_t = 0, hide_default_value = true)]
    pub rate: u32,
    /// Memory that a client's chain may take: its rings, receives, completions and state
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "1MB")]
    pub client_memory: usize,
    /// Watch the completions of every request of every chain: a client whose chain fails, or that sends
    /// what the NIC refuses, is named on standard error and its connection ended
    #[arg(long)]
    pub audit: bool,
    /// With --audit: a client's messages per second that may come before their turn
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "audit")]
    pub early: u64,
    /// Index and values in one region under one key, as in the paper: then a value that a client stores may
    /// be taken for a bucket, and its reply names any byte of either (docs/redn-attacks.md)
    #[arg(long)]
    pub paper_layout: bool,
    /// Give clients that ask for them the keys to read index and values themselves
    #[arg(long)]
    pub one_sided: bool,
    /// Have the worker answer gets by SEND and RECV too, at a NIC of its own with this address
    #[arg(long)]
    pub two_sided: bool,
    /// Socket at which workers attach [default: in the folder where this user's processes meet]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

impl Options {
    fn buckets(&self) -> Result<u64, Error> {
        // Four at least, so that values that follow them begin where records may.
        let buckets = self.keys.saturating_mul(BUCKETS_PER_KEY).max(4).checked_next_power_of_two();
        buckets.filter(|buckets| (1..=1 << 32).contains(buckets) && self.keys > 0).ok_or_else(|| {
            let most = (1u64 << 32) / BUCKETS_PER_KEY;
            Error::Options(format!("--keys {}: give 1 to {most}", self.keys))
        })
    }

    fn limits(&self) -> Limits {
        let Options { clients, slots, rate, one_sided, .. } = *self;
        let audit = self.audit.then_some(self.early / AUDITS_A_SECOND);
        Limits { clients, slots, mbps: rate, memory: self.client_memory as u64, audit, one_sided }
    }

    fn bytes(&self) -> Result<u64, Error> {
        use adverb_redn::service::table::MEMORY_MIN;
        let bytes = (self.memory / 4096 * 4096) as u64;
        match bytes >= MEMORY_MIN {
            true => Ok(bytes),
            false => Err(Error::Options(format!("--memory {}: give {MEMORY_MIN} at least", self.memory))),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the edge")]
fn now() -> adverb_rdma::Instant {
    adverb_rdma::Instant::from_ps(clock::monotonic_ns().saturating_mul(1000))
}

fn device(error: impl std::fmt::Display) -> Error {
    Error::Device(error.to_string())
}

fn listen(option: &str, address: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), Error> {
    let at = SocketAddr::new(address, port);
    let bound = TcpListener::bind(at).and_then(|listener| Ok((listener.local_addr()?, listener)));
    match bound {
        Ok((at, listener)) => Ok((listener, at)),
        Err(error) => Err(Error::Device(format!("{option} {port}: listening at {at}: {error}"))),
    }
}

/// A folder of this user's for the workers' socket.
fn socket_path(options: &Options, address: IpAddr) -> Result<PathBuf, Error> {
    match &options.socket {
        Some(path) => Ok(path.clone()),
        None => {
            let folder = folders::shared_directory();
            folders::private_folder(&folder).map_err(device)?;
            Ok(folder.join(format!("redn-{address}.socket")))
        }
    }
}

/// Serves until a signal ends it.
pub fn serve(options: &Options) -> Result<ExitCode, Error> {
    let (buckets, values_len) = (options.buckets()?, options.bytes()?);
    let settings = from_options(&options.nic)?;
    let desk = Desk::new();
    let hears = desk.clone();
    // Signals are kept from all threads, those of the NIC too, so before it is opened.
    signals::on_stop(move || hears.ask(Question::Stop)).map_err(device)?;
    let programs = Programs::open(&settings).map_err(device)?;
    let attached = Arc::new(AtomicU32::new(0));
    let rdma = Rdma::new(programs.clone());
    programs.block_on(hull(rdma, options, (buckets, values_len), desk, attached))
}

async fn hull(
    rdma: Rdma,
    options: &Options,
    (buckets, values_len): (u64, u64),
    desk: Arc<Desk<Question>>,
    attached: Arc<AtomicU32>,
) -> Result<ExitCode, Error> {
    let gid = Ipv6Addr::from(rdma.device().await.map_err(device)?.gid.0);
    let address = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
    let (setups, at) = listen("--port", address, options.port)?;
    let (calls, calls_at) = listen("--calls-port", address, options.calls_port)?;
    let path = socket_path(options, address)?;
    let socket = SocketFile::bind(&path, 0o600)
        .map_err(|error| Error::Device(format!("--socket {}: {error}", path.display())))?;
    let socket = Arc::new(socket);
    let index_len = buckets * BUCKET_LEN;
    let lens = if options.paper_layout { vec![index_len + values_len] } else { vec![index_len, values_len] };
    let (own, files) = create(&rdma, &lens).await?;
    let made_of = match &own[..] {
        [index, values] => Files::Apart { index, values },
        both => Files::Together(&both[0]),
    };
    let seed = rdma.random().await.map_err(device)?;
    let (sizes, told) = ((buckets, values_len), calls_at.to_string());
    let mut hull = Hull::open(&rdma, made_of, sizes, seed, told, options.limits()).await.map_err(device)?;

    let attach = Attach(*hull.layout());
    let respawn = options.respawn;
    let two_sided = worker_settings(options, address)?;
    let (heard, socket_of) = (attached.clone(), socket.clone());
    let keeper =
        Keeper { socket: socket_of, path, attach, files, calls, respawn, two_sided, attached: heard };
    let (door, ends) = (Door::new(desk.clone(), options.clients), desk.clone());
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(device)
    };
    spawn(
        "adverb-keeper",
        Box::new(move || {
            let first = |worker| {
                say::announce(format_args!(
                    "hull {} owns the NIC of {address}; worker {worker}\nset-up at {at}, calls at {calls_at}",
                    std::process::id()
                ));
            };
            if let Err(error) = keeper.keep(first) {
                say!("adverb: {error}");
                ends.ask(Question::Stop);
            }
        }),
    )?;
    spawn("adverb-door", Box::new(move || door.open(&setups)))?;
    if options.audit {
        let desk = desk.clone();
        spawn("adverb-audit", Box::new(move || tick(&desk)))?;
    }
    answer_all(&mut hull, &desk, &attached).await?;
    // The keeper, which listens there, is never asked to end: the process does.
    socket.remove();
    farewell(&mut hull).await
}

/// Files of memory, and a second descriptor of each for workers.
async fn create(rdma: &Rdma, lens: &[u64]) -> Result<(Vec<File>, Vec<OwnedFd>), Error> {
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for len in lens {
        let file = rdma.create_file(*len).await.map_err(device)?;
        theirs.push(duplicate(file.number()).map_err(device)?);
        own.push(file);
    }
    Ok((own, theirs))
}

/// What the hull has done, at its end.
async fn farewell(hull: &mut Hull) -> Result<ExitCode, Error> {
    let served = hull.counters().connected;
    let all = hull.summed().await.map_err(device)?;
    Ok(answer(format_args!(
        "hull {} has ended; it served {served} clients: {} gets answered, {} messages before their turn, {} \
         chains failed",
        std::process::id(),
        all.answered,
        all.not_ready,
        all.failed
    )))
}

/// Settings of workers' NICs: the hull's, but for the file of counters, which is the hull's own.
fn worker_settings(options: &Options, address: IpAddr) -> Result<Option<String>, Error> {
    if !options.two_sided {
        return Ok(None);
    }
    let mut settings = from_options(&options.nic)?;
    (settings.address, settings.counters) = (Some(address), None);
    Ok(Some(settings.to_env()))
}

/// What an audit says: a client may come again as often as it likes, and is not named each time.
struct Log(Seldom);

impl Log {
    fn say(&mut self, finding: &Finding, outcome: &str) {
        if let Some(before) = self.0.allows(now()) {
            let more = if before > 0 { format!(" ({before} more before)") } else { String::new() };
            say!("{finding}; {outcome}{more}");
        }
    }
}

/// Has chains looked at, again and again.
fn tick(desk: &Desk<Question>) {
    loop {
        std::thread::park_timeout(Duration::from_millis(1000 / AUDITS_A_SECOND));
        let (sender, receiver) = channel();
        desk.ask(Question::Audit(sender));
        if receiver.recv().is_err() {
            return;
        }
    }
}

/// Answers clients' threads until the hull is asked to end.
async fn answer_all(hull: &mut Hull, desk: &Desk<Question>, attached: &AtomicU32) -> Result<(), Error> {
    let mut lines: BTreeMap<u32, TcpStream> = BTreeMap::new();
    let mut log = Log(Seldom::new(LINES, LINES_WINDOW));
    loop {
        match desk.next().await {
            Question::Connect(offer, line, answer) => {
                let told = hull.connect(&offer).await.map_err(|refused| refused.to_string());
                let client = told.as_ref().map_or(0, |told| told.client);
                if answer.send(told).is_err() {
                    let _ = hull.leave(client).await.map_err(device)?;
                } else if client > 0 {
                    lines.insert(client, line);
                }
            }
            Question::Leave(client) => {
                lines.remove(&client);
                if let Some(finding) = hull.leave(client).await.map_err(device)? {
                    log.say(&finding, "it has gone");
                }
            }
            Question::Counters(answer) => {
                let mut counted = hull.counted().await.map_err(device)?;
                counted.push(("worker".to_owned(), attached.load(Ordering::Relaxed).into()));
                // Who asked may have gone.
                let _ = answer.send(counted);
            }
            Question::Audit(done) => {
                for finding in hull.audit().await.map_err(device)? {
                    if let Some(line) = lines.remove(&finding.client) {
                        // Its other end may have hung up already.
                        let _ = line.shutdown(Shutdown::Both);
                    }
                    log.say(&finding, "its connection is ended");
                }
                // Who asked waits for nothing but this.
                let _ = done.send(());
            }
            Question::Stop => return Ok(()),
        }
    }
}
