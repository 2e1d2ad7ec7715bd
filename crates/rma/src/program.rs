//! `adverb_rdma`'s driver over a 1RMA NIC: memory, grants, transfers and waits of native programs. Calls of
//! queue pairs are refused: they belong to another NIC, `adverb_io`'s. `adverb_program::Both` joins the two.
//!
//! Calls are ready at once. Transfers and `until` wake their task, whichever executor runs it: when a report
//! has come, when messages have come and a word is another, when a timer's thread finds a deadline over.
//! Peers meet over TCP (`adverb_program::Exchange`).

use crate::{Error, Memory, Rma, Transfer, TransferError};
use adverb_nic::one_rma::executor::Report;
use adverb_os::{shm, sys};
use adverb_program::{Changed, Exchange, Stopper, Waits, Watch, clock_ns};
use adverb_rdma::seam::{Backing, FileId, MemoryId, MemoryInfo, Object, Ticket, Wait};
use adverb_rdma::{Answer, Begun, Call, Driver, Error as CallError, Note, Rdma, seam};
use adverb_wire::{Instant, Key};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// In the tickets of transfers, which need no number of [`Waits`].
const TRANSFER: u64 = 1 << 63;

/// The driver. It is cheap to make, so that each task may have one of its own.
pub struct Programs {
    rma: Arc<Rma>,
    state: RefCell<State>,
    /// Both made when the first call needs them.
    waits: OnceCell<Arc<Waits>>,
    exchange: OnceCell<Arc<Exchange>>,
    /// The NIC tells `waits` of messages.
    told: Cell<bool>,
}

#[derive(Default)]
struct State {
    memories: BTreeMap<u32, Piece>,
    files: BTreeMap<i32, OwnedFd>,
    /// What peers were granted, for as long as the program runs.
    regions: Vec<crate::Region>,
    transfers: BTreeMap<u64, Transfer>,
    waiting: BTreeMap<Ticket, Waiting>,
    last: u32,
    last_transfer: u64,
}

/// A program's memory: all of what the NIC knows as one, or the end of it.
#[derive(Clone)]
struct Piece {
    memory: Memory,
    start: u64,
}

/// A call that waits, other than a transfer.
enum Waiting {
    Until { waits: Vec<Wait>, deadline: Option<Instant> },
    Ask { line: u32 },
}

impl Programs {
    /// A driver over an open NIC.
    pub fn new(rma: Arc<Rma>) -> Rc<Programs> {
        Self::make(rma, OnceCell::new())
    }

    /// A driver for programs that have another one beside it, which waits there.
    pub fn beside(rma: Arc<Rma>, waits: Arc<Waits>) -> Rc<Programs> {
        Self::make(rma, OnceCell::from(waits))
    }

    fn make(rma: Arc<Rma>, waits: OnceCell<Arc<Waits>>) -> Rc<Programs> {
        let (state, exchange, told) = (RefCell::default(), OnceCell::new(), Cell::new(false));
        Rc::new(Programs { rma, state, waits, exchange, told })
    }

    /// For another thread that asks the program to end.
    pub fn stopper(&self) -> Stopper {
        Stopper::new(self.waits().clone())
    }

    /// Memory that this process has already, for the program behind a driver.
    pub fn adopt(self: &Rc<Programs>, rdma: &Rdma, memory: Memory) -> adverb_rdma::Memory {
        rdma.adopt(self.add(Piece { memory, start: 0 }))
    }

    fn add(&self, piece: Piece) -> MemoryInfo {
        let mut state = self.state.borrow_mut();
        state.last += 1;
        let id = MemoryId(state.last);
        let len = piece.len();
        state.memories.insert(id.0, piece);
        MemoryInfo { id, addr: 0, len, lkey: Key(0), rkey: Key(0) }
    }

    fn waits(&self) -> &Arc<Waits> {
        self.waits.get_or_init(Arc::default)
    }

    fn exchange(&self) -> &Arc<Exchange> {
        self.exchange.get_or_init(|| Exchange::new(self.waits().clone()))
    }
}

/// A caller's mistake in a program's words.
fn refused(error: Error) -> CallError {
    match error {
        Error::Nic(error) => CallError::Refused(error),
        Error::Range { start, len, of } => CallError::Range { at: start, len, of },
        error => CallError::System(error.to_string()),
    }
}

