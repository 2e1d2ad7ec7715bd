//! `adverb locks`: a table of locks in remote memory, over real processes, beside a switch that decides their
//! atomics or without one.

use crate::args::Nic;
use crate::bench::{Times, Watched, each, side_by_side};
use crate::error::Error;
use crate::output::print;
use crate::program::{open, wire_time};
use crate::remote::{size, span};
use crate::settings::from_options;
use adverb_apps::locks::{Client, Counted, Held, HomeConfig, LOCKS_MAX, LocksError, Release, VALUE_MAX};
use adverb_io::program::Programs;
use adverb_os::say;
use adverb_rdma::{Connect, Error as RdmaError, Instant, On, Rdma};
use clap::{Args, Subcommand, ValueEnum};
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Shown by `adverb locks --help`.
pub const EXAMPLES: &str = "\
One process is the home of up to 32768 locks, each with a record; clients use its memory one-sidedly: a
compare and swap to acquire, a WRITE behind the record's WRITE to release. Who holds a lock for longer than
the lease, while others want it, is shut out: the home ends its queue pair, and the lock passes on.

Examples:
  adverb locks serve &
  adverb locks set 7 hello
  adverb locks get 7
  adverb locks bench --clients 8 --locks 1
  adverb switch run crates/switchd/examples/locks.toml &
  adverb locks serve --via sw0 --address 10.9.0.1 &
  adverb locks bench --via sw0 --address 10.9.0.2 --clients 8 --locks 1";

/// A switch gives a word to its server for a second first.
pub const LEARNT: Duration = Duration::from_millis(1200);
/// What the bench reads of a switch.
const COUNTERS: [&str; 6] = ["cas_granted", "cas_refused", "fetch_added", "stores", "held", "atomics_passed"];

/// `adverb locks`.
#[derive(Subcommand, Debug)]
pub enum Locks {
    /// Be the locks' home until ended by a signal
    Serve(Box<Serve>),
    /// Hold a lock until ended by a signal
    Hold(Box<Hold>),
    /// Print a lock's value
    Get(Box<Get>),
    /// Store a value, under the lock
    Set(Box<Set>),
    /// Acquire, store and release over and over with several clients; print rates and times, and with --via
    /// what the switch did
    Bench(Box<BenchOptions>),
}

/// `adverb locks serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where clients find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_LOCKS", default_value = "127.0.0.1:7462")]
    pub at: String,
    /// Locks
    #[arg(long, value_name = "N", default_value_t = LOCKS_MAX,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LOCKS_MAX)))]
    pub locks: u32,
    /// Bytes of a value at most
    #[arg(long, value_name = "BYTES", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(VALUE_MAX)))]
    pub value_max: u32,
    /// How long a lock may be held while others want it
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub lease: Duration,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// What clients share.
#[derive(Args, Debug)]
pub struct Home {
    /// Where the home is
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_LOCKS", default_value = "127.0.0.1:7462")]
    pub at: String,
    /// Give up when the home, or the lock, cannot be had within this time
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    pub patience: Duration,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// `adverb locks hold`.
#[derive(Args, Debug)]
pub struct Hold {
    /// Which lock, from 0
    pub lock: u32,
    /// The locks.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb locks get`.
#[derive(Args, Debug)]
pub struct Get {
    /// Which lock, from 0
    pub lock: u32,
    /// The locks.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb locks set`.
#[derive(Args, Debug)]
pub struct Set {
    /// Which lock, from 0
    pub lock: u32,
    /// The value
    pub value: String,
    /// The locks.
    #[command(flatten)]
    pub home: Home,
}

/// How a lock is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum By {
    /// A WRITE.
    Write,
    /// A compare and swap.
    Cas,
}

/// `adverb locks bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The locks.
    #[command(flatten)]
    pub home: Home,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
    /// Clients, each with a queue pair of its own, in this process
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=128))]
    pub clients: u32,
    /// Locks that they use, each with the same chance
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub locks: u32,
    /// Bytes that are stored under the lock; 0: none, and nothing is read
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0")]
    pub size: usize,
    /// How locks are released
    #[arg(long, value_name = "HOW", value_enum, default_value = "write")]
    pub release: By,
    /// Wait so long between two tries at a lock that is held, and longer each time [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub pause: Option<Duration>,
}

