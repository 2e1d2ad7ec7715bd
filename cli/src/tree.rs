//! `adverb tree`: a B+tree in remote memory, over real processes, beside a switch that decides the atomics of
//! its locks or without one.

use crate::args::Nic;
use crate::bench::{Times, each, side_by_side};
use crate::error::Error;
use crate::locks::{Atomics, By, LEARNT};
use crate::output::print;
use crate::program::{open, wire_time};
use crate::remote::span;
use crate::settings::from_options;
use adverb_apps::locks::{Counted, LOCKS_MAX, LocksError, Release};
use adverb_apps::tree::{Client, Did, ENTRIES, FANOUT_MIN, HomeConfig, KEY_MAX, PAGE, PAGES_MAX, TreeError};
use adverb_apps::ycsb::{Drift, Op, Stream, Streams, Workload, Zipf};
use adverb_io::program::Programs;
use adverb_os::say;
use adverb_rdma::{Connect, Error as RdmaError, Instant, On, Rdma};
use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Shown by `adverb tree --help`.
pub const EXAMPLES: &str = "\
One process is the home of a tree of 1 KB pages, whose locks are words in memory of its NIC; clients use both
one-sidedly. A change is a compare and swap of a lock, a READ of the page, and one list: a WRITE of 18 bytes,
and behind it the WRITE that releases. A get takes no lock.

Examples:
  adverb tree serve --keys 100000 &
  adverb tree put 7 700
  adverb tree get 7
  adverb tree scan 0 --limit 10
  adverb tree bench --workload a --clients 8
  adverb switch run crates/switchd/examples/locks.toml &
  adverb tree serve --keys 1000 --via sw0 --address 10.9.0.1 &
  adverb tree bench --workload write-only --exponent 1.5 --clients 8 --via sw0 --address 10.9.0.2";

/// `adverb tree`.
#[derive(Subcommand, Debug)]
pub enum Tree {
    /// Be the tree's home until ended by a signal
    Serve(Box<Serve>),
    /// Print a key's value
    Get(Box<Get>),
    /// Give a key a value
    Put(Box<Put>),
    /// Take a key's value away
    Remove(Box<Get>),
    /// Print keys and their values in order
    Scan(Box<Scan>),
    /// Get, put and insert over and over with several clients, as YCSB does; print rates and times, and with
    /// --via what the switch did
    Bench(Box<BenchOptions>),
}

/// `adverb tree serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where clients find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_TREE", default_value = "127.0.0.1:7464")]
    pub at: String,
    /// Keys that are there from the beginning: 0 up to N - 1, each with the value after it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keys: u64,
    /// Pages of 1 KB
    #[arg(long, value_name = "N", default_value_t = 65_536,
        value_parser = clap::value_parser!(u64).range(2..=PAGES_MAX))]
    pub pages: u64,
    /// Entries of a full page
    #[arg(long, value_name = "N", default_value_t = ENTRIES as u32,
        value_parser = clap::value_parser!(u32).range(i64::from(FANOUT_MIN)..=ENTRIES as i64))]
    pub fanout: u32,
    /// Locks, onto which pages are hashed
    #[arg(long, value_name = "N", default_value_t = LOCKS_MAX,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LOCKS_MAX)))]
    pub locks: u32,
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
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_TREE", default_value = "127.0.0.1:7464")]
    pub at: String,
    /// Give up when the home, or a lock, cannot be had within this time
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    pub patience: Duration,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

fn key(text: &str) -> Result<u64, String> {
    let key = text.parse().ok().filter(|key| *key <= KEY_MAX);
    key.ok_or_else(|| format!("want a number from 0 to {KEY_MAX}"))
}

/// `adverb tree get`, `adverb tree remove`.
#[derive(Args, Debug)]
pub struct Get {
    /// Which key
    #[arg(value_parser = key)]
    pub key: u64,
    /// The tree.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb tree put`.
#[derive(Args, Debug)]
pub struct Put {
    /// Which key
    #[arg(value_parser = key)]
    pub key: u64,
    /// The value, a number of 64 bits
    pub value: u64,
    /// The tree.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb tree scan`.
#[derive(Args, Debug)]
pub struct Scan {
    /// The first key
    #[arg(value_parser = key)]
    pub from: u64,
    /// Keys below this one [default: to the end]
    #[arg(long, value_name = "KEY", value_parser = key)]
    pub to: Option<u64>,
    /// Keys at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// The tree.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb tree bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The tree.
    #[command(flatten)]
    pub home: Home,
    /// YCSB's workload: a (half gets, half updates), b (95% gets), c (gets), d (95% gets of the latest, 5%
    /// inserts), or write-only
    #[arg(long, value_name = "NAME", value_parser = workload, default_value = "a")]
    pub workload: Workload,
    /// Zipf's exponent of the keys that are there from the beginning, 0 to 1.5
    #[arg(long, value_name = "S", default_value_t = 0.99)]
    pub exponent: f64,
    /// The hot keys are others after so many operations of a client
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub drift_every: Option<u64>,
    /// Then each rank is so many ranks further
    #[arg(long, value_name = "N", default_value_t = 1, requires = "drift_every")]
    pub drift_by: u64,
    /// Which streams of operations: the same number gives the same ones
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub stream: u64,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
    /// Clients, each with a queue pair of its own, in this process
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=128))]
    pub clients: u32,
    /// How locks are released
    #[arg(long, value_name = "HOW", value_enum, default_value = "write")]
    pub release: By,
    /// Wait so long between two tries at a lock that is held, and longer each time [default: do not wait]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub pause: Option<Duration>,
}