fn ended(result: Result<Report, TransferError>) -> Result<Answer, CallError> {
    match result {
        Ok(report) | Err(TransferError::Ended(report)) => Ok(Answer::Report(report)),
        Err(TransferError::Refused(error)) => Err(refused(error)),
    }
}

impl Piece {
    fn len(&self) -> u64 {
        self.memory.len() as u64 - self.start
    }

    /// Where bytes of it are in the NIC's memory, if they are inside.
    fn part(&self, at: u64, len: u64) -> Result<Range<usize>, CallError> {
        let of = self.len();
        if at > of || len > of - at {
            return Err(CallError::Range { at, len, of });
        }
        let start = self.start + at;
        Ok(start as usize..(start + len) as usize)
    }

    /// The word at a multiple of 8.
    fn word(&self, at: u64) -> Result<&std::sync::atomic::AtomicU64, CallError> {
        let range = self.part(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(CallError::Range { at, len: 8, of: self.len() });
        }
        Ok(self.memory.word(range.start))
    }

    fn load_word(&self, at: u64) -> Result<u64, CallError> {
        self.word(at).map(|word| word.load(Ordering::Acquire))
    }
}

impl Programs {
    fn begin_transfer(&self, transfer: &seam::Transfer, context: &mut Context<'_>) -> Begun {
        let found = self.memory(transfer.memory);
        let found = found.and_then(|piece| piece.part(transfer.at, transfer.len).map(|range| (piece, range)));
        let (piece, range) = match found {
            Ok(found) => found,
            Err(error) => return Begun::Ready(Err(error)),
        };
        let mut future =
            self.rma.transfer(transfer.op, &transfer.grant, transfer.offset, &piece.memory, range);
        future = future.class(transfer.class).retry(transfer.retry);
        if let Some(within) = transfer.within {
            future = future.within(Duration::from_nanos(within.as_ns()));
        }
        match Pin::new(&mut future).poll(context) {
            Poll::Ready(result) => Begun::Ready(ended(result)),
            Poll::Pending => {
                let mut state = self.state.borrow_mut();
                state.last_transfer += 1;
                let ticket = state.last_transfer | TRANSFER;
                state.transfers.insert(ticket, future);
                Begun::Waiting(Ticket(ticket))
            }
        }
    }

    fn memory(&self, MemoryId(id): MemoryId) -> Result<Piece, CallError> {
        self.state.borrow().memories.get(&id).cloned().ok_or(CallError::NoSuchObject("memory"))
    }

    fn answer(&self, call: Call) -> Result<Answer, CallError> {
        match call {
            Call::Device => Ok(Answer::Device(seam::Device {
                gid: self.rma.address().into(),
                mtu: adverb_rdma::Mtu::M4096,
                pid: self.rma.pid(),
            })),
            Call::CreateFile { len } => {
                let file = shm::sealed_memory(size(len)?)
                    .map_err(|error| CallError::System(format!("making a file of memory: {error}")))?;
                let number = file.as_raw_fd();
                self.state.borrow_mut().files.insert(number, file);
                Ok(Answer::File(FileId(number)))
            }
            Call::Allocate { backing } => self.allocate(backing),
            Call::Grant { memory, at, len, rights, peer, pid } => {
                let piece = self.memory(memory)?;
                let region = piece.memory.register(piece.part(at, len)?, rights).map_err(refused)?;
                let grant = region.grant(peer.ip(), pid, rights).map_err(refused)?;
                self.state.borrow_mut().regions.push(region);
                Ok(Answer::Granted(grant))
            }
            Call::LoadWord { memory, at } => self.memory(memory)?.load_word(at).map(Answer::Word),
            Call::StoreWord { memory, at, value } => {
                self.memory(memory)?.word(at)?.store(value, Ordering::Release);
                Ok(self.stored())
            }
            Call::Load { memory, at, len } => {
                let piece = self.memory(memory)?;
                Ok(Answer::Bytes(piece.memory.to_vec(piece.part(at, len as u64)?)))
            }
            Call::Store { memory, at, bytes } => {
                let piece = self.memory(memory)?;
                piece.memory.write(piece.part(at, bytes.len() as u64)?.start, &bytes);
                Ok(self.stored())
            }
            Call::Now => Ok(Answer::Time(self.rma.now())),
            Call::Random => Ok(Answer::Word(sys::random_seed())),
            Call::Think(_) => Ok(Answer::Done),
            Call::Listen { .. } | Call::Accept(_) | Call::Reply { .. } => {
                let answer = self.exchange().answer(&call);
                answer.unwrap_or(Err(CallError::Unsupported("that call of the exchange")))
            }
            _ => Err(CallError::Unsupported("on a 1RMA NIC alone, a call of queue pairs")),
        }
    }

