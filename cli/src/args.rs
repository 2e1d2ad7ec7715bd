//! The command line: what `adverb --help` says.

use crate::{chain, facade, kv, lock, locks, nicd, queue, redn, region, star, stay, switch, top, tree};
use adverb_io::{Choice, Congestion, Direction, PathPolicy, Settings, StarTrust, Transport};
use adverb_sim::sabotage::Sabotage;
use adverb_sim::swarm::programs::System;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  adverb devices
      Show the NIC that programs will see.
  adverb run -- ibv_rc_pingpong -g 0 &
  adverb run -- ibv_rc_pingpong -g 0 localhost
      Two processes, one host, no hardware.
  adverb run --address 127.0.0.1 --loss 0.01 --seed 7 -- ib_write_bw -u 10
      Lose one packet in a hundred, the same ones each time.
  adverb run --pcap out.pcap --trace -- ./my_program
      Write every frame for Wireshark, and explain every failed completion.
  adverb sim crates/sim/examples/incast.toml --seeds 8 --out results
      Simulate a network of these NICs, eight times with other random choices.";

const RUN_EXAMPLES: &str = "\
The command inherits standard input and output, takes the place of this process, and so gets its signals and
gives its exit status. With --expect-rdma, --expect-bytes, --summary or --metrics this process stays as its
parent, which neither the program nor whoever waits for it notices. Settings reach it, and every program that
it starts, in the environment variable ADVERB; a program that is started with LD_LIBRARY_PATH and ADVERB set
by other means behaves alike.

Peers are software, and may wait for a processor. A peer's process on this host that lives, is not stopped and
has not run since costs no retry, for 10 s at most in a row; nor does a timeout that this process itself came
late to. Of a peer of which nothing can be known, at least 500 ms of silence are borne, however short the
queue pair's timeout is; no timeout is shorter than 2 ms. A peer that has ended, or is stopped, fails within
timeout and retry count, or those 500 ms; --trace says which of the two it was.

Examples:
  adverb run -- ib_write_bw
  adverb run --address 127.0.0.2 -- ib_write_bw 127.0.0.1
  adverb run --loss 0.05 --direction tx --seed 3 -- ibv_rc_pingpong -g 0 -c localhost
  adverb run --via sw0 --address 10.9.0.2 -- ib_write_bw 127.0.0.1
  adverb run --expect-rdma --summary -- make check
      Ends with status 120 if the tests pass without RDMA.";

const SWARM_EXAMPLES: &str = "\
Each seed is a random network of NICs, with IRN or without, that carries random reads, writes, sends and
atomics: first under loss, damage, duplication, reordering and failing cables, when nothing wrong may happen,
then without, when everything must end. An oracle checks that completions come once and in order, that memory
holds what it should and nothing else changed, and that atomics are linearizable.

Exit status: 0 if all seeds pass, 1 if any fails.

Examples:
  adverb swarm --seeds 100000
  adverb swarm --first 42 --seeds 1
  adverb swarm --seeds 100 --sabotage corrupt-passes
  adverb replay 42 --limit 200";

const SIM_EXAMPLES: &str = "\
A run is a function of its scenario and seed: the same flows, packets and times on every machine, whatever
--jobs says. docs/scenarios.md describes the format.

Examples:
  adverb sim crates/sim/examples/irn-default.toml --stats
  adverb sim my.toml --seed 10 --seeds 8 --jobs 2 --out results
  adverb sim crates/sim/examples/faults.toml --pcap 0:first-link.pcap";

const LAB_EXAMPLES: &str = "\
Examples:
  adverb lab run irn/fig1
  adverb lab run irn --out results
  adverb lab run irn/fig12 --scale paper --seeds 5 --out results
  adverb lab run irn/fig1 --first-seed 100 --longer 2
  adverb lab run irn/fig1 --set switch.buffer=60KB,120KB,240KB
  adverb lab run irn --out results --resume
  adverb lab new mine; adverb lab run ./mine";

const REPORT_EXAMPLES: &str = "\
Writes DIR/index.html, which needs nothing else, and a folder for each experiment as `adverb lab run --out`
does.

Examples:
  adverb lab report --out page
  adverb lab report irn onerma --scale paper --out page --resume";

const COMPARE_EXAMPLES: &str = "\
It prints each verdict that changes, folder by folder, and what all seeds together say. Nothing is run.

