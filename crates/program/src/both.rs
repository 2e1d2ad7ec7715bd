//! Two NICs as one world: queue pairs of one driver, 1RMA's transfers of another, for one program text.
//!
//! Each call goes to the NIC that it is for. Time, randomness, files and the exchange are those of the queue
//! pairs' driver. `until` waits at both for what each knows, so that whichever comes first wakes the program,
//! and nobody looks around meanwhile. What the two share is the bytes of a file of memory: a region of queue
//! pairs and memory of 1RMA may be parts of it. A word there may be written through either NIC, whichever of
//! the two names the program waits by; so both drivers must [wait](crate::Waits) at one place.

use adverb_rdma::seam::{MemoryId, MemoryInfo, Object, Ticket, Wait};
use adverb_rdma::{Answer, Begun, Call, Device, Driver, Error, Note};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// In the names of memory that belongs to the 1RMA NIC.
const TRANSFERS: u32 = 1 << 31;

/// A driver of two NICs that have one address.
pub struct Both {
    queues: Rc<dyn Driver>,
    transfers: Rc<dyn Driver>,
    device: Device,
    waiting: RefCell<BTreeMap<Ticket, Waiting>>,
    last_ticket: Cell<u64>,
}

/// A call that waits, by the tickets of those that answer it.
enum Waiting {
    Queues(Ticket),
    Transfers(Ticket),
    Either { queues: Half, transfers: Half },
}

/// One driver's part of the conditions, and where each stands among all.
struct Half {
    ticket: Ticket,
    places: Vec<usize>,
}

fn device_of(driver: &dyn Driver) -> Result<Device, Error> {
    match driver.begin(Call::Device, &mut Context::from_waker(Waker::noop())) {
        Begun::Ready(Ok(Answer::Device(device))) => Ok(device),
        Begun::Ready(Err(error)) => Err(error),
        other => unreachable!("what a NIC is, is known at once: {other:?}"),
    }
}

/// The name by which the 1RMA NIC's driver knows memory, if it is that NIC's.
fn of_transfers(MemoryId(id): MemoryId) -> Option<MemoryId> {
    (id & TRANSFERS != 0).then_some(MemoryId(id & !TRANSFERS))
}

/// The same conditions' answer among all.
fn placed(answer: Result<Answer, Error>, places: &[usize]) -> Result<Option<usize>, Error> {
    match answer? {
        Answer::Woken(index) => Ok(index.map(|index| places[index])),
        other => unreachable!("a wait is over: {other:?}"),
    }
}

impl Both {
    /// Joins two drivers. They answer what they are at once, and are the same host's.
    pub fn new(queues: Rc<dyn Driver>, transfers: Rc<dyn Driver>) -> Result<Rc<Both>, Error> {
        let (device, other) = (device_of(&*queues)?, device_of(&*transfers)?);
        if device.gid != other.gid {
            let (own, other) = (device.gid.ip(), other.gid.ip());
            return Err(Error::System(format!(
                "queue pairs at {own} and 1RMA at {other}: one program's NICs have one address"
            )));
        }
        let device = Device { pid: other.pid, ..device };
        let (waiting, last_ticket) = (RefCell::default(), Cell::new(0));
        Ok(Rc::new(Both { queues, transfers, device, waiting, last_ticket }))
    }

    fn waits(&self, waiting: Waiting) -> Begun {
        let ticket = Ticket(self.last_ticket.get() + 1);
        self.last_ticket.set(ticket.0);
        self.waiting.borrow_mut().insert(ticket, waiting);
        Begun::Waiting(ticket)
    }

    fn begin_at_queues(&self, call: Call, context: &mut Context<'_>) -> Begun {
        match self.queues.begin(call, context) {
            Begun::Ready(Ok(Answer::Memory(info))) if info.id.0 & TRANSFERS != 0 => {
                self.queues.release(Object::Memory(info.id));
                Begun::Ready(Err(adverb_nic::Error::TableFull.into()))
            }
            Begun::Waiting(ticket) => self.waits(Waiting::Queues(ticket)),
            ready => ready,
        }
    }

    fn begin_at_transfers(&self, call: Call, context: &mut Context<'_>) -> Begun {
        match self.transfers.begin(call, context) {
            Begun::Ready(Ok(Answer::Memory(MemoryInfo { id, .. }))) if id.0 & TRANSFERS != 0 => {
                self.transfers.release(Object::Memory(id));
                Begun::Ready(Err(adverb_nic::Error::TableFull.into()))
            }
            Begun::Ready(Ok(Answer::Memory(info))) => {
                let id = MemoryId(info.id.0 | TRANSFERS);
                Begun::Ready(Ok(Answer::Memory(MemoryInfo { id, ..info })))
            }
            Begun::Waiting(ticket) => self.waits(Waiting::Transfers(ticket)),
            ready => ready,
        }
    }

