//! `adverb chain`: a store of chains of entries in remote memory, over real processes, beside a switch that
//! steers their requests or without one.

use crate::args::Nic;
use crate::bench::{Times, Watched, beside, each, side_by_side};
use crate::error::Error;
use crate::output::print;
use crate::program::{open, wire_time};
use crate::remote::{size, span};
use crate::settings::from_options;
use adverb_apps::chain::{ChainError, Client, Counted, HomeConfig, KEYS_MAX, VALUE_MAX, entry_len};
use adverb_io::program::Programs;
use adverb_os::say;
use adverb_rdma::{Connect, Duration as RdmaDuration, Error as RdmaError, Instant, On, Rdma};
use clap::{Args, Subcommand};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Shown by `adverb chain --help`.
pub const EXAMPLES: &str = "\
One process is the home of keys, each a chain of entries in its memory; clients use it one-sidedly. To put a
value is to write an entry and to link it behind the last one by a compare and swap, to get one is to read on
until the last. Who was not the last to put has to look for the end; a switch with `steer` knows it.

Examples:
  adverb chain serve &
  adverb chain put 7 hello
  adverb chain get 7
  adverb chain bench --clients 8 --keys 4 --writes 50
  adverb switch run crates/switchd/examples/steer.toml &
  adverb chain serve --via sw0 --address 10.9.0.1 &
  adverb chain bench --via sw0 --address 10.9.0.2 --clients 8 --keys 4 --writes 50";

/// What the bench reads of a switch.
const COUNTERS: [&str; 7] = [
    "steered_cas",
    "steered_reads",
    "current_cas",
    "current_reads",
    "chains_passed",
    "held",
    "tails_forgotten",
];

/// `adverb chain`.
#[derive(Subcommand, Debug)]
pub enum Chain {
    /// Be the store's home until ended by a signal
    Serve(Box<Serve>),
    /// Print a key's value
    Get(Box<Get>),
    /// Make this a key's value
    Put(Box<Put>),
    /// Go along all chains, and print how many values were put
    Audit(Box<Audit>),
    /// Put and get over and over with several clients; print rates and times, and with --via what the switch
    /// did
    Bench(Box<BenchOptions>),
}

/// `adverb chain serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where clients find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_CHAIN", default_value = "127.0.0.1:7463")]
    pub at: String,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    pub keys: u32,
    /// Values that can be put in all; places are not used twice
    #[arg(long, value_name = "N", default_value_t = 1 << 20,
        value_parser = clap::value_parser!(u32).range(1..=1 << 23))]
    pub entries: u32,
    /// Bytes of a value at most; an entry has 48 more, in whole cache lines
    #[arg(long, value_name = "BYTES", default_value_t = 80,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(VALUE_MAX)))]
    pub value_max: u32,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// What clients share.
#[derive(Args, Debug)]
pub struct Home {
    /// Where the home is
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_CHAIN", default_value = "127.0.0.1:7463")]
    pub at: String,
    /// Give up when the home cannot be had within this time
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "30s")]
    pub patience: Duration,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// `adverb chain get`.
#[derive(Args, Debug)]
pub struct Get {
    /// Which key, from 0
    pub key: u32,
    /// The store.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb chain put`.
#[derive(Args, Debug)]
pub struct Put {
    /// Which key, from 0
    pub key: u32,
    /// The value
    pub value: String,
    /// The store.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb chain audit`.
#[derive(Args, Debug)]
pub struct Audit {
    /// The store.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb chain bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The store.
    #[command(flatten)]
    pub home: Home,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
    /// Clients, each with a queue pair of its own, in this process
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=128))]
    pub clients: u32,
    /// Keys that they use, each with the same chance
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_MAX)))]
    pub keys: u32,
    /// How many of 100 operations put
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(0..=100))]
    pub writes: u32,
    /// Bytes of a value
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64")]
    pub size: usize,
}

/// Runs it.
pub fn chain(action: &Chain) -> Result<ExitCode, Error> {
    match action {
        Chain::Serve(options) => serve(options),
        Chain::Get(options) => with_home(&options.home, async |client| {
            let value = client.get(options.key).await?;
            Ok(format!("{}\n", String::from_utf8_lossy(&value)))
        }),
        Chain::Put(options) => with_home(&options.home, async |client| {
            client.put(options.key, options.value.as_bytes()).await?;
            Ok("put\n".to_owned())
        }),
        Chain::Audit(options) => with_home(&options.home, async |client| {
            let mut values = 0u64;
            for key in 0..client.keys() {
                values += u64::from(client.count_values(key).await?);
            }
            Ok(format!("{} keys, {values} values put\n", client.keys()))
        }),
        Chain::Bench(options) => bench(options),
    }
}