Examples:
  adverb lab run irn --out one; adverb lab run irn --first-seed 1000 --out two; adverb lab compare one two
  adverb lab run irn --longer 2 --out longer; adverb lab compare one longer";

const MUTATE_EXAMPLES: &str = "\
Each experiment lists its mutations: all series alike, labels swapped, a mechanism off, a baseline that never
ends.

Examples:
  adverb lab mutate irn/fig7
  adverb lab mutate onerma";

/// Runs unmodified RDMA programs on a NIC made of software: RoCEv2 over UDP, with no RDMA hardware, no kernel
/// module and no root.
#[derive(Parser, Debug)]
#[command(name = "adverb", version, after_help = EXAMPLES, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Run a program on the NIC
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<Run>),
    /// Show the processes that have NICs, and what these are doing
    #[command(after_help = top::EXAMPLES)]
    Top(top::Top),
    /// List the NIC, its port and its GIDs
    Devices(Devices),
    /// Write what programs would find of the NIC in sysfs and /dev into a folder
    #[command(after_help = facade::EXAMPLES)]
    Facade(facade::Facade),
    /// Serve the 1RMA NIC of an address to applications of this host
    #[command(after_help = nicd::EXAMPLES)]
    Nicd(Box<nicd::Nicd>),
    /// List, grant and rotate keys of 1RMA regions
    #[command(subcommand, after_help = region::EXAMPLES)]
    Region(region::Region),
    /// A replicated cache on 1RMA: serve, get, set, bench
    #[command(subcommand, after_help = kv::EXAMPLES)]
    Kv(kv::Kv),
    /// A lock in remote memory: serve, hold, get, set, show, bench
    #[command(subcommand, after_help = lock::EXAMPLES)]
    Lock(lock::Lock),
    /// A table of locks in remote memory, for many clients: serve, hold, get, set, bench
    #[command(subcommand, after_help = locks::EXAMPLES)]
    Locks(locks::Locks),
    /// A store of chains of entries in remote memory, for many clients: serve, get, put, audit, bench
    #[command(subcommand, after_help = chain::EXAMPLES)]
    Chain(chain::Chain),
    /// A B+tree in remote memory, for many clients: serve, get, put, remove, scan, bench
    #[command(subcommand, after_help = tree::EXAMPLES)]
    Tree(tree::Tree),
    /// A queue in remote memory that several processes write: consume, produce, bench
    #[command(subcommand, after_help = queue::EXAMPLES)]
    Queue(queue::Queue),
    /// Programs that run in the NIC: compile, show, run, trace
    #[command(subcommand, after_help = redn::EXAMPLES)]
    Redn(redn::Redn),
    /// Servers that keep nothing of their clients: oracle serve, oracle bench; switch, of a running program
    #[command(subcommand, after_help = star::EXAMPLES)]
    Star(star::Star),
    /// A programmable switch between programs of this host: run, show, trace, set, check
    #[command(subcommand, after_help = switch::EXAMPLES)]
    Switch(switch::SwitchAction),
    /// Make certificates for trials of `kv` and `region`
    #[command(after_help = region::CERTS_EXAMPLES)]
    Certs(region::Certs),
    /// Simulate a network of these NICs, as a scenario file describes it
    #[command(after_help = SIM_EXAMPLES)]
    Sim(Sim),
    /// Check the NIC on random networks, faults and work, each from one seed
    #[command(after_help = SWARM_EXAMPLES)]
    Swarm(Swarm),
    /// Show a seed of the swarm step by step
    Replay(Replay),
    /// Run published experiments again: the paper's values beside ours
    #[command(subcommand)]
    Lab(Lab),
    /// Print what completes this command's words in a shell
    #[command(after_help = crate::words::COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_enum, value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    Man {
        /// Into this directory, which is made where it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// What a seed is of: the same words for `adverb swarm` and `adverb replay`.