    fn until(&self, waits: Vec<Wait>, deadline: Option<adverb_rdma::Instant>, cx: &mut Context<'_>) -> Begun {
        let (mut here, mut there) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (place, wait) in waits.into_iter().enumerate() {
            let (wait, to) = match wait {
                Wait::Word { memory, at, seen } => match of_transfers(memory) {
                    Some(memory) => (Wait::Word { memory, at, seen }, &mut there),
                    None => (wait, &mut here),
                },
                _ => (wait, &mut here),
            };
            to.0.push(wait);
            to.1.push(place);
        }
        let at_queues = Call::Until { waits: here.0, deadline };
        if there.0.is_empty() {
            // Then its places are those of all.
            return self.begin_at_queues(at_queues, cx);
        }
        let queues = self.queues.begin(at_queues, cx);
        let transfers = self.transfers.begin(Call::Until { waits: there.0, deadline: None }, cx);
        match (queues, transfers) {
            (Begun::Waiting(queues), Begun::Waiting(transfers)) => {
                let queues = Half { ticket: queues, places: here.1 };
                let transfers = Half { ticket: transfers, places: there.1 };
                self.waits(Waiting::Either { queues, transfers })
            }
            (Begun::Ready(a), Begun::Ready(b)) => {
                Begun::Ready(first(placed(a, &here.1), placed(b, &there.1)))
            }
            (Begun::Ready(answer), Begun::Waiting(ticket)) => {
                self.transfers.forget(ticket);
                Begun::Ready(placed(answer, &here.1).map(Answer::Woken))
            }
            (Begun::Waiting(ticket), Begun::Ready(answer)) => {
                self.queues.forget(ticket);
                Begun::Ready(placed(answer, &there.1).map(Answer::Woken))
            }
        }
    }

    fn poll_either(
        &self,
        queues: &Half,
        transfers: &Half,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer, Error>> {
        let at_queues = self.queues.poll(queues.ticket, cx);
        let at_transfers = self.transfers.poll(transfers.ticket, cx);
        match (at_queues, at_transfers) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            (Poll::Ready(a), Poll::Ready(b)) => {
                Poll::Ready(first(placed(a, &queues.places), placed(b, &transfers.places)))
            }
            (Poll::Ready(answer), Poll::Pending) => {
                self.transfers.forget(transfers.ticket);
                Poll::Ready(placed(answer, &queues.places).map(Answer::Woken))
            }
            (Poll::Pending, Poll::Ready(answer)) => {
                self.queues.forget(queues.ticket);
                Poll::Ready(placed(answer, &transfers.places).map(Answer::Woken))
            }
        }
    }
}

/// What both have found at once: the first of the conditions, and a deadline only without one.
fn first(a: Result<Option<usize>, Error>, b: Result<Option<usize>, Error>) -> Result<Answer, Error> {
    let found = match (a?, b?) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    Ok(Answer::Woken(found))
}

impl Driver for Both {
    fn begin(&self, mut call: Call, context: &mut Context<'_>) -> Begun {
        let there = match &mut call {
            Call::Device => return Begun::Ready(Ok(Answer::Device(self.device))),
            Call::Allocate { .. } => true,
            Call::LoadWord { memory, .. }
            | Call::StoreWord { memory, .. }
            | Call::Load { memory, .. }
            | Call::Store { memory, .. } => match of_transfers(*memory) {
                Some(own) => {
                    *memory = own;
                    true
                }
                None => false,
            },
            Call::Grant { memory, .. } => match of_transfers(*memory) {
                Some(own) => {
                    *memory = own;
                    true
                }
                None => return Begun::Ready(Err(Error::NoSuchObject("memory of 1RMA"))),
            },
            Call::Transfer(transfer) => match of_transfers(transfer.memory) {
                Some(own) => {
                    transfer.memory = own;
                    true
                }
                None => return Begun::Ready(Err(Error::NoSuchObject("memory of 1RMA"))),
            },
            _ => false,
        };
        match call {
            Call::Until { waits, deadline } => self.until(waits, deadline, context),
            call if there => self.begin_at_transfers(call, context),
            call => self.begin_at_queues(call, context),
        }
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        // Taken out meanwhile: what is woken may ask this driver again.
        let Some(waiting) = self.waiting.borrow_mut().remove(&ticket) else {
            return Poll::Ready(Err(Error::NoSuchObject("call")));
        };
        let polled = match &waiting {
            Waiting::Queues(own) => self.queues.poll(*own, context),
            Waiting::Transfers(own) => self.transfers.poll(*own, context),
            Waiting::Either { queues, transfers } => self.poll_either(queues, transfers, context),
        };
        if polled.is_pending() {
            self.waiting.borrow_mut().insert(ticket, waiting);
        }
        polled
    }

    fn forget(&self, ticket: Ticket) {
        let forgotten = self.waiting.borrow_mut().remove(&ticket);
        match forgotten {
            Some(Waiting::Queues(own)) => self.queues.forget(own),
            Some(Waiting::Transfers(own)) => self.transfers.forget(own),
            Some(Waiting::Either { queues, transfers }) => {
                self.queues.forget(queues.ticket);
                self.transfers.forget(transfers.ticket);
            }
            None => {}
        }
    }

    fn release(&self, object: Object) {
        match object {
            Object::Memory(id) => match of_transfers(id) {
                Some(own) => self.transfers.release(Object::Memory(own)),
                None => self.queues.release(object),
            },
            object => self.queues.release(object),
        }
    }

    fn note(&self, note: Note) {
        self.queues.note(note);
    }
}
