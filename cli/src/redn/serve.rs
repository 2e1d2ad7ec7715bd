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
use adverb_os::socket_file::SocketFile;
use adverb_os::{folders, say, signals};
use adverb_rdma::Rdma;
use adverb_redn::service::hull::{Hull, Limits};
use adverb_redn::service::layout::BUCKET_LEN;
use adverb_redn::service::setup::{Offer, Told};
use clap::Args;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Buckets for each key that is expected: two buckets of one entry a key can be filled to a half.
const BUCKETS_PER_KEY: u64 = 2;

/// What clients' threads ask of the hull.
pub enum Question {
    /// A client wants to be served.
    Connect(Box<Offer>, Sender<Result<Told, String>>),
    /// It has gone.
    Leave(u32),
    /// Somebody wants to know what was counted.
    Counters(Sender<Vec<(String, u64)>>),
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
        let buckets = self.keys.saturating_mul(BUCKETS_PER_KEY).checked_next_power_of_two();
        buckets.filter(|buckets| (1..=1 << 32).contains(buckets) && self.keys > 0).ok_or_else(|| {
            let most = (1u64 << 32) / BUCKETS_PER_KEY;
            Error::Options(format!("--keys {}: give 1 to {most}", self.keys))
        })
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
    let index = rdma.create_file(buckets * BUCKET_LEN).await.map_err(device)?;
    let values = rdma.create_file(values_len).await.map_err(device)?;
    let files = [duplicate(index.number()).map_err(device)?, duplicate(values.number()).map_err(device)?];
    let Options { clients, slots, rate, one_sided, .. } = *options;
    let limits = Limits { clients, slots, mbps: rate, one_sided };
    let seed = rdma.random().await.map_err(device)?;
    let (tables, told) = ((&index, buckets), calls_at.to_string());
    let mut hull =
        Hull::open(&rdma, tables, (&values, values_len), seed, told, limits).await.map_err(device)?;

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
    answer_all(&mut hull, &desk, &attached).await?;
    // The keeper, which listens there, is never asked to end: the process does.
    socket.remove();
    let served = hull.counters().connected;
    Ok(answer(format_args!("hull {} has ended; it served {served} clients", std::process::id())))
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

/// Answers clients' threads until the hull is asked to end.
async fn answer_all(hull: &mut Hull, desk: &Desk<Question>, attached: &AtomicU32) -> Result<(), Error> {
    loop {
        match desk.next().await {
            Question::Connect(offer, answer) => {
                let told = hull.connect(&offer).await.map_err(|refused| refused.to_string());
                let client = told.as_ref().map_or(0, |told| told.client);
                if answer.send(told).is_err() {
                    hull.leave(client);
                }
            }
            Question::Leave(client) => hull.leave(client),
            Question::Counters(answer) => {
                let mut counted = hull.counted().await.map_err(device)?;
                counted.push(("worker".to_owned(), attached.load(Ordering::Relaxed).into()));
                // Who asked may have gone.
                let _ = answer.send(counted);
            }
            Question::Stop => return Ok(()),
        }
    }
}
