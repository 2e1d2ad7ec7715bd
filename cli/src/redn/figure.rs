//! `adverb redn figure`: figures 14 to 16 of RedN's paper with processes of this host. It starts a server of
//! its own, asks it by several ways in turns, and prints the paper's values beside ours. The paper measured
//! adapters and machines of 2018, so that order and growth compare, and microseconds do not.
//!
//! ```text
//! 14  latency by the values' size
//! 15  latency beside writers: they and the worker have one processor, hull and reader another
//! 16  rate over time, while the worker is stopped, goes on, is killed, and started again
//! ```

use super::measure::{Bench, Load, Tally, Way, now_ns, set};
use super::proxy::{Calls, Counters as Called};
use crate::args::Nic;
use crate::error::Error;
use crate::output::print;
use crate::remote::span;
use crate::run::VARIABLE;
use crate::settings::from_options;
use adverb_io::Settings;
use adverb_io::program::Programs;
use adverb_os::signals::Signal;
use adverb_os::{processors, signals};
use adverb_rdma::Rdma;
use adverb_redn::service::item::DATA_MAX;
use clap::{Args, ValueEnum};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a value, and what figure 14 has for the offload, one-sided and two-sided gets, in us.
const FIGURE_14: [(usize, [f64; 3]); 5] = [
    (64, [5.65, 10.04, 9.29]),
    (1 << 10, [5.72, 11.33, 10.42]),
    (4 << 10, [6.41, 11.58, 13.23]),
    (16 << 10, [10.18, 15.36, 17.14]),
    // As much as an item may have; the paper's is 64 KB.
    (DATA_MAX, [16.28, 19.51, 43.02]),
];
/// Writers, and what figure 15 has for offload and two-sided: mean and 99th percentile, in us.
const FIGURE_15: [(usize, [f64; 4]); 5] = [
    (1, [5.6, 6.6, 12.2, 25.6]),
    (2, [5.4, 6.6, 14.4, 32.9]),
    (4, [5.4, 6.7, 20.3, 54.6]),
    (8, [5.7, 6.4, 39.4, 98.7]),
    (16, [5.6, 6.7, 107.0, 231.0]),
];
/// Keys of each writer, which sets them in their order.
const WRITERS_KEYS: u64 = 10_000;
/// A line of figure 16.
const LINE_NS: u64 = 250_000_000;

/// Which figure.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Latency by the values' size
    #[value(name = "14")]
    Sizes,
    /// Latency beside writers
    #[value(name = "15")]
    Writers,
    /// Rate while the worker is stopped and killed
    #[value(name = "16")]
    Killed,
}

/// `adverb redn figure`.
#[derive(Args, Debug)]
pub struct Options {
    /// Which of the paper's figures
    pub figure: Figure,
    /// How long to measure each point; figure 16 takes eight such times
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "1s")]
    pub time: Duration,
    /// Address of the server's NIC; with that of `--address`, which is 127.0.0.3 otherwise, through shared
    /// memory
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)))]
    pub server_address: IpAddr,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Device(format!("the figure's server: {error}"))
}

/// A server of this process's, which ends with it.
struct Server {
    hull: Child,
    folder: PathBuf,
    setup: String,
    calls: String,
    worker: u32,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.hull.kill().and_then(|()| self.hull.wait());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Server {
    fn start(options: &Options, settings: &Settings) -> Result<Server, Error> {
        let folder = std::env::temp_dir().join(format!("adverb-redn-figure-{}", std::process::id()));
        adverb_os::folders::private_folder(&folder).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["redn", "serve", "--port", "0", "--calls-port", "0", "--one-sided", "--two-sided"]);
        command.args(["--memory", "128MB", "--keys", "200000", "--respawn", "1s", "--address"]);
        command.arg(options.server_address.to_string()).arg("--socket").arg(folder.join("socket"));
        let settings = Settings { counters: None, ..settings.clone() };
        command.env(VARIABLE, settings.to_env()).stdin(Stdio::null()).stdout(Stdio::piped());
        signals::dies_with_this_thread(signals::for_child(&mut command));
        let mut hull = command.spawn().map_err(failed)?;
        let out = hull.stdout.take();
        let mut server = Server { hull, folder, setup: String::new(), calls: String::new(), worker: 0 };
        let mut lines = out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(Result::ok);
        let told = |found: Option<()>| found.ok_or_else(|| failed("it does not start"));
        let first = lines.next().unwrap_or_default();
        told(
            first
                .rsplit_once("; worker ")
                .and_then(|(_, pid)| pid.parse().ok())
                .map(|pid| server.worker = pid),
        )?;
        let second = lines.next().unwrap_or_default();
        let places = second.strip_prefix("set-up at ").and_then(|places| places.split_once(", calls at "));
        told(
            places.map(|(setup, calls)| (server.setup, server.calls) = (setup.to_owned(), calls.to_owned())),
        )?;
        Ok(server)
    }

