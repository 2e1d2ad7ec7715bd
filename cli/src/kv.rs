//! `adverb kv`: a replicated cache on 1RMA.

use crate::error::Error;
use crate::output::print;
use crate::remote::{NicChoice, Who, said, size, span};
use adverb_apps::kv::{
    Bench, BenchReport, Client, ClientConfig, ReplicaCounters, ReplicaInit, Server, ServerConfig,
    StoreConfig, Window,
};
use adverb_grants::Policy;
use adverb_os::say;
use adverb_rma::Rma;
use clap::{Args, Subcommand};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Shown by `adverb kv --help`.
pub const EXAMPLES: &str = "\
Each replica is a process that owns two regions, kv-index and kv-data. A get reads both, one-sided: the
replica's program does not notice. A set is a call to every replica. A client turns to another replica at the
first operation that fails.

Examples:
  adverb certs --out certs kv=127.0.0.2,127.0.0.3 app
  adverb kv serve --address 127.0.0.2 --as certs/kv --policy policy.toml &
  adverb kv serve --address 127.0.0.3 --as certs/kv --policy policy.toml &
  export ADVERB_AS=certs/app ADVERB_REPLICAS=127.0.0.2:7450,127.0.0.3:7450
  adverb kv set greeting hello --address 127.0.0.4
  adverb kv get greeting --address 127.0.0.4
  adverb kv bench --address 127.0.0.4 --time 10s --timeline 500ms

policy.toml:
  [[client]]
  name = \"app\"
  regions = [\"kv-*\"]
  rights = [\"read\"]
  call = true";

/// Port of replicas where none is given.
const PORT: u16 = 7450;
/// Leases of clients.
const TTL: Duration = Duration::from_secs(60);

/// `adverb kv`.
#[derive(Subcommand, Debug)]
pub enum Kv {
    /// Serve a replica until ended by a signal
    Serve(Box<Serve>),
    /// Print a value; the exit status is 1 when there is none
    Get(Box<Get>),
    /// Set a value on all replicas; the exit status is 2 when only some have it
    Set(Box<Set>),
    /// Load the cache, check every value, and print latencies, rate and failures; the exit status is 1 when a
    /// value was wrong
    Bench(Box<BenchOptions>),
}

/// `adverb kv serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// The NIC.
    #[command(flatten)]
    pub nic: NicChoice,
    /// Who it is.
    #[command(flatten)]
    pub who: Who,
    /// Who may read and set, as a TOML file
    #[arg(long, value_name = "FILE")]
    pub policy: PathBuf,
    /// Where clients call [default: port 7450 of the NIC's address]
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Memory for values; when it is full, what was set first goes
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64MB")]
    pub memory: usize,
    /// Keys that there is room for, about
    #[arg(long, value_name = "N", default_value_t = 65536)]
    pub keys: usize,
    /// Bytes of a value at most
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "64KB")]
    pub value_max: usize,
    /// Give the regions other keys this often
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub rotate_every: Option<Duration>,
    /// End when standard input does: with the process that started this one, however that ends
    #[arg(long)]
    pub until_eof: bool,
}

/// What clients share.
#[derive(Args, Debug)]
pub struct Cache {
    /// A replica; several are given one by one, or separated by commas
    #[arg(
        long = "replica",
        value_name = "HOST:PORT",
        env = "ADVERB_REPLICAS",
        value_delimiter = ',',
        required = true
    )]
    pub replicas: Vec<String>,
    /// Name in the replicas' certificates [default: HOST]
    #[arg(long, value_name = "NAME")]
    pub replica_name: Option<String>,
    /// The NIC.
    #[command(flatten)]
    pub nic: NicChoice,
    /// Who asks.
    #[command(flatten)]
    pub who: Who,
}

/// `adverb kv get`.
#[derive(Args, Debug)]
pub struct Get {
    /// The key
    pub key: String,
    /// The cache.
    #[command(flatten)]
    pub cache: Cache,
}

/// `adverb kv set`.
#[derive(Args, Debug)]
pub struct Set {
    /// The key
    pub key: String,
    /// The value; `-` reads it from standard input
    pub value: String,
    /// The cache.
    #[command(flatten)]
    pub cache: Cache,
}

