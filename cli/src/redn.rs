//! `adverb redn`: programs that run in the NIC. Compiles them, shows their WQEs, runs them simulated or
//! on real NICs, and traces what they change of themselves.

mod answers;
mod bench;
mod connect;
mod desk;
mod door;
mod figure;
mod get;
mod keeper;
mod live;
mod measure;
mod proxy;
mod serve;
mod story;
mod tree;
mod worker;

use crate::error::Error;
use crate::output::{answer, print};
use crate::remote::{number, span};
use adverb_io::Settings;
use adverb_io::program::Programs;
use adverb_rdma::{Duration, Instant, On, Rdma};
use adverb_redn::chain::{Addresses, Chain, Layout, QueueId, encode};
use adverb_redn::language::lower::Options;
use adverb_redn::language::wrong::Wrong;
use adverb_redn::language::{Atom, Compiled, File, compile, parse};
use adverb_redn::run::{self as trial, Reply};
use adverb_redn::show::{self, Names};
use adverb_sim::host::hardware::{Profile, profiles};
use adverb_sim::program::{Doing, Setup, Start};
use adverb_sim::{CableKind, Config, Sim, Topology};
use clap::{Args, Subcommand};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use story::{Ending, Story};
use tree::Tree;

/// Shown by `adverb redn --help`.
pub const EXAMPLES: &str = "\
A program is a chain of work requests that change each other: reads, comparisons and loops that the NIC
executes without a processor. docs/redn.md describes the language; crates/redn/examples/programs has programs.

Examples:
  adverb redn compile get.redn
  adverb redn show get.redn
  adverb redn show --pid 4711
  adverb redn run get.redn --args 'key=0x2a,bucket=table+64'
  adverb redn run --real get.redn
  adverb redn trace get.redn --args key=0x2b
  adverb redn serve --address 127.0.0.2 --respawn 1s &
  adverb redn proxy --address 127.0.0.3 --server 127.0.0.2 &
  adverb redn get --address 127.0.0.4 --server 127.0.0.2 greeting
  adverb redn bench --address 127.0.0.4 --server 127.0.0.2 --time 6s --timeline 500ms
  adverb redn figure 16";

/// `adverb redn`.
#[derive(Subcommand, Debug)]
pub enum Redn {
    /// Compile a program, and print how many work requests of which kind it takes
    Compile(Source),
    /// Print a program's WQEs, and what changes each of them; or those of a running process
    Show(Show),
    /// Run a program between a server and a client
    Run(Run),
    /// Run a program in the simulator, and print what was fetched, changed and completed when
    Trace(Run),
    /// Answer gets of a table by the NIC, whatever becomes of the process that writes it
    Serve(Box<serve::Options>),
    /// Speak memcached's protocol: gets by the NIC of `serve`, the rest by its worker
    Proxy(Box<proxy::Options>),
    /// Ask the NIC of `serve` for values
    Get(Box<get::Options>),
    /// Measure gets of `serve`: answered by its NIC, by its worker, and read by the client itself
    Bench(Box<bench::Options>),
    /// Measure figures 14 to 16 of RedN's paper with processes of this host, its values beside ours
    Figure(Box<figure::Options>),
    /// Write the table of a `serve` that has no worker
    Worker(worker::Options),
    /// Walk a B-tree by chains while its writer inserts, removes and splits, and print what the walks found
    Tree(Tree),
}

/// A program.
#[derive(Args, Debug)]
pub struct Source {
    /// The program's file
    pub file: PathBuf,
}

/// Whose WQEs are shown.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Show {
    /// The program's file
    pub file: Option<PathBuf>,
    /// A process of the same user: its cross-channel queues, and what each of them waits for
    #[arg(long)]
    pub pid: Option<u32>,
}

