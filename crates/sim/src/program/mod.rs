//! Programs on simulated hosts: futures over `adverb_rdma`, the same that run over real NICs, polled in
//! virtual time.
//!
//! A host runs any number of them, each a thread of its [`cpu`]. A program asks through its [`mailbox`]; each
//! call waits for its core and its time, takes effect at the end of that time, and may be the program's last:
//! a kill falls between any two steps, where a list that is posted takes a step for each request, and a copy
//! one for each eight bytes (more, when there are many). Of a killed program nothing happens any more: its
//! destructors ask in vain. Its objects are taken back as by an operating system ([`process`]); memory of
//! files stays. A host that crashes loses its NIC's state and its files as well, and says nothing to peers.
//!
//! ```text
//! NIC did something on a host ──► look at what its programs wait for ──► wake threads
//! a thread is idle on its core ──► turn: the next call, or poll the future, or sleep
//! ```
//! `cpu` says which thread runs, `turn` what it does there, `exec` what each call does, `exchange` who
//! listens where, `fate` who is stopped, killed, started again. `words` tells it all to people. [`history`]
//! makes of programs' notes what the checker of linearizability takes.

pub mod cpu;
mod exchange;
mod exec;
mod fate;
pub mod history;
mod mailbox;
mod one_rma;
mod process;
mod told;
mod turn;
mod wait;
mod words;

pub use fate::{Cut, Fault, Stalls, What};
pub use told::{End, Operation};

use crate::host::memory::Buffer;
use crate::sim::Sim;
use crate::source::Source;
use adverb_nic::one_rma::executor::Report;
use adverb_rdma::seam::{Call, Note, Ticket};
use adverb_rdma::{Error, Rdma};
use core::future::Future;
use core::pin::Pin;
use core::task::Waker;
use cpu::{Cpu, CpuProfile, Thread};
use exchange::{Exchange, Message, Who};
use mailbox::{Flag, Mailbox};
use process::{Leftovers, Process};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use wait::Waiting;

/// A program's future.
pub type Task = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// A program to run.
#[derive(Clone)]
pub struct Start {
    /// Its name, for people.
    pub name: String,
    /// Where it runs.
    pub host: u32,
    /// When it starts, in ps.
    pub at: u64,
    /// It serves until it is asked to end; the run does not wait for it.
    pub serves: bool,
    /// What a swarm may do to it.
    pub mortal: Mortal,
    /// Makes its future, anew for each of its lives.
    pub run: Rc<dyn Fn(Rdma) -> Task>,
}

impl Start {
    /// A client on a host, from the beginning, that a swarm may kill and start again.
    pub fn new<F, E>(name: impl Into<String>, host: u32, run: impl Fn(Rdma) -> F + 'static) -> Start
    where
        F: Future<Output = Result<(), E>> + 'static,
        E: ToString,
    {
        let run = move |rdma: Rdma| -> Task {
            let future = run(rdma);
            Box::pin(async move { future.await.map_err(|error| error.to_string()) })
        };
        Start { name: name.into(), host, at: 0, serves: false, mortal: Mortal::Again, run: Rc::new(run) }
    }

    /// It serves until it is asked to end.
    pub fn serving(self) -> Start {
        Start { serves: true, ..self }
    }

    /// What a swarm may do to it instead.
    pub fn mortal(self, mortal: Mortal) -> Start {
        Start { mortal, ..self }
    }
}

/// Whether a program may be killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mortal {
    /// It has no place after a crash, or others cannot do without what it holds.
    Never,
    /// It may be killed, and does not come back.
    Once,
    /// It may be killed, and is started again.
    Again,
}

/// Programs of a run, and what befalls them. What their processors cost is part of each host's hardware.
#[derive(Clone, Default)]
pub struct Setup {
    /// The programs.
    pub programs: Vec<Start>,
    /// What befalls them at set times.
    pub faults: Vec<Fault>,
    /// What befalls them after so many of their own steps.
    pub cuts: Vec<Cut>,
    /// How they are held up.
    pub stalls: Option<Stalls>,
    /// Time that the exchange of attributes takes each way, in ps.
    pub exchange_ps: u64,
    /// Seed of the programs' random numbers, stalls, and clocks.
    pub seed: u64,
}

/// A note of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Noted {
    /// When, in ps. Its place in the list orders notes of one time.
    pub at: u64,
    /// Whose, in the order of [`Setup::programs`].
    pub program: u32,
    /// In which of its lives, from 0.
    pub life: u32,
    /// What.
    pub note: Note,
}

/// How a program of a run is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Not started, or to be started again.
    Waits,
    /// At work.
    Runs,
    /// Ended by itself.
    Ended(Result<(), String>),
    /// Killed, for good.
    Killed,
}

/// Calls at one moment after which a program that has not waited is taken to make no progress.
const CALLS_AT_ONCE: u64 = 20_000;

