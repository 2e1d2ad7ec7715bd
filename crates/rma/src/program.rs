//! `adverb_rdma`'s driver over a 1RMA NIC: memory, grants and transfers of native programs. Calls of queue
//! pairs are refused: they belong to another NIC, `adverb_io`'s.

use crate::{Error, Memory, Rma, Transfer, TransferError};
use adverb_nic::one_rma::executor::Report;
use adverb_os::sys;
use adverb_rdma::seam::{MemoryId, MemoryInfo, Object, Ticket};
use adverb_rdma::{Answer, Begun, Call, Driver, Error as CallError, Note, Rdma, seam};
use adverb_wire::Key;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The driver. It is cheap to make, so that each task may have one of its own.
pub struct Programs {
    rma: Arc<Rma>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    memories: BTreeMap<u32, Memory>,
    /// What peers were granted, for as long as the program runs.
    regions: Vec<crate::Region>,
    transfers: BTreeMap<u64, Transfer>,
    last: u32,
    last_ticket: u64,
}

impl Programs {
    /// A driver over an open NIC.
    pub fn new(rma: Arc<Rma>) -> Rc<Programs> {
        Rc::new(Programs { rma, state: RefCell::default() })
    }

    /// Memory that this process has already, for the program behind a driver.
    pub fn adopt(self: &Rc<Programs>, rdma: &Rdma, memory: Memory) -> adverb_rdma::Memory {
        rdma.adopt(self.add(memory))
    }

    fn add(&self, memory: Memory) -> MemoryInfo {
        let mut state = self.state.borrow_mut();
        state.last += 1;
        let id = MemoryId(state.last);
        let len = memory.len() as u64;
        state.memories.insert(id.0, memory);
        MemoryInfo { id, addr: 0, len, lkey: Key(0), rkey: Key(0) }
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

/// Bytes of a memory, if they are inside.
fn part(memory: &Memory, at: u64, len: u64) -> Result<Range<usize>, CallError> {
    let of = memory.len() as u64;
    if at > of || len > of - at {
        return Err(CallError::Range { at, len, of });
    }
    Ok(at as usize..(at + len) as usize)
}

impl Programs {
    fn begin_transfer(&self, transfer: &seam::Transfer, context: &mut Context<'_>) -> Begun {
        let memory = match self.memory(transfer.memory) {
            Ok(memory) => memory,
            Err(error) => return Begun::Ready(Err(error)),
        };
        let range = match part(&memory, transfer.at, transfer.len) {
            Ok(range) => range,
            Err(error) => return Begun::Ready(Err(error)),
        };
        let mut future = self.rma.transfer(transfer.op, &transfer.grant, transfer.offset, &memory, range);
        future = future.class(transfer.class).retry(transfer.retry);
        if let Some(within) = transfer.within {
            future = future.within(Duration::from_nanos(within.as_ns()));
        }
        match Pin::new(&mut future).poll(context) {
            Poll::Ready(result) => Begun::Ready(ended(result)),
            Poll::Pending => {
                let mut state = self.state.borrow_mut();
                state.last_ticket += 1;
                let ticket = state.last_ticket;
                state.transfers.insert(ticket, future);
                Begun::Waiting(Ticket(ticket))
            }
        }
    }

    fn memory(&self, MemoryId(id): MemoryId) -> Result<Memory, CallError> {
        self.state.borrow().memories.get(&id).cloned().ok_or(CallError::NoSuchObject("memory"))
    }

    fn answer(&self, call: Call) -> Result<Answer, CallError> {
        match call {
            Call::Device => Ok(Answer::Device(seam::Device {
                gid: self.rma.address().into(),
                mtu: adverb_rdma::Mtu::M4096,
                pid: self.rma.pid(),
            })),
            Call::Allocate { len } => {
                let len =
                    usize::try_from(len).map_err(|_| CallError::Unsupported("memory of that length"))?;
                let memory = self.rma.allocate(len).map_err(refused)?;
                Ok(Answer::Memory(self.add(memory)))
            }
            Call::Grant { memory, at, len, rights, peer, pid } => {
                let memory = self.memory(memory)?;
                let region = memory.register(part(&memory, at, len)?, rights).map_err(refused)?;
                let grant = region.grant(peer.ip(), pid, rights).map_err(refused)?;
                self.state.borrow_mut().regions.push(region);
                Ok(Answer::Granted(grant))
            }
            Call::LoadWord { memory, at } => {
                self.word(memory, at, |word| Answer::Word(word.load(std::sync::atomic::Ordering::Acquire)))
            }
            Call::StoreWord { memory, at, value } => self.word(memory, at, |word| {
                word.store(value, std::sync::atomic::Ordering::Release);
                Answer::Done
            }),
            Call::Load { memory, at, len } => {
                let memory = self.memory(memory)?;
                let range = part(&memory, at, len as u64)?;
                Ok(Answer::Bytes(memory.to_vec(range)))
            }
            Call::Store { memory, at, bytes } => {
                let memory = self.memory(memory)?;
                let range = part(&memory, at, bytes.len() as u64)?;
                memory.write(range.start, &bytes);
                Ok(Answer::Done)
            }
            Call::Now => Ok(Answer::Time(self.rma.now())),
            Call::Random => Ok(Answer::Word(sys::random_seed())),
            Call::Think(_) => Ok(Answer::Done),
            _ => Err(CallError::Unsupported("on a 1RMA NIC, a call of queue pairs or of the exchange")),
        }
    }

    fn word(
        &self,
        memory: MemoryId,
        at: u64,
        access: impl FnOnce(&std::sync::atomic::AtomicU64) -> Answer,
    ) -> Result<Answer, CallError> {
        let memory = self.memory(memory)?;
        let range = part(&memory, at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(CallError::Range { at, len: 8, of: memory.len() as u64 });
        }
        Ok(access(memory.word(range.start)))
    }
}

impl Driver for Programs {
    fn begin(&self, call: Call, context: &mut Context<'_>) -> Begun {
        match call {
            Call::Transfer(transfer) => self.begin_transfer(&transfer, context),
            call => Begun::Ready(self.answer(call)),
        }
    }

    fn poll(&self, Ticket(ticket): Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, CallError>> {
        let mut state = self.state.borrow_mut();
        let Some(transfer) = state.transfers.get_mut(&ticket) else {
            return Poll::Ready(Err(CallError::NoSuchObject("call")));
        };
        let Poll::Ready(result) = Pin::new(transfer).poll(context) else { return Poll::Pending };
        state.transfers.remove(&ticket);
        Poll::Ready(ended(result))
    }

    fn forget(&self, Ticket(ticket): Ticket) {
        // Cancelled; its own memory stays registered until what is under way has ended.
        let forgotten = self.state.borrow_mut().transfers.remove(&ticket);
        drop(forgotten);
    }

    fn release(&self, object: Object) {
        if let Object::Memory(MemoryId(id)) = object {
            let released = self.state.borrow_mut().memories.remove(&id);
            drop(released);
        }
    }

    fn note(&self, _: Note) {}
}