#[derive(Args, Debug)]
pub struct Tried {
    /// Break the NIC on purpose, to see that it is found
    #[arg(long, value_name = "HOW", value_parser = sabotage, conflicts_with = "one_rma")]
    pub sabotage: Option<Sabotage>,
    /// 1RMA's NICs and software instead of queue pairs
    #[arg(long = "1rma")]
    pub one_rma: bool,
    /// Queue pairs of NICs that offer StaR, in random roles
    #[arg(long, conflicts_with = "one_rma")]
    pub star: bool,
    /// Run a system of programs: lock, locks, queue, catalog, chain or tree
    #[arg(
        long,
        value_name = "NAME",
        value_parser = crate::systems::by_name,
        conflicts_with_all = ["one_rma", "star", "sabotage"]
    )]
    pub app: Option<System>,
    /// Random programs in NICs, compiled, run under faults, and compared with an interpreter
    #[arg(long, conflicts_with_all = ["one_rma", "star", "sabotage", "app"])]
    pub redn: bool,
    /// Clients of words behind a switch that decides their atomics, under faults of all of them
    #[arg(long, conflicts_with_all = ["one_rma", "star", "sabotage", "app", "redn"])]
    pub switch: bool,
    /// Break the programs on purpose, to see that it is found: with --app, --redn or --switch
    #[arg(long, value_name = "HOW")]
    pub bug: Option<String>,
}

/// `adverb swarm`.
#[derive(Args, Debug)]
pub struct Swarm {
    /// Seeds to run
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1 << 32)
    )]
    pub seeds: u64,
    /// The first of them; they count up
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub first: u64,
    /// Run this many side by side [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Stop after this many failures
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub failures: u64,
    #[command(flatten)]
    pub tried: Tried,
    /// Print one hash over the traces of all seeds: two builds that print the same one behaved alike
    #[arg(long)]
    pub hash: bool,
}

/// `adverb replay`.
#[derive(Args, Debug)]
pub struct Replay {
    /// The seed, as `adverb swarm` printed it
    #[arg(value_name = "SEED")]
    pub seed: u64,
    /// Show at most this many lines
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Show the last lines before the failure, 100 without --limit
    #[arg(long)]
    pub around_failure: bool,
    /// Write a trace for Perfetto's viewer (ui.perfetto.dev): requests, packets, windows and queues over time
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    #[command(flatten)]
    pub tried: Tried,
}

/// `adverb lab`.
#[derive(Subcommand, Debug)]
pub enum Lab {
    /// List the experiments
    List,
    /// Write an experiment to begin one's own with: a scenario and series, commented
    New {
        /// The folder to make
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Run experiments; the exit status is 1 when a bound that is claimed does not hold
    #[command(after_help = LAB_EXAMPLES)]
    Run(LabRun),
    /// Run experiments, then with something wrong on purpose; the exit status is 1 when that is not noticed
    #[command(after_help = MUTATE_EXAMPLES)]
    Mutate(LabRun),
    /// Run experiments, and write what came of them as one page: plots, verdicts, the paper's values
    #[command(after_help = REPORT_EXAMPLES)]
    Report(LabReport),
    /// Judge runs that are kept in several folders by the same bounds; the exit status is 1 when a verdict is
    /// not the same in all of them, or fails
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// What --out has named: of other seeds, of longer runs, of another build
        #[arg(required = true, num_args = 2.., value_name = "DIR")]
        folders: Vec<PathBuf>,
    },
}

/// `adverb lab run` and `adverb lab mutate`.
#[derive(Args, Debug)]
pub struct LabRun {
    /// Experiments, such as irn/fig1; a paper's name stands for all of its own; or a path: an
    /// experiment.toml, its folder, or a folder of such folders
    #[arg(required = true, value_name = "EXPERIMENT")]
    pub experiments: Vec<String>,
    /// Write the runs as CSV and the plot as SVG into a folder of this directory for each experiment
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How they are run.
    #[command(flatten)]
    pub how: LabHow,
}

/// `adverb lab report`.
#[derive(Args, Debug)]
pub struct LabReport {
    /// Experiments, as `adverb lab run` takes them [default: all that are published]
    #[arg(value_name = "EXPERIMENT")]
    pub experiments: Vec<String>,
    /// Write index.html into this directory, and the runs into a folder of it for each experiment
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How they are run.
    #[command(flatten)]
    pub how: LabHow,
}

/// How experiments are run.
#[derive(Args, Clone, Debug)]
pub struct LabHow {
    /// How much is run: `quick` ends within a minute, `paper` takes as many flows and seeds as a figure needs
    #[arg(long, value_enum, default_value_t = Scale::Quick)]
    pub scale: Scale,
    /// Seeds of each point [default: the scale's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub seeds: Option<u32>,
    /// The first of the seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(..1 << 62))]
    pub first_seed: u64,
    /// Set a key of the scenario otherwise for all series, such as switch.buffer=60KB; with several values,
    /// switch.buffer=60KB,240KB, they are the points along the x axis. Bounds then report only
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<adverb_lab::own::Set>,
    /// So many times the flows, or the time in which they begin. Bounds stay what they are
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub longer: Option<u32>,
    /// Simulations side by side; results do not depend on it [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Take runs that this build of adverb has written into --out before, and run the others; trials of the
    /// real cache are all run
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// No progress bar, and no times that it took
    #[arg(long)]
    pub quiet: bool,
}