/// A call that was taken, and how far it has come.
struct Current {
    ticket: Ticket,
    call: Call,
    /// Requests of a list that were posted, bytes of a copy that were moved.
    progress: usize,
    /// What was read so far.
    bytes: Vec<u8>,
}

/// A program that is alive.
struct Life {
    future: Task,
    mailbox: Rc<Mailbox>,
    flag: Arc<Flag>,
    waker: Waker,
    thread: Thread,
    process: Process,
    current: Option<Current>,
    waits: Vec<Waiting>,
    /// Waits that are over, which it has not found out.
    found: std::collections::VecDeque<Current>,
    stop_asked: bool,
    rng: fastrand::Rng,
    /// Calls since it last waited, the moment of the last one, and how many there were at that moment.
    unwaited: u64,
    moment: u64,
    at_once: u64,
}

struct Program {
    start: Start,
    doing: Doing,
    lives: u32,
    /// Steps taken in all lives.
    steps: u64,
    life: Option<Box<Life>>,
}

/// What programs see of a host beside its NIC.
struct Station {
    cpu: Cpu,
    left: Leftovers,
    /// Files by number; those of a host that crashed are gone.
    files: BTreeMap<i32, Rc<Buffer>>,
    /// Memories registered so far.
    memories: u32,
    /// What its clock is ahead of the run's time by, in ps.
    clock: u64,
    boots: u32,
    /// A host that crashed comes back then.
    down_until: u64,
}

/// Something that is to happen at a set time.
enum Due {
    Fault(What),
    Start(u32),
    Message(Message),
    Told(Who, Ticket, Result<adverb_rdma::Answer, Error>),
    Deadline(Who, Ticket),
    Continue(Who),
    /// What a NIC has written can be seen on its host.
    Look(u32),
}

/// All programs of a run.
pub(crate) struct Programs {
    list: Vec<Program>,
    stations: Vec<Station>,
    exchange: Exchange,
    due: BTreeMap<(u64, u64), Due>,
    /// Entries of `due` so far.
    entries: u64,
    cuts: Vec<Cut>,
    stalls: Option<Stalls>,
    exchange_ps: u64,
    seed: u64,
    rng: fastrand::Rng,
    notes: Vec<Noted>,
    calls: u64,
    posts: u64,
    failures: Vec<String>,
    /// Transfers under way, by number: whose, and which call.
    transfers: BTreeMap<u64, (Who, Ticket)>,
    last_transfer: u64,
}

/// A host's state beside the simulation's own that changed, for programs that wait; kept here so that it can
/// be noted while the programs themselves are at work.
#[derive(Default)]
pub(crate) struct ProgramSide {
    programs: Option<Box<Programs>>,
    /// There are programs.
    pub(crate) on: bool,
    /// Hosts whose NIC did something.
    changed: Vec<u32>,
    /// Hosts of which a program wrote memory.
    stored: Vec<u32>,
    /// Transfers that have ended: their numbers, and how.
    pub(crate) reports: Vec<(u64, Report)>,
}

impl Programs {
    fn at(&mut self, at: u64, due: Due) {
        self.due.insert((at, self.entries), due);
        self.entries += 1;
    }

    fn who(&self, program: u32) -> Who {
        Who { program, life: self.list[program as usize].lives }
    }

    /// The life of a program, if it is still that one.
    fn life(&mut self, who: Who) -> Option<&mut Life> {
        let program = &mut self.list[who.program as usize];
        if program.lives != who.life {
            return None;
        }
        program.life.as_deref_mut()
    }

    fn host(&self, program: u32) -> usize {
        self.list[program as usize].start.host as usize
    }

    fn send(&mut self, now: u64, messages: impl IntoIterator<Item = Message>) {
        for message in messages {
            self.at(now + self.exchange_ps, Due::Message(message));
        }
    }

    /// The next time that something happens by itself.
    fn next(&self) -> Option<u64> {
        let due = self.due.first_key_value().map(|((at, _), _)| *at);
        let stations = self.stations.iter().flat_map(|s| [s.cpu.next(), s.left.next()]);
        stations.chain([due]).flatten().min()
    }
}