fn serve(options: &Serve) -> Result<ExitCode, Error> {
    let programs = open(&options.nic)?;
    let config = HomeConfig {
        keys: options.keys,
        entries: options.entries,
        value_max: options.value_max,
        ..HomeConfig::default()
    };
    let rdma = Rdma::new(programs.clone());
    let served = programs.block_on(async {
        let listener = rdma.listen(&options.at).await?;
        say::announce(format_args!(
            "{} keys ready at {}, room for {} values, entries of {} bytes",
            options.keys,
            options.at,
            options.entries,
            entry_len(options.value_max)
        ));
        adverb_apps::chain::serve_at(&rdma, &listener, &config).await
    });
    served.map(|()| ExitCode::SUCCESS).map_err(|error| failed(&options.at, &error.into()))
}

fn failed(at: &str, error: &ChainError) -> Error {
    let help = match error {
        ChainError::Rdma(RdmaError::NoAnswer | RdmaError::Left) => "; is `adverb chain serve` running there?",
        ChainError::Full => "; start a home with more --entries",
        _ => "",
    };
    Error::Remote(format!("--at {at}: {error}{help}"))
}

/// Opens the NIC, connects, and runs this, which prints what it gives.
fn with_home(
    home: &Home,
    run: impl AsyncFnOnce(&Client) -> Result<String, ChainError>,
) -> Result<ExitCode, Error> {
    let programs: Rc<Programs> = open(&home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async { run(&connect(&rdma, home).await?).await });
    print(&done.map_err(|error| failed(&home.at, &error))?).map(|()| ExitCode::SUCCESS)
}

async fn connect(rdma: &Rdma, home: &Home) -> Result<Client, ChainError> {
    let patience = rdma.now().await? + wire_time(home.patience);
    Ok(Client::open(rdma, &home.at, &Connect::default(), Some(patience)).await?)
}

/// What one client has measured.
#[derive(Default)]
struct Measured {
    counted: Counted,
    /// Of each put, and of each get, in ns.
    times: [Vec<u64>; 2],
    /// The home had no place left.
    full: bool,
    /// Connections that failed, and puts that were under way then: they may have had their effect or not.
    failed: u64,
    in_doubt: u64,
}

