//! `adverb lock`: a lock in remote memory, over real processes.
//!
//! What a user sees first is flock(1) for several hosts: `hold -- COMMAND` runs a command while it holds
//! the lock, renews the lease meanwhile, and gives the lock back when the command ends, or on Ctrl-C.

use crate::args::Nic;
use crate::bench::Times;
use crate::error::Error;
use crate::output::answer;
use crate::program::{open, wire_time};
use crate::remote::span;
use adverb_apps::lock::{Bug, Client, Held, HomeConfig, LockError};
use adverb_io::program::{Programs, Stopper};
use adverb_os::{say, signals};
use adverb_rdma::{Connect, Error as RdmaError, On, Rdma};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::process::{Command, ExitCode, ExitStatus};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Shown by `adverb lock --help`.
pub const EXAMPLES: &str = "\
One process is the lock's home; its program does nothing but connect clients, which use its memory
one-sidedly. The lock is lent for a time. Each lending has a token, greater than all before; it is stored with
the value, so that a holder that was stopped for too long can change nothing any more. Each process is found
at an address and TCP port of its home (--at); the lock itself is used over the NIC.

Examples:
  adverb lock serve --lease 5s &
  adverb lock hold -- sh -c 'echo token $ADVERB_LOCK_TOKEN; make deploy'
  adverb lock set v42
  adverb lock get
  adverb lock show
  adverb lock bench --time 3s";

/// Between two looks at a command that was asked to end.
const TICK: Duration = Duration::from_millis(20);

/// `adverb lock`.
#[derive(Subcommand, Debug)]
pub enum Lock {
    /// Be the lock's home until ended by a signal
    Serve(Box<Serve>),
    /// Hold the lock while a command runs, or until ended by a signal; the exit status is the command's, 1 if
    /// the lock was lost
    Hold(Box<Hold>),
    /// Print the value, under the lock
    Get(Box<Get>),
    /// Store a value, under the lock
    Set(Box<Set>),
    /// Print token, holder and fence, without the lock
    Show(Box<Show>),
    /// Acquire, store and release over and over; print the rate and the times
    Bench(Box<BenchOptions>),
}

/// `adverb lock serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Where clients find it: an address of this host and a TCP port
    #[arg(long, value_name = "IP:PORT", env = "ADVERB_LOCK", default_value = "127.0.0.1:7460")]
    pub at: String,
    /// How long the lock is lent
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
    #[arg(long, value_name = "HOST:PORT", env = "ADVERB_LOCK", default_value = "127.0.0.1:7460")]
    pub at: String,
    /// Give up when the home, or the lock, cannot be had within this time [default: wait]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub patience: Option<Duration>,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// `adverb lock hold`.
#[derive(Args, Debug)]
pub struct Hold {
    /// The lock.
    #[command(flatten)]
    pub home: Home,
    /// The command, which finds the token in ADVERB_LOCK_TOKEN
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `adverb lock get`.
#[derive(Args, Debug)]
pub struct Get {
    /// The lock.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb lock set`.
#[derive(Args, Debug)]
pub struct Set {
    /// The value
    pub value: String,
    /// The lock.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb lock show`.
#[derive(Args, Debug)]
pub struct Show {
    /// The lock.
    #[command(flatten)]
    pub home: Home,
}

/// `adverb lock bench`.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// The lock.
    #[command(flatten)]
    pub home: Home,
    /// How long
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "3s")]
    pub time: Duration,
}

/// Runs it.
pub fn lock(action: &Lock) -> Result<ExitCode, Error> {
    match action {
        Lock::Serve(options) => {
            let programs = open(&options.nic)?;
            let config = HomeConfig { lease: wire_time(options.lease), ..HomeConfig::default() };
            let rdma = Rdma::new(programs.clone());
            let served = programs.block_on(async {
                let listener = rdma.listen(&options.at).await?;
                say::announce(format_args!("lock ready at {}, lease {:?}", options.at, options.lease));
                adverb_apps::lock::serve_at(&rdma, &listener, &config).await
            });
            served.map(|()| ExitCode::SUCCESS).map_err(|error| failed(&options.at, &error.into()))
        }
        Lock::Hold(options) => with_lock(&options.home, async |rdma, client, _| {
            let Some(held) = acquire(rdma, client, &options.home).await? else {
                return Ok(ExitCode::FAILURE);
            };
            hold(rdma, client, held, &options.command).await
        }),
        Lock::Get(options) => with_lock(&options.home, async |rdma, client, _| {
            let Some(held) = acquire(rdma, client, &options.home).await? else {
                return Ok(ExitCode::FAILURE);
            };
            let value = held.load().await?;
            held.release().await?;
            Ok(answer(format_args!("{}", String::from_utf8_lossy(&value))))
        }),
        Lock::Set(options) => with_lock(&options.home, async |rdma, client, _| {
            let Some(held) = acquire(rdma, client, &options.home).await? else {
                return Ok(ExitCode::FAILURE);
            };
            let token = held.token();
            held.store_and_release(options.value.as_bytes()).await?;
            Ok(answer(format_args!("stored with token {token}")))
        }),
        Lock::Show(options) => with_lock(&options.home, async |_, client, _| {
            let (token, holder, fence) = client.look().await?;
            let held = if holder == 0 { "free".to_owned() } else { format!("held by client {holder}") };
            let lease = std_time(client.lease());
            Ok(answer(format_args!("token {token}, {held}, fence {fence}, lease {lease:?}")))
        }),
        Lock::Bench(options) => {
            with_lock(&options.home, async |rdma, client, _| bench(rdma, client, options).await)
        }
    }
}

