//! Runs trials of the real cache: `adverb kv` as the replicas, each a process of its own, and a client in
//! this process that loads them and harms them.
//!
//! Nothing outlives a trial. A replica is killed when its [`Replica`] is dropped; and should this process die
//! in whatever way, the replicas' standard input ends, and they with it (`kv serve --until-eof`).
//! Certificates are of use while the trial is prepared, and deleted before it begins.

use super::{Event, Served, Setup, What};
use crate::definition::Metrics;
use crate::measure::Measured;
use crate::points::Asked;
use crate::run::{Progress, Seeds};
use crate::{Error, Experiment};
use adverb_apps::kv::{Bench, Client, ClientConfig, DATA, INDEX, ReplicaInit, Window};
use adverb_grants::{Holder, Identity, Session, write_trial_certificates};
use adverb_rma::{PathPolicy, Rma, Settings};
use adverb_wire::Duration as Time;
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the replicas' servers.
const PORT: u16 = 7450;
/// Buckets of the index are filled at random: with so much room for each key none gives a record up.
const ROOM: u32 = 16;
/// Parts of the time in which saturation is measured; the best one counts.
const SATURATION_PARTS: u32 = 5;
/// Of the client's leases: longer than any trial.
const TTL: Duration = Duration::from_secs(1800);
const POLICY: &str = "
[[client]]
name = 'app'
regions = ['kv-*']
rights = ['read']
call = true
[[client]]
name = 'control'
regions = ['kv-*']
rights = ['rekey']
";

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn failed(what: &str, why: impl Display) -> Error {
    Error(format!("the real cache: {what}: {why}"))
}

/// Runs what is asked for, one trial after another, for each seed. `command` is the program
/// `adverb`.
pub(crate) fn run(
    experiment: &Experiment,
    asked: &[Asked],
    (seeds, command): (Seeds, &Path),
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Vec<Measured>>, Error> {
    let Metrics::Cache(metrics) = &experiment.measured else {
        return Err(failed("its metrics", "they are a simulation's"));
    };
    let setups = asked.iter().map(|a| Setup::of(a, experiment)).collect::<Result<Vec<Setup>, Error>>()?;
    let (of, mut done) = (asked.len() * seeds.count as usize, 0);
    let mut runs = vec![Vec::new(); asked.len()];
    let all: Vec<usize> = (0..asked.len()).collect();
    for series in all.chunk_by(|a, b| asked[*a].series == asked[*b].series) {
        for seed in seeds.all() {
            // All places of a sweep have the same replicas, and go by the same saturation.
            let first = &setups[series[0]];
            let mut house = House::open(first, command)?;
            let saturation = house.saturation(first, seed)?;
            for &at in series {
                let mut served = house.trial(experiment, &setups[at], seed, saturation)?;
                if experiment.sweep.is_some() {
                    served.slices.clear();
                }
                runs[at].push(served.measured(metrics));
                done += 1;
                progress(Progress { done, of });
            }
        }
    }
    Ok(runs)
}

/// A replica's process.
struct Replica {
    process: Child,
    /// What changes its keys.
    control: Session,
}

impl Drop for Replica {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

fn end(process: &mut Child) {
    // It may have ended.
    let _ = process.kill();
    let _ = process.wait();
}

/// A folder that goes with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The replicas and their client.
struct House {
    // Before the replicas, which it would otherwise try to find again.
    client: Client,
    replicas: Vec<Replica>,
}

/// Addresses that no other process takes: of this process's number.
fn address(host: u8) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | (high & 0x7f), low, host)
}

impl House {
    fn open(setup: &Setup, command: &Path) -> Result<House, Error> {
        let folder = Folder(std::env::temp_dir().join(format!("adverb-lab-{}", std::process::id())));
        let certs = folder.0.join("certs");
        let holder = |name: &str, addresses| Holder { name: name.to_owned(), addresses };
        let owners = (1..=setup.replicas).map(|host| address(host).into()).collect();
        let holders = [holder("kv", owners), holder("app", Vec::new()), holder("control", Vec::new())];
        write_trial_certificates(&certs, &holders).map_err(|error| failed("certificates", error))?;
        std::fs::write(folder.0.join("policy.toml"), POLICY).map_err(|error| failed("policy", error))?;
        let identity = |name: &str| {
            let file = |ending: &str| certs.join(format!("{name}.{ending}"));
            let loaded = Identity::load(&certs.join("ca.pem"), &file("pem"), &file("key"));
            loaded.map_err(|error| failed("certificates", error))
        };
        let control = identity("control")?;
        let started = |host| Replica::start(command, &folder.0, setup, (host, &control));
        let replicas = (1..=setup.replicas).map(started).collect::<Result<Vec<_>, _>>()?;
        let rma = Rma::open(settings(&folder.0, setup)).map_err(|error| failed("the client's NIC", error))?;
        let init = |host| ReplicaInit { to: to(host), name: None, ttl: TTL };
        let config = ClientConfig {
            replicas: (1..=setup.replicas).map(init).collect(),
            identity: identity("app")?,
            lookups: setup.depth.into(),
        };
        let client = Client::open(Arc::new(rma), config).map_err(|error| failed("the client", error))?;
        let down = client.replicas().find(|(_, up, _)| !up).map(|(to, ..)| to.to_owned());
        match down {
            Some(to) => Err(failed("the client", format!("replica {to} cannot be used"))),
            None => Ok(House { client, replicas }),
        }
    }

