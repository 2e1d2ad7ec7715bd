//! 1RMA between two processes of this host, through shared memory, or with `--path udp` as between hosts:
//!
//!     rma latency --size 4096            one read at a time
//!     rma rate --size 64 --depth 256     many at once, each a transfer of its own
//!     rma stream --size 1048576          large transfers, which the executor cuts into reads of 4 KB
//!     rma software                       the executor alone, above a NIC that answers at once
//!
//! Each prints one JSON object. Built with `--features benchmark-only-cleartext`, messages are not encrypted;
//! the object says so.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of those who build adverb")]

use adverb_bench::{Options, now, percentile};
use adverb_rma::{ENCRYPTED, Grant, Memory, PathPolicy, Report, Rights, Rma, Settings};
use std::cell::RefCell;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Bytes of the target's region, and of the initiator's memory.
const LEN: usize = 4 << 20;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let options = Options::new(words.collect());
    let outcome = match name.as_str() {
        "latency" => latency(&options),
        "rate" => rate(&options),
        "stream" => stream(&options),
        "software" => software::run(&options),
        "target" => target(&options),
        _ => Err("usage: rma latency|rate|stream|software [--option value]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rma: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Addresses that no other run has.
fn address(host: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 64 + host, high, low))
}

fn settings(options: &Options, address: IpAddr, state: PathBuf, slots: u32) -> Outcome<Settings> {
    let path = options.get("path", PathPolicy::Auto)?;
    Ok(Settings { state: Some(state), slots, path, ..Settings::new(address) })
}

