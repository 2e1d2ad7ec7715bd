//! Native programs on this host: `adverb_rdma`'s driver over a [`Host`].
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = adverb_io::Settings::from_env()?;
//! let now = adverb_io::program::run(&settings, async |rdma, _stop| rdma.now().await)??;
//! # Ok(())
//! # }
//! ```
//! Calls are ready at once, and each call into the NIC makes a round of progress, as in the verbs
//! library. `until` sleeps: completion queues are armed, words of memory are looked at whenever frames
//! have come, and the progress thread takes over. [`Programs::block_on`] looks around for a while before
//! it sleeps, which saves a switch of threads; any other executor serves as well.
//!
//! ```text
//! mod calls  calls that wait, and those that do not
//! memory     regions, and when they may go
//! ```
//! The driver is for one thread. Others may [stop](Stopper) its program.

mod calls;
mod memory;

use crate::error::OpenError;
use crate::host::Host;
use crate::settings::Settings;
use adverb_nic::{CqId, Mtu, PdId, QpId, SrqId};
use adverb_program::{Changed, Exchange, Waits, Watch, clock_ns};
use adverb_rdma::seam::{FileId, MemoryId, Object, Ticket, Wait};
use adverb_rdma::{Answer, Begun, Call, Driver, Error, Note, Rdma};
use adverb_wire::{Duration, Instant};
use memory::{Memory, Retired};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration as StdDuration;

pub use adverb_program::Stopper;

/// How long `block_on` looks around before it sleeps: about what waking up takes, several times.
const SPIN: Duration = Duration::from_us(50);

/// The driver of this process's programs.
pub struct Programs {
    host: Arc<Host>,
    waits: Arc<Waits>,
    exchange: Arc<Exchange>,
    state: RefCell<State>,
    /// `block_on` looks after the waits.
    driven: Cell<bool>,
    mtu: Mtu,
}

#[derive(Default)]
struct State {
    memories: BTreeMap<u32, Memory>,
    retired: Vec<Retired>,
    qps: Vec<QpId>,
    srqs: Vec<SrqId>,
    cqs: Vec<CqId>,
    pds: Vec<PdId>,
    /// Objects that could not go yet because others use them.
    leaving: Vec<Object>,
    files: BTreeMap<i32, OwnedFd>,
    waiting: BTreeMap<Ticket, Waiting>,
    /// The last number given to memory.
    last_memory: u32,
}

/// A call that waits.
enum Waiting {
    Until { waits: Vec<Wait>, deadline: Option<Instant>, waker: Waker },
    Ask { line: u32 },
}

/// Opens the NIC, runs a program to its end, and closes the NIC.
pub fn run<R>(settings: &Settings, program: impl AsyncFnOnce(Rdma, Stopper) -> R) -> Result<R, OpenError> {
    let programs = Programs::open(settings)?;
    let (rdma, stopper) = (Rdma::new(programs.clone()), programs.stopper());
    Ok(programs.block_on(program(rdma, stopper)))
}

impl Programs {
    /// Opens the process's NIC.
    pub fn open(settings: &Settings) -> Result<Rc<Programs>, OpenError> {
        let waits = Arc::new(Waits::default());
        let hears = waits.clone();
        if settings.star_registry.is_some() {
            return Err(OpenError::RegistryUse { what: "a native program" });
        }
        let host = Host::open(settings, Box::new(move |event| hears.on_event(event)))?;
        let hears = waits.clone();
        host.on_frames(Box::new(move || hears.on_words()));
        let mtu = host.device().active_mtu;
        Ok(Rc::new(Programs {
            host,
            exchange: Exchange::new(waits.clone()),
            waits,
            state: RefCell::default(),
            driven: Cell::new(false),
            mtu,
        }))
    }

    /// The NIC.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Who waits here: for another driver of the same programs.
    pub fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// For another thread that asks the program to end.
    pub fn stopper(&self) -> Stopper {
        Stopper::new(self.waits.clone())
    }