/// How much of an experiment is run.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Scale {
    /// Ends within a minute
    Quick,
    /// As much as the paper's figures need
    Paper,
}

impl From<Scale> for adverb_lab::Scale {
    fn from(scale: Scale) -> Self {
        match scale {
            Scale::Quick => adverb_lab::Scale::Quick,
            Scale::Paper => adverb_lab::Scale::Paper,
        }
    }
}

/// `adverb sim`.
#[derive(Args, Debug)]
pub struct Sim {
    /// The scenario: topology, switches, transport, faults, workload
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    /// Seed of every random choice [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Run this many seeds, counting up, and print means with 95% confidence intervals
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub seeds: u32,
    /// Run this many seeds side by side; results do not depend on it [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Write flows, slowdowns by size, ports, queues, links and windows as CSV into this directory, for
    /// several seeds into one seed-N each
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print events, link-hops, link-hops/s and peak memory
    #[arg(long)]
    pub stats: bool,
    /// Capture what arrives at the end of a link, for Wireshark; ports.csv names the links
    #[arg(long, value_name = "LINK:FILE", value_parser = capture)]
    pub pcap: Vec<(u32, PathBuf)>,
    /// Write a trace for Perfetto's viewer (ui.perfetto.dev): messages, packets, windows and queues over time
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// No progress bar
    #[arg(long)]
    pub quiet: bool,
}

/// `adverb run`.
#[derive(Args, Debug)]
pub struct Run {
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
    /// Give the program mlx5's direct verbs as well (an own libmlx5.so.1): send queues, doorbell records, raw
    /// WQEs. Not a default, because programs that find them change their transport
    #[arg(long)]
    pub mlx5dv: bool,
    /// How programs find the device in sysfs and /dev, where UCX and others look for one
    #[arg(long, value_name = "HOW", value_enum, default_value_t = facade::How::Auto)]
    pub facade: facade::How,
    /// What is counted over all processes of the program.
    #[command(flatten)]
    pub count: stay::Count,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `adverb devices`.
#[derive(Args, Debug)]
pub struct Devices {
    /// IP address of the NIC [default: the one that the default route leaves from]
    #[arg(long, value_name = "IP", value_parser = address)]
    pub address: Option<IpAddr>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Settings of the NIC.
#[derive(Args, Debug, Default)]
pub struct Nic {
    /// IP address of the NIC [default: the one that the default route leaves from]
    #[arg(long, value_name = "IP", value_parser = address)]
    pub address: Option<IpAddr>,
    /// The switch that frames go through, by its name, its socket's path, or HOST:PORT; --address need not be
    /// this host's then
    #[arg(long, value_name = "SWITCH")]
    pub via: Option<PathBuf>,
    /// With --via HOST:PORT: the file with that switch's token
    #[arg(long, value_name = "FILE")]
    pub via_token: Option<PathBuf>,
    /// Way to processes of the same address
    #[arg(long, value_name = "WAY", value_parser = choice::<PathPolicy>())]
    pub path: Option<PathPolicy>,
    /// How reliable connections are carried [default: rc]
    #[arg(long, value_name = "HOW", value_parser = choice::<Transport>())]
    pub transport: Option<Transport>,
    /// With --transport star: a side with more connections than these would rather keep none [default: 128]
    #[arg(long, value_name = "N")]
    pub star_threshold: Option<u32>,
    /// With --transport star: how long a connection stays what it has become, at least [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = hold)]
    pub star_hold: Option<Duration>,
    /// With a transport of StaR's: what leaves for stateless peers needs a rule, and what this side grants
    /// goes to its peers' NICs by the agents (adverb star registry). `on`, or room for so many rules
    #[arg(long, value_name = "on|N", value_parser = rules)]
    pub star_registry: Option<u32>,
    /// With a transport of StaR's: how the stateful side names what the other has posted [default: posted]
    #[arg(long, value_name = "HOW", value_parser = choice::<StarTrust>())]
    pub star_trust: Option<StarTrust>,
    /// What senders of reliable connections do about congestion [default: halving]
    #[arg(long, value_name = "NAME", value_parser = choice::<Congestion>())]
    pub congestion: Option<Congestion>,