/// `adverb kv bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The cache.
    #[command(flatten)]
    pub cache: Cache,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "5s")]
    pub time: Duration,
    /// Lookups at once; with --rate, at most
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub depth: u16,
    /// Lookups that arrive each second, at random times; latencies then count from the arrival [default: each
    /// begins when another ends]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Keys; all are set before it begins
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,
    /// Bytes of a value, at least 16
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "4096")]
    pub value: usize,
    /// Values set anew each second meanwhile
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub sets: u32,
    /// Print a line for each such time
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub timeline: Option<Duration>,
    /// Seed of the choice of keys
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Cache {
    fn open(&self, lookups: usize) -> Result<Client, Error> {
        let replica = |to: &String| {
            let to = if to.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
                to.clone()
            } else {
                format!("{to}:{PORT}")
            };
            ReplicaInit { to, name: self.replica_name.clone(), ttl: TTL }
        };
        let replicas = self.replicas.iter().map(replica).collect();
        let config = ClientConfig { replicas, identity: self.who.load()?, lookups };
        let client = Client::open(Arc::new(self.nic.open()?), config);
        client.map_err(|error| said("--replica", self.replicas.join(","), error))
    }
}

/// `adverb kv`.
pub fn kv(action: &Kv) -> Result<ExitCode, Error> {
    match action {
        Kv::Serve(options) => serve(options),
        Kv::Get(options) => get(options),
        Kv::Set(options) => set(options),
        Kv::Bench(options) => bench(options),
    }
}

fn serve(options: &Serve) -> Result<ExitCode, Error> {
    let identity = options.who.load()?;
    let policy = Policy::load(&options.policy).map_err(|error| Error::Remote(format!("--{error}")))?;
    let Serve { memory, keys, value_max, .. } = *options;
    let store = StoreConfig { memory, keys, value_max };
    store.check().map_err(|why| Error::Options(format!("--memory, --keys, --value-max: {why}")))?;
    let rma = options.nic.open()?;
    let listen = options.listen.unwrap_or((rma.address(), PORT).into());
    let config = ServerConfig { store, listen, identity, policy };
    let server = Server::start(&rma, &config).map_err(|error| Error::Device(error.to_string()))?;
    if options.until_eof {
        let watch = std::thread::Builder::new().name("adverb-eof".to_owned()).spawn(|| {
            // An error is an end too.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(0)
        });
        watch.map_err(|error| said("--until-eof:", "starting a thread", error))?;
    }
    print(&format!("kv replica of {} ready at {}\n", rma.address(), server.address()))?;
    keep_serving(options, &rma, &server)
}

/// Writes counters and rotates keys when it is time to, for as long as there is a NIC.
#[expect(clippy::disallowed_methods, reason = "keys rotate by the clock")]
fn keep_serving(options: &Serve, rma: &Rma, server: &Server) -> Result<ExitCode, Error> {
    options.nic.write_counters(rma)?;
    let mut rotated = Instant::now();
    let mut counters_lost = false;
    loop {
        let second = options.nic.counters.as_ref().map(|_| Duration::from_secs(1));
        let due = options.rotate_every.map(|time| time.saturating_sub(rotated.elapsed()));
        if rma.ended_within(second.into_iter().chain(due).min()) {
            let nic = options.nic.attach.as_ref().map(|socket| format!("--attach {}: ", socket.display()));
            return Err(Error::Device(format!(
                "{}the NIC daemon is gone or does not answer, and this replica's regions with it; start \
                 `adverb nicd`, then the replica again",
                nic.unwrap_or_default()
            )));
        }
        // A full disk ends neither the cache nor, once there is room again, the counters.
        let written = options.nic.write_counters(rma);
        if let Err(error) = &written
            && !counters_lost
        {
            say!("adverb: {error}; going on without, and trying again each second");
        }
        counters_lost = written.is_err();
        if let Some(time) = options.rotate_every.filter(|time| rotated.elapsed() >= *time) {
            rotated = Instant::now();
            server.rotate().map_err(|refusal| said("--rotate-every", format!("{time:?}"), refusal))?;
        }
    }
}

fn get(options: &Get) -> Result<ExitCode, Error> {
    let client = options.cache.open(1)?;
    let found = client.rma().block_on(client.get(options.key.as_bytes()));
    options.cache.nic.write_counters(client.rma())?;
    match found.map_err(|error| said("get", &options.key, error))? {
        Some(value) => {
            let mut out = std::io::stdout();
            out.write_all(&value).and_then(|()| out.flush()).map_err(Error::Output)?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            say!("adverb: get {}: no replica has it", options.key);
            Ok(ExitCode::from(1))
        }
    }
}