fn failed(at: &str, error: &LockError) -> Error {
    let help = match error {
        LockError::Rdma(RdmaError::NoAnswer | RdmaError::Left) => "; is `adverb lock serve` running there?",
        _ => "",
    };
    Error::Remote(format!("--at {at}: {error}{help}"))
}

fn std_time(time: adverb_rdma::Duration) -> Duration {
    Duration::from_nanos(time.as_ns())
}

/// Opens the NIC, connects to the home, and runs this.
fn with_lock(
    home: &Home,
    run: impl AsyncFnOnce(&Rdma, &Client, &Stopper) -> Result<ExitCode, LockError>,
) -> Result<ExitCode, Error> {
    let programs: Rc<Programs> = open(&home.nic)?;
    let rdma = Rdma::new(programs.clone());
    let done = programs.block_on(async {
        let patience = deadline(&rdma, home).await?;
        let client = Client::open(&rdma, &home.at, &Connect::default(), patience, Bug::None).await?;
        run(&rdma, &client, &programs.stopper()).await
    });
    done.map_err(|error| failed(&home.at, &error))
}

async fn deadline(rdma: &Rdma, home: &Home) -> Result<Option<adverb_rdma::Instant>, RdmaError> {
    let Some(patience) = home.patience else { return Ok(None) };
    Ok(Some(rdma.now().await? + wire_time(patience)))
}

async fn acquire<'a>(rdma: &Rdma, client: &'a Client, home: &Home) -> Result<Option<Held<'a>>, LockError> {
    let patience = deadline(rdma, home).await?;
    let held = client.acquire(patience).await?;
    if held.is_none() {
        say!("adverb: the lock was not free in time");
    }
    Ok(held)
}

/// Holds the lock while the command runs; without one, until a signal.
async fn hold(
    rdma: &Rdma,
    client: &Client,
    held: Held<'_>,
    command: &[OsString],
) -> Result<ExitCode, LockError> {
    say::announce(format_args!("holding with token {}", held.token()));
    let Some((program, arguments)) = command.split_first() else {
        let lost = keep(rdma, client, &held, || false).await?;
        return finish(held, lost, ExitCode::SUCCESS).await;
    };
    let mut started = Command::new(program);
    started.args(arguments).env("ADVERB_LOCK_TOKEN", held.token().to_string());
    let mut child = match signals::for_child(&mut started).spawn() {
        Ok(child) => child,
        Err(error) => {
            held.release().await?;
            say!("adverb: {}: {error}", program.to_string_lossy());
            return Ok(ExitCode::from(127));
        }
    };
    let number = child.id();
    let ended: Arc<Mutex<Option<ExitStatus>>> = Arc::default();
    let outcome = ended.clone();
    let waiter = std::thread::spawn(move || {
        let status = child.wait();
        *outcome.lock().unwrap_or_else(PoisonError::into_inner) = status.ok();
    });
    let lost = keep(rdma, client, &held, || waiter.is_finished()).await?;
    if !waiter.is_finished() {
        // A signal, or the lock is lost: either way it must not go on.
        signals::terminate(number);
        while !waiter.is_finished() {
            rdma.sleep(wire_time(TICK)).await?;
        }
    }
    let status = *ended.lock().unwrap_or_else(PoisonError::into_inner);
    let code =
        status.and_then(|status| status.code()).map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8));
    finish(held, lost, code).await
}

/// Renews the lease until the command has ended, or a signal comes. True if the lock was lost.
async fn keep(
    rdma: &Rdma,
    client: &Client,
    held: &Held<'_>,
    ended: impl Fn() -> bool,
) -> Result<bool, LockError> {
    let [line, _] = client.lines();
    let mut renewed = rdma.now().await?;
    let third = adverb_rdma::Duration::from_ns(client.lease().as_ns() / 3);
    loop {
        let now = rdma.now().await?;
        if ended() {
            return Ok(false);
        }
        let until = (renewed + third).min(now + wire_time(TICK));
        match rdma.until(&[On::Stop, On::Gone(line)], Some(until)).await? {
            Some(0) => return Ok(false),
            Some(_) => return Err(RdmaError::Left.into()),
            None => {}
        }
        let now = rdma.now().await?;
        if now.since(renewed) >= third {
            if !held.renew().await? {
                return Ok(true);
            }
            renewed = now;
        }
    }
}

async fn finish(held: Held<'_>, lost: bool, code: ExitCode) -> Result<ExitCode, LockError> {
    let token = held.token();
    if lost || !held.release().await? {
        say!(
            "adverb: the lock was lost: the lease of token {token} had run out, and another has taken it over"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(code)
}

async fn bench(rdma: &Rdma, client: &Client, options: &BenchOptions) -> Result<ExitCode, LockError> {
    let start = rdma.now().await?;
    let end = start + wire_time(options.time);
    let mut times = Vec::new();
    loop {
        let begun = rdma.now().await?;
        if begun >= end || rdma.until(&[On::Stop], Some(begun)).await?.is_some() {
            break;
        }
        let Some(held) = client.acquire(Some(end)).await? else { break };
        let value = (times.len() as u64).to_le_bytes();
        held.store_and_release(&value).await?;
        times.push(rdma.now().await?.since(begun).as_ns());
    }
    let times = Times::new(times);
    let seconds = rdma.now().await?.since(start).as_ns() as f64 / 1e9;
    Ok(answer(format_args!(
        "{} rounds of acquire, store, release in {seconds:.1} s: {:.0}/s; {times}",
        times.count(),
        times.count() as f64 / seconds,
    )))
}