    /// Runs a future to its end on this thread, which makes the NIC's rounds meanwhile.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let unpark = Arc::new(Unpark { thread: std::thread::current(), woken: AtomicBool::new(true) });
        let waker = Waker::from(unpark.clone());
        let mut context = Context::from_waker(&waker);
        let was = self.driven.replace(true);
        let spin = if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
            SPIN
        } else {
            Duration::ZERO
        };
        let output = loop {
            if unpark.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                break output;
            }
            if unpark.is_woken() || self.look_around(&unpark, spin) {
                continue;
            }
            self.sleep(&unpark);
        };
        self.driven.set(was);
        output
    }

    /// Makes rounds for a while. True when the program is woken.
    fn look_around(&self, unpark: &Unpark, time: Duration) -> bool {
        let start = self.host.now();
        loop {
            let acknowledged = self.host.look();
            self.wake_due();
            if unpark.is_woken() {
                return true;
            }
            if acknowledged {
                self.host.let_go();
            }
            if self.host.now().since(start) >= time {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until the program is woken, or a wait's deadline has come.
    fn sleep(&self, unpark: &Unpark) {
        self.arm_all();
        self.wake_due();
        while !unpark.is_woken() {
            let state = self.state.borrow();
            let deadlines = state.waiting.values().filter_map(|waiting| match waiting {
                Waiting::Until { deadline, .. } => *deadline,
                Waiting::Ask { .. } => None,
            });
            let next = deadlines.min();
            drop(state);
            match next {
                None => std::thread::park(),
                Some(at) => {
                    let left = at.since(self.host.now());
                    if left.as_ns() > 0 {
                        std::thread::park_timeout(StdDuration::from_nanos(left.as_ns()));
                    }
                    if self.host.now() >= at {
                        break;
                    }
                }
            }
        }
        self.wake_due();
    }

    /// Wakes the tasks whose waits are over.
    fn wake_due(&self) {
        let state = self.state.borrow();
        for waiting in state.waiting.values() {
            if let Waiting::Until { waits, deadline, waker } = waiting
                && self.holds(&state, waits, *deadline).is_some()
            {
                waker.wake_by_ref();
            }
        }
    }

    /// Asks for an event of every completion queue that is waited for, and leaves progress to the thread.
    fn arm_all(&self) {
        let state = self.state.borrow();
        let waits = state.waiting.values().flat_map(|waiting| match waiting {
            Waiting::Until { waits, .. } => &waits[..],
            Waiting::Ask { .. } => &[],
        });
        self.arm(waits.copied());
    }

    fn arm(&self, waits: impl Iterator<Item = Wait>) {
        for wait in waits {
            if let Wait::Cq(cq) = wait {
                // A queue that is gone was found to be so when the wait was looked at.
                let _ = self.host.control(|nic, _| nic.arm_cq(cq, false));
            }
        }
        self.host.rest();
    }

    /// The first of the waits that holds, if one does or the time has come.
    fn holds(&self, state: &State, waits: &[Wait], deadline: Option<Instant>) -> Option<Option<usize>> {
        let first = waits.iter().position(|wait| match *wait {
            // What is gone will never change: the program finds out when it looks.
            Wait::Cq(cq) => self.host.holds_completion(cq) != Ok(false),
            Wait::Word { memory, at, seen } => {
                state.memories.get(&memory.0).is_none_or(|memory| memory.load_word(at) != Ok(seen))
            }
            Wait::Asked(_) | Wait::Gone(_) | Wait::Stop => self.exchange.holds(wait) == Some(true),
        });
        match (first, deadline) {
            (Some(index), _) => Some(Some(index)),
            (None, Some(deadline)) if self.host.now() >= deadline => Some(None),
            _ => None,
        }
    }

    /// Lets other threads wake a wait.
    fn watch(
        &self,
        ticket: Ticket,
        waits: &[Wait],
        deadline: Option<Instant>,
        waker: &Waker,
    ) -> Result<(), Error> {
        let state = self.state.borrow();
        let cqs = waits.iter().filter_map(|wait| if let Wait::Cq(cq) = wait { Some(*cq) } else { None });
        let words = waits.iter().filter_map(|wait| match *wait {
            Wait::Word { memory, at, seen } => {
                let memory = state.memories.get(&memory.0)?.clone();
                Some(Box::new(move || memory.load_word(at) != Ok(seen)) as Changed)
            }
            _ => None,
        });
        let (cqs, words) = (cqs.collect(), words.collect());
        let deadline_ns = match deadline {
            Some(deadline) if !self.driven.get() => {
                Some(clock_ns().saturating_add(deadline.since(self.host.now()).as_ns()))
            }
            _ => None,
        };
        let watch = Watch { waker: waker.clone(), cqs, words, deadline_ns };
        self.waits
            .set(ticket, watch)
            .map_err(|error| Error::System(format!("starting the timer's thread: {error}")))
    }

    fn until(&self, waits: Vec<Wait>, deadline: Option<Instant>, context: &Context<'_>) -> Begun {
        self.waits.on_wait();
        let held = self.holds(&self.state.borrow(), &waits, deadline);
        let held = held.or_else(|| {
            let acknowledged = self.host.look();
            let held = self.holds(&self.state.borrow(), &waits, deadline);
            if acknowledged && held.is_none() {
                self.host.let_go();
            }
            held
        });
        if let Some(index) = held {
            return Begun::Ready(Ok(Answer::Woken(index)));
        }
        let ticket = self.waits.ticket();
        let waker = context.waker().clone();
        self.state.borrow_mut().waiting.insert(ticket, Waiting::Until { waits, deadline, waker });
        match self.poll_until(ticket, context) {
            Poll::Ready(answer) => Begun::Ready(answer),
            Poll::Pending => Begun::Waiting(ticket),
        }
    }

    fn poll_until(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Result<Answer, Error>> {
        let (waits, deadline) = {
            let mut state = self.state.borrow_mut();
            let Some(Waiting::Until { waits, deadline, waker }) = state.waiting.get_mut(&ticket) else {
                return Poll::Ready(Err(Error::NoSuchObject("call")));
            };
            waker.clone_from(context.waker());
            (waits.clone(), *deadline)
        };
        let mut held = self.holds(&self.state.borrow(), &waits, deadline);
        if held.is_none() {
            // In this order: who changes something later finds whom to wake.
            if let Err(error) = self.watch(ticket, &waits, deadline, context.waker()) {
                self.forget(ticket);
                return Poll::Ready(Err(error));
            }
            if !self.driven.get() {
                self.arm(waits.iter().copied());
            }
            held = self.holds(&self.state.borrow(), &waits, deadline);
        }
        match held {
            None => Poll::Pending,
            Some(index) => {
                self.waits.remove(ticket);
                self.state.borrow_mut().waiting.remove(&ticket);
                Poll::Ready(Ok(Answer::Woken(index)))
            }
        }
    }

    fn ask(
        &self,
        name: &str,
        attributes: Vec<u8>,
        deadline: Option<Instant>,
        context: &Context<'_>,
    ) -> Begun {
        let time = deadline.map(|deadline| StdDuration::from_nanos(deadline.since(self.host.now()).as_ns()));
        let line = match self.exchange.ask(name, attributes, time) {
            Ok(line) => {
                self.waits.on_wait();
                line
            }
            Err(error) => return Begun::Ready(Err(error)),
        };
        let ticket = self.waits.ticket();
        self.state.borrow_mut().waiting.insert(ticket, Waiting::Ask { line });
        match self.poll_ask(ticket, line, context) {
            Poll::Ready(answer) => Begun::Ready(answer),
            Poll::Pending => Begun::Waiting(ticket),
        }
    }

    fn poll_ask(&self, ticket: Ticket, line: u32, context: &Context<'_>) -> Poll<Result<Answer, Error>> {
        let told = self.exchange.poll_told(ticket, line, context.waker());
        if told.is_ready() {
            self.state.borrow_mut().waiting.remove(&ticket);
        }
        told
    }
}

/// Wakes the thread that runs `block_on`.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Unpark {
    fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Acquire)
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

impl Driver for Programs {
    fn begin(&self, call: Call, context: &mut Context<'_>) -> Begun {
        match call {
            Call::Until { waits, deadline } => self.until(waits, deadline, context),
            Call::Ask { name, attributes, deadline } => self.ask(&name, attributes, deadline, context),
            call => {
                let answer = self.answer(call);
                self.waits.on_answer(&answer);
                Begun::Ready(answer)
            }
        }
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        let line = match self.state.borrow().waiting.get(&ticket) {
            Some(Waiting::Ask { line }) => Some(*line),
            _ => None,
        };
        match line {
            Some(line) => self.poll_ask(ticket, line, context),
            None => self.poll_until(ticket, context),
        }
    }

    fn forget(&self, ticket: Ticket) {
        self.waits.remove(ticket);
        if let Some(Waiting::Ask { line }) = self.state.borrow_mut().waiting.remove(&ticket) {
            self.exchange.release_line(line);
        }
    }

    fn release(&self, object: Object) {
        match object {
            Object::Listener(_) | Object::Line(_) => self.exchange.release(object),
            Object::File(FileId(file)) => drop(self.state.borrow_mut().files.remove(&file)),
            Object::Memory(MemoryId(memory)) => {
                let state = &mut *self.state.borrow_mut();
                if let Some(memory) = state.memories.remove(&memory) {
                    let retired = self.host.control(|nic, _| Retired::new(nic, memory, &state.qps));
                    state.retired.push(retired);
                }
            }
            object => self.state.borrow_mut().leaving.push(object),
        }
        self.sweep();
    }

    fn note(&self, _: Note) {}
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.exchange.close();
        let state = self.state.get_mut();
        // The NIC ends on the network first: then nothing arrives that could reach what is unmapped.
        self.host.close();
        self.host.control(|nic, _| {
            for qp in &state.qps {
                // Whatever it says, nothing arrives any more.
                let _ = nic.destroy_qp(*qp);
            }
            std::mem::take(&mut state.retired).into_iter().for_each(|retired| retired.end(nic));
            std::mem::take(&mut state.memories).into_values().for_each(|memory| memory.end(nic));
        });
    }
}