fn set(options: &Set) -> Result<ExitCode, Error> {
    let mut value = options.value.as_bytes().to_vec();
    if options.value == "-" {
        value.clear();
        let read = std::io::stdin().lock().read_to_end(&mut value);
        read.map_err(|error| said("set", "-", format!("standard input cannot be read: {error}")))?;
    }
    let client = options.cache.open(1)?;
    let stored =
        client.set(options.key.as_bytes(), &value).map_err(|error| said("set", &options.key, error))?;
    options.cache.nic.write_counters(client.rma())?;
    for (replica, why) in &stored.missing {
        say!("adverb: set {}: not on {replica}: {why}", options.key);
    }
    let all = options.cache.replicas.len();
    print(&format!("on {} of {all} replicas, version {}\n", stored.replicas, stored.version))?;
    Ok(ExitCode::from(if stored.missing.is_empty() { 0 } else { 2 }))
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn bench(options: &BenchOptions) -> Result<ExitCode, Error> {
    if options.value < 16 {
        return Err(Error::Options(format!(
            "--value {}: give at least 16 bytes, which tell the value",
            options.value
        )));
    }
    let client = options.cache.open(options.depth.into())?;
    let window = options.timeline.unwrap_or(options.time).max(Duration::from_millis(1));
    let bench = Bench {
        time: options.time,
        depth: options.depth.into(),
        rate: options.rate.map(f64::from),
        keys: options.keys,
        value_len: options.value,
        sets: options.sets,
        window,
        seed: options.seed,
    };
    let mut lines = |window: &Window| {
        // A reader that went away is noticed at the end.
        let _ = print(&line(window, bench.window));
    };
    let mut silent = |_: &Window| {};
    let on_window: &mut dyn FnMut(&Window) =
        if options.timeline.is_some() { &mut lines } else { &mut silent };
    let heading = || {
        if options.timeline.is_some() {
            let _ = print(&heading(&options.cache.replicas));
        }
    };
    let report =
        bench.run(&client, heading, on_window).map_err(|error| said("bench:", "setting the keys", error))?;
    print(&summary(&bench, &report, &client))?;
    options.cache.nic.write_counters(client.rma())?;
    Ok(ExitCode::from((report.all.wrong > 0) as u8))
}

fn heading(replicas: &[String]) -> String {
    let mut text = format!("{:>9} {:>9} {:>9} {:>9} {:>9}", "ms", "gets/s", "p50 us", "p99 us", "max us");
    for at in 1..=replicas.len() {
        text += &format!(" {:>8}", format!("hits R{at}"));
    }
    text + &format!(" {:>8} {:>8} {:>8}\n", "refused", "timeouts", "no reply")
}

fn line(window: &Window, time: Duration) -> String {
    let latency = &window.latency;
    let mut text = format!(
        "{:>9.0} {:>9.0} {:>9.1} {:>9.1} {:>9.1}",
        us(window.start) / 1e3,
        latency.total() as f64 / time.as_secs_f64(),
        us(latency.percentile(0.5)),
        us(latency.percentile(0.99)),
        us(latency.max())
    );
    for replica in &window.replicas {
        text += &format!(" {:>8}", replica.hits);
    }
    let sum = |which: fn(&ReplicaCounters) -> u64| window.replicas.iter().map(which).sum::<u64>();
    text + &format!(" {:>8} {:>8} {:>8}\n", sum(|r| r.refused), sum(|r| r.timeouts), window.unavailable)
}

fn summary(bench: &Bench, report: &BenchReport, client: &Client) -> String {
    let (all, latency) = (&report.all, &report.all.latency);
    let seconds = report.time.as_secs_f64();
    let load = match bench.rate {
        None => format!("{} at once", bench.depth),
        Some(rate) => format!("{rate:.0} asked for a second"),
    };
    let mut text = format!(
        "{} gets of {} bytes in {seconds:.1} s, {load}: {:.0}/s\n",
        latency.total(),
        bench.value_len,
        latency.total() as f64 / seconds
    );
    text += &format!(
        "latency us    p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}; longest time without a get {:.1} ms\n",
        us(latency.percentile(0.5)),
        us(latency.percentile(0.99)),
        us(latency.percentile(0.999)),
        us(latency.max()),
        us(report.longest_gap) / 1e3
    );
    text += &format!(
        "not found     {} missed, {} without reply, {} wrong\n",
        all.misses, all.unavailable, all.wrong
    );
    text += &format!(
        "sets          {}, of them {} not on all replicas, {} failed\n",
        report.sets, report.sets_partial, report.sets_failed
    );
    for ((name, up, _), counted) in client.replicas().zip(&all.replicas) {
        text += &format!(
            "{name:<21} {}: {} hits, {} misses, {} torn, {} refused, {} timeouts, {} NACKs, {} other \
             failures, left {} times\n",
            if up { "up" } else { "down" },
            counted.hits,
            counted.misses,
            counted.torn,
            counted.refused,
            counted.timeouts,
            counted.nacks,
            counted.others,
            counted.suspected
        );
    }
    text
}