/// The other process: owns a region until its input ends, then says what processor time it took.
fn target(options: &Options) -> Outcome {
    let address = options.get("address", address(1))?;
    let rma = Rma::open(settings(options, address, options.get("state", PathBuf::new())?, 1)?)?;
    let region = rma.allocate(LEN)?.register(0..LEN, Rights::READ | Rights::WRITE)?;
    let mut lines = std::io::stdin().lines();
    let line = lines.next().ok_or("no peer was named")??;
    let (peer, pid) = line.split_once(' ').ok_or("a peer is an address and a number")?;
    let grant = region.grant(peer.parse()?, pid.parse()?, Rights::READ | Rights::WRITE)?;
    println!("{}", grant.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    // A word for each moment at which the processor time is asked for.
    for line in lines {
        line?;
        println!("{}", cpu_ns());
    }
    Ok(())
}

/// This process's side: a NIC, memory, and a grant of the other's region.
struct Pair {
    rma: Rma,
    memory: Memory,
    grant: Grant,
    child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
    state: PathBuf,
}

impl Pair {
    fn open(options: &Options, slots: u32) -> Outcome<Pair> {
        let state = std::env::temp_dir().join(format!("adverb-rma-bench-{}", std::process::id()));
        let mut child = Command::new(std::env::current_exe()?)
            .args(["target", "--address", &address(1).to_string()])
            .args(["--path", &options.get("path", PathPolicy::Auto)?.to_string(), "--state"])
            .arg(&state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().ok_or("no pipe")?;
        let mut output = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let rma = Rma::open(settings(options, address(0), state.clone(), slots)?)?;
        writeln!(input, "{} {}", rma.address(), rma.pid())?;
        let line = output.next().ok_or("the target ended")??;
        let bytes: Result<Vec<u8>, _> =
            (0..line.len() / 2).map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16)).collect();
        let grant = Grant::from_bytes(&bytes?).ok_or("not a grant")?;
        let memory = rma.allocate(LEN)?;
        Ok(Pair { rma, memory, grant, child, input, output, state })
    }

    /// Processor time of the target and of this process, in ns.
    fn cpu(&mut self) -> Outcome<[u64; 2]> {
        writeln!(self.input, "cpu")?;
        let line = self.output.next().ok_or("the target ended")??;
        Ok([line.parse()?, cpu_ns()])
    }

    async fn read(&self, at: usize, len: usize) -> Outcome<Report> {
        Ok(self.rma.read(&self.grant, at as u64, &self.memory, at..at + len).await?)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn latency(options: &Options) -> Outcome {
    let size = options.get("size", 4096usize)?.min(LEN);
    let rounds = options.get("rounds", 20_000usize)?;
    let pair = Pair::open(options, 16)?;
    let mut samples = Vec::with_capacity(rounds);
    pair.rma.block_on(async {
        for round in 0..rounds + rounds / 10 {
            let before = now();
            pair.read(0, size).await?;
            if round >= rounds / 10 {
                samples.push(before.elapsed().as_nanos() as u64);
            }
        }
        Outcome::Ok(())
    })?;
    let (p50, p99) = (percentile(&mut samples, 0.5), percentile(&mut samples, 0.99));
    println!(
        r#"{{"size": {size}, "encrypted": {ENCRYPTED}, "p50_us": {:.3}, "p99_us": {:.3}}}"#,
        p50 as f64 / 1e3,
        p99 as f64 / 1e3
    );
    Ok(())
}

/// Transfers of a task after which it looks at the clock: a look takes as long as a hundredth of a read of 4
/// KB.
const CLOCK_SKIP: u64 = 16;

/// Reads until the time is over, with `depth` transfers of `size` bytes at any moment.
fn run(pair: &mut Pair, size: usize, depth: usize, time: Duration) -> Outcome<(u64, f64, [u64; 2])> {
    let places = (LEN / size).max(1);
    let count = RefCell::new((0u64, 0u64));
    let before = pair.cpu()?;
    let start = now();
    {
        let (pair, count) = (&*pair, &count);
        let tasks = (0..depth).map(|task| {
            let at = task % places * size;
            Box::pin(async move {
                let over = |ended: u64| ended.is_multiple_of(CLOCK_SKIP) && start.elapsed() >= time;
                let mut ended = 0;
                while !over(ended) {
                    match pair.read(at, size).await {
                        Ok(report) => count.borrow_mut().0 += report.commands,
                        Err(_) => count.borrow_mut().1 += 1,
                    }
                    ended += 1;
                }
            }) as Pin<Box<dyn Future<Output = ()>>>
        });
        pair.rma.block_on(Tasks::new(tasks.collect()));
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = pair.cpu()?;
    let (commands, failures) = count.into_inner();
    if failures > 0 {
        eprintln!("rma: {failures} transfers failed; {:?}", pair.rma.counters());
    }
    Ok((commands, seconds, [after[0] - before[0], after[1] - before[1]]))
}

fn rate(options: &Options) -> Outcome {
    let size = options.get("size", 64usize)?.clamp(1, 4096);
    let depth = options.get("depth", 256usize)?;
    throughput(options, size, size, depth)
}

fn stream(options: &Options) -> Outcome {
    let size = options.get("size", 1usize << 20)?.clamp(4096, LEN);
    let depth = options.get("depth", 4usize)?;
    throughput(options, size, 4096, depth)
}

fn throughput(options: &Options, size: usize, op: usize, depth: usize) -> Outcome {
    let time = Duration::from_millis(options.get("milliseconds", 500)?);
    let mut pair = Pair::open(options, options.get("slots", 256)?)?;
    run(&mut pair, size, depth, time / 5)?;
    let (commands, seconds, [target, initiator]) = run(&mut pair, size, depth, time)?;
    let each = |ns: u64| ns as f64 / commands.max(1) as f64 / 1e3;
    let (rate, gbps) = (commands as f64 / seconds / 1e6, commands as f64 * op as f64 * 8.0 / seconds / 1e9);
    print!(r#"{{"size": {size}, "depth": {depth}, "encrypted": {ENCRYPTED}, "#);
    print!(r#""ops_m": {rate:.4}, "gbps": {gbps:.3}, "#);
    println!(r#""target_cpu_us": {:.3}, "initiator_cpu_us": {:.3}}}"#, each(target), each(initiator));
    Ok(())
}

type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Some futures on one thread, each polled only when it was woken.
struct Tasks<'a> {
    tasks: Vec<Option<Task<'a>>>,
    wakers: Vec<Waker>,
    woken: Arc<Mutex<Woken>>,
    left: usize,
}

#[derive(Default)]
struct Woken {
    tasks: Vec<usize>,
    outer: Option<Waker>,
}

struct TaskWaker {
    index: usize,
    woken: Arc<Mutex<Woken>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        woken.tasks.push(self.index);
        if let Some(outer) = woken.outer.take() {
            outer.wake();
        }
    }
}

impl<'a> Tasks<'a> {
    fn new(tasks: Vec<Task<'a>>) -> Self {
        let left = tasks.len();
        let woken = Arc::new(Mutex::new(Woken { tasks: (0..left).collect(), outer: None }));
        let wakers = (0..left).map(|index| Waker::from(Arc::new(TaskWaker { index, woken: woken.clone() })));
        Tasks { wakers: wakers.collect(), tasks: tasks.into_iter().map(Some).collect(), woken, left }
    }
}

impl Future for Tasks<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let woken = {
            let mut woken = this.woken.lock().unwrap_or_else(PoisonError::into_inner);
            woken.outer = Some(context.waker().clone());
            std::mem::take(&mut woken.tasks)
        };
        for index in woken {
            let Some(task) = &mut this.tasks[index] else { continue };
            if task.as_mut().poll(&mut Context::from_waker(&this.wakers[index])).is_ready() {
                this.tasks[index] = None;
                this.left -= 1;
            }
        }
        if this.left == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// The software above the NIC, by itself: what the paper's 6 million operations a second on one core are
/// about (section 6.1).
mod software {
    use super::{Options, Outcome, now};
    use adverb_nic::OneRma;
    use adverb_nic::one_rma::executor::{Retry, TransferInit};
    use adverb_nic::one_rma::{
        CommandExecutor, CommandPortal, Completion, DerivedKey, ExecutorConfig, OneRmaConfig, Outcome as End,
        ProcessInit, RegionId,
    };
    use adverb_wire::one_rma::Op;
    use adverb_wire::{Duration, Instant};

    pub fn run(options: &Options) -> Outcome {
        let transfers = options.get("transfers", 100u64)?;
        let mut nic = OneRma::new(OneRmaConfig::default(), 1..2, 1)?;
        nic.attach(ProcessInit { pid: 1, quota: 64, priority: 0 })?;
        let pd = nic.memory().alloc_pd()?;
        let portal = CommandPortal::open(&mut nic, 1, pd, 64)?;
        let mut executor = CommandExecutor::new(ExecutorConfig::default(), portal.completion_region())?;
        portal.slots().iter().try_for_each(|slot| executor.add_slot(*slot))?;
        let mut virtual_now = Instant::from_ns(1000);
        let mut commands = 0;
        let start = now();
        for _ in 0..transfers {
            let init = TransferInit {
                op: Op::Read,
                class: 0,
                len: 4 << 20,
                target: Default::default(),
                remote_region: RegionId::from_wire(1),
                remote_offset: 0,
                local_region: RegionId::from_wire(2),
                local_offset: 0,
                key: DerivedKey::new([1; 16]),
                deadline: None,
                retry: Retry::NEVER,
                tag: 0,
            };
            executor.submit(virtual_now, init)?;
            while executor.next_report().is_none() {
                while let Some(posting) = executor.next_command(virtual_now) {
                    commands += 1;
                    let completion = Completion {
                        slot: posting.slot,
                        outcome: End::Ok,
                        issue_delay: Duration::ZERO,
                        total_delay: Duration::from_us(5),
                        number: commands,
                    };
                    std::hint::black_box(&posting.command);
                    executor.on_completion(virtual_now, &completion);
                }
                virtual_now = executor.next_deadline().unwrap_or(virtual_now);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!(
            r#"{{"ops_m": {:.3}, "ns_per_op": {:.1}}}"#,
            commands as f64 / seconds / 1e6,
            seconds * 1e9 / commands as f64
        );
        Ok(())
    }
}