fn workload(text: &str) -> Result<Workload, String> {
    Workload::by_name(text).ok_or_else(|| {
        let names: Vec<&str> = Workload::ALL.iter().map(|(_, name)| *name).collect();
        format!("not one of {}", names.join(", "))
    })
}

/// Runs it.
pub fn tree(action: &Tree) -> Result<ExitCode, Error> {
    match action {
        Tree::Serve(options) => serve(options),
        Tree::Get(options) => with_client(&options.home, async |client| {
            Ok(client.get(options.key).await?.map(|value| format!("{value}\n")))
        }),
        Tree::Put(options) => with_client(&options.home, async |client| {
            client.put(options.key, options.value).await?;
            Ok(Some(String::new()))
        }),
        Tree::Remove(options) => with_client(&options.home, async |client| {
            client.remove(options.key).await?;
            Ok(Some(String::new()))
        }),
        Tree::Scan(options) => with_client(&options.home, async |client| {
            let found = client.scan(options.from, options.to.unwrap_or(u64::MAX), options.limit).await?;
            Ok(Some(found.iter().map(|(key, value)| format!("{key} {value}\n")).collect()))
        }),
        Tree::Bench(options) => bench(options),
    }
}

fn serve(options: &Serve) -> Result<ExitCode, Error> {
    let programs = open(&options.nic)?;
    let config = HomeConfig {
        locks: options.locks,
        pages: options.pages,
        fanout: options.fanout,
        keys: (options.keys, 1),
        lease: wire_time(options.lease),
        connect: Connect::default(),
    };
    let rdma = Rdma::new(programs.clone());
    let served = programs.block_on(async {
        let listener = rdma.listen(&options.at).await?;
        adverb_apps::tree::serve_at(&rdma, &listener, &config, || {
            say::announce(format_args!(
                "tree of {} keys ready at {}: {} pages of {PAGE} bytes, {} locks in the NIC's own memory, \
                 lease {:?}",
                options.keys, options.at, options.pages, options.locks, options.lease
            ));
        })
        .await
    });
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(TreeError::Full) => {
            let (keys, pages) = (options.keys, options.pages);
            Err(Error::Options(format!(
                "--keys {keys}: these do not fit into {pages} pages; give more --pages"
            )))
        }
        Err(error) => Err(failed(&options.at, &error)),
    }
}

fn failed(at: &str, error: &TreeError) -> Error {
    let help = match error {
        TreeError::Locks(LocksError::Rdma(RdmaError::NoAnswer | RdmaError::Left)) => {
            "; is `adverb tree serve` running there?"
        }
        TreeError::Locks(LocksError::Rdma(RdmaError::Failed { .. })) => {
            "; the home has ended, or has shut this client out because it held a lock beyond its lease"
        }
        TreeError::Full => "; start it with more --pages",
        _ => "",
    };
    Error::Remote(format!("--at {at}: {error}{help}"))
}

/// Behind a switch, pages are read in READs that it can count.
async fn connect(rdma: &Rdma, home: &Home, behind: bool) -> Result<Client, TreeError> {
    let patience = wire_time(home.patience);
    let until = rdma.now().await? + patience;
    let client = Client::open(rdma, &home.at, &Connect::default(), Some(until)).await?;
    let client = client.with_patience(patience);
    Ok(if behind { client.with_short_reads() } else { client })
}