impl Sim {
    /// Puts programs on this fabric, which must carry payload.
    ///
    /// # Panics
    /// If it does not, or a program's host does not exist.
    pub fn set_programs(&mut self, setup: Setup) {
        assert!(self.config.payload, "programs look at bytes");
        let hosts = self.hosts.list.len() as u32;
        assert!(setup.programs.iter().all(|p| p.host < hosts), "programs run on hosts");
        let mut rng = fastrand::Rng::with_seed(crate::watch::trace::seed_of(setup.seed, "programs", 0));
        let config = &self.config;
        let station = |rng: &mut fastrand::Rng, host: u32| Station {
            cpu: Cpu::new(CpuProfile::of(&config.hardware_of(host))),
            left: Leftovers::default(),
            files: BTreeMap::new(),
            memories: 0,
            clock: rng.u64(0..1_000_000_000_000),
            boots: 0,
            down_until: 0,
        };
        let mut programs = Programs {
            stations: (0..hosts).map(|host| station(&mut rng, host)).collect(),
            list: Vec::new(),
            exchange: Exchange::default(),
            due: BTreeMap::new(),
            entries: 0,
            cuts: setup.cuts,
            stalls: setup.stalls,
            exchange_ps: setup.exchange_ps,
            seed: setup.seed,
            rng,
            notes: Vec::new(),
            calls: 0,
            posts: 0,
            failures: Vec::new(),
            transfers: BTreeMap::new(),
            last_transfer: 0,
        };
        for fault in setup.faults {
            programs.at(fault.at, Due::Fault(fault.what));
        }
        for (n, start) in setup.programs.into_iter().enumerate() {
            programs.at(start.at, Due::Start(n as u32));
            programs.list.push(Program { start, doing: Doing::Waits, lives: 0, steps: 0, life: None });
        }
        self.programs =
            ProgramSide { programs: Some(Box::new(programs)), on: true, ..ProgramSide::default() };
        self.schedule_programs();
    }

    /// The NIC of a host did something that a program of it may wait for.
    #[inline]
    pub(crate) fn host_changed(&mut self, h: u32) {
        if self.programs.on {
            self.note_change(h);
        }
    }

    #[cold]
    fn note_change(&mut self, h: u32) {
        while self.hosts.list[h as usize].nic.next_event().is_some() {}
        if !self.programs.changed.contains(&h) {
            self.programs.changed.push(h);
        }
        self.wake_by(Source::Programs, self.now);
    }

    fn schedule_programs(&mut self) {
        let next = self.programs.programs.as_ref().and_then(|programs| programs.next());
        match next {
            Some(at) => self.set_timer(Source::Programs, at.max(self.now)),
            None => self.events.cancel_timer(self.sources.pack(Source::Programs)),
        }
    }

    /// Something is to happen with programs, or a host that they wait on has changed.
    pub(crate) fn on_programs(&mut self) {
        let Some(mut programs) = self.programs.programs.take() else { return };
        loop {
            self.hear_reports(&mut programs);
            for h in core::mem::take(&mut self.programs.stored) {
                self.look_at_waits(&mut programs, h, 0);
            }
            for h in core::mem::take(&mut self.programs.changed) {
                let unit = self.hosts.list[h as usize].unit.as_ref();
                let late = unit.map_or(0, |unit| unit.profile.pcie_write);
                self.look_at_waits(&mut programs, h, late);
            }
            let next = programs.next();
            let quiet = self.programs.changed.is_empty() && self.programs.stored.is_empty();
            if next.is_none_or(|at| at > self.now) && quiet {
                break;
            }
            self.happen(&mut programs);
            for h in 0..programs.stations.len() {
                let station = &mut programs.stations[h];
                station.left.sweep(self.now, &mut self.hosts.list[h].nic);
                for thread in station.cpu.advance(self.now) {
                    self.turn(&mut programs, h, thread);
                }
            }
        }
        self.programs.programs = Some(programs);
        self.schedule_programs();
    }

    /// What programs noted so far, in order.
    pub fn notes(&self) -> &[Noted] {
        self.programs.programs.as_ref().map_or(&[], |programs| &programs.notes)
    }

    /// Programs that make no progress, each with its name.
    pub fn program_failures(&self) -> &[String] {
        self.programs.programs.as_ref().map_or(&[], |programs| &programs.failures)
    }

    /// Each program: its name, how it is doing, how many lives it has had before this one, and steps it took.
    pub fn programs(&self) -> impl Iterator<Item = (&str, &Doing, u32, u64)> {
        let list = self.programs.programs.iter().flat_map(|programs| &programs.list);
        list.map(|p| (p.start.name.as_str(), &p.doing, p.lives, p.steps))
    }

    /// Whether all programs that do not serve have come to an end.
    pub fn programs_ended(&self) -> bool {
        let over = |p: &Program| p.start.serves || matches!(p.doing, Doing::Ended(_) | Doing::Killed);
        self.programs.programs.as_ref().is_none_or(|programs| programs.list.iter().all(over))
    }

    /// How far a host's clock, as its programs see it, is ahead of the run's time.
    pub fn clock_ahead(&self, host: u32) -> adverb_wire::Duration {
        let programs = self.programs.programs.as_ref();
        let station = programs.and_then(|programs| programs.stations.get(host as usize));
        adverb_wire::Duration::from_ps(station.map_or(0, |station| station.clock))
    }

    /// Calls that programs made.
    pub fn program_calls(&self) -> u64 {
        self.programs.programs.as_ref().map_or(0, |programs| programs.calls)
    }

    /// Requests that programs posted, and doorbells that they rang.
    pub fn program_posts(&self) -> u64 {
        self.programs.programs.as_ref().map_or(0, |programs| programs.posts)
    }
}