/// Runs it.
pub fn locks(action: &Locks) -> Result<ExitCode, Error> {
    match action {
        Locks::Serve(options) => serve(options),
        Locks::Hold(options) => with_home(&options.home, async |rdma, _| {
            let client = connect(rdma, &options.home).await?;
            let Some(held) = acquire(rdma, &client, &options.home, options.lock).await? else {
                return Ok(None);
            };
            say::announce(format_args!("holding with tag {:#x}", held.tag()));
            match rdma.until(&[On::Stop, On::Gone(client.line())], None).await? {
                Some(1) => Err(RdmaError::Left.into()),
                _ => held.release().await.map(|_| Some(String::new())),
            }
        }),
        Locks::Get(options) => with_home(&options.home, async |rdma, _| {
            let client = connect(rdma, &options.home).await?;
            let value = client.look(options.lock).await?;
            Ok(Some(format!("{}\n", String::from_utf8_lossy(&value))))
        }),
        Locks::Set(options) => with_home(&options.home, async |rdma, _| {
            let client = connect(rdma, &options.home).await?;
            let Some(held) = acquire(rdma, &client, &options.home, options.lock).await? else {
                return Ok(None);
            };
            let tag = held.tag();
            held.store_and_release(options.value.as_bytes()).await?;
            Ok(Some(format!("stored with tag {tag:#x}\n")))
        }),
        Locks::Bench(options) => bench(options),
    }
}

fn serve(options: &Serve) -> Result<ExitCode, Error> {
    let programs = open(&options.nic)?;
    let config = HomeConfig {
        locks: options.locks,
        value_max: options.value_max,
        lease: wire_time(options.lease),
        ..HomeConfig::default()
    };
    let rdma = Rdma::new(programs.clone());
    let served = programs.block_on(async {
        let listener = rdma.listen(&options.at).await?;
        say::announce(format_args!(
            "{} locks, {} bytes of the NIC's own memory, ready at {}, lease {:?}",
            options.locks,
            u64::from(options.locks) * 8,
            options.at,
            options.lease
        ));
        adverb_apps::locks::serve_at(&rdma, &listener, &config).await
    });
    served.map(|()| ExitCode::SUCCESS).map_err(|error| failed(&options.at, &error.into()))
}

fn failed(at: &str, error: &LocksError) -> Error {
    let help = match error {
        LocksError::Rdma(RdmaError::NoAnswer | RdmaError::Left) => "; is `adverb locks serve` running there?",
        LocksError::Rdma(RdmaError::Failed { .. }) => {
            "; the home has ended, or has shut this client out because it held a lock beyond its lease"
        }
        _ => "",
    };
    Error::Remote(format!("--at {at}: {error}{help}"))
}