/// How a program is run.
#[derive(Args, Debug)]
pub struct Run {
    /// The program's file, with its data
    pub file: PathBuf,
    /// Arguments that are not as in the file: numbers, or places such as table+64
    #[arg(long, value_name = "NAME=VALUE,..", default_value = "")]
    pub args: String,
    /// On two real NICs of this host, not in the simulator
    #[arg(long)]
    pub real: bool,
    /// What the simulated NICs cost: a profile of docs/scenarios.md, or neutral
    #[arg(long, value_name = "PROFILE", default_value = "connectx5", conflicts_with = "real")]
    pub hardware: String,
    /// Make the program wrong on purpose: no-fence, no-stage, one-stage, no-restore, no-enable or
    /// waits-for-itself
    #[arg(long, value_name = "HOW", value_parser = Wrong::by_name)]
    pub bug: Option<Wrong>,
    /// How long the program may take, in the simulator's time or in real time
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "2s")]
    pub limit: std::time::Duration,
}

/// Runs it.
pub fn redn(action: &Redn) -> Result<ExitCode, Error> {
    match action {
        Redn::Compile(source) => {
            let compiled = made(&read(&source.file)?, &source.file, false)?;
            print(&counted(&source.file, &compiled)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Redn::Show(Show { file: Some(file), .. }) => {
            let compiled = made(&read(file)?, file, false)?;
            print(&shown(&compiled, file)?)?;
            Ok(ExitCode::SUCCESS)
        }
        Redn::Show(Show { pid, .. }) => {
            live::show_process(pid.unwrap_or_default())?;
            Ok(ExitCode::SUCCESS)
        }
        Redn::Run(options) => run(options, false),
        Redn::Trace(options) if options.real => Err(Error::Options(
            "--real: a trace is taken in the simulator, where looking takes no time".into(),
        )),
        Redn::Trace(options) => run(options, true),
        Redn::Serve(options) => serve::serve(options),
        Redn::Proxy(options) => proxy::proxy(options),
        Redn::Get(options) => get::get(options),
        Redn::Bench(options) => bench::bench(options),
        Redn::Figure(options) => figure::figure(options),
        Redn::Worker(options) => worker::worker(options),
        Redn::Tree(options) => tree::tree(options),
    }
}

fn failed(file: &std::path::Path, why: impl std::fmt::Display) -> Error {
    Error::Options(format!("{}: {why}", file.display()))
}

fn read(path: &PathBuf) -> Result<File, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| failed(path, error))?;
    parse(&text).map_err(|error| failed(path, error))
}

fn made(file: &File, path: &std::path::Path, finish: bool) -> Result<Compiled, Error> {
    compile(file, Options { finish, bug: None }).map_err(|error| failed(path, error))
}

fn counted(path: &std::path::Path, compiled: &Compiled) -> Result<String, Error> {
    let chain = &compiled.chain;
    let layout = Layout::of(chain).map_err(|error| failed(path, error))?;
    let length = |queue: QueueId| chain.queue_of(queue).wqes.len();
    let entries: usize = chain.queue_of(compiled.client).receives.iter().map(Vec::len).sum();
    let bytes: u32 = compiled.message.iter().map(|part| u32::from(part.bytes)).sum();
    let mut out = format!(
        "1 receive ({}), worker {}, reply {}; {}; arguments {}\n",
        count(entries, "entry", "entries"),
        count(length(compiled.worker), "WQE", "WQEs"),
        count(length(compiled.client), "WQE", "WQEs"),
        compiled.counts,
        count(bytes as usize, "byte", "bytes"),
    );
    for (q, queue) in chain.queues.iter().enumerate().filter(|(_, queue)| queue.recycled) {
        let blocks = layout.ring(QueueId(q as u16));
        let wqes = count(queue.wqes.len(), "WQE", "WQEs");
        let _ = writeln!(out, "{}: {wqes} in a ring of {blocks} blocks, each lap", queue.name);
    }
    let orders = count(compiled.stages.saturating_sub(1) as usize, "doorbell order", "doorbell orders");
    let _ = writeln!(out, "{orders}; {}", count(chain.queues.len(), "queue", "queues"));
    for (line, counts) in &compiled.lines {
        let _ = writeln!(out, "  line {line}: {counts}");
    }
    Ok(out)
}

/// So many of them.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