    /// The worker that the hull has now, if it has one.
    fn worker_now(&self) -> Option<u32> {
        let stream = TcpStream::connect(&self.setup).ok()?;
        (&stream).write_all(b"counters\n").ok()?;
        let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| line != "end");
        let found = lines.filter_map(|line| line.strip_prefix("worker ").and_then(|pid| pid.parse().ok()));
        found.last().filter(|pid| *pid != 0)
    }
}

/// Measures a figure.
pub fn figure(options: &Options) -> Result<ExitCode, Error> {
    let mut settings = from_options(&options.nic)?;
    settings.address = settings.address.or(Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3))));
    let cpus = processors::allowed().map_err(failed)?;
    if options.figure == Figure::Writers {
        // This thread's is inherited by the NIC's, and by the hull.
        let [_, other, ..] = cpus[..] else {
            return Err(Error::Device("figure 15 needs two processors: one of them is the writers'".into()));
        };
        processors::pin_thread(0, other).map_err(failed)?;
    }
    let server = Server::start(options, &settings)?;
    let programs = Programs::open(&settings).map_err(|error| Error::Device(error.to_string()))?;
    let rdma = Rdma::new(programs.clone());
    let way = if settings.address == Some(options.server_address) { "shared memory" } else { "UDP" };
    print(&format!(
        "client at {}, server at {}: {way}\n",
        settings.address.map_or_else(String::new, |a| a.to_string()),
        options.server_address
    ))?;
    programs.block_on(async {
        match options.figure {
            Figure::Sizes => sizes(options, &rdma, &server).await,
            Figure::Writers => writers(options, &rdma, &server, cpus[0]).await,
            Figure::Killed => killed(options, &rdma, server).await,
        }
    })
}

fn load(ways: &[Way], keys: u64) -> Load {
    let (turn, patience) = (Duration::from_millis(25), Duration::from_secs(1));
    Load { keys, value: FIGURE_14[0].0, turn, patience, ways: ways.to_vec() }
}

fn until(time: Duration) -> u64 {
    now_ns() + time.as_nanos() as u64
}