    /// Lose each packet with this probability
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Faults")]
    pub loss: Option<f64>,
    /// Deliver each packet twice with this probability
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Faults")]
    pub duplicate: Option<f64>,
    /// Hold each packet back behind later ones with this probability
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Faults")]
    pub reorder: Option<f64>,
    /// Damage each packet with this probability, so that its ICRC is wrong
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Faults")]
    pub corrupt: Option<f64>,
    /// Mark each ECN-capable packet as if it had met congestion, with this probability
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Faults")]
    pub mark: Option<f64>,
    /// Delay every packet by this long, such as 20us or 1.5ms
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Faults")]
    pub delay: Option<Duration>,
    /// Packets that the faults strike [default: both]
    #[arg(long, value_name = "WHICH", value_parser = choice::<Direction>(), help_heading = "Faults")]
    pub direction: Option<Direction>,
    /// Seed of every random choice; the same seed makes the same choices [default: another one each time]
    #[arg(long, value_name = "N", help_heading = "Faults")]
    pub seed: Option<u64>,

    /// Write every frame to this file, for Wireshark; a second process adds its id to the name
    #[arg(long, value_name = "FILE", help_heading = "Looking in")]
    pub pcap: Option<PathBuf>,
    /// Write the NIC's counters to this file when the program ends; JSON if its name ends in .json
    #[arg(long, value_name = "FILE", help_heading = "Looking in")]
    pub counters: Option<PathBuf>,
    /// Say on standard error why each failed completion failed: packet, rule, timer; and what queue pairs
    /// agreed on
    #[arg(long, help_heading = "Looking in")]
    pub trace: bool,
}

/// Reads one of a setting's names; help lists them with what they mean.
pub fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let names = T::ALL.iter().map(|one| PossibleValue::new(one.name()).help(one.help()));
    PossibleValuesParser::new(names).try_map(|name| T::named(&name).ok_or("no such name"))
}

fn capture(text: &str) -> Result<(u32, PathBuf), String> {
    let parts = text.split_once(':').and_then(|(link, file)| Some((link.parse().ok()?, file)));
    match parts {
        Some((link, file)) if !file.is_empty() => Ok((link, file.into())),
        _ => Err("give a link's number and a file, such as 0:first.pcap".to_owned()),
    }
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    let names: Vec<&str> = Sabotage::every().map(|(name, _)| name).collect();
    Sabotage::by_name(text).ok_or_else(|| format!("give one of {}", names.join(", ")))
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| "not an IP address; give one of this host's, such as 127.0.0.1 or ::1".to_owned())
}

fn probability(text: &str) -> Result<f64, String> {
    Ok(setting("loss", text)?.faults.loss)
}

/// A time, such as 20us.
pub fn duration(text: &str) -> Result<Duration, String> {
    Ok(setting("delay", text)?.faults.delay)
}

fn hold(text: &str) -> Result<Duration, String> {
    let hold = setting("star_hold", text)?.star_hold;
    hold.ok_or_else(|| "a time is needed, such as 5s".to_owned())
}

fn rules(text: &str) -> Result<u32, String> {
    let room = setting("star_registry", text)?.star_registry;
    room.ok_or_else(|| "on, or room for so many rules, 1 to 65536, is needed".to_owned())
}