fn bench(options: &BenchOptions) -> Result<ExitCode, Error> {
    let via = from_options(&options.home.nic)?.via;
    let programs: Rc<Programs> = open(&options.home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let failed = |error: ChainError| failed(&options.home.at, &error);
    let clients = (0..options.clients).map(|_| connect(&rdma, &options.home));
    let clients = programs.block_on(each(clients)).map_err(failed)?;
    let watched = via.as_deref().map(|via| Watched::new(via, "steer", COUNTERS)).transpose()?;
    let clients = clients.into_iter();
    let searches = Searches::default();
    let run = |client, end| measure(&rdma, client, options, end, &searches);
    let measuring = side_by_side(&rdma, options.time, clients, run);
    let (measured, seconds) = programs.block_on(beside(measuring, searches.told(&rdma))).map_err(failed)?;
    let mut text = in_words(options, measured.iter(), seconds);
    let mut complete = true;
    if let Some(watched) = &watched {
        let [cas, reads, current_cas, current_reads, passed, held, forgotten] = watched.since()?;
        text += &format!(
            "switch {}: {cas} compare and swaps and {reads} READs steered, {current_cas} and {current_reads} \
             were to the last entry, {passed} compare and swaps passed, {held} requests held, {forgotten} \
             tails forgotten\n",
            watched.name(),
        );
        // A client that is alone names the last entry itself: it was known, and that is all.
        let known = options.clients == 1 && current_cas + current_reads > 0;
        complete = cas + reads > 0 || known || !watched.has_program;
    }
    print(&text)?;
    if !complete {
        say!("adverb: the switch has steer, and steered nothing: are server and entry the home's?");
        return Ok(ExitCode::FAILURE);
    }
    if measured.iter().any(|one| one.full) {
        say!("adverb: the home has no place left; start one with more --entries");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Searches for the ends of chains that clients have not seen yet: when they began, each under a number. A
/// home that was used before has chains so long that one takes seconds.
#[derive(Default)]
struct Searches {
    next: Cell<u64>,
    begun: RefCell<BTreeMap<u64, Instant>>,
}

/// A search that takes longer is said.
const LONG: RdmaDuration = RdmaDuration::from_ms(1000);

impl Searches {
    /// One begins; its number.
    fn begin(&self, now: Instant) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.begun.borrow_mut().insert(number, now);
        number
    }

    fn end(&self, number: u64) {
        self.begun.borrow_mut().remove(&number);
    }

    /// When the oldest one will have taken long; with none, when one that begins now will.
    fn long_at(&self, now: Instant) -> Instant {
        self.begun.borrow().values().min().map_or(now, |begun| *begun) + LONG
    }

    /// Says once what takes so long, should it.
    async fn told(&self, rdma: &Rdma) -> Result<(), RdmaError> {
        loop {
            let now = rdma.now().await?;
            let due = self.long_at(now);
            if due <= now {
                break;
            }
            rdma.sleep(due.since(now)).await?;
        }
        say!(
            "adverb: clients look for the ends of chains that have grown long before, once for each key: the \
             figures have that in them"
        );
        Ok(())
    }
}

async fn measure(
    rdma: &Rdma,
    mut client: Client,
    options: &BenchOptions,
    end: Instant,
    searches: &Searches,
) -> Result<Measured, ChainError> {
    let mut measured = Measured::default();
    let mut found = BTreeSet::new();
    let value = vec![7; options.size];
    loop {
        let begun = rdma.now().await?;
        if begun >= end || rdma.until(&[On::Stop], Some(begun)).await?.is_some() {
            break;
        }
        let dice = rdma.random().await?;
        let key = (dice >> 32) as u32 % options.keys;
        let puts = (dice as u32) % 100 < options.writes;
        let search = found.insert(key).then(|| searches.begin(begun));
        let done = match puts {
            true => client.put(key, &value).await,
            false => client.get(key).await.map(drop),
        };
        search.into_iter().for_each(|number| searches.end(number));
        match done {
            Ok(()) => measured.times[usize::from(!puts)].push(rdma.now().await?.since(begun).as_ns()),
            Err(ChainError::Full) => {
                measured.full = true;
                break;
            }
            // A switch that was away for too long, for one: others go on meanwhile, and so does this one.
            Err(ChainError::Rdma(RdmaError::Failed { .. })) => {
                measured.failed += 1;
                measured.in_doubt += u64::from(puts);
                add(&mut measured.counted, &client.counted());
                client = connect(rdma, &options.home).await?;
                found.clear();
            }
            Err(error) => return Err(error),
        }
    }
    add(&mut measured.counted, &client.counted());
    Ok(measured)
}

fn add(sum: &mut Counted, more: &Counted) {
    sum.puts += more.puts;
    sum.refused += more.refused;
    sum.gets += more.gets;
    sum.passed += more.passed;
}

fn in_words<'a>(
    options: &BenchOptions,
    measured: impl Iterator<Item = &'a Measured> + Clone,
    seconds: f64,
) -> String {
    let sum = |of: fn(&Counted) -> u64| measured.clone().map(|one| of(&one.counted)).sum::<u64>();
    let (puts, gets) = (sum(|counted| counted.puts), sum(|counted| counted.gets));
    let mut text = format!(
        "{} clients, {} keys, {} bytes, {}% puts: {} operations in {seconds:.1} s, {:.0}/s; {:.2} refused \
         compare and swaps a put, {:.2} entries passed an operation; {} connections failed with {} puts in \
         doubt\n",
        options.clients,
        options.keys,
        options.size,
        options.writes,
        puts + gets,
        (puts + gets) as f64 / seconds,
        sum(|counted| counted.refused) as f64 / puts.max(1) as f64,
        sum(|counted| counted.passed) as f64 / (puts + gets).max(1) as f64,
        measured.clone().map(|one| one.failed).sum::<u64>(),
        measured.clone().map(|one| one.in_doubt).sum::<u64>(),
    );
    for (kind, name) in ["puts", "gets"].into_iter().enumerate() {
        let times = Times::new(measured.clone().flat_map(|one| one.times[kind].iter().copied()));
        if times.count() > 0 {
            text += &format!("{} {name}: {times}\n", times.count());
        }
    }
    text
}