    /// The program has written to its memory, where another of its tasks may wait for a word, through this
    /// driver or through another one over the same NIC.
    fn stored(&self) -> Answer {
        if let Some(waits) = self.waits.get() {
            waits.on_wait();
            waits.on_words();
        }
        self.rma.stored(self.told.get());
        Answer::Done
    }

    fn allocate(&self, backing: Backing) -> Result<Answer, CallError> {
        let (memory, start) = match backing {
            Backing::Zeros { len } => (self.rma.allocate(size(len)?), 0),
            Backing::File { file: FileId(file), at, len } => {
                let end = at.checked_add(len).filter(|_| len > 0 && at.is_multiple_of(8));
                let end = end.ok_or(CallError::Range { at, len, of: u64::MAX })?;
                (self.rma.allocate_of_file(file, size(end)?), at)
            }
            Backing::SendQueue(_) => return Err(CallError::Unsupported("a send queue's memory for 1RMA")),
            Backing::Device { .. } => return Err(CallError::Unsupported("the NIC's own memory for 1RMA")),
            Backing::Same(_) => return Err(CallError::Unsupported("a region's memory for 1RMA")),
        };
        Ok(Answer::Memory(self.add(Piece { memory: memory.map_err(refused)?, start })))
    }
}

fn size(bytes: u64) -> Result<usize, CallError> {
    usize::try_from(bytes).map_err(|_| CallError::Unsupported("memory of that length"))
}

/// Calls that wait.
impl Programs {
    /// The first of the waits that holds, if one does or the time has come.
    fn holds(&self, waits: &[Wait], deadline: Option<Instant>) -> Option<Option<usize>> {
        let state = self.state.borrow();
        let first = waits.iter().position(|wait| match *wait {
            // What is gone will never change: the program finds out when it looks.
            Wait::Word { memory, at, seen } => {
                state.memories.get(&memory.0).is_none_or(|piece| piece.load_word(at) != Ok(seen))
            }
            _ => self.exchange().holds(wait) == Some(true),
        });
        match (first, deadline) {
            (Some(index), _) => Some(Some(index)),
            (None, Some(deadline)) if self.rma.now() >= deadline => Some(None),
            _ => None,
        }
    }

    fn until(&self, waits: Vec<Wait>, deadline: Option<Instant>, context: &Context<'_>) -> Begun {
        if waits.iter().any(|wait| matches!(wait, Wait::Cq(_))) {
            return Begun::Ready(Err(CallError::Unsupported("on a 1RMA NIC alone, a completion queue")));
        }
        let words = waits.iter().any(|wait| matches!(wait, Wait::Word { .. }));
        if words && !self.told.get() {
            if !self.rma.tell(self.waits()) {
                let what = "waiting for a word of memory that a daemon's NIC writes";
                return Begun::Ready(Err(CallError::Unsupported(what)));
            }
            self.told.set(true);
        }
        if let Some(index) = self.holds(&waits, deadline) {
            return Begun::Ready(Ok(Answer::Woken(index)));
        }
        let ticket = self.waits().ticket();
        self.state.borrow_mut().waiting.insert(ticket, Waiting::Until { waits, deadline });
        begun(ticket, self.poll_waiting(ticket, context.waker()))
    }

    fn ask(&self, name: &str, own: Vec<u8>, deadline: Option<Instant>, context: &Context<'_>) -> Begun {
        let time = deadline.map(|deadline| Duration::from_nanos(deadline.since(self.rma.now()).as_ns()));
        let line = match self.exchange().ask(name, own, time) {
            Ok(line) => line,
            Err(error) => return Begun::Ready(Err(error)),
        };
        let ticket = self.waits().ticket();
        self.state.borrow_mut().waiting.insert(ticket, Waiting::Ask { line });
        begun(ticket, self.poll_waiting(ticket, context.waker()))
    }