/// One value read as the environment variable's would be; the refusal is its remedy.
fn setting(option: &str, text: &str) -> Result<Settings, String> {
    if text.contains(',') {
        return Err("one value is needed".to_owned());
    }
    Settings::parse(&format!("{option}={text}")).map_err(|e| e.remedy.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run(words: &[&str]) -> Result<Run, String> {
        let words = ["adverb", "run"].iter().chain(words);
        match Cli::try_parse_from(words) {
            Ok(Cli { action: Action::Run(run) }) => Ok(*run),
            Ok(_) => unreachable!("the words start with run"),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_arrives() {
        let parsed = run(&[
            "--address",
            "127.0.0.2",
            "--loss",
            "0.5",
            "--duplicate",
            "0.1",
            "--reorder",
            "0.2",
            "--corrupt",
            "1",
            "--delay",
            "20us",
            "--direction",
            "tx",
            "--seed",
            "7",
            "--pcap",
            "a.pcap",
            "--counters",
            "c",
            "--trace",
            "--path",
            "udp",
            "--transport",
            "irn",
            "--",
            "ib_write_bw",
            "-d",
            "adverb0",
        ])
        .unwrap();
        assert_eq!(parsed.command, ["ib_write_bw", "-d", "adverb0"]);
        let nic = parsed.nic;
        assert_eq!(nic.address, Some("127.0.0.2".parse().unwrap()));
        assert_eq!((nic.loss, nic.duplicate), (Some(0.5), Some(0.1)));
        assert_eq!((nic.reorder, nic.corrupt), (Some(0.2), Some(1.0)));
        assert_eq!(nic.delay, Some(Duration::from_micros(20)));
        assert_eq!((nic.direction, nic.seed), (Some(Direction::Tx), Some(7)));
        assert_eq!((nic.pcap, nic.counters), (Some("a.pcap".into()), Some("c".into())));
        assert!(nic.trace);
        assert_eq!((nic.path, nic.transport), (Some(PathPolicy::Udp), Some(Transport::Irn)));
    }

    #[test]
    fn the_command_keeps_its_own_options() {
        let parsed = run(&["ibv_rc_pingpong", "--loss", "9"]).unwrap();
        assert_eq!(parsed.command, ["ibv_rc_pingpong", "--loss", "9"]);
        assert_eq!(parsed.nic.loss, None);
    }

    #[test]
    fn a_refusal_names_the_option_the_value_and_the_remedy() {
        for (option, value, remedy) in [
            ("--loss", "1.5", "from 0 to 1"),
            ("--loss", "NaN", "from 0 to 1"),
            ("--corrupt", "-1", "from 0 to 1"),
            ("--address", "localhost", "127.0.0.1"),
            ("--delay", "20", "units"),
            ("--delay", "us", "units"),
            ("--delay", "61s", "at most 60s"),
            ("--direction", "up", "rx, tx, both"),
            ("--transport", "tcp", "rc, irn, star-server, star-client, star"),
        ] {
            let joined = format!("{option}={value}");
            let said = run(&[&joined, "--", "true"]).unwrap_err();
            assert!(
                said.contains(option) && said.contains(value) && said.contains(remedy),
                "{joined}: {said}"
            );
        }
        assert!(run(&[]).unwrap_err().contains("COMMAND"));
    }

    #[test]
    fn help_says_how_long_silence_is_borne() {
        let ms = |time: adverb_wire::Duration| time.as_ns() / 1_000_000;
        let said = RUN_EXAMPLES.split_whitespace().collect::<Vec<_>>().join(" ");
        let tolerance = adverb_io::TOLERANCE;
        for part in [
            format!("costs no retry, for {} s at most in a row", ms(tolerance.excused_max) / 1000),
            format!("at least {} ms of silence are borne", ms(tolerance.silence_min)),
            format!("no timeout is shorter than {} ms", ms(adverb_io::SHORTEST_TIMEOUT)),
            "ended, or is stopped, fails within timeout and retry count".to_owned(),
            "--trace says which of the two".to_owned(),
        ] {
            assert!(said.contains(&part), "{part:?} is not in\n{said}");
        }
    }

    #[test]
    fn a_simulation_takes_links_to_capture() {
        let words =
            |pcap: &str| ["adverb", "sim", "a.toml", "--pcap", pcap, "--seeds", "3"].map(str::to_owned);
        match Cli::try_parse_from(words("12:a:b.pcap")).unwrap().action {
            Action::Sim(sim) => {
                assert_eq!(sim.pcap, [(12, PathBuf::from("a:b.pcap"))]);
                assert_eq!((sim.seeds, sim.seed, sim.jobs), (3, None, None));
            }
            _ => unreachable!("the words are sim's"),
        }
        for bad in ["12", "x:a.pcap", "12:", ":a"] {
            let said = Cli::try_parse_from(words(bad)).unwrap_err().to_string();
            assert!(said.contains("such as 0:first.pcap"), "{said}");
        }
        assert!(Cli::try_parse_from(["adverb", "sim", "a.toml", "--seeds", "0"]).is_err());
    }

    #[test]
    fn one_option_sets_one_thing() {
        assert!(probability("0.1,trace").is_err());
        assert_eq!(probability("1%"), Ok(0.01));
        assert_eq!(duration("15ms"), Ok(Duration::from_millis(15)));
    }
}
