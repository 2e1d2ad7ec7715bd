//! Safe native verbs: programs that move bytes one-sidedly, written once and run in two worlds.
//!
//! ```
//! # use adverb_rdma::*;
//! /// Adds one to a counter in a peer's memory.
//! async fn count(rdma: Rdma, server: &str) -> Result<u64, Error> {
//!     let pd = rdma.create_pd().await?;
//!     let cq = rdma.create_cq(16).await?;
//!     let memory = pd.region(4096, Access::LOCAL_WRITE).await?;
//!     let qp = pd.create_rc(&cq, Caps::default()).await?;
//!     let (_line, counter) = qp.connect(server, &[], &Connect::default(), None).await?;
//!     let counter = Remote::from_bytes(&counter).ok_or(Error::Garbled("a region"))?;
//!     qp.fetch_add((&counter, 0), 1, (&memory, 0)).await
//! }
//! ```
//! [`Rdma`] is a program's whole world. Behind it stands a [`Driver`] ([`seam`] is the contract): on a
//! host, `adverb_io`'s, whose futures any executor can run; in a simulated fabric, `adverb_sim`'s, which
//! lets time pass between calls, orders them by a seed, and ends programs wherever it hurts. So that a
//! program behaves alike in both it keeps to four rules:
//!
//! 1. It reads no clock and no generator but [`Rdma::now`] and [`Rdma::random`], and finds its peers
//!    through [`Rdma::listen`] and [`Rdma::ask`] only.
//! 2. It waits with [`Rdma::until`] and never by looking again and again.
//! 3. What it needs of others' memory it assumes to be torn, late, or gone; an aligned word is whole.
//! 4. What it does to what programs share it notes ([`Rdma::operation`]), so that an oracle can judge it.
//!
//! Every verb, load and store is a future: ready at once on a host; in a simulation it waits for its core
//! and its time. A future that is dropped leaves what it had posted to the NIC. A handle that is dropped
//! gives its object back, and memory stays until nothing can reach it any more.
//!
//! ```text
//! seam                 Driver, Call, Answer: what a world has to offer
//! lib pending error    a program's world; a call as a future; what can go wrong
//! memory queue connect regions; queue pairs, completion queues; how two programs meet
//! transfer grant       1RMA: transfers without connections, and keys for them
//! record               keys and values that are read while they are written
//! portable             logarithms and powers whose results are the same bits on every machine
//! note                 what an oracle is told
//! unwaited             when a program makes no progress
//! ```
#![forbid(unsafe_code)]

mod connect;
mod error;
mod grant;
mod memory;
mod note;
mod pending;
pub mod portable;
mod queue;
pub mod record;
pub mod seam;
mod transfer;
mod unwaited;

pub use adverb_nic::one_rma::Rights;
pub use adverb_nic::one_rma::executor::{Report, Retry};
pub use adverb_nic::{
    Access, Completion, CompletionOp, LiveQueue, LiveWait, Mtu, QpAttr, QpAttrMask, QpCaps as Caps, QpFlags,
    QpInit, QpState, QpType, RateLimit, SendFlags, SendOp, Sge, Status,
};
pub use adverb_wire::{Duration, Gid, Instant, Key, Psn, QpNumber};
pub use connect::{Asked, Connect, Endpoint, Line, Listener};
pub use error::Error;
pub use grant::{Grant, OPS as GRANT_OPS};
pub use memory::{File, Pd, Region, Remote};
pub use note::Operation;
pub use queue::{Cq, OWN_WORDS, Qp, Srq};
pub use seam::{Answer, Begun, Call, Data, Device, Driver, Note, RecvRequest, SendOrder, SendRequest};
pub use transfer::Memory;
pub use unwaited::{CALLS_UNWAITED, without_progress};

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use pending::Pending;
use queue::CqInner;
use seam::{FileId, Object, Wait};
use std::rc::Rc;