    fn poll_waiting(&self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, CallError>> {
        let state = self.state.borrow();
        let polled = match state.waiting.get(&ticket) {
            None => return Poll::Ready(Err(CallError::NoSuchObject("call"))),
            Some(Waiting::Ask { line }) => self.exchange().poll_told(ticket, *line, waker),
            Some(Waiting::Until { waits, deadline }) => {
                // In this order: who changes something later finds whom to wake.
                let watch = self.watch(&state, waits, *deadline, waker);
                let watched = self.waits().set(ticket, watch);
                let failed = |error| CallError::System(format!("starting the timer's thread: {error}"));
                match (watched, self.holds(waits, *deadline)) {
                    (Err(error), _) => Poll::Ready(Err(failed(error))),
                    (Ok(()), Some(index)) => Poll::Ready(Ok(Answer::Woken(index))),
                    (Ok(()), None) => Poll::Pending,
                }
            }
        };
        drop(state);
        if polled.is_ready() {
            self.waits().remove(ticket);
            self.state.borrow_mut().waiting.remove(&ticket);
        }
        polled
    }

    fn watch(&self, state: &State, waits: &[Wait], deadline: Option<Instant>, waker: &Waker) -> Watch {
        let words = waits.iter().filter_map(|wait| match *wait {
            Wait::Word { memory, at, seen } => {
                let piece = state.memories.get(&memory.0)?.clone();
                Some(Box::new(move || piece.load_word(at) != Ok(seen)) as Changed)
            }
            _ => None,
        });
        let left = deadline.map(|deadline| deadline.since(self.rma.now()).as_ns());
        let deadline_ns = left.map(|left| clock_ns().saturating_add(left));
        Watch { waker: waker.clone(), cqs: Vec::new(), words: words.collect(), deadline_ns }
    }
}

fn begun(ticket: Ticket, polled: Poll<Result<Answer, CallError>>) -> Begun {
    match polled {
        Poll::Ready(answer) => Begun::Ready(answer),
        Poll::Pending => Begun::Waiting(ticket),
    }
}

impl Driver for Programs {
    fn begin(&self, call: Call, context: &mut Context<'_>) -> Begun {
        match call {
            Call::Transfer(transfer) => {
                if let Some(waits) = self.waits.get() {
                    waits.on_wait();
                }
                self.begin_transfer(&transfer, context)
            }
            Call::Until { waits, deadline } => {
                self.waits().on_wait();
                self.until(waits, deadline, context)
            }
            Call::Ask { name, attributes, deadline } => {
                self.waits().on_wait();
                self.ask(&name, attributes, deadline, context)
            }
            call => {
                let answer = self.answer(call);
                self.waits().on_answer(&answer);
                Begun::Ready(answer)
            }
        }
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, CallError>> {
        if ticket.0 & TRANSFER == 0 {
            return self.poll_waiting(ticket, context.waker());
        }
        let mut state = self.state.borrow_mut();
        let Some(transfer) = state.transfers.get_mut(&ticket.0) else {
            return Poll::Ready(Err(CallError::NoSuchObject("call")));
        };
        let Poll::Ready(result) = Pin::new(transfer).poll(context) else { return Poll::Pending };
        state.transfers.remove(&ticket.0);
        Poll::Ready(ended(result))
    }

    fn forget(&self, ticket: Ticket) {
        if ticket.0 & TRANSFER == 0 {
            self.waits().remove(ticket);
            let forgotten = self.state.borrow_mut().waiting.remove(&ticket);
            if let Some(Waiting::Ask { line }) = forgotten {
                self.exchange().release_line(line);
            }
            return;
        }
        // Cancelled; its own memory stays registered until what is under way has ended.
        let forgotten = self.state.borrow_mut().transfers.remove(&ticket.0);
        drop(forgotten);
    }

    fn release(&self, object: Object) {
        match object {
            Object::Memory(MemoryId(id)) => {
                let released = self.state.borrow_mut().memories.remove(&id);
                drop(released);
            }
            Object::File(FileId(file)) => drop(self.state.borrow_mut().files.remove(&file)),
            Object::Listener(_) | Object::Line(_) => self.exchange().release(object),
            _ => {}
        }
    }

    fn note(&self, _: Note) {}
}

impl Drop for Programs {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.get() {
            exchange.close();
        }
    }
}