    /// Lookups each second when there are always as many as there may be, in the best part of the time:
    /// others that use the processors meanwhile only take away.
    fn saturation(&self, setup: &Setup, seed: u64) -> Result<f64, Error> {
        let (time, window) = (ms(setup.saturation_ms), ms(setup.saturation_ms) / SATURATION_PARTS);
        let bench = Bench { time, window, ..bench(setup, seed, None) };
        bench.fill(&self.client).map_err(|error| failed("setting the keys", error))?;
        let (mut best, mut parts) = (0, 0);
        bench.measure(&self.client, &mut |part| {
            // What ends after the time is no whole part.
            best = if parts < SATURATION_PARTS { part.latency.total().max(best) } else { best };
            parts += 1;
        });
        match best {
            0 => Err(failed("the saturation", "no lookup was answered")),
            best => Ok(best as f64 / window.as_secs_f64()),
        }
    }

    fn trial(
        &mut self,
        experiment: &Experiment,
        setup: &Setup,
        seed: u64,
        saturation: f64,
    ) -> Result<Served, Error> {
        let slice = Duration::from_micros(experiment.timeline_us.into());
        let slice = if slice.is_zero() { ms(setup.time_ms) } else { slice };
        let bench = Bench { window: slice, ..bench(setup, seed, Some(setup.load * saturation)) };
        let House { client, replicas } = self;
        let mut slices = Vec::new();
        let (begin, mut on_window) = (now(), |window: &Window| slices.push(window.clone()));
        let (report, events) = std::thread::scope(|scope| {
            let harm = scope.spawn(|| harm(replicas, setup, begin));
            let report = bench.measure(client, &mut on_window);
            (report, harm.join())
        });
        let events = events.map_err(|_| failed("its events", "their thread panicked"))??;
        Ok(Served { saturation, time: bench.time, report, slices, events })
    }
}

impl Replica {
    fn start(
        command: &Path,
        folder: &Path,
        setup: &Setup,
        (host, control): (u8, &Identity),
    ) -> Result<Replica, Error> {
        let (address, keys) = (address(host), (setup.keys * ROOM).to_string());
        let timeout = format!("{}ms", setup.timeout_ms);
        let mut command = Command::new(command);
        command.args(["kv", "serve", "--until-eof", "--as", "certs/kv", "--policy", "policy.toml"]);
        command.args(["--state", "state", "--address", &address.to_string(), "--keys", &keys]);
        command.args(["--timeout", &timeout]).current_dir(folder);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.map_err(|error| failed("starting a replica", error))?;
        let mut said = String::new();
        let read = process.stdout.take().map(|out| BufReader::new(out).read_line(&mut said));
        let ready = matches!(read, Some(Ok(_))) && said.contains(" ready at ");
        let connected = match ready {
            true => Session::connect(&to(host), None, control).map_err(|error| failed("a replica", error)),
            // What is wrong it has said on standard error, which is ours.
            false => Err(failed("starting a replica", format!("the one at {address} did not get ready"))),
        };
        match connected {
            Ok(control) => Ok(Replica { process, control }),
            Err(error) => {
                end(&mut process);
                Err(error)
            }
        }
    }
}

fn to(host: u8) -> String {
    format!("{}:{PORT}", address(host))
}

fn ms(time: u32) -> Duration {
    Duration::from_millis(time.into())
}

fn settings(folder: &Path, setup: &Setup) -> Settings {
    let host = setup.replicas + 1;
    // What the figures show went over a network; and what one end does not offer, the other does not use.
    let path = PathPolicy::Udp;
    let mut settings =
        Settings { state: Some(folder.join("state")), path, ..Settings::new(address(host).into()) };
    let ns = u64::from(setup.timeout_ms) * 1_000_000;
    (settings.nic.timeout, settings.nic.dispatch_timeout) = (Time::from_ns(ns), Time::from_ns(ns * 2 / 5));
    settings
}

fn bench(setup: &Setup, seed: u64, rate: Option<f64>) -> Bench {
    Bench {
        time: ms(setup.time_ms),
        depth: setup.depth.into(),
        rate,
        keys: setup.keys,
        value_len: setup.value,
        sets: setup.sets,
        window: ms(setup.time_ms),
        seed,
    }
}

/// Does to the replicas what is to happen, when it is: what, and when it began and was done, in ms.
fn harm(replicas: &mut [Replica], setup: &Setup, begin: Instant) -> Result<Vec<(Event, f64, f64)>, Error> {
    let mut happened = Vec::new();
    for event in &setup.events {
        let due = begin + ms(setup.time_ms).mul_f64(event.at);
        while let Some(left) = due.checked_duration_since(now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        let replica = &mut replicas[usize::from(event.replica) - 1];
        let from = now();
        let rotate = |region: &str| replica.control.rotate(region).map(|_rotation| ());
        match event.what {
            What::Kill => replica.process.kill().map_err(|error| failed("killing a replica", error))?,
            What::RotateIndex => rotate(INDEX).map_err(|error| failed("rotating a key", error))?,
            What::RotateData => rotate(DATA).map_err(|error| failed("rotating a key", error))?,
        }
        let since = |at: Instant| at.duration_since(begin).as_secs_f64() * 1e3;
        happened.push((*event, since(from), since(now())));
    }
    Ok(happened)
}