/// A program's world. Clones are the same one.
#[derive(Clone)]
pub struct Rdma {
    world: Rc<World>,
}

/// What a program's handles share.
pub(crate) struct World {
    driver: Rc<dyn Driver>,
    /// Operations noted.
    operations: Cell<u64>,
    /// Programs' tasks that wait in `until` for a completion that another task may take off its queue.
    waiting: RefCell<Vec<Waker>>,
}

/// What [`Rdma::until`] waits for.
#[derive(Clone, Copy)]
pub enum On<'a> {
    /// A completion in this queue.
    Cq(&'a Cq),
    /// A change of the word at a multiple of 8 from what was seen there.
    Word(&'a Region, u64, u64),
    /// A question to be taken.
    Asked(&'a Listener),
    /// The other program leaves, or is known to have ended. A host that crashed says nothing.
    Gone(&'a Line),
    /// The program is asked to end.
    Stop,
}

impl Rdma {
    /// A program's world behind a driver.
    pub fn new(driver: Rc<dyn Driver>) -> Rdma {
        let world = World { driver, operations: Cell::new(0), waiting: RefCell::default() };
        Rdma { world: Rc::new(world) }
    }

    /// What the NIC is.
    pub async fn device(&self) -> Result<Device, Error> {
        match self.world.call(Call::Device).await? {
            Answer::Device(device) => Ok(device),
            other => wrong(&other),
        }
    }

    /// A protection domain.
    pub async fn create_pd(&self) -> Result<Pd, Error> {
        match self.world.call(Call::CreatePd).await? {
            Answer::Pd(id) => Ok(Pd::new(self, id)),
            other => wrong(&other),
        }
    }

    /// A completion queue of at least so many entries.
    pub async fn create_cq(&self, entries: u32) -> Result<Cq, Error> {
        self.create_cq_of(entries, false).await
    }

    /// A completion queue that nobody has to poll: when it is full its oldest completion gives way, and WAITs
    /// count on.
    pub async fn create_endless_cq(&self, entries: u32) -> Result<Cq, Error> {
        self.create_cq_of(entries, true).await
    }

    async fn create_cq_of(&self, entries: u32, endless: bool) -> Result<Cq, Error> {
        match self.world.call(Call::CreateCq { entries, endless }).await? {
            Answer::Cq(id, number) => Ok(Cq::new(self, id, number)),
            other => wrong(&other),
        }
    }

    /// Memory that regions of several programs can be made of, and that outlives this one as long as
    /// another has it.
    pub async fn create_file(&self, len: u64) -> Result<File, Error> {
        match self.world.call(Call::CreateFile { len }).await? {
            Answer::File(id) => Ok(File::new(self, id, true)),
            other => wrong(&other),
        }
    }

    /// A file that another program made, by its number.
    pub fn file(&self, number: i32) -> File {
        File::new(self, FileId(number), false)
    }

    /// Waits until one of these holds, or until the deadline. Says which; `None` for the deadline. What
    /// held before is not missed.
    pub async fn until(&self, on: &[On<'_>], deadline: Option<Instant>) -> Result<Option<usize>, Error> {
        // What another task has taken off a queue for this one is not in the queue any more.
        let kept = || {
            on.iter().position(|on| match on {
                On::Cq(cq) => cq.inner.has_kept(),
                _ => false,
            })
        };
        let waits = on.iter().map(On::wait).collect();
        let mut pending = Pending::new(&*self.world.driver, Call::Until { waits, deadline });
        poll_fn(|context| {
            if let Some(index) = kept() {
                return Poll::Ready(Ok(Some(index)));
            }
            match Pin::new(&mut pending).poll(context) {
                Poll::Ready(Ok(Answer::Woken(index))) => Poll::Ready(Ok(index)),
                Poll::Ready(Ok(other)) => wrong(&other),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => {
                    if on.iter().any(|on| matches!(on, On::Cq(_))) {
                        self.world.wait(context);
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) -> Result<(), Error> {
        let deadline = self.now().await? + time;
        self.until(&[], Some(deadline)).await.map(|_| ())
    }

    /// The time since the NIC was opened. The clocks of two hosts have nothing in common.
    pub async fn now(&self) -> Result<Instant, Error> {
        match self.world.call(Call::Now).await? {
            Answer::Time(now) => Ok(now),
            other => wrong(&other),
        }
    }

    /// A random number.
    pub async fn random(&self) -> Result<u64, Error> {
        match self.world.call(Call::Random).await? {
            Answer::Word(random) => Ok(random),
            other => wrong(&other),
        }
    }

    /// Computes for so long: in a simulation its core is taken meanwhile; on a host, computing takes the
    /// time that it takes.
    pub async fn think(&self, time: Duration) -> Result<(), Error> {
        done(self.world.call(Call::Think(time)).await?)
    }

    /// Can be asked for attributes under this name from now on. On a host it is an address and TCP port.
    pub async fn listen(&self, name: &str) -> Result<Listener, Error> {
        match self.world.call(Call::Listen { name: name.to_owned() }).await? {
            Answer::Listener(id) => Ok(Listener::new(self, id)),
            other => wrong(&other),
        }
    }

    /// Gives attributes to whoever listens there and gets its own, for as long as the line lasts. Until
    /// the deadline it tries again while nobody listens.
    pub async fn ask(
        &self,
        name: &str,
        attributes: &[u8],
        deadline: Option<Instant>,
    ) -> Result<(Line, Vec<u8>), Error> {
        let call = Call::Ask { name: name.to_owned(), attributes: attributes.to_vec(), deadline };
        match self.world.call(call).await? {
            Answer::Told(id, attributes) => Ok((Line::new(self, id), attributes)),
            other => wrong(&other),
        }
    }

    /// Notes the beginning of an operation on an object that programs share, for an oracle. Unless
    /// [`Operation::end`] follows it may or may not have had its effect.
    pub fn operation(&self, object: u64, name: &'static str, arguments: &[u64]) -> Operation {
        let operation = self.world.operations.get();
        self.world.operations.set(operation + 1);
        let arguments = arguments.to_vec();
        self.world.driver.note(Note::Begin { operation, object, name, arguments });
        Operation::new(self, operation)
    }

    /// A line for who reads a replay. On a host nobody does.
    pub fn say(&self, text: impl FnOnce() -> String) {
        self.world.driver.note(Note::Say(text()));
    }
}

impl World {
    pub fn call(&self, call: Call) -> Pending<'_> {
        Pending::new(&*self.driver, call)
    }

    pub fn release(&self, object: Object) {
        self.driver.release(object);
    }

    pub fn note(&self, note: Note) {
        self.driver.note(note);
    }

    /// Wakes this task when another has taken completions off a queue.
    pub fn wait(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    /// Completions were taken off a queue and kept for whom they are for.
    pub fn kept(&self) {
        let waiting = core::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl On<'_> {
    fn wait(&self) -> Wait {
        match *self {
            On::Cq(cq) => Wait::Cq(cq.id()),
            On::Word(region, at, seen) => Wait::Word { memory: region.id(), at, seen },
            On::Asked(listener) => Wait::Asked(listener.id()),
            On::Gone(line) => Wait::Gone(line.id()),
            On::Stop => Wait::Stop,
        }
    }
}

impl CqInner {
    /// Whether another task has taken completions of the program's own requests off the queue.
    fn has_kept(&self) -> bool {
        !self.kept.borrow().is_empty()
    }
}

/// Nothing but that a call is done.
fn done(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Done => Ok(()),
        other => wrong(&other),
    }
}

/// A driver that answers another question than it was asked is wrong itself.
fn wrong(answer: &Answer) -> ! {
    panic!("the driver answered another call: {answer:?}")
}