/// Connects and runs this, which prints what it gives; nothing: there was no such key.
fn with_client(
    home: &Home,
    run: impl AsyncFnOnce(&Client) -> Result<Option<String>, TreeError>,
) -> Result<ExitCode, Error> {
    let behind = from_options(&home.nic)?.via.is_some();
    let programs: Rc<Programs> = open(&home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let client = connect(&rdma, home, behind).await?;
        run(&client).await
    });
    match done.map_err(|error| failed(&home.at, &error))? {
        Some(text) => print(&text).map(|()| ExitCode::SUCCESS),
        None => {
            say!("adverb: the tree has no such key");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What one client has measured.
#[derive(Default)]
struct Measured {
    counted: Counted,
    did: Did,
    /// Of each get, and of each change, in ns.
    times: [Vec<u64>; 2],
    /// Gets of keys that were there, which found nothing.
    missed: u64,
}

fn bench(options: &BenchOptions) -> Result<ExitCode, Error> {
    let via = from_options(&options.home.nic)?.via;
    let programs: Rc<Programs> = open(&options.home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let failed = |error: TreeError| failed(&options.home.at, &error);
    let release = match options.release {
        By::Write => Release::Write,
        By::Cas => Release::CompareSwap,
    };
    let pause = wire_time(options.pause.unwrap_or_default());
    let clients = (0..options.clients).map(|_| connect(&rdma, &options.home, via.is_some()));
    let clients = programs.block_on(each(clients)).map_err(failed)?.into_iter();
    let clients: Vec<Client> =
        clients.map(|client| client.with(release, Default::default()).with_pause(pause)).collect();
    let keys = clients.first().map_or(0, |client| client.loaded().0);
    let zipf = Zipf::new(keys, options.exponent).map_err(|wrong| {
        Error::Options(format!("bench: {wrong} (`adverb tree serve --keys`, `bench --exponent`)"))
    })?;
    let drift = options.drift_every.map(|every| Drift { every, by: options.drift_by });
    let streams = Streams {
        workload: options.workload,
        zipf,
        clients: options.clients.into(),
        drift,
        seed: options.stream,
    };
    let mut work: Vec<Stream> =
        (0..u64::from(options.clients)).map(|client| Stream::new(&streams, client)).collect();
    let mut run = |time: Duration| {
        let both = clients.iter().zip(&mut work);
        programs.block_on(side_by_side(&rdma, time, both, |(client, stream), end| {
            measure(&rdma, client, stream, end)
        }))
    };
    if via.is_some() {
        // A switch gives a word to its server for a second first.
        run(2 * LEARNT).map_err(failed)?;
    }
    let watched = via.as_deref().map(Atomics::watched).transpose()?;
    let (measured, seconds) = run(options.time).map_err(failed)?;
    let mut text = in_words(options, keys, &measured, seconds);
    let mut complete = true;
    if let Some(watched) = &watched {
        let (did, converted) = watched.since()?;
        text += &did;
        complete = converted || measured.iter().all(|one| one.counted.acquired == 0);
    }
    print(&text)?;
    if !complete {
        say!("adverb: the switch has cas_to_write, and converted nothing: is its server the tree's home?");
    }
    let missed: u64 = measured.iter().map(|one| one.missed).sum();
    if missed > 0 {
        say!(
            "adverb: {missed} gets of keys that had been put found nothing; has another program removed them?"
        );
    }
    Ok(if complete && missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(
    rdma: &Rdma,
    client: &Client,
    stream: &mut Stream,
    end: Instant,
) -> Result<Measured, TreeError> {
    let (before, met) = (client.counted(), client.did());
    let mut measured = Measured::default();
    loop {
        let begun = rdma.now().await?;
        if begun >= end || rdma.until(&[On::Stop], Some(begun)).await?.is_some() {
            break;
        }
        let changes = match stream.next_op() {
            Op::Get(key) => {
                measured.missed += u64::from(client.get(key).await?.is_none());
                false
            }
            Op::Update(key) | Op::Insert(key) => {
                match client.put(key, begun.as_ps()).await {
                    // The program was asked to end.
                    Err(TreeError::Busy) if rdma.until(&[On::Stop], Some(begun)).await?.is_some() => break,
                    done => done?,
                }
                true
            }
        };
        measured.times[usize::from(changes)].push(rdma.now().await?.since(begun).as_ns());
    }
    measured.counted = client.counted().since(&before);
    measured.did = client.did().since(&met);
    Ok(measured)
}

fn in_words(options: &BenchOptions, keys: u64, measured: &[Measured], seconds: f64) -> String {
    let times =
        [0, 1].map(|kind| Times::new(measured.iter().flat_map(|one| one.times[kind].iter().copied())));
    let told = |what: &str, times: &Times| match times.count() {
        0 => String::new(),
        count => format!("{what}: {count}, {times}\n"),
    };
    let sum = |of: fn(&Measured) -> u64| measured.iter().map(of).sum::<u64>();
    let name = Workload::ALL.iter().find(|(kind, _)| *kind == options.workload).map_or("", |(_, name)| name);
    let done = times.iter().map(Times::count).sum::<usize>();
    let (acquired, refused) = (sum(|one| one.counted.acquired), sum(|one| one.counted.refused));
    let mut text = format!(
        "{} clients, workload {name}, {keys} keys, exponent {}: {done} operations in {seconds:.1} s, \
         {:.0}/s\n",
        options.clients,
        options.exponent,
        done as f64 / seconds
    );
    text += &told("gets", &times[0]);
    text += &told("changes", &times[1]);
    text += &format!(
        "locks: {acquired} acquisitions, {:.2} refused tries each, {} taken over\n",
        refused as f64 / acquired.max(1) as f64,
        sum(|one| one.counted.taken_over)
    );
    text += &format!(
        "pages: {} splits, {} roots raised, {} steps right, {} healed, {} torn\n",
        sum(|one| one.did.splits),
        sum(|one| one.did.raised),
        sum(|one| one.did.moved_right),
        sum(|one| one.did.healed),
        sum(|one| one.did.torn)
    );
    text
}