fn status(offload: &Tally) -> ExitCode {
    if offload.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn sizes(options: &Options, rdma: &Rdma, server: &Server) -> Result<ExitCode, Error> {
    let (ways, called) = ([Way::Offload, Way::Reads, Way::TwoSided], Called::default());
    let mut bench = Bench::connect(rdma, &server.setup, load(&ways, 100), &called).await?;
    print("figure 14: us, median and 99th percentile of ours, mean of the paper's\n")?;
    print("  bytes        offload      two reads      two-sided    paper\n")?;
    let mut status_of_all = ExitCode::SUCCESS;
    for (len, paper) in FIGURE_14 {
        bench.begin_anew(len);
        bench.fill()?;
        bench.run(until(options.time * ways.len() as u32), |_, _| Ok(())).await?;
        let mut line = format!("{len:>7}");
        for tally in &bench.tallies {
            let (median, p99) = tally.median_and_p99();
            let _ = write!(line, "  {median:>6.1} {p99:>6.1}");
        }
        let _ = writeln!(
            line,
            "   {:>5.2} {:>5.2} {:>5.2}{}",
            paper[0],
            paper[1],
            paper[2],
            failures(&bench.tallies)
        );
        print(&line)?;
        if bench.tallies.iter().any(|tally| tally.failed > 0) {
            status_of_all = ExitCode::FAILURE;
        }
    }
    Ok(status_of_all)
}

/// What failed, if anything did.
fn failures(tallies: &[Tally]) -> String {
    let failed = tallies.iter().filter(|tally| tally.failed > 0);
    failed.map(|tally| format!("  {} of {} failed", tally.failed, tally.way.name())).collect()
}

/// Programs that set keys, in threads, one after the other without a pause.
struct Writers {
    stop: Arc<AtomicBool>,
    sets: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn add(&mut self, calls: String, cpu: usize) -> Result<(), Error> {
        let (number, stop, sets) = (self.threads.len(), self.stop.clone(), self.sets.clone());
        let run = move || {
            let called = Called::default();
            let mut calls = Calls { to: calls.into(), stream: None, counters: &called };
            // A writer that cannot be pinned, or is not answered, is missed in the count of sets.
            let mut well = processors::pin_thread(0, cpu).is_ok();
            for n in (0..WRITERS_KEYS).cycle() {
                if !well || stop.load(Ordering::Relaxed) {
                    return;
                }
                well = set(&mut calls, format!("writer-{number}-{n}").as_bytes(), &[7; 64]).is_ok();
                sets.fetch_add(u64::from(well), Ordering::Relaxed);
            }
        };
        let spawned = std::thread::Builder::new().name("adverb-writer".to_owned()).spawn(run);
        self.threads.push(spawned.map_err(failed)?);
        Ok(())
    }

    fn are_at_work(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What a writer came to is known.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

async fn writers(options: &Options, rdma: &Rdma, server: &Server, cpu: usize) -> Result<ExitCode, Error> {
    let (ways, called) = ([Way::Offload, Way::TwoSided], Called::default());
    processors::pin_process(server.worker, cpu).map_err(failed)?;
    let mut bench = Bench::connect(rdma, &server.setup, load(&ways, 1000), &called).await?;
    bench.fill()?;
    let (stop, sets) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let mut writers = Writers { stop, sets: sets.clone(), threads: Vec::new() };
    print("figure 15: us, median and 99th percentile of ours, mean and 99th percentile of the paper's\n")?;
    print("writers        offload      two-sided    sets/s     paper\n")?;
    let mut first = None;
    for (count, paper) in FIGURE_15 {
        while writers.threads.len() < count {
            writers.add(server.calls.clone(), cpu)?;
        }
        bench.begin_anew(FIGURE_14[0].0);
        let (begin, before) = (now_ns(), sets.load(Ordering::Relaxed));
        bench.run(until(options.time * ways.len() as u32), |_, _| Ok(())).await?;
        let rate = (sets.load(Ordering::Relaxed) - before) as f64 * 1e9 / (now_ns() - begin) as f64;
        if !writers.are_at_work() {
            return Err(failed("a writer was not answered"));
        }
        let mut line = format!("{count:>7}");
        let p99s = [0, 1].map(|at| bench.tallies[at].median_and_p99().1);
        for tally in &bench.tallies {
            let (median, p99) = tally.median_and_p99();
            let _ = write!(line, "  {median:>6.1} {p99:>6.1}");
        }
        let _ = write!(line, "  {rate:>8.0}");
        for value in paper {
            let _ = write!(line, " {value:>5.1}");
        }
        print(&format!("{line}{}\n", failures(&bench.tallies)))?;
        let first = *first.get_or_insert(p99s);
        if count == FIGURE_15[FIGURE_15.len() - 1].0 {
            print(&format!(
                "99th percentile beside {count} writers over that beside 1: offload {:.2}, two-sided {:.2} \
                 (paper: 1.02, 9.0)\n",
                p99s[0] / first[0],
                p99s[1] / first[1]
            ))?;
        }
    }
    Ok(status(&bench.tallies[0]))
}

/// A line of figure 16.
struct Row {
    ms: u64,
    rates: [(f64, u64); 2],
    worker: &'static str,
}

async fn killed(options: &Options, rdma: &Rdma, mut server: Server) -> Result<ExitCode, Error> {
    let (ways, called) = ([Way::Offload, Way::TwoSided], Called::default());
    let load = Load { patience: Duration::from_millis(100), ..load(&ways, 1000) };
    let mut bench = Bench::connect(rdma, &server.setup, load, &called).await?;
    bench.fill()?;
    let eighth = options.time.as_nanos() as u64;
    let begin = now_ns();
    // In eighths of the whole: it stands still, goes on, is killed.
    let mut plan = [
        (2, Some(Signal::Stop), "stopped"),
        (3, Some(Signal::Continue), "serves"),
        (5, Some(Signal::Kill), "killed"),
    ]
    .into_iter()
    .map(|(at, signal, name)| (begin + at * eighth, signal, name))
    .peekable();
    let (mut worker, mut rows, mut next_line) = ("serves", Vec::new(), begin + LINE_NS);
    bench
        .run(begin + 8 * eighth, |tallies, now| {
            if let Some((_, signal, name)) = plan.next_if(|(at, ..)| now >= *at) {
                if let Some(signal) = signal {
                    signals::send(server.worker, signal).map_err(failed)?;
                }
                worker = name;
            }
            if now >= next_line {
                let rates = [0, 1].map(|at| tallies[at].take_recent());
                rows.push(Row { ms: (now - begin) / 1_000_000, rates, worker });
                next_line = now + LINE_NS;
                if worker == "killed"
                    && let Some(heir) = server.worker_now().filter(|pid| *pid != server.worker)
                {
                    (server.worker, worker) = (heir, "serves again");
                }
            }
            Ok(())
        })
        .await?;
    let most = [0, 1].map(|way| rows.iter().map(|row| row.rates[way].0).fold(1.0, f64::max));
    let mut text = "figure 16: gets/s of the time that each way had, and of its maximum\n".to_owned();
    text.push_str("     ms   offload         two-sided        failed  worker\n");
    for Row { ms, rates, worker } in &rows {
        let _ = write!(text, "{ms:>7}");
        for way in [0, 1] {
            let rate = rates[way].0;
            let _ = write!(text, "  {rate:>8.0}  {:>4.2}", rate / most[way]);
        }
        let _ = writeln!(text, "  {:>8}  {worker}", rates[0].1 + rates[1].1);
    }
    bench.tallies.iter().for_each(|tally| tally.sum(&mut text));
    let least = rows.iter().map(|row| row.rates[0].0 / most[0]).fold(1.0, f64::min);
    let gone = rows.iter().filter(|row| row.rates[1].0 == 0.0).count();
    let _ = writeln!(
        text,
        "offload: never below {least:.2} of its maximum (paper: 0.93), longest gap {:.1} ms; two-sided: \
         nothing in {gone} of {} lines, longest gap {:.0} ms (paper: 0 for 1 s, back after 2.25 s)",
        bench.tallies[0].longest_gap_ms(),
        rows.len(),
        bench.tallies[1].longest_gap_ms(),
    );
    print(&text)?;
    Ok(status(&bench.tallies[0]))
}