fn shown(compiled: &Compiled, path: &std::path::Path) -> Result<String, Error> {
    let chain = &compiled.chain;
    let layout = Layout::of(chain).map_err(|error| failed(path, error))?;
    let addresses = Addresses::symbolic(chain);
    let names = Names { chain, layout: &layout, addresses: &addresses };
    let by = show::changed_by(chain);
    let mut out = String::new();
    for (q, code) in encode(chain, &layout, &addresses).iter().enumerate() {
        let queue = QueueId(q as u16);
        for line in show::show(code, layout.blocks(chain, queue), Some(names)) {
            let Some(wqe) = layout.wqe_at(queue, line.block) else { continue };
            let changed: Vec<&str> = by.get(&wqe).into_iter().flatten().map(String::as_str).collect();
            let changed = match changed.is_empty() {
                true => String::new(),
                false => format!("   ? by {}", changed.join(", ")),
            };
            let _ = writeln!(out, "{:<10} {}{changed}", show::short(chain, wqe), line.text);
        }
    }
    Ok(out)
}

/// `NAME=VALUE,..`: numbers and places.
fn arguments(text: &str) -> Result<Vec<(String, Atom)>, Error> {
    let wrong =
        |part: &str| Error::Options(format!("--args: `{part}` is not NAME=NUMBER or NAME=REGION+OFFSET"));
    let mut out = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
        let (name, value) = (name.trim(), value.trim().trim_start_matches('&'));
        let atom = match (number(value), value.split_once('+')) {
            (Some(number), _) => Atom::Number(number),
            (None, Some((region, at))) => {
                Atom::Address(region.trim().to_owned(), number(at.trim()).ok_or_else(|| wrong(part))?)
            }
            (None, None) if value.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Atom::Address(value.to_owned(), 0)
            }
            (None, None) => return Err(wrong(part)),
        };
        out.push((name.to_owned(), atom));
    }
    Ok(out)
}

/// What a client saw.
#[derive(Default)]
struct Seen {
    replies: Vec<(Reply, Vec<u8>, f64)>,
}

/// What the server saw.
#[derive(Default)]
struct Served {
    variables: Vec<(String, u64)>,
    ended: bool,
}

async fn server(rdma: Rdma, name: String, job: Rc<Job>) -> Result<Served, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut compiled = compile(&job.file, Options { finish: true, bug: job.bug.and_then(Wrong::bug) })
        .map_err(|e| text(&e))?;
    if let Some(bug) = job.bug {
        bug.spoil(&mut compiled);
    }
    let served = trial::serve(&rdma, &name, compiled).await.map_err(|e| text(&e))?;
    let loaded = &served.loaded;
    let known = Known {
        chain: loaded.chain().clone(),
        layout: loaded.layout().clone(),
        addresses: loaded.addresses().clone(),
    };
    let _ = job.known.set(known);
    let ended = served.ended(&rdma, job.limit).await.map_err(|e| text(&e))?.is_some();
    let variables = served.variables().await.map_err(|e| text(&e))?.into_iter().collect();
    let out = Served { variables, ended };
    // Replies that are under way arrive before the connection goes.
    let patience = rdma.now().await.map_err(|e| text(&e))? + job.grace;
    rdma.until(&[On::Gone(&served.line), On::Stop], Some(patience)).await.map_err(|e| text(&e))?;
    Ok(out)
}

async fn client(rdma: Rdma, name: String, job: Rc<Job>) -> Result<Seen, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let compiled = compile(&job.file, Options { finish: true, bug: None }).map_err(|e| text(&e))?;
    let client = trial::connect(&rdma, &name, Duration::from_ms(10_000)).await.map_err(|e| text(&e))?;
    let arguments = client.arguments(&job.file, &job.given)?;
    let begin = rdma.now().await.map_err(|e| text(&e))?;
    let _ = job.asked.set(begin);
    client.ask(&compiled.message(&arguments)).await.map_err(|e| text(&e))?;
    let mut seen = Seen::default();
    while let Some(reply) = client.reply_or_end(&rdma, job.limit).await.map_err(|e| text(&e))? {
        let took = rdma.now().await.map_err(|e| text(&e))?.since(begin).as_ps() as f64 / 1e6;
        let bytes = client.buffer.read(0, reply.len as usize).await.map_err(|e| text(&e))?;
        seen.replies.push((reply, bytes, took));
    }
    Ok(seen)
}