/// Opens the NIC and runs this, which prints what it gives; nothing: the lock was not free in time.
fn with_home(
    home: &Home,
    run: impl AsyncFnOnce(&Rdma, &Rc<Programs>) -> Result<Option<String>, LocksError>,
) -> Result<ExitCode, Error> {
    let programs: Rc<Programs> = open(&home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(run(&rdma, &programs));
    match done.map_err(|error| failed(&home.at, &error))? {
        Some(text) => print(&text).map(|()| ExitCode::SUCCESS),
        None => {
            say!("adverb: the lock was not free in time");
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn connect(rdma: &Rdma, home: &Home) -> Result<Client, LocksError> {
    let patience = rdma.now().await? + wire_time(home.patience);
    Ok(Client::open(rdma, &home.at, &Connect::default(), Some(patience)).await?)
}

async fn acquire<'a>(
    rdma: &Rdma,
    client: &'a Client,
    home: &Home,
    lock: u32,
) -> Result<Option<Held<'a>>, LocksError> {
    let patience = rdma.now().await? + wire_time(home.patience);
    client.acquire(lock, Some(patience)).await
}

/// What one client has measured.
#[derive(Default)]
struct Measured {
    counted: Counted,
    /// Of each acquisition, until the lock was released, in ns.
    times: Vec<u64>,
    /// The longest time that it has waited for a lock, in ns; one that it waits for in the end counts, too.
    longest_wait: u64,
}

fn bench(options: &BenchOptions) -> Result<ExitCode, Error> {
    let via = from_options(&options.home.nic)?.via;
    let programs: Rc<Programs> = open(&options.home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let failed = |error: LocksError| failed(&options.home.at, &error);
    let clients = (0..options.clients).map(|_| prepare(&rdma, options, via.is_some()));
    let clients = programs.block_on(each(clients)).map_err(failed)?;
    let watched = via.as_deref().map(Atomics::watched).transpose()?;
    let clients = clients.iter();
    let run = |client, end| measure(&rdma, client, options, end);
    let (measured, seconds) =
        programs.block_on(side_by_side(&rdma, options.time, clients, run)).map_err(failed)?;
    let mut text = in_words(options, &measured, seconds);
    let mut complete = true;
    if let Some(watched) = &watched {
        let (did, converted) = watched.since()?;
        text += &did;
        complete = converted;
    }
    print(&text)?;
    if !complete {
        say!("adverb: the switch has cas_to_write, and converted nothing: is its server the locks' home?");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// A switch before a home, whose atomics it may decide.
pub struct Atomics(Watched<{ COUNTERS.len() }>);

impl Atomics {
    /// From now on.
    pub fn watched(via: &Path) -> Result<Atomics, Error> {
        Ok(Atomics(Watched::new(via, "cas_to_write", COUNTERS)?))
    }

    /// What it has done since, in words; false if it decides atomics and has decided none.
    pub fn since(&self) -> Result<(String, bool), Error> {
        let [granted, refused, added, stores, held, passed] = self.0.since()?;
        let converted = granted + refused + added;
        let text = format!(
            "switch {}: {converted} atomics converted ({granted} granted, {refused} refused), {stores} \
             releases followed, {held} requests held, {passed} atomics passed\n",
            self.0.name()
        );
        Ok((text, converted > 0 || !self.0.has_program))
    }
}

/// Connects a client; behind a switch it lets that learn the locks.
async fn prepare(rdma: &Rdma, options: &BenchOptions, via: bool) -> Result<Client, LocksError> {
    let release = match options.release {
        By::Write => Release::Write,
        By::Cas => Release::CompareSwap,
    };
    let client = connect(rdma, &options.home).await?;
    let client =
        client.with(release, Default::default()).with_pause(wire_time(options.pause.unwrap_or_default()));
    for _ in 0..if via { 2 } else { 1 } {
        for lock in 0..options.locks {
            if let Some(held) = acquire(rdma, &client, &options.home, lock).await? {
                held.release().await?;
            }
        }
        if via {
            rdma.sleep(wire_time(LEARNT)).await?;
        }
    }
    Ok(client)
}

async fn measure(
    rdma: &Rdma,
    client: &Client,
    options: &BenchOptions,
    end: Instant,
) -> Result<Measured, LocksError> {
    let before = client.counted();
    let (mut times, mut longest_wait) = (Vec::new(), 0);
    let value = vec![7; options.size];
    loop {
        let begun = rdma.now().await?;
        if begun >= end || rdma.until(&[On::Stop], Some(begun)).await?.is_some() {
            break;
        }
        let lock = (rdma.random().await? % u64::from(options.locks)) as u32;
        let held = client.acquire(lock, Some(end)).await?;
        longest_wait = longest_wait.max(rdma.now().await?.since(begun).as_ns());
        let Some(held) = held else { break };
        match options.size {
            0 => held.release().await?,
            _ => held.store_and_release(&value).await?,
        };
        times.push(rdma.now().await?.since(begun).as_ns());
    }
    Ok(Measured { counted: client.counted().since(&before), times, longest_wait })
}

fn in_words(options: &BenchOptions, measured: &[Measured], seconds: f64) -> String {
    let times = Times::new(measured.iter().flat_map(|one| one.times.iter().copied()));
    let sum = |of: fn(&Counted) -> u64| measured.iter().map(|one| of(&one.counted)).sum::<u64>();
    let (acquired, refused) = (sum(|counted| counted.acquired), sum(|counted| counted.refused));
    let each = || measured.iter().map(|one| one.counted.acquired);
    format!(
        "{} clients, {} locks, {} bytes: {acquired} acquisitions in {seconds:.1} s, {:.0}/s; {:.2} refused \
         tries each, {} taken over; a client had {} to {}, and waited for up to {:.1} ms; {times}\n",
        options.clients,
        options.locks,
        options.size,
        acquired as f64 / seconds,
        refused as f64 / acquired.max(1) as f64,
        sum(|counted| counted.taken_over),
        each().min().unwrap_or_default(),
        each().max().unwrap_or_default(),
        measured.iter().map(|one| one.longest_wait).max().unwrap_or_default() as f64 / 1e6,
    )
}
