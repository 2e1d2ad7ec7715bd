//! A simulated program's driver: it keeps what the program asks until the simulation takes it, and the
//! answers until the program takes them. Of a program that was killed it keeps nothing more, so that whatever
//! its destructors ask changes nothing.

use adverb_rdma::Error;
use adverb_rdma::seam::{Answer, Begun, Call, Driver, Note, Object, Ticket};
use core::cell::RefCell;
use core::mem::take;
use core::task::{Context, Poll, Waker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// See the module.
#[derive(Default)]
pub(super) struct Mailbox {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    dead: bool,
    tickets: u64,
    begun: VecDeque<(Ticket, Call)>,
    open: BTreeMap<Ticket, Open>,
    forgotten: Vec<Ticket>,
    released: Vec<Object>,
    notes: Vec<Note>,
}

/// A call that the program waits for.
struct Open {
    waker: Waker,
    answer: Option<Result<Answer, Error>>,
}

/// The ticket of a program that is no more.
const NOBODY: Ticket = Ticket(u64::MAX);

impl Driver for Mailbox {
    fn begin(&self, call: Call, context: &mut Context<'_>) -> Begun {
        let mut inner = self.inner.borrow_mut();
        if inner.dead {
            return Begun::Waiting(NOBODY);
        }
        let ticket = Ticket(inner.tickets);
        inner.tickets += 1;
        inner.begun.push_back((ticket, call));
        inner.open.insert(ticket, Open { waker: context.waker().clone(), answer: None });
        Begun::Waiting(ticket)
    }

    fn poll(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Answer, Error>> {
        let mut inner = self.inner.borrow_mut();
        let Some(open) = inner.open.get_mut(&ticket) else { return Poll::Pending };
        match open.answer.take() {
            Some(answer) => {
                inner.open.remove(&ticket);
                Poll::Ready(answer)
            }
            None => {
                open.waker.clone_from(context.waker());
                Poll::Pending
            }
        }
    }

    fn forget(&self, ticket: Ticket) {
        let mut inner = self.inner.borrow_mut();
        if inner.open.remove(&ticket).is_some_and(|open| open.answer.is_none()) {
            let known = inner.begun.len();
            inner.begun.retain(|(begun, _)| *begun != ticket);
            if inner.begun.len() == known {
                inner.forgotten.push(ticket);
            }
        }
    }

    fn release(&self, object: Object) {
        let mut inner = self.inner.borrow_mut();
        if !inner.dead {
            inner.released.push(object);
        }
    }

    fn note(&self, note: Note) {
        let mut inner = self.inner.borrow_mut();
        if !inner.dead {
            inner.notes.push(note);
        }
    }
}

/// The simulation's side.
impl Mailbox {
    /// The next call that nobody has taken.
    pub fn next_call(&self) -> Option<(Ticket, Call)> {
        self.inner.borrow_mut().begun.pop_front()
    }

    /// Answers a call, unless it was forgotten.
    pub fn answer(&self, ticket: Ticket, answer: Result<Answer, Error>) {
        let mut inner = self.inner.borrow_mut();
        if let Some(open) = inner.open.get_mut(&ticket) {
            open.answer = Some(answer);
            let waker = open.waker.clone();
            drop(inner);
            waker.wake();
        }
    }

    /// Calls that were taken and then forgotten, handles that were dropped, notes: since the last time.
    pub fn take_aside(&self) -> (Vec<Ticket>, Vec<Object>, Vec<Note>) {
        let inner = &mut *self.inner.borrow_mut();
        (take(&mut inner.forgotten), take(&mut inner.released), take(&mut inner.notes))
    }

    /// The program is no more.
    pub fn die(&self) {
        *self.inner.borrow_mut() = Inner { dead: true, ..Inner::default() };
    }
}

/// Whether a program has a reason to be polled.
#[derive(Default)]
pub(super) struct Flag(AtomicBool);

impl Flag {
    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lowers it; whether it was up.
    pub fn lower(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_taken_answered_forgotten() {
        let (mailbox, flag) = (Mailbox::default(), Arc::new(Flag::default()));
        let waker = Waker::from(flag.clone());
        let mut context = Context::from_waker(&waker);
        let mut begin = |call| match mailbox.begin(call, &mut context) {
            Begun::Waiting(ticket) => ticket,
            Begun::Ready(_) => panic!("nothing is ready at once"),
        };
        let (now, random, pd) = (begin(Call::Now), begin(Call::Random), begin(Call::CreatePd));
        assert!(matches!(mailbox.next_call(), Some((ticket, Call::Now)) if ticket == now));
        assert!(mailbox.poll(now, &mut context).is_pending());
        mailbox.forget(random);
        assert!(matches!(mailbox.next_call(), Some((ticket, Call::CreatePd)) if ticket == pd));
        assert!(mailbox.next_call().is_none(), "what was forgotten in time is never taken");
        assert!(!flag.lower());
        mailbox.answer(now, Ok(Answer::Word(7)));
        assert!(flag.lower());
        assert!(matches!(mailbox.poll(now, &mut context), Poll::Ready(Ok(Answer::Word(7)))));
        mailbox.forget(now);
        mailbox.forget(pd);
        assert_eq!(mailbox.take_aside().0, [pd], "what was taken already, and has no answer yet");
        mailbox.answer(pd, Ok(Answer::Done));
        assert!(!flag.lower());
    }

    #[test]
    fn who_is_killed_changes_nothing_more() {
        let mailbox = Mailbox::default();
        let waker = Waker::from(Arc::new(Flag::default()));
        let mut context = Context::from_waker(&waker);
        let Begun::Waiting(ticket) = mailbox.begin(Call::Now, &mut context) else { panic!("waits") };
        mailbox.die();
        mailbox.answer(ticket, Ok(Answer::Word(1)));
        assert!(mailbox.poll(ticket, &mut context).is_pending());
        let Begun::Waiting(after) = mailbox.begin(Call::Random, &mut context) else { panic!("waits") };
        assert!(mailbox.poll(after, &mut context).is_pending());
        mailbox.release(Object::Line(adverb_rdma::seam::LineId(1)));
        mailbox.note(Note::Void { operation: 1 });
        mailbox.forget(ticket);
        let (forgotten, released, notes) = mailbox.take_aside();
        assert!(mailbox.next_call().is_none() && forgotten.is_empty() && released.is_empty());
        assert!(notes.is_empty());
    }
}