/// What is to be run.
#[derive(Clone)]
struct Job {
    file: File,
    given: Vec<(String, Atom)>,
    limit: Duration,
    grace: Duration,
    bug: Option<Wrong>,
    /// What the server has loaded, and when the client asked.
    known: Arc<OnceLock<Known>>,
    asked: Arc<OnceLock<Instant>>,
}

/// A chain with its addresses: what a trace needs for names.
struct Known {
    chain: Chain,
    layout: Layout,
    addresses: Addresses,
}

fn run(options: &Run, trace: bool) -> Result<ExitCode, Error> {
    let file = read(&options.file)?;
    made(&file, &options.file, true)?;
    let given = arguments(&options.args)?;
    let limit = crate::program::wire_time(options.limit);
    let grace = if options.real { Duration::from_ms(50) } else { Duration::from_us(100) };
    let (known, asked) = Default::default();
    let job = Rc::new(Job { file, given, limit, grace, bug: options.bug, known, asked });
    let mut story = trace.then(Story::default);
    let outcome = match options.real {
        true => really(&options.file, &job),
        false => simulated(options, &job, story.as_mut()),
    };
    if let Some(story) = &story {
        print(&story.words(&job))?;
        if story.ending == Ending::Cut {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let (served, seen) = outcome?;
    let mut out = String::new();
    for (reply, bytes, took) in &seen.replies {
        let text: String = bytes.iter().take(64).map(|byte| char::from(*byte)).map(printable).collect();
        let number = bytes.as_slice().try_into().map(u64::from_ne_bytes);
        let number = number.map_or_else(|_| String::new(), |number| format!(" = {number}"));
        let _ = writeln!(out, "reply imm {}, {} bytes, {took:.1} us: {text}{number}", reply.imm, reply.len);
    }
    let told = story.as_ref().is_some_and(|story| matches!(story.ending, Ending::Ended(_)));
    if seen.replies.is_empty() && !told {
        out.push_str("no reply\n");
    }
    for (name, value) in &served.variables {
        let _ = writeln!(out, "{name} = {value:#x}");
    }
    print(&out)?;
    match served.ended {
        true => Ok(ExitCode::SUCCESS),
        false => {
            answer(format_args!("the program did not end within {:?} (--limit)", options.limit));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn printable(c: char) -> char {
    if c.is_ascii_graphic() || c == ' ' { c } else { '.' }
}

/// Two hosts with such NICs, which tell what their chains do if they are `watched`. What is told is the time
/// in NICs and on the wire: programs' processors cost nothing.
fn two_hosts(hardware: &str, watched: bool) -> Result<Sim, Error> {
    let hardware = match (hardware, profiles::by_name(hardware)) {
        ("neutral", _) => Profile::NEUTRAL,
        (_, Some(profile)) => profile,
        (name, None) => return Err(Error::Options(format!("--hardware {name}: there is no such profile"))),
    };
    let hardware = hardware.without_processors();
    let cable = CableKind { rate: 100_000_000_000, delay: Duration::from_ns(110) };
    let fabric = Config::new(Topology::two_hosts(cable));
    let mut config = Config { payload: true, flow_bytes_max: 8, hardware, ..fabric };
    config.transport.watch_chains = watched;
    Sim::new(config).map_err(Error::Scenario)
}

/// Between two simulated hosts.
fn simulated(options: &Run, job: &Rc<Job>, story: Option<&mut Story>) -> Result<(Served, Seen), Error> {
    let mut sim = two_hosts(&options.hardware, story.is_some())?;
    let served: Rc<RefCell<Option<Served>>> = Rc::default();
    let seen: Rc<RefCell<Option<Seen>>> = Rc::default();
    let (for_server, for_client) = ((job.clone(), served.clone()), (job.clone(), seen.clone()));
    let first = Start::new("server", 0, move |rdma| {
        let (job, kept) = for_server.clone();
        async move {
            *kept.borrow_mut() = Some(server(rdma, "program".to_owned(), job).await?);
            Ok::<(), String>(())
        }
    });
    let second = Start::new("client", 1, move |rdma| {
        let (job, kept) = for_client.clone();
        async move {
            *kept.borrow_mut() = Some(client(rdma, "program".to_owned(), job).await?);
            Ok::<(), String>(())
        }
    });
    sim.set_programs(Setup { programs: vec![first, second], exchange_ps: 1_000_000, ..Setup::default() });
    match story {
        Some(story) => {
            if !story.run(&mut sim) {
                return Ok((Served::default(), Seen::default()));
            }
            story.ending = match (&*served.borrow(), &*seen.borrow()) {
                (Some(Served { ended: true, .. }), Some(seen)) => Ending::Ended(seen.replies.len()),
                _ => Ending::Stopped,
            };
        }
        None => {
            sim.run(u64::MAX, u64::MAX);
        }
    }
    let wrong = sim.programs().find_map(|(name, doing, ..)| match doing {
        Doing::Ended(Err(why)) => Some(format!("{name}: {why}")),
        _ => None,
    });
    match (served.take(), seen.take(), wrong) {
        (Some(served), Some(seen), None) => Ok((served, seen)),
        (_, _, Some(why)) => Err(failed(&options.file, why)),
        _ => {
            let why = sim.program_failures().join("; ");
            Err(failed(&options.file, format!("the simulation ended before the program: {why}")))
        }
    }
}

/// Between two real NICs of this process, each of which has an address of this host.
fn really(path: &std::path::Path, job: &Rc<Job>) -> Result<(Served, Seen), Error> {
    let copy = Job::clone(job);
    on_two_nics(
        async move |rdma, name| server(rdma, name, Rc::new(copy)).await,
        async |rdma, name| client(rdma, name, job.clone()).await,
        |why| failed(path, why),
    )
}

/// What two programs came to that meet under a name, each in a thread with a real NIC of its own; `ended`
/// says why one of them did not.
fn on_two_nics<A: Send, B>(
    server: impl AsyncFnOnce(Rdma, String) -> Result<A, String> + Send,
    client: impl AsyncFnOnce(Rdma, String) -> Result<B, String>,
    ended: impl Fn(String) -> Error,
) -> Result<(A, B), Error> {
    let pid = std::process::id();
    let open = move |host: u8| {
        let address = format!("127.{}.{}.{host}", 128 + (pid >> 8) % 64, pid % 256);
        let folder = std::env::temp_dir().join(format!("adverb-redn-{pid}-{host}"));
        let text = format!("address={address},directory={}", folder.display());
        let settings = Settings::parse(&text).map_err(|error| Error::Device(error.to_string()))?;
        let programs = Programs::open(&settings).map_err(|error| Error::Device(error.to_string()))?;
        Ok::<_, Error>((programs, Folder(folder)))
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let name = listener.map_err(|error| Error::Device(error.to_string()))?.to_string();
    let at = name.clone();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let (programs, _folder) = open(1)?;
            Ok::<_, Error>(programs.block_on(server(Rdma::new(programs.clone()), at)))
        });
        let (programs, _folder) = open(2)?;
        let seen = programs.block_on(client(Rdma::new(programs.clone()), name));
        let served = thread.join().map_err(|_| Error::Device("the server's thread ended".to_owned()))?;
        // Where both failed, the client's reason is mostly that the server has.
        Ok((served?.map_err(&ended)?, seen.map_err(ended)?))
    })
}

/// A folder of an address, which goes at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_numbers_and_places() {
        let given = arguments("key=0x2a, bucket=table+64,at=&list").unwrap();
        let place = |region: &str, at| Atom::Address(region.to_owned(), at);
        let expected = [("key", Atom::Number(42)), ("bucket", place("table", 64)), ("at", place("list", 0))];
        assert_eq!(given, expected.map(|(name, atom)| (name.to_owned(), atom)));
        for wrong in ["key", "key=", "key=-1", "key=table+x", "key=0xg"] {
            assert!(arguments(wrong).is_err(), "{wrong}");
        }
    }
}
